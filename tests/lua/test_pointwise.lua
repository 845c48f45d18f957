--- Pointwise operations in Lua: operators, integers, changes in place, numbers as operands, and what is refused. Their
--- values and gradients are in tests/lua/test_ops.lua.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

local function refused(parts, fn)
    local ok, message = pcall(fn)
    lu.assertFalse(ok, "nothing was raised; expected: " .. table.concat(parts, ", "))
    for _, part in ipairs(parts) do
        lu.assertStrContains(tostring(message), part)
    end
end

TestBits = {}

-- scale x + shift of integers, which saturates: as one sum or difference, and otherwise.
function TestBits.test_affine()
    compare.on_each_isa(function(isa)
        for dtype, range in pairs { i8 = { -128, 127 }, u8 = { 0, 255 }, i32 = { -2 ^ 31 | 0, 2 ^ 31 - 1 | 0 } } do
            local values, low, high = {}, range[1], range[2]
            for i = 1, 2500 do
                values[i] = i % 3 == 0 and low + i % 50 or i % 3 == 1 and high - i % 50 or i % 100
            end
            local x = mx.tensor(values, dtype)
            for _, o in ipairs { { 1, 7 }, { -1, 100 }, { 3, -1 }, { 1, 1000 }, { -1, -1 } } do
                local want = {}
                for i, value in ipairs(values) do
                    want[i] = math.max(low, math.min(high, o[1] * value + o[2]))
                end
                lu.assertEquals(mx.affine(x, { scale = o[1], shift = o[2] }):totable(), want, dtype .. " on " .. isa)
            end
        end
        local x = mx.tensor({ math.mininteger, -1, 5 }, "i64")
        lu.assertEquals(mx.affine(x, { scale = -1, shift = 0 }):totable(), { math.maxinteger, 1, -5 })
        lu.assertEquals(mx.affine(x, { scale = 1, shift = -9 }):totable(), { math.mininteger, -10, -4 })
    end)
end

--- Lua's own integers are the reference: i64 as they are, i32 from the low half.
function TestBits.test_operators()
    local a, b = { 0x0ff0f00f12345678, -1, math.mininteger, 77 }, { 0x00ff00ff00ff00ff, 5, -7, 0 }
    compare.on_each_isa(function(isa)
        local x, y = mx.tensor(a, "i64"), mx.tensor(b, "i64")
        local ands, ors, xors, nots, lefts, rights = {}, {}, {}, {}, {}, {}
        for i = 1, 4 do
            ands[i], ors[i], xors[i], nots[i] = a[i] & b[i], a[i] | b[i], a[i] ~ b[i], ~a[i]
            lefts[i], rights[i] = a[i] << 5, a[i] // 32
        end
        lu.assertEquals({ (x & y):totable(), (x | y):totable(), (x ~ y):totable(), (~x):totable() },
            { ands, ors, xors, nots }, isa)
        lu.assertEquals({ (x << 5):totable(), (x >> 5):totable() }, { lefts, rights }, isa)
        lu.assertEquals({ (x & 0xff):totable(), (0xff & x):totable()[1] }, { { 0x78, 0xff, 0, 77 }, 0x78 }, isa)
        lu.assertEquals((x << 64):totable(), { 0, 0, 0, 0 }, isa)
        lu.assertEquals((x >> 100):totable(), { 0, -1, -1, 0 }, isa)
        local narrow = mx.tensor({ 200, 3 }, "u8")
        lu.assertEquals({ (narrow << 1):totable(), (narrow >> 9):totable(), (~narrow):totable() },
            { { 144, 6 }, { 0, 0 }, { 55, 252 } }, isa)
    end)
end

