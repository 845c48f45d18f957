-- ranks: 1 2 3
-- Gradients of gradients through collectives, against the same function of all ranks' inputs, which each rank computes
-- alone.

local mx = require "mx"
local lu = require "luaunit"

local rank, ranks = mx.rank(), mx.ranks()

local function random(seed, ...)
    return mx.randn({ ... }, { seed = seed, std = 0.7 })
end

-- Coefficients of rank r, so that ranks use equal values differently.
local function own(r, ...)
    return random(1000 + r, ...)
end

local function cube(t)
    return t * t * t
end

-- The sum over ranks of fn(r).
local function total(fn)
    local sum = fn(0)
    for r = 1, ranks - 1 do
        sum = sum + fn(r)
    end
    return sum
end

local function all(fn)
    local list = {}
    for r = 0, ranks - 1 do
        list[r + 1] = fn(r)
    end
    return list
end

-- Row r of what each rank has.
local function rows_for(inputs, r)
    return mx.concat(all(function(j) return inputs[j + 1][{ { r + 1, r + 1 } }]:square() end), { dim = 1 })
end

-- Each case: the sizes of x; `mesh`, a loss of this rank's x that is the same on all ranks; `whole`, the same loss of
-- the inputs of all ranks. With `same`, x is the same on all ranks.
local CASES = {
    all_reduce = {
        sizes = { 3 },
        mesh = function(x) return cube(mx.all_reduce(x:square() * own(rank, 3))):sum() end,
        whole = function(xs) return cube(total(function(r) return xs[r + 1]:square() * own(r, 3) end)):sum() end,
    },
    all_reduce_mean = {
        sizes = { 3 },
        mesh = function(x) return cube(mx.all_reduce(x:square(), { op = "mean" })):sum() end,
        whole = function(xs) return cube(total(function(r) return xs[r + 1]:square() end) / ranks):sum() end,
    },
    all_reduce_used_differently = {
        sizes = { 3 },
        mesh = function(x)
            return mx.all_reduce((cube(mx.all_reduce(x:square(), { grad = "all_reduce" })) * own(rank, 3)):sum())
        end,
        whole = function(xs)
            local y = cube(total(function(r) return xs[r + 1]:square() end))
            return total(function(r) return (y * own(r, 3)):sum() end)
        end,
    },
    fan_out = {
        sizes = { 3 }, same = true,
        mesh = function(x) return mx.all_reduce((cube(mx.fan_out(x:square())) * own(rank, 3)):sum()) end,
        whole = function(x) return total(function(r) return (cube(x:square()) * own(r, 3)):sum() end) end,
    },
    all_gather = {
        sizes = { 2, 2 },
        mesh = function(x)
            return mx.all_reduce((cube(mx.all_gather(x:square(), { dim = 2 })) * own(rank, 2, 2 * ranks)):sum())
        end,
        whole = function(xs)
            local y = cube(mx.concat(all(function(r) return xs[r + 1]:square() end), { dim = 2 }))
            return total(function(r) return (y * own(r, 2, 2 * ranks)):sum() end)
        end,
    },
    all_gather_used_alike = {
        sizes = { 2 },
        mesh = function(x)
            return (cube(mx.all_gather(x:square(), { dim = 1, grad = "slice" })) * own(9, 2 * ranks)):sum()
        end,
        whole = function(xs)
            local y = cube(mx.concat(all(function(r) return xs[r + 1]:square() end), { dim = 1 }))
            return (y * own(9, 2 * ranks)):sum()
        end,
    },
    shard = {
        sizes = { 2 * ranks + 1 }, same = true, -- the first rank has one more
        mesh = function(x)
            local c = mx.shard(own(9, 2 * ranks + 1), { dim = 1 })
            return mx.all_reduce((cube(mx.shard(x:square(), { dim = 1 })) * c):sum())
        end,
        whole = function(x) return (cube(x:square()) * own(9, 2 * ranks + 1)):sum() end,
    },
    reduce_scatter = {
        sizes = { 2 * ranks },
        mesh = function(x)
            local y = mx.reduce_scatter(x:square() * own(rank, 2 * ranks), { dim = 1, op = "mean" })
            return mx.all_reduce(cube(y):sum())
        end,
        whole = function(xs)
            return cube(total(function(r) return xs[r + 1]:square() * own(r, 2 * ranks) end) / ranks):sum()
        end,
    },
    all_to_all = {
        sizes = { ranks, 2 },
        mesh = function(x)
            local y = mx.all_to_all(x:square(), { split = 1, concat = 2 })
            return mx.all_reduce((cube(y) * own(rank, 1, 2 * ranks)):sum())
        end,
        whole = function(xs)
            return total(function(r) return (cube(rows_for(xs, r):view(1, -1)) * own(r, 1, 2 * ranks)):sum() end)
        end,
    },
    all_to_all_rows = {
        sizes = { ranks, 2 }, -- each rank has one row for the one expert of each rank
        mesh = function(x)
            local y = mx.all_to_all_rows(x:square(), mx.ones({ ranks, ranks }, "i32"), { rows = ranks })
            return mx.all_reduce((cube(y) * own(rank, ranks, 2)):sum())
        end,
        whole = function(xs)
            return total(function(r) return (cube(rows_for(xs, r)) * own(r, ranks, 2)):sum() end)
        end,
    },
    collective_permute = {
        sizes = { 3 },
        mesh = function(x)
            return mx.all_reduce((cube(mx.collective_permute(x:square(), { shift = 1 })) * own(rank, 3)):sum())
        end,
        whole = function(xs)
            return total(function(r) return (cube(xs[(r - 1) % ranks + 1]:square()) * own(r, 3)):sum() end)
        end,
    },
    broadcast = {
        sizes = { 3 },
        mesh = function(x)
            return mx.all_reduce((cube(mx.broadcast(x:square(), { root = ranks - 1 })) * own(rank, 3)):sum())
        end,
        whole = function(xs)
            return total(function(r)
                return (cube(xs[ranks]:square()) * own(r, 3)):sum() + 0 * cube(xs[r + 1]):sum()
            end)
        end,
    },
}

