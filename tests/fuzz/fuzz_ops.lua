-- short: calls=1500
--- Random calls of every operation of mx.ops(), valid and invalid, on every instruction path of this machine.
--
--     mxlua [--threads N] tests/fuzz/fuzz_ops.lua [seed=1] [calls=2000] [first=1] [seconds=S] [only=NAME] [notes=FILE]
--
-- Each call depends on the seed and its own number alone, so first=N calls=1 repeats call N. With seconds=, calls go on
-- from `first` until the time is over. Before each call, its words and text replace the contents of the notes file:
-- that is what a crash leaves. Every call runs again on the portable path. Results, changed inputs and gradients of
-- both must agree within BOUNDS, and both must refuse or neither. Some calls run again with less memory than they took:
-- these must say so, and keep nothing. The first difference ends the run.

package.path = arg[0]:gsub("[^/]+$", "?.lua;") .. package.path

local mx = require "mx"
local random = require "random_tensors"
local recipes = require "op_recipes"

local pick, chance = random.pick, random.chance

local LIMIT = 2 << 30 -- of memory: a random size is refused before it takes that of this machine
mx.memory_limit(LIMIT)

-- Share of the portable path's value by which another may differ: 2 units in the last place of bf16; and in f32 the
-- kernels' polynomials, which are within 4e-6 of the functions.
-- Attention in bf16 rounds probabilities and their gradients before it multiplies them, and sums over all tokens what
-- may cancel: there the share is also one of the largest input times the root of the number of tokens.
local BOUNDS = { bf16 = 2 ^ -7, f32 = 2e-5, attention = 2 ^ -5 }

