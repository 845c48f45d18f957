--- Functions composed of operations (lua/mx/composed.lua): values and gradients against PyTorch, and refusals.

local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")
local lu = require "luaunit"
local mx = require "mx"

local golden = mx.io.h5_read(compare.here .. "../golden/composed.h5")

-- Sums of at most a few dozen products, f32 against float64.
local BOUND = 2e-6

-- The options of the cases of tests/golden/make_golden_composed.py.
local CASES = {
    ["unfold.middle"] = function(i) return mx.unfold(i.x, { dim = 2, size = 3, step = 2 }) end,
    ["unfold.last"] = function(i) return mx.unfold(i.x, { size = 4 }) end,
    ["interpolate.nearest"] = function(i) return mx.interpolate(i.x, { scale = 3 }) end,
    ["interpolate.nearest_size"] = function(i) return mx.interpolate(i.x, { size = { 7, 3 } }) end,
    ["interpolate.line"] = function(i) return mx.interpolate(i.x, { size = { 9 }, mode = "linear" }) end,
    ["interpolate.up"] = function(i) return mx.interpolate(i.x, { scale = 2, mode = "linear" }) end,
    ["interpolate.down"] = function(i) return mx.interpolate(i.x, { size = { 2, 3 }, mode = "linear" }) end,
    conv_transpose1d = function(i)
        return mx.conv_transpose1d(i.x, i.w, i.b, { stride = 3, padding = 1, output_padding = 2 })
    end,
    conv_transpose2d = function(i)
        return mx.conv_transpose2d(i.x, i.w, i.b, { stride = { 2, 1 }, padding = { 1, 0 }, groups = 2,
            dilation = { 1, 2 } })
    end,
    ["prod.all"] = function(i) return mx.prod(i.x) end,
    ["prod.middle"] = function(i) return mx.prod(i.x, { dim = 2 }) end,
    ["prod.keep"] = function(i) return mx.prod(i.x, { dim = -1, keepdim = true }) end,
    cumprod = function(i) return mx.cumprod(i.x, { dim = 2 }) end,
    normalize = function(i) return mx.normalize(i.x, { dim = 2 }) end,
    ["normalize.eps"] = function(i) return mx.normalize(i.x, { eps = 2 }) end,
    ["linear_scan.first"] = function(i) return mx.linear_scan(i.a, i.x, { dim = 1 }) end,
    ["linear_scan.middle"] = function(i) return mx.linear_scan(i.a, i.x, { dim = 2 }) end,
    ["linear_scan.reverse"] = function(i) return mx.linear_scan(i.a, i.x, { dim = -1, reverse = true }) end,
    batch_norm = function(i)
        local params, buffers = {}, {}
        local norm = mx.nn.batch_norm(params, "norm", 3, { buffers = buffers, momentum = 0.3, eps = 1e-4 })
        mx.copy(params["norm.weight"]:detach(), i.w:detach())
        mx.copy(params["norm.bias"]:detach(), i.b:detach())
        local y = norm(i.x, true) + norm(2 * i.x)
        for _, key in ipairs { "mean", "var" } do
            lu.assertTrue(compare.distance(buffers["norm." .. key], golden["batch_norm." .. key]) < BOUND)
        end
        i.w, i.b = params["norm.weight"], params["norm.bias"]
        return y
    end,
}

TestComposed = {}

function TestComposed.setUp()
    TestComposed.step = mx.step()
end

function TestComposed.tearDown()
    local step <close> = TestComposed.step
    TestComposed.step = nil
    assert(step)
end

for name, f in pairs(CASES) do
    TestComposed["test_" .. name:gsub("%.", "_")] = function()
        local inputs = {}
        for _, key in ipairs { "x", "w", "b", "a" } do
            local value = golden[name .. "." .. key]
            inputs[key] = value and value:clone():requires_grad()
        end
        local y = f(inputs)
        lu.assertEquals(y:size(), golden[name .. ".y"]:size())
        lu.assertTrue(compare.distance(y, golden[name .. ".y"]) < BOUND)
        mx.backward((y * golden[name .. ".dy"]):sum())
        for key, t in pairs(inputs) do
            lu.assertTrue(compare.distance(t:grad(), golden[name .. ".d" .. key]) < BOUND, key)
        end
    end
