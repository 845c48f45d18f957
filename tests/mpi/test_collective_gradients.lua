-- ranks: 1 2 3 4
-- nodes: 2
-- Gradients of the collectives against finite differences of losses that are written out.
--
-- The convention is that of engine/mesh/collective.c: what all ranks hold alike has, on each of them, the gradient of
-- the one loss; what they hold of their own, the gradient of their own copy. Where each rank uses a result in its own
-- way, the one loss is the sum over the ranks of what each computes. Where all use it alike (grad = "same", "slice"),
-- every rank computes the one loss, which counts once.

local mx = require "mx"
local lu = require "luaunit"

local rank, ranks = mx.rank(), mx.ranks()

-- ---- losses ----

-- Losses are sum(w y^2) of small integers: all is exact, and so is a central difference of a quadratic function.

--- Element i (from 1) of weights: rank r's own, or the same on all ranks for r = 0.
local function weights(shape, r)
    local w, n = {}, 1
    for _, size in ipairs(shape) do
        n = n * size
    end
    for i = 1, n do
        w[i] = (i * 5 + r * 3) % 3 + 1
    end
    return mx.tensor(w):reshape(shape)
end

--- The values of rank r: -2 to 2.
local function values(shape, r, dtype)
    local x, n = {}, 1
    for _, size in ipairs(shape) do
        n = n * size
    end
    for i = 1, n do
        x[i] = (i * (2 * r + 3) + r) % 5 - 2
    end
    return mx.tensor(x, dtype):reshape(shape)
end

local function loss_of(y, r, linear)
    y = y:to("f32")
    return (linear and y or y:mul(y)):mul(weights(y:size(), r)):sum()
end

--- How a loss changes with each element of the x of rank `of` (nil: of all ranks at once): numbers of this rank's loss.
local function differences(x, of, loss)
    local slopes, flat = {}, x:reshape({ x:numel() })
    for i = 1, x:numel() do
        local at = flat:get(i)
        local function with(value)
            local step <close> = mx.step()
            if of == nil or rank == of then
                flat:set(i, value)
            end
            return mx.no_grad(loss):item()
        end
        local up, down = with(at + 1), with(at - 1)
        flat:set(i, at)
        slopes[i] = (up - down) / 2
    end
    return slopes
end

--- The sums of numbers over all ranks.
local function total(numbers)
    return mx.all_reduce_(mx.tensor(numbers)):totable()
end

---@class Case
---@field shape integer[] of x
---@field dtype? string of x; f32
---@field alike? boolean x is the same on all ranks, and changes on all at once
---@field one_loss? boolean all ranks compute the one loss, with the same weights
---@field linear? boolean the loss is sum(w y)
---@field bound? number how far the gradient may be off; 0
---@field forward fun(x): mx.Tensor

--- Compares the gradient of x on every rank with the differences.
local function check(what, case)
    local step <close> = mx.step()
    local x = values(case.shape, case.alike and 0 or rank, case.dtype):requires_grad()
    local function own_loss()
        return loss_of(case.forward(x), case.one_loss and 0 or rank, case.linear)
    end
    mx.backward(own_loss())
    local grad = x:grad()
    lu.assertEquals(grad:dtype(), "f32", what)
    lu.assertEquals(grad:size(), x:size(), what)
    local got = grad:reshape({ x:numel() }):totable()
    x = x:detach()
    for of = 0, case.alike and 0 or ranks - 1 do
        local slopes = differences(x, not case.alike and of or nil, own_loss)
        slopes = case.one_loss and slopes or total(slopes)
        if case.alike or of == rank then
            for i, slope in ipairs(slopes) do
                lu.assertAlmostEquals(got[i], slope, case.bound or 0, ("%s, element %d"):format(what, i))
            end
        end
    end
end

-- ---- the operations ----

local ASYNC = { false, true }

TestGradients = {}

