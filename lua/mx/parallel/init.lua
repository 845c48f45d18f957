--- A model on a mesh: the shard of each parameter that a rank stores, and the collectives between the layers.
--
-- There are two kinds of axes. Axes that split the batch or the sequence (data, fsdp, fsdp_transpose, context, expert)
-- compute with whole weights: sharded weights are gathered before use, and their gradients are reduce-scattered. The
-- other axes (tensor, tensor_sequence) compute with parts of heads, mlp and vocabulary: products stay split, and their
-- sums are reduce-scattered along the features or tokens of the residual stream. The table of tokens is split in the
-- same way: rows that a rank looks up are a sum over the ranks, and the loss combines the logits of all of them.
-- Experts are an exception to the first kind: ranks along expert keep theirs and send each other tokens (experts.lua).
-- All of this follows from logical_axis_rules.
--
-- Without a mesh, a model has parallel.alone (alone.lua) instead of a mx.Parallel, with the same methods. A model uses
-- six groups of methods: gather (weights), enter and leave (around products), norms of split features, embedding and
-- cross_entropy (tables of tokens), those that select this rank's tokens, and those around experts.
--
-- Gradients are those of the mean loss over all tokens of the step: each rank's loss has its share (`seed`) as
-- gradient, and gradients are summed.

local attention = require "mx.parallel.attention"
local mx = require "mx"
local stored = require "mx.parallel.parts"
local qk_clip = require "mx.models.qk_clip"
local experts = require "mx.parallel.experts"
local gathered = require "mx.parallel.gathered"
local tokens = require "mx.parallel.tokens"
local tiles = require "mx.parallel.tiles"
local update = require "mx.parallel.update"
local stages = require "mx.parallel.stages"
local util = require "mx.util"

local parallel = {
    alone = require "mx.parallel.alone", stages_of = stages.of,
    layers_outside = stages.outside, check_attention = attention.check,
    in_two_chunks = attention.in_two_chunks, split_context = attention.split_context,
}

---@class mx.Parallel
---@field mesh mx.Mesh
---@field entries table<string, table> parameter -> how it is stored, gathered and reduced
---@field batch string[] axes larger than 1 that split the batch
---@field context string[] those that split sequences
---@field ring string[] those of them whose ranks gather each other's keys or pass them around
---@field exchange string[] the others: their ranks exchange parts of sequences for heads
---@field shares string[] both
---@field sequence string[] those that split the tokens of the residual stream too
---@field stream string[] those that split its features
---@field features integer number of features of the residual stream that this rank has
---@field column integer the first of them, from 0
---@field products table<string, string[]> those that split products: heads, kv_heads, mlp, vocab
---@field experts string[] those along which ranks have different experts and send each other tokens
---@field first_id integer the first id of this rank's part of the vocabulary, from 0
---@field parts integer number of ranks with different tokens
---@field seed number 1 / parts
---@field stages? mx.Stages of a pipeline
---@field gathered? mx.Gathered weights that are gathered once for all passes of a step, during the passes
---@field prefetch_layers integer number of layers whose weights are prefetched
local Parallel = {}
Parallel.__index = Parallel

