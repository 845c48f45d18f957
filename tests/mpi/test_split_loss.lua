-- ranks: 1 2 3
-- split_cross_entropy, and a lookup in a part of a table, against those of the whole vocabulary: losses and gradients.
-- The first rank has 12 of the ids, the others 11.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

local WIDTH, VOCAB = 6, 11 * mx.ranks() + 1
mx.mesh(mx.config.load { "ici_fsdp_parallelism=1", "ici_tensor_parallelism=-1" })
local LENGTH, START = util.part(VOCAB, mx.ranks(), mx.rank())

TestSplitLoss = {}

-- This rank's ids of a weight that is the same on all ranks.
local function part_of(weight, dim)
    return mx.narrow(weight, { dim = dim, start = START, length = LENGTH }):clone()
end

-- Ids in every rank's part; those of tokens that do not count may hold anything.
local function targets_of(tokens)
    local targets, mask = {}, {}
    for t = 1, tokens do
        mask[t] = t % 5 == 0 and 0 or 1
        targets[t] = mask[t] == 0 and -7 or t * 7 % VOCAB
    end
    return mx.tensor(targets, "i32"), mx.tensor(mask, "u8")
end

local function distance(a, b)
    return mx.max(mx.abs(a:to("f32") - b:to("f32"))):item() / math.max(mx.max(mx.abs(b:to("f32"))):item(), 1e-6)
end

-- Both losses of the same tokens, with gradients. `seed`: the gradient of the loss.
local function compare(tokens, options, dtype, bound, seed)
    local step <close> = mx.step()
    local trans = options.trans ~= false
    local targets, mask = targets_of(tokens)
    local h = mx.randn({ tokens, WIDTH }, { seed = 1 }):to(dtype)
    local weight = mx.randn(trans and { VOCAB, WIDTH } or { WIDTH, VOCAB }, { seed = 2 }):to(dtype)
    local dim = trans and 1 or 2
    local all = { h:clone():requires_grad(), weight:clone():requires_grad() }
    local own = { h:clone():requires_grad(), part_of(weight, dim):requires_grad() }
    local expected = mx.cross_entropy(all[1], all[2], targets, mask, options)
    local more = { axis = "tensor", vocab = VOCAB }
    for key, value in pairs(options) do
        more[key] = value
    end
    local loss = mx.split_cross_entropy(mx.fan_out(own[1], { axis = "tensor" }), own[2], targets, mask, more)
    mx.backward(expected, seed)
    mx.backward(loss, seed)
    lu.assertAlmostEquals(loss:item(), expected:item(), 1e-5 * math.abs(expected:item()))
    lu.assertTrue(distance(own[1]:grad(), all[1]:grad()) <= bound, "gradient of h")
    lu.assertTrue(distance(own[2]:grad(), part_of(all[2]:grad(), dim)) <= bound, "gradient of the weight")
    local value = loss:item()
    mx.broadcast_(loss:detach(), { axis = "tensor" })
    lu.assertEquals(loss:item(), value, "all ranks have the same bits")
end

local OPTIONS = {
    {}, { z_loss = 0.1 }, { softcap = 2 }, { logit_scale = 0.3, trans = false }, { normalizer = 13 },
    { z_loss = 0.1, softcap = 2, logit_scale = 0.3, normalizer = 13, trans = false },
}

function TestSplitLoss.test_options()
    for _, options in ipairs(OPTIONS) do
        compare(20, options, "f32", 1e-5, 0.5)
    end
end

-- bf16 rounds each rank's share of the gradient of h.
function TestSplitLoss.test_bf16()
    for _, options in ipairs(OPTIONS) do
        compare(20, options, "bf16", 2 ^ -6, 1)
    end
end

-- More than the 1,024 tokens of a chunk.
function TestSplitLoss.test_chunks()
    compare(1100, { z_loss = 0.1 }, "f32", 1e-5, 1)
end

