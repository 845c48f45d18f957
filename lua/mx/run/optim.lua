--- Optimizers over a table of parameters (name -> tensor), with clipping and learning-rate schedules.
--
--     local optimizer = mx.optim.adamw(params, { learning_rate = 1e-3 })
--     ... mx.backward(loss)
--     local grad_norm = optimizer:step()

local mx = require "mx"
local averages = require "mx.run.averages"
local masks = require "mx.models.masks"
local schedule = require "mx.run.schedule"
local updates = require "mx.run.updates"
local util = require "mx.util"

local optim = {}

optim.schedule, optim.ema, optim.early_stopping = schedule.new, averages.ema, averages.early_stopping

---@class mx.Optimizer
---@field params table<string, any>
---@field options table options of the update; learning_rate is a number or a function of the step
---@field rule mx.UpdateRule
---@field groups table[] those of the options
---@field undecayed table<string, boolean> the parameters without weight decay
---@field by_adamw table<string, boolean> the parameters that Muon leaves to AdamW
---@field state table<string, table> the moments of each parameter
---@field steps integer number of updates so far
---@field parallel mx.Parallel|mx.Alone how the parameters lie on a mesh
local Optimizer = {}
local RATE = "its rate is optimizer.options.learning_rate, a number or a function of the step"
util.strict(Optimizer, "an optimizer", {
    "kind", "rule", "params", "options", "groups", "undecayed", "by_adamw", "state", "steps", "parallel",
},
    { lr = RATE, learning_rate = RATE })

-- What all optimizers take beside the options of their rule.
local COMMON = {
    weight_decay = 0, mask = {}, groups = {}, clip = 0, clip_value = 0, seed = 0, parallel = false,
}

-- The first group that names a parameter. A group's rate is a factor, so that one schedule serves all.
local function group_of(self, name)
    for _, group in ipairs(self.groups) do
        if group.matches(name) then
            return group
        end
    end
    return {}
end

-- New values of a bf16 parameter and of its second moment are rounded stochastically, so that small updates are not
-- lost. The random numbers depend only on the seed, the parameter, the step and the element's index in the whole
-- parameter.
local function rounding_of(self, name)
    if self.params[name]:dtype() ~= "bf16" then
        return {}
    end
    -- An integer option of an operation has at most 53 bits.
    local key = util.seed(("rounding.%s.%d"):format(name, self.steps), self.options.seed) >> 10
    local place = self.parallel:update_place(name) or {}
    return {
        round_key = key, round_first = place.first, round_origin = place.origin, round_width = place.width,
        round_stride = place.stride,
    }
end

-- The options of a parameter's update.
local function update_options(self, name, scale)
    local group = group_of(self, name)
    local decay = group.weight_decay or self.options.weight_decay
    return setmetatable({
        lr = self:rate(self.steps) * (group.scale or 1), weight_decay = self.undecayed[name] and 0 or decay,
        step = self.steps, grad_scale = scale, by_adamw = self.by_adamw[name], rounding = rounding_of(self, name),
        whole = function(t) return self.parallel:whole_update(name, t) end,
        own = function(whole) return self.parallel:own_update(name, whole) end,
    }, { __index = self.options })
end

local function check_number(what, value, least)
    if type(value) ~= "number" or value ~= value or value < least then
        error(("%s = %s; expected a number%s"):format(what, type(value) == "string" and ("%q"):format(value)
            or tostring(value):gsub("^%-nan", "nan"), least == 0 and ", at least 0" or ""), 0)
    end
end

local function check_arguments(kind, params, options)
    local what = "mx.optim." .. kind .. ": "
    if type(params) ~= "table" then
        error(("%sthe parameters are a %s; expected a table { name = tensor }"):format(what,
            type(params) == "userdata" and "tensor" or type(params)), 0)
    end
    for name, t in util.sorted_pairs(params) do
        if type(t) ~= "userdata" or getmetatable(t) ~= "mx.tensor" then
            error(("%sparameter '%s' is a %s; expected a tensor"):format(what, name, type(t)), 0)
        end
    end
    for _, key in ipairs { "learning_rate", "weight_decay", "clip", "clip_value" } do
        if key ~= "learning_rate" or type(options[key]) ~= "function" then
            check_number(what .. key, options[key], 0)
        end
    end
end

local OF_GROUPS = "its rate is the optimizer's, multiplied by scale"

