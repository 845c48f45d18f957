-- ranks: 1 2 4
-- nodes: 2
-- staged: 3
-- guarded: 2
-- all_to_all_rows: every rank works out what it must get from the rows that each rank has for each expert.

local mx = require "mx"
local lu = require "luaunit"
local cases = require "collective_cases"
local util = require "mx.util"

local rank, ranks = mx.rank(), mx.ranks()

local function assert_same(got, want, what)
    if want:numel() > 0 then
        cases.assert_same(got, want, what)
    else
        lu.assertEquals(got:size(), want:size(), what)
    end
end

--- The experts of rank m: the first one from 0, and their number.
local function part(experts, m)
    local count, first = util.part(experts, ranks, m)
    return first - 1, count
end

--- Values of row i (from 0) of rank r for expert e, and the rows of a tensor of them.
local function row(r, e, i, width, dtype)
    local limit, values = dtype == "f32" and 1 << 24 or 251, {}
    for c = 1, width do
        values[c] = (r * 7919 + e * 257 + i * 31 + c * (c % 5)) % limit
    end
    return values
end

local function tensor_of(rows, width, dtype)
    return #rows > 0 and mx.tensor(rows, dtype) or mx.zeros({ 0, width }, dtype)
end

-- What rank m has on the side of its tokens, and on the side of its experts, with so many zero rows behind.
local function at_tokens(counts, m, width, dtype, spare)
    local rows = {}
    for e, count in ipairs(counts[m + 1]) do
        for i = 0, count - 1 do
            rows[#rows + 1] = row(m, e - 1, i, width, dtype)
        end
    end
    return tensor_of(rows, width, dtype):pad { before = { 0, 0 }, after = { spare, 0 } }
end

local function at_experts(counts, m, width, dtype, spare)
    local rows, first, own = {}, part(#counts[1], m)
    for e = first, first + own - 1 do
        for r = 0, ranks - 1 do
            for i = 0, counts[r + 1][e + 1] - 1 do
                rows[#rows + 1] = row(r, e, i, width, dtype)
            end
        end
    end
    return tensor_of(rows, width, dtype):pad { before = { 0, 0 }, after = { spare, 0 } }
end

-- There and back, with `spare` rows behind the last one on both sides.
local function round_trip(counts, width, o)
    local step <close> = mx.step()
    local dtype, spare = o.dtype or "f32", o.spare or 0
    local tokens, rows = at_tokens(counts, rank, width, dtype, spare), at_experts(counts, rank, width, dtype, spare)
    local table_of = mx.tensor(counts, "i32")
    local what = ("%s of width %d"):format(dtype, width)
    local there = mx.all_to_all_rows(tokens, table_of, { rows = rows:size(1), async = o.async })
    assert_same(there, rows, what .. " to the experts")
    local back = mx.all_to_all_rows(there, table_of, { rows = tokens:size(1), back = true, async = o.async })
    assert_same(back, tokens, what .. " to the tokens")
end

-- Rows of each rank for each expert by a function of both, from 0.
local function table_by(experts, fn)
    local counts = {}
    for r = 0, ranks - 1 do
        counts[r + 1] = {}
        for e = 0, experts - 1 do
            counts[r + 1][e + 1] = fn(r, e)
        end
    end
    return counts
end

TestRows = {}

function TestRows.test_uneven_counts()
    for _, experts in ipairs { 1, ranks, 5, 4 * ranks + 1 } do
        local counts = table_by(experts, function(r, e) return (r * 5 + e * 3 + r * e) % 7 end)
        for _, dtype in ipairs { "f32", "bf16", "u8" } do
            round_trip(counts, 3, { dtype = dtype, spare = experts % 3, async = dtype == "bf16" })
        end
    end
end

function TestRows.test_nothing_between_two_ranks_and_nothing_at_all()
    round_trip(table_by(2 * ranks, function(r, e) return e // 2 == (r + 1) % ranks and 0 or 2 end), 5, { spare = 1 })
    round_trip(table_by(2 * ranks, function(r, e) return e // 2 == r and 3 or 0 end), 5, {})
    round_trip(table_by(2 * ranks, function() return 0 end), 5, {})
    round_trip(table_by(2 * ranks, function() return 0 end), 5, { spare = 2, async = true })
end

function TestRows.test_all_rows_to_one_rank_and_from_one_rank()
    for m = 0, ranks - 1 do
        round_trip(table_by(2 * ranks, function(_, e) return e // 2 == m and 4 or 0 end), 7, { spare = 1 })
        round_trip(table_by(2 * ranks, function(r) return r == m and 3 or 0 end), 7, {})
    end
end

-- Large enough to be read in shared memory: the tensors of all ranks, or of some, where the others have few rows.
-- Without sharing, more than a slot holds.
function TestRows.test_large()
    round_trip(table_by(4 * ranks, function(r, e) return 20 + (r + e) % 3 end), 1500, {})
    round_trip(table_by(4 * ranks, function(r, e) return r == 0 and 30 or e % 2 end), 1200, { async = true, spare = 3 })
    round_trip(table_by(2 * ranks, function(r, e) return e == 0 and 60 + r or 1 end), 1200, { dtype = "bf16" })
end

-- An expert's rows of one rank are where they are whatever the others send.
function TestRows.test_several_in_flight()
    local step <close> = mx.step()
    local counts = {}
    for i = 1, 6 do
        counts[i] = table_by(3 * ranks, function(r, e) return (r * i + e) % 5 * (i % 2 == 0 and 40 or 1) end)
    end
    local there = {}
    for i, c in ipairs(counts) do
        there[i] = mx.all_to_all_rows(at_tokens(c, rank, 300, "f32", 0), mx.tensor(c, "i32"), {
            rows = at_experts(c, rank, 300, "f32", 0):size(1), async = true,
        })
    end
    for i, c in ipairs(counts) do
        assert_same(there[i], at_experts(c, rank, 300, "f32", 0), "exchange " .. i)
    end
end

-- The gradient is the same operation the other way: of sum(w y) it is w, moved back, and 0 for unused rows.
function TestRows.test_gradients()
    local counts = table_by(2 * ranks + 1, function(r, e) return (r + 2 * e) % 4 end)
    for _, back in ipairs { false, true } do
        local step <close> = mx.step()
        local from, to = back and at_experts or at_tokens, back and at_tokens or at_experts
        local x = mx.zeros(from(counts, rank, 4, "f32", 2):size()):requires_grad()
        local w = to(counts, rank, 4, "f32", 1)
        local unused = mx.full({ 1, 4 }, 9) -- the gradient of a row that no row came to
        local y = mx.all_to_all_rows(x, mx.tensor(counts, "i32"), { rows = w:size(1), back = back, async = back })
        mx.backward((y * (w + mx.concat({ mx.zeros { w:size(1) - 1, 4 }, unused }, { dim = 1 }))):sum())
        assert_same(x:grad(), from(counts, rank, 4, "f32", 2), back and "of back" or "of there")
    end
end

function TestRows.test_along_axes()
    if ranks ~= 4 then
        lu.skip("needs four ranks")
    end
    mx.mesh_define { { name = "x", ici = 2, dcn = 1 }, { name = "y", ici = 2, dcn = 1 } }
    for axis, me in util.sorted_pairs({ x = rank // 2, y = rank % 2 }) do
        local step <close> = mx.step()
        local other = axis == "x" and rank % 2 or rank // 2
        local x = mx.tensor { { 10 * rank }, { 10 * rank + 1 }, { 10 * rank + 2 } }
        local y = mx.all_to_all_rows(x, mx.tensor({ { 1, 2 }, { 2, 1 } }, "i32"), { axis = axis, rows = 3 })
        local function of(m) return 10 * (axis == "x" and 2 * m + other or 2 * other + m) end
        local first, second = { { of(0) }, { of(1) }, { of(1) + 1 } }, { { of(0) + 1 }, { of(0) + 2 }, { of(1) + 2 } }
        assert_same(y, mx.tensor(me == 0 and first or second), axis)
    end
end

function TestRows.test_what_does_not_fit_is_refused()
    local x, counts = mx.ones(3, 2), {}
    for r = 1, ranks do
        counts[r] = { r == rank + 1 and 1 or 0, r == rank + 1 and 2 or 0 }
    end
    local function refused(message, ...)
        lu.assertErrorMsgContains(message, mx.all_to_all_rows, ...)
    end
    refused("rows", x, mx.tensor(counts, "i32"))
    refused("rows = -1; expected at least 0", x, mx.tensor(counts, "i32"), { rows = -1 })
    refused("'counts' must be (" .. ranks .. ", experts)", x, mx.zeros({ ranks + 1, 2 }, "i32"), { rows = 3 })
    refused("'x' must be (rows, width)", mx.ones(3), mx.tensor(counts, "i32"), { rows = 3 })
    refused("i32", x, mx.tensor(counts, "f32"), { rows = 3 })
    local all = mx.tensor(table_by(ranks, function() return 2 end), "i32")
    refused(("counts says that rank %d of all ranks sends %d rows, but x has 0"):format(rank, 2 * ranks),
        mx.zeros { 0, 2 }, all, { rows = 2 * ranks })
    refused(("rank %d of all ranks gets %d rows, but its buffer has rows = %d: give it more (for a model: a larger "
        .. "ragged_buffer_factor, or -1)"):format(rank, 2 * ranks, 2 * ranks - 1), mx.zeros { 2 * ranks, 2 }, all, {
        rows = 2 * ranks - 1,
    })
    refused("counts has -1; expected at least 0", x, mx.sub(all, 3), { rows = 3 })
end

-- A simulated chip has no counts. Its exchange costs what all_to_all of as many bytes does.
function TestRows.test_simulated()
    mx.sim.start("v5e-8", 1)
    local function seconds(fn)
        local start = mx.now()
        fn():wait()
        return mx.now() - start
    end
    local x, counts = mx.zeros({ 8 * 512, 1024 }, "bf16"), mx.zeros({ 8, 16 }, "i32")
    local even = seconds(function() return mx.all_to_all_rows(x, counts, { rows = 8 * 512 }) end)
    local usual = seconds(function() return mx.all_to_all(x, { split = 1, concat = 1 }) end)
    local loaded = seconds(function() return mx.all_to_all_rows(x, counts, { rows = 2 * 8 * 512 }) end)
    local y = mx.all_to_all_rows(x, counts, { rows = 2 * 8 * 512 })
    lu.assertEquals(y:size(), { 2 * 8 * 512, 1024 })
    mx.sim.stop()
    lu.assertAlmostEquals(even, usual, 1e-12)
    lu.assertAlmostEquals(loaded / even, 2, 1e-3)
end

