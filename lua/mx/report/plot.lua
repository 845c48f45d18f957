--- mx.plot: charts of a script's numbers as one self-contained file, SVG or HTML.

local mx = require "mx"
local page = require "mx.report.page"
local png = require "mx.report.png"
local svg = require "mx.report.svg"
local util = require "mx.util"

local plot = {}

local MOST_LINE, MOST_MARKS = 2000, 5000 -- points that are drawn
local MOST_PIXELS = 1 << 20
local MOST_VALUE = 1e300 -- differences of larger numbers could overflow

local KINDS = { "line", "scatter", "histogram", "heatmap", "images" }
local OPTIONS = {
    "kind", "title", "caption", "x", "y", "values", "series", "x_label", "y_label", "x_log", "y_log", "bins", "low",
    "high", "columns",
}

-- ---- numbers ----

-- A list of numbers, of a tensor or a table.
local function list_of(what, values, dims)
    if type(values) == "userdata" and getmetatable(values) == "mx.tensor" then
        if values:dim() ~= dims then
            error(("mx.plot: %s has %d dimensions; expected %d"):format(what, values:dim(), dims), 0)
        end
        return values:totable()
    elseif type(values) ~= "table" or #values == 0 then
        error(("mx.plot: %s is %s; expected a list of numbers or a tensor"):format(what, type(values) == "table"
            and "empty" or type(values)), 0)
    end
    for i, value in ipairs(values) do
        if type(value) ~= (dims == 1 and "number" or "table") then
            error(("mx.plot: entry %d of %s is %s; expected a %s"):format(i, what, type(value),
                dims == 1 and "number" or "list of numbers"), 0)
        end
    end
    return values
end

local function is_finite(x)
    return math.abs(x) <= MOST_VALUE
end

