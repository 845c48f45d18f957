--- Operations in f64: PyTorch's values and gradients to a rounding of f32, and finite differences of themselves to
--- 1e-7. An operation that does not take f64 says so. And i64, and bytes beside bf16.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

-- Expected values were computed in f64 and rounded to f32: half of 2^-23, and as much for sums of them.
local BOUND = 2 ^ -23
local DIFFERENCE_STEP, DIFFERENCE_BOUND = 1e-5, 1e-7

local FILES = {
    "ops.h5", "ops_attention.h5", "ops_linear.h5", "ops_norms.h5", "ops_order.h5", "ops_pointwise.h5", "ops_tables.h5",
    "ops_fft.h5",
}

-- Those that take floats, but not f64, in the words of their messages.
local REFUSALS = {
    "must be f32 or bf16", "must be f32", "must be bf16", "must have one dtype", "f64 mixes with no other float",
}

-- Their dtype is an option, or f32.
local NAMES_DTYPE = { cast = true, one_hot = true, attention_dropout = true }

-- Their slope jumps, or is that of another function.
local KINKED = {
    max = true, min = true, maximum = true, minimum = true, abs = true, relu = true, straight_through = true,
    floor = true, ceil = true, round = true, sign = true, clamp = true, leaky_relu = true, elu = true, l1_loss = true,
    remainder = true, fmod = true, max_pool1d = true, max_pool2d = true,
    linalg_cholesky = true, linalg_eigh = true, -- which read one triangle: their gradients are symmetric
}

local function inputs_of(case, get, change)
    local inputs = {}
    for _, i in ipairs(case.given) do
        local t = get(case.name .. ".in" .. i)
        local stays = (case.op == "softmax_cross_entropy" and i == 3) -- class weights are f32, and so are slopes
            or (case.op == "attention" and i == 6) or (case.op == "rope" and i == 3)
        t = mx.dtypes[t:dtype()].is_real and not stays and t:to("f64") or t
        inputs[i] = change and change(i, t) or t
    end
    return inputs
end

--- The sum of all results times dout, and the results.
local function loss_of(case, get, inputs)
    inputs[case.n_in + 1] = case.attrs
    local function call(...)
        if case.op == "einsum" then
            return mx.einsum(case.attrs.equation, table.unpack({ ... }, 1, case.n_in))
        end
        return mx[case.op](...)
    end
    local out, total = table.pack(call(table.unpack(inputs, 1, case.n_in + 1))), nil
    for j = 1, #case.grads > 0 and case.n_out or 0 do
        local term = mx.sum(out[j]:to("f64") * get(case.name .. ".dout" .. j):to("f64"))
        total = total and total + term or term
    end
    return total, out
end

local function check_differences(case, get, inputs, complain)
    for _, i in ipairs(case.grads) do
        local direction = mx.randn(inputs[i]:size(), { seed = 7 * i }):to("f64")
        local function loss_at(distance)
            return mx.no_grad(function()
                return loss_of(case, get, inputs_of(case, get, function(k, t)
                    return k == i and t + direction * distance or t
                end)):item()
            end)
        end
        local h = DIFFERENCE_STEP
        local slope = mx.sum(inputs[i]:grad() * direction):item()
        local measured = (loss_at(h) - loss_at(-h)) / (2 * h)
        local scale = compare.rms(inputs[i]:grad()) * math.sqrt(inputs[i]:numel()) + 1e-2
        local apart = math.abs(measured - slope) / scale
        if inputs[i]:numel() > 0 and (apart ~= apart or apart > DIFFERENCE_BOUND) then
            complain("grad" .. i, ("along a line is %.9g, differences give %.9g"):format(slope, measured))
        end
    end
end

-- Gradients of gradients are checked in this many cases of an operation.
local CASES_TWICE, twice = 3, {}

