--- Whether the blocks of attention kernels fit into the on-chip memory (VMEM) of a simulated TPU.
--
-- A kernel has in VMEM: blocks of its inputs, two of each, since the next one is fetched meanwhile; the sums of its
-- results in f32, and two blocks of them on their way out; and the scores of a block pair in f32, two in a backward
-- kernel (scores, and their gradient). The simulator has no rate of VMEM: blocks that fit cost what their scores cost.

local util = require "mx.util"

local vmem = {}

local WIDTH = 2 -- bytes of an element in bf16

-- Bytes of a kernel: `moved` blocks of q and of keys are inputs, `summed` are results; `scores` arrays of scores.
local function bytes(q, kv, D, moved, summed, scores)
    local inputs = 2 * WIDTH * D * (moved.q * q + moved.kv * kv)
    local results = (4 + 2 * WIDTH) * D * (summed.q * q + summed.kv * kv)
    return inputs + results + scores * 4 * q * kv
end

--- The VMEM of the attention kernels of a config, in bytes: name of the keys' ending -> bytes.
---@param c table config
---@param D integer head_dim
---@return table<string, number>
function vmem.kernels(c, D)
    local found = { [""] = bytes(c.sa_block_q, c.sa_block_kv, D, { q = 1, kv = 2 }, { q = 1, kv = 0 }, 1) }
    found._dkv = bytes(c.sa_block_q_dkv, c.sa_block_kv_dkv, D, { q = 2, kv = 2 },
        { q = c.sa_use_fused_bwd_kernel and 1 or 0, kv = 2 }, 2)
    if not c.sa_use_fused_bwd_kernel then
        found._dq = bytes(c.sa_block_q_dq, c.sa_block_kv_dq, D, { q = 2, kv = 2 }, { q = 1, kv = 0 }, 2)
    end
    return found
end

--- Refuses blocks that do not fit, and a limit on chips without VMEM.
---@param c table config
---@param hardware table of sim.hardware
---@param D integer head_dim
function vmem.check(c, hardware, D)
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
    for ending, needed in util.sorted_pairs(vmem.kernels(c, D)) do
        if needed > limit then
            local q, kv = "sa_block_q" .. ending, "sa_block_kv" .. ending
            util.refuse("%s=%d and %s=%d need %s of VMEM with head_dim %d, and a kernel may use %s: use smaller "
                .. "blocks%s", q, c[q], kv, c[kv], util.bytes(needed), D, util.bytes(limit),
                c.scoped_vmem_limit_kib > 0 and " or a higher scoped_vmem_limit_kib" or "")
        end
    end
end

return vmem
