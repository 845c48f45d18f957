--- Which part of each tensor of a model a rank stores, and whole tensors put together from the parts: methods of
--- mx.Parallel. A tensor that has no entry there lies whole on every rank.

local mx = require "mx"
local util = require "mx.util"

local parts = {}

-- What is in a and not in b.
local function without(a, b)
    local list = {}
    for _, item in ipairs(a) do
        if not util.contains(b, item) then
            list[#list + 1] = item
        end
    end
    return list
end

--- The part of a parameter that this rank stores: its sizes, where it starts in each dimension of the whole, and the
--- whole's sizes. Not collective.
---@param name string
---@return {sizes: integer[], start: integer[], of: integer[]}
function parts:part(name)
    local entry = self.entries[name]
    local part = { sizes = entry.stored, start = {}, of = entry.sizes }
    for d, dimension in ipairs(entry.spec) do
        part.start[d] = dimension.stored_block * entry.stored[d] + 1
    end
    return part
end

-- The parts along all dimensions, put together on every rank: first those that are gathered for computing.
local function gather(entry, t)
    local gathered = {}
    for _, one in ipairs(entry.gathers) do
        t = mx.all_gather(t, one)
        gathered[one.dim] = table.move(one.axis, 1, #one.axis, #(gathered[one.dim] or {}) + 1, gathered[one.dim] or {})
    end
    for d, dimension in ipairs(entry.spec) do
        local left = without(dimension.axes, gathered[d] or {})
        if #left > 0 then
            t = mx.all_gather(t, { dim = d, axis = left })
        end
    end
    return t
end

--- A whole parameter, put together on every rank. Collective.
---@param name string
---@param t any this rank's part
---@return any
function parts:whole(name, t)
    return gather(self.entries[name], t)
end

return parts
