--- Recipes of quantization in a model: near bf16 in loss and gradients, delayed scales by their formula, and what is
--- refused.

local mx = require "mx"
local lu = require "luaunit"

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local runs = dofile(here .. "runs.lua")

local RECIPES = {
    "int8", "fp8", "fp8_full", "fp8_gpu", "fp8_nanoo", "te_fp8_currentscaling", "te_mxfp8", "te_nvfp4",
    "te_nvfp4_no_rht",
}

local function config_of(recipe, ...)
    return mx.config.load {
        "model_name=tiny", "quantization=" .. recipe, "max_target_length=32", "dataset_type=synthetic", ...,
    }
end

local function batch_of(seed)
    local function ids(n)
        return mx.randint({ shape = { 2, 32 }, low = 0, high = 250, seed = n }):keep()
    end
    return { tokens = ids(seed), targets = ids(seed + 1) }
end

-- A training step without an update: the loss, and the gradients of two products in f32.
local function step(model, batch, first, second)
    for _, t in pairs(model.params) do
        t:zero_grad()
    end
    local loss = mx.scope(function()
        local loss = model:loss(batch)
        mx.backward(loss)
        return loss:item()
    end)
    return loss, model.params[first or "layer001.query.weight"]:grad(),
        model.params[second or "layer002.wo.weight"]:grad()
end

TestRecipes = { setUp = runs.setUp, tearDown = runs.tearDown }

-- The distance of two gradients over the length of the second.
local function distance(a, b)
    return ((a - b):square():sum():sqrt() / b:square():sum():sqrt()):item()
end

-- A rounding moves a code of i8 by up to 1/255 of the largest magnitude, of e4m3 by 1/16 of itself, of e5m2 by 1/8; the
-- errors of a product are those of both operands, of a gradient those of several products in turn. Of e2m1 a rounding
-- moves a code by up to 1/4 of itself, stochastic rounding by up to 1/2: twice and four times as far as e5m2.
function TestRecipes.test_near_bf16()
    local batch = batch_of(1)
    local plain, query, wo = step(mx.models.new(config_of("")), batch)
    for _, recipe in ipairs(RECIPES) do
        local model = mx.models.new(config_of(recipe))
        if model.quantization.recipe.delayed then -- the scales are those of the step before
            step(model, batch)
            model:after_step()
        end
        local loss, own_query, own_wo = step(model, batch)
        local bound = recipe == "int8" and 0.05 or recipe == "fp8" and 0.2 or recipe:find("nvfp4") and 0.7 or 0.35
        lu.assertTrue(math.abs(loss / plain - 1) < (bound > 0.5 and 0.02 or 0.01) and loss ~= plain,
            ("%s: loss %g, %g"):format(recipe, loss, plain))
        for name, off in pairs { query = distance(own_query, query), wo = distance(own_wo, wo) } do
            lu.assertTrue(off > 0 and off < bound, ("%s: gradient of %s off by %g"):format(recipe, name, off))
        end
    end
end

-- Experts, a shared expert and latent attention; the gradients are those of products of both.
local EXPERTS = {
    "model_name=tiny-moe", "shared_experts=1", "decoder_block=deepseek", "base_num_kv_heads=4", "q_lora_rank=32",
    "kv_lora_rank=16", "qk_nope_head_dim=8", "qk_rope_head_dim=8", "v_head_dim=8",
}
local FOUR = { "layer001.query_b.weight", "layer001.kv_a.weight", "layer002.experts.wo.weight",
    "layer002.shared.wi_0.weight" }

local function step_of_experts(model, batch)
    local loss, grads = step(model, batch, FOUR[1], FOUR[2]), {}
    for i, name in ipairs(FOUR) do
        grads[i] = model.params[name]:grad()
    end
    return loss, grads
end

