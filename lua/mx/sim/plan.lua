--- Predicts memory and time of a training step before anything is allocated, by one step on the simulated device.
--
-- The step is that of scripts/train.lua with the config's model, mesh and policy, so it allocates what a run allocates.
-- For very many layers or passes, two smaller numbers are simulated (with each kind of layer in proportion), and the
-- rest is extrapolated from their difference. So a plan takes about a second for any config.

local mx = require "mx"
local advice = require "mx.sim.advice"
local experts = require "mx.sim.experts"
local search = require "mx.sim.search"
local util = require "mx.util"

local plan = {}

local NO_LIMIT = 2 ^ 60 -- bytes

-- Up to `most` are simulated exactly; larger numbers are extrapolated from the numbers `few` and `more`.
local LAYERS = { most = 256, few = 32, more = 64 }
local PASSES = { most = 16, few = 2, more = 3 }
local RANGE_LAYERS = 2 -- and twice as many are simulated for a range, at least one period of layers

-- ---- one step ----

-- Batches of zeros instead of the config's data: nothing is read. With reuse_example_batch one batch stays allocated.
local function blank_data(config, mesh)
    local sizes = { mx.data.sequences(config, mesh), config.max_target_length }
    local data = { batch_bytes = 2 * 4 * sizes[1] * sizes[2], kept_bytes = 0 }
    function data.next()
        if data.example then
            return data.example
        end
        local batch = { tokens = mx.zeros(sizes, "i32"), targets = mx.zeros(sizes, "i32") }
        if config.reuse_example_batch == 1 then
            batch.tokens:keep()
            batch.targets:keep()
            data.example, data.kept_bytes = batch, data.batch_bytes
        end
        return batch
    end
    return data
end

local function bytes_of(params)
    local bytes = 0
    for _, t in pairs(params) do
        bytes = bytes + t:bytes()
    end
    return bytes
end

-- name -> bytes and number of tensors that the forward pass keeps for the backward pass.
local function kept_by_name(params)
    local seen, by_name = {}, {}
    for _, row in ipairs(mx.kept()) do
        if not params[row.name or ""] then
            local before = seen[row.storage]
            if not before or not before.name then
                seen[row.storage] = row
            end
        end
    end
    for _, row in pairs(seen) do
        local name = row.name or ("result of %s"):format(row.op)
        local entry = by_name[name] or { name = name, bytes = 0, count = 0 }
        entry.bytes, entry.count = entry.bytes + row.bytes, entry.count + 1
        by_name[name] = entry
    end
    return by_name
end

-- Simulates two steps on the pod that mx.sim.start has started, and returns the figures of the second, which begins
-- like all later steps. Raises an error if the step does not fit in memory.
local function simulate_step(config, shape, passes, o)
    local mesh = mx.train.mesh(config)
    local model = mx.models.new(shape, mesh, config)
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    local weights = bytes_of(model.params)
    local data, kept, start = blank_data(config, mesh), nil, nil
    for _ = 1, 2 do
        start = mx.now()
        mx.sim_times(true)
        mx.reset_peak()
        mx.profile(o.profile or false)
        mx.train.gradients(model, data, passes, function()
            kept = kept_by_name(model.params)
        end)
        optimizer:step()
    end
    mx.profile(false)
    local states = mx.memory().in_use - weights - data.kept_bytes
    local gradients = 0
    for _, t in pairs(optimizer.params) do
        gradients = gradients + t:numel() * 4
    end
    return {
        step_s = mx.now() - start, peak_bytes = mx.memory().peak, times = mx.sim_times(), kept = kept,
        weights = weights, states = states, gradients = gradients,
        batches = data.batch_bytes * (data.example and 1 or passes),
        operations = o.profile and mx.profile_report() or nil,
        staged = o.staged and mx.checkpoint.staged_bytes {
            params = model.params, parallel = model.parallel, optimizer = optimizer,
        },
    }
end

-- The rows of a profile as a table by their identifying fields; other tables unchanged.
local function keyed(t)
    if not (t[1] and t[1].shapes) then
        return t
    end
    local rows = {}
    for _, row in ipairs(t) do
        rows[("%s %s"):format(row.op, row.shapes)] = row
    end
    return rows
end

