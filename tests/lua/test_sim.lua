-- A simulated chip: times and memory against hand-worked ones.

local lu = require "luaunit"
local mx = require "mx"

local simulated = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "simulated.lua")
local assert_near, constants, seconds = simulated.assert_near, simulated.constants, simulated.seconds

TestChip = {}

local PEAK, MEMORY = 197e12, 819e9 -- of v5e

function TestChip.tearDown()
    mx.sim.stop()
end

-- One chip of v5e, with other constants where given.
local function chip(more)
    return mx.sim.start("v5e-1", 1, constants(more))
end

-- A tensor whose values are in memory: a product has read it.
local function in_memory(sizes, dtype)
    local t = mx.zeros(sizes, dtype)
    mx.matmul(t, t, { trans_b = true })
    return t
end

function TestChip.test_matmul_is_padded_to_the_tiles()
    chip({ matrix_efficiency = 0.5 })
    local a, b = mx.zeros({ 4100, 4200 }, "bf16"), mx.zeros({ 4200, 4300 }, "bf16")
    mx.sim_times(true)
    local padded = 2.0 * 4104 * 4224 * 4352 -- to 8 rows and 128 columns
    assert_near(seconds(function() mx.matmul(a, b) end), padded / (0.5 * PEAK))
    local times = mx.sim_times()
    assert_near(times.matrix_s, padded / (0.5 * PEAK))
    assert_near(times.flops, 2.0 * 4100 * 4200 * 4300)
    lu.assertEquals({ times.operations, times.memory_s }, { 1, 0 })
end

-- Multiprocessors compute whole waves of tiles, 128 x 256; products of less than a wave are split along their depth.
function TestChip.test_waves_of_multiprocessors()
    mx.sim.start("h100-1", 1, constants({ memory_Bps = 1e18 }))
    local wave = 132 * 128 * 256 * 2 / 9.895e14 -- seconds for each row of the depth
    for _, case in ipairs({
        { { 2048, 1024 }, { 1024, 2048 }, 1 }, -- 8 x 16 tiles of 132
        { { 16384, 1024 }, { 1024, 4096 }, 16 }, -- 2,048 tiles are 15.5 waves
        { { 16384, 1024 }, { 1024, 11008 }, 42 }, -- 5,504 are 41.7
        { { 256 * 133, 1024 }, { 1024, 128 }, 2 }, -- 133 of 256 x 128; of 128 x 256 twice as many, each half empty
        { { 4, 1024, 1024 }, { 4, 1024, 1024 }, 1 }, -- 4 products of 32
        { { 1280, 1024 }, { 1024, 1280 }, 1 / 2 }, -- 50 tiles, in two parts each: 100 of 132
        { { 128, 1024 }, { 1024, 256 }, 1 / 132 },
    }) do
        local a, b = mx.zeros(case[1], "bf16"), mx.zeros(case[2], "bf16")
        assert_near(seconds(function() mx.matmul(a, b) end), case[3] * 1024 * wave)
    end
end

function TestChip.test_matmul_of_float32_has_a_peak_of_its_own()
    chip()
    local a = mx.zeros({ 4096, 4096 })
    assert_near(seconds(function() mx.matmul(a, a) end), 2.0 * 4096 ^ 3 / 3.283e13)
end

function TestChip.test_thin_matmul_is_bound_by_memory()
    chip({ memory_efficiency = 0.5 })
    local w = in_memory({ 4096, 4096 }, "bf16")
    local x = mx.zeros({ 8, 4096 }, "bf16")
    mx.matmul(x, w)
    local bytes = 2 * (4096 * 4096 + 2 * 8 * 4096)
    assert_near(seconds(function() mx.matmul(x, w) end), bytes / (0.5 * MEMORY))
    lu.assertEquals(mx.sim_times().attention_s, 0)
end

