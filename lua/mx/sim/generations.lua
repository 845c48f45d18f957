--- Checks the simulator against the published rows of a generation of chips: the error of each row, of rows left out of
--- the fit, and of a null model; and where the time of a step goes.
--
-- Constants are fitted to the rows marked `fitted` in configs/published, and to nothing else. The fit minimises the
-- squares of log(simulated / published time) in per cent, and of the distance of each constant from the middle of its
-- range, where a quarter of the range counts as much as one per cent of a step. The range decides what the rows cannot:
-- without it, two constants would follow one row exactly.
--
-- The null model is the simplest alternative: the vendor's figures alone, and one factor, fitted to the same rows.

local fit = require "mx.sim.fit"
local mx = require "mx"
local util = require "mx.util"

local generations = {}

--- generation -> files of configs/published
generations.FILES = { v5e = { "v5e" }, v5p = { "v5p" }, v6e = { "v6e" }, h100 = { "a3", "h100" }, v7x = { "v7x" } }
generations.NAMES = { "v5e", "v5p", "v6e", "h100", "v7x" }

local STEP = 0.01 -- relative change of a constant for its derivative

-- What the vendor's figures alone mean: no share is lost, and no mechanism costs anything.
local VENDOR = {
    matrix_efficiency = 1, attention_efficiency = 1, memory_efficiency = 1, ici_efficiency = 1, dcn_efficiency = 1,
    chip_spread = 0, vector_flops = 0, attention_step_s = 0, logit_bytes = 0, logits_again = false,
    one_hot_embedding = false, matrix_unit_tile = 1, multiprocessors = 0, product_block = 0, product_s = 0,
    attention_kernel = {
        block_q = 1, block_kv = 1, block_q_dkv = 1, block_kv_dkv = 1, block_q_dq = 1, block_kv_dq = 1,
        fused_backward = true, scores_in_memory = false, fixed_maximum = false,
    },
}

