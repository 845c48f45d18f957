-- Published weights and the model files of the same name say the same: what a config.json says of a model, in the form
-- in which it was published, against configs/models.

local lu = require "luaunit"
local mx = require "mx"
local config_read = require "mx.weights.config_read"

TestPublishedConfigs = {}

-- The sizes of a config.json: width, MLP, layers, heads, kv heads, vocabulary.
local function sized(values, E, M, layers, H, K, V)
    values.hidden_size, values.intermediate_size, values.num_hidden_layers = E, M, layers
    values.num_attention_heads, values.num_key_value_heads, values.vocab_size = H, K, V
    return values
end

-- Gemma's vocabulary has 256,000 entries in config.json, and 128 rows of padding in MaxText's files.
local CONFIGS = {
    ["llama2-7b"] = sized({ model_type = "llama", rms_norm_eps = 1e-5 }, 4096, 11008, 32, 32, 32, 32000),
    ["llama3.1-8b"] = sized({
        model_type = "llama", rms_norm_eps = 1e-5, rope_theta = 500000.0, rope_scaling = {
            factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0, original_max_position_embeddings = 8192,
            rope_type = "llama3",
        },
    }, 4096, 14336, 32, 32, 8, 128256),
    ["mistral-7b"] = sized({
        model_type = "mistral", rms_norm_eps = 1e-5, rope_theta = 1000000.0, sliding_window = mx.io.null,
    }, 4096, 14336, 32, 32, 8, 32000),
    ["qwen2.5-1.5b"] = sized({
        model_type = "qwen2", rope_theta = 1000000.0, sliding_window = 131072, use_sliding_window = false,
        max_window_layers = 28, tie_word_embeddings = true,
    }, 1536, 8960, 28, 12, 2, 151936),
    ["qwen3-4b"] = sized({
        model_type = "qwen3", rope_theta = 1000000, head_dim = 128, sliding_window = mx.io.null,
        use_sliding_window = false, max_window_layers = 36, tie_word_embeddings = true, attention_bias = false,
    }, 2560, 9728, 36, 32, 8, 151936),
    ["mixtral-8x7b"] = sized({
        model_type = "mixtral", rms_norm_eps = 1e-5, rope_theta = 1000000.0, sliding_window = mx.io.null,
        num_local_experts = 8, num_experts_per_tok = 2,
    }, 4096, 14336, 32, 32, 8, 32000),
    ["mixtral-8x22b"] = sized({
        model_type = "mixtral", rms_norm_eps = 1e-5, rope_theta = 1000000.0, sliding_window = mx.io.null,
        num_local_experts = 8, num_experts_per_tok = 2,
    }, 6144, 16384, 56, 48, 8, 32768),
    ["qwen3-30b-a3b-base"] = sized({
        model_type = "qwen3_moe", rope_theta = 1000000.0, head_dim = 128, moe_intermediate_size = 768,
        num_experts = 128, num_experts_per_tok = 8, norm_topk_prob = true, decoder_sparse_step = 1,
        mlp_only_layers = {}, sliding_window = mx.io.null, use_sliding_window = false, max_window_layers = 48,
    }, 2048, 6144, 48, 32, 4, 151936),
    ["qwen3-235b-a22b"] = sized({
        model_type = "qwen3_moe", rope_theta = 5000000, head_dim = 128, moe_intermediate_size = 1536,
        num_experts = 128, num_experts_per_tok = 8, norm_topk_prob = true, decoder_sparse_step = 1,
        mlp_only_layers = {}, sliding_window = mx.io.null, use_sliding_window = false, max_window_layers = 94,
    }, 4096, 12288, 94, 64, 4, 151936),
    ["qwen3-480b-a35b"] = sized({
        model_type = "qwen3_moe", rope_theta = 10000000, head_dim = 128, moe_intermediate_size = 2560,
        num_experts = 160, num_experts_per_tok = 8, norm_topk_prob = true, decoder_sparse_step = 1,
        mlp_only_layers = {}, sliding_window = mx.io.null, use_sliding_window = false, max_window_layers = 62,
    }, 6144, 8192, 62, 96, 8, 151936),
    ["gemma-2b"] = sized({ model_type = "gemma", hidden_act = "gelu", head_dim = 256 }, 2048, 16384, 18, 8, 1, 256128),
    ["gemma2-27b"] = sized({
        model_type = "gemma2", hidden_activation = "gelu_pytorch_tanh", head_dim = 128, query_pre_attn_scalar = 144,
        attn_logit_softcapping = 50.0, final_logit_softcapping = 30.0, sliding_window = 4096,
    }, 4608, 36864, 46, 32, 16, 256128),
    ["gemma3-27b"] = sized({
        model_type = "gemma3_text", head_dim = 128, query_pre_attn_scalar = 168, sliding_window = 1024,
        sliding_window_pattern = 6, rope_theta = 1000000.0, rope_local_base_freq = 10000.0,
        rope_scaling = { factor = 8.0, rope_type = "linear" },
    }, 5376, 21504, 62, 32, 16, 262144),
    ["olmo3-7b"] = sized({
        model_type = "olmo3", rms_norm_eps = 1e-6, sliding_window = 4096, rope_theta = 500000, rope_scaling = {
            attention_factor = 1.2079441541679836, beta_fast = 32, beta_slow = 1, factor = 8.0,
            original_max_position_embeddings = 8192, rope_type = "yarn",
        },
    }, 4096, 11008, 32, 32, 32, 100278),
}

function TestPublishedConfigs.test_model_files_say_the_same()
    for name, values in pairs(CONFIGS) do
        mx.weights.check(mx.config.load { "model_name=" .. name }, name, (config_read.read(values, name)))
    end
end

function TestPublishedConfigs.test_what_differs_is_seen()
    local keys = config_read.read(CONFIGS["qwen3-4b"], "qwen3-4b")
    lu.assertErrorMsgContains("rope_max_timescale: 5000000.0, but qwen3-4b has 1000000.0", mx.weights.check,
        mx.config.load { "model_name=qwen3-4b-thinking-2507" }, "qwen3-4b", keys)
end
