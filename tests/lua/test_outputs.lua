-- Files that a user names: what may be replaced, paths as a shell takes them, and files that cannot be written.
local mx = require "mx"
local lu = require "luaunit"

local folder

local function write(name, text)
    local file <close> = assert(io.open(folder .. "/" .. name, "wb"))
    file:write(text)
    return folder .. "/" .. name
end

local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read("a")
end

local function refused(pattern, fn, ...)
    local good, message = pcall(fn, ...)
    lu.assertFalse(good, pattern)
    lu.assertStrContains(tostring(message), pattern)
    lu.assertNil(tostring(message):find("\n"))
end

TestOutputs = {}

function TestOutputs.setUp()
    folder = os.tmpname()
    os.remove(folder)
    mx.io.mkdir_p(folder)
end

function TestOutputs.tearDown()
    mx.io.remove_folder(folder)
end

-- ---- whose file it is ----

function TestOutputs.test_files_of_others_are_not_replaced()
    local parameters = {}
    mx.nn.parameter(parameters, "w", { 3 }, { value = 1 })
    local ours = {
        metrics = folder .. "/m", parameters = folder .. "/p", trace = folder .. "/t", report = folder .. "/r",
    }
    local log = mx.outputs.metrics(ours.metrics)
    log:row { step = 1 }
    log:close()
    mx.nn.save(parameters, ours.parameters, { config = "run_name: a\n" })
    mx.trace_start(ours.trace)
    mx.trace_stop()
    write("r", require("mx.report.page").document("title", {}))
    local others = {
        write("text", "Dear diary,\n"), write("lines", '{"text": "a document"}\n'),
        write("html", "<!DOCTYPE html><p>hi"),
        write("json", '{"displayTimeUnit":"ms","traceEvents":[]}'), write("nul", ("\0"):rep(100)),
    }
    local part = folder .. "/part"
    mx.io.h5_write(part, parameters, { id = "1", rank = 0 }) -- a rank's part of a checkpoint
    for _, kind in ipairs { "metrics", "parameters", "trace", "report" } do
        for name, path in pairs(ours) do
            if name == kind then
                mx.outputs.check(path, kind, "name")
            else
                refused("this file is there already", mx.outputs.check, path, kind, "name")
            end
        end
        for _, path in ipairs(others) do
            refused("this file is there already", mx.outputs.check, path, kind, "name")
        end
        refused("this file is there already", mx.outputs.check, part, kind, "name")
        refused("it is a folder", mx.outputs.check, folder, kind, "name")
        mx.outputs.check(write("empty", ""), kind, "name")
        mx.outputs.check(folder .. "/nothing", kind, "name")
    end
    refused("it is a device", mx.outputs.check, "/dev/null", "report", "report_file")
    mx.outputs.check("/dev/null", "metrics", "metrics_file")
end

-- A rename over a device would put a file in its place.
function TestOutputs.test_devices_are_never_replaced()
    os.execute("mkfifo " .. folder .. "/pipe")
    for _, path in ipairs { folder .. "/pipe", "/dev/null", folder } do
        refused(path == folder and "it is a folder" or "it is a pipe or device", mx.io.write_file_atomic, path, "x")
    end
    refused("nobody reads this pipe", mx.outputs.metrics, folder .. "/pipe")
end

function TestOutputs.test_one_file_has_one_use()
    local a = write("a", "")
    os.execute(("ln -s a %s/link; ln %s/a %s/hard"):format(folder, folder, folder))
    local function one(name, path)
        return { name = name, path = path }
    end
    for _, other in ipairs { a, folder .. "/./a", folder .. "/link", folder .. "/hard" } do
        refused("that is the file of report_file, too", mx.outputs.distinct,
            { one("report_file", a), one("trace_file", other) })
        refused("that is the file of dataset_path, too", mx.outputs.distinct, { one("trace_file", other) },
            { one("dataset_path", a) })
    end
    refused("that is the file of x, too", mx.outputs.distinct,
        { one("x", folder .. "/new"), one("y", folder .. "/../" .. folder:match("[^/]+$") .. "/new") })
    mx.outputs.distinct({ one("x", folder .. "/new"), one("y", folder .. "/other") }, { one("z", a) })
    mx.outputs.distinct { one("x", "/dev/null"), one("y", "/dev/null") }
end

