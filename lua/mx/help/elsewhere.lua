--- What mx.help says of names of PyTorch that have no function of their own here: what to write instead. Entries
--- { names, text, code = example }; an example shows the text's expression, or several.

return {
    { title = "Written with other functions", elsewhere = true,
        { "empty_like, full_like, new_zeros, new_ones, new_full, new_empty, new_tensor",
            "`mx.full(x:size(), 7, x:dtype())`, and `mx.zeros`, `mx.ones` likewise", code = [[
local x = mx.zeros(2)
mx.full(x:size(), 7, x:dtype()) --> {7, 7}]] },
        { "logspace", "`10 ^ x` as `mx.exp(x * math.log(10))`, with x = mx.linspace(first, last, n)",
            code = [[mx.exp(mx.linspace(0, 2, 3) * math.log(10)) --> {1, 10, 100}]] },
        { "meshgrid, cartesian_prod",
            "views that broadcast: `a:view(-1, 1)` and `b:view(1, -1)`; `mx.expand` copies them", code = [[
local a, b = mx.arange(2), mx.arange(3)
a:view(-1, 1) * 10 + b:view(1, -1) --> {{0, 1, 2}, {10, 11, 12}}
mx.expand(a:view(-1, 1), { 2, 3 }) --> {{0, 0, 0}, {1, 1, 1}}]] },
        { "diag, diagonal, Tensor.diagonal, trace",
            "`mx.einsum(\"ii->i\", x)`; the trace is `mx.einsum(\"ii->\", x)`", code = [[
local x = mx.tensor { { 1, 2 }, { 3, 4 } }
mx.einsum("ii->i", x) --> {1, 4}
mx.einsum("ii->", x) --> 5]] },
        { "diag_embed, diagflat", "`mx.eye(n) * x`: each column times its element of x",
            code = [[mx.eye(2) * mx.tensor { 5, 6 } --> {{5, 0}, {0, 6}}]] },
        { "tril_indices, triu_indices",
            "`mx.nonzero(mx.tril(mx.ones(n, n)))`, or a mask: `x[mx.tril(mx.ones(n, n, \"u8\"))]`", code = [[
mx.nonzero(mx.tril(mx.ones(2, 2))) --> {{0, 0}, {1, 0}, {1, 1}}
mx.tensor({ { 1, 2 }, { 3, 4 } })[mx.tril(mx.ones(2, 2, "u8"))] --> {1, 3, 4}]] },
        { "repeat_interleave",
            "`mx.expand(x:unsqueeze { dim = 2 }, { -1, n }):view(-1)`, or `mx.index_select` with ids", code = [[
mx.expand(mx.tensor({ 1, 2 }):unsqueeze { dim = 2 }, { -1, 3 }):view(-1) --> {1, 1, 1, 2, 2, 2}]] },
        { "rot90", "`mx.flip(x.T, { dim = 1 })`",
            code = [[mx.flip(mx.tensor({ { 1, 2 }, { 3, 4 } }).T, { dim = 1 }) --> {{2, 4}, {1, 3}}]] },
        { "dstack, column_stack",
            "`mx.stack(a, b, { dim = 2 })` of vectors; `mx.concat` of tensors with more dimensions",
            code = [[mx.stack(mx.ones(2), mx.zeros(2), { dim = 2 }) --> {{1, 0}, {1, 0}}]] },
        { "masked_scatter, masked_scatter_, index_fill, index_fill_, index_copy, index_copy_",
            "`t[mask] = value` and `t[ids] = value` outside of recording; `mx.where`, `mx.scatter` with gradients",
            code = [[
local t = mx.zeros(3)
t[mx.tensor({ 0, 2 }, "i32")] = mx.tensor { 5, 6 }
mx.where(t:gt(5), 9, t) --> {5, 0, 9}]] },
        { "scatter_reduce, scatter_reduce_, index_reduce",
            "`mx.scatter_add` of sums, and divided by the counts, of means", code = [[
local ids, ones = mx.tensor({ 0, 0, 1 }, "i32"), mx.ones(3)
local sums = mx.scatter_add(mx.zeros(2), ids, mx.tensor { 1, 3, 7 }, { dim = 1 })
sums / mx.scatter_add(mx.zeros(2), ids, ones, { dim = 1 }) --> {2, 7}]] },
        { "addcmul, addcdiv, Tensor.addcmul_, Tensor.addcdiv_",
            "`x + value * a * b`; in place `x:add_(a * b, { alpha = value })`",
            code = [[mx.ones(2):add_(mx.ones(2) * 3, { alpha = 0.5 }) --> {2.5, 2.5}]] },
        { "baddbmm, addmv, addbmm",
            "`c + mx.matmul(a, b)`; a bias for all rows is the third argument of mx.matmul",
            code = [[mx.ones(1, 1) + mx.matmul(mx.ones(1, 2), mx.ones(2, 1)) --> {{3}}]] },
        { "inner, vdot, chain_matmul", "`mx.matmul` and `mx.einsum`",
            code = [[mx.matmul(mx.tensor { 1, 2 }, mx.tensor { 3, 4 }):item() --> 11]] },
        { "cross",
            "`mx.roll` moves the components: a x b = roll(a, -1) roll(b, -2) - roll(a, -2) roll(b, -1)", code = [[
local a, b = mx.tensor { 1, 0, 0 }, mx.tensor { 0, 1, 0 }
local function at(t, n) return mx.roll(t, { shift = -n, dim = 1 }) end
at(a, 1) * at(b, 2) - at(a, 2) * at(b, 1) --> {0, 0, 1}]] },
        { "cdist, F.pairwise_distance, nn.PairwiseDistance, dist",
            "`mx.norm(a:unsqueeze { dim = 2 } - b:unsqueeze { dim = 1 }, { dim = 3 })` of rows", code = [[
local a, b = mx.tensor { { 0, 0 } }, mx.tensor { { 3, 4 }, { 0, 1 } }
mx.norm(a:unsqueeze { dim = 2 } - b:unsqueeze { dim = 1 }, { dim = 3 }) --> {{5, 1}}]] },
        { "F.cosine_similarity, nn.CosineSimilarity",
            "the sum of products of `x / mx.norm(x, { dim = -1, keepdim = true })`", code = [[
local function unit(x) return x / mx.norm(x, { dim = -1, keepdim = true }) end
mx.sum(unit(mx.tensor { 3, 4 }) * unit(mx.tensor { 4, 3 })):item() --> 0.96]] },
        { "remainder",
            "`a - b * (a // b)` of integers, `a - b * mx.floor(a / b)` of floats: with the sign of b",
            code = [[mx.tensor({ 7, -7 }, "i32") - 4 * (mx.tensor({ 7, -7 }, "i32") // 4) --> {3, 1}]] },
        { "fmod", "`a - b * q`, q being a / b rounded toward zero", code = [[
local a, b = mx.tensor { -7, 7 }, 2
local q = mx.sign(a / b) * mx.floor(mx.abs(a / b))
a - b * q --> {-1, 1}]] },
        { "trunc, fix, frac", "`mx.sign(x) * mx.floor(mx.abs(x))`, and x minus that", code = [[
local x = mx.tensor { -1.5, 2.25 }
mx.sign(x) * mx.floor(mx.abs(x)) --> {-1, 2}]] },
        { "reciprocal", "`1 / x`", code = [[1 / mx.tensor { 2, 4 } --> {0.5, 0.25}]] },
        { "exp2", "`mx.exp(x * math.log(2))`", code = [[mx.exp(mx.tensor { 3 } * math.log(2)) --> {8}]] },
        { "log2, log10", "`mx.log(x) / math.log(2)`", code = [[mx.log(mx.tensor { 8 }) / math.log(2) --> {3}]] },
        { "tan", "`mx.sin(x) / mx.cos(x)`", code = [[mx.sin(mx.tensor { 0 }) / mx.cos(mx.tensor { 0 }) --> {0}]] },
        { "sinh, cosh", "`(mx.exp(x) - mx.exp(-x)) / 2`, and with + for cosh", code = [[
local x = mx.tensor { 0 }
(mx.exp(x) + mx.exp(-x)) / 2 --> {1}]] },
        { "logit, special.logit", "`mx.log(p) - mx.log1p(-p)`", code = [[
local p = mx.tensor { 0.5 }
mx.log(p) - mx.log1p(-p) --> {0}]] },
        { "erfc, special.erfc", "`1 - mx.erf(x)`, which is 0 from about x = 4 on",
            code = [[1 - mx.erf(mx.tensor { 0 }) --> {1}]] },
        { "special.ndtr", "`(1 + mx.erf(x / math.sqrt(2))) / 2`",
            code = [[(1 + mx.erf(mx.tensor { 0 } / math.sqrt(2))) / 2 --> {0.5}]] },
        { "special.expit", "`mx.sigmoid(x)`", code = [[mx.sigmoid(mx.tensor { 0 }) --> {0.5}]] },
        { "hypot", "`mx.sqrt(a * a + b * b)`",
            code = [[mx.sqrt(mx.tensor { 3 } ^ 2 + mx.tensor { 4 } ^ 2) --> {5}]] },
        { "logaddexp", "`mx.logsumexp(mx.stack(a, b, { dim = 1 }), { dim = 1 })`", code = [[
mx.logsumexp(mx.stack(mx.tensor { 0 }, mx.tensor { 0 }, { dim = 1 }), { dim = 1 }) --> {0.6931}]] },
        { "xlogy, special.xlogy, special.entr",
            "`mx.where(x:eq(0), 0, x * mx.log(mx.where(x:eq(0), 1, y)))`", code = [[
local x, y = mx.tensor { 0, 1 }, mx.tensor { 0, 1 }
mx.where(x:eq(0), 0, x * mx.log(mx.where(x:eq(0), 1, y))) --> {0, 0}]] },
        { "heaviside", "`x:gt(0):to(\"f32\")`", code = [[mx.tensor({ -1, 2 }):gt(0):to("f32") --> {0, 1}]] },
        { "nan_to_num", "`mx.where(mx.isfinite(x), x, 0)`; nansum and nanmean are of this", code = [[
local x = mx.tensor { 0 / 0, 2 }
mx.where(mx.isfinite(x), x, 0) --> {0, 2}]] },
        { "nansum, nanmean", "`mx.where(mx.isnan(x), 0, x):sum()`, divided by the count of the others", code = [[
local x = mx.tensor { 0 / 0, 2, 4 }
mx.where(mx.isnan(x), 0, x):sum() / (1 - mx.isnan(x)):sum():to("f32") --> 3]] },
        { "logical_not", "`1 - mask`, or `x:eq(0)`", code = [[1 - mx.tensor({ 1, 0 }, "u8") --> {0, 1}]] },
        { "equal", "`mx.all(a:eq(b)):item() == 1`, for tensors of one shape",
            code = [[mx.all(mx.ones(2):eq(1)):item() == 1 --> true]] },
        { "allclose, isclose, testing.assert_close",
            "`(a - b):abs():le(1e-5 * b:abs() + 1e-8)`, and `mx.all` of it", code = [[
local a, b = mx.tensor { 1 }, mx.tensor { 1.000001 }
mx.all((a - b):abs():le(1e-5 * b:abs() + 1e-8)):item() --> 1]] },
        { "isin", "`mx.any(x:unsqueeze { dim = -1 }:eq(list), { dim = -1 })`", code = [[
local x, list = mx.tensor({ 1, 5 }, "i32"), mx.tensor({ 5, 7 }, "i32")
mx.any(x:unsqueeze { dim = -1 }:eq(list), { dim = -1 }) --> {0, 1}]] },
        { "prod, cumprod", "of positive numbers `mx.exp(mx.sum(mx.log(x)))`, and with mx.cumsum",
            code = [[mx.exp(mx.cumsum(mx.log(mx.tensor { 1, 2, 3 }))) --> {1, 2, 6}]] },
        { "logcumsumexp", "`mx.log(mx.cumsum(mx.exp(x - m))) + m`, m being the maximum of x", code = [[
local x = mx.tensor { 0, 0 }
mx.log(mx.cumsum(mx.exp(x - x:max()))) + x:max() --> {0, 0.6931}]] },
        { "cummax, cummin",
            "the maximum over a triangle: `mx.max(mx.where(mx.tril(mx.ones(n, n, \"u8\")), x, -math.huge), { dim = 2 "
            .. "})`", code = [[
local x, n = mx.tensor { 1, 3, 2 }, 3
mx.max(mx.where(mx.tril(mx.ones(n, n, "u8")), x:view(1, -1), -math.huge), { dim = 2 }) --> {1, 3, 3}]] },
        { "diff", "`x[{ {2, -1} }] - x[{ {1, n - 1} }]`", code = [[
local x = mx.tensor { 1, 4, 6 }
x[{ { 2, -1 } }] - x[{ { 1, 2 } }] --> {3, 2}]] },
        { "median, quantile, nanmedian",
            "`mx.sort(x)` and the element in the middle, `sorted[(n + 1) // 2]`", code = [[
local sorted = mx.sort(mx.tensor { 9, 1, 5 })
sorted[(3 + 1) // 2] --> 5]] },
        { "aminmax", "`x:min(), x:max()`", code = [[mx.tensor({ 1, 2 }):min():item() --> 1]] },
        { "var_mean, std_mean", "`x:var(), x:mean()`", code = [[mx.tensor({ 1, 3 }):var():item() --> 2]] },
        { "count_nonzero", "`x:ne(0):sum()`", code = [[mx.tensor({ 1, 0, 3 }):ne(0):sum():item() --> 2]] },
        { "histc, histogram",
            "`mx.scatter_add` at `mx.floor((x - low) / width):to(\"i32\")`; mx.plot draws histograms", code = [[
local x = mx.tensor { 0.1, 0.2, 0.9 }
local bins = mx.floor(x / 0.5):to("i32")
mx.scatter_add(mx.zeros(2), bins, mx.ones(3), { dim = 1 }) --> {2, 1}]] },
        { "mode, unique_consecutive", "mx.unique gives the values and how often each occurs", code = [[
local values, ids, counts = mx.unique(mx.tensor { 4, 7, 4 })
values:get(mx.argmax(counts):item() + 1) --> 4]] },
        { "searchsorted, bucketize",
            "`x:unsqueeze { dim = -1 }:gt(edges):sum { dim = -1 }`: how many edges are below", code = [[
local x, edges = mx.tensor { 0.5, 2 }, mx.tensor { 0, 1, 3 }
x:unsqueeze { dim = -1 }:gt(edges):sum { dim = -1 } --> {1, 2}]] },
        { "linalg.det, det, slogdet, linalg.slogdet, logdet",
            "of a positive definite matrix, the logarithm is `2 * mx.log(mx.einsum(\"ii->i\", "
            .. "mx.linalg.cholesky(a))):sum()`; of a symmetric one, the product of its eigenvalues", code = [[
local a = mx.tensor { { 4, 0 }, { 0, 9 } }
2 * mx.log(mx.einsum("ii->i", mx.linalg.cholesky(a))):sum() --> 3.584]] },
        { "linalg.svd, svd, pca_lowrank, linalg.svdvals, linalg.matrix_rank",
            "the eigenvectors of x^T x are the right singular vectors, the roots of its eigenvalues the singular "
            .. "values; use f64", code = [[
local x = mx.tensor({ { 3, 0 }, { 0, 4 }, { 0, 0 } }, "f64")
local squares, v = mx.linalg.eigh(mx.matmul(x, x, { trans_a = true }))
squares:sqrt() --> {3, 4}
mx.matmul(x, v) / squares:sqrt() --> {{1, 0}, {0, 1}, {0, 0}}]] },
        { "linalg.lstsq, linalg.pinv, pinverse", "`mx.linalg.solve` of the normal equations; use f64", code = [[
local a, b = mx.tensor({ { 1, 0 }, { 1, 1 }, { 1, 2 } }, "f64"), mx.tensor({ 1, 3, 5 }, "f64")
mx.linalg.solve(mx.matmul(a, a, { trans_a = true }), mx.matmul(b, a)) --> {1, 2}]] },
        { "linalg.qr, qr, nn.init.orthogonal_",
            "with mx.linalg.cholesky: r is l transposed, q = a r^-1; use f64", code = [[
local a = mx.randn(5, 3):to("f64")
local l = mx.linalg.cholesky(mx.matmul(a, a, { trans_a = true }))
local q = mx.matmul(a, mx.linalg.inv(l), { trans_b = true })
mx.matmul(q, q, { trans_a = true }):sum():round():item() --> 3]] },
        { "linalg.matrix_power, matrix_power, matrix_exp", "mx.matmul in a loop", code = [[
local a, power = mx.tensor { { 1, 1 }, { 0, 1 } }, mx.eye(2)
for _ = 1, 3 do power = mx.matmul(power, a) end
power --> {{1, 3}, {0, 1}}]] },
        { "linalg.matrix_norm", "`mx.norm(x, { dim = { -2, -1 } })` is the Frobenius norm",
            code = [[mx.norm(mx.tensor { { 3, 0 }, { 0, 4 } }, { dim = { -2, -1 } }):item() --> 5]] },
        { "nn.Identity", "`function(x) return x end`",
            code = [[mx.nn.sequential(function(x) return x end)(mx.ones(1)) --> {1}]] },
        { "nn.Flatten, nn.Unflatten", "`function(x) return x:view(x:size(1), -1) end`", code = [[
mx.nn.sequential(function(x) return x:view(x:size(1), -1) end)(mx.ones(2, 3, 4)):size() --> {2, 12}]] },
        { "nn.ModuleList, nn.ModuleDict, nn.ParameterList",
            "a Lua table of layers; parameters are in your table by name", code = [[
local params, layers = {}, {}
for i = 1, 3 do layers[i] = mx.nn.linear(params, "layer" .. i, 4, 4) end
params["layer3.weight"]:size() --> {4, 4}]] },
        { "nn.Bilinear", "`mx.einsum(\"bi,kij,bj->bk\", x, w, y)`",
            code = [[mx.einsum("bi,kij,bj->bk", mx.ones(1, 2), mx.ones(3, 2, 2), mx.ones(1, 2)) --> {{4, 4, 4}}]] },
        { "nn.RNNCell",
            "`function(x, h) h = mx.tanh(a(x) + b(h or 0 * a(x))) return h, h end`, run by mx.nn.recurrent", code = [[
local params = {}
local a, b = mx.nn.linear(params, "a", 4, 3, { bias = true }), mx.nn.linear(params, "b", 3, 3)
local function cell(x, h)
    h = h and mx.tanh(a(x) + b(h)) or mx.tanh(a(x))
    return h, h
end
mx.nn.recurrent(cell)(mx.ones(2, 5, 4)):size() --> {2, 5, 3}]] },
        { "nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder, nn.TransformerDecoderLayer",
            "mx.nn.attention, mx.nn.mlp and mx.nn.layernorm with sums around them, or a whole decoder of mx.models",
            code = [[
local params = {}
local norm1, norm2 = mx.nn.layernorm(params, "norm1", 8), mx.nn.layernorm(params, "norm2", 8)
local attend, mlp = mx.nn.attention(params, "attention", 8, { heads = 2 }), mx.nn.mlp(params, "mlp", 8, 32)
local function block(x)
    x = x + attend(norm1(x))
    return x + mlp(norm2(x))
end
block(mx.randn { 1, 5, 8 }):size() --> {1, 5, 8}]] },
        { "nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d, nn.AdaptiveMaxPool2d, F.adaptive_max_pool2d, "
            .. "nn.AdaptiveAvgPool1d",
            "`x:mean { dim = { 3, 4 } }` for size 1; mx.avg_pool2d with the size that fits otherwise",
            code = [[mx.ones(2, 3, 4, 4):mean({ dim = { 3, 4 } }):size() --> {2, 3}]] },
        { "F.lp_pool2d, nn.LPPool2d", "mx.avg_pool2d of powers",
            code = [[mx.avg_pool2d(mx.ones(1, 1, 2, 2) ^ 2, { size = 2 }) ^ 0.5 --> {{{{1}}}}]] },
        { "nn.PixelShuffle, F.pixel_shuffle, nn.PixelUnshuffle, F.pixel_unshuffle",
            "mx.permute between two views: (N, C, r, r, H, W) and (N, C, H, r, W, r)", code = [[
local x = mx.arange(4):view(1, 4, 1, 1)
mx.permute(x:view(1, 1, 2, 2, 1, 1), { 1, 2, 5, 3, 6, 4 }):view(1, 1, 2, 2) --> {{{{0, 1}, {2, 3}}}}]] },
        { "F.unfold, nn.Unfold, F.fold, nn.Fold",
            "mx.unfold of one dimension after the other makes patches", code = [[
local x = mx.arange(16):view(1, 1, 4, 4)
local rows = mx.unfold(x, { dim = 3, size = 2, step = 2 })
mx.unfold(rows, { dim = 4, size = 2, step = 2 }):size() --> {1, 1, 2, 2, 2, 2}]] },
        { "nn.Dropout1d, nn.Dropout2d, F.dropout2d",
            "`x * mx.dropout(mx.ones(N, C, 1, 1), { rate = 0.1 })`: whole channels", code = [[
(mx.ones(2, 3, 4, 4) * mx.dropout(mx.ones(2, 3, 1, 1), { rate = 0.1 })):size() --> {2, 3, 4, 4}]] },
        { "nn.SyncBatchNorm", "mx.mean over the batch, then mx.all_reduce with op = \"mean\"",
            code = [[mx.all_reduce(mx.ones(2, 3):mean { dim = 1 }, { op = "mean" }) --> {1, 1, 1}]] },
        { "nn.InstanceNorm1d, nn.InstanceNorm2d", "`mx.group_norm(x, weight, bias, { groups = C })`",
            code = [[mx.group_norm(mx.randn { 2, 3, 4 }, { groups = 3 }):size() --> {2, 3, 4}]] },
        { "nn.PReLU, F.prelu, nn.RReLU", "`mx.maximum(x, 0) + a * mx.minimum(x, 0)`, a being a parameter", code = [[
local x, a = mx.tensor { -4, 4 }, mx.tensor { 0.25 }
mx.maximum(x, 0) + a * mx.minimum(x, 0) --> {-1, 4}]] },
        { "nn.ReLU6, F.relu6, nn.Hardtanh, F.hardtanh", "`mx.clamp(x, { min = 0, max = 6 })`",
            code = [[mx.clamp(mx.tensor { -1, 9 }, { min = 0, max = 6 }) --> {0, 6}]] },
        { "nn.SELU, F.selu, nn.CELU, F.celu",
            "`1.0507009873554805 * mx.elu(x, { alpha = 1.6732632423543772 })`", code = [[
1.0507009873554805 * mx.elu(mx.tensor { 0, 1 }, { alpha = 1.6732632423543772 }) --> {0, 1.051}]] },
        { "nn.Mish, F.mish", "`x * mx.tanh(mx.softplus(x))`", code = [[
local x = mx.tensor { 0, 1 }
x * mx.tanh(mx.softplus(x)) --> {0, 0.8651}]] },
        { "nn.Hardswish, F.hardswish, nn.Hardsigmoid, F.hardsigmoid",
            "`x * mx.clamp(x + 3, { min = 0, max = 6 }) / 6`", code = [[
local x = mx.tensor { -3, 3 }
x * mx.clamp(x + 3, { min = 0, max = 6 }) / 6 --> {0, 3}]] },
        { "nn.Softsign, F.softsign", "`x / (1 + mx.abs(x))`", code = [[
local x = mx.tensor { -1, 3 }
x / (1 + mx.abs(x)) --> {-0.5, 0.75}]] },
        { "nn.LogSigmoid, F.logsigmoid", "`-mx.softplus(-x)`",
            code = [[-mx.softplus(-mx.tensor { 0 }) --> {-0.6931}]] },
        { "nn.Softmin, F.softmin", "`mx.softmax(-x)`", code = [[mx.softmax(-mx.tensor { 1, 1 }) --> {0.5, 0.5}]] },
        { "nn.GLU", "`a * mx.sigmoid(b)` of two halves; mx.gated is the fused form for other activations", code = [[
local a, b = mx.chunk(mx.tensor { 2, 0 }, { n = 2 })
a * mx.sigmoid(b) --> {1}]] },
        { "F.gumbel_softmax",
            "`mx.softmax((logits - mx.log(-mx.log(u))) / tau)`, u being mx.rand in (0, 1); mx.straight_through makes "
            .. "it hard", code = [[
local logits = mx.zeros(2, 3)
local u = mx.rand({ 2, 3 }, { low = 1e-6, high = 1 - 1e-6 })
local soft = mx.softmax(logits - mx.log(-mx.log(u)))
local hard = mx.straight_through(mx.one_hot(mx.argmax(soft, { dim = 2 }), { classes = 3 }), soft)
hard:sum():item() --> 2]] },
        { "nn.BCELoss, F.binary_cross_entropy",
            "mx.bce_with_logits of what is before the sigmoid; of probabilities `-(y * mx.log(p) + (1 - y) * "
            .. "mx.log(1 - p)):mean()`", code = [[
local p, y = mx.tensor { 0.5 }, mx.tensor { 1 }
-(y * mx.log(p) + (1 - y) * mx.log(1 - p)):mean() --> 0.6931]] },
        { "nn.GaussianNLLLoss, F.gaussian_nll_loss", "`(mx.log(v) + (y - m) ^ 2 / v):mean() / 2`", code = [[
local m, y, v = mx.zeros(2), mx.ones(2), mx.ones(2)
(mx.log(v) + (y - m) ^ 2 / v):mean() / 2 --> 0.5]] },
        { "nn.PoissonNLLLoss, F.poisson_nll_loss", "`(mx.exp(x) - y * x):mean()`", code = [[
local x, y = mx.zeros(2), mx.ones(2)
(mx.exp(x) - y * x):mean() --> 1]] },
        { "nn.TripletMarginLoss, F.triplet_margin_loss, nn.MarginRankingLoss, nn.HingeEmbeddingLoss",
            "`mx.relu(near - far + margin):mean()`, of distances", code = [[
local near, far = mx.tensor { 1, 1 }, mx.tensor { 1.5, 9 }
mx.relu(near - far + 1):mean() --> 0.25]] },
        { "nn.CosineEmbeddingLoss", "1 minus the sum of products of unit vectors (see cosine_similarity)",
            code = [[1 - mx.matmul(mx.tensor { 1, 0 }, mx.tensor { 0, 1 }) --> 1]] },
        { "nn.MultiLabelSoftMarginLoss, nn.SoftMarginLoss", "mx.bce_with_logits",
            code = [[mx.bce_with_logits(mx.zeros(2), mx.ones(2)):item() --> 0.6931]] },
        { "nn.MultiMarginLoss",
            "`mx.relu(margin + logits - right)`, right being the logit of the target by mx.gather", code = [[
local logits, target = mx.tensor { { 2, 1.5 } }, mx.tensor({ { 0 } }, "i32")
mx.relu(1 + logits - mx.gather(logits, target, { dim = 2 })):sum():item() - 1 --> 0.5]] },
        { "nn.init.xavier_uniform_, nn.init.xavier_normal_, nn.init.kaiming_normal_, nn.init.kaiming_uniform_, "
            .. "nn.init.eye_, nn.init.calculate_gain",
            "the option std of layers, 1 / sqrt(n_in) unless given: sqrt(2 / n_in) is kaiming_normal_, sqrt(2 / "
            .. "(n_in + n_out)) xavier_normal_. Other values are copied: `mx.copy(params[name]:detach(), values)`",
            code = [[
local params = {}
mx.nn.linear(params, "hidden", 4, 8, { std = math.sqrt(2 / 4) })
mx.copy(params["hidden.weight"]:detach(), mx.rand({ 4, 8 }, { low = -1, high = 1 })):size() --> {4, 8}]] },
        { "nn.utils.parameters_to_vector, nn.utils.vector_to_parameters",
            "`mx.concat` of `t:view(-1)`, in the order of mx.util.sorted_pairs", code = [[
local flat = {}
for _, t in mx.util.sorted_pairs { a = mx.ones(2, 2), b = mx.zeros(1) } do flat[#flat + 1] = t:view(-1) end
mx.concat(flat, { dim = 1 }) --> {1, 1, 1, 1, 0}]] },
        { "nn.utils.weight_norm, nn.utils.parametrizations.weight_norm, nn.utils.spectral_norm",
            "compute the weight in the forward pass: `g * v / mx.norm(v, { dim = 1, keepdim = true })`", code = [[
local v, g = mx.tensor { { 3 }, { 4 } }, mx.ones(1, 1)
g * v / mx.norm(v, { dim = 1, keepdim = true }) --> {{0.6}, {0.8}}]] },
        { "nn.utils.rnn.pad_sequence, nn.utils.rnn.pack_padded_sequence, nested.nested_tensor, "
            .. "nn.utils.rnn.pad_packed_sequence",
            "`mx.pad(t, { before = { 0 }, after = { n } })` and mx.stack; leave padding out of the loss by "
            .. "ignore_index or a mask", code = [[
local a, b = mx.ones(3), mx.ones(2)
mx.stack(a, mx.pad(b, { before = { 0 }, after = { 1 } }), { dim = 1 }) --> {{1, 1, 1}, {1, 1, 0}}]] },
        { "nn.attention.flex_attention, F.multi_head_attention_forward",
            "mx.attention: masks by position as options, any other one as `bias`", code = [[
local x = mx.randn { 1, 4, 2, 8 }
local mask = mx.ones({ 1, 1, 4, 4 }, "u8")
mx.attention(x, x, x, nil, mask):size() --> {1, 4, 2, 8}]] },
        { "autograd.functional.jacobian, func.jacrev, func.jacfwd", "mx.grad of each element, with retain", code = [[
local x = mx.tensor({ 2, 3 }):requires_grad()
local y, rows = x * x, {}
for i = 1, 2 do rows[i] = mx.grad(y[i], x, { retain = true }) end
mx.stack(rows, { dim = 1 }) --> {{4, 0}, {0, 6}}]] },
        { "autograd.functional.hessian, func.hessian", "mx.grad of each element of a recorded gradient", code = [[
local x = mx.tensor({ 2, 3 }):requires_grad()
local g, rows = mx.grad((x ^ 3):sum(), x, { record = true }), {}
for i = 1, 2 do rows[i] = mx.grad(g[i], x, { retain = true }) end
mx.stack(rows, { dim = 1 }) --> {{12, 0}, {0, 18}}]] },
        { "autograd.functional.hvp, autograd.functional.vhp",
            "the gradient of (recorded gradient times vector)", code = [[
local x, v = mx.tensor({ 2, 3 }):requires_grad(), mx.tensor { 1, 0 }
local g = mx.grad((x ^ 3):sum(), x, { record = true })
mx.grad((g * v):sum(), x) --> {12, 0}]] },
        { "autograd.functional.vjp, func.vjp", "`mx.grad(y, x, { grad = v })`", code = [[
local x = mx.tensor({ 2, 3 }):requires_grad()
mx.grad(x * x, x, { grad = mx.tensor { 1, 10 } }) --> {4, 60}]] },
        { "autograd.functional.jvp, func.jvp, func.linearize", "twice mx.grad: the gradient of vjp(u) by u", code = [[
local x, u = mx.tensor({ 2, 3 }):requires_grad(), mx.ones(2):requires_grad()
local g = mx.grad(x * x, x, { grad = u, record = true })
mx.grad(g, u, { grad = mx.tensor { 1, 10 } }) --> {4, 60}]] },
        { "func.functional_call, func.stack_module_state",
            "a model is a function: call it with other parameters", code = [[
local function f(p, x) return mx.matmul(x, p.w) end
f({ w = mx.ones(2, 1) }, mx.ones(1, 2)) --> {{2}}]] },
        { "is_grad_enabled, Tensor.retain_grad",
            "mx.grad gives the gradient of any tensor, a computed one too", code = [[
local x = mx.ones(1):requires_grad()
local h = x * 2
mx.grad((h * h):sum(), h) --> {4}]] },
        { "Tensor.grad_fn, Tensor.next_functions",
            "records are not shown; messages name operation and line, mx.trace_start writes all of them",
            code = [[mx.name(mx.ones(1), 'hidden') --> {1}]] },
        { "Tensor.register_post_accumulate_grad_hook",
            "t:register_hook sees the complete gradient of a backward pass",
            code = [[mx.ones(1):requires_grad():register_hook(function(g) return g end) ~= nil --> true]] },
        { "Tensor.stride, Tensor.is_contiguous, Tensor.storage, Tensor.data_ptr, Tensor.untyped_storage, as_strided",
            "all tensors are contiguous; views share memory, everything else is a copy", code = [[
local x = mx.zeros(2, 2)
x:view(4)[1] = 5
x --> {{5, 0}, {0, 0}}]] },
        { "Tensor.is_cuda, Tensor.device, Tensor.pin_memory, Tensor.share_memory_, set_default_device",
            "there is one device for each rank, and tensors are there", code = [[mx.host_name() ~= nil --> true]] },
        { "float16, Tensor.half, set_default_dtype, get_default_dtype, set_float32_matmul_precision, "
            .. "backends.cuda.matmul.allow_tf32",
            "dtypes are words: \"f32\" (what functions make unless told), \"bf16\", \"f64\"; there is no float16",
            code = [[mx.ones(2, "bf16"):dtype() --> bf16]] },
        { "is_tensor, is_floating_point", "`math.type(x)`, `type(x)`, and mx.dtypes[x:dtype()]",
            code = [[type(mx.ones(1)) --> userdata]] },
        { "use_deterministic_algorithms, backends.cudnn.deterministic",
            "not needed: the same call gives the same bits on any number of threads",
            code = [[mx.randn({ 2 }, { seed = 1 }):eq(mx.randn({ 2 }, { seed = 1 })) --> {1, 1}]] },
        { "Generator, initial_seed, random.fork_rng",
            "the option seed of random operations; mx.manual_seed and mx.random_state for the stream",
            code = [[mx.rand({ 1 }, { seed = 3 }):size() --> {1}]] },
        { "distributions.Normal, Tensor.normal_, Tensor.log_normal_",
            "`mean + std * mx.randn(sizes)`; log_prob is `-((x - mean) / std) ^ 2 / 2 - math.log(std) - math.log(2 * "
            .. "math.pi) / 2`", code = [[
local x, mean, std = mx.zeros(1), 0, 1
-((x - mean) / std) ^ 2 / 2 - math.log(std) - math.log(2 * math.pi) / 2 --> {-0.9189}]] },
        { "distributions.Bernoulli, distributions.OneHotCategorical",
            "mx.bernoulli, mx.multinomial; log_prob is minus mx.bce_with_logits with reduction = \"none\", or "
            .. "mx.gather of mx.log_softmax",
            code = [[-mx.bce_with_logits(mx.zeros(1), mx.ones(1), { reduction = "none" }) --> {-0.6931}]] },
        { "distributions.kl_divergence",
            "of two normal ones `mx.log(s2 / s1) + (s1 ^ 2 + (m1 - m2) ^ 2) / (2 * s2 ^ 2) - 0.5`", code = [[
local m1, s1, m2, s2 = mx.ones(1), mx.ones(1), mx.zeros(1), mx.ones(1)
mx.log(s2 / s1) + (s1 ^ 2 + (m1 - m2) ^ 2) / (2 * s2 ^ 2) - 0.5 --> {0.5}]] },
        { "Tensor.exponential_, distributions.Exponential, distributions.Gumbel",
            "`-mx.log1p(-mx.rand(sizes))`", code = [[mx.all((-mx.log1p(-mx.rand(100))):ge(0)):item() --> 1]] },
        { "optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.Adamax, optim.NAdam, optim.RAdam, optim.Rprop, "
            .. "optim.ASGD", "mx.optim.adamw, or a rule of ten lines by mx.optim.custom", code = [[
local adagrad = mx.optim.custom("adagrad", {
    elementwise = true, moments = function(t) return { sum = { sizes = t:size(), dtype = "f32" } } end,
    update = function(p, grad, state, o)
        mx.add_(state.sum, grad * grad)
        mx.copy(p, p - o.lr * grad / (state.sum:sqrt() + 1e-10))
    end,
})
local w = mx.ones(1):keep():requires_grad()
local optimizer = adagrad({ w = w }, { learning_rate = 0.5 })
mx.backward(w:sum() * 3)
optimizer:step()
w --> {0.5}]] },
        { "optim.SparseAdam", "mx.optim.adamw: gradients of embeddings are dense", code = [[
local params = {}
mx.nn.embedding(params, "table", 10, 4)
mx.optim.adamw(params).kind --> adamw]] },
        { "optim.Optimizer.add_param_group",
            "all groups are given at the start: `groups = { { match = { \"^head\" }, scale = 0.1 } }`; scale is a "
            .. "factor of the rate", code = [[
local params = {}
mx.nn.linear(params, "head", 4, 2)
mx.optim.sgd(params, { learning_rate = 1, groups = { { match = { "^head" }, scale = 0.1 } } }).steps --> 0]] },
        { "optim.Optimizer.state_dict, optim.Optimizer.load_state_dict, optimizer.state_dict, "
            .. "optimizer.load_state_dict",
            "mx.checkpoint saves and loads parameters, optimizer, random streams and data together", code = [[
local params = {}
mx.nn.linear(params, "w", 2, 1)
local all = { params = params, optimizer = mx.optim.sgd(params) }
mx.checkpoint.saver { directory = "/tmp/run", params = params, optimizer = all.optimizer }:save(7, {}, true)
mx.checkpoint.load_newest("/tmp/run", all).step --> 7]] },
        { "StepLR, MultiStepLR, ExponentialLR, CyclicLR, CosineAnnealingWarmRestarts, SequentialLR, SWALR, "
            .. "PolynomialLR", "learning_rate may be any function of the step, which counts from 1", code = [[
local function rate(step) return 0.1 * 0.5 ^ ((step - 1) // 10) end
mx.optim.sgd({}, { learning_rate = rate }):rate(11) --> 0.05]] },
        { "ReduceLROnPlateau",
            "mx.optim.early_stopping says that the loss stands still; then set optimizer.options.learning_rate",
            code = [[
local optimizer, plateau = mx.optim.sgd({}, { learning_rate = 1 }), mx.optim.early_stopping { patience = 2 }
for _ = 1, 3 do
    if plateau:check(5) then optimizer.options.learning_rate = optimizer:rate() / 2 end
end
optimizer:rate() --> 0.5]] },
        { "ConcatDataset, ChainDataset", "mx.concat of the tensors, or one iterator after the other",
            code = [[mx.concat(mx.ones(2, 3), mx.zeros(1, 3), { dim = 1 }):size() --> {3, 3}]] },
        { "Subset, random_split", "rows by ids: `x[ids]`, with mx.permutation for random ones", code = [[
local ids = mx.permutation { n = 10 }
local first, rest = ids[{ { 1, 8 } }], ids[{ { 9, 10 } }]
mx.arange(10)[first]:numel(), mx.arange(10)[rest]:numel() --> 8, 2]] },
        { "Sampler, RandomSampler, WeightedRandomSampler, BatchSampler",
            "the options shuffle and seed of mx.data.dataset; rows of your own choice are `x[ids]`, weighted ones by "
            .. "mx.multinomial", code = [[
local ids = mx.multinomial(mx.tensor { 0, 1 }, { n = 3, replacement = true })
mx.tensor({ 5, 6 })[ids] --> {6, 6, 6}]] },
        { "default_collate, get_worker_info",
            "mx.data.dataset stacks examples; reading needs no worker processes", code = [[
local data = mx.data.dataset(function() return ipairs {} end, { batch = 2 })
data ~= nil --> true]] },
        { "distributed.reduce, distributed.gather, distributed.scatter, distributed.all_gather_into_tensor, "
            .. "distributed.reduce_scatter_tensor",
            "mx.all_reduce, mx.all_gather, mx.shard, mx.reduce_scatter give all ranks their result",
            code = [[mx.all_gather(mx.ones(1, 3), { dim = 1 }):size(1) == mx.ranks() --> true]] },
        { "distributed.all_gather_object, distributed.gather_object, distributed.broadcast_object_list",
            "mx.share_text gives a text of one rank to all; numbers travel in tensors",
            code = [[mx.share_text("a text", 0) --> a text]] },
        { "distributed.ReduceOp", "the option op: \"sum\", \"mean\" or \"max\"",
            code = [[mx.all_reduce(mx.ones(2), { op = "max" }) --> {1, 1}]] },
        { "distributed.new_group, distributed.split_group",
            "mesh axes: mx.mesh_define names them, and the option axis of collectives chooses", code = [[
mx.mesh_define { { name = "data", ici = mx.ranks(), dcn = 1 } }
mx.all_reduce(mx.ones(2), { axis = "data", op = "mean" }) --> {1, 1}]] },
        { "distributed.monitored_barrier",
            "mx.barrier; a rank that does not come ends the run after collective_timeout_s, and is named",
            code = [[mx.barrier()]] },
        { "distributed.is_initialized, distributed.is_available, distributed.destroy_process_group",
            "not needed: mpirun starts the ranks, mx.ranks() is their number", code = [[mx.ranks() >= 1 --> true]] },
        { "distributed.pipelining, distributed.pipelining.schedules",
            "the keys ici_pipeline_parallelism and num_pipeline_microbatches of a run (lua/mx/pipeline/README.md); "
            .. "by hand with mx.send and mx.recv", code = [[mx.pipeline ~= nil --> true]] },
        { "distributed.tensor.parallel, distributed.tensor, DTensor",
            "the keys ici_tensor_parallelism and others of a run (lua/mx/parallel/README.md)",
            code = [[mx.parallel ~= nil --> true]] },
        { "nn.DataParallel", "mpirun -n 2, and mx.reduce_gradient or mx.all_reduce_ of gradients", code = [[
local w = mx.ones(2):keep():requires_grad()
mx.backward(w:sum())
mx.all_reduce_(w:grad(), { op = "mean" }) --> {1, 1}]] },
        { "fft.fft, fft.rfft, fft.ifft, fft.irfft, stft", "products with cosines and sines (n^2 work)", code = [[
local x, n = mx.tensor { 1, 2, 3, 4 }, 4
local angles = mx.einsum("i,j->ij", mx.arange(n), mx.arange(n)) * (2 * math.pi / n)
mx.matmul(angles:cos(), x):round() --> {10, -2, -2, -2}]] },
        { "complex, polar, view_as_complex, view_as_real, real, imag",
            "two tensors, real and imaginary part", code = [[
local re, im = mx.tensor { 3 }, mx.tensor { 4 }
mx.sqrt(re * re + im * im) --> {5}]] },
        { "sparse_coo_tensor, sparse_csr_tensor, sparse.mm",
            "ids and values: mx.index_select, then mx.scatter_add", code = [[
local row, column, value = mx.tensor({ 0, 1, 1 }, "i32"), mx.tensor({ 1, 0, 1 }, "i32"), mx.tensor { 2, 3, 4 }
local x = mx.tensor { 10, 100 }
mx.scatter_add(mx.zeros(2), row, value * mx.index_select(x, column), { dim = 1 }) --> {200, 430}]] },
        { "hub.load", "mx.weights reads Hugging Face folders and GGUF files", code = [[mx.weights ~= nil --> true]] },
        { "onnx.export, export.export", "mx.weights.save writes a Hugging Face folder",
            code = [[mx.weights.save ~= nil --> true]] },
        { "quantization.quantize_dynamic, ao.quantization",
            "the key quantization of a run, or mx.quantize and mx.scaled_matmul", code = [[
local codes, scale = mx.quantize(mx.tensor { { 1, -2 } }, { dtype = "i8", by = "row" })
codes:dtype() --> i8]] },
        { "cuda.Stream, cuda.stream", "the option async of collectives; other operations run at once",
            code = [[mx.all_reduce(mx.ones(1), { async = true }):wait() --> {1}]] },
        { "Module.apply, Module.to, Module.named_modules, Module.children, Module.modules",
            "a loop over your table of parameters", code = [[
local params = {}
mx.nn.linear(params, "a", 2, 2)
for name, t in mx.util.sorted_pairs(params) do local _ = name, t:size() end]] },
        { "register_forward_hook, Module.register_forward_hook, register_full_backward_hook",
            "wrap the layer in a function; t:register_hook for gradients", code = [[
local seen
local function layer(x) return x * 2 end
local function watched(x)
    seen = layer(x)
    return seen
end
watched(mx.ones(1))
seen --> {2}]] },
    },
    { title = "Not here", elsewhere = true,
        { "acos, asin, atan, atan2, asinh, acosh, atanh, sinc",
            "no inverse trigonometric functions of tensors; mx.custom makes one of mx functions" },
        { "erfinv, special.erfinv, lgamma, digamma, polygamma, special.gammaln, special.bessel_j0, special.zeta, i0",
            "no such special functions; erf, exp, log1p and expm1 are there" },
        { "linalg.eig, linalg.eigvals, linalg.schur",
            "no eigenvalues of matrices that are not symmetric; mx.linalg.eigh is for symmetric ones" },
        { "distributions.Beta, distributions.Gamma, distributions.Dirichlet, distributions.Poisson, poisson, "
            .. "distributions.StudentT, distributions.VonMises",
            "no draws of this distribution; normal, uniform, Bernoulli, categorical and truncated normal are there" },
        { "nn.Conv3d, F.conv3d, nn.MaxPool3d, nn.AvgPool3d, nn.ConvTranspose3d",
            "no convolutions over three dimensions; mx.conv2d of each slice, added up" },
        { "F.grid_sample, F.affine_grid",
            "no sampling at other places than a grid of the new size, which is mx.interpolate; mx.gather takes any "
            .. "ids" },
        { "nn.MaxUnpool2d, F.max_unpool2d, F.fractional_max_pool2d",
            "no inverse of pooling; mx.interpolate and mx.conv_transpose2d make images larger" },
        { "nn.CTCLoss, F.ctc_loss", "no connectionist temporal classification" },
        { "nn.AdaptiveLogSoftmaxWithLoss",
            "mx.cross_entropy never holds all logits, so large vocabularies need no approximation" },
        { "nn.LocalResponseNorm, F.local_response_norm, nn.AlphaDropout",
            "not there; mx.group_norm and mx.dropout are" },
        { "optim.LBFGS", "no quasi-Newton method; mx.grad with record gives Hessian-vector products" },
        { "nn.LazyLinear, nn.LazyConv2d", "sizes are given when a layer is made" },
        { "combinations",
            "no lists of combinations; mx.nonzero(mx.triu(mx.ones(n, n), { diagonal = 1 })) has the pairs" },
        { "Tensor.map_, Tensor.apply_", "no Lua function for each element: operations work on whole tensors" },
        { "multiprocessing, utils.cpp_extension, ops, library",
            "operations in C are added to the engine: engine/ops/README.md" },
    },
}
