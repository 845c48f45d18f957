--- DeepSeek V2 and V3, and Kimi K2 (V3 under another name): latent attention and experts in a config.json, in both
--- directions. See config_read.lua and config_write.lua.
--
-- V2 scores experts by a softmax, and groups of experts by their best one. V3 scores experts by a sigmoid and adds a
-- bias for the choice, and groups by their best two.

local mx = require "mx"
local ropes = require "mx.models.rope"
local util = require "mx.util"

local deepseek = {}

local LATENT_EPS = 1e-6 -- of the norms of latents, whatever rms_norm_eps is

local function is_v2(family)
    return family == "deepseek_v2"
end

-- ---- reading ----

-- A config.json of other routing is refused.
local function check_router(c, family, get)
    local v2 = is_v2(family)
    local method = get(c, "topk_method", "string", v2 and "greedy" or "noaux_tc")
    local score = get(c, "scoring_func", "string", v2 and "softmax" or "sigmoid")
    local normalize = get(c, "norm_topk_prob", "boolean", not v2)
    if score ~= (v2 and "softmax" or "sigmoid") then
        util.refuse("%s: scoring_func = %s: models of the type %s have %s here", c.path, score, family,
            v2 and "softmax" or "sigmoid")
    elseif v2 and method ~= "greedy" and method ~= "group_limited_greedy" or not v2 and method ~= "noaux_tc" then
        util.refuse("%s: topk_method = %s: models of the type %s have %s here", c.path, method, family,
            v2 and "greedy or group_limited_greedy" or "noaux_tc")
    elseif normalize == v2 then
        util.refuse("%s: norm_topk_prob = %s: models of the type %s have %s here", c.path, normalize, family, not v2)
    elseif get(c, "moe_layer_freq", "integer", 1) ~= 1 then
        util.refuse("%s: moe_layer_freq = %d: all layers after the first ones have experts here", c.path,
            get(c, "moe_layer_freq", "integer"))
    end
    return method
end

local function expert_keys(c, family, keys, get)
    local v2, layers = is_v2(family), keys.base_num_decoder_layers
    local experts = c.values.n_routed_experts == mx.io.null and 0
        or get(c, "n_routed_experts", "integer", v2 and 64 or 256)
    local dense = get(c, "first_k_dense_replace", "integer", v2 and 0 or 3)
    if experts <= 1 or dense >= layers then
        return
    end
    local method, groups = check_router(c, family, get), get(c, "n_group", "integer", v2 and 1 or 8)
    keys.num_experts, keys.num_experts_per_tok = experts, get(c, "num_experts_per_tok", "integer", 8)
    keys.base_moe_mlp_dim = get(c, "moe_intermediate_size", "integer", v2 and 1407 or 2048)
    keys.first_num_dense_layers = dense
    keys.base_mlp_dim = dense == 0 and keys.base_moe_mlp_dim or keys.base_mlp_dim -- then no layer has the other width
    keys.shared_experts = get(c, "n_shared_experts", "integer", 0)
    keys.routed_scaling_factor = get(c, "routed_scaling_factor", "number", v2 and 1 or 2.5) + 0.0
    keys.routed_score_func, keys.routed_bias = v2 and "softmax" or "sigmoid", not v2
    if groups > 1 and method ~= "greedy" then
        keys.n_routing_groups, keys.topk_routing_group = groups, get(c, "topk_group", "integer", 4)
        keys.routing_group_score = v2 and "max" or "sum_of_two"
    end
end

local function rope_keys(c, keys, get)
    local parameters = get(c, "rope_parameters", "table", get(c, "rope_scaling", "table", {}))
    local mscale = get({ path = c.path, values = parameters }, "mscale_all_dim", "number", 0) + 0.0
    if keys.rope_type == "yarn" then
        keys.rope_interleave, keys.mscale = deepseek.neighbours(c.values), mscale
    elseif mscale ~= 0 then
        util.refuse("%s: mscale_all_dim = %g without YaRN: here it concerns YaRN only", c.path, mscale)
    end
end

--- Whether the two components that RoPE rotates together are neighbours, by a config.json.
---@param values table
---@return boolean
function deepseek.neighbours(values)
    return values.rope_interleave ~= false
end

--- The number of layers for multi-token prediction, by a config.json.
---@param values table
---@return integer
function deepseek.extra_layers(values)
    return math.tointeger(values.num_nextn_predict_layers or values.num_mtp_layers) or 0
end

--- Sets the keys of latent attention and of experts.
---@param c {values: table, path: string} a config.json
---@param family string
---@param keys table those that other families have, too, are set
---@param get function of config_read.lua
function deepseek.read(c, family, keys, get)
    keys.attention_type, keys.head_dim = "mla", nil
    keys.q_lora_rank = c.values.q_lora_rank == mx.io.null and 0 or get(c, "q_lora_rank", "integer", 1536)
    keys.kv_lora_rank = get(c, "kv_lora_rank", "integer", 512)
    keys.qk_nope_head_dim = get(c, "qk_nope_head_dim", "integer", 128)
    keys.qk_rope_head_dim = get(c, "qk_rope_head_dim", "integer", 64)
    keys.v_head_dim = get(c, "v_head_dim", "integer", 128)
    if keys.normalization_layer_epsilon ~= LATENT_EPS then
        util.refuse("%s: rms_norm_eps = %g: in %s, the norms of latents have %g, and here all norms have the same",
            c.path, keys.normalization_layer_epsilon, family, LATENT_EPS)
    elseif get(c, "mlp_bias", "boolean", false) then
        util.refuse("%s: mlp_bias = true: MLPs of %s have no biases here", c.path, family)
    end
    rope_keys(c, keys, get)
    expert_keys(c, family, keys, get)
