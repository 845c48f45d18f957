--- mx.help of names of PyTorch: it says what each is called here, or what to write instead.

local mx = require "mx"
local lu = require "luaunit"

local NAMES = {
    torch = [[
        Generator abs acos add addcdiv addcmul addmm allclose amax amin aminmax arange argmax argmin argsort as_tensor
        asin atan atan2 backends.cuda.matmul.allow_tf32 baddbmm bernoulli bfloat16 bincount bmm bool broadcast_to
        bucketize cartesian_prod cat cdist ceil chunk clamp clip combinations compile complex cos cosh cross cuda.Stream
        cuda.amp cuda.is_available cuda.synchronize cummax cumprod cumsum device diag diag_embed diagonal digamma dist
        div dot dstack einsum empty empty_like enable_grad eq equal erf erfc erfinv exp exp2 expm1 eye fft.fft fft.rfft
        flatten flip float16 float32 float64 floor fmod frac from_numpy full full_like gather get_default_dtype
        heaviside histc histogram hstack hub.load hypot index_add index_select inference_mode inner int32 int64
        is_grad_enabled is_tensor isclose isfinite isin isinf isnan jit.script kron kthvalue lerp lgamma linspace load
        log log10 log1p log2 logaddexp logcumsumexp logical_and logical_not logit logspace logsumexp manual_seed
        masked_fill masked_scatter masked_select matmul max mean median meshgrid min mm mode movedim mul multinomial mv
        nan_to_num nanmean nansum ne nested.nested_tensor no_grad nonzero norm normal numel ones ones_like onnx.export
        outer pca_lowrank permute polar pow prod profiler.profile quantile quantization.quantize_dynamic rand rand_like
        randint randn randn_like randperm reciprocal remainder repeat_interleave reshape roll rot90 round rsqrt save
        scatter scatter_add scatter_reduce searchsorted seed set_default_device set_default_dtype
        set_float32_matmul_precision set_grad_enabled sigmoid sign sin sinh softmax sort sparse_coo_tensor
        special.erfinv special.logit split sqrt squeeze stack std std_mean stft sub sum svd t take take_along_dim tan
        tanh tensor tensordot tile topk trace transpose tril tril_indices triu triu_indices trunc uint8 unbind unique
        unique_consecutive unsqueeze use_deterministic_algorithms utils.checkpoint.checkpoint
        utils.tensorboard.SummaryWriter var var_mean view_as_complex vmap vstack where xlogy zeros zeros_like
]],
    ["torch.Tensor"] = [[
        add_ addcmul_ backward bool clamp_ clone contiguous copy_ cpu cuda data_ptr detach detach_ device diagonal
        double element_size expand expand_as exponential_ fill_ float grad_fn half index_add_ index_copy_ index_fill_
        int is_contiguous is_cuda item lerp_ long map_ masked_fill_ mul_ nbytes ndim new_tensor new_zeros normal_ numpy
        pin_memory register_hook register_post_accumulate_grad_hook repeat requires_grad_ reshape retain_grad scatter_
        scatter_add_ shape share_memory_ size storage stride to tolist type unfold uniform_ view view_as zero_
]],
    ["torch.autograd"] = [[
        Function backward functional.hessian functional.hvp functional.jacobian grad gradcheck profiler.profile
        set_detect_anomaly
]],
    ["torch.distributed"] = [[
        ReduceOp all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier
        batch_isend_irecv broadcast broadcast_object_list checkpoint.save destroy_process_group
        device_mesh.init_device_mesh fsdp.FullyShardedDataParallel gather get_rank get_world_size init_process_group
        irecv is_initialized isend monitored_barrier new_group pipelining recv reduce reduce_scatter
        reduce_scatter_tensor scatter send tensor.parallel
]],
    ["torch.distributions"] = [[
        Bernoulli Beta Categorical Dirichlet Gamma Normal kl_divergence
]],
    ["torch.func"] = [[
        functional_call grad hessian jacrev jvp vmap
]],
    ["torch.linalg"] = [[
        cholesky det eig eigh inv lstsq matrix_norm matrix_power norm pinv qr slogdet solve svd
]],
    ["torch.nn"] = [[
        AdaptiveAvgPool2d AdaptiveMaxPool2d AlphaDropout AvgPool2d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d
        Bilinear CELU CTCLoss Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d CosineEmbeddingLoss CosineSimilarity
        CrossEntropyLoss DataParallel Dropout Dropout2d ELU Embedding EmbeddingBag Flatten Fold GELU GLU GRU GRUCell
        GaussianNLLLoss GroupNorm Hardsigmoid Hardswish Hardtanh HingeEmbeddingLoss HuberLoss Identity InstanceNorm2d
        KLDivLoss L1Loss LSTM LSTMCell LayerNorm LazyLinear LeakyReLU Linear LocalResponseNorm LogSigmoid LogSoftmax
        MSELoss MarginRankingLoss MaxPool2d MaxUnpool2d Mish Module ModuleDict ModuleList MultiLabelSoftMarginLoss
        MultiheadAttention NLLLoss PReLU PairwiseDistance Parameter ParameterList PixelShuffle PoissonNLLLoss RMSNorm
        RNN RNNCell ReLU ReLU6 SELU Sequential SiLU Sigmoid SmoothL1Loss Softmax Softplus Softsign SyncBatchNorm Tanh
        Transformer TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer TripletMarginLoss Unflatten
        Unfold Upsample attention.flex_attention parallel.DistributedDataParallel
]],
    ["torch.nn.Module"] = [[
        apply eval load_state_dict named_modules named_parameters parameters register_forward_hook requires_grad_
        state_dict to train zero_grad
]],
    ["torch.nn.functional"] = [[
        adaptive_avg_pool2d affine_grid avg_pool2d batch_norm binary_cross_entropy binary_cross_entropy_with_logits
        conv2d conv_transpose2d cosine_similarity cross_entropy dropout embedding fold gaussian_nll_loss gelu
        grid_sample gumbel_softmax hardtanh interpolate kl_div layer_norm linear logsigmoid lp_pool2d max_pool2d mish
        mse_loss multi_head_attention_forward nll_loss normalize one_hot pad pairwise_distance pixel_shuffle relu relu6
        scaled_dot_product_attention silu softmin triplet_margin_loss unfold
]],
    ["torch.nn.init"] = [[
        constant_ eye_ kaiming_normal_ kaiming_uniform_ normal_ orthogonal_ uniform_ xavier_normal_ xavier_uniform_
]],
    ["torch.nn.utils"] = [[
        clip_grad_norm_ clip_grad_value_ parameters_to_vector rnn.pack_padded_sequence rnn.pad_sequence spectral_norm
        weight_norm
]],
    ["torch.optim"] = [[
        ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam Optimizer Optimizer.add_param_group
        Optimizer.load_state_dict Optimizer.param_groups Optimizer.state_dict Optimizer.step Optimizer.zero_grad RAdam
        RMSprop Rprop SGD SparseAdam swa_utils.AveragedModel swa_utils.SWALR
]],
    ["torch.optim.lr_scheduler"] = [[
        CosineAnnealingLR CosineAnnealingWarmRestarts ExponentialLR LambdaLR LinearLR MultiStepLR OneCycleLR
        ReduceLROnPlateau SequentialLR StepLR
]],
    ["torch.utils.data"] = [[
        BatchSampler ChainDataset ConcatDataset DataLoader Dataset IterableDataset RandomSampler Sampler Subset
        TensorDataset WeightedRandomSampler default_collate distributed.DistributedSampler get_worker_info random_split
]],
}

