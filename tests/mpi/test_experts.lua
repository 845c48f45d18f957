-- ranks: 2 3 4
-- Layers with experts on a mesh: losses, gradients and updates are those of one rank, however experts and tokens are
-- split.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare = dofile(here .. "../lua/compare.lua")

local RANKS = mx.ranks()
local SEQUENCES = RANKS == 4 and 16 or 12

-- Five experts: no number of ranks divides them.
local SIZES = {
    "model_name=tiny-moe", "base_num_kv_heads=4", "base_emb_dim=36", "head_dim=8", "base_mlp_dim=24",
    "base_moe_mlp_dim=24", "num_experts=5", "max_target_length=24", "dtype=float32", "adam_eps=1.0e-3",
}
local SETTINGS = {
    losses = { "load_balance_loss_weight=0.5", "router_z_loss_weight=0.1", "shared_experts=1" },
    once = {
        "gradient_accumulation_steps=2", "gradient_accumulation_fsdp_ag_once=true", "float32_gate_logits=true",
        "load_balance_loss_weight=0.5",
    },
    random = { "use_random_routing=true" },
    biases = {
        "routed_score_func=sigmoid", "routed_bias=true", "routed_bias_update_rate=0.01", "remat_policy=none",
        "gradient_accumulation_steps=2",
    },
    capacity = { "sparse_matmul=false", "capacity_factor=1.0", "load_balance_loss_weight=0.5", "dropout_rate=0.1" },
}

