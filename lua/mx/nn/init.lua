--- Building blocks for models. The caller owns the parameters as a plain table, name -> tensor. Optimizers update that
--- table, and it can be saved and printed.
--
--     local params = {}
--     local hidden = mx.nn.linear(params, "hidden", 2, 32, { bias = true })
--     local y = hidden(x):tanh()

local mx = require "mx"
local buffers_by_key = require "mx.checkpoint.buffers"
local util = require "mx.util"

local nn = {}

local NONE = {} -- no part: the whole tensor
local seeds = setmetatable({}, { __mode = "k" }) -- of tables of parameters: nn.seed

-- Checks the arguments that all layers begin with: the table, the name, then sizes by their names.
local function check(kind, params, name, ...)
    local sizes, call = { ... }, { "params", "name" }
    for i = 1, #sizes, 2 do
        call[#call + 1] = sizes[i]
    end
    local function refuse(which, value, expected)
        error(("mx.nn.%s(%s, options): %s is %s; expected %s"):format(kind, table.concat(call, ", "), which,
            type(value) == "table" and "a table" or tostring(value), expected), 4)
    end
    if type(params) ~= "table" then
        refuse("params", params, "the table that the layer adds its parameters to")
    elseif type(name) ~= "string" then
        refuse("name", name, "a text, with which the names of its parameters begin")
    end
    for i = 1, 2 * (#call - 2), 2 do
        if math.type(sizes[i + 1]) ~= "integer" or sizes[i + 1] < 1 then
            refuse(sizes[i], sizes[i + 1], "a whole number of at least 1" .. util.not_integer(sizes[i + 1]))
        end
    end
end

-- Creates a tensor, or this rank's part of one, and adds it to a table.
local function create(list, kind, name, shape, options)
    local what = "mx.nn." .. kind
    local o = util.options(options, { std = 0, value = 0, seed = 0, dtype = "f32", part = NONE }, what)
    if list[name] then
        error(("a %s is already called '%s'"):format(kind, name), 3)
    end
    local part, t = o.part
    if o.std == 0 then
        t = mx.full { shape = part.sizes or shape, value = o.value, dtype = o.dtype }
    else
        t = mx.randn {
            shape = part.sizes or shape, of = part.sizes and shape, start = part.start, std = o.std,
            seed = util.seed(name, util.mix(seeds[list] or 0) + o.seed), dtype = o.dtype,
        }
    end
    list[name] = mx.name(t:keep(), name)
    return t
end

--- From now on the initial weights of what is added to `params` come from seed n, too. Without it, layers of one name
--- and size are equal in all tables and runs: the members of an ensemble, or repetitions of an experiment, take a seed
--- each.
---@param params table
---@param n integer
---@return table params
function nn.seed(params, n)
    if type(params) ~= "table" or math.type(n) ~= "integer" then
        error(("mx.nn.seed(params, n): got a %s and %s; expected the table of parameters and a whole number"):format(
            type(params), tostring(n)), 2)
    end
    seeds[params] = n
    return params
end

--- Creates a parameter and adds it to `params`. Its values depend only on name, shape, its seed and that of nn.seed. A
--- part gets the values that the whole parameter would have there, and the whole is not created.
---@param params table<string, any>
---@param name string
---@param shape integer[] of the whole parameter
---@param options? table std (normally distributed) or value (constant; 0 unless given), seed, dtype, part (of
---       mx.Parallel:part: sizes and start of this rank's part)
---@return any tensor that collects a gradient
function nn.parameter(params, name, shape, options)
    return create(params, "parameter", name, shape, options):requires_grad()
end

--- Creates a buffer and adds it to `buffers`: state of a model that training changes without a gradient, such as a
--- running mean. Optimizers ignore it. Checkpoints save and restore it (option `buffers` of mx.checkpoint.saver and
--- mx.checkpoint.load; field `buffers` of a model). A checkpoint has one copy of each buffer, so all ranks must change
--- it in the same way, with values that are the same on all ranks, such as all-reduced ones.
---@param buffers table<string, any>
---@param name string
---@param shape integer[]
---@param options? table those of mx.nn.parameter
---@return any tensor without a gradient, to be changed in place
function nn.buffer(buffers, name, shape, options)
    return create(buffers, "buffer", name, shape, options)
end

--- y = x W + b: (..., n_in) -> (..., n_out), W being (n_in, n_out).
---@param params table
---@param name string
---@param n_in integer
---@param n_out integer
---@param options? {bias: boolean, std: number, seed: integer} std: default 1/sqrt(n_in)
---@return fun(x: any): any
function nn.linear(params, name, n_in, n_out, options)
    check("linear", params, name, "n_in", n_in, "n_out", n_out)
    local o = util.options(options, { bias = false, std = 1 / math.sqrt(n_in), seed = 0 }, "mx.nn.linear")
    local weight = nn.parameter(params, name .. ".weight", { n_in, n_out }, { std = o.std, seed = o.seed })
    local bias = o.bias and nn.parameter(params, name .. ".bias", { n_out }) or nil
    return function(x)
        return mx.matmul(x, weight, bias)
    end
end

--- Rows of a table: ids (...) i32, counted from 0, -> (..., width).
---@param params table
---@param name string
---@param entries integer
---@param width integer
---@param options? {std: number, seed: integer, dtype: string} dtype of the result
---@return fun(ids: any): any
function nn.embedding(params, name, entries, width, options)
    check("embedding", params, name, "entries", entries, "width", width)
    local o = util.options(options, { std = 1, seed = 0, dtype = "f32" }, "mx.nn.embedding")
    local weight = nn.parameter(params, name .. ".weight", { entries, width }, { std = o.std, seed = o.seed })
    return function(ids)
        return mx.embedding(weight, ids, { dtype = o.dtype })
    end
end

-- Convolutions over n dimensions: the weight is (n_out, n_in / groups, size ...), that of a transposed one (n_in,
-- n_out / groups, size ...), as in PyTorch.
local function convolution(kind, n)
    local is_transposed = kind:find("transpose") ~= nil
    return function(params, name, n_in, n_out, size, options)
        local sizes = type(size) == "table" and size or { size, n == 2 and size or nil }
        local bad = #sizes ~= n and size
        for _, one in ipairs(sizes) do
            bad = bad or math.type(one) ~= "integer" and one
        end
        check(kind, params, name, "n_in", n_in, "n_out", n_out, "size", bad or sizes[1])
        local with = { stride = 1, padding = 0, dilation = 1, groups = 1, output_padding = is_transposed and 0 or nil }
        local standard = { bias = false, std = 0, seed = 0 }
        for key, value in pairs(with) do
            standard[key] = value
        end
        local o = util.options(options, standard, "mx.nn." .. kind, { kernel_size = "the size is the argument before" })
        for key in pairs(with) do
            with[key] = o[key]
        end
        if o.groups < 1 or n_in % o.groups ~= 0 or n_out % o.groups ~= 0 then
            error(("mx.nn.%s: groups = %d must divide %d and %d channels"):format(kind, o.groups, n_in, n_out), 2)
        end
        local shape = { n_out, n_in // o.groups, table.unpack(sizes) }
        if is_transposed then
            shape[1], shape[2] = n_in, n_out // o.groups
        end
        local std = o.std > 0 and o.std or (n_in // o.groups * sizes[1] * (sizes[2] or 1)) ^ -0.5
        local weight = nn.parameter(params, name .. ".weight", shape, { std = std, seed = o.seed })
        local bias = o.bias and nn.parameter(params, name .. ".bias", { n_out }) or nil
        return function(x)
            return mx[kind](x, weight, bias, with)
        end
    end
end

--- A convolution with a kernel of `size` elements: (N, n_in, L) -> (N, n_out, L').
---@type fun(params: table, name: string, n_in: integer, n_out: integer, size: integer, options?: table): function
---      options: bias (false), stride, padding, dilation, groups as in mx.conv1d; std (default 1/sqrt(inputs)), seed
nn.conv1d = convolution("conv1d", 1)

--- The same with a kernel of `size` x `size`, or size = { rows, columns }: (N, n_in, H, W) -> (N, n_out, H', W').
---@type fun(params: table, name: string, n_in: integer, n_out: integer, size: integer|table, options?: table): function
nn.conv2d = convolution("conv2d", 2)

--- Transposed convolutions, with the options of mx.conv_transpose1d and mx.conv_transpose2d, bias, std and seed.
---@type fun(params: table, name: string, n_in: integer, n_out: integer, size: integer, options?: table): function
nn.conv_transpose1d, nn.conv_transpose2d = convolution("conv_transpose1d", 1), convolution("conv_transpose2d", 2)

--- RMSNorm over the last dimension: (..., width) -> (..., width).
---@param params table
---@param name string
---@param width integer
---@param options? {eps: number}
---@return fun(x: any): any
function nn.rmsnorm(params, name, width, options)
    check("rmsnorm", params, name, "width", width)
    local o = util.options(options, { eps = 1e-6 }, "mx.nn.rmsnorm")
    local weight = nn.parameter(params, name .. ".weight", { width }, { value = 1 })
    return function(x)
        return mx.rmsnorm(x, weight, { eps = o.eps })
    end
end

--- LayerNorm over the last dimension: (..., width) -> (..., width).
---@param params table
---@param name string
---@param width integer
---@param options? {eps: number, bias: boolean} bias: default true
---@return fun(x: any): any
function nn.layernorm(params, name, width, options)
    check("layernorm", params, name, "width", width)
    local o = util.options(options, { eps = 1e-5, bias = true }, "mx.nn.layernorm")
    local weight = nn.parameter(params, name .. ".weight", { width }, { value = 1 })
    local bias = o.bias and nn.parameter(params, name .. ".bias", { width }) or nil
    return function(x)
        return mx.layernorm(x, weight, bias, { eps = o.eps })
    end
end

-- A weight of ones and a bias of zeros for each channel.
local function channel_scale(params, name, channels)
    return nn.parameter(params, name .. ".weight", { channels }, { value = 1 }),
        nn.parameter(params, name .. ".bias", { channels })
end

--- GroupNorm of x (N, channels, ...). With as many groups as channels it is InstanceNorm.
---@param params table
---@param name string
---@param channels integer
---@param options {groups: integer, eps: number?} eps: default 1e-5
---@return fun(x: any): any
function nn.group_norm(params, name, channels, options)
    check("group_norm", params, name, "channels", channels)
    local o = util.options(options, { groups = 0, eps = 1e-5 }, "mx.nn.group_norm")
    if o.groups < 1 or channels % o.groups ~= 0 then
        error(("mx.nn.group_norm: groups = %s; expected a divisor of %d channels"):format(o.groups, channels), 2)
    end
    local weight, bias = channel_scale(params, name, channels)
    return function(x)
        return mx.group_norm(x, weight, bias, { groups = o.groups, eps = o.eps })
    end
end

--- BatchNorm of x (N, channels, ...). f(x, true) is training: it uses the mean and variance of the batch, and updates
--- the running ones as PyTorch does: running = (1 - momentum) * running + momentum * that of the batch, the unbiased
--- variance. f(x) uses the running ones. Each rank has the statistics of its own batches: average the buffers over the
--- ranks (mx.all_reduce_ with op = "mean") before you save or use them.
---@param params table
---@param name string
---@param channels integer
---@param options {buffers: table, momentum: number?, eps: number?} the table that gets the running name.mean and
---       name.var; default: 0.1, 1e-5
---@return fun(x: any, trains: boolean?): any
function nn.batch_norm(params, name, channels, options)
    check("batch_norm", params, name, "channels", channels)
    local o = util.options(options, { buffers = false, momentum = 0.1, eps = 1e-5 }, "mx.nn.batch_norm")
    if not o.buffers then
        error("mx.nn.batch_norm: the option buffers must be given: a table, for the running mean and variance", 2)
    end
    local buffers = o.buffers
    local weight, bias = channel_scale(params, name, channels)
    local mean, var = nn.buffer(buffers, name .. ".mean", { channels }),
        nn.buffer(buffers, name .. ".var", { channels }, { value = 1 })
    local function take(running, value)
        mx.copy(running, running * (1 - o.momentum) + value:detach() * o.momentum)
    end
    return function(x, trains)
        if not trains then
            return (mx.batch_norm(x, weight, bias, { mean = mean, var = var, eps = o.eps }))
        end
        local y, batch_mean, batch_var = mx.batch_norm(x, weight, bias, { eps = o.eps })
        local n = x:numel() / channels
        mx.no_grad(mx.scope, function()
            take(mean, batch_mean)
            take(var, batch_var * (n / math.max(n - 1, 1)))
        end)
        return y
    end
end

-- The layers of layers.lua.
for name, layer in pairs(require "mx.nn.layers") do
    nn[name] = layer
end

-- ---- a table of parameters ----

--- Stops training the parameters whose names match one of the expressions (regular ones, PCRE2), or trains them again.
--- Optimizers skip a parameter without a gradient.
---@param params table
---@param patterns string[]|string
---@param trains? boolean true: train them again
---@return integer how many match; none is an error, since a misspelt name would freeze nothing
function nn.freeze(params, patterns, trains)
    local matches, n = mx.models.masks.of(patterns), 0
    for name, t in util.sorted_pairs(params) do
        if matches(name) then
            t:requires_grad(trains or false)
            n = n + 1
        end
    end
    if n == 0 then
        error(("mx.nn.freeze: no parameter's name matches %s"):format(mx.models.masks.text(patterns)), 2)
    end
    return n
end

--- A copy of the values of parameters or buffers, for load_state or mx.save. Not collective.
---@param params table
---@return table<string, any>
function nn.state(params)
    local state = {}
    for name, t in util.sorted_pairs(params) do
        state[name] = t:detach():clone():keep()
    end
    return state
end

--- Gives parameters the values of a state with the same names and shapes. Not collective.
---@param params table
---@param state table<string, any>
function nn.load_state(params, state)
    for name in util.sorted_pairs(state) do
        if not params[name] then
            util.refuse("the state has '%s', which the parameters lack", name)
        end
    end
    for name, t in util.sorted_pairs(params) do
        local values = state[name] or util.refuse("the state lacks '%s'", name)
        local got, want = table.concat(values:size(), "x"), table.concat(t:size(), "x")
        if got ~= want then
            util.refuse("'%s' is %s in the state, and %s in the parameters", name, got, want)
        end
    end
    for name, t in util.sorted_pairs(params) do
        mx.no_grad(mx.copy, t:detach(), state[name]:to(t:dtype()))
    end
end

--- A table of parameters as text: sizes, dtypes and values of each, and with a function the FLOPs of one call of it.
---@param params table
---@param fn? fun(...): any called once, unrecorded, with the arguments after it
---@param ... any
---@return string
function nn.summary(params, fn, ...)
    local lines, width = {}, 9
    for name in pairs(params) do
        width = math.max(width, #name)
    end
    local row = "%-" .. width .. "s  %-16s %-5s %15s"
    lines[1] = row:format("parameter", "sizes", "dtype", "values")
    for name, t in util.sorted_pairs(params) do
        lines[#lines + 1] = row:format(name, table.concat(t:size(), " x "), t:dtype(), util.thousands(t:numel()))
    end
    lines[#lines + 1] = row:format("all", "", "", util.thousands(nn.count(params)))
    if fn then
        local arguments = table.pack(...)
        mx.profile(true)
        local ok, message = pcall(mx.no_grad, mx.scope, function()
            fn(table.unpack(arguments, 1, arguments.n))
        end)
        mx.profile(false)
        if not ok then
            error(message, 2)
        end
        local flops = 0
        for _, op in ipairs(mx.profile_report()) do
            flops = flops + op.flops
        end
        lines[#lines + 1] = ("one call: %s FLOP"):format(util.thousands(math.floor(flops)))
    end
    return table.concat(lines, "\n")
end

--- The number of values in a table of parameters.
---@param params table
---@return integer
function nn.count(params)
    local n = 0
    for _, t in pairs(params) do
        n = n + t:numel()
    end
    return n
end

--- Writes parameters to an HDF5 file: the complete file or none. Not collective: one rank calls it.
---@param params table
---@param path string
---@param attributes? table<string, any> stored with them
function nn.save(params, path, attributes)
    mx.io.h5_write(path, params, attributes or {})
end

-- Reads this rank's part of a tensor, a few rows at a time.
local function load_part(file, name, t, part)
    for first, length in util.pieces(part.sizes[1] or 1, part.of, 1) do
        mx.scope(function()
            if #part.of == 0 then
                return mx.copy(t, util.attempt(file.read, file, name))
            end
            local values = util.attempt(file.read, file, name, { first = part.start[1] + first - 1, rows = length })
            for d = 2, #part.of do
                if part.sizes[d] < part.of[d] then
                    values = mx.narrow(values, { dim = d, start = part.start[d], length = part.sizes[d] })
                end
            end
            mx.copy(mx.narrow(t:detach(), { dim = 1, start = first, length = length }), values)
        end)
    end
end

--- Fills parameters, and buffers if given, from an HDF5 file that holds the same names and shapes. Buffers of some keys
--- may be missing (checkpoint/buffers.lua). Not collective.
---@param params table
---@param path string
---@param parallel? mx.Parallel determines this rank's part of each tensor
---@param buffers? table the file has them under buffers/
function nn.load(params, path, parallel, buffers)
    local file <close> = util.attempt(mx.io.h5_open, path)
    local wanted, shapes, missing = {}, {}, {}
    for name, t in pairs(params) do
        wanted[name] = { name = name, tensor = t }
    end
    for name, t in pairs(buffers or {}) do
        wanted[mx.checkpoint.BUFFER .. name] = { name = name, tensor = t }
    end
    for _, entry in ipairs(file:info()) do
        shapes[entry.name] = table.concat(entry.shape or {}, "x")
        local elsewhere = parallel and not parallel:holds(entry.name)
        if not wanted[entry.name] and not elsewhere and not buffers_by_key.may_drop(entry.name) then
            util.refuse("%s has a parameter '%s' that the model lacks", path, entry.name)
        end
    end
    for stored_name, one in pairs(wanted) do
        missing[stored_name] = not shapes[stored_name] and one.tensor or nil
    end
    local refused = buffers_by_key.start(path, missing)
    if refused then
        util.refuse("%s has no parameter '%s': it belongs to another model", path, refused)
    end
    for stored_name, one in util.sorted_pairs(wanted) do
        local part = (parallel or mx.parallel.alone):part(one.name, one.tensor:size())
        local want = table.concat(part.of, "x")
        if not missing[stored_name] and shapes[stored_name] ~= want then
            util.refuse("%s: '%s' is %s, the model's is %s", path, stored_name, shapes[stored_name], want)
        elseif not missing[stored_name] then
            load_part(file, stored_name, one.tensor, part)
        end
    end
end

return util.module(nn, "mx.nn")
