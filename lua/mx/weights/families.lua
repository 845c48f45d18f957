--- The supported model families of other programs: converts their config.json to mxlua's keys and back, and maps the
--- names of their tensors. See init.lua.
--
-- mxlua's weights are (inputs, outputs). Those of PyTorch's Linear are (outputs, inputs); GPT-2's are (inputs,
-- outputs).

local mx = require "mx"
local ropes = require "mx.models.rope"
local util = require "mx.util"

local families = {}

local ACTIVATIONS = { silu = "silu", swish = "silu", relu = "relu", gelu_pytorch_tanh = "gelu", gelu_new = "gelu" }
local ACTIVATION_NAMES = { silu = "silu", relu = "relu", gelu = "gelu_pytorch_tanh" }

-- ---- names: mxlua's, without ".weight" and ".bias" -> the family's; a "T" behind a name: transposed ----

local LLAMA = {
    prefix = "model.", head = "lm_head",
    whole = { embedding = "model.embed_tokens", norm = "model.norm", unembedding = "lm_head T" },
    layer = "model.layers.%d.",
    short = {
        norm = "input_layernorm", query = "self_attn.q_proj T", key = "self_attn.k_proj T",
        value = "self_attn.v_proj T", out = "self_attn.o_proj T", query_norm = "self_attn.q_norm",
        key_norm = "self_attn.k_norm", mlp_norm = "post_attention_layernorm", wi_0 = "mlp.gate_proj T",
        wi_1 = "mlp.up_proj T", wo = "mlp.down_proj T",
    },
}

local GPT2 = {
    prefix = "transformer.", head = "lm_head",
    whole = {
        embedding = "transformer.wte", position = "transformer.wpe", norm = "transformer.ln_f",
        unembedding = "lm_head T",
    },
    layer = "transformer.h.%d.",
    short = {
        norm = "ln_1", query = "attn.c_attn", key = "attn.c_attn", value = "attn.c_attn", out = "attn.c_proj",
        mlp_norm = "ln_2", wi = "mlp.c_fc", wo = "mlp.c_proj",
    },
}

local GGUF = {
    head = "output",
    whole = {
        embedding = "token_embd", position = "position_embd", norm = "output_norm", unembedding = "output T",
    },
    layer = "blk.%d.",
    short = {
        norm = "attn_norm", query = "attn_q T", key = "attn_k T", value = "attn_v T", out = "attn_output T",
        query_norm = "attn_q_norm", key_norm = "attn_k_norm", mlp_norm = "ffn_norm", wi = "ffn_up T",
        wi_0 = "ffn_gate T", wi_1 = "ffn_up T", wo = "ffn_down T",
    },
}

-- In GGUF too, GPT-2 stores queries, keys and values in one matrix.
local GGUF_GPT2 = { head = GGUF.head, whole = GGUF.whole, layer = GGUF.layer, short = {} }
for short, name in pairs(GGUF.short) do
    GGUF_GPT2.short[short] = name
end
for _, short in ipairs({ "query", "key", "value" }) do
    GGUF_GPT2.short[short] = "attn_qkv T"
end

families.NAMES = {
    llama = LLAMA, mistral = LLAMA, qwen2 = LLAMA, qwen3 = LLAMA, gpt2 = GPT2,
    ["gguf.llama"] = GGUF, ["gguf.qwen2"] = GGUF, ["gguf.qwen3"] = GGUF, ["gguf.gpt2"] = GGUF_GPT2,
}

-- Tensors that follow from the config and need not be read.
local IGNORED = { "%.rotary_emb%.inv_freq$", "%.attn%.bias$", "%.attn%.masked_bias$", "^rope_freqs%.weight$" }

--- Whether a tensor of this name can be ignored.
---@param names table of families.NAMES
---@param name string
---@param tied boolean
---@return boolean
function families.ignored(names, name, tied)
    for _, pattern in ipairs(IGNORED) do
        if name:find(pattern) then
            return true
        end
    end
    return tied and name == names.head .. ".weight"
end

-- The family's name of a parameter, and whether the stored tensor is transposed.
local function name_of(names, parameter)
    local layer, rest = parameter:match("^layer(%d+)%.(.*)$")
    local base, kind = (rest or parameter):match("^(.*)%.(%a+)$")
    local theirs = (layer and names.short or names.whole)[base]
    if not theirs then
        return nil
    end
    local name, transposed = theirs:match("^(%S+) ?(T?)$")
    return (layer and names.layer:format(tonumber(layer) - 1) or "") .. name .. "." .. kind, transposed == "T"
end

