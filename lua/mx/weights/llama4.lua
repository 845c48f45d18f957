--- Llama 4: attention inside of chunks, layers without RoPE and experts in a config.json, in both directions. See
--- config_read.lua and config_write.lua.
--
-- A folder is of the text model (llama4_text), or also has a part for images (llama4), which is left out.

local mx = require "mx"
local util = require "mx.util"

local llama4 = {}

-- Of queries in layers without RoPE.
local TEMPERATURE = { scale = 0.1, tokens = 8192 }

-- ---- reading ----

--- The part of a config.json that is about text.
---@param values table
---@return table
function llama4.text_config(values)
    return values.model_type == "llama4" and type(values.text_config) == "table" and values.text_config or values
end

--- Leaves out the tensors of a folder that are about images, and the prefix of the others.
---@param source mx.WeightSource
function llama4.keep_text(source)
    local count = 0
    for name, entry in util.sorted_pairs(source.tensors) do
        local rest = name:match("^language_model%.(.*)$")
        if rest then
            entry.name, entry.stored_name = rest, name
            source.tensors[name], source.tensors[rest] = nil, entry
        elseif name:find("^vision_model%.") or name:find("^multi_modal_projector%.") then
            source.tensors[name], count = nil, count + 1
        end
    end
    source.left_out = count > 0 and ("%d tensors about images are not read: models here read text"):format(count) or nil
end

-- The interval of the layers whose entry in a list is `mark`, from the list's length; nil if they are not every n-th.
local function interval_of(list, mark)
    local n
    for i, entry in ipairs(list) do
        n = n or entry == mark and i or nil
        if (entry == mark) ~= (n ~= nil and i % n == 0) then
            return nil
        end
    end
    return n or -1
end

-- Which layers have no RoPE: every so many; -1: none.
local function nope_interval(c, layers, get)
    local list = get(c, "no_rope_layers", "table", {})
    if #list == 0 then
        return get(c, "no_rope_layer_interval", "integer", 4)
    end
    return #list == layers and interval_of(list, 0) or util.refuse("%s: no_rope_layers: expected %d numbers, 0 in "
        .. "every n-th layer and 1 in the others", c.path, layers)
end

-- Which layers have experts: every so many.
local function experts_interval(c, layers, get)
    local step, list, has = get(c, "interleave_moe_layer_step", "integer", 1), get(c, "moe_layers", "table", {}), {}
    if #list == 0 then
        return step
    end
    for i = 1, layers do
        has[i] = 0
    end
    for _, i in ipairs(list) do
        has[(math.tointeger(i) or layers) + 1] = 1
    end
    local found = interval_of(has, 1)
    return found and found > 0 and found or util.refuse("%s: moe_layers: here every n-th layer has experts", c.path)
end

--- Sets the keys of Llama 4.
---@param c {values: table, path: string} the text part of a config.json
---@param keys table those that other families have, too, are set
---@param get function of config_read.lua
function llama4.read(c, keys, get)
    local layers = keys.base_num_decoder_layers
    local floor, scale = get(c, "floor_scale", "number", 8192), get(c, "attn_scale", "number", 0.1)
    local tunes = c.values.attn_temperature_tuning
    if floor ~= TEMPERATURE.tokens or scale ~= TEMPERATURE.scale then
        util.refuse("%s: floor_scale = %g, attn_scale = %g: here they are %d and %g", c.path, floor, scale,
            TEMPERATURE.tokens, TEMPERATURE.scale)
    elseif get(c, "num_experts_per_tok", "integer", 1) ~= 1 then
        util.refuse("%s: num_experts_per_tok = %d: here a token of llama4 has one expert", c.path,
            get(c, "num_experts_per_tok", "integer"))
    end
    keys.chunk_attn_window_size = get(c, "attention_chunk_size", "integer", 8192)
    keys.nope_layer_interval = nope_interval(c, layers, get)
    keys.temperature_tuning = keys.nope_layer_interval > 0 and tunes ~= false and tunes ~= 0
    keys.use_qk_norm = get(c, "use_qk_norm", "boolean", true)
    keys.num_experts, keys.shared_experts = get(c, "num_local_experts", "integer", 16), 1
    keys.interleave_moe_layer_step = experts_interval(c, layers, get)
    keys.base_moe_mlp_dim = keys.base_mlp_dim
    keys.base_mlp_dim = keys.interleave_moe_layer_step > 1 and get(c, "intermediate_size_mlp", "integer", 16384)
        or keys.base_mlp_dim
end

-- ---- writing ----

