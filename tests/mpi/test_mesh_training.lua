-- ranks: 1 2 3 4 6 8
-- nodes: 2
-- Training on a mesh: every mesh takes the same steps as one rank that has all the sequences.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

local RANKS, STEPS, SEQUENCES = mx.ranks(), 5, 24

-- Sizes that the axes of all meshes below divide. A model's own may differ.
local SIZES = {
    "dataset_type=text", "dataset_path=" .. mx.root .. "LICENSE", "steps=" .. STEPS,
    "warmup_steps_fraction=0.2", "base_emb_dim=48", "base_mlp_dim=96", "vocab_size=288", "max_target_length=24",
}
local HEADS = {
    tiny = { "base_num_query_heads=24", "base_num_kv_heads=12", "head_dim=4" }, -- two query heads share a key head
    -- What Qwen's blocks have beside Llama's: norms of queries and keys, biases of these and of values.
    qwen = {
        "base_num_query_heads=24", "base_num_kv_heads=12", "head_dim=4", "use_qk_norm=true", "attention_bias=true",
        "rope_type=llama3.1", "llama_rope_original_length=16",
    },
    -- No axis divides these: the first ranks have more than the others.
    odd = {
        "base_emb_dim=47", "base_mlp_dim=95", "vocab_size=283", "base_num_query_heads=10", "base_num_kv_heads=5",
        "head_dim=4", "attention_bias=true",
    },
    -- Fewer heads of keys than ranks of some axes, which then have copies.
    shared = {
        "base_num_query_heads=8", "base_num_kv_heads=" .. (RANKS == 4 and 2 or 1), "head_dim=4", "attention_bias=true",
        "use_qk_norm=true",
    },
    -- Queries and keys are normed over all heads together.
    shared_norm = {
        "base_num_query_heads=8", "base_num_kv_heads=" .. (RANKS == 4 and 2 or 1), "head_dim=4", "use_qk_norm=true",
        "decoder_block=olmo3", "sliding_window_size=8", "base_num_decoder_layers=4",
    },
    ["tiny-gpt2"] = { "base_num_query_heads=12", "base_num_kv_heads=12", "head_dim=8" },
    -- Not its relu: where rounding puts a value on the other side of the kink, a gradient changes by far more than the
    -- bounds below.
    ["tiny-parallel"] = {
        "base_num_query_heads=12", "base_num_kv_heads=12", "head_dim=8", "mlp_activations=[gelu]",
    },
}

-- The meshes of each rank count: axes with their sizes, and keys of the config.
local MESHES = {
    [1] = { "" },
    [2] = {
        "data=2", "fsdp=2", "fsdp_transpose=2", "tensor=2", "tensor_sequence=2", "context=2", "expert=2",
        "context=2 context_parallel_load_balance=false", "data=2 shard_optimizer_over_data=true",
        "context=2 context_parallel_strategy=ring",
        "context=2 context_parallel_strategy=ring context_parallel_load_balance=false", "dcn_fsdp_parallelism=2",
        "context=2 context_parallel_strategy=ulysses",
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
    },
    [6] = { "fsdp=3 tensor=2", "data=2 fsdp=3", "context=3 tensor=2", "tensor_sequence=3 fsdp=2" },
    [8] = { "data=2 fsdp=2 tensor=2", "fsdp=2 context=2 tensor=2", "fsdp=4 tensor_sequence=2" },
}
-- 6 and 8 ranks wait for cores. Several nodes change how values travel and not what a model asks for: even and uneven
-- parts are enough.
local MODELS = RANKS > 4 and { "tiny" } or os.getenv "MXLUA_NODE_RANKS" and { "tiny", "odd" }
    or { "tiny", "qwen", "odd", "tiny-gpt2", "tiny-parallel" }

