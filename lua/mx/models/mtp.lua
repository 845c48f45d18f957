--- Multi-token prediction (DeepSeek-V3, arXiv:2412.19437): in training, modules after the last layer predict tokens
--- further on, and their loss is added to that of the model. Generation and evaluation use none of them.
--
-- Module k predicts target k + 1 of each token from what the module before it (or the last layer) made of that token,
-- and from the embedding of the k-th token after it. It has two norms and a product (mtp001.NAME), then a layer, with
-- the number layers + k and the block of the last layer, and then a norm. Tables of tokens are those of the model.
--
-- `shape.mtp`: { layers, block, weight }, weight: of its loss.

local mx = require "mx"
local util = require "mx.util"

local mtp = {}

---@class mx.Mtp the modules of a model
---@field model mx.Decoder
---@field sum any (1) f32: the losses of this rank's passes
---@field passes integer training passes since `start`
local Mtp = {}
Mtp.__index = Mtp

--- The modules of a config; nil: none.
---@param c table
---@param block table of the last layer
---@return {layers: integer, block: table, weight: number}?
function mtp.of(c, block)
    return c.mtp_num_layers > 0 and { layers = c.mtp_num_layers, block = block, weight = c.mtp_loss_scaling_factor }
        or nil
end

--- Makes the state of a model's modules; nil if it has none.
---@param model mx.Decoder
---@return mx.Mtp?
function mtp.new(model)
    return model.shape.mtp and setmetatable({ model = model, sum = mx.zeros({ 1 }):keep(), passes = 0 }, Mtp) or nil
end

--- A step begins: forgets the losses of the one before.
function Mtp:start()
    mx.fill(self.sum, { value = 0 })
    self.passes = 0
end

--- The modules' loss in the step, times its weight, as it is added to the loss; nil on a simulated pod. Collective.
---@return number?
function Mtp:figure()
    if mx.is_simulated() or self.passes == 0 then
        return nil
    end
    local parallel = self.model.parallel
    return mx.scope(function()
        return parallel:sum_over_tokens(self.sum:clone()):item() / (self.passes * parallel.parts)
    end)
end

--- Refuses meshes on which a rank does not have what the modules need. Not collective.
---@param parallel mx.Parallel
---@param shape table
function mtp.check(parallel, shape)
    if shape.mtp and parallel.stages then
        util.refuse("mtp_num_layers = %d: multi-token prediction does not go with a pipeline of %d stages yet: set 0",
            shape.mtp.layers, parallel.stages.n)
    elseif shape.mtp and #parallel.context > 0 then
        util.refuse("mtp_num_layers = %d: multi-token prediction needs tokens that other ranks on the axis %s have: "
            .. "set 0, or use other axes", shape.mtp.layers, table.concat(parallel.context, ", "))
    end
end

local PREFIX = "mtp%03d."

--- Adds what module k has besides a layer.
---@param list mx.ParameterList
---@param k integer
function mtp.parameters(list, k)
    local shape = list.shape
    list.prefix = PREFIX:format(k)
    list:norm("embedding_norm", shape.emb, shape.norm, "sequence")
    list:norm("hidden_norm", shape.emb, shape.norm, "sequence")
    list:to_stream("projection", { 2 * shape.emb, "mlp" }, {})
    list:norm("final_norm", shape.emb, shape.norm, "sequence")
    list.prefix = ""
end

-- A tensor (B, S) `by` tokens further on, with zeros at the end.
local function later(t, by)
    local B, S = t:size(1), t:size(2)
    return mx.concat({ mx.narrow(t, { dim = 2, start = by + 1, length = S - by }), mx.zeros({ B, by }, t:dtype()) },
        { dim = 2 })
end

-- Tokens, targets and mask of module k, (B, S) each: 0 where the k-th token after a token is of another document, or
-- after the end.
local function batch_of(batch, k)
    local same = later(mx.ones(batch.tokens:size(), "u8"), k)
    if batch.segments then
        same = same * mx.eq(batch.segments, later(batch.segments, k))
    end
    local ids = same:to("i32")
    return {
        tokens = later(batch.tokens, k) * ids, targets = later(batch.targets, k) * ids,
        mask = batch.mask and later(batch.mask, k) * same or same,
    }
end

-- What module k makes of x (B, S, E) of the module before it: the same, and what its layer adds to the loss.
local function module(model, k, x, tokens, run)
    local shape, parallel, i = model.shape, model.parallel, model.shape.layers + k
    local e, prefix = model:embed(tokens, run), PREFIX:format(k)
    mx.place(("module %d of multi-token prediction"):format(k))
    local first, rows = parallel:part_of("mlp", 2 * shape.emb)
    local both = mx.concat({
        parallel:enter(model:normalize(prefix .. "embedding_norm", e), "mlp"),
        parallel:enter(model:normalize(prefix .. "hidden_norm", x), "mlp"),
    }, { dim = 3 }) -- (B, S, 2 E)
    both = mx.narrow(both, { dim = 3, start = first, length = rows })
    x = parallel:leave(mx.matmul(both, model:weight(prefix .. "projection.weight")), "mlp")
    return model:layer(i, mx.name(x, "decoder_layer_input"), run)
end

--- The loss of the modules times its weight, and what their layers add: (f32, one element). It is the mean over the
--- targets of all modules and ranks, for a mean over ranks. Collective.
---@param x any (B, S, E) of the last layer
---@param batch table of Decoder:loss
---@param run table of Decoder:hidden
---@return any
function Mtp:loss(x, batch, run)
    local model = self.model
    local shape, parallel, sum, extra = model.shape, model.parallel, nil, nil
    local count = mx.zeros { 1 }
    for k = 1, shape.mtp.layers do
        local part = batch_of(batch, k)
        model:prefetch(shape.layers + k - 1, shape.layers + k, run)
        local y, added = mx.remat(shape.remat, function(input)
            return module(model, k, input, part.tokens, run)
        end, x)
        x, extra = y, extra and added and extra + added or extra or added
        local mean = model:cross_entropy(model:normalize(PREFIX:format(k) .. "final_norm", x), part, true)
        local targets = part.mask:to("f32"):sum():view(1)
        count = count + targets
        sum = sum and sum + mean * targets or mean * targets
    end
    if parallel.parts > 1 and (batch.mask or batch.segments) then -- otherwise all ranks have the same number
        count = parallel:sum_over_tokens(count) / parallel.parts
    end
    local loss = sum / mx.maximum(count, 1e-8) * shape.mtp.weight
    self.passes = self.passes + 1
    self.sum:add_(loss:detach():view(1))
    return extra and loss + extra or loss
end

return mtp
