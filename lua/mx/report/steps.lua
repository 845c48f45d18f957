--- Analyses the recorded events of a run's steps: time by part, memory, and rates of operations.

local steps = {}

local FAMILIES = {
    { "matrix products", "^matmul", "^grouped_matmul" },
    { "attention", "^attention", "^rope$" },
    { "norms and activations", "^rmsnorm", "^layernorm", "^softmax", "^relu", "^gelu", "^silu", "^gated" },
    { "embedding and loss", "^embedding", "^cross_entropy", "^log_softmax" },
    { "optimizer", "^adamw$", "^sgd$", "^lion$", "^sum_squares$" },
}

--- The parts of a step, in the order in which they are shown.
steps.PARTS = {
    "matrix products", "attention", "norms and activations", "embedding and loss", "optimizer", "other operations",
    "exposed communication", "between operations",
}

--- The part of a step that an operation belongs to.
---@param name string
---@return string
function steps.family(name)
    for _, family in ipairs(FAMILIES) do
        for i = 2, #family do
            if name:find(family[i]) then
                return family[1]
            end
        end
    end
    return "other operations"
end

local function entry(sums, key, start)
    sums[key] = sums[key] or start
    return sums[key]
end

-- Adds up operations. A wait inside an operation (a blocking collective) counts as communication; a simulated chip's
-- copies for a collective count as other operations. Events are ordered by their end, so those inside an operation come
-- before it.
local function add_operations(events, seconds, rows)
    local waits, n = {}, 0
    for _, e in ipairs(events) do
        if e.kind == "wait" or e.kind == "copy" then
            local part = e.kind == "wait" and "exposed communication" or "other operations"
            n = n + 1
            waits[n] = e
            seconds[part] = seconds[part] + e.end_s - e.start_s
        elseif e.kind == "operation" then
            local own = e.end_s - e.start_s
            while n > 0 and waits[n].start_s >= e.start_s do
                own = own - (waits[n].end_s - waits[n].start_s)
                n = n - 1
            end
            local family, key = steps.family(e.name), e.name .. " " .. e.inputs
            seconds[family] = seconds[family] + own
            local row = entry(rows, key, { name = e.name, inputs = e.inputs, family = family, calls = 0, seconds = 0,
                flops = 0, bytes = 0, work = e.work })
            row.calls, row.seconds = row.calls + 1, row.seconds + own
            row.flops, row.bytes = row.flops + e.flops, row.bytes + e.bytes
        end
    end
end

-- Communication by track and name, with the time waited for it.
local function communication(events, n_steps)
    local rows, list = {}, {}
    for _, e in ipairs(events) do
        if e.kind == "wait" or e.kind == "job" then
            local key = ("%s|%s|%s"):format(e.track, e.name, e.over or "")
            if not rows[key] then
                rows[key] = {
                    track = e.track, name = e.name, over = e.over, exposed_s = 0, busy_s = 0, bytes = 0, jobs = 0,
                }
                list[#list + 1] = rows[key]
            end
            local row, seconds = rows[key], (e.end_s - e.start_s) / n_steps
            if e.kind == "wait" then
                row.exposed_s = row.exposed_s + seconds
            else
                row.busy_s, row.jobs = row.busy_s + seconds, row.jobs + 1 / n_steps
                row.bytes = row.bytes + e.bytes / n_steps
            end
        end
    end
    table.sort(list, function(a, b)
        if a.exposed_s ~= b.exposed_s then
            return a.exposed_s > b.exposed_s
        end
        return a.busy_s ~= b.busy_s and a.busy_s > b.busy_s or a.busy_s == b.busy_s and a.name < b.name
    end)
    return list
end

-- The memory in use over the first step: {seconds, bytes}.
local function memory(events, step)
    local points = {}
    for _, e in ipairs(events) do
        if e.kind == "operation" and e.start_s >= step.start_s and e.end_s <= step.end_s then
            points[#points + 1] = { e.end_s - step.start_s, e.memory_bytes }
        end
    end
    return points
end

local function inside(spans, event)
    for _, span in ipairs(spans) do
        if event.start_s >= span.start_s and event.end_s <= span.end_s then
            return true
        end
    end
    return event.kind == "job"
end

--- Averages over the recorded steps: figures for one step.
---@param events table[] of mx.trace_events, with a span for each step
---@return {steps: integer, seconds: number, parts: table<string, number>, operations: table[], communication: table[],
---        memory: number[][]}? nil if there is no step
function steps.analyse(events)
    local spans, of_steps = {}, {}
    for _, e in ipairs(events) do
        spans[#spans + 1] = e.kind == "span" and e.name:find("^step ") and e or nil
    end
    if #spans == 0 then
        return nil
    end
    local total, parts, rows, operations = 0, {}, {}, {}
    for _, span in ipairs(spans) do
        total = total + span.end_s - span.start_s
    end
    for _, e in ipairs(events) do
        of_steps[#of_steps + 1] = e.kind ~= "span" and inside(spans, e) and e or nil
    end
    for _, part in ipairs(steps.PARTS) do
        parts[part] = 0
    end
    add_operations(of_steps, parts, rows)
    local accounted = 0
    for part, seconds in pairs(parts) do
        accounted = accounted + seconds
        parts[part] = seconds / #spans
    end
    parts["between operations"] = math.max(0, total - accounted) / #spans
    for _, row in pairs(rows) do
        row.calls, row.seconds = row.calls / #spans, row.seconds / #spans
        row.flops, row.bytes = row.flops / #spans, row.bytes / #spans
        operations[#operations + 1] = row
    end
    table.sort(operations, function(a, b)
        return a.seconds ~= b.seconds and a.seconds > b.seconds
            or a.seconds == b.seconds and a.name .. a.inputs < b.name .. b.inputs
    end)
    return {
        steps = #spans, seconds = total / #spans, parts = parts, operations = operations,
        communication = communication(of_steps, #spans), memory = memory(of_steps, spans[1]),
    }
end

return steps
