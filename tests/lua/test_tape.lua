--- Scopes, gradients and rematerialisation: what is released when, what backward sees, and what it costs in memory.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

local function in_use()
    collectgarbage()
    collectgarbage()
    return mx.memory().in_use
end

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

-- ---- rematerialisation ----

TestRemat = {}

-- Enough tokens that the activations, not the gradients, make the peak.
local E, M, TOKENS, LAYERS = 16, 48, 800, 4

--- A layer with every name that the policies know, and the parameters for a stack of them.
local function new_stack(dtype)
    local layers = {}
    for i = 1, LAYERS do
        local function weight(place, n_in, n_out)
            local t = mx.randn({ n_in, n_out }, { std = n_in ^ -0.5, seed = 10 * i + place }):to(dtype)
            return t:keep():requires_grad()
        end
        layers[i] = {
            norm = mx.ones({ E }):keep():requires_grad(),
            query = weight(1, E, E),
            key = weight(2, E, E),
            value = weight(3, E, E),
            out = weight(4, E, E),
            wi_0 = weight(5, E, M),
            wi_1 = weight(6, E, M),
            wo = weight(7, M, E),
        }
    end
    return layers
end

local function run_layer(w, x, dropout_seed)
    local h = mx.rmsnorm(x, w.norm)
    local function heads(t)
        return t:view(1, TOKENS, 2, E // 2)
    end
    local q = mx.name(mx.rope(heads(mx.matmul(h, w.query))), "query_proj")
    local k = mx.name(mx.rope(heads(mx.matmul(h, w.key))), "key_proj")
    local v = mx.name(heads(mx.matmul(h, w.value)), "value_proj")
    local context = mx.name(mx.attention(q, k, v, { causal = true }), "context")
    x = x + mx.name(mx.matmul(context:view(1, TOKENS, E), w.out), "out_proj")
    if dropout_seed then
        x = mx.dropout(x, { rate = 0.3, seed = dropout_seed })
    end
    h = mx.rmsnorm(x, w.norm)
    local gate, up = mx.name(mx.matmul(h, w.wi_0), "mlpwi_0"), mx.name(mx.matmul(h, w.wi_1), "mlpwi_1")
    return x + mx.name(mx.matmul(mx.gated(gate, up), w.wo), "mlpwo")
end

--- Forward and backward under a policy: gradients, the memory kept between the two, and the peak of both.
local function run_stack(layers, policy, dtype, with_dropout)
    local step <close> = mx.step()
    local before = in_use()
    mx.reset_peak()
    local x = mx.randn({ 1, TOKENS, E }, { seed = 5 }):to(dtype):requires_grad()
    local h = x
    for i, w in ipairs(layers) do
        h = mx.remat(policy, function(input)
            return run_layer(w, input, with_dropout and i)
        end, h)
    end
    local loss = mx.mean(mx.square(h:to("f32")))
    local kept = in_use() - before
    mx.backward(loss)
    local found = { kept = kept, peak = mx.memory().peak - before, loss = loss:item() }
    found.grads = { x = compare.flat(x:grad()) }
    for i, w in ipairs(layers) do
        for name, t in pairs(w) do
            found.grads[name .. i] = compare.flat(t:grad())
            t:zero_grad()
        end
    end
    assert(step)
    return found
end

local function release_stack(layers)
    for _, w in ipairs(layers) do
        for _, t in pairs(w) do
            t:release()
        end
    end
end

-- As in base.yml: most memory first.
local POLICIES = {
    "none", "minimal_with_context", "minimal", "save_dot_with_context_except_mlp", "save_dot_except_mlpwi",
    "save_dot_except_mlp", "save_qkv_proj", "save_out_proj", "full",
}

local function assert_same_gradients(found, reference, what)
    lu.assertEquals(found.loss, reference.loss, what)
    for name, g in pairs(reference.grads) do
        for i, value in ipairs(g) do
            if found.grads[name][i] ~= value then
                lu.fail(("%s: gradient of %s differs at %d: %.9g, not %.9g"):format(what, name, i, found.grads[name][i],
                    value))
            end
        end
    end
end

for _, dtype in ipairs { "f32", "bf16" } do
    TestRemat["test_policies_change_no_bit_" .. dtype] = function()
        local layers = new_stack(dtype)
        local reference = run_stack(layers, "none", dtype)
        for _, policy in ipairs(POLICIES) do
            assert_same_gradients(run_stack(layers, policy, dtype), reference, policy)
        end
        assert_same_gradients(run_stack(layers, { key_proj = "save", mlpwi_1 = "save", out_proj = "drop" }, dtype),
            reference, "custom")
        release_stack(layers)
    end

    TestRemat["test_policies_change_no_bit_with_dropout_" .. dtype] = function()
        local layers = new_stack(dtype)
        local reference = run_stack(layers, "none", dtype, true)
        local plain = run_stack(layers, "none", dtype, false)
        lu.assertNotEquals(reference.loss, plain.loss)
        for _, policy in ipairs(POLICIES) do
            assert_same_gradients(run_stack(layers, policy, dtype, true), reference, policy)
        end
        release_stack(layers)
    end

    -- Between forward and backward a layer keeps its input and what its policy names, to the byte.
    TestRemat["test_memory_is_what_the_policy_names_" .. dtype] = function()
        local layers = new_stack(dtype)
        local element = dtype == "bf16" and 2 or 4
        local lse = 2 * 4 / element -- the attention's log-sum-exp, f32 for each of two heads, goes with its context
        local kept = {
            full = 0, save_out_proj = E, save_qkv_proj = 3 * E, save_dot_except_mlp = 4 * E,
            save_dot_with_context_except_mlp = 5 * E + lse, save_dot_except_mlpwi = 5 * E, minimal = 5 * E + 2 * M,
            minimal_with_context = 6 * E + 2 * M + lse,
        }
        local full = run_stack(layers, "full", dtype)
        for policy, per_token in pairs(kept) do
            local found = run_stack(layers, policy, dtype)
            lu.assertEquals(found.kept - full.kept, LAYERS * TOKENS * per_token * element, policy)
        end
        release_stack(layers)
    end

    TestRemat["test_policies_need_less_and_less_memory_" .. dtype] = function()
        local layers = new_stack(dtype)
        local above = math.huge
        for _, policy in ipairs { "none", "minimal_with_context", "minimal", "save_dot_except_mlp", "save_qkv_proj",
            "save_out_proj", "full" } do
            local peak = run_stack(layers, policy, dtype).peak
            lu.assertTrue(peak < above, ("%s: peak %d is not below %s"):format(policy, peak, above))
            above = peak
        end
        release_stack(layers)
    end
end

function TestRemat.test_unknown_policy_and_action()
    lu.assertErrorMsgContains("fulll", mx.remat, "fulll", function() end)
    lu.assertErrorMsgContains("query_proj", mx.remat, { query_proj = "keep" }, function() end)
end

function TestRemat.test_inner_values_are_released_at_once()
    local step <close> = mx.step()
    local x = mx.ones({ 2 }):requires_grad()
    local inner
    local y = mx.remat("full", function(t)
        inner = mx.name(t * t, "inner")
        return inner * inner
    end, x)
    lu.assertTrue(inner:is_released())
    lu.assertErrorMsgContains("'inner'", function() return inner + 1 end)
    mx.backward(mx.sum(y))
    lu.assertEquals(x:grad():totable(), { 4, 4 })
    assert(step)
end

function TestRemat.test_regions_nest()
    local function power_of_four(x)
        local y = x * x
        return y * y
    end
    local reference
    for _, outer in ipairs { "none", "full" } do
        for _, inner in ipairs { "none", "full" } do
            local step <close> = mx.step()
            local x = mx.tensor({ 1.5, -0.5, 2 }):requires_grad()
            local y = mx.remat(outer, function(a)
                local b = mx.remat(inner, power_of_four, mx.tanh(a))
                local c = mx.scope(power_of_four, b + a)
                return mx.remat(inner, power_of_four, c * b)
            end, x)
            mx.backward(mx.sum(y))
            reference = reference or x:grad():totable()
            lu.assertEquals(x:grad():totable(), reference, outer .. " around " .. inner)
            assert(step)
        end
    end
end

function TestRemat.test_a_thousand_layers()
    local step <close> = mx.step()
    local x = mx.tensor({ 0.5, 1.5 }):requires_grad()
    local function run(policy)
        local y = x
        for _ = 1, 1000 do
            y = mx.remat(policy, function(t)
                return mx.tanh(mx.sin(t)) + t
            end, y)
        end
        mx.backward(mx.sum(y))
        local g = x:grad():totable()
        x:zero_grad()
        return g
    end
    lu.assertEquals(run("full"), run("none"))
    assert(step)
end

function TestRemat.test_layers_that_share_weights()
    local step <close> = mx.step()
    local w = mx.randn({ 4, 4 }, { seed = 1 }):requires_grad()
    local function run(policy)
        local h = mx.randn({ 3, 4 }, { seed = 2 })
        for _ = 1, 3 do
            h = mx.remat(policy, function(t)
                return mx.tanh(mx.matmul(t, w)) * w[1] -- a view of a leaf, too
            end, h)
        end
        mx.backward(mx.sum(h))
        local g = w:grad():totable()
        w:zero_grad()
        return g
    end
    lu.assertEquals(run("full"), run("none"))
    assert(step)
end

function TestRemat.test_a_step_and_a_kept_tensor_inside()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local kept, inner
    local y = mx.remat("full", function(t)
        local cube
        do
            local inside <close> = mx.step()
            inner = t * t
            cube = (inner * t):keep()
            assert(inside)
        end
        kept = cube
        return cube * cube
    end, x)
    lu.assertTrue(inner:is_released())
    lu.assertEquals(kept:totable(), { 1, 8 })
    mx.backward(mx.sum(y))
    lu.assertEquals(x:grad():totable(), { 6, 192 })
    lu.assertEquals(kept:totable(), { 1, 8 })
    kept:release()
    assert(step)
end

function TestRemat.test_a_named_result()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local y = mx.remat("save_qkv_proj", function(t)
        mx.name(t, "key_proj") -- a leaf
        return mx.name(t * t, "query_proj")
    end, x)
    mx.backward(mx.sum(y * y))
    lu.assertEquals(x:grad():totable(), { 4, 32 })
    assert(step)
end

function TestRemat.test_several_results_and_inputs()
    local step <close> = mx.step()
    local a, b = mx.tensor({ 1, 2 }):requires_grad(), mx.tensor({ 3, 5 }):requires_grad()
    local product, both = mx.remat("full", function(x, y)
        local p = x * y
        return p, p * p
    end, a, b)
    mx.backward(mx.sum(product + both)) -- d/da = b + 2 a b^2
    lu.assertEquals(a:grad():totable(), { 3 + 18, 5 + 100 })
    lu.assertEquals(b:grad():totable(), { 1 + 6, 2 + 40 })
    assert(step)
end

function TestRemat.test_an_input_handed_through()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local h = x * 3
    local same, y = mx.remat("full", function(t)
        return t, t * t
    end, h)
    mx.backward(mx.sum(same + y)) -- (3x) + (3x)^2 -> 3 + 18 x
    lu.assertEquals(x:grad():totable(), { 21, 39 })
    assert(step)
end

function TestRemat.test_without_a_gradient_nothing_is_kept()
    local step <close> = mx.step()
    local before = in_use()
    local x = mx.ones { 1000 }
    local y = mx.no_grad(function()
        return mx.remat("none", function(t)
            return mx.exp(mx.exp(t) * 0.1)
        end, x)
    end)
    lu.assertEquals(in_use() - before, 8000)
    assert(y and step)
end

function TestRemat.test_backward_inside_is_an_error()
    local step <close> = mx.step()
    local x = mx.ones({ 1 }):requires_grad()
    lu.assertErrorMsgContains("inside", mx.remat, "full", function(t)
        mx.backward(t * t)
    end, x)
    assert(step)
end
