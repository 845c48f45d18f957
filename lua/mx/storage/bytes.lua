--- Tensors from and to the bytes of their values.

local mx = require "mx"
local util = require "mx.util"

local bytes = {}

--- A tensor with values from a string of bytes: little-endian, row-major, without gaps.
---@param text string
---@param options {shape: integer[], dtype: string, layout: string} shape: default all numbers in one dimension; dtype:
---       default f32; layout: that of the bytes, as numpy calls it (">i2", "<f8"; default: that of the dtype)
---@return any tensor
function bytes.from_bytes(text, options)
    local o = util.options(options, { shape = false, dtype = "f32", layout = false }, "mx.from_bytes")
    local dtype = mx.dtypes[o.dtype]
    if type(text) ~= "string" then
        error("mx.from_bytes: the first argument is " .. type(text) .. "; expected a string of bytes", 2)
    elseif not dtype then
        error(("mx.from_bytes: unknown dtype '%s'"):format(tostring(o.dtype)), 2)
    end
    local width = dtype.bytes
    if o.layout then
        width = tonumber(tostring(o.layout):match("^[<>|=]?[fiub]([1248])$"))
            or error(("mx.from_bytes: layout '%s' is unknown; such are <f4, >i8 and |b1"):format(tostring(o.layout)), 2)
    end
    if #text % width ~= 0 then
        error(("mx.from_bytes: %d bytes are no whole number of values of %d bytes"):format(#text, width), 2)
    end
    local t = mx.zeros(o.shape or { #text // width }, o.dtype)
    if t:numel() ~= #text // width then
        error(("mx.from_bytes: %d bytes are %d values, and shape {%s} has %d"):format(#text, #text // width,
            table.concat(o.shape, ", "), t:numel()), 2)
    end
    mx.io.put_bytes(t, 1, o.layout or o.dtype, text)
    return t
end

--- The bytes of a tensor's values: little-endian, row-major, without gaps.
---@param t any tensor
---@return string
function bytes.to_bytes(t)
    return mx.io.get_bytes(t, 1, t:numel())
end

return bytes
