--- The logical names of logical_axis_rules: what each of MaxText's names splits here.

local util = require "mx.util"

local names = {}

--- Names whose rules split something here -> what they split.
names.OWN = {
    activation_batch = "the sequences of a batch",
    activation_length = "the tokens of a sequence",
    activation_norm_length = "the tokens of a sequence, in the residual stream between the products",
    activation_embed = "the features of the residual stream between the products",
    vocab = "tables of tokens, along the vocabulary; ranks along these axes compute the logits of different ids",
    embed_vocab = "tables of tokens and positions, along emb",
    heads = "weights of attention, along the query heads",
    kv_heads = "weights of attention, along the heads of keys and values",
    embed_attn = "weights of attention, along emb",
    mlp = "weights of the MLP, along its inner features",
    embed = "weights of the MLP, along emb",
    norm = "scales of norms and biases, along emb",
    layers = "layers",
    exp = "weights of experts, between experts",
    activation_exp = "experts while they compute: ranks along these axes send each other's tokens to their experts; "
        .. "other axes of exp are gathered before use",
    mlp_moe = "weights of experts, along their inner features",
    embed_moe = "weights of experts, along emb",
    embed_router = "weights of routers, along emb",
}

--- Names of tensors that are split here as another name's are -> that name. A rule may not split them otherwise.
names.FOLLOWS = {
    q_heads = "heads", activation_heads = "heads", activation_kv_heads = "kv_heads", activation_mlp = "mlp",
    activation_batch_attn = "activation_batch", activation_kv_batch = "activation_batch",
    activation_embed_and_logits_batch = "activation_batch", segment_ids_batch = "activation_batch",
    activation_length_attn = "activation_length", activation_q_length = "activation_length",
    activation_input_length_attn = "activation_norm_length", activation_embed_attn = "activation_embed",
    activation_vocab = "vocab", activation_mlp_moe = "mlp_moe",
    activation_batch_moe = "activation_batch", activation_length_moe = "activation_length",
    activation_norm_length_moe = "activation_norm_length", activation_embed_moe = "activation_embed",
}

--- Names that concern layers with experts alone. Their rules are not checked for other models. Tokens may be split over
--- the axes of activation_exp or not: before and after the exchange they are, between them they are not.
names.EXPERTS = {
    exp = true, activation_exp = true, mlp_moe = true, embed_moe = true, embed_router = true,
    activation_mlp_moe = true, activation_batch_moe = true, activation_length_moe = true,
    activation_norm_length_moe = true, activation_embed_moe = true,
}

--- Names of dimensions that are never split here -> what they are.
names.WHOLE = {
    kv = "the features of a head", kv_head_dim = "the features of a head", qkv = "queries, keys and values",
    activation_kv_length = "the keys that a query attends to", num_activations = "the inputs of a gated MLP",
}

-- Names of tensors that do not exist here.
local ABSENT = {
    -- other layouts of experts
    "exp_with_fsdp", "decode_batch_moe", "embed_no_exp", "embed_no_exp_moe", "expert_only", "moe_layers",
    "activation_batch_no_exp", "activation_length_no_exp", "activation_norm_length_no_exp", "embed_tensor_transpose",
    -- other kinds of attention and of blocks
    "q_lora", "q_lora_up_proj", "kv_lora", "kv_lora_up_proj", "gdn_head", "engram_dim", "mhc", "activation_kv",
    "activation_kv_head_dim", "mlp_no_fsdp", "dense_layers", "local_layers",
    -- tokens of the logits
    "activation_embed_and_logits_batch_sequence",
    -- generation
    "prefill_activation_length", "prefill_activation_norm_length", "activation_prefill_kv_batch", "decode_batch",
    "decode_length", "cache_heads", "cache_batch_prefill", "cache_batch", "cache_heads_none", "cache_kv",
    "cache_sequence", "cache_scale_sequence", "paged_kv_heads", "num_pages", "tokens_per_page",
    "paged_kv_head_dim_size",
    -- pipelines and DiLoCo
    "circular_repeats", "activation_stage", "diloco",
}

--- All names that a rule may have, sorted.
names.ALL = table.move(ABSENT, 1, #ABSENT, 1, {})
for _, kind in ipairs({ names.OWN, names.FOLLOWS, names.WHOLE }) do
    for name in pairs(kind) do
        names.ALL[#names.ALL + 1] = name
    end
end
table.sort(names.ALL)

-- The axes larger than 1 of a name's first rule, sorted; `without`: a set of axes to leave out.
local function split_axes(rules, sizes, name, without)
    local list = {}
    for _, axis in ipairs(rules[name] or {}) do
        list[#list + 1] = (sizes[axis] or 1) > 1 and not without[axis] and axis or nil
    end
    table.sort(list)
    return table.concat(list, ", ")
end

--- Refuses rules that would split a tensor as the engine cannot. Not collective.
---@param rules table<string, string[]> logical name -> axes of its first rule
---@param sizes table<string, integer> axis -> size
---@param shares_batch table<string, boolean> the axes that split batch or length of activations
---@param has_experts boolean whether the model has layers with experts
function names.check(rules, sizes, shares_batch, has_experts)
    for name, leader in util.sorted_pairs(names.FOLLOWS) do
        local of_products = not leader:find("^activation_") and name:find("^activation_")
        local without = of_products and shares_batch or {}
        for _, axis in ipairs(names.EXPERTS[name] and not of_products and rules.activation_exp or {}) do
            without[axis] = true
        end
        local got, expected = split_axes(rules, sizes, name, without), split_axes(rules, sizes, leader, without)
        if rules[name] and got ~= expected and (has_experts or not names.EXPERTS[name]) then
            util.refuse("logical_axis_rules: %s is split over [%s], but here it is always split as %s is, over [%s]: "
                .. "give both the same axes", name, got, leader, expected)
        end
    end
    for name, what in util.sorted_pairs(names.WHOLE) do
        local got = split_axes(rules, sizes, name, {})
        if got ~= "" then
            util.refuse("logical_axis_rules: %s (%s) is split over [%s], but is never split here: give it []", name,
                what, got)
        end
    end
end

return names