local function groups_of(list, params, parallel)
    local groups = {}
    if type(list) ~= "table" or (next(list) ~= nil and #list == 0) then
        error("groups of an optimizer are a list: { { match = { \"bias$\" }, weight_decay = 0 } }", 0)
    end
    for i, given in ipairs(list) do
        local o = util.options(given, { match = {}, scale = 1.0, weight_decay = -1.0 }, "a group of an optimizer",
            { lr = OF_GROUPS, learning_rate = OF_GROUPS, params = "match has expressions for their names" })
        for _, key in ipairs { "scale", "weight_decay" } do
            check_number(("group %d of an optimizer: %s"):format(i, key), o[key], -math.huge)
        end
        groups[i] = {
            matches = masks.of(o.match), scale = o.scale, weight_decay = o.weight_decay >= 0 and o.weight_decay or nil,
        }
        local used = parallel ~= mx.parallel.alone -- a rank of a mesh may have none of them
        for name in pairs(params) do
            used = used or groups[i].matches(name)
        end
        if not used then
            error(("group %d of an optimizer: no parameter's name matches %s"):format(i, masks.text(o.match)), 0)
        end
    end
    return groups
end

-- Whether Muon leaves a parameter to AdamW.
local function left_to_adamw(rule, options)
    if rule ~= updates.muon then
        return function() return false end
    end
    local named = masks.of(options.adamw_mask)
    return function(name, t)
        return t:dim() ~= 2 or named(name)
    end
end

-- The moments of a parameter, of this rank's part of it unless the rule updates whole parameters.
local function moments_of(rule, parallel, name, t, o)
    local state, length = {}, not rule.whole and parallel:updated(name)
    local step <close> = mx.step()
    local like = rule.whole and parallel:is_shared(name) and mx.zeros(parallel:part(name).of, t:dtype()) or t
    for moment, one in util.sorted_pairs(rule.moments(like, o)) do
        state[moment] = mx.zeros(length and { length } or one.sizes, one.dtype):keep()
    end
    return state
end

local function new_optimizer(kind, rule, params, options)
    local parallel = options.parallel or mx.parallel.alone
    options.parallel = nil
    check_arguments(kind, params, options)
    for name, t in util.sorted_pairs(rule.fused and {} or params) do
        if t:dtype() ~= "f32" then
            util.refuse("%s would round away small updates of '%s', which is %s: give it f32 parameters, or use adamw, "
                .. "sgd or lion", kind, name, t:dtype())
        end
    end
    local self = setmetatable({
        kind = kind, rule = rule, params = params, options = options,
        groups = groups_of(options.groups, params, parallel), undecayed = {}, by_adamw = {}, state = {}, steps = 0,
        parallel = parallel,
    }, Optimizer)
    local undecayed, by_adamw = masks.of(options.mask), left_to_adamw(rule, options)
    for name, t in util.sorted_pairs(params) do
        self.undecayed[name], self.by_adamw[name] = undecayed(name), by_adamw(name, t)
        local o = setmetatable({ by_adamw = self.by_adamw[name] }, { __index = options })
        self.state[name] = moments_of(rule, parallel, name, t, o)
    end
    return self
end

-- A constructor by the options of a rule and those that all optimizers take.
local function constructor(kind)
    local rule = updates[kind]
    return function(params, options)
        local standard = {}
        for _, some in ipairs({ COMMON, rule.options }) do
            for name, value in pairs(some) do
                standard[name] = value
            end
        end
        return new_optimizer(kind, rule, params, util.options(options, standard, "mx.optim." .. kind))
    end
end

--- AdamW with decoupled weight decay and bias correction. As in optax, the first moments (m) have mu_dtype ("": the
--- parameter's dtype), and the second moments (v) the parameter's dtype. Options of all optimizers: learning_rate
--- (number or function of the step), weight_decay, mask (expressions for the names of parameters that do not decay),
--- groups (a list of { match = expressions, scale = factor of the rate, weight_decay = }: the first that matches
--- holds), clip_value (largest magnitude of an element of a gradient), clip (largest norm, after that), seed (of the
--- rounding of bf16 parameters), parallel (the mx.Parallel of a model on a mesh). Those of its own: see updates.lua.
---@type fun(params: table<string, any>, options?: table): mx.Optimizer
optim.adamw = constructor "adamw"

--- Gradient descent; own options: momentum.
---@type fun(params: table<string, any>, options?: table): mx.Optimizer
optim.sgd = constructor "sgd"

--- Lion; own options: beta1, beta2. Rates are about a tenth of AdamW's, decay about ten times.
---@type fun(params: table<string, any>, options?: table): mx.Optimizer
optim.lion = constructor "lion"

--- Adafactor; own options: beta2_decay, eps1, eps2, clip_update. Each rank of a mesh gathers whole parameters and
--- gradients, one after the other, and does the whole update.
---@type fun(params: table<string, any>, options?: table): mx.Optimizer
optim.adafactor = constructor "adafactor"

--- Muon for matrices and AdamW for the rest; own options: momentum, nesterov, bias_correction (as optax has it),
--- adamw_mask, adamw_scale, adamw_decay and others. Where a mesh splits a matrix, each rank gathers its momentum, one
--- matrix after the other, and computes the same update.
---@type fun(params: table<string, any>, options?: table): mx.Optimizer
optim.muon = constructor "muon"

--- An optimizer of one's own. `rule.update(p, grad, state, o)` changes p in place (mx.copy(p, ...)), from the gradient,
--- the moments and o (lr, weight_decay, step, and all options); it runs unrecorded. `rule.moments(t)` gives the sizes
--- and dtypes of a parameter's moments, which begin at 0 and are saved in checkpoints; `rule.options` the standard
--- values of options. `elementwise = true` says that each element is updated by itself: then a rank of a mesh updates
--- its part of a parameter; otherwise each gathers and updates whole parameters, one after the other.
---
---     local signs = mx.optim.custom("signs", { update = function(p, grad, _, o)
---         mx.copy(p, p - o.lr * (grad:gt(0):to("f32") - grad:lt(0):to("f32")))
---     end })
---     local optimizer = signs(params, { learning_rate = 1e-3 })
---
---@param kind string its name, which checkpoints compare
---@param rule {update: function, moments: function?, options: table?, elementwise: boolean?}
---@return fun(params: table<string, any>, options?: table): mx.Optimizer
function optim.custom(kind, rule)
    local o = util.options(rule, {
        update = function() error("mx.optim.custom: the rule has no update", 0) end,
        moments = function() return {} end, options = {}, elementwise = false,
    }, "mx.optim.custom")
    if updates[kind] and updates[kind].update ~= o.update then
        error(("mx.optim.custom: '%s' is the name of another optimizer"):format(kind), 2)
    end
    o.options.learning_rate = o.options.learning_rate or 1e-3
    updates[kind] = { options = o.options, moments = o.moments, update = o.update, whole = not o.elementwise }
    return constructor(kind)
end

-- Sets the options of one kind of optimizer by the keys of a config. Options that all kinds have are set elsewhere.
local OF_CONFIG = {
    adamw = function(config, o)
        o.beta1, o.beta2, o.eps, o.eps_root = config.adam_b1, config.adam_b2, config.adam_eps, config.adam_eps_root
        o.weight_decay, o.mask = config.adam_weight_decay, config.adamw_mask
        o.mu_dtype = config.mu_dtype ~= "" and util.dtype(config.mu_dtype) or ""
    end,
    sgd = function(config, o)
        o.momentum = config.sgd_momentum
    end,
    lion = function(config, o)
        o.beta1, o.beta2, o.weight_decay = config.lion_b1, config.lion_b2, config.lion_weight_decay
        o.mask = config.adamw_mask
    end,
    adafactor = function(config, o)
        o.beta2_decay, o.weight_decay = config.adafactor_beta2_decay, config.adafactor_weight_decay
        o.mask = config.adamw_mask
    end,
    muon = function(config, o)
        o.momentum, o.weight_decay, o.mask = config.muon_beta, config.muon_weight_decay, config.adamw_mask
        o.beta1, o.beta2, o.adamw_eps = config.adam_b1, config.adam_b2, config.adam_eps
        o.adamw_decay, o.adamw_scale = config.adam_weight_decay, config.muon_adamw_scale
        o.adamw_mask, o.bias_correction = { "^embedding", "^position", "^unembedding" }, true
    end,
}

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
    OF_CONFIG[config.opt_type](config, o)
    return optim[config.opt_type](trained, o)
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

--- The learning rate of a step, counted from 1. Not collective.
---@param step? integer nil: the next one
---@return number
function Optimizer:rate(step)
    local rate = self.options.learning_rate
    if type(rate) == "function" then
        rate = rate(step or self.steps + 1)
    end
    if type(rate) ~= "number" or rate ~= rate then
        check_number(("the learning rate of step %d"):format(step or self.steps + 1), rate, -math.huge)
    end
    return rate
end

local function want_alone(self, what)
    if self.parallel ~= mx.parallel.alone then
        error(("optimizer:%s(): each rank of this mesh has a part of the state; mx.checkpoint saves and loads it")
            :format(what), 3)
    end
end

--- A copy of the moments and the number of steps, for mx.save or load_state_dict. Not collective.
---@return table
function Optimizer:state_dict()
    want_alone(self, "state_dict")
    local moments = {}
    for name, state in util.sorted_pairs(self.state) do
        moments[name] = {}
        for moment, t in util.sorted_pairs(state) do
            moments[name][moment] = t:clone()
        end
    end
    return { kind = self.kind, steps = self.steps, moments = moments }
end

--- Continues from a state of state_dict of an optimizer of the same kind and parameters. Options stay as they are.
---@param state table
function Optimizer:load_state_dict(state)
    want_alone(self, "load_state_dict")
    if type(state) ~= "table" or state.kind ~= self.kind or not math.tointeger(state.steps) then
        error(("optimizer:load_state_dict(): the state is that of %s, this optimizer is %s"):format(
            type(state) == "table" and tostring(state.kind) or "a " .. type(state), self.kind), 2)
    end
    for name, own in util.sorted_pairs(self.state) do
        for moment, t in util.sorted_pairs(own) do
            local given = (state.moments[name] or {})[moment]
            if not given or table.concat(given:size(), " x ") ~= table.concat(t:size(), " x ") then
                error(("optimizer:load_state_dict(): '%s' of '%s' is %s in the state; expected %s"):format(moment, name,
                    given and table.concat(given:size(), " x ") or "missing", table.concat(t:size(), " x ")), 2)
            end
        end
    end
    for name, own in util.sorted_pairs(self.state) do
        for moment, t in util.sorted_pairs(own) do
            mx.copy(t, state.moments[name][moment])
        end
    end
    self.steps = math.tointeger(state.steps)
end

--- Discards the accumulated gradients; step() does so, too. Not collective.
function Optimizer:zero_grad()
    for _, t in util.sorted_pairs(self.params) do
        local grad = t:grad()
        if grad then
            t:zero_grad()
            grad:release() -- now, not when Lua collects the handle
        end
    end
end

-- The gradient with elements of at most this magnitude; 0: as it is.
local function clamp(grad, most)
    return most > 0 and mx.minimum(mx.maximum(grad, -most), most) or grad
end

-- Changes the values of a parameter, in a scope of its own: what a rule computes is freed parameter by parameter.
local function update(self, name, values, grad, o)
    if self.rule.fused then
        return self.rule.update(values, grad, self.state[name], o)
    end
    mx.no_grad(mx.scope, function()
        values, grad = values:detach(), o.grad_scale == 1 and grad or grad * o.grad_scale
        if not self.rule.whole or not self.parallel:is_shared(name) then
            self.rule.update(values, grad, self.state[name], o)
            return
        end
        local whole = o.whole(values)
        self.rule.update(whole, o.whole(grad), self.state[name], o)
        mx.copy(values, o.own(whole))
    end)
end

--- Updates the parameters with the accumulated gradients and clears these. Parameters without a gradient stay
--- unchanged; if none has one, that is an error, except on a mesh. Clipping is part of the update. If the norm is not
--- finite or above `most`, nothing is changed and the caller must act. Collective on a mesh.
---@param most? number
---@return number norm of the gradients before clipping
function Optimizer:step(most)
    local step <close> = mx.step()
    local parallel, grads = self.parallel, {}
    for name, t in util.sorted_pairs(self.params) do
        local grad = t:grad()
        if grad then
            grads[name] = clamp(parallel:updated_gradient(name, grad), self.options.clip_value)
        end
    end
    if not next(grads) and next(self.params) and parallel == mx.parallel.alone and not most then
        error("optimizer:step(): no parameter has a gradient; call mx.backward(loss) before, with a loss that depends "
            .. "on them", 2)
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
            update(self, name, parallel:updated_values(name, t), grad, update_options(self, name, scale))
        end
    end
    self:zero_grad()
    if good then
        parallel:finish_update(self.params)
    end
    return norm
end

return util.module(optim, "mx.optim")
