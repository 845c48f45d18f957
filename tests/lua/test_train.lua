-- Training: clipping, data, the loop, saving and loading, generating.

local lu = require "luaunit"
local mx = require "mx"
local checks = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "checks.lua")

TestTrain = {}

local WORDS = checks.made_text(60000)
local TEXT = os.tmpname() -- a file with these words

function TestTrain.setUp()
    mx.io.write_file_atomic(TEXT, WORDS)
end

function TestTrain.tearDown()
    os.remove(TEXT)
end

local function config_of(...)
    return mx.config.load({ "model_name=tiny", ... })
end

-- A parameter w = (3, 4) with gradient (3, 4): the loss is w.w / 2.
local function quadratic()
    local w = mx.tensor({ 3, 4 }):keep():requires_grad()
    return { w = w }, function()
        local step <close> = mx.step()
        mx.backward((w * w):sum() * 0.5)
    end
end

function TestTrain.test_sgd_clips_by_the_global_norm()
    local params, backward = quadratic()
    local optimizer = mx.optim.sgd(params, { learning_rate = 0.5, clip = 1 })
    backward()
    lu.assertAlmostEquals(optimizer:step(), 5, 1e-6) -- the norm before clipping
    lu.assertAlmostEquals(params.w:get(1), 3 - 0.5 * 3 / 5, 1e-6)
    lu.assertAlmostEquals(params.w:get(2), 4 - 0.5 * 4 / 5, 1e-6)
    lu.assertNil(params.w:grad())
end

function TestTrain.test_adamw_first_step()
    -- Bias correction makes the first step the learning rate times the gradient's sign, and decay lr * wd * w.
    local params, backward = quadratic()
    local optimizer = mx.optim.adamw(params, { learning_rate = 0.1, weight_decay = 0.5 })
    backward()
    optimizer:step()
    lu.assertAlmostEquals(params.w:get(1), 3 - 0.1 * (1 + 0.5 * 3), 1e-5)
    lu.assertAlmostEquals(params.w:get(2), 4 - 0.1 * (1 + 0.5 * 4), 1e-5)
end

function TestTrain.test_a_misspelt_option_is_an_error()
    lu.assertErrorMsgContains("mx.optim.adamw has no option 'learning_rat', did you mean 'learning_rate'?",
        mx.optim.adamw, {}, { learning_rat = 1 })
    lu.assertErrorMsgContains("mx.nn.linear has no option 'biass'", mx.nn.linear, {}, "l", 2, 3, { biass = true })
end

function TestTrain.test_gradients_that_are_not_finite_change_nothing()
    local params = quadratic()
    local optimizer = mx.optim.adamw(params, {})
    do
        local step <close> = mx.step()
        mx.backward((params.w * (1 / 0)):sum())
    end
    lu.assertTrue(optimizer:step() == math.huge)
    lu.assertEquals(params.w:totable(), { 3, 4 })
    lu.assertNil(params.w:grad())
    lu.assertEquals(optimizer.steps, 0)
end

function TestTrain.test_synthetic_data_are_one_random_batch()
    local data = mx.data.open(config_of("max_target_length=2048"))
    local first, second = data:next(), data:next()
    lu.assertEquals(first.tokens:size(), { 8, 2048 })
    lu.assertEquals(first.tokens:dtype(), "i32")
    lu.assertEquals(first.targets[1]:totable()[1], first.tokens[1]:totable()[2])
    lu.assertEquals(first.tokens:totable(), second.tokens:totable())
    lu.assertEquals({ first.ids, second.ids }, { { 0, 7 }, { 8, 15 } })
    local counts, rows = {}, first.tokens:totable()
    for _, row in ipairs(rows) do
        for _, token in ipairs(row) do
            counts[token] = (counts[token] or 0) + 1
        end
    end
    -- Each of the 256 ids comes 64 times on average; six standard deviations of a Poisson count are 48.
    for token = 0, 255 do
        lu.assertTrue(math.abs((counts[token] or 0) - 64) < 48, token)
    end
    lu.assertNotEquals(rows[1], rows[2])
    local other = mx.data.open(config_of("max_target_length=2048", "data_shuffle_seed=1")):next()
    lu.assertNotEquals(other.tokens:totable(), rows)
end

