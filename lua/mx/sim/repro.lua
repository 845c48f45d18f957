--- Compares published MFU figures with simulations of the same jobs.

local mx = require "mx"
local util = require "mx.util"

local repro = {}

--- A file of configs/published.
---@param name string "v5e"
---@return table
function repro.published(name)
    local path = ("configs/published/%s.yml"):format(name)
    local text = mx.read_file(mx.root .. path) or util.refuse("cannot read %s", path)
    return (mx.config.parse(text, path))
end

--- The config of a published job, as key=value words for mx.config.load.
---@param published table of repro.published
---@param cell {model: string, slices: integer}
---@param era? string "a" (as published, the default) or "b"
---@return string[]
function repro.words(published, cell, era)
    local hardware = published.hardware
    local words = {
        "model_name=" .. cell.model, "num_slices=" .. cell.slices, "enable_checkpointing=false",
        "hardware=" .. (hardware:find("-", 1, true) and hardware or ("%s-%d"):format(hardware, cell.chips)),
    }
    local era_settings = era == "b" and published.era_b.settings or {}
    for _, settings in ipairs({ published.settings or {}, (published.meshes or {})[cell.model] or {}, era_settings,
        cell.settings or {} }) do
        for key, value in util.sorted_pairs(settings) do
            words[#words + 1] = ("%s=%s"):format(key, value)
        end
    end
    return words
end

--- The published rows of models with experts: {cell, published} each, for repro.simulate.
---@return {cell: table, published: table}[]
function repro.rows_with_experts()
    local published, rows = repro.published("moe"), {}
    for _, cell in ipairs(published.cells) do
        rows[#rows + 1] = {
            cell = cell, published = setmetatable({ hardware = cell.hardware }, { __index = published }),
        }
    end
    return rows
end

local function check_parameters(published, cell, era, count)
    local expected = (era == "b" and published.era_b or published).params[cell.model]
    if count ~= expected then
        util.refuse("%s has %s parameters; the published job has %s", cell.model, util.thousands(count),
            util.thousands(expected))
    end
end

--- Simulates a step of a published job. Not collective: each process simulates by itself.
---@param published table of repro.published
---@param cell {model: string, slices: integer}
---@param o? {constants: table<string, number>, era: string, limited: boolean, range: boolean} constants: used instead
---       of the hardware file's; limited = false: a step that needs more memory than a chip has is not refused
---@return table step_s, mfu, tflops, tokens_per_s (of a device), peak_memory_bytes, formula, times (of mx.sim_times);
---        with o.range: range (of mx.plan.range)
function repro.simulate(published, cell, o)
    o = o or {}
    local config = mx.config.load(repro.words(published, cell, o.era), { simulate = false, flags = false })
    check_parameters(published, cell, o.era, mx.models.count(mx.models.shape(config)))
    local result = mx.plan.simulate(config, config.hardware, config.num_slices,
        { constants = o.constants, limited = o.limited ~= false })
    return {
        step_s = result.step_s, tflops = result.flops_per_s / 1e12, formula = result.formula, times = result.times,
        mfu = result.mfu, peak_memory_bytes = result.peak_bytes, tokens_per_s = result.tokens_per_s,
        range = o.range and mx.plan.range(config, config.hardware, config.num_slices) or nil,
    }
end

-- ---- fitting ----

--- Whether constants are fitted to a cell: to those that the file names in fitted_slices. The others are predictions.
---@param published table
---@param cell table
---@return boolean
function repro.is_fitted(published, cell)
    return cell.fitted or util.contains(published.fitted_slices or {}, cell.slices)
end

local function fitted_cells(published)
    local cells = {}
    for _, cell in ipairs(published.cells) do
        cells[#cells + 1] = repro.is_fitted(published, cell) and cell or nil
    end
    return cells
end

--- Fits the fitted constants of v5e to the MFU in the cells of 1 slice and of the most slices, by least squares.
---@param published table of repro.published
---@param start table<string, number>
---@param progress fun(round: integer, rms: number, constants: table)
---@return table<string, number>
function repro.fit(published, start, progress)
    local cells = fitted_cells(published)
    local function residuals(constants)
        local r = {}
        for i, cell in ipairs(cells) do
            r[i] = repro.simulate(published, cell, { constants = constants }).mfu - cell.mfu
        end
        return r
    end
    local _, ranges = mx.sim.constants.of(mx.sim.hardware("v5e"), "fitted")
    return mx.fit.least_squares(residuals, start, ranges, progress)
end

-- ---- the table ----

-- Parts of a step: the names in mx.sim_times, and those in the table.
local PARTS = {
    { "matrix_s", "matrix", "matrix unit" },
    { "attention_s", "attn", "attention" },
    { "memory_s", "memory", "memory" },
    { "ici_s", "ICI", "exposed communication in the slice" },
    { "dcn_s", "DCN", "exposed communication between slices" },
}

-- The largest part of a step besides the matrix unit: speeding it up would help most.
local function bound_by(result)
    local most, name = 0, nil
    for i = 2, #PARTS do
        local seconds = result.times[PARTS[i][1]]
        if seconds > most then
            most, name = seconds, PARTS[i][2]
        end
    end
    return name
end

local HEADER = "model slices published simulated  error |  share of the step in %           lost to"
local ROW = "%5s%s %5d %9s %9.2f %6s | %6.1f %6.1f %6.1f %6.1f %6.1f  %s"

local function print_row(cell, result, fitted)
    local shares = {}
    for i, part in ipairs(PARTS) do
        shares[i] = 100 * result.times[part[1]] / result.step_s
    end
    local published = cell.mfu and ("%.2f"):format(cell.mfu) or "-"
    local error = cell.mfu and ("%+.2f"):format(result.mfu - cell.mfu) or "-"
    mx.metrics.say("%s", ROW:format(cell.model, fitted and "*" or " ", cell.slices, published, result.mfu, error,
        shares[1], shares[2], shares[3], shares[4], shares[5], bound_by(result)))
end

local function row_of(cell, result, fitted)
    local row = {
        model = cell.model, slices = cell.slices, chips = cell.chips, published_mfu = cell.mfu,
        published_tflops = cell.tflops, simulated_mfu = result.mfu, simulated_tflops = result.tflops,
        error = cell.mfu and result.mfu - cell.mfu, fitted = fitted, simulated = true,
        simulated_step_s = result.step_s, flop_formula = result.formula,
        peak_memory_bytes = result.peak_memory_bytes, lost_to = bound_by(result),
    }
    for _, part in ipairs(PARTS) do
        row[part[1]] = result.times[part[1]]
    end
    return row
end

local function constants_of(hardware)
    return (mx.sim.constants.of(hardware, "fitted"))
end

local function print_constants(constants, fitted_to)
    mx.metrics.say("constants, fitted to %s:", fitted_to)
    for name, value in util.sorted_pairs(constants) do
        mx.metrics.say("  %-21s %-9.4g", name, value)
    end
end

local function refit(published, hardware)
    mx.metrics.say("fitting (8 cells a time; about half a minute) ...")
    return repro.fit(published, constants_of(hardware), function(round, rms)
        mx.metrics.say("  round %d: error of the fitted cells %.3f points (root mean square)", round, rms)
    end)
end

-- The errors of the predicted cells, to which nothing was fitted.
local function summary_of(rows, published)
    local n, sum, largest, squares_sum = 0, 0, 0, 0
    for _, row in ipairs(rows) do
        if row.error and not row.fitted then
            n, sum, squares_sum = n + 1, sum + math.abs(row.error), squares_sum + row.error ^ 2
            largest = math.max(largest, math.abs(row.error))
        end
    end
    local summary = { summary = true, hardware = published.hardware, peak_tflops = published.peak_tflops }
    if n > 0 then
        summary.predicted_cells, summary.mean_abs_error, summary.max_abs_error = n, sum / n, largest
        summary.rms_error = math.sqrt(squares_sum / n)
    end
    return summary
end

-- The cells to simulate. Nobody measured the models of era b, so its cells have no figures.
local function cells_of(published, era)
    local cells = published.cells
    for i, cell in ipairs(era == "b" and cells or {}) do
        cells[i] = { model = cell.model, slices = cell.slices, chips = cell.chips }
    end
    return cells
end

--- Simulates all cells of the published table and prints them next to the published figures. Not collective.
---@param words string[] generation=G, write=true, refit=true, era=b, metrics_file=F, report_file=F
---@return table? summary
function repro.run(words)
    local o = mx.config.options(words,
        { generation = "", write = false, refit = false, era = "a", metrics_file = "", report_file = "" })
    if mx.ranks() > 1 then
        util.refuse("one process simulates all chips, but there are %d ranks: start mxlua without mpirun", mx.ranks())
    end
    if o.report_file ~= "" then
        mx.outputs.check(o.report_file, "report", "report_file")
        util.attempt(mx.io.check_writable, o.report_file)
    end
    local log = o.metrics_file ~= "" and mx.outputs.metrics(o.metrics_file) or nil
    if o.generation ~= "" then
        if o.report_file ~= "" or o.era ~= "a" then
            util.refuse("generation=%s has no report_file and no era: these belong to the MFU table of TPU v5e, which "
                .. "is printed without generation", o.generation)
        end
        if o.write and (o.generation ~= "all" or o.refit) then
            util.refuse("write=true writes the errors of all generations with the constants of configs/hardware: give "
                .. "generation=all and no refit")
        end
        return mx.generations.run(o.generation, o, log)
    end
    local published, started, rows = repro.published("v5e"), mx.now(), {}
    local hardware = mx.sim.hardware(published.hardware:match("^(.-)%-"))
    mx.metrics.say("MFU in %% of %d TFLOP/s, %s", published.peak_tflops, published.flop_formula)
    if o.era == "b" then
        mx.metrics.say("era b: today's models of these names (%s), which nobody measured: there is no error",
            published.era_b.settings.flop_formula)
    end
    local constants, fitted_to = constants_of(hardware), mx.sim.constants.fitted_to(hardware)
    if o.refit then
        constants = refit(published, hardware)
    end
    mx.metrics.say("%s", HEADER)
    mx.metrics.say("%38s | %6s %6s %6s %6s %6s", "", PARTS[1][2], PARTS[2][2], PARTS[3][2], PARTS[4][2], PARTS[5][2])
    for i, cell in ipairs(cells_of(published, o.era)) do
        local result = repro.simulate(published, cell, { constants = constants, era = o.era })
        local fitted = o.era == "a" and repro.is_fitted(published, cell)
        print_row(cell, result, fitted)
        rows[i] = row_of(cell, result, fitted)
        if log then
            log:row(rows[i])
        end
    end
    local summary = summary_of(rows, published)
    summary.constants, summary.era = constants, o.era
    if summary.predicted_cells then
        mx.metrics.say("* fitted; the other %d are interpolations between these: mean error %.2f points, largest %.2f",
            summary.predicted_cells, summary.mean_abs_error, summary.max_abs_error)
    end
    print_constants(constants, fitted_to)
    mx.metrics.say("%d cells in %.1f s", #rows, mx.now() - started)
    if log then
        log:row(summary)
        log:close()
    end
    if o.report_file ~= "" then
        mx.report.write(o.report_file, mx.report.repro {
            rows = rows, summary = summary, parts = PARTS, formula = published.flop_formula, fitted_to = fitted_to,
            device = hardware.description, ranges = select(2, mx.sim.constants.of(hardware)),
        })
    end
    return summary
end

return repro