--- sum(y^2 w) of the results, its gradients, which are recorded if `record` is set, and their product with directions.
local function gradients_of(case, inputs, dtype, record)
    local asked, sum, total = {}, nil, nil
    for _, i in ipairs(case.grads) do
        asked[i] = inputs[i]:to(dtype):detach():clone():requires_grad()
    end
    for i, t in pairs(inputs) do
        inputs[i] = asked[i] or (mx.dtypes[t:dtype()].is_real and t:to(dtype)) or t
    end
    inputs[case.n_in + 1] = case.attrs
    for _, y in ipairs { mx[case.op](table.unpack(inputs, 1, case.n_in + 1)) } do
        if mx.dtypes[y:dtype()].is_real then
            local term = (y * y * (mx.rand(y:size(), { seed = 5 }) + 0.5):to(y:dtype())):sum()
            total = total and total + term or term
        end
    end
    local found = mx.grad(total, asked, { record = record })
    for _, i in ipairs(case.grads) do
        local term = (found[i] * mx.randn(found[i]:size(), { seed = 11 * i }):to(found[i]:dtype())):sum()
        sum = sum and sum + term or term
    end
    return sum, asked
end

--- Gradients of gradients, by mx.grad with record: slopes are those of differences of gradients, and those in f32,
--- where the fused operations run, are close to them.
local function check_twice(case, get, complain)
    local sum, asked = gradients_of(case, inputs_of(case, get), "f64", true)
    local ok, seconds = pcall(mx.grad, sum, asked)
    if not ok then
        lu.assertStrContains(tostring(seconds), "does not depend on", case.name)
        return
    end
    local narrow = mx.grad(gradients_of(case, inputs_of(case, get), "f32", true))
    for _, i in ipairs(case.grads) do
        local direction = mx.randn(asked[i]:size(), { seed = 7 * i }):to("f64")
        local function at(distance)
            return gradients_of(case, inputs_of(case, get, function(k, t)
                return k == i and t + direction * distance or t
            end), "f64", false):item()
        end
        local h, slope = 1e-4, (seconds[i] * direction):sum():item()
        local measured = (8 * (at(h / 2) - at(-h / 2)) - (at(h) - at(-h))) / (6 * h)
        local scale = compare.rms(seconds[i]) * math.sqrt(asked[i]:numel()) + 1e-2
        local off = math.abs(measured - slope) / scale
        if off ~= off or off > 1e-6 then
            complain("twice" .. i, ("along a line is %.9g, differences give %.9g"):format(slope, measured))
        end
        local apart = mx.norm(narrow[i]:to("f64") - seconds[i]):item() / scale
        if apart ~= apart or apart > 1e-4 then
            complain("twice" .. i, ("in f32 is off by %.3g"):format(apart))
        end
    end
end

-- Differences are not those of a smooth function, or too coarse.
local function is_smooth(case)
    return not (KINKED[case.op] or case.name:match("%.far") or case.name:match("%.small")
        or case.name:match("^scatter_reduce.ties"))
end

local function has_second_gradients(case, inputs)
    twice[case.op] = (twice[case.op] or 0) + 1
    for _, i in ipairs(case.grads) do
        if inputs[i]:numel() == 0 then
            return false
        end
    end
    return twice[case.op] <= CASES_TWICE and mx[case.op] and case.op ~= "einsum" and not case.op:match("^moe")
        and not case.op:match("_grad") and not case.name:match("%.zero") and not case.name:match("%.flat")
end

local function check(case, get, complain)
    local step <close> = mx.step()
    local inputs = inputs_of(case, get)
    for _, i in ipairs(case.grads) do
        inputs[i]:requires_grad()
    end
    local total, out = loss_of(case, get, inputs)
    local function compare_part(part, t, dtype)
        local apart = compare.distance(t, get(case.name .. "." .. part))
        if apart > BOUND or t:dtype() ~= dtype then
            complain(part, ("is %s and off by %.3g, bound %.3g"):format(t:dtype(), apart, BOUND))
        end
    end
    for j = 1, case.n_out do
        compare_part("out" .. j, out[j], mx.dtypes[out[j]:dtype()].is_real and "f64" or out[j]:dtype())
    end
    if total then
        mx.backward(total)
        for _, i in ipairs(case.grads) do
            compare_part("grad" .. i, inputs[i]:grad(), "f64")
        end
        if is_smooth(case) then
            check_differences(case, get, inputs, complain)
        end
        if is_smooth(case) and has_second_gradients(case, inputs) then
            check_twice(case, get, complain)
        end
    end
    assert(step)
