-- Denoising diffusion (DDPM) in two dimensions: points on a circle, learned with averaged weights (EMA).
-- Of the drawn points, more than 90 % must be within 0.2 of the circle of radius 2, on all sides of it.
--
--     build/mxlua scripts/examples/diffusion.lua [steps=3000]
local mx = require "mx"
local o = mx.config.options(arg, { steps = 3000 })
local T, WIDTH, B, DRAWN = 100, 32, 256, 1000

local beta = mx.linspace(1e-4, 0.1, T) -- the noise of each time
local kept = mx.cumprod(1 - beta)      -- what is left of the data's variance

local frequency = mx.exp(mx.arange(WIDTH // 2) * (-math.log(10000) / (WIDTH // 2)))
local function embed(times) -- (n) -> (n, WIDTH)
    local angle = times:to("f32"):view(-1, 1) * frequency
    return mx.concat(angle:sin(), angle:cos(), { dim = 2 })
end

local params = {}
local net = mx.nn.sequential(
    mx.nn.linear(params, "first", 2 + WIDTH, 128, { bias = true }), mx.silu,
    mx.nn.linear(params, "second", 128, 128, { bias = true }), mx.silu,
    mx.nn.linear(params, "out", 128, 2, { bias = true }))
local function noise_of(x, times) -- (n, 2), (n) -> (n, 2)
    return net(mx.concat(x, embed(times), { dim = 2 }))
end

local rate = mx.optim.schedule { type = "cosine", peak = 3e-3, steps = o.steps }
local optimizer, average = mx.optim.adamw(params, { learning_rate = rate }), mx.optim.ema(params, { decay = 0.99 })
for i = 1, o.steps do
    local step <close> = mx.step()
    local angle = mx.rand { B } * (2 * math.pi)
    local x = 2 * mx.stack(angle:cos(), angle:sin(), { dim = 2 })
    local times, noise = mx.randint({ B }, { high = T }), mx.randn(B, 2)
    local share = kept[times]:view(-1, 1)
    local loss = mx.mse_loss(noise_of(x * share:sqrt() + noise * (1 - share):sqrt(), times), noise)
    mx.backward(loss)
    optimizer:step()
    average:update()
    if i % 500 == 0 then print(("step %4d  loss %.4f"):format(i, loss:item())) end
end

local function draw(n)
    local x = mx.randn(n, 2)
    for t = T, 1, -1 do
        local noise = noise_of(x, mx.full({ n }, t - 1, "i32"))
        x = (x - noise * (beta[t] / math.sqrt(1 - kept[t]))) / math.sqrt(1 - beta[t])
        x = t > 1 and x + mx.randn(n, 2) * math.sqrt(beta[t]) or x
    end
    return x
end
local x = average:apply(function() return mx.no_grad(draw, DRAWN) end)
local near = (mx.norm(x, { dim = 2 }) - 2):abs():lt(0.2):to("f32"):mean():item()
local center = mx.norm(x:mean { dim = 1 }):item()
print(("%.1f %% near the circle, their mean %.2f from its center"):format(100 * near, center))
mx.plot { file = "diffusion.svg", kind = "scatter", title = "drawn", x = x[{ {}, 1 }], y = x[{ {}, 2 }] }
assert(near > 0.9 and center < 0.3, "more than 90 % must be near the circle, on all sides")
