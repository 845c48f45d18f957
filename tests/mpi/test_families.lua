-- ranks: 2 4
-- Gemma 2 and 3 and OLMo 3 on a mesh: steps and saved parameters are those of one rank. Four ranks of tensor are more
-- than there are heads of keys.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

local STEPS, SEQUENCES = 3, 4

local WORDS = {
    gemma2 = { "base_num_decoder_layers=1", "attn_logits_soft_cap=2", "use_post_attn_norm=true" },
    gemma3 = { "base_num_decoder_layers=6", "use_post_ffw_norm=true", "local_rope_max_timescale=50" },
    olmo3 = { "base_num_decoder_layers=4", "use_qk_norm=true" },
}

local function config_of(family, ...)
    local words = { ... }
    table.move(WORDS[family], 1, #WORDS[family], #words + 1, words)
    return mx.config.load {
        "model_name=tiny", "decoder_block=" .. family, "sliding_window_size=5", "dtype=float32", "max_target_length=16",
        "dataset_type=synthetic", "ici_fsdp_parallelism=1", table.unpack(words),
    }
end

-- The losses of some steps and the model behind them; without a mesh each rank computes all sequences.
local function train(config, mesh)
    local model, data = mx.models.new(mx.models.shape(config), mesh, config), mx.data.open(config, mesh)
    data.part, data.parts = mesh and data.part or 0, mesh and data.parts or 1
    local optimizer = mx.optim.adamw(model.params, {
        learning_rate = 1e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-3, weight_decay = 0.1, clip = 1,
        parallel = mesh and model.parallel or nil,
    })
    local losses = {}
    for i = 1, STEPS do
        local step <close> = mx.step()
        if mesh then
            losses[i] = mx.train.gradients(model, data, 1)
        else
            local loss = model:loss(data:next())
            mx.backward(loss)
            losses[i] = loss:item()
        end
        optimizer:step()
        assert(step)
    end
    return losses, model
end

TestFamilies = {}

for family in pairs(WORDS) do
    TestFamilies["test_" .. family] = function()
        local losses, alone = train(config_of(family, "per_device_batch_size=" .. SEQUENCES), nil)
        for _, axis in ipairs { "fsdp", "tensor" } do
            local config = config_of(family, "per_device_batch_size=" .. SEQUENCES // mx.ranks(),
                ("ici_%s_parallelism=%d"):format(axis, mx.ranks()))
            local found, model = train(config, mx.train.mesh(config))
            for i, loss in ipairs(found) do
                lu.assertAlmostEquals(loss, losses[i], 1e-5, axis)
            end
            local path = mx.share_text(mx.rank() == 0 and os.tmpname() or nil)
            mx.train.save(config, model, path)
            local saved = mx.weights.model(path, { mesh = false, words = { "dtype=float32" } })
            for name, t in util.sorted_pairs(alone.params) do
                local off = mx.no_grad(function() return mx.max(mx.abs(saved.params[name] - t)):item() end)
                lu.assertTrue(off < 1e-5, ("%s, %s: %s is off by %g"):format(family, axis, name, off))
            end
            mx.barrier()
            os.remove(path)
        end
    end
end
