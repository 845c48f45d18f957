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

function TestBench.test_nothing_is_cut_on_a_large_and_fast_machine()
    local plan = mx.bench.plan((chip_of("32b")), 256, { length = 2048, sequences = 4 },
        { memory = 1e15, seconds = 60, rate = 1e18 })
    lu.assertEquals({ plan.length, plan.layers, plan.sequences, plan.steps }, { 2048, 32, 4, 30 })
end

function TestBench.test_a_slow_machine_cuts_tokens_before_it_breaks_the_promise_of_time()
    local full = { length = 2048, sequences = 16 }
    local limits = { memory = 8 * GIB, seconds = 51, rate = 0.4e12 }
    local plan = mx.bench.plan((chip_of("128b")), 16, full, limits)
    lu.assertTrue(plan.length >= 1024)
    lu.assertTrue(plan.steps >= 4 and plan.steps * plan.seconds <= 51)
    limits.rate = 1e9 -- hopeless: the shortest sequence, all the same
    lu.assertEquals(mx.bench.plan((chip_of("128b")), 16, full, limits).length, 256)
end

function TestBench.test_memory()
    -- A layer of 32B: 1.007e9 weights, with the vocabulary 1.34e9, at 6 bytes each, is 7.5 GiB.
    local full = { length = 2048, sequences = 4 }
    local plan = mx.bench.plan((chip_of("32b")), 256, full, { memory = 9 * GIB, seconds = 1e9, rate = 1e12 })
    lu.assertEquals(plan.layers, 1)
    lu.assertTrue(plan.bytes > 7.5 * GIB and plan.bytes <= 9 * GIB)
    local small = { memory = 4 * GIB, seconds = 60, rate = 1 }
    local planned, message = pcall(mx.bench.plan, (chip_of("32b")), 256, full, small)
    lu.assertFalse(planned)
    lu.assertStrContains(tostring(message), "use fewer ranks")
end

function TestBench.test_ranks_that_stand_for_no_chips_are_refused()
    lu.assertErrorMsgContains("expected bench_seconds", mx.bench.run, "16b", { "steps=3" })
    lu.assertErrorMsgContains("start 2 ranks", mx.bench.run, "16b", { "ici_tensor_parallelism=2" })
end
