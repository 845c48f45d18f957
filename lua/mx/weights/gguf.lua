--- GGUF files: converts their metadata to mxlua's keys, and their tokenizer to a tokenizer.json. See init.lua.

local mx = require "mx"
local config_read = require "mx.weights.config_read"
local ropes = require "mx.models.rope"
local util = require "mx.util"

local gguf = {}

local ARCHITECTURES = { "gemma", "gemma2", "gemma3", "gpt2", "llama", "qwen2", "qwen3", "qwen3moe" }

-- A value of the metadata. It must have this type; absent gives the default, or an error if there is none.
local function get(g, key, kind, standard)
    local value = g.metadata[key]
    if value == nil then
        if standard == nil then
            util.refuse("%s has no '%s'", g.path, key)
        end
        return standard
    end
    if type(value) ~= (kind == "integer" and "number" or kind) or kind == "integer" and not math.tointeger(value) then
        util.refuse("%s: %s: expected %s, got %s", g.path, key, kind == "integer" and "a whole number" or "a " .. kind,
            type(value) == "table" and "a list" or tostring(value))
    end
    return value
end

-- The value of a key of the architecture.
local function of(g, key, kind, standard)
    return get(g, g.architecture .. "." .. key, kind, standard)
end

-- The decimal number that was meant: GGUF stores numbers as f32.
local function short(x)
    return tonumber(("%.6g"):format(x)) + 0.0
end

-- ---- RoPE: Llama 3.1's scaling is stored as a factor for each pair of a head ----

local function factors_of(s, theta, pairs_count)
    local list = {}
    for i = 1, pairs_count do
        local frequency = theta ^ (-(i - 1) / pairs_count)
        local turns = s.original * frequency / (2 * math.pi)
        local smooth = math.max(0, math.min(1, (turns - s.low) / (s.high - s.low)))
        list[i] = 1 / ((1 - smooth) / s.factor + smooth)
    end
    return list
end

local function same_factors(a, b)
    for i = 1, #a do
        if math.abs(a[i] - b[i]) > 1e-4 * b[i] then
            return false
        end
    end
    return #a == #b
end

