--- mx.sweep: runs a function with many configurations, keeps every result on disk, and goes on after a kill.
--
-- The folder `resume` holds a file for each finished configuration: its name is a hash of the configuration, and it is
-- written in one step after the function has returned. A configuration without a file runs (again) from its start.

local mx = require "mx"
local util = require "mx.util"

local sweep = {}

local MOST = 100000 -- configurations
local FORMAT = "mxlua sweep 1"

-- ---- the space ----

-- A number from 0 to below 1 that depends only on the seed, the key and the number of the configuration.
local function uniform(seed, key, number)
    return (util.mix(util.seed(key, seed) + number) >> 10) * 2 ^ -53
end

local function check_choices(what, key, choices)
    if #choices == 0 then
        error(("mx.sweep: %s.%s has no choices; expected a list"):format(what, key), 0)
    end
    for _, value in ipairs(choices) do
        if type(value) ~= "number" and type(value) ~= "string" and type(value) ~= "boolean" then
            error(("mx.sweep: a choice of %s.%s is a %s; expected numbers, strings or booleans"):format(what, key,
                type(value)), 0)
        end
    end
end

-- All combinations of the lists, the last key varying fastest.
local function combinations(grid)
    local list = { {} }
    for key, choices in util.sorted_pairs(grid) do
        if type(choices) ~= "table" then
            error(("mx.sweep: grid.%s is a %s; expected a list of values"):format(key, type(choices)), 0)
        end
        check_choices("grid", key, choices)
        if #list * #choices > MOST then
            error(("mx.sweep: the grid has more than %d configurations"):format(MOST), 0)
        end
        local longer = {}
        for _, one in ipairs(list) do
            for _, value in ipairs(choices) do
                local copy = { [key] = value }
                for k, v in pairs(one) do
                    copy[k] = v
                end
                longer[#longer + 1] = copy
            end
        end
        list = longer
    end
    return list
end

local function draw(key, range, seed, number)
    local u = uniform(seed, key, number)
    if range[1] ~= nil then
        return range[math.floor(u * #range) + 1]
    end
    local low, high = range.low, range.high
    if range.integer then
        return low + math.floor(u * (high - low + 1))
    elseif range.log then
        return low * (high / low) ^ u
    end
    return low + u * (high - low)
end

local function check_range(key, range)
    if type(range) ~= "table" then
        error(("mx.sweep: random.%s is a %s; expected a list, or { low =, high = }"):format(key, type(range)), 0)
    elseif range[1] ~= nil then
        return check_choices("random", key, range)
    end
    util.arguments(range, { "low", "high" }, { "log", "integer" }, "mx.sweep: random." .. key)
    if type(range.low) ~= "number" or type(range.high) ~= "number" or range.low > range.high then
        error(("mx.sweep: random.%s: low = %s must be at most high = %s"):format(key, tostring(range.low),
            tostring(range.high)), 0)
    elseif range.log and (range.low <= 0 or range.integer) then
        error(("mx.sweep: random.%s: log needs low > 0, and no integer"):format(key), 0)
    elseif range.integer and (math.type(range.low) ~= "integer" or math.type(range.high) ~= "integer") then
        error(("mx.sweep: random.%s: integer needs whole numbers low and high"):format(key), 0)
    end
end

local function draws(space, count, seed)
    local list = {}
    if math.type(count) ~= "integer" or count < 1 or count > MOST then
        error(("mx.sweep: count = %s; expected how many configurations to draw"):format(tostring(count)), 0)
    end
    for key, range in util.sorted_pairs(space) do
        check_range(key, range)
    end
    for number = 1, count do
        list[number] = {}
        for key, range in util.sorted_pairs(space) do
            list[number][key] = draw(key, range, seed, number)
        end
    end
    return list
end

-- ---- results on disk ----

local function encode(value)
    if type(value) == "number" and value - value ~= 0 then
        return { value ~= value and "nan" or value > 0 and "inf" or "-inf" } -- JSON has none of them; texts are texts
    end
    return value
end

local DECODED = { nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge }

local function map_values(t, fn)
    local out = {}
    for key, value in pairs(t) do
        out[key] = fn(value)
    end
    return out
end

local function decode(value)
    return type(value) == "table" and DECODED[value[1]] or value
end

local function hash(config)
    return ("%016x"):format(util.seed(mx.io.json_encode(config), 0))
end

local function check_result(o, result)
    if type(result) == "number" then
        result = { loss = result }
    elseif type(result) ~= "table" then
        error(("mx.sweep: run returned %s; expected a table such as { loss = 1.5 }, or the loss"):format(
            type(result) == "userdata" and "a tensor (t:item() is its number)" or type(result)), 0)
    end
    for key, value in pairs(result) do
        if type(key) ~= "string" or not (type(value) == "number" or type(value) == "string"
            or type(value) == "boolean") then
            error(("mx.sweep: the result %s is a %s; expected numbers, strings and booleans by name%s"):format(
                tostring(key), type(value), type(value) == "userdata" and " (t:item() of a tensor)" or ""), 0)
        end
    end
    local objective = o.minimize or o.maximize
    if result[objective] == nil and not result.error then
        error(("mx.sweep: run returned no '%s', which %s names; it returned %s"):format(objective, o.maximize
            and "maximize" or "minimize", table.concat(util.sorted_keys(result), ", ")), 0)
    end
    return result
end

local function path_of(o, config)
    return ("%s/%s.json"):format(o.resume, hash(config))
end

-- The row of a configuration that has finished; nil if it has not.
local function load_row(o, config)
    local path = path_of(o, config)
    if not mx.io.exists(path) then
        return nil
    end
    local row = util.attempt(mx.io.json_decode, util.attempt(mx.io.read_file, path), path)
    if type(row) ~= "table" or row.format ~= FORMAT or type(row.config) ~= "table" or type(row.result) ~= "table"
        or mx.io.json_encode(row.config) ~= mx.io.json_encode(config) then
        util.refuse("%s is no result of this sweep: remove it to run its configuration again, or choose another folder",
            path)
    end
    return { config = config, result = map_values(row.result, decode), seconds = row.seconds, from_disk = true }
end

local function save_row(o, row)
    if o.resume then
        mx.io.write_file_atomic(path_of(o, row.config), mx.io.json_encode({
            format = FORMAT, config = row.config, result = map_values(row.result, encode), seconds = row.seconds,
        }, { indent = 1 }) .. "\n")
    end
end

-- ---- running ----

local function text_of(config)
    local parts = {}
    for key, value in util.sorted_pairs(config) do
        parts[#parts + 1] = ("%s=%s"):format(key, math.type(value) == "float" and ("%.4g"):format(value)
            or tostring(value))
    end
    return table.concat(parts, " ")
end

-- Whether row a is better than row b; a result without the objective, or with NaN, is worse than any other.
local function comparer(o)
    local name, sign = o.minimize or o.maximize, o.maximize and -1 or 1
    local function value(row)
        local x = row.result[name]
        return type(x) == "number" and x == x and sign * x or math.huge
    end
    return function(a, b)
        if value(a) ~= value(b) then
            return value(a) < value(b)
        end
        return a.number < b.number
    end
end

local function run_one(o, config, number)
    local started = mx.now()
    local copy = map_values(config, function(value) return value end)
    local job = { number = number, name = hash(config) }
    local result
    if o.on_error == "continue" then
        local good, message = pcall(o.run, copy, job)
        result = good and message or { error = tostring(message):match("[^\n]*") }
    else
        result = o.run(copy, job)
    end
    return { config = config, result = check_result(o, result), seconds = mx.now() - started, number = number }
end

local function report(o, row, total, best)
    local objective = o.minimize or o.maximize
    local value = row.result.error or row.result[objective]
    mx.metrics.say("sweep %d/%d: %s: %s %s (%s%s)%s", row.number, total, text_of(row.config), row.result.error
        and "error" or objective, type(value) == "number" and ("%.6g"):format(value) or tostring(value),
        util.duration(row.seconds), row.from_disk and ", from " .. o.resume or "",
        best and best ~= row and ("; best so far %.6g"):format(best.result[objective] or 0 / 0) or "")
end

-- Shows other machines that the sweep is alive.
local function beat(lock)
    if lock then
        lock:beat()
    end
end

-- Rank 0's row of a configuration, on every rank. Collective.
local function share_row(row)
    if mx.ranks() == 1 then
        return row
    end
    local text = mx.share_text(mx.rank() == 0 and mx.io.json_encode {
        result = map_values(row.result, encode), seconds = row.seconds,
    } or nil)
    local shared = mx.io.json_decode(text)
    return { config = row.config, number = row.number, from_disk = row.from_disk, seconds = shared.seconds,
        result = map_values(shared.result, decode) }
end

-- All ranks run each configuration together. Collective.
local function run_together(o, configs, rows, lock)
    local best
    local better = comparer(o)
    for number, config in ipairs(configs) do
        local stored = mx.rank() == 0 and o.resume and load_row(o, config) or nil
        local known = mx.share_text(stored and "yes" or nil)
        local row = known and (stored or { config = config, from_disk = true }) or run_one(o, config, number)
        row.number = number
        row = share_row(row)
        if mx.rank() == 0 and not known and not row.result.error then
            save_row(o, row)
        end
        rows[number] = row
        beat(lock)
        best = (not best or better(row, best)) and row or best
        report(o, row, #configs, best)
    end
end

-- Each rank runs every R-th configuration by itself; then all ranks read the rows of the others. Collective at its end.
local function run_apart(o, configs, rows, lock)
    for number = mx.rank() + 1, #configs, mx.ranks() do
        local row = load_row(o, configs[number])
        if not row then
            row = run_one(o, configs[number], number)
            save_row(o, row)
        end
        row.number = number
        beat(lock)
        io.write(("rank %d: sweep %d/%d: %s: %s %s (%s)\n"):format(mx.rank(), number, #configs, text_of(row.config),
            o.minimize or o.maximize, tostring(row.result[o.minimize or o.maximize]), util.duration(row.seconds)))
        io.flush()
    end
    mx.barrier()
    for number, config in ipairs(configs) do
        rows[number] = load_row(o, config)
        rows[number].number = number
    end
end

-- ---- results ----

-- The keys that vary, and the names of the results, with the objective first.
local function columns_of(o, rows)
    local keys, results, values = {}, {}, {}
    for _, row in ipairs(rows) do
        for key, value in pairs(row.config) do
            values[key] = values[key] or value
            if values[key] ~= value and not util.contains(keys, key) then
                keys[#keys + 1] = key
            end
        end
        for key in pairs(row.result) do
            if key ~= (o.minimize or o.maximize) and not util.contains(results, key) then
                results[#results + 1] = key
            end
        end
    end
    table.sort(keys)
    table.sort(results)
    table.insert(results, 1, o.minimize or o.maximize)
    return keys, results
end

local function cell(value)
    return value == nil and "-" or math.type(value) == "float" and ("%.5g"):format(value ~= value and 0 / 0 or value)
        :gsub("%-nan", "nan") or tostring(value)
end

local function table_of(rows, keys, results)
    local lines, widths = {}, {}
    local head = table.move(results, 1, #results, #keys + 1, table.move(keys, 1, #keys, 1, {}))
    head[#head + 1] = "seconds"
    local cells = { head }
    for i, row in ipairs(rows) do
        local line = {}
        for _, key in ipairs(keys) do
            line[#line + 1] = cell(row.config[key])
        end
        for _, key in ipairs(results) do
            line[#line + 1] = cell(row.result[key])
        end
        line[#line + 1] = ("%.3g"):format(row.seconds)
        cells[i + 1] = line
    end
    for _, line in ipairs(cells) do
        for column, text in ipairs(line) do
            widths[column] = math.max(widths[column] or 0, utf8.len(text) or #text)
        end
    end
    for i, line in ipairs(cells) do
        local padded = {}
        for column, text in ipairs(line) do
            padded[column] = (" "):rep(widths[column] - (utf8.len(text) or #text)) .. text
        end
        lines[i] = table.concat(padded, "  ")
    end
    return table.concat(lines, "\n"), cells
end

local OPTIONS = { "grid", "random", "count", "seed", "resume", "minimize", "maximize", "apart", "on_error", "page" }

local function check_options(o)
    util.arguments(o, { "run" }, OPTIONS, "mx.sweep")
    if type(o.run) ~= "function" then
        error(("mx.sweep: run is a %s; expected function(config, job)"):format(type(o.run)), 0)
    elseif (o.grid == nil) == (o.random == nil) then
        error("mx.sweep: give either grid = { key = { values } } or random = { key = { low =, high = } }", 0)
    elseif o.minimize and o.maximize then
        error("mx.sweep: give either minimize or maximize, the name of a result", 0)
    elseif o.apart and not o.resume then
        error("mx.sweep: apart = true needs resume = FOLDER, where ranks find each other's results", 0)
    elseif o.apart and o.on_error then
        error("mx.sweep: on_error does not go with apart = true", 0)
    elseif o.on_error and o.on_error ~= "stop" and o.on_error ~= "continue" then
        error(("mx.sweep: on_error = '%s'; expected stop or continue"):format(tostring(o.on_error)), 0)
    elseif o.on_error == "continue" and mx.ranks() > 1 then
        error("mx.sweep: on_error = \"continue\" needs one rank: the others would wait for the one that failed", 0)
    end
end

local function prepare(given)
    check_options(given)
    local o = {}
    for key, value in pairs(given) do
        o[key] = value
    end
    o.minimize = o.minimize or not o.maximize and "loss" or nil
    local configs = o.grid and combinations(o.grid) or draws(o.random, o.count, o.seed or 0)
    return o, configs
end

-- Makes the folder of a sweep and takes its lock.
local function take_lock(path)
    mx.io.mkdir_p(path)
    return (mx.io.lock(path .. "/sweep.lock", "choose another folder for resume"))
end

--- Runs a function with every configuration of a grid, or with random ones, and returns the results. What has finished
--- is in the folder `resume`; the same call after a kill runs only the rest. Collective.
---@param given table run: function(config, job) that returns a table of results, such as { loss = 1.5 }, or the loss;
---       job.number, job.name (a hash of the configuration, for names of files and runs). grid: key -> list of values;
---       or random: key -> list, or { low, high, log, integer }, with count and seed. resume: folder of results (nil:
---       not stored). minimize (default "loss") or maximize: the result to sort by. apart: each rank runs other
---       configurations, and `run` calls no collective; default: all ranks run each together. on_error: "stop"
---       (default) or "continue". page: HTML file with parallel coordinates and the table
---@return table[] rows best first: config, result, seconds, number
function sweep.sweep(given)
    local good, o, configs = pcall(prepare, given)
    if not good then
        error((tostring(o):gsub("^[^%s:]+:%d+: ", "")), 2)
    end
    local lock <close> = o.resume and mx.rank() == 0 and take_lock(o.resume) or nil
    mx.barrier()
    local rows = {}
    if o.apart then
        run_apart(o, configs, rows, lock)
    else
        run_together(o, configs, rows, lock)
    end
    table.sort(rows, comparer(o))
    local keys, results = columns_of(o, rows)
    local text, cells = table_of(rows, keys, results)
    mx.metrics.say("%s", text)
    if o.page and mx.rank() == 0 then
        require("mx.report.sweep").write(o.page, rows, keys, results, cells)
    end
    return rows
end

return sweep
