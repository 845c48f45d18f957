--- Multi-head latent attention (MLA) of DeepSeek: keys and values come from one small vector of each token, the latent.
--
-- Each of H heads has queries and keys of N + R features: N without positions (nope), and R with RoPE, which all heads
-- have in common in keys. Values have V features. The latent of keys and values has L features; that of queries has Q,
-- or there is none, and queries are a product of the residual stream.

local attention = require "mx.models.attention"
local mx = require "mx"
local quantization = require "mx.models.quantization"
local rope = require "mx.models.rope"

local mla = {
    products = attention.products, output = attention.output, saved = attention.saved,
    rows = attention.rows,
}

-- The factor of the scores: 1 / sqrt(N + R), times YaRN's factor of the attention twice, for queries and for keys.
local function scale_of(c)
    local grown = c.rope_type == "yarn" and 1 + c.mscale * (rope.yarn_attention_factor(c.rope_factor) - 1) or 1
    return grown * grown * (c.qk_nope_head_dim + c.qk_rope_head_dim) ^ -0.5
end

--- The latent attention of a config's layers, as a part of a block.
---@param c table
---@param factor table factors that follow from global_parameter_scale
---@return table
function mla.of(c, factor)
    local heads = c.base_num_query_heads * factor.heads
    return {
        kind = "mla",
        heads = heads,
        kv_heads = heads,
        head_dim = c.qk_nope_head_dim + c.qk_rope_head_dim, -- of queries and keys
        nope = c.qk_nope_head_dim,
        rotated = c.qk_rope_head_dim,
        value_dim = c.v_head_dim,
        query_rank = c.q_lora_rank, -- features of the queries' latent; 0: none
        rank = c.kv_lora_rank, -- features of the latent of keys and values
        norm = { kind = "rmsnorm", eps = c.normalization_layer_epsilon, bias = false, offset = 0 }, -- of latents
        rope = rope.of(c, "global"),
        causal = true,
        window = 0,
        scale = scale_of(c),
        cap = c.attn_logits_soft_cap,
        clip = c.use_qk_clip and c.qk_clip_threshold or 0, -- the largest score (qk_clip.lua); 0: any
        buckets = 0,
    }
end

--- Adds its parameters. Along tensor axes all ranks compute the latents alike, and each uses them for its heads.
---@param part table
---@param list mx.ParameterList
function mla.parameters(part, list)
    local D, up = part.head_dim, part.nope + part.value_dim
    local Q = { part.heads * D, "heads", D }
    local down = { embed = "embed_attn", use = "heads" }
    if part.query_rank > 0 then
        list:from_stream("query_a", { part.query_rank }, down)
        list:norm("query_a_norm", part.query_rank, part.norm, "heads", false)
        list:product("query_b", { part.query_rank, "embed_attn" }, Q)
    else
        list:from_stream("query", Q, { embed = "embed_attn" })
    end
    list:from_stream("kv_a", { part.rank + part.rotated }, down)
    list:norm("kv_a_norm", part.rank, part.norm, "heads", false)
    list:product("kv_b", { part.rank, "embed_attn" }, { part.heads * up, "heads", up })
    list:to_stream("out", { part.heads * part.value_dim, "heads", part.value_dim }, { embed = "embed_attn" })
end

