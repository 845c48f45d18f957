--- Measures memory and time of a model under every remat_policy.
--
-- A step is forward pass, backward pass and the optimizer's update, with a learning rate of 0 and always the same
-- batch. Loss and gradient norm must be equal to the bit under every policy, which is checked. "peak" is the largest
-- tensor memory of a rank during a step. "activations" is the peak without the memory in use before the step
-- (parameters and optimizer state). "waited" is the time for which the script waited for the offload file. The time is
-- that of the fastest step. With hardware=v5e-256 all figures are the simulated chip's, and there are no values to
-- compare.

local mx = require "mx"
local remat = require "mx.models.remat"
local util = require "mx.util"

local policies = {}

local say = mx.metrics.say

-- Whether this process is the only one.
local function is_alone()
    return mx.ranks() == 1 or mx.sim.now ~= nil
end

-- The largest of the ranks' numbers. Collective.
local function largest(value)
    if is_alone() then
        return value
    end
    return mx.scope(function()
        return mx.all_reduce_(mx.tensor(value), { op = "max" }):item()
    end)
end

local function load_config(words)
    local all = table.move(words, 1, #words, 1, {})
    local policy
    for _, word in ipairs(words) do
        policy = word:match("^remat_policy=(.*)$") or policy
    end
    if policy and policy ~= "custom" then
        util.refuse("'remat_policy=%s' on the command line: all are compared; only=%s chooses", policy, policy)
    end
    -- A policy that offloads, so that offload_directory is accepted.
    all[#all + 1] = not policy and "remat_policy=minimal_offloaded" or nil
    all[#all + 1] = "learning_rate=0"
    all[#all + 1] = "reuse_example_batch=1"
    return mx.config.load(all, { options = { only = "", repeats = 3 } }), policy == "custom"
end

-- Runs one step under the model's current policy. Collective.
local function take_step(model, data, optimizer, passes)
    mx.barrier()
    collectgarbage()
    mx.offload_stats(true)
    local before = mx.memory().in_use
    mx.reset_peak()
    local start = mx.now()
    local loss = mx.train.gradients(model, data, passes)
    local norm = optimizer:step()
    local seconds, peak = largest(mx.now() - start), mx.memory().peak
    return {
        loss = loss, norm = norm, seconds = seconds, peak = peak, activations = peak - before,
        waited = mx.offload_stats().exposed_s, file_bytes = mx.offload_stats().file_bytes,
    }
end

local function measure(model, data, optimizer, config)
    local row = take_step(model, data, optimizer, config.gradient_accumulation_steps)
    local seconds, waited = {}, {}
    for i = 1, config.repeats do
        local again = take_step(model, data, optimizer, config.gradient_accumulation_steps)
        seconds[i], waited[i] = again.seconds, again.waited
        row.peak, row.activations = math.max(row.peak, again.peak), math.max(row.activations, again.activations)
        row.file_bytes = again.file_bytes
    end
    row.seconds, row.waited = util.quantile(seconds, 0), largest(util.quantile(waited, 0.5))
    row.peak, row.activations = largest(row.peak), largest(row.activations)
    return row
end

-- The same; nil if the memory does not suffice. Only with one rank: others would wait for the rank that failed.
local function try_measure(model, ...)
    local ok, row = pcall(measure, model, ...)
    if not ok and not (is_alone() and tostring(row):find("out of memory", 1, true)) then
        error(row, 0)
    end
    for _, t in util.sorted_pairs(ok and {} or model.params) do
        t:zero_grad()
    end
    return ok and row or nil
end

local function chosen(config, custom)
    local names = {}
    for _, name in ipairs(remat.CHOICES) do
        if name:find(config.only, 1, true) and (name ~= "custom" or custom) then
            names[#names + 1] = name
        end
    end
    if #names == 0 then
        util.refuse("only=%s: no policy of that name: %s", config.only, table.concat(remat.CHOICES, ", "))
    end
    return names
end

local function check_same(row, reference, name)
    if row.loss ~= reference.loss or row.norm ~= reference.norm then
        error(("%s: loss %.9g and gradient norm %.9g, where %s has %.9g and %.9g"):format(name, row.loss, row.norm,
            reference.policy, reference.loss, reference.norm))
    end
end

local function print_row(row, name, first, offloads)
    if not row then
        say("%-32s %11s", name, "does not fit")
        return
    end
    say("%-32s %11s %11s %7.3g %6.2f %7s", name, util.bytes(row.peak), util.bytes(row.activations), row.seconds,
        row.seconds / first.seconds, offloads and ("%.2g"):format(row.waited) or "-")
end

--- Prints the table and returns the rows of the policies that fit. Collective.
---@param words string[] of a config, and only, repeats, metrics_file
---@return table[]
function policies.run(words)
    local config, custom = load_config(words)
    local names = chosen(config, custom)
    mx.plan.check(config)
    local model = mx.models.new(config, mx.train.mesh(config))
    local data = mx.data.open(config, model.parallel.mesh)
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    local log = config.metrics_file ~= "" and mx.rank() == 0 and mx.outputs.metrics(config.metrics_file)
    local rows, started, range = {}, mx.now(), mx.sim.now and mx.sim.now.range
    say("%s: %s parameters, %d layers; each of %d rank%s: %s x %d tokens, %s", config.model_name,
        util.thousands(mx.models.count(model.shape)), model.shape.layers, mx.ranks(), mx.ranks() == 1 and "" or "s",
        config.per_device_batch_size, config.max_target_length, config.dtype)
    local head = mx.sim.now and "remat_policy (simulated)" or "remat_policy"
    say("%-32s %11s %11s %7s %6s %7s", head, "peak", "activations", "step s", "times", "waited")
    for i, name in ipairs(names) do
        local actions = {}
        for _, tensor in ipairs(remat.TENSORS) do
            actions[tensor] = config[tensor]
        end
        model.shape.remat = name == "custom" and actions or name
        local row = try_measure(model, data, optimizer, config)
        if row then
            row.policy, rows[#rows + 1] = name, row
            if mx.sim.now then -- without values
                row.simulated, row.loss, row.norm = true, nil, nil
            end
            row.seconds_range = range and { row.seconds * range[1], row.seconds * range[2] } or nil
            if not mx.sim.now then
                check_same(row, rows[1], name)
            end
        end
        print_row(row, name, rows[1], remat.offloads(model.shape.remat))
        if log and row then
            log:row(row)
        end
        local left = (mx.now() - started) * (#names - 1)
        if i == 1 and left > 2 and not mx.sim.now then
            say("... the others take about %s", util.duration(left))
        end
    end
    if rows[1] and not mx.sim.now then
        say("loss %.6g and gradient norm %.6g to the bit under each", rows[1].loss, rows[1].norm)
    end
    if mx.sim.now then
        say("simulated: a step on such chips takes %s", range and ("%.2f to %.2f of the time shown"):format(range[1],
            range[2]) or "a time of its own; no published row says how far it is from this")
    end
    if log then
        log:close()
    end
    return rows
end

return policies
