--- The kinds of pipeline schedules: each function sets the actions of all stages, and the limits of what they keep.
--- schedule.make calls them and adds the messages.

local util = require "mx.util"

local kinds = {}

kinds.NAMES = { "gpipe", "1f1b", "zb_h1", "zb" }

---@class mx.PipelineCosts what the actions of a stage are expected to take, in any unit; positive
---@field F number
---@field B number
---@field W number

--- Whether a kind splits backward passes into B and W.
---@param kind string
---@return boolean
function kinds.splits(kind)
    return kind == "zb_h1" or kind == "zb"
end

-- ---- whole backward passes ----

-- The chunk and microbatch of a stage's k-th forward pass, from 1: groups of `group` microbatches pass through all
-- chunks of the stage. Backward passes visit the chunks in reverse order.
local function nth(s, stage, k, group, backward)
    local of_group = group * s.repeats
    local first, within = (k - 1) // of_group * group, (k - 1) % of_group
    local turn = within // group
    turn = backward and s.repeats - 1 - turn or turn
    return turn * s.stages + stage, first + within % group + 1
end

-- The list of a stage: `ahead` forward passes, then one backward pass for each forward pass, then the other backward
-- passes. GPipe is the case in which all forward passes are ahead.
local function list_of(s, stage, ahead, group)
    local list, n = {}, s.repeats * s.microbatches
    local function add(what, k)
        local chunk, micro = nth(s, stage, k, group, what == "B")
        list[#list + 1] = { what = what, chunk = chunk, micro = micro }
    end
    for k = 1, n + ahead do
        if k <= n then
            add("F", k)
        end
        if k > ahead then
            add("B", k - ahead)
        end
    end
    return list
end

--- GPipe (Huang et al., 2019); with repeats, MaxText's circular pipeline: all microbatches pass a chunk one after the
--- other.
---@param s mx.PipelineSchedule
function kinds.gpipe(s)
    local n = s.repeats * s.microbatches
    for stage = 1, s.stages do
        s.actions[stage] = list_of(s, stage, n, s.microbatches)
        s.limits[stage] = n
    end
end

--- 1F1B (Narayanan et al., 2019); with repeats, interleaved 1F1B (Narayanan et al., 2021), in Megatron-LM's order.
---@param s mx.PipelineSchedule
kinds["1f1b"] = function(s)
    local n = s.repeats * s.microbatches
    if s.repeats > 1 and s.microbatches % s.stages ~= 0 then
        util.refuse("num_pipeline_microbatches=%d: the schedule 1f1b with num_pipeline_repeats=%d needs a multiple of "
            .. "the %d stages; use gpipe, or change one of them", s.microbatches, s.repeats, s.stages)
    end
    for stage = 1, s.stages do
        local after = s.stages - stage
        local ahead = s.repeats == 1 and after or 2 * after + (s.repeats - 1) * s.stages
        s.actions[stage] = list_of(s, stage, math.min(ahead, n), s.stages)
        s.limits[stage] = math.min(n, ahead + 1)
    end
end

-- ---- split backward passes ----

-- Actions of all stages. Whenever a stage is free, it takes the first that it can of: a
-- backward pass, a forward pass within the limits (in flight: forward passes that wait for B; pending: for W),
-- gradients of weights. Messages take no time.
local function fill(s, costs, in_flight, pending)
    local n, left, time = s.microbatches, 3 * s.stages * s.microbatches, 0
    local actions, counts, free, stops = {}, {}, {}, {}
    for stage = 1, s.stages do
        actions[stage], counts[stage], free[stage] = {}, { F = 0, B = 0, W = 0 }, 0
        stops[stage] = { F = {}, B = {}, W = {} }
    end
    local function came(what, stage, micro) -- what a stage needs of a neighbour, at this time
        return not stops[stage] or (stops[stage][what][micro] or math.huge) <= time
    end
    local function choose(stage)
        local count = counts[stage]
        if count.B < count.F and came("B", stage + 1, count.B + 1) then
            return "B"
        elseif count.F < n and count.F - count.B < in_flight[stage] and count.F - count.W < pending[stage]
            and came("F", stage - 1, count.F + 1) then
            return "F"
        end
        return count.W < count.B and "W" or nil
    end
    while left > 0 do
        local next_time = math.huge
        for stage = 1, s.stages do
            local what = free[stage] <= time and choose(stage)
            if what then
                local micro = counts[stage][what] + 1
                counts[stage][what], left, free[stage] = micro, left - 1, time + costs[stage][what]
                stops[stage][what][micro] = free[stage]
                table.insert(actions[stage], { what = what, chunk = stage, micro = micro })
            end
            next_time = free[stage] > time and math.min(next_time, free[stage]) or next_time
        end
        time = next_time
    end
    return actions
end

local function equal_costs(s)
    local costs = {}
    for stage = 1, s.stages do
        costs[stage] = { F = 1, B = 1, W = 1 }
    end
    return costs
end

-- The limits of ZB-H1, plus `more`, at most `most`: in flight as 1F1B; pending 2 stages - stage, which is the least
-- with which no time is lost if all actions take equally long.
local function limits_of(s, more, most)
    local in_flight, pending = {}, {}
    for stage = 1, s.stages do
        in_flight[stage] = math.min(s.microbatches, most, s.stages - stage + 1 + more)
        pending[stage] = math.min(s.microbatches, most, 2 * s.stages - stage + more)
    end
    return in_flight, pending
end

local function refuse_repeats(s)
    if s.repeats > 1 then
        util.refuse("pipeline_schedule=%s: num_pipeline_repeats=%d, expected 1", s.kind, s.repeats)
    end
end

--- ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): the gradients of weights fill the waiting times, for
--- actions that take equally long.
---@param s mx.PipelineSchedule
function kinds.zb_h1(s)
    refuse_repeats(s)
    s.limits, s.pending = limits_of(s, 0, math.huge)
    s.actions = fill(s, equal_costs(s), s.limits, s.pending)
end

--- The automatic schedule of the same paper: of several schedules within a limit of pending microbatches, the one that
--- takes the least time by the expected costs. With a limit of 1 x stages it is ZB-1p, with 2 x stages ZB-2p. Stages
--- may be unequal. Then more microbatches in flight keep the others busy while the last stage computes the loss, and
--- pending gradients of weights let it pass gradients on earlier.
---@param s mx.PipelineSchedule
---@param o {pending: integer?, costs: mx.PipelineCosts[]?}
---@param duration fun(s: mx.PipelineSchedule): number of its actions by its costs
function kinds.zb(s, o, duration)
    refuse_repeats(s)
    local equal, most = equal_costs(s), o.pending or 2 * s.stages
    s.costs = o.costs or equal
    local best, least
    for _, more in ipairs({ 0, 1, most }) do -- the first of equally short ones keeps the fewest microbatches
        for _, costs in ipairs({ equal, s.costs }) do
            s.limits, s.pending = limits_of(s, more, most)
            s.actions = fill(s, costs, s.limits, s.pending)
            local takes = duration(s)
            if not best or takes < least then
                best, least = { s.actions, s.limits, s.pending }, takes
            end
        end
    end
    s.actions, s.limits, s.pending = table.unpack(best)
end

return kinds
