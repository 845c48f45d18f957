-- Simulated pipelines: a few passes of each kind of stage, replayed, against all passes of every stage with their
-- messages.

local lu = require "luaunit"
local mx = require "mx"

local schedule, driver, exact = mx.pipeline.schedule, mx.pipeline.driver, require "mx.pipeline.exact"

TestExact, TestPlans = {}, {}

-- Chips that are simulated at the same time have clocks, memory and ranks of their own.
function TestExact.test_several_chips()
    mx.sim.start("v5e-4")
    local second = mx.sim.add("v5e-4", 1, nil, 3)
    lu.assertEquals({ mx.rank(), mx.now() }, { 3, 0 })
    local x = mx.zeros { 1024, 1024 }
    local y = mx.matmul(x, x)
    local later, bytes = mx.now(), mx.memory().in_use
    lu.assertTrue(later > 0 and bytes == 2 * 4 * 1024 * 1024)
    mx.sim_use(0)
    lu.assertEquals({ mx.rank(), mx.now(), mx.memory().in_use }, { 0, 0, 0 })
    mx.sim_use(second)
    lu.assertEquals({ mx.rank(), mx.now(), mx.memory().in_use }, { 3, later, bytes })
    x:release()
    y:release()
    lu.assertEquals(mx.memory().in_use, 0)
    lu.assertErrorMsgContains("there is no simulated chip number 2: 2 are simulated", mx.sim_use, 2)
    mx.sim.stop()
    lu.assertFalse(mx.is_simulated())
    lu.assertErrorMsgContains("there is no simulated chip number 0: 0 are simulated", mx.sim_use, 0)
end

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

for name, words in pairs({
    gpipe = "hardware=v5p-4 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=2",
    ["1f1b"] = "hardware=v5p-4 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=2 "
        .. "pipeline_schedule=1f1b",
    zb_h1 = "hardware=v5p-4 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=2 "
        .. "pipeline_schedule=zb_h1",
    zb = "hardware=v5p-4 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=2 "
        .. "pipeline_schedule=zb zero_bubble_max_pending_backward=6",
    zb_h1_fsdp = "hardware=v5p-8 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=4 "
        .. "ici_fsdp_parallelism=2 pipeline_schedule=zb_h1",
    outside = "hardware=v5p-8 num_pipeline_microbatches=8 per_device_batch_size=4 pipeline_parallel_layers=4 "
        .. "ici_fsdp_parallelism=2 pipeline_schedule=1f1b",
    outside_zb = "hardware=v5p-8 num_pipeline_microbatches=8 per_device_batch_size=4 pipeline_parallel_layers=4 "
        .. "ici_fsdp_parallelism=2 pipeline_schedule=zb",
    outside_first = "hardware=v5p-4 num_pipeline_microbatches=8 per_device_batch_size=2 pipeline_parallel_layers=4 "
        .. "decoder_block=deepseek attention_type=mla num_experts=4 num_experts_per_tok=2 base_moe_mlp_dim=1024 "
        .. "base_num_kv_heads=32 first_num_dense_layers=1 pipeline_schedule=zb_h1",
    interleaved_zb = "hardware=v5p-4 num_pipeline_microbatches=8 per_device_batch_size=2 pipeline_schedule=zb_h1",
    interleaved = "hardware=v5p-4 num_pipeline_microbatches=8 per_device_batch_size=2 pipeline_schedule=1f1b",
    across_slices = "hardware=v5e-16 num_slices=2 dcn_pipeline_parallelism=2 num_pipeline_microbatches=8 "
        .. "per_device_batch_size=1 ici_fsdp_parallelism=4 pipeline_schedule=1f1b async_reduce_scatter=false",
    fsdp = "hardware=v5p-8 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 per_device_batch_size=4 "
        .. "ici_fsdp_parallelism=2 pipeline_schedule=1f1b",
}) do
    TestExact["test_" .. name] = function()
        local config = config_of(words)
        local pipeline = mx.plan.simulate(config, config.hardware, config.num_slices).pipeline
        local found = exact.step(config)
        for stage, peak in ipairs(found.peaks) do
            lu.assertAlmostEquals(pipeline.peaks[stage] / peak, 1, 0.05, ("memory of stage %d"):format(stage))
        end
        lu.assertAlmostEquals(pipeline.replay.duration / found.duration, 1, 0.01)
        lu.assertAlmostEquals(pipeline.replay.bubble, found.bubble, 0.01)
    end
