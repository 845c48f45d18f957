-- Plans: what a step holds against a real step, refusals before anything is allocated, and the search.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

TestPlan = {}

local function config(...)
    return mx.config.load({ "model_name=tiny", "enable_checkpointing=false", ... }, { simulate = false })
end

-- The peak of a real step after the first.
local function real_peak(c)
    local before = mx.memory().in_use
    local model = mx.models.new(c)
    local data, optimizer = mx.data.open(c), mx.optim.new(c, model.params)
    for _ = 1, 2 do
        mx.reset_peak()
        mx.train.gradients(model, data, 1)
        optimizer:step()
    end
    return mx.memory().peak - before
end

function TestPlan.test_a_simulated_step_allocates_what_a_real_one_does()
    for _, policy in ipairs({ "full", "minimal", "none" }) do
        collectgarbage()
        local c = config("remat_policy=" .. policy, "per_device_batch_size=4", "max_target_length=128",
            "reuse_example_batch=1")
        local simulated = mx.plan.simulate(c, mx.host.hardware(1, { measure = false }), 1)
        local real = real_peak(c)
        local scratch = real - simulated.peak_bytes -- what kernels take for themselves
        lu.assertTrue(scratch > -0.01 * real and scratch < 1 << 20,
            ("%s: %d simulated, %d real"):format(policy, simulated.peak_bytes, real))
        lu.assertFalse(mx.is_simulated())
    end
end

-- Layers and passes are alike: each adds what the one before it added. So what many of them take follows from two plans
-- that go through them one by one.
function TestPlan.test_many_layers_and_passes_are_added_up()
    local function numbers(...)
        local r = mx.plan.simulate(config("base_emb_dim=16", "base_mlp_dim=16", "max_target_length=8", "vocab_size=16",
            "per_device_batch_size=1", ...), "v5e-1", 1,
            { profile = true, staged = true })
        local calls = 0
        for _, row in ipairs(r.operations) do
            calls = calls + row.calls
        end
        return {
            r.peak_bytes, r.weights, r.gradients, r.states, r.batches, r.staged, r.kept.decoder_layer_input.bytes,
            r.step_s, r.times.memory_s, r.params, calls,
        }
    end
    for key, counts in pairs({
        base_num_decoder_layers = { 30, 40, 300 }, gradient_accumulation_steps = { 6, 8, 50 },
    }) do
        local few, more = numbers(("%s=%d"):format(key, counts[1])), numbers(("%s=%d"):format(key, counts[2]))
        for i, value in ipairs(numbers(("%s=%d"):format(key, counts[3]))) do
            local expected = few[i] + (more[i] - few[i]) * (counts[3] - counts[1]) / (counts[2] - counts[1])
            lu.assertAlmostEquals(value / expected, 1, 1e-6, ("%s, number %d"):format(key, i))
        end
    end
end

-- The first chip has the largest part: that of a model with so much more that all parts are equal.
function TestPlan.test_unequal_parts_cost_what_the_largest_does()
    local function figures(...)
        local r = mx.plan.simulate(config("ici_fsdp_parallelism=1", "ici_tensor_parallelism=4", "head_dim=8",
            "per_device_batch_size=1", "max_target_length=16", "dtype=float32", ...), "v5e-4", 1)
        return { r.weights, r.gradients, r.states, r.peak_bytes, r.step_s, r.times.flops }
    end
    local heads = "base_num_query_heads=8"
    lu.assertEquals(figures(heads, "base_mlp_dim=93"), figures(heads, "base_mlp_dim=96"))
    lu.assertEquals(figures("base_num_query_heads=5", "base_num_kv_heads=5"), figures(heads, "base_num_kv_heads=8"))
end

-- Two heads of keys on four chips: each has one, as with four heads of keys.
function TestPlan.test_copies_of_heads_of_keys()
    local function weights(kv_heads)
        local c = config("ici_fsdp_parallelism=1", "ici_tensor_parallelism=4", "base_num_query_heads=8", "head_dim=4",
            "max_target_length=16", "base_num_kv_heads=" .. kv_heads)
        return mx.plan.simulate(c, "v5e-4", 1).weights
    end
    lu.assertEquals(weights(2), weights(4))
    lu.assertTrue(weights(8) > weights(4))
