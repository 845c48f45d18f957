--- Norms of tensors with channels, (N, C, ...): mx.batch_norm over everything but the channels, mx.group_norm over the
-- channels of a group. Composed of operations, in f32; so their gradients may be differentiated again.

local core = require "mx.core"
local util = require "mx.util"

local norms = {}

--- x as (N, C, rest), in f32, and the shape (1, C, 1) of what belongs to channels.
local function read(x, weight, bias, name)
    local shape = x:size()
    if #shape < 2 then
        error(("%s: x has %d dimensions; expected (N, C, ...)"):format(name, #shape), 3)
    end
    local channels = shape[2]
    for what, t in pairs { weight = weight, bias = bias } do
        if t:dim() ~= 1 or t:size(1) ~= channels then
            error(("%s: %s must have one dimension of %d, the channels of x"):format(name, what, channels), 3)
        end
    end
    local wide = x:dtype() == "f64" and x or x:to("f32")
    return wide:view(shape[1], channels, x:numel() > 0 and -1 or 0), { 1, channels, 1 }
end

local function mean_of_channels(t)
    return core.mean(core.mean(t, { dim = 3, keepdim = true }), { dim = 1, keepdim = true })
end

--- Options may come right after the tensors that are given, as in operations.
local function arguments(weight, bias, options)
    if type(weight) == "table" then
        return nil, nil, weight
    elseif type(bias) == "table" then
        return weight, nil, bias
    end
    return weight, bias, options or {}
end

local function finish(y, x, weight, bias, per_channel)
    if weight then
        y = y * weight:view(per_channel)
    end
    if bias then
        y = y + bias:view(per_channel)
    end
    return y:view(x:size()):to(x:dtype())
end

--- (x - mean) / sqrt(var + eps) weight + bias for each channel, with the mean and the variance (divided by the number
--- of elements) of the batch, or those that are given.
---@param x any (N, C, ...)
---@param weight any? (C)
---@param bias any? (C)
---@param options table? { eps = 1e-5, mean = (C), var = (C) }
---@return any y, any mean, any var both (C), f32, or f64 for an x of f64
function norms.batch_norm(x, weight, bias, options)
    weight, bias, options = arguments(weight, bias, options)
    local o = util.options(options, { eps = 1e-5, mean = false, var = false }, "batch_norm")
    if (o.mean and true) ~= (o.var and true) then
        error("batch_norm: mean and var are given together, or neither", 2)
    end
    local t, per_channel = read(x, weight, bias, "batch_norm")
    local mean, var = o.mean, o.var
    mean = mean and mean:view(per_channel) or mean_of_channels(t)
    local centred = t - mean
    var = var and var:view(per_channel) or mean_of_channels(core.square(centred))
    local y = finish(centred * core.rsqrt(var + o.eps), x, weight, bias, per_channel)
    return y, mean:view(t:size(2)), var:view(t:size(2))
end

--- The same with mean and variance of the elements of each group of channels, in each of the N.
---@param x any (N, C, ...)
---@param weight any? (C)
---@param bias any? (C)
---@param options table { groups =, eps = 1e-5 }
---@return any y
function norms.group_norm(x, weight, bias, options)
    weight, bias, options = arguments(weight, bias, options)
    local o = util.options(options, { eps = 1e-5, groups = 1 }, "group_norm")
    local t, per_channel = read(x, weight, bias, "group_norm")
    local n, channels = t:size(1), t:size(2)
    if o.groups < 1 or channels % o.groups ~= 0 then
        error(("group_norm: groups = %s must divide the %d channels"):format(o.groups, channels), 2)
    end
    local rows = t:view(n, o.groups, channels // o.groups * t:size(3))
    local centred = rows - core.mean(rows, { dim = 3, keepdim = true })
    local var = core.mean(core.square(centred), { dim = 3, keepdim = true })
    local y = centred * core.rsqrt(var + o.eps)
    return finish(y:view(n, channels, t:size(3)), x, weight, bias, per_channel)
end

return norms
