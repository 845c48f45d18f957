-- ranks: 1 2 3
-- mx.tune on several ranks: the slowest rank counts, a failure on one is one on all, and all get the same choice.

local mx = require "mx"
local lu = require "luaunit"

local rank, ranks = mx.rank(), mx.ranks()
local now, file = 0, nil

-- Tunes functions that take cost(x) seconds on this rank's artificial clock.
local function tune(cost, options)
    local o = {
        name = "ranks", space = { x = { 1, 2, 3 } }, standard = { x = 1 }, file = file, budget_s = 1e6,
        clock = function() return now end,
        run = function(choice)
            return function() now = now + cost(choice.x) end
        end,
    }
    for key, value in pairs(options or {}) do
        o[key] = value
    end
    return mx.tune(o)
end

local function all_have(value)
    local first = mx.share_text(tostring(value))
    lu.assertEquals(tostring(value), first)
end

TestTuneRanks = {}

function TestTuneRanks.setUp()
    now = rank -- clocks of ranks differ
    file = mx.share_text(rank == 0 and os.tmpname() or nil)
    if rank == 0 then
        os.remove(file)
    end
    mx.barrier()
end

function TestTuneRanks.tearDown()
    mx.barrier()
    if rank == 0 then
        os.remove(file)
    end
end

-- Seconds of 1, 2 and 3: 4, 1 and 2 on rank 0; 4, 8 and 2 on the last of several.
function TestTuneRanks.test_the_slowest_rank_counts()
    local slow = ranks > 1 and rank == ranks - 1
    local best, report = tune(function(x) return ({ 4, slow and 8 or 1, 2 })[x] end)
    lu.assertEquals(best.x, ranks == 1 and 2 or 3)
    lu.assertAlmostEquals(report.gain, ranks == 1 and 0.75 or 0.5, 1e-6)
    all_have(report.gain)
    all_have(report.seconds)
    best, report = tune(function() error("not called", 0) end, { tuning = "cache" })
    lu.assertEquals({ best.x, report.from }, { ranks == 1 and 2 or 3, "cache" })
end

function TestTuneRanks.test_a_point_that_fails_on_one_rank_fails_on_all()
    local function failing(x)
        if x == 2 and rank == ranks - 1 then
            error("no memory", 0)
        end
        return 5 - x - (x == 2 and 2.5 or 0)
    end
    local best, report = tune(failing)
    lu.assertEquals(best.x, 3)
    lu.assertEquals(report.points[2].reason, rank == ranks - 1 and "no memory" or "it failed on another rank")
    best, report = tune(function(x) return 5 - x end,
        { again = true, check = function(choice) return choice.x ~= 3 or rank > 0 end })
    lu.assertEquals(best.x, 2)
    lu.assertEquals(report.points[3].reason, rank == 0 and "check returned false" or "check failed on another rank")
end

-- Noise differs between ranks; the choice does not.
function TestTuneRanks.test_all_ranks_choose_alike()
    local draws = 0
    local best, report = tune(function(x)
        draws = draws + 1
        return (x == 3 and 0.5 or 1) + (mx.util.mix(draws * 64 + rank) >> 10) * 2 ^ -53 / 4
    end)
    lu.assertEquals(best.x, 3)
    all_have(report.gain)
    all_have(report.wins)
end
