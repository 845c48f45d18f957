-- A neural ODE (Chen et al., 2018): dz/dt = f(z) = tanh(z A) B, integrated by Runge-Kutta steps. Its backward is of our
-- own: it goes back through time and computes each step again, so memory grows by one state a step only.
-- Its gradient must pass mx.gradcheck; trained, the flow must turn points by 90 degrees to 0.01.
--
--     build/mxlua scripts/examples/neural_ode.lua
local mx = require "mx"
local STEPS, H, HIDDEN = 10, 1 / 10, 32
-- One step from z to the next state.
local function rk4(z, a, b)
    local function f(y) return mx.matmul(mx.tanh(mx.matmul(y, a)), b) end
    local k1 = f(z)
    local k2 = f(z + k1 * (H / 2))
    local k3 = f(z + k2 * (H / 2))
    return z + (k1 + k2 * 2 + k3 * 2 + f(z + k3 * H)) * (H / 6)
end

local integrate = mx.custom {
    forward = function(ctx, z, a, b)
        local states = {}
        for i = 1, STEPS do states[i], z = z, rk4(z, a, b) end
        ctx:save(a, b, mx.stack(states))
        return z
    end,
    backward = function(ctx, dz)
        local a, b, states = ctx:saved()
        local da, db = 0, 0
        for i = STEPS, 1, -1 do
            local g = mx.enable_grad(function() -- a step alone is recorded, and forgotten
                local leaves = { states[i]:detach(), a:detach(), b:detach() }
                for _, leaf in ipairs(leaves) do leaf:requires_grad() end
                return mx.grad(rk4(table.unpack(leaves)), leaves, { grad = dz })
            end)
            dz, da, db = g[1], da + g[2], db + g[3]
        end
        return dz, da, db
    end,
}

local params = {}
local w1, w2 = mx.nn.parameter(params, "w1", { 2, HIDDEN }, { std = 0.5 }), mx.nn.parameter(params, "w2", { HIDDEN, 2 })
mx.gradcheck(integrate, mx.randn { shape = { 8, 2 }, seed = 1 }, w1, w2)
local optimizer, loss = mx.optim.adamw(params, { learning_rate = 2e-2 }), nil
for i = 1, 200 do
    local step <close> = mx.step()
    local x = mx.randn { shape = { 128, 2 }, seed = i }
    loss = mx.mean(mx.square(integrate(x, w1, w2) - mx.matmul(x, mx.tensor { { 0, 1 }, { -1, 0 } })))
    mx.backward(loss)
    optimizer:step()
    loss = loss:item()
end
print(("the gradient is right; loss after training %.4f"):format(loss))
assert(loss < 0.01, "the loss must be below 0.01")
