-- Measures what a mesh costs: its training steps against steps that the same ranks take by themselves, in turns:
--
--     mpirun -n 2 build/mxlua scripts/scaling.lua model_name=gpt2-124m max_target_length=512 per_device_batch_size=1
--     mpirun -n 2 build/mxlua scripts/scaling.lua model_name=tiny-moe ici_expert_parallelism=2 use_random_routing=true
--
-- rounds   how often each kind of step is measured, after one round of warm-up; default: 7
--
-- Both kinds have as many tokens, and all cores are busy in both. So the ratio of their rates, times the ranks, is how
-- much faster the mesh is than one rank. The ratio holds on a machine with other work, too, if that is steady.

local mx = require "mx"
local util = require "mx.util"

local config = mx.config.load(arg, { options = { rounds = 7 } })
if mx.ranks() == 1 or mx.is_simulated() then
    util.refuse("there must be several ranks, and none simulated: mpirun -n 2 build/mxlua scripts/scaling.lua ...")
end
local mesh = mx.train.mesh(config)
local alone, together = mx.models.new(config), mx.models.new(config, mesh)
local data = mx.data.open(config, mesh)
local optimizer = {
    alone = mx.optim.new(config, alone.params), together = mx.optim.new(config, together.params, together.parallel),
}
local tokens = config.per_device_batch_size * config.max_target_length * config.gradient_accumulation_steps

-- Each rank computes its share of the batch; the batch of a mesh may have more sequences for it.
local function step_alone()
    local sequences = math.max(1, config.per_device_batch_size // 1 | 0)
    for _ = 1, config.gradient_accumulation_steps do
        local step <close> = mx.step()
        local batch = data:next()
        for name, t in pairs(batch) do
            batch[name] = type(t) == "userdata" and mx.narrow(t, { dim = 1, start = 1, length = sequences }) or nil
        end
        mx.backward(alone:loss(batch), 1 / config.gradient_accumulation_steps)
    end
    optimizer.alone:step()
end

local function step_together()
    mx.train.gradients(together, data, config.gradient_accumulation_steps)
    optimizer.together:step()
end

-- Tokens a second of all ranks, each by its own clock.
local function rate(fn)
    mx.barrier()
    local start = mx.now()
    fn()
    return mx.scope(function()
        return mx.all_reduce_(mx.tensor(tokens / (mx.now() - start))):item()
    end)
end

mx.metrics.say("%s; %s tokens a step", mesh:summary(), util.thousands(tokens * mx.ranks() // 1))
mx.metrics.say("%5s %16s %16s %8s", "round", "alone tokens/s", "mesh tokens/s", "ratio")
local ratios = {}
for round = 0, config.rounds do
    local one, all = rate(step_alone), rate(step_together)
    ratios[#ratios + 1] = round > 0 and all / one or nil
    mx.metrics.say("%5s %16.4g %16.4g %8.3f", round > 0 and round or "warm", one, all, all / one)
end
mx.metrics.say("median ratio %.3f: the mesh is %.2f times as fast as one rank", util.quantile(ratios, 0.5),
    util.quantile(ratios, 0.5) * mx.ranks())