end

-- Layers keep their inputs for backward: 2 bytes for each of B S E, of which a rank along tensor has E / tensor, one
-- along tensor_sequence S / tensor_sequence; all of it if the rules leave the stream whole.
function TestPlan.test_the_tensor_axes_split_what_layers_keep()
    local function kept(...)
        return mx.plan.simulate(config("max_target_length=64", "per_device_batch_size=2", "ici_fsdp_parallelism=2",
            "base_num_query_heads=4", "base_num_kv_heads=4", ...), "v5e-8", 1).kept.decoder_layer_input.bytes
    end
    local c = config()
    -- Four devices share the sequences of four.
    local whole = 2 * (4 * 2) * 64 * c.base_emb_dim * c.base_num_decoder_layers
    lu.assertEquals(kept("ici_tensor_parallelism=4"), whole / 4)
    lu.assertEquals(kept("ici_tensor_sequence_parallelism=4"), whole / 4)
    lu.assertEquals(kept("ici_tensor_parallelism=2", "ici_tensor_sequence_parallelism=2"), whole / 4)
    lu.assertEquals(kept("ici_tensor_parallelism=4", "logical_axis_rules=[[activation_embed, []]]"), whole)
end

-- Nothing goes through what a user typed before the plan has judged it.
function TestPlan.test_absurd_counts_are_refused_at_once()
    for _, word in ipairs({
        "base_num_decoder_layers=1000000007", "base_num_decoder_layers=1000000", "vocab_size=1000000007",
        "gradient_accumulation_steps=4294967297", "gradient_accumulation_steps=9007199254740992",
        "per_device_batch_size=100000007", "global_parameter_scale=1073741824", "max_target_length=16777216",
    }) do
        local started = mx.now()
        local ok, message = pcall(mx.plan.check, config("max_target_length=16", "per_device_batch_size=1", word))
        lu.assertFalse(ok, word)
        lu.assertStrContains(tostring(message), "a step needs")
        lu.assertTrue(mx.now() - started < 10, word) -- a second, and a busy machine
    end
    lu.assertFalse(mx.is_simulated())
end

function TestPlan.test_parts_add_up_to_the_peak()
    local result = mx.plan.simulate(config("remat_policy=minimal"), "v5e-1", 1)
    local sum, last = 0, math.huge
    for _, part in ipairs(mx.plan.parts(result)) do
        sum = sum + part.bytes
        lu.assertTrue(part.bytes <= last)
        last = part.bytes
    end
    lu.assertTrue(sum >= result.peak_bytes)
    lu.assertEquals(result.weights, 4 * result.params)
    lu.assertEquals(result.states, 8 * result.params)
    lu.assertNotNil(result.kept.query_proj)
    lu.assertEquals(result.kept.query_proj.count, result.shape.layers)
end

function TestPlan.test_what_cannot_fit_is_refused_with_the_largest_parts()
    local limit = mx.memory().limit
    mx.memory_limit(mx.memory().in_use + (1 << 20))
    local ok, message = pcall(mx.plan.check, config("per_device_batch_size=64"))
    mx.memory_limit(limit)
    lu.assertFalse(ok)
    lu.assertStrContains(tostring(message), "a step needs")
    lu.assertStrContains(tostring(message), "optimizer states")
    lu.assertStrContains(tostring(message), "no single change of remat_policy, batch or axes is enough") -- of 1 MiB
    mx.plan.check(config())
end