end

-- ---- plans ----

-- Messages cross links of the torus; from the last stage to the first too, where repeats need that.
function TestPlans.test_seconds_of_messages()
    local function seconds(...)
        local config = config_of("per_device_batch_size=4", ...)
        local result = mx.plan.simulate(config, config.hardware, config.num_slices)
        return result.pipeline.times.message, mx.sim.hardware("v5e")
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

-- The first stages are frozen: they have no gradients, and the last one has those of one layer's weights.
function TestPlans.test_frozen_stages()
    local config = config_of("hardware=v5p-4 num_layers_per_pipeline_stage=2 num_pipeline_microbatches=8 "
        .. "per_device_batch_size=2 pipeline_schedule=zb_h1 trainable_parameters_mask=[layer008]")
    local pipeline = mx.plan.simulate(config, config.hardware, 1).pipeline
    local seconds = {}
    for stage = 1, 4 do
        seconds[stage] = { F = 0, B = 0, W = 0 }
        for _, action in ipairs(pipeline.replay.actions[stage]) do
            seconds[stage][action.what] = seconds[stage][action.what] + action.stop - action.start
        end
    end
    lu.assertEquals({ seconds[1].B, seconds[1].W, seconds[2].W, seconds[3].W }, { 0, 0, 0, 0 })
    lu.assertTrue(seconds[2].B > 0 and seconds[4].W > 0)
    lu.assertStrContains(mx.pipeline.text(pipeline), "=: gradients of weights")
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

-- ---- runs ----

TestRuns = {}

local STAGES = { "model_name=tiny", "hardware=v5e-4", "ici_pipeline_parallelism=2", "ici_fsdp_parallelism=2",
    "num_pipeline_microbatches=4", "per_device_batch_size=4", "base_num_decoder_layers=4",
    "num_layers_per_pipeline_stage=2", "base_emb_dim=1024", "base_mlp_dim=4096", "max_target_length=1024" }

