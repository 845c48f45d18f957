--- The engine's side of operations.py: times calls of operations by name.
--
-- Reads lines "NAME DTYPE MIB" and answers each with the seconds of the fastest of some calls.

local mx = require "mx"

local WIDTH = 4096 -- columns of the matrices

local function randn(shape, dtype) return mx.randn { shape = shape, seed = 1, dtype = dtype } end
local function ids(rows, width, high) return mx.randint({ rows, width }, { high = high - 1, seed = 3 }) end

-- Of a matrix x of `rows` by WIDTH: what is made once, and the call that is timed.
local CASES = {
    add = function(x) local y = x:clone() return function() return x + y end end,
    gelu = function(x) return function() return mx.gelu(x) end end,
    softplus = function(x) return function() return mx.softplus(x) end end,
    erf = function(x) return function() return mx.erf(x) end end,
    tanh = function(x) return function() return mx.tanh(x) end end,
    log1p = function(x) x = mx.abs(x) return function() return mx.log1p(x) end end,
    pow = function(x) x = mx.abs(x) return function() return x ^ 1.7 end end,
    sin = function(x) return function() return mx.sin(x) end end,
    where = function(x) return function() return mx.where(mx.gt(x, 0), x, -1) end end,
    sum_rows = function(x) return function() return mx.sum(x, { dim = 2 }) end end,
    sum_columns = function(x) return function() return mx.sum(x, { dim = 1 }) end end,
    max_columns = function(x) return function() return mx.max(x, { dim = 1 }) end end,
    argmax_columns = function(x) return function() return mx.argmax(x, { dim = 1 }) end end,
    argmax_rows = function(x) return function() return mx.argmax(x, { dim = 2 }) end end,
    var_columns = function(x) return function() return mx.var(x, { dim = 1 }) end end,
    logsumexp_rows = function(x) return function() return mx.logsumexp(x, { dim = 2 }) end end,
    logsumexp_columns = function(x) return function() return mx.logsumexp(x, { dim = 1 }) end end,
    softmax_rows = function(x) return function() return mx.softmax(x) end end,
    softmax_columns = function(x) return function() return mx.softmax(x, { dim = 1 }) end end,
    cumsum_rows = function(x) return function() return mx.cumsum(x, { dim = 2 }) end end,
    cumsum_columns = function(x) return function() return mx.cumsum(x, { dim = 1 }) end end,
    sort = function(x) return function() return mx.sort(x) end end,
    argsort = function(x) return function() return mx.argsort(x) end end,
    topk_64 = function(x) x = x:view(-1, 64) return function() return mx.topk(x, { k = 8 }) end end,
    topk_50257 = function(x)
        x = x:view(-1)[{ { 1, x:numel() // 50257 * 50257 } }]:view(-1, 50257)
        return function() return mx.topk(x, { k = 50 }) end
    end,
    rand = function(x, dtype)
        return function() return mx.rand { shape = { x:size(1), WIDTH }, seed = 3, dtype = dtype } end
    end,
    randn = function(x, dtype) return function() return randn({ x:size(1), WIDTH }, dtype) end end,
    truncated_normal = function(x, dtype)
        return function() return mx.truncated_normal({ x:size(1), WIDTH }, { seed = 3, dtype = dtype }) end
    end,
    bernoulli = function(x, dtype)
        local p = mx.rand { shape = { x:size(1), WIDTH }, seed = 3, dtype = dtype }
        return function() return mx.bernoulli(p, { seed = 5 }) end
    end,
    multinomial = function(x)
        local p = mx.abs(x)
        return function() return mx.multinomial(p, { n = 1, seed = 5 }) end
    end,
    randint = function(x) return function() return mx.randint({ x:size(1), WIDTH }, { high = 999, seed = 3 }) end end,
    permutation = function(x) local n = x:numel() return function() return mx.permutation { n = n, seed = 3 } end end,
    nonzero = function(x)
        x = mx.randint({ x:size(1), WIDTH }, { high = 15, seed = 3 }):eq(0):to(x:dtype())
        return function() return mx.nonzero(x) end
    end,
    one_hot = function(x)
        local classes = mx.randint({ x:numel() // 64 }, { high = 63, seed = 3 })
        return function() return mx.one_hot(classes, { classes = 64, dtype = "f32" }) end
    end,
    dropout = function(x) return function() return mx.dropout(x, { rate = 0.1, seed = 3 }) end end,
    gather_rows = function(x)
        local at = ids(x:size(1), WIDTH, WIDTH)
        return function() return mx.gather(x, at, { dim = 2 }) end
    end,
    gather_columns = function(x)
        local at = ids(x:size(1), WIDTH, x:size(1))
        return function() return mx.gather(x, at, { dim = 1 }) end
    end,
    scatter_add_rows = function(x)
        local at = ids(x:size(1), WIDTH, WIDTH)
        return function() return mx.scatter_add(x, at, x, { dim = 2 }) end
    end,
    scatter_add_columns = function(x)
        local at = ids(x:size(1), WIDTH, x:size(1))
        return function() return mx.scatter_add(x, at, x, { dim = 1 }) end
    end,
    scatter_max_rows = function(x)
        local at = ids(x:size(1), WIDTH, WIDTH)
        return function() return mx.scatter_reduce(x, at, x, { dim = 2, reduce = "max" }) end
    end,
    index_select = function(x)
        x = x:view(-1, 16)
        local at = mx.permutation { n = x:size(1), seed = 3 }
        return function() return mx.index_select(x, at) end
    end,
    transpose = function(x) return function() return mx.transpose(x) end end,
    permute = function(x)
        x = x:view(-1, 32, 64, 32)
        return function() return mx.permute(x, { dims = { 4, 3, 2, 1 } }) end
    end,
    flip = function(x) return function() return mx.flip(x, { dim = 2 }) end end,
    batch_norm = function(x)
        x = x:view(-1, 256, 256)
        local one = mx.full({ 256 }, 1)
        return function() return mx.batch_norm(x, one, one) end
    end,
    rfft = function(x) return function() return mx.rfft(x) end end,
    irfft = function(x)
        local re, im = mx.rfft(x)
        return function() return mx.irfft(re, im) end
    end,
    fft_65536 = function(x)
        x = x:view(-1, 65536)
        local im = x * 0
        return function() return mx.fft(x, im) end
    end,
    rfft_one_row = function(x) x = x:view(1, -1) return function() return mx.rfft(x) end end,
    max_pool2d = function(x)
        x = x:view(-1, 64, 64, 64)
        return function() return mx.max_pool2d(x, { size = 2, stride = 2 }) end
    end,
}

-- The best of calls for a third of a second, after one that is not counted: it gets fresh memory.
local function seconds_of(call)
    local best, begun = math.huge, nil
    repeat
        local step <close>, at = mx.step(), mx.now()
        call()
        if begun then
            best = math.min(best, mx.now() - at)
        end
        begun = begun or mx.now()
    until mx.now() - begun > 1 / 3 and best < math.huge
    return best
end

io.stdout:setvbuf "line"
print "ready"
for line in io.lines() do
    local name, dtype, mib = line:match "^(%S+) (%S+) (%d+)$"
    local rows = mib * 2 ^ 20 // ((dtype == "f32" and 4 or 2) * WIDTH) | 0
    local ok, answer = pcall(mx.scope, function()
        return seconds_of(CASES[name](randn({ rows, WIDTH }, dtype), dtype))
    end)
    print(ok and ("%.9f"):format(answer) or "error: " .. tostring(answer):gsub("\n.*", ""))
end
