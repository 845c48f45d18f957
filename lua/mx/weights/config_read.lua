--- Reads the config.json of a Hugging Face model: converts it to mxlua's keys. See init.lua.

local blocks = require "mx.models.blocks"
local deepseek = require "mx.weights.deepseek"
local gpt_oss = require "mx.weights.gpt_oss"
local llama4 = require "mx.weights.llama4"
local mx = require "mx"
local ropes = require "mx.models.rope"
local util = require "mx.util"

local config_read = {}

local ACTIVATIONS = { silu = "silu", swish = "silu", relu = "relu", gelu_pytorch_tanh = "gelu", gelu_new = "gelu" }

-- What the families with gated MLPs and RMSNorm have besides what their config.json says. block: decoder_block.
-- kv_heads, head_dim, theta, eps: the library's defaults for a file without the key; kv_heads and head_dim otherwise
-- follow from the other sizes. reaches: of attention, in turn. two_ropes: local layers have a RoPE of their own.
-- latent: attention and experts are those of deepseek.lua.
local FAMILIES = {
    llama = {},
    mistral = { kv_heads = 8, reaches = { "local" } },
    ministral = { kv_heads = 8, reaches = { "local" } },
    qwen2 = { kv_heads = 32 },
    qwen3 = { kv_heads = 32, head_dim = 128, keys = { use_qk_norm = true } },
    gemma = { block = "gemma", kv_heads = 16, head_dim = 256 },
    gemma2 = { block = "gemma2", kv_heads = 4, head_dim = 256 },
    gemma3_text = { block = "gemma3", kv_heads = 4, head_dim = 256, two_ropes = true, theta = 1e6, local_theta = 1e4 },
    olmo2 = { block = "olmo3", eps = 1e-5, reaches = { "global" } },
    olmo3 = { block = "olmo3", eps = 1e-5, two_ropes = true, theta = 5e5, local_theta = 5e5 },
    mixtral = { block = "mixtral", kv_heads = 8, eps = 1e-5, theta = 1e6, reaches = { "local" } },
    qwen3_moe = { block = "qwen3_moe", kv_heads = 4, keys = { use_qk_norm = true } },
    gpt_oss = { block = "gpt_oss", kv_heads = 8, head_dim = 64, eps = 1e-5, theta = 15e4 },
    llama4_text = { block = "llama4", kv_heads = 8, head_dim = 128, eps = 1e-5, theta = 5e5 },
    deepseek_v2 = { block = "deepseek", latent = true, reaches = { "global" } },
    deepseek_v3 = { block = "deepseek", latent = true, reaches = { "global" } },
    kimi_k2 = { block = "deepseek", latent = true, reaches = { "global" } },
}
for _, name in ipairs({ "gemma2", "gemma3_text", "olmo2", "olmo3" }) do
    FAMILIES[name].keys = { use_post_attn_norm = true, use_post_ffw_norm = true }
end
for _, name in ipairs({ "gemma3_text", "olmo2", "olmo3" }) do
    FAMILIES[name].keys.use_qk_norm = true
end

-- A value of a config.json. It must have this type; absent or null gives the default, or an error if there is none.
local function get(c, key, kind, standard)
    local value = c.values[key]
    if value == nil or value == mx.io.null then
        if standard == nil then
            util.refuse("%s has no '%s'", c.path, key)
        end
        return standard
    end
    local right = type(value) == kind or kind == "integer" and type(value) == "number" and math.tointeger(value)
    if not right then
        util.refuse("%s: %s: expected %s, got %s", c.path, key, kind == "integer" and "a whole number" or "a " .. kind,
            tostring(value))
    end
    return kind == "integer" and math.tointeger(value) or value
end

-- The same, for a key whose null means `none` although it has a default.
local function get_or_none(c, key, kind, standard, none)
    return c.values[key] == mx.io.null and none or get(c, key, kind, standard)
end

local function activation(c, name)
    return ACTIVATIONS[name] or util.refuse("%s: there is no activation '%s' here; there are %s", c.path, name,
        table.concat(util.sorted_keys(ACTIVATIONS), ", "))
