--- What a loop keeps beside its optimizer: averaged weights, and when to stop.

local mx = require "mx"
local util = require "mx.util"

local averages = {}

---@class mx.Ema exponential moving averages of parameters
---@field params table<string, any> the averages, f32, by the parameters' names
---@field decay number
---@field steps integer number of updates so far
local Ema = {}
util.strict(Ema, "an average of weights", { "params", "decay", "steps", "source" }, {})

--- Averages of parameters: after each step, average = decay * average + (1 - decay) * parameter. They begin as the
--- parameters are. `warmup`: in the first steps the decay is at most (1 + steps) / (10 + steps), so that the beginning
--- is forgotten.
---@param params table<string, any>
---@param options? {decay: number, warmup: boolean} default: 0.999, false
---@return mx.Ema
function averages.ema(params, options)
    local o = util.options(options, { decay = 0.999, warmup = false }, "mx.optim.ema")
    if not (o.decay >= 0 and o.decay < 1) then
        error(("mx.optim.ema: decay = %s; expected at least 0 and below 1"):format(o.decay), 2)
    end
    local self = setmetatable({ params = {}, decay = o.decay, steps = 0, source = { params, o.warmup } }, Ema)
    for name, t in util.sorted_pairs(params) do
        self.params[name] = t:detach():to("f32"):clone():keep()
    end
    return self
end

--- Takes the parameters' values of this step into the averages. Not collective: on a mesh each rank averages its parts.
function Ema:update()
    local params, warmup = table.unpack(self.source)
    self.steps = self.steps + 1
    local decay = warmup and math.min(self.decay, (1 + self.steps) / (10 + self.steps)) or self.decay
    for name, average in util.sorted_pairs(self.params) do
        mx.no_grad(mx.scope, function()
            mx.copy(average, average * decay + params[name]:detach():to("f32") * (1 - decay))
        end)
    end
end

-- Gives parameters the values of tensors with the same names.
local function assign(params, values)
    for name, t in util.sorted_pairs(values) do
        mx.no_grad(mx.copy, params[name]:detach(), t:to(params[name]:dtype()))
    end
end

--- Calls fn while the parameters have the averages' values, for an evaluation, and returns what it returns. Afterwards
--- the parameters are as before, also after an error.
---@param fn fun(): any
---@return any
function Ema:apply(fn)
    local params, before = self.source[1], {}
    for name in util.sorted_pairs(self.params) do
        before[name] = params[name]:detach():clone():keep()
    end
    assign(params, self.params)
    local results = table.pack(xpcall(fn, debug.traceback))
    assign(params, before)
    for _, t in util.sorted_pairs(before) do
        t:release()
    end
    if not results[1] then
        error(results[2], 0)
    end
    return table.unpack(results, 2, results.n)
end

---@class mx.EarlyStopping
---@field best number the lowest loss so far
---@field since integer number of checks since then
local EarlyStopping = {}
util.strict(EarlyStopping, "an early stopping", { "best", "since", "patience", "least" }, {})

--- Says when a loss no longer falls: `if stopping:check(loss) then break end`.
---@param options? {patience: integer, least: number} patience: checks without a fall, default 5; least: what counts as
---       a fall, default 0
---@return mx.EarlyStopping
function averages.early_stopping(options)
    local o = util.options(options, { patience = 5, least = 0.0 }, "mx.optim.early_stopping")
    return setmetatable({ best = math.huge, since = 0, patience = o.patience, least = o.least }, EarlyStopping)
end

--- Takes a loss; true if it is time to stop. A loss that is not a number counts as none that falls.
---@param loss number
---@return boolean
function EarlyStopping:check(loss)
    if loss < self.best - self.least then
        self.best, self.since = loss, 0
    else
        self.since = self.since + 1
    end
    return self.since >= self.patience
end

return averages
