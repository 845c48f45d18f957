-- ranks: 1 2 3 4 6 8
-- nodes: 2
-- Training on a mesh: every mesh takes the same steps as one rank that has all the sequences.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"
local training = require "mesh_training"

local RANKS = mx.ranks()
local STEPS, SEQUENCES, EXACT, config_of = training.STEPS, training.SEQUENCES, training.EXACT, training.config_of
local reference, on_mesh, largest_difference = training.reference, training.on_mesh, training.largest_difference
local assert_close, assert_same_bits = training.assert_close, training.assert_same_bits

-- The meshes of each rank count: axes with their sizes, and keys of the config.
local MESHES = {
    [1] = { "" },
    [2] = {
        "data=2", "fsdp=2", "fsdp_transpose=2", "tensor=2", "tensor_sequence=2", "context=2", "expert=2",
        "context=2 context_parallel_load_balance=false", "data=2 shard_optimizer_over_data=true",
        "context=2 context_parallel_strategy=ring",
        "context=2 context_parallel_strategy=ring context_parallel_load_balance=false", "dcn_fsdp_parallelism=2",
        "context=2 context_parallel_strategy=ulysses", "context_usp_ulysses=2 context_parallel_strategy=usp",
    },
    [3] = {
        "data=3", "fsdp=3", "tensor=3", "context=3", "tensor_sequence=3", "context=3 context_parallel_strategy=ring",
        "context=3 context_parallel_strategy=ring context_parallel_load_balance=false",
    },
    [4] = {
        "fsdp=2 tensor=2", "data=2 fsdp=2", "fsdp=2 tensor_sequence=2", "fsdp=2 context=2", "context=2 tensor=2",
        "tensor=2 tensor_sequence=2", "fsdp=2 fsdp_transpose=2", "dcn_data_parallelism=2 fsdp=2",
        "data=2 tensor=2 shard_optimizer_over_data=true", "context=4 context_parallel_strategy=ring",
        "fsdp=2 context=2 context_parallel_strategy=ring", "context=2 tensor=2 context_parallel_strategy=ring",
        "context=2 tensor=2 context_parallel_strategy=ulysses",
        "context=2 context_usp_ulysses=2 context_parallel_strategy=usp",
    },
    [6] = { "fsdp=3 tensor=2", "data=2 fsdp=3", "context=3 tensor=2", "tensor_sequence=3 fsdp=2" },
    [8] = { "data=2 fsdp=2 tensor=2", "fsdp=2 context=2 tensor=2", "fsdp=4 tensor_sequence=2" },
}
-- 6 and 8 ranks wait for cores. Several nodes change how values travel and not what a model asks for: even and uneven
-- parts are enough.
local MODELS = RANKS > 4 and { "tiny" } or os.getenv "MXLUA_NODE_RANKS" and { "tiny", "odd" }
    or { "tiny", "qwen", "odd", "tiny-gpt2", "tiny-parallel" }

TestMesh = {}

for _, mesh in ipairs(MESHES[RANKS]) do
    for _, model in ipairs(MODELS) do
        TestMesh["test_" .. model .. "_on_" .. mesh:gsub("[^%w]+", "_")] = function()
            assert_close(on_mesh(model, mesh, EXACT), reference(model, table.unpack(EXACT)), 1e-5, mesh)
        end
    end
end

-- Each rank has the copies of the others to the bit.
for _, mesh in ipairs(({
    [2] = { "tensor=2", "tensor_sequence=2" },
    [4] = { "tensor=4", "tensor_sequence=4", "tensor=2 tensor_sequence=2" },
})[RANKS] or {}) do
    for _, model in ipairs({ "shared", "shared_norm" }) do
        TestMesh["test_heads_of_keys_" .. model .. "_on_" .. mesh:gsub("[^%w]+", "_")] = function()
            local words = { "gradient_clipping_threshold=0.1", table.unpack(EXACT) }
            local run = on_mesh(model, mesh, words)
            assert_close(run, reference(model, table.unpack(words)), 1e-5, mesh)
            local key = run.model.params["layer002.key.weight"]
            lu.assertEquals(key:size(2), 4) -- one head
            for name, t in util.sorted_pairs(run.params) do
                lu.assertEquals(largest_difference(mx.broadcast(t), t), 0, name)
            end
        end
    end
