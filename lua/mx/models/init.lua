--- The decoder: embedding, layers, a final norm and the product that gives logits. The shape describes the layers
--- (shape.lua); each kind of part of a layer has its own file (attention.lua, mlp.lua, moe.lua).
--
-- B sequences of S tokens; E emb; V vocab. Weights are (inputs, outputs), so that y = x W.

local mx = require "mx"
local caches = require "mx.models.cache"
local codes = require "mx.models.codes"
local masks = require "mx.models.masks"
local mtp = require "mx.models.mtp"
local nn = require "mx.nn"
local parameters = require "mx.models.parameters"
local qk_clip = require "mx.models.qk_clip"
local quantization = require "mx.models.quantization"
local remat = require "mx.models.remat"
local routing = require "mx.models.routing"
local shapes = require "mx.models.shape"
local util = require "mx.util"

local models = {
    shape = shapes.of, block = shapes.block, kinds = shapes.kinds, part = shapes.part, parts = shapes.parts,
    sum = shapes.sum, any = shapes.any, divides = shapes.divides, copy = shapes.copy, by_layer = shapes.by_layer,
    cut = shapes.cut, tensors = shapes.tensors, has_norm = shapes.has_norm,
    parameters = parameters.list, count = parameters.count,
    masks = masks,
}

---@class mx.Decoder
---@field shape table of models.shape
---@field params table<string, any> name -> tensor; on a mesh this rank's shard
---@field codes? table<string, table> name -> a weight of codes.lua, which is not among the parameters; nil: none is
---@field buffers table<string, any> name -> tensor: state without a gradient (mx.nn.buffer)
---@field layers table[] the names of a layer's parameters by their short names: layers[1]["query.weight"]
---@field passes integer number of training passes so far: dropout differs in each
---@field part integer which part of a pass's sequences this rank has, from 0, as in mx.Data
---@field parts integer number of parts
---@field routing? mx.Routing of the routers, if any layer has experts
---@field mtp? mx.Mtp the modules of multi-token prediction, if there are any
---@field qk_clip? mx.QkClip of the heads, if use_qk_clip
---@field parallel mx.Parallel|mx.Alone how the model is split over a mesh; mx.Alone without a mesh
local Decoder = {}
Decoder.__index = Decoder

-- Refuses a model that all ranks together could not hold, before its parameters are listed.
local function check_memory(shape, in_codes)
    if mx.is_simulated() then
        return
    end
    local info, limit = mx.info(), mx.memory().limit
    local there = limit > 0 and limit or info.memory_bytes / info.node_ranks
    local params = parameters.count(shape)
    local bytes = params * mx.dtypes[shape.weight_dtype].bytes / mx.ranks()
    for _, values in pairs(in_codes or {}) do
        bytes = bytes + values * (1 + 4 / codes.BLOCK - mx.dtypes[shape.weight_dtype].bytes)
    end
    if bytes > there then
        util.refuse("the model has %s parameters in %s layers, which need %s of memory on each rank: there are %s",
            util.thousands(params), util.thousands(shape.layers), util.bytes(bytes), util.bytes(there))
    end
end

--- Creates a decoder with initial parameters, the same on every rank; on a mesh, with this rank's shards of them. Sizes
--- that are too small for the mesh are refused before anything is allocated, and so is an offload_directory in which no
--- file can be created. Not collective.
---@param shape table of models.shape; or a config, for mx.models.new(config)
---@param mesh? mx.Mesh
---@param config? table settings of communication and offloading, if `shape` is not a config
---@param blank? boolean leave the parameters 0: they will be loaded
---@param in_codes? table<string, integer> parameters that are not made, with their numbers of values: they will be
---       loaded to model.codes. Not on a mesh
---@return mx.Decoder
function models.new(shape, mesh, config, blank, in_codes)
    if rawget(shape, "emb") == nil then
        config, shape = shape, shapes.of(shape)
    end
    check_memory(shape, in_codes)
    if config and remat.offloads(shape.remat) then
        util.attempt(mx.offload_open, config.offload_directory)
    end
    local self = setmetatable({
        shape = shape, params = {}, buffers = {}, layers = {}, passes = 0, codes = in_codes and {},
    }, Decoder)
    local list = parameters.list(shape)
    local split = mesh and mesh.layout.ranks > 1
    self.parallel = split and mx.parallel.new(mesh, shape, list, config) or mx.parallel.alone
    self.part, self.parts = self.parallel:batch_place()
    for i = 1, shape.layers + (shape.mtp and shape.mtp.layers or 0) do
        self.layers[i] = {}
    end
    for _, p in ipairs(list) do
        local layer, short = p.name:match("^layer(%d+)%.(.*)$")
        if layer then
            self.layers[tonumber(layer)][short] = p.name
        end
        if self.parallel:holds(p.name) and not (in_codes and in_codes[p.name]) then
            nn.parameter(self.params, p.name, p.sizes, {
                std = not blank and p.std or nil, value = p.value, seed = shape.seed, dtype = shape.weight_dtype,
                part = self.parallel:part(p.name, p.sizes),
            }):requires_grad(not p.frozen)
        end
    end
    self.routing, self.mtp, self.qk_clip = routing.new(self), mtp.new(self), qk_clip.new(self)
    self.quantization = quantization.new(self)
    return self
