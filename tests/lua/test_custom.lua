--- mx.custom: operations whose forward and backward are Lua functions.

local mx = require "mx"
local lu = require "luaunit"

TestCustom = {}

function TestCustom.setUp()
    TestCustom.step = mx.step()
end

function TestCustom.tearDown()
    local step <close> = TestCustom.step
    TestCustom.step = nil
    assert(step)
end

local scaled_square = mx.custom {
    name = "scaled_square",
    forward = function(ctx, x, scale)
        ctx:save(x)
        ctx.scale = scale
        return x * x * scale
    end,
    backward = function(ctx, dy)
        local x = ctx:saved()
        return dy * x * (2 * ctx.scale)
    end,
}

-- Saves a tensor that is neither an input nor a result.
local softplus = mx.custom {
    name = "softplus",
    forward = function(ctx, x)
        local e = x:exp()
        ctx:save(e)
        return (e + 1):log()
    end,
    backward = function(ctx, dy)
        local e = ctx:saved()
        return dy * e / (e + 1)
    end,
}

local function leaf(...)
    return mx.randn({ ... }, { seed = 3 }):requires_grad()
end

function TestCustom.test_values_and_gradients()
    local x = mx.tensor({ 1, 2, 3 }):requires_grad()
    local y = scaled_square(x, 3)
    lu.assertEquals(y:totable(), { 3, 12, 27 })
    mx.backward(y:sum())
    lu.assertEquals(x:grad():totable(), { 6, 12, 18 })
    mx.gradcheck(softplus, leaf(3, 4))
    mx.gradcheck(scaled_square, leaf(5), 0.5)
end

-- The gradient of a leaf is f32: that of a bf16 leaf is cast when backward returns it.
function TestCustom.test_leaves_of_bf16()
    local x = mx.tensor({ 1, 2, 3 }, "bf16"):requires_grad()
    mx.backward(scaled_square(x, 3):sum())
    lu.assertEquals(x:grad():dtype(), "f32")
    lu.assertEquals(x:grad():totable(), { 6, 12, 18 })
    lu.assertEquals(mx.grad(scaled_square(x, 3):sum(), x):totable(), { 6, 12, 18 })
end

function TestCustom.test_several_tensors_and_results()
    local polar = mx.custom {
        forward = function(ctx, r, _, angle)
            local x, y = r * angle:cos(), r * angle:sin()
            ctx:save(r, angle, x, y)
            return x, y
        end,
        backward = function(ctx, dx, dy)
            local _, angle, x, y = ctx:saved()
            local da
            if dx then
                da = -(dx * y)
            end
            if dy then
                da = da and da + dy * x or dy * x
            end
            local dr = (dx and dx * angle:cos() or 0) + (dy and dy * angle:sin() or 0)
            return dr, da
        end,
    }
    mx.gradcheck(function(r, a) return polar(r, "a string", a) end, leaf(4), leaf(4))
    mx.gradcheck(function(r, a) return (select(2, polar(r, nil, a))) end, leaf(4), leaf(4))
end

function TestCustom.test_constants_need_no_backward()
    local f = mx.custom { forward = function(_, x) return x + 1 end }
    lu.assertEquals(f(mx.tensor { 1 }):totable(), { 2 })
    lu.assertErrorMsgContains("custom has no gradient; give mx.custom a backward function", mx.backward, f(leaf(1)))
end

function TestCustom.test_rematerialisation_gives_the_same_bits()
    local x = leaf(8)
    local function net(a)
        local noisy = mx.custom {
            forward = function(ctx, t)
                local noise = mx.randn(t:size()) -- from the stream: the same numbers when it runs again
                ctx:save(noise)
                return t * noise
            end,
            backward = function(ctx, dy) return dy * ctx:saved() end,
        }
        return softplus(noisy(softplus(a * 2)))
    end
    local function gradient(policy)
        mx.manual_seed(7)
        return mx.grad(mx.remat(policy, net, x):sum(), x):totable()
    end
    local kept = gradient("none")
    local drawn = mx.random_state().draws
    lu.assertEquals(gradient("full"), kept)
    lu.assertEquals(mx.random_state().draws, drawn)
end

--- The tape holds what ctx:save was given, and drops it in a region, but for that of the region's result. A tensor has
--- 4 MiB: the result, and e of one or both calls.
function TestCustom.test_memory()
    local x = mx.zeros({ 1 << 20 }):requires_grad()
    local function bytes_after(policy)
        local before = mx.memory().in_use
        local y = mx.remat(policy, function(a) return softplus(softplus(a)) end, x)
        local used = mx.memory().in_use - before
        mx.backward(y:sum())
        y:release()
        return used
    end
    bytes_after("full") -- the gradient of x
    lu.assertEquals(bytes_after("full"), 2 * (4 << 20))
    lu.assertEquals(bytes_after("none"), 3 * (4 << 20))
end

function TestCustom.test_gradients_of_gradients()
    local x = mx.tensor({ 1, 2, 3 }):requires_grad()
    local g = mx.grad(scaled_square(x, 3):sum(), x, { record = true })
    lu.assertEquals(mx.grad(g:sum(), x):totable(), { 6, 6, 6 })
    lu.assertErrorMsgContains("softplus: the gradient cannot be recorded", mx.grad, softplus(x):sum(), x,
        { record = true })
end