local function simulated_run(...)
    return mx.config.load(table.move({ ... }, 1, select("#", ...), #STAGES + 1, { table.unpack(STAGES) }))
end

-- A step of a run takes as long as the plan says, on the chip of the first stage: it waits for the others.
function TestRuns.test_a_step_is_the_plans()
    for words, more in pairs({
        ["pipeline_schedule=1f1b"] = {}, ["pipeline_schedule=zb_h1"] = {}, ["gradient_accumulation_steps=2"] = {},
        ["pipeline_parallel_layers=2"] = { "num_layers_per_pipeline_stage=1", "pipeline_schedule=1f1b" },
    }) do
        local config = simulated_run(words, table.unpack(more))
        local planned = mx.plan.simulate(config, config.hardware, config.num_slices)
        mx.plan.check(simulated_run(words, table.unpack(more)))
        local mesh = mx.train.mesh(config)
        local data, model = mx.data.open(config, mesh), mx.models.new(config, mesh)
        local optimizer = mx.optim.new(config, model.params, model.parallel)
        lu.assertEquals(mx.rank(), 0)
        for _ = 1, 2 do
            local start = mx.now()
            mx.sim_times(true)
            mx.train.gradients(model, data, config.gradient_accumulation_steps)
            optimizer:step()
            lu.assertAlmostEquals((mx.now() - start) / planned.step_s, 1, 0.01, words)
            lu.assertTrue(mx.sim_times().bubble_s > 0, words)
        end
        lu.assertAlmostEquals(mx.memory().peak / planned.pipeline.peaks[1], 1, 0.05, words)
        lu.assertEquals(mx.pipeline.last(model), mx.pipeline.text(mx.sim.now.pipeline))
        mx.sim.stop()
    end
end

-- Evaluation of a run takes as long as a replay of all passes of all stages, one by one: 4 microbatches of 2 sequences,
-- or one of 3, which make no 4.
function TestRuns.test_evaluation()
    for sequences, words in pairs({
        [8] = {}, [3] = { "eval_per_device_batch_size=1.5" },
        [12] = { "eval_per_device_batch_size=6", "pipeline_parallel_layers=2", "num_layers_per_pipeline_stage=1" },
    }) do
        local config = simulated_run("eval_interval=1", table.unpack(words))
        local seconds, message, s = {}, nil, nil
        for stage = 1, 2 do
            mx.sim.start(config.hardware, config.num_slices, mx.sim.settings(config))
            local layout = mx.mesh.plan(config, mx.ranks()).layout
            mx.sim.start(config.hardware, config.num_slices, mx.sim.settings(config),
                mx.mesh.rank_at(layout, { stage = stage - 1 }))
            local model = mx.models.new(config, mx.train.mesh(config))
            local own, parallel = model.parallel.stages, model.parallel
            s = driver.evaluation(own, sequences)
            local B = sequences // s.microbatches
            lu.assertEquals(s.microbatches, sequences == 3 and 1 or 4)
            for _ = 1, 2 do
                local step <close> = mx.step()
                local tokens, x = mx.zeros({ B, 1024 }, "i32"), mx.zeros({ B, 1024, parallel.features }, "bf16")
                for _, one in ipairs(s.actions[stage]) do
                    local start = mx.now()
                    mx.no_grad(driver.evaluate_chunk, model, one.chunk, one.chunk > 1 and x or nil,
                        { tokens = tokens, targets = tokens })
                    seconds[("%d.%d"):format(one.chunk, one.micro)] = mx.now() - start
                end
                local start = mx.now()
                mx.recv(x, { axis = "stage", from = 2 - stage }):wait()
                message = mx.now() - start
            end
        end
        local replay = schedule.replay(s, {
            F = function(chunk, micro) return seconds[("%d.%d"):format(chunk, micro)] end,
            message = function() return message end,
        })
        mx.sim.stop()
        config = simulated_run("eval_interval=1", table.unpack(words))
        mx.plan.check(config)
        local mesh = mx.train.mesh(config)
        local data, model = mx.data.open(config, mesh), mx.models.new(config, mesh)
        for _ = 1, 2 do
            local start = mx.now()
            mx.evaluate.data(model, mx.data.open_evaluation(data, mesh), -1)
            lu.assertAlmostEquals((mx.now() - start) / replay.duration, 1, 0.01, tostring(sequences))
        end
        mx.sim.stop()
    end
end

function TestRuns.test_evaluation_that_is_refused()
    local config = simulated_run()
    local model, tokens = mx.models.new(config, mx.train.mesh(config)), mx.zeros({ 4, 1024 }, "i32")
    local batch = { tokens = tokens, targets = tokens }
    lu.assertErrorMsgContains("set eval_interval, and call mx.plan.check(config) before", model.loss, model, batch,
        true)
    mx.sim.stop()
    config = simulated_run "eval_interval=1"
    mx.plan.check(config)
    model = mx.models.new(config, mx.train.mesh(config))
    lu.assertErrorMsgContains("a batch of 4 sequences, expected the 8 of the config's evaluation data", model.loss,
        model, batch, true)
    mx.sim.stop()
end

function TestRuns.test_a_run_needs_a_plan()
    local config = simulated_run()
    local mesh = mx.train.mesh(config)
    lu.assertErrorMsgContains("call mx.plan.check(config) before the first step", mx.train.gradients,
        mx.models.new(config, mesh), mx.data.open(config, mesh), 1)
    mx.sim.stop()
end

function TestRuns.test_waiting_for_a_time()
    mx.sim_wait_until(mx.now() + 1) -- on this machine: nothing
    mx.sim.start("v5e-4")
    mx.sim_times(true)
    local start = mx.now()
    mx.sim_wait_until(start + 2)
    mx.sim_wait_until(start + 1)
    lu.assertAlmostEquals(mx.now(), start + 2, 1e-12)
    lu.assertAlmostEquals(mx.sim_times().bubble_s, 2, 1e-12)
    lu.assertAlmostEquals(mx.comm_stats().exposed_s, 2, 1e-12)
    mx.sim.stop()
end
