--- Small functions that several modules use. They do not work on tensors.

local core = require "mx.core"

local util = {}

--- The keys of a table in sorted order, for everything that reaches a collective, a file or a random stream.
---@param t table<string, any>
---@return string[]
function util.sorted_keys(t)
    local keys = {}
    for key in pairs(t) do
        keys[#keys + 1] = key
    end
    table.sort(keys)
    return keys
end

--- Iterates a table in the sorted order of its keys.
---@param t table<string, any>
function util.sorted_pairs(t)
    local keys, i = util.sorted_keys(t), 0
    return function()
        i = i + 1
        return keys[i], t[keys[i]]
    end
end

--- Advice for messages, if a value is whole but a float, such as 8 / 2; else "".
---@param value any
---@return string
function util.not_integer(value)
    return math.type(value) == "float" and math.tointeger(value) and ": // divides to integers" or ""
end

--- The dtypes of computation, by the names in configs and hardware files.
---@return string[]
function util.float_names()
    local names = {}
    for _, dtype in util.sorted_pairs(core.dtypes) do
        if dtype.computes then
            names[#names + 1] = dtype.long_name
        end
    end
    return names
end

--- The dtype with a long name of configs: "bf16" for "bfloat16".
---@param long_name string
---@return string
function util.dtype(long_name)
    for name, dtype in pairs(core.dtypes) do
        if dtype.long_name == long_name then
            return name
        end
    end
    error(("no dtype is called '%s'"):format(long_name), 2)
end

--- The part with this index, from 0, of `size` elements in `parts` parts, as the collectives split a dimension: parts
--- differ by at most one element, and the first ones are larger.
---@param size integer
---@param parts integer
---@param index integer
---@return integer length, integer start the first element, from 1
function util.part(size, parts, index)
    local least, larger = size // parts, size % parts
    return least + (index < larger and 1 or 0), index * least + math.min(index, larger) + 1
end

--- The greatest common divisor.
---@param a integer
---@param b integer
---@return integer
function util.gcd(a, b)
    local x, y = math.tointeger(a), math.tointeger(b)
    if not (x and y) then
        error(("util.gcd: expected two whole numbers, got %s and %s"):format(tostring(a), tostring(b)), 2)
    end
    while y ~= 0 do
        x, y = y, x % y
    end
    return x
end

--- A seed from a text and an integer (64-bit FNV-1a): the same on every rank, independent of the order of calls.
---@param text string
---@param seed integer
---@return integer
function util.seed(text, seed)
    local h = 0xcbf29ce484222325 ~ (seed * 0x9e3779b97f4a7c15)
    for i = 1, #text do
        h = (h ~ text:byte(i)) * 0x100000001b3
    end
    return util.mix(h)
end

--- The splitmix64 finaliser: spreads the bits of x; the result is not negative.
---@param x integer
---@return integer
function util.mix(x)
    x = (x ~ (x >> 30)) * 0xbf58476d1ce4e5b9
    x = (x ~ (x >> 27)) * 0x94d049bb133111eb
    return (x ~ (x >> 31)) & math.maxinteger
end

--- The p-th quantile (0 to 1) of a list of numbers, with linear interpolation; NaN for an empty list.
---@param values number[]
---@param p number
---@return number
function util.quantile(values, p)
    local sorted = table.move(values, 1, #values, 1, {})
    table.sort(sorted)
    if #sorted == 0 then
        return 0 / 0
    end
    local at = 1 + p * (#sorted - 1)
    local low = math.floor(at)
    local high = math.min(low + 1, #sorted)
    return sorted[low] + (at - low) * (sorted[high] - sorted[low])
end

--- A fraction of n, rounded down. If the product differs from an integer only by binary rounding, the result is that
--- integer: 0.29 of 100 is 29.
---@param n integer
---@param fraction number
---@return integer
function util.share(n, fraction)
    local product = n * fraction
    local nearest = math.floor(product + 0.5)
    return math.abs(product - nearest) <= product * 2 ^ -51 and nearest or math.floor(product)
end

--- An integer with a comma between thousands.
---@param n number
---@return string
function util.thousands(n)
    local text = ("%.0f"):format(n)
    local count
    repeat
        text, count = text:gsub("^(-?%d+)(%d%d%d)", "%1,%2")
    until count == 0
    return text
end

--- Memory for people: "1.89 GiB", "2.8 MiB".
---@param n number bytes
---@return string
function util.bytes(n)
    if n >= 2 ^ 30 then
        return ("%.2f GiB"):format(n / 2 ^ 30)
    end
    return ("%.1f MiB"):format(n / 2 ^ 20)
end

--- A duration in at most six columns: "12.3s", "4m05s", "3h07m", "2d04h".
---@param seconds number
---@return string
function util.duration(seconds)
    if seconds < 59.95 then
        return ("%.1fs"):format(seconds)
    elseif seconds < 3600 then
        return ("%dm%02ds"):format(seconds // 60, seconds % 60 // 1)
    elseif seconds < 86400 then
        return ("%dh%02dm"):format(seconds // 3600, seconds % 3600 // 60)
    end
    return ("%dd%02dh"):format(seconds // 86400, seconds % 86400 // 3600)
end

--- Whether a list has an item.
---@param list any[]
---@param item any
---@return boolean
function util.contains(list, item)
    for _, other in ipairs(list) do
        if other == item then
            return true
        end
    end
    return false
end

--- The reason of the first case that holds.
---@param cases {[1]: any, [2]: string}[] whether it holds, and the reason
---@return string? nil: none holds
function util.first_reason(cases)
    for _, case in ipairs(cases) do
        if case[1] then
            return case[2]
        end
    end
end

--- The items of list a that are not in list b.
---@param a any[]
---@param b any[]
---@return any[]
function util.without(a, b)
    local list = {}
    for _, item in ipairs(a) do
        if not util.contains(b, item) then
            list[#list + 1] = item
        end
    end
    return list
end

--- The word of a list that is nearest to `word`, or nil if none is near. Knows names of other libraries.
---@type fun(word: string, words: string[], edits: integer?): string? edits: how many letters may differ
util.nearest = core.nearest

-- An error in the user's input. The program prints its message of one line without a traceback, because the input is
-- wrong and not the script.
local Refusal = {}
Refusal.__index = Refusal
Refusal.__name = "mx.refusal"

function Refusal:__tostring()
    return self.message
end

--- Raises an error with a message of one line for the user.
---@param format string
function util.refuse(format, ...)
    error(setmetatable({ message = format:format(...) }, Refusal))
end

local MOST_LISTED = 12 -- names in a message

-- Raises an error at `level`: `what` does not have this key. The message names the nearest one, or all if none is near.
local function unknown(what, key, names, level)
    local near, advice = util.nearest(tostring(key), names), ""
    if near then
        advice = (", did you mean '%s'?"):format(near)
    elseif #names > 0 and #names <= MOST_LISTED then
        advice = "; it has " .. table.concat(names, ", ")
    end
    error(("%s '%s'%s"):format(what, tostring(key), advice), level + 1)
end

--- Makes reading or assigning an unknown field of a class's objects an error that names the nearest field.
---@param class table its methods, which objects have as metatable
---@param what string "an optimizer"
---@param fields string[] all fields that objects may have; they may be nil
---@param hints? table<string, string> other names that people try, and the advice for each
function util.strict(class, what, fields, hints)
    local known = {}
    for _, name in ipairs(fields) do
        known[name] = true
    end
    local function refuse(key)
        local names = util.sorted_keys(class)
        table.move(fields, 1, #fields, #names + 1, names)
        if hints and hints[key] then
            error(("%s has no field '%s'; %s"):format(what, tostring(key), hints[key]), 3)
        end
        unknown(what .. " has no field", key, names, 3)
    end
    function class.__index(_, key)
        local value = class[key]
        if value == nil and not known[key] then
            refuse(key)
        end
        return value
    end
    function class.__newindex(self, key, value)
        if not known[key] then
            refuse(key)
        end
        rawset(self, key, value)
    end
end

--- Makes reading an unknown function of a module an error that names the nearest one, or ours for that of PyTorch.
---@param module table
---@param what string "mx.nn"
---@return table module
function util.module(module, what)
    return setmetatable(module, {
        __index = function(_, key)
            local mx, help, names = require "mx", require "mx.help", {}
            for _, word in ipairs { what:sub(4) .. "." .. tostring(key), tostring(key) } do
                if help.is_elsewhere(word) then
                    error(("%s.%s does not exist; print(mx.help %q) says what to write instead"):format(what, key,
                        word), 2)
                end
                table.move(help.of_torch(word), 1, #help.of_torch(word), #names + 1, names)
            end
            local is_ours = rawget(mx, key) or getmetatable(mx).functions[key]
            local near = names[1] or is_ours and "mx." .. key or util.nearest(tostring(key), util.sorted_keys(module))
            near = near and not near:find("^mx%.") and what .. "." .. near or near
            local all = util.sorted_keys(module)
            local advice = near and ("did you mean %s?"):format(near) or
                #all <= MOST_LISTED and "it has " .. table.concat(all, ", ") or "mx.help() lists all names"
            error(("%s.%s does not exist; %s"):format(what, tostring(key), advice), 2)
        end,
    })
end

--- Checks a table of named arguments: an unknown one, or a missing one, is an error in the script.
---@param given table
---@param required string[]
---@param optional string[]
---@param what string the function, for messages
---@return table given
function util.arguments(given, required, optional, what)
    local names = table.move(optional, 1, #optional, #required + 1, { table.unpack(required) })
    if type(given) ~= "table" then
        error(("%s takes a table of %s"):format(what, table.concat(names, ", ")), 3)
    end
    for key in pairs(given) do
        if not util.contains(names, key) then
            unknown(what .. " has no option", key, names, 3)
        end
    end
    for _, name in ipairs(required) do
        if given[name] == nil then
            error(("%s: '%s' is missing"):format(what, name), 3)
        end
    end
    return given
end

--- An option table completed with defaults. A key without a default is an error in the script, now and on later reads.
---@param given? table
---@param standard table
---@param what string the function, for messages
---@param hints? table<string, string> other names that people try, and the advice for each
---@return table
function util.options(given, standard, what, hints)
    local options = {}
    for key, value in pairs(standard) do
        options[key] = value
    end
    local function known(key, level)
        if standard[key] == nil and hints and hints[key] then
            error(("%s has no option '%s'; %s"):format(what, key, hints[key]), level + 1)
        elseif standard[key] == nil then
            unknown(what .. " has no option", key, util.sorted_keys(standard), level + 1)
        end
    end
    if given ~= nil and type(given) ~= "table" then
        error(("%s takes its options as a table, such as { %s = ... }, not %s"):format(what,
            util.sorted_keys(standard)[1], tostring(given)), 3)
    end
    for key, value in pairs(given or {}) do
        known(key, 3)
        options[key] = value
    end
    return setmetatable(options, {
        __index = function(_, key) known(key, 2) end,
        __newindex = function(self, key, value)
            known(key, 2)
            rawset(self, key, value)
        end,
    })
end

--- The largest number of bytes of a large tensor that are read, assembled or written at once.
util.PIECE_BYTES = 64 << 20

--- Iterates over `count` rows of a tensor in pieces: for first, rows in util.pieces(count, sizes, 1) do. A row is the
--- part of the tensor at one index along `dim`; values count as four bytes. A piece has at least one row. Without rows
--- there is one empty piece.
---@param count integer
---@param sizes integer[] of the tensor
---@param dim integer
---@return fun(): integer?, integer?
function util.pieces(count, sizes, dim)
    local bytes, next_first = 4, 1
    for d, size in ipairs(sizes) do
        bytes = d == dim and bytes or bytes * math.max(size, 1)
    end
    local most = math.max(util.PIECE_BYTES // bytes, 1)
    return function()
        local first = next_first
        if first > math.max(count, 1) then
            return nil
        end
        next_first = first + most
        return first, math.min(most, count - first + 1)
    end
end

--- Calls fn(...) and turns its errors into refusals: for files that the user has named.
---@param fn function
---@return any ...
function util.attempt(fn, ...)
    local results = table.pack(pcall(fn, ...))
    if not results[1] then
        local message = tostring(results[2]):gsub("^[^%s:]+:%d+: ", "") -- the script's line does not help the user
        util.refuse("%s", message)
    end
    return table.unpack(results, 2, results.n)
end

return util
