-- Weights of other programs: what the packages transformers and gguf wrote and computed (tests/golden/weights), and
-- back.
-- guarded

local lu = require "luaunit"
local mx = require "mx"
local config_read = require "mx.weights.config_read"
local families = require "mx.weights.families"
local util = require "mx.util"
local checks = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "checks.lua")

local GOLDEN = mx.root .. "tests/golden/weights/"
local FAMILIES = { -- the last three have the experts of a layer in two tensors
    "gpt2", "llama2", "llama31", "linear", "mistral", "ministral", "qwen2", "qwen3", "qwen3_yarn", "gemma", "gemma2",
    "gemma3", "olmo2", "olmo3", "mixtral", "qwen3_moe", "deepseek_v2", "gpt_oss", "llama4", "kimi_k2",
    "mixtral_fused", "qwen3_moe_fused", "deepseek_v3",
}
local F32 = { words = { "dtype=float32" } }

local folder = os.tmpname()
os.remove(folder)

-- A name in a folder of our own.
local function temporary(name)
    mx.io.mkdir_p(folder)
    return folder .. "/" .. name
end

local function remove_all()
    os.execute("rm -rf '" .. folder .. "'")
end

local function largest(t)
    return mx.max(mx.abs(t)):item()
end

local assert_close, says = checks.assert_close, checks.says

TestImport = {}

-- Sums of 32 to 64 products in another order, in f32: some 2^-24 of the largest logit each, through two layers.
function TestImport.test_logits_are_those_of_transformers()
    for _, name in ipairs(FAMILIES) do
        for _, path in ipairs({ name, name .. ".gguf" }) do
            local expected = GOLDEN .. path .. (path == name and "/" or ".") .. "expected.safetensors"
            if mx.io.exists(expected) then
                local step <close> = mx.step()
                local model = mx.weights.model(GOLDEN .. path, F32)
                expected = checks.read_all(expected)
                local logits = mx.no_grad(function() return model:logits(model:hidden(expected.tokens)) end)
                assert_close(logits, expected.logits, 5e-6, path)
            end
        end
    end
end

