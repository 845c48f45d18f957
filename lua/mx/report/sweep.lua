--- The page of a sweep: parallel coordinates, where each configuration is a line over an axis for each key and result.

local mx = require "mx"
local page = require "mx.report.page"
local png = require "mx.report.png"
local svg = require "mx.report.svg"

local sweep = {}

local HEIGHT, TOP, BOTTOM, SIDE, STEP = 260, 34, 24, 50, 110

-- An axis: where its values are, from 0 (bottom) to 1, and the texts at its ends or at each of its values.
local function axis_of(values)
    local numbers, seen, list = true, {}, {}
    local low, high = math.huge, -math.huge
    for _, value in pairs(values) do
        numbers = numbers and type(value) == "number"
        if type(value) == "number" and value - value == 0 then
            low, high = math.min(low, value), math.max(high, value)
        end
        if not seen[value] and value == value then
            seen[value] = true
            list[#list + 1] = value
        end
    end
    if numbers and low <= high then
        local is_log = low > 0 and high / low >= 50
        local ticks = { { 0, ("%.4g"):format(low) }, { 1, ("%.4g"):format(high) } }
        return ticks, function(value)
            if value - value ~= 0 or high == low then
                return value - value == 0 and 0.5 or nil
            end
            return is_log and math.log(value / low) / math.log(high / low) or (value - low) / (high - low)
        end
    end
    table.sort(list, function(a, b) return tostring(a) < tostring(b) end)
    local ticks, at = {}, {}
    for i, value in ipairs(list) do
        at[value] = #list > 1 and (i - 1) / (#list - 1) or 0.5
        ticks[i] = { at[value], tostring(value):sub(1, 14) }
    end
    return ticks, function(value) return at[value] end
end

-- The colour of the i-th best of n rows.
local function colour_of(i, n)
    local red, green, blue = png.heat(n > 1 and (n - i) / (n - 1) * 0.85 or 0.85):byte(1, 3)
    return ("#%02x%02x%02x"):format(red, green, blue)
end

-- `columns` is a list of {name, function(row) -> value}.
local function coordinates(rows, columns)
    local width = 2 * SIDE + STEP * (#columns - 1)
    local out = { ('<svg viewBox="0 0 %d %d" width="%d" role="img" aria-label="parallel coordinates">'):format(width,
        HEIGHT, width) }
    local axes, up = {}, HEIGHT - BOTTOM - TOP
    for c, column in ipairs(columns) do
        local values = {}
        for r, row in ipairs(rows) do
            values[r] = column[2](row)
        end
        local ticks, at = axis_of(values)
        axes[c] = at
        local x = SIDE + (c - 1) * STEP
        out[#out + 1] = ('<path class="axis" d="M%d %dV%d"/><text x="%d" y="16" text-anchor="middle">%s</text>'):format(
            x, TOP, HEIGHT - BOTTOM, x, svg.escape(column[1]))
        for _, tick in ipairs(ticks) do
            out[#out + 1] = ('<text x="%d" y="%.1f" text-anchor="middle">%s</text>'):format(x,
                TOP + up * (1 - tick[1]) + (tick[1] == 0 and 14 or tick[1] == 1 and -4 or 4), svg.escape(tick[2]))
        end
    end
    for i = #rows, 1, -1 do -- the best is drawn last, on top
        local path, title = {}, {}
        for c, column in ipairs(columns) do
            local value = column[2](rows[i])
            local at = value ~= nil and axes[c](value)
            title[c] = ("%s %s"):format(column[1], tostring(value))
            if at then
                path[#path + 1] = ("%s%d %.1f"):format(#path == 0 and "M" or "L", SIDE + (c - 1) * STEP,
                    TOP + up * (1 - at))
            end
        end
        out[#out + 1] = ('<path d="%s" fill="none" stroke="%s" stroke-width="%s"><title>%s</title></path>'):format(
            table.concat(path), colour_of(i, #rows), i == 1 and 3 or 1.5, svg.escape(table.concat(title, ", ")))
    end
    out[#out + 1] = "</svg>"
    return table.concat(out, "\n")
end

--- Writes the page.
---@param path string
---@param rows table[] of mx.sweep, best first
---@param keys string[] that vary
---@param results string[] names of results
---@param cells string[][] the table; the first row is its head
function sweep.write(path, rows, keys, results, cells)
    local columns = {}
    for _, key in ipairs(keys) do
        columns[#columns + 1] = { key, function(row) return row.config[key] end }
    end
    for _, name in ipairs(results) do
        if name ~= "error" then
            columns[#columns + 1] = { name, function(row) return row.result[name] end }
        end
    end
    local body = table.move(cells, 2, #cells, 1, {})
    mx.io.write_file_atomic(path, page.document("Sweep of " .. #rows .. " configurations", {
        page.paragraph("Each line is a configuration; the best ones are light, and the best one is thick. Axes whose "
            .. "values differ by a factor of 50 or more are logarithmic."),
        '<div class="scroll" tabindex="0">', coordinates(rows, columns), "</div>", page.heading("Results, best first"),
        page.table(cells[1], body),
    }))
end

return sweep
