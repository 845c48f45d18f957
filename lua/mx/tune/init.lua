--- mx.tune: finds the fastest of several ways to do the same work on this machine.
--
--     local best = mx.tune {
--         name = "mine", shape = { n = 4096 }, space = { block = { 64, 256, 1024 } }, standard = { block = 256 },
--         run = function(choice) return function() work(choice.block) end end,
--     }
--
-- Machines are shared, and their speed drifts. So points are never timed one after the other: all take turns, and each
-- time is divided by the standard's in the same turn. After a round the slower half of the points leaves (successive
-- halving: Jamieson and Talwalkar, 2016). The best then meets the standard in a final with new times, since the best of
-- many noisy figures flatters itself.
--
-- The final's rule: of n turns, the point must be faster by LEAST_GAIN in at least n / 2 + 1.5 sqrt(n). This is the
-- sign test, which holds for noise of any distribution: if both were equally fast, the number of turns that one wins
-- would be binomial, with mean n / 2 and standard deviation sqrt(n) / 2. So many wins, three standard deviations above
-- the mean, come by chance about once in 1,000 times (of 24 turns 20: once in 1,300).

local mx = require "mx"
local cache = require "mx.tune.cache"
local util = require "mx.util"

local tune = {}

local MOST_POINTS = 32 -- of a larger space, so many are drawn
local TURNS = 4 -- of a round
local FINAL_TURNS, LEAST_FINAL_TURNS = 24, 9 -- with fewer than 9, winning all of them is not enough
local LEAST_GAIN = 0.02 -- where code and data happen to lie in memory changes times by as much (Mytkowicz et al., 2009)
local SAMPLE_S = 2e-3 -- shorter calls are repeated
local LIMIT, LEAST_LIMIT_S = 10, 0.5 -- a call may take so many times the standard's seconds
local ROUNDS_SHARE = 0.6 -- of the budget; the rest is the final's
local HOOK_INSTRUCTIONS = 10000 -- of Lua between looks at the clock
local OPTIONAL = { "shape", "check", "version", "budget_s", "tuning", "file", "clock", "again" }
local WORDS = { "off", "cache", "on" }

-- ---- points ----

local function check_list(key, list)
    if type(list) ~= "table" or #list == 0 then
        error(("mx.tune: space.%s: expected a list of values"):format(key), 0)
    end
    for _, value in ipairs(list) do
        local kind = type(value)
        if kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
            error(("mx.tune: space.%s has a %s; expected numbers, strings or booleans"):format(key, kind), 0)
        end
    end
end

local function same(a, b, keys)
    for _, key in ipairs(keys) do
        if a[key] ~= b[key] then
            return false
        end
    end
    return true
end

