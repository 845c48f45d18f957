--- Advice for a step that does not fit in memory: single changes of the config are simulated, and those that fit are
--- named with their figures.

local mx = require "mx"
local util = require "mx.util"

local advice = {}

local POLICIES = {
    "minimal_with_context", "minimal", "save_dot_except_mlp", "save_qkv_proj", "qkv_proj_offloaded",
    "minimal_offloaded", "full",
}
local SHARES = { 2, 4, 8, 16 } -- ranks that share a sequence; slices that are so many times larger
-- A job that needs this many times the memory of a device gets no advice: no single change would make it fit.
local HOPELESS = 64

--- A copy of a config with other values of some keys.
---@param config table
---@param changes table<string, any>
---@return table
function advice.changed(config, changes)
    local copy = {}
    for key, value in pairs(config) do
        copy[key] = value
    end
    for key, value in pairs(changes) do
        copy[key] = value
    end
    return setmetatable(copy, getmetatable(config))
end

-- About half of a batch; nil below one sequence.
local function half(batch)
    return batch >= 2 and math.tointeger(batch // 2) or nil
end

-- The slices of the same hardware that are several times as large.
local function larger(name, times)
    local kind, chips = mx.sim.split_name(name)
    return chips and ("%s-%d"):format(kind, chips * times) or nil
end

-- The first of a list of changes that fits, or with `fastest` the one with the shortest step: {changes, result}; nil if
-- none does.
local function fitting(config, list, simulate, there, fastest)
    local found
    for _, changes in ipairs(list) do
        local done, result = pcall(simulate, advice.changed(config, changes)) -- a mesh may be impossible
        if done and result.peak_bytes <= there and (not found or result.step_s < found.result.step_s) then
            found = { changes = changes, result = result }
        end
        if found and not fastest then
            break
        end
    end
    return found
end

-- The changes to try, in groups. Of the policies the fastest that fits is named, of the other groups the first. Those
-- after policies and batches are tried only if these two have none.
local function groups_of(config)
    local policies, batches, both, tensor, context, slices, more = {}, {}, {}, {}, {}, {}, {}
    if config.remat_policy ~= "full" then
        for _, policy in ipairs(POLICIES) do
            policies[#policies + 1] = policy ~= config.remat_policy and { remat_policy = policy } or nil
        end
    end
    local batch = half(config.per_device_batch_size)
    while batch do
        batches[#batches + 1] = { per_device_batch_size = batch }
        both[#both + 1] = { per_device_batch_size = batch, remat_policy = "full" }
        batch = half(batch)
    end
    for _, n in ipairs(SHARES) do
        local part, name = config.per_device_batch_size / n, config.hardware ~= "" and larger(config.hardware, n)
        part = math.tointeger(part) or part
        local function share(axis)
            local key = mx.mesh.key("ici", axis)
            return { [key] = n * math.max(1, config[key]), per_device_batch_size = part, remat_policy = "full" }
        end
        tensor[#tensor + 1], context[#context + 1] = share "tensor", share "context"
        slices[#slices + 1] = name and { hardware = name } or nil
        slices[#slices + 1] = name and { hardware = name, per_device_batch_size = 1, remat_policy = "full" } or nil
        more[#more + 1] = name and { -- weights are split over several slices
            num_slices = n * config.num_slices, dcn_data_parallelism = 1, dcn_fsdp_parallelism = n * config.num_slices,
            per_device_batch_size = 1, remat_policy = "full",
        } or nil
    end
    return policies, batches, { both, tensor, context, slices, more }
end

local function text_of(config, fit, is_timed)
    local words = {}
    for key, value in util.sorted_pairs(fit.changes) do
        words[#words + 1] = value ~= config[key] and ("%s=%s"):format(key, value) or nil
    end
    return ("%s (%s%s)"):format(table.concat(words, " "), util.bytes(fit.result.peak_bytes),
        is_timed and (", %.4g s a step"):format(fit.result.step_s) or "")
end

--- What to change so that a step fits, in one sentence.
---@param config table
---@param peak_bytes integer what the step needs
---@param there number bytes
---@param simulate fun(config: table): table as plan.simulate
---@return string
function advice.of(config, peak_bytes, there, simulate)
    local found, is_timed = {}, config.hardware ~= ""
    local function add(list, fastest)
        local fit = fitting(config, list, simulate, there, fastest)
        found[#found + 1] = fit and text_of(config, fit, is_timed)
    end
    if peak_bytes <= HOPELESS * there then
        local policies, batches, others = groups_of(config)
        add(policies, true)
        add(batches)
        for _, list in ipairs(#found == 0 and others or {}) do
            add(list)
        end
    end
    if #found == 0 then
        return "no single change of remat_policy, batch or axes is enough: use more ranks, a smaller "
            .. "max_target_length or gradient_accumulation_steps, or a smaller model"
    end
    return "what fits: " .. table.concat(found, "; ")
end

return advice
