--- Backward in two halves: first the gradients that lead to some inputs, later those of the weights.

local mx = require "mx"
local lu = require "luaunit"
local checks = require "checks"

local bits = checks.bits

local function assert_raises(text, fn, ...)
    checks.assert_raises({ text }, fn, ...)
end

-- ---- the same bits as in one call ----

TestBits = {}

local POLICIES = { "none", "full", { a = "device" }, { a = "offload" } }

-- Layers whose weights are leaves, or computed from leaves; a weight that is used in each of them, one that is added,
-- experts, and a norm.
local function forward(w, x, policy, dtype)
    for _ = 1, 2 do
        x = mx.remat(policy, function(h)
            local n = mx.rmsnorm(h, w.scale)
            local a = mx.name(mx.matmul(n, (w.up * 0.5):to(dtype), w.bias), "a")
            local z = mx.matmul(mx.tanh(a), w.down:to(dtype))
            local twice = mx.matmul(w.square, w.square):to(dtype)
            local routed = mx.grouped_matmul(h, w.experts:to(dtype), mx.tensor({ 2, 0, 3 }, "i32"))
            return h + z + mx.matmul(h, twice, nil, { trans_b = true }) + routed + w.added:to(dtype)
        end, x)
    end
    return x
end

-- The gradients of two microbatches: `halves` says when the second half of the first one runs.
local function train(policy, dtype, halves)
    local step <close> = mx.step()
    local sizes = { up = { 8, 16 }, down = { 16, 8 }, square = { 8, 8 }, bias = { 16 }, scale = { 8 }, added = { 8 },
        experts = { 3, 8, 8 } }
    local w, tapes, x, result = {}, {}, {}, {}
    for name, size in pairs(sizes) do
        w[name] = mx.randn(size, { seed = #name, std = 0.3 }):requires_grad()
    end
    for i = 1, 2 do
        tapes[i], x[i] = mx.tape(), mx.randn({ 5, 8 }, { seed = 10 + i }):to(dtype):requires_grad()
        local y = tapes[i]:run(mx.scope, function() return forward(w, x[i], policy, dtype) end)
        local dy = mx.randn({ 5, 8 }, { seed = 20 + i }):to(dtype)
        tapes[i]:backward(y, dy, halves and { inputs = x[i] } or nil)
        dy:release()
        y:release()
        result["x" .. i] = bits(x[i]:grad())
        if halves == "at once" then
            tapes[i]:backward_weights()
        end
    end
    for i = 1, 2 do
        if halves then
            tapes[i]:backward_weights() -- the second time there is nothing left
        end
        tapes[i]:close()
    end
    for name, t in pairs(w) do
        result[name] = bits(t:grad())
    end
    assert(step)
    return result
end

function TestBits.test_any_policy_and_dtype()
    for _, policy in ipairs(POLICIES) do
        for _, dtype in ipairs({ "f32", "bf16" }) do
            local before = checks.in_use()
            local whole = train(policy, dtype)
            lu.assertEquals(train(policy, dtype, "at once"), whole)
            lu.assertEquals(train(policy, dtype, "later"), whole)
            lu.assertEquals(checks.in_use(), before)
        end
    end
end

-- ---- what each half computes ----

TestHalves = {}

-- y = x w: dx = dy w', dw = x' dy.
function TestHalves.test_a_product()
    local tape <close> = mx.tape()
    local x, w = mx.tensor({ { 1, 2 } }):requires_grad(), mx.tensor({ { 3, 5 }, { 7, 11 } }):requires_grad()
    local y = tape:run(mx.matmul, x, w)
    tape:backward({ y }, { mx.tensor { { 1, 10 } } }, { inputs = { x } })
    lu.assertEquals(x:grad():totable(), { { 53, 117 } })
    lu.assertNil(w:grad())
    tape:backward_weights()
    lu.assertEquals(w:grad():totable(), { { 1, 10 }, { 2, 20 } })
    lu.assertEquals(x:grad():totable(), { { 53, 117 } })
end

-- An input may be computed, as the first chunk's is from a table of tokens. Its gradient goes on to the table.
function TestHalves.test_a_computed_input()
    local tape <close> = mx.tape()
    local tokens, w = mx.ones({ 4, 2 }):requires_grad(), mx.ones({ 2, 2 }):requires_grad()
    local x, y = tape:run(function()
        local h = mx.embedding(tokens, mx.tensor({ 1, 3, 1 }, "i32"))
        return h, mx.matmul(h, w)
    end)
    tape:backward(y, mx.ones { 3, 2 }, { inputs = x })
    lu.assertEquals(tokens:grad():totable(), { { 0, 0 }, { 4, 4 }, { 0, 0 }, { 2, 2 } })
    lu.assertNil(w:grad())
    tape:backward_weights()
    lu.assertEquals(w:grad():totable(), { { 3, 3 }, { 3, 3 } })
end

-- Hooks see each complete gradient once.
function TestHalves.test_hooks()
    local tape <close> = mx.tape()
    local x, w, calls = mx.ones({ 1, 2 }):requires_grad(), mx.ones({ 2, 2 }):requires_grad(), {}
    local y, h = tape:run(function()
        local u = w * 2
        u:register_hook(function() calls[#calls + 1] = "u" end)
        local first = mx.matmul(x, u)
        return mx.matmul(first, u), first
    end)
    for name, t in pairs({ x = x, w = w, h = h }) do
        t:register_hook(function() calls[#calls + 1] = name end)
    end
    tape:backward(y, mx.ones { 1, 2 }, { inputs = x })
    lu.assertEquals(calls, { "h", "x" })
    tape:backward_weights()
    lu.assertEquals(calls, { "h", "x", "u", "w" })
end

-- Between the halves, a tape holds the input of the product and the gradient of its result, and nothing else.
function TestHalves.test_memory_between()
    local w = mx.ones({ 64, 64 }):requires_grad()
    local before = checks.in_use()
    local tape <close> = mx.tape()
    local x = mx.ones({ 8, 64 }):requires_grad()
    local y = tape:run(mx.scope, function()
        return mx.tanh(mx.matmul(mx.exp(x), w:to("bf16")):to("f32"))
    end)
    tape:backward(y, mx.ones { 8, 64 }, { inputs = x })
    y:release()
    x:zero_grad()
    x:release()
    local rows = 8 * 64 * 4
    lu.assertTrue(checks.in_use() - before <= 3 * rows, checks.in_use() - before)
    tape:backward_weights()
    lu.assertEquals(checks.in_use() - before, 64 * 64 * 4)
    w:zero_grad()
end

-- ---- what is refused ----

TestRefused = {}

local function start()
    local x, w = mx.ones({ 1, 2 }):requires_grad(), mx.ones({ 2, 2 }):requires_grad()
    local tape = mx.tape()
    local y = tape:run(mx.matmul, x, w)
    return tape, y, x, w
end

function TestRefused.test_options()
    local tape, y, x, w = start()
    assert_raises("inputs must be a tensor or a list of tensors, not number", tape.backward, tape, y, mx.ones { 1, 2 },
        { inputs = 3 })
    assert_raises("an empty list of inputs", tape.backward, tape, y, mx.ones { 1, 2 }, { inputs = {} })
    assert_raises("is given twice", tape.backward, tape, y, mx.ones { 1, 2 }, { inputs = { x, x } })
    assert_raises("retain is not possible with inputs", tape.backward, tape, y, mx.ones { 1, 2 },
        { inputs = x, retain = true })
    assert_raises("does not depend on", tape.backward, tape, y, mx.ones { 1, 2 },
        { inputs = mx.ones({ 1 }):requires_grad() })
    assert_raises("inputs", mx.backward, y, mx.ones { 1, 2 }, { inputs = x })
    lu.assertNil(w:grad())
    tape:close()
end

function TestRefused.test_anything_before_the_second_half()
    local tape, y, x = start()
    local z = tape:run(function() return mx.sum(x) end)
    tape:backward(y, mx.ones { 1, 2 }, { inputs = x })
    assert_raises("have not been computed; call tape:backward_weights() before", tape.backward, tape, z)
    assert_raises("closed or cleared before tape:backward_weights()", tape.clear, tape)
    assert_raises("closed or cleared before tape:backward_weights()", tape.close, tape)
    assert_raises("closed or cleared before tape:backward_weights()", function()
        local other <close> = tape
        assert(other)
    end)
    assert_raises("this error is passed on", function()
        local other <close> = tape
        assert(other)
        error("this error is passed on")
    end)
end

function TestRefused.test_lost_records()
    local step = mx.step()
    local tape, y, x = start()
    tape:backward(y, mx.ones { 1, 2 }, { inputs = x })
    step:close()
    assert_raises("the gradients of weights are lost", tape.backward_weights, tape)
    tape:close()
end

function TestRefused.test_values_that_have_changed()
    local tape, y, x, w = start()
    tape:backward(y, mx.ones { 1, 2 }, { inputs = x })
    mx.no_grad(function() mx.fill(w, { value = 5 }) end) -- the second half does not read it
    mx.no_grad(function() mx.fill(x, { value = 5 }) end)
    assert_raises("which has been changed", tape.backward_weights, tape)
    assert_raises("which has been changed", tape.backward_weights, tape)
    pcall(tape.close, tape)
end