-- What adds or subtracts rounded values: the bound is a share of the largest element, or of the largest input (4).
local SUMS = {
    attention = true, attention_grad = true, attention_sinks_grad = true, attention_merge_ = true,
    ring_attention = true, cross_entropy = true,
    split_cross_entropy = true, cross_entropy_logits = true, cross_entropy_part_ = true,
    norm_sums = true, norm_part = true, norm_grad_sums = true, norm_grad_part = true, split_norm = true,
    batch_norm = true, batch_norm_grad = true, group_norm = true, group_norm_grad = true,
    layernorm = true, layernorm_grad = true, rmsnorm = true, rmsnorm_grad = true, log_softmax = true,
    log_softmax_grad = true, softmax = true, softmax_grad = true, matmul = true, matmul_acc = true, sum = true,
    scaled_matmul = true, scaled_grouped_matmul = true, mxfp8_matmul = true,
    nvfp4_product = true, nvfp4_matmul = true,
    mean = true, sum_squares = true, reduce_to = true, embedding_grad = true, embedding_acc = true,
    gather_grad = true, column_sum = true, cumsum = true, linear_scan = true, fft = true, rfft = true,
    irfft = true,
    tile = true, expand = true, index_select = true,
    rope = true, adamw = true, sgd = true, lion = true, affine = true, gated = true, gated_grad = true,
    gated_grad_ = true, unary_grad = true, sin = true, cos = true, gelu = true, silu = true, tanh = true,
    grouped_matmul = true, grouped_matmul_grad = true, grouped_matmul_acc = true,
    grouped_column_sum = true, moe_combine = true,
    moe_combine_grad = true, moe_gather = true,
    embedding_bag = true, linalg_solve = true, linalg_cholesky = true, linalg_eigh = true,
    linalg_qr = true, linalg_svd = true, linalg_slogdet = true,
    conv1d = true, conv1d_grad = true, conv1d_grad_w = true, conv2d = true, conv2d_grad = true, conv2d_grad_w = true,
    channel_sum = true, avg_pool1d = true, avg_pool1d_grad = true, avg_pool2d = true, avg_pool2d_grad = true,
    max_pool1d_grad = true, max_pool2d_grad = true,
    var = true, std = true, var_grad = true, norm = true, norm_grad = true, logsumexp = true, logsumexp_grad = true,
    tan = true, erf = true, expm1 = true, log1p = true, softplus = true, elu = true, lerp = true,
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

-- ---- calls, most of them valid: inputs by op_recipes.lua, and options ----

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
            "leaky_relu", "elu", "clamp", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh",
            "atanh",
        },
        binary_grad = {
            "add", "div", "maximum", "minimum", "power", "lerp", "atan2", "remainder", "fmod", "squared", "absolute",
            "huber", "bce", "divergence", "divergence_log",
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
    dropout = { 0, 0, 0.1, 0.5 }, first_sequence = { 0, 3 }, first_head = { 0, 5 },
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

local MUST = {
    lr = true, step = true, dims = true, exponent = true, n = true, rate = true, seed = true, shape = true,
    vocab = true, k = true, classes = true, shift = true, value = true,
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
    call.inputs, call.options = recipes.call(op)
    call.options = call.options or {}
    call.n_in = 0
    for i in pairs(call.inputs) do
        call.n_in = math.max(call.n_in, i)
    end
    local first = call.inputs[1] and call.inputs[1].shape or random.shape(math.random(0, 3))
    for _, option in ipairs(options_of(op)) do
        local known = call.options[option] ~= nil or (recipes[op] and option == "shape")
        if not known and (MUST[option] or op == "cast" or chance(3)) then
            call.options[option] = option_value(op, option, first)
        end
    end
    -- A broadcast operand, or a number.
    local second = call.inputs[2]
    if not recipes[op] and call.n_in == 2 and #first > 0 and chance(3) then
        if chance(3) then
            call.inputs[2] = { scalar = pick { 2, -0.5, 0 } }
        else
            second.shape[math.random(#first)] = 1
            call.broadcasts = true -- the gradient of this operand is a sum
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

-- Values and gradients after the call on one path, in tables; or nil and the message. Besides whether backward walked,
-- and the bytes that the call and its gradients took. `o`: room, the bytes that they may take; record, of gradients.
local function run(call, path, o)
    local step <close> = mx.step()
    mx.isa("portable") -- the inputs are the same everywhere
    local inputs, info, leaves = {}, mx.op_info(call.op), {}
    for i = 1, call.n_in do
        inputs[i] = random.build(call.inputs[i])
        if info.differentiable and not call.spoilt and type(inputs[i]) == "userdata" and call.inputs[i].wants_grad
            and call.inputs[i].kind == "plain" then
            inputs[i]:requires_grad()
            leaves[#leaves + 1] = inputs[i]
        end
    end
    local before = mx.memory().in_use
    mx.reset_peak()
    mx.memory_limit(o.room and math.max(before + o.room, 1) or LIMIT)
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
    local walked, message
    if o.record and sum and #leaves > 0 then
        walked, message = pcall(mx.grad, sum, leaves, { record = true })
    else
        walked, message = pcall(function() mx.backward(sum or mx.zeros {}) end)
    end
    local took = mx.memory().peak - before
    mx.memory_limit(LIMIT)
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
    return out, nil, walked, took
end

-- What is wrong with a call that has less memory than it takes, or nil.
local function starve(call, path)
    local o = { record = chance(2) }
    collectgarbage()
    mx.trim()
    local before = mx.memory().in_use
    local here, _, _, took = run(call, path, o)
    if not here or took < 1 then
        return nil
    end
    o.room = math.random(took) - 1
    local done, there, message = pcall(run, call, path, o)
    mx.memory_limit(LIMIT)
    mx.isa("portable")
    message = not done and there or message or "succeeds"
    if not message:find("out of memory", 1, true) then
        return ("with %d of %d bytes%s: %s"):format(o.room, took, o.record and ", recorded" or "", message)
    end
    collectgarbage()
    local left = mx.memory().in_use - before
    return left ~= 0 and ("with %d of %d bytes%s: %d stay in use"):format(o.room, took,
        o.record and ", recorded" or "", left) or nil
end

-- The root of the number of terms, of random signs, that a sum of attention in bf16 has; 1 for other operations.
local function root_of_terms(call)
    local terms = 1
    for i = 1, call.in_bf16 and call.op:match("attention") and call.n_in or 0 do
        local shape = call.inputs[i] and call.inputs[i].shape
        terms = shape and #shape == 4 and math.max(terms, shape[2]) or terms
    end
    return math.sqrt(terms)
end

-- Text about the first difference between two runs of a call, or nil.
local function difference(call, here, there)
    if #here ~= #there then
        return ("%d results, and %d"):format(#here, #there)
    end
    for r, a in ipairs(here) do
        local b = there[r]
        local sums = SUMS[call.op] or call.broadcasts
        local largest = sums and 4 * root_of_terms(call) or 0
        for i = 1, sums and #b or 0 do
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
    local here, refusal, walked = run(call, path, {})
    local there, refusal_there = run(call, "portable", {})
    if (here == nil) ~= (there == nil) then
        return nil, ("%s: %s; portable: %s"):format(path, refusal or "succeeds", refusal_there or "succeeds")
    end
    local found = here and not call.spoilt and difference(call, here, there)
    if found then
        return nil, ("%s and portable differ: %s"):format(path, found)
    end
    local starved = here and not call.spoilt and chance(3) and starve(call, path)
    if starved then
        return nil, starved
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
