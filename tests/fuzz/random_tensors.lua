--- Random sizes, dtypes and tensors for the fuzzers. A tensor is described first (a spec) and built from that, as often
-- as is wanted, with the same values. All choices come from math.random.

local mx = require "mx"

local random = {}

random.DTYPES = { "f32", "f32", "f32", "bf16", "bf16", "bf16", "i32", "i32", "u8", "i8", "f64", "i64" }

local SIZES = { 0, 1, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 100, 129, 257 }
local MOST = 20000 -- elements of a tensor

function random.pick(list)
    return list[math.random(#list)]
end

--- True once in n times.
function random.chance(n)
    return math.random(n) == 1
end

local pick, chance = random.pick, random.chance

function random.size()
    return pick(SIZES)
end

---@param n_dims integer
---@return integer[]
function random.shape(n_dims)
    local shape = {}
    local count = 1
    for d = 1, n_dims do
        shape[d] = random.size()
        if count * shape[d] > MOST then
            shape[d] = pick { 1, 2, 3 }
        end
        count = count * math.max(1, shape[d])
    end
    if n_dims > 0 and chance(150) then -- several threads, several blocks; an operation may append a dimension of 257
        shape[1] = math.max(1, 70000 // (count // math.max(1, shape[1])))
    end
    return shape
end

--- `kind`: "plain" (multiples of 1/16 up to 4, exact in every dtype that has them), "positive", "large" (more than 60),
--- "ids" (0 .. 16), "places" (1 .. 17), "mask" (0 or 1), "zeros", "extreme" (up to 1e30), "special" (with NaN and
--- infinities), "released".
---@param shape integer[]
---@param dtype string
---@param kind? string
---@return table
function random.spec(shape, dtype, kind)
    return {
        shape = shape, dtype = dtype, kind = kind or "plain", seed = math.random(1 << 20),
        view = chance(4) and pick { "rows", "row", "reshape", "detach" } or nil,
        wants_grad = mx.dtypes[dtype].is_real and chance(2),
    }
end

--- The number of elements of a shape.
function random.count(shape)
    local n = 1
    for _, size in ipairs(shape) do
        n = n * size
    end
    return n
end

--- The spec of a tensor whose shape is a copy of the given one.
function random.like(shape, dtype, kind)
    return random.spec({ table.unpack(shape) }, dtype, kind)
end

local RANGE = { ids = { 0, 17 }, places = { 0, 18 }, mask = { 0, 2 }, zeros = { 0, 1 } }

local function values(shape, spec)
    local range = RANGE[spec.kind]
    if range then
        return mx.rand({ shape = shape, seed = spec.seed, low = range[1], high = range[2] }):to("i32"):to(spec.dtype)
    elseif not mx.dtypes[spec.dtype].is_real then
        local low = spec.dtype == "u8" and 0 or -5
        return mx.rand({ shape = shape, seed = spec.seed, low = low, high = 20 }):to(spec.dtype)
    end
    local t = mx.rand({ shape = shape, seed = spec.seed, low = -65, high = 65 }):to("i32"):to("f32") * (1 / 16)
    if spec.kind == "positive" then
        t = mx.abs(t) + 1 / 16
    elseif spec.kind == "large" then
        t = mx.abs(t) + 60
    elseif spec.kind == "extreme" then
        t = t * ({ 1e30, 1e-30, 1e4, 3e38 })[spec.seed % 4 + 1]
    elseif spec.kind == "special" then
        t = mx.where(mx.gt(t, 2), mx.log(t * 0), mx.where(mx.lt(t, -2), mx.sqrt(t), t))
    end
    return t:to(spec.dtype)
end

--- The tensor of a spec (or its number), without gradient. A view begins inside its storage, so that vector loops meet
--- unaligned rows.
function random.build(spec)
    if not spec then
        return nil
    elseif spec.scalar ~= nil then
        return spec.scalar
    end
    local shape = spec.shape
    local t
    if spec.view == "rows" and #shape > 0 then
        local larger = { table.unpack(shape) }
        larger[1] = larger[1] + 3
        t = mx.narrow(values(larger, spec), { dim = 1, start = 2, length = shape[1] })
    elseif spec.view == "row" and #shape > 0 then
        t = values({ 3, table.unpack(shape) }, spec)[2]
    elseif spec.view == "reshape" then
        t = mx.reshape(values({ 1, table.unpack(shape) }, spec), { shape = shape })
    else
        t = values(shape, spec)
    end
    t = spec.view and t:detach() or t
    if spec.kind == "released" then
        t:release()
    end
    return t
end

function random.describe(spec)
    if not spec then
        return "nil"
    elseif spec.scalar ~= nil then
        return tostring(spec.scalar)
    end
    return ("%s(%s)%s%s"):format(spec.dtype, table.concat(spec.shape, ","),
        spec.kind == "plain" and "" or " " .. spec.kind, spec.view and " " .. spec.view or "")
end

function random.is_float(t)
    return mx.dtypes[t:dtype()].is_real
end

--- All elements in one list, with the dtype as a field.
function random.values(t)
    local list = t:numel() > 0 and mx.reshape(t:detach(), { shape = { -1 } }):totable() or {}
    list.dtype = t:dtype()
    return list
end

--- Replaces the file's contents by a line.
function random.note(file, text)
    file:seek("set")
    file:write(text:sub(1, 500), (" "):rep(500 - #text), "\n")
    file:flush()
end

--- name=value words of the command line, over the standard values; numbers where the standard is one. Every fuzzer
-- takes seed, seconds (0: no limit but its own) and notes (a file).
function random.options(standard)
    standard.seed, standard.seconds, standard.notes = 1, 0, ""
    for _, word in ipairs(arg) do
        local name, value = word:match("^([%w_]+)=(.*)$")
        if standard[name] == nil then
            error(("unknown word '%s'"):format(word), 0)
        end
        standard[name] = type(standard[name]) == "number" and math.tointeger(tonumber(value)) or value
    end
    return standard
end

return random
