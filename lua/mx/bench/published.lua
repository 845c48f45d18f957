--- Compares the published step time of Llama 2 7B on eight H100 with the simulated one.

local mx = require "mx"
local util = require "mx.util"

local bench_published = {}

local say = mx.metrics.say

local PARTS = {
    { "matrix_s", "matrix units" }, { "attention_s", "attention" }, { "memory_s", "memory" },
    { "ici_s", "exposed communication in the node" },
}

--- Model FLOPs of a device's step by each formula, and the rate and MFU that follow from the published time.
---@param config table
---@param shape table of mx.models.shape
---@param seconds number of a step
---@param peak number FLOP/s
---@return {formula: string, flops: number, tflops: number, mfu: number}[]
function bench_published.rates(config, shape, seconds, peak)
    local rows = {}
    -- The formula of the month of the measurement (half of attention), and the two later ones.
    for i, formula in ipairs({ "maxtext-2023-11", "maxtext-2024-05", "maxtext-2025-07" }) do
        local flops = mx.flops.step(formula, shape, mx.models.count(shape), config.per_device_batch_size,
            config.max_target_length)
        local rate = flops / seconds
        rows[i] = { formula = formula, flops = flops, tflops = rate / 1e12, mfu = mx.flops.mfu(rate, peak, formula) }
    end
    return rows
end

-- Checks that the published row is consistent: sequences of a step divided by its time, to the published digits.
local function check_row(cell, config)
    local batch = config.per_device_batch_size * cell.chips
    local rate = batch / cell.step_time_s
    say("published   step %.3f s, %.2f sequences/s on %d GPUs", cell.step_time_s, cell.sequences_per_s, cell.chips)
    say("            %d sequences / %.3f s = %.2f a second: the row %s", batch, cell.step_time_s, rate,
        math.abs(rate - cell.sequences_per_s) < 0.02 and batch == cell.global_batch_size and "agrees with itself"
        or "does not agree with itself")
end

local function print_rates(what, rows, peak)
    say("%s", what)
    for _, row in ipairs(rows) do
        say("            %s: %.1f TFLOP a GPU, %.1f TFLOP/s, MFU %.2f %% of %.1f", row.formula, row.flops / 1e12,
            row.tflops, row.mfu, peak / 1e12)
    end
end

local function print_simulated(cell, result, error_percent)
    say("simulated   step %.4f s%s, %.2f sequences/s", result.step_s,
        mx.sim.label.range_text(result.step_s, result.range), cell.global_batch_size / result.step_s)
    say("            remat_policy minimal_with_context for minimal_flash; peak memory of a GPU %s",
        util.bytes(result.peak_memory_bytes))
    for _, part in ipairs(PARTS) do
        local seconds = result.times[part[1]]
        say("            %8.4f s %5.1f %%  %s", seconds, 100 * seconds / result.step_s, part[2])
    end
    say("error       %+.1f %% of the published step time", error_percent)
end

--- Simulates the published job and prints both step times. Not collective.
---@param words string[] metrics_file=F
---@return table summary
function bench_published.run(words)
    local o = mx.config.options(words, { metrics_file = "" })
    if mx.ranks() > 1 then
        util.refuse("one process simulates all GPUs, but there are %d ranks: start mxlua without mpirun", mx.ranks())
    end
    local log = o.metrics_file ~= "" and mx.outputs.metrics(o.metrics_file) or nil
    local published = mx.repro.published("h100")
    local cell = published.cells[1]
    local config = mx.config.load(mx.repro.words(published, cell), { simulate = false, flags = false })
    local peak = mx.sim.hardware(published.hardware).peak_flops.bfloat16
    local shape = mx.models.shape(config)
    say("%s on %s: fsdp %d, %d sequences of %d tokens a GPU, bfloat16", cell.model, published.hardware,
        config.ici_fsdp_parallelism, config.per_device_batch_size, config.max_target_length)
    check_row(cell, config)
    local rates = bench_published.rates(config, shape, cell.step_time_s, peak)
    print_rates("            it states no FLOPs; by the formulas:", rates, peak)
    local result = mx.repro.simulate(published, cell, { range = true })
    local error_percent = 100 * (result.step_s / cell.step_time_s - 1)
    print_simulated(cell, result, error_percent)
    local simulated_rates = bench_published.rates(config, shape, result.step_s, peak)
    print_rates("            by the formulas:", simulated_rates, peak)
    local hardware, label = mx.sim.hardware(published.hardware), mx.sim.label
    label.say(hardware, label.job(config))
    local summary = {
        summary = true, model = cell.model, hardware = published.hardware, published_step_s = cell.step_time_s,
        published_sequences_per_s = cell.sequences_per_s, simulated_step_s = result.step_s,
        simulated_sequences_per_s = cell.global_batch_size / result.step_s, error_percent = error_percent,
        simulation = label.of(hardware, label.job(config)), remat_policy = config.remat_policy,
        published_remat_policy = published.remat_policy,
        peak_memory_bytes = result.peak_memory_bytes, peak_tflops = peak / 1e12,
        published_rates = rates, simulated_rates = simulated_rates,
    }
    for _, part in ipairs(PARTS) do
        summary[part[1]] = result.times[part[1]]
    end
    if log then
        log:row(summary)
        log:close()
    end
    return summary
end

return bench_published