end

-- Each rank gets a copy of the head of keys that its heads of queries use.
for _, mesh in ipairs(({
    [2] = { "context=2 context_parallel_strategy=ulysses" },
    [4] = { "context=4 context_parallel_strategy=ulysses", "context=2 tensor=2 context_parallel_strategy=ulysses" },
})[RANKS] or {}) do
    TestMesh["test_few_heads_of_keys_on_" .. mesh:gsub("[^%w]+", "_")] = function()
        assert_close(on_mesh("shared", mesh, EXACT), reference("shared", table.unpack(EXACT)), 1e-5, mesh)
    end
end

-- What is dropped depends on the token and the feature alone. The parallel block drops at other places than the others.
local DROPPED = { "dropout_rate=0.25", table.unpack(EXACT) }

for _, mesh in ipairs(MESHES[RANKS]) do
    for _, model in ipairs(RANKS <= 4 and { "tiny-gpt2", "tiny-parallel" } or { "tiny" }) do
        TestMesh["test_dropout_of_" .. model .. "_on_" .. mesh:gsub("[^%w]+", "_")] = function()
            local expected = reference(model, table.unpack(DROPPED))
            assert_close(on_mesh(model, mesh, DROPPED), expected, 1e-5, mesh)
            local whole = reference(model, table.unpack(EXACT)) -- nothing is dropped: far more than the bound away
            lu.assertTrue(math.abs(expected.norms[1] / whole.norms[1] - 1) > 1e-3)
        end
    end
end

-- ---- other settings of the run ----

TestSettings = {}

if RANKS > 1 then
    -- `mpirun -n 1 ... : -n 1 ...` may give ranks different words. All ranks refuse them, before other collectives.
    function TestSettings.test_ranks_with_different_words()
        local is_last = mx.rank() == RANKS - 1
        for _, one in ipairs {
            { "learning_rate=1.0", "learning_rate=2.0", "learning_rate: 2.0, and rank 0 has learning_rate: 1.0" },
            { "init_weights_seed=0", "init_weights_seed=1", "seed: 1, and rank 0 has init_weights_seed: 0" },
            { "dataset_mix=[[x, 1]]", "dataset_mix=[[x, 2]]", '[["a path", 2]], and rank 0 has dataset_mix' },
            { "metrics_file=a", "metrics_file=", 'metrics_file: "", and rank 0 has metrics_file: "a path"' },
            { "ici_data_parallelism=-1", "ici_data_parallelism=7", "ici_data_parallelism: 7, and" },
            { "enable_checkpointing=true", "enable_checkpointing=false", "enable_checkpointing: false, and" },
            { "logical_axis_rules=[[mlp, [tensor]]]", "logical_axis_rules=[[mlp, [fsdp]]]", " start all ranks" },
        } do
            local config = mx.config.load { "dataset_type=synthetic", one[is_last and 2 or 1] }
            for _, start in ipairs { mx.train.mesh, mx.run.claim } do
                lu.assertErrorMsgContains(("rank %d has "):format(RANKS - 1), start, config)
                lu.assertErrorMsgContains(one[3], start, config)
            end
        end
        mx.train.mesh(mx.config.load { "dataset_type=synthetic", "metrics_file=/tmp/" .. mx.rank() })
    end
end

local SGD = { "dtype=float32", "opt_type=sgd", "sgd_momentum=0.9", "learning_rate=0.05" }

local LION = { "dtype=float32", "opt_type=lion", "learning_rate=1e-5", "lion_weight_decay=1.0" }
local MUON = { "dtype=float32", "opt_type=muon", "learning_rate=0.01", "muon_adamw_scale=0.1" }

