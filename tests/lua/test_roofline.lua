-- The arithmetic intensity of each parallelism, against rules of thumb and figures worked out by hand.

local lu = require "luaunit"
local mx = require "mx"

TestMachine, TestIntensity, TestAdvice, TestReport = {}, {}, {}, {}

local OPTIONS = { ranks = -1, peak_tflops = 0.0, link_gbps = 0.0, dcn_gbps = 0.0, operations = 12 }

-- A config from short words: "ici tensor 2" is ici_tensor_parallelism=2; others are as on the command line. For v5p
-- unless another hardware is named.
local function config(...)
    local words = { "hardware=v5p", ... }
    for i, word in ipairs(words) do
        words[i] = word:gsub("^(%l+) ([%l_]+) (%-?%d+)$", function(level, axis, size)
            return mx.mesh.key(level, axis) .. "=" .. size
        end)
    end
    return mx.config.load(words, { simulate = false, options = OPTIONS })
end

-- A Llama block of one's own sizes.
local function model(...)
    return config("base_emb_dim=1024", "base_num_query_heads=16", "base_num_kv_heads=16", "head_dim=128",
        "base_mlp_dim=10240", "base_num_decoder_layers=16", "vocab_size=32000", "per_device_batch_size=1",
        "max_target_length=2048", ...)
end

