--- Keys and values of earlier tokens, for generation. A layer with a window keeps those of the last W tokens, the width
--- of its window: token p, counted from 0, is at place p % W. They may be codes of a byte, with scales beside them.

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

--- The tensors of a layer's cache, codes and scales included: name -> sizes and dtype.
---@param shape table of mx.models.shape
---@param sizes table<string, integer[]> of what is kept: cache.sizes, or those of another kind of attention
---@return table<string, {sizes: integer[], dtype: string}>
function cache.tensors(shape, sizes)
    local tensors, codes = {}, shape.cache
    for name, of in pairs(sizes) do
        tensors[name] = { sizes = of, dtype = codes and codes.dtype or shape.dtype }
        if codes then
            tensors[name .. "_scale"] = { sizes = { of[1], of[2], codes.by_head and of[3] or 1, 1 }, dtype = "f32" }
        end
    end
    return tensors
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

-- The kept tokens before token `offset`, which come first, and then those of x. There is room for W.
local function in_order(kept, x, offset, W)
    local place, pieces = offset % W, {}
    if offset >= W then
        pieces[1] = range(kept, place, W - place)
    end
    pieces[#pieces + 1] = place > 0 and range(kept, 0, place) or nil
    pieces[#pieces + 1] = x
    return #pieces > 1 and mx.concat(pieces, { dim = 2 }) or x
end

-- Tokens x (B, S, K, D) as they are kept: unchanged, or as codes and scales (B, S, 1 or K, 1).
local function encode(kept, name, x)
    local scales = kept[name .. "_scale"]
    if not scales then
        return x
    end
    local B, S, K, D = x:size(1), x:size(2), x:size(3), x:size(4)
    local n = scales:size(3)
    local codes, scale = mx.quantize(x:view(B, S, n, K * D // n), { dtype = kept[name]:dtype(), by = "row" })
    return codes:view(B, S, K, D), scale
end

local function decode(codes, scale, dtype)
    return scale and (codes:to("f32") * scale):to(dtype) or codes
end

-- The first n kept tokens, or without scales all.
local function read(kept, name, n, dtype)
    local scale = kept[name .. "_scale"]
    return scale and decode(range(kept[name], 0, n), range(scale, 0, n), dtype) or kept[name]
end

--- Adds the keys and values of new tokens, and returns all those to which these tokens attend.
---@param kept table<string, any> of a layer: key, value; with codes also key_scale, value_scale
---@param k any (B, S, K, D) of the tokens from number `offset` on, counted from 0
---@param v any the same
---@param options table of mx.attention for the whole sequence; changed to fit the result
---@param offset integer
---@return any k
---@return any v
function cache.remember(kept, k, v, options, offset)
    local W, S = kept.key:size(2), k:size(2)
    local is_turned = offset + S > W -- places are no longer the numbers of tokens
    local keeps_order = is_turned and S > 1 -- a token may need keys that a later one replaces
    if keeps_order then
        options.offset = math.min(offset, W)
    elseif is_turned then -- the window of one token is all that is kept, in any order
        options.causal, options.window = false, 0
    else
        options.offset, options.kv_length = offset, offset + S
    end
    local seen = {}
    for name, x in pairs({ key = k, value = v }) do
        local dtype, codes, scale = x:dtype(), encode(kept, name, x)
        if keeps_order then
            seen[name] = in_order(read(kept, name, math.min(offset, W), dtype), decode(codes, scale, dtype), offset, W)
        end
        write(kept[name], codes, offset)
        if scale then
            write(kept[name .. "_scale"], scale, offset)
        end
        seen[name] = seen[name] or read(kept, name, math.min(offset + S, W), dtype)
    end
    return seen.key, seen.value
end

return cache