-- A few tokens go to other experts, since their router reads rounded inputs.
function TestRecipes.test_experts_near_bf16()
    local batch = batch_of(1)
    local plain, want = step_of_experts(mx.models.new(config_of("", table.unpack(EXPERTS))), batch)
    for i = 1, #RECIPES - 3 do -- sums of latent attention have other lengths than multiples of blocks
        local recipe = RECIPES[i]
        local model = mx.models.new(config_of(recipe, table.unpack(EXPERTS)))
        if model.quantization.recipe.delayed then
            step(model, batch, FOUR[1], FOUR[2])
            model:after_step()
        end
        local loss, grads = step_of_experts(model, batch)
        lu.assertTrue(math.abs(loss / plain - 1) < 0.01 and loss ~= plain,
            ("%s: loss %g, %g"):format(recipe, loss, plain))
        for k, name in ipairs(FOUR) do
            local off = distance(grads[k], want[k])
            lu.assertTrue(off > 0 and off < 0.5, ("%s: gradient of %s off by %g"):format(recipe, name, off))
        end
    end
end

-- Biases of experts are not quantized: each row gets that of its expert, whose gradient is the sum over its rows.
function TestRecipes.test_biases_of_experts()
    local model = mx.models.new(config_of("int8", "model_name=tiny-moe", "mlp_bias=true"))
    local bias, counts = model.params["layer001.experts.wi_0.bias"], mx.tensor({ 3, 0, 2, 1, 0, 0, 0, 0 }, "i32")
    mx.copy(bias, mx.randn { shape = bias:size(), seed = 1 })
    local scope <close> = mx.step()
    assert(scope)
    local h = mx.randn { shape = { 6, model.shape.emb }, seed = 2 }:to("bf16")
    local weights, quantization = model:layer_weights(1, {}), require "mx.models.quantization"
    local product = quantization.products(model, 1, weights, h, {}, counts)
    local y, without = product("experts.wi_0", bias), product("experts.wi_0")
    local rows = mx.embedding(bias, mx.tensor({ 0, 0, 0, 2, 2, 3 }, "i32"))
    lu.assertEquals(y:dtype(), "bf16")
    lu.assertEquals((y - (without + rows:to("bf16"))):abs():max():item(), 0)
    local dout = mx.randint({ shape = y:size(), low = -3, high = 4, seed = 3 }):to("bf16") -- sums are exact
    mx.backward((y * dout):sum())
    local of_rows, expected = dout:to("f32"):totable(), mx.zeros(bias:size()):totable()
    for row, expert in ipairs({ 1, 1, 1, 3, 3, 4 }) do
        for column, x in ipairs(of_rows[row]) do
            expected[expert][column] = expected[expert][column] + x
        end
    end
    lu.assertEquals(bias:grad():totable(), expected)
end

-- The layers of multi-token prediction are quantized only with quantize_mtp: each has the seven products of a layer.
function TestRecipes.test_modules_of_multi_token_prediction()
    local quantization, batch = require "mx.models.quantization", batch_of(1)
    local function counted(...)
        local model, count = mx.models.new(config_of("fp8_gpu", "mtp_num_layers=2", ...)), 0
        function quantization.watch(kind)
            count = count + (kind == "weight" and 1 or 0)
        end
        local loss = step(model, batch)
        quantization.watch = nil
        lu.assertTrue(loss > 0)
        model:after_step()
        return count, model.buffers["quantization.scale"]:size(1), model.shape.layers
    end
    local plain, plain_rows, layers = counted("remat_policy=none")
    lu.assertEquals({ plain, plain_rows }, { 7 * layers, 7 * layers })
    local all, all_rows = counted("remat_policy=none", "quantize_mtp=true")
    lu.assertEquals({ all, all_rows }, { 7 * (layers + 2), 7 * (layers + 2) })
end

