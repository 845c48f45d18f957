-- What outputs say of simulated figures: that they are simulated, on what constants, how far such chips were off on
-- published rows, and a range of the step time.

local lu = require "luaunit"
local mx = require "mx"

TestLabel, TestErrors, TestRange = {}, {}, {}

local label, errors = mx.sim.label, mx.sim.errors
local program = io.open("/proc/self/cmdline"):read("a"):match("^[^\0]+")

function TestLabel.tearDown()
    mx.sim.stop()
end
TestErrors.tearDown, TestRange.tearDown = TestLabel.tearDown, TestLabel.tearDown

local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read("a")
end

-- The lines that a script prints, and its JSON objects in metrics_file.
local function run(script, words)
    local path = os.tmpname()
    local pipe = assert(io.popen(("'%s' --threads 1 scripts/%s %s metrics_file=%s 2>&1"):format(program, script, words,
        path)))
    local text = pipe:read("a")
    lu.assertTrue(pipe:close(), text)
    local rows = {}
    for line in read(path):gmatch("[^\n]+") do
        rows[#rows + 1] = mx.io.json_decode(line)
    end
    os.remove(path)
    return text, rows
end

local JOB = "model_name=tiny hardware=v5e-4 "

local function assert_labelled(text)
    lu.assertStrContains(text, "simulated, not measured. Constants: ")
    lu.assertStrContains(text, "fitted to the 8 cells of 1 and of 32 slices in configs/published/v5e.yml")
    lu.assertStrContains(text, "16 called interpolations")
    lu.assertStrContains(text, "max_target_length 256 lies outside theirs, 2048")
    lu.assertStrContains(text, "head_dim 16 lies outside theirs, 256")
end

-- ---- every output ----

function TestLabel.test_train()
    local report = os.tmpname()
    local text, rows = run("train.lua", JOB .. "max_target_length=256 steps=2 enable_checkpointing=false report_file="
        .. report)
    assert_labelled(text)
    lu.assertStrContains(text, "sim step")
    for line in text:match("\n%s*2/2.*$"):gmatch("[^\n]+") do -- the figures behind the last step
        lu.assertTrue((line:find("simulated") or line:find("2/2") or line:find("report")) ~= nil, line)
    end
    lu.assertStrMatches(text, ".*a step on such chips takes [%d.e-]+ to [%d.e-]+ s, as far as published rows unlike "
        .. "this job can tell.*")
    for _, row in ipairs(rows) do
        lu.assertTrue(row.simulated)
    end
    local summary = rows[#rows]
    lu.assertEquals(summary.simulation.rows_by_kind, { interpolation = 16, ["left-out"] = 8 })
    lu.assertFalse(summary.simulation.inside)
    lu.assertTrue(summary.step_time_range_s[1] < summary.step_time_s)
    lu.assertTrue(summary.step_time_range_s[2] > summary.step_time_s)
    local page = read(report)
    os.remove(report)
    lu.assertStrContains(page, "All figures of this run are simulated, not measured.")
    lu.assertStrContains(page, "range of a step on such chips")
end

function TestLabel.test_plan_and_search()
    local words = JOB .. "max_target_length=256"
    local text = run("plan.lua", words)
    lu.assertStrContains(text, "what a step takes (simulated)")
    lu.assertStrMatches(text, ".*a step +[%d.e-]+ s %([%d.e-]+ to [%d.e-]+ s%).*")
    assert_labelled(text)
    text = run("plan.lua", words .. " search=true candidates=3 top=1")
    lu.assertStrContains(text, "simulated tokens per second")
    lu.assertStrMatches(text, ".*range of the step.* [%d.e-]+ to [%d.e-]+\n.*")
    assert_labelled(text)
end

-- Rows of such chips have no experts: the label says so, and the range is wider than that of the same job without.
function TestLabel.test_a_job_with_experts()
    local job = "hardware=v5e-4 max_target_length=256 model_name="
    local text, rows = run("remat.lua", job .. "tiny-moe only=full repeats=1")
    local dense, others = run("remat.lua", job .. "tiny only=full repeats=1")
    local function longest(row)
        return row.seconds_range[2] / row.seconds
    end
    lu.assertStrContains(text, "this job has experts, theirs have none: on 6 published rows with experts")
    lu.assertNil(dense:find("this job has experts", 1, true))
    lu.assertTrue(longest(rows[1]) > longest(others[1]))
end

function TestLabel.test_remat()
    local text, rows = run("remat.lua", JOB .. "max_target_length=256 only=full repeats=1")
    assert_labelled(text)
    lu.assertStrContains(text, "remat_policy (simulated)")
    lu.assertTrue(rows[1].simulated)
    lu.assertTrue(rows[1].seconds_range[1] < rows[1].seconds and rows[1].seconds < rows[1].seconds_range[2])
end

function TestLabel.test_bench_of_published_rows()
    local text, rows = run("bench_llama2_7b.lua", "")
    lu.assertStrContains(text, "simulated, not measured. Constants: ")
    lu.assertNotNil(rows[1].simulation.constants)
end

function TestLabel.test_a_custom_script()
    local pipe = assert(io.popen(("'%s' --threads 1 -e 'require(\"mx\").config.load{\"hardware=v5e-4\", "
        .. "\"model_name=tiny\", \"max_target_length=256\"}' 2>&1"):format(program)))
    assert_labelled(pipe:read("a"))
    pipe:close()
end

function TestLabel.test_chips_of_which_nothing_was_predicted()
    local hardware = mx.sim.hardware("h200")
    lu.assertEquals(label.of(hardware).error, "no published row of H200 SXM was predicted: the error is unknown")
    lu.assertNil(label.of(hardware).rows)
    lu.assertNil(label.range("h200", {}, function() return 1 end))
    lu.assertEquals(label.of({ name = "host", description = "this host" }).constants, "measured on this machine")
end

-- ---- errors.yml ----

-- The file was made with the constants of today's hardware files, and with today's simulator.
function TestErrors.test_the_file_is_up_to_date()
    local all = mx.config.parse(mx.read_file(mx.root .. "configs/published/errors.yml"), "errors.yml")
    lu.assertEquals(errors.text(all), mx.read_file(mx.root .. "configs/published/errors.yml"))
    lu.assertEquals(mx.util.sorted_keys(all), mx.util.sorted_keys(mx.generations.FILES))
    for kind, entry in pairs(all) do
        lu.assertEquals(entry.constants, (mx.sim.constants.of(mx.sim.hardware(kind))), kind)
        local rows, again = mx.generations.rows(kind), nil
        lu.assertEquals(#entry.rows, #rows)
        for i, row in ipairs(rows) do
            again = again or not row.fitted and i or nil
        end
        local error = 100 * (mx.generations.simulate(rows[again]).ratio - 1)
        lu.assertAlmostEquals(entry.rows[again].error, error, 0.006, entry.rows[again].row)
    end
    lu.assertEquals(errors.summary("v5e").how.interpolation, 16)
    lu.assertEquals({ #all.v5p.experts, #all.v6e.experts, #all.v7x.experts }, { 1, 3, 2 })
    for i, row in ipairs(mx.repro.rows_with_experts()) do
        local result = mx.repro.simulate(row.published, row.cell, { limited = false })
        local entry = i == 1 and all.v5p.experts[1] or i < 5 and all.v6e.experts[i - 1] or all.v7x.experts[i - 4]
        local ratio = i < 5 and row.cell.tokens_per_s / result.tokens_per_s or result.step_s / row.cell.step_time_s
        lu.assertAlmostEquals(entry.error, 100 * (ratio - 1), 0.006, entry.row)
    end
end

function TestErrors.test_summary()
    errors.all = { test = { refits = {}, rows = {
        { error = 4, how = "unseen", length = 2048, head_dim = 64 },
        { error = -1, how = "left-out", length = 8192, head_dim = 128 },
    } } }
    local summary = errors.summary("test")
    local text = label.of({ name = "test", description = "T" }, { length = 4096, head_dim = 256 })
    errors.all = nil
    lu.assertEquals(summary, {
        count = 2, how = { unseen = 1, ["left-out"] = 1 }, mean = 2.5, largest = 4, length = { 2048, 8192 },
        head_dim = { 64, 128 },
    })
    lu.assertFalse(text.inside)
    lu.assertEquals(text.error, "test: simulated step times were 2.5 % off on average, at most 4.0 %, on 2 published "
        .. "rows: 1 not fitted, 1 left out of the fit in turn; this job's max_target_length 4096 lies inside theirs, "
        .. "2048 to 8192, this job's head_dim 256 lies outside theirs, 64 to 128")
end

-- ---- ranges ----

-- Steps of 10 s; 11 s with the refit; rows up to 4 % off. A step that is simulated 4 % too long takes 1 / 1.04 of it.
function TestRange.test_refits_and_errors()
    errors.all = { test = { refits = { { moved = "matrix_efficiency", rms = 1, matrix_efficiency = 0.9 } }, rows = {
        { error = 4, how = "unseen", length = 1, head_dim = 1 },
    } } }
    local function range(job)
        return label.range("test", job, function(constants)
            return constants and 9.9 / constants.matrix_efficiency or 10
        end)
    end
    local dense = range {}
    -- With experts the rows of models with experts count, too: up to 20 % too short, and 3 % too long.
    errors.all.other = { experts = { { error = -20 }, { error = 3 } } }
    local experts, count, least, largest = range { experts = true }, errors.with_experts()
    errors.all = nil
    lu.assertAlmostEquals(dense[1], 1 / 1.04, 1e-12)
    lu.assertAlmostEquals(dense[2], 1.1 / 0.96, 1e-12)
    lu.assertEquals({ count, least, largest }, { 2, -20, 3 })
    lu.assertAlmostEquals(experts[1], 1 / 1.04, 1e-12)
    lu.assertAlmostEquals(experts[2], 1.1 / 0.8, 1e-12)
end

-- A row that takes x / a + y / b, of constants a, fitted, and b, assumed. If b moves to an end of its range, a follows
-- until the row is as long as before, but for what its own range holds back.
function TestRange.test_an_assumed_constant_moves_the_fitted_one()
    local hardware = { constants = {
        matrix_efficiency = { 0.7, 0.35, 1.4, "fitted", "a row" },
        vector_flops = { 1e12, 0.9e12, 1.1e12, "assumed", "nothing" },
    } }
    local function seconds(a, b)
        return 0.7 / a * 7 + 1e12 / b * 3 -- 10 s
    end
    local refits = errors.refits(hardware, { "row" }, { 1 }, function(_, values)
        return { ratio = seconds(values.matrix_efficiency or 0.7, values.vector_flops or 1e12) / 10 }
    end)
    local of = {}
    for _, refit in ipairs(refits) do
        of[#of + 1] = refit.moved == "vector_flops" and refit or nil
    end
    lu.assertEquals({ #of, of[1].vector_flops, of[2].vector_flops }, { 2, 0.9e12, 1.1e12 })
    -- To first order: d ln a = -(3 / 7) d ln b, held back by (4 / ln 4)^2 against the row's 70^2.
    local held = 70 ^ 2 / (70 ^ 2 + (4 / math.log(4)) ^ 2)
    for _, refit in ipairs(of) do
        local expected = 0.7 * math.exp(-3 / 7 * math.log(refit.vector_flops / 1e12) * held)
        lu.assertAlmostEquals(refit.matrix_efficiency, expected, 0.002)
        lu.assertTrue(refit.rms < 0.25)
    end
end
