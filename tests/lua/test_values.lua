--- Values of tensors: how a script reads and sets them, what integers do, and which numbers are refused.
-- guarded

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

-- ---- integers ----

TestIntegers = {}

local RANGES = { u8 = { 0, 255 }, i8 = { -128, 127 }, i32 = { -2147483648, 2147483647 } }

local function each_integer(fn)
    for dtype, range in pairs(RANGES) do
        fn(dtype, range[1], range[2])
    end
end

function TestIntegers.test_numbers_that_the_dtype_lacks_are_refused()
    each_integer(function(dtype, low, high)
        local t, one, mask = mx.tensor({ 1, 2, 3 }, dtype), mx.tensor(1, dtype), mx.tensor({ 1, 0, 1 }, "u8")
        for _, x in ipairs { 0.5, 1.5, low - 1, high + 1, low - 0.5, 1e30, -1e30, 1 / 0, -1 / 0, 0 / 0,
            math.maxinteger } do
            local function no(fn, ...)
                refused({ "is no value of " .. dtype }, fn, ...)
            end
            no(function() return t + x end)
            no(function() return x + t end)
            no(function() return t - x end)
            no(function() return x - t end)
            no(function() return t * x end)
            no(function() return x * t end)
            no(function() return t // x end)
            no(function() return x // t end)
            no(mx.add, t, x)
            no(mx.sub, x, t)
            no(mx.mul, t, x)
            no(mx.maximum, t, x)
            no(mx.minimum, x, t)
            no(mx.where, mask, t, x)
            no(mx.where, mask, x, t)
            no(mx.fill, t, { value = x })
            no(mx.full, { shape = { 2 }, value = x, dtype = dtype })
            no(mx.full, { 2 }, x, dtype)
            no(mx.arange, { n = 2, start = x, dtype = dtype })
            refused({ "does not fit " .. dtype }, t.set, t, 1, x)
            refused({ "does not fit " .. dtype }, mx.tensor, { 1, x }, dtype)
        end
        lu.assertEquals(t:totable(), { 1, 2, 3 })
        lu.assertEquals(one:item(), 1)
        refused({ "step" }, mx.arange, { n = 3, step = 0.5, dtype = dtype })
        refused({ "the last" }, mx.arange, { n = 3, start = high - 1, dtype = dtype })
        refused({ "scale = 0.5" }, mx.affine, t, { scale = 0.5 })
        refused({ "shift = 0.25" }, mx.affine, t, { shift = 0.25 })
    end)
end

function TestIntegers.test_numbers_at_the_ends_of_the_range()
    each_integer(function(dtype, low, high)
        local zero = mx.zeros({ 1 }, dtype)
        lu.assertEquals((zero + high):totable(), { high })
        lu.assertEquals((zero + low):totable(), { low })
        lu.assertEquals(mx.maximum(zero, high):totable(), { high })
        lu.assertEquals(mx.minimum(low, zero):totable(), { low })
        lu.assertEquals(mx.full({ 1 }, high, dtype):totable(), { high })
        lu.assertEquals(mx.full({ 1 }, low, dtype):totable(), { low })
        lu.assertEquals(mx.where(mx.tensor({ 1 }, "u8"), high, zero):totable(), { high })
        lu.assertEquals(mx.fill(zero, { value = low }):totable(), { low })
        lu.assertEquals(mx.arange { n = 2, start = high - 1, dtype = dtype }:totable(), { high - 1, high })
    end)
end

function TestIntegers.test_all_arithmetic_saturates()
    each_integer(function(dtype, low, high)
        local t, last = mx.tensor({ low, high, 2, 3 }, dtype), high // 2 + 1
        local function clip(a, b)
            return math.max(low, math.min(high, a)), b and math.max(low, math.min(high, b))
        end
        for _, x in ipairs { 1, 2, 3, last, high } do
            local want = { add = {}, sub = {}, from = {}, mul = {}, minus = {} }
            for i, y in ipairs { low, high, 2, 3 } do
                want.add[i], want.sub[i], want.mul[i], want.from[i], want.minus[i] =
                    clip(y + x), clip(y - x), clip(y * x), clip(x - y), (clip(-y))
            end
            local with = mx.full({ 4 }, x, dtype)
            for _, pair in ipairs {
                { t + x, want.add }, { x + t, want.add }, { t + with, want.add }, { mx.add(t, x), want.add },
                { t - x, want.sub }, { t - with, want.sub }, { mx.sub(t, x), want.sub },
                { x - t, want.from }, { with - t, want.from }, { mx.sub(x, t), want.from },
                { t * x, want.mul }, { x * t, want.mul }, { t * with, want.mul }, { mx.mul(x, t), want.mul },
                { -t, want.minus },
            } do
                lu.assertEquals(pair[1]:totable(), pair[2])
                lu.assertEquals(pair[1]:dtype(), dtype)
            end
        end
    end)
end

function TestIntegers.test_division_rounds_down()
    local t = mx.tensor({ -7, -6, 0, 6, 7 }, "i32")
    lu.assertEquals((t // 2):totable(), { -4, -3, 0, 3, 3 })
    lu.assertEquals((t // -2):totable(), { 3, 3, 0, -3, -4 })
    lu.assertEquals((100 // mx.tensor({ 7, -7, 49 }, "i32")):totable(), { 14, -15, 2 })
    lu.assertEquals((mx.tensor({ 147 }, "i32") // 49):totable(), { 3 })
    lu.assertEquals((mx.tensor({ -2147483648 }, "i32") // -1):totable(), { 2147483647 }) -- saturates
    lu.assertEquals(mx.idiv(mx.tensor({ 255, 9 }, "u8"), 2):totable(), { 127, 4 })
    refused({ "division by zero", "[2]" }, function() return t // mx.tensor({ 1, 0, 1, 1, 1 }, "i32") end)
    refused({ "division by zero" }, function() return t // 0 end)
    refused({ "no fractions", "//" }, function() return t / 2 end)
    refused({ "no fractions" }, function() return 1 / t end)
    refused({ "no fractions" }, function() return t / t end)
    refused({ "must be an integer" }, function() return mx.ones { 2 } // 2 end)
end

-- Numbers are not rounded to bf16, and the result is what Lua's own % gives.
function TestIntegers.test_remainders_of_floats()
    local values = { -7.5, -3, -0.25, 0, 0.25, 3, 7.5 }
    for _, dtype in ipairs { "f32", "bf16", "f64" } do
        for _, by in ipairs { 2, -2, 0.75, 3 } do
            local left, right = {}, {}
            for i, value in ipairs(values) do
                left[i], right[i] = value % by, value ~= 0 and by % value or 0
            end
            local t = mx.tensor(values, dtype)
            lu.assertEquals((t % by):totable(), left)
            lu.assertEquals(mx.where(t:ne(0), by % t, 0):totable(), right)
            lu.assertEquals((t % mx.full({ 7 }, by, dtype)):dtype(), dtype)
        end
    end
    lu.assertAlmostEquals((mx.ones({ 1 }, "bf16") % 0.3):item(), 0.1, 5e-4) -- 0.3 in bf16 leaves 0.0977
    lu.assertEquals((mx.tensor({ 7, -7 }, "i32") % mx.tensor { 2.5, 2.5 }):totable(), { 2, 0.5 })
end

-- As math.fmod of Lua: the remainder has the dividend's sign.
function TestIntegers.test_fmod()
    local values = { -7, -6, 0, 6, 7 }
    for _, dtype in ipairs { "i32", "i64", "i8", "f32", "bf16", "f64" } do
        for _, by in ipairs { 1, 2, 5, -1, -2, -5 } do
            local expected = {}
            for i, value in ipairs(values) do
                expected[i] = math.fmod(value, by)
            end
            lu.assertEquals(mx.fmod(mx.tensor(values, dtype), by):totable(), expected, dtype)
        end
    end
    local far = { math.mininteger, math.mininteger + 1, -1, 0, math.maxinteger - 1, math.maxinteger }
    for _, by in ipairs { 10, -10, -1, math.maxinteger, math.mininteger } do
        for _, value in ipairs(far) do
            lu.assertEquals(mx.fmod(mx.tensor({ value }, "i64"), mx.tensor({ by }, "i64")):item(), math.fmod(value, by))
        end
    end
    lu.assertEquals(mx.fmod(mx.tensor({ 255, 9 }, "u8"), 255):totable(), { 0, 9 })
    lu.assertEquals(mx.fmod(mx.tensor({ -128, 127 }, "i8"), 100):totable(), { -28, 27 })
    lu.assertEquals(1 / mx.fmod(mx.tensor { -4 }, 2):item(), -math.huge)
    refused({ "division by zero", "[2]" }, function()
        return mx.fmod(mx.tensor({ 1, 2 }, "i32"), mx.tensor({ 1, 0 }, "i32"))
    end)
end

-- As in Lua: the remainder has the divisor's sign.
function TestIntegers.test_remainders()
    local t = mx.tensor({ -7, -6, 0, 6, 7 }, "i32")
    for _, by in ipairs { 1, 2, 5, -1, -2, -5 } do
        local expected = {}
        for i, value in ipairs { -7, -6, 0, 6, 7 } do
            expected[i] = value % by
        end
        lu.assertEquals((t % by):totable(), expected)
        lu.assertEquals((t % mx.full({ 5 }, by, "i32")):totable(), expected)
    end
    lu.assertEquals((100 % mx.tensor({ 7, -7 }, "i32")):totable(), { 2, -5 })
    lu.assertEquals((mx.tensor({ -2147483648 }, "i32") % -1):totable(), { 0 })
    local least = mx.tensor({ math.mininteger }, "i64")
    lu.assertEquals((least % -1):item(), 0)
    local far = mx.tensor({ math.mininteger, math.mininteger + 1, -1, 0, math.maxinteger - 1, math.maxinteger }, "i64")
    for _, by in ipairs { 10, -10, math.maxinteger, math.mininteger } do
        local divisor = mx.tensor({ by }, "i64")
        for i, value in ipairs(far:tolist()) do
            lu.assertEquals((far[{ { i, i } }] % divisor):item(), value % by)
        end
    end
    lu.assertEquals((mx.tensor({ 255, 9 }, "u8") % 2):totable(), { 1, 1 })
    lu.assertEquals((mx.tensor({ 255, 9 }, "u8") % 255):totable(), { 0, 9 })
    lu.assertEquals((mx.tensor({ -128, 127 }, "i8") % 100):totable(), { 72, 27 })
    refused({ "division by zero", "[2]" }, function() return t % mx.tensor({ 1, 0, 1, 1, 1 }, "i32") end)
end

-- Each comparison with any number gives what Lua's own, exact comparison gives.
function TestIntegers.test_comparisons_are_exact()
    local compare = {
        eq = function(a, b) return a == b end, ne = function(a, b) return a ~= b end,
        lt = function(a, b) return a < b end, le = function(a, b) return a <= b end,
        gt = function(a, b) return a > b end, ge = function(a, b) return a >= b end,
    }
    each_integer(function(dtype, low, high)
        local values = { low, low + 1, 0, 1, 2, high - 1, high, dtype == "i32" and 16777217 or 5 }
        local t = mx.tensor(values, dtype)
        for _, x in ipairs { 0.5, 1, 1.5, -0.5, low, low - 1, low - 0.5, low + 0.5, high, high + 1, high - 0.5,
            high + 0.5, 1e30, -1e30, 1 / 0, -1 / 0, 0 / 0, 16777216, 16777217, 16777216.5, math.maxinteger,
            math.mininteger } do
            for name, holds in pairs(compare) do
                local left, right = {}, {}
                for i, value in ipairs(values) do
                    left[i], right[i] = holds(value, x) and 1 or 0, holds(x, value) and 1 or 0
                end
                lu.assertEquals(mx[name](t, x):totable(), left, ("%s %s(t, %s)"):format(dtype, name, x))
                lu.assertEquals(mx[name](x, t):totable(), right, ("%s %s(%s, t)"):format(dtype, name, x))
                lu.assertEquals(t[name](t, x):dtype(), "u8")
            end
        end
    end)
end

function TestIntegers.test_integers_never_pass_through_f32()
    local n = 16777217
    lu.assertEquals(mx.eq(mx.tensor({ n }, "i32"), n):item(), 1)
    lu.assertEquals(mx.maximum(mx.tensor({ 0 }, "i32"), n):item(), n)
    lu.assertEquals((mx.tensor({ 0 }, "i32") + n):item(), n)
    lu.assertEquals(mx.where(mx.tensor({ 0 }, "u8"), mx.tensor({ 0 }, "i32"), n):item(), n)
    lu.assertEquals(mx.full({ 1 }, n, "i32"):item(), n)
end

function TestIntegers.test_a_sum_that_does_not_fit_is_refused()
    local t = mx.full { shape = { 70000 }, value = 100000, dtype = "i32" }
    refused({ "sum", "7000000000", "i32", 'to("f32")' }, mx.sum, t)
    refused({ "sum", "-7000000000" }, mx.sum, -t)
    refused({ "sum" }, mx.sum, t:view(2, 35000), { dim = 2 })
    lu.assertEquals(mx.mean(t):item(), 100000)
    lu.assertEquals(mx.sum(mx.full { shape = { 70000 }, value = 255, dtype = "u8" }):item(), 70000 * 255)
    lu.assertEquals(mx.sum(mx.tensor({ 2147483647, 5, -5 }, "i32")):item(), 2147483647)
end

-- Toward zero, saturated, NaN to 0: the same on every path.
function TestIntegers.test_casts_out_of_range()
    local before = mx.isa()
    local x = { 0.5, -0.5, 1.9, -1.9, 127.5, 255.9, 256, -128.9, 300, -300, 2147483520, 2147483648, -2147483648, 3e9,
        -3e9, 1e30, -1e30, 1 / 0, -1 / 0, 0 / 0 }
    for _, isa in ipairs { "portable", "avx2", "avx512", "avx512_bf16" } do
        if pcall(mx.isa, isa) then
            each_integer(function(dtype, low, high)
                local want = {}
                for i, value in ipairs(x) do
                    local whole = value ~= value and 0 or value < 0 and math.ceil(value) or math.floor(value)
                    want[i] = math.tointeger(math.max(low, math.min(high, whole)))
                end
                lu.assertEquals(mx.tensor(x):to(dtype):totable(), want, isa)
                lu.assertEquals(mx.copy(mx.zeros({ #x }, dtype), mx.tensor(x)):totable(), want, isa)
            end)
            lu.assertEquals(mx.tensor({ -1, 300 }, "i32"):to("u8"):totable(), { 0, 255 })
        end
    end
    mx.isa(before)
end

-- ---- random numbers without a seed ----

TestUnseeded = {}

function TestUnseeded.setUp()
    TestUnseeded.state = mx.random_state()
end

function TestUnseeded.tearDown()
    mx.random_state(TestUnseeded.state)
end

function TestUnseeded.test_no_seed_gives_these_numbers()
    mx.manual_seed(0)
    local seen = {}
    for i = 1, 50 do
        for _, value in ipairs(mx.randn({ 64 }):totable()) do
            seen[value] = i
        end
    end
    for seed = -60, 60 do
        for offset = 0, 3 do
            local same = 0
            for _, value in ipairs(mx.randn({ 64 }, { seed = seed, offset = offset }):totable()) do
                same = same + (seen[value] and 1 or 0)
            end
            lu.assertTrue(same < 8, ("seed %d, offset %d: %d of 64"):format(seed, offset, same)) -- chance: under 1
        end
    end
end

function TestUnseeded.test_the_stream_begins_anew_and_goes_on()
    mx.manual_seed(7)
    local a, b, c = mx.randn({ 5 }):totable(), mx.rand({ 5 }):totable(), mx.dropout(mx.ones { 50 }, { rate = 0.5 })
    lu.assertNotEquals(a, mx.randn({ 5 }):totable())
    mx.manual_seed(7)
    lu.assertEquals(mx.randn({ 5 }):totable(), a)
    local state = mx.random_state()
    lu.assertEquals(mx.rand({ 5 }):totable(), b)
    mx.random_state(state)
    lu.assertEquals(mx.rand({ 5 }):totable(), b)
    lu.assertEquals(mx.dropout(mx.ones { 50 }, { rate = 0.5 }):totable(), c:totable())
    mx.manual_seed(8)
    lu.assertNotEquals(mx.randn({ 5 }):totable(), a)
    refused({ "'daws'", "'draws'" }, mx.random_state, { seed = 1, daws = 2 })
end

function TestUnseeded.test_the_gradient_has_the_mask()
    local x = mx.ones({ 200 }):requires_grad()
    local y = mx.dropout(x, { rate = 0.5 })
    mx.backward(y:sum())
    lu.assertEquals(x:grad():totable(), y:totable())
end

-- ---- sums, ranges and messages ----

TestSmall = {}

-- 2^80 elements, also where a size of 0 makes them none.
function TestSmall.test_shapes_that_cannot_be_counted()
    local big = 1 << 40
    for _, fn in ipairs {
        function() return mx.zeros { big, big } end, function() return mx.zeros { big, big, 0 } end,
        function() return mx.sum_grad(mx.ones { 1 }, { shape = { big, big }, dim = 1, dtype = "f32" }) end,
        function() return mx.reshape(mx.ones { 2 }, { big, big }) end,
        function() return mx.ones({ 2 }):view(big, big) end,
    } do
        refused({ "is larger than any memory" }, fn)
    end
end

-- Numbers as wide as their column stay apart.
function TestSmall.test_printed_integers_are_apart()
    local text = tostring(mx.tensor({ 7, 2147483647, -2147483648 }, "i32"))
    lu.assertStrContains(text, "7 2147483647 -2147483648")
end

function TestSmall.test_rand_is_half_open()
    for _, dtype in ipairs { "f32", "bf16" } do
        local u = mx.rand { shape = { 1 << 20 }, low = 1, high = 2, seed = 3, dtype = dtype }
        lu.assertTrue(mx.max(u):item() < 2 and -mx.max(-u):item() >= 1, dtype)
    end
    refused({ "low", "high" }, mx.rand, { 2, low = 1, high = 1 })
    refused({ "low", "high" }, mx.rand, { 2, low = 2, high = 1 })
end

-- 2^19 rows that one id, or one index, gathers: each sum in order and in f32 is off by half a percent.
function TestSmall.test_long_sums_of_gradients()
    local n, x = 1 << 19, mx.tensor(0.1):item()
    local table = mx.zeros({ 2, 1 }):requires_grad()
    mx.backward((mx.embedding(table, mx.zeros({ n }, "i32")) * x):sum())
    lu.assertAlmostEquals(table:grad():get(1, 1) / (n * x), 1, 1e-5)
    local row = mx.zeros({ 1, 2 }):requires_grad()
    mx.backward((mx.gather(row, mx.zeros({ 1, n }, "i32"), { dim = 2 }) * x):sum())
    lu.assertAlmostEquals(row:grad():get(1, 1) / (n * x), 1, 1e-5)
end

function TestSmall.test_matmul_with_an_empty_batch_has_a_gradient_of_zeros()
    for _, o in ipairs { {}, { trans_a = true }, { trans_b = true }, { trans_a = true, trans_b = true } } do
        local a = mx.zeros(o.trans_a and { 0, 4, 3 } or { 0, 3, 4 })
        local b = mx.ones(o.trans_b and { 2, 4 } or { 4, 2 }):requires_grad()
        mx.backward(mx.matmul(a, b, o):sum())
        lu.assertEquals(b:grad():totable(), mx.zeros(b:size()):totable())
    end
end

function TestSmall.test_memory_that_the_system_lacks()
    local ok, message = pcall(mx.zeros, { 1 << 50 })
    lu.assertFalse(ok)
    lu.assertStrContains(message, "this process may use")
    lu.assertNil(message:find("limit"))
end

-- ---- ids ----

TestIds = {}

function TestIds.test_ids_count_from_0()
    local x = mx.tensor { { 5, 9, 7 }, { 8, 1, 2 } }
    local largest = mx.argmax(x, { dim = 2 })
    lu.assertEquals(largest:totable(), { 1, 0 })
    lu.assertEquals(mx.gather(x, largest:view(2, 1), { dim = 2 }):totable(), { { 9 }, { 8 } })
    lu.assertEquals(mx.argmax(x):item(), 1)
    lu.assertEquals(mx.embedding(x, mx.argmax(x, { dim = 1 })):totable(), { { 8, 1, 2 }, { 5, 9, 7 }, { 5, 9, 7 } })
    refused({ "3", "0 .. 2", "counts from 0" }, mx.gather, x, mx.tensor({ { 3 } }, "i32"), { dim = 2 })
    refused({ "-1" }, mx.gather, x, mx.tensor({ { -1 } }, "i32"), { dim = 2 })
end

-- ---- a simulated pod ----

TestSimulated = {}

function TestSimulated.test_what_has_no_value_is_no_number()
    mx.sim.start("v5e-1", 1)
    local ok, message = pcall(function()
        local step <close> = mx.step()
        local x, ids = mx.ones { 2, 3 }, mx.zeros({ 4 }, "i32")
        for _, value in ipairs {
            x:sum():item(), x:get(1, 2), x:totable()[2][3], x[1][2], ids[1], ids:get(4), mx.max(ids):item(),
        } do
            lu.assertTrue(value ~= value, tostring(value))
        end
        lu.assertStrContains(tostring(x), "without values")
        lu.assertFalse(x:sum() > 0 or x:sum() <= 0)
    end)
    mx.sim.stop()
    lu.assertTrue(ok, message)
end
