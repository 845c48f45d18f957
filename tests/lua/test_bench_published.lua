-- The published H100 row: that it agrees with itself and with the FLOP formulas, and what is compared with it.

local lu = require "luaunit"
local mx = require "mx"

TestBenchPublished = {}

function TestBenchPublished.test_the_row()
    local published = mx.repro.published("h100")
    local cell = published.cells[1]
    lu.assertEquals(cell.global_batch_size, cell.chips * published.settings.per_device_batch_size)
    lu.assertAlmostEquals(cell.sequences_per_s, cell.global_batch_size / cell.step_time_s, 0.005)
    lu.assertEquals(published.settings.remat_policy, "minimal_with_context")
end

-- Forward and backward of 6.74e9 parameters on 8,192 tokens, and attention's half square: 6 x 8192 x (N, of which the
-- embedding table multiplies nothing) + 3 x 32 layers x 2 x 2 x 4096^2 x 4096.
function TestBenchPublished.test_rates()
    local config = mx.config.load(mx.repro.words(mx.repro.published("h100"), { model = "llama2-7b", slices = 1 }),
        { simulate = false })
    local rates = require("mx.bench.published").rates(config, mx.models.shape(config), 0.721, 989.5e12)
    local attention = 3 * 32 * 2 * 2 * 4096.0 ^ 2 * 4096
    local table_parameters, norms = 32000 * 4096, 65 * 4096
    local products = 6.0 * 8192 * (6738415616 - table_parameters - norms)
    lu.assertAlmostEquals(rates[1].flops, 6.0 * 8192 * 6738415616 + attention, 1e6)
    lu.assertAlmostEquals(rates[2].flops, products + 2 * attention, 1e6)
    lu.assertAlmostEquals(rates[3].flops, products + attention, 1e6)
    lu.assertAlmostEquals(rates[1].mfu, 100 * rates[1].flops / 0.721 / 989.5e12, 1e-9)
end

function TestBenchPublished.test_summary()
    local path = os.tmpname()
    local summary = require("mx.bench.published").run { "metrics_file=" .. path }
    local written = mx.io.json_decode(mx.read_file(path))
    os.remove(path)
    lu.assertEquals(written.published_step_s, 0.721)
    lu.assertAlmostEquals(written.error_percent, 100 * (written.simulated_step_s / 0.721 - 1), 1e-9)
    lu.assertEquals({ written.simulation.hardware, written.remat_policy }, { "h100", "minimal_with_context" })
    lu.assertEquals(written.simulated_step_s, summary.simulated_step_s)
    -- No fewer seconds than the FLOPs at the peak, and all of them accounted for.
    lu.assertTrue(summary.simulated_step_s > summary.simulated_rates[3].flops / 989.5e12)
    lu.assertAlmostEquals(summary.matrix_s + summary.attention_s + summary.memory_s + summary.ici_s,
        summary.simulated_step_s, 1e-9)
    lu.assertTrue(summary.peak_memory_bytes < 80e9)
    lu.assertFalse(mx.is_simulated())
end

function TestBenchPublished.test_other_words_are_refused()
    lu.assertErrorMsgContains("steps", require("mx.bench.published").run, { "steps=3" })
end