-- x 2, + 1, tanh: fused, x is read once; the result is written when a product reads it.
function TestChip.test_elementwise_chain()
    local bytes = 4 * 1024 * 1024
    local function chain(x)
        return ((x * 2) + 1):tanh()
    end
    chip()
    local x, y = in_memory({ 1024, 1024 }), nil
    assert_near(seconds(function() y = chain(x) end), bytes / MEMORY)
    local times = mx.sim_times(true)
    mx.matmul(x, x)
    local alone = mx.sim_times(true)
    lu.assertTrue(times.memory_s > 0)
    assert_near(alone.matrix_s, 2 * 1024 ^ 3 / 3.283e13)
    assert_near(seconds(function() mx.exp(chain(y)) end), 2 * bytes / MEMORY) -- y written, and read
    chip({ fuses = false })
    x = in_memory({ 1024, 1024 })
    assert_near(seconds(function() chain(x) end), 6 * bytes / MEMORY)
end

-- Rates of products of n^3 on a die of v7x, in TFLOP/s: AI-Hypercomputer/tpu-recipes, microbenchmarks/ironwood.
function TestChip.test_products_by_size()
    mx.sim.start("v7x-1", 1, { matrix_efficiency = 0.829 }) -- as 8192^3 reaches
    for n, rate in pairs({ [128] = 2.6, [512] = 105, [1024] = 350, [2048] = 679, [4096] = 893, [16384] = 950 }) do
        local a = in_memory({ n, n }, "bf16")
        assert_near(2 * n ^ 3 / seconds(function() mx.matmul(a, a) end), 1e12 * rate, 0.08)
    end
end

-- 300 x 100 x 200 in blocks of 128: a block of each input before the arithmetic, one of the result afterwards.
function TestChip.test_blocks_of_a_product()
    local function product(more)
        chip(more)
        local a, b = in_memory({ 300, 100 }, "bf16"), in_memory({ 100, 200 }, "bf16")
        return seconds(function() mx.matmul(a, b) end)
    end
    local waiting = 2.0 * (128 * 100 + 100 * 128 + 128 * 128) / MEMORY
    assert_near(product({ product_block = 128, product_s = 1e-6 }) - product(), 1e-6 + waiting)
    assert_near(product({ product_s = 1e-6 }) - product(), 1e-6)
end

-- The kernels of a test: 512 queries by 256 keys forward, 256 by 1024 for k and v, 1024 by 512 for q.
local KERNEL = { block_q = 512, block_kv = 256, block_q_dkv = 256, block_kv_dkv = 1024, block_q_dq = 1024,
    block_kv_dq = 512 }

local function attend(options, value_dim)
    local q = mx.zeros({ 2, 2048, 4, 96 }, "bf16"):requires_grad()
    local v, y = value_dim and mx.zeros({ 2, 2048, 4, value_dim }, "bf16"):requires_grad() or q, nil
    local forward = seconds(function() y = mx.attention(q, q, v, options) end)
    return forward, seconds(function() mx.backward(y:sum()) end)
end

-- Head_dim 96 is padded to 128, and the mask leaves whole blocks: with 2048 queries, causal, the four rows of 512 have
-- 2, 4, 6 and 8 blocks of 256 keys; the eight rows of 256 have 4 times 1 and 4 times 2 of 1024; the two rows of 1024
-- have 2 and 4 of 512.
function TestChip.test_attention_in_whole_blocks()
    chip({ attention_efficiency = 0.25, attention_kernel = KERNEL })
    local scores = 2 * 4 * 512 * 256 * (2 + 4 + 6 + 8)
    local forward, backward = attend({ causal = true })
    assert_near(forward, 2 * scores * 2 * 128 / (0.25 * PEAK))
    local dkv, dq = 2 * 4 * 256 * 1024 * (4 * 1 + 4 * 2), 2 * 4 * 1024 * 512 * (2 + 4)
    local kernels = (4 * dkv + 3 * dq) * 2 * 128 / (0.25 * PEAK)
    assert_near(mx.sim_times().attention_s, forward + kernels)
    lu.assertTrue(backward >= kernels)
    -- A window of 512 with blocks of 512: the first row has one block, the other three have two.
    chip()
    assert_near(attend({ causal = true, window = 512 }), 2 * 2 * 4 * 512 ^ 2 * 7 * 2 * 128 / PEAK)
end