end

function TestComposed.test_dtypes()
    local x = mx.arange(6, "i32")
    lu.assertEquals(mx.unfold(x, { size = 2, step = 3 }):totable(), { { 0, 1 }, { 3, 4 } })
    lu.assertEquals(mx.eye(2, "u8"):totable(), { { 1, 0 }, { 0, 1 } })
    lu.assertEquals(mx.linspace(-1, 1, 5, "f64"):totable(), { -1, -0.5, 0, 0.5, 1 })
    lu.assertEquals(mx.linspace(3, 9, 1):totable(), { 3 })
    local image = mx.arange(4, "f64"):view(1, 1, 4)
    lu.assertEquals(mx.interpolate(image, { scale = 2, mode = "linear" }):totable(),
        { { { 0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3 } } })
end

-- Element i of the result is element 2 i of x, or, with "linear", halfway between that and the next.
function TestComposed.test_interpolate_to_the_half()
    local x = mx.tensor { 1, 5, 7, 2, 3, 9 }:view(1, 1, 6)
    lu.assertEquals(mx.interpolate(x, { scale = 0.5 }):view(-1):totable(), { 1, 7, 3 })
    lu.assertEquals(mx.interpolate(x, { scale = 0.5, mode = "linear" }):view(-1):totable(), { 3, 4.5, 6 })
    local image = mx.arange(4):view(1, 1, 2, 2)
    lu.assertEquals(mx.interpolate(image, { size = 4 }):totable(), mx.interpolate(image, { size = { 4, 4 } }):totable())
end

function TestComposed.test_unique()
    local x = mx.tensor({ { 3, 1, 3 }, { 7, 3, -2 } }, "i32")
    local values, ids, counts = mx.unique(x)
    lu.assertEquals(values:totable(), { -2, 1, 3, 7 })
    lu.assertEquals(ids:totable(), { { 2, 1, 2 }, { 3, 2, 0 } })
    lu.assertEquals(counts:totable(), { 1, 1, 3, 1 })
    lu.assertEquals(values[ids:view(-1)]:totable(), x:view(-1):totable())
    local nans = mx.unique(mx.tensor { 0 / 0, 1, 0 / 0 })
    lu.assertEquals(nans:size(), { 3 }) -- as in PyTorch, NaN equals nothing
    lu.assertEquals(mx.unique(mx.zeros(0)):size(), { 0 })
    lu.assertEquals(mx.unique(mx.tensor(5, "i32")):totable(), { 5 })
end

function TestComposed.test_shapes_and_dtypes_along_a_dimension()
    local x = mx.tensor({ { 2, -3, 4 }, { 1, 0, 5 } }, "i32")
    lu.assertEquals(mx.prod(x, { dim = 2 }):totable(), { -24, 0 })
    lu.assertEquals(mx.prod(x, { dim = 1, keepdim = true }):totable(), { { 2, 0, 20 } })
    lu.assertEquals({ mx.prod(x):size(), mx.prod(x, { keepdim = true }):size() }, { {}, { 1, 1 } })
    lu.assertEquals(mx.prod(mx.zeros(2, 0), { dim = 2 }):totable(), { 1, 1 })
    lu.assertEquals(mx.cumprod(x):totable(), { { 2, -6, -24 }, { 1, 0, 0 } })
    lu.assertEquals(mx.cumprod(mx.zeros(2, 0)):size(), { 2, 0 })
    lu.assertEquals(mx.linear_scan(0.5, mx.tensor({ 4, 0, 8 }, "f64"), { dim = 1 }):totable(), { 4, 2, 9 })
    lu.assertEquals(mx.linear_scan(mx.tensor { { 2 } }, mx.ones(2, 3), { dim = 2 }):totable(),
        { { 1, 3, 7 }, { 1, 3, 7 } })
    lu.assertEquals(mx.linear_scan(2, mx.ones(1, 1), { dim = 2 }):totable(), { { 1 } })
    lu.assertEquals(mx.linear_scan(2, mx.ones(2, 0), { dim = 2 }):size(), { 2, 0 })
    for _, n in ipairs { 1, 1024, 2050 } do
        local steps = mx.arange(n) + 1
        lu.assertTrue(compare.identical(mx.linear_scan(1, mx.ones(n), { dim = 1 }), steps))
        lu.assertTrue(compare.identical(mx.linear_scan(1, mx.ones(n), { dim = 1, reverse = true }),
            mx.flip(steps, { dim = 1 })))
    end
    -- The state is f32: 1 + 2^-9 rounds to 1 in bf16 each time.
    local b = mx.full({ 513 }, 2.0 ^ -9)
    b:set(1, 1)
    lu.assertEquals(mx.linear_scan(1, b:to("bf16"), { dim = 1 }):to("f32"):get(513), 2)
