-- The published table on the simulated pod: how far off it may be, and that it is what it says it is.

local lu = require "luaunit"
local mx = require "mx"

TestRepro = {}

local function simulate(model, slices, o)
    return mx.repro.simulate(mx.repro.published("v5e"), { model = model, slices = slices }, o)
end

function TestRepro.test_predictions_are_within_their_bounds()
    local n, sum = 0, 0
    for _, cell in ipairs(mx.repro.published("v5e").cells) do
        local off = math.abs(simulate(cell.model, cell.slices).mfu - cell.mfu)
        if cell.slices > 1 and cell.slices < 32 then
            n, sum = n + 1, sum + off
        end
        lu.assertTrue(off <= 4, ("%s on %d slices is off by %.2f"):format(cell.model, cell.slices, off))
    end
    lu.assertEquals(n, 16)
    lu.assertTrue(sum / n <= 1.5, sum / n)
end

-- FLOPs of the operations of a step against the closed form: products of forward and backward, and with remat_policy
-- full the layers' forward pass once more, but for the last products of attention and MLP, whose results backward does
-- not read. Attention's gradient has five products for the forward pass's two, where the formula counts four.
function TestRepro.test_operations_count_what_the_formula_says()
    for model, batch in pairs({ ["16b"] = 6, ["32b"] = 4 }) do
        local c = mx.config.load({ "model_name=" .. model })
        local shape = mx.models.shape(c)
        local tokens = batch * c.max_target_length
        local heads, mlp = shape.blocks[1].attention, shape.blocks[1].mlp.width
        local width = heads.heads * heads.head_dim
        local attention = 4 * batch * c.max_target_length ^ 2 * width * shape.layers
        local layer = 4 * shape.emb * width + 2 * shape.emb * mlp
        local products = 2 * tokens * layer * shape.layers
        local last = 2 * tokens * shape.emb * (width + mlp) * shape.layers
        local vocabulary = 2 * tokens * shape.emb * shape.vocab
        local expected = 4 * products - last + 3 * vocabulary + (1 + 1 + 5 / 2) * attention
        lu.assertAlmostEquals(simulate(model, 1).times.flops / expected, 1, 1e-6)
    end
end

function TestRepro.test_a_step_is_the_sum_of_its_parts()
    local r = simulate("128b", 32)
    local t = r.times
    local sum = t.matrix_s + t.attention_s + t.memory_s + t.ici_s + t.dcn_s + t.host_s
    lu.assertAlmostEquals(sum / r.step_s, 1, 1e-9)
    lu.assertTrue(r.peak_memory_bytes < 16 * 2 ^ 30)
end

function TestRepro.test_faster_parts_are_never_slower()
    local base = simulate("64b", 8).step_s
    local _, ranges = mx.sim.constants.of(mx.sim.hardware("v5e"))
    for name, range in pairs(ranges) do
        local better = name == "dcn_hop_latency_s" and range[1] or range[2]
        local r = simulate("64b", 8, { constants = { [name] = better } })
        lu.assertTrue(r.step_s <= base, name)
    end
    lu.assertTrue(simulate("64b", 8, { constants = { ici_efficiency = 0.3 } }).step_s > base)
end

function TestRepro.test_eras_are_checked_by_their_parameters()
    lu.assertEquals(simulate("16b", 1, { era = "b" }).formula, "maxtext-2025-07")
    local published = mx.repro.published("v5e")
    published.params["16b"] = 1
    lu.assertErrorMsgContains("has 16,274,101,248 parameters; the published job has 1", mx.repro.simulate, published,
        { model = "16b", slices = 1 })
end

-- Nobody measured the models of era b: their table has no error.
function TestRepro.test_no_error_where_nothing_was_measured()
    local said, say, path = "", mx.metrics.say, os.tmpname()
    mx.metrics.say = function(format, ...)
        said = said .. format:format(...) .. "\n"
    end
    local good, summary = pcall(mx.repro.run, { "era=b", "report_file=" .. path })
    mx.metrics.say = say
    local page = mx.read_file(path)
    os.remove(path)
    lu.assertTrue(good, tostring(summary))
    lu.assertEquals({ summary.mean_abs_error, summary.predicted_cells }, {})
    lu.assertStrContains(said, "which nobody measured: there is no error")
    lu.assertStrMatches(said, ".*  16b +1 +%- +[%d.]+ +%- |.*")
    lu.assertStrContains(page, "not measured")
    lu.assertNotStrContains(page, "mean error")
end

function TestRepro.test_least_squares_finds_known_constants_and_stays_in_range()
    local function residuals(c)
        local r = {}
        for x = 1, 6 do
            r[x] = c.a * x + c.b / x - (3 * x + 0.5 / x)
        end
        return r
    end
    local function quiet() end
    local found = mx.fit.least_squares(residuals, { a = 1, b = 1 }, { a = { 0.1, 10 }, b = { 0.1, 10 } }, quiet)
    lu.assertAlmostEquals(found.a, 3, 1e-3)
    lu.assertAlmostEquals(found.b, 0.5, 1e-2)
    local bounded = mx.fit.least_squares(residuals, { a = 1, b = 1 }, { a = { 0.1, 2 }, b = { 0.1, 10 } }, quiet)
    lu.assertEquals(bounded.a, 2)
    lu.assertTrue(bounded.b > 0.5) -- takes what a may not
end
