--- Records the steps of a run that the config selects, with mx.trace_start and mx.trace_stop between steps.

local mx = require "mx"
local util = require "mx.util"

local profiler = {}

---@class mx.Profiler
---@field events table[]? of mx.trace_events, when the recorded steps have ended; on rank 0, for a report
local Profiler = {}
Profiler.__index = Profiler

local function check_path(config, key)
    if config[key] ~= "" then
        local path = mx.rank() > 0 and ("%s.%d"):format(config[key], mx.rank()) or config[key]
        util.attempt(mx.io.check_writable, path)
    end
end

--- Creates a profiler; nil if the config has neither trace_file nor report_file. Paths that cannot be written are
--- refused now.
---@param config table
---@param steps integer number of steps of this process
---@param done? integer number of earlier steps
---@return mx.Profiler?
function profiler.new(config, steps, done)
    if config.trace_file == "" and config.report_file == "" then
        return nil
    end
    check_path(config, "trace_file")
    if mx.rank() == 0 then
        check_path(config, "report_file")
    end
    local skip = config.skip_first_n_steps_for_profiler
    if skip >= steps then
        mx.config.refuse(config, "skip_first_n_steps_for_profiler", "%d leaves none of the %d step%s to be recorded; "
            .. "set it to %d, or take more steps", skip, steps, steps == 1 and "" or "s", steps - 1)
    end
    local last = math.min(steps, skip + config.profiler_steps)
    done = done or 0
    return setmetatable({ config = config, first = done + skip + 1, last = done + last }, Profiler)
end

-- Stops recording and writes the trace. If that fails, warns and continues.
function Profiler:stop()
    local file = self.config.trace_file
    if self.config.report_file ~= "" and mx.rank() == 0 then
        local good, events = pcall(mx.trace_events)
        self.events = good and events or nil
    end
    local good, reason = pcall(mx.trace_stop)
    if not good then
        io.stderr:write(("rank %d: no trace was written, the run goes on: %s\n"):format(mx.rank(),
            tostring(reason):gsub("^[^%s:]+:%d+: ", "")))
    elseif file ~= "" then
        mx.metrics.say("trace of step%s written to %s%s", self.first == self.last and " " .. self.first
            or ("s %d to %d"):format(self.first, self.last), file,
            mx.ranks() > 1 and not mx.is_simulated() and (" (rank r: %s.r)"):format(file) or "")
    end
end

--- To be called before each step.
---@param step integer
function Profiler:begins(step)
    if step == self.first then
        mx.trace_start(self.config.trace_file ~= "" and self.config.trace_file or nil)
    end
end

--- To be called after each step.
---@param step integer
---@param start_s number mx.now() when it began
function Profiler:ended(step, start_s)
    if step >= self.first and step <= self.last then
        mx.trace_span(("step %d"):format(step), start_s, mx.now())
    end
    if step == self.last then
        self:stop()
    end
end

return profiler
