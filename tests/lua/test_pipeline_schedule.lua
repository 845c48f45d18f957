-- Pipeline schedules: dependencies, limits, the formulas of waiting times, and ranks that never block each other.

local lu = require "luaunit"
local mx = require "mx"

local schedule = mx.pipeline.schedule

TestSchedule, TestChart = {}, {}

-- Calls visit for kinds and sizes: small ones, and every fifth of the others.
local function each(visit)
    local n = 0
    for stages = 1, 8 do
        for microbatches = 1, 32 do
            for repeats = 1, 4 do
                for _, kind in ipairs(schedule.KINDS) do
                    local fits = repeats == 1 or kind == "gpipe" or kind ~= "zb" and microbatches % stages == 0
                    n = n + 1
                    if fits and (stages * microbatches * repeats <= 12 or n % 13 == 0) then
                        visit(schedule.make { kind = kind, stages = stages, microbatches = microbatches,
                            repeats = repeats })
                    end
                end
            end
        end
    end
end

-- The table of the published schedules: activations that stage i of S keeps, in chunks.
local function limit(s, stage)
    local n, after = s.microbatches * s.repeats, s.stages - stage
    if s.kind == "gpipe" then
        return n
    elseif s.repeats == 1 then
        return math.min(n, after + 1)
    end
    return math.min(n, 2 * after + (s.repeats - 1) * s.stages + 1)
end

function TestSchedule.test_every_schedule_passes_its_check()
    each(function(s)
        schedule.check(s)
        for stage, most in ipairs(schedule.in_flight(s)) do
            lu.assertEquals(most, limit(s, stage))
        end
    end)
end

-- Forward 1, backward 2, split into 1 and 1: the waiting time is (S - 1) units of 3, or of 1 with a split.
function TestSchedule.test_waiting_times_are_those_of_the_formulas()
    each(function(s)
        if s.microbatches >= s.stages then
            local replay = schedule.replay(s, { F = 1, B = s.splits and 1 or 2, W = 1 })
            local work = 3 * s.repeats * s.microbatches
            lu.assertEquals(replay.duration, work + (s.splits and 1 or 3) * (s.stages - 1))
            lu.assertAlmostEquals(replay.bubble, schedule.bubble(s), 1e-12)
        end
    end)
end

-- A machine of ranks with a lane each: both ends of a message must have come to it, and the sender must have its value.
-- Actions and messages take random times. It does not use the code under test, except for the lists.
local function runs_through(s)
    local at, lane, has, left = {}, {}, {}, 0
    local mine = {}
    for stage = 1, s.stages do
        at[stage], lane[stage], has[stage], mine[stage] = 1, 1, {}, {}
        left = left + #s.actions[stage]
    end
    for _, m in ipairs(s.messages) do
        table.insert(mine[m.from], m)
        table.insert(mine[m.to], m)
    end
    local chunks = s.stages * s.repeats + (s.outside and 1 or 0)
    local function input(stage, what, chunk, micro)
        return has[stage][what .. chunk .. "." .. micro]
    end
    local function can(stage, a)
        if a.what == "F" then
            return a.chunk == 1 or input(stage, "F", a.chunk - 1, a.micro)
        elseif a.what == "W" then
            return input(stage, "B", a.chunk, a.micro)
        end
        return input(stage, "F", a.chunk, a.micro)
            and (a.chunk == chunks or input(stage, "B", a.chunk + 1, a.micro))
    end
    local moved = true
    while moved do
        moved = false
        for stage = 1, s.stages do
            local a = s.actions[stage][at[stage]]
            if a and math.random() < 0.7 then
                if can(stage, a) then
                    has[stage][a.what .. a.chunk .. "." .. a.micro] = true
                    at[stage], left = at[stage] + 1, left - 1
                end
            end
            moved = moved or (a ~= nil and can(stage, a))
            local m = mine[stage][lane[stage]]
            if m and m.from == stage and mine[m.to][lane[m.to]] == m then
                local key = m.what == "activation" and "F" .. m.chunk - 1 or "B" .. m.chunk + 1
                if has[stage][key .. "." .. m.micro] then
                    has[m.to][key .. "." .. m.micro] = true
                    lane[m.from], lane[m.to], moved = lane[m.from] + 1, lane[m.to] + 1, true
                end
            end
        end
    end
    return left == 0
end

