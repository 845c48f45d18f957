--- Finds the input files of a preparation and checks that they have the expected format.

local mx = require "mx"
local util = require "mx.util"

local inputs = {}

local EXTENSIONS = { jsonl = "jsonl", ndjson = "jsonl", json = "jsonl", bin = "bin", h5 = "hdf5", hdf5 = "hdf5" }
local MIB = 1 << 20
local EXPECTED = { text = "text", jsonl = "a file of JSON lines" }
inputs.MARK = "\xef\xbb\xbf" -- the byte-order mark that some programs write before UTF-8

local function format_of(path, o)
    if o.format ~= "auto" then
        return o.format
    end
    local name = path:lower():gsub("%.gz$", ""):gsub("%.zst$", "")
    return EXTENSIONS[name:match("%.(%w+)$") or ""] or "text"
end

-- Whether the first line of a file is a complete JSON value, so that the file is JSON lines. `start` is where the first
-- value begins.
local function has_lines(head, start, field)
    local line, rest = head:match("^([^\n]*)\n(.*)$", start)
    if head:find("^{[ \t\r]*$", start) or (line and line:find("^{[ \t\r]*$")) then
        return false
    elseif head:sub(start, start) ~= "[" then
        return true
    end
    local _, wrong = mx.io.json_line_text(line or "", field)
    return wrong ~= nil and wrong:find("^an array") ~= nil and rest:find("%S") ~= nil
end

-- Refuses a JSON file that is a single value or has values over several lines, because no line of it could be read.
local function check_lines(path, head, field)
    local start = head:find("%S", head:sub(1, #inputs.MARK) == inputs.MARK and #inputs.MARK + 1 or 1)
    if start and not has_lines(head, start, field) then
        local array = head:sub(start, start) == "["
        util.refuse("'%s' is %s, and an object on each line is expected: jq -c %s FILE > FILE.jsonl makes lines of it",
            path, array and "a JSON array" or "JSON that goes over several lines", array and "'.[]'" or ".")
    end
end

-- Refuses a file that is not text by its first bytes. Returns whether it is compressed.
local function check_text(path, format, field)
    local head, compressed = util.attempt(mx.io.text_head, path)
    local name, advice = mx.io.format_of(head)
    if name then
        util.refuse("'%s' is %s%s, and %s is expected: %s", path, compressed and "compressed, and inside " or "", name,
            EXPECTED[format], advice)
    elseif format == "jsonl" then
        check_lines(path, head, field)
    end
    return compressed
end

-- Adds a file to the ranges. Only jsonl files are split, because only line ends can be found in the middle of a file.
local function add_ranges(ranges, path, bytes, o)
    local format = format_of(path, o)
    local length = math.max(1, bytes)
    if EXPECTED[format] and not check_text(path, format, o.field) and format == "jsonl" then
        length = o.piece_mib * MIB
    end
    for start = 0, math.max(bytes - 1, 0), length do
        local stop = start + length < bytes and start + length or nil
        ranges[#ranges + 1] = {
            path = path, format = format, start = start, stop = stop, bytes = (stop or bytes) - start,
        }
    end
end

-- The files of an item between commas. Spaces around it are removed, unless they are part of a file's name.
local function files_of(item)
    local bare = item:match("^%s*(.-)%s*$")
    return util.attempt(mx.io.file_list, bare ~= item and not mx.io.exists(item) and bare or item)
end

--- Lists the ranges of files to read, in order, and the files.
---@param o table of mx.prepare.OPTIONS
---@return {path: string, format: string, start: integer, stop: integer?, bytes: integer}[] ranges
---@return {path: string, bytes: integer, changed: integer, sum: integer}[] files
function inputs.list(o)
    local ranges, files, seen = {}, {}, {}
    for _, item in ipairs(o.input) do
        for _, path in ipairs(files_of(item)) do
            if path:find("%c") then
                util.refuse("input=: the name %q has a line break or another control character: rename the file", path)
            elseif not seen[path] then
                local bytes, changed = mx.io.file_size(path)
                seen[path] = true
                files[#files + 1] = {
                    path = path, bytes = bytes, changed = changed, sum = util.attempt(mx.io.file_sum, path),
                }
                add_ranges(ranges, path, bytes, o)
            end
        end
    end
    return ranges, files
end

--- Refuses files that differ from those that rank 0 saw when it made the plan. Collective.
---@param files table of inputs.list
---@param wanted table<string, boolean> the paths that this rank reads
function inputs.check_same(files, wanted)
    local first = mx.share_text(mx.host_name())
    for _, file in ipairs(files) do
        local bytes = wanted[file.path] and mx.io.file_size(file.path)
        if wanted[file.path] and (bytes ~= file.bytes or util.attempt(mx.io.file_sum, file.path) ~= file.sum) then
            util.refuse("'%s' has %s bytes on %s (rank %d), and %d bytes%s on %s (rank 0): all ranks must read the "
                .. "same files", file.path, bytes or "no", mx.host_name(), mx.rank(), file.bytes,
                bytes == file.bytes and " of other contents" or "", first)
        end
    end
end

return inputs
