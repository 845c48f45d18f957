--- A step of a pipeline on simulated chips, in two parts.
--
-- First, one chip of each kind of stage runs the passes of its chunks for a few microbatches, operation by operation,
-- with its collectives. Stages with the same layers and tables are of one kind. Then the schedule is replayed with the
-- seconds of these passes and of the messages (schedule.replay). So the time of a simulation does not depend on the
-- number of chips, and hardly on those of stages and microbatches.
--
-- A message does not share links with collectives, and the weights of a chunk's first layer are not prefetched during
-- the pass of another chunk.

local mx = require "mx"
local driver = require "mx.pipeline.driver"
local schedule = require "mx.pipeline.schedule"
local util = require "mx.util"

local simulate = {}

local function bytes_of(tensors)
    local bytes = 0
    for _, t in pairs(tensors) do
        bytes = bytes + t:bytes()
    end
    return bytes
end

-- Stages of the same kind have the same key.
local function key_of(own, shape, stage)
    local words = {}
    for i, chunk in ipairs(schedule.chunks_of(own.schedule, stage)) do
        local range = own.ranges[chunk]
        words[i] = ("%s %d %d %s"):format(chunk == 1, range.last - range.first, (range.first - 1) % #shape.blocks,
            chunk == own.chunks)
    end
    return table.concat(words, ",")
end

-- ---- one chip ----

-- What fn costs: seconds, parts of the time (mx.sim_times), by how much it changes the memory in use (bytes), and how
-- much it needs besides while it runs.
local function measure(fn)
    local start, in_use = mx.now(), mx.memory().in_use
    mx.sim_times(true)
    mx.reset_peak()
    fn()
    return {
        seconds = mx.now() - start, times = mx.sim_times(), bytes = mx.memory().in_use - in_use,
        peak = mx.memory().peak - in_use,
    }
end

-- The passes that are measured: each kind after each kind. Whole backward passes; passes in two halves.
local WHOLE = { "F", "F", "B", "F", "B", "F", "F", "B", "B", "B" }
local SPLIT = {
    "F", "F", "B", "W", "F", "B", "W", "B", "F", "F", "F", "W", "F", "B", "B", "W", "W", "B", "B", "W", "W",
}

-- The kind of a pass. The first backward passes of a chunk are kinds of their own: there are no gradients yet that they
-- add to, for which they would have to wait for collectives.
local function kind_of(what, is_first)
    return what ~= "F" and is_first and what .. "1" or what
end

-- The kind of an action. A stage's first microbatch of layers outside the pipeline has the number of the stage.
local function kind_of_action(s, action)
    return kind_of(action.what, action.micro <= (action.chunk == schedule.outside(s) and s.stages or 1))
end

-- The figures of a pass of this kind after one of the kind `before`, or of those most like it.
local function figures_of(one, kind, before)
    return one[kind .. " " .. before] or one[kind .. " " .. before:sub(1, 1)] or one[kind]
end

