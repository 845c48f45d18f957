--- NaN and loss-spike detection: decides whether a step may change the parameters, and finds the first tensor that is
--- not finite.

local mx = require "mx"
local util = require "mx.util"

local guard = {}

local ALL_BAD = 10 -- this many skipped steps in a row end a run
local ROUNDING = 1e-6 -- of the mean: equal values in f32 are no spikes

---@class mx.Guard
---@field losses number[] of the last steps, skipped ones included: what stays large becomes normal
---@field norms number[] of gradients after clipping
---@field skipped integer number of steps skipped in a row
local Guard = {}
Guard.__index = Guard

--- Not collective. All ranks must give it the same losses, so it decides the same on all.
---@param config table nonfinite_step, skip_step_on_spikes, skip_step_interval, skip_step_scaling_factor,
---       gradient_clipping_threshold
---@return mx.Guard
function guard.new(config)
    return setmetatable({ config = config, losses = {}, norms = {}, skipped = 0 }, Guard)
end

-- The limit of a value, from the values of the last steps. As in MaxText, it needs half an interval of them.
local function limit(values, config)
    if not config.skip_step_on_spikes or #values + 1 < math.max(2, config.skip_step_interval // 2) then
        return math.huge
    end
    local sum, squares = 0, 0
    for _, value in ipairs(values) do
        sum = sum + value
    end
    local mean = sum / #values
    for _, value in ipairs(values) do
        squares = squares + (value - mean) ^ 2
    end
    local deviation = math.sqrt(squares / math.max(1, #values - 1))
    return mean + config.skip_step_scaling_factor * deviation + ROUNDING * math.abs(mean)
end

local function finite(x)
    return x - x == 0
end

--- A number as text; NaN has no sign.
---@param x number
---@return string
function guard.text(x)
    return x ~= x and "NaN" or ("%g"):format(x)
end

--- The reason why a step must not change the parameters, judged by its loss; nil if it may.
---@param loss number
---@return string? reason
function Guard:refuses(loss)
    if mx.is_simulated() then
        return nil -- simulated tensors have no values
    elseif not finite(loss) then
        return ("the loss is %s"):format(guard.text(loss))
    end
    local most = limit(self.losses, self.config)
    return loss > most and ("a loss of %.4f is a spike: the last %d steps allow %.4f"):format(loss, #self.losses, most)
        or nil
end

--- The largest gradient norm, before clipping, with which a step may change the parameters. The limit holds for clipped
--- norms, so if it is above the threshold of clipping, no norm is too large.
---@return number
function Guard:largest_norm()
    local most, clip = limit(self.norms, self.config), self.config.gradient_clipping_threshold
    return clip > 0 and most >= clip and math.huge or most
end

local function add(values, value, most)
    values[#values + 1] = value
    if #values > most then
        table.remove(values, 1)
    end
end

--- Records the values of a step, whether it was skipped or not. Values that are not finite are left out.
---@param loss number?
---@param norm number? of the gradients before clipping
function Guard:record(loss, norm)
    if not (self.config.skip_step_on_spikes and loss and norm and finite(loss) and finite(norm)) then
        return
    end
    local clip = self.config.gradient_clipping_threshold
    add(self.losses, loss, self.config.skip_step_interval)
    add(self.norms, clip > 0 and math.min(norm, clip) or norm, self.config.skip_step_interval)
end

--- Notes that a step has changed the parameters.
function Guard:took()
    self.skipped = 0
end

--- Notes a skipped step; raises an error after too many in a row.
---@param step integer
function Guard:skip(step)
    self.skipped = self.skipped + 1
    if self.skipped >= ALL_BAD then
        util.refuse("step %d: the last %d steps were all skipped: the run has gone wrong. Go back to an earlier "
            .. "checkpoint (load_full_state_path) with a lower learning_rate, or other data", step, self.skipped)
    end
end

--- The state for a checkpoint: a plain table.
---@return table
function Guard:state()
    return { losses = mx.io.array(self.losses), norms = mx.io.array(self.norms), skipped = self.skipped }
end

---@param state table of Guard:state
function Guard:restore(state)
    self.losses, self.norms, self.skipped = {}, {}, state.skipped
    table.move(state.losses, 1, #state.losses, 1, self.losses)
    table.move(state.norms, 1, #state.norms, 1, self.norms)
end

-- ---- the first tensor that is not finite ----

local function bad_parameter(params)
    for name, t in util.sorted_pairs(params) do
        if not finite(mx.scope(function()
            return (t:detach() * 0):sum():item() -- not the sum of squares, which may overflow
        end)) then
            return name
        end
    end
end

local function describe(found)
    local what = {}
    if found.nans > 0 then
        what[1] = ("%d NaN"):format(found.nans)
    end
    if found.infinities > 0 then
        what[#what + 1] = ("%d infinit%s"):format(found.infinities, found.infinities == 1 and "y" or "ies")
    end
    return ("%s%s: the result of %s, %s, has %s of %d elements, the first at %d"):format(
        found.backward and "gradient of " or "", found.place or "somewhere", found.op, found.tensor,
        table.concat(what, " and "), found.elements, found.first)
end

--- Runs the passes of a step again, checks every result, and describes the first that is not finite, on the lowest rank
--- that has one. Clears the gradients. Collective.
---@param params table<string, any>
---@param again fun() runs the passes of the step once more
---@return string
function guard.explain(params, again)
    local text
    local name = bad_parameter(params)
    local found = mx.find_bad(again)
    for _, t in util.sorted_pairs(params) do
        t:zero_grad()
    end
    if name then
        text = ("parameter %s is not finite"):format(name)
    elseif found then
        text = describe(found)
    end
    for rank = 0, mx.ranks() - 1 do
        local one = mx.ranks() > 1 and mx.share_text(text, rank) or text
        if one then
            return (mx.ranks() > 1 and ("rank %d, "):format(rank) or "") .. one
        end
    end
    return "the same batch gave nothing but finite numbers when it was run again: look for a fault of the machine"
end

return guard
