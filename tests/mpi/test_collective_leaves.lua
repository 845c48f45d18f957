-- ranks: 1 2 4
-- Gradients of leaves that are added over ranks (mx.reduce_gradient), where leaves and intermediates share what the
-- gradient of a sum hands on, and over several backwards.

local mx = require "mx"
local lu = require "luaunit"

local rank, ranks = mx.rank(), mx.ranks()

-- Sum over the ranks of (rank + 1): what one gradient is scaled with on each.
local TOTAL = ranks * (ranks + 1) / 2

local function leaf(values, axes)
    return mx.reduce_gradient(mx.tensor(values):keep():requires_grad(), axes or "data")
end

local function all(n, value)
    local t = {}
    for i = 1, n do
        t[i] = value
    end
    return t
end

--- Runs fn with gradients added at once, beside the backward pass, and beside it in one batch.
local function each_way(fn)
    mx.mesh_define { { name = "data", ici = ranks }, { name = "tensor" } }
    for _, o in ipairs {
        { async_all_reduce = false }, { async_all_reduce = true, all_reduce_combine_bytes = 0 },
        { async_all_reduce = true, all_reduce_combine_bytes = 1 << 20 },
    } do
        mx.comm_options(o)
        local step <close> = mx.step()
        fn(("async %s, combined to %s"):format(o.async_all_reduce, o.all_reduce_combine_bytes))
        assert(step)
    end
    mx.comm_options { async_all_reduce = false, all_reduce_combine_bytes = 0 }
end

TestLeaves = {}

--- Expected: what each leaf's gradient is on one rank, for a loss that is not scaled.
local SUMS = {
    add = { function(a, b) return a + b end, 1, 1 },
    sub = { function(a, b) return a - b end, 1, -1 },
    with_an_intermediate = { function(a, b) return a * 2 + b end, 2, 1 },
    intermediate_last = { function(a, b) return b + a * 2 end, 2, 1 },
    views = { function(a, b) return a:view(2, 2) + b:view(2, 2) end, 1, 1 },
    concat = { function(a, b) return mx.concat { a, b } end, 1, 1 },
    used_twice = { function(a, b) return (a + b) + a end, 2, 1 },
    sum_with_itself = { function(a, b) return a + a + b end, 2, 1 },
    clones = { function(a, b) return a:clone() + b:clone() end, 1, 1 },
}

for name, case in pairs(SUMS) do
    TestLeaves["test_a_sum_of_leaves_" .. name] = function()
        each_way(function(way)
            local a, b = leaf { 1, 2, 3, 4 }, leaf { 5, 6, 7, 8 }
            mx.backward(case[1](a, b):sum(), rank + 1)
            lu.assertEquals(a:grad():totable(), all(4, case[2] * TOTAL), way)
            lu.assertEquals(b:grad():totable(), all(4, case[3] * TOTAL), way)
        end)
    end
end

--- A weight and a low-rank change of it: W + A B.
function TestLeaves.test_a_low_rank_change()
    each_way(function(way)
        local w, a, b = leaf { { 0, 0 }, { 0, 0 } }, leaf { { 1 }, { 2 } }, leaf { { 3, 4 } }
        local x = mx.tensor { { 1, 1 } }
        mx.backward(mx.matmul(x, w + mx.matmul(a, b)):sum(), rank + 1)
        lu.assertEquals(w:grad():totable(), { { TOTAL, TOTAL }, { TOTAL, TOTAL } }, way)
        lu.assertEquals(a:grad():totable(), { { 7 * TOTAL }, { 7 * TOTAL } }, way)
        lu.assertEquals(b:grad():totable(), { { 3 * TOTAL, 3 * TOTAL } }, way)
    end)
end

--- Without axes it is added over all ranks, with and without a mesh.
function TestLeaves.test_all_ranks()
    each_way(function(way)
        local w = mx.reduce_gradient(mx.tensor({ 1, 2 }):keep():requires_grad())
        mx.backward((w * 3):sum(), rank + 1)
        mx.backward((w * w):sum(), rank + 1)
        lu.assertEquals(w:grad():totable(), { 5 * TOTAL, 7 * TOTAL }, way)
    end)
end

