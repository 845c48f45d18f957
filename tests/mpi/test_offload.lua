-- ranks: 2 3
-- nodes: 2
-- Offloading on a mesh: collectives read values that are on their way back, and no bit changes.

local lu = require "luaunit"
local mx = require "mx"

-- Losses and gradient norms of three steps.
local function train(axis, model, ...)
    local config = mx.config.load {
        "model_name=" .. model, "base_num_decoder_layers=3", "base_num_query_heads=6",
        "base_num_kv_heads=6", "base_emb_dim=96", "base_mlp_dim=192", "vocab_size=288", "max_target_length=48",
        "per_device_batch_size=2", "ici_fsdp_parallelism=1", ("ici_%s_parallelism=%d"):format(axis, mx.ranks()), ...
    }
    local net = mx.models.new(config, mx.train.mesh(config))
    local data = mx.data.open(config, net.parallel.mesh)
    local optimizer = mx.optim.new(config, net.params, net.parallel)
    local found, files = {}, {}
    for i = 1, 3 do
        found[2 * i - 1] = mx.train.gradients(net, data, 1)
        found[2 * i] = optimizer:step()
        files[i] = mx.offload_stats().file_bytes
    end
    lu.assertEquals(mx.offload_stats().away_bytes, 0)
    lu.assertEquals(files[3], files[1])
    for _, t in pairs(net.params) do
        t:release()
    end
    return found
end

TestOffload = {}

for _, model in ipairs { "tiny", "tiny-gpt2", "tiny-parallel" } do
    for _, axis in ipairs { "fsdp", "context", "tensor", "tensor_sequence" } do
        TestOffload[("test_%s_%s"):format(model, axis)] = function()
            local reference = train(axis, model, "remat_policy=none")
            local all = { "remat_policy=custom" }
            for _, name in ipairs(mx.models.tensors(mx.models.shape(mx.config.load { "model_name=" .. model }))) do
                all[#all + 1] = name .. "=offload"
            end
            lu.assertEquals(train(axis, model, table.unpack(all)), reference)
            if axis == "context" then
                lu.assertEquals(train(axis, model, "context_parallel_strategy=ring", table.unpack(all)),
                    train(axis, model, "context_parallel_strategy=ring", "remat_policy=none"))
            end
            lu.assertEquals(train(axis, model, "remat_policy=qkv_proj_offloaded", "prefetch_layers=2"), reference)
            lu.assertEquals(train(axis, model, "remat_policy=minimal_offloaded", "async_all_gather=false"), reference)
        end
    end
end
