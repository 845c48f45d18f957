-- ranks: 1 2 3 4 6 8
-- nodes: 2
-- Every collective by dtype, size, dimension, blocking and not, in place and not, along axes of meshes.

local lu = require "luaunit"
local mx = require "mx"

local rank, ranks = mx.rank(), mx.ranks()
local DTYPES = { "f32", "bf16", "i32", "u8" }
local COUNTS = ranks <= 2 and { 1, 3, 1000, 65537, 300007 } or ranks <= 4 and { 1, 3, 1000, 65537 } or { 1, 3, 70001 }

-- A tensor whose elements depend on place and rank: 61 integers below 8 again and again.
local function pattern(sizes, r, dtype)
    local n = 1
    for _, size in ipairs(sizes) do
        n = n * size
    end
    local place = mx.arange { n = n, dtype = "f32" } -- exact up to 2^24
    local cycle = place - ((place + 0.5) / 61):to("i32"):to("f32") * 61
    local x = cycle * (2 * r + 3) + r
    local small = x - ((x + 0.5) / 8):to("i32"):to("f32") * 8
    return small:to(dtype):view(table.unpack(sizes))
end

local function assert_same(t, expected, what)
    lu.assertEquals(t:size(), expected:size(), what)
    lu.assertEquals(t:dtype(), expected:dtype(), what)
    if t:numel() > 0 then
        lu.assertEquals((t:to("f32") - expected:to("f32")):abs():max():item(), 0, what)
    end
end

local function part(t, dim, i, n)
    local length = t:size(dim) // n
    return mx.narrow(t, { dim = dim, start = i * length + 1, length = length })
end

-- What each collective gives, from the members' inputs; `me` is which member we are.
local EXPECTED = {}

