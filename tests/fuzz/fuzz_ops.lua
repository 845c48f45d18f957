-- short: calls=1500
--- Random calls of every operation of mx.ops(), valid and invalid, on every instruction path of this machine.
--
--     mxlua [--threads N] tests/fuzz/fuzz_ops.lua [seed=1] [calls=2000] [first=1] [seconds=S] [only=NAME] [notes=FILE]
--
-- Each call depends on the seed and its own number alone, so first=N calls=1 repeats call N. With seconds=, calls go on
-- from `first` until the time is over. Before each call, its words and text replace the contents of the notes file:
-- that is what a crash leaves. Every call runs again on the portable path. Results, changed inputs and gradients of
-- both must agree within BOUNDS, and both must refuse or neither. The first difference ends the run.

package.path = arg[0]:gsub("[^/]+$", "?.lua;") .. package.path

local mx = require "mx"
local random = require "random_tensors"

local pick, chance, like = random.pick, random.chance, random.like

mx.memory_limit(2 << 30) -- a random size is refused before it takes the memory of this machine

-- Share of the portable path's value by which another may differ: 2 units in the last place of bf16; and in f32 the
-- kernels' polynomials, which are within 4e-6 of the functions.
-- Attention in bf16 rounds probabilities and their gradients before it multiplies them.
local BOUNDS = { bf16 = 2 ^ -7, f32 = 2e-5, attention = 2 ^ -5 }

-- What adds or subtracts rounded values: the bound is a share of the largest element, or of the largest input (4).
local SUMS = {
    attention = true, attention_grad = true, attention_merge_ = true, ring_attention = true, cross_entropy = true,
    split_cross_entropy = true, cross_entropy_logits = true, cross_entropy_part_ = true,
    layernorm = true, layernorm_grad = true, rmsnorm = true, rmsnorm_grad = true, log_softmax = true,
    log_softmax_grad = true, softmax = true, softmax_grad = true, matmul = true, matmul_acc = true, sum = true,
    mean = true, sum_squares = true, reduce_to = true, embedding_grad = true, embedding_acc = true,
    gather_grad = true, column_sum = true, cumsum = true, tile = true, expand = true, index_select = true,
    rope = true, adamw = true, sgd = true, affine = true, gated = true, gated_grad = true,
    gated_grad_ = true, unary_grad = true, sin = true, cos = true, gelu = true, silu = true, tanh = true,
    grouped_matmul = true, grouped_matmul_grad = true, grouped_matmul_acc = true, moe_combine = true,
    moe_combine_grad = true, moe_gather = true,
    conv1d = true, conv1d_grad = true, conv1d_grad_w = true, conv2d = true, conv2d_grad = true, conv2d_grad_w = true,
    channel_sum = true, avg_pool1d = true, avg_pool1d_grad = true, avg_pool2d = true, avg_pool2d_grad = true,
    max_pool1d_grad = true, max_pool2d_grad = true,
    var = true, std = true, var_grad = true, norm = true, norm_grad = true, logsumexp = true, logsumexp_grad = true,
    erf = true, expm1 = true, log1p = true, softplus = true, elu = true, lerp = true,
    add_ = true, sub_ = true, binary_grad = true, power = true, mse_loss = true, l1_loss = true, huber_loss = true,
    bce_with_logits = true, kl_div = true, softmax_cross_entropy = true, softmax_cross_entropy_grad = true,
}

local options = {} -- operation -> names of its options
local function options_of(name)
    if not options[name] then
        local names = {}
        for i, option in ipairs(mx.op_info(name).options) do
            names[i] = option.name
        end
        options[name] = names
    end
    return options[name]
end

-- ---- options: a value that is often valid ----

local CHOICES = {
    activation = { "silu", "gelu", "relu" },
    approximate = { "tanh", "none" },
    op = { "sum", "mean", "max" },
    score = { "topk_softmax", "softmax_topk", "sigmoid", "random" },
    group_score = { "sum_of_two", "max" },
    reduction = { "mean", "sum", "none" },
    grad = { "same", "all_reduce", "reduce_scatter", "slice" },
    ["function"] = {
        unary_grad = {
            "exp", "log", "sqrt", "rsqrt", "abs", "tanh", "sigmoid", "square", "sin", "cos", "affine", "pow", "relu",
            "gelu", "gelu_none", "silu", "erf", "log1p", "expm1", "floor", "ceil", "round", "sign", "softplus",
            "leaky_relu", "elu", "clamp",
        },
        binary_grad = {
            "add", "div", "maximum", "minimum", "power", "lerp", "squared", "absolute", "huber", "bce", "divergence",
            "divergence_log",
        },
    },
}

