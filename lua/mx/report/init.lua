--- Reports: one HTML page of a run (report_file of scripts that report steps) or of the published table.
--
-- report.run and report.repro are pure functions from figures to the page's text; the others gather figures and write
-- files. Published, simulated and measured figures have separate columns.

local mx = require "mx"
local page = require "mx.report.page"
local steps = require "mx.report.steps"
local svg = require "mx.report.svg"
local util = require "mx.util"

local report = {}

local MOST_POINTS = 300 -- points of a curve
local MOST_ROWS = 40 -- rows of operations

local function put(list, ...)
    for _, item in ipairs({ ... }) do
        list[#list + 1] = item
    end
end

local function seconds_text(s)
    return s >= 1 and ("%.4g s"):format(s) or s >= 1e-3 and ("%.4g ms"):format(1e3 * s) or ("%.3g µs"):format(1e6 * s)
end

local function percent(part, whole)
    return whole > 0 and ("%.1f"):format(100 * part / whole) or "–"
end

-- ---- a run: figures and curves ----

-- The figures of a summary as texts, in the order of FIGURES.
local FIGURES = {
    { "MFU, %", function(s) return s.mfu and ("%.2f"):format(s.mfu) end },
    { "TFLOP/s a device", function(s) return s.tflops_per_device and ("%.4g"):format(s.tflops_per_device) end },
    { "of a peak of", function(s)
        return s.peak_source and ("%.4g TFLOP/s: %s"):format(s.peak_tflops, s.peak_source)
    end },
    { "FLOPs counted as", function(s) return s.flop_formula end },
    { "tokens/s a device", function(s)
        return s.tokens_per_s_per_device and ("%.4g"):format(s.tokens_per_s_per_device)
    end },
    { "step, median", function(s) return s.step_time_s and seconds_text(s.step_time_s) end },
    { "range of a step on such chips", function(s)
        local range = s.step_time_range_s
        return range and seconds_text(range[1]) .. " to " .. seconds_text(range[2])
    end },
    { "step, 10 % to 90 %", function(s)
        return s.step_time_p10_s and seconds_text(s.step_time_p10_s) .. " to " .. seconds_text(s.step_time_p90_s)
    end },
    { "exposed communication a step", function(s)
        return s.exposed_communication_s and seconds_text(s.exposed_communication_s)
    end },
    { "peak memory of a rank", function(s) return s.peak_memory_bytes and util.bytes(s.peak_memory_bytes) end },
    { "evaluation loss, last", function(s) return s.eval_loss and ("%.4f"):format(s.eval_loss) end },
    { "largest load of an expert, over the mean", function(s)
        return s.largest_expert_load and ("%.2f"):format(s.largest_expert_load)
    end },
    { "slots that were dropped", function(s)
        return s.dropped_share and ("%.2f %%"):format(100 * s.dropped_share)
    end },
    { "goodput", function(s)
        return s.goodput and ("%.1f %% of %s"):format(s.goodput, util.duration(s.wall_time_s))
    end },
    { "the rest of the time", function(s) return s.badput and mx.goodput.text(s.badput) end },
    { "steps timed", function(s) return s.timed_steps and tostring(s.timed_steps) end },
}

local function figures_table(d)
    local columns, head, rows, text = {}, { "" }, {}, {}
    for _, column in ipairs(d.beside or {}) do
        columns[#columns + 1], head[#head + 1] = column, column.title
    end
    columns[#columns + 1], head[#head + 1] = d.summary, d.simulated and "simulated, this run" or "measured, this run"
    for i = 2, #head do
        text[i] = true
    end
    for _, figure in ipairs(FIGURES) do
        local row, any = { figure[1] }, false
        for i, column in ipairs(columns) do
            row[i + 1] = figure[2](column) or false
            any = any or row[i + 1]
        end
        rows[#rows + 1] = any and row or nil
    end
    return page.table(head, rows, text)
end

local function curve(title, y, rows, field, caption)
    local points = {}
    for _, row in ipairs(rows) do -- a step may have no loss
        points[#points + 1] = row[field] and { row.step, row[field] * (y.factor or 1) } or nil
    end
    local thin = svg.thin(points, MOST_POINTS)
    if thin ~= points then
        caption = ("%s Each point is the mean of about %d steps."):format(caption, math.ceil(#points / MOST_POINTS))
    end
    return page.figure(title, svg.plot {
        title = title, x = { label = "step", whole = true, tight = true }, y = y,
        series = { { points = thin, line = true, marks = #thin <= 40, radius = 2.5 } },
    }, nil, caption)
end

local function time_curve(rows)
    local longest = 0
    for _, row in ipairs(rows) do
        longest = math.max(longest, row.step_time_s)
    end
    local y = longest < 1 and { label = "milliseconds", factor = 1e3, min = 0 } or { label = "seconds", min = 0 }
    return curve("Step time", y, rows, "step_time_s", "Time of each step.")
end

local function curves(d)
    local figures, times = {}, time_curve(d.rows)
    if d.simulated then
        return page.paragraph("The tensors of a simulated run have no values, so there is no loss to show.")
            .. page.grid { times }
    end
    put(figures, curve("Loss", { label = "loss" }, d.rows, "loss", "Mean over the batch and the ranks."), times)
    if d.summary.eval_loss then
        put(figures, curve("Evaluation loss", { label = "loss" }, d.rows, "eval_loss", "Mean over the targets."))
    end
    for _, c in ipairs {
        { "Largest load of an expert", "over the mean load", "largest_expert_load", "Averaged over the layers." },
        { "Dropped slots", "per cent", "dropped_share", "Choices of tokens beyond the capacity of an expert." },
        { "Load-balance loss", "loss", "load_balance_loss", "With its weight, as it is part of the loss." },
        { "Router z-loss", "loss", "router_z_loss", "With its weight, as it is part of the loss." },
        { "Largest score of attention", "logit", "max_logit", "In any head, before use_qk_clip acts." },
        { "Loss of multi-token prediction", "loss", "mtp_loss", "With its weight, as it is part of the loss." },
    } do
        local y = { label = c[2], factor = c[3] == "dropped_share" and 100 or nil }
        figures[#figures + 1] = d.summary[c[3]] and curve(c[1], y, d.rows, c[3], c[4]) or nil
    end
    return page.grid(figures)
end

-- ---- a run: the time of a step by part ----

local function breakdown(d, a)
    local values, rows, legend = {}, {}, {}
    for i, part in ipairs(steps.PARTS) do
        values[i] = 100 * a.parts[part] / a.seconds
        rows[i] = { part, seconds_text(a.parts[part]), percent(a.parts[part], a.seconds) }
        legend[i] = { name = part, block = true }
    end
    rows[#rows + 1] = { "recorded step", seconds_text(a.seconds), "100.0" }
    local title = "Where the step goes"
    local caption = ("Share of the time of the script's thread of rank 0%s. Exposed communication is what it waited "
        .. "for, or ran itself; between operations are the script and the recording."):format(
        a.steps > 1 and (", mean of %d steps"):format(a.steps) or "")
    return page.grid {
        page.figure(title, svg.bars {
            title = title, names = steps.PARTS, rows = { { label = "step", values = values } },
        }, svg.legend(legend), caption),
        page.table({ "part", d.simulated and "simulated" or "measured", "% of the step" }, rows),
    }
end

local function communication_table(a)
    if #a.communication == 0 then
        return page.paragraph("Nothing was communicated.")
    end
    local rows = {}
    for i, row in ipairs(a.communication) do
        rows[i] = {
            row.name, row.over or false, row.track, ("%.3g"):format(row.jobs), svg.short(row.bytes, "B"),
            seconds_text(row.busy_s), seconds_text(row.exposed_s),
        }
    end
    return page.table({ "collective", "axes", "on", "a step", "sent", "busy", "exposed" }, rows,
        { [2] = true, [3] = true })
end

local function memory_figure(a)
    local most, at = 0, 0
    for _, point in ipairs(a.memory) do
        if point[2] > most then
            at, most = point[1], point[2]
        end
    end
    local unit, bytes = "MiB", 2 ^ 20
    if most >= 2 ^ 30 then
        unit, bytes = "GiB", 2 ^ 30
    end
    local points = {}
    for i, point in ipairs(a.memory) do
        points[i] = { point[1], point[2] / bytes }
    end
    local title, text = "Memory over the step", "peak " .. util.bytes(most)
    local series = {
        { name = "in use after each operation", points = svg.thin(points, MOST_POINTS, math.max), line = true },
        { name = text, points = { { at, most / bytes, text } }, marks = true, colour = 5, mark = 4, radius = 4.5 },
    }
    local x = { label = "seconds from the start of the step", tight = true }
    return page.figure(title, svg.plot { title = title, x = x, y = { label = unit, min = 0 }, series = series },
        svg.legend(series), "What tensors hold, as the pool counts it.")
end

-- Operations with FLOPs and measured time: {FLOPs per byte, FLOP/s, text}.
local function roofline_points(a)
    local by_family = {}
    for _, row in ipairs(a.operations) do
        if row.work ~= "collective" and row.flops > 0 and row.bytes > 0 and row.seconds > 0 then
            local list = by_family[row.family] or {}
            by_family[row.family] = list
            list[#list + 1] = {
                row.flops / row.bytes, row.flops / row.seconds,
                ("%s %s: %s, %.3g FLOPs a byte, %.3g calls"):format(row.name, row.inputs,
                    svg.short(row.flops / row.seconds, "FLOP/s"), row.flops / row.bytes, row.calls),
            }
        end
    end
    return by_family
end

-- The roofline (bandwidth and peak) over the span of the points.
local function limits(d, low, high)
    local peak, bandwidth = d.peak.value, d.bandwidth.value
    local ridge = peak / bandwidth
    low, high = math.min(low, ridge / 4), math.max(high, ridge * 4)
    return {
        { name = "peak", points = { { ridge, peak }, { high, peak } }, line = true, class = "limit" },
        { name = "memory bandwidth", points = { { low, bandwidth * low }, { ridge, peak } }, line = true, dashed = true,
            class = "limit" },
    }
end

local function roofline_figure(d, a)
    local series, low, high = {}, math.huge, 0
    local by_family = roofline_points(a)
    for i, family in ipairs(steps.PARTS) do
        local points = by_family[family]
        for _, point in ipairs(points or {}) do
            low, high = math.min(low, point[1]), math.max(high, point[1])
        end
        if points then
            series[#series + 1] = { name = family, points = points, marks = true, colour = i, mark = i }
        end
    end
    if #series == 0 or not d.peak or not d.bandwidth then
        return nil
    end
    put(series, table.unpack(limits(d, low, high)))
    local title = "Roofline of the operations"
    local caption = ("Each mark is an operation with its shapes. Peak %s: %s. Bandwidth %s: %s. Intensity counts each "
        .. "input read and each output written once; what stays in caches%s may lie above the line."):format(
        svg.short(d.peak.value, "FLOP/s"), d.peak.source, svg.short(d.bandwidth.value, "B/s"), d.bandwidth.source,
        d.simulated and ", or is fused with its neighbours," or "")
    return page.figure(title, svg.plot {
        title = title, x = { label = "FLOPs a byte", log = 10 }, y = { label = "FLOP/s", log = 10 }, series = series,
    }, svg.legend(series), caption)
end

local function operations_table(d, a)
    local rows = {}
    for i = 1, math.min(MOST_ROWS, #a.operations) do
        local row = a.operations[i]
        rows[i] = {
            row.name, row.inputs, ("%.3g"):format(row.calls), seconds_text(row.seconds),
            percent(row.seconds, a.seconds),
            row.flops > 0 and row.seconds > 0 and svg.short(row.flops / row.seconds, "FLOP/s") or false,
            row.seconds > 0 and svg.short(row.bytes / row.seconds, "B/s") or false,
        }
    end
    local left = #a.operations - #rows
    return page.table({
        "operation", "inputs", "a step", d.simulated and "simulated" or "measured", "% of the step", "rate", "bytes",
    }, rows, { [2] = true }) .. (left > 0 and page.paragraph(("%d more take less."):format(left)) or "")
end

--- The page of a run.
---@param d table title, summary, rows (as in metrics_file), simulated (boolean), beside (columns of other figures:
---       title and fields of a summary), settings and all_settings (texts), machine (rows of two cells), events (of
---       mx.trace_events, or nil), first and last (the steps of the events), pipeline (a picture of its passes as text,
---       or nil), peak and bandwidth ({value, source} in FLOP/s and B/s, or nil)
---@return string HTML
function report.run(d)
    local parts = {}
    local simulation = d.summary.simulation
    put(parts, page.heading("Figures"), simulation and page.paragraph(("All figures of this run are simulated, not "
        .. "measured. Constants: %s. %s."):format(simulation.constants, simulation.error)) or "", figures_table(d),
        page.heading("Steps"), curves(d))
    local a = d.events and steps.analyse(d.events)
    if a then
        put(parts, page.heading(d.first == d.last and ("Step %d"):format(d.first)
            or ("Steps %d to %d"):format(d.first, d.last)), breakdown(d, a))
        put(parts, page.grid { memory_figure(a), roofline_figure(d, a) or page.paragraph("No roofline: the peak is "
            .. "not known, or no operation had arithmetic.") })
        put(parts, page.heading("Communication"), communication_table(a))
        put(parts, page.heading("Operations"), operations_table(d, a))
    else
        put(parts, page.paragraph("No step was recorded."))
    end
    if d.pipeline then
        put(parts, page.heading("Pipeline"), page.paragraph("The passes of the stages in the last step: time from left "
            .. "to right. On simulated chips all stages are shown; the other figures are those of the first stage."),
            page.verbatim(d.pipeline))
    end
    put(parts, page.heading("Settings"), page.table({ "machine", "" }, d.machine, { [2] = true }),
        page.paragraph("Settings that differ from configs/base.yml:"), page.verbatim(d.settings),
        page.verbatim(d.all_settings, "All settings"))
    return page.document(d.title, parts)
end

-- ---- a run: gathering and writing ----

-- Measures the memory bandwidth. Collective: all ranks measure at once, as they compute at once.
local function bandwidth()
    if mx.is_simulated() then
        local h = mx.sim.now
        return { value = h.memory_Bps, source = ("memory of %s (%s)"):format(h.description, h.path) }
    end
    mx.barrier()
    return mx.peak { kind = "copy", threads = mx.threads(), seconds = 0.2 }
end

local function machine()
    local info = mx.info()
    local rows = {
        { "mxlua", info.mxlua }, { "ranks", mx.ranks() }, { "threads of each rank", info.threads },
        { "processor", info.processor }, { "instruction set", info.isa },
    }
    if mx.is_simulated() then
        local h = mx.sim.now
        rows = {
            { "mxlua", info.mxlua },
            { "simulated device", h.description },
            { "chips of a slice, slices", ("%d, %d"):format(h.chips, h.pod_slices) },
            { "topology", mx.sim.topology.line() or "a switch" },
        }
    end
    return rows
end

--- Writes a page. If that fails, warns and continues.
---@param path string
---@param html string
function report.write(path, html)
    local good, reason = pcall(mx.io.write_file_atomic, path, html)
    if good then
        mx.metrics.say("report written to %s", path)
    else
        io.stderr:write(("no report was written: %s\n"):format(tostring(reason):gsub("^[^%s:]+:%d+: ", "")))
    end
end

--- Writes the report of a run from rank 0. Collective.
---@param o table of mx.metrics.new
---@param rows table[] one per step
---@param summary table
---@param profiler mx.Profiler
function report.write_run(o, rows, summary, profiler)
    local copy, pipeline = bandwidth(), o.pipeline and o.pipeline() or nil
    if mx.rank() > 0 then
        return
    end
    local config = o.config
    local name = config.run_name ~= "" and config.run_name or config.model_name
    report.write(config.report_file, report.run {
        title = ("%s on %s"):format(name, mx.is_simulated() and "a simulated " .. config.hardware
            or ("%d rank%s"):format(mx.ranks(), mx.ranks() == 1 and "" or "s")),
        summary = summary, rows = rows, simulated = mx.is_simulated(), beside = o.beside,
        settings = mx.config.dump(config, true), all_settings = mx.config.dump(config), machine = machine(),
        pipeline = pipeline, events = profiler.events, first = profiler.first, last = profiler.last, peak = o.peak,
        bandwidth = copy,
    })
end

-- ---- the published table ----

local function cell_label(row)
    return ("%s × %d"):format(row.model, row.slices)
end

local function cells_table(d)
    local head = { "model", "slices", "published MFU", "simulated MFU", "error, points", "" }
    local rows, text = {}, { [6] = true }
    for _, part in ipairs(d.parts) do
        head[#head + 1] = part[2] .. ", %"
    end
    for i, row in ipairs(d.rows) do
        local cells = {
            row.model, row.slices, row.published_mfu and ("%.2f"):format(row.published_mfu) or "-",
            ("%.2f"):format(row.simulated_mfu), row.error and ("%+.2f"):format(row.error) or "-",
            row.fitted and "fitted" or row.error and "interpolated" or "not measured",
        }
        for _, part in ipairs(d.parts) do
            cells[#cells + 1] = ("%.1f"):format(100 * row[part[1]] / row.simulated_step_s)
        end
        rows[i] = cells
    end
    return page.table(head, rows, text)
end

-- A chart with the published points and the simulated line of each model.
local function mfu_figure(d)
    local series, models = {}, {}
    for _, row in ipairs(d.rows) do
        if not models[row.model] then
            local i = #series // 2 + 1
            models[row.model] = {
                { name = row.model .. " published", points = {}, marks = true, colour = i, mark = i },
                { name = row.model .. " simulated", points = {}, line = true, colour = i },
            }
            put(series, table.unpack(models[row.model]))
        end
        local published, simulated = table.unpack(models[row.model])
        if row.published_mfu then
            put(published.points, { row.slices, row.published_mfu, ("%s published: %.2f %%"):format(cell_label(row),
                row.published_mfu) })
        end
        put(simulated.points, { row.slices, row.simulated_mfu })
    end
    local title = "MFU over slices"
    return page.figure(title, svg.plot {
        title = title, x = { label = "slices", log = 2 }, y = { label = "MFU, %" }, series = series,
    }, svg.legend(series), ("In %% of %g TFLOP/s."):format(d.summary.peak_tflops))
end

local function shares_figure(d)
    local rows, names, legend = {}, {}, {}
    for k, part in ipairs(d.parts) do
        names[k], legend[k] = part[3], { name = part[3], block = true }
    end
    for i, row in ipairs(d.rows) do
        rows[i] = { label = cell_label(row), values = {} }
        for k, part in ipairs(d.parts) do
            rows[i].values[k] = 100 * row[part[1]] / row.simulated_step_s
        end
    end
    local title = "Where the simulated step goes"
    return page.figure(title, svg.bars { title = title, names = names, rows = rows }, svg.legend(legend),
        "In % of the step, for each model and number of slices.")
end

local function constants_table(d)
    local rows = {}
    for name, value in util.sorted_pairs(d.summary.constants) do
        local range, about = d.ranges[name], mx.sim.constants.NAMES[name]
        rows[#rows + 1] = { name, ("%.4g"):format(value), ("%g to %g"):format(range[1], range[2]), about[2] }
    end
    return page.table({ "constant", "value", "plausible range", "what it is" }, rows, { [4] = true })
end

--- The page that compares the published table with the simulated one.
---@param d table rows (one per cell) and summary as in metrics_file, parts ({field, short name, name} of a step's
---       seconds), formula (of the published figures), fitted_to (text), device (text), ranges
---       (constant -> least and largest plausible value)
---@return string HTML
function report.repro(d)
    local s, parts = d.summary, {}
    put(parts, page.paragraph(("Published figures of %s beside what its simulation makes of the same jobs. MFU is in "
        .. "%% of %g TFLOP/s. FLOPs counted as %s."):format(d.device, s.peak_tflops, d.formula)))
    if s.era == "b" then
        put(parts, page.paragraph("Era b: the simulated jobs are those that scripts of these names train today. Nobody "
            .. "measured them, so there is no error."))
    else
        put(parts, page.paragraph(("%d cells are interpolations between the fitted ones: mean error %.2f points, "
            .. "largest %.2f."):format(s.predicted_cells, s.mean_abs_error, s.max_abs_error)))
    end
    put(parts, page.grid { mfu_figure(d), shares_figure(d) })
    put(parts, page.heading("Cells"), cells_table(d))
    put(parts, page.heading("Constants"), page.paragraph(("Fitted to %s."):format(d.fitted_to)), constants_table(d))
    return page.document("Published and simulated MFU", parts)
end

return util.module(report, "mx.report")
