-- Trains a decoder on this machine; each rank is one device:
--
--     build/mxlua scripts/train.lua model_name=tiny dataset_type=text dataset_path=FILE steps=300
--     mpirun -n 2 build/mxlua scripts/train.lua [config.yml] [key=value ...]
--
-- With run_name=NAME, all files of the run are in checkpoints/NAME, and the same command resumes an interrupted run, on
-- any number of ranks. trace_file=F and report_file=F.html show where the time goes. configs/base.yml explains every
-- key, and build/mxlua --help KEY one of them. This is the whole training loop: copy it and change it.

local mx = require "mx"

local config = mx.config.load(arg)
mx.run.check_subject(config, arg)
mx.run.claim(config)
mx.plan.check(config)
local mesh = mx.train.mesh(config)
local data = mx.data.open(config, mesh)
local model = mx.models.new(config, mesh)
local optimizer = mx.optim.new(config, model.params, model.parallel)
local run = mx.run.start(config, model, optimizer, data)

for step in run:steps() do
    local loss = mx.train.gradients(model, data, config.gradient_accumulation_steps)
    run:ended(step, loss, run:update(step, loss))
end

run:finish()