-- The second stage has the loss. The first forward pass of the first stage takes 8, then 8 of F and B on the second
-- one take 28 each. With 6 microbatches pending, 2 of its W, 4 each, come before the last B. At the end, the first
-- stage takes 16 + 8.
function TestSchedule.test_unequal_stages()
    local costs = { { F = 8, B = 16, W = 8 }, { F = 4, B = 24, W = 4 } }
    local times = {}
    for _, what in ipairs({ "F", "B", "W" }) do
        times[what] = function(chunk) return costs[chunk][what] end
    end
    for pending, duration in pairs({ [6] = 8 + 8 * 28 + 2 * 4 + 16 + 8, [4] = 8 + 8 * 28 + 4 * 4 + 16 + 8 }) do
        local s = schedule.check(schedule.make {
            kind = "zb", stages = 2, microbatches = 8, pending = pending, costs = costs,
        })
        lu.assertEquals(schedule.replay(s, times).duration, duration)
        lu.assertEquals(schedule.pending(s), { pending, pending })
        lu.assertTrue(runs_through(s))
    end
end

-- GPT-2, for each token: 24 E^2 FLOPs in products of a layer, 4 E for each of S / 2 keys in attention, 6 E V in the
-- products of the loss. Backward takes 2.5 attentions. A layer's forward pass is 100.
function TestSchedule.test_costs_by_hand()
    local E, S, V = 768, 1024, 50257
    local products, attention = 24 * E * E, 2 * E * S
    local function units(flops)
        return 100 * flops / (products + attention)
    end
    for policy, again in pairs({ full = 1, none = 0 }) do
        local config = mx.config.load { "model_name=gpt2-124m", "remat_policy=" .. policy }
        local own = mx.pipeline.costs.of(mx.models.shape(config), { { first = 1, last = 8 }, { first = 9, last = 12 } },
            config)
        for i, layers in ipairs({ 8, 4 }) do
            local backward = layers * (again * (products + attention) + products + 2.5 * attention)
            lu.assertAlmostEquals(own[i].F, 100 * layers, 1)
            lu.assertAlmostEquals(own[i].B, units(backward + (i == 2 and 6 * E * V or 0)), 3)
            lu.assertAlmostEquals(own[i].W, units(layers * products), 1)
        end
    end
end

-- Whatever the costs are: the limit holds, and with that of ZB-H1 no schedule is slower than ZB-H1.
function TestSchedule.test_schedules_for_costs()
    math.randomseed(11)
    for stages = 2, 6 do
        local costs, times = {}, {}
        for stage = 1, stages do
            costs[stage] = { F = math.random(5, 15), B = math.random(5, 40), W = math.random(5, 15) }
        end
        for _, what in ipairs({ "F", "B", "W" }) do
            times[what] = function(chunk) return costs[chunk][what] end
        end
        local function of(kind, pending)
            local s = schedule.make {
                kind = kind, stages = stages, microbatches = 12, pending = pending, costs = pending and costs,
            }
            return schedule.check(s), schedule.replay(s, times).duration
        end
        local _, simple = of("zb_h1")
        local longest = math.huge
        for _, pending in ipairs({ 1, stages, 2 * stages - 1, 2 * stages }) do
            local s, duration = of("zb", pending)
            lu.assertTrue(runs_through(s))
            for _, most in ipairs(schedule.pending(s)) do
                lu.assertTrue(most <= pending)
            end
            longest = pending >= 2 * stages - 1 and simple or longest
            lu.assertTrue(duration <= longest, ("%d stages, %d pending"):format(stages, pending))
        end
    end
end

function TestSchedule.test_ranks_never_block_each_other()
    math.randomseed(7)
    each(function(s)
        lu.assertTrue(runs_through(s), ("%s %d %d %d"):format(s.kind, s.stages, s.microbatches, s.repeats))
    end)
end

-- Messages take 3 units. Stage 2 starts at 1 + 3, and its gradient of microbatch 1 arrives at 4 + 1 + 2 + 3 = 10.
function TestSchedule.test_transfers_take_time()
    local s = schedule.make { kind = "1f1b", stages = 2, microbatches = 1 }
    local replay = schedule.replay(s, { F = 1, B = 2, message = function() return 3 end })
    lu.assertEquals(replay.actions[2][1].start, 4)
    lu.assertEquals(replay.actions[1][2].start, 10)
    lu.assertEquals(replay.duration, 12)
    lu.assertAlmostEquals(replay.bubble, 0.75, 1e-12)
