-- ranks: 1 2 3 4
-- nodes: 2
-- staged: 2 4
-- Collectives that go on beside the script: combined, gathered ahead, released under way; and the bits and the errors
-- of all collectives.
-- guarded: 2

local mx = require "mx"
local lu = require "luaunit"
local cases = require "collective_cases"

local rank, ranks = mx.rank(), mx.ranks()
local node_ranks = tonumber(os.getenv "MXLUA_NODE_RANKS") or ranks -- how many ranks count as one machine
local MOST, ALL, WAYS, SHAPE, MESHES = cases.MOST, cases.ALL, cases.WAYS, cases.SHAPE, cases.MESHES
local element, series, assert_same = cases.element, cases.series, cases.assert_same
local concat, new_values, run_case, build = cases.concat, cases.new_values, cases.run_case, cases.build
local resized, brought, sum_of, define = cases.resized, cases.brought, cases.sum_of, cases.define

TestAsync = {}

local NONE = { all_gather_combine_bytes = 0, reduce_scatter_combine_bytes = 0, all_reduce_combine_bytes = 0 }

-- Runs fn with such options, and gives how many exchanges there were.
local function calls_of(options, fn)
    mx.barrier()
    mx.comm_options(options)
    mx.comm_stats(true)
    fn()
    local calls = mx.comm_stats().calls
    mx.comm_options(NONE)
    return ranks == 1 and 0 or calls
end

local function calls(n)
    return ranks == 1 and 0 or n
end

