--- Multi-token prediction (DeepSeek-V3, arXiv:2412.19437): in training, modules after the last layer predict tokens
--- further on, and their loss is added to that of the model. Generation uses none of them, and evaluation only counts
--- how often one predicts as the model does.
--
-- Module k predicts target k + 1 of each token from what the module before it (or the last layer) made of that token,
-- and from the embedding of the k-th token after it. It has two norms and a product (mtp001.NAME), then a layer, with
-- the number layers + k and the block of the last layer, and then a norm. Tables of tokens are those of the model.
--
-- `shape.mtp`: { layers, block, weight, quantized, target }, weight: of its loss; quantized: its layers are, as the
-- others; target: the module that evaluation looks at, 0: none.

local mx = require "mx"
local util = require "mx.util"

local mtp = {}

---@class mx.Mtp the modules of a model
---@field model mx.Decoder
---@field sum any (1) f32: the losses of this rank's passes
---@field passes integer training passes since `start`
---@field accepted number predictions of module `target` that are those of the model, of this rank since `acceptance`
---@field offered number all of its predictions
local Mtp = {}
Mtp.__index = Mtp

--- The modules of a config; nil: none.
---@param c table
---@param block table of the last layer
---@return {layers: integer, block: table, weight: number, quantized: boolean, target: integer}?
function mtp.of(c, block)
    return c.mtp_num_layers > 0 and {
        layers = c.mtp_num_layers, block = block, weight = c.mtp_loss_scaling_factor, quantized = c.quantize_mtp,
        target = c.mtp_eval_target_module,
    } or nil
end

