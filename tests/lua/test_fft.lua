--- mx.fft, mx.rfft and mx.irfft beyond the values of test_ops.lua: long rows, bits, refusals.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

TestFft = {}

local function far(a, b)
    return (a - b):abs():max():item()
end

-- Lengths of several factors and of Bluestein's algorithm, short and long; more rows than are transformed together, and
-- one.
local SIZES = {
    { 1, 65536 }, { 9, 4099 }, { 1, 10007 }, { 17, 3000 }, { 3, 2 * 4099 }, { 33, 1023 },
    { 2, 6561 }, { 2, 2 * 23 * 47 },
}

function TestFft.test_there_and_back()
    for _, size in ipairs(SIZES) do
        local x = mx.randn(size, { seed = 1 })
        local re, im = mx.rfft(x)
        -- Parseval: the energy of both halves of the frequencies is n times that of x.
        local twice = mx.full({ re:size(2) }, 2)
        twice:set(1, 1)
        if size[2] % 2 == 0 then
            twice:set(re:size(2), 1)
        end
        local energy = ((re:square() + im:square()) * twice):sum { dim = 2 } / size[2]
        lu.assertTrue(far(energy / x:square():sum { dim = 2 }, mx.ones(size[1])) < 1e-5)
        lu.assertTrue(far(mx.irfft(re, im, { n = size[2] }), x) < 1e-5, table.concat(size, " x "))
        local wide = x:to("f64")
        local wide_re, wide_im = mx.rfft(wide)
        lu.assertTrue(far(mx.irfft(wide_re, wide_im, { n = size[2] }), wide) < 1e-13)
        lu.assertTrue(far(re:to("f64"), wide_re) < 1e-6 * wide_re:abs():max():item())
        local back_re, back_im = mx.fft(re, im)
        back_re, back_im = mx.fft(back_re, back_im, { inverse = true })
        lu.assertTrue(far(back_re, re) < 1e-5 * re:abs():max():item())
        lu.assertTrue(far(back_im, im) < 1e-5 * im:abs():max():item())
    end
end

-- Rows longer and shorter than n, and some of the frequencies, against the sums themselves in f64.
function TestFft.test_sums()
    for _, n in ipairs { 1, 2, 96, 254, 999, 1031, 2 * 1031, 2 * 23 * 47, 2187 } do
        local t, half = mx.arange(n, { dtype = "f64" }), n // 2 + 1
        local angle = mx.fmod(t[{ { 1, half } }]:view { half, 1 } * t:view { 1, n }, n) * (2 * math.pi / n)
        local cos, sin = angle:cos(), angle:sin()
        for _, have in ipairs { n, math.max(1, n - 3), n // 2 + 1, n + 5 } do
            local x = mx.randn({ 3, have }, { seed = have }):to("f64")
            local whole = have < n and mx.pad(x, { 0, n - have }) or x[{ {}, { 1, n } }]
            local some = math.max(1, half - 2)
            local re, im = mx.rfft(x, { n = n })
            local few = mx.rfft(x, { n = n, frequencies = some })
            lu.assertTrue(far(re, mx.matmul(whole, cos.T)) < 1e-11, n .. " of " .. have)
            lu.assertTrue(far(im, -mx.matmul(whole, sin.T)) < 1e-11, n .. " of " .. have)
            lu.assertEquals(far(few, re[{ {}, { 1, some } }]), 0)
            local back = mx.irfft(re, im, { n = n, size = have })
            local expected = have > n and mx.pad(whole, { 0, have - n }) or whole[{ {}, { 1, have } }]
            lu.assertTrue(far(back, expected) < 1e-13, n .. " of " .. have)
            local forth_re, forth_im = mx.fft(whole, whole:flip { dim = 2 })
            lu.assertTrue(far(forth_re[{ {}, { 1, half } }],
                mx.matmul(whole, cos.T) + mx.matmul(whole:flip { dim = 2 }, sin.T)) < 1e-11)
            local there_re, there_im = mx.fft(forth_re, forth_im, { inverse = true })
            lu.assertTrue(far(there_re, whole) < 1e-13 and far(there_im, whole:flip { dim = 2 }) < 1e-13)
        end
    end
end

-- A row has the same bits beside others, with any number of threads and on every instruction set.
function TestFft.test_bits()
    local threads = mx.threads()
    for _, dtype in ipairs { "f32", "f64" } do
        for _, size in ipairs(SIZES) do
            local x = mx.randn({ math.max(size[1], 5), size[2] }, { seed = 2 }):to(dtype)
            local re, im = mx.rfft(x)
            local back, first = mx.irfft(re, im, { n = size[2] }), mx.rfft(x[{ { 1, 1 } }])
            lu.assertEquals(mx.all(first:eq(re[{ { 1, 1 } }])):item(), 1)
            compare.on_each_isa(function(isa)
                for n = 1, 3 do
                    mx.threads(n)
                    local re1, im1 = mx.rfft(x)
                    local same = mx.all(re1:eq(re)):item() == 1 and mx.all(im1:eq(im)):item() == 1
                        and mx.all(mx.irfft(re1, im1, { n = size[2] }):eq(back)):item() == 1
                    mx.threads(threads)
                    lu.assertTrue(same, isa .. " " .. dtype .. " " .. table.concat(size, " x "))
                end
            end)
        end
    end
end

function TestFft.test_a_row_of_nan_stays_alone()
    local x = mx.ones(8, 12)
    x[3] = 0 / 0
    lu.assertEquals(mx.isnan((mx.rfft(x))):sum { dim = 2 }:totable(), { 0, 0, 7, 0, 0, 0, 0, 0 })
end

function TestFft.test_a_gradient_of_one_part()
    local x = mx.randn { 2, 10 }:to("f64")
    lu.assertTrue(mx.gradcheck(function(t)
        local _, im = mx.rfft(t)
        return im:square():sum()
    end, x))
    lu.assertTrue(mx.gradcheck(function(t)
        local re = mx.fft(t, t * 2)
        return re:square():sum()
    end, x))
    local w = x:requires_grad()
    local re = mx.rfft(w)
    local g = mx.grad(re:exp():sum(), w, { record = true })
    lu.assertTrue(far(mx.grad(g:square():sum(), w), mx.zeros(2, 10, "f64")) > 0)
end

function TestFft.test_refusals()
    local function refused(words, fn)
        lu.assertErrorMsgContains(words, fn)
    end
    refused("'x' must be f32 or f64", function() return mx.rfft(mx.ones({ 4 }, "bf16")) end)
    refused("n is 0; expected 1 to", function() return mx.rfft(mx.zeros(2, 0)) end)
    refused("n is 0; expected 1 to", function() return mx.irfft(mx.zeros(2, 1)) end)
    refused("frequencies is 4; expected 1 to 3", function() return mx.rfft(mx.zeros(4), { frequencies = 4 }) end)
    refused("4 frequencies are given, but n = 4 has only 3", function()
        return mx.irfft(mx.zeros(4), mx.zeros(4), { n = 4 })
    end)
    refused("'im' must be (4)", function() return mx.fft(mx.zeros(4), mx.zeros(3)) end)
    refused("must be f32", function() return mx.fft(mx.zeros(4), mx.zeros({ 4 }, "f64")) end)
end