function TestAsync.test_combined_all_reduces_give_what_each_gives()
    local v = new_values(ALL, "f32", MOST // ranks)
    local sizes = { 1, 700, 3, 40000, 64, 65 }
    local function run(async)
        local results = {}
        for i, n in ipairs(sizes) do
            results[i] = mx.all_reduce(v.of(rank, i, n), { async = async })
        end
        for i, n in ipairs(sizes) do
            assert_same(results[i], v.sum(i, n), "tensor " .. i)
        end
    end
    lu.assertEquals(calls_of({}, function() run(false) end), calls(6))
    lu.assertEquals(calls_of({}, function() run(true) end), calls(6), "nothing is combined by itself")
    lu.assertEquals(calls_of({ all_reduce_combine_bytes = 1 << 20 }, function() run(true) end), calls(1))
    lu.assertEquals(calls_of({ all_reduce_combine_bytes = 1 << 20 }, function() run(false) end), calls(6))
end

-- The script asks for elements at once, while the other threads are still adding.
function TestAsync.test_an_element_waits_for_its_value()
    local n = 1 << 21
    for i = 1, 6 do
        local step <close> = mx.step()
        local y = mx.all_reduce(mx.full { shape = { n }, value = i }, { async = true })
        mx.flush()
        lu.assertEquals({ y[1], y[n] }, { i * ranks, i * ranks })
    end
end

function TestAsync.test_combined_in_place()
    local v = new_values(ALL, "bf16", MOST // ranks)
    lu.assertEquals(calls_of({ all_reduce_combine_bytes = 1 << 20, reduce_scatter_combine_bytes = 1 << 20 }, function()
        local x, y = {}, {}
        for i = 1, 5 do
            x[i] = mx.all_reduce_(v.of(rank, i, 1000 * i + 1), { async = true })
        end
        for i = 1, 5 do
            y[i] = mx.reduce_scatter_(v.of(rank, i, 300 * i * ranks), { async = true })
        end
        for i = 1, 5 do
            assert_same(x[i], v.sum(i, 1000 * i + 1), "all_reduce_ " .. i)
            local own = y[i]:narrow { dim = 1, start = 300 * i * rank + 1, length = 300 * i }
            assert_same(own, v.sum(i + 300 * i * rank, 300 * i), "reduce_scatter_ " .. i)
        end
    end), calls(2))
end

-- Tensors of several shapes, cut along several dimensions, as one stream.
function TestAsync.test_combined_along_several_dimensions()
    local limit = MOST // ranks
    local function value(i)
        return function(r, at) return (brought(SHAPE, r, at, limit) + i) % limit end
    end
    local function mine(i)
        return build(SHAPE, "f32", function(at) return value(i)(rank, at) end)
    end
    lu.assertEquals(calls_of({ reduce_scatter_combine_bytes = 1 << 20, all_gather_combine_bytes = 1 << 20 }, function()
        local scattered, gathered = {}, {}
        for i = 1, 6 do
            scattered[i] = mx.reduce_scatter(mine(i), { dim = (i - 1) % 3 + 1, async = true })
        end
        for i = 1, 6 do
            gathered[i] = mx.all_gather(mine(i), { dim = (i - 1) % 3 + 1, async = true })
        end
        for i = 1, 6 do
            local dim = (i - 1) % 3 + 1
            local part = SHAPE[dim] // ranks
            assert_same(scattered[i], build(resized(SHAPE, dim, part), "f32", function(at)
                return sum_of(resized(at, dim, rank * part + at[dim]), value(i))
            end), "reduce_scatter " .. i)
            local size = SHAPE[dim]
            assert_same(gathered[i], build(resized(SHAPE, dim, size * ranks), "f32", function(at)
                return value(i)(at[dim] // size, resized(at, dim, at[dim] % size))
            end), "all_gather " .. i)
        end
    end), calls(2))
end

function TestAsync.test_what_closes_a_batch()
    local function all_reduces(...)
        for _, options in ipairs { ... } do
            mx.all_reduce(mx.full({ options.n or 500 }, 1, options.dtype), { op = options.op, async = true })
        end
    end
    local function count(bytes, fn)
        return calls_of({ all_reduce_combine_bytes = bytes }, function()
            fn()
            mx.flush()
            mx.barrier() -- comes behind them all, and is counted
        end) - calls(1)
    end
    lu.assertEquals(count(4000, function() all_reduces({}, {}, {}) end), calls(2), "its size")
    lu.assertEquals(count(1e6, function() all_reduces({}, { dtype = "bf16" }, {}) end), calls(3), "another dtype")
    lu.assertEquals(count(1e6, function() all_reduces({}, { op = "max" }, { op = "max" }) end), calls(2), "another op")
    lu.assertEquals(count(1e6, function()
        all_reduces({}, {})
        mx.flush()
        all_reduces({}, {})
    end), calls(2), "mx.flush")
    lu.assertEquals(count(1e6, function()
        all_reduces({}, {})
        mx.all_gather(mx.ones { 3 }, { async = true })
        all_reduces({}, {})
    end), calls(3), "another operation")
    lu.assertEquals(count(1e6, function()
        local x = mx.ones { 500 }
        for _ = 1, 3 do
            x = mx.all_reduce(x, { async = true }) -- each needs the one before
        end
        lu.assertEquals(x:get(1), ranks ^ 3)
    end), calls(3), "a value that is needed")
end

function TestAsync.test_is_pending()
    for _, bytes in ipairs { 0, 1 << 20 } do
        mx.comm_options { all_reduce_combine_bytes = bytes }
        local x = mx.full({ 1000 }, rank + 1)
        local sum = ranks * (ranks + 1) / 2
        local y = mx.all_reduce(x, { async = true })
        lu.assertEquals(y:is_pending(), ranks > 1)
        lu.assertFalse(x:is_pending(), "it is only read")
        lu.assertIs(y:wait(), y)
        lu.assertFalse(y:is_pending())
        lu.assertEquals(y:get(1000), sum)
        mx.all_reduce_(x, { async = true })
        lu.assertEquals(x:is_pending(), ranks > 1)
        local z = x:mul(2)
        lu.assertFalse(x:is_pending(), "it was used")
        lu.assertEquals(z:get(1), 2 * sum)
        mx.comm_options(NONE)
    end
    lu.assertFalse(mx.all_reduce(mx.ones { 3 }):is_pending())
end

function TestAsync.test_views_of_a_pending_tensor()
    local y = mx.all_gather(mx.full({ 3, 4000 }, rank), { dim = 1, async = true })
    local columns = y:narrow { dim = 2, start = 7, length = 2 }
    local want = build({ 3 * ranks, 2, 1 }, "f32", function(at) return at[1] // 3 end)
    assert_same(columns, want:reshape({ 3 * ranks, 2 }), "columns")
    y = mx.all_gather(mx.full({ 3, 4000 }, rank), { dim = 1, async = true })
    local last = y:reshape({ 3 * ranks * 4000 }):narrow { dim = 1, start = 3 * ranks * 4000, length = 1 }
    lu.assertEquals(last:item(), ranks - 1)
    y = mx.fan_out(mx.all_gather(mx.full({ 3, 4000 }, rank), { dim = 1, async = true }))
    lu.assertEquals(y:get(3 * ranks, 1), ranks - 1)
end

function TestAsync.test_results_released_while_under_way()
    for _, bytes in ipairs { 0, 1 << 22 } do
        mx.comm_options { all_reduce_combine_bytes = bytes, all_gather_combine_bytes = bytes }
        for i = 1, 20 do
            local step <close> = mx.step()
            local x = mx.full({ 10000 + i }, rank)
            mx.all_reduce(x, { async = true })
            mx.all_reduce_(x, { async = true })
            mx.all_gather(x, { async = true }):release()
            x:release()
        end
        for i = 1, 20 do -- takes the same memory again
            local v = new_values(ALL, "f32", MOST // ranks)
            local junk = mx.full({ 10000 + i }, -1)
            assert_same(mx.all_reduce(v.of(rank, i, 10000 + i), { async = true }), v.sum(i, 10000 + i), "after release")
            lu.assertEquals(junk:sum():item(), -10000 - i)
        end
        mx.comm_options(NONE)
    end
end

function TestAsync.test_changing_what_is_still_read_waits()
    local n = 40000
    local want = series(0, n * ranks, n * ranks + 1, function() return 0 end, 0, "u8"):to("f32")
    want = want:reshape({ ranks, n }):add(mx.arange { n = ranks }:reshape({ ranks, 1 })):reshape({ ranks * n })
    local changes = {
        fill = function(x) mx.fill(x, { value = 99 }) end,
        set = function(x) x:set(n, 99) end,
        add_ = function(x) mx.add_(x, mx.full({ n }, 99)) end,
        all_reduce_ = function(x) mx.all_reduce_(x) end,
        async_broadcast_ = function(x) mx.broadcast_(x, { root = ranks - 1, async = true }) end,
    }
    for _, bytes in ipairs { 0, 1 << 22 } do
        mx.comm_options { all_gather_combine_bytes = bytes }
        for _, name in ipairs { "fill", "set", "add_", "all_reduce_", "async_broadcast_" } do
            local x = mx.full({ n }, rank)
            local y = mx.all_gather(x, { async = true })
            changes[name](x)
            assert_same(y, want, "after " .. name)
        end
        mx.comm_options(NONE)
    end
end

function TestAsync.test_changing_a_result_waits()
    local y = mx.all_reduce(mx.full({ 100000 }, 1), { async = true })
    mx.fill(y, { value = 7 })
    assert_same(y, mx.full({ 100000 }, 7), "filled")
end

function TestAsync.test_blocking_ones_come_behind_asynchronous_ones()
    local x = mx.full({ 5000 }, 1)
    for _ = 1, 3 do
        mx.all_reduce_(x, { async = true })
        mx.all_reduce_(x)
    end
    lu.assertEquals(x:get(5000), ranks ^ 6)
    local y = mx.all_gather(mx.all_reduce(x, { async = true }))
    lu.assertEquals(y:get(5000 * ranks), ranks ^ 7)
end

TestPrefetch = {}

local function gathered(part, n, dtype)
    local v = new_values(ALL, dtype or "f32", MOST)
    return v.each(function() return part end, n)
end

local function mine(part, n, dtype)
    return new_values(ALL, dtype or "f32", MOST).of(rank, part, n)
end

function TestPrefetch.test_the_gather_is_found_done()
    local n = 3001
    for _, options in ipairs { {}, { dtype = "bf16" }, { dim = 1, async = true } } do
        local x = mine(2, n)
        lu.assertEquals(calls_of({}, function()
            mx.prefetch(x, { dim = options.dim, dtype = options.dtype })
            local y = mx.all_gather(x, options)
            assert_same(y, gathered(2, n):to(options.dtype or "f32"), "prefetched")
        end), calls(1))
        lu.assertEquals(calls_of({}, function()
            assert_same(mx.all_gather(x, options), gathered(2, n):to(options.dtype or "f32"), "again")
        end), calls(1), "it is used once")
    end
end

function TestPrefetch.test_a_tensor_that_has_changed_is_gathered_afresh()
    local n = 3001
    local function changed(change, value_of)
        local x = mine(2, n)
        local want = {}
        for r = 0, ranks - 1 do
            want[r + 1] = value_of(new_values(ALL, "f32", MOST).of(r, 2, n), r)
        end
        mx.prefetch(x)
        change(x)
        assert_same(mx.all_gather(x), concat(want), "after a change")
    end
    changed(function(x) mx.fill(x, { value = rank }) end, function(_, r) return mx.full({ n }, r) end)
    changed(function(x) mx.add_(x, mx.full({ n }, rank)) end, function(x, r) return x:add(r) end)
    changed(function(x) mx.collective_permute_(x) end, function(_, r)
        return new_values(ALL, "f32", MOST).of((r - 1) % ranks, 2, n)
    end)
    changed(function(x) mx.narrow(x, { dim = 1, start = 1, length = 1 }):fill({ value = -rank }) end, function(x, r)
        return concat { mx.full({ 1 }, -r), x:narrow { dim = 1, start = 2, length = n - 1 } }
    end)
    changed(function(x) x:set(1, -rank) end, function(x, r)
        return concat { mx.full({ 1 }, -r), x:narrow { dim = 1, start = 2, length = n - 1 } }
    end)
end

function TestPrefetch.test_other_options_are_another_gather()
    local x = mine(0, 4)
    lu.assertEquals(calls_of({}, function()
        mx.prefetch(x)
        assert_same(mx.all_gather(x, { dtype = "bf16" }), gathered(0, 4):to("bf16"), "bf16")
        assert_same(mx.all_gather(x), gathered(0, 4), "f32")
        mx.prefetch(x)
        assert_same(mx.all_gather(x:reshape({ 2, 2 }), { dim = 2 }),
            build({ 2, 2 * ranks, 1 }, "f32", function(at)
                return element(at[2] // 2, at[1] * 2 + at[2] % 2, MOST, "f32")
            end):reshape({ 2, 2 * ranks }), "another shape")
        assert_same(mx.all_gather(x), gathered(0, 4), "f32")
    end), calls(4))
end

function TestPrefetch.test_no_more_than_allowed_is_gathered_ahead()
    local x, y = mine(0, 1000), mine(5, 1000)
    lu.assertEquals(calls_of({ prefetch_bytes = 4000 * ranks + 100 }, function()
        mx.prefetch(x)
        mx.prefetch(y)
        mx.prefetch(x) -- is under way already
        assert_same(mx.all_gather(y), gathered(5, 1000), "y")
        assert_same(mx.all_gather(x), gathered(0, 1000), "x")
    end), calls(2))
    mx.prefetch(x)
    define(MESHES[ranks][1]) -- forgets it
    mx.comm_options { prefetch_bytes = 1 << 30 }
end

TestBits = {}

local function random(r, n, dtype)
    return mx.randn { shape = { n }, seed = 1000 + r, dtype = dtype }
end

-- In the order of the ranks; over machines of equal size each machine's ranks first.
local function sum_in_order(n)
    local per_node = ranks % node_ranks == 0 and node_ranks or 1
    local total
    for first = 0, ranks - 1, per_node do
        local node = random(first, n)
        for r = first + 1, first + per_node - 1 do
            node = node:add(random(r, n))
        end
        total = total and total:add(node) or node
    end
    return total
end

function TestBits.test_sums_of_f32_are_taken_in_order()
    for _, n in ipairs { 1, 129, 70001 } do
        local want = sum_in_order(n)
        assert_same(mx.all_reduce(random(rank, n)), want, "all_reduce")
        assert_same(mx.all_reduce(random(rank, n), { async = true }), want, "again")
        local m = n * ranks
        want = sum_in_order(m):narrow { dim = 1, start = rank * n + 1, length = n }
        assert_same(mx.reduce_scatter(random(rank, m)), want, "reduce_scatter")
        assert_same(mx.reduce_scatter(random(rank, m), { async = true }), want, "again")
    end
end

function TestBits.test_all_ranks_have_the_same_bits()
    local function text(t)
        local out = {}
        for i, value in ipairs(t:totable()) do
            out[i] = ("%a"):format(value)
        end
        return table.concat(out, " ")
    end
    for _, op in ipairs { "sum", "mean" } do
        for _, dtype in ipairs { "f32", "bf16" } do
            local got = text(mx.all_reduce(random(rank, 999, dtype), { op = op }))
            lu.assertEquals(got, mx.share_text(got, 0), "as rank 0 has it")
            lu.assertEquals(text(mx.all_reduce(random(rank, 999, dtype), { op = op, async = true })), got, "twice")
        end
    end
end

TestErrors = {}

local _, without_mesh = pcall(mx.all_reduce, mx.zeros { 1 }, { axis = "fsdp" })

-- What fails on every rank alike, before anything is sent. A group of one has nothing to divide.
function TestErrors.test_sizes_that_the_ranks_do_not_divide()
    if ranks == 1 then
        return
    end
    local n = 2 * ranks + 1
    local function refused(dim, fn, x, options)
        local text = ("dimension %d has %d elements, which the %d ranks"):format(dim, n, ranks)
        lu.assertErrorMsgContains(text, fn, x, options or {})
    end
    refused(2, mx.all_to_all, mx.zeros { ranks, n }, { split = 2, concat = 1 })
    refused(1, mx.all_to_all_, mx.zeros { n, 2 }, { dim = 1 })
end

function TestErrors.test_dimensions_that_are_not_there()
    for _, dim in ipairs { 3, -3 } do
        lu.assertErrorMsgContains(("dim = %d"):format(dim), mx.all_gather, mx.zeros { ranks, ranks }, { dim = dim })
        lu.assertErrorMsgContains("2 dimensions", mx.reduce_scatter, mx.zeros { ranks, ranks }, { dim = dim })
        lu.assertErrorMsgContains("split", mx.all_to_all, mx.zeros { ranks, ranks }, { split = dim })
        lu.assertErrorMsgContains("concat", mx.all_to_all, mx.zeros { ranks, ranks }, { concat = dim })
    end
    lu.assertErrorMsgContains("0 dimensions", mx.all_gather, mx.tensor(1))
end

function TestErrors.test_axes_that_are_not_there()
    lu.assertStrContains(tostring(without_mesh), "no mesh is set, so there is no axis 'fsdp'")
    define(MESHES[ranks][1])
    for _, axis in ipairs { "fdsp", { "data", "fdsp" } } do
        lu.assertErrorMsgContains("no axis 'fdsp'; there are: data, fsdp, tensor", mx.all_reduce, mx.zeros { 1 },
            { axis = axis })
        lu.assertErrorMsgContains("no axis 'fdsp'", mx.axis_size, axis)
        lu.assertErrorMsgContains("no axis 'fdsp'", mx.barrier, axis)
    end
    lu.assertErrorMsgContains("at least one name", mx.all_reduce, mx.zeros { 1 }, { axis = {} })
    lu.assertErrorMsgContains("'axis'", mx.all_reduce, mx.zeros { 1 }, { axis = true })
    lu.assertErrorMsgContains("root 8 is no rank of tensor", mx.broadcast, mx.zeros { 1 },
        { axis = "tensor", root = 8 })
end

function TestErrors.test_roots_that_are_no_rank()
    for _, root in ipairs { ranks, -1 } do
        local text = ("root %d is no rank of all ranks; there are 0 to %d"):format(root, ranks - 1)
        lu.assertErrorMsgContains(text, mx.broadcast, mx.zeros { 1 }, { root = root })
        lu.assertErrorMsgContains(text, mx.broadcast_, mx.zeros { 1 }, { root = root })
    end
end

function TestErrors.test_dtypes()
    for _, dtype in ipairs { "i32", "u8", "i8" } do
        local x = mx.zeros({ ranks }, dtype)
        for _, name in ipairs { "all_reduce", "all_reduce_", "reduce_scatter", "reduce_scatter_" } do
            lu.assertErrorMsgContains("mean of integers", mx[name], x, { op = "mean" })
        end
        lu.assertErrorMsgContains("can be f32 only", mx.all_gather, x, { dtype = "f32" })
        lu.assertErrorMsgContains("can be bf16 only", mx.reduce_scatter, x, { dtype = "bf16" })
        lu.assertEquals(mx.all_gather(x, { dtype = dtype }):dtype(), dtype)
    end
    lu.assertErrorMsgContains("can be i32 only", mx.all_gather, mx.zeros { 1 }, { dtype = "i32" })
    lu.assertErrorMsgContains("expected one of: sum, mean, max", mx.all_reduce, mx.zeros { 1 }, { op = "min" })
end

function TestErrors.test_what_backward_reads_is_not_changed()
    local x = mx.ones({ ranks }):requires_grad()
    local loss = x:mul(x):sum()
    for _, name in ipairs { "all_reduce_", "all_gather_", "reduce_scatter_", "broadcast_", "collective_permute_" } do
        lu.assertErrorMsgContains("backward still reads", mx[name], x)
    end
    mx.backward(loss)
end

-- Between machines calls are compared only on request.
function TestErrors.test_ranks_that_differ_all_fail()
    if ranks == 1 then
        return
    end
    mx.comm_options { debug = true }
    for _, odd in ipairs { 0, ranks - 1 } do
        local other = rank == odd
        local function refused(what, fn, ...)
            local ok, message = pcall(fn, ...)
            lu.assertFalse(ok, what)
            lu.assertStrContains(tostring(message), "the ranks differ")
            lu.assertStrContains(tostring(message), what)
        end
        refused("of 4 f32", mx.all_gather, mx.zeros { other and 4 or 3 })
        refused("of 3 bf16", mx.all_reduce, mx.zeros({ 3 }, other and "bf16" or "f32"))
        refused("all_reduce", mx.all_reduce, mx.zeros { 3 }, { op = other and "max" or "sum" })
        refused("broadcast", mx.broadcast, mx.zeros { 3 }, { root = other and 1 or 0 })
        refused("reduce_scatter", other and mx.reduce_scatter or mx.all_to_all, mx.zeros { ranks })
        refused("barrier", other and mx.barrier or mx.all_reduce, not other and mx.zeros { 1 } or nil)
        local function here(x) return mx.all_reduce(x) end
        local function there(x) return mx.all_reduce(x) end
        refused(".lua:", other and there or here, mx.zeros { 2 })
        run_case("all_reduce", ALL, "f32", 10, WAYS[1], 1) -- and the next one works
    end
    mx.comm_options { debug = false }
end
