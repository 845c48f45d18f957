--- One configurable decoder: the parallel block of the published v5e benchmark, Llama's and GPT-2's.
--
-- B sequences of S tokens; E emb; H heads and K heads of keys and values of D = head_dim; M mlp; V vocab. Weights are
-- (inputs, outputs), so that y = x W.

local mx = require "mx"
local nn = require "mx.nn"
local util = require "mx.util"

local models = {}

local DTYPES = { bfloat16 = "bf16", float32 = "f32" }

-- floor(log2(scale)) split in threes: what a factor doubles. See global_parameter_scale in configs/base.yml.
local function scale_factors(scale)
    local log2 = 0
    while scale >> (log2 + 1) > 0 do
        log2 = log2 + 1
    end
    local whole, rest = log2 // 3, log2 % 3
    local emb, heads = rest > 1 and whole + 1 or whole, rest > 0 and whole + 1 or whole
    return { layers = 1 << whole, emb = 1 << emb, heads = 1 << heads }
end

--- What a config says about the model, scaled: the only thing that the rest of this file reads.
---@param c table
---@return table
function models.shape(c)
    local factor = scale_factors(c.global_parameter_scale)
    return {
        emb = c.base_emb_dim * factor.emb,
        heads = c.base_num_query_heads * factor.heads,
        kv_heads = c.base_num_kv_heads * factor.heads,
        head_dim = c.head_dim,
        mlp = c.base_mlp_dim * factor.heads,
        layers = c.base_num_decoder_layers * factor.layers,
        vocab = c.vocab_size,
        activation = c.mlp_activations[1],
        gated = #c.mlp_activations == 2,
        parallel = c.parallel_block,
        norm = c.normalization_layer,
        norm_eps = c.normalization_layer_epsilon,
        bias = c.use_bias,
        rope = c.use_rope and c.rope_max_timescale or nil,
        positions = math.max(c.trainable_position_size, 0),
        buckets = c.relative_bias_buckets,
        causal = c.attention_type ~= "full",
        window = c.sliding_window_size,
        attention_scale = c.fold_attention_scale and 1 or c.head_dim ^ -0.5,
        attention_cap = c.attn_logits_soft_cap,
        logit_cap = c.final_logits_soft_cap,
        tied = c.logits_via_embedding,
        logit_scale = c.normalize_embedding_logits and 1 / math.sqrt(c.base_emb_dim * factor.emb) or 1,
        z_loss = c.z_loss_multiplier,
        dropout = c.dropout_rate,
        init_std = c.init_std,
        seed = c.init_weights_seed,
        remat = c.remat_policy,
        dtype = DTYPES[c.dtype],
        weight_dtype = DTYPES[c.weight_dtype],
    }
end

-- The parameters of one layer, each as add(name, sizes, std or nil, value).
local function list_layer(shape, add)
    local E, M, D = shape.emb, shape.mlp, shape.head_dim
    local HD, KD = shape.heads * D, shape.kv_heads * D
    local function norm(name)
        add(name .. ".weight", { E }, nil, 1)
        if shape.norm == "layernorm" and shape.bias then
            add(name .. ".bias", { E }, nil, 0)
        end
    end
    -- `factor` scales the initial weights.
    local function linear(name, n_in, n_out, factor)
        local std = shape.init_std > 0 and shape.init_std or 1 / math.sqrt(n_in)
        add(name .. ".weight", { n_in, n_out }, std * (factor or 1))
        if shape.bias then
            add(name .. ".bias", { n_out }, nil, 0)
        end
    end
    local residual = shape.init_std > 0 and 1 / math.sqrt(2 * shape.layers) or 1
    norm("norm")
    linear("query", E, HD, 1 / (shape.attention_scale * math.sqrt(D))) -- what attention does not divide its scores by
    linear("key", E, KD)
    linear("value", E, KD)
    linear("out", HD, E, residual)
    if not shape.parallel then
        norm("mlp_norm")
    end
    linear(shape.gated and "wi_0" or "wi", E, M)
    if shape.gated then
        linear("wi_1", E, M)
    end
    linear("wo", M, E, residual)
    if shape.buckets > 0 then
        add("relative_bias.weight", { shape.buckets, shape.heads }, nil, 0)
    end
end

