--- Keys and values of earlier tokens, for generation. A layer with a window keeps those of the last W tokens, the width
--- of its window: token p, counted from 0, is at place p % W.

local mx = require "mx"

local cache = {}

--- The sizes of the tensors that keep keys and values for sequences of up to `capacity` tokens.
---@param part table an attention
---@param B integer sequences
---@param capacity integer
---@return table<string, integer[]>
function cache.sizes(part, B, capacity)
    local kept = part.window > 0 and math.min(part.window, capacity) or capacity
    local sizes = { B, kept, part.kv_heads, part.head_dim }
    return { key = sizes, value = sizes }
end

-- `length` tokens of x (B, S, K, D), from number `first` counted from 0.
local function range(x, first, length)
    return mx.narrow(x, { dim = 2, start = first + 1, length = length })
end

-- Writes the tokens `offset` and later, x (B, S, K, D), to their places, the last W of them.
local function write(kept, x, offset)
    local W, S = kept:size(2), x:size(2)
    local n = math.min(W, S)
    local place = (offset + S - n) % W
    local ahead = math.min(n, W - place) -- as many up to the last place, the others from the first on
    mx.write_slice(kept, range(x, S - n, ahead), { dim = 2, start = place + 1 })
    if ahead < n then
        mx.write_slice(kept, range(x, S - n + ahead, n - ahead), { dim = 2, start = 1 })
    end
end

-- The kept tokens before token `offset`, which come first, and then those of x.
local function in_order(kept, x, offset)
    local W = kept:size(2)
    local place, pieces = offset % W, {}
    if offset >= W then
        pieces[1] = range(kept, place, W - place)
    end
    pieces[#pieces + 1] = place > 0 and range(kept, 0, place) or nil
    pieces[#pieces + 1] = x
    return #pieces > 1 and mx.concat(pieces, { dim = 2 }) or x
end

--- Adds the keys and values of new tokens, and returns all those to which these tokens attend.
---@param kept {key: any, value: any} of a layer
---@param k any (B, S, K, D) of the tokens from number `offset` on, counted from 0
---@param v any the same
---@param options table of mx.attention for the whole sequence; changed to fit the result
---@param offset integer
---@return any k
---@return any v
function cache.remember(kept, k, v, options, offset)
    local W, S = kept.key:size(2), k:size(2)
    local is_turned = offset + S > W -- places are no longer the numbers of tokens
    local keys, values = kept.key, kept.value
    if is_turned and S > 1 then -- a token may need keys that a later one replaces
        keys, values = in_order(keys, k, offset), in_order(values, v, offset)
        options.offset = math.min(offset, W)
    elseif is_turned then -- the window of one token is all that is kept, in any order
        options.causal, options.window = false, 0
    else
        options.offset, options.kv_length = offset, offset + S
    end
    write(kept.key, k, offset)
    write(kept.value, v, offset)
    return keys, values
end

return cache
