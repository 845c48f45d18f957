--- Operations on tensors of different dtypes: which dtype comes out, that the values are those of the rounded operands,
-- and that a parameter's gradient is f32 whatever it is used with.

local mx = require "mx"
local lu = require "luaunit"
local util = require "mx.util"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

TestDtypes = {}

-- One rounding to bf16 (8 bits); and where operands or gradients are rounded on the way too.
local ONE_ROUNDING, SEVERAL = 2 ^ -8 + 1e-4, 2 ^ -6

local function rounded(t)
    return t:to("bf16"):to("f32")
end

--- fn on the given inputs against fn on `expected` (f32) inputs: values, the result's dtype, and every gradient.
local function agree(what, dtype, bound, fn, given, expected)
    local step <close> = mx.step()
    local function run(inputs)
        for _, t in ipairs(inputs) do
            t:requires_grad()
        end
        local out = fn(table.unpack(inputs))
        local dout = rounded(mx.randn(out:size(), { seed = 77 }))
        mx.backward(mx.sum(out:to("f32") * dout))
        return out
    end
    local a, b = run(given), run(expected)
    lu.assertEquals(a:dtype(), dtype, what .. ": dtype of the result")
    local apart = compare.distance(a, b)
    lu.assertTrue(apart <= bound, ("%s: the result is off by %.3g, bound %.3g"):format(what, apart, bound))
    for i, t in ipairs(given) do
        lu.assertEquals(t:grad():dtype(), "f32", what .. ": dtype of a leaf's gradient")
        lu.assertTrue(compare.same_sizes(t:grad(), t), what)
        apart = compare.distance(t:grad(), expected[i]:grad())
        lu.assertTrue(apart <= SEVERAL, ("%s: gradient %d is off by %.3g"):format(what, i, apart))
    end
    assert(step)
end

local function normal(seed, ...)
    return rounded(mx.randn({ ... }, { seed = seed }))
end

function TestDtypes.test_matmul()
    compare.on_each_isa(function(isa)
        local x, w, bias = mx.randn({ 3, 5, 33 }, { seed = 1 }), mx.randn({ 33, 19 }, { seed = 2 }), normal(3, 19)
        -- A bf16 product rounds its f32 operand.
        agree(isa .. " bf16 x f32", "bf16", ONE_ROUNDING, mx.matmul, { x:to("bf16"), w:clone(), bias:clone() },
            { rounded(x), rounded(w), bias:clone() })
        agree(isa .. " f32 x bf16", "f32", ONE_ROUNDING, mx.matmul, { x:clone(), w:to("bf16") },
            { rounded(x), rounded(w) })
        agree(isa .. " bf16 bias", "bf16", ONE_ROUNDING, mx.matmul, { x:to("bf16"), w:to("bf16"), bias:to("bf16") },
            { rounded(x), rounded(w), bias:clone() })
        -- With an f32 result nothing but the operands is rounded: sums of 33 exact products in f32.
        local function to_f32(a, b)
            return mx.matmul(a, b, { dtype = "f32" })
        end
        agree(isa .. " bf16 -> f32", "f32", 1e-5, to_f32, { x:to("bf16"), w:to("bf16") }, { rounded(x), rounded(w) })
        local function to_bf16(a, b)
            return mx.matmul(a, b, { dtype = "bf16" })
        end
        agree(isa .. " f32 -> bf16", "bf16", ONE_ROUNDING, to_bf16, { rounded(x), rounded(w) },
            { rounded(x), rounded(w) })
    end)
end

function TestDtypes.test_norms()
    compare.on_each_isa(function(isa)
        local x, w, b = normal(1, 7, 33), mx.randn({ 33 }, { seed = 2 }), mx.randn({ 33 }, { seed = 3 })
        agree(isa .. " rmsnorm", "bf16", ONE_ROUNDING, mx.rmsnorm, { x:to("bf16"), w:clone() },
            { x:clone(), w:clone() })
        agree(isa .. " rmsnorm", "f32", 1e-5, mx.rmsnorm, { x:clone(), w:to("bf16") }, { x:clone(), rounded(w) })
        agree(isa .. " layernorm", "bf16", ONE_ROUNDING, mx.layernorm, { x:to("bf16"), w:clone(), b:clone() },
            { x:clone(), w:clone(), b:clone() })
        agree(isa .. " layernorm", "f32", 1e-5, mx.layernorm, { x:clone(), w:to("bf16"), b:to("bf16") },
            { x:clone(), rounded(w), rounded(b) })
    end)
