--- PNG pictures as data URIs, for charts that show many pixels.

local mx = require "mx"

local png = {}

local function chunk(kind, content)
    return (">I4"):pack(#content) .. kind .. content .. (">I4"):pack(mx.io.crc32(kind .. content))
end

--- The bytes of a picture. https://www.w3.org/TR/png-3/
---@param width integer
---@param height integer
---@param rows string[] a string of 4 bytes for each pixel: red, green, blue, opacity
---@return string
function png.encode(width, height, rows)
    local deflater, packed, sum = mx.io.deflater(), {}, 1
    for y, row in ipairs(rows) do
        local line = "\0" .. row -- no filter
        sum = mx.io.adler32(line, sum)
        packed[y] = deflater:push(line)
    end
    packed[#packed + 1] = deflater:push("", true)
    return "\x89PNG\r\n\x1a\n" .. chunk("IHDR", (">I4I4I1I1I1I1I1"):pack(width, height, 8, 6, 0, 0, 0))
        .. chunk("IDAT", "\x78\x9c" .. table.concat(packed) .. (">I4"):pack(sum))
        .. chunk("IEND", "")
end

local LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

local function base64(text)
    local pairs_of, out = {}, {} -- the two letters of each number of 12 bits
    for bits = 0, 4095 do
        pairs_of[bits] = LETTERS:sub((bits >> 6) + 1, (bits >> 6) + 1) .. LETTERS:sub((bits & 63) + 1, (bits & 63) + 1)
    end
    for i = 1, #text, 3 do
        local a, b, c = text:byte(i, i + 2)
        local bits = a << 16 | (b or 0) << 8 | (c or 0)
        out[#out + 1] = pairs_of[bits >> 12]
        out[#out + 1] = pairs_of[bits & 4095]
    end
    local coded, missing = table.concat(out), -#text % 3
    return coded:sub(1, #coded - missing) .. ("="):rep(missing)
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

local HEAT = {} -- the pixels of 0, 1/255 ... 1
for level = 0, 255 do
    local at = level / 255 * (#STOPS - 1)
    local i = math.min(math.floor(at), #STOPS - 2)
    local from, to, colour = STOPS[i + 1], STOPS[i + 2], {}
    for k = 1, 3 do
        colour[k] = math.floor(from[k] + (to[k] - from[k]) * (at - i) + 0.5)
    end
    HEAT[level] = string.char(colour[1], colour[2], colour[3], 255)
end

--- The pixel of a value of 0 to 1 in the colours of heat maps; NaN is transparent.
---@param x number
---@return string
function png.heat(x)
    return x ~= x and "\0\0\0\0" or HEAT[math.floor(math.max(0, math.min(1, x)) * 255 + 0.5)]
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
