--- Pipeline schedules as data: what each stage does in which order, and one order of all messages between stages.
--
-- A model is cut into stages x repeats chunks of layers; chunk c is on stage (c - 1) % stages + 1. All numbers count
-- from 1. Layers outside the pipeline are one more chunk, the first or the last, which every stage has: microbatch m of
-- it is on stage (m - 1) % stages + 1 (play.lua).
--
-- An action is { what, chunk, micro }: "F" is the forward pass of a chunk for a microbatch, "B" its backward pass; with
-- a split backward pass, "B" computes the gradient of the input and "W" those of the weights.
--
-- A message brings an activation to the next chunk or a gradient to the previous one, if that is on another stage.
-- Each rank handles its messages in the common order, one at a time, and both ends of a message wait for each other.
-- This never blocks if every action that a message waits for needs only earlier messages: then the first unfinished
-- message can always be finished. schedule.walk proves it, whatever the durations are.

local kinds = require "mx.pipeline.kinds"
local play = require "mx.pipeline.play"
local util = require "mx.util"

local schedule = {}

--- The kinds that schedule.make knows.
schedule.KINDS = kinds.NAMES

---@class mx.PipelineAction
---@field what "F"|"B"|"W"
---@field chunk integer
---@field micro integer

---@class mx.PipelineMessage
---@field what "activation"|"gradient"
---@field chunk integer the chunk that needs it
---@field micro integer
---@field from integer stage
---@field to integer stage

---@class mx.PipelineSchedule
---@field kind? string
---@field stages integer
---@field repeats integer chunks of a stage in the pipeline
---@field outside? "first"|"last" the chunk of layers outside the pipeline
---@field microbatches integer
---@field actions mx.PipelineAction[][] for each stage, in its order
---@field messages mx.PipelineMessage[] in the common order
---@field limits? integer[] for each stage, chunks whose forward pass may wait for its backward pass
---@field pending? integer[] for each stage, chunks whose forward pass may wait for W
---@field splits boolean whether the backward pass is split into B and W
---@field costs? mx.PipelineCosts[] of each chunk: what actions are expected to take

-- ---- dependencies ----

--- The number of chunks, and of them the one of the layers outside the pipeline (nil: there are none).
schedule.chunks, schedule.outside = play.chunks, play.outside

--- The stage of a chunk for a microbatch.
---@param s mx.PipelineSchedule
---@param chunk integer
---@param micro integer of no effect on chunks in the pipeline
---@return integer
function schedule.stage_of(s, chunk, micro)
    if chunk == play.outside(s) then
        return (micro - 1) % s.stages + 1
    end
    return (chunk - play.first(s)) % s.stages + 1
end

