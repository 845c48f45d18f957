-- ranks: 2 4
-- Communication beside computation: no setting of it changes a bit of what is trained; combining makes fewer exchanges,
-- and what is gathered ahead stays within its limit.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

local RANKS, STEPS = mx.ranks(), 3

local MODEL = {
    "model_name=tiny", "dataset_type=text", "dataset_path=" .. mx.root .. "configs/base.yml", "steps=" .. STEPS,
    "base_num_decoder_layers=4", "base_emb_dim=32", "base_num_query_heads=4", "base_num_kv_heads=4", "head_dim=8",
    "base_mlp_dim=64", "max_target_length=16", "per_device_batch_size=2",
    "gradient_accumulation_steps=2", -- what the first pass gathered is the same in the second, and not in the next step
}

-- The standard values of configs/base.yml are what a run without these has: everything overlaps.
local PLAIN = {
    "async_all_gather=false", "async_reduce_scatter=false", "async_all_reduce=false", "prefetch_layers=0",
    "collective_permute_decomposer_threshold_bytes=0",
}

-- Thresholds: several tensors, but on no mesh all those of a layer; and more than the model has.
local SOME, LARGE = 5000, 1 << 23

local function thresholds(bytes)
    local words = {}
    for i, kind in ipairs({ "all_gather", "reduce_scatter", "all_reduce" }) do
        words[i] = ("%s_combine_threshold_bytes=%d"):format(kind, bytes)
    end
    return words
end

