-- Ring attention on a simulated pod, whose clock and memory are exact: what the split of permutes hides, and that
-- memory does not grow with the ranks. What it computes is tested in tests/mpi/test_ring.lua.

local lu = require "luaunit"
local mx = require "mx"

local S, H, D = 8192, 8, 128 -- of each rank
local TENSOR = 2 * S * H * D -- bytes of q, k, v or out

---@class Pass
---@field seconds number
---@field exposed number of them, waited for permutes
---@field peak integer bytes above q, k and v

--- A pass of attention on so many chips of v5e: forward, and backward if asked for.
---@return Pass
local function pass(chips, permute_bytes, backward, attend)
    mx.sim.start("v5e-" .. chips)
    mx.mesh_define { { name = "context", ici = chips } }
    mx.comm_options { permute_decomposer_bytes = permute_bytes }
    local leaves = {}
    for i = 1, 3 do
        leaves[i] = mx.zeros({ 1, S, H, D }, "bf16")
        leaves[i] = backward and leaves[i]:requires_grad() or leaves[i]
    end
    collectgarbage()
    mx.reset_peak()
    mx.comm_stats(true)
    local before, start = mx.memory().in_use, mx.now()
    do
        local step <close> = mx.step()
        local out = (attend or mx.ring_attention)(leaves[1], leaves[2], leaves[3], { axis = "context" })
        if backward then
            mx.backward(out:to("f32"):sum())
        end
    end
    local result = {
        seconds = mx.now() - start, exposed = mx.comm_stats(true).exposed_s, peak = mx.memory().peak - before,
    }
    mx.comm_options { permute_decomposer_bytes = 0 } -- none is split
    mx.sim.stop()
    return result
end

TestRingSimulated = {}

-- On a chip of 197 TFLOP/s attention to a block takes longer than its hop, so all of the hop is hidden.
function TestRingSimulated.test_split_permutes_are_hidden()
    for _, backward in ipairs({ false, true }) do
        local split, blocking = pass(16, TENSOR, backward), pass(16, TENSOR + 1, backward)
        lu.assertTrue(blocking.exposed > 1e-3, blocking.exposed)
        lu.assertTrue(split.exposed < blocking.exposed / 2, ("%g of %g s"):format(split.exposed, blocking.exposed))
        lu.assertTrue(split.seconds < blocking.seconds) -- although their copies take bandwidth from the computation
    end
end

local function gathered(q, k, v, options)
    return mx.attention(q, mx.all_gather(k, { axis = "context", dim = 2 }),
        mx.all_gather(v, { axis = "context", dim = 2 }), options.none)
end

function TestRingSimulated.test_memory_does_not_grow_with_the_ranks()
    for _, backward in ipairs({ false, true }) do
        local four, sixteen = pass(4, 1, backward).peak, pass(16, 1, backward).peak
        lu.assertEquals(sixteen, four)
        lu.assertTrue(pass(16, 1, backward, gathered).peak > 2 * 16 * TENSOR) -- k and v of all
    end
    -- Two blocks, out and what a block gives, sums in f32, and a log-sum-exp each.
    local most = (2 * 2 + 1 + 1 + 2) * TENSOR + 4 * 4 * S * H
    lu.assertTrue(pass(16, 1, false).peak <= most)
end

-- Of four chips, the last has the most work, and all wait for it; with load balance each has a quarter of the pairs.
function TestRingSimulated.test_the_busiest_chip_gives_the_time()
    local function pairs_of(strategy, balance, window)
        local config = mx.config.load({
            "model_name=tiny", "hardware=v5e-4", "ici_fsdp_parallelism=1", "ici_context_parallelism=4",
            "context_parallel_strategy=" .. strategy, "context_parallel_load_balance=" .. balance,
            "remat_policy=none", "base_num_decoder_layers=1", "base_num_query_heads=4", "base_num_kv_heads=4",
            "head_dim=8", "max_target_length=1024", "per_device_batch_size=0.25", table.unpack(window or {}),
        }, { simulate = false })
        local step, flops = mx.plan.simulate(config, config.hardware, 1, { profile = true }), 0
        for _, row in ipairs(step.operations) do
            flops = flops + (row.op == "attention" and row.flops or 0)
        end
        return flops / (2 * 2 * 8 * 4)
    end
    for _, strategy in ipairs({ "all_gather", "ring" }) do
        lu.assertEquals(pairs_of(strategy, "true"), 1024 * 1025 / 2 / 4, strategy)
        lu.assertEquals(pairs_of(strategy, "false"), 256 * 768 + 256 * 257 / 2, strategy)
        for _, balance in ipairs({ "true", "false" }) do
            lu.assertEquals(pairs_of(strategy, balance, { "attention_type=local_sliding", "sliding_window_size=20" }),
                256 * 20, strategy)
        end
    end
    lu.assertEquals(pairs_of("ulysses", "true"), 1024 * 1025 / 2 / 4)
end
