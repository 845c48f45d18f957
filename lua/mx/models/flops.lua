--- Model FLOPs of a training step, and the MFU that follows. Recomputed layers, norms and the optimizer do not count.
--
-- Published figures differ in how they count, so each formula has a name (when MaxText used it) and each MFU is printed
-- with it. "Shape" below is what mx.models.shape gives: emb, heads, kv_heads, head_dim, mlp, layers, vocab ...

local util = require "mx.util"

local flops = {}

-- Forward FLOPs of attention scores and values in one layer, for one sequence of S tokens, without a mask.
local function full_attention(shape, S)
    return 4 * S * S * shape.heads * shape.head_dim
end

-- The same, where a query sees itself and what is before it: half of the square, or a band of it.
local function masked_attention(shape, S)
    local W = shape.window > 0 and math.min(shape.window, S) or S
    return 4 * (S * W - W * W / 2) * shape.heads * shape.head_dim
end

-- Forward FLOPs per token of all matrix products with weights.
local function products(shape)
    local E, D = shape.emb, shape.head_dim
    local mlp = 2 * E * shape.mlp * (shape.gated and 3 or 2)
    local qkv = 2 * E * (shape.heads + 2 * shape.kv_heads) * D
    local out = 2 * E * shape.heads * D
    return shape.layers * (mlp + qkv + out) + 2 * E * shape.vocab
end

-- A formula gives the FLOPs of forward and backward (three times the forward) for B sequences of S tokens.
local FORMULAS = {
    ["maxtext-2023-06"] = function(_, params, B, S)
        return 6 * params * B * S
    end,
    ["maxtext-2023-10"] = function(shape, params, B, S)
        return 6 * params * B * S + 3 * shape.layers * B * full_attention(shape, S)
    end,
    ["maxtext-2023-11"] = function(shape, params, B, S)
        return 6 * params * B * S + 3 * shape.layers * B * full_attention(shape, S) / 2
    end,
    ["maxtext-2024-05"] = function(shape, _, B, S)
        return 3 * B * (S * products(shape) + shape.layers * full_attention(shape, S))
    end,
    ["maxtext-2025-07"] = function(shape, _, B, S)
        return 3 * B * (S * products(shape) + shape.layers * masked_attention(shape, S))
    end,
}

--- FLOPs of one training step on `sequences` sequences of `length` tokens.
---@param formula string a value of the config key flop_formula
---@param shape table of mx.models.shape
---@param params number of parameters, a tied table once
---@param sequences number
---@param length number
---@return number
function flops.step(formula, shape, params, sequences, length)
    local count = FORMULAS[formula] or error(("flops: no formula '%s'"):format(formula), 2)
    return count(shape, params, sequences, length) + 0.0
end

--- FLOPs that the forward pass of the layers costs once more under a policy that keeps layer inputs only.
---@param shape table
---@param sequences number
---@param length number
---@return number
function flops.layers_forward(shape, sequences, length)
    local attention = shape.causal and masked_attention(shape, length) or full_attention(shape, length)
    local weights = products(shape) - 2 * shape.emb * shape.vocab
    return sequences * (length * weights + shape.layers * attention)
end

--- Model FLOP utilisation in per cent. Above 100 the count, the clock or the peak is wrong: an error.
---@param flops_per_second number
---@param peak number in FLOP/s
---@param formula string
---@return number
function flops.mfu(flops_per_second, peak, formula)
    local mfu = 100 * flops_per_second / peak
    if mfu > 100 then
        util.refuse("MFU of %.1f %% (%s) is above 100 %%: %.4g FLOP/s against a peak of %.4g", mfu, formula,
            flops_per_second, peak)
    end
    return mfu
end

return flops
