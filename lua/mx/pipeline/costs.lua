--- What the passes of each chunk are expected to cost, by their FLOPs: for schedules that follow from the costs of
--- stages. Costs only decide which schedule is made, and all schedules compute the same.

local mx = require "mx"

local costs = {}

-- Policies with which backward computes no product of a layer again. Others count as computing all of them.
local KEEPS_PRODUCTS = { none = true, minimal_with_context = true, minimal = true, minimal_offloaded = true }

-- Backward multiplies attention's matrices five times, forward twice.
local ATTENTION_BACKWARD = 2.5

--- The costs of chunks of consecutive layers. The last one has the loss too, whose two gradients are both in B. They
--- are integers, of which a layer's forward pass has about 100, so they are the same on all ranks. Not collective.
---@param shape table of mx.models.shape
---@param ranges {first: integer, last: integer}[] the layers of each chunk
---@param config table
---@return mx.PipelineCosts[]
function costs.of(shape, ranges, config)
    local S, list, unit = config.max_target_length, {}, nil
    for i, range in ipairs(ranges) do
        local products, attention = 0, 0
        for layer = range.first, range.last do
            local p, a = mx.flops.layer_forward(shape, layer, S)
            products, attention, unit = products + p, attention + a, unit or (p + a) / 100
        end
        local again = KEEPS_PRODUCTS[config.remat_policy] and 0 or products + attention
        local loss = i == #ranges and 3 * 2 * S * shape.emb * shape.vocab or 0
        local one = {
            F = products + attention, B = again + products + ATTENTION_BACKWARD * attention + loss, W = products,
        }
        for what, flops in pairs(one) do
            one[what] = math.max(1, math.floor(flops / unit + 0.5))
        end
        list[i] = one
    end
    return list
end

return costs
