--- Operations of expert layers: what golden files do not show.
-- emulated

local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")
local lu = require "luaunit"
local mx = require "mx"

-- ---- moe_sort against a loop over slots ----

-- Random experts (tokens, top) of n; those of a token may be equal, which the operation allows.
local function random_experts(tokens, top, n)
    local ids = {}
    for t = 1, tokens do
        ids[t] = {}
        for j = 1, top do
            ids[t][j] = math.random(0, n - 1)
        end
    end
    return ids
end

-- order, place and counts, and the rows that are needed.
local function plain_sort(ids, top, o)
    local by_expert, place, run = {}, {}, #ids // o.sequences
    for e = 0, o.experts - 1 do
        by_expert[e] = {}
    end
    local used = {}
    for t, chosen in ipairs(ids) do
        for j, e in ipairs(chosen) do
            local key = (t - 1) // run * o.experts + e
            used[key] = (used[key] or 0) + 1
            place[(t - 1) * top + j] = -1
            if o.capacity == 0 or used[key] <= o.capacity then
                table.insert(by_expert[e], (t - 1) * top + j - 1)
            end
        end
    end
    local order, counts = {}, {}
    for e = o.first, o.first + o.count - 1 do
        counts[#counts + 1] = #by_expert[e]
        for _, slot in ipairs(by_expert[e]) do
            order[#order + 1] = slot
            place[slot + 1] = #order - 1
        end
    end
    return order, place, counts
end

TestSort = {}

function TestSort.test_random_cases()
    math.randomseed(5)
    for case = 1, 200 do
        local sequences, top, n = math.random(3), math.random(4), math.random(20)
        local tokens = sequences * (case % 20 == 0 and 900 or math.random(40))
        local first = math.random(0, n - 1)
        local o = {
            experts = n, first = first, count = math.random(0, n - first), sequences = sequences,
            capacity = math.random(2) == 1 and 0 or math.random(5),
        }
        local ids = random_experts(tokens, top, n)
        local order, place, counts = plain_sort(ids, top, o)
        o.rows = #order + math.random(0, 3)
        for _ = #order + 1, o.rows do
            order[#order + 1] = -1
        end
        local got_order, got_place, got_counts = mx.moe_sort(mx.tensor(ids, "i32"), o)
        lu.assertEquals(compare.flat(got_order), order, "order of case " .. case)
        lu.assertEquals(compare.flat(got_place), place, "place of case " .. case)
        lu.assertEquals(compare.flat(got_counts), counts, "counts of case " .. case)
    end
end

function TestSort.test_no_tokens()
    for _, capacity in ipairs { 0, 3 } do
        local ids = mx.zeros({ 0, 2 }, { dtype = "i32" })
        local order, place, counts = mx.moe_sort(ids, { experts = 2, capacity = capacity })
        lu.assertEquals({ order:numel(), place:numel(), counts:totable() }, { 0, 0, { 0, 0 } })
    end
end

function TestSort.test_too_few_rows_are_refused()
    local ids = mx.tensor({ { 0 }, { 1 }, { 1 } }, "i32")
    lu.assertErrorMsgContains("get 3 rows, but their buffer has rows = 2", mx.moe_sort, ids, { experts = 2, rows = 2 })
    lu.assertErrorMsgContains("expert 1 at [2, 1] is none of the 1", mx.moe_sort, ids, { experts = 1 })
end

-- ---- routing ----

TestRoute = {}

function TestRoute.test_equal_logits_choose_the_lower_expert()
    local _, experts = mx.moe_route(mx.zeros { 3, 5 }, { top = 2 })
    lu.assertEquals(experts:totable(), { { 0, 1 }, { 0, 1 }, { 0, 1 } })
end

function TestRoute.test_a_NaN_is_chosen_first_and_shows_in_the_weights()
    local logits = mx.tensor { { 1, 2, 0 / 0, 3 } }
    local weights, experts = mx.moe_route(logits, { top = 2 })
    lu.assertEquals(experts:totable(), { { 2, 3 } })
    local first = weights:totable()[1][1]
    lu.assertTrue(first ~= first)
end

-- Each expert is chosen by its share of the tokens, top / n, within five standard deviations; none twice by a token.
function TestRoute.test_random_experts()
    local T, n, top = 4000, 10, 3
    local weights, experts = mx.moe_route(mx.zeros { T, n }, { top = top, score = "random", seed = 3 })
    local again = select(2, mx.moe_route(mx.ones { T, n }, { top = top, score = "random", seed = 3 }))
    local other = select(2, mx.moe_route(mx.ones { T, n }, { top = top, score = "random", seed = 4 }))
    lu.assertTrue(compare.identical(experts, again))
    lu.assertFalse(compare.identical(experts, other))
    lu.assertAlmostEquals(mx.max(weights):item(), 1 / 3, 1e-7)
    local counts = mx.moe_count(experts, { experts = n }):totable()[1]
    local share = top / n
    for e, count in ipairs(counts) do
        lu.assertTrue(math.abs(count / T - share) < 5 * math.sqrt(share * (1 - share) / T), "expert " .. e)
    end
    for t, chosen in ipairs(experts:totable()) do
        lu.assertTrue(chosen[1] ~= chosen[2] and chosen[1] ~= chosen[3] and chosen[2] ~= chosen[3], "token " .. t)
    end
end

function TestRoute.test_what_is_refused()
    local logits = mx.zeros { 4, 8 }
    lu.assertErrorMsgContains("top = 9; expected 1 .. 8", mx.moe_route, logits, { top = 9 })
    lu.assertErrorMsgContains("groups = 3", mx.moe_route, logits, { top = 2, groups = 3 })
    lu.assertErrorMsgContains("top_groups = 5; expected 1 .. 4", mx.moe_route, logits,
        { top = 2, groups = 4, top_groups = 5 })
    lu.assertErrorMsgContains("top_groups = 1 groups have 2", mx.moe_route, logits,
        { top = 3, groups = 4, top_groups = 1 })
    lu.assertErrorMsgContains("scale = 0", mx.moe_route, logits, { top = 1, scale = 0 })
end

-- ---- grouped products ----

TestGrouped = {}

function TestGrouped.test_counts_that_do_not_fit_are_refused()
    local x, w = mx.ones { 4, 3 }, mx.ones { 2, 3, 5 }
    lu.assertErrorMsgContains("counts add up to 5 rows", mx.grouped_matmul, x, w, mx.tensor({ 2, 3 }, "i32"))
    lu.assertErrorMsgContains("counts[2] = -1", mx.grouped_matmul, x, w, mx.tensor({ 2, -1 }, "i32"))
    lu.assertErrorMsgContains("'counts' must be (2)", mx.grouped_matmul, x, w, mx.tensor({ 2, 1, 1 }, "i32"))
    local bias = mx.ones { 2, w:size(3) + 1 }
    lu.assertErrorMsgContains("'bias' must be (2, ", mx.grouped_matmul, x, w, mx.tensor({ 2, 1 }, "i32"), bias)
    lu.assertErrorMsgContains("counts add up to 5 rows", mx.grouped_column_sum, x, mx.tensor({ 2, 3 }, "i32"))
end

-- Where each group is a product of its own (`group_tile = 0`), a tile of a matrix unit is filled by the rows of one
-- group: 4 rows are padded to 8, and to 128 where they are the inner dimension; whether there is one group or 64.
function TestGrouped.test_a_simulated_chip_pads_the_rows_of_each_group()
    mx.sim.start("v5e-1", 1, { memory_Bps = 1e18, matrix_efficiency = 1, group_tile = 0 })
    local function seconds(rows, groups)
        local counts, x = mx.zeros({ groups }, "i32"), mx.zeros({ rows, 128 }, "bf16")
        local w, start = mx.zeros({ groups, 128, 128 }, "bf16"), mx.now()
        mx.grouped_matmul(x, w, counts)
        local middle = mx.now()
        mx.grouped_matmul_grad(x, x, counts)
        return middle - start, mx.now() - middle
    end
    local forward, sums = seconds(256, 1)
    local forward_64, sums_64 = seconds(256, 64)
    mx.sim.stop()
    local exact = 2 * 256 * 128 * 128 / 197e12
    lu.assertAlmostEquals(forward / exact, 1, 1e-3)
    lu.assertAlmostEquals(sums / exact, 1, 1e-3)
    lu.assertAlmostEquals(forward_64 / exact, 2, 1e-3)
    lu.assertAlmostEquals(sums_64 / exact, 32, 1e-3)
end
