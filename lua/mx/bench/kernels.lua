--- Measures every kernel with the shapes of a model, and compares it with the machine's peaks in the same
--- run.
--
-- Work and bytes are the operation's cost, as the profiler reports it; seconds are those of the fastest of several
-- calls, as for the peaks. Matrix products and attention are compared with the multiply-add peak, all other kernels
-- with the copy bandwidth. The residual is the largest difference from the portable path, relative to the largest
-- value, on a smaller size of the same kernel.

local mx = require "mx"
local bounds = require "mx.bench.bounds"
local draws = require "mx.bench.draws"
local experts = require "mx.bench.experts"
local grouped = require "mx.bench.grouped"
local masks = require "mx.bench.masks"
local moves = require "mx.bench.moves"
local norms = require "mx.bench.norms"
local pointwise = require "mx.bench.pointwise"
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

-- The product a b with the transpositions in `o`. OpenBLAS computes the portable path's f32 products, so the plain form
-- of f32 is a sum of products.
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

local function add_convolutions(list)
    for _, dtype in ipairs { "bf16", "f32" } do
        for _, layer in ipairs(bounds.LAYERS) do
            local k, c, o, size, stride = table.unpack(layer)
            local function make(check)
                local n = check and 1 or 16
                local x = randn(1, { n, check and 8 or c, size, size }, dtype):requires_grad()
                local w = randn(2, { check and 16 or o, check and 8 or c, k, k }, dtype):requires_grad()
                return function()
                    x:zero_grad()
                    w:zero_grad()
                    local y = mx.conv2d(x, w, { padding = k // 2, stride = stride })
                    mx.backward(mx.sum(y))
                    return y, x:grad(), w:grad()
                end
            end
            for _, op in ipairs { "conv2d", "conv2d_grad", "conv2d_grad_w" } do
                list[#list + 1] = {
                    kernel = op, shape = ("%dx%d, %d>%d, %d/%d"):format(k, k, c, o, size, stride), dtype = dtype,
                    unit = "FLOP/s", ops = { [op] = true },
                    make = make,
                }
            end
        end
    end
end

-- Products of many matrices: with batch dimensions that are broadcast, and by names of dimensions.
local function add_batched(list)
    local function add(kernel, shape, dtype, a_shape, b_shape, call)
        list[#list + 1] = {
            kernel = kernel, shape = shape, dtype = dtype, unit = "FLOP/s",
            ops = { matmul = true, permute = true, transpose = true },
            make = function(check)
                local function few(of)
                    return check and { math.min(of[1], 2), math.min(of[2], 2), 33, of[4] } or of
                end
                local a, b = randn(1, few(a_shape), dtype), randn(2, few(b_shape), dtype)
                return function() return call(a, b) end
            end,
        }
    end
    for _, dtype in ipairs { "bf16", "f32" } do
        add("bmm", "8x1 by 1x4, 256x256x256", dtype, { 8, 1, 256, 256 }, { 1, 4, 256, 256 }, function(a, b)
            return mx.matmul(a, b, { trans_b = true })
        end)
        add("einsum", "bhqd,bhkd->bhqk", dtype, { 4, 8, 512, 64 }, { 4, 8, 512, 64 }, function(a, b)
            return mx.einsum("bhqd,bhkd->bhqk", a, b)
        end)
        add("einsum", "bqhd,bkhd->bhqk", dtype, { 4, 512, 8, 64 }, { 4, 512, 8, 64 }, function(a, b)
            return mx.einsum("bqhd,bkhd->bhqk", a, b)
        end)
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
    add_convolutions(list)
    add_batched(list)
    windows.add(list, stream_bytes)
    moves.add(list, stream_bytes)
    reductions.add(list, stream_bytes)
    norms.add(list, stream_bytes)
    draws.add(list, stream_bytes)
    pointwise.add(list, stream_bytes)
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

-- A function that measures once the rate with which a case is compared.
local function yardstick(case)
    if case.unit == "FLOP/s" then
        local dtype = case.peak or case.dtype
        return function()
            return mx.peak { kind = "fma", dtype = dtype, threads = mx.threads(), seconds = 0.02 }.value
        end
    end
    -- Not zeros: Zen 5 copies memory of zeros at 1.15 times the rate of numbers.
    local from, to = mx.full({ stream_bytes // 4 }, 1.5), mx.full({ stream_bytes // 4 }, 2.5)
    return function()
        local seconds, _, bytes = profiled({ ops = { copy = true } }, function() mx.copy(to, from) end)
        return bytes / seconds
    end
end

-- The best rate of a case and of its yardstick, which are measured in turn.
local function measure(case)
    local step <close> = mx.step()
    local run, compare = case.make(false), yardstick(case)
    local rate, peak, total, rounds = 0, 0, 0, 0
    profiled(case, run) -- the first call is not timed: it gets fresh memory
    compare()
    repeat
        peak = math.max(peak, compare())
        local seconds, flops, bytes = profiled(case, run)
        rate = math.max(rate, (case.unit == "FLOP/s" and flops or bytes) / seconds)
        total, rounds = total + seconds, rounds + 1
    until total >= SECONDS and rounds >= 3 or total >= 4 * SECONDS or rounds >= 100
    return assert(step) and rate, peak
end

local function report(case, threads, log)
    io.write(("%-14s %-23s %-9s %2d "):format(case.kernel, case.shape, case.dtype, threads))
    io.flush() -- show the name of the case before the wait
    local rate, peak = measure(case)
    local row = {
        kernel = case.kernel, shape = case.shape, dtype = case.dtype, threads = threads, clock = mx.clock(),
        rate = rate, unit = case.unit, peak = peak, percent = 100 * rate / peak, residual = check(case),
    }
    io.write(("%9.2f G%-6s %9.2f %6.1f  %.1e\n"):format(rate / 1e9, row.unit, peak / 1e9, row.percent, row.residual))
    if log then
        log:row(row)
    end
    mx.trim()
end

local function print_head()
    local info = mx.info()
    print(("%s, %s, %d core%s; OpenBLAS %s"):format(info.processor, info.isa, info.cores,
        info.cores == 1 and "" or "s", info.blas_core))
    print(("Peaks are measured in turn with each kernel, %s: copying %d MiB; or the instruction of products, in bf16\n"
        .. "%s. Residuals are against the portable path, on a cut-down size of the same kernel."):format(
        mx.clock() == "wall" and "by the clock" or "in processor time", stream_bytes >> 20,
        mx.peak { kind = "fma", seconds = 0.01, threads = 1 }.source:match ": (.-), %d+ thread"))
end

local function check_options(o)
    if o.tokens > MOST_TOKENS then
        util.refuse("tokens=%d: expected at most %d rows of the matrix products", o.tokens, MOST_TOKENS)
    end
    if o.mib < 1 or o.mib > MOST_MIB then
        util.refuse("mib=%d: expected 1 to %d MiB for each tensor", o.mib, MOST_MIB)
    end
    if o.clock ~= "wall" and o.clock ~= "processor" then
        util.refuse("clock=%s: expected wall or processor", o.clock)
    end
    if o.clock == "processor" and mx.threads() > 1 then
        util.refuse("clock=processor: the time of one thread is counted, and %d are in use; start mxlua with "
            .. "--threads 1", mx.threads())
    end
    if mx.ranks() > 1 then
        util.refuse("kernels.lua measures one rank; start it without mpirun")
    end
end

local function print_cases(cases, threads, log)
    print(("\n%-14s %-23s %-9s %2s %9s %-7s %9s %6s  %s"):format("kernel", "shape", "dtype", "t", "rate", "", "peak",
        "% peak", "residual"))
    for _, case in ipairs(cases) do
        report(case, threads, log)
    end
end

--- Prints the table. Only for one rank.
---@param words string[] only (part of a kernel's name), model (one of configs/models), tokens, mib, clock,
--- metrics_file
function kernels.run(words)
    local o = mx.config.options(words, {
        only = "", model = "llama2-7b", tokens = 2048, mib = 64, clock = "wall", metrics_file = "",
    })
    check_options(o)
    stream_bytes = o.mib << 20
    local cases, all = all_cases(o), mx.threads()
    local groups, layers = ("grouped"):find(o.only, 1, true), ("moe"):find(o.only, 1, true)
    local masked, ratios = ("attention masks"):find(o.only, 1, true), o.only == "bounds"
    local convolved = o.only == "convolutions"
    if #cases == 0 and not (groups or layers or masked or ratios or convolved) then
        util.refuse("no kernel's name contains only=%s for model=%s", o.only, o.model)
    end
    local log = o.metrics_file ~= "" and mx.outputs.metrics(o.metrics_file) or nil
    mx.clock(o.clock)
    local _ <close> = setmetatable({}, { __close = function() mx.clock "wall" end })
    print_head()
    for _, threads in ipairs(all > 1 and { 1, all } or { 1 }) do
        mx.threads(threads)
        if #cases > 0 then
            print_cases(cases, threads, log)
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
        if convolved then
            bounds.convolutions(profiled, log)
        end
    end
    mx.threads(all)
    if log then
        log:close()
    end
end

return kernels
