--- What the golden cases of tests/lua/test_ops.lua cannot say of ordering, indexing and rearranging operations.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

TestParts, TestValuesNeeded = {}, {}

function TestParts.test_split_and_chunk()
    local step <close> = mx.step()
    local x = mx.arange(12):view(2, 6)
    local function lists(...)
        local parts = {}
        for i, part in ipairs { ... } do
            parts[i] = part:totable()
        end
        return parts
    end
    local a, b = { { 0, 1, 2, 3 }, { 6, 7, 8, 9 } }, { { 4, 5 }, { 10, 11 } }
    lu.assertEquals(lists(mx.split(x, { size = 4, dim = 2 })), { a, b })
    lu.assertEquals(lists(x:split { sizes = { 4, 2 }, dim = -1 }), { a, b })
    lu.assertEquals(lists(x:split { size = 1 }), { { x[1]:totable() }, { x[2]:totable() } })
    lu.assertEquals(lists(x:chunk { n = 4, dim = 2 }), lists(x:split { size = 2, dim = 2 }), "6 in fours: three twos")
    lu.assertEquals(select("#", mx.chunk(x, { n = 6, dim = 2 })), 6)
    local _, none = x:split { sizes = { 2, 0 } }
    lu.assertEquals(none:size(), { 0, 6 })
    lu.assertEquals(mx.zeros({ 0, 3 }):split({ size = 2 }):size(), { 0, 3 }, "nothing is one empty part")
    assert(step)
end

function TestParts.test_parts_of_the_first_dimension_share_memory_and_have_gradients()
    local step <close> = mx.step()
    local x = mx.arange(4)
    local low, high = x:split { size = 2 }
    mx.fill(high, { value = 7 })
    lu.assertEquals(x:totable(), { 0, 1, 7, 7 })
    lu.assertEquals(low:totable(), { 0, 1 })
    local w = mx.ones { 2, 4 }:requires_grad()
    local left, right = w:chunk { n = 2, dim = 2 }
    mx.backward(mx.sum(left * 2) + mx.sum(right * right * 3))
    lu.assertEquals(w:grad():totable(), { { 2, 2, 6, 6 }, { 2, 2, 6, 6 } })
    assert(step)
end

function TestParts.test_stack_takes_lists()
    local step <close> = mx.step()
    local rows = { mx.arange(3), mx.arange(3) * 2 }
    lu.assertEquals(mx.stack(rows, { dim = 2 }):totable(), { { 0, 0 }, { 1, 2 }, { 2, 4 } })
    lu.assertTrue(compare.identical(mx.stack(rows), mx.stack(rows[1], rows[2])))
    assert(step)
end

--- Sizes that depend on values: a simulated pod has shapes only.
function TestValuesNeeded.test_nonzero_on_a_simulated_pod()
    mx.sim.start("v5e-1", 1)
    local ok, message = pcall(function()
        local x = mx.zeros { 2, 3 }
        local _, ids = mx.topk(x, { k = 2 })
        assert(mx.scatter_add(x, ids, mx.ones { 2, 2 }, { dim = 2 }):size(2) == 3)
        return mx.nonzero(x)
    end)
    mx.sim.stop()
    lu.assertFalse(ok)
    lu.assertStrContains(message,
        "nonzero: the size of the result depends on values, and a simulated pod has none: f32 (2, 3)")
end
