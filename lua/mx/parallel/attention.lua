--- Attention of sequences that several ranks hold in parts: methods of mx.Parallel. context_parallel_strategy says how
--- a rank's queries and the keys of the other ranks come together.

local mx = require "mx"
local tokens = require "mx.parallel.tokens"
local util = require "mx.util"

local attention = {}

-- Reorders chunks from the order of the ranks to the order of the sequence.
local function in_sequence(self, t)
    local n = self.mesh:size(self.context)
    if not self.zigzag then
        return t
    end
    local piece, pieces = t:size(2) // (2 * n), {}
    for r = 0, n - 1 do
        pieces[r + 1] = mx.narrow(t, { dim = 2, start = 2 * r * piece + 1, length = piece })
        pieces[2 * n - r] = mx.narrow(t, { dim = 2, start = (2 * r + 1) * piece + 1, length = piece })
    end
    return mx.concat(pieces, { dim = 2 })
end

-- Attention with the keys and values of the whole sequence gathered on every rank.
local function gathered_attention(self, q, k, v, intervals, options, sinks)
    local S, n = q:size(2), self.mesh:size(self.context)
    local i = mx.is_simulated() and n - 1 or self.mesh:index(self.context) -- simulated: the busiest rank
    local gather = { axis = self.context, dim = 2, async = self.o.async_all_gather }
    k, v = mx.all_gather(k, gather), mx.all_gather(v, gather)
    mx.flush()
    k, v = in_sequence(self, k), in_sequence(self, v)
    local function attend(part, part_intervals, offset)
        options.offset = offset
        options.kv_length = options.causal and offset + part:size(2) or 0
        return mx.name(mx.attention(part, k, v, part_intervals, nil, nil, sinks, options), "context")
    end
    if not self.zigzag then
        return attend(q, intervals, i * S)
    end
    local piece, parts = S // 2, {}
    for half = 0, 1 do
        local cut = { dim = 2, start = half * piece + 1, length = piece }
        parts[half + 1] = attend(mx.narrow(q, cut), intervals and mx.narrow(intervals, cut),
            (half == 0 and i or 2 * n - 1 - i) * piece)
    end
    return mx.concat(parts, { dim = 2 })
end

-- Each head of x (B, S, K, D) so many times in a row: (B, S, times K, D).
local function repeated(x, times)
    local B, S, K, D = x:size(1), x:size(2), x:size(3), x:size(4)
    if times == 1 then
        return x
    end
    return mx.expand(x:view(B, S, K, 1, D), { B, S, K, times, D }):view(B, S, K * times, D)
end

-- Attention of the queries of self.ring's ranks, whose keys travel around them.
local function ring_attention(self, q, k, v, intervals, options, sinks)
    options.axis, options.balanced = self.ring, self.zigzag
    return mx.name(mx.ring_attention(q, k, v, intervals, sinks, options), "context")
end

-- Attention with a part of the heads to the tokens of all ranks of self.exchange: these exchange parts of sequences for
-- heads, and back. With too few heads of keys for all ranks, each rank gets those that its heads of queries use.
local function exchanged_attention(self, q, k, v, intervals, options, sinks)
    local n, kv_heads = self.mesh:size(self.exchange), k:size(3)
    local copies = n // util.gcd(n, kv_heads)
    local function to_heads(x)
        return mx.all_to_all(x, { axis = self.exchange, split = 3, concat = 2 })
    end
    q, k, v = to_heads(q), to_heads(repeated(k, copies)), to_heads(repeated(v, copies)) -- (B, S n, H / n, D)
    local own = q:size(3)
    sinks = sinks and mx.narrow(sinks, { dim = 1, start = self.mesh:index(self.exchange) * own + 1, length = own })
    local context = #self.ring > 0 and ring_attention(self, q, k, v, intervals, options, sinks)
        or mx.name(mx.attention(q, k, v, intervals, nil, nil, sinks, options), "context")
    return mx.all_to_all(context, { axis = self.exchange, split = 2, concat = 3 })
end

