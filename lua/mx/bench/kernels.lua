--- Measures every kernel with the shapes of a model, and compares it with the machine's peaks in the same
--- run.
--
-- Work and bytes are the operation's cost, as the profiler reports it; seconds are those of the fastest of several
-- calls, as for the peaks. Matrix products and attention are compared with the multiply-add peak, all other kernels
-- with the copy bandwidth. The residual is the largest difference from the portable path, relative to the largest
-- value, on a smaller size of the same kernel.

local mx = require "mx"
local bounds = require "mx.bench.bounds"
local experts = require "mx.bench.experts"
local grouped = require "mx.bench.grouped"
local masks = require "mx.bench.masks"
local moves = require "mx.bench.moves"
local reductions = require "mx.bench.reductions"
local util = require "mx.util"
local windows = require "mx.bench.windows"

local kernels = {}

local SECONDS = 0.4 -- least time for the calls of one kernel
local MOST_TOKENS = 1 << 20
local MOST_MIB = 4096

local stream_bytes -- size of a tensor that does not fit the caches, of the run

-- ---- inputs ----

local function randn(seed, shape, dtype, std)
    return mx.randn { shape = shape, dtype = dtype or "bf16", std = std or 1, seed = seed }
end

-- Number of rows of `width` bf16 values: more than fit the caches, or few for a check.
local function rows_of(width, check)
    return check and 7 or math.max(1, stream_bytes // (2 * width))
end

-- ---- cases ----
-- A case is {kernel, shape (text), dtype, unit, ops (rows of the profiler that count), make}. make(check) creates the
-- inputs and returns a function that runs the kernel once and returns its results. `check` is false for timing. "fast"
-- and "plain" mean the smaller size, on the path to check and on the portable path.

local function sizes(...)
    return table.concat({ ... }, "x")
end

-- The product a b with the transpositions in `o`. Every path computes f32 products with OpenBLAS, so their plain form
-- is a sum of products.
local function product(a, b, o, plain)
    if not (plain and a:dtype() == "f32") then
        return mx.matmul(a, b, o)
    end
    a = o.trans_a and mx.transpose(a) or a
    b = o.trans_b and mx.transpose(b) or b
    local m, k, n = a:size(1), a:size(2), b:size(2)
    return mx.sum(a:view(m, k, 1) * b:view(1, k, n), { dim = 2 })
end

local function add_matmul(list, m, k, n, dtype)
    local function add(kernel, make)
        list[#list + 1] = {
            kernel = kernel, shape = sizes(m, k, n), dtype = dtype, unit = "FLOP/s",
            ops = { matmul = true, matmul_acc = true }, make = make,
        }
    end
    add("matmul", function(check)
        local x, w = randn(1, { check and 33 or m, k }, dtype), randn(2, { k, check and 65 or n }, dtype)
        return function() return product(x, w, {}, check == "plain") end
    end)
    add("matmul dx", function(check)
        local dy, w = randn(1, { check and 33 or m, n }, dtype), randn(2, { check and 65 or k, n }, dtype)
        return function() return product(dy, w, { trans_b = true }, check == "plain") end
    end)
    add("matmul dw", function(check)
        local x, dy = randn(1, { m, check and 33 or k }, dtype), randn(2, { m, check and 65 or n }, dtype)
        if check == "plain" then
            return function() return mx.add(product(x, dy, { trans_a = true, dtype = "f32" }, true), 1) end
        end
        local dw = mx.ones({ check and 33 or k, check and 65 or n })
        return function() return mx.matmul_acc(dw, x, dy, { trans_a = true }) end
    end)
end

-- A product with both operands quantized first, as a training step does it; its peak is that of bf16.
local function add_codes(list, m, k, n, dtype)
    list[#list + 1] = {
        kernel = dtype == "i8" and "matmul int8" or "matmul fp8", shape = sizes(m, k, n), dtype = dtype, peak = "bf16",
        unit = "FLOP/s", ops = { quantize = true, scaled_matmul = true },
        make = function(check)
            local x, w = randn(1, { check and 33 or m, k }), randn(2, { k, check and 65 or n })
            return function()
                local qx, sx = mx.quantize(x, { dtype = dtype, by = "row" })
                local qw, sw = mx.quantize(w, { dtype = dtype, by = "column" })
                return mx.scaled_matmul(qx, qw, sx, sw)
            end
        end,
    }
end

-- S tokens, H heads of queries and K of keys with D features, values with V.
local function add_attention(list, S, H, K, D, V, causal)
    local function make(check)
        local n, heads, kv = check and 130 or S, check and math.min(H, 2) or H, check and 1 or K
        local q = randn(1, { 1, n, heads, D }):requires_grad()
        local k, v = randn(2, { 1, n, kv, D }):requires_grad(), randn(3, { 1, n, kv, V }):requires_grad()
        local dout = randn(4, { 1, n, heads, V })
        return function()
            for _, t in ipairs({ q, k, v }) do
                t:zero_grad()
            end
            local out = mx.attention(q, k, v, { causal = causal })
            mx.backward(mx.sum(out * dout))
            return out, q:grad(), k:grad(), v:grad()
        end
    end
    local width = D == V and tostring(D) or D .. "," .. V
    local shape = ("%dx%d/%dx%s%s"):format(S, H, K, width, causal and " causal" or "")
    for _, op in ipairs({ "attention", "attention_grad" }) do
        list[#list + 1] = {
            kernel = op, shape = shape, dtype = "bf16", unit = "FLOP/s", ops = { [op] = true }, make = make,
        }
    end
end

-- Layers of ResNet-50: kernel, channels in and out, and height and width of the images.
local CONVOLUTIONS = {
    { 3, 64, 64, 56 }, { 3, 128, 128, 28 }, { 3, 256, 256, 14 }, { 3, 512, 512, 7 }, { 1, 256, 64, 56 },
}

local function add_convolutions(list)
    for _, dtype in ipairs { "bf16", "f32" } do
        for _, layer in ipairs(CONVOLUTIONS) do
            local k, c, o, size = table.unpack(layer)
            local function make(check)
                local n = check and 1 or 16
                local x = randn(1, { n, check and 8 or c, size, size }, dtype):requires_grad()
                local w = randn(2, { check and 16 or o, check and 8 or c, k, k }, dtype):requires_grad()
                return function()
                    x:zero_grad()
                    w:zero_grad()
                    local y = mx.conv2d(x, w, { padding = k // 2 })
                    mx.backward(mx.sum(y))
                    return y, x:grad(), w:grad()
                end
            end
            for _, op in ipairs { "conv2d", "conv2d_grad", "conv2d_grad_w" } do
                list[#list + 1] = {
                    kernel = op, shape = sizes(k, c, o, size), dtype = dtype, unit = "FLOP/s", ops = { [op] = true },
                    make = make,
                }
            end
        end
    end
end

-- Adds a kernel on one tensor of `width` bf16 columns, and its gradient if that is a separate operation.
local function add_rows(list, kernel, width, forward, grad)
    local function make(check)
        local x, dy = randn(1, { rows_of(width, check), width }), randn(2, { rows_of(width, check), width })
        local call = forward(width)
        if not grad then
            return function() return call(x) end
        end
        x:requires_grad()
        return function()
            x:zero_grad()
            local y = call(x)
            mx.backward(mx.sum(y * dy))
            return y, x:grad()
        end
    end
    for _, op in ipairs({ kernel, grad }) do
        list[#list + 1] = {
            kernel = op, shape = sizes(rows_of(width), width), dtype = "bf16", unit = "B/s",
            ops = { [op] = true, [op .. "_"] = true }, make = make,
        }
    end
end

local function add_gated(list, width)
    local function make(check)
        local shape = { rows_of(width, check), width }
        local gate, up, dy = randn(1, shape):requires_grad(), randn(2, shape):requires_grad(), randn(3, shape)
        return function()
            gate:zero_grad()
            up:zero_grad()
            local y = mx.gated(gate, up, { activation = "silu" })
            mx.backward(mx.sum(y * dy))
            return y, gate:grad(), up:grad()
        end
    end
    for _, op in ipairs({ "gated", "gated_grad" }) do
        list[#list + 1] = {
            kernel = op, shape = sizes(rows_of(width), width), dtype = "bf16", unit = "B/s",
            ops = { [op] = true, [op .. "_"] = true }, make = make,
        }
    end
end

local function add_stream(list, kernel, dtype, make)
    local n = stream_bytes // 4
    list[#list + 1] = {
        kernel = kernel, shape = sizes(n), dtype = dtype, unit = "B/s", ops = { [kernel:match("^%S+")] = true },
        make = function(check) return make(check and 1003 or n) end,
    }
end

local function add_streams(list)
    add_stream(list, "cast", "f32>bf16", function(n)
        local x = randn(1, { n }, "f32")
        return function() return mx.cast(x, { dtype = "bf16" }) end
    end)
    add_stream(list, "cast", "bf16>f32", function(n)
        local x = randn(1, { n })
        return function() return mx.cast(x, { dtype = "f32" }) end
    end)
    add_stream(list, "add", "bf16", function(n)
        local a, b = randn(1, { n }), randn(2, { n })
        return function() return a + b end
    end)
    add_stream(list, "adamw", "f32", function(n)
        local p, g = randn(1, { n }, "f32"), randn(2, { n }, "f32")
        local m, v = mx.zeros({ n }), mx.zeros({ n })
        return function() return mx.adamw(p, g, m, v, { lr = 1e-3, weight_decay = 0.1, step = 1 }), m, v end
    end)
    add_stream(list, "sum_squares", "f32", function(n)
        local g = randn(2, { n }, "f32")
        return function() return mx.sum_squares(g) end
    end)
end

-- Functions of one, two and three streams, and losses.
local function add_pointwise(list)
    local function add(op, dtype, run, a_dtype, b_dtype)
        add_stream(list, op, dtype, function(n)
            local function values(seed, of)
                local t = mx.rand { shape = { n }, low = 0.1, high = 3, seed = seed }
                return (of == "i32" or of == "i64") and (t * 1000):to(of) or t:to(of)
            end
            local a, b = values(1, a_dtype or dtype), values(2, b_dtype or dtype)
            return function() return run(a, b) end
        end)
    end
    local unary = "exp log log1p expm1 erf tanh softplus elu leaky_relu rsqrt sin cos floor ceil round sign isfinite"
    for op in unary:gmatch "%S+" do
        add(op, "f32", function(x) return mx[op](x) end)
        add(op, "bf16", function(x) return mx[op](x) end)
    end
    add("clamp", "f32", function(x) return mx.clamp(x, { min = 0.5, max = 2 }) end)
    add("power", "f32", mx.power)
    add("power", "bf16", mx.power)
    add("lerp", "f32", function(a, b) return mx.lerp(a, b, { weight = 0.3 }) end)
    for _, dtype in ipairs { "f32", "bf16" } do
        add("mul", "u8x" .. dtype, mx.mul, "u8", dtype)
        add("isnan", dtype, mx.isnan)
        add("ne", dtype, mx.ne)
        add("masked_fill", dtype, function(mask, x) return mx.masked_fill(x, mask, { value = 0 }) end, "u8", dtype)
        add("maximum", dtype, mx.maximum)
        add("div", dtype, mx.div)
    end
    add("add_", "f32", function(c, x) return mx.add_(c, x, { alpha = -1e-3 }) end)
    for _, dtype in ipairs { "i32", "i64" } do
        for _, op in ipairs { "add", "mul", "bitwise_and", "bitwise_or", "bitwise_xor" } do
            add(op, dtype, mx[op])
        end
        add("shift_right", dtype, function(x) return x >> 3 end)
    end
    for _, op in ipairs { "mse_loss", "l1_loss", "huber_loss", "bce_with_logits", "kl_div" } do
        add(op, "f32", function(x, target) return mx[op](x, target) end)
        add(op, "bf16", function(x, target) return mx[op](x, target) end)
    end
    for _, dtype in ipairs { "f32", "bf16" } do
        local rows = stream_bytes // (dtype == "f32" and 4 or 2) // 32000
        list[#list + 1] = {
            kernel = "softmax_cross_entropy", shape = sizes(rows, 32000), dtype = dtype, unit = "B/s",
            ops = { softmax_cross_entropy = true },
            make = function(check)
                local m, n = check and 5 or rows, check and 101 or 32000
                local x = randn(1, { m, n }, dtype)
                local targets = mx.rand({ shape = { m }, high = n, seed = 5 }):to("i32")
                return function() return mx.softmax_cross_entropy(x, targets) end
            end,
        }
    end
end

local function add_vocabulary(list, T, E, V)
    local function ids_below(limit, n)
        return mx.rand { shape = { n }, high = limit, seed = 5 }:to("i32")
    end
    list[#list + 1] = {
        kernel = "embedding", shape = sizes(rows_of(E), E), dtype = "f32>bf16", unit = "B/s",
        ops = { embedding = true },
        make = function(check)
            local rows = randn(1, { check and 97 or V, E }, "f32")
            local ids = ids_below(check and 97 or V, rows_of(E, check))
            return function() return mx.embedding(rows, ids, { dtype = "bf16" }) end
        end,
    }
    list[#list + 1] = {
        kernel = "cross_entropy", shape = sizes(T, E, V), dtype = "bf16", unit = "FLOP/s",
        ops = { cross_entropy = true },
        make = function(check)
            local n, vocab = check and 19 or T, check and 97 or V
            local h = randn(1, { n, E }):requires_grad()
            local w = randn(2, { vocab, E }, "bf16", E ^ -0.5):requires_grad()
            local targets = ids_below(vocab, n)
            return function()
                h:zero_grad()
                w:zero_grad()
                local loss = mx.cross_entropy(h, w, targets)
                mx.backward(loss)
                return loss, h:grad(), w:grad()
            end
        end,
    }
end

-- Adds norms and activations, once per width.
local function add_elementwise(list, emb, block)
    local norm, eps = block.norm.kind, { eps = block.norm.eps }
    local attention, mlp = block.attention, block.mlp
    add_rows(list, norm, emb, function(width)
        local weight, bias = randn(7, { width }, "f32"), block.norm.bias and randn(8, { width }, "f32") or nil
        if norm == "layernorm" then
            return function(x) return mx.layernorm(x, weight, bias, eps) end
        end
        return function(x) return mx.rmsnorm(x, weight, eps) end
    end, norm .. "_grad")
    if mlp.gated then
        add_gated(list, mlp.width)
    else
        add_rows(list, mlp.activation, mlp.width, function() return mx[mlp.activation] end)
    end
    if attention.rope then
        local heads, D = attention.heads, attention.head_dim
        add_rows(list, "rope", heads * D, function()
            return function(x) return mx.rope(x:view(1, x:size(1), heads, D)) end
        end)
    end
end

-- Adds the kernels of a layer of this kind with 1 / `parts` of its heads and MLP.
local function add_block(list, E, block, parts, T)
    local attention, D, M = block.attention, block.attention.head_dim, block.mlp.width // parts
    local H, K = attention.heads // parts, attention.kv_heads // parts
    add_matmul(list, T, E, H * D, "bf16")
    if K ~= H then
        add_matmul(list, T, E, K * D, "bf16")
    end
    add_matmul(list, T, H * D, E, "bf16")
    add_matmul(list, T, E, M, "bf16")
    add_matmul(list, T, M, E, "bf16")
    add_attention(list, math.min(T, 2048), H, K, D, attention.value_dim, attention.causal)
    add_elementwise(list, E, block)
end

local function add_model(list, name, T)
    local shape = mx.models.shape(mx.config.load({ "model_name=" .. name }))
    local parts = mx.repro.published("v5e").params[name] and mx.bench.job(name).tensor or 1
    if mx.models.any(shape, function(block) return block.attention.kind == "mla" end) then
        util.refuse("model=%s: the products of latent attention are not listed here; scripts/roofline.lua lists the "
            .. "operations of its step", name)
    end
    for _, kind in ipairs(mx.models.kinds(shape)) do
        add_block(list, shape.emb, kind.block, parts, T)
    end
    add_vocabulary(list, T, shape.emb, shape.vocab // parts)
end

-- All cases; those that occur twice are listed once.
local function all_cases(o)
    local list = {}
    add_matmul(list, 2048, 2048, 2048, "bf16")
    add_matmul(list, 2048, 2048, 2048, "f32")
    add_codes(list, 2048, 2048, 2048, "i8")
    add_codes(list, 2048, 2048, 2048, "e4m3")
    add_model(list, o.model, o.tokens)
    add_attention(list, 2048, 16, 16, 192, 128, true) -- of DeepSeek-V2-Lite
    add_rows(list, "softmax", 4096, function() return mx.softmax end)
    add_streams(list)
    add_convolutions(list)
    windows.add(list, stream_bytes)
    moves.add(list, stream_bytes)
    reductions.add(list, stream_bytes)
    add_pointwise(list)
    local seen, kept = {}, {}
    for _, case in ipairs(list) do
        local key = case.kernel .. " " .. case.shape .. " " .. case.dtype
        if not seen[key] and case.kernel:find(o.only, 1, true) then
            kept[#kept + 1] = case
        end
        seen[key] = true
    end
    return kept
end

-- ---- measuring ----

-- Largest difference of two results relative to the largest value, over all results of a case.
local function residual(fast, plain)
    local worst = 0.0
    for i, expected in ipairs(plain) do
        local a, b = mx.cast(fast[i], { dtype = "f32" }), mx.cast(expected, { dtype = "f32" })
        local scale = mx.max(mx.abs(b)):item()
        worst = math.max(worst, mx.max(mx.abs(a - b)):item() / math.max(scale, 1e-30))
    end
    return worst
end

local function check(case)
    return mx.scope(function()
        local isa = mx.isa()
        local fast = { case.make("fast")() }
        mx.isa("portable")
        local done, plain = pcall(function() return { case.make("plain")() } end)
        mx.isa(isa)
        if not done then
            error(plain, 0)
        end
        return residual(fast, plain)
    end)
end

-- Seconds, FLOPs and bytes of one call, as the profiler reports them.
local function profiled(case, run)
    local step <close> = mx.step()
    mx.profile(true)
    run()
    mx.profile(false)
    local seconds, flops, bytes = 0, 0, 0
    for _, row in ipairs(mx.profile_report()) do
        if case.ops[row.op] then
            seconds, flops, bytes = seconds + row.seconds, flops + row.flops, bytes + row.bytes
        end
    end
    return seconds, flops, bytes
end

-- Least seconds of a call, and its work in the case's unit.
local function measure(case)
    local step <close> = mx.step()
    local run = case.make(false)
    local times, total = {}, 0
    local _, flops, bytes = profiled(case, run) -- the first call is not timed: it gets fresh memory
    repeat
        times[#times + 1] = profiled(case, run)
        total = total + times[#times]
    until total >= SECONDS and #times >= 3 or total >= 4 * SECONDS or #times >= 200
    return math.min(table.unpack(times)), case.unit == "FLOP/s" and flops or bytes
end

local function peak_for(case, threads, cache)
    local kind, dtype = "copy", nil
    if case.unit == "FLOP/s" then
        kind, dtype = "fma", case.peak or case.dtype
    end
    local key = kind .. (dtype or "")
    cache[key] = cache[key] or mx.peak { kind = kind, dtype = dtype, threads = threads }
    return cache[key]
end

local function report(case, threads, peak, log)
    io.write(("%-14s %-23s %-9s %2d "):format(case.kernel, case.shape, case.dtype, threads))
    io.flush() -- show the name of the case before the wait
    local seconds, work = measure(case)
    local row = {
        kernel = case.kernel, shape = case.shape, dtype = case.dtype, threads = threads, rate = work / seconds,
        unit = case.unit, peak = peak.value, percent = 100 * work / seconds / peak.value, residual = check(case),
    }
    io.write(("%9.2f G%-6s %6.1f  %.1e\n"):format(row.rate / 1e9, row.unit, row.percent, row.residual))
    if log then
        log:row(row)
    end
    mx.trim()
end

--- Prints the table. Only for one rank.
---@param words string[] only (part of a kernel's name), model (one of configs/models), tokens, mib, metrics_file
function kernels.run(words)
    local o = mx.config.options(words, { only = "", model = "llama2-7b", tokens = 2048, mib = 64, metrics_file = "" })
    if o.tokens > MOST_TOKENS then
        util.refuse("tokens=%d: expected at most %d rows of the matrix products", o.tokens, MOST_TOKENS)
    end
    if o.mib < 1 or o.mib > MOST_MIB then
        util.refuse("mib=%d: expected 1 to %d MiB for each tensor", o.mib, MOST_MIB)
    end
    stream_bytes = o.mib << 20
    if mx.ranks() > 1 then
        util.refuse("kernels.lua measures one rank; start it without mpirun")
    end
    local cases, all = all_cases(o), mx.threads()
    local groups, layers = ("grouped"):find(o.only, 1, true), ("moe"):find(o.only, 1, true)
    local masked, ratios = ("attention masks"):find(o.only, 1, true), o.only == "bounds"
    if #cases == 0 and not (groups or layers or masked or ratios) then
        util.refuse("no kernel's name contains only=%s for model=%s", o.only, o.model)
    end
    local log = o.metrics_file ~= "" and mx.outputs.metrics(o.metrics_file) or nil
    local info = mx.info()
    print(("%s, %s, %d core%s; OpenBLAS %s"):format(info.processor, info.isa, info.cores,
        info.cores == 1 and "" or "s", info.blas_core))
    print("Residuals are against the portable path, on a cut-down size of the same kernel.")
    for _, threads in ipairs(all > 1 and { 1, all } or { 1 }) do
        mx.threads(threads)
        local cache = {}
        if #cases > 0 then
            print(("\n%-14s %-23s %-9s %2s %9s %-7s %6s  %s"):format("kernel", "shape", "dtype", "t", "rate", "",
                "% peak", "residual"))
        end
        for _, case in ipairs(cases) do
            report(case, threads, peak_for(case, threads, cache), log)
        end
        for _, key in ipairs(util.sorted_keys(cache)) do
            local peak = cache[key]
            print(("peak %s: %.2f G%s,\n    %s"):format(key, peak.value / 1e9, peak.unit, peak.source))
        end
        if groups then
            grouped.run(log)
        end
        if layers then
            experts.run(log)
        end
        if masked then
            masks.run(log)
        end
        if ratios then
            bounds.run(profiled, log)
        end
    end
    mx.threads(all)
    if log then
        log:close()
    end
end

return kernels