local function join(...)
    local all = {}
    for _, list in ipairs({ ... }) do
        table.move(list, 1, #list, #all + 1, all)
    end
    return all
end

---@class Run
---@field losses number[]
---@field norms number[]
---@field params table<string, any> this rank's parts
---@field calls integer exchanges of all steps
---@field bytes number that this rank sent
---@field peak integer bytes of memory in the steps, above what was there before them

---@return Run
local function train(mesh_words, words)
    local config = mx.config.load(join(MODEL, mesh_words, words))
    local mesh = mx.train.mesh(config)
    local model, data = mx.models.new(config, mesh), mx.data.open(config, mesh)
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    local run = { losses = {}, norms = {}, params = model.params }
    mx.barrier()
    mx.comm_stats(true)
    collectgarbage()
    collectgarbage("stop") -- the peak is to depend on the steps alone, not on when handles happen to be collected
    mx.reset_peak()
    local before = mx.memory().in_use
    for i = 1, STEPS do
        run.losses[i] = mx.train.gradients(model, data, config.gradient_accumulation_steps)
        run.norms[i] = optimizer:step()
    end
    run.peak = mx.memory().peak - before
    collectgarbage("restart")
    local stats = mx.comm_stats(true)
    run.calls, run.bytes = stats.calls, stats.bytes
    return run
end

local function assert_same(run, expected, what)
    lu.assertEquals(run.losses, expected.losses, what)
    lu.assertEquals(run.norms, expected.norms, what)
    for name, t in util.sorted_pairs(expected.params) do
        local off = mx.scope(function()
            return mx.max(mx.abs(run.params[name] - t)):item()
        end)
        lu.assertEquals(off, 0, what .. ": " .. name)
    end
end

-- Names of meshes, and their words. fsdp gathers weights and scatters gradients, data all-reduces them; both and more
-- take turns where there are two axes.
local MESHES = ({
    [2] = {
        fsdp = { "ici_fsdp_parallelism=2" },
        data = { "ici_fsdp_parallelism=1", "ici_data_parallelism=2" },
        context = { "ici_fsdp_parallelism=1", "ici_context_parallelism=2" },
        ring = { "ici_fsdp_parallelism=1", "ici_context_parallelism=2", "context_parallel_strategy=ring" },
    },
    [4] = {
        fsdp = { "ici_fsdp_parallelism=4" },
        data_and_fsdp = { "ici_fsdp_parallelism=2", "ici_data_parallelism=2" },
        fsdp_and_tensor = { "ici_fsdp_parallelism=2", "ici_tensor_parallelism=2" },
    },
})[RANKS]

local SETTINGS = {
    { "async_all_gather=true" },
    { "async_reduce_scatter=true" },
    { "async_all_reduce=true" },
    { "prefetch_layers=1" }, -- of blocking gathers
    { "prefetch_layers=3" },
    { "debug_collectives=true" },
    { "collective_permute_decomposer_threshold_bytes=1" },
    { "collective_permute_decomposer_threshold_bytes=5000" }, -- a block has 4096 bytes, its gradients 8192
}
local ASYNC = {
    "async_all_gather=true", "async_reduce_scatter=true", "async_all_reduce=true",
    "collective_permute_decomposer_threshold_bytes=1",
}
for _, bytes in ipairs({ 0, SOME, LARGE }) do
    for _, layers in ipairs({ 0, 1, 3 }) do
        SETTINGS[#SETTINGS + 1] = join(ASYNC, thresholds(bytes), { "prefetch_layers=" .. layers })
    end
end
for _, limit in ipairs({ 0, 1, 5000, 20000 }) do -- a layer's weights have 20480 bytes when gathered in bf16
    SETTINGS[#SETTINGS + 1] = join(ASYNC, { "prefetch_layers=3", "prefetch_memory_limit_bytes=" .. limit })
end
SETTINGS[#SETTINGS + 1] = join(ASYNC, { "prefetch_layers=3", "debug_collectives=true" })

TestOverlap = {}

local function assert_settings_change_nothing(mesh, policy)
    local plain = train(mesh, join(PLAIN, policy))
    for _, words in ipairs(SETTINGS) do
        local run, what = train(mesh, join(PLAIN, policy, words)), table.concat(words, " ")
        assert_same(run, plain, what)
        lu.assertEquals(run.bytes, plain.bytes, what) -- nothing is gathered twice, or in vain
    end
end

for name, mesh in util.sorted_pairs(MESHES) do
    TestOverlap["test_no_setting_changes_a_bit_on_" .. name] = function()
        assert_settings_change_nothing(mesh, { "remat_policy=full" })
    end
end

-- A policy that keeps all else does not keep gathered weights: they are gathered again for the backward pass.
function TestOverlap.test_no_setting_changes_a_bit_without_rematerialisation()
    assert_settings_change_nothing(MESHES.fsdp, { "remat_policy=none" })
end

-- ---- combining ----

TestCombining = {}

function TestCombining.test_larger_thresholds_make_fewer_exchanges()
    for name, mesh in util.sorted_pairs(MESHES) do
        local before = math.huge
        for _, bytes in ipairs({ 0, SOME, LARGE }) do
            local calls = train(mesh, join(ASYNC, thresholds(bytes))).calls
            lu.assertTrue(calls < before,
                ("%s: %d calls with %d bytes, %s with fewer"):format(name, calls, bytes, before))
            before = calls
        end
    end
end

function TestCombining.test_each_threshold_has_its_own_collective()
    local none, all, saved = train(MESHES.fsdp, thresholds(0)).calls, train(MESHES.fsdp, thresholds(LARGE)).calls, 0
    for _, kind in ipairs({ "all_gather", "reduce_scatter", "all_reduce" }) do
        local words = join(thresholds(0), { ("%s_combine_threshold_bytes=%d"):format(kind, LARGE) })
        local calls = train(MESHES.fsdp, words).calls
        lu.assertTrue(calls < none, kind)
        saved = saved + none - calls
    end
    lu.assertEquals(saved, none - all)
end

function TestCombining.test_what_is_blocking_is_not_combined()
    local calls = train(MESHES.fsdp, join(PLAIN, thresholds(LARGE))).calls
    lu.assertEquals(calls, train(MESHES.fsdp, join(PLAIN, thresholds(0))).calls)
end

-- ---- permutes that are split ----

TestDecomposer = {}

-- The seconds that are not hidden: see tests/mpi/test_ring.lua.
function TestDecomposer.test_the_threshold_reaches_permutes()
    for _, bytes in ipairs({ 1, 4000, 4001, 0 }) do -- 0 means none, as in XLA
        mx.train.mesh(mx.config.load(join(MODEL, { "collective_permute_decomposer_threshold_bytes=" .. bytes })))
        lu.assertEquals(mx.collective_permute(mx.zeros { 1000 }):is_pending(), bytes > 0 and bytes <= 4000)
        lu.assertEquals(mx.collective_permute(mx.zeros { 1 }):is_pending(), bytes == 1)
    end
end

-- ---- gathering ahead ----

TestPrefetch = {}

-- Weights that outweigh all else: a layer has 2^17 elements and so, gathered in bf16, 2^18 bytes. Nothing else is
-- asynchronous, so that the peak does not depend on when what was sent is let go.
local LAYER = 1 << 18
local HEAVY = join(PLAIN, {
    "base_emb_dim=128", "base_num_query_heads=4", "base_num_kv_heads=4", "head_dim=16", "base_mlp_dim=256",
    "per_device_batch_size=1",
})

local function gathering_ahead(layers, limit)
    return train(MESHES.fsdp, join(HEAVY, { "prefetch_layers=" .. layers, "prefetch_memory_limit_bytes=" .. limit }))
end

-- What is gathered ahead is combined and the rest here is not, so the number of exchanges tells whether there is any.
function TestPrefetch.test_without_room_nothing_is_gathered_ahead()
    local plain = gathering_ahead(0, LARGE)
    for _, limit in ipairs({ 0, 1 }) do
        for _, layers in ipairs({ 1, 3 }) do
            local run = gathering_ahead(layers, limit)
            lu.assertEquals(run.calls, plain.calls)
            lu.assertTrue(run.peak <= plain.peak, ("a peak of %d, without %d"):format(run.peak, plain.peak))
        end
    end
end

-- An exchange takes room for three pieces of 128 KiB, now beside what is computed and before when nothing was.
function TestPrefetch.test_what_is_gathered_ahead_stays_within_its_limit()
    local exchange = 3 * 128 * 1024
    local plain, before = gathering_ahead(0, LARGE), math.huge
    for _, case in ipairs({ { layers = 3, limit = LAYER }, { layers = 3, limit = LARGE } }) do
        local run = gathering_ahead(case.layers, case.limit)
        local more, most = run.peak - plain.peak, math.min(case.limit, case.layers * LAYER)
        lu.assertTrue(more <= most + exchange, ("%d bytes more with a limit of %d"):format(more, case.limit))
        lu.assertTrue(more >= most - exchange, ("%d bytes more with a limit of %d"):format(more, case.limit))
        lu.assertTrue(run.calls < plain.calls and run.calls < before)
        before = run.calls
    end
end
