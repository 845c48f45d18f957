--- Forges one file from a good one: mxlua tests/fuzz/attack_files.lua GOOD FORGED SEED. For attack.sh.

local mx = require "mx"
local good, forged, seed = arg[1], arg[2], tonumber(arg[3])
math.randomseed(seed)
local bytes = mx.read_file(good)

local function pick(list)
    return list[math.random(#list)]
end

local function replace(at, length, with)
    bytes = bytes:sub(1, at - 1) .. with .. bytes:sub(at + length)
end

local HUGE = {
    "9223372036854775807", "-1", "1e400", "18446744073709551616", "4294967297", "1125899906842624", "null",
    "\"x\"", "[]",
}

local FORGERIES = {
    function() -- a few bits
        for _ = 1, pick { 1, 3, 30 } do
            local at = math.random(#bytes)
            replace(at, 1, string.char(bytes:byte(at) ~ (1 << math.random(0, 7))))
        end
    end,
    function() -- bits of the head, where the sizes are
        local at = math.random(math.min(#bytes, 64))
        replace(at, 1, string.char(math.random(0, 255)))
    end,
    function() bytes = bytes:sub(1, math.random(0, #bytes)) end,
    function() bytes = bytes .. bytes:sub(1, math.random(#bytes)) end,
    function() -- 8 bytes become a huge integer
        local at = math.random(math.max(1, math.min(#bytes - 8, pick { 64, 4096, #bytes })))
        replace(at, 8, string.pack("<i8", pick { math.maxinteger, -1, 1 << 50, 1 << 32, 1 << 62, 0 }))
    end,
    function() -- a number of a text becomes another
        local places = {}
        for at in bytes:gmatch("()[%d.]+") do
            places[#places + 1] = at
        end
        if #places > 0 then
            local at = pick(places)
            replace(at, #bytes:match("^[%d.]+", at), pick(HUGE))
        end
    end,
    function() -- deep nesting
        local at = math.random(#bytes)
        replace(at, 0, (pick { "[", "{\"a\":", "{", "- " }):rep(pick { 10, 1000, 100000 }))
    end,
    function() -- a piece moves or goes
        local from, length = math.random(#bytes), math.random(math.min(#bytes, 200))
        local piece = bytes:sub(from, from + length - 1)
        replace(from, length, pick { "", piece .. piece, ("\0"):rep(length), ("\255"):rep(length) })
    end,
}

for _ = 1, pick { 1, 1, 2 } do
    if #bytes > 0 then
        pick(FORGERIES)()
    end
end
mx.io.write_file_atomic(forged, bytes)
