--- Attention of H heads of queries to K heads of keys and values, each D wide: a part of a block.

local blocks = require "mx.models.blocks"
local cache = require "mx.models.cache"
local mx = require "mx"
local parameters = require "mx.models.parameters"
local quantization = require "mx.models.quantization"
local rope = require "mx.models.rope"
local shapes = require "mx.models.shape"
local util = require "mx.util"

local attention = {
    cache_sizes = cache.sizes,
    products = "heads", -- the kind of its products on a mesh: see mx.Parallel:enter
    output = "out", -- its last product, whose bias is added after the sum over a mesh
    saved = "out_proj", -- the name of its result for a policy
}

-- The norm of queries and keys; `whole`: over all heads together instead of each.
local function qk_norm_of(c)
    local kind = blocks.KINDS[c.decoder_block]
    return c.use_qk_norm and not kind.norm_after_rope and {
        kind = "rmsnorm", eps = c.normalization_layer_epsilon, bias = false, offset = kind.norm_offset or 0,
        whole = kind.qk_norm_whole or false,
    }
end

--- The attention of a config's layers, as a part of a block.
---@param c table
---@param factor table factors that follow from global_parameter_scale
---@param reach "local"|"global"|"chunk"|"nope" local: with the sliding window; chunk: inside of chunks; nope: without
---       RoPE, and with a temperature if the config says so
---@return table
function attention.of(c, factor, reach)
    local rotated = reach ~= "nope"
    local scale = (c.query_pre_attn_scalar > 0 and c.query_pre_attn_scalar or c.head_dim) ^ -0.5
    return {
        kind = "attention",
        heads = c.base_num_query_heads * factor.heads,
        kv_heads = c.base_num_kv_heads * factor.heads,
        head_dim = c.head_dim, -- of queries and keys
        value_dim = c.head_dim,
        qkv_bias = c.use_bias or c.attention_bias,
        out_bias = c.use_bias or c.attention_bias and blocks.KINDS[c.decoder_block].out_bias or false,
        sinks = c.attention_sink, -- a score of each query head besides those of the keys
        qk_norm = qk_norm_of(c),
        -- The eps of norms of rotated queries and keys, which have no scales.
        rotated_norm = c.use_qk_norm and blocks.KINDS[c.decoder_block].norm_after_rope and rotated
            and c.normalization_layer_epsilon or nil,
        rope = rotated and rope.of(c, reach),
        temperature = c.temperature_tuning and not rotated and { scale = 0.1, tokens = 8192 } or nil,
        causal = c.attention_type ~= "full",
        window = reach == "local" and c.sliding_window_size or 0, -- keys of a query, its own included; 0: all
        chunk = reach == "chunk" and c.chunk_attn_window_size or nil, -- tokens of a chunk; nil: no chunks
        scale = c.fold_attention_scale and 1 or scale,
        query_factor = c.fold_attention_scale and scale or 1, -- of the initial query weights
        cap = c.attn_logits_soft_cap,
        buckets = c.relative_bias_buckets,
    }
end

--- Adds its parameters.
---@param part table
---@param list mx.ParameterList
function attention.parameters(part, list)
    local D = part.head_dim
    local group = part.heads // part.kv_heads -- heads of queries that use the same keys, on one rank of a mesh
    local H, K = { part.heads * D, "heads", group * D }, { part.kv_heads * D, "kv_heads", D }
    list:from_stream("query", H, { bias = part.qkv_bias, factor = part.query_factor, embed = "embed_attn" })
    list:from_stream("key", K, { bias = part.qkv_bias, embed = "embed_attn" })
    list:from_stream("value", K, { bias = part.qkv_bias, embed = "embed_attn" })
    if part.qk_norm and part.qk_norm.whole then
        list:norm("query_norm", H[1], part.qk_norm, "product", "heads", group * D)
        list:norm("key_norm", K[1], part.qk_norm, "product", "kv_heads", D)
    elseif part.qk_norm then
        list:norm("query_norm", D, part.qk_norm, "heads", false)
        list:norm("key_norm", D, part.qk_norm, "heads", false)
    end
    if part.sinks then
        list:add("sinks.weight", { { part.heads, "heads", group } }, { value = 0, use = "product", exact = true })
    end
    list:to_stream("out", H, { bias = part.out_bias, embed = "embed_attn" })
    if part.buckets > 0 then
        list:add("relative_bias.weight", { { part.buckets }, { part.heads } }, { value = 0, use = "product" })
    end
