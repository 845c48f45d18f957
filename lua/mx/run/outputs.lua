--- Output files that the user names: checks that they may be replaced and that no two are the same file.
--
-- An existing file is replaced only if its content shows that mxlua wrote it, or if it is empty. A file of measurements
-- may also be a pipe, /dev/stdout, /dev/stderr or another device that is not a disk.

local mx = require "mx"
local util = require "mx.util"

local outputs = {}

local LAST_BYTES = 65536 -- bytes at the end of a file of measurements that are searched
local STREAMS = { "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2" } -- the same as in engine/io/log.c
local BEGINNING = 4096 -- bytes that must show what a file is, unless its first line is longer

-- ---- recognising mxlua's files ----

local function first_line(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read("l") or ""
end

local function beginning(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read(BEGINNING) or ""
end

-- Whether a file holds measurements: one JSON object per line, and the first says that mxlua wrote it. Older files have
-- at least the time of a step.
local function is_metrics(path)
    local good, row = pcall(mx.io.json_decode, first_line(path))
    return good and type(row) == "table" and (type(row.mxlua) == "string" or type(row.step_time_s) == "number")
end

local function is_parameters(path)
    local file <close> = mx.io.h5_open(path)
    local about = file:attributes()
    return about.config ~= nil and about.id == nil -- a rank's part of a checkpoint has an id
end

-- Kind of file -> test whether mxlua wrote it.
local KINDS = {
    metrics = { what = "measurements of mxlua", is_ours = is_metrics, streams = true },
    trace = {
        what = "a trace of mxlua",
        is_ours = function(path)
            return beginning(path):find('^{"displayTimeUnit":"ms","otherData":{"program":"mxlua"') ~= nil
        end,
    },
    report = {
        what = "a report of mxlua",
        is_ours = function(path)
            return beginning(path):find('<meta name="generator" content="mxlua"/>', 1, true) ~= nil
        end,
    },
    parameters = { what = "parameters that mxlua saved", is_ours = is_parameters },
    config = {
        what = "the config of a run",
        is_ours = function(path)
            return beginning(path):find("^run_name:[^\n]*\nbase_output_directory:") ~= nil
        end,
    },
}

--- Refuses a path that a file of this kind must not be written to. Not collective.
---@param path string
---@param kind string metrics, trace, report, parameters or config
---@param name string the user's name for it, for messages
function outputs.check(path, kind, name)
    local about, expected = util.attempt(mx.io.about, path), KINDS[kind]
    local is_stream = expected.streams and util.contains(STREAMS, path)
    if is_stream or about.kind == "nothing" or about.kind == "file" and about.bytes == 0 then
        return
    elseif about.kind ~= "file" then
        if not expected.streams or about.kind ~= "pipe" and about.kind ~= "device" then
            util.refuse("%s: cannot write '%s': it is a %s, not a file", name, path, about.kind)
        end
        return
    end
    local good, ours = pcall(expected.is_ours, path)
    if not (good and ours) then
        util.refuse("%s=%s: this file is there already and is not %s: choose another name, or remove it", name, path,
            expected.what)
    end
end

--- Refuses two names for the same file. Not collective.
---@param written {name: string, path: string}[] files to be written
---@param read? {name: string, path: string}[] files that are read, or that others write
function outputs.distinct(written, read)
    local seen = {}
    for _, one in ipairs(read or {}) do
        seen[util.attempt(mx.io.about, one.path).identity] = one
    end
    for _, one in ipairs(written) do
        local about = util.attempt(mx.io.about, one.path)
        local other = about.kind ~= "device" and about.kind ~= "pipe" and seen[about.identity]
        if other then
            util.refuse("%s=%s: that is the file of %s, too; give each its own", one.name, one.path, other.name)
        end
        seen[about.identity] = one
    end
end

-- ---- the files of a config ----

local function add(list, name, path)
    if path ~= "" then
        list[#list + 1] = { name = name, path = path }
    end
end

local function inputs_of(config)
    local list = {}
    for _, key in ipairs({ "tokenizer_path", "load_full_state_path", "load_parameters_path" }) do
        add(list, key, config[key])
    end
    for _, key in ipairs({ "dataset_path", "eval_dataset_path" }) do
        local found, files = pcall(require("mx.data.sources").files, config[key])
        for _, path in ipairs(found and files or {}) do -- opening the data says what is wrong
            add(list, key, path)
        end
    end
    for _, pair in ipairs(config.dataset_mix) do
        add(list, "dataset_mix", pair[1])
    end
    if mx.io.about("/dev/stdout").kind == "file" and config.metrics_file ~= "/dev/stdout" then
        add(list, "standard output", "/dev/stdout")
    end
    local words = rawget(_G, "arg") or {}
    add(list, "the script", words[0] or "")
    add(list, "the config file", words[1] and not words[1]:find("=") and words[1] or "")
    return list
end

--- Refuses metrics_file, trace_file and report_file that must not be written. Collective.
---@param config table
---@param own? {name: string, path: string}[] files that the run writes in any case
function outputs.check_config(config, own)
    mx.checkpoint.together(function()
        if mx.rank() > 0 then
            return
        end
        local list, others = {}, inputs_of(config)
        table.move(own or {}, 1, #(own or {}), #others + 1, others)
        add(list, "metrics_file", config.metrics_file)
        add(list, "trace_file", config.trace_file)
        add(list, "report_file", config.report_file)
        for _, one in ipairs(list) do
            outputs.check(one.path, one.name:match("^%a+"), one.name)
        end
        for rank = 1, config.trace_file ~= "" and not mx.is_simulated() and mx.ranks() - 1 or 0 do
            add(list, "trace_file", ("%s.%d"):format(config.trace_file, rank))
            outputs.check(list[#list].path, "trace", "trace_file")
        end
        outputs.distinct(list, others)
    end)
end

-- ---- measurements ----

---@class mx.MetricsFile
local MetricsFile = {}
MetricsFile.__index = MetricsFile

--- Opens a file of measurements: one JSON object per line. Not collective: one rank writes.
---@param path string
---@param o? {append: boolean, own: boolean} append: keep what an earlier part of the run has written; own: a file in
---       the run's folder, which is appended to
---@return mx.MetricsFile
function outputs.metrics(path, o)
    o = o or {}
    if not o.own then
        outputs.check(path, "metrics", "metrics_file")
    end
    local log = util.attempt(mx.io.open_log, path, { append = o.append or false, own = o.own or false })
    return setmetatable({ log = log, path = path }, MetricsFile)
end

--- Adds an object. Raises an error if it cannot be written.
---@param row table
function MetricsFile:row(row)
    if not self.begun then
        self.begun, row.mxlua = true, mx.version
    end
    util.attempt(self.log.line, self.log, mx.io.json_encode(row))
end

-- The objects near the end of a file of measurements.
local function last_rows(path)
    local file <close> = io.open(path, "rb")
    local rows = {}
    if file then
        file:seek("set", math.max(0, file:seek("end") - LAST_BYTES))
        for line in file:lines() do
            local good, row = pcall(mx.io.json_decode, line)
            rows[#rows + 1] = good and type(row) == "table" and row or nil
        end
    end
    return rows
end

--- The last summary in a file of measurements; nil if there is none near its end.
---@param path string
---@return table?
function outputs.last_summary(path)
    local last
    for _, row in ipairs(last_rows(path)) do
        last = row.summary == true and row or last
    end
    return last
end

--- The last step of which a file of measurements tells near its end; 0 if there is none.
---@param path string
---@return integer
function outputs.last_step(path)
    local last = 0
    for _, row in ipairs(last_rows(path)) do
        last = math.max(last, math.tointeger(row.step) or 0)
    end
    return last
end

function MetricsFile:close()
    util.attempt(self.log.close, self.log)
end

-- ---- optional outputs ----

--- Calls fn. If it fails, warns on stderr and continues. Not collective.
---@param what string what cannot be done, for the warning
---@param fn function
---@return boolean good
function outputs.beside(what, fn, ...)
    local good, reason = pcall(fn, ...)
    if not good then
        io.stderr:write(("mxlua: warning: %s; the run goes on without it: %s\n"):format(what,
            (tostring(reason):gsub("^[^%s:]+:%d+: ", ""))))
    end
    return good
end

return outputs
