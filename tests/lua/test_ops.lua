--- Every operation against PyTorch's values and gradients, on every instruction set of this processor, in f32 and in
-- bf16; and its gradient against finite differences of itself.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

-- f32: error over the largest magnitude of the expected tensor. 2^-24 a rounding, and sums of up to 131 terms.
local F32_BOUND = 1e-5

-- bf16 against f32 of the same (rounded) inputs. A bf16 has 8 bits, so one rounding moves a value by up to 2^-8 of
-- itself; a result that is rounded once stays within it.
local BF16_BOUND = 2 ^ -8 + 1e-4
-- Gradients, and operations that round intermediate results (the attention's probabilities, the logits' gradient), see
-- a few roundings that partly add up.
local BF16_GRADIENT_BOUND = 2 ^ -6

-- Each generator of tests/golden writes one of these files.
local FILES = {
    "ops.h5", "ops_attention.h5", "ops_linear.h5", "ops_norms.h5", "ops_order.h5", "ops_moe.h5", "ops_pointwise.h5",
    "ops_tables.h5", "ops_fft.h5",
}

local cases, get = compare.packed_files(FILES)

-- Cases that are harder than the bound says, and why.
local HARD = {
    ["layernorm.far_mean_weight"] = 1e-4, -- the mean is 125 times the spread: f32 keeps 7 digits of the mean
}

-- Their slope is computed from the (rounded) result, as 1 - y^2: where it is tiny it is right to a rounding of 1 only.
local SLOPE_FROM_RESULT = { tanh = true, sigmoid = true }

local function slope_scale(case, part)
    return part:match("^grad") and SLOPE_FROM_RESULT[case.op] and 1 or 0
end

-- Operations without a case in these files.
local ELSEWHERE = {
    randn = "test_random.lua",
    rand = "test_random.lua",
    full = "test_random.lua",
    arange = "test_random.lua",
    dropout = "test_random.lua",
    randint = "test_order.lua",
    bernoulli = "test_order.lua",
    truncated_normal = "test_order.lua",
    permutation = "test_order.lua",
    multinomial = "test_order.lua",
    idiv = "test_values.lua",
    quantize = "test_quantize.lua",
    scaled_matmul = "test_quantize.lua",
    scaled_grouped_matmul = "test_quantize.lua",
    mxfp8_matmul = "test_quantize.lua",
    nvfp4_quantize = "test_nvfp4.lua",
    nvfp4_product = "test_nvfp4.lua",
    nvfp4_matmul = "test_nvfp4.lua",
    all_reduce = "tests/mpi", all_reduce_ = "tests/mpi",
    all_gather = "tests/mpi", all_gather_ = "tests/mpi",
    reduce_scatter = "tests/mpi",
    reduce_scatter_ = "tests/mpi",
    all_to_all = "tests/mpi",
    all_to_all_ = "tests/mpi",
    all_to_all_rows = "tests/mpi/test_rows.lua",
    collective_permute = "tests/mpi",
    collective_permute_ = "tests/mpi",
    broadcast = "tests/mpi",
    broadcast_ = "tests/mpi",
    send = "tests/mpi/test_point.lua",
    recv = "tests/mpi/test_point.lua",
    fan_out = "tests/mpi",
    shard = "tests/mpi",
    ring_attention = "tests/mpi",
    split_norm = "tests/mpi",
    split_cross_entropy = "tests/mpi/test_split_loss.lua",
    cross_entropy_logits = "tests/mpi/test_split_loss.lua",
    cross_entropy_part_ = "tests/mpi/test_split_loss.lua",
    norm_sums = "tests/mpi/test_split_norm.lua",
    norm_part = "tests/mpi/test_split_norm.lua",
    norm_grad_sums = "tests/mpi/test_split_norm.lua",
    norm_grad_part = "tests/mpi/test_split_norm.lua",
    attention_merge_ = "tests/c/test_attention.c, tests/mpi/test_ring.lua",
}

-- Gradient operations are called by nobody but the gradient of the operation that they are named after, or of a family.
local FAMILIES = { binary = "mul", unary = "exp", attention_sinks = "attention" }

local function is_gradient(name)
    local base = name:match("^(.+)_grad$") or name:match("^(.+)_grad_%w*$")
    return FAMILIES[base] or base
end

