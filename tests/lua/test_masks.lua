-- adamw_mask and trainable_parameters_mask: what decays, what trains, what it costs.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

TestMasks = {}

local function config_of(...)
    return mx.config.load({
        "model_name=tiny", "dtype=float32", "dataset_type=synthetic", "per_device_batch_size=2", "max_target_length=16",
        "steps=4", "learning_rate=0.01", ...
    })
end

-- Two steps: the model, its parameters before them, and the optimizer.
local function train(...)
    local config = config_of(...)
    local model = mx.models.new(config)
    local data, optimizer, before = mx.data.open(config), mx.optim.new(config, model.params), {}
    for name, t in util.sorted_pairs(model.params) do
        before[name] = t:detach():clone():keep()
    end
    for _ = 1, 2 do
        mx.train.gradients(model, data, config.gradient_accumulation_steps)
        optimizer:step()
    end
    return model, before, optimizer
end

local function moved(model, before)
    local names = {}
    for name, t in util.sorted_pairs(model.params) do
        if (t:detach() - before[name]):abs():max():item() > 0 then
            names[#names + 1] = name
        end
    end
    return names
end

function TestMasks.test_frozen_parameters_stay()
    for _, policy in ipairs { "none", "full" } do
        local mask = "trainable_parameters_mask=['query|key', ^norm]"
        local model, before, optimizer = train(mask, "remat_policy=" .. policy)
        local names = {
            "layer001.key.weight", "layer001.query.weight", "layer002.key.weight", "layer002.query.weight",
            "norm.weight",
        }
        lu.assertEquals(moved(model, before), names)
        lu.assertEquals(util.sorted_keys(optimizer.state), names)
    end
end

-- With a rate r, a decay d and no gradient, a parameter becomes (1 - r d) of itself.
function TestMasks.test_masked_parameters_do_not_decay()
    local params = {}
    for _, name in ipairs { "a.weight", "a.bias", "b.weight" } do
        params[name] = mx.ones({ 3 }):keep():requires_grad()
    end
    local optimizer = mx.optim.adamw(params, { learning_rate = 0.5, weight_decay = 0.25, mask = { "bias$", "^b" } })
    local step <close> = mx.step()
    for _, t in util.sorted_pairs(params) do
        mx.backward((t * 0):sum())
    end
    optimizer:step()
    lu.assertEquals(params["a.weight"]:totable(), { 0.875, 0.875, 0.875 })
    lu.assertEquals(params["a.bias"]:totable(), { 1, 1, 1 })
    lu.assertEquals(params["b.weight"]:totable(), { 1, 1, 1 })
    assert(step)
end

-- tiny has two layers of RMSNorms over 64 features before attention and MLP, and one at the end.
function TestMasks.test_a_run_says_how_much_a_mask_chooses()
    local shape = mx.models.shape(config_of())
    local all = mx.models.count(shape)
    lu.assertEquals(mx.models.masks.summary({ "norm" }, shape),
        ("5 of %d parameters, 320 of %s values"):format(#mx.models.parameters(shape), util.thousands(all)))
    lu.assertStrContains(mx.models.masks.summary({ "^layer001.*norm", "embedding" }, shape), "4 of ") -- two tables
    local said, say = {}, mx.metrics.say
    mx.metrics.say = function(format, ...)
        said[#said + 1] = format:format(...)
    end
    local config = config_of("adamw_mask=[norm]", "enable_checkpointing=false")
    local model = mx.models.new(config)
    mx.run.start(config, model, mx.optim.new(config, model.params), mx.data.open(config))
    mx.metrics.say = say
    lu.assertStrContains(table.concat(said, "\n"), "adamw_mask: 5 of")
    lu.assertNotStrContains(table.concat(said, "\n"), "trainable_parameters_mask: ")
end

function TestMasks.test_what_is_refused()
    local function refused(expected, ...)
        lu.assertErrorMsgContains(expected, config_of, ...)
    end
    refused("adamw_mask: [gamma] matches no parameter; the names are embedding.weight, layer001.norm.weight",
        "adamw_mask=[gamma]")
    refused("trainable_parameters_mask: '(' is no regular expression: missing closing parenthesis",
        "trainable_parameters_mask=['(']")
    refused("adamw_mask has no effect with opt_type = sgd", "opt_type=sgd", "adamw_mask=[norm]")
    refused("adamw_mask: expected a list of regular expressions such as [bias, norm]", "adamw_mask=norm")
    lu.assertEquals(config_of("adamw_mask=['[kq]uery', \".*norm\"]").adamw_mask, { "[kq]uery", ".*norm" })
end

-- Backward costs twice the forward: half of it for the gradients of weights, half for those of their inputs.
function TestMasks.test_the_flops_that_are_spared()
    local function flops(formula, ...)
        local shape = mx.models.shape(config_of(...))
        return mx.flops.step(formula, shape, mx.models.count(shape), 3, 16) / 3 / 16, shape
    end
    for _, formula in ipairs { "maxtext-2023-06", "maxtext-2025-07" } do
        local all, shape = flops(formula)
        local mlp, E, V = 3 * shape.emb * 128, shape.emb, shape.vocab -- weights of an MLP
        -- The MLPs are trained: other products have no gradients of weights.
        local products = (shape.emb * (4 + 2 + 2 + 4) * 16 + mlp) * 2 + E * V
        local first = all - flops(formula, "trainable_parameters_mask=[wi_, wo, embedding]")
        lu.assertAlmostEquals(first, 2 * (products - 2 * mlp - E * V), 1e-6)
        -- The head alone: backward makes the gradient of its weight.
        local attention = formula == "maxtext-2025-07" and 2 * 2 * 4 * 4 * 16 * (16 / 2) or 0
        local head = all - flops(formula, "trainable_parameters_mask=[^unembedding]")
        lu.assertAlmostEquals(head, 4 * products - 2 * E * V + attention, 1e-6)
        lu.assertEquals(flops(formula, "trainable_parameters_mask=[.]"), all)
    end
end

-- Parameters that are not trained have no moments and no gradients.
function TestMasks.test_the_memory_plan()
    local function plan(...)
        return mx.plan.simulate(config_of(...), "v5e-1", 1)
    end
    local all, some = plan(), plan("trainable_parameters_mask=[wi_, wo]")
    local mlps = 2 * 3 * 64 * 128
    lu.assertEquals({ all.weights, some.weights }, { 106816 * 4, 106816 * 4 })
    lu.assertEquals({ all.states, some.states }, { 106816 * 8, mlps * 8 })
    lu.assertEquals({ all.gradients, some.gradients }, { 106816 * 4, mlps * 4 })
end
