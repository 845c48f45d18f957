-- ranks: 2
-- Latent attention, QK-clip and multi-token prediction on a mesh: losses, gradients and updates are those of one rank.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare, two_updates = dofile(here .. "../lua/compare.lua"), dofile(here .. "two_updates.lua")

local WORDS = {
    "decoder_block=deepseek", "base_emb_dim=32", "base_mlp_dim=48", "base_moe_mlp_dim=16", "base_num_query_heads=4",
    "base_num_kv_heads=4", "base_num_decoder_layers=2", "vocab_size=64", "q_lora_rank=12", "kv_lora_rank=10",
    "qk_nope_head_dim=8", "qk_rope_head_dim=4", "v_head_dim=6", "dtype=float32", "max_target_length=16",
    "first_num_dense_layers=1", "num_experts=4", "num_experts_per_tok=2", "shared_experts=1", "rope_type=yarn",
    "adam_eps=1.0e-3", "enable_checkpointing=false",
}
local SEQUENCES = 4

local function config_of(sequences, ...)
    local words = table.move(WORDS, 1, #WORDS, 1, {})
    words[#words + 1] = "per_device_batch_size=" .. sequences
    table.move({ ... }, 1, select("#", ...), #words + 1, words)
    return mx.config.load(words)
end

local function train(config, mesh)
    return two_updates(mx.models.new(config, mesh), config, mesh)
end

local alone = {} -- the runs of one rank, by the words of their models

local function assert_model_as_one_rank(words, ...)
    local expected = alone[words] or train(config_of(SEQUENCES, table.unpack(words)))
    alone[words] = expected
    local both = table.move(words, 1, #words, 1, { ... })
    table.move({ ... }, 1, select("#", ...), #words + 1, both)
    local config = config_of(SEQUENCES / mx.ranks(), "ici_fsdp_parallelism=1", table.unpack(both))
    local run = train(config, mx.train.mesh(config))
    for i, loss in ipairs(expected.losses) do
        lu.assertAlmostEquals(run.losses[i] / loss, 1, 1e-5)
    end
    for _, what in ipairs({ "grads", "params" }) do
        for name, t in util.sorted_pairs(expected[what]) do
            local off = compare.distance(run[what][name], t, 1e-3)
            lu.assertTrue(off < 1e-5, ("%s of %s: off by %g"):format(what, name, off))
        end
    end
end

local PLAIN, MODULES = {}, { "mtp_num_layers=2" }

local function assert_as_one_rank(...)
    assert_model_as_one_rank(PLAIN, ...)
end

TestMla = {}

-- Each rank has the largest scores of its sequences, or of its heads.
function TestMla.test_qk_clip()
    local words = { "use_qk_clip=true", "qk_clip_threshold=1.5" }
    assert_model_as_one_rank(words, "ici_fsdp_parallelism=2")
    assert_model_as_one_rank(words, "ici_tensor_parallelism=2", "remat_policy=none")
    lu.assertErrorMsgContains("use_qk_clip: the largest scores need keys that other ranks on the axis context have",
        assert_model_as_one_rank, words, "ici_context_parallelism=2")
end

function TestMla.test_modules_of_multi_token_prediction()
    assert_model_as_one_rank(MODULES, "ici_fsdp_parallelism=2")
    assert_model_as_one_rank(MODULES, "ici_expert_parallelism=2", "remat_policy=none")
    assert_model_as_one_rank(MODULES, "ici_tensor_parallelism=2")
    assert_model_as_one_rank(MODULES, "ici_tensor_sequence_parallelism=2")
end

-- Ranks whose sequences have different numbers of targets: the mean is over all of them.
function TestMla.test_modules_with_masks()
    local config = config_of(1, "mtp_num_layers=2", "ici_data_parallelism=2", "ici_fsdp_parallelism=1")
    local one, split = mx.models.new(config_of(2, "mtp_num_layers=2")), mx.models.new(config, mx.train.mesh(config))
    local ids = mx.rand({ shape = { 2, 17 }, high = 64, seed = 1 }):to("i32")
    local batch = {
        tokens = mx.narrow(ids, { dim = 2, start = 1, length = 16 }),
        targets = mx.narrow(ids, { dim = 2, start = 2, length = 16 }),
        mask = mx.concat({ mx.ones({ 2, 5 }, "u8"), mx.tensor({ { 0, 0 }, { 1, 1 } }, "u8"), mx.ones({ 2, 9 }, "u8") },
            { dim = 2 }),
    }
    local own = {}
    for name, t in pairs(batch) do
        own[name] = mx.narrow(t, { dim = 1, start = mx.rank() + 1, length = 1 })
    end
    local step <close> = mx.step()
    mx.no_grad(function()
        local _, expected = one:losses(batch)
        local _, extra = split:losses(own)
        lu.assertAlmostEquals(mx.all_reduce(extra:view(1)):item() / 2, expected:item(), 1e-5)
    end)
end

-- Targets of a rank's last tokens are those of the next rank; with load balance a rank has two pieces of a sequence.
function TestMla.test_modules_with_split_sequences()
    assert_model_as_one_rank(MODULES, "ici_context_parallelism=2")
    assert_model_as_one_rank(MODULES, "ici_context_parallelism=2", "context_parallel_load_balance=false",
        "remat_policy=none")
end

-- Documents and masks of whole sequences, of which each rank has a part.
function TestMla.test_modules_with_split_documents()
    local config = config_of(1, "mtp_num_layers=2", "ici_context_parallelism=2", "ici_fsdp_parallelism=1")
    local one, split = mx.models.new(config_of(2, "mtp_num_layers=2")), mx.models.new(config, mx.train.mesh(config))
    local ids = mx.rand({ shape = { 2, 17 }, high = 64, seed = 1 }):to("i32")
    local segments = {
        { 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2 }, { 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4 },
    }
    local batch = {
        tokens = mx.narrow(ids, { dim = 2, start = 1, length = 16 }),
        targets = mx.narrow(ids, { dim = 2, start = 2, length = 16 }),
        mask = mx.concat({ mx.ones({ 2, 5 }, "u8"), mx.tensor({ { 0, 0 }, { 1, 1 } }, "u8"), mx.ones({ 2, 9 }, "u8") },
            { dim = 2 }),
        segments = mx.tensor(segments, "i32"),
    }
    local step <close> = mx.step()
    mx.no_grad(function()
        local _, expected = one:losses(batch)
        local _, extra = split:losses(split.parallel:batch_part(batch))
        lu.assertAlmostEquals(mx.all_reduce(extra:view(1)):item() / 2, expected:item(), 1e-5)
        local part = split.parallel:batch_part(batch)
        part.whole_tokens = nil
        lu.assertErrorMsgContains("expected a batch of model.parallel:batch_part", split.losses, split, part)
    end)
end

function TestMla.test_what_evaluation_of_modules_needs()
    for _, axis in ipairs({ "context", "tensor" }) do
        local config = config_of(2, "mtp_num_layers=1", "ici_fsdp_parallelism=1", ("ici_%s_parallelism=2"):format(axis),
            "mtp_eval_target_module=1", "eval_interval=1", "eval_steps=1")
        lu.assertErrorMsgContains("mtp_eval_target_module = 1: needs whole sequences and logits", function()
            mx.models.new(config, mx.train.mesh(config))
        end)
    end
end

function TestMla.test_ranks_split_the_batch()
    assert_as_one_rank("ici_data_parallelism=2")
    assert_as_one_rank("ici_fsdp_parallelism=2")
    assert_as_one_rank("ici_expert_parallelism=2", "remat_policy=none")
end

function TestMla.test_ranks_split_heads()
    assert_as_one_rank("ici_tensor_parallelism=2")
    assert_as_one_rank("ici_tensor_sequence_parallelism=2", "remat_policy=none")
end

-- Each rank attends to all latents with its heads. The prompt's keys are computed, those of later tokens are not.
function TestMla.test_generation_with_split_heads()
    local config = config_of(1, "ici_fsdp_parallelism=1", "ici_tensor_parallelism=2")
    local model = mx.models.new(config, mx.train.mesh(config))
    local tokens, cache = mx.tensor({ { 3, 1, 4, 1, 5, 9 } }, "i32"), model:new_cache(1, 6)
    local step <close> = mx.step()
    mx.no_grad(function()
        local whole = model:hidden(tokens)
        for i, part in ipairs({ { 0, 4 }, { 4, 1 }, { 5, 1 } }) do
            local range = { dim = 2, start = part[1] + 1, length = part[2] }
            local h = model:hidden(mx.narrow(tokens, range), { cache = cache, offset = part[1] })
            lu.assertTrue(compare.distance(h, mx.narrow(whole, range)) < 1e-5, "part " .. i)
        end
    end)
end

function TestMla.test_ranks_split_sequences()
    assert_as_one_rank("ici_context_parallelism=2")
    assert_as_one_rank("ici_context_parallelism=2", "context_parallel_strategy=ring")
    assert_as_one_rank("ici_context_parallelism=2", "context_parallel_strategy=ulysses")
end
