--- Runs a schedule on the stages of a pipeline: each forward pass of a chunk has a tape of its own, activations and
--- gradients are messages in the schedule's order.
--
-- A stage posts a receive two actions before it needs the value. So the message travels while it computes, and does not
-- hold up those behind it. Messages are posted in the schedule's order only, so stages never block each other
-- (schedule.lua).
--
-- If the schedule splits backward passes, "B" computes the gradients that lead to the input of the chunk's first layer.
-- Those of the weights of products are left to "W" (tape:backward_weights).

local mx = require "mx"
local schedule = require "mx.pipeline.schedule"
local util = require "mx.util"

local driver = {}

-- ---- microbatches ----

-- Sequences row + 1 to row + count of a batch.
local function part_of(batch, row, count, rows)
    local part = { row = row, rows = rows }
    for name, t in util.sorted_pairs(batch) do
        if name ~= "ids" then
            part[name] = mx.narrow(t, { dim = 1, start = row + 1, length = count })
        end
    end
    return part
end

--- Splits each batch into n microbatches along its sequences. Not collective.
---@param batches table[]
---@param n integer
---@return table[] the microbatches of all batches
function driver.split(batches, n)
    local list = {}
    for _, batch in ipairs(batches) do
        local rows = batch.tokens:size(1)
        if rows % n ~= 0 then
            util.refuse("per_device_batch_size: the ranks of a pipeline have %d sequences together, which do not make "
                .. "num_pipeline_microbatches = %d equal microbatches", rows, n)
        end
        for i = 0, n - 1 do
            list[#list + 1] = part_of(batch, i * (rows // n), rows // n, rows)
        end
    end
    return list
end

-- ---- messages ----

---@class mx.PipelinePass one run of a schedule on this stage
---@field own mx.PipelineMessage[] this stage's messages, in order
---@field at integer the next message to post
---@field made table<string, any> values to send: made["activation 2.1"]
---@field came table<string, any> values received
---@field arrivals? table<string, number> on a simulated chip: when values come, in seconds since the start of the pass
---@field seconds number that the stage took, when it has ended; waited_s: of them, waiting for other stages
local Pass = {}
Pass.__index = Pass

local function key(what, chunk, micro)
    return ("%s %d.%d"):format(what, chunk, micro)
end

-- replay: on a simulated chip, of the schedule s.
local function new_pass(model, s, batch, replay)
    local stage, parallel = model.parallel.stages.index + 1, model.parallel
    local self = setmetatable({
        model = model, s = s, stage = stage, own = {}, at = 1, made = {}, came = {}, last = {}, waited_s = 0,
    }, Pass)
    for _, m in ipairs(s.messages) do
        if m.from == stage or m.to == stage then
            self.own[#self.own + 1] = m
            if m.to == stage then
                self.last[key(m.what, m.chunk, m.micro)] = #self.own
            end
        end
    end
    if replay then
        self.arrivals = {}
        for i, seconds in ipairs(replay.arrivals) do
            local m = s.messages[i]
            self.arrivals[key(m.what, m.chunk, m.micro)] = m.to == stage and seconds or nil
        end
    end
    local B, S = batch.tokens:size(1), batch.tokens:size(2) // parallel.mesh:size(parallel.sequence)
    self.like = mx.zeros({ B, S, parallel.features }, model.shape.dtype) -- this rank's part of the residual stream
    return self
end

-- The place, in this stage's messages, of the one that an action waits for; 0: it waits for none.
local function needed_by(self, action)
    local what = action and (action.what == "F" and "activation" or action.what == "B" and "gradient")
    return what and self.last[key(what, action.chunk, action.micro)] or 0
end

-- Posts messages up to number `most`, and those that are ready to be sent; stops at one whose value is not there yet.
local function post(self, most)
    while self.own[self.at] do
        local m = self.own[self.at]
        local name = key(m.what, m.chunk, m.micro)
        if m.from == self.stage then
            if not self.made[name] then
                return
            end
            mx.send(self.made[name], { axis = "stage", to = m.to - 1 })
            self.made[name]:release()
            self.made[name] = nil
        elseif self.at <= most then
            self.came[name] = mx.recv(self.like, { axis = "stage", from = m.from - 1 })
        else
            return
        end
        self.at = self.at + 1
    end
end

local function take(self, what, chunk, micro)
    local name, start = key(what, chunk, micro), mx.now()
    local t = self.came[name]
    if t then
        t:wait()
        if self.arrivals and self.arrivals[name] then
            mx.sim_wait_until(self.start + self.arrivals[name])
        end
        self.waited_s = self.waited_s + mx.now() - start
    end
    self.came[name] = nil
    return t
end

-- Runs this stage's actions. forward(self, chunk, micro, x) and backward(self, chunk, micro, dy) return what to send.
-- Notes how long that takes, and how long the stage waits for other stages.
local function run(self, actions, forward, backward, gradients_of_weights)
    local chunks = schedule.chunks(self.s)
    -- What the chunk `to` needs is sent, unless this stage has that chunk.
    local function pass_on(what, to, micro, t)
        local list = schedule.stage_of(self.s, to, micro) == self.stage and self.came or self.made
        list[key(what, to, micro)] = t
    end
    self.start, self.actions = mx.now(), {}
    for i, action in ipairs(actions) do
        local chunk, micro = action.chunk, action.micro
        post(self, math.max(needed_by(self, action), needed_by(self, actions[i + 1]), needed_by(self, actions[i + 2])))
        local came = action.what ~= "W" and take(self, action.what == "F" and "activation" or "gradient", chunk, micro)
        local begun = mx.now()
        if action.what == "F" then
            local y = forward(self, chunk, micro, came)
            if chunk < chunks then
                pass_on("activation", chunk + 1, micro, y)
            else
                y:release() -- the loss has its own
            end
        elseif action.what == "W" then
            gradients_of_weights(self, chunk, micro)
        else
            local dx = backward(self, chunk, micro, came)
            if chunk > 1 then
                pass_on("gradient", chunk - 1, micro, dx)
            end
        end
        self.actions[i] = {
            what = action.what, chunk = chunk, micro = micro, start = begun - self.start, stop = mx.now() - self.start,
        }
        post(self, 0)
    end
    self.like:release()
    self.seconds = mx.now() - self.start
end

-- ---- training ----

-- Whether a chunk of this stage has a parameter that is trained, of those whose names match `pattern`.
local function trains(model, chunk, pattern)
    for name in pairs(model.parallel:of_chunk(model.params, chunk)) do
        if name:find(pattern) and not model.parallel.entries[name].frozen then
            return true
        end
    end
    return false
end

--- One run of the schedule over the microbatches of a batch. Not collective.
---@param model mx.Decoder
---@param micros table[] the microbatches
---@param weights number[] the share of each in the mean over targets
---@param share number that of each in a mean over all tokens, whatever the number of targets
---@param completes boolean whether the gradients of a step are complete after these microbatches
---@return mx.PipelinePass
function driver.new(model, micros, weights, share, completes)
    local pipeline = mx.is_simulated() and mx.sim.now.pipeline or nil
    local self = new_pass(model, model.parallel.stages.schedule, micros[1], pipeline and pipeline.replay)
    self.micros, self.weights, self.share, self.completes = micros, weights, share, completes
    self.loss, self.tapes, self.done = 0, {}, {}
    return self
end

--- The forward pass of a chunk for a microbatch. Collective on the ranks of the stage.
---@param chunk integer
---@param micro integer
---@param x any what the previous chunk has sent; nil for the first one
---@return any what the next chunk needs
function Pass:forward(chunk, micro, x)
    if x then
        x:requires_grad()
    end
    local tape = mx.tape()
    local first
    local y, extra = tape:run(mx.scope, function()
        local results = table.pack(self.model:chunk(chunk, x, self.micros[micro]))
        first = results[3]
        return table.unpack(results, 1, self.s.splits and 3 or 2)
    end)
    self.tapes[key("F", chunk, micro)] = { tape = tape, x = x, y = y, extra = extra, first = first }
    self.loss = self.loss + (extra and extra:item() * self.share or 0)
    return y:detach()
end

-- The loss of the last chunk, and its weight in the step's. It is computed just before the backward pass, because its
-- operation makes the gradients at once: for all microbatches in flight, these would need as many gradients of the
-- output's table.
local function loss_of(self, made, micro)
    local weight = self.weights[micro]
    local loss = made.tape:run(mx.scope, function()
        local loss, further = self.model:losses_of_chunk(made.y, self.micros[micro])
        if further then
            loss, weight = loss * weight + further * self.share, 1
        end
        return loss
    end)
    self.loss = self.loss + loss:item() * weight
    return loss, weight
end

--- The backward pass; if the schedule splits it, the first half. Collective on the ranks of the stage.
---@param chunk integer
---@param micro integer
---@param dy any what the next chunk has sent; nil for the last one
---@return any what the previous chunk needs; nil for the first one
function Pass:backward(chunk, micro, dy)
    local parallel, made, splits, dx = self.model.parallel, self.tapes[key("F", chunk, micro)], self.s.splits, nil
    self.done[chunk] = (self.done[chunk] or 0) + 1
    if self.done[chunk] == 1 or self.done[chunk] == #self.micros then
        parallel:add_gradients(parallel:of_chunk(self.model.params, chunk),
            self.completes and self.done[chunk] == #self.micros)
    end
    if not made.x and not trains(self.model, chunk, "") then -- nothing behind the gradient
        for _, t in pairs({ dy, made.y, made.extra, splits and made.first or nil }) do
            t:release()
        end
        self:close(chunk, micro)
        return nil
    end
    local root, weight = made.y, nil
    if not dy then
        root, weight = loss_of(self, made, micro)
    end
    local leads = splits and (made.x or trains(self.model, chunk, "^embedding")
        or trains(self.model, chunk, "^position"))
    made.tape:backward({ root, made.extra },
        { dy or parallel.seed * weight, made.extra and parallel.seed * self.share },
        leads and { inputs = made.first } or nil) -- if the table is frozen, W has nothing left to do
    if not splits then
        self:close(chunk, micro)
    elseif not made.x then
        made.first:release()
    end
    for _, t in ipairs({ made.y, dy or root, made.extra }) do
        t:release()
    end
    if made.x then
        local grad = made.x:grad()
        dx = grad:to(self.model.shape.dtype)
        dx = dx:dtype() == grad:dtype() and grad:clone() or dx
        made.x:zero_grad()
        made.x:release()
    end
    return dx
end

function Pass:close(chunk, micro)
    self.tapes[key("F", chunk, micro)].tape:close()
    self.tapes[key("F", chunk, micro)] = nil
end

--- The second half of a backward pass: the gradients of weights. Collective on the ranks of the stage.
---@param chunk integer
---@param micro integer
function Pass:gradients_of_weights(chunk, micro)
    local made = self.tapes[key("F", chunk, micro)]
    if made then
        made.tape:backward_weights()
        self:close(chunk, micro)
    end
end

--- Makes a model train with a schedule of your own, the same on all ranks; refuses one that is wrong or does not fit.
--- Not collective.
---@param model mx.Decoder
---@param s mx.PipelineSchedule of schedule.of
function driver.use(model, s)
    local own = model.parallel.stages
    if not own then
        util.refuse("pipeline schedule: the model is on no pipeline: set ici_pipeline_parallelism")
    elseif s.stages ~= own.n or s.repeats ~= own.repeats or s.microbatches ~= own.microbatches
        or s.outside ~= own.outside then
        util.refuse("pipeline schedule: %d stages, %d repeats, %d microbatches, layers outside: %s; but the model has "
            .. "%d, %d, %d and %s", s.stages, s.repeats, s.microbatches, s.outside or "none", own.n, own.repeats,
            own.microbatches, own.outside or "none")
    end
    own.schedule = schedule.check(s)
end

--- The forward and backward passes of one batch, which `batches` has in microbatches. Gradients are added in the order
--- of the schedule's backward passes. Collective.
---@param model mx.Decoder
---@param batches table[] the microbatches of all batches of a step
---@param weights number[] of each
---@param pass integer
---@param passes integer number of batches of the step
---@return number this stage's share of the step's loss
function driver.train(model, batches, weights, pass, passes)
    local step <close> = mx.step()
    local n, micros, shares = model.parallel.stages.microbatches, {}, {}
    for micro = 1, n do
        local i = (pass - 1) * n + micro
        micros[micro], shares[micro] = batches[i], weights[i] / (n * passes)
    end
    model.passes = model.passes + 1
    if model.routing then
        model.routing.passes = model.routing.passes + n
    end
    local self = driver.new(model, micros, shares, 1 / (n * passes), pass == passes)
    run(self, self.s.actions[self.stage], Pass.forward, Pass.backward, Pass.gradients_of_weights)
    local times = model.parallel.stages.times
    times.passes, times.actions = times.passes + 1, self.actions
    if times.passes > 1 then
        times.seconds, times.waited_s = times.seconds + self.seconds, times.waited_s + self.waited_s
    end
    return self.loss
end

--- The bubble of all training passes of a model but the first, which also connects the ranks: the share of the time in
--- which stages waited, as in schedule.replay. On simulated chips that of the replay. nil if there were no passes.
--- Collective.
---@param model mx.Decoder
---@return number?
function driver.bubble(model)
    if mx.is_simulated() then
        return mx.sim.now.pipeline.replay.bubble
    end
    local times = model.parallel.stages.times
    return times.passes > 1 and mx.scope(function()
        local longest = mx.all_reduce_(mx.tensor { times.seconds }, { op = "max" }):item()
        return 1 - mx.train.average(times.seconds - times.waited_s) / longest
    end) or nil
end

-- ---- evaluation ----

-- The schedule of an evaluation's forward passes.
local function schedule_of(own, microbatches)
    local s = schedule.make {
        kind = "gpipe", stages = own.n, repeats = own.repeats, microbatches = microbatches, outside = own.outside,
    }
    for i, actions in ipairs(s.actions) do
        s.actions[i] = {}
        for _, one in ipairs(actions) do
            table.insert(s.actions[i], one.what == "F" and one or nil)
        end
    end
    local messages = {}
    for _, m in ipairs(s.messages) do
        messages[#messages + 1] = m.what == "activation" and m or nil
    end
    s.messages = messages
    return s
end

--- The forward passes of a batch of evaluation: its schedule and number of microbatches, which is 1 if the pipeline's
--- does not divide the sequences. Not collective.
---@param own mx.Stages
---@param sequences integer
---@return mx.PipelineSchedule
function driver.evaluation(own, sequences)
    return schedule_of(own, sequences % own.microbatches == 0 and own.microbatches or 1)
end

--- The forward pass of a chunk in evaluation. Collective on the ranks of the stage.
---@param model mx.Decoder
---@param chunk integer
---@param x any what the previous chunk has sent; nil for the first one
---@param batch table a microbatch
---@return any what the next chunk needs
---@return number sum of the losses of the last chunk; otherwise 0
---@return number count of their targets
function driver.evaluate_chunk(model, chunk, x, batch)
    local y = model:chunk(chunk, x, batch, true)
    if chunk < model.parallel.stages.chunks then
        return y, 0, 0
    end
    local loss = model:losses_of_chunk(y, batch, true):item()
    local count = batch.mask and batch.mask:to("f32"):sum():item() or batch.targets:numel()
    return y, count > 0 and loss * count or 0, count
end

-- Of a simulated pipeline: the replay of an evaluation's forward passes.
local function replay_of_evaluation(own, sequences)
    local pipeline = mx.sim.now.pipeline
    local planned = pipeline and pipeline.evaluation
    if not planned then
        util.refuse("evaluation of a pipeline of %d stages simulates one chip, but needs one of each stage: set "
            .. "eval_interval, and call mx.plan.check(config) before, which simulates all stages", own.n)
    elseif planned.sequences ~= sequences then
        util.refuse("evaluation of a simulated pipeline: a batch of %d sequences, expected the %d of the config's "
            .. "evaluation data, for which all stages have been simulated", sequences, planned.sequences)
    end
    return planned.replay
end

--- The mean loss over the targets of a batch that count, without dropout and z_loss, on all stages. Collective.
---@param model mx.Decoder
---@param batch table
---@return any one element
function driver.evaluate(model, batch)
    local own, sequences = model.parallel.stages, batch.tokens:size(1)
    local s = driver.evaluation(own, sequences)
    local replay = mx.is_simulated() and replay_of_evaluation(own, sequences) or nil
    local batches, sum, count = driver.split({ batch }, s.microbatches), 0, 0
    local self = new_pass(model, s, batches[1], replay)
    run(self, s.actions[self.stage], function(_, chunk, micro, x)
        local y, losses, targets = driver.evaluate_chunk(model, chunk, x, batches[micro])
        sum, count = sum + losses, count + targets
        return y
    end)
    if replay then
        mx.sim_wait_until(self.start + replay.duration)
    end
    local both = mx.all_reduce_(mx.tensor { sum, count }, { axis = "stage" })
    return mx.narrow(both, { dim = 1, start = 1, length = 1 })
        / mx.maximum(mx.narrow(both, { dim = 1, start = 2, length = 1 }), 1)
end

return driver
