-- A custom experiment: two interleaved spirals, told apart by a small network.
local mx = require "mx"

local points, labels = {}, {}
for i = 1, 400 do
    local radius, arm = (i // 2) / 200, i % 2
    local angle = 4 * math.pi * radius + math.pi * arm
    points[i] = { 2 * radius * math.cos(angle), 2 * radius * math.sin(angle) }
    labels[i] = arm
end
local x, targets = mx.tensor(points), mx.tensor(labels, "i32")

local params = {}
local hidden1 = mx.nn.linear(params, "hidden1", 2, 64, { bias = true, std = 2 })
local hidden2 = mx.nn.linear(params, "hidden2", 64, 64, { bias = true })
local output = mx.nn.parameter(params, "output", { 2, 64 }, { std = 0.1 })
local optimizer = mx.optim.adamw(params, { learning_rate = 5e-3 })

for i = 1, 300 do
    local step <close> = mx.step() -- tensors made in this step are released at its end
    local h = hidden2(hidden1(x):tanh()):tanh()
    local loss = mx.cross_entropy(h, output, targets)
    mx.backward(loss)
    optimizer:step()
    if i % 50 == 0 then
        local right = mx.argmax(mx.matmul(h, output, { trans_b = true }), { dim = 2 }):eq(targets)
        print(("step %3d  loss %.4f  correct %5.1f %%"):format(i, loss:item(), 100 * right:to("f32"):mean():item()))
    end
end
