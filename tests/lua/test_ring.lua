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
