--- Model FLOPs of a training step, and the MFU that follows. Recomputed layers, norms and the optimizer do not count.
--
-- Published figures count differently. So each formula is named by the time when MaxText used it, and each MFU is
-- printed with the name. "Shape" below is a result of mx.models.shape; the files of a layer's parts count its FLOPs.

local mx = require "mx"
local util = require "mx.util"

local flops = {}

-- The results of the parts' flops(), summed over all layers; missing fields count as 0.
local function layers(shape, S)
    local sums = { products = 0, idle = 0, full = 0, past = 0, seen = 0 }
    for _, kind in ipairs(mx.models.kinds(shape)) do
        for _, part in ipairs(mx.models.parts(kind.block)) do
            for what, count in pairs(mx.models.part(part).flops(part, shape, S)) do
                sums[what] = sums[what] + kind.count * count
            end
        end
    end
    return sums
end

-- What a formula counts: 6 FLOPs for each token and each parameter that it meets (of experts, those that it gets), or
-- three times those of the forward products; and three times a share of attention's.
local FORMULAS = {
    ["maxtext-2023-06"] = { by_parameters = true, attention = "full", share = 0 },
    ["maxtext-2023-10"] = { by_parameters = true, attention = "full", share = 1 },
    ["maxtext-2023-11"] = { by_parameters = true, attention = "full", share = 1 / 2 },
    ["maxtext-2024-05"] = { attention = "full", share = 1 },
    ["maxtext-2025-07"] = { attention = "past", share = 1 },
}

-- Where backward meets a parameter, from the last place to the first: the head is layers + 2, a table 0.
local function place_of(shape, p)
    local outside = { ["unembedding.weight"] = shape.layers + 2, ["embedding.weight"] = 0, ["position.weight"] = 0 }
    local layer = tonumber(p.name:match("^layer(%d+)"))
    return outside[p.name] or math.min(layer or math.huge, shape.layers + 1)
end

-- FLOPs of a sequence that frozen parameters spare: the gradients of their own products, and all of backward in the
-- layers before the first trained parameter.
local function spared(shape, S, formula)
    local sum, first = 0, shape.layers + 2
    for _, p in ipairs(mx.models.parameters(shape)) do
        local is_lookup = p.name == "embedding.weight" and not shape.tied
        if not p.frozen then
            first = math.min(first, place_of(shape, p))
        elseif #p.sizes > 1 and p.use ~= "sequence" and not is_lookup and not p.name:find("%.bias$") then
            local product = 2 * S * p.share
            for _, size in ipairs(p.sizes) do
                product = product * size
            end
            sum = sum + product
        end
    end
    for i = 1, math.min(first - 1, shape.layers) do
        for _, part in ipairs(mx.models.parts(mx.models.block(shape, i))) do
            local count = mx.models.part(part).flops(part, shape, S)
            sum = sum + S * count.products + 2 * formula.share * (count[formula.attention] or 0)
        end
    end
    return sum + (first > shape.layers + 1 and 2 * S * shape.emb * shape.vocab or 0)
end

--- FLOPs of one training step on `sequences` sequences of `length` tokens, without those that frozen parameters spare.
---@param formula string a value of the config key flop_formula
---@param shape table of mx.models.shape
---@param params number of parameters; a tied table counts once
---@param sequences number
---@param length number
---@return number
function flops.step(formula, shape, params, sequences, length)
    local what = FORMULAS[formula] or error(("flops: no formula '%s'"):format(formula), 2)
    local sums = layers(shape, length)
    local products = what.by_parameters and 6 * params - 3 * sums.idle
        or 3 * (sums.products + 2 * shape.emb * shape.vocab)
    local count = length * products + 3 * what.share * sums[what.attention]
    if #(shape.trainable or {}) > 0 then
        count = count - spared(shape, length, what)
    end
    return sequences * count + 0.0
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

--- FLOPs of the forward pass of a layer for one sequence: those of products with weights, and of attention.
---@param shape table
---@param i integer the layer
---@param length number
---@return number products
---@return number attention
function flops.layer_forward(shape, i, length)
    local products, attention = 0, 0
    for _, part in ipairs(mx.models.parts(mx.models.block(shape, i))) do
        local count = mx.models.part(part).flops(part, shape, length)
        products, attention = products + length * (count.products or 0), attention + (count.seen or 0)
    end
    return products, attention
end

--- Model FLOP utilisation in per cent. Above 100 it raises an error, because the count, the clock or the peak is wrong.
---@param flops_per_second number
---@param peak number in FLOP/s
---@param formula string
---@param quantization? string the config key: products of codes may pass the peak, which is that of bf16
---@return number
function flops.mfu(flops_per_second, peak, formula, quantization)
    local mfu = 100 * flops_per_second / peak
    if mfu > 100 and (quantization or "") == "" then
        util.refuse("MFU of %.1f %% (%s) is above 100 %%: %.4g FLOP/s against a peak of %.4g", mfu, formula,
            flops_per_second, peak)
    end
    return mfu
end

return flops
