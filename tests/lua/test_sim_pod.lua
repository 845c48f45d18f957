-- A simulated pod: times and memory against hand-worked ones, what is refused, and the host afterwards.

local lu = require "luaunit"
local mx = require "mx"

local simulated = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "simulated.lua")
local assert_near, constants, seconds = simulated.assert_near, simulated.constants, simulated.seconds

TestPod, TestRefusals = {}, {}

local function stop()
    mx.sim.stop()
end
TestPod.tearDown, TestRefusals.tearDown = stop, stop

local SMALL = {
    "base_emb_dim=2048", "base_num_query_heads=16", "base_num_kv_heads=16", "head_dim=128", "base_mlp_dim=8192",
    "base_num_decoder_layers=4", "vocab_size=4096", "max_target_length=2048", "per_device_batch_size=2",
}

-- Two steps of a small model on a pod. -> seconds of the second, its times, the memory before, at most and after it.
local function train(hardware, slices, more, words)
    local all = { "hardware=" .. hardware, "num_slices=" .. slices, table.unpack(SMALL) }
    local config = mx.config.load(table.move(words or {}, 1, #(words or {}), #all + 1, all), { simulate = false })
    mx.sim.start(config.hardware, config.num_slices, constants(more))
    local mesh = mx.train.mesh(config)
    local model = mx.models.new(config, mesh)
    local data, optimizer = mx.data.open(config, mesh), mx.optim.new(config, model.params, model.parallel)
    local result
    for _ = 1, 2 do
        mx.sim_times(true)
        mx.reset_peak()
        local start, before = mx.now(), mx.memory().in_use
        mx.train.gradients(model, data, config.gradient_accumulation_steps)
        optimizer:step()
        result = { seconds = mx.now() - start, times = mx.sim_times(), before = before, memory = mx.memory() }
    end
    return result
end

function TestPod.test_times_add_up_to_the_clock()
    for _, pod in ipairs({ { "v5e-4", 2 }, { "v5p-8", 1 }, { "v7x-4", 1 }, { "h100-8", 1 } }) do
        local result = train(pod[1], pod[2])
        local t = result.times
        assert_near(t.matrix_s + t.attention_s + t.memory_s + t.ici_s + t.dcn_s + t.host_s, result.seconds)
        lu.assertTrue(t.ici_busy_s >= t.ici_s and t.dcn_busy_s >= t.dcn_s)
        lu.assertTrue(t.matrix_s > 0 and t.attention_s > 0 and t.memory_s > 0)
        lu.assertEquals(t.dcn_busy_s > 0, pod[2] > 1)
        lu.assertEquals(result.memory.in_use, result.before)
    end
end

function TestPod.test_links_that_are_faster_help()
    local slow = train("v5e-4", 2, { ici_efficiency = 0.01, dcn_efficiency = 0.01 })
    local ici = train("v5e-4", 2, { dcn_efficiency = 0.01 })
    local both = train("v5e-4", 2)
    lu.assertTrue(both.seconds < ici.seconds and ici.seconds < slow.seconds)
end

function TestPod.test_remat_policies()
    local remat = require "mx.models.remat"
    local none = train("v5e-4", 1, nil, { "remat_policy=none", "base_num_decoder_layers=8" })
    local full = train("v5e-4", 1, nil, { "remat_policy=full", "base_num_decoder_layers=8" })
    for policy in pairs(remat.policies) do
        local result = train("v5e-4", 1, nil, { "remat_policy=" .. policy, "base_num_decoder_layers=8" })
        lu.assertEquals(result.memory.in_use, result.before)
        lu.assertTrue(result.memory.peak <= none.memory.peak and result.seconds >= none.seconds, policy)
        if remat.offloads(policy) then
            lu.assertTrue(result.times.host_busy_s > 0, policy)
        elseif policy ~= "full" then
            lu.assertTrue(result.memory.peak > full.memory.peak and result.seconds < full.seconds, policy)
        end
    end
end

-- 4 chips of 128 tokens, each with 2 of 8 experts, share out 1,024 choices: 256 each if they are even.
function TestPod.test_rows_of_experts_follow_the_declared_imbalance()
    local send, rows, times = mx.all_to_all_rows, {}, {}
    for i, imbalance in ipairs { 1, 1.5, 100 } do
        mx.sim.start("v5e-4", 1, constants())
        local cfg = mx.config.load({
            "model_name=tiny-moe", "per_device_batch_size=2", "ici_expert_parallelism=4", "hardware=v5e-4",
            ("simulated_expert_imbalance=%g"):format(imbalance), "base_emb_dim=1024", "base_moe_mlp_dim=4096",
        }, { simulate = false })
        local mesh = mx.train.mesh(cfg)
        local model, data = mx.models.new(cfg, mesh), mx.data.open(cfg, mesh)
        mx.all_to_all_rows = function(x, counts, o)
            rows[i] = rows[i] or o.rows
            return send(x, counts, o)
        end
        local ok, problem = pcall(function()
            times[i] = seconds(function() mx.train.gradients(model, data, 1) end)
        end)
        mx.all_to_all_rows = send
        lu.assertTrue(ok, problem)
        stop()
    end
    lu.assertEquals(rows, { 256, 384, 1024 })
    lu.assertTrue(times[1] < times[2] and times[2] < times[3])
end

function TestPod.test_collectives_are_counted()
    mx.sim.start("v5e-8", 2, constants())
    mx.train.mesh(mx.config.load({ "num_slices=2", "ici_fsdp_parallelism=4", "ici_tensor_parallelism=2" },
        { simulate = false }))
    mx.sim_times(true)
    local x = mx.zeros({ 1000, 256 })
    mx.all_reduce_(x, { axis = "data" })
    local t = mx.sim_times(true)
    lu.assertEquals({ t.collectives, t.ici_bytes, t.dcn_bytes }, { 1, 0, 1024000 })
    assert_near(t.dcn_s, 2 * (1e-5 + 1024000 / 2 / 3.125e9))
    mx.all_gather(x, { axis = "fsdp", dim = 1 })
    t = mx.sim_times(true)
    lu.assertEquals({ t.collectives, t.ici_bytes, t.dcn_bytes }, { 1, 4 * 1024000, 0 })
    -- Of the sides 2 and 4, tensor has two neighbours of the 4; fsdp the 2, and two of the 4 over a shared link.
    assert_near(t.ici_s, 0.75 * 4 * 1024000 / (4.5e10 + 4.5e10 / 2))
end

-- Eight ranks in two slices: of 7 parts that a rank sends, one leaves the slice. A trace has an event for each network.
function TestPod.test_the_events_of_a_collective_share_its_bytes()
    mx.sim.start("v5e-4", 2, constants())
    mx.train.mesh(mx.config.load({ "num_slices=2", "ici_fsdp_parallelism=4" }, { simulate = false }))
    mx.trace_start()
    mx.all_gather(mx.zeros({ 100, 250 }), { dim = 1 })
    local bytes = {}
    for _, event in ipairs(mx.trace_events()) do
        if event.kind == "job" then
            bytes[event.track] = (bytes[event.track] or 0) + event.bytes
        end
    end
    mx.trace_stop()
    lu.assertEquals(bytes, { ["network in the slice"] = 600000, ["network between slices"] = 100000 })
end

-- Sequences of 1,024 tokens in documents of 256. Of the 36 causal blocks of 128 by 128, 12 have pairs of one document,
-- 3 in each. A TPU's kernel computes all 36, and does 10 instead of 8 vector operations a score, backward 11 instead of
-- 9.
function TestPod.test_packed_documents()
    local function attention_s(hardware, document)
        local config = mx.config.load({ "hardware=" .. hardware, "max_target_length=1024",
            "simulated_document_length=" .. document }, { simulate = false })
        local values = mx.sim.settings(config)
        values.attention_step_s, values.vector_flops, values.attention_kernel.fused_backward = 0, 1e9, true
        mx.sim.start(hardware, 1, values)
        local q, o = mx.zeros({ 2, 1024, 4, 128 }, "bf16"), { causal = true }
        q:requires_grad()
        mx.sim_times(true)
        local loss = mx.attention(q, q, q, o):to("f32"):sum()
        local forward = mx.sim_times(true).attention_s
        mx.backward(loss)
        local times = { forward, mx.sim_times().attention_s }
        mx.sim.stop()
        return times
    end
    local whole, packed = attention_s("h100-1", 0), attention_s("h100-1", 256)
    assert_near(packed[1] / whole[1], 12 / 36)
    assert_near(packed[2] / whole[2], 12 / 36)
    whole, packed = attention_s("v5p-4", 0), attention_s("v5p-4", 256)
    assert_near(packed[1] / whole[1], 10 / 8)
    assert_near(packed[2] / whole[2], 11 / 9, 0.01) -- and the passes over the parts of dq
end

function TestPod.test_documents_that_cannot_be()
    for _, case in ipairs {
        { "simulated_document_length=256", "is for simulated chips, and hardware is empty" },
        { "hardware=v5p-4", "max_target_length=128", "simulated_document_length=256",
            "expected at most max_target_length = 128, got 256" },
        { "hardware=v5p-4", "max_target_length=1024", "simulated_document_length=256", "context_parallel_strategy=ring",
            "a ring of parts of sequences is simulated without documents" },
        { "hardware=v5p-4", "simulated_document_length=-1", "expected at least 0" },
    } do
        local message = table.remove(case)
        lu.assertErrorMsgContains(message, mx.config.load, case)
    end
end

-- A collective in a slice takes its share of the units from what overlaps with it.
function TestPod.test_collectives_take_units()
    local function issue(more)
        mx.sim.start("h100-8", 1, constants(more))
        local x = mx.zeros({ 8192, 8192 }, "bf16") -- fills a bucket, which starts at once
        mx.sim_times(true)
        local issued = seconds(function() mx.all_gather(x, { dim = 1, async = true }) end)
        return issued, mx.sim_times().ici_busy_s
    end
    local before = issue({ collective_share = 0 })
    local after, busy = issue({ collective_share = 0.25 })
    lu.assertTrue(busy > 0)
    assert_near(after - before, 0.25 * busy, 1e-6)
end

-- With one stream, collectives between slices overlap with nothing; with two, their waiting comes later or never.
function TestPod.test_streams()
    for streams, waits in pairs({ true, false }) do
        mx.sim.start("h100-8", 2, constants({ collective_streams = streams }))
        mx.train.mesh(mx.config.load({ "num_slices=2", "ici_fsdp_parallelism=8" }, { simulate = false }))
        mx.sim_times(true)
        local x = mx.zeros({ 8192, 8192 })
        local taken = seconds(function() mx.all_reduce_(x, { axis = "data", async = true }) end)
        local times = mx.sim_times()
        lu.assertEquals({ streams, times.dcn_s > 0 }, { streams, waits })
        lu.assertEquals(taken >= times.dcn_busy_s, waits)
    end
end

-- Tensors on the host are back before backward needs them, also those that it reads only to compute others again; and
-- the two directions do not wait for each other.
function TestPod.test_offloads_are_hidden()
    local words = { "remat_policy=custom", "decoder_layer_input=offload", "out_proj=offload", "query_proj=offload",
        "key_proj=offload", "value_proj=offload", "base_num_decoder_layers=8" }
    local times = train("v5e-4", 1, nil, words).times
    lu.assertTrue(times.host_busy_s > 0)
    lu.assertTrue(times.host_s < 0.25 * times.host_busy_s, times.host_s / times.host_busy_s)
end

function TestPod.test_without_a_mesh_collectives_are_of_all()
    mx.sim.start("v5e-8", 2, constants())
    mx.all_reduce_(mx.zeros({ 1000, 256 }))
    local t = mx.sim_times()
    lu.assertTrue(t.ici_busy_s > 0 and t.dcn_busy_s > 0)
end

function TestPod.test_again_begins_anew()
    local first = train("v5e-4", 2)
    lu.assertEquals(mx.ranks(), 8)
    local second = train("v5e-4", 2)
    lu.assertEquals(second.seconds, first.seconds)
    lu.assertEquals({ second.before, second.memory.peak }, { first.before, first.memory.peak })
    mx.sim.start("v5e-1")
    lu.assertEquals({ mx.now(), mx.memory().in_use, mx.ranks() }, { 0, 0, 1 })
    mx.config.load({ "hardware=v5e-8", "num_slices=2" }) -- a script that loads its config does the same
    lu.assertEquals(mx.ranks(), 16)
end

-- Functions that need the values of tensors refuse simulated ones. Errors of ranks are reported as on the host.
function TestPod.test_what_needs_values()
    local words = { "hardware=v5e-8" }
    lu.assertErrorMsgContains("'hardware=v5e-8' on the command line: hardware: a simulated chip has no values",
        mx.weights.model, "tests/golden/weights/llama2", { words = words })
    lu.assertFalse(mx.is_simulated())
    mx.sim.start("v5e-8", 1)
    local tokenizer = mx.tokenizer.open("bytes")
    lu.assertErrorMsgContains("have no values", tokenizer.decode, tokenizer, mx.zeros({ 3 }, "i32"))
    lu.assertErrorMsgContains("went wrong", mx.checkpoint.together, error, "went wrong")
    lu.assertEquals(mx.checkpoint.together(function() return 3 end), 3)
end

function TestPod.test_a_run_that_would_load_parameters()
    local said, say = {}, mx.metrics.say
    local config = mx.config.load({
        "hardware=v5e-8", "load_parameters_path=tests/golden/weights/llama2", "enable_checkpointing=false",
    })
    local model = mx.models.new(config, mx.train.mesh(config))
    local data = mx.data.open(config, model.parallel.mesh)
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    mx.metrics.say = function(format, ...)
        said[#said + 1] = format:format(...)
    end
    local started, run = pcall(mx.run.start, config, model, optimizer, data)
    mx.metrics.say = say
    lu.assertTrue(started, tostring(run))
    lu.assertEquals(run.step, 0)
    lu.assertStrContains(table.concat(said, "\n"), "nothing is loaded")
    lu.assertEquals(config.base_emb_dim, mx.weights.config("tests/golden/weights/llama2").base_emb_dim)
end

function TestPod.test_the_host_is_itself_afterwards()
    local before = mx.tensor { { 1, 2 }, { 3, 4 } }
    train("v5e-4", 2)
    mx.sim.stop()
    lu.assertEquals({ mx.ranks(), mx.is_simulated(), mx.sim.now }, { 1, false, nil })
    lu.assertEquals(mx.matmul(before, before):totable(), { { 7, 10 }, { 15, 22 } })
    local x = mx.tensor({ 1, 2, 3 }):requires_grad()
    mx.backward((x * x):sum())
    lu.assertEquals(x:grad():totable(), { 2, 4, 6 })
    lu.assertEquals(mx.all_reduce_(mx.ones({ 2 })):totable(), { 1, 1 })
    lu.assertErrorMsgContains("no mesh is set", mx.all_reduce_, mx.ones({ 2 }), { axis = "fsdp" })
    local start = mx.now()
    lu.assertTrue(mx.now() >= start and start > 0) -- the machine's clock
end

-- ---- what is refused ----

function TestRefusals.test_names()
    for _, case in ipairs({
        { "v5x-256", "hardware=v5x-256: there is no configs/hardware/v5x.yml, did you mean v5e?" },
        { "abacus-8", "there are b200, h100, h200, v5e, v5p, v6e, v7x" },
        { "../base-8", "hardware=../base-8: there is no" },
        { "v5e", "hardware=v5e: say how many chips a slice has, as in v5e-8" },
        { "v5e-100", "hardware=v5e-100: TPU v5e has slices of 1, 4, 8, 16, 32, 64, 128, 256" },
        { "v5p-96", "hardware=v5p-96: TPU v5p has slices of 4, 8, 16, 32 and multiples of 64 up to 8960" },
        { "v5p-9024", "and multiples of 64 up to 8960" },
        { "h100-16", "hardware=h100-16: H100 SXM has slices of 1, 2, 4, 8" },
    }) do
        lu.assertErrorMsgContains(case[2], mx.config.load, { "hardware=" .. case[1] })
        lu.assertFalse(mx.is_simulated())
    end
    lu.assertErrorMsgContains("slices: expected at least 1", mx.config.load, { "hardware=v5e-8", "num_slices=0" })
end

function TestRefusals.test_meshes()
    local function mesh(...)
        return mx.train.mesh(mx.config.load({ ... }))
    end
    mesh("hardware=v5e-8", "dcn_data_parallelism=2") -- two slices, as the sizes across them say
    lu.assertErrorMsgContains("dcn_*_parallelism make 2 slices (data=2), but num_slices=3", mesh, "hardware=v5e-8",
        "num_slices=3", "dcn_data_parallelism=2")
    lu.assertErrorMsgContains("ici_fsdp_parallelism=8", mesh, "hardware=v5e-8", "ici_fsdp_parallelism=3")
    mesh("hardware=h100-8", "ici_tensor_parallelism=2") -- a switch takes any
end