-- Extrapolates a number, or each number of a table: few + further * (more - few).
local function extend(few, more, further)
    if type(more) == "number" then
        local value = few + (more - few) * further
        return math.type(more) == "integer" and math.floor(value + 0.5) or value
    elseif type(more) ~= "table" then
        return more
    end
    local from, extended = keyed(few), {}
    for key, value in pairs(keyed(more)) do
        extended[key] = from[key] == nil and value or extend(from[key], value, further)
    end
    if keyed(more) ~= more then -- a list again
        local list = {}
        for _, row in util.sorted_pairs(extended) do
            list[#list + 1] = row
        end
        return list
    end
    return extended
end

-- fn(n), extrapolated if n is too large.
local function estimate(n, limits, fn)
    if n <= limits.most then
        return fn(n)
    end
    return extend(fn(limits.few), fn(limits.more), (n - limits.few) / (limits.more - limits.few))
end

--- Simulates a step of a config on a new pod, without a memory limit unless `limited` is set.
---@param config table
---@param hardware string|table such as "v5e-256", or a hardware table
---@param slices integer
---@param o? {constants: table<string, number>, limited: boolean, profile: boolean, staged: boolean, shape: table}
---       profile: with its operations; staged: with the size of a copy of what a rank writes of a checkpoint, which no
---       step has; shape: the model, if it differs from the config's
---@return table step_s, peak_bytes, weights, gradients, states, batches, staged (bytes; batches: of all passes), kept
---        (name -> {bytes, count}), times (of mx.sim_times), params, shape, length (of sequences), topology (in words),
---        hardware, memory_bytes (of a chip), mfu and tokens_per_s (of a chip); of a pipeline also what
---        mx.pipeline.simulate has
function plan.simulate(config, hardware, slices, o)
    o = o or {}
    local constants = mx.sim.settings(config)
    for name, value in pairs(o.constants or {}) do
        constants[name] = value
    end
    local memory_bytes = mx.sim.memory_bytes(hardware)
    constants.memory_bytes = o.limited and memory_bytes or NO_LIMIT
    local shape, machine, peak, topology = o.shape or mx.models.shape(config), nil, nil, nil
    local chip = type(hardware) == "string" and mx.sim.split_name(hardware) ~= "host" and mx.sim.hardware(hardware)
    if chip then
        local attention = mx.models.kinds(shape)[1].block.attention
        mx.sim.vmem.check(config, chip, attention.head_dim, attention.value_dim)
    end
    local function run(fn, ...)
        machine = mx.sim.start(hardware, slices, constants)
        local ok, result = pcall(fn, config, ...)
        peak, topology = ok and mx.sim.peak(shape.dtype), mx.sim.topology.line()
        mx.sim.stop()
        if not ok then
            error(result, 0)
        end
        return result
    end
    local result
    if mx.parallel.has_stages(config) then
        result = run(require("mx.pipeline.simulate").step, shape, function(rank)
            mx.sim.stop()
            mx.sim.start(hardware, slices, constants, rank)
        end, o)
    else
        result = estimate(shape.layers, LAYERS, function(layers)
            return estimate(config.gradient_accumulation_steps, PASSES, function(passes)
                return run(simulate_step, mx.models.cut(shape, layers), passes, o)
            end)
        end)
    end
    if o.limited and result.peak_bytes > memory_bytes then
        util.refuse("a step needs %s of memory on each chip, and there are %s", util.bytes(result.peak_bytes),
            util.bytes(memory_bytes))
    end
    result.topology, result.length = topology, config.max_target_length
    result.shape, result.params = shape, mx.models.count(shape)
    local sequences = config.per_device_batch_size * config.gradient_accumulation_steps
    local flops = mx.flops.step(config.flop_formula, shape, result.params, sequences, config.max_target_length)
    result.hardware, result.memory_bytes, result.formula = machine, memory_bytes, config.flop_formula
    result.flops_per_s, result.peak_flops = flops / result.step_s, peak.value
    result.mfu = mx.flops.mfu(result.flops_per_s, peak.value, config.flop_formula, config.quantization)
    result.tokens_per_s = sequences * config.max_target_length / result.step_s
    return result
end

-- ---- memory ----

--- The memory of a chip at the peak of the step, by purpose, largest first: {name, bytes, count} each. "working memory"
--- is what the current layer needs in addition: gathered weights, gradients in flight, values between operations.
---@param result table of plan.simulate
---@return table[]
function plan.parts(result)
    local parts = {
        { name = "weights", bytes = result.weights },
        { name = "gradients", bytes = result.gradients },
        { name = "optimizer states", bytes = result.states },
        { name = "batches", bytes = result.batches },
    }
    local sum = result.weights + result.gradients + result.states + result.batches
    for _, entry in util.sorted_pairs(result.kept) do
        parts[#parts + 1] = { name = "kept: " .. entry.name, bytes = entry.bytes, count = entry.count }
        sum = sum + entry.bytes
    end
    -- Kept values shrink while gradients grow, so the sum may exceed the peak.
    parts[#parts + 1] = { name = "working memory", bytes = math.max(0, result.peak_bytes - sum) }
    table.sort(parts, function(a, b)
        return a.bytes > b.bytes or a.bytes == b.bytes and a.name < b.name
    end)
    return parts
end

local function largest_text(result, n)
    local texts = {}
    for i, part in ipairs(plan.parts(result)) do
        if i <= n then
            texts[i] = ("%s %s"):format(part.name, util.bytes(part.bytes))
        end
    end
    return table.concat(texts, ", ")
end

-- Prints what XLA's flags do to a simulated step.
local function report_flags(config, result, shape)
    mx.flags.report(config, result.step_s, function(other)
        return plan.simulate(other, config.hardware, config.num_slices, { shape = shape }).step_s
    end)
end

--- The least and largest step time that the published rows of such chips justify (label.lua), as shares of the
--- simulated one; nil if there are no rows. Only a few layers are simulated, and the others extrapolated.
---@param config table
---@param hardware string such as "v5e-256"
---@param slices integer
---@param shape? table the model, if it differs from the config's
---@return number[]? shares
function plan.range(config, hardware, slices, shape)
    if mx.parallel.has_stages(config) then
        return nil -- no published row has a pipeline
    end
    shape = shape or mx.models.shape(config)
    local few = math.max(RANGE_LAYERS, #shape.blocks)
    return mx.sim.label.range(mx.sim.split_name(hardware), mx.sim.label.job(config, shape), function(constants)
        return estimate(shape.layers, { most = 2 * few, few = few, more = 2 * few }, function(layers)
            local cut = mx.models.cut(shape, layers)
            return plan.simulate(config, hardware, slices, { shape = cut, constants = constants }).step_s
        end)
    end)
end

-- The bytes that a rank of this machine has, and the limit that the user has set; 0: none.
local function host_memory()
    local info, limit = mx.info(), mx.memory().limit
    return limit > 0 and limit or info.memory_bytes / info.node_ranks, limit
end

-- Whether checkpoints are written from a copy while training continues.
local function copies_state(config)
    return config.enable_checkpointing and config.async_checkpointing and config.checkpoint_period > 0
        and config.checkpoint_period <= config.steps and not mx.is_simulated()
end

-- This machine as hardware whose speed does not matter, and the number of slices.
local function host_hardware(config)
    local slices = mx.mesh.layout(config, mx.ranks()).slices
    return mx.host.hardware(mx.ranks() // slices, { measure = false }), slices
end

--- Whether a step of a config, and the copy that a checkpoint is written from, fit in the memory that a rank of this
--- machine has. Not collective.
---@param config table
---@return boolean
function plan.fits(config)
    local hardware, slices = host_hardware(config)
    local result = plan.simulate(config, hardware, slices, { staged = true })
    return result.peak_bytes + (copies_state(config) and result.staged or 0) <= host_memory()
end

--- Refuses a config whose step needs more memory than a rank has, before anything is allocated. Collective.
---@param config table
---@param shape? table the model, if it differs from the config's
function plan.check(config, shape)
    local there, limit = host_memory()
    local result, hardware, slices
    local function simulate(c)
        return plan.simulate(c, hardware or c.hardware, slices or c.num_slices,
            { shape = shape, staged = hardware ~= nil })
    end
    if mx.is_simulated() then
        result = simulate(config)
        report_flags(config, result, shape)
        there, limit = result.memory_bytes, 0
        local range = plan.range(config, config.hardware, config.num_slices, shape)
        local pod = mx.sim.start(config.hardware, config.num_slices, mx.sim.settings(config)) -- for the run itself
        pod.range, pod.job, pod.pipeline = range, mx.sim.label.job(config, shape), result.pipeline
    else
        hardware, slices = host_hardware(config)
        result = simulate(config)
        mx.flags.report(config)
    end
    if copies_state(config) and result.peak_bytes <= there and result.peak_bytes + result.staged > there then
        util.refuse("a step needs %s of memory on each rank and the copy that a checkpoint is written from %s, and "
            .. "there are %s%s: async_checkpointing=false needs no copy", util.bytes(result.peak_bytes),
            util.bytes(result.staged), util.bytes(there), limit > 0 and " (--memory-limit)" or "")
    elseif result.peak_bytes > there then
        util.refuse("a step needs %s of memory on each rank, and there are %s%s: %s; %s", util.bytes(result.peak_bytes),
            util.bytes(there), limit > 0 and " (--memory-limit)" or "", largest_text(result, 5),
            advice.of(config, result.peak_bytes, there, simulate))
    end
end

-- ---- the report ----

local say = mx.metrics.say

local function print_parts(result)
    for _, part in ipairs(plan.parts(result)) do
        if part.bytes > 0 then
            local many = part.count and part.count > 1
            say("  %-34s %11s %5.1f %%%s", part.name, util.bytes(part.bytes), 100 * part.bytes / result.memory_bytes,
                many and ("  %d x %s"):format(part.count, util.bytes(part.bytes / part.count)) or "")
        end
    end
    local fits = result.peak_bytes <= result.memory_bytes
    say("  %-34s %11s %5.1f %%  of %s: %s", "peak", util.bytes(result.peak_bytes),
        100 * result.peak_bytes / result.memory_bytes, util.bytes(result.memory_bytes),
        fits and "it fits" or "IT DOES NOT FIT")
    return fits
end

local TIMES = {
    { "matrix_s", "matrix products" }, { "attention_s", "attention" }, { "memory_s", "bound by memory" },
    { "ici_s", "waiting for the slice's network" }, { "dcn_s", "waiting for the network between slices" },
    { "host_s", "waiting for the host's memory" }, { "bubble_s", "waiting for other stages" },
}

-- `plain`: the result without quantization, or nil. Its times show which parts of a step gain nothing.
local function print_times(result, plain)
    for _, row in ipairs(TIMES) do
        local seconds, before = result.times[row[1]] or 0, plain and plain.times[row[1]] or 0
        if seconds > 0 then
            say("  %-38s %9.4g s %5.1f %%%s", row[2], seconds, 100 * seconds / result.step_s,
                plain and ("  bfloat16: %.4g s"):format(before) or "")
        end
    end
    say("  %-38s %9.4g s%s", "a step", result.step_s, mx.sim.label.range_text(result.step_s, result.range))
    if plain then
        say("  %-38s %9.4g s, %.2f times as long", "a step in bfloat16", plain.step_s, plain.step_s / result.step_s)
    end
end

local function print_experts(config, result)
    local mesh = mx.mesh.plan(config, result.hardware.chips * config.num_slices)
    local lines = experts.lines(config, result.shape, mesh)
    lines[#lines + 1] = #lines > 0 and "" or nil
    for _, line in ipairs(lines) do
        say("%s", line)
    end
end

local function report(config)
    local result = plan.simulate(config, config.hardware, config.num_slices)
    result.range = plan.range(config, config.hardware, config.num_slices)
    report_flags(config, result)
    result.plain = config.quantization ~= ""
        and plan.simulate(advice.changed(config, { quantization = "" }), config.hardware, config.num_slices) or nil
    say("%s: %s parameters, %s x %d tokens a chip, %s", config.model_name, util.thousands(result.params),
        config.per_device_batch_size, config.max_target_length, config.remat_policy)
    say("%d x %s: %s", config.num_slices, config.hardware, result.hardware.description)
    say("%s", result.topology or "no torus: chips are connected by a switch")
    say("")
    say("what a chip holds (simulated)")
    local fits = print_parts(result)
    say("")
    print_experts(config, result)
    say("what a step takes (simulated)")
    print_times(result, result.plain)
    if result.pipeline then
        say("")
        say("%s", mx.pipeline.text(result.pipeline))
    end
    say("  %s tokens/s of a chip, MFU %.1f %% of %.4g TFLOP/s%s (%s)", util.thousands(result.tokens_per_s), result.mfu,
        result.peak_flops / 1e12, config.quantization == "" and "" or ", the peak of bfloat16", result.formula)
    say("")
    mx.sim.label.say(result.hardware, mx.sim.label.job(config))
    return result, fits
end

plan.candidates, plan.changed = search.candidates, advice.changed

--- Prints the plan of a config, or searches for a good one. Not collective: one process.
---@param words string[] the command line after the script
---@return table result of plan.simulate, or the candidates that fit, best first
function plan.run(words)
    local options = { search = false, candidates = 200, top = 10 }
    local config = mx.config.load(words, { options = options, simulate = false })
    if mx.ranks() > 1 then
        util.refuse("one process plans for all chips, but there are %d ranks: start mxlua without mpirun", mx.ranks())
    elseif config.hardware == "" then
        util.refuse("hardware= is missing: say what to plan for, such as hardware=v5e-256; configs/hardware has them")
    elseif config.search then
        return search.run(words, config, options)
    end
    local result, fits = report(config)
    if not fits then
        say("")
        say("five largest: %s", largest_text(result, 5))
        mx.metrics.tell("%s", advice.of(config, result.peak_bytes, result.memory_bytes, function(c)
            return plan.simulate(c, c.hardware, c.num_slices)
        end))
    end
    return result
end

return plan
