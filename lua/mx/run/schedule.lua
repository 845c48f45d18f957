--- Learning-rate schedules: functions of the step, which counts from 1.
--
-- All follow MaxText's conventions. The rate of the first step of a warm-up is 0, and the step after the warm-up has
-- the peak. A decay begins at the peak and has its final rate at the last step. After the last step the rate is 0.

local util = require "mx.util"

local schedule = {}

schedule.TYPES = { "cosine", "wsd", "constant", "inverse_square_root" }
schedule.STYLES = { "linear", "cosine" } -- of the decay of wsd

local REQUIRED = { "type", "peak", "steps" }
local STANDARD = {
    type = "cosine", peak = 1e-3, steps = 1, warmup_fraction = 0, final_fraction = 0, decay_fraction = 0.1,
    decay_style = "linear",
}

-- Shapes of a decay: from 1 at progress 0 to 0 at progress 1.
local DECAYS = {}

function DECAYS.linear(progress)
    return 1 - progress
end

function DECAYS.cosine(progress)
    return (1 + math.cos(math.pi * progress)) / 2
end

-- The rate at `index` (from 0) of a decay of `length` steps. A decay of one step is at its end.
local function decayed(o, style, index, length)
    local share = DECAYS[style](length > 1 and index / (length - 1) or 1)
    return o.peak * (share + o.final_fraction * (1 - share))
end

-- The rate at `index` (from 0) after a warm-up of `warmup` steps.
local AFTER = {}

function AFTER.cosine(o, warmup, index)
    return decayed(o, "cosine", index, o.steps - warmup)
end

function AFTER.wsd(o, warmup, index)
    local length = util.share(o.steps, o.decay_fraction)
    local start = o.steps - warmup - length
    return index < start and o.peak or decayed(o, o.decay_style, index - start, length)
end

function AFTER.constant(o)
    return o.peak
end

function AFTER.inverse_square_root(o, warmup, index)
    warmup = math.max(warmup, 1)
    return o.peak * math.sqrt(warmup / (warmup + index))
end

--- A schedule of `steps` steps. The first warmup_fraction of them (rounded down to whole steps) are a warm-up, in which
--- the rate rises linearly from 0. After it:
--- cosine: a cosine down to final_fraction of the peak;
--- wsd: the peak, and in the last decay_fraction of the steps a decay to final_fraction of the peak;
--- constant: the peak;
--- inverse_square_root: the peak times sqrt(warm-up steps / steps so far).
---@param options {type: string, peak: number, steps: integer, warmup_fraction: number, final_fraction: number,
---       decay_fraction: number, decay_style: string}
---@return fun(step: integer): number
function schedule.new(options)
    local name, optional = "mx.optim.schedule", util.without(util.sorted_keys(STANDARD), REQUIRED)
    local o = util.options(util.arguments(options, REQUIRED, optional, name), STANDARD, name)
    if not AFTER[o.type] or not DECAYS[o.decay_style] then
        error(("%s: type = %s and decay_style = %s; expected one of %s, and one of %s. learning_rate may be any "
            .. "function of the step"):format(name, tostring(o.type), tostring(o.decay_style),
            table.concat(schedule.TYPES, ", "), table.concat(schedule.STYLES, ", ")), 2)
    end
    local warmup = util.share(o.steps, o.warmup_fraction)
    return function(step)
        local index = step - 1
        if index >= o.steps then
            return 0.0
        elseif index < warmup then
            return o.peak * index / warmup
        end
        return AFTER[o.type](o, warmup, index - warmup)
    end
end

--- The schedule of a config.
---@param config table
---@return fun(step: integer): number
function schedule.of(config)
    return schedule.new {
        type = config.lr_schedule_type,
        peak = config.learning_rate,
        steps = config.learning_rate_schedule_steps > 0 and config.learning_rate_schedule_steps or config.steps,
        warmup_fraction = config.warmup_steps_fraction,
        final_fraction = config.learning_rate_final_fraction,
        decay_fraction = config.wsd_decay_steps_fraction,
        decay_style = config.wsd_decay_style,
    }
end

return schedule
