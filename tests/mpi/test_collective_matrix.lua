-- ranks: 1 2 3 4 6 8
-- nodes: 2
-- staged: 2 3 4
-- Every collective over dtypes, sizes, dimensions, meshes and ways of calling, against values that are worked out from
-- the ranks' numbers, never by another collective.

local mx = require "mx"
local lu = require "luaunit"
local cases = require "collective_cases"

local rank, ranks = mx.rank(), mx.ranks()
local DTYPES, MOST, MANY, ALL, WAYS = cases.DTYPES, cases.MOST, cases.MANY, cases.ALL, cases.WAYS
local SHAPE, AXIS_SETS, MESHES = cases.SHAPE, cases.AXIS_SETS, cases.MESHES
local OPERATIONS, assert_same, concat = cases.OPERATIONS, cases.assert_same, cases.concat
local new_values, run_case, build = cases.new_values, cases.run_case, cases.build
local resized, brought, sum_of, define = cases.resized, cases.brought, cases.sum_of, cases.define
local lay_out, group_along, sorted_names = cases.lay_out, cases.group_along, cases.sorted_names

TestSizes = {}

-- Of chunks of 128 KiB these are a small part, one or two and a little, and many.
local SMALL, LARGE = MANY and { 1, 3, 1000 } or { 1, 2, 3, 1000 }, { 65537, MANY and 200003 or 1024 * 1024 + 7 }

