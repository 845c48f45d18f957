-- Steps of a run that change nothing: losses that are no numbers, spikes, tokens outside the vocabulary, no target.
local mx = require "mx"
local lu = require "luaunit"
local runs = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "runs.lua")

local config_of, train, lines = runs.config_of, runs.train, runs.lines

TestBadSteps = { setUp = runs.setUp, tearDown = runs.tearDown }

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

function TestBadSteps.test_a_loss_that_is_no_number_ends_the_run_and_is_explained()
    local good, message = pcall(train, config_of("run_name=a", "checkpoint_period=2"), poison("layer002.wo.weight"))
    lu.assertFalse(good)
    message = tostring(message)
    lu.assertStrContains(message, "step 3: the loss is")
    lu.assertStrContains(message, "parameter layer002.wo.weight is not finite")
    lu.assertStrContains(message, "samples 4 to 5 of synthetic")
    lu.assertStrContains(message, "The last checkpoint is " .. runs.folder .. "/a/step_2")
end

function TestBadSteps.test_the_first_result_that_is_no_number_is_named()
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

function TestBadSteps.test_bad_steps_can_be_skipped()
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
    lu.assertNil(lines(runs.folder .. "/a/metrics.jsonl")[3].loss)
    lu.assertStrContains(lines(runs.folder .. "/a/metrics.jsonl")[3].skipped, "the loss is")
    -- A run that only skips comes to an end.
    local good, message = pcall(train, config_of("run_name=b", "nonfinite_step=skip", "steps=40"),
        poison("norm.weight"))
    lu.assertFalse(good)
    lu.assertStrContains(tostring(message), "the last 10 steps were all skipped")
end

-- The limit of five values 1, 3, 1, 3, 2: mean 2, and a variance of 4 / (5 - 1), so up to 2 + 6.
function TestBadSteps.test_spikes()
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
function TestBadSteps.test_equal_norms_are_no_spikes()
    local guard = mx.guard.new(config_of("skip_step_on_spikes=true", "skip_step_interval=4",
        "gradient_clipping_threshold=0.7"))
    for _ = 1, 3 do
        guard:record(0.1, 5)
    end
    lu.assertNil(guard:refuses(0.1))
    lu.assertEquals(guard:largest_norm(), math.huge)
end

function TestBadSteps.test_a_gradient_spike_changes_nothing()
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
function TestBadSteps.test_a_token_outside_the_vocabulary_keeps_what_has_been_trained()
    local path, measured_peak = runs.folder .. "/late.bin", mx.metrics.measured_peak
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
        lu.assertEquals(mx.checkpoint.list(runs.folder .. "/a" .. ahead)[1].step, 4)
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
function TestBadSteps.test_a_step_without_a_target_has_no_loss()
    local path = runs.folder .. "/short.h5"
    local part = mx.io.token_part(path .. ".part", 2)
    for d = 1, 200 do
        part:add(mx.zeros({ d == 1 and 65 or 1 }, "i32"))
    end
    part:commit()
    mx.io.token_parts_merge({ path .. ".part" }, path, { vocab_size = 256, tokenizer = "bytes", fingerprint = "bytes" })
    local metrics, before = runs.folder .. "/m.jsonl", nil
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
