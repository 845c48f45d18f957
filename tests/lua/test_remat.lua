--- Rematerialisation: the same bits under every policy, what a policy keeps, and layers in odd shapes.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

local function in_use()
    collectgarbage()
    collectgarbage()
    return mx.memory().in_use
end

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

local POLICIES = {
    "none", "minimal_with_context", "minimal", "save_dot_with_context_except_mlp", "save_dot_except_mlpwi",
    "save_dot_except_mlp", "save_qkv_proj", "qkv_proj_offloaded", "minimal_offloaded", "save_out_proj", "full",
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
        local custom = { key_proj = "device", mlpwi_1 = "offload", out_proj = "remat" }
        assert_same_gradients(run_stack(layers, custom, dtype), reference, "custom")
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

    -- Between forward and backward a layer keeps its input and what its policy names, to the byte. No gradient reads
    -- mlpwo, which is only added to the stream, so it is not kept.
    TestRemat["test_memory_is_what_the_policy_names_" .. dtype] = function()
        local layers = new_stack(dtype)
        local element = dtype == "bf16" and 2 or 4
        local lse = 2 * 4 / element -- the attention's log-sum-exp, f32 for each of two heads, goes with its context
        local kept = {
            full = 0, save_out_proj = E, save_qkv_proj = 3 * E, save_dot_except_mlp = 4 * E,
            save_dot_with_context_except_mlp = 5 * E + lse, save_dot_except_mlpwi = 4 * E, minimal = 4 * E + 2 * M,
            minimal_with_context = 5 * E + 2 * M + lse,
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

-- A value with a name is kept if a gradient reads it, or a call that runs again; otherwise it is not.
function TestRemat.test_a_name_that_backward_does_not_read()
    local function kept_bytes(fn)
        local step <close> = mx.step()
        local x = mx.ones({ 1024 }):requires_grad()
        local before = in_use()
        local y = mx.remat({ value = "device" }, fn, x)
        collectgarbage()
        local bytes = in_use() - before - y:bytes()
        mx.backward(y:sum())
        lu.assertNotNil(step)
        return bytes, x:grad():totable()[1]
    end
    local function named(t)
        return mx.name(t * t, "value") -- 1, and its gradient by x is 2
    end
    local cases = {
        { function(x) return named(x) + x end, 0, 3 }, -- the gradient of a sum reads nothing
        { function(x) return named(x) * x end, 4096, 3 }, -- that of a product does
        { function(x) return mx.exp(named(x) * 0.0) * x end, 4096, 1 }, -- exp runs again, and reads the product
        { function(x) return (named(x) + x) * 3.0 end, 0, 9 },
    }
    for i, case in ipairs(cases) do
        local bytes, grad = kept_bytes(case[1])
        lu.assertEquals(bytes, case[2], "case " .. i)
        lu.assertAlmostEquals(grad, case[3], 1e-6)
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
