--- The supported model families of other programs: the names of their tensors. See init.lua; config_json.lua has their
--- configs.
--
-- mxlua's weights are (inputs, outputs). Those of PyTorch's Linear are (outputs, inputs); GPT-2's are (inputs,
-- outputs).

local mx = require "mx"
local util = require "mx.util"

local families = {}

-- ---- names: mxlua's, without ".weight" and ".bias" -> the family's; a "T" behind a name: transposed ----

local LLAMA = {
    prefix = "model.", head = "lm_head",
    whole = { embedding = "model.embed_tokens", norm = "model.norm", unembedding = "lm_head T" },
    layer = "model.layers.%d.",
    short = {
        norm = "input_layernorm", query = "self_attn.q_proj T", key = "self_attn.k_proj T",
        value = "self_attn.v_proj T", out = "self_attn.o_proj T", query_norm = "self_attn.q_norm",
        key_norm = "self_attn.k_norm", mlp_norm = "post_attention_layernorm", wi_0 = "mlp.gate_proj T",
        wi_1 = "mlp.up_proj T", wo = "mlp.down_proj T",
    },
}

-- A copy of names with other short names for a layer's parameters, and further fields.
local function like(names, short, fields)
    local twin = { short = {} }
    for key, value in pairs(names) do
        twin[key] = key == "short" and twin.short or value
    end
    for _, list in ipairs({ names.short, short }) do
        for key, name in pairs(list) do
            twin.short[key] = name
        end
    end
    for key, value in pairs(fields or {}) do
        twin[key] = value
    end
    return twin
end

-- The table of Gemma is stored without the factor sqrt(emb) that its rows have in the residual stream; here it has it,
-- and logits are divided by it.
local GEMMA = like(LLAMA, {}, { scaled_table = true })
local GEMMA2 = like(GEMMA, {
    post_norm = "post_attention_layernorm", mlp_norm = "pre_feedforward_layernorm",
    mlp_post_norm = "post_feedforward_layernorm",
})
local OLMO = like(LLAMA, { post_norm = "post_attention_layernorm", mlp_post_norm = "post_feedforward_layernorm" })

local GPT2 = {
    prefix = "transformer.", head = "lm_head",
    whole = {
        embedding = "transformer.wte", position = "transformer.wpe", norm = "transformer.ln_f",
        unembedding = "lm_head T",
    },
    layer = "transformer.h.%d.",
    short = {
        norm = "ln_1", query = "attn.c_attn", key = "attn.c_attn", value = "attn.c_attn", out = "attn.c_proj",
        mlp_norm = "ln_2", wi = "mlp.c_fc", wo = "mlp.c_proj",
    },
}

local GGUF = {
    head = "output",
    whole = {
        embedding = "token_embd", position = "position_embd", norm = "output_norm", unembedding = "output T",
    },
    layer = "blk.%d.",
    short = {
        norm = "attn_norm", query = "attn_q T", key = "attn_k T", value = "attn_v T", out = "attn_output T",
        query_norm = "attn_q_norm", key_norm = "attn_k_norm", mlp_norm = "ffn_norm", wi = "ffn_up T",
        wi_0 = "ffn_gate T", wi_1 = "ffn_up T", wo = "ffn_down T",
    },
}

-- In GGUF too, GPT-2 stores queries, keys and values in one matrix.
local GGUF_GPT2 = like(GGUF, { query = "attn_qkv T", key = "attn_qkv T", value = "attn_qkv T" })

-- GGUF stores the norms of Gemma with the 1 that is added to them here.
local GGUF_GEMMA = like(GGUF, { post_norm = "post_attention_norm", mlp_post_norm = "post_ffw_norm" },
    { scaled_table = true, whole_norms = true })

families.NAMES = {
    llama = LLAMA, mistral = LLAMA, ministral = LLAMA, qwen2 = LLAMA, qwen3 = LLAMA, gpt2 = GPT2, gemma = GEMMA,
    gemma2 = GEMMA2, gemma3_text = GEMMA2, olmo2 = OLMO, olmo3 = OLMO,
    ["gguf.llama"] = GGUF, ["gguf.qwen2"] = GGUF, ["gguf.qwen3"] = GGUF, ["gguf.gpt2"] = GGUF_GPT2,
    ["gguf.gemma"] = GGUF_GEMMA, ["gguf.gemma2"] = GGUF_GEMMA, ["gguf.gemma3"] = GGUF_GEMMA,
}

-- Tensors that follow from the config and need not be read.
local IGNORED = { "%.rotary_emb%.inv_freq$", "%.attn%.bias$", "%.attn%.masked_bias$", "^rope_freqs%.weight$" }

--- Whether a tensor of this name can be ignored.
---@param names table of families.NAMES
---@param name string
---@param tied boolean
---@return boolean
function families.ignored(names, name, tied)
    for _, pattern in ipairs(IGNORED) do
        if name:find(pattern) then
            return true
        end
    end
    return tied and name == names.head .. ".weight"
end

-- The family's name of a parameter, and whether the stored tensor is transposed.
local function name_of(names, parameter)
    local layer, rest = parameter:match("^layer(%d+)%.(.*)$")
    local base, kind = (rest or parameter):match("^(.*)%.(%a+)$")
    local theirs = (layer and names.short or names.whole)[base]
    if not theirs then
        return nil
    end
    local name, transposed = theirs:match("^(%S+) ?(T?)$")
    return (layer and names.layer:format(tonumber(layer) - 1) or "") .. name .. "." .. kind, transposed == "T"
end

--- The tensors of a model as the family stores them, in the order of the forward pass. Each entry has its name, its
--- sizes, the parameters that it consists of (concatenated along dimension `dim`, with `lengths` each), and whether it
--- is transposed. `heads` is set if its rows are in GGUF's order for RoPE, and is the number of heads. `factor` is set
--- if the parameter is the stored tensor times this, and `offset` if it is the stored tensor without this.
---@param kind string a key of families.NAMES
---@param shape table of mx.models.shape
---@return table[]
function families.layout(kind, shape)
    local names, list, found = families.NAMES[kind], {}, {}
    for _, p in ipairs(mx.models.parameters(shape)) do
        local name, transposed = name_of(names, p.name)
        if not name then
            util.refuse("models of the family %s have no parameter '%s'", kind, p.name)
        end
        local matrix = #p.sizes == 2
        local sizes = transposed and matrix and { p.sizes[2], p.sizes[1] } or table.move(p.sizes, 1, #p.sizes, 1, {})
        local entry = found[name]
        if entry then
            entry.parts[#entry.parts + 1] = p.name
            entry.sizes[entry.dim] = entry.sizes[entry.dim] + sizes[entry.dim]
            entry.lengths[#entry.parts] = sizes[entry.dim]
        else
            entry = { name = name, sizes = sizes, parts = { p.name }, transposed = transposed and matrix }
            entry.factor = names.scaled_table and p.name == "embedding.weight" and math.sqrt(shape.emb) or nil
            entry.offset = names.whole_norms and p.name:find("norm%.weight$") and 1 or nil
            entry.dim = matrix and not transposed and 2 or 1 -- of the outputs
            entry.lengths = { sizes[entry.dim] }
            local layer, short = p.name:match("^layer(%d+)%.(%a+)%.")
            if kind == "gguf.llama" and (short == "query" or short == "key") then
                local attention = mx.models.block(shape, tonumber(layer)).attention
                entry.heads = short == "query" and attention.heads or attention.kv_heads
            end
            found[name], list[#list + 1] = entry, entry
        end
    end
    return list
end

return families
