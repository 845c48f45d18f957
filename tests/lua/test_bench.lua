-- What the benchmarks cut, and that a chip's share of a published job is what the mesh gives it.

local lu = require "luaunit"
local mx = require "mx"

TestBench = {}

local GIB = 2 ^ 30

local function chip_of(name)
    local shape = mx.models.shape(mx.config.load({ "model_name=" .. name }))
    return mx.bench.chip_shape(name, shape), shape
end

function TestBench.test_a_chip_of_128b_has_a_sixteenth()
    local chip, shape = chip_of("128b")
    local function sizes(s)
        return { s.emb, s.blocks[1].attention.heads, s.blocks[1].mlp.width, s.vocab, s.layers }
    end
    lu.assertEquals(sizes(chip), { 10240, 4, 4096, 2048, 64 })
    lu.assertEquals(sizes(shape), { 10240, 64, 65536, 32768, 64 })
    -- All but the norms' scales is split.
    local norms = 65 * 10240
    lu.assertEquals(mx.models.count(shape) - norms, 16 * (mx.models.count(chip) - norms))
end

function TestBench.test_a_chip_of_the_others_has_whole_matrices()
    for _, name in ipairs({ "16b", "32b", "64b" }) do
        local chip, shape = chip_of(name)
        lu.assertEquals(mx.models.count(chip), mx.models.count(shape))
    end
end

-- What steps need on a machine with one rank and nominal rates.
local function needs_of(name)
    local config = mx.config.load({ "model_name=" .. name, "remat_policy=full" })
    local chip = chip_of(name)
    return mx.bench.needs(config, chip, mx.bench.job(name), mx.host.hardware(1, { measure = false })), chip
end

-- A machine on which a layer takes a second for each sequence of 1,024 tokens, and 1 GiB.
local function plain_needs(layers, sequences, length)
    return layers * GIB + sequences * length, layers * sequences * length / 1024
end

local FULL = { length = 2048, sequences = 4, layers = 32, least_layers = 1 }

local function planned(needs, memory, seconds)
    local plan = mx.bench.plan(needs, FULL, { memory = memory, seconds = seconds })
    return { plan.length, plan.layers, plan.sequences, plan.steps }
end

function TestBench.test_nothing_is_cut_on_a_large_and_fast_machine()
    lu.assertEquals(planned(plain_needs, 1e15, 1e9), { 2048, 32, 4, 30 })
end

function TestBench.test_time_cuts_sequences_then_layers_then_tokens()
    -- 6 steps of 2 s for each layer and sequence; 4 steps if nothing less is possible.
    lu.assertEquals(planned(plain_needs, 1e15, 6 * 2 * 32 * 3), { 2048, 32, 3, 6 })
    lu.assertEquals(planned(plain_needs, 1e15, 6 * 2 * 5), { 2048, 5, 1, 6 })
    lu.assertEquals(planned(plain_needs, 1e15, 4 * 2), { 2048, 1, 1, 4 })
    lu.assertEquals(planned(plain_needs, 1e15, 4 * 2 - 1), { 1024, 1, 1, 7 })
    lu.assertEquals(planned(plain_needs, 1e15, 0.01), { 256, 1, 1, 4 }) -- hopeless: the shortest sequence, all the same
end

function TestBench.test_memory_cuts_layers()
    lu.assertEquals(planned(plain_needs, 7.5 * GIB, 1e9), { 2048, 7, 4, 30 })
    lu.assertErrorMsgContains("use fewer ranks", planned, plain_needs, 0.5 * GIB, 1e9)
end

function TestBench.test_what_a_step_needs()
    local needs, chip = needs_of("32b")
    local one, seconds = needs(1, 1, 2048)
    local two, longer = needs(2, 1, 2048)
    -- A layer's bf16 weights and f32 gradients are kept to the end of the step.
    local layer = mx.models.count(mx.models.cut(chip, 2)) - mx.models.count(mx.models.cut(chip, 1))
    lu.assertTrue(two - one >= 6 * layer and two - one < 6.2 * layer, ("%g bytes a weight"):format((two - one) / layer))
    lu.assertTrue(one > 6 * mx.models.count(mx.models.cut(chip, 1)))
    -- With full remat a layer's products are computed four times, at a nominal 1 TFLOP/s.
    local flops = 4 * (mx.flops.layers_forward(mx.models.cut(chip, 2), 1, 2048)
        - mx.flops.layers_forward(mx.models.cut(chip, 1), 1, 2048)) / 1e12
    lu.assertTrue(longer - seconds > 0.9 * flops and longer - seconds < 1.2 * flops, ("%g s, products %g s"):format(
        longer - seconds, flops))
end

function TestBench.test_ranks_that_stand_for_no_chips_are_refused()
    lu.assertErrorMsgContains("expected bench_seconds", mx.bench.run, "16b", { "steps=3" })
    lu.assertErrorMsgContains("start 2 ranks", mx.bench.run, "16b", { "ici_tensor_parallelism=2" })
end

-- A step that may take 10 % longer than simulated has an MFU of 1 / 1.1 of the simulated one.
function TestBench.test_its_figures_have_a_range()
    local published = mx.repro.published("v5e")
    local cell = published.cells[4]
    lu.assertEquals({ cell.model, cell.slices }, { "128b", 1 })
    local simulated = mx.repro.simulate(published, cell, { range = true })
    local least, most = table.unpack(simulated.range)
    lu.assertTrue(least < 1 and most > 1)
    local lines = mx.bench.figures(published, cell, simulated, { flop_formula = "maxtext-2023-10" }, "a")
    lu.assertEquals(#lines, 5)
    lu.assertStrContains(lines[4], ("a step takes %.4g s (%.4g to %.4g s): MFU %.1f to %.1f"):format(simulated.step_s,
        least * simulated.step_s, most * simulated.step_s, simulated.mfu / most, simulated.mfu / least))
    lu.assertNil(mx.repro.simulate(published, cell).range)
end

-- Rates of 10, 20, ... FLOP/s beside 5: the first round is not counted, and the median is that of the third of five.
function TestBench.test_ratios_are_medians_of_rounds()
    local calls, ran = 0, {}
    local function profiled(case, run)
        run()
        calls = calls + 1
        return case.ops.fast and 1 / (10 * ((calls - 1) // 2)) or 0.2, 1
    end
    local function measurement(name, flops)
        return { function() ran[#ran + 1] = name end, { [name] = true }, flops }
    end
    local bounds = require "mx.bench.bounds"
    local rate, ratio = bounds.compare(profiled, measurement "fast", measurement("slow", 2))
    lu.assertAlmostEquals(rate, 30, 1e-9)
    lu.assertAlmostEquals(ratio, 3, 1e-9) -- the slow one does 2 FLOP in 0.2 s
    lu.assertEquals(table.concat(ran, " ", 1, 4), "fast slow fast slow")
end
