--- Generates with the same model under several kinds of weights, and compares tokens a second and bytes.
--
-- The weights are drawn, not trained, so no file is needed: "q8_0" has the codes and scales that a GGUF file of Q8_0
-- has. The models take turns, so that what else the machine does slows all of them. "ms" is the median time of a token
-- after the first one, "rate" its inverse over that of bfloat16, and "MiB" what the weights take.

local mx = require "mx"
local codes = require "mx.models.codes"
local quantization = require "mx.models.quantization"
local util = require "mx.util"

local generation = {}

local say = mx.metrics.say
local OPTIONS = { tokens = 32, rounds = 3, prompt_tokens = 8 }
local KINDS = {
    { name = "bfloat16", words = { "weight_dtype=bfloat16" } },
    { name = "float32", words = {} },
    { name = "int8", words = { "weight_dtype=bfloat16", "quantization=int8" } },
    { name = "q8_0", words = {} },
}

-- The script's own options, and the words that are left for the config.
local function split(words)
    local own, rest = {}, { "model_name=gpt2-124m", "dataset_type=synthetic" }
    for _, word in ipairs(words) do
        local list = OPTIONS[word:match("^([%w_]+)=") or ""] and own or rest
        list[#list + 1] = word
    end
    return mx.config.options(own, OPTIONS), rest
end

-- The parameters that a file of Q8_0 would have in codes, with their sizes as it stores them: (outputs, inputs).
local function stored_sizes(shape)
    local sizes = {}
    for _, p in ipairs(mx.models.parameters(shape)) do
        local product = p.name == "unembedding.weight" or quantization.has_weight(p.name) and #p.sizes == 2
        local n, k = p.sizes[1], p.sizes[2]
        if product then
            n, k = k, n
        end
        if (product or p.name == "embedding.weight") and k % codes.BLOCK == 0 then
            sizes[p.name] = { n, k }
        end
    end
    return sizes
end

local function model_of_codes(config)
    local shape, values = mx.models.shape(config), {}
    local sizes = stored_sizes(shape)
    for name, size in pairs(sizes) do
        values[name] = size[1] * size[2]
    end
    local model = mx.models.new(shape, nil, config, false, values)
    for name, size in util.sorted_pairs(sizes) do
        local seed, n, k = util.seed(name, config.init_weights_seed), size[1], size[2]
        model.codes[name] = {
            codes = mx.randint({ shape = size, low = -127, high = 128, seed = seed }):to("i8"):keep(),
            scale = (mx.rand { shape = { n, k // codes.BLOCK }, seed = seed } * (0.03 / k ^ 0.5)):keep(),
        }
    end
    return model
end

-- The bytes of a model's weights, with the codes that generation keeps of them.
local function bytes_of(model, recipe)
    local bytes = 0
    for name, t in pairs(model.params) do
        bytes = bytes + t:bytes() + (recipe and quantization.has_weight(name) and t:numel() or 0)
    end
    for _, weight in pairs(model.codes or {}) do
        bytes = bytes + weight.codes:bytes() + weight.scale:bytes()
    end
    return bytes
end

-- Adds the seconds of each token after the first one to `list`.
local function generate(model, o, list)
    local prompt, last = {}, nil
    for i = 1, o.prompt_tokens do
        prompt[i] = (7 * i) % model.shape.vocab
    end
    mx.generate.continue(model, prompt, { tokens = o.tokens, temperature = 0, top_k = 0, top_p = 1, seed = 0 },
        function()
            local now = mx.now()
            list[#list + 1], last = last and now - last or nil, now
        end)
end

--- Generates, prints the table, and returns its rows: name, bytes, seconds (a token), rate. Not collective: for one
--- rank.
---@param words string[] tokens, rounds, prompt_tokens, and words of a config
---@return table[]
function generation.run(words)
    if mx.ranks() > 1 then
        util.refuse("generation.lua measures one rank; start it without mpirun")
    end
    local o, rest = split(words)
    local rows = {}
    for i, kind in ipairs(KINDS) do
        local all = table.move(kind.words, 1, #kind.words, #rest + 1, table.move(rest, 1, #rest, 1, {}))
        local config = mx.config.load(all)
        local model = kind.name == "q8_0" and model_of_codes(config) or mx.models.new(config)
        rows[i] = {
            name = kind.name, model = model, times = {}, bytes = bytes_of(model, config.quantization ~= ""),
        }
    end
    say("%d tokens after %d, %d times", o.tokens, o.prompt_tokens, o.rounds)
    for _ = 1, o.rounds do
        for _, row in ipairs(rows) do
            generate(row.model, o, row.times)
        end
    end
    say("%-10s %8s %8s %10s %6s", "weights", "MiB", "ms", "tokens/s", "rate")
    for _, row in ipairs(rows) do
        row.seconds = util.quantile(row.times, 0.5)
        row.rate = rows[1].seconds / row.seconds
        say("%-10s %8.3g %8.2f %10.1f %6.2f", row.name, row.bytes / 2 ^ 20, 1000 * row.seconds, 1 / row.seconds,
            row.rate)
    end
    return rows
end

return generation