--- Long, odd and broadcast: every path against Lua.
function TestBits.test_long_integers()
    local n = 1003
    for dtype, most in pairs { i32 = 2 ^ 31 // 1 - 1, i64 = math.maxinteger, u8 = 255, i8 = 127 } do
        local least = dtype == "u8" and 0 or -most - 1
        local a, b = {}, {}
        for i = 1, n do
            a[i], b[i] = math.random(least, most), math.random(least, most)
        end
        local function saturated(x)
            return math.max(least, math.min(most, x))
        end
        local sums, greater = {}, {}
        for i = 1, n do
            sums[i], greater[i] = saturated(a[i] + b[i]), a[i] > b[i] and 1 or 0
        end
        compare.on_each_isa(function(isa)
            local x, y = mx.tensor(a, dtype), mx.tensor(b, dtype)
            if dtype ~= "i64" then -- its sums do not fit Lua either; test_ops_f64.lua has them
                lu.assertEquals((x + y):totable(), sums, dtype .. " on " .. isa)
            end
            lu.assertEquals(mx.gt(x, y):totable(), greater, dtype .. " on " .. isa)
            lu.assertEquals(mx.where(mx.gt(x, y), x, y):totable(), mx.maximum(x, y):totable(), dtype .. " on " .. isa)
            lu.assertEquals(mx.clamp(x, { min = 0, max = 100 }):totable(),
                mx.minimum(mx.maximum(x, 0), 100):totable(), dtype .. " on " .. isa)
        end)
    end
end

function TestBits.test_refusals()
    local x, f = mx.tensor({ 1, 2 }, "i32"), mx.ones { 2 }
    refused({ "bitwise_and", "integers of one dtype" }, function() return x & f end)
    refused({ "bitwise_or", "integers of one dtype" }, function() return x | mx.tensor({ 1, 2 }, "i64") end)
    refused({ "bitwise_and", "0.5", "i32" }, function() return x & 0.5 end)
    refused({ "shift_left", "below 0", "[2]" }, function() return x << mx.tensor({ 1, -1 }, "i32") end)
    refused({ "bitwise_xor", "broadcast" }, function() return x ~ mx.tensor({ 1, 2, 3 }, "i32") end)
    refused({ "bitwise_not" }, function() return ~f end)
end

TestPointwise = {}

function TestPointwise.test_powers()
    local x = mx.tensor({ 2, 3, 0.5 }):requires_grad()
    lu.assertEquals((x ^ mx.tensor { 3, 2, 1 }):totable(), { 8, 9, 0.5 })
    lu.assertEquals((2 ^ mx.tensor { 3, 2, -1 }):totable(), { 8, 4, 0.5 })
    lu.assertEquals((x ^ 2):totable(), { 4, 9, 0.25 })
    mx.backward(mx.sum(x ^ mx.tensor { 3, 2, 1 }))
    lu.assertAlmostEquals(x:grad():totable()[1], 12, 1e-5)
    local zeros = mx.tensor({ 0, 0, 0, 1 / 0, 2 }) ^ mx.tensor({ 0, 2, -1, -1, 1 / 0 })
    lu.assertEquals(zeros:totable(), { 1, 0, 1 / 0, 0, 1 / 0 })
    refused({ "power", "floats" }, function() return mx.tensor({ 1 }, "i32") ^ mx.tensor({ 2 }, "i32") end)
end

function TestPointwise.test_in_place()
    local c = mx.tensor { { 1, 2 }, { 3, 4 } }
    lu.assertEquals(mx.add_(c, mx.tensor { 10, 20 }, { alpha = 0.5 }):totable(), { { 6, 12 }, { 8, 14 } })
    c:sub_(1):mul_(2):div_(mx.tensor { 2, 4 })
    lu.assertEquals(c:totable(), { { 5, 5.5 }, { 7, 6.5 } })
    local whole = mx.tensor({ 250, 1 }, "u8")
    lu.assertEquals(whole:add_(10):totable(), { 255, 11 })
    refused({ "add_", "alpha" }, function() whole:add_(1, { alpha = 2 }) end)
    refused({ "div_", "fractions" }, function() whole:div_(2) end)
    refused({ "add_", "broadcast" }, function() mx.tensor({ 1 }):add_(mx.ones { 3 }) end)
    refused({ "add_", "one dtype" }, function() whole:add_(mx.ones { 2 }) end)
    refused({ "add_", "gradient would be lost" }, function() c:add_(mx.ones({ 2, 2 }):requires_grad()) end)
end

function TestPointwise.test_masks()
    local x = mx.tensor({ 1, 0 / 0, 1 / 0, -2 })
    lu.assertEquals({ mx.isnan(x):totable(), mx.isfinite(x):totable() }, { { 0, 1, 0, 0 }, { 1, 0, 0, 1 } })
    lu.assertEquals(mx.where(mx.isfinite(x), x, 0):totable(), { 1, 0, 0, -2 })
    lu.assertEquals(mx.masked_fill(x, mx.isnan(x), { value = 7 }):totable(), { 1, 7, 1 / 0, -2 })
    lu.assertEquals(mx.masked_fill(mx.tensor({ 1, 2 }, "i32"), mx.tensor({ 0, 1 }, "u8"), { value = -3 }):totable(),
        { 1, -3 })
    refused({ "masked_fill", "u8" }, function() return mx.masked_fill(x, x, { value = 1 }) end)
    refused({ "masked_fill", "value", "0.5", "i32" }, function()
        return mx.masked_fill(mx.tensor({ 1 }, "i32"), mx.tensor({ 0 }, "u8"), { value = 0.5 })
    end)
    refused({ "isnan", "f32" }, function() return mx.isnan(mx.tensor({ 1 }, "i32")) end)
end

-- bf16 with u8, in pieces of 1,024 and broadcast, against f32 rounded once.
function TestPointwise.test_bytes_times_bf16()
    local x = mx.randn({ 3, 2049 }, { seed = 1, dtype = "bf16" })
    compare.on_each_isa(function(isa)
        for _, size in ipairs { { 3, 2049 }, { 3, 1 }, { 1, 2049 }, { 1, 1 } } do
            local mask = mx.randint(size, { high = 256, seed = 2, dtype = "u8" })
            for _, op in ipairs { "add", "sub", "mul", "maximum" } do
                for _, pair in ipairs { { mask, x }, { x, mask } } do
                    local want = mx[op](pair[1]:to("f32"), pair[2]:to("f32")):to("bf16")
                    lu.assertTrue(compare.identical(mx[op](pair[1], pair[2]), want), op .. " on " .. isa)
                end
            end
        end
    end)
end

function TestPointwise.test_refused_options()
    local x = mx.ones { 2 }
    refused({ "clamp", "'min' or 'max'" }, function() return mx.clamp(x) end)
    refused({ "clamp", "min = 2", "max = 1" }, function() return mx.clamp(x, { min = 2, max = 1 }) end)
    refused({ "clamp", "0.5", "i32" }, function() return mx.clamp(mx.tensor({ 1 }, "i32"), { min = 0.5 }) end)
    refused({ "softplus", "beta = 0" }, function() return mx.softplus(x, { beta = 0 }) end)
    refused({ "lerp", "must be a float" }, function() return mx.lerp(x, mx.tensor({ 1, 2 }, "i32"), { weight = 1 }) end)
    refused({ "binary_grad", "other operations" }, function()
        return mx.binary_grad(x, x, x, { ["function"] = "add" })
    end)
end

TestLosses = {}

function TestLosses.test_refusals()
    local x, t = mx.ones { 2, 3 }, mx.tensor({ 0, 2 }, "i32")
    refused({ "mse_loss", "(2, 3)" }, function() return mx.mse_loss(x, mx.ones { 3 }) end)
    refused({ "mse_loss", "reduction" }, function() return mx.mse_loss(x, x, { reduction = "batch" }) end)
    refused({ "huber_loss", "delta = 0" }, function() return mx.huber_loss(x, x, { delta = 0 }) end)
    refused({ "l1_loss", "mixes" }, function() return mx.l1_loss(x, x:to("f64")) end)
    refused({ "softmax_cross_entropy", "target 3 at [2]", "0 .. 2", "-100" }, function()
        return mx.softmax_cross_entropy(x, mx.tensor({ 0, 3 }, "i32"))
    end)
    refused({ "softmax_cross_entropy", "label_smoothing = 2" }, function()
        return mx.softmax_cross_entropy(x, t, { label_smoothing = 2 })
    end)
    refused({ "softmax_cross_entropy", "weight", "(3)" }, function()
        return mx.softmax_cross_entropy(x, t, mx.ones { 2 })
    end)
    refused({ "softmax_cross_entropy", "no gradient", "detach" }, function()
        return mx.softmax_cross_entropy(x, t, mx.ones({ 3 }):requires_grad())
    end)
end

function TestLosses.test_nothing_counts()
    local x = mx.ones({ 2, 3 }):requires_grad()
    local loss = mx.softmax_cross_entropy(x, mx.tensor({ 1, 1 }, "i32"), { ignore_index = 1 })
    mx.backward(loss)
    lu.assertEquals({ loss:item(), x:grad():totable() }, { 0, { { 0, 0, 0 }, { 0, 0, 0 } } })
end

TestAttentionBias = {}

local function tensors(S, T, H, K)
    local function normal(seed, ...)
        return mx.randn({ ... }, { seed = seed }):requires_grad()
    end
    return normal(1, 2, S, H, 16), normal(2, 2, T, K, 16), normal(3, 2, T, K, 16)
end

--- Threads share rows, heads and chunks in different ways: the gradient of a shared bias must not depend on that.
function TestAttentionBias.test_bits_do_not_depend_on_threads()
    local threads = mx.threads()
    for _, shape in ipairs { { 70, 90 }, { 4, 70, 90 }, { 2, 1, 70, 90 }, { 2, 1, 1, 90 } } do
        local reference
        for _, n in ipairs { 1, 3 } do
            mx.threads(n)
            local step <close> = mx.step()
            local q, k, v = tensors(70, 90, 4, 2)
            local bias = mx.randn(shape, { seed = 4 }):requires_grad()
            mx.backward(mx.sum(mx.square(mx.attention(q, k, v, nil, bias))))
            reference = reference or { q:grad():clone():keep(), bias:grad():clone():keep() }
            lu.assertTrue(compare.identical(q:grad(), reference[1]), "dq")
            lu.assertTrue(compare.identical(bias:grad(), reference[2]), "dbias")
            assert(step)
        end
    end
    mx.threads(threads)
end

function TestAttentionBias.test_refusals()
    local q, k, v = tensors(3, 5, 4, 2)
    local function attend(...)
        local arguments = table.pack(...)
        return function() return mx.attention(q, k, v, nil, table.unpack(arguments, 1, arguments.n)) end
    end
    refused({ "bias must be (batch, heads, queries, keys) = (2, 4, 3, 5)" }, attend(mx.ones { 3, 4 }))
    refused({ "bias must be" }, attend(mx.ones { 2, 3, 3, 5 }))
    refused({ "bias must be f32 or bf16", "u8" }, attend(mx.tensor({ { 1, 1, 1, 1, 1 } }, "i32")))
    refused({ "slopes", "(4)" }, attend(nil, mx.ones { 2 }))
    refused({ "no gradient of slopes", "detach" }, attend(nil, mx.ones({ 4 }):requires_grad()))
    refused({ "sinks", "(4)" }, attend(nil, nil, mx.ones { 2 }))
    refused({ "sinks", "f32" }, attend(nil, nil, mx.ones { 4 }:to("bf16")))
    refused({ "softcap = 2", "no bias" }, attend(mx.ones { 3, 5 }, nil, { softcap = 2 }))
end

TestSpecial = {}

-- At the most likely gamma distribution, digamma(shape) - ln shape = mean ln x - ln mean x, and rate = shape / mean x.
function TestSpecial.test_gamma_distribution_is_fitted()
    local whole <close> = mx.step()
    local x = -mx.log(mx.rand { 3, 4000, low = 1e-7, seed = 3 }):sum { dim = 1 } / 2 -- of shape 3 and rate 2
    local params = {}
    local a = mx.nn.parameter(params, "a", { 1 }, { std = 0 })
    local b = mx.nn.parameter(params, "b", { 1 }, { std = 0 })
    local optimizer = mx.optim.adamw(params, { learning_rate = 0.05, weight_decay = 0 })
    for _ = 1, 300 do
        local step <close> = mx.step()
        local shape, rate = mx.exp(a), mx.exp(b)
        mx.backward(-(shape * mx.log(rate) - mx.lgamma(shape) + (shape - 1) * mx.log(x) - rate * x):mean())
        optimizer:step()
        assert(step)
    end
    local shape, mean = mx.exp(a), x:mean():item()
    lu.assertAlmostEquals((mx.digamma(shape) - a):item(), mx.log(x):mean():item() - math.log(mean), 1e-3)
    lu.assertAlmostEquals(mx.exp(b):item(), shape:item() / mean, 2e-2)
    lu.assertAlmostEquals(shape:item(), 3, 0.2)
    assert(whole)
end

-- The mean of a normal number between two bounds moves by its variance when the normal's mean moves by 1.
function TestSpecial.test_truncated_normal_by_its_inverse()
    local step <close> = mx.step()
    local function below(t) return 0.5 * (1 + mx.erf(t / math.sqrt(2))) end
    local mu = mx.tensor({ 0.5 }):requires_grad()
    local low, high = below(0 - mu), below(1.5 - mu)
    local p = low + mx.rand({ 100000, seed = 4 }) * (high - low)
    local z = mu + math.sqrt(2) * mx.erfinv(2 * p - 1)
    mx.backward(z:mean())
    lu.assertTrue(z:min():item() >= -1e-6 and z:max():item() <= 1.5 + 1e-6)
    lu.assertAlmostEquals(mu:grad():item(), z:var():item(), 3e-3)
    assert(step)
end
