--- The page of a report: one self-contained HTML file, light or dark like the reader's system.
--
-- It is also valid XML: every element is closed, and every attribute is quoted.

local svg = require "mx.report.svg"

local page = {}

--- Colours of the two themes: background, text, secondary text, lines, and the classes s1 ... s8 of the charts.
page.THEMES = {
    light = {
        bg = "#ffffff", text = "#1b1f24", muted = "#525a64", line = "#8a929c", grid = "#e3e7eb", s1 = "#1f6fb2",
        s2 = "#b85c00", s3 = "#1b7f4f", s4 = "#7a4fb5", s5 = "#c2334d", s6 = "#0f7c8a", s7 = "#756a00", s8 = "#6b6f76",
    },
    dark = {
        bg = "#14171c", text = "#e8ebef", muted = "#aab2bd", line = "#7d8691", grid = "#2a3038", s1 = "#6cb2f0",
        s2 = "#f2a35e", s3 = "#5cc98f", s4 = "#b99af0", s5 = "#f28a9b", s6 = "#55c5d3", s7 = "#d3c24e", s8 = "#a3a9b3",
    },
}

local STYLE = [[
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem; background: var(--bg); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; }
p, ul { margin: 0.5rem 0; max-width: 46rem; }
.muted, figcaption { color: var(--muted); }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1.5rem; }
figure { margin: 0; min-width: 0; max-width: 36rem; }
figure > svg { display: block; width: 100%; height: auto; }
figcaption { font-size: 0.9rem; }
figcaption b { color: var(--text); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.2rem 0.7rem 0.2rem 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--grid); }
td { white-space: nowrap; }
td.text { white-space: normal; min-width: 7rem; }
th { font-weight: 600; }
th:first-child, td:first-child, .text { text-align: left; }
pre { overflow-x: auto; font-size: 0.85rem; border-left: 3px solid var(--line); padding-left: 0.7rem; }
summary { cursor: pointer; }
.legend { display: flex; flex-wrap: wrap; gap: 0.1rem 1rem; list-style: none; padding: 0; font-size: 0.9rem; }
.legend li { display: flex; align-items: center; gap: 0.35rem; }
.swatch { width: 1.2rem; height: 0.9rem; flex: none; }
svg text { fill: var(--muted); font-size: 11px; }
svg path.grid { stroke: var(--grid); fill: none; }
svg path.axis { stroke: var(--line); fill: none; }
svg g { fill: var(--c); stroke: none; }
svg path.line { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
svg path.dashed { stroke-dasharray: 5 4; }
svg .part { fill: var(--c); stroke: var(--bg); stroke-width: 0.6; }
.limit { --c: var(--text); }
]]