end

-- h[t] = a[t] h[t - 1] + b[t] in Lua numbers, for lines t of matrices (outer, n, inner) along dimension 2.
local function scanned(a, b, o, i, n, reverse, lagged)
    local h, values = 0, {}
    for k = 1, n do
        local t = reverse and n + 1 - k or k
        local from = lagged and (reverse and t + 1 or t - 1) or t
        h = (k > 1 and a[o][from][i] * h or 0) + b[o][t][i]
        values[t] = h
    end
    return values
end

-- Compares h, the states of a and b along the second of three dimensions, with the loop above.
local function check_scanned(a, b, h, shape, reverse, lagged, bound, name)
    local function values(t)
        return t:to("f32"):view(shape):totable()
    end
    local x, y, got = values(a), values(b), values(h)
    for o = 1, shape[1] do
        for i = 1, shape[3] do
            for t, want in ipairs(scanned(x, y, o, i, shape[2], reverse, lagged)) do
                lu.assertTrue(math.abs(got[o][t][i] - want) <= bound, name)
            end
        end
    end
end

local DTYPES = { { "f32", "f32" }, { "bf16", "bf16" }, { "f32", "bf16" }, { "bf16", "f32" } } -- of a and b

function TestComposed.test_linear_scan_on_every_path()
    -- |a| <= 1: a state is a sum of at most n = 9 elements, and loses half a unit of 2^-24 in each of 2 n roundings.
    local n, bounds, before = 9, { f32 = 18 * 2.0 ^ -24 * 9, bf16 = 2.0 ^ -9 * 9 }, mx.isa()
    for _, path in ipairs { "portable", "avx2", "avx512", "avx512_bf16" } do
        for case = 1, pcall(mx.isa, path) and 40 or 0 do
            local inner, outer = ({ 1, 3, 8, 33, 67 })[case % 5 + 1], case % 3 == 0 and 18 or 2 -- 18: more than LINES
            local reverse, lagged = case % 2 == 0, case % 4 > 1
            local dtypes = DTYPES[case % 4 + 1]
            local a = mx.rand { shape = { outer, n, inner }, low = -1, high = 1, seed = case }:to(dtypes[1])
            local b = mx.rand { shape = { outer, n, inner }, low = -1, high = 1, seed = -case }:to(dtypes[2])
            local h = mx.linear_scan(a, b, { dim = 2, reverse = reverse, lagged = lagged })
            lu.assertEquals(h:dtype(), dtypes[2])
            check_scanned(a, b, h, { outer, n, inner }, reverse, lagged, bounds[dtypes[2]], path .. " case " .. case)
        end
    end
    mx.isa(before)
end

