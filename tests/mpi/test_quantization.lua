-- ranks: 2
-- Quantized products on meshes: gathered weights have the codes of one rank, and delayed scales follow from the largest
-- magnitudes of all ranks.

local mx = require "mx"
local lu = require "luaunit"

local function config_of(recipe, axis)
    return mx.config.load {
        "model_name=tiny", "quantization=" .. recipe, "max_target_length=32", "dataset_type=synthetic",
        "per_device_batch_size=1", ("ici_%s_parallelism=2"):format(axis),
    }
end

-- The batch of one sequence that rank `rank` has.
local function batch_of(rank)
    local function ids(seed)
        return mx.randint { shape = { 1, 32 }, low = 0, high = 250, seed = seed }
    end
    return { tokens = ids(2 * rank), targets = ids(2 * rank + 1) }
end

local function pass(model, rank)
    return mx.scope(function()
        local loss = model:loss(batch_of(rank))
        mx.backward(loss, 0.5)
        return loss:item()
    end)
end

TestQuantization = {}

function TestQuantization.test_as_on_one_rank()
    for _, recipe in ipairs { "int8", "fp8_full", "fp8_gpu" } do
        for _, axis in ipairs { "fsdp", "data" } do
            local c = config_of(recipe, axis)
            local mesh, alone = mx.models.new(c, mx.train.mesh(c)), mx.models.new(mx.models.shape(c))
            for step = 1, 2 do
                local own, losses = pass(mesh, mx.rank()), { pass(alone, 0), pass(alone, 1) }
                lu.assertEquals(own, losses[mx.rank() + 1], ("%s, %s, step %d"):format(recipe, axis, step))
                mesh:after_step()
                alone:after_step()
            end
            for name, buffer in pairs(alone.buffers) do
                lu.assertEquals(mesh.buffers[name]:totable(), buffer:totable(), name)
            end
        end
    end
end

-- Along a tensor axis, ranks have scales of their parts: near one rank, and the same delayed scales on both.
function TestQuantization.test_tensor_axis()
    for _, recipe in ipairs { "int8", "fp8_gpu" } do
        local c = config_of(recipe, "tensor")
        local mesh, alone = mx.models.new(c, mx.train.mesh(c)), mx.models.new(mx.models.shape(c))
        local far = math.abs(pass(mesh, 0) / pass(alone, 0) - 1)
        lu.assertTrue(far < 1e-3, ("%s: off by %g"):format(recipe, far))
        mesh:after_step()
        local scale = mesh.buffers["quantization.scale"]
        if scale then
            lu.assertEquals(mx.all_reduce(scale, { op = "max" }):totable(), scale:totable())
        end
    end
end
