--- Zip files with plain or deflated entries, as numpy's .npz: reads them piece by piece, and writes them. Nothing is
--- extracted to the disk, so the names of entries are only names.
--
-- https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (section numbers below are of that page)

local mx = require "mx"
local util = require "mx.util"

local zip = {}

local PIECE_BYTES = 16 << 10 -- read at once; deflate makes at most RATIO times as much of them
local RATIO = 1032
local DIRECTORY_BYTES = 64 << 20 -- the largest directory that is read
local STORED, DEFLATED = 0, 8

-- ---- reading ----

---@class mx.ZipReader
---@field path string
---@field file file*
---@field bytes integer
---@field entries table[] name, method, packed, size, crc, offset
local Reader = {}
Reader.__index = Reader

local function damaged(self, format, ...)
    util.refuse("%s is no readable zip file: %s", self.path, format:format(...))
end

local function read_at(self, offset, bytes)
    if offset < 0 or bytes < 0 or offset > self.bytes - bytes then
        damaged(self, "it ends after %d bytes, and %d bytes from %d on are needed", self.bytes, bytes, offset)
    end
    self.file:seek("set", offset)
    local text = bytes == 0 and "" or self.file:read(bytes)
    if not text or #text < bytes then
        damaged(self, "%d bytes from %d on cannot be read", bytes, offset)
    end
    return text
end

-- The place of the directory: its offset, its size, and the number of entries (4.3.14 to 4.3.16).
local function find_directory(self)
    local tail_bytes = math.min(self.bytes, 22 + 65535)
    local tail = read_at(self, self.bytes - tail_bytes, tail_bytes)
    local at
    for i = #tail - 21, 1, -1 do
        if tail:sub(i, i + 3) == "PK\5\6" then
            at = i
            break
        end
    end
    if not at then
        damaged(self, "it has no directory at its end")
    end
    local _, _, _, count, bytes, offset = ("<I2I2I2I2I4I4"):unpack(tail, at + 4)
    local locator = self.bytes - tail_bytes + at - 1 - 20
    if locator >= 0 and read_at(self, locator, 4) == "PK\6\7" then
        local wide = ("<I8"):unpack(read_at(self, locator + 8, 8))
        local record = read_at(self, wide, 56)
        if record:sub(1, 4) ~= "PK\6\6" then
            damaged(self, "its zip64 directory is not where it should be")
        end
        count, bytes, offset = ("<I8I8I8"):unpack(record, 33)
    end
    return offset, bytes, count
end

-- Sizes and offset of an entry from its zip64 field (4.5.3); `wide` lists which of them are in it.
local function read_wide(self, extra, entry)
    local at = 1
    while at + 3 <= #extra do
        local id, bytes = ("<I2I2"):unpack(extra, at)
        local field, from = extra:sub(at + 4, at + 3 + bytes), 1
        for _, key in ipairs(id == 1 and { "size", "packed", "offset" } or {}) do
            if entry[key] == 0xffffffff then
                if from + 7 > #field then
                    damaged(self, "the zip64 field of '%s' is too short", entry.name)
                end
                entry[key] = ("<I8"):unpack(field, from)
                from = from + 8
            end
        end
        at = at + 4 + bytes
    end
end

local function check_entry(self, entry)
    local name = entry.name
    if entry.flags & 1 ~= 0 then
        damaged(self, "'%s' is encrypted", name)
    elseif entry.method ~= STORED and entry.method ~= DEFLATED then
        damaged(self, "'%s' is compressed by method %d; only deflate (8) is known", name, entry.method)
    elseif entry.size < 0 or entry.packed < 0 or entry.packed > self.bytes or entry.size > entry.packed * RATIO then
        damaged(self, "'%s' claims %d bytes, made of %d", name, entry.size, entry.packed)
    elseif entry.method == STORED and entry.size ~= entry.packed then
        damaged(self, "'%s' claims %d bytes, stored as %d", name, entry.size, entry.packed)
    end
end

-- The entries of the directory (4.3.12).
local function read_directory(self)
    local offset, bytes, count = find_directory(self)
    if bytes > DIRECTORY_BYTES or bytes < 0 or count < 0 then
        damaged(self, "its directory claims %d bytes and %d entries", bytes, count)
    end
    local text, at, entries, names = read_at(self, offset, bytes), 1, {}, {}
    for i = 1, count do
        if at + 45 > #text or text:sub(at, at + 3) ~= "PK\1\2" then
            damaged(self, "entry %d of %d is not in its directory", i, count)
        end
        local entry = {}
        local n_name, n_extra, n_comment = ("<I2I2I2"):unpack(text, at + 28)
        entry.flags, entry.method, entry.crc, entry.packed, entry.size = ("<I2I2xxxxI4I4I4"):unpack(text, at + 8)
        entry.offset = ("<I4"):unpack(text, at + 42)
        if at + 45 + n_name + n_extra + n_comment > #text then
            damaged(self, "entry %d of %d reaches beyond its directory", i, count)
        end
        entry.name = text:sub(at + 46, at + 45 + n_name)
        read_wide(self, text:sub(at + 46 + n_name, at + 45 + n_name + n_extra), entry)
        check_entry(self, entry)
        if names[entry.name] then
            damaged(self, "it has two entries '%s'", entry.name)
        end
        names[entry.name], entries[i] = true, entry
        at = at + 46 + n_name + n_extra + n_comment
    end
    return entries
end

