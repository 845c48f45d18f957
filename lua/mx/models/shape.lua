--- The description of a model as data: sizes of the whole model, and the blocks of its layers.
--
--     shape = { emb, vocab, layers, blocks, norm, mtp, ... }    norm: the one after the last layer; mtp: see mtp.lua
--     block = { norm, norms, attention, mlp, parallel }     parallel: MLP and attention read the same norm
--
-- Layer i is block number (i - 1) % #blocks + 1. There is one block if all layers are alike, two if they alternate, and
-- as many as layers if each is different. `norm` is {kind, eps, bias, offset}; `offset` is added to its weights, which
-- begin at 1 - offset. `norms` says where a block has norms: {attention, mlp}, each "before" the part, "after" it (then
-- it norms the part's result before that is added to the residual stream), or "both". `attention` and `mlp` are the
-- parts of a block; the field `kind` of a part names its file in this folder. README.md describes such a file.

local blocks = require "mx.models.blocks"
local mtp = require "mx.models.mtp"
local quantization = require "mx.models.quantization"
local remat = require "mx.models.remat"
local util = require "mx.util"

local shapes = {}

-- The parts of a block in the order of the forward pass.
local PARTS = { "attention", "mlp" }

-- The factors of sizes for global_parameter_scale (see configs/base.yml): splits floor(log2(scale)) in threes.
local function scale_factors(scale)
    local log2 = 0
    while scale >> (log2 + 1) > 0 do
        log2 = log2 + 1
    end
    local whole, rest = log2 // 3, log2 % 3
    local emb, heads = rest > 1 and whole + 1 or whole, rest > 0 and whole + 1 or whole
    return { layers = 1 << whole, emb = 1 << emb, heads = 1 << heads }
end

local function norm_of(c)
    local kind = c.normalization_layer
    return {
        kind = kind, eps = c.normalization_layer_epsilon, bias = kind == "layernorm" and c.use_bias,
        offset = blocks.KINDS[c.decoder_block].norm_offset or 0,
    }
end

-- Where a part has norms.
local function norm_places(before, after)
    return before and after and "both" or after and "after" or "before"
end

-- How many layers have blocks of their own, until they repeat: the kinds of attention alternate, and so do those of
-- MLPs.
local function period_of(c, reaches, layers)
    if c.num_experts > 1 and c.first_num_dense_layers > 0 then
        return layers
    end
    local period, step = #reaches, c.num_experts > 1 and c.interleave_moe_layer_step or 1
    while period % step ~= 0 do
        period = period + #reaches
    end
    return period
end

-- Whether layer i of a config has experts.
local function has_experts(c, i)
    return c.num_experts > 1 and i > c.first_num_dense_layers and i % c.interleave_moe_layer_step == 0
end

-- The blocks of a config's layers, in turn.
local function blocks_of(c, factor, layers)
    local kind, list, reaches = blocks.KINDS[c.decoder_block], {}, blocks.reaches(c)
    local before, attention = kind.norm_before ~= false, c.attention_type == "mla" and "mla" or "attention"
    for i = 1, period_of(c, reaches, layers) do
        local reach, mlp = reaches[(i - 1) % #reaches + 1], has_experts(c, i) and "moe" or "mlp"
        list[i] = {
            norm = norm_of(c),
            norms = {
                attention = norm_places(before, c.use_post_attn_norm), mlp = norm_places(before, c.use_post_ffw_norm),
            },
            attention = require("mx.models." .. attention).of(c, factor, reach),
            mlp = require("mx.models." .. mlp).of(c, factor),
            parallel = c.parallel_block,
        }
    end
    return list
end

--- The shape of a config's model, with global_parameter_scale applied: everything that the model is built from.
---@param c table
---@return table
function shapes.of(c)
    local factor = scale_factors(c.global_parameter_scale)
    local emb = c.base_emb_dim * factor.emb
    local layers = c.base_num_decoder_layers * factor.layers * (blocks.KINDS[c.decoder_block].layers_each or 1)
    local list = blocks_of(c, factor, layers)
    return {
        emb = emb,
        vocab = c.vocab_size,
        layers = layers,
        blocks = list,
        mtp = mtp.of(c, list[(layers - 1) % #list + 1]),
        norm = norm_of(c),
        max_length = c.max_position_embeddings > 0 and c.max_position_embeddings or c.max_target_length,
        positions = math.max(c.trainable_position_size, 0),
        logit_cap = c.final_logits_soft_cap,
        tied = c.logits_via_embedding,
        logit_scale = c.logits_via_embedding and c.normalize_embedding_logits and 1 / math.sqrt(emb) or 1,
        z_loss = c.z_loss_multiplier,
        dropout = c.dropout_rate,
        init_std = c.init_std,
        seed = c.init_weights_seed,
        remat = remat.of(c),
        remat_policy = c.remat_policy, -- its name
        dtype = util.dtype(c.dtype),
        weight_dtype = util.dtype(c.weight_dtype),
        quantization = c.quantization, -- a recipe of quantization.lua; empty: none
        ranges = { -- fixed ranges of what is quantized; nil: from the largest magnitudes
            weight = quantization.fixed_range(c.weight_quantization_calibration_method),
            input = quantization.fixed_range(c.act_quantization_calibration_method),
        },
        cache = c.quantize_kvcache and { -- codes of keys and values in generation (cache.lua); nil: none
            dtype = c.kv_quant_dtype == "int8" and "i8" or "e4m3", by_head = c.kv_quant_axis == "dkv",
        } or nil,
        trainable = c.trainable_parameters_mask, -- expressions (masks.lua); none: all parameters are trained
    }
end

--- The block of layer i, or of a module of multi-token prediction, which come after the layers.
---@param shape table
---@param i integer
---@return table
function shapes.block(shape, i)
    return i > shape.layers and shape.mtp.block or shape.blocks[(i - 1) % #shape.blocks + 1]
end

--- The file of a part: its functions.
---@param part table block.attention or block.mlp
---@return table
function shapes.part(part)
    return require("mx.models." .. part.kind)
end

--- The parts of a block in the order of the forward pass.
---@param block table
---@return table[]
function shapes.parts(block)
    local parts = {}
    for i, name in ipairs(PARTS) do
        parts[i] = block[name]
    end
    return parts
end

--- Whether a block has a norm at a place of a part.
---@param block table
---@param part "attention"|"mlp"
---@param place "before"|"after"
---@return boolean
function shapes.has_norm(block, part, place)
    return block.norms[part] == place or block.norms[part] == "both"
end

-- A value as text; only equal values have the same text.
local function text_of(value)
    if type(value) ~= "table" then
        return math.type(value) == "float" and ("%a"):format(value) or tostring(value)
    end
    local words = {}
    for key, entry in util.sorted_pairs(value) do
        words[#words + 1] = ("%s=%s"):format(key, text_of(entry))
    end
    return "{" .. table.concat(words, ",") .. "}"
end

-- The kinds of the layers alone.
local function kinds_of_layers(shape)
    local kinds, known, period = {}, {}, #shape.blocks
    for place = 1, math.min(period, shape.layers) do
        local text = text_of(shape.blocks[place])
        local kind = known[text]
        if not kind then
            kind = { block = shape.blocks[place], count = 0, places = {} }
            known[text], kinds[#kinds + 1] = kind, kind
        end
        kind.count = kind.count + (shape.layers - place) // period + 1
        kind.places[#kind.places + 1] = place
    end
    return kinds
end

--- The different blocks, in the order of their first occurrence: {block, count, places} each. count: number of layers
--- with it, those of multi-token prediction included; places: its numbers in shape.blocks.
---@param shape table
---@return {block: table, count: integer, places: integer[]}[]
function shapes.kinds(shape)
    local kinds, text = kinds_of_layers(shape), shape.mtp and text_of(shape.mtp.block)
    for _, kind in ipairs(kinds) do
        if text_of(kind.block) == text then
            kind.count = kind.count + shape.mtp.layers
            return kinds
        end
    end
    kinds[#kinds + 1] = text and { block = shape.mtp.block, count = shape.mtp.layers, places = {} } or nil
    return kinds
end

--- The sum of fn(block) over all layers.
---@param shape table
---@param fn fun(block: table): number
---@return number
function shapes.sum(shape, fn)
    local sum = 0
    for _, kind in ipairs(shapes.kinds(shape)) do
        sum = sum + kind.count * fn(kind.block)
    end
    return sum
end

--- Whether fn(block) holds for any layer.
---@param shape table
---@param fn fun(block: table): boolean
---@return boolean
function shapes.any(shape, fn)
    for _, kind in ipairs(shapes.kinds(shape)) do
        if fn(kind.block) then
            return true
        end
    end
    return false
end

--- Whether n ranks get equal parts of all heads, or as many copies of each head of keys. (Unequal parts of MLP and
--- vocabulary cost next to nothing.)
---@param shape table
---@param n integer
---@return boolean
function shapes.divides(shape, n)
    return not shapes.any(shape, function(block)
        local H, K = block.attention.heads, block.attention.kv_heads
        return H % n ~= 0 or K % n ~= 0 and n % K ~= 0
    end)
end

local function copy(value)
    if type(value) ~= "table" then
        return value
    end
    local twin = {}
    for key, entry in pairs(value) do
        twin[key] = copy(entry)
    end
    return twin
end

--- A copy that shares nothing with the shape.
---@param shape table
---@return table
function shapes.copy(shape)
    return copy(shape)
end

--- The same model with a separate block for each layer, which can be changed alone.
---@param shape table
---@return table
function shapes.by_layer(shape)
    local twin = copy(shape)
    for i = 1, shape.layers do
        twin.blocks[i] = copy(shapes.block(shape, i))
    end
    return twin
end

-- The number of layers of each kind among `layers`: at least one of each; each further layer is of the kind that is
-- furthest below its share of the whole model.
local function shares(kinds, layers, all)
    local counts = {}
    for k in ipairs(kinds) do
        counts[k] = 1
    end
    for _ = #kinds + 1, layers do
        local next_one, most = 1, -math.huge
        for k, kind in ipairs(kinds) do
            local behind = kind.count * layers / all - counts[k]
            if behind > most and counts[k] < kind.count then
                next_one, most = k, behind
            end
        end
        counts[next_one] = counts[next_one] + 1
    end
    return counts
end

--- The same model with fewer layers: each kind of layer keeps its share, at least one, in the order of the model.
---@param shape table
---@param layers integer at least as many as there are kinds
---@return table
function shapes.cut(shape, layers)
    local kinds = kinds_of_layers(shape)
    if layers < #kinds then
        error(("models.cut: %d layers for %d kinds of layers"):format(layers, #kinds), 2)
    end
    local twin = copy(shape)
    twin.layers = layers
    if #kinds == 1 or layers == shape.layers then
        return twin
    end
    local chosen = {}
    for k, n in ipairs(shares(kinds, layers, shape.layers)) do
        local places = kinds[k].places
        for i = 0, n - 1 do
            local layer = i * kinds[k].count // n -- of this kind, from 0
            chosen[#chosen + 1] = layer // #places * #shape.blocks + places[layer % #places + 1]
        end
    end
    table.sort(chosen)
    for i, layer in ipairs(chosen) do
        twin.blocks[i] = copy(shapes.block(shape, layer))
    end
    for i = layers + 1, #shape.blocks do
        twin.blocks[i] = nil
    end
    return twin
end

--- The tensors of remat.TENSORS that a layer has.
---@param shape table
---@return string[]
function shapes.tensors(shape)
    local present, names = { decoder_layer_input = true }, {}
    for _, kind in ipairs(shapes.kinds(shape)) do
        for _, part in ipairs(shapes.parts(kind.block)) do
            for _, name in ipairs(shapes.part(part).tensors(part)) do
                present[name] = true
            end
        end
    end
    for _, name in ipairs(remat.TENSORS) do
        names[#names + 1] = present[name] and name or nil
    end
    return names
end

return shapes