local function config_of(...)
    local words = table.move(SIZES, 1, #SIZES, 1, {})
    for _, list in ipairs({ ... }) do
        table.move(list, 1, #list, #words + 1, words)
    end
    return mx.config.load(words)
end

-- A pass of all sequences by this rank alone, whatever the others do.
local function pass_alone(model, data, passes)
    local total, step <close> = 0, mx.step()
    model.routing:start()
    for _ = 1, passes do
        local loss = model:loss(data:next()) / passes
        mx.backward(loss)
        total = total + loss:item()
    end
    return total
end

-- Three updates: their losses, norms and figures of the routing; the gradients of the first, whole; parameters and
-- buffers at the end, whole. `change` is called with the new model.
local function train(config, mesh, change)
    local model, data = mx.models.new(config, mesh), mx.data.open(config, mesh)
    local passes = config.gradient_accumulation_steps
    if not mesh then
        data.part, data.parts, model.part, model.parts = 0, 1, 0, 1
    end
    if change then
        change(model)
    end
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    local run = {
        losses = {}, norms = {}, figures = {}, grads = {}, params = {}, buffers = model.buffers, model = model,
        optimizer = optimizer, data = data,
    }
    for i = 1, 3 do
        run.losses[i] = mesh and mx.train.gradients(model, data, passes) or pass_alone(model, data, passes)
        for name, t in util.sorted_pairs(i == 1 and model.params or {}) do
            run.grads[name] = model.parallel:whole(name, t:grad()):wait():clone():keep()
        end
        run.norms[i], run.figures[i] = optimizer:step(), model.routing:figures()
        model:after_step()
    end
    for name, t in util.sorted_pairs(model.params) do
        run.params[name] = model.parallel:whole(name, t:detach()):wait():clone():keep()
    end
    return run
end

-- The words of a mesh: "expert=2 tensor=2", and rules behind it: "expert=2 [[activation_exp,[]]]".
local function words_of(case)
    local mesh, rules = case:match("^([^[]*)(.*)$")
    local words = { "ici_fsdp_parallelism=1", rules ~= "" and "logical_axis_rules=" .. rules or nil }
    for key, value in mesh:gmatch("([%w_]+)=([%w_-]+)") do
        local is_axis = util.contains(mx.mesh.AXES, key)
        words[key == "fsdp" and 1 or #words + 1] = ("%s=%s"):format(is_axis and mx.mesh.key("ici", key) or key, value)
    end
    return words
end

-- The config of a setting for so many sequences in a step of each rank.
local function config_for(setting, sequences, words)
    local passes = (setting == "biases" or setting == "once") and 2 or 1
    return config_of(SETTINGS[setting], { "per_device_batch_size=" .. sequences // passes }, words or {})
end

local references = {}

local function assert_as_one_rank(case, setting, change)
    local expected = not change and references[setting] or train(config_for(setting, SEQUENCES), nil, change)
    references[setting] = not change and expected or nil
    local config = config_for(setting, SEQUENCES // RANKS, words_of(case))
    local run = train(config, mx.train.mesh(config), change)
    for i = 1, 3 do
        lu.assertAlmostEquals(run.losses[i] / expected.losses[i], 1, 1e-5)
        lu.assertAlmostEquals(run.norms[i] / expected.norms[i], 1, 1e-5)
        for name, value in pairs(expected.figures[i]) do
            lu.assertAlmostEquals(run.figures[i][name], value, 1e-5 * math.max(1, value), name)
        end
    end
    -- With shard_optimizer_over_data, gradients are summed by the update.
    for _, what in ipairs({ "params", "buffers", not config.shard_optimizer_over_data and "grads" or nil }) do
        for name, t in util.sorted_pairs(expected[what]) do
            local off = compare.distance(run[what][name], t, 1e-3)
            lu.assertTrue(off < 1e-5, ("%s of %s: off by %g"):format(what, name, off))
        end
    end
end

TestExperts = {}

for _, case in ipairs(({
    [2] = {
        "expert=2", "fsdp=2", "tensor=2", "tensor_sequence=2", "context=2", "data=2 shard_optimizer_over_data=true",
        "expert=2 [[activation_exp,[]]]", -- gathered, as other weights are
        "expert=2 custom_mesh_and_rule=ep-as-cp", "expert=2 custom_mesh_and_rule=ep-as-dp",
        "context=2 custom_mesh_and_rule=cp-as-ep", "fsdp=2 custom_mesh_and_rule=shard-exp-on-fsdp",
        "expert=2 use_ring_of_experts=true", "expert=2 ragged_buffer_factor=2",
        "expert=2 num_moe_token_chunks=2", "expert=2 num_moe_token_chunks=5",
    },
    [3] = { "expert=3", "expert=3 use_ring_of_experts=true" },
    [4] = {
        "expert=2 fsdp=2", "expert=2 tensor=2", "expert=2 tensor_sequence=2", "expert=2 context=2",
        "expert=2 data=2", "expert=4", "expert=2 dcn_expert_parallelism=2", "expert=2 fsdp_transpose=2",
        "expert=2 fsdp=2 custom_mesh_and_rule=shard-exp-on-fsdp",
        "expert=2 tensor=2 num_moe_token_chunks=3", "expert=2 context=2 num_moe_token_chunks=2",
        "expert=2 tensor=2 use_ring_of_experts=true", "expert=2 fsdp=2 use_ring_of_experts=true",
    },
})[RANKS]) do
    for _, setting in ipairs(RANKS == 2 and not case:find("[%[-]") and { "losses", "biases", "capacity" }
        or case == "expert=2 fsdp=2" and { "losses", "once" } or { "losses" }) do
        if not (case:find("context") and setting == "capacity") then
            TestExperts["test_" .. setting .. "_on_" .. case:gsub("[^%w]+", "_")] = function()
                assert_as_one_rank(case, setting)
            end
        end
    end
end

if RANKS == 2 then
    -- Ranks with parts of the same experts choose alike. (Ranks with other tokens choose others.)
    function TestExperts.test_random_routing()
        assert_as_one_rank("tensor=2", "random")
    end

    function TestExperts.test_a_policy_gives_the_same_bits()
        local function train_by(policy)
            local config = config_of(SETTINGS.losses, words_of("expert=2"), {
                "remat_policy=" .. policy, "dtype=bfloat16", "per_device_batch_size=2",
            })
            return train(config, mx.train.mesh(config))
        end
        local none, full = train_by "none", train_by "full"
        lu.assertEquals(full.losses, none.losses)
        for name, t in util.sorted_pairs(none.params) do
            lu.assertEquals(compare.distance(full.params[name], t), 0, name)
        end
    end

    -- With one expert a token, no sum has another order. (Results of two are rounded before a ring adds them up.)
    function TestExperts.test_rows_and_a_ring_give_the_same_bits()
        local function train_with(ring)
            local config = config_of(words_of("expert=2"), {
                "num_experts_per_tok=1", "per_device_batch_size=3", "load_balance_loss_weight=0.5",
                "use_ring_of_experts=" .. ring,
            })
            return train(config, mx.train.mesh(config))
        end
        local rows, ring = train_with "false", train_with "true"
        lu.assertEquals(rows.losses, ring.losses)
        for name, t in util.sorted_pairs(ring.params) do
            lu.assertEquals(compare.distance(rows.params[name], t), 0, name)
        end
    end

    function TestExperts.test_ranks_that_compute_differently_are_refused()
        local config, isa = config_of(words_of("tensor=2")), mx.isa()
        if mx.rank() == 1 then
            mx.isa(isa == "portable" and "avx2" or "portable")
        end
        local ok, message = pcall(mx.train.mesh, config)
        mx.isa(isa)
        lu.assertFalse(ok)
        lu.assertStrContains(tostring(message), "num_experts with tensor: ranks must choose experts alike, but rank 1 "
            .. "has isa ")
    end

    -- The biases send all tokens to the first experts, which rank 0 has.
    function TestExperts.test_a_rank_without_rows()
        for _, case in ipairs { "expert=2", "expert=2 use_ring_of_experts=true" } do
            assert_as_one_rank(case, "biases", function(model)
                for _, bias in util.sorted_pairs(model.buffers) do
                    mx.copy(bias, mx.tensor { 9, 9, 9, 0, 0 })
                end
            end)
        end
    end

    function TestExperts.test_a_run_resumes_on_one_rank_and_on_another_mesh()
        local folder = mx.share_text(mx.rank() == 0 and os.tmpname() or nil)
        local config = config_for("biases", SEQUENCES // 2, words_of("expert=2"))
        local run = train(config, mx.train.mesh(config))
        local saver = mx.checkpoint.saver {
            directory = folder .. ".run", params = run.model.params, buffers = run.model.buffers,
            parallel = run.model.parallel, optimizer = run.optimizer,
        }
        saver:save(3, {}, true)
        saver:close()
        local loss = mx.train.gradients(run.model, run.data, 2)
        for _, mesh in ipairs({ "", "fsdp=2" }) do
            local other = config_for("biases", mesh == "" and SEQUENCES or SEQUENCES // 2, words_of(mesh))
            local model = mx.models.new(other, mesh ~= "" and mx.train.mesh(other) or nil, nil, true)
            local optimizer = mx.optim.new(other, model.params, model.parallel)
            mx.checkpoint.load(folder .. ".run/step_3", {
                params = model.params, buffers = model.buffers, parallel = model.parallel, optimizer = optimizer,
            })
            for name, t in util.sorted_pairs(run.params) do
                lu.assertEquals(compare.distance(model.parallel:whole(name, model.params[name]:detach()):wait(), t), 0)
            end
            local moment = optimizer.state["layer001.experts.wo.weight"].m
            lu.assertEquals(moment:size(), mesh == "" and { 5, 24, 36 } or { 5, 24, 18 })
            lu.assertEquals(compare.distance(model.buffers["layer002.router.bias"],
                run.model.buffers["layer002.router.bias"]), 0)
            local data = mx.data.open(other, mesh ~= "" and run.model.parallel.mesh or nil)
            data.part, data.parts = mesh == "" and 0 or data.part, mesh == "" and 1 or data.parts
            for _ = 1, 6 do
                data:next() -- those of the three steps
            end
            local resumed = mesh == "" and pass_alone(model, data, 2) or mx.train.gradients(model, data, 2)
            lu.assertAlmostEquals(resumed / loss, 1, 1e-5)
        end
        mx.barrier()
        if mx.rank() == 0 then
            os.execute(("rm -r '%s' '%s.run'"):format(folder, folder))
        end
    end

    function TestExperts.test_what_does_not_fit_is_refused()
        for message, words in util.sorted_pairs({
            ["activation_exp is split over expert, exp over []: add expert to exp, or take it"] = {
                "ici_expert_parallelism=2", "logical_axis_rules=[[exp,[]]]",
            },
            ["exp is split over tensor, which shares"] = {
                "ici_tensor_parallelism=2", "logical_axis_rules=[[mlp_moe,[]],[exp,[tensor]],[activation_exp,[]]]",
            },
            ["mlp_moe is split over [], mlp over [tensor]: give both the same axes"] = {
                "ici_tensor_parallelism=2", "logical_axis_rules=[[mlp_moe,[]]]",
            },
            ["capacity_factor counts the tokens of whole sequences, but context splits"] = {
                "ici_context_parallelism=2", "sparse_matmul=false", "capacity_factor=2.0",
            },
            ["(exp) has 1 elements, too few for 2 parts"] = { "ici_expert_parallelism=2", "num_experts=2" },
        }) do
            local config = config_of({ "ici_fsdp_parallelism=1" }, words)
            local shape = mx.models.shape(config)
            if config.num_experts == 2 then
                shape.blocks[1].mlp.experts, shape.blocks[1].mlp.top = 1, 1
            end
            lu.assertErrorMsgContains(message, mx.models.new, shape, mx.train.mesh(config), config)
        end
    end
end