-- The features first .. first + n - 1 of the last dimension.
local function features(x, first, n)
    return mx.narrow(x, { dim = #x:size(), start = first, length = n })
end

-- Queries before RoPE: (B, S, H, N + R), by the products of h (`multiply`) or of their latent.
local function queries(part, weights, multiply, products, heads)
    local q
    if part.query_rank > 0 then
        local latent = mx.name(multiply("query_a"), "query_wa_proj")
        latent = mx.name(mx.rmsnorm(latent, weights["query_a_norm.weight"], { eps = part.norm.eps }), "mla_q")
        q = products(latent)("query_b")
    else
        q = multiply("query")
    end
    return q:view(q:size(1), q:size(2), heads, part.head_dim)
end

-- What earlier tokens left: writes this pass's latents (B, S, L) and rotated keys (B, S, 1, R) into the cache, and
-- returns those of all tokens so far.
local function remember(cache, latent, key, run)
    local B, S, L = latent:size(1), latent:size(2), latent:size(3)
    local both = mx.concat({ latent:view(B, S, 1, L), key }, { dim = 4 })
    mx.write_slice(cache.latent, both, { dim = 2, start = run.offset + 1 })
    both = mx.narrow(cache.latent, { dim = 2, start = 1, length = run.offset + S })
    return features(both, 1, L):view(B, run.offset + S, L), features(both, L + 1, key:size(4))
end

-- Whether it takes fewer products to attend to `keys` latents themselves than to make their keys and values.
local function absorbs(part, S, keys)
    local N, R, L, V = part.nope, part.rotated, part.rank, part.value_dim
    return S * L * (N + V) + 2 * S * keys * (L + R) < keys * L * (N + V) + 2 * S * keys * (N + R)
end

-- The same for each head: (B, S, H, n) -> (H, B S, n), for products with weights of heads (H, n, m); and back.
local function by_head(x)
    return mx.permute(x, { dims = { 3, 1, 2, 4 } }):view(x:size(3), x:size(1) * x:size(2), x:size(4))
end

local function by_token(y, B, S)
    return mx.permute(y:view(y:size(1), B, S, y:size(3)), { dims = { 2, 3, 1, 4 } })
end

-- Attention to the cached latents themselves: a score is a product of a query and a latent if the query has gone
-- through the weights that would make the key, and values are made of the sum of latents. All heads have the same keys
-- (L + R), whose first L features are the values. q (B, S, H, N), q_rotated (B, S, H, R) -> (B, S, H V).
local function attend_to_latents(model, part, weight, q, q_rotated, latents, run, options)
    local B, S, H, N, L = q:size(1), q:size(2), q:size(3), part.nope, part.rank
    weight = mx.permute(weight:view(L, H, N + part.value_dim), { dims = { 2, 1, 3 } }) -- (H, L, N + V)
    local seen = mx.matmul(by_head(q), features(weight, 1, N), nil, { trans_b = true }) -- (H, B S, L)
    q = mx.concat({ by_token(seen, B, S), q_rotated }, { dim = 4 })
    local context = model.parallel:attention(q, latents, latents, run, options) -- (B, S, H, L + R)
    local values = mx.matmul(by_head(features(context, 1, L)), features(weight, N + 1, part.value_dim))
    return by_token(values, B, S):view(B, S, H * part.value_dim)
end

--- Attention with a layer's weights: h (B, S, E) -> (B, S, E), before the sum over a mesh. With a cache, it also uses
--- the cached latents of earlier tokens, whichever way is cheaper: it attends to them, or computes their keys and
--- values again.
---@param model mx.Decoder
---@param i integer the layer
---@param part table
---@param weights table<string, any>
---@param h any
---@param run table of mx.Decoder:hidden
---@return any
function mla.forward(model, i, part, weights, h, run)
    local B, S, N, R, L = h:size(1), h:size(2), part.nope, part.rotated, part.rank
    local heads = model.parallel:heads(part)
    local function products(x)
        return quantization.products(model, i, weights, x, run)
    end
    local multiply = products(h)
    local q = queries(part, weights, multiply, products, heads)
    local down = mx.name(multiply("kv_a"), "kv_wa_proj") -- (B, S, L + R)
    local latent = mx.rmsnorm(features(down, 1, L), weights["kv_a_norm.weight"], { eps = part.norm.eps })
    latent = mx.name(latent, "mla_kv")
    local q_rotated, k_rotated = rope.rotate(part.rope, features(q, N + 1, R),
        features(down, L + 1, R):view(B, S, 1, R), run)
    local options = { causal = true, softcap = part.cap, scale = part.scale }
    if run.cache then
        latent, k_rotated = remember(run.cache[i], latent, k_rotated, run)
        options.offset, options.kv_length = run.offset, run.offset + S
        if not model.quantization and absorbs(part, S, run.offset + S) then -- codes: the products of training
            local context = attend_to_latents(model, part, weights["kv_b.weight"], features(q, 1, N), q_rotated,
                run.cache[i].latent, run, options)
            return mx.matmul(context, weights["out.weight"])
        end
    end
    q = mx.concat({ features(q, 1, N), q_rotated }, { dim = 4 })
    local keys = latent:size(2)
    local up = products(latent)("kv_b"):view(B, keys, heads, N + part.value_dim)
    local k = mx.concat({ features(up, 1, N), mx.expand(k_rotated, { B, keys, heads, R }) }, { dim = 4 })
    local v = mx.name(features(up, N + 1, part.value_dim), "value_proj")
    q, k = mx.name(q, "query_proj"), mx.name(k, "key_proj")
    if run.pass and model.qk_clip then
        model.qk_clip:observe(i, q, k, part.scale, run)
    end
    local context = model.parallel:attention(q, k, v, run, options) -- (B, S, H, V)
    return products(context:view(B, S, heads * part.value_dim))("out")
end

--- The sizes of the tensors that keep the latents and rotated keys of `capacity` tokens of B sequences.
---@param part table
---@param B integer
---@param capacity integer
---@return table<string, integer[]> latent: a latent and, behind it, a rotated key
function mla.cache_sizes(part, B, capacity)
    return { latent = { B, capacity, 1, part.rank + part.rotated } }
end

--- The names that a policy may keep.
---@param part table
---@return string[]
function mla.tensors(part)
    local names = attention.tensors(part)
    for _, name in ipairs(part.query_rank > 0 and { "query_wa_proj", "mla_q" } or {}) do
        names[#names + 1] = name
    end
    names[#names + 1], names[#names + 2] = "kv_wa_proj", "mla_kv"
    return names
end

--- FLOPs of a forward pass, as attention.flops.
---@param part table
---@param shape table
---@param S integer
---@return {products: number, full: number, past: number, seen: number}
function mla.flops(part, shape, S)
    local E, H, D = shape.emb, part.heads, part.head_dim
    local query = part.query_rank > 0 and part.query_rank * (E + H * D) or E * H * D
    local both = E * (part.rank + part.rotated) + part.rank * H * (part.nope + part.value_dim)
    local full = 2 * S * S * H * (D + part.value_dim)
    return {
        products = 2 * (query + both + H * part.value_dim * E), full = full, past = full / 2, seen = full / 2,
    }
end

return mla
