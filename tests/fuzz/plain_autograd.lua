--- A plain reference for gradients: operations on flat Lua tables of numbers, whose gradients are central differences
-- in double precision. It knows no tape, scope or storage: an operation captures the values that it reads.

local random = require "random_tensors"

local plain = {}

--- An operation: `run(values, shapes, options)` gives the flat values and the shape of the result from those of the
-- inputs; `mx(tensors, options)` does the same with the engine. `jumps(values, shapes)`, of an operation whose slope or
-- value jumps: whether it does so near these inputs. There a difference is no slope, and f32 may be on the other side.
plain.ops = {}

local MARGIN = 1e-3 -- f32 over some 30 operations, and the step of the differences

local count = random.count
plain.count = count

local function define(mx)
    plain.ops.sum = {
        inputs = 1,
        run = function(values)
            local sum = 0
            for _, x in ipairs(values[1]) do
                sum = sum + x
            end
            return { sum }, {}
        end,
        mx = function(t) return mx.sum(t[1]) end,
    }
    plain.ops.mean = {
        inputs = 1,
        run = function(values)
            local sum = plain.ops.sum.run(values)
            return { sum[1] / #values[1] }, {}
        end,
        mx = function(t) return mx.mean(t[1]) end,
    }
    plain.ops.sum_rows = {
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local rows, columns, out = shapes[1][1], shapes[1][2], {}
            for c = 1, columns do
                out[c] = 0
                for r = 1, rows do
                    out[c] = out[c] + values[1][(r - 1) * columns + c]
                end
            end
            return out, { columns }
        end,
        mx = function(t) return mx.sum(t[1], { dim = 1 }) end,
    }
    plain.ops.cumsum = { -- along the first dimension, from its end
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local columns, out = shapes[1][2], table.move(values[1], 1, #values[1], 1, {})
            for i = #out - columns, 1, -1 do
                out[i] = out[i] + out[i + columns]
            end
            return out, shapes[1]
        end,
        mx = function(t) return mx.cumsum(t[1], { dim = 1, reverse = true }) end,
    }
    plain.ops.sort = { -- with a ramp, so that hardly any values are equal
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local columns, out = shapes[1][2], {}
            for first = 0, #values[1] - 1, columns do
                local row = {}
                for c = 1, columns do
                    row[c] = values[1][first + c] + 0.0371 * c
                end
                table.sort(row)
                table.move(row, 1, columns, first + 1, out)
            end
            return out, shapes[1]
        end,
        jumps = function(values, shapes)
            local sorted = plain.ops.sort.run(values, shapes)
            for i = 2, #sorted do
                if (i - 1) % shapes[1][2] ~= 0 and sorted[i] - sorted[i - 1] < MARGIN then
                    return true
                end
            end
            return false
        end,
        mx = function(t)
            return (mx.sort(t[1] + mx.arange(t[1]:size(2), { start = 0.0371, step = 0.0371 })))
        end,
    }
    plain.ops.scatter_add = { -- the second tensor to the first elements of the rows, twice to the very first
        inputs = 2, n_dims = 2, same_shape = true,
        run = function(values, shapes)
            local columns, out = shapes[1][2], table.move(values[1], 1, #values[1], 1, {})
            for i, x in ipairs(values[2]) do
                local to = (i - 1) % columns == columns - 1 and i - columns + 1 or i
                out[to] = out[to] + x
            end
            return out, shapes[1]
        end,
        mx = function(t)
            local rows, columns = t[1]:size(1), t[1]:size(2)
            local index = {}
            for r = 1, rows do
                index[r] = {}
                for c = 1, columns do
                    index[r][c] = c == columns and 0 or c - 1
                end
            end
            return mx.scatter_add(t[1], mx.tensor(index, "i32"), t[2], { dim = 2 })
        end,
    }
    plain.ops.flip = {
        inputs = 1,
        run = function(values, shapes)
            local out, n = {}, #values[1]
            for i = 1, n do
                out[i] = values[1][n + 1 - i]
            end
            return out, shapes[1]
        end,
        mx = function(t) return mx.flip(t[1]) end,
    }
    plain.ops.tile = { -- twice below itself
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local out = table.move(values[1], 1, #values[1], 1, {})
            return table.move(values[1], 1, #values[1], #out + 1, out), { 2 * shapes[1][1], shapes[1][2] }
        end,
        mx = function(t) return mx.tile(t[1], { 2, 1 }) end,
    }
    plain.ops.tril = {
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local columns, out = shapes[1][2], {}
            for i, x in ipairs(values[1]) do
                out[i] = (i - 1) % columns <= (i - 1) // columns and x or 0
            end
            return out, shapes[1]
        end,
        mx = function(t) return mx.tril(t[1]) end,
    }
    plain.ops.index_select = { -- the last column and the first
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local rows, columns, out = shapes[1][1], shapes[1][2], {}
            for r = 1, rows do
                out[2 * r - 1], out[2 * r] = values[1][r * columns], values[1][(r - 1) * columns + 1]
            end
            return out, { rows, 2 }
        end,
        mx = function(t) return mx.index_select(t[1], mx.tensor({ t[1]:size(2) - 1, 0 }, "i32"), { dim = 2 }) end,
    }
    plain.ops.stack = {
        inputs = 2, same_shape = true,
        fits = function(a, b) return #a == 1 and #b == 1 and a[1] == b[1] end,
        run = function(values, shapes)
            local out = table.move(values[1], 1, #values[1], 1, {})
            return table.move(values[2], 1, #values[2], #out + 1, out), { 2, shapes[1][1] }
        end,
        mx = function(t) return mx.stack(t[1], t[2]) end,
    }
    plain.ops.var = { -- of all, by their number
        inputs = 1,
        run = function(values)
            local mean, sum = plain.ops.mean.run(values)[1], 0
            for _, x in ipairs(values[1]) do
                sum = sum + (x - mean) ^ 2
            end
            return { sum / #values[1] }, {}
        end,
        mx = function(t) return mx.var(t[1], { correction = 0 }) end,
    }
    plain.ops.logsumexp = { -- of each column
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local columns, out = shapes[1][2], {}
            for i, x in ipairs(values[1]) do
                local c = (i - 1) % columns + 1
                out[c] = (out[c] or 0) + math.exp(x)
            end
            for c = 1, columns do
                out[c] = math.log(out[c])
            end
            return out, { columns }
        end,
        mx = function(t) return mx.logsumexp(t[1], { dim = 1 }) end,
    }
    plain.ops.softmax = {
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local columns, out = shapes[1][2], {}
            for first = 0, #values[1] - 1, columns do
                local sum = 0
                for c = 1, columns do
                    sum = sum + math.exp(values[1][first + c])
                end
                for c = 1, columns do
                    out[first + c] = math.exp(values[1][first + c]) / sum
                end
            end
            return out, shapes[1]
        end,
        mx = function(t) return mx.softmax(t[1]) end,
    }
    plain.ops.rmsnorm = {
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local columns, out = shapes[1][2], {}
            for first = 0, #values[1] - 1, columns do
                local sum = 0
                for c = 1, columns do
                    sum = sum + values[1][first + c] ^ 2
                end
                for c = 1, columns do
                    out[first + c] = values[1][first + c] / math.sqrt(sum / columns + 0.1)
                end
            end
            return out, shapes[1]
        end,
        mx = function(t) return mx.rmsnorm(t[1], { eps = 0.1 }) end,
    }
    plain.ops.transpose = {
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local rows, columns, out = shapes[1][1], shapes[1][2], {}
            for r = 1, rows do
                for c = 1, columns do
                    out[(c - 1) * rows + r] = values[1][(r - 1) * columns + c]
                end
            end
            return out, { columns, rows }
        end,
        mx = function(t) return mx.transpose(t[1]) end,
    }
    plain.ops.matmul = {
        inputs = 2, n_dims = 2,
        fits = function(a, b) return a[2] == b[1] end,
        run = function(values, shapes)
            local m, k, n, out = shapes[1][1], shapes[1][2], shapes[2][2], {}
            for i = 1, m do
                for j = 1, n do
                    local sum = 0
                    for l = 1, k do
                        sum = sum + values[1][(i - 1) * k + l] * values[2][(l - 1) * n + j]
                    end
                    out[(i - 1) * n + j] = sum
                end
            end
            return out, { m, n }
        end,
        mx = function(t) return mx.matmul(t[1], t[2]) end,
    }
    plain.ops.einsum = { -- the sum over columns of a product element by element
        inputs = 2, n_dims = 2, same_shape = true,
        run = function(values, shapes)
            local rows, columns, out = shapes[1][1], shapes[1][2], {}
            for r = 1, rows do
                out[r] = 0
                for c = 1, columns do
                    local e = (r - 1) * columns + c
                    out[r] = out[r] + values[1][e] * values[2][e]
                end
            end
            return out, { rows }
        end,
        mx = function(t) return mx.einsum("ij,ij->i", t[1], t[2]) end,
    }
    plain.ops.vector_matmul = { -- the first row of a times b
        inputs = 2, n_dims = 2,
        fits = function(a, b) return a[2] == b[1] end,
        run = function(values, shapes)
            local k, n, out = shapes[1][2], shapes[2][2], {}
            for j = 1, n do
                out[j] = 0
                for l = 1, k do
                    out[j] = out[j] + values[1][l] * values[2][(l - 1) * n + j]
                end
            end
            return out, { n }
        end,
        mx = function(t) return mx.matmul(t[1]:narrow { dim = 1, start = 1, length = 1 }:view(-1), t[2]) end,
    }
    plain.ops.custom = { -- x^2 by mx.custom
        inputs = 1,
        run = function(values, shapes)
            local out = {}
            for e, x in ipairs(values[1]) do
                out[e] = x * x
            end
            return out, shapes[1]
        end,
        mx = function(t) return plain.square(t[1]) end,
    }
    plain.square = mx.custom {
        forward = function(ctx, x)
            ctx:save(x)
            return x * x
        end,
        backward = function(ctx, dy) return dy * ctx:saved() * 2 end,
    }
    plain.ops.concat = {
        inputs = 2, n_dims = 2,
        fits = function(a, b) return a[2] == b[2] end,
        run = function(values, shapes)
            local out = table.move(values[1], 1, #values[1], 1, {})
            table.move(values[2], 1, #values[2], #out + 1, out)
            return out, { shapes[1][1] + shapes[2][1], shapes[1][2] }
        end,
        mx = function(t) return mx.concat(t[1], t[2], { dim = 1 }) end,
    }
    plain.ops.embedding = { -- the last row, the first, the last
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local rows, columns, out = shapes[1][1], shapes[1][2], {}
            for _, r in ipairs { rows - 1, 0, rows - 1 } do
                table.move(values[1], r * columns + 1, (r + 1) * columns, #out + 1, out)
            end
            return out, { 3, columns }
        end,
        mx = function(t)
            local last = t[1]:size()[1] - 1
            return mx.embedding(t[1], mx.tensor({ last, 0, last }, "i32"))
        end,
    }
    plain.ops.embedding_bag = { -- of the last row twice and the first, and an empty one
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local rows, columns, out = shapes[1][1], shapes[1][2], {}
            for c = 1, columns do
                out[c], out[columns + c] = (2 * values[1][(rows - 1) * columns + c] + values[1][c]) / 3, 0
            end
            return out, { 2, columns }
        end,
        mx = function(t)
            local last = t[1]:size(1) - 1
            return mx.embedding_bag(t[1], mx.tensor({ last, 0, last }, "i32"), mx.tensor({ 0, 3 }, "i32"))
        end,
    }
    plain.ops.conv1d = { -- each row of a with a row of b as its kernel, causal
        inputs = 2, n_dims = 2, same_shape = true,
        run = function(values, shapes)
            local rows, columns, out = shapes[1][1], shapes[1][2], {}
            for i = 0, rows * columns - 1 do
                local j, first = i % columns, i - i % columns
                out[i + 1] = 0
                for k = 0, j do
                    out[i + 1] = out[i + 1] + values[1][first + k + 1] * values[2][first + columns - j + k]
                end
            end
            return out, shapes[1]
        end,
        mx = function(t)
            local rows, columns = t[1]:size(1), t[1]:size(2)
            local y = mx.conv1d(t[1]:view(1, rows, columns), t[2]:view(rows, 1, columns),
                { groups = rows, padding = "causal" })
            return y:view(rows, columns)
        end,
    }
    plain.ops.batch_norm = { -- columns are channels; the mean times the variance of each is added to it
        inputs = 1, n_dims = 2,
        run = function(values, shapes)
            local x, rows, columns, out = values[1], shapes[1][1], shapes[1][2], {}
            for e in ipairs(x) do
                local mean, square = 0, 0
                for i = (e - 1) % columns + 1, #x, columns do
                    mean, square = mean + x[i] / rows, square + x[i] ^ 2 / rows
                end
                out[e] = (x[e] - mean) / math.sqrt(square - mean ^ 2 + 1) + mean * (square - mean ^ 2)
            end
            return out, shapes[1]
        end,
        mx = function(t)
            local y, mean, var = mx.batch_norm(t[1], { eps = 1 })
            return y + mean * var
        end,
    }
    -- Views. `part` says which elements of the input they share, from where.
    plain.ops.flat = {
        inputs = 1, view = true,
        run = function(values) return table.move(values[1], 1, #values[1], 1, {}), { #values[1] } end,
        part = function() return 0 end,
        mx = function(t) return t[1]:view(-1) end,
    }
    plain.ops.columns = {
        inputs = 1, view = true,
        run = function(values) return table.move(values[1], 1, #values[1], 1, {}), { #values[1], 1 } end,
        part = function() return 0 end,
        mx = function(t) return t[1]:view(-1, 1) end,
    }
    plain.ops.row = {
        inputs = 1, n_dims = 2, view = true,
        run = function(values, shapes, o)
            local columns, r = shapes[1][2], (o - 1) % shapes[1][1]
            return table.move(values[1], r * columns + 1, (r + 1) * columns, 1, {}), { columns }
        end,
        part = function(shape, o) return (o - 1) % shape[1] * shape[2] end,
        mx = function(t, o) return t[1][(o - 1) % #t[1] + 1] end,
    }
    plain.ops.rows = { -- from the second on
        inputs = 1, n_dims = 2, view = true,
        run = function(values, shapes)
            local columns = shapes[1][2]
            return table.move(values[1], columns + 1, #values[1], 1, {}), { shapes[1][1] - 1, columns }
        end,
        part = function(shape) return shape[2] end,
        mx = function(t) return mx.narrow(t[1], { dim = 1, start = 2, length = #t[1] - 1 }) end,
    }
end

local H = 1e-5

--- The gradient of `dy` times the result of an operation by each element of input `i`.
function plain.gradient(op, values, shapes, options, dy, i)
    local gradient, x = {}, table.move(values[i], 1, #values[i], 1, {})
    local changed = table.move(values, 1, #values, 1, {})
    changed[i] = x
    for e = 1, #x do
        local at, sum = x[e], 0
        x[e] = at + H
        local above = op.run(changed, shapes, options)
        x[e] = at - H
        local below = op.run(changed, shapes, options)
        x[e] = at
        for k = 1, #dy do
            sum = sum + dy[k] * (above[k] - below[k])
        end
        gradient[e] = sum / (2 * H)
    end
    return gradient
end

--- The recorded calls that `nodes` depend on, these among them, the latest first. A node: {op, values, shapes, options,
-- sources (node or leaf, or false for a constant, per input), number}. A leaf: {leaf = true, grad}.
function plain.reach(nodes)
    local seen, list, queue = {}, {}, {}
    for _, node in ipairs(nodes) do
        queue[#queue + 1] = not seen[node] and node or nil
        seen[node] = true
    end
    while #queue > 0 do
        local n = table.remove(queue)
        list[#list + 1] = n
        for _, source in ipairs(n.sources or {}) do
            if source and not seen[source] then
                seen[source] = true
                queue[#queue + 1] = source
            end
        end
    end
    table.sort(list, function(a, b) return a.number > b.number end)
    return list
end

local function accumulate(into, gradient)
    for e, g in ipairs(gradient) do
        into[e] = (into[e] or 0) + g
    end
    return into
end

--- Adds the gradients of the nodes, given those of what they computed, to the leaves.
function plain.backward(nodes, given)
    local gradients = {}
    for i, node in ipairs(nodes) do
        gradients[node] = accumulate(gradients[node] or {}, given[i])
    end
    for _, n in ipairs(plain.reach(nodes)) do
        if n.leaf then
            n.grad = accumulate(n.grad or {}, gradients[n])
        else
            for i, source in ipairs(n.sources) do
                if source then
                    local g = plain.gradient(n.op, n.values, n.shapes, n.options, gradients[n], i)
                    gradients[source] = accumulate(gradients[source] or {}, g)
                end
            end
        end
    end
end

require "plain_pointwise"(plain.ops, MARGIN)
define(require "mx")

return plain
