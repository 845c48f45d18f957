-- Evaluation during training: its loss, when it happens, and that training does not notice it.

local lu = require "luaunit"
local mx = require "mx"

TestEvaluation = {}

local TEXT, OTHER = mx.root .. "LICENSE", mx.root .. "Makefile"
local folder, evaluation_file = nil, os.tmpname()

function TestEvaluation.setUp()
    folder = os.tmpname()
    os.remove(folder)
    local file <close> = assert(io.open(OTHER, "rb"))
    mx.io.write_file_atomic(evaluation_file, file:read(185)) -- 11 sequences of 16 tokens, and 8 bytes that make none
end

function TestEvaluation.tearDown()
    os.execute(("rm -rf %s %s"):format(folder, evaluation_file))
end

local function config_of(...)
    return mx.config.load { "model_name=tiny", "per_device_batch_size=2", "max_target_length=16", "dtype=float32",
        "log_period=1000", "base_output_directory=" .. folder, "dataset_type=text", "dataset_path=" .. TEXT,
        "eval_dataset_path=" .. evaluation_file, "eval_interval=2", "steps=6", ... }
end

local function evaluate(config, model, o)
    local data = mx.data.open(config)
    return mx.evaluate.data(model or mx.models.new(config), mx.data.open_evaluation(data), o or config.eval_steps)
end

-- The loss of one sequence of bytes by hand, from the logits: the mean of log(sum(exp(l))) - l[target].
local function by_hand(model, bytes)
    local length, ids = #bytes - 1, { bytes:byte(1, -1) }
    local tokens = mx.tensor({ table.move(ids, 1, length, 1, {}) }, "i32")
    local logits, sum = model:logits(model:hidden(tokens)):totable()[1], 0
    for t = 1, length do
        local total = 0
        for _, l in ipairs(logits[t]) do
            total = total + math.exp(l)
        end
        sum = sum + math.log(total) - logits[t][ids[t + 1] + 1]
    end
    return sum / length
end

-- f32 logits and sums: eight digits, over 16 targets.
local BOUND = 2e-6

function TestEvaluation.test_the_loss_is_the_mean_over_all_targets()
    -- Neither dropout nor z_loss nor a repeated training batch counts.
    local config = config_of("dropout_rate=0.5", "z_loss_multiplier=0.1", "reuse_example_batch=1")
    local model, bytes, sum = mx.models.new(config), mx.io.read_file(evaluation_file), {}
    for i = 1, 11 do
        sum[i] = (sum[i - 1] or 0) + by_hand(model, bytes:sub(16 * i - 15, 16 * i + 1))
    end
    local loss, targets = evaluate(config, model)
    lu.assertAlmostEquals(loss, sum[11] / 11, BOUND)
    lu.assertEquals(targets, 176)
    loss, targets = evaluate(config, model, 2) -- two batches of two sequences
    lu.assertAlmostEquals(loss, sum[4] / 4, BOUND)
    lu.assertEquals(targets, 64)
    for _, sequences in ipairs({ 1, 3, 11, 20 }) do
        loss, targets = evaluate(config_of("eval_per_device_batch_size=" .. sequences), model)
        lu.assertAlmostEquals(loss, sum[11] / 11, BOUND, sequences)
        lu.assertEquals(targets, 176)
    end
end

-- Synthetic data are evaluated on the batch that training has, here before the first step.
function TestEvaluation.test_synthetic_data()
    local config = mx.config.load { "model_name=tiny", "dtype=float32", "eval_interval=1", "eval_steps=3" }
    local model = mx.models.new(config)
    local loss, targets = evaluate(config, model)
    lu.assertEquals(targets, 8 * 64)
    lu.assertAlmostEquals(loss, mx.train.gradients(model, mx.data.open(config), 1), BOUND)
end