local ADAFACTOR = { "dtype=float32", "opt_type=adafactor", "learning_rate=0.02" }

local PASSES_ON = ({
    [2] = { "data=2", "fsdp=2", "tensor=2", "context=2", "data=2 shard_optimizer_over_data=true" },
    [4] = { "data=2 fsdp=2" },
})[RANKS]

for _, mesh in ipairs(PASSES_ON or {}) do
    local name = mesh:gsub("[^%w]+", "_")

    TestSettings["test_sgd_on_" .. name] = function()
        assert_close(on_mesh("tiny", mesh, SGD), reference("tiny", table.unpack(SGD)), 1e-5, mesh)
    end

    -- Lion's updates are signs: a gradient near 0 may have another one where sums have another order. A step of this
    -- rate changes a loss by less than the bound.
    TestSettings["test_lion_on_" .. name] = function()
        local run, expected = on_mesh("tiny", mesh, LION), reference("tiny", table.unpack(LION))
        for i = 1, STEPS do
            lu.assertAlmostEquals(run.losses[i] / expected.losses[i], 1, 1e-4, mesh)
        end
    end

    TestSettings["test_muon_and_adafactor_on_" .. name] = function()
        assert_close(on_mesh("tiny", mesh, MUON), reference("tiny", table.unpack(MUON)), 1e-4, mesh)
        assert_close(on_mesh("tiny", mesh, ADAFACTOR), reference("tiny", table.unpack(ADAFACTOR)), 1e-4, mesh)
    end

    -- The two halves of a step are the sequences that one pass has, whichever rank reads which of them.
    TestSettings["test_two_passes_are_one_of_twice_the_sequences_on_" .. name] = function()
        local halves = { "gradient_accumulation_steps=2", "per_device_batch_size=" .. SEQUENCES // RANKS // 2 }
        for _, words in ipairs({ EXACT, SGD, DROPPED }) do
            local run = on_mesh("tiny-gpt2", mesh, table.move(words, 1, #words, 3, { table.unpack(halves) }))
            assert_close(run, reference("tiny-gpt2", table.unpack(words)), 1e-5, mesh)
        end
    end
end

-- What a token sees: few before it, none that crosses more than a rank, and all, later ones too; scores with a cap.
for _, strategy in ipairs(({
    [2] = { "ring", "all_gather", "ulysses" }, [3] = { "ring", "all_gather", "ulysses" }, [4] = { "usp" },
})[RANKS] or {}) do
    local mesh = RANKS == 4 and "context=2 context_usp_ulysses=2" or "context=" .. RANKS
    mesh = mesh .. " context_parallel_strategy=" .. strategy
    for what, words in pairs({
        window = { "attention_type=local_sliding", "sliding_window_size=4" },
        window_in_one_piece = {
            "attention_type=local_sliding", "sliding_window_size=4", "context_parallel_load_balance=false",
        },
        wide_window = { "attention_type=local_sliding", "sliding_window_size=15", "attn_logits_soft_cap=2.0" },
        all = { "attention_type=full", "attn_logits_soft_cap=2.0" },
    }) do
        TestSettings["test_" .. what .. "_on_" .. mesh:gsub("[^%w]+", "_")] = function()
            table.move(EXACT, 1, #EXACT, #words + 1, words)
            assert_close(on_mesh("tiny", mesh, words), reference("tiny", table.unpack(words)), 1e-5, mesh)
        end
    end
end

-- bf16 weights of layers that compute in f32 are widened, not the activations rounded, whether gathered or not.
for _, mesh in ipairs(RANKS == 2 and { "data=2", "fsdp=2", "tensor=2", "context=2" } or {}) do
    TestSettings["test_bf16_weights_in_f32_layers_on_" .. mesh:gsub("[^%w]+", "_")] = function()
        local words = { "dtype=float32", "weight_dtype=bfloat16" }
        local run, expected = on_mesh("tiny", mesh, words, 1), reference("tiny", table.unpack(words))
        lu.assertAlmostEquals(run.losses[1] / expected.losses[1], 1, 1e-5)
        lu.assertAlmostEquals(run.norms[1] / expected.norms[1], 1, 1e-5)
    end
end

-- A bf16 weight is rounded by chance, but alike on every mesh: by its place in the whole parameter. Two runs that round
-- f32 values which differ only by the order of their sums have nearly all weights in common.
for _, mesh in ipairs(({
    [2] = {
        "data=2", "fsdp=2", "fsdp_transpose=2", "tensor=2", "tensor_sequence=2",
        "data=2 shard_optimizer_over_data=true",
    },
    [4] = { "fsdp=2 tensor=2", "data=2 tensor=2 shard_optimizer_over_data=true" },
})[RANKS] or {}) do
    TestSettings["test_bf16_weights_are_rounded_alike_on_" .. mesh:gsub("[^%w]+", "_")] = function()
        for _, rule in ipairs({ EXACT, SGD }) do
            local words = { "weight_dtype=bfloat16", table.unpack(rule) }
            local run, expected = on_mesh("tiny", mesh, words), reference("tiny", table.unpack(words))
            local differ, all = 0, 0
            for name, t in pairs(expected.params) do
                differ = differ + run.params[name]:ne(t):to("f32"):sum():item()
                all = all + t:numel()
            end
            lu.assertTrue(differ / all < 0.02, ("%s: %g of the weights differ"):format(mesh, differ / all))
        end
    end
end

if RANKS == 2 then
    -- On the way through the network and back, values are rounded to bf16 one after another, each time by a random part
    -- of 2^-8 of them (its root mean square is below 2^-8 / sqrt(3)): 13 times in a layer (norm, query, RoPE, context,
    -- out and its sum over the ranks, residual; norm, gate and up, their product, wo and its sum, residual) and twice
    -- around the layers, and the same going back. Where two runs split one sum differently, all that follows may be
    -- rounded differently: their difference has the errors of both, sqrt(2 / 3) sqrt(R) 2^-8 < sqrt(R) 2^-8 of a
    -- gradient, if layers, which only add to the residual stream, hand errors on as they are.
    -- Plain SGD adds gradients: the parameters end no further apart than that part of the path that they went. A loss
    -- is a mean over tokens, whose errors are independent: it differs by that part over the root of their number, up to
    -- four times as much as one standard deviation, and by what the distance of the parameters makes of it along the
    -- slope, which is the gradient's norm.
    function TestSettings.test_bf16()
        local words = { "dtype=bfloat16", "opt_type=sgd", "learning_rate=0.1" }
        local expected = reference("tiny", table.unpack(words))
        local shape, config = expected.model.shape, config_of("tiny")
        local part = math.sqrt(2 * (13 * shape.layers + 2)) * 2 ^ -8
        local part_of_mean = 4 * part / math.sqrt(SEQUENCES * config.max_target_length)
        for _, mesh in ipairs({ "fsdp=2", "tensor=2", "tensor_sequence=2", "context=2",
            "context=2 context_parallel_strategy=ring" }) do
            local run, path = on_mesh("tiny", mesh, words), 0
            lu.assertAlmostEquals(run.norms[1] / expected.norms[1], 1, part, mesh .. ": norm of step 1")
            for i = 1, STEPS do
                local norm, loss = expected.norms[i], expected.losses[i]
                local off = math.abs(run.losses[i] - loss)
                lu.assertTrue(off <= part_of_mean * loss + norm * part * path,
                    ("%s: loss of step %d is off by %g of %g"):format(mesh, i, off, loss))
                path = path + expected.rates[i] * math.min(norm, config.gradient_clipping_threshold)
            end
            local squares = 0
            for name, t in pairs(expected.params) do
                squares = squares + mx.scope(function()
                    return mx.sum_squares(run.params[name] - t):item()
                end)
            end
            lu.assertTrue(math.sqrt(squares) <= part * path,
                ("%s: parameters are off by %g after a path of %g"):format(mesh, math.sqrt(squares), path))
        end
    end
end

-- The settings below are not to change a bit, in the dtype that training has by default.
local SAME_BITS_ON = ({
    [2] = {
        "fsdp=2", "tensor=2", "tensor_sequence=2", "context=2", "data=2", "context=2 context_parallel_strategy=ring",
    },
    [3] = { "fsdp=3", "context=3", "context=3 context_parallel_strategy=ring" },
    [4] = { "fsdp=2 tensor=2", "data=2 fsdp=2", "fsdp=2 context=2 context_parallel_strategy=ring" },
    [8] = { "data=2 fsdp=2 tensor=2" },
})[RANKS]

for _, mesh in ipairs(SAME_BITS_ON or {}) do
    local name = mesh:gsub("[^%w]+", "_")

    TestSettings["test_twice_the_same_bits_on_" .. name] = function()
        local first = on_mesh("tiny-gpt2", mesh, nil, 3)
        local second = on_mesh("tiny-gpt2", mesh, nil, 3)
        lu.assertEquals(second.losses, first.losses)
        assert_same_bits(second.params, first.params, mesh)
    end

    TestSettings["test_remat_policies_give_the_same_bits_on_" .. name] = function()
        local none = on_mesh("tiny", mesh, { "remat_policy=none", "dropout_rate=0.1" }, 3)
        for _, policy in ipairs({ "full", "save_qkv_proj", "minimal" }) do
            local run = on_mesh("tiny", mesh, { "remat_policy=" .. policy, "dropout_rate=0.1" }, 3)
            lu.assertEquals(run.losses, none.losses, policy)
            assert_same_bits(run.params, none.params, policy)
        end
    end
end

-- ---- rules and losses ----

if RANKS == 2 then
    -- The residual stream whole or in parts, and norms and biases stored otherwise than it is split.
    for _, case in ipairs({
        "fsdp=2 [[norm,fsdp]]", "tensor_sequence=2 [[norm,tensor_sequence]]", "tensor=2 [[norm,[]]]",
        "tensor=2 [[activation_embed,[]]]", "tensor=2 [[activation_embed,[]],[norm,[]]]",
        "tensor=2 [[activation_embed,[]],[vocab,[]]]",
    }) do
        local mesh, rules = case:match("^(%S+) (%S+)$")
        TestSettings["test_rules_" .. case:gsub("[^%w]+", "_")] = function()
            local words = { "logical_axis_rules=" .. rules, table.unpack(DROPPED) }
            for _, model in ipairs({ "tiny", "tiny-gpt2" }) do
                assert_close(on_mesh(model, mesh, words), reference(model, table.unpack(DROPPED)), 1e-5, case)
            end
        end
    end

    -- Masked targets, z_loss, a soft cap, a scale of the logits, and a sequence that the ranks of tensor do not divide.
    for _, mesh in ipairs({ "tensor=2", "tensor_sequence=2" }) do
        TestSettings["test_everything_about_the_loss_on_" .. mesh:gsub("=", "_")] = function()
            for _, model in ipairs({ "tiny", "tiny-gpt2" }) do
                local words = {
                    "z_loss_multiplier=0.1", "final_logits_soft_cap=3.0", "normalize_embedding_logits=true",
                    "gradient_accumulation_steps=1", mesh == "tensor=2" and "max_target_length=25" or "steps=10",
                    table.unpack(EXACT),
                }
                assert_close(on_mesh(model, mesh, words), reference(model, table.unpack(words)), 1e-5, mesh)
            end
        end
    end
elseif RANKS == 4 then
    function TestSettings.test_norms_stored_over_both_axes()
        for _, rule in ipairs({ "fsdp", "[tensor,fsdp]" }) do
            local words = { ("logical_axis_rules=[[norm,%s]]"):format(rule), table.unpack(EXACT) }
            assert_close(on_mesh("tiny-gpt2", "fsdp=2 tensor=2", words), reference("tiny-gpt2", table.unpack(EXACT)),
                1e-5, rule)
        end
    end
end
