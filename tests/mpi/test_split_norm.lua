-- ranks: 1 2 3
-- split_norm of parts of rows against rmsnorm and layernorm of whole rows: values and gradients. The first rank has 21
-- of the features, the others 20.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

local ROWS, FEATURES = 7, 20 * mx.ranks() + 1
mx.mesh(mx.config.load { "ici_fsdp_parallelism=1", "ici_tensor_parallelism=-1" })

TestSplitNorm = {}

-- This rank's features of a tensor that is the same on all ranks.
local function part_of(t)
    local dim = #t:size()
    local length, start = util.part(FEATURES, mx.ranks(), mx.rank())
    return mx.narrow(t, { dim = dim, start = start, length = length }):clone()
end

-- The output and the gradients of x, weight and bias, where there is one, in f32.
local function run(norm, x, weight, bias, dy)
    local leaves = { x:clone():requires_grad(), weight:clone():requires_grad(), bias and bias:clone():requires_grad() }
    local y = norm(leaves[1], leaves[2], leaves[3])
    mx.backward(y, dy)
    local out = { y:to("f32") }
    for i, leaf in ipairs(leaves) do
        out[i + 1] = leaf:grad()
    end
    return out
end

local function compare(center, dtype, bound)
    local step <close> = mx.step()
    local all = FEATURES
    local x = mx.randn({ ROWS, all }, { seed = 1 }):mul(2):add(3):to(dtype)
    local dy = mx.randn({ ROWS, all }, { seed = 2 }):to(dtype)
    local weight, bias = mx.randn({ all }, { seed = 3 }), center and mx.randn({ all }, { seed = 4 }) or nil
    local whole = run(function(a, w, b)
        return center and mx.layernorm(a, w, b, { eps = 1e-5 }) or mx.rmsnorm(a, w, { eps = 1e-5 })
    end, x, weight, bias, dy)
    local split = run(function(a, w, b)
        return mx.split_norm(a, w, b, { axis = "tensor", features = all, center = center, eps = 1e-5 })
    end, part_of(x), part_of(weight), bias and part_of(bias), part_of(dy))
    for i, expected in ipairs(whole) do
        local off = mx.max(mx.abs(split[i] - part_of(expected))):item() / mx.max(mx.abs(expected)):item()
        lu.assertTrue(off <= bound, ("output %d is off by %g"):format(i, off))
    end
end

function TestSplitNorm.test_rmsnorm()
    compare(false, "f32", 1e-5)
end

function TestSplitNorm.test_layernorm()
    compare(true, "f32", 1e-5)
end

-- Both round once, from f32 sums: at most a unit in the last place apart.
function TestSplitNorm.test_bf16()
    compare(false, "bf16", 2 ^ -7)
    compare(true, "bf16", 2 ^ -7)
end

function TestSplitNorm.test_mistakes()
    local x, w = mx.ones { 2, 4 }, mx.ones { 4 }
    lu.assertErrorMsgContains("RMSNorm has none", mx.split_norm, x, w, w, { axis = "tensor" })
    lu.assertErrorMsgContains("'weight' must be (4)", mx.split_norm, x, mx.ones { 3 }, nil, { axis = "tensor" })
    lu.assertErrorMsgContains("eps", mx.split_norm, x, w, nil, { axis = "tensor", eps = -1 })
end