-- Values of 200 features are padded to 256. Forward one product has that width; of those for k and v two, of those for
-- q one, of those of one kernel for all gradients two. With scores in memory, each product moves 4 or 8 bytes a score.
function TestChip.test_values_of_another_width()
    local scores, one = 2 * 4 * 2048 ^ 2, 2 * 2 * 4 * 2048 ^ 2 / PEAK -- one: seconds of a product of one feature
    chip()
    assert_near(attend(nil, 200), (128 + 256) * one)
    assert_near(mx.sim_times().attention_s, ((128 + 256) + (2 * 128 + 2 * 256) + (2 * 128 + 256)) * one)
    chip({ attention_kernel = { fused_backward = true, block_q_dkv = 2048, block_kv_dkv = 2048 } })
    assert_near(attend(nil, 200), (128 + 256) * one)
    assert_near(mx.sim_times().attention_s, ((128 + 256) + (3 * 128 + 2 * 256)) * one)
    chip({ attention_kernel = { scores_in_memory = true } })
    local array, narrow, wide = 4 * scores / MEMORY, 128 * one, 256 * one
    assert_near(attend(nil, 200), 2 * array + math.max(narrow, array) + math.max(wide, array))
    assert_near(mx.sim_times().attention_s, 4 * array + math.max(narrow, array) + 3 * math.max(wide, array)
        + 2 * math.max(narrow, 2 * array))
end

-- One kernel for all gradients has 5 products. It visits all 8 x 2 blocks of 256 by 1024, whatever the mask, and the
-- gradients of the queries of each of the 2 blocks of keys are summed: one more reading of 96 features.
function TestChip.test_one_kernel_for_all_gradients()
    local kernel, step_s = { fused_backward = true, block_q_dkv = 256, block_kv_dkv = 1024 }, 1e-6
    local function both(options, overhead_s)
        chip({ attention_efficiency = 0.25, attention_kernel = kernel, attention_step_s = overhead_s })
        local forward = attend(options)
        return forward, mx.sim_times().attention_s - forward
    end
    local forward, backward = both(nil, 0)
    assert_near(forward, 2 * 2 * 4 * 2048 ^ 2 * 2 * 128 / (0.25 * PEAK))
    assert_near(backward, forward * 5 / 2 + 2 * 2048 * 4 * 96 * 2 / MEMORY)
    for _, options in ipairs({ {}, { causal = true } }) do
        local _, before = both(options, 0)
        local _, slower = both(options, step_s)
        assert_near(slower - before, 2 * 4 * 8 * 2 * step_s)
    end
end

-- Each of the blocks that a mask leaves has an overhead: forward 2 + 4 + 6 + 8 of each head, and so on. Blocks that are
-- larger than the sequence are one.
function TestChip.test_blocks_of_attention_have_an_overhead()
    local function both(step_s, kernel, options)
        chip({ attention_step_s = step_s, attention_kernel = kernel })
        local forward = attend(options)
        return forward, mx.sim_times().attention_s - forward
    end
    local heads, step_s, causal = 2 * 4, 1e-6, { causal = true }
    local forward, backward = both(0, KERNEL, causal)
    local slower_forward, slower_backward = both(step_s, KERNEL, causal)
    assert_near(slower_forward - forward, heads * (2 + 4 + 6 + 8) * step_s)
    assert_near(slower_backward - backward, heads * (4 * 1 + 4 * 2 + 2 + 4) * step_s)
    local large = { block_q = 4096, block_kv = 4096 }
    assert_near(both(step_s, large) - both(0, large), heads * step_s)
end

-- Per score, the forward kernel has 8 operations of the vector unit and the backward kernels 9 each.
function TestChip.test_attention_is_bound_by_the_vector_unit()
    local vector = 1e12
    chip({ vector_flops = vector })
    local forward = attend()
    local scores = 2 * 4 * 2048 ^ 2
    assert_near(forward, scores * 8 / vector)
    assert_near(mx.sim_times().attention_s, forward + 2 * scores * 9 / vector)
    chip({ vector_flops = vector, attention_kernel = { fixed_maximum = true } })
    assert_near(attend(), scores * 7 / vector)
end

