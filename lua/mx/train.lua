--- What a training loop needs beside the model and the optimizer: the mesh, gradients, and stopping when it must.
--
-- A loop of your own that knows no mesh trains by data parallelism: train.share once, train.average_gradients each
-- step.

local mx = require "mx"
local util = require "mx.util"

local train = {}

--- Makes the parameters what they are on rank 0. Collective.
---@param params table<string, any>
function train.share(params)
    if mx.ranks() > 1 then
        for _, t in util.sorted_pairs(params) do
            mx.broadcast_(t)
        end
    end
end

--- Replaces the gradients by their mean over the ranks. Collective: all ranks have gradients for the same parameters.
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

--- The mesh of a run, with the settings of its collectives; nil on one rank. Collective.
---@param config table
---@return mx.Mesh?
function train.mesh(config)
    local mesh = mx.mesh(config)
    mx.comm_options {
        all_gather_combine_bytes = config.all_gather_combine_threshold_bytes,
        reduce_scatter_combine_bytes = config.reduce_scatter_combine_threshold_bytes,
        all_reduce_combine_bytes = config.all_reduce_combine_threshold_bytes,
        permute_decomposer_bytes = config.collective_permute_decomposer_threshold_bytes,
        async_all_reduce = config.async_all_reduce,
        gradients_in_bf16 = config.grad_dtype == "bfloat16",
        prefetch_bytes = config.prefetch_memory_limit_bytes,
        prefetch_layers = config.prefetch_layers,
        debug = config.debug_collectives,
        timeout_s = config.collective_timeout_s,
    }
    return mx.ranks() > 1 and mesh or nil
end

--- Forward and backward passes of one step: the gradients of the mean loss over its batches, each of which is the mean
--- over the targets that count on all ranks. Collective.
---@param model mx.Decoder
---@param data mx.Data
---@param passes integer the config's gradient_accumulation_steps
---@param observe? fun() called between a forward and its backward pass
---@return number loss
function train.gradients(model, data, passes, observe)
    local total, parallel = 0, model.parallel
    for pass = 1, passes do
        local step <close> = mx.step()
        local batch, weight = data:next(), 1
        if parallel then
            batch = parallel:batch_part(batch)
            weight = batch.mask and parallel:weight(batch.mask) or 1
            parallel:add_gradients(model.params, pass == passes)
        end
        local loss = model:loss(batch)
        if observe then
            observe()
        end
        mx.backward(loss, (parallel and parallel.seed or 1) * weight / passes)
        total = total + loss:item() * weight / passes
    end
    return train.average(total)
end

--- Stops the run when training has gone wrong: no parameter has been changed by this step.
---@param step integer
---@param loss number
---@param grad_norm number
---@param rate number
function train.check_finite(step, loss, grad_norm, rate)
    if loss - loss ~= 0 or grad_norm - grad_norm ~= 0 then
        util.refuse("step %d: the loss is %g and the gradient norm %g at a learning rate of %g; nothing was saved. "
            .. "Try a lower learning_rate, a longer warm-up or gradient clipping", step, loss, grad_norm, rate)
    end
end

--- Starts a run: says what it is, loads parameters if asked to, makes its directory and stores the config there.
--- Collective.
---@param config table
---@param model mx.Decoder
---@return mx.Metrics
function train.start(config, model)
    if config.load_parameters_path ~= "" then
        mx.nn.load(model.params, config.load_parameters_path, model.parallel)
    end
    if model.parallel then
        mx.metrics.say("%s", model.parallel.mesh)
    end
    mx.metrics.say("%s", mx.config.dump(config, not config.log_config):gsub("\n$", ""))
    if config.enable_checkpointing and mx.rank() == 0 then
        util.attempt(mx.io.mkdir_p, train.directory(config))
        util.attempt(mx.io.write_file_atomic, train.directory(config) .. "/config.yml", mx.config.dump(config))
    end
    local shape, params = model.shape, mx.models.count(model.shape)
    local sequences = config.per_device_batch_size * config.gradient_accumulation_steps
    return mx.metrics.new {
        steps = config.steps,
        flops = mx.flops.step(config.flop_formula, shape, params, sequences, config.max_target_length),
        tokens = sequences * config.max_target_length,
        params = params,
        formula = config.flop_formula,
        peak = mx.metrics.measured_peak(shape.dtype),
        dtype = shape.dtype,
        file = config.metrics_file,
        period = config.log_period,
        extra = { model_name = config.model_name },
        config = config,
    }
end

--- Where a run writes.
---@param config table
---@return string
function train.directory(config)
    local name = config.run_name ~= "" and config.run_name or config.model_name
    return config.base_output_directory .. "/" .. name
end

-- Whole parameters: on rank 0 all of them, elsewhere none. Collective.
local function put_together(model)
    if not model.parallel then
        return model.params
    end
    local params = {}
    for name, t in util.sorted_pairs(model.params) do
        mx.scope(function()
            local whole = model.parallel:whole(name, t:detach())
            if mx.rank() == 0 then
                params[name] = whole:wait():keep()
            end
        end)
    end
    return params
end

--- Saves the parameters with their config, from rank 0; the file is there whole or not at all. Collective.
---@param config table
---@param model mx.Decoder
---@return string path
function train.save(config, model)
    local path = train.directory(config) .. "/parameters.h5"
    local params = put_together(model)
    if mx.rank() == 0 then
        mx.nn.save(params, path, { config = mx.config.dump(config) })
    end
    mx.barrier()
    return path
end

return train