--- Whether a model has something that only Llama 4 has.
---@param shape table of mx.models.shape
---@return boolean
function llama4.is_like(shape)
    return mx.models.any(shape, function(block)
        local attention, mlp = block.attention, block.mlp
        return attention.chunk ~= nil or attention.rotated_norm ~= nil or attention.temperature ~= nil
            or mlp.kind == "moe" and mlp.router.input_scaled == true
    end)
end

-- What of Llama 4 a layer lacks.
local function obstacle(shape, block, first)
    local attention, mlp, nope = block.attention, block.mlp, not block.attention.rope
    local moe, t = mlp.kind == "moe", attention.temperature
    local cases = {
        { block.norm.kind ~= "rmsnorm" or block.norm.offset ~= 0 or block.norms.attention ~= "before"
            or block.norms.mlp ~= "before" or block.parallel, "other norms" },
        { nope == (attention.chunk ~= nil), "RoPE without chunks, or chunks without RoPE" },
        { not nope and attention.chunk ~= first.attention.chunk, "chunks of several sizes" },
        { t and (t.scale ~= TEMPERATURE.scale or t.tokens ~= TEMPERATURE.tokens), "another temperature" },
        { attention.window > 0 or attention.cap > 0 or attention.qk_norm or attention.qkv_bias or attention.sinks
            or attention.buckets > 0 or attention.query_factor ~= 1
            or attention.scale ~= attention.head_dim ^ -0.5, "other attention" },
        { mlp.activation == "gpt_oss" or not mlp.gated or mlp.bias, "other MLPs" },
        { moe and (not mlp.router.input_scaled or mlp.shared ~= 1), "another routing, or no shared expert" },
        { shape.logit_cap > 0 or shape.logit_scale ~= 1 or shape.positions > 0, "other logits or positions" },
    }
    for _, case in ipairs(cases) do
        if case[1] then
            return "layers of llama4 with " .. case[2]
        end
    end
end

-- For each layer, 1 if fn(block) holds, otherwise 0.
local function marks(shape, fn)
    local list = {}
    for i = 1, shape.layers do
        list[i] = fn(mx.models.block(shape, i)) and 1 or 0
    end
    return list
end

local function has_rope(block)
    return block.attention.rope ~= false
end

local function has_experts(block)
    return block.mlp.kind == "moe"
end

--- The family of a model for which is_like holds, or nil and what of Llama 4 it lacks.
---@param shape table
---@return string?, string?
function llama4.family(shape)
    local nope, experts = interval_of(marks(shape, has_rope), 0), interval_of(marks(shape, has_experts), 1)
    if not nope or nope == 1 or not experts or experts < 1 then
        return nil, "layers of llama4 of which not every n-th has no RoPE, or not every n-th has experts"
    end
    local first = shape.blocks[1]
    for _, kind in ipairs(mx.models.kinds(shape)) do
        local reason = obstacle(shape, kind.block, first)
        if reason then
            return nil, reason
        end
    end
    return "llama4_text"
end

--- Adds what a config.json of Llama 4 says besides what those of other families say.
---@param values table
---@param shape table
function llama4.write(values, shape)
    local attention, moe, dense, tempered, experts = shape.blocks[1].attention, nil, nil, false, {}
    for i = 1, shape.layers do
        local block = mx.models.block(shape, i)
        moe, dense = has_experts(block) and block.mlp or moe, not has_experts(block) and block.mlp or dense
        tempered = tempered or block.attention.temperature ~= nil
        experts[#experts + 1] = has_experts(block) and i - 1 or nil
    end
    local rope = marks(shape, has_rope)
    values.intermediate_size, values.intermediate_size_mlp = moe.width, (dense or moe).width
    values.num_local_experts, values.num_experts_per_tok = moe.experts, moe.top
    values.router_aux_loss_coef = moe.load_balance / moe.top
    values.interleave_moe_layer_step = interval_of(marks(shape, has_experts), 1)
    values.moe_layers = mx.io.array(experts)
    values.no_rope_layers = mx.io.array(rope)
    values.attention_chunk_size, values.use_qk_norm = attention.chunk, attention.rotated_norm ~= nil
    values.attn_temperature_tuning = tempered
    values.floor_scale, values.attn_scale = TEMPERATURE.tokens, TEMPERATURE.scale
    local types = {}
    for i, rotated in ipairs(rope) do
        types[i] = rotated == 1 and "chunked_attention" or "full_attention"
    end
    values.layer_types = mx.io.array(types)
end

return llama4
