--- Functions composed of operations (lua/mx/composed.lua): values and gradients against PyTorch, and refusals.

local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")
local lu = require "luaunit"
local mx = require "mx"

local golden = mx.io.h5_read(compare.here .. "../golden/composed.h5")

-- Sums of at most a few dozen products, f32 against float64.
local BOUND = 2e-6

-- The options of the cases of tests/golden/make_golden_composed.py.
local CASES = {
    ["unfold.middle"] = function(i) return mx.unfold(i.x, { dim = 2, size = 3, step = 2 }) end,
    ["unfold.last"] = function(i) return mx.unfold(i.x, { size = 4 }) end,
    ["interpolate.nearest"] = function(i) return mx.interpolate(i.x, { scale = 3 }) end,
    ["interpolate.nearest_size"] = function(i) return mx.interpolate(i.x, { size = { 7, 3 } }) end,
    ["interpolate.line"] = function(i) return mx.interpolate(i.x, { size = { 9 }, mode = "linear" }) end,
    ["interpolate.up"] = function(i) return mx.interpolate(i.x, { scale = 2, mode = "linear" }) end,
    ["interpolate.down"] = function(i) return mx.interpolate(i.x, { size = { 2, 3 }, mode = "linear" }) end,
    conv_transpose1d = function(i)
        return mx.conv_transpose1d(i.x, i.w, i.b, { stride = 3, padding = 1, output_padding = 2 })
    end,
    conv_transpose2d = function(i)
        return mx.conv_transpose2d(i.x, i.w, i.b, { stride = { 2, 1 }, padding = { 1, 0 }, groups = 2,
            dilation = { 1, 2 } })
    end,
}

TestComposed = {}

function TestComposed.setUp()
    TestComposed.step = mx.step()
end

function TestComposed.tearDown()
    local step <close> = TestComposed.step
    TestComposed.step = nil
    assert(step)
end

for name, f in pairs(CASES) do
    TestComposed["test_" .. name:gsub("%.", "_")] = function()
        local inputs = {}
        for _, key in ipairs { "x", "w", "b" } do
            local value = golden[name .. "." .. key]
            inputs[key] = value and value:clone():requires_grad()
        end
        local y = f(inputs)
        lu.assertEquals(y:size(), golden[name .. ".y"]:size())
        lu.assertTrue(compare.distance(y, golden[name .. ".y"]) < BOUND)
        mx.backward((y * golden[name .. ".dy"]):sum())
        for key, t in pairs(inputs) do
            lu.assertTrue(compare.distance(t:grad(), golden[name .. ".d" .. key]) < BOUND, key)
        end
    end
end

function TestComposed.test_dtypes()
    local x = mx.arange(6, "i32")
    lu.assertEquals(mx.unfold(x, { size = 2, step = 3 }):totable(), { { 0, 1 }, { 3, 4 } })
    lu.assertEquals(mx.eye(2, "u8"):totable(), { { 1, 0 }, { 0, 1 } })
    lu.assertEquals(mx.linspace(-1, 1, 5, "f64"):totable(), { -1, -0.5, 0, 0.5, 1 })
    lu.assertEquals(mx.linspace(3, 9, 1):totable(), { 3 })
    local image = mx.arange(4, "f64"):view(1, 1, 4)
    lu.assertEquals(mx.interpolate(image, { scale = 2, mode = "linear" }):totable(),
        { { { 0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3 } } })
end

function TestComposed.test_unique()
    local x = mx.tensor({ { 3, 1, 3 }, { 7, 3, -2 } }, "i32")
    local values, ids, counts = mx.unique(x)
    lu.assertEquals(values:totable(), { -2, 1, 3, 7 })
    lu.assertEquals(ids:totable(), { { 2, 1, 2 }, { 3, 2, 0 } })
    lu.assertEquals(counts:totable(), { 1, 1, 3, 1 })
    lu.assertEquals(values[ids:view(-1)]:totable(), x:view(-1):totable())
    local nans = mx.unique(mx.tensor { 0 / 0, 1, 0 / 0 })
    lu.assertEquals(nans:size(), { 3 }) -- as in PyTorch, NaN equals nothing
    lu.assertEquals(mx.unique(mx.zeros(0)):size(), { 0 })
    lu.assertEquals(mx.unique(mx.tensor(5, "i32")):totable(), { 5 })
end

-- Second gradients follow from those of the operations.
function TestComposed.test_gradients_of_gradients()
    local x = mx.randn({ 1, 2, 3 }, { seed = 1 }):requires_grad()
    local w = mx.randn({ 2, 1, 2 }, { seed = 2 }):requires_grad()
    mx.gradcheck(function(a, b)
        local y = mx.conv_transpose1d(a:square(), b, { stride = 2 })
        return mx.grad(y:square():sum(), a, { record = true })
    end, x, w)
end

function TestComposed.test_refusals()
    local function refused(text, f, ...)
        lu.assertErrorMsgContains(text, f, ...)
    end
    local x = mx.ones(1, 2, 4)
    refused("mx.unfold: size = 5, step = 1; expected a step of at least 1, and a size of 1 to 4", mx.unfold, x,
        { size = 5 })
    refused("mx.unfold: dim = 4, but the tensor has 3 dimensions", mx.unfold, x, { size = 1, dim = 4 })
    refused("mx.linspace(first, last, n): n is nil", mx.linspace, 0, 1)
    refused("mode = 'cubic'; expected nearest or linear", mx.interpolate, x, { scale = 2, mode = "cubic" })
    refused("takes size = { ... } with 1 numbers, or a scale", mx.interpolate, x, { size = { 2, 2 } })
    refused("takes size = { ... } with 1 numbers, or a scale", mx.interpolate, x)
    refused("dimension 3 has 4 elements and would get 2.0", mx.interpolate, x, { scale = 0.5 })
    refused("output_padding = 2; expected at least 0 and less than the stride, 2", mx.conv_transpose1d, x,
        mx.ones(2, 1, 3), { stride = 2, output_padding = 2 })
    refused("mx.conv_transpose2d: x and w have 3 and 3 dimensions; expected 4", mx.conv_transpose2d, x,
        mx.ones(2, 1, 3))
    refused("use mx.unfold(t)", function() return x:unfold { size = 2 } end)
end