end

-- The norm of queries ("heads") or keys ("kv_heads"): (B, S, heads, D) -> the same.
local function normalize(model, norm, weight, x, all_heads, kind)
    weight = parameters.norm_weight(norm, weight)
    if not norm.whole then
        return mx.rmsnorm(x, weight, { eps = norm.eps })
    end
    local B, S, heads, D = x:size(1), x:size(2), x:size(3), x:size(4)
    local flat = x:view(B, S, heads * D)
    return model.parallel:norm_of_heads(norm, flat, weight, kind, all_heads * D):view(B, S, heads, D)
end

-- Queries (B, S, H, D) times 1 + scale ln(1 + floor((position + 1) / tokens)), which keeps attention sharp in long
-- sequences.
local function tempered(o, q, run)
    local positions = run.positions and run.positions:to("f32"):view(q:size(1), q:size(2), 1, 1)
        or mx.arange({ n = q:size(2), start = run.offset, dtype = "f32" }):view(1, q:size(2), 1, 1)
    local steps = mx.floor((positions + 1) / o.tokens)
    return (q:to("f32") * (mx.log1p(steps) * o.scale + 1)):to(q:dtype())
end

--- Attention with a layer's weights: h (B, S, E) -> (B, S, E), before the sum over a mesh and the bias. With a cache,
--- it also uses the cached keys and values of earlier tokens.
---@param model mx.Decoder
---@param i integer the layer
---@param part table
---@param weights table<string, any>
---@param h any
---@param run table of mx.Decoder:hidden
---@return any
function attention.forward(model, i, part, weights, h, run)
    local B, S, D = h:size(1), h:size(2), part.head_dim
    local heads, kv_heads = model.parallel:heads(part)
    local multiply = quantization.products(model, i, weights, h, run)
    local function product(name, n)
        return multiply(name, weights[name .. ".bias"]):view(B, S, n, D)
    end
    local q = product("query", heads) -- (B, S, H, D)
    local k, v = product("key", kv_heads), product("value", kv_heads) -- (B, S, K, D)
    if part.qk_norm then -- the gradient of a norm reads its input, so the input gets the name for policies
        q, k = mx.name(q, "query_proj"), mx.name(k, "key_proj")
        q = normalize(model, part.qk_norm, weights["query_norm.weight"], q, part.heads, "heads")
        k = normalize(model, part.qk_norm, weights["key_norm.weight"], k, part.kv_heads, "kv_heads")
    end
    q, k = rope.rotate(part.rope, q, k, run)
    if not part.qk_norm then
        q, k = mx.name(q, "query_proj"), mx.name(k, "key_proj")
    end
    if part.rotated_norm then
        q, k = mx.rmsnorm(q, { eps = part.rotated_norm }), mx.rmsnorm(k, { eps = part.rotated_norm })
    end
    q = part.temperature and tempered(part.temperature, q, run) or q
    v = mx.name(v, "value_proj")
    local options = {
        causal = part.causal, window = part.window, chunk = part.chunk, softcap = part.cap, scale = part.scale,
    }
    if run.cache then
        k, v = cache.remember(run.cache[i], k, v, options, run.offset)
    end
    local sinks = part.sinks and weights["sinks.weight"]:to("f32") or nil
    local context = model.parallel:attention(q, k, v, run, options, sinks) -- (B, S, H, D)
    return quantization.products(model, i, weights, context:view(B, S, heads * D), run)("out")
end

--- The names that a policy may keep.
---@return string[]
function attention.tensors(_)
    return { "query_proj", "key_proj", "value_proj", "context", "out_proj" }
end

