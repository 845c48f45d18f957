-- A pipeline by hand: each rank has some layers, and microbatches pass through the ranks one after the other (GPipe).
-- mx.send and mx.recv have gradients, so one backward pass goes through all ranks.
-- The weights must become those of one process that trains all layers; the loss must fall below 0.01.
--
--     mpirun -n 2 build/mxlua scripts/examples/gpipe.lua
local mx = require "mx"
local LAYERS, MICROBATCHES, STEPS, WIDTH = 4, 4, 150, 32
local stage, stages = mx.rank(), mx.ranks()

-- Layers first to last; their initial weights depend only on their names.
local function layers(first, last)
    local params, list = {}, {}
    for i = first, last do
        local inner = mx.nn.linear(params, "inner" .. i, WIDTH, 2 * WIDTH)
        local outer = mx.nn.linear(params, "outer" .. i, 2 * WIDTH, WIDTH)
        list[#list + 1] = function(x) return x + outer(inner(x):tanh()) end
    end
    local optimizer = mx.optim.adamw(params, { learning_rate = 3e-3 })
    return params, mx.nn.sequential(table.unpack(list)), optimizer
end

local x, targets = {}, {} -- microbatches: learn to reverse the sine of the features
for m = 1, MICROBATCHES do
    x[m] = mx.randn { shape = { 8, WIDTH }, seed = m }
    targets[m] = mx.flip(mx.sin(x[m]), { dim = 2 })
end
local function loss_of(y, m) return mx.mse_loss(y, targets[m]) * (1 / MICROBATCHES) end

local count = LAYERS // stages
local params, model, optimizer = layers(stage * count + 1, stage == stages - 1 and LAYERS or (stage + 1) * count)
local like = mx.zeros { 8, WIDTH }:requires_grad()
local loss
for _ = 1, STEPS do
    local step <close> = mx.step()
    local total = mx.zeros { 1 }
    for m = 1, MICROBATCHES do
        local y = model(stage == 0 and x[m] or mx.recv(like, { from = stage - 1 }))
        total = total + (stage == stages - 1 and loss_of(y, m) or mx.send(y, { to = stage + 1 }))
    end
    mx.backward(total) -- on each rank from the last microbatch to the first
    optimizer:step()
    loss = total:item()
end

local all, whole, alone = layers(1, LAYERS)
for _ = 1, STEPS do
    local step <close> = mx.step()
    for m = MICROBATCHES, 1, -1 do
        mx.backward(loss_of(whole(x[m]), m))
    end
    alone:step()
end
for name, t in mx.util.sorted_pairs(params) do
    assert(mx.max(mx.abs(t:detach() - all[name]:detach())):item() < 1e-6, name .. " differs from that of one process")
end
if stage == stages - 1 then
    print(("%d stages: loss %.4f"):format(stages, loss))
    assert(loss < 0.01, "the loss must be below 0.01")
end