--- The published rows of a generation.
---@param name string of generations.NAMES
---@return table[] rows model, hardware, slices, words, fitted, step_time_s or tflops
function generations.rows(name)
    local rows = {}
    for _, file in ipairs(generations.FILES[name]) do
        local published = mx.repro.published(file)
        for _, cell in ipairs(published.cells) do
            local hardware = published.hardware
            local row = {
                model = cell.model, slices = cell.slices, chips = cell.chips, step_time_s = cell.step_time_s,
                tflops = cell.tflops, mfu = cell.mfu, fitted = mx.repro.is_fitted(published, cell),
                words = mx.repro.words(published, cell),
            }
            row.hardware = hardware:find("-", 1, true) and hardware or ("%s-%d"):format(hardware, cell.chips)
            rows[#rows + 1] = row
        end
    end
    return rows
end

--- Simulates a row.
---@param row table of generations.rows
---@param values? table<string, any> used instead of those of the hardware file
---@return table result of mx.plan.simulate, with ratio: simulated / published step time
function generations.simulate(row, values)
    local config = mx.config.load(row.words, { simulate = false, flags = false })
    local result = mx.plan.simulate(config, config.hardware, config.num_slices, { constants = values })
    if row.step_time_s then
        result.ratio = result.step_s / row.step_time_s
    elseif row.mfu then
        result.ratio = row.mfu / result.mfu
    else
        result.ratio = 1e12 * row.tflops / result.flops_per_s
    end
    return result
end

-- ---- fit and leave-one-out ----

local function percent(ratio)
    return 100 * math.log(ratio)
end

-- Distances of constants from the middles of their ranges, in quarters of the range; logarithms.
local function distances(values, ranges)
    local list = {}
    for _, name in ipairs(util.sorted_keys(values)) do
        local least, most = math.log(ranges[name][1]), math.log(ranges[name][2])
        list[#list + 1] = (math.log(values[name]) - (least + most) / 2) / ((most - least) / 4)
    end
    return list
end

--- Fits the constants of a hardware table whose basis is `fitted`.
---@param hardware table
---@param rows table[] the fitted rows
---@param progress fun(round: integer, rms: number)
---@return table<string, number> constants
function generations.fit(hardware, rows, progress)
    local start, ranges = mx.sim.constants.of(hardware, "fitted")
    return fit.least_squares(function(values)
        local r = distances(values, ranges)
        for _, row in ipairs(rows) do
            r[#r + 1] = percent(generations.simulate(row, values).ratio)
        end
        return r
    end, start, ranges, progress)
end

--- The errors of fitted rows when each in turn is left out of the fit, in per cent of the step time. Each fit without a
--- row is one Newton step from the fit of all, with the same derivatives.
---@param hardware table
---@param rows table[] the fitted rows
---@param ratios number[] of the rows, with the constants of the hardware file
---@return number[]
function generations.left_out(hardware, rows, ratios)
    local values, ranges = mx.sim.constants.of(hardware, "fitted")
    local names, slopes = util.sorted_keys(values), {}
    for i, name in ipairs(names) do
        local h = values[name] * (1 + STEP) <= ranges[name][2] and STEP or -STEP
        slopes[i] = {}
        for k, row in ipairs(rows) do
            slopes[i][k] = percent(generations.simulate(row, { [name] = values[name] * (1 + h) }).ratio / ratios[k]) / h
        end
    end
    local prior, errors = distances(values, ranges), {}
    for out in ipairs(rows) do
        local r, columns = {}, {}
        for k in ipairs(rows) do
            r[#r + 1] = k ~= out and percent(ratios[k]) or nil
        end
        table.move(prior, 1, #prior, #r + 1, r)
        for i, name in ipairs(names) do
            local column = {}
            for k in ipairs(rows) do
                column[#column + 1] = k ~= out and slopes[i][k] or nil
            end
            for j in ipairs(names) do
                column[#column + 1] = i == j and 4 / math.log(ranges[name][2] / ranges[name][1]) or 0
            end
            columns[name] = column
        end
        local steps, error = fit.step(names, columns, r, 0), percent(ratios[out])
        for i, name in ipairs(names) do
            error = error + slopes[i][out] * steps[name]
        end
        errors[out] = 100 * (math.exp(error / 100) - 1)
    end
    return errors
end

-- ---- the table ----

local PARTS = { "matrix_s", "attention_s", "memory_s", "ici_s", "dcn_s", "host_s" }

local function mean(list)
    local sum = 0
    for _, value in ipairs(list) do
        sum = sum + math.abs(value)
    end
    return #list > 0 and sum / #list or nil
end

local function text(value, format)
    return value and format:format(value) or "-"
end

local HEADER = "                                   step time in s         error in %         share of the step in %\n"
    .. "  model             slices      published simulated    all left out  null   matrix  attn memory   ICI   DCN"
    .. "  host"
local ROW = "  %-14s%s %3d x %-9s %9.4g %9.4g %+6.1f %8s %5s   %s"
local MEANS_HEADER = "        fitted  left out  other rows  null model on these"
local MEANS_ROW = "  %-5s %6s %9s %11s %20s"

local function print_row(row, result, left_out, null)
    local shares = {}
    for i, part in ipairs(PARTS) do
        shares[i] = ("%5.1f"):format(100 * result.times[part] / result.step_s)
    end
    mx.metrics.say("%s", ROW:format(row.model, row.fitted and "*" or " ", row.slices, row.hardware,
        result.step_s / result.ratio, result.step_s, 100 * (result.ratio - 1), text(left_out, "%+.1f"),
        text(null, "%+.1f"), table.concat(shares, "  ")))
end

-- The factor of the null model: the geometric mean of published / simulated over the fitted rows.
local function factor_of(rows, ratios)
    local sum, n = 0, 0
    for i, row in ipairs(rows) do
        if row.fitted then
            sum, n = sum - math.log(ratios[i]), n + 1
        end
    end
    return math.exp(sum / n)
end

local function refit(hardware, rows)
    local values = generations.fit(hardware, rows, function() end)
    for name, value in util.sorted_pairs(values) do
        mx.metrics.say("  fitted: %s = %.4g", name, value)
        hardware.constants[name][1] = value
    end
end

local function chosen(rows)
    local list = {}
    for _, row in ipairs(rows) do
        list[#list + 1] = row.fitted and row or nil
    end
    return list
end

--- Simulates the rows of one generation and prints them.
---@param name string
---@param again boolean fit the constants again
---@param log? table of mx.outputs.metrics
---@return table summary mean errors in per cent of the step time: fitted, left_out, others, null_others
function generations.check(name, again, log)
    local hardware, rows = mx.sim.hardware(name), generations.rows(name)
    local fitted, null, results, ratios = chosen(rows), {}, {}, {}
    mx.metrics.say("%s: constants fitted to %s (*)", hardware.description, mx.sim.constants.fitted_to(hardware))
    if again then
        refit(hardware, fitted)
    end
    local values = mx.sim.constants.of(hardware, "fitted")
    for i, row in ipairs(rows) do
        results[i], null[i] = generations.simulate(row, values), generations.simulate(row, VENDOR).ratio
        ratios[#ratios + 1] = row.fitted and results[i].ratio or nil
    end
    local left_out, factor, at = generations.left_out(hardware, fitted, ratios), factor_of(rows, null), 0
    mx.metrics.say("%s", HEADER)
    local errors = { fitted = {}, left_out = left_out, others = {}, null_others = {} }
    for i, row in ipairs(rows) do
        local error, null_error = 100 * (results[i].ratio - 1), 100 * (null[i] * factor - 1)
        at = at + (row.fitted and 1 or 0)
        table.insert(row.fitted and errors.fitted or errors.others, error)
        table.insert(not row.fitted and errors.null_others or {}, null_error)
        print_row(row, results[i], row.fitted and left_out[at] or nil, null_error)
        if log then
            log:row({
                generation = name, model = row.model, hardware = row.hardware, slices = row.slices,
                fitted = row.fitted, simulated_step_s = results[i].step_s, error_percent = error,
                left_out_percent = row.fitted and left_out[at] or nil, null_percent = null_error,
            })
        end
    end
    local summary = { generation = name, rows = #rows, constants = values }
    for part, list in pairs(errors) do
        summary[part] = mean(list)
    end
    return summary
end

--- Simulates one generation or all, and prints their rows and mean errors. Not collective.
---@param name string of generations.NAMES, or all
---@param o? {refit: boolean, write: boolean} refit: fit the constants again; write: write configs/published/errors.yml
---@param log? table
---@return table<string, table> summaries
function generations.run(name, o, log)
    o = o or {}
    local names, started, summaries = name == "all" and generations.NAMES or { name }, mx.now(), {}
    if not generations.FILES[names[1]] then
        util.refuse("generation=%s: expected all, %s", name, table.concat(generations.NAMES, ", "))
    end
    for _, each in ipairs(names) do
        summaries[each] = generations.check(each, o.refit, log)
    end
    mx.metrics.say("Mean error of the step time in %%:")
    mx.metrics.say("%s", MEANS_HEADER)
    for _, each in ipairs(names) do
        local s = summaries[each]
        mx.metrics.say(MEANS_ROW, each, text(s.fitted, "%.1f"), text(s.left_out, "%.1f"), text(s.others, "%.1f"),
            text(s.null_others, "%.1f"))
        if log then
            log:row(s)
        end
    end
    mx.metrics.say("%.1f s", mx.now() - started)
    if log then
        log:close()
    end
    if o.write then
        local all = {}
        for _, each in ipairs(names) do
            all[each] = mx.sim.errors.make(each)
        end
        mx.sim.errors.write(all)
    end
    return summaries
end

return generations
