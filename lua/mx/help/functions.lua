--- What mx.help says of tensors, gradients, layers, optimizers and data. Entries { call, text, torch = names of
--- PyTorch, code = example } in sections, as in operations.lua. "t:" stands for a tensor, other words before ":" for an
--- object of that kind.

return {
    { title = "Tensors",
        { "tensor(values, dtype)", "A tensor from a number or nested tables. The dtype is f32 by default.",
            torch = "tensor, as_tensor, from_numpy, FloatTensor, LongTensor, IntTensor, DoubleTensor, BoolTensor, "
            .. "ByteTensor, autograd.Variable", code = [[
mx.tensor({ { 1, 2 }, { 3, 4 } }, "i32"):size() --> {2, 2}]] },
        { "zeros(sizes, dtype)", "A tensor of zeros; mx.zeros(x:size(), x:dtype()) is like x.", torch = "zeros, "
            .. "zeros_like, empty",
            code = "mx.zeros(2) --> {0, 0}" },
        { "ones(sizes, dtype)", "A tensor of ones; mx.ones(x:size(), x:dtype()) is like x.", torch = "ones, ones_like",
            code = "mx.ones { 1, 2 } --> {{1, 1}}" },
        { "eye(n, dtype)", "The identity matrix.", torch = "eye", code = "mx.eye(2) --> {{1, 0}, {0, 1}}" },
        { "linspace(first, last, n, dtype)", "n numbers at equal distances, both ends included.", torch = "linspace",
            code = "mx.linspace(0, 1, 3) --> {0, 0.5, 1}" },
        { "t:size(dim)", "The sizes as a list, or the size of one dimension.", torch = "Tensor.size, shape",
            code = "mx.zeros(2, 3):size(2) --> 3" },
        { "t:dim()", "The number of dimensions.", torch = "Tensor.dim, ndim, ndimension",
            code = "mx.zeros(2, 3):dim() --> 2" },
        { "t:numel()", "The number of elements.", torch = "Tensor.numel, nelement",
            code = "mx.zeros(2, 3):numel() --> 6" },
        { "t:dtype()", "The dtype: f32, bf16, f64, i32, i64, u8, i8, e4m3, e5m2, e4m3fnuz or e5m2fnuz.",
            torch = "Tensor.dtype",
            code = "mx.zeros(2):dtype() --> f32" },
        { "t:bytes()", "The bytes of the values.", torch = "Tensor.nbytes, element_size, itemsize",
            code = "mx.zeros(3):bytes() --> 12" },
        { "t:item()", "The value of a tensor with one element, as a number.", torch = "Tensor.item",
            code = "mx.ones(3):sum():item() --> 3" },
        { "t:get(i, j, ...)", "One element. Positions count from 1.",
            code = "mx.tensor { { 1, 2 } }:get(1, 2) --> 2" },
        { "t:set(i, j, ..., value)", "Sets one element. This is not recorded.", code = [[
local t = mx.zeros(2)
t:set(2, 7)
t --> {0, 7}]] },
        { "t:totable()", "All elements as nested tables.", torch = "Tensor.numpy",
            code = "mx.ones(2):totable() --> {1, 1}" },
        { "t:tolist()", "The same as t:totable().", torch = "Tensor.tolist",
            code = "mx.ones(2):tolist() --> {1, 1}" },
        { "t:view(sizes)", "The same values in another shape; one size may be -1.",
            torch = "Tensor.view, view_as", code = "mx.arange(4):view(2, -1) --> {{0, 1}, {2, 3}}" },
        { "t:squeeze()", "A view without dimensions of size 1; { dim = 2 } removes only this one.", torch = "squeeze",
            code = "mx.zeros(1, 3, 1):squeeze():size() --> {3}" },
        { "t:unsqueeze { dim = }", "A view with a further dimension of size 1.",
            torch = "unsqueeze, x[None], np.newaxis, expand_dims",
            code = "mx.zeros(3):unsqueeze { dim = 2 }:size() --> {3, 1}" },
        { "split(t, options)", "Parts of { size = n } elements, or of { sizes = {a, b} }, along dim (default 1), as "
            .. "several values. A last smaller part is allowed.", torch = "split, unbind, tensor_split", code = [[
local a, b = mx.split(mx.arange(3), { size = 2 })
b --> {2}]] },
        { "chunk(t, options)", "At most n parts of one size along dim (default 1), as several values.",
            torch = "chunk", code = [[
local a, b = mx.chunk(mx.arange(4), { n = 2 })
b --> {2, 3}]] },
        { "t:to(dtype)", "The values in another dtype.", torch = "Tensor.to, cuda, cpu, type_as, astype", code = [[
mx.tensor { 1.5 }:to("i32") --> {1}]] },
        { "t:clone()", "A copy. Gradients flow through it.", torch = "clone, contiguous, deepcopy",
            code = "mx.ones(2):clone() --> {1, 1}" },
        { "t:detach()", "The same values without gradient.", torch = "detach, Tensor.data", code = [[
mx.ones(2):requires_grad():detach():requires_grad() ~= nil --> true]] },
        { "t:requires_grad(on)", "Marks a leaf whose gradient is wanted, and returns it; false freezes it.",
            torch = "requires_grad_, requires_grad, is_leaf", code = [[
local w = mx.ones(2):requires_grad()
mx.backward((w * 3):sum())
w:grad() --> {3, 3}]] },
        { "t:grad()", "The gradient that backward passes have added up, or nil.", torch = "Tensor.grad", code = [[
local w = mx.ones(2):requires_grad()
w:grad() --> nil]] },
        { "t:zero_grad()", "Discards the gradient.", torch = "Tensor.zero_grad, w.grad = None", code = [[
local w = mx.ones(2):requires_grad()
mx.backward(w:sum())
w:zero_grad()
w:grad() --> nil]] },
        { "t:register_hook(fn)", "Calls fn(gradient) in each backward pass. A tensor that it returns takes the "
            .. "gradient's place.", torch = "register_hook", code = [[
local w = mx.ones(2):requires_grad()
w:register_hook(function(g) return g * 10 end)
mx.backward(w:sum())
w:grad() --> {10, 10}]] },
        { "t:keep()", "Takes a tensor out of the current step or scope, "
            .. "which then does not release it. Returns it.", code = [[
local kept
do
    local step <close> = mx.step()
    kept = mx.ones(2):keep()
end
kept --> {1, 1}]] },
        { "t:release()", "Frees the memory now. The tensor cannot be used afterwards.", torch = "del", code = [[
local t = mx.ones(2)
t:release()
t:is_released() --> true]] },
        { "t:is_released()", "Whether the tensor has been released.", code = "mx.ones(2):is_released() --> false" },
        { "t:wait()", "Waits for an asynchronous collective that writes the values.", torch = "Work.wait",
            code = "mx.all_reduce(mx.ones(2), { async = true }):wait() --> {1, 1}" },
        { "t:is_pending()", "Whether an asynchronous collective still writes the values.",
            torch = "Work.is_completed",
            code = "mx.ones(2):is_pending() --> false" },
        { "t[...]", "Row t[i]; parts t[{ {1, 3}, -1 }]; elements t[mask]; rows t[ids]. Positions count from 1, ids "
            .. "from 0. Assignments set parts.",
            torch = "x[1:3], masked_select, index_put_, "
            .. "select, __getitem__, __setitem__", code = [[
local t = mx.tensor { { 1, 2 }, { 3, 4 } }
t[{ {}, -1 }] --> {2, 4}
t[t:gt(2)] --> {3, 4}
t[t:gt(2)] = 0
t --> {{1, 2}, {0, 0}}
mx.where(t:eq(0), 9, t) --> {{1, 2}, {9, 9}}]] },
        { "t.T", "The transpose of a matrix.", torch = "Tensor.T, Tensor.mT",
            code = "mx.tensor { { 1, 2 } }.T --> {{1}, {2}}" },
        { "unfold(t, options)", "Windows of { size = n } elements along dim (default: the last), one every step (1) "
            .. "elements; a new last dimension has the elements of a window.", torch = "Tensor.unfold, unfold_copy",
            code = "mx.unfold(mx.arange(4), { size = 2, step = 2 }) --> {{0, 1}, {2, 3}}" },
        { "unique(t)", "The different values in ascending order, the place of each element among them (from 0), "
            .. "and how often each occurs.", torch = "unique", code = [[
local values, ids, counts = mx.unique(mx.tensor { 7, 4, 7 })
values --> {4, 7}
ids --> {1, 0, 1}
counts --> {1, 2}]] },
        { "prod(x, options)", "The product of the elements along dim, or of all. Options: dim, keepdim. The gradient "
            .. "is exact, also where elements are 0.", torch = "prod", code = [[
mx.prod(mx.tensor { { 2, -3 }, { 4, 5 } }, { dim = 2 }) --> {-6, 20}]] },
        { "cumprod(x, options)", "The products along dim (default: the last) up to each element.", torch = "cumprod",
            code = "mx.cumprod(mx.tensor { 2, -3, 4 }) --> {2, -6, -24}" },
        { "normalize(x, options)", "x / max(norm of x along dim, eps). Options: dim (the last), eps (1e-12).",
            torch = "F.normalize", code = "mx.normalize(mx.tensor { 3, 4 }) --> {0.6, 0.8}" },
        { "gumbel_softmax(logits, options)", "A random choice with gradients: softmax((logits + Gumbel noise) / tau). "
            .. "hard = true makes it a row with one 1, with the gradient of the soft one. Options: tau (1), hard, dim "
            .. "(the last), seed.",
            torch = "F.gumbel_softmax, distributions.RelaxedOneHotCategorical, "
            .. "distributions.OneHotCategoricalStraightThrough", code = [[
mx.gumbel_softmax(mx.zeros(2, 3), { tau = 0.5, hard = true }):sum { dim = 2 } --> {1, 1}]] },
        { "interpolate(x, options)", "Images (N, C, ...) in another size: { scale = 2 }, or 0.5, or "
            .. "{ size = { h, w } }; mode \"nearest\" or \"linear\" (bilinear for two dimensions).",
            torch = "F.interpolate, nn.Upsample, F.upsample", code = [[
mx.interpolate(mx.tensor({ 1, 2 }):view(1, 1, 2), { scale = 2 }) --> {{{1, 1, 2, 2}}}]] },
        { "conv_transpose1d(x, w, bias, options)", "A transposed convolution of x (N, C, L) with w (C, O / "
            .. "groups, K). Options: stride, padding, output_padding, dilation, groups.",
            torch = "F.conv_transpose1d", code = [[
mx.conv_transpose1d(mx.ones(1, 1, 2), mx.ones(1, 1, 2), { stride = 2 }) --> {{{1, 1, 1, 1}}}]] },
        { "conv_transpose2d(x, w, bias, options)", "The same for x (N, C, H, W) and w (C, O / groups, K, L).",
            torch = "F.conv_transpose2d", code = [[
mx.conv_transpose2d(mx.ones(1, 3, 4, 4), mx.ones(3, 2, 2, 2), { stride = 2 }):size() --> {1, 2, 8, 8}]] },
        { "dtypes", "A table of dtypes and their properties. Their names are f32, bf16, f64, i32, i64, u8, i8 "
            .. "and others.",
            torch = "finfo, iinfo, float32, float64, bfloat16, int32, int64, uint8, int8, float8_e4m3fn, "
            .. "float8_e5m2, dtype", code = [[
for name, properties in pairs(mx.dtypes) do local _ = name, properties end]] },
        { "print_options(options)",
            "Sets the digits (precision) of printed tensors, and how many entries of a long dimension are shown at "
            .. "either end (edge; of a row of floats two fewer).",
            torch = "set_printoptions", code = "mx.print_options { precision = 4, edge = 5 }" },
        { "linalg.solve(a, b, options)", "x with a x = b, for matrices (..., n, n) and columns (..., n, k) or "
            .. "vectors (..., n); trans = true solves with the transpose.",
            torch = "linalg.solve, linalg.solve_triangular, "
            .. "cholesky_solve", code = [[
mx.linalg.solve(mx.tensor { { 2, 0 }, { 0, 4 } }, mx.ones(2)) --> {0.5, 0.25}]] },
        { "linalg.inv(a)", "The inverse of square matrices.", torch = "linalg.inv, inverse", code = [[
mx.linalg.inv(mx.tensor { { 2, 0 }, { 0, 4 } }) --> {{0.5, 0}, {0, 0.25}}]] },
        { "linalg.cholesky(a)", "The lower triangle l with l l^T = a, for symmetric positive definite matrices.",
            torch = "linalg.cholesky, cholesky", code = [[
mx.linalg.cholesky(mx.tensor { { 4, 0 }, { 0, 9 } }) --> {{2, 0}, {0, 3}}]] },
        { "linalg.eigh(a)", "Eigenvalues of symmetric matrices (..., n, n) in ascending order, and eigenvectors "
            .. "as columns, whose greatest component is positive.", torch = "linalg.eigh, linalg.eigvalsh", code = [[
local w, v = mx.linalg.eigh(mx.tensor { { 2, 0 }, { 0, 1 } })
w --> {1, 2}
v --> {{0, 1}, {1, 0}}]] },
        { "linalg.qr(a)", "a = q r: orthonormal columns q (..., m, k), and upper triangular r (..., k, n) with a "
            .. "diagonal that is not negative; k is the smaller of m and n.",
            torch = "linalg.qr, qr, nn.init.orthogonal_", code = [[
local q, r = mx.linalg.qr(mx.tensor { { 3, 1 }, { 4, 2 } })
r --> {{5, 2.2}, {0, 0.4}}
local weight = mx.linalg.qr(mx.randn(64, 16)) -- a random matrix with orthonormal columns]] },
        { "linalg.svd(a)", "a = u diag(s) vh with k = min(m, n) singular values s (..., k), descending, u (..., m, k) "
            .. "and vh (..., k, n).", torch = "linalg.svd, svd, linalg.svdvals, pca_lowrank", code = [[
local u, s, vh = mx.linalg.svd(mx.tensor { { 0, 4 }, { 3, 0 }, { 0, 0 } })
s --> {4, 3}
mx.matmul(u * s, vh) --> {{0, 4}, {3, 0}, {0, 0}}]] },
        { "linalg.det(a)", "Determinants of square matrices.", torch = "linalg.det, det", code = [[
mx.linalg.det(mx.tensor { { 1, 2 }, { 3, 4 } }):item() --> -2]] },
        { "linalg.slogdet(a)", "The sign of the determinant, and the logarithm of its magnitude.",
            torch = "linalg.slogdet, slogdet, logdet", code = [[
local sign, log_size = mx.linalg.slogdet(mx.tensor { { 0, 1 }, { 1, 0 } })
sign, log_size --> -1, 0]] },
        { "einsum(equation, ...)", "Sums of products; letters name dimensions.", torch = "einsum, tensordot, outer, "
            .. "kron", code = [[
mx.einsum("i,j->ij", mx.tensor { 1, 2 }, mx.tensor { 3, 4 }) --> {{3, 4}, {6, 8}}]] },
    },
    { title = "Gradients",
        { "backward(loss, scale, options)",
            "Adds the gradients of a loss of one element to the leaves. { retain = true } "
            .. "keeps the records for another backward pass.", torch = "Tensor.backward, autograd.backward", code = [[
local w = mx.tensor { 3 }:requires_grad()
mx.backward((w * w):sum())
w:grad() --> {6}]] },
        { "grad(y, x, options)", "The gradient of y by x, "
            .. "a tensor or a table. Gradients of leaves do not change. Options: grad, retain, record (to "
            .. "differentiate again).", torch = "autograd.grad, func.grad", code = [[
local x = mx.tensor { 2 }:requires_grad()
local g = mx.grad((x * x * x):sum(), x, { record = true })
mx.grad(g:sum(), x) --> {12}]] },
        { "enable_grad(fn, ...)", "Calls fn with recording on, even inside mx.no_grad, and returns its results. "
            .. "In the backward function of mx.custom, mx.grad works inside it: records then end with fn.",
            torch = "enable_grad, set_grad_enabled", code = [[
local w = mx.ones(2):requires_grad()
mx.no_grad(function() return mx.enable_grad(function() return mx.grad((w * w):sum(), w) end) end) --> {2, 2}]] },
        { "no_grad(fn, ...)", "Calls fn without recording, and returns its results.",
            torch = "no_grad, inference_mode", code = [[
local w = mx.ones(2):requires_grad()
mx.no_grad(function() return w * 2 end) --> {2, 2}]] },
        { "step()",
            "Opens a step: tensors that are made in the enclosing block are released at its end. Loops "
                .. "need one.", code = [[
for i = 1, 3 do
    local step <close> = mx.step()
    local x = mx.ones(2) * i
end]] },
        { "step:close()", "Ends a step before its block does.", code = [[
local step <close> = mx.step()
step:close()]] },
        { "scope(fn, ...)", "Calls fn and releases what it made, except its results and what backward reads.",
            code = [[
mx.scope(function() return mx.ones(2) + 1 end) --> {2, 2}]] },
        { "tape()", "A tape of its own, for several forward passes before their backward passes.", code = [[
local tape <close> = mx.tape()
local w = mx.ones(1):requires_grad()
local loss = tape:run(function() return w:sum() end)
tape:backward(loss)
w:grad() --> {1}]] },
        { "tape:backward_weights()", "The second half of tape:backward(roots, gradients, { inputs = x }).", code = [[
local tape <close> = mx.tape()
local x, w = mx.ones(1, 2):requires_grad(), mx.ones(2, 2):requires_grad()
local y = tape:run(mx.matmul, x, w)
tape:backward(y, mx.ones(1, 2), { inputs = x })
x:grad() --> {{2, 2}}
tape:backward_weights()
w:grad() --> {{1, 1}, {1, 1}}]] },
        { "stop_gradient(t)", "The same as t:detach().", torch = "detach",
            code = "mx.stop_gradient(mx.ones(2)) --> {1, 1}" },
        { "custom { forward =, backward =, cost =, name = }", "An operation of your own.",
            torch = "autograd.Function, ctx.save_for_backward", code = [[
local double = mx.custom {
    forward = function(ctx, x) return x * 2 end,
    backward = function(ctx, dy) return dy * 2 end,
}
double(mx.ones(2)) --> {2, 2}]] },
        { "gradcheck(fn, ...)", "Compares gradients with finite differences; an error says how far they are apart.",
            torch = "autograd.gradcheck", code = "mx.gradcheck(mx.tanh, mx.randn { 2, 3 }) --> true" },
        { "remat(policy, fn, ...)", "Calls fn; backward computes again what the policy drops.",
            torch = "utils.checkpoint.checkpoint", code = [[
local w = mx.ones(2):requires_grad()
mx.backward(mx.remat("full", function() return (w * w):tanh():sum() end))]] },
        { "name(t, text)", "Names a tensor, for policies of mx.remat and for messages. Returns it.",
            code = "mx.name(mx.ones(2), 'hidden') --> {1, 1}" },
        { "manual_seed(n)", "Restarts the stream of random numbers. Initial weights of layers do not come from it: "
            .. "they depend on the layer's name, its option seed, and mx.nn.seed.",
            torch = "manual_seed, random.seed, PRNGKey", code = "mx.manual_seed(1)" },
        { "random_state(state)", "The position of the stream of random numbers; sets it if one is given.",
            torch = "get_rng_state, set_rng_state", code = "mx.random_state(mx.random_state())" },
        { "reduce_gradient(t, axes)", "From now on backward adds up the gradient of a leaf over these axes of "
            .. "the mesh (all ranks, unless given), in the background; false ends it. For the gradient of the mean "
            .. "over ranks, divide the loss by mx.ranks().",
            torch = "nn.parallel.DistributedDataParallel",
            code = [[
local w = mx.reduce_gradient(mx.ones(2):requires_grad())
mx.backward(w:sum() / mx.ranks())
w:grad() --> {1, 1}]] },
    },
    { title = "Layers: mx.nn",
        { "nn.seed(params, n)", "From now on the initial weights of what is added to params come from seed n, too. "
            .. "Returns params. For repetitions of an experiment and members of an ensemble.", code = [[
local params = mx.nn.seed({}, 3)
mx.nn.linear(params, "hidden", 2, 4)]] },
        { "nn.parameter(params, name, sizes, options)",
            "Creates a parameter and adds it to a table. Random values depend only on name, sizes and seed. Options: "
            .. "std, of normal numbers, or value, of all elements (0 unless given), seed, dtype.",
            torch = "nn.Parameter, nn.ParameterDict", code = [[
local params = {}
local w = mx.nn.parameter(params, "w", { 2, 3 }, { std = 0.1 })
w:size() --> {2, 3}]] },
        { "nn.buffer(buffers, name, sizes, options)", "Creates state that training changes without a gradient.",
            torch = "register_buffer, nn.Buffer", code = [[
local buffers = {}
mx.nn.buffer(buffers, "mean", { 3 }) --> {0, 0, 0}]] },
        { "nn.linear(params, name, n_in, n_out, options)", "y = x W + b. W is (n_in, n_out), the transpose of "
            .. "PyTorch's. Options: bias (false), std (1 / sqrt(n_in)), seed.", torch = "nn.Linear, nn.Dense", code = [[
local params = {}
local layer = mx.nn.linear(params, "layer", 4, 2, { bias = true })
layer(mx.ones(3, 4)):size() --> {3, 2}]] },
        { "nn.embedding(params, name, entries, width, options)", "Rows of a table by id, from 0. Options: std (1), "
            .. "seed, dtype.",
            torch = "nn.Embedding", code = [[
local embed = mx.nn.embedding({}, "embed", 10, 4)
embed(mx.tensor({ 0, 9 }, "i32")):size() --> {2, 4}]] },
        { "nn.conv1d(params, name, n_in, n_out, size, options)", "A convolution with a kernel of `size`; the weight "
            .. "is (n_out, n_in / groups, size). Options: bias (false), stride, padding, dilation, groups, std (1 / "
            .. "sqrt(inputs of an output)), seed.",
            torch = "nn.Conv1d", code = [[
mx.nn.conv1d({}, "conv", 3, 8, 5, { padding = "causal" })(mx.ones(2, 3, 9)):size() --> {2, 8, 9}]] },
        { "nn.conv2d(params, name, n_in, n_out, size, options)", "The same with a square kernel, or size = { rows, "
            .. "columns }.", torch = "nn.Conv2d", code = [[
mx.nn.conv2d({}, "conv", 3, 8, 3, { padding = 1 })(mx.ones(2, 3, 6, 6)):size() --> {2, 8, 6, 6}]] },
        { "nn.conv_transpose1d(params, name, n_in, n_out, size, options)", "A transposed convolution. Options: bias, "
            .. "stride, padding, output_padding, dilation, groups, std, seed.", torch = "nn.ConvTranspose1d", code = [[
mx.nn.conv_transpose1d({}, "up", 3, 8, 2, { stride = 2 })(mx.ones(2, 3, 9)):size() --> {2, 8, 18}]] },
        { "nn.conv_transpose2d(params, name, n_in, n_out, size, options)", "The same with a square kernel.",
            torch = "nn.ConvTranspose2d", code = [[
mx.nn.conv_transpose2d({}, "up", 3, 8, 2, { stride = 2 })(mx.ones(2, 3, 4, 4)):size() --> {2, 8, 8, 8}]] },
        { "nn.rmsnorm(params, name, width, options)", "RMSNorm of the last dimension. Options: eps.",
            torch = "nn.RMSNorm",
            code = "mx.nn.rmsnorm({}, 'norm', 4)(mx.ones(2, 4)):size() --> {2, 4}" },
        { "nn.layernorm(params, name, width, options)", "LayerNorm of the last dimension. Options: eps, bias.",
            torch = "nn.LayerNorm", code = "mx.nn.layernorm({}, 'norm', 4)(mx.ones(2, 4)):size() --> {2, 4}" },
        { "nn.group_norm(params, name, channels, options)", "GroupNorm of x (N, channels, ...). Options: groups "
            .. "(required), eps.", torch = "nn.GroupNorm", code = [[
mx.nn.group_norm({}, "norm", 8, { groups = 4 })(mx.ones(2, 8, 5, 5)):size() --> {2, 8, 5, 5}]] },
        { "nn.batch_norm(params, name, channels, options)", "BatchNorm of x (N, channels, ...). f(x, true) is "
            .. "training; f(x) uses the running mean and variance, which are in the table of the option buffers. "
            .. "Options: buffers (required), momentum (0.1), eps.", torch = "nn.BatchNorm1d, nn.BatchNorm2d", code = [[
local params, buffers = {}, {}
local norm = mx.nn.batch_norm(params, "norm", 2, { buffers = buffers })
norm(mx.tensor { { 1, 2 }, { 3, 4 } }, true) --> {{-1, -1}, {1, 1}}
buffers["norm.mean"] --> {0.2, 0.3}
norm(mx.ones(1, 2)):size() --> {1, 2}]] },
        { "nn.attention(params, name, width, options)", "Attention of a sequence (B, S, width) to itself, or f(x, { "
            .. "memory = y, mask = m }) to another one (causal = false) and with a mask (B, heads, S, T), all but T "
            .. "may be 1, of u8 (1: attend) or floats. Options: heads (required), kv_heads, head_dim, causal (true), "
            .. "window, rope, memory_width, bias, seed, dropout (of attention weights; f(x, { training = true }) drops "
            .. "some of them).",
            torch = "nn.MultiheadAttention", code = [[
local attention = mx.nn.attention({}, "attention", 8, { heads = 2 })
attention(mx.randn { 1, 5, 8 }):size() --> {1, 5, 8}
local cross = mx.nn.attention({}, "cross", 8, { heads = 2, causal = false })
local is_word = mx.tensor({ 1, 1, 0 }, "u8"):view(1, 1, 1, 3) -- not the padding of memory
cross(mx.randn { 1, 5, 8 }, { memory = mx.randn { 1, 3, 8 }, mask = is_word }):size() --> {1, 5, 8}
local dropping = mx.nn.attention({}, "dropping", 8, { heads = 2, dropout = 0.1 })
dropping(mx.randn { 1, 5, 8 }, { training = true }):size() --> {1, 5, 8}]] },
        { "nn.mlp(params, name, width, hidden, options)",
            "Two products with an activation between. Options: activation (gelu, silu or relu), gated, bias (false), "
            .. "seed.", torch = "feed forward, FeedForward, MLP", code = [[
local mlp = mx.nn.mlp({}, "mlp", 8, 32, { activation = "silu", gated = true })
mlp(mx.randn { 5, 8 }):size() --> {5, 8}]] },
        { "nn.sequential(...)", "Functions one after the other.", torch = "nn.Sequential", code = [[
local f = mx.nn.sequential(mx.nn.linear({}, "a", 4, 2), mx.relu)
f(mx.ones(3, 4)):size() --> {3, 2}]] },
        { "nn.lstm_cell(params, name, n_in, n, options)", "A step of an LSTM: (x, state) -> h, state.",
            torch = "nn.LSTMCell", code = [[
local cell = mx.nn.lstm_cell({}, "cell", 4, 3)
local h, state = cell(mx.ones(2, 4))
h:size() --> {2, 3}]] },
        { "nn.gru_cell(params, name, n_in, n, options)", "A step of a GRU: (x, state) -> h, state.",
            torch = "nn.GRUCell",
            code = "mx.nn.gru_cell({}, 'cell', 4, 3)(mx.ones(2, 4)):size() --> {2, 3}" },
        { "nn.recurrent(cell)", "Runs a cell over a sequence (B, S, n_in) -> (B, S, n), and the last state.",
            torch = "nn.LSTM, nn.GRU, nn.RNN", code = [[
local rnn = mx.nn.recurrent(mx.nn.lstm_cell({}, "cell", 4, 3))
rnn(mx.ones(2, 5, 4)):size() --> {2, 5, 3}]] },
        { "nn.freeze(params, patterns, trains)",
            "Stops training the parameters whose names match; true trains them again.",
            torch = "requires_grad_(False), Module.requires_grad_", code = [[
local params = {}
mx.nn.linear(params, "head", 4, 2)
mx.nn.freeze(params, { "^head" }) --> 1]] },
        { "nn.state(params)", "A copy of the values, for mx.save or nn.load_state.",
            torch = "state_dict, Module.state_dict",
            code = [[
local params = {}
mx.nn.linear(params, "head", 4, 2)
mx.save("/tmp/head.h5", mx.nn.state(params))]] },
        { "nn.load_state(params, state)", "Gives parameters the values of a state.", torch = "load_state_dict, "
            .. "Module.load_state_dict",
            code = [[
local params = {}
mx.nn.linear(params, "head", 4, 2)
mx.nn.load_state(params, mx.nn.state(params))]] },
        { "nn.summary(params, fn, ...)", "A table of the parameters as text; with a function, the FLOPs of one call.",
            torch = "torchsummary.summary, torchinfo, print(model)", code = [[
local params = {}
local layer = mx.nn.linear(params, "layer", 4, 2)
local text = mx.nn.summary(params, layer, mx.ones(3, 4))]] },
        { "nn.count(params)", "The number of values.", torch = "sum(p.numel() for p in model.parameters())", code = [[
local params = {}
mx.nn.linear(params, "layer", 4, 2)
mx.nn.count(params) --> 8]] },
        { "nn.save(params, path, attributes)", "Writes parameters to an HDF5 file.",
            torch = "save(model.state_dict())", code = [[
local params = {}
mx.nn.linear(params, "layer", 4, 2)
mx.nn.save(params, "/tmp/layer.h5")]] },
        { "nn.load(params, path)", "Fills parameters from a file of nn.save.", code = [[
local params = {}
mx.nn.linear(params, "layer", 4, 2)
mx.nn.save(params, "/tmp/layer2.h5")
mx.nn.load(params, "/tmp/layer2.h5")]] },
    },
    { title = "Optimizers: mx.optim",
        { "optim.adamw(params, options)",
            "AdamW. Options of all optimizers: learning_rate (a number or a function of the step), weight_decay (0), "
            .. "mask (expressions for names that do not decay), groups ({ match = { \"^head\" }, scale = 0.1, "
            .. "weight_decay = 0 }: a factor of the rate for matching names), clip (largest norm of all gradients; 0: "
            .. "no limit), clip_value (largest element), seed. Own ones: learning_rate (1e-3), beta1 (0.9), beta2 "
            .. "(0.999), eps (1e-8).",
            torch = "optim.AdamW, optim.Adam, nn.utils.clip_grads_with_norm_, clip_grad_norm_, clip_grad_value_, "
            .. "nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_", code = [[
local params = { w = mx.ones(2):keep():requires_grad() }
local optimizer = mx.optim.adamw(params, { learning_rate = 0.1, clip = 1 })
mx.backward(params.w:sum())
optimizer:step()]] },
        { "optim.sgd(params, options)", "Gradient descent. Own options: learning_rate (1e-2), momentum "
            .. "(0).", torch = "optim.SGD", code = [[
local params = { w = mx.ones(2):keep():requires_grad() }
local optimizer = mx.optim.sgd(params, { learning_rate = 0.5 })
mx.backward(params.w:sum())
optimizer:step()
params.w --> {0.5, 0.5}]] },
        { "optim.lion(params, options)", "Lion. Own options: learning_rate (1e-4), beta1 (0.9), beta2 "
            .. "(0.99).", torch = "Lion", code = [[
mx.optim.lion({ w = mx.ones(2):keep():requires_grad() }, { learning_rate = 1e-4 })]] },
        { "optim.adafactor(params, options)", "Adafactor. Own options: learning_rate (1e-2), beta2_decay (-0.8), "
            .. "eps1, eps2 (1e-3), clip_update (1).",
            torch = "optim.Adafactor", code = "mx.optim.adafactor({ w = mx.ones(2, 2):keep():requires_grad() })" },
        { "optim.muon(params, options)", "Muon for matrices, AdamW for the rest. Own options: learning_rate (2e-2), "
            .. "momentum (0.95), nesterov (true), adamw_mask (expressions for names that AdamW takes), adamw_scale "
            .. "(0.05: its factor of the rate), bias_correction and others.", torch = "optim.Muon",
            code = "mx.optim.muon({ w = mx.ones(2, 2):keep():requires_grad() })" },
        { "optim.custom(name, rule)", "An optimizer of your own. rule.update(p, grad, state, o) changes p in place; o "
            .. "has lr (the rate of this step), step, weight_decay and all options. rule.moments(t) returns sizes and "
            .. "dtypes of tensors that state has for a parameter: they begin at 0 and are saved in checkpoints. "
            .. "rule.options has own options with their standard values. rule.elementwise = true: elements are "
            .. "updated by themselves.",
            torch = "optim.Optimizer", code = [[
local descent = mx.optim.custom("descent", { update = function(p, grad, state, o)
    mx.copy(p, p - grad * o.lr)
end })
local optimizer = descent({ w = mx.ones(2):keep():requires_grad() }, { learning_rate = 0.1 })
local heavy = mx.optim.custom("heavy", {
    options = { momentum = 0.9 },
    moments = function(t) return { m = { sizes = t:size(), dtype = "f32" } } end,
    update = function(p, grad, state, o)
        state.m:mul_(o.momentum)
        state.m:add_(grad)
        mx.add_(p, state.m, { alpha = -o.lr })
    end,
})
heavy({ w = mx.ones(2):keep():requires_grad() }, { momentum = 0.5 }).options.momentum --> 0.5]] },
        { "optimizer:step()", "Updates the parameters, clears the gradients and returns their norm.",
            torch = "optimizer.step", code = [[
local w = mx.ones(1):keep():requires_grad()
local optimizer = mx.optim.sgd({ w = w }, { learning_rate = 0.5 })
mx.backward(w:sum() * 2)
optimizer:step() --> 2]] },
        { "optimizer:zero_grad()", "Discards the gradients; optimizer:step() does so, too.",
            torch = "optimizer.zero_grad, Module.zero_grad",
            code = [[
local optimizer = mx.optim.sgd { w = mx.ones(2):keep():requires_grad() }
optimizer:zero_grad()]] },
        { "optimizer:rate(step)", "The learning rate of a step, or of the next one. "
            .. "optimizer.options.learning_rate sets it.",
            torch = "get_last_lr, param_groups, optimizer.param_groups", code = [[
local optimizer = mx.optim.sgd({ w = mx.ones(2):keep():requires_grad() }, { learning_rate = 0.5 })
optimizer:rate(1) --> 0.5]] },
        { "optimizer:state_dict()", "A copy of the moments and the number of steps, for mx.save. mx.checkpoint saves "
            .. "parameters, optimizer, random numbers and data together, also on meshes.",
            torch = "optimizer.state_dict, optim.Optimizer.state_dict", code = [[
local params = { w = mx.ones(2):keep():requires_grad() }
local optimizer = mx.optim.adamw(params)
mx.save("/tmp/run.h5", { params = mx.nn.state(params), optimizer = optimizer:state_dict(), rng = mx.random_state() })
mx.load("/tmp/run.h5").optimizer.steps --> 0]] },
        { "optimizer:load_state_dict(state)", "Continues from such a state, of the same kind and parameters. Options "
            .. "such as the rate stay as they are.",
            torch = "optimizer.load_state_dict, optim.Optimizer.load_state_dict", code = [[
local optimizer = mx.optim.adamw { w = mx.ones(2):keep():requires_grad() }
optimizer:load_state_dict(optimizer:state_dict())]] },
        { "optim.schedule { type =, peak =, steps =, warmup_fraction = }", "A learning rate as a function of "
            .. "the step: cosine, wsd, constant or inverse_square_root, after a warm-up.",
            torch = "lr_scheduler, CosineAnnealingLR, OneCycleLR", code = [[
local rate = mx.optim.schedule { type = "cosine", peak = 1e-3, steps = 100, warmup_fraction = 0.1 }
rate(11) --> 0.001]] },
        { "optim.ema(params, options)", "Moving averages of parameters: ema:update() after each step; ema:apply(fn) "
            .. "calls fn with the averages in their place; ema.params has them. Options: decay (0.999), warmup "
            .. "(false).",
            torch = "swa_utils.AveragedModel, swa_utils.get_ema_multi_avg_fn, exponential moving average",
            code = [[
local params = { w = mx.ones(2):keep():requires_grad() }
local ema = mx.optim.ema(params, { decay = 0.99 })
ema:update()
ema:apply(function() return params.w:sum():item() end) --> 2]] },
        { "optim.early_stopping(options)", "Says when a loss no longer falls. Options: patience (5 checks without a "
            .. "fall), least (0: what counts as a fall).", torch = "EarlyStopping", code = [[
local stopping = mx.optim.early_stopping { patience = 1 }
stopping:check(1) --> false
stopping:check(1) --> true]] },
        { "optim.norm(grads)", "The norm of all gradients together.", torch = "get_total_norm",
            code = "mx.optim.norm { a = mx.tensor { 3 }, b = mx.tensor { 4 } } --> 5" },
        { "optim.new(config, params)", "The optimizer of a config.", code = [[
local config = mx.config.load { "model_name=tiny" }
mx.optim.new(config, { w = mx.ones(2):keep():requires_grad() })]] },
    },
    { title = "Data: mx.data",
        { "data.dataset(source, options)", "Batches from tensors by name, from a list of examples, or from a function "
            .. "that is called with the number of the epoch and returns an iterator over examples. Options: batch "
            .. "(32), shuffle (true), seed (0), drop_last (true), shard (true: ranks get different examples), buffer "
            .. "(1024: an iterator's examples that are shuffled). #dataset is the number of batches in an epoch.",
            torch = "utils.data.DataLoader, TensorDataset, IterableDataset, DistributedSampler, Dataset", code = [[
local train = mx.data.dataset({ x = mx.arange(4) }, { batch = 2, shuffle = false })
for batch in train:epoch() do
    local x = batch.x
end
#train --> 2
local list = { { x = { 1, 2 }, y = 0 }, { x = { 3, 4 }, y = 1 } }
mx.data.dataset(list, { batch = 2, shuffle = false }):next().y --> {0, 1}
local function numbers(epoch)
    local i = 0
    return function() -- the next example; nil ends the epoch
        i = i + 1
        return i <= 4 and { x = i * epoch } or nil
    end
end
mx.data.dataset(numbers, { batch = 2, shuffle = false }):next().x --> {1, 2}]] },
        { "dataset:next()", "The next batch, without end.", torch = "next(iter(loader))", code = [[
local dataset = mx.data.dataset({ x = mx.arange(4) }, { batch = 2, shuffle = false })
dataset:next().x --> {0, 1}]] },
        { "dataset:epoch()", "Iterates over the batches that are left of the epoch.", code = [[
local dataset = mx.data.dataset({ x = mx.arange(4) }, { batch = 2 })
for batch in dataset:epoch() do local _ = batch.x end]] },
        { "dataset:state()", "The position in the data, a small table to be saved.",
            torch = "StatefulDataLoader", code = [[
local dataset = mx.data.dataset({ x = mx.arange(4) }, { batch = 2 })
dataset:restore(dataset:state())]] },
        { "dataset:restore(state)", "Continues from a state.", code = [[
local dataset = mx.data.dataset({ x = mx.arange(4) }, { batch = 2 })
dataset:restore(dataset:state())]] },
        { "data.map(dataset, fn)", "A dataset with fn applied to every batch.",
            torch = "transforms, collate_fn, Dataset.map",
            code = [[
local source = mx.data.dataset({ x = mx.arange(4) }, { batch = 2, shuffle = false })
local halves = mx.data.map(source, function(batch) return { x = batch.x / 2 } end)
halves:next().x --> {0, 0.5}]] },
        { "data.open(config, mesh)", "The token batches that a config describes.", code = [[
local data = mx.data.open(mx.config.load { "model_name=tiny", "dataset_type=synthetic" })
local tokens = data:next().tokens]] },
        { "data.evaluation_sequences(config, mesh)", "Number of sequences of a rank's batch of evaluation.",
            code = [[
mx.data.evaluation_sequences(mx.config.load { "eval_interval=1", "eval_per_device_batch_size=2" }) --> 2]] },
        { "data.open_evaluation(data, mesh)", "The evaluation data of the same config.", code = [[
local data = mx.data.open(mx.config.load { "model_name=tiny", "dataset_type=synthetic" })
local batches = mx.data.open_evaluation(data):batches_of_pass()]] },
        { "data.sequences(config, mesh)", "Number of sequences in a batch of a rank.", code = [[
mx.data.sequences(mx.config.load { "model_name=tiny", "per_device_batch_size=3" }) --> 3]] },
    },
}