-- Scores in memory: each array of them is 4 bytes a score. Forward: two passes, and two products with one array each.
-- Backward: two passes, and four products with 1, 1, 2 and 2 arrays. Here one product takes longer than one array.
function TestChip.test_attention_with_scores_in_memory()
    chip({ attention_kernel = { scores_in_memory = true } })
    local scores = 2 * 4 * 2048 ^ 2
    local array, product = 4 * scores / MEMORY, 2 * scores * 128 / PEAK
    lu.assertTrue(product < array)
    local forward = attend({ causal = true })
    assert_near(forward, 4 * array)
    assert_near(mx.sim_times().attention_s, forward + 8 * array)
    chip({ attention_kernel = { scores_in_memory = true }, memory_efficiency = 1, memory_Bps = 1e13 })
    assert_near(attend(), 2 * 4 * scores / 1e13 + 2 * product)
end

-- A library's products wait until the results of others are written, and norms read their input twice.
function TestChip.test_products_of_a_library()
    local bytes = 2 * 4096 * 4096
    local function times(more)
        chip(more)
        local x, w, y = in_memory({ 4096, 4096 }, "bf16"), in_memory({ 4096, 4096 }, "bf16"), nil
        local fused = seconds(function() y = x * 2 end)
        local product = seconds(function() mx.matmul(y, w) end)
        return fused, product, seconds(function() mx.rmsnorm(x, mx.ones({ 4096 })) end)
    end
    local fused, product, norm = times({})
    local fused_too, waits, twice = times({ library_products = true })
    assert_near(fused, bytes / MEMORY)
    assert_near(fused_too, fused)
    assert_near(waits - product, bytes / MEMORY, 1e-6)
    assert_near(twice - norm, bytes / MEMORY, 1e-6)
end

