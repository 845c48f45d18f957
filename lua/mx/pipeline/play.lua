--- Makes the lists of actions of all stages by playing them in time: whenever a stage is free, it takes the next action
--- that it can. Messages take no time. kinds.lua says which action of the layers in the pipeline comes next; this file
--- adds the layers outside the pipeline.
--
-- Layers outside the pipeline are one more chunk, the first or the last. Each stage has all of them, and runs them for
-- its share of the microbatches: the stage axis splits the batch there. Others wait for them, so a stage runs them as
-- soon as it can:
--   1. a backward pass (B);
--   2. a forward pass (F), after the W of its microbatch before. If the layers come before the pipeline, a stage runs
--      at most one microbatch more than the pipeline has started, because each of them needs memory;
--   3. W if there is nothing else to do.

local play = {}

---@class mx.PipelineCosts what the actions of a chunk are expected to take, in any unit; positive
---@field F number
---@field B number
---@field W number

--- The number of chunks of a schedule.
---@param s mx.PipelineSchedule
---@return integer
function play.chunks(s)
    return s.stages * s.repeats + (s.outside and 1 or 0)
end

--- The chunk of the layers outside the pipeline; nil: there are none.
---@param s mx.PipelineSchedule
---@return integer?
function play.outside(s)
    return s.outside == "first" and 1 or s.outside and play.chunks(s) or nil
end

--- The first chunk that is in the pipeline.
---@param s mx.PipelineSchedule
---@return integer
function play.first(s)
    return s.outside == "first" and 2 or 1
end

--- What an action is expected to take: by the schedule's costs, otherwise one unit, and two for a whole backward pass.
---@param s mx.PipelineSchedule
---@param what "F"|"B"|"W"
---@param chunk integer
---@return number
function play.cost(s, what, chunk)
    local one = s.costs and s.costs[chunk] or { F = 1, B = 1, W = 1 }
    return what == "B" and not s.splits and one.B + one.W or one[what]
end

--- For how many microbatches a stage may keep activations of the layers outside the pipeline, and for how many inputs
--- of their products. If they come last, backward follows forward at once. If they come first, a stage keeps those of
--- the microbatches that the first stage has in flight, and those of the next group of as many as there are stages.
---@param s mx.PipelineSchedule
---@param in_flight integer of the first stage in the pipeline
---@return integer in_flight, integer pending
function play.limits(s, in_flight)
    if not s.outside then
        return 0, 0
    elseif s.outside == "last" then
        return 1, 1
    end
    local all = (s.microbatches + s.stages - 1) // s.stages
    local most = math.min(all, (in_flight + 2 * s.stages - 1) // s.stages)
    return most, math.min(all, most + 1)
end

-- The state of a stage's passes of the layers outside the pipeline: its next microbatch of each.
local function start_outside(stage)
    return { F = stage, B = stage, W = stage }
end

-- The next pass of these layers that others wait for, or that makes room for one; nil: none can run.
local function outside_pass(s, chunk, at, ready, started)
    local allowed = math.min(s.microbatches, s.outside == "first" and started + s.stages or math.huge)
    if ready("B", chunk, at.B) then
        return "B"
    elseif at.F <= allowed and ready("F", chunk, at.F) then
        return s.splits and at.W < at.B and "W" or "F"
    end
    return nil
end

--- The actions of all stages. ready(what, chunk, micro): whether an action can start now.
---@param s mx.PipelineSchedule
---@param choose fun(stage: integer, ready: function): "F"|"B"|"W"|nil, integer, integer the next action of a stage in
---       the pipeline (what, chunk, micro), which it then runs, unless it is a W and there is one of the layers outside
---@param take fun(stage: integer, what: string) notes that the stage runs that action
---@return mx.PipelineAction[][]
function play.actions(s, choose, take)
    local chunks, outside, first, time, started = play.chunks(s), play.outside(s), play.first(s), 0, 0
    local left, actions, free, stops, at = chunks * s.microbatches * (s.splits and 3 or 2), {}, {}, {}, {}
    for stage = 1, s.stages do
        actions[stage], free[stage], at[stage] = {}, 0, start_outside(stage)
    end
    for chunk = 1, chunks do
        stops[chunk] = { F = {}, B = {}, W = {} }
    end
    local function done(what, chunk, micro)
        return not stops[chunk] or (stops[chunk][what][micro] or math.huge) <= time
    end
    local function ready(what, chunk, micro)
        if what == "F" then
            return done("F", chunk - 1, micro)
        elseif what == "W" then
            return done("B", chunk, micro)
        end
        return done("F", chunk, micro) and done("B", chunk + 1, micro)
    end
    local function next_of(stage)
        local what = outside and outside_pass(s, outside, at[stage], ready, started)
        if what then
            return what, outside, at[stage][what]
        end
        local chunk, micro
        what, chunk, micro = choose(stage, ready)
        if outside and s.splits and (what or "W") == "W" and at[stage].W < at[stage].B then
            return "W", outside, at[stage].W
        end
        return what, chunk, micro
    end
    while left > 0 do
        local next_time = math.huge
        for stage = 1, s.stages do
            local what, chunk, micro
            if free[stage] <= time then
                what, chunk, micro = next_of(stage)
            end
            if what then
                left, free[stage] = left - 1, time + play.cost(s, what, chunk)
                stops[chunk][what][micro] = free[stage]
                table.insert(actions[stage], { what = what, chunk = chunk, micro = micro })
                if chunk == outside then
                    at[stage][what] = micro + s.stages
                else
                    take(stage, what)
                    started = started + (what == "F" and chunk == first and 1 or 0)
                end
            end
            next_time = free[stage] > time and math.min(next_time, free[stage]) or next_time
        end
        assert(next_time < math.huge or left == 0, "no stage can go on")
        time = next_time
    end
    return actions
end

return play
