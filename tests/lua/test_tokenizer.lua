--- mx.tokenizer: ids and texts as the package `tokenizers` gives them, options, files, errors.

local mx = require "mx"
local lu = require "luaunit"

local GOLDEN = mx.root .. "tests/golden/"

local function golden(name)
    return mx.io.read_file(GOLDEN .. name)
end

local function read(name)
    return mx.io.json_decode(golden("tokenizer_" .. name .. ".json"))
end

local function make(data)
    return mx.tokenizer.from_json(mx.io.json_encode(data))
end

-- The ids of a text as a list.
local function ids(tok, text, o)
    local step <close> = mx.step()
    return tok:encode(text, o):totable()
end

local function assert_says(expected, f, ...)
    local ok, message = pcall(f, ...)
    lu.assertFalse(ok)
    lu.assertStrContains(tostring(message), expected)
    lu.assertNil(tostring(message):find("\n"), "an error of more than one line")
end

-- ---- as the reference ----

TestGolden = {}

local function bytes_of(item)
    return type(item) == "table" and string.char(table.unpack(item.bytes)) or item
end

-- A file with fields of a case in place of its own.
local function changed(data, fields)
    for key, value in pairs(fields) do
        if key == "model" then
            for name, setting in pairs(value) do
                data.model[name] = setting
            end
        elseif key == "added_tokens" then
            table.move(value, 1, #value, #data.added_tokens + 1, data.added_tokens)
        else
            data[key] = value
        end
    end
    return data
end

-- What put and finish give for ids, one after the other.
local function streamed(tok, list, o)
    local stream, parts = tok:stream(o), {}
    for i, id in ipairs(list) do
        parts[i] = stream:put(id)
        lu.assertNotNil(utf8.len(parts[i]), "a part that is no UTF-8")
    end
    return table.concat(parts) .. stream:finish()
end

local function check_case(case, texts, what)
    local tok = make(changed(read(case.file), case.set))
    for i, expected in ipairs(case.ids) do
        local given = bytes_of(texts[i])
        local where = ("%s, text %d '%s'"):format(what, i, given:sub(1, 40))
        lu.assertEquals(ids(tok, given), expected, where)
        local text = case.text[i] ~= mx.io.null and case.text[i] or given
        lu.assertEquals(tok:decode(expected), text, where)
        lu.assertEquals(streamed(tok, expected), text, where)
        local plain = case.plain[i] ~= mx.io.null and case.plain[i] or text
        lu.assertEquals(tok:decode(expected, { skip_special = true }), plain, where)
        lu.assertEquals(streamed(tok, expected, { skip_special = true }), plain, where)
    end
end

function TestGolden.test_files_and_variants()
    local all = mx.io.json_decode(golden "tokenizers.json")
    for i, case in ipairs(all.cases) do
        check_case(case, all.texts, ("case %d %s %s"):format(i, case.file, mx.io.json_encode(case.set)))
    end
    lu.assertTrue(#all.cases > 50)
end

-- Tokens with every mix of lstrip, rstrip, single_word, normalized and special, one inside the other, in random texts.
function TestGolden.test_added_tokens()
    local all, vocab = mx.io.json_decode(golden "added.json"), {}
    for i, letter in ipairs(all.alphabet) do
        vocab[letter] = i - 1
    end
    local tok = make { added_tokens = all.tokens, normalizer = all.normalizer, pre_tokenizer = all.pre_tokenizer,
        model = { type = "BPE", vocab = vocab, merges = mx.io.array {} } }
    for _, pair in ipairs(all.texts) do
        lu.assertEquals(ids(tok, pair[1]), pair[2], ("%q"):format(pair[1]))
    end
    lu.assertTrue(#all.texts >= 400)
end

-- Classes of characters, with opposites of sets inside and out.
function TestGolden.test_classes()
    local all, vocab = mx.io.json_decode(golden "classes.json"), {}
    for i, letter in ipairs(all.alphabet) do
        vocab[letter] = i - 1
    end
    for _, case in ipairs(all.cases) do
        local pattern, behavior, invert, text, expected = table.unpack(case)
        local tok = make {
            model = { type = "BPE", vocab = vocab, merges = mx.io.array {} },
            pre_tokenizer = { type = "Sequence", pretokenizers = {
                { type = "Split", pattern = { Regex = pattern }, behavior = behavior, invert = invert },
                { type = "ByteLevel", add_prefix_space = true, use_regex = false },
            } },
        }
        lu.assertEquals(ids(tok, text), expected, pattern)
    end
    lu.assertEquals(#all.cases, 200)
end

-- Spaces that a token with rstrip has taken are a token of spaces once more, as in the reference.
function TestGolden.test_spaces_are_read_twice()
    local vocab = { ["A"] = 0, ["\u{120}"] = 1 }
    local tok = make { pre_tokenizer = { type = "ByteLevel", add_prefix_space = false },
        model = { type = "BPE", vocab = vocab, merges = mx.io.array {} },
        added_tokens = {
            { id = 2, content = "<tool>", rstrip = true, lstrip = true, normalized = false, special = false },
            { id = 3, content = "    ", normalized = false, special = false } } }
    lu.assertEquals(ids(tok, "A <tool>      A"), { 0, 2, 3, 1, 1, 0 })
    lu.assertEquals(ids(tok, "A <tool>A      A"), { 0, 2, 0, 3, 1, 1, 0 })
end

function TestGolden.test_merges_in_the_older_spelling()
    local data, texts = read "llama3", mx.io.json_decode(golden "tokenizers.json").texts
    local newer = make(data)
    for i, pair in ipairs(data.model.merges) do
        data.model.merges[i] = pair[1] .. " " .. pair[2]
    end
    local older = make(data)
    for _, item in ipairs(texts) do
        lu.assertEquals(ids(older, bytes_of(item)), ids(newer, bytes_of(item)))
    end
end

-- A long word takes another path through the merges than a short one, and must give the same ids.
function TestGolden.test_long_words()
    local tok = mx.tokenizer.open(GOLDEN .. "tokenizer_gpt2.json")
    for _, unit in ipairs { "the", "abcde", "éü", "=" } do
        local long = unit:rep(40000)
        local started = os.clock()
        local list = ids(tok, long)
        lu.assertTrue(os.clock() - started < 5, "slow on a long word")
        lu.assertEquals(tok:decode(list), long)
        local ours, shorter = ids(tok, unit:rep(16)), ids(tok, unit:rep(15)) -- 48 bytes at most: by looking through
        for i = 1, #shorter - 12 do
            lu.assertEquals(list[i], ours[i])
        end
    end
end

-- ---- the interface ----

TestTokenizer = {}

function TestTokenizer.test_bytes()
    for _, path in ipairs { "", "bytes" } do
        local tok = mx.tokenizer.open(path)
        lu.assertEquals(tok.vocab_size, 256)
        lu.assertNil(tok.bos)
        lu.assertNil(tok.eos)
        lu.assertEquals(ids(tok, "a\0\xff", { bos = true, eos = true }), { 97, 0, 255 })
        lu.assertEquals(tok:decode { 97, 0, 255 }, "a\0\xff")
        lu.assertEquals(tok:id "a", 97)
        lu.assertEquals(tok:piece(0), "\0")
    end
end

function TestTokenizer.test_bos_and_eos()
    local tok = mx.tokenizer.open(GOLDEN .. "tokenizer_llama3.json")
    local bos, eos = tok:id "<|begin_of_text|>", tok:id "<|im_end|>"
    lu.assertEquals({ tok.bos, tok.eos, tok.add_bos, tok.add_eos }, { bos, eos, true, true })
    local plain = ids(tok, "ab 12")
    lu.assertEquals(ids(tok, "ab 12", { bos = true }), { bos, table.unpack(plain) })
    local both = ids(tok, "ab 12", { bos = true, eos = true })
    lu.assertEquals({ both[1], both[#both], #both }, { bos, eos, #plain + 2 })
    lu.assertEquals(ids(tok, "", { bos = true, eos = true }), { bos, eos })
    lu.assertEquals(tok:decode(both, { skip_special = true }), "ab 12")
    tok:set_special(eos, nil)
    lu.assertEquals(ids(tok, "", { bos = true, eos = true }), { eos })
    assert_says("BOS is 5000; expected -1 (none) or the id of one of its", tok.set_special, tok, 5000, nil)
    lu.assertEquals(mx.tokenizer.open(GOLDEN .. "tokenizer_llama2.json").bos, 1)
    lu.assertNil(mx.tokenizer.open(GOLDEN .. "tokenizer_gpt2.json").eos)
end

function TestTokenizer.test_ids_pieces_and_tensors()
    local step <close> = mx.step()
    local tok = mx.tokenizer.open(GOLDEN .. "tokenizer_gpt2.json")
    lu.assertEquals(tok.vocab_size, 1001)
    lu.assertEquals(tok:piece(tok:id "<|endoftext|>"), "<|endoftext|>")
    lu.assertEquals(tok:piece(tok:id "Ġ"), "Ġ")
    lu.assertNil(tok:id "no such token")
    lu.assertNil(tok:piece(1001))
    lu.assertNil(tok:piece(-1))
    local t = tok:encode "a text"
    lu.assertEquals({ t:dtype(), #t:size() }, { "i32", 1 })
    lu.assertEquals(tok:decode(t), "a text")
    lu.assertEquals(tok:decode {}, "")
    lu.assertEquals(tok:decode { 5000 }, "") -- as the reference
    assert_says("token id -1 is negative", tok.decode, tok, { -1 })
    assert_says("whole numbers of 32 bits", tok.decode, tok, { 1.5 })
    assert_says("token ids must be i32", tok.decode, tok, mx.ones { 2 })
    assert_says("an i32 tensor or a list of token ids", tok.decode, tok, "a")
    assert_says("did you mean 'bos'", tok.encode, tok, "a", { boss = true })
end

-- An added token that the vocabulary has already keeps the id there, whatever the file says of it.
function TestTokenizer.test_added_token_with_another_id()
    local data = read "gpt2"
    data.added_tokens[1] = { content = "er", id = 2000, special = true }
    local tok = make(data)
    lu.assertEquals(tok.vocab_size, 1000)
    lu.assertEquals(ids(tok, "er"), { data.model.vocab.er })
    lu.assertEquals(tok:decode({ data.model.vocab.er }, { skip_special = true }), "")
end

function TestTokenizer.test_half_a_character()
    local tok = mx.tokenizer.open ""
    local stream = tok:stream()
    lu.assertEquals({ stream:put(0xe2), stream:put(0x82), stream:put(0xac) }, { "", "", "€" })
    lu.assertEquals({ stream:put(0xf0), stream:put(0x9f), stream:finish() }, { "", "", "\xf0\x9f" })
    lu.assertEquals({ stream:put(0x80), stream:put(0xff), stream:put(65) }, { "\x80", "\xff", "A" })
end

-- ---- generating ----

TestGenerateText = {}

local OPTIONS = { tokens = 24, temperature = 1, top_k = 0, top_p = 1, seed = 3 }

local function generated(model, prompt, tok, ends)
    local parts, ids_made = {}, {}
    mx.generate.text(model, prompt, tok, OPTIONS, ends, function(part)
        parts[#parts + 1] = part
    end)
    mx.generate.continue(model, prompt, OPTIONS, function(id)
        ids_made[#ids_made + 1] = id
    end)
    return parts, ids_made
end

function TestGenerateText.test_parts_are_what_the_ids_say()
    for _, name in ipairs { "llama3", "llama2" } do
        local step <close> = mx.step()
        local tok = mx.tokenizer.open(GOLDEN .. "tokenizer_" .. name .. ".json")
        local model = mx.models.new(mx.config.load { "model_name=tiny", "vocab_size=" .. tok.vocab_size })
        local prompt = mx.generate.prompt("The lamp", tok, true)
        lu.assertEquals(prompt[1], tok.bos)
        local parts, made = generated(model, prompt, tok, {})
        local whole = table.move(made, 1, #made, #prompt + 1, table.move(prompt, 1, #prompt, 1, {}))
        lu.assertEquals("The lamp" .. table.concat(parts), tok:decode(whole, { skip_special = true }))
        local stopped = generated(model, prompt, tok, { [made[7]] = true })
        local first = 1
        while made[first] ~= made[7] do
            first = first + 1
        end
        whole = table.move(made, 1, first - 1, #prompt + 1, table.move(prompt, 1, #prompt, 1, {}))
        lu.assertEquals("The lamp" .. table.concat(stopped), tok:decode(whole, { skip_special = true }))
    end
end

function TestGenerateText.test_prompts()
    lu.assertEquals(mx.generate.prompt("15, 7", nil, true), { 15, 7 })
    assert_says("expected token ids such as 15496,995 (the model has no tokenizer", mx.generate.prompt, "a", nil, true)
    assert_says("prompt=ID,ID,... is missing", mx.generate.prompt, "", nil, true)
    assert_says("prompt=TEXT is missing", mx.generate.prompt, "", mx.tokenizer.open "", true)
end

function TestGenerateText.test_which_tokenizer()
    local path, step <close> = os.tmpname() .. ".h5", mx.step()
    local function saved(words)
        local config = mx.config.load(words)
        mx.nn.save(mx.models.new(config).params, path, { config = mx.config.dump(config) })
        return config
    end
    local file = GOLDEN .. "tokenizer_llama2.json"
    local config = saved { "model_name=tiny", "vocab_size=1000", "tokenizer_path=" .. file }
    lu.assertEquals(mx.generate.tokenizer(config, path, "").vocab_size, 1000)
    assert_says("the tokenizer has 1,001 ids, and the model's vocabulary 1,000", mx.generate.tokenizer, config, path,
        GOLDEN .. "tokenizer_gpt2.json")
    config = saved { "model_name=tiny", "vocab_size=300" }
    lu.assertNil(mx.generate.tokenizer(config, path, ""))
    config = saved { "model_name=tiny", "vocab_size=256" }
    lu.assertEquals(mx.generate.tokenizer(config, path, "").vocab_size, 256)
    os.remove(path)
end

-- ---- folders ----

TestTokenizerFolder = {}

function TestTokenizerFolder.setUp()
    TestTokenizerFolder.folder = os.tmpname()
    os.remove(TestTokenizerFolder.folder)
    mx.io.mkdir_p(TestTokenizerFolder.folder)
    mx.io.write_file_atomic(TestTokenizerFolder.folder .. "/tokenizer.json", golden "tokenizer_qwen2.json")
end

function TestTokenizerFolder.tearDown()
    for _, name in ipairs { "/tokenizer.json", "/tokenizer_config.json", "" } do
        os.remove(TestTokenizerFolder.folder .. name)
    end
end

function TestTokenizerFolder.test_tokenizer_config()
    local folder = TestTokenizerFolder.folder
    lu.assertNil(mx.tokenizer.open(folder).eos)
    local function with(text)
        mx.io.write_file_atomic(folder .. "/tokenizer_config.json", text)
        return mx.tokenizer.open(folder)
    end
    local tok = with '{"bos_token": null, "eos_token": {"content": "<|im_end|>"}, "add_bos_token": true}'
    lu.assertEquals({ tok.bos or "none", tok.eos, tok.add_bos }, { "none", tok:id "<|im_end|>", false })
    lu.assertEquals(mx.tokenizer.open(folder .. "/tokenizer.json").eos, tok.eos)
    tok = with('{"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "add_bos_token": true, '
        .. '"add_eos_token": false}')
    lu.assertEquals({ tok.bos, tok.eos, tok.add_bos, tok.add_eos }, { 1000, 1000, true, false })
    assert_says("eos_token is '</s>', and tokenizer.json beside it has no such token", with, '{"eos_token": "</s>"}')
    assert_says("expected a JSON object", with, "3")
end

-- ---- what is refused ----

TestTokenizerErrors = {}

local function refused(expected, change, name)
    local data = read(name or "gpt2")
    change(data)
    assert_says(expected, make, data)
end

function TestTokenizerErrors.test_kinds_that_are_not_supported()
    local function set(field, value)
        return function(data)
            data[field] = value
        end
    end
    refused("the model 'Unigram' is not supported; only BPE is", set("model", { type = "Unigram", vocab = {} }))
    refused("normalizer: 'Precompiled' is not supported", set("normalizer", { type = "Precompiled" }))
    refused("pre_tokenizer: 'Whitespace' is not supported", set("pre_tokenizer", { type = "Whitespace" }))
    refused("decoder: 'WordPiece' is not supported", set("decoder", { type = "WordPiece" }))
    refused("post_processor: 'BertProcessing' is not supported", set("post_processor", { type = "BertProcessing" }))
    refused("'Digits' after ByteLevel is not supported", set("pre_tokenizer", { type = "Sequence", pretokenizers = {
        { type = "ByteLevel", add_prefix_space = false }, { type = "Digits" } } }))
    refused("'Replace' after Fuse or ByteLevel is not supported", set("decoder", { type = "Sequence", decoders = {
        { type = "Fuse" }, { type = "Replace" } } }))
    refused("Strip after Fuse is supported for one character of ASCII at the start", set("decoder", { type = "Sequence",
        decoders = { { type = "Fuse" }, { type = "Strip", content = " ", start = 0, stop = 1 } } }))
    for _, field in ipairs { "dropout", "continuing_subword_prefix", "end_of_word_suffix" } do
        refused(("model: '%s' is not supported"):format(field), function(data)
            data.model[field] = field == "dropout" and 0.1 or "##"
        end)
    end
end

function TestTokenizerErrors.test_patterns()
    local function expect(message, pattern)
        refused(message, function(data)
            data.pre_tokenizer = { type = "Split", pattern = { Regex = pattern }, behavior = "Isolated" }
        end)
    end
    expect("cannot be compiled: missing closing parenthesis", "(a")
    expect("the escape \\b is not supported", "\\bx")
    expect("brackets inside brackets", "[a[bc]]")
    expect("brackets inside brackets, or && there", "[a-z&&b]")
    expect("a + after a repetition in braces", "a{2}+")
    expect("a group that is none of", "(?P<x>a)")
    expect("(*", "(*UTF)a")
    expect("a pattern of 9000 bytes; at most 8192", ("a"):rep(9000))
    refused("behavior 'Merged'; expected Isolated", function(data)
        data.pre_tokenizer = { type = "Split", pattern = { String = "a" }, behavior = "Merged" }
    end)
    local data = read "gpt2"
    data.pre_tokenizer = { type = "Split", pattern = { Regex = "(?:(?:a|aa)+)+\\z" }, behavior = "Isolated" }
    assert_says("gives up on this text", ids, make(data), ("a"):rep(60) .. "b")
end

function TestTokenizerErrors.test_malformed_models()
    refused("'model' is missing: expected a map", function(data) data.model = nil end)
    refused("'vocab': expected a map, got", function(data) data.model.vocab = 3 end)
    refused("'type': expected a string, got an integer", function(data) data.normalizer = { type = 7 } end)
    refused("the id of 'big' is 1000000; expected 0 to", function(data) data.model.vocab.big = 1000000 end)
    refused("the id of 'x y' is a string", function(data) data.model.vocab["x y"] = "1" end)
    refused("both have the id 7", function(data) data.model.vocab["x y"] = 7 end)
    refused("merge 0: expected two tokens", function(data) data.model.merges[1] = "abc" end)
    refused("merge 0: expected two tokens", function(data) data.model.merges[1] = "a b c" end)
    refused("merge 0: the vocabulary has no 'Qqq'", function(data) data.model.merges[1] = { "Qqq", "a" } end)
    refused("merge 0: the vocabulary has no 'q#'", function(data) data.model.merges[1] = { "q", "#" } end)
    refused("no unk_token '<none>'", function(data) data.model.unk_token = "<none>" end)
    refused("has the id 5, which '", function(data) data.added_tokens[1].id = 5 end)
    refused("has 600 bytes; at most 512", function(data) data.added_tokens[1].content = ("x"):rep(600) end)
    refused("the template has no Sequence", function(data)
        data.post_processor = { type = "TemplateProcessing", single = mx.io.array {}, special_tokens = {} }
    end)
    refused("'<s>' is missing", function(data)
        data.post_processor.processors = nil
        data.post_processor = { type = "TemplateProcessing", special_tokens = {},
            single = { { SpecialToken = { id = "<s>" } }, { Sequence = { id = "A" } } } }
    end)
    refused("add_prefix_space': expected a boolean, got a string", function(data)
        data.pre_tokenizer.add_prefix_space = "yes"
    end)
end

function TestTokenizerErrors.test_files()
    assert_says("/nonexistent/tokenizer.json", mx.tokenizer.open, "/nonexistent/tokenizer.json")
    assert_says("tokenizer.json:1:", mx.tokenizer.from_json, "{")
    assert_says("given: expected a tokenizer.json, a map, got an array", mx.tokenizer.from_json, "[]", "given")
end