-- The passes of a step have the sequences that one larger batch has.
function TestTrain.test_synthetic_passes_are_parts_of_one_batch()
    local whole = mx.data.open(config_of()):next().tokens:totable()
    local data = mx.data.open(config_of("per_device_batch_size=2", "gradient_accumulation_steps=4"))
    local rows = {}
    for _ = 1, 4 do
        table.move(data:next().tokens:totable(), 1, 2, #rows + 1, rows)
    end
    lu.assertEquals(rows, whole)
    lu.assertEquals(data:next().tokens:totable(), { whole[1], whole[2] })
end

-- Initial logits are normal with variance 1, so the mean loss is log(256) + 1 / 2. Its standard deviation over 512
-- targets is 1 / sqrt(512), with some more for the random weights.
function TestTrain.test_the_loss_of_synthetic_data_begins_near_the_logarithm_of_the_vocabulary()
    local config = config_of("dtype=float32")
    local model, data = mx.models.new(config), mx.data.open(config)
    lu.assertAlmostEquals(mx.train.gradients(model, data, 1), math.log(256) + 0.5, 0.25)
end

-- A mesh that shares out the batch reads the same sequences, whatever its size, in every batch.
function TestTrain.test_parts_of_synthetic_data_are_those_of_the_whole()
    local function batches(mesh, sequences)
        local data = mx.data.open(config_of("per_device_batch_size=" .. sequences), mesh)
        return { data:next().tokens, data:next().tokens }
    end
    local whole, mesh_config = batches(nil, 4), config_of("ici_fsdp_parallelism=2")
    for part = 0, 1 do
        local own = batches(mx.mesh.plan(mesh_config, 2, part), 2)
        for i = 1, 2 do
            local expected = mx.narrow(whole[i], { dim = 1, start = 2 * part + 1, length = 2 })
            lu.assertEquals(own[i]:totable(), expected:totable())
        end
    end
    lu.assertEquals(whole[1]:totable(), whole[2]:totable())
end

function TestTrain.test_windows_of_a_text()
    local text = WORDS
    local data = mx.data.open(config_of("dataset_type=text", "dataset_path=" .. TEXT))
    local batch = data:next()
    for b = 1, 8 do
        local window = string.char(table.unpack(batch.tokens[b]:totable()))
        local at = text:find(window, 1, true)
        lu.assertNotNil(at)
        local targets = string.char(table.unpack(batch.targets[b]:totable()))
        lu.assertEquals(targets, text:sub(at + 1, at + 64))
    end
end

local function with_file(content, fn)
    local path = os.tmpname()
    local file = assert(io.open(path, "wb"))
    file:write(content)
    file:close()
    fn(path)
    os.remove(path)
end

local function refused_data(path, kind, expected)
    local opened, message = pcall(function()
        mx.data.open(config_of("dataset_type=" .. kind, "dataset_path=" .. path)):next()
    end)
    lu.assertFalse(opened)
    lu.assertStrContains(tostring(message), expected)
end

function TestTrain.test_bad_data()
    refused_data("no/such/file", "text", "no/such/file")
    with_file("short", function(path)
        refused_data(path, "text", "has 5 tokens; one sequence and its targets take 65")
    end)
    with_file(("odd"):rep(43), function(path)
        refused_data(path, "bin", path)
    end)
    with_file(string.pack("<I2", 256):rep(65), function(path)
        refused_data(path, "bin", "token id 256 at position 0, outside the vocabulary of 256")
    end)
    with_file(string.pack("<I2", 255):rep(65), function(path)
        local data = mx.data.open(config_of("dataset_type=bin", "dataset_path=" .. path))
        lu.assertEquals(mx.max(data:next().tokens):item(), 255)
    end)
end

-- Trains a fresh model; returns it and its last loss.
local function train(steps, ...)
    local config = config_of("dataset_type=text", "dataset_path=" .. TEXT, "steps=" .. steps, ...)
    local model = mx.models.new(config)
    local data, optimizer = mx.data.open(config), mx.optim.new(config, model.params)
    local loss
    for _ = 1, steps do
        loss = mx.train.gradients(model, data, config.gradient_accumulation_steps)
        optimizer:step()
    end
    return model, loss, config
end

-- What a byte of the text costs on average for one who knows how often it follows the byte before.
local function entropy_after_a_byte(text)
    local pairs_of, bytes, sum = {}, {}, 0
    for i = 2, #text do
        local pair, before = text:sub(i - 1, i), text:byte(i - 1)
        pairs_of[pair], bytes[before] = (pairs_of[pair] or 0) + 1, (bytes[before] or 0) + 1
    end
    for pair, n in pairs(pairs_of) do
        sum = sum - n * math.log(n / bytes[pair:byte(1)])
    end
    return sum / (#text - 1)
end

-- A byte costs log(256) at first. Below what it costs after the byte before, the model uses more of its context.
function TestTrain.test_tiny_learns_a_text()
    local _, first = train(1)
    lu.assertAlmostEquals(first, math.log(256), 0.6)
    local _, last = train(120)
    local bound = entropy_after_a_byte(WORDS) -- 1.46
    lu.assertTrue(last < 0.9 * bound, ("the loss is %g, and the entropy %g"):format(last, bound))
end

function TestTrain.test_every_optimizer_learns()
    for _, words in ipairs {
        { "opt_type=lion", "learning_rate=5e-4", "lion_b2=0.98" }, { "opt_type=adafactor", "learning_rate=0.02" },
        { "opt_type=muon", "learning_rate=0.02", "muon_adamw_scale=0.15", "muon_weight_decay=0.01" },
    } do
        local _, last = train(60, table.unpack(words))
        lu.assertTrue(last < 3.2, words[1] .. ": " .. last) -- of log(256) = 5.5
    end
end

-- With a rate of 1e-4 an update is a small part of the distance of two bf16 numbers near most weights. Rounded to the
-- nearest it is lost. Rounded by chance the weights go, in the mean, the way that f32 weights go, and learn as much.
function TestTrain.test_small_updates_of_bf16_weights_are_not_lost()
    for _, optimizer in ipairs({
        { "learning_rate=1e-4" }, { "opt_type=sgd", "learning_rate=0.02" }, { "opt_type=lion", "learning_rate=1e-4" },
    }) do
        local function run(dtype)
            local words = { "weight_dtype=" .. dtype, "dtype=float32", "max_target_length=32", table.unpack(optimizer) }
            local first, config = {}, config_of(table.unpack(words))
            for name, t in pairs(mx.models.new(config).params) do
                first[name] = t:detach():to("f32"):keep()
            end
            local model, loss = train(40, table.unpack(words))
            local path = {}
            for name, t in pairs(model.params) do
                path[name] = (t:detach():to("f32") - first[name]):keep()
            end
            return path, loss
        end
        local exact, exact_loss = run("float32")
        local path, loss = run("bfloat16")
        local along, square, moved, all = 0, 0, 0, 0
        for name, t in pairs(exact) do
            along, square = along + (t * path[name]):sum():item(), square + (t * t):sum():item()
            moved, all = moved + path[name]:ne(0):to("f32"):sum():item(), all + t:numel()
        end
        local what = optimizer[1]
        lu.assertAlmostEquals(along / square, 1, 0.05, what .. ": how far along the way of f32 weights")
        lu.assertTrue(moved / all > 0.5, ("%s: %g of the weights moved"):format(what, moved / all))
        lu.assertAlmostEquals(loss / exact_loss, 1, 0.01, what)
        local again = run("bfloat16")
        for name, t in pairs(path) do
            lu.assertEquals((again[name] - t):abs():max():item(), 0, name)
        end
    end
end

function TestTrain.test_policies_do_not_change_the_result()
    local _, none = train(3, "remat_policy=none")
    for _, policy in ipairs({ "full", "minimal", "save_qkv_proj" }) do
        local _, loss = train(3, "remat_policy=" .. policy)
        lu.assertEquals(loss, none)
    end
end

function TestTrain.test_accumulation_averages()
    -- Two passes of 4 sequences see what one pass of 8 sees.
    local _, whole = train(3, "dtype=float32")
    local _, parts = train(3, "dtype=float32", "per_device_batch_size=4", "gradient_accumulation_steps=2")
    lu.assertAlmostEquals(whole, parts, 1e-5)
end

function TestTrain.test_dropout_repeats_and_differs_between_passes()
    local _, a = train(2, "dropout_rate=0.2", "learning_rate=0", "reuse_example_batch=1")
    local _, again = train(2, "dropout_rate=0.2", "learning_rate=0", "reuse_example_batch=1")
    local _, first = train(1, "dropout_rate=0.2", "learning_rate=0", "reuse_example_batch=1")
    local _, kept = train(2, "dropout_rate=0.2", "learning_rate=0", "reuse_example_batch=1", "remat_policy=none")
    lu.assertEquals(a, again)
    lu.assertNotEquals(a, first)
    lu.assertEquals(a, kept)
end

function TestTrain.test_memory_stays_the_same()
    local config = config_of()
    local model = mx.models.new(config)
    local data, optimizer = mx.data.open(config), mx.optim.new(config, model.params)
    local function step()
        mx.train.gradients(model, data, 1)
        optimizer:step()
    end
    step()
    collectgarbage() -- handles that other tests left
    step()
    local before = mx.memory()
    for _ = 1, 30 do
        step()
    end
    lu.assertEquals(mx.memory().in_use, before.in_use)
    lu.assertEquals(mx.memory().reserved, before.reserved)
end

function TestTrain.test_saving_and_loading()
    local model, _, config = train(2)
    local path = os.tmpname()
    mx.nn.save(model.params, path, { config = mx.config.dump(config) })
    local other = mx.models.new(config_of("init_weights_seed=9"))
    mx.nn.load(other.params, path)
    for name, t in pairs(model.params) do
        lu.assertEquals(other.params[name]:totable(), t:totable())
    end
    local narrower = mx.models.new(config_of("base_mlp_dim=96"))
    local loaded, message = pcall(mx.nn.load, narrower.params, path)
    lu.assertFalse(loaded)
    lu.assertStrContains(tostring(message), "'layer001.wi_0.weight' is 64x128, the model's is 64x96")
    os.remove(path)
end

function TestTrain.test_a_cache_gives_the_same_logits()
    for _, name in ipairs({ "tiny", "tiny-gpt2" }) do
        local model = mx.models.new(mx.config.load({ "model_name=" .. name, "dtype=float32" }))
        mx.no_grad(function()
            local step <close> = mx.step()
            local tokens = { 72, 101, 108, 108, 111, 33, 10 }
            local whole = model:logits(model:hidden(mx.tensor({ tokens }, "i32")))
            local cache = model:new_cache(1, #tokens)
            local offset = 0
            for _, part in ipairs({ { 72, 101, 108 }, { 108 }, { 111, 33 }, { 10 } }) do
                local h = model:hidden(mx.tensor({ part }, "i32"), { cache = cache, offset = offset })
                local logits = model:logits(h)
                for s = 1, #part do
                    local apart = mx.max(mx.abs(logits[1][s] - whole[1][offset + s])):item()
                    lu.assertTrue(apart < 1e-5)
                end
                offset = offset + #part
            end
        end)
    end
end

function TestTrain.test_generating_repeats_with_a_seed()
    local model = train(20)
    local function text(options)
        local ids = {}
        local o = { tokens = 12, temperature = 1, top_k = 0, top_p = 1, seed = 1 }
        for key, value in pairs(options) do
            o[key] = value
        end
        mx.generate.continue(model, { 35, 32 }, o, function(id)
            ids[#ids + 1] = id
        end)
        return ids
    end
    lu.assertEquals(text({}), text({}))
    lu.assertNotEquals(text({}), text({ seed = 2 }))
    lu.assertEquals(text({ temperature = 0 }), text({ temperature = 0, seed = 2 }))
    lu.assertEquals(text({ top_k = 1 }), text({ temperature = 0 }))
end

function TestTrain.test_sampling()
    local logits = { math.log(0.1), math.log(0.4), math.log(0.3), math.log(0.2) }
    local function draw(o, u)
        local all = { temperature = o.temperature or 1, top_k = o.top_k or 0, top_p = o.top_p or 1,
            choose_first = o.choose_first }
        return mx.generate.sample(logits, all, function() return u end)
    end
    lu.assertEquals(draw({ temperature = 0 }, 0.99), 1)
    lu.assertEquals({ draw({}, 0.05), draw({}, 0.45), draw({}, 0.75), draw({}, 0.95) }, { 0, 1, 2, 3 })
    lu.assertEquals({ draw({ top_k = 2 }, 0.5), draw({ top_k = 2 }, 0.99) }, { 1, 2 }) -- 4/7 and 3/7
    lu.assertEquals({ draw({ top_p = 0.6 }, 0.5), draw({ top_p = 0.6 }, 0.99) }, { 1, 2 })
    lu.assertEquals(draw({ top_p = 0 }, 0.99), 1) -- the likeliest always stays
    -- At temperature 1/2 the chances are 1, 16, 9, 4 of 30: two tokens have 0.6 of them before that, and 0.8 after it.
    lu.assertEquals(draw({ top_p = 0.65, temperature = 0.5 }, 0.99), 2)
    lu.assertEquals(draw({ top_p = 0.75, temperature = 0.5 }, 0.99), 2)
    lu.assertEquals(draw({ top_p = 0.75, temperature = 0.5, choose_first = true }, 0.99), 3)
    lu.assertEquals(draw({ top_p = 0.6, temperature = 0.5, choose_first = true }, 0.65), 2) -- 16 of 25
end

-- Until stop(), mx.now is the field `time`, and what runs say is kept in `said`.
local function made_up_clock()
    local say, now, clock = mx.metrics.say, mx.now, { time = 0, said = {} }
    mx.metrics.say = function(format, ...)
        clock.said[#clock.said + 1] = format:format(...)
    end
    mx.now = function()
        return clock.time
    end
    function clock.stop()
        mx.metrics.say, mx.now = say, now
    end
    return clock
end

-- After five seconds of the first step, one line says what a step computes, and how long it takes at least.
function TestTrain.test_a_slow_first_step_is_announced()
    local clock = made_up_clock()
    local report = mx.metrics.new { steps = 4, flops = 3e12, tokens = 10, params = 5, formula = "maxtext-2025-07",
        period = 9, paced = true, peak = { value = 0.05e12, source = "made up" }, done = 1 }
    local function step(number, seconds)
        report:begin()
        for _ = 1, 4 do
            clock.time = clock.time + seconds / 4
            for _ = 1, 1000 do end -- instructions, as those between two operations
        end
        report:step(number, { loss = 1.0, grad_norm = 2.0, learning_rate = 0.1 })
    end
    local before = #clock.said
    step(2, 100)
    step(3, 100)
    clock.stop()
    lu.assertEquals(table.move(clock.said, before + 1, #clock.said, 1, {}),
        { "step 2 is running: it has 3 TFLOP for each rank, at least 1m00s at the peak of 0.05 TFLOP/s" })
    lu.assertNil(debug.gethook())
end

-- 3 TFLOP in 100 s are half of a peak of 0.06 TFLOP/s and three quarters of 0.04.
function TestTrain.test_both_peaks_of_tiles_are_named()
    local clock = made_up_clock()
    local report = mx.metrics.new { steps = 1, flops = 3e12, tokens = 10, params = 5, formula = "maxtext-2025-07",
        period = 9, peak = { value = 0.06e12, product = 0.04e12, source = "made up" } }
    clock.time = 100
    report:step(1, { loss = 1.0, grad_norm = 2.0, learning_rate = 0.1 })
    local summary = report:finish()
    clock.stop()
    local text = table.concat(clock.said, "\n")
    lu.assertStrContains(text, "peak 0.06 TFLOP/s, made up; products of operands in the caches reach 0.04\n")
    lu.assertStrContains(text, "MFU 50.0 % (maxtext-2025-07), 75.0 % of products in the caches")
    lu.assertEquals(summary.product_tflops, 0.04)
end

function TestTrain.test_metrics_file()
    local path = os.tmpname()
    local report = mx.metrics.new {
        steps = 4, flops = 1e9, tokens = 10, params = 5, formula = "maxtext-2025-07", file = path, period = 1,
        peak = { value = 1e30, source = "made up" }, extra = { model_name = "tiny" }, quiet = true,
    }
    for step = 1, 4 do
        report:step(step, { loss = 1.0, grad_norm = 2.0, learning_rate = 0.1 })
    end
    report:finish()
    local lines = {}
    for line in io.lines(path) do
        lines[#lines + 1] = mx.io.json_decode(line)
    end
    os.remove(path)
    lu.assertEquals(#lines, 5)
    lu.assertEquals(lines[2].step, 2)
    lu.assertEquals(lines[2].grad_norm, 2.0)
    for _, field in ipairs({
        "step_time_s", "tflops_per_device", "mfu", "peak_tflops", "peak_source", "flop_formula",
        "tokens_per_s_per_device", "params", "ranks",
    }) do
        lu.assertNotNil(lines[5][field], field)
    end
    lu.assertTrue(lines[5].summary)
    lu.assertEquals(lines[5].timed_steps, 2)
end