--- The tensors of a model as the family stores them, in the order of the forward pass. Each entry has its name, its
--- sizes, the parameters that it consists of (concatenated along dimension `dim`, with `lengths` each), and whether it
--- is transposed. `heads` is set if its rows are in GGUF's order for RoPE, and is the number of heads.
---@param kind string a key of families.NAMES
---@param shape table of mx.models.shape
---@return table[]
function families.layout(kind, shape)
    local names, list, found = families.NAMES[kind], {}, {}
    for _, p in ipairs(mx.models.parameters(shape)) do
        local name, transposed = name_of(names, p.name)
        if not name then
            util.refuse("models of the family %s have no parameter '%s'", kind, p.name)
        end
        local matrix = #p.sizes == 2
        local sizes = transposed and matrix and { p.sizes[2], p.sizes[1] } or table.move(p.sizes, 1, #p.sizes, 1, {})
        local entry = found[name]
        if entry then
            entry.parts[#entry.parts + 1] = p.name
            entry.sizes[entry.dim] = entry.sizes[entry.dim] + sizes[entry.dim]
            entry.lengths[#entry.parts] = sizes[entry.dim]
        else
            entry = { name = name, sizes = sizes, parts = { p.name }, transposed = transposed and matrix }
            entry.dim = matrix and not transposed and 2 or 1 -- of the outputs
            entry.lengths = { sizes[entry.dim] }
            local layer, short = p.name:match("^layer(%d+)%.(%a+)%.")
            if kind == "gguf.llama" and (short == "query" or short == "key") then
                local attention = mx.models.block(shape, tonumber(layer)).attention
                entry.heads = short == "query" and attention.heads or attention.kv_heads
            end
            found[name], list[#list + 1] = entry, entry
        end
    end
    return list
end

-- ---- config.json -> mxlua's keys ----

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

local function activation(c, key, standard)
    local name = get(c, key, "string", standard)
    return ACTIVATIONS[name] or util.refuse("%s: %s: no activation '%s'; there are %s", c.path, key, name,
        table.concat(util.sorted_keys(ACTIVATIONS), ", "))
end

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
        get(c, "max_position_embeddings", "integer"))
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

local function rope_keys(c, keys)
    local parameters = { path = c.path, values = get(c, "rope_parameters", "table", {}) }
    local scaling = { path = c.path, values = get(c, "rope_scaling", "table", parameters.values) }
    local kind = get(scaling, "rope_type", "string", get(scaling, "type", "string", "default"))
    keys.rope_max_timescale = get(parameters, "rope_theta", "number", get(c, "rope_theta", "number", 10000.0)) + 0.0
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

-- The sliding window of all layers, 0 for none. A model in which only some layers have one is refused.
local function window_of(c, family)
    local window, layers = get(c, "sliding_window", "integer", 0), get(c, "num_hidden_layers", "integer")
    if family == "llama" then
        return 0
    elseif family == "mistral" then
        return window
    end
    local kinds, sliding = get(c, "layer_types", "table", {}), 0
    for _, kind in ipairs(kinds) do
        sliding = sliding + (kind == "sliding_attention" and 1 or 0)
    end
    if #kinds == 0 and get(c, "use_sliding_window", "boolean", false) then
        sliding = math.max(layers - get(c, "max_window_layers", "integer", 28), 0)
    end
    if sliding > 0 and sliding < layers then
        util.refuse("%s: %d of %d layers have a sliding window; here all have it or none", c.path, sliding, layers)
    end
    return sliding > 0 and window or 0
end

local KV_HEADS = { mistral = 8, qwen2 = 32, qwen3 = 32 } -- the families' defaults, if config.json has none

-- Sets the keys that say which linear layers have a bias.
local function bias_keys(c, family, keys)
    local attention, mlp = get(c, "attention_bias", "boolean", false), get(c, "mlp_bias", "boolean", false)
    if family == "llama" and attention ~= mlp then
        util.refuse("%s: attention_bias = %s and mlp_bias = %s: here all linear layers have a bias or none", c.path,
            attention, mlp)
    elseif family ~= "llama" and family ~= "qwen2" and attention then
        util.refuse("%s: attention_bias = true: that also means a bias of the output projection, which is not "
            .. "computed for %s", c.path, family)
    end
    keys.use_bias = family == "llama" and attention
    keys.attention_bias = family == "qwen2"
end

local function from_llama(c, family)
    local emb, heads = get(c, "hidden_size", "integer"), get(c, "num_attention_heads", "integer")
    local keys = families.standard()
    keys.base_emb_dim, keys.base_num_query_heads = emb, heads
    keys.base_num_kv_heads = get(c, "num_key_value_heads", "integer", KV_HEADS[family] or heads)
    keys.head_dim = get(c, "head_dim", "integer", family == "qwen3" and 128 or emb // math.max(heads, 1))
    keys.base_mlp_dim = get(c, "intermediate_size", "integer")
    keys.base_num_decoder_layers = get(c, "num_hidden_layers", "integer")
    keys.vocab_size = get(c, "vocab_size", "integer")
    keys.mlp_activations = { activation(c, "hidden_act", "silu"), "linear" }
    keys.normalization_layer_epsilon = get(c, "rms_norm_eps", "number", 1e-6) + 0.0
    keys.use_qk_norm = family == "qwen3"
    bias_keys(c, family, keys)
    rope_keys(c, keys)
    families.set_window(keys, window_of(c, family))
    keys.logits_via_embedding = get(c, "tie_word_embeddings", "boolean", false)
    families.set_length(keys, get(c, "max_position_embeddings", "integer", 0))
    return keys
end

local function from_gpt2(c)
    local keys, emb = families.gpt2_keys(), get(c, "n_embd", "integer")
    local heads = get(c, "n_head", "integer")
    if not get(c, "scale_attn_weights", "boolean", true) or get(c, "scale_attn_by_inverse_layer_idx", "boolean", false)
    then
        util.refuse("%s: attention is scaled by 1 / sqrt(head_dim) here, in every layer alike", c.path)
    end
    keys.base_emb_dim, keys.base_num_query_heads, keys.base_num_kv_heads = emb, heads, heads
    keys.head_dim, keys.base_num_decoder_layers = emb // math.max(heads, 1), get(c, "n_layer", "integer")
    keys.base_mlp_dim, keys.vocab_size = get(c, "n_inner", "integer", 4 * emb), get(c, "vocab_size", "integer")
    keys.mlp_activations = { activation(c, "activation_function", "gelu_new") }
    keys.normalization_layer_epsilon = get(c, "layer_norm_epsilon", "number", 1e-5) + 0.0
    keys.logits_via_embedding = get(c, "tie_word_embeddings", "boolean", true)
    families.set_length(keys, get(c, "n_positions", "integer", 1024))
    return keys
end

--- Every key that describes a model, set for a Llama block; the caller sets the sizes.
---@return table<string, any>
function families.standard()
    return {
        global_parameter_scale = 1, decoder_block = "llama2", parallel_block = false, use_post_attn_norm = false,
        use_post_ffw_norm = false, query_pre_attn_scalar = 0.0, local_rope_max_timescale = -1.0,
        normalization_layer = "rmsnorm", use_bias = false, attention_bias = false, use_qk_norm = false,
        use_rope = true, rope_type = "default", rope_min_timescale = 1.0, rope_linear_scaling_factor = 1.0,
        partial_rotary_factor = 1.0,
        trainable_position_size = -1, relative_bias_buckets = 0, attention_type = "global", sliding_window_size = 0,
        fold_attention_scale = false, attn_logits_soft_cap = 0.0, final_logits_soft_cap = 0.0,
        logits_via_embedding = false, normalize_embedding_logits = false,
    }
end

--- The same for a GPT-2 block.
---@return table<string, any>
function families.gpt2_keys()
    local keys = families.standard()
    keys.normalization_layer, keys.use_bias, keys.use_rope, keys.logits_via_embedding = "layernorm", true, false, true
    return keys
end

--- Sets a sliding window; 0: none.
---@param keys table
---@param window integer
function families.set_window(keys, window)
    keys.attention_type, keys.sliding_window_size = window > 0 and "local_sliding" or "global", window
end

--- Sets the context length of a model; if it is below the default of max_target_length, sets that too.
---@param keys table
---@param length integer
function families.set_length(keys, length)
    if keys.use_rope then
        keys.max_position_embeddings = length
    else
        keys.trainable_position_size = length
    end
    keys.max_target_length = length > 0 and length < 2048 and length or nil
end

--- Converts a config.json to mxlua's keys.
---@param values any the decoded file
---@param path string for messages
---@return table<string, any> keys, string family
function families.read(values, path)
    local c = { values = type(values) == "table" and values or util.refuse("%s: expected a map", path), path = path }
    local family = get(c, "model_type", "string")
    if not families.NAMES[family] then
        util.refuse("%s: the model_type '%s' is none of those that are read: gpt2, llama, mistral, qwen2, qwen3", path,
            family)
    end
    return family == "gpt2" and from_gpt2(c) or from_llama(c, family), family
end

-- ---- mxlua's shape -> config.json ----

-- The reason why a model fits none of the families; nil if it fits one.
local function obstacle(shape)
    local block = shape.blocks[1]
    local attention = block.attention
    for _, case in ipairs({
        { #mx.models.kinds(shape) > 1, "its layers differ" },
        { block.parallel, "parallel_block = true" }, { attention.buckets > 0, "relative_bias_buckets" },
        { not attention.causal, "attention_type = full" }, { attention.cap > 0, "attn_logits_soft_cap" },
        { shape.logit_cap > 0, "final_logits_soft_cap" }, { shape.logit_scale ~= 1, "normalize_embedding_logits" },
        { attention.scale ~= attention.head_dim ^ -0.5, "fold_attention_scale = true or query_pre_attn_scalar" },
        { block.norm.offset ~= 0, "norms that scale by 1 + their weights" },
        { block.norms.attention ~= "before" or block.norms.mlp ~= "before", "norms after attention or MLP" },
        { attention.qk_norm and attention.qk_norm.whole, "a norm over all heads of queries and keys" },
    }) do
        if case[1] then
            return case[2]
        end
    end
end

--- The family that a model is exported as. A model that fits none is refused, with the reason.
---@param shape table of mx.models.shape
---@return string
function families.of(shape)
    local reason, block = obstacle(shape), shape.blocks[1]
    local attention, mlp, norm = block.attention, block.mlp, block.norm.kind
    local window, bias = attention.window, mlp.bias -- bias of all linear layers; attention may have one alone
    local gpt2 = norm == "layernorm" and bias and not mlp.gated and not attention.rope and shape.positions > 0
        and attention.heads == attention.kv_heads and attention.heads * attention.head_dim == shape.emb
        and not attention.qk_norm and window == 0
    local rope = attention.rope or {}
    local plain_rope = rope.theta and not (rope.dims or rope.interleaved or rope.shortest)
    local llama = norm == "rmsnorm" and mlp.gated and plain_rope and shape.positions == 0
    if not reason and gpt2 then
        return "gpt2"
    elseif reason or not llama then
        util.refuse("no family of Hugging Face models has this one's features: %s", reason or "its norms, positions, "
            .. "MLP and biases are neither those of Llama, Mistral, Qwen2 or Qwen3 nor those of GPT-2")
    end
    local features = {}
    features[#features + 1] = attention.qk_norm and "qwen3" or nil
    features[#features + 1] = attention.qkv_bias and not bias and "qwen2" or nil
    features[#features + 1] = bias and "llama" or nil
    if #features > 1 then
        util.refuse("no family of Hugging Face models has use_qk_norm together with biases")
    elseif bias and window > 0 then
        util.refuse("no family of Hugging Face models has use_bias together with a sliding window")
    end
    return features[1] or window > 0 and "mistral" or "llama"
end

local CLASSES = {
    llama = "LlamaForCausalLM", mistral = "MistralForCausalLM", qwen2 = "Qwen2ForCausalLM", qwen3 = "Qwen3ForCausalLM",
    gpt2 = "GPT2LMHeadModel",
}

-- rope_parameters of config.json for a kind of scaling.
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

local function write_rope(values, rope)
    values.rope_parameters = rope_parameters(rope)
    -- Older versions of the library read it from here.
    values.rope_theta = rope.theta
    values.rope_scaling = rope.scaling and rope_parameters(rope) or mx.io.null
end

local function write_window(values, window, layers, family)
    if family == "mistral" then
        values.sliding_window = window
    elseif family ~= "llama" then
        values.use_sliding_window = window > 0
        values.sliding_window = window > 0 and window or mx.io.null
        values.max_window_layers = window > 0 and 0 or layers
    end
end

local function to_llama(shape, family)
    local block = shape.blocks[1]
    local attention, mlp = block.attention, block.mlp
    local values = {
        hidden_size = shape.emb, num_attention_heads = attention.heads, num_key_value_heads = attention.kv_heads,
        head_dim = attention.head_dim, intermediate_size = mlp.width, num_hidden_layers = shape.layers,
        hidden_act = ACTIVATION_NAMES[mlp.activation], rms_norm_eps = block.norm.eps,
        max_position_embeddings = shape.max_length, initializer_range = shape.init_std > 0 and shape.init_std or 0.02,
    }
    if family == "llama" then
        values.attention_bias, values.mlp_bias = mlp.bias, mlp.bias
    end
    write_rope(values, attention.rope)
    write_window(values, attention.window, shape.layers, family)
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
---@param family string of families.of
---@param dtype string "f32" or "bf16", of the weights
---@return table
function families.write(shape, family, dtype)
    local values = family == "gpt2" and to_gpt2(shape) or to_llama(shape, family)
    values.architectures, values.model_type = { CLASSES[family] }, family
    values.bos_token_id, values.eos_token_id = mx.io.null, mx.io.null -- unless a tokenizer sets them
    values.vocab_size, values.tie_word_embeddings = shape.vocab, shape.tied
    values.torch_dtype = mx.dtypes[dtype].long_name
    return values
end

return families
