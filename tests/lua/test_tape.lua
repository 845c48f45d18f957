--- Scopes and gradients: what is released when, and what backward sees.
-- guarded

local mx = require "mx"
local lu = require "luaunit"
local checks = require "checks"

local in_use = checks.in_use

-- ---- scopes ----

TestScopes = {}

function TestScopes.test_a_step_releases_what_was_not_kept()
    local before = in_use()
    local made, kept
    do
        local step <close> = mx.step()
        made = mx.zeros { 100, 10 }
        kept = mx.ones({ 3, 2 }):keep()
        lu.assertFalse(made:is_released())
        lu.assertTrue(mx.memory().in_use >= before + 4000)
        assert(step)
    end
    lu.assertTrue(made:is_released())
    lu.assertFalse(kept:is_released())
    lu.assertEquals(kept:totable(), { { 1, 1 }, { 1, 1 }, { 1, 1 } })
    kept:release()
    lu.assertEquals(in_use(), before)
end

function TestScopes.test_a_released_tensor_keeps_its_shape_and_name()
    local t
    mx.scope(function()
        t = mx.name(mx.zeros { 4, 5 }, "query_proj")
    end)
    lu.assertEquals(t:size(), { 4, 5 })
    lu.assertEquals(t:dtype(), "f32")
    lu.assertEquals(t:name(), "query_proj")
    lu.assertStrContains(tostring(t), "released")
end

function TestScopes.test_using_a_released_tensor_is_an_error_that_names_it()
    local t, u
    do
        local step <close> = mx.step()
        t = mx.name(mx.zeros { 4, 5 }, "query_proj")
        u = mx.ones { 4, 5 }:keep()
        assert(step)
    end
    for what, use in pairs {
        add = function() return t + u end,
        add_right = function() return u + t end,
        matmul = function() return mx.matmul(t, u, { trans_b = true }) end,
        item = function() return t:item() end,
        get = function() return t:get(1, 1) end,
        totable = function() return t:totable() end,
        set = function() return t:set(1, 1, 0) end,
        view = function() return t:view(20) end,
        row = function() return t[1] end,
        clone = function() return t:clone() end,
        detach = function() return t:detach() end,
        keep = function() return t:keep() end,
        name = function() return mx.name(t, "other") end,
        requires_grad = function() return t:requires_grad() end,
        copy_from = function() return mx.copy(u, t) end,
        copy_to = function() return mx.copy(t, u) end,
        backward = function() return mx.backward(t) end,
    } do
        local ok, message = pcall(use)
        lu.assertFalse(ok, what .. " of a released tensor raised nothing")
        lu.assertStrContains(message, "'query_proj'", false, what)
        lu.assertStrContains(message, "released", false, what)
        lu.assertStrContains(message, "(4, 5)", false, what)
    end
    lu.assertEquals(u:get(1, 1), 1)
    u:release()
end

function TestScopes.test_explicit_release()
    local before = in_use()
    local t = mx.zeros { 1000 }
    t:release()
    lu.assertTrue(t:is_released())
    lu.assertEquals(mx.memory().in_use, before)
    t:release() -- twice is harmless
    lu.assertError(function() return t + 1 end)
end

function TestScopes.test_a_view_keeps_the_values_alive()
    local before = in_use()
    local base = mx.tensor { { 1, 2 }, { 3, 4 } }
    local view = base:view(4)
    base:release()
    lu.assertEquals(view:totable(), { 1, 2, 3, 4 })
    view:release()
    lu.assertEquals(in_use(), before)
end

function TestScopes.test_views_share_values()
    local step <close> = mx.step()
    local base = mx.zeros { 2, 3 }
    base[2]:set(1, 7)
    base:view(3, 2):set(1, 2, 5)
    lu.assertEquals(base:totable(), { { 0, 5, 0 }, { 7, 0, 0 } })
    local copy = base:clone()
    copy:set(1, 1, 9)
    lu.assertEquals(base:get(1, 1), 0)
    assert(step)
end

function TestScopes.test_results_escape_one_scope()
    local before = in_use()
    do
        local step <close> = mx.step()
        local inner_made
        local sum, text, product = mx.scope(function(a, b)
            inner_made = a - b
            return a + b, "text", a * b
        end, mx.ones { 2 } * 3, mx.ones { 2 } * 4)
        lu.assertEquals(sum:totable(), { 7, 7 })
        lu.assertEquals(text, "text")
        lu.assertEquals(product:totable(), { 12, 12 })
        lu.assertTrue(inner_made:is_released())
        assert(step)
    end
    lu.assertEquals(in_use(), before)
