--- NVFP4: codes, scales and products, against a second implementation (tests/golden/make_golden_nvfp4.py), and what is
--- refused.

local mx = require "mx"
local lu = require "luaunit"

local golden = assert(mx.io.h5_open("tests/golden/nvfp4.h5"))
local function get(name)
    return golden:read(name):keep()
end

TestNvfp4 = {}

local FORMS = {
    rows = {}, columns = { trans = true }, square = { square = true },
    square_columns = { square = true, trans = true }, hadamard = { trans = true, hadamard = true },
}

-- To the bit, from f32 and from bf16.
function TestNvfp4.test_codes()
    local x = get("x")
    for name, form in pairs(FORMS) do
        for _, t in ipairs { x, x:to("bf16") } do
            local codes, scales, scale = mx.nvfp4_quantize(t, form)
            lu.assertEquals({ codes:dtype(), scales:dtype() }, { "u8", "e4m3" })
            lu.assertEquals(scale:item(), get(name .. ".scale"):item(), name)
            lu.assertEquals(scales:to("f32"):totable(), get(name .. ".scales"):totable(), name)
            lu.assertEquals(codes:totable(), get(name .. ".codes"):totable(), name)
        end
    end
end

-- All three products, rounded to nearest. Ours sum in f32 and round once to bf16.
function TestNvfp4.test_products()
    for _, hadamard in ipairs { false, true } do
        local x, w = get("px"):requires_grad(), get("pw"):requires_grad()
        x:zero_grad()
        w:zero_grad()
        local y = mx.nvfp4_matmul(x, w, { hadamard = hadamard })
        mx.backward(mx.sum(y * get("pdy"):to("bf16")))
        for name, t in pairs { y = y:detach():to("f32"), dx = x:grad(), dw = w:grad() } do
            local want = get(name == "dw" and hadamard and "rotated.dw" or name)
            local off = ((t - want):abs():max() / want:abs():max()):item()
            lu.assertTrue(off < 2 ^ -8, ("%s: off by %g"):format(name, off))
        end
    end
end

-- Leading dimensions, a bias, and rows alone: their scales are their own but for that of the tensor.
function TestNvfp4.test_shapes()
    local x, w, bias = get("px"), get("pw"), mx.randn { shape = { 80 }, seed = 1 }
    local y = mx.nvfp4_matmul(x:view(4, 12, 64), w, bias)
    lu.assertEquals(y:size(), { 4, 12, 80 })
    local shifted = mx.nvfp4_matmul(x, w):to("f32") + bias
    lu.assertTrue(((y:view(48, 80) - shifted):abs():max() / shifted:abs():max()):item() < 2 ^ -7) -- rounded twice
    local codes, scales, scale = mx.nvfp4_quantize(x)
    local other, others, another = mx.nvfp4_quantize(w, { square = true, trans = true })
    lu.assertEquals(mx.nvfp4_product(codes, other, scales, others, scale, another, bias):totable(),
        y:view(48, 80):totable())
    local most = x:abs():max():item()
    local few = mx.concat({ mx.narrow(x, { dim = 1, start = 5, length = 3 }), mx.full({ 1, 64 }, most) }, { dim = 1 })
    lu.assertEquals(mx.narrow(mx.nvfp4_matmul(few, w), { dim = 1, start = 1, length = 3 }):totable(),
        mx.narrow(mx.nvfp4_matmul(x, w), { dim = 1, start = 5, length = 3 }):totable())
    lu.assertEquals(mx.nvfp4_matmul(mx.zeros(3, 64), w):abs():max():item(), 0)
    lu.assertEquals(mx.nvfp4_matmul(mx.zeros(0, 64), w):size(), { 0, 80 })
end

-- Gradients of one product, rounded with a key.
local function gradients(key, options)
    local x, w = get("px"):clone():requires_grad(), get("pw"):clone():requires_grad()
    local rows = options and options.rows
    local y = mx.nvfp4_matmul(x, w, nil, rows, { stochastic = key, offset = options and options.offset })
    mx.backward(mx.sum(y * get("pdy"):to("bf16")))
    return x:grad(), w:grad()
end

