--- The device mesh: named axes over the ranks, and the axes that split each dimension of a tensor.
--
-- An axis has a size inside a slice (ici, fast links) and a size across slices (dcn, slow links). Slices are outermost:
-- rank = dcn index * ranks of a slice + ici index, both row-major over AXES; the coordinate on an axis is
-- dcn coordinate * ici size + ici coordinate. `mx.mesh(config)` creates the mesh of this run.

local mx = require "mx"
local copies = require "mx.parallel.copies"
local logical_names = require "mx.parallel.names"
local util = require "mx.util"

local mesh = {}

local MOST_RANKS = 1 << 40 -- limit of a product of sizes

--- All axes in mesh order: neighbours on a later axis are closer ranks.
mesh.AXES = {
    "data", "stage", "fsdp", "fsdp_transpose", "context", "context_usp_ulysses", "tensor", "tensor_sequence", "expert",
}

--- MaxText's other axes. Rules may name them; their size here is always 1.
mesh.OTHER_AXES = {
    "diloco", "sequence", "context_autoregressive", "tensor_transpose", "autoregressive",
}

-- Logical name -> the config key of the dimension's size; activation_mlp and mlp have the same.
local SIZE_KEYS = {
    batch = "per_device_batch_size", length = "max_target_length", norm_length = "max_target_length",
    embed = "base_emb_dim", embed_attn = "base_emb_dim", embed_vocab = "base_emb_dim", norm = "base_emb_dim",
    mlp = "base_mlp_dim", heads = "base_num_query_heads", kv_heads = "base_num_kv_heads", vocab = "vocab_size",
    layers = "base_num_decoder_layers", exp = "num_experts", embed_moe = "base_emb_dim", embed_router = "base_emb_dim",
    mlp_moe = "base_moe_mlp_dim",
}

-- Weights whose rows are features of a latent (mla.lua), although their logical name is that of the stream.
local LATENT_KEYS = { kv_b = "kv_lora_rank", query_b = "q_lora_rank" }

-- The axis that an axis is a part of: "tensor" for "tensor.inner" (copies.lua).
local function whole_axis(name)
    return name:match("^[^.]+")
end

--- The config key of an axis's size inside a slice ("ici") or across slices ("dcn"). The axis stage has
--- ici_pipeline_parallelism and dcn_pipeline_parallelism, as in MaxText.
---@param level string
---@param name string an axis
---@return string
function mesh.key(level, name)
    return ("%s_%s_parallelism"):format(level, name == "stage" and "pipeline" or whole_axis(name))
end

local function counted(n, thing)
    return ("%d %s%s"):format(n, thing, n == 1 and "" or "s")
end

-- ---- sizes of the axes ----

-- The sizes of one level, ici or dcn, in the config: name -> size; their product without the -1; and the axis with the
-- -1, if there is one.
local function read_level(cfg, level)
    local sizes, product, open = {}, 1, nil
    for _, name in ipairs(mesh.AXES) do
        local key = mesh.key(level, name)
        local size = cfg[key]
        if size == -1 and open then
            util.refuse("%s and %s are both -1, but only one can take what is left: give one of them a number, "
                .. "say %s=1", mesh.key(level, open), key, mesh.key(level, open))
        elseif size == -1 then
            open = name
        elseif size < 1 then
            util.refuse("%s: expected at least 1, or -1 for what is left, got %d", key, size)
        else
            sizes[name], product = size, math.min(product * size, MOST_RANKS)
        end
    end
    return sizes, product, open
end

