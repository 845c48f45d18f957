--- Tapes that a script makes: several open at once, several roots, and what becomes of their records.

local mx = require "mx"
local lu = require "luaunit"
local checks = require "checks"

local bits, in_use, line, assert_raises = checks.bits, checks.in_use, checks.line, checks.assert_raises

-- ---- two tapes, interleaved ----

TestInterleaved = {}

local POLICIES = { "none", "full", { a = "device" }, { a = "offload" } }

-- Two layers under a policy, with a scope and a step inside; `seed` makes the input.
local function forward(w, policy, seed)
    local x = mx.randn({ 4, 6 }, { seed = seed })
    for i = 1, 2 do
        x = mx.remat(policy, function(input)
            local h = mx.name(mx.matmul(input, w[i]), "a")
            local y
            do
                local step <close> = mx.step()
                y = mx.scope(function() return mx.tanh(h) * mx.exp(h * -0.5) end):keep()
                assert(step)
            end
            return mx.softmax(y) + input
        end, x)
    end
    return mx.sum(x * x)
end

local ORDERS = {
    { "F1", "B1", "F2", "B2" }, { "F2", "B2", "F1", "B1" }, { "F1", "F2", "B1", "B2" }, { "F1", "F2", "B2", "B1" },
    { "F2", "F1", "B1", "B2" }, { "F2", "F1", "B2", "B1" },
}

-- The gradients after the statements of `order`; run(i, fn) and back(i, loss) say on which tape.
local function train(order, policy, run, back)
    local step <close> = mx.step()
    local w, losses, gradients = {}, {}, {}
    for i = 1, 2 do
        w[i] = mx.randn({ 6, 6 }, { seed = i }):requires_grad()
    end
    for _, what in ipairs(order) do
        local i = tonumber(what:sub(2))
        if what:sub(1, 1) == "F" then
            losses[i] = run(i, function() return forward(w, policy, 10 + i) end)
        else
            back(i, losses[i])
        end
    end
    for i = 1, 2 do
        gradients[i] = bits(w[i]:grad())
    end
    assert(step)
    return gradients
end

function TestInterleaved.test_any_order_equals_one_tape()
    for _, policy in ipairs(POLICIES) do
        for _, order in ipairs(ORDERS) do
            local one = train(order, policy, function(_, fn) return fn() end, function(_, loss) mx.backward(loss) end)
            local a <close> = mx.tape()
            local b <close> = mx.tape()
            local tapes = { a, b }
            local two = train(order, policy, function(i, fn) return tapes[i]:run(fn) end,
                function(i, loss) tapes[i]:backward(loss) end)
            lu.assertEquals(two, one, table.concat(order, " "))
            -- One of them may be the default tape, too.
            local mixed = train(order, policy, function(i, fn) return i == 1 and fn() or b:run(fn) end,
                function(i, loss) (i == 1 and mx.backward or function(l) b:backward(l) end)(loss) end)
            lu.assertEquals(mixed, one, table.concat(order, " "))
        end
    end
end

--- A layer of one tape may run another tape inside, forward and backward.
function TestInterleaved.test_a_tape_inside_a_region_of_another()
    local step <close> = mx.step()
    local inner <close> = mx.tape()
    local w, v = mx.tensor({ 1, 2 }):requires_grad(), mx.tensor({ 3, 4 }):requires_grad()
    local y = mx.remat("full", function(x)
        local h = x * x
        inner:run(function()
            local loss = mx.remat("full", function() return mx.sum(mx.exp(v) * v) end)
            mx.backward(loss) -- of the tape on which it runs
        end)
        return mx.exp(h)
    end, w)
    lu.assertNil(w:grad())
    for i, x in ipairs { 3, 4 } do
        lu.assertAlmostEquals(v:grad():get(i), (x + 1) * math.exp(x), 1e-4)
    end
    mx.backward(mx.sum(y))
    lu.assertAlmostEquals(w:grad():get(2), 4 * math.exp(4), 1e-4)
    assert(step)
end

-- ---- roots ----

TestRoots = {}

function TestRoots.test_several_equal_the_sum_of_single_ones()
    local step <close> = mx.step()
    local x, w = mx.randn({ 3, 4 }, { seed = 1 }):requires_grad(), mx.randn({ 4, 2 }, { seed = 2 }):requires_grad()
    local dh, dy = mx.randn({ 3, 4 }, { seed = 3 }), mx.randn({ 3, 2 }, { seed = 4 })
    local function two() -- the second root depends on the first
        local h = mx.exp(x)
        return h, mx.matmul(h, w), mx.sum(h)
    end
    local h, y, s = two()
    mx.backward({ h, y, s }, { dh, dy, 0.5 })
    local together_x, together_w = x:grad():totable(), w:grad():totable()
    x:zero_grad()
    w:zero_grad()
    h, y, s = two()
    mx.backward(h, dh, { retain = true })
    mx.backward(y, dy, { retain = true })
    mx.backward(s, 0.5)
    for r = 1, 3 do
        for c = 1, 4 do
            lu.assertAlmostEquals(x:grad():get(r, c), together_x[r][c], 1e-5)
        end
    end
    lu.assertEquals(w:grad():totable(), together_w)
    assert(step)
