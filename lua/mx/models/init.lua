--- One configurable decoder: the parallel block of the published v5e benchmark, Llama's and GPT-2's.
--
-- B sequences of S tokens; E emb; H heads and K heads of keys and values of D = head_dim; M mlp; V vocab. Weights are
-- (inputs, outputs), so that y = x W.

local mx = require "mx"
local nn = require "mx.nn"
local remat = require "mx.models.remat"
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
        qkv_bias = c.use_bias or c.attention_bias,
        qk_norm = c.use_qk_norm,
        rope = c.use_rope and c.rope_max_timescale or false,
        rope_scaling = c.use_rope and c.rope_type == "llama3.1" and {
            scaling_factor = c.rope_factor, low_freq_factor = c.rope_low_freq_factor,
            high_freq_factor = c.rope_high_freq_factor, original_length = c.original_max_position_embeddings,
        } or false,
        max_length = c.max_position_embeddings > 0 and c.max_position_embeddings or c.max_target_length,
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
        remat = remat.of(c),
        remat_policy = c.remat_policy, -- its name
        dtype = DTYPES[c.dtype],
        weight_dtype = DTYPES[c.weight_dtype],
    }
end

-- The parameters of one layer, each as add(name, dimensions, std or nil, value, use): see models.parameters.
local function list_layer(shape, add)
    local E, M = { shape.emb, "embed" }, { shape.mlp, "mlp" }
    local H = { shape.heads * shape.head_dim, "heads", shape.head_dim }
    local K = { shape.kv_heads * shape.head_dim, "kv_heads", shape.head_dim }
    local whole = { shape.emb, "norm" }
    local function norm(name)
        add(name .. ".weight", { whole }, nil, 1, "sequence")
        if shape.norm == "layernorm" and shape.bias then
            add(name .. ".bias", { whole }, nil, 0, "sequence")
        end
    end
    -- `factor` scales the initial weights. A bias of what comes back to the residual stream is added there.
    local function linear(name, n_in, n_out, factor, bias)
        local std = shape.init_std > 0 and shape.init_std or 1 / math.sqrt(n_in[1])
        add(name .. ".weight", { n_in, n_out }, std * (factor or 1), nil, "product")
        if bias or shape.bias then
            add(name .. ".bias", { n_out == E and whole or n_out }, nil, 0, n_out == E and "sequence" or "product")
        end
    end
    local residual = shape.init_std > 0 and 1 / math.sqrt(2 * shape.layers) or 1
    norm("norm")
    local factor = 1 / (shape.attention_scale * math.sqrt(shape.head_dim)) -- what its scores are not divided by
    linear("query", E, H, factor, shape.qkv_bias)
    linear("key", E, K, nil, shape.qkv_bias)
    linear("value", E, K, nil, shape.qkv_bias)
    for _, name in ipairs(shape.qk_norm and { "query_norm", "key_norm" } or {}) do
        add(name .. ".weight", { { shape.head_dim, "norm" } }, nil, 1, "heads")
    end
    linear("out", H, E, residual)
    if not shape.parallel then
        norm("mlp_norm")
    end
    linear(shape.gated and "wi_0" or "wi", E, M)
    if shape.gated then
        linear("wi_1", E, M)
    end
    linear("wo", M, E, residual)
    if shape.buckets > 0 then
        add("relative_bias.weight", { { shape.buckets }, { shape.heads } }, nil, 0, "product")
    end
end

