-- Checks the simulator against this machine: times some training steps, simulates the same step with this machine's
-- measured rates, and compares the medians. The rates are sampled between the steps, because both change all the time
-- on a shared machine.
--
--     build/mxlua scripts/sim_host.lua model_name=gpt2-124m max_target_length=256 per_device_batch_size=2 steps=5
--
-- Keys are those of configs/base.yml; steps is the number of timed steps, after one step of warm-up.

local mx = require "mx"

local config = mx.config.load(arg, { simulate = false })
if mx.ranks() > 1 then
    mx.util.refuse("one rank is compared, but there are %d: start mxlua without mpirun", mx.ranks())
end

mx.plan.check(config)
local model = mx.models.new(config)
local data, optimizer = mx.data.open(config), mx.optim.new(config, model.params)
local times, samples, shown = {}, {}, mx.now()
for step = 0, config.steps do
    samples[step] = mx.host.sample()
    local start = mx.now()
    mx.train.gradients(model, data, config.gradient_accumulation_steps)
    optimizer:step()
    times[step] = mx.now() - start
    if mx.now() - shown > 2 or step == config.steps then
        shown = mx.now()
        io.stderr:write(("\rstep %d of %d%s"):format(step, config.steps, step == config.steps and "\n" or ""))
    end
end

local peak = mx.metrics.measured_peak(model.shape.dtype)
local rates, measured = mx.host.combine(samples, 0.5), mx.util.quantile(times, 0.5)
local simulated = mx.plan.simulate(config, mx.host.hardware(1, { rates = rates }), 1)
print(("%s: %s parameters, %s x %d tokens, %s"):format(config.model_name, mx.util.thousands(simulated.params),
    config.per_device_batch_size, config.max_target_length, config.remat_policy))
print(("rates: bf16 products %.4g GFLOP/s, attention %.4g GFLOP/s, memory %.3g GB/s"):format(rates.bf16 / 1e9,
    rates.attention / 1e9, rates.memory / 1e9))
print(("peak: %.4g GFLOP/s, %s%s"):format(peak.value / 1e9, peak.source, peak.product
    and ("; products of operands in the caches reach %.4g"):format(peak.product / 1e9) or ""))
print(("step measured  %9.4g s  (median of %d; 10 %% to 90 %%: %.4g to %.4g)"):format(measured, config.steps,
    mx.util.quantile(times, 0.1), mx.util.quantile(times, 0.9)))
print(("step simulated %9.4g s  (%+.1f %%)"):format(simulated.step_s, 100 * (simulated.step_s / measured - 1)))