end

-- One more chunk, which each stage runs for its share of the microbatches: passes within the limits, no stage blocks
-- another one, and the stages wait as long as without it, if it takes as long as a chunk and follows the pipeline. With
-- split backward passes, its W fills the time in which the pipeline starts.
function TestSchedule.test_layers_outside_the_pipeline()
    math.randomseed(5)
    for stages = 2, 5 do
        for groups = 1, 3, 2 do
            for _, kind in ipairs(schedule.KINDS) do
                for repeats = 1, kind == "zb" and 1 or 2 do
                    for _, outside in ipairs({ "first", "last" }) do
                        local s = schedule.check(schedule.make { kind = kind, stages = stages, repeats = repeats,
                            microbatches = groups * stages, outside = outside })
                        local what = ("%s %d %d %d %s"):format(kind, stages, groups, repeats, outside)
                        lu.assertTrue(runs_through(s), what)
                        local replay = schedule.replay(s, { F = 1, B = s.splits and 1 or 2, W = 1 })
                        local waits = replay.duration - 3 * groups * (stages * repeats + 1)
                        if outside == "last" and not s.splits then
                            lu.assertEquals(waits, 3 * (stages - 1), what)
                        end
                        lu.assertTrue(waits <= 3 * stages + 3, what)
                        lu.assertAlmostEquals(schedule.bubble(s), replay.bubble, 1e-12)
                    end
                end
            end
        end
    end
end

-- Stage (m - 1) % stages + 1 has microbatch m of the last chunk, and sends a gradient if that is another stage.
function TestSchedule.test_messages_of_layers_outside()
    local s, found = schedule.make { kind = "gpipe", stages = 2, microbatches = 2, outside = "last" }, {}
    for i, m in ipairs(s.messages) do
        found[i] = ("%s %d.%d %d-%d"):format(m.what, m.chunk, m.micro, m.from, m.to)
    end
    table.sort(found)
    lu.assertEquals(found, { "activation 2.1 1-2", "activation 2.2 1-2", "activation 3.1 2-1", "gradient 1.1 2-1",
        "gradient 1.2 2-1", "gradient 2.1 1-2" })
    lu.assertEquals(schedule.chunks_of(s, 2), { 2, 3 })
end

local function action(what, chunk, micro)
    return { what = what, chunk = chunk, micro = micro }
end

