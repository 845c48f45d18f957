-- A model, its data and its parameters are of one tokenizer; where a generated text ends; paths that are wrong.

local lu = require "luaunit"
local mx = require "mx"

local GOLDEN = mx.root .. "tests/golden/"
local LLAMA3, QWEN2, GPT2 = GOLDEN .. "tokenizer_llama3.json", GOLDEN .. "tokenizer_qwen2.json",
    GOLDEN .. "tokenizer_gpt2.json"

local folder

local function set_up()
    folder = os.tmpname()
    os.remove(folder)
    mx.io.mkdir_p(folder)
end

local function tear_down()
    os.execute("rm -rf '" .. folder .. "'")
end

local function write(name, text)
    local path = folder .. "/" .. name
    mx.io.mkdir_p(path:match("^(.*)/"))
    mx.io.write_file_atomic(path, text)
    return path
end

local function says(expected, f, ...)
    local ok, message = pcall(f, ...)
    lu.assertFalse(ok, expected)
    for _, part in ipairs(type(expected) == "table" and expected or { expected }) do
        lu.assertStrContains(tostring(message), part)
    end
    lu.assertNil(tostring(message):find("\n"), "a message of more than one line")
end

local TEXT = ("We'll count 12 345 lamps; the sea was calm.\n"):rep(40)

-- A token store of TEXT.
local function store(name, tokenizer)
    local path = folder .. "/" .. name
    mx.prepare.run { input = { write(name .. ".txt", TEXT) }, out = path, tokenizer = tokenizer }
    return path
end

