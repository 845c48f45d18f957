--- Writes the config.json of a Hugging Face model: chooses the family that has the features of a shape. See init.lua.

local deepseek = require "mx.weights.deepseek"
local gpt_oss = require "mx.weights.gpt_oss"
local llama4 = require "mx.weights.llama4"
local mx = require "mx"
local util = require "mx.util"

local config_write = {}

local ACTIVATION_NAMES = { silu = "silu", relu = "relu", gelu = "gelu_pytorch_tanh" }

local CLASSES = {
    llama = "LlamaForCausalLM", mistral = "MistralForCausalLM", ministral = "MinistralForCausalLM",
    qwen2 = "Qwen2ForCausalLM", qwen3 = "Qwen3ForCausalLM", gemma = "GemmaForCausalLM", gemma2 = "Gemma2ForCausalLM",
    gemma3_text = "Gemma3ForCausalLM", olmo2 = "Olmo2ForCausalLM", olmo3 = "Olmo3ForCausalLM", gpt2 = "GPT2LMHeadModel",
    mixtral = "MixtralForCausalLM", qwen3_moe = "Qwen3MoeForCausalLM", deepseek_v2 = "DeepseekV2ForCausalLM",
    deepseek_v3 = "DeepseekV3ForCausalLM", gpt_oss = "GptOssForCausalLM",
    llama4_text = "Llama4ForCausalLM",
}

-- ---- the family of a model ----

-- The different values of fn(block) among the layers.
local function different(shape, fn)
    local list, values = {}, {}
    for i = 1, shape.layers do
        list[i] = { fn(mx.models.block(shape, i)) }
    end
    for i, kind in ipairs(mx.models.kinds({ layers = shape.layers, blocks = list })) do
        values[i] = kind.block[1]
    end
    return values
end

local function window_of(block)
    return block.attention.window
end

local function has_windows(shape)
    return mx.models.any(shape, function(block) return window_of(block) > 0 end)
end

-- A block without what may differ between the layers of a family: MLPs have their own check.
local function without_reach(block)
    local twin = mx.models.copy(block)
    twin.attention.window, twin.attention.rope, twin.mlp = 0, false, false
    return twin
end

-- The different MLPs of the layers: lists of those without experts and of those with experts.
local function mlps_of(shape)
    local dense, sparse = {}, {}
    for _, mlp in ipairs(different(shape, function(block) return block.mlp end)) do
        table.insert(mlp.kind == "moe" and sparse or dense, mlp)
    end
    return dense, sparse
end

-- What of experts no family without latent attention or sinks has.
local function obstacle_of_experts(moe)
    local router = moe.router
    return util.first_reason({
        { moe.shared > 0, "shared_experts" }, { router.bias, "routed_bias" }, { router.groups > 1, "n_routing_groups" },
        { router.score ~= "topk_softmax" and router.score ~= "softmax_topk", "routed_score_func = sigmoid, or random "
            .. "routing" },
        { router.scale ~= 1, "routed_scaling_factor" },
        { moe.bias or router.trained_bias, "mlp_bias and a trained routed_bias, without attention_sink" },
    })
end

