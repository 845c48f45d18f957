-- FLOP formulas against published totals, and what MFU refuses.

local lu = require "luaunit"
local mx = require "mx"

TestFlops = {}

-- TFLOP per chip and step of a published benchmark model, in the formula of its date or another.
local function tflop(model, formula)
    local c = mx.config.load({ "model_name=" .. model })
    local shape = mx.models.shape(c)
    return mx.flops.step(formula or c.flop_formula, shape, mx.models.count(shape), c.per_device_batch_size,
        c.max_target_length) / 1e12
end

function TestFlops.test_published_benchmark_steps()
    for model, expected in pairs({ ["16b"] = 1279.02, ["32b"] = 1652.58, ["64b"] = 1644.34, ["128b"] = 1640.21 }) do
        lu.assertAlmostEquals(tflop(model), expected, 0.005)
    end
end

function TestFlops.test_published_benchmark_steps_in_the_formula_of_2025()
    for model, expected in pairs({ ["16b"] = 1239.42, ["32b"] = 1626.18, ["64b"] = 1617.93, ["128b"] = 1613.81 }) do
        lu.assertAlmostEquals(tflop(model, "maxtext-2025-07"), expected, 0.005)
    end
end

function TestFlops.test_llama2_7b()
    -- 12 sequences of 8192 tokens with and without half of attention: figures that MaxText's own tests state.
    local shape = mx.models.shape(mx.config.load({ "model_name=llama2-7b" }))
    local function total(formula, length)
        return mx.flops.step(formula, shape, mx.models.count(shape), 1, length) / 1e12
    end
    local ratio = total("maxtext-2024-05", 8192) / total("maxtext-2025-07", 8192)
    lu.assertAlmostEquals(ratio, 1721.22 / 1510.11, 1e-4)
end

function TestFlops.test_formulas_by_hand()
    local block = {
        attention = { kind = "attention", heads = 3, kv_heads = 1, head_dim = 5, window = 0, causal = true },
        mlp = { kind = "mlp", width = 7, gated = true },
    }
    local shape = { emb = 2, layers = 11, vocab = 13, blocks = { block } }
    local B, S, N = 2, 4, 1000
    lu.assertEquals(mx.flops.step("maxtext-2023-06", shape, N, B, S), 6 * N * 8.0)
    local attention = 12 * 11 * 3 * 5 * S * S * B
    lu.assertEquals(mx.flops.step("maxtext-2023-10", shape, N, B, S), 6 * N * 8.0 + attention)
    lu.assertEquals(mx.flops.step("maxtext-2023-11", shape, N, B, S), 6 * N * 8.0 + attention / 2)
    local products = 11 * (3 * 2 * 7 + 2 * (3 + 2) * 5 + 2 * 15) + 2 * 13
    lu.assertEquals(mx.flops.step("maxtext-2024-05", shape, N, B, S), 6.0 * products * 8 + attention)
    lu.assertEquals(mx.flops.step("maxtext-2025-07", shape, N, B, S), 6.0 * products * 8 + attention / 2)
    block.attention.window = 2 -- a band of S W - W^2 / 2 = 6 of the square's 16
    lu.assertEquals(mx.flops.step("maxtext-2025-07", shape, N, B, S), 6.0 * products * 8 + attention * 6 / 16)
end

function TestFlops.test_mfu()
    lu.assertAlmostEquals(mx.flops.mfu(110.4e12, 197e12, "maxtext-2023-10"), 56.04, 0.005)
    lu.assertErrorMsgContains("above 100 %", mx.flops.mfu, 198e12, 197e12, "maxtext-2023-10")
end
