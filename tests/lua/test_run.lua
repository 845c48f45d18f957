-- A run: what it leaves behind, steps that are no numbers, checkpoints that are kept, and those that do not fit.
local mx = require "mx"
local lu = require "luaunit"

local folder

local function config_of(...)
    return mx.config.load { "model_name=tiny", "per_device_batch_size=2", "max_target_length=16", "log_period=1000",
        "base_num_decoder_layers=2", "base_output_directory=" .. folder, "steps=4",
        "dtype=float32", ... }
end

-- What a run prints is not for the test's output.
local function quietly(fn, ...)
    local write, said = io.write, {}
    io.write = function(...) -- luacheck: ignore 122
        said[#said + 1] = table.concat({ ... })
        return io.stdout
    end
    local results = table.pack(pcall(fn, ...))
    io.write = write -- luacheck: ignore 122
    mx.metrics.log_to(nil)
    if not results[1] then
        error(results[2], 0)
    end
    return table.concat(said), table.unpack(results, 2, results.n)
end

-- Runs a config to its end. `each(step, model, run)` is called before every step.
local function train(config, each)
    local result = {}
    result.said = quietly(function()
        local model = mx.models.new(config)
        local data = mx.data.open(config)
        local optimizer = mx.optim.new(config, model.params)
        local run = mx.run.start(config, model, optimizer, data)
        result.model, result.optimizer, result.run = model, optimizer, run
        for step in run:steps() do
            if each then
                each(step, model, run)
            end
            local loss = mx.train.gradients(model, data, 1)
            run:ended(step, loss, run:update(step, loss))
        end
        result.summary = run:finish()
    end)
    return result
end

local function read(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read("a")
    file:close()
    return text
end

local function lines(path)
    local list = {}
    for line in io.lines(path) do
        list[#list + 1] = mx.io.json_decode(line)
    end
    return list
end

TestRun = {}

function TestRun.setUp()
    folder = os.tmpname()
    os.remove(folder)
    mx.io.mkdir_p(folder)
end

function TestRun.tearDown()
    mx.io.remove_folder(folder)
end

function TestRun.test_what_a_run_leaves_behind()
    local run = train(config_of("run_name=a", "checkpoint_period=2"))
    local directory = folder .. "/a"
    lu.assertEquals(mx.io.list(directory), { "config.yml", "heartbeat.json", "log.txt", "metrics.jsonl",
        "parameters.h5", "script.lua", "step_2", "step_4", "tensorboard" })
    local rows = lines(directory .. "/metrics.jsonl")
    lu.assertEquals(#rows, 5)
    lu.assertEquals(rows[4].step, 4)
    lu.assertTrue(rows[5].summary)
    lu.assertStrContains(read(directory .. "/log.txt"), "parameters saved in")
    local beat = mx.io.json_decode(read(directory .. "/heartbeat.json"))
    lu.assertEquals({ beat.step, beat.steps, beat.loss }, { 4, 4, rows[4].loss })
    lu.assertStrContains(run.said, "checkpoint " .. directory .. "/step_2: training stood still for")
    -- Nothing is written without checkpointing.
    train(config_of("run_name=b", "enable_checkpointing=false"))
    lu.assertFalse(mx.io.exists(folder .. "/b"))
end

-- TFRecord and protocol buffers, read by the letter of their definitions.
local function read_events(path)
    local text, at, list = read(path), 1, {}
    local function masked(data)
        local crc = mx.io.crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff
    end
    while at <= #text do
        local length, crc = ("<I8I4"):unpack(text, at)
        lu.assertEquals(crc, masked(text:sub(at, at + 7)))
        local data = text:sub(at + 12, at + 11 + length)
        lu.assertEquals(("<I4"):unpack(text, at + 12 + length), masked(data))
        list[#list + 1] = data
        at = at + 16 + length
    end
    return list
end

local function fields(data)
    local list, at = {}, 1
    local function varint()
        local value, shift = 0, 0
        while true do
            local byte = data:byte(at)
            value, shift, at = value | (byte & 0x7f) << shift, shift + 7, at + 1
            if byte < 0x80 then
                return value
            end
        end
    end
    while at <= #data do
        local key = varint()
        local kind, value = key & 7
        if kind == 0 then
            value = varint()
        elseif kind == 1 then
            value, at = ("<d"):unpack(data, at)
        elseif kind == 5 then
            value, at = ("<f"):unpack(data, at)
        else
            local length = varint()
            value, at = data:sub(at, at + length - 1), at + length
        end
        list[#list + 1] = { key >> 3, value }
    end
    return list
end

function TestRun.test_tensorboard_events()
    train(config_of("run_name=a", "checkpoint_period=2"))
    local directory = folder .. "/a/tensorboard"
    local files = mx.io.list(directory)
    lu.assertEquals(#files, 1)
    lu.assertStrMatches(files[1], "events%.out%.tfevents%.%d+%.mxlua%.0000")
    local records = read_events(directory .. "/" .. files[1])
    lu.assertEquals(#records, 1 + 4)
    lu.assertEquals(fields(records[1])[3], { 3, "brain.Event:2" })
    local rows, found = lines(folder .. "/a/metrics.jsonl"), {}
    for step = 1, 4 do
        local event = fields(records[1 + step])
        lu.assertEquals(event[2], { 2, step })
        for _, value in ipairs(fields(event[3][2])) do
            local scalar = fields(value[2])
            found[scalar[1][2]] = scalar[2][2]
        end
        lu.assertAlmostEquals(found["learning/loss"], rows[step].loss, 1e-6)
        lu.assertAlmostEquals(found["learning/grad_norm"], rows[step].grad_norm, 1e-6)
    end
    lu.assertNotNil(found["perf/step_time_seconds"])
    -- A run that goes on adds a file, which says that later steps of the first do not count.
    train(config_of("run_name=a", "checkpoint_period=2", "steps=6"))
    files = mx.io.list(directory)
    lu.assertEquals(#files, 2)
    records = read_events(directory .. "/" .. files[2])
    lu.assertEquals(fields(records[2])[2], { 2, 5 })
    lu.assertEquals(fields(fields(records[2])[3][2]), { { 1, 1 } }) -- SessionLog.status = START
end

function TestRun.test_only_what_is_to_be_kept_stays()
    train(config_of("run_name=a", "checkpoint_period=1", "steps=7", "max_num_checkpoints_to_keep=2",
        "checkpoint_keep_period=3"))
    local left = {}
    for _, found in ipairs(mx.checkpoint.list(folder .. "/a")) do
        left[#left + 1] = found.step
    end
    lu.assertEquals(left, { 7, 6, 3 })
end

-- A save of step 1 was cut off where a checkpoint of step 1 is, too: both go when step 2 is whole.
function TestRun.test_what_was_cut_off_is_not_in_the_way()
    local params = {}
    mx.nn.parameter(params, "w", { 3 }, { value = 1 })
    local saver = mx.checkpoint.saver { directory = folder, params = params, keep = 1 }
    saver:save(1, { state = { n = 1 } })
    saver:wait()
    mx.io.mkdir_p(folder .. "/step_1.tmp")
    mx.io.mkdir_p(folder .. "/step_7.tmp") -- of a later step: of a run that went further
    saver:save(2, { state = { n = 2 } })
    saver:close()
    lu.assertEquals(mx.io.list(folder), { "step_2", "step_7.tmp" })
end

function TestRun.test_saving_at_once_and_from_a_copy_is_the_same()
    train(config_of("run_name=a", "checkpoint_period=2"))
    train(config_of("run_name=b", "checkpoint_period=2", "async_checkpointing=false"))
    for _, step in ipairs { 2, 4 } do
        local files = {}
        for i, name in ipairs { "a", "b" } do
            files[i] = mx.io.h5_read(("%s/%s/step_%d/rank_0.h5"):format(folder, name, step))
        end
        for name, t in pairs(files[1]) do
            lu.assertEquals(t:totable(), files[2][name]:totable(), name)
        end
    end
end

-- What is random in a step, and its rate, depend on its number, so that a run that is continued takes the same steps.
function TestRun.test_a_continued_run_draws_what_an_undisturbed_one_does()
    local words = {
        "weight_dtype=bfloat16", "dropout_rate=0.2", "checkpoint_period=2", "learning_rate_schedule_steps=4",
        "gradient_accumulation_steps=2", "learning_rate=1e-4",
        "lr_schedule_type=wsd", "wsd_decay_steps_fraction=0.75",
    }
    local function run_to(name, steps)
        return train(config_of("run_name=" .. name, "steps=" .. steps, table.unpack(words))).model.params
    end
    local whole = run_to("whole", 4)
    run_to("halves", 2)
    for name, t in pairs(run_to("halves", 4)) do
        lu.assertEquals(t:totable(), whole[name]:totable(), name)
    end
end

-- ---- how a run ends ----

-- A sweep that is killed between run:finish() and writing its row gets the same figures when it is started again.
function TestRun.test_a_run_that_has_ended_gives_its_figures_again()
    local words = { "run_name=a", "checkpoint_period=2" }
    local first = train(config_of(table.unpack(words))).summary
    local rows = lines(folder .. "/a/metrics.jsonl")
    lu.assertEquals({ first.step, first.loss }, { 4, rows[4].loss })
    local again = train(config_of(table.unpack(words))).summary
    lu.assertEquals({ again.step, again.loss, again.step_time_s }, { 4, first.loss, first.step_time_s })
    -- Killed between the last checkpoint and the summary: the loss is known from the checkpoint.
    os.remove(folder .. "/a/metrics.jsonl")
    again = train(config_of(table.unpack(words))).summary
    lu.assertEquals({ again.step, again.loss }, { 4, first.loss })
end

-- What raises in the loop ends the run, but not before the steps so far are saved.
function TestRun.test_an_error_in_the_loop_loses_no_step()
    local function fail(at)
        return function(step)
            if step == at then
                error("a bad token", 0)
            end
        end
    end
    local whole = train(config_of("run_name=whole", "dropout_rate=0.2", "steps=6")).model.params
    local good, message = pcall(train, config_of("run_name=a", "dropout_rate=0.2", "steps=6"), fail(4))
    lu.assertEquals({ good, message }, { false, "a bad token" })
    lu.assertEquals(mx.checkpoint.list(folder .. "/a")[1].step, 3)
    good = pcall(train, config_of("run_name=a", "dropout_rate=0.2", "steps=6"), fail(4)) -- nothing new to save
    lu.assertFalse(good)
    local result = train(config_of("run_name=a", "dropout_rate=0.2", "steps=6"))
    lu.assertStrContains(result.said, "RESUMING a after step 3")
    for name, t in pairs(result.model.params) do
        lu.assertEquals(t:totable(), whole[name]:totable(), name)
    end
end

-- An error after the parameters have changed: that state belongs to no step.
function TestRun.test_half_a_step_is_not_saved()
    local config = config_of("run_name=a")
    local good = pcall(quietly, function()
        local model = mx.models.new(config)
        local data, optimizer = mx.data.open(config), mx.optim.new(config, model.params)
        local run = mx.run.start(config, model, optimizer, data)
        for step in run:steps() do
            local loss = mx.train.gradients(model, data, 1)
            local norm = run:update(step, loss)
            if step == 3 then
                error("too late", 0)
            end
            run:ended(step, loss, norm)
        end
    end)
    lu.assertFalse(good)
    lu.assertEquals(mx.checkpoint.list(folder .. "/a"), {})
end

-- A sweep over one config: each name has its own folder.
function TestRun.test_one_config_under_several_names()
    local config = config_of("run_name=a")
    lu.assertErrorMsgContains("too early", train, config, function()
        error("too early", 0)
    end)
    config.run_name = "b"
    train(config)
    lu.assertTrue(mx.io.exists(folder .. "/b/parameters.h5"))
    lu.assertFalse(mx.io.exists(folder .. "/a/parameters.h5"))
end

-- Killed between the two renames by which a step that is saved once more takes the place of the first.
function TestRun.test_a_checkpoint_that_was_being_replaced_gets_its_name_back()
    train(config_of("run_name=a"))
    mx.io.move_folder(folder .. "/a/step_4", folder .. "/a/step_4.replaced-2")
    mx.io.mkdir_p(folder .. "/a/step_4.replaced-1")
    mx.io.mkdir_p(folder .. "/a/step_4.tmp")
    local result = train(config_of("run_name=a", "steps=5"))
    lu.assertStrContains(result.said, "RESUMING a after step 4 from " .. folder .. "/a/step_4 ")
end

-- A run may come from anyone, and so may the config that its checkpoints tell of.
function TestRun.test_what_a_checkpoint_says_does_not_reach_the_terminal_as_it_is()
    train(config_of("run_name=a"))
    local path = folder .. "/a/step_4/index.json"
    local index = mx.io.json_decode((read(path):gsub(',"crc32c":"%x+"}\n$', "}")))
    index.config = index.config:gsub("learning_rate: [^\n]+", "learning_rate: \27]0;owned\7")
    local text = mx.io.json_encode(index)
    local file <close> = io.open(path, "wb")
    file:write(('%s,"crc32c":"%08x"}\n'):format(text:sub(1, -2), mx.io.crc32c(text)))
    file:flush()
    local said = train(config_of("run_name=a", "steps=5")).said
    lu.assertStrContains(said, "learning_rate: 0.003, was \\x1b]0;owned\\x07")
    lu.assertNil(said:find("[\27\7]"))
end

function TestRun.test_checkpoints_are_left_alone_without_checkpointing()
    train(config_of("run_name=a"))
    local before = mx.io.list(folder .. "/a")
    local result = train(config_of("run_name=a", "enable_checkpointing=false", "steps=2"))
    lu.assertStrContains(result.said, "has checkpoints: with enable_checkpointing=false they are neither loaded nor")
    lu.assertEquals(mx.io.list(folder .. "/a"), before)
end

-- ---- steps that are no numbers ----

-- A NaN in a weight after step 2: what uses it first is named.
local function poison(name)
    return function(step, model)
        if step == 3 then
            mx.no_grad(function()
                mx.fill(mx.narrow(model.params[name]:detach(), { dim = 1, start = 1, length = 1 }), { value = 0 / 0 })
            end)
        end
    end
end

function TestRun.test_a_loss_that_is_no_number_ends_the_run_and_is_explained()
    local good, message = pcall(train, config_of("run_name=a", "checkpoint_period=2"), poison("layer002.wo.weight"))
    lu.assertFalse(good)
    message = tostring(message)
    lu.assertStrContains(message, "step 3: the loss is")
    lu.assertStrContains(message, "parameter layer002.wo.weight is not finite")
    lu.assertStrContains(message, "samples 4 to 5 of synthetic")
    lu.assertStrContains(message, "The last checkpoint is " .. folder .. "/a/step_2")
end

function TestRun.test_the_first_result_that_is_no_number_is_named()
    local config = config_of()
    local model = mx.models.new(config)
    local data = mx.data.open(config)
    mx.no_grad(function() -- finite weights whose product is not
        mx.fill(model.params["layer002.wi_0.weight"]:detach(), { value = 1e38 })
    end)
    local text = mx.guard.explain(model.params, function()
        mx.train.gradients(model, data, 1)
    end)
    lu.assertStrMatches(text,
        "layer 2, MLP: the result of matmul, f32 %(2, 16, 128%), has .*infinit.* of 4096 elements.*")
    lu.assertNil(model.params["layer001.wo.weight"]:grad())

    -- Backward repeats where forward was.
    local found = mx.find_bad(function()
        local step <close> = mx.step()
        local x = mx.nn.parameter({}, "x", { 4 }, { value = 0 })
        mx.place("the root")
        local y = x:sqrt()
        mx.place("the sum")
        mx.backward(y:sum())
    end)
    mx.place(nil)
    lu.assertEquals({ found.place, found.backward, found.infinities }, { "the root", true, 4 })
    lu.assertNil(mx.find_bad(function()
        return mx.randn { 3, 3 }
    end))
end

function TestRun.test_bad_steps_can_be_skipped()
    local before, after
    local result = train(config_of("run_name=a", "nonfinite_step=skip", "steps=6"), function(step, model)
        local weight = model.params["norm.weight"]:detach()
        if step == 3 then
            before = model.params["layer001.wo.weight"]:totable()
            mx.fill(weight, { value = 0 / 0 })
        elseif step == 4 then
            after = model.params["layer001.wo.weight"]:totable()
            mx.fill(weight, { value = 1 })
        end
    end)
    lu.assertEquals(before, after)
    lu.assertStrContains(result.said, "step 3 is skipped: the loss is")
    lu.assertEquals(result.optimizer.steps, 5)
    lu.assertNil(lines(folder .. "/a/metrics.jsonl")[3].loss)
    lu.assertStrContains(lines(folder .. "/a/metrics.jsonl")[3].skipped, "the loss is")
    -- A run that only skips comes to an end.
    local good, message = pcall(train, config_of("run_name=b", "nonfinite_step=skip", "steps=40"),
        poison("norm.weight"))
    lu.assertFalse(good)
    lu.assertStrContains(tostring(message), "the last 10 steps were all skipped")
end

-- The limit of five values 1, 3, 1, 3, 2: mean 2, and a variance of 4 / (5 - 1), so up to 2 + 6.
function TestRun.test_spikes()
    local words = { "skip_step_on_spikes=true", "skip_step_interval=12", "gradient_clipping_threshold=3.0" }
    local guard = mx.guard.new(config_of(table.unpack(words)))
    for _, value in ipairs { 1, 3, 1, 3, 2 } do -- 12 / 2 steps are needed, the new one included
        lu.assertNil(guard:refuses(1000))
        lu.assertEquals(guard:largest_norm(), math.huge)
        guard:record(value, 0.1 * value)
        guard:record(0 / 0, 1) -- is left out
    end
    lu.assertNil(guard:refuses(7.9))
    lu.assertStrContains(guard:refuses(8.1), "a loss of 8.1000 is a spike: the last 5 steps allow 8.0000")
    lu.assertAlmostEquals(guard:largest_norm(), 0.8, 1e-5)
    local again = mx.guard.new(config_of(table.unpack(words)))
    again:restore(mx.io.json_decode(mx.io.json_encode(guard:state())))
    lu.assertEquals(again:refuses(8.1), guard:refuses(8.1))
    guard:record(100, 50) -- a skipped step counts, with its norm after clipping
    lu.assertNil(guard:refuses(100))
    lu.assertEquals(guard:largest_norm(), math.huge) -- mean 0.67, deviation 1.15: above the threshold of clipping
    lu.assertNil(mx.guard.new(config_of()):refuses(1e30))
end

-- Equal clipped norms have no deviation: rounding must not make one of them a spike.
function TestRun.test_equal_norms_are_no_spikes()
    local guard = mx.guard.new(config_of("skip_step_on_spikes=true", "skip_step_interval=4",
        "gradient_clipping_threshold=0.7"))
    for _ = 1, 3 do
        guard:record(0.1, 5)
    end
    lu.assertNil(guard:refuses(0.1))
    lu.assertEquals(guard:largest_norm(), math.huge)
end

function TestRun.test_a_gradient_spike_changes_nothing()
    local params = {}
    local w = mx.nn.parameter(params, "w", { 2 }, { value = 1 })
    local optimizer = mx.optim.sgd(params, { learning_rate = 1 })
    do
        local step <close> = mx.step()
        mx.backward((w * 3):sum())
    end
    lu.assertAlmostEquals(optimizer:step(4), math.sqrt(18), 1e-6)
    lu.assertEquals(w:totable(), { 1, 1 })
    lu.assertNil(w:grad())
end

-- ---- what does not fit ----

function TestRun.test_loading_what_does_not_fit()
    train(config_of("run_name=a", "checkpoint_period=2"))
    local path = folder .. "/a/step_4"
    local function refused(pattern, ...)
        local words = { ... }
        local good, message = pcall(function()
            return train(config_of(table.unpack(words)))
        end)
        lu.assertFalse(good)
        lu.assertStrContains(tostring(message), pattern)
    end
    refused("has shape (64, 128), that of this run (64, 64)", "load_full_state_path=" .. path, "base_mlp_dim=64")
    refused("has no tensor 'parameters/layer003.", "load_full_state_path=" .. path, "base_num_decoder_layers=3")
    refused("that this run lacks", "load_full_state_path=" .. path, "base_num_decoder_layers=1")
    refused("was saved with opt_type=adamw, this run has sgd", "load_full_state_path=" .. path, "opt_type=sgd")
    refused("its data_shuffle_seed is 0, that of this run 7", "load_full_state_path=" .. path, "data_shuffle_seed=7")
    refused("is no checkpoint", "load_full_state_path=" .. folder .. "/step_9")
    refused("there is no checkpoint in", "load_full_state_path=" .. folder)
    refused("there is no '", "load_parameters_path=" .. folder .. "/nothing.h5")
    refused("load_full_state_path loads parameters, too", "load_full_state_path=x", "load_parameters_path=y")
    refused("has no effect without load_full_state_path", "restart_data=true")
end

-- The place in the data is that of a new run with these data; step, rate and moments continue.
function TestRun.test_the_optimizer_state_goes_on_with_other_data()
    local first = train(config_of("run_name=a", "checkpoint_period=2"))
    local function go_on(steps)
        return config_of("run_name=b", "steps=" .. steps, "load_full_state_path=" .. folder .. "/a/step_4",
            "restart_data=true", "max_target_length=8", "data_shuffle_seed=7", "dataset_type=text",
            "dataset_path=" .. mx.root .. "LICENSE")
    end
    local config = go_on(5)
    local second, fresh = train(config), mx.data.open(config)
    fresh:next()
    lu.assertEquals(second.run.data:state(), fresh:state())
    lu.assertEquals(second.optimizer.steps, 5)
    for name, moments in pairs(second.optimizer.state) do -- v = beta2 v + (1 - beta2) g^2
        local old = first.optimizer.state[name].v * second.optimizer.options.beta2
        lu.assertTrue(mx.max(old - moments.v):item() <= 1e-12, name)
    end
    -- The run's own checkpoint has its place in the new data.
    lu.assertEquals(train(go_on(6)).run.data.samples, 2 * fresh.samples)
end

function TestRun.test_parameters_alone_come_from_checkpoints_too()
    local first = train(config_of("run_name=a", "checkpoint_period=2"))
    for _, name in ipairs { "/a/step_4", "/a/step_4/", "/a", "/a/parameters.h5" } do
        local path = folder .. name
        local model = mx.models.new(config_of("opt_type=sgd"))
        quietly(mx.run.load_parameters, path, model)
        for parameter, t in pairs(model.params) do
            lu.assertEquals(t:totable(), first.model.params[parameter]:totable())
        end
    end
    -- In another dtype they are rounded, as a conversion would.
    local bf16 = mx.models.new(config_of("weight_dtype=bfloat16"))
    quietly(mx.run.load_parameters, folder .. "/a/step_4", bf16)
    lu.assertEquals(bf16.params["layer001.wo.weight"]:totable(),
        first.model.params["layer001.wo.weight"]:detach():to("bf16"):totable())
end

-- Parameters of the same sizes may belong to another model: a difference that nobody has asked for is refused.
function TestRun.test_parameters_of_another_model()
    train(config_of("run_name=a", "checkpoint_period=2", "rope_max_timescale=500"))
    for _, name in ipairs { "/a/step_4", "/a", "/a/parameters.h5" } do
        local path = folder .. name
        lu.assertErrorMsgContains("rope_max_timescale: 10000.0, but " .. path .. " was trained with 500.0: leave "
            .. "model_name out", train, config_of("load_parameters_path=" .. path))
        local said, say = {}, mx.metrics.say
        mx.metrics.say = function(format, ...)
            said[#said + 1] = format:format(...)
        end
        local config = config_of("load_parameters_path=" .. path, "rope_max_timescale=20")
        mx.run.load_parameters(path, mx.models.new(config), config)
        mx.metrics.say = say
        lu.assertEquals(said, { "rope_max_timescale is 20.0, and " .. path .. " was trained with 500.0" })
    end
end

function TestRun.test_names_and_texts_survive()
    local about = { state = { note = "naïve \"quoted\"\n", n = 1 << 60, list = { 1.5, 0.1 } }, config = "a: 1\n" }
    local params = {}
    mx.nn.parameter(params, "odd name.with: signs", { 3 }, { std = 1 })
    mx.nn.parameter(params, "scalar", {}, { value = 2 })
    mx.nn.parameter(params, "empty", { 0, 4 }, { value = 2 })
    local saver = mx.checkpoint.saver { directory = folder, params = params }
    saver:save(1, about)
    saver:wait()
    local again = {}
    for name, t in pairs(params) do
        mx.nn.parameter(again, name, t:size(), { value = 0 })
    end
    local index = mx.checkpoint.load(folder .. "/step_1", { params = again })
    lu.assertEquals(index.state, about.state)
    lu.assertEquals(index.config, "a: 1\n")
    for name, t in pairs(params) do
        lu.assertEquals(again[name]:totable(), t:totable(), name)
    end
    local _, elements = require("mx.checkpoint.files").verify(folder .. "/step_1")
    lu.assertEquals(elements, 4)
end

-- ---- data that a step cannot be taken with ----

-- 20,000 tokens of uint16; the one at `bad_at` is outside the vocabulary of the model.
local function write_tokens(path, bad_at)
    local tokens = {}
    for i = 1, 20000 do
        tokens[i] = string.pack("<I2", i - 1 == bad_at and 300 or i * 7 % 250)
    end
    mx.io.write_file_atomic(path, table.concat(tokens))
end

-- A step reads 4 sequences of 512 tokens: token 9,000 comes first in step 5.
function TestRun.test_a_token_outside_the_vocabulary_keeps_what_has_been_trained()
    local path, measured_peak = folder .. "/late.bin", mx.metrics.measured_peak
    mx.metrics.measured_peak = function() end -- five runs: that it is measured wrongly is not for this test
    local function config(...)
        return config_of("dataset_type=bin", "dataset_path=" .. path, "vocab_size=256", "max_target_length=512",
            "per_device_batch_size=4", "steps=6", "enable_data_shuffling=false", "base_num_decoder_layers=1", ...)
    end
    for _, ahead in ipairs({ "0", "2" }) do
        write_tokens(path, 9000)
        local good, message = pcall(train, config("run_name=a" .. ahead, "prefetch_batches=" .. ahead))
        lu.assertFalse(good)
        lu.assertStrContains(tostring(message), path .. "' has the token id 300 at position 9000, outside the "
            .. "vocabulary of 256")
        lu.assertEquals(mx.checkpoint.list(folder .. "/a" .. ahead)[1].step, 4)
    end
    write_tokens(path)
    local again = train(config("run_name=a2"))
    lu.assertStrContains(again.said, "after step 4")
    local whole = train(config("run_name=b")) -- as if the token had never been wrong
    mx.metrics.measured_peak = measured_peak
    for name, t in pairs(whole.model.params) do
        lu.assertEquals(again.model.params[name]:totable(), t:totable())
    end
end

-- The first document has targets for two steps; what follows are documents of one token.
function TestRun.test_a_step_without_a_target_has_no_loss()
    local path = folder .. "/short.h5"
    local part = mx.io.token_part(path .. ".part", 2)
    for d = 1, 200 do
        part:add(mx.zeros({ d == 1 and 65 or 1 }, "i32"))
    end
    part:commit()
    mx.io.token_parts_merge({ path .. ".part" }, path, { vocab_size = 256, tokenizer = "bytes", fingerprint = "bytes" })
    local metrics, before = folder .. "/m.jsonl", nil
    local result = train(config_of("dataset_type=hdf5", "dataset_path=" .. path, "enable_data_shuffling=false",
        "run_name=a", "metrics_file=" .. metrics, "log_period=1"), function(step, model)
        if step == 3 then
            before = model.params["layer001.wo.weight"]:clone():totable()
        end
    end)
    lu.assertStrContains(result.said, "step 3 is skipped: no token of it is a target. The batch: samples 4 to 5")
    lu.assertNotStrContains(result.said, " 0.0000 ")
    lu.assertStrMatches(result.said, ".* 4/4 [^\n]* none .*")
    local rows = lines(metrics)
    lu.assertTrue(rows[2].loss > 1 and rows[2].skipped == nil)
    for step = 3, 4 do
        lu.assertNil(rows[step].loss)
        lu.assertNil(rows[step].grad_norm)
        lu.assertEquals(rows[step].skipped, "no token of it is a target")
    end
    -- Weight decay has not been at work either.
    lu.assertEquals(result.model.params["layer001.wo.weight"]:totable(), before)
    lu.assertEquals(result.optimizer.steps, 2)
end