-- "fsdp=3, tensor=2"
local function list_sizes(sizes)
    local out = {}
    for _, name in ipairs(mesh.AXES) do
        if (sizes[name] or 1) > 1 then
            out[#out + 1] = ("%s=%d"):format(name, sizes[name])
        end
    end
    return #out > 0 and table.concat(out, ", ") or "all 1"
end

-- A change of a single key, as "key=value", that makes the product of a level equal to `total`, or a divisor of it if
-- an axis has -1; nil if there is none.
local function one_change(level, sizes, product, total, open)
    for _, name in ipairs(mesh.AXES) do
        local size = sizes[name] or 1
        local others = product // size
        if size > 1 and total % others == 0 then
            local fitting = total // others
            if open then
                fitting = math.min(fitting, size)
                while total // others % fitting ~= 0 do
                    fitting = fitting - 1
                end
            end
            return ("%s=%d"):format(mesh.key(level, name), fitting)
        end
    end
    if total % product == 0 then
        return mesh.key(level, "fsdp") .. "=-1"
    end
end

-- The number of slices, and the sizes across them.
local function fill_slices(cfg)
    local sizes, product, open = read_level(cfg, "dcn")
    local wanted = cfg.num_slices
    if open and wanted % product == 0 then
        sizes[open] = wanted // product
        return wanted, sizes
    elseif open then
        util.refuse("dcn_*_parallelism make %s (%s) and %s=-1 takes what is left, but num_slices=%d is no multiple: "
            .. "set num_slices=%d or %s", counted(product, "slice"), list_sizes(sizes), mesh.key("dcn", open), wanted,
            (wanted + product - 1) // product * product,
            one_change("dcn", sizes, product, wanted, open) or "smaller dcn sizes")
    elseif wanted > 1 and wanted ~= product then
        util.refuse("dcn_*_parallelism make %s (%s), but num_slices=%d: set num_slices=%d or %s=-1",
            counted(product, "slice"), list_sizes(sizes), wanted, product, mesh.key("dcn", "data"))
    end
    return product, sizes
end

--- The number of slices of a config: `num_slices`, or the product of the given dcn_* sizes if that is 1. mesh.layout
--- refuses a product that contradicts `num_slices`. Not collective.
---@param cfg table config
---@return integer
function mesh.slices(cfg)
    local product = 1
    for _, name in ipairs(mesh.AXES) do
        product = math.min(product * math.max(1, cfg[mesh.key("dcn", name)]), MOST_RANKS)
    end
    return cfg.num_slices == 1 and product or cfg.num_slices
end

local function refuse_ranks(slices, sizes, ranks)
    util.refuse("the mesh has %s (dcn_*_parallelism: %s), which do not divide %s: start %d (mpirun -n %d) or set "
        .. "num_slices and dcn_*_parallelism to a divisor of %d", counted(slices, "slice"), list_sizes(sizes),
        counted(ranks, "rank"), (ranks // slices + 1) * slices, (ranks // slices + 1) * slices, ranks)
end

-- The sizes inside a slice of `total` ranks.
local function fill_slice(cfg, slices, total)
    local sizes, product, open = read_level(cfg, "ici")
    if open and total % product == 0 then
        sizes[open] = total // product
        return sizes
    elseif product == total then
        return sizes
    end
    local there = slices == 1 and ("there are %s in 1 slice"):format(counted(total, "rank"))
        or ("%d ranks in %d slices are %d a slice"):format(total * slices, slices, total)
    local fitting = open and (total // product + 1) * product * slices or product * slices
    local change = one_change("ici", sizes, product, total, open)
    local start = ("start %s (mpirun -n %d)"):format(counted(fitting, "rank"), fitting)
    if cfg.hardware ~= "" then
        start = ("simulate slices of %s"):format(counted(fitting // slices, "rank"))
    end
    util.refuse("ici_*_parallelism make %s a slice (%s)%s, but %s: %s%s", counted(product, "device"), list_sizes(sizes),
        open and (" and %s=-1 takes what is left"):format(mesh.key("ici", open)) or "", there, start,
        change and " or set " .. change or "")
end

---@class mx.MeshLayout
---@field axes {name: string, ici: integer, dcn: integer, size: integer}[] in mesh order
---@field sizes table<string, integer> name -> size
---@field ici table<string, integer> name -> size inside a slice
---@field dcn table<string, integer> name -> size across slices
---@field slices integer
---@field ranks integer

--- The axes of a config's mesh over any number of ranks, with each -1 replaced. Sizes that do not fit are refused. Not
--- collective.
---@param cfg table config
---@param ranks integer
---@return mx.MeshLayout
function mesh.layout(cfg, ranks)
    local slices, dcn = fill_slices(cfg)
    if ranks % slices ~= 0 then
        refuse_ranks(slices, dcn, ranks)
    end
    local ici = fill_slice(cfg, slices, ranks // slices)
    local layout = { axes = {}, sizes = {}, ici = ici, dcn = dcn, slices = slices, ranks = ranks }
    for i, name in ipairs(mesh.AXES) do
        local size = ici[name] * dcn[name]
        layout.axes[i] = { name = name, ici = ici[name], dcn = dcn[name], size = size }
        layout.sizes[name] = size
    end
    return layout
end

-- ---- ranks and coordinates ----

--- The coordinates of a rank: axis -> coordinate, from 0.
---@param layout mx.MeshLayout
---@param rank integer from 0
---@return table<string, integer>
function mesh.coordinates(layout, rank)
    return mx.axes_coordinates(layout.axes, rank)
end

--- The rank at coordinates: the inverse of mesh.coordinates. A missing axis counts as 0.
---@param layout mx.MeshLayout
---@param at table<string, integer>
---@return integer
function mesh.rank_at(layout, at)
    return mx.axes_rank(layout.axes, at)
end

-- The entries of layout.axes with a name or a list of names, without repetitions and in mesh order. The name of an axis
-- in parts means these. Ranks that differ only on these axes have the same order as in a layout of these axes alone.
local function entries(layout, axes)
    local wanted, list = {}, {}
    for _, name in ipairs(type(axes) == "table" and axes or { axes }) do
        if not layout.sizes[name] then
            local near = util.nearest(tostring(name), mesh.AXES)
            error(("no mesh axis '%s'%s"):format(tostring(name), near and (", did you mean '%s'?"):format(near)
                or ": there are " .. table.concat(mesh.AXES, ", ")), 3)
        end
        wanted[name] = true
    end
    for _, axis in ipairs(next(wanted) and layout.axes or {}) do
        local name = axis.name
        if wanted[name] or name:find(".", 1, true) and wanted[whole_axis(name)] then
            list[#list + 1] = axis
        end
    end
    return list
end

local function in_order(layout, axes)
    local list = entries(layout, axes)
    for i, axis in ipairs(list) do
        list[i] = axis.name
    end
    return list
end

---@class mx.Mesh
---@field layout mx.MeshLayout
---@field rank integer this rank, from 0
---@field at table<string, integer> axis -> this rank's coordinate, from 0
---@field rules table<string, string[]> logical name -> the axes of its first rule
---@field list table[] all rules in their order: {logical name, axes}
---@field shares_batch table<string, boolean> the axes that split batch or length of activations
---@field has_experts boolean whether a layer of the model has experts
---@field kv_copies string[] axes along which ranks have copies of the same heads of keys and values (copies.lua)
local Mesh = {}
util.strict(Mesh, "a mesh", {
    "layout", "rank", "at", "rules", "list", "shares_batch", "has_experts", "kv_copies",
})

--- The number of ranks along axes. Not collective.
---@param axes string|string[] a name or several
---@return integer
function Mesh:size(axes)
    local size = 1
    for _, axis in ipairs(entries(self.layout, axes)) do
        size = size * axis.size
    end
    return size
end

--- This rank's index, from 0, among the ranks of Mesh:ranks. Not collective.
---@param axes string|string[]
---@return integer
function Mesh:index(axes)
    return mx.axes_rank(entries(self.layout, axes), self.at)
end

--- The ranks that differ from this one only along these axes, itself included, in ascending order. Not collective.
---@param axes string|string[]
---@return integer[]
function Mesh:ranks(axes)
    local ranks, part = {}, entries(self.layout, axes)
    for i = 1, self:size(axes) do
        local at = mx.axes_coordinates(part, i - 1)
        ranks[i] = mesh.rank_at(self.layout, setmetatable(at, { __index = self.at }))
    end
    return ranks
end

-- ---- which axes split a tensor ----

---@class mx.DimensionSpec
---@field name string|false the logical name
---@field axes string[] axes larger than 1 that split this dimension: `kept`, then `gathered`
---@field parts integer product of their sizes
---@field kept string[] the dimension stays split over these during computation
---@field gathered string[] these also split activations: the parts of a weight are all-gathered over them before use
---@field size integer number of elements of the whole dimension
---@field unit integer number of elements that kept axes do not separate
---@field stored integer number of elements that this rank stores
---@field start integer the first of them, from 1
---@field used integer number of elements that this rank computes with
---@field stored_block integer which of the `parts` blocks this rank stores, from 0
---@field used_block integer which block it computes with, from 0

-- `problem`: a format of the number of parts and their axes.
local function refuse_size(self, what, i, name, dimension, problem)
    local latent = name == "embed_attn" and LATENT_KEYS[what:match("([%w_]+)%.weight$")]
    local sizes, keys = {}, { latent or SIZE_KEYS[(name:gsub("^activation_", ""))] }
    for _, axis in ipairs(self.layout.axes) do
        for _, split in ipairs(dimension.axes) do
            if axis.name == split then
                sizes[#sizes + 1] = ("%s=%d"):format(split, axis.size)
                keys[#keys + 1] = axis.ici > 1 and mesh.key("ici", split) or nil
                keys[#keys + 1] = axis.dcn > 1 and mesh.key("dcn", split) or nil
            end
        end
    end
    local fewer = ("logical_axis_rules, such as [[%s, [%s]]]"):format(name, dimension.axes[1])
    keys[#keys + 1] = #dimension.axes > 1 and fewer or nil
    local unit = dimension.unit > 1 and (" x %d"):format(dimension.unit) or ""
    util.refuse("%s: dimension %d (%s) has %d%s elements, %s: change %s", what, i, name,
        dimension.size // dimension.unit, unit, problem:format(dimension.parts, table.concat(sizes, ", ")),
        table.concat(keys, " or "))
end

local function check_name(name)
    if name and not logical_names.OWN[name] then
        local near = util.nearest(tostring(name), util.sorted_keys(logical_names.OWN))
        error(("no logical axis '%s'%s"):format(tostring(name), near and (", did you mean '%s'?"):format(near)
            or "; lua/mx/parallel/names.lua lists them"), 3)
    end
end

local function are_free(axes, taken)
    for _, axis in ipairs(axes) do
        if taken[axis] then
            return false
        end
    end
    return true
end

--- Whether the parts of a dimension along an axis stay apart during computation: those of activations do, and so do
--- those of experts whose ranks send each other their tokens. Parts of weights over ranks with different tokens are
--- gathered. Not collective.
---@param name string|false the dimension's logical name
---@param axis string
---@return boolean
function Mesh:keeps(name, axis)
    return not self.shares_batch[axis] or name and name:find("^activation_") ~= nil
        or name == "exp" and util.contains(self.rules.activation_exp, axis)
end

--- The axes of each dimension of a tensor by the rules, as Flax chooses them: the rules are tried in their order. A
--- rule applies to the dimension of its name if no earlier rule has, and if it shares no axis with the rules that apply
--- to other dimensions. So a second rule of a name is a fallback. Not collective.
---@param logical (string|false)[] the logical name of each dimension; false: never split
---@return string[][] for each dimension; axes of size 1 included
function Mesh:axes(logical)
    local axes, place, taken = {}, {}, {}
    for i = #logical, 1, -1 do
        check_name(logical[i])
        axes[i], place[logical[i]] = {}, i
    end
    for _, rule in ipairs(self.list) do
        local i = place[rule[1]]
        if i and are_free(rule[2], taken) then
            axes[i], place[rule[1]] = rule[2], nil
            for _, axis in ipairs(rule[2]) do
                taken[axis] = true
            end
        end
    end
    return axes
end

--- A block of a split dimension. Not collective.
---@param dimension mx.DimensionSpec of which kept, gathered, size and unit are set
---@param block integer from 0
---@return integer stored, integer start, integer used number of elements, the first one, and the number of those that
---        the ranks along its gathered axes have together
function Mesh:block(dimension, block)
    local n, unit = self:size(dimension.gathered), dimension.unit
    local units, first = util.part(dimension.size // unit, self:size(dimension.kept), block // n)
    local stored, start = util.part(units * unit, n, block % n)
    return stored, start + (first - 1) * unit, units * unit
end

--- How a tensor is split: one entry per dimension, over the axes of Mesh:axes. Kept axes are outermost, so that a
--- gather gives one contiguous block of the dimension: stored_block = mesh:index(kept) * mesh:size(gathered) +
--- mesh:index(gathered). Blocks need not be equal: util.part splits the dimension between the kept axes, and each block
--- between the gathered ones. A rank without elements is refused, and so are blocks of activations that are not equal.
--- Not collective.
---@param logical (string|false)[] the logical name of each dimension; false: never split
---@param sizes integer[] of the whole tensor
---@param what string the tensor's name, for messages
---@param units? integer[] of each dimension, the number of elements that kept axes do not separate; default: 1
---@return mx.DimensionSpec[]
function Mesh:spec(logical, sizes, what, units)
    if #logical ~= #sizes then
        error(("%s: %d logical names for %d dimensions"):format(what, #logical, #sizes), 2)
    end
    local spec, axes = {}, self:axes(logical)
    for i, name in ipairs(logical) do
        local d = {
            name = name, parts = 1, kept = {}, gathered = {}, size = sizes[i], unit = units and units[i] or 1,
        }
        local is_activation = name and name:find("^activation_")
        for _, axis in ipairs(axes[i]) do
            local size = self.layout.sizes[axis] or 1
            if size > 1 then
                local list = self:keeps(name, axis) and d.kept or d.gathered
                list[#list + 1], d.parts = axis, d.parts * size
            end
        end
        d.kept, d.gathered = in_order(self.layout, d.kept), in_order(self.layout, d.gathered)
        d.axes = table.move(d.gathered, 1, #d.gathered, #d.kept + 1, table.move(d.kept, 1, #d.kept, 1, {}))
        local n = self:size(d.gathered)
        if d.size // d.unit // self:size(d.kept) * d.unit < n then -- the smallest block
            refuse_size(self, what, i, name, d, "too few for %d parts (%s)")
        elseif is_activation and d.size % d.parts ~= 0 then
            refuse_size(self, what, i, name, d, "which %d parts (%s) do not divide")
        end
        d.used_block = self:index(d.kept)
        d.stored_block = d.used_block * n + self:index(d.gathered)
        d.stored, d.start, d.used = self:block(d, d.stored_block)
        spec[i] = d
    end
    return spec
end

-- ---- printing ----

local function counted_ranks(layout)
    return layout.slices == 1 and counted(layout.ranks, "rank")
        or ("%d ranks, %d slices of %d"):format(layout.ranks, layout.slices, layout.ranks // layout.slices)
end

--- In words: "8 ranks: fsdp 4 x tensor 2".
---@return string
function Mesh:summary()
    local sizes = {}
    for _, name in ipairs(mesh.AXES) do
        local size = self.layout.sizes[name]
        sizes[#sizes + 1] = size > 1 and ("%s %d"):format(name, size) or nil
    end
    return ("%s: %s"):format(counted_ranks(self.layout),
        #sizes > 0 and table.concat(sizes, " x ") or "nothing is shared out")
end

--- A picture of the ranks and their groups, at most 80 columns wide.
function Mesh:__tostring()
    return require("mx.parallel.mesh_picture").draw(self, mesh.rank_at)
end

-- ---- creating a mesh ----

-- Those of the axes that a mesh has.
local function known_axes(axes)
    local list = {}
    for _, axis in ipairs(axes) do
        list[#list + 1] = util.contains(mesh.AXES, axis) and axis or nil
    end
    return list
end

--- A mesh over any number of ranks, as seen by one of them: for planning. It has no side effects. Not collective.
---@param cfg table config
---@param ranks integer
---@param rank? integer from 0; default: 0
---@return mx.Mesh
function mesh.plan(cfg, ranks, rank)
    local layout = mesh.layout(cfg, ranks)
    local self = setmetatable({
        layout = layout, rank = rank or 0, rules = {}, shares_batch = {}, has_experts = false,
        list = table.move(cfg.logical_axis_rules, 1, #cfg.logical_axis_rules, 1, {}),
    }, Mesh)
    for name in pairs(logical_names.OWN) do
        self.rules[name] = {}
    end
    for i = #self.list, 1, -1 do
        self.rules[self.list[i][1]] = known_axes(self.list[i][2])
    end
    for _, name in ipairs({ "activation_batch", "activation_length" }) do
        for _, axis in ipairs(self.rules[name]) do
            self.shares_batch[axis] = true
        end
    end
    local kv_heads = math.huge
    for _, kind in ipairs(mx.models.kinds(mx.models.shape(cfg))) do
        kv_heads = math.min(kv_heads, kind.block.attention.kv_heads)
        self.has_experts = self.has_experts or kind.block.mlp.experts ~= nil
    end
    logical_names.check(self.rules, layout.sizes, self.shares_batch, self.has_experts)
    self.kv_copies = copies.share(self, kv_heads)
    self.at = mesh.coordinates(layout, self.rank)
    return self
end

-- Ranks with parts of the same product choose experts each by itself. They agree to the bit only if they compute by the
-- same instructions; otherwise a token's results would be parts of different experts.
local function check_routing(self)
    local axes = {}
    for _, axis in ipairs(util.without(self.rules.mlp, util.sorted_keys(self.shares_batch))) do
        axes[#axes + 1] = self.layout.sizes[axis] > 1 and axis or nil
    end
    if not self.has_experts or mx.is_simulated() or #axes == 0 then
        return
    end
    local own = ("isa %s, OpenBLAS core %s"):format(mx.isa(), mx.info().blas_core)
    local first = mx.share_text(own)
    mx.checkpoint.together(function()
        if own ~= first then
            util.refuse("num_experts with %s: ranks must choose experts alike, but rank %d has %s, and rank 0 %s: give "
                .. "all ranks the same --isa and OPENBLAS_CORETYPE", table.concat(axes, ", "), self.rank, own, first)
        end
    end)
end

--- Creates the mesh of this run over all its ranks. From now on, collectives with axes use it. Collective.
---@param cfg table config
---@return mx.Mesh
function mesh.new(cfg)
    local self, list = mesh.plan(cfg, mx.ranks(), mx.rank()), {}
    for i, axis in ipairs(self.layout.axes) do
        list[i] = { name = axis.name, ici = axis.ici, dcn = axis.dcn }
    end
    local ok, problem = pcall(mx.mesh_define, list) -- a simulated pod may have sides that the axes do not fit
    if not ok then
        util.refuse("%s%s", problem, tostring(problem):find("fit the slice", 1, true) and mx.sim.topology.advice(list)
            or "")
    end
    check_routing(self)
    return self
end

return setmetatable(mesh, {
    __call = function(_, cfg)
        return mesh.new(cfg)
    end,
})
