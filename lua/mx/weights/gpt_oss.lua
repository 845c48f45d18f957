--- GPT-OSS: sinks, experts with biases and clamped activations in a config.json, in both directions; and weights of
--- experts in MXFP4. See config_read.lua, config_write.lua and source.lua.
--
-- MXFP4 stores 32 weights as 16 bytes, each with two codes of four bits (e2m1; the lower bits first), and a factor
-- 2^(s - 127) of all 32, of which a byte holds s (e8m0). The matrices of n experts, outputs by inputs, are the tensors
-- NAME_blocks (n, outputs, inputs / 32, 16) and NAME_scales (n, outputs, inputs / 32).

local mx = require "mx"
local util = require "mx.util"

local gpt_oss = {}

-- ---- config.json ----

--- Sets the keys of GPT-OSS.
---@param c {values: table, path: string} a config.json
---@param keys table those that other families have, too, are set
---@param get function of config_read.lua
function gpt_oss.read(c, keys, get)
    local alpha = get(c, "swiglu_alpha", "number", 1.702)
    if alpha ~= 1.702 then
        util.refuse("%s: swiglu_alpha = %g: here it is 1.702", c.path, alpha)
    elseif not get(c, "attention_bias", "boolean", true) then
        util.refuse("%s: attention_bias = false: layers of gpt_oss have biases here", c.path)
    end
    keys.attention_bias, keys.attention_sink, keys.mlp_bias, keys.routed_bias = true, true, true, true
    keys.mlp_activations = { "sigmoid", "linear" }
    keys.mlp_activations_limit = get(c, "swiglu_limit", "number", 7) + 0.0
    keys.num_experts = get(c, "num_local_experts", "integer", 128)
    keys.num_experts_per_tok = get(c, "num_experts_per_tok", "integer", 4)
    keys.base_moe_mlp_dim = keys.base_mlp_dim
end

--- The family of a model with sinks, or nil and what of GPT-OSS it lacks.
---@param shape table
---@param dense table[] the different MLPs without experts
---@param moe? table the experts
---@return string?, string?
function gpt_oss.family(shape, dense, moe)
    local block = shape.blocks[1]
    local attention, router = block.attention, moe and moe.router
    local cases = {
        { not moe or #dense > 0, "attention_sink with layers without experts" },
        { not (attention.qkv_bias and attention.out_bias), "attention_sink without biases in attention" },
        { moe and not (moe.bias and router.trained_bias), "attention_sink without mlp_bias and a trained routed_bias" },
        { moe and moe.activation ~= "gpt_oss", "attention_sink with other mlp_activations than those of gpt_oss" },
        { moe and (router.score ~= "topk_softmax" or router.groups > 1 or router.scale ~= 1 or moe.shared > 0),
            "attention_sink with another routing than that of gpt_oss" },
        { attention.qk_norm or attention.cap > 0 or attention.scale ~= attention.head_dim ^ -0.5 or not attention.rope,
            "attention_sink with use_qk_norm, attn_logits_soft_cap, query_pre_attn_scalar, or without RoPE" },
        { block.norm.kind ~= "rmsnorm" or block.norm.offset ~= 0 or block.norms.attention ~= "before",
            "attention_sink with other norms than those of gpt_oss" },
        { shape.logit_cap > 0 or shape.logit_scale ~= 1 or shape.positions > 0,
            "attention_sink with final_logits_soft_cap, normalize_embedding_logits or trainable_position_size" },
    }
    for _, case in ipairs(cases) do
        if case[1] then
            return nil, case[2]
        end
    end
    return "gpt_oss"
end

--- Adds what a config.json of GPT-OSS says besides what those of other families say.
---@param values table
---@param moe table the experts
function gpt_oss.write(values, moe)
    values.num_local_experts, values.num_experts_per_tok = moe.experts, moe.top
    values.router_aux_loss_coef = moe.load_balance / moe.top -- the library's loss is num_experts_per_tok times ours
    values.swiglu_limit, values.swiglu_alpha, values.attention_bias, values.hidden_act = moe.limit, 1.702, true, "silu"
end

-- ---- MXFP4 ----

local CODES = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 } -- of four bits, from 0

--- Puts a tensor NAME in the place of each pair of NAME_blocks and NAME_scales: (n, inputs, outputs).
---@param source mx.WeightSource
function gpt_oss.join_blocks(source)
    for name, blocks in util.sorted_pairs(source.tensors) do
        local base = name:match("^(.*)_blocks$")
        local scales = base and source.tensors[base .. "_scales"]
        if scales then
            local sizes = blocks.shape
            if #sizes ~= 4 or sizes[4] ~= 16 or blocks.dtype ~= "u8" or scales.dtype ~= "u8"
                or table.concat(scales.shape, "x") ~= table.concat(sizes, "x", 1, 3) then
                util.refuse("%s: the tensors '%s' (%s, %s) and '%s' (%s, %s) are not MXFP4: expected u8 (experts, "
                    .. "outputs, blocks, 16) and (experts, outputs, blocks)", source.path, name, blocks.type,
                    table.concat(sizes, "x"), scales.name, scales.type, table.concat(scales.shape, "x"))
            end
            source.tensors[name], source.tensors[scales.name] = nil, nil
            source.tensors[base] = {
                name = base, type = "MXFP4", dtype = "bf16", shape = { sizes[1], 32 * sizes[3], sizes[2] },
                blocks = blocks, scales = scales,
            }
        end
    end
end

-- A table of values as a tensor of rows for mx.embedding.
local function rows_of(values)
    return mx.tensor(values, "f32"):view(#values, 1)
end

--- Reads the matrix of one expert of a tensor of join_blocks: (1, inputs, outputs) f32.
---@param entry table of source.tensors
---@param expert integer
---@return any
function gpt_oss.read_blocks(entry, expert)
    local rows = { first = expert, rows = 1 }
    local codes = util.attempt(entry.blocks.file.read, entry.blocks.file, entry.blocks.name, rows)
    local scales = util.attempt(entry.scales.file.read, entry.scales.file, entry.scales.name, rows):to("i32")
    local outputs, blocks, powers = codes:size(2), codes:size(3), {}
    for s = 0, 255 do
        powers[s + 1] = 2.0 ^ (s - 127)
    end
    codes = codes:view(outputs * blocks * 16)
    local ids = mx.stack(codes & 15, codes >> 4, { dim = 2 }):to("i32") -- (bytes, 2)
    local values = mx.embedding(rows_of(CODES), ids):view(outputs, blocks, 32)
    values = values * mx.embedding(rows_of(powers), scales:view(outputs, blocks)) -- (outputs, blocks, 1)
    return mx.transpose(values:view(outputs, blocks * 32)):view(1, blocks * 32, outputs)
end

return gpt_oss
