--- The rules by which optimizers update a parameter. Each has the names of its moments and an update; optim.lua does
--- the rest: rates, groups, clipping, decay masks.
--
-- update(p, grad, state, o): `p` is a tensor that shares the parameter's values, to be changed in place; grad has its
-- shape; `state` has this parameter's moments; `o` has lr, weight_decay and step (from 1), and the optimizer's options.
-- On a mesh, all these are the part that this rank updates: o.whole(t) gathers a whole tensor from such parts, which is
-- collective, and o.own(whole) is this rank's part of it.

local mx = require "mx"

local updates = {}

---@class mx.UpdateRule
---@field options table the options with their standard values
---@field moments fun(t: any, o: table): table<string, {sizes: integer[], dtype: string}> of a parameter
---@field update fun(p: any, grad: any, state: table<string, any>, o: table)
---@field whole? boolean each rank of a mesh does the whole update and has the whole moments: p and grad are gathered,
---       and of the new values a rank keeps its part
---@field fused? boolean one operation does all: it takes the factor of the gradient (o.grad_scale) and the options of
---       bf16 rounding (o.rounding)

local function like(t, dtype)
    return { sizes = t:size(), dtype = dtype or t:dtype() }
end

-- p (1 - lr weight_decay) - lr change.
local function move(p, change, o)
    mx.copy(p, p * (1 - o.lr * o.weight_decay) - change * o.lr)
end

--- AdamW (Loshchilov and Hutter, 2019), as in optax.
updates.adamw = {
    options = { learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, eps_root = 0, mu_dtype = "" },
    fused = true,
    moments = function(t, o)
        return { m = like(t, o.mu_dtype ~= "" and o.mu_dtype or nil), v = like(t) }
    end,
    update = function(p, grad, state, o)
        local call = o.rounding
        call.lr, call.weight_decay, call.step, call.grad_scale = o.lr, o.weight_decay, o.step, o.grad_scale
        call.beta1, call.beta2, call.eps, call.eps_root = o.beta1, o.beta2, o.eps, o.eps_root
        mx.adamw(p, grad, state.m, state.v, call)
    end,
}

--- Gradient descent, with momentum if that is above 0.
updates.sgd = {
    options = { learning_rate = 1e-2, momentum = 0 },
    fused = true,
    moments = function(t, o)
        return o.momentum > 0 and { momentum = like(t, "f32") } or {}
    end,
    update = function(p, grad, state, o)
        local call = o.rounding
        call.lr, call.weight_decay, call.momentum, call.grad_scale = o.lr, o.weight_decay, o.momentum, o.grad_scale
        mx.sgd(p, grad, state.momentum, call)
    end,
}

--- Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023).
updates.lion = {
    options = { learning_rate = 1e-4, beta1 = 0.9, beta2 = 0.99 },
    fused = true,
    moments = function(t)
        return { m = like(t, "f32") }
    end,
    update = function(p, grad, state, o)
        local call = o.rounding
        call.lr, call.weight_decay, call.grad_scale = o.lr, o.weight_decay, o.grad_scale
        call.beta1, call.beta2 = o.beta1, o.beta2
        mx.lion(p, grad, state.m, call)
    end,
}

-- The root of the mean square of the elements.
local function rms(t)
    return math.sqrt(mx.sum_squares(t):item() / math.max(1, t:numel()))
end

