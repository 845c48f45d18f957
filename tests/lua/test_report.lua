-- Reports: pages that are well formed, need nothing else, say every figure, and can be read.

local lu = require "luaunit"
local mx = require "mx"
local page = require "mx.report.page"
local steps = require "mx.report.steps"
local svg = require "mx.report.svg"

TestReport = {}

local ENTITIES = { ["&amp;"] = "&", ["&lt;"] = "<", ["&gt;"] = ">", ["&quot;"] = '"', ["&#39;"] = "'" }

local function plain(text)
    local rest = text:gsub("&[%w#]+;", function(entity) return ENTITIES[entity] and "" end)
    lu.assertNil(rest:find("[&<>]"), text)
    return (text:gsub("&[%w#]+;", ENTITIES))
end

-- Parses the page as strict XML: elements closed in order, attributes quoted, texts escaped. Its text; its elements.
local function parse(html)
    lu.assertNotNil(utf8.len(html))
    local open, texts, elements = {}, {}, {}
    local at = select(2, assert(html:find("^<!DOCTYPE html>\n"))) + 1
    while at <= #html do
        local text, closing, name, rest, empty, after = html:match("^([^<]*)<(/?)([%a][%w]*)([^<>]-)(/?)>()", at)
        if not text then
            lu.assertEquals(html:sub(at):gsub("%s", ""), "")
            break
        end
        texts[#texts + 1] = open[#open] == "style" and "" or plain(text)
        if closing == "/" then
            lu.assertEquals(name, table.remove(open))
        else
            elements[#elements + 1] = name
            local left = rest:gsub('%s+[%a][%w:-]*="([^"]*)"', function(value)
                plain(value)
                return ""
            end)
            lu.assertEquals(left, "", ("<%s%s>"):format(name, rest))
            if empty == "" then
                open[#open + 1] = name
            end
        end
        at = after
    end
    lu.assertEquals(open, {})
    return table.concat(texts, " "), elements
end

local function assert_alone(html)
    for _, word in ipairs({ "<script", "<link", "<img", "@import", "url%(", "src=", "href=", "http" }) do
        lu.assertNil(html:find(word), word)
    end
    lu.assertStrContains(html, "prefers-color-scheme: dark")
    lu.assertStrContains(html, 'name="viewport"')
end

-- A step of 10 s: 6 in products, 1 in a blocking collective that waits for 0.75 of it, 2 in adamw, 1 in between.
local EVENTS = {
    { kind = "operation", name = "matmul", inputs = "bf16 (4, 8), bf16 (8, 2)", outputs = "", start_s = 0, end_s = 6,
        work = "product", flops = 6e12, bytes = 3e9, memory_bytes = 2 ^ 30 },
    { kind = "wait", name = "all_gather", track = "mx-comm", over = "fsdp", start_s = 6.25, end_s = 7, bytes = 1000 },
    { kind = "operation", name = "all_gather", inputs = "bf16 (4)", outputs = "", start_s = 6, end_s = 7,
        work = "collective", flops = 0, bytes = 16, memory_bytes = 3 * 2 ^ 30 },
    { kind = "job", name = "all_gather", track = "mx-comm", over = "fsdp", start_s = 6.5, end_s = 7, bytes = 1000 },
    { kind = "operation", name = "adamw", inputs = "f32 (8)", outputs = "", start_s = 7, end_s = 9, work = "bytes",
        flops = 1e9, bytes = 2e9, memory_bytes = 2 ^ 29 },
    { kind = "span", name = "step 2", start_s = 0, end_s = 10 },
    { kind = "operation", name = "matmul", inputs = "late", outputs = "", start_s = 11, end_s = 12, work = "product",
        flops = 1, bytes = 1, memory_bytes = 1 }, -- of no recorded step
}

local function run_report(changes)
    local d = {
        title = "tiny <of> \"two\" & 'three'", simulated = false, first = 2, last = 2, events = EVENTS,
        settings = "run_name: <b>\xff&\n", all_settings = "steps: 3\n", machine = { { "processor", "A & B <C>" } },
        rows = { { step = 1, loss = 4.5, step_time_s = 12.5 }, { step = 2, loss = 3.25, step_time_s = 11.5 } },
        summary = {
            mfu = 61.25, tflops_per_device = 1.2345, peak_tflops = 2.015, peak_source = "a <peak>", step_time_s = 11.5,
            flop_formula = "maxtext-2025-07", tokens_per_s_per_device = 4321, step_time_p10_s = 11.25,
            step_time_p90_s = 11.75, peak_memory_bytes = 3 * 2 ^ 30, timed_steps = 7, exposed_communication_s = 0.75,
        },
        peak = { value = 2e12, source = "measured" }, bandwidth = { value = 1e10, source = "copied" },
    }
    for key, value in pairs(changes or {}) do
        d[key] = value
    end
    return mx.report.run(d)
end

function TestReport.test_run()
    local html = run_report()
    assert_alone(html)
    local text = parse(html)
    for _, figure in ipairs({
        "tiny <of> \"two\" & 'three'", "61.25", "1.234", "2.015 TFLOP/s: a <peak>", "maxtext-2025-07", "4321", "11.5 s",
        "11.25 s to 11.75 s", "750 ms", "3.00 GiB", "measured, this run", "run_name: <b>\u{FFFD}&", "A & B <C>",
        "peak 3.00 GiB", "bf16 (4, 8), bf16 (8, 2)", "1 TFLOP/s", "1 kB", "500 ms", "Step 2",
    }) do
        lu.assertStrContains(text, figure)
    end
    lu.assertNil(text:find("simulated"))
    lu.assertNil(text:find("published"))
    lu.assertNil(text:find("late"))
end

function TestReport.test_columns_of_figures()
    local html = run_report { beside = {
        { title = "published", mfu = 56.06, tflops_per_device = 110 }, { title = "simulated", mfu = 55.96 },
    } }
    local table_text = html:match("<table>(.-)</table>")
    lu.assertStrContains(table_text, '<th scope="col" class="text">published</th><th scope="col" class="text">simulated'
        .. '</th><th scope="col" class="text">measured, this run</th>')
    lu.assertStrContains(table_text, '<td class="text">56.06</td><td class="text">55.96</td>'
        .. '<td class="text">61.25</td>')
    parse(html)
end

function TestReport.test_routing_of_experts()
    local routing = { largest_expert_load = 1.75, dropped_share = 0.125, load_balance_loss = 0.02, router_z_loss = 3.5 }
    local rows = {}
    for i = 1, 3 do
        rows[i] = { step = i, loss = 4.5 - i, step_time_s = 12.5 }
        for name, figure in pairs(routing) do
            rows[i][name] = figure * i / 3
        end
    end
    local text = parse(run_report { rows = rows, summary = routing })
    for _, figure in ipairs({ "1.75", "12.50 %", "Largest load of an expert", "Dropped slots", "Load-balance loss",
        "Router z-loss" }) do
        lu.assertStrContains(text, figure)
    end
    lu.assertNotStrContains(parse(run_report()), "expert")
end

function TestReport.test_simulated_or_without_steps()
    local text = parse(run_report { simulated = true })
    lu.assertStrContains(text, "simulated, this run")
    lu.assertNil(text:find("measured, this run"))
    lu.assertStrContains(text, "there is no loss")
    local html = mx.report.run { title = "t", rows = {}, summary = {}, settings = "", all_settings = "", machine = {} }
    lu.assertStrContains(parse(html), "No step was recorded")
    lu.assertStrContains(parse(run_report { peak = false }), "No roofline")
    lu.assertStrContains(parse(run_report { pipeline = "stage 1  12aabb" }), "stage 1  12aabb")
end

function TestReport.test_parts_of_a_step()
    local a = steps.analyse(EVENTS)
    lu.assertEquals(a.steps, 1)
    lu.assertAlmostEquals(a.seconds, 10, 1e-12)
    lu.assertEquals(a.parts, {
        ["matrix products"] = 6, ["exposed communication"] = 0.75, ["other operations"] = 0.25, optimizer = 2,
        ["between operations"] = 1, attention = 0, ["norms and activations"] = 0, ["embedding and loss"] = 0,
    })
    lu.assertEquals(#a.communication, 1)
    lu.assertEquals({ a.communication[1].exposed_s, a.communication[1].busy_s }, { 0.75, 0.5 })
    lu.assertEquals(a.memory, { { 6, 2 ^ 30 }, { 7, 3 * 2 ^ 30 }, { 9, 2 ^ 29 } })
    lu.assertEquals(#a.operations, 3)
    lu.assertNil(steps.analyse({}))
end

-- Every operation that changes or reads parameters alone is the optimizer's, and so on: none is of two families.
function TestReport.test_families()
    lu.assertEquals(steps.family("matmul_acc"), "matrix products")
    lu.assertEquals(steps.family("grouped_matmul"), "matrix products")
    lu.assertEquals(steps.family("attention_grad"), "attention")
    lu.assertEquals(steps.family("log_softmax"), "embedding and loss")
    lu.assertEquals(steps.family("gated_grad"), "norms and activations")
    lu.assertEquals(steps.family("adamw"), "optimizer")
    lu.assertEquals(steps.family("concat"), "other operations")
end

local function published_rows()
    local rows = {}
    for i, model in ipairs({ "16b", "32b" }) do
        for k, slices in ipairs({ 1, 2, 4 }) do
            local n = 10 * i + k
            rows[#rows + 1] = {
                model = model, slices = slices, published_mfu = n + 0.25, simulated_mfu = n + 0.75, error = 0.5,
                fitted = slices == 1, simulated_step_s = 10, matrix_s = 6 + n / 100, ici_s = 4 - n / 100,
            }
        end
    end
    return rows
end

function TestReport.test_published_table()
    local rows, ranges = published_rows(), { matrix_efficiency = { 0.5, 0.9 }, dcn_hop_latency_s = { 1e-6, 1e-3 } }
    local html = mx.report.repro {
        rows = rows, parts = { { "matrix_s", "matrix", "matrix unit" }, { "ici_s", "ICI", "exposed in the slice" } },
        formula = "maxtext-2023-10", fitted_to = "two <cells>", device = "TPU v5e", ranges = ranges,
        summary = { predicted_cells = 4, mean_abs_error = 0.5, max_abs_error = 0.625, peak_tflops = 197, era = "a",
            constants = { matrix_efficiency = 0.625, dcn_hop_latency_s = 2e-5 } },
    }
    assert_alone(html)
    local text, elements = parse(html)
    for _, row in ipairs(rows) do
        lu.assertStrContains(html, ('<th scope="row">%s</th><td>%d</td><td>%.2f</td><td>%.2f</td><td>+0.50</td>'
            .. '<td class="text">%s</td><td>%.1f</td><td>%.1f</td>'):format(row.model, row.slices, row.published_mfu,
            row.simulated_mfu, row.fitted and "fitted" or "interpolated", 10 * row.matrix_s, 10 * row.ici_s))
        lu.assertStrContains(text, ("%s × %d published: %.2f %%"):format(row.model, row.slices, row.published_mfu))
    end
    for name, range in pairs(ranges) do
        lu.assertStrContains(text, name)
        lu.assertStrContains(text, ("%g to %g"):format(range[1], range[2]))
    end
    lu.assertStrContains(text, "mean error 0.50 points, largest 0.62")
    local counts = {}
    for _, element in ipairs(elements) do
        counts[element] = (counts[element] or 0) + 1
    end
    lu.assertEquals(counts.figure, 2)
    lu.assertTrue(counts.rect >= 12) -- a part of a bar for each figure
end

-- ---- what can be read ----

local function luminance(colour)
    local channels = {}
    for i, hex in ipairs({ colour:match("^#(%x%x)(%x%x)(%x%x)$") }) do
        local c = tonumber(hex, 16) / 255
        channels[i] = c <= 0.03928 and c / 12.92 or ((c + 0.055) / 1.055) ^ 2.4
    end
    return 0.2126 * channels[1] + 0.7152 * channels[2] + 0.0722 * channels[3]
end

local function contrast(a, b)
    local x, y = luminance(a), luminance(b)
    return (math.max(x, y) + 0.05) / (math.min(x, y) + 0.05)
end

-- WCAG 2.1: 4.5 to 1 for text, 3 to 1 for what a chart is made of.
function TestReport.test_contrast()
    for name, theme in pairs(page.THEMES) do
        lu.assertTrue(contrast(theme.text, theme.bg) >= 7, name)
        lu.assertTrue(contrast(theme.muted, theme.bg) >= 4.5, name)
        lu.assertTrue(contrast(theme.line, theme.bg) >= 3, name)
        for i = 1, 8 do
            lu.assertTrue(contrast(theme["s" .. i], theme.bg) >= 3, ("%s s%d"):format(name, i))
        end
    end
end

-- ---- charts ----

local function ticks(chart, anchor)
    local found = {}
    for text in chart:gmatch('text%-anchor="' .. anchor .. '">([^<]*)</text>') do
        found[#found + 1] = text
    end
    return found
end

function TestReport.test_ticks()
    local function plot(points, x, y)
        x.label, y.label = "x", "y"
        return svg.plot { title = "t", x = x, y = y, series = { { points = points, line = true } } }
    end
    local chart = plot({ { 1, 10.4401 }, { 3, 10.4409 } }, { whole = true, tight = true }, {})
    lu.assertEquals(table.concat(ticks(chart, "middle"), " "), "1 2 3 x y")
    lu.assertEquals(table.concat(ticks(chart, "end"), " "), "10.4400 10.4402 10.4404 10.4406 10.4408 10.4410")
    chart = plot({ { 1, 1e9 }, { 32, 2e12 } }, { log = 2 }, { log = 10 })
    lu.assertEquals(table.concat(ticks(chart, "middle"), " "), "1 2 4 8 16 32 x y")
    lu.assertEquals(table.concat(ticks(chart, "end"), " "), "1G 10G 100G 1T 10T")
    for _, points in ipairs({ {}, { { 1, 0 } }, { { 5, 7 }, { 5, 7 } } }) do
        lu.assertNil(plot(points, {}, {}):find("nan"))
        lu.assertNil(plot(points, { log = 10 }, {}):find("inf"))
    end
end

function TestReport.test_points_lie_where_they_should()
    local chart = svg.plot { title = "t", x = { label = "x" }, y = { label = "y" },
        series = { { points = { { 0, 0 }, { 10, 100 } }, line = true } } }
    local left, bottom, right, top = chart:match('<path class="line" d="M([%d.]+) ([%d.]+)L([%d.]+) ([%d.]+)"/>')
    local axis = { chart:match('<path class="axis" d="M(%d+) (%d+)V(%d+)H(%d+)"/>') }
    lu.assertEquals({ tonumber(left), tonumber(top), tonumber(bottom), tonumber(right) },
        { tonumber(axis[1]), tonumber(axis[2]), tonumber(axis[3]), tonumber(axis[4]) })
end

function TestReport.test_thin()
    local points = {}
    for i = 1, 1000 do
        points[i] = { i, i == 500 and 9 or 1 }
    end
    lu.assertIs(svg.thin(points, 1000), points)
    local means, peaks = svg.thin(points, 100), svg.thin(points, 100, math.max)
    lu.assertEquals({ #means, #peaks }, { 100, 100 })
    lu.assertAlmostEquals(means[1][1], 5.5, 1e-12)
    lu.assertAlmostEquals(means[50][2], 1.8, 1e-12)
    lu.assertEquals(peaks[50][2], 9)
end

function TestReport.test_short()
    lu.assertEquals({ svg.short(0), svg.short(1.5e12), svg.short(999.9), svg.short(0.0125), svg.short(-2e3) },
        { "0", "1.5T", "1k", "12.5m", "-2k" })
    lu.assertEquals(svg.short(39.06e9, "FLOP/s"), "39.1 GFLOP/s")
end

-- ---- files ----

function TestReport.test_file_of_a_run()
    local path, said, say = os.tmpname(), {}, mx.metrics.say
    local config = mx.config.load { "model_name=tiny", "report_file=" .. path, "run_name=a <run>" }
    mx.metrics.say = function(...) said[#said + 1] = string.format(...) end
    local report = mx.metrics.new { steps = 3, flops = 1e6, tokens = 1, params = 1, formula = config.flop_formula,
        period = 1, quiet = true, config = config, peak = { value = 1e30, source = "made up" } }
    for i = 1, 3 do
        local step <close> = mx.step()
        mx.matmul(mx.ones { 8, 8 }, mx.ones { 8, 8 })
        report:step(i, { loss = 1.0, grad_norm = 1.0, learning_rate = 0.1 })
    end
    report:finish()
    mx.metrics.say = say
    local text = parse(mx.io.read_file(path))
    os.remove(path)
    lu.assertStrContains(text, "a <run> on 1 rank")
    lu.assertStrContains(text, "matmul")
    lu.assertStrContains(text, "f32 (8, 8), f32 (8, 8)")
    lu.assertStrContains(table.concat(said, "\n"), "report written to " .. path)
end
