-- The published rows of all generations on simulated pods: how far off they may be, and that fits are what they say.

local lu = require "luaunit"
local mx = require "mx"

TestGenerations = {}

-- Bounds of the error of the step time in per cent: mean of rows that nothing was fitted to, largest of fitted rows.
local BOUNDS = { v6e = { 1.7, 0.5 }, h100 = { 4, 0.5 } }

local function errors(name)
    local fitted, others = 0, {}
    for _, row in ipairs(mx.generations.rows(name)) do
        local error = 100 * math.abs(mx.generations.simulate(row).ratio - 1)
        fitted = row.fitted and math.max(fitted, error) or fitted
        others[#others + 1] = not row.fitted and error or nil
    end
    local sum = 0
    for _, error in ipairs(others) do
        sum = sum + error
    end
    return sum / #others, fitted
end

function TestGenerations.test_errors_are_within_their_bounds()
    for name, bounds in pairs(BOUNDS) do
        local others, fitted = errors(name)
        lu.assertTrue(others <= bounds[1], ("%s: %.2f %% on rows that nothing was fitted to"):format(name, others))
        lu.assertTrue(fitted <= bounds[2], ("%s: %.2f %% on a fitted row"):format(name, fitted))
    end
end

-- At most two constants of a generation are fitted (v5e: four); each lies in its range; all name their rows.
function TestGenerations.test_constants()
    for _, name in ipairs(mx.generations.NAMES) do
        local hardware = mx.sim.hardware(name)
        local values = mx.sim.constants.of(hardware, "fitted")
        local n = #mx.util.sorted_keys(values)
        lu.assertTrue(n >= 1 and n <= (name == "v5e" and 4 or 2), name)
        lu.assertStrContains(mx.sim.constants.fitted_to(hardware), "configs/published/")
    end
end

-- With one fitted row, leaving it out leaves only the range: the constant is in its middle.
function TestGenerations.test_a_single_row_left_out()
    local hardware, rows = mx.sim.hardware("h100"), { mx.generations.rows("h100")[1] }
    lu.assertTrue(rows[1].fitted)
    local range = select(2, mx.sim.constants.of(hardware, "fitted")).matrix_efficiency
    local middle = math.sqrt(range[1] * range[2])
    local expected = 100 * (mx.generations.simulate(rows[1], { matrix_efficiency = middle }).ratio - 1)
    local left_out = mx.generations.left_out(hardware, rows, { mx.generations.simulate(rows[1]).ratio })
    lu.assertAlmostEquals(left_out[1], expected, 0.5) -- which is not quite linear
end

function TestGenerations.test_the_fit_finds_the_constants_of_the_file()
    local hardware, rows = mx.sim.hardware("h100"), { mx.generations.rows("h100")[1] }
    local values = mx.generations.fit(hardware, rows, function() end)
    lu.assertAlmostEquals(values.matrix_efficiency / hardware.matrix_efficiency, 1, 0.005)
end

function TestGenerations.test_refusals()
    lu.assertErrorMsgContains("generation=v9: expected all, v5e, v5p, v6e, h100, v7x", mx.repro.run,
        { "generation=v9" })
    lu.assertErrorMsgContains("generation=v5p has no report_file and no era", mx.repro.run,
        { "generation=v5p", "era=b" })
end