end

-- A parameter for computation, by its full name; nil if the model does not have it. If layers compute in f32, a bf16
-- parameter is converted first: a product of both dtypes would round the activations to bf16 (engine/kernels/gemm.h).
function Decoder:weight(name)
    local t = self.params[name]
    t = t and self.parallel:gather(name, t)
    return t and self.shape.dtype == "f32" and t:dtype() == "bf16" and t:to("f32") or t
end

-- The weights of layer i by their short names, those that are gathered as codes as Quantization:gather gives them.
function Decoder:layer_weights(i, run)
    local weights, recipe = {}, self.quantization
    for short, name in util.sorted_pairs(self.layers[i]) do
        weights[short] = recipe and recipe:gather(self, i, short, run.pass ~= nil) or self.codes and self.codes[name]
            or self:weight(name)
    end
    self.parallel:flush()
    return weights
end

-- Prefetches the weights of the layers after layer i, up to layer `last`.
function Decoder:prefetch(i, last, run)
    local recipe = self.quantization
    for ahead = i + 1, math.min(i + self.parallel.prefetch_layers, last) do
        local names = {}
        for short, name in util.sorted_pairs(self.layers[ahead]) do
            if not (recipe and recipe:prefetch(self, ahead, short, run.pass ~= nil)) then
                names[#names + 1] = name
            end
        end
        self.parallel:prefetch(self.params, names)
    end
end

-- The result of products that are split over a mesh; the bias is added once.
function Decoder:leave(y, kind, bias)
    y = self.parallel:leave(y, kind)
    return bias and y + bias or y
end

-- A norm over E by its weights in `from`: (B, S, E) -> (B, S, E).
local function normalize(parallel, norm, from, name, x)
    return parallel:norm(norm, x, parameters.norm_weight(norm, from[name .. ".weight"]), from[name .. ".bias"])
end


-- Dropout in training passes: x (B, S, E) of the tokens with these numbers (B, S), and of the features from number
-- `column` on. The choice of dropped elements depends only on the place in the model, the token's number in the run and
-- the feature. So ranks that hold the same token drop the same elements, and a step has the same masks on any mesh and
-- with any number of passes.
function Decoder:dropout(x, place, numbers, run, column)
    if self.shape.dropout == 0 or not numbers then
        return x
    end
    local seed = util.seed("dropout." .. place, self.shape.seed)
    return mx.dropout(x, numbers, {
        rate = self.shape.dropout, seed = seed, offset = run.first_token, column = column,
    })
end

-- With dropout or stochastic rounding, numbers the tokens of a training pass (`run.pass`, from 1): first_token is the
-- number of the first token of this rank's batch in the run. From it follow the numbers of the tokens in its residual
-- stream, and those of the rows of its products.
function Decoder:number_tokens(tokens, run)
    local rounds = self.quantization and self.quantization:draws()
    if self.shape.dropout == 0 and not rounds or not run.pass then
        return
    end
    local B, S, parallel = tokens:size(1), tokens:size(2), self.parallel
    local length = parallel:whole_length(S)
    run.first_token = (((run.pass - 1) * self.parts + self.part) * (run.rows or B) + (run.row or 0)) * length
    local numbers = mx.arange({ n = B * length, dtype = "i32" }):view(B, length)
    run.product_rows = parallel:context_part(numbers)
    run.numbers = parallel:sequence_part(run.product_rows)
end

-- What the layers share of a batch: the keys that queries attend to with packed documents, and numbers of tokens.
function Decoder:prepare(tokens, run)
    run.intervals = run.segments and self.parallel:intervals(run.segments, run.kv_segments) or nil
    self:number_tokens(tokens, run)
end

-- Layer i: x (B, S, E) -> (B, S, E), and what the layer adds to the loss of a training pass, or nil.
function Decoder:layer(i, x, run)
    mx.place(("layer %d, attention"):format(i))
    local block, weights = shapes.block(self.shape, i), self:layer_weights(i, run)
    local attention, mlp = shapes.part(block.attention), shapes.part(block.mlp)
    local function attend(h)
        return attention.forward(self, i, block.attention, weights, h, run)
    end
    local function feed(h)
        return mlp.forward(self, i, block.mlp, weights, h, run)
    end
    local function norm(name, part, place, y)
        return shapes.has_norm(block, part, place) and normalize(self.parallel, block.norm, weights, name, y) or y
    end
    local out_bias, mlp_bias = weights[attention.output .. ".bias"], weights[mlp.output .. ".bias"]
    local h = norm("norm", "attention", "before", x)
    local entered = self.parallel:enter(h, attention.products)
    if block.parallel and self.shape.dropout == 0 and self.parallel:splits_alike() then
        -- Both products are summed over the same ranks, so summing them together halves the traffic.
        local attended = mx.name(attend(entered), attention.saved)
        mx.place(("layer %d, MLP"):format(i))
        local fed, extra = feed(entered)
        local sum = self:leave(attended + mx.name(fed, mlp.saved), attention.products, out_bias)
        return x + (mlp_bias and sum + mlp_bias or sum), extra
    end
    local attended = mx.name(self:leave(attend(entered), attention.products, out_bias), attention.saved)
    attended = norm("post_norm", "attention", "after", attended)
    attended = self:dropout(attended, "attention" .. i, run.numbers, run, self.parallel.column)
    mx.place(("layer %d, MLP"):format(i))
    if not block.parallel then
        x = x + attended
        h = norm("mlp_norm", "mlp", "before", x)
    end
    entered = block.parallel and entered or self.parallel:enter(h, mlp.products)
    local y, extra = feed(entered)
    y = mx.name(self:leave(y, mlp.products, mlp_bias), mlp.saved)
    y = norm("mlp_post_norm", "mlp", "after", y)
    y = self:dropout(y, "mlp" .. i, run.numbers, run, self.parallel.column)
    return block.parallel and x + attended + y or x + y, extra
end

-- Learned position embeddings of B sequences of S tokens: (S, E), or (B, S, E) if each token has its own position.
function Decoder:positions(run, B, S)
    local weight, positions = self:weight("position.weight"), self.parallel:stream_positions(run.positions, B, S)
    if positions then
        return mx.embedding(weight, positions)
    end
    return mx.narrow(weight, { dim = 1, start = run.offset + 1, length = S })
end

-- Tokens (B, S) to the layers' input (B, S, E).
function Decoder:embed(tokens, run)
    local stored = self.codes and self.codes["embedding.weight"]
    local x = stored and codes.rows(stored, tokens, self.shape.dtype)
        or self.parallel:embedding(self:weight("embedding.weight"), tokens, self.shape.dtype)
    x = self.parallel:leave(x, "vocab")
    if self.shape.positions > 0 then
        x = x + self:positions(run, tokens:size(1), tokens:size(2))
    end
    return self:dropout(x, "embedding", run.numbers, run, self.parallel.column)
end

-- Layers first to last: x (B, S, E) -> (B, S, E); nil before the first layer, which starts from the tokens. Also what
-- the layers add to the loss, and the input of the first of them.
function Decoder:through(first, last, x, tokens, run)
    self:prefetch(first - 1, last, run)
    if first == 1 then
        mx.place("embedding")
        x = mx.remat(self.shape.remat, function()
            return self:embed(tokens, run)
        end)
    end
    local input_of_first = x
    local extra, sum
    for i = first, last do
        self:prefetch(i, last, run)
        x, extra = mx.remat(self.shape.remat, function(input)
            return self:layer(i, mx.name(input, "decoder_layer_input"), run)
        end, x)
        sum = sum and extra and sum + extra or sum or extra
    end
    return x, sum, input_of_first
end

--- The norm of this name, of the kind of the last one: x (B, S, E) -> (B, S, E).
---@param name string
---@param x any
---@return any
function Decoder:normalize(name, x)
    local own = { ["norm.weight"] = self:weight(name .. ".weight"), ["norm.bias"] = self:weight(name .. ".bias") }
    return normalize(self.parallel, self.shape.norm, own, "norm", x)
end

-- The final norm.
function Decoder:finish(x)
    mx.place("after the last layer")
    return self:normalize("norm", x)
end

--- The last layer's output after the final norm: tokens (B, S) i32 -> (B, S, E). On a mesh, S is this rank's part along
--- context, and the result is its part of the residual stream. Refused on a stage of a pipeline.
---@param tokens any
---@param run? {segments: any, kv_segments: any, positions: any, cache: table, offset: integer, pass: integer}
---@return any
---@return any? in a training pass, what the layers add to the loss (f32, one element); nil: nothing
---@return any the last layer's output before the norm
function Decoder:hidden(tokens, run)
    if self.parallel.stages then
        util.refuse("a pipeline of %d stages has only a loss: load the checkpoint on a mesh without stages to generate "
            .. "text", self.parallel.stages.n)
    end
    run = run or {}
    run.offset = run.offset or 0
    self:prepare(tokens, run)
    local x, extra = self:through(1, self.shape.layers, nil, tokens, run)
    return self:finish(x), extra, x
end

-- The mean cross-entropy of the targets of a batch: h (B, S, E) of the final norm -> one element.
function Decoder:cross_entropy(h, batch, evaluates)
    local shape, parallel = self.shape, self.parallel
    mx.place("loss")
    return mx.remat("none", function()
        local name = shape.tied and "embedding.weight" or "unembedding.weight"
        local weight = self:weight(name)
        h = parallel:tile_loss(parallel:enter(h, "vocab"), name, self.params[name])
        return parallel:cross_entropy(h, weight, batch.targets, batch.mask, {
            trans = shape.tied, logit_scale = shape.logit_scale, softcap = shape.logit_cap,
            z_loss = evaluates and 0 or shape.z_loss,
        })
    end)
end

-- What layers need of a batch besides its tokens.
function Decoder:run_of(batch, evaluates)
    return {
        segments = batch.segments, kv_segments = batch.kv_segments, positions = batch.positions, offset = 0,
        pass = not evaluates and self.passes or nil, row = batch.row, rows = batch.rows,
    }
end

--- A chunk of a pipeline: the input of its first layer, which the first chunk makes of the tokens, to the output of its
--- last layer. Collective on the ranks of the stage.
---@param chunk integer from 1
---@param x any (B, S, E), or nil for the first chunk
---@param batch table a microbatch: as in Decoder:loss, and `row` (its first sequence, from 0) of `rows` of the batch
---@param evaluates? boolean
---@return any (B, S, E)
---@return any? in training, what the chunk's layers add to the loss (f32, one element); nil: nothing
---@return any the input of the first layer
function Decoder:chunk(chunk, x, batch, evaluates)
    local own, run = self.parallel.stages, self:run_of(batch, evaluates)
    self:prepare(batch.tokens, run)
    local range = own.ranges[chunk]
    return self:through(range.first, range.last, x, batch.tokens, run)
end

--- The loss of a microbatch: the output of the last chunk (B, S, E) to one element. Collective on the ranks of the
--- stage.
---@param x any
---@param batch table
---@param evaluates? boolean
---@return any cross_entropy
---@return any? further in training, what multi-token prediction adds; nil: nothing
function Decoder:losses_of_chunk(x, batch, evaluates)
    local loss = self:cross_entropy(self:finish(x), batch, evaluates)
    if evaluates or not self.mtp then
        return loss
    end
    local run = self:run_of(batch)
    self:prepare(batch.tokens, run)
    return loss, self.mtp:loss(x, batch, run)
end

--- The two terms of a batch's loss: the mean cross-entropy over its targets, and what layers and multi-token prediction
--- add in training, a mean over its tokens. Otherwise as Decoder:loss.
---@param batch table
---@param evaluates? boolean
---@return any cross_entropy
---@return any? extra nil: nothing
function Decoder:losses(batch, evaluates)
    codes.refuse(self, evaluates and "evaluating a loss" or "training")
    self.passes = self.passes + (evaluates and 0 or 1)
    if self.routing and not evaluates then
        self.routing.passes = self.routing.passes + 1
    end
    local run = self:run_of(batch, evaluates)
    local h, extra, x = self:hidden(batch.tokens, run)
    local loss = self:cross_entropy(h, batch, evaluates)
    if self.mtp and evaluates and self.shape.mtp.target > 0 then
        self.mtp:accept(x, h, batch, run)
    elseif self.mtp and not evaluates then
        local further = self.mtp:loss(x, batch, run)
        extra = extra and extra + further or further
    end
    return loss, extra
end

--- The loss of a training batch: a scalar for mx.backward. It is the mean cross-entropy, and in training what layers
--- with experts add to it. On a mesh, it is the mean over this rank's tokens, and batch holds the rank's part along
--- context; backward then needs the seed model.parallel.seed.
---@param batch table tokens and targets (B, S) i32; optional mask u8, segments and positions i32, (B, S) too; with
---       segments on a context axis kv_segments, those of the whole sequences
---@param evaluates? boolean for evaluation: without dropout, z_loss and the losses of routers, and not counted as a
---       training pass. Only then a pipeline has this function; all stages get the loss
---@return any
function Decoder:loss(batch, evaluates)
    if self.parallel.stages then
        if not evaluates then
            util.refuse("a pipeline of %d stages trains with mx.train.gradients; model:loss(batch, true) evaluates",
                self.parallel.stages.n)
        end
        return mx.pipeline.driver.evaluate(self, batch)
    end
    local loss, extra = self:losses(batch, evaluates)
    return extra and loss + extra or loss
end

--- Figures of the step's passes besides their loss, by name: of mx.Routing:figures, mtp_loss, and with qk_clip
--- max_logit, the largest score of attention. Collective.
---@return table<string, number>
function Decoder:figures()
    local figures = self.routing and self.routing:figures() or {}
    figures.mtp_loss = self.mtp and self.mtp:figure()
    figures.max_logit = self.qk_clip and self.qk_clip.found
    return figures
end

--- To be called after a step that has changed the parameters: updates the biases of routers (routed_bias_update_rate)
--- by what the step's passes have chosen, the weights of heads with large scores (use_qk_clip), and the delayed scales
--- of quantization. mx.Run:update does it. Collective.
function Decoder:after_step()
    if self.routing then
        self.routing:update_biases()
    end
    if self.qk_clip then
        self.qk_clip:update()
    end
    if self.quantization then
        self.quantization:after_step()
    end
end

--- Logits of hidden states: h (..., E) -> (..., V) f32. For generation; training never keeps all logits.
---@param h any of Decoder:hidden
---@return any
function Decoder:logits(h)
    local shape = self.shape
    local name = shape.tied and "embedding.weight" or "unembedding.weight"
    local stored = self.codes and self.codes[name]
    local logits = stored and codes.product(h, stored, nil, "f32")
        or mx.matmul(h, self:weight(name), nil, { trans_b = shape.tied, dtype = "f32" })
    logits = logits * shape.logit_scale
    if shape.logit_cap > 0 then
        logits = (logits / shape.logit_cap):tanh() * shape.logit_cap
    end
    return logits
end

-- What layer i keeps of earlier tokens: name -> sizes and dtype.
local function cache_tensors(shape, i, B, capacity)
    local part = shapes.block(shape, i).attention
    return caches.tensors(shape, shapes.part(part).cache_sizes(part, B, capacity))
end

--- A cache for the keys and values of `capacity` tokens in every layer: run.cache of Decoder:hidden. Layers with a
--- window keep fewer (cache.lua).
---@param B integer sequences
---@param capacity integer
---@return table[]
function Decoder:new_cache(B, capacity)
    local cache = {}
    for i = 1, self.shape.layers do
        cache[i] = {}
        for name, of in util.sorted_pairs(cache_tensors(self.shape, i, B, capacity)) do
            cache[i][name] = mx.zeros(of.sizes, of.dtype):keep()
        end
    end
    return cache
end

--- The bytes of such a cache.
---@param shape table of models.shape
---@param B integer sequences
---@param capacity integer
---@return integer
function models.cache_bytes(shape, B, capacity)
    local bytes = 0
    for i = 1, shape.layers do
        for _, of in util.sorted_pairs(cache_tensors(shape, i, B, capacity)) do
            local n = mx.dtypes[of.dtype].bytes
            for _, size in ipairs(of.sizes) do
                n = n * size
            end
            bytes = bytes + n
        end
    end
    return bytes
end

return models
