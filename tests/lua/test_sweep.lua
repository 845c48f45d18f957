--- mx.sweep: which configurations run, what is kept, and what is refused.

local mx = require "mx"
local lu = require "luaunit"

local folder

local function refused(parts, ...)
    local good, message = pcall(mx.sweep, ...)
    lu.assertFalse(good, table.concat(parts, " "))
    for _, part in ipairs(parts) do
        lu.assertStrContains(tostring(message), part)
    end
end

TestSweep = {}

function TestSweep.setUp()
    folder = os.tmpname()
    os.remove(folder)
end

function TestSweep.tearDown()
    if mx.io.exists(folder) then
        mx.io.remove_folder(folder)
    end
end

-- Runs a sweep; counts the calls of its function. The loss is (x - 2)^2 + y.
local function count_runs(options)
    local seen = {}
    options.run = function(c)
        seen[#seen + 1] = ("%s %s"):format(c.x, c.y)
        return { loss = (c.x - 2) ^ 2 + c.y, note = "x" .. c.x }
    end
    return mx.sweep(options), seen
end

function TestSweep.test_a_grid_has_all_combinations_best_first()
    local rows, seen = count_runs { grid = { x = { 1, 2, 4 }, y = { 0, 10 } } }
    lu.assertEquals(seen, { "1 0", "1 10", "2 0", "2 10", "4 0", "4 10" })
    local losses = {}
    for i, row in ipairs(rows) do
        losses[i] = row.result.loss
    end
    lu.assertEquals(losses, { 0, 1, 4, 10, 11, 14 })
    lu.assertEquals(rows[1].config, { x = 2, y = 0 })
    lu.assertEquals(rows[1].number, 3)
    rows = mx.sweep { grid = { x = { 1, 3, 2 } }, maximize = "score", run = function(c) return { score = c.x } end }
    lu.assertEquals({ rows[1].result.score, rows[3].result.score }, { 3, 1 })
end

function TestSweep.test_random_configurations_depend_on_seed_key_and_number()
    local space = {
        rate = { low = 1e-4, high = 1e-1, log = true }, layers = { low = 2, high = 5, integer = true },
        kind = { "a", "b" }, drop = { low = 0, high = 0.5 },
    }
    local function drawn(count, seed)
        local list = {}
        mx.sweep { random = space, count = count, seed = seed, run = function(c) list[#list + 1] = c return 0 end }
        return list
    end
    local list, logs, kinds, layers = drawn(200), 0, {}, {}
    for _, c in ipairs(list) do
        lu.assertTrue(c.rate >= 1e-4 and c.rate < 1e-1 and c.drop >= 0 and c.drop < 0.5)
        lu.assertEquals(math.type(c.layers), "integer")
        kinds[c.kind], layers[c.layers] = (kinds[c.kind] or 0) + 1, (layers[c.layers] or 0) + 1
        logs = logs + math.log(c.rate, 10) / #list
    end
    lu.assertAlmostEquals(logs, -2.5, 0.25) -- the mean of 200 uniform numbers from -4 to -1: 4 deviations
    lu.assertTrue(kinds.a > 70 and kinds.b > 70 and layers[2] > 25 and layers[5] > 25 and not layers[6])
    lu.assertEquals(drawn(3), { list[1], list[2], list[3] })
    lu.assertNotEquals(drawn(1, 1)[1].rate, list[1].rate)
end

function TestSweep.test_finished_configurations_do_not_run_again()
    local rows, seen = count_runs { grid = { x = { 1, 2 }, y = { 0 } }, resume = folder }
    lu.assertEquals(#seen, 2)
    local again, more = count_runs { grid = { x = { 1, 2, 3 }, y = { 0 } }, resume = folder }
    lu.assertEquals(more, { "3 0" }) -- a larger grid runs only what is new
    lu.assertEquals(again[1].result, rows[1].result)
    lu.assertTrue(again[1].from_disk)
end

function TestSweep.test_numbers_that_json_lacks_are_kept()
    local function run()
        return mx.sweep { grid = { x = { 1, 2, 3 } }, resume = folder, run = function(c)
            return { loss = c.x == 1 and 0 / 0 or c.x == 2 and math.huge or 5, note = "inf" }
        end }
    end
    run()
    local rows = run()
    lu.assertEquals(rows[1].result.note, "inf") -- a text stays a text
    lu.assertEquals(rows[1].result.loss, 5)
    lu.assertTrue(rows[2].result.loss ~= rows[2].result.loss) -- NaN and infinity are last
    lu.assertEquals(rows[3].result.loss, math.huge)
end

function TestSweep.test_errors_stop_or_are_noted()
    local function fails(c)
        if c.x == 2 then
            error("too wide", 0)
        end
        return c.x
    end
    refused({ "too wide" }, { grid = { x = { 1, 2, 3 } }, run = fails, resume = folder })
    local runs = 0
    local rows = mx.sweep { grid = { x = { 1, 2, 3 } }, resume = folder, on_error = "continue", run = function(c)
        runs = runs + 1
        return fails(c)
    end }
    lu.assertEquals(runs, 2) -- the first one had finished
    lu.assertEquals({ rows[1].result.loss, rows[2].result.loss, rows[3].result.error }, { 1, 3, "too wide" })
    lu.assertEquals(#mx.sweep { grid = { x = { 2 } }, resume = folder, run = function() return 7 end }, 1) -- runs again
end

function TestSweep.test_the_page_has_every_line_and_figure()
    count_runs { grid = { x = { 1, 2, 4 }, y = { 0, 10 } }, page = folder .. "/page.html", resume = folder }
    local html = mx.io.read_file(folder .. "/page.html")
    lu.assertEquals(select(2, html:gsub('fill="none"', "")), 6)
    for _, part in ipairs { "Sweep of 6 configurations", "x 2, y 0, loss 0", "<td", ">note<" } do
        lu.assertStrContains(html, part)
    end
    -- x = 2 is a third of the way from 1 to 4 (axes are 202 high, from 34 on), y = 0 and loss = 0 are at the foot.
    lu.assertStrContains(html, 'd="M50 168.7L160 236.0L270 236.0')
end

function TestSweep.test_a_damaged_or_foreign_result()
    local function run() return 1 end
    mx.sweep { grid = { x = { 1 } }, run = run, resume = folder }
    local name
    for _, one in ipairs(mx.io.list(folder)) do
        name = one:match("%.json$") and one or name
    end
    mx.io.write_file_atomic(folder .. "/" .. name, '{"format": "mxlua sweep 1", "config": {"x": 2}, "result": {}}')
    refused({ name, "is no result of this sweep" }, { grid = { x = { 1 } }, run = run, resume = folder })
    mx.io.write_file_atomic(folder .. "/" .. name, '{"for')
    refused({ name }, { grid = { x = { 1 } }, run = run, resume = folder })
end

function TestSweep.test_messages()
    refused({ "no 'los'", "minimize", "returned loss" }, { grid = { x = { 1 } }, minimize = "los",
        run = function() return { loss = 1 } end })
    refused({ "no 'score'", "maximize" }, { grid = { x = { 1 } }, maximize = "score", run = function() return 1 end })
    refused({ "t:item()" }, { grid = { x = { 1 } }, run = function() return mx.ones(1) end })
    local function run() return 1 end
    refused({ "'run' is missing" }, { grid = {} })
    refused({ "either grid", "or random" }, { run = run })
    refused({ "either grid", "or random" }, { run = run, grid = {}, random = {} })
    refused({ "'rseume'", "'resume'" }, { run = run, grid = {}, rseume = "x" })
    refused({ "grid.x has no choices" }, { run = run, grid = { x = {} } })
    refused({ "grid.x is a number" }, { run = run, grid = { x = 3 } })
    refused({ "a choice of grid.x is a table" }, { run = run, grid = { x = { {} } } })
    refused({ "count = nil" }, { run = run, random = { x = { 1 } } })
    refused({ "'hihg'", "'high'" }, { run = run, random = { x = { low = 1, high = 2, hihg = 2 } }, count = 1 })
    refused({ "low = 3 must be at most high = 2" }, { run = run, random = { x = { low = 3, high = 2 } }, count = 1 })
    refused({ "log needs low > 0" }, { run = run, random = { x = { low = 0, high = 2, log = true } }, count = 1 })
    refused({ "integer needs whole" }, { run = run, random = { x = { low = 0, high = 1.5, integer = true } },
        count = 1 })
    refused({ "minimize or maximize" }, { run = run, grid = {}, minimize = "a", maximize = "b" })
    refused({ "needs resume" }, { run = run, grid = {}, apart = true })
    refused({ "expected stop or continue" }, { run = run, grid = {}, on_error = "skip" })
    refused({ "run returned nil" }, { run = function() end, grid = {} })
    refused({ "the result loss is a userdata", "t:item()" }, { run = function() return { loss = mx.tensor(1) } end,
        grid = {} })
    local large = {}
    for _, key in ipairs { "a", "b", "c", "d", "e", "f" } do
        large[key] = { 1, 2, 3, 4, 5, 6, 7 } -- 7^6 = 117,649
    end
    refused({ "more than 100000" }, { run = run, grid = large })
end
