--- Charts as inline SVG: pure functions from numbers to text. Colours and fonts are classes of the page (mx.report).
--
-- A chart is 360 units wide, so its text has normal size on a phone and grows with the chart on larger screens. Series
-- differ in their marks as well as in their colours.

local svg = {}

local WIDTH, HEIGHT = 360, 230
svg.WIDTH = WIDTH
local LEFT, RIGHT, TOP, BOTTOM = 48, 10, 10, 38
local CLASSES = 8 -- number of colours: s1 ... s8

-- ---- text and numbers ----

-- Replaces invalid UTF-8 and control characters by U+FFFD, because a page must not contain them.
local function clean(text)
    local out, at = {}, 1
    while at <= #text do
        local bad = select(2, utf8.len(text, at))
        out[#out + 1] = text:sub(at, (bad or #text + 1) - 1)
        out[#out + 1] = bad and "\u{FFFD}" or nil
        at = (bad or #text) + 1
    end
    return (table.concat(out):gsub("[\0-\8\11\12\14-\31\127]", "\u{FFFD}"))
end

local ENTITIES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;" }

--- A text escaped for elements and attributes of HTML and SVG.
---@param text any
---@return string
function svg.escape(text)
    return (clean(tostring(text)):gsub("[&<>\"']", ENTITIES))
end

local PREFIXES = {
    { 1e15, "P" }, { 1e12, "T" }, { 1e9, "G" }, { 1e6, "M" }, { 1e3, "k" }, { 1, "" }, { 1e-3, "m" }, { 1e-6, "µ" },
    { 1e-9, "n" },
}

--- A short number with an SI prefix: 1.5e12 is "1.5T", and with the unit "B/s" it is "1.5 TB/s".
---@param n number
---@param unit? string
---@return string
function svg.short(n, unit)
    local number, letter = n == 0 and "0" or ("%.2g"):format(n), ""
    for _, prefix in ipairs(PREFIXES) do
        if math.abs(n) >= prefix[1] * 0.9995 then
            number, letter = ("%.3g"):format(n / prefix[1]), prefix[2]
            break
        end
    end
    return number .. (unit and " " .. letter .. unit or letter)
end

--- Reduces to at most `most` points by averaging neighbours, or by selecting their y with `pick` (such as math.max).
---@param points number[][] {x, y}, by x
---@param most integer
---@param pick? fun(a: number, b: number): number
---@return number[][]
function svg.thin(points, most, pick)
    if #points <= most then
        return points
    end
    local thin = {}
    for i = 1, most do
        local from, to = (i - 1) * #points // most + 1, i * #points // most
        local x, y = 0, pick and points[from][2] or 0
        for k = from, to do
            x = x + points[k][1] / (to - from + 1)
            y = pick and pick(y, points[k][2]) or y + points[k][2] / (to - from + 1)
        end
        thin[i] = { x, y }
    end
    return thin
end

-- ---- scales ----

-- A round step of about a fifth of the span.
local function round_step(span, whole)
    local power = 10.0 ^ math.floor(math.log(span / 5, 10))
    for _, factor in ipairs({ 1, 2, 2.5, 5, 10 }) do
        if factor * power >= span / 5 * 0.999 then
            return whole and math.max(1, math.floor(factor * power + 0.5)) or factor * power
        end
    end
end

-- A function for the text of ticks, with enough decimals to distinguish neighbours.
local function tick_text(step)
    local decimals = math.max(0, -math.floor(math.log(step, 10) + 1e-9))
    if step * 10 ^ decimals % 1 > 1e-6 then
        decimals = decimals + 1
    end
    return function(v)
        return (math.abs(v) >= 1e5 or decimals > 6) and svg.short(v) or ("%%.%df"):format(decimals):format(v)
    end
end

-- A linear scale with round ends; a tight axis ends with its points.
local function linear_scale(axis, low, high)
    if high - low < 1e-9 * math.max(math.abs(high), 1e-30) then
        local room = axis.whole and 1 or high ~= 0 and math.abs(high) * 0.1 or 1
        low, high = low - room, high + room
    end
    local step, ticks = round_step(high - low, axis.whole), {}
    local first, last = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    if not axis.tight then
        low, high = first, last
    end
    for i = 0, math.floor((last - first) / step + 0.5) do
        local tick = first + i * step
        if tick >= low - 1e-9 * step and tick <= high + 1e-9 * step then
            ticks[#ticks + 1] = tick
        end
    end
    local function at(v)
        local up = (v - low) / (high - low)
        return axis.down and 1 - up or up
    end
    return { ticks = ticks, text = tick_text(step), at = at }
end

local function log_scale(low, high, base)
    local first = math.floor(math.log(low, base) + 1e-9)
    local last = math.max(first + 1, math.ceil(math.log(high, base) - 1e-9))
    local each, ticks = (last - first) // 8 + 1, {}
    for power = first, last, each do
        ticks[#ticks + 1] = base ^ power
    end
    local function at(v)
        return (math.log(v, base) - first) / (last - first)
    end
    return { ticks = ticks, text = function(v) return svg.short(v) end, at = at }
end

-- The scale of an axis over all points; i is 1 for x and 2 for y.
local function scale_of(axis, series, i)
    local low, high = axis.min or math.huge, axis.max or -math.huge
    for _, one in ipairs(series) do
        for _, point in ipairs(one.points) do
            low, high = math.min(low, point[i]), math.max(high, point[i])
        end
    end
    if low > high then
        low, high = 1, 2 -- there are no points
    end
    return axis.log and log_scale(low, high, axis.log) or linear_scale(axis, low, high)
end

-- ---- parts ----

-- Element and attributes of each mark, with radius r.
local MARKS = {
    function(x, y, r) return "circle", ('cx="%.1f" cy="%.1f" r="%.1f"'):format(x, y, r) end,
    function(x, y, r)
        return "rect", ('x="%.1f" y="%.1f" width="%.1f" height="%.1f"'):format(x - r, y - r, 2 * r, 2 * r)
    end,
    function(x, y, r) return "path", ('d="M%.1f %.1fl%.1f %.1fh%.1fz"'):format(x, y - r, r, 2 * r, -2 * r) end,
    function(x, y, r)
        local d = 1.3 * r
        return "path", ('d="M%.1f %.1fl%.1f %.1fl%.1f %.1fl%.1f %.1fz"'):format(x, y - d, d, d, -d, d, -d, -d)
    end,
}

local function mark(i, x, y, r, title)
    local element, attributes = MARKS[(i - 1) % #MARKS + 1](x, y, r)
    local inside = title and "<title>" .. svg.escape(title) .. "</title>" or ""
    return ("<%s %s>%s</%s>"):format(element, attributes, inside, element)
end

local function class_of(i)
    return "s" .. (i - 1) % CLASSES + 1
end

local function open(height, label)
    return ('<svg viewBox="0 0 %d %d" role="img" aria-label="%s">'):format(WIDTH, height, svg.escape(label))
end

local function label(x, y, anchor, text)
    return ('<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>'):format(x, y, anchor, svg.escape(text))
end

local function put_axes(out, o, x, y)
    local right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for _, tick in ipairs(y.ticks) do
        local at = bottom - (bottom - TOP) * y.at(tick)
        out[#out + 1] = ('<path class="grid" d="M%d %.1fH%d"/>'):format(LEFT, at, right)
            .. label(LEFT - 5, at + 4, "end", y.text(tick))
    end
    for _, tick in ipairs(x.ticks) do
        local at = LEFT + (right - LEFT) * x.at(tick)
        out[#out + 1] = ('<path class="grid" d="M%.1f %dV%d"/>'):format(at, TOP, bottom)
            .. label(at, bottom + 14, "middle", x.text(tick))
    end
    out[#out + 1] = ('<path class="axis" d="M%d %dV%dH%d"/>'):format(LEFT, TOP, bottom, right)
    out[#out + 1] = label((LEFT + right) / 2, HEIGHT - 6, "middle", o.x.label)
    out[#out + 1] = ('<text transform="translate(11 %d) rotate(-90)" text-anchor="middle">%s</text>'):format(
        (TOP + bottom) // 2, svg.escape(o.y.label))
end

local function put_series(out, i, one, place)
    local path = {}
    for k, point in ipairs(one.points) do
        path[k] = ("%s%.1f %.1f"):format(k == 1 and "M" or "L", place(point))
    end
    out[#out + 1] = ('<g class="%s"%s>'):format(one.class or class_of(one.colour or i),
        one.opacity and (' opacity="%g"'):format(one.opacity) or "")
    if one.line then
        out[#out + 1] = ('<path class="line%s" d="%s"/>'):format(one.dashed and " dashed" or "", table.concat(path))
    end
    for _, point in ipairs(one.bars and one.points or {}) do
        local left, top = place(point)
        local right, foot = place({ point[1] + one.bars, 0 })
        out[#out + 1] = ('<rect class="part" x="%.2f" y="%.2f" width="%.2f" height="%.2f"><title>%s</title></rect>')
            :format(left, top, right - left, foot - top, svg.escape(point[3]))
    end
    for _, point in ipairs(one.marks and one.points or {}) do
        local px, py = place(point)
        out[#out + 1] = mark(one.mark or i, px, py, one.radius or 3.5, point[3])
    end
    out[#out + 1] = "</g>"
end

--- Lines, marks, bars or a picture over two axes.
---@param o {title: string, x: table, y: table, series: table[], picture: string?} an axis: label, log (base; nil:
---       linear), min and max that it must show, whole (ticks only at integers), tight (ends with the points), down
---       (the low end is on top). A series: name, points ({x, y, tooltip}), line, dashed, marks, mark, bars (their
---       width in x), radius, opacity, colour (1 to 8), class. picture: a URI, which fills the area between the axes
---@return string
function svg.plot(o)
    local x, y = scale_of(o.x, o.series, 1), scale_of(o.y, o.series, 2)
    local out = { open(HEIGHT, o.title) }
    put_axes(out, o, x, y)
    if o.picture then
        out[#out + 1] = svg.picture(o.picture, LEFT, TOP, WIDTH - RIGHT - LEFT, HEIGHT - BOTTOM - TOP)
    end
    local function place(point)
        local across, up = WIDTH - RIGHT - LEFT, HEIGHT - BOTTOM - TOP
        return LEFT + across * x.at(point[1]), TOP + up * (1 - y.at(point[2]))
    end
    for i, one in ipairs(o.series) do
        put_series(out, i, one, place)
    end
    out[#out + 1] = "</svg>"
    return table.concat(out, "\n")
end

--- A picture as an element of a chart, stretched to a rectangle; pixels stay sharp.
---@param uri string
---@return string
function svg.picture(uri, x, y, width, height)
    return ('<image x="%.1f" y="%.1f" width="%.1f" height="%.1f" preserveAspectRatio="none" '
        .. 'style="image-rendering: pixelated" href="%s"/>'):format(x, y, width, height, uri)
end

--- A chart of one picture, at its own ratio of width to height.
---@param o {title: string, uri: string, width: integer, height: integer} width and height in pixels
---@return string
function svg.picture_chart(o)
    local height = math.max(1, math.min(2000, (WIDTH - 2 * RIGHT) * o.height / o.width))
    local width = math.min(WIDTH - 2 * RIGHT, height * o.width / o.height)
    return open(math.ceil(height) + 2 * TOP, o.title) .. svg.picture(o.uri, (WIDTH - width) / 2, TOP, width, height)
        .. "</svg>"
end

--- The entries of a chart's legend: the name of each series that has one, and an SVG of 16 x 12 that shows its mark.
---@param series table[] as of svg.plot
---@return {name: string, mark: string}[]
function svg.legend_items(series)
    local items = {}
    for i, one in ipairs(series) do
        if one.name then
            local shape = one.block and '<rect x="3" y="1" width="10" height="10"/>'
                or (one.line and ('<path class="line%s" d="M0 6H16"/>'):format(one.dashed and " dashed" or "") or "")
                .. (one.marks and mark(one.mark or i, 8, 6, 3.5) or "")
            local class = one.class or class_of(one.colour or i)
            items[#items + 1] = { name = one.name, mark = ('<g class="%s">%s</g>'):format(class, shape) }
        end
    end
    return items
end

--- The legend of a chart, to be put below it.
---@param series table[] as of svg.plot
---@return string
function svg.legend(series)
    local out = { '<ul class="legend">' }
    for _, item in ipairs(svg.legend_items(series)) do
        out[#out + 1] = ('<li><svg class="swatch" viewBox="0 0 16 12" aria-hidden="true">%s</svg>%s</li>'):format(
            item.mark, svg.escape(item.name))
    end
    out[#out + 1] = "</ul>"
    return table.concat(out, "\n")
end

local LABEL = 62 -- width of the label before a bar

local function put_bar(out, row, names, top, thickness, scale)
    local at = LABEL
    out[#out + 1] = label(LABEL - 5, top + thickness / 2 + 4, "end", row.label)
    for i, value in ipairs(row.values) do
        local width = value * scale
        if width > 0.05 then
            local title = svg.escape(("%s: %s %.1f %%"):format(row.label, names[i], value))
            out[#out + 1] = ('<rect class="part %s" x="%.2f" y="%d" width="%.2f" height="%d"><title>%s</title></rect>')
                :format(class_of(i), at, top, width, thickness, title)
        end
        at = at + width
    end
end

--- Stacked bars of parts that add up to about 100 %, one below the other.
---@param o {title: string, names: string[], rows: {label: string, values: number[]}[]} values in per cent
---@return string
function svg.bars(o)
    local thickness = #o.rows == 1 and 24 or 11
    local height = #o.rows * (thickness + 4) + 24
    local out, scale = { open(height, o.title) }, (WIDTH - RIGHT - LABEL) / 100
    for tick = 0, 100, 25 do
        local x = LABEL + tick * scale
        out[#out + 1] = ('<path class="grid" d="M%.1f 0V%d"/>'):format(x, height - 18)
            .. label(x, height - 4, tick == 100 and "end" or "middle", tick .. " %")
    end
    for i, row in ipairs(o.rows) do
        put_bar(out, row, o.names, (i - 1) * (thickness + 4) + 2, thickness, scale)
    end
    out[#out + 1] = "</svg>"
    return table.concat(out, "\n")
end

return svg
