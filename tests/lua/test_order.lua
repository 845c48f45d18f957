--- What the golden cases of tests/lua/test_ops.lua cannot say of ordering, indexing and rearranging operations.

local mx = require "mx"
local lu = require "luaunit"
local util = require "mx.util"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

TestParts, TestValuesNeeded, TestDraws = {}, {}, {}

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

--- Dtypes of 8 bytes: the same order as that of pairs of value and place, for short and long lines.
function TestParts.test_sorting_of_8_bytes()
    local step <close> = mx.step()
    for _, dtype in ipairs { "i64", "f64" } do
        for _, n in ipairs { 5, 70, 70000 } do
            local values, pairs_of = {}, {}
            local ids = mx.randint({ n }, { high = 1 << 20, seed = n }):totable()
            for i, low in ipairs(ids) do -- few upper halves, many lower ones; then equal values
                local high = (low % 7 - 3) << 40
                values[i] = i % 5 == 0 and (high | 5) or dtype == "i64" and (high | low) or high + low / 2 ^ 20
                pairs_of[i] = { values[i], i - 1 }
            end
            table.sort(pairs_of, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
            local sorted, at = mx.sort(mx.tensor(values, dtype))
            local most, best = mx.topk(mx.tensor(values, dtype), { k = 3 })
            sorted, at = sorted:totable(), at:totable()
            for i, pair in ipairs(pairs_of) do
                if sorted[i] ~= pair[1] or at[i] ~= pair[2] then
                    lu.assertEquals({ dtype, i, sorted[i], at[i] }, { dtype, i, pair[1], pair[2] })
                end
            end
            lu.assertEquals(most:get(1), pairs_of[n][1])
            lu.assertEquals(values[best:get(1) + 1], pairs_of[n][1])
        end
    end
    local odd = mx.tensor({ 0, 1 / 0, -1 / 0, 0 / 0, -0.0, -1e-300 }, "f64")
    lu.assertEquals(mx.argsort(odd):totable(), { 2, 5, 0, 4, 1, 3 })
    lu.assertEquals(mx.argsort(odd, { descending = true }):totable(), { 3, 1, 0, 4, 5, 2 })
    assert(step)
end

--- Short lines, lines sorted by digits of 11 bits and of 8, and one that threads share.
function TestParts.test_sorted_lines_are_in_order_and_stable()
    local step <close> = mx.step()
    local cases = { { "f32", 33 }, { "f32", 3000 }, { "i32", 140000 }, { "bf16", 3000 }, { "u8", 70000 }, { "i8", 70 } }
    for _, case in ipairs(cases) do
        local dtype, n = table.unpack(case)
        local x = (mx.randn { shape = { n }, seed = n } * 50):to(dtype)
        for _, descending in ipairs { false, true } do
            local sorted, ids = mx.sort(x, { descending = descending })
            lu.assertTrue(compare.identical(mx.gather(x, ids, { dim = 1 }), sorted))
            local sum, last, at = 0, sorted:get(1), -1
            sorted, ids = sorted:totable(), ids:totable()
            for i, value in ipairs(sorted) do
                local after = descending and value < last or not descending and value > last
                if not (after or (value == last and ids[i] > at)) then
                    lu.fail(("%s, %d: value %d is %g after %g"):format(dtype, n, i, value, last))
                end
                sum, last, at = sum + ids[i], value, ids[i]
            end
            lu.assertEquals(sum, n * (n - 1) // 2, "each id once")
        end
    end
    assert(step)
end

--- An index of fewer lines and columns than x, of which some are done together.
function TestParts.test_scatter_add_to_many_columns()
    local step <close> = mx.step()
    for dim = 1, 2 do
        local ids = mx.randint({ 60, 120 }, { high = 60, seed = 2 })
        local y = mx.round(mx.randn { shape = { 60, 120 }, seed = 5 } * 4)
        for _, dtype in ipairs { "f32", "bf16" } do
            local sums = mx.scatter_add(mx.ones({ 70, 130 }):to(dtype), ids, y:to(dtype), { dim = dim }):totable()
            local expected, at, add = mx.ones({ 70, 130 }):totable(), ids:totable(), y:totable()
            for i = 1, 60 do
                for j = 1, 120 do
                    local r, c = dim == 1 and at[i][j] + 1 or i, dim == 2 and at[i][j] + 1 or j
                    expected[r][c] = expected[r][c] + add[i][j]
                end
            end
            lu.assertEquals(sums, expected)
        end
    end
    assert(step)
end

-- Maxima, minima and means of lines, as Lua computes them; NaN is a value.
local function reduced(x, at, y, dim, reduce, include_self)
    local lines, names = {}, {}
    for i = 1, #at do
        for j = 1, #at[1] do
            local r, c = dim == 1 and at[i][j] + 1 or i, dim == 2 and at[i][j] + 1 or j
            local k = (r - 1) * #x[1] + c
            lines[k] = lines[k] or (include_self and { x[r][c] } or {})
            names[k] = { r, c }
            table.insert(lines[k], y[i][j])
        end
    end
    for k, line in pairs(lines) do
        local sum = 0
        for _, value in ipairs(line) do
            sum = sum + value
        end
        x[names[k][1]][names[k][2]] = reduce == "mean" and sum / #line or math[reduce](table.unpack(line))
    end
    return x
end

local function check_scatter_reduce(size, part, dtype, dim)
    local step <close> = mx.step()
    local ids = mx.randint(part, { high = part[dim], seed = 2 })
    local x = mx.round(mx.randn { shape = size, seed = 4 } * 40):to(dtype)
    local y = mx.round(mx.randn { shape = part, seed = 5 } * 40):to(dtype)
    for _, reduce in ipairs { "max", "min", mx.dtypes[dtype].is_real and "mean" or nil } do
        for _, include_self in ipairs { true, false } do
            local expected = reduced(x:totable(), ids:totable(), y:totable(), dim, reduce, include_self)
            expected = mx.tensor(expected, "f64"):to(dtype)
            compare.on_each_isa(function(isa)
                local how = { dim = dim, reduce = reduce, include_self = include_self }
                lu.assertTrue(compare.identical(mx.scatter_reduce(x, ids, y, how), expected),
                    ("%s %s %s along %d"):format(isa, dtype, reduce, dim))
            end)
        end
    end
    assert(step)
end

function TestParts.test_scatter_reduce()
    check_scatter_reduce({ 3, 40000 }, { 3, 40000 }, "f32", 2)
    for dim = 1, 2 do
        check_scatter_reduce({ 70, 130 }, { 60, 120 }, "f32", dim)
        check_scatter_reduce({ 70, 130 }, { 61, 130 }, "bf16", dim)
        check_scatter_reduce({ 7, 5 }, { 7, 5 }, "f64", dim)
        check_scatter_reduce({ 70, 130 }, { 70, 130 }, "i32", dim)
        check_scatter_reduce({ 33, 70 }, { 9, 70 }, "i64", dim)
        check_scatter_reduce({ 33, 70 }, { 33, 9 }, "u8", dim)
        check_scatter_reduce({ 33, 70 }, { 9, 70 }, "i8", dim)
    end
end

--- Long lines are first searched for a number that at least k elements are beyond: the result is that of sorting.
function TestParts.test_topk_of_long_lines_are_the_first_of_the_sorted_line()
    local step <close> = mx.step()
    local n = 5003
    local lines = {
        random = mx.randn { shape = { n }, seed = 1 },
        ties = mx.round(mx.randn { shape = { n }, seed = 2 } * 2),
        equal = mx.zeros { n },
        rising = mx.arange(n),
        falling = -mx.arange(n),
        masked = mx.where(mx.arange(n):lt(20), mx.arange(n), mx.zeros { n } - 1 / 0),
    }
    local odd = mx.randn({ shape = { n }, seed = 3 }):totable()
    for i = 7, n, 41 do -- in other places of each part of the line: their lengths are multiples of 32
        odd[i] = ({ 0 / 0, 1 / 0, -1 / 0, -0.0 })[i // 41 % 4 + 1]
    end
    lines.odd = mx.tensor(odd)
    local isa = mx.isa()
    for _, path in ipairs { isa, "portable" } do
        mx.isa(path)
        for name, line in util.sorted_pairs(lines) do
            for _, dtype in ipairs { "f32", "bf16" } do
                for _, least in ipairs { false, true } do
                    local x = line:to(dtype)
                    local sorted, places = mx.sort(x, { descending = not least })
                    for _, k in ipairs { 1, 50, 128 } do
                        local values, ids = mx.topk(x, { k = k, smallest = least })
                        local what = ("%s %s %s %d, smallest: %s"):format(path, name, dtype, k, least)
                        local first = { dim = 1, start = 1, length = k }
                        lu.assertTrue(compare.identical(ids, mx.narrow(places, first)), what)
                        if name ~= "odd" then -- whose NaNs are no equals
                            lu.assertTrue(compare.identical(values, mx.narrow(sorted, first)), what)
                        end
                    end
                end
            end
        end
    end
    mx.isa(isa)
    assert(step)
end

--- Sizes that depend on values: a simulated pod has shapes only.
-- Of several blocks of 64 and chunks of 16,384 elements, on every path and any number of threads.
function TestParts.test_nonzero_and_one_hot_of_many_elements()
    local before = mx.threads()
    compare.on_each_isa(function(isa)
        for dtype in ("f32 bf16 f64 i64 i32 i8 u8"):gmatch "%S+" do
            for _, size in ipairs { { 40001 }, { 7, 3, 1237 }, { 700, 70 }, { 200, 1 }, { 0, 3 }, { 1 } } do
                local x = mx.randint(size, { high = 5, seed = 4 })
                local want = {}
                for i, value in ipairs(compare.flat(x)) do
                    local at, rest = {}, i - 1
                    for d = value == 1 and #size or 0, 1, -1 do
                        at[d], rest = rest % size[d], rest // size[d]
                    end
                    table.move(at, 1, #at, #want + 1, want)
                end
                mx.threads(#size)
                local found = mx.nonzero(x:eq(1):to(dtype) * (dtype:match "^[fbi]" and -1 or 1))
                lu.assertEquals(found:size(), { #want // #size, #size })
                lu.assertEquals(compare.flat(found), want, isa .. " " .. dtype)
            end
            for _, classes in ipairs { 3, 64, 5000 } do -- 5,000: no row fits the room
                local ids = mx.randint({ 70 }, { high = classes, seed = 3 })
                local y = mx.one_hot(ids, { classes = classes, dtype = dtype })
                lu.assertEquals(compare.flat(y:to("f32"):argmax { dim = 2 }), compare.flat(ids), dtype)
                lu.assertEquals(y:to("f32"):sum():item(), 70)
            end
        end
    end)
    mx.threads(before)
    lu.assertEquals(mx.nonzero(mx.tensor { -0.0, 0 / 0, 2 }):totable(), { { 1 }, { 2 } })
end

-- Lines whose numbers differ in their last bits, are equal, or are no numbers: the order is that of sort.
function TestParts.test_topk_of_short_lines_is_the_first_of_the_sorted_line()
    compare.on_each_isa(function(isa)
        for kind, make in pairs {
            close = function(shape) return 1 + mx.randint(shape, { high = 40, seed = 1 }):to("f32") * 2 ^ -23 end,
            equal = function(shape) return mx.randint(shape, { low = -2, high = 3, seed = 2 }):to("f32") end,
            special = function(shape)
                local x = mx.randn(shape, { seed = 3 })
                return mx.log(x) * mx.sign(mx.randn(shape, { seed = 4 })) / mx.round(x)
            end,
        } do
            for _, dtype in ipairs { "f32", "bf16" } do
                for _, n in ipairs { 17, 64, 300 } do
                    local x = make({ 37, n }):to(dtype)
                    for _, k in ipairs { 1, 2, 3, 8, 13 } do
                        for _, least in ipairs { false, true } do
                            local values, ids = mx.topk(x, { k = k, smallest = least })
                            local sorted, order = mx.sort(x, { descending = not least })
                            local what = ("%s, %s, %d of %d on %s"):format(kind, dtype, k, n, isa)
                            lu.assertEquals(compare.flat(ids), compare.flat(order[{ {}, { 1, k } }]), what)
                            lu.assertEquals(tostring(values), tostring(sorted[{ {}, { 1, k } }]:clone()), what)
                        end
                    end
                end
            end
        end
    end)
end

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

function TestValuesNeeded.test_factorizations_on_a_simulated_pod()
    mx.sim.start("v5e-1", 1)
    local ok, message = pcall(function()
        local rows = mx.zeros({ 9, 4 }):requires_grad()
        local bags = mx.embedding_bag(rows, mx.zeros({ 3, 2 }, "i32"))
        mx.backward(bags:sum()) -- has a cost and a gradient there
        assert(rows:grad():size(1) == 9)
        return mx.linalg.cholesky(mx.zeros { 2, 2 })
    end)
    mx.sim.stop()
    lu.assertFalse(ok)
    lu.assertStrContains(message, "linalg_cholesky: a simulated pod has no rate for factorizations")
end

-- ---- random draws ----

local N = 20000

--- Five standard deviations of a mean of n values with this variance.
local function bound(variance, n)
    return 5 * math.sqrt(variance / n)
end

local function mean_and_variance(values)
    local sum, squares = 0, 0
    for _, x in ipairs(values) do
        sum, squares = sum + x, squares + x * x
    end
    local mean = sum / #values
    return mean, squares / #values - mean * mean
end

--- Counts of each value, as shares.
local function shares(values)
    local found = {}
    for _, x in ipairs(values) do
        found[x] = (found[x] or 0) + 1 / #values
    end
    return found
end

--- The same numbers on every path and any number of threads, with a seed; others with another seed or without.
local function check_stream(draw)
    local reference, before = nil, mx.threads()
    compare.on_each_isa(function(isa)
        for _, threads in ipairs { 1, 3 } do
            mx.threads(threads)
            local values = compare.flat(draw { seed = 5 })
            reference = reference or values
            lu.assertEquals(values, reference, isa)
        end
    end)
    mx.threads(before)
    lu.assertNotEquals(compare.flat(draw { seed = 6 }), reference)
    lu.assertNotEquals(compare.flat(draw { seed = 5, offset = 1 }), reference)
    mx.manual_seed(3)
    local first, second = compare.flat(draw {}), compare.flat(draw {})
    lu.assertNotEquals(first, second)
    mx.manual_seed(3)
    lu.assertEquals(compare.flat(draw {}), first)
    return reference
end

local function with(options, more)
    for name, value in pairs(more) do
        options[name] = value
    end
    return options
end

function TestDraws.test_randint()
    local step <close> = mx.step()
    local values = check_stream(function(o) return mx.randint({ N }, with(o, { low = -2, high = 4 })) end)
    local found = shares(values)
    for x = -2, 3 do
        lu.assertAlmostEquals(found[x], 1 / 6, bound(5 / 36, N))
    end
    lu.assertNil(found[4])
    local wide = mx.randint({ 200000 }, { low = -2 ^ 31 | 0, high = 2 ^ 31 | 0, seed = 1 }):to("f32") * 2 ^ -31
    lu.assertAlmostEquals(wide:mean():item(), 0, bound(1 / 3, 200000))
    lu.assertAlmostEquals(mx.square(wide):mean():item(), 1 / 3, bound(4 / 45, 200000))
    lu.assertEquals(mx.randint({ 3 }, { high = 256, dtype = "u8", seed = 1 }):dtype(), "u8")
    lu.assertErrorMsgContains("no integer is in [low, high) = [3, 3)", mx.randint, { 2 }, { low = 3, high = 3 })
    lu.assertErrorMsgContains("high - 1 = 256 is no value of u8", mx.randint, { 2 }, { high = 257, dtype = "u8" })
    lu.assertErrorMsgContains("is no integer; mx.rand draws floats", mx.randint, { 2 }, { high = 2, dtype = "f32" })
    lu.assertErrorMsgContains("'high' must be given", mx.randint, { 2 })
    assert(step)
end

function TestDraws.test_bernoulli()
    local step <close> = mx.step()
    local p = mx.full({ N }, 0.3)
    local found = shares(check_stream(function(o) return mx.bernoulli(p, o) end))
    lu.assertAlmostEquals(found[1], 0.3, bound(0.21, N))
    lu.assertAlmostEquals(found[0] + found[1], 1, 1e-6)
    local edges = mx.bernoulli(mx.tensor { 0, 1 }, { seed = 1, dtype = "u8" })
    lu.assertEquals(edges:totable(), { 0, 1 })
    lu.assertEquals(edges:dtype(), "u8")
    lu.assertEquals(mx.bernoulli(p:to("bf16"), { seed = 1 }):dtype(), "bf16")
    local w = mx.full({ 4 }, 0.5):requires_grad()
    mx.backward(mx.sum(mx.bernoulli(w, { seed = 1 }) + w * 3))
    lu.assertEquals(w:grad():totable(), { 3, 3, 3, 3 }, "a draw is a constant")
    lu.assertErrorMsgContains("p = 1.5 at [2] is no probability", mx.bernoulli, mx.tensor { 1, 1.5 })
    lu.assertErrorMsgContains("at [1] is no probability", mx.bernoulli, mx.tensor { 0 / 0 })
    assert(step)
end

--- Mean and variance of the standard normal between low and high, in closed form: with the density f and Z the share
-- between them, the mean m is (f(low) - f(high)) / Z, the variance 1 + (low f(low) - high f(high)) / Z - m^2.
function TestDraws.test_truncated_normal()
    local step <close> = mx.step()
    check_stream(function(o) return mx.truncated_normal({ N }, o) end)
    -- {low, high, mean, variance}
    for _, case in ipairs {
        { -2, 2, 0, 0.7737413035499232 },
        { 0, 1, 0.45986222928642656, 0.07965182484851119 },
        { 5, 6, 5.183147090477162, 0.02945243076854709 },
        { -6, -5, -5.183147090477162, 0.02945243076854709 },
    } do
        local low, high, mean, variance = table.unpack(case)
        for _, dtype in ipairs { "f32", "bf16" } do
            local o = { mean = 3, std = 0.5, low = low, high = high, seed = 7, dtype = dtype }
            local t = mx.truncated_normal({ N }, o)
            local found, spread = mean_and_variance(compare.flat(t))
            local rounding = dtype == "bf16" and 2 ^ -8 * 6 or 1e-6
            lu.assertAlmostEquals(found, 3 + 0.5 * mean, bound(0.25 * variance, N) + rounding / 10)
            lu.assertAlmostEquals(spread, 0.25 * variance, 0.25 * bound(3 * variance * variance, N) + rounding ^ 2)
            lu.assertTrue(mx.min(t):item() >= 3 + 0.5 * low and mx.max(t):item() < 3 + 0.5 * high)
        end
    end
    lu.assertErrorMsgContains("expected a positive std", mx.truncated_normal, { 2 }, { std = 0 })
    lu.assertErrorMsgContains("expected a positive std, and f32 numbers between", mx.truncated_normal, { 2 },
        { low = 2, high = 1 })
    assert(step)
end

function TestDraws.test_permutation()
    local step <close> = mx.step()
    local values = check_stream(function(o) return mx.permutation(with(o, { n = 5000 })) end)
    local sorted = table.move(values, 1, #values, 1, {})
    table.sort(sorted)
    for i, x in ipairs(sorted) do
        lu.assertEquals(x, i - 1)
    end
    local first = {} -- each of 4 numbers comes first equally often
    for seed = 1, 2000 do
        first[seed] = mx.permutation({ n = 4, seed = seed })[1]
    end
    local found = shares(first)
    for x = 0, 3 do
        lu.assertAlmostEquals(found[x], 1 / 4, bound(3 / 16, 2000))
    end
    lu.assertEquals(mx.permutation({ n = 0 }):size(), { 0 })
    lu.assertErrorMsgContains("n = -1 must be in 0 .. 2147483647", mx.permutation, { n = -1 })
    assert(step)
end

function TestDraws.test_multinomial()
    local step <close> = mx.step()
    local p = mx.tensor { { 0, 1, 0, 3, 4, 0 }, { 5, 0, 0, 0, 0, 5 } }
    local rows = check_stream(function(o) return mx.multinomial(p, with(o, { n = N, replacement = true })) end)
    local found = shares(table.move(rows, 1, N, 1, {}))
    for id, share in pairs { [1] = 1 / 8, [3] = 3 / 8, [4] = 1 / 2 } do
        lu.assertAlmostEquals(found[id], share, bound(share * (1 - share), N))
    end
    lu.assertNil(found[0] or found[2] or found[5])
    lu.assertAlmostEquals(shares(table.move(rows, N + 1, 2 * N, 1, {}))[5], 1 / 2, bound(1 / 4, N))

    -- In rows of several blocks: weights at 4 of 1,000 places. One draw needs no other.
    local places, wide = { [0] = 0.1, [63] = 0.2, [64] = 0.3, [999] = 0.4 }, {}
    for i = 1, 1000 do
        wide[i] = places[i - 1] or 0
    end
    for _, o in ipairs { { n = 4, replacement = true }, { n = 1 } } do
        for _, dtype in ipairs { "f32", "bf16" } do
            local x = mx.expand(mx.tensor(wide, dtype), { 1000, 1000 })
            found = shares(compare.flat(mx.multinomial(x, with({ seed = 2 }, o))))
            local sum = 0
            for id, share in pairs(places) do
                lu.assertAlmostEquals(found[id], share, bound(share * (1 - share), 1000) + 2 ^ -8)
                sum = sum + found[id]
            end
            lu.assertAlmostEquals(sum, 1, 1e-9)
        end
    end

    check_stream(function(o) return mx.multinomial(mx.ones { 50, 9 }, with(o, { n = 4 })) end)
    -- Two of three without replacement: first i with p_i, then j with p_j / (1 - p_i).
    local weights = { 0.5, 0.3, 0.2 }
    local pairs_drawn = {}
    for r, row in ipairs(mx.multinomial(mx.expand(mx.tensor(weights), { N, 3 }), { n = 2, seed = 4 }):totable()) do
        pairs_drawn[r] = row[1] * 3 + row[2]
    end
    found = shares(pairs_drawn)
    for i = 0, 2 do
        for j = 0, 2 do
            local share = i == j and 0 or weights[i + 1] * weights[j + 1] / (1 - weights[i + 1])
            lu.assertAlmostEquals(found[i * 3 + j] or 0, share, bound(share * (1 - share), N))
        end
    end
    lu.assertErrorMsgContains("p = -1 at [1, 2] is no weight", mx.multinomial, mx.tensor { { 1, -1 } }, { n = 1 })
    lu.assertErrorMsgContains("row 2 has 1 weights that are not 0; expected 2 or more", mx.multinomial,
        mx.tensor { { 1, 1 }, { 0, 1 } }, { n = 2 })
    lu.assertErrorMsgContains("n = 3 must be in 0 .. 2, the number of weights; replacement = true draws more",
        mx.multinomial, mx.ones { 2 }, { n = 3 })
    assert(step)
end