-- Over N keys, the mean of each element nears that of the product with dy itself. A code of dy takes one of two
-- neighbours, each with the probability that keeps the mean, and all independently. Blocks here have 6 as their
-- largest magnitude and an exact scale, so neighbours are at most 2 apart. A sum of 16 products with 6 or -6 then has
-- a standard deviation of at most 1 * 6 * 4. Five of these over the root of N are passed once in 1.7 million elements.
-- Rounding to nearest is farther off.
function TestNvfp4.test_stochastic_rounding_keeps_the_mean()
    local N, k, n = 400, 32, 16
    local w = mx.randint({ shape = { k, n }, low = 0, high = 2, seed = 1 }):to("f32") * 12 - 6 -- codes of themselves
    local dy = mx.rand { shape = { 16, n }, seed = 2 } * 10 - 5
    mx.write_slice(dy, mx.full({ 16, 1 }, 6), { dim = 2, start = 1 })
    mx.write_slice(dy, mx.full({ 1, n }, 6), { dim = 1, start = 1 })
    dy = dy:to("bf16")
    local x = mx.randint({ shape = { 16, k }, low = 0, high = 2, seed = 3 }):to("f32") * 12 - 6
    local sum_x, sum_w = mx.zeros(16, k), mx.zeros(k, n)
    for key = 1, N do
        local a, b = x:clone():requires_grad(), w:clone():requires_grad()
        mx.backward(mx.sum(mx.nvfp4_matmul(a, b, { stochastic = key }) * dy))
        sum_x:add_(a:grad())
        sum_w:add_(b:grad())
    end
    local exact = dy:to("f32")
    local bound = 5 * 24 / N ^ 0.5 + 2 ^ -9 * 16 * 36 -- gradients, of up to 16 * 6 * 6, are rounded to bf16
    local dx, dw = mx.matmul(exact, w, { trans_b = true }), mx.matmul(x, exact, { trans_a = true })
    lu.assertTrue((sum_x / N - dx):abs():max():item() < bound)
    lu.assertTrue((sum_w / N - dw):abs():max():item() < bound)
    local a = x:clone():requires_grad()
    mx.backward(mx.sum(mx.nvfp4_matmul(a, w) * dy))
    lu.assertTrue((a:grad() - dx):abs():max():item() > bound)
end

-- The same key gives the same bits, on any number of threads; another key, or other numbers of rows, others.
function TestNvfp4.test_keys()
    local dx, dw = gradients(5)
    local threads = mx.info().threads
    for _, n in ipairs { 1, 3 } do
        mx.threads(n)
        local again, again_w = gradients(5)
        lu.assertEquals({ again:totable(), again_w:totable() }, { dx:totable(), dw:totable() })
    end
    mx.threads(threads)
    lu.assertNotEquals(gradients(6):totable(), dx:totable())
    lu.assertNotEquals(gradients(5, { offset = 1 }):totable(), dx:totable())
    local numbers = mx.arange { n = 48, dtype = "i32" }
    lu.assertEquals(gradients(5, { rows = numbers }):totable(), dx:totable())
    lu.assertEquals(gradients(5, { rows = numbers - 7, offset = 7 }):totable(), dx:totable())
    lu.assertNotEquals(gradients(5, { rows = numbers + 1 }):totable(), dx:totable())
end

-- A NaN reaches all results, since all share the scale of the tensor.
function TestNvfp4.test_nan()
    local x = mx.tensor { { 0 / 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 } }
    x = mx.concat({ x, mx.ones(1, 16) }, { dim = 1 })
    lu.assertEquals(mx.isfinite(mx.nvfp4_matmul(x, mx.ones(16, 16))):any():item(), 0)
end

function TestNvfp4.test_errors()
    local function refused(words, f, ...)
        lu.assertErrorMsgContains(words, f, ...)
    end
    local x = mx.ones(16, 24)
    refused("16 neighbours share a scale, so columns must be a multiple of 16", mx.nvfp4_quantize, x)
    refused("so rows must be", mx.nvfp4_quantize, mx.ones(24, 16), { trans = true })
    refused("along both dimensions share a scale, so rows and columns", mx.nvfp4_quantize, x, { square = true })
    refused("hadamard transforms runs of 16 rows: with trans", mx.nvfp4_quantize, mx.ones(16, 16), { hadamard = true })
    refused("stochastic = -2", mx.nvfp4_quantize, mx.ones(16, 16), { stochastic = -2 })
    refused("'rows' has 3 numbers, expected 16", mx.nvfp4_quantize, mx.ones(16, 16), mx.zeros({ 3 }, "i32"))
    refused("x must be (..., k), and w (k, n)", mx.nvfp4_matmul, x, x)
    refused("the inner size, the columns, and in training all sizes, must be multiples of 16", mx.nvfp4_matmul, x,
        mx.ones(24, 16))
    refused("(3, 16) times (16, 16)", mx.nvfp4_matmul, mx.ones(3, 16):requires_grad(), mx.ones(16, 16))
    refused("bias must be f32 or bf16 and have one dimension of 16", mx.nvfp4_matmul, mx.ones(3, 16), mx.ones(16, 16),
        mx.ones(3))
    local codes, scales, scale = mx.nvfp4_quantize(mx.ones(2, 32))
    refused("a must be (..., k / 2), and b (n, k / 2)", mx.nvfp4_product, codes, mx.zeros({ 2, 8 }, "u8"), scales,
        mx.zeros({ 2, 1 }, "e4m3"), scale, scale)
    refused("'scales_a' must be (2, 2)", mx.nvfp4_product, codes, codes, mx.zeros({ 2, 4 }, "e4m3"), scales, scale,
        scale)
    refused("the scale of a tensor is one number", mx.nvfp4_product, codes, codes, scales, scales, mx.ones(2), scale)
end
