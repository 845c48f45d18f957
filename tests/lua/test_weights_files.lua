-- Which file a path of weights means: by its first bytes and not its name; split files, folders, what is no weights.

local lu = require "luaunit"
local mx = require "mx"

local GOLDEN = mx.root .. "tests/golden/weights/"
local SPLIT = "llama31-%05d-of-00003.gguf"

TestWeightFiles = {}

local folder

function TestWeightFiles.setUp()
    folder = os.tmpname()
    os.remove(folder)
    mx.io.mkdir_p(folder)
end

function TestWeightFiles.tearDown()
    os.execute("rm -rf '" .. folder .. "'")
end

local function write(name, text)
    mx.io.write_file_atomic(folder .. "/" .. name, text)
    return folder .. "/" .. name
end

-- A copy of a golden file under another name.
local function copy(from, to)
    return write(to, mx.io.read_file(GOLDEN .. from))
end

local function says(expected, f, ...)
    local ok, message = pcall(f, ...)
    lu.assertFalse(ok, expected)
    lu.assertStrContains(tostring(message), expected)
    lu.assertNotStrContains(tostring(message), "\n")
end

local function assert_same(path, other)
    local step <close> = mx.step()
    local a, b = mx.weights.model(path), mx.weights.model(other)
    for name, t in pairs(a.params) do
        lu.assertEquals(t:totable(), b.params[name]:totable(), name)
    end
end

function TestWeightFiles.test_the_first_bytes_count()
    for _, name in ipairs { "model.GGUF", "model", "model.safetensors", "model.bin" } do
        assert_same(copy("llama31.gguf", name), GOLDEN .. "llama31.gguf")
    end
    copy("llama2/config.json", "config.json")
    for _, name in ipairs { "model.SAFETENSORS", "weights", "x.gguf", "x.h5" } do
        assert_same(copy("llama2/model.safetensors", name), GOLDEN .. "llama2")
    end
    local model, config = mx.weights.model(GOLDEN .. "llama2")
    mx.train.save(config, model, folder .. "/parameters.h5")
    os.rename(folder .. "/parameters.h5", folder .. "/y.gguf")
    assert_same(folder .. "/y.gguf", GOLDEN .. "llama2")
end

function TestWeightFiles.test_a_split_gguf_file()
    for part = 1, 3 do
        assert_same(GOLDEN .. SPLIT:format(part), GOLDEN .. "llama31.gguf")
        lu.assertEquals(mx.tokenizer.open(GOLDEN .. SPLIT:format(part)).vocab_size, 96)
        copy(SPLIT:format(part), SPLIT:format(part))
    end
    assert_same(folder, GOLDEN .. "llama31.gguf") -- a folder with one model
    copy("qwen3.gguf", "other.gguf")
    says("has several models: give one of " .. SPLIT:format(1) .. ", other.gguf", mx.weights.model, folder)
    local names = copy(SPLIT:format(2), "renamed.gguf")
    says("is part 2 of 3 of a split GGUF file, and its name does not say so", mx.weights.model, names)
    copy(SPLIT:format(1), SPLIT:format(3))
    says("says that it is part 1 of 3: it does not belong to", mx.weights.model, folder .. "/" .. SPLIT:format(2))
    os.remove(folder .. "/" .. SPLIT:format(3))
    says("part 3 is missing: there is no " .. folder .. "/" .. SPLIT:format(3), mx.weights.model,
        folder .. "/" .. SPLIT:format(2))
end

function TestWeightFiles.test_a_shard_stands_for_all()
    assert_same(GOLDEN .. "qwen2/model-00002-of-00003.safetensors", GOLDEN .. "qwen2")
end

function TestWeightFiles.test_pointers_of_git_lfs()
    local pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:aaaa\nsize 123\n"
    for _, name in ipairs { "model.safetensors", "model.gguf", "model.h5", "model" } do
        says("is a git-lfs pointer, not the file: run git lfs pull", mx.weights.model, write(name, pointer))
    end
    copy("llama2/config.json", "config.json")
    says("model.safetensors' is a git-lfs pointer, not the file: run git lfs pull", mx.weights.model, folder)
    copy("llama2/model.safetensors", "model.safetensors")
    write("config.json", pointer)
    says("config.json' is a git-lfs pointer, not the file: run git lfs pull", mx.weights.model, folder)
    says("is a git-lfs pointer", mx.io.weights_open, folder .. "/model.gguf")
end

function TestWeightFiles.test_what_is_no_weights()
    says("is a pickled file (of PyTorch), which is not read", mx.weights.model,
        write("pytorch_model.bin", "PK\3\4" .. ("\0"):rep(60)))
    says("is a pickled file (of PyTorch)", mx.weights.model,
        write("old.pt", "\x80\2\x8a\10l\xfc\x9cF\xf9 j\xa8P\x19.\x80\2"))
    says("has no weights: it begins like no safetensors, GGUF or HDF5 file", mx.weights.model, write("a.txt", "hello"))
    copy("llama2/config.json", "config.json")
    says("; old.pt is not read: save the model with safe_serialization", function()
        os.remove(folder .. "/pytorch_model.bin")
        mx.weights.model(folder)
    end)
    copy("llama2/model.safetensors", "adapter_model.safetensors")
    says("has neither model.safetensors nor model.safetensors.index.json; of what it has, give the model's file: "
        .. "adapter_model.safetensors", mx.weights.model, folder)
end

-- ---- how texts are cut, by name ----

TestGgufCuts = {}

-- What the model's own tokenizer.json says, by the package that made it: tests/golden/unicode.json.
function TestGgufCuts.test_patterns_are_those_of_the_reference()
    local gguf, cases = require "mx.weights.gguf", {}
    for _, case in ipairs(mx.io.json_decode(mx.io.read_file(mx.root .. "tests/golden/unicode.json")).cases) do
        cases[case.name] = case
    end
    local function cut(name)
        local json = gguf.tokenizer({ path = "m", metadata = { ["tokenizer.ggml.model"] = "gpt2",
            ["tokenizer.ggml.pre"] = name, ["tokenizer.ggml.tokens"] = { "a" }, ["tokenizer.ggml.merges"] = {} } })
        return mx.io.json_decode(json)
    end
    for name, like in pairs { ["llama-bpe"] = "Llama 3", qwen2 = "Qwen 2", ["deepseek-r1-qwen"] = "Qwen 2",
        ["gpt-4o"] = "o200k", llama4 = "o200k", tekken = "tekken", ["deepseek-v3"] = "DeepSeek V3" } do
        local t, case = cut(name), cases[like]
        lu.assertEquals(t.normalizer, case.normalizer, name)
        for i, step in ipairs(case.pre_tokenizer.pretokenizers) do
            lu.assertEquals((t.pre_tokenizer.pretokenizers[i].pattern or {}).Regex, (step.pattern or {}).Regex, name)
        end
    end
    lu.assertEquals({ cut("tekken").model.ignore_merges, cut("gpt-4o").model.ignore_merges }, { true, false })
end
