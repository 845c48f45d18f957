--- Cases of kernels.lua that move over windows, and embedding bags: depthwise causal convolutions, pooling.

local mx = require "mx"

local windows = {}

local function randn(seed, shape, dtype)
    return mx.randn { shape = shape, seed = seed }:to(dtype)
end

-- Values and gradients of y = call(inputs); each of `ops` is a case.
local function add(list, ops, shape, dtype, make_inputs, call)
    for _, op in ipairs(ops) do
        list[#list + 1] = {
            kernel = op, shape = shape, dtype = dtype, unit = "B/s", ops = { [op] = true },
            make = function(check)
                local inputs = make_inputs(check)
                for i, x in ipairs(inputs) do
                    inputs[i] = mx.dtypes[x:dtype()].is_real and x:requires_grad() or x
                end
                return function()
                    for _, x in ipairs(inputs) do
                        x:zero_grad()
                    end
                    local results = { call(table.unpack(inputs)) }
                    mx.backward(results[1], mx.ones(results[1]:size(), dtype))
                    for _, x in ipairs(inputs) do
                        results[#results + 1] = x:grad()
                    end
                    return table.unpack(results)
                end
            end,
        }
    end
end

local POOLS = { { size = 2 }, { size = 3, stride = 2, padding = 1 }, { size = 3, stride = 1, padding = 1 } }

local function add_pools(list, dtype, elements)
    for _, name in ipairs { "max_pool1d", "avg_pool1d", "max_pool2d", "avg_pool2d" } do
        for _, options in ipairs(POOLS) do
            local function inputs(check)
                local planes = check and 3 or elements // 4096
                return { randn(1, name:match "2d" and { planes, 1, 64, 64 } or { planes, 1, 4096 }, dtype) }
            end
            local shape = ("%s, %d by %d"):format(name:match "2d" and "64x64" or "4096", options.size,
                options.stride or options.size)
            add(list, { name, name .. "_grad" }, shape, dtype, inputs, function(x) return mx[name](x, options) end)
        end
    end
end

---@param list table[] cases as in kernels.lua, to which those here are added
---@param bytes integer of each large tensor
function windows.add(list, bytes)
    for _, dtype in ipairs { "f32", "bf16" } do
        local elements = bytes // (dtype == "f32" and 4 or 2)
        add(list, { "conv1d", "conv1d_grad", "conv1d_grad_w" }, "2048x2048, 4 taps", dtype, function(check)
            local channels = check and 5 or 2048
            return {
                randn(1, { check and 2 or elements // 2048 // 2048, channels, 2048 }, dtype),
                randn(2, { channels, 1, 4 }, dtype), randn(3, { channels }, dtype),
            }
        end, function(x, w, bias) return mx.conv1d(x, w, bias, { groups = x:size(2), padding = "causal" }) end)
        add_pools(list, dtype, elements)
        add(list, { "embedding_bag" }, "8 rows of 512 a bag", dtype, function(check)
            local rows = check and 11 or elements // 512
            return { randn(1, { rows, 512 }, dtype), mx.randint({ rows // 8 + 1, 8 }, { high = rows, seed = 3 }) }
        end, function(vectors, ids) return mx.embedding_bag(vectors, ids, { mode = "sum" }) end)
    end
end

return windows