end

TestOpsInF64 = {}

local computed, refused = {}, {}
for _, file in ipairs(FILES) do
    local cases, get = compare.packed(file)
    for _, case in ipairs(cases) do
        local name = "test_" .. case.op
        local before = TestOpsInF64[name]
        TestOpsInF64[name] = not (case.after or case.dtypes or NAMES_DTYPE[case.op]) and function()
            if before then
                before()
            end
            local complaints = {}
            local ok, message = pcall(check, case, get, function(part, text)
                complaints[#complaints + 1] = case.name .. ": " .. part .. " " .. text
            end)
            lu.assertEquals(table.concat(complaints, "\n"), "")
            if ok then
                computed[case.op] = true
                return
            end
            for _, words in ipairs(REFUSALS) do
                if tostring(message):find(words, 1, true) then
                    refused[case.op] = true
                    return
                end
            end
            lu.fail(case.name .. " raised: " .. tostring(message))
        end or before
    end
end

-- What mx.gradcheck needs, in the order of the families.
function TestOpsInF64.test_zz_what_computes()
    for name in ("matmul column_sum gather cumsum scatter_add scatter_reduce add sub mul div maximum minimum eq lt "
        .. "where affine "
        .. "pow exp log sqrt rsqrt abs tanh sigmoid square sin cos relu gelu silu gated sum mean max argmax "
        .. "sum_squares reduce_to reshape narrow concat permute transpose erf log1p expm1 floor ceil round "
        .. "sign softplus leaky_relu elu clamp isnan isfinite power lerp masked_fill mse_loss l1_loss "
        .. "huber_loss bce_with_logits kl_div softmax_cross_entropy rmsnorm layernorm batch_norm group_norm softmax "
        .. "log_softmax attention cross_entropy var std norm logsumexp sort argsort topk conv1d conv2d avg_pool1d "
        .. "avg_pool2d max_pool1d max_pool2d rope embedding embedding_bag linalg_solve linalg_cholesky linalg_eigh "
        .. "linalg_qr linalg_svd linalg_slogdet tan asin acos atan sinh cosh asinh acosh atanh atan2 "
        .. "remainder fmod fft rfft irfft"):gmatch "%S+" do
        lu.assertTrue(computed[name] and not refused[name], name .. " in f64")
    end
end

TestBytes = {}

-- Integers of 8 bits meet bf16 as they do in f32, rounded once; on either side, and broadcast.
function TestBytes.test_with_bf16()
    compare.on_each_isa(function(isa)
        local step <close> = mx.step()
        for dtype, first in pairs { u8 = 0, i8 = -128 } do
            local bytes = mx.arange(256, { start = first }):to(dtype)
            local x = mx.randn({ 37, 256 }, { seed = 2, dtype = "bf16" })
            for _, op in ipairs { "mul", "add", "sub", "maximum" } do
                for _, b in ipairs { bytes, bytes[{ { 256, 256 } }] } do
                    local left, right = mx[op](b:to("f32"), x:to("f32")), mx[op](x:to("f32"), b:to("f32"))
                    lu.assertEquals(compare.flat(mx[op](b, x)), compare.flat(left:to("bf16")), isa .. " " .. op)
                    lu.assertEquals(compare.flat(mx[op](x, b)), compare.flat(right:to("bf16")), isa .. " " .. op)
                end
            end
        end
        assert(step)
    end)
end

TestI64 = {}

local MOST, LEAST = math.maxinteger, math.mininteger

function TestI64.test_values_are_exact()
    local values = { MOST, LEAST, 2 ^ 53 // 1 | 1, -1 }
    local t = mx.tensor(values, "i64")
    lu.assertEquals(t:totable(), values)
    lu.assertEquals({ t[1], t:get(3), mx.max(t):item(), mx.argmax(t):item() }, { MOST, 9007199254740993, MOST, 0 })
    lu.assertStrContains(tostring(t), "9223372036854775807")
    t:set(4, MOST - 1)
    lu.assertEquals(t:get(4), MOST - 1)
    lu.assertEquals(mx.eq(t, MOST - 1):totable(), { 0, 0, 0, 1 })
    lu.assertEquals(mx.lt(t, 1e19):totable(), { 1, 1, 1, 1 })
    lu.assertEquals(mx.gt(t, -1e19):totable(), { 1, 1, 1, 1 })
    lu.assertEquals(mx.argmax(mx.tensor({ MOST - 1, MOST }, "i64")):item(), 1)
end

function TestI64.test_arithmetic_saturates()
    local t = mx.tensor({ MOST, LEAST, 7, -7 }, "i64")
    lu.assertEquals((t + 1):totable(), { MOST, LEAST + 1, 8, -6 })
    lu.assertEquals((t - 1):totable(), { MOST - 1, LEAST, 6, -8 })
    lu.assertEquals((-t):totable(), { -MOST, MOST, -7, 7 })
    lu.assertEquals((t * t):totable(), { MOST, MOST, 49, 49 })
    lu.assertEquals((t + t):totable(), { MOST, LEAST, 14, -14 })
    lu.assertEquals((t - mx.tensor({ LEAST, 1, 1, 1 }, "i64")):totable(), { MOST, LEAST, 6, -8 })
    lu.assertEquals((t // 2):totable(), { MOST // 2, LEAST // 2, 3, -4 })
    lu.assertEquals((t // -1):totable(), { -MOST, MOST, -7, 7 })
    lu.assertEquals(mx.tensor({ MOST, LEAST }, "i64"):sum():item(), -1)
end

function TestI64.test_conversions()
    local t = mx.tensor({ MOST, LEAST, 2 ^ 40 // 1, -3 }, "i64")
    lu.assertEquals(t:to("i32"):totable(), { 2147483647, -2147483648, 2147483647, -3 })
    lu.assertEquals(t:to("u8"):totable(), { 255, 0, 255, 0 })
    lu.assertEquals(t:to("f64"):totable(), { 2.0 ^ 63, -2.0 ^ 63, 2.0 ^ 40, -3.0 })
    lu.assertEquals(mx.tensor({ 2 ^ 24 // 1 + 1, 2 ^ 60 // 1 + 1 }, "i64"):to("f32"):totable(), { 2.0 ^ 24, 2.0 ^ 60 })
    local f = mx.tensor({ 1e30, -1e30, 0 / 0, -2.75 }, "f64")
    lu.assertEquals(f:to("i64"):totable(), { MOST, LEAST, 0, -2 })
    lu.assertEquals(mx.tensor({ 0.1 }, "f64"):item(), 0.1)
    lu.assertEquals(mx.arange({ n = 3, start = 2 ^ 40, step = -(2 ^ 40), dtype = "i64" }):totable(),
        { 1 << 40, 0, -(1 << 40) })
    lu.assertEquals(mx.full({ 2 }, { value = -5, dtype = "i64" }):totable(), { -5, -5 })
end

-- An integer tensor combined with a float tensor is converted to the float's dtype.
function TestI64.test_promotion()
    for _, dtype in ipairs { "f32", "bf16", "f64" } do
        local x = mx.tensor({ { 1.5, -2, 4 }, { 3, 0.25, -8 } }, dtype):requires_grad()
        for _, whole in ipairs { "u8", "i8", "i32", "i64" } do
            local mask = mx.tensor({ 1, 0, 3 }, whole)
            local y = mask * x
            lu.assertEquals({ y:dtype(), y:totable() }, { dtype, { { 1.5, 0, 12 }, { 3, 0, -24 } } })
            x:zero_grad()
            mx.backward(mx.sum(x * mask - mask / x))
            local g, expected = x:grad():totable(), { { 1, 0, 3 }, { 1, 0, 3 } }
            for i, row in ipairs(x:totable()) do
                for j, v in ipairs(row) do
                    lu.assertAlmostEquals(g[i][j], expected[i][j] + ({ 1, 0, 3 })[j] / v ^ 2, 1e-2)
                end
            end
            lu.assertEquals(mx.maximum(mask, x):totable(), { { 1.5, 0, 4 }, { 3, 0.25, 3 } })
        end
    end
end
