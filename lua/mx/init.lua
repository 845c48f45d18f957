--- The module `mx`: the engine's functions (mx.core, in C) and the Lua modules on top of them.
--
-- Lua modules load when first used: mx.config, mx.models, mx.train and the others of FILES.

local core = require "mx.core"
local remat = require "mx.models.remat"

-- mx.NAME -> FILE: it is defined in lua/mx/FILE.lua, or in lua/mx/FILE/init.lua for a folder.
local FILES = {
    bench = "bench", collectives = "bench/collectives", kernels = "bench/kernels", policies = "bench/policies",
    generation = "bench/generation", precision = "bench/precision",
    checkpoint = "checkpoint",
    config = "config", words = "config/words",
    einsum = "einsum", gradcheck = "gradcheck", linalg = "linalg",
    data = "data", prepare = "data/prepare", tokenizer = "data/tokenizer",
    models = "models", flops = "models/flops", generate = "models/generate",
    nn = "nn",
    parallel = "parallel", mesh = "parallel/mesh",
    pipeline = "pipeline",
    report = "report",
    run = "run", evaluate = "run/evaluate", files = "run/files", goodput = "run/goodput", guard = "run/guard",
    metrics = "run/metrics", optim = "run/optim", outputs = "run/outputs", profiler = "run/profiler",
    tensorboard = "run/tensorboard", train = "run/train",
    sim = "sim", flags = "sim/flags", fit = "sim/fit", generations = "sim/generations",
    host = "sim/host", plan = "sim/plan", repro = "sim/repro", roofline = "sim/roofline",
    util = "util",
    weights = "weights",
}

-- mx.NAME -> FILE: the function NAME of that module.
local FUNCTIONS = {
    load_npy = "storage/npy", save_npy = "storage/npy", load_npz = "storage/npy", save_npz = "storage/npy",
    load_csv = "storage/csv", save = "storage/tables", load = "storage/tables", from_bytes = "storage/bytes",
    to_bytes = "storage/bytes", plot = "report/plot",
    eye = "composed", linspace = "composed", unfold = "composed", unique = "composed", interpolate = "composed",
    conv_transpose1d = "composed", conv_transpose2d = "composed", prod = "composed", cumprod = "composed",
    normalize = "composed", gumbel_softmax = "composed",
    sweep = "run/sweep", tune = "tune", help = "help",
    progress = "report/progress", sparkline = "report/progress",
}

local mx = {}
for name, value in pairs(core) do
    mx[name] = value
end

--- The folder of lua/, scripts/ and configs/, with a trailing slash: the sources, or the folder where mxlua is
--- installed.
mx.root = debug.getinfo(1, "S").source:match("^@(.*)lua/mx/init%.lua$") or ""

mx.remat = remat.run

local function known_names(loaded)
    local names = {}
    for _, list in ipairs({ loaded, FILES, FUNCTIONS }) do
        for name in pairs(list) do
            names[#names + 1] = name
        end
    end
    return names
end

return setmetatable(mx, {
    modules = FILES, functions = FUNCTIONS, -- the engine's messages and tests/lua/test_help.lua read these names
    is_elsewhere = function(name) return require "mx.help".explains(name) end, -- for the engine's messages
    __index = function(self, name)
        local file = FILES[name] or FUNCTIONS[name]
        if file then
            local module = require("mx." .. file:gsub("/", "."))
            rawset(self, name, FILES[name] and module or module[name])
            return self[name]
        end
        local util, help = require "mx.util", require "mx.help"
        local ours = help.of_torch(tostring(name))
        if help.is_elsewhere(tostring(name)) then
            error(("mx.%s does not exist; print(mx.help %q) says what to write instead"):format(name, name), 2)
        elseif #ours > 0 then
            error(("mx.%s does not exist; PyTorch's %s is %s here: print(mx.help %q)"):format(name, name,
                table.concat(ours, " or "), name), 2)
        end
        if debug.getregistry()["mx.tensor"].methods[name] then
            error(("mx.%s does not exist; it is a method of tensors: t:%s"):format(name, name), 2)
        end
        local near = util.nearest(tostring(name), known_names(self))
        error(("mx.%s does not exist; %smx.help() lists all names"):format(tostring(name),
            near and ("did you mean mx.%s? "):format(near) or ""), 2)
    end,
})
