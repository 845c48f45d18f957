-- Families of models: what decoder_block says, their sizes, and what the package transformers computes from tiny ones.
-- guarded

local lu = require "luaunit"
local mx = require "mx"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare = dofile(here .. "compare.lua")

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
            lu.assertTrue(mfu > (name == "gpt3-52k" and 0 or 30), name)
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

-- ---- the same as the package transformers (tests/golden/make_golden_families.py) ----

local GEMMA = {
    "head_dim=8", "base_num_kv_heads=2", "mlp_activations=[gelu, linear]", "logits_via_embedding=true",
    "normalize_embedding_logits=true",
}
local PATTERN = { "sliding_window_size=5", "local_rope_max_timescale=50" }
local POST = {
    "use_post_attn_norm=true", "use_post_ffw_norm=true", "query_pre_attn_scalar=12", "sliding_window_size=5",
}

-- The words of each family's config; later ones win.
local MODELS = {
    gemma = { GEMMA, { "base_num_decoder_layers=2", "base_num_kv_heads=1" } },
    gemma2 = { GEMMA, POST, { "base_num_decoder_layers=2", "attn_logits_soft_cap=2", "final_logits_soft_cap=4" } },
    gemma3 = {
        GEMMA, POST, PATTERN,
        { "base_num_decoder_layers=7", "rope_max_timescale=1000", "rope_linear_scaling_factor=4" },
    },
    olmo3 = {
        PATTERN, { "base_num_decoder_layers=4", "head_dim=6", "base_num_kv_heads=2", "use_qk_norm=true" },
        { "rope_type=yarn", "rope_max_timescale=10", "rope_factor=4", "original_max_position_embeddings=16" },
        { "beta_fast=8", "beta_slow=1", "rope_attention_scaling=true", "rope_interleave=false" },
    },
}

-- The names of a layer's weights in the files; the others are those of all families.
local LAYER = {
    query = "self_attn.q_proj", key = "self_attn.k_proj", value = "self_attn.v_proj", out = "self_attn.o_proj",
    query_norm = "self_attn.q_norm", key_norm = "self_attn.k_norm", wi_0 = "mlp.gate_proj", wi_1 = "mlp.up_proj",
    wo = "mlp.down_proj", norm = "input_layernorm", post_norm = "post_attention_layernorm",
    mlp_norm = "pre_feedforward_layernorm", mlp_post_norm = "post_feedforward_layernorm",
}
local OUTSIDE = { embedding = "model.embed_tokens", norm = "model.norm", unembedding = "lm_head" }

-- The name of a parameter in the files, and whether it is transposed there.
local function foreign_name(family, name)
    local layer, short = name:match("^layer(%d+)%.(.*)%.weight$")
    if not layer then
        return OUTSIDE[name:match("^(.*)%.weight$")] .. ".weight", name == "unembedding.weight"
    end
    local theirs = family == "gemma" and short == "mlp_norm" and "post_attention_layernorm" or LAYER[short]
    return ("model.layers.%d.%s.weight"):format(layer - 1, theirs), not short:find("norm")
end

local function read_all(path)
    local file <close> = mx.io.weights_open(path)
    local tensors = {}
    for _, entry in ipairs(file:info()) do
        tensors[entry.name] = file:read(entry.name)
    end
    return tensors
end

-- What a parameter is divided by to be that of the files: MaxText's tables of tied Gemma models are sqrt(emb) times
-- those of the files, and the logits are divided by that.
local function scale_of(model, name)
    return name == "embedding.weight" and model.shape.logit_scale ~= 1 and math.sqrt(model.shape.emb) or 1
end

-- A family's model with the weights of its file, and what the file expects.
local function load(family, ...)
    local words = {
        "dtype=float32", "vocab_size=96", "base_emb_dim=24", "base_mlp_dim=32", "base_num_query_heads=4",
        "rope_max_timescale=10000", "max_target_length=20", "fold_attention_scale=false", "decoder_block=" .. family,
        ...,
    }
    for _, list in ipairs(MODELS[family]) do
        table.move(list, 1, #list, #words + 1, words)
    end
    local model = mx.models.new(mx.config.load(words))
    local folder = mx.root .. "tests/golden/weights/" .. family
    local stored = read_all(folder .. "/model.safetensors")
    mx.no_grad(function()
        for name, t in pairs(model.params) do
            local theirs, transposed = foreign_name(family, name)
            local value = stored[theirs]:to("f32") * scale_of(model, name)
            mx.copy(t, transposed and mx.transpose(value) or value)
            stored[theirs] = nil
        end
    end)
    lu.assertNil(next(stored), family)
    return model, read_all(folder .. "/expected.safetensors")
end

-- Sums of 24 to 48 products in another order, in f32: some 2^-24 of the largest value each, through up to seven layers.
local BOUND = 2e-5

local function assert_close(found, expected, what)
    lu.assertEquals(found:size(), expected:size(), what)
    local off = compare.distance(found, expected)
    lu.assertTrue(off <= BOUND, ("%s is off by %g"):format(what, off))
end

-- The loss of each token but the first, and the gradients.
local function backward(model, expected)
    local S = expected.tokens:size(2) - 1
    local loss = model:loss {
        tokens = mx.narrow(expected.tokens, { dim = 2, start = 1, length = S }),
        targets = mx.narrow(expected.tokens, { dim = 2, start = 2, length = S }),
    }
    mx.backward(loss)
    return loss:item()
end

for family in pairs(MODELS) do
    TestFamilies[("test_%s_is_that_of_transformers"):format(family)] = function()
        local step <close> = mx.step()
        local model, expected = load(family, "remat_policy=minimal")
        local logits = mx.no_grad(function() return model:logits(model:hidden(expected.tokens)) end)
        assert_close(logits, expected.logits, family)
        lu.assertAlmostEquals(backward(model, expected) / expected.loss:totable()[1], 1, 2e-6, family)
        for name, t in pairs(model.params) do
            local theirs, transposed = foreign_name(family, name)
            local grad = t:grad() * scale_of(model, name)
            assert_close(transposed and mx.transpose(grad) or grad, expected["grad." .. theirs], family .. ": " .. name)
        end
    end

    -- Token by token, as generating does. The sequence is longer than the window.
    TestFamilies[("test_a_cache_of_%s"):format(family)] = function()
        local step <close> = mx.step()
        local model, expected = load(family)
        mx.no_grad(function()
            local cache = model:new_cache(2, 20)
            for i = 1, 20 do
                local one = mx.narrow(expected.tokens, { dim = 2, start = i, length = 1 })
                local logits = model:logits(model:hidden(one, { cache = cache, offset = i - 1 }))
                assert_close(logits, mx.narrow(expected.logits, { dim = 2, start = i, length = 1 }), family)
            end
        end)
    end
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

-- Each thing that a family's layers have of their own counts.
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
            local model, expected = load(family)
            change(model.shape)
            local logits = mx.no_grad(function() return model:logits(model:hidden(expected.tokens)) end)
            lu.assertTrue(compare.distance(logits, expected.logits) > 20 * BOUND, what)
        end
    end
end
