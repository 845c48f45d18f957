--- What the operations on rows do beyond one call's values: gradients that are scaled, gathered and shared, threads,
-- views, and what the fused loss holds in memory.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

--- Values of a fixed pattern between -1 and 1.
local function values(sizes, phase, dtype)
    local count, flat = 1, {}
    for _, n in ipairs(sizes) do
        count = count * n
    end
    for i = 1, count do
        flat[i] = math.sin(12.9898 * i + 78.233 * phase)
    end
    return mx.tensor(flat):view(table.unpack(sizes)):to(dtype or "f32")
end

local function ids(sizes, vocab)
    local count, flat = 1, {}
    for _, n in ipairs(sizes) do
        count = count * n
    end
    for i = 1, count do
        flat[i] = (7 * i * i + 3 * i) % vocab
    end
    return mx.tensor(flat, "i32"):view(table.unpack(sizes))
end

local function assert_near(actual, expected, bound, what)
    local apart = compare.distance(actual, expected)
    lu.assertTrue(apart <= bound, ("%s: off by %.3g, bound %.3g"):format(what, apart, bound))
end

--- A number times every element.
local function times(t, factor)
    local out = compare.flat(t)
    for i = 1, #out do
        out[i] = factor * out[i]
    end
    return out
end

TestLoss = {}

--- Loss and gradients of h and w by matmul and log_softmax, which have tests of their own.
local function by_parts(h, w, targets)
    local logits = mx.matmul(h, w, { trans_b = true })
    local picked = mx.gather(mx.log_softmax(logits), targets, { dim = 2 })
    return mx.mean(picked) * -1
end

--- Gradients of `loss(h, w)` with the seed given.
local function gradients(loss, h, w, seed)
    h, w = h:clone():requires_grad(), w:clone():requires_grad()
    mx.backward(loss(h, w), seed)
    return h:grad(), w:grad()
end

function TestLoss.test_same_as_its_parts_whatever_the_seed()
    local step <close> = mx.step()
    local h, w, t = values({ 21, 9 }, 1), values({ 35, 9 }, 2), ids({ 21 }, 35)
    local index = mx.tensor(compare.flat(t), "i32"):view(21, 1)
    local function fused(a, b) return mx.cross_entropy(a, b, t) end
    local function parts(a, b) return by_parts(a, b, index) end
    lu.assertAlmostEquals(fused(h, w):item(), parts(h, w):item(), 1e-5)
    local dh, dw = gradients(parts, h, w, 1)
    for _, seed in ipairs { 1, 0.25, -3 } do
        local gh, gw = gradients(fused, h, w, seed)
        assert_near(gh, times(dh, seed), 1e-5, "h, seed " .. seed)
        assert_near(gw, times(dw, seed), 1e-5, "weight, seed " .. seed)
    end
    -- A gradient from further on: the loss times its own square.
    local loss = fused(h, w):item()
    local gh = gradients(function(a, b)
        local l = fused(a, b)
        return l * l * l
    end, h, w, 1)
    assert_near(gh, times(dh, 3 * loss * loss), 1e-5, "cube of the loss")
    assert(step)
end

function TestLoss.test_gradients_gather_over_backwards()
    local step <close> = mx.step()
    local h, w, t = values({ 8, 5 }, 1), values({ 13, 5 }, 2):requires_grad(), ids({ 8 }, 13)
    mx.backward(mx.cross_entropy(h, w, t))
    local once = compare.flat(w:grad())
    mx.backward(mx.cross_entropy(h, w, t), 0.5)
    assert_near(w:grad(), times(once, 1.5), 1e-6, "one and a half")
    lu.assertNil(h:grad())
    assert(step)
end

function TestLoss.test_tied_weights_get_both_gradients()
    local step <close> = mx.step()
    local t = ids({ 2, 6 }, 13)
    local function loss(table_in, table_out)
        return mx.cross_entropy(mx.embedding(table_in, t, { scale = 2 }), table_out, t)
    end
    local a, b = values({ 13, 5 }, 3):requires_grad(), values({ 13, 5 }, 3):requires_grad()
    mx.backward(loss(a, b))
    local apart = mx.add(a:grad(), b:grad())
    local tied = values({ 13, 5 }, 3):requires_grad()
    mx.backward(loss(tied, tied))
    assert_near(tied:grad(), apart, 1e-6, "tied")
    assert(step)
end

function TestLoss.test_the_same_under_rematerialisation()
    local step <close> = mx.step()
    local h, w, t = values({ 8, 5 }, 1), values({ 13, 5 }, 2), ids({ 8 }, 13)
    local function plain(a, b) return mx.cross_entropy(mx.rmsnorm(a), b, t) end
    local dh, dw = gradients(plain, h, w, 0.5)
    for _, policy in ipairs { "full", "none" } do
        local gh, gw = gradients(function(a, b) return mx.remat(policy, plain, a, b) end, h, w, 0.5)
        lu.assertTrue(compare.identical(gh, dh) and compare.identical(gw, dw), policy)
    end
    assert(step)
