--- The part of each tensor of a model that a rank stores, and gathering of whole tensors: methods of mx.Parallel and
--- mx.Alone. Every rank has the whole of a tensor without an entry.

local mx = require "mx"
local util = require "mx.util"

local parts = {}

--- The part of a tensor that this rank stores: its sizes, its start in each dimension of the whole tensor, and the
--- sizes of the whole tensor. Not collective.
---@param name string
---@param sizes? integer[] of a tensor without an entry
---@return {sizes: integer[], start: integer[], of: integer[]}
function parts:part(name, sizes)
    local entry = self.entries[name]
    local part = { sizes = entry and entry.stored or sizes, start = {} }
    part.of = entry and entry.sizes or part.sizes
    for d in ipairs(part.sizes) do
        part.start[d] = entry and entry.spec[d].start or 1
    end
    return part
end

--- The elements of a whole tensor that this rank stores, as a checkpoint lists them: a box of the tensor (offset and
--- extent in each dimension) and a run of the box's elements (first and count). `replicas` ranks store the same
--- elements; this rank is number `replica` of them. Offset, first and replica count from 0. Not collective.
---@param name string of a parameter or a buffer
---@param t any what the rank stores: the tensor itself, or a moment of it
---@param moment? "part"|"whole" a moment of a parameter: ranks along data may share it out, or all have it whole
---@return {sizes: integer[], offset: integer[], extent: integer[], first: integer, count: integer, replicas: integer,
---         replica: integer}
function parts:place(name, t, moment)
    local entry, split, same = moment ~= "whole" and self.entries[name] or nil, {}, {}
    local part = entry and self:part(name) or { sizes = t:size(), of = t:size(), start = {} }
    for d in ipairs(part.sizes) do
        part.start[d] = part.start[d] or 1
    end
    local place = { sizes = part.of, offset = {}, extent = part.sizes, first = 0, count = t:numel() }
    for d, start in ipairs(part.start) do
        place.offset[d] = start - 1
    end
    if not self.mesh then
        place.replicas, place.replica = mx.ranks(), mx.rank()
        return place
    end
    for _, dimension in ipairs(entry and entry.spec or {}) do
        table.move(dimension.axes, 1, #dimension.axes, #split + 1, split)
    end
    if moment and entry and entry.update then
        place.first = entry.update.start - 1
        split[#split + 1] = "data"
    end
    local holders = self:holders(name)
    split[#split + 1] = holders and "stage" or nil
    for _, axis in ipairs(self.mesh.layout.axes) do
        if axis.size > 1 and not util.contains(split, axis.name) then
            same[#same + 1] = axis.name
        end
    end
    place.replicas, place.replica = self.mesh:size(same), self.mesh:index(same)
    for copy, stage in ipairs(holders or {}) do
        if stage == self.stages.index then
            place.replica = place.replica + (copy - 1) * place.replicas
        end
    end
    place.replicas = place.replicas * (holders and #holders or 1)
    return place
end

--- In words, which dimensions have blocks of different sizes, and by how much the largest exceeds the mean: the others
--- wait for that share of its work. nil if there are none.
---@return string?
function parts:uneven()
    local texts, known = {}, {}
    for _, entry in util.sorted_pairs(self.entries) do
        for _, d in ipairs(entry.spec) do
            local largest, count = self.mesh:block(d, 0), d.size // d.unit
            local text = ("%s %s / %d: %.1f %%"):format(d.name, util.thousands(count), d.parts,
                100 * (largest * d.parts / d.size - 1))
            if largest * d.parts ~= d.size and not known[text] then
                known[text], texts[#texts + 1] = true, text
            end
        end
    end
    return #texts > 0 and table.concat(texts, ", ") or nil
end

-- Gathers dimension d of t over its kept axes, which separate only units.
local function gather_units(t, d, dimension, axes)
    local sizes, unit = t:size(), dimension.unit
    local viewed = table.move(sizes, 1, #sizes, 1, {})
    viewed[d] = sizes[d] // unit
    table.insert(viewed, d + 1, unit)
    t = mx.all_gather(t:view(table.unpack(viewed)), { dim = d, axis = axes, length = dimension.size // unit })
    sizes[d] = dimension.size
    return t:view(table.unpack(sizes))
end

-- Gathers the parts along all dimensions except `except` on every rank: first over the axes that are gathered for
-- computation.
local function gather(entry, t, except)
    local gathered = {}
    for _, one in ipairs(entry.gathers) do
        if one.dim ~= except then
            t = mx.all_gather(t, one)
        end
        gathered[one.dim] = table.move(one.axis, 1, #one.axis, #(gathered[one.dim] or {}) + 1, gathered[one.dim] or {})
    end
    for d, dimension in ipairs(entry.spec) do
        local left = util.without(dimension.axes, gathered[d] or {})
        if #left > 0 and d ~= except then
            t = gather_units(t, d, dimension, left)
        end
    end
    return t
end

--- Gathers a whole tensor on every rank of a stage that has it. Collective among these ranks.
---@param name string
---@param t any this rank's part
---@return any
function parts:whole_of_stage(name, t)
    local entry = self.entries[name]
    return entry and gather(entry, t) or t
end

--- Gathers a whole tensor on every rank. Collective.
---@param name string
---@param t any this rank's part; nil if its stage has none
---@return any
function parts:whole(name, t)
    local entry = self.entries[name]
    if not entry then
        return t
    end
    return self:from_stage(name, t and gather(entry, t), entry.sizes)
end

-- Broadcasts the elements `range` (start and length) of one block of a dimension from the ranks that have it.
local function from_block(mesh, entry, t, block, range)
    local dimension = entry.spec[range.dim]
    local sizes, n = t:size(), mesh:size(dimension.gathered)
    sizes[range.dim] = range.length
    local piece = block == dimension.stored_block and mx.narrow(t, range):clone() or mx.zeros(sizes, t:dtype())
    if #dimension.gathered > 0 then
        mx.broadcast_(piece, { axis = dimension.gathered, root = block % n })
    end
    if #dimension.kept > 0 then
        mx.broadcast_(piece, { axis = dimension.kept, root = block // n })
    end
    return piece
end

--- Gathers a range of a whole tensor, from `start` of a dimension on, on every rank. Only the range needs memory.
--- Collective.
---@param name string
---@param t any this rank's part; nil if its stage has none
---@param range {dim: integer, start: integer, length: integer}
---@return any
function parts:piece(name, t, range)
    local entry, blocks = self.entries[name], {}
    local of = entry and entry.sizes or t:size()
    if #of == 0 or range.length == of[range.dim] then
        return self:whole(name, t):wait()
    elseif not entry then
        return mx.narrow(t, range)
    end
    if not t then
        local sizes = table.move(of, 1, #of, 1, {})
        sizes[range.dim] = range.length
        return self:from_stage(name, nil, sizes)
    end
    local stop = range.start + range.length
    for block = 0, entry.spec[range.dim].parts - 1 do
        local size, first = self.mesh:block(entry.spec[range.dim], block)
        local start, last = math.max(range.start, first), math.min(stop, first + size)
        if start < last then
            local own = { dim = range.dim, start = start - first + 1, length = last - start }
            blocks[#blocks + 1] = from_block(self.mesh, entry, t, block, own)
        end
    end
    local piece = gather(entry, mx.concat(blocks, { dim = range.dim }), range.dim)
    return self:from_stage(name, piece, piece:size()):wait()
end

return parts
