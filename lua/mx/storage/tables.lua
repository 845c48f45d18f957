--- Saves nested tables of tensors, numbers, strings and booleans, and loads them. No code is executed.
--
-- The file is HDF5. Each tensor is a dataset: its number, a colon and the path to it, as in "2:layers.1.weight". The
-- dataset `structure` (u8) holds everything else: a value is one letter and its content.
--     n t f         nil, true, false
--     i d s         an integer (8 bytes), a float (8 bytes), a string (length in 8 bytes, then its bytes)
--     x             a tensor: its number (8 bytes)
--     { k v ... }   a table: its keys and values in turn

local mx = require "mx"
local util = require "mx.util"

local tables = {}

local FORMAT = "mxlua tables 1"
local DEPTH = 64
local MOST_NAME = 120 -- bytes of a path in the name of a dataset

-- ---- saving ----

-- Keys in an order that does not depend on the process: numbers before strings before booleans.
local function sorted(t)
    local keys = {}
    for key in pairs(t) do
        keys[#keys + 1] = key
    end
    local rank = { number = 1, string = 2, boolean = 3 }
    table.sort(keys, function(a, b)
        local ra, rb = rank[type(a)] or 4, rank[type(b)] or 4
        if ra ~= rb then
            return ra < rb
        end
        return type(a) == "boolean" and (not a and b) or type(a) ~= "boolean" and ra < 4 and a < b
    end)
    return keys
end

local function is_tensor(value)
    return type(value) == "userdata" and getmetatable(value) == "mx.tensor"
end

local function put_tensor(state, value, path)
    local number = state.numbers[value]
    if not number then
        number = #state.tensors + 1
        local name = table.concat(path, ".", 2):gsub("[^%w_.-]", "_")
        state.tensors[number] = { name = ("%d:%s"):format(number, name:sub(1, MOST_NAME)), value = value }
        state.numbers[value] = number
    end
    state.out[#state.out + 1] = "x" .. ("<i8"):pack(number)
end

local put

local function put_table(state, value, path)
    if #path > DEPTH or state.open[value] then
        error(("mx.save: %s is nested deeper than %d levels, or contains itself"):format(
            table.concat(path, ".", 1, math.min(#path, 8)), DEPTH), 0)
    elseif getmetatable(value) ~= nil then
        error(("mx.save: %s is an object with a metatable; save its fields as a plain table"):format(
            table.concat(path, ".")), 0)
    end
    state.open[value] = true
    state.out[#state.out + 1] = "{"
    for _, key in ipairs(sorted(value)) do
        path[#path + 1] = tostring(key)
        if type(key) ~= "string" and type(key) ~= "number" and type(key) ~= "boolean" then
            error(("mx.save: a key of %s is a %s; expected strings, numbers or booleans"):format(
                table.concat(path, ".", 1, #path - 1), type(key)), 0)
        end
        put(state, key, path)
        put(state, value[key], path)
        path[#path] = nil
    end
    state.out[#state.out + 1] = "}"
    state.open[value] = nil
end

-- `path` is the list of keys that lead to the value, for messages and names.
function put(state, value, path)
    local kind, out = math.type(value) or type(value), state.out
    if kind == "table" then
        put_table(state, value, path)
    elseif kind == "boolean" then
        out[#out + 1] = value and "t" or "f"
    elseif kind == "integer" then
        out[#out + 1] = "i" .. ("<i8"):pack(value)
    elseif kind == "float" then
        out[#out + 1] = "d" .. ("<d"):pack(value)
    elseif kind == "string" then
        out[#out + 1] = "s" .. ("<s8"):pack(value)
    elseif kind == "nil" then
        out[#out + 1] = "n"
    elseif is_tensor(value) then
        put_tensor(state, value, path)
    else
        error(("mx.save: %s is a %s; expected tensors, numbers, strings, booleans and tables of these"):format(
            table.concat(path, "."), kind), 0)
    end
end

--- Writes a value, usually a nested table, to a file: the complete file or none. A tensor that occurs twice is stored
--- once. Tensors are stored without gradients. Not collective: one rank calls it.
---@param path string
---@param value any tables of tensors, numbers, strings and booleans; keys are strings, numbers or booleans
function tables.save(path, value)
    if type(path) ~= "string" then
        error("mx.save(path, value): the path is a " .. type(path) .. "; expected the name of a file", 2)
    elseif mx.is_simulated() then
        error("mx.save: simulated tensors have no values to save", 2)
    end
    local state = { out = {}, tensors = {}, numbers = {}, open = {} }
    local good, message = pcall(put, state, value, { "value" })
    if not good then
        error(message, 2)
    end
    local writer <close> = mx.io.h5_writer(path)
    writer:attributes { format = FORMAT }
    for _, one in ipairs(state.tensors) do
        writer:put(one.name, one.value)
    end
    mx.scope(function()
        writer:put("structure", mx.from_bytes(table.concat(state.out), { dtype = "u8" }))
    end)
    writer:commit()
end

-- ---- loading ----

local function read_tensors(path, file)
    local tensors = {}
    for _, entry in ipairs(file:info()) do
        local number = math.tointeger(tonumber(entry.name:match("^(%d+):")))
        if number then
            tensors[number] = file:read(entry.name)
        elseif entry.name ~= "structure" then
            util.refuse("%s was not written by mx.save: it has a dataset '%s'", path, entry.name)
        end
    end
    return tensors
end

local get

local function get_table(state, depth)
    local t = {}
    if depth > DEPTH then
        error("nested too deeply")
    end
    while state.text:byte(state.at) ~= 125 do -- }
        local key = get(state, depth + 1)
        if key == nil or key ~= key or type(key) == "userdata" or type(key) == "table" then
            error("a key is no string, number or boolean")
        end
        t[key] = get(state, depth + 1)
    end
    state.at = state.at + 1
    return t
end

-- The value at state.at, which moves behind it. string.unpack raises an error beyond the end of the text.
function get(state, depth)
    local letter = state.text:sub(state.at, state.at)
    state.at = state.at + 1
    if letter == "{" then
        return get_table(state, depth)
    elseif letter == "t" or letter == "f" then
        return letter == "t"
    elseif letter == "n" then
        return nil
    end
    local layout = ({ i = "<i8", d = "<d", s = "<s8", x = "<i8" })[letter] or error("an unknown kind of value")
    local value
    value, state.at = layout:unpack(state.text, state.at)
    if letter == "x" then
        return state.tensors[value] or error(("tensor %d is missing"):format(value))
    end
    return value
end

--- Reads what mx.save wrote. Not collective.
---@param path string
---@return any the value, with new tensors
function tables.load(path)
    local file <close> = util.attempt(mx.io.h5_open, path)
    if file:attributes().format ~= FORMAT then
        util.refuse("%s was not written by mx.save; mx.io.h5_read reads other HDF5 files, mx.load_npz those of numpy, "
            .. "mx.nn.load parameters", path)
    end
    return util.attempt(function()
        local state = { at = 1, tensors = read_tensors(path, file) }
        state.text = mx.scope(function() return mx.to_bytes(file:read("structure")) end)
        local good, value = pcall(get, state, 1)
        if not good or state.at ~= #state.text + 1 then
            util.refuse("%s is damaged: its structure cannot be read (%s)", path,
                tostring(good and "too long" or value):gsub("^[^:]+:%d+: ", ""))
        end
        return value
    end)
end

return tables
