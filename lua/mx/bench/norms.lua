--- Cases of kernels.lua that are norms over channels: batch norm and group norm, and their gradients.

local mx = require "mx"

local norms = {}

-- {operation, channels, elements of a plane, options}: of ResNet-50 and of a U-Net, and a batch of vectors. Without
-- channels: as many as fit with 64 images, whose planes of a channel fit the second-level cache.
local CASES = {
    { "batch_norm", nil, 56 * 56, {} },
    { "batch_norm", 64, 56 * 56, {} }, { "batch_norm", 256, 14 * 14, {} }, { "batch_norm", 512, 7 * 7, {} },
    { "batch_norm", 4096, 1, {} },
    { "group_norm", 128, 64 * 64, { groups = 32 } }, { "group_norm", 512, 7 * 7, { groups = 32 } },
}

---@param list table[] cases as in kernels.lua, to which those here are added
---@param bytes integer of each large tensor
function norms.add(list, bytes)
    for _, dtype in ipairs { "f32", "bf16" } do
        local elements = bytes // (dtype == "f32" and 4 or 2)
        for _, case in ipairs(CASES) do
            local op, channels, plane, options = table.unpack(case)
            channels = channels or math.max(1, elements // (64 * plane))
            local images = math.max(1, elements // (channels * plane))
            local function make(check)
                local shape = { images, channels, plane }
                if check then
                    shape = { 2, math.min(channels, 512), math.min(plane, 99) }
                end
                local x, dy = mx.randn { shape = shape, seed = 1, dtype = dtype }:requires_grad(),
                    mx.randn { shape = shape, seed = 2, dtype = dtype }
                local weight, bias = mx.randn({ shape[2] }, { seed = 3 }), mx.randn({ shape[2] }, { seed = 4 })
                return function()
                    x:zero_grad()
                    local y = mx[op](x, weight, bias, options)
                    mx.backward(y, dy)
                    return y, x:grad()
                end
            end
            for _, name in ipairs { op, op .. "_grad" } do
                list[#list + 1] = {
                    kernel = name, shape = ("%dx%dx%d"):format(images, channels, plane), dtype = dtype, unit = "B/s",
                    ops = { [name] = true }, make = make,
                }
            end
        end
    end
end

return norms
