--- A training run: starts or resumes it, reports and saves after each step, and ends it.
--
--     mx.run.claim(config)
--     ... model, optimizer, data ...
--     local run = mx.run.start(config, model, optimizer, data)
--     for step in run:steps() do
--         local loss = mx.train.gradients(model, data, config.gradient_accumulation_steps)
--         run:ended(step, loss, run:update(step, loss))
--     end
--     run:finish()
--
-- With enable_checkpointing, all files of a run are in base_output_directory/run_name: config.yml, script.lua, log.txt,
-- metrics.jsonl, heartbeat.json, tensorboard/, the checkpoints step_N, and at the end parameters.h5.

local mx = require "mx"
local util = require "mx.util"

local run = {}

run.claim = require("mx.run.folder").claim

-- Patterns of the keys that say what to train: a model, data, a size or a machine.
local SUBJECT = {
    "^model_name$", "^load_", "^global_parameter_scale$", "^base_num_", "^base_%l+_dim$", "^head_dim$", "^vocab_size$",
    "^dataset_", "^max_target_length$", "^per_device_batch_size$", "^hardware$",
}
local FIRST_STEPS = [[
Say what to train, for instance:
    mxlua scripts/train.lua model_name=tiny dataset_type=synthetic          # a tiny model on random tokens
    mxlua scripts/train.lua model_name=tiny dataset_type=text dataset_path=FILE      # the same on a text of yours
    mxlua scripts/train.lua model_name=16b hardware=v5e-256 steps=3         # a simulated TPU pod
configs/base.yml explains every key. dataset_type=synthetic alone trains its model of 1.1 billion parameters.]]

--- Ends the program with status 2 and lines to type, unless the words name a config file, a model, data, a size or a
--- machine: without this check, scripts/train.lua alone would train the default model. Collective.
---@param config table
---@param words string[] of the command line
function run.check_subject(config, words)
    if words[1] and not words[1]:find("=", 1, true) then
        return
    end
    for key in pairs(getmetatable(config).where) do
        for _, pattern in ipairs(SUBJECT) do
            if key:find(pattern) then
                return
            end
        end
    end
    if mx.rank() == 0 then
        io.stderr:write(FIRST_STEPS, "\n")
    end
    mx.barrier()
    os.exit(2)
end

---@class mx.Run
---@field config table
---@field step integer the last completed step
---@field directory string
local Run = {}
Run.__index = Run

local function finite(x)
    return x and x - x == 0 and x or nil
end

local function say(format, ...)
    mx.metrics.say("%s", format:format(...)) -- the text may contain any character
end

-- Shows that the run is alive.
local function beat(self, now)
    if self.folder then
        self.folder:beat({ step = self.step, steps = self.config.steps, loss = finite(self.loss) }, now)
    end
end

-- ---- starting ----

