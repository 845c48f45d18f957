--- Optimizers over a table of parameters (name -> tensor), with clipping and learning-rate schedules.
--
--     local optimizer = mx.optim.adamw(params, { learning_rate = 1e-3 })
--     ... mx.backward(loss)
--     local grad_norm = optimizer:step()

local mx = require "mx"
local masks = require "mx.models.masks"
local schedule = require "mx.run.schedule"
local util = require "mx.util"

local optim = {}

optim.schedule = schedule.new

---@class mx.Optimizer
---@field params table<string, any>
---@field options table options of the update; learning_rate is a number or a function of the step
---@field undecayed table<string, boolean> the parameters without weight decay
---@field state table<string, table> the moments of each parameter
---@field steps integer number of updates so far
---@field parallel mx.Parallel|mx.Alone how the parameters lie on a mesh
local Optimizer = {}
local RATE = "its rate is optimizer.options.learning_rate, a number or a function of the step"
util.strict(Optimizer, "an optimizer", { "kind", "params", "options", "undecayed", "state", "steps", "parallel" },
    { lr = RATE, learning_rate = RATE })

local UPDATES = {}

function UPDATES.adamw(self, name, values, grad, o)
    local state, own = self.state[name], self.options
    o.beta1, o.beta2, o.eps, o.eps_root, o.step = own.beta1, own.beta2, own.eps, own.eps_root, self.steps
    mx.adamw(values, grad, state.m, state.v, o)
end

function UPDATES.sgd(self, name, values, grad, o)
    o.momentum = self.options.momentum
    mx.sgd(values, grad, self.state[name].momentum, o)
end

-- The options of a parameter's update that do not depend on the optimizer. New values of a bf16 parameter and of its
-- second moment are rounded stochastically, so that small updates are not lost. The random numbers depend only on the
-- seed, the parameter, the step and the element's index in the whole parameter.
local function update_options(self, name, scale)
    local decay = self.undecayed[name] and 0 or self.options.weight_decay
    local o = { lr = self:rate(self.steps), weight_decay = decay, grad_scale = scale }
    if self.params[name]:dtype() == "bf16" then
        -- An integer option of an operation has at most 53 bits.
        o.round_key = util.seed(("rounding.%s.%d"):format(name, self.steps), self.options.seed) >> 10
        local place = self.parallel:update_place(name)
        if place then
            o.round_first, o.round_origin, o.round_width, o.round_stride = place.first, place.origin, place.width,
                place.stride
        end
    end
    return o
end

-- `moments`: the names of a parameter's moments, and the dtype of each; "" is that of the parameter.
local function new_optimizer(kind, params, options, moments)
    local parallel = options.parallel or mx.parallel.alone
    options.parallel = nil
    local self = setmetatable({
        kind = kind, params = params, options = options, undecayed = {}, state = {}, steps = 0, parallel = parallel,
    }, Optimizer)
    local undecayed = masks.of(options.mask)
    for name, t in util.sorted_pairs(params) do
        self.undecayed[name] = undecayed(name)
        local state, length = {}, parallel:updated(name)
        for moment, dtype in util.sorted_pairs(moments) do
            state[moment] = mx.zeros(length and { length } or t:size(), dtype ~= "" and dtype or t:dtype()):keep()
        end
        self.state[name] = state
    end
    return self
end

