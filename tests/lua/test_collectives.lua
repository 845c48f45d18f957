-- The bytes that formulas give each axis of a mesh, against those that the collectives of a simulated step count.

local collectives = require "mx.sim.collectives"
local lu = require "luaunit"
local mx = require "mx"

TestCollectives = {}

local SIZES = {
    "model_name=tiny", "base_emb_dim=2048", "base_num_query_heads=16", "base_num_kv_heads=8", "head_dim=128",
    "base_mlp_dim=8192", "vocab_size=32000", "max_target_length=2048", "per_device_batch_size=1",
    "ici_fsdp_parallelism=1",
}

local function config(...)
    return mx.config.load(table.move({ ... }, 1, select("#", ...), #SIZES + 1, table.move(SIZES, 1, #SIZES, 1, {})),
        { simulate = false })
end

-- Adds the bytes of a collective over "fsdp+context" to its axes. Its data cross the outer axis in parts that are
-- scattered along the inner one, so of V bytes a rank sends V (n - 1) / n over the inner axis, and 1 / n of the rest.
local function add(bytes, over, sent, sizes)
    local ranks, inside, names = 1, 1, {}
    for axis in over:gmatch("[%l_.]+") do
        table.insert(names, 1, axis)
        ranks = ranks * sizes[axis]
    end
    for _, axis in ipairs(names) do
        local n, whole = sizes[axis], axis:match("^[%l_]+") -- "tensor" for "tensor.inner"
        bytes[whole] = (bytes[whole] or 0) + sent * ranks / (ranks - 1) * (n - 1) / n / inside
        inside = inside * n
    end
end

-- Simulates two steps, and returns the bytes that a rank sends in the second one by axis.
local function simulated(cfg)
    mx.sim.start(cfg.hardware, cfg.num_slices, { memory_bytes = 2 ^ 60 })
    local mesh, bytes = mx.train.mesh(cfg), {}
    local ok, reason = pcall(function()
        local model = mx.models.new(mx.models.shape(cfg), mesh, cfg)
        local optimizer, sizes = mx.optim.new(cfg, model.params, model.parallel), { mx.data.sequences(cfg, mesh),
            cfg.max_target_length }
        local data = {
            next = function()
                return { tokens = mx.zeros(sizes, "i32"), targets = mx.zeros(sizes, "i32") }
            end,
        }
        for step = 1, 2 do
            mx.trace_start()
            mx.train.gradients(model, data, cfg.gradient_accumulation_steps)
            optimizer:step()
            for _, event in ipairs(step == 2 and mx.trace_events() or {}) do
                if event.kind == "job" and event.over ~= "all ranks" then
                    add(bytes, event.over, event.bytes, mesh.layout.sizes)
                end
            end
            mx.trace_stop()
        end
    end)
    mx.trace_stop()
    mx.sim.stop()
    lu.assertTrue(ok, reason)
    return bytes
end

-- Compares each axis; what the formulas leave out is below half a percent.
local function compare(...)
    local cfg = config(...)
    local counted, formulas, name = simulated(cfg), {}, table.concat({ ... }, " ")
    local plan = mx.mesh.plan(cfg, mx.sim.pod(cfg.hardware, 1).network.slice_chips * cfg.num_slices)
    for _, row in ipairs(collectives.of(cfg, mx.models.shape(cfg), plan, plan.layout.ici, plan.layout.dcn)) do
        formulas[row.axis] = (formulas[row.axis] or 0) + row.bytes
    end
    local compared = 0
    for axis, bytes in pairs(counted) do
        lu.assertAlmostEquals((formulas[axis] or 0) / bytes, 1, 0.005, name .. ": " .. axis)
        compared = compared + 1
    end
    for axis in pairs(formulas) do
        lu.assertNotNil(counted[axis], name .. ": " .. axis)
    end
    lu.assertTrue(compared > 0)
end

local TENSOR, CONTEXT = "ici_tensor_parallelism=", "ici_context_parallelism="
local FSDP, DATA = "ici_fsdp_parallelism=", "ici_data_parallelism="

function TestCollectives.test_meshes_and_policies()
    local meshes = {
        { "hardware=v5e-8", FSDP .. 4, TENSOR .. 2 },
        { "hardware=v5e-8", DATA .. 2, FSDP .. 2, CONTEXT .. 2 },
        { "hardware=v5e-4", TENSOR .. 4 },
    }
    for _, mesh in ipairs(meshes) do
        for _, policy in ipairs({ "none", "full", "minimal", "save_out_proj" }) do
            compare("remat_policy=" .. policy, table.unpack(mesh))
        end
    end
end

-- The table of tokens and logits is gathered for each tile; and once, as without tiles.
function TestCollectives.test_a_loss_in_tiles()
    for _, words in ipairs({ "num_vocab_tiling=4", "logits_via_embedding=true", "vocab_tiling_ag_once=true" }) do
        compare("hardware=v5e-8", FSDP .. 4, TENSOR .. 2, "num_vocab_tiling=4", words)
    end
end

function TestCollectives.test_a_ring()
    for _, policy in ipairs({ "none", "full" }) do
        compare("hardware=v5e-4", CONTEXT .. 4, "context_parallel_strategy=ring", "remat_policy=" .. policy)
    end
    -- Ranks have pieces of 256 tokens: all blocks travel, or those of two ranks; without load balance, those of one.
    for _, words in ipairs({ { 600, "true" }, { 200, "true" }, { 200, "false" } }) do
        compare("hardware=v5e-4", CONTEXT .. 4, "context_parallel_strategy=ring", "attention_type=local_sliding",
            "sliding_window_size=" .. words[1], "context_parallel_load_balance=" .. words[2])
    end
    for _, tokens in ipairs({ 128, 200 }) do -- chunks inside of pieces, and some that reach into those before
        compare("hardware=v5e-4", CONTEXT .. 4, "context_parallel_strategy=ring", "attention_type=chunk",
            "chunk_attn_window_size=" .. tokens)
    end
end

-- Each of the 4 ranks has 4 of 16 heads of queries, and 2 of 8 of keys; or a copy of 1 of 2.
function TestCollectives.test_heads_that_are_exchanged()
    for _, policy in ipairs({ "none", "full", "minimal_with_context" }) do
        for _, heads in ipairs({ 8, 2 }) do
            compare("hardware=v5e-4", CONTEXT .. 4, "context_parallel_strategy=ulysses", "remat_policy=" .. policy,
                "base_num_kv_heads=" .. heads)
        end
    end
    compare("hardware=v5e-8", CONTEXT .. 2, TENSOR .. 4, "context_parallel_strategy=ulysses")
end

-- Of the 8 ranks of a sequence, 4 exchange parts of it for heads, in two rings.
function TestCollectives.test_rings_of_ranks_that_exchange_heads()
    for _, policy in ipairs({ "none", "full", "minimal_with_context" }) do
        for _, heads in ipairs({ 8, 2 }) do
            compare("hardware=v5e-8", CONTEXT .. 2, "ici_context_usp_ulysses_parallelism=4",
                "context_parallel_strategy=usp", "remat_policy=" .. policy, "base_num_kv_heads=" .. heads)
        end
    end
    compare("hardware=v5e-8", CONTEXT .. 4, "ici_context_usp_ulysses_parallelism=2", "context_parallel_strategy=usp",
        "attention_type=local_sliding", "sliding_window_size=200")
end

function TestCollectives.test_other_axes()
    compare("hardware=v5e-8", TENSOR .. 2, "ici_tensor_sequence_parallelism=4")
    compare("hardware=v5e-8", TENSOR .. 2, "ici_tensor_sequence_parallelism=2", "remat_policy=none", FSDP .. 2)
    compare("hardware=v5e-8", FSDP .. 2, "ici_fsdp_transpose_parallelism=2", TENSOR .. 2)
    compare("hardware=v5e-4", "ici_expert_parallelism=4")
    compare("hardware=v5e-4", "num_slices=2", "dcn_data_parallelism=2", FSDP .. 4)
end

function TestCollectives.test_experts()
    local function compare_experts(...)
        compare("num_experts=8", "num_experts_per_tok=2", "base_moe_mlp_dim=4096", ...)
    end
    for _, policy in ipairs({ "none", "full", "minimal" }) do
        local word = "remat_policy=" .. policy
        for _, ring in ipairs({ "use_ring_of_experts=false", "use_ring_of_experts=true" }) do
            compare_experts("hardware=v5e-4", "ici_expert_parallelism=4", word, ring)
            compare_experts("hardware=v5e-8", "ici_expert_parallelism=2", FSDP .. 4, word, ring,
                "use_post_ffw_norm=true")
        end
    end
    compare_experts("hardware=v5e-8", "ici_expert_parallelism=2", TENSOR .. 4, "shared_experts=1")
    compare_experts("hardware=v5e-8", "ici_expert_parallelism=2", CONTEXT .. 2, DATA .. 2)
    compare_experts("hardware=v5e-4", FSDP .. 4)
    compare_experts("hardware=v5e-4", "ici_expert_parallelism=4", "logical_axis_rules=[[activation_exp,[]]]")
end

-- Blocks whose parts share their collectives, and blocks whose parts have norms behind them.
function TestCollectives.test_blocks()
    for _, policy in ipairs({ "none", "full", "minimal" }) do
        local word = "remat_policy=" .. policy
        compare("hardware=v5e-4", TENSOR .. 4, word, "parallel_block=true")
        compare("hardware=v5e-4", TENSOR .. 4, word, "parallel_block=true", "dropout_rate=0.1")
        compare("hardware=v5e-4", TENSOR .. 4, word, "dropout_rate=0.1")
        compare("hardware=v5e-4", TENSOR .. 4, word, "use_post_attn_norm=true", "use_post_ffw_norm=true")
    end
end

function TestCollectives.test_a_residual_stream_that_is_whole()
    for _, policy in ipairs({ "none", "full" }) do
        compare("hardware=v5e-4", TENSOR .. 4, "logical_axis_rules=[[activation_embed,[]],[norm,[]]]",
            "remat_policy=" .. policy)
    end
end

function TestCollectives.test_parameters()
    compare("hardware=v5e-4", FSDP .. 4, "logits_via_embedding=true")
    compare("hardware=v5e-4", DATA .. 4, "grad_dtype=bfloat16")
    compare("hardware=v5e-4", DATA .. 4, "shard_optimizer_over_data=true", "weight_dtype=bfloat16")
    compare("hardware=v5e-4", FSDP .. 4, "gradient_accumulation_steps=3")
    for _, tied in ipairs({ "false", "true" }) do
        compare("hardware=v5e-4", FSDP .. 4, "gradient_accumulation_steps=3", "logits_via_embedding=" .. tied,
            "gradient_accumulation_fsdp_ag_once=true")
    end
    compare("hardware=v5e-8", FSDP .. 4, TENSOR .. 2, "dtype=float32")
    compare("hardware=v5e-4", FSDP .. 4, "logical_axis_rules=[[embed,[]],[embed_attn,[]],[embed_vocab,[]]]")
    compare("hardware=v5e-16", FSDP .. 1, TENSOR .. 16) -- two ranks use a head of keys
end
