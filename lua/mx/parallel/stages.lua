--- Which layers and parameters are on which stage of a pipeline. The layers are split into chunks, some of which may
--- lack a layer. Chunk c is on stage (c - 1) % stages. The first chunk has the table of tokens, the last one the final
--- norm, the table of the output and the modules of multi-token prediction. If both tables are one, or modules look
--- tokens up, the stages of both chunks have copies of the table of tokens.
---
--- Layers outside the pipeline are one more chunk, the first or the last, of which all stages have copies: each stage
--- runs it for its share of the microbatches (pipeline/play.lua). Gradients of copies are added up once a step.
---
--- The functions below `stages.of` are methods of mx.Parallel.

local mx = require "mx"
local util = require "mx.util"

local stages = {}

---@class mx.Stages
---@field n integer number of stages
---@field index integer this rank's, from 0
---@field repeats integer chunks of each stage in the pipeline
---@field outside? "first"|"last" the chunk of layers outside the pipeline; nil: there are none
---@field chunks integer number of chunks
---@field ranges {first: integer, last: integer}[] the layers of each chunk
---@field chunk_of integer[] the chunk of each layer
---@field microbatches integer
---@field copies boolean whether the last chunk uses the table of tokens
---@field schedule mx.PipelineSchedule
---@field times {passes: integer, seconds: number, waited_s: number, actions: table[]} of this rank's training passes
---       but the first; actions: of the last one, as in a replay

