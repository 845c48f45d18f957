--- Checks of a whole config: combinations of keys that cannot work, and keys that nothing reads.

local mx = require "mx"
local blocks = require "mx.models.blocks"
local config_rules = require "mx.config.rules"
local config_values = require "mx.config.values"
local mesh = require "mx.parallel.mesh"
local quantization = require "mx.models.quantization"
local remat = require "mx.models.remat"
local util = require "mx.util"

local checks = {}

local show = config_values.show

local function where_or_base(values, key)
    return values.where[key] or "configs/base.yml"
end

local MOST_SIZE, MOST_PARAMETERS = 2 ^ 31 - 1, 2 ^ 50

-- A copy of a table with its integers converted to floats.
local function in_floats(value)
    if type(value) ~= "table" then
        return math.type(value) == "integer" and value + 0.0 or value
    end
    local floats = {}
    for key, entry in pairs(value) do
        floats[key] = in_floats(entry)
    end
    return floats
end

-- Refuses sizes that no machine can hold. Products are computed in floats, which do not wrap around.
local function check_sizes(c, need)
    local shape = in_floats(mx.models.shape(c))
    local block = shape.blocks[1]
    for _, width in ipairs({
        { "base_emb_dim", shape.emb }, { "base_mlp_dim", block.mlp.width },
        { "base_num_query_heads", block.attention.heads * block.attention.head_dim, " (with head_dim)" },
    }) do
        need(width[2] <= MOST_SIZE, width[1], "the model would have weights of %.0f columns%s: expected at most %.0f",
            width[2], width[3] or "", MOST_SIZE)
    end
    local params = mx.models.count(shape)
    need(params <= MOST_PARAMETERS, "base_num_decoder_layers", "the model would have %.3g parameters in %.0f layers: "
        .. "expected at most %.3g", params, shape.layers, MOST_PARAMETERS)
    local tokens = c.per_device_batch_size * (c.max_target_length + 0.0)
    need(tokens <= MOST_SIZE, "per_device_batch_size", "%s sequences of max_target_length = %d are %.3g tokens: "
        .. "expected at most %.0f", c.per_device_batch_size, c.max_target_length, tokens, MOST_SIZE)
end

