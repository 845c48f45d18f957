-- The simulator against a machine that we have: some steps of a training run here, and the same step simulated with
-- this host's rates, which are measured before and after: on a machine that is shared they change.
--
--     build/mxlua scripts/sim_host.lua [config.yml] [key=value ...]
--
-- Keys are those of configs/base.yml; steps is how many are timed after one of warm-up.

local mx = require "mx"

local config = mx.config.load(arg, { simulate = false })
if mx.ranks() > 1 then
    mx.util.refuse("one rank is compared, but there are %d: start mxlua without mpirun", mx.ranks())
end

local simulated = mx.plan.simulate(config, "host-1", 1)

local model = mx.models.new(config)
local data, optimizer = mx.data.open(config), mx.optim.new(config, model.params)
local times = {}
for step = 0, config.steps do
    local start = mx.now()
    mx.train.gradients(model, data, config.gradient_accumulation_steps)
    optimizer:step()
    times[step] = mx.now() - start
end

local measured = mx.util.quantile(times, 0.5)
local again = mx.plan.simulate(config, "host-1", 1)
print(("%s: %s parameters, %d x %d tokens, %s"):format(config.model_name, mx.util.thousands(simulated.params),
    config.per_device_batch_size, config.max_target_length, config.remat_policy))
for i, h in ipairs({ simulated.hardware, again.hardware }) do
    print(("rates %s: bf16 products %.4g GFLOP/s, attention %.4g GFLOP/s, memory %.3g GB/s"):format(
        i == 1 and "before" or "after ",
        h.peak_flops.bfloat16 * h.matrix_efficiency / 1e9, h.peak_flops.bfloat16 * h.attention_efficiency / 1e9,
        h.memory_Bps / 1e9))
end
local step_s = (simulated.step_s + again.step_s) / 2
print(("step measured  %9.4g s  (median of %d)"):format(measured, config.steps))
print(("step simulated %9.4g s  (%+.1f %%; %.4g with the rates before, %.4g after)"):format(step_s,
    100 * (step_s / measured - 1), simulated.step_s, again.step_s))
