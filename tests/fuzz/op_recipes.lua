--- Inputs that fit each other, and options to go with them, for operations whose inputs are not all of one shape. For
--- fuzz_ops.lua: a recipe is fn(operation) -> inputs as random.build wants them, and options or nil.

local mx = require "mx"
local random = require "random_tensors"

local pick, chance, like = random.pick, random.chance, random.like

local function without_last(shape)
    return table.move(shape, 1, #shape - 1, 1, {})
end

local function float()
    return pick { "f32", "f32", "bf16" }
end

local function attention(op)
    local heads_kv, group, dim = pick { 1, 2 }, pick { 1, 1, 2, 3 }, 2 * pick { 1, 3, 4, 8, 16, 17 }
    local batch, queries, keys = pick { 1, 2 }, pick { 1, 2, 17, 40, 70 }, pick { 0, 1, 2, 17, 40, 70 }
    local dtype, value_dim = float(), chance(2) and dim or pick { 1, 5, 16, 33 }
    keys = op == "ring_attention" and queries or keys
    local q, k = { batch, queries, heads_kv * group, dim }, { batch, keys, heads_kv, dim }
    local v, out = { batch, keys, heads_kv, value_dim }, { batch, queries, q[3], value_dim }
    local lse = { batch, heads_kv * group, queries }
    if op == "attention_sinks_grad" then
        return { like({ q[3] }, "f32"), like(out, dtype), like(lse, "f32", "large"), like(out, dtype) }
    elseif op == "attention_merge_" then
        return { like(out, "f32"), like(lse, "f32"), like(out, dtype), like(lse, "f32") }
    elseif op == "ring_attention" then
        return { like(q, dtype), like(k, dtype), like(v, dtype), nil, chance(3) and like({ q[3] }, "f32") or nil }
    end
    if op == "attention_intervals" then -- any ids are in order when there is one key
        return { like({ batch, queries }, "i32", "ids"), like({ batch, pick { 1, 1, keys } }, "i32", "ids") }
    end
    local inputs = { like(q, dtype), like(k, dtype), like(v, dtype) }
    if op == "attention_grad" then
        table.move({ like(out, dtype), like(lse, "f32", "large"), like(out, dtype) }, 1, 3, 4, inputs)
    end
    local n = #inputs
    if chance(3) then
        inputs[n + 1] = like({ batch, queries, 2 }, "i32", "ids")
    end
    if chance(3) then
        local bias = { pick { 1, batch }, pick { 1, heads_kv * group }, pick { 1, queries }, keys }
        inputs[n + 2] = chance(3) and like(bias, "u8", "mask") or like(bias, float())
    end
    if chance(5) then
        inputs[n + 3] = like({ heads_kv * group }, "f32", "positive")
        inputs[n + 3].wants_grad = false
    end
    if op == "attention" and chance(3) then
        inputs[n + 4] = like({ q[3] }, "f32")
    end
    return inputs
end

local function norm(op)
    local shape = random.shape(math.random(3))
    shape[#shape] = pick { 3, 16, 17, 33, 64, 257 } -- a row of one element has no variance to compare
    local n, dtype = { shape[#shape] }, float()
    local row = without_last(shape)
    local x, weight = like(shape, dtype), like(n, float())
    if op == "layernorm_grad" then
        return { x, like(shape, dtype), like(row, "f32"), like(row, "f32", "positive"), weight }
    elseif op == "rmsnorm_grad" then
        return { x, like(shape, dtype), like(row, "f32", "positive"), chance(2) and weight or nil }
    end
    return { x, weight, op == "layernorm" and chance(2) and like(n, float()) or nil }
end

local function channel_norm(op)
    local groups, dtype = op:find "group" and pick { 1, 2, 3 } or nil, float()
    local shape = { pick { 2, 3, 70 }, (groups or 1) * pick { 1, 2, 5 }, pick { 8, 17, 40 }, pick { 1, 3 } }
    local channels, sets = { shape[2] }, groups and { shape[1], groups } or { shape[2] }
    local x, with, fixed = like(shape, dtype), { groups = groups, eps = pick { 1e-5, 1e-2 } }, chance(3)
    local function some(size, its)
        return chance(2) and like(size, its or float()) or nil
    end
    if not op:find "grad" then
        local statistics = not groups and fixed
        return { x, some(channels), some(channels), statistics and like(channels, float()) or nil,
            statistics and like(channels, float(), "positive") or nil }, with
    end
    local inputs = { x, like(shape, dtype), like(sets, "f32"), like(sets, "f32", "positive"), some(channels) }
    if not groups then
        inputs[6], inputs[7], with.fixed = some(sets, "f32"), some(sets, "f32"), fixed
    end
    return inputs, with
end

-- The steps of a norm whose rows are split over ranks.
local function split_norm(op)
    local shape = random.shape(math.random(3))
    shape[#shape] = pick { 3, 16, 17, 33, 64 }
    local row, dtype, has_mean = without_last(shape), float(), chance(2)
    local function per_row(kind)
        return like(row, "f32", kind)
    end
    local x, weight, mean = like(shape, dtype), like({ shape[#shape] }, float()), has_mean and per_row() or nil
    if op == "norm_sums" then
        return { x, mean }
    elseif op == "norm_part" then
        return { x, per_row "positive", weight, chance(2) and like({ shape[#shape] }, float()) or nil, mean }
    elseif op == "norm_grad_sums" then
        return { x, like(shape, dtype), weight, mean }
    elseif op == "norm_grad_part" then
        local rows = 1
        for _, size in ipairs(row) do
            rows = rows * size
        end
        local sums = like({ has_mean and 2 or 1, rows }, "f32")
        return { x, like(shape, dtype), weight, per_row "positive", sums, mean }, { features = 2 * shape[#shape] }
    end
    return { x, weight, has_mean and like({ shape[#shape] }, float()) or nil }, { center = has_mean }
end

local function product(op)
    local m, n, k = random.size(), random.size(), random.size()
    local trans_a, trans_b = chance(2), chance(2)
    local function matrix(rows, columns, trans, ...)
        local shape = trans and { columns, rows } or { rows, columns }
        for _, size in ipairs { ... } do
            table.insert(shape, 1, size)
        end
        return shape
    end
    local dtype = float()
    local with = { trans_a = trans_a, trans_b = trans_b }
    if op == "matmul_acc" then
        local a, b = like(matrix(m, k, trans_a), dtype), like(matrix(k, n, trans_b), float())
        return { like({ m, n }, float()), a, b }, with
    end
    local batch = pick { {}, {}, { pick { 0, 1, 3 } }, { 2, 2 } }
    local a = matrix(m, k, trans_a, table.unpack(batch))
    local b = chance(2) and matrix(k, n, trans_b, table.unpack(batch)) or matrix(k, n, trans_b)
    with.dtype = chance(3) and float() or nil
    if chance(5) then -- vectors, and leading dimensions that are broadcast
        with.trans_a, with.trans_b = nil, nil
        a = pick { { k }, { m, k }, { 2, 1, m, k }, { 1, m, k } }
        b = pick { { k }, { k, n }, { 3, k, n }, { 2, 3, k, n } }
        return { like(a, dtype), like(b, dtype) }, with
    end
    return { like(a, dtype), like(b, chance(4) and float() or dtype), chance(3) and like({ n }, float()) or nil }, with
end

local function table_rows(op)
    local shape, vocab = random.shape(math.random(2)), pick { 20, 33 }
    local width = pick { 1, 3, 16, 17, 64 }
    local ids, wide = like(shape, "i32", "ids"), { table.unpack(shape) }
    wide[#wide + 1] = width
    if op == "embedding" then
        return { like({ vocab, width }, float()), ids }
    elseif op == "embedding_acc" then
        return { like({ vocab, width }, "f32"), ids, like(wide, float()) }
    elseif op == "embedding_grad" then
        return { ids, like(wide, float()) }, { vocab = vocab }
    end
    local trans = chance(2)
    local weight = like(trans and { vocab, width } or { width, vocab }, float())
    local mask = (op == "cross_entropy_part_" or chance(3)) and like(shape, "u8", "mask") or nil
    local inputs, with = { like(wide, float()), weight, ids, mask }, { trans = trans }
    if op ~= "cross_entropy" then -- one part, which is the whole vocabulary
        with.vocab, with.first_id, with.first, with.rows = vocab, 0, 0, 1
        for _, size in ipairs(shape) do
            with.rows = with.rows * size
        end
    end
    if op == "split_cross_entropy" then
        with.first_id, with.first, with.rows = nil, nil, nil
    elseif op == "cross_entropy_part_" then
        local stride = (vocab + 15) // 16 * 16
        table.move({
            like({ with.rows, stride }, "f32"), like({ pick { 1, 1, 3 }, with.rows, 3 }, "f32", "positive"),
            like(shape, "f32"), like({}, "f32"), like(wide, inputs[1].dtype), like(weight.shape, "f32"),
        }, 1, 6, 5, inputs)
    end
    return inputs, with
end

local function along_dim(op)
    local shape = random.shape(math.random(3))
    local dim = math.random(#shape)
    local part = { table.unpack(shape) }
    part[dim] = math.random(0, shape[dim])
    local start = 1 + math.random(0, shape[dim] - part[dim])
    local dtype = op:find("grad") and "f32" or pick(random.DTYPES)
    local at = { dim = dim, start = start }
    if op == "narrow" then
        at.length = part[dim]
        return { like(shape, dtype) }, at
    elseif op == "narrow_grad" then
        at.size = shape[dim]
        return { like(part, dtype) }, at
    elseif op:find("gather") or op:find("scatter") then
        part[dim] = pick { 0, 1, 5 }
        shape[dim] = pick { 20, 33 }
        local index = like(part, "i32", "places")
        if op == "gather" then
            return { like(shape, float()), index }, { dim = dim }
        elseif op == "scatter_grad" then
            return { index, like(shape, float()) }, { dim = dim }
        elseif op == "scatter_reduce" then
            local reduce = pick { "max", "min", "mean" }
            local of = reduce == "mean" and pick { "f32", "bf16", "f64" }
                or pick { "f32", "bf16", "f64", "i32", "i64", "u8", "i8" }
            return { like(shape, of), index, like(part, of) },
                { dim = dim, reduce = reduce, include_self = chance(2) }
        elseif op ~= "gather_grad" then
            local of = op == "scatter" and pick(random.DTYPES) or pick { "f32", "bf16", "i32", "u8" }
            return { like(shape, of), index, like(part, of) }, { dim = dim }
        end
        return { index, like(part, float()) }, { dim = dim, shape = shape }
    end
    return { like(shape, dtype), like(part, dtype) }, at
end

local function reduced(op)
    local shape = random.shape(math.random(3))
    local dim, keepdim = chance(2) and math.random(#shape) or nil, chance(2)
    local less = dim and { table.unpack(shape) } or {}
    if dim and keepdim then
        less[dim] = 1
    elseif dim then
        table.remove(less, dim)
    end
    local dtype = float()
    if op == "max_grad" or op == "norm_grad" then
        keepdim = keepdim and dim ~= nil
        return { like(shape, dtype), like(less, dtype), like(less, dtype) }, { dim = dim, keepdim = keepdim }
    elseif op == "var_grad" then
        local std = chance(2) and like(less, dtype, "positive") or nil
        return { like(shape, dtype), like(less, dtype), std }, { dim = dim }
    elseif op == "logsumexp_grad" then
        return { like(shape, dtype), like(less, dtype) }, { dim = dim }
    end
    return { like(less, dtype) }, { dim = dim, shape = shape }
end

local function optimizer(op)
    local shape, dtype = random.shape(math.random(2)), float()
    local state = like(shape, "f32", "positive")
    if op == "adamw" then
        local copy = dtype == "f32" and chance(2) and like(shape, "bf16") or nil
        return { like(shape, dtype), like(shape, float()), like(shape, "f32"), state, copy }
    end
    return { like(shape, dtype), like(shape, float()), (op == "lion" or chance(2)) and state or nil }
end

local function same_shape(op)
    local inputs, shape = {}, random.shape(math.random(0, 3))
    local dtype = (op:find("grad") or op:find("acc") or chance(2)) and float() or pick(random.DTYPES)
    for i, name in ipairs(mx.op_info(op).inputs) do
        for _ = 1, name:find("...", 1, true) and math.random(3) or 1 do
            inputs[#inputs + 1] = like(shape, i > 1 and chance(8) and pick(random.DTYPES) or dtype)
        end
    end
    return inputs, nil
end

local function rotary()
    local shape = { pick { 1, 2 }, pick { 1, 5, 33 }, pick { 1, 3 }, 2 * pick { 1, 4, 8, 17, 32 } }
    local positions = chance(2) and like({ shape[2] }, "i32", "ids") or like({ shape[1], shape[2] }, "i32", "ids")
    local inputs = { like(shape, float()), chance(2) and positions or nil }
    if chance(3) then
        inputs[3] = like({ 2, shape[4] // 2 }, "f32")
        inputs[3].wants_grad = false
        return inputs, { theta = 10000, dims = -1 }
    end
    return inputs
end

local function choose()
    local shape = random.shape(math.random(0, 3))
    local dtype = float()
    return { like(shape, "u8", "mask"), like(shape, dtype), like(shape, dtype) }
end

-- Routing, and rows on their way to experts. 17 experts; order and place are of at least 17 slots and rows.
local function experts(op)
    local tokens, top, n = pick { 17, 40 }, pick { 1, 2, 4 }, pick { 17, 33 }
    local rows, width = pick { 17, 60 }, random.size()
    local dtype = float()
    local chosen, order = like({ tokens, top }, "i32", "ids"), like({ rows }, "i32", "ids")
    local weights, y = like({ tokens, top }, "f32"), like({ rows, width }, dtype)
    if op == "moe_route" then
        local groups = n == 33 and pick { 1, 3, 11 } or 1
        return { like({ tokens, n }, dtype), chance(3) and like({ n }, "f32") or nil },
            { top = top, scale = pick { 1, 2.5 }, groups = groups, top_groups = math.min(groups, pick { 1, 2 }) }
    elseif op == "moe_route_grad" then
        return { like({ tokens, n }, dtype), weights, chosen, like({ tokens, top }, "f32") },
            { top = top, scale = 2, groups = 1, top_groups = 1 }
    elseif op == "moe_sort" then
        return { chosen }, { experts = 17, count = pick { -1, -1, 3 }, capacity = pick { 0, 0, 3 }, sequences = 1 }
    elseif op == "moe_count" then
        return { chosen }, { experts = 17, sequences = pick { 1, tokens } }
    elseif op == "moe_gather" then
        return { like({ tokens, width }, dtype), order, chosen }
    elseif op == "moe_combine" then
        return { y, order, chosen, chance(2) and weights or nil }
    end
    return { y, order, chosen, weights, like({ tokens, width }, dtype) }
end

local function grouped(op)
    local rows, k, n, groups = pick { 51, 60 }, random.size(), random.size(), pick { 1, 3 }
    local a, b, counts = like({ rows, k }, float()), like({ rows, n }, float()), like({ groups }, "i32", "ids")
    if op == "grouped_matmul_acc" then
        return { like({ groups, k, n }, "f32"), a, b, counts }
    elseif op == "grouped_matmul_grad" then
        return { a, b, counts }
    elseif op == "grouped_column_sum" then
        return { b, counts }
    end
    local trans = chance(2)
    local w, bias = like(trans and { groups, n, k } or { groups, k, n }, float()), like({ groups, n }, float())
    return { a, w, counts, chance(2) and bias or nil }, { trans_b = trans }
end

local function classes(op)
    local rows, n = random.shape(math.random(0, 2)), pick { 20, 33, 257 }
    local wide = { table.unpack(rows) }
    wide[#wide + 1] = n
    local inputs = { like(wide, float()), like(rows, "i32", "ids") }
    local weight = chance(3) and like({ n }, "f32", "positive") or nil
    if weight then
        weight.wants_grad = false
    end
    if op:find("grad") then
        table.move({ like(rows, "f32", "large"), like({}, "f64", "positive"), like(pick { {}, rows }, "f32") }, 1, 3, 3,
            inputs)
        inputs[6] = weight
    else
        inputs[3] = weight
    end
    return inputs
end

-- Integers of one dtype; counts of shifts are small.
local function bits()
    local shape, dtype = random.shape(math.random(0, 3)), pick { "i32", "u8", "i8", "i64" }
    return { like(shape, dtype), like(pick { shape, {} }, dtype, "ids") }
end

-- The whole, or a part of one.
local function random_part()
    local shape, of, start = random.shape(math.random(0, 3)), {}, {}
    for d, size in ipairs(chance(2) and shape or {}) do
        start[d] = pick { 1, 1, 2, 40, 64 }
        of[d] = start[d] - 1 + size + pick { 0, 0, 1, 70 }
    end
    return {}, { shape = shape, of = of, start = start }
end

-- A list of small numbers for each dimension.
local function numbers(n_dims, list)
    local found = {}
    for d = 1, n_dims do
        found[d] = pick(list)
    end
    return found
end

local function arranged(op)
    local shape = random.shape(math.random(op:find("^tri") and 2 or 0, 3))
    local dtype = chance(2) and float() or pick(random.DTYPES)
    if op == "pad" then
        local sides = { before = numbers(#shape, { 0, 0, 1, 3 }), after = numbers(#shape, { 0, 0, 2, 17 }) }
        sides.mode = chance(2) and pick { "constant", "reflect", "replicate", "circular" } or nil
        if chance(4) then
            sides.before, sides.after, sides.sides = nil, nil, numbers(2 * #shape, { 0, 0, 1, 2 })
        end
        sides.value = (sides.mode or "constant") ~= "constant" and 0 or nil
        return { like(shape, dtype) }, sides
    elseif op == "tile" then
        return { like(shape, dtype) }, { times = numbers(#shape + math.random(0, 1), { 1, 1, 2, 3 }) }
    elseif op == "expand" then
        local wide = { table.unpack(shape) }
        for d = 1, #shape do
            shape[d] = chance(3) and 1 or shape[d]
        end
        return { like(shape, dtype) }, { shape = wide }
    end
    return { like(shape, dtype) }
end

local function convolution(op)
    local n, groups = op:find("1d") and 1 or 2, pick { 1, 1, 2, 3 }
    local x = { pick { 0, 1, 2 }, groups * pick { 1, 2, 5 } }
    local w = { groups * pick { 1, 3 }, x[2] // groups }
    local y = { x[1], w[1] }
    local with = { groups = groups, stride = pick { 1, 1, 2 }, dilation = pick { 1, 2 }, padding = pick { 0, 1, 3 } }
    for d = 3, 2 + n do
        w[d] = pick { 1, 2, 3 }
        x[d] = with.dilation * (w[d] - 1) + (n == 1 and chance(8) and 4200 or pick { 1, 2, 7, 17, 40 })
        y[d] = (x[d] + 2 * with.padding - with.dilation * (w[d] - 1) - 1) // with.stride + 1
    end
    local dtype = float()
    if op:find("grad_w") then
        with.size = w
        return { like(x, dtype), like(y, dtype) }, with
    elseif op:find("grad") then
        with.size = x
        return { like(w, dtype), like(y, dtype) }, with
    end
    return { like(x, dtype), like(w, float()), chance(2) and like({ w[1] }, float()) or nil }, with
end

local function pooling(op)
    local n, size = op:find("1d") and 1 or 2, pick { 1, 2, 3 }
    local x, with = { pick { 0, 1, 2 }, pick { 1, 3 } }, { size = size, stride = pick { 1, 2, 3 }, padding = size // 2 }
    local y = { x[1], x[2] }
    for d = 3, 2 + n do
        x[d] = size + pick { 0, 1, 7, 17 }
        y[d] = (x[d] + 2 * with.padding - size) // with.stride + 1
    end
    if not op:find("grad") then
        return { like(x, float()) }, with
    end
    with.shape = x
    return { like(y, float()), op:find("max") and like(y, "i32", "mask") or nil }, with
end

local function bags()
    local dtype, vocab, tokens = float(), pick { 20, 33 }, pick { 0, 1, 5, 40 }
    local vectors = like({ vocab, pick { 1, 3, 16, 17, 64 } }, dtype)
    local mode = pick { "sum", "sum", "mean", "max" }
    local ids = like(chance(2) and { pick { 0, 1, 4 }, tokens } or { tokens }, "i32", "ids")
    local weights = mode == "sum" and chance(2) and like(ids.shape, float()) or nil
    return { vectors, ids, #ids.shape == 1 and like({ 1 }, "i32", "zeros") or nil, weights }, { mode = mode }
end

local function systems(op)
    local shape, n, dtype = {}, pick { 0, 1, 2, 5, 17 }, pick { "f32", "f64" }
    for d = 1, math.random(0, 2) do
        shape[d] = pick { 0, 1, 2, 3, 7 }
    end
    local columns = table.move(shape, 1, #shape, 1, {})
    shape[#shape + 1], shape[#shape + 2] = n, n
    if op == "linalg_qr" or op == "linalg_svd" then
        shape[#shape - 1] = op == "linalg_qr" and n + pick { 0, 1, 7 } or pick { 0, 1, 3, 17 }
    end
    columns[#columns + 1], columns[#columns + 2] = n, pick { 1, 3, nil }
    local a = like(shape, dtype)
    return op:find "solve" and { a, like(columns, dtype) } or { a }, op:find "solve" and { trans = chance(2) } or nil
end

local function transforms(op)
    local shape, dtype, n = {}, pick { "f32", "f64" }, pick { 1, 2, 3, 6, 16, 45, 53, 106, 128 }
    for d = 1, math.random(0, 2) do
        shape[d] = pick { 0, 1, 3, 9 }
    end
    local with = op == "fft" and { inverse = chance(2) } or { n = chance(2) and n or nil }
    if op == "rfft" then
        with.frequencies = chance(3) and math.random(n // 2 + 1) or nil
        with.n = with.frequencies and n or with.n
    elseif op == "irfft" then
        with = { n = chance(2) and n or nil, size = chance(3) and pick { 1, 7, 60 } or nil }
    end
    shape[#shape + 1] = op == "irfft" and n // 2 + 1 or op == "rfft" and chance(3) and pick { 1, 5, 70 } or n
    local x = like(shape, dtype)
    return { x, op ~= "rfft" and chance(2) and like(shape, dtype) or nil }, with
end

local recipes = {
    fft = transforms, rfft = transforms, irfft = transforms,
    embedding_bag = bags, linalg_solve = systems, linalg_cholesky = systems, linalg_eigh = systems,
    linalg_qr = systems, linalg_svd = systems, linalg_slogdet = systems,
    max_pool1d = pooling, max_pool1d_grad = pooling, max_pool2d = pooling, max_pool2d_grad = pooling,
    avg_pool1d = pooling, avg_pool1d_grad = pooling, avg_pool2d = pooling, avg_pool2d_grad = pooling,
    conv1d = convolution, conv1d_grad = convolution, conv1d_grad_w = convolution, conv2d = convolution,
    conv2d_grad = convolution, conv2d_grad_w = convolution,
    attention = attention, attention_grad = attention, attention_merge_ = attention, attention_intervals = attention,
    ring_attention = attention, attention_sinks_grad = attention,
    norm_sums = split_norm, norm_part = split_norm, norm_grad_sums = split_norm, norm_grad_part = split_norm,
    split_norm = split_norm,
    batch_norm = channel_norm, batch_norm_grad = channel_norm, group_norm = channel_norm,
    group_norm_grad = channel_norm,
    layernorm = norm, layernorm_grad = norm, rmsnorm = norm, rmsnorm_grad = norm, matmul = product,
    matmul_acc = product, embedding = table_rows, embedding_acc = table_rows, embedding_grad = table_rows,
    cross_entropy = table_rows, split_cross_entropy = table_rows, cross_entropy_logits = table_rows,
    cross_entropy_part_ = table_rows, narrow = along_dim, narrow_grad = along_dim, narrow_grad_acc = along_dim,
    write_slice = along_dim, gather = along_dim, gather_grad = along_dim, scatter = along_dim, scatter_add = along_dim,
    scatter_reduce = along_dim,
    norm_grad = reduced, var_grad = reduced,
    logsumexp_grad = reduced, pad = arranged, tile = arranged, expand = arranged, tril = arranged, triu = arranged,
    polygamma = function()
        return { like(random.shape(math.random(0, 3)), pick { "f32", "bf16", "f64" }) }, { n = pick { 0, 1, 2, 5 } }
    end,
    attention_dropout = function()
        local sizes = { { 0, 1, 2 }, { 1, 3 }, { 1, 17 }, { 0, 1, 8, 17, 40 } }
        for d = 1, 4 do
            sizes[d] = pick(sizes[d])
        end
        return {}, { shape = sizes, dropout = pick { 0, 0.1, 0.5 } }
    end,
    bernoulli = function()
        return { like(random.shape(math.random(0, 3)), float(), "mask") }
    end,
    multinomial = function()
        local shape = random.shape(math.random(3))
        shape[#shape] = pick { 40, 41, 64 } -- as many as draws
        return { like(shape, float(), "positive") }, { n = pick { 0, 1, 3, 40 } }
    end,
    randint = function()
        return {}, { shape = random.shape(math.random(0, 3)), low = pick { 0, 3, -5 }, high = pick { 1, 20, 100 } }
    end,
    truncated_normal = function()
        return {}, { shape = random.shape(math.random(0, 3)), low = pick { -1, 0 }, high = pick { 1, 4 } }
    end,
    one_hot = function()
        return { like(random.shape(math.random(0, 3)), "i32", "ids") }
    end,
    linear_scan = function()
        local shape, dtype = random.shape(math.random(3)), pick { "f32", "bf16", "f64" }
        local dim = math.random(#shape)
        -- Long products of numbers up to 4 overflow.
        local a = like(shape, dtype == "bf16" and chance(3) and "f32" or dtype, shape[dim] > 20 and "mask" or nil)
        if chance(3) then
            a.shape[math.random(#shape)] = 1
        end
        return { chance(8) and { scalar = 0.5 } or a, like(shape, dtype) }, { dim = dim }
    end,
    linear_scan_grad = function()
        local shape, dtype = random.shape(math.random(3)), pick { "f32", "bf16", "f64" }
        local y = not chance(4) and like(shape, dtype) or nil
        return { like(shape, dtype), y }, { dim = math.random(#shape) }
    end,
    index_select = function()
        local shape = random.shape(math.random(3))
        local dim = math.random(#shape)
        shape[dim] = pick { 17, 20, 33 }
        local x = like(shape, chance(2) and float() or pick(random.DTYPES))
        -- The result has all ids for each row of x: a large x gets few, so that it fits into memory.
        local ids = random.shape(math.random(0, 2))
        if random.count(shape) * random.count(ids) > 1e8 then
            ids = { math.random(0, 9) }
        end
        return { x, like(ids, "i32", "ids") }, { dim = dim }
    end,
    moe_route = experts, moe_route_grad = experts, moe_sort = experts, moe_count = experts, moe_gather = experts,
    moe_combine = experts, moe_combine_grad = experts, grouped_matmul = grouped, grouped_matmul_grad = grouped,
    grouped_matmul_acc = grouped, grouped_column_sum = grouped,
    scatter_grad = along_dim, softmax_cross_entropy = classes, softmax_cross_entropy_grad = classes,
    bitwise_and = bits, bitwise_or = bits,
    bitwise_xor = bits, shift_left = bits, shift_right = bits, max_grad = reduced, sum_grad = reduced,
    adamw = optimizer, sgd = optimizer, lion = optimizer, randn = random_part, rope = rotary, where = choose,
    bitwise_not = function()
        return { like(random.shape(2), pick { "i32", "u8", "i8", "i64" }) }
    end,
    masked_fill = function()
        local shape = random.shape(math.random(0, 3))
        return { like(shape, pick(random.DTYPES)), like(shape, "u8", "mask") }
    end,
    kl_div = function() -- log-probabilities, and probabilities
        local shape = random.shape(math.random(0, 3))
        return { like(shape, float()), like(shape, float(), "positive") }
    end,
    cross_entropy_grad = function()
        return { like(random.shape(2), "f32"), like({}, "f32") }
    end,
    dropout = function()
        local shape = random.shape(math.random(3))
        return { like(shape, float()), chance(2) and like(without_last(shape), "i32", "ids") or nil }
    end,
    reduce_to = function()
        local shape = random.shape(math.random(3))
        local less = { table.unpack(shape) }
        less[math.random(#less)] = 1
        return { like(shape, float()) }, { shape = less }
    end,
    reshape = function()
        local shape = random.shape(math.random(0, 3))
        local count = 1
        for _, size in ipairs(shape) do
            count = count * size
        end
        return { like(shape, pick(random.DTYPES)) }, { shape = pick { { count }, { -1 }, { count, 1 }, { 1, -1, 1 } } }
    end,
}

for op, recipe in pairs(require "code_recipes") do
    recipes[op] = recipe
end

--- The inputs and options of a call. Operations without a recipe get inputs of one shape.
---@param op string
---@return table inputs, table? options
function recipes.call(op)
    return (recipes[op] or same_shape)(op)
end

return recipes
