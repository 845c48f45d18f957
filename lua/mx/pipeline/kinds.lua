--- The kinds of pipeline schedules: each function sets the actions of all stages, and the limits of what they keep.
--- schedule.make calls them and adds the messages.

local play = require "mx.pipeline.play"
local util = require "mx.util"

local kinds = {}

kinds.NAMES = { "gpipe", "1f1b", "zb_h1", "zb" }

--- Whether a kind splits backward passes into B and W.
---@param kind string
---@return boolean
function kinds.splits(kind)
    return kind == "zb_h1" or kind == "zb"
end

-- Sets the limits of all stages: of chunks in flight, and if backward passes are split of those that wait for W.
local function set_limits(s, in_flight, pending)
    local more, more_pending = play.limits(s, in_flight[1])
    s.limits, s.pending = {}, pending and {} or nil
    for stage = 1, s.stages do
        s.limits[stage] = in_flight[stage] + more
        if pending then
            s.pending[stage] = pending[stage] + more_pending
        end
    end
end

-- Of schedules that make(i) makes for i = 0, 1, ... most, keeps the first of the shortest, by expected costs.
local function keep_shortest(s, duration, most, make)
    local best, least
    for i = 0, most do
        make(i)
        local takes = duration(s)
        if not best or takes < least then
            best, least = { s.actions, s.limits, s.pending }, takes
        end
    end
    s.actions, s.limits, s.pending = table.unpack(best, 1, 3)
end

-- Layers that follow the pipeline delay the backward passes of its last stage. This many further microbatches in flight
-- may keep the stages busy meanwhile.
local MOST_FURTHER = 4

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
    local list, n, before = {}, s.repeats * s.microbatches, play.first(s) - 1
    local function add(what, k)
        local chunk, micro = nth(s, stage, k, group, what == "B")
        list[#list + 1] = { what = what, chunk = chunk + before, micro = micro }
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

-- Makes a schedule of lists, with `ahead` forward passes of each stage before its first backward pass.
local function make_of_lists(s, ahead, group)
    local in_flight, at = {}, {}
    s.actions = {}
    for stage = 1, s.stages do
        s.actions[stage] = list_of(s, stage, ahead[stage], group)
        in_flight[stage], at[stage] = math.min(s.repeats * s.microbatches, ahead[stage] + 1), 1
    end
    set_limits(s, in_flight)
    if s.outside then
        local lists = s.actions
        s.actions = play.actions(s, function(stage, ready)
            local action = lists[stage][at[stage]]
            if action and ready(action.what, action.chunk, action.micro) then
                return action.what, action.chunk, action.micro
            end
            return nil
        end, function(stage) at[stage] = at[stage] + 1 end)
    end
end

--- GPipe (Huang et al., 2019); with repeats, MaxText's circular pipeline: all microbatches pass a chunk one after the
--- other.
---@param s mx.PipelineSchedule
function kinds.gpipe(s)
    local ahead = {}
    for stage = 1, s.stages do
        ahead[stage] = s.repeats * s.microbatches
    end
    make_of_lists(s, ahead, s.microbatches)
end

-- Repeats visit the chunks of a stage in groups of microbatches.
local function check_groups(s)
    if s.repeats > 1 and s.microbatches % s.stages ~= 0 then
        util.refuse("num_pipeline_microbatches=%d: the schedule %s with num_pipeline_repeats=%d needs a multiple of "
            .. "the %d stages; use gpipe, or change one of them", s.microbatches, s.kind, s.repeats, s.stages)
    end
end

--- 1F1B (Narayanan et al., 2019); with repeats, interleaved 1F1B (Narayanan et al., 2021), in Megatron-LM's order, also
--- with layers outside the pipeline: they interrupt the stages at different times, and each stage is two microbatches
--- ahead of the next one, which then need not wait.
---@param s mx.PipelineSchedule
---@param duration fun(s: mx.PipelineSchedule): number of its actions by expected costs
kinds["1f1b"] = function(s, _, duration)
    check_groups(s)
    local simple = s.repeats == 1 and not s.outside
    keep_shortest(s, duration, s.outside and MOST_FURTHER or 0, function(more)
        local ahead = {}
        for stage = 1, s.stages do
            local after = s.stages - stage
            ahead[stage] = math.min(s.repeats * s.microbatches,
                (simple and after or 2 * after + (s.repeats - 1) * s.stages) + more)
        end
        make_of_lists(s, ahead, s.stages)
    end)
end

-- ---- split backward passes ----

-- Makes a schedule within limits of the layers in the pipeline (in flight: forward passes that wait for B; pending: for
-- W). Whenever a stage is free, it takes the first that it can of: a backward pass, a forward pass, gradients of
-- weights. Each of them in the order of `nth`, in groups of as many microbatches as there are stages.
local function fill(s, in_flight, pending)
    local n, before, counts = s.repeats * s.microbatches, play.first(s) - 1, {}
    for stage = 1, s.stages do
        counts[stage] = { F = 0, B = 0, W = 0 }
    end
    local function choose(stage, ready)
        local count = counts[stage]
        local function next_of(what)
            local chunk, micro = nth(s, stage, count[what] + 1, s.stages, what ~= "F")
            if ready(what, chunk + before, micro) then
                return what, chunk + before, micro
            end
            return nil
        end
        local what, chunk, micro
        if count.B < count.F then
            what, chunk, micro = next_of "B"
        end
        if not what and count.F < n and count.F - count.B < in_flight[stage] and count.F - count.W < pending[stage] then
            what, chunk, micro = next_of "F"
        end
        if not what and count.W < count.B then
            what, chunk, micro = next_of "W"
        end
        return what, chunk, micro
    end
    set_limits(s, in_flight, pending)
    s.actions = play.actions(s, choose, function(stage, what) counts[stage][what] = counts[stage][what] + 1 end)
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
---@param duration fun(s: mx.PipelineSchedule): number of its actions by expected costs
function kinds.zb_h1(s, _, duration)
    refuse_repeats(s)
    keep_shortest(s, duration, s.outside and MOST_FURTHER or 0, function(more)
        fill(s, limits_of(s, more, math.huge))
    end)
end

--- The automatic schedule of the same paper: of several schedules within a limit of pending microbatches, the one that
--- takes the least time by the expected costs. With a limit of 1 x stages it is ZB-1p, with 2 x stages ZB-2p. Stages
--- may be unequal. Then more microbatches in flight keep the others busy while the last stage computes the loss, and
--- pending gradients of weights let it pass gradients on earlier.
---@param s mx.PipelineSchedule
---@param o {pending: integer?, costs: mx.PipelineCosts[]?}
---@param duration fun(s: mx.PipelineSchedule): number of its actions by expected costs
function kinds.zb(s, o, duration)
    refuse_repeats(s)
    local most = o.pending or 2 * s.stages
    -- The first of equally short ones keeps the fewest microbatches.
    local further = s.outside and { 0, 1, 2, 3, MOST_FURTHER, most } or { 0, 1, most }
    keep_shortest(s, duration, 2 * #further - 1, function(i)
        local in_flight, pending = limits_of(s, further[i // 2 + 1], most)
        s.costs = i % 2 == 1 and o.costs or nil
        fill(s, in_flight, pending)
        s.costs = o.costs
    end)
end

return kinds
