-- The gradient noise scale (McCandlish et al., 2018) from gradients of a small and a large batch. For a linear model on
-- normal inputs it is known in closed form, and the estimate must lie within a tenth of it.
--
--     build/mxlua scripts/examples/noise_scale.lua
local mx = require "mx"
local N, SMALL, LARGE, ROUNDS, NOISE = 10, 8, 256, 1500, 2.0

-- y = noise, so that the mean gradient of (x w - y)^2 / 2 is w, and its covariance for one example has the trace
-- (N + 1) |w|^2 + N NOISE^2: E (x w - y)^2 |x|^2 = (N + 2) |w|^2 + N NOISE^2, less |w|^2.
local w = mx.ones({ N, 1 }):keep():requires_grad()
local squared = N -- |w|^2
local exact = ((N + 1) * squared + N * NOISE ^ 2) / squared

local function squared_gradient(batch, seed)
    local step <close> = mx.step()
    local x = mx.randn { shape = { batch, N }, seed = seed }
    local y = mx.randn { shape = { batch, 1 }, std = NOISE, seed = seed + 1 }
    w:zero_grad()
    mx.backward(mx.mean(mx.square(mx.matmul(x, w) - y)) * 0.5)
    local square = mx.sum_squares(w:grad()):item()
    w:zero_grad()
    return square
end

-- The mean of |g|^2 over a batch of B is |G|^2 + trace / B: two batch sizes give both.
local small, large = 0, 0
for i = 1, ROUNDS do
    small = small + squared_gradient(SMALL, 4 * i) / ROUNDS
    large = large + squared_gradient(LARGE, 4 * i + 2) / ROUNDS
end
local square = (LARGE * large - SMALL * small) / (LARGE - SMALL)
local trace = (small - large) / (1 / SMALL - 1 / LARGE)
print(("noise scale: %.2f estimated, %.2f exact"):format(trace / square, exact))
assert(math.abs(trace / square / exact - 1) < 0.1, "the estimate is more than a tenth off")
