-- Published jobs, with the settings of their scripts, fit in the memory of the chips on which they ran. What a chip
-- keeps is checked against the sizes of the tensors.

local lu = require "luaunit"
local mx = require "mx"

TestJobs = {}

local function simulate(...)
    local config = mx.config.load({ ... }, { simulate = false, flags = false, quiet = true })
    return mx.plan.simulate(config, config.hardware, config.num_slices, { limited = true }), config
end

-- The bytes that the layers keep are those of the named tensors, and no others have these names.
local function assert_keeps(result, expected)
    local names = require("mx.models.remat").TENSORS
    for _, name in ipairs(names) do
        local entry = result.kept[name]
        lu.assertAlmostEquals(entry and entry.bytes or 0, expected[name] or 0, 1e-6 * (expected[name] or 0), name)
    end
end

-- MaxText, configs/v5p/32b.sh and others, 2023: `minimal` in a block with attention and MLP side by side. The gradient
-- of their sum reads neither result, so JAX keeps neither; with tensor = 4 each would be 40 GiB.
function TestJobs.test_minimal_with_a_parallel_block()
    local tokens, layers = 8 * 2048, 32
    local E, heads, M = 4 * 2560, 4 * 8 * 256, 4 * 8192 -- the base sizes by the factors of global_parameter_scale 32
    for _, axis in ipairs({ "tensor", "tensor_sequence" }) do
        local result = simulate("model_name=32b", "hardware=v5p-64", "per_device_batch_size=8", "remat_policy=minimal",
            ("ici_%s_parallelism=4"):format(axis))
        local qkv = layers * tokens * heads * 2
        assert_keeps(result, {
            query_proj = qkv, key_proj = qkv, value_proj = qkv, mlpwi = layers * tokens * M * 2,
            decoder_layer_input = layers * tokens * E * 2,
        })
    end
end

function TestJobs.test_jobs_of_v5p()
    for _, job in ipairs({ -- scale, chips, sequences of a chip, tensor, policy
        { 64, 64, 3, 4, "minimal" }, { 128, 128, 1, 8, "minimal" }, { 256, 512, 1, 8, "minimal" },
        { 512, 512, 2, 8, "full" }, { 1024, 1024, 2, 8, "full" },
    }) do
        local result = simulate("model_name=128b", "global_parameter_scale=" .. job[1], "hardware=v5p-" .. job[2],
            "per_device_batch_size=" .. job[3], "ici_tensor_parallelism=" .. job[4], "remat_policy=" .. job[5])
        lu.assertAlmostEquals(result.params / 1e9, job[1], 0.05 * job[1])
        lu.assertTrue(result.peak_bytes < 95 * 2 ^ 30)
    end
end

-- tpu-recipes, training/trillium, Llama2-70B: fsdp_transpose splits all weights.
function TestJobs.test_fsdp_transpose_of_llama2_70b()
    local result = simulate("model_name=llama2-70b", "hardware=v6e-256", "per_device_batch_size=3",
        "max_target_length=4096", "ici_fsdp_parallelism=1", "ici_fsdp_transpose_parallelism=-1",
        "remat_policy=qkv_proj_offloaded")
    lu.assertAlmostEquals(result.weights, 4 * result.params / 256, 0.01 * result.weights)
    lu.assertTrue(result.times.host_busy_s > 0)
end

-- tpu-recipes, training/trillium, GPT3-175B in bf16.
function TestJobs.test_gpt3_175b_on_v6e()
    local result = simulate("model_name=gpt3-175b", "hardware=v6e-256", "per_device_batch_size=3",
        "max_target_length=2048", "remat_policy=full")
    assert_keeps(result, { decoder_layer_input = 96 * 3 * 2048 * 12288 * 2 })
end

-- tpu-recipes, training/trillium, Llama3.1-405B on two slices: the inputs of layers go to the host.
function TestJobs.test_llama_405b_with_offloads()
    local result = simulate("model_name=llama3.1-405b", "hardware=v6e-256", "num_slices=2", "dcn_data_parallelism=1",
        "dcn_fsdp_parallelism=2", "per_device_batch_size=1", "ici_fsdp_parallelism=256", "remat_policy=custom",
        "decoder_layer_input=offload", "max_target_length=8192")
    local inputs = 126 * 8192 * 16384 * 2
    lu.assertTrue(result.kept.decoder_layer_input == nil or result.kept.decoder_layer_input.bytes < inputs / 32)
    -- Out in forward, back in backward, over the host's links of 3.2e10 bytes a second.
    lu.assertAlmostEquals(result.times.host_busy_s, 2 * inputs / 3.2e10, 0.02 * 2 * inputs / 3.2e10)
end

function TestJobs.test_moments_and_weights_in_bf16()
    local words = { "model_name=llama3.1-8b", "hardware=v6e-8", "max_target_length=2048", "per_device_batch_size=1",
        "weight_dtype=bfloat16" }
    local config = mx.config.load(words, { simulate = false })
    local result = mx.plan.simulate(config, config.hardware, 1, { limited = true })
    lu.assertAlmostEquals(result.weights, 2 * result.params / 8, 0.01 * result.weights)
    lu.assertAlmostEquals(result.states, 4 * result.params / 8, 0.01 * result.states)
end

-- With tensor = 16, sixteen chips share the sequences: half a sequence a chip are eight for each sixteen.
function TestJobs.test_less_than_a_sequence_a_chip()
    local whole = simulate("model_name=128b", "hardware=v5e-256", "ici_fsdp_parallelism=16",
        "ici_tensor_parallelism=16", "per_device_batch_size=1")
    local half = simulate("model_name=128b", "hardware=v5e-256", "ici_fsdp_parallelism=16",
        "ici_tensor_parallelism=16", "per_device_batch_size=0.5")
    lu.assertEquals(half.kept.decoder_layer_input.bytes * 2, whole.kept.decoder_layer_input.bytes)
    lu.assertTrue(half.step_s < whole.step_s and half.step_s > whole.step_s / 2)
end
