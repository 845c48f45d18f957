--- Quantizing and products of codes, against Qwix's (tests/golden/make_golden_quantize.py), and what they refuse.
-- emulated

local mx = require "mx"
local lu = require "luaunit"

local golden = assert(mx.io.h5_open("tests/golden/quantize.h5"))
local function get(name)
    return golden:read(name):keep()
end

TestQuantize = {}

-- The scales and the codes, to the bit.
function TestQuantize.test_codes()
    local x = get("x")
    for _, dtype in ipairs { "i8", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz" } do
        for _, by in ipairs { "row", "column" } do
            local name = dtype .. "." .. by
            local codes, scale = mx.quantize(x, { dtype = dtype, by = by })
            lu.assertEquals(codes:dtype(), dtype)
            lu.assertEquals(scale:size(), by == "row" and { 13, 1 } or { 1, 40 })
            lu.assertEquals(scale:totable(), get(name .. ".scale"):totable(), name)
            lu.assertEquals(codes:to("f32"):totable(), get(name .. ".codes"):totable(), name)
        end
    end
end

-- One scale for all, the same with bf16; and a given one, beyond whose range values saturate.
function TestQuantize.test_tensor()
    local x = mx.tensor { { 1, -2 }, { 0.5, 4 } }
    local codes, scale = mx.quantize(x, { dtype = "i8", by = "tensor" })
    lu.assertEquals(scale:size(), { 1, 1 })
    lu.assertAlmostEquals(scale:item(), 4 / 127.5, 1e-8)
    lu.assertEquals(codes:totable(), { { 32, -64 }, { 16, 127 } })
    local largest = mx.tensor { 3 }
    codes = mx.quantize(x:to("bf16"), mx.tensor { 1 / 64 }, nil, nil, largest, { dtype = "i8", by = "tensor" })
    lu.assertEquals(codes:totable(), { { 64, -128 }, { 32, 127 } })
    lu.assertEquals(largest:item(), 4)
    codes = mx.quantize(x, mx.tensor { 1, 1 / 16 }, { dtype = "i8", by = "column" })
    lu.assertEquals(codes:totable(), { { 1, -32 }, { 0, 64 } })
    codes = mx.quantize(mx.tensor { 500, -1e6, 0.3 }, mx.tensor { 1 }, { dtype = "e4m3", by = "tensor" })
    lu.assertEquals(codes:to("f32"):totable(), { 448, -448, 0.3125 })
    codes = mx.quantize(mx.tensor { 500, -1e6, -1e-6 }, mx.tensor { 1 }, { dtype = "e4m3fnuz", by = "tensor" })
    lu.assertEquals(codes:to("f32"):totable(), { 240, -240, 0 })
end

-- No columns, or no rows.
function TestQuantize.test_empty()
    for _, by in ipairs { "row", "column", "tensor" } do
        for _, size in ipairs { { 3, 0 }, { 0, 3 } } do
            lu.assertEquals(mx.quantize(mx.zeros(size), { dtype = "i8", by = by }):size(), size)
        end
    end
end

-- Casting first gives the codes, scales and gradients of x:to("bf16").
function TestQuantize.test_cast()
    local x = get("x")
    for _, by in ipairs { "row", "column", "tensor" } do
        local notes, codes, scales, grads = { mx.zeros(1), mx.zeros(1) }, {}, {}, {}
        for i, options in ipairs { { dtype = "e4m3", by = by }, { dtype = "e4m3", by = by, cast = "bf16" } } do
            local leaf = x:clone():requires_grad()
            local q, s = mx.quantize(i == 1 and leaf:to("bf16") or leaf, nil, nil, nil, notes[i], options)
            local w = mx.quantize(mx.randn { shape = { 40, 3 }, seed = 1 }, { dtype = "i8", by = "tensor" })
            mx.backward(mx.sum(mx.scaled_matmul(q, w, by ~= "column" and s or nil)))
            codes[i], scales[i], grads[i] = q:detach():to("f32"):totable(), s:totable(), leaf:grad():totable()
        end
        lu.assertEquals(codes[2], codes[1])
        lu.assertEquals(scales[2], scales[1])
        lu.assertEquals(grads[2], grads[1])
        lu.assertEquals(notes[2]:item(), notes[1]:item())
    end
    lu.assertErrorMsgContains('cast = "f32"; expected "bf16"', mx.quantize, x, { dtype = "i8", cast = "f32" })
end

-- A NaN is seen in the results of its row alone.
function TestQuantize.test_nan()
    local x, w = mx.tensor { { 1, 0 / 0 }, { 1, 2 } }, mx.quantize(mx.ones(2, 1), { dtype = "i8", by = "column" })
    local codes, scale = mx.quantize(x, { dtype = "i8" })
    local y = mx.scaled_matmul(codes, w, scale):to("f32"):totable()
    lu.assertTrue(y[1][1] ~= y[1][1])
    lu.assertTrue(y[2][1] == y[2][1])
end

-- Products and both gradients. Ours are f32 from beginning to end; theirs, too, for f32 inputs. A code next to the
-- middle of two may fall to the other side, since dy times the scales is rounded in another order: a part of a step.
function TestQuantize.test_products()
    local far = 0
    for recipe, dtypes in pairs { int8 = { "i8", "i8" }, fp8 = { "e4m3", "e4m3" }, fp8_full = { "e4m3", "e5m2" } } do
        local x, w = get("px"):requires_grad(), get("pw"):requires_grad()
        local qx, sx = mx.quantize(x, { dtype = dtypes[1], by = "row" })
        local qw, sw = mx.quantize(w, { dtype = dtypes[1], by = "column" })
        local y = mx.scaled_matmul(qx, qw, sx, sw, { dtype = "f32", grad = dtypes[2] })
        mx.backward(mx.sum(y * get("pdy")))
        for name, t in pairs { y = y, dx = x:grad(), dw = w:grad() } do
            local want = get(recipe .. "." .. name)
            local bound = name == "y" and 2 ^ -21 or 2 ^ -7 -- gradients of codes are bf16
            local off = ((t:detach():to("f32") - want):abs():max() / want:abs():max()):item()
            lu.assertTrue(off < bound, ("%s %s: off by %g"):format(recipe, name, off))
            far = math.max(far, off)
        end
    end
    lu.assertTrue(far > 0)
end

-- Fixed ranges under fp8_full, by the function that models use.
function TestQuantize.test_fixed_ranges()
    local quantization = require "mx.models.quantization"
    local ranges = { input = 1.5, weight = 0.75 }
    local model = { shape = { layers = 1, quantization = "fp8_full", dtype = "f32", ranges = ranges } }
    model.quantization = quantization.new(model)
    local x, w = get("px"):requires_grad(), get("pw"):requires_grad()
    local y = quantization.products(model, 1, { ["wo.weight"] = w }, x)("wo")
    mx.backward(mx.sum(y * get("pdy")))
    for name, t in pairs { y = y, dx = x:grad(), dw = w:grad() } do
        local want = get("fixed." .. name)
        local off = ((t:detach() - want):abs():max() / want:abs():max()):item()
        lu.assertTrue(off < (name == "y" and 2 ^ -21 or 2 ^ -7), ("%s: off by %g"):format(name, off))
    end
    lu.assertEquals(x:grad():eq(0):ne(x:detach():abs():gt(1.5)):any():item(), 0) -- no gradient beyond the range
    for text, range in pairs { ["fixed,-224,224"] = 224, ["fixed,2"] = 2 } do
        lu.assertEquals(quantization.fixed_range(text), range)
    end
    for _, text in ipairs { "absmax", "fixed,-1,2", "fixed,0", "fixed,x", "fixed", "fixed,inf" } do
        lu.assertNil(quantization.fixed_range(text), text)
    end
end

-- Three steps of delayed scaling, as Flax's, by the functions that models use: scales are those of the steps before.
function TestQuantize.test_delayed_scales()
    local quantization = require "mx.models.quantization"
    for _, recipe in ipairs { "fp8_gpu", "fp8_nanoo" } do
        local model = {
            shape = { layers = 1, quantization = recipe, dtype = "f32" }, layers = { { ["wo.weight"] = "w" } },
            buffers = {},
        }
        model.quantization = quantization.new(model)
        for step, factor in ipairs { 1, 3, 0.5 } do
            local x, w = (get("px") * factor):requires_grad(), (get("pw") * factor):requires_grad()
            local y = quantization.products(model, 1, { ["wo.weight"] = w }, x, { pass = 1 })("wo")
            mx.backward(mx.sum(y * (get("pdy") * factor)))
            for name, t in pairs(step == 3 and { y = y, dx = x:grad(), dw = w:grad() } or {}) do
                local want = get(recipe .. "." .. name)
                local off = ((t:detach() - want):abs():max() / want:abs():max()):item()
                lu.assertTrue(off < (name == "y" and 2 ^ -21 or 2 ^ -7), ("%s %s: off by %g"):format(recipe, name, off))
            end
            local scales = model.buffers["quantization.scale"]:totable()[1]
            for kind, want in ipairs(step == 3 and get(recipe .. ".scales"):totable() or {}) do
                lu.assertAlmostEquals(scales[kind] / want, 1, 1e-6)
            end
            model.quantization:after_step()
        end
    end
end

-- What codes of blocks along the rows of x stand for.
local function rounded(x)
    local codes, scale = mx.quantize(x, { dtype = "e4m3", by = "row_block" })
    return (codes:to("f32"):view(x:numel() // 32, 32) * scale:view(x:numel() // 32, 1)):view(x:size())
end

-- Blocks have the codes and scales of Transformer Engine's rule, along rows and along columns.
function TestQuantize.test_blocks_of_mxfp8()
    local x = get("mxfp8.x")
    lu.assertEquals(rounded(x):totable(), get("mxfp8.rounded"):totable())
    local codes, scale = mx.quantize(x, { dtype = "e4m3", by = "row_block" })
    local across, other = mx.quantize(mx.transpose(x), { dtype = "e4m3", by = "column_block" })
    lu.assertEquals({ scale:size(), other:size() }, { { 16, 2 }, { 2, 16 } })
    lu.assertEquals(mx.transpose(across:to("f32")):totable(), codes:to("f32"):totable())
    lu.assertEquals(mx.transpose(other):totable(), scale:totable())
    local bad = mx.tensor { { math.huge }, { 0 / 0 } } * mx.ones(2, 32)
    lu.assertFalse(mx.isfinite(rounded(bad)):any():item() ~= 0)
    lu.assertEquals(rounded(mx.zeros(1, 32)):totable(), mx.zeros(1, 32):totable())
end

-- A product whose three sums have operands of their own.
function TestQuantize.test_mxfp8_matmul()
    local x, w = mx.randn { shape = { 2, 32, 64 }, seed = 1 }:to("bf16"), mx.randn { shape = { 64, 96 }, seed = 2 }
    local bias, dy = mx.randn { shape = { 96 }, seed = 3 }:requires_grad(), mx.randn { shape = { 2, 32, 96 }, seed = 4 }
    local a, b = x:to("f32"):requires_grad(), w:requires_grad()
    dy = dy:to("bf16")
    local y = mx.mxfp8_matmul(a:to("bf16"), b:to("bf16"), bias)
    mx.backward(mx.sum(y * dy))
    local function near(t, left, right, shift)
        local want = mx.matmul(rounded(left), rounded(right), { trans_b = true })
        want = shift and want + shift or want
        lu.assertTrue(((t - want:view(t:size())):abs():max() / want:abs():max()):item() < 2 ^ -8)
    end
    local rows, narrow = dy:view(64, 96), w:detach():to("bf16")
    near(y:detach():to("f32"), x:view(64, 64), mx.transpose(narrow), bias:detach())
    near(a:grad(), rows, narrow)
    near(b:grad(), mx.transpose(x:view(64, 64)), mx.transpose(rows))
    lu.assertAlmostEquals((bias:grad() - mx.sum(rows:to("f32"), { dim = 1 })):abs():max():item(), 0, 1e-5)
    local few = mx.mxfp8_matmul(mx.narrow(x:view(64, 64), { dim = 1, start = 5, length = 3 }), narrow)
    local all = mx.mxfp8_matmul(x:view(64, 64), narrow) -- blocks are those of rows, so the rows beside do not count
    lu.assertEquals(few:totable(), mx.narrow(all, { dim = 1, start = 5, length = 3 }):totable())
end

-- The same of grouped products, as Qwix's ragged_dot; one group has no rows. On several threads, too.
function TestQuantize.test_grouped_products()
    local counts, threads = get("counts"):to("i32"), mx.info().threads
    for recipe, dtypes in pairs { int8 = { "i8", "i8" }, fp8 = { "e4m3", "e4m3" }, fp8_full = { "e4m3", "e5m2" } } do
        local x, w = get("gx"):requires_grad(), get("gw"):requires_grad()
        local qx, sx = mx.quantize(x, { dtype = dtypes[1], by = "row" })
        local qw, sw = mx.quantize(w, { dtype = dtypes[1], by = "column" })
        lu.assertEquals(sw:size(), { 1, 1, 10 })
        local y = mx.scaled_grouped_matmul(qx, qw, sx, sw, counts, { dtype = "f32", grad = dtypes[2] })
        mx.backward(mx.sum(y * get("gdy")))
        for name, t in pairs { gy = y, gdx = x:grad(), gdw = w:grad() } do
            local want = get(recipe .. "." .. name)
            local off = ((t:detach():to("f32") - want):abs():max() / want:abs():max()):item()
            lu.assertTrue(off < (name == "gy" and 2 ^ -21 or 2 ^ -7), ("%s %s: off by %g"):format(recipe, name, off))
        end
    end
    local w = mx.quantize(mx.randn { shape = { 3, 40, 2100 }, seed = 1 }, { dtype = "i8", by = "column" })
    local x = mx.quantize(mx.randn { shape = { 90, 40 }, seed = 2 }, { dtype = "i8" })
    local scale, sizes = mx.rand { shape = { 2100 }, seed = 3 }, { 70, 1, 15 }
    local function product()
        return mx.scaled_grouped_matmul(x, w, nil, scale, mx.tensor(sizes, "i32"), { dtype = "f32" })
    end
    mx.threads(1)
    local one = product()
    mx.threads(2)
    lu.assertEquals(product():eq(one):all():item(), 1)
    mx.threads(threads)
    local first = 1
    for group, n in ipairs(sizes) do -- the sums are exact
        local rows = mx.narrow(x, { dim = 1, start = first, length = n })
        local own = mx.scaled_matmul(rows, w[group], nil, scale, { dtype = "f32" })
        lu.assertEquals(own:eq(mx.narrow(one, { dim = 1, start = first, length = n })):all():item(), 1)
        first = first + n
    end
    lu.assertEquals(mx.narrow(one, { dim = 1, start = first, length = 4 }):abs():max():item(), 0)
end

-- With one scale for each operand, dy has one, too: dx = s_dy s_w q_dy q_w'. A given one comes with its note.
function TestQuantize.test_scale_of_the_tensor()
    local x, w = mx.randn { shape = { 6, 8 }, seed = 1 }:requires_grad(), mx.randn { shape = { 8, 5 }, seed = 2 }
    local dy = mx.randn { shape = { 6, 5 }, seed = 3 }:to("bf16")
    local qx, sx = mx.quantize(x, { dtype = "e4m3", by = "tensor" })
    local qw, sw = mx.quantize(w, { dtype = "e4m3", by = "tensor" })
    local given, largest = mx.tensor { 2 ^ -12 }, mx.zeros(1)
    local y = mx.scaled_matmul(qx, qw, sx, sw, nil, given, largest, { grad = "e5m2" })
    mx.backward(mx.sum(y * dy))
    local q = (dy / 2 ^ -12):to("e5m2"):to("f32")
    local want = mx.matmul(q, qw:to("f32"), { trans_b = true }) * (2 ^ -12 * sw:item())
    lu.assertTrue(((x:grad() - want):abs():max() / want:abs():max()):item() < 2 ^ -8)
    lu.assertEquals(largest:item(), dy:abs():max():item())
end

-- Weights of one byte with activations of bf16, as in generation.
function TestQuantize.test_weights_alone()
    local x, w = mx.randn { shape = { 3, 64 }, seed = 1, dtype = "bf16" }, mx.randn { shape = { 64, 33 }, seed = 2 }
    local codes, scale = mx.quantize(w, { dtype = "i8", by = "column" })
    local y = mx.scaled_matmul(x, codes, nil, scale, { dtype = "f32" })
    local want = mx.matmul(x:to("f32"), codes:to("f32")) * scale
    lu.assertTrue(((y - want):abs():max() / want:abs():max()):item() < 1e-5)
end

-- With a scale for each 32 neighbours of a row, for few rows and for many.
function TestQuantize.test_blocks()
    local codes = mx.randint { shape = { 5, 96 }, low = -128, high = 128, seed = 1 }:to("i8")
    local scale, bias = mx.rand { shape = { 5, 3 }, seed = 2 }, mx.randn { shape = { 5 }, seed = 3 }
    local w = (codes:view(5, 3, 32):to("f32") * scale:view(5, 3, 1)):view(5, 96)
    for _, rows in ipairs { 1, 8, 11 } do
        local x = mx.randn { shape = { rows, 96 }, seed = 4 }
        local y = mx.scaled_matmul(x, codes, nil, scale, bias, { trans_b = true, dtype = "f32" })
        local want = mx.matmul(x, w, bias, { trans_b = true })
        lu.assertTrue(((y - want):abs():max() / want:abs():max()):item() < 1e-6)
    end
    local counts, x = mx.tensor({ 1, 0, 10 }, "i32"), mx.randn { shape = { 12, 96 }, seed = 4 } -- of experts
    local stack, scales = mx.concat({ codes, codes * -1, codes }, { dim = 1 }), mx.concat({ scale, scale, scale * 2 },
        { dim = 1 })
    local y = mx.scaled_grouped_matmul(x, stack:view(3, 5, 96), nil, scales:view(3, 5, 3), counts,
        { trans_b = true, dtype = "f32" })
    for i, row in ipairs(y:totable()) do
        local own = mx.narrow(x, { dim = 1, start = i, length = 1 })
        local want = mx.matmul(own, w, { trans_b = true }) * (i == 1 and 1 or i <= 11 and 2 or 0)
        lu.assertTrue((mx.tensor { row } - want):abs():max():item() < 1e-5 * (want:abs():max():item() + 1), "row " .. i)
    end
    x = mx.randn { shape = { 11, 96 }, seed = 4, dtype = "bf16" }
    lu.assertEquals(mx.scaled_matmul(x, codes, nil, scale, { trans_b = true }):totable(),
        mx.matmul(x, w:to("bf16"), { trans_b = true }):totable())
end

-- Codes carry a gradient through quantize and products alone; other operations stop it.
function TestQuantize.test_gradient_of_codes()
    local x = mx.ones(2, 3):requires_grad()
    local codes, scale = mx.quantize(x, { dtype = "i8" })
    mx.backward((codes:to("f32") * scale + x):sum())
    lu.assertEquals(x:grad():totable(), { { 1, 1, 1 }, { 1, 1, 1 } })
    lu.assertErrorMsgContains("only f32 and bf16 tensors have gradients", function()
        mx.zeros({ 2 }, "i8"):requires_grad()
    end)
end

function TestQuantize.test_errors()
    local function refused(words, f, ...)
        lu.assertErrorMsgContains(words, f, ...)
    end
    local x = mx.ones(2, 3)
    refused("quantize: dtype must be i8, e4m3, e5m2, e4m3fnuz or e5m2fnuz", mx.quantize, x, { dtype = "bf16" })
    refused("input 1 ('x') must be f32 or bf16", mx.quantize, mx.zeros({ 2 }, "i32"), { dtype = "i8" })
    refused("by = \"tensor\" or \"column\"", mx.quantize, x, mx.ones(1), { dtype = "i8" })
    refused("'scale' has 1 values, expected 3", mx.quantize, x, mx.ones(1), { dtype = "i8", by = "column" })
    refused("'row_factor' has 3 values, expected 2", mx.quantize, x, nil, mx.ones(3), { dtype = "i8" })
    refused("dtype must be an 8-bit float", mx.quantize, mx.ones(2, 32), { dtype = "i8", by = "row_block" })
    refused("32 neighbours share a scale, so 3 columns must be a multiple of 32", mx.quantize, x,
        { dtype = "e4m3", by = "row_block" })
    refused("so 2 rows must be", mx.quantize, x, { dtype = "e4m3", by = "column_block" })
    refused("by = \"column_block\" takes x alone", mx.quantize, mx.ones(32, 3), nil, mx.ones(32),
        { dtype = "e4m3", by = "column_block" })
    refused("x must be (..., k), and w (k, n)", mx.mxfp8_matmul, x, x)
    refused("the inner size, and in training all sizes, must be multiples of 32", mx.mxfp8_matmul, x, mx.ones(3, 32))
    refused("(2, 32) times (32, 32)", mx.mxfp8_matmul, mx.ones(2, 32):requires_grad(), mx.ones(32, 32))
    refused("bias must be f32 or bf16 and have one dimension of 4", mx.mxfp8_matmul, mx.ones(2, 32), mx.ones(32, 4),
        mx.ones(3))
    refused("scaled_matmul has no gradient with scales of blocks; use mxfp8_matmul", function()
        local codes, scale = mx.quantize(mx.ones(2, 64):requires_grad(), { dtype = "e4m3", by = "row_block" })
        mx.backward(mx.scaled_matmul(codes, mx.zeros({ 64, 4 }, "e4m3"), scale):sum())
    end)
    refused("stochastic = -2", mx.quantize, x, { dtype = "i8", stochastic = -2 })
    local a, b = mx.zeros({ 2, 3 }, "i8"), mx.zeros({ 3, 4 }, "i8")
    refused("neither a nor b are codes (i8, e4m3, e5m2, e4m3fnuz or e5m2fnuz); use matmul", mx.scaled_matmul, x,
        mx.ones(3, 4))
    refused("inner sizes differ: 3 of a, 2 of b", mx.scaled_matmul, a, a)
    refused("'scale_a' has 4 values; expected 1, or 2, one for each row", mx.scaled_matmul, a, b, mx.ones(4))
    refused("'scale_b' has 6 values; expected 1, or 3, one for each column", mx.scaled_matmul,
        mx.zeros({ 2, 64 }, "i8"), mx.zeros({ 3, 64 }, "i8"), nil, mx.ones(3, 2), { trans_b = true })
    refused("'a' must be bf16, f32 or codes (i8,", mx.scaled_matmul, mx.zeros({ 2, 3 }, "i32"), b)
    refused("grad must be i8", mx.scaled_matmul, a, b, { grad = "f32" })
    refused("the inner size is 131072", mx.scaled_matmul, mx.zeros({ 1, 131072 }, "i8"), mx.zeros({ 131072, 1 }, "i8"))
    local w, counts = mx.zeros({ 2, 3, 4 }, "i8"), mx.tensor({ 1, 1 }, "i32")
    local grouped = mx.scaled_grouped_matmul
    refused("a must be (rows, k), and b (groups, k, n)", grouped, a, b, nil, nil, counts)
    refused("inner sizes differ: 3 of a, 4 of b", grouped, a, mx.zeros({ 2, 4, 4 }, "i8"), nil, nil, counts)
    refused("'scale_a' has 3 values; expected 1, or 2, one for each row", grouped, a, w, mx.ones(3), nil, counts)
    refused("counts add up to 3 rows", grouped, a, w, nil, nil, mx.tensor({ 1, 2 }, "i32"))
    refused("use grouped_matmul", grouped, x, mx.ones(2, 3, 4), nil, nil, counts)
    refused("a and b must have as many rows", grouped, a, b, nil, nil, counts, { trans_a = true })
    refused("trans_a and trans_b exclude each other", grouped, a, a, nil, nil, counts,
        { trans_a = true, trans_b = true })
    refused("a sum has 131072 products of i8", grouped, mx.zeros({ 131072, 1 }, "i8"), mx.zeros({ 131072, 1 }, "i8"),
        nil, nil, mx.tensor({ 131072 }, "i32"), { trans_a = true })
    refused("has a gradient where a and b are codes", function()
        local codes = mx.quantize(mx.ones(3, 2):requires_grad(), { dtype = "i8" })
        mx.backward(mx.scaled_matmul(codes, b, { trans_a = true }):sum())
    end)
    refused("quantize with factors has no gradient", function()
        local q = mx.quantize(mx.ones(2, 3):requires_grad(), nil, mx.ones(2), { dtype = "i8" })
        mx.backward(mx.scaled_matmul(q, b):sum())
    end)
end
