--- Cases of kernels.lua that make or read integers, and random numbers: classes, places, draws.

local mx = require "mx"

local draws = {}

local WIDTH = 4096 -- columns of the matrices

-- make(check) as in kernels.lua.
local function add(list, op, shape, dtype, make)
    list[#list + 1] = { kernel = op, shape = shape, dtype = dtype, unit = "B/s", ops = { [op] = true }, make = make }
end

local function add_integers(list, n)
    add(list, "argsort", ("%d of 64"):format(n), "i32", function(check) -- the experts that tokens are for
        local x = mx.randint({ check and 1003 or n }, { high = 64, seed = 3 })
        return function() return mx.argsort(x) end
    end)
    add(list, "randint", tostring(n), "i32", function(check)
        return function() return mx.randint({ check and 1003 or n }, { high = 1000, seed = 3 }) end
    end)
    add(list, "permutation", tostring(n), "i32", function(check)
        return function() return mx.permutation { n = check and 1003 or n, seed = 3 } end
    end)
end

local function add_random(list, dtype, n)
    for _, op in ipairs { "rand", "randn", "truncated_normal" } do
        add(list, op, tostring(n), dtype, function(check)
            return function() return mx[op]({ check and 1003 or n }, { seed = 3, dtype = dtype }) end
        end)
    end
    add(list, "bernoulli", tostring(n), dtype, function(check)
        local p = mx.rand { shape = { check and 1003 or n }, seed = 3, dtype = dtype }
        return function() return mx.bernoulli(p, { seed = 5 }) end
    end)
end

local function add_choices(list, dtype, n)
    local rows = n // WIDTH
    add(list, "one_hot", ("%d of 64"):format(n // 64), dtype, function(check)
        local ids = mx.randint({ check and 1003 or n // 64 }, { high = 63, seed = 3 })
        return function() return mx.one_hot(ids, { classes = 64, dtype = dtype }) end
    end)
    for _, part in ipairs { 16, 2 } do
        add(list, "nonzero", ("%dx%d 1 of %d"):format(rows, WIDTH, part), dtype, function(check)
            local x = mx.randint({ check and 37 or rows, WIDTH }, { high = part, seed = 3 }):eq(0):to(dtype)
            return function() return mx.nonzero(x) end
        end)
    end
    add(list, "multinomial", ("%dx%d n 1"):format(rows, WIDTH), dtype, function(check)
        local p = mx.rand { shape = { check and 37 or rows, WIDTH }, seed = 3, dtype = dtype }
        return function() return mx.multinomial(p, { n = 1, seed = 5 }) end
    end)
end

---@param list table[] cases as in kernels.lua, to which those here are added
---@param bytes integer of each large tensor
function draws.add(list, bytes)
    add_integers(list, bytes // 4)
    for _, dtype in ipairs { "f32", "bf16" } do
        local n = bytes // (dtype == "f32" and 4 or 2)
        add_random(list, dtype, n)
        add_choices(list, dtype, n)
    end
end

return draws
