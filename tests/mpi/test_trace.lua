-- ranks: 2
-- Traces of several ranks: a file each, with every collective and the line of the script that made it.

local lu = require "luaunit"
local mx = require "mx"

TestTrace = {}

local function read_own(path)
    local own = mx.rank() == 0 and path or ("%s.%d"):format(path, mx.rank())
    local events = mx.io.json_decode(mx.io.read_file(own)).traceEvents
    os.remove(own)
    return events
end

local function jobs_of(events)
    local jobs = {}
    for _, e in ipairs(events) do
        lu.assertEquals(e.pid, mx.rank())
        jobs[#jobs + 1] = e.cat == "job" and e or nil
    end
    return jobs
end

function TestTrace.test_collectives()
    local path = mx.share_text(os.tmpname())
    local x = mx.full { shape = { 1000 }, value = mx.rank() }
    mx.barrier()
    mx.comm_stats(true)
    mx.trace_start(path)
    local line = debug.getinfo(1, "l").currentline + 1
    local y = mx.all_reduce(x, { async = true })
    local z = mx.all_gather(x, { dim = 1 })
    y:wait()
    mx.trace_stop()
    local calls = mx.comm_stats().calls
    local jobs = jobs_of(read_own(path))
    lu.assertEquals(#jobs, 2)
    lu.assertEquals(calls, 2)
    lu.assertEquals({ jobs[1].name, jobs[2].name }, { "all_reduce", "all_gather" })
    for i, job in ipairs(jobs) do
        lu.assertStrContains(job.args.line, ("test_trace.lua:%d"):format(line + i - 1))
        lu.assertEquals(job.args.dtype, "f32")
        lu.assertEquals(job.args.count, 1000)
        lu.assertTrue(job.args.bytes > 0)
        lu.assertEquals(job.args.axes, "all ranks")
        lu.assertTrue(i == 1 or job.ts >= jobs[i - 1].ts + jobs[i - 1].dur)
    end
    lu.assertEquals(z:size(1), 2000)
end

function TestTrace.test_training()
    local path = mx.share_text(os.tmpname())
    local config = mx.config.load { "model_name=tiny", "trace_file=" .. path, "report_file=" .. path .. ".html" }
    local mesh = mx.train.mesh(config)
    local model = mx.models.new(config, mesh)
    local data, optimizer = mx.data.open(config, mesh), mx.optim.new(config, model.params, model.parallel)
    local say = mx.metrics.say
    mx.metrics.say = function() end
    local report = mx.metrics.new { steps = 2, flops = 1, tokens = 1, params = 1, formula = config.flop_formula,
        period = 1, quiet = true, config = config }
    local calls
    for step = 1, 2 do
        local loss = mx.train.gradients(model, data, 1)
        local grad_norm = optimizer:step()
        calls = mx.comm_stats().calls
        report:step(step, { loss = loss, grad_norm = grad_norm, learning_rate = 0 })
    end
    report:finish()
    mx.metrics.say = say
    local jobs, kinds = jobs_of(read_own(path)), {}
    lu.assertTrue(#jobs >= calls and #jobs > 5, ("%d, %d"):format(#jobs, calls))
    for _, job in ipairs(jobs) do
        lu.assertStrContains(job.args.line, "test_trace.lua:")
        kinds[job.name] = true
    end
    lu.assertTrue(kinds.all_gather and kinds.reduce_scatter and kinds.all_reduce)
    mx.barrier()
    if mx.rank() == 0 then
        local page = mx.io.read_file(path .. ".html")
        os.remove(path .. ".html")
        lu.assertStrContains(page, "reduce_scatter")
        lu.assertStrContains(page, "exposed communication")
    end
end