end

function TestDtypes.test_elementwise_takes_the_first_ones_dtype()
    compare.on_each_isa(function(isa)
        for _, op in ipairs { "add", "sub", "mul", "maximum", "minimum", "gated" } do
            local a, b = normal(1, 5, 33), normal(2, 5, 33)
            agree(isa .. " " .. op, "bf16", ONE_ROUNDING, mx[op], { a:to("bf16"), b:clone() }, { a:clone(), b:clone() })
            if op ~= "gated" then
                agree(isa .. " " .. op, "f32", 1e-6, mx[op], { a:clone(), b:to("bf16") }, { a:clone(), b:clone() })
            end
        end
    end)
end

function TestDtypes.test_embedding()
    compare.on_each_isa(function(isa)
        local table_f32, ids = normal(1, 11, 33), mx.tensor({ { 0, 3, 3 }, { 10, 1, 3 } }, "i32")
        for _, dtype in ipairs { "f32", "bf16" } do
            local function look_up(t)
                return mx.embedding(t, ids, { dtype = dtype })
            end
            agree(isa, dtype, 0, look_up, { table_f32:clone() }, { table_f32:clone() })
            agree(isa, dtype, 0, look_up, { table_f32:to("bf16") }, { table_f32:clone() })
        end
        agree(isa, "bf16", 0, function(t)
            return mx.embedding(t, ids)
        end, { table_f32:to("bf16") }, { table_f32:clone() })
    end)
end

function TestDtypes.test_cross_entropy_of_bf16_states_and_f32_weights()
    compare.on_each_isa(function(isa)
        local h, w = normal(1, 13, 17), normal(2, 67, 17)
        local ids = {}
        for i = 1, 13 do
            ids[i] = 5 * i
        end
        local targets = mx.tensor(ids, "i32")
        agree(isa, "f32", 1e-5, function(x, weight)
            return mx.cross_entropy(x, weight, targets)
        end, { h:to("bf16"), w:clone() }, { h:clone(), w:clone() })
    end)
end

function TestDtypes.test_optimizers_on_bf16_parameters()
    compare.on_each_isa(function(isa)
        local step <close> = mx.step()
        local p, g = normal(1, 5, 33), normal(2, 5, 33)
        for name, update in pairs {
            adamw = function(param, grad)
                local m, v = mx.zeros { 5, 33 }, mx.zeros { 5, 33 }
                mx.adamw(param, grad, m, v, { lr = 0.1, step = 1, weight_decay = 0.1 })
                return m, v
            end,
            sgd = function(param, grad)
                local state = mx.zeros { 5, 33 }
                mx.sgd(param, grad, state, { lr = 0.1, momentum = 0.9 })
                return state, state
            end,
        } do
            local wide, narrow = p:clone(), p:to("bf16")
            local m, v = update(wide, g)
            local m_narrow, v_narrow = update(narrow, g:to("bf16"))
            lu.assertEquals(narrow:dtype(), "bf16")
            lu.assertTrue(compare.distance(narrow, wide) <= ONE_ROUNDING, name .. " " .. isa)
            lu.assertEquals(compare.distance(m_narrow, m), 0, name .. " " .. isa)
            lu.assertEquals(compare.distance(v_narrow, v), 0, name .. " " .. isa)
        end
        assert(step)
    end)
end

--- Scalars on either side of an operator, and what division and powers of integers' worth do.
function TestDtypes.test_scalars_on_both_sides()
    local step <close> = mx.step()
    local t = mx.tensor { 1, 2, 4 }
    for _, pair in ipairs {
        { t + 1, { 2, 3, 5 } }, { 1 + t, { 2, 3, 5 } }, { t - 1, { 0, 1, 3 } }, { 1 - t, { 0, -1, -3 } },
        { t * 3, { 3, 6, 12 } }, { 3 * t, { 3, 6, 12 } }, { t / 2, { 0.5, 1, 2 } }, { 8 / t, { 8, 4, 2 } },
        { -t, { -1, -2, -4 } }, { t ^ 2, { 1, 4, 16 } }, { t ^ -1, { 1, 0.5, 0.25 } },
        { t + t, { 2, 4, 8 } }, { t - t, { 0, 0, 0 } }, { t * t, { 1, 4, 16 } }, { t / t, { 1, 1, 1 } },
    } do
        lu.assertAlmostEquals(compare.distance(pair[1], pair[2]), 0, 1e-6)
        lu.assertEquals(pair[1]:dtype(), "f32")
        lu.assertEquals((pair[1]:to("bf16") * 2):dtype(), "bf16")
    end
    assert(step)
