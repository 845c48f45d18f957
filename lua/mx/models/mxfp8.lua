--- Products in MXFP8: both operands are rounded to e4m3, and 32 neighbours along the dimension that is summed share a
--- scale, a power of two. Each product quantizes what it reads from bf16, along its own sum: x and dy by rows and by
--- columns, weights by columns and by rows. These are the rules of Transformer Engine's MXFP8BlockScaling.
---
--- bf16 holds each code times its scale, so products multiply these in bf16, with f32 sums: what they give is exact.

local mx = require "mx"
local util = require "mx.util"

local mxfp8 = {}

local BLOCK, BOUND = 32, mx.dtypes.e4m3.bound
local LEAST, MOST = -120, 120 -- exponents of scales

-- The powers of two with these exponents.
local function powers()
    local list = {}
    for e = LEAST, MOST do
        list[#list + 1] = 2.0 ^ e
    end
    return mx.tensor(list)
end

-- The least power of two that is not below x (f32): exponents by logarithms, which may be one too small.
local function power_above(x)
    local e = mx.clamp(mx.floor(x:log() / math.log(2)), { min = LEAST, max = MOST }) - LEAST
    local p = mx.index_select(powers(), e:to("i32"))
    for _ = 1, 2 do
        p = mx.where(p:lt(x), p * 2, p)
    end
    return p
end

--- Rounds to MXFP8 along the last dimension: what codes times scales stand for, in bf16. A scale is the least power of
--- two that is not below the largest magnitude / 448. Without a gradient.
---@param x any (..., n), n a multiple of 32
---@return any
function mxfp8.round(x)
    local sizes = x:size()
    if sizes[#sizes] % BLOCK ~= 0 then
        util.refuse("quantization=te_mxfp8 needs a multiple of %d in each dimension of a product (inputs, outputs, and "
            .. "in training tokens), got %d", BLOCK, sizes[#sizes])
    end
    return mx.no_grad(mx.scope, function()
        local runs = x:view(x:numel() // BLOCK, BLOCK):to("f32")
        local scale = power_above(runs:abs():max { dim = 2 } * (1 / BOUND)):view(runs:size(1), 1)
        return ((runs / scale):to("e4m3"):to("f32") * scale):to("bf16"):view(sizes)
    end)
end

local function product(x, w, bias)
    return mx.matmul(mxfp8.round(x), mxfp8.round(w), bias, { trans_b = true, dtype = "bf16" })
end

--- x (..., n) times w (n, m), plus bias (m) or nil -> (..., m) bf16, with all gradients.
---@param x any
---@param w any
---@param bias any
---@return any
mxfp8.product = mx.custom {
    name = "mxfp8_matmul",
    forward = function(ctx, x, w, bias)
        ctx:save(x, w)
        ctx.has_bias = bias ~= nil
        return product(x, mx.transpose(w), bias)
    end,
    backward = function(ctx, dy)
        local x, w = ctx:saved()
        local rows, tokens = x:view(-1, w:size(1)), dy:view(-1, w:size(2))
        local dx, dw = product(dy, w), product(mx.transpose(rows), mx.transpose(tokens))
        if ctx.has_bias then
            return dx, dw, mx.sum(tokens:to("f32"), { dim = 1 })
        end
        return dx, dw
    end,
}

return mxfp8
