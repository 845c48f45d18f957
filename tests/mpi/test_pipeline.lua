-- ranks: 2 3 4
-- nodes: 2
-- Pipelines: every number of stages, schedule and mesh takes the steps of one rank that has all layers.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

local RANKS, STEPS, SEQUENCES = mx.ranks(), 3, 24

-- eps as in test_mesh_training.lua: AdamW then does not blow up differences of rounding.
local WORDS = {
    "dataset_type=text", "dataset_path=" .. mx.root .. "LICENSE", "steps=" .. STEPS, "warmup_steps_fraction=0.2",
    "base_emb_dim=32", "base_mlp_dim=64", "vocab_size=256", "max_target_length=24", "dtype=float32",
    "adam_eps=1.0e-3", "gradient_clipping_threshold=0.5", "base_num_query_heads=4", "base_num_kv_heads=4",
    "ici_fsdp_parallelism=1",
}

local function config_of(...)
    local words = table.move(WORDS, 1, #WORDS, 1, {})
    words[#words + 1] = not table.concat({ ... }, " "):find("attention_type=mla", 1, true) and "head_dim=8" or nil
    for _, text in ipairs({ ... }) do
        for word in text:gmatch("%S+") do
            local axis, size = word:match("^(%l[%l_]*)=(%d+)$")
            words[#words + 1] = util.contains(mx.mesh.AXES, axis) and ("%s=%s"):format(mx.mesh.key("ici", axis), size)
                or word
        end
    end
    return mx.config.load(words)
end

-- All parameters, whole, on every rank. Collective.
local function whole_parameters(model)
    local params = {}
    for _, name in ipairs(model.parallel:names(model.params)) do
        local t = model.params[name]
        params[name] = model.parallel:whole(name, t and t:detach()):wait():keep()
    end
    return params
end

local function new_run(config, mesh)
    local run = { losses = {}, norms = {}, config = config, mesh = mesh }
    run.model, run.data = mx.models.new(config, mesh), mx.data.open(config, mesh)
    if not mesh then
        run.data.part, run.data.parts, run.model.part, run.model.parts = 0, 1, 0, 1
    end
    run.optimizer = mx.optim.new(config, run.model.params, run.model.parallel)
    return run
end

-- Without a mesh, this rank has all layers and all sequences.
local function take_steps(run)
    local config, mesh = run.config, run.mesh
    for i = 1, STEPS do
        local step <close> = mx.step()
        if mesh then
            run.losses[i] = mx.train.gradients(run.model, run.data, config.gradient_accumulation_steps)
        else
            if run.model.routing then
                run.model.routing:start()
            end
            local loss = run.model:loss(run.data:next())
            mx.backward(loss)
            run.losses[i] = loss:item()
        end
        run.norms[i] = run.optimizer:step()
        run.model:after_step()
    end
    run.figures = run.model.routing and run.model.routing:figures() or {}
    run.params = whole_parameters(run.model)
    return run
end

local function train(config, mesh)
    return take_steps(new_run(config, mesh))
end

local references = {}

local function reference(words)
    references[words] = references[words] or train(config_of(words, "per_device_batch_size=" .. SEQUENCES), nil)
    return references[words]
end

local function on_mesh(words, mesh, passes)
    local config = config_of(words, mesh, ("per_device_batch_size=%d"):format(SEQUENCES // RANKS // (passes or 1)))
    return train(config, mx.train.mesh(config))
end

local function largest(t)
    return mx.max(mx.abs(t)):item()
end

local function assert_close(run, expected, what)
    for i = 1, STEPS do
        lu.assertAlmostEquals(run.losses[i] / expected.losses[i], 1, 1e-5, ("%s: loss of step %d"):format(what, i))
        lu.assertAlmostEquals(run.norms[i] / expected.norms[i], 1, 1e-5, ("%s: norm of step %d"):format(what, i))
    end
    for name, t in pairs(expected.params) do
        local off = largest(run.params[name] - t) / math.max(largest(t), 1e-3)
        lu.assertTrue(off <= 1e-5, ("%s: %s is off by %g of its largest"):format(what, name, off))
    end
end

local function assert_same_routing(run, expected, what)
    for name, figure in pairs(expected.figures) do
        lu.assertAlmostEquals(run.figures[name] / figure, 1, 1e-5, what .. ": " .. name)
    end
    for name, t in pairs(expected.model.buffers) do
        lu.assertEquals(run.model.buffers[name]:totable(), t:totable(), what .. ": " .. name)
    end
end

local function assert_same_bits(a, b, what)
    lu.assertEquals(a.losses, b.losses, what)
    for name, t in pairs(b.params) do
        lu.assertEquals(largest(a.params[name] - t), 0, what .. ": " .. name)
    end
end

local LAYERS = { [2] = 4, [3] = 3, [4] = 4 }
local TINY = ("model_name=tiny base_num_decoder_layers=%d"):format(LAYERS[RANKS])
-- One table for tokens and logits, learned positions, LayerNorm and biases; dropout depends on the token.
local TIED = ("model_name=tiny-gpt2 base_num_decoder_layers=%d dropout_rate=0.25"):format(LAYERS[RANKS])
-- Losses of routers in every stage, and biases that follow the loads of all ranks. With this seed no token has two
-- experts with nearly the same score, between which rounding would choose.
local EXPERTS = ("model_name=tiny-moe base_num_decoder_layers=%d routed_bias=true routed_bias_update_rate=0.01 "
    .. "router_z_loss_weight=0.1 load_balance_loss_weight=0.5 init_weights_seed=1"):format(LAYERS[RANKS])
-- As EXPERTS, with a first layer that has none.
local LATENT = EXPERTS .. " decoder_block=deepseek first_num_dense_layers=1 attention_type=mla q_lora_rank=12 "
    .. "kv_lora_rank=10 qk_nope_head_dim=8 qk_rope_head_dim=4 v_head_dim=6"
local OUTSIDE = "stage=2 pipeline_parallel_layers=2 num_pipeline_microbatches=4 "
local ONE_CHUNK = " num_pipeline_repeats=1 num_layers_per_pipeline_stage="

-- ---- the steps of one rank ----

TestSteps = {}

-- All schedules have the same bits, if the stages have the same layers. (The norm of gradients is a sum over stages.)
local SAME = ({
    [2] = {
        "stage=2 num_pipeline_microbatches=4", "stage=2 num_pipeline_microbatches=4" .. ONE_CHUNK .. "2",
    },
    [3] = { "stage=3 num_pipeline_microbatches=6" .. ONE_CHUNK .. "1" },
    [4] = { "stage=4 num_pipeline_microbatches=4" .. ONE_CHUNK .. "1" },
})[RANKS]

for what, model in pairs({ untied = TINY, tied = TIED, experts = EXPERTS }) do
    TestSteps["test_every_schedule_of_" .. what] = function()
        for _, mesh in ipairs(SAME) do
            local run = on_mesh(model, mesh)
            assert_close(run, reference(model), mesh)
            assert_same_routing(run, reference(model), mesh)
            assert_same_bits(on_mesh(model, mesh .. " pipeline_schedule=1f1b"), run, mesh)
            for _, kind in ipairs(mesh:find(ONE_CHUNK, 1, true) and { "zb_h1", "zb" } or { "zb_h1" }) do
                assert_same_bits(on_mesh(model, mesh .. " pipeline_schedule=" .. kind), run, mesh .. ", " .. kind)
            end
        end
    end
end

local MESHES = RANKS == 4 and {
    "stage=2 fsdp=2 num_pipeline_microbatches=4 pipeline_schedule=1f1b" .. ONE_CHUNK .. "2",
    "stage=2 fsdp=2 pipeline_fsdp_ag_once=true",
    "stage=2 tensor=2 pipeline_schedule=1f1b",
    "stage=2 fsdp=2 num_pipeline_microbatches=4 pipeline_schedule=zb_h1" .. ONE_CHUNK .. "2",
    "stage=2 tensor=2 num_pipeline_microbatches=4 pipeline_schedule=zb_h1" .. ONE_CHUNK .. "2",
    "stage=2 data=2 shard_optimizer_over_data=true",
    "stage=2 context=2", "stage=2 tensor_sequence=2",
    "dcn_pipeline_parallelism=2 fsdp=2",
    "fsdp=2 pipeline_schedule=1f1b " .. OUTSIDE, "fsdp=2 pipeline_fsdp_ag_once=true " .. OUTSIDE,
    "data=2 shard_optimizer_over_data=true " .. OUTSIDE, "data=2 pipeline_schedule=zb_h1 " .. OUTSIDE,
    "tensor=2 " .. OUTSIDE, "context=2 " .. OUTSIDE,
} or {}
if os.getenv "MXLUA_NODE_RANKS" then -- nodes change how values travel, and not what a stage does
    MESHES = { MESHES[1] }
end

for i, mesh in ipairs(MESHES) do
    TestSteps["test_on_" .. mesh:gsub("[^%w]+", "_")] = function()
        for _, model in ipairs(i == 1 and { TINY, TIED } or { TIED }) do
            assert_close(on_mesh(model, mesh), reference(model), mesh)
        end
    end
end

-- Only the last layer is trained, so the first stage has no gradients; only the tied table; only the layers.
function TestSteps.test_frozen_parameters()
    for _, model in ipairs({
        TIED .. " trainable_parameters_mask=[layer00" .. LAYERS[RANKS] .. "]",
        TIED .. " trainable_parameters_mask=[^emb]",
        TINY .. " trainable_parameters_mask=[layer]",
    }) do
        for _, kind in ipairs({ "1f1b", "zb_h1" }) do
            local mesh = SAME[#SAME] .. " pipeline_schedule=" .. kind
            assert_close(on_mesh(model, mesh), reference(model), model .. ", " .. kind)
        end
    end
end

-- Backward passes in descending order: the last one is that of the first microbatch.
function TestSteps.test_a_schedule_of_ones_own()
    local mesh = RANKS == 4 and "stage=2 data=2" .. ONE_CHUNK .. "2" or SAME[#SAME]
    local config = config_of(TIED, mesh, ("per_device_batch_size=%d"):format(SEQUENCES // RANKS))
    local run = new_run(config, mx.train.mesh(config))
    local own, actions = run.model.parallel.stages, {}
    local n = own.microbatches
    for stage = 1, own.n do
        actions[stage] = {}
        for i = 1, 2 * n do
            actions[stage][i] = { what = i <= n and "F" or "B", chunk = stage, micro = i <= n and i or 2 * n + 1 - i }
        end
    end
    mx.pipeline.driver.use(run.model, mx.pipeline.schedule.of { stages = own.n, microbatches = n, actions = actions })
    take_steps(run)
    assert_close(run, reference(TIED), "own schedule")
    lu.assertErrorMsgContains(("but the model has %d, 1, %d and none"):format(own.n, n), mx.pipeline.driver.use,
        run.model, mx.pipeline.schedule.make { kind = "gpipe", stages = own.n, microbatches = n + 1 })
end

if RANKS == 4 then
    -- Ranks that split sequences count the targets of the modules together, on the stages that have them.
    function TestSteps.test_multi_token_prediction_on_a_mesh()
        local model = TINY .. " mtp_num_layers=2"
        for _, mesh in ipairs({ "stage=2 context=2", "context=2 " .. OUTSIDE .. "pipeline_schedule=1f1b" }) do
            assert_close(on_mesh(model, mesh), reference(model), mesh)
        end
    end

    function TestSteps.test_experts_on_a_mesh()
        for mesh, model in util.sorted_pairs({
            ["stage=2 expert=2 pipeline_schedule=1f1b" .. ONE_CHUNK .. "2"] = EXPERTS,
            ["expert=2 pipeline_schedule=1f1b " .. OUTSIDE] = LATENT,
        }) do
            local run = on_mesh(model, mesh)
            assert_close(run, reference(model), mesh)
            assert_same_routing(run, reference(model), mesh)
        end
    end
end

if RANKS == 2 then
    -- Chunks of 1, 2, 2 and 1 layers.
    function TestSteps.test_chunks_that_lack_a_layer()
        local model = "model_name=tiny-gpt2 base_num_decoder_layers=6"
        local mesh = "stage=2 num_layers_per_pipeline_stage=2 num_pipeline_repeats=2 pipeline_schedule=1f1b"
        assert_close(on_mesh(model, mesh), reference(model), mesh)
        mesh = "stage=2 num_layers_per_pipeline_stage=5 decoder_last_pipeline_num_layers=1" -- 5 layers and 1
        assert_close(on_mesh(model, mesh), reference(model), mesh)
    end

    -- The modules are on the last stage, which has a copy of the table of tokens and adds up gradients with the first.
    function TestSteps.test_multi_token_prediction()
        local modules = " mtp_num_layers=2"
        for _, case in ipairs({
            { TINY .. modules, SAME[1] }, { TINY .. modules, SAME[2] .. " pipeline_schedule=zb_h1" },
            { TINY .. modules .. " trainable_parameters_mask=[mtp001]", SAME[2] .. " pipeline_schedule=zb_h1" },
            { EXPERTS .. modules .. " logits_via_embedding=true", SAME[2] .. " pipeline_schedule=1f1b" },
        }) do
            local model, mesh = table.unpack(case)
            local run = on_mesh(model, mesh)
            assert_close(run, reference(model), case[1] .. ", " .. mesh)
            local further = run.model:figures().mtp_loss -- of the last step, on all stages
            lu.assertTrue(further > 0 and further < 1)
            lu.assertEquals(mx.all_reduce(mx.tensor { further }, { op = "max" }):item(), mx.tensor({ further }):item())
        end
    end

    -- Two of four layers are in the pipeline, and each stage runs the others for every second microbatch: after the
    -- pipeline, or before it for models whose first layer has no experts. All schedules have the same bits, except for
    -- a table that a stage uses for both tokens and logits.
    for what, model in pairs({ untied = TINY, tied = TIED, experts = EXPERTS, latent = LATENT }) do
        TestSteps["test_layers_outside_of_" .. what] = function()
            local first
            for _, kind in ipairs(what == "untied" and { "gpipe", "1f1b", "zb_h1", "zb" } or { "1f1b", "zb_h1" }) do
                local mesh = OUTSIDE .. "pipeline_schedule=" .. kind
                local run = on_mesh(model, mesh)
                assert_close(run, reference(model), what .. ", " .. mesh)
                assert_same_routing(run, reference(model), what .. ", " .. mesh)
                first = first or run
                if what ~= "tied" then
                    assert_same_bits(run, first, what .. ", " .. mesh)
                end
            end
        end
    end

    function TestSteps.test_layers_outside_with_other_keys()
        local six = TINY:gsub("layers=4", "layers=6")
        for _, case in ipairs({
            { TINY .. " mtp_num_layers=2", OUTSIDE .. "pipeline_schedule=1f1b" },
            { LATENT .. " mtp_num_layers=1 logits_via_embedding=true", OUTSIDE .. "pipeline_schedule=zb_h1" },
            { TIED .. " trainable_parameters_mask=[^emb]", OUTSIDE .. "pipeline_schedule=1f1b" },
            { TIED .. " trainable_parameters_mask=[layer004]", OUTSIDE .. "pipeline_schedule=zb" },
            { six, "stage=2 pipeline_parallel_layers=4 pipeline_schedule=1f1b" }, -- interleaved
            { TIED, OUTSIDE .. "gradient_accumulation_steps=2", 2 },
            -- the table of relative positions has no gradient
            { "model_name=tiny-parallel mlp_activations=[gelu] base_num_decoder_layers=4", OUTSIDE },
        }) do
            local model, mesh = case[1], case[2]
            assert_close(on_mesh(model, mesh, case[3]), reference(model), model .. ", " .. mesh)
        end
    end

    function TestSteps.test_two_passes_are_one_of_twice_the_sequences()
        for _, model in ipairs({ TINY, TIED }) do
            assert_close(on_mesh(model, "stage=2 gradient_accumulation_steps=2", 2), reference(model), "two passes")
        end
    end

    function TestSteps.test_evaluation()
        local words = TIED .. " eval_interval=1 eval_dataset_path=" .. mx.root .. "README.md"
        local alone = new_run(config_of(words, "per_device_batch_size=4"))
        local sum, count = 0, 0
        local data = mx.data.open_evaluation(alone.data)
        data.part, data.parts = 0, 1
        for i = 0, 5 do -- twice as many batches of half the sequences
            local step <close> = mx.step()
            local batch = data:batch_of_pass(i)
            local n = batch.mask:to("f32"):sum():item()
            sum, count = sum + alone.model:loss(batch, true):item() * n, count + n
        end
        for _, stages in ipairs({ "stage=2 num_pipeline_microbatches=4", OUTSIDE }) do
            local staged = config_of(words, "per_device_batch_size=4", stages)
            local mesh = mx.train.mesh(staged)
            local run = new_run(staged, mesh)
            local loss, targets = mx.evaluate.data(run.model, mx.data.open_evaluation(run.data, mesh), 3)
            lu.assertEquals(targets, count)
            lu.assertAlmostEquals(loss, sum / count, 1e-5)
        end
    end
end

-- ---- time ----

TestTime = {}

-- Passes that only sleep: stages wait for each other as long as a replay of the measured passes says, which knows no
-- time of messages. 5 points are left for them. Other programs may delay a message in one run of the schedule, so one
-- of five runs must be as close as that; a driver that waits too long does so in all of them.
function TestTime.test_the_bubble_is_that_of_the_schedule()
    if RANKS == 3 then
        lu.skip("two and four stages are enough")
    end
    local config = config_of(TINY, SAME[1], "pipeline_schedule=1f1b num_pipeline_microbatches=4",
        ("per_device_batch_size=%d"):format(4 // RANKS))
    local model, data = mx.models.new(config, mx.train.mesh(config)), mx.data.open(config, mx.train.mesh(config))
    local micros, own = mx.pipeline.driver.split({ data:next() }, 4), {}
    local Pass = getmetatable(mx.pipeline.driver.new(model, micros, { 1, 1, 1, 1 }, 1, true))
    local forward, backward = Pass.forward, Pass.backward
    local function pass(what, seconds)
        return function(self, chunk, micro)
            local start = mx.now()
            os.execute("sleep " .. seconds)
            own[#own + 1] = { what, chunk, micro, mx.now() - start }
            return mx.zeros(self.like:size(), self.like:dtype())
        end
    end
    Pass.forward, Pass.backward = pass("F", 0.05), pass("B", 0.1)
    local function run_once()
        own = {}
        mx.barrier()
        mx.pipeline.driver.train(model, micros, { 1, 1, 1, 1 }, 1, 1)
    end
    local function off() -- by how much the bubble of a run differs from that of its replay, the same on all ranks
        local seconds, stages = {}, model.parallel.stages
        stages.times = { passes = 1, seconds = 0, waited_s = 0 }
        run_once()
        for rank = 0, RANKS - 1 do
            local text = mx.share_text(mx.rank() == rank and mx.io.json_encode(mx.io.array(own)) or nil, rank)
            for _, one in ipairs(mx.io.json_decode(text)) do
                seconds[("%s %d %d"):format(one[1], one[2], one[3])] = one[4]
            end
        end
        local function of(what)
            return function(chunk, micro)
                return seconds[("%s %d %d"):format(what, chunk, micro)]
            end
        end
        local replay = mx.pipeline.schedule.replay(stages.schedule, { F = of "F", B = of "B" })
        return mx.pipeline.driver.bubble(model) - replay.bubble
    end
    run_once() -- also connects the ranks
    local least
    for _ = 1, 5 do
        least = math.min(least or math.huge, math.abs(off()))
        if least <= 0.05 then
            break
        end
    end
    Pass.forward, Pass.backward = forward, backward
    lu.assertAlmostEquals(least, 0, 0.05)
end

-- ---- memory ----

if RANKS == 2 and not os.getenv "MXLUA_NODE_RANKS" then
    TestMemory = {}

    -- 1f1b has 2 and 1 microbatches in flight, gpipe 8. The plan says how much less memory that is. zb_h1 needs more
    -- than 1f1b, because inputs of products wait for the gradients of weights, and zb with more of them more still.
    function TestMemory.test_is_what_the_plan_says()
        local planned, real = {}, {}
        for i, kind in ipairs({ "gpipe", "1f1b", "zb_h1", "zb zero_bubble_max_pending_backward=6" }) do
            local config = config_of("model_name=tiny base_num_decoder_layers=4 base_emb_dim=128 base_mlp_dim=512",
                "max_target_length=128 stage=2 num_pipeline_microbatches=8 per_device_batch_size=8 remat_policy=none",
                "pipeline_schedule=" .. kind .. ONE_CHUNK .. "2")
            mx.barrier() -- until then, what is on its way to a slower rank counts as used
            collectgarbage()
            collectgarbage()
            local before = mx.memory().in_use
            local hardware = mx.host.hardware(RANKS, { measure = false })
            planned[i] = mx.plan.simulate(config, hardware, 1).pipeline.peaks[mx.rank() + 1]
            local run = new_run(config, mx.train.mesh(config))
            real[i] = 0 -- the most of some steps, as a rank whose messages come late holds less
            for _ = 1, 4 do
                local step <close> = mx.step()
                mx.reset_peak()
                mx.train.gradients(run.model, run.data, 1)
                run.optimizer:step()
                real[i] = math.max(real[i], mx.memory().peak - before)
            end
            lu.assertAlmostEquals(planned[i] / real[i], 1, 0.03, kind)
            for _, t in pairs(run.model.params) do
                t:release()
            end
            for _, moments in pairs(run.optimizer.state) do
                for _, t in pairs(moments) do
                    t:release()
                end
            end
        end
        lu.assertTrue(real[2] < real[1] and real[2] < real[3] and real[3] < real[4])
        lu.assertAlmostEquals((planned[1] - planned[2]) / (real[1] - real[2]), 1, 0.05)
    end
end

-- ---- checkpoints and files ----

TestFiles = {}

local function shared_folder()
    return mx.share_text(mx.rank() == 0 and os.tmpname():gsub("/?[^/]*$", "") .. "/pipeline" .. os.time()
        .. math.random(1 << 30) or nil)
end

local function options(run)
    return { params = run.model.params, optimizer = run.optimizer, parallel = run.model.parallel, model = run.model }
end

-- A checkpoint of a pipeline, loaded by one rank with all layers, whose checkpoint another pipeline loads.
function TestFiles.test_checkpoints_fit_any_number_of_stages()
    for _, case in ipairs({ { TINY, SAME[1] }, { TIED, SAME[1] }, RANKS == 2 and { TIED, OUTSIDE } or nil }) do
        local model, folder = case[1], shared_folder()
        local run = on_mesh(model, case[2])
        local function save(from, name, step)
            local o = options(from)
            o.directory = folder .. name
            local saver = mx.checkpoint.saver(o)
            saver:save(step, {}, true)
            saver:close()
        end
        save(run, "", 3)
        local fsdp = config_of(model, "per_device_batch_size=4", "fsdp=" .. RANKS)
        local other = new_run(fsdp, mx.train.mesh(fsdp))
        mx.checkpoint.load(folder .. "/step_3", options(other))
        lu.assertEquals(other.optimizer.steps, STEPS)
        assert_same_bits({ params = whole_parameters(other.model) }, { params = run.params }, "on fsdp")
        save(other, "2", 3)
        local back = new_run(run.config, mx.train.mesh(run.config))
        mx.checkpoint.load(folder .. "2/step_3", options(back))
        assert_same_bits({ params = whole_parameters(back.model) }, { params = run.params }, "back on stages")
        for name, moments in pairs(run.optimizer.state) do
            for moment, t in pairs(moments) do
                lu.assertEquals(largest(back.optimizer.state[name][moment] - t), 0, moment .. " of " .. name)
            end
        end
        mx.barrier()
        if mx.rank() == 0 then
            os.execute(("rm -rf '%s' '%s2'"):format(folder, folder))
        end
    end
end

-- The picture of the last step has a row for each stage, whose passes are those of the schedule in their order.
function TestFiles.test_the_picture_of_the_last_step()
    local run = on_mesh(TINY, SAME[1] .. " pipeline_schedule=1f1b")
    local text, n = mx.pipeline.last(run.model), 0
    lu.assertStrContains(text, ("1f1b: %d stages"):format(RANKS == 4 and 4 or RANKS))
    for stage, row in text:gmatch("stage (%d)  ([%w.]+)") do
        n = n + 1
        lu.assertEquals(tonumber(stage), n)
        lu.assertTrue(#row > 40, row)
    end
    lu.assertEquals(n, RANKS)
    local actions, times = run.model.parallel.stages.schedule.actions[mx.rank() + 1], run.model.parallel.stages.times
    lu.assertEquals(#times.actions, #actions)
    for i, action in ipairs(actions) do
        local took = times.actions[i]
        lu.assertEquals({ took.what, took.chunk, took.micro }, { action.what, action.chunk, action.micro })
        lu.assertTrue(took.start <= took.stop and (i == 1 or took.start >= times.actions[i - 1].stop))
    end
end

function TestFiles.test_parameters_and_hugging_face_folders()
    local folder = shared_folder()
    local run = on_mesh(TINY, SAME[1])
    mx.train.save(run.config, run.model, folder .. "/parameters.h5")
    mx.weights.save(run.model, folder .. "/hf")
    for _, path in ipairs({ folder .. "/parameters.h5", folder .. "/hf" }) do
        local again = new_run(run.config, mx.train.mesh(run.config))
        mx.run.load_parameters(path, again.model)
        assert_same_bits({ params = whole_parameters(again.model) }, { params = run.params }, path)
    end
    mx.barrier()
    if mx.rank() == 0 then
        os.execute(("rm -rf '%s'"):format(folder))
    end
end

-- ---- what is refused ----

TestRefusals = {}

function TestRefusals.test_what_does_not_fit()
    local stage = "stage=" .. RANKS
    local function refused(message, ...)
        local config = config_of(...)
        local mesh = mx.train.mesh(config)
        lu.assertErrorMsgContains(message, function()
            local model, data = mx.models.new(config, mesh), mx.data.open(config, mesh)
            mx.train.gradients(model, data, 1)
        end)
    end
    local layers = ("model_name=tiny base_num_decoder_layers=%d"):format(2 * RANKS)
    refused(("%d stages then have %d layers, and the model has %d: set num_layers_per_pipeline_stage=2 "
        .. "num_pipeline_repeats=1"):format(RANKS, RANKS, 2 * RANKS), layers, "num_pipeline_repeats=1", stage)
    refused(("and the model has %d: set num_layers_per_pipeline_stage=3"):format(2 * RANKS + 1), ("model_name=tiny "
        .. "base_num_decoder_layers=%d"):format(2 * RANKS + 1), stage)
    refused((", 1 of them in the last chunk, and the model has %d: set num_layers_per_pipeline_stage="):format(
        2 * RANKS), layers, "decoder_last_pipeline_num_layers=1 num_pipeline_repeats=1", stage)
    for _, n in ipairs({ 1, 2 * RANKS + 1 }) do
        refused(("expected at least one layer for each of the %d stages, and at most the %d layers of the model")
            :format(RANKS, 2 * RANKS), layers, "pipeline_parallel_layers=" .. n, stage)
    end
    refused(("num_pipeline_microbatches = %d: with layers outside the pipeline expected a multiple of the %d stages")
        :format(RANKS + 1, RANKS), layers, ("pipeline_parallel_layers=%d num_pipeline_microbatches=%d"):format(RANKS,
        RANKS + 1), stage)
    refused(("and the pipeline has %d: set"):format(RANKS), layers, "num_layers_per_pipeline_stage=2",
        "pipeline_parallel_layers=" .. RANKS, stage)
    refused("do not make num_pipeline_microbatches = 5 equal microbatches", layers,
        "num_pipeline_microbatches=5 per_device_batch_size=1", stage)
    refused("needs a multiple of the " .. RANKS .. " stages", layers, "pipeline_schedule=1f1b",
        ("num_pipeline_microbatches=%d"):format(RANKS + 1), stage)
    refused(("zb has one chunk on each stage, and %d layers in chunks of 1 make 2: set "
        .. "num_layers_per_pipeline_stage=2 num_pipeline_repeats=1"):format(2 * RANKS), layers,
        "pipeline_schedule=zb", stage)
end

function TestRefusals.test_generation()
    local config = config_of(TINY, SAME[1])
    local model = mx.models.new(config, mx.train.mesh(config))
    lu.assertErrorMsgContains("load the checkpoint on a mesh without stages", model.hidden, model,
        mx.zeros({ 1, 4 }, "i32"))
end

function TestRefusals.test_a_loss_for_training()
    local config = config_of(TINY, SAME[1])
    local model = mx.models.new(config, mx.train.mesh(config))
    local tokens = mx.zeros({ 4, 24 }, "i32")
    lu.assertErrorMsgContains("trains with mx.train.gradients", model.loss, model,
        { tokens = tokens, targets = tokens })
end

function TestRefusals.test_keys()
    lu.assertErrorMsgContains("num_pipeline_microbatches has no effect without ici_pipeline_parallelism",
        config_of, "num_pipeline_microbatches=4")
end
