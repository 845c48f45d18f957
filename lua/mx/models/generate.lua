--- Generation: continues a sequence of tokens with a trained model.

local mx = require "mx"
local util = require "mx.util"

local generate = {}

-- A stream of random numbers in [0, 1) that depends only on the seed.
local function uniform(seed)
    local count = 0
    return function()
        count = count + 1
        return util.mix(util.seed("sample", seed) + count) / (math.maxinteger + 1.0)
    end
end

local function argmax(values)
    local best = 1
    for i = 2, #values do
        if values[i] > values[best] then
            best = i
        end
    end
    return best
end

-- The indices of the entries that top-k and top-p leave, most likely first.
local function candidates(weights, total, top_k, top_p)
    local order = {}
    for i = 1, #weights do
        order[i] = i
    end
    if top_k == 0 and top_p >= 1 then
        return order
    end
    table.sort(order, function(a, b)
        return weights[a] > weights[b] or weights[a] == weights[b] and a < b
    end)
    local kept, sum = {}, 0
    for rank, i in ipairs(order) do
        if rank > 1 and (top_k > 0 and rank > top_k or sum >= top_p * total) then
            break
        end
        kept[rank], sum = i, sum + weights[i]
    end
    return kept
end

-- The weights with which tokens are drawn, and their sum. The largest weight is 1.
local function weights_of(logits, largest, temperature)
    local weights, total = {}, 0
    for i, logit in ipairs(logits) do
        weights[i] = math.exp((logit - largest) / temperature)
        total = total + weights[i]
    end
    return weights, total
end