local function open(words)
    local all = { "model_name=tiny", "vocab_size=1100", "max_target_length=16", "per_device_batch_size=1" }
    return mx.data.open(mx.config.load(table.move(words, 1, #words, #all + 1, all)))
end

-- ---- fingerprints ----

TestFingerprint = { setUp = set_up, tearDown = tear_down }

function TestFingerprint.test_spellings_of_one_tokenizer_are_equal()
    local data = mx.io.json_decode(mx.io.read_file(LLAMA3))
    local expected = mx.tokenizer.open(LLAMA3):fingerprint()
    for i, pair in ipairs(data.model.merges) do
        data.model.merges[i] = type(pair) == "table" and pair[1] .. " " .. pair[2] or pair
    end
    data.version, data.truncation = "2.0", { max_length = 4, strategy = "LongestFirst", stride = 0 }
    data.post_processor, data.decoder.trim_offsets = mx.io.null, false
    local other = write("other/tokenizer.json", mx.io.json_encode(data, { indent = 2 }))
    lu.assertEquals(mx.tokenizer.open(other):fingerprint(), expected)
    lu.assertEquals(mx.tokenizer.open(folder .. "/other"):fingerprint(), expected)
end

function TestFingerprint.test_what_changes_ids_changes_it()
    local seen = { [mx.tokenizer.open(""):fingerprint()] = "bytes" }
    local function differs(what, change)
        local data = mx.io.json_decode(mx.io.read_file(LLAMA3))
        change(data)
        local sum = mx.tokenizer.from_json(mx.io.json_encode(data)):fingerprint()
        lu.assertNil(seen[sum], what)
        seen[sum] = what
    end
    differs("nothing", function() end)
    differs("no merges", function(data) data.model.merges = mx.io.array {} end)
    differs("merges in another order", function(data)
        local merges = data.model.merges
        merges[1], merges[2] = merges[2], merges[1]
        merges[10], merges[200] = merges[200], merges[10]
    end)
    differs("two ids exchanged", function(data)
        local vocab = data.model.vocab
        vocab.er, vocab["he"] = vocab["he"], vocab.er
    end)
    differs("a further token", function(data)
        table.insert(data.added_tokens, { id = 1090, content = "<new>", special = true })
    end)
    differs("a normalizer", function(data) data.normalizer = { type = "NFKC" } end)
    differs("another cut", function(data)
        data.pre_tokenizer = { type = "ByteLevel", add_prefix_space = false, use_regex = true }
    end)
end

function TestFingerprint.test_a_gguf_file_has_that_of_its_tokenizer_json()
    local path = GOLDEN .. "weights/qwen3.gguf"
    mx.weights.save(mx.weights.model(path), folder .. "/hf", { tokenizer = path })
    local tokenizer = mx.tokenizer.open(path)
    lu.assertEquals(mx.tokenizer.open(folder .. "/hf"):fingerprint(), tokenizer:fingerprint())
end

-- ---- data ----

TestDataTokenizer = { setUp = set_up, tearDown = tear_down }

function TestDataTokenizer.test_a_store_of_another_tokenizer_is_refused()
    local path = store("llama3.h5", LLAMA3)
    says({ "tokenizer_path=" .. QWEN2, path, "made by " .. LLAMA3, mx.tokenizer.open(QWEN2):fingerprint(),
        mx.tokenizer.open(LLAMA3):fingerprint() },
        open, { "dataset_type=hdf5", "dataset_path=" .. path, "tokenizer_path=" .. QWEN2 })
    local copy = write("copy/tokenizer.json", mx.io.read_file(LLAMA3))
    for _, same in ipairs { LLAMA3, copy, folder .. "/copy", "" } do
        open { "dataset_type=hdf5", "dataset_path=" .. path, "tokenizer_path=" .. same }
    end
end

-- Older stores have the checksum of the file tokenizer.json.
function TestDataTokenizer.test_a_store_with_an_older_fingerprint()
    local path = folder .. "/old.h5"
    local part <close> = mx.io.token_part(path .. ".part", 2)
    local step <close> = mx.step()
    part:add(mx.tokenizer.open(LLAMA3):encode(TEXT))
    part:commit(0)
    mx.io.token_parts_merge({ path .. ".part" }, path, { vocab_size = 1004, tokenizer = "llama3",
        fingerprint = ("crc32c:%08x"):format(mx.io.crc32c(mx.io.read_file(LLAMA3))) })
    open { "dataset_type=hdf5", "dataset_path=" .. path, "tokenizer_path=" .. LLAMA3 }
    says({ QWEN2, "made by llama3" }, open,
        { "dataset_type=hdf5", "dataset_path=" .. path, "tokenizer_path=" .. QWEN2 })
end

function TestDataTokenizer.test_a_mix_of_two_tokenizers_is_refused()
    local bytes, bpe, again = store("bytes.h5", "bytes"), store("bpe.h5", LLAMA3), store("again.h5", LLAMA3)
    says({ bytes, bpe, "made by " .. LLAMA3 }, open,
        { "dataset_type=hdf5", ("dataset_mix=[[%s, 1], [%s, 2]]"):format(bytes, bpe) })
    open { "dataset_type=hdf5", ("dataset_mix=[[%s, 1], [%s, 2]]"):format(again, bpe) }
end

function TestDataTokenizer.test_text_is_bytes()
    local path = write("t.txt", TEXT)
    says({ "tokenizer_path=" .. LLAMA3, path .. ", which dataset_type=text reads as bytes" }, open,
        { "dataset_type=text", "dataset_path=" .. path, "tokenizer_path=" .. LLAMA3 })
    open { "dataset_type=text", "dataset_path=" .. path, "tokenizer_path=bytes" }
    open { "dataset_type=text", "dataset_path=" .. path }
end

function TestDataTokenizer.test_a_tokenizer_larger_than_the_vocabulary()
    says("has 1,004 ids, and vocab_size is 999", open, { "tokenizer_path=" .. LLAMA3, "vocab_size=999" })
end

function TestDataTokenizer.test_another_tokenizer_than_that_of_the_parameters()
    local from = folder .. "/hf"
    mx.weights.save(mx.weights.model(GOLDEN .. "weights/llama31"), from, { tokenizer = GOLDEN .. "weights/qwen3.gguf" })
    local path = store("llama3.h5", LLAMA3)
    local words = { "load_parameters_path=" .. from, "max_target_length=16", "per_device_batch_size=1" }
    local own = mx.config.load(words)
    lu.assertEquals(own.tokenizer_path, from)
    words[4], words[5] = "dataset_type=hdf5", "dataset_path=" .. path
    lu.assertFalse(pcall(mx.data.open, mx.config.load(words))) -- whose ids pass the vocabulary, too
    words[4], words[5] = "tokenizer_path=" .. GOLDEN .. "tokenizer_small.json", nil
    says("there is no tokenizer", mx.data.open, mx.config.load(words))
end

function TestDataTokenizer.test_another_tokenizer_than_that_of_a_gguf_file()
    local gguf, words = GOLDEN .. "weights/qwen3.gguf", { "max_target_length=16", "per_device_batch_size=1" }
    local function load()
        return mx.data.open(mx.config.load(table.move(words, 1, #words, 2, { "load_parameters_path=" .. gguf })))
    end
    local path = write("t.txt", ("a b c "):rep(40))
    words[3], words[4], words[5] = "dataset_type=text", "dataset_path=" .. path, "vocab_size=256"
    says({ "load_parameters_path=" .. gguf, path .. ", which dataset_type=text reads as bytes" }, load)
end

function TestDataTokenizer.test_a_resumed_run_whose_tokenizer_changed()
    local path = store("llama3.h5", LLAMA3)
    local words = { "dataset_type=hdf5", "dataset_path=" .. path }
    local function data_of(tokenizer)
        return open { words[1], words[2], "tokenizer_path=" .. tokenizer }
    end
    local state = data_of(LLAMA3):state()
    data_of(LLAMA3):restore(state)
    data_of(""):restore(state)
    open({ "tokenizer_path=" .. LLAMA3 })
    local random = open({ "tokenizer_path=" .. LLAMA3 }):state()
    says({ "tokenizer_path=" .. LLAMA3 .. " of the checkpoint", "tokenizer_path=" .. QWEN2 .. " now" }, function()
        open({ "tokenizer_path=" .. QWEN2 }):restore(random)
    end)
end

-- ---- parameters ----

TestParametersTokenizer = { setUp = set_up, tearDown = tear_down }

function TestParametersTokenizer.test_generating_with_another_one_is_refused()
    local step <close> = mx.step()
    local tokenizer = write("tokenizer.json", mx.io.read_file(LLAMA3))
    local config = mx.config.load { "model_name=tiny", "vocab_size=1100", "tokenizer_path=" .. tokenizer }
    local path = mx.train.save(config, mx.models.new(config), folder .. "/parameters.h5")
    lu.assertEquals(mx.weights.tokenizer_fingerprint(path), mx.tokenizer.open(LLAMA3):fingerprint())
    lu.assertEquals(mx.generate.tokenizer(config, path, "").vocab_size, 1004)
    lu.assertEquals(mx.generate.tokenizer(config, path, LLAMA3).vocab_size, 1004)
    says({ "tokenizer=" .. QWEN2, path }, mx.generate.tokenizer, config, path, QWEN2)
    write("tokenizer.json", mx.io.read_file(QWEN2)) -- the file of that path is another one now
    says({ "tokenizer_path=" .. tokenizer, path }, mx.generate.tokenizer, config, path, "")
    lu.assertEquals(mx.generate.tokenizer(config, path, LLAMA3).vocab_size, 1004)
    os.remove(tokenizer)
    lu.assertEquals(mx.generate.tokenizer(config, path, LLAMA3).vocab_size, 1004)
    says("there is no tokenizer", mx.generate.tokenizer, config, path, "")
end

function TestParametersTokenizer.test_evaluating_a_store_of_another_one_is_refused()
    local step <close> = mx.step()
    local path = store("llama3.h5", LLAMA3)
    local o = { format = "hdf5", vocab = 1100, max_tokens = 0, bos = false }
    for _, same in ipairs { LLAMA3, "" } do
        o.tokenizer = same ~= "" and mx.tokenizer.open(same) or nil
        mx.evaluate.tokens(path, o)
    end
    o.tokenizer = mx.tokenizer.open(QWEN2)
    says({ QWEN2, path, "made by " .. LLAMA3 }, mx.evaluate.tokens, path, o)
end

-- ---- paths ----

TestTokenizerPath = { setUp = set_up, tearDown = tear_down }

function TestTokenizerPath.test_a_path_that_is_not_there()
    write("llama3/tokenizer.json", mx.io.read_file(LLAMA3))
    write("gpt2.json", mx.io.read_file(GPT2))
    says({ "there is no tokenizer '" .. folder .. "/llama'", "did you mean '" .. folder .. "/llama3'?" },
        mx.tokenizer.open, folder .. "/llama")
    says("did you mean '" .. folder .. "/gpt2.json'?", mx.tokenizer.open, folder .. "/gpt3.json")
    says("(" .. folder .. "/ has gpt2.json, llama3)", mx.tokenizer.open, folder .. "/entirely/elsewhere")
    says("there is no tokenizer 'nowhere'", mx.tokenizer.open, "nowhere")
    mx.io.mkdir_p(folder .. "/empty")
    says("the folder '" .. folder .. "/empty' has no tokenizer.json", mx.tokenizer.open, folder .. "/empty")
end

function TestTokenizerPath.test_it_is_refused_before_training()
    says({ "command line: tokenizer_path: there is no tokenizer 'nowhere'" }, open, { "tokenizer_path=nowhere" })
end

function TestTokenizerPath.test_a_pointer_of_git_lfs()
    local path = write("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:aaaa\nsize 123\n")
    says({ path, "is a git-lfs pointer, not the file: run git lfs pull" }, mx.tokenizer.open, path)
    says("is a git-lfs pointer, not the file", mx.tokenizer.open, folder)
end

-- ---- where a text ends ----

TestEnds = { setUp = set_up, tearDown = tear_down }

function TestEnds.test_files_of_a_folder()
    write("tokenizer.json", mx.io.read_file(QWEN2))
    local ends = mx.tokenizer.open(QWEN2):id "<|im_end|>"
    local function with(settings, config, generation)
        for name, text in pairs { ["tokenizer_config"] = settings, config = config, generation_config = generation } do
            write(name .. ".json", text)
        end
        return mx.tokenizer.open(folder).ends
    end
    lu.assertEquals(with('{"eos_token": "<|im_end|>"}', '{}', '{}'), { ends })
    lu.assertEquals(with('{}', '{"eos_token_id": 7}', '{"eos_token_id": [7, 9]}'), { 7, 9 })
    lu.assertEquals(with('{"eos_token": ["<|im_end|>", {"content": "<|endoftext|>"}]}', '{"eos_token_id": null}',
        '{"eos_token_id": 5}'), { ends, 1000, 5 })
    says({ "generation_config.json: eos_token_id: expected a token id or a list of them, got x" }, with, '{}', '{}',
        '{"eos_token_id": "x"}')
end

function TestEnds.test_keys_of_a_gguf_file()
    local g = { path = "m", metadata = { ["tokenizer.ggml.eos_token_id"] = 3, ["tokenizer.ggml.eot_token_id"] = 4,
        ["tokenizer.ggml.eom_token_id"] = 5 } }
    local gguf = require "mx.weights.gguf"
    lu.assertEquals(gguf.ends(g), { 3, 4, 5 })
    g.metadata = { ["tokenizer.ggml.eos_token_id"] = 0,
        ["tokenizer.ggml.tokens"] = { "a", "<|eot_id|>", "<|eom_id|>", "<|im_end|>" },
        ["tokenizer.ggml.token_type"] = { 1, 3, 3, 1 } }
    lu.assertEquals(gguf.ends(g), { 0, 1, 2 })
end

-- What a model would say next ends its text, by whatever file names it.
function TestEnds.test_generation_stops_at_each()
    local step <close> = mx.step()
    local from = folder .. "/chat"
    local model, config = mx.weights.model(GOLDEN .. "weights/llama31", { words = { "dtype=float32" } })
    mx.weights.save(model, from)
    local prompt, said = { 3, 5, 7 }, {}
    local o = { tokens = 6, temperature = 0, top_k = 0, top_p = 1, seed = 0 }
    mx.generate.continue(model, prompt, o, function(id)
        said[#said + 1] = id
    end)
    local values = mx.io.json_decode(mx.io.read_file(from .. "/config.json"))
    values.eos_token_id = mx.io.array { 95, said[1] }
    write("chat/config.json", mx.io.json_encode(values))
    lu.assertEquals(mx.generate.ends(config, from, nil), { [95] = true, [said[1]] = true })
    config.add_eos = false
    lu.assertEquals(mx.generate.ends(config, from, nil), {})
end

function TestEnds.test_converting_keeps_all()
    local from = folder .. "/chat"
    mx.weights.save(mx.weights.model(GOLDEN .. "weights/qwen3"), from, { tokenizer = GOLDEN .. "weights/qwen3.gguf" })
    local values = mx.io.json_decode(mx.io.read_file(from .. "/config.json"))
    values.eos_token_id = mx.io.array { 0, 1 }
    write("chat/config.json", mx.io.json_encode(values))
    write("chat/generation_config.json", '{"eos_token_id": [0, 1, 2]}')
    local to = folder .. "/again"
    mx.weights.save(mx.weights.model(from), to, { tokenizer = from })
    lu.assertEquals(mx.io.json_decode(mx.io.read_file(to .. "/config.json")).eos_token_id, { 0, 1 })
    lu.assertEquals(mx.weights.ends(to), { 0, 1, 0, 1, 2 })
end
