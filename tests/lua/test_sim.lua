-- The simulated pod: times and memory against hand-worked ones, what is refused, and the host afterwards.

local lu = require "luaunit"
local mx = require "mx"

TestChip, TestPod, TestRefusals = {}, {}, {}

local PEAK, MEMORY = 197e12, 819e9 -- of v5e
local WHOLE = { -- nothing lost: what the vendor says
    matrix_efficiency = 1, attention_efficiency = 1, memory_efficiency = 1, ici_efficiency = 1, dcn_efficiency = 1,
    dcn_hop_latency_s = 1e-5, vector_flops = 0, attention_step_s = 0,
}

local function stop()
    mx.sim.stop()
end
TestChip.tearDown, TestPod.tearDown, TestRefusals.tearDown = stop, stop, stop

local function constants(more)
    local all = {}
    for _, t in ipairs({ WHOLE, more or {} }) do
        for name, value in pairs(t) do
            all[name] = value
        end
    end
    return all
end

-- One chip of v5e, with other constants where given.
local function chip(more)
    return mx.sim.start("v5e-1", 1, constants(more))
end

-- Seconds of the chip in fn.
local function seconds(fn)
    local start = mx.now()
    fn()
    return mx.now() - start
end

-- A tensor whose values are in memory: a product has read it.
local function in_memory(sizes, dtype)
    local t = mx.zeros(sizes, dtype)
    mx.matmul(t, t, { trans_b = true })
    return t
end

local function assert_near(value, expected, share)
    lu.assertAlmostEquals(value, expected, math.abs(expected) * (share or 1e-9))
end

-- ---- one chip ----

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

-- ---- a pod ----

local SMALL = {
    "base_emb_dim=2048", "base_num_query_heads=16", "base_num_kv_heads=16", "head_dim=128", "base_mlp_dim=8192",
    "base_num_decoder_layers=4", "vocab_size=4096", "max_target_length=2048", "per_device_batch_size=2",
}

