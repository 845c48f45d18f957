--- Cases of kernels.lua that move elements and compute little or nothing: copies in another arrangement, choices by
--- index, triangles and margins, dropout and gradients of embeddings.

local mx = require "mx"

local moves = {}

local WIDTH = 4096 -- columns of the matrices

local function randn(seed, shape, dtype)
    return mx.randn { shape = shape, seed = seed, dtype = dtype }
end

-- k parts of equal size along the first dimension.
local function parts(x, k)
    local list, n = {}, x:size(1) // k
    for i = 1, k do
        list[i] = mx.narrow(x, { dim = 1, start = (i - 1) * n + 1, length = n })
    end
    return list
end

-- Those of one matrix: {operation, what varies, call}.
local MATRICES = {
    { "flip", "dim 1", function(x) return mx.flip(x, { dim = 1 }) end },
    { "flip", "dim 2", function(x) return mx.flip(x, { dim = 2 }) end },
    { "roll", "", function(x) return mx.roll(x, { shift = 5, dim = 2 }) end },
    { "pad", "", function(x) return mx.pad(x, { before = { 0, 3 }, after = { 1, 5 } }) end },
    { "tril", "", mx.tril },
    { "triu", "", mx.triu },
    { "expand", "of 16", function(x) return mx.expand(x:view(-1, 16)[{ {}, { 1, 1 } }], { -1, 16 }) end },
    { "expand", "of rows", function(x) return mx.expand(x[{ { 1, 1 } }], { x:size(1), WIDTH }) end },
    { "tile", "", function(x) return mx.tile(x, { 1, 2 }) end },
    { "stack", "2, dim 2", function(x) return mx.stack(parts(x, 2), { dim = 2 }) end },
    { "stack", "2, dim 3", function(x) return mx.stack(parts(x, 2), { dim = 3 }) end },
    { "stack", "3, dim 3", function(x) return mx.stack(parts(x, 3), { dim = 3 }) end },
    { "stack", "4, dim 3", function(x) return mx.stack(parts(x, 4), { dim = 3 }) end },
    { "concat", "2, dim 2", function(x) return mx.concat(parts(x, 2), { dim = 2 }) end },
    { "concat", "2 of 8", function(x) return mx.concat(parts(x:view(-1, 8), 2), { dim = 2 }) end },
    { "narrow", "32 of 64", function(x) return mx.narrow(x:view(-1, 64), { dim = 2, start = 17, length = 32 }) end },
    { "narrow", "every 2nd", function(x) return mx.narrow(x:view(-1, 2), { dim = 2, start = 2, length = 1 }) end },
    { "transpose", "", mx.transpose },
    { "transpose", "of 64x64", function(x) return mx.transpose(x:view(-1, 64, 64)) end },
    { "transpose", "of 255x1000", function(x)
        return mx.transpose(x:view(-1)[{ { 1, x:numel() // 255000 * 255000 } }]:view(-1, 255, 1000))
    end },
    { "permute", "heads of 64", function(x)
        return mx.permute(x:view(-1, 256, 16, 64), { dims = { 1, 3, 2, 4 } })
    end },
    { "permute", "3 colours last", function(x)
        local n = x:numel() // 12288
        return mx.permute(x:view(-1)[{ { 1, n * 12288 } }]:view(n, 3, 64, 64), { dims = { 1, 3, 4, 2 } })
    end },
    { "permute", "3 colours first", function(x)
        local n = x:numel() // 12288
        return mx.permute(x:view(-1)[{ { 1, n * 12288 } }]:view(n, 64, 64, 3), { dims = { 1, 4, 2, 3 } })
    end },
    { "permute", "reversed", function(x) return mx.permute(x:view(-1, 32, 64, 32), { dims = { 4, 3, 2, 1 } }) end },
    { "where", "x > 0", function(x) return mx.where(mx.gt(x, 0), x, -1) end },
    { "gt", "0", function(x) return mx.gt(x, 0) end },
    { "index_select", "", function(x) return mx.index_select(x, mx.permutation { n = x:size(1), seed = 3 }) end },
    { "index_select", "rows of 16", function(x)
        return mx.index_select(x:view(-1, 16), mx.permutation { n = x:numel() // 16, seed = 3 })
    end },
    { "gather", "dim 1", function(x, ids) return mx.gather(x, ids, { dim = 1 }) end },
    { "gather", "dim 2", function(x, ids) return mx.gather(x, ids, { dim = 2 }) end },
    { "scatter", "dim 2", function(x, ids) return mx.scatter(x, ids, x, { dim = 2 }) end },
    { "scatter_add", "dim 2", function(x, ids) return mx.scatter_add(x, ids, x, { dim = 2 }) end },
    { "scatter_reduce", "dim 2 max", function(x, ids)
        return mx.scatter_reduce(x, ids, x, { dim = 2, reduce = "max" })
    end },
    { "scatter_reduce", "dim 2 mean", function(x, ids)
        return mx.scatter_reduce(x, ids, x, { dim = 2, reduce = "mean", include_self = false })
    end },
    { "scatter_add", "dim 1", function(x, ids) return mx.scatter_add(x, ids, x, { dim = 1 }) end },
    { "scatter_reduce", "dim 1 max", function(x, ids)
        return mx.scatter_reduce(x, ids, x, { dim = 1, reduce = "max" })
    end },
    { "dropout", "", function(x) return mx.dropout(x, { rate = 0.1, seed = 3 }) end },
}

-- Vectors of 32,000 ids, each chosen about twice.
local function add_embedding_grad(list, dtype, bytes)
    local rows = bytes // (dtype == "f32" and 4 or 2) // WIDTH
    list[#list + 1] = {
        kernel = "embedding_grad", shape = ("%dx%d"):format(rows, WIDTH), dtype = dtype, unit = "B/s",
        ops = { embedding_grad = true },
        make = function(check)
            local n, vocabulary = check and 300 or rows, check and 97 or rows // 2
            local ids = mx.randint({ n }, { high = vocabulary, seed = 5 })
            local dy = randn(1, { n, check and 33 or WIDTH }, dtype)
            return function() return mx.embedding_grad(ids, dy, { vocab = vocabulary }) end
        end,
    }
end

---@param list table[] cases as in kernels.lua, to which those here are added
---@param bytes integer of each large tensor
function moves.add(list, bytes)
    for _, dtype in ipairs { "f32", "bf16" } do
        local rows = bytes // ((dtype == "f32" and 4 or 2) * WIDTH)
        for _, case in ipairs(MATRICES) do
            local op, text, call = table.unpack(case)
            list[#list + 1] = {
                kernel = op, shape = ("%dx%d %s"):format(rows, WIDTH, text), dtype = dtype, unit = "B/s",
                ops = { [op] = true },
                make = function(check)
                    local x = randn(1, { check and 64 or rows, WIDTH }, dtype)
                    local high = text:match "^dim 1" and x:size(1) or WIDTH
                    local ids = (op == "gather" or op:match "^scatter")
                        and mx.randint({ x:size(1), WIDTH }, { high = high, seed = 3 })
                    return function() return call(x, ids) end
                end,
            }
        end
        add_embedding_grad(list, dtype, bytes)
    end
end

return moves
