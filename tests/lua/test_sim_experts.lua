-- What a plan says of layers with experts, against the operations of a simulated step and against formulas by hand.

local experts = require "mx.sim.experts"
local lu = require "luaunit"
local mx = require "mx"

TestSimExperts = {}

local function config(...)
    return mx.config.load({ "model_name=tiny-moe", "enable_checkpointing=false", ... }, { simulate = false })
end

local function of(cfg)
    return experts.of(cfg, mx.models.shape(cfg), mx.mesh.plan(cfg, 8))
end

-- 8 x 64 tokens a device, 2 of 8 experts each: 128 rows of an expert. Four ranks with different experts compute two
-- each, of all their tokens.
function TestSimExperts.test_by_hand()
    local alone = of(config("hardware=v5e-8"))
    lu.assertEquals({ alone.count, alone.ranks, alone.rows, alone.rows_each }, { 8, 1, 1024, 128 })
    lu.assertEquals(alone.buffer_bytes, 1024 * (2 * 64 + 3 * 64) * 2)
    lu.assertEquals({ alone.weight_bytes, alone.token_bytes }, { 8 * 3 * 64 * 64 * 2, 0 })
    local ring = of(config("hardware=v5e-8", "ici_expert_parallelism=4", "simulated_expert_imbalance=1.5",
        "use_ring_of_experts=true"))
    lu.assertEquals({ ring.count, ring.ranks, ring.rows, ring.rows_each }, { 2, 4, 1536, 768 })
    lu.assertEquals({ ring.token_bytes, ring.sends_rows }, { 4 * 8 * 64 * 64 * 2, false })
    -- Its 8 x 64 tokens have 2 rows each. A buffer of 1.25 times the even share is computed as if it were full.
    local exchange = of(config("hardware=v5e-8", "ici_expert_parallelism=4", "ragged_buffer_factor=1.25"))
    lu.assertEquals({ exchange.count, exchange.ranks, exchange.rows, exchange.rows_each }, { 2, 4, 1280, 640 })
    lu.assertEquals({ exchange.token_bytes, exchange.sends_rows }, { 2 * 8 * 64 * 64 * 2, true })
    -- With auto, tokens are gathered by at most as many ranks as they have experts.
    for ranks, sends_rows in pairs { [2] = false, [4] = true } do
        local found = of(config("hardware=v5e-8", "ici_expert_parallelism=" .. ranks, "use_ring_of_experts=auto"))
        lu.assertEquals(found.sends_rows, sends_rows)
    end
    -- A limit of one even share of each sequence: 16 rows of an expert.
    local limited = of(config("hardware=v5e-8", "sparse_matmul=false", "capacity_factor=0.5"))
    lu.assertEquals(limited.rows, 8 * 8 * 8)
    -- With 1.25 times that, a pod computes 20 rows of each expert for each sequence, this machine those of all slots.
    local words = { "sparse_matmul=false", "capacity_factor=1.25" }
    lu.assertEquals(of(config("hardware=v5e-8", table.unpack(words))).rows, 8 * 8 * 20)
    lu.assertEquals(of(config("hardware=host-8", table.unpack(words))).rows, 1024)
    lu.assertNil(experts.of(config("num_experts=1"), mx.models.shape(config("num_experts=1")), nil))
end

-- The rows and widths are those of the products that a step computes.
function TestSimExperts.test_a_step_has_these_products()
    for _, words in ipairs({
        {}, { "ici_expert_parallelism=2", "ici_fsdp_parallelism=4" },
        { "ici_expert_parallelism=2", "ici_fsdp_parallelism=2", "ici_tensor_parallelism=2" },
        { "ici_expert_parallelism=8", "simulated_expert_imbalance=1.25" },
        { "ici_expert_parallelism=8", "simulated_expert_imbalance=1.25", "use_ring_of_experts=true" },
        { "ici_expert_parallelism=4", "ici_fsdp_parallelism=2", "ragged_buffer_factor=1.5" },
        { "sparse_matmul=false", "capacity_factor=1.25" },
        { "sparse_matmul=false", "capacity_factor=1.25", "ici_expert_parallelism=2", "ici_fsdp_parallelism=4" },
        { "sparse_matmul=false", "capacity_factor=1.25", "ici_expert_parallelism=8" },
    }) do
        local cfg, found = config("hardware=v5e-8", table.unpack(words)), nil
        local e = of(cfg)
        local width = (e.buffer_bytes / (2 * e.rows) - 2 * 64) // 3
        -- Weights that are not gathered are f32.
        local dtype = e.weight_bytes > 0 and "bf16" or "f32"
        local shapes = ("bf16 (%d, 64), %s (%d, 64, %d), i32 (%d)"):format(e.rows, dtype, e.count, width, e.count)
        for _, row in ipairs(mx.plan.simulate(cfg, "v5e-8", 1, { profile = true }).operations) do
            found = found or row.op == "grouped_matmul" and row.shapes == shapes
        end
        lu.assertTrue(found, shapes)
    end
end

