--- Rotary position embedding, as described by the field `rope` of an attention:
---
---     { theta, scaling }          wavelengths from a base; scaled as in Llama 3.1 if `scaling` is a table
---     { frequencies }             the angle of each pair of components per position, in radians
---
--- With either: dims (rotate only so many components of a head; default: all), interleaved (the components of a pair
--- are neighbours), factor (of cosines and sines). Frequencies are for formulas that no config key describes.
--- Frequencies computed from theta would change the last bit of one element in a million, so configs give theta.

local mx = require "mx"
local util = require "mx.util"

local rope = {}

local FIELDS = { "theta", "scaling", "frequencies", "dims", "interleaved", "factor" }

local function rounded_to_f32(x)
    return (string.unpack("f", string.pack("f", x)))
end

-- The tensor of frequencies for the operation: (2, pairs), two f32 whose sum is each frequency.
local function table_of(frequencies)
    local high, low = {}, {}
    for i, frequency in ipairs(frequencies) do
        high[i] = rounded_to_f32(frequency)
        low[i] = frequency - high[i]
    end
    return mx.tensor({ high, low }, "f32")
end

--- Rotates queries and keys by their positions: (B, S, heads, D) each.
---@param o table|false of an attention; false: none
---@param q any
---@param k any
---@param run table of mx.Decoder:hidden
---@return any q, any k
function rope.rotate(o, q, k, run)
    if not o then
        return q, k
    end
    for name in util.sorted_pairs(o) do
        if not util.contains(FIELDS, name) then
            error(("rope of a block has no field '%s'; there are %s"):format(name, table.concat(FIELDS, ", ")), 2)
        end
    end
    if o.frequencies and (o.theta or o.scaling) then
        error("rope of a block has frequencies, and with them theta or scaling, which they stand in place of", 2)
    end
    local options = { dims = o.dims, interleaved = o.interleaved, factor = o.factor, offset = run.offset }
    if o.frequencies then
        local frequencies = table_of(o.frequencies)
        return mx.rope(q, run.positions, frequencies, options), mx.rope(k, run.positions, frequencies, options)
    end
    options.theta = o.theta
    for key, value in util.sorted_pairs(o.scaling or {}) do
        options[key] = value
    end
    return mx.rope(q, run.positions, options), mx.rope(k, run.positions, options)
end

return rope
