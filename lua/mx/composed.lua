--- Functions of tensors that are composed of operations: mx.eye, mx.linspace, mx.unfold, mx.unique, mx.prod,
-- mx.cumprod, mx.normalize, mx.gumbel_softmax, mx.interpolate, mx.conv_transpose1d and
-- mx.conv_transpose2d. Their gradients, costs and simulation follow from those.

local core = require "mx.core"
local util = require "mx.util"

local composed = {}

--- The identity matrix.
---@param n integer
---@param dtype? string default: f32
---@return mx.Tensor
function composed.eye(n, dtype)
    return core.one_hot(core.arange(n, "i32"), { classes = n, dtype = dtype or "f32" })
end

--- n numbers from `first` to `last`, both included, at equal distances.
---@param first number
---@param last number
---@param n integer
---@param dtype? string a float; default: f32
---@return mx.Tensor
function composed.linspace(first, last, n, dtype)
    if math.type(n) ~= "integer" or n < 1 then
        error(("mx.linspace(first, last, n): n is %s; expected a whole number, at least 1%s"):format(tostring(n),
            util.not_integer(n)), 2)
    end
    local step = n > 1 and (last - first) / (n - 1) or 0.0
    return core.arange { n = n, start = first, step = step, dtype = dtype or "f32" }
end

-- The dimension of t that an option names, from 1.
local function dimension(t, dim, what)
    local n = t:dim()
    if math.type(dim) ~= "integer" or dim == 0 or dim > n or dim < -n then
        error(("%s: dim = %s, but the tensor has %d dimensions"):format(what, tostring(dim), n), 3)
    end
    return dim > 0 and dim or n + 1 + dim
end