-- What backward keeps is the same as what it would compute again.
function TestRecipes.test_remat()
    local batch = batch_of(1)
    for _, recipe in ipairs { "int8", "fp8_gpu", "fp8_nanoo", "te_mxfp8", "te_nvfp4" } do
        local loss, query, wo = step(mx.models.new(config_of(recipe, "remat_policy=none")), batch)
        local again, query2, wo2 = step(mx.models.new(config_of(recipe, "remat_policy=full")), batch)
        lu.assertEquals({ again, query2:totable(), wo2:totable() }, { loss, query:totable(), wo:totable() })
        local results = {}
        for i, policy in ipairs(recipe:find("^te_") and {} or { "none", "full" }) do
            local c = config_of(recipe, "remat_policy=" .. policy, table.unpack(EXPERTS))
            local own, grads = step_of_experts(mx.models.new(c), batch)
            results[i] = { own }
            for k, t in ipairs(grads) do
                results[i][k + 1] = t:totable()
            end
        end
        lu.assertEquals(results[1], results[2])
    end
end

-- Bytes that a forward pass keeps for backward.
local function kept_by(recipe, layers, ...)
    local model = mx.models.new(config_of(recipe, "remat_policy=none", "base_num_decoder_layers=" .. layers, ...))
    return mx.scope(function()
        local loss = model:loss(batch_of(1))
        local seen, bytes = {}, 0
        for _, row in ipairs(mx.kept()) do
            bytes = bytes + (seen[row.storage] and 0 or row.bytes)
            seen[row.storage] = true
        end
        mx.backward(loss)
        return bytes
    end)
end

