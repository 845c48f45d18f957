--- All policies on whole models, those that offload too: the same bits, less memory, a file that does not grow.

local mx = require "mx"
local lu = require "luaunit"
local remat = require "mx.models.remat"
local util = require "mx.util"

local LAYERS = 6 -- so that what two layers have in memory is far from what all have

-- A model of 6 layers and its data, with further words.
local function new_run(model, ...)
    local config = mx.config.load {
        "model_name=" .. model, "base_num_decoder_layers=" .. LAYERS, ...
    }
    return mx.models.new(config), mx.data.open(config)
end

local function release(model)
    for _, t in pairs(model.params) do
        t:release()
    end
end

--- One step's gradients.
---@return {loss: number, peak: integer, grads: table<string, any>} peak: bytes above what was there before
local function run_step(model, data, passes)
    collectgarbage()
    local before = mx.memory().in_use
    mx.reset_peak()
    local found = { loss = mx.train.gradients(model, data, passes or 1), grads = {} }
    found.peak = mx.memory().peak - before
    for name, t in pairs(model.params) do
        found.grads[name] = t:grad() and t:grad():clone()
        t:zero_grad()
    end
    return found
end

local function step_of(model_name, ...)
    local model, data = new_run(model_name, ...)
    local found = run_step(model, data)
    release(model)
    return found
end

