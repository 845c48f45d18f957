-- The slowest chip of a pod: its expected distance from the mean, and what waits for it.

local lu = require "luaunit"
local mx = require "mx"
local stragglers = require "mx.sim.stragglers"

TestStragglers = {}

function TestStragglers.tearDown()
    mx.sim.stop()
end

-- Exact for 1, 2 and 3; for 100 and 1000, the tables of order statistics of the normal distribution.
function TestStragglers.test_the_expected_largest_of_normal_variables()
    local expected = {
        [1] = 0, [2] = 1 / math.sqrt(math.pi), [3] = 1.5 / math.sqrt(math.pi), [100] = 2.50759, [1000] = 3.24144,
    }
    for n, value in pairs(expected) do
        lu.assertAlmostEquals(stragglers.largest(n), value, 1e-3, n)
    end
    lu.assertTrue(stragglers.largest(8192) > stragglers.largest(4096))
end

-- Seconds of a product, an attention and a copy on a pod of v5p.
local function seconds(slices, spread)
    mx.sim.start("v5p-4", slices, { chip_spread = spread })
    local a = mx.zeros({ 4096, 4096 }, "bf16")
    local q = mx.zeros({ 1, 1024, 8, 128 }, "bf16")
    local times = {}
    for i, fn in ipairs({
        function() mx.matmul(a, a) end, function() mx.attention(q, q, q) end, function() a:clone() end,
    }) do
        local start = mx.now()
        fn()
        times[i] = mx.now() - start
    end
    mx.sim.stop()
    return times
end

-- All chips of all slices wait. Memory has a clock of its own.
function TestStragglers.test_arithmetic_is_that_of_the_slowest_of_all_slices()
    local alike, one, two = seconds(2, 0), seconds(1, 0.1), seconds(2, 0.1)
    for i = 1, 2 do -- in attention the overhead of its blocks does not change
        local tolerance = i == 1 and 1e-9 or 0.03
        lu.assertAlmostEquals(one[i] / alike[i], 1 + 0.1 * stragglers.largest(4), tolerance)
        lu.assertAlmostEquals(two[i] / alike[i], 1 + 0.1 * stragglers.largest(8), tolerance)
    end
    lu.assertEquals(two[3], alike[3])
end
