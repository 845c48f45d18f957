--- Layers for models of one's own: attention, MLPs, recurrent cells, sequences of layers.

local mx = require "mx"
local util = require "mx.util"

local layers = {}

--- Attention of a sequence to itself, f(x), or to another one, f(x, { memory = y, mask = m }): x (B, S, width) and
--- memory (B, T, memory_width) -> (B, S, width). mask is the bias of mx.attention, (B, heads, S, T), of which all but
--- T may be 1: u8, 1 where a query attends to a key, or floats, which are added to the scores. With rope, queries and
--- keys turn with their position.
---@param params table
---@param name string
---@param width integer
---@param options table heads (required), kv_heads (default: heads), head_dim (width / heads), causal (true), window
---       (0: all before), rope (the base, such as 10000; 0: none), memory_width (width), bias (false), seed,
---       dropout (of attention weights, 0; otherwise each call says whether it trains: only f(x, { training = true })
---       drops some)
---@return fun(x: any, given: {memory: any, mask: any, training: boolean?}?): any
function layers.attention(params, name, width, options)
    local o = util.options(options, {
        heads = 0, kv_heads = 0, head_dim = 0, causal = true, window = 0, rope = 0.0, memory_width = width,
        bias = false, seed = 0, dropout = 0.0,
    }, "mx.nn.attention", { num_heads = "it is heads here" })
    local H = o.heads
    if H < 1 or o.head_dim == 0 and width % H ~= 0 then
        error(("mx.nn.attention: heads = %d; expected a divisor of the width %d, or head_dim, too"):format(H, width), 2)
    end
    local K, D = o.kv_heads > 0 and o.kv_heads or H, o.head_dim > 0 and o.head_dim or width // H
    if not (o.dropout >= 0 and o.dropout < 1) then
        error(("mx.nn.attention: dropout = %g; expected a number from 0 to below 1"):format(o.dropout), 2)
    end
    if H % K ~= 0 then
        error(("mx.nn.attention: kv_heads = %d do not divide the %d heads"):format(K, H), 2)
    end
    local function product(part, n_in, n_out)
        return mx.nn.linear(params, name .. "." .. part, n_in, n_out, { bias = o.bias, seed = o.seed })
    end
    local query, key, value = product("query", width, H * D), product("key", o.memory_width, K * D),
        product("value", o.memory_width, K * D)
    local out = product("out", H * D, width)
    return function(x, given)
        given = given and util.arguments(given, {}, { "memory", "mask", "training" }, "an attention layer") or {}
        if o.dropout > 0 and given.training == nil then
            error(("mx.nn.attention: the layer has dropout = %g: f(x, { training = true }) drops weights, f(x, "
                .. "{ training = false }) does not"):format(o.dropout), 2)
        end
        local memory = given.memory or x
        if x:dim() ~= 3 or memory:dim() ~= 3 then
            error(("mx.nn.attention: x has %d dimensions, and what it attends to %d; expected (B, S, width)"):format(
                x:dim(), memory:dim()), 2)
        end
        if given.memory and (o.causal or o.window > 0 or o.rope > 0) then
            error("mx.nn.attention: a layer that attends to another sequence (memory) takes causal = false, and no "
                .. "window or rope, because positions there are others", 2)
        end
        local B, S, T = x:size(1), x:size(2), memory:size(2)
        local q, k, v = query(x):view(B, S, H, D), key(memory):view(B, T, K, D), value(memory):view(B, T, K, D)
        if o.rope > 0 then
            q, k = mx.rope(q, { theta = o.rope }), mx.rope(k, { theta = o.rope })
        end
        local attended = mx.attention(q, k, v, { bias = given.mask, causal = o.causal, window = o.window,
            dropout = given.training and o.dropout or 0 })
        return out(attended:view(B, S, H * D))
    end
end

--- Two products with an activation between: (..., width) -> (..., width). Gated: activation(x W) times x V, times O.
---@param params table
---@param name string
---@param width integer
---@param hidden integer
---@param options? table activation (gelu, silu or relu; default: gelu), gated (false), bias (false), seed
---@return fun(x: any): any
function layers.mlp(params, name, width, hidden, options)
    local o = util.options(options, { activation = "gelu", gated = false, bias = false, seed = 0 }, "mx.nn.mlp")
    if not util.contains({ "gelu", "silu", "relu" }, o.activation) then
        error(("mx.nn.mlp: activation = %s; expected gelu, silu or relu"):format(o.activation), 2)
    end
    local function product(part, n_in, n_out)
        return mx.nn.linear(params, name .. "." .. part, n_in, n_out, { bias = o.bias, seed = o.seed })
    end
    local up, gate = product("up", width, hidden), o.gated and product("gate", width, hidden) or nil
    local down = product("down", hidden, width)
    return function(x)
        if gate then
            return down(mx.gated(gate(x), up(x), { activation = o.activation }))
        end
        return down(mx[o.activation](up(x)))
    end
