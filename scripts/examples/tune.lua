-- Tunes a function of one's own: the nearest neighbour of each of 512 points, in blocks of rows. Row by row pays for
-- each call; all at once, the distances do not fit the caches. The choice must be at least twice as fast as row by row.
--
--     build/mxlua scripts/examples/tune.lua [cache=FILE]
--
-- Without cache=FILE the choice is forgotten; with it, the second run looks it up.
local mx = require "mx"
local o = mx.config.options(arg, { cache = "" })
local N, D = 512, 16
local points = mx.randn { shape = { N, D }, seed = 1 }:keep()
local squares = mx.sum(mx.square(points), { dim = 2 }):keep()

-- The nearest other point of each point: |x - y|^2 = |x|^2 + |y|^2 - 2 x y, and |x|^2 is the same for all y.
local function nearest(block)
    local parts = {}
    for start = 1, N, block do
        local rows = mx.narrow(points, { dim = 1, start = start, length = block })
        local distance = squares:view(1, N) - mx.matmul(rows, points, { trans_b = true }) * 2
        local own = mx.arange(block):view(block, 1) + (start - 1)
        local is_own = mx.eq(mx.arange(N):view(1, N), own)
        parts[#parts + 1] = mx.argmin(mx.masked_fill(distance, is_own, { value = math.huge }), { dim = 2 })
    end
    return mx.concat(parts, { dim = 1 })
end

local expected = nearest(1):keep()
local best, report = mx.tune {
    name = "nearest", shape = { n = N, d = D }, file = o.cache, budget_s = 30,
    space = { block = { 1, 8, 32, 128, N } }, standard = { block = 1 },
    run = function(choice)
        return function() nearest(choice.block) end
    end,
    check = function(choice) return mx.sum(mx.ne(nearest(choice.block), expected)):item() == 0 end,
}
for _, point in ipairs(report.points) do
    print(("block %4d: %-9s %s"):format(point.choice.block, point.state, point.reason
        or point.ratio and ("%.3f of the standard's time"):format(point.ratio) or ""))
end
print(("block %d (%s): %.0f %% less time than row by row"):format(best.block, report.reason or report.from,
    100 * report.gain))
assert(not report.reason and report.gain >= 0.5, "the choice is less than twice as fast as row by row")