-- y = exp(x) w, whose backward records exp(x) w again and differentiates it.
local function checkpointed(inside)
    return mx.custom {
        forward = function(ctx, x, w)
            ctx:save(x, w)
            return x:exp() * w
        end,
        backward = function(ctx, dy)
            local x, w = ctx:saved()
            local g = mx.enable_grad(function()
                x, w = x:detach():requires_grad(), w:detach():requires_grad()
                local y = mx.remat("full", function() return x:exp() * w end)
                if inside then
                    return inside(y, x)
                end
                return mx.grad(y, { x, w }, { grad = dy })
            end)
            return g[1], g[2]
        end,
    }
end

function TestCustom.test_grad_inside_backward()
    local f = checkpointed()
    mx.gradcheck(f, leaf(3), leaf(3))
    local x, w = leaf(3), leaf(3)
    local h = x * 2
    local found = mx.grad((f(h, w) * f(w, h)):sum(), { h, w }, { retain = true })
    local expected = mx.grad((h:exp() * w * w:exp() * h):sum(), { h, w }, { retain = true })
    for i = 1, 2 do
        lu.assertTrue(mx.max(mx.abs(found[i] - expected[i])):item() < 1e-4)
    end
    mx.backward((f(f(h, w), w)):sum()) -- the outer backward pass continues after the inner one
    lu.assertNotNil(x:grad())
    local nested = checkpointed(function(y, own) -- a custom operation inside
        return { mx.grad(checkpointed()(y, own):sum(), own), nil }
    end)
    mx.backward(nested(leaf(3), leaf(3)):sum())
end

function TestCustom.test_grad_inside_backward_refuses()
    local function run(f, record)
        local x = leaf(3)
        return mx.grad(f(x, leaf(3)):sum(), x, { record = record })
    end
    lu.assertErrorMsgContains("cannot be differentiated again; leave out record", run, checkpointed(), true)
    lu.assertErrorMsgContains("by mx.grad inside mx.enable_grad(fn)", run, checkpointed(function(y)
        mx.backward(y:sum())
    end))
    lu.assertErrorMsgContains("oh", run, checkpointed(function() error("oh") end))
    local w = leaf(3)
    local f = mx.custom {
        forward = function(_, x) return x * 2 end,
        backward = function(_, dy)
            return mx.enable_grad(function() return mx.grad((w * w):sum(), w) * dy end)
        end,
    }
    lu.assertErrorMsgContains("or the mx.grad around this one asks for it", mx.grad, f(w):sum(), w)
    mx.backward(f(w):sum()) -- a leaf that is not detached, whose own gradient stays as it is
    lu.assertTrue(mx.max(mx.abs(w:grad() - w * 2)):item() < 1e-6)
    lu.assertEquals(run(checkpointed()):size(), { 3 }) -- refusals leave nothing behind
end

function TestCustom.test_errors()
    local x = leaf(3)
    local function forward(fn)
        return mx.custom { name = "f", forward = fn, backward = function() end }
    end
    local function backward(fn)
        return function()
            mx.backward(mx.custom { name = "f", forward = function(_, t) return t * 1 end, backward = fn }(x):sum())
        end
    end
    lu.assertErrorMsgContains("f: result 1 of forward is number", forward(function() return 3 end), x)
    lu.assertErrorMsgContains("f: forward returned 0 tensors", forward(function() end), x)
    lu.assertErrorMsgContains("oh", forward(function() error("oh") end), x)
    lu.assertErrorMsgContains("returns and saves more than 4 tensors", forward(function(_, t)
        return t * 1, t * 2, t * 3, t * 4, t * 5
    end), x)
    lu.assertErrorMsgContains("result 1 of backward is f32 (); expected nil, or a gradient for f32 (3)",
        backward(function(_, dy) return dy:sum() end))
    lu.assertErrorMsgContains("backward returned 2 gradients", backward(function(_, dy) return dy, dy end))
    lu.assertErrorMsgContains("oh", backward(function() error("oh") end))
    lu.assertErrorMsgContains("field 'forward' is nil", mx.custom, {})
    lu.assertErrorMsgContains("did you mean 'backward'", mx.custom, { forward = print, bakward = print })
    lu.assertErrorMsgContains("has been released", function()
        local t = x * 1
        t:release()
        scaled_square(t, 1)
    end)
    mx.backward(scaled_square(x, 1):sum()) -- and all works on
end

--- On a simulated pod: the operations inside are charged, or what `cost` says.
function TestCustom.test_simulation()
    local flops = 2e12
    local costly = mx.custom {
        name = "costly",
        forward = function(_, x) return mx.matmul(x, x) end,
        cost = function(x) return flops, x:bytes() end,
    }
    local plain = mx.custom { forward = function(_, x) return mx.matmul(x, x) end }
    mx.sim.start("v5e-1")
    local ok, message = pcall(function()
        local x = mx.zeros({ 512, 512 }, "bf16")
        mx.sim_times(true)
        lu.assertEquals(plain(x):size(), { 512, 512 })
        lu.assertEquals(mx.sim_times(true).flops, 2 * 512 ^ 3)
        costly(x)
        lu.assertEquals(mx.sim_times(true).flops, flops)
    end)
    mx.sim.stop()
    lu.assertTrue(ok, message)
end

function TestCustom.test_profile()
    local costly = mx.custom {
        name = "costly", forward = function(_, x) return x:exp():log() end, cost = function() return 0, 100 end,
    }
    local x = mx.ones { 8 }
    mx.profile(true)
    costly(x)
    mx.profile(false)
    local names = {}
    for _, row in ipairs(mx.profile_report()) do
        names[row.op] = true
    end
    lu.assertTrue(names.costly)
    lu.assertNil(names.exp)
end