end

function TestRoots.test_losses_without_gradients_count_one_each()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local a, b = mx.sum(x * 3), mx.sum(x * x)
    mx.backward({ a, b, a }) -- a twice
    lu.assertEquals(x:grad():totable(), { 8, 10 })
    assert(step)
end

function TestRoots.test_a_gradient_has_the_dtype_of_its_root_and_stays_the_scripts_own()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local dy = mx.tensor { 1 + 2 ^ -20, 4 }
    mx.backward(x:to("bf16"), dy)
    lu.assertEquals(x:grad():totable(), { 1, 4 })
    x:zero_grad()
    mx.backward(x:view(2, 1), mx.tensor { { 5 }, { 6 } })
    local own = mx.tensor { 7, 8 }
    local y = x + 0
    mx.backward(y, own)
    lu.assertEquals(x:grad():totable(), { 12, 14 })
    lu.assertEquals(own:totable(), { 7, 8 })
    mx.fill(x:grad(), { value = 0 })
    lu.assertEquals(own:totable(), { 7, 8 })
    assert(step)
end

function TestRoots.test_refusals()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local y = x * 2
    assert_raises({ "root 2", "(3)", "shape of f32 (2)" }, mx.backward, { y, y }, { mx.ones { 2 }, mx.ones { 3 } })
    assert_raises({ "the loss", "f32 or bf16", "i32" }, mx.backward, y, mx.tensor({ 1, 2 }, "i32"))
    assert_raises({ "one element", "(2)" }, mx.backward, { y })
    assert_raises({ "2 roots and 1 gradients" }, mx.backward, { y, y }, { mx.ones { 2 } })
    assert_raises({ "root 1", "number" }, mx.backward, { 1 })
    assert_raises({ "empty" }, mx.backward, {})
    assert_raises({ "a tensor, or a number", "string" }, mx.backward, { y }, { "one" })
    assert_raises({ "'retian'", "'retain'" }, mx.backward, y, mx.ones { 2 }, { retian = true })
    mx.backward(y, mx.ones { 2 }) -- the records are still there
    lu.assertEquals(x:grad():totable(), { 2, 2 })
    assert_raises({ "root 2", "already" }, mx.backward, { mx.sum(x), y }, { 1, mx.ones { 2 } })
    assert(step)
end

function TestRoots.test_retain()
    local step <close> = mx.step()
    local tape <close> = mx.tape()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local y = tape:run(function() return x * x end)
    tape:backward({ y }, { mx.ones { 2 } }, { retain = true })
    tape:backward(y, mx.ones { 2 })
    lu.assertEquals(x:grad():totable(), { 4, 8 })
    assert_raises({ "the loss is f32 (2)", "already" }, tape.backward, tape, y, mx.ones { 2 })
    assert(step)
end

-- ---- what belongs to a tape ----

TestTapes = {}

function TestTapes.test_a_tensor_of_another_tape_is_refused()
    local step <close> = mx.step()
    local a, made_a = mx.tape(), line()
    local b <close> = mx.tape()
    local made_b = line(-1)
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local y, computed = a:run(function() return mx.exp(x) end), line()
    local w = mx.ones({ 2 }):requires_grad()
    local function use() return w * y end
    local used = line(-1)
    assert_raises({ "mul at ", used, made_b, "exp at ", computed, made_a, "t:detach()" }, b.run, b, use)
    assert_raises({ "the default tape", made_a }, function() return mx.sum(y) end)
    assert_raises({ made_b, "the loss", computed, made_a }, b.backward, b, y, mx.ones { 2 })
    assert_raises({ "the default tape", made_a }, mx.backward, y, mx.ones { 2 })
    -- Leaves and constants belong to no tape.
    local z = b:run(function() return mx.sum(y:detach() * x) end)
    b:backward(z)
    lu.assertEquals(x:grad():totable(), y:totable())
    lu.assertEquals(mx.no_grad(function() return mx.sum(y):item() end), mx.sum(y:detach()):item())
    -- Nothing of it has harmed the first one.
    x:zero_grad()
    a:backward(y, mx.ones { 2 })
    lu.assertEquals(x:grad():totable(), y:totable())
    a:close()
    assert(step)
end

function TestTapes.test_a_cut_between_two_tapes()
    local step <close> = mx.step()
    local first <close> = mx.tape()
    local second <close> = mx.tape()
    local x, w = mx.tensor({ 1, 2 }):requires_grad(), mx.tensor({ 3, 4 }):requires_grad()
    local y = first:run(function() return mx.exp(x) end)
    local received = y:detach():requires_grad()
    second:backward(second:run(function() return mx.sum(received * w * w) end))
    first:backward({ y }, { received:grad() })
    local cut = x:grad():totable()
    x:zero_grad()
    w:zero_grad()
    mx.backward(mx.sum(mx.exp(x) * w * w))
    lu.assertEquals(x:grad():totable(), cut)
    assert(step)