-- A layer keeps bf16 values of 2 bytes a feature: its input and the MLP's, E each; queries and context, H D; keys and
-- values, K D; gate and up, M. And in f32 for each token both norms' factors, and the log of each head's sum. Without
-- quantization also both norms' results and the input of the last product, which codes replace: these are computed
-- again.
function TestRecipes.test_no_codes_are_kept()
    local E, HD, KD, M, heads, tokens = 64, 64, 32, 128, 4, 2 * 32
    local rest, plain = 2 * (2 * E + 2 * HD + 2 * KD + 2 * M) + 4 * (2 + heads), 2 * (2 * E + M)
    lu.assertEquals(kept_by("", 3) - kept_by("", 2), tokens * (rest + plain))
    for _, recipe in ipairs { "int8", "fp8_gpu", "te_mxfp8", "te_nvfp4" } do
        local scales = kept_by(recipe, 3) - kept_by(recipe, 2) - tokens * rest
        scales = scales + (recipe:find("^te_") and tokens * 2 * 4 or 0) -- norms are computed again, with their factors
        lu.assertTrue(scales >= 0 and scales < 4 * (tokens * 4 + 7 * M) + 64, ("%s: %d bytes"):format(recipe, scales))
    end
    -- Computing only the projection of attention's result again saves the input of the MLP, and the norms' factors.
    local words = { "remat_policy=custom", "out_proj=remat" }
    for _, name in ipairs { "query_proj", "key_proj", "value_proj", "context", "mlpwi_0", "mlpwi_1" } do
        words[#words + 1] = name .. "=device"
    end
    local rest_of_custom = 2 * (E + 2 * HD + 2 * KD + 2 * M) + 4 * heads
    lu.assertEquals(kept_by("int8", 3, table.unpack(words)) - kept_by("int8", 2, table.unpack(words)),
        tokens * rest_of_custom)
end

-- scale = largest magnitude of the history / 448 or 57344, 1 before the first step; evaluation notes nothing.
function TestRecipes.test_delayed_scales()
    local model = mx.models.new(config_of("fp8_gpu"))
    local scale, history = model.buffers["quantization.scale"], model.buffers["quantization.history"]
    local products = 2 * (scale:size(1) // 2)
    lu.assertEquals(history:size(), { products, 3, 1024 })
    lu.assertEquals(scale:totable()[1], { 1, 1, 1 })
    mx.scope(function()
        model:loss(batch_of(3), true)
    end)
    model:after_step()
    lu.assertEquals(mx.max(history):item(), 0)
    lu.assertEquals(scale:totable()[1], { 1, 1, 1 })
    local weight = model.params["layer001.query.weight"]
    local largest = {}
    for i = 1, 2 do
        largest[i] = weight:detach():to("bf16"):abs():max():item()
        step(model, batch_of(3))
        model:after_step()
        lu.assertEquals(history[1][2]:totable()[1], largest[i])
        mx.copy(weight:detach(), weight:detach() * 0.5)
    end
    lu.assertEquals({ history[1][2]:totable()[1], history[1][2]:totable()[2] }, { largest[2], largest[1] })
    lu.assertAlmostEquals(scale:totable()[1][2], largest[1] / 448, 1e-9)
    local most = mx.max(history[1][3]):item()
    lu.assertTrue(most > 0 and math.abs(scale:totable()[1][3] / (most / 57344) - 1) < 1e-6)
end

-- Token by token with a cache, latent attention and experts compute as for the whole sequence: scales are by row.
function TestRecipes.test_generation()
    local model = mx.models.new(config_of("int8", table.unpack(EXPERTS)))
    local tokens, cache = mx.tensor({ { 3, 1, 4, 1, 5 } }, "i32"), model:new_cache(1, 5)
    mx.no_grad(mx.scope, function()
        local whole, part = model:hidden(tokens), nil
        for i = 1, 5 do
            local one = mx.narrow(tokens, { dim = 2, start = i, length = 1 })
            part = model:hidden(one, { cache = cache, offset = i - 1 })
        end
        for _, name in ipairs { "query_a", "kv_b", "out", "experts.wo", "shared.wi_0" } do -- quantized once
            local codes = mx.quantize(model.params["layer001." .. name .. ".weight"]:detach():to("bf16"),
                { dtype = "i8", by = "column" })
            codes = name:find("^experts") and codes or mx.transpose(codes)
            lu.assertEquals(cache[1].codes[name].codes:eq(codes):all():item(), 1)
        end
        local want = mx.narrow(whole, { dim = 2, start = 5, length = 1 })
        lu.assertTrue(distance(part:to("f32"), want:to("f32")) < 0.02)
    end)
end

-- The script: bytes of all parameters, and of Q8_0 9/8 of a byte for each value of a matrix, all others in f32.
function TestRecipes.test_generation_script()
    local rows = mx.generation.run { "model_name=tiny", "tokens=3", "rounds=1" }
    local count = mx.models.count(rows[1].model.shape)
    local vectors = (2 * 2 + 1) * 64 -- norms
    lu.assertEquals({ rows[1].bytes, rows[2].bytes }, { 2 * count, 4 * count })
    lu.assertEquals({ rows[4].name, rows[4].bytes }, { "q8_0", (count - vectors) * 9 / 8 + 4 * vectors })
    lu.assertTrue(rows[4].rate > 0 and #rows[4].times == 2)
    lu.assertErrorMsgContains("tokens", mx.generation.run, { "tokens=x" })
end

-- Scripts that read parameters compute as training did.
function TestRecipes.test_saved_parameters_say_their_recipe()
    local path = os.tmpname() .. ".h5"
    local config = config_of("fp8_gpu")
    local model = mx.models.new(config)
    step(model, batch_of(3))
    model:after_step()
    mx.train.save(config, model, path)
    local again, stored = mx.weights.model(path)
    os.remove(path)
    lu.assertEquals(stored.quantization, "fp8_gpu")
    lu.assertEquals(again.buffers["quantization.scale"]:totable(), model.buffers["quantization.scale"]:totable())
end

function TestRecipes.test_what_is_refused()
    local function refused(words, ...)
        lu.assertErrorMsgContains(words, config_of, ...)
    end
    refused("quantization: expected one of", "int4")
    refused("mixed precision of int8 and int4", "intmp")
    refused("dtype", "int8", "dtype=float32")
    for recipe, run in pairs { te_mxfp8 = 32, te_nvfp4 = 16, te_nvfp4_no_rht = 16 } do
        local format = recipe:match("mxfp8") and "MXFP8" or "NVFP4"
        refused(("%s is not simulated on h100-8, which does not multiply %s"):format(recipe, format), recipe,
            "hardware=h100-8")
        lu.assertErrorMsgContains("in training all sizes, must be multiples of " .. run, step,
            mx.models.new(config_of(recipe, "base_mlp_dim=72")), batch_of(1))
    end
    refused("act_quantization_calibration_method: expected absmax, or a range", "fp8_full",
        "act_quantization_calibration_method=fixed,-1,2")
    refused("weight_quantization_calibration_method", "fp8", "weight_quantization_calibration_method=fixed,1")
end

-- The script: the same first loss but for rounding, counts of the last step, and a chart.
function TestRecipes.test_precision()
    local file = os.tmpname() .. ".svg"
    local rows = mx.precision.run { "recipes=int8,fp8_gpu", "steps=3", "chart=" .. file, "max_target_length=16" }
    lu.assertEquals({ rows[1].recipe, rows[2].recipe, rows[3].recipe }, { "", "int8", "fp8_gpu" })
    for _, row in ipairs(rows) do
        lu.assertEquals(#row.losses, 3)
        lu.assertTrue(math.abs(row.losses[1] / rows[1].losses[1] - 1) < 0.01)
    end
    local counts = rows[2].counts
    lu.assertEquals(counts.all.weight, 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128)) -- all products' weights
    local outputs = 2 * (64 + 2 * 32 + 64 + 2 * 128 + 64) * 8 * 16 -- of all products
    lu.assertEquals(counts.all.gradient, 2 * outputs) -- codes by row and by column
    lu.assertEquals(rows[3].counts.all.gradient, outputs)
    lu.assertTrue(counts.saturated.gradient >= outputs // 128 // 2) -- the largest of each row, at least
    lu.assertTrue(counts.saturated.input > 0 and counts.saturated.input < counts.all.input / 10)
    lu.assertTrue(assert(io.open(file)):read("a"):find("int8", 1, true) ~= nil)
    os.remove(file)
    lu.assertErrorMsgContains("no recipe is called 'int4'", mx.precision.run, { "recipes=int4" })
end

-- NVFP4 trains: after 60 steps the tiny model has learnt as much as in bf16 but for the 4 % of quantization.md.
function TestRecipes.test_nvfp4_trains()
    local rows = mx.precision.run { "recipes=te_nvfp4,te_nvfp4_no_rht", "steps=60", "max_target_length=32" }
    lu.assertTrue(rows[1].loss < 0.6 * rows[1].losses[1])
    for i = 2, 3 do
        local off = rows[i].loss / rows[1].loss - 1
        lu.assertTrue(off ~= 0 and math.abs(off) < 0.04, ("%s: %g"):format(rows[i].recipe, off))
        lu.assertTrue(rows[i].counts.saturated.input > rows[i].counts.all.input / 32) -- some of each 16
        lu.assertEquals(rows[i].counts.all.weight, 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128))
    end
end

-- On a chip that multiplies both formats, products of layers take 1/2 and 1/4 of the time in bf16, logits the same.
-- Quantizing waits for memory.
function TestRecipes.test_simulated_formats_of_blocks()
    local times, seconds = {}, {}
    for i, recipe in ipairs { "", "te_mxfp8", "te_nvfp4" } do
        local c = mx.config.load({ "model_name=llama2-7b", "hardware=b200-8", "quantization=" .. recipe },
            { simulate = false, quiet = true })
        local result = mx.plan.simulate(c, c.hardware, 1)
        times[i], seconds[i] = result.times, result.step_s
    end
    local half, quarter = times[1].matrix_s - times[2].matrix_s, times[2].matrix_s - times[3].matrix_s
    lu.assertAlmostEquals(half / quarter, 2, 0.01)
    lu.assertTrue(times[2].memory_s > times[1].memory_s and times[3].memory_s > times[1].memory_s)
    lu.assertTrue(seconds[3] < seconds[2] and seconds[2] < seconds[1])
end

-- Six steps, against three, a checkpoint and three more: scales and histories come back, and the losses are the same.
function TestRecipes.test_a_resumed_run_has_its_histories()
    local losses, histories = {}, {}
    for _, case in ipairs({ { "whole", 6 }, { "half", 3 }, { "half", 6 } }) do
        local name, steps = case[1], case[2]
        local result = runs.train(runs.config_of("model_name=tiny", "dtype=bfloat16", "quantization=fp8_gpu",
            "run_name=" .. name, "steps=" .. steps, "learning_rate_schedule_steps=6"))
        local newest = mx.narrow(result.model.buffers["quantization.history"], { dim = 3, start = 1, length = 8 })
        histories[name], losses[name] = newest:totable(), {}
        for _, row in ipairs(runs.lines(runs.folder .. "/" .. name .. "/metrics.jsonl")) do
            losses[name][row.step or 0] = row.loss
        end
    end
    lu.assertEquals(#losses.whole, 6)
    lu.assertEquals(losses.half, losses.whole)
    lu.assertEquals(histories.half, histories.whole)
    lu.assertTrue(histories.whole[1][1][6] > 0 and histories.whole[1][1][7] == 0)
    -- Saved parameters are used as they were trained, or with another recipe: scales may be missing on either side.
    local path = runs.folder .. "/whole/parameters.h5"
    local model = mx.weights.model(path, { words = {} })
    lu.assertEquals(model.shape.quantization, "fp8_gpu")
    local newest = mx.narrow(model.buffers["quantization.history"], { dim = 3, start = 1, length = 8 })
    lu.assertEquals(newest:totable(), histories.whole)
    local plain = mx.weights.model(path, { words = { "quantization=" } })
    lu.assertNil(next(plain.buffers))
    mx.nn.save(plain.params, path)
    mx.nn.load(model.params, path, model.parallel, model.buffers)
    -- A checkpoint's parameters, too. A run resumes with its own recipe only.
    local saved = runs.folder .. "/whole/step_6"
    plain = mx.models.new(runs.config_of("model_name=tiny", "dtype=bfloat16"))
    runs.quietly(mx.run.load_parameters, saved, plain)
    lu.assertErrorMsgContains("step_6 was saved with another quantization (fp8_gpu): a run resumes with the same; "
        .. "load_parameters_path=", runs.train, runs.config_of("model_name=tiny", "dtype=bfloat16",
        "load_full_state_path=" .. saved))
end

-- Rounding draws the same numbers after a resume: it counts passes, which checkpoints keep.
function TestRecipes.test_a_resumed_run_draws_as_the_whole()
    local losses = {}
    for _, case in ipairs({ { "whole", 4 }, { "half", 2 }, { "half", 4 } }) do
        runs.train(runs.config_of("model_name=tiny", "dtype=bfloat16", "quantization=te_nvfp4", "run_name=" .. case[1],
            "steps=" .. case[2], "learning_rate_schedule_steps=4"))
        losses[case[1]] = {}
        for _, row in ipairs(runs.lines(runs.folder .. "/" .. case[1] .. "/metrics.jsonl")) do
            losses[case[1]][row.step or 0] = row.loss
        end
    end
    lu.assertEquals(#losses.whole, 4)
    lu.assertEquals(losses.half, losses.whole)
end

-- Each pass draws other numbers, and so does each part of a batch.
function TestRecipes.test_draws()
    local batch, model = batch_of(1), mx.models.new(config_of("te_nvfp4"))
    local function gradient(passes, part)
        model.passes, model.part, model.parts = passes, part, 2
        local _, query = step(model, batch)
        return query:totable()
    end
    local first = gradient(0, 0)
    lu.assertEquals(gradient(0, 0), first)
    lu.assertNotEquals(gradient(1, 0), first)
    lu.assertNotEquals(gradient(0, 1), first)
end

-- A step without a finite loss enters no history.
function TestRecipes.test_a_skipped_step_leaves_the_scales()
    local seen = {}
    local config = runs.config_of("model_name=tiny", "dtype=bfloat16", "quantization=fp8_gpu", "run_name=a",
        "nonfinite_step=skip", "steps=5")
    runs.train(config, function(number, model)
        seen[number] = mx.max(model.buffers["quantization.history"]):item()
        mx.fill(model.params["norm.weight"]:detach(), { value = number == 3 and 0 / 0 or 1 })
    end)
    lu.assertEquals(seen[4], seen[3])
    lu.assertTrue(seen[5] > 0 and seen[5] < math.huge)
end
