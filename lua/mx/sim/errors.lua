--- How far the simulator was off on published rows, and how far these leave its constants undetermined.
--
-- configs/published/errors.yml has an entry for each hardware file with published rows:
--
--     v6e:
--       constants: {NAME: VALUE, ...}   # of the hardware file at that time
--       rows:    # one for each published row
--         - {row: NAME, chips: N, length: S, head_dim: D, error: E, how: HOW}
--       experts: # the same of rows of models with experts (moe.yml), which nothing is fitted to; may be missing
--       refits:  # sets of constants that fit the rows about as well as those of the hardware file
--         - {moved: NAME, rms: R, NAME: VALUE, ...}
--
-- E is by how many per cent the simulated step time exceeds the published one. HOW is interpolation (constants were
-- fitted to rows of the same model on fewer and on more chips), left-out (constants were fitted to the row; E is that
-- of a fit without it), or unseen (constants were not fitted to it). In a refit one constant is moved as far as its
-- range and the rows allow, and the others were fitted again. R is the root mean square of the errors of the fitted
-- rows.

local mx = require "mx"
local util = require "mx.util"

local errors = {}

local PATH = "configs/published/errors.yml"

local STEP = 0.01 -- relative change of a constant for its derivative
local AS_GOOD = 0.25 -- per cent by which the rms of a refit may exceed that of the best one
local HALVINGS = 30 -- of the interval in which a constant's farthest value is searched

local HEAD = [[
# How far the simulator is off on the rows of this folder, and what the rows leave undetermined of its constants.
# build/mxlua scripts/repro_mfu.lua generation=all write=true makes this file; lua/mx/sim/errors.lua describes it.
# Labels and ranges of simulated figures come from it.
]]

local function read_all()
    errors.all = errors.all
        or mx.config.parse(mx.read_file(mx.root .. PATH) or util.refuse("cannot read %s", PATH), PATH)
    return errors.all
end

--- The entry of a hardware file; nil: nothing was published of such chips.
---@param kind string such as "v6e"
---@return table?
function errors.of(kind)
    return read_all()[kind]
end

