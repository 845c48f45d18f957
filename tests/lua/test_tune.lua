--- mx.tune with an artificial clock, which only the timed functions move: what is found, survived, cached and refused.

local mx = require "mx"
local lu = require "luaunit"

local file, now, prepared

TestTune = {}

function TestTune.setUp()
    file, now, prepared = os.tmpname(), 0, 0
    os.remove(file)
end

function TestTune.tearDown()
    os.remove(file)
end

local function clock()
    return now
end

-- Tunes functions that take cost(choice) seconds.
local function tune(cost, options)
    local o = {
        name = "test", space = { x = { 1, 2, 3, 4, 5 } }, standard = { x = 1 }, file = file, clock = clock,
        budget_s = 1e6,
        run = function(choice)
            prepared = prepared + 1
            return function() now = now + cost(choice) end
        end,
    }
    for key, value in pairs(options or {}) do
        o[key] = value
    end
    return mx.tune(o)
end

-- Noise from 0 to below 1 that depends only on the seed and the number of the call.
local function noise_of(seed)
    local calls = 0
    return function()
        calls = calls + 1
        return (mx.util.mix(mx.util.seed("noise", seed) + calls) >> 10) * 2 ^ -53
    end
end

local function valley(choice)
    return 1 + (choice.x - 4) ^ 2 / 10 -- 1.9 for the standard, 1 for x = 4
end

local function point(report, x)
    for _, one in ipairs(report.points) do
        if one.choice.x == x then
            return one
        end
    end
end