end

-- ---- RoPE ----

-- What a rope_parameters of YaRN multiplies cosines and sines by.
local function yarn_attention_factor(scaling, factor)
    local one, all = get(scaling, "mscale", "number", 0), get(scaling, "mscale_all_dim", "number", 0)
    local function grown(mscale)
        return 1 + mscale * (ropes.yarn_attention_factor(factor) - 1)
    end
    local default = one ~= 0 and all ~= 0 and grown(one) / grown(all) or ropes.yarn_attention_factor(factor)
    return get(scaling, "attention_factor", "number", default)
end

-- Each rope_type but default: sets its keys.
local ROPE_KEYS = {}

function ROPE_KEYS.linear(scaling, keys)
    keys.rope_linear_scaling_factor = get(scaling, "factor", "number") + 0.0
end

function ROPE_KEYS.llama3(scaling, keys)
    keys.rope_type = "llama3.1"
    keys.llama_rope_factor = get(scaling, "factor", "number") + 0.0
    keys.llama_rope_low_freq_factor = get(scaling, "low_freq_factor", "number") + 0.0
    keys.llama_rope_high_freq_factor = get(scaling, "high_freq_factor", "number") + 0.0
    keys.llama_rope_original_length = get(scaling, "original_max_position_embeddings", "integer")
end

function ROPE_KEYS.yarn(scaling, keys, c)
    local factor = get(scaling, "factor", "number") + 0.0
    keys.rope_type, keys.rope_factor, keys.rope_interleave = "yarn", factor, false
    keys.original_max_position_embeddings = get(scaling, "original_max_position_embeddings", "integer",
        get(c, "max_position_embeddings", "integer", false) or nil)
    keys.beta_fast = get(scaling, "beta_fast", "number", 32) + 0.0
    keys.beta_slow = get(scaling, "beta_slow", "number", 1) + 0.0
    keys.rope_truncate = get(scaling, "truncate", "boolean", true)
    local found, scaled = yarn_attention_factor(scaling, factor), ropes.yarn_attention_factor(factor)
    keys.rope_attention_scaling = math.abs(found - 1) > 1e-6
    if keys.rope_attention_scaling and math.abs(found - scaled) > 1e-6 then
        util.refuse("%s: an attention_factor of %g for YaRN with factor = %g: here it is 1 or 0.1 ln(factor) + 1 = %g",
            c.path, found, factor, scaled)
    end
end

--- Sets the keys of a scaling of RoPE.
---@param keys table
---@param values? table as rope_parameters in a config.json, with the rope_type linear or yarn; nil: RoPE is not scaled
---@param path string for messages
function config_read.scale_rope(keys, values, path)
    local scaling = { path = path, values = values or {} }
    if values then
        ROPE_KEYS[values.rope_type](scaling, keys, scaling)
    end
end

-- Part of rope_parameters, which has a table for each kind of layer in families with two_ropes.
local function rope_parameters(c, family, kind)
    local all = get(c, "rope_parameters", "table", {})
    if FAMILIES[family].two_ropes then
        all = get({ path = c.path, values = all }, kind, "table", {})
    end
    return { path = c.path, values = all }
end

local function kind_of(scaling)
    return get(scaling, "rope_type", "string", get(scaling, "type", "string", "default"))
end

local function rope_keys(c, keys, family)
    local parameters = rope_parameters(c, family, "full_attention")
    local scaling = { path = c.path, values = get(c, "rope_scaling", "table", parameters.values) }
    local kind, theta = kind_of(scaling), get(c, "rope_theta", "number", FAMILIES[family].theta or 1e4)
    keys.rope_max_timescale = get(parameters, "rope_theta", "number", theta) + 0.0
    local part = get(parameters, "partial_rotary_factor", "number", get(c, "partial_rotary_factor", "number", 1.0))
    if part ~= 1 then
        util.refuse("%s: partial_rotary_factor = %g: heads of this family are rotated whole", c.path, part)
    elseif ROPE_KEYS[kind] then
        ROPE_KEYS[kind](scaling, keys, c)
    elseif kind ~= "default" and get(scaling, "factor", "number", 0) ~= 1 then
        util.refuse("%s: RoPE of the type '%s' is not computed here; there are default, %s", c.path, kind,
            table.concat(util.sorted_keys(ROPE_KEYS), ", "))
    end