function TestGradients.test_all_reduce()
    for _, async in ipairs(ASYNC) do
        for _, dtype in ipairs { "f32", "bf16" } do
            check("own uses", { shape = { 5 }, dtype = dtype, forward = function(x)
                return mx.all_reduce(x, { grad = "all_reduce", async = async })
            end })
            check("all use it alike", { shape = { 2, 3 }, dtype = dtype, one_loss = true, forward = function(x)
                return mx.all_reduce(x, { async = async })
            end })
        end
    end
end

-- 1 / 3 is rounded to f32: two bits of the largest loss, which is below 2^8, and so of the slopes.
function TestGradients.test_means()
    local bound = ranks == 3 and 2 ^ -14 or 0
    for _, async in ipairs(ASYNC) do
        check("all_reduce, own uses", { shape = { 5 }, bound = bound, forward = function(x)
            return mx.all_reduce(x, { op = "mean", grad = "all_reduce", async = async })
        end })
        check("all_reduce, all use it alike", { shape = { 5 }, one_loss = true, bound = bound, forward = function(x)
            return mx.all_reduce(x, { op = "mean", async = async })
        end })
        check("reduce_scatter", { shape = { 2, ranks }, bound = bound, forward = function(x)
            return mx.reduce_scatter(x, { op = "mean", dim = 2, async = async })
        end })
    end
end

function TestGradients.test_all_gather()
    for _, async in ipairs(ASYNC) do
        for dim = 1, 3 do
            check("own uses, dim " .. dim, { shape = { 2, 1, 3 }, forward = function(x)
                return mx.all_gather(x, { dim = dim, async = async, async_grad = async })
            end })
            check("all use it alike, dim " .. dim, { shape = { 1, 2, 2 }, one_loss = true, forward = function(x)
                return mx.all_gather(x, { dim = dim, grad = "slice", async = async })
            end })
        end
    end
end

function TestGradients.test_all_gather_in_another_dtype()
    for _, way in ipairs { { "f32", "bf16" }, { "bf16", "f32" }, { "bf16", "bf16" } } do
        for _, one_loss in ipairs { false, true } do
            check(("%s gathered as %s"):format(way[1], way[2]), {
                shape = { 3, 2 }, dtype = way[1], one_loss = one_loss, forward = function(x)
                    local y = mx.all_gather(x, { dtype = way[2], grad = one_loss and "slice" or "reduce_scatter" })
                    lu.assertEquals(y:dtype(), way[2])
                    return y
                end,
            })
        end
    end
end

function TestGradients.test_reduce_scatter()
    for dim = 1, 3 do
        for _, async in ipairs(ASYNC) do
            local shape = { 1, 2, 1 }
            shape[dim] = 2 * ranks
            check("dim " .. dim, { shape = shape, forward = function(x)
                return mx.reduce_scatter(x, { dim = dim, async = async })
            end })
        end
    end
    for _, way in ipairs { { "f32", "bf16" }, { "bf16", "f32" } } do
        check(("%s added to %s"):format(way[1], way[2]), { shape = { 2, ranks }, dtype = way[1], forward = function(x)
            return mx.reduce_scatter(x, { dim = 2, dtype = way[2] })
        end })
    end
end

function TestGradients.test_all_to_all()
    for split = 1, 3 do
        for together = 1, 3 do
            local shape = { 1, 2, 1 }
            shape[split] = ranks
            check(("split %d, concat %d"):format(split, together), {
                shape = shape, dtype = split == 2 and "bf16" or "f32", forward = function(x)
                    return mx.all_to_all(x, { split = split, concat = together, async = split < together })
                end,
            })
        end
    end
end

function TestGradients.test_collective_permute()
    for _, shift in ipairs { 1, -1, 2, 0, 1 - 2 * ranks } do
        check("shift " .. shift, { shape = { 2, 2 }, forward = function(x)
            return mx.collective_permute(x, { shift = shift, async = shift == 2 })
        end })
    end
