-- ranks: 2
-- GPT-OSS and Llama 4 on a mesh: losses, gradients and updates are those of one rank.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare, two_updates = dofile(here .. "../lua/compare.lua"), dofile(here .. "two_updates.lua")

local COMMON = {
    "base_emb_dim=32", "base_mlp_dim=24", "base_moe_mlp_dim=16", "base_num_query_heads=4", "base_num_kv_heads=2",
    "head_dim=8", "vocab_size=64", "num_experts=4", "dtype=float32", "max_target_length=16", "adam_eps=1.0e-3",
    "enable_checkpointing=false",
}
local WORDS = {
    gpt_oss = { "sliding_window_size=5", "num_experts_per_tok=2", "base_num_decoder_layers=2" },
    llama4 = {
        "chunk_attn_window_size=6", "nope_layer_interval=2", "temperature_tuning=true", "use_qk_norm=true",
        "shared_experts=1", "interleave_moe_layer_step=2", "base_num_decoder_layers=2",
    },
}
local SEQUENCES = 4

local function config_of(block, sequences, ...)
    local words = { "decoder_block=" .. block, "per_device_batch_size=" .. sequences }
    for _, list in ipairs { COMMON, WORDS[block], { ... } } do
        table.move(list, 1, #list, #words + 1, words)
    end
    return mx.config.load(words)
end

-- Sinks, biases and the first steps of the temperature matter.
local function new_model(config, mesh)
    local shape = mx.models.shape(config)
    for _, block in ipairs(shape.blocks) do
        if block.attention.temperature then
            block.attention.temperature.tokens = 4
        end
    end
    return mx.models.new(shape, mesh, config)
end

local function train(config, mesh)
    return two_updates(new_model(config, mesh), config, mesh)
end

local expected = {}

local function assert_as_one_rank(block, ...)
    expected[block] = expected[block] or train(config_of(block, SEQUENCES))
    local config = config_of(block, SEQUENCES / mx.ranks(), "ici_fsdp_parallelism=1", ...)
    local run = train(config, mx.train.mesh(config))
    for i, loss in ipairs(expected[block].losses) do
        lu.assertAlmostEquals(run.losses[i] / loss, 1, 1e-5)
    end
    for _, what in ipairs({ "grads", "params" }) do
        for name, t in util.sorted_pairs(expected[block][what]) do
            local off = compare.distance(run[what][name], t, 1e-3)
            lu.assertTrue(off < 1e-5, ("%s of %s: off by %g"):format(what, name, off))
        end
    end
end

TestGptOss = {}

for block in pairs(WORDS) do
    local name = "test_" .. block

    TestGptOss[name .. "_ranks_split_the_batch"] = function()
        assert_as_one_rank(block, "ici_fsdp_parallelism=2")
        assert_as_one_rank(block, "ici_expert_parallelism=2", "use_ring_of_experts=true")
        assert_as_one_rank(block, "ici_expert_parallelism=2", "use_ring_of_experts=false", "remat_policy=none")
    end

    TestGptOss[name .. "_ranks_split_products"] = function()
        assert_as_one_rank(block, "ici_tensor_parallelism=2")
        assert_as_one_rank(block, "ici_tensor_sequence_parallelism=2", "remat_policy=none")
    end

    TestGptOss[name .. "_ranks_split_sequences"] = function()
        local balance = "context_parallel_load_balance=false"
        assert_as_one_rank(block, "ici_context_parallelism=2", "context_parallel_strategy=all_gather", balance)
        assert_as_one_rank(block, "ici_context_parallelism=2", "context_parallel_strategy=ulysses", balance)
        assert_as_one_rank(block, "ici_context_parallelism=2", "context_parallel_strategy=ring", balance)
    end
end

-- A pipeline of two stages: the loss is that of one rank.
function TestGptOss.test_stages()
    for block in util.sorted_pairs(WORDS) do
        local config = config_of(block, SEQUENCES / mx.ranks(), "ici_fsdp_parallelism=1", "ici_pipeline_parallelism=2")
        local mesh = mx.train.mesh(config)
        local model, data = new_model(config, mesh), mx.data.open(config, mesh)
        local step <close> = mx.step()
        expected[block] = expected[block] or train(config_of(block, SEQUENCES))
        lu.assertAlmostEquals(mx.train.gradients(model, data, 1) / expected[block].losses[1], 1, 1e-5)
    end
end
