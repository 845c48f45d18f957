-- Influence functions (Koh and Liang, 2017): how a test loss changes when one training example is left out, without
-- training again. It needs the inverse Hessian times a vector, by conjugate gradients on gradients of gradients.
-- The predicted changes must correlate by 0.95 with those of models that are trained without the example.
--
--     build/mxlua scripts/examples/influence.lua
local mx = require "mx"
local N, FEATURES, CLASSES, LEFT_OUT = 60, 6, 3, 10
local truth = mx.randn({ FEATURES, CLASSES }, { seed = 1 })
local function draw(n, seed)
    local x = mx.randn({ n, FEATURES }, { seed = seed })
    return x, mx.argmax(mx.matmul(x, truth) + mx.randn({ n, CLASSES }, { seed = seed + 1 }) * 2, { dim = 2 })
end
local x, y = draw(N, 2)
local test_x, test_y = draw(200, 4)
local function logits(input, w) return mx.matmul(mx.layernorm(input, mx.ones(FEATURES)), w) end
local function test_loss(w) return mx.softmax_cross_entropy(logits(test_x, w), test_y) end
-- The mean loss of the examples whose weight is 1, and a penalty that makes the minimum unique.
local function loss_of(w, weights)
    local each = mx.softmax_cross_entropy(logits(x, w), y, { reduction = "none" })
    return (each * weights):sum() / N + mx.square(w):sum() * 0.01
end
-- H v, where H is the Hessian of the loss by w.
local function hessian_times(w, weights, v)
    return mx.grad((mx.grad(loss_of(w, weights), w, { record = true }) * v):sum(), w)
end
-- s with H s = b.
local function solve(w, weights, b)
    local s, r = mx.zeros(b:size()), b
    local p, size = r, mx.sum_squares(r):item()
    for _ = 1, 30 do
        local hp = hessian_times(w, weights, p)
        local step = size / (p * hp):sum():item()
        s, r = s + p * step, r - hp * step
        local now = mx.sum_squares(r):item()
        if now < 1e-12 then break end
        p, size = r + p * (now / size), now
    end
    return s
end

-- Newton's method.
local function train(weights)
    local w = mx.zeros(FEATURES, CLASSES):requires_grad()
    for _ = 1, 6 do w = (w - solve(w, weights, mx.grad(loss_of(w, weights), w))):detach():requires_grad() end
    return w
end

local all, w = mx.ones(N), train(mx.ones(N))
local before, s = test_loss(w):item(), solve(w, all, mx.grad(test_loss(w), w))
local predicted, measured = {}, {}
for i = 1, LEFT_OUT do
    local one = mx.one_hot(mx.tensor({ i - 1 }, "i32"), { classes = N }):view(N)
    predicted[i] = (s * mx.grad(loss_of(w, one), w)):sum():item() -- the penalty is in all of them alike
    measured[i] = test_loss(train(all - one)):item() - before
end
local function centred(list) return mx.tensor(list) - mx.tensor(list):mean() end
local a, b = centred(predicted), centred(measured)
local correlation = ((a * b):sum() / (a:norm() * b:norm())):item()
print(("correlation of predicted and measured changes: %.3f"):format(correlation))
assert(correlation > 0.95, "the correlation must be above 0.95")
