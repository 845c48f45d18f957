--- The supported model families of other programs: the names of their tensors. See init.lua; config_json.lua has their
--- configs.
--
-- mxlua's weights are (inputs, outputs). Those of PyTorch's Linear are (outputs, inputs); GPT-2's are (inputs,
-- outputs).

local mx = require "mx"
local util = require "mx.util"

local families = {}

-- ---- names: mxlua's, without ".weight" and ".bias" -> the family's; a "T" behind a name: transposed ----
--
-- The experts' matrices are one parameter (experts, inputs, outputs). A name with %d stands for a matrix of each
-- expert. A name with "!" has no ".weight" behind it, and "_bias" instead of ".bias".

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

-- Mixtral and Qwen3-MoE, as they were published.
local MIXTRAL = like(LLAMA, {
    router = "block_sparse_moe.gate T", ["experts.wi_0"] = "block_sparse_moe.experts.%d.w1 T",
    ["experts.wi_1"] = "block_sparse_moe.experts.%d.w3 T", ["experts.wo"] = "block_sparse_moe.experts.%d.w2 T",
})
local QWEN3_MOE = like(LLAMA, {
    router = "mlp.gate T", ["experts.wi_0"] = "mlp.experts.%d.gate_proj T",
    ["experts.wi_1"] = "mlp.experts.%d.up_proj T", ["experts.wo"] = "mlp.experts.%d.down_proj T",
})
-- Both, as transformers 5 has them in memory: two tensors for all experts of a layer.
local FUSED = like(QWEN3_MOE, {
    ["experts.wi_0"] = "mlp.experts.gate_up_proj! T", ["experts.wi_1"] = "mlp.experts.gate_up_proj! T",
    ["experts.wo"] = "mlp.experts.down_proj! T",
})

-- Latent attention, and the bias of a router, which is a buffer here. They are the same with fused experts.
local DEEPSEEK_SHORT = {
    query_a = "self_attn.q_a_proj T", query_a_norm = "self_attn.q_a_layernorm", query_b = "self_attn.q_b_proj T",
    kv_a = "self_attn.kv_a_proj_with_mqa T", kv_a_norm = "self_attn.kv_a_layernorm", kv_b = "self_attn.kv_b_proj T",
    ["shared.wi_0"] = "mlp.shared_experts.gate_proj T", ["shared.wi_1"] = "mlp.shared_experts.up_proj T",
    ["shared.wo"] = "mlp.shared_experts.down_proj T",
}
local DEEPSEEK_FIELDS = {
    router_bias = "mlp.gate.e_score_correction_bias",
    mtp = { -- of multi-token prediction, among the weights of its layer
        embedding_norm = "enorm", hidden_norm = "hnorm", projection = "eh_proj T", final_norm = "shared_head.norm",
    },
}
local DEEPSEEK = like(QWEN3_MOE, DEEPSEEK_SHORT, DEEPSEEK_FIELDS)
local FUSED_DEEPSEEK = like(FUSED, DEEPSEEK_SHORT, DEEPSEEK_FIELDS)

-- The columns of the experts' gates and of their other product alternate.
local GPT_OSS = like(LLAMA, {
    sinks = "self_attn.sinks!", router = "mlp.router T", ["experts.wi_0"] = "mlp.experts.gate_up_proj!",
    ["experts.wi_1"] = "mlp.experts.gate_up_proj!", ["experts.wo"] = "mlp.experts.down_proj!",
}, { alternating = true })

local LLAMA4 = like(LLAMA, {
    wi_0 = "feed_forward.gate_proj T", wi_1 = "feed_forward.up_proj T", wo = "feed_forward.down_proj T",
    router = "feed_forward.router T", ["experts.wi_0"] = "feed_forward.experts.gate_up_proj!",
    ["experts.wi_1"] = "feed_forward.experts.gate_up_proj!", ["experts.wo"] = "feed_forward.experts.down_proj!",
    ["shared.wi_0"] = "feed_forward.shared_expert.gate_proj T",
    ["shared.wi_1"] = "feed_forward.shared_expert.up_proj T",
    ["shared.wo"] = "feed_forward.shared_expert.down_proj T",
})

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
        wi_0 = "ffn_gate T", wi_1 = "ffn_up T", wo = "ffn_down T", router = "ffn_gate_inp T",
        ["experts.wi_0"] = "ffn_gate_exps T", ["experts.wi_1"] = "ffn_up_exps T", ["experts.wo"] = "ffn_down_exps T",
    },
}

