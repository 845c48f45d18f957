--- NaN and loss-spike detection: decides whether a step may change the parameters, and finds the first tensor that is
--- not finite.

local mx = require "mx"
local util = require "mx.util"

local guard = {}

local ALL_BAD = 10 -- this many skipped steps in a row end a run
local FEW = 16 -- steps before spike detection starts: a mean of fewer means little

---@class mx.Guard
---@field losses number[] of the last steps that were not skipped
---@field norms number[]
---@field skipped integer number of steps skipped in a row
local Guard = {}
Guard.__index = Guard

--- Not collective. All ranks must give it the same losses, so it decides the same on all.
---@param config table nonfinite_step, skip_step_on_spikes, skip_step_interval, skip_step_scaling_factor
---@return mx.Guard
function guard.new(config)
    return setmetatable({ config = config, losses = {}, norms = {}, skipped = 0 }, Guard)
end

-- The limit of a value, from the values of the last steps.
local function limit(values, config)
    if not config.skip_step_on_spikes or #values < math.min(FEW, config.skip_step_interval) then
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
    return mean + config.skip_step_scaling_factor * math.sqrt(squares / #values)
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

--- The largest gradient norm with which a step may change the parameters.
---@return number
function Guard:largest_norm()
    return limit(self.norms, self.config)
end

local function add(values, value, most)
    values[#values + 1] = value
    if #values > most then
        table.remove(values, 1)
    end
end

--- Records a step that changed the parameters.
---@param loss number
---@param norm number
function Guard:took(loss, norm)
    self.skipped = 0
    if self.config.skip_step_on_spikes then
        add(self.losses, loss, self.config.skip_step_interval)
        add(self.norms, norm, self.config.skip_step_interval)
    end
end

--- Records a skipped step; raises an error after too many in a row.
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
