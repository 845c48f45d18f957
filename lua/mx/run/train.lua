--- The parts of a training loop besides model and optimizer: the mesh and the gradients. init.lua has the rest.
--
-- Your own loop without a mesh can use data parallelism: call train.share once and train.average_gradients in each
-- step.

local mx = require "mx"
local codes = require "mx.models.codes"
local util = require "mx.util"

local train = {}

--- Broadcasts the parameters of rank 0. Collective.
---@param params table<string, any>
function train.share(params)
    if mx.ranks() > 1 then
        for _, t in util.sorted_pairs(params) do
            mx.broadcast_(t)
        end
    end
end

--- Replaces the gradients by their mean over the ranks. Collective: all ranks must have gradients for the same
--- parameters.
---@param params table<string, any>
function train.average_gradients(params)
    if mx.ranks() > 1 then
        for _, t in util.sorted_pairs(params) do
            local grad = t:grad()
            if grad then
                mx.all_reduce_(grad, { op = "mean" })
            end
        end
    end
end

--- The mean of a number over the ranks. Collective.
---@param value number
---@return number
function train.average(value)
    if mx.ranks() == 1 then
        return value
    end
    return mx.scope(function()
        return mx.all_reduce_(mx.tensor(value), { op = "mean" }):item()
    end)
end

--- A model of a script's own as mx.run, mx.train and checkpoints need it. A model of mx.models is returned as it is. Of
--- another one, each rank has all parameters, and gradients are averaged over the ranks.
---@param model table params (name -> tensor) and a method loss(batch) that returns a tensor of one element; buffers
---       (name -> tensor) and a method after_step() if it has any
---@return table
function train.plain(model)
    if model.parallel then
        return model
    elseif type(model.params) ~= "table" or not next(model.params) or type(model.loss) ~= "function" then
        error("a model needs `params`, a table name -> tensor, and a method `loss(batch)` that returns a tensor of one "
            .. "element", 3)
    end
    return setmetatable({ parallel = mx.parallel.alone, is_plain = true }, { __index = model })
end

-- The memory in use up to which weights are prefetched; 0: no limit.
local function prefetch_below(config)
    local percent = config.prefetch_memory_limit_percent
    return percent > 0 and percent / 100 * mx.sim.memory_bytes(config.hardware) // 1 | 0 or 0
end

--- The mesh of a run, with the settings of its collectives; nil on one rank. Refuses ranks whose configs differ.
--- Collective.
---@param config table
---@return mx.Mesh?
function train.mesh(config)
    mx.config.check_alike(config)
    local mesh = mx.mesh(config)
    mx.comm_options {
        all_gather_combine_bytes = config.all_gather_combine_threshold_bytes,
        reduce_scatter_combine_bytes = config.reduce_scatter_combine_threshold_bytes,
        all_reduce_combine_bytes = config.all_reduce_combine_threshold_bytes,
        permute_decomposer_bytes = config.collective_permute_decomposer_threshold_bytes,
        async_all_reduce = config.async_all_reduce,
        gradients_in_bf16 = config.grad_dtype == "bfloat16",
        prefetch_bytes = config.prefetch_memory_limit_bytes,
        prefetch_below_bytes = prefetch_below(config),
        prefetch_layers = config.prefetch_layers,
        debug = config.debug_collectives,
        timeout_s = config.collective_timeout_s,
    }
    return mx.ranks() > 1 and mesh or nil
end

-- The batches of a step. If a rank cannot read its own, all ranks raise its message, and data.failed is true.
-- Collective.
local function next_batches(data, passes)
    local function read()
        local batches = {}
        for pass = 1, passes do
            batches[pass] = data:next()
        end
        return batches
    end
    data.failed = true -- reset at the end of this function
    local batches = mx.ranks() > 1 and not mx.is_simulated() and mx.checkpoint.together(read) or read()
    data.failed = false
    return batches
end

-- The weights of the batches' losses. A batch's loss is the mean over its targets that count; its weight makes the sum
-- the mean over the targets of all batches and ranks. 1 if all have equally many targets; nil if no target counts.
-- Collective.
local function weights_of(batches)
    local targets, sum = {}, 0
    if not batches[1].mask then
        for pass = 1, #batches do
            targets[pass] = 1
        end
        return targets
    end
    return mx.scope(function()
        for pass, batch in ipairs(batches) do
            targets[pass] = batch.mask:to("f32"):sum():item()
            sum = sum + targets[pass]
        end
        local mean = train.average(sum) / #batches
        if mean == 0 and not mx.is_simulated() then
            return nil
        end
        for pass, own in ipairs(targets) do
            targets[pass] = mean > 0 and own / mean or 1
        end
        return targets
    end)
end

