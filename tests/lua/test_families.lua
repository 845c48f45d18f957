-- Families of models: what decoder_block says, their sizes, and what their blocks compute.

local lu = require "luaunit"
local mx = require "mx"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare, checks = dofile(here .. "compare.lua"), dofile(here .. "checks.lua")

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
        lu.assertErrorMsgContains(reason, require("mx.weights.config_write").family, shape)
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
        ["gemma2-27b"] = 27227128320 + 128 * 4608,
        ["olmo3-7b"] = 7298011136, ["olmo3-7b-pt"] = 7298011136, ["olmo3-32b"] = 32233522176,
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
    -- Experts: published by Hugging Face from the files, which have the two tables of tokens.
    for name, count in pairs({
        ["gpt-oss-20b"] = 20914757184, ["gpt-oss-120b"] = 116829156672, -- counted by transformers
        ["llama4-17b-16e"] = 107769861120, ["llama4-17b-128e"] = 400711848960,
        ["mixtral-8x7b"] = 46702792704, ["mixtral-8x22b"] = 140630071296, ["qwen3-30b-a3b"] = 30532122624,
        ["qwen3-30b-a3b-base"] = 30532122624, ["qwen3-235b-a22b"] = 235093634560, ["qwen3-480b-a35b"] = 480154875392,
    }) do
        counts[name] = count
    end
    -- Envy: attention, MLPs of all experts or of one, a router, four norms of emb or of a head, one table.
    for name, o in pairs({
        base = { 1536, 12, 12, 12, 6144, 128 }, large = { 2048, 24, 16, 16, 8192, 128 },
        xxl = { 8192, 24, 64, 8, 20480, 64 },
    }) do
        local E, layers, heads, kv_heads, M, n = table.unpack(o)
        local both = 2 * (2 * E * 128 * (heads + kv_heads) + 3 * E + 2 * 128) + 3 * E * M * (n + 1) + E * n
        counts["envy-switch-" .. name] = layers // 2 * both + 32768 * E + E
    end
    for name, count in pairs(counts) do
        lu.assertEquals(mx.models.count(mx.models.shape(mx.config.load { "model_name=" .. name })), count, name)
    end
end

-- A training step of every model file as it stands, on 16 simulated chips without a limit of memory.
function TestFamilies.test_a_simulated_step_of_each_model()
    for _, name in ipairs(mx.config.models()) do
        if not name:find("^tiny") then
            local length = name:find("^gpt2") and 1024 or 2048
            local config = mx.config.load {
                "model_name=" .. name, "per_device_batch_size=1", "max_target_length=" .. length,
            }
            local mfu = mx.plan.simulate(config, "v5p-16", 1).mfu
            -- GPT-2's heads of 64 features fill half of the matrix unit, and a sequence is short. With experts, all
            -- weights are gathered for the few that a token meets, and each computes whole tiles of rows; of envy's, a
            -- token meets one of 128, of Kimi K2's and DeepSeek-V3's 8 of 384 and 256, of gpt-oss-120b's 4 and of
            -- Llama 4's 1 of 128.
            local few = config.num_experts >= 256 or config.num_experts == 128 and config.num_experts_per_tok <= 4
            local least = name == "gpt3-52k" and 0 or name == "gpt2-124m" and 25 or name:find("^envy") and 1
                or config.num_experts > 1 and (few and 2 or 5) or 30
            lu.assertTrue(mfu > least, name)
        end
    end
end

-- Each formula of MaxText 0.2.5 for layers with windows, of a forward pass: matrix products, and half of attention or
-- the window's share of it.
function TestFamilies.test_flops_of_windows()
    local S, W = 8192, 4096
    local function expected(E, H, K, D, M, V, locals, globals)
        local weights = 6 * E * M + 2 * E * (H + 2 * K) * D + 2 * E * H * D
        local attention = locals * 4 * (S * W - W * W / 2) + globals * 2 * S * S
        return 3.0 * (S * ((locals + globals) * weights + 2 * E * V) + attention * H * D)
    end
    for name, count in pairs({
        ["gemma2-2b"] = expected(2304, 8, 4, 256, 9216, 256128, 13, 13),
        ["gemma3-4b"] = expected(2560, 8, 4, 256, 10240, 262144, 29, 5),
        ["olmo3-7b"] = expected(4096, 32, 32, 128, 11008, 100278, 24, 8),
    }) do
        local config = mx.config.load { "model_name=" .. name, "sliding_window_size=" .. W }
        local shape = mx.models.shape(config)
        lu.assertEquals(mx.flops.step("maxtext-2025-07", shape, mx.models.count(shape), 1, S), count, name)
    end
end

-- Experts count as MaxText 0.2.5 counts them: the router, and the products of a token's own experts. By hand, of the
-- published sizes.
function TestFamilies.test_flops_of_experts()
    local S = 4096
    for name, o in pairs({
        ["mixtral-8x7b"] = { E = 4096, H = 32, K = 8, M = 14336, n = 8, k = 2, layers = 32, V = 32000 },
        ["qwen3-235b-a22b"] = { E = 4096, H = 64, K = 4, M = 1536, n = 128, k = 8, layers = 94, V = 151936 },
    }) do
        local D = 128
        local weights = 2 * o.E * (o.H + 2 * o.K) * D + 2 * o.H * D * o.E + 2 * o.E * o.n + o.k * 6 * o.E * o.M
        local attention = 4 * S * S * o.H * D
        local products = o.layers * weights + 2 * o.E * o.V
        local shape = mx.models.shape(mx.config.load { "model_name=" .. name })
        local function flops(formula)
            return mx.flops.step(formula, shape, mx.models.count(shape), 1, S)
        end
        lu.assertEquals(flops("maxtext-2024-05"), 3.0 * (S * products + o.layers * attention), name)
        lu.assertEquals(flops("maxtext-2025-07"), 3.0 * (S * products + o.layers * attention / 2), name)
    end
