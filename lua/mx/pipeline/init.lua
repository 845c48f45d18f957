--- mx.pipeline: layers split over the mesh axis `stage`. Schedules are data (schedule.lua), can be drawn
--- (chart.lua), and train a model (driver.lua).

local chart = require "mx.pipeline.chart"
local mx = require "mx"
local schedule = require "mx.pipeline.schedule"
local util = require "mx.util"

local pipeline = {
    schedule = schedule, kinds = require "mx.pipeline.kinds", costs = require "mx.pipeline.costs",
    driver = require "mx.pipeline.driver", chart = chart,
}

-- What each stage keeps at most: chunks in flight, and with split backward passes those that wait for W.
local function notes_of(s)
    local pending, notes = schedule.pending(s), {}
    for stage, most in ipairs(schedule.in_flight(s)) do
        notes[stage] = ("%d in flight%s"):format(most, s.splits and (", %d pending"):format(pending[stage]) or "")
    end
    return notes
end

--- A picture of a schedule for equal layers, with its bubble, and in each row the largest number of chunks in
--- flight and pending. Not collective.
---@param s mx.PipelineSchedule
---@return string
function pipeline.draw(s)
    local replay = schedule.expected(s)
    return ("%s: %d stages, %d microbatches%s: %.1f %% bubble\n%s"):format(s.kind or "schedule", s.stages,
        s.microbatches, s.repeats > 1 and (", %d chunks a stage"):format(s.repeats) or "", 100 * replay.bubble,
        chart.draw(replay, notes_of(s), schedule.outside(s)))
end

-- A replay under a line of text.
local function picture(s, replay, notes)
    return ("%s: %d stages, %d microbatches%s: %.1f %% bubble, %.4g s\n%s"):format(s.kind or "schedule", s.stages,
        s.microbatches, s.repeats > 1 and (", %d chunks a stage"):format(s.repeats) or "", 100 * replay.bubble,
        replay.duration, chart.draw(replay, notes, schedule.outside(s)))
end

--- A picture of a simulated pipeline, with the memory of each stage at its peak. Not collective.
---@param simulated table of mx.pipeline.simulate: schedule, replay, peaks
---@return string
function pipeline.text(simulated)
    local s = simulated.schedule
    local notes = notes_of(s)
    for stage, peak in ipairs(simulated.peaks) do
        notes[stage] = ("%s, %s"):format(notes[stage], util.bytes(peak))
    end
    return picture(s, simulated.replay, notes)
end

--- A picture of the last training pass of a model's stages: on simulated chips as they are replayed, otherwise as
--- measured on the first rank of each stage, from the start of its pass. Collective.
---@param model mx.Decoder
---@return string? nil if there was no pass
function pipeline.last(model)
    local own, layout = model.parallel.stages, model.parallel.mesh.layout
    if mx.is_simulated() then
        return pipeline.text(mx.sim.now.pipeline)
    elseif not own.times.actions then
        return nil
    end
    local replay, sum = { actions = {}, duration = 0 }, 0
    for stage = 1, own.n do
        local root = mx.mesh.rank_at(layout, { stage = stage - 1 })
        local mine = mx.rank() == root and mx.io.json_encode(mx.io.array(own.times.actions)) or nil
        replay.actions[stage] = mx.io.json_decode(mx.share_text(mine, root))
        for _, action in ipairs(replay.actions[stage]) do
            sum, replay.duration = sum + action.stop - action.start, math.max(replay.duration, action.stop)
        end
    end
    replay.bubble = 1 - sum / (own.n * replay.duration)
    return picture(own.schedule, replay)
end

--- The chart of scripts/pipeline.lua.
---@param words string[] stages=, microbatches=, repeats=, outside= and kinds of schedules
---@return string
function pipeline.report(words)
    local sizes, kinds, outside = { stages = 4, microbatches = 8, repeats = 1 }, {}, nil
    for _, word in ipairs(words) do
        local key, value = word:match("^(%l+)=(%d+)$")
        if sizes[key] then
            sizes[key] = math.tointeger(tonumber(value))
        elseif word == "outside=first" or word == "outside=last" then
            outside = word:match("=(.*)")
        elseif util.contains(schedule.KINDS, word) then
            kinds[#kinds + 1] = word
        else
            local names = { "stages", "microbatches", "repeats", "outside", table.unpack(schedule.KINDS) }
            local near = util.nearest(word:match("^[^=]*"), names)
            util.refuse("'%s' is unknown%s; expected stages=N, microbatches=N, repeats=N, outside=first "
                .. "or last, and kinds: %s", word,
                near and (", did you mean '%s'?"):format(near) or "", table.concat(schedule.KINDS, ", "))
        end
    end
    if #kinds == 0 then
        kinds = sizes.repeats > 1 and { "gpipe", "1f1b", "zb_h1" } or schedule.KINDS
    end
    local pictures = {}
    for i, kind in ipairs(kinds) do
        pictures[i] = pipeline.draw(schedule.check(schedule.make {
            kind = kind, stages = sizes.stages, microbatches = sizes.microbatches, repeats = sizes.repeats,
            outside = outside,
        }))
    end
    return table.concat(pictures, "\n\n")
end

return pipeline
