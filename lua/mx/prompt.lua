-- The interactive prompt of `mxlua -i`: reads a statement or an expression of one or more lines, runs it on every rank,
-- and prints its values on rank 0. After an error it prints the message and continues.

local core = require "mx.core"

local INLINE_LIMIT = 100 -- characters of a table on one line
local DEPTH_LIMIT = 4

local describe

--- Keys in an order that is the same on every rank and in every run: the list part, then the rest by name.
---@param t table
---@return table keys outside the list part
local function other_keys(t)
    local keys = {}
    for key in pairs(t) do
        if not (math.type(key) == "integer" and key >= 1 and key <= #t) then
            keys[#keys + 1] = key
        end
    end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    return keys
end

---@param t table
---@param depth integer number of enclosing tables
---@return string
local function describe_table(t, depth)
    local parts = {}
    for i = 1, #t do
        parts[i] = describe(t[i], depth + 1)
    end
    for _, key in ipairs(other_keys(t)) do
        local name = type(key) == "string" and key:match("^[%a_][%w_]*$") or "[" .. describe(key, depth + 1) .. "]"
        parts[#parts + 1] = name .. " = " .. describe(t[key], depth + 1)
    end
    local line = "{" .. table.concat(parts, ", ") .. "}"
    if #line <= INLINE_LIMIT and not line:find("\n") then
        return line
    end
    local indent = ("  "):rep(depth + 1)
    return "{\n" .. indent .. table.concat(parts, ",\n" .. indent) .. "\n" .. ("  "):rep(depth) .. "}"
end

--- A value as text: tables with their contents, all other values by tostring.
---@param value any
---@param depth integer
---@return string
function describe(value, depth)
    if type(value) == "string" and depth > 0 then
        return ("%q"):format(value)
    end
    local meta = getmetatable(value)
    if type(value) ~= "table" or (type(meta) == "table" and meta.__tostring) or depth >= DEPTH_LIMIT then
        return tostring(value)
    end
    return describe_table(value, depth)
end

---@param ok boolean
---@param ... any the results, or the message
local function show(ok, ...)
    if not ok then
        io.stdout:flush()
        io.stderr:write(core.ranks() > 1 and ("rank %d: "):format(core.rank()) or "", tostring((...)), "\n")
    elseif core.rank() == 0 and select("#", ...) > 0 then
        local texts = table.pack(...)
        for i = 1, texts.n do
            texts[i] = describe(texts[i], 0)
        end
        print(table.concat(texts, "\t"))
    end
end

---@param message any
---@return any
local function handler(message)
    return type(message) == "string" and debug.traceback(message, 2):gsub("\n%s*%[C%]: in function 'xpcall'.*$", "")
        or message
end

---@param text string
---@return function? chunk
---@return string? message
local function compile(text)
    local expression = text:match("^%s*=(.*)$") or text
    local chunk = load("return " .. expression, "=prompt", "t")
    if chunk then
        return chunk
    end
    return load(text, "=prompt", "t")
end

--- Reads lines until they form a chunk, or cannot become one. An empty line ends an unfinished chunk.
---@return function? chunk nil at the end of the input
---@return string? message
local function read_chunk()
    local text = core.read_line("> ")
    if not text then
        return nil
    end
    while true do
        local chunk, message = compile(text)
        if chunk or not message:find("<eof>", -5, true) then
            return chunk or function() error(message, 0) end
        end
        local line = core.read_line(">> ")
        if not line or line == "" then
            return function() error(message, 0) end
        end
        text = text .. "\n" .. line
    end
end

--- Runs the prompt until the input ends.
return function()
    -- Locals end with their line, so at the prompt new globals are allowed.
    local strict = getmetatable(_G)
    if strict then
        strict.__newindex = nil
    end
    if core.rank() == 0 then
        print(("mxlua %s, %d rank(s), %s. The module is mx; mx.help() lists its names, mx.help(NAME) explains one; "
            .. "end with Ctrl-D."):format(core.version, core.ranks(), core.isa()))
    end
    for chunk in read_chunk do
        show(xpcall(chunk, handler))
    end
    if core.rank() == 0 then
        print()
    end
end