-- Point number i, from 0, of the space: the last key varies fastest.
local function point_at(space, keys, i)
    local choice = {}
    for k = #keys, 1, -1 do
        local list = space[keys[k]]
        choice[keys[k]] = list[i % #list + 1]
        i = i // #list
    end
    return choice
end

-- The numbers of the points to try, in order: all, or MOST_POINTS that depend only on the name and the size.
local function numbers_of(count, name)
    local numbers, taken = {}, {}
    if count <= MOST_POINTS then
        for i = 1, count do
            numbers[i] = i - 1
        end
        return numbers
    end
    local draw = util.seed(name, count)
    while #numbers < MOST_POINTS do
        draw = util.mix(draw + 1)
        if not taken[draw % count] then
            taken[draw % count] = true
            numbers[#numbers + 1] = draw % count
        end
    end
    table.sort(numbers)
    return numbers
end

-- All points to try; the standard is the first.
local function points_of(o)
    local keys, count = util.sorted_keys(o.space), 1
    for _, key in ipairs(keys) do
        check_list(key, o.space[key])
        if o.standard[key] == nil then
            error(("mx.tune: standard.%s is missing; expected a value for each key of the space"):format(key), 0)
        end
        count = count * #o.space[key]
    end
    for _, key in ipairs(util.sorted_keys(o.standard)) do
        if not o.space[key] then
            error(("mx.tune: standard.%s is not in the space (%s)"):format(key, table.concat(keys, ", ")), 0)
        end
    end
    local points = { { choice = o.standard, ratios = {}, times = {}, state = "standard" } }
    for _, number in ipairs(numbers_of(count, o.name)) do
        local choice = point_at(o.space, keys, number)
        if not same(choice, o.standard, keys) then
            points[#points + 1] = { choice = choice, ratios = {}, times = {}, state = "not tried" }
        end
    end
    return points, keys
end

-- ---- timing ----

-- The largest of each value over all ranks. Collective.
local function largest(values)
    if mx.ranks() == 1 then
        return values
    end
    return mx.scope(function()
        return mx.all_reduce_(mx.tensor(values), { op = "max" }):totable()
    end)
end

-- Calls fn, which ends with an error when the clock passes `deadline`; Lua code notices that, a call into C only
-- afterwards. Ctrl-C ends the program as elsewhere.
local function guarded(clock, deadline, fn)
    debug.sethook(function()
        if clock() > deadline then
            error("it took longer than its limit", 0)
        end
    end, "", HOOK_INSTRUCTIONS)
    local good, result = pcall(fn)
    debug.sethook()
    if not good and tostring(result):find("interrupted$") then
        error(result, 0)
    end
    return good, result
end

-- Seconds of one call of a point's function by the slowest rank, or nil and why it failed. Preparing is not timed.
-- Collective.
local function sample(t, point, repeats)
    local clock, seconds, started = t.clock, math.huge, t.clock()
    local limit_s = point.state == "standard" and math.huge or t.limit_s -- the standard is what the user has anyway
    local good, reason = guarded(clock, started + limit_s * 2 + t.prepare_s, function()
        local step <close> = mx.step()
        local fn = t.o.run(point.choice)
        if type(fn) ~= "function" then
            error("run must return the function to time, not a " .. type(fn), 0)
        end
        local start = clock()
        for _ = 1, repeats do
            fn()
        end
        seconds = clock() - start
        assert(step)
    end)
    if good and seconds > limit_s * repeats then
        good, reason = false, ("%.3g s a call, the limit is %.3g s"):format(seconds / repeats, limit_s)
    end
    local most = largest { good and 0 or 1, good and seconds or 0, clock() - t.started }
    t.elapsed = most[3]
    if most[1] > 0 then
        return nil, good and "it failed on another rank" or tostring(reason)
    end
    return math.max(most[2] / repeats, 1e-12)
end

-- The first call of a point, which gets fresh memory, and the user's check.
local function try(t, point)
    local seconds, reason = sample(t, point, 1)
    if seconds and t.o.check then
        local good, result = pcall(t.o.check, point.choice)
        local bad = not good and tostring(result) or result == false and "check returned false" or nil
        if largest { bad and 1 or 0 }[1] > 0 then
            seconds, reason = nil, bad or "check failed on another rank"
        end
    end
    point.state, point.reason = seconds and point.state or "failed", reason
    return seconds
end

-- One turn: every point of the list once, in alternating order. Points that fail leave the list.
local function turn(t, list, number)
    local times, first, last, step = {}, 1, #list, 1
    if number % 2 == 0 then
        first, last, step = #list, 1, -1
    end
    for i = first, last, step do
        local reason
        times[i], reason = sample(t, list[i], t.repeats)
        if not times[i] then
            list[i].state, list[i].reason = "failed", reason
        end
    end
    if not times[1] then
        error(("mx.tune %s: the standard failed: %s"):format(t.o.name, list[1].reason), 0)
    end
    local kept = {}
    for i, point in ipairs(list) do
        if times[i] then
            kept[#kept + 1] = point
            point.ratios[#point.ratios + 1] = times[i] / times[1]
            point.times[#point.times + 1] = times[i]
            point.ratio, point.seconds = util.quantile(point.ratios, 0.5), util.quantile(point.times, 0.5)
        end
    end
    return kept
end

-- ---- the search ----

-- The standard's first calls say how often a call is repeated, and how long another point may take.
local function begin(t, standard)
    t.prepare_s, t.repeats = 0, 1
    local before = t.clock()
    local seconds = try(t, standard)
    if not seconds then
        error(("mx.tune %s: the standard failed: %s"):format(t.o.name, standard.reason), 0)
    end
    local whole = t.clock() - before
    local second, reason = sample(t, standard, 1)
    if not second then
        error(("mx.tune %s: the standard failed: %s"):format(t.o.name, reason), 0)
    end
    local most = largest { second, whole }
    t.repeats = math.max(1, math.min(1000, math.ceil(SAMPLE_S / most[1])))
    t.limit_s = math.max(LIMIT * most[1], LEAST_LIMIT_S)
    t.prepare_s = LIMIT * most[2] + t.limit_s * t.repeats
end

-- Successive halving: the standard and the best other point, or only the standard.
local function rounds(t, points)
    local list, until_s = { points[1] }, ROUNDS_SHARE * t.o.budget_s
    for i = 2, #points do
        if t.elapsed > until_s / 2 then
            break
        end
        points[i].state = "tried"
        if try(t, points[i]) then
            list[#list + 1] = points[i]
        end
    end
    repeat
        for number = 1, TURNS do
            if t.elapsed > until_s then
                break
            end
            list = turn(t, list, number)
        end
        local others = table.move(list, 2, #list, 1, {})
        table.sort(others, function(a, b)
            return (a.ratio or math.huge) < (b.ratio or math.huge) or a.ratio == b.ratio and a.number < b.number
        end)
        local kept = t.elapsed > until_s and 1 or (#others + 1) // 2
        list = table.move(others, 1, math.min(kept, #others), 2, { points[1] })
    until #list <= 2
    return list
end

-- Times the best point against the standard: adds gain, wins and turns to the report, and the reason if the standard
-- stays.
local function final(t, list, report)
    local point = list[2]
    point.ratios = {}
    for number = 1, FINAL_TURNS do
        if t.elapsed > t.o.budget_s then
            break
        end
        list = turn(t, list, number)
        if #list < 2 then
            return "the best point failed in the final"
        end
    end
    local wins, turns = 0, #point.ratios
    for _, ratio in ipairs(point.ratios) do
        wins = wins + (ratio <= 1 - LEAST_GAIN and 1 or 0)
    end
    report.gain, report.wins, report.turns = turns > 0 and 1 - point.ratio or 0, wins, turns
    local has_won = turns >= LEAST_FINAL_TURNS and wins >= turns / 2 + 1.5 * math.sqrt(turns)
    report.is_cut_short = not has_won and turns < FINAL_TURNS or nil -- more turns might show that it is faster
    if turns < LEAST_FINAL_TURNS then
        return ("the budget of %.3g s was over after %d turns of the final"):format(t.o.budget_s, turns)
    elseif not has_won then
        return ("no point beats the standard by more than the noise: the best was at least %g %% faster in %d of %d "
            .. "turns"):format(100 * LEAST_GAIN, wins, turns)
    end
end

local function search(o, points)
    local t = { o = o, clock = o.clock, started = o.clock(), elapsed = 0 }
    for i, point in ipairs(points) do
        point.number = i
    end
    begin(t, points[1])
    local list = rounds(t, points)
    local report = { points = points, from = "tuned", choice = o.standard, gain = 0 }
    if list[2] then
        report.reason = final(t, list, report)
    elseif #points > 1 and points[2].state == "not tried" then
        report.is_cut_short = true
        report.reason = ("the budget of %.3g s was over before another point was tried"):format(o.budget_s)
    else
        report.reason = "no other point is left"
    end
    if not report.reason then
        report.choice = list[2].choice
    end
    report.seconds = t.elapsed
    return report
end

-- ---- the function ----

-- Whether the space has a choice.
local function has(space, choice, keys)
    for _, key in ipairs(keys) do
        if not util.contains(space[key], choice[key]) then
            return false
        end
    end
    return true
end

-- The cached choice on all ranks, or nil. One that the space no longer has is not used. Collective.
local function cached(o, key, points, keys)
    local entry = mx.rank() == 0 and o.file ~= "" and cache.load(o.file, key) or nil
    local text = mx.share_text(entry and mx.io.json_encode(entry) or nil)
    entry = text and mx.io.json_decode(text)
    if entry and has(o.space, entry.choice, keys) then
        return { from = "cache", choice = entry.choice, gain = entry.gain, points = points, seconds = 0 }
    end
end

---@class mx.Tuned
---@field choice table the choice to use
---@field from string "tuned", "cache" or "standard" (tuning is off, or nothing was cached)
---@field gain number share of the standard's time that the choice saves, as measured; of a standard that stayed, what
---       its best rival seemed to save
---@field wins? integer turns of the final in which the best point was at least 2 % faster; turns: of so many
---@field reason? string why the standard stayed
---@field points {choice: table, state: string, ratio: number?, seconds: number?, reason: string?}[] state: "standard",
---       "tried", "failed" or "not tried"; ratio: its time divided by the standard's; seconds: of a call
---@field seconds number that tuning took
---@field is_cut_short? boolean the budget was too short for an answer, which is not cached then

--- Finds the fastest choice, or looks it up. run(choice) prepares, and returns the function to time; it is called again
--- for each turn, so it may set up what holds for the whole program. Afterwards the script applies the choice. Points
--- that fail, by an error, by `check` or by the time limit, are reported and not used.
--- Collective, with the same options on all ranks: all run each point at the same time, the slowest rank counts, and
--- all get the same choice.
---@param o {name: string, space: table<string, any[]>, standard: table<string, any>,
---       run: (fun(choice: table): function), check: (fun(choice: table): boolean?)?, shape: table<string, any>?,
---       version: integer?, budget_s: number?, tuning: string?, file: string?, again: boolean?, clock: function?}
---       check: raises an error or returns false for wrong results. name, version (1; raise it when the function
---       changes) and shape are the cache's key, beside processor, path, threads and ranks. budget_s: 10. tuning: "on"
---       looks up and otherwise tunes, "cache" never tunes, "off" does neither; "on". file: the cache; "": none.
---       again: tunes although it is cached. clock: mx.now
---@return table choice
---@return mx.Tuned
function tune.tune(o)
    util.arguments(o, { "name", "space", "standard", "run" }, OPTIONAL, "mx.tune")
    o = setmetatable({}, { __index = o }) -- the caller's table stays as it is
    o.budget_s, o.clock, o.file = o.budget_s or 10, o.clock or mx.now, o.file or cache.path()
    local word = o.tuning or "on"
    if type(o.name) ~= "string" or type(o.space) ~= "table" or type(o.standard) ~= "table" then
        error("mx.tune: expected a name, and tables as space and standard", 2)
    elseif type(o.budget_s) ~= "number" or o.budget_s <= 0 then
        error(("mx.tune: budget_s = %s; expected seconds above 0"):format(tostring(o.budget_s)), 2)
    elseif not util.contains(WORDS, word) then
        error(("mx.tune: tuning = %s; expected %s"):format(tostring(word), table.concat(WORDS, ", ")), 2)
    elseif mx.is_simulated() then
        error("mx.tune measures this machine; on a simulated chip there is nothing to time", 2)
    end
    local points, keys = points_of(o)
    local standard = { from = "standard", choice = o.standard, gain = 0, points = points, seconds = 0 }
    if word == "off" then
        return o.standard, standard
    end
    local key = cache.key(o.name, o.version or 1, o.shape or {})
    local report = not o.again and cached(o, key, points, keys) or nil
    if not report and word == "cache" then
        return o.standard, standard
    elseif not report then
        report = search(o, points)
        if mx.rank() == 0 and o.file ~= "" and not report.is_cut_short then
            cache.store(o.file, key, { choice = report.choice, gain = report.reason and 0 or report.gain })
        end
    end
    return report.choice, report
end

return tune
