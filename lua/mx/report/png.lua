--- PNG pictures as data URIs, for charts that show many pixels.

local mx = require "mx"

local png = {}

local function adler32(text)
    local a, b = 1, 0
    for i = 1, #text do
        a = (a + text:byte(i)) % 65521
        b = (b + a) % 65521
    end
    return b << 16 | a
end

local function chunk(kind, content)
    return (">I4"):pack(#content) .. kind .. content .. (">I4"):pack(mx.io.crc32(kind .. content))
end

--- The bytes of a picture. https://www.w3.org/TR/png-3/
---@param width integer
---@param height integer
---@param rows string[] a string of 4 bytes for each pixel: red, green, blue, opacity
---@return string
function png.encode(width, height, rows)
    local deflater, packed, sums = mx.io.deflater(), {}, {}
    for y, row in ipairs(rows) do
        sums[y] = "\0" .. row -- no filter
        packed[y] = deflater:push(sums[y])
    end
    packed[#packed + 1] = deflater:push("", true)
    return "\x89PNG\r\n\x1a\n" .. chunk("IHDR", (">I4I4I1I1I1I1I1"):pack(width, height, 8, 6, 0, 0, 0))
        .. chunk("IDAT", "\x78\x9c" .. table.concat(packed) .. (">I4"):pack(adler32(table.concat(sums))))
        .. chunk("IEND", "")
end

local LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

local function base64(text)
    local out = {}
    for i = 1, #text, 3 do
        local a, b, c = text:byte(i, i + 2)
        local bits = a << 16 | (b or 0) << 8 | (c or 0)
        for k = 0, 3 do
            local at = (bits >> (18 - 6 * k) & 63) + 1
            out[#out + 1] = (k == 2 and not b or k == 3 and not c) and "=" or LETTERS:sub(at, at)
        end
    end
    return table.concat(out)
end

--- The same as a URI that a page can show without a file.
---@param width integer
---@param height integer
---@param rows string[]
---@return string
function png.uri(width, height, rows)
    return "data:image/png;base64," .. base64(png.encode(width, height, rows))
end

-- Colours from dark blue to yellow whose lightness rises evenly (after matplotlib's viridis).
local STOPS = { { 68, 1, 84 }, { 59, 82, 139 }, { 33, 145, 140 }, { 94, 201, 98 }, { 253, 231, 37 } }

--- The pixel of a value of 0 to 1 in the colours of heat maps; NaN is transparent.
---@param x number
---@return string
function png.heat(x)
    if x ~= x then
        return "\0\0\0\0"
    end
    local at = math.max(0, math.min(1, x)) * (#STOPS - 1)
    local i = math.min(math.floor(at), #STOPS - 2)
    local from, to, part = STOPS[i + 1], STOPS[i + 2], at - i
    local colour = {}
    for k = 1, 3 do
        colour[k] = math.floor(from[k] + (to[k] - from[k]) * part + 0.5)
    end
    return string.char(colour[1], colour[2], colour[3], 255)
end

--- The grey pixel of a value of 0 (black) to 1; NaN is transparent.
---@param x number
---@return string
function png.grey(x)
    if x ~= x then
        return "\0\0\0\0"
    end
    local level = math.floor(math.max(0, math.min(1, x)) * 255 + 0.5)
    return string.char(level, level, level, 255)
end

return png