--- Makes the state of a model's modules; nil if it has none.
---@param model mx.Decoder
---@return mx.Mtp?
function mtp.new(model)
    local shape, parallel = model.shape.mtp, model.parallel
    if not shape then
        return nil
    end
    local _, logits = parallel:part_of("vocab", model.shape.vocab)
    if shape.target > 0 and (parallel.stages or #parallel.context > 0 or logits < model.shape.vocab) then
        util.refuse("mtp_eval_target_module = %d: needs whole sequences and logits on each rank: set 0, or use only "
            .. "the axes data, fsdp and expert", shape.target)
    end
    return setmetatable({ model = model, sum = mx.zeros({ 1 }):keep(), passes = 0, accepted = 0, offered = 0 }, Mtp)
end

--- The modules' loss in the step, times its weight, as it is added to the loss; nil on a simulated pod. Collective.
---@return number?
function Mtp:figure()
    local parallel = self.model.parallel
    if mx.is_simulated() or self.passes == 0 and not parallel.stages then
        return nil
    end
    return mx.scope(function() -- not all stages have the modules
        local passes = mx.full({ 1 }, self.passes)
        local both = parallel:sum_over_tokens(mx.concat({ self.sum, passes }, { dim = 1 }), true):totable()
        return both[1] / math.max(both[2], 1)
    end)
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
-- after the end. A rank with a part of the sequences takes them from the whole ones: they may be another rank's.
local function batch_of(parallel, batch, k)
    local tokens, targets, mask, segments = batch.tokens, batch.targets, batch.mask, batch.segments
    if #parallel.context > 0 then
        if not batch.whole_tokens then
            util.refuse("multi-token prediction on the axis %s: expected a batch of model.parallel:batch_part, which "
                .. "has the whole sequences, too", table.concat(parallel.context, ", "))
        end
        tokens, targets, mask = batch.whole_tokens, batch.whole_targets, batch.whole_mask
        segments = batch.kv_segments
    end
    local same = later(mx.ones(tokens:size(), "u8"), k)
    if segments then
        same = same * mx.eq(segments, later(segments, k))
    end
    local ids = same:to("i32")
    return {
        tokens = parallel:context_part(later(tokens, k) * ids),
        targets = parallel:context_part(later(targets, k) * ids),
        mask = parallel:context_part(mask and later(mask, k) * same or same),
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

-- The mean number of all modules' targets in one of the batches, for a mean over ranks: (1) f32. Collective.
local function mean_targets(self, batches)
    local parallel, count, differ = self.model.parallel, mx.zeros { 1 }, false
    for _, batch in ipairs(batches) do
        for k = 1, self.model.shape.mtp.layers do
            count = count + batch_of(parallel, batch, k).mask:to("f32"):sum():view(1)
        end
        differ = differ or batch.mask or batch.segments or #parallel.context > 0 -- the numbers of ranks' targets
    end
    if parallel.parts > 1 and differ then
        count = parallel:sum_over_tokens(count) / parallel.parts
    end
    return mx.maximum(count / #batches, 1e-8)
end

--- A step begins: forgets the losses of the one before. The mean over its passes becomes one over the targets of all
--- its batches, which may have different numbers of them. Collective.
---@param batches table[] of Decoder:loss
function Mtp:start(batches)
    mx.fill(self.sum, { value = 0 })
    self.passes = 0
    local mean = mean_targets(self, batches)
    for _, batch in ipairs(batches) do
        batch.mean_further_targets = mean -- Mtp:loss takes it
    end
end

--- The loss of the modules times its weight, and what their layers add: (f32, one element). It is the mean over the
--- targets of all modules and ranks, for a mean over ranks; after Mtp:start, over those of all passes, for a mean over
--- these, too. Collective.
---@param x any (B, S, E) of the last layer
---@param batch table of Decoder:loss
---@param run table of Decoder:hidden
---@return any
function Mtp:loss(x, batch, run)
    local model = self.model
    local shape, parallel, sum, extra = model.shape, model.parallel, nil, nil
    for k = 1, shape.mtp.layers do
        local part = batch_of(parallel, batch, k)
        model:prefetch(shape.layers + k - 1, shape.layers + k, run)
        local y, added = mx.remat(shape.remat, function(input)
            return module(model, k, input, part.tokens, run)
        end, x)
        x, extra = y, extra and added and extra + added or extra or added
        local mean = model:cross_entropy(model:normalize(PREFIX:format(k) .. "final_norm", x), part, true)
        local own = mean * part.mask:to("f32"):sum():view(1)
        sum = sum and sum + own or own
    end
    local targets = batch.mean_further_targets or mean_targets(self, { batch })
    batch.mean_further_targets = nil
    local loss = sum / targets * shape.mtp.weight
    self.passes = self.passes + 1
    self.sum:add_(loss:detach():view(1))
    return extra and loss + extra or loss
end

-- The ids with the largest logits of h (B, S, E): (B, S) i32.
local function predictions(model, h)
    local B, S, E = h:size(1), h:size(2), h:size(3)
    local ids, rows = mx.zeros({ B * S }, "i32"), h:view(B * S, E)
    for first, count in util.pieces(B * S, { B * S, model.shape.vocab }, 1) do
        mx.scope(function()
            local logits = model:logits(mx.narrow(rows, { dim = 1, start = first, length = count }))
            mx.write_slice(ids, mx.argmax(logits, { dim = 2 }), { dim = 1, start = first })
        end)
    end
    return ids:view(B, S)
end

--- In evaluation, counts of module shape.mtp.target the predictions, and those that the model itself makes of the same
--- targets k tokens later. In speculative decoding these would be accepted. Collective.
---@param x any (B, S, E) of the last layer
---@param h any the same after the final norm
---@param batch table of Decoder:loss
---@param run table of Decoder:hidden
function Mtp:accept(x, h, batch, run)
    local model, part = self.model, nil
    local target = model.shape.mtp.target
    for k = 1, target do
        part = batch_of(model.parallel, batch, k)
        x = module(model, k, x, part.tokens, run)
    end
    local own = predictions(model, model:normalize(PREFIX:format(target) .. "final_norm", x))
    local same = mx.eq(own, later(predictions(model, h), target)) * part.mask
    self.accepted = self.accepted + same:to("f32"):sum():item()
    self.offered = self.offered + part.mask:to("f32"):sum():item()
end

--- The share of predictions that have been accepted since the last call, on all ranks, in per cent; nil: none was made.
--- Collective.
---@return number?
function Mtp:acceptance()
    local counts = { self.accepted, self.offered }
    self.accepted, self.offered = 0, 0
    counts = mx.ranks() > 1 and mx.scope(function()
        return mx.all_reduce_(mx.tensor(counts)):totable()
    end) or counts
    return counts[2] > 0 and 100 * counts[1] / counts[2] or nil
end

return mtp