local BOOLEANS = {
    causal = true, trans_a = true, trans_b = true, trans = true, keepdim = true, by_b = true, interleaved = true,
    inverse = true, nesterov = true, balanced = true, async = true, async_grad = true, descending = true,
    smallest = true, reverse = true, normalize = true, replacement = true,
    log_target = true, want_bias = true,
}

local NUMBERS = { -- the standard value is among them
    lr = { 0.1, 0 }, beta1 = { 0.9, 0 }, beta2 = { 0.999, 0.5 }, eps = { 1e-5, 1e-2 }, eps_root = { 0, 1e-3 },
    weight_decay = { 0, 0.1 }, step = { 1, 2, 1000 }, grad_scale = { 1, 0.5 }, momentum = { 0, 0.9 },
    scale = { 1, 0.5, -2 }, shift = { 0, 1, -0.25 }, softcap = { 0, 0, 30 }, logit_scale = { 1, 0.5 },
    z_loss = { 0, 1e-4 }, normalizer = { 0, 7 }, rate = { 0, 0.1, 0.5, 0.999 }, exponent = { 2, 3, -1, 0.5, 0 },
    p0 = { 1, 2, 0.5 }, p1 = { 0, 1 }, value = { 0, 1, -3 }, low = { 0, -1 }, high = { 1, 4 }, mean = { 0, 2 },
    std = { 1, 0.5, 0 }, theta = { 10000, 500 }, factor = { 1, 0.5 },
    window = { 0, 0, 1, 3, 17 }, offset = { 0, 0, 2, 40 },
    first_query = { 0, 0, 1, 5 }, kv_length = { 0, 0, 1, 3 }, start = { 1, 1, 2, 3 }, length = { 0, 1, 1, 2, 5 },
    n = { 0, 1, 7, 100 }, vocab = { 1, 17, 40 }, size = { 5, 17, 40 }, root = { 0 }, shift_ranks = { 1, 0, -3 },
    k = { 0, 1, 1, 3, 40 }, classes = { 1, 17, 40 }, diagonal = { 0, 1, -1, 5, -40 },
    correction = { 0, 1, 1, 2 },
    first = { 0, 0, 1 }, of = { 0, 40 },
    beta = { 1, 2, 0.5, 0 }, negative_slope = { 0.01, 0.5 }, alpha = { 1, 0.5 },
    min = { -1, 0, 2 }, max = { 1, 3, -2 }, weight = { 0.25, 0, 1 }, p = { 0.5, 1, 0 }, delta = { 1, 0.5, 0 },
    label_smoothing = { 0, 0.1, 1, 2 }, ignore_index = { -100, 3 },
}

local function shuffled(n)
    local list = {}
    for i = 1, n do
        list[i] = i
    end
    for i = n, 2, -1 do
        local j = math.random(i)
        list[i], list[j] = list[j], list[i]
    end
    return list
end

local SEVERAL_DIMS = {
    sum = true, mean = true, max = true, min = true, any = true, all = true, var = true, std = true, norm = true,
    logsumexp = true, flip = true,
}

