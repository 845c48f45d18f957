-- A run: what it leaves behind, checkpoints that are kept, and those that do not fit.
local mx = require "mx"
local lu = require "luaunit"
local runs = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "runs.lua")

local config_of, quietly, train, read, lines = runs.config_of, runs.quietly, runs.train, runs.read, runs.lines

TestRun = { setUp = runs.setUp, tearDown = runs.tearDown }

function TestRun.test_what_a_run_leaves_behind()
    local run = train(config_of("run_name=a", "checkpoint_period=2"))
    local directory = runs.folder .. "/a"
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
    lu.assertFalse(mx.io.exists(runs.folder .. "/b"))
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
    local directory = runs.folder .. "/a/tensorboard"
    local files = mx.io.list(directory)
    lu.assertEquals(#files, 1)
    lu.assertStrMatches(files[1], "events%.out%.tfevents%.%d+%.mxlua%.0000")
    local records = read_events(directory .. "/" .. files[1])
    lu.assertEquals(#records, 1 + 4)
    lu.assertEquals(fields(records[1])[3], { 3, "brain.Event:2" })
    local rows, found = lines(runs.folder .. "/a/metrics.jsonl"), {}
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
    for _, found in ipairs(mx.checkpoint.list(runs.folder .. "/a")) do
        left[#left + 1] = found.step
    end
    lu.assertEquals(left, { 7, 6, 3 })
end

-- A save of step 1 was cut off where a checkpoint of step 1 is, too: both go when step 2 is whole.
function TestRun.test_what_was_cut_off_is_not_in_the_way()
    local params = {}
    mx.nn.parameter(params, "w", { 3 }, { value = 1 })
    local saver = mx.checkpoint.saver { directory = runs.folder, params = params, keep = 1 }
    saver:save(1, { state = { n = 1 } })
    saver:wait()
    mx.io.mkdir_p(runs.folder .. "/step_1.tmp")
    mx.io.mkdir_p(runs.folder .. "/step_7.tmp") -- of a later step: of a run that went further
    saver:save(2, { state = { n = 2 } })
    saver:close()
    lu.assertEquals(mx.io.list(runs.folder), { "step_2", "step_7.tmp" })
end

function TestRun.test_saving_at_once_and_from_a_copy_is_the_same()
    train(config_of("run_name=a", "checkpoint_period=2"))
    train(config_of("run_name=b", "checkpoint_period=2", "async_checkpointing=false"))
    for _, step in ipairs { 2, 4 } do
        local files = {}
        for i, name in ipairs { "a", "b" } do
            files[i] = mx.io.h5_read(("%s/%s/step_%d/rank_0.h5"):format(runs.folder, name, step))
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
    local rows = lines(runs.folder .. "/a/metrics.jsonl")
    lu.assertEquals({ first.step, first.loss }, { 4, rows[4].loss })
    local again = train(config_of(table.unpack(words))).summary
    lu.assertEquals({ again.step, again.loss, again.step_time_s }, { 4, first.loss, first.step_time_s })
    -- Killed between the last checkpoint and the summary: the loss is known from the checkpoint.
    os.remove(runs.folder .. "/a/metrics.jsonl")
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
    lu.assertEquals(mx.checkpoint.list(runs.folder .. "/a")[1].step, 3)
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
    lu.assertEquals(mx.checkpoint.list(runs.folder .. "/a"), {})
end

-- A sweep over one config: each name has its own folder.
function TestRun.test_one_config_under_several_names()
    local config = config_of("run_name=a")
    lu.assertErrorMsgContains("too early", train, config, function()
        error("too early", 0)
    end)
    config.run_name = "b"
    train(config)
    lu.assertTrue(mx.io.exists(runs.folder .. "/b/parameters.h5"))
    lu.assertFalse(mx.io.exists(runs.folder .. "/a/parameters.h5"))
end

-- Killed between the two renames by which a step that is saved once more takes the place of the first.
function TestRun.test_a_checkpoint_that_was_being_replaced_gets_its_name_back()
    train(config_of("run_name=a"))
    mx.io.move_folder(runs.folder .. "/a/step_4", runs.folder .. "/a/step_4.replaced-2")
    mx.io.mkdir_p(runs.folder .. "/a/step_4.replaced-1")
    mx.io.mkdir_p(runs.folder .. "/a/step_4.tmp")
    local result = train(config_of("run_name=a", "steps=5"))
    lu.assertStrContains(result.said, "RESUMING a after step 4 from " .. runs.folder .. "/a/step_4 ")
end

-- A run may come from anyone, and so may the config that its checkpoints tell of.
function TestRun.test_what_a_checkpoint_says_does_not_reach_the_terminal_as_it_is()
    train(config_of("run_name=a"))
    local path = runs.folder .. "/a/step_4/index.json"
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
    local before = mx.io.list(runs.folder .. "/a")
    local result = train(config_of("run_name=a", "enable_checkpointing=false", "steps=2"))
    lu.assertStrContains(result.said, "has checkpoints: with enable_checkpointing=false they are neither loaded nor")
    lu.assertEquals(mx.io.list(runs.folder .. "/a"), before)
end

-- ---- what does not fit ----

function TestRun.test_loading_what_does_not_fit()
    train(config_of("run_name=a", "checkpoint_period=2"))
    local path = runs.folder .. "/a/step_4"
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
    refused("is no checkpoint", "load_full_state_path=" .. runs.folder .. "/step_9")
    refused("there is no checkpoint in", "load_full_state_path=" .. runs.folder)
    refused("there is no '", "load_parameters_path=" .. runs.folder .. "/nothing.h5")
    refused("load_full_state_path loads parameters, too", "load_full_state_path=x", "load_parameters_path=y")
    refused("has no effect without load_full_state_path", "restart_data=true")
end

-- The place in the data is that of a new run with these data; step, rate and moments continue.
function TestRun.test_the_optimizer_state_goes_on_with_other_data()
    local first = train(config_of("run_name=a", "checkpoint_period=2"))
    local function go_on(steps)
        return config_of("run_name=b", "steps=" .. steps, "load_full_state_path=" .. runs.folder .. "/a/step_4",
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
        local path = runs.folder .. name
        local model = mx.models.new(config_of("opt_type=sgd"))
        quietly(mx.run.load_parameters, path, model)
        for parameter, t in pairs(model.params) do
            lu.assertEquals(t:totable(), first.model.params[parameter]:totable())
        end
    end
    -- In another dtype they are rounded, as a conversion would.
    local bf16 = mx.models.new(config_of("weight_dtype=bfloat16"))
    quietly(mx.run.load_parameters, runs.folder .. "/a/step_4", bf16)
    lu.assertEquals(bf16.params["layer001.wo.weight"]:totable(),
        first.model.params["layer001.wo.weight"]:detach():to("bf16"):totable())
end

-- Parameters of the same sizes may belong to another model: a difference that nobody has asked for is refused.
function TestRun.test_parameters_of_another_model()
    train(config_of("run_name=a", "checkpoint_period=2", "rope_max_timescale=500"))
    for _, name in ipairs { "/a/step_4", "/a", "/a/parameters.h5" } do
        local path = runs.folder .. name
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
    local saver = mx.checkpoint.saver { directory = runs.folder, params = params }
    saver:save(1, about)
    saver:wait()
    local again = {}
    for name, t in pairs(params) do
        mx.nn.parameter(again, name, t:size(), { value = 0 })
    end
    local index = mx.checkpoint.load(runs.folder .. "/step_1", { params = again })
    lu.assertEquals(index.state, about.state)
    lu.assertEquals(index.config, "a: 1\n")
    for name, t in pairs(params) do
        lu.assertEquals(again[name]:totable(), t:totable(), name)
    end
    local _, elements = require("mx.checkpoint.files").verify(runs.folder .. "/step_1")
    lu.assertEquals(elements, 4)
end
