--- Batch norm and group norm at sizes that the golden cases do not reach, against the same in f64, which is computed in
-- plain loops; with any number of threads; and their second gradients and given statistics.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

TestChannelNorm = {}

local function randn(shape, seed)
    return mx.randn { shape = shape, seed = seed }
end

--- The largest difference over the largest magnitude, of tensors too large for tables.
local function distance(a, b)
    return mx.max(mx.abs(a:to("f32") - b:to("f32"))):item() / mx.max(mx.abs(b:to("f32"))):item()
end

--- Results and gradients of f on x, weight and bias in a dtype.
local function evaluate(f, shape, dtype)
    local inputs = { randn(shape, 1) * 2 + 3, randn({ shape[2] }, 2) + 1, randn({ shape[2] }, 3) }
    for i, t in ipairs(inputs) do
        inputs[i] = t:to("bf16"):to(dtype):requires_grad()
    end
    local y, mean, var = f(table.unpack(inputs))
    local dy = randn(shape, 4):to("bf16"):to(dtype)
    local loss = mx.sum((y * dy):to("f64"))
    if mean then
        loss = loss + mx.sum((mean * mean):to("f64")) + mx.sum((var * mean):to("f64"))
    end
    mx.backward(loss)
    return { y:detach(), inputs[1]:grad(), inputs[2]:grad(), inputs[3]:grad(), mean and mean:detach(),
        var and var:detach() }
end

-- Sets of more elements than a piece of work, planes of several pieces, rows of several blocks and bands; groups that
-- are more than a thread takes of an image at once, and more images in a block than are summed in f32.
local SHAPES = {
    { 2, 3, 140000 }, { 3, 2, 20001 }, { 300, 70, 9 }, { 130, 1100, 1 }, { 20, 48, 49 }, { 140, 6, 33 },
    { 2, 1400, 49 }, { 8300, 4, 2 },
}

function TestChannelNorm.test_sizes()
    for _, shape in ipairs(SHAPES) do
        for _, f in ipairs {
            function(x, w, b) return mx.batch_norm(x, w, b) end,
            function(x, w, b) return mx.group_norm(x, w, b, { groups = shape[2] % 2 == 0 and 2 or 1 }) end,
        } do
            local expected = evaluate(f, shape, "f64")
            compare.on_each_isa(function(isa)
                for dtype, bound in pairs { f32 = 1e-5, bf16 = 2 ^ -7 } do
                    for part, t in pairs(evaluate(f, shape, dtype)) do
                        local apart = distance(t, expected[part])
                        lu.assertTrue(apart <= bound, ("%s %s, part %d of %s: %g"):format(isa, dtype, part,
                            table.concat(shape, "x"), apart))
                    end
                end
            end)
        end
    end
end

function TestChannelNorm.test_threads_do_not_change_bits()
    local threads = mx.threads()
    for _, shape in ipairs { { 2, 3, 140000 }, { 2, 12, 140000 }, { 300, 70, 9 }, { 140, 6, 33 } } do
        for _, f in ipairs { mx.batch_norm, mx.group_norm } do
            local found = {}
            for n = 1, 2 do
                mx.threads(n)
                found[n] = evaluate(f, shape, "f32")
            end
            for part, t in pairs(found[1]) do
                lu.assertEquals(mx.all(mx.eq(t, found[2][part])):item(), 1)
            end
        end
    end
    mx.threads(threads)
end

--- Of an empty batch there are no statistics, and of one without planes neither.
function TestChannelNorm.test_empty()
    for _, shape in ipairs { { 0, 3, 4 }, { 2, 3, 0 } } do
        local y, mean, var = mx.batch_norm(mx.zeros(shape))
        lu.assertEquals(y:size(), shape)
        lu.assertEquals({ mx.all(mx.isnan(mean)):item(), mx.all(mx.isnan(var)):item() }, { 1, 1 })
        lu.assertEquals(mx.group_norm(mx.zeros(shape)):size(), shape)
    end
    lu.assertEquals(mx.batch_norm(mx.zeros { 2, 0, 3 }):size(), { 2, 0, 3 })
end

--- Moments that a far mean would cost digits.
function TestChannelNorm.test_far_mean()
    local x = randn({ 4, 3, 1000 }, 1) + 1000
    local y, mean, var = mx.batch_norm(x)
    local wide, far_mean, far_var = mx.batch_norm(x:to("f64"))
    lu.assertTrue(distance(y, wide) < 1e-4)
    lu.assertTrue(distance(mean, far_mean) < 1e-6)
    lu.assertTrue(distance(var, far_var) < 1e-5)
end

--- Running averages in training, their use in evaluation: by name among the options, or as inputs.
function TestChannelNorm.test_evaluation()
    local x, weight, bias = randn({ 8, 3, 50 }, 1), randn({ 3 }, 2), randn({ 3 }, 3)
    local mean, var = mx.tensor { 0.5, -1, 2 }, mx.tensor { 1, 4, 0.25 }
    local y, m, v = mx.batch_norm(x, weight, bias, { mean = mean, var = var, eps = 0 })
    local expected = (x - mean:view(1, 3, 1)) / mx.sqrt(var):view(1, 3, 1) * weight:view(1, 3, 1) + bias:view(1, 3, 1)
    lu.assertTrue(distance(y, expected) < 1e-6)
    lu.assertEquals({ m:totable(), v:totable() }, { mean:totable(), var:totable() })
    lu.assertEquals(mx.all(mx.eq(y, (mx.batch_norm(x, weight, bias, mean, var, { eps = 0 })))):item(), 1)
    local alone = mx.batch_norm(x, { mean = mean, var = var:to("bf16"), weight = weight, bias = bias, eps = 0 })
    lu.assertEquals(mx.all(mx.eq(y, alone)):item(), 1)
end

--- The gradient of a gradient through all three results, against finite differences.
function TestChannelNorm.test_second_gradients()
    for name, f in pairs {
        trained = function(x, w, b)
            local y, mean, var = mx.batch_norm(x, w, b)
            return mx.sum(y:square() * y) + mx.sum(mean * var:square())
        end,
        given = function(x, w, b)
            local y, mean, var = mx.batch_norm(x, w, b, { mean = w * 2, var = w:square() + 1 })
            return mx.sum(y:square() * y) + mx.sum(mean * var)
        end,
        groups = function(x, w, b) return mx.sum(mx.group_norm(x, w, b, { groups = 2 }):square():square()) end,
    } do
        local function gradient(x, w, b)
            local grads = mx.grad(f(x, w, b), { x, w, b }, { record = true })
            return mx.sum(grads[1]:square()) + mx.sum(grads[2]:square()) + mx.sum(grads[3]:square())
        end
        local ok, message = pcall(mx.gradcheck, gradient, randn({ 3, 4, 5 }, 1):to("f64"),
            (randn({ 4 }, 2) + 2):to("f64"), randn({ 4 }, 3):to("f64"))
        lu.assertTrue(ok, name .. ": " .. tostring(message))
    end
end