-- A refusal names single changes that fit, with the figures of their own plans.
function TestPlan.test_what_cannot_fit_is_refused_with_what_fits()
    local function refusal(...)
        local c = mx.config.load({ "model_name=llama2-7b", "base_num_decoder_layers=4", ... }, { quiet = true })
        local ok, message = pcall(mx.plan.check, c)
        mx.sim.stop()
        lu.assertFalse(ok)
        return tostring(message)
    end
    local function figures(...)
        local c = mx.config.load({ "model_name=llama2-7b", "base_num_decoder_layers=4", ... }, { simulate = false })
        local result = mx.plan.simulate(c, c.hardware, c.num_slices)
        return result.peak_bytes, ("%s, %.4g s a step"):format(util.bytes(result.peak_bytes), result.step_s)
    end
    local job, most = { "hardware=v5e-16", "per_device_batch_size=32", "remat_policy=minimal" }, 16 * 2 ^ 30
    local message = refusal(table.unpack(job))
    local bytes, half = figures("per_device_batch_size=16", job[1], job[3])
    lu.assertTrue(bytes <= most)
    lu.assertStrContains(message, ("; per_device_batch_size=16 (%s)"):format(half))
    local policy, its = message:match("what fits: remat_policy=([%w_]+) %(([^)]*)%)")
    lu.assertEquals(select(2, figures(job[1], job[2], "remat_policy=" .. policy)), its)
    local full, slower = figures(job[1], job[2], "remat_policy=full") -- the fastest that fits is named
    lu.assertTrue(full <= most and tonumber(its:match(", (%S+) s")) <= tonumber(slower:match(", (%S+) s")))
    lu.assertStrContains(refusal("hardware=v5e-1", "per_device_batch_size=1"), "what fits: hardware=v5e-4 (")
    message = refusal("hardware=h100-8", "base_num_decoder_layers=400", "remat_policy=full") -- there is one such slice
    lu.assertStrContains(message, "dcn_data_parallelism=1 dcn_fsdp_parallelism=")
    lu.assertStrContains(message, "num_slices=")
    lu.assertStrContains(refusal("hardware=v5e-1", "max_target_length=1000000"), "no single change of remat_policy")
end

-- A range simulates a few layers: as the layers are alike, the others follow from these.
function TestPlan.test_the_range_is_that_of_all_layers()
    for _, words in ipairs({
        { "model_name=llama3-8b", "per_device_batch_size=1" },
        { "model_name=gemma3-12b", "per_device_batch_size=1", "base_num_decoder_layers=18" }, -- in turns of six
        { "model_name=tiny", "base_num_decoder_layers=3" }, -- fewer than twice two
    }) do
        local job = config("hardware=v5e-16", table.unpack(words))
        local range = mx.plan.range(job, "v5e-16", 1)
        local all = mx.sim.label.range("v5e", {}, function(constants)
            return mx.plan.simulate(job, "v5e-16", 1, { constants = constants }).step_s
        end)
        lu.assertAlmostEquals(range[1], all[1], 1e-3)
        lu.assertAlmostEquals(range[2], all[2], 1e-3)
    end
end

function TestPlan.test_the_copy_for_a_checkpoint_counts()
    local words = { "enable_checkpointing=true", "per_device_batch_size=1", "checkpoint_period=1", "steps=2" }
    local result = mx.plan.simulate(config(table.unpack(words)), mx.host.hardware(1, { measure = false }), 1,
        { staged = true })
    lu.assertEquals(result.staged, result.weights + result.states)
    local limit = mx.memory().limit
    mx.memory_limit(result.peak_bytes + result.staged - 1)
    local ok, message = pcall(mx.plan.check, config(table.unpack(words)))
    local fits = pcall(mx.plan.check, config("async_checkpointing=false", table.unpack(words)))
    local never = pcall(mx.plan.check, config("enable_checkpointing=true", "per_device_batch_size=1",
        "checkpoint_period=3", "steps=2"))
    mx.memory_limit(limit)
    lu.assertFalse(ok)
    lu.assertStrContains(tostring(message), "async_checkpointing=false needs no copy")
    lu.assertTrue(fits and never)
end

function TestPlan.test_more_memory_never_holds_less()
    local peaks = {}
    for i, policy in ipairs({ "full", "save_qkv_proj", "minimal", "minimal_with_context" }) do
        peaks[i] = mx.plan.simulate(config("remat_policy=" .. policy, "per_device_batch_size=8"), "v5e-1", 1).peak_bytes
        lu.assertTrue(i == 1 or peaks[i] >= peaks[i - 1], policy)
    end
end

