--- Dropout of attention's probabilities: masks and their gradients. Values against PyTorch are in test_ops.lua.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

TestAttentionDropout = {}

local function inputs(sizes, dtype)
    local all = {}
    for i, size in ipairs(sizes) do
        all[i] = mx.randn(size, { seed = i }):to(dtype)
    end
    return table.unpack(all)
end

--- A part of the sequences, heads and queries has the mask of the whole; so has a query that is decoded.
function TestAttentionDropout.test_parts()
    compare.on_each_isa(function(isa)
        local step <close> = mx.step()
        local q, k, v = inputs({ { 3, 40, 6, 16 }, { 3, 40, 3, 16 }, { 3, 40, 3, 16 } }, "f32")
        local whole = mx.attention(q, k, v, { dropout = 0.4, seed = 9 })
        local part = mx.attention(q[{ { 2, 3 }, { 7, 40 }, { 3, 6 } }], k[{ { 2, 3 }, {}, { 2, 3 } }],
            v[{ { 2, 3 }, {}, { 2, 3 } }],
            { dropout = 0.4, seed = 9, first_sequence = 1, first_head = 2, offset = 6 })
        local expected = whole[{ { 2, 3 }, { 7, 40 }, { 3, 6 } }]
        lu.assertTrue(compare.distance(part, expected) < 1e-6, isa)
        local one = mx.attention(q[{ {}, { 12, 12 } }], k, v, { dropout = 0.4, seed = 9, offset = 11 })
        lu.assertTrue(compare.distance(one, whole[{ {}, { 12, 12 } }]) < 1e-6, isa)
        assert(step)
    end)
end

-- About as many are dropped as should be, and neighbours, queries, heads, sequences and seeds are independent.
function TestAttentionDropout.test_masks()
    local step <close> = mx.step()
    local n = 128
    for _, rate in ipairs { 0.1, 0.5, 0.9 } do
        local shape = { 2, 2, n, n }
        local mask = mx.attention_dropout { shape = shape, dropout = rate, seed = 1 }
        local scale = 1 / (1 - (rate * 65536 + 0.5) // 1 / 65536)
        local kept = mask:gt(0):to("f32")
        lu.assertTrue(compare.identical(mask, kept * scale))
        local function is_near(t, want, share) -- five standard deviations of a mean of so many
            lu.assertAlmostEquals(t:mean():item(), want, 5 * math.sqrt(want * (1 - want) / (mask:numel() * share)))
        end
        is_near(kept, 1 - rate, 1)
        local both = (1 - rate) ^ 2
        for dim = 1, 4 do
            local size = shape[dim]
            local first, second = kept:narrow { dim = dim, start = 1, length = size - 1 },
                kept:narrow { dim = dim, start = 2, length = size - 1 }
            is_near(first * second, both, (size - 1) / size)
        end
        is_near(kept * mx.attention_dropout { shape = shape, dropout = rate, seed = 2 }:gt(0):to("f32"), both, 1)
    end
    assert(step)
end

-- Without a seed each call draws one, and only with dropout.
function TestAttentionDropout.test_seeds()
    local step <close> = mx.step()
    local q = mx.randn({ 1, 20, 2, 8 }, { seed = 4 })
    mx.manual_seed(1)
    local a, b = mx.attention(q, q, q, { dropout = 0.3 }), mx.attention(q, q, q, { dropout = 0.3 })
    lu.assertFalse(compare.identical(a, b))
    lu.assertEquals(mx.random_state().draws, 2)
    mx.manual_seed(1)
    lu.assertTrue(compare.identical(mx.attention(q, q, q, { dropout = 0.3 }), a))
    mx.attention(q, q, q)
    lu.assertEquals(mx.random_state().draws, 1)
    lu.assertTrue(compare.identical(mx.attention(q, q, q, { dropout = 0, seed = 7 }), mx.attention(q, q, q)))
    assert(step)
end

--- Gradients with every option are those of the composition, in f64; and a region that is computed again has the same
--- mask.
function TestAttentionDropout.test_gradients()
    local step <close> = mx.step()
    local q, k, v = inputs({ { 2, 5, 4, 4 }, { 2, 7, 2, 4 }, { 2, 7, 2, 3 } }, "f64")
    local bias, sinks = mx.randn({ 4, 5, 7 }, { seed = 5 }):to("f64"), mx.randn({ 4 }, { seed = 6 }):to("f64")
    mx.gradcheck(function(a, b, c)
        return mx.attention(a, b, c, { bias = bias, sinks = sinks, dropout = 0.4, seed = 2, causal = true, offset = 2 })
    end, q, k, v)
    mx.gradcheck(function(b, s)
        return mx.attention(q, k, v, nil, b, nil, s, { dropout = 0.4, seed = 2 })
    end, bias, sinks)
    local grads = {}
    for i, policy in ipairs { "none", "full" } do
        mx.manual_seed(8)
        local x = mx.randn({ 1, 70, 2, 16 }, { seed = 3 }):requires_grad()
        local y = mx.remat(policy, function(t) return mx.attention(t, t, t, { causal = true, dropout = 0.2 }) end, x)
        mx.backward(mx.sum(mx.square(y)))
        grads[i] = x:grad()
    end
    lu.assertTrue(compare.identical(grads[1], grads[2]))
    assert(step)
end

function TestAttentionDropout.test_errors()
    local q = mx.zeros { 1, 3, 2, 4 }
    for _, rate in ipairs { 1, -0.1, 0 / 0 } do
        lu.assertErrorMsgContains("must be in [0, 1)", mx.attention, q, q, q, { dropout = rate })
    end
    lu.assertErrorMsgContains("first_sequence = -1", mx.attention, q, q, q, { dropout = 0.1, first_sequence = -1 })
    lu.assertErrorMsgContains("heads are below 4096", mx.attention, q, q, q, { dropout = 0.1, first_head = 4096 })
    lu.assertErrorMsgContains("(batch, heads, queries, keys)", mx.attention_dropout, { shape = { 3 }, dropout = 0.1 })
    lu.assertErrorMsgContains("dropout", mx.ring_attention, q, q, q, { dropout = 0.1 })
end
