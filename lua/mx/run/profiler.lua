--- Which steps of a run are recorded: config keys to mx.trace_start and mx.trace_stop at the ends of steps.

local mx = require "mx"
local util = require "mx.util"

local profiler = {}

---@class mx.Profiler
---@field events table[]? of mx.trace_events, once the steps that are recorded have ended; on rank 0, for a report
local Profiler = {}
Profiler.__index = Profiler

local function check_path(config, key)
    if config[key] ~= "" then
        local path = mx.rank() > 0 and ("%s.%d"):format(config[key], mx.rank()) or config[key]
        util.attempt(mx.io.check_writable, path)
    end
end

--- nil when the config asks for neither a trace nor a report. What they could not be written to is refused now.
---@param config table
---@param steps integer that the run takes
---@param done? integer steps before those, of an earlier run
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

-- A trace that cannot be written is no reason to lose a run.
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

--- To be called after each step, and before the first with the number before it.
---@param step integer that has ended
---@param start_s? number of mx.now() when it began
function Profiler:ended(step, start_s)
    if step >= self.first and step <= self.last then
        mx.trace_span(("step %d"):format(step), start_s, mx.now())
    end
    if step == self.last then
        self:stop()
    elseif step == self.first - 1 then
        mx.trace_start(self.config.trace_file ~= "" and self.config.trace_file or nil)
    end
end

return profiler
