-- ranks: 1 2 3 4
-- all_reduce and broadcast against values worked out by hand, and that all ranks hold the same bits.
-- guarded: 2

local mx = require "mx"
local lu = require "luaunit"
local util = require "mx.util"

local rank, ranks = mx.rank(), mx.ranks()

local function full(shape, value, dtype)
    return mx.full { shape = shape, value = value, dtype = dtype or "f32" }
end

local function arange(n)
    return mx.arange { n = n, dtype = "f32" }
end

-- One piece (256 Ki elements of f32) and several, and such that parts differ in size or are empty.
local SIZES = { 0, 1, 2, 3, 5, 1023, 1025, 70001, 262145, 2 * 1024 * 1024 + 3 }

--- The values of rank r: small integers, so that sums are exact.
local function values(n, r)
    return arange(n):mul(3 + 2 * r):add(r)
end

local function assert_same(t, expected)
    lu.assertEquals(t:size(), expected:size())
    if t:numel() > 0 then
        lu.assertEquals(t:to("f32"):sub(expected:to("f32")):abs():max():item(), 0)
    end
end

--- Every rank gets rank 0's copy and compares.
local function assert_same_on_all_ranks(t)
    local copy = t:clone()
    mx.broadcast_(copy)
    assert_same(t, copy)
end

TestAllReduce = {}

function TestAllReduce.test_sum_and_mean_f32()
    for _, n in ipairs(SIZES) do
        -- sum over r of (3 + 2r) i + r
        local r_sum = ranks * (ranks - 1) / 2
        local expected = arange(n):mul(3 * ranks + 2 * r_sum):add(r_sum)
        local x = values(n, rank)
        mx.all_reduce_(x)
        -- above 2^24 integers are no longer exact in f32
        if n < 1e6 then
            assert_same(x, expected)
        end
        assert_same_on_all_ranks(x)
        local y = values(n, rank)
        mx.all_reduce_(y, { op = "mean" })
        if n > 0 and n < 1e6 then
            lu.assertAlmostEquals(y:sub(expected:mul(1 / ranks)):abs():max():item() / (n * 10), 0, 1e-6)
        end
        assert_same_on_all_ranks(y)
    end
end

function TestAllReduce.test_max_is_that_of_the_last_rank_or_a_nan()
    local x = full({ 5 }, rank)
    mx.all_reduce_(x, { op = "max" })
    lu.assertEquals(x:totable(), { ranks - 1, ranks - 1, ranks - 1, ranks - 1, ranks - 1 })
    for culprit = 0, ranks - 1 do
        local y = full({ 1 }, rank == culprit and 0 / 0 or -1)
        mx.all_reduce_(y, { op = "max" })
        lu.assertNotEquals(y:item(), y:item(), "a NaN of rank " .. culprit)
    end
end

function TestAllReduce.test_bf16_is_summed_in_f32_and_rounded_once()
    -- 256 + 1 is no bf16 (its neighbours are 256 and 258), but 256 + 1 + 1 is one: adding in bf16 would lose both ones.
    local n = 4099
    local x = full({ n }, rank == 0 and 256 or 1, "bf16")
    mx.all_reduce_(x)
    local expected = full({ n }, 255 + ranks):to("bf16")
    lu.assertEquals(x:dtype(), "bf16")
    assert_same(x, expected)
    local y = full({ n }, rank == 0 and 256 or 1, "bf16")
    mx.all_reduce_(y, { op = "mean" })
    assert_same(y, full({ n }, (255 + ranks) / ranks):to("bf16"))
    assert_same_on_all_ranks(y)
end

function TestAllReduce.test_i32()
    local x = full({ 3, 7 }, rank == 0 and 2 ^ 24 + 1 or 2, "i32") -- one more than f32 can count to
    mx.all_reduce_(x)
    lu.assertEquals(x:get(3, 7), 2 ^ 24 + 1 + 2 * (ranks - 1))
    local y = full({ 2 }, -rank, "i32")
    mx.all_reduce_(y, { op = "max" })
    lu.assertEquals(y:totable(), { 0, 0 })
    lu.assertErrorMsgContains("mean of integers", mx.all_reduce_, y, { op = "mean" })