local function flow(row, first)
    local texts = {}
    for _, name in ipairs(first) do
        texts[#texts + 1] = row[name] and ("%s: %s"):format(name, row[name]) or nil
    end
    for name, value in util.sorted_pairs(row) do
        texts[#texts + 1] = not util.contains(first, name) and ("%s: %.4g"):format(name, value) or nil
    end
    return ("    - {%s}"):format(table.concat(texts, ", "))
end

--- The file's text.
---@param all table<string, table> hardware -> {constants, rows, experts, refits}
---@return string
function errors.text(all)
    local lines = { (HEAD:gsub("\n$", "")) }
    for kind, entry in util.sorted_pairs(all) do
        lines[#lines + 1] = kind .. ":\n  constants:"
        for name, value in util.sorted_pairs(entry.constants) do
            lines[#lines + 1] = ("    %s: %.10g"):format(name, value)
        end
        for _, part in ipairs({ "rows", "experts" }) do
            lines[#lines + 1] = entry[part] and ("  %s:"):format(part)
            for _, row in ipairs(entry[part] or {}) do
                local copy = setmetatable({ error = ("%.2f"):format(row.error) }, { __index = row })
                lines[#lines + 1] = flow(copy, { "row", "chips", "length", "head_dim", "error", "how" })
            end
        end
        lines[#lines + 1] = "  refits:"
        for _, refit in ipairs(entry.refits) do
            lines[#lines + 1] = flow(refit, { "moved" })
        end
    end
    return table.concat(lines, "\n") .. "\n"
end

--- Writes the file.
---@param all table<string, table> hardware -> {constants, rows, refits}
function errors.write(all)
    mx.io.write_file_atomic(mx.root .. PATH, errors.text(all))
end

-- ---- making it ----

local function percent(ratio)
    return 100 * math.log(ratio)
end

local function rms(list, n)
    local sum = 0
    for i = 1, n do
        sum = sum + list[i] ^ 2
    end
    return math.sqrt(sum / n)
end

-- name -> change of each row's error, in per cent for a change of the constant's logarithm by 1.
local function slopes_of(rows, simulate, values, ratios)
    local slopes = {}
    for name, value in pairs(values) do
        slopes[name] = {}
        for k, row in ipairs(rows) do
            slopes[name][k] = percent(simulate(row, { [name] = value * (1 + STEP) }).ratio / ratios[k])
                / math.log(1 + STEP)
        end
    end
    return slopes
end

-- The steps of the free constants' logarithms that minimise the squares of errors, and the errors that remain. Each
-- step is held back by the constant's range: a quarter of it counts as much as one per cent of a step.
local function refit(free, slopes, ranges, r)
    local columns, all, n = {}, table.move(r, 1, #r, 1, {}), #r
    for i, name in ipairs(free) do
        columns[name] = table.move(slopes[name], 1, n, 1, {})
        for j in ipairs(free) do
            columns[name][n + j] = i == j and 4 / math.log(ranges[name][2] / ranges[name][1]) or 0
        end
        all[n + i] = 0
    end
    local steps, left = #free > 0 and mx.fit.step(free, columns, all, 0) or {}, table.move(r, 1, n, 1, {})
    for name, step in pairs(steps) do
        for k = 1, n do
            left[k] = left[k] + slopes[name][k] * step
        end
    end
    return steps, left
end

-- The refit with `name` moved by the share t of the way to the end of its range.
local function moved(m, name, to, t)
    local change, r, free = t * math.log(to / m.values[name]), {}, {}
    for k, error in ipairs(m.errors) do
        r[k] = error + m.slopes[name][k] * change
    end
    for _, other in ipairs(m.fitted) do
        free[#free + 1] = other ~= name and other or nil
    end
    local steps, left = refit(free, m.slopes, m.ranges, r)
    steps[name] = change
    return steps, rms(left, #left)
end

-- The farthest refit in one direction whose rms is about as good; nil if the constant cannot move.
local function farthest(m, name, to)
    local low, high, most = 0, 1, m.best + AS_GOOD
    local steps, found = moved(m, name, to, 1)
    for _ = 1, found > most and HALVINGS or 0 do
        local middle = (low + high) / 2
        local _, at = moved(m, name, to, middle)
        low, high = at <= most and middle or low, at <= most and high or middle
        steps, found = moved(m, name, to, low)
    end
    if to == m.values[name] or low == 0 and found > most then
        return nil
    end
    local row = { moved = name, rms = found }
    for other, step in pairs(steps) do
        local range = m.ranges[other]
        row[other] = math.max(range[1], math.min(range[2], m.values[other] * math.exp(step)))
    end
    return row
end

--- The refits of a hardware table.
---@param hardware table
---@param rows table[] the fitted rows
---@param ratios number[] of the rows: simulated / published step time
---@param simulate fun(row: table, values: table): {ratio: number}
---@return table[]
function errors.refits(hardware, rows, ratios, simulate)
    local fitted, fitted_ranges = mx.sim.constants.of(hardware, "fitted")
    local assumed, assumed_ranges = mx.sim.constants.of(hardware, "assumed")
    local m = { values = {}, ranges = {}, fitted = util.sorted_keys(fitted), errors = {} }
    for _, list in ipairs({ { fitted, fitted_ranges }, { assumed, assumed_ranges } }) do
        for name, value in pairs(list[1]) do
            m.values[name], m.ranges[name] = value, list[2][name]
        end
    end
    for k, ratio in ipairs(ratios) do
        m.errors[k] = percent(ratio)
    end
    m.slopes, m.best = slopes_of(rows, simulate, m.values, ratios), rms(m.errors, #m.errors)
    local refits = {}
    for name in util.sorted_pairs(m.values) do
        for _, to in ipairs(m.ranges[name]) do
            refits[#refits + 1] = farthest(m, name, to)
        end
    end
    return refits
end

-- Whether constants were fitted to rows of the same model on fewer and on more slices.
local function is_between(row, rows)
    local fewer, more = false, false
    for _, other in ipairs(rows) do
        local near = other.fitted and other.model == row.model and other.hardware == row.hardware
        fewer, more = fewer or near and other.slices < row.slices, more or near and other.slices > row.slices
    end
    return fewer and more
end

local function row_of(row, rows, error, head_dim, length)
    return {
        row = row.slices > 1 and ("%s on %d slices"):format(row.model, row.slices) or row.model,
        chips = math.tointeger(tonumber(row.hardware:match("%d+$"))), length = length, head_dim = head_dim,
        error = error, how = row.fitted and "left-out" or is_between(row, rows) and "interpolation" or "unseen",
    }
end

-- The rows of models with experts; nil if there are none of such chips.
local function rows_with_experts(kind)
    local list = {}
    for _, row in ipairs(mx.repro.rows_with_experts()) do
        if row.cell.hardware == kind then
            local result = mx.repro.simulate(row.published, row.cell, { limited = false })
            local config = mx.config.load(mx.repro.words(row.published, row.cell), { simulate = false, flags = false })
            local job, cell = mx.sim.label.job(config), row.cell
            local ratio = cell.step_time_s and result.step_s / cell.step_time_s
                or cell.tokens_per_s / result.tokens_per_s -- of the step time
            list[#list + 1] = {
                row = ("%s %s"):format(cell.model, cell.kind), chips = cell.chips, length = job.length,
                head_dim = job.head_dim, how = "unseen",
                error = 100 * (ratio - 1),
            }
        end
    end
    return #list > 0 and list or nil
end

--- The entry of a kind of chips.
---@param kind string
---@return {constants: table<string, number>, rows: table[], experts: table[]?, refits: table[]}
function errors.make(kind)
    local hardware, rows, list = mx.sim.hardware(kind), mx.generations.rows(kind), {}
    local fitted, ratios, jobs = {}, {}, {}
    for i, row in ipairs(rows) do
        local result = mx.generations.simulate(row)
        jobs[i] = { 100 * (result.ratio - 1), mx.sim.label.head_dim(result.shape), result.length }
        if row.fitted then
            fitted[#fitted + 1], ratios[#ratios + 1] = row, result.ratio
        end
    end
    local left_out, at = mx.generations.left_out(hardware, fitted, ratios), 0
    for i, row in ipairs(rows) do
        at = at + (row.fitted and 1 or 0)
        list[i] = row_of(row, rows, row.fitted and left_out[at] or jobs[i][1], jobs[i][2], jobs[i][3])
    end
    return {
        constants = (mx.sim.constants.of(hardware)), rows = list, experts = rows_with_experts(kind),
        refits = errors.refits(hardware, fitted, ratios, mx.generations.simulate),
    }
end

-- ---- what the rows say ----

--- The errors of a kind of chips: number of rows by HOW, the mean and the largest error in per cent, and the least and
--- largest length and head_dim of the rows.
---@param kind string
---@return table? count, how, mean, largest, length, head_dim; nil: nothing was published of such chips
function errors.summary(kind)
    local entry = errors.of(kind)
    local s = { count = 0, how = {}, mean = 0, largest = 0, length = { math.huge, 0 }, head_dim = { math.huge, 0 } }
    for _, row in ipairs(entry and entry.rows or {}) do
        local error = math.abs(row.error)
        s.count, s.mean, s.largest = s.count + 1, s.mean + error, math.max(s.largest, error)
        s.how[row.how] = (s.how[row.how] or 0) + 1
        for _, name in ipairs({ "length", "head_dim" }) do
            s[name] = { math.min(s[name][1], row[name]), math.max(s[name][2], row[name]) }
        end
    end
    s.mean = s.mean / s.count
    return s.count > 0 and s or nil
end

--- The errors on rows of models with experts, of any chips: their number, and the least and largest in per cent.
---@return integer count, number least, number largest
function errors.with_experts()
    local count, least, largest = 0, math.huge, -math.huge
    for kind in util.sorted_pairs(read_all()) do
        for _, row in ipairs(errors.of(kind).experts or {}) do
            count, least, largest = count + 1, math.min(least, row.error), math.max(largest, row.error)
        end
    end
    return count, least, largest
end

return errors