function EXPECTED.all_reduce(x, o)
    local y = x[1]:to("f32")
    for i = 2, #x do
        local other = x[i]:to("f32")
        y = o.op == "max" and mx.maximum(y, other) or y + other
    end
    return (o.op == "mean" and y / #x or y):to(x[1]:dtype())
end

function EXPECTED.all_gather(x, o)
    local y = #x == 1 and x[1] or mx.concat(x, { dim = o.dim })
    return o.dtype and y:to(o.dtype) or y
end

function EXPECTED.reduce_scatter(x, o, me)
    local y = part(EXPECTED.all_reduce(x, o), o.dim, me, #x)
    return o.dtype and y:to(o.dtype) or y
end

function EXPECTED.all_to_all(x, o, me)
    local parts = {}
    for i = 1, #x do
        parts[i] = part(x[i], o.split, me, #x)
    end
    return #x == 1 and parts[1] or mx.concat(parts, { dim = o.concat })
end

function EXPECTED.collective_permute(x, o, me)
    return x[(me - o.shift) % #x + 1]
end

function EXPECTED.broadcast(x, o)
    return x[o.root + 1]
end

-- Runs one collective blocking and not, over the ranks `members` of `axis`, and compares.
local function check(name, sizes, dtype, o, axis, members)
    members = members or mx.axis_ranks()
    mx.scope(function()
        local inputs, me = {}, 0
        for i, r in ipairs(members) do
            inputs[i] = pattern(sizes, r, dtype)
            me = r == rank and i - 1 or me
        end
        local expected = EXPECTED[name](inputs, o, me)
        for _, async in ipairs { false, true } do
            local options = { axis = axis, async = async }
            for key, value in pairs(o) do
                options[key] = value
            end
            local what = ("%s %s %s of (%s)%s"):format(name, o.op or "", dtype, table.concat(sizes, ", "),
                async and " async" or "")
            assert_same(mx[name](inputs[me + 1], options), expected, what)
        end
        assert_same(inputs[me + 1], pattern(sizes, rank, dtype), name .. " leaves its input")
    end)
end

TestOutOfPlace = {}

function TestOutOfPlace.test_all_reduce()
    for _, dtype in ipairs(DTYPES) do
        for _, n in ipairs(COUNTS) do
            check("all_reduce", { n }, dtype, { op = "sum" })
            check("all_reduce", { n }, dtype, { op = "max" })
        end
    end
    check("all_reduce", { 1000 }, "f32", { op = "mean" })
end

function TestOutOfPlace.test_gather_scatter_and_exchange()
    for _, dtype in ipairs(DTYPES) do
        for _, n in ipairs(COUNTS) do
            check("all_gather", { n }, dtype, { dim = 1 })
            check("reduce_scatter", { n * ranks }, dtype, { dim = 1, op = "sum" })
            check("all_to_all", { n * ranks }, dtype, { split = 1, concat = 1 })
            check("collective_permute", { n }, dtype, { shift = 1 })
            check("broadcast", { n }, dtype, { root = ranks - 1 })
        end
    end
end

function TestOutOfPlace.test_dimensions()
    local sizes = { 2 * ranks, 3 * ranks, 5 * ranks }
    for dim = 1, 3 do
        check("all_gather", { 2, 3, 5 }, "f32", { dim = dim })
        check("reduce_scatter", sizes, "bf16", { dim = dim, op = "max" })
        for concat = 1, 3 do
            check("all_to_all", sizes, "f32", { split = dim, concat = concat })
        end
    end
    for shift = -ranks, ranks do
        check("collective_permute", { 7 }, "i32", { shift = shift })
    end
end

function TestOutOfPlace.test_floats_change_on_the_way()
    check("all_gather", { 3, 1001 }, "f32", { dim = 2, dtype = "bf16" })
    check("all_gather", { 3, 1001 }, "bf16", { dim = 1, dtype = "f32" })
    check("reduce_scatter", { 7, 11 * ranks }, "bf16", { dim = 2, op = "sum", dtype = "f32" })
    check("reduce_scatter", { 7 * ranks, 11 }, "f32", { dim = 1, op = "sum", dtype = "bf16" })
end

if ranks <= 2 then
    function TestOutOfPlace.test_16_MiB()
        local n = 4 * 1024 * 1024 + 1
        check("all_reduce", { n }, "f32", { op = "sum" })
        check("collective_permute", { n }, "f32", { shift = 1 })
    end
end

TestInPlace = {}

function TestInPlace.test_all()
    for _, dtype in ipairs(DTYPES) do
        for _, n in ipairs(COUNTS) do
            for _, async in ipairs { false, true } do
                mx.scope(function()
                    local all = {}
                    for r = 0, ranks - 1 do
                        all[r + 1] = pattern({ n * ranks }, r, dtype)
                    end
                    local sum = EXPECTED.all_reduce(all, {})
                    local function run(name, options)
                        options.async = async
                        return mx[name](all[rank + 1]:clone(), options)
                    end
                    local what = ("%s %d"):format(dtype, n)
                    assert_same(run("all_reduce_", {}), sum, what)
                    assert_same(run("broadcast_", { root = 0 }), all[1], what)
                    assert_same(run("collective_permute_", { shift = 1 }), all[(rank - 1) % ranks + 1], what)
                    assert_same(run("all_to_all_", { dim = 1 }),
                        EXPECTED.all_to_all(all, { split = 1, concat = 1 }, rank), what)
                    local own = part(run("reduce_scatter_", { dim = 1 }), 1, rank, ranks)
                    assert_same(own, part(sum, 1, rank, ranks), what)
                    local parts = {}
                    for r = 0, ranks - 1 do
                        parts[r + 1] = part(all[r + 1], 1, r, ranks)
                    end
                    assert_same(run("all_gather_", { dim = 1 }), EXPECTED.all_gather(parts, { dim = 1 }), what)
                end)
            end
        end
    end
end

TestAxes = {}

-- Ranks with the same coordinates off the axes; a mesh of three axes, the last one the fastest, in one slice or two.
local function members_of(sizes, dcn, axes)
    local function coordinates(r)
        local inner, at = 1, {}
        for i = 1, 3 do
            inner = inner * sizes[i]
        end
        local slice, place = r // inner, r % inner
        for i = 3, 1, -1 do
            at[i] = place % sizes[i]
            place = place // sizes[i]
        end
        at[1] = at[1] + slice * sizes[1]
        return at
    end
    local mine, members = coordinates(rank), {}
    for r = 0, sizes[1] * sizes[2] * sizes[3] * dcn - 1 do
        local theirs, same = coordinates(r), true
        for i = 1, 3 do
            same = same and (axes[i] or theirs[i] == mine[i])
        end
        members[#members + 1] = same and r or nil
    end
    return members
end

function TestAxes.test_groups()
    local NAMES = { "data", "fsdp", "tensor" }
    for _, shape in ipairs {
        { 1, ranks, 1, 1 }, { ranks, 1, 1, 1 }, { 2, 1, ranks / 2, 1 }, { 1, ranks / 2, 2, 1 }, { 1, ranks / 2, 1, 2 },
        { 2, ranks / 4, 2, 1 }, { 1, ranks / 4, 2, 2 },
    } do
        local a, b, c, dcn = table.unpack(shape)
        if a * b * c * dcn == ranks and b % 1 == 0 and c % 1 == 0 then
            a, b, c = a // 1, b // 1, c // 1
            mx.mesh_define {
                { name = "data", ici = a, dcn = dcn }, { name = "fsdp", ici = b }, { name = "tensor", ici = c },
            }
            for _, used in ipairs { { true }, { false, true }, { false, false, true }, { true, false, true },
                { false, true, true } } do
                local names = {}
                for i = 1, 3 do
                    names[#names + 1] = used[i] and NAMES[i] or nil
                end
                local members = members_of({ a, b, c }, dcn, used)
                lu.assertEquals(mx.axis_ranks(names), members)
                lu.assertEquals(mx.axis_size(names), #members)
                check("all_reduce", { 5 }, "f32", { op = "sum" }, names, members)
                check("all_gather", { 5 }, "i32", { dim = 1 }, names, members)
                check("collective_permute", { 5 }, "f32", { shift = 1 }, names, members)
            end
        end
    end
end

TestAsync = {}

function TestAsync.tearDown()
    mx.comm_options { all_reduce_combine_bytes = 0, all_gather_combine_bytes = 0 }
end

function TestAsync.test_combined_ones_are_one_exchange()
    mx.comm_options { all_reduce_combine_bytes = 1 << 20 }
    mx.scope(function()
        local x, y = {}, {}
        for i = 1, 20 do
            x[i] = pattern({ 10 * i + 1 }, rank, "f32")
        end
        mx.comm_stats(true)
        for i = 1, 20 do
            y[i] = mx.all_reduce(x[i], { async = true })
            lu.assertEquals(y[i]:is_pending(), ranks > 1)
        end
        y[20]:wait()
        lu.assertEquals(mx.comm_stats(true).calls, ranks > 1 and 1 or 0)
        for i = 1, 20 do
            lu.assertFalse(y[i]:is_pending())
            local all = {}
            for r = 0, ranks - 1 do
                all[r + 1] = pattern({ 10 * i + 1 }, r, "f32")
            end
            assert_same(y[i], EXPECTED.all_reduce(all, {}), "tensor " .. i)
        end
    end)
end

function TestAsync.test_one_that_needs_another_waits()
    mx.comm_options { all_reduce_combine_bytes = 1 << 20 }
    local x = mx.ones { 100 }
    local y = mx.all_reduce(x, { async = true })
    local z = mx.all_reduce(y, { async = true }) -- must not travel together with y
    lu.assertEquals(z:get(1), ranks * ranks)
end

function TestAsync.test_changes_wait_for_readers()
    local x = mx.ones { 500000 }
    local y = mx.all_gather(x, { async = true })
    mx.fill(x, { value = 7 })
    lu.assertEquals({ mx.max(y):item(), mx.max(x):item() }, { 1, 7 })
end

function TestAsync.test_released_while_under_way()
    for _ = 1, 5 do
        local step <close> = mx.step()
        mx.all_reduce(mx.ones { 300000 }, { async = true })
    end
    mx.barrier()
    lu.assertEquals(mx.all_reduce(mx.ones { 1 }):item(), ranks)
end

function TestAsync.test_prefetch()
    local options = { dim = 1, dtype = "bf16" }
    mx.scope(function()
        local x = pattern({ 2000 }, rank, "f32")
        local function expected(scale)
            local all = {}
            for r = 0, ranks - 1 do
                all[r + 1] = pattern({ 2000 }, r, "f32") * scale
            end
            return EXPECTED.all_gather(all, options)
        end
        mx.prefetch(x, options)
        mx.flush()
        mx.comm_stats(true)
        local y = mx.all_gather(x, options)
        assert_same(y, expected(1), "gathered ahead")
        if ranks > 1 then
            lu.assertEquals(mx.comm_stats(true).calls, 1) -- the prefetch itself
        end
        mx.prefetch(x, options)
        mx.mul(x, 1) -- reads only
        mx.copy(x, x * 2)
        assert_same(mx.all_gather(x, options), expected(2), "changed after the prefetch")
    end)
end

TestBarrier = {}

-- The last rank comes late: nobody leaves before it has come.
function TestBarrier.test_waits_for_the_last()
    mx.barrier()
    local start, late = mx.now(), 0.2
    if rank == ranks - 1 then
        while mx.now() < start + late do
            math.random()
        end
    end
    mx.barrier()
    lu.assertTrue(mx.now() - start > 0.9 * late)
end

TestErrors = {}

function TestErrors.test_messages()
    if ranks > 1 then
        lu.assertErrorMsgContains(("%d elements, which the %d ranks"):format(ranks + 1, ranks), mx.reduce_scatter,
            mx.zeros { ranks + 1 })
        lu.assertErrorMsgContains("which the", mx.all_to_all, mx.zeros { ranks + 1 })
    end
    mx.mesh_define { { name = "data", ici = ranks } }
    lu.assertErrorMsgContains("no axis 'dta'; there are: data", mx.all_reduce, mx.zeros { 1 }, { axis = "dta" })
    lu.assertErrorMsgContains("is no rank", mx.broadcast, mx.zeros { 1 }, { root = ranks })
    lu.assertErrorMsgContains("mean of integers", mx.all_reduce, mx.zeros({ 1 }, "i32"), { op = "mean" })
    lu.assertErrorMsgContains("only for a tensor of that dtype", mx.all_gather, mx.zeros({ 1 }, "i32"),
        { dtype = "f32" })
    lu.assertErrorMsgContains("dimensions", mx.all_gather, mx.zeros { 1 }, { dim = 2 })
    lu.assertErrorMsgContains("devices, but there are", mx.mesh_define, { { name = "data", ici = ranks + 1 } })
end