function TestSplitLoss.test_no_tokens()
    local step <close> = mx.step()
    local weight = part_of(mx.ones { VOCAB, WIDTH }, 1):requires_grad()
    local loss = mx.split_cross_entropy(mx.zeros { 0, WIDTH }, weight, mx.zeros({ 0 }, "i32"), nil,
        { axis = "tensor", vocab = VOCAB })
    mx.backward(loss)
    lu.assertEquals(loss:item(), 0)
    lu.assertEquals(mx.max(mx.abs(weight:grad())):item(), 0)
    assert(step)
end

-- Without a gradient there are none; all logits are never held.
function TestSplitLoss.test_without_gradients()
    local step <close> = mx.step()
    local targets, mask = targets_of(20)
    local h, weight = mx.randn({ 20, WIDTH }, { seed = 1 }), mx.randn({ VOCAB, WIDTH }, { seed = 2 })
    local expected = mx.cross_entropy(h, weight, targets, mask):item()
    local loss = mx.no_grad(mx.split_cross_entropy, h, part_of(weight, 1), targets, mask,
        { axis = "tensor", vocab = VOCAB })
    lu.assertAlmostEquals(loss:item(), expected, 1e-5)
    assert(step)
end

function TestSplitLoss.test_mistakes()
    local weight = part_of(mx.ones { VOCAB, WIDTH }, 1)
    local h, options = mx.ones { 2, WIDTH }, { axis = "tensor", vocab = VOCAB }
    local function refused(message, ...)
        lu.assertErrorMsgContains(message, mx.split_cross_entropy, ...)
    end
    refused(("target %d at [2] is outside the vocabulary of %d"):format(VOCAB, VOCAB), h, weight,
        mx.tensor({ 0, VOCAB }, "i32"), nil, options)
    refused("weight must be (vocabulary, width)", h, mx.ones { 3, 3 }, mx.zeros({ 2 }, "i32"), nil, options)
    refused(("this rank's part of vocab = %d is"):format(VOCAB + 50), h, weight, mx.zeros({ 2 }, "i32"), nil,
        { axis = "tensor", vocab = VOCAB + 50 })
end

-- A lookup in parts of a table adds up to one in the table; each part gets the gradient of its rows. The id 3 occurs
-- often enough to be summed by itself.
function TestSplitLoss.test_embedding()
    local step <close> = mx.step()
    local ids = {}
    for t = 1, 400 do
        ids[t] = t > 100 and 3 or t % VOCAB
    end
    ids = mx.tensor(ids, "i32")
    local weight, dy = mx.randn({ VOCAB, WIDTH }, { seed = 3 }), mx.randn({ 400, WIDTH }, { seed = 4 })
    local all, own = weight:clone():requires_grad(), part_of(weight, 1):requires_grad()
    local expected = mx.embedding(all, ids, { scale = 2 })
    local rows = mx.embedding(own, ids, { scale = 2, first = START - 1, of = VOCAB })
    local sum = mx.all_reduce(rows, { axis = "tensor" })
    lu.assertEquals(distance(sum, expected), 0)
    mx.backward(expected, dy)
    mx.backward(sum, dy)
    lu.assertEquals(distance(own:grad(), part_of(all:grad(), 1)), 0)
    local leaf = dy:clone():requires_grad() -- the gradient of the gradient is a lookup again
    mx.backward(mx.embedding_grad(ids, leaf, { vocab = LENGTH, first = START - 1, of = VOCAB }), own:detach())
    lu.assertEquals(distance(leaf:grad(), rows:detach() / 2), 0)
    lu.assertErrorMsgContains("outside the vocabulary of " .. VOCAB, mx.embedding, own, mx.tensor({ VOCAB }, "i32"),
        { first = START - 1, of = VOCAB })
    for _, part in ipairs({ { first = START, of = START + LENGTH - 1 }, { first = 1 }, { first = -1, of = VOCAB } }) do
        lu.assertErrorMsgContains("no part of a table", mx.embedding, own, ids, part)
    end
    assert(step)
end
