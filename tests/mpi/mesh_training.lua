--- What the suites about training on meshes share: models whose sizes all axes divide or none does, and a few steps of
--- them on a mesh, or on one rank that has all the sequences.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

local RANKS, STEPS, SEQUENCES = mx.ranks(), 5, 24

local training = { STEPS = STEPS, SEQUENCES = SEQUENCES }

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

-- "fsdp=2 tensor=2" as words for a config; a whole key stays as it is. The axes that are not named have size 1.
function training.mesh_words(text)
    local words = { "ici_fsdp_parallelism=1" }
    for key, value in text:gmatch("([%w_]+)=([%w_]+)") do
        local word = ("%s=%s"):format(util.contains(mx.mesh.AXES, key) and mx.mesh.key("ici", key) or key, value)
        words[key == "fsdp" and 1 or #words + 1] = word
    end
    return words
end

-- The words after the model's own are given one by one or in lists; the last one of a key holds.
function training.config_of(model, ...)
    local words = { "model_name=" .. (model:find("^tiny") and model or "tiny") }
    for _, more in ipairs({ SIZES, HEADS[model], ... }) do
        local list = type(more) == "table" and more or { more }
        table.move(list, 1, #list, #words + 1, words)
    end
    return mx.config.load(words)
end

-- Each parameter put together on every rank. Collective.
function training.whole_parameters(model)
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
    run.params = training.whole_parameters(model)
    return run
end

local references = {}

-- What one rank does with these words; worked out once.
function training.reference(model, ...)
    local key = table.concat({ model, ... }, " ")
    if not references[key] then
        references[key] = train(training.config_of(model, "per_device_batch_size=" .. SEQUENCES, ...), nil)
    end
    return references[key]
end

-- The same on a mesh, which shares out those sequences.
function training.on_mesh(model, mesh, words, steps)
    local config = training.config_of(model, "per_device_batch_size=" .. SEQUENCES // RANKS,
        training.mesh_words(mesh), words or {})
    return train(config, mx.train.mesh(config), steps)
end

local function largest(t)
    return mx.max(mx.abs(t)):item()
end

function training.largest_difference(a, b)
    return mx.scope(function()
        return largest(a - b)
    end)
end

-- Elements of a parameter are measured against its largest one.
function training.assert_close(run, expected, bound, what)
    for i = 1, #expected.losses do
        lu.assertAlmostEquals(run.losses[i] / expected.losses[i], 1, bound, ("%s: loss of step %d"):format(what, i))
        lu.assertAlmostEquals(run.norms[i] / expected.norms[i], 1, bound, ("%s: norm of step %d"):format(what, i))
    end
    for name, t in pairs(expected.params) do
        lu.assertEquals(run.params[name]:size(), t:size(), name)
        local scale, off = math.max(largest(t), 1e-3), training.largest_difference(run.params[name], t)
        lu.assertTrue(off / scale <= bound, ("%s: %s is off by %g of %g"):format(what, name, off, scale))
    end
end

function training.assert_same_bits(params, expected, what)
    for name, t in pairs(expected) do
        lu.assertEquals(training.largest_difference(params[name], t), 0, what .. ": " .. name)
    end
end

-- AdamW divides by the root of the second moment: where a gradient is 0 but for rounding (a key's bias, which softmax
-- does not see), the parameter moves by up to the learning rate in a random direction, unless eps lies far above such
-- errors. At 1e-3, about the size of the gradients, it also leaves a gradient's factor to be seen: without it AdamW
-- takes the same step from a gradient that is twice as large.
training.EXACT = { "dtype=float32", "adam_eps=1.0e-3" }

return training