-- Backward passes in descending order, which is no kind of ours.
function TestSchedule.test_a_schedule_of_ones_own()
    local function list(stage)
        return {
            action("F", stage, 1), action("F", stage, 2), action("B", stage, 2), action("B", stage, 1),
        }
    end
    local s = schedule.check(schedule.of { stages = 2, microbatches = 2, actions = { list(1), list(2) } })
    lu.assertEquals(#s.messages, 4)
    lu.assertEquals(schedule.in_flight(s), { 2, 2 })
    lu.assertTrue(runs_through(s))
end

local function refused(message, fn, ...)
    lu.assertErrorMsgContains(message, fn, ...)
end

function TestSchedule.test_what_is_refused()
    local function of(first, second)
        return function()
            schedule.of { stages = 2, microbatches = 1, actions = { first, second } }
        end
    end
    local one, two = { action("F", 1, 1), action("B", 1, 1) }, { action("F", 2, 1), action("B", 2, 1) }
    of(one, two)()
    refused("B of chunk 2, microbatch 1 is missing", of(one, { two[1] }))
    refused("F of chunk 1, microbatch 1 is there twice", of({ one[1], one[1], one[2] }, two))
    refused("whose chunk is on stage 2", of(two, one))
    refused("expected F, B or W, a chunk of 1 to 2", of({ action("F", 3, 1) }, two))
    refused("stage 1 never starts B of chunk 1, microbatch 1, which waits for B of chunk 2",
        of(one, { two[2], two[1] }))
    refused("no pipeline schedule '1f1c', did you mean '1f1b'?", schedule.make,
        { kind = "1f1c", stages = 2, microbatches = 2 })
    refused("needs a multiple of the 2 stages", schedule.make,
        { kind = "1f1b", stages = 2, microbatches = 3, repeats = 2 })
    refused("the schedule zb_h1 with num_pipeline_repeats=2 needs a multiple of the 2 stages", schedule.make,
        { kind = "zb_h1", stages = 2, microbatches = 3, repeats = 2 })
    refused("num_pipeline_repeats=2, expected 1", schedule.make,
        { kind = "zb", stages = 2, microbatches = 2, repeats = 2 })
    refused("'zb_h1': pending is for 'zb' only", schedule.make,
        { kind = "zb_h1", stages = 2, microbatches = 2, pending = 2 })
    refused("stages is 0; expected a positive integer", schedule.make,
        { kind = "gpipe", stages = 0, microbatches = 2 })
    refused("outside is before; expected first or last", schedule.make,
        { kind = "gpipe", stages = 2, microbatches = 2, outside = "before" })
    refused("'1f1b': costs are for 'zb' only", schedule.make,
        { kind = "1f1b", stages = 2, microbatches = 2, costs = {} })
end

-- In the wrong order, the first message could only be sent after the second.
function TestSchedule.test_an_order_that_blocks_is_refused()
    local s = schedule.make { kind = "gpipe", stages = 2, microbatches = 1 }
    s.messages[1], s.messages[2] = s.messages[2], s.messages[1]
    refused("blocks at message 1: stage 2 cannot start F of chunk 2, microbatch 1", schedule.check, s)
    s = schedule.make { kind = "gpipe", stages = 2, microbatches = 1 }
    table.insert(s.messages, s.messages[1])
    refused("is there twice or not needed", schedule.check, s)
    s.messages = { s.messages[1] }
    refused("1 messages are missing", schedule.check, s)
    s = schedule.make { kind = "gpipe", stages = 2, microbatches = 3 }
    s.limits[1] = 2
    refused("stage 1 has 3 chunks in flight; its limit is 2", schedule.check, s)
    s = schedule.make { kind = "zb_h1", stages = 2, microbatches = 8 }
    lu.assertEquals(s.pending, { 3, 2 }) -- 2 stages - stage
    s.pending = { 2, 2 }
    refused("stage 1 has 3 chunks that wait for the gradients of weights; its limit is 2", schedule.check, s)
end

-- Two stages and two microbatches, drawn by hand: a unit has three columns at most.
function TestChart.test_by_hand()
    local s = schedule.make { kind = "1f1b", stages = 2, microbatches = 2 }
    lu.assertEquals(mx.pipeline.draw(s), table.concat({
        "1f1b: 2 stages, 2 microbatches: 33.3 % bubble",
        "stage 1  111222......aaaaaa...bbbbbb".. "  2 in flight",
        "stage 2  ...111aaaaaa222bbbbbb......".. "  1 in flight",
        "digits: forward; letters: backward; .: waits",
    }, "\n"))
end

-- Each stage runs the last chunk for one microbatch: stage 1 from unit 2, in which the first one has come from stage 2,
-- and stage 2 from unit 3, 3 units long. Then come 2 backward passes of 2 units on stage 2, and one more on stage 1. A
-- stage works 2 + 3 + 4 of 12 units.
function TestChart.test_layers_outside_by_hand()
    local s = schedule.make { kind = "gpipe", stages = 2, microbatches = 2, outside = "last" }
    lu.assertEquals(mx.pipeline.draw(s), table.concat({
        "gpipe: 2 stages, 2 microbatches: 25.0 % bubble",
        "stage 1  111222AAAAAAAAA.........aaaaaabbbbbb" .. "  3 in flight",
        "stage 2  ...111222BBBBBBBBBaaaaaabbbbbb......" .. "  3 in flight",
        "digits: forward; letters: backward; capitals: layers outside; .: waits",
    }, "\n"))
end

function TestChart.test_fits_a_terminal()
    for _, words in ipairs({ { "stages=16", "microbatches=64" }, { "stages=3", "repeats=4", "microbatches=30" } }) do
        for line in mx.pipeline.report(words):gmatch("[^\n]+") do
            lu.assertTrue(#line <= 80, line)
        end
    end
end

function TestChart.test_words()
    lu.assertStrContains(mx.pipeline.report { "stages=2", "microbatches=4", "zb_h1" }, "zb_h1: 2 stages, 4 micro")
    lu.assertStrContains(mx.pipeline.report { "stages=2", "outside=first" }, "capitals: layers outside")
    refused("'stagse' is unknown, did you mean 'stages'?", mx.pipeline.report, { "stagse" })
end
