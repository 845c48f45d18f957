-- Data: batches, and going on where a run stopped.

local lu = require "luaunit"
local mx = require "mx"

local TEXT = mx.root .. "configs/base.yml" -- some prose that is always there

local function config_of(...)
    return mx.config.load({ "model_name=tiny", "per_device_batch_size=3", ... })
end

TestState = {}

local KINDS = {
    { "dataset_type=synthetic" },
    { "dataset_type=random" },
    { "dataset_type=text", "dataset_path=" .. TEXT },
    { "dataset_type=random", "reuse_example_batch=1" },
}

-- A state goes through JSON, as in a checkpoint.
local function stored(state)
    return mx.io.json_decode(mx.io.json_encode(state))
end

function TestState.test_a_restored_state_goes_on_at_every_position()
    for _, words in ipairs(KINDS) do
        local config = config_of(table.unpack(words))
        local states, batches, data = {}, {}, mx.data.open(config)
        for i = 1, 5 do
            states[i], batches[i] = stored(data:state()), data:next()
        end
        for i = 5, 1, -1 do
            local again = mx.data.open(config)
            again:next()
            again:restore(states[i])
            for j = i, 5 do
                local batch = again:next()
                lu.assertEquals(batch.tokens:totable(), batches[j].tokens:totable())
                lu.assertEquals(batch.targets:totable(), batches[j].targets:totable())
                lu.assertEquals(batch.ids, batches[j].ids)
            end
        end
    end
end

function TestState.test_a_state_of_other_data_is_refused()
    local state = mx.data.open(config_of("dataset_type=random")):state()
    local function refused(expected, ...)
        local data = mx.data.open(config_of(...))
        local restored, message = pcall(data.restore, data, state)
        lu.assertFalse(restored)
        lu.assertStrContains(tostring(message), expected)
    end
    refused("its data_shuffle_seed is 0, that of this run 1", "dataset_type=random", "data_shuffle_seed=1")
    refused("its dataset_type is random, that of this run synthetic", "dataset_type=synthetic")
    refused("its dataset_type is random, that of this run text", "dataset_type=text", "dataset_path=" .. TEXT)
    state.samples = -1
    refused("samples = -1", "dataset_type=random")
    state.samples, state.format = 0, 99
    refused("its format is 99", "dataset_type=random")
end

function TestState.test_the_last_batch_is_described()
    local data = mx.data.open(config_of("dataset_type=random"))
    lu.assertEquals(data:describe(), "no batch yet")
    data:next()
    data:next()
    lu.assertEquals(data:describe(), "samples 3 to 5 of random")
    lu.assertTrue(data:waited() >= 0)
    lu.assertEquals(data:waited(), 0)
end