-- From the keys: the number of chunks of each stage, the layers of a chunk, and those of the last chunk if it has its
-- own. `layers`: those in the pipeline.
local function sizes_of(config, n, layers)
    local per, repeats, last = config.num_layers_per_pipeline_stage, config.num_pipeline_repeats,
        config.decoder_last_pipeline_num_layers
    local own = last > 0 and 1 or 0 -- chunks with a length of their own
    local others = layers - (last > 0 and last or 0)
    if repeats == -1 then
        repeats = math.max(1, ((others + per - 1) // per + own + n - 1) // n)
    end
    if config.pipeline_schedule == "zb" and repeats > 1 then
        util.refuse("pipeline_schedule=zb has one chunk on each stage, and %d layers in chunks of %d make %d: set "
            .. "num_layers_per_pipeline_stage=%d num_pipeline_repeats=1", layers, per, repeats,
            (others + n - own - 1) // (n - own))
    end
    local slots = n * repeats - own
    if slots * per < others or slots * (per - 1) >= others or slots > others then
        util.refuse("num_layers_per_pipeline_stage = %d, num_pipeline_repeats = %d: %d stages then have %d layers%s, "
            .. "and the %s has %d: set num_layers_per_pipeline_stage=%d num_pipeline_repeats=1", per, repeats, n,
            slots * per + layers - others, own > 0 and (", %d of them in the last chunk"):format(last) or "",
            config.pipeline_parallel_layers == -1 and "model" or "pipeline", layers,
            math.max(1, (others + n - own - 1) // (n - own)))
    end
    return repeats, per, own > 0 and last or nil
end

-- The layers of each chunk. The chunks that lack a layer are the last, the first, the last but one and so on, because
-- the ends of the pipeline have the tables, too. `first`: the first of the layers; `last`: the number of layers of the
-- last chunk, if it is given.
local function ranges_of(chunks, per, first, layers, last)
    local slots = last and chunks - 1 or chunks
    local lengths, ranges, lacking = {}, {}, slots * per - (layers - (last or 0))
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

--- Where the layers outside a pipeline are, and how many. As in MaxText they follow the pipeline, but models with dense
--- layers before those with experts have them first. Not collective.
---@param config table
---@param n integer number of stages
---@param layers integer of the model
---@return "first"|"last"|nil
---@return integer
function stages.outside(config, n, layers)
    local inside = config.pipeline_parallel_layers
    if inside ~= -1 and (inside > layers or inside < n) then
        util.refuse("pipeline_parallel_layers = %d: expected at least one layer for each of the %d stages, and at most "
            .. "the %d layers of the model", inside, n, layers)
    elseif inside == -1 or inside == layers then
        return nil, 0
    end
    return config.decoder_block == "deepseek" and "first" or "last", layers - inside
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
    local per, last, outside
    self.outside, outside = stages.outside(config, n, shape.layers)
    self.repeats, per, last = sizes_of(config, n, shape.layers - outside)
    local before = self.outside == "first" and outside or 0
    self.ranges, self.chunk_of = ranges_of(n * self.repeats, per, before + 1, shape.layers - outside, last), {}
    if self.outside == "first" then
        table.insert(self.ranges, 1, { first = 1, last = outside })
    elseif self.outside then
        table.insert(self.ranges, { first = shape.layers - outside + 1, last = shape.layers })
    end
    self.chunks = #self.ranges
    for chunk, range in ipairs(self.ranges) do
        for layer = range.first, range.last do
            self.chunk_of[layer] = chunk
        end
    end
    for k = 1, shape.mtp and shape.mtp.layers or 0 do
        self.chunk_of[shape.layers + k] = self.chunks
    end
    self.microbatches = config.num_pipeline_microbatches == -1 and n or config.num_pipeline_microbatches
    if self.outside and self.microbatches % n ~= 0 then
        util.refuse("num_pipeline_microbatches = %d: with layers outside the pipeline expected a multiple of the %d "
            .. "stages, which share out the microbatches there", self.microbatches, n)
    end
    local pending = config.zero_bubble_max_pending_backward
    self.schedule = mx.pipeline.schedule.check(mx.pipeline.schedule.make {
        kind = config.pipeline_schedule, stages = n, repeats = self.repeats, microbatches = self.microbatches,
        outside = self.outside,
        pending = pending ~= -1 and pending or nil,
        costs = (self.outside or config.pipeline_schedule == "zb")
            and mx.pipeline.costs.of(shape, self.ranges, config) or nil,
    })
    return self
end

-- The stages, from 0, that run a chunk, in ascending order.
local function stages_of_chunk(self, chunk)
    local list, first = {}, chunk ~= mx.pipeline.schedule.outside(self.schedule)
        and mx.pipeline.schedule.stage_of(self.schedule, chunk, 1)
    for stage = first or 1, first or self.n do
        list[#list + 1] = stage - 1
    end
    return list
end

-- The chunks that use a parameter, in ascending order.
local function chunks_of(self, name)
    local layer = name:match("^layer(%d+)%.")
    if layer then
        return { self.chunk_of[tonumber(layer)] }
    elseif name == "embedding.weight" and self.copies then
        return { 1, self.chunks }
    end
    return { (name == "embedding.weight" or name == "position.weight") and 1 or self.chunks }
end

-- The stages, from 0, that have a parameter, in ascending order.
local function holders(self, name)
    local has, list = {}, {}
    for _, chunk in ipairs(chunks_of(self, name)) do
        for _, stage in ipairs(stages_of_chunk(self, chunk)) do
            has[stage] = true
        end
    end
    for stage = 0, self.n - 1 do
        list[#list + 1] = has[stage] and stage or nil
    end
    return list
end

--- The parameters of a model that a chunk of this stage uses. Not collective.
---@param params table<string, any> this rank's
---@param chunk integer
---@return table<string, any>
function stages:of_chunk(params, chunk)
    local used = {}
    for name, t in pairs(params) do
        used[name] = util.contains(chunks_of(self.stages, name), chunk) and t or nil
    end
    return used
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

-- Adds a gradient that two stages have, on both.
local function add_other(own, grad, other)
    if own < other then
        mx.send(grad, { axis = "stage", to = other })
    end
    local received = mx.recv(grad, { axis = "stage", from = other })
    if own > other then
        mx.send(grad, { axis = "stage", to = other })
    end
    mx.copy(grad, grad + received) -- of two numbers, the sum has the same bits on both stages
end

-- Adds a gradient that all stages have, over the stages and over the ranks that hold the same parameter.
local function add_all(self, name, grad)
    local axes = { "stage", table.unpack(self.entries[name].sum) }
    local half = self.o.grad_dtype == "bfloat16" and grad:to("bf16")
    local sum = mx.all_reduce_(half or grad, { axis = axes, async = self.o.async_all_reduce })
    if half then
        mx.copy(grad, sum:to("f32"))
    end
end

--- Adds up the gradients of parameters that several stages have, on all of them: a table that the first and the last
--- stage have, and everything of layers outside the pipeline. To be called after all backward passes of a step.
--- Collective.
---@param params table<string, any>
function stages:share_copies(params)
    for name, t in util.sorted_pairs(self.stages and params or {}) do
        local list, own, grad = self:holders(name), self.stages.index, t:grad()
        if #list > 1 and grad then -- none: the parameter is frozen, or nothing reads it, such as relative_bias
            if self.stages.outside then
                add_all(self, name, grad)
            else
                add_other(own, grad, list[1] == own and list[2] or list[1])
            end
        end
    end
    mx.flush()
end

return stages