local NAMES = { "bg", "text", "muted", "line", "grid", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8" }

local function variables(theme)
    local out = {}
    for i, name in ipairs(NAMES) do
        out[i] = ("--%s: %s;"):format(name, theme[name])
    end
    return table.concat(out, " ")
end

local function style()
    local classes = {}
    for i = 1, 8 do
        classes[i] = (".s%d { --c: var(--s%d); }"):format(i, i)
    end
    return table.concat({
        (":root { color-scheme: light dark; %s }"):format(variables(page.THEMES.light)),
        ("@media (prefers-color-scheme: dark) { :root { %s } }"):format(variables(page.THEMES.dark)),
        STYLE .. table.concat(classes, "\n"),
    }, "\n")
end

--- The whole file.
---@param title string
---@param parts string[] HTML
---@return string
function page.document(title, parts)
    local head = {
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8"/>',
        '<meta name="generator" content="mxlua"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        ("<title>%s</title>"):format(svg.escape(title)), "<style>", style(), "</style>", "</head>", "<body>", "<main>",
        ("<h1>%s</h1>"):format(svg.escape(title)),
    }
    return table.concat(head, "\n") .. "\n" .. table.concat(parts, "\n") .. "\n</main>\n</body>\n</html>\n"
end

-- The rules of a picture without a page: one theme, and no variables, which few programs besides browsers know.
local function picture_style()
    local theme = page.THEMES.light
    local rules = {
        ("text { fill: %s; font: 11px sans-serif; } .title { fill: %s; font-weight: bold; font-size: 13px; }"):format(
            theme.muted, theme.text),
        (".grid { stroke: %s; fill: none; } .axis { stroke: %s; fill: none; }"):format(theme.grid, theme.line),
    }
    for i = 1, 8 do
        local colour = theme["s" .. i]
        rules[#rules + 1] = ("g.s%d { fill: %s; } g.s%d path.line { fill: none; stroke: %s; stroke-width: 1.8; "
            .. "stroke-linejoin: round; }"):format(i, colour, i, colour)
    end
    rules[#rules + 1] = "path.dashed { stroke-dasharray: 5 4; }"
    return table.concat(rules, "\n")
end

local LINE = 15 -- height of a line of text

-- The legend and the caption of a picture, as SVG from y on; returns their height.
local function put_texts(out, chart, y)
    local x, from = 10, y
    for _, item in ipairs(svg.legend_items(chart.series)) do
        local width = 26 + 6 * #item.name
        if x > 10 and x + width > svg.WIDTH then
            x, y = 10, y + LINE
        end
        out[#out + 1] = ('<g transform="translate(%d %d)">%s<text x="20" y="10">%s</text></g>'):format(x, y, item.mark,
            svg.escape(item.name))
        x = x + width
    end
    y = y + (x > 10 and LINE or 0)
    local line = ""
    for word in (chart.caption .. " "):gmatch("(%S+)%s") do
        if #line > 0 and #line + #word > 58 then
            y = y + LINE
            out[#out + 1] = ('<text x="10" y="%d">%s</text>'):format(y - 4, svg.escape(line))
            line = ""
        end
        line = line == "" and word or line .. " " .. word
    end
    if line ~= "" then
        y = y + LINE
        out[#out + 1] = ('<text x="10" y="%d">%s</text>'):format(y - 4, svg.escape(line))
    end
    return y - from
end

--- A chart as an SVG file with its title, legend and caption.
---@param chart {title: string, svg: string, series: table[], caption: string}
---@return string
function page.standalone(chart)
    local width, height = chart.svg:match('viewBox="0 0 (%d+) (%d+)"')
    local top, body = chart.title ~= "" and 22 or 4, {}
    if chart.title ~= "" then
        body[1] = ('<text class="title" x="%d" y="15" text-anchor="middle">%s</text>'):format(width // 2,
            svg.escape(chart.title))
    end
    body[#body + 1] = chart.svg:gsub("<svg ", ('<svg y="%d" width="%d" height="%d" '):format(top, width, height), 1)
    local whole = top + height + 2
    whole = whole + put_texts(body, chart, whole) + 6
    return table.concat({
        ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d">'):format(width, whole,
            2 * width, 2 * whole),
        "<style>", picture_style(), "</style>", ('<rect width="%d" height="%d" fill="#ffffff"/>'):format(width, whole),
        table.concat(body, "\n"), "</svg>", "",
    }, "\n")
end

---@param text string
---@return string
function page.paragraph(text)
    return "<p>" .. svg.escape(text) .. "</p>"
end

---@param title string
---@return string
function page.heading(title)
    return "<h2>" .. svg.escape(title) .. "</h2>"
end

--- A table; false becomes a dash. `text` lists the columns that hold text, besides the first: column -> true.
---@param head string[]
---@param rows any[][]
---@param text? table<integer, boolean>
---@return string
function page.table(head, rows, text)
    local out = { '<div class="scroll" tabindex="0">', "<table>" }
    local function put(tag, cells, scope)
        local row = {}
        for i = 1, #head do
            local name = scope or (i == 1 and "th" or tag)
            local attributes = (name == "th" and (' scope="%s"'):format(scope and "col" or "row") or "")
                .. (text and text[i] and ' class="text"' or "")
            row[i] = ("<%s%s>%s</%s>"):format(name, attributes, svg.escape(cells[i] or "–"), name)
        end
        out[#out + 1] = "<tr>" .. table.concat(row) .. "</tr>"
    end
    out[#out + 1] = "<thead>"
    put("th", head, "th")
    out[#out + 1] = "</thead>\n<tbody>"
    for _, row in ipairs(rows) do
        put("td", row)
    end
    out[#out + 1] = "</tbody>\n</table>\n</div>"
    return table.concat(out, "\n")
end

--- A chart with its legend and caption.
---@param title string
---@param chart string SVG
---@param legend? string HTML
---@param caption? string
---@return string
function page.figure(title, chart, legend, caption)
    return table.concat({
        "<figure>", chart, legend or "",
        ("<figcaption><b>%s</b> %s</figcaption>"):format(svg.escape(title), svg.escape(caption or "")), "</figure>",
    }, "\n")
end

--- Charts side by side, if there is room.
---@param figures string[]
---@return string
function page.grid(figures)
    return '<div class="grid">\n' .. table.concat(figures, "\n") .. "\n</div>"
end

--- Preformatted text; folded if it has a title.
---@param text string
---@param title? string
---@return string
function page.verbatim(text, title)
    local pre = '<pre tabindex="0">' .. svg.escape(text) .. "</pre>"
    return title and ("<details>\n<summary>%s</summary>\n%s\n</details>"):format(svg.escape(title), pre) or pre
end

return page
