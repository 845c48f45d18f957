--- Copies of heads of keys and values, where more ranks split heads than there are such heads.
--
-- With 8 heads of keys on tensor = 16, two ranks use the same one. The mesh then has two axes in place of tensor:
-- tensor.outer (8), which splits kv_heads, and tensor.inner (2), along which weights of keys and values are copies. The
-- name tensor means both. Ranks keep their order.

local util = require "mx.util"

local copies = {}

-- The axes, from the innermost, along which ranks share heads of keys: {axis, inner} each, inner being how many of its
-- neighbouring ranks share one. nil: there are as many heads as ranks, or ranks cannot share them equally.
local function shared(self, kv_heads)
    local axes, ranks, found = {}, 1, {}
    for _, axis in ipairs(self.layout.axes) do
        if axis.size > 1 and util.contains(self.rules.kv_heads, axis.name) and not self.shares_batch[axis.name] then
            table.insert(axes, 1, axis)
            ranks = ranks * axis.size
        end
    end
    if ranks <= kv_heads or ranks % kv_heads ~= 0 then
        return nil
    end
    local left = ranks // kv_heads
    for _, axis in ipairs(axes) do
        local inner = math.min(left, axis.size)
        if left % inner ~= 0 or inner < axis.size and axis.ici % inner ~= 0 then
            return nil
        end
        found[#found + 1] = inner > 1 and { axis = axis, inner = inner } or nil
        left = left // inner
    end
    return found
end

-- Replaces an axis of a layout by its two parts.
local function cut(layout, axis, inner)
    for i, one in ipairs(layout.axes) do
        if one == axis then
            local outer = {
                name = axis.name .. ".outer", ici = axis.ici // inner, dcn = axis.dcn, size = axis.size // inner,
            }
            layout.axes[i] = outer
            table.insert(layout.axes, i + 1, { name = axis.name .. ".inner", ici = inner, dcn = 1, size = inner })
            layout.sizes[outer.name], layout.sizes[axis.name .. ".inner"] = outer.size, inner
            return
        end
    end
end

-- The axes of a rule, with both parts of those that were cut.
local function with_parts(layout, axes)
    local list = {}
    for _, name in ipairs(axes) do
        local is_cut = layout.sizes[name .. ".outer"]
        list[#list + 1] = is_cut and name .. ".outer" or name
        list[#list + 1] = is_cut and name .. ".inner" or nil
    end
    return list
end

--- Cuts the axes of a mesh along which ranks share heads of keys, and takes the inner parts from the rules of kv_heads.
---@param self mx.Mesh
---@param kv_heads integer
---@return string[] the axes along which weights of keys and values are copies
function copies.share(self, kv_heads)
    local layout, names = self.layout, {}
    for i, one in ipairs(shared(self, kv_heads) or {}) do
        names[i] = one.axis.name
        if one.inner < one.axis.size then
            cut(layout, one.axis, one.inner)
            names[i] = one.axis.name .. ".inner"
        end
    end
    local function axes_of(name, axes)
        axes = with_parts(layout, axes)
        return name == "kv_heads" and util.without(axes, names) or axes
    end
    for i, rule in ipairs(self.list) do
        self.list[i] = { rule[1], axes_of(rule[1], rule[2]) }
    end
    for name, axes in pairs(self.rules) do
        self.rules[name] = axes_of(name, axes)
    end
    return names
end

return copies
