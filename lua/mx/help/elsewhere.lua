--- What mx.help says of names of PyTorch that have no function of their own here: what to write instead. Entries
--- { names, text, code = example }; an example shows the text's expression, or several. `elsewhere` begins the answer.

return {
    { title = "Tensors of PyTorch, by other functions", elsewhere = "Written with other functions",
        { "empty_like, full_like, new_zeros, new_ones, new_full, new_empty, new_tensor",
            "`mx.full(x:size(), 7, x:dtype())`, and `mx.zeros`, `mx.ones` likewise", code = [[
local x = mx.zeros(2)
mx.full(x:size(), 7, x:dtype()) --> {7, 7}]] },
        { "logspace", "`10 ^ x` as `mx.exp(x * math.log(10))`, with x = mx.linspace(first, last, n)",
            code = [[mx.exp(mx.linspace(0, 2, 3) * math.log(10)) --> {1, 10, 100}]] },
        { "einops.rearrange, einops.reduce, einops.repeat, func.rearrange",
            "`t:view` and `mx.permute`, a reduction over `dim`, `mx.expand` and `mx.tile`; mx.einsum names dimensions",
            code = [[
local images, p = mx.arange(16):view(1, 1, 4, 4), 2 -- b c (h p) (w q) -> b (h w) (p q c)
local patches = mx.permute(images:view(1, 1, 2, p, 2, p), { 1, 3, 5, 4, 6, 2 }):view(1, 4, -1)
patches[{ 1, 2 }] --> {2, 3, 6, 7}]] },
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
        { "diag_embed, diagflat, fill_diagonal_", "`mx.eye(n) * x`: each column times its element of x",
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
        { "torch_geometric.utils.softmax, scatter_softmax, segment_softmax, MessagePassing",
            "e^x, divided by its sum over the segment, which mx.scatter_add makes; ids has the segment of each row",
            code = [[
local ids, x = mx.tensor({ 0, 0, 1 }, "i32"), mx.tensor { { 0 }, { 0 }, { 5 } } -- scores of edges by target node
local e = mx.exp(x - x:detach():max())
local sums = mx.scatter_add(mx.zeros(2, 1), mx.expand(ids:view(-1, 1), x:size()), e, { dim = 1 })
e / sums[ids] --> {{0.5}, {0.5}, {1}}]] },
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
        { "trunc, fix, frac", "`mx.sign(x) * mx.floor(mx.abs(x))`, and x minus that", code = [[
local x = mx.tensor { -1.5, 2.25 }
mx.sign(x) * mx.floor(mx.abs(x)) --> {-1, 2}]] },
        { "reciprocal", "`1 / x`", code = [[1 / mx.tensor { 2, 4 } --> {0.5, 0.25}]] },
        { "exp2", "`mx.exp(x * math.log(2))`", code = [[mx.exp(mx.tensor { 3 } * math.log(2)) --> {8}]] },
        { "log2, log10", "`mx.log(x) / math.log(2)`", code = [[mx.log(mx.tensor { 8 }) / math.log(2) --> {3}]] },
        { "sinc", "`mx.where(x:eq(0), 1, mx.sin(x * math.pi) / (x * math.pi))`", code = [[
local x = mx.tensor { 0, 0.5 }
mx.where(x:eq(0), 1, mx.sin(x * math.pi) / (x * math.pi)) --> {1, 0.6366}]] },
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
        { "logaddexp, logaddexp2", "`mx.logsumexp(mx.stack(a, b, { dim = 1 }), { dim = 1 })`", code = [[
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
        { "median, quantile, nanquantile, nanmedian",
            "`mx.sort(x)` and the element in the middle, `sorted[(n + 1) // 2]`; a quantile q is at 1 + q (n - 1)",
            code = [[
local sorted, n = mx.sort(mx.tensor { 9, 1, 5 }), 3
sorted[(n + 1) // 2] --> 5
local at = 1 + 0.25 * (n - 1)
local low, share = at // 1 | 0, at % 1
sorted[low] * (1 - share) + sorted[math.min(low + 1, n)] * share --> 3]] },
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
        { "linalg.lstsq, linalg.pinv, pinverse", "by mx.linalg.qr; a pseudo-inverse of any rank by mx.linalg.svd",
            code = [[
local a, b = mx.tensor { { 1, 0 }, { 1, 1 }, { 1, 2 } }, mx.tensor { 1, 3, 5 }
local q, r = mx.linalg.qr(a)
mx.linalg.solve(r, mx.matmul(b, q)) --> {1, 2}
local u, s, vh = mx.linalg.svd(a)
mx.matmul(vh.T / s, u, { trans_b = true }):size() --> {2, 3}]] },
        { "linalg.matrix_rank, linalg.cond, nuclear_norm", "of the singular values", code = [[
local _, s = mx.linalg.svd(mx.tensor { { 3, 0 }, { 0, 4 } })
s:gt(1e-5 * s[1]):sum():item() --> 2
s[1] / s[-1], s:sum():item() --> 1.333, 7]] },
        { "linalg.matrix_power, matrix_power, matrix_exp", "mx.matmul in a loop", code = [[
local a, power = mx.tensor { { 1, 1 }, { 0, 1 } }, mx.eye(2)
for _ = 1, 3 do power = mx.matmul(power, a) end
power --> {{1, 3}, {0, 1}}]] },
        { "linalg.matrix_norm", "`mx.norm(x, { dim = { -2, -1 } })` is the Frobenius norm",
            code = [[mx.norm(mx.tensor { { 3, 0 }, { 0, 4 } }, { dim = { -2, -1 } }):item() --> 5]] },
        { "Tensor.stride, Tensor.is_contiguous, storage_offset, resize_, resize_as_, resize_as, reshape_as, "
            .. "empty_strided, layout, Tensor.storage, Tensor.data_ptr, Tensor.untyped_storage, as_strided",
            "all tensors are contiguous; views share memory, everything else is a copy", code = [[
local x = mx.zeros(2, 2)
x:view(4)[1] = 5
x --> {{5, 0}, {0, 0}}]] },
        { "Tensor.is_cuda, Tensor.device, is_cpu, is_pinned, is_shared, get_device, get_default_device, "
            .. "record_stream, Tensor.pin_memory, Tensor.share_memory_, set_default_device",
            "there is one device for each rank, and tensors are there", code = [[mx.host_name() ~= nil --> true]] },
        { "float16, fp16, half precision, Tensor.half, HalfTensor, set_default_dtype, set_default_tensor_type, "
            .. "get_default_dtype, set_float32_matmul_precision, get_float32_matmul_precision, "
            .. "backends.cuda.matmul.allow_tf32",
            "dtypes are words: \"f32\" (what functions make unless told), \"bf16\", \"f64\"; there is no float16",
            code = [[mx.ones(2, "bf16"):dtype() --> bf16]] },
        { "is_tensor, is_floating_point", "`math.type(x)`, `type(x)`, and mx.dtypes[x:dtype()]",
            code = [[type(mx.ones(1)) --> userdata]] },
        { "Tensor.exponential_, geometric_, cauchy_, random_, distributions.Exponential, distributions.Gumbel",
            "with u = mx.rand(sizes): exponential `-mx.log1p(-u)`, geometric `mx.ceil(mx.log1p(-u) / math.log(1 - "
            .. "p))`, Cauchy `mx.tan(math.pi * (u - 0.5))`, Gumbel `-mx.log(-mx.log(u))`; random_ is "
            .. "mx.randint", code = [[mx.all((-mx.log1p(-mx.rand(100))):ge(0)):item() --> 1]] },
        { "fft.rfft2, fft.irfft2, fft.fft2, fft.ifft2, fft.fftn, fft.ifftn, fft.rfftn, fft.irfftn",
            "mx.rfft of rows, then mx.fft of columns; backwards mx.fft with inverse, then mx.irfft", code = [[
local x = mx.tensor { { 1, 2 }, { 3, 4 } }
local re, im = mx.rfft(x)
re, im = mx.fft(re:transpose { dim1 = -2, dim2 = -1 }, im:transpose { dim1 = -2, dim2 = -1 }) -- columns are rows here
re --> {{10, -4}, {-2, 0}}]] },
        { "fft.fftfreq, fft.rfftfreq, fft.fftshift, fft.ifftshift",
            "frequency k of rows of n elements is `k / n`, and those above n / 2 are negative; mx.roll shifts",
            code = [[
local n = 4
mx.arange(n // 2 + 1) / n --> {0, 0.25, 0.5}
mx.roll(mx.arange(n), { shift = n // 2, dim = 1 }) --> {2, 3, 0, 1}]] },
        { "stft, istft, spectrogram, return_complex",
            "mx.rfft of windows by mx.unfold; back, windows are added up by mx.scatter_add",
            code = [[
local x, n = mx.sin(mx.arange(64) * (math.pi / 4)), 16
local window = (1 - mx.cos(mx.arange(n) * (2 * math.pi / n))) / 2
local re, im = mx.rfft(mx.unfold(x, { size = n, step = 8 }) * window)
local power = re * re + im * im
power:size() --> {7, 9}
power:argmax { dim = 2 } --> {2, 2, 2, 2, 2, 2, 2}]] },
        { "fftconv, signal.fftconvolve, fftconvolve, long convolution, Hyena", "products of mx.rfft, back by mx.irfft: "
            .. "see the example of mx.irfft; short kernels are faster by mx.conv1d",
            code = [[mx.conv1d(mx.ones(1, 1, 4), mx.ones(1, 1, 3), { padding = "causal" }) --> {{{1, 2, 3, 3}}}]] },
        { "fft.hfft, fft.ihfft, fft.hfft2, fft.hfftn, dct, mdct",
            "by mx.fft and mx.rfft: a DCT is the real part of rows that are mirrored",
            code = [[
local x, n = mx.tensor { 1, 2, 4 }, 3
local re, im = mx.rfft(mx.concat(x, mx.flip(x, { dim = 1 }), { dim = 1 }), { frequencies = n })
local turn = mx.arange(n) * (math.pi / (2 * n))
(re * turn:cos() + im * turn:sin()):mul(100):round() --> {1400, -520, 100}]] },
        { "nn.Conv3d, F.conv3d", "a sum of mx.conv2d over the depth of the kernel; a stride and padding of depth are "
            .. "a step of the slice and mx.pad", code = [[
local function conv3d(x, w, options) -- x (N, C, D, H, W), w (K, C, kD, kH, kW); options of mx.conv2d, for H and W
    local n, depth = x:size(1), x:size(3) - w:size(3) + 1
    local y = 0
    for k = 1, w:size(3) do
        local part = x[{ {}, {}, { k, k + depth - 1 } }]:permute { dims = { 1, 3, 2, 4, 5 } }
        part = part:reshape { n * depth, x:size(2), x:size(4), x:size(5) }
        y = mx.conv2d(part, w[{ {}, {}, k }], options) + y
    end
    return y:view(n, depth, w:size(1), y:size(3), y:size(4)):permute { dims = { 1, 3, 2, 4, 5 } }
end
local x, w = mx.arange(54):view(1, 2, 3, 3, 3), mx.arange(16):view(1, 2, 2, 2, 2)
conv3d(x, w):view(2, 4) --> {{3436, 3556, 3796, 3916}, {4516, 4636, 4876, 4996}}
conv3d(x, mx.ones(4, 2, 1, 3, 3), { padding = 1 }):size() --> {1, 4, 3, 3, 3}]] },
        { "complex, complex64, polar, conj, Tensor.H, Tensor.mH, resolve_conj, is_conj, isreal, view_as_complex, "
            .. "view_as_real, real, imag", "two tensors, real and imaginary part", code = [[
local re, im = mx.tensor { 3 }, mx.tensor { 4 }
mx.sqrt(re * re + im * im) --> {5}]] },
        { "sparse_coo_tensor, sparse_csc_tensor, to_sparse, to_dense, is_sparse, coalesce, spmm, smm, "
            .. "sparse_csr_tensor, sparse.mm", "ids and values: mx.index_select, then mx.scatter_add", code = [[
local row, column, value = mx.tensor({ 0, 1, 1 }, "i32"), mx.tensor({ 1, 0, 1 }, "i32"), mx.tensor { 2, 3, 4 }
local x = mx.tensor { 10, 100 }
mx.scatter_add(mx.zeros(2), row, value * mx.index_select(x, column), { dim = 1 }) --> {200, 430}]] },
        { "addr, ger, vecdot, linalg.vecdot, linalg.multi_dot, linalg.matmul, adjoint",
            "mx.einsum and mx.matmul; `a:view(-1, 1) * b` is the outer product",
            code = [[mx.tensor({ 1, 2 }):view(-1, 1) * mx.tensor { 3, 4 } --> {{3, 4}, {6, 8}}]] },
        { "atleast_1d, atleast_2d, atleast_3d, broadcast_tensors, broadcast_shapes, moveaxis, row_stack",
            "`t:unsqueeze { dim = 1 }`, mx.expand, mx.permute, mx.concat",
            code = [[mx.arange(2):unsqueeze({ dim = 1 }):size() --> {1, 2}]] },
        { "hsplit, vsplit, dsplit, split_with_sizes, unsafe_split, unsafe_chunk",
            "`mx.split(t, { size = n, dim = 2 })`, `mx.split(t, { sizes = { a, b } })`", code = [[
local left, right = mx.split(mx.arange(4):view(2, 2), { size = 1, dim = 2 })
right --> {{1}, {3}}]] },
        { "block_diag", "mx.pad of each block, added up", code = [[
local a, b = mx.ones(1, 1), mx.full({ 1, 1 }, 2)
local one, two = { 0, 0 }, { 1, 1 }
mx.pad(a, { before = one, after = two }) + mx.pad(b, { before = two, after = one }) --> {{1, 0}, {0, 2}}]] },
        { "cov, corrcoef", "`mx.matmul(x, x, { trans_b = true }) / (n - 1)` of rows without their mean; corrcoef is "
            .. "that of rows that are divided by their standard deviation, too", code = [[
local x = mx.tensor { { 1, 3 }, { 2, 6 } }
x = x - x:mean { dim = 2, keepdim = true }
mx.matmul(x, x, { trans_b = true }) / (2 - 1) --> {{2, 4}, {4, 8}}]] },
        { "fmax, fmin", "mx.maximum and mx.minimum, which give NaN where one is NaN",
            code = [[mx.maximum(mx.tensor { 1 }, mx.tensor { 2 }) --> {2}]] },
        { "hann_window, hamming_window, blackman_window, bartlett_window, kaiser_window",
            "`(1 - mx.cos(mx.arange(n) * (2 * math.pi / n))) / 2` is the periodic Hann window",
            code = [[(1 - mx.cos(mx.arange(4) * (2 * math.pi / 4))) / 2 --> {0, 0.5, 1, 0.5}]] },
        { "unravel_index", "`ids // columns` and `ids % columns`", code = [[
local ids = mx.tensor({ 5 }, "i32")
ids // 3, ids % 3 --> {1}, {2}]] },
        { "trapezoid, trapz, cumulative_trapezoid, gradient",
            "`(y[{ {2, -1} }] + y[{ {1, n - 1} }]) / 2 * dx`, summed", code = [[
local y = mx.tensor { 0, 1, 2 }
((y[{ { 2, -1 } }] + y[{ { 1, 2 } }]) / 2):sum():item() --> 2]] },
        { "copysign, signbit", "`mx.where(y:lt(0), -mx.abs(x), mx.abs(x))`, `x:lt(0)`; the sign of -0 is not seen",
            code = [[
local x, y = mx.tensor { 1, -2 }, mx.tensor { -3, 3 }
mx.where(y:lt(0), -mx.abs(x), mx.abs(x)) --> {-1, 2}]] },
        { "ldexp", "`x * 2 ^ n` as `x * mx.exp(n * math.log(2))`", code = [[
mx.tensor { 3 } * mx.exp(mx.tensor { 2 } * math.log(2)) --> {12}]] },
        { "rad2deg, deg2rad, positive, rsub",
            "arithmetic with numbers: `x * (180 / math.pi)`",
            code = [[mx.tensor { math.pi } * (180 / math.pi) --> {180}]] },
        { "randint_like, rand_like, scalar_tensor, asarray",
            "`mx.randint(x:size(), { high = 10 })`; `mx.tensor(5)`",
            code = [[mx.randint(mx.ones(2):size(), { low = 3, high = 4 }) --> {3, 3}]] },
        { "vander", "`x:view(-1, 1) ^ mx.arange(n)`",
            code = [[mx.tensor({ 2, 3 }):view(-1, 1) ^ mx.arange(3) --> {{1, 2, 4}, {1, 3, 9}}]] },
        { "isposinf, isneginf, is_nonzero, is_same_size", "`x:eq(math.huge)`, `x:item() ~= 0`",
            code = [[mx.tensor({ math.huge, 1 }):eq(math.huge) --> {1, 0}]] },
        { "msort", "`mx.sort(x, { dim = 1 })`",
            code = [[mx.sort(mx.tensor { { 2 }, { 1 } }, { dim = 1 }) --> {{1}, {2}}, {{1}, {0}}]] },
        { "renorm", "`x * mx.minimum(most / mx.norm(x, { dim = 2, keepdim = true }), 1)`", code = [[
local x = mx.tensor { { 3, 4 }, { 0, 1 } }
x * mx.minimum(1 / mx.norm(x, { dim = 2, keepdim = true }), 1) --> {{0.6, 0.8}, {0, 1}}]] },
        { "slice_inverse, select_scatter, diagonal_scatter, as_strided_scatter, put, put_",
            "`t[part] = value` outside of recording, mx.write_slice", code = [[
local t = mx.zeros(2, 2)
t[{ 1, {} }] = 5
t --> {{5, 5}, {0, 0}}]] },
        { "linalg.lu, linalg.lu_factor, linalg.lu_factor_ex, lu, lu_unpack, linalg.lu_solve, triangular_solve, "
            .. "cholesky_inverse, linalg.solve_ex, linalg.inv_ex, linalg.cholesky_ex, linalg.tensorinv",
            "mx.linalg.solve factors and solves at once; mx.linalg.inv, mx.linalg.cholesky",
            code = [[mx.linalg.solve(mx.eye(1) * 2, mx.ones(1)) --> {0.5}]] },
        { "linalg.matrix_sqrth, symeig", "any function of a symmetric matrix, such as a power, by mx.linalg.eigh",
            code = [[
local w, v = mx.linalg.eigh(mx.tensor { { 4, 0 }, { 0, 9 } })
mx.matmul(v * w:sqrt(), v, { trans_b = true }) --> {{2, 0}, {0, 3}}]] },
        { "linalg.diagonal, linalg.cross, frobenius_norm, linalg.tensorsolve, linalg.vander",
            "as diagonal, cross, matrix_norm, solve and vander",
            code = [[mx.norm(mx.tensor { { 3, 4 } }):item() --> 5]] },
        { "result_type, promote_types, can_cast, is_complex, is_signed, typename",
            "mx.dtypes has the properties of each dtype", code = [[mx.dtypes.bf16 ~= nil --> true]] },
        { "segment_sum",
            "mx.scatter_add with the number of each element's segment; mx.grouped_column_sum for runs",
            code = [[mx.grouped_column_sum(mx.ones(3, 1), mx.tensor({ 2, 1 }, "i32")) --> {{2}, {1}}]] },
        { "from_dlpack, to_dlpack, from_file", "files of numpy: mx.load_npy, mx.save_npy; mx.from_bytes",
            code = [[mx.from_bytes("\1", { dtype = "u8" }) --> {1}]] },
    },
    { title = "Not here", elsewhere = "Not here",
        { "special.log_ndtr, special.gammainc, special.gammaincc, "
            .. "special.erfcx, special.xlog1py, special.i0e, special.i1, special.bessel_j1, "
            .. "special.bessel_j0, special.bessel_y0, special.bessel_y1, special.i1e, special.airy_ai, "
            .. "special.modified_bessel_i0, special.modified_bessel_k0, special.spherical_bessel_j0, "
            .. "special.legendre_polynomial_p, special.chebyshev_polynomial_t, special.hermite_polynomial_h, "
            .. "special.laguerre_polynomial_l, special.zeta, i0, igamma, igammac, "
            .. "gcd, lcm, frexp, nextafter",
            "not here; mx has erf, erfinv, lgamma, digamma, exp, log1p and expm1, and mx.custom makes others of mx "
            .. "functions" },
        { "linalg.eig, linalg.eigvals, linalg.schur, lobpcg, linalg.ldl_factor, linalg.householder_product, geqrf, "
            .. "orgqr, ormqr, linalg.ldl_solve",
            "no eigenvalues of matrices that are not symmetric; mx.linalg.eigh is for symmetric ones" },
        { "distributions.Beta, distributions.Gamma, distributions.Dirichlet, distributions.Poisson, poisson, "
            .. "distributions.StudentT, distributions.VonMises, distributions.Chi2, distributions.NegativeBinomial, "
            .. "distributions.Wishart, binomial",
            "no draws of this distribution; normal, uniform, Bernoulli, categorical and truncated normal are there" },
        { "nn.MaxPool3d, nn.AvgPool3d, nn.ConvTranspose3d, F.conv_transpose3d, F.max_pool3d, "
            .. "F.avg_pool3d, F.adaptive_avg_pool3d, nn.AdaptiveMaxPool3d, F.adaptive_max_pool3d, F.lp_pool3d, "
            .. "nn.LPPool3d, F.conv_tbc",
            "no pooling over three dimensions and no transposed convolution; nn.Conv3d is a sum of mx.conv2d" },
        { "F.grid_sample, F.affine_grid, grid_sampler, grid_sampler_2d, affine_grid_generator",
            "no sampling at other places than a grid of the new size, which is mx.interpolate; mx.gather takes any "
            .. "ids" },
        { "nn.MaxUnpool1d, nn.MaxUnpool2d, F.max_unpool2d, F.fractional_max_pool2d, nn.FractionalMaxPool2d, "
            .. "F.max_pool1d_with_indices, F.max_pool2d_with_indices, F.max_pool3d_with_indices, F.max_unpool1d, "
            .. "nn.MaxUnpool3d, F.max_unpool3d, F.fractional_max_pool3d, nn.FractionalMaxPool3d",
            "no inverse of pooling; mx.interpolate and mx.conv_transpose2d make images larger" },
        { "parquet, arrow, pyarrow, zarr, feather", "convert such files to .npy, .npz, CSV, HDF5 or lines of JSON" },
        { "nn.CTCLoss, F.ctc_loss", "no connectionist temporal classification" },
        { "nn.AdaptiveLogSoftmaxWithLoss",
            "mx.cross_entropy never holds all logits, so large vocabularies need no approximation" },
        { "nn.LocalResponseNorm, F.local_response_norm, nn.AlphaDropout, F.alpha_dropout, nn.FeatureAlphaDropout, "
            .. "F.feature_alpha_dropout, nn.CrossMapLRN2d",
            "not there; mx.group_norm and mx.dropout are" },
        { "optim.LBFGS", "no quasi-Newton method; mx.grad with record gives Hessian-vector products" },
        { "nn.LazyLinear, nn.LazyConv1d, nn.LazyConv2d, nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, "
            .. "nn.UninitializedParameter, nn.UninitializedBuffer, nn.LazyConv3d, nn.LazyBatchNorm3d, "
            .. "nn.LazyConvTranspose1d, nn.LazyConvTranspose2d, nn.LazyInstanceNorm1d, nn.LazyInstanceNorm2d",
            "sizes are given when a layer is made" },
        { "combinations",
            "no lists of combinations; mx.nonzero(mx.triu(mx.ones(n, n), { diagonal = 1 })) has the pairs" },
        { "Tensor.map_, Tensor.apply_", "no Lua function for each element: operations work on whole tensors" },
        { "multiprocessing, utils.cpp_extension, ops, library",
            "operations in C are added to the engine: engine/ops/README.md" },
    },
}
