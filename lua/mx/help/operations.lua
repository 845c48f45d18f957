--- What mx.help says of operations beside their own texts (mx.op_info): names of PyTorch, and an example of each.
--
-- Sections of entries { name, torch = names of PyTorch, code = example }. In an example, `--> text` after an expression
-- is its value. Operations with _grad or _acc in their names, and steps of others, need no entry: scripts seldom call
-- them.

return {
    { title = "Making tensors",
        { "randint", torch = "randint", code = [[mx.randint({ 3 }, { low = 5, high = 6 }) --> {5, 5, 5}]] },
        { "permutation", torch = "randperm", code = [[mx.permutation(4):sum():item() --> 6]] },
        { "truncated_normal", torch = "nn.init.trunc_normal_", code = [[
mx.truncated_normal({ 2, 3 }, { std = 0.02 }):size() --> {2, 3}]] },
        { "bernoulli", torch = "bernoulli", code = [[mx.bernoulli(mx.tensor { 0, 1 }) --> {0, 1}]] },
        { "multinomial", torch = "multinomial, distributions.Categorical", code = [[
mx.multinomial(mx.tensor { 0, 1, 0 }, { n = 1 }) --> {1}]] },
        { "full", torch = "full", code = [[mx.full({ 2, 2 }, 7) --> {{7, 7}, {7, 7}}]] },
        { "arange", torch = "arange, range", code = [[
mx.arange(4) --> {0, 1, 2, 3}
mx.arange(2, 9, 3) --> {2, 5, 8}
mx.arange(3, { start = 5, step = 2, dtype = "i32" }) --> {5, 7, 9}]] },
        { "randn", torch = "randn, normal, nn.init.normal_, randn_like", code = [[
local x = mx.randn({ 2, 3 }, { std = 0.1, seed = 1 })
local noise = mx.randn(x:size()) -- randn_like(x)
noise:size() --> {2, 3}]] },
        { "rand", torch = "rand, uniform_, nn.init.uniform_, rand_like", code = [[
local x = mx.rand({ 2, 3 }, { low = -1, high = 1 })
x:size() --> {2, 3}]] },
        { "one_hot", torch = "F.one_hot", code = [[
mx.one_hot(mx.tensor({ 0, 2 }, "i32"), { classes = 3 }) --> {{1, 0, 0}, {0, 0, 1}}]] },
    },
    { title = "Arithmetic",
        { "power", torch = "pow(x, tensor), float_power", code = [[
mx.power(mx.tensor { 2, 3 }, mx.tensor { 3, 2 }) --> {8, 9}
mx.tensor { 2, 3 } ^ mx.tensor { 3, 2 } --> {8, 9}]] },
        { "clamp", torch = "clamp, clip", code = [[
mx.clamp(mx.tensor { -2, 0, 5 }, { min = -1, max = 1 }) --> {-1, 0, 1}]] },
        { "lerp", torch = "lerp", code = [[mx.lerp(mx.tensor { 0 }, mx.tensor { 10 }, { weight = 0.5 }) --> {5}]] },
        { "bitwise_and", torch = "bitwise_and, logical_and", code = [[
mx.bitwise_and(mx.tensor({ 6 }, "i32"), mx.tensor({ 3 }, "i32")) --> {2}]] },
        { "bitwise_or", torch = "bitwise_or, logical_or", code = [[
mx.bitwise_or(mx.tensor({ 6 }, "i32"), mx.tensor({ 3 }, "i32")) --> {7}]] },
        { "bitwise_xor", torch = "bitwise_xor, logical_xor", code = [[
mx.bitwise_xor(mx.tensor({ 6 }, "i32"), mx.tensor({ 3 }, "i32")) --> {5}]] },
        { "bitwise_not", torch = "bitwise_not", code = [[mx.bitwise_not(mx.tensor({ 6 }, "i32")) --> {-7}]] },
        { "shift_left", torch = "bitwise_left_shift", code = [[
mx.shift_left(mx.tensor({ 3 }, "i32"), mx.tensor({ 2 }, "i32")) --> {12}]] },
        { "shift_right", torch = "bitwise_right_shift", code = [[
mx.shift_right(mx.tensor({ 12 }, "i32"), mx.tensor({ 2 }, "i32")) --> {3}]] },
        { "add", torch = "add", code = [[mx.add(mx.tensor { 1, 2 }, 10) --> {11, 12}]] },
        { "sub", torch = "sub, subtract", code = [[mx.sub(mx.tensor { 1, 2 }, 1) --> {0, 1}]] },
        { "mul", torch = "mul, multiply", code = [[mx.mul(mx.tensor { 1, 2 }, mx.tensor { 3, 4 }) --> {3, 8}]] },
        { "div", torch = "div, divide, true_divide", code = [[mx.div(mx.tensor { 3, 5 }, 2) --> {1.5, 2.5}]] },
        { "idiv", torch = "floor_divide", code = [[mx.tensor({ 7, -7 }, "i32") // 2 --> {3, -4}]] },
        { "remainder", torch = "remainder", code = [[
mx.tensor { 7, -7 } % 2.5 --> {2, 0.5}
mx.tensor({ 7, -7 }, "i32") % 4 --> {3, 1}]] },
        { "fmod", torch = "fmod", code = [[
mx.fmod(mx.tensor { 7, -7 }, mx.tensor { 2.5 }) --> {2, -2}
mx.fmod(mx.tensor({ 7, -7 }, "i32"), mx.tensor({ 4 }, "i32")) --> {3, -3}]] },
        { "pow", torch = "pow", code = [[mx.pow(mx.tensor { 2, 3 }, { exponent = 3 }) --> {8, 27}]] },
        { "affine", torch = "neg, negative", code = [[
mx.affine(mx.tensor { 1, 2 }, { scale = 10, shift = 1 }) --> {11, 21}
-mx.tensor { 1, 2 } --> {-1, -2}]] },
        { "maximum", torch = "maximum, clamp_min", code = [[mx.maximum(mx.tensor { 1, 5 }, 3) --> {3, 5}]] },
        { "minimum", torch = "minimum, clamp_max", code = [[mx.minimum(mx.tensor { 1, 5 }, 3) --> {1, 3}]] },
    },
    { title = "Elementwise functions",
        { "sign", torch = "sign, sgn", code = [[mx.sign(mx.tensor { -2, 3 }) --> {-1, 1}]] },
        { "floor", torch = "floor", code = [[mx.floor(mx.tensor { 1.7 }) --> {1}]] },
        { "ceil", torch = "ceil", code = [[mx.ceil(mx.tensor { 1.2 }) --> {2}]] },
        { "round", torch = "round", code = [[mx.round(mx.tensor { 1.7, 2.5 }) --> {2, 2}]] },
        { "erf", torch = "erf", code = [[mx.erf(mx.tensor { 0 }) --> {0}]] },
        { "expm1", torch = "expm1", code = [[mx.expm1(mx.tensor { 0 }) --> {0}]] },
        { "log1p", torch = "log1p", code = [[mx.log1p(mx.tensor { 0 }) --> {0}]] },
        { "abs", torch = "abs, absolute", code = [[mx.abs(mx.tensor { -2, 3 }) --> {2, 3}]] },
        { "exp", torch = "exp", code = [[mx.exp(mx.tensor { 0 }) --> {1}]] },
        { "log", torch = "log", code = [[mx.log(mx.tensor { 1 }) --> {0}]] },
        { "sqrt", torch = "sqrt", code = [[mx.sqrt(mx.tensor { 9 }) --> {3}]] },
        { "rsqrt", torch = "rsqrt", code = [[mx.rsqrt(mx.tensor { 4 }) --> {0.5}]] },
        { "square", torch = "square", code = [[mx.square(mx.tensor { 3 }) --> {9}]] },
        { "sin", torch = "sin", code = [[mx.sin(mx.tensor { 0 }) --> {0}]] },
        { "cos", torch = "cos", code = [[mx.cos(mx.tensor { 0 }) --> {1}]] },
        { "tan", torch = "tan", code = [[mx.tan(mx.tensor { 0 }) --> {0}]] },
        { "asin", torch = "asin, arcsin", code = [[mx.asin(mx.tensor { 0, 1 }) --> {0, 1.571}]] },
        { "acos", torch = "acos, arccos", code = [[mx.acos(mx.tensor { 1, -1 }) --> {0, 3.142}]] },
        { "atan", torch = "atan, arctan", code = [[mx.atan(mx.tensor { 0, 1 }) --> {0, 0.7854}]] },
        { "atan2", torch = "atan2, arctan2, angle", code = [[
mx.atan2(mx.tensor { 1, -1 }, mx.tensor { 0, -1 }) --> {1.571, -2.356}]] },
        { "sinh", torch = "sinh", code = [[mx.sinh(mx.tensor { 0, 1 }) --> {0, 1.175}]] },
        { "cosh", torch = "cosh", code = [[mx.cosh(mx.tensor { 0, 1 }) --> {1, 1.543}]] },
        { "asinh", torch = "asinh, arcsinh", code = [[mx.asinh(mx.tensor { 0, 1 }) --> {0, 0.8814}]] },
        { "acosh", torch = "acosh, arccosh", code = [[mx.acosh(mx.tensor { 1, 2 }) --> {0, 1.317}]] },
        { "erfinv", torch = "erfinv, special.erfinv, special.ndtri, distributions.Normal.icdf", code = [[
mx.erfinv(mx.tensor { 0, 0.5 }) --> {0, 0.4769}
local p = mx.tensor { 0.5, 0.975 } -- ndtri: the number that a normal one is below with this probability
math.sqrt(2) * mx.erfinv(2 * p - 1) --> {0, 1.96}]] },
        { "lgamma", torch = "lgamma, special.gammaln, gammaln, mvlgamma, special.multigammaln", code = [[
mx.exp(mx.lgamma(mx.tensor { 1, 5 })) --> {1, 24}
local n, k = mx.tensor { 5 }, mx.tensor { 2 } -- the logarithm of n over k
mx.exp(mx.lgamma(n + 1) - mx.lgamma(k + 1) - mx.lgamma(n - k + 1)) --> {10}]] },
        { "digamma", torch = "digamma, special.digamma, special.psi",
            code = [[mx.digamma(mx.tensor { 1, 2 }) --> {-0.5772, 0.4228}]] },
        { "polygamma", torch = "polygamma, special.polygamma",
            code = [[mx.polygamma(mx.tensor { 1 }, { n = 1 }) --> {1.645}]] },
        { "atanh", torch = "atanh, arctanh", code = [[mx.atanh(mx.tensor { 0, 0.5 }) --> {0, 0.5493}]] },
        { "cast", torch = "Tensor.to, type, float, int, long, bool, half, bfloat16, double, byte, char, short",
            code = [[
mx.cast(mx.tensor { 1.7, -1.7 }, { dtype = "i32" }) --> {1, -1}
mx.tensor({ 3 }, "i32"):to("f32"):dtype() --> f32]] },
    },
    { title = "Activations",
        { "leaky_relu", torch = "nn.LeakyReLU, F.leaky_relu", code = [[
mx.leaky_relu(mx.tensor { -2, 3 }, { negative_slope = 0.5 }) --> {-1, 3}]] },
        { "elu", torch = "nn.ELU, F.elu", code = [[mx.elu(mx.tensor { 0, 3 }) --> {0, 3}]] },
        { "softplus", torch = "nn.Softplus, F.softplus", code = [[mx.softplus(mx.tensor { 0 }) --> {0.6931}]] },
        { "relu", torch = "relu, nn.ReLU, F.relu", code = [[mx.relu(mx.tensor { -2, 3 }) --> {0, 3}]] },
        { "gelu", torch = "nn.GELU, F.gelu", code = [[mx.gelu(mx.tensor { 0 }, { approximate = "none" }) --> {0}]] },
        { "silu", torch = "nn.SiLU, F.silu, swish", code = [[mx.silu(mx.tensor { 0 }) --> {0}]] },
        { "tanh", torch = "tanh, nn.Tanh, F.tanh", code = [[mx.tanh(mx.tensor { 0 }) --> {0}]] },
        { "sigmoid", torch = "sigmoid, nn.Sigmoid, F.sigmoid", code = [[mx.sigmoid(mx.tensor { 0 }) --> {0.5}]] },
        { "gated", torch = "F.glu, SwiGLU, GEGLU", code = [[
mx.gated(mx.tensor { -1, 2 }, mx.tensor { 5, 5 }, { activation = "relu" }) --> {0, 10}]] },
        { "softmax", torch = "softmax, nn.Softmax, F.softmax", code = [[mx.softmax(mx.zeros(2)) --> {0.5, 0.5}]] },
        { "log_softmax", torch = "log_softmax, nn.LogSoftmax, F.log_softmax", code = [[
mx.log_softmax(mx.zeros(1, 1)) --> {{0}}]] },
        { "dropout", torch = "nn.Dropout, F.dropout", code = [[
local training = true
local x = mx.ones(2, 4)
local y = training and mx.dropout(x, { rate = 0.1 }) or x]] },
    },
    { title = "Comparing and choosing",
        { "masked_fill", torch = "masked_fill, masked_fill_", code = [[
local x = mx.tensor { 1, 5 }
mx.masked_fill(x, x:gt(2), { value = 0 }) --> {1, 0}]] },
        { "isfinite", torch = "isfinite, isinf", code = [[mx.isfinite(mx.tensor { 1, 1 / 0 }) --> {1, 0}]] },
        { "isnan", torch = "isnan", code = [[mx.isnan(mx.tensor { 1, 0 / 0 }) --> {0, 1}]] },
        { "eq", torch = "eq", code = [[mx.tensor { 1, 2 }:eq(2) --> {0, 1}]] },
        { "ne", torch = "ne, not_equal", code = [[mx.tensor { 1, 2 }:ne(2) --> {1, 0}]] },
        { "lt", torch = "lt, less", code = [[mx.tensor { 1, 2 }:lt(2) --> {1, 0}]] },
        { "le", torch = "le, less_equal", code = [[mx.tensor { 1, 2 }:le(1.5) --> {1, 0}]] },
        { "gt", torch = "gt, greater", code = [[mx.tensor { 1, 2 }:gt(1) --> {0, 1}]] },
        { "ge", torch = "ge, greater_equal", code = [[mx.tensor { 1, 2 }:ge(1) --> {1, 1}]] },
        { "where", torch = "where", code = [[
local x = mx.tensor { -1, 2 }
mx.where(x:gt(0), x, x * 0.1) --> {-0.1, 2}]] },
    },
    { title = "Reductions",
        { "min", torch = "min, amin", code = [[mx.tensor { { 1, 2 }, { 3, 4 } }:min { dim = 1 } --> {1, 2}]] },
        { "argmin", torch = "argmin", code = [[mx.argmin(mx.tensor { 3, 1, 2 }):item() --> 1]] },
        { "var", torch = "var", code = [[mx.var(mx.tensor { 1, 3 }, { correction = 0 }):item() --> 1]] },
        { "std", torch = "std", code = [[mx.std(mx.tensor { 1, 3, 5 }):item() --> 2]] },
        { "norm", torch = "norm, linalg.norm, linalg.vector_norm", code = [[
mx.norm(mx.tensor { 3, 4 }):item() --> 5
local x = mx.tensor { { 3, 4 } }
x / mx.norm(x, { dim = -1, keepdim = true }) --> {{0.6, 0.8}}]] },
        { "logsumexp", torch = "logsumexp", code = [[mx.logsumexp(mx.zeros(1)):item() --> 0]] },
        { "all", torch = "all", code = [[mx.all(mx.tensor { 1, 0 }):item() --> 0]] },
        { "any", torch = "any", code = [[mx.any(mx.tensor { 1, 0 }):item() --> 1]] },
        { "channel_sum", code = [[mx.channel_sum(mx.ones(2, 3, 4)) --> {8, 8, 8}]] },
        { "sum", torch = "sum", code = [[
local x = mx.tensor { { 1, 2 }, { 3, 4 } }
x:sum():item() --> 10
x:sum { dim = 1 } --> {4, 6}]] },
        { "mean", torch = "mean", code = [[mx.tensor { { 1, 2 }, { 3, 4 } }:mean { dim = 2 } --> {1.5, 3.5}]] },
        { "max", torch = "max, amax", code = [[mx.tensor { { 1, 2 }, { 3, 4 } }:max { dim = 2 } --> {2, 4}]] },
        { "argmax", torch = "argmax", code = [[
mx.argmax(mx.tensor { { 1, 2 }, { 4, 3 } }, { dim = 2 }) --> {1, 0}]] },
        { "sum_squares", code = [[
mx.sum_squares(mx.tensor { 3, 4 }):sqrt():item() --> 5]] },
        { "column_sum", code = [[mx.column_sum(mx.tensor { { 1, 2 }, { 3, 4 } }) --> {4, 6}]] },
        { "cumsum", torch = "cumsum", code = [[mx.cumsum(mx.tensor { 1, 2, 3 }) --> {1, 3, 6}]] },
        { "linear_scan", torch = "associative_scan, selective_scan, selective_scan_fn, lax.associative_scan, lfilter",
            code = [[
-- State space models (S4, Mamba), moving averages, discounted sums of rewards. To start from h0, add a[1] h0 to b[1].
mx.linear_scan(0.5, mx.tensor { 4, 0, 8 }, { dim = 1 }) --> {4, 2, 9}
mx.linear_scan(0.9, mx.tensor { 1, 1, 1 }, { dim = 1, reverse = true }) --> {2.71, 1.9, 1}]] },
        { "linear_scan_grad", code = [[
mx.linear_scan_grad(mx.tensor { 1, 2, 3 }, mx.tensor { 4, 5, 6 }, { dim = 1 }) --> {0, 5, 12}]] },
    },
    { title = "Fourier transforms",
        { "rfft", torch = "fft.rfft", code = [[
local re, im = mx.rfft(mx.tensor { 1, 2, 3, 4 })
re --> {10, -2, -2}
im --> {0, 2, 0}
mx.rfft(mx.randn(8, 100), { frequencies = 16 }):size() --> {8, 16}]] },
        { "irfft", torch = "fft.irfft", code = [[
local re, im = mx.rfft(mx.tensor { 1, 2, 3 })
mx.irfft(re, im, { n = 3 }):round() --> {1, 2, 3}
-- the long convolution of S4 and Hyena: y[t] is the sum of k[j] x[t - j]; rows of n elements need transforms of 2 n
local x, k, n = mx.tensor { { 1, 2, 3 }, { 0, 1, 0 } }, mx.tensor { 1, 10, 100 }, 3
local xr, xi = mx.rfft(x, { n = 2 * n })
local kr, ki = mx.rfft(k, { n = 2 * n })
local y = mx.irfft(xr * kr - xi * ki, xr * ki + xi * kr, { n = 2 * n, size = n })
y:round() --> {{1, 12, 123}, {0, 1, 10}}]] },
        { "fft", torch = "fft.fft, fft.ifft", code = [[
local re, im = mx.fft(mx.tensor { 1, 2 }, mx.tensor { 0, 1 })
re --> {3, -1}
im --> {1, -1}
mx.fft(re, im, { inverse = true }) --> {1, 2}, {0, 1}]] },
    },
    { title = "Products",
        { "matmul", torch = "matmul, mm, bmm, mv, dot, addmm, F.linear", code = [[
local a, b = mx.tensor { { 1, 2 }, { 3, 4 } }, mx.tensor { { 1, 0 }, { 1, 1 } }
mx.matmul(a, b) --> {{3, 2}, {7, 4}}
mx.matmul(a, b, { trans_b = true }) --> {{1, 3}, {3, 7}}]] },
        { "grouped_matmul", torch = "F.grouped_mm, _grouped_mm", code = [[
local x, w = mx.tensor { { 1 }, { 2 }, { 3 } }, mx.tensor { { { 10 } }, { { 100 } } }
mx.grouped_matmul(x, w, mx.tensor({ 1, 2 }, "i32")) --> {{10}, {200}, {300}}]] },
        { "grouped_column_sum", code = [[
mx.grouped_column_sum(mx.tensor { { 1 }, { 2 }, { 3 } }, mx.tensor({ 1, 2 }, "i32")) --> {{1}, {5}}]] },
    },
    { title = "Shapes",
        { "reshape", torch = "reshape, flatten, unflatten, ravel", code = [[
mx.arange(6):reshape { 2, -1 } --> {{0, 1, 2}, {3, 4, 5}}]] },
        { "transpose", torch = "transpose, t, swapaxes, swapdims", code = [[
mx.tensor { { 1, 2 }, { 3, 4 } }:transpose() --> {{1, 3}, {2, 4}}
mx.zeros(2, 3, 4):transpose { dim1 = 1, dim2 = 2 }:size() --> {3, 2, 4}]] },
        { "permute", torch = "permute, movedim", code = [[
mx.zeros(2, 3, 4):permute { 3, 1, 2 }:size() --> {4, 2, 3}]] },
        { "concat", torch = "cat, concat, concatenate, hstack, vstack", code = [[
mx.concat(mx.ones(2), mx.zeros(1)) --> {1, 1, 0}
mx.concat({ mx.ones(2, 1), mx.zeros(2, 1) }, { dim = 2 }) --> {{1, 0}, {1, 0}}]] },
        { "stack", torch = "stack", code = [[mx.stack(mx.ones(2), mx.zeros(2), { dim = 2 }) --> {{1, 0}, {1, 0}}]] },
        { "tile", torch = "Tensor.repeat, tile, repeat", code = [[
mx.tile(mx.tensor { 1, 2 }, { 2, 2 }) --> {{1, 2, 1, 2}, {1, 2, 1, 2}}]] },
        { "expand", torch = "expand, broadcast_to, expand_as", code = [[
mx.expand(mx.tensor { { 1 }, { 2 } }, { -1, 3 }) --> {{1, 1, 1}, {2, 2, 2}}]] },
        { "reduce_to", torch = "sum_to_size", code = [[mx.reduce_to(mx.ones(4, 2), { shape = { 2 } }) --> {4, 4}]] },
        { "pad", torch = "F.pad, nn.ConstantPad1d, nn.ZeroPad2d, nn.ReflectionPad1d, nn.ReflectionPad2d, "
            .. "nn.ReplicationPad1d, nn.ReplicationPad2d, nn.CircularPad1d, nn.CircularPad2d, nn.ReflectionPad3d, "
            .. "nn.ReplicationPad3d, nn.CircularPad3d", code = [[
mx.pad(mx.tensor { 1, 2 }, { before = { 1 }, after = { 2 } }) --> {0, 1, 2, 0, 0}
mx.pad(mx.tensor { 1, 2, 3 }, { before = { 2 }, mode = "reflect" }) --> {3, 2, 1, 2, 3}
mx.pad(mx.ones(1, 2), { 1, 0 }) --> {{0, 1, 1}}
mx.pad(mx.ones(1, 2), { sides = { 0, 0, 1, 0 }, value = 7 }) --> {{7, 7}, {1, 1}}]] },
        { "flip", torch = "flip, fliplr, flipud", code = [[mx.flip(mx.tensor { 1, 2, 3 }) --> {3, 2, 1}]] },
        { "roll", torch = "roll", code = [[mx.roll(mx.tensor { 1, 2, 3 }, { shift = 1 }) --> {3, 1, 2}]] },
        { "tril", torch = "tril", code = [[mx.tril(mx.ones(2, 2)) --> {{1, 0}, {1, 1}}]] },
        { "triu", torch = "triu", code = [[mx.triu(mx.ones(2, 2), { diagonal = 1 }) --> {{0, 1}, {0, 0}}]] },
    },
    { title = "Selecting and ordering",
        { "narrow", torch = "narrow, slice", code = [[
mx.narrow(mx.arange(5), { dim = 1, start = 2, length = 3 }) --> {1, 2, 3}]] },
        { "index_select", torch = "index_select, take", code = [[
mx.index_select(mx.tensor { 5, 6, 7 }, mx.tensor({ 2, 0 }, "i32")) --> {7, 5}]] },
        { "gather", torch = "gather, take_along_dim", code = [[
local x = mx.tensor { { 1, 2 }, { 3, 4 } }
mx.gather(x, mx.tensor({ { 1 }, { 0 } }, "i32"), { dim = 2 }) --> {{2}, {3}}]] },
        { "scatter", torch = "scatter, scatter_, index_put", code = [[
mx.scatter(mx.zeros(3), mx.tensor({ 2, 0 }, "i32"), mx.tensor { 5, 6 }, { dim = 1 }) --> {6, 0, 5}]] },
        { "scatter_add", torch = "scatter_add, scatter_add_, index_add, bincount", code = [[
mx.scatter_add(mx.zeros(3), mx.tensor({ 2, 2 }, "i32"), mx.tensor { 5, 6 }, { dim = 1 }) --> {0, 0, 11}
local labels = mx.tensor({ 0, 2, 2 }, "i32") -- bincount
mx.scatter_add(mx.zeros(3), labels, mx.ones(labels:size()), { dim = 1 }) --> {1, 0, 2}
local ids, rows = mx.tensor({ 1, 1 }, "i32"), mx.tensor { { 1, 2 }, { 3, 4 } } -- index_add: whole rows
mx.scatter_add(mx.zeros(2, 2), mx.expand(ids:view(-1, 1), rows:size()), rows, { dim = 1 }) --> {{0, 0}, {4, 6}}]] },
        { "scatter_reduce", torch = "scatter_reduce, scatter_reduce_, index_reduce, segment_reduce, "
            .. "segment_max, scatter_max, scatter_mean, global_max_pool, global_mean_pool", code = [[
-- "amax" of PyTorch is "max" here, "amin" is "min"; "sum" is mx.scatter_add, "prod" by logarithms
local ids, x = mx.tensor({ 0, 1, 0 }, "i32"), mx.tensor { 3, 7, 1 }
mx.scatter_reduce(mx.zeros(2), ids, x, { dim = 1, reduce = "max" }) --> {3, 7}
mx.scatter_reduce(mx.zeros(2), ids, x, { dim = 1, reduce = "mean", include_self = false }) --> {2, 7}
local rows = mx.tensor { { 1, 9 }, { 5, 2 }, { 4, 4 } } -- the maximum of the rows of each graph
local index, how = mx.expand(ids:view(-1, 1), rows:size()), { dim = 1, reduce = "max", include_self = false }
mx.scatter_reduce(mx.zeros(2, 2), index, rows, how) --> {{4, 9}, {5, 2}}]] },
        { "nonzero", torch = "nonzero, argwhere", code = [[mx.nonzero(mx.tensor { 0, 5, 7 }) --> {{1}, {2}}]] },
        { "sort", torch = "sort", code = [[
local values, ids = mx.sort(mx.tensor { 3, 1, 2 })
values --> {1, 2, 3}
ids --> {1, 2, 0}]] },
        { "argsort", torch = "argsort",
            code = [[mx.argsort(mx.tensor { 3, 1, 2 }, { descending = true }) --> {0, 2, 1}]] },
        { "topk", torch = "topk, kthvalue", code = [[
local values, ids = mx.topk(mx.tensor { 3, 1, 2 }, { k = 2 })
values --> {3, 2}
ids --> {0, 2}]] },
    },
    { title = "Layers and losses",
        { "softmax_cross_entropy", torch = "F.cross_entropy, nn.CrossEntropyLoss, F.nll_loss, nn.NLLLoss", code = [[
mx.softmax_cross_entropy(mx.zeros(3, 5), mx.tensor({ 0, 4, -100 }, "i32")):item() --> 1.609]] },
        { "bce_with_logits", torch = "F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss", code = [[
mx.bce_with_logits(mx.zeros(2), mx.tensor { 0, 1 }):item() --> 0.6931]] },
        { "mse_loss", torch = "F.mse_loss, nn.MSELoss", code = [[
mx.mse_loss(mx.tensor { 1, 2 }, mx.tensor { 1, 4 }):item() --> 2]] },
        { "l1_loss", torch = "F.l1_loss, nn.L1Loss", code = [[
mx.l1_loss(mx.tensor { 1, 2 }, mx.tensor { 1, 4 }):item() --> 1]] },
        { "huber_loss", torch = "F.huber_loss, nn.HuberLoss, F.smooth_l1_loss, nn.SmoothL1Loss", code = [[
mx.huber_loss(mx.tensor { 0 }, mx.tensor { 2 }):item() --> 1.5]] },
        { "kl_div", torch = "F.kl_div, nn.KLDivLoss", code = [[
mx.kl_div(mx.zeros(2), mx.ones(2)):item() --> 0
local student, teacher, T = mx.zeros(4, 3), mx.zeros(4, 3), 2 -- distillation, of logits
local p, q = mx.softmax(teacher / T), mx.log_softmax(student / T)
(mx.kl_div(q, p, { reduction = "batchmean" }) * T * T):abs():lt(1e-6):item() --> 1]] },
        { "conv1d", torch = "F.conv1d", code = [[
mx.conv1d(mx.ones(1, 1, 4), mx.ones(1, 1, 2), { padding = "causal" }) --> {{{1, 2, 2, 2}}}]] },
        { "conv2d", torch = "F.conv2d", code = [[
mx.conv2d(mx.ones(1, 1, 2, 2), mx.ones(1, 1, 2, 2)) --> {{{{4}}}}]] },
        { "avg_pool1d", torch = "F.avg_pool1d, nn.AvgPool1d", code = [[
mx.avg_pool1d(mx.tensor { { { 1, 3 } } }, { size = 2 }) --> {{{2}}}]] },
        { "avg_pool2d", torch = "F.avg_pool2d, nn.AvgPool2d", code = [[
mx.avg_pool2d(mx.ones(1, 1, 2, 2), { size = 2 }) --> {{{{1}}}}]] },
        { "max_pool1d", torch = "F.max_pool1d, nn.MaxPool1d", code = [[
mx.max_pool1d(mx.tensor { { { 1, 3 } } }, { size = 2 }) --> {{{3}}}]] },
        { "max_pool2d", torch = "F.max_pool2d, nn.MaxPool2d", code = [[
mx.max_pool2d(mx.ones(1, 1, 2, 2), { size = 2 }) --> {{{{1}}}}]] },
        { "embedding", torch = "F.embedding", code = [[
mx.embedding(mx.tensor { { 1, 2 }, { 3, 4 } }, mx.tensor({ 1, 0 }, "i32")) --> {{3, 4}, {1, 2}}]] },
        { "embedding_bag", torch = "F.embedding_bag, nn.EmbeddingBag", code = [[
local vectors = mx.tensor { { 1, 2 }, { 3, 4 } }
mx.embedding_bag(vectors, mx.tensor({ { 0, 1 }, { 1, 1 } }, "i32"), { mode = "sum" }) --> {{4, 6}, {6, 8}}]] },
        { "rmsnorm", torch = "F.rms_norm",
            code = [[mx.rmsnorm(mx.full({ 1, 4 }, 2), { eps = 0 }) --> {{1, 1, 1, 1}}]] },
        { "layernorm", torch = "F.layer_norm", code = [[
mx.layernorm(mx.tensor { { -1, 1 } }, mx.ones(2), { eps = 0 }) --> {{-1, 1}}]] },
        { "batch_norm", torch = "F.batch_norm", code = [[
local x, weight, bias = mx.randn { 4, 3, 5 }, mx.ones(3), mx.zeros(3)
local y, mean, var = mx.batch_norm(x, weight, bias)
mean:size() --> {3}
local again = mx.batch_norm(x, weight, bias, { mean = mean, var = var }) -- evaluation: these, not those of x
mx.max(mx.abs(again - y)):item() < 1e-5 --> true]] },
        { "group_norm", torch = "F.group_norm, F.instance_norm", code = [[
mx.group_norm(mx.randn { 4, 6 }, { groups = 2 }):size() --> {4, 6}]] },
        { "rope", torch = "rotary embedding", code = [[
mx.rope(mx.randn { 1, 8, 2, 4 }, { theta = 10000 }):size() --> {1, 8, 2, 4}]] },
        { "attention", torch = "F.scaled_dot_product_attention, flash_attn, dropout_p", code = [[
local q, k, v = mx.randn { 1, 8, 4, 16 }, mx.randn { 1, 8, 2, 16 }, mx.randn { 1, 8, 2, 16 }
mx.attention(q, k, v, { causal = true }):size() --> {1, 8, 4, 16}
mx.attention(q, k, v, { causal = true, dropout = 0.1 }):size() --> {1, 8, 4, 16}]] },
        { "attention_dropout", code = [[
-- the mask of mx.attention(q, k, v, { dropout = 0.5, seed = 7 }): what it multiplies its probabilities by
local mask = mx.attention_dropout { shape = { 1, 4, 8, 8 }, dropout = 0.5, seed = 7 }
mask:max():item() --> 2]] },
        { "attention_intervals", code = [[
mx.attention_intervals(mx.tensor({ { 7, 7, 8 } }, "i32")) --> {{{0, 2}, {0, 2}, {2, 3}}}]] },
        { "attention_merge_", code = [[
local sums, lse = mx.zeros(1, 2, 1, 4), mx.full({ 1, 1, 2 }, -math.huge)
mx.attention_merge_(sums, lse, mx.ones(1, 2, 1, 4), mx.zeros(1, 1, 2))
sums:sum():item() --> 8]] },
        { "cross_entropy", torch = "fused linear cross entropy", code = [[
local h, output = mx.zeros(3, 8), mx.zeros(5, 8) -- the logits are h times output transposed
mx.cross_entropy(h, output, mx.tensor({ 0, 4, 2 }, "i32")):item() --> 1.609]] },
        { "moe_route", code = [[
local weights, experts = mx.moe_route(mx.tensor { { 0, 9, 9 } }, { top = 2 })
weights --> {{0.5, 0.5}}
experts --> {{1, 2}}]] },
        { "moe_count", code = [[mx.moe_count(mx.tensor({ { 1, 2 } }, "i32"), { experts = 3 }) --> {{0, 1, 1}}]] },
        { "moe_sort", code = [[
local order, place, counts = mx.moe_sort(mx.tensor({ { 1 }, { 0 } }, "i32"), { experts = 2 })
order --> {1, 0}
counts --> {1, 1}]] },
        { "moe_gather", code = [[
local order, place = mx.moe_sort(mx.tensor({ { 1 }, { 0 } }, "i32"), { experts = 2 })
mx.moe_gather(mx.tensor { { 5 }, { 6 } }, order, place) --> {{6}, {5}}]] },
        { "moe_combine", code = [[
local order, place = mx.moe_sort(mx.tensor({ { 1 }, { 0 } }, "i32"), { experts = 2 })
mx.moe_combine(mx.tensor { { 6 }, { 5 } }, order, place) --> {{5}, {6}}]] },
    },
    { title = "Changes in place",
        { "fill", torch = "fill_, zero_, nn.init.constant_, nn.init.zeros_, nn.init.ones_", code = [[
mx.fill(mx.zeros(2), { value = 3 }) --> {3, 3}]] },
        { "copy", torch = "copy_", code = [[mx.copy(mx.zeros(2), mx.tensor { 1, 2 }) --> {1, 2}]] },
        { "add_", torch = "add_", code = [[mx.ones(2):add_(mx.ones(2), { alpha = 3 }) --> {4, 4}]] },
        { "sub_", torch = "sub_", code = [[mx.ones(2):sub_(1) --> {0, 0}]] },
        { "mul_", torch = "mul_", code = [[mx.ones(2):mul_(3) --> {3, 3}]] },
        { "div_", torch = "div_", code = [[mx.ones(2):div_(2) --> {0.5, 0.5}]] },
        { "matmul_acc", torch = "addmm_",
            code = [[mx.matmul_acc(mx.ones(1, 1), mx.ones(1, 2), mx.ones(2, 1)) --> {{3}}]] },
        { "write_slice", torch = "slice_scatter, narrow_copy", code = [[
mx.write_slice(mx.zeros(3), mx.ones(2), { dim = 1, start = 2 }) --> {0, 1, 1}]] },
        { "embedding_acc", code = [[
mx.embedding_acc(mx.zeros(2, 1), mx.tensor({ 1, 1 }, "i32"), mx.ones(2, 1)) --> {{0}, {2}}]] },
        { "sgd", code = [[mx.sgd(mx.ones(2), mx.ones(2), { lr = 0.5 }) --> {0.5, 0.5}]] },
        { "lion", code = [[mx.lion(mx.ones(2), mx.ones(2), mx.zeros(2), { lr = 0.5 }) --> {0.5, 0.5}]] },
        { "adamw", code = [[
local w, m, v = mx.ones(1), mx.zeros(1), mx.zeros(1)
mx.adamw(w, mx.ones(1), m, v, { lr = 0.5, step = 1 }) --> {0.5}]] },
        { "quantize", torch = "quantize_per_tensor, quantize_per_channel, quantize_per_tensor_dynamic", code = [[
local codes, scale = mx.quantize(mx.tensor { { 1, -255 } }, { dtype = "i8" })
codes --> {{0, -128}}
scale --> {{2}}]] },
        { "scaled_matmul", torch = "_scaled_mm, _int_mm", code = [[
local x, scale_x = mx.quantize(mx.tensor { { 1, -2 } }, { dtype = "e4m3" })
local w, scale_w = mx.quantize(mx.tensor { { 4 }, { 1 } }, { dtype = "e4m3", by = "column" })
mx.scaled_matmul(x, w, scale_x, scale_w) --> {{2}}]] },
        { "scaled_grouped_matmul", torch = "F.scaled_grouped_mm, _scaled_grouped_mm", code = [[
local x, scale_x = mx.quantize(mx.tensor { { 2 }, { 2 } }, { dtype = "e4m3" })
local w, scale_w = mx.quantize(mx.tensor { { { 1 } }, { { 8 } } }, { dtype = "e4m3", by = "column" }) -- two groups
mx.scaled_grouped_matmul(x, w, scale_x, scale_w, mx.tensor({ 1, 1 }, "i32")) --> {{2}, {16}}]] },
        { "mxfp8_matmul", torch = "nn.functional.scaled_mm", code = [[
mx.mxfp8_matmul(mx.ones(1, 32), mx.ones(32, 2)) --> {{32, 32}}]] },
        { "nvfp4_quantize", code = [[
local codes, scales = mx.nvfp4_quantize(mx.full({ 1, 16 }, 3))
scales --> {{448}}
mx.max(codes) --> 119]] },
        { "nvfp4_product", code = [[
local codes, scales, scale = mx.nvfp4_quantize(mx.ones(1, 16))
mx.nvfp4_product(codes, codes, scales, scales, scale, scale) --> {{16}}]] },
        { "nvfp4_matmul", torch = "nn.functional.scaled_mm", code = [[
mx.sum(mx.nvfp4_matmul(mx.ones(1, 16), mx.ones(16, 32))) --> 512]] },
        { "straight_through", torch = "x + (y - x).detach()", code = [[
local x = mx.tensor { 0.4, 0.6 }:requires_grad()
mx.backward(mx.straight_through(x:gt(0.5):to("f32"), x):sum())
x:grad() --> {1, 1}]] },
    },
    { title = "Collectives",
        { "split_cross_entropy", code = [[
local h, output = mx.zeros(3, 8), mx.zeros(5, 8)
mx.split_cross_entropy(h, output, mx.tensor({ 0, 4, 2 }, "i32")):item() --> 1.609]] },
        { "all_reduce", torch = "distributed.all_reduce", code = [[
mx.all_reduce(mx.ones(2), { op = "mean" }) --> {1, 1}]] },
        { "all_reduce_", code = [[mx.all_reduce_(mx.ones(2), { op = "max" }) --> {1, 1}]] },
        { "all_gather", torch = "distributed.all_gather", code = [[
mx.all_gather(mx.ones(2, 3), { dim = 1 }):size(1) == 2 * mx.ranks() --> true]] },
        { "all_gather_", code = [[mx.all_gather_(mx.ones(mx.ranks(), 3), { dim = 1 }):size(2) --> 3]] },
        { "reduce_scatter", torch = "distributed.reduce_scatter", code = [[
mx.reduce_scatter(mx.ones(mx.ranks(), 3), { dim = 1, op = "mean" }) --> {{1, 1, 1}}]] },
        { "reduce_scatter_", code = [[mx.reduce_scatter_(mx.ones(mx.ranks(), 3), { dim = 1 }):size(2) --> 3]] },
        { "all_to_all", torch = "distributed.all_to_all", code = [[
mx.all_to_all(mx.ones(mx.ranks(), 1), { split = 1, concat = 2 }):size(1) --> 1]] },
        { "all_to_all_", code = [[mx.all_to_all_(mx.ones(mx.ranks(), 2), { dim = 1 }):size(2) --> 2]] },
        { "all_to_all_rows", torch = "distributed.all_to_all_single", code = [[
local counts = mx.full({ mx.ranks(), mx.ranks() }, 2, "i32") -- each rank has two rows for each rank's one expert
local x = mx.ones(2 * mx.ranks(), 3)
mx.all_to_all_rows(x, counts, { rows = 2 * mx.ranks() }):size(1) == 2 * mx.ranks() --> true]] },
        { "broadcast", torch = "distributed.broadcast",
            code = [[mx.broadcast(mx.tensor { 7 }, { root = 0 }) --> {7}]] },
        { "broadcast_", code = [[mx.broadcast_(mx.tensor { 7 }, { root = 0 }) --> {7}]] },
        { "send", torch = "distributed.send, distributed.isend", code = [[
if mx.ranks() > 1 and mx.rank() == 0 then
    mx.send(mx.ones(3), { to = 1 })
end]] },
        { "recv", torch = "distributed.recv, distributed.irecv", code = [[
if mx.rank() == 1 then
    print(mx.recv(mx.zeros(3), { from = 0 }))
end]] },
        { "collective_permute", torch = "distributed.batch_isend_irecv", code = [[
mx.collective_permute(mx.ones(2), { shift = 1 }) --> {1, 1}]] },
        { "collective_permute_", code = [[mx.collective_permute_(mx.ones(2), { shift = -1 }) --> {1, 1}]] },
        { "shard", torch = "chunk(world_size)[rank]",
            code = [[mx.shard(mx.ones(mx.ranks(), 3), { dim = 1 }) --> {{1, 1, 1}}]] },
        { "fan_out", code = [[mx.fan_out(mx.ones(2)) --> {1, 1}]] },
        { "ring_attention", code = [[
local x = mx.randn { 1, 8, 2, 4 }
mx.ring_attention(x, x, x, { causal = true }):size() --> {1, 8, 2, 4}]] },
        { "split_norm", code = [[mx.split_norm(mx.full({ 1, 4 }, 2), mx.ones(4), { eps = 0 }) --> {{1, 1, 1, 1}}]] },
    },
}
