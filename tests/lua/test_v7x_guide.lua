-- The figures of lua/mx/sim/v7x_guide.md: every row is simulated again, and the verdicts follow from the rows.

local lu = require "luaunit"
local mx = require "mx"

TestV7xGuide = {}

local SHARE = 0.02 -- by which a step may differ from the page

-- The rows of the page: name -> words and the text of the step.
local function rows()
    local text = mx.read_file(mx.root .. "lua/mx/sim/v7x_guide.md")
    local bases, found = {}, {}
    for name, words in text:gmatch("\n(%u): `([^`]*)`") do
        bases[name] = words
    end
    for name, words, step in text:gmatch("\n| ([%w-]+) | ([^|]*`[^|]*) | ([^|]*) |") do
        local list = {}
        for part in words:gsub("`[^`]*`", function(code)
            return (code:sub(2, -2))
        end):gmatch("%S+") do
            for word in (bases[part] or part):gmatch("%S+") do
                list[#list + 1] = word
            end
        end
        found[name] = { words = list, step = step }
    end
    return found
end

function TestV7xGuide.test_every_row_and_verdict()
    local seconds, count = {}, 0
    for name, row in pairs(rows()) do
        local config = mx.config.load(row.words, { simulate = false, quiet = true })
        local result = mx.plan.simulate(config, config.hardware, config.num_slices)
        local fits = result.peak_bytes <= result.memory_bytes
        seconds[name], count = result.step_s, count + 1
        lu.assertEquals(fits, row.step ~= "does not fit", name)
        if fits then
            lu.assertAlmostEquals(result.step_s, tonumber(row.step:match("^([%d.]+) s$")), SHARE * result.step_s, name)
        end
    end
    lu.assertEquals(count, 16)
    lu.assertTrue(seconds.a4 / 4 < seconds.a2 / 2 and seconds.a2 / 2 < seconds.a1)
    lu.assertTrue(seconds.tp4 > 1.5 * seconds.a2 and seconds.tp2 > seconds.a2)
    lu.assertTrue(seconds.blocks < seconds.a2 and seconds["long-blocks"] < 0.7 * seconds.long)
    lu.assertTrue(seconds.dot > 1.5 * seconds.a2)
    lu.assertTrue(seconds.sc < seconds.a2 and seconds.sc > 0.95 * seconds.a2)
    lu.assertTrue(seconds.blocking > seconds.a2)
    lu.assertTrue(seconds.hybrid > seconds.cp4)
    lu.assertTrue(seconds["cp4-sc"] <= seconds.cp4 and seconds["cp4-sc"] > 0.99 * seconds.cp4)
end
