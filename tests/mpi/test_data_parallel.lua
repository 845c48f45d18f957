-- ranks: 1 2 4
-- Data parallelism: ranks that share the sequences of a step take the same steps as one rank with all of them.

local lu = require "luaunit"
local mx = require "mx"

TestDataParallel = {}

local STEPS, SEQUENCES = 3, 8

local function start(sequences)
    local config = mx.config.load({
        "model_name=tiny", "dtype=float32", "dataset_type=text", "dataset_path=" .. mx.root .. "configs/base.yml",
        "steps=" .. STEPS, "warmup_steps_fraction=0", "per_device_batch_size=" .. sequences,
        "adam_eps=1.0e-3", -- else a gradient near 0 that differs by a rounding error moves a parameter by much more
    })
    local model = mx.models.new(config)
    return config, model, mx.optim.new(config, model.params)
end

-- All sequences on this rank alone.
local function train_alone()
    local config, model, optimizer = start(SEQUENCES)
    local data, losses = mx.data.open(config), {}
    data.part, data.parts = 0, 1
    for i = 1, STEPS do
        local step <close> = mx.step()
        local loss = model:loss(data:next())
        mx.backward(loss)
        losses[i] = loss:item()
        optimizer:step()
    end
    return losses, model
end

function TestDataParallel.test_ranks_together_take_the_same_steps_as_one()
    local expected, alone = train_alone()
    local config, model, optimizer = start(SEQUENCES // mx.ranks())
    local data = mx.data.open(config)
    for i = 1, STEPS do
        lu.assertAlmostEquals(mx.train.gradients(model, data, 1), expected[i], 1e-5)
        mx.train.average_gradients(model.params) -- without a mesh the loop adds them
        optimizer:step()
    end
    for name, t in pairs(model.params) do
        local off = mx.max(mx.abs(t - alone.params[name])):item()
        lu.assertTrue(off < 1e-4, ("%s is off by %g"):format(name, off))
    end
end

function TestDataParallel.test_share_gives_all_ranks_the_parameters_of_rank_0()
    local _, model = start(SEQUENCES)
    mx.fill(model.params["layer001.query.weight"], { value = mx.rank() })
    mx.fill(model.params["norm.weight"], { value = mx.rank() })
    mx.train.share(model.params)
    lu.assertEquals(mx.max(mx.abs(model.params["layer001.query.weight"])):item(), 0)
    lu.assertEquals(mx.max(mx.abs(model.params["norm.weight"])):item(), 0)
end

function TestDataParallel.test_average()
    lu.assertAlmostEquals(mx.train.average(mx.rank() + 1), (mx.ranks() + 1) / 2, 1e-6)
end
