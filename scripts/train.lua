-- Trains a decoder on this machine, a rank for each device:
--
--     build/mxlua scripts/train.lua model_name=tiny dataset_type=text dataset_path=FILE steps=300
--     mpirun -n 2 build/mxlua scripts/train.lua [config.yml] [key=value ...]
--
-- trace_file=F and report_file=F.html show what the steps do. configs/base.yml explains every key. The loop below is
-- the whole of it: copy it and make it yours.

local mx = require "mx"

local config = mx.config.load(arg)
mx.plan.check(config)
local mesh = mx.train.mesh(config)
local model = mx.models.new(config, mesh)
local data = mx.data.open(config, mesh)
local optimizer = mx.optim.new(config, model.params, model.parallel)
local metrics = mx.train.start(config, model)

for step = 1, config.steps do
    local loss = mx.train.gradients(model, data, config.gradient_accumulation_steps)
    local rate = optimizer:rate(step)
    local grad_norm = optimizer:step()
    mx.train.check_finite(step, loss, grad_norm, rate)
    local wait_s = data:waited()
    metrics:step(step, { loss = loss, grad_norm = grad_norm, learning_rate = rate, input_wait_s = wait_s })
end

metrics:finish()
if config.enable_checkpointing then
    mx.metrics.say("parameters saved in %s", mx.train.save(config, model))
end
