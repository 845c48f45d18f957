--- Values of tensors: how a script reads and sets them, what integers do, and which numbers are refused.

local mx = require "mx"
local lu = require "luaunit"

-- fn must raise a message that holds all of `parts`.
local function refused(parts, fn, ...)
    local ok, message = pcall(fn, ...)
    lu.assertFalse(ok, "nothing was raised; expected: " .. table.concat(parts, ", "))
    for _, part in ipairs(parts) do
        lu.assertStrContains(tostring(message), part)
    end
end

local function index(t, key)
    return t[key]
end

local function assign(t, key, value)
    t[key] = value
end

TestIndex = {}

function TestIndex.setUp()
    TestIndex.step = mx.step()
end

function TestIndex.tearDown()
    local step <close> = TestIndex.step
    TestIndex.step = nil
    assert(step)
end

function TestIndex.test_an_element_carries_its_gradient()
    local w = mx.tensor { 2, 3, 5 }:requires_grad()
    mx.backward(w[1] * w[1] + w[3] * 7)
    lu.assertEquals(w:grad():totable(), { 4, 0, 7 })
    local h = w * 2 -- computed, and recorded
    w:zero_grad()
    mx.backward(h[2])
    lu.assertEquals(w:grad():totable(), { 0, 2, 0 })
end

function TestIndex.test_an_element_is_a_number_where_nothing_is_recorded()
    local w = mx.tensor { 2, 3, 5 }:requires_grad()
    lu.assertEquals(mx.no_grad(index, w, 2), 3)
    lu.assertEquals(w:detach()[2], 3)
    lu.assertEquals(mx.tensor({ 4, 5 }, "i32")[-1 + 2], 4)
    lu.assertEquals(mx.tensor({ 4, 5 })[2.0], 5) -- as a Lua table takes it
end

function TestIndex.test_an_element_works_like_a_tensor()
    local w = mx.tensor { 2, 3, 5 }:requires_grad()
    local e = w[2]
    lu.assertEquals({ e:item(), (e + 1):item(), (1 / e):item(), mx.lt(e, 4):item(), e:dim(), e:numel() },
        { 3, 4, mx.tensor(1 / 3):item(), 1, 0, 1 })
    lu.assertTrue(w[1] < w[2] and w[2] <= 3 and 4 > w[2] and w[3] >= w[3])
    lu.assertFalse(w[2] < w[1] or w[2] > 3)
    lu.assertStrContains(tostring(e), "3")
    refused({ "one element", "f32 (3)", "t:lt" }, function() return w < 1 end)
end

function TestIndex.test_ipairs_ends_at_the_last_row()
    local seen = {}
    for i, value in ipairs(mx.tensor { 7, 8, 9 }) do
        seen[i] = value
    end
    lu.assertEquals(seen, { 7, 8, 9 })
    seen = {}
    for i, row in ipairs(mx.tensor { { 1, 2 }, { 3, 4 } }) do
        seen[i] = row:totable()
    end
    lu.assertEquals(seen, { { 1, 2 }, { 3, 4 } })
    for i in ipairs(mx.zeros { 0 }) do
        error("row " .. i .. " of none")
    end
end

function TestIndex.test_what_is_no_row()
    local t = mx.tensor { 7, 8, 9 }
    for _, i in ipairs { 0, 4, -1, math.maxinteger, math.mininteger } do
        refused({ ("index %d is outside"):format(i), "f32 (3)" }, index, t, i)
    end
    refused({ "index 1 is outside" }, index, mx.tensor(3), 1)
    refused({ "whole number", "1.5" }, index, t, 1.5)
    refused({ "whole number", "mx.narrow" }, index, t, { 1, 2 })
    refused({ "whole number", "true" }, index, t, true)
end

function TestIndex.test_names_that_tensors_lack()
    local t = mx.tensor { 7, 8, 9 }
    refused({ "'T'", "'transpose'" }, index, t, "T")
    refused({ "'shape'", "'size'" }, index, t, "shape")
    refused({ "'sumn'", "'sum'" }, index, t, "sumn")
    refused({ "'contiguous_format'" }, index, t, "contiguous_format")
    refused({ "'requires_gard'", "'requires_grad'" }, function() return t:requires_gard() end)
end

function TestIndex.test_nothing_is_assigned()
    local t = mx.tensor { 7, 8, 9 }
    refused({ "t[1]", "t:set" }, assign, t, 1, 5)
    refused({ "t[name]", "mx.name" }, assign, t, "name", "x")
    lu.assertEquals(t:totable(), { 7, 8, 9 })
end