-- Matrices of Q8_0 stay codes: the same logits in f32, token by token, too. In bf16, products of more than 8 rows round
-- what codes stand for as they would round weights, so all bits are the same.
function TestImport.test_codes_of_q8_0()
    local function greedy(model)
        local ids = {}
        mx.generate.continue(model, { 5, 17, 3 }, { tokens = 6, temperature = 0, top_k = 0, top_p = 1, seed = 0 },
            function(id) ids[#ids + 1] = id end)
        return ids
    end
    -- qwen3_moe_q8: one layer, whose experts' products are three; its table is in codes, too, and so are its logits.
    for name, count in pairs { gpt2 = 1 + 2 * 6, llama2 = 2 + 2 * 7, llama31 = 3, qwen3_moe_q8 = 2 + 4 + 3 } do
        local step <close> = mx.step()
        local path = GOLDEN .. name .. ".gguf"
        local function load(keep_codes, ...)
            return mx.weights.model(path, { words = { ... }, mesh = false, keep_codes = keep_codes })
        end
        local expected = checks.read_all(path .. ".expected.safetensors")
        local model, wide = load(true, "dtype=float32"), load(false, "dtype=float32")
        local kept = util.sorted_keys(model.codes)
        lu.assertEquals(#kept, count)
        lu.assertNil(model.params[kept[1]])
        lu.assertEquals(model.codes[kept[1]].scale:numel() * 32, model.codes[kept[1]].codes:numel())
        local function hidden(of)
            return mx.no_grad(function() return (of:hidden(expected.tokens)) end)
        end
        assert_close(model:logits(hidden(model)), expected.logits, 5e-6, name)
        lu.assertEquals(greedy(model), greedy(wide))
        lu.assertEquals(hidden(load(true)):eq(hidden(load(false))):all():item(), 1)
        says("training needs weights in bfloat16 or float32", model.loss, model, {})
        says("saving needs weights", mx.weights.save, model, temporary("codes"))
        lu.assertNil(load(true, "quantization=int8").codes)
    end
end

-- Experts in blocks of four-bit codes, as GPT-OSS was published: the values are exact in bf16, too.
function TestImport.test_mxfp4()
    local step <close> = mx.step()
    local path = GOLDEN .. "gpt_oss_mxfp4"
    local model = mx.weights.model(path, F32)
    local expected = checks.read_all(path .. "/expected.safetensors")
    local logits = mx.no_grad(function() return model:logits(model:hidden(expected.tokens)) end)
    assert_close(logits, expected.logits, 5e-6, "MXFP4")
    lu.assertEquals(mx.weights.dtype(path), "bfloat16")
    -- By hand: the first block of the first expert's down_proj, outputs by inputs.
    local f = mx.io.weights_open(path .. "/model.safetensors")
    local base = "model.layers.0.mlp.experts.down_proj"
    local byte = f:read(base .. "_blocks"):get(1, 1, 1, 1)
    local scale = 2.0 ^ (f:read(base .. "_scales"):get(1, 1, 1) - 127)
    f:close()
    local magnitudes = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 }
    local function value(code)
        return (code < 8 and 1 or -1) * magnitudes[code % 8 + 1] * scale
    end
    local wo = model.params["layer001.experts.wo.weight"]
    lu.assertEquals({ wo:get(1, 1, 1), wo:get(1, 2, 1) }, { value(byte % 16), value(byte // 16) })
end

local function names_of(name)
    local source <close> = mx.weights.open(GOLDEN .. name)
    return source.names, source.neighbours
end

-- The gradient of a stored tensor, put together as the tensor would be.
local function gradient_of(model, entry)
    local parts = {}
    for i, name in ipairs(entry.parts) do
        local grad = model.params[name]:grad()
        grad = entry.factor and grad * entry.factor or grad
        parts[i] = entry.transposed and mx.transpose(grad) or grad
        parts[i] = entry.heads and families.to_neighbours(parts[i], entry.heads, entry.kept) or parts[i]
    end
    if entry.alternating then
        local sizes = parts[1]:size()
        sizes[#sizes] = #parts * sizes[#sizes]
        return mx.stack(parts, { dim = #sizes + 1 }):view(sizes)
    end
    return #parts == 1 and parts[1] or mx.concat(parts, { dim = entry.dim })
end

function TestImport.test_gradients_are_those_of_transformers()
    for _, name in ipairs(FAMILIES) do
        local step <close> = mx.step()
        local model, config = mx.weights.model(GOLDEN .. name, { words = { "dtype=float32", "remat_policy=minimal" } })
        local expected, tested = checks.read_all(GOLDEN .. name .. "/expected.safetensors"), 0
        local S = expected.tokens:size(2) - 1
        local loss = model:loss {
            tokens = mx.narrow(expected.tokens, { dim = 2, start = 1, length = S }),
            targets = mx.narrow(expected.tokens, { dim = 2, start = 2, length = S }),
        }
        mx.backward(loss)
        lu.assertAlmostEquals(loss:item() / expected.loss:totable()[1], 1, 1e-6, name)
        local names, neighbours = names_of(name)
        names = families.NAMES["fused." .. names] and "fused." .. names or names -- as gradients are stored
        for _, entry in ipairs(families.layout(names, model.shape, neighbours)) do
            local wanted = expected["grad." .. entry.name]
            if wanted then
                assert_close(gradient_of(model, entry), wanted, 2e-5, name .. ": " .. entry.name)
                tested = tested + 1
            end
        end
        lu.assertTrue(tested >= 2 * config.base_num_decoder_layers + 3, name)
    end
end

-- Token by token with a cache, as generating does, the logits are those of the whole sequence at once.
function TestImport.test_a_cache_gives_the_same_logits()
    for _, name in ipairs(FAMILIES) do
        local step <close> = mx.step()
        local model = mx.weights.model(GOLDEN .. name, F32)
        local tokens = mx.narrow(checks.read_all(GOLDEN .. name .. "/expected.safetensors").tokens,
            { dim = 1, start = 1, length = 1 })
        mx.no_grad(function()
            local whole = model:logits(model:hidden(tokens)) -- (1, S, V)
            local cache = model:new_cache(1, tokens:size(2))
            for s = 1, tokens:size(2) do
                local token = mx.narrow(tokens, { dim = 2, start = s, length = 1 })
                local logits = model:logits(model:hidden(token, { cache = cache, offset = s - 1 }))
                assert_close(logits, mx.narrow(whole, { dim = 2, start = s, length = 1 }), 5e-6, name .. " " .. s)
            end
        end)
    end
end

function TestImport.test_config()
    local keys = mx.weights.config(GOLDEN .. "llama31")
    lu.assertEquals({ keys.base_emb_dim, keys.head_dim, keys.base_num_kv_heads, keys.vocab_size }, { 32, 16, 2, 96 })
    lu.assertEquals({ keys.rope_type, keys.llama_rope_factor }, { "llama3.1", 8.0 })
    lu.assertEquals(keys.llama_rope_original_length, 32)
    lu.assertEquals(keys.rope_max_timescale, 500.0)
    local from_gguf = mx.weights.config(GOLDEN .. "llama31.gguf")
    lu.assertEquals(from_gguf, keys) -- RoPE's factors are worked out of a tensor there
    lu.assertEquals(mx.weights.config(GOLDEN .. "mistral").sliding_window_size, 5)
    lu.assertEquals(mx.weights.config(GOLDEN .. "qwen3.gguf"), mx.weights.config(GOLDEN .. "qwen3"))
    lu.assertEquals(mx.weights.config(GOLDEN .. "gpt2.gguf"), mx.weights.config(GOLDEN .. "gpt2"))
    lu.assertEquals(mx.weights.config(GOLDEN .. "mixtral.gguf"), mx.weights.config(GOLDEN .. "mixtral"))
    keys = mx.weights.config(GOLDEN .. "qwen2")
    lu.assertEquals({ keys.attention_bias, keys.use_bias, keys.logits_via_embedding }, { true, false, true })
end

function TestImport.test_config_as_older_versions_write_it()
    local values = {
        model_type = "llama", hidden_size = 64, num_attention_heads = 4, num_hidden_layers = 2, vocab_size = 100,
        intermediate_size = 96, rope_theta = 5e5, rms_norm_eps = 1e-5, num_key_value_heads = mx.io.null,
        rope_scaling = {
            rope_type = "llama3", factor = 32.0, low_freq_factor = 1.0, high_freq_factor = 4.0,
            original_max_position_embeddings = 8192,
        },
    }
    local keys = config_read.read(values, "c")
    lu.assertEquals({ keys.base_num_kv_heads, keys.head_dim, keys.rope_max_timescale }, { 4, 16, 5e5 })
    lu.assertEquals({ keys.rope_type, keys.llama_rope_factor, keys.logits_via_embedding }, { "llama3.1", 32.0, false })
    values.rope_scaling = { type = "dynamic", factor = 2.0 }
    says("RoPE of the type 'dynamic'", config_read.read, values, "c")
    values.rope_scaling, values.attention_bias = nil, true
    says("attention_bias = true and mlp_bias = false", config_read.read, values, "c")
    values.mlp_bias = true
    lu.assertTrue(config_read.read(values, "c").use_bias)
    values.hidden_size = "64"
    says("hidden_size: expected a whole number, got 64", config_read.read, values, "c")
    values.hidden_size, values.hidden_act = 64, "gelu"
    says("no activation 'gelu'", config_read.read, values, "c")
    says("the model_type 'gemma3' is none", config_read.read, { model_type = "gemma3" }, "c")
    values = {
        model_type = "qwen2", hidden_size = 64, num_attention_heads = 4, num_hidden_layers = 4, vocab_size = 100,
        intermediate_size = 96, use_sliding_window = true, sliding_window = 7, max_window_layers = 2,
    }
    keys = config_read.read(values, "c")
    lu.assertEquals({ keys.attention_type, keys.sliding_window_size }, { "global", 7 })
    lu.assertEquals(keys.layer_types, { "global", "global", "local", "local" })
    values.max_window_layers = 0
    lu.assertEquals(config_read.read(values, "c").sliding_window_size, 7)
    values.use_sliding_window = false
    lu.assertEquals(config_read.read(values, "c").attention_type, "global")
    values.model_type, values.use_sliding_window, values.max_window_layers = "qwen3_moe", true, nil
    lu.assertEquals(config_read.read(values, "c").attention_type, "local_sliding") -- as transformers 5.24.0
    values.max_window_layers = 2 -- which it ignores, and 4.51 did not
    says("max_window_layers = 2 with use_sliding_window", config_read.read, values, "c")
end

-- Of these keys, null means none, and an absent key the library's default.
function TestImport.test_config_with_null()
    local values = {
        model_type = "gemma2", hidden_size = 64, num_attention_heads = 8, num_hidden_layers = 2, vocab_size = 100,
        intermediate_size = 96,
    }
    local function read()
        local keys = config_read.read(values, "c")
        return { keys.attn_logits_soft_cap, keys.final_logits_soft_cap, keys.base_num_kv_heads }
    end
    lu.assertEquals(read(), { 50.0, 30.0, 4 })
    for _, key in ipairs { "attn_logit_softcapping", "final_logit_softcapping", "num_key_value_heads" } do
        values[key] = mx.io.null
    end
    lu.assertEquals(read(), { 0.0, 0.0, 8 })
end

-- Which layers have experts, as config.json says it: all but the first ones, every n-th, or neither.
function TestImport.test_places_of_experts()
    local function read(layers, more)
        local values = {
            model_type = "qwen3_moe", hidden_size = 64, num_attention_heads = 4, num_hidden_layers = layers,
            vocab_size = 100, intermediate_size = 96, moe_intermediate_size = 24, num_experts = 16,
        }
        for key, value in pairs(more) do
            values[key] = value
        end
        local keys = config_read.read(values, "c")
        return { keys.first_num_dense_layers, keys.interleave_moe_layer_step, keys.base_mlp_dim }
    end
    lu.assertEquals(read(4, {}), { 0, 1, 24 }) -- no layer has the width 96
    lu.assertEquals(read(4, { mlp_only_layers = { 0, 1 } }), { 2, 1, 96 })
    lu.assertEquals(read(6, { decoder_sparse_step = 3 }), { 0, 3, 96 })
    lu.assertEquals(read(8, { decoder_sparse_step = 2, mlp_only_layers = { 1 } }), { 3, 2, 96 })
    lu.assertEquals(read(6, { mlp_only_layers = { 0, 2, 4 } }), { 0, 2, 96 })
    says("here the first layers have no experts, or every n-th layer has some", read, 4, { mlp_only_layers = { 2 } })
    says("here the first layers have no experts", read, 2, { mlp_only_layers = { 0, 1 } })
end

-- What YaRN multiplies cosines and sines by: 0.1 ln(factor) + 1, unless the file says 1.
function TestImport.test_attention_factor_of_yarn()
    local function read(more)
        local scaling = { rope_type = "yarn", factor = 4.0, original_max_position_embeddings = 64 }
        for key, value in pairs(more) do
            scaling[key] = value
        end
        return config_read.read({
            model_type = "llama", hidden_size = 64, num_attention_heads = 4, num_hidden_layers = 2, vocab_size = 100,
            intermediate_size = 96, rope_scaling = scaling,
        }, "c").rope_attention_scaling
    end
    lu.assertTrue(read {})
    lu.assertTrue(read { attention_factor = 0.1 * math.log(4) + 1 })
    lu.assertFalse(read { attention_factor = 1.0 })
    lu.assertFalse(read { mscale = 0.7, mscale_all_dim = 0.7 }) -- the quotient of two equal factors
    says("an attention_factor of 1.5 for YaRN with factor = 4", read, { attention_factor = 1.5 })
    says("an attention_factor of", read, { mscale = 2.0, mscale_all_dim = 1.0 })
end
TestExport = {}

function TestExport.tearDown()
    remove_all()
end

-- Every tensor of a saved folder is that of the golden one, bit for bit in the dtype of the golden file. Gemma's table
-- is multiplied by sqrt(emb) and divided again, in f32: that may change the last bit of f32, but none of bf16.
local function assert_same_tensors(path, name, dtype)
    local ours <close> = mx.weights.open(path)
    local theirs <close> = mx.weights.open(GOLDEN .. name)
    lu.assertEquals(util.sorted_keys(ours.tensors), util.sorted_keys(theirs.tensors))
    for key in pairs(theirs.tensors) do
        local a, b = ours:read(key):to("f32"), theirs:read(key):to("f32")
        lu.assertEquals(a:size(), b:size(), key)
        local scaled = dtype == "f32" and name:find("gemma") and key:find("embed_tokens")
        lu.assertTrue(largest(a - b) <= (scaled and 2 ^ -23 * largest(b) or 0), name .. ": " .. key)
    end
    lu.assertEquals(ours.keys, theirs.keys)
end

function TestExport.test_there_and_back()
    for i = 1, #FAMILIES - 4 do
        local step <close> = mx.step()
        local name = FAMILIES[i]
        local dtype = mx.weights.dtype(GOLDEN .. name)
        local words = { "weight_dtype=" .. (name:find("gemma") and "float32" or dtype) }
        local model = mx.weights.model(GOLDEN .. name, { words = words })
        lu.assertEquals(mx.weights.save(model, temporary(name), { dtype = util.dtype(dtype) }), (names_of(name)))
        assert_same_tensors(temporary(name), name)
        mx.weights.save(model, temporary(name .. "-shards"), { max_shard_size = 9000, dtype = "f32" })
        assert_same_tensors(temporary(name .. "-shards"), name, "f32")
        lu.assertFalse(mx.io.exists(temporary(name .. "-shards/model.safetensors")))
    end
end

-- What is stored in another way than it is saved: experts in two tensors of a layer, weights of one byte.
function TestExport.test_other_spellings()
    for _, name in ipairs({ "mixtral_fused", "qwen3_moe_fused", "deepseek_v3", "kimi_k2" }) do
        local step <close> = mx.step()
        local model = mx.weights.model(GOLDEN .. name)
        local family = name:gsub("_fused", ""):gsub("kimi_k2", "deepseek_v3")
        lu.assertEquals(mx.weights.save(model, temporary(name)), family)
        local again = mx.weights.model(temporary(name))
        lu.assertEquals(mx.weights.config(temporary(name)), mx.weights.config(GOLDEN .. name))
        for key, t in pairs(model.params) do
            lu.assertEquals(largest(t - again.params[key]), 0.0, name .. ": " .. key)
        end
        for key, t in pairs(model.buffers) do
            lu.assertEquals(largest(t - again.buffers[key]), 0.0, name .. ": " .. key)
        end
    end
end

function TestExport.test_shards_are_as_large_as_asked()
    local model = mx.weights.model(GOLDEN .. "qwen2")
    mx.weights.save(model, temporary("q"), { max_shard_size = 20000, dtype = "bf16" })
    local index = mx.io.json_decode(mx.io.read_file(temporary("q/model.safetensors.index.json")))
    local bytes, files = 0, {}
    for name, file in pairs(index.weight_map) do
        files[file] = true
        lu.assertNotNil(name)
    end
    for _, file in ipairs(util.sorted_keys(files)) do
        local opened <close> = mx.io.weights_open(temporary("q/" .. file))
        local here = 0
        for _, entry in ipairs(opened:info()) do
            here = here + entry.bytes
        end
        lu.assertTrue(here <= 20000)
        lu.assertEquals(opened:metadata(), { format = "pt" })
        bytes = bytes + here
    end
    lu.assertEquals(bytes, index.metadata.total_size)
    lu.assertEquals(#util.sorted_keys(files), 3)
end

-- By way of parameters.h5 nothing changes.
function TestExport.test_by_way_of_hdf5()
    for _, name in ipairs({ "llama31", "gpt2" }) do
        local model, config = mx.weights.model(GOLDEN .. name)
        mx.train.save(config, model, temporary(name .. ".h5"))
        local again = mx.weights.model(temporary(name .. ".h5"))
        lu.assertEquals(again.shape.blocks, model.shape.blocks)
        mx.weights.save(again, temporary(name), { dtype = "bf16" })
        assert_same_tensors(temporary(name), name)
    end
end

-- A tokenizer's files come along, and what config.json beside them says of special tokens; from parameters.h5 by way of
-- tokenizer_path.
function TestExport.test_a_tokenizer_comes_along()
    local from = temporary("from")
    mx.weights.save(mx.weights.model(GOLDEN .. "llama2"), from)
    mx.io.write_file_atomic(from .. "/tokenizer.json", "{}")
    local values = mx.io.json_decode(mx.io.read_file(from .. "/config.json"))
    lu.assertTrue(values.eos_token_id == mx.io.null)
    values.eos_token_id = 7
    mx.io.write_file_atomic(from .. "/config.json", mx.io.json_encode(values))
    local model, config = mx.weights.model(from)
    lu.assertEquals(config.tokenizer_path, from)
    mx.train.save(config, model, temporary("m.h5"))
    lu.assertEquals(mx.weights.tokenizer_of(temporary("m.h5")), from)
    mx.weights.save(model, temporary("to"), { tokenizer = from })
    lu.assertEquals(mx.io.read_file(temporary("to/tokenizer.json")), "{}")
    lu.assertEquals(mx.io.json_decode(mx.io.read_file(temporary("to/config.json"))).eos_token_id, 7)
    os.rename(from .. "/tokenizer.json", temporary("other.json"))
    lu.assertNil(mx.weights.tokenizer_of(from))
    mx.weights.save(model, temporary("single"), { tokenizer = temporary("other.json") })
    lu.assertEquals(mx.io.read_file(temporary("single/tokenizer.json")), "{}")
    mx.weights.save(model, temporary("gguf"), { tokenizer = GOLDEN .. "qwen3.gguf" })
    lu.assertEquals(mx.io.json_decode(mx.io.read_file(temporary("gguf/config.json"))).bos_token_id, 0)
    lu.assertEquals(mx.io.json_decode(mx.io.read_file(temporary("gguf/tokenizer_config.json"))).eos_token, "</s>")
    lu.assertEquals(mx.weights.tokenizer(temporary("gguf")):encode("the"):totable(), { 95 })
    local tokenizer = mx.weights.tokenizer(GOLDEN .. "qwen3.gguf")
    lu.assertEquals(tokenizer:encode("that"):totable(), { 94, 67, 86 })
    lu.assertEquals({ tokenizer.bos, tokenizer.add_bos }, { 0, false })
end

local LATENT = "model_name=tiny decoder_block=deepseek base_num_kv_heads=4 q_lora_rank=12 kv_lora_rank=10 "
    .. "qk_nope_head_dim=8 qk_rope_head_dim=4 v_head_dim=6 normalization_layer_epsilon=1e-6"

local GEMMA2 = "model_name=tiny decoder_block=gemma2 base_num_decoder_layers=1 sliding_window_size=9 "
    .. "use_post_attn_norm=true use_post_ffw_norm=true logits_via_embedding=true normalize_embedding_logits=true"

-- Models that were trained here: what they are exported as, and that it computes the same.
function TestExport.test_models_of_ours()
    for words, family in pairs({
        ["model_name=tiny"] = "llama", ["model_name=tiny-gpt2"] = "gpt2", ["model_name=tiny use_bias=true"] = "llama",
        ["model_name=tiny attention_bias=true logits_via_embedding=true normalize_embedding_logits=false"] = "qwen2",
        ["model_name=tiny use_qk_norm=true head_dim=8"] = "qwen3",
        ["model_name=tiny attention_type=local_sliding sliding_window_size=9"] = "mistral",
        ["model_name=tiny attention_type=local_sliding sliding_window_size=9 attention_bias=true"] = "qwen2",
        ["model_name=tiny mlp_activations=[gelu,linear]"] = "llama",
        ["model_name=tiny layer_types=[local,global] sliding_window_size=9"] = "ministral",
        ["model_name=tiny rope_type=yarn rope_interleave=false rope_attention_scaling=true"] = "llama",
        ["model_name=tiny decoder_block=gemma logits_via_embedding=true normalize_embedding_logits=true"] = "gemma",
        [GEMMA2 .. " attn_logits_soft_cap=0.1 final_logits_soft_cap=0.2"] = "gemma2", [GEMMA2] = "gemma2",
        ["model_name=tiny decoder_block=olmo3 layer_types=[global] use_qk_norm=true"] = "olmo2",
        ["model_name=tiny num_experts=4 num_experts_per_tok=2 base_moe_mlp_dim=24"] = "mixtral",
        ["model_name=tiny num_experts=4 num_experts_per_tok=2 use_qk_norm=true base_num_decoder_layers=4 "
            .. "interleave_moe_layer_step=2"] = "qwen3_moe",
        ["model_name=tiny num_experts=4 num_experts_per_tok=2 use_qk_norm=true first_num_dense_layers=1 "
            .. "routed_score_func=softmax"] = "qwen3_moe",
        ["model_name=tiny-gpt2 logits_via_embedding=false mlp_activations=[relu]"] = "gpt2",
        [LATENT] = "deepseek_v3", [LATENT .. " rope_type=yarn mscale=0.5 q_lora_rank=0"] = "deepseek_v3",
        [LATENT .. " num_experts=4 num_experts_per_tok=2 shared_experts=1 routed_score_func=softmax"] = "deepseek_v2",
        [LATENT .. " num_experts=4 num_experts_per_tok=2 shared_experts=2 routed_score_func=sigmoid routed_bias=true "
            .. "first_num_dense_layers=1 n_routing_groups=2 topk_routing_group=1 rope_type=yarn rope_interleave=false "
            .. "rope_attention_scaling=true"] = "deepseek_v3",
    }) do
        local step <close> = mx.step()
        local list = { "dtype=float32" }
        for word in words:gmatch("%S+") do
            list[#list + 1] = word
        end
        local model = mx.models.new(mx.config.load(list))
        lu.assertEquals(mx.weights.save(model, temporary("m")), family, words)
        local again = mx.weights.model(temporary("m"), F32)
        local tokens = mx.rand({ shape = { 2, 16 }, high = 256, seed = 3 }):to("i32")
        mx.no_grad(function()
            local a, b = model:logits(model:hidden(tokens)), again:logits(again:hidden(tokens))
            lu.assertEquals(largest(a - b), 0.0, words)
        end)
        remove_all()
    end
end

-- transformers makes the mask of local layers although no layer is local, and raises an error if there is no window.
function TestExport.test_a_window_that_no_layer_has()
    local words = { "layer_types=[global]" }
    for word in GEMMA2:gsub("sliding_window_size=9", ""):gmatch("%S+") do
        words[#words + 1] = word
    end
    mx.weights.save(mx.models.new(mx.config.load(words)), temporary("m"))
    local values = mx.io.json_decode(mx.io.read_file(temporary("m/config.json")))
    lu.assertEquals(values.layer_types, { "full_attention", "full_attention" })
    lu.assertTrue(values.sliding_window > 0)
    lu.assertEquals(mx.weights.config(temporary("m")).sliding_window_size, 0)
end

function TestExport.test_what_is_refused()
    local function save(...)
        return mx.weights.save(mx.models.new(mx.config.load { ... }), temporary("m"))
    end
    says("parallel_block = true", save, "model_name=tiny-parallel")
    says("final_logits_soft_cap", save, "model_name=tiny", "final_logits_soft_cap=30.0")
    says("RoPE of other frequencies", save, "model_name=tiny", "partial_rotary_factor=0.5")
    -- all layers are local
    says("RoPE of other frequencies", save, "model_name=tiny", "decoder_block=olmo3", "use_qk_norm=true",
        "layer_types=[local]", "sliding_window_size=9", "rope_min_timescale=2.0", "base_num_decoder_layers=4")
    says("rope_truncate = false", save, "model_name=tiny", "decoder_block=olmo3", "use_qk_norm=true", "rope_type=yarn",
        "rope_truncate=false", "rope_interleave=false", "layer_types=[local,global]", "sliding_window_size=9")
    says("several kinds of RoPE", save, "model_name=tiny", "layer_types=[local,global]", "sliding_window_size=9",
        "local_rope_max_timescale=100")
    says("without logits_via_embedding", save, "model_name=tiny", "decoder_block=gemma")
    says("use_qk_norm together with biases", save, "model_name=tiny", "use_qk_norm=true", "attention_bias=true")
    says("neither those of GPT-2", save, "model_name=tiny", "normalization_layer=layernorm")
    for words, reason in pairs({
        ["shared_experts=1"] = "shared_experts", ["routed_score_func=sigmoid"] = "routed_score_func = sigmoid",
        ["routed_scaling_factor=2.5"] = "routed_scaling_factor", ["mlp_activations=[relu]"] = "experts without a gate",
        ["first_num_dense_layers=1"] = "layers without experts among others",
        ["routed_score_func=softmax"] = "experts whose shares do not sum to 1",
        ["use_qk_norm=true layer_types=[local,global] sliding_window_size=9"] = "experts together with windows in some",
        ["layer_types=[local,global] sliding_window_size=9"] = "experts together with windows in some",
    }) do
        local list = { "model_name=tiny", "num_experts=4", "num_experts_per_tok=2" }
        for word in words:gmatch("%S+") do
            list[#list + 1] = word
        end
        says(reason, save, table.unpack(list))
    end
    for words, reason in pairs({
        ["routed_score_func=softmax"] = "with experts, without shared_experts",
        ["routed_score_func=sigmoid shared_experts=1"] = "with routed_bias = true, it starts at 0",
        ["routed_score_func=softmax norm_topk_prob=true shared_experts=1"] = "other than softmax",
        ["routed_score_func=softmax routed_bias=true shared_experts=1"] = "softmax and routed_bias",
        ["routed_score_func=softmax shared_experts=1 n_routing_groups=2 topk_routing_group=1"] =
            "routed_score_func = softmax and routing_group_score = sum_of_two",
        ["routed_score_func=softmax shared_experts=1 interleave_moe_layer_step=2 base_num_decoder_layers=4"] =
            "interleave_moe_layer_step",
        ["num_experts=1 num_experts_per_tok=1 attn_logits_soft_cap=9"] = "attn_logits_soft_cap",
        ["num_experts=1 num_experts_per_tok=1 normalization_layer_epsilon=1e-5"] = "= 1e-05 instead of 1e-06",
    }) do
        local list = {}
        for word in (LATENT .. " num_experts=4 num_experts_per_tok=2 " .. words):gmatch("%S+") do
            list[#list + 1] = word
        end
        says(reason, save, table.unpack(list))
    end
    save("model_name=tiny")
    says("holds a model already (config.json)", save, "model_name=tiny")
    local model = mx.models.new(mx.config.load { "model_name=tiny" })
    says("has none of tokenizer.json", mx.weights.save, model, temporary("n"), { tokenizer = GOLDEN })
end
