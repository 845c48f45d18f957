--- Draws a mesh: a grid of the ranks, then for each axis the dimensions that it splits and the groups of ranks along
--- it.

local names = require "mx.parallel.names"
local util = require "mx.util"

local picture = {}

local WIDTH = 80 -- columns
local MOST_GROUPED = 100000 -- with more ranks, the groups along each axis are not listed

--- Text in lines of at most 80 columns.
---@param text string
---@return string[]
function picture.wrap(text, width)
    local lines, line = {}, ""
    width = width or WIDTH
    for word in text:gmatch("%S+") do
        if line ~= "" and #line + 1 + #word > width then
            lines[#lines + 1], line = line, word
        else
            line = line == "" and word or line .. " " .. word
        end
    end
    lines[#lines + 1] = line
    return lines
end

-- "0 1 2 3", or "0 1 .. 15" if there are more than `most`.
local function show_ranks(ranks, most)
    if #ranks > most then
        return ("%d %d .. %d"):format(ranks[1], ranks[2], ranks[#ranks])
    end
    return table.concat(ranks, " ")
end

-- Groups of ranks in a line of `width` columns; groups that do not fit are left out.
local function show_groups(groups, width)
    local line
    for _, most in ipairs({ math.huge, 3 }) do
        for shown = math.min(#groups, width), math.min(#groups, 2), -1 do
            local out = {}
            for i = 1, shown - 1 do
                out[i] = show_ranks(groups[i], most)
            end
            out[#out + 1] = shown < #groups and "..." or nil
            out[#out + 1] = show_ranks(groups[#groups], most)
            line = table.concat(out, " | ")
            -- Several shortened groups say more than two or three complete ones.
            if #line <= width and (shown > 3 or shown == #groups or most == 3) then
                return line
            end
        end
    end
    return line
end

-- All groups of ranks along an axis, in the order of their first ranks.
local function groups_along(layout, axis, rank_at)
    local groups = {}
    local function place(at, i)
        local name = layout.axes[i] and layout.axes[i].name
        if not name then
            local group = {}
            for coordinate = 0, axis.size - 1 do
                at[axis.name] = coordinate
                group[coordinate + 1] = rank_at(layout, at)
            end
            groups[#groups + 1] = group
            return
        end
        for coordinate = 0, name == axis.name and 0 or layout.sizes[name] - 1 do
            at[name] = coordinate
            place(at, i + 1)
        end
    end
    place({}, 1)
    table.sort(groups, function(a, b) return a[1] < b[1] end)
    return groups
end

-- The dimensions that an axis splits by the rules, in a line of `width` columns: "batch, embed".
local function split_by(self, axis, width)
    local found, seen = {}, {}
    for _, rule in ipairs(self.list) do
        local name, short = rule[1], rule[1]:gsub("^activation_", "")
        short = names.OWN[short] and name or short
        local is_known = names.OWN[name] and (self.has_experts or not names.EXPERTS[name])
        if is_known and not seen[short] and util.contains(self.rules[name], axis) then
            found[#found + 1], seen[short] = short, true
        end
    end
    local text = #found > 0 and table.concat(found, ", ") or "nothing: no rule names it"
    return #text <= width and text or text:sub(1, width - 3) .. "..."
end

-- 0 to n - 1; if `shown` is below n, only the first ones, false for those left out, and the last.
local function elide(n, shown)
    local out = {}
    for i = 0, math.min(n, shown) - 1 do
        out[i + 1] = i
    end
    if shown < n then
        out[shown], out[shown + 1] = false, n - 1
    end
    return out
end

-- The same in a list of at most `places` entries.
local function elide_to(n, places)
    return elide(n, n <= places and n or places - 1)
end

-- The axes of the grid: the largest ones, at most three, as columns, rows and blocks side by side; and all others.
local function axes_of_grid(used)
    local by_size = table.move(used, 1, #used, 1, {})
    table.sort(by_size, function(a, b)
        return a.size > b.size or (a.size == b.size and a.order < b.order)
    end)
    local chosen, rest = {}, {}
    for i, axis in ipairs(by_size) do
        table.insert(i <= 3 and chosen or rest, axis)
    end
    table.sort(chosen, function(a, b) return a.order < b.order end)
    local columns, rows, blocks = chosen[#chosen], chosen[#chosen - 1], chosen[#chosen - 2]
    if blocks and rows.size < blocks.size and rows.size <= 4 then
        rows, blocks = blocks, rows -- few blocks fit side by side
    end
    return columns, rows, blocks, rest
end

local GAP = 4 -- columns between blocks

-- The coordinates of the columns and blocks to show, and the width of a block.
local function fit_grid(columns, blocks, room, cell)
    local share = blocks and (room - (blocks.size > 2 and GAP + 3 or 0)) // 2 or room
    local column_list = elide_to(columns.size, math.max(3, (share - GAP) // cell))
    local title = blocks and ("%s %d"):format(blocks.name, blocks.size - 1) or ""
    local width = GAP + math.max(#column_list * cell, #columns.name, #title)
    if not blocks or blocks.size * width <= room then
        return column_list, elide_to(blocks and blocks.size or 1, math.huge), width
    end
    local whole = (room - GAP - 3) // width
    return column_list, whole >= 2 and elide(blocks.size, whole) or { 0 }, width
end

local function draw_grid(layout, used, rank_at, put)
    local columns, rows, blocks, rest = axes_of_grid(used)
    local cell = #tostring(layout.ranks - 1) + 2
    local row_list = elide_to(rows.size, 8)
    local digits = math.max(#tostring(rows.size - 1), #row_list < rows.size and 2 or 1)
    local margin = 2 + #rows.name + 2 + digits
    local column_list, block_list, width = fit_grid(columns, blocks, WIDTH - margin, cell)
    -- `head`, then the result of `fill` for each block, with a narrow gap for blocks that are left out.
    local function line(head, fill)
        local parts = { head .. (" "):rep(margin - #head) }
        for _, block in ipairs(block_list) do
            local text = (" "):rep(GAP) .. (block and fill(block) or "...")
            parts[#parts + 1] = text .. (" "):rep(block and width - #text or 0)
        end
        put((table.concat(parts):gsub("%s+$", "")))
    end
    local function cells(of)
        local out = {}
        for i, column in ipairs(column_list) do
            out[i] = ("%" .. cell .. "s"):format(column and of(column) or "..")
        end
        return table.concat(out)
    end
    if blocks then
        line("", function(block) return ("%s %d"):format(blocks.name, block) end)
    end
    line("", function() return columns.name end)
    line("", function() return cells(function(column) return column end) end)
    for i, row in ipairs(row_list) do
        local name = i == 1 and rows.name or (" "):rep(#rows.name)
        line(("  %s  %" .. digits .. "s"):format(name, row or ".."), function(block)
            return row and cells(function(column)
                local at = { [columns.name] = column, [rows.name] = row }
                at[blocks and blocks.name or rows.name] = blocks and block or row
                return rank_at(layout, at)
            end) or ""
        end)
    end
    for i, axis in ipairs(rest) do
        rest[i] = axis.name .. " 0"
    end
    if blocks and #block_list == 1 then
        table.insert(rest, 1, blocks.name .. " 0")
    end
    if #rest > 0 then
        put(("  (these are at %s)"):format(table.concat(rest, ", ")))
    end
end

--- The picture as text, at most 80 columns wide.
---@param self mx.Mesh
---@param rank_at function mx.mesh.rank_at
---@return string
function picture.draw(self, rank_at)
    local lines = picture.wrap("mesh of " .. self:summary())
    local function put(text)
        lines[#lines + 1] = text
    end
    local used = {}
    for i, axis in ipairs(self.layout.axes) do
        if axis.size > 1 then
            used[#used + 1] = { name = axis.name, size = axis.size, ici = axis.ici, dcn = axis.dcn, order = i }
        end
    end
    if #used > 1 then
        put("")
        draw_grid(self.layout, used, rank_at, put)
        put("")
    end
    local margin = 0
    for _, axis in ipairs(used) do
        axis.title = ("  %s %d"):format(axis.name, axis.size)
        margin = math.max(margin, #axis.title + 2)
    end
    local format = "%-" .. margin .. "s%s"
    for _, axis in ipairs(used) do
        local across = axis.dcn == 1 and "" or axis.ici == 1 and " (across slices)"
            or (" (%d slices x %d)"):format(axis.dcn, axis.ici)
        put(format:format(axis.title, split_by(self, axis.name, WIDTH - margin - #across) .. across))
        if self.layout.ranks <= MOST_GROUPED then
            put(format:format("", show_groups(groups_along(self.layout, axis, rank_at), WIDTH - margin)))
        end
    end
    return table.concat(lines, "\n")
end

return picture
