--- Every pass of every stage of a simulated pipeline, one by one, with the messages between the stages: a check of
--- simulate.lua, which simulates a few passes and replays the schedule. One chip of each stage exists at the same time.
--- Each has its own clock, and waits for the messages of the others. A message takes the sender's links, where it and
--- collectives slow each other down.

local driver = require "mx.pipeline.driver"
local mx = require "mx"
local schedule = require "mx.pipeline.schedule"

local exact = {}

-- Makes the chip, model and optimizer of each stage.
local function start(config)
    local settings, list = mx.sim.settings(config), {}
    mx.sim.start(config.hardware, config.num_slices, settings)
    local layout = mx.mesh.plan(config, mx.ranks()).layout
    for stage = 1, layout.sizes.stage do
        local rank = mx.mesh.rank_at(layout, { stage = stage - 1 })
        local one = { chip = 0 }
        if stage > 1 then
            mx.sim_use(0) -- rank 0 reads the hardware file
            one.chip = mx.sim.add(config.hardware, config.num_slices, settings, rank)
        end
        one.model = mx.models.new(config, mx.train.mesh(config))
        one.optimizer = mx.optim.new(config, one.model.params, one.model.parallel)
        list[stage] = one
    end
    return list
end

-- Begins a step of a stage at this time.
local function begin(config, one, time)
    local own, model = one.model.parallel.stages, one.model
    local rows, S, weights = mx.data.sequences(config, model.parallel.mesh), config.max_target_length, {}
    mx.sim_use(one.chip)
    mx.sim_wait_until(time)
    mx.reset_peak()
    local tokens, targets = mx.zeros({ rows, S }, "i32"), mx.zeros({ rows, S }, "i32")
    local batch = model.parallel:batch_part { tokens = tokens, targets = targets }
    for i = 1, own.microbatches do
        weights[i] = 1 / own.microbatches
    end
    one.pass = driver.new(model, driver.split({ batch }, own.microbatches), weights, 1, true)
    one.lane, one.arrived, one.made, one.actions = time, {}, {}, {}
end

local function key(what, chunk, micro)
    return ("%s %d.%d"):format(what, chunk, micro)
end

-- Runs an action of a stage when what it needs has arrived.
local function act(one, s, action, time)
    local what, chunk, micro, pass = action.what, action.chunk, action.micro, one.pass
    mx.sim_use(one.chip)
    mx.sim_wait_until(one.arrived[key(what, chunk, micro)] or 0)
    local begun, y = mx.now(), nil
    local function input() -- a message of another stage, or what this one has made
        return mx.zeros(pass.like:size(), pass.like:dtype())
    end
    if what == "F" then
        y = pass:forward(chunk, micro, chunk > 1 and input() or nil)
    elseif what == "B" then
        y = pass:backward(chunk, micro, chunk < schedule.chunks(s) and input() or nil)
    else
        pass:gradients_of_weights(chunk, micro)
    end
    if y and schedule.message_of(s, action) then
        one.made[key(what, chunk, micro)] = y
    elseif y then
        y:release()
    end
    local stop = mx.now() - time
    table.insert(one.actions, { what = what, chunk = chunk, micro = micro, start = begun - time, stop = stop })
end

-- Sends a message: it starts when the sender's links and both stages are free.
local function pass_on(list, m)
    local from, to = list[m.from], list[m.to]
    local what = m.what == "activation" and "F" or "B"
    mx.sim_use(from.chip)
    local before = mx.sim_times()
    local made = from.made[key(what, m.what == "activation" and m.chunk - 1 or m.chunk + 1, m.micro)]
    mx.send(made, { axis = "stage", to = m.to - 1 })
    made:release()
    local after = mx.sim_times()
    local takes = after.ici_busy_s - before.ici_busy_s + after.dcn_busy_s - before.dcn_busy_s
    local arrival = math.max(after.arrival_s, from.lane + takes, to.lane + takes)
    from.lane, to.lane, to.arrived[key(what, m.chunk, m.micro)] = arrival, arrival, arrival
end

-- One step of all stages, from this time on.
local function run(config, list, s, time)
    local step <close> = mx.step()
    for _, one in ipairs(list) do
        begin(config, one, time)
    end
    schedule.walk(s, function(stage, action) act(list[stage], s, action, time) end, function(m) pass_on(list, m) end)
    for _, one in ipairs(list) do
        mx.sim_use(one.chip)
        one.optimizer:step()
        one.peak = mx.memory().peak
    end
end

--- Simulates a step like simulate.step. The second of two is meant, which starts like all later ones.
---@param config table
---@return mx.PipelineReplay without arrivals; also peaks: bytes of each stage
function exact.step(config)
    local list = start(config)
    local s, time = list[1].model.parallel.stages.schedule, 0
    for _ = 1, 2 do
        for _, one in ipairs(list) do
            mx.sim_use(one.chip)
            time = math.max(time, mx.now())
        end
        run(config, list, s, time)
    end
    local result, sum = { duration = 0, busy = {}, actions = {}, peaks = {} }, 0
    for stage, one in ipairs(list) do
        result.actions[stage], result.peaks[stage], result.busy[stage] = one.actions, one.peak, 0
        for _, action in ipairs(one.actions) do
            result.busy[stage] = result.busy[stage] + action.stop - action.start
            result.duration = math.max(result.duration, action.stop)
        end
        sum = sum + result.busy[stage]
    end
    for stage in ipairs(list) do
        result.busy[stage] = result.busy[stage] / result.duration
    end
    result.bubble = 1 - sum / (s.stages * result.duration)
    mx.sim.stop()
    return result
end

return exact
