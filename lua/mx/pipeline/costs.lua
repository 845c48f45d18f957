--- What the passes of each chunk are expected to cost, by their FLOPs: for schedules that follow from the costs of
--- stages. Costs only decide which schedule is made, and all schedules compute the same.

local mx = require "mx"

local costs = {}

-- Policies with which backward computes no product of a layer again. Others count as computing all of them.
local KEEPS_PRODUCTS = { none = true, minimal_with_context = true, minimal = true, minimal_offloaded = true }

-- Backward multiplies attention's matrices five times, forward twice.
local ATTENTION_BACKWARD = 2.5

--- The costs of chunks of consecutive layers. The last one also has the loss, both of whose gradients are in B, and the
--- modules of multi-token prediction. Costs are integers, of which the first layer's forward pass has about 100, so
--- they are the same on all ranks. Not collective.
---@param shape table of mx.models.shape
---@param ranges {first: integer, last: integer}[] the layers of each chunk
---@param config table
---@return mx.PipelineCosts[]
function costs.of(shape, ranges, config)
    local S, again, list, unit = config.max_target_length, KEEPS_PRODUCTS[config.remat_policy] and 0 or 1, {}, nil
    local function add_layer(one, layer, forward)
        local products, attention = mx.flops.layer_forward(shape, layer, S)
        unit = unit or (products + attention) / 100
        one[forward] = one[forward] + products + attention
        one.B = one.B + again * (products + attention) + products + ATTENTION_BACKWARD * attention
        one.W = one.W + products
    end
    for i, range in ipairs(ranges) do
        local one = { F = 0, B = 0, W = 0 }
        for layer = range.first, range.last do
            add_layer(one, layer, "F")
        end
        if i == #ranges then
            local modules = shape.mtp and shape.mtp.layers or 0
            for k = 1, modules do
                add_layer(one, shape.layers + k, "B")
            end
            one.B = one.B + (1 + modules) * 3 * 2 * S * shape.emb * shape.vocab
        end
        for what, flops in pairs(one) do
            one[what] = math.max(1, math.floor(flops / unit + 0.5))
        end
        list[i] = one
    end
    return list
end

return costs
