--- A model without a mesh: the methods of mx.Parallel for ranks that each have the whole model. They send and split
--- nothing, so models, optimizers and training loops can call them without checking whether there is a mesh.

local mx = require "mx"
local stored = require "mx.parallel.parts"
local util = require "mx.util"

---@class mx.Alone
---@field mesh nil
---@field parts integer ranks that a mesh would have with different tokens
---@field seed number of a backward pass
---@field prefetch_layers integer
---@field column integer the first feature of the residual stream, from 0
---@field context string[] axes that split sequences: none
local Alone = { entries = {}, parts = 1, seed = 1, prefetch_layers = 0, column = 0, context = {} }
Alone.__index = Alone

local function nothing() end

-- What comes first after the model's name or kind, as it is.
local function second(_, _, value)
    return value
end

local function first(_, value)
    return value
end

-- ---- stored and updated parts: everything ----

Alone.part, Alone.place = stored.part, stored.place -- without entries: all of each tensor
Alone.whole, Alone.whole_of_stage, Alone.piece = stored.whole, stored.whole_of_stage, stored.piece
Alone.holders, Alone.share_copies = nothing, nothing -- nil: there are no stages
Alone.updated, Alone.update_place = nothing, nothing -- nil: all of it
Alone.is_gathered, Alone.gather_of_codes = nothing, nothing -- nil: no
Alone.gather, Alone.updated_gradient, Alone.updated_values = second, second, second
Alone.whole_update, Alone.own_update = second, second
Alone.flush, Alone.prefetch, Alone.add_gradients, Alone.finish_update = nothing, nothing, nothing, nothing
Alone.gather_once = nothing
Alone.of_chunk = first -- there is one chunk, with all parameters
Alone.uneven = nothing -- nil: nothing is split

function Alone.is_shared()
    return false
end

function Alone.holds()
    return true
end

function Alone.names(_, params)
    return util.sorted_keys(params)
end

function Alone.from_stage(_, _, t)
    return t
end

--- The sum of the squares of all gradients.
---@param squares table<string, number>
---@return number
function Alone.sum_of_squares(_, squares)
    local sum = 0
    for _, value in util.sorted_pairs(squares) do
        sum = sum + value
    end
    return sum
end

-- ---- around products ----

Alone.enter, Alone.leave = first, first

--- A norm over the features of x (B, S, E).
---@param norm table of a block
---@param x any
---@param weight any
---@param bias any or nil
---@return any
function Alone.norm(_, norm, x, weight, bias)
    if norm.kind == "layernorm" then
        return mx.layernorm(x, weight, bias, { eps = norm.eps })
    end
    return mx.rmsnorm(x, weight, { eps = norm.eps })
end

--- A norm over the features of all heads.
function Alone.norm_of_heads(_, norm, x, weight)
    return Alone:norm(norm, x, weight)
end

--- Whether the products of attention and MLP can be summed together: there is no sum over ranks.
---@return boolean
function Alone.splits_alike(_)
    return false
end

---@param part table of a block
---@return integer heads, integer kv_heads
function Alone.heads(_, part)
    return part.heads, part.kv_heads
end

--- The part of n rows that a product's ranks have.
---@param n integer
---@return integer first, integer count
function Alone.part_of(_, _, n)
    return 1, n
end

function Alone.intervals(_, segments)
    return mx.attention_intervals(segments)
end

function Alone.attention(_, q, k, v, run, options, sinks)
    return mx.name(mx.attention(q, k, v, run.intervals, nil, nil, sinks, options), "context")
end

-- ---- tables of tokens: whole ----

--- The rows of the table at these ids.
---@param weight any (V, E)
---@param ids any (B, S) i32
---@param dtype string
---@return any (B, S, E)
function Alone.embedding(_, weight, ids, dtype)
    return mx.embedding(weight, ids, { dtype = dtype })
end

function Alone.tile_loss(_, h)
    return h
end

--- The mean cross entropy of h (B, S, E).
---@param h any
---@param weight any
---@param targets any (B, S) i32
---@param mask any (B, S) u8, or nil
---@param options table of mx.cross_entropy
---@return any
function Alone.cross_entropy(_, h, weight, targets, mask, options)
    return mx.cross_entropy(h, weight, targets, mask, options)
end

-- ---- experts: all are here ----

Alone.experts = {}

---@param part table
---@return integer first, integer count
function Alone.own_experts(_, part)
    return 0, part.experts
end

Alone.sends_rows = nothing -- nil: there is nobody to send them to
Alone.rows_of_ranks, Alone.send_rows = first, first
Alone.gather_tokens, Alone.scatter_tokens, Alone.mean_of_sequences = first, first, first
Alone.sum_over_tokens, Alone.counted_once, Alone.share_of_sum = first, first, first

-- ---- tokens ----

Alone.context_part, Alone.sequence_part, Alone.batch_part, Alone.whole_length = first, first, first, first

function Alone.stream_positions(_, positions)
    return positions
end

--- This rank's part of the sequences, from 0, and the number of parts: without a mesh each rank reads its own.
---@return integer part, integer parts
function Alone.batch_place(_)
    return mx.rank(), mx.ranks()
end

return setmetatable({}, Alone)