-- In GGUF too, GPT-2 stores queries, keys and values in one matrix.
local GGUF_GPT2 = like(GGUF, { query = "attn_qkv T", key = "attn_qkv T", value = "attn_qkv T" })

-- GGUF stores the norms of Gemma with the 1 that is added to them here.
local GGUF_GEMMA = like(GGUF, { post_norm = "post_attention_norm", mlp_post_norm = "post_ffw_norm" },
    { scaled_table = true, whole_norms = true })

families.NAMES = {
    llama = LLAMA, mistral = LLAMA, ministral = LLAMA, qwen2 = LLAMA, qwen3 = LLAMA, gpt2 = GPT2, gemma = GEMMA,
    gemma2 = GEMMA2, gemma3_text = GEMMA2, olmo2 = OLMO, olmo3 = OLMO, mixtral = MIXTRAL, qwen3_moe = QWEN3_MOE,
    ["fused.mixtral"] = FUSED, ["fused.qwen3_moe"] = FUSED, deepseek_v2 = DEEPSEEK, deepseek_v3 = DEEPSEEK,
    kimi_k2 = DEEPSEEK, gpt_oss = GPT_OSS, llama4_text = LLAMA4,
    ["fused.deepseek_v2"] = FUSED_DEEPSEEK, ["fused.deepseek_v3"] = FUSED_DEEPSEEK,
    ["fused.kimi_k2"] = FUSED_DEEPSEEK,
    ["gguf.llama"] = GGUF, ["gguf.qwen2"] = GGUF, ["gguf.qwen3"] = GGUF,
    ["gguf.qwen3moe"] = GGUF, ["gguf.gpt2"] = GGUF_GPT2,
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

-- The family's name of a parameter, and whether the stored tensor is transposed. With %d in it, it stands for a tensor
-- of each expert.
local function name_of(names, p, shape)
    local layer, rest = p.name:match("^layer(%d+)%.(.*)$")
    local module, own = p.name:match("^mtp(%d+)%.(.*)$")
    local base, kind = (rest or own or p.name):match("^(.*)%.(%a+)$")
    local theirs = (layer and names.short or module and names.mtp or names.whole)[base]
    layer = module and shape.layers + tonumber(module) or layer
    if not theirs then
        return nil
    end
    local name, bare, transposed = theirs:match("^([^%s!]+)(!?) ?(T?)$")
    local prefix = layer and names.layer:format(tonumber(layer) - 1) or ""
    local ending = bare == "" and "." .. kind or kind == "bias" and "_bias" or ""
    return prefix .. name .. ending, transposed == "T" and #p.sizes > 1
end

-- Sizes with the last two swapped.
local function swapped(sizes)
    local n = #sizes
    local twin = table.move(sizes, 1, n, 1, {})
    twin[n - 1], twin[n] = sizes[n], sizes[n - 1]
    return twin
end

-- A stored tensor that begins with a parameter: its dimension of the outputs may hold further ones.
local function new_entry(name, p, sizes, transposed)
    local dim = transposed and #sizes - 1 or #sizes -- of the outputs
    return {
        name = name, sizes = sizes, parts = { p.name }, transposed = transposed, dim = dim, lengths = { sizes[dim] },
    }
end

-- Adds an entry for each expert of a parameter of all experts.
local function add_experts(list, name, p, sizes, transposed)
    for expert = 1, sizes[1] do
        local entry = new_entry(name:format(expert - 1), p, { sizes[2], sizes[3] }, transposed)
        entry.first_expert, entry.experts = expert, 1
        list[#list + 1] = entry
    end
end

-- Splits rows into heads, and transposes the (n, two) rotated rows of each; nil: as many as there are.
local function reorder(t, heads, kept, n, two)
    local rows, columns = t:size(1) // heads, t:dim() == 2 and t:size(2) or 1
    t = t:view(heads, rows, columns)
    local first = kept > 0 and mx.narrow(t, { dim = 2, start = 1, length = kept })
    local last = mx.narrow(t, { dim = 2, start = kept + 1, length = rows - kept })
    last = mx.permute(last:view(heads, n or (rows - kept) // 2, two or (rows - kept) // 2, columns),
        { dims = { 1, 3, 2, 4 } }):view(heads, rows - kept, columns)
    return first and mx.concat({ first, last }, { dim = 2 }) or last
end

-- ---- the order of rows for RoPE ----

--- Reorders rows of a file in which the two components that RoPE rotates are neighbours: in mxlua they are half a head
--- apart. In each head, the first `kept` rows stay.
---@param t any (rows, columns) or (rows)
---@param heads integer
---@param kept integer
---@return any
function families.from_neighbours(t, heads, kept)
    return reorder(t, heads, kept, nil, 2):view(table.unpack(t:size()))
end

--- The reverse of families.from_neighbours.
---@param t any
---@param heads integer
---@param kept integer
---@return any
function families.to_neighbours(t, heads, kept)
    return reorder(t, heads, kept, 2, nil):view(table.unpack(t:size()))
end

-- Of a product whose results RoPE rotates: the number of heads, and how many features of each come before the rotated
-- ones.
local function rotated_heads(shape, p)
    local layer, short = p.name:match("^layer(%d+)%.([%w_]+)%.weight$")
    local attention = layer and mx.models.block(shape, tonumber(layer)).attention
    local latent = layer and attention.kind == "mla"
    if not layer or not attention.rope or attention.rope.interleaved then
        return nil
    elseif latent and (short == "query" or short == "query_b") then
        return attention.heads, attention.nope
    elseif latent and short == "kv_a" then
        return 1, attention.rank
    elseif not latent and (short == "query" or short == "key") then
        return short == "query" and attention.heads or attention.kv_heads, 0
    end
end

-- The buffer that holds the bias of a layer's router: an entry behind that of the router.
local function add_router_bias(list, names, shape, p)
    local layer = p.name:match("^layer(%d+)%.router%.weight$")
    local mlp = layer and mx.models.block(shape, tonumber(layer)).mlp
    if mlp and mlp.router.bias then
        list[#list + 1] = {
            name = names.layer:format(tonumber(layer) - 1) .. names.router_bias, sizes = { mlp.experts },
            buffer = mx.models.part(mlp).bias_name(tonumber(layer)), dtype = "f32",
        }
    end
end

--- The tensors of a model as the family stores them, in the order of the forward pass. Each entry has its name, its
--- sizes, the parameters that it consists of (concatenated along dimension `dim`, with `lengths` each), and whether it
--- is transposed (its last two dimensions). `experts` is set if it holds matrices of experts: so many, from number
--- `first_expert` on. `heads` is set if its rows are to be reordered for RoPE: in each of so many heads, those after
--- the first `kept` ones. `factor` is set if the parameter is the stored tensor times this, and `offset` if it is the
--- stored tensor without this. With `alternating`, the columns of its parameters alternate. An entry with `buffer` is
--- this buffer of the model and nothing else, saved as `dtype`.
---@param kind string a key of families.NAMES
---@param shape table of mx.models.shape
---@param neighbours? boolean the two components that RoPE rotates together are neighbours in the file. In mxlua they
---       are half a head apart, unless the model's RoPE is interleaved
---@return table[]
function families.layout(kind, shape, neighbours)
    local names, list, found = families.NAMES[kind], {}, {}
    for _, p in ipairs(mx.models.parameters(shape)) do
        local name, transposed = name_of(names, p, shape)
        if not name then
            util.refuse("models of the family %s have no parameter '%s'", kind, p.name)
        end
        local sizes = transposed and swapped(p.sizes) or table.move(p.sizes, 1, #p.sizes, 1, {})
        local entry = found[name]
        if entry then
            entry.parts[#entry.parts + 1] = p.name
            entry.sizes[entry.dim] = entry.sizes[entry.dim] + sizes[entry.dim]
            entry.lengths[#entry.parts] = sizes[entry.dim]
            entry.alternating = names.alternating
        elseif name:find("%%d") then
            add_experts(list, name, p, sizes, transposed)
        else
            entry = new_entry(name, p, sizes, transposed)
            entry.factor = names.scaled_table and p.name == "embedding.weight" and math.sqrt(shape.emb) or nil
            entry.offset = names.whole_norms and p.name:find("norm%.weight$") and 1 or nil
            if #sizes == 3 then
                entry.first_expert, entry.experts = 1, sizes[1]
            end
            if neighbours then
                entry.heads, entry.kept = rotated_heads(shape, p)
            end
            found[name], list[#list + 1] = entry, entry
            add_router_bias(list, names, shape, p)
        end
    end
    return list
end

return families
