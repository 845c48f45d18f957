--- Cases of kernels.lua that reduce, scan and order: sums, extremes, variances, softmax, cumulative sums and
-- sorts, with their gradients.

local mx = require "mx"

local reductions = {}

local WIDTH = 4096 -- columns of the matrices

-- Calls on x along dim, and of gradients also on y, which has a number for each line. {operation, call}
local ALONG = {}
for op in ("sum mean max min argmax argmin any all var std norm logsumexp cumsum softmax"):gmatch "%S+" do
    ALONG[#ALONG + 1] = { op, function(x, o) return mx[op](x, o) end }
end
for op, forward in ("max_grad/max norm_grad/norm var_grad/var logsumexp_grad/logsumexp"):gmatch "(%S+)/(%S+)" do
    ALONG[#ALONG + 1] = { op, function(x, o, y)
        if op == "max_grad" or op == "norm_grad" then
            return mx[op](x, y, y, o)
        end
        return mx[op](x, y, o)
    end, function(x, o) return mx[forward](x, o) end }
end
ALONG[#ALONG + 1] = { "softmax_grad", function(x, o, y) return mx.softmax_grad(x, y, o) end,
    function(x) return x:clone() end } -- one tensor for both inputs would be read once, and counted twice
ALONG[#ALONG + 1] = { "linear_scan", function(x, o, a) return mx.linear_scan(a, x, o) end,
    function(x) return mx.sigmoid(x) end }

-- Others of one matrix: {operation, what varies, columns, call, the only dtype}.
local MATRICES = {
    { "softmax", "", 50257, mx.softmax },
    { "log_softmax", "", WIDTH, mx.log_softmax },
    { "log_softmax", "", 50257, mx.log_softmax },
    { "topk", "k 50", 50257, function(x) return mx.topk(x, { k = 50 }) end },
    { "topk", "k 8", 64, function(x) return mx.topk(x, { k = 8 }) end },
    { "sort", "", WIDTH, mx.sort },
    { "argsort", "", WIDTH, mx.argsort },
    { "rfft", "", WIDTH, mx.rfft, "f32" },
    { "rfft", "", 65536, mx.rfft, "f32" },
}

local function add(list, op, shape, dtype, make)
    list[#list + 1] = { kernel = op, shape = shape, dtype = dtype, unit = "B/s", ops = { [op] = true }, make = make }
end

local function add_matrix(list, op, text, width, dtype, bytes, call, numbers)
    local rows = bytes // ((dtype == "f32" and 4 or 2) * width)
    add(list, op, ("%dx%d %s"):format(rows, width, text), dtype, function(check)
        local x = mx.randn { shape = { check and 37 or rows, width }, seed = 1, dtype = dtype }
        local y = numbers and numbers(x)
        return function() return call(x, y) end
    end)
end

---@param list table[] cases as in kernels.lua, to which those here are added
---@param bytes integer of each large tensor
function reductions.add(list, bytes)
    for _, dtype in ipairs { "f32", "bf16" } do
        for _, case in ipairs(ALONG) do
            local op, call, numbers = table.unpack(case)
            for dim = 1, 2 do
                local o = { dim = dim }
                add_matrix(list, op, "dim " .. dim, WIDTH, dtype, bytes, function(x, y) return call(x, o, y) end,
                    numbers and function(x) return numbers(x, o) end)
            end
        end
        for _, case in ipairs(MATRICES) do
            local op, text, width, call, only = table.unpack(case)
            if dtype == (only or dtype) then
                add_matrix(list, op, text, width, dtype, bytes, function(x) return call(x) end)
            end
        end
    end
end

return reductions