-- The axes that are larger than 1.
local function used(mesh, axes)
    local list = {}
    for _, axis in ipairs(axes) do
        if (mesh.layout.sizes[axis] or 1) > 1 then
            list[#list + 1] = axis
        end
    end
    return list
end

local function join(a, b)
    return table.move(util.without(b, a), 1, #b, #a + 1, table.move(a, 1, #a, 1, {}))
end

local function same_axes(a, b)
    return #util.without(a, b) == 0 and #util.without(b, a) == 0
end

-- Each rank must have the same number of query heads for each of its heads of keys.
local function check_heads(self, shape)
    local heads, kv_heads, copies = self.products.heads, self.products.kv_heads, self.mesh.kv_copies
    if not same_axes(heads, join(kv_heads, copies)) then
        util.refuse("logical_axis_rules: heads is split over [%s], kv_heads over [%s]: give both the same axes",
            table.concat(heads, ", "), table.concat(kv_heads, ", "))
    end
    local n, parts = self.mesh:size(heads), self.mesh:size(kv_heads)
    for _, kind in ipairs(mx.models.kinds(shape)) do
        local H, K = kind.block.attention.heads, kind.block.attention.kv_heads
        if K < parts or #copies > 0 and (K ~= parts or H % n ~= 0) then
            util.refuse("base_num_query_heads = %d, base_num_kv_heads = %d: %d ranks (%s) split heads; expected at "
                .. "most as many ranks as heads of keys, or a multiple of those that divides the heads of queries",
                H, K, n, table.concat(heads, ", "))
        end
    end
end

--- Whether a config has a pipeline. Not collective.
---@param config table
---@return boolean
function parallel.has_stages(config)
    return config.ici_pipeline_parallelism ~= 1 or config.dcn_pipeline_parallelism ~= 1
end

local function check(self, shape)
    local mesh = self.mesh
    if #self.context > 0 and mx.models.any(shape, function(block) return (block.mlp.capacity or 0) > 0 end) then
        util.refuse("capacity_factor counts the tokens of whole sequences, but %s splits sequences",
            table.concat(self.context, ", "))
    end
    for _, kind in ipairs({ "heads", "mlp", "vocab" }) do
        local split = self.products[kind]
        local cut = { activation_norm_length = self.sequence, activation_embed = self.stream }
        for name, axes in util.sorted_pairs(cut) do
            for _, axis in ipairs(util.without(axes, split)) do
                util.refuse("logical_axis_rules: %s is split over %s: %s must be, too", name, axis, kind)
            end
        end
    end
    check_heads(self, shape)
    -- Products read whole rows of emb, so weights that are split there must be gathered, over ranks with different
    -- tokens.
    for _, rule in ipairs(mesh.list) do
        for _, axis in ipairs(rule[1]:find("^embed") and util.without(used(mesh, rule[2]), self.shares) or {}) do
            util.refuse("logical_axis_rules: %s is split over %s, which shares out neither the batch nor the sequence: "
                .. "add it to activation_batch or activation_length, or take it from %s", rule[1], axis, rule[1])
        end
    end
    if shape.emb < mesh:size(self.stream) then
        util.refuse("base_emb_dim = %d: too few features for %d ranks (%s)", shape.emb, mesh:size(self.stream),
            table.concat(self.stream, ", "))
    end
end

-- Checks the length of sequences. A sequence is split along context first (with load balance into two chunks per rank),
-- then along the other axes.
local function check_length(self, S)
    local n, m = self.mesh:size(self.context), self.mesh:size(self.sequence)
    if S % (self.zigzag and 2 * n or n) ~= 0 then
        util.refuse("max_target_length = %d: the %d ranks of context do not divide it%s", S, n,
            self.zigzag and " into two pieces each" or "")
    elseif S // n % m ~= 0 then
        util.refuse("max_target_length = %d: the %d ranks of %s do not divide the %d tokens that each has", S,
            m, table.concat(self.sequence, " and "), S // n)
    end
end

-- Whether ranks store just the features of a norm or bias that they use in the residual stream.
local function is_cut(self, p, spec)
    return p.use == "sequence" and #self.stream > 0 and same_axes(spec[1].kept, self.stream)
end

-- The axes whose ranks use the parameter on different tokens, heads or features, so that its gradient is a sum over
-- them.
local function different_uses(self, p, cut)
    local sequence = cut and self.sequence or join(self.sequence, self.stream)
    local more = { sequence = sequence, heads = self.products.heads, router = self.products.mlp, product = {} }
    local axes = join(self.shares, more[p.use])
    return util.contains(p.logical, "kv_heads") and join(axes, self.mesh.kv_copies) or axes
end

-- The gathers of dimension d before use. Those over axes of `different` scatter the gradient's sum. Ranks along other
-- axes use the whole dimension alike, so each has the whole gradient.
local function add_gathers(entry, p, d, different, cut)
    local dim, gathers = entry.spec[d], entry.gathers
    if #dim.gathered > 0 then
        gathers[#gathers + 1] = { dim = d, axis = dim.gathered, length = dim.used }
    end
    if p.logical[d] == "norm" and not cut then
        local last
        for i = #dim.kept, 1, -1 do -- the innermost axis first: each gather gives one block of the dimension
            local grad = not util.contains(different, dim.kept[i]) and "slice" or nil
            if not last or last.grad ~= grad then
                last = { dim = d, axis = {}, grad = grad }
                gathers[#gathers + 1] = last
            end
            table.insert(last.axis, 1, dim.kept[i])
        end
        if last then
            last.length = dim.size
        end
        if last and #last.axis < #dim.kept and dim.size % dim.parts ~= 0 then
            util.refuse("%s: %d elements, which the %d ranks along %s do not divide: split norm over one of them",
                p.name, dim.size, dim.parts, table.concat(dim.kept, ", "))
        end
    end
end

-- Ranks that have copies of a head of keys share out the heads of queries that use it.
local function units_of(self, p)
    local units, copies = {}, self.mesh:size(self.mesh.kv_copies)
    for d, unit in ipairs(p.units) do
        units[d] = p.logical[d] == "heads" and unit // copies or unit
    end
    return units
end

-- The axes along which ranks have different experts.
local function experts_of(self, shape)
    local mesh, split = self.mesh, {}
    if not mx.models.any(shape, function(block) return block.mlp.experts ~= nil end) then
        return {}
    end
    for i, axes in ipairs(mesh:axes({ "exp", "embed_moe", "mlp_moe" })) do
        split[i] = used(mesh, axes)
    end
    local exchange = used(mesh, mesh.rules.activation_exp)
    experts.check(self, split, exchange)
    return exchange
end

-- How a parameter is stored, gathered and reduced. Products are split between units: between heads, not inside a head.
-- Norms compute in f32, so their parameters are gathered as they are stored. `slice`: what is used of it.
local function entry_of(self, p)
    local spec = self.mesh:spec(p.logical, p.sizes, p.name, units_of(self, p))
    local entry = { spec = spec, sizes = p.sizes, gathers = {}, stored = {}, copies = self.mesh.layout.ranks }
    local cut, split = is_cut(self, p, spec), {}
    local different = different_uses(self, p, cut)
    entry.dtype = p.logical[1] ~= "norm" and not p.exact and self.shape.dtype or nil
    for d, dim in ipairs(spec) do
        entry.stored[d] = dim.stored
        entry.copies = entry.copies // dim.parts
        add_gathers(entry, p, d, different, cut)
        split = join(split, dim.axes)
    end
    if p.use == "sequence" and #self.stream > 0 and not cut then
        entry.slice = { dim = #p.sizes, start = self.column + 1, length = self.features }
    end
    entry.frozen, entry.sum = p.frozen, p.frozen and {} or util.without(different, split)
    return entry
end

-- Parameters with the same key have the same entry, such as those of most layers.
local function key_of(p)
    local words = { p.use, tostring(p.frozen) }
    for d, size in ipairs(p.sizes) do
        words[#words + 1] = ("%s %d %d"):format(p.logical[d], size, p.units[d])
    end
    return table.concat(words, " ")
end

--- Plans how a model is split over a mesh. Parts need not be equal; a rank without a part is refused before anything is
--- allocated. Not collective.
---@param mesh mx.Mesh
---@param shape table of mx.models.shape
---@param parameters table[] of mx.models.parameters
---@param o table of a config: context_parallel_load_balance, context_parallel_strategy,
---       async_all_gather, async_reduce_scatter, gradient_accumulation_fsdp_ag_once, shard_optimizer_over_data,
---       num_vocab_tiling, vocab_tiling_ag_once, and those of pipelines
---@return mx.Parallel
function parallel.new(mesh, shape, parameters, o)
    local rules = mesh.rules
    local self = setmetatable({ mesh = mesh, entries = {}, o = o, shape = shape }, Parallel)
    self.stages = stages.of(mesh, shape, o)
    self.batch = used(mesh, rules.activation_batch)
    self.context = used(mesh, rules.activation_length)
    self.ring, self.exchange = attention.split_context(self.context, o.context_parallel_strategy)
    self.shares = join(self.batch, self.context)
    local residual = mesh:axes({ "activation_batch", "activation_norm_length", "activation_embed" })
    self.sequence = util.without(used(mesh, residual[2]), self.context)
    self.stream = used(mesh, residual[3])
    self.products = {}
    for kind, embed in pairs({ heads = "embed_attn", kv_heads = "embed_attn", mlp = "embed", vocab = "embed_vocab" }) do
        self.products[kind] = util.without(used(mesh, mesh:axes({ embed, kind })[2]), self.shares)
    end
    self.experts = experts_of(self, shape)
    self.features, self.column = util.part(shape.emb, mesh:size(self.stream), mesh:index(self.stream))
    self.column = self.column - 1
    local _, first = util.part(shape.vocab, mesh:size(self.products.vocab), mesh:index(self.products.vocab))
    self.first_id = first - 1
    self.zigzag = #self.ring > 0 and attention.in_two_chunks(shape, o)
    check(self, shape)
    qk_clip.check(self, shape)
    attention.check(mesh, shape, o.context_parallel_strategy)
    check_length(self, o.max_target_length)
    local known = {}
    for _, p in ipairs(parameters) do
        local key = key_of(p)
        if not known[key] then
            known[key] = entry_of(self, p)
            if o.shard_optimizer_over_data then
                update.share(self, known[key])
            end
        end
        self.entries[p.name] = known[key]
    end
    self.parts = mesh:size(self.shares)
    self.seed, self.prefetch_layers = 1 / self.parts, o.prefetch_layers
    return self
end

-- The stages of a pipeline: see stages.lua.
Parallel.holders, Parallel.holds, Parallel.names = stages.holders, stages.holds, stages.names
Parallel.from_stage, Parallel.share_copies, Parallel.of_chunk = stages.from_stage, stages.share_copies, stages.of_chunk
-- The stored parts: see parts.lua.
Parallel.part, Parallel.place = stored.part, stored.place
Parallel.whole, Parallel.piece, Parallel.uneven = stored.whole, stored.piece, stored.uneven
Parallel.whole_of_stage = stored.whole_of_stage
-- The loss in tiles: see tiles.lua.
Parallel.tile_loss = tiles.charge
-- What the optimizer updates: see update.lua.
Parallel.updated, Parallel.updated_gradient = update.updated, update.updated_gradient
Parallel.updated_values, Parallel.update_place = update.updated_values, update.update_place
Parallel.whole_update, Parallel.own_update = update.whole_update, update.own_update
Parallel.is_shared = update.is_shared
Parallel.finish_update = update.finish_update

-- ---- weights ----

local function gather_options(self, gather, dtype)
    return {
        axis = gather.axis, dim = gather.dim, length = gather.length, dtype = dtype, grad = gather.grad,
        async = self.o.async_all_gather,
        async_grad = self.o.async_reduce_scatter,
    }
end

--- Whether a parameter is gathered before use.
---@param name string
---@return boolean
function Parallel:is_gathered(name)
    return #self.entries[name].gathers > 0
end

-- All of a parameter that its gathers give. Collective.
local function gather_all(self, name, t)
    local entry = self.entries[name]
    for i, gather in ipairs(entry.gathers) do
        t = mx.all_gather(t, gather_options(self, gather, i == 1 and entry.dtype or nil))
    end
    return t
end

--- A parameter for this rank's computation: gathered in the model's dtype of computation, or as it is stored.
--- Collective if it is gathered now, and not once for all passes of the step.
---@param name string
---@param t any
---@return any
function Parallel:gather(name, t)
    local leaf, slice = self.gathered and self.gathered.leaves[name], self.entries[name].slice
    t = leaf or gather_all(self, name, t)
    return slice and mx.narrow(t, slice) or t
end

--- If the config says so, gathers all weights once for several passes, or for the microbatches of a pipeline.
--- Collective.
---@param params table<string, any>
---@param passes integer
---@return mx.Gathered? to be closed
function Parallel:gather_once(params, passes)
    local once = passes > 1 and self.o.gradient_accumulation_fsdp_ag_once
        or self.stages and self.o.pipeline_fsdp_ag_once
    return once and gathered.new(self, params, gather_all) or nil
end

--- The options of the gather of a parameter's codes (models/quantization.lua). nil: there is none, or several, or all
--- weights have been gathered for the passes of a step.
---@param name string
---@return table?
function Parallel:gather_of_codes(name)
    local gathers = self.entries[name].gathers
    return not self.gathered and #gathers == 1 and gather_options(self, gathers[1]) or nil
end

--- Starts the requested gathers. Collective.
function Parallel.flush()
    mx.flush()
end

--- Prefetches parameters: starts their gathers. Collective.
---@param params table<string, any>
---@param names string[]
function Parallel:prefetch(params, names)
    if self.gathered then
        return
    end
    for _, name in ipairs(names) do
        local entry = self.entries[name]
        if #entry.gathers > 0 then
            mx.prefetch(params[name], gather_options(self, entry.gathers[1], entry.dtype))
        end
    end
    mx.flush()
end

--- Sets whether the next backward pass all-reduces gradients over the ranks that hold the same parameter. (Gradients of
--- gathered parameters are always reduced, and those of layers outside a pipeline by share_copies.) Not collective, but
--- backward then is.
---@param params table<string, any>
---@param on boolean
function Parallel:add_gradients(params, on)
    for name, t in util.sorted_pairs(params) do
        local sum, later = self.entries[name].sum, self.stages and self.stages.outside and #self:holders(name) > 1
        if #sum > 0 and not later then
            mx.reduce_gradient(t, on and sum)
        end
    end
end

--- The sum of the squares of all gradients, each element of the whole model counted once. Collective.
---@param squares table<string, number> parameter -> sum of squares of this rank's part
---@return number
function Parallel:sum_of_squares(squares)
    local sum = 0
    for name, value in util.sorted_pairs(squares) do
        local copies, list = self.entries[name].copies, self:holders(name)
        sum = sum + value / (list and copies // self.stages.n * #list or copies)
    end
    return mx.all_reduce_(mx.tensor(sum)):item()
end

-- ---- around products ----

-- The axes along which ranks have the whole residual stream alike, and different columns of these products.
local function alike(self, kind)
    return util.without(util.without(self.products[kind], self.sequence), self.stream)
end

--- Before products whose columns are split: h, this rank's tokens and features of (B, S, E), to all of both.
--- Collective.
---@param h any
---@param kind "heads"|"mlp"|"vocab"
---@return any
function Parallel:enter(h, kind)
    local same = alike(self, kind)
    if #self.stream > 0 then
        h = mx.all_gather(h, { axis = self.stream, dim = 3, length = self.shape.emb })
    end
    if #self.sequence > 0 then
        h = mx.all_gather(h, { axis = self.sequence, dim = 2 })
    end
    return #same > 0 and mx.fan_out(h, { axis = same }) or h
end

--- After products whose rows are split: the sum over the ranks, of which this rank keeps its tokens and features.
--- Collective.
---@param y any (B, S, E)
---@param kind "heads"|"mlp"|"vocab"
---@return any
function Parallel:leave(y, kind)
    local same = alike(self, kind)
    if #same > 0 then
        y = mx.all_reduce(y, { axis = same })
    end
    if #self.sequence > 0 then
        y = mx.reduce_scatter(y, { axis = self.sequence, dim = 2 })
    end
    return #self.stream > 0 and mx.reduce_scatter(y, { axis = self.stream, dim = 3 }) or y
end

-- A norm over `features` that are split over axes.
local function norm_over(axes, features, norm, x, weight, bias)
    if #axes == 0 then
        return parallel.alone:norm(norm, x, weight, bias)
    end
    return mx.split_norm(x, weight, bias, {
        axis = axes, features = features, center = norm.kind == "layernorm", eps = norm.eps,
    })
end

--- A norm of this rank's part of the residual stream, with its part of weight and bias. Collective if features are
--- split.
---@param norm table of a block
---@param x any
---@param weight any
---@param bias any or nil
---@return any
function Parallel:norm(norm, x, weight, bias)
    return norm_over(self.stream, self.shape.emb, norm, x, weight, bias)
end

--- A norm over the features of all heads, of which this rank has some. Collective if heads are split.
---@param norm table of an attention
---@param x any (B, S, features of this rank's heads)
---@param weight any of this rank's heads
---@param kind "heads"|"kv_heads"
---@param features integer of all heads
---@return any
function Parallel:norm_of_heads(norm, x, weight, kind, features)
    return norm_over(self.products[kind], features, norm, x, weight)
end

--- This rank's part of n rows of a product that are split as those of a kind.
---@param kind "heads"|"mlp"|"vocab"
---@param n integer
---@return integer first, integer count
function Parallel:part_of(kind, n)
    local axes = self.products[kind]
    local count, first = util.part(n, self.mesh:size(axes), self.mesh:index(axes))
    return first, count
end

--- Whether the products of heads and mlp are split over the same axes.
---@return boolean
function Parallel:splits_alike()
    return same_axes(self.products.heads, self.products.mlp)
end

--- The heads of an attention that this rank computes: its heads of keys, and its share of the heads of queries that use
--- them.
---@param part table of a block
---@return integer heads, integer kv_heads
function Parallel:heads(part)
    local mesh, axes = self.mesh, self.products.kv_heads
    local kv_heads = util.part(part.kv_heads, mesh:size(axes), mesh:index(axes))
    return kv_heads * (part.heads // part.kv_heads) // mesh:size(mesh.kv_copies), kv_heads
end

-- ---- tables of tokens ----

--- The rows of the table at these ids; where ranks have parts of the vocabulary, zeros for the ids of the others:
--- Parallel:leave(x, "vocab") adds them up.
---@param weight any this rank's part of the vocabulary
---@param ids any (B, S) i32, the same on all these ranks
---@param dtype string
---@return any (B, S, E)
function Parallel:embedding(weight, ids, dtype)
    return mx.embedding(weight, ids, { dtype = dtype, first = self.first_id, of = self.shape.vocab })
end

--- The mean cross entropy of h (B, S, E), as Parallel:enter(h, "vocab") gives it. Collective if ranks have parts of the
--- vocabulary.
---@param h any
---@param weight any this rank's part of the vocabulary
---@param targets any (B, S) i32
---@param mask any (B, S) u8, or nil
---@param options table of mx.cross_entropy
---@return any the same on all these ranks
function Parallel:cross_entropy(h, weight, targets, mask, options)
    local axes = self.products.vocab
    if #axes == 0 then
        return mx.cross_entropy(h, weight, targets, mask, options)
    end
    options.axis, options.vocab = axes, self.shape.vocab
    return mx.split_cross_entropy(h, weight, targets, mask, options)
end

-- The tokens of each rank: see tokens.lua.
Parallel.context_part, Parallel.sequence_part = tokens.context_part, tokens.sequence_part
Parallel.stream_positions, Parallel.whole_length = tokens.stream_positions, tokens.whole_length
Parallel.batch_place = tokens.batch_place
Parallel.batch_part = tokens.batch_part
Parallel.attention, Parallel.intervals = attention.attention, attention.intervals
-- Layers with experts: see experts.lua.
Parallel.own_experts, Parallel.gather_tokens, Parallel.scatter_tokens =
    experts.own_experts, experts.gather_tokens, experts.scatter_tokens
Parallel.sends_rows, Parallel.rows_of_ranks, Parallel.send_rows =
    experts.sends_rows, experts.rows_of_ranks, experts.send_rows
Parallel.mean_of_sequences, Parallel.sum_over_tokens = experts.mean_of_sequences, experts.sum_over_tokens
Parallel.counted_once, Parallel.share_of_sum = experts.counted_once, experts.share_of_sum

return parallel