end

function TestDtypes.test_nan_and_infinity_survive()
    compare.on_each_isa(function(isa)
        local step <close> = mx.step()
        local inf = math.huge
        local x = mx.tensor { 0 / 0, inf, -inf, 0, 1 }
        for _, dtype in ipairs { "f32", "bf16" } do
            local t = x:to(dtype)
            local values = compare.flat(t:to("f32"))
            lu.assertTrue(values[1] ~= values[1] and values[2] == inf and values[3] == -inf, isa .. dtype)
            -- A NaN reaches whatever it has a part in: a run must be able to see that it has gone wrong.
            for name, y in pairs {
                add = t + 1, exp = mx.exp(t), relu = mx.relu(t), gelu = mx.gelu(t), silu = mx.silu(t), abs = mx.abs(t),
                tanh = mx.tanh(t), sigmoid = mx.sigmoid(t), square = mx.square(t), sqrt = mx.sqrt(t), log = mx.log(t),
                maximum = mx.maximum(t, t * 0 + 1), minimum = mx.minimum(t, t * 0 + 1), sin = mx.sin(t),
                cos = mx.cos(t), gated = mx.gated(t, t), rsqrt = mx.rsqrt(t), pow = t ^ 3, power = t ^ t,
                erf = mx.erf(t), log1p = mx.log1p(t), expm1 = mx.expm1(t), softplus = mx.softplus(t), elu = mx.elu(t),
                leaky_relu = mx.leaky_relu(t), clamp = mx.clamp(t, { min = 0 }), floor = mx.floor(t),
                sign = mx.sign(t),
            } do
                local v = compare.flat(y)[1]
                lu.assertTrue(v ~= v, ("%s of a NaN is %g (%s, %s)"):format(name, v, dtype, isa))
            end
            for name, y in pairs {
                sum = mx.sum(t), mean = mx.mean(t), max = mx.max(t), sum_squares = mx.sum_squares(t),
                softmax = mx.softmax(t), rmsnorm = mx.rmsnorm(t),
            } do
                local v = compare.flat(y)[1]
                lu.assertTrue(v ~= v, ("%s over a NaN is %g (%s, %s)"):format(name, v, dtype, isa))
            end
        end
        assert(step)
    end)
end

function TestDtypes.test_properties()
    local bf16, i8 = mx.dtypes.bf16, mx.dtypes.i8
    lu.assertEquals(bf16, {
        bytes = 2, long_name = "bfloat16", is_float = true, is_real = true, computes = true,
        may_have_gradient = true,
        accumulates_in = "f32",
    })
    lu.assertEquals(i8, {
        bytes = 1, long_name = "int8", is_float = false, is_real = false, computes = false,
        may_have_gradient = false,
        accumulates_in = "i32",
        bound = 127.5,
    })
    for name, dtype in pairs(mx.dtypes) do
        lu.assertEquals(mx.zeros({ 3 }, name):bytes(), 3 * dtype.bytes, name)
        lu.assertEquals(util.dtype(dtype.long_name), name)
        lu.assertEquals(pcall(mx.exp, mx.zeros({ 3 }, name)), dtype.is_real, name)
        local t = mx.zeros({ 3 }, name)
        lu.assertEquals(pcall(t.requires_grad, t), dtype.may_have_gradient, name)
    end
    lu.assertEquals(util.float_names(), { "bfloat16", "float32" })
    lu.assertErrorMsgContains("'float16'", util.dtype, "float16")
    lu.assertErrorMsgContains("expected f32, bf16, i32, u8", mx.zeros, { 1 }, "f16")
end