-- The models of the published v5e benchmark had no kernel for attention, unless a run says so.
function TestChip.test_which_attention()
    for words, in_memory_too in pairs({
        ["model_name=16b"] = true, ["model_name=16b attention=flash"] = false, ["model_name=llama2-7b"] = false,
        ["model_name=16b attention_type=global"] = false, ["model_name=llama2-7b attention=dot_product"] = true,
    }) do
        local list = { "hardware=v5e-256" }
        for word in words:gmatch("%S+") do
            list[#list + 1] = word
        end
        local settings = mx.sim.settings(mx.config.load(list, { simulate = false }))
        lu.assertEquals({ words, settings.attention_kernel.scores_in_memory }, { words, in_memory_too })
    end
end

-- Embeddings by one-hot vectors are products of tokens by vocabulary by width, padded to the matrix unit.
function TestChip.test_one_hot_embedding()
    chip({ one_hot_embedding = true })
    local rows, ids, y = mx.zeros({ 1000, 300 }, "bf16"):requires_grad(), mx.zeros({ 4096 }, "i32"), nil
    assert_near(seconds(function() y = mx.embedding(rows, ids) end), 2.0 * 4096 * 1024 * 384 / PEAK)
    mx.sim_times(true)
    mx.backward(y:sum())
    assert_near(mx.sim_times().matrix_s, 2.0 * 4096 * 1024 * 384 / PEAK)
end

-- The loss moves 16 bytes of each logit beside its products. Logits that backward computes again are one more product,
-- written and read.
function TestChip.test_logits_are_in_memory()
    local function loss(more)
        chip(more)
        local h, w = in_memory({ 4096, 512 }, "bf16"), in_memory({ 8192, 512 }, "bf16")
        return seconds(function() mx.cross_entropy(h, w, mx.zeros({ 4096 }, "i32")) end)
    end
    assert_near(loss() - loss({ logit_bytes = 0 }), 16 * 4096 * 8192 / MEMORY, 1e-6)
    local again = 2.0 * 4096 * 8192 * 512 / PEAK + 8 * 4096 * 8192 / MEMORY
    assert_near(loss({ logits_again = true }) - loss(), again, 1e-6)
    local function settings(word)
        return mx.sim.settings(mx.config.load({ "model_name=tiny", word }, { simulate = false }))
    end
    lu.assertFalse(settings("num_vocab_tiling=1").logits_again)
    lu.assertTrue(settings("num_vocab_tiling=4").logits_again)
    lu.assertFalse(settings("use_max_logit_estimate=-1").attention_kernel.fixed_maximum)
    lu.assertTrue(settings("use_max_logit_estimate=30").attention_kernel.fixed_maximum)
end

function TestChip.test_memory()
    chip()
    lu.assertEquals(mx.memory().in_use, 0)
    local kept = mx.zeros({ 256, 256 }):keep()
    lu.assertEquals(mx.memory().in_use, 4 * 256 * 256)
    do
        local step <close> = mx.step()
        local y = kept * 2
        lu.assertEquals(mx.memory().in_use, 2 * 4 * 256 * 256)
        y = y:to("bf16")
        lu.assertEquals(y:numel(), 256 * 256)
    end
    lu.assertEquals({ mx.memory().in_use, mx.memory().peak }, { 4 * 256 * 256, 10 * 256 * 256 })
end

function TestChip.test_out_of_memory()
    chip({ memory_bytes = 2 ^ 20 })
    mx.zeros({ 1024, 128 })
    lu.assertErrorMsgContains("out of memory: 1.0 MiB asked for, 0.5 MiB in use of a limit of 1.0 MiB", mx.zeros,
        { 1024, 256 })
end

function TestChip.test_more_is_never_slower()
    local function step(more)
        chip(more)
        local x, w = in_memory({ 2048, 2048 }, "bf16"), in_memory({ 2048, 2048 }, "bf16")
        return seconds(function()
            mx.exp(mx.matmul(x, w):silu())
        end)
    end
    local before = step()
    local function peaks(factor)
        return { bfloat16 = factor * PEAK, float32 = factor * 3.283e13 }
    end
    for _, more in ipairs({ { memory_Bps = 2 * MEMORY }, { peak_flops = peaks(2) } }) do
        lu.assertTrue(step(more) < before)
    end
    for _, less in ipairs({ { memory_efficiency = 0.5 }, { peak_flops = peaks(0.5) }, { launch_s = 1e-6 },
        { vector_flops = 1e11 } }) do
        lu.assertTrue(step(less) > before)
    end
end

-- A chip multiplies only the 8-bit floats whose peak it has, and others as bf16.
function TestChip.test_products_of_8_bit_floats()
    local function product(dtype, peaks)
        peaks.bfloat16, peaks.float32 = PEAK, 3.283e13
        chip({ peak_flops = peaks })
        local x = mx.zeros({ 4096, 4096 }, dtype)
        mx.scaled_matmul(x, x) -- now they are in memory
        return seconds(function() mx.scaled_matmul(x, x) end)
    end
    local slow = product("e4m3fnuz", {})
    lu.assertEquals(product("e4m3fnuz", { float8 = 2 * PEAK }), slow)
    lu.assertTrue(product("e4m3", { float8 = 2 * PEAK }) < 0.6 * slow)
    lu.assertEquals(product("e4m3", { float8_fnuz = 2 * PEAK }), slow)
    lu.assertTrue(product("e5m2fnuz", { float8_fnuz = 2 * PEAK }) < 0.6 * slow)
end

-- NVFP4 has a peak of its own, without which it counts as bf16; its operands have 0.5625 bytes an element.
function TestChip.test_products_of_nvfp4()
    local function product(n, peaks)
        peaks.bfloat16, peaks.float32 = PEAK, 3.283e13
        chip({ peak_flops = peaks })
        local codes, scales, scale = mx.nvfp4_quantize(mx.zeros({ n, n }, "bf16"))
        local function run()
            mx.nvfp4_product(codes, codes, scales, scales, scale, scale)
        end
        run()
        return seconds(run)
    end
    local slow = product(4096, { float8 = 4 * PEAK })
    local fast = product(4096, { float4 = 4 * PEAK })
    lu.assertTrue(fast < 0.3 * slow and fast > 0.2 * slow)
    local bytes = (2 * 0.5625 + 2) * 64 * 64 + 2 * 4
    lu.assertAlmostEquals(product(64, { float4 = 1e6 * PEAK }), bytes / MEMORY, 0.01 * bytes / MEMORY)
end
