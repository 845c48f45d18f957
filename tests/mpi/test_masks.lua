-- ranks: 2
-- Frozen parameters on a mesh: they have no gradient and stay, and the others take the step that they take without a
-- mask.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

local function step_of(mask, ...)
    local config = mx.config.load({
        "model_name=tiny", "dtype=float32", "dataset_type=synthetic", "per_device_batch_size=1", "max_target_length=32",
        "gradient_clipping_threshold=0.0", "learning_rate=0.01", "warmup_steps_fraction=0.0", "steps=9",
        "gradient_accumulation_steps=2", "trainable_parameters_mask=" .. mask, ...,
    })
    local on = mx.train.mesh(config)
    local model, data = mx.models.new(config, on), mx.data.open(config, on)
    local optimizer, found = mx.optim.new(config, model.params, model.parallel), { before = {}, after = {} }
    for name, t in util.sorted_pairs(model.params) do
        found.before[name] = t:totable()
    end
    mx.train.gradients(model, data, config.gradient_accumulation_steps)
    found.frozen = {}
    for name, t in util.sorted_pairs(model.params) do
        found.frozen[name] = t:grad() == nil
    end
    optimizer:step()
    for name, t in util.sorted_pairs(model.params) do
        found.after[name] = t:totable()
    end
    return found
end

TestMasks = {}

for name, words in pairs {
    fsdp = { "ici_fsdp_parallelism=2" },
    fsdp_once = { "ici_fsdp_parallelism=2", "gradient_accumulation_fsdp_ag_once=true" },
    data = { "ici_data_parallelism=2" },
    data_shared = { "ici_data_parallelism=2", "shard_optimizer_over_data=true" },
    tensor = { "ici_tensor_parallelism=2" },
} do
    TestMasks["test_on_" .. name] = function()
        local all, some = step_of("[]", table.unpack(words)), step_of("[wi_, query, ^norm]", table.unpack(words))
        for parameter, after in util.sorted_pairs(some.after) do
            local trained = parameter:find("wi_") or parameter:find("query") or parameter == "norm.weight"
            lu.assertEquals(some.frozen[parameter], not trained, parameter)
            lu.assertEquals(after, (trained and all.after or some.before)[parameter], parameter)
        end
    end
end