end

function TestGradients.test_broadcast()
    for root = 0, ranks - 1 do
        check("root " .. root, { shape = { 3 }, dtype = root == 1 and "bf16" or "f32", forward = function(x)
            return mx.broadcast(x, { root = root, async = root == 0 })
        end })
    end
end

function TestGradients.test_fan_out()
    for _, dtype in ipairs { "f32", "bf16" } do
        check(dtype, { shape = { 2, 3 }, dtype = dtype, alike = true, forward = function(x)
            return mx.fan_out(x)
        end })
    end
end

function TestGradients.test_shard()
    for dim = 1, 2 do
        check("dim " .. dim, { shape = { ranks, 2 * ranks }, alike = true, forward = function(x)
            return mx.shard(x, { dim = dim })
        end })
    end
end

function TestGradients.test_largest_has_none()
    local x = values({ ranks }, rank):requires_grad()
    for _, name in ipairs { "all_reduce", "reduce_scatter" } do
        local y = mx[name](x, { op = "max" })
        lu.assertErrorMsgContains(name .. " with op = \"max\" has no gradient", mx.backward, y:sum())
    end
end

-- ---- along axes, one behind another, and computed again ----

TestAlongAxes = {}

local FORWARD = {
    all_reduce = function(x, axis) return mx.all_reduce(x, { axis = axis, grad = "all_reduce" }) end,
    all_gather = function(x, axis) return mx.all_gather(x, { axis = axis, dim = 2 }) end,
    reduce_scatter = function(x, axis) return mx.reduce_scatter(x, { axis = axis, dim = 1 }) end,
    all_to_all = function(x, axis) return mx.all_to_all(x, { axis = axis, split = 1, concat = 2 }) end,
    collective_permute = function(x, axis) return mx.collective_permute(x, { axis = axis }) end,
    broadcast = function(x, axis) return mx.broadcast(x, { axis = axis, root = mx.axis_size(axis) - 1 }) end,
}
local NAMES = { "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute", "broadcast" }