local by_op, order = {}, {}
for _, case in ipairs(cases) do
    if not by_op[case.op] then
        by_op[case.op] = {}
        order[#order + 1] = case.op
    end
    table.insert(by_op[case.op], case)
end
table.sort(order)

local function contains(list, value)
    for _, v in ipairs(list or {}) do
        if v == value then
            return true
        end
    end
    return false
end

--- The inputs of a case. `change(i, tensor)` may replace one.
local function inputs_of(case, change)
    local inputs = {}
    for _, i in ipairs(case.given) do
        local t = get(case.name .. ".in" .. i)
        local dtype = case.dtypes and case.dtypes[tostring(i)]
        if dtype then
            t = t:to(dtype)
        end
        inputs[i] = change and change(i, t) or t
    end
    return inputs
end

-- Functions of the module that take something else than tensors and options.
local FUNCTIONS = {
    einsum = function(...)
        local inputs = table.pack(...)
        return mx.einsum(inputs[inputs.n].equation, table.unpack(inputs, 1, inputs.n - 1))
    end,
}

local function call(case, inputs)
    inputs[case.n_in + 1] = case.attrs
    return table.pack((FUNCTIONS[case.op] or mx[case.op])(table.unpack(inputs, 1, case.n_in + 1)))
end

--- Results and gradients of a case: {out1=, grad1=, ...}. dout is rounded to bf16 first if `rounded`.
local function evaluate(case, inputs, rounded)
    local found = {}
    for _, i in ipairs(case.grads) do
        inputs[i]:requires_grad()
    end
    local out = call(case, inputs)
    local total
    for j = 1, case.n_out do
        found["out" .. j] = out[j]
        if #case.grads > 0 then
            local dout = get(case.name .. ".dout" .. j)
            dout = rounded and dout:to("bf16"):to("f32") or dout
            local term = mx.sum(mx.mul(out[j]:to("f32"), dout))
            total = total and total + term or term
        end
    end
    if #case.grads > 0 then
        mx.backward(total)
        for _, i in ipairs(case.grads) do
            found["grad" .. i] = inputs[i]:grad()
        end
    end
    return found
end

local function check_against_torch(case, complain)
    local step <close> = mx.step()
    local inputs = inputs_of(case)
    local found = {}
    if case.after then
        call(case, inputs)
        for _, i in ipairs(case.after) do
            found["after" .. i] = inputs[i]
        end
    else
        found = evaluate(case, inputs)
        for _, i in ipairs(case.grads) do
            if not found["grad" .. i] then
                complain(case, "grad" .. i, "is nil")
            end
        end
    end
    for part, t in pairs(found) do
        local expected = get(case.name .. "." .. part)
        local bound = t:dtype() == "bf16" and BF16_BOUND or HARD[case.name] or F32_BOUND
        if not compare.same_sizes(t, expected) then
            complain(case, part, ("has size (%s), not (%s)"):format(table.concat(t:size(), ", "),
                table.concat(expected:size(), ", ")))
        else
            local apart = compare.distance(t, expected, slope_scale(case, part))
            if apart > bound then
                complain(case, part, ("is off by %.3g, bound %.3g"):format(apart, bound))
            end
        end
    end
    assert(step)
end

--- Runs `check(case, complain)` over the cases of an operation and fails once, with all complaints.
local function run_cases(op, check)
    local complaints = {}
    compare.on_each_isa(function(isa)
        local function complain(case, part, text)
            complaints[#complaints + 1] = ("%s (%s): %s %s"):format(case.name, isa, part, text)
        end
        for _, case in ipairs(by_op[op]) do
            local ok, message = pcall(check, case, complain)
            if not ok then
                complain(case, "raised:", tostring(message))
            end
        end
    end)
    if #complaints > 0 then
        lu.fail(#complaints .. " wrong:\n" .. table.concat(complaints, "\n", 1, math.min(#complaints, 12)))
    end
end

TestOpsAgainstTorch = {}

for _, op in ipairs(order) do
    TestOpsAgainstTorch["test_" .. op] = function()
        run_cases(op, check_against_torch)
    end
end

--- A new operation fails here until it has a case.
function TestOpsAgainstTorch.test_every_operation_has_a_case()
    for _, name in ipairs(mx.ops()) do
        local base = not ELSEWHERE[name] and is_gradient(name)
        if base then
            local has_gradient = false
            for _, case in ipairs(by_op[base] or {}) do
                has_gradient = has_gradient or #(case.grads or {}) > 0
            end
            lu.assertTrue(has_gradient, name .. ": no case of '" .. base .. "' asks for a gradient")
        elseif not ELSEWHERE[name] then
            lu.assertNotNil(by_op[name], "'" .. name .. "' has no case in tests/golden/make_golden_ops*.py")
        end
    end
end

function TestOpsAgainstTorch.test_every_gradient_has_a_case()
    for _, name in ipairs(mx.ops()) do
        if mx.op_info(name).differentiable and not ELSEWHERE[name] and not is_gradient(name) then
            local inputs = {}
            for _, case in ipairs(by_op[name] or {}) do
                for _, i in ipairs(case.grads or {}) do
                    inputs[i] = true
                end
            end
            lu.assertNotNil(next(inputs), name .. " has a gradient and no case that asks for one")
        end
    end
end

-- ---- bf16 against f32 of the same inputs ----

-- Operations that are not rounded at the end, or whose work is the dtype itself.
local NO_BF16 = {
    cast = "its cases name the dtypes",
    linalg_solve = "f32 and f64", linalg_cholesky = "f32 and f64", linalg_eigh = "f32 and f64",
    fft = "f32 and f64", rfft = "f32 and f64", irfft = "f32 and f64",
    linalg_qr = "f32 and f64", linalg_svd = "f32 and f64", linalg_slogdet = "f32 and f64",
    adamw = "f32 state; the bf16 copy is checked above",
    sgd = "f32 state",
    lion = "f32 state",
    embedding_acc = "f32 sums",
}

-- Which inputs stay f32: gradients' sums, and what the operation wants in f32.
local STAYS_F32 = {
    rope = { 3 }, moe_route = { 2 }, moe_combine = { 4 }, grouped_matmul_acc = { 1 }, attention = { 6, 7 },
    softmax_cross_entropy = { 3 },
}

-- More than one rounding in the forward pass.
local SEVERAL_ROUNDINGS = {
    attention = true, cross_entropy = true, log_softmax = true, matmul_acc = true, einsum = true,
}

local function check_bf16(case, complain)
    local step <close> = mx.step()
    local function is_rounded(i, t)
        return t:dtype() == "f32" and not contains(STAYS_F32[case.op], i)
    end
    local function bf16(i, t)
        return is_rounded(i, t) and t:to("bf16") or t
    end
    local function single(i, t)
        return is_rounded(i, t) and t:to("bf16"):to("f32") or t
    end
    local wide, narrow = inputs_of(case, single), inputs_of(case, bf16)
    local expected, actual = {}, {}
    if case.after then
        call(case, wide)
        call(case, narrow)
        for _, i in ipairs(case.after) do
            expected["after" .. i], actual["after" .. i] = wide[i], narrow[i]
        end
    else
        expected, actual = evaluate(case, wide, true), evaluate(case, narrow, true)
    end
    for part, t in pairs(expected) do
        local gradient = part:match("^grad")
        local bound = (gradient or SEVERAL_ROUNDINGS[case.op]) and BF16_GRADIENT_BOUND or BF16_BOUND
        local apart = compare.distance(actual[part], t, slope_scale(case, part))
        if apart > bound then
            complain(case, part, ("in bf16 is off by %.3g, bound %.3g"):format(apart, bound))
        end
        if gradient then
            lu.assertEquals(actual[part]:dtype(), "f32", case.name .. ": dtype of a leaf's gradient")
        end
    end
    assert(step)
end

TestOpsInBf16 = {}

for _, op in ipairs(order) do
    if not NO_BF16[op] then
        TestOpsInBf16["test_" .. op] = function()
            run_cases(op, check_bf16)
        end
    end
end

-- ---- gradients against finite differences, along one random direction ----

-- Their slope jumps, or nothing can be differentiated: a difference across the jump means nothing.
-- The gradient of straight_through is that of another function than its values; those of linalg_cholesky and
-- linalg_eigh are symmetric.
local KINKED = {
    straight_through = true, max = true, min = true, maximum = true, minimum = true, abs = true, relu = true,
    cast = true, sort = true, topk = true, max_pool1d = true, max_pool2d = true, linalg_cholesky = true,
    linalg_eigh = true,
    floor = true, ceil = true, round = true, sign = true, clamp = true, leaky_relu = true, elu = true, l1_loss = true,
    remainder = true, fmod = true,
}

local function check_differences(case, complain)
    if case.after or #case.grads == 0 or case.attrs.activation == "relu" or case.attrs.mode == "max"
        or case.name:match("far") or case.name:match("large") or case.name:match("small")
        or case.attrs.reduce == "max" or case.attrs.reduce == "min" then
        return
    end
    local step <close> = mx.step()
    local inputs, checked, n = inputs_of(case), {}, 0
    for k, i in ipairs(case.grads) do
        checked[k] = inputs[i]
        n = n + inputs[i]:numel()
    end
    local function f(...)
        local moved = table.move(inputs, 1, case.n_in, 1, {})
        for k, i in ipairs(case.grads) do
            moved[i] = select(k, ...)
        end
        return table.unpack(call(case, moved), 1, case.n_out)
    end
    local ok, message = pcall(mx.gradcheck, f, table.unpack(checked))
    if n > 0 and not ok then
        complain(case, "grad", message)
    end
    assert(step)
end

TestOpsAgainstDifferences = {}

for _, op in ipairs(order) do
    if not KINKED[op] then
        TestOpsAgainstDifferences["test_" .. op] = function()
            local complaints = {}
            for _, case in ipairs(by_op[op]) do
                check_differences(case, function(c, part, text)
                    complaints[#complaints + 1] = c.name .. ": " .. part .. " " .. text
                end)
            end
            lu.assertEquals(table.concat(complaints, "\n"), "")
        end
    end
end

-- ---- larger odd shapes: every instruction set against the portable one ----

TestOpsAcrossIsas = {}

-- Two ways to sum in f32: about sqrt(n) roundings apart for n terms. bf16 results may land on neighbouring values.
local ACROSS_BOUND = { f32 = 1e-5, bf16 = 2 ^ -7 }

local function same_on_all_isas(name, dtype, sizes, fn)
    local reference
    compare.on_each_isa(function(isa)
        local step <close> = mx.step()
        local inputs = {}
        for i, size in ipairs(sizes) do
            inputs[i] = mx.randn(size, { seed = i, dtype = "f32" }):to(dtype):requires_grad()
        end
        local out = fn(table.unpack(inputs))
        mx.backward(mx.sum(mx.mul(out:to("f32"), mx.randn(out:size(), { seed = 99 }))))
        local found = { compare.flat(out) }
        for i, t in ipairs(inputs) do
            found[i + 1] = compare.flat(t:grad())
        end
        if isa == "portable" then
            reference = found
        end
        for i, values in ipairs(found) do
            local apart = compare.distance(values, reference[i])
            lu.assertTrue(apart <= ACROSS_BOUND[dtype], ("%s %s, %s: part %d is %.3g from portable"):format(name, dtype,
                isa, i, apart))
        end
        assert(step)
    end)
end

for _, dtype in ipairs { "f32", "bf16" } do
    TestOpsAcrossIsas["test_matmul_" .. dtype] = function()
        same_on_all_isas("matmul", dtype, { { 67, 131 }, { 131, 101 } }, mx.matmul)
        same_on_all_isas("matmul trans_b", dtype, { { 3, 25, 37 }, { 51, 37 } }, function(a, b)
            return mx.matmul(a, b, { trans_b = true })
        end)
        same_on_all_isas("matmul trans_a", dtype, { { 67, 35 }, { 67, 49 } }, function(a, b)
            return mx.matmul(a, b, { trans_a = true })
        end)
        same_on_all_isas("matmul batched", dtype, { { 3, 19, 33 }, { 3, 33, 17 } }, mx.matmul)
    end
    TestOpsAcrossIsas["test_attention_" .. dtype] = function()
        same_on_all_isas("attention", dtype, { { 2, 77, 4, 32 }, { 2, 77, 2, 32 }, { 2, 77, 2, 32 } }, function(q, k, v)
            return mx.attention(q, k, v, { causal = true })
        end)
        same_on_all_isas("attention", dtype, { { 1, 65, 1, 20 }, { 1, 130, 1, 20 }, { 1, 130, 1, 13 } }, mx.attention)
    end
    TestOpsAcrossIsas["test_rows_" .. dtype] = function()
        same_on_all_isas("rmsnorm", dtype, { { 5, 131 }, { 131 } }, mx.rmsnorm)
        same_on_all_isas("layernorm", dtype, { { 5, 131 }, { 131 }, { 131 } }, mx.layernorm)
        same_on_all_isas("softmax", dtype, { { 5, 131 } }, mx.softmax)
        same_on_all_isas("rope", dtype, { { 2, 7, 3, 66 } }, mx.rope)
        same_on_all_isas("gated", dtype, { { 5, 131 }, { 5, 131 } }, mx.gated)
        same_on_all_isas("gelu", dtype, { { 5, 131 } }, mx.gelu)
        same_on_all_isas("add", dtype, { { 5, 3, 131 }, { 131 } }, mx.add)
        same_on_all_isas("sum", dtype, { { 5, 131, 3 } }, function(x)
            return mx.sum(x, { dim = 2 })
        end)
    end
end
