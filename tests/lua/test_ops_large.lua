--- Fused operations against their plain compositions, in shapes that span several blocks of every kernel; and the same
-- bits on any number of threads.

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

-- f32: sums of up to some thousand terms in another order, about sqrt(1000) roundings of 2^-24 apart.
local F32_BOUND = 2e-5
-- bf16 against an f32 composition of the same inputs: roundings of the result, the probabilities and the gradients.
local BF16_BOUND = 2 ^ -6

--- Values and gradients of two functions of the same inputs.
local function agree(what, sizes, fused, plain, dtype)
    compare.on_each_isa(function(isa)
        local step <close> = mx.step()
        local function run(fn, as)
            local inputs = {}
            for i, size in ipairs(sizes) do
                inputs[i] = mx.randn(size, { seed = i }):to(dtype):to(as):requires_grad()
            end
            local out = fn(table.unpack(inputs))
            local dout = mx.randn(out:size(), { seed = 99 }):to("bf16"):to("f32")
            mx.backward(mx.sum(out:to("f32") * dout))
            local found = { out }
            for i, t in ipairs(inputs) do
                found[i + 1] = t:grad()
            end
            return found
        end
        local actual, expected = run(fused, dtype), run(plain, "f32")
        for i, values in ipairs(actual) do
            local apart = compare.large_distance(values, expected[i])
            local bound = dtype == "f32" and F32_BOUND or BF16_BOUND
            lu.assertTrue(apart <= bound, ("%s, %s, %s: %s is off by %.3g, bound %.3g"):format(what, dtype, isa,
                i == 1 and "the result" or "gradient " .. i - 1, apart, bound))
        end
        assert(step)
    end)
end

TestOpsComposed = {}

