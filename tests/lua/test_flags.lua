-- XLA's flags on a simulated pod: how they are read, what configs/xla_flags.yml makes of them, and that each key that
-- they set changes the time of some step.

local lu = require "luaunit"
local mx = require "mx"

TestFlags = {}

local POD = {
    "model_name=llama3-8b", "base_num_decoder_layers=4", "max_target_length=2048", "per_device_batch_size=1",
    "hardware=v5p-16", "enable_checkpointing=false",
}

local function load(...)
    local words = table.move({ ... }, 1, select("#", ...), #POD + 1, { table.unpack(POD) })
    return mx.config.load(words, { simulate = false })
end

local function with(text, ...)
    return load("compile_xla_flags=" .. text, ...)
end

local function seconds(config)
    return mx.plan.simulate(config, config.hardware, config.num_slices).step_s
end

-- fn(...) is refused by a message that contains all the texts.
local function refused(texts, fn, ...)
    local good, message = pcall(fn, ...)
    lu.assertFalse(good)
    for _, text in ipairs(texts) do
        lu.assertStrContains(tostring(message), text)
    end
end

-- ---- reading ----

function TestFlags.test_the_three_forms_of_a_flag()
    local list = mx.flags.split(" --xla_a=1 \n\t---xla_b --noxla_c -xla_d= --nothing=x", "X")
    local found = {}
    for i, flag in ipairs(list) do
        found[i] = flag.name .. "=" .. flag.value
    end
    lu.assertEquals(found, { "xla_a=1", "xla_b=true", "xla_c=false", "xla_d=", "nothing=x" })
    refused({ "X: 'xla_a=1'", "--xla_enable_async_all_gather=true" }, mx.flags.split, "xla_a=1", "X")
end

function TestFlags.test_values_of_booleans()
    for text, expected in pairs({ ["true"] = true, True = true, ["1"] = true, ["false"] = false, ["0"] = false }) do
        lu.assertEquals(with("--xla_gpu_enable_async_reduce_scatter=" .. text).async_reduce_scatter, expected)
    end
    lu.assertTrue(with("--xla_gpu_enable_async_reduce_scatter").async_reduce_scatter)
    lu.assertFalse(with("--noxla_gpu_enable_async_reduce_scatter").async_reduce_scatter)
end

function TestFlags.test_a_misspelt_flag_gets_a_hint()
    local without, flags = {}, "--xla_gpu_enable_pipelined_all_gathre=true --xla_dump_to=x"
    for _, flag in ipairs(mx.flags.read(flags, {}, "h100-8").without) do
        without[flag.name] = flag.why
    end
    lu.assertEquals(without, {
        xla_gpu_enable_pipelined_all_gathre = "did you mean xla_gpu_enable_pipelined_all_gather?", xla_dump_to = "",
    })
end

function TestFlags.test_invalid_values_are_refused()
    refused({ "compile_xla_flags: --xla_gpu_all_gather_combine_threshold_bytes=8MB",
        "expected a whole number" }, with, "--xla_gpu_all_gather_combine_threshold_bytes=8MB")
    refused({ "--xla_gpu_enable_pipelined_all_gather=maybe", "expected off, on" }, with,
        "--xla_gpu_enable_pipelined_all_gather=maybe")
    refused({ "compile_xla_flags: is for simulated chips" }, mx.config.load,
        { "compile_xla_flags=--xla_gpu_enable_pipelined_all_gather=false" })
end

-- ---- the table ----

-- Every key and every value in the table is valid, and `concerns` describes every key.
function TestFlags.test_every_line_of_the_table()
    local rows, standard = mx.flags.table(), getmetatable(load()).standard
    local concerns = rows.concerns
    rows.concerns = nil
    local function check(name, key)
        lu.assertNotNil(standard[key], name)
        lu.assertNotNil(concerns[key], name)
    end
    for name, row in pairs(rows) do
        if type(row) == "string" then
            check(name, row)
        elseif not row.none then
            for value, words in pairs(row) do
                for key in words:gmatch("([%w_]+)=") do
                    check(name, key)
                end
                with(("--%s=%s"):format(name, value))
            end
        end
    end
end

function TestFlags.test_what_flags_set()
    local cases = {
        { "--xla_gpu_all_gather_combine_threshold_bytes=1073741824", "all_gather_combine_threshold_bytes", 1 << 30 },
        { "--xla_gpu_reduce_scatter_combine_threshold_bytes=0", "reduce_scatter_combine_threshold_bytes", 0 },
        { "--xla_gpu_collective_permute_decomposer_threshold=0", "collective_permute_decomposer_threshold_bytes", 0 },
        { "--xla_enable_async_collective_permute=false", "collective_permute_decomposer_threshold_bytes", 0 },
        { "--xla_gpu_enable_latency_hiding_scheduler=false", "async_all_reduce", false },
        { "--xla_gpu_disable_async_collectives=allreduce,allgather", "async_all_gather", false },
        { "--xla_gpu_disable_async_collectives=allreduce,allgather", "async_all_reduce", false },
        { "--xla_gpu_disable_async_collectives=allreduce,allgather", "async_reduce_scatter", true },
        { "--xla_gpu_pipeline_all_gather=off", "prefetch_layers", 0 },
        { "--xla_gpu_enable_while_loop_double_buffering=false", "prefetch_layers", 0 },
        { "--xla_gpu_memory_limit_slop_factor=95", "prefetch_memory_limit_percent", 95.0 },
        { "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
            "sparse_core_collective_offload_all_reduce", true },
        { "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
            "sparse_core_collective_offload_all_gather", false },
    }
    for _, case in ipairs(cases) do
        lu.assertEquals(with(case[1])[case[2]], case[3], case[1])
    end
end

-- Overlap needs all flags that concern it; a SparseCore needs none of them.
function TestFlags.test_the_lower_line_wins_in_any_order()
    local async, scheduler = "--xla_gpu_enable_async_all_gather=true", "--xla_gpu_enable_latency_hiding_scheduler=false"
    lu.assertFalse(with(async .. " " .. scheduler).async_all_gather)
    lu.assertFalse(with(scheduler .. " " .. async).async_all_gather)
    local c = with("--xla_tpu_enable_sparse_core_collective_offload_all_gather=true "
        .. "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=false")
    lu.assertTrue(c.async_all_gather)
    lu.assertEquals(c.prefetch_layers, 1)
    local threshold = "--xla_gpu_all_gather_combine_threshold_bytes="
    lu.assertEquals(with(threshold .. "1 " .. threshold .. "2").all_gather_combine_threshold_bytes, 2)
end

function TestFlags.test_keys_of_the_user_win()
    local flag = "--xla_gpu_all_gather_combine_threshold_bytes=1"
    lu.assertEquals(with(flag, "all_gather_combine_threshold_bytes=2").all_gather_combine_threshold_bytes, 2)
    lu.assertEquals(load("all_gather_combine_threshold_bytes=2", "compile_xla_flags=" .. flag)
        .all_gather_combine_threshold_bytes, 2)
end

function TestFlags.test_a_chip_without_sparse_cores()
    local c = with("--xla_tpu_enable_sparse_core_collective_offload_all_gather=true", "hardware=v5e-16")
    lu.assertFalse(c.sparse_core_collective_offload_all_gather)
    lu.assertStrContains(getmetatable(c).flags.without[1].why, "no SparseCores")
    refused({ "sparse_core_collective_offload_all_gather: TPU v5e has no SparseCores" }, mx.config.load,
        { "hardware=v5e-16", "sparse_core_collective_offload_all_gather=true" })
end

-- ---- their effect ----

-- For each key a flag, and how the step's time then compares with that without it.
function TestFlags.test_every_key_changes_a_step()
    local mesh = { "ici_data_parallelism=4" }
    local ring = {
        "ici_fsdp_parallelism=1", "ici_data_parallelism=-1", "ici_context_parallelism=4",
        "context_parallel_strategy=ring", "per_device_batch_size=4",
    }
    local small = { "model_name=tiny", "hardware=v5e-16", "max_target_length=8" }
    local cases = {
        { "slower", mesh, "--xla_enable_async_all_gather=false" },
        { "slower", mesh, "--xla_enable_async_all_reduce=false" },
        { "slower", mesh, "--xla_gpu_enable_async_reduce_scatter=false" },
        { "slower", mesh, "--xla_gpu_enable_pipelined_all_gather=false" },
        { "slower", mesh, "--xla_gpu_memory_limit_slop_factor=1" },
        { "slower", ring, "--xla_gpu_collective_permute_decomposer_threshold=0" },
        { "slower", small, "--xla_gpu_all_gather_combine_threshold_bytes=1" },
        { "slower", small, "--xla_gpu_all_reduce_combine_threshold_bytes=1" },
        { "slower", small, "--xla_gpu_reduce_scatter_combine_threshold_bytes=1" },
        { "faster", mesh, "--xla_tpu_enable_sparse_core_collective_offload_all_gather=true" },
        { "faster", mesh, "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=true" },
        { "faster", mesh, "--xla_tpu_enable_sparse_core_collective_offload_reduce_scatter=true" },
    }
    for _, case in ipairs(cases) do
        local plain, flagged = seconds(load(table.unpack(case[2]))), seconds(with(case[3], table.unpack(case[2])))
        local found = flagged > plain and "slower" or flagged < plain and "faster" or "equal"
        lu.assertEquals(found, case[1], ("%s: %.9g and %.9g s"):format(case[3], plain, flagged))
    end
end

-- A share of the memory that is never reached is no limit; one that the weights fill leaves nothing to prefetch into.
function TestFlags.test_the_share_of_memory()
    local plain = seconds(load())
    lu.assertAlmostEquals(seconds(load("prefetch_memory_limit_percent=100")), plain, 1e-9 * plain)
    local none = seconds(load("prefetch_layers=0"))
    lu.assertAlmostEquals(seconds(load("prefetch_memory_limit_percent=0.01")), none, 1e-9 * none)
end

-- ---- what a run says ----

local function run(variables, ...)
    local program = io.open("/proc/self/cmdline"):read("a"):match("^[^\0]+")
    local pipe = io.popen(("%s '%s' --threads 1 scripts/train.lua steps=1 enable_checkpointing=false model_name=tiny "
        .. "%s 2>&1"):format(variables, program, table.concat({ ... }, " ")))
    local said = pipe:read("a")
    pipe:close()
    return said
end

function TestFlags.test_what_a_simulated_run_says()
    local said = run([[LIBTPU_INIT_ARGS="--xla_tpu_scoped_vmem_limit_kib=65536 --xla_enable_async_all_reduce=false
        --xla_tpu_overlap_compute_collective_tc=true --xla_gpu_pipeline_all_gather=off
        --xla_enable_async_collective_permute=false --xla_gpu_enable_async_all_gather=true
        --xla_enable_async_all_gather=true" XLA_FLAGS="--xla_gpu_graph_level=0"]], "hardware=v5e-4")
    lu.assertStrContains(said, "XLA flags set: async_all_reduce=false (xla_enable_async_all_reduce), "
        .. "collective_permute_decomposer_threshold_bytes=0 (xla_enable_async_collective_permute), "
        .. "prefetch_layers=0 (xla_gpu_pipeline_all_gather), "
        .. "scoped_vmem_limit_kib=65536 (xla_tpu_scoped_vmem_limit_kib)\n")
    lu.assertStrMatches(said, ".*XLA flags that change nothing in this step of [%d.e-]+ s: "
        .. "collective_permute_decomposer_threshold_bytes=0 %(it concerns the ring of "
        .. "context_parallel_strategy=ring%), scoped_vmem_limit_kib=65536 %(it concerns blocks of attention that need "
        .. "more%)\n.*")
    lu.assertStrContains(said, "XLA flags for what is always so here: xla_enable_async_all_gather, "
        .. "xla_gpu_enable_async_all_gather, xla_tpu_overlap_compute_collective_tc\n")
    lu.assertStrContains(said, "XLA flags without a counterpart here: xla_gpu_graph_level\n")
    said = run('LIBTPU_INIT_ARGS="--xla_tpu_enable_sparse_core_collective_offload_all_gather=true"', "hardware=v5p-4")
    lu.assertStrContains(said, "XLA flags set: sparse_core_collective_offload_all_gather=true "
        .. "(xla_tpu_enable_sparse_core_collective_offload_all_gather)\n")
    lu.assertNotStrContains(said, "always so here") -- although two of the keys that it sets have their standard value
    said = run('XLA_FLAGS="--xla_gpu_pipeline_all_gather=off"', "hardware=v5e-4", "prefetch_layers=2")
    lu.assertStrContains(said, "XLA flags that something else overrules: xla_gpu_pipeline_all_gather (by "
        .. "prefetch_layers of 'prefetch_layers=2' on the command line)\n")
end

function TestFlags.test_what_a_real_run_says()
    local said = run('XLA_FLAGS="--xla_gpu_pipeline_all_gather=off and more"', "per_device_batch_size=1",
        "max_target_length=8")
    lu.assertStrContains(said, "XLA_FLAGS: no effect, because this run computes here and simulates nothing\n")
    lu.assertStrContains(said, "1/1")
end