TestTwice = {}

-- f32: a dozen operations on numbers of some units, whose sums may cancel.
local function assert_close(a, b)
    lu.assertTrue((a - b):abs():max():item() <= 2e-5 * math.max(1, b:abs():max():item()))
end

for name, case in pairs(CASES) do
    TestTwice["test_" .. name] = function()
        local step <close> = mx.step()
        assert(step)
        local inputs = all(function(r)
            return random(case.same and 1 or 1 + r, table.unpack(case.sizes)):requires_grad()
        end)
        local x = inputs[rank + 1]
        local first = mx.grad(case.mesh(x), x, { record = true })
        local penalty = cube(first):sum()
        local second = mx.grad(case.same and penalty or mx.all_reduce(penalty), x)

        local wanted, sum
        if case.same then
            wanted = { mx.grad(case.whole(x), x, { record = true }) }
            sum = cube(wanted[1]):sum()
        else
            wanted = mx.grad(case.whole(inputs), inputs, { record = true })
            sum = total(function(r) return cube(wanted[r + 1]):sum() end)
        end
        local alone = mx.grad(sum, case.same and { x } or inputs)
        assert_close(first, wanted[case.same and 1 or rank + 1])
        assert_close(second, alone[case.same and 1 or rank + 1])
    end
end

-- What is sent to another rank has no handle there that a second gradient could start from.
function TestTwice.test_send_is_refused()
    if ranks == 1 then
        return
    end
    local x = mx.ones(2):requires_grad()
    local y = rank == 0 and mx.send(x, { to = 1 }) or rank == 1 and mx.recv(x, { from = 0 }) or x * 2
    local call = rank == 0 and "send" or "recv"
    if rank < 2 then
        lu.assertErrorMsgContains("the gradient of " .. call, mx.grad, y:sum(), x, { record = true })
    end
    mx.barrier()
end
