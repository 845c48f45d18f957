--- Random numbers, dropout and constants: the same on every instruction set and with any number of threads, and
-- distributed as they should be.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

TestRandom = {}

function TestRandom.test_full_and_arange()
    local step <close> = mx.step()
    lu.assertEquals(mx.full { shape = { 2, 3 }, value = 0.25, dtype = "f32" }:totable(),
        { { 0.25, 0.25, 0.25 }, { 0.25, 0.25, 0.25 } })
    lu.assertEquals(compare.flat(mx.arange { n = 5, dtype = "i32", start = 3, step = -2 }), { 3, 1, -1, -3, -5 })
    lu.assertEquals(mx.arange { n = 0, dtype = "i32" }:numel(), 0)
    lu.assertEquals(mx.full { shape = {}, value = 7, dtype = "f32" }:item(), 7)
    assert(step)
end

local function moments(t)
    local values, mean, square, fourth = compare.flat(t), 0, 0, 0
    for _, v in ipairs(values) do
        mean = mean + v / #values
    end
    for _, v in ipairs(values) do
        square = square + (v - mean) ^ 2 / #values
        fourth = fourth + (v - mean) ^ 4 / #values
    end
    return mean, square, fourth / square ^ 2
end

-- Over n samples the mean is off by sigma / sqrt(n), the variance by sqrt(2 / n), the kurtosis by sqrt(24 / n) in the
-- root mean square: five times that is never seen by chance.
function TestRandom.test_randn_is_normal()
    local step <close> = mx.step()
    local n = 40000
    local mean, variance, kurtosis = moments(mx.randn({ 200, 200 }, { mean = 3, std = 2, seed = 11 }))
    lu.assertAlmostEquals(mean, 3, 5 * 2 / math.sqrt(n))
    lu.assertAlmostEquals(variance / 4, 1, 5 * math.sqrt(2 / n))
    lu.assertAlmostEquals(kurtosis, 3, 5 * math.sqrt(24 / n))
    assert(step)
end

function TestRandom.test_rand_is_uniform()
    local step <close> = mx.step()
    local t = mx.rand({ 200, 200 }, { low = -1, high = 3, seed = 5 })
    local mean, variance, kurtosis = moments(t)
    lu.assertAlmostEquals(mean, 1, 5 * math.sqrt(16 / 12 / 40000))
    lu.assertAlmostEquals(variance, 16 / 12, 0.03)
    lu.assertAlmostEquals(kurtosis, 1.8, 0.03)
    for _, v in ipairs(compare.flat(t)) do
        lu.assertTrue(v >= -1 and v < 3)
    end
    assert(step)
end

--- Values depend on seed, offset and place only: not on the instruction set, the threads or the size of the tensor.
function TestRandom.test_values_are_placed()
    local step <close> = mx.step()
    local reference = compare.flat(mx.randn({ 1001 }, { seed = 3 }))
    local threads = mx.threads()
    compare.on_each_isa(function(isa)
        for _, n in ipairs { 1, 2 } do
            mx.threads(n)
            lu.assertEquals(compare.flat(mx.randn({ 1001 }, { seed = 3 })), reference, isa .. ", threads " .. n)
        end
        mx.threads(threads)
    end)
    lu.assertEquals(compare.flat(mx.randn({ 7, 11 }, { seed = 3 })), { table.unpack(reference, 1, 77) })
    lu.assertNotEquals(compare.flat(mx.randn({ 1001 }, { seed = 4 })), reference)
    lu.assertNotEquals(compare.flat(mx.randn({ 1001 }, { seed = 3, offset = 1 })), reference)
    assert(step)
end

--- A part of the whole is what one would cut out of it, bit for bit; the C test has all paths.
function TestRandom.test_parts_of_the_whole()
    local step <close> = mx.step()
    for _, dtype in ipairs { "f32", "bf16" } do
        local o = { seed = 3, std = 0.1, mean = 1, dtype = dtype }
        local whole = mx.randn({ 9, 33, 70 }, o)
        for _, cut in ipairs {
            { 1, 9, 1, 33, 1, 70 }, { 3, 4, 1, 33, 1, 70 }, { 1, 9, 5, 20, 1, 70 }, { 1, 9, 1, 33, 36, 35 },
            { 2, 3, 30, 4, 70, 1 }, { 9, 1, 33, 1, 70, 1 }, { 2, 0, 1, 33, 1, 70 },
        } do
            o.of, o.start = { 9, 33, 70 }, { cut[1], cut[3], cut[5] }
            local part, expected = mx.randn({ cut[2], cut[4], cut[6] }, o), whole
            for d = 1, 3 do
                expected = mx.narrow(expected, { dim = d, start = cut[2 * d - 1], length = cut[2 * d] })
            end
            lu.assertEquals(part:dtype(), dtype)
            lu.assertEquals(compare.flat(part), compare.flat(expected), table.concat(cut, " "))
        end
        o.of, o.start = nil, nil
    end
    local function refused(text, shape, of, start)
        lu.assertErrorMsgContains(text, mx.randn, shape, { seed = 1, of = of, start = start })
    end
    refused("shape, of and start have 2, 1 and 2 entries", { 2, 3 }, { 5 }, { 1, 1 })
    refused("shape, of and start have 1, 1 and 0 entries", { 2 }, { 5 }, nil)
    refused("dimension 2: 3 elements from 4 on are not within the 5 of the whole", { 2, 3 }, { 5, 5 }, { 1, 4 })
    refused("dimension 1: 2 elements from 0 on are not within the 5 of the whole", { 2 }, { 5 }, { 0 })
    lu.assertEquals(mx.randn({ seed = 1, of = { 5 }, start = { 4 }, 2 }):size(), { 2 })
    assert(step)
