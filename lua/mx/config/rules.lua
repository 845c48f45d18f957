--- Tables of rules: bounds and choices of config keys, and keys that have an effect only with others. No code.

local blocks = require "mx.models.blocks"
local mesh = require "mx.parallel.mesh"
local pipeline_kinds = require "mx.pipeline.kinds"
local quantization = require "mx.models.quantization"
local remat = require "mx.models.remat"
local schedule = require "mx.run.schedule"
local util = require "mx.util"

local rules = {}

local MOST_DEVICES = 1000000 -- on an axis of a mesh
local MOST_SIZE = (1 << 31) - 1 -- of a dimension: ids and rows are counted in 32 bits
local MOST_LENGTH = 1 << 24 -- keys in attention

-- What must hold besides the type. Numbers: min, max, below (exclusive), or the single value `rest` below min, which
-- means `rest_means`, or whatever is left. Lists: the allowed lists.
-- A number without a max is at most 2^53 in magnitude (lua/mx/config/values.lua).
rules.VALUES = {
    log_period = { min = 1 },
    tuning = { choices = { "off", "cache" } },
    flop_formula = {
        choices = { "maxtext-2023-06", "maxtext-2023-10", "maxtext-2023-11", "maxtext-2024-05", "maxtext-2025-07" },
    },
    checkpoint_period = { min = 0 },
    max_num_checkpoints_to_keep = { min = 0 },
    checkpoint_keep_period = { min = 0 },
    heartbeat_period_s = { min = 0 },
    nonfinite_step = { choices = { "stop", "skip" } },
    skip_step_interval = { min = 2 },
    skip_step_scaling_factor = { min = 0 },
    skip_first_n_steps_for_profiler = { min = 0 },
    profiler_steps = { min = 1 },
    global_parameter_scale = { min = 1, max = 1 << 40 },
    base_emb_dim = { min = 1, max = MOST_SIZE },
    base_num_query_heads = { min = 1, max = MOST_SIZE },
    base_num_kv_heads = { min = 1, max = MOST_SIZE },
    head_dim = { min = 1, max = MOST_SIZE },
    base_mlp_dim = { min = 1, max = MOST_SIZE },
    base_num_decoder_layers = { min = 1, max = MOST_SIZE },
    num_experts = { min = 1, max = 1024 }, -- MX_MAX_EXPERTS
    num_experts_per_tok = { min = 1, max = 64 }, -- MX_MAX_TOP
    base_moe_mlp_dim = { min = 1, max = MOST_SIZE, rest = -1, rest_means = "base_mlp_dim" },
    interleave_moe_layer_step = { min = 1 },
    first_num_dense_layers = { min = 0 },
    shared_experts = { min = 0, max = MOST_SIZE },
    routed_score_func = { choices = { "", "softmax", "sigmoid" } },
    routed_scaling_factor = { min = 1e-6 },
    n_routing_groups = { min = 1, max = 64, rest = -1, rest_means = "no groups" },
    topk_routing_group = { min = 1, max = 64, rest = -1, rest_means = "no groups" },
    routing_group_score = { choices = { "sum_of_two", "max" } },
    routed_bias_update_rate = { min = 0 },
    mtp_num_layers = { min = 0, max = 64 },
    mtp_loss_scaling_factor = { min = 0 },
    mtp_eval_target_module = { min = 0, max = 64 },
    qk_clip_threshold = { min = 1e-6 },
    load_balance_loss_weight = { min = 0 },
    router_z_loss_weight = { min = 0 },
    capacity_factor = { min = 0.01, rest = -1, rest_means = "no limit" },
    num_moe_token_chunks = { min = 1, max = 1024 },
    ragged_buffer_factor = { min = 1, max = 1024, rest = -1, rest_means = "as many rows as are needed" },
    vocab_size = { min = 1, max = MOST_SIZE },
    decoder_block = { choices = util.sorted_keys(blocks.KINDS), missing = blocks.MISSING },
    mlp_activations = {
        choices = {
            "[relu]", "[gelu]", "[silu]", "[relu, linear]", "[gelu, linear]", "[silu, linear]", "[sigmoid, linear]",
        },
    },
    chunk_attn_window_size = { min = 0, max = MOST_LENGTH },
    nope_layer_interval = { min = 1, rest = -1, rest_means = "RoPE in all layers" },
    mlp_activations_limit = { min = 0.01, rest = -1, rest_means = "no limit" },
    normalization_layer = { choices = { "rmsnorm", "layernorm" } },
    normalization_layer_epsilon = { min = 0 },
    rope_max_timescale = { min = 1 },
    local_rope_max_timescale = { min = 1, rest = -1 },
    query_pre_attn_scalar = { min = 0 },
    rope_min_timescale = { min = 1 },
    partial_rotary_factor = { min = 0, max = 1 },
    rope_type = { choices = { "default", "llama3.1", "yarn" } },
    rope_linear_scaling_factor = { min = 1 },
    llama_rope_factor = { min = 1 },
    llama_rope_low_freq_factor = { min = 0 },
    llama_rope_high_freq_factor = { min = 0 },
    llama_rope_original_length = { min = 1 },
    rope_factor = { min = 1 },
    original_max_position_embeddings = { min = 1 },
    beta_fast = { min = 0 },
    beta_slow = { min = 0 },
    max_position_embeddings = { min = 0 },
    trainable_position_size = { min = -1, max = MOST_SIZE },
    relative_bias_buckets = { min = 0, max = MOST_SIZE },
    attention_type = { choices = { "global", "local_sliding", "chunk", "full", "mla" } },
    q_lora_rank = { min = 0, max = MOST_SIZE },
    kv_lora_rank = { min = 1, max = MOST_SIZE },
    qk_nope_head_dim = { min = 1, max = MOST_SIZE },
    qk_rope_head_dim = { min = 2, max = MOST_SIZE },
    v_head_dim = { min = 1, max = MOST_SIZE },
    mscale = { min = 0 },
    sliding_window_size = { min = 0 },
    attn_logits_soft_cap = { min = 0 },
    final_logits_soft_cap = { min = 0 },
    dropout_rate = { min = 0, below = 1 },
    init_std = { min = 0 },
    init_weights_seed = { min = math.mininteger, max = math.maxinteger },
    data_shuffle_seed = { min = math.mininteger, max = math.maxinteger },
    dtype = { choices = util.float_names() },
    quantization = { choices = quantization.CHOICES },
    kv_quant_axis = { choices = { "heads_and_dkv", "dkv" } },
    kv_quant_dtype = { choices = { "int8", "fp8" } },
    weight_dtype = { choices = util.float_names() },
    grad_dtype = { choices = util.float_names() },
    mu_dtype = { choices = { "", table.unpack(util.float_names()) } },
    remat_policy = { choices = remat.CHOICES },
    num_slices = { min = 1, max = MOST_DEVICES },
    custom_mesh = { choices = { "", "hybrid_ring_64x4", "hybrid_ring_32x8" } },
    context_parallel_strategy = { choices = { "all_gather", "ring", "ulysses", "usp" } },
    collective_timeout_s = { min = 0 },
    all_gather_combine_threshold_bytes = { min = 0 },
    reduce_scatter_combine_threshold_bytes = { min = 0 },
    all_reduce_combine_threshold_bytes = { min = 0 },
    collective_permute_decomposer_threshold_bytes = { min = 0 },
    prefetch_layers = { min = 0 },
    prefetch_memory_limit_bytes = { min = 0 },
    prefetch_memory_limit_percent = { min = 0 },
    dataset_type = { choices = { "synthetic", "text", "bin", "hdf5" } },
    reuse_example_batch = { min = 0, max = 1 },
    eval_interval = { min = 1, rest = -1, rest_means = "no evaluation" },
    eval_start_step = { min = 0 },
    eval_steps = { min = 1, rest = -1, rest_means = "all batches" },
    num_pipeline_microbatches = { min = 1, max = MOST_SIZE, rest = -1, rest_means = "the number of stages" },
    num_pipeline_repeats = { min = 1, max = MOST_SIZE, rest = -1, rest_means = "as many as needed" },
    num_layers_per_pipeline_stage = { min = 1, max = MOST_SIZE },
    decoder_last_pipeline_num_layers = { min = 1, max = MOST_SIZE, rest = -1, rest_means = "as many as the others" },
    pipeline_parallel_layers = { min = 1, max = MOST_SIZE, rest = -1, rest_means = "all" },
    pipeline_schedule = { choices = pipeline_kinds.NAMES },
    zero_bubble_max_pending_backward = { min = 1, max = MOST_SIZE, rest = -1, rest_means = "2 x stages" },
    eval_per_device_batch_size = { min = 0, max = MOST_SIZE },
    target_eval_loss = { min = 0 },
    per_device_batch_size = { min = 1 / MOST_DEVICES, max = MOST_SIZE },
    max_target_length = { min = 1, max = MOST_LENGTH },
    num_epoch = { min = -1 },
    prefetch_batches = { min = 0, max = 1000 },
    steps = { min = 1, rest = -1, rest_means = "learning_rate_schedule_steps" },
    opt_type = { choices = { "adamw", "sgd", "lion", "adafactor", "muon" } },
    learning_rate = { min = 0 },
    learning_rate_schedule_steps = { min = 1, rest = -1, rest_means = "steps" },
    warmup_steps_fraction = { min = 0, max = 1 },
    lr_schedule_type = { choices = schedule.TYPES },
    learning_rate_final_fraction = { min = 0, max = 1 },
    wsd_decay_steps_fraction = { min = 0, max = 1 },
    wsd_decay_style = { choices = schedule.STYLES },
    adam_b1 = { min = 0, below = 1 },
    adam_b2 = { min = 0, below = 1 },
    adam_eps = { min = 0 },
    adam_eps_root = { min = 0 },
    adam_weight_decay = { min = 0 },
    sgd_momentum = { min = 0, below = 1 },
    lion_b1 = { min = 0, below = 1 },
    lion_b2 = { min = 0, below = 1 },
    lion_weight_decay = { min = 0 },
    adafactor_beta2_decay = { min = -10, below = 0 },
    adafactor_weight_decay = { min = 0 },
    muon_beta = { min = 0, below = 1 },
    muon_weight_decay = { min = 0 },
    muon_adamw_scale = { min = 0 },
    gradient_clipping_threshold = { min = 0 },
    gradient_accumulation_steps = { min = 1 },
    z_loss_multiplier = { min = 0 },
    -- Options of scripts, which are not in base.yml.
    bench_seconds = { min = 1 },
    budget_s = { min = 0 },
    tokens = { min = 1 },
    context_length = { min = 0 },
    stride = { min = 0 },
    batch = { min = 1 },
    max_tokens = { min = 0 },
    format = { choices = { "auto", "text", "bin", "hdf5" } },
    temperature = { min = 0 },
    top_k = { min = 0 },
    top_p = { min = 0, max = 1 },
    max_prefill_predict_length = { min = 1 },
    decode_sampling_strategy = { choices = { "greedy", "weighted", "topk", "nucleus", "composite" } },
    decode_sampling_temperature = { min = 0 },
    decode_sampling_top_k = { min = 0 },
    decode_sampling_nucleus_p = { min = 0, max = 1, rest = -1, rest_means = "none" },
    ranks = { min = 1, rest = -1, max = MOST_DEVICES },
    peak_tflops = { min = 0 },
    candidates = { min = 1 },
    top = { min = 1 },
    era = { choices = { "a", "b" } },
    largest_mib = { min = 1 },
    repeats = { min = 1, max = 10000 },
    link_gbps = { min = 0 },
    dcn_gbps = { min = 0 },
    operations = { min = 0 },
    dcn_Bps = { min = 0 },
    scoped_vmem_limit_kib = { min = 0 },
    simulated_expert_imbalance = { min = 1, max = 1024 },
    simulated_document_length = { min = 0, max = MOST_LENGTH },
}
for _, name in ipairs(remat.TENSORS) do
    rules.VALUES[name] = { choices = { "device", "offload", "remat" } }