-- Documents: the loss is the mean over the targets that count, whatever the batches.
function TestEvaluation.test_documents()
    local path = os.tmpname()
    local part = mx.io.token_part(path .. ".part", 2)
    for d, length in ipairs({ 5, 30, 2, 17, 40, 9 }) do
        local tokens = {}
        for i = 1, length do
            tokens[i] = (37 * d + i * i) % 256
        end
        part:add(mx.tensor(tokens, "i32"))
    end
    part:commit()
    mx.io.token_parts_merge({ path .. ".part" }, path, { vocab_size = 256, tokenizer = "bytes", fingerprint = "bytes" })
    for _, packing in ipairs({ "true", "false" }) do
        local words = { "dataset_type=hdf5", "dataset_path=" .. path, "eval_dataset_path=" .. path,
            "packing=" .. packing, "enable_data_shuffling=false", "per_device_batch_size=1" }
        local config = config_of(table.unpack(words))
        local model, data = mx.models.new(config), mx.data.open(config)
        local sum, count = 0, 0
        for _ = 1, data.epoch_samples do
            mx.scope(function()
                local batch = data:next()
                local n = mx.sum(batch.mask:to("f32")):item()
                sum, count = sum + n * model:loss(batch):item(), count + n
            end)
        end
        for _, sequences in ipairs({ 1, 4 }) do
            words[#words] = "per_device_batch_size=" .. sequences
            local loss, targets = evaluate(config_of(table.unpack(words)), model)
            lu.assertAlmostEquals(loss, sum / count, BOUND)
            lu.assertEquals(targets, count)
        end
    end
    os.remove(path)
    os.remove(path .. ".part")
end

-- Runs train.lua's loop; returns the parameters, what it printed, and the summary.
local function train(config)
    local write, said, summary, params = io.write, {}, nil, nil
    io.write = function(...) -- luacheck: ignore 122
        said[#said + 1] = table.concat({ ... })
        return io.stdout
    end
    local good, message = pcall(function()
        local data, model = mx.data.open(config), mx.models.new(config)
        local optimizer = mx.optim.new(config, model.params, model.parallel)
        local run = mx.run.start(config, model, optimizer, data)
        for step in run:steps() do
            local loss = mx.train.gradients(model, data, config.gradient_accumulation_steps)
            run:ended(step, loss, run:update(step, loss))
        end
        summary, params = run:finish(), {}
        for name, t in pairs(model.params) do
            params[name] = t:totable()
        end
    end)
    io.write = write -- luacheck: ignore 122
    mx.metrics.log_to(nil)
    if not good then
        error(message, 0)
    end
    return params, table.concat(said), summary
end

function TestEvaluation.test_training_does_not_notice_it()
    local words = { "dropout_rate=0.2", "dtype=bfloat16", "weight_dtype=bfloat16", "gradient_accumulation_steps=2",
        "checkpoint_period=3" }
    local function with(...)
        local all = table.move(words, 1, #words, 1, {})
        return config_of(table.unpack(table.move({ ... }, 1, select("#", ...), #all + 1, all)))
    end
    local plain = train(with("eval_interval=-1", "eval_dataset_path=", "run_name=plain"))
    local evaluated, said, summary = train(with("run_name=evaluated"))
    lu.assertEquals(evaluated, plain)
    for _, step in ipairs({ 2, 4, 6 }) do
        lu.assertStrContains(said, ("step %d: evaluation loss "):format(step))
    end
    lu.assertStrContains(said, ", 176 targets in ")
    -- A run that stopped between two evaluations goes on, and has the same parameters and evaluations.
    train(with("run_name=resumed", "steps=3", "learning_rate_schedule_steps=6"))
    local resumed, said_again, summary_again = train(with("run_name=resumed", "learning_rate_schedule_steps=6"))
    lu.assertEquals(resumed, plain)
    lu.assertStrContains(said_again, "RESUMING")
    lu.assertNotStrContains(said_again, "step 2: evaluation")
    lu.assertEquals(summary_again.eval_loss, summary.eval_loss)
end

function TestEvaluation.test_what_it_writes()
    local path, report = folder .. ".jsonl", folder .. ".html"
    local _, _, summary = train(config_of("run_name=a", "eval_start_step=3", "metrics_file=" .. path,
        "report_file=" .. report))
    local steps, last = {}, nil
    for line in io.lines(path) do
        local row = mx.io.json_decode(line)
        if row.eval_targets then
            steps[#steps + 1], last = row.step, row
        end
    end
    lu.assertEquals(steps, { 3, 5 })
    lu.assertEquals({ last.eval_loss, last.eval_targets }, { summary.eval_loss, 176 })
    lu.assertAlmostEquals(last.eval_perplexity, math.exp(last.eval_loss), 1e-9)
    lu.assertStrContains(mx.io.read_file(report), "Evaluation loss")
    local events = mx.io.read_file(folder .. "/a/tensorboard/" .. mx.io.list(folder .. "/a/tensorboard")[1])
    local _, count = events:gsub("eval/avg_loss", "")
    lu.assertEquals(count, 2)
    lu.assertStrContains(events, "badput/evaluation")
    os.remove(path)
    os.remove(report)
end

function TestEvaluation.test_the_run_ends_when_the_loss_is_low_enough()
    local _, said, summary = train(config_of("run_name=a", "target_eval_loss=100", "eval_start_step=4"))
    lu.assertStrContains(said, "step 4: the evaluation loss has reached target_eval_loss = 100, so the run ends")
    lu.assertEquals(summary.step, 4)
    lu.assertTrue(mx.io.exists(folder .. "/a/parameters.h5") and mx.io.exists(folder .. "/a/step_4/."))
end

-- The evaluation data have a token outside the vocabulary: the steps so far are saved before the run ends.
function TestEvaluation.test_data_that_cannot_be_read()
    local function write(path, last)
        local ids = {}
        for i = 1, 400 do
            ids[i] = ("<I2"):pack(i < 350 and i % 256 or last)
        end
        mx.io.write_file_atomic(path, table.concat(ids))
        return path
    end
    local good, bad = write(os.tmpname(), 7), write(os.tmpname(), 300)
    local config = config_of("run_name=a", "dataset_type=bin", "dataset_path=" .. good, "eval_dataset_path=" .. bad,
        "checkpoint_period=0")
    local ended, message = pcall(train, config)
    os.remove(good)
    os.remove(bad)
    lu.assertFalse(ended)
    lu.assertStrContains(tostring(message), "300")
    lu.assertTrue(mx.io.exists(folder .. "/a/step_2/."))
end

function TestEvaluation.test_what_is_refused()
    local function refused(expected, ...)
        local words = { ... }
        local good, message = pcall(function()
            local config = mx.config.load(words)
            mx.outputs.check_config(config)
            evaluate(config, { parallel = mx.parallel.alone })
        end)
        lu.assertFalse(good)
        lu.assertStrContains(tostring(message), expected)
    end
    local text, file = "dataset_type=text", "dataset_path=" .. TEXT
    refused("evaluation needs eval_dataset_path", text, file, "eval_interval=2")
    refused("eval_steps has no effect without eval_interval", text, file, "eval_steps=2")
    refused("eval_dataset_path has no effect with dataset_type = synthetic", "eval_interval=2", "eval_dataset_path=x")
    refused("eval_interval: expected at least 1, or -1 for no evaluation, got '0'", "eval_interval=0")
    refused("eval_dataset_path: cannot open 'nowhere'", text, file, "eval_interval=2", "eval_dataset_path=nowhere")
    refused("eval_per_device_batch_size: 1 rank works on the same sequences", text, file, "eval_interval=2",
        "eval_dataset_path=" .. TEXT, "eval_per_device_batch_size=0.5")
    mx.io.write_file_atomic(evaluation_file, '{"mxlua": "measurements"}\n')
    refused("that is the file of eval_dataset_path", text, file, "eval_interval=2",
        "eval_dataset_path=" .. evaluation_file, "metrics_file=" .. evaluation_file)
end
