-- A GAN on a line: the generator learns a normal distribution around 4 with deviation 0.5. Both losses of a step come
-- from one pass of the generator: the first backward keeps the tape for the second.
-- Mean and deviation of what is generated must end within 0.3 of the target's.
--
--     build/mxlua scripts/examples/gan.lua [steps=1500]
local mx = require "mx"
local o = mx.config.options(arg, { steps = 1500 })
local B = 128

local generator, critic = {}, {}
local generate = mx.nn.sequential(mx.nn.linear(generator, "a", 1, 16, { bias = true }), mx.tanh,
    mx.nn.linear(generator, "b", 16, 1, { bias = true }))
local judge = mx.nn.sequential(mx.nn.linear(critic, "a", 2, 32, { bias = true }), mx.tanh,
    mx.nn.linear(critic, "b", 32, 1, { bias = true }))
-- A critic that sees a point beside the spread of its batch cannot be fooled by one point.
local function score(x)
    local spread = mx.mean(mx.square(x - mx.mean(x)))
    return judge(mx.concat({ x, x * 0 + spread }, { dim = 2 }))
end

local function logistic(x, sign) -- mean of -log sigmoid(sign x)
    return mx.mean(mx.log(mx.exp(x * -sign) + 1))
end

local by_critic = mx.optim.adamw(critic, { learning_rate = 2e-3, beta1 = 0.5 })
local by_generator = mx.optim.adamw(generator, { learning_rate = 2e-3, beta1 = 0.5 })
local average = mx.optim.ema(generator, { decay = 0.99 }) -- a GAN circles its goal
for i = 1, o.steps do
    local step <close> = mx.step()
    local real = mx.randn { shape = { B, 1 }, mean = 4, std = 0.5, seed = 2 * i }
    local fake = generate(mx.randn { shape = { B, 1 }, seed = 2 * i + 1 })
    local judged = score(fake)
    mx.backward(logistic(score(real), 1) + logistic(judged, -1), { retain = true })
    by_generator:zero_grad() -- the critic's loss is not the generator's
    by_critic:step()
    mx.backward(logistic(score(fake), 1))
    by_critic:zero_grad()
    by_generator:step()
    average:update()
end

local fake = average:apply(function()
    return mx.no_grad(generate, mx.randn { shape = { 4096, 1 }, seed = 7 })
end)
local mean = mx.mean(fake):item()
local deviation = math.sqrt(mx.mean(mx.square(fake - mean)):item())
print(("generated: mean %.2f, deviation %.2f; wanted: 4.00, 0.50"):format(mean, deviation))
assert(math.abs(mean - 4) < 0.3 and math.abs(deviation - 0.5) < 0.3, "mean or deviation is more than 0.3 off")
