-- Gradients of leaves: whose they are, and which tensors get them.

local mx = require "mx"
local lu = require "luaunit"

local assert_raises = require("checks").assert_raises

local function leaf(values)
    return mx.tensor(values):keep():requires_grad()
end

TestLeaves = {}

--- Each leaf's gradient may be changed without changing another one's.
function TestLeaves.test_a_gradient_is_its_leafs_own()
    for what, case in pairs {
        add = { function(a, b) return a + b end, 1, 1 },
        sub = { function(a, b) return a - b end, 1, -1 },
        add_of_views = { function(a, b) return a:view(2, 2) + b:view(2, 2) end, 1, 1 },
        three = { function(a, b) return (a * 2 + b) end, 2, 1 },
        concat = { function(a, b) return mx.concat { a, b } * 3 end, 3, 3 },
        concat_last = { function(a, b) return mx.concat({ b, a }, { dim = -1 }) * 3 end, 3, 3 },
        clones = { function(a, b) return a:clone() + b:clone() end, 1, 1 },
        sum_of_sums = { function(a, b) return (a + b) + (b + a) end, 2, 2 },
    } do
        local step <close> = mx.step()
        local a, b = leaf { 1, 2, 3, 4 }, leaf { 5, 6, 7, 8 }
        mx.backward(case[1](a, b):sum())
        local function all(value) return { value, value, value, value } end
        lu.assertEquals(a:grad():totable(), all(case[2]), what)
        lu.assertEquals(b:grad():totable(), all(case[3]), what)
        mx.fill(a:grad(), { value = 50 })
        lu.assertEquals(b:grad():totable(), all(case[3]), what)
        mx.fill(b:grad(), { value = 60 })
        lu.assertEquals(a:grad():totable(), all(50), what)
        mx.backward(case[1](a, b):sum())
        lu.assertEquals(a:grad():totable(), all(50 + case[2]), what)
        lu.assertEquals(b:grad():totable(), all(60 + case[3]), what)
        a:zero_grad()
        lu.assertEquals(b:grad():totable(), all(60 + case[3]), what)
        assert(step)
    end
end

function TestLeaves.test_a_gradient_fills_its_memory()
    local step <close> = mx.step()
    local a, b = mx.zeros({ 4096 }):requires_grad(), mx.zeros({ 4096 }):requires_grad()
    local loss = mx.concat({ a, b }):sum()
    local before = mx.memory().in_use
    mx.backward(loss)
    lu.assertEquals(mx.memory().in_use - before, 2 * 4 * 4096)
    a:zero_grad()
    lu.assertEquals(mx.memory().in_use - before, 4 * 4096)
    assert(step)
end

-- ---- leaves that collect no gradient any more ----

function TestLeaves.test_requires_grad_false_freezes()
    local step <close> = mx.step()
    local a, b = leaf { 2 }, leaf { 3 }
    mx.backward((a * b):sum())
    a:requires_grad(false)
    mx.backward((a * b):sum())
    lu.assertEquals(a:grad():item(), 3) -- what it had stays
    lu.assertEquals(b:grad():item(), 4)
    local loss = (a * b):sum()
    a:requires_grad()
    mx.backward(loss) -- recorded while it was frozen
    lu.assertEquals(a:grad():item(), 3)
    mx.backward((a * b):sum())
    lu.assertEquals(a:grad():item(), 6)
    assert(step)
end

function TestLeaves.test_frozen_between_forward_and_backward()
    local step <close> = mx.step()
    local a, b = leaf { 2 }, leaf { 3 }
    local loss = mx.remat("full", function() return (a * b * b):sum() end)
    a:requires_grad(false)
    mx.backward(loss)
    lu.assertNil(a:grad())
    lu.assertEquals(b:grad():item(), 12)
    assert_raises({ "no tensor that requires a gradient" }, mx.backward, a:sum())
    local last = b:sum()
    b:requires_grad(false)
    assert_raises({ "no tensor that still requires a gradient" }, mx.backward, last)
    assert(step)
end

--- A leaf that is marked after a forward pass has no gradient of it, not a part of one.
function TestLeaves.test_marked_after_the_forward_pass()
    local step <close> = mx.step()
    local w, x = leaf { 2 }, mx.tensor { 3 }
    local loss = (x * w + x * 5):sum()
    x:requires_grad()
    mx.backward(loss)
    lu.assertEquals(w:grad():item(), 3)
    lu.assertNil(x:grad())
    assert(step)
end

function TestLeaves.test_requires_grad_of_computed_tensors_and_of_no_boolean()
    local step <close> = mx.step()
    local w = leaf { 2 }
    local h = w * 2
    assert_raises({ "computed", "detach" }, h.requires_grad, h, false)
    assert_raises({ "boolean" }, w.requires_grad, w, "no")
    assert(step)
end
