--- Which layers and parameters are on which stage of a pipeline. The layers are split into chunks, some of which may
--- lack a layer. Chunk c is on stage (c - 1) % stages. The first chunk has the table of tokens, the last one the final
--- norm, the table of the output and the modules of multi-token prediction. If both tables are one, or modules look
--- tokens up, the first and the last stage have copies of the table of tokens.
---
--- The functions below `stages.of` are methods of mx.Parallel.

local mx = require "mx"
local util = require "mx.util"

local stages = {}

---@class mx.Stages
---@field n integer number of stages
---@field index integer this rank's, from 0
---@field repeats integer chunks of each stage
---@field ranges {first: integer, last: integer}[] the layers of each chunk
---@field chunk_of integer[] the chunk of each layer
---@field microbatches integer
---@field copies boolean whether the last stage has a copy of the table of tokens
---@field schedule mx.PipelineSchedule
---@field times {passes: integer, seconds: number, waited_s: number, actions: table[]} of this rank's training passes
---       but the first; actions: of the last one, as in a replay

-- From the keys: the number of chunks of each stage, the layers of a chunk, and those of the last chunk if it has its
-- own.
local function sizes_of(config, n, layers)
    local pipeline = config.pipeline_parallel_layers == -1 and layers or config.pipeline_parallel_layers
    if pipeline ~= layers then
        util.refuse("pipeline_parallel_layers = %d: all %d layers must be in the pipeline: leave it out", pipeline,
            layers)
    end
    local per, repeats, last = config.num_layers_per_pipeline_stage, config.num_pipeline_repeats,
        config.decoder_last_pipeline_num_layers
    local own = last > 0 and 1 or 0 -- chunks with a length of their own
    local others = layers - (last > 0 and last or 0)
    if repeats == -1 then
        repeats = math.max(1, ((others + per - 1) // per + own + n - 1) // n)
    end
    if mx.pipeline.kinds.splits(config.pipeline_schedule) and repeats > 1 then
        util.refuse("pipeline_schedule=%s has one chunk on each stage, and %d layers in chunks of %d make %d: set "
            .. "num_layers_per_pipeline_stage=%d num_pipeline_repeats=1", config.pipeline_schedule, layers, per,
            repeats, (others + n - own - 1) // (n - own))
    end
    local slots = n * repeats - own
    if slots * per < others or slots * (per - 1) >= others or slots > others then
        util.refuse("num_layers_per_pipeline_stage = %d, num_pipeline_repeats = %d: %d stages then have %d layers%s, "
            .. "and the model has %d: set num_layers_per_pipeline_stage=%d num_pipeline_repeats=1", per, repeats, n,
            slots * per + layers - others, own > 0 and (", %d of them in the last chunk"):format(last) or "", layers,
            math.max(1, (others + n - own - 1) // (n - own)))
    end
    return repeats, per, own > 0 and last or nil
end

-- The layers of each chunk. The chunks that lack a layer are the last, the first, the last but one and so on, because
-- the ends of the pipeline have the tables, too. `last`: the number of layers of the last chunk, if it is given.
local function ranges_of(chunks, per, layers, last)
    local slots = last and chunks - 1 or chunks
    local lengths, ranges, lacking, first = {}, {}, slots * per - (layers - (last or 0)), 1
    for i = 1, slots do
        lengths[i] = per
    end
    for i = 1, lacking do
        local chunk = i % 2 == 1 and slots - i // 2 or i // 2
        lengths[chunk] = per - 1
    end
    lengths[chunks] = last or lengths[chunks]
    for i, length in ipairs(lengths) do
        ranges[i] = { first = first, last = first + length - 1 }
        first = first + length
    end
    return ranges
end

--- The stages of a mesh; nil without an axis `stage`. Refuses what a pipeline cannot have. Not collective.
---@param mesh mx.Mesh
---@param shape table of mx.models.shape
---@param config table
---@return mx.Stages?
function stages.of(mesh, shape, config)
    local n = mesh:size("stage")
    if n == 1 then
        return nil
    end
    local self = { n = n, index = mesh:index("stage"), copies = shape.tied or shape.mtp ~= nil }
    self.times = { passes = 0, seconds = 0, waited_s = 0 }
    local per, last
    self.repeats, per, last = sizes_of(config, n, shape.layers)
    self.ranges, self.chunk_of = ranges_of(n * self.repeats, per, shape.layers, last), {}
    for chunk, range in ipairs(self.ranges) do
        for layer = range.first, range.last do
            self.chunk_of[layer] = chunk
        end
    end
    for k = 1, shape.mtp and shape.mtp.layers or 0 do
        self.chunk_of[shape.layers + k] = n * self.repeats
    end
    self.microbatches = config.num_pipeline_microbatches == -1 and n or config.num_pipeline_microbatches
    local pending = config.zero_bubble_max_pending_backward
    self.schedule = mx.pipeline.schedule.check(mx.pipeline.schedule.make {
        kind = config.pipeline_schedule, stages = n, repeats = self.repeats, microbatches = self.microbatches,
        pending = pending ~= -1 and pending or nil,
        costs = config.pipeline_schedule == "zb" and mx.pipeline.costs.of(shape, self.ranges, config) or nil,
    })
    return self
end

-- The stages, from 0, that have a parameter, in ascending order.
local function holders(self, name)
    local layer = name:match("^layer(%d+)%.")
    if layer then
        return { (self.chunk_of[tonumber(layer)] - 1) % self.n }
    elseif name == "embedding.weight" and self.copies then
        return { 0, self.n - 1 }
    end
    return { (name == "embedding.weight" or name == "position.weight") and 0 or self.n - 1 }
end

--- The stages, from 0, that have a parameter; nil if there is no pipeline, or for what every stage has.
---@param name string
---@return integer[]?
function stages:holders(name)
    return self.stages and self.entries[name] and holders(self.stages, name) or nil
end

--- Whether this rank's stage has a parameter.
---@param name string
---@return boolean
function stages:holds(name)
    local list = self:holders(name)
    return not list or util.contains(list, self.stages.index)
end

--- The names of a model's parameters on all stages, in sorted order.
---@param _ table<string, any> this rank's parameters
---@return string[]
function stages:names(_)
    return util.sorted_keys(self.entries)
end

--- A tensor of the first stage that has it, on all stages. Collective.
---@param name string
---@param t any nil on other stages
---@param sizes integer[]
---@return any
function stages:from_stage(name, t, sizes)
    local list = self:holders(name)
    if not list then
        return t
    end
    t = t or mx.zeros(sizes, self.shape.weight_dtype)
    return mx.broadcast(t, { axis = "stage", root = list[1] })
end

--- Adds the gradients of a table that the first and the last stage have, on both. To be called after all backward
--- passes of a step. Collective.
---@param params table<string, any>
function stages:share_tied(params)
    local own, table_of_tokens = self.stages, params["embedding.weight"]
    if not own or not own.copies or not table_of_tokens or self.entries["embedding.weight"].frozen then
        return
    end
    local grad = table_of_tokens:grad()
    local other = { axis = "stage", to = own.n - 1 - own.index, from = own.n - 1 - own.index }
    local function send()
        mx.send(grad, { axis = other.axis, to = other.to })
    end
    if own.index == 0 then
        send()
    end
    local received = mx.recv(grad, { axis = other.axis, from = other.from })
    if own.index > 0 then
        send()
    end
    mx.copy(grad, grad + received) -- of two numbers, the sum has the same bits on both stages
end

return stages