--- All parameters of a model without making any, in the order of the forward pass. Each has its name, sizes, initial
--- std or value, and for a mesh: the logical name of each dimension (false: it is never cut), the units that are not
--- cut inside (a head's columns), and where it is used: in a "product", on each of the "heads", on each token of the
--- residual "sequence", or on the "tokens" that are embedded and make the loss.
---@param shape table of models.shape
---@return table[]
function models.parameters(shape)
    local list = {}
    local function add(name, dimensions, std, value, use)
        local p = { name = name, sizes = {}, logical = {}, units = {}, std = std, value = value, use = use }
        for d, dimension in ipairs(dimensions) do
            p.sizes[d], p.logical[d], p.units[d] = dimension[1], dimension[2] or false, dimension[3] or 1
        end
        list[#list + 1] = p
    end
    local E, vocab = { shape.emb, "embed" }, { shape.vocab, "vocab" }
    local norm = { { shape.emb, "norm" } }
    -- A table that makes logits keeps them near 1: its rows are divided by sqrt(E), unless the logits are.
    local table_std = shape.tied and shape.logit_scale == 1 and 1 / math.sqrt(shape.emb) or 1
    local first_std = shape.init_std > 0 and shape.init_std or table_std
    add("embedding.weight", { vocab, E }, first_std, nil, "tokens")
    if shape.positions > 0 then
        add("position.weight", { { shape.positions }, E }, first_std, nil, "tokens")
    end
    for i = 1, shape.layers do
        list_layer(shape, function(name, ...)
            add(("layer%03d.%s"):format(i, name), ...)
        end)
    end
    add("norm.weight", norm, nil, 1, "tokens")
    if shape.norm == "layernorm" and shape.bias then
        add("norm.bias", norm, nil, 0, "tokens")
    end
    if not shape.tied then
        local std = shape.init_std > 0 and shape.init_std or 1 / math.sqrt(shape.emb)
        add("unembedding.weight", { E, vocab }, std, nil, "tokens")
    end
    return list
end

-- The parameters of a model with so many layers.
local function count_with(shape, layers)
    local n = 0
    for _, parameter in ipairs(models.parameters(setmetatable({ layers = layers }, { __index = shape }))) do
        local size = 1
        for _, s in ipairs(parameter.sizes) do
            size = size * s
        end
        n = n + size
    end
    return n
end

--- The number of parameters of a model, without making any or going through its layers.
---@param shape table of models.shape
---@return integer
function models.count(shape)
    local rest = count_with(shape, 0)
    return rest + shape.layers * (count_with(shape, 1) - rest)
end

---@class mx.Decoder
---@field shape table of models.shape
---@field params table<string, any> name -> tensor; on a mesh this rank's part of it
---@field layers table[] the names of a layer's parameters by their short names: layers[1]["query.weight"]
---@field passes integer training passes so far: dropout differs in each
---@field part integer which part of a pass's sequences this rank has, from 0, as mx.Data has it
---@field parts integer of how many
---@field parallel? mx.Parallel how it lies on a mesh
---@field prefetch_layers integer layers whose weights are gathered ahead
local Decoder = {}
Decoder.__index = Decoder

-- Refuses parameters that the ranks could not hold even if all of them shared them out, before any are listed.
local function check_memory(shape)
    if mx.is_simulated() then
        return
    end
    local info, limit = mx.info(), mx.memory().limit
    local there = limit > 0 and limit or info.memory_bytes / info.node_ranks
    local params = models.count(shape)
    local bytes = params * (shape.weight_dtype == "bf16" and 2 or 4) / mx.ranks()
    if bytes > there then
        util.refuse("the model has %s parameters in %s layers, which need %s of memory on each rank: there are %s",
            util.thousands(params), util.thousands(shape.layers), util.bytes(bytes), util.bytes(there))
    end
end

--- A decoder with fresh parameters, the same on every rank; on a mesh this rank's parts of them. What does not divide
--- by the mesh is refused before anything is allocated, and so is an offload_directory where no file can be made. Not
--- collective.
---@param shape table of models.shape; or a config, for mx.models.new(config)
---@param mesh? mx.Mesh
---@param config? table where `shape` is no config, the one that says how to communicate and where to offload
---@param blank? boolean leave the parameters 0: they will be loaded
---@return mx.Decoder
function models.new(shape, mesh, config, blank)
    if rawget(shape, "emb") == nil then
        config, shape = shape, models.shape(shape)
    end
    check_memory(shape)
    if config and remat.offloads(shape.remat) then
        util.attempt(mx.offload_open, config.offload_directory)
    end
    local self = setmetatable({
        shape = shape, params = {}, layers = {}, passes = 0, part = mx.rank(), parts = mx.ranks(), prefetch_layers = 0,
    }, Decoder)
    local list = models.parameters(shape)
    if mesh and mesh.layout.ranks > 1 then
        self.parallel = mx.parallel.new(mesh, shape, list, config)
        self.part, self.parts = self.parallel:batch_place()
        self.prefetch_layers = config.prefetch_layers
    end
    for i = 1, shape.layers do
        self.layers[i] = {}
    end
    for _, p in ipairs(list) do
        nn.parameter(self.params, p.name, p.sizes, {
            std = not blank and p.std or nil, value = p.value, seed = shape.seed, dtype = shape.weight_dtype,
            store = self.parallel and function(whole)
                return self.parallel:store(p.name, whole)
            end or nil,
        })
        local layer, short = p.name:match("^layer(%d+)%.(.*)$")
        if layer then
            self.layers[tonumber(layer)][short] = p.name
        end
    end
    return self
end

-- A parameter as it is computed with, by its full name; nil where the model has none. Where layers compute in f32, a
-- bf16 one is widened first: a product of both dtypes would round the activations to bf16 (engine/kernels/gemm.h).
function Decoder:weight(name)
    local t = self.params[name]
    t = t and self.parallel and self.parallel:gather(name, t) or t
    return t and self.shape.dtype == "f32" and t:dtype() == "bf16" and t:to("f32") or t
end

-- The weights of layer i by their short names.
function Decoder:layer_weights(i)
    local weights = {}
    for short, name in util.sorted_pairs(self.layers[i]) do
        weights[short] = self:weight(name)
    end
    if self.parallel then
        mx.flush()
    end
    return weights
end

-- Starts the gathers of the layers after layer i; with i = 0 of the first ones.
function Decoder:prefetch(i)
    for ahead = i + 1, math.min(i + self.prefetch_layers, self.shape.layers) do
        if self.parallel then
            local names = {}
            for _, name in util.sorted_pairs(self.layers[ahead]) do
                names[#names + 1] = name
            end
            self.parallel:prefetch(self.params, names)
        end
    end
end

-- Around products that are split over a mesh.
function Decoder:enter(h, kind)
    return self.parallel and self.parallel:enter(h, kind) or h
end

function Decoder:leave(y, kind, bias)
    y = self.parallel and self.parallel:leave(y, kind) or y
    return bias and y + bias or y
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

-- In training passes only: x (B, S, E) of the tokens with these numbers (B, S). Which elements are dropped depends on
-- the place in the model, the token's number in the whole run and the feature alone. So ranks that hold a token alike
-- drop the same of it, and a step has the same masks on any mesh and in any number of passes.
function Decoder:dropout(x, place, numbers, run)
    if not numbers then
        return x
    end
    local seed = util.seed("dropout." .. place, self.shape.seed)
    return mx.dropout(x, numbers, { rate = self.shape.dropout, seed = seed, offset = run.first_token })
end

-- Numbers the tokens of a training pass (`run.pass`, from 1) where something is dropped: first_token of the rank's
-- batch in the whole run, and from there the tokens that it embeds and those of which it has the residual stream.
function Decoder:number_tokens(tokens, run)
    if self.shape.dropout == 0 or not run.pass then
        return
    end
    local B, S, parallel = tokens:size(1), tokens:size(2), self.parallel
    local length = parallel and parallel:whole_length(S) or S
    run.first_token = ((run.pass - 1) * self.parts + self.part) * B * length
    local numbers = mx.arange({ n = B * length, dtype = "i32" }):view(B, length)
    numbers = parallel and parallel:context_part(numbers) or numbers
    run.embedded_numbers = parallel and parallel:embedded_part(numbers) or numbers
    run.numbers = parallel and parallel:sequence_part(numbers) or numbers
end

-- RoPE of queries or keys, where the model has it: (B, S, heads, D).
function Decoder:rotate(x, run)
    local shape = self.shape
    if not shape.rope then
        return x
    end
    local rotation = { theta = shape.rope, offset = run.offset }
    for key, value in util.sorted_pairs(shape.rope_scaling or {}) do
        rotation[key] = value
    end
    return mx.rope(x, run.positions, rotation)
end

-- Attention with a layer's weights: h (B, S, E) -> (B, S, E), before the sum over a mesh. With a cache, keys and
-- values of earlier tokens come from there.
function Decoder:attention(i, weights, h, run)
    local shape = self.shape
    local B, S, D = h:size(1), h:size(2), shape.head_dim
    local heads, kv_heads = shape.heads, shape.kv_heads
    if self.parallel then
        heads, kv_heads = self.parallel:heads()
    end
    local q = linear(weights, "query", h):view(B, S, heads, D) -- (B, S, H, D)
    local k = linear(weights, "key", h):view(B, S, kv_heads, D) -- (B, S, K, D)
    local v = linear(weights, "value", h):view(B, S, kv_heads, D) -- (B, S, K, D)
    if shape.qk_norm then -- the gradient of a norm reads its input: what is kept by name is that
        q, k = mx.name(q, "query_proj"), mx.name(k, "key_proj")
        q = mx.rmsnorm(q, weights["query_norm.weight"], { eps = shape.norm_eps })
        k = mx.rmsnorm(k, weights["key_norm.weight"], { eps = shape.norm_eps })
    end
    q, k = self:rotate(q, run), self:rotate(k, run)
    if not shape.qk_norm then
        q, k = mx.name(q, "query_proj"), mx.name(k, "key_proj")
    end
    v = mx.name(v, "value_proj")
    local options = {
        causal = shape.causal, window = shape.window, softcap = shape.attention_cap, scale = shape.attention_scale,
    }
    local context -- (B, S, H, D)
    if self.parallel and #self.parallel.context > 0 then
        context = self.parallel:attention(q, k, v, run.segments, run.kv_segments, options)
    else
        if run.cache then
            local cache = run.cache[i]
            mx.write_slice(cache.key, k, { dim = 2, start = run.offset + 1 })
            mx.write_slice(cache.value, v, { dim = 2, start = run.offset + 1 })
            k, v = cache.key, cache.value -- (B, capacity, K, D)
            options.offset, options.kv_length = run.offset, run.offset + S
        end
        context = mx.attention(q, k, v, run.segments, run.segments, options)
    end
    context = mx.name(context, "context")
    return mx.matmul(context:view(B, S, heads * D), weights["out.weight"])
end

-- The MLP with a layer's weights: h (B, S, E) -> (B, S, E), through (B, S, M), before the sum over a mesh.
function Decoder:mlp(weights, h)
    local activation = self.shape.activation
    local inner
    if self.shape.gated then
        local gate = mx.name(linear(weights, "wi_0", h), "mlpwi_0")
        local up = mx.name(linear(weights, "wi_1", h), "mlpwi_1")
        inner = mx.gated(gate, up, { activation = activation })
    else
        inner = mx[activation](mx.name(linear(weights, "wi", h), "mlpwi"))
    end
    return mx.matmul(inner, weights["wo.weight"])
end

-- Layer i: x (B, S, E) -> (B, S, E).
function Decoder:layer(i, x, run)
    mx.place(("layer %d, attention"):format(i))
    local weights = self:layer_weights(i)
    local h = self:norm(weights, "norm", x)
    local entered = self:enter(h, "heads")
    if self.shape.parallel and self.parallel and self.shape.dropout == 0 and self.parallel:splits_alike() then
        -- Both products are sums over the same ranks: one of their sum costs half the traffic of two.
        local attended = mx.name(self:attention(i, weights, entered, run), "out_proj")
        mx.place(("layer %d, MLP"):format(i))
        local sum = attended + mx.name(self:mlp(weights, entered), "mlpwo")
        sum = self:leave(sum, "heads", weights["out.bias"])
        return x + (weights["wo.bias"] and sum + weights["wo.bias"] or sum)
    end
    local attended = self:attention(i, weights, entered, run)
    attended = mx.name(self:leave(attended, "heads", weights["out.bias"]), "out_proj")
    attended = self:dropout(attended, "attention" .. i, run.numbers, run)
    mx.place(("layer %d, MLP"):format(i))
    if not self.shape.parallel then
        x = x + attended
        h = self:norm(weights, "mlp_norm", x)
    end
    entered = self.shape.parallel and entered or self:enter(h, "mlp")
    local y = mx.name(self:leave(self:mlp(weights, entered), "mlp", weights["wo.bias"]), "mlpwo")
    y = self:dropout(y, "mlp" .. i, run.numbers, run)
    return self.shape.parallel and x + attended + y or x + y
end

-- Learned positions of the tokens: (S, E), or (B, S, E) where each token has its own.
function Decoder:positions(run, positions, S)
    local weight = self:weight("position.weight")
    if positions then
        return mx.embedding(weight, positions)
    end
    return mx.narrow(weight, { dim = 1, start = run.offset + 1, length = S })
end

-- Tokens (B, S) to the layers' input (B, S, E).
function Decoder:embed(tokens, run)
    local parallel, positions = self.parallel, run.positions
    if parallel then
        if not positions and #parallel.token_axes > 0 then -- each rank embeds its tokens alone
            positions = mx.parallel.positions(tokens:size(1), tokens:size(2))
        end
        tokens, positions = parallel:embedded_part(tokens), positions and parallel:embedded_part(positions)
    end
    local x = mx.embedding(self:weight("embedding.weight"), tokens, { dtype = self.shape.dtype }) -- (B, S, E)
    if self.shape.positions > 0 then
        x = x + self:positions(run, positions, tokens:size(2))
    end
    x = self:dropout(x, "embedding", run.embedded_numbers, run)
    return parallel and parallel:after_embedding(x) or x
end

--- The last layer's output after the final norm: tokens (B, S) i32 -> (B, S, E). On a mesh S is this rank's part along
--- context, and the result has those of its tokens for which it computes the loss.
---@param tokens any
---@param run? {segments: any, kv_segments: any, positions: any, cache: table, offset: integer, pass: integer}
---@return any
function Decoder:hidden(tokens, run)
    run = run or {}
    run.offset = run.offset or 0
    self:number_tokens(tokens, run)
    mx.place("embedding")
    self:prefetch(0)
    local x = mx.remat(self.shape.remat, function()
        return self:embed(tokens, run)
    end)
    for i = 1, self.shape.layers do
        self:prefetch(i)
        x = mx.remat(self.shape.remat, function(input)
            return self:layer(i, mx.name(input, "decoder_layer_input"), run)
        end, x)
    end
    mx.place("after the last layer")
    if self.parallel then
        x = self.parallel:before_loss(x)
    end
    local last = { ["norm.weight"] = self:weight("norm.weight"), ["norm.bias"] = self:weight("norm.bias") }
    return self:norm(last, "norm", x)
end

--- The mean cross-entropy of a batch in training: a scalar to give to mx.backward. On a mesh it is that of this rank's
--- part of the tokens, of which batch has those along context; backward then wants the seed model.parallel.seed.
---@param batch table tokens and targets (B, S) i32; optional mask u8, segments and positions i32, (B, S) too; with
---       segments on a context axis kv_segments, those of the whole sequences
---@return any
function Decoder:loss(batch)
    self.passes = self.passes + 1
    local shape, parallel = self.shape, self.parallel
    local targets, mask = batch.targets, batch.mask
    if parallel then
        targets, mask = parallel:embedded_part(targets), mask and parallel:embedded_part(mask)
    end
    local h = self:hidden(batch.tokens, {
        segments = batch.segments, kv_segments = batch.kv_segments, positions = batch.positions, pass = self.passes,
    })
    mx.place("loss")
    return mx.remat("none", function()
        local weight = self:weight(shape.tied and "embedding.weight" or "unembedding.weight")
        return mx.cross_entropy(h, weight, targets, mask, {
            trans = shape.tied, logit_scale = shape.logit_scale, softcap = shape.logit_cap, z_loss = shape.z_loss,
        })
    end)
end

--- Logits of hidden states: h (..., E) -> (..., V) f32. For generating; training never holds them.
---@param h any of Decoder:hidden
---@return any
function Decoder:logits(h)
    local shape = self.shape
    local weight = self:weight(shape.tied and "embedding.weight" or "unembedding.weight")
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