end

--- Functions one after the other: layers of this module, mx.relu, or your own.
---@param ... fun(x: any): any
---@return fun(x: any): any
function layers.sequential(...)
    local list = { ... }
    for i, f in ipairs(list) do
        if type(f) ~= "function" and not (getmetatable(f) or {}).__call then
            error(("mx.nn.sequential: argument %d is a %s, not a function"):format(i, type(f)), 2)
        end
    end
    return function(x)
        for _, f in ipairs(list) do
            x = f(x)
        end
        return x
    end
end

-- ---- recurrent cells ----

-- The products of a cell with `gates` gates: of the input and of the state.
local function gates_of(params, name, n_in, n, gates, seed)
    local std = 1 / math.sqrt(3 * n) -- that of torch's uniform numbers within 1 / sqrt(n)
    local o = { bias = true, std = std, seed = seed }
    return mx.nn.linear(params, name .. ".input", n_in, gates * n, o), mx.nn.linear(params, name .. ".state", n,
        gates * n, o)
end

local function part(t, i, n)
    return mx.narrow(t, { dim = -1, start = (i - 1) * n + 1, length = n })
end

--- A long short-term memory: x (B, n_in) and the state {h, c}, each (B, n), or nil for zeros -> h and the new state.
--- Gates in the order of torch: input, forget, cell, output.
---@param params table
---@param name string
---@param n_in integer
---@param n integer
---@param options? {seed: integer}
---@return fun(x: any, state: any[]?): any, any[]
function layers.lstm_cell(params, name, n_in, n, options)
    local o = util.options(options, { seed = 0 }, "mx.nn.lstm_cell")
    local input, recurrent = gates_of(params, name, n_in, n, 4, o.seed)
    return function(x, state)
        state = state or { mx.zeros({ x:size(1), n }, x:dtype()), mx.zeros({ x:size(1), n }, x:dtype()) }
        local gates = input(x) + recurrent(state[1])
        local c = mx.sigmoid(part(gates, 2, n)) * state[2] + mx.sigmoid(part(gates, 1, n)) * mx.tanh(part(gates, 3, n))
        local h = mx.sigmoid(part(gates, 4, n)) * mx.tanh(c)
        return h, { h, c }
    end
end

--- A gated recurrent unit: x (B, n_in) and the state {h}, or nil for zeros -> h and the new state. Gates in the order
--- of torch: reset, update, new.
---@param params table
---@param name string
---@param n_in integer
---@param n integer
---@param options? {seed: integer}
---@return fun(x: any, state: any[]?): any, any[]
function layers.gru_cell(params, name, n_in, n, options)
    local o = util.options(options, { seed = 0 }, "mx.nn.gru_cell")
    local input, recurrent = gates_of(params, name, n_in, n, 3, o.seed)
    return function(x, state)
        local h = state and state[1] or mx.zeros({ x:size(1), n }, x:dtype())
        local from_x, from_h = input(x), recurrent(h)
        local r = mx.sigmoid(part(from_x, 1, n) + part(from_h, 1, n))
        local z = mx.sigmoid(part(from_x, 2, n) + part(from_h, 2, n))
        local new = mx.tanh(part(from_x, 3, n) + r * part(from_h, 3, n))
        h = new + z * (h - new)
        return h, { h }
    end
end

--- Runs a cell over a sequence: x (B, S, n_in) -> the outputs (B, S, n), and the last state.
---@param cell fun(x: any, state: any[]?): any, any[]
---@return fun(x: any, state: any[]?): any, any[]
function layers.recurrent(cell)
    return function(x, state)
        if x:dim() ~= 3 then
            error(("mx.nn.recurrent: x has %d dimensions; expected (B, S, n_in)"):format(x:dim()), 2)
        end
        local outputs = {}
        for s = 1, x:size(2) do
            outputs[s], state = cell(mx.narrow(x, { dim = 2, start = s, length = 1 }):view(x:size(1), x:size(3)), state)
        end
        return mx.stack(outputs, { dim = 2 }), state
    end
end

return layers
