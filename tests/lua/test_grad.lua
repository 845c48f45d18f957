--- mx.grad, gradients of gradients, gradient hooks, mx.gradcheck.

local mx = require "mx"
local lu = require "luaunit"

local function r(...)
    return mx.randn({ ... }, { seed = 5 })
end

TestGrad = {}

function TestGrad.setUp()
    TestGrad.step = mx.step()
end

function TestGrad.tearDown()
    local step <close> = TestGrad.step
    TestGrad.step = nil
    assert(step)
end

local function leaf(...)
    return mx.randn({ ... }, { seed = 3 }):requires_grad()
end

local function positive(...)
    return (mx.rand({ ... }, { seed = 3 }) + 0.5):requires_grad()
end

function TestGrad.test_leaves_and_computed_tensors()
    local x, w = mx.tensor({ 1, 2, 3 }):requires_grad(), mx.tensor({ 2, 2, 2 }):requires_grad()
    local h = x * w
    local y = (h * h):sum()
    local found = mx.grad(y, { x = x, w = w, h = h }, { retain = true })
    lu.assertEquals(found.h:totable(), { 4, 8, 12 })
    lu.assertEquals(found.x:totable(), { 8, 16, 24 })
    lu.assertEquals(found.w:totable(), { 4, 16, 36 })
    lu.assertNil(x:grad(), "gradients of leaves stay as they are")
    lu.assertEquals(mx.grad(y, { h, x }, { retain = true })[2]:totable(), { 8, 16, 24 })
    lu.assertEquals(mx.grad(y, y, { retain = true }):item(), 1)
    lu.assertEquals(mx.grad(y, x, { grad = 0.5 }):totable(), { 4, 8, 12 })
    lu.assertErrorMsgContains("walked back already", mx.grad, y, x)
end

-- The gradient of the table that a second pass adds is read once: it is not scaled before. So of the four gradients
-- only three are scaled by cross_entropy_grad.
function TestGrad.test_losses_of_several_passes_add_up()
    local w, targets = leaf(5, 3), mx.tensor({ 1, 4, 0, 2 }, "i32")
    local function loss_of(seed)
        return mx.cross_entropy(mx.randn({ 4, 3 }, { seed = seed }):requires_grad(), w, targets)
    end
    local one, two = mx.grad(loss_of(5), w), mx.grad(loss_of(6), w)
    mx.profile(true)
    mx.backward(loss_of(5), 0.3)
    mx.backward(loss_of(6), 0.9)
    mx.profile(false)
    lu.assertTrue((w:grad() - (one * 0.3 + two * 0.9)):abs():max():item() < 1e-6)
    local calls = 0
    for _, row in ipairs(mx.profile_report()) do
        calls = calls + (row.op == "cross_entropy_grad" and row.calls or 0)
    end
    lu.assertEquals(calls, 3)
end

function TestGrad.test_gradient_of_a_vector()
    local x = leaf(3)
    local dy = mx.tensor { 1, 0, 2 }
    local same = mx.grad(x * 1, x, { grad = dy })
    lu.assertEquals(same:totable(), { 1, 0, 2 })
    lu.assertFalse(dy:is_released())
end

function TestGrad.test_accumulated_gradients_stay()
    local x, other = leaf(2), leaf(2)
    mx.backward((x * 3 + other):sum())
    local before = x:grad():totable()
    lu.assertAlmostEquals(mx.grad((x * 5 * other):sum(), x):totable()[1], other:totable()[1] * 5, 1e-6)
    lu.assertEquals(x:grad():totable(), before)
    lu.assertEquals(other:grad():totable(), { 1, 1 })
end

function TestGrad.test_refusals()
    local x, other = leaf(2), leaf(2)
    lu.assertErrorMsgContains("does not depend on f32 (2)", mx.grad, (x * 2):sum(), other)
    lu.assertErrorMsgContains("is given twice", mx.grad, (x * 2):sum(), { x, x })
    lu.assertErrorMsgContains("entry '1' of the table is no tensor but number", mx.grad, (x * 2):sum(), { 3 })
    lu.assertErrorMsgContains("did you mean 'record'", mx.grad, (x * 2):sum(), x, { recrod = true })
    lu.assertErrorMsgContains("one element", mx.grad, x * 2, x)
    local h, targets = leaf(2, 3), mx.tensor({ 0, 1 }, "i32")
    local doubled = h * 2
    local loss = mx.cross_entropy(doubled, mx.ones { 4, 3 }, targets)
    doubled:release()
    lu.assertErrorMsgContains("has been released; keep it", mx.grad, loss, h, { record = true })
    local weight = mx.ones { 4, 3 }
    loss = mx.cross_entropy(h, weight, targets)
    weight:set(1, 1, 2)
    lu.assertErrorMsgContains("changed", mx.grad, loss, h, { record = true })
    local norm = mx.split_norm(h, mx.ones(3))
    lu.assertErrorMsgContains("the gradient of split_norm", mx.grad, norm:sum(), h, { record = true })
    lu.assertEquals(mx.grad((x * 2):sum(), x):totable(), { 2, 2 }) -- a refusal leaves nothing behind