local function assert_same(found, reference, what)
    lu.assertEquals(found.loss, reference.loss, what)
    lu.assertEquals(#util.sorted_keys(found.grads), #util.sorted_keys(reference.grads), what)
    for name, g in pairs(reference.grads) do
        local same = mx.mean(g:eq(found.grads[name]):to("f32")):item()
        lu.assertEquals(same, 1, ("%s: share of the gradient of %s that is the same"):format(what, name))
    end
end

-- Words that give each tensor of a layer the action.
local function custom(model, action)
    local words = { "remat_policy=custom" }
    for _, name in ipairs(mx.models.tensors(mx.models.shape(mx.config.load { "model_name=" .. model }))) do
        words[#words + 1] = name .. "=" .. action
    end
    return words
end

-- Enough tokens that activations make the peak, and not gradients.
local LONG = {
    tiny = { "max_target_length=256" },
    ["tiny-gpt2"] = { "max_target_length=256", "trainable_position_size=256" },
    ["tiny-parallel"] = { "max_target_length=256" },
}

TestPolicies = {}

for _, model in ipairs { "tiny", "tiny-gpt2", "tiny-parallel" } do
    for _, dtype in ipairs { "float32", "bfloat16" } do
        TestPolicies[("test_no_bit_differs_%s_%s"):format(model, dtype)] = function()
            local function step(...)
                return step_of(model, "dtype=" .. dtype, "per_device_batch_size=2", "base_num_decoder_layers=3", ...)
            end
            local reference = step("remat_policy=none")
            for _, policy in ipairs(remat.CHOICES) do
                assert_same(step("remat_policy=" .. policy), reference, policy)
            end
            assert_same(step(table.unpack(custom(model, "offload"))), reference, "all offloaded")
            assert_same(step("remat_policy=custom", "decoder_layer_input=offload", "context=device",
                "value_proj=offload", "mlpwo=device"), reference, "a mixture")
            assert_same(step("dropout_rate=0.2", table.unpack(custom(model, "offload"))),
                step("dropout_rate=0.2", "remat_policy=none"), "with dropout")
        end
    end

    -- Each policy against the next one that holds less, and the offloading ones against those that keep the same.
    TestPolicies["test_peak_memory_" .. model] = function()
        local peaks = {}
        for _, policy in ipairs(remat.CHOICES) do
            peaks[policy] = step_of(model, "remat_policy=" .. policy, table.unpack(LONG[model])).peak
        end
        local above
        for _, policy in ipairs(remat.CHOICES) do
            -- none keeps what gradients read, which in a parallel block is less than what has a name
            local in_order = policy ~= "custom" and not policy:find("offloaded")
                and not (policy == "none" and model == "tiny-parallel")
            if in_order and above then
                lu.assertTrue(peaks[policy] <= peaks[above], ("%s: %d, %s: %d"):format(above, peaks[above], policy,
                    peaks[policy]))
            end
            above = in_order and policy or above
        end
        lu.assertTrue(peaks.full < 0.6 * peaks.minimal_with_context)
        lu.assertTrue(peaks.minimal_offloaded < 0.8 * peaks.minimal)
        lu.assertTrue(peaks.qkv_proj_offloaded < peaks.save_qkv_proj)
    end

    TestPolicies["test_the_file_does_not_grow_" .. model] = function()
        local net, data = new_run(model, table.unpack(custom(model, "offload")))
        mx.offload_stats(true)
        run_step(net, data, 2)
        local first = mx.offload_stats(true)
        lu.assertTrue(first.file_bytes > 0)
        for _ = 1, 5 do
            run_step(net, data, 2)
            local now = mx.offload_stats(true)
            lu.assertEquals(now.file_bytes, first.file_bytes)
            lu.assertEquals(now.away_bytes, 0)
            lu.assertEquals(now.written_bytes, first.written_bytes)
            lu.assertTrue(now.read_bytes <= now.written_bytes)
        end
        release(net)
    end
end

-- With S long and E small a layer's input is most of what "full" holds.
function TestPolicies.test_offloading_the_input_of_layers()
    local words = { "base_num_decoder_layers=24", "base_mlp_dim=16", "max_target_length=256" }
    local full = step_of("tiny", "remat_policy=full", table.unpack(words))
    local offloaded = step_of("tiny", "remat_policy=custom", "decoder_layer_input=offload", table.unpack(words))
    assert_same(offloaded, full, "decoder_layer_input=offload")
    local inputs = 24 * 8 * 256 * 64 * 2 -- layers, sequences, tokens, emb, bytes
    lu.assertTrue(full.peak - offloaded.peak > inputs / 2, ("%d and %d"):format(full.peak, offloaded.peak))
end

function TestPolicies.test_a_memory_limit_waits_for_what_goes_out()
    local model, data = new_run("tiny", "remat_policy=minimal_offloaded")
    local peak = run_step(model, data).peak
    mx.trim()
    mx.memory_limit(mx.memory().in_use + peak)
    local ok, message = pcall(function()
        for _ = 1, 5 do
            run_step(model, data)
        end
    end)
    mx.memory_limit(0)
    release(model)
    lu.assertTrue(ok, message)
end

function TestPolicies.test_words_that_are_refused()
    local function refused(message, ...)
        local words = { "model_name=tiny-gpt2", ... }
        lu.assertErrorMsgContains(message, function() mx.config.load(words) end)
    end
    refused("decoder_layer_input, query_proj, key_proj, value_proj, context, out_proj, mlpwi, mlpwo",
        "remat_policy=custom", "mlpwi_0=device")
    refused("no effect with remat_policy = full", "query_proj=offload")
    refused("expected one of device, offload, got", "remat_policy=custom", "decoder_layer_input=remat")
    refused("expected one of device, offload, remat", "remat_policy=custom", "mlpwo=keep")
    refused("offloads nothing", "remat_policy=custom", "mlpwo=device", "offload_directory=/tmp")
    refused("minimal_offloaded", "remat_policy=minimal_offload")
    lu.assertErrorMsgContains("offload_directory", new_run, "tiny", "remat_policy=minimal_offloaded",
        "offload_directory=/nowhere/at/all")
end

-- A policy that keeps `context` keeps what attention's gradient reads, however ranks attend to each other's tokens: no
-- layer computes attention again.
function TestPolicies.test_attention_is_kept_along_context()
    local function calls(policy, strategy, op)
        local config = mx.config.load({
            "model_name=tiny", "hardware=v5e-4", "ici_fsdp_parallelism=1", "ici_context_parallelism=4",
            "context_parallel_strategy=" .. strategy, "remat_policy=" .. policy, "base_num_decoder_layers=3",
            "base_num_query_heads=4", "base_num_kv_heads=4",
        }, { simulate = false })
        local step, n = mx.plan.simulate(config, config.hardware, 1, { profile = true }), 0
        for _, row in ipairs(step.operations) do
            n = n + (row.op == op and row.calls or 0)
        end
        return n
    end
    for _, strategy in ipairs({ "all_gather", "ring", "ulysses" }) do
        local least = calls("none", strategy, "attention")
        lu.assertTrue(least >= 3 and calls("none", strategy, "attention_grad") == least, strategy)
        lu.assertEquals(calls("minimal_with_context", strategy, "attention"), least, strategy)
        lu.assertEquals(calls("full", strategy, "attention"), 2 * least, strategy)
    end
end