end

function TestScopes.test_nested_scopes()
    local before = in_use()
    local outer, middle, inner, kept
    do
        local step <close> = mx.step()
        outer = mx.zeros { 10 }
        do
            local second <close> = mx.step()
            middle = mx.zeros { 10 }
            do
                local third <close> = mx.step()
                inner = mx.zeros { 10 }
                kept = mx.zeros({ 10 }):keep()
                assert(third)
            end
            lu.assertTrue(inner:is_released())
            lu.assertFalse(middle:is_released())
            assert(second)
        end
        lu.assertTrue(middle:is_released())
        lu.assertFalse(outer:is_released())
        assert(step)
    end
    lu.assertTrue(outer:is_released())
    lu.assertFalse(kept:is_released())
    kept:release()
    lu.assertEquals(in_use(), before)
end

function TestScopes.test_an_error_closes_scopes_and_turns_recording_back()
    local before = in_use()
    local made
    local function layer(x)
        made = x * 2
        error("boom")
    end
    for _, run in ipairs {
        function(x) mx.scope(layer, x) end,
        function(x) mx.no_grad(layer, x) end,
        function(x) mx.remat("full", layer, x) end,
        function(x) mx.remat("full", function() mx.scope(function() mx.no_grad(layer, x) end) end) end,
        function(x)
            local step <close> = mx.step()
            assert(step)
            layer(x)
        end,
    } do
        local step <close> = mx.step()
        local x = mx.ones({ 5 }):requires_grad()
        lu.assertErrorMsgContains("boom", run, x)
        -- All is as before: recording works, and backward sees a whole tape.
        local y = mx.sum(x * 3)
        mx.backward(y)
        lu.assertEquals(x:grad():totable(), { 3, 3, 3, 3, 3 })
        assert(step)
    end
    lu.assertTrue(made:is_released())
    lu.assertEquals(in_use(), before)
end

function TestScopes.test_many_steps_grow_nothing()
    local w = mx.randn({ 16, 16 }, { seed = 1 }):keep():requires_grad()
    local b = mx.zeros({ 16 }):keep():requires_grad()
    local function train()
        local step <close> = mx.step()
        local x = mx.randn({ 8, 16 }, { seed = 2 })
        local h = mx.remat("full", function(input)
            return mx.tanh(mx.matmul(input, w, b))
        end, x)
        local loss = mx.mean(mx.square(h - 1))
        mx.backward(loss)
        mx.sgd(w, w:grad(), nil, { lr = 0.01 })
        w:zero_grad()
        b:zero_grad()
        assert(step)
        return loss:item()
    end
    local first = train()
    local before = in_use()
    mx.reset_peak()
    train()
    local peak, reserved = mx.memory().peak, mx.memory().reserved
    local last
    for _ = 1, 100 do
        last = train()
    end
    lu.assertEquals(mx.memory().in_use, before, "in use, before any collection")
    lu.assertEquals(mx.memory().peak, peak)
    lu.assertEquals(mx.memory().reserved, reserved)
    lu.assertTrue(last < first)
    w:release()
    b:release()
end

-- ---- gradients ----

TestGradients = {}

function TestGradients.test_a_tensor_used_twice()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2, 3 }):requires_grad()
    mx.backward(mx.sum(x * x * x + x + x)) -- 3 x^2 + 2
    lu.assertEquals(x:grad():totable(), { 5, 14, 29 })
    assert(step)
end

function TestGradients.test_two_backwards_add_up()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2, 3 }):requires_grad()
    mx.backward(mx.sum(x * x))
    mx.backward(mx.sum(x * 10))
    lu.assertEquals(x:grad():totable(), { 12, 14, 16 })
    x:zero_grad()
    lu.assertNil(x:grad())
    mx.backward(mx.sum(x * 10))
    lu.assertEquals(x:grad():totable(), { 10, 10, 10 })
    assert(step)
end