TestNames = {}

function TestNames.test_every_name_has_an_answer()
    local lacking, n = {}, 0
    for group, names in pairs(NAMES) do
        for name in names:gmatch("%S+") do
            n = n + 1
            if not pcall(mx.help, group .. "." .. name) then
                lacking[#lacking + 1] = group .. "." .. name
            end
        end
    end
    table.sort(lacking)
    lu.assertEquals(lacking, {})
    lu.assertTrue(n > 550)
end

-- The last part of a name alone may mean something else.
function TestNames.test_answers()
    for name, words in pairs {
        ["torch.scatter"] = "mx.scatter(", ["torch.distributed.scatter"] = "mx.shard",
        ["torch.gather"] = "mx.gather(", ["torch.distributed.gather"] = "mx.all_gather",
        ["torch.nn.functional.relu"] = "mx.relu(", ["torch.nn.functional.unfold"] = "patches",
        ["torch.Tensor.unfold"] = "mx.unfold(", ["torch.nn.Module.train"] = "no modes",
        ["torch.optim.lr_scheduler.CosineAnnealingLR"] = "mx.optim.schedule",
        ["torch.optim.lr_scheduler.StepLR"] = "function of the step",
        ["torch.utils.data.DataLoader"] = "mx.data.dataset(", ["torch.float32"] = "mx.dtypes",
        ["torch.log2"] = "mx.log(x) / math.log(2)", ["torch.acos"] = "mx.acos(",
        ["torch.optim.Optimizer.state_dict"] = "mx.checkpoint", ["torch.linalg.svd"] = "mx.linalg.svd(",
        ["torch.distributions.Normal"] = "mx.randn", ["torch.nn.init.kaiming_normal_"] = "sqrt(2 / n_in)",
        ["torch.Tensor.clamp_"] = "clamp_ changes a tensor in place. Here, assign the result",
        ["torch.Tensor.add_"] = "mx.add_(", ["torch.Tensor.index_add_"] = "mx.scatter_add(",
        -- Names that other modules have, too, and old ones without _.
        ["torch.special.softmax"] = "mx.softmax(", ["torch.autograd.no_grad"] = "mx.no_grad(",
        ["torch.nn.init.normal"] = "mx.randn(", ["torch.nn.Module.cuda"] = "t:to(",
        ["torch.nn.utils.get_total_norm"] = "mx.optim.norm(", ["mamba.selective_scan"] = "mx.linear_scan(",
        ["torch.prod"] = "mx.prod(", ["torch.nn.functional.gumbel_softmax"] = "mx.gumbel_softmax(",
        ["torch.nn.BatchNorm2d"] = "mx.nn.batch_norm(", ["einops.rearrange"] = "mx.permute",
        ["gradient accumulation"] = "optimizer:step()", ["distributions.MixtureSameFamily"] = "mx.logsumexp",
        ["torch_geometric.utils.softmax"] = "mx.scatter_add", ["functional"] = "mx.relu(x)",
        ["torch.take_along_dim"] = "mx.gather(", ["torch.copysign"] = "mx.where(y:lt(0)",
        ["torch.Tensor.cauchy_"] = "mx.tan(", ["torch.index_add"] = "whole rows",
        ["torch.scatter_reduce"] = "mx.scatter_reduce(", ["torch_scatter.scatter_max"] = "mx.scatter_reduce(",
        ["batch norm"] = "mx.batch_norm(", ["early stopping"] = "mx.optim.early_stopping(",
        ["label smoothing"] = "mx.softmax_cross_entropy", ["ignore index"] = "mx.softmax_cross_entropy",
        ["x.to(device)"] = "t:to(", ["hidden states"] = "model:hidden(", ["jax.lax.scan"] = "for, while and if",
        -- Names that modules and functions of ours have, too.
        ["Tensor.data"] = "t:detach()", ["torch.mode"] = "how often each occurs", ["torch.sum"] = "mx.sum(",
        ["scheduler.step"] = "function of the step", ["distributed.ReduceOp.SUM"] = "the option op",
        ["torch.fft.rfft"] = "mx.rfft(", ["torch.stft"] = "mx.unfold(", ["create_graph"] = "record",
        ["bidirectional"] = "mx.flip", ["InfoNCE"] = "mx.all_gather", ["padding_idx"] = "mask",
        ["torch.vmap"] = "Operations broadcast", ["optimizer.zero_grad()"] = "optimizer:zero_grad()",
    } do
        lu.assertStrContains(mx.help(name), words)
    end
end

-- Where such a name is used, the message leads to mx.help.
function TestNames.test_messages()
    local x = mx.ones(2)
    for text, f in pairs {
        ['mx.log2 does not exist; print(mx.help "log2") says what to write instead'] = function() return mx.log2 end,
        ["mx.randperm does not exist; PyTorch's randperm is mx.permutation here"] = function() return mx.randperm end,
        ['a tensor has no method \'median\'; print(mx.help "median") says what'] = function() return x:median() end,
        ["a tensor has no method 'unique'; use mx.unique(t)"] = function() return x:unique() end,
        ["a tensor has no method 'interpolate'; use mx.interpolate(t)"] = function() return x:interpolate() end,
        ['mx.linalg.pinv does not exist; print(mx.help "linalg.pinv") says'] = function() return mx.linalg.pinv end,
        ['mx.nn.RNNCell does not exist; print(mx.help "nn.RNNCell") says what'] = function() return mx.nn.RNNCell end,
        ["did you mean mx.nn.linear?"] = function() return mx.nn.Linear end,
        ["did you mean 'to'?"] = function() return x:float() end,
        ['a tensor has no method \'flatten\'; print(mx.help "flatten") says'] = function() return x:flatten() end,
        ['a tensor has no method \'clamp_min\'; print(mx.help "clamp_min") says'] = function() return x:clamp_min() end,
        ["mx.unsqueeze does not exist; it is a method of tensors: t:unsqueeze"] = function() return mx.unsqueeze end,
        ['mx.autocast does not exist; print(mx.help "autocast") says what'] = function() return mx.autocast end,
        ["PyTorch's masked_select is t[...] here"] = function() return mx.masked_select end,
        ['mx.F does not exist; print(mx.help "F") says what'] = function() return mx.F end,
    } do
        lu.assertErrorMsgContains(text, f)
    end
end