function TestTune.test_the_fastest_point_wins_and_its_gain_is_exact()
    local best, report = tune(valley)
    lu.assertEquals(best, { x = 4 })
    lu.assertAlmostEquals(report.gain, 1 - 1 / 1.9, 1e-12)
    lu.assertEquals({ report.from, report.wins, report.turns, #report.points }, { "tuned", 24, 24, 5 })
    lu.assertAlmostEquals(point(report, 5).ratio, 1.1 / 1.9, 1e-12)
    lu.assertEquals(report.points[1].choice, { x = 1 }, "the standard is the first")
end

function TestTune.test_two_keys_and_words()
    local best = tune(function(c) return (c.way == "b" and 1 or 2) + c.x / 10 + (c.flag and 0 or 1) end, {
        space = { x = { 3, 2 }, way = { "a", "b" }, flag = { false, true } },
        standard = { x = 3, way = "a", flag = false },
    })
    lu.assertEquals(best, { x = 2, way = "b", flag = true })
end

-- A standard outside of the lists is tried too.
function TestTune.test_a_standard_that_is_fastest_stays()
    local best, report = tune(function(c) return c.x == 9 and 1 or 1.5 end, { standard = { x = 9 } })
    lu.assertEquals({ best.x, #report.points }, { 9, 6 })
    lu.assertStrContains(report.reason, "no point beats the standard")
end

function TestTune.test_noise_alone_never_changes_the_standard()
    for seed = 1, 40 do
        local noise = noise_of(seed)
        local best = tune(function() return 1 + noise() end, { again = true })
        lu.assertEquals(best, { x = 1 }, "seed " .. seed)
    end
end

function TestTune.test_a_gain_above_the_noise_is_found()
    for seed = 1, 10 do
        local noise = noise_of(seed)
        local best, report = tune(function(c) return (c.x == 3 and 0.7 or 1) * (1 + 0.2 * noise()) end,
            { again = true })
        lu.assertEquals(best, { x = 3 }, "seed " .. seed)
        lu.assertTrue(report.wins >= 20)
        lu.assertAlmostEquals(report.gain, 0.3, 0.1)
    end
end

-- The machine becomes 50 times slower while points are timed: turns see that all are hit alike.
function TestTune.test_drift_hits_all_points_alike()
    local function drifting(gain)
        return function(c) return (c.x == 2 and 1 - gain or 1) * (1 + now / 20) * 1e-2 end
    end
    lu.assertEquals((tune(drifting(0.1))), { x = 2 })
    now = 0
    lu.assertEquals((tune(drifting(0), { again = true })), { x = 1 })
end

-- One percent is less than what the placement of code and data changes.
function TestTune.test_a_tiny_gain_is_no_gain()
    local best, report = tune(function(c) return c.x == 2 and 0.99 or 1 end)
    lu.assertEquals(best, { x = 1 })
    lu.assertAlmostEquals(report.gain, 0.01, 1e-12)
end

function TestTune.test_points_that_fail_are_survived_and_reported()
    local best, report = tune(function(c)
        if c.x == 2 then
            error("no room for x = 2", 0)
        elseif c.x == 3 then
            while true do
                now = now + 1e-3
            end
        end
        return c.x == 4 and 100 or c.x == 5 and 0.1 or 1
    end, { space = { x = { 1, 2, 3, 4, 5, 6 } }, check = function(c) return c.x ~= 5 end })
    lu.assertEquals(best, { x = 1 })
    lu.assertEquals(point(report, 2).reason, "no room for x = 2")
    lu.assertStrContains(point(report, 3).reason, "longer than its limit")
    lu.assertStrContains(point(report, 4).reason, "100 s a call, the limit is 10 s")
    lu.assertEquals(point(report, 5).reason, "check returned false")
    for x = 2, 5 do
        lu.assertEquals(point(report, x).state, "failed")
    end
    lu.assertEquals(point(report, 6).state, "tried")
end

-- A point that fails later, in its tenth call, leaves as well.
function TestTune.test_a_point_that_fails_in_the_final()
    local calls = 0
    local best, report = tune(function(c)
        calls = calls + (c.x == 2 and 1 or 0)
        return c.x == 2 and (calls < 10 and 0.5 or error("worn out", 0)) or 1
    end)
    lu.assertEquals(best, { x = 1 })
    lu.assertEquals(point(report, 2).reason, "worn out")
    lu.assertStrContains(report.reason, "failed in the final")
end

function TestTune.test_a_standard_that_fails_is_an_error()
    lu.assertErrorMsgContains("the standard failed: broken", tune, function() error("broken", 0) end)
    lu.assertErrorMsgContains("the standard failed: wrong sum", tune, valley,
        { check = function() error("wrong sum", 0) end })
    lu.assertErrorMsgContains("run must return the function to time, not a nil", tune, valley, { run = function() end })
end

-- Another program may take the processor in any turn.
function TestTune.test_a_standard_that_slows_down_is_no_failure()
    local calls = 0
    local best = tune(function(choice)
        calls = calls + 1
        return valley(choice) * (choice.x == 1 and calls > 3 and calls < 20 and 100 or 1)
    end)
    lu.assertEquals(best, { x = 4 })
end

function TestTune.test_the_budget_ends_the_search()
    local best, report = tune(valley, { budget_s = 20 })
    lu.assertEquals(best, { x = 1 })
    lu.assertStrContains(report.reason, "the budget of 20 s was over after 2 turns")
    lu.assertEquals({ point(report, 3).state, point(report, 4).state }, { "tried", "not tried" })
    lu.assertTrue(report.seconds < 20 + 3.1, "at most one turn more")
    lu.assertTrue(report.is_cut_short)
    local _, shorter = tune(valley, { budget_s = 1 })
    lu.assertEquals(shorter.reason, "the budget of 1 s was over before another point was tried")
    lu.assertEquals(select(2, tune(valley, { tuning = "cache" })).from, "standard", "neither is an answer to keep")
    best, report = tune(valley, { budget_s = 120 })
    lu.assertEquals({ best.x, report.from, report.is_cut_short }, { 4, "tuned" }, "enough for the final")
end

function TestTune.test_large_spaces_are_sampled_the_same_each_time()
    local lists = { {}, {} }
    local numbers = {}
    for i = 1, 20 do
        numbers[i] = i
    end
    for _, list in ipairs(lists) do
        local _, report = tune(function(c) return c.x + c.y end,
            { space = { x = numbers, y = numbers }, standard = { x = 20, y = 20 }, again = true })
        for i, one in ipairs(report.points) do
            list[i] = ("%d %d"):format(one.choice.x, one.choice.y)
        end
    end
    lu.assertEquals(lists[1], lists[2])
    lu.assertTrue(#lists[1] == 32 or #lists[1] == 33, "32 and the standard")
end

-- ---- the cache ----

function TestTune.test_a_second_call_looks_the_choice_up()
    tune(valley, { shape = { n = 4 } })
    local before = prepared
    local best, report = tune(valley, { shape = { n = 4 }, tuning = "cache" })
    lu.assertEquals({ best.x, report.from, prepared }, { 4, "cache", before })
    lu.assertAlmostEquals(report.gain, 1 - 1 / 1.9, 1e-12)
    for what, other in pairs { shape = { n = 5 }, version = 2, name = "other" } do
        local options = { shape = { n = 4 }, tuning = "cache" }
        options[what] = other
        local standard, missed = tune(valley, options)
        lu.assertEquals({ standard.x, missed.from }, { 1, "standard" }, what)
    end
    local threads = mx.threads()
    mx.threads(threads + 1)
    local _, missed = tune(valley, { shape = { n = 4 }, tuning = "cache" })
    mx.threads(threads)
    lu.assertEquals(missed.from, "standard", "other threads")
    lu.assertEquals(select(2, tune(valley, { shape = { n = 4 }, tuning = "off" })).from, "standard")
    lu.assertEquals(prepared, before)
    lu.assertEquals(select(2, tune(valley, { shape = { n = 4 }, again = true })).from, "tuned")
end

function TestTune.test_a_standard_that_stayed_is_cached_too()
    tune(function() return 1 end)
    local best, report = tune(valley)
    lu.assertEquals({ best.x, report.from, report.gain }, { 1, "cache", 0 })
end

function TestTune.test_a_cached_choice_outside_of_the_space_is_not_used()
    tune(valley)
    local best, report = tune(valley, { space = { x = { 1, 2, 3 } } })
    lu.assertEquals({ best.x, report.from }, { 3, "tuned" })
end

-- Of a space of more than 32 points, not all are drawn, but all may be looked up.
function TestTune.test_a_cached_choice_of_a_larger_space_is_used()
    tune(valley)
    local numbers = {}
    for i = 1, 1000 do
        numbers[i] = i
    end
    for _, x in ipairs { 4, 777 } do
        local whole = mx.io.json_decode(mx.io.read_file(file))
        for _, entry in pairs(whole.entries) do
            entry.choice.x = x
        end
        mx.io.write_file_atomic(file, mx.io.json_encode(whole))
        local best, report = tune(valley, { space = { x = numbers } })
        lu.assertEquals({ best.x, report.from }, { x, "cache" })
    end
end

function TestTune.test_damaged_caches_are_replaced()
    for _, content in ipairs { '{ "entries": ', "[1, 2]", '"text"', '{"format": "other", "entries": {}}', "" } do
        local stream <close> = assert(io.open(file, "w"))
        stream:write(content)
        stream:close()
        lu.assertEquals((tune(valley)), { x = 4 }, content)
        lu.assertEquals(select(2, tune(valley, { tuning = "cache" })).from, "cache", content)
    end
    local whole = mx.io.json_decode(mx.io.read_file(file))
    for _, entry in ipairs { 3, { choice = 4, gain = 1 }, { choice = { y = 1 }, gain = 1 }, { choice = { x = 4 } } } do
        for key in pairs(whole.entries) do
            whole.entries[key] = entry
        end
        mx.io.write_file_atomic(file, mx.io.json_encode(whole))
        lu.assertEquals(select(2, tune(valley, { tuning = "cache" })).from, "standard")
    end
end

function TestTune.test_a_cache_that_cannot_be_written_costs_nothing_else()
    lu.assertEquals((tune(valley, { file = "/proc/none/tuning.json" })), { x = 4 })
end

function TestTune.test_without_a_file_nothing_is_kept()
    lu.assertEquals(select(2, tune(valley, { file = "" })).from, "tuned")
    lu.assertEquals(select(2, tune(valley, { file = "", tuning = "cache" })).from, "standard")
end

function TestTune.test_where_the_cache_is()
    lu.assertStrContains(require("mx.tune.cache").path(), "/mxlua/tuning.json")
end

-- ---- refusals ----

function TestTune.test_refusals()
    local function refused(message, options)
        lu.assertErrorMsgContains(message, tune, valley, options)
    end
    refused("tuning = maybe; expected off, cache, on", { tuning = "maybe" })
    refused("budget_s = 0; expected seconds above 0", { budget_s = 0 })
    refused("space.x: expected a list of values", { space = { x = {} } })
    refused("space.x has a table", { space = { x = { {} } } })
    refused("standard.x is missing", { standard = {} })
    refused("standard.y is not in the space (x)", { standard = { x = 1, y = 2 } })
    refused("shape.t is a table", { shape = { t = {} } })
    refused("no option 'budget', did you mean 'budget_s'", { budget = 3 })
    refused("expected a name", { name = 3 })
    lu.assertErrorMsgContains("'run' is missing", mx.tune, { name = "test", space = {}, standard = {} })
    mx.sim.start("v5e-4", 1, { memory_bytes = 2 ^ 30 })
    local good, message = pcall(tune, valley)
    mx.sim.stop()
    lu.assertFalse(good)
    lu.assertStrContains(message, "measures this machine")
end