-- Two sequences of 256 tokens of 4,096 features, 2 of 4 experts each, with a capacity of 160 slots: the mask of a
-- sequence is (256, 640). Moving the tokens is a product of it, adding up the results another; the gradient of a
-- weighted sum has one for rows and one for weights. Weights that travel alone are copied.
function TestSimExperts.test_products_with_masks()
    for masks, peak in pairs { [true] = 197e12, [false] = 1e300 } do
        mx.sim.start("v5e-1", 1, { matrix_efficiency = 1, memory_efficiency = 1, expert_masks = masks })
        local h, chosen = mx.zeros({ 2, 256, 4096 }, "bf16"), mx.zeros({ 2, 256, 2 }, "i32")
        local weights = mx.zeros { 2, 256, 2 }
        local order, place = mx.moe_sort(chosen, { experts = 4, capacity = 160, sequences = 2, rows = 1280 })
        local product_s = 2.0 * 2 * 256 * 640 * 4096 / peak
        local function assert_products(n, fn)
            mx.sim_times(true)
            local result = fn()
            lu.assertAlmostEquals(mx.sim_times().matrix_s, n * product_s, 1e-12)
            return result
        end
        local rows = assert_products(1, function() return mx.moe_gather(h, order, place) end)
        rows:requires_grad()
        weights:requires_grad()
        local y = assert_products(1, function() return mx.moe_combine(rows, order, place, weights) end)
        local loss = y:to("f32"):sum()
        assert_products(2, function() mx.backward(loss) end)
        assert_products(0, function() mx.moe_gather(mx.zeros { 1024, 1 }, order, place:view(1024, 1)) end)
        mx.sim.stop()
    end
end

-- 1,024 rows of 4 groups in tiles of 512: two tiles, and one more for each of the three borders inside. Experts that
-- compute all slots of a capacity are equal products. The sum over a token's rows reads and writes them once more.
function TestSimExperts.test_tiles_of_grouped_products()
    for _, case in ipairs {
        { { group_tile = 512 }, 5 * 512 }, { { group_tile = 2048 }, 4 * 1024 }, { { expert_masks = true }, 1024 },
    } do
        case[1].matrix_efficiency, case[1].memory_Bps = 1, 1e18
        mx.sim.start("v5e-1", 1, case[1])
        local x, dy = mx.zeros({ 1024, 2048 }, "bf16"), mx.zeros({ 1024, 4096 }, "bf16")
        local w, sum, counts = mx.zeros({ 4, 2048, 4096 }, "bf16"), mx.zeros { 4, 2048, 4096 }, mx.zeros({ 4 }, "i32")
        for _, fn in ipairs {
            function() mx.grouped_matmul(x, w, counts) end, function() mx.grouped_matmul_grad(x, dy, counts) end,
            function() mx.grouped_matmul_acc(sum, x, dy, counts) end,
        } do
            mx.sim_times(true)
            fn()
            local expected = 2.0 * case[2] * 2048 * 4096 / 197e12
            lu.assertAlmostEquals(mx.sim_times().matrix_s, expected, 1e-9 * expected)
        end
        mx.sim.stop()
    end
    mx.sim.start("v5e-1", 1, { memory_efficiency = 1 })
    local y, order, place = mx.zeros({ 1024, 4096 }, "bf16"), mx.zeros({ 1024 }, "i32"), mx.zeros({ 2, 256, 2 }, "i32")
    mx.sim_times(true)
    mx.moe_combine(y, order, place)
    local bytes = 3 * 1024 * 4096 * 2 + 1024 * 4 + 1024 * 4 -- the result is written when something reads it
    lu.assertAlmostEquals(mx.sim_times().memory_s, bytes / 819e9, 1e-12)
    mx.sim.stop()
end

-- The intensity of a grouped product passes what the chip needs with these rows of an expert, and not with one less.
function TestSimExperts.test_least_rows()
    local shape, needed = mx.models.shape(mx.config.load { "model_name=qwen3-235b-a22b" }), 312.6
    local least = experts.least_rows(shape, 1536, needed)
    local function intensity(m)
        return 2 * m * 4096 * 1536 / (2 * (m * 4096 + 4096 * 1536 + m * 1536))
    end
    lu.assertTrue(intensity(least) >= needed and intensity(least - 1) < needed)
    lu.assertNil(experts.least_rows(shape, 1536, 2 * 4096 * 1536 / (2 * (4096 + 1536))))
    local cfg = config("hardware=v5e-8")
    local text = experts.advice(cfg, mx.models.shape(cfg), mx.mesh.plan(cfg, 8), 20)
    -- 20 x 2 x 64 x 64 / (2 x 64 x 64 - 20 x 2 x 128) = 53.3
    lu.assertEquals(text, "Products of experts need at least 54 rows of each expert to be compute-bound; here are 128.")
    text = experts.advice(cfg, mx.models.shape(cfg), mx.mesh.plan(cfg, 8), 32)
    lu.assertEquals(text, "Products of experts of width 64 are bound by memory with any number of rows.")
end

