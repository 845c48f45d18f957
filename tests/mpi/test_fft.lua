-- ranks: 1 2 3
-- nodes: 2
--- Fourier transforms of data that ranks share: rows of a batch with one filter, and a matrix in two dimensions, whose
-- rows become columns by all_to_all. Expected values are sums of the definition, in Lua's numbers.

local mx = require "mx"
local lu = require "luaunit"

local rank, ranks = mx.rank(), mx.ranks()
local ROWS, LENGTH = 6, 10 -- LENGTH // 2 + 1 = 6 frequencies: 1, 2 and 3 ranks have equal parts
local BOUND = 1e-5 -- f32: the largest sums have 60 terms of about 1

TestFftRanks = {}

function TestFftRanks.setUp()
    mx.mesh_define { { name = "data", ici = ranks } }
end

local function assert_near(t, expected, what)
    local largest = 1
    for _, row in ipairs(expected) do
        for _, value in ipairs(row) do
            largest = math.max(largest, math.abs(value))
        end
    end
    lu.assertEquals(t:size(), { #expected, #expected[1] }, what)
    lu.assertTrue(mx.max(mx.abs(t:detach() - mx.tensor(expected))):item() <= BOUND * largest, what)
end

-- A table of rows x columns values.
local function table_of(rows, columns, value)
    local t = {}
    for i = 1, rows do
        t[i] = {}
        for j = 1, columns do
            t[i][j] = value(i - 1, j - 1)
        end
    end
    return t
end

local function own_rows(values)
    local count = #values // ranks
    return table.move(values, rank * count + 1, (rank + 1) * count, 1, {})
end

-- y[t] = sum of w[s] x[t - s]: the transforms of twice the length leave no room for the end to reach the beginning.
local function filtered(x, w)
    local x_re, x_im = mx.rfft(x, { n = 2 * LENGTH })
    local w_re, w_im = mx.rfft(w, { n = 2 * LENGTH })
    local y = mx.irfft(x_re * w_re - x_im * w_im, x_re * w_im + x_im * w_re, { n = 2 * LENGTH })
    return y:narrow { dim = 2, start = 1, length = LENGTH }
end

function TestFftRanks.test_a_filter_of_rows_on_several_ranks()
    local whole = mx.randn({ ROWS, LENGTH }, { seed = 1 })
    local factors = mx.randn({ ROWS, LENGTH }, { seed = 2 })
    local w0 = mx.randn({ 1, LENGTH }, { seed = 3 })
    local x, w, c = whole:totable(), w0:totable()[1], factors:totable()
    local y = table_of(ROWS, LENGTH, function(i, t)
        local sum = 0
        for s = 0, t do
            sum = sum + w[s + 1] * x[i + 1][t - s + 1]
        end
        return sum
    end)
    local dw = table_of(1, LENGTH, function(_, s)
        local sum = 0
        for i = 1, ROWS do
            for t = s + 1, LENGTH do
                sum = sum + c[i][t] * x[i][t - s]
            end
        end
        return sum
    end)
    for _, policy in ipairs { "none", "full" } do
        local own = mx.shard(whole, { dim = 1, axis = "data" })
        local weight = mx.reduce_gradient(w0:clone():requires_grad(), "data")
        local out = mx.remat(policy, filtered, own, weight)
        local all = mx.all_gather(out:detach(), { dim = 1, axis = "data" })
        assert_near(all, y, policy)
        lu.assertEquals(mx.all(all:eq(filtered(whole, w0))):item(), 1) -- a row has the same bits beside others
        mx.backward((out * mx.shard(factors, { dim = 1, axis = "data" })):sum())
        assert_near(weight:grad(), dw, policy)
    end
end

-- The rows that a rank has become columns: (ROWS / ranks, n) -> (ROWS, n / ranks).
local function columns(t)
    return mx.all_to_all(t, { axis = "data", split = 2, concat = 1 })
end

local function along_first(re, im)
    re, im = mx.fft(columns(re).T, columns(im).T)
    return re.T, im.T
end

function TestFftRanks.test_two_dimensions()
    local whole = mx.randn({ ROWS, LENGTH }, { seed = 4 })
    local frequencies = LENGTH // 2 + 1
    local values, a = whole:totable(), mx.randn({ ROWS, frequencies }, { seed = 5 }):totable()
    local b = mx.randn({ ROWS, frequencies }, { seed = 6 }):totable()
    local function angle(k, m, l, n)
        return 2 * math.pi * (k * m / ROWS + l * n / LENGTH)
    end
    local function transformed(fn)
        return table_of(ROWS, frequencies, function(k, l)
            local sum = 0
            for m = 0, ROWS - 1 do
                for n = 0, LENGTH - 1 do
                    sum = sum + values[m + 1][n + 1] * fn(angle(k, m, l, n))
                end
            end
            return sum
        end)
    end
    local gradient = table_of(ROWS, LENGTH, function(m, n)
        local sum = 0
        for k = 0, ROWS - 1 do
            for l = 0, frequencies - 1 do
                local at = angle(k, m, l, n)
                sum = sum + a[k + 1][l + 1] * math.cos(at) - b[k + 1][l + 1] * math.sin(at)
            end
        end
        return sum
    end)
    local x = mx.tensor(own_rows(values)):requires_grad()
    local re, im = along_first(mx.rfft(x))
    assert_near(mx.all_gather(re:detach(), { dim = 2, axis = "data" }), transformed(math.cos), "re")
    assert_near(mx.all_gather(im:detach(), { dim = 2, axis = "data" }),
        transformed(function(at) return -math.sin(at) end), "im")
    local function own(t) return mx.shard(mx.tensor(t), { dim = 2, axis = "data" }) end
    mx.backward((re * own(a)):sum() + (im * own(b)):sum())
    assert_near(x:grad(), own_rows(gradient), "gradient")
end

-- By Parseval's theorem the energy of the frequencies is as many times that of x as x has elements. So its gradient is
-- x, and the gradient of the gradient's product with v is v, times twice that number.
function TestFftRanks.test_a_gradient_of_a_gradient()
    local length = 2 * ROWS
    local twice = 2 * ROWS * length
    local whole, v = mx.randn({ ROWS, length }, { seed = 7 }), mx.randn({ ROWS, length }, { seed = 8 })
    local x = mx.shard(whole, { dim = 1, axis = "data" }):requires_grad()
    local direction = mx.shard(v, { dim = 1, axis = "data" })
    local re, im = mx.fft(x, x * 0)
    re, im = along_first(re, im)
    local g = mx.grad(re:square():sum() + im:square():sum(), x, { record = true })
    assert_near(g / twice, x:totable(), "once")
    mx.backward((g * direction):sum())
    assert_near(x:grad() / twice, direction:totable(), "twice")
end