--- Attention by products of whole matrices: what the fused one must never hold.
---@param allowed fun(i: integer, j: integer, b: integer): boolean whether query i of sequence b sees key j (from 1)
local function plain_attention(q, k, v, scale, softcap, allowed)
    local B, S, H, D = q:size(1), q:size(2), q:size(3), q:size(4)
    local T, group = k:size(2), H // k:size(3)
    local function heads(t, length) -- (B, length, H, D) -> (B, H, length, D)
        return mx.permute(t, { dims = { 1, 3, 2, 4 } }):view(B, t:size(3), length, D)
    end
    local function repeated(t) -- a kv head for each query head
        local all = {}
        for h = 1, H do
            all[h] = mx.narrow(t, { dim = 2, start = (h - 1) // group + 1, length = 1 })
        end
        return mx.concat(all, { dim = 2 })
    end
    local scores = mx.matmul(heads(q, S), repeated(heads(k, T)), { trans_b = true }) * scale
    if softcap then
        scores = mx.tanh(scores / softcap) * softcap
    end
    local seen = {}
    for b = 1, B do
        seen[b] = {}
        for i = 1, S do
            seen[b][i] = {}
            for j = 1, T do
                seen[b][i][j] = allowed(i, j, b) and 1 or 0
            end
        end
    end
    scores = mx.where(mx.tensor(seen, "u8"):view(B, 1, S, T), scores, mx.tensor(-1e30))
    return mx.permute(mx.matmul(mx.softmax(scores), repeated(heads(v, T))), { dims = { 1, 3, 2, 4 } })
end

local function attention_case(what, sizes, options, allowed, segments)
    for _, dtype in ipairs { "f32", "bf16" } do
        local intervals = segments and mx.attention_intervals(mx.tensor(segments, "i32")):keep()
        agree(what, sizes, function(q, k, v)
            return mx.attention(q, k, v, intervals, options)
        end, function(q, k, v)
            return plain_attention(q, k, v, options.scale or sizes[1][4] ^ -0.5, options.softcap, allowed)
        end, dtype)
    end
end

function TestOpsComposed.test_attention_causal_grouped()
    attention_case("causal", { { 1, 300, 4, 64 }, { 1, 300, 2, 64 }, { 1, 300, 2, 64 } }, { causal = true },
        function(i, j)
            return j <= i
        end)
end

function TestOpsComposed.test_attention_full()
    attention_case("full", { { 1, 131, 2, 128 }, { 1, 517, 1, 128 }, { 1, 517, 1, 128 } }, {}, function()
        return true
    end)
end

function TestOpsComposed.test_attention_wide_heads()
    attention_case("head_dim 256", { { 1, 150, 1, 256 }, { 1, 150, 1, 256 }, { 1, 150, 1, 256 } },
        { causal = true, softcap = 5, scale = 0.1 }, function(i, j)
            return j <= i
        end)
end

function TestOpsComposed.test_attention_window()
    attention_case("window", { { 1, 290, 2, 32 }, { 1, 290, 2, 32 }, { 1, 290, 2, 32 } },
        { causal = true, window = 70 }, function(i, j)
            return j <= i and i - j < 70
        end)
end

function TestOpsComposed.test_attention_packed_sequences()
    local segments = { {}, {} }
    for i = 1, 200 do
        segments[1][i] = i <= 90 and 1 or i <= 91 and 2 or 3
        segments[2][i] = i <= 130 and 7 or 8
    end
    attention_case("packed", { { 2, 200, 2, 40 }, { 2, 200, 1, 40 }, { 2, 200, 1, 40 } }, { causal = true },
        function(i, j, b)
            return j <= i and segments[b][i] == segments[b][j]
        end, segments)
end

function TestOpsComposed.test_attention_chunks_and_a_prefix()
    attention_case("chunk", { { 1, 290, 2, 32 }, { 1, 290, 2, 32 }, { 1, 290, 2, 32 } },
        { causal = true, chunk = 70 }, function(i, j)
            return j <= i and (i - 1) // 70 == (j - 1) // 70
        end)
    attention_case("prefix", { { 1, 190, 2, 32 }, { 1, 190, 1, 32 }, { 1, 190, 1, 32 } },
        { causal = true, prefix = 101 }, function(i, j)
            return j <= i or j <= 101
        end)
end

-- A window on queries that stand behind a long cache.
function TestOpsComposed.test_attention_after_a_cache()
    attention_case("cache", { { 1, 37, 4, 32 }, { 1, 400, 2, 32 }, { 1, 400, 2, 32 } },
        { causal = true, offset = 300, kv_length = 337, window = 100 }, function(i, j)
            local at = 300 + i
            return j <= at and at - j < 100 and j <= 337
        end)
end

local function tokens_of(n, vocab, seed)
    return mx.rand({ n }, { low = 0, high = vocab, seed = seed }):to("i32")
end

local function plain_cross_entropy(n, vocab, targets, mask, o)
    return function(h, w)
        local logits = mx.matmul(h, w, { trans_b = true }) * (o.logit_scale or 1)
        if o.softcap then
            logits = mx.tanh(logits / o.softcap) * o.softcap
        end
        local log_p = mx.log_softmax(logits)
        local index = targets:view(n, 1)
        local log_z = mx.gather(logits, index, { dim = 2 }) - mx.gather(log_p, index, { dim = 2 })
        local each = (log_z * log_z * (o.z_loss or 0) - mx.gather(log_p, index, { dim = 2 })):view(n)
        local keep = mask and mask:to("f32") or mx.ones { n }
        assert(vocab == logits:size(2))
        return mx.sum(each * keep) / mx.sum(keep):item()
    end
end

function TestOpsComposed.test_cross_entropy()
    local n, emb, vocab = 1100, 24, 701
    for _, options in ipairs { {}, { z_loss = 1e-2, softcap = 8, logit_scale = 0.7 } } do
        for _, dtype in ipairs { "f32", "bf16" } do
            for _, masked in ipairs { false, true } do
                local targets = tokens_of(n, vocab, 5):keep()
                local mask = masked and mx.gt(mx.rand({ n }, { seed = 6 }), mx.tensor(0.3)):keep() or nil
                agree("cross_entropy", { { n, emb }, { vocab, emb } }, function(h, w)
                    return mx.cross_entropy(h, w, targets, mask, options)
                end, plain_cross_entropy(n, vocab, targets, mask, options), dtype)
            end
        end
    end
end

function TestOpsComposed.test_norms()
    for _, dtype in ipairs { "f32", "bf16" } do
        agree("rmsnorm", { { 300, 390 }, { 390 } }, function(x, w)
            return mx.rmsnorm(x, w, { eps = 1e-5 })
        end, function(x, w)
            return x * mx.rsqrt(mx.mean(x * x, { dim = 2, keepdim = true }) + 1e-5) * w
        end, dtype)
        agree("layernorm", { { 300, 390 }, { 390 }, { 390 } }, function(x, w, b)
            return mx.layernorm(x, w, b, { eps = 1e-5 })
        end, function(x, w, b)
            local centred = x - mx.mean(x, { dim = 2, keepdim = true })
            return centred * mx.rsqrt(mx.mean(centred * centred, { dim = 2, keepdim = true }) + 1e-5) * w + b
        end, dtype)
        agree("softmax", { { 100, 1030 } }, mx.softmax, function(x)
            local e = mx.exp(x)
            return e / mx.sum(e, { dim = 2, keepdim = true })
        end, dtype)
    end
end

function TestOpsComposed.test_gated()
    for _, dtype in ipairs { "f32", "bf16" } do
        for _, activation in ipairs { "silu", "gelu", "relu" } do
            agree("gated " .. activation, { { 40, 1030 }, { 40, 1030 } }, function(g, u)
                return mx.gated(g, u, { activation = activation })
            end, function(g, u)
                return mx[activation](g) * u
            end, dtype)
        end
    end
end

-- The gradient of up takes the place of the gradient of the result, but not if others read that one, too.
function TestOpsComposed.test_gated_changes_no_gradient_that_others_read()
    local function gradients(write)
        local gate, up = mx.randn { shape = { 8, 300 }, seed = 1 }, mx.randn { shape = { 8, 300 }, seed = 2 }
        local skip = mx.randn { shape = { 8, 300 }, seed = 3 }
        for _, t in ipairs { gate, up, skip } do
            t:requires_grad()
        end
        mx.backward(mx.sum(mx.square(write(gate, up, skip))))
        return { gate:grad(), up:grad(), skip:grad() }
    end
    local function added(gate, up, skip) return mx.gated(gate, up) + skip end -- both terms get one gradient
    local plain = gradients(function(gate, up, skip) return mx.silu(gate) * up + skip end)
    for i, grad in ipairs(gradients(added)) do
        lu.assertTrue(compare.distance(grad, compare.flat(plain[i])) < 1e-5, i)
    end
end

-- Largest number of arrays of n elements in backward, beside those that the forward pass holds.
local function extra_arrays(n, forward)
    return mx.scope(function()
        local loss = forward()
        local before = mx.memory().in_use
        mx.reset_peak()
        mx.backward(loss)
        return (mx.memory().peak - before) / (4 * n)
    end)
end

function TestOpsComposed.test_gradients_take_the_memory_of_what_has_been_read()
    local rows, width = 1024, 512
    local n = rows * width
    local gate, up = mx.ones { rows, width }:requires_grad(), mx.ones { rows, width }:requires_grad()
    local w = mx.ones { width, 1 }:requires_grad()
    local x, first = mx.ones { rows, 1 }, mx.ones { 1, width }:requires_grad()
    -- The gradient of a product's first operand takes the place of the operand.
    lu.assertTrue(extra_arrays(n, function()
        local h = mx.matmul(x, first)
        local loss = mx.sum(mx.matmul(h, w))
        h:release()
        return loss
    end) < 0.1)
    -- The gradient of y takes the place of y, and that of up the place of the gradient of y: one more is for gate.
    lu.assertTrue(extra_arrays(n, function()
        local a, b = mx.square(gate), mx.square(up)
        local y = mx.gated(a, b)
        local loss = mx.sum(mx.matmul(y, w))
        for _, t in ipairs { a, b, y } do
            t:release()
        end
        return loss
    end) < 1.1)
end

function TestOpsComposed.test_embedding_is_a_product_with_one_hot_rows()
    local n, vocab, emb = 3000, 50, 70
    for _, dtype in ipairs { "f32", "bf16" } do
        local ids = tokens_of(n, vocab, 3):keep()
        agree("embedding", { { vocab, emb } }, function(t)
            return mx.embedding(t, ids)
        end, function(t)
            local hot = mx.eq(ids:view(n, 1), mx.arange { n = vocab, dtype = "i32" }:view(1, vocab)):to("f32")
            return mx.matmul(hot, t)
        end, dtype)
    end
end

-- ---- the same bits on any number of threads ----

TestThreads = {}

-- Without AVX-512, OpenBLAS computes f32 products. Its sums depend on the threads.
local blas_multiplies = { portable = true, avx2 = true }

local function same_on_any_threads(what, sizes, dtype, fn, not_on)
    compare.on_each_isa(function(isa)
        if not_on and not_on[isa] then
            return
        end
        local step <close> = mx.step()
        local before, reference = mx.threads(), nil
        for _, n in ipairs { 1, 2, 3 } do
            mx.threads(n)
            local inputs = {}
            for i, size in ipairs(sizes) do
                inputs[i] = mx.randn(size, { seed = i }):to(dtype):requires_grad()
            end
            local out = fn(table.unpack(inputs))
            mx.backward(mx.sum(mx.mul(out:to("f32"), mx.randn(out:size(), { seed = 99 }))))
            local found = { out }
            for i, t in ipairs(inputs) do
                found[i + 1] = t:grad()
            end
            reference = reference or found
            for i, values in ipairs(found) do
                lu.assertEquals(compare.large_distance(values, reference[i]), 0,
                    ("%s, %s, %s: part %d on %d threads"):format(what, dtype, isa, i, n))
            end
        end
        mx.threads(before)
        assert(step)
    end)
end

function TestThreads.test_rows()
    for _, dtype in ipairs { "f32", "bf16" } do
        same_on_any_threads("rmsnorm", { { 900, 130 }, { 130 } }, dtype, mx.rmsnorm)
        same_on_any_threads("layernorm", { { 900, 130 }, { 130 }, { 130 } }, dtype, mx.layernorm)
        same_on_any_threads("softmax", { { 900, 130 } }, dtype, mx.softmax)
        same_on_any_threads("rope", { { 2, 300, 4, 64 } }, dtype, mx.rope)
    end
end

function TestThreads.test_reductions()
    for _, dtype in ipairs { "f32", "bf16" } do
        same_on_any_threads("sum", { { 200, 1001 } }, dtype, mx.sum)
        same_on_any_threads("sum of squares", { { 200, 1001 } }, dtype, mx.sum_squares)
        same_on_any_threads("sum over rows", { { 1001, 200 } }, dtype, function(x)
            return mx.sum(x, { dim = 1 })
        end)
        same_on_any_threads("broadcast", { { 700, 130 }, { 130 }, { 700, 1 } }, dtype, function(x, row, column)
            return (x + row) * column
        end)
    end
end

function TestThreads.test_attention()
    for _, dtype in ipairs { "f32", "bf16" } do
        same_on_any_threads("attention", { { 1, 260, 4, 64 }, { 1, 260, 2, 64 }, { 1, 260, 2, 64 } }, dtype,
            function(q, k, v)
                return mx.attention(q, k, v, { causal = true })
            end)
    end
end

function TestThreads.test_products()
    same_on_any_threads("f32 matmul", { { 300, 520 }, { 520, 260 } }, "f32", mx.matmul, blas_multiplies)
    same_on_any_threads("matmul", { { 300, 520 }, { 520, 260 } }, "bf16", mx.matmul)
    same_on_any_threads("matmul of few rows", { { 3, 2050 }, { 2050, 260 } }, "bf16", mx.matmul)
    local targets = tokens_of(900, 300, 4):keep()
    same_on_any_threads("cross_entropy", { { 900, 64 }, { 300, 64 } }, "bf16", function(h, w)
        return mx.cross_entropy(h, w, targets)
    end)
end

function TestThreads.test_convolutions()
    for _, dtype in ipairs { "f32", "bf16" } do
        same_on_any_threads("conv2d", { { 2, 20, 19, 17 }, { 70, 20, 3, 3 }, { 70 } }, dtype, function(x, w, bias)
            return mx.conv2d(x, w, bias, { padding = 1 })
        end)
        same_on_any_threads("strided conv2d", { { 2, 8, 19, 17 }, { 12, 4, 3, 3 } }, dtype, function(x, w)
            return mx.conv2d(x, w, { stride = 2, groups = 2 })
        end)
    end
end

function TestThreads.test_embedding()
    local ids = tokens_of(5000, 37, 4):keep()
    for _, dtype in ipairs { "f32", "bf16" } do
        same_on_any_threads("embedding", { { 37, 130 } }, dtype, function(t)
            return mx.embedding(t, ids)
        end)
    end
end

TestWindows = {}

-- Of several tiles in every direction (kernels/windows.h), products of several blocks of columns, of rows and of taps
-- (kernels/conv_product.c), gradients by x of several bands and chunks (added_..., kernels/conv_grad_x.c), and points
-- that are picked first (points_apart..., kernels/conv_points.c), against f64, whose loops know none of these.
for name, case in pairs {
    product = { { 3, 10, 31, 33 }, { 70, 10, 3, 3 }, { padding = 1 } },
    product_many_taps = { { 1, 130, 9, 8 }, { 20, 130, 3, 3 }, { padding = 1 } },
    product_many_rows = { { 1, 16, 6, 5 }, { 530, 16, 2, 3 } },
    product_long = { { 2, 24, 700 }, { 30, 24, 7 }, { padding = "causal", dilation = 3 } },
    product_small_images = { { 40, 9, 4, 3 }, { 21, 9, 3, 2 }, { padding = { 2, 1 } } },
    product_wide_padding = { { 2, 9, 3, 4 }, { 5, 9, 2, 2 }, { padding = 4, stride = 3 } },
    points_apart = { { 3, 40, 15, 17 }, { 33, 40, 1, 1 }, { stride = 2 } },
    points_apart_of_small_planes = { { 5, 30, 14, 14 }, { 20, 30, 1, 1 }, { stride = 2 } },
    points_apart_in_a_row = { { 2, 9, 30, 71 }, { 33, 9, 1, 1 }, { stride = { 1, 2 } } },
    points_apart_in_columns = { { 2, 9, 31, 60 }, { 33, 9, 1, 1 }, { stride = { 3, 1 } } },
    points_far_apart = { { 2, 20, 33, 50 }, { 18, 10, 1, 1 }, { stride = { 2, 3 }, groups = 2 } },
    points_apart_streamed = { { 1, 40, 240, 261 }, { 5, 40, 1, 1 }, { stride = 2 } },
    points_apart_of_long_rows = { { 2, 5, 9001 }, { 7, 5, 1 }, { stride = 2 } },
    points_apart_and_padded = { { 2, 9, 15, 16 }, { 12, 9, 1, 1 }, { stride = 2, padding = 1 } },
    product_groups = {
        { 2, 12, 20, 23 }, { 18, 6, 3, 2 }, { groups = 2, dilation = { 2, 3 }, stride = { 1, 2 }, padding = { 3, 1 } },
    },
    points = { { 3, 70, 9, 11 }, { 33, 70, 1, 1 } },
    points_of_large_images = { { 2, 20, 40, 45 }, { 70, 20, 1, 1 } },
    points_of_many_channels = { { 1, 1100, 5, 7 }, { 40, 1100, 1, 1 } },
    streamed = { { 2, 4, 65, 64 }, { 260, 4, 2, 1 } },
    streamed_half_lines = { { 3, 4, 28, 28 }, { 900, 4, 1, 1 } }, -- planes of bf16 begin in the middle of cache lines
    points_of_groups = { { 3, 100, 9, 11 }, { 192, 50, 1, 1 }, { groups = 2 } }, -- whose weights' gradient is turned
    added_bands = { { 1, 3, 90, 700 }, { 16, 3, 5, 4 }, { padding = { 2, 1 } } },
    added_chunks = { { 2, 40, 9, 8 }, { 20, 40, 3, 2 }, { stride = { 2, 3 }, dilation = { 2, 1 }, padding = 2 } },
    added_images = { { 20, 17, 14, 13 }, { 12, 17, 3, 3 }, { stride = 2, padding = 1 } }, -- several parts
    added_tiny_images = { { 30, 5, 3, 3 }, { 18, 5, 2, 2 }, { stride = 2, padding = 1 } },
    added_apart = { { 2, 9, 17, 19 }, { 12, 9, 2, 2 }, { stride = 5 } },
    added_many_taps = { { 2, 3, 5, 60 }, { 16, 3, 2, 20 }, { dilation = { 1, 2 }, padding = 5 } },
    added_in_blocks = { { 3, 3, 41, 92 }, { 20, 3, 5, 7 }, { stride = 2, padding = 3 } }, -- even rows of results
    added_long = { { 2, 12, 500 }, { 24, 12, 9 }, { stride = 4, padding = 4 } },
    added_wide_padding = { { 2, 2, 3, 4 }, { 32, 2, 2, 3 }, { padding = { 3, 5 } } },
    passes_with_stride = { { 1, 9, 9000 }, { 10, 9, 3 }, { stride = 2 } },
    causal_depthwise = { { 2, 3, 9001 }, { 3, 1, 4 }, { groups = 3, padding = "causal" } },
    depthwise_rows = { { 2, 3, 301 }, { 6, 1, 5 }, { groups = 3, padding = 9, dilation = 3 } },
    depthwise_short_rows = { { 3, 5, 3 }, { 5, 1, 6 }, { groups = 5, padding = 4 } },
    strided = { { 1, 4, 4500 }, { 6, 2, 5 }, { groups = 2, stride = 3, dilation = 2, padding = 4 } },
    two_dimensions = { { 1, 2, 40, 1100 }, { 2, 1, 3, 3 }, { groups = 2, padding = 1 } },
    two_strides = {
        { 1, 2, 33, 2100 }, { 4, 1, 3, 2 }, { groups = 2, padding = 2, stride = 2, dilation = { 1, 3 } },
    },
    folded_max = { { 2, 3, 45, 131 }, nil, { size = 2 }, "max_pool2d" },
    folded_max_around = { { 2, 3, 21, 35 }, nil, { size = 3, stride = 1, padding = 1 }, "max_pool2d" },
    folded_max_apart = { { 2, 3, 45, 98 }, nil, { size = 3, stride = 2, padding = 1 }, "max_pool2d" },
    folded_max_streamed = { { 1, 520, 64, 64 }, nil, { size = 3, stride = 1, padding = 1 }, "max_pool2d" },
    folded_max_of_rows = { { 5, 2, 9002 }, nil, { size = 3, stride = 2, padding = 1 }, "max_pool1d" },
    unfolded_max = { { 2, 3, 45, 132 }, nil, { size = 2 }, "max_pool2d" },
    unfolded_max_without_padded_rows = {
        { 2, 2, 29, 36 }, nil, { size = 3, stride = 1, padding = { 0, 1 } }, "max_pool2d",
    },
    unfolded_mean = { { 2, 3, 45, 132 }, nil, { size = 2 }, "avg_pool2d" },
    unfolded_mean_apart = { { 1, 2, 30, 5002 }, nil, { size = 3, stride = 2, padding = 1 }, "avg_pool2d" },
    folded_mean = { { 2, 3, 45, 131 }, nil, { size = 2 }, "avg_pool2d" },
    folded_mean_around = { { 2, 3, 21, 33 }, nil, { size = 3, stride = 1, padding = 1 }, "avg_pool2d" },
    folded_mean_apart = { { 2, 3, 45, 98 }, nil, { size = 3, stride = 2, padding = 1 }, "avg_pool2d" },
    folded_mean_streamed = { { 1, 520, 64, 64 }, nil, { size = 3, stride = 1, padding = 1 }, "avg_pool2d" },
    folded_mean_of_rows = { { 2, 2, 20002 }, nil, { size = 2 }, "avg_pool1d" },
    long_max = { { 3, 1, 9001 }, nil, { size = 3, stride = 2, padding = 1 }, "max_pool1d" },
    max = { { 1, 2, 45, 1100 }, nil, { size = 3, stride = 1, padding = 1 }, "max_pool2d" },
    apart_max = { { 1, 1, 90, 90 }, nil, { size = 2, stride = 5 }, "max_pool2d" },
    odd_max = { { 2, 3, 33, 71 }, nil, { size = { 3, 4 }, stride = { 1, 2 }, padding = { 1, 2 } }, "max_pool2d" },
    apart_mean = { { 2, 3, 33, 71 }, nil, { size = { 4, 5 }, stride = { 3, 2 }, padding = { 2, 1 } }, "avg_pool2d" },
    long_mean = { { 3, 1, 9001 }, nil, { size = 4 }, "avg_pool1d" },
    mean = { { 1, 2, 45, 1100 }, nil, { size = { 2, 3 }, stride = { 1, 2 }, padding = 1 }, "avg_pool2d" },
} do
    TestWindows["test_" .. name] = function()
        local x_size, w_size, options = case[1], case[2], case[3]
        local op = mx[case[4] or "conv" .. #x_size - 2 .. "d"]
        local function run(x, w)
            x = x:requires_grad()
            w = w and w:requires_grad()
            local y = w and op(x, w, options) or op(x, options)
            mx.backward(y, mx.randn(y:size(), { seed = 9 }):to("bf16"):to(y:dtype()))
            return { y, x:grad(), w and w:grad() }
        end
        local x, w = mx.randn(x_size, { seed = 1 }):to("bf16"), w_size and mx.randn(w_size, { seed = 2 }):to("bf16")
        local expected = run(x:to("f64"), w and w:to("f64"))
        compare.on_each_isa(function(isa)
            for _, dtype in ipairs { "f32", "bf16" } do
                for i, t in ipairs(run(x:detach():to(dtype):clone(), w and w:detach():to(dtype):clone())) do
                    local off = compare.large_distance(t:to("f32"), expected[i]:to("f32"))
                    lu.assertTrue(off <= (dtype == "f32" and F32_BOUND or 2 ^ -8 + 1e-4),
                        ("%s, %s: part %d is off by %.3g"):format(isa, dtype, i, off))
                end
            end
        end)
    end
end

-- Sums of at most nine elements in one order, for sizes whose windows are read where they are; 0 is never -0.
function TestWindows.test_gradients_of_pooling_have_the_same_bits_on_all_paths()
    local shapes = {
        { { 3, 1, 45, 132 }, { size = 2 } }, { { 2, 1, 46, 98 }, { size = 3, stride = 2, padding = 1 } },
        { { 2, 1, 45, 97 }, { size = 3, stride = 1, padding = 1 } },
        { { 2, 1, 45, 64 }, { size = 3, stride = 1, padding = { 0, 1 } } },
        { { 2, 1, 45, 64 }, { size = { 1, 3 }, stride = 1, padding = { 0, 1 } } },
        { { 2, 1, 31, 9000 }, { size = 3, stride = 2, padding = { 0, 1 } } },
        { { 2, 1, 31, 60 }, { size = 4, stride = 3, padding = { 2, 1 } } },
    }
    for i, shape in ipairs(shapes) do
        local size, options = table.unpack(shape)
        for _, name in ipairs { "max_pool2d", "avg_pool2d" } do
            for _, dtype in ipairs { "f32", "bf16" } do
                local expected
                compare.on_each_isa(function(isa)
                    local x = mx.randn(size, { seed = i }):to(dtype):requires_grad()
                    local y = mx[name](x, options)
                    local dy = mx.randn(y:size(), { seed = i + 20 })
                    mx.backward(y, (dy * mx.gt(dy, -0.2)):to(dtype)) -- many are -0
                    local bits = mx.to_bytes(x:grad())
                    expected = expected or bits
                    lu.assertTrue(bits == expected, ("%s of %s, %s, shape %d"):format(name, dtype, isa, i))
                end)
            end
        end
    end
end

-- A place in another window of the plane counts for nothing.
function TestWindows.test_gradient_of_max_ignores_places_outside_of_the_window()
    for _, options in ipairs { { size = 2 }, { size = 3, stride = 2, padding = 1 } } do
        local size = { 2, 1, 40, 64 }
        local with = { size = options.size, stride = options.stride, padding = options.padding, shape = size }
        local places = mx.randint({ 2, 1, 20, 32 }, { high = 40 * 64, seed = 1 }) % 300
        local dy = mx.arange(places:numel()):view(places:size()) % 50 + 1
        local place_of, counted = places:view(places:numel()):totable(), dy:view(dy:numel()):totable()
        for i, place in ipairs(place_of) do
            local row = place // 64 - (i - 1) // 32 % 20 * 2 + (options.padding or 0)
            local column = place % 64 - (i - 1) % 32 * 2 + (options.padding or 0)
            local inside = row >= 0 and row < options.size and column >= 0 and column < options.size
            counted[i] = inside and counted[i] or 0
        end
        counted = mx.tensor(counted):view(dy:size()):to("f64")
        for _, dtype in ipairs { "f32", "bf16" } do
            local expected = mx.to_bytes(mx.max_pool2d_grad(counted, places, with):to(dtype))
            compare.on_each_isa(function(isa)
                local found = mx.to_bytes(mx.max_pool2d_grad(dy:to(dtype), places, with))
                lu.assertTrue(found == expected, ("%s, %s, size %d"):format(isa, dtype, options.size))
            end)
        end
    end
end

-- NaN is the largest, the first of equal elements is taken, and what is outside is smaller than -inf.
function TestWindows.test_max_of_infinities_and_nan()
    local kinds, values = { 0 / 0, -math.huge, math.huge, 1, -1, -0.0, 0.0, -math.huge }, {}
    for i = 1, 3 * 33 * 71 do
        values[i] = i <= 33 * 71 and -math.huge or i <= 2 * 33 * 71 and kinds[i * i % 127 % 8 + 1] or i * i % 127
    end
    local x = mx.tensor(values):view(3, 1, 33, 71)
    local shapes = {
        { size = 2, padding = 1 }, { size = 3, stride = 2, padding = 1 }, { size = 3, stride = 1 }, { size = 2 },
        { size = 3, stride = 1, padding = 1 },
    }
    for _, options in ipairs(shapes) do
        local function run(dtype)
            local input = x:to(dtype):clone():requires_grad()
            local y = mx.max_pool2d(input, options)
            mx.backward(y, (mx.arange(y:numel()) % 7 + 1):to(dtype):view(y:size()))
            return { y:to("f32"):view(y:numel()):totable(), input:grad():to("f32"):view(x:numel()):totable() }
        end
        local expected = run "f64"
        compare.on_each_isa(function(isa)
            for _, dtype in ipairs { "f32", "bf16" } do
                for part, found in ipairs(run(dtype)) do
                    for i, value in ipairs(expected[part]) do
                        local same = found[i] == value or found[i] ~= found[i] and value ~= value
                        lu.assertTrue(same, ("%s, %s: element %d of part %d is %s, not %s"):format(isa, dtype, i, part,
                            found[i], value))
                    end
                end
            end
        end)
    end
end