end

function TestGrad.test_third_derivative()
    local x = mx.tensor({ 1, 2, 3 }):requires_grad()
    local first = mx.grad((x ^ 3):sum(), x, { record = true })
    lu.assertEquals(first:totable(), { 3, 12, 27 })
    local second = mx.grad(first:sum(), x, { record = true })
    lu.assertEquals(second:totable(), { 6, 12, 18 })
    lu.assertEquals(mx.grad(second:sum(), x):totable(), { 6, 6, 6 })
end

--- A network with a loss inside of regions that drop their values: the same first and second gradients, to the bit, as
--- without.
function TestGrad.test_second_gradients_inside_remat()
    local ids = mx.tensor({ 0, 2, 1 }, "i32")
    local function seconds(policy)
        local x, w, out = leaf(3, 4), mx.randn({ 4, 4 }, { seed = 7 }):requires_grad(), leaf(5, 4)
        local function layer(h)
            return mx.softmax(mx.name(mx.matmul(h, w):tanh(), "hidden")) + mx.rmsnorm(h)
        end
        local h = x
        for _ = 1, 2 do
            h = policy and mx.remat(policy, layer, h) or layer(h)
        end
        local function loss_of(a)
            return mx.cross_entropy(a * a, out, ids, { z_loss = 0.1 })
        end
        local loss = policy and mx.remat(policy, loss_of, h) or loss_of(h)
        local first = mx.grad(loss, { x, w }, { record = true })
        local second = mx.grad(first[1]:square():sum() + first[2]:exp():sum(), { x, w, out })
        local all = {}
        for _, t in ipairs { first[1], first[2], second[1], second[2], second[3] } do
            all[#all + 1] = t:totable()
        end
        return all
    end
    local expected = seconds(nil)
    for _, policy in ipairs { "none", "full", { hidden = "device" }, { hidden = "offload" } } do
        lu.assertEquals(seconds(policy), expected)
    end
end

--- d/dx of |d loss/dx|^2, by differences of gradients in f32 and in bf16's own dtype.
function TestGrad.test_second_gradients_of_cross_entropy()
    local ids, mask = mx.tensor({ 0, 2, 1 }, "i32"), mx.tensor({ 1, 0, 1 }, "u8")
    local function penalty(h, w)
        local loss = mx.cross_entropy(h, w, ids, mask, { z_loss = 0.1, softcap = 2, logit_scale = 1.5 })
        local g = mx.grad(loss, { h, w }, { record = true })
        return g[1]:square():sum() + g[2]:square():sum()
    end
    mx.gradcheck(penalty, r(3, 4), r(5, 4))
    mx.gradcheck(penalty, r(3, 4):to("f64"), r(5, 4):to("f64"))
    local h, w = r(3, 4), r(5, 4)
    local exact = mx.grad(penalty(h:requires_grad(), w:requires_grad()), h)
    local narrow = h:detach():to("bf16"):requires_grad()
    local rounded = mx.grad(penalty(narrow, w:detach():to("bf16"):requires_grad()), narrow)
    lu.assertTrue(mx.norm(rounded - exact):item() < 0.05 * mx.norm(exact):item()) -- a few roundings of 2^-8
end

--- A gradient penalty, by backward into the leaves: d/dw of |d/dx (w x^2)|^2 = 8 w x^2.
function TestGrad.test_gradient_penalty()
    local x, w = mx.tensor({ 1, 2 }):requires_grad(), mx.tensor({ 3, 4 }):requires_grad()
    local g = mx.grad((w * x * x):sum(), x, { record = true })
    mx.backward((g * g):sum())
    lu.assertEquals(w:grad():totable(), { 24, 128 })
end

local FAR = mx.arange(24):view(1, 2, 3, 4):keep()
local SIGNS = mx.where(r(3, 4):gt(0), mx.ones { 3, 4 }, mx.full({ 3, 4 }, { value = -1 })):keep()

-- Every operation with a gradient that can be recorded: a function of it, and its inputs.
local TWICE = {
    matmul = { function(a, b) return mx.matmul(a, b):tanh() end, { 3, 4 }, { 4, 2 } },
    matmul_bias = { function(a, b, c) return mx.matmul(a, b, c):tanh() end, { 2, 3, 4 }, { 4, 2 }, { 2 } },
    matmul_broadcast = {
        function(a, b) return mx.matmul(a, b, { trans_b = true }):tanh() end, { 2, 1, 3, 4 }, { 5, 2, 4 },
    },
    matmul_vector = { function(a, b) return mx.matmul(a, b):tanh() end, { 3, 4 }, { 4 } },
    einsum = { function(a, b) return mx.einsum("ij,jk->k", a, b):square() end, { 3, 4 }, { 4, 2 } },
    add = { function(a, b) return (a + b):square():square() end, { 3, 4 }, { 4 } },
    sub = { function(a, b) return (a - b):square():square() end, { 3, 4 }, { 4 } },
    mul = { function(a, b) return (a * b):square() end, { 3, 4 }, { 4 } },
    where = { function(a) return mx.where(a:gt(0), a:square() * a, a:square()) end, { 3, 4 } },
    softmax = { function(a) return (a:softmax() * r(3, 4)):square() end, { 3, 4 } },
    log_softmax = { function(a) return (a:log_softmax() * r(3, 4)):square() end, { 3, 4 } },
    sum = { function(a) return a:square():sum { dim = 2, keepdim = true } * a end, { 3, 4 } },
    mean = { function(a) return a:square():mean { dim = 1 }:square() end, { 3, 4 } },
    sum_squares = { function(a) return mx.sum_squares(a:square()) end, { 3, 4 } },
    narrow = { function(a) return a:narrow { dim = 2, start = 2, length = 2 }:square():square() end, { 3, 4 } },
    concat = { function(a, b) return mx.concat(a, b, { dim = 2 }):square():square() end, { 3, 4 }, { 3, 2 } },
    permute = { function(a) return (a:permute { 3, 1, 2 }:square() * r(2, 3, 4)):square() end, { 3, 4, 2 } },
    transpose = { function(a) return (a:transpose():square() * r(4, 3)):square() end, { 3, 4 } },
    reshape = { function(a) return (a:view(4, 3):square() * r(4, 3)):square() end, { 3, 4 } },
    gather = {
        function(a) return mx.gather(a, mx.tensor({ { 0, 1 }, { 1, 1 } }, "i32"), { dim = 2 }):square():square() end,
        { 3, 4 },
    },
    embedding = {
        function(a) return mx.embedding(a, mx.tensor({ 0, 2, 2 }, "i32")):square():square() end, { 3, 4 },
    },
}
-- Others: those of test_ops_f64 that compute in f64 are checked there.
local IDS = mx.tensor({ { 0, 2, 1, 0 }, { 1, 0, 3, 3 } }, "i32"):keep()
local EYE = mx.one_hot(mx.arange(3, "i32"), { classes = 3 }):keep()
local TALLER = { before = { 0, 0 }, after = { 2, 0 } }
for name, case in pairs {
    embedding_bag = {
        function(t, w) return mx.embedding_bag(t:square(), IDS, nil, w:square(), { mode = "sum" }):square() end,
        { 4, 3 }, { 2, 4 },
    },
    embedding_bag_mean = { function(t) return mx.embedding_bag(t:square(), IDS):square() end, { 4, 3 } },
    embedding_bag_max = {
        function(t) return mx.embedding_bag(t:square() + FAR:view(6, 4), IDS, { mode = "max" }):square() end, { 6, 4 },
    },
    linalg_solve = { function(a, b) return mx.linalg.solve(a + EYE * 4, b):square() end, { 3, 3 }, { 3, 2 } },
    linalg_inv = { function(a) return mx.linalg.inv(a + EYE * 4):square() end, { 2, 3, 3 } },
    linalg_cholesky = {
        function(a) return mx.linalg.cholesky(mx.matmul(a, a, { trans_b = true }) + EYE * 3):square() end, { 3, 3 },
    },
    linalg_eigh = { function(a)
        local w, v = mx.linalg.eigh(a + a.T + EYE:cumsum { dim = 1 }:cumsum { dim = 1 } * 9) -- far apart
        return w:square():sum() + (v * EYE:cumsum()):square():sum()
    end, { 3, 3 } },
    linalg_qr = { function(a)
        local q, upper = mx.linalg.qr(a)
        return q:exp():sum() + upper:square():sum()
    end, { 4, 3 } },
    linalg_qr_wide = { function(a)
        local q, upper = mx.linalg.qr(a)
        return q:exp():sum() + upper:square():sum()
    end, { 2, 2, 3 } },
    linalg_svd = { function(a)
        local u, s, vh = mx.linalg.svd(a + mx.pad(EYE:cumsum { dim = 1 }:cumsum { dim = 1 } * 9, TALLER))
        return u:exp():sum() + s:square():sum() + vh:exp():sum()
    end, { 5, 3 } },
    linalg_svd_wide = { function(a)
        local u, s, vh = mx.linalg.svd(a + mx.pad(EYE:cumsum { dim = 1 }:cumsum { dim = 1 } * 9, TALLER).T)
        return u:exp():sum() + s:exp():sum() + vh:exp():sum()
    end, { 3, 5 } },
    linalg_det = { function(a) return mx.linalg.det(a + EYE * 3) end, { 2, 3, 3 } },
    conv1d = {
        function(x, w, b) return mx.conv1d(x, w, b, { padding = 1, stride = 2 }):tanh() end, { 2, 3, 5 }, { 2, 3, 3 },
        { 2 },
    },
    conv2d_groups = {
        function(x, w) return mx.conv2d(x, w, { groups = 2, dilation = 2, padding = "same" }):tanh() end,
        { 1, 4, 4, 3 }, { 2, 2, 2, 3 },
    },
    max_pool2d = {
        function(x) return mx.max_pool2d(x:square() + FAR, { size = 2, stride = 1 }):square() end, { 1, 2, 3, 4 },
    },
    avg_pool1d = { function(x) return mx.avg_pool1d(x:square(), { size = 2 }):square() end, { 1, 2, 5 } },
    batch_norm = { function(x) return (mx.batch_norm(x)) end, { 3, 2, 4 } },
    group_norm = { function(x, w) return mx.group_norm(x, w, { groups = 2 }) end, { 2, 4, 3 }, { 4 } },
    dropout = { function(a) return mx.dropout(a:square(), { rate = 0.5, seed = 1 }):square() end, { 3, 4 } },
    rope = { function(a) return mx.rope(a:square()):square() end, { 1, 3, 2, 4 } },
    max = { function(a) return (a * SIGNS):max { dim = 2, keepdim = true }:square() * a end, { 3, 4 } },
    min = { function(a) return a:square():min { dim = 1, keepdim = true }:square() * a end, { 3, 4 } },
    maximum = {
        function(a, b) return mx.maximum(a * SIGNS, b - 5):square() * mx.minimum(a, b * 9) end, { 3, 4 }, { 4 },
    },
    clamp = { function(a) return mx.clamp(a, { min = -9, max = 0.9 }) * a * a end, { 3, 4 } },
    leaky_relu = { function(a) return (a * SIGNS):leaky_relu() * a * a end, { 3, 4 } },
    elu = { function(a) return (a * SIGNS):elu() end, { 3, 4 } },
    huber_loss = { function(a, b) return mx.huber_loss(a * 3, b, { delta = 2.2 }) end, { 3, 4 }, { 3, 4 } },
    gelu_none = { function(a) return mx.gelu(a, { approximate = "none" }) end, { 3, 4 } },
    scatter = {
        function(a, b) return mx.scatter(a, IDS, b, { dim = 2 }):square():square() end, { 2, 4 }, { 2, 4 },
    },
    scatter_reduce = {
        function(a, b)
            local y = mx.scatter_reduce(a - 1, IDS, b * 3, { dim = 2, reduce = "max" }):square()
            y = y * mx.scatter_reduce(a, IDS, b, { dim = 2, reduce = "mean", include_self = false }):square()
            return y * mx.scatter_reduce(a, IDS, b, { dim = 2, reduce = "min", include_self = false })
        end, { 2, 4 }, { 2, 4 },
    },
    attention_self = { -- one tensor as all three inputs
        function(a) return mx.attention(a, a, a, { causal = true }) end, { 1, 3, 2, 4 },
    },
} do
    case.positive = name ~= "attention_self"
    TWICE[name] = case
end
for _, name in ipairs {
    "exp", "tanh", "sigmoid", "square", "sin", "cos", "silu", "gelu", "tan", "atan", "sinh", "cosh", "asinh",
} do
    TWICE[name] = { function(a) return mx[name](a) * r(3, 4) end, { 3, 4 } }
end
for name, case in pairs {
    erfinv = { function(a) return (a / 4):erfinv() * a end, { 3, 4 } },
    lgamma = { function(a) return (a + 0.25):lgamma() * a end, { 3, 4 } },
    digamma = { function(a) return (a + 0.5):digamma() * a end, { 3, 4 } },
    attention_dropout = { function(q, k, v)
        return mx.attention(q, k, v, { causal = true, dropout = 0.3, seed = 5 })
    end, { 1, 5, 2, 4 }, { 1, 5, 1, 4 }, { 1, 5, 1, 4 } },
    asin = { function(a) return (a / 4):asin() * (a / 3):acos() end, { 3, 4 } },
    acosh = { function(a) return (a + 1.25):acosh() * a end, { 3, 4 } },
    atanh = { function(a) return (a:tanh() * 0.75):atanh() * a end, { 3, 4 } },
    atan2 = { function(a, b) return mx.atan2(a, b) end, { 3, 4 }, { 4 } },
    remainder = { function(a, b) -- the quotient is 2.2 to 2.7: far from its jumps
        return mx.remainder(a:tanh() * 0.2 + 2.5, b:tanh():square() * 0.05 + 1) * a * b
    end, { 3, 4 }, { 4 } },
    fmod = { function(a, b) -- -2.2 to -2.7
        return mx.fmod(a:tanh() * -0.2 - 2.5, b:tanh():square() * 0.05 + 1) * a * b
    end, { 3, 4 }, { 4 } },
    pad_modes = { function(a)
        local sides = { before = { 1, 2 }, after = { 2, 3 } }
        local y = mx.pad(a, { before = sides.before, after = sides.after, mode = "reflect" }):square():sum()
        y = y + mx.pad(a, { before = sides.before, after = sides.after, mode = "circular" }):tanh():sum()
        return y + mx.pad(a, { before = sides.before, after = sides.after, mode = "replicate" }):exp():sum()
    end, { 3, 4 } },
    log = { mx.log, { 3, 4 } }, sqrt = { mx.sqrt, { 3, 4 } }, rsqrt = { mx.rsqrt, { 3, 4 } },
    pow = { function(a) return a ^ 2.5 end, { 3, 4 } }, div = { mx.div, { 3, 4 }, { 4 } },
    abs = { function(a) return (a * SIGNS):abs() * a * a end, { 3, 4 } },
    relu = { function(a) return (a * SIGNS):relu() * a * a end, { 3, 4 } },
} do
    case.positive = true
    TWICE[name] = case
end

-- Experts: 5 tokens of width 3, of 4 experts 2 each, which stay the same near these logits.
local LOGITS = mx.tensor({ { 9, 1, 5, 3 }, { 1, 9, 3, 5 }, { 3, 5, 9, 1 }, { 9, 5, 1, 3 }, { 5, 1, 3, 9 } }):keep()
local ORDER, PLACE, COUNTS = mx.moe_sort(mx.tensor({ { 0, 2 }, { 1, 3 }, { 2, 1 }, { 0, 1 }, { 3, 0 } }, "i32"),
    { experts = 4, count = 3 }) -- the slots of expert 3 have no row
ORDER, PLACE, COUNTS = ORDER:keep(), PLACE:keep(), COUNTS:keep()
local SLOTS, ROWS = { 5, 2 }, ORDER:numel()
for name, options in pairs {
    softmax_of_chosen = { score = "topk_softmax" }, softmax = { score = "softmax_topk", scale = 2 },
    softmax_normalized = { score = "softmax_topk", normalize = true }, sigmoid = { score = "sigmoid" },
    sigmoid_normalized = { score = "sigmoid", normalize = true, scale = 1.5 },
} do
    options.top = 2
    TWICE["moe_route_" .. name] = {
        function(a) return (mx.moe_route(LOGITS * 0.2 + a * 0.1, options)):tanh() end, { 5, 4 },
    }
end
TWICE.moe_gather = { function(a) return mx.moe_gather(a:square(), ORDER, PLACE):square() end, { 5, 3 } }
TWICE.moe_combine = { function(a) return mx.moe_combine(a:square(), ORDER, PLACE):square() end, { ROWS, 3 } }
TWICE.moe_combine_weights = {
    function(a, w) return mx.moe_combine(a:square(), ORDER, PLACE, w:square()):square() end, { ROWS, 3 }, SLOTS,
}
TWICE.grouped_matmul = {
    function(x, w, b) return mx.grouped_matmul(x, w, COUNTS, b):tanh() end, { ROWS, 3 }, { 3, 3, 2 }, { 3, 2 },
}
TWICE.grouped_matmul_transposed = {
    function(x, w) return mx.grouped_matmul(x, w, COUNTS, { trans_b = true }):tanh() end, { ROWS, 3 }, { 3, 2, 3 },
}

for name, case in pairs(TWICE) do
    TestGrad["test_twice_" .. name] = function()
        local inputs = {}
        for i = 2, #case do
            inputs[i - 1] = (case.positive and positive or leaf)(table.unpack(case[i]))
        end
        mx.gradcheck(function(...)
            local y = case[1](...)
            local total
            for i, g in ipairs(mx.grad((y * r(table.unpack(y:size()))):sum(), { ... }, { record = true })) do
                local term = (g * mx.randn(g:size(), { seed = i })):sum()
                total = total and total + term or term
            end
            return total
        end, table.unpack(inputs))
    end
end

function TestGrad.test_straight_through_twice()
    local x = mx.tensor({ 2 }):requires_grad()
    local y = mx.straight_through(mx.tensor { 5 }, x) -- 5, with the gradient of x
    local g = mx.grad((y * y):sum(), x, { record = true })
    lu.assertEquals(g:totable(), { 10 })
    lu.assertEquals(mx.grad(g:sum(), x):totable(), { 2 })
    lu.assertErrorMsgContains("'x' must be (2)", mx.straight_through, mx.zeros { 2 }, x)
    lu.assertEquals(mx.stop_gradient(x * 2):totable(), { 4 })
    lu.assertErrorMsgContains("depends on no tensor", mx.backward, mx.stop_gradient(x * 2):sum())
end

-- ---- hooks ----

function TestGrad.test_hooks_see_and_change_gradients()
    local w, seen = mx.tensor({ 1, 1 }):requires_grad(), {}
    w:register_hook(function(g)
        seen[#seen + 1] = g:totable()[1]
        return g * 2
    end)
    local h = w * 3
    h:register_hook(function(g) return g * 10 end)
    mx.backward(h:sum())
    lu.assertEquals(seen, { 30 })
    lu.assertEquals(w:grad():totable(), { 60, 60 })
    mx.backward((w * 1):sum() + (w * 1):sum()) -- the hook sees the whole gradient of this pass, and no more
    lu.assertEquals(seen, { 30, 2 })
    lu.assertEquals(w:grad():totable(), { 64, 64 })
end

function TestGrad.test_hooks_that_fail()
    local w = leaf(2)
    local function backward(hook)
        local t = w * 1
        t:register_hook(hook)
        mx.backward(t:sum())
    end
    lu.assertErrorMsgContains("a gradient hook: ", backward, function() error("oh") end)
    lu.assertErrorMsgContains("oh", backward, function() error("oh") end)
    lu.assertErrorMsgContains("a gradient like the one that it was given, f32 (2); not f32 ()", backward,
        function(g) return g:sum() end)
    lu.assertErrorMsgContains("backward was called inside backward", backward,
        function() mx.backward((w * 2):sum()) end)
    lu.assertErrorMsgContains("has no gradient", mx.zeros { 2 }.register_hook, mx.zeros { 2 }, print)
    lu.assertNil(w:grad())
    backward(function() end)
    lu.assertEquals(w:grad():totable(), { 1, 1 })
end

-- ---- gradcheck ----

function TestGrad.test_gradcheck()
    local wrong = mx.custom {
        forward = function(ctx, x)
            ctx:save(x)
            return x * x
        end,
        backward = function(ctx, dy) return dy * ctx:saved() end, -- lacks the 2
    }
    lu.assertTrue(mx.gradcheck(function(x) return x * x end, leaf(3)))
    lu.assertTrue(mx.gradcheck(function(x, w, n) return mx.matmul(x, w) ^ n end, positive(3, 2), positive(2, 2), 2))
    lu.assertErrorMsgContains("the slope by input 1, f32 (3), is ", mx.gradcheck, wrong, leaf(3))
    lu.assertErrorMsgContains("no option 'tol'", mx.gradcheck, wrong, leaf(3), { tol = 1 })
    lu.assertErrorMsgContains("at least one of them a tensor of floats", mx.gradcheck, wrong, 3)
    lu.assertErrorMsgContains("returned no tensor of floats", mx.gradcheck, function() return 3 end, leaf(3))
end
