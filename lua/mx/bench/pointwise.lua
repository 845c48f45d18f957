--- Cases of kernels.lua that compute each element by itself, with their gradients: functions of one, two and three
--- tensors, casts, updates in place, losses of pairs and of classes.

local mx = require "mx"

local pointwise = {}

local FUNCTIONS = "exp log log1p expm1 erf tanh sigmoid softplus elu leaky_relu gelu silu relu sqrt rsqrt square sin "
    .. "cos abs floor ceil round sign isfinite isnan"
local GRADIENTS = "log log1p expm1 erf tanh sigmoid softplus elu leaky_relu gelu silu relu sqrt sin clamp"
local VOCAB = 32000 -- classes of the loss

-- ---- the cases ----

-- `n` is the number of elements of each tensor. make(n) returns a function that runs the kernel once.
local function add(list, kernel, dtype, n, make, op)
    list[#list + 1] = {
        kernel = kernel, shape = tostring(n), dtype = dtype, unit = "B/s", ops = { [op or kernel:match "^%S+"] = true },
        make = function(check) return make(check and 1003 or n) end,
    }
end

local function randn(seed, shape, dtype)
    return mx.randn { shape = shape, seed = seed, dtype = dtype }
end

-- Positive numbers, so that logarithms and powers exist.
local function values(seed, n, dtype)
    local t = mx.rand { shape = { n }, low = 0.1, high = 3, seed = seed }
    return mx.dtypes[dtype].is_real and t:to(dtype) or (t * 1000):to(dtype)
end

-- run(a, b) with tensors of these dtypes; b has that of a unless given.
local function add_pair(list, op, n, a_dtype, run, b_dtype)
    local dtype = b_dtype and a_dtype .. "x" .. b_dtype or a_dtype
    add(list, op, dtype, n, function(count)
        local a, b = values(1, count, a_dtype), values(2, count, b_dtype or a_dtype)
        return function() return run(a, b) end
    end)
end

local function clamp(x)
    return mx.clamp(x, { min = 0.5, max = 2 })
end

-- As inside a model, where the gradient has the dtype of what it is of; or as that of a parameter, which is f32. Both
-- halves of 0 matter to the gradient of an activation.
local OF_RESULT = { sqrt = true, tanh = true, sigmoid = true, relu = true }
local PARAMETERS = { leaky_relu = { 0.01 }, clamp = { 0.5, 2 } }

local function add_gradient(list, op, n, dtype, to)
    local domain = (op:match "^log" or op == "sqrt") and mx.abs or function(x) return x end
    local p = PARAMETERS[op] or { 1 }
    local options = { ["function"] = op, p0 = p[1], p1 = p[2] or 0, dtype = to }
    add(list, op .. " grad", to and dtype .. ">" .. to or dtype, n, function(count)
        local value, dy = domain(randn(1, { count }, dtype)), randn(2, { count }, dtype)
        value = OF_RESULT[op] and mx[op](value) or value
        return function() return mx.unary_grad(value, dy, options) end
    end, "unary_grad")
end

local function add_class_loss(list, dtype, bytes, ignored)
    local rows = bytes // (dtype == "f32" and 4 or 2) // VOCAB
    for _, op in ipairs { "softmax_cross_entropy", "softmax_cross_entropy_grad" } do
        list[#list + 1] = {
            kernel = op, shape = ("%dx%d%s"):format(rows, VOCAB, ignored and " ignored 1/4" or ""), dtype = dtype,
            unit = "B/s", ops = { [op] = true },
            make = function(check)
                local m, n = check and 5 or rows, check and 101 or VOCAB
                local x = randn(1, { m, n }, dtype):requires_grad()
                local targets = mx.randint({ m }, { high = n, seed = 5 })
                targets = ignored and mx.masked_fill(targets, mx.randint({ m }, { high = 4, seed = 6 }):eq(0),
                    { value = -100 }) or targets
                return function()
                    x:zero_grad()
                    local loss = mx.softmax_cross_entropy(x, targets)
                    mx.backward(loss)
                    return loss, x:grad()
                end
            end,
        }
    end
