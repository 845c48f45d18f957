-- Published rows of models with experts: that each agrees with itself and with the FLOP formula, and that nothing is
-- fitted to them.

local bench = require "mx.bench.mixtral"
local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

TestBenchMixtral = {}

-- FLOPs of a token of Mixtral 8x7B with all of attention, by hand: the router, two experts, attention, logits.
function TestBenchMixtral.test_flops()
    local E, M, S = 4096, 14336, 4096
    local layer = 2 * E * (32 + 2 * 8) * 128 + 2 * 32 * 128 * E + 2 * E * 8 + 2 * 6 * E * M + 4 * S * 32 * 128
    local published = mx.repro.published("moe")
    local flops, peak = bench.flops_of(published, published.cells[1])
    lu.assertEquals({ flops, peak }, { 3.0 * (32 * layer + 2 * E * 32000), 459e12 })
end

-- Tokens per second times FLOPs of a token are the published MFU or TFLOP/s, and the tokens of a step divided by its
-- time are the published rate: to the published digits.
function TestBenchMixtral.test_rows_agree_with_themselves()
    local published, compared = mx.repro.published("moe"), 0
    for _, cell in ipairs(published.cells) do
        local flops, peak = bench.flops_of(published, cell)
        local tflops = bench.rate_of(published, cell) * flops / 1e12
        local digits = cell.tokens_per_s and 5e-4 or 1e-3 -- 608 TFLOP/s is rounded to 0.8 in 1,000
        lu.assertAlmostEquals(tflops / (cell.tflops or cell.mfu / 100 * peak / 1e12), 1, digits, cell.model)
        if cell.step_time_s and cell.tokens_per_s then
            local tokens = cell.settings.per_device_batch_size * published.settings.max_target_length
            lu.assertAlmostEquals(tokens / cell.step_time_s / cell.tokens_per_s, 1, 5e-5, cell.model)
        end
        compared = compared + 1
    end
    lu.assertEquals(compared, 6)
end

function TestBenchMixtral.test_nothing_is_fitted_to_them()
    for _, files in pairs(mx.generations.FILES) do
        lu.assertFalse(util.contains(files, "moe"))
    end
    for _, cell in ipairs(mx.repro.published("moe").cells) do
        lu.assertFalse(mx.repro.is_fitted(mx.repro.published("moe"), cell))
    end
end

-- A row for each; rates are those of the step. The last two differ in the products of codes.
function TestBenchMixtral.test_the_table()
    local path = os.tmpname()
    local rows, lines = bench.run { "metrics_file=" .. path }, 0
    for line in io.lines(path) do
        lines = lines + 1
        local row = mx.io.json_decode(line)
        lu.assertEquals(row.simulated_tokens_per_s, rows[lines].simulated_tokens_per_s)
    end
    os.remove(path)
    lu.assertEquals({ lines, #rows }, { 6, 6 })
    for _, row in ipairs(rows) do
        local ratio = row.simulated_tokens_per_s / row.published_tokens_per_s
        lu.assertAlmostEquals(row.error_percent, 100 * (1 / ratio - 1), 1e-9)
        lu.assertAlmostEquals(row.simulated_mfu / row.published_mfu, ratio, 1e-3)
        lu.assertTrue(row.simulated_mfu < 100)
        local range = row.simulated_step_range -- covers the published step, which took `ratio` times the simulated one
        lu.assertTrue(range[1] <= ratio * 1.001 and ratio <= range[2] * 1.001, row.model)
    end
    -- 2,048 sequences of 4,096 tokens in 27.02 s on 128 chips.
    lu.assertAlmostEquals(rows[5].published_tokens_per_s, 2048 * 4096 / 27.02 / 128, 1e-6)
    lu.assertTrue(rows[6].simulated_tokens_per_s > 1.1 * rows[5].simulated_tokens_per_s)
end
