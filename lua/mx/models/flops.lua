--- Model FLOPs of a training step, and the MFU that follows. Recomputed layers, norms and the optimizer do not count.
--
-- Published figures count differently. So each formula is named by the time when MaxText used it, and each MFU is
-- printed with the name. "Shape" below is a result of mx.models.shape; the files of a layer's parts count its FLOPs.

local mx = require "mx"
local util = require "mx.util"

local flops = {}

-- The results of the parts' flops(), summed over all layers; missing fields count as 0.
local function layers(shape, S)
    local sums = { products = 0, full = 0, past = 0, seen = 0 }
    for _, kind in ipairs(mx.models.kinds(shape)) do
        for _, part in ipairs(mx.models.parts(kind.block)) do
            for what, count in pairs(mx.models.part(part).flops(part, shape, S)) do
                sums[what] = sums[what] + kind.count * count
            end
        end
    end
    return sums
end

-- FLOPs of a forward pass for a sequence of S tokens, with the given count of attention.
local function forward(shape, S, attention)
    local sums = layers(shape, S)
    return S * (sums.products + 2 * shape.emb * shape.vocab) + sums[attention]
end

-- A formula gives the FLOPs of forward and backward (three times the forward) for B sequences of S tokens.
local FORMULAS = {
    ["maxtext-2023-06"] = function(_, params, B, S)
        return 6 * params * B * S
    end,
    ["maxtext-2023-10"] = function(shape, params, B, S)
        return 6 * params * B * S + 3 * B * layers(shape, S).full
    end,
    ["maxtext-2023-11"] = function(shape, params, B, S)
        return 6 * params * B * S + 3 * B * layers(shape, S).full / 2
    end,
    ["maxtext-2024-05"] = function(shape, _, B, S)
        return 3 * B * forward(shape, S, "full")
    end,
    ["maxtext-2025-07"] = function(shape, _, B, S)
        return 3 * B * forward(shape, S, "past")
    end,
}

--- FLOPs of one training step on `sequences` sequences of `length` tokens.
---@param formula string a value of the config key flop_formula
---@param shape table of mx.models.shape
---@param params number of parameters; a tied table counts once
---@param sequences number
---@param length number
---@return number
function flops.step(formula, shape, params, sequences, length)
    local count = FORMULAS[formula] or error(("flops: no formula '%s'"):format(formula), 2)
    return count(shape, params, sequences, length) + 0.0
end

--- FLOPs of the layers' forward pass, which a policy that keeps only layer inputs runs again.
---@param shape table
---@param sequences number
---@param length number
---@return number
function flops.layers_forward(shape, sequences, length)
    local sums = layers(shape, length)
    return sequences * (length * sums.products + sums.seen)
end

--- Model FLOP utilisation in per cent. Above 100 it raises an error, because the count, the clock or the peak is wrong.
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