-- How many of all S x S pairs of query and key have a key that is not later and in reach: half of them, a band of the
-- window's width, or half of each chunk.
local function past(part, S)
    if part.chunk then
        local rest = S % part.chunk
        return (S // part.chunk * part.chunk ^ 2 + rest ^ 2) / 2
    end
    local W = part.window > 0 and math.min(part.window, S) or S
    return S * W - W * W / 2
end

--- FLOPs of a forward pass. `products`: products with weights, per token. The others: scores and values for a sequence
--- of S tokens, over all keys (`full`), over keys that are not later than the query and inside its window (`past`), and
--- over the keys that this part's queries attend to (`seen`).
---@param part table
---@param shape table
---@param S integer
---@return {products: number, full: number, past: number, seen: number}
function attention.flops(part, shape, S)
    local E, D, width = shape.emb, part.head_dim, part.heads * part.head_dim
    local qkv, out = 2 * E * (part.heads + 2 * part.kv_heads) * D, 2 * E * width
    local full, behind = 4 * S * S * part.heads * D, 4 * past(part, S) * part.heads * D
    return { products = qkv + out, full = full, past = behind, seen = part.causal and behind or full }
end

-- How often keys and values are sent along context in a step, in the dtype of the layers' computation.
local function key_trips(part, q)
    if q.strategy == "all_gather" then
        return q.keeps_keys and 2 or 3 -- gathered, gathered again, and their gradients scattered
    end
    local trips, hops = 2 + 4 / q.width + (q.attends_again and 1 or 0), q.ring_share - 1
    local piece = q.S / q.ring_share / (q.in_two_chunks and 2 or 1)
    local back = part.window > 0 and part.window or part.chunk or 0
    local reach = back > 0 and (back + piece - 2) // piece or hops
    reach = part.chunk and piece % part.chunk == 0 and 0 or reach -- chunks inside of pieces
    local seen = math.min(q.in_two_chunks and 2 * reach or reach, hops) -- a late chunk sees those of the ranks behind
    return hops > 0 and trips * seen / hops or trips
end

local WHAT = {
    all_gather = "keys and values: all-gather; their gradients: reduce-scatter",
    ring = "keys and values: around the ring, behind attention; their gradients: too",
    exchange = "queries, keys, values and output of attention, and their gradients: all-to-alls",
}

-- The rows of what a device sends along context for attention. `values`: for each token of a sequence, in the dtype of
-- the layers' computation.
local function context_rows(part, q)
    local heads, kv_heads = part.heads / q.head_parts, math.max(part.kv_heads / q.head_parts, 1)
    local n = q.exchange_share
    local copied = kv_heads * (n // util.gcd(n, math.floor(kv_heads)))
    local width = part.head_dim + part.value_dim -- of a key and its value, or of a query and its result
    local values = {
        ring = key_trips(part, q) * copied / n * width,
        exchange = (q.actions and 3 or 2) * (heads + copied) * width / q.length_share,
    }
    local square = 2 * q.S * q.S * part.heads * width
    local share = part.causal and past(part, q.S) / (q.S * q.S) or 1
    local rows = {}
    for _, axes in ipairs({ "ring", "exchange" }) do
        rows[#rows + 1] = {
            axes = axes, what = WHAT[q.strategy == "all_gather" and axes == "ring" and q.strategy or axes],
            is_exchange = axes == "exchange",
            flops = 3 * q.sequences * square * share / q.length_share / q.head_parts * q.passes,
            bytes = values[axes] * q.S * q.sequences * q.width * q.passes,
        }
    end
    return rows
end

--- The collectives of a device in a step and layer, as rows of mx/sim/collectives.lua.
---@param part table of this kind, or of mla.lua
---@param q table the quantities of that file
---@return table[]
function attention.rows(part, q)
    local rows = context_rows(part, q)
    rows[#rows + 1] = {
        axes = "heads", what = "inputs and output of attention: all-gathers and reduce-scatters",
        flops = 3 * shapes.part(part).flops(part, q.shape, q.S).products / q.head_parts * q.tokens * q.passes,
    }
    return rows
end

return attention