--- One leaf is added over ranks and the other is not.
function TestLeaves.test_only_one_is_added()
    each_way(function(way)
        local a, b = leaf { 1, 2 }, mx.tensor({ 3, 4 }):requires_grad()
        mx.backward((a + b):sum(), rank + 1)
        lu.assertEquals(a:grad():totable(), all(2, TOTAL), way)
        lu.assertEquals(b:grad():totable(), all(2, rank + 1), way)
    end)
end

--- Several backwards add up, each added over the ranks once; a gradient taken in between stays as it was.
function TestLeaves.test_several_backwards()
    each_way(function(way)
        local w = leaf { 1, 2 }
        mx.backward((w * 3):sum(), rank + 1)
        local first = w:grad()
        mx.backward((w * w):sum(), rank + 1)
        lu.assertEquals(first:totable(), all(2, 3 * TOTAL), way)
        lu.assertEquals(w:grad():totable(), { 5 * TOTAL, 7 * TOTAL }, way)
        local loss = (w * 3):sum()
        mx.backward(loss, rank + 1, { retain = true })
        mx.backward(loss, rank + 1)
        lu.assertEquals(w:grad():totable(), { 11 * TOTAL, 13 * TOTAL }, way)
    end)
end

--- Of several batches the last adds the sum of all of them.
function TestLeaves.test_batches_of_which_the_last_adds()
    each_way(function(way)
        local w = leaf { 1, 2 }
        mx.reduce_gradient(w, false)
        mx.backward((w * 3):sum(), rank + 1)
        lu.assertEquals(w:grad():totable(), all(2, 3 * (rank + 1)), way)
        mx.reduce_gradient(w, "data")
        mx.backward((w * w):sum(), rank + 1)
        lu.assertEquals(w:grad():totable(), { 5 * TOTAL, 7 * TOTAL }, way)
        if ranks > 1 then
            mx.reduce_gradient(w, false)
            lu.assertErrorMsgContains("zero_grad", mx.backward, (w * 3):sum())
        end
        w:zero_grad()
        mx.reduce_gradient(w, false)
        mx.backward((w * 3):sum())
        lu.assertEquals(w:grad():totable(), { 3, 3 }, way)
    end)
end

--- A leaf that another, unwalked loss reads too is added when its own loss has been walked.
function TestLeaves.test_a_loss_that_is_not_walked()
    each_way(function(way)
        local w = leaf { 1, 2 }
        local other = (w * w):sum()
        mx.backward((w * 3):sum(), rank + 1)
        lu.assertEquals(w:grad():totable(), all(2, 3 * TOTAL), way)
        mx.backward(other, rank + 1)
        lu.assertEquals(w:grad():totable(), { 5 * TOTAL, 7 * TOTAL }, way)
    end)
end

--- A frozen leaf takes part in no sum; the others do.
function TestLeaves.test_a_frozen_leaf()
    each_way(function(way)
        local a, b = leaf { 1, 2 }, leaf { 3, 4 }
        mx.backward((a + b):sum(), rank + 1)
        a:requires_grad(false)
        mx.backward((a + b):sum(), rank + 1)
        lu.assertEquals(a:grad():totable(), all(2, TOTAL), way)
        lu.assertEquals(b:grad():totable(), all(2, 2 * TOTAL), way)
    end)
end

--- Along one axis of two, and along both.
function TestLeaves.test_axes()
    if ranks ~= 4 then
        lu.success()
    end
    mx.mesh_define { { name = "data", ici = 2 }, { name = "tensor", ici = 2 } }
    for _, async in ipairs { false, true } do
        mx.comm_options { async_all_reduce = async }
        local step <close> = mx.step()
        local a, b, c = leaf({ 1, 2 }, "data"), leaf({ 3, 4 }, "tensor"), leaf({ 5, 6 }, { "data", "tensor" })
        mx.backward((a + b + c):sum(), 10 ^ rank) -- the digits of a sum say which ranks are in it
        local row, column = rank // 2, rank % 2
        lu.assertEquals(a:grad():totable(), all(2, 10.0 ^ column + 10.0 ^ (2 + column)))
        lu.assertEquals(b:grad():totable(), all(2, 10.0 ^ (2 * row) + 10.0 ^ (2 * row + 1)))
        lu.assertEquals(c:grad():totable(), all(2, 1111))
        assert(step)
    end
    mx.comm_options { async_all_reduce = false }
end
