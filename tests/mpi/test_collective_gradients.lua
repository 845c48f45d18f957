-- ranks: 1 2 3 4
-- nodes: 2
-- Gradients of collectives against finite differences, in the two meanings of engine/mesh/collective.c: ranks that use
-- a result each in its own way (the loss is the sum of theirs), and ranks that use it alike (it is that of any).

local lu = require "luaunit"
local mx = require "mx"

local rank, ranks = mx.rank(), mx.ranks()
local STEP = 1 / 64 -- losses are linear in x: differences are exact but for rounding

-- The gradient that the tape gives, and the one that perturbing each element of each rank's x in turn gives.
local function check(sizes, alike, fn)
    mx.scope(function()
        local count = 1
        for _, size in ipairs(sizes) do
            count = count * size
        end
        local x = mx.randn { shape = sizes, seed = 11 + rank }
        -- Ranks that use y alike weigh it alike, and the loss of one of them is the loss.
        local function loss_of(t)
            local y = fn(t)
            local weights = mx.randn { shape = y:size(), seed = alike and 5 or 100 + rank }
            return (y * weights):sum()
        end
        local function total(t)
            local own = mx.no_grad(loss_of, t):item()
            return alike and own or mx.all_reduce(mx.tensor(own)):item()
        end
        local leaf = x:clone():requires_grad()
        mx.backward(loss_of(leaf))
        local grad = leaf:grad()
        for r = 0, ranks - 1 do
            for i = 1, count do
                local change = mx.zeros { count }
                if r == rank then
                    change:set(i, STEP)
                end
                change = change:view(table.unpack(sizes))
                local slope = (total(x + change) - total(x - change)) / (2 * STEP)
                if r == rank then
                    lu.assertAlmostEquals(grad:view(count):get(i), slope, 2e-3)
                end
            end
        end
    end)
end

TestOwnUse = {}

function TestOwnUse.test_all_reduce()
    check({ 3 }, false, function(x)
        return mx.all_reduce(x, { grad = "all_reduce" })
    end)
    check({ 3 }, false, function(x)
        return mx.all_reduce(x, { op = "mean", grad = "all_reduce" })
    end)
end

function TestOwnUse.test_all_gather()
    for dim = 1, 2 do
        check({ 2, 3 }, false, function(x)
            return mx.all_gather(x, { dim = dim })
        end)
        check({ 2, 3 }, false, function(x)
            return mx.all_gather(x, { dim = dim, async = true, async_grad = true })
        end)
    end
end

function TestOwnUse.test_reduce_scatter()
    for dim = 1, 2 do
        check({ ranks, ranks }, false, function(x)
            return mx.reduce_scatter(x, { dim = dim })
        end)
        check({ ranks, ranks }, false, function(x)
            return mx.reduce_scatter(x, { dim = dim, op = "mean" })
        end)
    end
end

function TestOwnUse.test_all_to_all()
    check({ ranks, 2 }, false, function(x)
        return mx.all_to_all(x, { split = 1, concat = 2 })
    end)
end

function TestOwnUse.test_collective_permute()
    for _, shift in ipairs { 1, -1, 2 } do
        check({ 3 }, false, function(x)
            return mx.collective_permute(x, { shift = shift })
        end)
    end
end

function TestOwnUse.test_broadcast()
    for root = 0, ranks - 1 do
        check({ 3 }, false, function(x)
            return mx.broadcast(x, { root = root })
        end)
    end
end

-- fan_out takes what all hold alike: an x that was added up first, so that perturbing one rank's moves everybody's.
function TestOwnUse.test_fan_out()
    check({ 3 }, false, function(x)
        return mx.fan_out(mx.all_reduce(x))
    end)
end

function TestOwnUse.test_shard()
    check({ ranks, 2 }, false, function(x)
        return mx.shard(mx.all_reduce(x), { dim = 1 })
    end)
end

TestAlike = {}

function TestAlike.test_all_reduce()
    check({ 3 }, true, mx.all_reduce)
    check({ 3 }, true, function(x)
        return mx.all_reduce(x, { op = "mean" })
    end)
end

function TestAlike.test_all_gather()
    for dim = 1, 2 do
        check({ 2, 3 }, true, function(x)
            return mx.all_gather(x, { dim = dim, grad = "slice" })
        end)
    end
end

TestWhole = {}

-- Gradients of a leaf are added while backward goes on, once each.
function TestWhole.test_reduce_gradient()
    local w = mx.ones { 4 }:requires_grad()
    mx.mesh_define { { name = "data", ici = ranks } }
    for _, async in ipairs { false, true } do
        mx.comm_options { async_all_reduce = async }
        mx.reduce_gradient(w, "data")
        local loss = (w * (rank + 1)):sum() + (w * w):sum()
        mx.backward(loss)
        lu.assertEquals(w:grad():get(1), ranks * (ranks + 1) / 2 + 2 * ranks)
        w:zero_grad()
        mx.reduce_gradient(w, nil)
        mx.backward((w * (rank + 1)):sum())
        lu.assertEquals(w:grad():get(1), rank + 1)
        w:zero_grad()
    end
end

function TestWhole.test_no_gradient_of_a_maximum()
    local x = mx.ones { 2 }:requires_grad()
    lu.assertErrorMsgContains("no gradient", mx.backward, mx.all_reduce(x, { op = "max" }):sum())
end
