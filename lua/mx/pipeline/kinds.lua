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

-- For how many chunks each stage keeps activations: those of 1F1B, and `more`. With repeats or layers outside the
-- pipeline, each stage is two microbatches ahead of the next one.
local function in_flight_of(s, more)
    local list, simple = {}, s.repeats == 1 and (s.splits or not s.outside)
    for stage = 1, s.stages do
        local after = s.stages - stage
        list[stage] = math.min(s.repeats * s.microbatches,
            (simple and after or 2 * after + (s.repeats - 1) * s.stages) + 1 + more)
    end
    return list
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

-- The list of a stage: forward passes until `most` chunks are in flight, then one backward and one forward pass in
-- turn, then the other backward passes. In GPipe all chunks are in flight.
local function list_of(s, stage, most, group)
    local list, n, before = {}, s.repeats * s.microbatches, play.first(s) - 1
    local function add(what, k)
        local chunk, micro = nth(s, stage, k, group, what == "B")
        list[#list + 1] = { what = what, chunk = chunk + before, micro = micro }
    end
    for k = 1, n + most - 1 do
        if k <= n then
            add("F", k)
        end
        if k >= most then
            add("B", k - most + 1)
        end
    end
    return list
end

-- Makes a schedule of such lists.
local function make_of_lists(s, in_flight, group)
    local lists, at = {}, {}
    for stage = 1, s.stages do
        lists[stage], at[stage] = list_of(s, stage, in_flight[stage], group), 1
    end
    set_limits(s, in_flight)
    s.actions = not s.outside and lists or play.actions(s, function(stage, ready)
        local action = lists[stage][at[stage]]
        if action and ready(action.what, action.chunk, action.micro) then
            return action.what, action.chunk, action.micro
        end
        return nil
    end, function(stage) at[stage] = at[stage] + 1 end)
end

--- GPipe (Huang et al., 2019); with repeats, MaxText's circular pipeline: all microbatches pass a chunk one after the
--- other.
---@param s mx.PipelineSchedule
function kinds.gpipe(s)
    make_of_lists(s, in_flight_of(s, math.huge), s.microbatches)
end

-- Repeats visit the chunks of a stage in groups of microbatches.
local function check_groups(s)
    if s.repeats > 1 and s.microbatches % s.stages ~= 0 then
        util.refuse("num_pipeline_microbatches=%d: the schedule %s with num_pipeline_repeats=%d needs a multiple of "
            .. "the %d stages; use gpipe, or change one of them", s.microbatches, s.kind, s.repeats, s.stages)
    end
end

--- 1F1B (Narayanan et al., 2019); with repeats, interleaved 1F1B (Narayanan et al., 2021), in Megatron-LM's order. With
--- layers outside the pipeline stages take that order, too: others run these layers at different times, and with one
--- microbatch more a stage need not wait for them.
---@param s mx.PipelineSchedule
---@param duration fun(s: mx.PipelineSchedule): number of its actions by expected costs
kinds["1f1b"] = function(s, _, duration)
    check_groups(s)
    keep_shortest(s, duration, s.outside and MOST_FURTHER or 0, function(more)
        make_of_lists(s, in_flight_of(s, more), s.stages)
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

-- For how many chunks each stage keeps the inputs of products, with so many in flight: the least with which no time is
-- lost if all actions take equally long.
local function pending_of(s, in_flight)
    local list = {}
    for stage = 1, s.stages do
        list[stage] = math.min(s.repeats * s.microbatches, in_flight[stage] + s.stages - 1)
    end
    return list
end

--- ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): the gradients of weights fill the waiting times, for
--- actions that take equally long. With repeats the same is done to interleaved 1F1B.
---@param s mx.PipelineSchedule
---@param duration fun(s: mx.PipelineSchedule): number of its actions by expected costs
function kinds.zb_h1(s, _, duration)
    check_groups(s)
    keep_shortest(s, duration, s.outside and MOST_FURTHER or 0, function(more)
        local in_flight = in_flight_of(s, more)
        fill(s, in_flight, pending_of(s, in_flight))
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
    if s.repeats > 1 then
        util.refuse("pipeline_schedule=zb: num_pipeline_repeats=%d, expected 1", s.repeats)
    end
    local most = o.pending or 2 * s.stages
    -- The first of equally short ones keeps the fewest microbatches.
    local further = s.outside and { 0, 1, 2, 3, MOST_FURTHER, most } or { 0, 1, most }
    local function limited(list)
        for stage, n in ipairs(list) do
            list[stage] = math.min(n, most)
        end
        return list
    end
    keep_shortest(s, duration, 2 * #further - 1, function(i)
        local in_flight = in_flight_of(s, further[i // 2 + 1])
        local pending = limited(pending_of(s, in_flight))
        s.costs = i % 2 == 1 and o.costs or nil
        fill(s, limited(in_flight), pending)
        s.costs = o.costs
    end)
end

return kinds
