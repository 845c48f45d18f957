--- mx.einsum: sums of products by the names of dimensions, planned into permute, matmul, mul and sum. So it has
-- gradients, costs and a simulation.
--
--     mx.einsum("ij,kj->ik", a, b)        a times b transposed
--     mx.einsum("bhqd,bhkd->bhqk", q, k)  a product for each b and h
--     mx.einsum("...ij->...ji", x)        the last two dimensions exchanged
--     mx.einsum("ii->i", x)               the diagonal; "ii" is its sum
--
-- Without "->" the result has the names that occur once, in alphabetical order, after those of "...". A dimension of
-- size 1 is broadcast. Of several operands, those two are multiplied first whose product is the smallest.

local core = require "mx.core"

local HERE = debug.getinfo(1, "S").source

--- Raises an error at the line that called mx.einsum.
local function fail(equation, text, ...)
    local level = 2
    while debug.getinfo(level, "S").source == HERE do
        level = level + 1
    end
    error(("einsum \"%s\": " .. text):format(equation, ...), level)
end

-- ---- the equation ----

--- The names of the dimensions in `text`, where "..." stands for the names "1" .. "n" of `n_dots` dimensions: the last
-- n of `dots`.
local function names_of(equation, text, n_dots, dots)
    local names, at = {}, 1
    while at <= #text do
        if text:sub(at, at + 2) == "..." then
            for d = dots - n_dots + 1, dots do
                names[#names + 1] = tostring(d)
            end
            at = at + 3
        elseif text:find("^%a", at) then
            names[#names + 1] = text:sub(at, at)
            at = at + 1
        else
            fail(equation, "'%s' is no name of a dimension; names are single letters, \"...\" stands for the rest",
                text:sub(at, at))
        end
    end
    return names
end

--- How many dimensions "..." stands for in an operand of `n` dimensions.
local function dots_in(equation, text, i, n)
    local letters, dots = text:gsub("%.%.%.", "")
    if dots > 1 then
        fail(equation, "\"...\" stands twice in '%s'", text)
    elseif dots == 0 and #letters ~= n or #letters > n then
        fail(equation, "'%s' names %d dimensions, operand %d has %d", text, #letters, i, n)
    end
    return n - #letters
end

local function count_names(operands)
    local count = {}
    for _, operand in ipairs(operands) do
        for _, name in ipairs(operand.names) do
            count[name] = (count[name] or 0) + 1
        end
    end
    return count
end

local function implicit_result(operands, dots)
    local names = {}
    for name, count in pairs(count_names(operands)) do
        if count == 1 and name:find("%a") then
            names[#names + 1] = name
        end
    end
    table.sort(names)
    return (dots > 0 and "..." or "") .. table.concat(names)
end

--- The operands, each a tensor with the names of its dimensions, and the names of the result.
local function read(equation, tensors)
    local text = equation:gsub("%s", "")
    local left, right = text:match("^(.-)%->(.*)$")
    local operands, dots = {}, 0
    for part in ((left or text) .. ","):gmatch("(.-),") do
        local i = #operands + 1
        if not tensors[i] then
            fail(equation, "it names more than the %d operands that are given", #tensors)
        end
        local n_dots = dots_in(equation, part, i, #tensors[i]:size())
        operands[i] = { t = tensors[i], text = part, n_dots = n_dots }
        dots = math.max(dots, n_dots)
    end
    if #operands < #tensors then
        fail(equation, "it names %d operands, %d are given", #operands, #tensors)
    end
    for _, operand in ipairs(operands) do
        operand.names = names_of(equation, operand.text, operand.n_dots, dots)
    end
    right = right or implicit_result(operands, dots)
    return operands, names_of(equation, right, right:find("...", 1, true) and dots or 0, dots)
end

--- name -> its size. Sizes of one name must agree, or be 1.
local function sizes_of(equation, operands, result)
    local sizes = {}
    for i, operand in ipairs(operands) do
        local shape = operand.t:size()
        for d, name in ipairs(operand.names) do
            local known = sizes[name]
            if known and known ~= shape[d] and known ~= 1 and shape[d] ~= 1 then
                fail(equation, "'%s' is %d, but in operand %d it is %d", name, known, i, shape[d])
            end
            sizes[name] = (not known or known == 1) and shape[d] or known
        end
    end
    local seen = {}
    for _, name in ipairs(result) do
        if not sizes[name] or seen[name] then
            fail(equation, "the result names '%s', which %s", name, seen[name] and "it already has" or
                "no operand has")
        end
        seen[name] = true
    end
    return sizes
end

-- ---- single operands ----

local function shape_of(names, sizes)
    local shape = {}
    for d, name in ipairs(names) do
        shape[d] = sizes[name]
    end
    return shape
end

local function join(...)
    local all = {}
    for _, list in ipairs { ... } do
        table.move(list, 1, #list, #all + 1, all)
    end
    return all
end

local function reshape(t, shape)
    return core.reshape(t, { shape = shape })
end

local function position(names, wanted)
    for d, name in ipairs(names) do
        if name == wanted then
            return d
        end
    end
end

--- t with its dimensions in the order of `wanted`, which has the same names.
local function arrange(operand, wanted)
    local dims, moves = {}, false
    for d, name in ipairs(wanted) do
        dims[d] = position(operand.names, name)
        moves = moves or dims[d] ~= d
    end
    return moves and core.permute(operand.t, { dims = dims }) or operand.t
end

--- Replaces dimensions `first` and `second` of the operand, which have one name, by their diagonal, as the last one.
local function take_diagonal(equation, operand, first, second)
    local dims, names, lead, shape = {}, {}, {}, operand.t:size()
    for d, name in ipairs(operand.names) do
        if d ~= first and d ~= second then
            dims[#dims + 1], names[#names + 1], lead[#lead + 1] = d, name, shape[d]
        end
    end
    local n, name = shape[first], operand.names[first]
    if shape[second] ~= n then
        fail(equation, "'%s' is %d and %d in one operand", name, n, shape[second])
    end
    local square = core.permute(operand.t, { dims = join(dims, { first, second }) })
    local places = core.zeros(join(lead, { n, 1 }), "i32") + reshape(core.arange { n = n, dtype = "i32" }, { n, 1 })
    operand.t = reshape(core.gather(square, places, { dim = -1 }), join(lead, { n }))
    operand.names = join(names, { name })
end

local function take_diagonals(equation, operand)
    for d = #operand.names, 1, -1 do
        local first = position(operand.names, operand.names[d])
        if first < d then
            take_diagonal(equation, operand, first, d)
            return take_diagonals(equation, operand)
        end
    end
end

--- Removes the names that are not in `kept`: dimensions of size 1 that are broadcast, and those to sum over.
local function sum_others(operand, kept, sizes)
    local names, shape, flat = {}, operand.t:size(), {}
    for d, name in ipairs(operand.names) do
        if shape[d] ~= 1 or sizes[name] == 1 then
            names[#names + 1], flat[#flat + 1] = name, shape[d]
        end
    end
    operand.t = #names < #operand.names and reshape(operand.t, flat) or operand.t
    operand.names = names
    for d = #names, 1, -1 do
        if not kept[names[d]] then
            operand.t = core.sum(operand.t, { dim = d })
            table.remove(names, d)
        end
    end
end

-- ---- products ----

local function set_of(...)
    local set = {}
    for _, list in ipairs { ... } do
        for _, name in ipairs(list) do
            set[name] = true
        end
    end
    return set
end

local function volume(names, sizes)
    local n = 1
    for _, name in ipairs(names) do
        n = n * sizes[name]
    end
    return n
end

--- The names of a and b: in both and kept, in both and summed over, only in a, only in b; each in the order of a and b.
local function classify(a, b, kept)
    local in_a, in_b = set_of(a.names), set_of(b.names)
    local batch, inner, only_a, only_b = {}, {}, {}, {}
    for _, name in ipairs(a.names) do
        local list = not in_b[name] and only_a or kept[name] and batch or inner
        list[#list + 1] = name
    end
    for _, name in ipairs(b.names) do
        if not in_a[name] then
            only_b[#only_b + 1] = name
        end
    end
    return batch, inner, only_a, only_b
end

--- The operand as (batch, rows, columns) for matmul, and whether it is stored with rows and columns exchanged: whatever
-- needs no permutation.
local function as_matrices(operand, batch, rows, columns, sizes)
    local names = table.concat(operand.names, " ")
    local trans = names == table.concat(join(batch, columns, rows), " ") and #rows > 0 and #columns > 0
    local first, second = rows, columns
    if trans then
        first, second = columns, rows
    end
    local t = arrange(operand, join(batch, first, second))
    local shape = { volume(first, sizes), volume(second, sizes) }
    if #batch > 0 then
        table.insert(shape, 1, volume(batch, sizes))
    end
    return reshape(t, shape), trans
end

--- Without a sum: a (batch, only_a, 1 ...) times b (batch, 1 ..., only_b).
local function multiply_elements(a, b, batch, only_a, only_b, sizes)
    local ones_a, ones_b = {}, {}
    for d in ipairs(only_b) do
        ones_a[d] = 1
    end
    for d in ipairs(only_a) do
        ones_b[d] = 1
    end
    local left = reshape(arrange(a, join(batch, only_a)), join(shape_of(join(batch, only_a), sizes), ones_a))
    local right = arrange(b, join(batch, only_b))
    return core.mul(left, reshape(right, join(shape_of(batch, sizes), ones_b, shape_of(only_b, sizes))))
end

local function multiply(equation, a, b, kept, sizes)
    local batch, inner, only_a, only_b = classify(a, b, kept)
    local names = join(batch, only_a, only_b)
    if #names > 6 then
        fail(equation, "a product of two operands has %d dimensions; a tensor has at most 6", #names)
    elseif #inner == 0 then
        return { t = multiply_elements(a, b, batch, only_a, only_b, sizes), names = names }
    end
    local left, trans_a = as_matrices(a, batch, only_a, inner, sizes)
    local right, trans_b = as_matrices(b, batch, inner, only_b, sizes)
    local product = core.matmul(left, right, { trans_a = trans_a, trans_b = trans_b })
    return { t = reshape(product, shape_of(names, sizes)), names = names }
end

--- The names that the result or operands other than i and k have.
local function needed_beside(operands, i, k, result)
    local kept = set_of(result)
    for o, operand in ipairs(operands) do
        if o ~= i and o ~= k then
            for _, name in ipairs(operand.names) do
                kept[name] = true
            end
        end
    end
    return kept
end

--- The two operands whose product is the smallest, and after it the cheapest.
local function next_pair(operands, result, sizes)
    local best, best_size, best_work
    for i = 1, #operands - 1 do
        for k = i + 1, #operands do
            local kept = needed_beside(operands, i, k, result)
            local batch, inner, only_a, only_b = classify(operands[i], operands[k], kept)
            local size = volume(join(batch, only_a, only_b), sizes)
            local work = size * volume(inner, sizes)
            if not best or size < best_size or (size == best_size and work < best_work) then
                best, best_size, best_work = { i, k, kept }, size, work
            end
        end
    end
    return best[1], best[2], best[3]
end

---@param equation string
---@param ... any tensors, one for each part of the equation before "->"
return function(equation, ...)
    if type(equation) ~= "string" then
        error("einsum: the equation comes first, as in mx.einsum(\"ij,jk->ik\", a, b)", 2)
    end
    local operands, result = read(equation, { ... })
    local sizes = sizes_of(equation, operands, result)
    for _, operand in ipairs(operands) do
        take_diagonals(equation, operand)
    end
    for i, operand in ipairs(operands) do
        sum_others(operand, needed_beside(operands, i, i, result), sizes)
    end
    while #operands > 1 do
        local i, k, kept = next_pair(operands, result, sizes)
        operands[i] = multiply(equation, operands[i], operands[k], kept, sizes)
        table.remove(operands, k)
    end
    return arrange(operands[1], result)
end
