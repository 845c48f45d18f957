-- Layers with experts: against a loop over all experts, the losses of routers by their formulas, biases of routers.

local lu = require "luaunit"
local mx = require "mx"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare, mixed, runs = dofile(here .. "compare.lua"), dofile(here .. "mixed.lua"), dofile(here .. "runs.lua")

TestMoe = { setUp = runs.setUp, tearDown = runs.tearDown }

local B, S = 2, 12

local function config_of(...)
    return mx.config.load {
        "model_name=tiny-moe", "dtype=float32", "max_target_length=" .. S, "per_device_batch_size=" .. B,
        "remat_policy=none", ...
    }
end

local function new_model(...)
    local model = mx.models.new(config_of(...))
    mixed.fill(model)
    return model
end

local function new_batch(seed)
    return {
        tokens = mx.rand({ shape = { B, S }, high = 256, seed = seed or 1 }):to("i32"),
        targets = mx.rand({ shape = { B, S }, high = 256, seed = (seed or 1) + 10 }):to("i32"),
    }
end

-- ---- the same by hand: every expert computes all tokens, and a mask says which ones count ----

local function row_sums(x)
    return mx.matmul(x, mx.ones({ x:size(2), 1 }))
end

local SCORES = {
    topk_softmax = function(logits) return logits:exp() end,
    softmax_topk = function(logits) return logits:exp() / row_sums(logits:exp()) end,
    sigmoid = function(logits) return mx.ones({ 1 }) / ((logits * -1):exp() + 1) end,
}