-- The RoPE of the layers with this reach; nil if there is no such layer. More than one is refused; of Llama 4, layers
-- without any do not count.
local function rope_of(shape, is_local)
    local found, is_llama4 = {}, llama4.is_like(shape)
    for _, block in ipairs(shape.blocks) do
        local has_none = not block.attention.rope and is_llama4
        if not has_none and (is_local == nil or (window_of(block) > 0) == is_local) then
            found[#found + 1] = block
        end
    end
    local kinds = different({ layers = #found, blocks = found }, function(block) return block.attention.rope end)
    if #kinds > 1 then
        util.refuse("no family of Hugging Face models has this one's features: its layers have several kinds of RoPE")
    end
    return kinds[1]
end

-- What no family has.
local function obstacle(shape)
    local block = shape.blocks[1]
    local attention = block.attention
    local windows, dense, sparse = {}, mlps_of(shape)
    for _, window in ipairs(different(shape, window_of)) do
        windows[#windows + 1] = window > 0 and window or nil
    end
    return util.first_reason({
        { #different(shape, without_reach) > 1 or #dense > 1 or #sparse > 1,
            "its layers differ in more than windows, RoPE and whether they have experts" },
        { #windows > 1, "sliding windows of several sizes" },
        { block.parallel, "parallel_block = true" }, { attention.buckets > 0, "relative_bias_buckets" },
        { not attention.causal, "attention_type = full" },
        { attention.kind ~= "mla" and attention.query_factor ~= 1, "fold_attention_scale = true" },
        { shape.mtp and attention.kind ~= "mla", "mtp_num_layers" },
        { block.norms.attention ~= block.norms.mlp, "norms after only one of attention and MLP" },
        { sparse[1] and not sparse[1].gated, "experts without a gate" },
        { not attention.sinks and (dense[1] or sparse[1]).activation == "gpt_oss", "mlp_activations of gpt_oss, "
            .. "without attention_sink" },
    }) or sparse[1] and attention.kind ~= "mla" and not attention.sinks and obstacle_of_experts(sparse[1])
end

-- Each style of block: fn(shape, block, attention) -> the family, or nil and what it does not have.
local STYLES = {}

-- What of the usual block a model lacks: gated MLP, RMSNorm, RoPE.
local function unusual(shape, block, attention)
    local usual = block.norm.kind == "rmsnorm" and block.mlp.gated and attention.rope and shape.positions == 0
    return not usual and "its norms, positions, MLP and biases are neither those of GPT-2 nor those of another family"
end

function STYLES.gpt2(shape, block, attention)
    local reason = util.first_reason({
        { attention.cap > 0, "attn_logits_soft_cap" }, { shape.logit_cap > 0, "final_logits_soft_cap" },
        { shape.logit_scale ~= 1, "normalize_embedding_logits" },
        { attention.scale ~= attention.head_dim ^ -0.5, "query_pre_attn_scalar" },
        { block.norm.offset ~= 0, "layernorms that scale by 1 + their weights" },
        { block.norms.attention ~= "before", "norms after attention or MLP" },
    })
    return not reason and "gpt2" or nil, reason
end

function STYLES.gemma(shape, block, attention)
    local after, qk_norm = block.norms.attention ~= "before", attention.qk_norm
    local reason = unusual(shape, block, attention) or util.first_reason({
        { not shape.tied or shape.logit_scale == 1,
            "norms that scale by 1 + their weights, without logits_via_embedding and normalize_embedding_logits" },
        { attention.qkv_bias or block.mlp.bias, "norms that scale by 1 + their weights, together with biases" },
        { after and block.norms.attention ~= "both", "norms that scale by 1 + their weights, only after the parts" },
        { qk_norm and (qk_norm.whole or qk_norm.offset ~= 1), "a norm over all heads of queries and keys" },
        { qk_norm and not after, "use_qk_norm with norms that scale by 1 + their weights before the parts alone" },
        { qk_norm and attention.cap > 0, "use_qk_norm together with attn_logits_soft_cap" },
        { not after and (attention.cap > 0 or shape.logit_cap > 0), "soft caps without norms after the parts" },
        { not after and attention.scale ~= attention.head_dim ^ -0.5, "query_pre_attn_scalar without norms after" },
        { not after and has_windows(shape), "sliding windows without norms after the parts" },
    })
    return not reason and (qk_norm and "gemma3_text" or after and "gemma2" or "gemma") or nil, reason
end

function STYLES.olmo(shape, block, attention)
    local reason = unusual(shape, block, attention) or util.first_reason({
        { not (attention.qk_norm and attention.qk_norm.whole), "norms after attention and MLP, without a norm over all "
            .. "heads of queries and keys" },
        { attention.qkv_bias or block.mlp.bias, "norms after attention and MLP, together with biases" },
        { attention.cap > 0, "attn_logits_soft_cap" }, { shape.logit_cap > 0, "final_logits_soft_cap" },
        { shape.logit_scale ~= 1, "normalize_embedding_logits" },
        { attention.scale ~= attention.head_dim ^ -0.5, "query_pre_attn_scalar" },
    })
    return not reason and (has_windows(shape) and "olmo3" or "olmo2") or nil, reason
end

function STYLES.llama(shape, block, attention)
    local bias, windows = block.mlp.bias, different(shape, window_of)
    local reason = unusual(shape, block, attention) or util.first_reason({
        { attention.cap > 0, "attn_logits_soft_cap" }, { shape.logit_cap > 0, "final_logits_soft_cap" },
        { shape.logit_scale ~= 1, "normalize_embedding_logits" },
        { attention.scale ~= attention.head_dim ^ -0.5, "query_pre_attn_scalar" },
        { block.norms.attention ~= "before", "norms before and after attention or MLP, of plain weights" },
        { attention.qk_norm and attention.qk_norm.whole, "a norm over all heads of queries and keys" },
        { attention.qk_norm and attention.qkv_bias, "use_qk_norm together with biases" },
        { bias and has_windows(shape), "use_bias together with a sliding window" },
    })
    local plain = #windows > 1 and "ministral" or windows[1] > 0 and "mistral" or "llama"
    local family = attention.qk_norm and "qwen3" or attention.qkv_bias and not bias and "qwen2" or plain
    return not reason and family or nil, reason
end

-- Whether the weights of a token's experts sum to 1.
local function sums_to_one(router)
    return router.score == "topk_softmax" or router.normalize
end

-- Models with experts in some layers or all.
function STYLES.moe(shape, block, attention)
    local family, reason = STYLES.llama(shape, block, attention)
    local dense, sparse = mlps_of(shape)
    reason = reason or util.first_reason({
        { attention.qkv_bias, "attention_bias together with experts" },
        { #different(shape, window_of) > 1, "experts together with windows in some layers" },
    })
    if reason or family == "qwen3" then
        return not reason and "qwen3_moe" or nil, reason
    end
    reason = util.first_reason({
        { #dense > 0, "layers without experts among others, without use_qk_norm" },
        { not sums_to_one(sparse[1].router), "experts whose shares do not sum to 1, without use_qk_norm" },
    })
    return not reason and "mixtral" or nil, reason
end

function STYLES.latent(shape)
    local dense, sparse = mlps_of(shape)
    return deepseek.family(shape, dense, sparse[1])
end

function STYLES.gpt_oss(shape)
    local dense, sparse = mlps_of(shape)
    return gpt_oss.family(shape, dense, sparse[1])
end

local function style_of(shape, block, attention)
    if attention.kind == "mla" or attention.sinks then
        return attention.sinks and "gpt_oss" or "latent"
    end
    local gpt2 = block.norm.kind == "layernorm" and block.mlp.bias and not block.mlp.gated and not attention.rope
        and shape.positions > 0 and attention.heads == attention.kv_heads
        and attention.heads * attention.head_dim == shape.emb and not attention.qk_norm and attention.window == 0
    return gpt2 and "gpt2" or block.norm.kind == "rmsnorm" and block.norm.offset == 1 and "gemma"
        or block.norms.attention == "after" and "olmo" or #select(2, mlps_of(shape)) > 0 and "moe" or "llama"
end

local TWO_ROPES = { gemma3_text = true, olmo3 = true }

--- The family that a model is exported as. A model that fits none is refused, with the reason.
---@param shape table of mx.models.shape
---@return string
function config_write.family(shape)
    local block = shape.blocks[1]
    local family, reason
    if llama4.is_like(shape) then
        family, reason = llama4.family(shape)
    else
        reason = obstacle(shape)
    end
    if not reason and not family then
        family, reason = STYLES[style_of(shape, block, block.attention)](shape, block, block.attention)
    end
    local ropes = {} -- there may be none of far layers, or of local ones
    if not reason and block.attention.kind ~= "mla" then
        ropes[1] = rope_of(shape, TWO_ROPES[family] and false)
        ropes[#ropes + 1] = rope_of(shape, true)
    end
    for _, rope in ipairs(ropes) do
        reason = reason or rope and util.first_reason({
            { not rope.theta or rope.dims or rope.interleaved or rope.shortest,
                "RoPE of other frequencies, of a part of a head or of neighbours" },
            -- transformers 5.24.0 looks for it beside the two kinds of RoPE, not inside
            { TWO_ROPES[family] and rope.scaling and rope.scaling.truncate == false,
                "rope_truncate = false in a model that may have two kinds of RoPE" },
        })
    end
    if reason then
        util.refuse("no family of Hugging Face models has this one's features: %s", reason)
    end
    return family
end

-- ---- the content ----

-- rope_parameters for a RoPE.
local function rope_parameters(rope)
    local s = rope.scaling
    if not s then
        return { rope_type = "default", rope_theta = rope.theta }
    elseif s.kind == "linear" then
        return { rope_type = "linear", rope_theta = rope.theta, factor = s.factor }
    elseif s.kind == "llama3.1" then
        return {
            rope_type = "llama3", rope_theta = rope.theta, factor = s.factor, low_freq_factor = s.low_freq_factor,
            high_freq_factor = s.high_freq_factor, original_max_position_embeddings = s.original_length,
        }
    end
    return {
        rope_type = "yarn", rope_theta = rope.theta, factor = s.factor, beta_fast = s.beta_fast,
        beta_slow = s.beta_slow, truncate = s.truncate, original_max_position_embeddings = s.original_length,
        attention_factor = rope.factor or 1.0,
    }
end

-- Newer versions of the library read rope_parameters, older ones the other keys.
local function write_rope(values, shape, family)
    local near = rope_of(shape, true)
    local far = TWO_ROPES[family] and rope_of(shape, false) or near or rope_of(shape)
    values.rope_parameters = rope_parameters(far)
    values.rope_theta = far.theta
    values.rope_scaling = far.scaling and rope_parameters(far) or mx.io.null
    if TWO_ROPES[family] then
        near = near or far
        values.rope_parameters = { full_attention = rope_parameters(far), sliding_attention = rope_parameters(near) }
        values.rope_local_base_freq = near.theta
    end
end

local function write_windows(values, shape, family)
    local kinds, window = {}, 0
    for i = 1, shape.layers do
        local size = window_of(mx.models.block(shape, i))
        kinds[i], window = size > 0 and "sliding_attention" or "full_attention", math.max(window, size)
    end
    local latent = shape.blocks[1].attention.kind == "mla"
    if latent or family == "llama" or family == "gemma" or family == "olmo2" then
        return
    elseif family == "qwen2" or family == "qwen3" or family == "qwen3_moe" then
        values.use_sliding_window = window > 0
        values.max_window_layers = window > 0 and 0 or shape.layers
    end
    -- In these families the library makes a mask of local layers although no layer is local.
    local wants_one = family == "gemma2" or family == "gemma3_text" or family == "olmo3"
    values.sliding_window = window > 0 and window or wants_one and 4096 or mx.io.null
    if family ~= "mistral" and family ~= "mixtral" then
        values.layer_types = mx.io.array(kinds)
    end
end

local function write_gemma(values, shape, family)
    local attention = shape.blocks[1].attention
    values.hidden_activation = values.hidden_act
    if family == "gemma" then
        return
    end
    local scalar = attention.scale ^ -2
    values.query_pre_attn_scalar = math.floor(scalar + 0.5)
    if math.abs(scalar - values.query_pre_attn_scalar) > 1e-6 * scalar then
        util.refuse("no family of Hugging Face models has this one's features: query_pre_attn_scalar = %g, which is no "
            .. "whole number", scalar)
    end
    values.attn_logit_softcapping = attention.cap > 0 and attention.cap or mx.io.null
    values.final_logit_softcapping = shape.logit_cap > 0 and shape.logit_cap or mx.io.null
end

local function write_experts(values, shape, family)
    local _, sparse = mlps_of(shape)
    local moe, without = sparse[1], {}
    values.num_experts_per_tok = moe.top
    values.router_aux_loss_coef = moe.load_balance / moe.top -- the library's loss is num_experts_per_tok times ours
    if family == "mixtral" then
        values.num_local_experts = moe.experts
        return
    end
    for i = 1, shape.layers do
        without[#without + 1] = mx.models.block(shape, i).mlp.kind ~= "moe" and i - 1 or nil
    end
    values.num_experts, values.moe_intermediate_size = moe.experts, moe.width
    values.norm_topk_prob = sums_to_one(moe.router)
    values.mlp_only_layers, values.decoder_sparse_step = mx.io.array(without), 1
end

local function to_llama(shape, family)
    local block, dense, sparse = shape.blocks[1], mlps_of(shape)
    local attention, mlp = block.attention, dense[1] or sparse[1]
    local values = {
        hidden_size = shape.emb, num_attention_heads = attention.heads, num_key_value_heads = attention.kv_heads,
        head_dim = attention.head_dim, intermediate_size = mlp.width, num_hidden_layers = shape.layers,
        hidden_act = ACTIVATION_NAMES[mlp.activation], rms_norm_eps = block.norm.eps,
        max_position_embeddings = shape.max_length, initializer_range = shape.init_std > 0 and shape.init_std or 0.02,
    }
    if family == "llama" then
        values.attention_bias, values.mlp_bias = mlp.bias, mlp.bias
    end
    write_rope(values, shape, family)
    write_windows(values, shape, family)
    if attention.kind == "mla" then
        deepseek.write(values, shape, family, sparse[1])
    elseif family == "gpt_oss" then
        gpt_oss.write(values, sparse[1])
    elseif family == "llama4_text" then
        llama4.write(values, shape)
    elseif sparse[1] then
        write_experts(values, shape, family)
    end
    if family:find("^gemma") then
        write_gemma(values, shape, family)
    end
    return values
end

local function to_gpt2(shape)
    local block = shape.blocks[1]
    local name = block.mlp.activation
    return {
        n_embd = shape.emb, n_head = block.attention.heads, n_layer = shape.layers, n_positions = shape.positions,
        n_inner = block.mlp.width, layer_norm_epsilon = block.norm.eps, attn_pdrop = 0.0, embd_pdrop = shape.dropout,
        resid_pdrop = shape.dropout, initializer_range = shape.init_std > 0 and shape.init_std or 0.02,
        activation_function = name == "gelu" and "gelu_new" or name,
    }
end

--- The content of the config.json of a model.
---@param shape table of mx.models.shape
---@param family string of config_write.family
---@param dtype string "f32" or "bf16", of the weights
---@return table
function config_write.values(shape, family, dtype)
    local values = family == "gpt2" and to_gpt2(shape) or to_llama(shape, family)
    values.architectures, values.model_type = { CLASSES[family] }, family
    values.bos_token_id, values.eos_token_id = mx.io.null, mx.io.null -- unless a tokenizer sets them
    values.vocab_size, values.tie_word_embeddings = shape.vocab, shape.tied
    values.torch_dtype = mx.dtypes[dtype].long_name
    return values
end

return config_write
