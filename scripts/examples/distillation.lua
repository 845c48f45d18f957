-- Distillation (Hinton et al., 2015): a small network learns from the soft outputs of a large one. 90 of 300 labels
-- are wrong: the student that sees the teacher's outputs must classify better than one that sees the labels.
--
--     build/mxlua scripts/examples/distillation.lua
local mx = require "mx"
local N, WRONG, T = 300, 90, 2.0 -- T: temperature

-- Two spirals: points (n, 2) and labels.
local function spirals(n, seed)
    local turn = mx.rand { shape = { n, 1 }, low = 0.5, high = 3, seed = seed }
    local label = mx.rand { shape = { n, 1 }, seed = seed + 1 }:gt(0.5):to("f32")
    local angle = turn * 3 + label * math.pi
    return mx.concat({ turn * mx.cos(angle), turn * mx.sin(angle) }, { dim = 2 }) / 2, label:view(n):to("i32")
end

local function network(params, hidden)
    return mx.nn.sequential(mx.nn.linear(params, "a", 2, hidden, { bias = true }), mx.tanh,
        mx.nn.linear(params, "b", hidden, hidden, { bias = true }), mx.tanh,
        mx.nn.linear(params, "c", hidden, 2, { bias = true }))
end

-- Trains on soft targets (n, 2) at a temperature.
local function train(params, model, x, targets, temperature, steps)
    local optimizer = mx.optim.adamw(params, { learning_rate = 1e-2 })
    for _ = 1, steps do
        local step <close> = mx.step()
        local log_p = mx.log_softmax(model(x) / temperature)
        mx.backward(mx.mean(mx.sum(targets * log_p, { dim = 2 })) * -(temperature ^ 2))
        optimizer:step()
    end
end

local function accuracy(model, x, labels)
    return mx.no_grad(mx.scope, function()
        return mx.mean(mx.argmax(model(x), { dim = 2 }):eq(labels):to("f32")):item()
    end)
end

local x, labels = spirals(N, 1)
local flip = mx.arange { n = N, dtype = "i32" }:lt(WRONG):to("i32")
local noisy = mx.one_hot(labels + flip - labels * flip * 2, { classes = 2 }):to("f32")
local clean = mx.one_hot(labels, { classes = 2 }):to("f32")
local test_x, test_labels = spirals(4000, 11)

local big, taught, alone = {}, {}, {}
local teacher, student, other = network(big, 64), network(taught, 8), network(alone, 8)
train(big, teacher, x, clean, 1, 300) -- the teacher saw clean labels
local soft = mx.no_grad(function() return mx.softmax(teacher(x) / T):keep() end)
train(taught, student, x, soft, T, 400)
train(alone, other, x, noisy, 1, 400)
local a, b, c = accuracy(teacher, test_x, test_labels), accuracy(student, test_x, test_labels),
    accuracy(other, test_x, test_labels)
print(("right: teacher %.3f, its student %.3f, without teacher %.3f"):format(a, b, c))
assert(b > c + 0.01, "the student must be better than one without a teacher")
