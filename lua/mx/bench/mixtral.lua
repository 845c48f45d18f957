--- Prints published rates of models with experts beside simulated ones. No constant is fitted to these rows.

local mx = require "mx"
local util = require "mx.util"

local bench_mixtral = {}

local say = mx.metrics.say
local ROW = "%-14s %-8s %-12s %9s %9s %6s %6s %8s"

-- The config of a row, and a published file of its hardware for mx.repro.
local function config_of(published, cell)
    local own = setmetatable({ hardware = cell.hardware }, { __index = published })
    return mx.config.load(mx.repro.words(own, cell), { simulate = false, flags = false }), own
end

--- Model FLOPs of a token in a row's job, by the file's formula; and the peak of a chip.
---@param published table of mx.repro.published("moe")
---@param cell table a row of it
---@return number flops, number peak FLOP/s
function bench_mixtral.flops_of(published, cell)
    local config, hardware = config_of(published, cell), mx.sim.hardware(cell.hardware)
    local shape, S = mx.models.shape(config), config.max_target_length
    local flops = mx.flops.step(config.flop_formula, shape, mx.models.count(shape), 1, S)
    return flops / S, hardware.peak_flops.bfloat16 * (hardware.dies or 1)
end

--- The published rate of a row: it states it, or the time of a step.
---@param published table
---@param cell table
---@return number tokens of a chip in a second
function bench_mixtral.rate_of(published, cell)
    local config = config_of(published, cell)
    local devices = mx.sim.hardware(cell.hardware).dies or 1
    return cell.tokens_per_s
        or config.per_device_batch_size * devices * config.max_target_length / cell.step_time_s
end

-- Compares a row with its simulation.
local function compare(published, cell)
    local row = {
        model = cell.model, hardware = cell.hardware, chips = cell.chips, kind = cell.kind,
        published_tokens_per_s = cell.tokens_per_s, published_mfu = cell.mfu, published_step_s = cell.step_time_s,
    }
    local flops, peak = bench_mixtral.flops_of(published, cell)
    local rate = bench_mixtral.rate_of(published, cell)
    row.published_tokens_per_s, row.published_mfu = rate, cell.mfu or 100 * rate * flops / peak
    local config, own = config_of(published, cell)
    local result = mx.repro.simulate(own, cell, { limited = false })
    local hardware = mx.sim.hardware(cell.hardware)
    row.simulated_tokens_per_s = result.tokens_per_s * (hardware.dies or 1)
    row.simulated_mfu, row.simulated_step_s = result.mfu, result.step_s
    row.simulated_step_range = mx.sim.label.shares_by_errors(cell.hardware, mx.sim.label.job(config))
    row.error_percent = 100 * (rate / row.simulated_tokens_per_s - 1) -- of the step time
    row.peak_memory_bytes, row.memory_bytes = result.peak_memory_bytes, hardware.memory_bytes
    row.simulation = mx.sim.label.of(hardware, mx.sim.label.job(config))
    return row
end

local function print_row(row)
    say("%s", ROW:format(row.model, ("%s-%d"):format(row.hardware, row.chips), row.kind,
        ("%.0f"):format(row.published_tokens_per_s), ("%.0f"):format(row.simulated_tokens_per_s),
        ("%.2f"):format(row.published_mfu), ("%.2f"):format(row.simulated_mfu),
        ("%+.1f %%"):format(row.error_percent)))
    local range = row.simulated_step_range
    say("  simulated: a step takes %.4g s%s: MFU %.1f to %.1f", row.simulated_step_s,
        mx.sim.label.range_text(row.simulated_step_s, range), row.simulated_mfu / range[2],
        row.simulated_mfu / range[1])
end

local function print_excess(rows)
    for _, row in ipairs(rows) do
        if row.peak_memory_bytes > row.memory_bytes then
            say("%s, %s on %s: peak memory %s, more than %s", row.model, row.kind, row.hardware,
                util.bytes(row.peak_memory_bytes), util.bytes(row.memory_bytes))
        end
    end
end

-- Prints how much faster the jobs in fp8 are than the same ones in bf16.
local function print_ratios(rows)
    local of = {}
    for _, row in ipairs(rows) do
        local name, plain = row.model .. row.hardware, row.kind:match("^(.*) fp8$")
        local bf16 = plain and of[name .. plain]
        if bf16 then
            say("%s, %s on %s: fp8 %.2f times as fast as bf16, simulated %.2f", row.model, plain, row.hardware,
                row.published_tokens_per_s / bf16.published_tokens_per_s,
                row.simulated_tokens_per_s / bf16.simulated_tokens_per_s)
        end
        of[name .. row.kind] = row
    end
end

--- Simulates the published jobs and prints the rates side by side. Not collective.
---@param words string[] metrics_file=F
---@return table[] rows
function bench_mixtral.run(words)
    local o = mx.config.options(words, { metrics_file = "" })
    if mx.ranks() > 1 then
        util.refuse("one process simulates all chips, but there are %d ranks: start mxlua without mpirun", mx.ranks())
    end
    local log = o.metrics_file ~= "" and mx.outputs.metrics(o.metrics_file) or nil
    local published, rows = mx.repro.published("moe"), {}
    say("rates of a chip; nothing is fitted to these rows")
    say("ranges: by the errors of all published rows of the chips, and of these rows")
    say("FLOPs by %s, of deepseek3-671b by maxtext-2025-07", published.flop_formula)
    say("%s", ROW:format("", "", "", "tokens/s", "tokens/s", "MFU %", "MFU %", "error"))
    say("%s", ROW:format("model", "chips", "experts", "published", "simulated", "publ.", "simul.", "of step"))
    for i, cell in ipairs(published.cells) do
        rows[i] = compare(published, cell)
        print_row(rows[i])
        if log then
            log:row(rows[i])
        end
    end
    print_ratios(rows)
    print_excess(rows)
    if log then
        log:close()
    end
    return rows
end

return bench_mixtral
