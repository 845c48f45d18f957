--- What was tuned before: a JSON file of the user, read and written by rank 0.
--
-- It is written as a whole in one step. Of two programs that write at the same time the later one wins; what the other
-- had tuned is tuned again.

local mx = require "mx"
local util = require "mx.util"

local cache = {}

local FORMAT = "mxlua tuning 1"

--- The file: $XDG_CACHE_HOME/mxlua/tuning.json, or ~/.cache/mxlua/tuning.json.
---@return string
function cache.path()
    local folder = os.getenv("XDG_CACHE_HOME")
    if not folder or folder:sub(1, 1) ~= "/" then -- the XDG specification ignores relative ones
        folder = (os.getenv("HOME") or "/tmp") .. "/.cache"
    end
    return folder .. "/mxlua/tuning.json"
end

local function describe(shape)
    local words = {}
    for key, value in util.sorted_pairs(shape) do
        local kind = type(value)
        if kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
            error(("mx.tune: shape.%s is a %s; expected a number, a string or a boolean"):format(key, kind), 0)
        end
        words[#words + 1] = ("%s=%s"):format(key, tostring(value))
    end
    return table.concat(words, " ")
end

--- The key of an entry: all that the fastest choice depends on.
---@param name string
---@param version integer of what is timed
---@param shape table<string, any>
---@return string
function cache.key(name, version, shape)
    local info = mx.info()
    return ("%s %d | mxlua %s, %s, %s | %d threads, %d of %d ranks here | %s"):format(name, version, mx.version,
        info.processor, info.isa, info.threads, info.node_ranks, info.ranks, describe(shape))
end

-- The entries of the file; for a file that is not a cache none, and why.
local function read(path)
    if not mx.io.exists(path) then
        return {}
    end
    local good, content = pcall(function() return mx.io.json_decode(mx.io.read_file(path)) end)
    if not good then
        return {}, tostring(content)
    elseif type(content) ~= "table" or content.format ~= FORMAT or type(content.entries) ~= "table" then
        return {}, ("expected format '%s'"):format(FORMAT)
    end
    return content.entries
end

--- The entry with this key, or nil: { choice = table, gain = number }. Warns of a file that cannot be read. Not
--- collective.
---@param path string
---@param key string
---@return table?
function cache.load(path, key)
    local entries, reason = read(path)
    if reason then
        mx.metrics.tell("the tuning cache %s is ignored, and replaced when something is tuned: %s", path, reason)
    end
    local entry = entries[key]
    return type(entry) == "table" and type(entry.choice) == "table" and type(entry.gain) == "number" and entry or nil
end

--- Stores an entry beside those of the file. A file that cannot be written is only warned of. Not collective.
---@param path string
---@param key string
---@param entry table
function cache.store(path, key, entry)
    local good, reason = pcall(function()
        local entries = read(path)
        entries[key] = entry
        mx.io.mkdir_p(path:match("^(.*)/[^/]*$") or ".")
        mx.io.write_file_atomic(path, mx.io.json_encode({ format = FORMAT, entries = entries }, { indent = 1 }) .. "\n")
    end)
    if not good then
        mx.metrics.tell("what was tuned could not be stored: %s", tostring(reason))
    end
end

return cache
