-- The words of scripts/generate.lua: its own, and those of MaxText's decode.py.

local lu = require "luaunit"
local mx = require "mx"

TestDecode = {}

local function config(...)
    return mx.config.load({ "model_name=tiny", ... }, { options = mx.generate.OPTIONS, quiet = true })
end

local function draws(...)
    local o = mx.generate.draws(config(...), 4)
    return { o.tokens, o.temperature, o.top_k, o.top_p, o.choose_first or false }
end

local function refused(text, ...)
    lu.assertErrorMsgContains(text, draws, ...)
end

function TestDecode.test_own_words()
    lu.assertEquals(draws(), { 200, 0.8, 0, 1.0, false })
    lu.assertEquals(draws("tokens=3", "temperature=0.5", "top_k=2", "top_p=0.9"), { 3, 0.5, 2, 0.9, false })
    lu.assertEquals(config("prompt=two\nlines").prompt, "two\nlines")
end

-- What each strategy reads in MaxText; greedy, its default, takes the most likely token.
function TestDecode.test_strategies_of_maxtext()
    local t, k, p = "decode_sampling_temperature=0.5", "decode_sampling_top_k=3", "decode_sampling_nucleus_p=0.9"
    local function strategy(name, ...)
        local o = draws("decode_sampling_strategy=" .. name, ...)
        return { o[2], o[3], o[4], o[5] }
    end
    lu.assertEquals(strategy("greedy"), { 0, 0, 1.0, true })
    lu.assertEquals(strategy("weighted"), { 1.0, 0, 1.0, true })
    lu.assertEquals(strategy("weighted", t), { 0.5, 0, 1.0, true })
    lu.assertEquals(strategy("topk", t, k), { 0.5, 3, 1.0, true })
    lu.assertEquals(strategy("nucleus", t, p), { 0.5, 0, 0.9, true })
    lu.assertEquals(strategy("composite", t, k, p), { 0.5, 3, 0.9, true })
    refused("decode_sampling_temperature: has no effect with decode_sampling_strategy=greedy", t)
    refused("decode_sampling_top_k: has no effect", "decode_sampling_strategy=nucleus", k, p)
    refused("decode_sampling_top_k: expected at least 1", "decode_sampling_strategy=topk")
    refused("decode_sampling_nucleus_p: expected at least 0", "decode_sampling_strategy=nucleus")
    refused("temperature: decode_sampling_strategy goes with decode_sampling_* only", "temperature=1",
        "decode_sampling_strategy=weighted")
    refused("decode_sampling_top_k: means the same as top_k", "decode_sampling_strategy=topk", k, "top_k=3")
    refused("expected one of greedy, weighted, topk", "decode_sampling_strategy=beam")
end

-- decode.py fills max_prefill_predict_length places with the prompt, generates a token for each further place up to
-- max_target_length, and one in the pass over the prompt.
function TestDecode.test_the_number_of_tokens()
    lu.assertEquals(draws("max_target_length=16", "max_prefill_predict_length=4")[1], 13)
    lu.assertEquals(draws("max_target_length=70"), { 7, 0, 0, 1.0, true })
    lu.assertEquals(draws("max_target_length=70", "temperature=0.5"), { 7, 0.5, 0, 1.0, false })
    refused("the prompt has 4 tokens, expected at most 3", "max_target_length=16", "max_prefill_predict_length=3")
    refused("leaves no token", "max_target_length=63")
    refused("give one of them", "max_target_length=70", "tokens=3")
end

-- A line of MaxText's decode.py: what concerns the run of a training is listed, and the text is the greedy one.
function TestDecode.test_a_line_of_maxtext()
    local program = io.open("/proc/self/cmdline"):read("a"):match("^[^\0]+")
    local path = os.tmpname()
    os.remove(path)
    path = path .. ".h5"
    local c = mx.config.load({ "model_name=tiny" })
    mx.train.save(c, mx.models.new(c), path)
    local function run(words)
        local pipe = io.popen(("'%s' --threads 1 scripts/generate.lua %s prompt=The 2>&1"):format(program, words))
        local said = pipe:read("a")
        pipe:close()
        return said
    end
    local said = run("MaxText/configs/base.yml load_parameters_path=" .. path .. " tokenizer_path=assets/tokenizer "
        .. "max_prefill_predict_length=4 max_target_length=16 dataset_type=synthetic steps=10 scan_layers=false "
        .. "async_checkpointing=false model_name=tiny attention=dot_product ici_fsdp_parallelism=1 "
        .. "ici_autoregressive_parallelism=-1 hardware=cpu per_device_batch_size=1 weight_dtype=float32")
    local greedy = run("parameters=" .. path .. " tokens=13 temperature=0")
    local codes = run("parameters=" .. path .. " tokens=4 temperature=0 quantize_kvcache=true kv_quant_dtype=fp8")
    local both = run("parameters=" .. path .. " load_parameters_path=" .. path)
    local simulated = run("parameters=" .. path .. " hardware=v5e-4")
    local misspelt = run("parameters=" .. path .. " temprature=0.3")
    os.remove(path)
    local line, text = said:match("^(no effect here: [^\n]*)\n(.*)$")
    lu.assertEquals(text, greedy)
    for _, word in ipairs { "steps=10", "scan_layers=false", "per_device_batch_size=1", "ici_fsdp_parallelism=1" } do
        lu.assertStrContains(line, word)
    end
    for _, word in ipairs { "weight_dtype", "model_name", "max_target_length", "prompt=" } do
        lu.assertNotStrContains(line, word)
    end
    lu.assertStrContains(codes, "without codes")
    lu.assertNotStrContains(codes, "no effect here")
    lu.assertStrContains(both, "mean the same: give one of them")
    lu.assertStrMatches(simulated, "mxlua: rank 0: 'hardware=v5e%-4' on the command line: hardware: a [^\n]*\n")
    lu.assertStrContains(misspelt, "unknown key 'temprature', did you mean 'temperature'?")
end