-- Two steps of a small model on a pod. -> seconds of the second, its times, the memory before, at most and after it.
local function train(hardware, slices, more, words)
    local all = { "hardware=" .. hardware, "num_slices=" .. slices, table.unpack(SMALL) }
    local config = mx.config.load(table.move(words or {}, 1, #(words or {}), #all + 1, all), { simulate = false })
    mx.sim.start(config.hardware, config.num_slices, constants(more))
    local mesh = mx.train.mesh(config)
    local model = mx.models.new(config, mesh)
    local data, optimizer = mx.data.open(config, mesh), mx.optim.new(config, model.params, model.parallel)
    local result
    for _ = 1, 2 do
        mx.sim_times(true)
        mx.reset_peak()
        local start, before = mx.now(), mx.memory().in_use
        mx.train.gradients(model, data, config.gradient_accumulation_steps)
        optimizer:step()
        result = { seconds = mx.now() - start, times = mx.sim_times(), before = before, memory = mx.memory() }
    end
    return result
end

function TestPod.test_times_add_up_to_the_clock()
    for _, pod in ipairs({ { "v5e-4", 2 }, { "v5p-8", 1 }, { "v7x-4", 1 }, { "h100-8", 1 } }) do
        local result = train(pod[1], pod[2])
        local t = result.times
        assert_near(t.matrix_s + t.attention_s + t.memory_s + t.ici_s + t.dcn_s + t.host_s, result.seconds)
        lu.assertTrue(t.ici_busy_s >= t.ici_s and t.dcn_busy_s >= t.dcn_s)
        lu.assertTrue(t.matrix_s > 0 and t.attention_s > 0 and t.memory_s > 0)
        lu.assertEquals(t.dcn_busy_s > 0, pod[2] > 1)
        lu.assertEquals(result.memory.in_use, result.before)
    end
end

function TestPod.test_links_that_are_faster_help()
    local slow = train("v5e-4", 2, { ici_efficiency = 0.01, dcn_efficiency = 0.01 })
    local ici = train("v5e-4", 2, { dcn_efficiency = 0.01 })
    local both = train("v5e-4", 2)
    lu.assertTrue(both.seconds < ici.seconds and ici.seconds < slow.seconds)
end

function TestPod.test_remat_policies()
    local remat = require "mx.models.remat"
    local none = train("v5e-4", 1, nil, { "remat_policy=none", "base_num_decoder_layers=8" })
    local full = train("v5e-4", 1, nil, { "remat_policy=full", "base_num_decoder_layers=8" })
    for policy in pairs(remat.policies) do
        local result = train("v5e-4", 1, nil, { "remat_policy=" .. policy, "base_num_decoder_layers=8" })
        lu.assertEquals(result.memory.in_use, result.before)
        lu.assertTrue(result.memory.peak <= none.memory.peak and result.seconds >= none.seconds, policy)
        if remat.offloads(policy) then
            lu.assertTrue(result.times.host_busy_s > 0, policy)
        elseif policy ~= "full" then
            lu.assertTrue(result.memory.peak > full.memory.peak and result.seconds < full.seconds, policy)
        end
    end
end

-- 4 chips of 128 tokens, each with 2 of 8 experts, share out 1,024 choices: 256 each if they are even.
function TestPod.test_rows_of_experts_follow_the_declared_imbalance()
    local send, rows, times = mx.all_to_all_rows, {}, {}
    for i, imbalance in ipairs { 1, 1.5, 100 } do
        mx.sim.start("v5e-4", 1, constants())
        local cfg = mx.config.load({
            "model_name=tiny-moe", "per_device_batch_size=2", "ici_expert_parallelism=4", "hardware=v5e-4",
            ("simulated_expert_imbalance=%g"):format(imbalance), "base_emb_dim=1024", "base_moe_mlp_dim=4096",
        }, { simulate = false })
        local mesh = mx.train.mesh(cfg)
        local model, data = mx.models.new(cfg, mesh), mx.data.open(cfg, mesh)
        mx.all_to_all_rows = function(x, counts, o)
            rows[i] = rows[i] or o.rows
            return send(x, counts, o)
        end
        local ok, problem = pcall(function()
            times[i] = seconds(function() mx.train.gradients(model, data, 1) end)
        end)
        mx.all_to_all_rows = send
        lu.assertTrue(ok, problem)
        stop()
    end
    lu.assertEquals(rows, { 256, 384, 1024 })
    lu.assertTrue(times[1] < times[2] and times[2] < times[3])
end

function TestPod.test_collectives_are_counted()
    mx.sim.start("v5e-8", 2, constants())
    mx.train.mesh(mx.config.load({ "num_slices=2", "ici_fsdp_parallelism=4", "ici_tensor_parallelism=2" },
        { simulate = false }))
    mx.sim_times(true)
    local x = mx.zeros({ 1000, 256 })
    mx.all_reduce_(x, { axis = "data" })
    local t = mx.sim_times(true)
    lu.assertEquals({ t.collectives, t.ici_bytes, t.dcn_bytes }, { 1, 0, 1024000 })
    assert_near(t.dcn_s, 2 * (1e-5 + 1024000 / 2 / 3.125e9))
    mx.all_gather(x, { axis = "fsdp", dim = 1 })
    t = mx.sim_times(true)
    lu.assertEquals({ t.collectives, t.ici_bytes, t.dcn_bytes }, { 1, 4 * 1024000, 0 })
    -- Of the sides 2 and 4, tensor has two neighbours of the 4; fsdp the 2, and two of the 4 over a shared link.
    assert_near(t.ici_s, 0.75 * 4 * 1024000 / (4.5e10 + 4.5e10 / 2))
end

-- Eight ranks in two slices: of 7 parts that a rank sends, one leaves the slice. A trace has an event for each network.
function TestPod.test_the_events_of_a_collective_share_its_bytes()
    mx.sim.start("v5e-4", 2, constants())
    mx.train.mesh(mx.config.load({ "num_slices=2", "ici_fsdp_parallelism=4" }, { simulate = false }))
    mx.trace_start()
    mx.all_gather(mx.zeros({ 100, 250 }), { dim = 1 })
    local bytes = {}
    for _, event in ipairs(mx.trace_events()) do
        if event.kind == "job" then
            bytes[event.track] = (bytes[event.track] or 0) + event.bytes
        end
    end
    mx.trace_stop()
    lu.assertEquals(bytes, { ["network in the slice"] = 600000, ["network between slices"] = 100000 })
end

-- Sequences of 1,024 tokens in documents of 256. Of the 36 causal blocks of 128 by 128, 12 have pairs of one document,
-- 3 in each. A TPU's kernel computes all 36, and does 10 instead of 8 vector operations a score, backward 11 instead of
-- 9.
function TestPod.test_packed_documents()
    local function attention_s(hardware, document)
        local config = mx.config.load({ "hardware=" .. hardware, "max_target_length=1024",
            "simulated_document_length=" .. document }, { simulate = false })
        local values = mx.sim.settings(config)
        values.attention_step_s, values.vector_flops, values.attention_kernel.fused_backward = 0, 1e9, true
        mx.sim.start(hardware, 1, values)
        local q, o = mx.zeros({ 2, 1024, 4, 128 }, "bf16"), { causal = true }
        q:requires_grad()
        mx.sim_times(true)
        local loss = mx.attention(q, q, q, o):to("f32"):sum()
        local forward = mx.sim_times(true).attention_s
        mx.backward(loss)
        local times = { forward, mx.sim_times().attention_s }
        mx.sim.stop()
        return times
    end
    local whole, packed = attention_s("h100-1", 0), attention_s("h100-1", 256)
    assert_near(packed[1] / whole[1], 12 / 36)
    assert_near(packed[2] / whole[2], 12 / 36)
    whole, packed = attention_s("v5p-4", 0), attention_s("v5p-4", 256)
    assert_near(packed[1] / whole[1], 10 / 8)
    assert_near(packed[2] / whole[2], 11 / 9, 0.01) -- and the passes over the parts of dq
end

function TestPod.test_documents_that_cannot_be()
    for _, case in ipairs {
        { "simulated_document_length=256", "is for simulated chips, and hardware is empty" },
        { "hardware=v5p-4", "max_target_length=128", "simulated_document_length=256",
            "expected at most max_target_length = 128, got 256" },
        { "hardware=v5p-4", "max_target_length=1024", "simulated_document_length=256", "context_parallel_strategy=ring",
            "a ring of parts of sequences is simulated without documents" },
        { "hardware=v5p-4", "simulated_document_length=-1", "expected at least 0" },
    } do
        local message = table.remove(case)
        lu.assertErrorMsgContains(message, mx.config.load, case)
    end
end

-- A collective in a slice takes its share of the units from what overlaps with it.
function TestPod.test_collectives_take_units()
    local function issue(more)
        mx.sim.start("h100-8", 1, constants(more))
        local x = mx.zeros({ 8192, 8192 }, "bf16") -- fills a bucket, which starts at once
        mx.sim_times(true)
        local issued = seconds(function() mx.all_gather(x, { dim = 1, async = true }) end)
        return issued, mx.sim_times().ici_busy_s
    end
    local before = issue({ collective_share = 0 })
    local after, busy = issue({ collective_share = 0.25 })
    lu.assertTrue(busy > 0)
    assert_near(after - before, 0.25 * busy, 1e-6)
end

-- With one stream, collectives between slices overlap with nothing; with two, their waiting comes later or never.
function TestPod.test_streams()
    for streams, waits in pairs({ true, false }) do
        mx.sim.start("h100-8", 2, constants({ collective_streams = streams }))
        mx.train.mesh(mx.config.load({ "num_slices=2", "ici_fsdp_parallelism=8" }, { simulate = false }))
        mx.sim_times(true)
        local x = mx.zeros({ 8192, 8192 })
        local taken = seconds(function() mx.all_reduce_(x, { axis = "data", async = true }) end)
        local times = mx.sim_times()
        lu.assertEquals({ streams, times.dcn_s > 0 }, { streams, waits })
        lu.assertEquals(taken >= times.dcn_busy_s, waits)
    end
end

-- Tensors on the host are back before backward needs them, also those that it reads only to compute others again; and
-- the two directions do not wait for each other.
function TestPod.test_offloads_are_hidden()
    local words = { "remat_policy=custom", "decoder_layer_input=offload", "out_proj=offload", "query_proj=offload",
        "key_proj=offload", "value_proj=offload", "base_num_decoder_layers=8" }
    local times = train("v5e-4", 1, nil, words).times
    lu.assertTrue(times.host_busy_s > 0)
    lu.assertTrue(times.host_s < 0.25 * times.host_busy_s, times.host_s / times.host_busy_s)
end

function TestPod.test_without_a_mesh_collectives_are_of_all()
    mx.sim.start("v5e-8", 2, constants())
    mx.all_reduce_(mx.zeros({ 1000, 256 }))
    local t = mx.sim_times()
    lu.assertTrue(t.ici_busy_s > 0 and t.dcn_busy_s > 0)
end

function TestPod.test_again_begins_anew()
    local first = train("v5e-4", 2)
    lu.assertEquals(mx.ranks(), 8)
    local second = train("v5e-4", 2)
    lu.assertEquals(second.seconds, first.seconds)
    lu.assertEquals({ second.before, second.memory.peak }, { first.before, first.memory.peak })
    mx.sim.start("v5e-1")
    lu.assertEquals({ mx.now(), mx.memory().in_use, mx.ranks() }, { 0, 0, 1 })
    mx.config.load({ "hardware=v5e-8", "num_slices=2" }) -- a script that loads its config does the same
    lu.assertEquals(mx.ranks(), 16)
end

-- What reads or wants values says that there are none, and a failure there is told as on any device.
function TestPod.test_what_needs_values()
    local words = { "hardware=v5e-8" }
    lu.assertErrorMsgContains("'hardware=v5e-8' on the command line: hardware: a simulated chip has no values",
        mx.weights.model, "tests/golden/weights/llama2", { words = words })
    lu.assertFalse(mx.is_simulated())
    mx.sim.start("v5e-8", 1)
    local tokenizer = mx.tokenizer.open("bytes")
    lu.assertErrorMsgContains("have no values", tokenizer.decode, tokenizer, mx.zeros({ 3 }, "i32"))
    lu.assertErrorMsgContains("went wrong", mx.checkpoint.together, error, "went wrong")
    lu.assertEquals(mx.checkpoint.together(function() return 3 end), 3)
end

function TestPod.test_a_run_that_would_load_parameters()
    local said, say = {}, mx.metrics.say
    local config = mx.config.load({
        "hardware=v5e-8", "load_parameters_path=tests/golden/weights/llama2", "enable_checkpointing=false",
    })
    local model = mx.models.new(config, mx.train.mesh(config))
    local data = mx.data.open(config, model.parallel.mesh)
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    mx.metrics.say = function(format, ...)
        said[#said + 1] = format:format(...)
    end
    local started, run = pcall(mx.run.start, config, model, optimizer, data)
    mx.metrics.say = say
    lu.assertTrue(started, tostring(run))
    lu.assertEquals(run.step, 0)
    lu.assertStrContains(table.concat(said, "\n"), "nothing is loaded")
    lu.assertEquals(config.base_emb_dim, mx.weights.config("tests/golden/weights/llama2").base_emb_dim)
end

function TestPod.test_the_host_is_itself_afterwards()
    local before = mx.tensor { { 1, 2 }, { 3, 4 } }
    train("v5e-4", 2)
    mx.sim.stop()
    lu.assertEquals({ mx.ranks(), mx.is_simulated(), mx.sim.now }, { 1, false, nil })
    lu.assertEquals(mx.matmul(before, before):totable(), { { 7, 10 }, { 15, 22 } })
    local x = mx.tensor({ 1, 2, 3 }):requires_grad()
    mx.backward((x * x):sum())
    lu.assertEquals(x:grad():totable(), { 2, 4, 6 })
    lu.assertEquals(mx.all_reduce_(mx.ones({ 2 })):totable(), { 1, 1 })
    lu.assertErrorMsgContains("no mesh is set", mx.all_reduce_, mx.ones({ 2 }), { axis = "fsdp" })
    local start = mx.now()
    lu.assertTrue(mx.now() >= start and start > 0) -- the machine's clock
end

-- ---- what is refused ----

function TestRefusals.test_names()
    for _, case in ipairs({
        { "v5x-256", "hardware=v5x-256: there is no configs/hardware/v5x.yml, did you mean v5e?" },
        { "abacus-8", "there are h100, h200, v5e, v5p, v6e, v7x" },
        { "../base-8", "hardware=../base-8: there is no" },
        { "v5e", "hardware=v5e: say how many chips a slice has, as in v5e-8" },
        { "v5e-100", "hardware=v5e-100: TPU v5e has slices of 1, 4, 8, 16, 32, 64, 128, 256" },
        { "v5p-96", "hardware=v5p-96: TPU v5p has slices of 4, 8, 16, 32 and multiples of 64 up to 8960" },
        { "v5p-9024", "and multiples of 64 up to 8960" },
        { "h100-16", "hardware=h100-16: H100 SXM has slices of 1, 2, 4, 8" },
    }) do
        lu.assertErrorMsgContains(case[2], mx.config.load, { "hardware=" .. case[1] })
        lu.assertFalse(mx.is_simulated())
    end
    lu.assertErrorMsgContains("slices: expected at least 1", mx.config.load, { "hardware=v5e-8", "num_slices=0" })
end

function TestRefusals.test_meshes()
    local function mesh(...)
        return mx.train.mesh(mx.config.load({ ... }))
    end
    mesh("hardware=v5e-8", "dcn_data_parallelism=2") -- two slices, as the sizes across them say
    lu.assertErrorMsgContains("dcn_*_parallelism make 2 slices (data=2), but num_slices=3", mesh, "hardware=v5e-8",
        "num_slices=3", "dcn_data_parallelism=2")
    lu.assertErrorMsgContains("ici_fsdp_parallelism=8", mesh, "hardware=v5e-8", "ici_fsdp_parallelism=3")
    mesh("hardware=h100-8", "ici_tensor_parallelism=2") -- a switch takes any
end
