--- The module `mx`: the engine's functions (mx.core, in C) and what is written in Lua on top of them.
--
-- Lua modules load when first used: mx.config, mx.models, mx.train and the others of MODULES.

local core = require "mx.core"
local remat = require "mx.remat"

local MODULES = {
    "bench", "bench_published", "checkpoint", "checkpoint_files", "checkpoint_index", "collectives", "config",
    "config_paths", "config_values", "data", "evaluate", "files", "fit", "flops", "generate", "guard", "host",
    "kernels", "mesh", "metrics", "models", "nn", "optim", "outputs", "parallel", "plan", "policies", "prepare",
    "profiler", "report", "repro", "roofline", "run", "run_folder", "sim", "tensorboard", "tokenizer", "train",
    "util", "weights",
}

local mx = {}
for name, value in pairs(core) do
    mx[name] = value
end

--- Where the project lies, with a slash at its end: configs/ is found below it.
mx.root = debug.getinfo(1, "S").source:match("^@(.*)lua/mx/init%.lua$") or ""

mx.remat = remat.run

local lazy = {}
for _, name in ipairs(MODULES) do
    lazy[name] = true
end

return setmetatable(mx, {
    __index = function(self, name)
        if lazy[name] then
            local module = require("mx." .. name)
            rawset(self, name, module)
            return module
        end
        error(("mx.%s does not exist; mx.ops() lists the operations"):format(tostring(name)), 2)
    end,
})