function TestSimExperts.test_lines()
    local cfg = config("hardware=v5e-8", "ici_expert_parallelism=4", "simulated_expert_imbalance=1.5")
    local text = table.concat(experts.lines(cfg, mx.models.shape(cfg), mx.mesh.plan(cfg, 8)), "\n")
    lu.assertStrContains(text, "experts of a layer: 8 of width 64, 2 for each token")
    lu.assertStrContains(text, "768  1.5 times the even share")
    lu.assertStrContains(text, "1,536 rows")
    lu.assertStrContains(text, "sent rows                              0.1 MiB  to 4 chips")
    cfg = config("hardware=v5e-8", "ici_expert_parallelism=4", "use_ring_of_experts=true")
    text = table.concat(experts.lines(cfg, mx.models.shape(cfg), mx.mesh.plan(cfg, 8)), "\n")
    lu.assertStrContains(text, "gathered tokens                        0.2 MiB  of 4 chips")
    local dense = config("num_experts=1")
    lu.assertEquals(experts.lines(dense, mx.models.shape(dense), nil), {})
end

-- The jobs and products of a simulated step of a layer with experts, in the order of their starts.
local function events_of(cfg)
    mx.sim.start(cfg.hardware, 1)
    local model, list = mx.models.new(mx.models.shape(cfg), mx.train.mesh(cfg), cfg), {}
    local sizes = { mx.data.sequences(cfg, model.parallel.mesh), cfg.max_target_length }
    mx.trace_start()
    mx.train.gradients(model, {
        next = function() return { tokens = mx.zeros(sizes, "i32"), targets = mx.zeros(sizes, "i32") } end,
    }, 1)
    for _, event in ipairs(mx.trace_events()) do
        local is_rows = event.name == "all_to_all_rows" and event.kind ~= "operation" and event.kind ~= "copy"
        if is_rows or event.name:find("^grouped_matmul") then
            list[#list + 1] = event
        end
    end
    mx.trace_stop()
    mx.sim.stop()
    table.sort(list, function(a, b) return a.start_s < b.start_s end)
    return list
end

-- Seconds in which rows travel, and in which the chip waits for them.
local function seconds_of(events)
    local sums = { job = 0, wait = 0 }
    for _, event in ipairs(events) do
        if event.name == "all_to_all_rows" then
            sums[event.kind] = sums[event.kind] + event.end_s - event.start_s
        end
    end
    return sums
end

-- With two chunks, one exchange travels beside the products of what the other one brought. Backward, the gradients of
-- both results set off first (x), then those of inputs behind the products (p) of their chunk.
function TestSimExperts.test_chunks_travel_beside_products()
    local function config_with(chunks)
        return config("hardware=v5e-8", "ici_expert_parallelism=8", "base_num_decoder_layers=1", "base_emb_dim=1024",
            "base_moe_mlp_dim=8192", "remat_policy=none", "num_moe_token_chunks=" .. chunks)
    end
    local text, was = {}, nil
    for _, event in ipairs(events_of(config_with(2))) do
        local is_job = event.kind == "job" and event.count > 1 -- no weights
        local mark = event.name == "all_to_all_rows" and (is_job and "x" or "") or "p"
        text[#text + 1] = (mark ~= "p" or was ~= "p") and mark or nil
        was = mark ~= "" and mark or was
    end
    lu.assertEquals(table.concat(text):sub(-6), "xxpxpx")
    local one, two = seconds_of(events_of(config_with(1))), seconds_of(events_of(config_with(2)))
    lu.assertTrue(one.wait > 0.9 * one.job and two.wait < 0.55 * two.job, ("%g, %g"):format(one.wait / one.job,
        two.wait / two.job))
end

-- Rows, their weights and results; backward three gradients. If backward computes experts again, it needs rows and
-- weights again, but no results: sums of rows do not read them.
function TestSimExperts.test_what_travels_again()
    for policy, expected in pairs { none = 6, full = 8 } do
        local n = 0
        for _, event in ipairs(events_of(config("hardware=v5e-8", "ici_expert_parallelism=8",
            "base_num_decoder_layers=1", "remat_policy=" .. policy))) do
            n = n + (event.kind == "job" and 1 or 0)
        end
        lu.assertEquals(n, expected, policy)
    end
end

-- One layer with experts of DeepSeek-V3: with two chunks, at least half of the exchange is hidden.
function TestSimExperts.test_half_of_the_exchange_of_deepseek_v3_is_hidden()
    for chunks, most in ipairs { 1, 0.5 } do
        local sums = seconds_of(events_of(mx.config.load({
            "model_name=deepseek3-671b", "hardware=v7x-128", "ici_expert_parallelism=8", "base_num_decoder_layers=4",
            "max_target_length=4096", "per_device_batch_size=4", "remat_policy=full", "enable_checkpointing=false",
            "num_moe_token_chunks=" .. chunks,
        }, { simulate = false })))
        lu.assertTrue(sums.wait > (most - 0.5) * sums.job and sums.wait < most * sums.job, sums.wait / sums.job)
    end
end
