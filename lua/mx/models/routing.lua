--- What the routers of a model's experts chose in a step: the load of each expert, the losses that keep loads even, and
--- the update of the routers' biases, which does it without a loss (DeepSeek-V3, arXiv:2412.19437).
--
-- The load of an expert is the number of slots that chose it, before a capacity drops any. Loads of all passes of a
-- step are added up outside of the tape, so rematerialisation does not count them twice.

local mx = require "mx"
local nn = require "mx.nn"
local shapes = require "mx.models.shape"

local routing = {}

---@class mx.Routing
---@field parallel mx.Parallel|mx.Alone of the model
---@field layers {part: table, loads: any, bias: any}[] those with experts; loads (n) f32
---@field of table<integer, table> number of a layer -> its entry of `layers`
---@field sums any (3) f32: slots that were dropped, load-balance loss, router z-loss
---@field passes integer training passes since `start`
---@field known? table|false what `totals` has found for the step
local Routing = {}
Routing.__index = Routing

--- Makes the state of a model's routers, with their biases among model.buffers; nil if no layer has experts.
---@param model mx.Decoder
---@return mx.Routing?
function routing.new(model)
    local self = setmetatable({ parallel = model.parallel, layers = {}, of = {}, passes = 0 }, Routing)
    for i = 1, #model.layers do
        local part = shapes.block(model.shape, i).mlp
        if part.kind == "moe" then
            local name = shapes.part(part).bias_name(i)
            self.of[i] = {
                part = part, loads = mx.zeros({ part.experts }):keep(),
                bias = part.router.bias and nn.buffer(model.buffers, name, { part.experts }) or nil,
            }
            self.layers[#self.layers + 1] = self.of[i]
        end
    end
    self.sums = mx.zeros({ 3 }):keep()
    return #self.layers > 0 and self or nil
end

--- A step begins: forgets the loads of the one before.
function Routing:start()
    for _, layer in ipairs(self.layers) do
        mx.fill(layer.loads, { value = 0 })
    end
    mx.fill(self.sums, { value = 0 })
    self.passes, self.known = 0, nil
end

-- Adds a scalar to one of the sums.
local function add(self, place, value)
    mx.add_(mx.narrow(self.sums, { dim = 1, start = place, length = 1 }), value:detach():view(1))
end

-- The share of each expert in a token's scores: (B, S, n), with a sum of 1.
local function probabilities(part, logits)
    if part.router.score ~= "sigmoid" then
        return mx.softmax(logits)
    end
    local scores = mx.sigmoid(logits)
    return scores / scores:sum { dim = 3, keepdim = true }
end

-- n^2 times the mean over sequences and experts of: the share of a sequence's slots that chose the expert, times its
-- mean probability there. It is 1 if all loads are even.
local function load_balance(self, part, logits, counts)
    local n, S, parallel = part.experts, logits:size(2), self.parallel
    local means = parallel:mean_of_sequences(mx.mean(probabilities(part, logits), { dim = 2 }))
    return (parallel:mean_of_sequences(counts) * means):mean() * (n * n / (S * part.top))
end

--- Counts the choices of a training pass in layer i, and returns what the layer adds to the loss: its load-balance loss
--- and router z-loss, times their weights, divided by the number of layers with experts.
---@param i integer
---@param part table
---@param logits any (B, S, n) f32
---@param experts any (B, S, k) i32
---@param capacity integer most slots of an expert in a sequence; 0: no limit
---@return any? f32 of one element; nil if no weight is above 0
function Routing:observe(i, part, logits, experts, capacity)
    local counts = mx.moe_count(experts, { experts = part.experts, sequences = logits:size(1) }) -- (B, n)
    self.of[i].loads:add_(counts:sum { dim = 1 })
    if capacity > 0 then
        add(self, 1, mx.maximum(counts - capacity, 0):sum())
    end
    local extra
    local function add_loss(place, value, weight)
        value = value * (weight / #self.layers)
        add(self, place, value)
        extra = extra and extra + value or value
    end
    if part.load_balance > 0 then
        add_loss(2, load_balance(self, part, logits, counts), part.load_balance)
    end
    if part.router_z > 0 then
        add_loss(3, mx.logsumexp(logits, { dim = 3 }):square():mean(), part.router_z)
    end
    return extra and self.parallel:counted_once(extra)
end

-- The sums of all ranks and the loads of each layer, as numbers; false on a simulated pod. Collective, once a step.
local function totals(self)
    if self.known == nil then
        local parts = { self.sums }
        for _, layer in ipairs(self.layers) do
            parts[#parts + 1] = layer.loads
        end
        local all = mx.scope(function()
            return self.parallel:sum_over_tokens(mx.concat(parts, { dim = 1 }), true)
        end)
        local values, first = mx.is_simulated() or all:totable(), self.sums:numel() + 1
        self.known = not mx.is_simulated() and { sums = table.move(values, 1, first - 1, 1, {}), loads = {} }
        for place, layer in ipairs(self.known and self.layers or {}) do
            self.known.loads[place] = table.move(values, first, first + layer.part.experts - 1, 1, {})
            first = first + layer.part.experts
        end
        all:release()
    end
    return self.known
end

-- The sum of a list of numbers, and the largest.
local function sum_and_largest(list)
    local sum, largest = 0, 0
    for _, value in ipairs(list) do
        sum, largest = sum + value, math.max(largest, value)
    end
    return sum, largest
end

--- What the step's routing was like, over all ranks; nil on a simulated pod. Collective.
---@return {largest_expert_load: number, dropped_share: number?, load_balance_loss: number?, router_z_loss: number?}?
---        largest_expert_load: that of an expert over the mean load, averaged over layers; dropped_share: of all slots,
---        if there is a capacity; the losses, as they are added to the loss, if they have a weight
function Routing:figures()
    local known = totals(self)
    if not known or self.passes == 0 then
        return nil
    end
    local ratios, slots, has = 0, 0, {}
    for place, layer in ipairs(self.layers) do
        local sum, largest = sum_and_largest(known.loads[place])
        ratios, slots = ratios + largest * layer.part.experts / sum, slots + sum
        for _, key in ipairs { "capacity", "load_balance", "router_z" } do
            has[key] = has[key] or layer.part[key] > 0
        end
    end
    local means = self.passes * self.parallel.parts
    return {
        largest_expert_load = ratios / #self.layers,
        dropped_share = has.capacity and known.sums[1] / slots or nil,
        load_balance_loss = has.load_balance and known.sums[2] / means or nil,
        router_z_loss = has.router_z and known.sums[3] / means or nil,
    }
end

--- After a step that has changed the parameters: adds bias_rate to the biases of experts whose load is below the mean,
--- and subtracts it from those above. Collective.
function Routing:update_biases()
    for place, layer in ipairs(self.layers) do
        local rate = layer.bias and layer.part.router.bias_rate or 0
        local known = rate > 0 and totals(self)
        if known then
            local loads, changes = known.loads[place], {}
            local mean = sum_and_largest(loads) / #loads
            for e, load in ipairs(loads) do
                changes[e] = load < mean and rate or load > mean and -rate or 0
            end
            mx.scope(function()
                layer.bias:add_(mx.tensor(changes))
            end)
        end
    end
end

return routing
