-- The decoder: parameter counts without allocating, and what each block computes.

local lu = require "luaunit"
local mx = require "mx"

TestModels = {}

local function shape_of(model, ...)
    return mx.models.shape(mx.config.load({ "model_name=" .. model, ... }))
end

function TestModels.test_published_parameter_counts()
    local counts = {
        ["16b"] = 16274101248, ["32b"] = 32548169728, ["64b"] = 64760784896, ["128b"] = 129185359872,
        ["llama2-7b"] = 6738415616, ["llama3-8b"] = 8030261248, ["gpt2-124m"] = 124439808,
    }
    for model, count in pairs(counts) do
        lu.assertEquals(mx.models.count(shape_of(model)), count)
    end
end

function TestModels.test_global_parameter_scale()
    -- layers, emb, heads, mlp of the published models.
    local sizes = {
        ["16b"] = { 32, 5120, 32, 32768 }, ["32b"] = { 32, 10240, 32, 32768 }, ["64b"] = { 64, 10240, 32, 32768 },
        ["128b"] = { 64, 10240, 64, 65536 },
    }
    for model, expected in pairs(sizes) do
        local s = shape_of(model)
        lu.assertEquals({ s.layers, s.emb, s.heads, s.mlp }, expected)
    end
    lu.assertEquals(mx.models.count(shape_of("16b", "global_parameter_scale=1")), 1090566656)
end

function TestModels.test_names_are_unique_and_in_order()
    for _, model in ipairs({ "tiny", "tiny-gpt2", "tiny-parallel" }) do
        local names = {}
        for i, p in ipairs(mx.models.parameters(shape_of(model))) do
            lu.assertNil(names[p.name])
            names[p.name] = i
        end
        lu.assertNotNil(names["layer001.query.weight"])
    end
end
