--- As elsewhere.lua: names of layers, training, data and ranks.

return {
    { title = "Examples by topic", elsewhere = "An example",
        { "LoRA, peft, adapters", "scripts/examples/lora.lua: frozen weights, and thin matrices beside them" },
        { "GAN, DCGAN", "scripts/examples/gan.lua: two losses from one forward pass, averages of weights" },
        { "DDPM, diffusion model, diffusers", "scripts/examples/diffusion.lua: noise is predicted and removed" },
        { "Mamba, S4, state space model", "scripts/examples/state_space.lua: mx.linear_scan with gates" },
        { "reinforcement learning, REINFORCE, A2C, PPO, policy gradient",
            "scripts/examples/actor_critic.lua: a policy and a value on a gridworld" },
        { "DiLoCo, local SGD, federated averaging", "scripts/examples/diloco.lua: ranks that exchange seldom" },
        { "mixture of experts, MoE", "scripts/examples/experts.lua: routing, sorting and grouped products" },
        { "knowledge distillation", "scripts/examples/distillation.lua: a small network taught by a large one" },
        { "neural ODE, torchdiffeq", "scripts/examples/neural_ode.lua: a backward pass of one's own by mx.custom" },
        { "influence functions", "scripts/examples/influence.lua: Hessian-vector products" },
        { "MAML, meta-learning, higher", "scripts/examples/maml.lua: a gradient through steps of gradient descent" },
        { "ALiBi", "scripts/examples/alibi.lua: attention with a bias in a character transformer" },
        { "GPipe", "scripts/examples/gpipe.lua: layers on several ranks, mx.send and mx.recv with gradients" },
        { "MNIST, torchvision, image classifier", "scripts/examples/images.lua: .npz files, a shuffled dataset" },
    },
    { title = "Layers, training and ranks of PyTorch, by other functions", elsewhere = "Written with other functions",
        { "F.cosine_similarity, nn.CosineSimilarity",
            "`(mx.normalize(a) * mx.normalize(b)):sum { dim = -1 }`; of all pairs of rows `mx.matmul(mx.normalize(a), "
            .. "mx.normalize(b), { trans_b = true })`", code = [[
(mx.normalize(mx.tensor { 3, 4 }) * mx.normalize(mx.tensor { 4, 3 })):sum { dim = -1 } --> 0.96]] },
        { "nn.functional, functional, F", "functions are in mx itself, and most are methods: `mx.relu(x)`, `x:relu()`",
            code = [[mx.tensor({ -1, 2 }):relu() --> {0, 2}]] },
        { "SAM, sharpness-aware minimization",
            "a step up along the gradient, the gradient there, and the old values again before `optimizer:step()`",
            code = [[
local w = mx.tensor({ 3 }):keep():requires_grad()
local optimizer = mx.optim.sgd({ w = w }, { learning_rate = 0.1 })
mx.backward((w * w):sum())
local before, g = w:detach():clone(), w:grad():clone()
w:detach():add_(g, { alpha = 0.5 / mx.norm(g):item() })
optimizer:zero_grad()
mx.backward((w * w):sum())
mx.copy(w:detach(), before)
optimizer:step()
w --> {2.3}]] },
        { "gradient accumulation, no_sync",
            "mx.backward adds up: call it for each part with its loss divided by their number, then "
            .. "`optimizer:step()`", code = [[
local w = mx.tensor({ 1 }):keep():requires_grad()
local optimizer = mx.optim.sgd({ w = w }, { learning_rate = 1 })
for _, x in ipairs { 2, 4 } do mx.backward((w * x):sum() / 2) end
optimizer:step()
w --> {-2}]] },
        { "nn.Identity", "`function(x) return x end`",
            code = [[mx.nn.sequential(function(x) return x end)(mx.ones(1)) --> {1}]] },
        { "nn.Flatten, nn.Unflatten", "`function(x) return x:view(x:size(1), -1) end`", code = [[
mx.nn.sequential(function(x) return x:view(x:size(1), -1) end)(mx.ones(2, 3, 4)):size() --> {2, 12}]] },
        { "nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.BufferDict, Module.add_module, Module.register_module, "
            .. "Module.register_parameter, Module.get_parameter, Module.get_submodule, Module.buffers, "
            .. "Module.named_buffers",
            "a Lua table of layers; parameters are in your table by name", code = [[
local params, layers = {}, {}
for i = 1, 3 do layers[i] = mx.nn.linear(params, "layer" .. i, 4, 4) end
params["layer3.weight"]:size() --> {4, 4}]] },
        { "nn.Bilinear", "`mx.einsum(\"bi,kij,bj->bk\", x, w, y)`",
            code = [[mx.einsum("bi,kij,bj->bk", mx.ones(1, 2), mx.ones(3, 2, 2), mx.ones(1, 2)) --> {{4, 4, 4}}]] },
        { "nn.RNNCell, nn.RNNCellBase, rnn_tanh, rnn_relu, rnn_tanh_cell, rnn_relu_cell",
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
        { "sinusoidal positional encoding, PositionalEncoding, timestep embedding",
            "sines and cosines of positions times frequencies from 1 to 1 / 10000", code = [[
local positions, width = mx.arange(3), 4
local frequencies = mx.exp(mx.arange(width // 2) * (-math.log(10000) / (width // 2)))
local angles = positions:view(-1, 1) * frequencies
mx.concat(angles:sin(), angles:cos(), { dim = 2 }):size() --> {3, 4}]] },
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
        { "nn.utils.weight_norm, nn.utils.parametrizations.weight_norm, nn.utils.spectral_norm, "
            .. "nn.utils.remove_weight_norm, nn.utils.remove_spectral_norm, nn.utils.parametrizations.orthogonal, "
            .. "nn.utils.parametrize, nn.utils.parametrizations",
            "compute the weight in the forward pass: `g * v / mx.norm(v, { dim = 1, keepdim = true })`", code = [[
local v, g = mx.tensor { { 3 }, { 4 } }, mx.ones(1, 1)
g * v / mx.norm(v, { dim = 1, keepdim = true }) --> {{0.6}, {0.8}}]] },
        { "nn.utils.fuse_conv_bn_eval, nn.utils.fuse_conv_bn_weights, nn.utils.fuse_linear_bn_eval, fuse_modules",
            "each output channel of w times `weight / (variance + eps):sqrt()`, which scales bias - mean, too",
            code = [[
local x, w, gain, mean, variance = mx.ones(1, 1, 4), mx.ones(2, 1, 2), mx.tensor { 2, 3 }, mx.ones(2), mx.full({ 2 }, 4)
local factor = gain / variance:sqrt()
mx.conv1d(x, w * factor:view(2, 1, 1), -mean * factor) --> {{{1, 1, 1}, {1.5, 1.5, 1.5}}}]] },
        { "dequantize, fake_quantize_per_tensor_affine, fake_quantize_per_channel_affine, FakeQuantize",
            "`codes:to('f32') * scale`; mx.straight_through passes the gradient on", code = [[
local x = mx.tensor({ { 1, -255 } }):requires_grad()
local codes, scale = mx.no_grad(mx.quantize, x, { dtype = "i8" })
mx.straight_through(codes:to("f32") * scale, x) --> {{0, -256}}]] },
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
        { "autograd.gradgradcheck", "mx.gradcheck of a function that returns a recorded gradient", code = [[
mx.gradcheck(function(x) return mx.grad((x ^ 3):sum(), x, { record = true }) end, mx.randn(3)) --> true]] },
        { "autograd.functional.hvp, autograd.functional.vhp",
            "the gradient of (recorded gradient times vector)", code = [[
local x, v = mx.tensor({ 2, 3 }):requires_grad(), mx.tensor { 1, 0 }
local g = mx.grad((x ^ 3):sum(), x, { record = true })
mx.grad((g * v):sum(), x) --> {12, 0}]] },
        { "autograd.functional.vjp, func.vjp", "`mx.grad(y, x, { grad = v })`", code = [[
local x = mx.tensor({ 2, 3 }):requires_grad()
mx.grad(x * x, x, { grad = mx.tensor { 1, 10 } }) --> {4, 60}]] },
        { "autograd.functional.jvp, func.jvp, func.linearize, autograd.forward_ad",
            "twice mx.grad: the gradient of vjp(u) by u", code = [[
local x, u = mx.tensor({ 2, 3 }):requires_grad(), mx.ones(2):requires_grad()
local g = mx.grad(x * x, x, { grad = u, record = true })
mx.grad(g, u, { grad = mx.tensor { 1, 10 } }) --> {4, 60}]] },
        { "func.functional_call, func.stack_module_state",
            "a model is a function: call it with other parameters", code = [[
local function f(p, x) return mx.matmul(x, p.w) end
f({ w = mx.ones(2, 1) }, mx.ones(1, 2)) --> {{2}}]] },
        { "is_grad_enabled, retains_grad, is_inference, Tensor.retain_grad",
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
        { "distributions.MultivariateNormal, distributions.LowRankMultivariateNormal",
            "`mean + mx.matmul(mx.randn(n, d), l, { trans_b = true })` with l = mx.linalg.cholesky(covariance); "
            .. "log_prob by `z = mx.linalg.solve(l, x - mean)`", code = [[
local l, d = mx.linalg.cholesky(mx.tensor { { 4, 0 }, { 0, 9 } }), 2
local z = mx.linalg.solve(l, mx.tensor { 2, 0 }) -- x - mean
-0.5 * (z * z):sum() - mx.log(mx.einsum("ii->i", l)):sum() - d / 2 * math.log(2 * math.pi) --> -4.13]] },
        { "distributions.MixtureSameFamily, mixture density network",
            "`mx.logsumexp(mx.log_softmax(logits) + log_prob of each part, { dim = -1 })`; draws by mx.multinomial "
            .. "and mx.gather", code = [[
local logits, mean, std, y = mx.zeros(1, 2), mx.tensor { { 0, 9 } }, mx.ones(1, 2), mx.zeros(1, 1)
local log_prob = -0.5 * ((y - mean) / std) ^ 2 - mx.log(std) - 0.5 * math.log(2 * math.pi)
mx.logsumexp(mx.log_softmax(logits) + log_prob, { dim = -1 }) --> {-1.612}]] },
        { "distributions.TransformedDistribution, distributions.TanhTransform, distributions.AffineTransform, "
            .. "distributions.LogNormal, distributions.LogisticNormal",
            "a function of the draw; log_prob is that of the draw, less the logarithm of the derivative", code = [[
local u = mx.tensor { 0.5 } -- of a normal distribution; y = tanh(u), as in soft actor-critic
local log_prob = -0.5 * u ^ 2 - 0.5 * math.log(2 * math.pi)
log_prob - 2 * (math.log(2) - u - mx.softplus(-2 * u)) --> {-0.8037}]] },
        { "distributions.Laplace, distributions.HalfNormal, distributions.Cauchy, distributions.Weibull, "
            .. "distributions.Pareto, distributions.Logistic",
            "a function of mx.rand or mx.randn: of Laplace `u = mx.rand(sizes) - 0.5`, `-mx.sign(u) * mx.log1p(-2 * "
            .. "mx.abs(u))`", code = [[
local u = mx.tensor { 0.25, -0.25 }
-mx.sign(u) * mx.log1p(-2 * mx.abs(u)) --> {0.6931, -0.6931}]] },
        { "distributions.Distribution, distributions.Independent, distributions.RelaxedBernoulli, rsample, log_prob",
            "functions of tensors: a draw with gradients is mean + std * mx.randn; log_prob is summed over the last "
            .. "dimension", code = [[
local x = mx.zeros(2, 3)
(-x ^ 2 / 2 - math.log(2 * math.pi) / 2):sum { dim = -1 } --> {-2.757, -2.757}]] },
        { "distributions.kl_divergence",
            "of two normal ones `mx.log(s2 / s1) + (s1 ^ 2 + (m1 - m2) ^ 2) / (2 * s2 ^ 2) - 0.5`", code = [[
local m1, s1, m2, s2 = mx.ones(1), mx.ones(1), mx.zeros(1), mx.ones(1)
mx.log(s2 / s1) + (s1 ^ 2 + (m1 - m2) ^ 2) / (2 * s2 ^ 2) - 0.5 --> {0.5}]] },
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
        { "optim.Optimizer.register_step_pre_hook, optim.Optimizer.register_step_post_hook",
            "lines of your loop before and after `optimizer:step()`", code = [[
local optimizer = mx.optim.sgd({ w = mx.ones(1):keep():requires_grad() }, { learning_rate = 0.5 })
mx.backward(optimizer.params.w:sum())
optimizer:step()
local w = optimizer.params.w:detach()
mx.copy(w, w:clamp { min = 1 }) --> {1}]] },
        { "optim.Optimizer.add_param_group",
            "all groups are given at the start: `groups = { { match = { \"^head\" }, scale = 0.1 } }`; scale is a "
            .. "factor of the rate", code = [[
local params = {}
mx.nn.linear(params, "head", 4, 2)
mx.optim.sgd(params, { learning_rate = 1, groups = { { match = { "^head" }, scale = 0.1 } } }).steps --> 0]] },
        { "LambdaLR, LinearLR, StepLR, MultiStepLR, ExponentialLR, CyclicLR, CosineAnnealingWarmRestarts, "
            .. "SequentialLR, SWALR, PolynomialLR, scheduler.step", "learning_rate may be any function of the step, "
            .. "which counts from 1", code = [[
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
        { "len(loader)", "`#dataset`, the number of batches in an epoch; not of an iterator",
            code = "#mx.data.dataset({ x = mx.arange(7) }, { batch = 2 }) --> 3" },
        { "default_collate, default_convert, get_worker_info",
            "mx.data.dataset stacks examples; reading needs no worker processes", code = [[
local data = mx.data.dataset(function() return ipairs {} end, { batch = 2 })
data ~= nil --> true]] },
        { "distributed.reduce, distributed.gather, distributed.scatter, distributed.all_gather_into_tensor, "
            .. "distributed.reduce_scatter_tensor",
            "mx.all_reduce, mx.all_gather, mx.shard, mx.reduce_scatter give all ranks their result",
            code = [[mx.all_gather(mx.ones(1, 3), { dim = 1 }):size(1) == mx.ranks() --> true]] },
        { "distributed.all_gather_object, distributed.gather_object, distributed.broadcast_object_list, "
            .. "distributed.scatter_object_list, distributed.send_object_list, distributed.recv_object_list",
            "mx.share_text gives a text of one rank to all; numbers travel in tensors",
            code = [[mx.share_text("a text", 0) --> a text]] },
        { "distributed.ReduceOp, distributed.ReduceOp.SUM, distributed.ReduceOp.AVG, distributed.ReduceOp.MAX",
            "the option op: \"sum\", \"mean\" or \"max\"",
            code = [[mx.all_reduce(mx.ones(2), { op = "max" }) --> {1, 1}]] },
        { "distributed.new_group, distributed.split_group, distributed.new_subgroups, "
            .. "distributed.new_subgroups_by_enumeration, distributed.group, "
            .. "distributed.ProcessGroup, distributed.get_process_group_ranks, distributed.get_group_rank, "
            .. "distributed.get_global_rank",
            "mesh axes: mx.mesh_define names them, and the option axis of collectives chooses", code = [[
mx.mesh_define { { name = "data", ici = mx.ranks(), dcn = 1 } }
mx.all_reduce(mx.ones(2), { axis = "data", op = "mean" }) --> {1, 1}]] },
        { "distributed.monitored_barrier, distributed.set_timeout",
            "mx.barrier; a rank that does not come ends the run after collective_timeout_s, and is named",
            code = [[mx.barrier()]] },
        { "distributed.is_initialized, distributed.is_available, distributed.destroy_process_group, "
            .. "distributed.get_backend, distributed.is_mpi_available, distributed.is_nccl_available, "
            .. "distributed.is_gloo_available, distributed.get_node_local_rank, distributed.TCPStore, "
            .. "distributed.FileStore",
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
        { "register_forward_hook, Module.register_forward_hook, register_full_backward_hook, "
            .. "Module.register_forward_pre_hook, Module.register_full_backward_pre_hook, "
            .. "Module.register_backward_hook",
            "wrap the layer in a function; t:register_hook for gradients", code = [[
local seen
local function layer(x) return x * 2 end
local function watched(x)
    seen = layer(x)
    return seen
end
watched(mx.ones(1))
seen --> {2}]] },
        { "adaptive_avg_pool1d, nn.AdaptiveAvgPool3d, adaptive_max_pool1d, nn.AdaptiveMaxPool1d",
            "`x:mean { dim = 3 }`, `x:max { dim = 3 }` for size 1; pooling with the size that fits otherwise",
            code = [[mx.ones(2, 3, 4):mean({ dim = 3 }):size() --> {2, 3}]] },
        { "nn.ConstantPad2d, nn.ConstantPad3d, nn.ZeroPad1d, nn.ZeroPad3d, constant_pad_nd",
            "mx.pad, with the option value",
            code = [[mx.pad(mx.ones(1), { before = { 1 }, after = { 0 }, value = 7 }) --> {7, 1}]] },
        { "nn.ChannelShuffle, F.channel_shuffle, channel_shuffle, native_channel_shuffle",
            "mx.permute between two views: (N, g, C / g, ...) and (N, C / g, g, ...)", code = [[
mx.permute(mx.arange(4):view(1, 2, 2, 1), { 1, 3, 2, 4 }):view(1, 4, 1) --> {{{0}, {2}, {1}, {3}}}]] },
        { "nn.Softshrink, F.softshrink, nn.Hardshrink, F.hardshrink, hardshrink",
            "`mx.sign(x) * mx.relu(mx.abs(x) - 0.5)`; `mx.where(mx.abs(x):gt(0.5), x, 0)`", code = [[
local x = mx.tensor { -2, 0.25 }
mx.sign(x) * mx.relu(mx.abs(x) - 0.5) --> {-1.5, 0}
mx.where(mx.abs(x):gt(0.5), x, 0) --> {-2, 0}]] },
        { "nn.Tanhshrink, F.tanhshrink, nn.Threshold, F.threshold, threshold",
            "`x - mx.tanh(x)`; `mx.where(x:gt(t), x, value)`", code = [[
local x = mx.tensor { 0, 1 }
x - mx.tanh(x) --> {0, 0.2384}]] },
        { "nn.Softmax2d, nn.RNNBase, nn.LPPool1d, F.lp_pool1d",
            "`mx.softmax(x, { dim = 2 })`; mx.nn.recurrent; mx.avg_pool1d of powers",
            code = [[mx.softmax(mx.zeros(1, 2, 1), { dim = 2 }) --> {{{0.5}, {0.5}}}]] },
        { "nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d, F.upsample_nearest, F.upsample_bilinear",
            "mx.interpolate; PyTorch's UpsamplingBilinear2d aligns corners, which is not here",
            code = [[mx.interpolate(mx.ones(1, 1, 2, 2), { scale = 2 }):size() --> {1, 1, 4, 4}]] },
        { "nn.LinearCrossEntropyLoss, F.linear_cross_entropy", "mx.cross_entropy",
            code = [[mx.cross_entropy(mx.zeros(1, 2), mx.zeros(2, 2), mx.tensor({ 0 }, "i32")):item() --> 0.6931]] },
        { "F.multi_margin_loss, F.multilabel_soft_margin_loss, F.soft_margin_loss, F.hinge_embedding_loss, "
            .. "F.margin_ranking_loss, F.cosine_embedding_loss, nn.TripletMarginWithDistanceLoss, "
            .. "F.triplet_margin_with_distance_loss",
            "`mx.relu(margin + wrong - right):mean()`, mx.bce_with_logits: see the names of nn",
            code = [[mx.relu(1 + mx.tensor { 0 } - mx.tensor { 0.5 }):mean() --> 0.5]] },
        { "nn.MultiLabelMarginLoss, F.multilabel_margin_loss",
            "`mx.relu(1 + wrong - right)` of all pairs, by unsqueeze, where a mask says which are targets", code = [[
local logits, is_target = mx.tensor { 2, 1.5, 0 }, mx.tensor({ 1, 0, 0 }, "u8")
local pairs = mx.relu(1 + logits:unsqueeze { dim = 1 } - logits:unsqueeze { dim = 2 })
(pairs * is_target:view(-1, 1) * (1 - is_target)):sum() / 3 --> 0.1667]] },
        { "F.pdist, pdist", "the distances of all rows (see cdist) above the diagonal, by a mask", code = [[
local x = mx.tensor { { 0, 0 }, { 3, 4 } }
local d = mx.norm(x:unsqueeze { dim = 2 } - x:unsqueeze { dim = 1 }, { dim = 3 })
d[mx.triu(mx.ones(2, 2, "u8"), { diagonal = 1 })] --> {5}]] },
        { "F.bilinear, F.rrelu, F.dropout1d, F.dropout3d, nn.Dropout3d",
            "as nn.Bilinear, nn.PReLU and nn.Dropout2d",
            code = [[mx.dropout(mx.ones(2, 3, 1), { rate = 0 }):sum() --> 6]] },
        { "nn.BatchNorm3d, nn.InstanceNorm3d", "mx.batch_norm and mx.group_norm take (N, C, ...)",
            code = [[mx.group_norm(mx.ones(1, 2, 3, 3, 3), { groups = 2 }):size() --> {1, 2, 3, 3, 3}]] },
        { "nn.init.dirac_, nn.init.sparse_", "values of your own: `mx.copy(params[name]:detach(), values)`",
            code = [[mx.copy(mx.zeros(2, 2), mx.eye(2)) --> {{1, 0}, {0, 1}}]] },
        { "ConstantLR, MultiplicativeLR, ChainedScheduler, LRScheduler",
            "learning_rate may be any function of the step, which counts from 1", code = [[
local function warmup(step) return 0.1 * math.min(step / 4, 1) end
mx.optim.sgd({}, { learning_rate = warmup }):rate(2) --> 0.05]] },
        { "SequentialSampler, SubsetRandomSampler, StackDataset, IterDataPipe, MapDataPipe",
            "mx.data.dataset of a table of tensors, `{ shuffle = false }` for their order",
            code = [[mx.data.dataset({ x = mx.arange(4) }, { batch = 2, shuffle = false }):next().x --> {0, 1}]] },
        { "set_autocast_enabled, is_autocast_enabled, get_autocast_dtype",
            "Pass bf16 tensors, or dtype = \"bf16\", to operations",
            code = [[mx.matmul(mx.ones({ 1, 1 }, "bf16"), mx.ones(1, 1)):dtype() --> bf16]] },
    },
}
