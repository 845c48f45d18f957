--- Measures the ratios to which the engine holds itself, each of two rates that are measured in turn.

local mx = require "mx"
local util = require "mx.util"

local bounds = {}

local ROUNDS = 5 -- of which the median counts; one before them gets fresh memory
local M, PRODUCT = 2048, { matmul = true, matmul_acc = true }
local TOKENS, EMB, VOCAB = 512, 768, 50257 -- of the cross-entropy: gpt2-124m

local function randn(seed, shape, dtype)
    return mx.randn { shape = shape, dtype = dtype or "bf16", seed = seed }
end

-- A measurement: a function, the operations in it whose seconds count, and their FLOPs (nil: as the operations say).

-- The bf16 product to which most are compared.
local function product()
    local x, w = randn(1, { M, M }), randn(2, { M, M })
    return { function() mx.matmul(x, w) end, PRODUCT }
end

-- A product of codes, with quantizing both operands, as a step does it.
local function codes(dtype)
    local x, w = randn(1, { M, M }), randn(2, { M, M })
    return { function()
        local qx, sx = mx.quantize(x, { dtype = dtype, by = "row" })
        local qw, sw = mx.quantize(w, { dtype = dtype, by = "column" })
        mx.scaled_matmul(qx, qw, sx, sw)
    end, { quantize = true, scaled_matmul = true }, 2 * M ^ 3 }
end