-- The differences between the config that a checkpoint was saved with and this one.
local function changes(before, config)
    local now, old, list = {}, {}, {}
    for _, pair in ipairs({ { now, mx.config.dump(config) }, { old, before } }) do
        for line in pair[2]:gmatch("[^\n]+") do
            local key, value = line:match("^([%w_]+): (.*)$")
            if key then
                pair[1][key] = value
            end
        end
    end
    for key, value in util.sorted_pairs(now) do
        if old[key] and old[key] ~= value then
            list[#list + 1] = ("%s: %s, was %s"):format(key, value, old[key])
        end
    end
    return list
end

local function restore(self, index, path)
    self.step, self.loss = index.step, index.loss
    if index.guard then
        self.guard:restore(index.guard)
    end
    say("RESUMING %s after step %s from %s (saved by %d rank%s, now %d)", self.config.run_name ~= ""
        and self.config.run_name or self.config.model_name, util.thousands(index.step), path, index.ranks,
        index.ranks == 1 and "" or "s", mx.ranks())
    for _, change in ipairs(changes(index.config, self.config)) do
        say("    changed since then: %s", require("mx.config.values").printable(change))
    end
end

-- Loads a checkpoint of this run if there is one; otherwise what the config says. Simulated parameters have no values.
local function load(self, o)
    local config = self.config
    if not self.saves and not mx.is_simulated() and config.run_name ~= ""
        and mx.share_text(mx.rank() == 0 and #mx.checkpoint.list(self.directory) > 0 and "yes" or nil) then
        say("%s has checkpoints: with enable_checkpointing=false they are neither loaded nor replaced, and this run "
            .. "starts at step 1", self.directory)
    end
    if mx.is_simulated() then
        if config.load_full_state_path ~= "" or config.load_parameters_path ~= "" then
            say("nothing is loaded: on a simulated chip parameters have no values")
        end
        return
    end
    local whole = {
        params = self.model.params, buffers = self.model.buffers, optimizer = o.optimizer,
        parallel = self.model.parallel, model = self.model, data = o.data,
    }
    local exists = self.saves and mx.share_text(mx.rank() == 0 and #mx.checkpoint.list(self.directory) > 0 and "yes"
        or nil)
    if exists and config.run_name == "" then
        util.refuse("%s has checkpoints of an earlier run: run_name=%s goes on with it, run_name=OTHER starts a new "
            .. "one", self.directory, config.model_name)
    elseif exists then
        local index, path = mx.checkpoint.load_newest(self.directory, whole, say)
        return restore(self, index, path)
    elseif config.load_full_state_path ~= "" then
        if config.restart_data then
            whole.data = nil
        end
        local index, path = mx.checkpoint.load_path(config.load_full_state_path, whole, say)
        if not index then
            mx.config.refuse(config, "load_full_state_path", "there is no checkpoint in '%s'",
                config.load_full_state_path)
        end
        return restore(self, index, path)
    elseif config.load_parameters_path ~= "" then
        run.load_parameters(config.load_parameters_path, self.model, config)
        say("parameters from %s", config.load_parameters_path)
    end
end

--- Fills a model's parameters from a file that scripts/train.lua saved, from a checkpoint (a folder step_N), from the
--- newest checkpoint in a run's folder, or from weights of other programs (mx.weights). Collective.
---@param path string
---@param model mx.Decoder
---@param config? table the model's config, to be compared with that of the parameters
function run.load_parameters(path, model, config)
    mx.files.check_same_weights(path)
    if mx.share_text(mx.rank() == 0 and mx.weights.is_foreign(path) and "yes" or nil) then
        return mx.checkpoint.together(mx.weights.load, model, path, config)
    end
    if config then
        mx.checkpoint.together(mx.weights.check_own, config, path)
    end
    local what = { params = model.params, buffers = model.buffers, parallel = model.parallel }
    local is_folder = mx.share_text(mx.rank() == 0 and mx.io.exists(path .. "/.") and "yes" or nil)
    if not is_folder then
        mx.checkpoint.together(mx.nn.load, model.params, path, model.parallel, model.buffers)
    elseif not mx.checkpoint.load_path(path, what, say) then
        util.refuse("there is neither a checkpoint nor a file of parameters at '%s'", path)
    end
end

local function read_script()
    local name = rawget(_G, "arg") and arg[0] or nil
    return name and name ~= "-" and mx.read_file(name) or "", name or ""
end

-- The figures of a step that rates are computed from. Those of a model of the script's own are unknown.
local function work_of(config, model)
    if not model.shape then
        return { params = mx.nn.count(model.params) }
    end
    local params = mx.models.count(model.shape)
    local sequences = config.per_device_batch_size * config.gradient_accumulation_steps
    return {
        params = params, formula = config.flop_formula, dtype = model.shape.dtype,
        flops = mx.flops.step(config.flop_formula, model.shape, params, sequences, config.max_target_length),
        tokens = sequences * config.max_target_length,
        peak = mx.metrics.measured_peak(model.shape.dtype),
    }
end

local function new_metrics(self)
    local config, work = self.config, work_of(self.config, self.model)
    return mx.metrics.new {
        steps = config.steps,
        done = self.step,
        flops = work.flops, tokens = work.tokens, params = work.params, formula = work.formula, peak = work.peak,
        dtype = work.dtype, quantization = config.quantization,
        file = config.metrics_file,
        run_file = self.saves and self.directory .. "/metrics.jsonl" or nil,
        period = config.log_period, plot = config.log_plot,
        extra = { model_name = self.model.shape and config.model_name or nil },
        config = config, goodput = self.goodput, paced = true,
        pipeline = self.model.parallel.stages and function() return mx.pipeline.last(self.model) end,
    }
end

-- The last step that an earlier process of the run has completed. After a resume, steps up to it are repeated. A run
-- without a run_name never resumes.
local function earlier_steps(self)
    local goes_on = mx.rank() == 0 and self.saves and self.config.run_name ~= ""
    return goes_on and mx.outputs.last_step(self.directory .. "/metrics.jsonl") or 0
end

-- Refuses keys that need a model of mx.models.
local function check_plain(config)
    for _, key in ipairs({ "eval_interval", "load_parameters_path" }) do
        if mx.config.is_chosen(config, key) and config[key] ~= 0 and config[key] ~= "" then
            mx.config.refuse(config, key, "is for models of mx.models; %s", key == "eval_interval"
                and "evaluate between the steps of the loop" or "mx.nn.load reads parameters")
        end
    end
end

--- Starts or resumes a run: loads parameters or a checkpoint, prints what the run is, and opens its folder. If run_name
--- has checkpoints, the newest intact one is loaded. Collective.
---@param config table
---@param model mx.Decoder or another one with parameters and a loss (mx.train.plain)
---@param optimizer mx.Optimizer
---@param data mx.Data or mx.Dataset
---@return mx.Run
function run.start(config, model, optimizer, data)
    model = mx.train.plain(model)
    if model.is_plain then
        check_plain(config)
    end
    local self = setmetatable({
        config = config, model = model, optimizer = optimizer, data = data, step = 0, guard = mx.guard.new(config),
        directory = mx.train.directory(config), folder = run.claim(config), goodput = mx.goodput.new(),
    }, Run)
    self.saves = self.folder ~= nil
    self.script, self.script_name = read_script()
    if self.saves then
        mx.catch_stop()
        self.saver = mx.checkpoint.saver {
            directory = self.directory, params = model.params, buffers = model.buffers, optimizer = optimizer,
            parallel = model.parallel, model = model, data = data, lock = self.folder.lock,
            keep = config.max_num_checkpoints_to_keep, keep_period = config.checkpoint_keep_period,
            async = config.async_checkpointing,
        }
    end
    if config.eval_interval > 0 then
        self.evaluation = mx.data.open_evaluation(data, model.parallel.mesh)
    end
    self.goodput:enter("checkpoint_restore")
    load(self, { optimizer = optimizer, data = data })
    self.goodput:enter("start")
    if model.is_plain then
        mx.train.share(model.params)
    end
    self.earlier = earlier_steps(self)
    if self.saves then
        self.folder:open(self.step, self.script)
    end
    if model.parallel.mesh then
        say("%s", model.parallel.mesh)
        if config.context_parallel_load_balance and #model.parallel.context > 0 and not model.parallel.zigzag then
            mx.metrics.tell("each rank has one piece of a sequence: context_parallel_load_balance has no effect "
                .. "without a causal mask or with context_parallel_strategy=ulysses")
        end
        local topology = mx.sim.topology.line()
        if topology then
            say("%s", topology)
        end
        local uneven = model.parallel:uneven()
        if uneven then
            say("the parts of some dimensions differ; the largest exceeds the mean by: %s", uneven)
        end
    end
    say("%s", (mx.config.dump(config, not config.log_config):gsub("\n$", "")))
    for _, key in ipairs({ "adamw_mask", "trainable_parameters_mask" }) do
        if #config[key] > 0 and model.shape then
            say("%s: %s", key, mx.models.masks.summary(config[key], model.shape))
        end
    end
    if self.step >= config.steps then
        say("step %d of %d is behind us: nothing is left to do; set steps higher to go on", self.step, config.steps)
    end
    self.metrics = new_metrics(self)
    beat(self, true)
    return self
end

-- ---- each step ----

-- Starts a checkpoint of the last completed step.
local function save(self, now, standing)
    return self.saver:save(self.step, {
        standing = standing, guard = self.guard:state(), loss = finite(self.loss),
        config = mx.config.dump(self.config), script = self.script, script_name = self.script_name,
    }, now)
end

local function told(self, saved)
    if saved then
        say("checkpoint %s/step_%d: training stood still for %.3g s, it was on disk after %.3g s", self.directory,
            saved, self.saver.stood_still_s, self.saver.write_s)
    end
end

-- An error has ended the loop: saves the state after the last step, unless the parameters have changed since then. With
-- several ranks this is possible only if data could not be read, because that ends the step on all ranks
-- (mx.train.gradients). After another error the other ranks may be anywhere, so no checkpoint is saved.
local function rescue(self)
    local unread = self.data.failed or self.evaluation and self.evaluation.failed
    local together = mx.ranks() == 1 or unread
    if not self.saves or not together or self.optimizer.steps ~= self.stands.optimizer.steps then
        return
    end
    local good, reason = pcall(function()
        told(self, self.saver:wait())
        if self.saver.saved ~= self.step and self.metrics:count() > 0 then
            told(self, save(self, true, self.stands))
        end
    end)
    if not good then
        say("step %d could not be saved: %s", self.step, reason)
    elseif unread then
        local name = self.config.run_name ~= "" and self.config.run_name or self.config.model_name
        say("the data of step %d cannot be read; once they can, the same command with run_name=%s continues after step "
            .. "%d", self.data.failed and self.step + 1 or self.step, name, self.step)
    end
end

local STOPS = { "SIGUSR1", "SIGHUP", "SIGINT", "SIGTERM" } -- weakest first

-- Whether any rank has been asked to stop, and by which signal. Collective.
local function stop_requested(self)
    local name = self.saves and mx.stop_requested()
    if mx.ranks() == 1 or not self.saves then
        return name
    end
    local mine = 0
    for i, known in ipairs(STOPS) do
        mine = name == known and i or mine
    end
    local asked = mx.scope(function()
        return mx.all_reduce_(mx.tensor(mine), { op = "max" }):item()
    end)
    return STOPS[math.tointeger(asked)]
end

--- Iterates over the numbers of the remaining steps, until any rank is asked to stop. If the body of the loop raises an
--- error, the completed steps are saved first: always with one rank, and with several ranks if data cannot be read.
--- Collective.
---@return fun(): integer?, nil, nil, any
function Run:steps()
    self.stopped = stop_requested(self) -- asked to stop while the run was being prepared
    if self.stopped then
        say("asked to stop by %s before step %d: there is nothing new to save", self.stopped, self.step + 1)
    end
    local function next_step()
        if self.step >= self.config.steps or self.stopped or self.converged then
            return nil
        end
        self.before, self.before_passes = self.data:state(), self.model.passes
        self.before_random = mx.random_state()
        self.stands = self.saver and self.saver:standing()
        self.goodput:enter(self.step < self.earlier and "repeated_steps" or "step")
        self.metrics:begin()
        return self.step + 1
    end
    return next_step, nil, nil, setmetatable({}, { __close = function(_, reason)
        debug.sethook() -- that of mx.metrics: the first step may have failed
        if reason ~= nil and self.stands then
            rescue(self)
        end
    end })
end

-- Describes the first tensor that is not finite.
local function explain(self)
    local after, passes, random = self.data:state(), self.model.passes, mx.random_state()
    local text = mx.guard.explain(self.model.params, function()
        self.data:restore(self.before)
        self.model.passes = self.before_passes
        mx.random_state(self.before_random)
        mx.train.gradients(self.model, self.data, self.config.gradient_accumulation_steps)
    end)
    self.data:restore(after)
    self.model.passes = passes
    mx.random_state(random)
    return text
end

local function last_saved(self)
    local saved = self.saver and self.saver.saved
    return saved and (" The last checkpoint is %s/step_%d."):format(self.directory, saved) or ""
end

local function not_a_number(self, step, reason)
    local batch = self.data:describe() -- before the batch runs again
    local first = explain(self)
    if self.config.nonfinite_step == "stop" then
        self.stands = nil -- the parameters may be wrong: a checkpoint of them must not replace an older one
        if self.saver then
            self.saver:wait()
        end
        util.refuse("step %d: %s. %s. The batch: %s. This step has changed no parameter.%s Try a lower learning_rate, "
            .. "a longer warm-up or gradient clipping; nonfinite_step=skip goes on without such steps", step, reason,
            first, batch, last_saved(self))
    end
    say("step %d is skipped: %s. %s. The batch: %s", step, reason, first, batch)
end

--- Updates the parameters with the gradients of a step (mx.Optimizer.step). If loss or gradients are not finite or
--- spike, skips the step or ends the run, according to nonfinite_step and skip_step_on_spikes. Collective.
---@param step integer
---@param loss number? of all ranks; nil: no target of the step counts
---@return number? grad_norm nil if the step was skipped because it has no finite loss
function Run:update(step, loss)
    local reason = loss and self.guard:refuses(loss) or not loss and "no token of it is a target" or nil
    local norm
    self.rate = self.optimizer:rate()
    if not loss or loss - loss ~= 0 and not mx.is_simulated() then
        self.optimizer:zero_grad()
    else
        local most = reason and -1 or self.guard:largest_norm() -- -1: only the norm is wanted
        norm = self.optimizer:step(most)
        if norm - norm ~= 0 and not mx.is_simulated() then
            reason = ("the loss is %g and the gradient norm %s at a learning rate of %g"):format(loss,
                mx.guard.text(norm), self.rate)
        elseif not reason and norm > most then
            reason = ("a gradient norm of %.4g is a spike: the last %d steps allow %.4g"):format(norm,
                #self.guard.norms, most)
        end
    end
    self.skipped = reason
    self.guard:record(loss, norm)
    if not reason then
        self.guard:took()
        if self.model.after_step then
            self.model:after_step()
        end
    elseif loss and loss - loss ~= 0 or norm and norm - norm ~= 0 then
        not_a_number(self, step, reason)
    else
        say("step %d is skipped: %s. The batch: %s", step, reason, self.data:describe())
    end
    if reason then
        local stands = self.stands
        self.stands = nil
        self.guard:skip(step)
        self.stands = stands
    end
    return norm
end

local function write_events(self, step, loss, norm)
    if not (self.folder and self.folder.events) then
        return
    end
    local row, values = self.metrics.last, {}
    for _, pair in ipairs({
        { "learning/loss", loss }, { "learning/grad_norm", norm }, { "learning/current_learning_rate", self.rate },
        { "perf/step_time_seconds", row.step_time_s }, { "perf/per_device_tflops_per_sec", row.tflops_per_device },
        { "perf/per_device_tokens_per_sec", row.tokens_per_s_per_device }, { "perf/mfu_percent", row.mfu },
        { "perf/input_wait_seconds", row.input_wait_s }, { "goodput", row.goodput },
        { "learning/moe_lb_loss", row.load_balance_loss }, { "learning/router_z_loss", row.router_z_loss },
        { "learning/mtp_loss", row.mtp_loss }, { "learning/max_logits", row.max_logit },
        { "learning/largest_expert_load", row.largest_expert_load }, { "learning/dropped_share", row.dropped_share },
    }) do
        values[#values + 1] = finite(pair[2]) and pair or nil
    end
    for part, share in util.sorted_pairs(self.goodput:figures().badput) do
        values[#values + 1] = { "badput/" .. part, share }
    end
    self.folder:write_events(step, values)
end

-- Saves a checkpoint if one is due or the run is asked to stop.
local function save_if_due(self, step)
    self.goodput:enter("checkpoint_save")
    told(self, self.saver:poll())
    local period, stop = self.config.checkpoint_period, stop_requested(self)
    if stop then
        say("step %d: asked to stop by %s; saving, then ending", step, stop)
    end
    if stop or period > 0 and step % period == 0 then
        told(self, self.saver:wait())
        told(self, save(self, stop ~= nil))
    end
    self.stopped = stop
    self.goodput:enter("other")
end

-- Evaluates the model if this is due. The run ends once the loss has reached target_eval_loss.
local function evaluate_if_due(self, step)
    local c, first = self.config, self.config.eval_start_step
    if not self.evaluation or self.stopped or step < first or (step - first) % c.eval_interval ~= 0 then
        return
    end
    self.goodput:enter("evaluation")
    self.stands = self.saver and self.saver:standing() -- saved if the evaluation data cannot be read
    local started = mx.now()
    local loss, targets, accepted = mx.evaluate.data(self.model, self.evaluation, c.eval_steps)
    self.stands = nil
    self.metrics:evaluated(step, loss, targets, mx.now() - started, accepted)
    if self.folder and finite(loss) then
        self.folder:write_events(step, {
            { "eval/avg_loss", loss }, { "eval/avg_perplexity", math.exp(loss) },
            accepted and { "eval/avg_mtp_acceptance_rate_percent", accepted } or nil,
        })
    end
    self.converged = c.target_eval_loss > 0 and loss <= c.target_eval_loss
    if self.converged then
        say("step %d: the evaluation loss has reached target_eval_loss = %g, so the run ends", step, c.target_eval_loss)
    end
    self.goodput:enter("other")
end

--- Ends a step: reports it, saves a checkpoint and evaluates if these are due, and checks whether the run should stop.
--- Collective.
---@param step integer
---@param loss number? of all ranks; nil: no target of the step counted
---@param grad_norm? number
function Run:ended(step, loss, grad_norm)
    self.step, self.loss, self.stands = step, loss, nil
    local waited = self.data:waited()
    self.goodput:ended_step(waited)
    self.metrics:step(step, {
        loss = loss, grad_norm = grad_norm, learning_rate = self.rate, skipped = self.skipped, input_wait_s = waited,
        figures = self.model.figures and self.model:figures(),
    })
    write_events(self, step, loss, grad_norm)
    beat(self)
    if self.saves then
        save_if_due(self, step)
    end
    evaluate_if_due(self, step)
end

-- The figures of a run without remaining steps: those written by the process that took the last step, if it wrote them.
-- Collective.
local function ended_before(self)
    local row = mx.rank() == 0 and self.saves and mx.outputs.last_summary(self.directory .. "/metrics.jsonl")
    local text = mx.share_text(mx.rank() == 0 and row and row.step == self.step and mx.io.json_encode(row) or nil)
    return text and mx.io.json_decode(text) or { summary = true, step = self.step, loss = finite(self.loss) }
end

--- Ends a run: waits until its last checkpoint is on disk, prints the summary, and saves the parameters if the run has
--- reached its last step. Collective.
---@return table summary of the metrics, with the last step and its loss, even if an earlier process took that step
function Run:finish()
    local config = self.config
    self.goodput:enter("checkpoint_save")
    if self.saves and not self.stopped then
        told(self, self.saver:wait())
        local named = config.run_name ~= "" and config.checkpoint_period > 0
        if named and self.saver.saved ~= self.step and self.metrics:count() > 0 then
            told(self, save(self, true))
        end
    end
    self.goodput:enter("other")
    local summary = self.metrics:finish() or ended_before(self)
    local stages = self.model.parallel.stages
    local bubble = stages and mx.pipeline.driver.bubble(self.model)
    if bubble then
        say("pipeline: stages waited for each other %.1f %% of the time; %s it would be %.1f %%", 100 * bubble,
            stages.outside and "by their FLOPs" or "with equal stages",
            100 * mx.pipeline.schedule.bubble(stages.schedule))
    end
    beat(self, true)
    if self.stopped and self.step < config.steps then
        say("stopped after step %d of %d; the same command with run_name=%s goes on", self.step, config.steps,
            config.run_name ~= "" and config.run_name or config.model_name)
    elseif self.saves then
        say("parameters saved in %s", mx.train.save(config, self.model))
    end
    if self.folder then
        self.folder:release()
    end
    return summary
end

return util.module(run, "mx.run")