end

-- The base of local layers' RoPE, where it is another one.
local function local_rope_keys(c, keys, family)
    local parameters = rope_parameters(c, family, "sliding_attention")
    local theta = get(c, "rope_local_base_freq", "number", FAMILIES[family].local_theta)
    theta = get(parameters, "rope_theta", "number", theta) + 0.0
    if kind_of(parameters) ~= "default" then
        util.refuse("%s: rope_parameters: local layers with RoPE of the type '%s': here theirs is not scaled", c.path,
            kind_of(parameters))
    end
    keys.local_rope_max_timescale = theta ~= keys.rope_max_timescale and theta or -1.0
end

-- ---- the reach of attention ----

local REACHES = { sliding_attention = "local", full_attention = "global" }

-- The reach of each layer of a config.json.
local function reaches_of(c, family, layers)
    local list, kinds = {}, get(c, "layer_types", "table", {})
    local standard = FAMILIES[family].reaches or blocks.KINDS[FAMILIES[family].block or "llama2"].layers or { "global" }
    local from = layers -- the number of global layers at the start
    if get(c, "use_sliding_window", "boolean", false) then
        from = get(c, "max_window_layers", "integer", family == "qwen3_moe" and 0 or 28)
        if family == "qwen3_moe" and from > 0 and #kinds == 0 then
            util.refuse("%s: max_window_layers = %d with use_sliding_window: some versions of transformers give all "
                .. "layers of qwen3_moe a window, others not the first %d: set 0 for all layers, or use_sliding_window "
                .. "= false", c.path, from, from)
        end
    end
    local every = get(c, "sliding_window_pattern", "integer", 0) -- which layers of Gemma 3 are global
    for i = 1, layers do
        local default = standard[(i - 1) % #standard + 1]
        if family == "qwen2" or family == "qwen3" or family == "qwen3_moe" then
            default = i > from and "local" or "global"
        elseif every > 0 then
            default = i % every == 0 and "global" or "local"
        end
        list[i] = default
        if #kinds > 0 then
            list[i] = REACHES[kinds[i]] or util.refuse("%s: layer_types: expected %d of full_attention and "
                .. "sliding_attention, got '%s'", c.path, layers, tostring(kinds[i]))
        end
    end
    return list
end

-- The shortest list that gives these when it is repeated.
local function in_turn(list)
    for period = 1, #list do
        local same = true
        for i = period + 1, #list do
            same = same and list[i] == list[i - period]
        end
        if same then
            return table.move(list, 1, period, 1, {})
        end
    end
    return list
end

--- Sets the keys for the reach of attention of each layer, "local" or "global".
---@param keys table
---@param reaches string[] of all layers
---@param window integer of local layers; 0: none of them has one
function config_read.set_reaches(keys, reaches, window)
    local list, standard = in_turn(reaches), blocks.KINDS[keys.decoder_block].layers
    local as_block = standard ~= nil
    for i, reach in ipairs(standard and reaches or {}) do
        as_block = as_block and reach == standard[(i - 1) % #standard + 1]
    end
    local has_local = util.contains(reaches, "local") and window > 0
    keys.sliding_window_size = has_local and window or 0
    if standard then
        keys.layer_types = not has_local and { "global" } or as_block and {} or list
    elseif #list == 1 then
        keys.attention_type = has_local and "local_sliding" or "global"
    else
        keys.layer_types = has_local and list or {}
    end
end

-- ---- families ----

-- Sets the keys that say which linear layers have a bias.
local function bias_keys(c, family, keys)
    local attention, mlp = get(c, "attention_bias", "boolean", false), get(c, "mlp_bias", "boolean", false)
    if family == "llama" and attention ~= mlp then
        util.refuse("%s: attention_bias = %s and mlp_bias = %s: here all linear layers have a bias or none", c.path,
            attention, mlp)
    elseif family ~= "llama" and family ~= "qwen2" and family ~= "gpt_oss" and attention then
        util.refuse("%s: attention_bias = true: that also means a bias of the output projection, which is not "
            .. "computed for %s", c.path, family)
    end
    keys.use_bias = family == "llama" and attention
    keys.attention_bias = family == "qwen2"
end

local function gemma_keys(c, family, keys)
    local layers, each = keys.base_num_decoder_layers, blocks.KINDS[keys.decoder_block].layers_each or 1
    if not keys.logits_via_embedding then
        util.refuse("%s: tie_word_embeddings = false is not computed for %s", c.path, family)
    elseif get(c, "use_bidirectional_attention", "boolean", false) then
        util.refuse("%s: use_bidirectional_attention = true is not computed here", c.path)
    elseif layers % each ~= 0 then
        util.refuse("%s: num_hidden_layers = %d: layers of %s come in pairs here", c.path, layers, family)
    end
    keys.base_num_decoder_layers, keys.normalize_embedding_logits = layers // each, true
    if family ~= "gemma" then
        local scalar = get(c, "query_pre_attn_scalar", "number", 256) + 0.0
        keys.query_pre_attn_scalar = scalar ~= keys.head_dim and scalar or 0.0
        local caps = family == "gemma2"
        keys.attn_logits_soft_cap = get_or_none(c, "attn_logit_softcapping", "number", caps and 50 or 0, 0) + 0.0
        keys.final_logits_soft_cap = get_or_none(c, "final_logit_softcapping", "number", caps and 30 or 0, 0) + 0.0
    end
end

-- Whether each layer of a config.json has experts.
local function layers_with_experts(c, layers)
    local step, has = get(c, "decoder_sparse_step", "integer", 1), {}
    for i = 1, layers do
        has[i] = step > 0 and i % step == 0
    end
    for _, layer in ipairs(get(c, "mlp_only_layers", "table", {})) do
        has[(math.tointeger(layer) or layers) + 1] = false
    end
    return has
end

-- Whether experts in every `step`-th layer after the first `dense` ones are these.
local function is_pattern(has, dense, step)
    for i, there in ipairs(has) do
        if there ~= (i > dense and i % step == 0) then
            return false
        end
    end
    return true
end

-- Sets the keys that say which layers have experts.
local function places_of_experts(c, keys)
    local layers, dense = keys.base_num_decoder_layers, 0
    local has = layers_with_experts(c, layers)
    while dense < layers and not has[dense + 1] do
        dense = dense + 1
    end
    for step = 1, dense < layers and layers or 0 do
        for _, first in ipairs({ 0, dense }) do
            if is_pattern(has, first, step) then
                keys.first_num_dense_layers, keys.interleave_moe_layer_step = first, step
                return
            end
        end
    end
    util.refuse("%s: decoder_sparse_step and mlp_only_layers: here the first layers have no experts, or every n-th "
        .. "layer has some, or both", c.path)
end

-- Sets the keys of experts.
local function expert_keys(c, family, keys)
    local mixtral = family == "mixtral"
    -- Versions of the library differ in the name.
    keys.num_experts = get(c, "num_local_experts", "integer", get(c, "num_experts", "integer", mixtral and 8 or 128))
    keys.num_experts_per_tok = get(c, "num_experts_per_tok", "integer", mixtral and 2 or 8)
    keys.base_moe_mlp_dim = mixtral and keys.base_mlp_dim or get(c, "moe_intermediate_size", "integer", 768)
    if not mixtral then
        keys.norm_topk_prob = get(c, "norm_topk_prob", "boolean", false)
        keys.routed_score_func = keys.norm_topk_prob and "" or "softmax"
        places_of_experts(c, keys)
    end
    if keys.first_num_dense_layers == 0 and keys.interleave_moe_layer_step == 1 then
        keys.base_mlp_dim = keys.base_moe_mlp_dim -- no layer has the other width
    end
end

local function from_llama(c, family)
    local emb, heads = get(c, "hidden_size", "integer"), get(c, "num_attention_heads", "integer")
    local keys, kind, gemma = config_read.standard(), FAMILIES[family], family:find("^gemma") ~= nil
    for key, value in pairs(kind.keys or {}) do
        keys[key] = value
    end
    keys.decoder_block = kind.block or keys.decoder_block
    keys.base_emb_dim, keys.base_num_query_heads = emb, heads
    keys.base_num_kv_heads = get_or_none(c, "num_key_value_heads", "integer", kind.kv_heads or heads, heads)
    keys.head_dim = get(c, "head_dim", "integer", kind.head_dim or emb // math.max(heads, 1))
    keys.base_mlp_dim = get(c, "intermediate_size", "integer")
    local layers = get(c, "num_hidden_layers", "integer")
    keys.base_num_decoder_layers = layers
    keys.vocab_size = get(c, "vocab_size", "integer")
    local act = get(c, "hidden_act", "string", gemma and "gelu" or "silu")
    act = get(c, "hidden_activation", "string", gemma and act == "gelu" and "gelu_pytorch_tanh" or act)
    keys.mlp_activations = { activation(c, act), "linear" }
    keys.normalization_layer_epsilon = get(c, "rms_norm_eps", "number", kind.eps or 1e-6) + 0.0
    bias_keys(c, family, keys)
    if kind.block == "mixtral" or kind.block == "qwen3_moe" then
        expert_keys(c, family, keys)
    end
    rope_keys(c, keys, family)
    if family == "gpt_oss" then
        gpt_oss.read(c, keys, get)
    elseif kind.latent or kind.block == "llama4" then
        if kind.latent then
            deepseek.read(c, family, keys, get)
        else
            llama4.read(c, keys, get)
        end
        config_read.set_length(keys, get(c, "max_position_embeddings", "integer", 0))
        keys.logits_via_embedding = get(c, "tie_word_embeddings", "boolean", false)
        return keys
    end
    local window = family == "llama" and 0 or get(c, "sliding_window", "integer", 0)
    config_read.set_reaches(keys, reaches_of(c, family, layers), window)
    if kind.two_ropes and keys.sliding_window_size > 0 then
        local_rope_keys(c, keys, family)
    end
    keys.logits_via_embedding = get(c, "tie_word_embeddings", "boolean", gemma)
    if gemma then
        gemma_keys(c, family, keys)
    end
    config_read.set_length(keys, get(c, "max_position_embeddings", "integer", 0))
    return keys
end

local function from_gpt2(c)
    local keys, emb = config_read.gpt2_keys(), get(c, "n_embd", "integer")
    local heads = get(c, "n_head", "integer")
    if not get(c, "scale_attn_weights", "boolean", true) or get(c, "scale_attn_by_inverse_layer_idx", "boolean", false)
    then
        util.refuse("%s: attention is scaled by 1 / sqrt(head_dim) here, in every layer alike", c.path)
    end
    keys.base_emb_dim, keys.base_num_query_heads, keys.base_num_kv_heads = emb, heads, heads
    keys.head_dim, keys.base_num_decoder_layers = emb // math.max(heads, 1), get(c, "n_layer", "integer")
    keys.base_mlp_dim, keys.vocab_size = get(c, "n_inner", "integer", 4 * emb), get(c, "vocab_size", "integer")
    keys.mlp_activations = { activation(c, get(c, "activation_function", "string", "gelu_new")) }
    keys.normalization_layer_epsilon = get(c, "layer_norm_epsilon", "number", 1e-5) + 0.0
    keys.logits_via_embedding = get(c, "tie_word_embeddings", "boolean", true)
    config_read.set_length(keys, get(c, "n_positions", "integer", 1024))
    return keys
end

--- Every key that describes a model, set for a Llama block; the caller sets the sizes.
---@return table<string, any>
function config_read.standard()
    return {
        global_parameter_scale = 1, decoder_block = "llama2", parallel_block = false, use_post_attn_norm = false,
        use_post_ffw_norm = false, query_pre_attn_scalar = 0.0, local_rope_max_timescale = -1.0, layer_types = {},
        normalization_layer = "rmsnorm", use_bias = false, attention_bias = false, use_qk_norm = false,
        use_rope = true, rope_type = "default", rope_min_timescale = 1.0, rope_linear_scaling_factor = 1.0,
        partial_rotary_factor = 1.0,
        trainable_position_size = -1, relative_bias_buckets = 0, attention_type = "global", sliding_window_size = 0,
        fold_attention_scale = false, attn_logits_soft_cap = 0.0, final_logits_soft_cap = 0.0,
        logits_via_embedding = false, normalize_embedding_logits = false, num_experts = 1, num_experts_per_tok = 1,
        base_moe_mlp_dim = -1, norm_topk_prob = false, routed_score_func = "", routed_scaling_factor = 1.0,
        routed_bias = false, n_routing_groups = -1, topk_routing_group = -1, routing_group_score = "sum_of_two",
        shared_experts = 0,
        first_num_dense_layers = 0, interleave_moe_layer_step = 1, float32_gate_logits = false,
        use_random_routing = false, capacity_factor = -1.0, mtp_num_layers = 0,
        attention_sink = false, mlp_bias = false, mlp_activations_limit = -1.0, chunk_attn_window_size = 0,
        nope_layer_interval = -1, temperature_tuning = false,
    }
end

--- The same for a GPT-2 block.
---@return table<string, any>
function config_read.gpt2_keys()
    local keys = config_read.standard()
    keys.normalization_layer, keys.use_bias, keys.use_rope, keys.logits_via_embedding = "layernorm", true, false, true
    return keys
end

--- Sets the context length of a model; if it is below the default of max_target_length, sets that too.
---@param keys table
---@param length integer
function config_read.set_length(keys, length)
    if keys.use_rope then
        keys.max_position_embeddings = length
    else
        keys.trainable_position_size = length
    end
    keys.max_target_length = length > 0 and length < 2048 and length or nil
end

--- The sizes of the blocks of a matrix that have a factor each, of files with weights of one byte; nil if there are
--- none. Other kinds of quantised weights are refused.
---@param values table the decoded file
---@param path string for messages
---@return integer[]?
function config_read.scale_block(values, path)
    local how = get({ values = values, path = path }, "quantization_config", "table", false)
    if not how then
        return nil
    end
    local c = { values = how, path = path .. ": quantization_config" }
    local method = get(c, "quant_method", "string")
    if method == "mxfp4" then -- of GPT-OSS: the scales are tensors of their own
        return nil
    elseif method ~= "fp8" then
        util.refuse("%s: quant_method = %s: only fp8 with weight_block_size is read, and mxfp4 of gpt_oss; convert the "
            .. "weights to bfloat16",
            c.path, method)
    end
    local block = get(c, "weight_block_size", "table")
    local height, width = math.tointeger(block[1]), math.tointeger(block[2])
    if #block ~= 2 or not height or not width or height < 1 or width < 1 then
        util.refuse("%s: weight_block_size: expected two numbers of rows and columns", c.path)
    end
    return { height, width }
end

--- Converts a config.json to mxlua's keys.
---@param values any the decoded file
---@param path string for messages
---@return table<string, any> keys, string family a key of families.NAMES
function config_read.read(values, path)
    local c = { values = type(values) == "table" and values or util.refuse("%s: expected a map", path), path = path }
    c.values = llama4.text_config(c.values)
    local family = get(c, "model_type", "string")
    if family ~= "gpt2" and not FAMILIES[family] then
        util.refuse("%s: the model_type '%s' is none of those that are read: gpt2, %s", path, family,
            table.concat(util.sorted_keys(FAMILIES), ", "))
    end
    return family == "gpt2" and from_gpt2(c) or from_llama(c, family), family
end

return config_read