-- The ids of the `count` largest values among those that `allowed` names, the best first.
local function best(values, count, allowed)
    local ids = {}
    for e in ipairs(values) do
        ids[#ids + 1] = allowed[e] and e or nil
    end
    table.sort(ids, function(a, b) return values[a] > values[b] or values[a] == values[b] and a < b end)
    return table.move(ids, 1, count, 1, {})
end

-- The experts that a token may choose: those of the best groups by the sums of their two best scores.
local function allowed_experts(router, values)
    local n, allowed, sums, all = #values, {}, {}, {}
    local width = n // router.groups
    for g = 1, router.groups do
        local group = table.move(values, (g - 1) * width + 1, g * width, 1, {})
        table.sort(group, function(a, b) return a > b end)
        sums[g], all[g] = group[1] + (group[2] or 0), true
    end
    for _, g in ipairs(best(sums, router.top_groups, all)) do
        for e = (g - 1) * width + 1, g * width do
            allowed[e] = true
        end
    end
    return allowed
end

-- The choices of all tokens, and the mask (T, n) of the slots that a capacity leaves.
local function choices(part, scores, bias, capacity)
    local chosen, kept, loads = {}, {}, {}
    for t, row in ipairs(scores:totable()) do
        for e in ipairs(row) do
            row[e] = row[e] + (bias and bias[e] or 0)
        end
        if (t - 1) % S == 0 then
            loads = {}
        end
        chosen[t] = best(row, part.top, allowed_experts(part.router, row))
        kept[t] = {}
        for e = 1, part.experts do
            kept[t][e] = 0
        end
        for _, e in ipairs(chosen[t]) do
            loads[e] = (loads[e] or 0) + 1
            kept[t][e] = (capacity == 0 or loads[e] <= capacity) and 1 or 0
        end
    end
    return chosen, mx.tensor(kept, "f32")
end

local function mask_of(chosen, n)
    local rows = {}
    for t, ids in ipairs(chosen) do
        rows[t] = {}
        for e = 1, n do
            rows[t][e] = 0
        end
        for _, e in ipairs(ids) do
            rows[t][e] = 1
        end
    end
    return mx.tensor(rows, "f32")
end

local ACTIVATIONS = {
    silu = function(x) return x / ((x * -1):exp() + 1) end,
    relu = function(x) return (x + x:abs()) / 2 end,
}

local function plain_mlp(part, x, weight)
    if part.gated then
        return mx.matmul(ACTIVATIONS[part.activation](mx.matmul(x, weight "wi_0")) * mx.matmul(x, weight "wi_1"),
            weight "wo")
    end
    return mx.matmul(ACTIVATIONS[part.activation](mx.matmul(x, weight "wi")), weight "wo")
end

-- The part's result for h (T, E) from plain operations; its logits and choices.
local function plain_moe(part, weights, h, bias, capacity)
    local logits = mx.matmul(h, weights["router.weight"])
    local scores = SCORES[part.router.score](logits)
    -- Logits choose as their exponentials do, except with a bias.
    local chosen, kept = choices(part, part.router.score == "topk_softmax" and logits or scores, bias, capacity)
    local shares = scores * mask_of(chosen, part.experts)
    if part.router.normalize or part.router.score == "topk_softmax" then
        shares = shares / row_sums(shares)
    end
    shares = shares * kept * part.router.scale
    local y = part.shared > 0 and plain_mlp(part, h, function(name)
        return weights["shared." .. name .. ".weight"]
    end) or nil
    for e = 1, part.experts do
        local one = plain_mlp(part, h, function(name) return weights["experts." .. name .. ".weight"][e] end)
        one = one * mx.narrow(shares, { dim = 2, start = e, length = 1 })
        y = y and y + one or one
    end
    return y, logits, chosen
end

-- ---- the part ----

-- Layer 1's weights by their short names.
local function weights_of(model)
    local weights = {}
    for name, t in pairs(model.params) do
        local short = name:match("^layer001%.(.*)$")
        weights[short or ""] = short and t or nil
    end
    return weights
end

local function gradients(params, fn)
    local step <close> = mx.step()
    local loss, grads = fn(), {}
    mx.backward(loss)
    for name, t in pairs(params) do
        grads[name] = t:grad() and t:grad():clone():keep()
        t:zero_grad()
    end
    return loss:item(), grads
end

local CASES = {
    { "num_experts_per_tok=2" },
    { "num_experts_per_tok=1", "mlp_activations=[relu]", "routed_score_func=softmax" },
    { "num_experts_per_tok=3", "routed_score_func=softmax" },
    { "num_experts_per_tok=3", "routed_score_func=softmax", "norm_topk_prob=true", "routed_scaling_factor=2.5" },
    { "num_experts_per_tok=3", "routed_score_func=sigmoid", "routed_bias=true", "n_routing_groups=4",
        "topk_routing_group=2", "routed_scaling_factor=2.5", "shared_experts=2" },
    { "routed_bias=true", "float32_gate_logits=true" },
    { "sparse_matmul=false", "capacity_factor=0.5" },
    { "num_experts=5", "num_experts_per_tok=5", "base_moe_mlp_dim=24" },
}

function TestMoe.test_against_a_loop_over_experts()
    for c, words in ipairs(CASES) do
        local model = new_model(table.unpack(words))
        local part, weights = model.shape.blocks[1].mlp, weights_of(model)
        local module, bias = mx.models.part(part), model.buffers["layer001.router.bias"]
        if bias then
            mx.copy(bias, mx.randn { shape = bias:size(), std = 0.3, seed = 5 })
        end
        local h = mx.randn({ shape = { B, S, 64 }, seed = 7 }):requires_grad()
        local dy = mx.randn { shape = { B, S, 64 }, seed = 8 }
        weights.h = h
        local capacity = module.capacity(part, S, {})
        local loss, grads = gradients(weights, function()
            return (module.forward(model, 1, part, weights, h, {}) * dy):sum()
        end)
        local expected, plain = gradients(weights, function()
            local y = plain_moe(part, weights, h:view(B * S, 64), bias and bias:totable(), capacity)
            return (y * dy:view(B * S, 64)):sum()
        end)
        lu.assertAlmostEquals(loss / expected, 1, 1e-5, "case " .. c)
        for name, grad in pairs(plain) do
            local off = compare.distance(grads[name], grad)
            lu.assertTrue(off < 2e-5, ("case %d: the gradient of %s is off by %g"):format(c, name, off))
        end
    end
end

function TestMoe.test_capacity_is_as_in_maxtext()
    local moe = mx.models.part { kind = "moe" }
    local part = { capacity = 1.5, top = 2, experts = 8 }
    lu.assertEquals(moe.capacity(part, 12, {}), 4) -- floor(ceil(12 x 2 / 8) x 1.5)
    lu.assertEquals(moe.capacity(part, 13, {}), 6) -- floor(ceil(3.25) x 1.5)
    lu.assertEquals(moe.capacity(part, 1, {}), 1)
    lu.assertEquals(moe.capacity(part, 12, { cache = {} }), 0) -- generation drops nothing
    part.capacity = 0
    lu.assertEquals(moe.capacity(part, 12, {}), 0)
end

-- ---- losses and biases of routers ----

-- The logits (lists of numbers) and choices of each layer in a training pass.
local function routes_of(model, batch)
    local module, seen = mx.models.part { kind = "moe" }, {}
    local forward = module.forward
    module.forward = function(m, i, part, weights, h, run)
        local y, extra = forward(m, i, part, weights, h, run)
        local bias = m.buffers[module.bias_name(i)]
        local _, logits, chosen = plain_moe(part, weights, h:detach():view(B * S, 64), bias and bias:totable(), 0)
        seen[i] = { logits = logits:totable(), chosen = chosen, part = part }
        return y, extra
    end
    local ok, loss, extra = pcall(model.losses, model, batch)
    module.forward = forward
    assert(ok, loss)
    return seen, loss, extra
end

-- MaxText's load-balance loss of a layer: density (b, e), the share of a sequence's slots that chose e, times
-- density_prob (b, e), the mean probability of e; mean over b and e, times n^2.
local function balance_by_hand(route)
    local n, sum = route.part.experts, 0
    for b = 1, B do
        for e = 1, n do
            local count, probability = 0, 0
            for t = (b - 1) * S + 1, b * S do
                local total, row = 0, route.logits[t]
                for _, logit in ipairs(row) do
                    total = total + (route.part.router.score == "sigmoid" and 1 / (1 + math.exp(-logit))
                        or math.exp(logit))
                end
                probability = probability + (route.part.router.score == "sigmoid" and 1 / (1 + math.exp(-row[e]))
                    or math.exp(row[e])) / total
                for _, id in ipairs(route.chosen[t]) do
                    count = count + (id == e and 1 or 0)
                end
            end
            sum = sum + count / (S * route.part.top) * probability / S
        end
    end
    return sum / (B * n) * n * n
end

local function z_by_hand(route)
    local sum = 0
    for _, row in ipairs(route.logits) do
        local total = 0
        for _, logit in ipairs(row) do
            total = total + math.exp(logit)
        end
        sum = sum + math.log(total) ^ 2
    end
    return sum / #route.logits
end

function TestMoe.test_losses_by_their_formulas()
    for _, score in ipairs({ "", "sigmoid" }) do
        local model = new_model("load_balance_loss_weight=0.5", "router_z_loss_weight=0.25",
            "routed_score_func=" .. score)
        local routes, loss, extra = routes_of(model, new_batch())
        local balance = 0.5 * (balance_by_hand(routes[1]) + balance_by_hand(routes[2])) / 2
        local z = 0.25 * (z_by_hand(routes[1]) + z_by_hand(routes[2])) / 2
        lu.assertAlmostEquals(extra:item(), balance + z, 1e-5)
        local figures = model.routing:figures()
        lu.assertAlmostEquals(figures.load_balance_loss, balance, 1e-5)
        lu.assertAlmostEquals(figures.router_z_loss, z, 1e-5)
        lu.assertNil(figures.dropped_share)
        model.routing:start()
        lu.assertAlmostEquals(model:loss(new_batch()):item(), loss:item() + extra:item(), 1e-6)
        lu.assertEquals(model:loss(new_batch(), true):item(), loss:item()) -- evaluation: without them
    end
end

-- Data for mx.train.gradients: batches, again and again.
local function data_of(...)
    local batches, i = { ... }, 0
    return {
        next = function()
            i = i % #batches + 1
            return batches[i]
        end,
    }
end

local function copies_of_gradients(model)
    local grads = {}
    for name, t in pairs(model.params) do
        grads[name] = t:grad():clone()
        t:zero_grad()
    end
    return grads
end

-- Two passes of which one has few targets: the cross-entropy is a mean over targets, the losses of routers one over
-- tokens.
function TestMoe.test_accumulation_with_few_targets()
    local model = new_model("load_balance_loss_weight=0.5", "router_z_loss_weight=0.25")
    local batches, masks = { new_batch(1), new_batch(2) }, {}
    for i, batch in ipairs(batches) do
        batch.mask = mx.arange({ n = B * S }):view(B, S):lt(i == 1 and 5 or B * S):to("u8")
        masks[i] = i == 1 and 5 or B * S
    end
    local loss = mx.train.gradients(model, data_of(table.unpack(batches)), 2)
    local figures, got = model.routing:figures(), copies_of_gradients(model)
    local expected = 0
    for i, batch in ipairs(batches) do
        local main, extra = model:losses(batch)
        local share = masks[i] / (masks[1] + masks[2])
        mx.backward(main * share + extra / 2)
        expected = expected + main:item() * share + extra:item() / 2
    end
    lu.assertAlmostEquals(loss, expected, 1e-5)
    for name, grad in pairs(copies_of_gradients(model)) do
        lu.assertTrue(compare.distance(got[name], grad) < 1e-5, name)
    end
    lu.assertTrue(figures.load_balance_loss > 0.5 * 0.75 and figures.load_balance_loss < 0.5 * 2)
end

-- With these, the losses of routers depend on no parameter that is trained.
function TestMoe.test_frozen_routers()
    local model = new_model("trainable_parameters_mask=[unembedding]", "load_balance_loss_weight=0.5")
    local loss = mx.train.gradients(model, data_of(new_batch()), 1)
    local main, extra = model:losses(new_batch())
    lu.assertAlmostEquals(loss, main:item() + extra:item(), 1e-5)
    lu.assertNotNil(model.params["unembedding.weight"]:grad())
    lu.assertNil(model.params["layer001.router.weight"]:grad())
end

function TestMoe.test_loads_and_biases()
    local model = new_model("routed_bias=true", "routed_bias_update_rate=0.25", "routed_score_func=sigmoid",
        "sparse_matmul=false", "capacity_factor=1.0")
    local batch = new_batch()
    local routes = mx.scope(function() return (routes_of(model, batch)) end)
    local ratios, dropped, changes = 0, 0, {}
    for i, route in ipairs(routes) do
        local loads = {}
        for e = 1, 8 do
            loads[e] = 0
        end
        for b = 0, B - 1 do
            local own = {}
            for t = b * S + 1, (b + 1) * S do
                for _, e in ipairs(route.chosen[t]) do
                    own[e] = (own[e] or 0) + 1
                    loads[e] = loads[e] + 1
                    dropped = dropped + (own[e] > 3 and 1 or 0) -- of 12 x 2 / 8
                end
            end
        end
        local mean = B * S * 2 / 8
        ratios, changes[i] = ratios + math.max(table.unpack(loads)) / mean, {}
        for e, load in ipairs(loads) do
            changes[i][e] = load < mean and 0.25 or load > mean and -0.25 or 0
        end
    end
    local figures = model.routing:figures()
    lu.assertAlmostEquals(figures.largest_expert_load, ratios / 2, 1e-6)
    lu.assertAlmostEquals(figures.dropped_share, dropped / (2 * B * S * 2), 1e-6)
    lu.assertTrue(dropped > 0)
    model:after_step()
    for i, change in ipairs(changes) do
        lu.assertEquals(model.buffers[("layer%03d.router.bias"):format(i)]:totable(), change)
    end
    -- Recomputed layers count once, and a new step starts at 0.
    model.shape.remat = "full"
    mx.train.gradients(model, data_of(batch), 1)
    local sum = 0
    for _, load in ipairs(model.routing.layers[1].loads:totable()) do
        sum = sum + load
    end
    lu.assertEquals(sum, B * S * 2)
end

function TestMoe.test_gradients_by_differences()
    -- All experts are chosen: a choice that changes would be no slope.
    local model = new_model("num_experts=3", "num_experts_per_tok=3", "base_emb_dim=16", "base_moe_mlp_dim=8",
        "routed_score_func=softmax", "router_z_loss_weight=0.1")
    local part, weights = model.shape.blocks[1].mlp, weights_of(model)
    local names = { "router", "experts.wi_0", "experts.wi_1", "experts.wo" }
    local function layer(h, router, wi_0, wi_1, wo)
        local own = {}
        for i, w in ipairs({ router, wi_0, wi_1, wo }) do
            own[names[i] .. ".weight"] = w
        end
        local y, extra = mx.models.part(part).forward(model, 1, part, own, h, { pass = 1 })
        return y, extra
    end
    local inputs = { mx.randn { shape = { 2, 3, 16 }, seed = 4 } }
    for i, name in ipairs(names) do
        inputs[i + 1] = weights[name .. ".weight"]
    end
    lu.assertTrue(mx.gradcheck(layer, inputs[1], inputs[2], inputs[3], inputs[4], inputs[5]))
end

-- ---- a step: recomputation, experts without rows, faults ----

function TestMoe.test_policies_change_no_bit()
    local reference, expected, figures
    for _, policy in ipairs({ "none", "full", "minimal", "save_dot_except_mlpwi", "minimal_offloaded" }) do
        local model = new_model("remat_policy=" .. policy, "dtype=bfloat16", "router_z_loss_weight=0.25",
            "routed_bias=true", "sparse_matmul=false", "capacity_factor=1.0", "shared_experts=1")
        local loss = mx.train.gradients(model, data_of(new_batch(1), new_batch(2)), 2)
        local grads, seen = copies_of_gradients(model), model.routing:figures()
        reference, expected, figures = reference or loss, expected or grads, figures or seen
        lu.assertEquals(loss, reference, policy)
        lu.assertEquals(seen, figures, policy)
        for name, grad in pairs(grads) do
            lu.assertEquals(grad:totable(), expected[name]:totable(), policy .. " " .. name)
        end
    end
end

-- Parameters that were trained without biases of routers are trained further with them; a run is not resumed with them.
function TestMoe.test_parameters_take_up_biases()
    runs.train(runs.config_of("model_name=tiny-moe", "run_name=plain", "steps=1"))
    for _, name in ipairs { "/plain/parameters.h5", "/plain", "/plain/step_1" } do
        local path = runs.folder .. name
        local config = runs.config_of("model_name=tiny-moe", "routed_bias=true")
        local model = mx.models.new(config)
        local bias = model.buffers["layer001.router.bias"]
        mx.fill(bias, { value = 3 })
        local text = runs.quietly(mx.run.load_parameters, path, model, config)
        lu.assertEquals(bias:abs():sum():item(), 0)
        lu.assertEquals(select(2, text:gsub("has no values of routed_bias: they start at 0\n", "")), 1)
    end
    lu.assertErrorMsgContains("step_1 was saved with another routed_bias (false): a run resumes with the same; "
        .. "load_parameters_path=", runs.train,
        runs.config_of("model_name=tiny-moe", "routed_bias=true", "load_full_state_path=" .. runs.folder
            .. "/plain/step_1"))
end

function TestMoe.test_an_expert_without_rows()
    local model = new_model("routed_bias=true", "load_balance_loss_weight=0.0")
    for i = 1, 2 do -- experts 1 to 6 are never chosen
        mx.copy(model.buffers[("layer%03d.router.bias"):format(i)],
            mx.tensor { -1e6, -1e6, -1e6, -1e6, -1e6, -1e6, 0, 0 })
    end
    mx.train.gradients(model, data_of(new_batch()), 1)
    lu.assertEquals(model.routing.layers[1].loads:totable(), { 0, 0, 0, 0, 0, 0, B * S, B * S })
    lu.assertEquals(model.routing:figures().largest_expert_load, 4)
    for name, grad in pairs(copies_of_gradients(model)) do
        if name:find("experts", 1, true) then
            lu.assertEquals(grad[1]:abs():sum():item(), 0, name)
            lu.assertTrue(grad[8]:abs():sum():item() > 0, name)
        end
    end
end

function TestMoe.test_a_router_that_is_no_number_is_named()
    local model = new_model()
    mx.no_grad(mx.fill, model.params["layer002.router.weight"]:detach(), { value = 1e38 })
    local text = mx.guard.explain(model.params, function()
        mx.train.gradients(model, data_of(new_batch()), 1)
    end)
    lu.assertStrContains(text, "layer 2, router: the result of matmul, f32 (2, 12, 8), has")
end

function TestMoe.test_random_routing()
    local model = new_model("use_random_routing=true", "num_experts_per_tok=3", "load_balance_loss_weight=0.0")
    local seen = {}
    local route = mx.moe_route
    mx.moe_route = function(...) -- luacheck: ignore 122
        local shares, experts = route(...)
        seen[#seen + 1] = table.concat(compare.flat(experts), " ")
        for _, share in ipairs(compare.flat(shares)) do
            lu.assertAlmostEquals(share, 1 / 3, 1e-6)
        end
        return shares, experts
    end
    local good, message = pcall(mx.train.gradients, model, data_of(new_batch()), 2)
    mx.moe_route = route -- luacheck: ignore 122
    assert(good, message)
    lu.assertEquals(#seen, 4)
    for i = 2, 4 do -- other experts in each layer and pass
        lu.assertNotEquals(seen[i], seen[1])
    end
    lu.assertEquals(compare.flat(model.params["layer001.router.weight"]:grad():abs():sum()), { 0 })
end

-- ---- evaluation, generation ----

-- One token after another with a cache gives the logits of the whole sequence. A capacity that drops slots in training
-- drops none here.
function TestMoe.test_generation()
    local model, batch = new_model(), new_batch()
    mx.no_grad(function()
        local whole = model:logits(model:hidden(batch.tokens))
        model.shape.blocks[1].mlp.capacity = 0.25
        local cache = model:new_cache(B, S)
        for s = 0, S - 1 do
            local token = mx.narrow(batch.tokens, { dim = 2, start = s + 1, length = 1 })
            local logits = model:logits(model:hidden(token, { cache = cache, offset = s }))
            lu.assertTrue(compare.distance(logits, mx.narrow(whole, { dim = 2, start = s + 1, length = 1 })) < 1e-5)
        end
    end)
end

-- ---- what is counted ----

function TestMoe.test_flops()
    local model, batch, found = new_model("shared_experts=1"), new_batch(), {}
    mx.no_grad(mx.scope, function()
        mx.profile(true)
        model:hidden(batch.tokens)
        mx.profile(false)
    end)
    for _, row in ipairs(mx.profile_report()) do
        found[row.op] = (found[row.op] or 0) + row.flops
    end
    local T, expert = B * S, 3 * 2 * 64 * 64
    lu.assertEquals(found.grouped_matmul, 2 * T * 2 * expert)
    local dense = 2 * 64 * (2 * 64 + 2 * 32) + 2 * 64 * 8 + expert -- attention, router, shared expert
    lu.assertEquals(found.matmul, 2 * T * dense)
    local params, attention = mx.models.count(model.shape), 4 * (S * S - S * S / 2) * 64
    local products = 2 * (dense + 2 * expert)
    lu.assertEquals(mx.flops.step("maxtext-2025-07", model.shape, params, B, S),
        3.0 * B * (S * (products + 2 * 64 * 256) + 2 * attention))
    -- 6 for each parameter that a token meets: all but six experts of a layer.
    lu.assertEquals(mx.flops.step("maxtext-2023-06", model.shape, params, B, S),
        6.0 * T * (params - 2 * 6 * expert / 2))
    -- Frozen experts need no gradient of their own.
    model.shape.trainable = { "^(?!.*experts)" }
    lu.assertEquals(mx.flops.step("maxtext-2025-07", model.shape, params, B, S),
        3.0 * B * (S * (products + 2 * 64 * 256) + 2 * attention) - B * S * 2 * 2 * expert)
end

local function kinds_of(...)
    local shape, list = mx.models.shape(config_of("base_num_decoder_layers=6", ...)), {}
    for i = 1, shape.layers do
        list[i] = mx.models.block(shape, i).mlp.kind .. mx.models.block(shape, i).mlp.width
    end
    return table.concat(list, " "), shape
end

function TestMoe.test_layers_with_and_without_experts()
    lu.assertEquals(kinds_of("base_mlp_dim=96", "interleave_moe_layer_step=2"), "mlp96 moe64 mlp96 moe64 mlp96 moe64")
    lu.assertEquals(kinds_of("base_mlp_dim=96", "first_num_dense_layers=2", "base_moe_mlp_dim=-1"),
        "mlp96 mlp96 moe96 moe96 moe96 moe96")
    local _, shape = kinds_of("interleave_moe_layer_step=2", "layer_types=[local,local,global]",
        "sliding_window_size=4")
    lu.assertEquals(#shape.blocks, 6)
    lu.assertEquals(mx.models.kinds(shape)[1].count, 2) -- local, without experts: layers 1 and 5
    local model = mx.models.new(config_of("base_mlp_dim=96", "interleave_moe_layer_step=2"))
    lu.assertEquals(model.params["layer001.wi_0.weight"]:size(), { 64, 96 })
    lu.assertEquals(model.params["layer002.experts.wi_0.weight"]:size(), { 8, 64, 64 })
    lu.assertEquals(model.params["layer002.experts.wo.weight"]:size(), { 8, 64, 64 })
    lu.assertEquals(model.params["layer002.router.weight"]:size(), { 64, 8 })
    lu.assertEquals(#model.routing.layers, 1)
    local loss = mx.train.gradients(model, data_of(new_batch()), 1)
    lu.assertTrue(loss > 4 and loss < 8)
end

return TestMoe