end
rules.VALUES.decoder_layer_input = { choices = { "device", "offload" } } -- the layer is computed again from it
for _, axis in ipairs(mesh.AXES) do
    rules.VALUES[mesh.key("ici", axis)] = { min = 1, rest = -1, max = MOST_DEVICES }
    rules.VALUES[mesh.key("dcn", axis)] = { min = 1, rest = -1, max = MOST_DEVICES }
end

rules.VALUES.collective_streams = { min = 0, max = 2 }
rules.VALUES.use_max_logit_estimate = { min = -1 }
rules.VALUES.num_vocab_tiling = { min = 1 }
rules.VALUES.attention = { choices = { "autoselected", "flash", "cudnn_flash_te", "cudnn_flash_jax", "dot_product" } }
for _, key in ipairs({ "sa_block_q", "sa_block_kv", "sa_block_q_dkv", "sa_block_kv_dkv", "sa_block_q_dq",
    "sa_block_kv_dq" }) do
    rules.VALUES[key] = { min = 1, max = MOST_LENGTH }
end

-- Keys of simulated chips.
rules.SIMULATED = {
    "sparse_core_collective_offload_all_gather", "sparse_core_collective_offload_reduce_scatter",
    "sparse_core_collective_offload_all_reduce", "prefetch_memory_limit_percent", "compile_xla_flags", "topology",
    "network", "dcn_Bps", "scoped_vmem_limit_kib", "collective_streams", "simulated_expert_imbalance",
    "simulated_document_length",
}