-- Adds a batch's gradients, and returns its share of the step's loss. `weight` is the share of the mean over targets,
-- `share` that of the losses that count all tokens alike. Collective.
local function add_pass(model, batch, weight, share, is_last, observe)
    local step <close> = mx.step()
    model.parallel:add_gradients(model.params, is_last)
    local loss, extra
    if model.routing or model.mtp then
        loss, extra = model:losses(batch)
    else
        loss = model:loss(batch)
    end
    if observe then
        observe()
    end
    if extra then -- in one root: with frozen parameters it may depend on nothing that has a gradient
        loss, weight = loss * weight + extra * share, 1
    end
    mx.backward(loss, model.parallel.seed * weight)
    return loss:item() * weight
end

--- Runs the forward and backward passes of one step. The gradients are those of the mean loss over all targets that
--- count, in the batches of all ranks. Collective.
---@param model mx.Decoder or another one (train.plain)
---@param data mx.Data or mx.Dataset
---@param passes integer the config's gradient_accumulation_steps
---@param observe? fun() called between a forward and its backward pass
---@return number? loss nil if no target of the step counts; then there are no gradients
function train.gradients(model, data, passes, observe)
    local step <close> = mx.step()
    model = train.plain(model)
    local total, parallel, batches = 0, model.parallel, next_batches(data, passes)
    local stages = parallel.stages
    local pipeline = mx.is_simulated() and mx.sim.now.pipeline
    if stages and pipeline == nil then
        util.refuse("a run simulates one chip, but a pipeline needs one of each stage: call mx.plan.check(config) "
            .. "before the first step, which simulates all stages")
    end
    local start = mx.now()
    if model.routing then
        model.routing:start()
    end
    if model.qk_clip then
        model.qk_clip:start()
    end
    if model.quantization then
        model.quantization:start()
    end
    for pass, batch in ipairs(batches) do
        batches[pass] = parallel:batch_part(batch)
    end
    if stages then
        batches = mx.pipeline.driver.split(batches, stages.microbatches)
    end
    if model.mtp then
        model.mtp:start(batches)
    end
    local weights = weights_of(batches)
    if not weights then
        return nil
    end
    local gathered <close> = parallel:gather_once(model.params, passes)
    for pass = 1, passes do
        if stages then
            total = total + mx.pipeline.driver.train(model, batches, weights, pass, passes)
        else
            total = total + add_pass(model, batches[pass], weights[pass] / passes, 1 / passes, pass == passes, observe)
        end
    end
    if gathered then
        gathered:scatter()
    end
    parallel:share_copies(model.params)
    if model.is_plain then
        train.average_gradients(model.params)
    end
    if pipeline then
        mx.sim_wait_until(start + pipeline.gradients_s)
    end
    return train.average(total) * (stages and stages.n or 1) -- the sum over stages
end

--- The folder of a run.
---@param config table
---@return string
function train.directory(config)
    local name = config.run_name ~= "" and config.run_name or config.model_name
    return config.base_output_directory .. "/" .. name
end

-- Gathers tensors of a model in pieces, and passes to `put` the name that a tensor has in a file, the piece, and the
-- sizes of the whole tensor. Collective.
local function each_piece(model, tensors, prefix, put)
    for _, name in ipairs(prefix == "" and model.parallel:names(tensors) or util.sorted_keys(tensors)) do
        local t = tensors[name]
        local sizes = model.parallel:part(name, t and t:size()).of
        for start, length in util.pieces(sizes[1] or 1, sizes, 1) do
            mx.scope(function()
                local range = { dim = 1, start = start, length = length }
                put(prefix .. name, model.parallel:piece(name, t and t:detach(), range), sizes)
            end)
        end
    end
end

--- Saves parameters and buffers with the config, from rank 0: the complete file or none. Large tensors are gathered and
--- written in pieces. Collective.
---@param config table
---@param model mx.Decoder
---@param path? string default: parameters.h5 in the run's folder
---@return string path
function train.save(config, model, path)
    codes.refuse(model, "saving")
    path = path or train.directory(config) .. "/parameters.h5"
    local writer
    mx.checkpoint.together(function()
        if mx.rank() == 0 then
            mx.io.mkdir_p(path:match("^(.+)/[^/]*$") or ".")
            writer = mx.io.h5_writer(path)
        end
    end)
    local put, reason = true, nil -- a failure is reported when all ranks have left the collectives
    local function put_piece(...)
        if writer and put then
            put, reason = pcall(writer.put, writer, ...)
        end
    end
    each_piece(model, model.params, "", put_piece)
    each_piece(model, model.buffers or {}, mx.checkpoint.BUFFER, put_piece)
    mx.checkpoint.together(function()
        if not put then
            error(reason, 0)
        elseif writer then
            local fingerprint = mx.tokenizer.fingerprint_of(config.tokenizer_path)
            writer:attributes {
                config = mx.config.dump(config), tokenizer_fingerprint = fingerprint ~= "" and fingerprint or nil,
            }
            writer:commit()
        end
    end)
    return path
end

return util.module(train, "mx.train")
