--- numpy's files: .npy holds one array, .npz several by name. Pickles in them are never executed, but refused.
--
-- https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

local mx = require "mx"
local util = require "mx.util"
local zip = require "mx.storage.zip"

local npy = {}

local MAGIC = "\x93NUMPY"
local HEADER_BYTES = 1 << 16 -- the longest header that is read
local PIECE_BYTES = 1 << 20
local MOST_DIMENSIONS = 6

-- The layout in which a dtype is written; numpy has no bf16 and no 8-bit floats, and f32 holds all of their values.
local WRITTEN = { f32 = "<f4", f64 = "<f8", i32 = "<i4", i64 = "<i8", u8 = "|u1", i8 = "|i1" }

-- ---- reading ----

-- The values of a header: a Python dictionary of a string, a boolean and a tuple of integers.
local function parse_header(name, text)
    local descr = text:match("['\"]descr['\"]%s*:%s*['\"]([^'\"]*)['\"]")
    local order = text:match("['\"]fortran_order['\"]%s*:%s*(%a+)")
    local sizes = text:match("['\"]shape['\"]%s*:%s*%(([%d%sL,]*)%)")
    if text:find("['\"]descr['\"]%s*:%s*%[") then
        util.refuse("%s holds records with several fields; save each field as an array of its own", name)
    elseif not descr or not sizes or (order ~= "True" and order ~= "False") then
        local shown = text:sub(1, 200):gsub("[%c\127-\255]", "?")
        util.refuse("%s is no readable .npy file: its header is '%s'", name, shown)
    end
    local shape = {}
    for size in sizes:gmatch("%d+") do
        shape[#shape + 1] = math.tointeger(size) or math.maxinteger
    end
    if #shape > MOST_DIMENSIONS then
        util.refuse("%s has %d dimensions; a tensor has at most %d", name, #shape, MOST_DIMENSIONS)
    end
    return { layout = descr, fortran = order == "True", shape = shape }
end

-- The number of bytes of the values, at most 2^62.
local function value_bytes(shape, width)
    local bytes = width
    for _, size in ipairs(shape) do
        if size == 0 then
            return 0
        end
        bytes = bytes > (1 << 62) // size and 1 << 62 or bytes * size
    end
    return bytes
end

local function choose_dtype(name, layout, given)
    if layout:find("O", 1, true) then
        util.refuse("%s holds Python objects (a pickle), which are never executed; save an array of numbers", name)
    end
    local holds, bytes = mx.io.layout_dtype(layout)
    if not holds then
        util.refuse("%s holds values of type '%s'; expected floats, integers or booleans", name, layout)
    end
    return given or holds, bytes
end

-- Collects bytes from an iterator over pieces, which is told how many are missing and may give more or fewer. take(n)
-- returns the next n bytes, fewer at the end.
local function buffered(next_piece)
    local rest, ended = "", false
    return function(n)
        local parts, have = { rest }, #rest
        while have < n and not ended do
            local piece = next_piece(n - have)
            ended = piece == nil
            parts[#parts + 1] = piece
            have = have + (piece and #piece or 0)
        end
        local text = #parts == 2 and rest == "" and parts[2] or table.concat(parts)
        rest = text:sub(n + 1)
        return #text <= n and text or text:sub(1, n)
    end
end

local function read_header(name, take)
    local head = take(8)
    local major = head:byte(7)
    if head:sub(1, 6) ~= MAGIC or #head < 8 then
        util.refuse("%s is no .npy file: it starts with %q, not with \\x93NUMPY", name, head:sub(1, 6))
    elseif major < 1 or major > 3 then
        util.refuse("%s has version %d of the .npy format; known are 1 to 3", name, major)
    end
    local wide = major > 1
    local length = take(wide and 4 or 2)
    local bytes = #length == (wide and 4 or 2) and (wide and "<I4" or "<I2"):unpack(length) or 1
    if bytes > HEADER_BYTES then
        util.refuse("%s is no readable .npy file: its header claims %s bytes", name, bytes)
    end
    local text = take(bytes)
    if #text < bytes then
        util.refuse("%s is damaged: it ends inside its header", name)
    end
    return parse_header(name, text), 8 + #length + bytes
end

-- Reads an array of `bytes` bytes in total, which the file has been seen to have.
local function read_array(name, bytes, next_piece, dtype)
    local take = buffered(next_piece)
    local header, used = read_header(name, take)
    local kept, width = choose_dtype(name, header.layout, dtype)
    local wanted = value_bytes(header.shape, width)
    if wanted ~= bytes - used then
        util.refuse("%s is damaged: its header claims %d bytes of values, and it has %d", name, wanted, bytes - used)
    end
    local sizes = header.shape
    if header.fortran then -- the first index varies fastest
        sizes = {}
        for d, size in ipairs(header.shape) do
            sizes[#header.shape + 1 - d] = size
        end
    end
    local t = mx.zeros(sizes, kept)
    for first = 1, wanted // width, PIECE_BYTES // width do
        local count = math.min(PIECE_BYTES // width, wanted // width - first + 1)
        local good, message = pcall(mx.io.put_bytes, t, first, header.layout, take(count * width))
        if not good then
            util.refuse("%s: %s", name, tostring(message):gsub("^[^:]+:%d+: ", ""))
        end
    end
    take(1) -- reads to the end: a zip entry is then checked
    if header.fortran and #sizes > 1 then
        local dims = {}
        for d = 1, #sizes do
            dims[d] = #sizes + 1 - d
        end
        return mx.permute(t, dims)
    end
    return t
end

local function file_pieces(file)
    return function(bytes)
        return file:read(bytes)
    end
end

--- Reads a .npy file. float16 becomes f32, bool becomes u8, int16 and uint16 become i32; other types keep their width.
--- Not collective.
---@param path string
---@param options? {dtype: string} converts the values: floats are rounded, an integer that does not fit is an error
---@return any tensor
function npy.load_npy(path, options)
    local o = util.options(options, { dtype = false }, "mx.load_npy")
    local file <close>, bytes = zip.open_file(path)
    return read_array(path, bytes, file_pieces(file), o.dtype)
end

--- Reads the arrays of a .npz file, plain or compressed. Not collective.
---@param path string
---@param options? {dtype: string, names: string[]} as of mx.load_npy; names: only these arrays
---@return table<string, any> name -> tensor
function npy.load_npz(path, options)
    local o = util.options(options, { dtype = false, names = false }, "mx.load_npz")
    local file <close> = zip.open(path)
    local arrays, known = {}, {}
    for _, entry in ipairs(file.entries) do
        local name = entry.name:match("^(.*)%.npy$")
        if not name then
            util.refuse("%s is no .npz file: it has an entry '%s', and arrays end in .npy", path, entry.name)
        end
        known[#known + 1] = name
        if not o.names or util.contains(o.names, name) then
            arrays[name] = read_array(("%s: '%s'"):format(path, name), entry.size, file:pieces(entry), o.dtype)
        end
    end
    for _, name in ipairs(o.names or {}) do
        if not arrays[name] then
            util.refuse("%s has no array '%s'; it has %s", path, name, table.concat(known, ", "))
        end
    end
    return arrays
end

-- ---- writing ----

-- The header for a tensor, padded so that the values start at a multiple of 64 bytes.
local function header_of(t, layout)
    local sizes = table.concat(t:size(), ", ")
    local text = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }"):format(layout,
        t:dim() == 1 and sizes .. "," or sizes)
    text = text .. (" "):rep(-(10 + #text + 1) % 64) .. "\n"
    return MAGIC .. "\1\0" .. ("<s2"):pack(text)
end

-- The size of a tensor as .npy, and a function that returns an iterator over its bytes.
local function encode(t)
    if mx.is_simulated() then
        error("a simulated tensor has no values to write", 3)
    end
    local layout = WRITTEN[t:dtype()] or "<f4"
    local header, width = header_of(t, layout), tonumber(layout:sub(3))
    local flat = t:detach():view(-1)
    local function pieces()
        local first, n, step = 0, t:numel(), PIECE_BYTES // width
        return function()
            if first == 0 then
                first = 1
                return header
            elseif first > n then
                return nil
            end
            local count, text = math.min(step, n - first + 1), nil
            if WRITTEN[t:dtype()] then
                text = mx.io.get_bytes(flat, first, count)
            else
                mx.scope(function()
                    text = mx.io.get_bytes(flat[{ { first, first + count - 1 } }]:to("f32"), 1, count)
                end)
            end
            first = first + count
            return text
        end
    end
    return #header + t:numel() * width, pieces
end

local function check_tensor(what, t)
    if type(t) ~= "userdata" or getmetatable(t) ~= "mx.tensor" then
        error(("%s is %s; expected a tensor"):format(what, type(t)), 3)
    end
end

--- Writes a tensor as a .npy file: the complete file or none. bf16 and 8-bit floats become float32, which holds their
--- values exactly. Not collective: one rank calls it.
---@param path string
---@param t any tensor
function npy.save_npy(path, t)
    check_tensor("mx.save_npy: the second argument", t)
    local _, pieces = encode(t)
    local draft <close> = mx.io.draft(path)
    for piece in pieces() do
        draft:write(piece)
    end
    draft:commit()
end

--- Writes tensors as a .npz file, as numpy.savez does, or numpy.savez_compressed: the complete file or none. dtypes as
--- of mx.save_npy. Not collective: one rank calls it.
---@param path string
---@param tensors table<string, any> name -> tensor
---@param options? {compress: boolean} default false
function npy.save_npz(path, tensors, options)
    local o = util.options(options, { compress = false }, "mx.save_npz")
    if type(tensors) ~= "table" then
        error("mx.save_npz: the second argument is " .. type(tensors) .. "; expected a table { name = tensor }", 2)
    end
    for name, t in pairs(tensors) do
        if type(name) ~= "string" or name == "" or #name > 1000 then
            error(("mx.save_npz: an array's name is %s; expected a string"):format(tostring(name)), 2)
        end
        check_tensor(("mx.save_npz: '%s'"):format(name), t)
    end
    local file <close> = zip.create(path, o.compress)
    for name, t in util.sorted_pairs(tensors) do
        file:add(name .. ".npy", encode(t))
    end
    file:commit()
end

return npy