function TestGradients.test_a_gradient_taken_before_is_not_changed_by_the_next_backward()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2, 3 }):requires_grad()
    mx.backward(mx.sum(x * x))
    local first = x:grad()
    mx.backward(mx.sum(x * x))
    lu.assertEquals(first:totable(), { 2, 4, 6 })
    lu.assertEquals(x:grad():totable(), { 4, 8, 12 })
    assert(step)
end

--- What adds two leaves hands both the same gradient: each has its own all the same.
function TestGradients.test_leaves_do_not_share_a_gradient()
    local step <close> = mx.step()
    local x, y = mx.tensor({ 1, 2 }):requires_grad(), mx.tensor({ 3, 4 }):requires_grad()
    mx.backward(mx.sum((x + y) * 5))
    local of_x, of_y = x:grad(), y:grad()
    x:zero_grad()
    lu.assertEquals(y:grad():totable(), { 5, 5 })
    mx.backward(mx.sum(y * y))
    lu.assertEquals(y:grad():totable(), { 11, 13 })
    lu.assertNil(x:grad())
    mx.backward(mx.sum(x * 2))
    lu.assertEquals(x:grad():totable(), { 2, 2 })
    lu.assertEquals(y:grad():totable(), { 11, 13 })
    assert(of_x and of_y and step)
end

function TestGradients.test_seed_scales()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2, 3 }):requires_grad()
    mx.backward(mx.sum(x * x), 0.5)
    lu.assertEquals(x:grad():totable(), { 1, 2, 3 })
    assert(step)
end

function TestGradients.test_gradients_outlive_the_step()
    local x = mx.ones({ 2 }):keep():requires_grad()
    do
        local step <close> = mx.step()
        mx.backward(mx.sum(x * 3))
        assert(step)
    end
    lu.assertEquals(x:grad():totable(), { 3, 3 })
    x:zero_grad()
    x:release()
end

function TestGradients.test_no_grad_records_nothing()
    local step <close> = mx.step()
    local x = mx.ones({ 2 }):requires_grad()
    local y = mx.no_grad(function()
        return mx.sum(x * 2)
    end)
    lu.assertEquals(y:item(), 4)
    lu.assertErrorMsgContains("no tensor that requires a gradient", mx.backward, y)
    mx.backward(mx.sum(x * 2))
    lu.assertEquals(x:grad():totable(), { 2, 2 })
    assert(step)
end

function TestGradients.test_detach_stops_the_gradient()
    local step <close> = mx.step()
    local x = mx.tensor({ 3, 4 }):requires_grad()
    local y = x * x
    mx.backward(mx.sum(y:detach() * x)) -- d/dx of x^2 held fixed, times x
    lu.assertEquals(x:grad():totable(), { 9, 16 })
    assert(step)
end

function TestGradients.test_what_the_loss_does_not_depend_on_has_no_gradient()
    local step <close> = mx.step()
    local x, y = mx.ones({ 2 }):requires_grad(), mx.ones({ 2 }):requires_grad()
    local unused = y * 2
    mx.backward(mx.sum(x))
    lu.assertNil(y:grad())
    lu.assertNotNil(x:grad())
    assert(unused and step)
end

function TestGradients.test_backward_twice_is_an_error()
    local step <close> = mx.step()
    local x = mx.ones({ 2 }):requires_grad()
    local loss = mx.sum(x * 2)
    mx.backward(loss)
    lu.assertErrorMsgContains("already", mx.backward, loss)
    lu.assertEquals(x:grad():totable(), { 2, 2 })
    assert(step)
end

function TestGradients.test_backward_consumes_the_tape_of_other_losses_too()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local y = x * x
    local sum, mean = mx.sum(y), mx.mean(y)
    mx.backward(sum)
    lu.assertErrorMsgContains("already", mx.backward, mean)
    lu.assertEquals(x:grad():totable(), { 2, 4 })
    assert(step)
end

function TestGradients.test_a_long_chain()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local y = x
    for _ = 1, 20000 do
        y = y + 1
    end
    mx.backward(mx.sum(y))
    lu.assertEquals(x:grad():totable(), { 1, 1 })
    assert(step)
end

function TestGradients.test_backward_of_more_than_a_scalar_is_an_error()
    local step <close> = mx.step()
    local x = mx.ones({ 2 }):requires_grad()
    lu.assertErrorMsgContains("(2)", mx.backward, x * 2)
    -- and the tape still works
    mx.backward(mx.sum(x * 2))
    lu.assertEquals(x:grad():totable(), { 2, 2 })
    assert(step)
