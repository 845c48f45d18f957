-- A 1-D convolutional network and an LSTM on one task: which of four short motifs hides in a noisy sequence. The
-- convolution is written by hand, as a sum of products with shifted sequences.
-- Each must name more than 90 % of unseen sequences right.
--
--     build/mxlua scripts/examples/motifs.lua [steps=250]
local mx = require "mx"
local o = mx.config.options(arg, { steps = 250 })
local LENGTH, WIDTH, CLASSES, B, HIDDEN = 20, 4, 4, 64, 32
local MOTIFS = mx.tensor { { 1, 1, 1, 1 }, { 1, -1, 1, -1 }, { 1, 1, -1, -1 }, { -1, 1, 1, -1 } } * 1.5

-- Sequences (n, LENGTH, 1) and labels (n).
local function batch(n, seed)
    local label = mx.rand { shape = { n }, high = CLASSES, seed = seed }:to("i32")
    local place = mx.rand { shape = { n, 1 }, high = LENGTH - WIDTH + 1, seed = seed + 1 }:to("i32")
    local index = place + mx.arange { n = WIDTH, dtype = "i32" }:view(1, WIDTH)
    local noise = mx.randn { shape = { n, LENGTH }, std = 0.4, seed = seed + 2 }
    return mx.scatter_add(noise, index, mx.index_select(MOTIFS, label), { dim = 2 }):view(n, LENGTH, 1), label
end

-- x (n, S, c) -> (n, S - WIDTH + 1, HIDDEN)
local function conv(params, name, channels)
    local taps = {}
    for i = 1, WIDTH do
        taps[i] = mx.nn.linear(params, name .. i, channels, HIDDEN, { std = (channels * WIDTH) ^ -0.5 })
    end
    return function(x)
        local sum, S = nil, x:size(2) - WIDTH + 1
        for i = 1, WIDTH do
            local y = taps[i](mx.narrow(x, { dim = 2, start = i, length = S }))
            sum = sum and sum + y or y
        end
        return sum
    end
end

local function train(name, params, logits)
    local optimizer = mx.optim.adamw(params, { learning_rate = 5e-3, clip = 1 })
    for i = 1, o.steps do
        local step <close> = mx.step()
        local x, label = batch(B, 3 * i)
        mx.backward(mx.mean(mx.gather(mx.log_softmax(logits(x)), label:view(B, 1), { dim = 2 })) * -1)
        optimizer:step()
    end
    local x, label = batch(1000, 1e6)
    local named = mx.no_grad(function() return mx.argmax(logits(x), { dim = 2 }) end)
    local right = mx.mean(named:eq(label):to("f32")):item()
    print(("%-5s %.1f %% right"):format(name, 100 * right))
    assert(right > 0.9, name .. " must name more than 90 % right")
end

local cnn, lstm = {}, {}
local first, last = conv(cnn, "conv", 1), mx.nn.linear(cnn, "out", HIDDEN, CLASSES, { bias = true })
train("CNN", cnn, function(x) return last(mx.max(mx.relu(first(x)), { dim = 2 })) end)
local run = mx.nn.recurrent(mx.nn.lstm_cell(lstm, "cell", 1, HIDDEN))
local read = mx.nn.linear(lstm, "out", HIDDEN, CLASSES, { bias = true })
train("LSTM", lstm, function(x) return read(mx.max(run(x), { dim = 2 })) end)
