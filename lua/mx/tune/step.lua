--- How many threads a training step is fastest with: small steps lose more by waiting for threads than they gain.

local mx = require "mx"
local cache = require "mx.tune.cache"
local util = require "mx.util"

local step = {}

local TOLERANCE = 1e-3 -- of the loss; another number of threads may add in another order

-- Patterns of the keys that say what a step computes.
local WORK = {
    "^base_num_", "^base_[%w_]+_dim$", "^head_dim$", "^vocab_size$", "^global_parameter_scale$", "^decoder_block$",
    "^mlp_activations$", "^num_experts", "^per_device_batch_size$", "^gradient_accumulation_steps$",
    "^max_target_length$", "dtype$", "^remat_policy$", "^quantization$", "^attention_type$", "^ici_", "^dcn_",
}

-- A number for the work of a step; configs with the same work have the same.
local function digest(config)
    local lines = {}
    for line in mx.config.dump(config):gmatch("[^\n]+") do
        local key = line:match("^([%w_]+):")
        for _, pattern in ipairs(key and WORK or {}) do
            if key:find(pattern) then
                lines[#lines + 1] = line
                break
            end
        end
    end
    return ("%016x"):format(util.seed(table.concat(lines, "\n"), 0))
end

-- What is asked of mx.tune: 1, 2, 4 ... threads, at most those that this process was given.
local function question(config)
    local most, list, n = mx.threads(), {}, 1
    while n < most do
        list[#list + 1] = n
        n = 2 * n
    end
    list[#list + 1] = most
    return {
        name = "threads of a step", shape = { model = config.model_name, work = digest(config) },
        space = { threads = list }, standard = { threads = most },
    }
end

local function plural(n)
    return ("%d thread%s"):format(n, n == 1 and "" or "s")
end

--- With tuning=cache: sets the number of threads that scripts/tune.lua has found for this config, and says so.
--- Collective.
---@param config table
function step.use(config)
    if config.tuning ~= "cache" then
        return
    elseif mx.is_simulated() then
        mx.metrics.say("tuning=cache: a simulated chip has no threads to choose")
        return
    end
    local o = question(config)
    o.tuning, o.run = "cache", function() end
    local best, report = mx.tune(o)
    if report.from ~= "cache" then
        mx.metrics.say("tuning=cache: nothing is known of this config with %s of this machine; scripts/tune.lua with "
            .. "the same words finds out", plural(o.standard.threads))
        return
    end
    mx.threads(best.threads)
    mx.metrics.say("tuning=cache: %s of %d; %.0f %% less time a step when it was tuned", plural(best.threads),
        o.standard.threads, 100 * report.gain)
end

-- Prints a point, and what a step took with it.
local function print_point(point)
    mx.metrics.say("%-11s %-9s %s", plural(point.choice.threads), point.state, point.reason
        or point.seconds and ("%9.2f ms a step, %.3f of the standard's"):format(1e3 * point.seconds, point.ratio) or "")
end

--- Tunes a config and prints what was found: scripts/tune.lua. Collective.
---@param words string[] a config file, key=value, budget_s
---@return mx.Tuned
function step.run(words)
    -- One batch again and again: all steps then have the same loss.
    local all = table.move(words, 1, #words, 1, {})
    all[#all + 1] = "reuse_example_batch=1"
    local config = mx.config.load(all, { options = { budget_s = 60.0 } })
    local o = question(config)
    if mx.is_simulated() then
        mx.config.refuse(config, "hardware", "tune.lua times steps of this machine; leave the key out")
    elseif #o.space.threads == 1 then
        util.refuse("tune.lua chooses the number of threads, and this process has only one")
    end
    local mesh = mx.train.mesh(config)
    local data = mx.data.open(config, mesh)
    local model = mx.models.new(config, mesh)
    local function gradients()
        local scope <close> = mx.step()
        for _, t in util.sorted_pairs(model.params) do
            t:zero_grad()
        end
        assert(scope)
        return mx.train.gradients(model, data, config.gradient_accumulation_steps)
    end
    local expected = gradients()
    o.again, o.budget_s = true, config.budget_s
    function o.run(choice)
        mx.threads(choice.threads)
        return gradients
    end
    if config.dropout_rate == 0 then
        function o.check()
            return math.abs(gradients() - expected) <= TOLERANCE * math.abs(expected)
        end
    end
    local best, report = mx.tune(o)
    mx.threads(o.standard.threads)
    for _, point in ipairs(report.points) do
        print_point(point)
    end
    if report.reason then
        mx.metrics.say("the standard stays: %s", report.reason)
    else
        mx.metrics.say("%s instead of %d: %.0f %% less time a step, faster in %d of %d turns", plural(best.threads),
            o.standard.threads, 100 * report.gain, report.wins, report.turns)
    end
    mx.metrics.say("stored in %s; runs with tuning=cache use it", cache.path())
    return report
end

return step