end

function TestRandom.test_dropout()
    compare.on_each_isa(function(isa)
        for _, dtype in ipairs { "f32", "bf16" } do
            local step <close> = mx.step()
            local rate, n = 0.25, 20001
            local x = (mx.rand({ n }, { seed = 1 }) + 1):to(dtype):requires_grad()
            local y = mx.dropout(x, { rate = rate, seed = 42, offset = 0 })
            mx.backward(mx.sum(mx.mul(y:to("f32"), mx.full { shape = { n }, value = 3, dtype = "f32" })))
            local kept, g, given, out = 0, compare.flat(x:grad()), compare.flat(x), compare.flat(y)
            for i = 1, n do
                if out[i] ~= 0 then
                    kept = kept + 1
                    lu.assertAlmostEquals(out[i], given[i] / (1 - rate), dtype == "f32" and 1e-6 or 0.02)
                    lu.assertAlmostEquals(g[i], 3 / (1 - rate), dtype == "f32" and 1e-6 or 0.02)
                else
                    lu.assertEquals(g[i], 0)
                end
            end
            lu.assertAlmostEquals(kept / n, 1 - rate, 5 * math.sqrt(rate * (1 - rate) / n), isa)
            local again = mx.dropout(x, { rate = rate, seed = 42, offset = 0 })
            lu.assertTrue(compare.identical(again, y), "the same seed drops the same elements")
            assert(step)
        end
    end)
end

function TestRandom.test_dropout_of_numbered_rows()
    local step <close> = mx.step()
    local x = mx.full({ 2, 3, 70 }, { value = 1 }):requires_grad()
    local function rows_of(numbers)
        local y = mx.dropout(x, numbers, { rate = 0.5, seed = 42 })
        local rows = {}
        for r = 1, 6 do
            rows[r] = compare.flat(mx.narrow(y:view(6, 70), { dim = 1, start = r, length = 1 }))
        end
        return rows, y
    end
    local rows, y = rows_of(mx.tensor({ { 4, 0, 1 }, { 4, 9, 2 } }, "i32"))
    lu.assertEquals(rows[1], rows[4], "one number, one mask")
    for r = 2, 6 do
        lu.assertTrue(r == 4 or table.concat(rows[r]) ~= table.concat(rows[1]))
    end
    local moved = rows_of(mx.tensor({ { 2, 9, 4 }, { 1, 0, 4 } }, "i32"))
    for now, before in pairs({ [6] = 1, [3] = 1, [5] = 2, [4] = 3, [2] = 5, [1] = 6 }) do
        lu.assertEquals(moved[now], rows[before])
    end
    -- The stream of a row is offset + its number.
    local third = mx.dropout(mx.ones({ 70 }), { rate = 0.5, seed = 42, offset = 1 })
    lu.assertEquals(compare.flat(third), rows[3])
    mx.backward(y:sum())
    lu.assertTrue(compare.identical(x:grad(), y:detach()), "x is 1, so its gradient is the mask of y")
    lu.assertErrorMsgContains("rows", mx.dropout, x, mx.zeros({ 2, 4 }, "i32"), { rate = 0.5, seed = 1 })
    lu.assertErrorMsgContains("rows", mx.dropout, x, mx.zeros({ 2, 3 }), { rate = 0.5, seed = 1 })
    assert(step)
end

function TestRandom.test_dropout_of_nothing()
    local step <close> = mx.step()
    local x = mx.randn({ 3, 5 }, { seed = 2 })
    lu.assertTrue(compare.identical(mx.dropout(x, { rate = 0, seed = 1 }), x))
    lu.assertEquals(mx.dropout(mx.zeros { 0, 3 }, { rate = 0.5, seed = 1 }):numel(), 0)
    lu.assertErrorMsgContains("rate", mx.dropout, x, { rate = 1.5, seed = 1 })
    assert(step)
end
