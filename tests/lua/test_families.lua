-- Families of models: what decoder_block says, and their sizes.

local lu = require "luaunit"
local mx = require "mx"

TestFamilies = {}

-- ---- decoder_block ----

local function config_of(block, ...)
    return mx.config.load { "model_name=tiny", "decoder_block=" .. block, ... }
end

-- What each layer of a config says, by fn(block).
local function by_layer(config, fn)
    local shape, list = mx.models.shape(config), {}
    for i = 1, shape.layers do
        list[i] = fn(mx.models.block(shape, i))
    end
    return list
end

local function window(block)
    return block.attention.window
end

function TestFamilies.test_local_and_global_layers()
    local words = { "sliding_window_size=7", "base_num_decoder_layers=8" }
    lu.assertEquals(by_layer(config_of("gemma3", table.unpack(words)), window), { 7, 7, 7, 7, 7, 0, 7, 7 })
    lu.assertEquals(by_layer(config_of("olmo3", table.unpack(words)), window), { 7, 7, 7, 0, 7, 7, 7, 0 })
    -- The layers of a pair count as one.
    local pairs_of = config_of("gemma2", "sliding_window_size=7", "base_num_decoder_layers=3")
    lu.assertEquals(by_layer(pairs_of, window), { 7, 0, 7, 0, 7, 0 })
    lu.assertEquals(by_layer(config_of("mistral", "attention_type=local_sliding", "sliding_window_size=7"), window),
        { 7, 7 })
    lu.assertEquals(by_layer(config_of("gemma3", "layer_types=[local,global,global]", table.unpack(words)), window),
        { 7, 0, 0, 7, 0, 0, 7, 0 })
    lu.assertEquals(by_layer(config_of("olmo3", "layer_types=[global]"), window), { 0, 0 })
end

function TestFamilies.test_two_bases_of_rope()
    local words = { "sliding_window_size=7", "rope_max_timescale=1000", "base_num_decoder_layers=6" }
    local function theta(block)
        return block.attention.rope.theta
    end
    lu.assertEquals(by_layer(config_of("gemma3", "local_rope_max_timescale=50", table.unpack(words)), theta),
        { 50, 50, 50, 50, 50, 1000 })
    lu.assertEquals(by_layer(config_of("gemma3", table.unpack(words)), theta), { 1000, 1000, 1000, 1000, 1000, 1000 })
end

-- What a block says holds unless a key is set; norms of 1 + w begin with w = 0.
function TestFamilies.test_blocks_set_keys()
    local gpt3 = config_of("gpt3")
    lu.assertEquals({ gpt3.normalization_layer, gpt3.use_bias, gpt3.use_rope }, { "layernorm", true, false })
    lu.assertTrue(config_of("gpt3", "use_rope=true").use_rope)
    local list = mx.models.parameters(mx.models.shape(gpt3))
    for _, p in ipairs(list) do
        lu.assertTrue(p.value == nil or p.value == 0, p.name)
    end
    lu.assertTrue(config_of("default").parallel_block)
    lu.assertFalse(config_of("llama2").parallel_block)
    lu.assertTrue(config_of("gemma3", "sliding_window_size=4").use_qk_norm)
    lu.assertFalse(config_of("gemma3", "sliding_window_size=4", "use_qk_norm=false").use_qk_norm)
    local olmo = mx.models.shape(config_of("olmo3", "sliding_window_size=4")).blocks[1]
    lu.assertEquals(olmo.norms, { attention = "after", mlp = "after" })
end

-- A query's scale: of the scores, or of the initial weights.
function TestFamilies.test_query_scale()
    local function attention(...)
        return mx.models.shape(config_of("gemma", "head_dim=16", ...)).blocks[1].attention
    end
    local plain, own = attention(), attention("query_pre_attn_scalar=25")
    lu.assertEquals({ plain.scale, plain.query_factor }, { 0.25, 1 })
    lu.assertEquals({ own.scale, own.query_factor }, { 0.2, 1 })
    local folded = attention("query_pre_attn_scalar=25", "fold_attention_scale=true")
    lu.assertEquals({ folded.scale, folded.query_factor }, { 1, 0.2 })
end

-- The config that comes with a run's parameters says the block.
function TestFamilies.test_the_block_is_stored_with_parameters()
    local path = os.tmpname()
    local config = config_of("gemma3", "sliding_window_size=7", "query_pre_attn_scalar=25", "use_post_ffw_norm=true")
    mx.train.save(config, mx.models.new(config), path)
    local read = mx.config.load { "load_parameters_path=" .. path }
    os.remove(path)
    lu.assertEquals(mx.models.shape(read).blocks, mx.models.shape(config).blocks)
end

-- Folders of Hugging Face models cannot say what these layers have.
function TestFamilies.test_exports_that_would_say_less()
    for words, reason in pairs({
        [{ "gemma" }] = "1 + their weights", [{ "llama2", "use_post_ffw_norm=true" }] = "norms after",
        [{ "llama2", "query_pre_attn_scalar=25" }] = "query_pre_attn_scalar",
    }) do
        local shape = mx.models.shape(config_of(table.unpack(words)))
        lu.assertErrorMsgContains(reason, require("mx.weights.families").of, shape)
    end
end

-- ---- sizes ----

-- Parameters of a model whose layers have the four projections of attention, a gated MLP and `norms` further weights.
local function decoder(V, E, layers, H, K, D, M, norms)
    return V * E + E + layers * (2 * E * (H + K) * D + 3 * E * M + norms)
end

-- Published: Gemma's and Gemma 2's reports and model cards (their vocabulary of 256,000, without the padding of 128
-- that MaxText's sizes have), and OLMo 3's. By the formula: Gemma 3's decoders with a vocabulary of 262,144.
function TestFamilies.test_published_parameter_counts()
    local counts = {
        ["gemma-2b"] = 2506172416 + 128 * 2048, ["gemma-7b"] = 8537680896 + 128 * 3072,
        ["gemma2-2b"] = 2614341888 + 128 * 2304, ["gemma2-9b"] = 9241705984 + 128 * 3584,
        ["gemma2-27b"] = 27227128320 + 128 * 4608, ["olmo3-7b"] = 7298011136, ["olmo3-7b-pt"] = 7298011136,
        ["olmo3-32b"] = 32233522176,
        ["gemma3-4b"] = decoder(262144, 2560, 34, 8, 4, 256, 10240, 4 * 2560 + 2 * 256),
        ["gemma3-12b"] = decoder(262144, 3840, 48, 16, 8, 256, 15360, 4 * 3840 + 2 * 256),
        ["gemma3-27b"] = decoder(262144, 5376, 62, 32, 16, 128, 21504, 4 * 5376 + 2 * 128),
    }
    -- GPT-3: tables of tokens and positions, four projections, an MLP of 4 E, and all biases and norms.
    for name, o in pairs({
        ["52k"] = { 1024, 2048, 16, 1 }, ["6b"] = { 32768, 16384, 3072, 48 }, ["22b"] = { 32768, 16384, 6144, 48 },
        ["175b"] = { 50304, 16384, 12288, 96 },
    }) do
        local V, positions, E, layers = table.unpack(o)
        counts["gpt3-" .. name] = (V + positions) * E + 2 * E + layers * (12 * E * E + 13 * E)
    end
    for name, count in pairs(counts) do
        lu.assertEquals(mx.models.count(mx.models.shape(mx.config.load { "model_name=" .. name })), count, name)
    end
end