-- The rows of one axis, used or not.
local function rows(cfg, axis)
    local plan = mx.mesh.plan(cfg, mx.roofline.ranks(cfg))
    local used, unused = mx.roofline.rows(cfg, plan, mx.roofline.machine(cfg))
    local found = {}
    for _, row in ipairs(table.move(unused, 1, #unused, #used + 1, used)) do
        lu.assertAlmostEquals(row.intensity, row.flops / row.bytes, 1e-6 * row.intensity)
        lu.assertEquals(row.compute_bound, row.intensity > row.needed)
        found[#found + 1] = row.axis == axis and row or nil
    end
    return found
end

-- ---- operations ----

TestOperations = {}

-- One chip; M tokens, E in, N out: 2 M E N FLOPs on 2 (M E + M N) bytes of bf16 and 4 E N of master weights.
function TestOperations.test_a_product_by_hand()
    local cfg = model("hardware=v5e-1", "base_num_decoder_layers=2", "remat_policy=none")
    local machine = mx.roofline.machine(cfg)
    lu.assertEquals(machine.memory, 819e9)
    local found, flops = nil, 0
    for _, row in ipairs(mx.roofline.operations(cfg, machine)) do
        flops = flops + row.flops
        lu.assertAlmostEquals(row.needed, 197e12 / 819e9, 1e-9)
        lu.assertEquals(row.compute_bound, row.intensity > row.needed)
        lu.assertAlmostEquals(row.seconds, math.max(row.flops / 197e12, row.bytes / 819e9), 1e-12)
        if row.op == "matmul" and row.shapes == "bf16 (1, 2048, 1024), f32 (1024, 10240)" then
            found = row
        end
    end
    local M, E, N = 2048, 1024, 10240
    lu.assertEquals(found.calls, 4) -- two products of a gated MLP in each of two layers
    lu.assertEquals(found.flops, 4 * 2 * M * E * N)
    lu.assertEquals(found.bytes, 4 * (2 * (M * E + M * N) + 4 * E * N))
    lu.assertTrue(found.compute_bound)
    local shape = mx.models.shape(cfg)
    local expected = mx.flops.step("maxtext-2025-07", shape, mx.models.count(shape), 1, 2048)
    lu.assertAlmostEquals(flops / expected, 1, 0.02)
end

-- ---- the hardware ----

-- FLOPs a byte over one ICI axis and across slices, as MaxText's guide quotes them: v5p 2,550, v6e 5,100, v7x 12,800;
-- 73,000 across slices of v5p and v6e. An H100 is at 2,200 in its node.
function TestMachine.test_intensity_of_the_hardware()
    for name, expected in pairs({ v5e = 2189, v5p = 2550, v6e = 5100, v7x = 12817, h100 = 2199 }) do
        local machine = mx.roofline.machine(config("hardware=" .. name))
        lu.assertAlmostEquals(machine.peak / machine.ici, expected, 1)
    end
    for _, name in ipairs({ "v5p", "v6e" }) do
        local machine = mx.roofline.machine(config("hardware=" .. name))
        lu.assertAlmostEquals(machine.peak / machine.dcn, 73000, 500)
    end
end

function TestMachine.test_figures_of_the_user()
    local machine = mx.roofline.machine(config("peak_tflops=0.1", "link_gbps=4", "dcn_gbps=1"))
    lu.assertEquals({ machine.peak, machine.ici, machine.dcn }, { 0.1e12, 4e9, 1e9 })
    machine = mx.roofline.machine(config("link_gbps=90"))
    lu.assertEquals({ machine.name, machine.peak, machine.ici }, { "v5p", 459e12, 90e9 })
    for _, word in ipairs({ "peak_tflops=-1", "ranks=0" }) do
        lu.assertFalse(pcall(config, word))
    end
    lu.assertErrorMsgContains("there is no configs/hardware/v5x.yml, did you mean v5e?", mx.roofline.machine,
        config("hardware=v5x"))
end

function TestMachine.test_names_of_hardware()
    local function machine(word)
        return mx.roofline.machine(config(word))
    end
    lu.assertEquals(machine("hardware="), machine("hardware=v5e"))
    lu.assertEquals(machine("hardware=v6e-256"), machine("hardware=v6e"))
    lu.assertEquals(machine("hardware=v7x").name, "v7x (dies)")
    lu.assertFalse(mx.is_simulated()) -- the hardware is only looked up
end

function TestMachine.test_ranks_of_the_hardware()
    local function ranks(...)
        return mx.roofline.ranks(config(...))
    end
    lu.assertEquals(ranks("hardware=v5e-256"), 256)
    lu.assertEquals(ranks("hardware=v5e-256", "num_slices=4"), 1024)
    lu.assertEquals(ranks("hardware=v7x-64"), 128) -- two dies a chip
    lu.assertEquals(ranks("hardware=v5e-256", "ranks=256"), 256)
    lu.assertEquals(ranks("hardware=v5e", "ranks=48"), 48)
    lu.assertEquals(ranks("hardware=v5e"), 1)
    lu.assertErrorMsgContains("ranks=64: hardware=v5e-256 with num_slices=1 has 256 devices", ranks, "hardware=v5e-256",
        "ranks=64")
    lu.assertErrorMsgContains("v5e-100: TPU v5e has slices of 1, 4, 8", ranks, "hardware=v5e-100")
end

-- ---- the intensities ----

-- Of model(): elements of the weights of layers, and of each table of tokens.
local LAYERS, TABLE, TOKENS = 16 * 1024 * (4 * 2048 + 3 * 10240), 32000 * 1024, 2048

-- The sum after a product: M / TP. A tensor axis of 4 needs M above 10k on v5p, 20k on v6e, 51k on v7x; of 16, above
-- 41k on v5p and 82k on v6e.
function TestIntensity.test_tensor()
    for _, case in ipairs({ { "v5p", 10200, 4 }, { "v6e", 20400, 4 }, { "v7x", 51264, 4 }, { "v5p", 40800, 16 },
        { "v6e", 81600, 16 } }) do
        local hardware, mlp, tensor = table.unpack(case)
        local machine = mx.roofline.machine(config("hardware=" .. hardware))
        local function limit(inputs)
            return mx.roofline.tensor_limit(mx.models.shape(model()), inputs, machine.peak / machine.ici)
        end
        lu.assertTrue(limit(mlp) < tensor)
        lu.assertEquals(limit(mlp + 64), tensor)
    end
end

-- A part of a layer has 6 FLOPs for each token and weight. The residual stream travels 5 times for it, and once more
-- for attention, whose sum the policy drops. tensor_sequence sends 3 / 4 of it each time, and tensor half of what is
-- left, a quarter.
function TestIntensity.test_tensor_axes_share_the_mlp_and_the_heads()
    local cfg = model("ranks=16", "ici tensor 2", "ici tensor_sequence 4", "remat_policy=full")
    local stream = 16 * 8 * TOKENS * 1024 * 2 -- bytes, in all layers
    for axis, share in pairs({ tensor = 1 / 8, tensor_sequence = 3 / 4 }) do
        local found = rows(cfg, axis)
        lu.assertStrContains(found[1].what, "output of attention")
        lu.assertAlmostEquals(found[1].bytes, 6 * share * stream, 1)
        lu.assertAlmostEquals(found[1].flops, 16 * 6 * 8 * TOKENS * 1024 * 4 * 2048 / 8, 1e3)
        lu.assertStrContains(found[2].what, "output of the MLP")
        lu.assertAlmostEquals(found[2].bytes, 5 * share * stream, 1)
        lu.assertAlmostEquals(found[2].flops, 16 * 6 * 8 * TOKENS * 1024 * 3 * 10240 / 8, 1e3)
    end
    lu.assertAlmostEquals(rows(model("ranks=16", "ici tensor 2", "remat_policy=none"), "tensor")[1].bytes,
        5 / 2 * stream / 4, 1) -- a quarter of the tokens
end

-- 6 FLOPs for each token, id of the part and feature, and four times a token's bf16 features: all-gathers before the
-- logits and of the embedding's gradient, and the two reduce-scatters that go the other way.
function TestIntensity.test_the_vocabulary()
    local cfg = model("ranks=16", "ici tensor 2", "ici tensor_sequence 4")
    for axis, share in pairs({ tensor = 1 / 8, tensor_sequence = 3 / 4 }) do
        local row = rows(cfg, axis)[3]
        lu.assertStrContains(row.what, "logits")
        lu.assertAlmostEquals(row.bytes, share * 4 * 8 * TOKENS * 1024 * 2, 1)
        lu.assertAlmostEquals(row.flops, 6 * 8 * TOKENS * TABLE / 8, 1e3)
    end
end

-- Weights of layers travel three times, tables twice; the table that is looked up has no FLOPs.
function TestIntensity.test_fsdp()
    local function row(...)
        return rows(model("ranks=16", ...), "fsdp")[1]
    end
    local bytes, flops = 2 * (3 * LAYERS + 4 * TABLE), 6 * TOKENS * (LAYERS + TABLE)
    lu.assertAlmostEquals(row().bytes, bytes * 15 / 16, 1)
    lu.assertAlmostEquals(row().flops, flops, 1e3)
    lu.assertAlmostEquals(row("per_device_batch_size=4").intensity, 4 * row().intensity, 1e-6)
    local least = TOKENS * 2550 / row().intensity -- tokens of a device
    lu.assertFalse(row("max_target_length=" .. math.floor(least)).compute_bound)
    lu.assertTrue(row("max_target_length=" .. math.ceil(least)).compute_bound)
    -- Devices of a tensor axis have the same tokens: each computes on those of all, with a part of the weights.
    local split = row("ici tensor 4")
    lu.assertAlmostEquals(split.bytes, bytes / 4 * 3 / 4, 1)
    lu.assertAlmostEquals(split.flops, flops, 1e3)
    lu.assertAlmostEquals(row("dtype=float32").intensity, row().intensity / 2, 1e-6)
    lu.assertAlmostEquals(row("gradient_accumulation_steps=3").bytes, 3 * row().bytes, 1) -- gathered in each pass
    local once = "gradient_accumulation_fsdp_ag_once=true"
    lu.assertAlmostEquals(row("gradient_accumulation_steps=3", once).bytes, 4 * (LAYERS + 2 * TABLE) * 15 / 16, 1)
    lu.assertAlmostEquals(row(once).bytes, row().bytes, 1) -- a single pass gathers as it always does
end

function TestIntensity.test_axes_that_gather_weights_are_alike()
    local fsdp = rows(model("ranks=8", "ici fsdp 8"), "fsdp")[1]
    for _, axis in ipairs({ "fsdp_transpose", "context", "expert" }) do
        local row = rows(model("ranks=8", "ici fsdp 1", ("ici %s 8"):format(axis)), axis)[1]
        lu.assertAlmostEquals(row.intensity, fsdp.intensity, 1e-6)
        lu.assertStrContains(row.what, "weights")
    end
end

-- f32 gradients, all-reduced once a step: each rank sends twice 7 / 8 of them.
function TestIntensity.test_data()
    local row = rows(model("ranks=8", "ici data 8", "ici fsdp 1"), "data")[1]
    lu.assertAlmostEquals(row.bytes, 2 * 7 / 8 * 4 * (LAYERS + 2 * TABLE), 1)
    lu.assertAlmostEquals(row.flops, 4 * TOKENS * (LAYERS + TABLE), 1e3)
    local more = rows(model("ranks=8", "ici data 8", "ici fsdp 1", "gradient_accumulation_steps=4"), "data")[1]
    lu.assertAlmostEquals(more.bytes, row.bytes, 1)
    lu.assertAlmostEquals(more.intensity, 4 * row.intensity, 1e-6)
end

-- Across slices: half of what the other chips of a slice have not scattered, whatever the mesh inside.
function TestIntensity.test_data_across_slices()
    for _, words in ipairs({ {}, { "ici tensor 16" }, { "ici tensor 4", "ici context 2" }, { "ici data 4" },
        { "ici data 256", "ici fsdp 1" } }) do
        local found = rows(model("ranks=512", "num_slices=2", table.unpack(words)), "data")
        local row = found[#found]
        lu.assertEquals({ row.level, row.size }, { "dcn", 2 })
        lu.assertAlmostEquals(row.bytes, 2 / 2 * 4 * (LAYERS + 2 * TABLE) / 256, 1)
        lu.assertAlmostEquals(row.needed, 73440, 1e-6)
    end
end

-- fsdp of 8 inside and 4 across slices, of half the weights: 7 / 8 inside, 3 / 4 of an eighth across.
function TestIntensity.test_fsdp_across_slices()
    local found = rows(model("ranks=64", "num_slices=4", "dcn fsdp 4", "ici tensor 2"), "fsdp")
    local bytes = 2 * (3 * LAYERS + 4 * TABLE) / 2
    lu.assertEquals({ found[1].level, found[1].size, found[2].level, found[2].size }, { "ici", 8, "dcn", 4 })
    lu.assertAlmostEquals(found[1].bytes, bytes * 7 / 8, 1)
    lu.assertAlmostEquals(found[2].bytes, bytes / 8 * 3 / 4, 1)
end

-- S Hq / (Hkv CP), and half of it where a causal mask leaves half; 3 / 4 of the keys come from other ranks.
function TestIntensity.test_keys_and_values_of_context()
    local function intensity(...)
        local row = rows(model("ranks=8", "ici context 4", "base_num_kv_heads=4", ...), "context")[2]
        lu.assertStrContains(row.what, "keys and values")
        return 3 / 4 * row.intensity
    end
    lu.assertAlmostEquals(intensity("attention_type=full"), 2048 * 16 / (4 * 4), 1e-6)
    lu.assertAlmostEquals(intensity(), 2048 * 16 / (4 * 4) / 2, 1e-6)
    -- A window of 512: a band of S W - W^2 / 2 of the square.
    lu.assertAlmostEquals(intensity("attention_type=local_sliding", "sliding_window_size=512"),
        2048 * 16 / (4 * 4) * (2048 * 512 - 512 * 512 / 2) / 2048 ^ 2, 1e-6)
end

-- Bytes in units of one trip of keys and values, of which gathering makes three.
function TestIntensity.test_keys_and_values_around_a_ring()
    local function trips(...)
        local function bytes(...)
            return rows(model("ranks=8", "ici context 4", "context_parallel_load_balance=false", ...),
                "context")[2].bytes
        end
        return 3 * bytes("context_parallel_strategy=ring", ...) / bytes(...)
    end
    -- There, there again, back as f32; and with full rematerialisation the forward pass once more.
    lu.assertAlmostEquals(trips("remat_policy=none"), 1 + 1 + 2, 1e-9)
    lu.assertAlmostEquals(trips("remat_policy=minimal_with_context"), 1 + 1 + 2, 1e-9)
    lu.assertAlmostEquals(trips("remat_policy=full"), 1 + 1 + 2 + 1, 1e-9)
    lu.assertAlmostEquals(trips("remat_policy=none", "dtype=float32"), 1 + 1 + 1, 1e-9)
    -- A rank has 512 tokens: the first of them sees the last 513 - 512 of the rank before.
    for window, hops in pairs({ [2] = 1, [513] = 1, [514] = 2, [1025] = 2, [1026] = 3, [2048] = 3 }) do
        lu.assertAlmostEquals(trips("remat_policy=none", "attention_type=local_sliding",
            "sliding_window_size=" .. window), 4 * hops / 3, 1e-9, window)
    end
    -- With load balance, it has two pieces of 256: the late ones need the late ones behind.
    for window, hops in pairs({ [2] = 2, [257] = 2, [258] = 3, [2048] = 3 }) do
        lu.assertAlmostEquals(trips("remat_policy=none", "attention_type=local_sliding",
            "context_parallel_load_balance=true", "sliding_window_size=" .. window), 4 * hops / 2, 1e-9, window)
    end
    local row = rows(model("ranks=8", "ici context 4", "context_parallel_strategy=ring"), "context")[2]
    lu.assertStrContains(row.what, "around the ring")
    local alone = model("ranks=8", "ici context 4", "context_parallel_strategy=ring", "attention_type=local_sliding",
        "sliding_window_size=1") -- a token sees itself alone: nothing travels
    lu.assertEquals(#rows(alone, "context"), 1)
end

-- Queries, keys, values and results of S / 4 tokens, 2 bytes each, there and back and with full rematerialisation once
-- more: 3 x 2 (Hq + Hkv) S D w / 4 bytes for 3 x 4 S^2 Hq D / 2 / 4 FLOPs.
function TestIntensity.test_heads_that_are_exchanged()
    local function exchange(...)
        return rows(model("ranks=8", "ici context 4", "context_parallel_strategy=ulysses", ...), "context")[2]
    end
    local row = exchange("base_num_kv_heads=4")
    lu.assertStrContains(row.what, "all-to-alls")
    lu.assertAlmostEquals(3 / 4 * row.intensity, 2048 * 16 / (2 * (16 + 4)), 1e-6)
    lu.assertAlmostEquals(exchange("remat_policy=none").bytes / exchange().bytes, 2 / 3, 1e-9)
    lu.assertAlmostEquals(exchange("base_num_kv_heads=2").bytes, exchange("base_num_kv_heads=4").bytes, 1) -- copies
    lu.assertErrorMsgContains("8 ranks (context) cannot share out the 4 heads", mx.roofline.report,
        model("ranks=8", "ici context 8", "context_parallel_strategy=ulysses", "base_num_query_heads=4",
            "base_num_kv_heads=4"))
    -- Across slices, each of two sends half of what it has, however many ranks share it inside.
    local both = model("ranks=8", "ici context 4", "dcn context 2", "num_slices=2", "ici fsdp 1",
        "context_parallel_strategy=ulysses")
    local across
    for _, one in ipairs(rows(both, "context")) do
        across = one.level == "dcn" and one.what:find("all%-to%-alls") and one or across
    end
    lu.assertAlmostEquals(across.bytes, 16 * 3 * 2 * (16 + 16) * 2048 / 8 * 128 * 2 * 8 * 1 / 2, 1)
end

-- A token's features travel to the next stage, and their gradients back: 18 B E M FLOPs of a gated MLP on 4 B E bytes.
function TestIntensity.test_stage()
    local function row(mlp, ...)
        return rows(model("ranks=16", "base_mlp_dim=" .. mlp, "ici fsdp 1", ...), "stage")[1]
    end
    lu.assertAlmostEquals(row(2048, "ici stage 16").intensity, 4.5 * 2048, 1e-6)
    lu.assertAlmostEquals(row(2048, "ici stage 16").bytes, 4 * 16 * TOKENS * 1024, 1)
    lu.assertAlmostEquals(row(2048, "ici stage 4", "ici fsdp 4").intensity, 4 * 4.5 * 2048, 1e-6)
    lu.assertFalse(row(566, "ici stage 16").compute_bound)
    lu.assertTrue(row(567, "ici stage 16").compute_bound)
    local over = { "dcn stage 16", "num_slices=16" }
    lu.assertFalse(row(16320, table.unpack(over)).compute_bound)
    lu.assertTrue(row(16321, table.unpack(over)).compute_bound)
end

-- Eight layers of 4 E^2 + 3 E M elements and the table of logits follow the pipeline. Each stage has them for a fourth
-- of the tokens, 2,048: 4 FLOPs of gradients for each token and element, which is sent in 8 bytes x 3/4.
function TestIntensity.test_layers_outside_the_pipeline()
    local E, M, found = 1024, 2048, nil
    for _, row in ipairs(rows(model("ranks=4", "base_mlp_dim=" .. M, "ici fsdp 1", "ici stage 4",
        "num_layers_per_pipeline_stage=2", "pipeline_parallel_layers=8"), "stage")) do
        found = row.what:find("^gradients") and row or found
    end
    local elements = 8 * (4 * E * 2 * E + 3 * E * M) + E * 32000
    lu.assertAlmostEquals(found.bytes, elements * 8 * 3 / 4, 1)
    lu.assertAlmostEquals(found.flops, 4 * 2048 * elements, 1)
end

function TestIntensity.test_mixing_changes_nothing()
    local alone = rows(model("ranks=4", "ici tensor 4"), "tensor")[1].intensity
    local mixed = rows(model("ranks=64", "ici tensor 4", "ici stage 2", "ici context 2"), "tensor")[1].intensity
    lu.assertAlmostEquals(mixed, alone, 1e-6)
end

-- The table has rows for axes of size 1, too, as if they had size 2. context_usp_ulysses has none: it needs a key.
function TestIntensity.test_axes_of_size_one()
    for _, row in ipairs(rows(model("ranks=8", "ici tensor 2"), "context_usp_ulysses")) do
        lu.fail(row.what)
    end
    local cfg = model("ranks=8", "ici tensor 2", "context_parallel_strategy=usp")
    local used, unused = mx.roofline.rows(cfg, mx.mesh.plan(cfg, 8), mx.roofline.machine(cfg))
    local seen = {}
    for _, row in ipairs(used) do
        seen[row.axis] = "used"
    end
    for _, row in ipairs(unused) do
        lu.assertEquals({ row.size, row.level }, { 2, "ici" })
        seen[row.axis] = "unused"
    end
    for _, axis in ipairs(mx.mesh.AXES) do
        lu.assertEquals(seen[axis], (axis == "fsdp" or axis == "tensor") and "used" or "unused")
    end
    -- Half the stream of the tokens of four devices, whose products are split in four.
    local row = rows(cfg, "tensor_sequence")[2]
    lu.assertAlmostEquals(row.bytes, 16 * 5 / 2 * 4 * TOKENS * 1024 * 2, 1)
    lu.assertAlmostEquals(row.flops, 16 * 6 * 4 * TOKENS * 1024 * 3 * 10240 / 4, 1e3)
end

function TestIntensity.test_rules_of_the_user()
    -- Without fsdp in the rule of emb, weights are whole on all of its ranks: their gradients are all-reduced.
    local row = rows(model("ranks=8", "logical_axis_rules=[[embed,[]],[embed_attn,[]],[embed_vocab,[]]]"), "fsdp")[1]
    lu.assertStrContains(row.what, "gradients: all-reduce")
    lu.assertAlmostEquals(row.bytes, 2 * 7 / 8 * 4 * (LAYERS + 2 * TABLE), 1)
end

-- ---- advice ----

function TestAdvice.test_the_largest_tensor_axis()
    local shape = mx.models.shape(config("model_name=llama3-8b")) -- mlp 14,336, 8 kv_heads
    local function limit(needed)
        return mx.roofline.tensor_limit(shape, shape.blocks[1].mlp.width, needed)
    end
    lu.assertEquals(limit(2550), 4) -- 14,336 / 5.6
    lu.assertEquals(limit(5100), 2)
    lu.assertEquals(limit(12800), 1)
    lu.assertEquals(limit(10), 8) -- no more than kv_heads
    shape = mx.models.shape(config("model_name=128b"))
    lu.assertEquals(limit(197e12 / 90e9), 16) -- as the published job has it
end

function TestAdvice.test_the_least_tokens_of_fsdp()
    lu.assertEquals(mx.roofline.least_tokens(2550, 1, 2), 2551)
    lu.assertEquals(mx.roofline.least_tokens(2550, 4, 2), 638)
    lu.assertEquals(mx.roofline.least_tokens(2550, 1, 4), 5101)
    lu.assertEquals(mx.roofline.least_tokens(2550, 1, 2, 3), 7651)
end

-- Mixtral 8x7B: attention has 2 E (H + K) D weights, the router 8 E, an expert 3 E M. A token meets two experts. With
-- four ranks a device gathers two, and their tokens meet as many of its as theirs.
function TestAdvice.test_weights_that_a_token_does_not_meet()
    local E, M = 4096, 14336
    local others, expert = 2 * E * (32 + 8) * 128 + 8 * E, 3 * E * M
    local shape = mx.models.shape(config("model_name=mixtral-8x7b"))
    for ranks, count in pairs({ 8, [2] = 4, [4] = 2 }) do
        lu.assertAlmostEquals(mx.roofline.gathered_for_met(shape, ranks),
            (others + count * expert) / (others + 2 * expert), 1e-12)
    end
    lu.assertEquals(mx.roofline.gathered_for_met(mx.models.shape(config("model_name=llama3-8b")), 1), 1)
end

-- ---- the report ----

local function report(...)
    local lines = mx.roofline.report(config(...))
    for _, line in ipairs(lines) do
        lu.assertTrue(#line <= 80, line)
        lu.assertNil(line:find("%s$"), "'" .. line .. "'")
    end
    return table.concat(lines, "\n")
end

function TestReport.test_llama()
    local text = report("model_name=llama3-8b", "ranks=64", "ici tensor 4", "per_device_batch_size=1",
        "max_target_length=8192")
    lu.assertStrContains(text, "v5p: 64 ranks: fsdp 16 x tensor 4")
    lu.assertStrContains(text, "fsdp              16 ICI 10.06 GiB     369    34,156   2,550 compute-bound")
    lu.assertStrContains(text, "tensor             4 ICI 36.00 GiB      66     1,707   2,550 communication-bound")
    lu.assertStrContains(text, "8,602   2,550 compute-bound\n    inputs and output of the MLP")
    lu.assertStrContains(text:gsub("\n", " "), "tensor axes of up to 4 together hide the sum after the last product "
        .. "of the MLP (mlp 14,336 / 4 = 3,584); none hides that of attention. fsdp needs at least 638 tokens a device "
        .. "(4 devices share theirs); here are 8,192.")
end

function TestReport.test_its_width()
    report()
    report("ranks=8", "model_name=tiny")
    report("model_name=128b", "hardware=v7x", "ranks=262144", "num_slices=1024", "ici tensor 16",
        "per_device_batch_size=64")
    report("model_name=16b", "ranks=256", "ici data 2", "ici stage 2", "ici fsdp_transpose 2", "ici context 2",
        "ici tensor 2", "ici tensor_sequence 2", "ici expert 2")
end

function TestReport.test_advice_in_words()
    local function flat(...)
        return (report(...):gsub("\n", " "))
    end
    local text = flat("ranks=8", "base_mlp_dim=1408", "per_device_batch_size=1")
    lu.assertStrContains(text, "No tensor axis hides the sum after the last product of the MLP inside a "
        .. "slice: mlp 1,408 / 2 is at most 2,550. fsdp needs at least 2,551 tokens a device; here are 2,048, too few.")
    lu.assertStrContains(flat("base_num_kv_heads=1", "base_mlp_dim=16384"),
        "No tensor axis divides both 16 heads and 1 kv_heads")
    lu.assertStrContains(flat("ranks=1"), "nothing travels")
end

function TestReport.test_a_mesh_that_cannot_split_the_model()
    local done, message = pcall(report, "model_name=gpt2-124m", "ranks=16", "ici tensor 16")
    lu.assertFalse(done)
    lu.assertStrContains(tostring(message),
        "attention: dimension 2 (heads) has 12 elements, too few for 16 parts (tensor=16)")
    done, message = pcall(report, "ranks=8", "ici tensor 3")
    lu.assertFalse(done)
    lu.assertStrContains(tostring(message), "ici_tensor_parallelism=2")
end