end

function TestGradients.test_integers_have_none()
    local step <close> = mx.step()
    local ids = mx.tensor({ 1, 2 }, "i32")
    lu.assertErrorMsgContains("i32", ids.requires_grad, ids)
    assert(step)
end

function TestGradients.test_a_computed_tensor_is_no_leaf()
    local step <close> = mx.step()
    local x = mx.ones({ 2 }):requires_grad()
    local y = x * 2
    lu.assertErrorMsgContains("detach", y.requires_grad, y)
    assert(step)
end

function TestGradients.test_a_bf16_leaf_has_an_f32_gradient()
    local step <close> = mx.step()
    -- 257 steps of 1/256: bf16 sums would stop at 2 long before.
    local x = mx.ones({ 1 }):to("bf16"):requires_grad()
    local terms = {}
    for i = 1, 16 do
        terms[i] = x
    end
    local y = mx.concat(terms, { dim = 1 })
    mx.backward(mx.sum(y:to("f32") * (1 + 2 ^ -6)))
    lu.assertEquals(x:grad():dtype(), "f32")
    lu.assertEquals(x:grad():item(), 16 * (1 + 2 ^ -6))
    assert(step)
end

function TestGradients.test_intermediate_values_of_a_scope_reach_backward()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local y = mx.scope(function()
        local square = x * x
        return square * square -- its gradient reads the square, which the scope releases
    end)
    mx.backward(mx.sum(y))
    lu.assertEquals(x:grad():totable(), { 4, 32 })
    assert(step)
end

function TestGradients.test_a_released_intermediate_still_has_its_gradient()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local square = x * x
    local y = mx.sum(square * square)
    square:release()
    mx.backward(y)
    lu.assertEquals(x:grad():totable(), { 4, 32 })
    assert(step)
end

function TestScopes.test_a_scope_that_nothing_leads_back_into_is_forgotten()
    local w = mx.randn({ 16, 16 }, { seed = 1 }):keep():requires_grad()
    local before = in_use()
    for _ = 1, 20 do
        mx.scope(function() return mx.sum(mx.exp(w)):item() end)
    end
    lu.assertEquals(in_use(), before)
    w:release()
end

function TestGradients.test_what_backward_reads_cannot_be_changed()
    local x = mx.tensor({ 3 }):requires_grad()
    local y = x * 3
    local z = mx.sum(y * y)
    local ok, message = pcall(mx.fill, y, { value = 100 })
    lu.assertFalse(ok)
    lu.assertStrContains(message, "fill would change f32 (1), which backward still reads")
    mx.backward(z)
    lu.assertEquals(x:grad():item(), 54.0)
end

--- A change in place is not recorded: where it would drop a gradient, it is refused, or backward fails.
function TestGradients.test_what_is_written_into_another_tensor_needs_no_gradient()
    local step <close> = mx.step()
    local x, w, sum = mx.tensor({ 1, 2 }):requires_grad(), mx.ones({ 2 }):requires_grad(), mx.zeros { 2 }
    local y = x * 3
    for _, change in ipairs {
        function(from) return mx.add_(sum, from) end,
        function(from) return mx.copy(sum, from) end,
        function(from) return mx.write_slice(sum, from, { dim = 1, start = 1 }) end,
        function(from) return mx.sgd(sum, from, nil, { lr = 1 }) end,
    } do
        lu.assertErrorMsgContains("whose gradient would be lost", change, y)
        lu.assertErrorMsgContains("whose gradient would be lost", change, x)
        change(y:detach())
        mx.no_grad(change, y)
    end
    mx.backward(mx.sum(y * w)) -- the refused changes have left no trace
    lu.assertEquals(x:grad():totable(), { 3, 3 })
    mx.copy(sum, y) -- its record is gone: a constant
    lu.assertEquals(sum:totable(), { 3, 6 })
end

function TestGradients.test_a_loss_that_was_changed_in_place()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local loss = mx.sum(x * 3)
    mx.no_grad(function() mx.fill(loss, { value = 5 }) end)
    lu.assertErrorMsgContains("changed in place by fill", mx.backward, loss)
    lu.assertNil(x:grad())
end
