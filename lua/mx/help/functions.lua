--- What mx.help says of everything that is no operation. Entries { call, text, torch = names of PyTorch, code =
--- example } in sections, as in operations.lua. "t:" stands for a tensor, other words before ":" for an object of that
--- kind.

return {
    { title = "Tensors",
        { "tensor(values, dtype)", "A tensor from a number or nested tables. The dtype is f32 by default.",
            torch = "tensor, as_tensor, from_numpy, FloatTensor, LongTensor", code = [[
mx.tensor({ { 1, 2 }, { 3, 4 } }, "i32"):size() --> {2, 2}]] },
        { "zeros(sizes, dtype)", "A tensor of zeros.", torch = "zeros, zeros_like, empty",
            code = "mx.zeros(2) --> {0, 0}" },
        { "ones(sizes, dtype)", "A tensor of ones.", torch = "ones, ones_like",
            code = "mx.ones { 1, 2 } --> {{1, 1}}" },
        { "t:size(dim)", "The sizes as a list, or the size of one dimension.", torch = "Tensor.size, shape",
            code = "mx.zeros(2, 3):size(2) --> 3" },
        { "t:dim()", "The number of dimensions.", torch = "Tensor.dim, ndim", code = "mx.zeros(2, 3):dim() --> 2" },
        { "t:numel()", "The number of elements.", torch = "Tensor.numel, nelement",
            code = "mx.zeros(2, 3):numel() --> 6" },
        { "t:dtype()", "The dtype: f32, bf16, f64, i32, i64, u8, i8, e4m3 or e5m2.", torch = "Tensor.dtype",
            code = "mx.zeros(2):dtype() --> f32" },
        { "t:bytes()", "The bytes of the values.", torch = "Tensor.nbytes, element_size",
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
        { "t:unsqueeze { dim = }", "A view with a further dimension of size 1.", torch = "unsqueeze, x[None]",
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
            .. "select", code = [[
local t = mx.tensor { { 1, 2 }, { 3, 4 } }
t[{ {}, -1 }] --> {2, 4}
t[t:gt(2)] --> {3, 4}
t[t:gt(2)] = 0
t --> {{1, 2}, {0, 0}}
mx.where(t:eq(0), 9, t) --> {{1, 2}, {9, 9}}]] },
        { "t.T", "The transpose of a matrix.", torch = "Tensor.T, Tensor.mT",
            code = "mx.tensor { { 1, 2 } }.T --> {{1}, {2}}" },
        { "dtypes", "A table of dtypes and their properties.", torch = "finfo, iinfo", code = [[
for name, properties in pairs(mx.dtypes) do local _ = name, properties end]] },
        { "print_options(options)",
            "Sets the digits (precision) and the elements at each edge (edge) of printed tensors.",
            torch = "set_printoptions", code = "mx.print_options { precision = 4, edge = 5 }" },
        { "batch_norm(x, weight, bias, options)", "Normalizes each channel of x (N, C, ...) over the batch.",
            torch = "F.batch_norm, nn.BatchNorm1d, nn.BatchNorm2d",
            code = "mx.batch_norm(mx.randn { 4, 3 }):size() --> {4, 3}" },
        { "group_norm(x, weight, bias, options)", "Normalizes groups of channels of x (N, C, ...).",
            torch = "F.group_norm, nn.GroupNorm, F.instance_norm", code = [[
mx.group_norm(mx.randn { 4, 6 }, { groups = 2 }):size() --> {4, 6}]] },
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
            .. "a tensor or a table. Gradients of leaves do not change. Options: "
            .. "grad, retain, record (to differentiate again).", torch = "autograd.grad, func.grad", code = [[
local x = mx.tensor { 2 }:requires_grad()
local g = mx.grad((x * x * x):sum(), x, { record = true })
mx.grad(g:sum(), x) --> {12}]] },
        { "no_grad(fn, ...)", "Calls fn without recording, and returns its results.",
            torch = "no_grad, inference_mode, set_grad_enabled", code = [[
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
        { "manual_seed(n)", "Restarts the stream of random numbers.", torch = "manual_seed, random.seed",
            code = "mx.manual_seed(1)" },
        { "random_state(state)", "The position of the stream of random numbers; sets it if one is given.",
            torch = "get_rng_state, set_rng_state", code = "mx.random_state(mx.random_state())" },
        { "reduce_gradient(t, axes)", "All-reduces the gradient of a leaf in the background during backward.",
            torch = "nn.parallel.DistributedDataParallel",
            code = "mx.reduce_gradient(mx.ones(2):requires_grad(), nil)" },
    },
    { title = "Layers: mx.nn",
        { "nn.parameter(params, name, sizes, options)",
            "Creates a parameter and adds it to a table. Options: std or value, "
            .. "seed, dtype.", torch = "nn.Parameter, nn.ParameterDict", code = [[
local params = {}
local w = mx.nn.parameter(params, "w", { 2, 3 }, { std = 0.1 })
w:size() --> {2, 3}]] },
        { "nn.buffer(buffers, name, sizes, options)", "Creates state that training changes without a gradient.",
            torch = "register_buffer, nn.Buffer", code = [[
local buffers = {}
mx.nn.buffer(buffers, "mean", { 3 }) --> {0, 0, 0}]] },
        { "nn.linear(params, name, n_in, n_out, options)", "y = x W + b. W is (n_in, n_out), "
            .. "the transpose of PyTorch's. "
            .. "Options: bias (default false), std, seed.", torch = "nn.Linear", code = [[
local params = {}
local layer = mx.nn.linear(params, "layer", 4, 2, { bias = true })
layer(mx.ones(3, 4)):size() --> {3, 2}]] },
        { "nn.embedding(params, name, entries, width, options)", "Rows of a table by id, "
            .. "from 0. Options: std, seed, dtype.",
            torch = "nn.Embedding", code = [[
local embed = mx.nn.embedding({}, "embed", 10, 4)
embed(mx.tensor({ 0, 9 }, "i32")):size() --> {2, 4}]] },
        { "nn.rmsnorm(params, name, width, options)", "RMSNorm of the last dimension. Options: eps.",
            torch = "nn.RMSNorm",
            code = "mx.nn.rmsnorm({}, 'norm', 4)(mx.ones(2, 4)):size() --> {2, 4}" },
        { "nn.layernorm(params, name, width, options)", "LayerNorm of the last dimension. Options: eps, bias.",
            torch = "nn.LayerNorm", code = "mx.nn.layernorm({}, 'norm', 4)(mx.ones(2, 4)):size() --> {2, 4}" },
        { "nn.attention(params, name, width, options)", "Attention of a sequence (B, S, "
            .. "width) to itself. Options: heads "
            .. "(required), kv_heads, head_dim, causal (default true), window, rope, bias, seed.",
            torch = "nn.MultiheadAttention", code = [[
local attention = mx.nn.attention({}, "attention", 8, { heads = 2 })
attention(mx.randn { 1, 5, 8 }):size() --> {1, 5, 8}]] },
        { "nn.mlp(params, name, width, hidden, options)",
            "Two products with an activation between. Options: activation, "
            .. "gated, bias, seed.", torch = "feed forward, FeedForward, MLP", code = [[
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
            torch = "requires_grad_(False)", code = [[
local params = {}
mx.nn.linear(params, "head", 4, 2)
mx.nn.freeze(params, { "^head" }) --> 1]] },
        { "nn.state(params)", "A copy of the values, for mx.save or nn.load_state.",
            torch = "state_dict, Module.state_dict",
            code = [[
local params = {}
mx.nn.linear(params, "head", 4, 2)
mx.save("/tmp/head.h5", mx.nn.state(params))]] },
        { "nn.load_state(params, state)", "Gives parameters the values of a state.", torch = "load_state_dict",
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
            "AdamW. Options of all optimizers: learning_rate (a number or a function of the "
            .. "step), weight_decay, mask, groups, clip, clip_value, seed. Own ones: beta1, beta2, eps.",
            torch = "optim.AdamW, optim.Adam, clip_grad_norm_, clip_grad_value_, nn.utils.clip_grad_norm_", code = [[
local params = { w = mx.ones(2):keep():requires_grad() }
local optimizer = mx.optim.adamw(params, { learning_rate = 0.1, clip = 1 })
mx.backward(params.w:sum())
optimizer:step()]] },
        { "optim.sgd(params, options)", "Gradient descent. Own option: momentum.", torch = "optim.SGD", code = [[
local params = { w = mx.ones(2):keep():requires_grad() }
local optimizer = mx.optim.sgd(params, { learning_rate = 0.5 })
mx.backward(params.w:sum())
optimizer:step()
params.w --> {0.5, 0.5}]] },
        { "optim.lion(params, options)", "Lion. Own options: beta1, beta2.", torch = "Lion", code = [[
mx.optim.lion({ w = mx.ones(2):keep():requires_grad() }, { learning_rate = 1e-4 })]] },
        { "optim.adafactor(params, options)", "Adafactor. Own options: beta2_decay, eps1, eps2, clip_update.",
            torch = "optim.Adafactor", code = "mx.optim.adafactor({ w = mx.ones(2, 2):keep():requires_grad() })" },
        { "optim.muon(params, options)", "Muon for matrices, AdamW for the rest.", torch = "optim.Muon",
            code = "mx.optim.muon({ w = mx.ones(2, 2):keep():requires_grad() })" },
        { "optim.custom(name, rule)", "An optimizer of your own.", torch = "optim.Optimizer", code = [[
local descent = mx.optim.custom("descent", { update = function(p, grad, state, o)
    mx.copy(p, p - grad * o.lr)
end })
local optimizer = descent({ w = mx.ones(2):keep():requires_grad() }, { learning_rate = 0.1 })]] },
        { "optimizer:step()", "Updates the parameters, clears the gradients and returns their norm.",
            torch = "optimizer.step", code = [[
local w = mx.ones(1):keep():requires_grad()
local optimizer = mx.optim.sgd({ w = w }, { learning_rate = 0.5 })
mx.backward(w:sum() * 2)
optimizer:step() --> 2]] },
        { "optimizer:zero_grad()", "Discards the gradients; optimizer:step() does so, too.",
            torch = "optimizer.zero_grad",
            code = [[
local optimizer = mx.optim.sgd { w = mx.ones(2):keep():requires_grad() }
optimizer:zero_grad()]] },
        { "optimizer:rate(step)", "The learning rate of a step. optimizer.options.learning_rate sets it.",
            torch = "get_last_lr, param_groups", code = [[
local optimizer = mx.optim.sgd({ w = mx.ones(2):keep():requires_grad() }, { learning_rate = 0.5 })
optimizer:rate(1) --> 0.5]] },
        { "optim.schedule { type =, peak =, steps =, warmup_fraction = }", "A learning rate as a function of the step: "
            .. "cosine, wsd, constant or inverse_square_root, after a warm-up.",
            torch = "lr_scheduler, CosineAnnealingLR, LinearLR, LambdaLR, OneCycleLR", code = [[
local rate = mx.optim.schedule { type = "cosine", peak = 1e-3, steps = 100, warmup_fraction = 0.1 }
rate(11) --> 0.001]] },
        { "optim.ema(params, options)", "Moving averages of parameters: ema:update(), ema:apply(fn).",
            torch = "swa_utils.AveragedModel", code = [[
local params = { w = mx.ones(2):keep():requires_grad() }
local ema = mx.optim.ema(params, { decay = 0.99 })
ema:update()
ema:apply(function() return params.w:sum():item() end) --> 2]] },
        { "optim.early_stopping(options)", "Says when a loss no longer falls.", torch = "EarlyStopping", code = [[
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
        { "data.dataset(source, options)", "Batches from tensors by name, "
            .. "or from an iterator. Options: batch, shuffle, "
            .. "seed, shard, drop_last, buffer.",
            torch = "utils.data.DataLoader, TensorDataset, IterableDataset, DistributedSampler, Dataset", code = [[
local train = mx.data.dataset({ x = mx.arange(4) }, { batch = 2, shuffle = false })
for batch in train:epoch() do
    local x = batch.x
end]] },
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
        { "data.open_evaluation(data, mesh)", "The evaluation data of the same config.", code = [[
local data = mx.data.open(mx.config.load { "model_name=tiny", "dataset_type=synthetic" })
local batches = mx.data.open_evaluation(data):batches_of_pass()]] },
        { "data.sequences(config, mesh)", "Number of sequences in a batch of a rank.", code = [[
mx.data.sequences(mx.config.load { "model_name=tiny", "per_device_batch_size=3" }) --> 3]] },
    },
    { title = "Files",
        { "save(path, value)", "Writes nested tables of tensors, numbers, strings and booleans.",
            torch = "save", code = [[
mx.save("/tmp/state.h5", { w = mx.ones(2), step = 3 })
mx.load("/tmp/state.h5").step --> 3]] },
        { "load(path)", "Reads what mx.save wrote. Nothing is executed.", torch = "load", code = [[
mx.save("/tmp/state.h5", { w = mx.ones(2) })
mx.load("/tmp/state.h5").w --> {1, 1}]] },
        { "save_npy(path, t)", "Writes an array of numpy.", torch = "numpy.save",
            code = "mx.save_npy('/tmp/x.npy', mx.ones(2))" },
        { "load_npy(path, options)", "Reads an array of numpy. { dtype = } converts it.", torch = "numpy.load",
            code = [[
mx.save_npy("/tmp/x.npy", mx.ones(2))
mx.load_npy("/tmp/x.npy") --> {1, 1}]] },
        { "save_npz(path, tensors, options)", "Writes arrays of numpy by name. { compress = true } makes it smaller.",
            torch = "numpy.savez", code = "mx.save_npz('/tmp/x.npz', { x = mx.ones(2) })" },
        { "load_npz(path, options)", "Reads arrays of numpy by name. Options: dtype, names.", code = [[
mx.save_npz("/tmp/x.npz", { x = mx.ones(2) })
mx.load_npz("/tmp/x.npz").x --> {1, 1}]] },
        { "load_csv(path, options)", "Numbers of a CSV file as a tensor, "
            .. "and the names of its columns. Options: separator, "
            .. "header, skip, missing, dtype.", torch = "numpy.loadtxt, pandas.read_csv", code = [[
mx.io.write_file_atomic("/tmp/x.csv", "a,b\n1,2\n")
mx.load_csv("/tmp/x.csv") --> {{1, 2}}, {a, b}]] },
        { "from_bytes(text, options)", "A tensor from the bytes of its values. Options: shape, dtype, layout.",
            torch = "frombuffer", code = "mx.from_bytes('\\1\\2', { dtype = 'u8' }) --> {1, 2}" },
        { "to_bytes(t)", "The bytes of the values, as a string.", torch = "numpy.tobytes",
            code = "#mx.to_bytes(mx.ones(2)) --> 8" },
        { "read_file(path)", "The text that rank 0 reads there, on every rank; nil if there is none.",
            code = "mx.read_file('/tmp/missing') == nil --> true" },
        { "find_file(path)", "Where a file of the command line is found: below the current folder or the installation.",
            code = "local path = mx.find_file('configs/base.yml')" },
        { "read_line(prompt)", "The next line of the standard input, on every rank.", code = [[
local function ask() return mx.read_line("> ") end]] },
    },
    { title = "Plots, progress and sweeps",
        { "plot { file =, ... }", "Draws numbers as one .svg or .html file. Kinds: line, scatter, histogram, "
            .. "heatmap, images.",
            torch = "matplotlib, plt.plot, plt.hist, plt.imshow", code = [[
mx.plot { file = "/tmp/loss.svg", title = "Loss", y = { 3, 2, 1 } }]] },
        { "progress(n, what)", "Counts a loop and shows a bar in the terminal.", torch = "tqdm", code = [[
for i, say in mx.progress(3, "training") do
    say(("loss %.1f"):format(1 / i))
end]] },
        { "sparkline(values, width)", "Numbers as one line of text.",
            code = "local text = mx.sparkline { 1, 2, 3 }" },
        { "sweep { grid =, run = }", "Runs a function with many configurations and returns the results, best first. "
            .. "{ resume = folder } survives kills.", torch = "ray.tune, optuna, wandb.sweep", code = [[
local rows = mx.sweep { grid = { x = { 1, 2 } }, run = function(config) return { loss = config.x } end }
rows[1].config.x --> 1]] },
    },
    { title = "Memory, profiles and traces",
        { "memory()", "Bytes of tensor memory: in use, the peak, and others.",
            torch = "cuda.memory_allocated, memory_summary",
            code = "mx.memory().in_use >= 0 --> true" },
        { "memory_limit(bytes)", "Sets the limit of tensor memory; 0: none.",
            torch = "set_per_process_memory_fraction", code = "mx.memory_limit(mx.memory().limit)" },
        { "reset_peak()", "Restarts the peak of mx.memory().", torch = "cuda.reset_peak_memory_stats",
            code = "mx.reset_peak()" },
        { "trim()", "Returns unused tensor memory to the system.", torch = "cuda.empty_cache", code = "mx.trim()" },
        { "kept()", "The results that the tapes keep for backward: rows of name, op, bytes, storage.",
            code = "#mx.kept() --> 0" },
        { "profile(on)", "true starts the profiler, false stops it.", torch = "profiler.profile", code = [[
mx.profile(true)
mx.ones(2):exp()
mx.profile(false)
local slowest = mx.profile_report()[1].op]] },
        { "profile_report()", "Rows of op, shapes, calls, seconds, flops, bytes; the longest time first.",
            torch = "key_averages", code = "local rows = mx.profile_report()" },
        { "trace_start(path)", "Starts to record every operation. The file is for Perfetto.",
            torch = "export_chrome_trace", code = [[
mx.trace_start("/tmp/trace.json")
mx.ones(2):exp()
mx.trace_stop()]] },
        { "trace_stop()", "Ends the recording and writes the file.", code = "mx.trace_stop()" },
        { "trace_events()", "The recorded events, and the seconds that they cover.", code = [[
mx.trace_start()
mx.ones(2):exp()
mx.trace_stop()
#mx.trace_events() > 0 --> true]] },
        { "trace_span(name, start_s, end_s)", "Names a part of the time in a trace.",
            torch = "record_function", code = [[
local start = mx.now()
mx.trace_span("loading", start, mx.now())]] },
        { "find_bad(fn, ...)", "The first result inside fn with a NaN or an infinity, or nil.",
            torch = "autograd.detect_anomaly, detect_anomaly", code = [[
mx.find_bad(function() return mx.tensor { 0 }:log() end).op --> log]] },
        { "place(text)", "Names the current part of the script for mx.find_bad.",
            code = "mx.place('layer 3') mx.place(nil)" },
        { "now()", "Seconds of a monotonic clock; on a simulated pod, simulated time.",
            torch = "time.perf_counter, cuda.synchronize, cuda.Event", code = "mx.now() >= 0 --> true" },
        { "started()", "When the program started, in seconds of the clock of mx.now().",
            code = "mx.started() <= mx.now() --> true" },
        { "peak { kind =, seconds = }", "A measured peak of this machine: kind fma or copy.", code = [[
local copy = mx.peak { kind = "copy", seconds = 0.01 }
local rate, unit = copy.value, copy.unit]] },
        { "offload_open(directory)", "The folder of values that policies offload.", code = "mx.offload_open('')" },
        { "offload_stats(reset)", "What was offloaded, and how long the script waited.",
            code = "mx.offload_stats().away_bytes --> 0" },
    },
    { title = "Ranks and machines",
        { "rank()", "The number of this rank, from 0.", torch = "distributed.get_rank",
            code = "mx.rank() < mx.ranks() --> true" },
        { "ranks()", "The number of ranks.", torch = "distributed.get_world_size",
            code = "mx.ranks() >= 1 --> true" },
        { "barrier(axes)", "Waits for all ranks.", torch = "distributed.barrier", code = "mx.barrier()" },
        { "share_text(text, root)", "The root's text on all ranks.", torch = "broadcast_object_list",
            code = "mx.share_text('hello') --> hello" },
        { "flush()", "Starts asynchronous collectives that wait for others to join them.", code = "mx.flush()" },
        { "prefetch(x, options)", "Starts an all_gather that a later call uses.", code = [[
local x = mx.ones(2)
mx.prefetch(x, { dim = 1 })
mx.all_gather(x, { dim = 1 }):size(1) == 2 * mx.ranks() --> true]] },
        { "comm_options(options)", "Settings of collectives: sizes of buckets, prefetching, timeouts.",
            code = "mx.comm_options { timeout_s = 600 }" },
        { "comm_stats(reset)", "Seconds, calls and bytes of communication.",
            code = "mx.comm_stats().exposed_s >= 0 --> true" },
        { "mesh_define(axes)", "Sets the mesh. mx.mesh does this for a config.", torch = "init_device_mesh",
            code = "mx.mesh_define { { name = 'data', ici = mx.ranks(), dcn = 1 } }" },
        { "axis_size(axes)", "The number of ranks along axes of the mesh.", code = [[
mx.mesh_define { { name = "data", ici = mx.ranks(), dcn = 1 } }
mx.axis_size("data") == mx.ranks() --> true]] },
        { "axis_index(axes)", "The index of this rank along axes, from 0.", code = [[
mx.mesh_define { { name = "data", ici = mx.ranks(), dcn = 1 } }
mx.axis_index("data") == mx.rank() --> true]] },
        { "axis_ranks(axes)", "The ranks along axes, in ascending order.", code = [[
mx.mesh_define { { name = "data", ici = mx.ranks(), dcn = 1 } }
#mx.axis_ranks("data") == mx.ranks() --> true]] },
        { "axes_coordinates(axes, rank)", "The coordinates of a rank in a mesh of these axes.",
            code = "mx.axes_coordinates({ { name = 'data', ici = 2, dcn = 1 } }, 1).data --> 1" },
        { "axes_rank(axes, coordinates)", "The rank at these coordinates.",
            code = "mx.axes_rank({ { name = 'data', ici = 2, dcn = 1 } }, { data = 1 }) --> 1" },
        { "threads(n)", "The number of threads; sets it first if n is given.",
            torch = "set_num_threads, get_num_threads",
            code = "mx.threads() >= 1 --> true" },
        { "isa(name)", "The instruction set in use; sets it first if a name is given.",
            code = "mx.isa() ~= nil --> true" },
        { "host_name()", "The name of the machine.", code = "local name = mx.host_name()" },
        { "info()", "Libraries, processor and ranks.", torch = "__config__.show, utils.collect_env",
            code = "local about = mx.info()" },
        { "environment(prefix)", "The environment variables that begin with a text.",
            code = "next(mx.environment('NO_SUCH_')) --> nil" },
        { "version", "The version of mxlua.", torch = "__version__", code = "local text = mx.version" },
        { "root", "The folder of lua/, scripts/ and configs/.", code = "local folder = mx.root" },
        { "abort(message)", "Ends all ranks with status 1 and a message.", torch = "sys.exit", code = [[
local loss = 1
if loss ~= loss then mx.abort("the loss is NaN") end]] },
        { "catch_stop()", "From now on, signals to stop are only recorded for mx.stop_requested.",
            code = "if os.getenv('SCHEDULED') then mx.catch_stop() end" },
        { "stop_requested()", "The signal that asked this rank to stop, or nil.",
            code = "mx.stop_requested() --> nil" },
        { "wrap(text, columns)", "A text in lines of at most so many columns.",
            code = "mx.wrap('one two', 80) --> one two" },
        { "nearest(word, names)", "The nearest name to a misspelt one, or nil.",
            code = "mx.nearest('sofmax', { 'softmax', 'sum' }) --> softmax" },
        { "mpi_reference(kind, in, out, bytes)", "The MPI library's own collective, for comparisons.", code = [[
local function reference(x, y) mx.mpi_reference("all_reduce", x, y, x:bytes()) end]] },
        { "remat_region(kept, offloaded, fn, ...)", "What mx.remat is made of: lists of names.",
            code = "mx.remat_region(false, {}, function() return mx.ones(1) end) --> {1}" },
    },
    { title = "Simulated pods",
        { "is_simulated()", "Whether a chip is simulated. Tensors then have no values.",
            code = "mx.is_simulated() --> false" },
        { "sim_start(pod)", "Starts a simulated pod. mx.sim.start does this for a config.", code = [[
local function start() mx.sim_start(mx.sim.pod("v5e-256", 2)) end]] },
        { "sim_stop()", "Returns to this machine.", code = "if mx.is_simulated() then mx.sim_stop() end" },
        { "sim_times(reset)", "Seconds of the simulated chip by purpose.",
            code = "local function times() return mx.sim_times() end" },
        { "sim_placement()", "The chips of each axis along the torus, or nil.",
            code = "local function placement() return mx.sim_placement() end" },
    },
    { title = "Help",
        { "help(name)", "This text: mx.help() is an overview, mx.help \"cat\" explains one name of mx or PyTorch.",
            torch = "help, dir", code = "#mx.help('unsqueeze') > 0 --> true" },
        { "ops()", "The names of all operations; can be printed.", code = "#mx.ops() > 50 --> true" },
        { "op_info(name)", "What an operation takes and gives, as a table.",
            code = "mx.op_info('add').results --> 1" },
    },
    { title = "Modules",
        { "nn", "Layers: lua/mx/nn/README.md.", torch = "nn, nn.Module, nn.functional",
            code = "mx.nn.linear ~= nil --> true" },
        { "optim", "Optimizers: lua/mx/nn/README.md.", torch = "optim", code = "mx.optim.adamw ~= nil --> true" },
        { "data", "Training data: lua/mx/data/README.md.", torch = "utils.data",
            code = "mx.data.dataset ~= nil --> true" },
        { "config", "Configs and command lines: configs/README.md.", torch = "argparse, hydra", code = [[
mx.config.load { "model_name=tiny", "steps=3" }.steps --> 3]] },
        { "models", "Decoders, from a config: lua/mx/models/README.md.",
            torch = "AutoModelForCausalLM, nn.Transformer",
            code = [[
local model = mx.models.new(mx.config.load { "model_name=tiny" })
local params = model.params]] },
        { "run", "Training runs with a folder, a log and checkpoints: lua/mx/run/README.md.",
            torch = "Trainer, lightning",
            code = "mx.run.start ~= nil --> true" },
        { "checkpoint", "Saves and loads runs: lua/mx/checkpoint/README.md.", torch = "distributed.checkpoint",
            code = "mx.checkpoint.saver ~= nil --> true" },
        { "weights", "Files of Hugging Face and GGUF: lua/mx/weights/README.md.",
            torch = "from_pretrained, safetensors",
            code = "mx.weights.load ~= nil --> true" },
        { "tokenizer", "Tokenizers: lua/mx/data/tokenizers.md.", torch = "AutoTokenizer", code = [[
local tokenizer = mx.tokenizer.open("bytes")
tokenizer.vocab_size >= 256 --> true]] },
        { "generate", "Continues texts.", torch = "model.generate", code = "mx.generate.text ~= nil --> true" },
        { "evaluate", "The loss of evaluation data.", code = "mx.evaluate.loss ~= nil --> true" },
        { "parallel", "A model on a mesh: lua/mx/parallel/README.md.",
            torch = "fully_shard, FullyShardedDataParallel, FSDP, "
            .. "DDP", code = "mx.parallel.new ~= nil --> true" },
        { "mesh", "Axes over ranks: lua/mx/parallel/README.md.", torch = "DeviceMesh",
            code = "mx.mesh.new ~= nil --> true" },
        { "sim", "Simulated hardware: lua/mx/sim/README.md.", code = "mx.sim.start ~= nil --> true" },
        { "report", "HTML reports of runs: lua/mx/report/README.md.", code = "mx.report.write ~= nil --> true" },
        { "metrics", "Progress lines and rates of a run.", code = "mx.metrics.new ~= nil --> true" },
        { "tensorboard", "Event files.", torch = "utils.tensorboard.SummaryWriter, SummaryWriter",
            code = "mx.tensorboard.open ~= nil --> true" },
        { "io", "Low-level files: HDF5, JSON, YAML, folders.", torch = "json, yaml, h5py",
            code = "mx.io.json_decode('{\"a\": 1}').a --> 1" },
        { "util", "Sorted iteration, seeds, options, one-line errors.",
            code = "mx.util.thousands(12345) --> 12,345" },
        { "train", "Steps of a run, gradients over ranks.", code = "mx.train.gradients ~= nil --> true" },
        { "flops", "FLOPs of models.", torch = "FlopCounterMode", code = "mx.flops.step ~= nil --> true" },
        { "prepare", "Turns texts into files of tokens.", code = "mx.prepare.run ~= nil --> true" },
        { "outputs", "Which files a run writes.", code = "mx.outputs.check ~= nil --> true" },
        { "files", "Whether files are the same on all ranks.", code = "mx.files.check_same ~= nil --> true" },
        { "guard", "Detects NaN and loss spikes.", code = "mx.guard.new ~= nil --> true" },
        { "goodput", "What the time of a run was spent on.", code = "mx.goodput.new ~= nil --> true" },
        { "profiler", "Records steps of a run.", code = "mx.profiler.new ~= nil --> true" },
        { "bench", "Benchmarks: lua/mx/bench/README.md.", code = "mx.bench.run ~= nil --> true" },
        { "collectives", "Measures collectives.", code = "mx.collectives.run ~= nil --> true" },
        { "kernels", "Measures operations.", torch = "utils.benchmark", code = "mx.kernels.run ~= nil --> true" },
        { "policies", "Compares policies of rematerialisation.", code = "mx.policies.run ~= nil --> true" },
        { "plan", "Searches the best mesh of a run.", code = "mx.plan.run ~= nil --> true" },
        { "roofline", "Rooflines of a run.", code = "mx.roofline.run ~= nil --> true" },
        { "repro", "The published tables.", code = "mx.repro.run ~= nil --> true" },
        { "fit", "Fits constants of simulations.", code = "mx.fit.step ~= nil --> true" },
        { "generations", "Published jobs on generations of chips.", code = "mx.generations.run ~= nil --> true" },
        { "host", "This machine as simulated hardware.", code = "mx.host.hardware ~= nil --> true" },
        { "flags", "XLA flags of command lines.", code = "mx.flags.read ~= nil --> true" },
        { "words", "Keys of MaxText: configs/coming_from_maxtext.md.", code = "mx.words.run ~= nil --> true" },
    },
    { title = "What is different", topics = true,
        { "model", "There is no class of modules. A model is a function and a table of parameters.",
            torch = "Module, model.parameters, named_parameters, forward, super().__init__", code = [[
local params = {}
local layer = mx.nn.linear(params, "layer", 4, 2)
local function model(x) return layer(x):relu() end
model(mx.ones(3, 4)):size() --> {3, 2}]] },
        { "train or eval mode", "There are no modes. Call mx.dropout only while training.",
            torch = "model.train, model.eval",
            code = [[
local function hidden(x, training) return training and mx.dropout(x, { rate = 0.1 }) or x end
hidden(mx.ones(2), false) --> {1, 1}]] },
        { "compile", "Not needed: operations run at once, and fused ones exist.",
            torch = "compile, jit.script, jit.trace, vmap",
            code = "mx.gated(mx.ones(2), mx.ones(2), { activation = 'relu' }) --> {1, 1}" },
        { "mixed precision", "Pass bf16 tensors, or dtype = \"bf16\", "
            .. "to operations. No scaler of gradients is needed.",
            torch = "autocast, amp.autocast, GradScaler", code = [[
local x, w = mx.ones({ 2, 4 }, "bf16"), mx.ones(4, 2)
mx.matmul(x, w):dtype() --> bf16]] },
        { "device", "There is one device for each rank. A simulated pod is chosen by hardware= on the command line.",
            torch = "device, cuda.is_available, cuda.device_count", code = "mx.is_simulated() --> false" },
        { "init_process_group", "mpirun -n 2 build/mxlua script.lua starts the ranks. No call is needed.",
            torch = "distributed.init_process_group, torchrun, multiprocessing.spawn",
            code = "mx.ranks() >= 1 --> true" },
    },
}