-- What only moves values takes every dtype: views, copies, files.
function TestDtypes.test_every_dtype_moves()
    local folder = os.tmpname()
    os.remove(folder)
    mx.io.mkdir_p(folder)
    local tensors, plan = {}, {}
    for name in util.sorted_pairs(mx.dtypes) do
        local t = mx.tensor({ { 0, 1, 2 }, { 3, 4, 96 } }, name)
        lu.assertEquals(t:totable(), { { 0, 1, 2 }, { 3, 4, 96 } }, name)
        lu.assertStrContains(tostring(t), "96")
        lu.assertStrContains(tostring(t), ("[%s tensor of size 2x3 on "):format(name))
        lu.assertEquals(mx.transpose(t):totable(), { { 0, 3 }, { 1, 4 }, { 2, 96 } }, name)
        lu.assertEquals(mx.concat(t, t, { dim = 2 }):narrow({ dim = 2, start = 3, length = 2 }):totable(),
            { { 2, 0 }, { 96, 3 } }, name)
        lu.assertEquals(t[2]:clone():view(3, 1):totable(), { { 3 }, { 4 }, { 96 } }, name)
        lu.assertEquals(mx.full({ 2 }, 96, name):totable(), { 96, 96 }, name)
        lu.assertEquals(mx.copy(mx.zeros { 2, 3 }, t):totable(), { { 0, 1, 2 }, { 3, 4, 96 } }, name)
        lu.assertEquals(t:set(1, 1, 5):get(1, 1), 5, name)
        tensors[name], plan[#plan + 1] = t, { name = name, dtype = name, shape = t:size() }
    end
    mx.io.h5_write(folder .. "/t.h5", tensors)
    local writer = mx.io.safetensors_writer(folder .. "/t.safetensors", plan)
    for name, t in pairs(tensors) do
        writer:put(name, t)
    end
    writer:commit()
    local read, file <close> = mx.io.h5_read(folder .. "/t.h5"), mx.io.weights_open(folder .. "/t.safetensors")
    for name, t in pairs(tensors) do
        for _, again in ipairs { read[name], file:read(name) } do
            lu.assertEquals({ again:dtype(), again:totable() }, { name, t:totable() })
        end
    end
    os.remove(folder .. "/t.h5")
    os.remove(folder .. "/t.safetensors")
    os.remove(folder)
end

-- Storage dtypes: no gradient passes through the conversion, and whatever computes refuses them by name.
function TestDtypes.test_eight_bit_floats_only_store()
    lu.assertEquals(mx.tensor({ 464, -448, 0.0175, 2 ^ -10 }):to("e4m3"):totable(), { 448, -448, 0.017578125, 0 })
    lu.assertEquals(mx.tensor({ 61439, 61440, -1e9, 2 ^ -16 }):to("e5m2"):totable(),
        { 57344, math.huge, -math.huge, 2 ^ -16 })
    local nan = mx.tensor(466):to("bf16"):to("e4m3"):item()
    lu.assertTrue(nan ~= nan)
    lu.assertEquals(mx.tensor({ 1000, -7 }, "i32"):to("e5m2"):to("i32"):totable(), { 1024, -7 })
    lu.assertEquals(mx.tensor({ 247, -240, -2 ^ -11, 2 ^ -10 }):to("e4m3fnuz"):totable(), { 240, -240, 0, 2 ^ -10 })
    nan = mx.tensor(248):to("e4m3fnuz"):item()
    lu.assertTrue(nan ~= nan)
    for _, name in ipairs { "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz" } do
        local x, ids = mx.ones({ 4, 4 }, name), mx.zeros({ 2 }, "i32")
        for what, fn in pairs {
            add = function() return x + x end, affine = function() return x * 2 end, neg = function() return -x end,
            div = function() return x / x end, idiv = function() return x // x end, pow = function() return x ^ 2 end,
            maximum = function() return mx.maximum(x, 0) end, eq = function() return x:eq(1) end,
            where = function() return mx.where(mx.ones({ 4, 4 }, "u8"), x, x) end,
            exp = function() return mx.exp(x) end,
            sum = function() return mx.sum(x) end, mean = function() return mx.mean(x) end,
            max = function() return mx.max(x) end, argmax = function() return mx.argmax(x) end,
            sum_squares = function() return mx.sum_squares(x) end, matmul = function() return mx.matmul(x, x) end,
            result = function() return mx.matmul(mx.ones { 4, 4 }, mx.ones { 4, 4 }, nil, { dtype = name }) end,
            softmax = function() return mx.softmax(x) end, embedding = function() return mx.embedding(x, ids) end,
            randn = function() return mx.randn({ 2 }, { dtype = name }) end, add_ = function() mx.add_(x, x) end,
            sgd = function() mx.sgd(x, mx.ones { 4, 4 }, nil, { lr = 1 }) end,
            all_reduce = function() return mx.all_reduce(x) end, requires_grad = function() x:requires_grad() end,
        } do
            local ok, message = pcall(fn)
            lu.assertFalse(ok, what)
            lu.assertStrContains(tostring(message), name, false, what)
        end
        local w = mx.ones({ 2 }):requires_grad()
        local through = w:to(name):to("f32")
        lu.assertErrorMsgContains("requires a gradient", function() mx.backward(mx.sum(through)) end)
    end
end
