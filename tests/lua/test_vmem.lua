-- Blocks of attention kernels in the on-chip memory of simulated TPUs, against sizes worked out by hand.

local lu = require "luaunit"
local mx = require "mx"

TestVmem = {}

function TestVmem.tearDown()
    mx.sim.stop()
end

local function load(...)
    return mx.config.load({ "model_name=llama3.1-8b", "base_num_decoder_layers=1", ... }, { simulate = false })
end

-- Blocks of 512 queries and 1024 keys, head_dim 128. Forward: two blocks each of q, k, v in bf16; the sum of the output
-- in f32 and two blocks of it in bf16; scores in f32.
function TestVmem.test_sizes()
    local c = load("hardware=v6e-4", "sa_block_q=512", "sa_block_kv=1024")
    local kernels = mx.sim.vmem.kernels(c, 128, 128)
    local q, kv, scores = 512 * 128, 1024 * 128, 512 * 1024
    lu.assertEquals(kernels[""], 2 * 2 * (q + 2 * kv) + (4 + 2 * 2) * q + 4 * scores)
    q, kv, scores = 512 * 128, 512 * 128, 512 * 512 -- backward: q, dout, k, v are inputs
    lu.assertEquals(kernels._dkv, 2 * 2 * (2 * q + 2 * kv) + (4 + 2 * 2) * 2 * kv + 2 * 4 * scores)
    lu.assertEquals(kernels._dq, 2 * 2 * (2 * q + 2 * kv) + (4 + 2 * 2) * q + 2 * 4 * scores)
    c = load("hardware=v6e-4", "sa_use_fused_bwd_kernel=true")
    kernels = mx.sim.vmem.kernels(c, 128, 128)
    lu.assertNil(kernels._dq)
    lu.assertEquals(kernels._dkv, 2 * 2 * (2 * q + 2 * kv) + (4 + 2 * 2) * (q + 2 * kv) + 2 * 4 * scores)
end

-- The same with queries and keys of 192 features, values and outputs of 128: a query and its output have 320.
function TestVmem.test_widths()
    local c = load("hardware=v6e-4", "sa_block_q=512", "sa_block_kv=1024")
    local kernels = mx.sim.vmem.kernels(c, 192, 128)
    lu.assertEquals(kernels[""], 2 * 2 * (512 * 192 + 1024 * 320) + (4 + 2 * 2) * 512 * 128 + 4 * 512 * 1024)
    local inputs, scores = 2 * 2 * (512 + 512) * 320, 2 * 4 * 512 * 512
    lu.assertEquals(kernels._dkv, inputs + (4 + 2 * 2) * 512 * 320 + scores)
    lu.assertEquals(kernels._dq, inputs + (4 + 2 * 2) * 512 * 192 + scores)
    c = load("hardware=v6e-4", "sa_use_fused_bwd_kernel=true")
    lu.assertEquals(mx.sim.vmem.kernels(c, 192, 128)._dkv, inputs + (4 + 2 * 2) * 512 * (320 + 192) + scores)
end

local function simulate(...)
    local c = load("max_target_length=4096", "per_device_batch_size=1", ...)
    return mx.plan.simulate(c, c.hardware, c.num_slices)
end

function TestVmem.test_blocks_that_do_not_fit()
    simulate("hardware=v6e-4", "sa_block_q=4096", "sa_block_kv=4096")
    lu.assertErrorMsgContains("sa_block_q=4096 and sa_block_kv=4096 need 74.0 MiB of VMEM with head_dim 128, and a "
        .. "kernel may use 64.0 MiB: use smaller blocks", simulate, "hardware=v7x-4", "sa_block_q=4096",
        "sa_block_kv=4096")
    lu.assertErrorMsgContains("sa_block_q_dkv=2048 and sa_block_kv_dkv=2048 need 40.0 MiB", simulate,
        "hardware=v7x-4", "sa_block_q_dkv=2048", "sa_block_kv_dkv=2048", "scoped_vmem_limit_kib=32768")
    simulate("hardware=v7x-4", "sa_block_q_dkv=2048", "sa_block_kv_dkv=2048", "scoped_vmem_limit_kib=49152")
    simulate("hardware=v7x-4", "attention=dot_product", "sa_block_q=4096", "sa_block_kv=4096") -- without a kernel
end

function TestVmem.test_limits()
    lu.assertErrorMsgContains("scoped_vmem_limit_kib=131072: TPU v7x has 65536 KiB of VMEM", simulate, "hardware=v7x-4",
        "scoped_vmem_limit_kib=131072")
    lu.assertErrorMsgContains("scoped_vmem_limit_kib: H100 SXM has no VMEM", simulate, "hardware=h100-8",
        "scoped_vmem_limit_kib=1024")
    local c = load("hardware=v7x-4", "compile_xla_flags=--xla_tpu_scoped_vmem_limit_kib=32768")
    lu.assertEquals(c.scoped_vmem_limit_kib, 32768)
    c = load("hardware=h100-8", "compile_xla_flags=--xla_tpu_scoped_vmem_limit_kib=32768") -- scripts for TPUs run
    lu.assertEquals(c.scoped_vmem_limit_kib, 0)
end