-- Rows of several runs and of no whole number of them, more rows than lanes and fewer.
function TestComposed.test_linear_scan_of_long_rows()
    -- |a| <= 1/2, so |h| <= 2, and the error of a state is at most twice that of a step, which rounds a h and a h + b.
    local bounds, before = { f32 = 2 * (1 + 0.5) * 2.0 ^ -24, bf16 = 1.01 * 2.0 ^ -8 }, mx.isa()
    for _, path in ipairs { "portable", "avx2", "avx512", "avx512_bf16" } do
        for case = 1, pcall(mx.isa, path) and 16 or 0 do
            local reverse, lagged = case % 2 == 0, case % 4 > 1
            local rows = ({ 1, 7, 16, 19 })[(case - 1) // 4 + 1]
            local n = ({ 17, 512, 777, 1100 })[(case + case // 4) % 4 + 1]
            for dtype, bound in pairs(bounds) do
                local a = mx.rand { shape = { rows, n }, low = -0.5, high = 0.5, seed = case }:to(dtype)
                local b = mx.rand { shape = { rows, n }, low = -1, high = 1, seed = -case }:to(dtype)
                local h = mx.linear_scan(a, b, { dim = 2, reverse = reverse, lagged = lagged })
                check_scanned(a, b, h, { rows, n, 1 }, reverse, lagged, bound, path .. " case " .. case)
            end
        end
    end
    mx.isa(before)
end

-- What a state does not come from is not read: the first a, of which there is no gradient.
function TestComposed.test_linear_scan_at_its_ends()
    for _, reverse in ipairs { false, true } do
        for _, width in ipairs { 1, 40 } do
            local a = mx.full({ 3, width }, 0.5)
            a[reverse and 3 or 1] = 0 / 0
            local h = mx.linear_scan(a:requires_grad(), mx.ones(3, width), { dim = 1, reverse = reverse })
            mx.backward(h:sum())
            local rows = a:grad():sum({ dim = 2 }):totable()
            lu.assertEquals(h:sum({ dim = 2 }):totable(), reverse and { 1.75 * width, 1.5 * width, width }
                or { width, 1.5 * width, 1.75 * width })
            lu.assertEquals(rows, reverse and { 1.5 * width, 1.5 * width, 0 } or { 0, 1.5 * width, 1.5 * width })
        end
    end
end

-- A coefficient is f32 beside states of bf16, and one that broadcasts has the sum of its gradients.
function TestComposed.test_coefficients_of_linear_scan()
    local b = mx.ones({ 2, 64, 40 }, "bf16")
    local h = mx.linear_scan(0.999, b, { dim = 2 }):to("f32")
    lu.assertAlmostEquals(h:get(1, 64, 1), (1 - 0.999 ^ 64) / 0.001, 2.0 ^ -9 * 64)
    local decay = mx.full({ 40 }, 0.5):requires_grad()
    mx.gradcheck(function(a, x) return mx.linear_scan(a, x, { dim = 2 }) end, mx.randn({ 3 }, { seed = 1 }),
        mx.randn({ 2, 4, 3 }, { seed = 2 }))
    mx.backward(mx.linear_scan(decay, mx.ones(2, 3, 40), { dim = 2 }):sum())
    lu.assertEquals(decay:grad():get(7), 2 * (1 + 1.5 + 0.5)) -- 2 lines: b1 of h2, h2 + a b1 of h3
end

-- Choices have the probabilities of the softmax, and the gradient of a hard one is that of the soft one.
function TestComposed.test_gumbel_softmax()
    local n, p = 20000, { 0.1, 0.2, 0.7 }
    local logits = mx.expand(mx.tensor(p):log():view(1, 3), { n, 3 })
    local hard = mx.gumbel_softmax(logits, { hard = true, seed = 3 })
    lu.assertEquals(mx.unique(hard):totable(), { 0, 1 })
    lu.assertEquals(hard:sum({ dim = 2 }):min():item(), 1)
    for i, share in ipairs(hard:mean({ dim = 1 }):totable()) do
        lu.assertTrue(math.abs(share - p[i]) < 5 * math.sqrt(p[i] * (1 - p[i]) / n), i)
    end
    local factor, gradients = mx.randn { 4, 3, 2 }, {}
    for _, is_hard in ipairs { false, true } do
        local x = mx.randn({ 4, 3, 2 }, { seed = 1 }):requires_grad()
        local y = mx.gumbel_softmax(x, { hard = is_hard, seed = 5, dim = 2, tau = 0.7 })
        lu.assertTrue(mx.max(mx.abs(y:sum { dim = 2 } - 1)):item() < 1e-6)
        mx.backward((y * factor):sum())
        gradients[#gradients + 1] = x:grad()
    end
    lu.assertTrue(compare.identical(gradients[1], gradients[2]))
    lu.assertTrue(mx.max(mx.abs(gradients[1])):item() > 0.01)
    lu.assertEquals(mx.gumbel_softmax(mx.zeros({ 2, 3 }, "f64")):dtype(), "f64")
    lu.assertEquals(mx.gumbel_softmax(mx.zeros({ 2, 3 }, "bf16"), { hard = true }):dtype(), "bf16")
end

-- Second gradients follow from those of the operations.
function TestComposed.test_gradients_of_gradients()
    local x = mx.randn({ 1, 2, 3 }, { seed = 1 }):requires_grad()
    local w = mx.randn({ 2, 1, 2 }, { seed = 2 }):requires_grad()
    mx.gradcheck(function(a, b)
        local y = mx.conv_transpose1d(a:square(), b, { stride = 2 })
        return mx.grad(y:square():sum(), a, { record = true })
    end, x, w)
    for _, reverse in ipairs { false, true } do
        mx.gradcheck(function(a, b)
            local h = mx.linear_scan(a, b, { dim = 2, reverse = reverse })
            return mx.grad(h:square():sum(), a, { record = true })
        end, mx.randn({ 2, 4, 3 }, { seed = 1 }), mx.randn({ 2, 4, 3 }, { seed = 2 }))
    end
end

function TestComposed.test_refusals()
    local function refused(text, f, ...)
        lu.assertErrorMsgContains(text, f, ...)
    end
    local x = mx.ones(1, 2, 4)
    refused("mx.unfold: size = 5, step = 1; expected a step of at least 1, and a size of 1 to 4", mx.unfold, x,
        { size = 5 })
    refused("mx.unfold: dim = 4, but the tensor has 3 dimensions", mx.unfold, x, { size = 1, dim = 4 })
    refused("mx.linspace(first, last, n): n is nil", mx.linspace, 0, 1)
    refused("mode = 'cubic'; expected nearest or linear", mx.interpolate, x, { scale = 2, mode = "cubic" })
    refused("takes size = { ... } with 1 numbers, or a scale", mx.interpolate, x, { size = { 2, 2 } })
    refused("takes size = { ... } with 1 numbers, or a scale", mx.interpolate, x)
    refused("dimension 3 has 4 elements and would get 1.2", mx.interpolate, x, { scale = 0.3 })
    refused("output_padding = 2; expected at least 0 and less than the stride, 2", mx.conv_transpose1d, x,
        mx.ones(2, 1, 3), { stride = 2, output_padding = 2 })
    refused("mx.conv_transpose2d: x and w have 3 and 3 dimensions; expected 4", mx.conv_transpose2d, x,
        mx.ones(2, 1, 3))
    refused("mx.prod: dim = 4, but the tensor has 3 dimensions", mx.prod, x, { dim = 4 })
    refused("mx.cumprod: dim = 0", mx.cumprod, x, { dim = 0 })
    refused("linear_scan: attribute 'dim' must be given", mx.linear_scan, x, x)
    refused("a does not broadcast to b: f32 (2, 2, 4) and f32 (1, 2, 4)", mx.linear_scan, mx.ones(2, 2, 4), x,
        { dim = 3 })
    refused("do not broadcast", mx.linear_scan, mx.ones(3), x, { dim = 3 })
    refused("f64 mixes with no other float", mx.linear_scan, mx.ones({ 4 }, "f64"), x, { dim = 3 })
    refused("'a' must be f32, bf16 or f64", mx.linear_scan, 1, mx.ones({ 4 }, "i32"), { dim = 1 })
    refused("use mx.unfold(t)", function() return x:unfold { size = 2 } end)
end
