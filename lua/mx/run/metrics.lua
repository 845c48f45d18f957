--- Reports a run: a progress line per step, JSON lines in metrics_file, and a summary. Rank 0 prints and writes.

local mx = require "mx"
local util = require "mx.util"

local metrics = {}

local WARMUP = 2 -- default number of steps that the summary leaves out, if at least one remains
local NOTABLE_WAIT = 0.05 -- share of a step above which waiting for data is shown in its line
local SLOW_S = 5 -- seconds after which a first step that still runs is announced
local HEADER = "     step  seconds  TFLOP/s   MFU %  tokens/s     loss  grad norm  remaining"
-- "exposed": seconds in which a rank waited for communication or ran it on the script's thread.
local HEADER_RANKS = "    step seconds exposed TFLOP/s  MFU % tokens/s     loss grad norm remaining"
local PLOT_HEADER, PLOT_WIDTH = "  loss so far", 24

---@class mx.Metrics
local Metrics = {}
Metrics.__index = Metrics

--- The peak to which an MFU refers: the multiply-add rate of this machine with each rank's threads, measured now on all
--- ranks at once. On tiles `product` is beside it, the rate of products whose operands are in the caches: tiles are so
--- fast that even those stay far from the peak. Collective.
---@param dtype string dtype of the model's computation
---@return {value: number, source: string, product: number?}? nil if it is unknown
function metrics.measured_peak(dtype)
    if mx.is_simulated() then
        return mx.sim.peak(dtype)
    end
    mx.barrier()
    local peak = mx.peak { kind = "fma", dtype = dtype, threads = mx.threads() }
    if mx.isa() == "amx" and dtype == "bf16" then
        peak.product = mx.peak { kind = "product", dtype = dtype, threads = mx.threads() }.value
    end
    return peak
end

local log -- a log to which rank 0 also writes what it prints

--- Prints a line on rank 0 without delay.
---@param format string
function metrics.say(format, ...)
    if mx.rank() == 0 then
        local text = format:format(...)
        io.write(text, "\n")
        io.flush()
        if log and not mx.outputs.beside("log.txt cannot be written", log.line, log, text) then
            log = nil
        end
    end
end

--- Prints a sentence: as metrics.say, but at a terminal in lines of 80 columns.
---@param format string
function metrics.tell(format, ...)
    metrics.say("%s", mx.wrap(format:format(...)))
end

--- From now on metrics.say also writes to this log; nil ends that.
---@param to? any of mx.io.open_log
function metrics.log_to(to)
    if log then
        log:close()
    end
    log = to
end

--- Shows the progress of a long task every two seconds, on rank 0: call the result with the amount done.
---@param what string
---@param total integer
---@return fun(done: integer, more: string?)
function metrics.progress(what, total)
    local last = mx.now()
    return function(done, more)
        if mx.now() - last >= 2 and done < total then
            last = mx.now()
            metrics.say("%s: %d of %d (%.0f %%)%s", what, done, total, 100 * done / total, more and ", " .. more or "")
        end
    end
end

local function nothing() end

-- The end of a step's line if it waited for data; empty if the wait was short.
local function wait_text(wait_s, seconds)
    local notable = wait_s and wait_s > NOTABLE_WAIT * seconds
    return notable and ("  input wait %.3g s"):format(wait_s) or ""
end

-- The end of a step's line of a model with experts, multi-token prediction or qk-clip.
local function figures_text(figures)
    local load, dropped, further = figures.largest_expert_load, figures.dropped_share, figures.mtp_loss
    local logit = figures.max_logit
    return (load and ("  load %.2f"):format(load) or "")
        .. (dropped and (" dropped %.1f %%"):format(100 * dropped) or "")
        .. (further and ("  mtp %.4f"):format(further) or "") .. (logit and ("  logit %.3g"):format(logit) or "")
end

local function per_second(rate)
    return rate < 100 and ("%.3g"):format(rate) or util.thousands(rate)
end

