--- The blocks that the config key decoder_block can name, as data: what their layers have.
--
-- `keys` are values of config keys that hold unless the model's file, the config file or the command line sets the key.
-- `layers` lists the reach of attention in the layers in turn: "local" with the sliding window, "global" without. With
-- `chunks`, layers reach a "chunk", and every nope_layer_interval-th one all tokens, without RoPE ("nope").
-- `layers_each` is how many layers base_num_decoder_layers counts as one. `norm_offset` is added to norm weights.
-- `norm_before = false` leaves out the norms before attention and MLP. `qk_norm_whole` norms queries and keys over all
-- heads together. `local_rope_unscaled`: rope_linear_scaling_factor and rope_type concern global layers only.
-- `out_bias`: attention_bias also gives the last product of attention a bias. `router_bias`: routed_bias is a trained
-- bias of the logits, instead of one for the choice alone. `activation`: of gated MLPs with mlp_activations [sigmoid,
-- linear]. `input_scaled`: the weights of a token's experts, sigmoids of their logits, multiply what the experts get.
-- `norm_after_rope`: use_qk_norm norms the rotated queries and keys, without scales.

local blocks = {}

local GEMMA = { "local", "local", "local", "local", "local", "global" }
local OLMO = { "local", "local", "local", "global" }

local PLAIN = {} -- the keys of the config say everything

blocks.KINDS = {
    default = { keys = { parallel_block = true } },
    llama2 = PLAIN, mistral = PLAIN, qwen2 = PLAIN, qwen3 = PLAIN, mixtral = PLAIN, qwen3_moe = PLAIN,
    envy = PLAIN,
    deepseek = { keys = { attention_type = "mla" } },
    gpt3 = { keys = { normalization_layer = "layernorm", use_bias = true, use_rope = false }, norm_offset = 1 },
    llama4 = { chunks = true, input_scaled = true, norm_after_rope = true },
    gemma = { norm_offset = 1 },
    gemma2 = { layers = { "local", "global" }, layers_each = 2, norm_offset = 1 },
    gemma3 = { layers = GEMMA, keys = { use_qk_norm = true }, norm_offset = 1, local_rope_unscaled = true },
    gpt_oss = {
        layers = { "local", "global" }, out_bias = true, router_bias = true, activation = "gpt_oss",
        keys = {
            attention_bias = true, attention_sink = true, mlp_activations = { "sigmoid", "linear" },
            mlp_activations_limit = 7.0, mlp_bias = true, routed_bias = true, sliding_window_size = 128,
        },
    },
    olmo3 = {
        layers = OLMO, keys = { use_post_attn_norm = true, use_post_ffw_norm = true }, norm_before = false,
        qk_norm_whole = true, local_rope_unscaled = true,
    },
}

local REACH_OF_TYPE = { local_sliding = "local", chunk = "chunk" }

-- Every n-th layer of those that reach a chunk is without RoPE.
local function chunks(n)
    local list = {}
    for i = 1, math.max(n, 1) do
        list[i] = i == n and "nope" or "chunk"
    end
    return list
end

--- The reach of attention in the layers of a config in turn, "local", "global", "chunk" or "nope".
---@param c table
---@return string[]
function blocks.reaches(c)
    if #c.layer_types > 0 then
        return c.layer_types
    end
    local kind = blocks.KINDS[c.decoder_block]
    if kind.chunks then
        return chunks(c.nope_layer_interval)
    end
    return kind.layers or { REACH_OF_TYPE[c.attention_type] or "global" }
end

--- MaxText's other blocks, and what they need that layers here cannot have.
blocks.MISSING = {
    deepseek4 = "compressed attention and several residual streams",
    gemma4 = "heads that differ between local and global layers",
    gemma4_small = "embeddings for each layer, and keys and values shared between layers",
    qwen3_5 = "the gated delta rule",
    qwen3_custom_moe = "experts of another width than emb",
    qwen3_next = "the gated delta rule",
    simple = "layers without attention",
    simple_mlp = "layers without attention",
}

return blocks
