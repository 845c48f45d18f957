--- As elsewhere.lua: options of PyTorch's functions, and terms of papers.

return {
    { title = "Options of PyTorch", elsewhere = "As an option here",
        { "lr, betas, amsgrad, foreach, max_norm, grad_clip", "`learning_rate`, `beta1`, `beta2`, `clip` (the largest "
            .. "norm of all gradients) and `clip_value` of optimizers; there is no amsgrad", code = [[
mx.optim.adamw({}, { learning_rate = 1e-3, beta2 = 0.95, clip = 1 }).options.beta2 --> 0.95]] },
        { "retain_graph, create_graph, set_to_none", "`retain` keeps the records of mx.backward and mx.grad, `record` "
            .. "of mx.grad makes gradients that can be differentiated; t:zero_grad() makes t:grad() nil", code = [[
local x = mx.tensor { 2 }:requires_grad()
local g = mx.grad((x ^ 3):sum(), x, { record = true })
mx.grad(g:sum(), x) --> {12}]] },
        { "batch_size, num_workers, prefetch_factor, persistent_workers", "`batch` of mx.data.dataset; there are no "
            .. "worker processes", code = [[
mx.data.dataset({ x = mx.arange(4) }, { batch = 2, shuffle = false }):next().x --> {0, 1}]] },
        { "in_features, out_features, in_channels, out_channels, kernel_size, padding_mode", "the sizes of a layer are "
            .. "arguments, the kernel's is `size` of pooling; other paddings than zeros are made by mx.pad before",
            code = [[
local conv = mx.nn.conv2d({}, "conv", 3, 8, 5)
conv(mx.pad(mx.ones(1, 3, 6, 6), { before = { 0, 0, 2, 2 }, after = { 0, 0, 2, 2 }, mode = "reflect" })):size(4) --> 6
mx.max_pool2d(mx.ones(1, 3, 6, 6), { size = 2 }):size(4) --> 3]] },
        { "input_size, hidden_size, num_layers, bidirectional, batch_first", "sequences are (B, S, width). A second "
            .. "layer is a second mx.nn.recurrent; for both directions, a second one sees the sequence reversed",
            code = [[
local params, x = {}, mx.ones(2, 5, 4)
local forth = mx.nn.recurrent(mx.nn.lstm_cell(params, "forth", 4, 3))
local back = mx.nn.recurrent(mx.nn.lstm_cell(params, "back", 4, 3))
local a, b = forth(x), back(mx.flip(x, { dim = 2 })) -- each also returns its last state
local both = mx.concat(a, mx.flip(b, { dim = 2 }), { dim = 3 })
local top = mx.nn.recurrent(mx.nn.lstm_cell(params, "top", 6, 3)) -- the second layer
top(both):size() --> {2, 5, 3}]] },
        { "embed_dim, num_heads, attn_mask, key_padding_mask, is_causal, enable_gqa", "`heads`, `kv_heads` and "
            .. "`causal` of mx.nn.attention; a mask is given to a call. mx.attention takes fewer heads of k and v, "
            .. "and a mask as `bias`: of u8, 1 where a query attends, or floats", code = [[
local layer = mx.nn.attention({}, "attention", 8, { heads = 4, kv_heads = 2, causal = false })
local is_word = mx.tensor({ 1, 1, 0 }, "u8"):view(1, 1, 1, 3)
layer(mx.ones(1, 3, 8), { mask = is_word }):size() --> {1, 3, 8}]] },
        { "num_embeddings, embedding_dim, padding_idx", "a row that stands for padding: multiply by a mask, which "
            .. "stops its gradient, too", code = [[
local embed, ids = mx.nn.embedding({}, "embed", 10, 4), mx.tensor({ 3, 0 }, "i32")
(embed(ids) * ids:ne(0):unsqueeze { dim = 2 })[2] --> {0, 0, 0, 0}]] },
        { "normalized_shape, num_features, num_groups, track_running_stats, affine", "the width or the channels of a "
            .. "norm are arguments, `groups` an option; running averages are in the table `buffers` of "
            .. "mx.nn.batch_norm",
            code = [[mx.nn.group_norm({}, "norm", 8, { groups = 4 })(mx.ones(2, 8, 5)):size() --> {2, 8, 5}]] },
        { "align_corners, scale_factor", "`scale` or `size` of mx.interpolate; corners are not aligned",
            code = [[mx.interpolate(mx.ones(1, 1, 2, 2), { scale = 2, mode = "linear" }):size(4) --> 4]] },
    },
    { title = "Terms of papers", elsewhere = "With functions from here",
        { "contrastive loss, InfoNCE, NT-Xent, SimCLR, CLIP, MoCo", "the cross-entropy of similarities, where the "
            .. "target of each row is its partner; mx.all_gather brings the rows of other ranks, with gradients",
            code = [[
local a, b, temperature = mx.randn(4, 8), mx.randn(4, 8), 0.1 -- of two views of each example; of this rank
local all = mx.all_gather(mx.normalize(b), { dim = 1 })
local logits = mx.matmul(mx.normalize(a), all, { trans_b = true }) / temperature
local loss = mx.softmax_cross_entropy(logits, mx.arange(4, "i32") + 4 * mx.rank())
loss:dim() --> 0]] },
        { "VAE, variational autoencoder, reparametrization, reparameterization, reparameterization trick, ELBO",
            "a draw with gradients is `mean + std * mx.randn(sizes)`; the divergence from the standard normal in "
            .. "closed form", code = [[
local mean, log_var = mx.zeros(3, 2), mx.zeros(3, 2) -- of an encoder
local z = mean + (log_var / 2):exp() * mx.randn(mean:size())
local divergence = -(1 + log_var - mean ^ 2 - log_var:exp()):sum() / 2
z:size() --> {3, 2}
divergence:abs() --> 0]] },
        { "VQ-VAE, vector quantization, codebook, straight-through estimator", "the nearest row by mx.argmin; "
            .. "mx.straight_through has the value of the row and the gradient of the encoder's", code = [[
local codebook, z = mx.tensor { { 0, 0 }, { 1, 1 } }, mx.tensor { { 0.9, 0.8 } }
local ids = mx.norm(z:unsqueeze { dim = 2 } - codebook:unsqueeze { dim = 1 }, { dim = 3 }):argmin { dim = 2 }
local q = codebook[ids]
local loss = mx.mse_loss(q, z:detach()) + 0.25 * mx.mse_loss(z, q:detach())
mx.straight_through(q, z) --> {{1, 1}}]] },
        { "swa_utils.update_bn", "the running averages of mx.nn.batch_norm with averaged weights: calls with the data, "
            .. "inside of ema:apply", code = [[
local params, buffers = {}, {}
local norm = mx.nn.batch_norm(params, "norm", 2, { buffers = buffers })
mx.optim.ema(params):apply(function() mx.no_grad(norm, mx.tensor { { 1, 2 }, { 3, 4 } }, true) end)
buffers["norm.mean"] --> {0.2, 0.3}]] },
        { "U-Net, UNet, skip connection", "mx.nn.conv2d, mx.max_pool2d, mx.nn.conv_transpose2d, and mx.concat of "
            .. "channels", code = [[
local params, x = {}, mx.ones(1, 3, 8, 8)
local down = mx.nn.conv2d(params, "down", 3, 6, 3, { padding = 1 })
local up = mx.nn.conv_transpose2d(params, "up", 6, 3, 2, { stride = 2 })
mx.concat(up(down(mx.max_pool2d(x, { size = 2 }))), x, { dim = 2 }):size() --> {1, 6, 8, 8}]] },
        { "relative position bias, T5 bias, Swin", "a table by the distance of two positions, as `bias` of "
            .. "mx.attention (1, heads, S, T)", code = [[
local S, heads = 3, 2
local table_of = mx.nn.parameter({}, "bias", { 2 * S - 1, heads }, { std = 0.02 })
local at = mx.arange(S, "i32")
local apart = at:unsqueeze { dim = 1 } - at:unsqueeze { dim = 2 } + (S - 1) -- (S, S), from 0
local bias = mx.permute(mx.embedding(table_of, apart), 3, 1, 2):unsqueeze { dim = 1 }
local q = mx.ones(1, S, heads, 4)
mx.attention(q, q, q, { bias = bias }):size() --> {1, 3, 2, 4}]] },
        { "Fourier neural operator, FNO, spectral convolution", "the first frequencies of mx.rfft times complex "
            .. "weights, and mx.irfft, for which all others are 0", code = [[
local B, C, n, modes = 2, 3, 32, 8 -- x (B, C, n)
local params = {}
local wr = mx.nn.parameter(params, "real", { modes, C, C }, { std = 0.1 })
local wi = mx.nn.parameter(params, "imag", { modes, C, C }, { std = 0.1 })
local re, im = mx.rfft(mx.randn(B, C, n), { frequencies = modes })
local function by(a, w) return mx.einsum("bcm,mcd->bdm", a, w) end
mx.irfft(by(re, wr) - by(im, wi), by(re, wi) + by(im, wr), { n = n }):size() --> {2, 3, 32}]] },
    },
}
