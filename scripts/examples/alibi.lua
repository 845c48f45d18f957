-- A character transformer with attention by hand and ALiBi (Press et al., 2022) instead of positions.
-- Attention by hand must equal mx.attention to 1e-5; the loss on a text must fall below 2.3 nats a character.
--
--     build/mxlua scripts/examples/alibi.lua [steps=150]
local mx = require "mx"
local o = mx.config.options(arg, { steps = 150 })
local E, H, S, B = 64, 4, 64, 16
local D = E // H

-- The characters of a text as ids.
local text = io.open(mx.root .. "LICENSE"):read("a")
local ids, V, bytes = {}, 0, { text:byte(1, -1) }
for i, b in ipairs(bytes) do
    if not ids[b] then
        ids[b], V = V, V + 1
    end
    bytes[i] = ids[b]
end
local corpus = mx.tensor(bytes, "i32"):keep()

-- Scores plus slope times distance; the future is masked.
local distance = mx.arange { n = S }:view(1, S) - mx.arange { n = S }:view(S, 1)
local future = mx.where(distance:gt(0), mx.full({ shape = { S, S }, value = -1e9 }), mx.zeros { S, S })
local slopes = mx.tensor { 2 ^ -2, 2 ^ -4, 2 ^ -6, 2 ^ -8 }:view(H, 1, 1)
local function attend(q, k, v, bias) -- (B, S, H, D)
    local function heads(t) return mx.permute(t, { dims = { 1, 3, 2, 4 } }) end
    local scores = mx.matmul(heads(q), heads(k), { trans_b = true }) * D ^ -0.5 + bias
    return heads(mx.matmul(mx.softmax(scores), heads(v)))
end

local function random(seed) return mx.randn { shape = { 2, S, H, D }, seed = seed } end
local q, k, v = random(1), random(2), random(3)
local apart = mx.max(mx.abs(attend(q, k, v, future) - mx.attention(q, k, v, { causal = true }))):item()
assert(apart < 1e-5, "attention by hand is off by " .. apart)

local params = {}
local embed = mx.nn.embedding(params, "embedding", V, E)
local norm, norm2 = mx.nn.layernorm(params, "norm", E), mx.nn.layernorm(params, "norm2", E)
local qkv, out = mx.nn.linear(params, "qkv", E, 3 * E), mx.nn.linear(params, "out", E, E)
local mlp, bias = mx.nn.mlp(params, "mlp", E, 4 * E), (future + slopes * distance):keep()
local optimizer, loss = mx.optim.adamw(params, { learning_rate = 3e-3 }), nil
for i = 1, o.steps do
    local step <close> = mx.step()
    local start = (mx.rand { shape = { B, 1 }, seed = i, high = #text - S - 1 }):to("i32")
    local at = start + mx.arange { n = S, dtype = "i32" }:view(1, S)
    local tokens, targets = mx.index_select(corpus, at:view(B * S)), mx.index_select(corpus, (at + 1):view(B * S))
    local x = embed(tokens:view(B, S))
    local parts = qkv(norm(x)):view(B, S, 3, H, D)
    local function part(n) return parts[{ {}, {}, n }] end -- (B, S, H, D)
    x = x + out(attend(part(1), part(2), part(3), bias):reshape { shape = { B, S, E } })
    x = x + mlp(norm2(x))
    local mean = mx.cross_entropy(x:view(B * S, E), params["embedding.weight"], targets,
        { trans = true, logit_scale = E ^ -0.5 })
    mx.backward(mean)
    optimizer:step()
    loss = mean:item()
end
print(("attention by hand is within %.1g; loss %.2f nats a character"):format(apart, loss))
assert(loss < 2.3, "the loss must be below 2.3")