-- The gradient of a weight, into f32 rows of so many columns.
local function weight_gradient(columns)
    local x, dy, dw = randn(1, { M, M // 2 }), randn(2, { M, columns }), mx.zeros { M // 2, columns }
    return { function() mx.matmul_acc(dw, x, dy, { trans_a = true }) end, PRODUCT }
end

local function cross_entropy()
    local h, w = randn(1, { TOKENS, EMB }):requires_grad(), (randn(2, { VOCAB, EMB }, "f32") * 0.03):detach()
    local targets = mx.randint({ TOKENS }, { high = VOCAB, seed = 3 })
    w:requires_grad()
    return { function() mx.backward(mx.cross_entropy(h, w, targets)) end, { cross_entropy = true } }
end

-- Causal attention of a sequence of M tokens; op: attention or attention_grad.
local function attention(op, heads, width)
    local function values(seed)
        return randn(seed, { 1, M, heads, width })
    end
    local q, k, v, dout = values(1):requires_grad(), values(2):requires_grad(), values(3):requires_grad(), values(4)
    return { function()
        mx.backward(mx.sum(mx.attention(q, k, v, { causal = true }) * dout))
    end, { [op] = true } }
end

-- Products of 16 groups of so many rows, or one product of all these rows. kind: forward, dx or dW.
local function grouped(kind, rows, all)
    local groups, inner, outer = 16, 2048, 768
    local x, dy = randn(1, { groups * rows, inner }), randn(2, { groups * rows, outer })
    local w, counts = randn(3, { groups, inner, outer }, "f32"),
        mx.full { shape = { groups }, value = rows, dtype = "i32" }
    local sums, one = mx.zeros { groups, inner, outer }, mx.zeros { inner, outer }
    local calls = {
        forward = { function() mx.grouped_matmul(x, w, counts) end, function() mx.matmul(x, w[1]) end },
        dx = {
            function() mx.grouped_matmul(dy, w, counts, { trans_b = true }) end,
            function() mx.matmul(dy, w[1], { trans_b = true }) end,
        },
        dW = {
            function() mx.grouped_matmul_acc(sums, x, dy, counts) end,
            function() mx.matmul_acc(one, x, dy, { trans_a = true }) end,
        },
    }
    return { calls[kind][all and 2 or 1], { matmul = true, matmul_acc = true, grouped_matmul = true,
        grouped_matmul_acc = true }, 2 * groups * rows * inner * outer }
end

--- Layers of ResNet-50: kernel, channels in and out, height and width of the images, stride.
bounds.LAYERS = {
    { 3, 64, 64, 56, 1 }, { 3, 128, 128, 28, 1 }, { 3, 256, 256, 14, 1 }, { 3, 512, 512, 7, 1 }, { 1, 256, 64, 56, 1 },
    { 1, 64, 256, 56, 1 }, { 1, 512, 2048, 7, 1 }, { 1, 256, 512, 56, 2 }, { 1, 1024, 2048, 14, 2 },
    { 3, 128, 128, 56, 2 }, { 3, 512, 512, 14, 2 }, { 7, 3, 64, 112, 2 },
}

-- A convolution of 16 images: forward, or one of its gradients.
local function convolution(op, layer, dtype)
    local kernel, inputs, outputs, size, stride = table.unpack(layer)
    local with = { padding = kernel // 2, stride = stride }
    local x = randn(1, { 16, inputs, size, size }, dtype)
    local w = randn(2, { outputs, inputs, kernel, kernel }, dtype)
    local dy = randn(3, mx.conv2d(x, w, with):size(), dtype)
    local calls = {
        conv2d = function() mx.conv2d(x, w, with) end,
        conv2d_grad = function()
            mx.conv2d_grad(w, dy, { padding = with.padding, stride = stride, size = x:size() })
        end,
        conv2d_grad_w = function()
            mx.conv2d_grad_w(x, dy, { padding = with.padding, stride = stride, size = w:size() })
        end,
    }
    return { calls[op], { [op] = true } }
end

-- Convolutions as shares of a product of 1024^3; 70 % are asked of forward.
local function convolutions()
    local list = {}
    for _, dtype in ipairs { "f32", "bf16" } do
        local a, b = randn(1, { 1024, 1024 }, dtype), randn(2, { 1024, 1024 }, dtype)
        for _, layer in ipairs(bounds.LAYERS) do
            for _, op in ipairs { "conv2d", "conv2d_grad", "conv2d_grad_w" } do
                list[#list + 1] = {
                    ("%s %dx%d, %d>%d, %d/%d"):format(op, layer[1], layer[1], table.unpack(layer, 2)),
                    dtype .. " product of 1024^3", op == "conv2d" and 0.7 or nil,
                    function() return convolution(op, layer, dtype) end,
                    function() return { function() mx.matmul(a, b) end, PRODUCT } end,
                }
            end
        end
    end
    return list
end

-- Each figure: what is measured, what it is a share of, the least share (nil: none is asked), and functions that make
-- both measurements.
local function figures()
    local rows = mx.isa() == "amx" and 2048 or 320
    local list = {
        { "int8 product, with quantizing", "bf16 product", 1.7, function() return codes "i8" end, product },
        { "e4m3 product, with quantizing", "bf16 product", 0.8, function() return codes "e4m3" end, product },
        { "dW, rows 16 KiB apart", "dW, rows 16 KiB + 128 B apart", nil, function() return weight_gradient(4096) end,
            function() return weight_gradient(4128) end },
        { "cross_entropy", "bf16 product", 0.8, cross_entropy, product },
    }
    for _, width in ipairs { 64, 128 } do
        for _, op in ipairs { "attention", "attention_grad" } do
            list[#list + 1] = { ("%s, heads of %d"):format(op, width), "bf16 product", 0.6,
                function() return attention(op, 1536 // width, width) end, product }
        end
    end
    for _, kind in ipairs { "forward", "dx", "dW" } do
        list[#list + 1] = { ("grouped %s, %d rows"):format(kind, rows), "one product of all rows", 0.85,
            function() return grouped(kind, rows, false) end, function() return grouped(kind, rows, true) end }
    end
    return list
end

--- Median rate of the first measurement, and median ratio of both, each of which is of one round.
---@param profiled function seconds and FLOPs of a call
---@param first table function, operations that count, FLOPs or nil: those of the operations
---@param second table
---@return number rate, number ratio
function bounds.compare(profiled, first, second)
    local rates, ratios = {}, {}
    for round = 0, ROUNDS do
        local rate = {}
        for i, m in ipairs { first, second } do
            local seconds, flops = profiled({ ops = m[2] }, m[1])
            rate[i] = (m[3] or flops) / seconds
        end
        rates[round], ratios[round] = rate[1], rate[1] / rate[2]
    end
    return util.quantile(rates, 0.5), util.quantile(ratios, 0.5)
end

local function print_peaks(threads)
    for _, kind in ipairs { "fma", "product" } do
        for _, dtype in ipairs(kind == "fma" and { "bf16" } or { "bf16", "i8" }) do
            local peak = mx.peak { kind = kind, dtype = dtype, threads = threads }
            print(("peak of %s: %.1f GFLOP/s, %s"):format(dtype, peak.value / 1e9, peak.source))
        end
    end
end

local function print_figures(list, profiled, log)
    local threads = mx.threads()
    print(("%-32s %12s  %-30s %6s %6s"):format("", "GFLOP/s", "share of", "share", "asked"))
    for _, figure in ipairs(list) do
        local name, of, least, first, second = table.unpack(figure, 1, 5)
        mx.scope(function()
            local rate, ratio = bounds.compare(profiled, first(), second())
            print(("%-32s %12.1f  %-30s %6.2f %6s"):format(name, rate / 1e9, of, ratio,
                least and ("%.2f"):format(least) or ""))
            if log then
                log:row { kernel = "bounds " .. name, threads = threads, isa = mx.isa(), rate = rate, of = of,
                    ratio = ratio, asked = least }
            end
        end)
        mx.trim()
    end
end

local function print_title(what)
    local threads = mx.threads()
    print(("\n%s, path %s, %d thread%s; medians of %d rounds in which both were measured in turn."):format(what,
        mx.isa(), threads, threads == 1 and "" or "s", ROUNDS))
end

--- Prints the shares of a product that convolutions reach. Only for one rank.
---@param profiled function seconds, FLOPs and bytes of a call: of kernels.lua
---@param log? table metrics of mx.outputs
function bounds.convolutions(profiled, log)
    print_title "Convolutions of 16 images: kernel, channels, size / stride"
    mx.scope(function() print_figures(convolutions(), profiled, log) end)
end

--- Prints the table for the current number of threads. Only for one rank.
---@param profiled function as above
---@param log? table
function bounds.run(profiled, log)
    print_title "Ratios of rates"
    print_peaks(mx.threads())
    print_figures(figures(), profiled, log)
    if mx.isa() ~= "amx" then
        print("Not measured: the same on path amx, which this run does not use. The shares that are asked of "
            .. "cross_entropy and\nattention are those of that path; so are 2048 rows of grouped products.")
    end
    print "A step of gpt2-124m beside PyTorch (asked: 2.2 times torch.compile on amx, 1.5 times on other paths):"
    print "    python3 tests/peers/gpt2.py"
end

return bounds