end

-- The TFLOP of two sequences, by MaxText 0.2.5: calculate_tflops_training_per_device of its maxtext_utils.py.
function TestFamilies.test_flops_of_gpt_oss_and_llama4()
    for name, cases in pairs({
        ["gpt-oss-20b"] = { [4096] = 187.80268, [8192] = 395.406232, [24576] = 1423.73253 },
        ["gpt-oss-120b"] = { [4096] = 267.960459, [8192] = 565.622228, [24576] = 2053.13744 },
        ["llama4-17b-16e"] = { [4096] = 842.68869, [8192] = 1784.33343, [24576] = 5649.86842 },
        ["llama4-17b-128e"] = { [4096] = 843.26851, [8192] = 1785.49307, [24576] = 5653.34734 },
    }) do
        local shape = mx.models.shape(mx.config.load { "model_name=" .. name })
        for S, tera in pairs(cases) do
            local flops = mx.flops.step("maxtext-2025-07", shape, mx.models.count(shape), 2, S)
            lu.assertAlmostEquals(flops / 1e12 / tera, 1, 2e-8, name)
        end
    end
end

-- ---- what the blocks compute ----

-- Sums of 24 to 48 products in another order, in f32: some 2^-24 of the largest value each, through up to seven layers.
local BOUND = 2e-5

local function assert_close(found, expected, what)
    lu.assertEquals(found:size(), expected:size(), what)
    local off = compare.distance(found, expected)
    lu.assertTrue(off <= BOUND, ("%s is off by %g"):format(what, off))
end

-- GPT-3's block is that of GPT-2 but for its norms, whose weights are 1 less.
function TestFamilies.test_gpt3_is_gpt2_with_other_norms()
    local step <close> = mx.step()
    local golden, attributes = mx.io.h5_read(here .. "../golden/gpt2.h5")
    local words = {
        "dtype=float32", "decoder_block=gpt3", "fold_attention_scale=false", "normalize_embedding_logits=false",
    }
    for key, value in pairs(mx.io.json_decode(attributes.about).config) do
        local left_out = key == "normalization_layer" or key == "use_bias" or key == "use_rope"
        value = type(value) == "table" and "[" .. table.concat(value, ", ") .. "]" or value
        words[#words + 1] = not left_out and ("%s=%s"):format(key, value) or nil
    end
    local model, norms = mx.models.new(mx.config.load(words)), 0
    mx.no_grad(function()
        for name, t in pairs(model.params) do
            local is_norm = name:find("norm.weight", 1, true)
            norms = norms + (is_norm and 1 or 0)
            mx.copy(t, golden["params." .. name] - (is_norm and 1 or 0))
        end
    end)
    lu.assertEquals(norms, 2 * model.shape.layers + 1)
    assert_close(mx.no_grad(function() return model:logits(model:hidden(golden.tokens[1])) end), golden.logits, "gpt3")
    mx.backward(model:loss { tokens = golden.tokens[1], targets = golden.targets[1], mask = golden.mask[1] })
    for name, t in pairs(model.params) do
        local off = mx.no_grad(function() return mx.max(mx.abs(t:grad() - golden["grads." .. name])):item() end)
        lu.assertTrue(off < 1e-5, ("%s is off by %g"):format(name, off))
    end
end

-- Each thing that a family's layers have of their own counts: without it, the logits are not those of the package
-- transformers, which tests/lua/test_weights.lua compares.
for family, changes in pairs({
    gemma = { offset = function(shape) shape.blocks[1].norm.offset = 0 end },
    gemma2 = {
        window = function(shape) shape.blocks[1].attention.window = 6 end,
        order = function(shape) shape.blocks = { shape.blocks[2], shape.blocks[1] } end,
        cap = function(shape) shape.blocks[2].attention.cap = 3 end,
        logit_cap = function(shape) shape.logit_cap = 5 end,
        scale = function(shape) shape.blocks[1].attention.scale = 8 ^ -0.5 end,
        last_norm = function(shape) shape.norm.offset = 0 end,
    },
    gemma3 = {
        factor = function(shape) shape.blocks[6].attention.rope.scaling = nil end,
        base = function(shape) shape.blocks[5].attention.rope.theta = 1000 end,
        head_norm = function(shape) shape.blocks[3].attention.qk_norm.offset = 0 end,
    },
    olmo3 = {
        ramp = function(shape) shape.blocks[4].attention.rope.scaling.beta_slow = 0.1 end,
        magnitude = function(shape) shape.blocks[4].attention.rope.factor = 1 end,
    },
}) do
    TestFamilies["test_faults_are_seen_in_" .. family] = function()
        for what, change in pairs(changes) do
            local step <close> = mx.step()
            local folder = mx.root .. "tests/golden/weights/" .. family
            local model = mx.weights.model(folder, { words = { "dtype=float32" } })
            local expected = checks.read_all(folder .. "/expected.safetensors")
            change(model.shape)
            local logits = mx.no_grad(function() return model:logits(model:hidden(expected.tokens)) end)
            lu.assertTrue(compare.distance(logits, expected.logits) > 20 * BOUND, what)
        end
    end
end
