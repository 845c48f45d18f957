-- ranks: 2
-- Quantized products on meshes: gathered weights have the codes of one rank, and delayed scales follow from the largest
-- magnitudes of all ranks.

local mx = require "mx"
local lu = require "luaunit"
local training = require "mesh_training"

local function config_of(recipe, axis, ...)
    return mx.config.load {
        "model_name=tiny", "quantization=" .. recipe, "max_target_length=32", "dataset_type=synthetic",
        "per_device_batch_size=1", ("ici_%s_parallelism=2"):format(axis), ...,
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

local function check_as_on_one_rank(recipe, axis, ...)
    local c = config_of(recipe, axis, ...)
    local mesh, alone = mx.models.new(c, mx.train.mesh(c)), mx.models.new(mx.models.shape(c))
    for step = 1, 2 do
        local own, losses = pass(mesh, mx.rank()), { pass(alone, 0), pass(alone, 1) }
        lu.assertEquals(own, losses[mx.rank() + 1], ("%s, %s, step %d"):format(recipe, axis, step))
        mesh:after_step()
        alone:after_step()
    end
    return mesh, alone
end

function TestQuantization.test_as_on_one_rank()
    for _, recipe in ipairs { "int8", "fp8_full", "fp8_nanoo", "te_mxfp8", "te_nvfp4" } do
        for _, axis in ipairs { "fsdp", "data" } do
            local mesh, alone = check_as_on_one_rank(recipe, axis)
            for name, buffer in pairs(alone.buffers) do
                lu.assertEquals(mesh.buffers[name]:totable(), buffer:totable(), name)
            end
        end
    end
end

-- Gradients in NVFP4 draw for a token what one rank would. Each rank's turn has the gradients of both: those of the
-- other are times 0, so no sum rounds.
function TestQuantization.test_stochastic_rounding_as_on_one_rank()
    for _, axis in ipairs { "fsdp", "data" } do
        local c = config_of("te_nvfp4", axis)
        local mesh, alone = mx.models.new(c, mx.train.mesh(c)), mx.models.new(mx.models.shape(c))
        for turn = 0, 1 do
            for _, model in ipairs { mesh, alone } do
                for _, t in pairs(model.params) do
                    t:zero_grad()
                end
            end
            alone.part, alone.parts = turn, 2
            mx.scope(function()
                mx.backward(mesh:loss(batch_of(mx.rank())), mx.rank() == turn and 1 or 0)
                mx.backward(alone:loss(batch_of(turn)), 1)
            end)
            for _, name in ipairs { "layer001.query.weight", "layer002.wo.weight" } do
                local own, want = mesh.params[name]:grad(), alone.params[name]:grad()
                local part = mesh.parallel:part(name, want:size())
                for dim, size in ipairs(part.sizes or {}) do
                    want = mx.narrow(want, { dim = dim, start = part.start[dim], length = size })
                end
                own = axis == "data" and mx.all_reduce(own) or own -- which is left to the optimizer
                local same = own:eq(want):to("f32"):mean():item()
                lu.assertEquals(same, 1, ("%s, %s, turn %d"):format(axis, name, turn))
            end
        end
    end
end

-- Experts have scales in common, whichever rank has them. With one expert a token, no sum is rounded in another order.
function TestQuantization.test_experts_as_on_one_rank()
    for _, recipe in ipairs { "int8", "fp8_full", "te_fp8_currentscaling" } do
        -- A rank's tensor of rows is another one along expert.
        for _, axis in ipairs(recipe == "te_fp8_currentscaling" and { "fsdp" } or { "fsdp", "expert" }) do
            check_as_on_one_rank(recipe, axis, "model_name=tiny-moe", "num_experts_per_tok=1", "shared_experts=1",
                "load_balance_loss_weight=0")
        end
    end
end

local LATENT = {
    "decoder_block=deepseek", "base_num_kv_heads=4", "q_lora_rank=32", "kv_lora_rank=16", "qk_nope_head_dim=8",
    "qk_rope_head_dim=8", "v_head_dim=8",
}

function TestQuantization.test_fixed_ranges_as_on_one_rank()
    check_as_on_one_rank("fp8_full", "fsdp", "weight_quantization_calibration_method=fixed,-0.3,0.3",
        "act_quantization_calibration_method=fixed,3")
end

function TestQuantization.test_latent_attention_as_on_one_rank()
    check_as_on_one_rank("fp8_full", "fsdp", table.unpack(LATENT))
end

-- Weights of experts and of latent attention travel in one byte, those of routers and norms do not.
function TestQuantization.test_codes_are_gathered()
    local c = config_of("int8", "fsdp", "model_name=tiny-moe", "load_balance_loss_weight=0", table.unpack(LATENT))
    local model, gather, elements = mx.models.new(c, mx.train.mesh(c)), mx.all_gather, {}
    mx.all_gather = function(t, o)
        elements[t:dtype()] = (elements[t:dtype()] or 0) + t:numel()
        return gather(t, o)
    end
    local ok, message = pcall(pass, model, mx.rank())
    mx.all_gather = gather
    lu.assertTrue(ok, message)
    -- A layer: query_a, query_b, kv_a, kv_b, out and three products of 8 experts; a rank has half of each.
    lu.assertEquals(elements.i8, 2 * (64 * 32 + 32 * 64 + 64 * 24 + 16 * 64 + 32 * 64 + 8 * 3 * 64 * 64) // 2)
end

-- Along a tensor axis, ranks have scales of their parts: near one rank, and the same delayed scales on both. A sum of
-- two ranks may round to another bf16, 2^-9 away. With a chance of 2^-9 / 2^-4 its code is then another one, 2^-4 away:
-- a root mean square of (2^-9 * 2^-4)^0.5, six times that of bf16, whose losses here differ by 2e-4.
function TestQuantization.test_tensor_axis()
    for _, recipe in ipairs { "int8", "fp8_gpu" } do
        local c = config_of(recipe, "tensor")
        local mesh, alone = mx.models.new(c, mx.train.mesh(c)), mx.models.new(mx.models.shape(c))
        local squares, batches = 0, 8
        for i = 0, batches - 1 do
            squares = squares + (pass(mesh, i) / pass(alone, i) - 1) ^ 2
        end
        local far = (squares / batches) ^ 0.5
        lu.assertTrue(far < 1.5e-3, ("%s: off by %g"):format(recipe, far))
        mesh:after_step()
        local scale = mesh.buffers["quantization.scale"]
        if scale then
            lu.assertEquals(mx.all_reduce(scale, { op = "max" }):totable(), scale:totable())
        end
    end
end

local function rms_apart(losses, others)
    local squares = 0
    for i, loss in ipairs(losses) do
        squares = squares + (loss / others[i] - 1) ^ 2
    end
    return (squares / #losses) ^ 0.5
end

local BLOCKS = { -- sizes whose halves are whole blocks of 32
    "base_emb_dim=64", "base_mlp_dim=128", "vocab_size=320", "base_num_query_heads=8", "base_num_kv_heads=4",
    "head_dim=16",
}

-- Blocks along a split dimension have scales of a rank's part, so some codes are others, which are as far from what
-- they stand for. That changes losses by clearly less than leaving the codes out on the mesh would.
function TestQuantization.test_scales_of_blocks_along_other_axes()
    local exact = training.reference("tiny", table.unpack(BLOCKS))
    for _, recipe in ipairs { "te_mxfp8", "te_nvfp4" } do
        local words = { "quantization=" .. recipe, table.unpack(BLOCKS) }
        local alone = training.reference("tiny", table.unpack(words))
        local error_of_codes = rms_apart(alone.losses, exact.losses)
        lu.assertTrue(error_of_codes > 1e-5, recipe .. " changes nothing")
        for _, mesh in ipairs {
            "tensor=2", "tensor_sequence=2", "context=2", "context=2 context_parallel_strategy=ring",
        } do
            local far = rms_apart(training.on_mesh("tiny", mesh, words).losses, alone.losses)
            lu.assertTrue(far < 0.75 * error_of_codes, ("%s, %s: off by %g, codes by %g"):format(recipe, mesh, far,
                error_of_codes))
        end
    end
end