end

local function add_real(list, dtype, n)
    for op in FUNCTIONS:gmatch "%S+" do
        add_pair(list, op, n, dtype, function(x) return mx[op](x) end)
    end
    for op in GRADIENTS:gmatch "%S+" do
        add_gradient(list, op, n, dtype)
    end
    if dtype == "bf16" then
        add_gradient(list, "gelu", n, dtype, "f32")
    end
    add_pair(list, "affine", n, dtype, function(x) return x * 2 + 1 end)
    add_pair(list, "clamp", n, dtype, clamp)
    add_pair(list, "pow", n, dtype, function(x) return mx.pow(x, { exponent = 1.7 }) end)
    add_pair(list, "lerp", n, dtype, function(a, b) return mx.lerp(a, b, { weight = 0.3 }) end)
    for op in ("add sub mul div maximum minimum power eq ne gt"):gmatch "%S+" do
        add_pair(list, op, n, dtype, mx[op])
    end
    add_pair(list, "mul", n, "u8", mx.mul, dtype)
    add_pair(list, "masked_fill", n, "u8", function(mask, x) return mx.masked_fill(x, mask, { value = 0 }) end, dtype)
    for _, op in ipairs { "mse_loss", "l1_loss", "huber_loss", "bce_with_logits", "kl_div" } do
        add_pair(list, op, n, dtype, function(x, target) return mx[op](x, target) end)
    end
    add_pair(list, "add_", n, dtype, function(c, x) return mx.add_(c, x, { alpha = -1e-3 }) end)
    add(list, "where", dtype, n, function(count)
        local mask, a, b = mx.randint({ count }, { high = 2, seed = 3, dtype = "u8" }), randn(1, { count }, dtype),
            randn(2, { count }, dtype)
        return function() return mx.where(mask, a, b) end
    end)
end

local function add_integers(list, dtype, n)
    for _, op in ipairs { "add", "mul", "idiv", "bitwise_and", "bitwise_or", "bitwise_xor", "eq" } do
        add_pair(list, op, n, dtype, mx[op])
    end
    add_pair(list, "bitwise_not", n, dtype, function(x) return mx.bitwise_not(x) end)
    add_pair(list, "shift_right", n, dtype, function(x) return x >> 3 end)
end

local function add_updates(list, n)
    add(list, "cast", "f32>bf16", n, function(count)
        local x = randn(1, { count })
        return function() return mx.cast(x, { dtype = "bf16" }) end
    end)
    add(list, "cast", "bf16>f32", n, function(count)
        local x = randn(1, { count }, "bf16")
        return function() return mx.cast(x, { dtype = "f32" }) end
    end)
    add(list, "adamw", "f32", n, function(count)
        local p, g, m, v = randn(1, { count }), randn(2, { count }), mx.zeros { count }, mx.zeros { count }
        return function() return mx.adamw(p, g, m, v, { lr = 1e-3, weight_decay = 0.1, step = 1 }), m, v end
    end)
    add(list, "sum_squares", "f32", n, function(count)
        local g = randn(2, { count })
        return function() return mx.sum_squares(g) end
    end)
end

---@param list table[] cases as in kernels.lua, to which those here are added
---@param bytes integer of each large tensor
function pointwise.add(list, bytes)
    add_updates(list, bytes // 4)
    for _, dtype in ipairs { "f32", "bf16" } do
        add_real(list, dtype, bytes // (dtype == "f32" and 4 or 2))
        add_class_loss(list, dtype, bytes, false)
        add_class_loss(list, dtype, bytes, true)
    end
    add_integers(list, "i32", bytes // 4)
    add_integers(list, "i64", bytes // 8)
end

return pointwise
