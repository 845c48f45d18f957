-- Traces: what is recorded of real and simulated runs, what the file says of it, and which steps are traced.

local lu = require "luaunit"
local mx = require "mx"

TestTrace = {}

local function read_trace(path)
    local text = mx.io.read_file(path)
    os.remove(path)
    return mx.io.json_decode(text).traceEvents
end

-- Names of the tracks by number; the events with a duration by track, in whole nanoseconds.
local function tracks_of(events)
    local names, tracks = {}, {}
    for _, e in ipairs(events) do
        if e.name == "thread_name" then
            names[e.tid] = e.args.name
        elseif e.ph == "X" then
            local start = math.floor(e.ts * 1000 + 0.5)
            tracks[e.tid] = tracks[e.tid] or {}
            table.insert(tracks[e.tid], { start = start, stop = start + math.floor(e.dur * 1000 + 0.5), event = e })
        end
    end
    return names, tracks
end

-- Each event begins after the one before it has ended, or lies in it.
local function assert_nested(list)
    local open = {}
    for i, e in ipairs(list) do
        lu.assertTrue(i == 1 or e.start >= list[i - 1].start)
        while #open > 0 and open[#open].stop <= e.start do
            open[#open] = nil
        end
        lu.assertTrue(#open == 0 or e.stop <= open[#open].stop, mx.io.json_encode(e.event))
        open[#open + 1] = e
    end
end

local function assert_apart(list)
    for i = 2, #list do
        lu.assertTrue(list[i].start >= list[i - 1].stop, mx.io.json_encode(list[i].event))
    end
end

-- Three steps on a simulated pod with a trace of the second; its events, and the chip's own count of that step.
local function simulated(path, ...)
    local config = mx.config.load { "model_name=16b", "hardware=v5e-256", "num_slices=2", "steps=3",
        "base_num_decoder_layers=2", "trace_file=" .. path, ... }
    local mesh = mx.train.mesh(config)
    local model = mx.models.new(config, mesh)
    local data, optimizer = mx.data.open(config, mesh), mx.optim.new(config, model.params, model.parallel)
    local report = mx.metrics.new { steps = 3, flops = 1, tokens = 1, params = 1, formula = config.flop_formula,
        period = 1, quiet = true, config = config }
    local times, seconds
    local say = mx.metrics.say
    mx.metrics.say = function() end
    for step = 1, 3 do
        local start = mx.now()
        mx.sim_times(true)
        local loss = mx.train.gradients(model, data, 1)
        local grad_norm = optimizer:step()
        if step == 2 then
            times, seconds = mx.sim_times(), mx.now() - start
        end
        report:step(step, { loss = loss, grad_norm = grad_norm, learning_rate = 0 })
    end
    mx.metrics.say = say
    mx.sim.stop()
    return read_trace(path), times, seconds
end

local function sum(list, accept)
    local total = 0
    for _, e in ipairs(list or {}) do
        total = total + (accept(e.event) and e.stop - e.start or 0)
    end
    return total / 1e9
end

local function is_job(event)
    return event.cat == "job"
end

-- Of operations and copies, without the waits inside them and without counting twice.
local function own_seconds(list)
    local total, operation_stop = 0, -1
    for _, e in ipairs(list) do
        local cat, inside = e.event.cat, e.stop <= operation_stop
        if cat == "operation" then
            total, operation_stop = total + e.stop - e.start, e.stop
        elseif cat == "wait" and inside then
            total = total - (e.stop - e.start)
        elseif cat == "copy" and not inside then
            total = total + e.stop - e.start
        end
    end
    return total / 1e9
end

-- Sums of whole nanoseconds: each event is off by one at most.
local function check_simulated(events, times, seconds)
    local names, tracks = tracks_of(events)
    local busy = {}
    for tid, list in pairs(tracks) do
        local track = names[tid]
        if track == "operations" then
            assert_nested(list)
            lu.assertEquals(list[1].event.name, "step 2")
            lu.assertAlmostEquals((list[1].stop - list[1].start) / 1e9, seconds, 1e-8)
            for _, e in ipairs(list) do
                lu.assertTrue(e.stop <= list[1].stop)
            end
            local off = #list * 1e-9
            lu.assertAlmostEquals(own_seconds(list), times.matrix_s + times.attention_s + times.memory_s, off)
            lu.assertAlmostEquals(sum(list, function(e) return e.cat == "wait" and e.args.on:find("in the slice") end),
                times.ici_s, off)
            lu.assertAlmostEquals(sum(list, function(e) return e.cat == "wait" and e.args.on:find("between") end),
                times.dcn_s, off)
            lu.assertAlmostEquals(sum(list, function(e) return e.cat == "wait" and e.args.on:find("host") end),
                times.host_s, off)
        else
            assert_apart(list)
            local kind = track:gsub(" %(%d+%)$", "")
            busy[kind] = (busy[kind] or 0) + sum(list, is_job)
            for _, e in ipairs(list) do
                lu.assertEquals(e.event.args.line == nil, kind == "transfers to the host")
            end
        end
    end
    lu.assertAlmostEquals(busy["transfers to the host"] or 0, times.host_busy_s, 1e-5)
    lu.assertAlmostEquals(busy["network in the slice"], times.ici_busy_s, 1e-5)
    lu.assertAlmostEquals(busy["network between slices"], times.dcn_busy_s, 1e-5)
    lu.assertTrue(times.ici_busy_s > 1e-3 and times.dcn_busy_s > 1e-3)
end

function TestTrace.test_simulated_steps_agree_with_the_chip()
    check_simulated(simulated(os.tmpname()))
end

-- Collectives of two axes go on side by side on different links of the torus.
function TestTrace.test_simulated_networks_side_by_side()
    check_simulated(simulated(os.tmpname(), "ici_fsdp_parallelism=16", "ici_tensor_sequence_parallelism=16"))
end

function TestTrace.test_simulated_offloading()
    local events, times, seconds = simulated(os.tmpname(), "remat_policy=custom", "decoder_layer_input=offload",
        "context=offload")
    lu.assertTrue(times.host_busy_s > 1e-3)
    check_simulated(events, times, seconds)
end

function TestTrace.test_operations_of_a_script()
    local path = os.tmpname()
    local a, b = mx.ones { 64, 32 }, mx.ones { 32, 16 }
    mx.trace_start(path)
    local start = mx.now()
    local kept
    do
        local step <close> = mx.step()
        kept = mx.matmul(a, b):keep()
        mx.fill(kept, { value = 2 })
    end
    mx.trace_span("mine", start, mx.now())
    local seen, seconds = mx.trace_events()
    mx.trace_stop()
    local names, tracks = tracks_of(read_trace(path))
    lu.assertEquals(names[1], "operations")
    assert_nested(tracks[1])
    local by_name = {}
    for _, e in ipairs(tracks[1]) do
        by_name[e.event.name] = e.event
    end
    lu.assertEquals(tracks[1][1].event.name, "mine")
    lu.assertEquals(by_name.matmul.args.inputs, "f32 (64, 32), f32 (32, 16)")
    lu.assertEquals(by_name.matmul.args.outputs, "f32 (64, 16)")
    lu.assertEquals(by_name.matmul.args.FLOPs, 2 * 64 * 32 * 16)
    lu.assertEquals(by_name.matmul.args.bytes, 4 * (64 * 32 + 32 * 16 + 64 * 16))
    lu.assertTrue(by_name.matmul.args["FLOP/s"] > 0)
    lu.assertEquals(by_name.fill.args.outputs, "f32 (64, 16)") -- in place: what it changes
    lu.assertEquals(#seen, 3)
    lu.assertEquals(seen[1].work, "product")
    lu.assertTrue(seconds >= seen[3].end_s)
    lu.assertEquals(seen[1].memory_bytes, mx.memory().in_use)
end

function TestTrace.test_memory_counter()
    local path = os.tmpname()
    mx.trace_start(path)
    local before = mx.memory().in_use
    local t = mx.full { shape = { 1000 }, value = 1 }
    local with = mx.memory().in_use
    mx.trace_stop()
    local values = {}
    for _, e in ipairs(read_trace(path)) do
        values[#values + 1] = e.ph == "C" and e.args.bytes or nil
    end
    lu.assertEquals(values, { before, with })
    lu.assertEquals(t:size(1), 1000)
end

function TestTrace.test_profiler_beside_it()
    mx.profile(true)
    mx.trace_start()
    mx.full { shape = { 10 }, value = 1 }
    mx.profile(false)
    mx.full { shape = { 10 }, value = 1 }
    lu.assertEquals(#mx.trace_events(), 2)
    mx.trace_stop()
    lu.assertEquals(mx.profile_report()[1].calls, 1)
    mx.full { shape = { 10 }, value = 1 }
    lu.assertEquals(#mx.trace_events(), 2)
end

function TestTrace.test_strings_are_escaped()
    local path = os.tmpname()
    mx.trace_start(path)
    local now = mx.now()
    mx.trace_span('a "quoted" \\ name\n\1 with \xff and \xc3\xa9', now, now)
    mx.trace_stop()
    local _, tracks = tracks_of(read_trace(path))
    lu.assertEquals(tracks[1][1].event.name, 'a "quoted" \\ name\n\1 with \u{FFFD} and é')
end

-- A program that sleeps takes no processor time, one that computes does.
function TestTrace.test_processor_time()
    local threads = mx.threads()
    mx.threads(1)
    lu.assertEquals(mx.clock(), "wall")
    lu.assertEquals(mx.clock("processor"), "processor")
    local start = mx.now()
    os.execute("sleep 0.3")
    lu.assertTrue(mx.now() - start < 0.15)
    start = mx.now()
    mx.profile(true)
    local x = mx.ones { 1 << 20 }
    for _ = 1, 20 do
        x = x:tanh()
    end
    mx.profile(false)
    local seconds = 0
    for _, row in ipairs(mx.profile_report()) do
        seconds = seconds + row.seconds
    end
    lu.assertTrue(seconds > 0 and seconds <= mx.now() - start)
    lu.assertErrorMsgContains("processor time is counted for one thread only, not for 2", mx.threads, 2)
    lu.assertErrorMsgContains("for one thread only, not for 2", mx.peak, { kind = "copy", threads = 2 })
    lu.assertEquals({ mx.threads(), mx.clock("wall") }, { 1, "wall" })
    mx.threads(2)
    lu.assertErrorMsgContains("for one thread only, not for 2", mx.clock, "processor")
    lu.assertErrorMsgContains("expected 'wall' or 'processor'", mx.clock, "sun")
    lu.assertEquals(mx.clock(), "wall")
    mx.threads(threads)
end

function TestTrace.test_what_is_refused()
    lu.assertErrorMsgContains("cannot write '/nowhere/trace.json'", mx.trace_start, "/nowhere/trace.json")
    lu.assertErrorMsgContains("it is a folder", mx.trace_start, "/tmp")
    mx.trace_start()
    lu.assertErrorMsgContains("being recorded already", mx.trace_start)
    mx.sim.start("v5e-8")
    lu.assertErrorMsgContains("simulation was started", mx.trace_events)
    lu.assertErrorMsgContains("simulation was started", mx.trace_stop)
    mx.sim.stop()
    mx.trace_stop() -- nothing is recorded any more: no error
    lu.assertErrorMsgContains("before the start", mx.trace_span, "step", 2, 1)
    for _, time in ipairs { 1e300, -1e10, 1 / 0, 0 / 0 } do
        lu.assertErrorMsgContains("a time of mx.now() is expected", mx.trace_span, "step", time, time)
    end
end

function TestTrace.test_file_that_can_no_longer_be_written()
    local folder = os.tmpname()
    os.remove(folder)
    mx.io.mkdir_p(folder)
    mx.trace_start(folder .. "/trace.json")
    os.remove(folder)
    lu.assertErrorMsgContains("cannot write '" .. folder, mx.trace_stop)
    mx.trace_start()
    mx.trace_stop()
    lu.assertErrorMsgContains("it is a pipe or device", mx.trace_start, "/dev/null")
end

local function new_metrics(steps, ...)
    local config = mx.config.load { "model_name=tiny", ... }
    return mx.metrics.new { steps = steps, flops = 1, tokens = 1, params = 1, formula = config.flop_formula, period = 1,
        quiet = true, config = config }
end

local function refusal(fn, ...)
    local good, reason = pcall(fn, ...)
    lu.assertFalse(good)
    lu.assertNil(tostring(reason):find("\n"))
    return tostring(reason)
end

function TestTrace.test_refused_before_the_first_step()
    for _, key in ipairs { "trace_file", "report_file" } do
        lu.assertStrContains(refusal(new_metrics, 3, key .. "=/nowhere/file"), "cannot write '/nowhere/file'")
        lu.assertStrContains(refusal(new_metrics, 3, key .. "=/tmp"), "cannot write '/tmp': it is a folder")
    end
    lu.assertStrContains(refusal(new_metrics, 1, "trace_file=/tmp/unused.json"),
        "skip_first_n_steps_for_profiler: 1 leaves none of the 1 step")
    lu.assertStrContains(refusal(mx.config.load, { "profiler_steps=2" }),
        "profiler_steps has no effect without trace_file or report_file")
    lu.assertFalse(mx.io.exists("/tmp/unused.json"))
end

-- The names of the spans that a run of `steps` steps leaves in its trace.
local function traced_steps(steps, ...)
    local path, say = os.tmpname(), mx.metrics.say
    mx.metrics.say = function() end
    local report = new_metrics(steps, "trace_file=" .. path, ...)
    for step = 1, steps do
        mx.full { shape = { 2 }, value = step }
        report:step(step, { loss = 1.0, grad_norm = 1.0, learning_rate = 0.1 })
    end
    mx.metrics.say = say
    local names, operations = {}, 0
    for _, e in ipairs(read_trace(path)) do
        names[#names + 1] = e.cat == "span" and e.name or nil
        operations = operations + (e.cat == "operation" and 1 or 0)
    end
    lu.assertEquals(operations, #names)
    return table.concat(names, ", ")
end

function TestTrace.test_which_steps()
    lu.assertEquals(traced_steps(4), "step 2")
    lu.assertEquals(traced_steps(4, "skip_first_n_steps_for_profiler=0", "profiler_steps=2"), "step 1, step 2")
    lu.assertEquals(traced_steps(4, "skip_first_n_steps_for_profiler=2", "profiler_steps=9"), "step 3, step 4")
end