end

function TestAllReduce.test_order_of_ranks_makes_the_bits()
    -- Values whose f32 sum depends on the order of the additions: it must be that of the ranks.
    local seeds = {}
    local expected = nil
    for r = 0, ranks - 1 do
        seeds[r] = mx.randn { shape = { 10007 }, seed = 100 + r }
        expected = expected and expected:add(seeds[r]) or seeds[r]:clone()
    end
    local x = seeds[rank]:clone()
    mx.all_reduce_(x)
    assert_same(x, expected)
end

function TestAllReduce.test_integers_saturate()
    local x = full({ 5 }, rank == 0 and 254 or 1, "u8")
    mx.all_reduce_(x)
    lu.assertEquals(x:get(5), math.min(255, 254 + ranks - 1))
    local y = full({ 5 }, rank == 0 and 2147483646 or 1, "i32")
    mx.all_reduce_(y)
    lu.assertEquals(y:get(5), math.min(2147483647, 2147483646 + ranks - 1))
end

function TestAllReduce.test_ranks_that_differ_all_fail()
    if ranks == 1 then
        lu.skip("one rank cannot differ from itself")
    end
    local last = rank == ranks - 1
    local here = "at tests/mpi/test_collective.lua:"
    local function refuses(what, fn, ...)
        local ok, message = pcall(fn, ...)
        lu.assertFalse(ok)
        message = tostring(message)
        for _, part in ipairs { "the ranks differ", what, here } do
            lu.assertStrContains(message, part)
        end
    end
    refuses("of 4 f32", mx.all_reduce_, mx.zeros { last and 4 or 3 })
    refuses("of 3 bf16", mx.all_reduce_, mx.zeros({ 3 }, last and "bf16" or "f32"))
    refuses("all_reduce", mx.all_reduce_, mx.zeros { 3 }, { op = last and "max" or "sum" })
    refuses("broadcast", last and mx.broadcast_ or mx.all_reduce_, mx.zeros { 3 })
    refuses("broadcast", mx.broadcast_, mx.zeros { 3 }, { root = last and 1 or 0 })
    local x = full({ 3 }, 1) -- and the next one works
    mx.all_reduce_(x)
    lu.assertEquals(x:totable(), { ranks, ranks, ranks })
end

TestBroadcast = {}

function TestBroadcast.test_every_root_and_dtype()
    for root = 0, ranks - 1 do
        for dtype in util.sorted_pairs(mx.dtypes) do
            for _, n in ipairs { 0, 1, 1000 } do
                local x = full({ n }, rank + 1, dtype)
                mx.broadcast_(x, { root = root })
                assert_same(x, full({ n }, root + 1, dtype))
            end
        end
    end
end

function TestBroadcast.test_several_pieces()
    local n = 3 * 1024 * 1024 + 1
    local x = mx.randn { shape = { n }, seed = 7 + rank }
    mx.broadcast_(x, { root = ranks - 1 })
    assert_same(x, mx.randn { shape = { n }, seed = 7 + ranks - 1 })
end

function TestBroadcast.test_root_that_is_no_rank()
    lu.assertErrorMsgContains("no rank", mx.broadcast_, mx.zeros { 1 }, { root = ranks })
    lu.assertErrorMsgContains("no rank", mx.broadcast_, mx.zeros { 1 }, { root = -1 })
end

TestTexts = {}

function TestTexts.test_share_text()
    for root = 0, ranks - 1 do
        local mine = ("rank %d\0"):format(rank):rep(1000)
        lu.assertEquals(mx.share_text(mine, root), ("rank %d\0"):format(root):rep(1000))
    end
    lu.assertNil(mx.share_text(rank ~= 0 and "unheard" or nil))
    lu.assertEquals(mx.share_text(rank == 0 and "" or "other"), "")
end

function TestTexts.test_read_file()
    local text = mx.read_file("tests/mpi/test_collective.lua")
    lu.assertEquals(text:sub(1, 9), "-- ranks:")
    local none, message = mx.read_file("tests/mpi/absent.lua")
    lu.assertNil(none)
    lu.assertStrContains(message, "tests/mpi/absent.lua")
end