--- Draws one token id from logits.
---@param logits number[] one for each entry of the vocabulary
---@param o {temperature: number, top_k: integer, top_p: number, choose_first: boolean?} temperature 0: the most likely
---       token; choose_first: top_p means the probabilities before the logits are divided by the temperature
---@param random fun(): number in [0, 1)
---@return integer id counted from 0
function generate.sample(logits, o, random)
    util.arguments(o, { "temperature", "top_k", "top_p" }, { "tokens", "seed", "choose_first" },
        "mx.generate.sample")
    local best = argmax(logits)
    if o.temperature == 0 then
        return best - 1
    end
    local weights = weights_of(logits, logits[best], o.temperature)
    local chances, total = weights_of(logits, logits[best], o.choose_first and 1 or o.temperature)
    local kept, sum = candidates(chances, total, o.top_k, o.top_p), 0
    for _, i in ipairs(kept) do
        sum = sum + weights[i]
    end
    local at = random() * sum
    for _, i in ipairs(kept) do
        at = at - weights[i]
        if at < 0 then
            return i - 1
        end
    end
    return kept[#kept] - 1
end

--- Continues `prompt` and calls emit(id) for each new token. Keys and values of earlier tokens are cached, so each
--- token costs one pass over the weights.
---@param model mx.Decoder
---@param prompt integer[] token ids, at least one
---@param o {tokens: integer, temperature: number, top_k: integer, top_p: number, seed: integer, choose_first: boolean?}
---       tokens: how many to add; the others as in generate.sample
---@param emit fun(id: integer): boolean? true: this was the last one
function generate.continue(model, prompt, o, emit)
    util.arguments(o, { "tokens", "temperature", "top_k", "top_p", "seed" }, { "choose_first" },
        "mx.generate.continue")
    local random = uniform(o.seed)
    mx.no_grad(function()
        local step <close> = mx.step()
        local cache = model:new_cache(1, #prompt + o.tokens)
        local input, offset = prompt, 0
        for _ = 1, o.tokens do
            local id = mx.scope(function()
                local h = model:hidden(mx.tensor({ input }, "i32"), { cache = cache, offset = offset }) -- (1, S, E)
                local last = mx.narrow(h, { dim = 2, start = #input, length = 1 })
                local logits = model:logits(last):view(model.shape.vocab)
                return o.temperature == 0 and mx.argmax(logits):item() or generate.sample(logits:totable(), o, random)
            end)
            if emit(id) then
                break
            end
            input, offset = { id }, offset + #input
        end
    end)
end

--- What layers with windows and codes of keys and values save while a sequence of so many tokens is generated; nil if
--- they save nothing.
---@param shape table of mx.models.shape
---@param tokens integer of the prompt and new ones
---@return string?
function generate.memory(shape, tokens)
    local kept, whole = mx.models.cache_bytes(shape, 1, tokens), mx.models.by_layer(shape)
    local without = shape.cache and { "codes" } or {}
    for _, block in ipairs(whole.blocks) do
        without[1 + #without] = block.attention.window > 0 and without[#without] ~= "windows" and "windows" or nil
        block.attention.window = 0
    end
    whole.cache = nil
    local all = mx.models.cache_bytes(whole, 1, tokens)
    return kept < all and ("keys and values keep %s of %s tokens, without %s %s"):format(util.bytes(kept),
        util.thousands(tokens), table.concat(without, " and "), util.bytes(all)) or nil
end

-- ---- the words of scripts/generate.lua ----

--- The options of scripts/generate.lua: its own, and those of MaxText's decode.py with MaxText's defaults.
generate.OPTIONS = {
    parameters = "", prompt = "", tokenizer = "", tokens = 200, temperature = 0.8, top_k = 0, top_p = 1.0, seed = 0,
    max_prefill_predict_length = 64, decode_sampling_strategy = "greedy", decode_sampling_temperature = 1.0,
    decode_sampling_top_k = 0, decode_sampling_nucleus_p = -1.0,
}

-- MaxText's words -> the options that mean the same.
local DRAWS = {
    decode_sampling_temperature = "temperature", decode_sampling_top_k = "top_k", decode_sampling_nucleus_p = "top_p",
}

-- MaxText's strategies, and the words that each reads.
local STRATEGIES = {
    greedy = {},
    weighted = { "decode_sampling_temperature" },
    topk = { "decode_sampling_temperature", "decode_sampling_top_k" },
    nucleus = { "decode_sampling_temperature", "decode_sampling_nucleus_p" },
    composite = { "decode_sampling_temperature", "decode_sampling_top_k", "decode_sampling_nucleus_p" },
}

-- How tokens are drawn by MaxText's words: its default strategy takes the most likely token.
local function maxtext_draws(config, chosen)
    local draws = { temperature = 0, top_k = 0, top_p = 1.0, choose_first = true }
    local strategy = config.decode_sampling_strategy
    local reads = STRATEGIES[strategy]
    for word, option in util.sorted_pairs(DRAWS) do
        local is_read = util.contains(reads, word)
        if chosen[word] and chosen[option] then
            mx.config.refuse(config, word, "means the same as %s: give one of them", option)
        elseif chosen[option] then
            mx.config.refuse(config, option, "decode_sampling_strategy goes with decode_sampling_* only")
        elseif chosen[word] and not is_read then
            mx.config.refuse(config, word, "has no effect with decode_sampling_strategy=%s: greedy (the default) reads "
                .. "none, weighted the temperature, topk also top_k, nucleus also nucleus_p, composite all", strategy)
        elseif is_read then
            draws[option] = config[word]
        end
    end
    for word, least in pairs({ decode_sampling_top_k = 1, decode_sampling_nucleus_p = 0 }) do
        if util.contains(reads, word) and config[word] < least then
            mx.config.refuse(config, word, "expected at least %d with decode_sampling_strategy=%s", least, strategy)
        end
    end
    return draws
end

-- The number of tokens to generate. With max_target_length it is that of MaxText: the prompt has
-- max_prefill_predict_length places of it, and one token comes from the prompt's own pass.
local function tokens_of(config, chosen, prompt_tokens)
    if not chosen.max_target_length and not chosen.max_prefill_predict_length then
        return config.tokens
    elseif chosen.tokens then
        mx.config.refuse(config, "tokens", "max_target_length and max_prefill_predict_length say how many, too: give "
            .. "one of them")
    elseif prompt_tokens > config.max_prefill_predict_length then
        mx.config.refuse(config, "max_prefill_predict_length", "the prompt has %d tokens, expected at most %d",
            prompt_tokens, config.max_prefill_predict_length)
    elseif config.max_target_length < config.max_prefill_predict_length then
        mx.config.refuse(config, "max_target_length", "%d with max_prefill_predict_length=%d leaves no token",
            config.max_target_length, config.max_prefill_predict_length)
    end
    return config.max_target_length - config.max_prefill_predict_length + 1
end

--- How scripts/generate.lua continues a prompt: the options of generate.continue, from its own words or MaxText's. A
--- line with words of MaxText is greedy as there, unless it says otherwise.
---@param config table with generate.OPTIONS
---@param prompt_tokens integer
---@return table
function generate.draws(config, prompt_tokens)
    local chosen = getmetatable(config).chosen
    local is_maxtext, is_own = chosen.decode_sampling_strategy, false
    for word, option in pairs(DRAWS) do
        is_maxtext, is_own = is_maxtext or chosen[word], is_own or chosen[option]
    end
    for _, word in ipairs({ "load_parameters_path", "max_target_length", "max_prefill_predict_length" }) do
        is_maxtext = is_maxtext or chosen[word] and not is_own
    end
    local draws = is_maxtext and maxtext_draws(config, chosen)
        or { temperature = config.temperature, top_k = config.top_k, top_p = config.top_p }
    draws.tokens, draws.seed = tokens_of(config, chosen, prompt_tokens), config.seed
    return draws
end

-- ---- tokenizers and prompts ----

--- Refuses a tokenizer that differs from the model's, as far as that is known. Not collective.
---@param tokenizer mx.Tokenizer
---@param what string the user's words for it
---@param config table the model's
---@param parameters string the path that the parameters were read from
function generate.check_tokenizer(tokenizer, what, config, parameters)
    local function check(known_as, fingerprint)
        mx.tokenizer.check_same({ what = what, fingerprint = tokenizer:fingerprint() },
            { what = known_as, fingerprint = fingerprint }, "Give the tokenizer that the model was trained with")
    end
    local stored = mx.weights.tokenizer_fingerprint(parameters)
    if stored ~= "" then -- the file at tokenizer_path may have changed since
        return check("that of the parameters " .. parameters, stored)
    end
    for _, path in ipairs { mx.weights.tokenizer_of(parameters) or "", config.tokenizer_path } do
        local opened, other = pcall(mx.tokenizer.open, path) -- if it cannot be read, nothing is known about it
        if path ~= "" and opened then
            check(path == parameters and "that of the parameters" or ("%s, that of the parameters %s"):format(path,
                parameters), other:fingerprint())
        end
    end
end

--- The tokenizer of a model: the named one; otherwise that of tokenizer_path; otherwise the one that comes with the
--- parameters; otherwise bytes, if the vocabulary is that of bytes. nil: the model can only continue ids. Refuses a
--- tokenizer that the model was not trained with, as far as its files tell. Not collective.
---@param config table
---@param parameters string the path that the parameters were read from
---@param named string a path for mx.tokenizer.open; empty: none
---@return mx.Tokenizer?
function generate.tokenizer(config, parameters, named)
    local path = named ~= "" and named or config.tokenizer_path
    local tokenizer = path ~= "" and mx.tokenizer.open(path) or mx.weights.tokenizer(parameters)
        or config.vocab_size == 256 and mx.tokenizer.open("bytes") or nil
    if tokenizer and tokenizer.vocab_size > config.vocab_size then
        util.refuse("the tokenizer has %s ids, and the model's vocabulary %s: tokenizer=PATH names another",
            util.thousands(tokenizer.vocab_size), util.thousands(config.vocab_size))
    end
    if tokenizer then
        local what = named ~= "" and "tokenizer=" .. named or path ~= "" and "tokenizer_path=" .. path
        generate.check_tokenizer(tokenizer, what or tokenizer.name, config, parameters)
    end
    return tokenizer
end

--- The ids that end a text, as keys of a table: those of the tokenizer and those that the model's files name. None if
--- add_eos is false in the config. Not collective.
---@param config table
---@param parameters string the path that the parameters were read from
---@param tokenizer? mx.Tokenizer
---@return table<integer, boolean>
function generate.ends(config, parameters, tokenizer)
    local ends = {}
    local lists = { tokenizer and tokenizer.ends or {}, mx.weights.ends(parameters) }
    for _, list in ipairs(config.add_eos and lists or {}) do
        for _, id in ipairs(list) do
            ends[id] = true
        end
    end
    return ends
end

--- The ids of a prompt.
---@param text string
---@param tokenizer? mx.Tokenizer without one the text is ids: "15496,995"
---@param add_bos boolean begin with the tokenizer's BOS
---@return integer[]
function generate.prompt(text, tokenizer, add_bos)
    local ids = {}
    if tokenizer then
        ids = tokenizer:encode(text, { bos = add_bos }):totable()
    else
        for word in text:gmatch("[^,%s]+") do
            ids[#ids + 1] = math.tointeger(tonumber(word))
                or util.refuse("prompt: expected token ids such as 15496,995 (the model has no tokenizer; "
                    .. "tokenizer=PATH names one), got '%s'", word)
        end
    end
    return #ids > 0 and ids or util.refuse("prompt=%s is missing", tokenizer and "TEXT" or "ID,ID,...")
end

--- The same as continue, for text: calls write(part) for each new part of the text as soon as it is known. Parts
--- consist of whole characters. Special tokens are left out.
---@param model mx.Decoder
---@param prompt integer[] its ids
---@param tokenizer mx.Tokenizer
---@param o table options of continue
---@param ends table<integer, boolean> ids that end the text, as keys
---@param write fun(part: string)
function generate.text(model, prompt, tokenizer, o, ends, write)
    local stream = tokenizer:stream { skip_special = true }
    for _, id in ipairs(prompt) do -- the first token of a text may be decoded differently
        stream:put(id)
    end
    generate.continue(model, prompt, o, function(id)
        if ends[id] then
            return true
        end
        local part = stream:put(id)
        if part ~= "" then
            write(part)
        end
    end)
    write(stream:finish())
end

return util.module(generate, "mx.generate")
