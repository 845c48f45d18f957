-- ranks: 1 2 3
--- Datasets on several ranks: each global batch is shared, and a run continues on another number of ranks.

local mx = require "mx"
local lu = require "luaunit"

local N, GLOBAL = 24, 6

local function open()
    return mx.data.dataset({ x = mx.arange(N, "i32") }, { batch = GLOBAL // mx.ranks(), seed = 3 })
end

-- What all ranks have of their next batch, in the order of the ranks.
local function together(d)
    return mx.all_gather(d:next().x, { dim = 1 }):totable()
end

TestDatasetRanks = {}

function TestDatasetRanks.test_number_of_batches()
    lu.assertEquals(#open(), N // GLOBAL)
    local good, message = pcall(mx.data.dataset, { x = mx.arange(5) }, { batch = 5 // mx.ranks() + 1 })
    lu.assertFalse(good)
    lu.assertStrContains(message, mx.ranks() == 1 and "a batch of 6" or
        ("a batch of %d on each of %d ranks"):format(5 // mx.ranks() + 1, mx.ranks()))
end

-- The order of a single rank: the numbers of the permutation that the seed and the epoch choose.
function TestDatasetRanks.test_ranks_share_the_order_of_one()
    local d = open()
    for epoch = 0, 1 do
        for step = 0, N // GLOBAL - 1 do
            local expected = mx.io.permutation(N, require("mx.util").seed("epoch", 3 + epoch), step * GLOBAL, GLOBAL)
            lu.assertEquals(together(d), expected)
        end
    end
end

function TestDatasetRanks.test_the_state_is_that_of_any_number_of_ranks()
    local d = open()
    together(d)
    lu.assertEquals(d:state(), { epochs = 0, samples = GLOBAL, seed = 3, n = N })
    local again = open()
    again:restore(d:state())
    lu.assertEquals(together(again), together(d))
end

function TestDatasetRanks.test_without_sharding_all_have_the_same()
    local d = mx.data.dataset({ x = mx.arange(N) }, { batch = 4, shard = false })
    local mine = d:next().x
    lu.assertEquals(mx.all_reduce(mine, { op = "max" }):totable(), mine:totable())
    if mx.ranks() > 1 then
        lu.assertErrorMsgContains("needs one rank", mx.data.dataset, { x = mx.arange(N) }, { drop_last = false })
    end
end