-- The heads of the columns of steps, which say if these are simulated.
local function header()
    local text = mx.ranks() > 1 and HEADER_RANKS or HEADER
    return mx.is_simulated() and text:gsub("^%s*step", function(head)
        return ("%" .. #head .. "s"):format("sim step")
    end) or text
end

--- Starts reporting a run.
---@param o table steps, flops (model FLOPs of a step on this rank; nil: unknown, so no rates), tokens (of a step on
---        this rank), params, formula, done (number of steps before this process started; numbering continues), peak
---        (of metrics.measured_peak, or nil), dtype (of that peak), quantization (the config key), file ("": none),
---        run_file (a second file, appended to), period (steps between lines), plot (lines end with a sparkline of the
---        loss), quiet (print nothing), warmup (steps that the summary
---        leaves out), extra (fields for the summary), config (its trace_file and report_file are written; nil:
---        neither), beside (further columns of figures for the report: mx.report.run), goodput (mx.Goodput of the run,
---        for the summary), paced (the caller calls begin() at the start of each step; otherwise a step begins where
---        the one before has ended), pipeline (collective; draws the passes of the last step, for the report)
---@return mx.Metrics
function metrics.new(o)
    local say = o.quiet and nothing or metrics.say
    local self = setmetatable({
        o = o, say = say, times = {}, exposed = {}, rows = {}, losses = {}, reported = 0, started = mx.now(),
    }, Metrics)
    self.done = o.done or 0
    if o.config then
        mx.outputs.check_config(o.config)
    end
    if o.config and o.steps > self.done then
        self.profiler = mx.profiler.new(o.config, o.steps - self.done, self.done)
    end
    self.reports = self.profiler ~= nil and o.config.report_file ~= ""
    self.logs = {}
    if mx.rank() == 0 then
        if o.file and o.file ~= "" then
            self.logs[1] = mx.outputs.metrics(o.file, { append = self.done > 0 })
        end
        if o.run_file then
            self.logs[#self.logs + 1] = mx.outputs.metrics(o.run_file, { own = true })
        end
    end
    say("each of %d rank%s: %s parameters%s", mx.ranks(), mx.ranks() == 1 and "" or "s", util.thousands(o.params),
        o.flops and ("; a step is %.4g TFLOP (%s)"):format(o.flops / 1e12, o.formula) or "")
    if o.peak then
        local product = o.peak.product
        say("peak %.4g TFLOP/s, %s%s%s", o.peak.value / 1e12, o.peak.source,
            product and ("; products of operands in the caches reach %.4g"):format(product / 1e12) or "",
            (o.quantization or "") == "" and ""
            or ("; MFU is relative to this peak of bf16, whatever quantization=%s can reach"):format(o.quantization))
    elseif o.flops then
        say("peak unknown, so no MFU")
    end
    self.simulation = mx.is_simulated() and mx.sim.label.of(mx.sim.now, mx.sim.now.job) or nil
    say("%s%s", header(), o.plot and PLOT_HEADER or "")
    if not o.paced then
        self:begin()
    end
    return self
end

-- Says after SLOW_S seconds of the first step how long such a step takes at least. The time is looked at between
-- operations, by a hook that ends with the step.
local function watch_first_step(self)
    local o, started = self.o, mx.now()
    debug.sethook(function()
        if mx.now() - started < SLOW_S then
            return
        end
        debug.sethook()
        self.say("step %d is running: it has %.4g TFLOP for each rank%s", self.done + 1, o.flops / 1e12, o.peak
            and (", at least %s at the peak of %.4g TFLOP/s"):format(util.duration(o.flops / o.peak.value),
            o.peak.value / 1e12) or "")
    end, "", 100)
end

--- A step begins now.
function Metrics:begin()
    if self.reported == 0 and mx.rank() == 0 and self.o.flops and not (self.o.quiet or mx.is_simulated()) then
        watch_first_step(self)
    end
    if self.profiler then
        self.profiler:begins(self.done + self.reported + 1)
    end
    mx.comm_stats(true)
    self.mark = mx.now()
end

-- MFU relative to the peak. If the rate exceeds the peak, something else may have used the machine while the peak was
-- measured, so the peak is measured once more before that counts as an error.
local function mfu(o, rate)
    local quantized = (o.quantization or "") ~= ""
    if o.peak and rate > o.peak.value and not quantized then
        local again = mx.peak { kind = "fma", dtype = o.dtype, threads = mx.threads() }
        again.product = o.peak.product
        o.peak = again.value > o.peak.value and again or o.peak
    end
    return o.peak and mx.flops.mfu(rate, o.peak.value, o.formula, o.quantization) or nil
end

-- Rates of a step that took `seconds`.
function Metrics:rates(seconds)
    local o = self.o
    if not o.flops then
        return { step_time_s = seconds }
    end
    local rate = o.flops / seconds
    return {
        step_time_s = seconds,
        tflops_per_device = rate / 1e12,
        mfu = mfu(o, rate),
        tokens_per_s_per_device = o.tokens / seconds,
    }
end

-- Writes a row as a line of JSON to every log; it says if it is simulated. A log that cannot be written, for instance
-- on a full disk, is given up.
function Metrics:write(row)
    row.simulated = mx.is_simulated() or nil
    for i = #self.logs, 1, -1 do
        local file = self.logs[i]
        if not mx.outputs.beside("measurements cannot be written", file.row, file, row) then
            table.remove(self.logs, i)
        end
    end
end

-- A number in a step's line: NaN without a sign, and a dash if tensors have no values.
local function number_text(format, x)
    return x == x and format:format(x) or mx.is_simulated() and "-" or "nan"
end

-- nil for NaN and infinities, which JSON does not have.
local function finite(x)
    return x and x - x == 0 and x or nil
end

--- Number of reported steps.
---@return integer
function Metrics:count()
    return self.reported
end

--- Reports a step that has just ended.
---@param step integer
---@param values {loss: number?, grad_norm: number?, learning_rate: number, skipped: string?, input_wait_s: number?,
---       figures: table?} loss nil: the step had no target; skipped: why the step changed nothing; input_wait_s:
---       seconds that this rank waited for data; nil: unknown; figures: of Decoder:figures
function Metrics:step(step, values)
    local now = mx.now()
    local seconds = now - self.mark
    debug.sethook()
    -- A step without a target computes nothing: it has no rates and does not count in medians.
    self.times[#self.times + 1] = values.loss and seconds or nil
    self.reported = self.reported + 1
    self.losses[#self.losses + 1] = values.loss
    local row, communication = values.loss and self:rates(seconds) or { step_time_s = seconds }, mx.comm_stats(true)
    if mx.ranks() > 1 then
        row.exposed_communication_s, row.communication_s = communication.exposed_s, communication.busy_s
        row.bytes_sent = communication.bytes
        self.exposed[#self.exposed + 1] = values.loss and communication.exposed_s or nil
    end
    if step % self.o.period == 0 or step == 1 or step == self.o.steps then
        local time = #self.times > 0 and util.quantile(self.times, 0.5) or seconds
        local left = util.duration(time * (self.o.steps - step))
        local place, mfu_text = ("%d/%d"):format(step, self.o.steps), row.mfu and ("%.1f"):format(row.mfu) or "-"
        local rate = row.tflops_per_device and ("%.4g"):format(row.tflops_per_device) or "-"
        local tokens = row.tokens_per_s_per_device and per_second(row.tokens_per_s_per_device) or "-"
        local wait = wait_text(values.input_wait_s, seconds)
        local loss = values.loss and number_text("%.4f", values.loss) or "none"
        local norm = number_text("%.4g", values.grad_norm or 0 / 0)
        wait = figures_text(values.figures or {})
            .. (self.o.plot and "  " .. mx.sparkline(self.losses, PLOT_WIDTH) or "") .. wait
        if mx.ranks() > 1 then
            self.say("%8s %7.4g %7.3g %7s %6s %8s %8s %9s %9s%s", place, seconds, communication.exposed_s, rate,
                mfu_text, tokens, loss, norm, left, wait)
        else
            self.say("%9s %8.4g %8s  %6s %9s %8s %10s %10s%s", place, seconds, rate, mfu_text, tokens, loss, norm,
                left, wait)
        end
    end
    row.step, row.loss, row.grad_norm = step, finite(values.loss), finite(values.grad_norm)
    row.learning_rate, row.skipped, row.input_wait_s = values.learning_rate, values.skipped, values.input_wait_s
    self.figures = values.figures or {}
    for name, figure in pairs(self.figures) do
        row[name] = finite(figure)
    end
    row.goodput = self.o.goodput and self.o.goodput:figures().goodput
    self.last = row
    self.rows[#self.rows + 1] = self.reports and row or nil
    self:write(row)
    if self.profiler then
        self.profiler:ended(step, self.mark)
    end
    if not self.o.paced then
        self:begin()
    end
end

--- Reports an evaluation after a step.
---@param step integer
---@param loss number mean over the targets
---@param targets number
---@param seconds number
---@param accepted? number per cent of the predictions of a module of multi-token prediction
function Metrics:evaluated(step, loss, targets, seconds, accepted)
    local count = targets == targets and util.thousands(targets) or "-"
    self.say("step %d: evaluation loss %s, perplexity %s, %s targets in %s%s", step, number_text("%.4f", loss),
        number_text("%.4g", math.exp(loss)), count, util.duration(seconds),
        accepted and (", accepted ahead %.1f %%"):format(accepted) or "")
    self.last.eval_loss = finite(loss)
    self.eval_loss = finite(loss)
    self:write {
        step = step, eval_loss = finite(loss), eval_perplexity = finite(math.exp(loss)), eval_targets = targets,
        eval_time_s = seconds, eval_mtp_acceptance_rate_percent = accepted,
    }
end


--- Ends the report: writes the summary, with medians over the steps after warm-up, to metrics_file and returns it; nil
--- if there was no step. Collective.
---@return table?
function Metrics:finish()
    local o, n = self.o, #self.times
    if n == 0 then
        return nil
    end
    local timed = table.move(self.times, math.min(o.warmup or WARMUP, n - 1) + 1, n, 1, {})
    local median = util.quantile(timed, 0.5)
    local summary = self:rates(median)
    summary.summary, summary.step, summary.loss = true, self.last.step, self.last.loss
    summary.eval_loss = self.eval_loss
    for name, figure in pairs(self.figures or {}) do
        summary[name] = finite(figure)
    end
    summary.peak_tflops = o.peak and o.peak.value / 1e12 or nil
    summary.peak_source = o.peak and o.peak.source or nil
    summary.flop_formula = o.formula
    summary.params = o.params
    summary.ranks = mx.ranks()
    if mx.ranks() > 1 then
        local exposed = table.move(self.exposed, n - #timed + 1, n, 1, {})
        summary.exposed_communication_s = util.quantile(exposed, 0.5)
        self.say("%sexposed communication %.3g s a step, %.1f %% of it", self.simulation and "simulated: " or "",
            summary.exposed_communication_s, 100 * summary.exposed_communication_s / median)
    end
    summary.threads = mx.threads()
    summary.timed_steps = #timed
    summary.step_time_p10_s, summary.step_time_p90_s = util.quantile(timed, 0.1), util.quantile(timed, 0.9)
    local pipeline = mx.is_simulated() and mx.sim.now.pipeline -- of all stages; this chip has the first
    summary.peak_memory_bytes = math.max(mx.memory().peak, table.unpack(pipeline and pipeline.peaks or {}))
    for key, value in pairs(o.extra or {}) do
        summary[key] = value
    end
    local range, simulated = nil, self.simulation and "simulated: " or ""
    if self.simulation then
        summary.simulation, range = self.simulation, mx.sim.now.range
        summary.step_time_range_s = range and { median * range[1], median * range[2] } or nil
    end
    local share = summary.mfu and (", MFU %.1f %% (%s)"):format(summary.mfu, o.formula) or ""
    if summary.mfu and o.peak.product then
        summary.product_tflops = o.peak.product / 1e12
        share = ("%s, %.1f %% of products in the caches"):format(share, summary.mfu * o.peak.value / o.peak.product)
    end
    self.say("%smedian of %d step%s after warm-up: %.4g s (10 %% to 90 %%: %.4g to %.4g)", simulated, #timed,
        #timed == 1 and "" or "s", median, summary.step_time_p10_s, summary.step_time_p90_s)
    if self.simulation then
        self.say("simulated: %s", range and ("a step on such chips takes %.4g to %.4g s%s"):format(median * range[1],
            median * range[2], self.simulation.inside and "" or ", as far as published rows unlike this job can tell")
            or "no published row says how far a step on such chips may be from this")
    end
    if o.flops then
        self.say("%s%.4g TFLOP/s/device%s, %s tokens/s/device", simulated, summary.tflops_per_device, share,
            per_second(summary.tokens_per_s_per_device))
    end
    self.say(simulated .. "peak memory of a rank %s; whole run %s", util.bytes(summary.peak_memory_bytes),
        util.duration(mx.now() - self.started))
    if o.goodput then
        for name, figure in pairs(o.goodput:figures()) do
            summary[name] = figure
        end
        self.say(simulated .. "goodput %.1f %% of %s; the rest: %s", summary.goodput,
            util.duration(summary.wall_time_s), mx.goodput.text(summary.badput))
    end
    self:write(summary)
    for _, file in ipairs(self.logs) do
        mx.outputs.beside("measurements cannot be written", file.close, file)
    end
    if self.reports then
        mx.report.write_run(o, self.rows, summary, self.profiler)
    end
    return summary
end

return metrics
