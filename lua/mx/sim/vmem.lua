--- Whether the blocks of attention kernels fit into the on-chip memory (VMEM) of a simulated TPU.
--
-- A kernel has in VMEM: blocks of its inputs, two of each, since the next one is fetched meanwhile; the sums of its
-- results in f32, and two blocks of them on their way out; and the scores of a block pair in f32, two in a backward
-- kernel (scores, and their gradient). The simulator has no rate of VMEM: blocks that fit cost what their scores cost.

local util = require "mx.util"

local vmem = {}

local WIDTH = 2 -- bytes of an element in bf16

-- Bytes of a kernel with so many elements in a block of each input, of each result, and of scores.
local function bytes(inputs, results, scores)
    return 2 * WIDTH * inputs + (4 + 2 * WIDTH) * results + 4 * scores
end

-- The same of a backward kernel, which reads q, dout, k and v. `results`: dq features of a query, dkv of a key.
local function backward_bytes(q, kv, both, results)
    return bytes((q + kv) * both, q * results.dq + kv * results.dkv, 2 * q * kv)
end

--- The VMEM of the attention kernels of a config, in bytes: name of the keys' ending -> bytes.
---@param c table config
---@param D integer features of queries and keys
---@param V integer features of values
---@return table<string, number>
function vmem.kernels(c, D, V)
    local q, kv = c.sa_block_q, c.sa_block_kv
    local found = { [""] = bytes(q * D + kv * (D + V), q * V, q * kv) }
    found._dkv = backward_bytes(c.sa_block_q_dkv, c.sa_block_kv_dkv, D + V,
        { dq = c.sa_use_fused_bwd_kernel and D or 0, dkv = D + V })
    if not c.sa_use_fused_bwd_kernel then
        found._dq = backward_bytes(c.sa_block_q_dq, c.sa_block_kv_dq, D + V, { dq = D, dkv = 0 })
    end
    return found
end

--- Refuses blocks that do not fit, and a limit on chips without VMEM.
---@param c table config
---@param hardware table of sim.hardware
---@param D integer features of queries and keys
---@param V integer features of values
function vmem.check(c, hardware, D, V)
    local limit = hardware.vmem_bytes
    if c.scoped_vmem_limit_kib > 0 and not limit then
        util.refuse("scoped_vmem_limit_kib: %s has no VMEM", hardware.description)
    elseif not limit or c.attention == "dot_product" then
        return
    elseif c.scoped_vmem_limit_kib * 1024 > limit then
        util.refuse("scoped_vmem_limit_kib=%d: %s has %d KiB of VMEM", c.scoped_vmem_limit_kib, hardware.description,
            limit // 1024)
    end
    limit = c.scoped_vmem_limit_kib > 0 and c.scoped_vmem_limit_kib * 1024 or limit
    for ending, needed in util.sorted_pairs(vmem.kernels(c, D, V)) do
        if needed > limit then
            local q, kv = "sa_block_q" .. ending, "sa_block_kv" .. ending
            util.refuse("%s=%d and %s=%d need %s of VMEM with head_dim %d, and a kernel may use %s: use smaller "
                .. "blocks%s", q, c[q], kv, c[kv], util.bytes(needed), D, util.bytes(limit),
                c.scoped_vmem_limit_kib > 0 and " or a higher scoped_vmem_limit_kib" or "")
        end
    end
end

return vmem
