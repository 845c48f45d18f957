--- What the tests share: reading golden files, and one measure of how far two tensors are apart.

local mx = require "mx"

local compare = {}

--- The folder of this file, with a slash at its end.
compare.here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"

--- All elements in order as a plain table of numbers.
---@param t any a tensor, a nested table or a number
---@return number[]
function compare.flat(t)
    local out = {}
    local function walk(v)
        if type(v) == "table" then
            for i = 1, #v do
                walk(v[i])
            end
        else
            out[#out + 1] = v
        end
    end
    if type(t) == "userdata" then
        if t:numel() == 0 then
            return out
        end
        t = t:totable()
    end
    walk(t)
    return out
end

--- The largest difference of two elements over the largest magnitude of `expected`, or over `scale` if that is larger.
-- Infinite when the element counts differ or either holds a NaN that the other does not.
---@param actual any
---@param expected any
---@param scale? number
---@return number
function compare.distance(actual, expected, scale)
    local a, b = compare.flat(actual), compare.flat(expected)
    if #a ~= #b then
        return math.huge
    end
    local largest, apart = scale or 0, 0
    for i = 1, #b do
        local x, y = a[i], b[i]
        if x ~= x or y ~= y then
            if x == x or y == y then
                return math.huge
            end
        elseif x ~= y then
            apart = math.max(apart, math.abs(x - y))
            if math.abs(y) < math.huge then
                largest = math.max(largest, math.abs(y))
            end
        elseif math.abs(y) < math.huge then
            largest = math.max(largest, math.abs(y))
        end
    end
    return apart == 0 and 0 or apart / (largest > 0 and largest or 1)
end

--- compare.distance of large tensors, by the engine's own (portable) operations: a NaN on one side only is infinite.
---@param actual any
---@param expected any
---@return number
function compare.large_distance(actual, expected)
    if not compare.same_sizes(actual, expected) then
        return math.huge
    end
    local before = mx.isa()
    mx.isa("portable")
    local apart, largest = mx.no_grad(mx.scope, function()
        local a, b = actual:to("f32"), expected:to("f32")
        return mx.max(mx.abs(a - b)):item(), mx.max(mx.abs(b)):item()
    end)
    mx.isa(before)
    if apart ~= apart then
        return math.huge
    end
    return apart == 0 and 0 or apart / (largest > 0 and largest or 1)
end

--- The root mean square of the differences over that of `expected`, or over `scale` if that is larger.
---@param actual any
---@param expected any
---@param scale? number
---@return number
function compare.rms_distance(actual, expected, scale)
    local a, b, sum = compare.flat(actual), compare.flat(expected), 0
    if #a ~= #b then
        return math.huge
    end
    for i = 1, #b do
        sum = sum + (a[i] - b[i]) ^ 2
    end
    local apart = #b > 0 and math.sqrt(sum / #b) or 0
    local size = math.max(compare.rms(b), scale or 0)
    return apart ~= apart and math.huge or apart == 0 and 0 or apart / (size > 0 and size or 1)
end

--- Root mean square of the elements; 0 for none.
---@param t any
---@return number
function compare.rms(t)
    local sum, a = 0, compare.flat(t)
    for i = 1, #a do
        sum = sum + a[i] * a[i]
    end
    return #a > 0 and math.sqrt(sum / #a) or 0
end

--- Whether two tensors have the same sizes.
function compare.same_sizes(a, b)
    local x, y = a:size(), b:size()
    if #x ~= #y then
        return false
    end
    for i = 1, #x do
        if x[i] ~= y[i] then
            return false
        end
    end
    return true
end

--- Whether two tensors hold the same bits (for finite values).
function compare.identical(a, b)
    if a:dtype() ~= b:dtype() or not compare.same_sizes(a, b) then
        return false
    end
    local x, y = compare.flat(a), compare.flat(b)
    for i = 1, #x do
        if x[i] ~= y[i] then
            return false
        end
    end
    return true
end

--- Instruction sets that this processor runs, the portable one first; of those that ISAS in the environment names, if
--- it names any.
---@return string[]
function compare.isas()
    local best, found = mx.isa(), {}
    for name in (os.getenv "ISAS" or "portable avx2 avx512 avx512_bf16 amx"):gmatch "%S+" do
        if pcall(mx.isa, name) then
            found[#found + 1] = name
        end
    end
    mx.isa(best)
    return found
end

--- Calls fn once for each instruction set in use, and puts the old one back whatever happens.
function compare.on_each_isa(fn)
    local before = mx.isa()
    for _, name in ipairs(compare.isas()) do
        mx.isa(name)
        local ok, message = xpcall(fn, debug.traceback, name)
        mx.isa(before)
        if not ok then
            error(message, 0)
        end
    end
end

--- Reads a file that write_packed of tests/golden/golden.py made.
---@param name string
---@return table cases, fun(array: string): any get
function compare.packed(name)
    local data = mx.io.h5_read(compare.here .. "../golden/" .. name)
    local bytes, pieces = data.index:totable(), {}
    for at = 1, #bytes, 4096 do
        pieces[#pieces + 1] = string.char(table.unpack(bytes, at, math.min(at + 4095, #bytes)))
    end
    local index = mx.io.json_decode(table.concat(pieces))
    local function get(array)
        local where = index.arrays[array]
        if not where then
            return nil
        end
        local dtype, start, sizes = where[1], where[2], where[3]
        local count = 1
        for _, n in ipairs(sizes) do
            count = count * n
        end
        if count == 0 then
            return mx.zeros(sizes, dtype)
        end
        return data[dtype]:narrow { dim = 1, start = start, length = count }:reshape { shape = sizes }:clone()
    end
    return index.cases, get
end

--- The cases of several such files. No two files have a case of the same name.
---@param names string[]
---@return table cases, fun(array: string): any get
function compare.packed_files(names)
    local cases, getters = {}, {}
    for i, name in ipairs(names) do
        local found, get = compare.packed(name)
        table.move(found, 1, #found, #cases + 1, cases)
        getters[i] = get
    end
    return cases, function(array)
        for _, get in ipairs(getters) do
            local t = get(array)
            if t then
                return t
            end
        end
    end
end

return compare
