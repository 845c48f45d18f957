--- Multi-token prediction: against PyTorch, with packed documents, sizes, FLOPs, and refusals.
-- guarded

local lu = require "luaunit"
local mx = require "mx"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare, checks = dofile(here .. "compare.lua"), dofile(here .. "checks.lua")

TestMtp = {}

-- Both compute in f32 where it matters; chains of sums are some hundred terms long.
local BOUND = 1e-5

local function check_golden(...)
    local data, attributes = mx.io.h5_read(here .. "../golden/mtp.h5")
    local words = mx.io.json_decode(attributes.about).words
    for _, word in ipairs({ "dtype=float32", ... }) do
        words[#words + 1] = word
    end
    local config = mx.config.load(words)
    local model, count = mx.models.new(config), 0
    for name, t in pairs(model.params) do
        mx.copy(t, data["params." .. name])
    end
    for name, t in pairs(model.buffers) do
        mx.copy(t, data["bias." .. name:match("layer(%d+)")])
    end
    local step <close> = mx.step()
    local loss, extra = model:losses { tokens = data.tokens, targets = data.targets }
    lu.assertAlmostEquals(loss:item(), data.loss:item(), BOUND)
    lu.assertAlmostEquals(extra:item(), config.mtp_loss_scaling_factor * data.mtp_loss:item(), BOUND)
    mx.backward(loss + extra)
    for name, t in pairs(model.params) do
        lu.assertTrue(compare.distance(t:grad(), data["grads." .. name]) < BOUND, name)
        count = count + 1
    end
    return count, model
end

-- Two layers, and two modules with four weights besides those of a layer.
function TestMtp.test_losses_and_gradients()
    local count, model = check_golden()
    lu.assertEquals(count, 3 + 12 + 16 + 2 * (16 + 4))
    check_golden("remat_policy=minimal")
    lu.assertEquals(model.buffers["layer004.router.bias"]:numel(), 8)
    lu.assertNil(model.buffers["layer001.router.bias"]) -- the first layer has no experts
end

local function new_model(...)
    return mx.models.new(mx.config.load { "model_name=tiny", "dtype=float32", "mtp_num_layers=2", ... })
end

local function batch_of(text, segments, mask)
    local function ids(from)
        local list = {}
        for i = 1, #text - 1 do
            list[i] = text[from + i - 1]
        end
        return mx.tensor({ list }, "i32")
    end
    return {
        tokens = ids(1), targets = ids(2), segments = segments and mx.tensor({ segments }, "i32"),
        mask = mask and mx.tensor({ mask }, "u8"),
        positions = segments and mx.tensor({ { 0, 1, 2, 3, 4, 0, 1, 2 } }, "i32"),
    }
end

-- Documents of 5 and 3 tokens in one sequence predict 4 + 3 and 2 + 1 further targets, as each alone does.
function TestMtp.test_packed_documents()
    local model = new_model()
    local step <close> = mx.step()
    local first, second = { 7, 3, 9, 4, 1, 8 }, { 5, 2, 6, 11 }
    local _, a = model:losses(batch_of(first))
    local _, b = model:losses(batch_of(second))
    local both = batch_of({ 7, 3, 9, 4, 1, 5, 2, 6, 11 }, { 1, 1, 1, 1, 1, 2, 2, 2 })
    both.targets = mx.tensor({ { 3, 9, 4, 1, 8, 2, 6, 11 } }, "i32")
    local _, found = model:losses(both)
    lu.assertAlmostEquals(found:item(), (7 * a:item() + 3 * b:item()) / 10, 1e-5)
    both.mask = mx.tensor({ { 1, 1, 1, 1, 1, 0, 0, 0 } }, "u8")
    _, found = model:losses(both)
    lu.assertAlmostEquals(found:item(), a:item(), 1e-5)
    both.mask = mx.zeros({ 1, 8 }, "u8")
    _, found = model:losses(both)
    lu.assertEquals(found:item(), 0.0)
end

-- The passes of a step have 5 and 3 targets, and 4 + 3 and 2 + 1 further ones: the loss is the mean over all of each.
function TestMtp.test_passes_with_different_numbers_of_targets()
    local model = new_model()
    local step <close> = mx.step()
    local text = { 7, 3, 9, 4, 1, 8, 5, 2, 6 }
    local batches = {
        batch_of(text, nil, { 1, 1, 1, 1, 1, 0, 0, 0 }), batch_of(text, nil, { 1, 1, 1, 0, 0, 0, 0, 0 }),
    }
    local first, further_first = model:losses(batches[1])
    local second, further_second = model:losses(batches[2])
    local expected = (5 * first:item() + 3 * second:item()) / 8
        + (7 * further_first:item() + 3 * further_second:item()) / 10
    local at = 0
    local data = { next = function()
        at = at + 1
        return batches[at]
    end }
    lu.assertAlmostEquals(mx.train.gradients(model, data, 2), expected, 1e-5)
    local _, alone = model:losses(batches[1]) -- outside of such a step
    lu.assertAlmostEquals(alone:item(), further_first:item(), 1e-6)
end

-- Evaluation and generation do not know the modules: without them, the loss is the same.
function TestMtp.test_only_training_has_it()
    local batch = batch_of { 7, 3, 9, 4, 1, 8 }
    mx.no_grad(function()
        local step <close> = mx.step()
        local with, without = new_model(), new_model("mtp_num_layers=0")
        lu.assertEquals(with:loss(batch, true):item(), without:loss(batch, true):item())
        lu.assertEquals(with:losses(batch):item(), without:losses(batch):item())
    end)
end

-- Module 2 whose logits are all alike predicts token 0. Accepted are the targets for which the model, two tokens later,
-- predicts 0, too: some of them, as its logits of 0 are large, of either sign.
function TestMtp.test_accepted_predictions()
    local config = mx.config.load {
        "model_name=tiny", "dtype=float32", "mtp_num_layers=2", "mtp_eval_target_module=2", "max_target_length=32",
        "vocab_size=256", "dataset_type=text", "dataset_path=" .. mx.root .. "LICENSE", "eval_interval=1",
        "eval_dataset_path=" .. mx.root .. "README.md",
    }
    local model = mx.models.new(config)
    mx.fill(model.params["mtp002.final_norm.weight"], { value = 0 })
    local output = model.params["unembedding.weight"]:detach()
    mx.write_slice(output, 50 * mx.narrow(output, { dim = 2, start = 1, length = 1 }), { dim = 2, start = 1 })
    local batch = batch_of({ 7, 3, 9, 4, 1, 5, 2, 6, 11 }, { 1, 1, 1, 1, 1, 2, 2, 2 }, { 1, 1, 1, 1, 0, 1, 1, 1 })
    mx.no_grad(function()
        local step <close> = mx.step()
        assert(model:loss(batch, true))
        local run = { segments = batch.segments, positions = batch.positions }
        local best, accepted = mx.argmax(model:logits(model:hidden(batch.tokens, run)), { dim = 3 }):totable()[1], 0
        for _, later in ipairs({ 3, 4, 8 }) do -- of the same document as the token two before, and not masked
            accepted = accepted + (best[later] == 0 and 1 or 0)
        end
        lu.assertEquals(model.mtp.offered, 3)
        lu.assertAlmostEquals(model.mtp:acceptance(), 100 * accepted / 3, 1e-4)
        lu.assertNil(model.mtp:acceptance())
        mx.fill(model.params["norm.weight"], { value = 0 }) -- the model predicts 0, too
        local data = mx.data.open(config)
        local loss, targets, all = mx.evaluate.data(model, mx.data.open_evaluation(data), 2)
        lu.assertEquals(all, 100)
        lu.assertAlmostEquals(loss, math.log(256), 1e-5)
        lu.assertTrue(targets > 0)
    end)
end

-- A module of DeepSeek-V3: a layer with experts, two norms before a product of 2 emb x emb, and one after. As MaxText
-- counts, its FLOPs are those of the layer.
function TestMtp.test_sizes_and_flops()
    local shape = mx.models.shape(mx.config.load { "model_name=deepseek3-671b", "mtp_num_layers=1" })
    local plain = mx.models.shape(mx.config.load { "model_name=deepseek3-671b" })
    local E = 7168
    local attention = E * 1536 + 1536 + 1536 * 128 * 192 + E * 576 + 512 + 512 * 128 * 256 + 128 * 128 * E
    local layer = attention + 2 * E + E * 256 + 3 * E * 2048 * 257
    lu.assertEquals(mx.models.count(shape) - mx.models.count(plain), layer + 3 * E + 2 * E * E)
    local function flops(of)
        return mx.flops.step("maxtext-2025-07", of, mx.models.count(of), 1, 4096)
    end
    local products = attention - 1536 - 512 + E * 256 + 3 * E * 2048 * 9
    lu.assertEquals(flops(shape) - flops(plain), 3.0 * (4096 * 2 * products + 4096 * 4096 * 128 * (192 + 128)))
end

-- A cut model keeps its modules; a simulated step of it takes longer than one without.
function TestMtp.test_simulation()
    local words = { "model_name=tiny-moe", "per_device_batch_size=8", "max_target_length=256" }
    local plain = mx.plan.simulate(mx.config.load(words), "v5e-4", 1)
    words[#words + 1] = "mtp_num_layers=1"
    local config = mx.config.load(words)
    local cut = mx.models.cut(mx.models.shape(config), 1)
    lu.assertEquals({ cut.layers, mx.models.block(cut, 2).mlp.kind }, { 1, "moe" })
    local with = mx.plan.simulate(config, "v5e-4", 1)
    lu.assertTrue(with.step_s > 1.2 * plain.step_s)
    lu.assertTrue(with.weights > plain.weights)
end

-- A checkpoint and a folder of DeepSeek-V3 have the modules; a folder is read with them or without.
function TestMtp.test_weights()
    local folder = os.tmpname()
    os.remove(folder)
    local words = {
        "decoder_block=deepseek", "model_name=tiny", "dtype=float32", "base_num_kv_heads=4", "kv_lora_rank=10",
        "qk_nope_head_dim=8", "qk_rope_head_dim=4", "v_head_dim=6", "normalization_layer_epsilon=1e-6",
        "num_experts=4", "num_experts_per_tok=2", "shared_experts=1", "routed_score_func=sigmoid", "routed_bias=true",
        "mtp_num_layers=2",
    }
    local model = mx.models.new(mx.config.load(words))
    mx.fill(model.buffers["layer004.router.bias"], { value = 0.5 })
    lu.assertEquals(mx.weights.save(model, folder), "deepseek_v3")
    local again = mx.weights.model(folder, { words = { "mtp_num_layers=2" } })
    local plain = mx.weights.model(folder)
    for name, t in pairs(model.params) do
        lu.assertEquals(mx.max(mx.abs(t - again.params[name])):item(), 0.0, name)
        local of_module = name:find("^mtp") or name:find("^layer00[34]")
        lu.assertEquals(plain.params[name] == nil, of_module ~= nil, name)
    end
    lu.assertEquals(again.buffers["layer004.router.bias"]:totable(), { 0.5, 0.5, 0.5, 0.5 })
    local source <close> = mx.weights.open(folder)
    lu.assertEquals(source.tensors["model.layers.2.eh_proj.weight"].shape, { 64, 128 })
    lu.assertNotNil(source.tensors["model.layers.3.shared_head.norm.weight"])
    source:close()
    checks.says("has no tensor 'model.layers.4.", mx.weights.model, folder, { words = { "mtp_num_layers=3" } })
    os.execute("rm -rf '" .. folder .. "'")
end

function TestMtp.test_refusals()
    local function refused(text, ...)
        checks.assert_refused({ text }, mx.config.load, { "model_name=tiny", ... })
    end
    refused("has no effect without mtp_num_layers", "mtp_loss_scaling_factor=0.2")
    refused("quantize_mtp: has no effect without mtp_num_layers and quantization", "mtp_num_layers=1",
        "quantize_mtp=true")
    refused("mtp_eval_target_module: expected at most mtp_num_layers = 1, got 2", "mtp_num_layers=1",
        "mtp_eval_target_module=2")
    refused("mtp_eval_target_module: has no effect without eval_interval", "mtp_num_layers=1",
        "mtp_eval_target_module=1")
    refused("expected less than max_target_length = 2, got 2", "mtp_num_layers=2", "max_target_length=2")
    refused("expected 0 with trainable_position_size", "mtp_num_layers=1", "use_rope=false",
        "trainable_position_size=64")
    checks.says("features: mtp_num_layers", mx.weights.save, new_model(), "/nowhere")
end
