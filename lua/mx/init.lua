--- The module `mx`: the engine's functions (mx.core, in C) and the Lua modules on top of them.
--
-- Lua modules load when first used: mx.config, mx.models, mx.train and the others of FILES.

local core = require "mx.core"
local remat = require "mx.models.remat"

-- mx.NAME -> FILE: it is defined in lua/mx/FILE.lua, or in lua/mx/FILE/init.lua for a folder.
local FILES = {
    bench = "bench", collectives = "bench/collectives", kernels = "bench/kernels", policies = "bench/policies",
    checkpoint = "checkpoint",
    config = "config", words = "config/words",
    einsum = "einsum",
    data = "data", prepare = "data/prepare", tokenizer = "data/tokenizer",
    models = "models", flops = "models/flops", generate = "models/generate",
    nn = "nn",
    parallel = "parallel", mesh = "parallel/mesh",
    report = "report",
    run = "run", evaluate = "run/evaluate", files = "run/files", goodput = "run/goodput", guard = "run/guard",
    metrics = "run/metrics", optim = "run/optim", outputs = "run/outputs", profiler = "run/profiler",
    tensorboard = "run/tensorboard", train = "run/train",
    sim = "sim", flags = "sim/flags", fit = "sim/fit",
    host = "sim/host", plan = "sim/plan", repro = "sim/repro", roofline = "sim/roofline",
    util = "util",
    weights = "weights",
}

local mx = {}
for name, value in pairs(core) do
    mx[name] = value
end

--- The folder of lua/, scripts/ and configs/, with a trailing slash: the sources, or the folder where mxlua is
--- installed.
mx.root = debug.getinfo(1, "S").source:match("^@(.*)lua/mx/init%.lua$") or ""

mx.remat = remat.run

return setmetatable(mx, {
    __index = function(self, name)
        if FILES[name] then
            local module = require("mx." .. FILES[name]:gsub("/", "."))
            rawset(self, name, module)
            return module
        end
        local util = require "mx.util"
        local known = util.sorted_keys(self)
        table.move(util.sorted_keys(FILES), 1, #util.sorted_keys(FILES), #known + 1, known)
        local near = util.nearest(tostring(name), known)
        error(("mx.%s does not exist; %smx.ops() lists the operations"):format(tostring(name),
            near and ("did you mean mx.%s? "):format(near) or ""), 2)
    end,
})