-- A limit that is never reached changes nothing, down to the last bit: reading the chip's file takes no simulated time.
function TestPlan.test_an_unreached_limit_of_memory_changes_nothing()
    local function seconds(...)
        return mx.plan.simulate(config("hardware=v5e-4", ...), "v5e-4", 1).step_s
    end
    lu.assertEquals(seconds("prefetch_memory_limit_percent=99.9"), seconds())
    lu.assertNotEquals(seconds("prefetch_memory_limit_percent=0.001"), seconds())
end

function TestPlan.test_candidates_divide_and_are_bounded()
    local c = mx.config.load({ "model_name=llama2-7b" })
    local list, all = mx.plan.candidates(c, 64, 1000)
    -- 8 policies; with tensor = 1, 2, 4, 8, 16 batches of 1 / tensor to 32.
    lu.assertEquals({ #list, all }, { 8 * (6 + 7 + 8 + 9 + 10), 8 * (6 + 7 + 8 + 9 + 10) })
    for _, candidate in ipairs(list) do
        lu.assertEquals(candidate.fsdp * candidate.tensor, 64)
    end
    local few, n = mx.plan.candidates(c, 64, 7)
    lu.assertEquals({ #few, n }, { 7, all })
end

-- For each line of the user: the meshes "fsdp tensor" that are tried, and the numbers of policies and batches; "-" is
-- what the user has set.
function TestPlan.test_the_search_leaves_what_is_set()
    for line, expected in pairs({
        ["per_device_batch_size=4"] = { "64 1, 32 2, 16 4, 8 8, 4 16", 8, 1 },
        ["remat_policy=full"] = { "64 1, 32 2, 16 4, 8 8, 4 16", 1, 10 },
        ["ici_tensor_sequence_parallelism=4"] = { "16 1, 8 2, 4 4, 2 8, 1 16", 8, 12 },
        ["ici_fsdp_parallelism=16"] = { "- 4", 8, 8 },
        ["ici_fsdp_parallelism=-1"] = { "- 1, - 2, - 4, - 8, - 16", 8, 10 },
        ["ici_tensor_parallelism=2 ici_data_parallelism=4"] = { "8 -", 8, 7 },
        ["ici_fsdp_parallelism=8 ici_tensor_parallelism=8 remat_policy=full"] = { "- -", 1, 9 },
        ["ici_fsdp_parallelism=1 ici_context_parallelism=-1 per_device_batch_size=2"] = { "- -", 8, 1 },
    }) do
        local words = { "model_name=llama2-7b" }
        for word in line:gmatch("%S+") do
            words[#words + 1] = word
        end
        local meshes, policies, batches, seen = {}, 0, 0, {}
        for _, c in ipairs(mx.plan.candidates(mx.config.load(words), 64, 1000)) do
            local mesh = ("%s %s"):format(c.fsdp or "-", c.tensor or "-")
            local policy, batch = c.policy or "-", c.batch or "-"
            meshes[#meshes + 1] = not seen[mesh] and mesh or nil
            policies, batches = policies + (seen[policy] and 0 or 1), batches + (seen[batch] and 0 or 1)
            seen[mesh], seen[policy], seen[batch] = true, true, true
        end
        policies = line:find("remat_policy") and 1 or policies
        batches = line:find("per_device") and 1 or batches
        lu.assertEquals({ table.concat(meshes, ", "), policies, batches }, expected, line)
    end
end

-- With experts: "fsdp tensor expert", where expert divides the 8 experts of all layers.
function TestPlan.test_the_search_splits_experts()
    for line, expected in pairs({
        ["ici_tensor_parallelism=2"] = "32 - 1, 16 - 2, 8 - 4, 4 - 8",
        ["ici_fsdp_parallelism=8"] = "- 1 8, - 2 4, - 4 2, - 8 1",
        ["ici_fsdp_parallelism=16 ici_tensor_parallelism=2"] = "- - 2",
        ["ici_expert_parallelism=4"] = "16 1 -, 8 2 -, 4 4 -, 2 8 -, 1 16 -",
        ["ici_expert_parallelism=-1 ici_tensor_parallelism=1"] = "64 - -, 32 - -, 16 - -, 8 - -",
    }) do
        local words, found, seen = { "model_name=mixtral-8x7b", "remat_policy=full", "per_device_batch_size=8" }, {}, {}
        for word in line:gmatch("%S+") do
            words[#words + 1] = word
        end
        for _, c in ipairs(mx.plan.candidates(mx.config.load(words), 64, 1000)) do
            local mesh = ("%s %s %s"):format(c.fsdp or "-", c.tensor or "-", c.expert or "-")
            found[#found + 1] = not seen[mesh] and mesh or nil
            seen[mesh] = true
        end
        lu.assertEquals(table.concat(found, ", "), expected, line)
    end
end

-- More candidates than may be tried: all meshes with the policy that keeps least, then the others on the best of them.
function TestPlan.test_the_search_tries_all_meshes_first()
    local words = { "model_name=tiny-moe", "hardware=v5e-8", "search=true", "per_device_batch_size=2" }
    words[5], words[6] = "candidates=14", "top=1"
    local found, kinds = mx.plan.run(words), {}
    for i, entry in ipairs(found) do
        local c = entry.config
        kinds[c.remat_policy] = (kinds[c.remat_policy] or 0) + 1
        lu.assertTrue(i == 1 or entry.result.tokens_per_s <= found[i - 1].result.tokens_per_s)
    end
    -- tensor 1, 2, 4 with expert up to 8, 4, 2; then five of the seven other policies on the fastest mesh.
    lu.assertEquals({ kinds.full, #found }, { 9, 14 })
end

-- The best line is the user's words and the found ones, each key once. A chip of v7x is two devices.
function TestPlan.test_the_best_line()
    local said = {}
    local program = io.open("/proc/self/cmdline"):read("a"):match("^[^\0]+")
    local pipe = io.popen(("'%s' --threads 1 scripts/plan.lua model_name=tiny hardware=v7x-4 search=true top=1 "
        .. "remat_policy=minimal per_device_batch_size=2 remat_policy=full per_device_batch_size=4"):format(program))
    for line in pipe:lines() do
        said[#said + 1] = line
    end
    pipe:close()
    lu.assertEquals(said[#said - 1],
        "  model_name=tiny hardware=v7x-4 remat_policy=full per_device_batch_size=4 \\")
    lu.assertStrMatches(said[#said], "  ici_fsdp_parallelism=%d ici_tensor_parallelism=%d")
    local fsdp, tensor = said[#said]:match("=(%d).*=(%d)")
    lu.assertEquals(fsdp * tensor, 8)
end

-- Products of codes take half of the time on chips with the peak int8, attention takes the same. Gathered codes are a
-- byte; the gradients that are scattered are bf16: (2 + 2) / (2 * 2 + 2) of the bytes.
function TestPlan.test_what_quantizing_gains()
    local words = { "model_name=llama2-7b", "hardware=v5e-16", "per_device_batch_size=1", "quantization=int8" }
    local result = mx.plan.run(words)
    local times, plain = result.times, result.plain.times
    lu.assertTrue(plain.matrix_s / times.matrix_s > 1.8 and plain.matrix_s / times.matrix_s <= 2.01)
    lu.assertEquals(times.attention_s, plain.attention_s)
    lu.assertTrue(times.memory_s > plain.memory_s and result.step_s < result.plain.step_s)
    local function gathered(quantization)
        local own = { words[1], words[2], words[3], "quantization=" .. quantization }
        local c = mx.config.load(own, { simulate = false })
        local mesh = mx.mesh.plan(c, 16)
        local ici, dcn = mesh.layout.ici, mesh.layout.dcn
        for _, row in ipairs(require("mx.sim.collectives").of(c, mx.models.shape(c), mesh, ici, dcn)) do
            if row.what:find("^weights: all%-gather forward") then
                return row.bytes
            end
        end
    end
    local tables = 2 * 32000 * 4096 * 2 * 2 -- gathered once, scattered once, in bf16
    lu.assertAlmostEquals((gathered("int8") - tables) / (gathered("") - tables), 4 / 6, 1e-3)
end

function TestPlan.test_errors_are_one_line()
    lu.assertErrorMsgContains("hardware= is missing", mx.plan.run, { "model_name=tiny" })
    lu.assertErrorMsgContains("has slices of", mx.plan.run, { "model_name=tiny", "hardware=v5e-3" })
end
