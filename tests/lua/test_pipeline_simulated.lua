-- Simulated pipelines: a few passes of each kind of stage, replayed, against all passes of every stage, one by one.

local lu = require "luaunit"
local mx = require "mx"

local schedule, driver = mx.pipeline.schedule, mx.pipeline.driver

TestExact, TestPlans = {}, {}

local function config_of(...)
    local words = {
        "model_name=llama3-8b", "base_num_decoder_layers=8", "max_target_length=2048", "remat_policy=full",
        "ici_pipeline_parallelism=4", "vocab_size=32000",
    }
    for _, text in ipairs({ ... }) do
        for word in text:gmatch("%S+") do
            words[#words + 1] = word
        end
    end
    return mx.config.load(words, { simulate = false })
end

-- All actions of one stage on its chip, in their order: seconds by action, and the memory at the peak. The second step
-- starts like all later ones.
local function run_stage(config, stage)
    mx.sim.stop()
    mx.sim.start(config.hardware, config.num_slices, mx.sim.settings(config))
    local layout = mx.mesh.plan(config, mx.ranks()).layout
    mx.sim.start(config.hardware, config.num_slices, mx.sim.settings(config),
        mx.mesh.rank_at(layout, { stage = stage - 1 }))
    local mesh = mx.train.mesh(config)
    local model = mx.models.new(config, mesh)
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    local own, seconds = model.parallel.stages, {}
    local rows, S = mx.data.sequences(config, mesh), config.max_target_length
    local chunks = own.n * own.repeats
    for _ = 1, 2 do
        local step <close> = mx.step()
        mx.reset_peak()
        local batch = { tokens = mx.zeros({ rows, S }, "i32"), targets = mx.zeros({ rows, S }, "i32") }
        local micros = driver.split({ batch }, own.microbatches)
        local weights = {}
        for i = 1, own.microbatches do
            weights[i] = 1 / own.microbatches
        end
        local pass = driver.new(model, micros, weights, 1, true)
        local function message()
            return mx.zeros({ rows // own.microbatches, S, model.parallel.features }, model.shape.dtype)
        end
        for _, action in ipairs(own.schedule.actions[stage]) do
            local chunk, start = action.chunk, mx.now()
            if action.what == "F" then
                pass:forward(chunk, action.micro, chunk > 1 and message() or nil):release()
            elseif action.what == "W" then
                pass:gradients_of_weights(chunk, action.micro)
            else
                local dx = pass:backward(chunk, action.micro, chunk < chunks and message() or nil)
                if dx then
                    dx:release()
                end
            end
            seconds[("%s %d.%d"):format(action.what, chunk, action.micro)] = mx.now() - start
        end
        optimizer:step()
    end
    local peak = mx.memory().peak
    mx.sim.stop()
    return seconds, peak
end

for name, words in pairs({
    gpipe = "hardware=v5p-4 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=2",
    ["1f1b"] = "hardware=v5p-4 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=2 "
        .. "pipeline_schedule=1f1b",
    zb_h1 = "hardware=v5p-4 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=2 "
        .. "pipeline_schedule=zb_h1",
    zb_h1_fsdp = "hardware=v5p-8 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=4 "
        .. "ici_fsdp_parallelism=2 pipeline_schedule=zb_h1",
    interleaved = "hardware=v5p-4 num_pipeline_microbatches=8 per_device_batch_size=2 pipeline_schedule=1f1b",
    fsdp = "hardware=v5p-8 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=4 "
        .. "ici_fsdp_parallelism=2 pipeline_schedule=1f1b",
}) do
    TestExact["test_" .. name] = function()
        local config = config_of(words)
        local result, seconds = mx.plan.simulate(config, config.hardware, 1), {}
        local s = result.pipeline.schedule
        for stage = 1, s.stages do
            local own, peak = run_stage(config, stage)
            for key, value in pairs(own) do
                seconds[key] = value
            end
            lu.assertAlmostEquals(result.pipeline.peaks[stage] / peak, 1, 0.05, ("memory of stage %d"):format(stage))
        end
        local function of(what)
            return function(chunk, micro)
                return seconds[("%s %d.%d"):format(what, chunk, micro)]
            end
        end
        local exact = schedule.replay(s, { F = of "F", B = of "B", W = of "W", message = result.pipeline.message })
        lu.assertAlmostEquals(result.pipeline.replay.duration / exact.duration, 1, 0.01)
        lu.assertAlmostEquals(result.pipeline.replay.bubble, exact.bubble, 0.01)
    end
end

-- ---- plans ----

-- Messages cross links of the torus; from the last stage to the first too, where repeats need that.
function TestPlans.test_seconds_of_messages()
    local function seconds(...)
        local config = config_of("per_device_batch_size=4", ...)
        return mx.plan.simulate(config, config.hardware, config.num_slices).pipeline.message, mx.sim.hardware("v5e")
    end
    local bytes = 4 * 2048 * 4096 * 2 -- a microbatch of 4 sequences: so many has each of 4 stages
    local message, h = seconds("hardware=v5e-16 ici_fsdp_parallelism=4")
    local link = h.hop_latency_s + bytes / (h.link_Bps * (h.ici_efficiency or 1))
    lu.assertAlmostEquals(message { from = 2, to = 3 }, link, 1e-9)
    lu.assertAlmostEquals(message { from = 4, to = 1 }, 3 * link, 1e-9) -- 4 x 4 chips of v5e are no rings
    message = seconds("hardware=v5e-16 num_slices=2 dcn_pipeline_parallelism=2 ici_fsdp_parallelism=4")
    lu.assertAlmostEquals(message { from = 3, to = 4 }, link, 1e-9)
    lu.assertAlmostEquals(message { from = 4, to = 5 }, h.dcn_hop_latency_s + bytes / (h.dcn_Bps
        * (h.dcn_efficiency or 1)), 1e-9)
end

-- 1f1b keeps fewer microbatches than gpipe: 4 to 1 instead of 8. The bubble is that of the formula, as far as stages
-- are equal: the table of tokens and the loss are small here.
function TestPlans.test_schedules_differ_in_memory()
    local words = "hardware=v5p-4 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=2"
    local function simulate(kind)
        local config = config_of(words, "vocab_size=256", "pipeline_schedule=" .. kind)
        return mx.plan.simulate(config, config.hardware, 1)
    end
    local all, few = simulate "gpipe", simulate "1f1b"
    lu.assertAlmostEquals(all.pipeline.replay.bubble, 3 / 11, 0.02)
    lu.assertAlmostEquals(few.step_s / all.step_s, 1, 0.02)
    local kept = 2 * 2048 * 4096 * 2 * 2 // 2 -- bf16 inputs of 2 layers, one sequence
    for stage = 2, 4 do
        local less = all.pipeline.peaks[stage] - few.pipeline.peaks[stage]
        lu.assertTrue(less >= 0.9 * (8 - (5 - stage) - 1) * kept, stage)
    end
    lu.assertEquals(few.times.bubble_s > 0, true)
end

-- The loss of gpt2-124m takes about as long as four of its twelve layers: with nine and three, the bubble is smaller.
function TestPlans.test_fewer_layers_in_the_last_chunk()
    local function bubble(...)
        local config = mx.config.load({ "model_name=gpt2-124m", "hardware=v5p-4", "ici_pipeline_parallelism=2",
            "num_pipeline_microbatches=8", "per_device_batch_size=8", "max_target_length=512", "remat_policy=full",
            "num_pipeline_repeats=1", ... }, { simulate = false })
        return mx.plan.simulate(config, config.hardware, 1).pipeline.replay.bubble
    end
    local equal = bubble "num_layers_per_pipeline_stage=6"
    local fewer = bubble("num_layers_per_pipeline_stage=8", "decoder_last_pipeline_num_layers=4")
    lu.assertTrue(fewer < equal - 0.03, ("%g, %g"):format(fewer, equal))
    lu.assertTrue(fewer >= 1 / 9 - 1e-9)
end

function TestPlans.test_the_picture_has_the_memory_of_each_stage()
    local config = config_of("hardware=v5p-4 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 "
        .. "per_device_batch_size=2 pipeline_schedule=1f1b")
    local text = mx.pipeline.text(mx.plan.simulate(config, config.hardware, 1).pipeline)
    lu.assertStrMatches(text, "1f1b: 4 stages, 8 microbatches: [%d.]+ %% bubble, [%d.]+ s\n.*")
    lu.assertStrMatches(text, ".*stage 1  1234.* 4 in flight, [%d.]+ GiB\n.*")
    for line in text:gmatch("[^\n]+") do
        lu.assertTrue(#line <= 80, line)
    end
end

-- 405 billion parameters on 8,192 chips, 126 layers on 16 stages: the first and the last have 7. 10 s on an idle
-- machine; it takes less than one.
function TestPlans.test_a_large_pod()
    local config = mx.config.load({
        "model_name=llama3-405b", "hardware=v5p-8192", "ici_pipeline_parallelism=16", "ici_tensor_parallelism=16",
        "num_layers_per_pipeline_stage=8", "num_pipeline_microbatches=32", "per_device_batch_size=0.125",
        "max_target_length=8192", "remat_policy=full", "pipeline_schedule=1f1b",
    }, { simulate = false })
    local start = os.clock()
    local result = mx.plan.simulate(config, config.hardware, 1)
    lu.assertTrue(os.clock() - start < 10)
    lu.assertEquals(#result.pipeline.peaks, 16)
    lu.assertAlmostEquals(result.pipeline.replay.bubble, 15 / 47, 0.03)
end

function TestPlans.test_a_simulated_run_is_refused()
    local config = mx.config.load { "model_name=tiny", "hardware=v5e-4", "ici_pipeline_parallelism=2",
        "ici_fsdp_parallelism=2" }
    local mesh = mx.train.mesh(config)
    lu.assertErrorMsgContains("scripts/plan.lua simulates a step of all stages", mx.train.gradients,
        mx.models.new(config, mesh), mx.data.open(config, mesh), 1)
    mx.sim.stop()
end
