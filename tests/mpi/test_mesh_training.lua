-- ranks: 1 2 3 4 6 8
-- nodes: 2
-- Training on a mesh: every mesh takes the same steps as one rank that has all the sequences.

local lu = require "luaunit"
local mx = require "mx"

local RANKS, STEPS, SEQUENCES = mx.ranks(), 10, 24

-- Sizes that 2, 3, 4, 6 and 8 divide.
local SIZES = {
    "dataset_type=text", "dataset_path=" .. mx.root .. "configs/base.yml", "steps=10", "warmup_steps_fraction=0.1",
    "base_emb_dim=48", "base_num_query_heads=12", "base_num_kv_heads=12", "head_dim=4", "base_mlp_dim=96",
    "vocab_size=288", "max_target_length=48",
}

-- The meshes of each rank count; sizes of axes, a dcn axis with its key.
local MESHES = {
    [1] = { "" },
    [2] = {
        "data=2", "fsdp=2", "fsdp_transpose=2", "tensor=2", "tensor_sequence=2", "context=2", "expert=2",
        "context=2 context_parallel_load_balance=false", "data=2 shard_optimizer_over_data=true",
    },
    [3] = { "data=3", "fsdp=3", "tensor=3", "context=3", "tensor_sequence=3" },
    [4] = {
        "fsdp=2 tensor=2", "data=2 fsdp=2", "fsdp=2 tensor_sequence=2", "fsdp=2 context=2", "context=2 tensor=2",
        "tensor=2 tensor_sequence=2", "fsdp=2 fsdp_transpose=2", "dcn_data_parallelism=2 fsdp=2",
        "data=2 tensor=2 shard_optimizer_over_data=true",
    },
    [6] = { "fsdp=3 tensor=2", "data=2 fsdp=3", "context=3 tensor=2", "tensor_sequence=3 fsdp=2" },
    [8] = { "data=2 fsdp=2 tensor=2", "fsdp=2 context=2 tensor=2", "fsdp=4 tensor_sequence=2" },
}
local MODELS = RANKS <= 4 and { "tiny", "tiny-gpt2", "tiny-parallel" } or { "tiny" }

