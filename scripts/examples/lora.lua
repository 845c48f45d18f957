-- LoRA by hand (Hu et al., 2021): a frozen network learns a second task by two thin matrices a layer.
-- The adapters must reach a tenth of the frozen network's loss, and the frozen weights must not change by a bit.
--
--     build/mxlua scripts/examples/lora.lua
local mx = require "mx"
local N, R = 64, 4

local function task(phase) -- a batch of points and targets
    return function(seed)
        local x = mx.rand { shape = { 256, 1 }, low = -3, high = 3, seed = seed }
        return x, mx.sin(x * 2 + phase)
    end
end

local params, adapters = {}, {}
local layers = { mx.nn.linear(params, "a", 1, N, { bias = true }), mx.nn.linear(params, "b", N, N, { bias = true }),
    mx.nn.linear(params, "c", N, 1, { bias = true }) }
local deltas = {}
for i, sizes in ipairs { { 1, N }, { N, N }, { N, 1 } } do
    local down = mx.nn.parameter(adapters, "down" .. i, { sizes[1], R }, { std = 1 })
    local up = mx.nn.parameter(adapters, "up" .. i, { R, sizes[2] }) -- 0: at first nothing changes
    deltas[i] = function(x) return mx.matmul(mx.matmul(x, down), up) end
end

local function network(x, adapted)
    for i, layer in ipairs(layers) do
        local y = layer(x)
        y = adapted and y + deltas[i](x) or y
        x = i < #layers and mx.tanh(y) or y
    end
    return x
end

local function train(optimizer, batch, adapted, steps)
    local loss
    for i = 1, steps do
        local step <close> = mx.step()
        local x, y = batch(i)
        local mean = mx.mean(mx.square(network(x, adapted) - y))
        mx.backward(mean)
        optimizer:step()
        loss = loss and loss + 0.05 * (mean:item() - loss) or mean:item()
    end
    return loss
end

local first = train(mx.optim.adamw(params, { learning_rate = 1e-2 }), task(0), false, 500)
mx.nn.freeze(params, { "." })
local before = mx.nn.state(params)
local x, y = task(1)(9999)
local untouched = mx.mean(mx.square(network(x, true) - y)):item()
local adapted = train(mx.optim.adamw(adapters, { learning_rate = 1e-2 }), task(1), true, 500)
for name, t in pairs(params) do
    assert(mx.max(mx.abs(t - before[name])):item() == 0, name .. " has changed")
end
print(("first task %.4f; second task %.4f frozen, %.4f with %d of %d values"):format(first, untouched, adapted,
    mx.nn.count(adapters), mx.nn.count(params)))
assert(adapted < untouched / 10, "the adapters must reach a tenth of the frozen loss")
