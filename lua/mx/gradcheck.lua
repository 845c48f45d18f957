--- mx.gradcheck: compares the gradients of a function with finite differences of its values.
--
--     mx.gradcheck(function(x, w) return mx.matmul(x, w):tanh() end, x, w)
--
-- The loss is the function's results times fixed random weights. Along random directions of each input, its slope by
-- the gradient must be that of central differences at two step sizes, extrapolated to 0.

local core = require "mx.core"
local util = require "mx.util"

-- step: the larger of the two; tolerance: of the slope, as a share of the norm of the gradient. In f32 the differences
-- of a loss near 1 are right to 2^-23 / step, and to step^4 after the extrapolation.
local STANDARD = {
    f32 = { step = 2e-2, tolerance = 1e-2, directions = 3 },
    bf16 = { step = 4e-2, tolerance = 0.2, directions = 3 },
    f64 = { step = 1e-3, tolerance = 1e-7, directions = 3 },
}

local function tensors_of(...)
    local inputs = table.pack(...)
    local options = {}
    if type(inputs[inputs.n]) == "table" then
        options = inputs[inputs.n]
        inputs.n = inputs.n - 1
    end
    return inputs, options
end

local function is_tensor(value)
    return type(value) == "userdata" and getmetatable(value) == "mx.tensor"
end

local function is_float(value)
    return is_tensor(value) and STANDARD[value:dtype()] ~= nil
end

--- The results of f, each times fixed weights, summed.
local function loss_of(f, inputs)
    local results, total = table.pack(f(table.unpack(inputs, 1, inputs.n))), nil
    for i = 1, results.n do
        local t = results[i]
        if is_float(t) then
            local wide = t:dtype() == "bf16" and t:to("f32") or t
            local weights = core.randn(t:size(), { seed = 1000 + i }):to(wide:dtype())
            local term = core.sum(core.mul(wide, weights))
            total = total and total + term or term
        end
    end
    if not total then
        error("gradcheck: the function returned no tensor of floats", 0)
    end
    return total
end

local function slope_by_differences(f, inputs, i, direction, step)
    local function at(distance)
        local inner <close> = core.step()
        local moved = table.move(inputs, 1, inputs.n, 1, { n = inputs.n })
        -- A leaf, so that f may take gradients itself.
        moved[i] = (inputs[i]:detach() + direction * distance):requires_grad()
        return inner and loss_of(f, moved):item()
    end
    local function central(h)
        return (at(h) - at(-h)) / (2 * h)
    end
    return (4 * central(step / 2) - central(step)) / 3
end

local function check_input(f, inputs, i, gradient, options)
    for d = 1, options.directions do
        local direction = core.randn(inputs[i]:size(), { seed = 100 * i + d }):to(gradient:dtype())
        local slope = core.sum(core.mul(gradient, direction)):item()
        local measured = slope_by_differences(f, inputs, i, direction:to(inputs[i]:dtype()), options.step)
        local scale = math.sqrt(core.sum(core.square(gradient)):item()) + options.tolerance
        local apart = math.abs(measured - slope) / scale
        if apart ~= apart or apart > options.tolerance then
            return ("gradcheck: the slope by input %d, %s (%s), is %.7g by the gradient and %.7g by differences: they "
                .. "are %.2g of the gradient's norm apart, tolerance %.2g"):format(i, inputs[i]:dtype(),
                table.concat(inputs[i]:size(), ", "), slope, measured, apart, options.tolerance)
        end
    end
end

local function check(f, inputs, given)
    local wanted, options = {}, nil
    for i = 1, inputs.n do
        if is_float(inputs[i]) then
            inputs[i] = inputs[i]:detach():clone()
            options = options or STANDARD[inputs[i]:dtype()]
            wanted[i] = inputs[i]:numel() > 0 and inputs[i] or nil
        end
    end
    if not options or next(wanted) == nil then
        error("gradcheck: give the function's inputs, at least one of them a tensor of floats", 0)
    end
    options = util.options(given, options, "gradcheck")
    for _, x in pairs(wanted) do
        x:requires_grad()
    end
    local gradients = core.grad(loss_of(f, inputs), wanted)
    for i = 1, inputs.n do
        local wrong = wanted[i] and check_input(f, inputs, i, gradients[i], options)
        if wrong then
            return wrong
        end
    end
end

---@param f fun(...): any a tensor or several
---@param ... any its inputs, and options: { step =, tolerance =, directions = 3 }
---@return boolean true; a gradient that is wrong raises an error
return function(f, ...)
    local inputs, options = tensors_of(...)
    local step <close> = core.step()
    local wrong = check(f, inputs, options)
    if wrong then
        error(wrong, 2)
    end
    return step ~= nil
end
