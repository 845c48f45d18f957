-- The formats of weights: GGUF files as llama.cpp's converter writes them, their types and tokenizers; the writer of
-- safetensors.

local lu = require "luaunit"
local mx = require "mx"
local gguf = require "mx.weights.gguf"
local util = require "mx.util"
local checks = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "checks.lua")

local GOLDEN = mx.root .. "tests/golden/weights/"
local F32 = { words = { "dtype=float32" } }

local assert_close, says = checks.assert_close, checks.says

TestGguf = {}

-- The same weights in a GGUF file, as llama.cpp's converter stores them: Gemma's norms with the 1 that is added to them
-- here, its table without the factor that rows get. GGUF has no query_pre_attn_scalar.
function TestGguf.test_gguf_files_are_the_same_as_folders()
    for _, name in ipairs { "gemma", "gemma2", "gemma3", "linear" } do
        local step <close> = mx.step()
        local keys, expected = mx.weights.config(GOLDEN .. name .. ".gguf"), mx.weights.config(GOLDEN .. name)
        keys.query_pre_attn_scalar = expected.query_pre_attn_scalar
        lu.assertEquals(keys, expected, name)
        local model, same = mx.weights.model(GOLDEN .. name .. ".gguf", F32), mx.weights.model(GOLDEN .. name, F32)
        for key, t in util.sorted_pairs(same.params) do
            assert_close(model.params[key]:detach(), t:detach(), 1e-6, name .. ": " .. key) -- 1 + w in f32, less 1
        end
    end
end

-- The keys of a GGUF file with other metadata.
local function gguf_keys(name, changes)
    local source <close> = mx.weights.open(GOLDEN .. name)
    for key, value in pairs(changes) do
        source.metadata[key] = value or nil
    end
    return (gguf.keys(source))
end

-- llama.cpp multiplies YaRN's cosines and sines by 0.1 ln(factor) + 1, and that by the factors in the file.
function TestGguf.test_yarn_of_gguf()
    local changes = {
        ["qwen3.rope.scaling.type"] = "yarn", ["qwen3.rope.scaling.factor"] = 4.0,
        ["qwen3.rope.scaling.original_context_length"] = 16, ["qwen3.rope.scaling.yarn_beta_fast"] = 8.0,
    }
    local keys = gguf_keys("qwen3.gguf", changes)
    lu.assertEquals({ keys.rope_type, keys.rope_factor, keys.original_max_position_embeddings, keys.beta_fast,
        keys.beta_slow, keys.rope_truncate, keys.rope_interleave, keys.rope_attention_scaling },
        { "yarn", 4.0, 16, 8.0, 1.0, true, false, true })
    changes["qwen3.rope.scaling.attn_factor"] = 1 / (0.1 * math.log(4) + 1)
    lu.assertFalse(gguf_keys("qwen3.gguf", changes).rope_attention_scaling)
    changes["qwen3.rope.scaling.attn_factor"] = 2.0
    says("an attention_factor of 2.27726 for YaRN", gguf_keys, "qwen3.gguf", changes)
    changes["qwen3.rope.scaling.attn_factor"], changes["qwen3.rope.scaling.original_context_length"] = nil, nil
    lu.assertEquals(gguf_keys("qwen3.gguf", changes).original_max_position_embeddings, 64) -- the context length
    changes["qwen3.rope.scaling.type"] = "longrope"
    says("RoPE of the type 'longrope' is not computed here; there are linear and yarn", gguf_keys, "qwen3.gguf",
        changes)
    for _, kind in ipairs { false, "none" } do -- a factor without a type is linear
        local linear = gguf_keys("qwen3.gguf", {
            ["qwen3.rope.scaling.type"] = kind, ["qwen3.rope.scaling.factor"] = 4.0,
        })
        lu.assertEquals(linear.rope_linear_scaling_factor, kind and 1.0 or 4.0)
    end
end