end

function TestTapes.test_run_returns_and_restores()
    local step <close> = mx.step()
    local tape <close> = mx.tape()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local function count(...) return select("#", ...), ... end
    lu.assertEquals({ tape:run(count, 1, nil, "three") }, { 3, 1, nil, "three" })
    lu.assertErrorMsgContains("boom", tape.run, tape, function()
        local inner <close> = mx.tape()
        inner:run(function() mx.remat("full", function() mx.no_grad(function() error("boom") end) end) end)
    end)
    mx.backward(mx.sum(x * 2)) -- on the default tape again
    lu.assertEquals(x:grad():totable(), { 2, 2 })
    local y = tape:run(function() return tape:run(function() return x * 2 end) + 1 end)
    tape:backward(y, mx.ones { 2 })
    lu.assertEquals(x:grad():totable(), { 4, 4 })
    lu.assertEquals(mx.no_grad(function() return tape:run(function() return x * 2 end) end):totable(), { 2, 4 })
    lu.assertErrorMsgContains("'recrod'", function() return tape.recrod end)
    assert(step)
end

function TestTapes.test_closed()
    local step <close> = mx.step()
    local tape, made = mx.tape(), line()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local y = tape:run(function() return x * 2 end)
    assert_raises({ made, "while a function runs" }, tape.run, tape, function() tape:close() end)
    tape:close()
    local closed = line(-1)
    tape:close() -- harmless
    for _, use in ipairs { "run", "backward", "clear" } do
        assert_raises({ made, "closed", closed, "mx.tape()" }, tape[use], tape, print)
    end
    assert_raises({ "the loss", "its tape was cleared" }, mx.backward, y, mx.ones { 2 })
    lu.assertEquals(y:totable(), { 2, 4 })
    local z = mx.sum(y * x)
    assert_raises({ "depends on", "its tape was cleared" }, mx.backward, z)
    assert(step)
end

function TestTapes.test_closing_and_clearing_release_memory()
    local x = mx.randn({ 1000 }, { seed = 1 }):requires_grad()
    local before = in_use()
    local function fill(tape)
        return tape:run(function()
            local y = x
            for _ = 1, 5 do
                y = mx.remat({ a = "device" }, function(z) return mx.exp(mx.name(z * z * 0.01, "a")) end, y)
            end
            return y
        end)
    end
    do
        local tape <close> = mx.tape()
        local y = fill(tape)
        lu.assertTrue(mx.memory().in_use >= before + 5 * 4000)
        lu.assertEquals(#mx.kept() > 0, true)
        y:release()
        tape:clear()
        lu.assertEquals(in_use(), before)
        y = fill(tape)
        y:release()
    end
    lu.assertEquals(in_use(), before)
    lu.assertEquals(mx.kept(), {})
    fill(mx.tape()) -- collected
    lu.assertEquals(in_use(), before)
    do -- the outermost step forgets what its tapes have recorded
        local step <close> = mx.step()
        local tape = mx.tape()
        fill(tape)
        step:close()
        lu.assertEquals(#mx.kept(), 0)
        lu.assertEquals(mx.memory().in_use, before)
        tape:close()
    end
    x:release()
end

--- An inner step that closes early leaves the regions of every tape inside it.
function TestTapes.test_a_step_that_closes_inside_regions_of_two_tapes()
    local tape <close> = mx.tape()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local step = mx.step()
    pcall(mx.remat, "full", function()
        local _ = x * x
        tape:run(function()
            mx.remat("full", function()
                local y = mx.exp(x)
                step:close()
                return y
            end)
        end)
    end)
    local again <close> = mx.step()
    tape:backward(tape:run(function() return mx.remat("full", function() return mx.sum(x * x) end) end))
    mx.backward(mx.remat("full", function() return mx.sum(x * 3) end))
    lu.assertEquals(x:grad():totable(), { 5, 7 })
    assert(again)
end

--- Two players: each loss walks its own tape, and the leaves of the other one collect nothing.
function TestTapes.test_values_that_changed_since()
    local step <close> = mx.step()
    local a <close> = mx.tape()
    local b <close> = mx.tape()
    local w = mx.tensor({ 1, 2 }):requires_grad()
    local first = a:run(function() return mx.sum(w * w) end)
    local second = b:run(function() return mx.sum(w * w * w) end)
    a:backward(first)
    mx.no_grad(function() mx.sgd(w, w:grad(), nil, { lr = 0.1 }) end)
    assert_raises({ "mul", "has been changed by sgd" }, b.backward, b, second)
    assert(step)
end
