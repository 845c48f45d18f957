--- Measures grouped matrix products against dense ones of the same run.

local mx = require "mx"
local util = require "mx.util"

local grouped = {}

-- An expert of qwen3-30b-a3b; rows of a group. f32 weights of all groups do not fit the caches.
local INNER, OUTER, GROUPS = 2048, 768, 16
local ROWS = { 64, 128, 256, 320, 1024 }
local ROUNDS = 7

-- The rows of group g.
local function rows_of(t, m, g)
    return mx.narrow(t, { dim = 1, start = (g - 1) * m + 1, length = m })
end

-- For each kind of product, functions that do the same work: grouped, one dense product after the other, and one dense
-- product of all rows with one matrix.
local function products(m)
    local R = m * GROUPS
    local x, dy = mx.randn { shape = { R, INNER }, dtype = "bf16", seed = 1 },
        mx.randn { shape = { R, OUTER }, dtype = "bf16", seed = 2 }
    local w, counts = mx.randn { shape = { GROUPS, INNER, OUTER }, seed = 3 }, mx.full({ shape = { GROUPS }, value = m,
        dtype = "i32" })
    local sums, one = mx.zeros { GROUPS, INNER, OUTER }, mx.zeros { INNER, OUTER }
    local function each(fn)
        return function()
            for g = 1, GROUPS do
                fn(g)
            end
        end
    end
    return {
        -- Quantizes rows and weights first, as a step does.
        int8 = {
            function()
                local qx, sx = mx.quantize(x, { dtype = "i8", by = "row" })
                local qw, sw = mx.quantize(w, { dtype = "i8", by = "column" })
                mx.scaled_grouped_matmul(qx, qw, sx, sw, counts)
            end,
            each(function(g) mx.matmul(rows_of(x, m, g), w[g]) end),
            function() mx.matmul(x, w[1]) end,
        },
        forward = {
            function() mx.grouped_matmul(x, w, counts) end,
            each(function(g) mx.matmul(rows_of(x, m, g), w[g]) end),
            function() mx.matmul(x, w[1]) end,
        },
        dx = {
            function() mx.grouped_matmul(dy, w, counts, { trans_b = true }) end,
            each(function(g) mx.matmul(rows_of(dy, m, g), w[g], { trans_b = true }) end),
            function() mx.matmul(dy, w[1], { trans_b = true }) end,
        },
        dW = {
            function() mx.grouped_matmul_acc(sums, x, dy, counts) end,
            each(function(g) mx.matmul_acc(sums[g], rows_of(x, m, g), rows_of(dy, m, g), { trans_a = true }) end),
            function() mx.matmul_acc(one, x, dy, { trans_a = true }) end,
        },
    }
end

-- Median seconds of each function, measured in turn.
local function seconds(fns)
    local times = {}
    for round = 0, ROUNDS do
        for i, fn in ipairs(fns) do
            local step <close> = mx.step()
            local start = mx.now()
            fn()
            times[i] = times[i] or {}
            times[i][round] = mx.now() - start -- round 0 gets fresh memory and is not counted
            assert(step)
        end
    end
    local medians = {}
    for i, list in ipairs(times) do
        medians[i] = util.quantile(list, 0.5)
    end
    return medians
end

--- Prints the table for the current number of threads. Only for one rank.
---@param log? table metrics of mx.outputs
function grouped.run(log)
    local threads = mx.threads()
    print(("\n%d groups of rows times %d x %d in f32, rows in bf16; %d thread%s. Shares of the\nspeed of dense "
        .. "products: the same ones one after the other, and one of all rows."):format(GROUPS, INNER, OUTER, threads,
        threads == 1 and "" or "s"))
    print(("%-8s %6s %14s %14s %14s"):format("product", "rows", "rate", "% of the same", "% of one"))
    for _, m in ipairs(ROWS) do
        mx.no_grad(mx.scope, function()
            for kind, fns in util.sorted_pairs(products(m)) do
                local s = seconds(fns)
                local rate = 2 * m * GROUPS * INNER * OUTER / s[1]
                print(("%-8s %6d %7.1f GFLOP/s %14.1f %14.1f"):format(kind, m, rate / 1e9, 100 * s[2] / s[1],
                    100 * s[3] / s[1]))
                if log then
                    log:row { kernel = "grouped " .. kind, rows = m, threads = threads, rate = rate,
                        of_same = s[2] / s[1], of_one = s[3] / s[1] }
                end
            end
        end)
        mx.trim()
    end
end

return grouped