-- Models of 27B, which llama.cpp knows by their layers, divide scores by sqrt(emb / heads). Here: 24 features, 4 heads.
function TestGguf.test_scale_of_attention_in_gguf_of_gemma()
    lu.assertEquals(gguf_keys("gemma2.gguf", {}).query_pre_attn_scalar, 0.0) -- sqrt(head_dim)
    lu.assertEquals(gguf_keys("gemma2.gguf", { ["gemma2.block_count"] = 46 }).query_pre_attn_scalar, 6.0)
    lu.assertEquals(gguf_keys("gemma3.gguf", { ["gemma3.block_count"] = 62 }).query_pre_attn_scalar, 6.0)
    local keys = gguf_keys("gemma2.gguf", { ["gemma2.attn_logit_softcapping"] = false,
        ["gemma2.final_logit_softcapping"] = false, ["gemma2.attention.sliding_window"] = false })
    lu.assertEquals({ keys.attn_logits_soft_cap, keys.final_logits_soft_cap, keys.sliding_window_size },
        { 50, 30, 4096 })
    says("'clip' is none of those that are read: gemma, gemma2, gemma3, gpt2", gguf_keys, "gemma3.gguf",
        { ["general.architecture"] = "clip" }) -- images
end

function TestGguf.test_types_of_gguf()
    local expected = checks.read_all(GOLDEN .. "types.expected.safetensors")
    local file <close> = mx.io.weights_open(GOLDEN .. "types.gguf")
    local tested = 0
    for _, entry in ipairs(file:info()) do
        local found = file:read(entry.name):to("f32"):view(512):totable()
        for i, value in ipairs(expected[entry.name]:view(512):totable()) do
            -- The package may round d q + m once or twice.
            lu.assertTrue(found[i] == value or math.abs(found[i] - value) <= 1e-6 * (1 + math.abs(value)), entry.name)
        end
        lu.assertEquals(file:read(entry.name, { first = 2, rows = 1 }):size(), { 1, 256 })
        if entry.name == "Q8_0" then
            local codes, scale = file:read_codes(entry.name, { first = 2, rows = 1 })
            lu.assertEquals((codes:view(8, 32):to("f32") * scale:view(8, 1)):view(1, 256):totable(),
                file:read(entry.name, { first = 2, rows = 1 }):totable())
        else
            says("codes are read of matrices of Q8_0", file.read_codes, file, entry.name)
        end
        tested = tested + 1
    end
    lu.assertEquals(tested, 12)
    local m = file:metadata()
    lu.assertEquals({ m["test.u64"], m["test.i8"], m["test.f64"], m["test.bool"], #m["test.array"] },
        { 2 ^ 40 | 0, -3, 0.1, true, 3 })
end


TestSafetensorsWriter = {}

local PATH = os.tmpname()
os.remove(PATH)

function TestSafetensorsWriter.tearDown()
    os.remove(PATH)
end

function TestSafetensorsWriter.test_every_dtype_and_shape()
    local tensors = {
        f32 = mx.tensor { { 1.5, -2 }, { 3, 4 } }, bf16 = mx.tensor({ 1, 2, 3 }, "bf16"),
        i32 = mx.tensor({ -7, 1 << 30 }, "i32"), u8 = mx.tensor({ 1, 255 }, "u8"), i8 = mx.tensor({ -128 }, "i8"),
        scalar = mx.tensor(2.5), empty = mx.zeros { 0, 3 },
    }
    local plan = {}
    for name, t in util.sorted_pairs(tensors) do
        plan[#plan + 1] = { name = name, dtype = t:dtype(), shape = t:size() }
    end
    local writer = mx.io.safetensors_writer(PATH, plan)
    for name, t in pairs(tensors) do
        writer:put(name, t)
    end
    lu.assertFalse(mx.io.exists(PATH))
    writer:commit()
    for name, t in pairs(checks.read_all(PATH)) do
        lu.assertEquals({ t:dtype(), t:size(), t:totable() },
            { tensors[name]:dtype(), tensors[name]:size(), tensors[name]:totable() }, name)
        tensors[name] = nil
    end
    lu.assertNil(next(tensors))
end

function TestSafetensorsWriter.test_what_is_refused()
    local path = PATH
    local function writer()
        return mx.io.safetensors_writer(path, { { name = "a", dtype = "f32", shape = { 2 } } })
    end
    says("'a' is given twice", mx.io.safetensors_writer, path,
        { { name = "a", shape = { 1 } }, { name = "a", shape = { 2 } } })
    local w = writer()
    says("'b' was not planned", w.put, w, "b", mx.ones { 2 })
    says("'a' is bf16, planned was f32", w.put, w, "a", mx.ones({ 2 }, "bf16"))
    says("'a' is (3), planned was (2)", w.put, w, "a", mx.ones { 3 })
    w:put("a", mx.ones { 2 })
    says("'a' was put before", w.put, w, "a", mx.ones { 2 })
    w:abort()
    says("committed or aborted", w.commit, w)
    w = writer()
    says("'a' was not put", w.commit, w)
    lu.assertFalse(mx.io.exists(path))
end

TestGgufTokenizer = {}

local function metadata_of(path)
    local file <close> = mx.io.weights_open(path)
    return file:metadata()
end

function TestGgufTokenizer.test_byte_pairs()
    local json, special = gguf.tokenizer({ path = "m", metadata = metadata_of(GOLDEN .. "qwen3.gguf") })
    local t = mx.io.json_decode(json)
    lu.assertEquals({ t.model.type, t.model.vocab.the, #t.model.merges, t.model.merges[1] }, { "BPE", 95, 2, "t h" })
    lu.assertEquals({ t.pre_tokenizer.type, t.pre_tokenizer.use_regex }, { "ByteLevel", true })
    lu.assertEquals({ #t.added_tokens, t.added_tokens[2].content, t.added_tokens[2].id }, { 3, "</s>", 1 })
    lu.assertEquals({ special.bos, special.eos }, { 0, 1 })
    local metadata = metadata_of(GOLDEN .. "qwen3.gguf")
    metadata["tokenizer.ggml.pre"] = "llama-bpe"
    t = mx.io.json_decode((gguf.tokenizer({ path = "m", metadata = metadata })))
    lu.assertEquals({ t.model.ignore_merges, t.pre_tokenizer.pretokenizers[1].type }, { true, "Split" })
    metadata["tokenizer.ggml.pre"] = "kimi-k2"
    says("cuts texts as 'kimi-k2' does", gguf.tokenizer, { path = "m", metadata = metadata })
    for _, name in ipairs { "default", false } do -- a file of GPT-2 needs no name, others do
        metadata["tokenizer.ggml.pre"], metadata["general.architecture"] = name or nil, "qwen3"
        says("does not say how its tokenizer cuts texts", gguf.tokenizer, { path = "m", metadata = metadata })
        metadata["general.architecture"] = "gpt2"
        t = mx.io.json_decode((gguf.tokenizer({ path = "m", metadata = metadata })))
        lu.assertEquals({ t.pre_tokenizer.type, t.pre_tokenizer.use_regex }, { "ByteLevel", true })
    end
    metadata["tokenizer.ggml.model"] = "bert"
    says("the tokenizer 'bert' is not known", gguf.tokenizer, { path = "m", metadata = metadata })
end

-- The merges of a SentencePiece vocabulary: best score first, of one score the longer left half, then the right one.
function TestGgufTokenizer.test_sentence_piece()
    local json = gguf.tokenizer({ path = "m", metadata = {
        ["tokenizer.ggml.model"] = "llama",
        ["tokenizer.ggml.tokens"] = { "<unk>", "a", "b", "ab", "aba", "abab", "\u{2581}", "\u{2581}a" },
        ["tokenizer.ggml.scores"] = { 0.0, -9.0, -9.0, -1.0, -3.0, -2.0, -9.0, -2.0 },
        ["tokenizer.ggml.token_type"] = { 2, 1, 1, 1, 1, 1, 1, 1 }, ["tokenizer.ggml.unknown_token_id"] = 0,
    } })
    local t, merges = mx.io.json_decode(json), {}
    for i, merge in ipairs(t.model.merges) do
        merges[i] = merge[1] .. "+" .. merge[2]
    end
    lu.assertEquals(merges, { "a+b", "aba+b", "\u{2581}+a", "ab+ab", "ab+a" })
    lu.assertEquals({ t.model.unk_token, t.model.byte_fallback, t.normalizer.normalizers[1].type },
        { "<unk>", true, "Prepend" })
end
