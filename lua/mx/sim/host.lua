--- Describes this machine as a hardware table: measures its peaks and rates, with the threads of a rank.

local mx = require "mx"

local host = {}

local SECONDS = 0.12 -- for each rate of a sample
local SAMPLES = 6 -- samples from which the rates of this machine are taken
local WEIGHTS = 12 -- of a sample of products: 50 MB in bf16
local NOMINAL = 1e12 -- rate to use if times do not matter

-- Calls of fn per second: the median of several.
local function rate(fn)
    local times, started = {}, mx.now()
    fn()
    repeat
        local start = mx.now()
        fn()
        times[#times + 1] = mx.now() - start
    until #times >= 3 and mx.now() - started > SECONDS
    return 1 / mx.util.quantile(times, 0.5)
end

-- FLOP/s of the three products of a layer's weight: forward, and those of both gradients. Each round uses the next of
-- several weights, so that operands come from memory and outer caches, as in a step. This matters for tile registers
-- (AMX), which multiply faster than inner caches are filled.
local function product_rate(dtype)
    local m, k, n, next_weight = 1024, 1024, 2048, 0
    return mx.scope(function()
        local x, dy = mx.randn { shape = { m, k }, dtype = dtype }, mx.randn { shape = { m, n }, dtype = dtype }
        local weights = {}
        for i = 1, WEIGHTS do
            weights[i] = mx.randn { shape = { k, n }, dtype = dtype }
        end
        return 3 * 2 * m * n * k * rate(function()
            next_weight = next_weight % WEIGHTS + 1
            mx.matmul(x, weights[next_weight]):release()
            mx.matmul(dy, weights[next_weight], { trans_b = true }):release()
            mx.matmul(x, dy, { trans_a = true }):release()
        end)
    end)
end

-- FLOP/s of attention, forward and causal.
local function attention_rate(dtype)
    local S, H, D = 512, 4, 64
    return mx.scope(function()
        local q = mx.randn { shape = { 1, S, H, D }, dtype = dtype }
        return 4 * S * (S + 1) / 2 * H * D * rate(function()
            mx.attention(q, q, q, { causal = true }):release()
        end)
    end)
end

-- Bytes per second of memory-bound operations, measured with a sequence of three, as in a step.
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

---@class mx.HostRates
---@field bf16 number FLOP/s of matrix products in bf16
---@field f32 number FLOP/s of matrix products in f32
---@field attention number FLOP/s of attention in bf16
---@field memory number B/s of memory-bound operations
---@field launch_s number seconds of an operation that does almost nothing

--- Measures the rates of this machine now, with the current number of threads; takes half a second. On a shared machine
--- they change from one second to the next, so sample them next to the measurement that you compare. Not collective.
---@return mx.HostRates
function host.sample()
    return {
        bf16 = product_rate("bf16"), f32 = product_rate("f32"), attention = attention_rate("bf16"),
        memory = memory_rate("bf16", 2), launch_s = launch_seconds(),
    }
end

--- Combines several samples: for each rate, this quantile.
---@param samples mx.HostRates[]
---@param p number 0.5: the median; 1: the best
---@return mx.HostRates
function host.combine(samples, p)
    local rates = {}
    for _, name in ipairs({ "bf16", "f32", "attention", "memory", "launch_s" }) do
        local values = {}
        for i, sample in ipairs(samples) do
            values[i] = sample[name]
        end
        rates[name] = mx.util.quantile(values, name == "launch_s" and 1 - p or p)
    end
    return rates
end

local function measure()
    local samples = {}
    for i = 1, SAMPLES do
        samples[i] = host.sample()
    end
    -- The best, because a new process is slower for a second or two.
    return host.combine(samples, 1)
end

--- The hardware table of this machine with `ranks` ranks on it. Not collective.
---@param ranks integer
---@param o? {measure: boolean, rates: mx.HostRates} measure = false: only the memory is real, rates are nominal; rates:
---       rates measured before
---@return table as returned by mx.sim.hardware
function host.hardware(ranks, o)
    o = o or {}
    local info = mx.info()
    local hardware = {
        name = "host", path = "measured on this machine", description = "this host", device = "rank",
        peak_flops = { bfloat16 = NOMINAL, float32 = NOMINAL }, matrix_unit_tile = 1,
        memory_bytes = info.memory_bytes / ranks, memory_Bps = NOMINAL, torus_dims = 0,
        slices = { [ranks] = { ranks } }, switch_Bps = NOMINAL, dcn_Bps = NOMINAL, host_Bps = NOMINAL,
        hop_latency_s = 0, dcn_hop_latency_s = 0, fuses = false,
    }
    if o.measure == false then
        return hardware
    end
    local threads = mx.threads()
    local each = math.max(1, math.min(threads, info.node_cores // ranks))
    mx.threads(each)
    local peaks = {
        bfloat16 = mx.peak { kind = "fma", dtype = "bf16", threads = each }.value,
        float32 = mx.peak { kind = "fma", dtype = "f32", threads = each }.value,
    }
    local rates = o.rates or measure()
    mx.threads(threads)
    hardware.peak_flops, hardware.memory_Bps, hardware.launch_s = peaks, rates.memory, rates.launch_s
    hardware.matrix_efficiency = math.min(1, rates.bf16 / peaks.bfloat16)
    hardware.f32_products_flops = rates.f32 / hardware.matrix_efficiency
    hardware.attention_efficiency = math.min(1, rates.attention / peaks.bfloat16)
    -- Ranks communicate through memory: one rank writes each byte and another reads it.
    hardware.switch_Bps, hardware.host_Bps = hardware.memory_Bps / 2, hardware.memory_Bps
    hardware.dcn_Bps = hardware.switch_Bps
    return hardware
end

return host
