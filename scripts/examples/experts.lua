-- A mixture of experts by hand: a router sends each point to the best two of four experts, whose rows are multiplied in
-- one grouped product. A second loss keeps the experts busy.
-- It must learn a function of four different pieces to 0.02, and no expert may get more than half of the choices.
--
--     build/mxlua scripts/examples/experts.lua [steps=2000]
local mx = require "mx"
local o = mx.config.options(arg, { steps = 2000 })
local EXPERTS, TOP, WIDTH, HIDDEN, B = 4, 2, 16, 64, 256

local params = {}
local embed = mx.nn.linear(params, "in", 2, WIDTH, { bias = true })
local router = mx.nn.linear(params, "router", WIDTH, EXPERTS)
local up = mx.nn.parameter(params, "up", { EXPERTS, WIDTH, HIDDEN }, { std = WIDTH ^ -0.5 })
local down = mx.nn.parameter(params, "down", { EXPERTS, HIDDEN, WIDTH }, { std = HIDDEN ^ -0.5 })
local out = mx.nn.linear(params, "out", WIDTH, 1, { bias = true })

-- The result, the share of choices of each expert, and the loss that is least when all are chosen alike.
local function model(points)
    local x = mx.tanh(embed(points))
    local logits = router(x)
    local weights, chosen = mx.moe_route(logits, { top = TOP })
    local order, place, counts = mx.moe_sort(chosen, { experts = EXPERTS })
    local rows = mx.moe_gather(x, order, place)
    local inner = mx.silu(mx.grouped_matmul(rows, up, counts))
    local y = mx.moe_combine(mx.grouped_matmul(inner, down, counts), order, place, weights)
    local share = mx.moe_count(chosen, { experts = EXPERTS }) / (TOP * points:size(1))
    local balance = mx.sum(mx.mean(mx.softmax(logits), { dim = 1 }) * share:view(EXPERTS)) * EXPERTS
    return out(x + y), share, balance
end

-- Another wave in each quarter of the plane.
local function batch(seed)
    local points = mx.rand { shape = { B, 2 }, low = -1, high = 1, seed = seed }
    local x, y = points[{ {}, { 1, 1 } }], points[{ {}, { 2, 2 } }]
    local right, above = x:gt(0):to("f32"), y:gt(0):to("f32")
    return points, mx.sin(x * (right * 3 + above * 2 + 1) * 2) * (above * 1.5 - 0.5)
end

local rate = mx.optim.schedule { type = "cosine", peak = 1e-2, steps = o.steps }
local optimizer, loss, share = mx.optim.adamw(params, { learning_rate = rate }), 0, nil
for i = 1, o.steps do
    local step <close> = mx.step()
    local points, target = batch(i)
    local y, shares, balance = model(points)
    local mean = mx.mean(mx.square(y - target))
    mx.backward(mean + balance * 0.01)
    optimizer:step()
    loss, share = 0.95 * loss + 0.05 * mean:item(), shares:totable()[1]
end
local largest = math.max(table.unpack(share))
print(("loss %.4f; shares of the experts %.2f %.2f %.2f %.2f"):format(loss, table.unpack(share)))
assert(loss < 0.02, "the loss must be below 0.02")
assert(largest < 0.5, "one expert has more than half of the choices")