-- Refuses experts that cannot be.
local function check_experts(c, need)
    local n, k, groups = c.num_experts, c.num_experts_per_tok, c.n_routing_groups
    if n == 1 then
        return
    end
    need(k <= n, "num_experts_per_tok", "expected at most num_experts = %d, got %d", n, k)
    need(not c.use_bias, "use_bias", "expected false: mlp_bias = true gives experts biases")
    need(c.routed_bias_update_rate == 0 or not blocks.KINDS[c.decoder_block].router_bias, "routed_bias_update_rate",
        "expected 0, because the biases of routers are trained with decoder_block = %s", c.decoder_block)
    need(c.opt_type ~= "muon", "opt_type", "muon updates matrices, and the weights of %d experts are none; use adamw, "
        .. "sgd, lion or adafactor", n)
    need(c.first_num_dense_layers + c.interleave_moe_layer_step <= c.base_num_decoder_layers,
        c.first_num_dense_layers > 0 and "first_num_dense_layers" or "interleave_moe_layer_step",
        "leaves none of the %d layers for the %d experts", c.base_num_decoder_layers, n)
    need((groups > 0) == (c.topk_routing_group > 0), "topk_routing_group", "goes with n_routing_groups: set both, or "
        .. "neither")
    need(groups > 0 or c.routing_group_score == "sum_of_two", "routing_group_score", "has no effect without "
        .. "n_routing_groups")
    need(c.ragged_buffer_factor < 0 or c.simulated_expert_imbalance <= c.ragged_buffer_factor,
        "simulated_expert_imbalance", "expected at most ragged_buffer_factor = %g, the rows that buffers have, got %g",
        c.ragged_buffer_factor, c.simulated_expert_imbalance)
    if groups > 0 then
        need(n % groups == 0, "n_routing_groups", "expected a divisor of num_experts = %d, got %d", n, groups)
        need(c.topk_routing_group <= groups, "topk_routing_group", "expected at most n_routing_groups = %d, got %d",
            groups, c.topk_routing_group)
        need(k <= c.topk_routing_group * (n // groups), "num_experts_per_tok", "%d groups of %d experts have fewer "
            .. "than %d", c.topk_routing_group, n // groups, k)
    end
end

-- Refuses multi-token prediction with what it does not have.
local function check_mtp(c, need)
    need(c.mtp_num_layers > 0 or c.mtp_loss_scaling_factor == 0.1, "mtp_loss_scaling_factor", "has no effect without "
        .. "mtp_num_layers")
    need(not c.quantize_mtp or c.mtp_num_layers > 0 and c.quantization ~= "", "quantize_mtp", "has no effect without "
        .. "mtp_num_layers and quantization")
    need(c.mtp_eval_target_module <= c.mtp_num_layers, "mtp_eval_target_module", "expected at most mtp_num_layers = "
        .. "%d, got %d", c.mtp_num_layers, c.mtp_eval_target_module)
    need(c.mtp_eval_target_module == 0 or c.eval_interval > 0, "mtp_eval_target_module", "has no effect without "
        .. "eval_interval")
    if c.mtp_num_layers == 0 then
        return
    end
    need(c.trainable_position_size <= 0, "mtp_num_layers", "expected 0 with trainable_position_size, got %d",
        c.mtp_num_layers)
    need(c.mtp_num_layers < c.max_target_length, "mtp_num_layers", "expected less than max_target_length = %d, got %d",
        c.max_target_length, c.mtp_num_layers)
end

-- Refuses what does not go with the layers of decoder_block.
local function check_block(c, need)
    local kind, name = blocks.KINDS[c.decoder_block], c.decoder_block
    for _, reach in ipairs(c.layer_types) do
        need(reach == "local" or reach == "global", "layer_types", "expected a list of local and global, got %s",
            show(c.layer_types))
    end
    local turns = #c.layer_types > 0 and "layer_types" or (kind.layers or kind.chunks) and "decoder_block"
    local windows = util.contains(blocks.reaches(c), "local")
    need(not turns or c.attention_type == "global", "attention_type",
        "expected global, because %s = %s says which layers are local and global, got %s", turns,
        turns and show(c[turns]), c.attention_type)
    need(not windows or c.sliding_window_size > 0, turns or "attention_type",
        "local layers need a sliding_window_size above 0, got %d", c.sliding_window_size)
    need(windows or c.sliding_window_size == 0, "sliding_window_size", "has no effect without local layers: set "
        .. "attention_type = local_sliding, layer_types, or a decoder_block that has some")
    need(windows or c.local_rope_max_timescale <= 0, "local_rope_max_timescale", "has no effect without local layers")
    local in_chunks = util.contains(blocks.reaches(c), "chunk")
    need(in_chunks == (c.chunk_attn_window_size > 0), "chunk_attn_window_size", in_chunks
        and "expected tokens of a chunk, because layers attend inside of chunks, got %d"
        or "has no effect without layers that attend inside of chunks: set attention_type = chunk, or decoder_block = "
        .. "llama4", c.chunk_attn_window_size)
    need(not c.temperature_tuning or util.contains(blocks.reaches(c), "nope"), "temperature_tuning", "has no effect "
        .. "without nope_layer_interval")
    need(not kind.input_scaled or c.num_experts_per_tok == 1 and c.routed_score_func == "" and not c.routed_bias
        and c.n_routing_groups < 1 and c.routed_scaling_factor == 1 and not c.use_random_routing, "decoder_block",
        "%s has one expert for each token, without routed_score_func, routed_bias, n_routing_groups, "
        .. "routed_scaling_factor and use_random_routing", name)
    local clamped = kind.activation ~= nil
    need((c.mlp_activations[1] == "sigmoid") == clamped, "mlp_activations", clamped
        and "expected [sigmoid, linear] with decoder_block = %s, got %s"
        or "[sigmoid, linear] is for decoder_block = gpt_oss, not for %s", name, show(c.mlp_activations))
    need(not clamped or c.mlp_activations_limit > 0, "mlp_activations_limit", "expected a limit above 0 with "
        .. "decoder_block = %s, got %g", name, c.mlp_activations_limit)
    for _, key in ipairs({ "use_post_attn_norm", "use_post_ffw_norm" }) do
        need(not c[key] or not c.parallel_block, key, "does not go with parallel_block = true, whose only norm comes "
            .. "before attention and MLP")
        need(c[key] or kind.norm_before ~= false, key, "expected true, because decoder_block = %s has no other norms",
            name)
    end
end

-- What latent attention does not have: key -> the value without it.
local NOT_LATENT = {
    use_qk_norm = false, use_bias = false, attention_bias = false, attention_sink = false, fold_attention_scale = false,
    quantize_kvcache = false,
    query_pre_attn_scalar = 0, relative_bias_buckets = 0, partial_rotary_factor = 1,
}

local function check_latent(c, need)
    local latent = c.attention_type == "mla"
    need(latent or c.decoder_block ~= "deepseek", "attention_type", "expected mla, because decoder_block = deepseek "
        .. "has latent attention, got %s", c.attention_type)
    for key, value in util.sorted_pairs(latent and NOT_LATENT or {}) do
        need(c[key] == value, key, "expected %s: attention_type = mla does not have it", show(value))
    end
    need(not latent or c.base_num_kv_heads == c.base_num_query_heads, "base_num_kv_heads", "expected "
        .. "base_num_query_heads = %d with attention_type = mla, got %d", c.base_num_query_heads, c.base_num_kv_heads)
    need(not c.use_qk_clip or c.attn_logits_soft_cap == 0, "use_qk_clip", "expected false with attn_logits_soft_cap, "
        .. "which bounds the scores itself")
end

local function check_recipe(c, need)
    local format = (quantization.RECIPES[c.quantization] or {}).blocks
    need(not format or c.hardware == "" or mx.sim.multiplies(c.hardware, format), "quantization",
        "%s is not simulated on %s, which does not multiply %s; hardware=b200-8 does, and without hardware it trains "
        .. "on this machine", c.quantization, c.hardware, (format or ""):upper())
    for _, key in ipairs({ "weight_quantization_calibration_method", "act_quantization_calibration_method" }) do
        need(c[key] == "absmax" or quantization.fixed_range(c[key]), key,
            "expected absmax, or a range on both sides of 0 such as fixed,-224,224, got %s", c[key])
    end
end

local function check_rope(c, need)
    local key = c.attention_type == "mla" and "qk_rope_head_dim" or "head_dim"
    local dims = math.floor(c[key] * c.partial_rotary_factor)
    need(not c.use_rope or dims % 2 == 0 and dims > 0, c.partial_rotary_factor == 1 and key
        or "partial_rotary_factor", "use_rope rotates pairs, and %d components of %s = %d are not an even number",
        dims, key, c[key])
    need(c.rope_type ~= "llama3.1" or c.llama_rope_high_freq_factor >= c.llama_rope_low_freq_factor,
        "llama_rope_high_freq_factor", "expected at least llama_rope_low_freq_factor = %g, got %g",
        c.llama_rope_low_freq_factor, c.llama_rope_high_freq_factor)
    need(c.rope_type ~= "yarn" or c.beta_fast >= c.beta_slow and c.beta_slow > 0, "beta_fast",
        "expected at least beta_slow = %g, and both above 0, got %g", c.beta_slow, c.beta_fast)
    need(c.rope_type ~= "yarn" or c.rope_max_timescale > 1, "rope_max_timescale", "yarn needs more than 1")
end

-- Refuses masks that are no regular expressions or match no parameter.
local function check_masks(c, need)
    for _, key in ipairs { "adamw_mask", "trainable_parameters_mask" } do
        local compiled, matches = pcall(mx.models.masks.of, c[key])
        need(compiled, key, "%s", matches)
        local names, found = {}, #c[key] == 0
        for _, parameter in ipairs(found and {} or mx.models.parameters(mx.models.shape(c))) do
            found = found or matches(parameter.name)
            names[#names + 1] = not parameter.name:find("^layer") and parameter.name
                or parameter.name:match("^layer001.*")
        end
        need(found, key, "%s matches no parameter; the names are %s ...", show(c[key]), table.concat(names, ", "))
    end
end

-- Refuses combinations that cannot work. Each rule names first the key to change.
function checks.together(values)
    local c = values.now
    local function need(holds, key, format, ...)
        if not holds then
            util.refuse("%s: %s: " .. format, where_or_base(values, key), key, ...)
        end
    end
    check_block(c, need)
    check_experts(c, need)
    check_mtp(c, need)
    local scale = c.global_parameter_scale
    check_sizes(c, need)
    check_masks(c, need)
    need(scale & (scale - 1) == 0, "global_parameter_scale", "expected a power of two, got %d", scale)
    need(c.base_num_query_heads % c.base_num_kv_heads == 0, "base_num_kv_heads",
        "expected a divisor of base_num_query_heads = %d, got %d", c.base_num_query_heads, c.base_num_kv_heads)
    check_latent(c, need)
    check_rope(c, need)
    check_recipe(c, need)
    need(c.trainable_position_size < 0 or c.trainable_position_size >= c.max_target_length, "max_target_length",
        "%d tokens, but trainable_position_size = %d", c.max_target_length, c.trainable_position_size)
    need(c.dataset_type == "synthetic" or c.dataset_path ~= "" or #c.dataset_mix > 0,
        "dataset_type", "%s needs dataset_path", c.dataset_type)
    need(c.dataset_path == "" or #c.dataset_mix == 0, "dataset_mix", "and dataset_path do not go together: give one")
    need(c.eval_interval < 0 or c.dataset_type == "synthetic" or c.eval_dataset_path ~= "", "eval_interval",
        "evaluation needs eval_dataset_path, a file of dataset_type = %s", c.dataset_type)
    need(c.dataset_type ~= "text" or c.vocab_size >= 256, "dataset_type",
        "text is read as bytes and needs vocab_size of at least 256, got %d", c.vocab_size)
    need(c.num_slices > 1 or not values.where.num_slices or mesh.slices(c) == 1, "num_slices",
        "the dcn_*_parallelism sizes make %d slices, got %d: leave num_slices out, or set those sizes to 1",
        mesh.slices(c), c.num_slices)
    for _, key in ipairs(config_rules.SIMULATED) do
        need(c.hardware ~= "" or c[key] == values.standard[key], key, "is for simulated chips, and hardware is empty")
    end
    need(c.simulated_document_length <= c.max_target_length, "simulated_document_length",
        "expected at most max_target_length = %d, got %d", c.max_target_length, c.simulated_document_length)
    need(c.simulated_document_length == 0 or c.context_parallel_strategy ~= "ring", "simulated_document_length",
        "a ring of parts of sequences is simulated without documents: leave it out, or set context_parallel_strategy")
    need(c.network == "" or c.dcn_Bps == 0, "dcn_Bps", "network = %s sets it, too: set one of them", c.network)
    local tensors = mx.models.tensors(mx.models.shape(c))
    for _, name in ipairs(c.remat_policy == "custom" and remat.TENSORS or {}) do
        need(c[name] == "remat" or util.contains(tensors, name), name, "a layer with mlp_activations = %s has no such "
            .. "tensor; it has %s", show(c.mlp_activations), table.concat(tensors, ", "))
    end
    need(c.offload_directory == "" or remat.offloads(remat.of(c)), "offload_directory",
        "has no effect: remat_policy = %s offloads nothing", c.remat_policy)
    need(c.load_full_state_path == "" or c.load_parameters_path == "", "load_parameters_path",
        "load_full_state_path loads parameters, too: set one of them")
    need(c.load_full_state_path ~= "" or not c.restart_data, "restart_data",
        "has no effect without load_full_state_path")
    need(c.steps > 0 or c.learning_rate_schedule_steps > 0, "steps", "-1 takes the value of "
        .. "learning_rate_schedule_steps, which is -1 too: set one of them")
    need(c.lr_schedule_type ~= "wsd" or c.warmup_steps_fraction + c.wsd_decay_steps_fraction <= 1 + 1e-9,
        "wsd_decay_steps_fraction", "and warmup_steps_fraction are shares of one schedule, but %g and %g exceed 1 "
        .. "together", c.wsd_decay_steps_fraction, c.warmup_steps_fraction)
end

-- Refuses keys that the user has set but nothing reads. A model file may set them, because it serves many runs.
function checks.used(values, chosen, words)
    for _, key in ipairs({ "skip_first_n_steps_for_profiler", "profiler_steps" }) do
        local changed = chosen[key] and values.now[key] ~= values.standard[key]
        if changed and values.now.trace_file == "" and values.now.report_file == "" then
            util.refuse("%s: %s has no effect without trace_file or report_file", values.where[key], key)
        end
    end
    for _, key in ipairs({ "eval_dataset_path", "eval_start_step", "eval_steps", "eval_per_device_batch_size",
        "target_eval_loss" }) do
        local idle = chosen[key] and values.now[key] ~= values.standard[key] and values.now.eval_interval < 0
        if idle and chosen.eval_interval then
            words:note(("%s=%s"):format(key, show(values.now[key])), "eval_interval=-1")
        elseif idle then
            util.refuse("%s: %s has no effect without eval_interval, the steps between two evaluations",
                values.where[key], key)
        end
    end
    for _, key in ipairs(values.now.num_experts == 1 and config_rules.EXPERTS or {}) do
        local changed = chosen[key] and show(values.now[key]) ~= show(values.standard[key])
        if changed and chosen.num_experts then
            words:note(("%s=%s"):format(key, show(values.now[key])), "num_experts=1")
        elseif changed then
            util.refuse("%s: %s has no effect without num_experts", values.where[key], key)
        end
    end
    local is_pipeline = mx.parallel.has_stages(values.now)
    for _, key in ipairs(not is_pipeline and config_rules.PIPELINE or {}) do
        local changed = chosen[key] and show(values.now[key]) ~= show(values.standard[key])
        if changed and chosen.ici_pipeline_parallelism then
            words:note(("%s=%s"):format(key, show(values.now[key])), "ici_pipeline_parallelism=1")
        elseif changed then
            util.refuse("%s: %s has no effect without ici_pipeline_parallelism or dcn_pipeline_parallelism",
                values.where[key], key)
        end
    end
    for key in util.sorted_pairs(chosen) do
        local rule = config_rules.ONLY_WITH[key]
        if rule and show(values.now[key]) ~= show(values.standard[key]) then
            local used = false
            for i = 2, #rule do
                used = used or values.now[rule[1]] == rule[i]
            end
            local other = show(values.now[rule[1]])
            if not used and chosen[rule[1]] and config_rules.OFF[rule[1] .. "=" .. other] then
                words:note(("%s=%s"):format(key, show(values.now[key])), ("%s=%s"):format(rule[1], other))
            elseif not used then
                util.refuse("%s: %s has no effect with %s = %s", values.where[key], key, rule[1], other)
            end
        end
    end
end

return checks