-- "fsdp=2 tensor=2" as words for a config; a whole key stays as it is. The axes that are not named have size 1.
local function mesh_words(text)
    local words = { "ici_fsdp_parallelism=1" }
    for key, value in text:gmatch("([%w_]+)=([%w_]+)") do
        local word = ("%s=%s"):format(util.contains(mx.mesh.AXES, key) and mx.mesh.key("ici", key) or key, value)
        words[key == "fsdp" and 1 or #words + 1] = word
    end
    return words
end

-- The words after the model's own are given one by one or in lists; the last one of a key holds.
local function config_of(model, ...)
    local words = { "model_name=" .. (model:find("^tiny") and model or "tiny") }
    for _, more in ipairs({ SIZES, HEADS[model], ... }) do
        local list = type(more) == "table" and more or { more }
        table.move(list, 1, #list, #words + 1, words)
    end
    return mx.config.load(words)
end

-- Each parameter put together on every rank. Collective.
local function whole_parameters(model)
    local params = {}
    for name, t in util.sorted_pairs(model.params) do
        params[name] = model.parallel:whole(name, t:detach()):wait():keep()
    end
    return params
end

-- Forward and backward passes of all sequences by this rank alone, whatever the others do.
local function gradients_alone(model, data)
    local step <close> = mx.step()
    local loss = model:loss(data:next())
    mx.backward(loss)
    return loss:item()
end

---@class Run
---@field losses number[] of each step
---@field norms number[] of the whole gradient
---@field rates number[]
---@field params table<string, any> at the end, whole
---@field model mx.Decoder
---@field optimizer mx.Optimizer

-- Without a mesh the sequences are all this rank's.
---@return Run
local function train(config, mesh, steps)
    local model = mx.models.new(config, mesh)
    local data = mx.data.open(config, mesh)
    if not mesh then
        data.part, data.parts, model.part, model.parts = 0, 1, 0, 1
    end
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    local run = { losses = {}, norms = {}, rates = {}, model = model, optimizer = optimizer }
    for i = 1, steps or STEPS do
        run.losses[i] = mesh and mx.train.gradients(model, data, config.gradient_accumulation_steps)
            or gradients_alone(model, data)
        run.rates[i], run.norms[i] = optimizer:rate(i), optimizer:step()
    end
    run.params = whole_parameters(model)
    return run
end

local references = {}

-- What one rank does with these words; worked out once.
local function reference(model, ...)
    local key = table.concat({ model, ... }, " ")
    if not references[key] then
        references[key] = train(config_of(model, "per_device_batch_size=" .. SEQUENCES, ...), nil)
    end
    return references[key]
end

-- The same on a mesh, which shares out those sequences.
local function on_mesh(model, mesh, words, steps)
    local config = config_of(model, "per_device_batch_size=" .. SEQUENCES // RANKS, mesh_words(mesh), words or {})
    return train(config, mx.train.mesh(config), steps)
end

local function largest(t)
    return mx.max(mx.abs(t)):item()
end

local function largest_difference(a, b)
    return mx.scope(function()
        return largest(a - b)
    end)
end

-- Elements of a parameter are measured against its largest one.
local function assert_close(run, expected, bound, what)
    for i = 1, #expected.losses do
        lu.assertAlmostEquals(run.losses[i] / expected.losses[i], 1, bound, ("%s: loss of step %d"):format(what, i))
        lu.assertAlmostEquals(run.norms[i] / expected.norms[i], 1, bound, ("%s: norm of step %d"):format(what, i))
    end
    for name, t in pairs(expected.params) do
        lu.assertEquals(run.params[name]:size(), t:size(), name)
        local scale, off = math.max(largest(t), 1e-3), largest_difference(run.params[name], t)
        lu.assertTrue(off / scale <= bound, ("%s: %s is off by %g of %g"):format(what, name, off, scale))
    end
end

local function assert_same_bits(params, expected, what)
    for name, t in pairs(expected) do
        lu.assertEquals(largest_difference(params[name], t), 0, what .. ": " .. name)
    end
end

-- AdamW divides by the root of the second moment: where a gradient is 0 but for rounding (a key's bias, which softmax
-- does not see), the parameter moves by up to the learning rate in a random direction, unless eps lies far above such
-- errors. At 1e-3, about the size of the gradients, it also leaves a gradient's factor to be seen: without it AdamW
-- takes the same step from a gradient that is twice as large.
local EXACT = { "dtype=float32", "adam_eps=1.0e-3" }

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
for _, strategy in ipairs((RANKS == 2 or RANKS == 3) and { "ring", "all_gather", "ulysses" } or {}) do
    local mesh = ("context=%d context_parallel_strategy=%s"):format(RANKS, strategy)
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

-- ---- saving and loading ----

-- The mesh that saves, and one that loads.
local SAVED_ON = ({
    [2] = { "tensor=2", "fsdp=2" },
    [3] = { "context=3", "tensor_sequence=3" },
    [4] = { "fsdp=2 tensor=2", "data=2 fsdp_transpose=2" },
})[RANKS]

-- A directory that did not exist, the same one on all ranks. Collective.
local function new_directory()
    local name
    if mx.rank() == 0 then
        name = os.tmpname()
        os.remove(name)
        mx.io.mkdir_p(name .. "/run")
    end
    return mx.share_text(name)
end

-- Each moment of an optimizer put together on every rank, by moment and parameter. Collective.
local function whole_moments(optimizer)
    local whole = {}
    for name, moments in util.sorted_pairs(optimizer.state) do
        for moment, t in util.sorted_pairs(moments) do
            whole[moment .. " of " .. name] = optimizer.parallel:whole(name, t):wait():keep()
        end
    end
    return whole
end

-- Loads a checkpoint into a new model on a mesh or, for nil, by each rank alone. Collective.
local function assert_loads(folder, params, moments, model, mesh)
    local config = config_of(model, "init_weights_seed=7", mesh and mesh_words(mesh) or {})
    local other = mx.models.new(config, mesh and mx.train.mesh(config) or nil)
    local optimizer = mx.optim.new(config, other.params, other.parallel)
    mx.checkpoint.load(folder .. "/step_2", { params = other.params, parallel = other.parallel, optimizer = optimizer })
    assert_same_bits(whole_parameters(other), params, "checkpoint on " .. (mesh or "one rank"))
    assert_same_bits(whole_moments(optimizer), moments, "checkpoint on " .. (mesh or "one rank"))
end

for _, model in ipairs(SAVED_ON and { "tiny", "odd", "tiny-gpt2", RANKS ~= 3 and "shared" or nil } or {}) do
    TestSettings["test_what_a_mesh_saves_of_" .. model .. "_loads_anywhere"] = function()
        local folder = new_directory()
        local run = on_mesh(model, SAVED_ON[1], nil, 2) -- parameters that are no longer the first ones
        local config = config_of(model, "base_output_directory=" .. folder, "run_name=run")
        local path = mx.train.save(config, run.model)
        local saver = mx.checkpoint.saver {
            directory = folder .. "/checkpoints", params = run.model.params, parallel = run.model.parallel,
            optimizer = run.optimizer,
        }
        saver:save(2, {}, true)
        saver:close()
        local moments = whole_moments(run.optimizer)
        assert_loads(folder .. "/checkpoints", run.params, moments, model)
        assert_loads(folder .. "/checkpoints", run.params, moments, model, SAVED_ON[2])

        local alone = mx.models.new(config_of(model, "init_weights_seed=7"))
        mx.nn.load(alone.params, path)
        local other_config = config_of(model, "init_weights_seed=8", mesh_words(SAVED_ON[2]))
        local other = mx.models.new(other_config, mx.train.mesh(other_config))
        mx.nn.load(other.params, path, other.parallel)
        mx.barrier() -- all have read it
        if mx.rank() == 0 then
            os.execute(("rm -r '%s'"):format(folder))
        end

        assert_same_bits(alone.params, run.params, "on one rank")
        assert_same_bits(whole_parameters(other), run.params, "on " .. SAVED_ON[2])
    end
end

-- ---- what fits, and what does not ----

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
    TestSettings["test_the_plan_of_real_ranks_with_" .. table.concat(words, "_"):gsub("[^%w]+", "_")] = function()
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
        TestSettings["test_" .. key .. "_of_1_is_refused_on_" .. axis] = function()
            assert_refused({ "1 elements, too few for", ("2 parts (%s=2)"):format(axis), key,
                ("ici_%s_parallelism"):format(axis) }, axis .. "=2", ("%s=1"):format(key))
        end
    end

    function TestSettings.test_a_single_head_is_refused()
        assert_refused({ "base_num_query_heads = 1, base_num_kv_heads = 1: 2 ranks (tensor) split heads" }, "tensor=2",
            "base_num_query_heads=1", "base_num_kv_heads=1")
    end

    function TestSettings.test_an_axis_across_slices_is_named_by_its_own_key()
        assert_refused({ "1 elements", "2 parts (fsdp=2)", "base_emb_dim", "dcn_fsdp_parallelism" },
            "dcn_fsdp_parallelism=2 dcn_data_parallelism=1", "base_emb_dim=1")
    end

    function TestSettings.test_rules_that_leave_weights_in_parts_are_refused()
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

    function TestSettings.test_a_mesh_of_other_ranks_is_refused()
        assert_refused({ "fsdp=3", "2 ranks" }, "fsdp=3")
    end

    -- With load balance a rank has two pieces of the sequence: 26 tokens are no four pieces.
    for mesh, length in pairs({
        ["context=2"] = 26, ["context=2 context_parallel_load_balance=false"] = 25, ["tensor_sequence=2"] = 25,
    }) do
        local name = mesh:gsub("[^%w]+", "_")
        TestSettings["test_a_sequence_that_does_not_divide_is_refused_on_" .. name] = function()
            assert_refused({ "max_target_length", tostring(length), "2 ranks" }, mesh, "max_target_length=" .. length)
        end
    end

    function TestSettings.test_heads_that_ranks_cannot_exchange_are_refused()
        assert_refused({ "ulysses: 2 ranks (context) cannot share out the 3 heads", "multiple of 2" },
            "context=2 context_parallel_strategy=ulysses", "base_num_query_heads=3", "base_num_kv_heads=1")
    end
elseif RANKS == 4 then
    function TestSettings.test_norms_stored_over_both_axes()
        for _, rule in ipairs({ "fsdp", "[tensor,fsdp]" }) do
            local words = { ("logical_axis_rules=[[norm,%s]]"):format(rule), table.unpack(EXACT) }
            assert_close(on_mesh("tiny-gpt2", "fsdp=2 tensor=2", words), reference("tiny-gpt2", table.unpack(EXACT)),
                1e-5, rule)
        end
    end

    function TestSettings.test_what_is_too_small_for_two_axes_is_refused()
        assert_refused({ "base_num_kv_heads = 3: 4 ranks (tensor, tensor_sequence) split heads; expected at most" },
            "tensor=2 tensor_sequence=2", "base_num_query_heads=12", "base_num_kv_heads=3")
        assert_refused({ "base_num_kv_heads = 2: 4 ranks (tensor.outer, tensor.inner) split heads" }, "tensor=4",
            "base_num_query_heads=6", "base_num_kv_heads=2")
        assert_refused({ "3 elements", "4 parts (fsdp=2, context=2)", "base_emb_dim", "ici_fsdp_parallelism",
            "ici_context_parallelism" }, "fsdp=2 context=2", "base_emb_dim=3")
    end
end