end

-- ---- writing ----

-- What a model's experts have that neither V2 nor V3 has.
local function obstacle_of_experts(moe)
    local router = moe.router
    local v2 = router.score == "softmax_topk" and not router.normalize
    return util.first_reason({
        { moe.shared == 0, "attention_type = mla with experts, without shared_experts" },
        { not v2 and router.score ~= "sigmoid", "attention_type = mla with routed_score_func other than softmax "
            .. "(and norm_topk_prob = false) and sigmoid, or random routing" },
        { v2 and router.bias, "attention_type = mla with routed_score_func = softmax and routed_bias" },
        { not v2 and not router.bias, "attention_type = mla with routed_score_func = sigmoid, without routed_bias: "
            .. "with routed_bias = true, it starts at 0" },
        { router.groups > 1 and router.group_score ~= (v2 and "max" or "sum_of_two"),
            ("attention_type = mla with routed_score_func = %s and routing_group_score = %s"):format(
                v2 and "softmax" or "sigmoid", router.group_score) },
    })
end

--- The family of a model with latent attention, or nil and what no family has of it.
---@param shape table of mx.models.shape
---@param dense table[] the different MLPs without experts
---@param moe? table the experts
---@return string?, string?
function deepseek.family(shape, dense, moe)
    local block, seen = shape.blocks[1], moe and mx.models.block(shape, 1).mlp.kind == "moe"
    local attention, gaps = block.attention, false
    for i = 2, moe and shape.layers or 1 do
        local here = mx.models.block(shape, i).mlp.kind == "moe"
        gaps, seen = gaps or seen and not here, seen or here
    end
    local rope, mlp = attention.rope, dense[1] or moe
    local reason = util.first_reason({
        { block.norm.kind ~= "rmsnorm" or block.norm.offset ~= 0 or not mlp.gated or mlp.bias or not rope,
            "attention_type = mla with other norms, MLPs or positions than those of DeepSeek" },
        { attention.norm.eps ~= LATENT_EPS or block.norm.eps ~= LATENT_EPS,
            ("attention_type = mla with normalization_layer_epsilon = %g instead of %g"):format(block.norm.eps,
                LATENT_EPS) },
        { block.norms.attention ~= "before" or block.norms.mlp ~= "before", "attention_type = mla with norms after "
            .. "attention or MLP" },
        { attention.cap > 0, "attention_type = mla with attn_logits_soft_cap" },
        { shape.logit_cap > 0, "attention_type = mla with final_logits_soft_cap" },
        { shape.logit_scale ~= 1, "attention_type = mla with normalize_embedding_logits" },
        { shape.positions > 0, "attention_type = mla with trainable_position_size" },
        { rope and (not rope.theta or rope.dims or rope.shortest), "RoPE of other frequencies or of a part of them" },
        { shape.mtp and moe and moe.router.score ~= "sigmoid", "mtp_num_layers with other experts than V3's" },
        { gaps, "attention_type = mla with interleave_moe_layer_step" },
    }) or moe and obstacle_of_experts(moe)
    local v2 = moe and moe.router.score == "softmax_topk"
    return not reason and (v2 and "deepseek_v2" or "deepseek_v3") or nil, reason
end

--- Adds what a config.json of these families says besides what those of other families say.
---@param values table
---@param shape table
---@param family string
---@param moe? table the experts
function deepseek.write(values, shape, family, moe)
    local attention = shape.blocks[1].attention
    local rope, parameters = attention.rope, values.rope_parameters
    values.kv_lora_rank, values.qk_nope_head_dim, values.qk_rope_head_dim, values.v_head_dim =
        attention.rank, attention.nope, attention.rotated, attention.value_dim
    values.q_lora_rank = attention.query_rank > 0 and attention.query_rank or mx.io.null
    values.qk_head_dim, values.head_dim = attention.head_dim, attention.rotated
    if not is_v2(family) then
        values.rope_interleave = rope.interleaved == true
    end
    if rope.scaling and rope.scaling.kind == "yarn" then
        local grown = (attention.scale * attention.head_dim ^ 0.5) ^ 0.5
        local mscale = (grown - 1) / (ropes.yarn_attention_factor(rope.scaling.factor) - 1)
        parameters.mscale_all_dim = tonumber(("%.9g"):format(mscale)) + 0.0
        parameters.mscale = parameters.mscale_all_dim
        values.rope_scaling = parameters
    end
    values.num_nextn_predict_layers = shape.mtp and shape.mtp.layers or 0
    values.first_k_dense_replace = shape.layers
    if not moe then
        return
    end
    for i = shape.layers, 1, -1 do
        values.first_k_dense_replace = mx.models.block(shape, i).mlp.kind == "moe" and i - 1
            or values.first_k_dense_replace
    end
    local router = moe.router
    values.n_routed_experts, values.num_experts_per_tok, values.n_shared_experts = moe.experts, moe.top, moe.shared
    values.moe_intermediate_size, values.routed_scaling_factor = moe.width, router.scale
    values.n_group, values.topk_group, values.moe_layer_freq = router.groups, router.top_groups, 1
    values.scoring_func, values.norm_topk_prob = is_v2(family) and "softmax" or "sigmoid", not is_v2(family)
    values.topk_method = not is_v2(family) and "noaux_tc" or router.groups > 1 and "group_limited_greedy" or "greedy"
end

return deepseek