--- Windows of `size` elements along dim, one every `step` elements: dim counts the windows, and a new last dimension
--- the elements of a window.
---@param x mx.Tensor
---@param options {size: integer, step: integer?, dim: integer?} step: default 1; dim: default the last
---@return mx.Tensor
function composed.unfold(x, options)
    local o = util.options(options, { size = 0, step = 1, dim = -1 }, "mx.unfold")
    local dim, sizes = dimension(x, o.dim, "mx.unfold"), x:size()
    if o.size < 1 or o.step < 1 or o.size > sizes[dim] then
        error(("mx.unfold: size = %s, step = %s; expected a step of at least 1, and a size of 1 to %d, which "
            .. "dimension %d has"):format(o.size, o.step, sizes[dim], dim), 2)
    end
    local count = (sizes[dim] - o.size) // o.step + 1
    local ids = core.reshape(core.arange { n = count, step = o.step, dtype = "i32" }, { count, 1 })
        + core.arange(o.size, "i32")
    local order = {}
    for d = 1, #sizes + 1 do
        order[#order + 1] = d ~= dim + 1 and d or nil
    end
    order[#order + 1] = dim + 1
    sizes[dim] = count
    table.insert(sizes, dim + 1, o.size)
    local windows = core.reshape(core.index_select(x, core.reshape(ids, { count * o.size }), { dim = dim }), sizes)
    return dim == #order - 1 and windows or core.permute(windows, { dims = order })
end

--- The different values of x in ascending order, as a constant; the place of each element of x among them, from 0, in
--- x's shape; how often each occurs. Each NaN is a value of its own. A simulated pod refuses it: the size depends on
--- values.
---@param x mx.Tensor
---@return mx.Tensor values
---@return mx.Tensor ids i32
---@return mx.Tensor counts i32
function composed.unique(x, ...)
    if select("#", ...) > 0 then
        error("mx.unique(t) takes no options; its values are those of all elements, not rows", 2)
    end
    local n = x:numel()
    local flat = core.reshape(x:detach(), { n })
    if n == 0 then
        return flat, core.zeros(x:size(), "i32"), core.zeros({ 0 }, "i32")
    end
    local sorted, order = core.sort(flat)
    local differs = core.ne(sorted[{ { 2, n } }], sorted[{ { 1, n - 1 } }]) -- from the one before
    local is_new = core.concat(core.ones({ 1 }, "u8"), differs, { dim = 1 })
    local numbers = core.cumsum(is_new) - 1 -- of the sorted elements' values
    local values = sorted[is_new]
    local ids = core.scatter(core.zeros({ n }, "i32"), order, numbers, { dim = 1 })
    local counts = core.scatter_add(core.zeros(values:size(), "i32"), numbers, core.ones({ n }, "i32"), { dim = 1 })
    return values, core.reshape(ids, { shape = x:size() }), counts
end

-- ---- products along a dimension ----

-- Positions first to last of dimension dim.
local function range(x, dim, first, last)
    return core.narrow(x, { dim = dim, start = first, length = last - first + 1 })
end

--- The product of the elements along dim, or of all elements. The gradient is exact, also where elements are 0.
---@param x mx.Tensor
---@param options? {dim: integer?, keepdim: boolean?}
---@return mx.Tensor of x's dtype; integers saturate
function composed.prod(x, options)
    local o = util.options(options, { dim = false, keepdim = false }, "mx.prod")
    local sizes, dim = {}, 1
    if o.dim then
        sizes, dim = x:size(), dimension(x, o.dim, "mx.prod")
        sizes[dim] = 1
        if not o.keepdim then
            table.remove(sizes, dim)
        end
    else
        for d = 1, o.keepdim and x:dim() or 0 do
            sizes[d] = 1
        end
        x = core.reshape(x, { x:numel() })
    end
    local n = x:size(dim)
    while n > 1 do
        local half = n // 2
        local product = range(x, dim, 1, half) * range(x, dim, half + 1, 2 * half)
        x = n % 2 == 1 and core.concat(product, range(x, dim, n, n), { dim = dim }) or product
        n = half + n % 2
    end
    return n == 0 and core.ones(sizes, x:dtype()) or core.reshape(x, { shape = sizes })
end

--- The products of x along dim up to each element. The gradient is exact, also where elements are 0.
---@param x mx.Tensor
---@param options? {dim: integer?} default: the last dimension
---@return mx.Tensor of x's dtype; integers saturate
function composed.cumprod(x, options)
    local o = util.options(options, { dim = -1 }, "mx.cumprod")
    local dim, shift = dimension(x, o.dim, "mx.cumprod"), 1
    local n = x:size(dim)
    while shift < n do -- each element is the product of up to `shift` elements that end with it
        x = core.concat(range(x, dim, 1, shift), range(x, dim, shift + 1, n) * range(x, dim, 1, n - shift),
            { dim = dim })
        shift = 2 * shift
    end
    return x
end

-- ---- unit vectors, choices ----

--- x / max(norm of x along dim, eps).
---@param x mx.Tensor
---@param options? {dim: integer|integer[]?, eps: number?} default: the last dimension, 1e-12
---@return mx.Tensor
function composed.normalize(x, options)
    local o = util.options(options, { dim = -1, eps = 1e-12 }, "mx.normalize")
    return x / core.maximum(core.norm(x, { dim = o.dim, keepdim = true }), o.eps)
end

--- A random choice with gradients: softmax((logits + Gumbel noise) / tau) along dim. `hard` makes it a row with one 1,
--- with the gradient of the soft one. Without a seed the noise comes from the stream of mx.manual_seed.
---@param logits mx.Tensor
---@param options? {tau: number?, hard: boolean?, dim: integer?, seed: integer?} default: 1, false, the last dimension
---@return mx.Tensor
function composed.gumbel_softmax(logits, options)
    local o = util.options(options, { tau = 1, hard = false, dim = -1, seed = false }, "mx.gumbel_softmax")
    local u = core.rand { shape = logits:size(), seed = o.seed or nil }
    local noise = -core.log(-core.log(u)) -- -inf where u is 0, which softmax never chooses
    local soft = core.softmax((logits + noise:to(logits:dtype())) / o.tau, { dim = o.dim })
    if not o.hard then
        return soft
    end
    local ids = core.argmax(soft, { dim = o.dim, keepdim = true })
    local hard = core.scatter(core.zeros(soft:size(), soft:dtype()), ids, core.ones(ids:size(), soft:dtype()),
        { dim = o.dim })
    return core.straight_through(hard, soft)
end

-- ---- sizes of images ----

-- Dimension dim of x, of n elements, gets `size` elements. Element i of the result is at (i + 0.5) n / size - 0.5.
local RESIZE = {}

function RESIZE.nearest(x, dim, n, size)
    local ids = {}
    for i = 1, size do
        ids[i] = (i - 1) * n // size
    end
    return core.index_select(x, core.tensor(ids, "i32"), { dim = dim })
end

function RESIZE.linear(x, dim, n, size)
    local below, above, weight = {}, {}, {}
    for i = 1, size do
        local at = math.max((i - 0.5) * n / size - 0.5, 0)
        below[i] = math.min(at // 1 | 0, n - 1)
        above[i] = math.min(below[i] + 1, n - 1)
        weight[i] = at - below[i]
    end
    local sizes = {}
    for d = 1, x:dim() do
        sizes[d] = d == dim and size or 1
    end
    local function at(ids)
        return core.index_select(x, core.tensor(ids, "i32"), { dim = dim })
    end
    local from = at(below)
    local w = core.reshape(core.tensor(weight, from:dtype()), sizes)
    return from + (at(above) - from) * w
end

--- Images (N, C, ...) in another size, as PyTorch's interpolate without align_corners.
---@param x mx.Tensor one to three dimensions after the channels
---@param options {size: integer[]|integer?, scale: number?, mode: string?} sizes of the dimensions after the channels,
---       or one for all of them, or a factor; mode "nearest" (the default) or "linear", which is bilinear for two
---       dimensions
---@return mx.Tensor
function composed.interpolate(x, options)
    local o = util.options(options, { size = {}, scale = 0, mode = "nearest" }, "mx.interpolate", {
        scale_factor = "it is scale here", align_corners = "corners are never aligned",
    })
    local resize, dims = RESIZE[o.mode], x:dim() - 2
    local size = type(o.size) == "number" and table.move({ o.size, o.size, o.size }, 1, dims, 1, {}) or o.size
    if not resize then
        error(("mx.interpolate: mode = '%s'; expected nearest or linear"):format(tostring(o.mode)), 2)
    elseif dims < 1 or dims > 3 then
        error(("mx.interpolate: x has %d dimensions; expected (N, C, ...) with one to three more"):format(x:dim()), 2)
    elseif (#size > 0) == (o.scale ~= 0) or (#size > 0 and #size ~= dims) then
        error(("mx.interpolate takes size = { ... } with %d numbers, or a scale"):format(dims), 2)
    end
    local shape = x:size()
    for d = 3, dims + 2 do
        local to = size[d - 2] or shape[d] * o.scale
        to = math.tointeger(to) or to
        if math.type(to) ~= "integer" or to < 1 or shape[d] < 1 then
            error(("mx.interpolate: dimension %d has %d elements and would get %s; expected whole numbers of at least 1"
                ):format(d, shape[d], tostring(to)), 2)
        end
        x = to == shape[d] and x or resize(x, d, shape[d], to)
    end
    return x
end

-- ---- transposed convolutions ----

local function list(value, n)
    return type(value) == "table" and value or table.move({ value, value }, 1, n, 1, {})
end

-- The transposed convolution over n dimensions is the gradient of the convolution by its input.
local function conv_transpose(name, gradient, n)
    return function(x, w, bias, options)
        if type(bias) == "table" then
            bias, options = nil, bias
        end
        local o = util.options(options, {
            stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1,
        }, "mx." .. name)
        if x:dim() ~= n + 2 or w:dim() ~= n + 2 then
            error(("mx.%s: x and w have %d and %d dimensions; expected %d"):format(name, x:dim(), w:dim(), n + 2), 2)
        end
        local stride, padding, dilation = list(o.stride, n), list(o.padding, n), list(o.dilation, n)
        local extra, channels = list(o.output_padding, n), w:size(2) * o.groups
        local size = { x:size(1), channels }
        for d = 1, n do
            if extra[d] < 0 or extra[d] >= stride[d] then
                error(("mx.%s: output_padding = %d; expected at least 0 and less than the stride, %d"):format(name,
                    extra[d], stride[d]), 2)
            end
            size[d + 2] = (x:size(d + 2) - 1) * stride[d] - 2 * padding[d] + dilation[d] * (w:size(d + 2) - 1)
                + extra[d] + 1
        end
        local y = gradient(w, x, {
            size = size, stride = stride, padding = padding, dilation = dilation, groups = o.groups,
        })
        return bias and y + core.reshape(bias, table.move({ 1, 1, 1 }, 1, n, 3, { 1, channels })) or y
    end
end

--- The transposed convolution of x (N, C, L) with w (C, O / groups, K) and a bias (O): its results are as many as the
--- inputs of the convolution whose results are like x. Options: stride, padding, output_padding, dilation, groups.
---@type fun(x: mx.Tensor, w: mx.Tensor, bias: mx.Tensor?, options: table?): mx.Tensor
composed.conv_transpose1d = conv_transpose("conv_transpose1d", core.conv1d_grad, 1)

--- The same for x (N, C, H, W) and w (C, O / groups, K, L).
---@type fun(x: mx.Tensor, w: mx.Tensor, bias: mx.Tensor?, options: table?): mx.Tensor
composed.conv_transpose2d = conv_transpose("conv_transpose2d", core.conv2d_grad, 2)

return composed
