--- Fits a few positive constants to measurements, within ranges, with the Levenberg-Marquardt method.

local util = require "mx.util"

local fit = {}

local ROUNDS, TRIES = 25, 6
local ENOUGH = 0.9995 -- stop after a round that leaves more than this share of the sum of squares
local LARGEST_STEP = 0.5 -- of a constant's logarithm in one round

local function squares(r)
    local sum = 0
    for _, v in ipairs(r) do
        sum = sum + v * v
    end
    return sum
end

local function with(constants, changes)
    local all = {}
    for name, value in pairs(constants) do
        all[name] = changes[name] or value
    end
    return all
end

-- Solves a x = b by elimination; a is symmetric and positive definite.
local function solve(a, b)
    local n, x = #b, {}
    for i = 1, n do
        for j = i + 1, n do
            local f = a[j][i] / a[i][i]
            for k = i, n do
                a[j][k] = a[j][k] - f * a[i][k]
            end
            b[j] = b[j] - f * b[i]
        end
    end
    for i = n, 1, -1 do
        local sum = b[i]
        for k = i + 1, n do
            sum = sum - a[i][k] * x[k]
        end
        x[i] = sum / a[i][i]
    end
    return x
end

-- name -> derivatives of the residuals with respect to the constant's logarithm.
local function derivatives(residuals, names, constants, ranges, r)
    local columns = {}
    for _, name in ipairs(names) do
        local h = constants[name] * 1.01 <= ranges[name][2] and 0.01 or -0.01
        local column = residuals(with(constants, { [name] = constants[name] * (1 + h) }))
        for k = 1, #r do
            column[k] = (column[k] - r[k]) / h
        end
        columns[name] = column
    end
    return columns
end

--- One step of the logarithms of constants, from the normal equations.
---@param names string[]
---@param columns table<string, number[]> name -> derivatives of the residuals
---@param r number[] residuals
---@param damping number 0: none
---@return table<string, number>
function fit.step(names, columns, r, damping)
    local a, b, steps = {}, {}, {}
    for i, of_row in ipairs(names) do
        a[i], b[i] = {}, 0
        for j, of_column in ipairs(names) do
            a[i][j] = 0
            for k = 1, #r do
                a[i][j] = a[i][j] + columns[of_row][k] * columns[of_column][k]
            end
        end
        a[i][i] = a[i][i] * (1 + damping) + 1e-9
        for k = 1, #r do
            b[i] = b[i] - columns[of_row][k] * r[k]
        end
    end
    for i, step in ipairs(solve(a, b)) do
        steps[names[i]] = math.max(-LARGEST_STEP, math.min(LARGEST_STEP, step))
    end
    return steps
end

-- The constants after one step. A constant that would leave its range stays at its bound, and the step of the others is
-- computed without it.
local function moved(names, columns, r, constants, ranges, damping)
    local steps, free = fit.step(names, columns, r, damping), {}
    for _, name in ipairs(names) do
        local value, range = constants[name], ranges[name]
        if not (steps[name] > 0 and value >= range[2] or steps[name] < 0 and value <= range[1]) then
            free[#free + 1] = name
        end
    end
    if #free == 0 then
        return constants
    elseif #free < #names then
        return moved(free, columns, r, constants, ranges, damping)
    end
    local changes = {}
    for _, name in ipairs(free) do
        local value = constants[name] * math.exp(steps[name])
        changes[name] = math.max(ranges[name][1], math.min(ranges[name][2], value))
    end
    return with(constants, changes)
end

--- The constants that minimise the sum of the squared residuals.
---@param residuals fun(constants: table<string, number>): number[]
---@param start table<string, number> all above 0
---@param ranges table<string, number[]> name -> least and largest value
---@param progress fun(round: integer, rms: number, constants: table<string, number>)
---@return table<string, number>
function fit.least_squares(residuals, start, ranges, progress)
    local names, constants, damping = util.sorted_keys(start), start, 1e-3
    local r = residuals(constants)
    for round = 1, ROUNDS do
        local columns, before = derivatives(residuals, names, constants, ranges, r), squares(r)
        for _ = 1, TRIES do
            local next_constants = moved(names, columns, r, constants, ranges, damping)
            local next_r = residuals(next_constants)
            if squares(next_r) < before then
                constants, r, damping = next_constants, next_r, damping / 4
                break
            end
            damping = damping * 4
        end
        progress(round, math.sqrt(squares(r) / #r), constants)
        if squares(r) > ENOUGH * before then
            break
        end
    end
    return constants
end

return fit