-- Keys of layers with experts.
rules.EXPERTS = {
    "num_experts_per_tok", "base_moe_mlp_dim", "mlp_bias", "interleave_moe_layer_step", "first_num_dense_layers",
    "shared_experts",
    "routed_score_func", "norm_topk_prob", "routed_scaling_factor", "n_routing_groups", "topk_routing_group",
    "routing_group_score", "routed_bias", "routed_bias_update_rate", "load_balance_loss_weight", "router_z_loss_weight",
    "sparse_matmul", "capacity_factor", "float32_gate_logits", "use_random_routing", "simulated_expert_imbalance",
    "use_ring_of_experts", "ragged_buffer_factor", "num_moe_token_chunks",
}

-- Keys of pipelines.
rules.PIPELINE = {
    "num_pipeline_microbatches", "num_pipeline_repeats", "num_layers_per_pipeline_stage", "pipeline_parallel_layers",
    "pipeline_schedule", "pipeline_fsdp_ag_once", "decoder_last_pipeline_num_layers",
    "zero_bubble_max_pending_backward",
}

-- A key that has an effect only if another key has one of these values. Setting it otherwise is refused.
rules.ONLY_WITH = {
    zero_bubble_max_pending_backward = { "pipeline_schedule", "zb" },
    quantization = { "dtype", "bfloat16" },
    weight_quantization_calibration_method = { "quantization", "fp8_full" },
    act_quantization_calibration_method = { "quantization", "fp8_full" },
    kv_quant_axis = { "quantize_kvcache", true },
    kv_quant_dtype = { "quantize_kvcache", true },
    routed_score_func = { "use_random_routing", false },
    routed_bias = { "use_random_routing", false },
    routed_bias_update_rate = { "routed_bias", true },
    capacity_factor = { "sparse_matmul", false },
    custom_mesh = { "allow_split_physical_axes", true },
    num_moe_token_chunks = { "use_ring_of_experts", false },
    adam_b1 = { "opt_type", "adamw", "muon" },
    adam_b2 = { "opt_type", "adamw", "muon" },
    adam_eps = { "opt_type", "adamw", "muon" },
    adam_eps_root = { "opt_type", "adamw" },
    adam_weight_decay = { "opt_type", "adamw", "muon" },
    adamw_mask = { "opt_type", "adamw", "lion", "adafactor", "muon" },
    mu_dtype = { "opt_type", "adamw" },
    sgd_momentum = { "opt_type", "sgd" },
    lion_b1 = { "opt_type", "lion" },
    lion_b2 = { "opt_type", "lion" },
    lion_weight_decay = { "opt_type", "lion" },
    adafactor_beta2_decay = { "opt_type", "adafactor" },
    adafactor_weight_decay = { "opt_type", "adafactor" },
    muon_beta = { "opt_type", "muon" },
    muon_weight_decay = { "opt_type", "muon" },
    muon_adamw_scale = { "opt_type", "muon" },
    learning_rate_final_fraction = { "lr_schedule_type", "cosine", "wsd" },
    wsd_decay_steps_fraction = { "lr_schedule_type", "wsd" },
    wsd_decay_style = { "lr_schedule_type", "wsd" },
    rope_max_timescale = { "use_rope", true },
    local_rope_max_timescale = { "use_rope", true },
    rope_type = { "use_rope", true },
    rope_min_timescale = { "rope_type", "default", "llama3.1" },
    partial_rotary_factor = { "use_rope", true },
    rope_linear_scaling_factor = { "rope_type", "default" },
    llama_rope_factor = { "rope_type", "llama3.1" },
    llama_rope_low_freq_factor = { "rope_type", "llama3.1" },
    llama_rope_high_freq_factor = { "rope_type", "llama3.1" },
    llama_rope_original_length = { "rope_type", "llama3.1" },
    rope_factor = { "rope_type", "yarn" },
    q_lora_rank = { "attention_type", "mla" },
    kv_lora_rank = { "attention_type", "mla" },
    qk_nope_head_dim = { "attention_type", "mla" },
    qk_rope_head_dim = { "attention_type", "mla" },
    v_head_dim = { "attention_type", "mla" },
    mscale = { "attention_type", "mla" },
    use_qk_clip = { "attention_type", "mla" },
    qk_clip_threshold = { "use_qk_clip", true },
    head_dim = { "attention_type", "global", "local_sliding", "chunk", "full" },
    original_max_position_embeddings = { "rope_type", "yarn" },
    beta_fast = { "rope_type", "yarn" },
    beta_slow = { "rope_type", "yarn" },
    rope_interleave = { "rope_type", "yarn" },
    rope_truncate = { "rope_type", "yarn" },
    rope_attention_scaling = { "rope_type", "yarn" },
    max_position_embeddings = { "use_rope", true },
    attention_bias = { "use_bias", false },
    mlp_activations_limit = { "decoder_block", "gpt_oss" },
    nope_layer_interval = { "decoder_block", "llama4" },
    temperature_tuning = { "decoder_block", "llama4" },
    checkpoint_period = { "enable_checkpointing", true },
    async_checkpointing = { "enable_checkpointing", true },
    max_num_checkpoints_to_keep = { "enable_checkpointing", true },
    checkpoint_keep_period = { "enable_checkpointing", true },
    enable_tensorboard = { "enable_checkpointing", true },
    heartbeat_period_s = { "enable_checkpointing", true },
    skip_step_interval = { "skip_step_on_spikes", true },
    skip_step_scaling_factor = { "skip_step_on_spikes", true },
    dataset_path = { "dataset_type", "text", "bin", "hdf5" },
    eval_dataset_path = { "dataset_type", "text", "bin", "hdf5" },
    dataset_mix = { "dataset_type", "text", "bin", "hdf5" },
    packing = { "dataset_type", "hdf5" },
    enable_data_shuffling = { "dataset_type", "text", "bin", "hdf5" },
    num_epoch = { "dataset_type", "text", "bin", "hdf5" },
    prefetch_batches = { "dataset_type", "text", "bin", "hdf5" },
}
-- These words switch something off. Keys that belong to it are then listed as words without effect: scripts of MaxText
-- often give both.
rules.OFF = {
    ["enable_checkpointing=false"] = true, ["sparse_matmul=true"] = true, ["dataset_type=synthetic"] = true,
    ["dataset_type=random"] = true,
}
for _, name in ipairs(remat.TENSORS) do
    rules.ONLY_WITH[name] = { "remat_policy", "custom" }
end

return rules