--- AdamW with decoupled weight decay and bias correction. As in optax, the first moments (m) have mu_dtype ("": the
--- parameter's dtype), and the second moments (v) the parameter's dtype.
---@param params table<string, any>
---@param options? table learning_rate (number or function of the step), beta1, beta2, eps, eps_root, weight_decay, mask
---       (expressions for the names of parameters that do not decay), mu_dtype, clip (a norm), seed (of the rounding of
---       bf16 parameters), parallel (the mx.Parallel of a model on a mesh)
---@return mx.Optimizer
function optim.adamw(params, options)
    local standard = {
        learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, eps_root = 0, weight_decay = 0, mask = {},
        mu_dtype = "", clip = 0, seed = 0, parallel = false,
    }
    local o = util.options(options, standard, "mx.optim.adamw")
    return new_optimizer("adamw", params, o, { m = o.mu_dtype, v = "" })
end

--- Gradient descent, with momentum if that is above 0.
---@param params table<string, any>
---@param options? table learning_rate (number or function of the step), momentum, weight_decay, mask, clip, seed,
---       parallel, as for adamw
---@return mx.Optimizer
function optim.sgd(params, options)
    local standard = {
        learning_rate = 1e-2, momentum = 0, weight_decay = 0, mask = {}, clip = 0, seed = 0, parallel = false,
    }
    local o = util.options(options, standard, "mx.optim.sgd")
    return new_optimizer("sgd", params, o, o.momentum > 0 and { momentum = "f32" } or {})
end

--- Creates the optimizer of a config. It has the parameters that trainable_parameters_mask names.
---@param config table
---@param params table<string, any> all parameters of the model
---@param parallel? mx.Parallel of the model, on a mesh
---@return mx.Optimizer
function optim.new(config, params, parallel)
    local is_trained, trained = masks.trained(config.trainable_parameters_mask), {}
    for name, t in util.sorted_pairs(params) do
        trained[name] = is_trained(name) and t or nil
    end
    local o = {
        learning_rate = schedule.of(config), clip = config.gradient_clipping_threshold, seed = config.init_weights_seed,
        parallel = parallel,
    }
    if config.opt_type == "sgd" then
        o.momentum = config.sgd_momentum
        return optim.sgd(trained, o)
    end
    o.beta1, o.beta2, o.eps, o.eps_root = config.adam_b1, config.adam_b2, config.adam_eps, config.adam_eps_root
    o.weight_decay, o.mask = config.adam_weight_decay, config.adamw_mask
    o.mu_dtype = config.mu_dtype ~= "" and util.dtype(config.mu_dtype) or ""
    return optim.adamw(trained, o)
end

--- The global norm of gradients. Collective on a mesh.
---@param grads table<string, any> name of a parameter -> gradient
---@param parallel? mx.Parallel of the model, on a mesh: elements that several ranks hold count once
---@return number
function optim.norm(grads, parallel)
    local squares = {}
    for name, grad in util.sorted_pairs(grads) do
        squares[name] = mx.sum_squares(grad):item()
    end
    return math.sqrt((parallel or mx.parallel.alone):sum_of_squares(squares))
end

--- The learning rate of a step, counted from 1.
---@param step integer
---@return number
function Optimizer:rate(step)
    local rate = self.options.learning_rate
    return type(rate) == "function" and rate(step) or rate
end

--- Discards the accumulated gradients. Not collective.
function Optimizer:clear()
    for _, t in util.sorted_pairs(self.params) do
        local grad = t:grad()
        if grad then
            t:zero_grad()
            grad:release() -- now, not when Lua collects the handle
        end
    end
end

--- Updates the parameters with the accumulated gradients and clears these. Parameters without a gradient stay
--- unchanged. Clipping is part of the update. If the norm is not finite or above `most`, nothing is changed and the
--- caller must act. Collective on a mesh.
---@param most? number
---@return number norm of the gradients before clipping
function Optimizer:step(most)
    local step <close> = mx.step()
    local parallel, grads = self.parallel, {}
    for name, t in util.sorted_pairs(self.params) do
        local grad = t:grad()
        if grad then
            grads[name] = parallel:updated_gradient(name, grad)
        end
    end
    local norm, clip, scale = optim.norm(grads, parallel), self.options.clip, 1
    if clip > 0 and norm > clip then
        scale = clip / norm
    end
    local good = mx.is_simulated() or norm - norm == 0 and norm <= (most or math.huge) -- simulated: no values
    if good then
        self.steps = self.steps + 1
    end
    for name, grad in util.sorted_pairs(grads) do
        local t = self.params[name]
        if good then
            local values = parallel:updated_values(name, t)
            UPDATES[self.kind](self, name, values, grad, update_options(self, name, scale))
        end
    end
    self:clear()
    if good then
        parallel:finish_update(self.params)
    end
    return norm
end

return optim