--- The chunks of a stage, in ascending order.
---@param s mx.PipelineSchedule
---@param stage integer
---@return integer[]
function schedule.chunks_of(s, stage)
    local list = {}
    for chunk = 1, play.chunks(s) do
        if chunk == play.outside(s) or schedule.stage_of(s, chunk, 1) == stage then
            list[#list + 1] = chunk
        end
    end
    return list
end

local ORDER = { F = 0, B = 1, W = 2 }

-- A number for an action, different for each.
local function id(s, what, chunk, micro)
    return (ORDER[what] * play.chunks(s) + chunk - 1) * s.microbatches + micro
end

local function text(what, chunk, micro)
    return ("%s of chunk %d, microbatch %d"):format(what, chunk, micro)
end

-- The actions that an action needs before it: kind and chunk of up to two, for the same microbatch.
local function needs(s, action)
    local chunk = action.chunk
    if action.what == "F" then
        return chunk > 1 and "F" or nil, chunk - 1
    elseif action.what == "W" then
        return "B", chunk
    end
    return "F", chunk, chunk < play.chunks(s) and "B" or nil, chunk + 1
end

-- Whether all that an action needs is in `done`; if not, also what is missing.
local function is_ready(s, action, done)
    local a, a_chunk, b, b_chunk = needs(s, action)
    if a and not done[id(s, a, a_chunk, action.micro)] then
        return false, text(a, a_chunk, action.micro)
    elseif b and not done[id(s, b, b_chunk, action.micro)] then
        return false, text(b, b_chunk, action.micro)
    end
    return true
end

-- ---- the common order of messages ----

-- Runs all stages in expected time: calls visit(stage, action, stop) for each action. An action that can never start is
-- refused.
local function in_expected_time(s, visit)
    local stops, at, free, progress = {}, {}, {}, true
    for stage = 1, s.stages do
        at[stage], free[stage] = 1, 0
    end
    while progress do
        progress = false
        for stage, actions in ipairs(s.actions) do
            local action = actions[at[stage]]
            while action and is_ready(s, action, stops) do
                local a, a_chunk, b, b_chunk = needs(s, action)
                local start = math.max(free[stage], a and stops[id(s, a, a_chunk, action.micro)] or 0,
                    b and stops[id(s, b, b_chunk, action.micro)] or 0)
                free[stage] = start + play.cost(s, action.what, action.chunk)
                stops[id(s, action.what, action.chunk, action.micro)] = free[stage]
                visit(stage, action, free[stage])
                at[stage], progress = at[stage] + 1, true
                action = actions[at[stage]]
            end
        end
    end
    for stage, actions in ipairs(s.actions) do
        local action = actions[at[stage]]
        if action then
            local _, missing = is_ready(s, action, stops)
            util.refuse("pipeline schedule: stage %d never starts %s, which waits for %s", stage,
                text(action.what, action.chunk, action.micro), missing)
        end
    end
end

-- When the last action ends in expected time.
local function expected_duration(s)
    local last = 0
    in_expected_time(s, function(_, _, stop) last = math.max(last, stop) end)
    return last
end

--- The message that an action causes; nil: none, or the stage itself needs what the action computes.
---@param s mx.PipelineSchedule
---@param action mx.PipelineAction
---@return mx.PipelineMessage?
function schedule.message_of(s, action)
    local what, micro = action.what, action.micro
    local chunk = what == "F" and action.chunk + 1 or what == "B" and action.chunk - 1 or 0
    if chunk < 1 or chunk > play.chunks(s) then
        return nil
    end
    local from, to = schedule.stage_of(s, action.chunk, micro), schedule.stage_of(s, chunk, micro)
    return from ~= to and {
        what = what == "F" and "activation" or "gradient", chunk = chunk, micro = micro, from = from, to = to,
    } or nil
end

-- Messages in the order in which their actions end in expected time. An action starts when all messages that it needs
-- have been sent and ends later, so they come before its own.
local function add_messages(s)
    local sent = {}
    in_expected_time(s, function(stage, action, stop)
        local message = schedule.message_of(s, action)
        if message then
            sent[#sent + 1] = { stop, stage, message }
        end
    end)
    table.sort(sent, function(a, b)
        if a[1] ~= b[1] then
            return a[1] < b[1]
        end
        return a[2] < b[2] -- an action causes one message, so this is a total order
    end)
    s.messages = {}
    for i, item in ipairs(sent) do
        s.messages[i] = item[3]
    end
    return s
end

-- ---- checks ----

-- Every action once, on its stage. Returns for each its place in the list of its stage.
local function places_of(s)
    local places, chunks = {}, play.chunks(s)
    for stage = 1, s.stages do
        for i, action in ipairs(s.actions[stage] or {}) do
            local what, chunk, micro = action.what, action.chunk, action.micro
            if not ORDER[what] or math.type(chunk) ~= "integer" or chunk < 1 or chunk > chunks
                or math.type(micro) ~= "integer" or micro < 1 or micro > s.microbatches then
                util.refuse("pipeline schedule: action %d of stage %d is %s; expected F, B or W, a chunk of 1 to %d, a "
                    .. "microbatch of 1 to %d", i, stage, ("{ %s, %s, %s }"):format(what, chunk, micro), chunks,
                    s.microbatches)
            elseif schedule.stage_of(s, chunk, micro) ~= stage then
                util.refuse("pipeline schedule: stage %d has %s, whose chunk is on stage %d", stage,
                    text(what, chunk, micro), schedule.stage_of(s, chunk, micro))
            elseif places[id(s, what, chunk, micro)] then
                util.refuse("pipeline schedule: %s is there twice", text(what, chunk, micro))
            end
            places[id(s, what, chunk, micro)] = i
        end
    end
    for _, what in ipairs(s.splits and { "F", "B", "W" } or { "F", "B" }) do
        for chunk = 1, chunks do
            for micro = 1, s.microbatches do
                if not places[id(s, what, chunk, micro)] then
                    util.refuse("pipeline schedule: %s is missing", text(what, chunk, micro))
                end
            end
        end
    end
    return places
end

-- Every message once, from and to the stages that the actions give.
local function check_messages(s)
    local wanted, n = {}, 0
    for _, actions in ipairs(s.actions) do
        for _, action in ipairs(actions) do
            local m = schedule.message_of(s, action)
            if m then
                wanted[("%s %d %d %d %d"):format(m.what, m.chunk, m.micro, m.from, m.to)], n = true, n + 1
            end
        end
    end
    for i, m in ipairs(s.messages) do
        local key = ("%s %d %d %d %d"):format(m.what, m.chunk, m.micro, m.from, m.to)
        if not wanted[key] then
            util.refuse("pipeline schedule: message %d, the %s of microbatch %d for chunk %d from stage %d to %d, is "
                .. "there twice or not needed", i, m.what, m.micro, m.chunk, m.from, m.to)
        end
        wanted[key], n = nil, n - 1
    end
    if n > 0 then
        util.refuse("pipeline schedule: %d messages are missing, such as: %s", n, (next(wanted)))
    end
end

--- Visits all actions and messages in an order in which the ranks can do them, whatever the durations are. Refuses a
--- schedule that blocks. Not collective.
---@param s mx.PipelineSchedule
---@param act fun(stage: integer, action: mx.PipelineAction)
---@param pass fun(message: mx.PipelineMessage)
function schedule.walk(s, act, pass)
    local places, here, at = {}, {}, {}
    for stage, actions in ipairs(s.actions) do
        here[stage], at[stage] = {}, 0
        for i, action in ipairs(actions) do
            places[id(s, action.what, action.chunk, action.micro)] = i
        end
    end
    local function run(stage, last, message)
        for i = at[stage] + 1, last do
            local action = s.actions[stage][i]
            local ready, missing = is_ready(s, action, here[stage])
            if not ready then
                util.refuse("pipeline schedule: blocks at message %s: stage %d cannot start %s before %s has arrived",
                    message or "after the last", stage, text(action.what, action.chunk, action.micro), missing)
            end
            act(stage, action)
            here[stage][id(s, action.what, action.chunk, action.micro)] = true
            at[stage] = i
        end
    end
    for i, message in ipairs(s.messages) do
        local what = message.what == "activation" and "F" or "B"
        local sent = id(s, what, message.what == "activation" and message.chunk - 1 or message.chunk + 1, message.micro)
        run(message.from, places[sent], i)
        pass(message)
        here[message.to][sent] = true
    end
    for stage, actions in ipairs(s.actions) do
        run(stage, #actions)
    end
end

-- The largest number of chunks of each stage whose forward pass waits for its action `last`.
local function most_before(s, last)
    local most = {}
    for stage, actions in ipairs(s.actions) do
        local now = 0
        most[stage] = 0
        for _, action in ipairs(actions) do
            now = now + (action.what == "F" and 1 or action.what == last and -1 or 0)
            most[stage] = math.max(most[stage], now)
        end
    end
    return most
end

--- The largest number of chunks of each stage whose forward pass waits for its backward pass: what the stage keeps
--- activations of. Not collective.
---@param s mx.PipelineSchedule
---@return integer[]
function schedule.in_flight(s)
    return most_before(s, "B")
end

--- With a split backward pass, the largest number of chunks of each stage whose forward pass waits for the gradients of
--- weights: what the stage keeps activations, or inputs of products of. Not collective.
---@param s mx.PipelineSchedule
---@return integer[]
function schedule.pending(s)
    return most_before(s, s.splits and "W" or "B")
end

local function check_limits(most, limits, what)
    for stage, limit in ipairs(limits or {}) do
        if most[stage] > limit then
            util.refuse("pipeline schedule: stage %d has %d chunks %s; its limit is %d", stage, most[stage], what,
                limit)
        end
    end
end

--- Proves that a schedule is right, also one of your own: each action and message once, dependencies, no deadlock, and
--- the limits of chunks in flight and of those that wait for gradients of weights. Refuses others with the reason. Not
--- collective.
---@param s mx.PipelineSchedule
---@return mx.PipelineSchedule s
function schedule.check(s)
    places_of(s)
    check_messages(s)
    schedule.walk(s, function() end, function() end)
    check_limits(schedule.in_flight(s), s.limits, "in flight")
    check_limits(schedule.pending(s), s.pending, "that wait for the gradients of weights")
    return s
end

-- ---- making schedules ----

-- A schedule without actions, of these sizes.
local function of_sizes(o)
    local s = {
        kind = o.kind, stages = o.stages, repeats = o.repeats or 1, microbatches = o.microbatches, outside = o.outside,
        costs = o.costs, actions = o.actions or {}, splits = kinds.splits(o.kind),
    }
    for _, name in ipairs({ "stages", "repeats", "microbatches" }) do
        if math.type(s[name]) ~= "integer" or s[name] < 1 then
            util.refuse("pipeline schedule: %s is %s; expected a positive integer", name, tostring(s[name]))
        end
    end
    if s.outside and s.outside ~= "first" and s.outside ~= "last" then
        util.refuse("pipeline schedule: outside is %s; expected first or last", tostring(s.outside))
    end
    return s
end

--- A schedule of these actions, with the common order of messages. Refuses actions that are not complete or that wait
--- for each other. Not collective.
---@param o {stages: integer, microbatches: integer, repeats: integer?, outside: string?,
---       actions: mx.PipelineAction[][]}
---@return mx.PipelineSchedule
function schedule.of(o)
    util.arguments(o, { "stages", "microbatches", "actions" }, { "repeats", "outside" }, "schedule.of")
    local s = of_sizes(o)
    for _, actions in ipairs(s.actions) do
        for _, action in ipairs(actions) do
            s.splits = s.splits or action.what == "W"
        end
    end
    places_of(s)
    return add_messages(s)
end

--- Makes a schedule. Not collective.
---@param o {kind: string, stages: integer, microbatches: integer, repeats: integer?, outside: string?,
---       pending: integer?, costs: mx.PipelineCosts[]?} outside: "first" or "last", if there are layers outside the
---       pipeline. costs: what actions of each chunk are expected to take, by default all the same; for "zb" and with
---       `outside`. pending: for "zb", microbatches whose forward pass may wait for W in the pipeline, by default
---       2 x stages
---@return mx.PipelineSchedule
function schedule.make(o)
    util.arguments(o, { "kind", "stages", "microbatches" }, { "repeats", "outside", "pending", "costs" },
        "schedule.make")
    if not kinds[o.kind] then
        local near = util.nearest(tostring(o.kind), schedule.KINDS)
        util.refuse("no pipeline schedule '%s'%s", tostring(o.kind), near and (", did you mean '%s'?"):format(near)
            or ": there are " .. table.concat(schedule.KINDS, ", "))
    elseif o.kind ~= "zb" and (o.pending or o.costs and not o.outside) then
        util.refuse("pipeline schedule '%s': %s for 'zb' only", o.kind, o.pending and "pending is" or "costs are")
    end
    local s = of_sizes(o)
    kinds[o.kind](s, o, expected_duration)
    return add_messages(s)
end

-- ---- time ----

---@class mx.PipelineTimes
---@field F number|fun(chunk: integer, micro: integer, before: mx.PipelineAction?): number seconds of a forward pass;
---       before: the stage's previous action
---@field B number|fun(chunk: integer, micro: integer, before: mx.PipelineAction?): number
---@field W? number|fun(chunk: integer, micro: integer, before: mx.PipelineAction?): number
---@field message? fun(message: mx.PipelineMessage): number seconds of a transfer; default: 0

---@class mx.PipelineReplay
---@field duration number
---@field bubble number the share of the time in which the stages wait
---@field busy number[] of each stage, the share of the time in which it computes
---@field actions {what: string, chunk: integer, micro: integer, start: number, stop: number}[][] for each stage
---@field arrivals number[] when each message has arrived

--- Times of all actions, if each takes so long. A transfer starts when its value is there and both ranks have finished
--- their earlier transfers. It overlaps with computation. Not collective.
---@param s mx.PipelineSchedule
---@param times mx.PipelineTimes
---@return mx.PipelineReplay
function schedule.replay(s, times)
    local free, lane, arrived, stops, busy = {}, {}, {}, {}, {}
    local result = { duration = 0, busy = busy, actions = {}, arrivals = {} }
    for stage = 1, s.stages do
        free[stage], lane[stage], busy[stage], arrived[stage], result.actions[stage] = 0, 0, 0, {}, {}
    end
    local function seconds(stage, action)
        local time, before = times[action.what], result.actions[stage][#result.actions[stage]]
        return type(time) == "function" and time(action.chunk, action.micro, before) or time
    end
    local function act(stage, action)
        local a, a_chunk, b, b_chunk = needs(s, action)
        local there = arrived[stage]
        local start = math.max(free[stage], a and there[id(s, a, a_chunk, action.micro)] or 0,
            b and there[id(s, b, b_chunk, action.micro)] or 0)
        local stop, key = start + seconds(stage, action), id(s, action.what, action.chunk, action.micro)
        free[stage], stops[key], there[key] = stop, stop, stop
        busy[stage] = busy[stage] + stop - start
        table.insert(result.actions[stage],
            { what = action.what, chunk = action.chunk, micro = action.micro, start = start, stop = stop })
        result.duration = math.max(result.duration, stop)
    end
    schedule.walk(s, act, function(m)
        local sent = m.what == "activation" and id(s, "F", m.chunk - 1, m.micro) or id(s, "B", m.chunk + 1, m.micro)
        local stop = math.max(stops[sent], lane[m.from], lane[m.to]) + (times.message and times.message(m) or 0)
        lane[m.from], lane[m.to], arrived[m.to][sent] = stop, stop, stop
        table.insert(result.arrivals, stop)
    end)
    local sum = 0
    for stage = 1, s.stages do
        sum, busy[stage] = sum + busy[stage], busy[stage] / result.duration
    end
    result.bubble = 1 - sum / (s.stages * result.duration)
    return result
end

--- A replay with the expected times of actions, without times of messages. Not collective.
---@param s mx.PipelineSchedule
---@return mx.PipelineReplay
function schedule.expected(s)
    local times = {}
    for _, what in ipairs({ "F", "B", "W" }) do
        times[what] = function(chunk) return play.cost(s, what, chunk) end
    end
    return schedule.replay(s, times)
end

--- The share of the time in which stages wait, by the formula of the kind, if forward passes take 1 and backward passes
--- 2 of equal units. It holds for microbatches >= stages; of zb, if 2 x stages - 1 microbatches may be pending. With
--- layers outside the pipeline, for which there is no formula, that of schedule.expected. Not collective.
---@param s mx.PipelineSchedule of schedule.make
---@return number
function schedule.bubble(s)
    local waits = s.stages - 1
    if s.outside then
        return schedule.expected(s).bubble
    elseif s.splits then
        return waits / (3 * s.repeats * s.microbatches + waits)
    end
    return waits / (s.repeats * s.microbatches + waits)
end

return schedule
