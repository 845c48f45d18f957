-- ranks: 2 3 4
-- A script's own layers with experts on a mesh: loss, gradients and updates are those of one rank, however experts and
-- tokens are split.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare = dofile(here .. "../lua/compare.lua")

local RANKS, SEQUENCES, S, EXPERTS = mx.ranks(), 12, 24, 5

-- A part of a block with experts: a router and gated MLPs.
local part = { products = "mlp", output = "wo", saved = "mlpwo" }

function part.parameters(p, list)
    local E, M, n = list.shape.emb, { p.width, "mlp_moe" }, { p.experts, "exp" }
    list:add("gate.weight", { { E, "embed_router" }, { p.experts } }, { std = E ^ -0.5, use = "router" })
    list:add("wi_0.weight", { n, { E, "embed_moe" }, M }, { std = E ^ -0.5, use = "product" })
    list:add("wi_1.weight", { n, { E, "embed_moe" }, M }, { std = E ^ -0.5, use = "product" })
    list:add("wo.weight", { n, M, { E, "embed_moe" } }, { std = p.width ^ -0.5, use = "product" })
end

function part.forward(model, _, p, weights, h)
    local parallel, B, T, E = model.parallel, h:size(1), h:size(1) * h:size(2), h:size(3)
    local logits = mx.matmul(h:view(T, E), weights["gate.weight"], nil, { dtype = "f32" })
    local scores, chosen = mx.moe_route(logits, { top = p.top })
    local rows = parallel:gather_tokens(h:view(T, E), true)
    scores, chosen = parallel:gather_tokens(scores), parallel:gather_tokens(chosen)
    local first, count = parallel:own_experts(p)
    local order, place, counts = mx.moe_sort(chosen, { experts = p.experts, first = first, count = count })
    rows = mx.moe_gather(rows, order, place)
    local gate = mx.grouped_matmul(rows, weights["wi_0.weight"], counts)
    local inner = mx.gated(gate, mx.grouped_matmul(rows, weights["wi_1.weight"], counts), { activation = "silu" })
    local y = mx.moe_combine(mx.grouped_matmul(inner, weights["wo.weight"], counts), order, place, scores)
    return parallel:scatter_tokens(y):view(B, T // B, E)
end

function part.tensors()
    return { "mlpwo" }
end

package.preload["mx.models.test_experts"] = function() return part end

local function config_of(...)
    return mx.config.load {
        "model_name=tiny", "base_num_decoder_layers=2", "base_num_kv_heads=4", "dtype=float32", "base_emb_dim=36",
        "head_dim=8", "max_target_length=" .. S, "remat_policy=none", "adam_eps=1.0e-3", ...
    }
end

local function shape_of(config)
    local shape = mx.models.shape(config)
    shape.blocks[1].mlp = { kind = "test_experts", experts = EXPERTS, top = 2, width = 24 }
    return shape
end

-- The losses of three updates, and the whole gradients of the first and parameters after the last.
local function train(config, mesh)
    local shape = shape_of(config)
    local model, data = mx.models.new(shape, mesh, config), mx.data.open(config, mesh)
    if not mesh then
        data.part, data.parts = 0, 1
    end
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    local run = { losses = {}, norms = {}, grads = {}, params = {}, model = model }
    for i = 1, 3 do
        local step <close> = mx.step()
        if mesh then
            run.losses[i] = mx.train.gradients(model, data, 1)
        else
            local loss = model:loss(data:next())
            mx.backward(loss)
            run.losses[i] = loss:item()
        end
        for name, t in util.sorted_pairs(i == 1 and model.params or {}) do
            run.grads[name] = model.parallel:whole(name, t:grad()):wait():clone():keep()
        end
        run.norms[i] = optimizer:step()
    end
    for name, t in util.sorted_pairs(model.params) do
        run.params[name] = model.parallel:whole(name, t:detach()):wait():clone():keep()
    end
    return run
end

local reference

TestExperts = {}

for _, case in ipairs(({
    [2] = { "expert=2", "fsdp=2", "tensor=2", "tensor_sequence=2", "context=2", "data=2" },
    [3] = { "expert=3" },
    [4] = {
        "expert=2 fsdp=2", "expert=2 tensor=2", "expert=2 tensor_sequence=2", "expert=2 context=2", "expert=2 data=2",
        "expert=4", "expert=2 fsdp_transpose=2",
    },
})[RANKS]) do
    TestExperts["test_" .. case:gsub("[^%w]+", "_")] = function()
        reference = reference or train(config_of("per_device_batch_size=" .. SEQUENCES))
        local words = { "ici_fsdp_parallelism=1", "per_device_batch_size=" .. SEQUENCES // RANKS }
        for axis, size in case:gmatch("([%w_]+)=(%d)") do
            words[axis == "fsdp" and 1 or #words + 1] = ("ici_%s_parallelism=%s"):format(axis, size)
        end
        local config = config_of(table.unpack(words))
        local run = train(config, mx.train.mesh(config))
        for i = 1, 3 do
            lu.assertAlmostEquals(run.losses[i] / reference.losses[i], 1, 1e-5)
            lu.assertAlmostEquals(run.norms[i] / reference.norms[i], 1, 1e-5)
        end
        for what, whole in pairs({ grads = run.grads, params = run.params }) do
            for name, t in util.sorted_pairs(reference[what]) do
                local off = compare.distance(whole[name], t, 1e-3)
                lu.assertTrue(off < 1e-5, ("%s of %s: off by %g"):format(what, name, off))
            end
        end
    end
end

if RANKS == 2 then
    function TestExperts.test_rules_that_do_not_fit_are_refused()
        for rules, message in pairs({
            ["[[exp,[]]]"] = "activation_exp is split over expert, exp over []: add expert to exp, or take it from",
            ["[[mlp_moe,[]],[exp,[tensor]],[activation_exp,[]]]"] = "exp is split over tensor, which shares",
            ["[[mlp_moe,[]]]"] = "mlp_moe is split over [], mlp over [tensor]: give both the same axes",
        }) do
            local axis = message:find("tensor", 1, true) and "tensor" or "expert"
            local config = config_of("ici_fsdp_parallelism=1", ("ici_%s_parallelism=2"):format(axis),
                "logical_axis_rules=" .. rules)
            lu.assertErrorMsgContains(message, mx.models.new, shape_of(config), mx.train.mesh(config), config)
        end
    end
end
