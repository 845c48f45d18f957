-- ranks: 2 3 4
-- nodes: 2
-- staged: 2 3
-- Collectives of tensors large enough to lie in memory that ranks share, where they are read and written in place: with
-- others in one batch, cut along any dimension, changed and released at once, and in memory used before.

local mx = require "mx"
local lu = require "luaunit"
local cases = require "collective_cases"

local rank, ranks = mx.rank(), mx.ranks()
local ALL, MOST = cases.ALL, cases.MOST
local assert_same, concat, new_values = cases.assert_same, cases.concat, cases.new_values

local LARGE = 40003 -- elements: 160 KB of f32, shared; slots hold less, too
local NONE = { all_gather_combine_bytes = 0, reduce_scatter_combine_bytes = 0, all_reduce_combine_bytes = 0 }

-- Some ranks come late, or work on while others read: each time other ones.
local function dawdle(turn)
    if (rank + turn) % ranks == 0 then
        local stop = mx.now() + 1e-3
        repeat until mx.now() > stop
    end
end

TestShared = {}

function TestShared.test_this_system_shares()
    if os.getenv "MXLUA_SHARE" == "0" then
        lu.assertFalse(mx.info().shares_tensors)
    elseif not mx.info().shares_tensors then
        lu.skip("this system has no shared memory of huge pages")
    end
end

