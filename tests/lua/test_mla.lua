--- Multi-head latent attention: DeepSeek against transformers, sizes, FLOPs, generation and refusals.
-- guarded
-- emulated

local lu = require "luaunit"
local mx = require "mx"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare, checks = dofile(here .. "compare.lua"), dofile(here .. "checks.lua")

TestMla = {}

local TINY = {
    "decoder_block=deepseek", "base_emb_dim=32", "base_mlp_dim=48", "base_num_query_heads=4", "base_num_kv_heads=4",
    "base_num_decoder_layers=2", "vocab_size=64", "kv_lora_rank=10", "qk_nope_head_dim=8", "qk_rope_head_dim=4",
    "v_head_dim=6", "dtype=float32", "max_target_length=16", "per_device_batch_size=2",
}

local function config_of(...)
    local words = table.move(TINY, 1, #TINY, 1, {})
    table.move({ ... }, 1, select("#", ...), #words + 1, words)
    return mx.config.load(words)
end

-- ---- against transformers ----

-- Both compute in f32 where it matters; chains of sums are some hundred terms long.
local BOUND = 1e-5

local function check_golden(case, ...)
    local data, attributes = mx.io.h5_read(compare.here .. "../golden/deepseek.h5")
    local words = mx.io.json_decode(attributes.about).words[case]
    for _, word in ipairs({ "dtype=float32", "load_balance_loss_weight=0", ... }) do
        words[#words + 1] = word
    end
    local model = mx.models.new(mx.config.load(words))
    local function theirs(kind, name)
        return data[case .. "." .. kind .. (name and "." .. name or "")]
    end
    local count = 0
    for name, t in pairs(model.params) do
        mx.copy(t, theirs("params", name))
    end
    for name, t in pairs(model.buffers) do
        if name:find("router%.bias$") then
            mx.copy(t, theirs("bias", name:match("layer(%d+)")))
        end
    end
    local step <close> = mx.step()
    local tokens = theirs("tokens")
    lu.assertTrue(compare.distance(model:logits(model:hidden(tokens)), theirs("logits")) < BOUND)
    local loss = model:loss({ tokens = tokens, targets = theirs("targets") })
    lu.assertAlmostEquals(loss:item(), theirs("loss"):item(), BOUND)
    mx.backward(loss)
    for name, t in pairs(model.params) do
        lu.assertTrue(compare.distance(t:grad(), theirs("grads", name)) < BOUND, name)
        count = count + 1
    end
    return count
end

function TestMla.test_deepseek_v2()
    lu.assertEquals(check_golden("v2"), 3 + 10 + 2 * 14)
end

function TestMla.test_deepseek_v3()
    lu.assertEquals(check_golden("v3"), 3 + 12 + 2 * 16)
    check_golden("v3", "remat_policy=custom", "query_wa_proj=device", "mla_q=offload", "kv_wa_proj=device",
        "mla_kv=device")
    check_golden("v3", "remat_policy=none")
end

-- Smaller factors of the scores spread attention: without mscale, the golden logits are missed.
function TestMla.test_mscale_counts()
    local function scale(...)
        return mx.models.shape(config_of(...)).blocks[1].attention.scale
    end
    lu.assertAlmostEquals(scale(), 12 ^ -0.5, 1e-12)
    lu.assertAlmostEquals(scale("rope_type=yarn", "rope_factor=40", "mscale=0.707"),
        12 ^ -0.5 * (0.0707 * math.log(40) + 1) ^ 2, 1e-12)
    lu.assertAlmostEquals(scale("rope_type=yarn", "mscale=0"), 12 ^ -0.5, 1e-12)
end

-- ---- sizes and FLOPs ----

-- By hand: E emb, H heads, Q and L features of the latents, V vocabulary.
local function parameters_of(E, H, V, Q, layers, dense, M, experts)
    local N, R, L, D = 128, 64, 512, 128
    local query = Q > 0 and E * Q + Q + Q * H * (N + R) or E * H * (N + R)
    local attention = query + E * (L + R) + L + L * H * (N + D) + H * D * E
    local n, width, shared = table.unpack(experts)
    local sparse = E * n + 3 * E * width * (n + shared)
    return 2 * V * E + E + layers * (attention + 2 * E) + dense * 3 * E * M + (layers - dense) * sparse
end

local PUBLISHED = { -- the files of weights that the authors published have so many values
    ["deepseek2-16b"] = { 15706484224, parameters_of(2048, 16, 102400, 0, 27, 1, 10944, { 64, 1408, 2 }) },
    ["deepseek2-236b"] = { 235741434880, parameters_of(5120, 128, 102400, 1536, 60, 1, 12288, { 160, 1536, 2 }) },
    ["deepseek3-671b"] = { 671026404352, parameters_of(7168, 128, 129280, 1536, 61, 3, 18432, { 256, 2048, 1 }) },
    ["kimi-k2-1t"] = { 1026408209408, parameters_of(7168, 64, 163840, 1536, 61, 1, 18432, { 384, 2048, 1 }) },
}

function TestMla.test_published_sizes()
    for name, counts in pairs(PUBLISHED) do
        local shape = mx.models.shape(mx.config.load { "model_name=" .. name })
        local count = mx.models.count(shape)
        lu.assertEquals({ count, count }, counts, name)
    end
end

-- FLOPs of a token's forward products are two for each weight of a product; scores and values have different widths.
function TestMla.test_flops()
    local shape = mx.models.shape(config_of("q_lora_rank=12"))
    local part = shape.blocks[1].attention
    local found = mx.models.part(part).flops(part, shape, 10)
    lu.assertEquals(found.products, 2 * (32 * 12 + 12 * 4 * 12 + 32 * (10 + 4) + 10 * 4 * (8 + 6) + 4 * 6 * 32))
    lu.assertEquals({ found.full, found.past, found.seen }, { 14400, 7200, 7200 }) -- 2 10 10 4 (12 + 6)
    part = mx.models.shape(config_of()).blocks[1].attention
    lu.assertEquals(mx.models.part(part).flops(part, shape, 10).products - found.products,
        2 * (32 * 4 * 12 - 32 * 12 - 12 * 4 * 12))
end

-- Attention's own count: forward a product of each width, backward three of that of keys and two of that of values.
function TestMla.test_flops_of_two_widths()
    local found = {}
    for _, widths in ipairs({ { 12, 6 }, { 6, 13 } }) do
        local step <close> = mx.step()
        local q, v = mx.ones({ 1, 5, 4, widths[1] }):requires_grad(), mx.ones({ 1, 5, 2, widths[2] }):requires_grad()
        local k = mx.ones { 1, 5, 2, widths[1] }
        mx.profile(true)
        mx.backward(mx.attention(q, k, v, { causal = true }):sum())
        mx.profile(false)
        for _, row in ipairs(mx.profile_report()) do
            found[row.op] = row.flops
        end
        local pairs_of_heads = 4 * 15
        lu.assertEquals(found.attention, 2 * pairs_of_heads * (widths[1] + widths[2]))
        lu.assertEquals(found.attention_grad, 2 * pairs_of_heads * (3 * widths[1] + 2 * widths[2]))
    end
end

-- Published for a chip of 128 v7x (configs/published/moe.yml): 608 TFLOP/s in steps of 27.02 s with 16 sequences.
function TestMla.test_published_flops()
    local shape = mx.models.shape(mx.config.load { "model_name=deepseek3-671b" })
    local flops = mx.flops.step("maxtext-2025-07", shape, mx.models.count(shape), 16, 4096)
    lu.assertAlmostEquals(flops / 27.02 / 608e12, 1, 1e-3) -- the rate is rounded to 0.8 in 1,000
end

-- MaxText's own counts of four sequences, from its change of the formula (pull request 1988).
function TestMla.test_flops_of_maxtext()
    local shape = mx.models.shape(mx.config.load { "model_name=deepseek2-16b" })
    for _, case in ipairs({
        { "maxtext-2024-05", 8192, 704.60 }, { "maxtext-2025-07", 8192, 593.27 },
        { "maxtext-2024-05", 129024, 62822 }, { "maxtext-2025-07", 129024, 35206 },
    }) do
        local formula, length, tera = table.unpack(case)
        local flops = mx.flops.step(formula, shape, mx.models.count(shape), 4, length)
        lu.assertAlmostEquals(flops / 1e12 / tera, 1, 2e-5, formula)
    end
end

-- Frozen products spare the gradients of their weights, those of the latents too.
function TestMla.test_flops_of_frozen_latents()
    local function step(...)
        local shape = mx.models.shape(config_of(...))
        return mx.flops.step("maxtext-2025-07", shape, mx.models.count(shape), 1, 10)
    end
    lu.assertEquals(step() - step([=[trainable_parameters_mask=[^(?!layer002\.kv_a\.).*]]=]),
        2 * 10 * 32 * (10 + 4))
end

-- ---- generation ----

-- A token after 1,000 others attends to their latents: computing their keys and values would take 2 1000 10 4 (8 + 6)
-- FLOPs a layer, and more for attention.
function TestMla.test_a_token_makes_no_old_keys()
    local model, flops = mx.models.new(config_of("num_experts=1", "max_position_embeddings=1001")), {}
    local cache = model:new_cache(1, 1001)
    mx.no_grad(function()
        for place, offset in ipairs({ 500, 1000 }) do
            local step <close> = mx.step()
            mx.profile(true)
            assert(model:hidden(mx.tensor({ { 3 } }, "i32"), { cache = cache, offset = offset }))
            mx.profile(false)
            flops[place] = 0
            for _, row in ipairs(mx.profile_report()) do
                flops[place] = flops[place] + row.flops
            end
        end
    end)
    lu.assertEquals(flops[2] - flops[1], 2 * 500 * 2 * 2 * 4 * (10 + 4)) -- of two layers, scores and values
end

-- Values wider than keys.
function TestMla.test_wide_values()
    local config = config_of("v_head_dim=15")
    local model = mx.models.new(config)
    lu.assertEquals(model.params["layer001.out.weight"]:size(), { 4 * 15, 32 })
    local tokens, cache = mx.tensor({ { 3, 1, 4, 1, 5, 9, 2, 6 } }, "i32"), model:new_cache(1, 8)
    local step <close> = mx.step()
    mx.no_grad(function()
        local whole = model:hidden(tokens)
        model:hidden(mx.narrow(tokens, { dim = 2, start = 1, length = 7 }), { cache = cache, offset = 0 })
        local last = model:hidden(mx.narrow(tokens, { dim = 2, start = 8, length = 1 }), { cache = cache, offset = 7 })
        lu.assertTrue(compare.distance(last, mx.narrow(whole, { dim = 2, start = 8, length = 1 })) < 1e-5)
    end)
    local loss = model:loss({ tokens = tokens, targets = tokens })
    mx.backward(loss)
    lu.assertTrue(model.params["layer001.kv_b.weight"]:grad():abs():max():item() > 0)
end

-- Token by token with a cache, the logits are those of the whole sequence at once.
function TestMla.test_cache()
    local model = mx.models.new(config_of("q_lora_rank=12", "rope_type=yarn"))
    local tokens, cache = mx.tensor({ { 3, 1, 4, 1, 5, 9, 2, 6 } }, "i32"), model:new_cache(1, 8)
    lu.assertEquals(cache[1].latent:size(), { 1, 8, 1, 14 })
    mx.no_grad(function()
        local step <close> = mx.step()
        local whole, offset = model:hidden(tokens), 0
        for _, n in ipairs({ 3, 1, 2, 1, 1 }) do
            local part = mx.narrow(tokens, { dim = 2, start = offset + 1, length = n })
            local h = model:hidden(part, { cache = cache, offset = offset })
            local expected = mx.narrow(whole, { dim = 2, start = offset + 1, length = n })
            lu.assertTrue(compare.distance(h, expected) < 1e-5, "from token " .. offset)
            offset = offset + n
        end
    end)
end

-- The config that comes with a run's parameters says all sizes and factors.
function TestMla.test_parameters_say_their_model()
    local path = os.tmpname()
    local config = config_of("q_lora_rank=12", "rope_type=yarn", "rope_factor=8", "mscale=0.5", "num_experts=4",
        "shared_experts=1")
    mx.train.save(config, mx.models.new(config), path)
    local read = mx.weights.load_config(path) -- as scripts/generate.lua does
    os.remove(path)
    lu.assertEquals(mx.models.shape(read).blocks, mx.models.shape(config).blocks)
end

-- ---- refusals ----

function TestMla.test_refusals()
    local function refused(text, ...)
        checks.assert_refused({ text }, config_of, ...)
    end
    refused("attention_type: expected mla, because decoder_block = deepseek has latent attention, got global",
        "attention_type=global")
    refused("base_num_kv_heads: expected base_num_query_heads = 4 with attention_type = mla, got 2",
        "base_num_kv_heads=2")
    refused("5 components of qk_rope_head_dim = 5 are not an even number", "qk_rope_head_dim=5")
    refused("use_qk_norm: expected false: attention_type = mla does not have it", "use_qk_norm=true")
    refused("attention_bias: expected false: attention_type = mla does not have it", "attention_bias=true")
    refused("head_dim has no effect with attention_type = mla", "head_dim=8")
    checks.assert_refused({ "kv_lora_rank has no effect with attention_type = global" }, mx.config.load,
        { "model_name=tiny", "kv_lora_rank=8" })
end
