-- Which part of a model each rank of a mesh stores: the values it draws, and the memory that this takes.

local compare = require "compare"
local lu = require "luaunit"
local mx = require "mx"

TestParts = {}

-- The mesh of each rank, whose axes are words such as "ici_fsdp_parallelism=2".
local function meshes(model, ranks, ...)
    local config = mx.config.load({ "model_name=" .. model, "max_target_length=64", "per_device_batch_size=4", ... })
    local list = {}
    for rank = 0, ranks - 1 do
        list[rank + 1] = mx.mesh.plan(config, ranks, rank)
    end
    return list, config
end

-- Every part of every parameter is what one would cut out of the whole, bit for bit, and the parts cover it.
function TestParts.test_parts_are_cut_from_the_whole()
    for _, case in ipairs({
        { "tiny", 2, "ici_fsdp_parallelism=2" },
        { "tiny", 4, "ici_tensor_parallelism=2", "ici_fsdp_parallelism=2" },
        {
            "tiny-gpt2", 8, "ici_fsdp_parallelism=2", "ici_fsdp_transpose_parallelism=2",
            "ici_tensor_sequence_parallelism=2",
        },
        { "tiny-parallel", 8, "ici_data_parallelism=2", "ici_fsdp_parallelism=4", "weight_dtype=bfloat16" },
        { "tiny", 4, "ici_context_parallelism=2", "ici_expert_parallelism=2" },
    }) do
        local step <close> = mx.step()
        local list, config = meshes(table.unpack(case))
        local whole = mx.models.new(config).params
        local seen, held = {}, {} -- held: elements, each counted once
        for _, mesh in ipairs(list) do
            local model = mx.models.new(mx.models.shape(config), mesh, config)
            for name, t in mx.util.sorted_pairs(model.params) do
                local part, expected = model.parallel:part(name), whole[name]:detach()
                lu.assertEquals(part.of, whole[name]:size())
                lu.assertEquals(part.sizes, t:size())
                local place = model.parallel:place(name, t)
                held[name] = (held[name] or 0) + place.count / place.replicas
                for d, start in ipairs(part.start) do
                    expected = mx.narrow(expected, { dim = d, start = start, length = part.sizes[d] })
                end
                lu.assertEquals(compare.flat(t), compare.flat(expected), name .. " on " .. table.concat(case, " "))
                seen[name] = seen[name] or {}
                seen[name][table.concat(part.start, ",")] = t:numel()
            end
        end
        for name, t in mx.util.sorted_pairs(whole) do
            local covered = 0
            for _, count in pairs(seen[name]) do
                covered = covered + count
            end
            lu.assertEquals({ covered, held[name] }, { t:numel(), t:numel() }, name)
        end
        assert(step)
    end
end

-- Making a model takes the memory of its parts, and at no time that of a whole parameter beside them. Blocks are
-- rounded up.
function TestParts.test_memory_of_making_a_model()
    local list, config = meshes("tiny", 8, "ici_fsdp_parallelism=8")
    mx.scope(function()
        mx.reset_peak()
        local before = mx.memory().in_use
        local model = mx.models.new(mx.models.shape(config), list[3], config)
        local bytes = 0
        for _, t in pairs(model.params) do
            bytes = bytes + 4 * t:numel()
            t:release()
        end
        local most = mx.memory().peak - before
        lu.assertTrue(most < 1.1 * bytes, ("%d bytes for parameters of %d"):format(most, bytes))
    end)
end

-- The same on a simulated pod, where a whole parameter of this model is larger than all parts of a chip.
function TestParts.test_memory_of_making_a_model_on_a_simulated_pod()
    local config = mx.config.load({ "model_name=128b", "hardware=v5e-256", "ici_fsdp_parallelism=256" })
    local mesh = mx.train.mesh(config)
    mx.reset_peak()
    local before = mx.memory().in_use
    local model = mx.models.new(mx.models.shape(config), mesh, config)
    local most, bytes = mx.memory().peak - before, 4 * mx.nn.count(model.params)
    mx.sim.stop()
    lu.assertTrue(most < 1.01 * bytes, ("%d bytes for parameters of %d"):format(most, bytes))
end