-- Small tensors go through slots, large ones do not; all of them in one exchange.
local function test_mixed(sizes)
    local step <close> = mx.step()
    local v = new_values(ALL, "f32", MOST // ranks)
    local sums, gathers, scatters = {}, {}, {}
    for i, n in ipairs(sizes) do
        sums[i] = mx.all_reduce_(v.of(rank, i, n), { async = true })
    end
    for i, n in ipairs(sizes) do
        gathers[i] = mx.all_gather(v.of(rank, i, n), { async = true })
    end
    for i, n in ipairs(sizes) do
        scatters[i] = mx.reduce_scatter(v.of(rank, i, n * ranks), { async = true })
    end
    for i, n in ipairs(sizes) do
        assert_same(sums[i], v.sum(i, n), "all_reduce_ " .. i)
        assert_same(gathers[i], v.each(function() return i end, n), "all_gather " .. i)
        assert_same(scatters[i], v.sum(i + rank * n, n), "reduce_scatter " .. i)
    end
end

function TestShared.test_small_and_large_in_one_batch()
    local all = { all_gather_combine_bytes = 1 << 26, reduce_scatter_combine_bytes = 1 << 26,
        all_reduce_combine_bytes = 1 << 26 }
    mx.comm_options(all)
    test_mixed { 3, LARGE, 1000, 2 * LARGE, 1, 70001, 5 }
    test_mixed { LARGE, 2 * LARGE }
    test_mixed { 1, 2, 3 }
    local many = {} -- more than one note tells of
    for i = 1, 130 do
        many[i] = i > 118 and LARGE or 10 + i
    end
    test_mixed(many)
    mx.comm_options(NONE)
end

-- {rows, columns, depth}, whose runs of neighbours are short or long, cut along each dimension.
local function test_cuts(shape, dtype)
    local step <close> = mx.step()
    local count = shape[1] * shape[2] * shape[3]
    local v, w = new_values(ALL, dtype, MOST), new_values(ALL, dtype, MOST // ranks)
    local function of(r) return v.of(r, 0, count):reshape(shape) end
    for dim = 1, 3 do
        local part = shape[dim] // ranks
        local function cut(t, r) return t:narrow { dim = dim, start = r * part + 1, length = part } end
        local whole, cuts = {}, {}
        for r = 0, ranks - 1 do
            whole[r + 1], cuts[r + 1] = of(r), cut(of(r), rank)
        end
        local what = (" of %s along %d"):format(dtype, dim)
        assert_same(mx.all_gather(of(rank), { dim = dim }), mx.concat(whole, { dim = dim }), "all_gather" .. what)
        assert_same(mx.reduce_scatter(w.of(rank, 0, count):reshape(shape), { dim = dim }),
            cut(w.sum(0, count):reshape(shape), rank), "reduce_scatter" .. what)
        local in_place = mx.reduce_scatter_(w.of(rank, 0, count):reshape(shape), { dim = dim })
        assert_same(cut(in_place, rank), cut(w.sum(0, count):reshape(shape), rank), "reduce_scatter_" .. what)
        for other = 1, 3 do
            assert_same(mx.all_to_all(of(rank), { split = dim, concat = other }), mx.concat(cuts, { dim = other }),
                "all_to_all" .. what)
        end
    end
end

function TestShared.test_cut_along_every_dimension()
    test_cuts({ 2 * ranks, ranks, 12000 }, "f32")
    test_cuts({ 3 * ranks, 401 * ranks, 7 * ranks }, "bf16")
    test_cuts({ ranks, 20011 * ranks, ranks }, "u8")
end

function TestShared.test_dtypes_change_on_the_way()
    local function thirds(r) return mx.arange { n = 3 * LARGE }:add(r):mul(1 / 3) end
    local narrow, wide = {}, {}
    for r = 0, ranks - 1 do
        narrow[r + 1] = thirds(r):to("bf16")
        wide[r + 1] = narrow[r + 1]:to("f32")
    end
    assert_same(mx.all_gather(thirds(rank), { dtype = "bf16" }), concat(narrow), "f32 gathered as bf16")
    assert_same(mx.all_gather(narrow[rank + 1], { dtype = "f32" }), concat(wide), "bf16 gathered as f32")
    local x = mx.full({ LARGE * ranks }, rank == 0 and 256 or 1, "bf16")
    assert_same(mx.reduce_scatter(x, { dtype = "f32" }), mx.full({ LARGE }, 255 + ranks), "bf16 added to f32")
end

-- Whole and in pieces too small to be shared: the same sums, bit for bit.
function TestShared.test_bits_are_those_of_small_ones()
    for _, dtype in ipairs { "f32", "bf16" } do
        for _, op in ipairs { "sum", "mean", "max" } do
            local n, piece = 5 * LARGE, 20000
            local x = mx.randn { shape = { n }, seed = 77 + rank, dtype = dtype }
            local pieces = {}
            for start = 1, n, piece do
                local part = x:narrow { dim = 1, start = start, length = math.min(piece, n - start + 1) }:clone()
                pieces[#pieces + 1] = mx.all_reduce_(part, { op = op })
            end
            assert_same(mx.all_reduce(x, { op = op }), concat(pieces), op .. " of " .. dtype)
            assert_same(mx.all_reduce_(x, { op = op }), concat(pieces), op .. " of " .. dtype .. " in place")
        end
    end
end

-- Nobody may go on while its tensor is still read.
function TestShared.test_changed_at_once()
    local v = new_values(ALL, "f32", MOST // ranks)
    for i = 1, 40 do
        local step <close> = mx.step()
        local x, y = v.of(rank, i, LARGE), v.of(rank, i, LARGE)
        dawdle(i)
        local gathered = mx.all_gather(x)
        x:fill { value = -1 }
        local moved = mx.collective_permute(y)
        y:fill { value = -1 }
        assert_same(gathered, v.each(function() return i end, LARGE), "all_gather")
        assert_same(moved, v.of((rank - 1) % ranks, i, LARGE), "collective_permute")
        local z = v.of(rank, i, LARGE)
        dawdle(i + 1)
        mx.all_reduce_(z)
        local before = z:clone()
        z:fill { value = -1 }
        assert_same(before, v.sum(i, LARGE), "all_reduce_")
    end
end

-- Blocks that went back to the system come again, with other memory behind their addresses.
function TestShared.test_memory_given_back_and_taken_again()
    for i = 1, 12 do
        local n = LARGE * (1 + i % 3 * 20)
        local x = new_values(ALL, "f32", MOST // ranks)
        local a, b = x.of(rank, i, n), x.of(rank, i + 1, n)
        dawdle(i)
        local y = mx.all_reduce(a)
        assert_same(y, x.sum(i, n), "all_reduce")
        assert_same(mx.broadcast(b, { root = i % ranks }), x.of(i % ranks, i + 1, n), "broadcast")
        a:release()
        b:release()
        y:release()
        mx.trim()
    end
end

-- The tags of a collective do not say whether it is in place.
function TestShared.test_only_some_ranks_in_place()
    local v = new_values(ALL, "f32", MOST // ranks)
    local function of(start, n) return v.of(rank, start, n or LARGE * ranks) end
    for turn = 0, ranks - 1 do
        local step <close> = mx.step()
        local mark = (rank + turn) % ranks == 0 and "_" or ""
        assert_same(mx["all_reduce" .. mark](of(1)), v.sum(1, LARGE * ranks), "all_reduce" .. mark)
        assert_same(mx["broadcast" .. mark](of(2)), v.of(0, 2, LARGE * ranks), "broadcast" .. mark)
        assert_same(mx["collective_permute" .. mark](of(3)), v.of((rank - 1) % ranks, 3, LARGE * ranks),
            "collective_permute" .. mark)
        assert_same(mx["all_to_all" .. mark](of(4)), v.each(function() return 4 + rank * LARGE end, LARGE),
            "all_to_all" .. mark)
    end
end

-- One rank's tensor has got a block that was kept from a larger one, and is shared; those of the others are not.
function TestShared.test_shared_on_one_rank_only()
    local v = new_values(ALL, "f32", MOST // ranks)
    local small = (128 << 10) // 4 - 1
    mx.comm_options { all_reduce_combine_bytes = 1 << 26 }
    for i = 1, 2 * ranks do
        mx.trim()
        if i % ranks == rank then
            mx.zeros({ small + 1 }):release()
        end
        local x, y = v.of(rank, i, small), v.of(rank, i, LARGE)
        mx.all_reduce_(x, { async = true })
        mx.all_reduce_(y, { async = true })
        assert_same(x, v.sum(i, small), "small")
        assert_same(y, v.sum(i, LARGE), "large")
        x:release()
        y:release()
    end
    mx.comm_options(NONE)
end