-- The points of a series that can be drawn, and how many cannot.
local function points_of(name, one, o)
    local y = list_of(name .. ": y", one.y, 1)
    local x = one.x and list_of(name .. ": x", one.x, 1)
    if x and #x ~= #y then
        error(("mx.plot: %s has %d values of x and %d of y"):format(name, #x, #y), 0)
    end
    local points, left_out = {}, 0
    for i, value in ipairs(y) do
        local at = x and x[i] or i
        if is_finite(value) and is_finite(at) and (value > 0 or not o.y_log) and (at > 0 or not o.x_log) then
            points[#points + 1] = { at, value }
        else
            left_out = left_out + 1
        end
    end
    return points, left_out
end

-- At most `most` points that look like all: the lowest and the highest of each of most / 2 neighbourhoods.
local function decimate(points, most)
    if #points <= most then
        return points
    end
    local kept, parts = {}, most // 2
    for i = 1, parts do
        local from, to = (i - 1) * #points // parts + 1, i * #points // parts
        local low, high = from, from
        for k = from, to do
            low = points[k][2] < points[low][2] and k or low
            high = points[k][2] > points[high][2] and k or high
        end
        kept[#kept + 1] = points[math.min(low, high)]
        kept[#kept + 1] = low ~= high and points[math.max(low, high)] or nil
    end
    return kept
end

local function every(points, most)
    local kept, step = {}, #points // most + 1
    for i = 1, #points, step do
        kept[#kept + 1] = points[i]
    end
    return kept, step
end

-- The lowest and the highest finite number of nested lists.
local function range_of(values, low, high)
    low, high = low or math.huge, high or -math.huge
    for _, value in ipairs(values) do
        if type(value) == "table" then
            low, high = range_of(value, low, high)
        elseif is_finite(value) then
            low, high = math.min(low, value), math.max(high, value)
        end
    end
    return low, high
end

-- ---- charts: each returns an SVG, the series of its legend, and notes for the caption ----

local draw = {}

local function series_of(o)
    local list = o.series or { { x = o.x, y = o.y or o.values } }
    if type(list) ~= "table" or #list == 0 then
        error("mx.plot: give y = values, or series = { { name =, x =, y = }, ... }", 0)
    end
    for i, one in ipairs(list) do
        if type(one) ~= "table" then
            error(("mx.plot: series %d is %s; expected { name =, x =, y = }"):format(i, type(one)), 0)
        end
        util.arguments(one, { "y" }, { "name", "x", "dashed", "marks" }, ("mx.plot: series %d"):format(i))
    end
    return list
end

local function axes_of(o)
    return { label = o.x_label or "", log = o.x_log and 10 or nil, tight = true },
        { label = o.y_label or "", log = o.y_log and 10 or nil, min = o.low, max = o.high }
end

local function lines_or_marks(o, marks)
    local series, notes, total = {}, {}, 0
    for i, one in ipairs(series_of(o)) do
        local name = one.name or ("series %d"):format(i)
        local points, left_out = points_of(name, one, o)
        local all, step = #points, 1
        if marks then
            points, step = every(points, MOST_MARKS)
        else
            points = decimate(points, MOST_LINE)
        end
        if left_out > 0 then
            notes[#notes + 1] = ("%s: %d of %d values cannot be shown (not finite, above 1e300, or not positive on a "
                .. "logarithmic axis)."):format(name, left_out, left_out + all)
        end
        if step > 1 then
            notes[#notes + 1] = ("%s: every %dth point is shown."):format(name, step)
        end
        series[i] = {
            name = one.name, points = points, line = not marks, marks = marks or one.marks, dashed = one.dashed,
        }
        total = total + #points
    end
    for _, one in ipairs(series) do
        one.radius = total > 300 and 1.5 or 3
        one.opacity = marks and total > 300 and 0.6 or nil
    end
    local x, y = axes_of(o)
    x.tight = not marks
    return svg.plot { title = o.title or "", x = x, y = y, series = series }, series, notes
end

function draw.line(o)
    return lines_or_marks(o, false)
end

function draw.scatter(o)
    return lines_or_marks(o, true)
end

-- The finite values of each series, and the range of all.
local function histogram_values(o, notes)
    local list, low, high = o.series or { { y = o.values or o.y } }, math.huge, -math.huge
    local all = {}
    for i, one in ipairs(list) do
        local name = one.name or (o.series and ("series %d"):format(i) or "values")
        local finite = {}
        local given = one.y or one.values
        if type(given) == "userdata" and getmetatable(given) == "mx.tensor" then
            given = given:detach():view(-1)
        end
        local values = list_of(name, given, 1)
        for _, value in ipairs(values) do
            if is_finite(value) then
                finite[#finite + 1] = value
            end
        end
        if #finite < #values then
            notes[#notes + 1] = ("%s: %d of %d values are not finite."):format(name, #values - #finite, #values)
        end
        low, high = range_of(finite, low, high)
        all[i] = { name = one.name, values = finite }
    end
    return all, o.low or low, o.high or high
end

function draw.histogram(o)
    local notes, bins, series = {}, o.bins or 40, {}
    if math.type(bins) ~= "integer" or bins < 1 or bins > 1000 then
        error(("mx.plot: bins = %s; expected 1 to 1000"):format(tostring(bins)), 0)
    end
    local all, low, high = histogram_values(o, notes)
    if low > high then
        error("mx.plot: the histogram has no finite value", 0)
    end
    high = high > low and high or low + 1
    local width = (high - low) / bins
    for i, one in ipairs(all) do
        local counts, points, outside = {}, {}, 0
        for _, value in ipairs(one.values) do
            local bin = math.min(bins, math.floor((value - low) / width) + 1)
            if value < low or value > high then
                outside = outside + 1
            else
                counts[bin] = (counts[bin] or 0) + 1
            end
        end
        for bin = 1, bins do
            local at, count = low + (bin - 1) * width, counts[bin] or 0
            points[bin] = { at, count, ("%d from %.4g to %.4g"):format(count, at, at + width) }
        end
        if outside > 0 then
            notes[#notes + 1] = ("%d values are outside of low and high."):format(outside)
        end
        series[i] = { name = one.name, points = points, bars = width, block = true, opacity = #all > 1 and 0.6 or nil }
    end
    local x = { label = o.x_label or "", min = low, max = high, tight = true }
    local y = { label = o.y_label or "count", min = 0, whole = true }
    return svg.plot { title = o.title or "", x = x, y = y, series = series }, series, notes
end

-- Rows of pixels for a matrix.
local function pixels_of(matrix, low, high, pixel)
    local rows, width = {}, #matrix[1]
    for y, row in ipairs(matrix) do
        local out = {}
        if type(row) ~= "table" or #row ~= width then
            error(("mx.plot: row %d differs in length from the first"):format(y), 0)
        end
        for x, value in ipairs(row) do
            out[x] = pixel((value - low) / (high > low and high - low or 1))
        end
        rows[y] = table.concat(out)
    end
    return rows, width
end

local function check_pixels(count)
    if count > MOST_PIXELS then
        error(("mx.plot: %d pixels; at most %d are drawn"):format(count, MOST_PIXELS), 0)
    end
end

function draw.heatmap(o)
    local matrix = list_of("values", o.values, 2)
    check_pixels(#matrix * #(matrix[1] or {}))
    if #matrix == 0 or #matrix[1] == 0 then
        error("mx.plot: the heat map has no values", 0)
    end
    local low, high = range_of(matrix)
    low, high = o.low or low, o.high or high
    local rows, width = pixels_of(matrix, low, high, png.heat)
    local x = { label = o.x_label or "column", min = 0.5, max = width + 0.5, tight = true, whole = true }
    local y = { label = o.y_label or "row", min = 0.5, max = #rows + 0.5, tight = true, whole = true, down = true }
    local chart = svg.plot { title = o.title or "", x = x, y = y, series = {}, picture = png.uri(width, #rows, rows) }
    return chart, {}, { low > high and "No value is finite."
        or ("From %.4g (dark blue) to %.4g (yellow)."):format(low, high) }
end

-- The pixels of image `n` of a tensor (N, H, W) or (N, H, W, 3).
local function image_rows(image, low, high)
    local rows = {}
    for y, row in ipairs(image) do
        local out = {}
        for x, value in ipairs(row) do
            if type(value) == "table" then
                local colour = {}
                for k = 1, 3 do
                    local level = (value[k] - low) / (high > low and high - low or 1)
                    colour[k] = level == level and math.floor(math.max(0, math.min(1, level)) * 255 + 0.5) or 0
                end
                out[x] = string.char(colour[1], colour[2], colour[3], 255)
            else
                out[x] = png.grey((value - low) / (high > low and high - low or 1))
            end
        end
        rows[y] = table.concat(out)
    end
    return rows
end

function draw.images(o)
    local t = o.values
    local sizes = type(t) == "userdata" and getmetatable(t) == "mx.tensor" and t:size() or {}
    if not (#sizes == 3 or (#sizes == 4 and sizes[4] == 3)) or t:numel() == 0 then
        error(("mx.plot: images are a tensor (N, H, W) or (N, H, W, 3); values is %s"):format(#sizes > 0
            and "(" .. table.concat(sizes, ", ") .. ")" or type(t)), 0)
    end
    local n, height, width = sizes[1], sizes[2], sizes[3]
    local columns = o.columns or math.min(n, math.ceil(math.sqrt(n)))
    check_pixels(n * (height + 1) * (width + 1))
    local images = t:totable()
    local low, high = range_of(images)
    low, high = o.low or low, o.high or high
    local rows, gap, line = {}, "\0\0\0\0", (columns * (width + 1) - 1)
    for first = 1, n, columns do
        local parts = {}
        for i = first, first + columns - 1 do
            parts[#parts + 1] = images[i] and image_rows(images[i], low, high) or {}
        end
        for y = 1, height do
            local out = {}
            for i, part in ipairs(parts) do
                out[i] = part[y] or gap:rep(width)
            end
            rows[#rows + 1] = table.concat(out, gap)
        end
        rows[#rows + 1] = gap:rep(line)
    end
    rows[#rows] = nil -- the gap behind the last row of images
    local chart = svg.picture_chart { title = o.title or "", uri = png.uri(line, #rows, rows), width = line,
        height = #rows }
    return chart, {}, { low > high and "No value is finite."
        or ("%d images; black is %.4g, white %.4g."):format(n, low, high) }
end

-- ---- files ----

local function draw_chart(o)
    local kind = o.kind or "line"
    if o.low and o.high and o.low >= o.high then
        error(("mx.plot: low = %g must be below high = %g"):format(o.low, o.high), 0)
    end
    if not draw[kind] then
        local near = util.nearest(tostring(kind), KINDS)
        error(("mx.plot: kind is '%s'; expected %s%s"):format(tostring(kind), table.concat(KINDS, ", "),
            near and (" (did you mean '%s'?)"):format(near) or ""), 0)
    end
    local chart, series, notes = draw[kind](o)
    if o.caption then
        table.insert(notes, 1, o.caption)
    end
    return { title = o.title or "", svg = chart, series = series, caption = table.concat(notes, " ") }
end

local function html(title, charts)
    local figures = {}
    for i, chart in ipairs(charts) do
        figures[i] = page.figure(chart.title, chart.svg, svg.legend(chart.series), chart.caption)
    end
    return page.document(title, { page.grid(figures) })
end

--- Draws numbers and writes one self-contained file. Rank 0 writes.
---@param o table file: its path, .svg or .html; kind: "line" (default), "scatter", "histogram", "heatmap" or "images";
---       title, caption, x_label, y_label; x_log, y_log: logarithmic axes; low, high: the range of y, of a histogram or
---       of colours. Lines and points: y, and x (default 1, 2, ...), or series = { { name, x, y, dashed, marks }, ...}.
---       Histograms: values (a tensor of any shape) or series, bins. heatmap: values (rows, columns). images: values
---       (N, H, W) or (N, H, W, 3), columns. All values are lists or tensors. charts: several such tables for one HTML
---       page
function plot.plot(o)
    local names = table.move(OPTIONS, 1, #OPTIONS, 1, { [#OPTIONS + 1] = "charts" })
    for _, kind in ipairs(type(o) == "table" and KINDS or {}) do
        if o[kind] ~= nil then
            error(("mx.plot: '%s' is a kind: write kind = \"%s\", y = ..."):format(kind, kind), 2)
        end
    end
    util.arguments(o, { "file" }, names, "mx.plot")
    local ending = tostring(o.file):match("%.(%w+)$")
    if ending ~= "svg" and ending ~= "html" then
        error(("mx.plot: file = '%s' must end in .svg or .html"):format(tostring(o.file)), 2)
    elseif o.charts and ending == "svg" then
        error("mx.plot: several charts need a page: file = \"NAME.html\"", 2)
    end
    local charts = {}
    for i, one in ipairs(o.charts or { o }) do
        if o.charts then
            util.arguments(one, {}, OPTIONS, ("mx.plot: chart %d"):format(i))
        end
        local good, chart = pcall(draw_chart, one)
        if not good then -- the user's line, not the line of this file
            error((tostring(chart):gsub("^[^%s:]+:%d+: ", "")), 2)
        end
        charts[i] = chart
    end
    if mx.rank() == 0 then
        local text = ending == "html" and html(o.title or tostring(o.file), charts) or page.standalone(charts[1])
        mx.io.write_file_atomic(o.file, text)
    end
end

return plot
