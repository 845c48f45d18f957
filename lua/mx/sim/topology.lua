--- The shape of a slice, and which of its sides the axes of a mesh use.
--
-- A torus of chips has sides x, y, z; on chips with two dies, the dies are one more side. Google offers one shape for
-- each small number of chips (`slices` of the hardware file). On a three-dimensional torus it also offers every shape
-- made of whole cubes of 4 x 4 x 4 chips. engine/sim/placement.h says which sides an axis gets, as JAX chooses them.

local mx = require "mx"
local util = require "mx.util"

local topology = {}

local SIDES = { "x", "y", "z" }

---@param sides integer[]
---@return string "4x8x16"
function topology.text(sides)
    return table.concat(sides, "x")
end

-- All shapes of `cubes` cubes, with sides in ascending order; those nearest to a cube come last.
local function shapes_of_cubes(cubes, side)
    local shapes = {}
    for a = 1, math.floor(cubes ^ (1 / 3) + 1e-9) do
        for b = a, cubes % a == 0 and math.floor((cubes // a) ^ 0.5 + 1e-9) or 0 do
            local c = cubes // (a * b)
            shapes[#shapes + 1] = a * b * c == cubes and { side * a, side * b, side * c } or nil
        end
    end
    return shapes
end

local function refuse_chips(hardware, chips)
    local sizes, cube = {}, math.tointeger(hardware.wraps_multiple or 1) ^ 3
    for size in pairs(hardware.slices) do
        sizes[#sizes + 1] = math.tointeger(tonumber(size))
    end
    table.sort(sizes)
    local cubes = hardware.largest_slice and (" and multiples of %d up to %d"):format(cube, hardware.largest_slice)
    util.refuse("hardware=%s-%d: %s has slices of %s%s", hardware.name, chips, hardware.description,
        table.concat(sizes, ", "), cubes or "")
end

--- The shapes that a slice of so many chips can have; none is refused.
---@param hardware table of sim.hardware
---@param chips integer
---@return integer[][]
function topology.shapes(hardware, chips)
    local listed = hardware.slices[chips] or hardware.slices[tostring(chips)]
    local side = math.tointeger(hardware.wraps_multiple or 1)
    if listed then
        return { listed }
    elseif chips < 1 or chips > (hardware.largest_slice or 0) or chips % side ^ 3 ~= 0 then
        refuse_chips(hardware, chips)
    end
    return shapes_of_cubes(math.tointeger(chips // side ^ 3), side)
end

local function sum(sides)
    local total = 0
    for _, size in ipairs(sides) do
        total = total + size
    end
    return total
end

--- The shape of a slice: hardware.topology if it is given, otherwise the one that is nearest to a cube.
---@param hardware table of sim.hardware
---@param chips integer
---@return integer[] sides
function topology.sides(hardware, chips)
    local shapes, texts, best = topology.shapes(hardware, chips), {}, nil
    for i, sides in ipairs(shapes) do
        texts[i] = topology.text(sides)
        if texts[i] == hardware.topology then
            return sides
        end
        best = best and sum(best) <= sum(sides) and best or sides
    end
    if hardware.topology then
        util.refuse("topology=%s: %d chips of %s have the shape %s", hardware.topology, chips, hardware.description,
            hardware.torus_dims > 0 and table.concat(texts, ", ") or "of a switch: leave topology out")
    end
    return best
end

-- Whether a slice consists of whole cubes, so that its sides are closed to rings.
local function is_whole(sides, cube)
    for _, size in ipairs(sides) do
        if not cube or size % cube ~= 0 then
            return false
        end
    end
    return true
end

--- The dimensions of the torus, and whether each is closed to a ring. The dies of a chip are the innermost dimension.
---@param hardware table
---@param sides integer[]
---@return {size: integer, link_Bps: number, wraps: boolean}[]
function topology.dims(hardware, sides)
    local dims, from = {}, hardware.wraps_from or math.huge
    local whole = is_whole(sides, hardware.wraps_multiple)
    for d, size in ipairs(sides) do
        dims[d] = { size = size, link_Bps = hardware.link_Bps, wraps = whole or size >= from }
    end
    if (hardware.dies or 1) > 1 then
        dims[#dims + 1] = { size = hardware.dies, link_Bps = hardware.die_link_Bps, wraps = false }
    end
    return dims
end

--- Whether JAX numbers the chips of a slice along a ring.
---@param hardware table
---@param chips integer
---@return boolean
function topology.is_ring(hardware, chips)
    return util.contains(hardware.ring_numbered or {}, chips)
end

-- ---- the mesh on it ----

-- "x and y", "4 of x"
local function parts_text(parts, dims, has_dies)
    local texts = {}
    for d, dim in ipairs(dims) do
        local name = has_dies and d == #dims and "the dies" or SIDES[d]
        local whole = parts[d] == dim.size
        texts[#texts + 1] = parts[d] > 1 and (whole and name or ("%d of %s"):format(parts[d], name)) or nil
    end
    return table.concat(texts, " and ")
end

--- The topology of the simulated pod and its mesh in a line; nil without a torus or a mesh.
---@return string?
function topology.line()
    local now, placement = mx.sim.now, mx.sim_placement()
    if not (now and placement) then
        return nil
    end
    local axes, has_dies, rings = {}, (now.dies or 1) > 1, {}
    for _, axis in ipairs(mx.mesh.AXES) do
        for _, name in ipairs({ axis, axis .. ".outer", axis .. ".inner" }) do
            local text = placement[name] and parts_text(placement[name], now.dims, has_dies) or ""
            axes[#axes + 1] = text ~= "" and ("%s on %s"):format(name, text) or nil
        end
    end
    for d, dim in ipairs(now.dims) do
        rings[#rings + 1] = dim.wraps and SIDES[d] or nil
    end
    return ("slice %s, %s: %s"):format(topology.text(now.sides),
        #rings > 0 and ("%s closed to %s"):format(table.concat(rings, ", "), #rings > 1 and "rings" or "a ring")
        or "no side closed to a ring", #axes > 0 and table.concat(axes, ", ") or "one chip")
end

--- Says what to do about a mesh that does not fit the sides of the simulated slice: other shapes of the slice that it
--- fits, and allow_split_physical_axes. Other shapes are tried, so the simulation must be started again afterwards.
---@param axes table[] of mx.mesh_define
---@return string
function topology.advice(axes)
    local now, fitting = mx.sim.now, {}
    if not now or #(now.dims or {}) == 0 or now.allow_split_physical_axes then
        return ""
    end
    for _, sides in ipairs(topology.shapes(now, now.slice_chips)) do
        mx.sim.start(now.given, now.pod_slices, { topology = topology.text(sides) })
        fitting[#fitting + 1] = pcall(mx.mesh_define, axes) and "topology=" .. topology.text(sides) or nil
    end
    fitting[#fitting + 1] = "allow_split_physical_axes=true"
    return (": %s would fit"):format(table.concat(fitting, " or "))
end

return topology