-- Passes of one chunk of this chip's stage. Collectives of a pass may delay the next one, so a pass has other figures
-- after a pass of another kind. Collects them in `stage`.
local function measure_chunk(model, batch, chunk, chunks, stage)
    local parallel, B, S = model.parallel, batch.tokens:size(1), batch.tokens:size(2)
    local sizes = { B, S // parallel.mesh:size(parallel.sequence), parallel.features }
    local passes, micros, weights = stage.stages.schedule.splits and SPLIT or WHOLE, {}, {}
    for _, what in ipairs(passes) do
        if what == "F" then
            micros[#micros + 1], weights[#weights + 1] = batch, 1
        end
    end
    local pass = driver.new(model, micros, weights, 1, true)
    local run = {
        F = function(micro)
            local x = chunk > 1 and mx.zeros(sizes, model.shape.dtype) or nil
            pass:forward(chunk, micro, x):release() -- the message has sent it
        end,
        B = function(micro)
            local dy = chunk < chunks and mx.zeros(sizes, model.shape.dtype) or nil
            local dx = pass:backward(chunk, micro, dy)
            if dx then
                dx:release()
            end
        end,
        W = function(micro) pass:gradients_of_weights(chunk, micro) end,
    }
    local one, counts, before = {}, { F = 0, B = 0, W = 0 }, nil
    for _, what in ipairs(passes) do
        local micro = counts[what] + 1
        counts[what] = micro
        local kind, figures = kind_of(what, micro == 1), measure(function() run[what](micro) end)
        if what ~= "F" and micro == #micros then -- also adds gradients over ranks
            stage.reduced_s = stage.reduced_s + math.max(0, figures.seconds - figures_of(one, what, before).seconds)
        elseif before then -- the first pass of all starts gathers that later ones find started
            one[kind .. " " .. before], one[kind] = figures, figures
        end
        before = kind
    end
    table.insert(stage.chunks, one)
end

-- Seconds of messages of this size from the first stage, by the stage of the other end.
local function measure_messages(like, own)
    local seconds = {}
    for other = 1, own.index == 0 and own.n - 1 or 0 do
        seconds[other] = measure(function()
            mx.recv(like, { axis = "stage", from = other }):wait()
        end).seconds
    end
    return seconds
end

-- What a stage sends of a microbatch of B sequences.
local function message_of(model, B, S)
    local parallel = model.parallel
    return mx.zeros({ B, S // parallel.mesh:size(parallel.sequence), parallel.features }, model.shape.dtype)
end

-- A microbatch of B sequences.
local function batch_of(model, B, S)
    return model.parallel:batch_part { tokens = mx.zeros({ B, S }, "i32"), targets = mx.zeros({ B, S }, "i32") }
end

-- Forward passes of evaluation: seconds of each chunk of this chip's stage, and of messages. The second pass of a chunk
-- starts like all later ones.
local function measure_evaluation(config, model)
    local own, result = model.parallel.stages, { chunks = {} }
    result.sequences = mx.data.evaluation_sequences(config, model.parallel.mesh)
    result.schedule = driver.evaluation(own, result.sequences)
    mx.no_grad(function()
        local step <close> = mx.step()
        local batch = batch_of(model, result.sequences // result.schedule.microbatches, config.max_target_length)
        local B, S = batch.tokens:size(1), batch.tokens:size(2)
        for _, chunk in ipairs(schedule.chunks_of(own.schedule, own.index + 1)) do
            local x = chunk > 1 and message_of(model, B, S) or nil
            local figures
            for _ = 1, 2 do
                figures = measure(function() driver.evaluate_chunk(model, chunk, x, batch) end)
            end
            table.insert(result.chunks, figures)
        end
        result.message_s = measure_messages(message_of(model, B, S), own)
    end)
    return result
end

-- Simulates the stage of the started chip. Two steps: the second starts like all later ones.
local function measure_stage(config, shape, o)
    local mesh = mx.train.mesh(config)
    local model = mx.models.new(shape, mesh, config)
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    local own, weights = model.parallel.stages, bytes_of(model.params)
    local rows = mx.data.sequences(config, mesh)
    local b = rows // own.microbatches
    if rows % own.microbatches ~= 0 then
        util.refuse("per_device_batch_size: the ranks of a pipeline have %d sequences together, which do not make "
            .. "num_pipeline_microbatches = %d equal microbatches", rows, own.microbatches)
    end
    local tokens = rows * config.max_target_length * config.gradient_accumulation_steps
    local stage = { weights = weights, stages = own, batches = 8 * tokens }
    for _ = 1, 2 do
        local step <close> = mx.step()
        stage.chunks, stage.reduced_s = {}, 0
        local batch = batch_of(model, b, config.max_target_length)
        local gathered <close> = model.parallel:gather_once(model.params, 1)
        stage.at_rest = mx.memory().in_use
        for _, chunk in ipairs(schedule.chunks_of(own.schedule, own.index + 1)) do
            measure_chunk(model, batch, chunk, own.chunks, stage)
        end
        stage.shared = measure(function()
            if gathered then
                gathered:scatter()
            end
            model.parallel:share_copies(model.params)
        end)
        stage.update = measure(function() optimizer:step() end)
        local like = message_of(model, b, batch.tokens:size(2))
        stage.message_bytes, stage.message_s = like:bytes(), measure_messages(like, own)
    end
    stage.evaluation = config.eval_interval > 0 and measure_evaluation(config, model) or nil
    stage.states = mx.memory().in_use - weights
    stage.gradients = 0
    for _, t in pairs(optimizer.params) do
        stage.gradients = stage.gradients + t:numel() * 4
    end
    stage.staged = o.staged and mx.checkpoint.staged_bytes {
        params = model.params, parallel = model.parallel, optimizer = optimizer,
    } or nil
    return stage
end

-- ---- all stages ----

-- The memory of a stage at its peak, and what it then keeps of microbatches: their number, and bytes. `of` gives the
-- figures of the chunk of an action.
local function peak_of(stage, s, actions, of)
    local now, peak, flying, kept = stage.at_rest, 0, 0, 0
    local at_peak, before
    for _, action in ipairs(actions) do
        local one, kind = of(action.chunk, action.micro), kind_of_action(s, action)
        local figures = figures_of(one, kind, before or "F")
        if now + figures.peak > peak then
            peak, at_peak = now + figures.peak, { count = flying, bytes = kept }
        end
        now, kept, before = now + figures.bytes, kept + one[action.what].bytes, kind
        flying = flying + (action.what == "F" and 1 or action.what == "B" and -1 or 0)
    end
    -- Besides: the batch, what a message looks like, and two messages that have come early.
    return peak + stage.batches + 3 * stage.message_bytes, at_peak
end

local function add(sum, times, n)
    for name, value in pairs(times) do
        sum[name] = (sum[name] or 0) + value * n
    end
end

-- Seconds of a message between two stages, from those that leave stage 0: stages of a slice are neighbours, or the
-- first and the last.
local function message_time(mesh, message_s)
    local inside = mesh.layout.ici.stage
    return function(m)
        local from, to = m.from - 1, m.to - 1
        return message_s[from // inside ~= to // inside and inside or math.abs(from - to)]
    end
end

-- The forward passes of a batch of evaluation on all stages. place_of(chunk, micro): the stage of its figures, and
-- which of its chunks it is.
local function replay_evaluation(mesh, list, place_of)
    local one = list[1].evaluation
    return {
        sequences = one.sequences,
        replay = schedule.replay(one.schedule, {
            F = function(chunk, micro)
                local stage, place = place_of(chunk, micro)
                return list[stage].evaluation.chunks[place].seconds
            end,
            message = message_time(mesh, one.message_s),
        }),
    }
end

--- Simulates a step.
---@param config table
---@param shape table
---@param start fun(rank: integer) starts the pod as seen by this rank
---@param o {staged: boolean}
---@return table result as plan.simulate has them, of the stage with the largest memory; also pipeline: {schedule,
---        replay, times (of the replay), peaks (bytes of each stage), gradients_s (until all stages have the gradients
---        of a step), evaluation (if there is one: sequences and replay of its batches)}
function simulate.step(config, shape, start, o)
    start(0)
    local mesh, kinds, list = mx.mesh.plan(config, mx.ranks()), {}, {}
    local own = mx.parallel.stages_of(mesh, shape, config)
    for stage = 1, own.n do
        local key = key_of(own, shape, stage)
        if not kinds[key] then
            start(mx.mesh.rank_at(mesh.layout, { stage = stage - 1 }))
            kinds[key] = measure_stage(config, shape, o)
        end
        list[stage] = kinds[key]
    end
    local s, places = own.schedule, {} -- places: of a chunk among those of its stage
    for stage = 1, own.n do
        for place, chunk in ipairs(schedule.chunks_of(s, stage)) do
            places[chunk] = place
        end
    end
    local function place_of(chunk, micro)
        return schedule.stage_of(s, chunk, micro), places[chunk]
    end
    local function chunk_of(chunk, micro) -- of the stage of its kind that was measured
        local stage, place = place_of(chunk, micro)
        return list[stage].chunks[place]
    end
    local passes = config.gradient_accumulation_steps
    local message = message_time(mesh, list[1].message_s)
    local function seconds_of(what)
        return function(chunk, micro, before)
            local after = before and kind_of_action(s, before) or "F"
            local kind = kind_of_action(s, { what = what, chunk = chunk, micro = micro })
            return figures_of(chunk_of(chunk, micro), kind, after).seconds
        end
    end
    local times = { F = seconds_of "F", B = seconds_of "B", W = seconds_of "W", message = message }
    local replay = schedule.replay(s, times)
    local pipeline = { schedule = s, replay = replay, times = times, peaks = {}, gradients_s = 0 }
    pipeline.evaluation = list[1].evaluation and replay_evaluation(mesh, list, place_of)
    local result = { step_s = 0, peak_bytes = 0, pipeline = pipeline }
    local most = 0
    for stage, kind in ipairs(list) do
        local actions = replay.actions[stage]
        local stop = actions[#actions].stop + (passes - 1) * replay.duration
        stop = stop + kind.reduced_s + kind.shared.seconds
        pipeline.gradients_s = math.max(pipeline.gradients_s, stop)
        result.step_s = math.max(result.step_s, stop + kind.update.seconds)
        local peak, at_peak = peak_of(kind, s, s.actions[stage], chunk_of)
        pipeline.peaks[stage] = peak
        if peak > result.peak_bytes then
            result.peak_bytes, result.weights, result.states = peak, kind.weights, kind.states
            result.gradients, result.batches, result.staged = kind.gradients, kind.batches, kind.staged
            result.kept = { { name = "microbatches in flight", bytes = at_peak.bytes, count = at_peak.count } }
        end
        if replay.busy[stage] > most then
            most, result.times = replay.busy[stage], {}
            for i, chunk in ipairs(schedule.chunks_of(s, stage)) do
                local micros = s.microbatches // (chunk == schedule.outside(s) and s.stages or 1)
                for _, what in ipairs(s.splits and { "F", "B", "W" } or { "F", "B" }) do
                    add(result.times, kind.chunks[i][what].times, micros * passes)
                end
            end
            add(result.times, kind.shared.times, 1)
            add(result.times, kind.update.times, 1)
        end
    end
    result.times.bubble_s = replay.duration * passes * (1 - most)
    return result
end

return simulate