-- Recovers the parameters of the scaling. Only ratios of low_freq_factor and the others matter, so set low_freq_factor
-- = 1; two pairs that are scaled in part then determine the rest.
local function fit_factors(factors, theta)
    local largest, between = 1, {}
    for _, f in ipairs(factors) do
        largest = math.max(largest, f)
    end
    for i, f in ipairs(factors) do
        if f > 1.0001 and f < largest * 0.9999 then
            local frequency = theta ^ (-(i - 1) / #factors)
            between[#between + 1] = { frequency, (1 / f - 1 / largest) / (1 - 1 / largest) }
        end
    end
    local first, last = between[1], between[#between]
    if #between < 2 then
        return { factor = short(largest), low = 1.0, high = 4.0, original = 8192 }
    end
    local slope = (first[2] - last[2]) / (first[1] - last[1])
    local high = 1 + 1 / (slope * first[1] - first[2])
    local original = math.floor(slope * 2 * math.pi * (high - 1) + 0.5)
    return { factor = short(largest), low = 1.0, high = tonumber(("%.3g"):format(high)) + 0.0, original = original }
end

-- The scaling of RoPE as config.json has it; nil if there is none. As in llama.cpp, a factor without a type is linear,
-- and YaRN multiplies by 0.1 ln(factor) + 1 besides the factors in the file.
local function scaling_of(g)
    local kind = of(g, "rope.scaling.type", "string", "linear")
    local factor = short(of(g, "rope.scaling.factor", "number", of(g, "rope.scale_linear", "number", 0)))
    if kind == "none" or factor == 0 or factor == 1 then
        return nil
    elseif kind ~= "linear" and kind ~= "yarn" then
        util.refuse("%s: RoPE of the type '%s' is not computed here; there are linear and yarn", g.path, kind)
    end
    local attention = of(g, "rope.scaling.attn_factor", "number", 1)
        * of(g, "rope.scaling.yarn_attn_factor", "number", 1)
    return {
        rope_type = kind, factor = factor, attention_factor = attention * ropes.yarn_attention_factor(factor),
        original_max_position_embeddings = of(g, "rope.scaling.original_context_length", "integer",
            of(g, "context_length", "integer", 0)),
        beta_fast = short(of(g, "rope.scaling.yarn_beta_fast", "number", 32)),
        beta_slow = short(of(g, "rope.scaling.yarn_beta_slow", "number", 1)),
    }
end

local function check_dimensions(g, head_dim)
    local dimensions = of(g, "rope.dimension_count", "integer", head_dim)
    if dimensions ~= head_dim then
        util.refuse("%s: %d of %d components of a head are rotated: heads are rotated whole here", g.path, dimensions,
            head_dim)
    end
end

local function rope_keys(g, keys)
    keys.rope_max_timescale = short(of(g, "rope.freq_base", "number", 10000.0))
    check_dimensions(g, keys.head_dim)
    config_read.scale_rope(keys, scaling_of(g), g.path)
    if not g.tensors["rope_freqs.weight"] then
        return
    end
    local file = g.tensors["rope_freqs.weight"].file
    local factors = mx.scope(function()
        return util.attempt(file.read, file, "rope_freqs.weight"):totable()
    end)
    local s = fit_factors(factors, keys.rope_max_timescale)
    if not same_factors(factors_of(s, keys.rope_max_timescale, #factors), factors) then
        util.refuse("%s: the factors of 'rope_freqs.weight' are not those of Llama 3.1's RoPE", g.path)
    end
    if s.factor > 1 then
        keys.rope_type, keys.llama_rope_factor, keys.llama_rope_low_freq_factor = "llama3.1", s.factor, s.low
        keys.llama_rope_high_freq_factor, keys.llama_rope_original_length = s.high, s.original
    end
end

-- ---- keys ----

-- Experts: the shares of a token's experts sum to 1 in both architectures, as in llama.cpp.
local function expert_keys(g, keys)
    local qwen = g.architecture == "qwen3moe"
    keys.decoder_block = qwen and "qwen3_moe" or "mixtral"
    keys.num_experts, keys.num_experts_per_tok = of(g, "expert_count", "integer"), of(g, "expert_used_count", "integer")
    keys.base_moe_mlp_dim = qwen and of(g, "expert_feed_forward_length", "integer") or keys.base_mlp_dim
    keys.norm_topk_prob, keys.base_mlp_dim = qwen, keys.base_moe_mlp_dim
end

local function from_llama(g, keys)
    local emb, heads = keys.base_emb_dim, keys.base_num_query_heads
    keys.head_dim = of(g, "attention.key_length", "integer", emb // math.max(heads, 1))
    if of(g, "attention.value_length", "integer", keys.head_dim) ~= keys.head_dim then
        util.refuse("%s: keys and values of a head differ in length", g.path)
    end
    if of(g, "expert_count", "integer", 0) > 0 then
        expert_keys(g, keys)
    end
    keys.base_num_kv_heads = of(g, "attention.head_count_kv", "integer", heads)
    keys.mlp_activations = { "silu", "linear" }
    keys.normalization_layer_epsilon = short(of(g, "attention.layer_norm_rms_epsilon", "number", 1e-6))
    keys.use_bias = g.tensors["blk.0.attn_output.bias"] ~= nil
    keys.attention_bias = not keys.use_bias and g.tensors["blk.0.attn_q.bias"] ~= nil
    keys.use_qk_norm = g.tensors["blk.0.attn_q_norm.weight"] ~= nil
    rope_keys(g, keys)
    config_read.set_reaches(keys, { "local" }, of(g, "attention.sliding_window", "integer", 0))
end

-- Gemma's metadata as config.json would have them. llama.cpp knows by the number of layers which models of 27B divide
-- scores by sqrt(emb / heads), and not by sqrt(head_dim).
local LAYERS_27B = { gemma2 = 46, gemma3 = 62 }

local function from_gemma(g)
    local emb, heads = of(g, "embedding_length", "integer"), of(g, "attention.head_count", "integer")
    local layers, name = of(g, "block_count", "integer"), g.architecture
    local head_dim = of(g, "attention.key_length", "integer", 256)
    check_dimensions(g, head_dim)
    local base = short(of(g, "rope.freq_base", "number", name == "gemma3" and 1e6 or 1e4))
    local caps = { attn = name == "gemma2" and 50 or 0, final = name == "gemma2" and 30 or 0 }
    return config_read.read({
        model_type = name == "gemma3" and "gemma3_text" or name, hidden_size = emb, num_attention_heads = heads,
        num_hidden_layers = layers, num_key_value_heads = of(g, "attention.head_count_kv", "integer", heads),
        head_dim = head_dim, intermediate_size = of(g, "feed_forward_length", "integer"),
        vocab_size = g.tensors["token_embd.weight"].shape[1], hidden_activation = "gelu_pytorch_tanh",
        rms_norm_eps = short(of(g, "attention.layer_norm_rms_epsilon", "number", 1e-6)), rope_theta = base,
        rope_scaling = scaling_of(g), rope_local_base_freq = short(of(g, "rope.freq_base_swa", "number", 1e4)),
        sliding_window = of(g, "attention.sliding_window", "integer", name == "gemma2" and 4096 or 0),
        query_pre_attn_scalar = LAYERS_27B[name] == layers and emb // heads or head_dim,
        attn_logit_softcapping = short(of(g, "attn_logit_softcapping", "number", caps.attn)),
        final_logit_softcapping = short(of(g, "final_logit_softcapping", "number", caps.final)),
        max_position_embeddings = of(g, "context_length", "integer", 0),
        tie_word_embeddings = g.tensors["output.weight"] == nil,
    }, g.path)
end

local function from_gpt2(g, keys)
    local heads = keys.base_num_query_heads
    keys.base_num_kv_heads, keys.head_dim = heads, keys.base_emb_dim // math.max(heads, 1)
    keys.mlp_activations = { "gelu" }
    keys.normalization_layer_epsilon = short(of(g, "attention.layer_norm_epsilon", "number", 1e-5))
end

--- Converts the metadata of a GGUF file to mxlua's keys.
---@param g {path: string, metadata: table, tensors: table<string, table>} tensors: with the file of each
---@return table<string, any> keys, string architecture
function gguf.keys(g)
    g.architecture = get(g, "general.architecture", "string")
    if not util.contains(ARCHITECTURES, g.architecture) then
        util.refuse("%s: the architecture '%s' is none of those that are read: %s", g.path, g.architecture,
            table.concat(ARCHITECTURES, ", "))
    end
    local gpt2, table_of = g.architecture == "gpt2", g.tensors["token_embd.weight"]
    if not table_of or #table_of.shape ~= 2 then
        util.refuse("%s has no table of tokens 'token_embd.weight'", g.path)
    end
    if g.architecture:find("^gemma") then
        return from_gemma(g), g.architecture
    end
    local keys = gpt2 and config_read.gpt2_keys() or config_read.standard()
    keys.vocab_size, keys.base_emb_dim = table_of.shape[1], of(g, "embedding_length", "integer")
    keys.base_num_decoder_layers = of(g, "block_count", "integer")
    keys.base_num_query_heads = of(g, "attention.head_count", "integer")
    keys.base_mlp_dim = of(g, "feed_forward_length", "integer")
    keys.logits_via_embedding = g.tensors["output.weight"] == nil
    if gpt2 then
        from_gpt2(g, keys)
    else
        from_llama(g, keys)
    end
    config_read.set_length(keys, of(g, "context_length", "integer", 0))
    return keys, g.architecture
end

-- ---- the tokenizer ----

local CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
local SPACES = "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
-- GPT-4's pattern; %s is the pattern for digits.
local GPT4 = CONTRACTIONS .. "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|%s| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" .. SPACES
-- The same with marks as letters.
local GPT4_MARKS = CONTRACTIONS .. "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
    .. SPACES
-- GPT-4o's pattern: words end before a capital letter. It takes a suffix of words and a pattern for digits.
local UPPER, LOWER = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
local GPT4O = "[^\\r\\n\\p{L}\\p{N}]?" .. UPPER .. "*" .. LOWER .. "+%s|[^\\r\\n\\p{L}\\p{N}]?" .. UPPER .. "+" .. LOWER
    .. "*%s|%s| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" .. SPACES
local DEEPSEEK = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    .. "| ?[\\p{P}\\p{S}]+[\\r\\n]*" .. SPACES

local function byte_level(regex)
    return { type = "ByteLevel", add_prefix_space = false, trim_offsets = true, use_regex = regex }
end

local function sequence(...)
    return { type = "Sequence", pretokenizers = { ... } }
end

-- A sequence of steps: patterns, whose matches become words, and other steps.
local function split(...)
    local steps = { ... }
    for i, step in ipairs(steps) do
        steps[i] = type(step) == "string"
            and { type = "Split", pattern = { Regex = step }, behavior = "Isolated", invert = false } or step
    end
    steps[#steps + 1] = byte_level(false)
    return sequence(table.unpack(steps))
end

local DIGITS = { type = "Digits", individual_digits = true }

-- For each tokenizer.ggml.pre: how texts are split before merging (cut), whether they are normalized first (nfc),
-- whether a word in the vocabulary is one token without merging (whole), and whether texts begin with BOS unless the
-- file says otherwise (bos). The table contains only entries that give the ids of the model's own tokenizer.json.
local CUTS = {
    ["gpt-2"] = { cut = byte_level(true) },
    mpt = { cut = byte_level(true), nfc = true },
    smollm = { cut = sequence(DIGITS, byte_level(true)) },
    ["command-r"] = { cut = sequence(DIGITS, byte_level(true)), nfc = true },
    ["llama-bpe"] = { cut = split(GPT4:format("\\p{N}{1,3}")), whole = true, bos = true },
    qwen2 = { cut = split(GPT4:format("\\p{N}")), nfc = true },
    qwen35 = { cut = split(GPT4_MARKS), nfc = true },
    ["gpt-4o"] = { cut = split(GPT4O:format(CONTRACTIONS .. "?", CONTRACTIONS .. "?", "\\p{N}{1,3}")) },
    tekken = { cut = split(GPT4O:format("", "", "\\p{N}")), whole = true, bos = true },
    ["deepseek-v3"] = {
        cut = split("\\p{N}{1,3}", "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+", DEEPSEEK),
    },
    ["deepseek-coder"] = {
        cut = split("[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
            "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+", DIGITS),
    },
}
CUTS.llama3, CUTS["llama-v3"] = CUTS["llama-bpe"], CUTS["llama-bpe"]
CUTS["deepseek-r1-qwen"] = CUTS.qwen2
CUTS.llama4 = CUTS["gpt-4o"]
CUTS["phi-2"] = CUTS["gpt-2"]
CUTS.olmo = CUTS.mpt
CUTS.starcoder, CUTS.refact = CUTS.smollm, CUTS.smollm

-- The cut of a file. Older GPT-2 files may omit it.
local function cut_of(g)
    local name = get(g, "tokenizer.ggml.pre", "string", "default")
    if name == "default" and g.metadata["general.architecture"] == "gpt2" then
        name = "gpt-2"
    elseif name == "default" then
        util.refuse("%s does not say how its tokenizer cuts texts (tokenizer.ggml.pre is missing or 'default'): "
            .. "convert the model again with a current llama.cpp, or name its tokenizer.json (tokenizer=, "
            .. "tokenizer_path=)", g.path)
    end
    return CUTS[name] or util.refuse("%s: no tokenizer is known that cuts texts as '%s' does (tokenizer.ggml.pre); "
        .. "there are %s. Name the model's tokenizer.json (tokenizer=, tokenizer_path=)", g.path, name,
        table.concat(util.sorted_keys(CUTS), ", "))
end

-- Whether a token only pads the vocabulary (type 5).
local function is_unused(g, i)
    return get(g, "tokenizer.ggml.token_type", "table", {})[i] == 5
end

-- The special tokens: control tokens (type 3) and user-defined ones (type 4).
local function added_tokens(g, tokens)
    local kinds, list = get(g, "tokenizer.ggml.token_type", "table", {}), {}
    for i, token in ipairs(tokens) do
        if kinds[i] == 3 or kinds[i] == 4 then
            list[#list + 1] = {
                id = i - 1, content = token, single_word = false, lstrip = false, rstrip = false, normalized = false,
                special = kinds[i] == 3,
            }
        end
    end
    return mx.io.array(list)
end

-- The merges of a SentencePiece vocabulary: each token from any two others, best scores first.
local function merges_by_score(g, tokens, vocab)
    local scores, found = get(g, "tokenizer.ggml.scores", "table"), {}
    if #scores ~= #tokens then
        util.refuse("%s: %d tokens and %d scores", g.path, #tokens, #scores)
    end
    for i, token in ipairs(tokens) do
        local here = {}
        for at in utf8.codes(utf8.len(token) and token or "") do
            local left, right = token:sub(1, at - 1), token:sub(at)
            if at > 1 and vocab[left] and vocab[right] then
                here[#here + 1] = { left, right, scores[i] }
            end
        end
        table.sort(here, function(a, b)
            return vocab[a[1]] < vocab[b[1]] or vocab[a[1]] == vocab[b[1]] and vocab[a[2]] < vocab[b[2]]
        end)
        for _, merge in ipairs(here) do
            merge.order = #found
            found[#found + 1] = merge
        end
    end
    table.sort(found, function(a, b)
        if a[3] ~= b[3] then
            return a[3] > b[3]
        elseif #a[1] ~= #b[1] then
            return #a[1] > #b[1]
        end
        return #a[2] > #b[2] or #a[2] == #b[2] and a.order < b.order
    end)
    for i, merge in ipairs(found) do
        found[i] = mx.io.array({ merge[1], merge[2] })
    end
    return mx.io.array(found)
end

local function sentence_piece(g, tokens, vocab)
    local prefix = get(g, "tokenizer.ggml.add_space_prefix", "boolean", true)
    local unknown = tokens[get(g, "tokenizer.ggml.unknown_token_id", "integer", 0) + 1]
    local spaces = { type = "Replace", pattern = { String = " " }, content = "\u{2581}" }
    local before = prefix and { { type = "Prepend", prepend = "\u{2581}" }, spaces } or { spaces }
    local after = {
        { type = "Replace", pattern = { String = "\u{2581}" }, content = " " }, { type = "ByteFallback" },
        { type = "Fuse" },
    }
    after[4] = prefix and { type = "Strip", content = " ", start = 1, stop = 0 } or nil
    return {
        normalizer = { type = "Sequence", normalizers = before }, pre_tokenizer = mx.io.null,
        decoder = { type = "Sequence", decoders = after },
        model = {
            type = "BPE", dropout = mx.io.null, unk_token = unknown or mx.io.null, fuse_unk = true,
            byte_fallback = true, ignore_merges = false, vocab = vocab, merges = merges_by_score(g, tokens, vocab),
        },
    }
end

local function byte_pairs(g, vocab)
    local cut = cut_of(g)
    return {
        normalizer = cut.nfc and { type = "NFC" } or mx.io.null,
        pre_tokenizer = cut.cut, decoder = byte_level(true),
        model = {
            type = "BPE", dropout = mx.io.null, unk_token = mx.io.null, fuse_unk = false, byte_fallback = false,
            ignore_merges = cut.whole or false, vocab = vocab,
            merges = mx.io.array(get(g, "tokenizer.ggml.merges", "table")),
        },
    }, cut.bos or false
end

-- The keys with ids that end a text, and the tokens that are used if a file lacks the key.
local ENDS = {
    { "tokenizer.ggml.eos_token_id" },
    { "tokenizer.ggml.eot_token_id", "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>" },
    { "tokenizer.ggml.eom_token_id", "<|eom_id|>" },
}

--- The ids that end a generated text: EOS, and the ends of a turn (EOT) and of a message (EOM) of chat models.
---@param g {path: string, metadata: table}
---@return integer[]
function gguf.ends(g)
    local ends, kinds = {}, get(g, "tokenizer.ggml.token_type", "table", {})
    local function add(id)
        if not util.contains(ends, id) then
            ends[#ends + 1] = id
        end
    end
    for _, names in ipairs(ENDS) do
        for _, id in ipairs(mx.tokenizer.ids(g.metadata, names[1], g.path)) do
            add(id)
        end
        for i, token in ipairs(g.metadata[names[1]] == nil and get(g, "tokenizer.ggml.tokens", "table", {}) or {}) do
            if kinds[i] == 3 and util.contains(names, token) then
                add(i - 1)
            end
        end
    end
    return ends
end

--- Converts a GGUF file's tokenizer to the text of a tokenizer.json. A file that does not say how texts are split
--- (tokenizer.ggml.pre), or names an unknown way, is refused.
---@param g {path: string, metadata: table}
---@return string json
---@return {bos: integer?, eos: integer?, ends: integer[], add_bos: boolean, add_eos: boolean} special ids, and whether
---        BOS and EOS are added to a text
function gguf.tokenizer(g)
    local kind, tokens = get(g, "tokenizer.ggml.model", "string"), get(g, "tokenizer.ggml.tokens", "table")
    local vocab = {}
    for i, token in ipairs(tokens) do
        if not is_unused(g, i) then
            vocab[token] = i - 1
        end
    end
    if kind ~= "gpt2" and kind ~= "llama" then
        util.refuse("%s: the tokenizer '%s' is not known here; there are gpt2 (byte-level BPE) and llama "
            .. "(SentencePiece)", g.path, kind)
    end
    local t, bos
    if kind == "gpt2" then
        t, bos = byte_pairs(g, vocab)
    else
        t, bos = sentence_piece(g, tokens, vocab), true
    end
    t.version, t.added_tokens = "1.0", added_tokens(g, tokens)
    t.truncation, t.padding, t.post_processor = mx.io.null, mx.io.null, mx.io.null
    return util.attempt(mx.io.json_encode, t), {
        bos = mx.tokenizer.ids(g.metadata, "tokenizer.ggml.bos_token_id", g.path)[1],
        eos = mx.tokenizer.ids(g.metadata, "tokenizer.ggml.eos_token_id", g.path)[1], ends = gguf.ends(g),
        add_bos = get(g, "tokenizer.ggml.add_bos_token", "boolean", bos),
        add_eos = get(g, "tokenizer.ggml.add_eos_token", "boolean", false),
    }
end

return gguf
