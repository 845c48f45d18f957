--- What the optimizer of a model on a mesh updates: everything that a rank stores, or, with shard_optimizer_over_data,
--- a share of it. Methods of mx.Parallel.

local mx = require "mx"
local util = require "mx.util"

local updates = {}

--- Ranks along data that hold the same parameter may divide its update: each updates a range of the elements.
---@param self mx.Parallel
---@param entry table of a parameter
function updates.share(self, entry)
    local n, count = self.mesh:size("data"), 1
    for _, size in ipairs(entry.stored) do
        count = count * size
    end
    if n == 1 or count < n or not util.contains(entry.sum, "data") then
        return
    end
    local length, start = util.part(count, n, self.mesh:index("data"))
    entry.update = { length = length, start = start, dim = 1 }
    entry.sum = util.without(entry.sum, { "data" })
    entry.copies = entry.copies // n
end

--- The number of elements of a parameter that this rank updates, if ranks along data divide the update; otherwise nil.
---@param name string
---@return integer?
function updates:updated(name)
    local own = self.entries[name].update
    return own and own.length
end

--- The gradient of the elements that this rank updates. Collective if the update is divided.
---@param name string
---@param grad any gradient of everything that the rank stores
---@return any
function updates:updated_gradient(name, grad)
    if not self.entries[name].update then
        return grad
    end
    return mx.reduce_scatter(grad:view(grad:numel()), { axis = "data", async = self.o.async_reduce_scatter })
end

--- The values that this rank updates: they share the parameter's memory.
---@param name string
---@param t any
---@return any
function updates:updated_values(name, t)
    local own = self.entries[name].update
    return own and mx.narrow(t:detach():view(t:numel()), own) or t
end

--- Whether ranks of a stage update different parts of a parameter.
---@param name string
---@return boolean
function updates:is_shared(name)
    local part, is_shared = self:part(name), self.entries[name].update ~= nil
    for d, size in ipairs(part.of) do
        is_shared = is_shared or size ~= part.sizes[d]
    end
    return is_shared
end

--- Gathers a whole tensor from what each rank has for the values that it updates. Collective among the ranks of a
--- stage.
---@param name string
---@param t any of the shape of updated_values
---@return any of the shape of the whole parameter
function updates:whole_update(name, t)
    local part = self:part(name)
    if self.entries[name].update then
        local count = 1
        for _, size in ipairs(part.sizes) do
            count = count * size
        end
        t = mx.all_gather(t, { axis = "data", dim = 1, length = count }):view(table.unpack(part.sizes))
    end
    return self:whole_of_stage(name, t):wait()
end

--- Of a tensor of the shape of the whole parameter, what belongs to the values that this rank updates.
---@param name string
---@param whole any
---@return any
function updates:own_update(name, whole)
    local part, own = self:part(name), self.entries[name].update
    for d, size in ipairs(part.sizes) do
        whole = mx.narrow(whole, { dim = d, start = part.start[d], length = size })
    end
    return own and mx.narrow(mx.reshape(whole, { -1 }), own) or whole
end

--- The position in the whole parameter of the values that this rank updates, for the rounding of mx.adamw: they begin
--- at element `first` of what the rank stores, which begins at element `origin` and has `width` of the `stride`
--- elements of a row.
---@param name string
---@return {first: integer, origin: integer, width: integer, stride: integer}
function updates:update_place(name)
    local part, own = self:part(name), self.entries[name].update
    local n = #part.of
    local place = { first = own and own.start - 1 or 0, origin = 0, width = part.sizes[n], stride = part.of[n] }
    for d, start in ipairs(part.start) do
        place.origin = place.origin + (start - 1) * (d == n and 1 or part.of[n])
    end
    return place
end

--- After the update: each rank gets the elements that the others have updated. Collective if the update is divided.
---@param params table<string, any>
function updates:finish_update(params)
    for name, t in util.sorted_pairs(params) do
        if self.entries[name].update then
            mx.all_gather_(t:detach():view(t:numel()), { axis = "data", async = self.o.async_all_gather })
        end
    end
    mx.flush()
end

return updates
