-- ranks: 2 4
-- Plans that fit real ranks, and meshes, sizes and rules that are refused before they take memory.

local lu = require "luaunit"
local mx = require "mx"
local training = require "mesh_training"

local RANKS = mx.ranks()
local mesh_words, config_of = training.mesh_words, training.config_of

TestMeshRefusals = {}

-- What scripts/train.lua asks before it makes a model. The ranks of a run may be slices.
for _, words in ipairs(({
    [2] = {
        { "num_slices=2" }, { "dcn_data_parallelism=2" }, { "dcn_fsdp_parallelism=2" }, { "dcn_tensor_parallelism=2" },
    },
    [4] = {
        { "num_slices=2", "ici_tensor_parallelism=2" }, { "dcn_data_parallelism=2", "ici_context_parallelism=2" },
        { "num_slices=4" }, { "dcn_fsdp_parallelism=2", "ici_fsdp_parallelism=2" },
    },
})[RANKS] or {}) do
    TestMeshRefusals["test_the_plan_of_real_ranks_with_" .. table.concat(words, "_"):gsub("[^%w]+", "_")] = function()
        local config = config_of("tiny", words)
        mx.plan.check(config)
        lu.assertFalse(mx.is_simulated())
        lu.assertEquals(mx.train.mesh(config).layout.slices, tonumber(words[1]:match("=(%d+)$")))
    end
end

-- The message has all the parts, and no memory was taken, not even for a while.
local function assert_refused(parts, mesh, ...)
    local config = config_of("tiny", mesh_words(mesh), ...)
    local what = table.concat({ mesh, ... }, " ")
    collectgarbage() -- what earlier cases left would be freed in between
    collectgarbage()
    mx.reset_peak()
    local before = mx.memory().in_use
    local ok, message = pcall(function()
        return mx.models.new(config, mx.mesh(config)) -- without the comparison of configs, which needs memory
    end)
    local after = mx.memory()
    lu.assertFalse(ok, what .. " is not refused")
    for _, part in ipairs(parts) do
        lu.assertStrContains(tostring(message), part)
    end
    lu.assertEquals({ after.in_use, after.peak }, { before, before }, what)
end

if RANKS == 2 then
    -- An axis, and a size that leaves one of its two ranks without a part.
    for _, case in ipairs({
        { "fsdp", "base_emb_dim" }, { "context", "base_emb_dim" }, { "expert", "base_emb_dim" },
        { "fsdp_transpose", "base_mlp_dim" }, { "tensor", "base_mlp_dim" }, { "tensor_sequence", "base_mlp_dim" },
    }) do
        local axis, key = table.unpack(case)
        TestMeshRefusals["test_" .. key .. "_of_1_is_refused_on_" .. axis] = function()
            assert_refused({ "1 elements, too few for", ("2 parts (%s=2)"):format(axis), key,
                ("ici_%s_parallelism"):format(axis) }, axis .. "=2", ("%s=1"):format(key))
        end
    end

    function TestMeshRefusals.test_a_single_head_is_refused()
        assert_refused({ "base_num_query_heads = 1, base_num_kv_heads = 1: 2 ranks (tensor) split heads" }, "tensor=2",
            "base_num_query_heads=1", "base_num_kv_heads=1")
    end

    function TestMeshRefusals.test_an_axis_across_slices_is_named_by_its_own_key()
        assert_refused({ "1 elements", "2 parts (fsdp=2)", "base_emb_dim", "dcn_fsdp_parallelism" },
            "dcn_fsdp_parallelism=2 dcn_data_parallelism=1", "base_emb_dim=1")
    end

    function TestMeshRefusals.test_rules_that_leave_weights_in_parts_are_refused()
        assert_refused({ "logical_axis_rules: embed is split over tensor", "activation_batch or activation_length" },
            "tensor=2", "logical_axis_rules=[[embed, [fsdp, tensor]]]")
        assert_refused({ "logical_axis_rules: embed_vocab is split over expert" }, "expert=2",
            "logical_axis_rules=[[activation_batch, [data, fsdp]]]")
        assert_refused({ "activation_embed is split over tensor: heads must be, too" }, "tensor=2",
            "logical_axis_rules=[[heads, []], [kv_heads, []]]")
        assert_refused({ "activation_embed is split over tensor: vocab must be, too" }, "tensor=2",
            "logical_axis_rules=[[vocab, []]]")
        assert_refused({ "heads is split over [tensor], kv_heads over []" }, "tensor=2",
            "logical_axis_rules=[[kv_heads, []]]")
    end

    function TestMeshRefusals.test_a_mesh_of_other_ranks_is_refused()
        assert_refused({ "fsdp=3", "2 ranks" }, "fsdp=3")
    end

    -- With load balance a rank has two pieces of the sequence: 26 tokens are no four pieces.
    for mesh, length in pairs({
        ["context=2"] = 26, ["context=2 context_parallel_load_balance=false"] = 25, ["tensor_sequence=2"] = 25,
    }) do
        local name = mesh:gsub("[^%w]+", "_")
        TestMeshRefusals["test_a_sequence_that_does_not_divide_is_refused_on_" .. name] = function()
            assert_refused({ "max_target_length", tostring(length), "2 ranks" }, mesh, "max_target_length=" .. length)
        end
    end

    function TestMeshRefusals.test_heads_that_ranks_cannot_exchange_are_refused()
        assert_refused({ "ulysses: 2 ranks (context) cannot share out the 3 heads", "multiple of 2" },
            "context=2 context_parallel_strategy=ulysses", "base_num_query_heads=3", "base_num_kv_heads=1")
        assert_refused({ "ring does not use the axis context_usp_ulysses", "usp" },
            "context_usp_ulysses=2 context_parallel_strategy=ring")
    end
elseif RANKS == 4 then
    function TestMeshRefusals.test_what_is_too_small_for_two_axes_is_refused()
        assert_refused({ "base_num_kv_heads = 3: 4 ranks (tensor, tensor_sequence) split heads; expected at most" },
            "tensor=2 tensor_sequence=2", "base_num_query_heads=12", "base_num_kv_heads=3")
        assert_refused({ "base_num_kv_heads = 2: 4 ranks (tensor.outer, tensor.inner) split heads" }, "tensor=4",
            "base_num_query_heads=6", "base_num_kv_heads=2")
        assert_refused({ "3 elements", "4 parts (fsdp=2, context=2)", "base_emb_dim", "ici_fsdp_parallelism",
            "ici_context_parallelism" }, "fsdp=2 context=2", "base_emb_dim=3")
    end
end