--- The axes of context: those whose ranks gather each other's keys or pass them around, and those whose ranks exchange
--- parts of sequences for heads. Not collective.
---@param context string[]
---@param strategy string context_parallel_strategy
---@return string[] ring, string[] exchange
function attention.split_context(context, strategy)
    local others = strategy == "ulysses" and context or strategy == "usp" and { "context_usp_ulysses" } or {}
    local ring = util.without(context, others)
    return ring, util.without(context, ring)
end

--- Whether a rank has an early and a late chunk of each sequence. They would not help where queries see later keys, nor
--- where ranks attend in whole sequences. Not collective.
---@param shape table of mx.models.shape
---@param o table context_parallel_load_balance and context_parallel_strategy
---@return boolean
function attention.in_two_chunks(shape, o)
    return o.context_parallel_load_balance and o.context_parallel_strategy ~= "ulysses"
        and not mx.models.any(shape, function(block) return not block.attention.causal end)
end

--- Refuses an axis of usp without it, and heads that ranks cannot exchange for parts of sequences. Not collective.
---@param mesh mx.Mesh or a plan of one
---@param shape table of mx.models.shape
---@param strategy string context_parallel_strategy
function attention.check(mesh, shape, strategy)
    local rules = mesh.rules
    local context = rules.activation_length
    local split = mesh:axes({ "embed_attn", "kv_heads" })[2]
    split = util.without(util.without(split, rules.activation_batch), context)
    if strategy ~= "usp" and mesh:size({ "context_usp_ulysses" }) > 1 then
        util.refuse("context_parallel_strategy = %s does not use the axis context_usp_ulysses: set it to usp, or "
            .. "ici_context_parallelism instead of ici_context_usp_ulysses_parallelism", strategy)
    end
    local exchange = {}
    for _, axis in ipairs(select(2, attention.split_context(context, strategy))) do
        exchange[#exchange + 1] = mesh:size({ axis }) > 1 and axis or nil
    end
    local n, parts, copies = mesh:size(exchange), mesh:size(split), mesh:size(mesh.kv_copies)
    for _, kind in ipairs(n > 1 and mx.models.kinds(shape) or {}) do
        local H, K = kind.block.attention.heads, kind.block.attention.kv_heads
        for i = 0, parts - 1 do
            local heads = util.part(K, parts, i) * (H // K) // copies
            if heads % n ~= 0 then
                util.refuse("context_parallel_strategy = %s: %d ranks (%s) cannot share out the %d heads of "
                    .. "queries that each has; expected a multiple of %d, or context_parallel_strategy=ring", strategy,
                    n, table.concat(exchange, ", "), heads, n)
            end
        end
    end
end

--- The keys with the segment of each query, for those queries that this rank attends with: mx.attention_intervals.
---@param segments any (B, S) i32 of this rank's part of the sequences
---@param kv_segments any of the whole sequences; nil: the same
---@return any (B, queries, 2) i32
function attention:intervals(segments, kv_segments)
    local is_exchanged = kv_segments and #self.exchange > 0
    return mx.attention_intervals(is_exchanged and tokens.attended_part(self, kv_segments) or segments, kv_segments)
end

--- Attention of this rank's queries to the keys of the whole sequence: q (B, S, H, D), k and v (B, S, K, D) of its
--- part; run of mx.Decoder:hidden. Without an axis that splits sequences it is mx.attention, and accepts offset and
--- kv_length. sinks: of this rank's heads, or nil. Policies know attention's result as "context". Collective.
---@return any (B, S, H, D)
function attention:attention(q, k, v, run, options, sinks)
    if #self.context == 0 then
        return mx.name(mx.attention(q, k, v, run.intervals, nil, nil, sinks, options), "context")
    elseif self.o.context_parallel_strategy == "all_gather" then
        return gathered_attention(self, q, k, v, run.intervals, options, sinks)
    elseif #self.exchange > 0 then
        return exchanged_attention(self, q, k, v, run.intervals, options, sinks)
    end
    return ring_attention(self, q, k, v, run.intervals, options, sinks)
end

return attention