--- Adafactor (Shazeer and Stern, 2018), as torch.optim.Adafactor has it: the second moment of a matrix is a column and
--- a row; no first moment. The rate is relative to the size of the parameter, and shrinks as 1 / sqrt(step).
updates.adafactor = {
    options = { learning_rate = 1e-2, beta2_decay = -0.8, eps1 = 1.1920929e-07, eps2 = 1e-3, clip_update = 1 },
    whole = true,
    moments = function(t)
        local sizes = t:size()
        if #sizes < 2 then
            return { v = like(t, "f32") }
        end
        local row, column = { table.unpack(sizes) }, { table.unpack(sizes) }
        row[#sizes], column[#sizes - 1] = 1, 1
        return { row = { sizes = row, dtype = "f32" }, column = { sizes = column, dtype = "f32" } }
    end,
    update = function(p, grad, state, o)
        local beta = o.step ^ o.beta2_decay -- of the new value
        local function track(moment, squares)
            mx.copy(moment, moment * (1 - beta) + squares * beta)
        end
        grad = grad:to("f32")
        local variance
        if state.v then
            track(state.v, grad * grad)
            variance = state.v:clone()
        else
            local n, squares = grad:dim(), grad * grad
            track(state.row, mx.mean(squares, { dim = n, keepdim = true }))
            track(state.column, mx.mean(squares, { dim = n - 1, keepdim = true }))
            variance = state.row * state.column
                / mx.maximum(mx.mean(state.row, { dim = n - 1, keepdim = true }), o.eps1)
        end
        local change = grad / mx.sqrt(mx.maximum(variance, o.eps1 * o.eps1))
        local rho = math.min(o.lr, 1 / math.sqrt(o.step))
        local size = math.max(o.eps2, rms(p)) * rho
        change = change * (1 / math.max(1, rms(change) / o.clip_update))
        mx.copy(p, p * (1 - o.lr * o.weight_decay) - change * size)
    end,
}

-- The polynomial of one Newton-Schulz step.
local A, B, C = 3.4445, -4.7750, 2.0315

-- A matrix near U V^T for x = U S V^T, by five Newton-Schulz steps in f32.
local function orthogonal(x, eps)
    x = x:to("f32")
    local tall = x:size(1) > x:size(2)
    x = tall and mx.transpose(x) or x
    x = x * (1 / math.max(math.sqrt(mx.sum_squares(x):item()), eps))
    for _ = 1, 5 do
        local square = mx.matmul(x, x, { trans_b = true })
        x = x * A + mx.matmul(square * B + mx.matmul(square, square) * C, x)
    end
    return tall and mx.transpose(x) or x
end

--- Muon (Jordan et al., 2024), as torch.optim.Muon has it, or with bias_correction as optax has it, for matrices
--- (inputs, outputs). Others, and those that `adamw_mask` names (usually the embedding and the last product), are
--- updated by AdamW with adamw_scale times the rate, and adamw_decay as weight decay where that is not negative.
updates.muon = {
    options = {
        learning_rate = 2e-2, momentum = 0.95, nesterov = true, bias_correction = false, eps = 1e-7,
        adamw_mask = {}, adamw_scale = 0.05,
        beta1 = 0.9, beta2 = 0.999, adamw_eps = 1e-8, adamw_decay = -1,
    },
    moments = function(t, o)
        return o.by_adamw and { m = like(t), v = like(t) } or { momentum = like(t, "f32") }
    end,
    update = function(p, grad, state, o)
        if o.by_adamw then
            return mx.adamw(p, grad, state.m, state.v, {
                lr = o.lr * o.adamw_scale, weight_decay = o.adamw_decay >= 0 and o.adamw_decay or o.weight_decay,
                beta1 = o.beta1, beta2 = o.beta2, eps = o.adamw_eps, step = o.step,
            })
        end
        grad = grad:to("f32")
        mx.copy(state.momentum, state.momentum * o.momentum + grad * (1 - o.momentum))
        local direction = state.momentum
        if o.nesterov then -- only the ratio of both terms matters: the result is orthogonal
            local share = o.momentum
            if o.bias_correction then
                share = share * (1 - o.momentum ^ o.step) / (1 - o.momentum ^ (o.step + 1))
            end
            direction = grad * (1 - o.momentum) + direction * share
        end
        local change = orthogonal(o.whole(direction), o.eps)
        local inputs, outputs = change:size(1), change:size(2)
        move(p, o.own(change * math.sqrt(math.max(1, outputs / inputs))), o)
    end,
}

return updates
