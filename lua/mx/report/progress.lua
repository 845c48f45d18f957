--- Progress in the terminal: mx.progress counts a loop, mx.sparkline draws numbers as one line of text.

local mx = require "mx"
local util = require "mx.util"

local progress = {}

local BARS = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" }
local WIDTH = 24 -- characters of a bar
local PERIOD_S = 0.1 -- least time between two updates

--- A line of bars, one for each number; more numbers than `width` are averaged. NaN and infinities are gaps, or "×" if
--- nothing else was there.
---@param values number[] or a tensor of one dimension
---@param width? integer default 32
---@return string
function progress.sparkline(values, width)
    values = type(values) == "userdata" and values:totable() or values
    width = width or 32
    local n, low, high = #values, math.huge, -math.huge
    local means, columns = {}, math.min(width, n)
    for column = 1, columns do
        local sum, count = 0, 0
        for i = (column - 1) * n // columns + 1, column * n // columns do
            if values[i] - values[i] == 0 then
                sum, count = sum + values[i], count + 1
            end
        end
        means[column] = count > 0 and sum / count or false
        if count > 0 then
            low, high = math.min(low, means[column]), math.max(high, means[column])
        end
    end
    for column, mean in ipairs(means) do
        local level = mean and high > low and math.floor((mean - low) / (high - low) * (#BARS - 1) + 0.5) or 0
        means[column] = mean and BARS[level + 1] or "×"
    end
    return table.concat(means)
end

-- The line for `done` of `total` after `seconds`.
local function line_of(what, done, total, seconds, more)
    local filled = math.floor(WIDTH * done / math.max(total, 1))
    local rate, left = done / math.max(seconds, 1e-9), ""
    if done > 0 and done < total then
        left = ", " .. util.duration((total - done) / rate) .. " left"
    elseif done >= total then
        left = ", " .. util.duration(seconds)
    end
    return ("%s%3d %% [%s%s] %d/%d, %.3g/s%s%s"):format(what and what .. " " or "", 100 * done // math.max(total, 1),
        ("█"):rep(filled), ("·"):rep(WIDTH - filled), done, total, rate, left, more and "  " .. more or "")
end

--- Counts a loop to n and shows a bar on the terminal: for i in mx.progress(n) do ... end. Nothing is shown if stderr
--- is no terminal, and on other ranks than 0.
---@param n integer
---@param what? string shown before the bar
---@return fun(): integer?, fun(text: string)? i, and a function that shows a text behind the bar
function progress.progress(n, what)
    if math.type(n) ~= "integer" or n < 0 then
        error(("mx.progress(n): n is %s; expected the number of steps of the loop"):format(tostring(n)), 2)
    end
    local shows = mx.rank() == 0 and mx.io.is_terminal("stderr")
    local i, started, shown, more = 0, mx.now(), -1, nil
    local function show(now)
        if shows and (now - shown >= PERIOD_S or i > n) then
            shown = now
            io.stderr:write("\r\27[2K", line_of(what, math.min(i - 1, n), n, now - started, more))
            io.stderr:flush()
        end
    end
    local function say(text)
        more = tostring(text)
    end
    local function next_step()
        i = i + 1
        show(mx.now())
        if i <= n then
            return i, say
        end
    end
    local function close()
        if shows and shown >= 0 then
            io.stderr:write("\n")
        end
    end
    return next_step, nil, nil, setmetatable({}, { __close = close })
end

return progress
