--- QK-clip of Kimi K2 (arXiv:2507.20534), for latent attention: after a step in which a score of a head has exceeded a
--- threshold, the weights of its queries and keys are made smaller, so that its largest score would be the threshold.
--
-- With s the largest score of a head in the step, the factor is f = min(1, threshold / (s + 1e-6)). The features
-- without positions of its queries and keys are multiplied by sqrt(f) each. Those with RoPE of its queries are
-- multiplied by f, because all heads share those of keys. Attention kernels give no largest scores: here they are
-- computed again, block by block.

local masks = require "mx.models.masks"
local mx = require "mx"
local shapes = require "mx.models.shape"
local util = require "mx.util"

local qk_clip = {}

---@class mx.QkClip
---@field model mx.Decoder
---@field largest table<integer, any> of each layer: (H) f32, the largest scores in this step of this rank's heads
---@field found? number the largest score of the last step, over all heads and ranks
local QkClip = {}
QkClip.__index = QkClip

--- Makes the state of a model's heads; nil if no layer clips.
---@param model mx.Decoder
---@return mx.QkClip?
function qk_clip.new(model)
    local self = setmetatable({ model = model, largest = {} }, QkClip)
    for i = 1, #model.layers do
        local part = shapes.block(model.shape, i).attention
        if (part.clip or 0) > 0 then
            self.largest[i] = mx.full({ (model.parallel:heads(part)) }, -math.huge):keep()
        end
    end
    return next(self.largest) and self or nil
end

--- Refuses meshes on which a rank does not have all keys of its queries. Not collective.
---@param parallel mx.Parallel
---@param shape table
function qk_clip.check(parallel, shape)
    local clips = mx.models.any(shape, function(block) return (block.attention.clip or 0) > 0 end)
    if clips and #parallel.context > 0 then
        util.refuse("use_qk_clip: the largest scores need keys that other ranks on the axis %s have: set false, or use "
            .. "other axes", table.concat(parallel.context, ", "))
    end
end

--- A step begins: forgets the scores of the one before.
function QkClip:start()
    for _, largest in pairs(self.largest) do
        mx.fill(largest, { value = -math.huge })
    end
    self.found = nil
end

-- 0 for each key (1, rows, keys) that the queries from number `first` on may attend to, -1e30 for the others.
local function mask_of(intervals, first, rows)
    local keys = mx.arange { n = first + rows - 1, dtype = "i32" }:view(1, 1, first + rows - 1)
    local queries = mx.arange({ n = rows, dtype = "i32" }):view(1, rows, 1) + (first - 1)
    local seen = mx.le(keys, queries)
    if intervals then
        local range = mx.narrow(intervals, { dim = 2, start = first, length = rows })
        seen = seen * mx.ge(keys, mx.narrow(range, { dim = 3, start = 1, length = 1 }))
            * mx.lt(keys, mx.narrow(range, { dim = 3, start = 2, length = 1 }))
    end
    return (seen:to("f32") - 1) * 1e30
end

--- Notes the largest scores of a training pass in layer i: q and k (B, S, H, D). On a simulated pod it does nothing:
--- kernels of TPUs give these scores (MaxText's tokamax splash attention).
---@param i integer
---@param q any
---@param k any
---@param scale number
---@param run table of Decoder:hidden
function QkClip:observe(i, q, k, scale, run)
    if mx.is_simulated() then
        return
    end
    local S, H, D = q:size(2), q:size(3), q:size(4)
    local function by_head(x, b, first, rows) -- (H, rows, D) of sequence b
        x = mx.narrow(mx.narrow(x:detach(), { dim = 1, start = b, length = 1 }),
            { dim = 2, start = first, length = rows })
        return mx.permute(x, { dims = { 1, 3, 2, 4 } }):view(H, rows, D)
    end
    local function observe(b, first, rows)
        local intervals = run.intervals and mx.narrow(run.intervals, { dim = 1, start = b, length = 1 })
        local scores = mx.matmul(by_head(q, b, first, rows), by_head(k, b, 1, first + rows - 1), nil,
            { trans_b = true, dtype = "f32" }) * scale + mask_of(intervals, first, rows)
        local found = mx.max(mx.max(scores, { dim = 3 }), { dim = 2 })
        mx.copy(self.largest[i], mx.maximum(self.largest[i], found))
    end
    mx.no_grad(function()
        for b = 1, q:size(1) do
            for first, rows in util.pieces(S, { H, S, S }, 2) do
                mx.scope(observe, b, first, rows)
            end
        end
    end)
end

-- The largest scores of all heads of the clipped layers, over all ranks: numbers by layer. Collective.
local function of_all_ranks(self, layers)
    local parallel, rows = self.model.parallel, {}
    for place, i in ipairs(layers) do
        local part = shapes.block(self.model.shape, i).attention
        local all, first = mx.full({ part.heads }, -math.huge), parallel:part_of("heads", part.heads)
        mx.write_slice(all, self.largest[i], { dim = 1, start = first })
        rows[place] = all:view(1, part.heads)
    end
    local all = mx.concat(rows, { dim = 1 })
    return (mx.ranks() > 1 and parallel ~= mx.parallel.alone and mx.all_reduce_(all, { op = "max" }) or all):totable()
end

-- Multiplies this rank's columns of a weight: factors (H, width of a head), of all columns.
local function scale_columns(model, name, factors)
    local t = model.params[name]
    if not t or not masks.trained(model.shape.trainable)(name) then
        return -- of another stage, or frozen
    end
    local part = model.parallel:part(name, t:size())
    local row = mx.narrow(factors:view(1, part.of[2]), { dim = 2, start = part.start[2], length = part.sizes[2] })
    mx.copy(t, t:detach():to("f32") * row)
end

-- Clips layer i: the largest score of each head.
local function clip_layer(self, i, scores)
    local model, part = self.model, shapes.block(self.model.shape, i).attention
    local names, list = model.layers[i], {}
    for head, s in ipairs(scores) do
        list[head] = { s > part.clip and part.clip / (s + 1e-6) or 1 }
    end
    local f = mx.tensor(list) -- (H, 1)
    local function columns(width, factor)
        return mx.expand(factor, { part.heads, width })
    end
    local query = mx.concat({ columns(part.nope, mx.sqrt(f)), columns(part.rotated, f) }, { dim = 2 })
    local keys = mx.concat({ columns(part.nope, mx.sqrt(f)), mx.ones { part.heads, part.value_dim } }, { dim = 2 })
    scale_columns(model, names["query_b.weight"] or names["query.weight"], query)
    scale_columns(model, names["kv_b.weight"], keys)
end

--- After a step that has changed the parameters: makes the weights of heads with larger scores than the threshold
--- smaller, and forgets the scores. Collective.
function QkClip:update()
    if mx.is_simulated() then
        return
    end
    local layers = util.sorted_keys(self.largest)
    mx.no_grad(function()
        mx.scope(function()
            local all, found = of_all_ranks(self, layers), -math.huge
            self:start()
            for place, i in ipairs(layers) do
                local most = math.max(table.unpack(all[place]))
                found = math.max(found, most)
                if most > shapes.block(self.model.shape, i).attention.clip then
                    clip_layer(self, i, all[place])
                end
            end
            self.found = found
        end)
    end)
end

return qk_clip
