-- ranks: 2 3 4
-- nodes: 2
-- staged: 3
-- Collectives over a dimension that the ranks do not divide: the first ranks have one element more. Values are worked
-- out from their places in the whole tensor.

local mx = require "mx"
local lu = require "luaunit"

local rank, ranks = mx.rank(), mx.ranks()

-- Part r of `size` elements, as dealing them out one by one gives it: start (from 1) and length.
local function part_of(size, r)
    local counts = {}
    for i = 0, size - 1 do
        counts[i % ranks] = (counts[i % ranks] or 0) + 1
    end
    local start = 1
    for before = 0, r - 1 do
        start = start + (counts[before] or 0)
    end
    return start, counts[r] or 0
end

-- A whole tensor of small integers, which every dtype holds exactly; each rank has its own.
local function values(shape, dtype, r)
    local n = 1
    for _, size in ipairs(shape) do
        n = n * size
    end
    local period, rows = {}, (n + 10) // 11
    for i = 1, 11 do
        period[i] = i * (r + 1) - 3 * r
    end
    local t = mx.zeros({ rows, 11 }):add(mx.tensor(period)):view(rows * 11)
    return mx.narrow(t, { dim = 1, start = 1, length = n }):to(dtype):reshape(shape)
end

local function own(t, dim)
    local start, length = part_of(t:size(dim), rank)
    return mx.narrow(t, { dim = dim, start = start, length = length }):clone()
end

local function assert_same(got, want, what)
    lu.assertEquals(got:dtype(), want:dtype(), what)
    lu.assertEquals(got:size(), want:size(), what)
    lu.assertEquals(mx.ne(got, want):max():item(), 0, what)
end

-- Along each dimension: fewer and more elements than ranks, small and (read in place or through several slots) large.
local SHAPES = {
    { shape = { 2 * ranks + 1 }, dim = 1 }, { shape = { ranks + 1, 5 }, dim = 1 },
    { shape = { 3, 3 * ranks - 1 }, dim = 2 },
    { shape = { 2, 2 * ranks + 1, 3 }, dim = 2 }, { shape = { 97 * ranks + 1, 701 }, dim = 1 },
    { shape = { 501, 150 * ranks - 1 }, dim = 2 }, { shape = { 3, ranks + 1, 70001 }, dim = 2 },
}

TestUneven = {}

for _, case in ipairs(SHAPES) do
    local shape, dim = case.shape, case.dim
    local name = table.concat(shape, "_") .. "_dim_" .. dim

    TestUneven["test_gather_and_scatter_of_" .. name] = function()
        for _, dtype in ipairs({ "f32", "bf16", "i32" }) do
            local _ <close> = mx.step()
            local what, whole = name .. " " .. dtype, values(shape, dtype, 0)
            for _, async in ipairs({ false, true }) do
                local o = { dim = dim, length = shape[dim], async = async }
                assert_same(mx.all_gather(own(whole, dim), o), whole, "all_gather " .. what)
                local sum = mx.zeros(shape)
                for r = 0, ranks - 1 do
                    sum = sum + values(shape, "f32", r)
                end
                local mine = values(shape, dtype, rank)
                assert_same(mx.reduce_scatter(mine, { dim = dim, async = async }), own(sum, dim):to(dtype),
                    "reduce_scatter " .. what)
            end
            assert_same(mx.shard(whole, { dim = dim }), own(whole, dim), "shard " .. what)
        end
    end

    TestUneven["test_in_place_of_" .. name] = function()
        local _ <close> = mx.step()
        local whole = values(shape, "f32", 0)
        local start, length = part_of(shape[dim], rank)
        local mine, range = mx.full { shape = shape, value = -1 }, { dim = dim, start = start, length = length }
        mx.write_slice(mine, own(whole, dim), { dim = dim, start = start })
        assert_same(mx.all_gather_(mine, { dim = dim }), whole, "all_gather_ " .. name)
        local sums = mx.ones(shape)
        mx.reduce_scatter_(sums, { dim = dim })
        assert_same(mx.narrow(sums, range):clone(), mx.full { shape = own(whole, dim):size(), value = ranks }, name)
    end
end

-- A gather in another dtype, started ahead, and several in one bucket.
function TestUneven.test_ahead_and_combined()
    local _ <close> = mx.step()
    local a, b = values({ 2 * ranks + 1, 3 }, "f32", 0), values({ 3 * ranks + 1 }, "f32", 0)
    local x, y = own(a, 1), own(b, 1)
    local o, p = { dim = 1, length = 2 * ranks + 1, dtype = "bf16", async = true },
        { dim = 1, length = 3 * ranks + 1, dtype = "bf16", async = true }
    mx.prefetch(x, o)
    mx.prefetch(y, p)
    mx.flush()
    assert_same(mx.all_gather(x, o), a:to("bf16"), "first")
    assert_same(mx.all_gather(y, p), b:to("bf16"), "second")
end

-- The gradient of sum over ranks of (rank + 1) w . gather(x): each rank's part of the sum of all (rank + 1) w.
function TestUneven.test_gradients()
    local _ <close> = mx.step()
    local shape = { 3, 2 * ranks + 1 }
    local w, x = values(shape, "f32", 0), own(values(shape, "f32", 2), 2):requires_grad()
    mx.backward((mx.all_gather(x, { dim = 2, length = shape[2] }) * w * (rank + 1)):sum())
    assert_same(x:grad(), own(w, 2) * (ranks * (ranks + 1) / 2), "all_gather")

    local y = values(shape, "f32", rank):requires_grad()
    mx.backward((mx.reduce_scatter(y, { dim = 2 }) * own(w, 2)):sum())
    assert_same(y:grad(), w, "reduce_scatter")

    local z = values(shape, "f32", 0):requires_grad()
    mx.backward((mx.shard(z, { dim = 2 }) * own(w, 2)):sum())
    assert_same(z:grad(), w, "shard")

    local own_x = own(values(shape, "f32", 2), 2):requires_grad()
    mx.backward((mx.all_gather(own_x, { dim = 2, length = shape[2], grad = "slice" }) * w):sum())
    assert_same(own_x:grad(), own(w, 2), "slice")
end

function TestUneven.test_a_part_of_another_size_is_refused()
    local _, length = part_of(2 * ranks + 1, rank)
    local n = 2 * ranks + 1
    local text = ("length = %d is %d elements of dimension 2; x has %d"):format(n, length, length + 1)
    lu.assertErrorMsgContains(text, mx.all_gather, mx.zeros { 2, length + 1 }, { dim = 2, length = n })
end