--- All parameters of a model without making any: {name, sizes, std, value} each, in the order of the forward pass.
---@param shape table of models.shape
---@return table[]
function models.parameters(shape)
    local list = {}
    local function add(name, sizes, std, value)
        list[#list + 1] = { name = name, sizes = sizes, std = std, value = value }
    end
    local E = shape.emb
    -- A table that makes logits keeps them near 1: its rows are divided by sqrt(E), unless the logits are.
    local table_std = shape.tied and shape.logit_scale == 1 and 1 / math.sqrt(E) or 1
    add("embedding.weight", { shape.vocab, E }, shape.init_std > 0 and shape.init_std or table_std)
    if shape.positions > 0 then
        add("position.weight", { shape.positions, E }, shape.init_std > 0 and shape.init_std or table_std)
    end
    for i = 1, shape.layers do
        list_layer(shape, function(name, ...)
            add(("layer%03d.%s"):format(i, name), ...)
        end)
    end
    add("norm.weight", { E }, nil, 1)
    if shape.norm == "layernorm" and shape.bias then
        add("norm.bias", { E }, nil, 0)
    end
    if not shape.tied then
        add("unembedding.weight", { E, shape.vocab }, shape.init_std > 0 and shape.init_std or 1 / math.sqrt(E))
    end
    return list
end

--- The number of parameters of a model, without making any.
---@param shape table of models.shape
---@return integer
function models.count(shape)
    local n = 0
    for _, parameter in ipairs(models.parameters(shape)) do
        local size = 1
        for _, s in ipairs(parameter.sizes) do
            size = size * s
        end
        n = n + size
    end
    return n
end

---@class mx.Decoder
---@field shape table of models.shape
---@field params table<string, any> name -> tensor
---@field layers table[] a layer's tensors by their short names: layers[1]["query.weight"]
---@field passes integer training passes so far: dropout differs in each
local Decoder = {}
Decoder.__index = Decoder

--- A decoder with fresh parameters, the same on every rank. Not collective.
---@param shape table of models.shape; or a config, for mx.models.new(config)
---@return mx.Decoder
function models.new(shape)
    if rawget(shape, "emb") == nil then
        shape = models.shape(shape)
    end
    local self = setmetatable({ shape = shape, params = {}, layers = {}, passes = 0 }, Decoder)
    for i = 1, shape.layers do
        self.layers[i] = {}
    end
    for _, p in ipairs(models.parameters(shape)) do
        local t = nn.parameter(self.params, p.name, p.sizes,
            { std = p.std, value = p.value, seed = shape.seed, dtype = shape.weight_dtype })
        local layer, short = p.name:match("^layer(%d+)%.(.*)$")
        if layer then
            self.layers[tonumber(layer)][short] = t
        end
    end
    return self
end

-- A norm over E by its weights in `from`: (B, S, E) -> (B, S, E).
function Decoder:norm(from, name, x)
    local weight, bias = from[name .. ".weight"], from[name .. ".bias"]
    if self.shape.norm == "layernorm" then
        return mx.layernorm(x, weight, bias, { eps = self.shape.norm_eps })
    end
    return mx.rmsnorm(x, weight, { eps = self.shape.norm_eps })
end

local function linear(layer, name, x)
    return mx.matmul(x, layer[name .. ".weight"], layer[name .. ".bias"])
end

-- In training passes only (`run.pass`): its seed depends on the place, the pass and the rank.
function Decoder:dropout(x, place, run)
    if self.shape.dropout == 0 or not run.pass then
        return x
    end
    local seed = util.seed(("dropout.%s.%d.%d"):format(place, run.pass, mx.rank()), self.shape.seed)
    return mx.dropout(x, { rate = self.shape.dropout, seed = seed })
end

-- Attention of layer i: h (B, S, E) -> (B, S, E). With a cache, keys and values of earlier tokens come from there.
function Decoder:attention(i, h, run)
    local layer, shape = self.layers[i], self.shape
    local B, S, D = h:size(1), h:size(2), shape.head_dim
    local q = linear(layer, "query", h):view(B, S, shape.heads, D) -- (B, S, H, D)
    local k = linear(layer, "key", h):view(B, S, shape.kv_heads, D) -- (B, S, K, D)
    local v = linear(layer, "value", h):view(B, S, shape.kv_heads, D) -- (B, S, K, D)
    if shape.rope then
        local rotation = { theta = shape.rope, offset = run.offset }
        q, k = mx.rope(q, run.positions, rotation), mx.rope(k, run.positions, rotation)
    end
    q, k, v = mx.name(q, "query_proj"), mx.name(k, "key_proj"), mx.name(v, "value_proj")
    local options = {
        causal = shape.causal, window = shape.window, softcap = shape.attention_cap, scale = shape.attention_scale,
    }
    if run.cache then
        local cache = run.cache[i]
        mx.write_slice(cache.key, k, { dim = 2, start = run.offset + 1 })
        mx.write_slice(cache.value, v, { dim = 2, start = run.offset + 1 })
        k, v = cache.key, cache.value -- (B, capacity, K, D)
        options.offset, options.kv_length = run.offset, run.offset + S
    end
    local context = mx.name(mx.attention(q, k, v, run.segments, run.segments, options), "context") -- (B, S, H, D)
    return mx.name(linear(layer, "out", context:view(B, S, shape.heads * D)), "out_proj")
end

-- The MLP of layer i: h (B, S, E) -> (B, S, E), through (B, S, M).
function Decoder:mlp(i, h)
    local layer, activation = self.layers[i], self.shape.activation
    if self.shape.gated then
        local gate = mx.name(linear(layer, "wi_0", h), "mlpwi_0")
        local up = mx.name(linear(layer, "wi_1", h), "mlpwi_1")
        return mx.name(linear(layer, "wo", mx.gated(gate, up, { activation = activation })), "mlpwo")
    end
    local inner = mx.name(linear(layer, "wi", h), "mlpwi")
    return mx.name(linear(layer, "wo", mx[activation](inner)), "mlpwo")
end

-- Layer i: x (B, S, E) -> (B, S, E).
function Decoder:layer(i, x, run)
    local layer = self.layers[i]
    local h = self:norm(layer, "norm", x)
    local attended = self:dropout(self:attention(i, h, run), "attention" .. i, run)
    if self.shape.parallel then
        return x + attended + self:dropout(self:mlp(i, h), "mlp" .. i, run)
    end
    x = x + attended
    return x + self:dropout(self:mlp(i, self:norm(layer, "mlp_norm", x)), "mlp" .. i, run)
end

-- Learned positions of the tokens: (S, E), or (B, S, E) where each token has its own.
function Decoder:positions(run, S)
    local weight = self.params["position.weight"]
    if run.positions then
        return mx.embedding(weight, run.positions)
    end
    return mx.narrow(weight, { dim = 1, start = run.offset + 1, length = S })
end

--- The last layer's output after the final norm: tokens (B, S) i32 -> (B, S, E).
---@param tokens any
---@param run? {segments: any, positions: any, cache: table, offset: integer, pass: integer}
---@return any
function Decoder:hidden(tokens, run)
    run = run or {}
    run.offset = run.offset or 0
    local x = mx.embedding(self.params["embedding.weight"], tokens, { dtype = self.shape.dtype }) -- (B, S, E)
    if self.shape.positions > 0 then
        x = x + self:positions(run, tokens:size(2))
    end
    x = self:dropout(x, "embedding", run)
    for i = 1, self.shape.layers do
        x = mx.remat(self.shape.remat, function(input)
            return self:layer(i, mx.name(input, "decoder_layer_input"), run)
        end, x)
    end
    return self:norm(self.params, "norm", x)
end

--- The mean cross-entropy of a batch in training: a scalar to give to mx.backward.
---@param batch table tokens and targets (B, S) i32; optional mask u8, segments and positions i32, (B, S) too
---@return any
function Decoder:loss(batch)
    self.passes = self.passes + 1
    local shape = self.shape
    local h = self:hidden(batch.tokens,
        { segments = batch.segments, positions = batch.positions, pass = self.passes })
    local weight = shape.tied and self.params["embedding.weight"] or self.params["unembedding.weight"]
    return mx.cross_entropy(h, weight, batch.targets, batch.mask, {
        trans = shape.tied, logit_scale = shape.logit_scale, softcap = shape.logit_cap, z_loss = shape.z_loss,
    })
end

--- Logits of hidden states: h (..., E) -> (..., V) f32. For generating; training never holds them.
---@param h any of Decoder:hidden
---@return any
function Decoder:logits(h)
    local shape = self.shape
    local weight = shape.tied and self.params["embedding.weight"] or self.params["unembedding.weight"]
    local logits = mx.matmul(h, weight, nil, { trans_b = shape.tied, dtype = "f32" }) * shape.logit_scale
    if shape.logit_cap > 0 then
        logits = (logits / shape.logit_cap):tanh() * shape.logit_cap
    end
    return logits
end

--- Room for the keys and values of `capacity` tokens in every layer: for Decoder:hidden's run.cache.
---@param B integer sequences
---@param capacity integer
---@return table[]
function Decoder:new_cache(B, capacity)
    local sizes, cache = { B, capacity, self.shape.kv_heads, self.shape.head_dim }, {}
    for i = 1, self.shape.layers do
        cache[i] = { key = mx.zeros(sizes, self.shape.dtype):keep(), value = mx.zeros(sizes, self.shape.dtype):keep() }
    end
    return cache
end

return models