local function option_value(op, name, shape)
    local choices = CHOICES[name]
    choices = choices and choices[op] or choices
    if name == "axis" then
        return nil
    elseif choices then
        return pick(choices)
    elseif BOOLEANS[name] then
        return chance(2)
    elseif name == "seed" then
        return math.random(1000)
    elseif name:find("dtype") then
        return pick(random.DTYPES)
    elseif name == "dims" then
        return op == "rope" and pick { -1, 2, 4 } or shuffled(#shape)
    elseif name == "shape" then
        return chance(3) and random.shape(#shape) or shape
    elseif name == "dim" and SEVERAL_DIMS[op] and #shape > 1 and chance(2) then
        return table.move(shuffled(#shape), 1, math.random(#shape), 1, {})
    elseif name:find("^dim") or name == "split" or name == "concat" then
        return #shape > 0 and pick { 1, -1, math.random(#shape), -math.random(#shape) } or 1
    elseif (op:find("permute") or op == "roll") and name == "shift" then
        return pick(NUMBERS.shift_ranks)
    end
    return pick(NUMBERS[name] or { 0, 1 })
end

-- ---- calls: inputs (as random.build wants them) and options that fit each other ----

local function without_last(shape)
    return table.move(shape, 1, #shape - 1, 1, {})
end

local function float()
    return pick { "f32", "f32", "bf16" }
end

local function attention(op)
    local heads_kv, group, dim = pick { 1, 2 }, pick { 1, 1, 2, 3 }, 2 * pick { 1, 3, 4, 8, 16, 17 }
    local batch, queries, keys = pick { 1, 2 }, pick { 1, 2, 17, 40, 70 }, pick { 0, 1, 2, 17, 40, 70 }
    local dtype = float()
    local q, kv = { batch, queries, heads_kv * group, dim }, { batch, keys, heads_kv, dim }
    local lse = { batch, heads_kv * group, queries }
    if op == "attention_merge_" then
        return { like(q, "f32"), like(lse, "f32"), like(q, dtype), like(lse, "f32") }
    elseif op == "ring_attention" then
        kv[2] = queries
        return { like(q, dtype), like(kv, dtype), like(kv, dtype) }
    end
    local segments = { like({ batch, queries }, "i32", "ids"), like({ batch, keys }, "i32", "ids") }
    local inputs = { like(q, dtype), like(kv, dtype), like(kv, dtype) }
    if op == "attention_grad" then
        table.move({ like(q, dtype), like(lse, "f32", "large"), like(q, dtype) }, 1, 3, 4, inputs)
    end
    local n = #inputs
    if chance(3) then
        table.move(segments, 1, 2, n + 1, inputs)
    end
    if op:find("^attention") and chance(3) then
        local bias = { pick { 1, batch }, pick { 1, heads_kv * group }, pick { 1, queries }, keys }
        inputs[n + 3] = chance(3) and like(bias, "u8", "mask") or like(bias, float())
    end
    if op:find("^attention") and chance(5) then
        inputs[n + 4] = like({ heads_kv * group }, "f32", "positive")
        inputs[n + 4].wants_grad = false
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
    return { like(shape, dtype), like(shape, float()), chance(2) and state or nil }
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
    end
    local trans = chance(2)
    return { a, like(trans and { groups, n, k } or { groups, k, n }, float()), counts }, { trans_b = trans }
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
        x[d] = with.dilation * (w[d] - 1) + pick { 1, 2, 7, 17, 40 }
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

local RECIPES = {
    max_pool1d = pooling, max_pool1d_grad = pooling, max_pool2d = pooling, max_pool2d_grad = pooling,
    avg_pool1d = pooling, avg_pool1d_grad = pooling, avg_pool2d = pooling, avg_pool2d_grad = pooling,
    conv1d = convolution, conv1d_grad = convolution, conv1d_grad_w = convolution, conv2d = convolution,
    conv2d_grad = convolution, conv2d_grad_w = convolution,
    attention = attention, attention_grad = attention, attention_merge_ = attention, ring_attention = attention,
    layernorm = norm, layernorm_grad = norm, rmsnorm = norm, rmsnorm_grad = norm, matmul = product,
    matmul_acc = product, embedding = table_rows, embedding_acc = table_rows, embedding_grad = table_rows,
    cross_entropy = table_rows, split_cross_entropy = table_rows, cross_entropy_logits = table_rows,
    cross_entropy_part_ = table_rows, narrow = along_dim, narrow_grad = along_dim, narrow_grad_acc = along_dim,
    write_slice = along_dim, gather = along_dim, gather_grad = along_dim, scatter = along_dim, scatter_add = along_dim,
    norm_grad = reduced, var_grad = reduced,
    logsumexp_grad = reduced, pad = arranged, tile = arranged, expand = arranged, tril = arranged, triu = arranged,
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
    index_select = function()
        local shape = random.shape(math.random(3))
        local dim = math.random(#shape)
        shape[dim] = pick { 17, 20, 33 }
        local x = like(shape, chance(2) and float() or pick(random.DTYPES))
        return { x, like(random.shape(math.random(0, 2)), "i32", "ids") }, { dim = dim }
    end,
    moe_route = experts, moe_route_grad = experts, moe_sort = experts, moe_count = experts, moe_gather = experts,
    moe_combine = experts, moe_combine_grad = experts, grouped_matmul = grouped, grouped_matmul_grad = grouped,
    grouped_matmul_acc = grouped,
    scatter_grad = along_dim, softmax_cross_entropy = classes, softmax_cross_entropy_grad = classes,
    bitwise_and = bits, bitwise_or = bits,
    bitwise_xor = bits, shift_left = bits, shift_right = bits, max_grad = reduced, sum_grad = reduced,
    adamw = optimizer, sgd = optimizer, randn = random_part, rope = rotary, where = choose,
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

local MUST = {
    lr = true, step = true, dims = true, exponent = true, n = true, rate = true, seed = true, shape = true,
    vocab = true, k = true, classes = true, shift = true,
}

local WILD_SCALARS = { 0, 1, -1.5, 3e9, 1 << 31, 0 / 0, math.huge, math.mininteger, "text", true }

local WILD = {
    0, 1, -1, 2, 0.5, 1e-30, 1e30, -1e300, math.huge, 0 / 0, math.maxinteger, math.mininteger, 1 << 31, 1 << 32,
    (1 << 32) + 1, "x", true, { 1, 2, 3 }, { -1, 5 }, { 2 ^ 40, 2 ^ 40 }, {}, { "a" }, { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 },
}

-- One thing about the call becomes another: most calls are then refused.
local function spoil(call)
    local inputs = call.inputs
    local i = math.random(call.n_in + 1)
    local what = math.random(6)
    if what == 1 then
        inputs[i] = pick { false, random.spec(random.shape(math.random(0, 4)), pick(random.DTYPES)) } or nil
    elseif what == 2 and inputs[i] then
        inputs[i].dtype = pick(random.DTYPES)
    elseif what == 3 and inputs[i] and inputs[i].shape and #inputs[i].shape > 0 then
        inputs[i].shape[math.random(#inputs[i].shape)] = pick { 0, 1, 2, 3 }
    elseif what == 4 then
        inputs[i] = { scalar = pick(WILD_SCALARS) }
    elseif what == 5 and #options_of(call.op) > 0 then
        call.options[pick(options_of(call.op))] = pick(WILD)
    elseif inputs[i] and inputs[i].kind then
        inputs[i].kind = pick { "extreme", "released", "special" }
    end
    call.n_in = math.max(call.n_in, i)
    call.spoilt = true
end

local function random_call(ops)
    local op = pick(ops)
    local call = { op = op }
    call.inputs, call.options = (RECIPES[op] or same_shape)(op)
    call.options = call.options or {}
    call.n_in = 0
    for i in pairs(call.inputs) do
        call.n_in = math.max(call.n_in, i)
    end
    local first = call.inputs[1] and call.inputs[1].shape or random.shape(math.random(0, 3))
    for _, option in ipairs(options_of(op)) do
        local known = call.options[option] ~= nil or (RECIPES[op] and option == "shape")
        if not known and (MUST[option] or op == "cast" or chance(3)) then
            call.options[option] = option_value(op, option, first)
        end
    end
    -- A broadcast operand, or a number.
    local second = call.inputs[2]
    if not RECIPES[op] and call.n_in == 2 and #first > 0 and chance(3) then
        if chance(3) then
            call.inputs[2] = { scalar = pick { 2, -0.5, 0 } }
        else
            second.shape[math.random(#first)] = 1
        end
    end
    if chance(4) then
        spoil(call)
    end
    return call
end

-- ---- running ----

local function text_of(value)
    if type(value) == "table" then
        return "{" .. table.concat(value, ", ") .. "}"
    end
    return type(value) == "string" and ("%q"):format(value) or tostring(value)
end

local function describe(call)
    local words = {}
    for i = 1, call.n_in do
        words[i] = random.describe(call.inputs[i])
    end
    local given = {}
    for _, name in ipairs(options_of(call.op)) do
        given[#given + 1] = call.options[name] ~= nil and name .. " = " .. text_of(call.options[name]) or nil
    end
    words[#words + 1] = "{" .. table.concat(given, ", ") .. "}"
    return ("mx.%s(%s)"):format(call.op, table.concat(words, ", "))
end

-- Values and gradients after the call on one path, in tables; or nil and the message.
local function run(call, path)
    local step <close> = mx.step()
    mx.isa("portable") -- the inputs are the same everywhere
    local inputs, info = {}, mx.op_info(call.op)
    for i = 1, call.n_in do
        inputs[i] = random.build(call.inputs[i])
        if info.differentiable and not call.spoilt and type(inputs[i]) == "userdata" and call.inputs[i].wants_grad
            and call.inputs[i].kind == "plain" then
            inputs[i]:requires_grad()
        end
    end
    mx.isa(path)
    local words = table.move(inputs, 1, call.n_in, 1, {})
    words[call.n_in + 1] = call.options
    local results = table.pack(pcall(mx[call.op], table.unpack(words, 1, call.n_in + 1)))
    if not results[1] then
        mx.isa("portable")
        return nil, tostring(results[2])
    end
    local out, sum = {}, nil
    for i = 2, results.n do
        local result = results[i]
        tostring(result)
        if type(result) == "userdata" and info.differentiable and random.is_float(result) then
            local weights = random.build({ shape = result:size(), dtype = "f32", kind = "plain", seed = i })
            local part = mx.sum(result:to("f32") * weights)
            sum = sum and sum + part or part
        end
    end
    local walked, message = pcall(mx.backward, sum or mx.zeros {})
    mx.isa("portable")
    if not walked and not message:find("depends on no tensor") and not message:find("has no gradient") then
        return nil, message
    end
    for i = 2, results.n do
        out[#out + 1] = type(results[i]) == "userdata" and random.values(results[i]) or nil
    end
    for i = 1, call.n_in do
        local grad = type(inputs[i]) == "userdata" and not inputs[i]:is_released() and inputs[i]:grad()
        if grad or (info.mutates and type(inputs[i]) == "userdata") then
            out[#out + 1] = random.values(grad or inputs[i])
        end
    end
    return out, nil, walked
end

-- Text about the first difference between two runs of a call, or nil.
local function difference(call, here, there)
    if #here ~= #there then
        return ("%d results, and %d"):format(#here, #there)
    end
    for r, a in ipairs(here) do
        local b = there[r]
        local largest = SUMS[call.op] and 4 or 0
        for i = 1, SUMS[call.op] and #b or 0 do
            largest = math.abs(b[i]) > largest and math.abs(b[i]) < math.huge and math.abs(b[i]) or largest
        end
        local bound = BOUNDS[call.in_bf16 and (call.op:match("attention") or "bf16") or a.dtype] or 0
        for i = 1, math.max(#a, #b) do
            local x, y = a[i], b[i]
            local both_nan = x ~= x and y ~= y
            local off = math.abs(x - y)
            if x ~= y and not both_nan and (off ~= off or off > bound * math.max(math.abs(y), largest) + 1e-30) then
                return ("result %d (%s), element %d: %.9g, and %.9g"):format(r, a.dtype, i, x, y)
            end
        end
    end
end

local function paths_here()
    local paths, before = {}, mx.isa()
    for _, name in ipairs { "avx2", "avx512", "avx512_bf16", "amx" } do
        paths[#paths + 1] = pcall(mx.isa, name) and name or nil
    end
    mx.isa(before)
    paths[#paths + 1] = "portable"
    return paths
end

local function try(call, path)
    for i = 1, call.n_in do
        local spec = call.inputs[i]
        call.in_bf16 = call.in_bf16 or (spec and spec.dtype == "bf16") or call.options.dtype == "bf16"
    end
    local here, refusal, walked = run(call, path)
    local there, refusal_there = run(call, "portable")
    if (here == nil) ~= (there == nil) then
        return nil, ("%s: %s; portable: %s"):format(path, refusal or "succeeds", refusal_there or "succeeds")
    end
    local found = here and not call.spoilt and difference(call, here, there)
    if found then
        return nil, ("%s and portable differ: %s"):format(path, found)
    end
    return here ~= nil, refusal, walked
end

local function main()
    local config = random.options { calls = 2000, first = 1, only = ".", show = 0 }
    local notes = config.notes ~= "" and assert(io.open(config.notes, "w")) or nil
    local ops, valid, never, walks = {}, {}, {}, 0
    for _, name in ipairs(mx.ops()) do
        ops[#ops + 1] = name:find(config.only) and name or nil
    end
    local paths, start, n = paths_here(), mx.now(), config.first
    local function goes_on()
        return config.seconds > 0 and mx.now() - start < config.seconds
            or config.seconds == 0 and n < config.first + config.calls
    end
    while goes_on() do
        math.randomseed(config.seed, n)
        local call, path = random_call(ops), pick(paths)
        local text = ("seed=%d first=%d calls=1 on %s: %s"):format(config.seed, n, path, describe(call))
        if notes then
            random.note(notes, text)
        end
        local good, message, walked = try(call, path)
        if good == nil then
            print(("FAIL %s\n     %s\n%d passed, 1 failed"):format(text, message, n - config.first))
            os.exit(1)
        end
        valid[call.op] = (valid[call.op] or 0) + (good and 1 or 0)
        walks = walks + (walked and 1 or 0)
        if config.show > 0 and not good and not call.spoilt then
            print(call.op, message, text)
        end
        n = n + 1
    end
    local count = 0
    for _, name in ipairs(ops) do
        count = count + (valid[name] or 0)
        never[#never + 1] = (valid[name] or 0) == 0 and name or nil
    end
    print(("paths %s; %d calls, %d valid, %d walked back; never valid: %s"):format(table.concat(paths, " "),
        n - config.first, count, walks, #never > 0 and table.concat(never, " ") or "none"))
    print(("%d passed, 0 failed"):format(n - config.first))
end

main()