--- Opens a zip file and reads its directory.
---@param path string
---@return mx.ZipReader to be closed: local file <close> = ...
function zip.open(path)
    local file, bytes = zip.open_file(path)
    local self = setmetatable({ path = path, file = file, bytes = bytes }, Reader)
    self.entries = self:entries_or_close()
    return self
end

--- Opens a regular file for reading.
---@param path string
---@return file* file, integer bytes
function zip.open_file(path)
    if type(path) ~= "string" then
        util.refuse("expected the name of a file, got %s", type(path) == "nil" and "nil" or "a " .. type(path))
    end
    local about = mx.io.about(path)
    if about.kind ~= "file" then
        util.refuse("%s is %s; expected a file", path, about.kind == "nothing" and "missing" or "a " .. about.kind)
    end
    local file, reason = io.open(path, "rb")
    if not file then
        util.refuse("cannot read %s", reason)
    end
    return file, about.bytes
end

function Reader:entries_or_close()
    local good, entries = pcall(read_directory, self)
    if not good then
        self.file:close()
        error(entries, 0)
    end
    return entries
end

Reader.__close = function(self)
    self.file:close()
end

--- Iterates over the bytes of an entry in pieces. The last one is checked against the entry's size and checksum.
---@param entry table of self.entries
---@return fun(): string?
function Reader:pieces(entry)
    local head = read_at(self, entry.offset, 30)
    if head:sub(1, 4) ~= "PK\3\4" then
        damaged(self, "'%s' is not where its directory says", entry.name)
    end
    local n_name, n_extra = ("<I2I2"):unpack(head, 27)
    local at, left = entry.offset + 30 + n_name + n_extra, entry.packed
    local inflater = entry.method == DEFLATED and mx.io.inflater() or nil
    local size, crc = 0, 0
    return function()
        if left == 0 then
            if size ~= entry.size or crc ~= entry.crc then
                damaged(self, "'%s' is damaged: its checksum or its size of %d bytes is wrong", entry.name, entry.size)
            end
            return nil
        end
        local bytes = math.min(left, inflater and PIECE_BYTES or 1 << 20)
        local piece = read_at(self, at, bytes)
        at, left = at + bytes, left - bytes
        if inflater then
            piece = inflater:push(piece)
        end
        size = size + #(piece or "")
        if not piece or size > entry.size then
            damaged(self, "'%s' is damaged", entry.name)
        end
        crc = mx.io.crc32(piece, crc)
        return piece
    end
end

-- ---- writing ----

---@class mx.ZipWriter
local Writer = {}
Writer.__index = Writer

--- Begins a zip file that replaces `path` at :commit().
---@param path string
---@param compress boolean
---@return mx.ZipWriter to be closed
function zip.create(path, compress)
    return setmetatable({ draft = mx.io.draft(path), compress = compress, entries = {}, at = 0 }, Writer)
end

Writer.__close = function(self)
    self.draft:discard() -- unless it was committed
end

local function write(self, text)
    self.at = self.draft:write(text)
end

-- Version, flags, method, time (1 January 1980, so that equal values give equal files), checksum and sizes. The sizes
-- are in a zip64 field, which every entry has.
local function common(entry, method, n_extra)
    return ("<I2I2I2I2I2I4I4I4I2I2"):pack(45, 0x800, method, 0, 0x21, entry.crc, 0xffffffff, 0xffffffff, #entry.name,
        n_extra)
end

--- Adds an entry of `size` bytes. `pieces` returns an iterator over them; it is called twice.
---@param name string
---@param size integer
---@param pieces fun(): fun(): string?
function Writer:add(name, size, pieces)
    local entry = { name = name, size = size, packed = size, crc = 0, offset = self.at }
    local deflater, packed = self.compress and mx.io.deflater() or nil, {}
    for piece in pieces() do
        entry.crc = mx.io.crc32(piece, entry.crc)
        for from = 1, deflater and #piece or 0, 1 << 20 do
            packed[#packed + 1] = deflater:push(piece:sub(from, from + (1 << 20) - 1))
        end
    end
    if deflater then
        packed[#packed + 1] = deflater:push("", true)
        entry.packed = 0
        for _, piece in ipairs(packed) do
            entry.packed = entry.packed + #piece
        end
    end
    entry.method = deflater and DEFLATED or STORED
    write(self, "PK\3\4" .. common(entry, entry.method, 20) .. name .. ("<I2I2I8I8"):pack(1, 16, size, entry.packed))
    if deflater then
        write(self, table.concat(packed))
    else
        for piece in pieces() do
            write(self, piece)
        end
    end
    self.entries[#self.entries + 1] = entry
end

--- Writes the directory and replaces the file.
function Writer:commit()
    local start = self.at
    for _, entry in ipairs(self.entries) do
        write(self, "PK\1\2\45\0" .. common(entry, entry.method, 28) .. ("<I2I2I2I4I4"):pack(0, 0, 0, 0, 0xffffffff)
            .. entry.name .. ("<I2I2I8I8I8"):pack(1, 24, entry.size, entry.packed, entry.offset))
    end
    local bytes, at, count = self.at - start, self.at, #self.entries
    write(self, "PK\6\6" .. ("<I8I2I2I4I4I8I8I8I8"):pack(44, 45, 45, 0, 0, count, count, bytes, start)
        .. "PK\6\7" .. ("<I4I8I4"):pack(0, at, 1)
        .. "PK\5\6" .. ("<I2I2I2I2I4I4I2"):pack(0, 0, 0xffff, 0xffff, 0xffffffff, 0xffffffff, 0))
    self.draft:commit()
end

return zip
