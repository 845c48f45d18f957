--- This machine as a hardware file: peaks and rates are measured when they are asked for, with the threads of a rank.

local mx = require "mx"

local host = {}

local SECONDS = 0.8 -- for each rate
local NOMINAL = 1e12 -- where nobody asks for times

-- Calls of fn a second: the best of several runs, so that what else goes on counts little.
local function rate(fn)
    local best, started = math.huge, mx.now()
    fn()
    repeat
        local start = mx.now()
        fn()
        best = math.min(best, mx.now() - start)
    until mx.now() - started > SECONDS
    return 1 / best
end

-- FLOP/s of a matrix product in the shapes of a layer.
local function product_rate(dtype)
    local m, k, n = 1024, 1024, 2048
    return mx.scope(function()
        local x, w = mx.randn { shape = { m, k }, dtype = dtype }, mx.randn { shape = { k, n }, dtype = dtype }
        return 2 * m * n * k * rate(function()
            mx.matmul(x, w):release()
        end)
    end)
end

-- FLOP/s of attention, forward and causal.
local function attention_rate(dtype)
    local S, H, D = 512, 4, 64
    return mx.scope(function()
        local q = mx.randn { shape = { 1, S, H, D }, dtype = dtype }
        return 4 * S * (S + 1) / 2 * H * D * rate(function()
            mx.attention(q, q, q, nil, nil, { causal = true }):release()
        end)
    end)
end

-- Bytes per second of operations that move values, by three of them: in a step they follow each other.
local function memory_rate(dtype, width)
    local n = 4 << 20
    return mx.scope(function()
        local x = mx.randn { shape = { n // 1024, 1024 }, dtype = dtype }
        local y, w = mx.randn { shape = { n // 1024, 1024 }, dtype = dtype }, mx.ones({ 1024 })
        local seconds = 1 / rate(function()
            (x + y):release()
        end) + 1 / rate(function()
            mx.rmsnorm(x, w):release()
        end) + 1 / rate(function()
            mx.gated(x, y, { activation = "silu" }):release()
        end)
        return (3 + 2 + 3) * n * width / seconds
    end)
end

local function launch_seconds()
    return mx.scope(function()
        local x = mx.ones({ 8 })
        return 1 / rate(function()
            for _ = 1, 100 do
                (x + x):release()
            end
        end) / 100
    end)
end

--- The hardware table of this machine with `ranks` ranks on it. Not collective.
---@param ranks integer
---@param o? {measure: boolean} measure = false: memory only, and peaks that mean nothing
---@return table as mx.sim.hardware gives it
function host.hardware(ranks, o)
    local info, measure = mx.info(), not o or o.measure ~= false
    local hardware = {
        name = "host", path = "measured on this machine", description = "this host", device = "rank",
        peak_flops = { bfloat16 = NOMINAL, float32 = NOMINAL }, matrix_unit_tile = 1,
        memory_bytes = info.memory_bytes / ranks, memory_Bps = NOMINAL, on_chip_memory_bytes = 0, torus_dims = 0,
        slices = { [ranks] = { ranks } }, switch_Bps = NOMINAL, dcn_Bps = NOMINAL, host_Bps = NOMINAL,
        hop_latency_s = 0, dcn_hop_latency_s = 0, fuses = false,
    }
    if not measure then
        return hardware
    end
    local threads = mx.threads()
    local each = math.max(1, math.min(threads, info.node_cores // ranks))
    mx.threads(each)
    local peaks = {
        bfloat16 = mx.peak { kind = "fma", dtype = "bf16", threads = each }.value,
        float32 = mx.peak { kind = "fma", dtype = "f32", threads = each }.value,
    }
    local attention = attention_rate("bf16")
    hardware.memory_Bps, hardware.launch_s = memory_rate("bf16", 2), launch_seconds()
    -- Last, and so that the better of two counts: a process that has just begun is slower for a second or two.
    local f32 = product_rate("f32")
    local bf16 = math.max(product_rate("bf16"), product_rate("bf16"))
    hardware.peak_flops = peaks
    hardware.matrix_efficiency = math.min(1, bf16 / peaks.bfloat16)
    hardware.f32_products_flops = f32 / hardware.matrix_efficiency
    hardware.attention_efficiency = math.min(1, attention / peaks.bfloat16)
    -- Ranks reach each other through the memory: each byte is written by one and read by another.
    hardware.switch_Bps, hardware.host_Bps = hardware.memory_Bps / 2, hardware.memory_Bps
    hardware.dcn_Bps = hardware.switch_Bps
    mx.threads(threads)
    return hardware
end

return host