local function define(outer)
    mx.mesh_define { { name = "data", dcn = outer }, { name = "tensor", ici = ranks // outer } }
end

local function outer_size()
    return ranks % 2 == 0 and 2 or 1
end

function TestAlongAxes.test_each_operation()
    define(outer_size())
    for _, axis in ipairs { "data", "tensor", { "data", "tensor" } } do
        for _, name in ipairs(NAMES) do
            check(name, { shape = { ranks, 1 }, forward = function(x) return FORWARD[name](x, axis) end })
        end
        check("fan_out", { shape = { 3 }, alike = true, forward = function(x)
            return mx.fan_out(mx.fan_out(x, { axis = "data" }), { axis = "tensor" })
        end })
    end
end

function TestAlongAxes.test_one_behind_another()
    define(outer_size())
    check("data, then tensor", { shape = { ranks }, forward = function(x)
        local y = mx.all_gather(x, { axis = "tensor", async = true })
        y = mx.reduce_scatter(y:mul(2), { axis = "data" })
        return mx.collective_permute(y, { axis = "tensor", async = true })
    end })
    check("a value used twice", { shape = { 2 }, forward = function(x)
        local y = mx.all_reduce(x, { axis = "data", grad = "all_reduce" })
        return mx.concat({ mx.all_gather(y), y }, { dim = 1 })
    end })
end

function TestAlongAxes.test_combined_gradients()
    mx.comm_options { all_gather_combine_bytes = 1 << 16, reduce_scatter_combine_bytes = 1 << 16 }
    for _, forward in ipairs { mx.all_gather, mx.reduce_scatter } do
        check("several", { shape = { 3, ranks }, forward = function(x)
            local parts = {}
            for i = 1, 3 do
                local part = x:narrow { dim = 1, start = i, length = 1 }
                local options = { dim = 2, async = true }
                options.async_grad = forward == mx.all_gather or nil
                parts[i] = forward(part, options)
            end
            return mx.concat(parts, { dim = 1 })
        end })
    end
    mx.comm_options { all_gather_combine_bytes = 0, reduce_scatter_combine_bytes = 0 }
end

function TestAlongAxes.test_computed_again()
    for _, policy in ipairs { "full", "none" } do
        for _, name in ipairs(NAMES) do
            check(name .. ", " .. policy, { shape = { ranks, 1 }, linear = true, forward = function(x)
                return mx.remat(policy, function()
                    local y = FORWARD[name](x:mul(2))
                    return y:mul(y) -- its gradient reads y
                end)
            end })
        end
    end
end

-- ---- a layer shared out over ranks against the whole of it ----

TestLayers = {}

local WIDTH, HIDDEN = 4, 2 * ranks

local function layer_weights()
    return mx.randn { shape = { WIDTH, HIDDEN }, seed = 1 }, mx.randn { shape = { HIDDEN, WIDTH }, seed = 2 }
end

local function assert_close(got, want, what)
    local off = got:sub(want):abs():max():item()
    lu.assertTrue(off <= 1e-5 * (1 + want:abs():max():item()), ("%s is off by %g"):format(what, off))
end

local function part_of(t, dim)
    local size = t:size(dim) // ranks
    return t:narrow { dim = dim, start = rank * size + 1, length = size }:clone()
end

local function whole_layer(x, w1, w2)
    return mx.matmul(mx.tanh(mx.matmul(x, w1)), w2)
end

-- Columns of the first weight, rows of the second: fan_out before, a sum that all use alike behind.
function TestLayers.test_tensor_parallel()
    local w1, w2 = layer_weights()
    local function leaf(t) return t:detach():clone():requires_grad() end
    local x0 = mx.randn { shape = { 3, WIDTH }, seed = 3 }
    local x, a, b = leaf(x0), leaf(w1), leaf(w2)
    local target = weights({ 3, WIDTH }, 0)
    mx.backward(whole_layer(x, a, b):mul(target):sum())
    local xs, as, bs = leaf(x0), leaf(part_of(w1, 2)), leaf(part_of(w2, 1))
    local y = mx.all_reduce(whole_layer(mx.fan_out(xs), as, bs), { async = true })
    mx.backward(y:mul(target):sum())
    assert_close(xs:grad(), x:grad(), "x")
    assert_close(as:grad(), part_of(a:grad(), 2), "the first weight")
    assert_close(bs:grad(), part_of(b:grad(), 1), "the second weight")
end

-- Each rank has its own rows of x and a part of each weight, gathered before use.
function TestLayers.test_fully_sharded()
    local w1, w2 = layer_weights()
    local function leaf(t) return t:detach():clone():requires_grad() end
    local x0 = mx.randn { shape = { 2 * ranks, WIDTH }, seed = 3 }
    local a, b = leaf(w1), leaf(w2)
    local target = weights({ 2 * ranks, WIDTH }, 0)
    mx.backward(whole_layer(x0, a, b):mul(target):sum())
    for _, policy in ipairs { "none", "full" } do
        local as, bs = leaf(part_of(w1, 2)), leaf(part_of(w2, 1))
        mx.prefetch(as, { dim = 2 })
        mx.prefetch(bs, { dim = 1 })
        local y = mx.remat(policy, function()
            return whole_layer(part_of(x0, 1), mx.all_gather(as, { dim = 2, async = true, async_grad = true }),
                mx.all_gather(bs, { dim = 1, async = true, async_grad = true }))
        end)
        mx.backward(y:mul(part_of(target, 1)):sum())
        assert_close(as:grad(), part_of(a:grad(), 2), "the first weight, " .. policy)
        assert_close(bs:grad(), part_of(b:grad(), 1), "the second weight, " .. policy)
    end
end
