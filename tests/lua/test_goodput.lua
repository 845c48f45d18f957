-- Goodput: the parts of a run's wall time.

local lu = require "luaunit"
local mx = require "mx"

TestGoodput = {}

local folder

function TestGoodput.setUp()
    folder = os.tmpname()
    os.remove(folder)
end

function TestGoodput.tearDown()
    os.execute("rm -rf " .. folder)
end

-- With a clock of our own: each time is a power of two, so that every sum tells its parts.
function TestGoodput.test_each_part_has_its_time()
    local now, clock, started = 100, mx.now, mx.started
    mx.now, mx.started = function() return now end, function() return 100 end
    local good, message = pcall(function()
        local goodput = mx.goodput.new()
        local function spend(seconds, part)
            now = now + seconds
            goodput:enter(part)
        end
        spend(1, "checkpoint_restore")
        spend(2, "start")
        spend(4, "repeated_steps")
        now = now + 8
        goodput:ended_step(3) -- waiting for data in a repeated step is part of it
        spend(16, "step")
        now = now + 32
        goodput:ended_step(8)
        spend(64, "evaluation")
        spend(128, "checkpoint_save")
        spend(256, "other")
        now = now + 1
        local f = goodput:figures()
        lu.assertEquals(f.wall_time_s, 512)
        local parts = { start = 5, checkpoint_restore = 2, repeated_steps = 8, data_loading = 8, evaluation = 128,
            checkpoint_save = 256, other = 16 + 64 + 1 }
        for part, seconds in pairs(parts) do
            lu.assertEquals(f.badput[part], 100 * seconds / 512, part)
        end
        lu.assertEquals(f.goodput, 100 * 24 / 512)
        lu.assertEquals(mx.goodput.text({ start = 7.04, checkpoint_restore = 0, data_loading = 0.049,
            checkpoint_save = 1, evaluation = 0, repeated_steps = 2, other = 0 }),
            "start 7.0 %, checkpoints 1.0 %, repeated steps 2.0 %")
    end)
    mx.now, mx.started = clock, started
    if not good then
        error(message, 0)
    end
end

-- Runs train.lua's loop; returns its summary. `slow` is called inside each step.
local function train(slow, ...)
    local config = mx.config.load { "model_name=tiny", "per_device_batch_size=2", "max_target_length=16",
        "log_period=1000", "base_output_directory=" .. folder, "run_name=a", "dataset_type=text",
        "dataset_path=" .. mx.root .. "LICENSE", ... }
    local write, summary = io.write, nil
    io.write = function() return io.stdout end -- luacheck: ignore 122
    local good, message = pcall(function()
        local data, model = mx.data.open(config), mx.models.new(config)
        local optimizer = mx.optim.new(config, model.params, model.parallel)
        local run = mx.run.start(config, model, optimizer, data)
        for step in run:steps() do
            local loss = mx.train.gradients(model, data, 1)
            slow(step)
            run:ended(step, loss, run:update(step, loss))
        end
        summary = run:finish()
    end)
    io.write = write -- luacheck: ignore 122
    mx.metrics.log_to(nil)
    if not good then
        error(message, 0)
    end
    return summary
end

local function wait(seconds)
    local from = mx.now()
    while mx.now() - from < seconds do end
end

local function assert_whole(f)
    local sum = f.goodput
    for _, share in pairs(f.badput) do
        lu.assertTrue(share >= 0)
        sum = sum + share
    end
    lu.assertAlmostEquals(sum, 100, 1e-9)
end

-- A run that ends after step 6 is taken up again from its checkpoint of step 4: steps 5 and 6 are repeated.
function TestGoodput.test_a_run_accounts_for_its_wall_time()
    local evaluation = { "eval_dataset_path=" .. mx.root .. "README.md", "eval_interval=3" }
    local summary = train(function() wait(0.02) end, "steps=6", "checkpoint_period=4",
        table.unpack(evaluation))
    assert_whole(summary)
    lu.assertAlmostEquals(summary.wall_time_s, mx.now() - mx.started(), 0.5)
    lu.assertTrue(summary.goodput * summary.wall_time_s / 100 >= 6 * 0.02)
    for _, part in ipairs({ "start", "checkpoint_save", "evaluation" }) do
        lu.assertTrue(summary.badput[part] > 0, part)
    end
    lu.assertEquals(summary.badput.repeated_steps, 0)
    local first = mx.io.json_decode(io.lines(folder .. "/a/metrics.jsonl")())
    lu.assertTrue(first.goodput > 0 and first.goodput < 100)

    os.execute(("rm -rf %s/a/step_6 %s/a/parameters.h5"):format(folder, folder))
    summary = train(function(step) wait(step <= 6 and 0.3 or 0) end, "steps=8", "checkpoint_period=0")
    assert_whole(summary)
    local repeated = summary.badput.repeated_steps * summary.wall_time_s / 100
    lu.assertTrue(repeated >= 0.6, repeated)
    lu.assertTrue(summary.goodput * summary.wall_time_s / 100 < 0.6)
    lu.assertTrue(summary.badput.checkpoint_restore > 0)
end

-- A run without a name never resumes: steps that another run took in the same folder are not repeated.
function TestGoodput.test_a_run_without_a_name()
    for _ = 1, 2 do
        lu.assertEquals(train(function() end, "run_name=", "steps=2").badput.repeated_steps, 0)
    end
end

-- Simulated time passes only in steps: nothing else is charged to the chip.
function TestGoodput.test_a_simulated_run()
    local summary = train(function() end, "hardware=v5e-1", "steps=3", "enable_checkpointing=false")
    mx.sim.stop()
    assert_whole(summary)
    lu.assertAlmostEquals(summary.goodput, 100, 1e-9)
    lu.assertAlmostEquals(summary.wall_time_s, 3 * summary.step_time_s, 0.2 * summary.wall_time_s)
end