local function test_sizes(name)
    local k = 0
    local function run(dtype, n, way)
        k = k + 1
        run_case(name, ALL, dtype, OPERATIONS[name].whole and n or (n + ranks - 1) // ranks, way, k)
    end
    for _, dtype in ipairs(DTYPES) do
        for _, n in ipairs(SMALL) do
            for _, way in ipairs(WAYS) do
                run(dtype, n, way)
            end
        end
    end
    for i, dtype in ipairs(DTYPES) do -- each way with each size, and each dtype with each size
        for j, n in ipairs(LARGE) do
            run(dtype, n, WAYS[(i + j) % #WAYS + 1])
        end
    end
end

for name in pairs(OPERATIONS) do -- defines cases; luaunit runs them by name, so in one order on all ranks
    TestSizes["test_" .. name] = function() test_sizes(name) end
end

function TestSizes.test_empty_tensors()
    lu.assertEquals(mx.all_reduce(mx.zeros { 0 }):size(), { 0 })
    lu.assertEquals(mx.all_gather(mx.zeros { 2, 0 }, { dim = 2 }):size(), { 2, 0 })
    lu.assertEquals(mx.reduce_scatter(mx.zeros { 0, 3 }, { dim = 1 }):size(), { 0, 3 })
    lu.assertEquals(mx.all_to_all(mx.zeros { ranks, 0 }, { split = 1, concat = 2, async = true }):size(), { 1, 0 })
    lu.assertEquals(mx.collective_permute_(mx.zeros { 0 }):size(), { 0 })
    lu.assertEquals(mx.broadcast(mx.zeros { 0 }, { async = true }):size(), { 0 })
end

function TestSizes.test_scalars()
    local x = mx.tensor(rank + 1)
    lu.assertEquals(mx.all_reduce(x):item(), ranks * (ranks + 1) / 2)
    lu.assertEquals(mx.collective_permute(x):item(), (rank - 1) % ranks + 1)
    lu.assertEquals(mx.broadcast(x, { root = ranks - 1 }):item(), ranks)
end

function TestSizes.test_16_MiB()
    if ranks <= 2 then
        run_case("all_reduce", ALL, "f32", 4 * 1024 * 1024, WAYS[1], 1)
        run_case("all_reduce", ALL, "f32", 4 * 1024 * 1024, WAYS[2], 1)
    end
end

TestReductions = {}

local function test_max(name, way)
    for _, dtype in ipairs(DTYPES) do
        for _, n in ipairs { 1, 3, MANY and 9001 or 40001 } do
            local step <close> = mx.step()
            local v = new_values(ALL, dtype, MOST)
            local scatters = name:find "scatter"
            local x = v.of(rank, 0, scatters and n * ranks or n)
            local want = v.max(scatters and rank * n or 0, n)
            local y = mx[name .. (way.in_place and "_" or "")](x, { op = "max", async = way.async })
            if scatters and way.in_place then
                y = y:narrow { dim = 1, start = rank * n + 1, length = n }
            end
            assert_same(y, want, name .. " max of " .. dtype)
        end
    end
end

function TestReductions.test_max()
    for i, way in ipairs(WAYS) do
        test_max(i % 2 == 0 and "all_reduce" or "reduce_scatter", way)
        test_max(i % 2 == 1 and "all_reduce" or "reduce_scatter", way)
    end
end

function TestReductions.test_max_of_negative_values()
    for _, dtype in ipairs { "f32", "bf16", "i32", "i8" } do
        local x = mx.full({ 5 }, -rank - 7, dtype)
        lu.assertEquals(mx.all_reduce(x, { op = "max" }):totable(), { -7, -7, -7, -7, -7 })
        x = mx.full({ 2 * ranks }, -rank - 7, dtype)
        lu.assertEquals(mx.reduce_scatter(x, { op = "max" }):totable(), { -7, -7 })
    end
end

-- Multiples of the ranks, so that the mean is an integer. Its factor 1 / ranks may be rounded: a bit of f32.
function TestReductions.test_mean()
    for _, dtype in ipairs { "f32", "bf16" } do
        for _, n in ipairs { 1, 2, 3001 } do
            local step <close> = mx.step()
            local v = new_values(ALL, dtype, MOST // ranks)
            local want = v.sum(0, n * ranks):to("f32"):mul(1 / ranks)
            local x = v.of(rank, 0, n * ranks)
            local function check(y, expected, what)
                local bound = dtype == "bf16" and 2 ^ -8 or 2 ^ -22
                local off = y:to("f32"):sub(expected):abs():sub(expected:abs():mul(bound)):max():item()
                lu.assertTrue(off <= 0, ("mean by %s of %s: off by %g"):format(what, dtype, off))
            end
            check(mx.all_reduce(x, { op = "mean" }), want, "all_reduce")
            check(mx.reduce_scatter(x, { op = "mean" }), want:narrow { dim = 1, start = rank * n + 1, length = n },
                "reduce_scatter")
            check(mx.all_reduce_(x:clone(), { op = "mean", async = true }), want, "all_reduce_")
        end
    end
end

function TestReductions.test_u8_saturates()
    local sum = math.min(255, 100 * ranks + ranks * (ranks - 1) // 2)
    lu.assertEquals(mx.reduce_scatter(mx.full({ 3 * ranks }, 100 + rank, "u8")):totable(), { sum, sum, sum })
end

TestDimensions = {}

local function run_dimension(name, shape, options, dtype, want_shape, want, sums)
    local step <close> = mx.step()
    local limit = sums and MOST // ranks or MOST
    local x = build(shape, dtype, function(at) return brought(shape, rank, at, limit, dtype) end)
    local y = mx[name](x, options)
    local what = ("%s of %s, dim %s %s %s"):format(name, dtype, options.dim, options.split, options.concat)
    assert_same(y, build(want_shape, dtype, function(at)
        return want(at, function(r, from) return brought(shape, r, from, limit, dtype) end)
    end), what)
end

function TestDimensions.test_all_gather()
    for dim = 1, 3 do
        for i, dtype in ipairs(DTYPES) do
            local size, part = SHAPE[dim] // ranks, resized(SHAPE, dim, SHAPE[dim] // ranks)
            run_dimension("all_gather", part, { dim = dim, async = i > 2 }, dtype, SHAPE, function(at, of)
                return of(at[dim] // size, resized(at, dim, at[dim] % size))
            end)
            run_dimension("all_gather_", SHAPE, { dim = dim - 4, async = i <= 2 }, dtype, SHAPE, function(at, of)
                return of(at[dim] // size, at)
            end)
        end
    end
end
function TestDimensions.test_reduce_scatter()
    for dim = 1, 3 do
        for i, dtype in ipairs(DTYPES) do
            local size, part = SHAPE[dim] // ranks, resized(SHAPE, dim, SHAPE[dim] // ranks)
            run_dimension("reduce_scatter", SHAPE, { dim = dim - 4, async = i > 2 }, dtype, part, function(at, of)
                return sum_of(resized(at, dim, rank * size + at[dim]), of)
            end, true)
            run_dimension("reduce_scatter_", SHAPE, { dim = dim, async = i <= 2 }, dtype, SHAPE, function(at, of)
                return at[dim] // size == rank and sum_of(at, of) or of(rank, at)
            end, true)
        end
    end
end

function TestDimensions.test_all_to_all()
    for split = 1, 3 do
        for together = 1, 3 do
            local dtype = DTYPES[(split + together) % 4 + 1]
            local shape = resized(SHAPE, split, SHAPE[split] // ranks)
            shape = resized(shape, together, shape[together] * ranks)
            local part = SHAPE[split] // ranks
            local size = shape[together] // ranks -- what comes from one rank
            local options = { split = split, concat = together, async = split < together }
            run_dimension("all_to_all", SHAPE, options, dtype, shape, function(at, of)
                local from = resized(at, together, at[together] % size)
                from[split] = rank * part + from[split]
                return of(at[together] // size, from)
            end)
        end
        local size = SHAPE[split] // ranks
        for _, dtype in ipairs(DTYPES) do
            run_dimension("all_to_all_", SHAPE, { dim = split }, dtype, SHAPE, function(at, of)
                return of(at[split] // size, resized(at, split, rank * size + at[split] % size))
            end)
        end
    end
end

-- Rows that chunks cut anywhere: too large for Lua's loops, so put together by mx.concat and mx.narrow.
function TestDimensions.test_many_chunks()
    local shape = { 3 * ranks, ranks, (MANY and 4000 or 13000) // (ranks * ranks) * ranks }
    local count = shape[1] * shape[2] * shape[3]
    for i, dtype in ipairs { "f32", "bf16" } do
        local step <close> = mx.step()
        local moved, added = new_values(ALL, dtype, MOST), new_values(ALL, dtype, MOST // ranks)
        local of, total = {}, added.sum(0, count):reshape(shape)
        for r = 0, ranks - 1 do
            of[r] = moved.of(r, 0, count):reshape(shape)
        end
        local x = added.of(rank, 0, count):reshape(shape)
        local function cut(t, dim, r)
            local size = shape[dim] // ranks
            return t:narrow { dim = dim, start = r * size + 1, length = size }
        end
        local function joined(dim, part)
            local parts = {}
            for r = 0, ranks - 1 do
                parts[r + 1] = part(r)
            end
            return mx.concat(parts, { dim = dim })
        end
        local dim, other = i + 1, 2
        assert_same(mx.all_gather(of[rank], { dim = dim }), joined(dim, function(r) return of[r] end), "all_gather")
        assert_same(mx.all_gather_(of[rank]:clone(), { dim = dim }),
            joined(dim, function(r) return cut(of[r], dim, r) end), "all_gather_")
        assert_same(mx.reduce_scatter(x, { dim = dim }), cut(total, dim, rank), "reduce_scatter")
        assert_same(cut(mx.reduce_scatter_(x:clone(), { dim = dim }), dim, rank), cut(total, dim, rank),
            "reduce_scatter_")
        assert_same(mx.all_to_all(of[rank], { split = dim, concat = other }),
            joined(other, function(r) return cut(of[r], dim, rank) end), "all_to_all")
    end
end

TestDtypes = {}

-- Thirds are no bf16: they are rounded once, as a cast does it.
function TestDtypes.test_all_gather_in_another_dtype()
    local n = 40003
    local function thirds(r)
        return mx.arange { n = n }:add(r):mul(1 / 3)
    end
    local narrow, wide = {}, {}
    for r = 0, ranks - 1 do
        narrow[r + 1] = thirds(r):to("bf16")
        wide[r + 1] = narrow[r + 1]:to("f32")
    end
    for _, async in ipairs { false, true } do
        local y = mx.all_gather(thirds(rank), { dtype = "bf16", async = async })
        assert_same(y, concat(narrow), "f32 gathered as bf16")
        local z = mx.all_gather(thirds(rank):to("bf16"), { dtype = "f32", async = async })
        assert_same(z, concat(wide), "bf16 gathered as f32")
    end
    local rows = mx.all_gather(thirds(rank):reshape({ 1, n }), { dim = 2, dtype = "bf16" })
    assert_same(rows, concat(narrow):reshape({ 1, n * ranks }), "rows gathered as bf16")
end

function TestDtypes.test_reduce_scatter_in_another_dtype()
    local n = 20011
    -- 256 + 1 is no bf16, and neither is any sum of 256 and fewer than 8 odd ones in general: f32 keeps it.
    local x = mx.full({ n * ranks }, rank == 0 and 256 or 1, "bf16")
    for _, async in ipairs { false, true } do
        assert_same(mx.reduce_scatter(x, { dtype = "f32", async = async }), mx.full({ n }, 255 + ranks, "f32"),
            "bf16 added to f32")
        assert_same(mx.reduce_scatter(x:to("f32"), { dtype = "bf16", async = async }),
            mx.full({ n }, 255 + ranks, "f32"):to("bf16"), "f32 added to bf16")
    end
    assert_same(mx.reduce_scatter(x, { dtype = "f32", op = "max" }), mx.full({ n }, 256, "f32"), "max as f32")
    local columns = mx.reduce_scatter(x:reshape({ n, ranks }), { dim = 2, dtype = "f32" })
    assert_same(columns, mx.full({ n, 1 }, 255 + ranks, "f32"), "columns")
end

function TestDtypes.test_bf16_sums_are_rounded_once()
    local x = mx.full({ 70001 }, rank == 0 and 256 or 1, "bf16")
    local want = mx.full({ 70001 }, 255 + ranks, "f32"):to("bf16")
    assert_same(mx.all_reduce(x), want, "all_reduce")
    assert_same(mx.all_reduce_(x:clone(), { async = true }), want, "all_reduce_")
end

TestMesh = {}

function TestMesh.test_every_operation_along_every_axis()
    for _, sizes in ipairs(MESHES[ranks]) do
        define(sizes)
        local places = lay_out(sizes)
        for i, axis in ipairs(AXIS_SETS) do
            local g = group_along(places, axis)
            lu.assertEquals(mx.axis_ranks(axis), g.members)
            lu.assertEquals(mx.axis_size(axis), g.n)
            lu.assertEquals(mx.axis_index(axis), g.me)
            for k, name in ipairs(sorted_names()) do
                run_case(name, g, "f32", 5, WAYS[(i + k) % #WAYS + 1], i + k)
            end
        end
    end
end

function TestMesh.test_large_along_axes()
    local sizes = MESHES[ranks][1]
    define(sizes)
    local places = lay_out(sizes)
    for i, axis in ipairs { "data", "tensor", { "data", "tensor" } } do
        local g = group_along(places, axis)
        for k, name in ipairs(sorted_names()) do
            run_case(name, g, DTYPES[(i + k) % 2 + 1], 70001, WAYS[k % #WAYS + 1], k)
        end
    end
end

function TestMesh.test_groups_side_by_side()
    local sizes = MESHES[ranks][1]
    define(sizes)
    local places, results = lay_out(sizes), {}
    for k = 1, 4 do
        for _, axis in ipairs(AXIS_SETS) do
            local g = group_along(places, axis)
            local v = new_values(g, "f32", MOST // g.n)
            local async = { axis = axis, async = true }
            results[#results + 1] = { mx.all_reduce(v.of(g.me, k, 40), async), v.sum(k, 40) }
            results[#results + 1] = { mx.all_gather(v.of(g.me, k, 3), async), v.each(function() return k end, 3) }
        end
    end
    for i = #results, 1, -1 do
        assert_same(results[i][1], results[i][2], "result " .. i)
    end
end

function TestMesh.test_sizes_that_do_not_fit()
    lu.assertErrorMsgContains(("the mesh has %d devices, but there are %d ranks"):format(ranks + 1, ranks),
        mx.mesh_define, { { name = "data", ici = ranks + 1 } })
    lu.assertErrorMsgContains("at least 1", mx.mesh_define, { { name = "data", ici = 0 } })
end

function TestMesh.test_barrier()
    mx.barrier()
    local came = mx.now()
    for last = 0, math.min(ranks, 3) - 1 do
        if rank == last then
            repeat until mx.now() > came + 0.05
            came = mx.now()
        end
        mx.barrier()
        local left = mx.now()
        came = tonumber(mx.share_text(("%.9f"):format(came), last)) -- one clock: this is one machine
        lu.assertTrue(left >= came, ("rank %d came %g s after rank %d left"):format(last, came - left, rank))
        mx.barrier()
        came = mx.now()
    end
end
