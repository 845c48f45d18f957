-- Learning to learn (MAML): from these weights two steps of gradient descent on ten points lead to any sine. The loss
-- is that of the weights after the two steps, so its gradient needs gradients of gradients.
-- On sines seen for the first time the error after the two steps must be below 0.3 of the error before them.
--
--     build/mxlua scripts/examples/maml.lua [steps=150]
local mx = require "mx"
local o = mx.config.options(arg, { steps = 150 })
local TASKS, POINTS, RATE = 16, 10, 0.05

local params = {}
for i, sizes in ipairs { { 1, 40 }, { 40, 40 }, { 40, 1 } } do
    mx.nn.parameter(params, "w" .. i, sizes, { std = (2 / sizes[1]) ^ 0.5 })
    mx.nn.parameter(params, "b" .. i, { 1, sizes[2] })
end

-- Parameters of each task have the task as their first dimension.
local function predict(p, x)
    for i = 1, 3 do
        x = mx.matmul(x, p["w" .. i]) + p["b" .. i]
        x = i < 3 and x:tanh() or x
    end
    return x
end

local function new_sines()
    local height, shift = mx.rand({ TASKS, 1, 1 }, { low = 0.5, high = 2 }), mx.rand({ TASKS, 1, 1 }, { high = 3 })
    return function()
        local x = mx.rand({ TASKS, POINTS, 1 }, { low = -3, high = 3 })
        return x, height * mx.sin(x + shift)
    end
end

local function adapt(x, y)
    local p = {}
    for name, t in pairs(params) do
        p[name] = mx.expand(t:unsqueeze { dim = 1 }, { TASKS, -1, -1 })
    end
    for _ = 1, 2 do
        local loss = mx.mse_loss(predict(p, x), y) * TASKS -- the sum over tasks, each of which has its own weights
        for name, gradient in pairs(mx.grad(loss, p, { record = true })) do
            p[name] = p[name] - gradient * RATE
        end
    end
    return p
end

local optimizer, before, after = mx.optim.adamw(params, { learning_rate = 5e-3, clip = 1 }), 0, 0
for i = 1, o.steps do
    local step <close> = mx.step()
    local sines = new_sines()
    local p, x, y = adapt(sines()), sines()
    local loss = mx.mse_loss(predict(p, x), y)
    mx.backward(loss)
    if i > o.steps - 20 then
        before, after = before + mx.no_grad(predict, params, x):sub(y):square():mean():item(), after + loss:item()
    end
    optimizer:step()
end
print(("error after two steps: %.3f of the error before"):format(after / before))
assert(after < 0.3 * before, "it must be below 0.3")
