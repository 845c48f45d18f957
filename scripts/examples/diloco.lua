-- DiLoCo over ranks (Douillard et al., 2023): each rank trains alone for some steps; then the ranks' mean change is the
-- gradient of an outer SGD with Nesterov momentum. Ranks exchange 20 times less than with data parallelism.
-- The loss must fall below 0.02, and all ranks must end with the same weights.
--
--     mpirun -n 2 build/mxlua scripts/examples/diloco.lua
local mx = require "mx"
local ROUNDS, INNER = 20, 20

local params = {}
local model = mx.nn.sequential(mx.nn.linear(params, "a", 1, 64, { bias = true }), mx.tanh,
    mx.nn.linear(params, "b", 64, 64, { bias = true }), mx.tanh, mx.nn.linear(params, "c", 64, 1, { bias = true }))
local inner = mx.optim.adamw(params, { learning_rate = 5e-3 })
local outer_params, loss = {}, nil -- what the ranks agreed on last
for name, t in pairs(mx.nn.state(params)) do
    outer_params[name] = t:requires_grad()
end
local outer = mx.optim.custom("nesterov", {
    moments = function(t) return { m = { sizes = t:size(), dtype = "f32" } } end,
    update = function(p, grad, state, o)
        mx.copy(state.m, state.m * 0.8 + grad)
        mx.copy(p, p - (grad + state.m * 0.8) * o.lr)
    end,
})(outer_params, { learning_rate = 0.5 })

for round = 1, ROUNDS do
    for i = 1, INNER do
        local step <close> = mx.step()
        local seed = (round * INNER + i) * mx.ranks() + mx.rank() -- each rank its own data
        local x = mx.rand { shape = { 64, 1 }, low = -2, high = 2, seed = seed }
        local mean = mx.mean(mx.square(model(x) - mx.sin(x * 3)))
        mx.backward(mean)
        inner:step()
        loss = mean:item()
    end
    local step <close> = mx.step()
    local total = mx.zeros { 1 }
    for _, name in ipairs(mx.util.sorted_keys(params)) do -- the same order on all ranks
        local change = outer_params[name]:detach() - params[name]:detach()
        local mean = mx.all_reduce(change, { op = "mean" })
        total = total + mx.sum(outer_params[name] * mean) -- its gradient is the mean change
    end
    mx.backward(mx.sum(total))
    outer:step()
    mx.nn.load_state(params, outer_params)
end

local loss_of_all = mx.all_reduce(mx.tensor { loss }, { op = "mean" }):item()
for _, name in ipairs(mx.util.sorted_keys(params)) do
    local of_rank_0 = mx.broadcast(params[name]:detach())
    assert(mx.max(mx.abs(of_rank_0 - params[name])):item() == 0, name .. " differs between ranks")
end
if mx.rank() == 0 then
    print(("%d ranks, %d exchanges: loss %.4f"):format(mx.ranks(), ROUNDS, loss_of_all))
end
assert(loss_of_all < 0.02, "the loss must be below 0.02")
