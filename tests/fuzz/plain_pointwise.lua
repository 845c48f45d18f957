--- The plain reference of gradients for operations of one element of each input (plain_autograd.lua).

local mx = require "mx"

local ops, MARGIN -- those of plain_autograd.lua

local function unary(name, f, engine)
    ops[name] = {
        inputs = 1,
        run = function(values, shapes)
            local out = {}
            for i, x in ipairs(values[1]) do
                out[i] = f(x)
            end
            return out, shapes[1]
        end,
        mx = function(t) return engine(t[1]) end,
    }
end

local function binary(name, f, engine)
    ops[name] = {
        inputs = 2,
        run = function(values, shapes)
            local a, b, out = values[1], values[2], {}
            for i, x in ipairs(a) do
                out[i] = f(x, #b == 1 and b[1] or b[i])
            end
            return out, shapes[1]
        end,
        mx = function(t) return engine(t[1], t[2]) end,
    }
end

-- The operation jumps where an element of its first input is one of these numbers.
local function jumps_at(name, ...)
    local points = { ... }
    ops[name].jumps = function(values)
        for _, x in ipairs(values[1]) do
            for _, point in ipairs(points) do
                if math.abs(x - point) < MARGIN then
                    return true
                end
            end
        end
        return false
    end
end

-- The error function, by the series whose terms have one sign: nothing cancels out.
local function erf(x)
    if math.abs(x) > 6 then
        return x > 0 and 1 or -1
    end
    local sum, term = 0, x
    for n = 0, 150 do
        sum = sum + term
        term = term * 2 * x * x / (2 * n + 3)
    end
    return 2 / math.sqrt(math.pi) * math.exp(-x * x) * sum
end

local function softplus(x)
    return math.max(x, 0) + math.log(1 + math.exp(-math.abs(x)))
end

--- Adds the operations to `list`. A shift keeps multiples of 1/8 away from where a slope jumps.
---@param list table<string, table> ops
---@param margin number how near a jump an element may be
return function(list, margin)
    ops, MARGIN = list, margin
    unary("scaled", function(x) return 1.5 * x + 0.25 end, function(t) return t * 1.5 + 0.25 end)
    unary("neg", function(x) return -x end, function(t) return -t end)
    unary("square", function(x) return x * x end, mx.square)
    unary("exp", math.exp, mx.exp)
    unary("sin", math.sin, mx.sin)
    unary("atan", math.atan, mx.atan)
    unary("sigmoid", function(x) return 1 / (1 + math.exp(-x)) end, mx.sigmoid)
    unary("tanh", function(x) return 1 - 2 / (math.exp(2 * x) + 1) end, mx.tanh)
    unary("clone", function(x) return x end, function(t) return t:clone() end)
    binary("add", function(x, y) return x + y end, mx.add)
    binary("sub", function(x, y) return x - y end, mx.sub)
    binary("mul", function(x, y) return x * y end, mx.mul)
    binary("div", function(x, y) return x / y end, mx.div)
    binary("gated", function(x, y) return x / (1 + math.exp(-x)) * y end, mx.gated)
    ops.gated.same_shape = true
    unary("erf", erf, mx.erf)
    unary("expm1", function(x) return math.exp(x) - 1 end, mx.expm1)
    unary("log1p", function(x) return math.log(1 + x * x) end, function(t) return mx.log1p(t * t) end)
    unary("softplus", function(x) return softplus(2 * x) / 2 end, function(t) return mx.softplus(t, { beta = 2 }) end)
    unary("elu", function(x) return x > 0 and x or math.exp(x) - 1 end, mx.elu)
    unary("leaky_relu", function(x) return math.max(x + 0.0371, 0.25 * (x + 0.0371)) end,
        function(t) return mx.leaky_relu(t + 0.0371, { negative_slope = 0.25 }) end)
    unary("clamp", function(x) return math.min(math.max(x, -1.0371), 0.9629) end,
        function(t) return mx.clamp(t, { min = -1.0371, max = 0.9629 }) end)
    unary("abs", function(x) return math.abs(x + 0.0371) end, function(t) return mx.abs(t + 0.0371) end)
    unary("masked_fill", function(x) return x > 0.0371 and 0.5 or x end,
        function(t) return mx.masked_fill(t, t:detach():gt(0.0371), { value = 0.5 }) end)
    binary("lerp", function(x, y) return x + 0.25 * (y - x) end,
        function(a, b) return mx.lerp(a, b, { weight = 0.25 }) end)
    binary("power", function(x, y) return (1 + x * x) ^ (y / 4) end, function(a, b) return (a * a + 1) ^ (b / 4) end)
    binary("where", function(x, y) return x > 0.0371 and x or y end,
        function(a, b) return mx.where(a:detach():gt(0.0371), a, b) end)
    jumps_at("leaky_relu", -0.0371)
    jumps_at("clamp", -1.0371, 0.9629)
    jumps_at("abs", -0.0371)
    jumps_at("masked_fill", 0.0371)
    jumps_at("where", 0.0371)
    local function loss(name, f, options)
        options = options or {}
        options.reduction = "none"
        binary(name, f, function(a, b) return mx[name](a, b, options) end)
        ops[name].same_shape = true
    end
    loss("mse_loss", function(x, y) return (x - y) ^ 2 end)
    loss("bce_with_logits", function(x, y) return softplus(x) - x * y end)
    loss("kl_div", function(x, y) return math.exp(y) * (y - x) end, { log_target = true })
    loss("huber_loss", function(x, y)
        local d = math.abs(x - y)
        return d <= 0.6 and d * d / 2 or 0.6 * (d - 0.3)
    end, { delta = 0.6 })
end