-- "fsdp=2 tensor=2" as words; a whole key stays as it is.
local function mesh_words(text)
    local words = { "ici_fsdp_parallelism=1" }
    for key, value in text:gmatch("([%w_]+)=(%w+)") do
        local is_axis = false
        for _, axis in ipairs(mx.mesh.AXES) do
            is_axis = is_axis or axis == key
        end
        local word = (is_axis and "ici_%s_parallelism=%s" or "%s=%s"):format(key, value)
        words[key == "fsdp" and 1 or #words + 1] = word
    end
    return words
end

local function config_of(...)
    local words = table.move(SIZES, 1, #SIZES, 1, {})
    for _, more in ipairs({ ... }) do
        local list = type(more) == "table" and more or { more }
        table.move(list, 1, #list, #words + 1, words)
    end
    return mx.config.load(words)
end

-- Ten steps: losses, and the whole parameters.
local function train(config, mesh, passes)
    local model = mx.models.new(config, mesh)
    local data = mx.data.open(config, mesh)
    if not mesh then
        data.part, data.parts = 0, 1
    end
    local optimizer, losses = mx.optim.new(config, model.params, model.parallel), {}
    for i = 1, STEPS do
        if mesh then
            losses[i] = mx.train.gradients(model, data, passes or 1)
        else -- alone, whatever the other ranks do
            local step <close> = mx.step()
            local loss = model:loss(data:next())
            mx.backward(loss)
            losses[i] = loss:item()
        end
        optimizer:step()
    end
    local params = {}
    for name, t in pairs(model.params) do
        params[name] = t
    end
    if mesh then
        local names = {}
        for name in pairs(params) do
            names[#names + 1] = name
        end
        table.sort(names)
        for _, name in ipairs(names) do
            params[name] = model.parallel:whole(name, params[name]:detach()):wait():keep()
        end
    end
    return losses, params
end

local function largest(t)
    return mx.max(mx.abs(t)):item()
end

local function assert_close(losses, params, expected_losses, expected, bound, what)
    for i = 1, STEPS do
        lu.assertAlmostEquals(losses[i] / expected_losses[i], 1, bound, ("%s: loss of step %d"):format(what, i))
    end
    for name, t in pairs(params) do
        local scale = math.max(largest(expected[name]), 1e-3)
        local off = mx.scope(function()
            return largest(t - expected[name])
        end)
        lu.assertTrue(off / scale <= bound, ("%s: %s is off by %g of %g"):format(what, name, off, scale))
    end
end

local function assert_same_bits(a, b, what)
    for name, t in pairs(a) do
        lu.assertEquals(largest(t - b[name]), 0, what .. ": " .. name)
    end
end

local references = {}

local function reference(model, ...)
    local key = table.concat({ model, ... }, " ")
    if not references[key] then
        local config = config_of("model_name=" .. model, "per_device_batch_size=" .. SEQUENCES, ...)
        references[key] = { train(config, nil) }
    end
    return references[key][1], references[key][2]
end

local function on_mesh(model, mesh, ...)
    local sequences = "per_device_batch_size=" .. SEQUENCES // RANKS
    local config = config_of("model_name=" .. model, sequences, mesh_words(mesh), ...)
    return train(config, mx.train.mesh(config) or nil, config.gradient_accumulation_steps)
end

TestMesh = {}

for _, mesh in ipairs(MESHES[RANKS]) do
    for _, model in ipairs(MODELS) do
        TestMesh["test_" .. model .. "_on_" .. mesh:gsub("[^%w]+", "_")] = function()
            -- AdamW divides by the root of the second moment: where a gradient is near 0, a rounding error of it moves
            -- the parameter by up to the learning rate, unless eps lies far above such errors.
            local same = { "dtype=float32", "adam_eps=1.0e-3" }
            local losses, params = on_mesh(model, mesh, same)
            local expected_losses, expected = reference(model, table.unpack(same))
            assert_close(losses, params, expected_losses, expected, 1e-5, mesh)
        end
    end
end

if RANKS == 2 then
    TestSettings = {}

    -- A product's sum is rounded to bf16 (2^-9 of it) on each rank and once more when these are added; ten steps of
    -- such errors, each of them random, stay within sqrt(10) of that in the loss, and parameters move by the learning
    -- rate (3e-3) in each step at the most: a wrong sign for all of them is twice that.
    function TestSettings.test_bf16()
        for _, mesh in ipairs({ "fsdp=2", "tensor=2", "tensor_sequence=2", "context=2" }) do
            local losses = on_mesh("tiny", mesh, "dtype=bfloat16")
            local expected = reference("tiny", "dtype=bfloat16")
            for i = 1, STEPS do
                lu.assertAlmostEquals(losses[i] / expected[i], 1, 2 ^ -8 * math.sqrt(10), mesh)
            end
        end
    end

    function TestSettings.test_the_same_mesh_twice_gives_the_same_bits()
        for _, mesh in ipairs({ "fsdp=2", "tensor=2", "data=2" }) do
            local _, first = on_mesh("tiny", mesh)
            local _, second = on_mesh("tiny", mesh)
            assert_same_bits(first, second, mesh)
        end
    end

    function TestSettings.test_policies_give_the_same_bits()
        local _, full = on_mesh("tiny", "fsdp=2", "remat_policy=full")
        for _, policy in ipairs({ "none", "save_qkv_proj", "minimal" }) do
            local _, params = on_mesh("tiny", "fsdp=2", "remat_policy=" .. policy)
            assert_same_bits(params, full, policy)
        end
    end

    function TestSettings.test_overlap_gives_the_same_bits()
        local _, plain = on_mesh("tiny", "fsdp=2", "async_all_gather=false", "async_reduce_scatter=false",
            "async_all_reduce=false", "prefetch_layers=0")
        for _, words in ipairs({
            { "prefetch_layers=2" }, { "all_gather_combine_threshold_bytes=0" }, { "prefetch_memory_limit_bytes=0" },
            { "reduce_scatter_combine_threshold_bytes=5000", "all_reduce_combine_threshold_bytes=300" },
            { "debug_collectives=true" },
        }) do
            local _, params = on_mesh("tiny", "fsdp=2", words)
            assert_same_bits(params, plain, words[1])
        end
    end

    function TestSettings.test_combining_makes_fewer_exchanges()
        mx.comm_stats(true)
        on_mesh("tiny", "fsdp=2", "all_gather_combine_threshold_bytes=0", "reduce_scatter_combine_threshold_bytes=0")
        local single = mx.comm_stats(true)
        on_mesh("tiny", "fsdp=2")
        local combined = mx.comm_stats(true)
        lu.assertEquals(single.bytes, combined.bytes)
        lu.assertTrue(combined.calls < single.calls / 2, ("%d and %d calls"):format(combined.calls, single.calls))
    end

    function TestSettings.test_passes_add_up_and_sgd()
        local words = { "dtype=float32", "opt_type=sgd", "learning_rate=0.1" }
        local expected_losses, expected = reference("tiny", table.unpack(words))
        local config = config_of("model_name=tiny", "per_device_batch_size=" .. SEQUENCES // RANKS // 2,
            "gradient_accumulation_steps=2", mesh_words("tensor=2"), words)
        -- Two passes of half a batch read the sequences of one in the same order: tensor ranks read the same ones.
        local losses, params = train(config, mx.train.mesh(config), 2)
        assert_close(losses, params, expected_losses, expected, 1e-5, "two passes")
    end

    function TestSettings.test_parameters_are_saved_and_loaded()
        local folder = os.getenv("TMPDIR") or "/tmp"
        folder = mx.share_text(("%s/mxlua-mesh-%d"):format(folder, os.time()))
        local config = config_of("model_name=tiny", mesh_words("tensor=2"), "base_output_directory=" .. folder,
            "run_name=run")
        local model = mx.models.new(config, mx.train.mesh(config))
        if mx.rank() == 0 then
            mx.io.mkdir_p(folder .. "/run")
        end
        local path = mx.train.save(config, model)
        local alone = mx.models.new(config)
        local other_config = config_of("model_name=tiny", mesh_words("fsdp=2"), "init_weights_seed=7")
        local other = mx.models.new(other_config, mx.train.mesh(other_config))
        mx.nn.load(other.params, path, other.parallel)
        local names = {}
        for name in pairs(alone.params) do
            names[#names + 1] = name
        end
        table.sort(names)
        for _, name in ipairs(names) do
            local whole = other.parallel:whole(name, other.params[name]:detach())
            lu.assertEquals(largest(whole - alone.params[name]), 0, name)
        end
        mx.barrier()
        if mx.rank() == 0 then
            os.execute(("rm -r '%s'"):format(folder))
        end
    end

    function TestSettings.test_what_does_not_divide_is_refused_before_anything_is_allocated()
        local before = mx.memory().in_use
        local function refused(part, ...)
            local words = { ... }
            local ok, message = pcall(function()
                local config = config_of("model_name=tiny", table.unpack(words))
                return mx.models.new(config, mx.train.mesh(config))
            end)
            lu.assertFalse(ok)
            lu.assertStrContains(tostring(message), part)
        end
        refused("49 elements, which 2 parts (fsdp=2)", mesh_words("fsdp=2"), "base_emb_dim=49")
        refused("97 elements, which 2 parts (tensor=2)", mesh_words("tensor=2"), "base_mlp_dim=97")
        refused("no model here is a pipeline", mesh_words("stage=2"))
        refused("2 ranks", "ici_fsdp_parallelism=3")
        lu.assertEquals(mx.memory().in_use, before)
    end
end