function TestOutputs.test_a_config_whose_outputs_are_wrong_is_refused_before_anything_is_written()
    local function claim(...)
        return mx.run.claim(mx.config.load { "model_name=tiny", "base_output_directory=" .. folder, "run_name=a", ... })
    end
    local text = write("text", "mine\n")
    refused("is not measurements of mxlua", claim, "metrics_file=" .. text)
    refused("is not a trace of mxlua", claim, "trace_file=" .. text)
    refused("is not a report of mxlua", claim, "report_file=" .. text)
    refused("that is the file of the run's log.txt, too", claim, "metrics_file=" .. folder .. "/a/log.txt")
    refused("that is the file of the run's parameters.h5, too", claim,
        "trace_file=" .. folder .. "/a/../a/parameters.h5")
    refused("that is the file of metrics_file, too", claim, "metrics_file=" .. folder .. "/x",
        "report_file=" .. folder .. "/x")
    -- A run without a folder, on a simulated chip for instance, finds out when it opens its measurements.
    local config = mx.config.load { "model_name=tiny", "enable_checkpointing=false", "trace_file=" .. text }
    refused("is not a trace of mxlua", mx.metrics.new, { steps = 3, flops = 1, tokens = 1, params = 1, formula = "f",
        file = "", period = 1, quiet = true, config = config })
    lu.assertEquals(read(text), "mine\n")
    lu.assertFalse(mx.io.exists(folder .. "/a/config.yml"))
end

-- ---- lines that cannot be written ----

function TestOutputs.test_a_line_is_whole_or_not_there()
    local path = folder .. "/m"
    local script = write("full.lua", [[
        local mx = require "mx"
        local log = mx.outputs.metrics(arg[1])
        for i = 1, 5 do
            local good = pcall(log.row, log, { step = i, text = ("x"):rep(1500) })
            print(good)
        end
    ]])
    local program = io.open("/proc/self/cmdline"):read("a"):match("^[^\0]+")
    local pipe = io.popen(("trap '' XFSZ; ulimit -f 8; '%s' --threads 1 '%s' '%s' 2>&1"):format(program, script, path))
    local said = pipe:read("a")
    pipe:close()
    lu.assertStrMatches(said, "true\n[true\n]*false\n[false\n]*") -- a shell counts in 512 or 1024 bytes
    local rows = 0
    for line in io.lines(path) do
        lu.assertEquals(#mx.io.json_decode(line).text, 1500)
        rows = rows + 1
    end
    lu.assertEquals(rows, select(2, said:gsub("true", "")))
end

-- ---- paths ----

function TestOutputs.test_paths_are_taken_as_a_shell_does()
    local home = os.getenv("HOME")
    lu.skipIf(not home, "HOME is not set")
    local function load(...)
        return mx.config.load { "model_name=tiny", ... }
    end
    lu.assertEquals(load("base_output_directory=").base_output_directory, "checkpoints")
    lu.assertEquals(load("base_output_directory=~/x").base_output_directory, home .. "/x")
    lu.assertEquals(load("metrics_file=~/m", "trace_file=~").trace_file, home)
    lu.assertEquals(load("dataset_type=hdf5", "dataset_mix=[[~/a.h5, 0.7], [b.h5, 0.3]]").dataset_mix,
        { { home .. "/a.h5", 0.7 }, { "b.h5", 0.3 } })
    lu.assertEquals(load("metrics_file=./~/m").metrics_file, "./~/m")
    lu.assertEquals(load("metrics_file=gs:").metrics_file, "gs:")
    lu.assertEquals(load("run_name=sweep/lr-3e-4.b").run_name, "sweep/lr-3e-4.b")
    for _, word in ipairs { "base_output_directory=gs://bucket/x", "metrics_file=s3://x", "trace_file=http://x/y",
        "report_file=https://x", "load_parameters_path=hf://x", "load_full_state_path=file:///x",
        "dataset_path=S3://x", "tokenizer_path=gcs://x", "offload_directory=abfs://x" } do
        refused("is an address of " .. word:match("=(%w+://)"), load, word)
    end
    refused("write the home folder of someone in full", load, "base_output_directory=~someone/x")
    for _, name in ipairs { "..", ".", "../x", "a/../b", "/etc", "a//b", "a/" } do
        refused("expected a name such as", load, "run_name=" .. name)
    end
    local options = { out = "", input = {}, note = "" }
    local o = mx.config.options({ "out=~/o.h5", "input=~/a,b", "note=~/c" }, options, {})
    lu.assertEquals({ o.out, o.input, o.note }, { home .. "/o.h5", { home .. "/a", "b" }, "~/c" })
    refused("gs://", mx.config.options, { "input=a,gs://b" }, options, {})
end