end

--- Neither all logits nor, without a gradient, anything else is held; with one, the weight's gradient exists once.
function TestLoss.test_memory()
    local step <close> = mx.step()
    local T, E, V = 4096, 8, 4096
    local h, w, t = values({ T, E }, 1), values({ V, E }, 2):requires_grad(), ids({ T }, V)
    local logits, dw = 4 * T * V, 4 * V * E
    local function peak_over(fn)
        collectgarbage()
        local before = mx.memory().in_use
        mx.reset_peak()
        fn()
        return mx.memory().peak - before
    end
    local alone = peak_over(function() mx.no_grad(mx.cross_entropy, h, w, t) end)
    lu.assertTrue(alone < logits / 2, alone .. " bytes of " .. logits)
    local loss
    local with = peak_over(function() loss = mx.cross_entropy(h, w, t) end)
    lu.assertTrue(with - alone <= dw + 4096, with .. " bytes, " .. alone .. " without a gradient")
    local after = peak_over(function() mx.backward(loss) end)
    lu.assertTrue(after < dw, after .. " bytes in backward, where " .. dw .. " would be a second gradient")
    assert(step)
end

function TestLoss.test_a_bad_target_writes_nothing_and_leaks_nothing()
    local step <close> = mx.step()
    local h, w = values({ 4, 5 }, 1):requires_grad(), values({ 13, 5 }, 2):requires_grad()
    local bad = mx.tensor({ 1, 2, 13, 3 }, "i32")
    collectgarbage()
    local before = mx.memory().in_use
    for _ = 1, 10 do
        lu.assertErrorMsgContains("target 13 at [3]", mx.cross_entropy, h, w, bad)
    end
    lu.assertEquals(mx.memory().in_use, before)
    assert(step)
end

TestViews = {}

function TestViews.test_reshape_and_first_dimension_share_memory()
    local step <close> = mx.step()
    local x = values({ 4, 6 }, 1)
    local before = mx.memory().in_use
    local rows = mx.narrow(x, { dim = 1, start = 2, length = 2 })
    local flat = x:view(24)
    lu.assertEquals(mx.memory().in_use, before)
    x:set(2, 1, 42)
    lu.assertEquals(rows:get(1, 1), 42)
    lu.assertEquals(flat:get(7), 42)
    local column = mx.narrow(x, { dim = 2, start = 1, length = 1 })
    x:set(2, 1, 43)
    lu.assertEquals(column:get(2, 1), 42)
    assert(step)
end

--- Parts of one tensor add to its gradient where they came from, in place once there is one.
function TestViews.test_gradients_of_parts()
    local step <close> = mx.step()
    for _, dim in ipairs { 1, 2 } do
        local x = values({ 6, 6 }, 1):requires_grad()
        local total
        local parts = { { 1, 2, 2 }, { 2, 3, 10 }, { 5, 2, 100 } } -- start, length, factor: 2 and 3 overlap at 2
        for _, p in ipairs(parts) do
            local term = mx.sum(mx.narrow(x, { dim = dim, start = p[1], length = p[2] })) * p[3]
            total = total and total + term or term
        end
        mx.backward(total)
        local slope = { 2, 12, 10, 10, 100, 100 }
        local g = x:grad():totable()
        for i = 1, 6 do
            for j = 1, 6 do
                lu.assertEquals(g[i][j], slope[dim == 1 and i or j])
            end
        end
    end
    assert(step)
end

TestThreads = {}

--- Sums run in one order whatever the number of threads.
function TestThreads.test_same_bits_on_any_number_of_threads()
    local step <close> = mx.step()
    local x, w, b = values({ 300, 200 }, 1), values({ 200 }, 2), values({ 200 }, 3)
    local t = ids({ 300 }, 17)
    local most, first = mx.threads(), nil
    for _, n in ipairs { 1, 2, 3 } do
        mx.threads(n)
        local table_, weight, bias = values({ 17, 200 }, 4):requires_grad(), w:clone():requires_grad(),
            b:clone():requires_grad()
        local y = mx.layernorm(x + mx.embedding(table_, t), weight, bias)
        mx.backward(mx.sum(mx.mul(y, x)))
        local found = { table_:grad(), weight:grad(), bias:grad() }
        first = first or found
        for i, g in ipairs(found) do
            lu.assertTrue(compare.identical(g, first[i]), ("part %d on %d threads"):format(i, n))
        end
    end
    mx.threads(most)
    assert(step)
end
