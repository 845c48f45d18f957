--- Lists the parameters of a model without creating them.
--
-- Each has its name, sizes, initial std or value, and for a mesh: the logical name of each dimension (false: never
-- split), the size of units that are not split (a head's columns), and where it is used: in a "product", on each of the
-- "heads", on each token of the residual "sequence", or in a "router", which all ranks with parts of a product compute
-- alike. A frozen parameter is not trained.

local masks = require "mx.models.masks"
local mtp = require "mx.models.mtp"
local shapes = require "mx.models.shape"

local parameters = {}

---@class mx.ParameterList what a part adds its parameters to
---@field shape table
---@field prefix string before the names of a layer's parameters
local List = {}
List.__index = List

local function new_list(shape)
    return setmetatable({ shape = shape, prefix = "" }, List)
end

--- Adds a parameter.
---@param name string
---@param dimensions table[] each a size, its logical name or false, and the unit that is not split (default: 1)
---@param o {std: number?, value: number?, use: string, exact: boolean?, share: number?} initial values: normal with
---       `std`, or all `value`; exact: a mesh gathers it as it is stored, whatever the dtype of the computation; share:
---       of the tokens that meet each of its elements (default: 1)
function List:add(name, dimensions, o)
    local p = {
        name = self.prefix .. name, sizes = {}, logical = {}, units = {}, std = o.std, value = o.value, use = o.use,
        exact = o.exact, share = o.share or 1,
    }
    for d, dimension in ipairs(dimensions) do
        p.sizes[d], p.logical[d], p.units[d] = dimension[1], dimension[2] or false, dimension[3] or 1
    end
    self[#self + 1] = p
end

-- The weights of a product (rows, columns), and its bias. With `each`, those of so many experts: a bias of what they
-- add to the residual stream is used like the router, by all ranks that have parts of the product.
local function add_product(self, name, rows, columns, o)
    local shape, bias = self.shape, o.bias
    local std = shape.init_std > 0 and shape.init_std or 1 / math.sqrt(rows[1])
    local dimensions = o.each and { { o.each, "exp" }, rows, columns } or { rows, columns }
    self:add(name .. ".weight", dimensions, {
        std = std * (o.factor or 1), use = o.use or "product", exact = o.exact, share = o.share,
    })
    local to_stream = bias and bias[2] == "norm"
    if bias and o.each then
        local width = to_stream and { bias[1], o.embed } or bias
        self:add(name .. ".bias", { { o.each, "exp" }, width }, {
            value = 0, use = to_stream and "router" or "product", share = o.share,
        })
    elseif bias then
        self:add(name .. ".bias", { bias }, { value = 0, use = to_stream and "sequence" or o.use or "product" })
    end
end

--- A product inside a part: (rows, columns).
---@param name string
---@param rows table a dimension for List:add
---@param columns table the same
function List:product(name, rows, columns)
    add_product(self, name, rows, columns, {})
end

--- A product that reads the residual stream: (emb, columns).
---@param name string
---@param columns table a dimension for List:add
---@param o {bias: boolean?, factor: number?, embed: string?, each: integer?, use: string?, exact: boolean?, share:
---       number?} factor: of the initial weights; embed: the logical name of emb (default: "embed"); each: so many
---       experts have weights of their own, (each, emb, columns), and biases (each, columns); use (default: "product"),
---       exact, share: as for List:add
function List:from_stream(name, columns, o)
    add_product(self, name, { self.shape.emb, o.embed or "embed" }, columns, {
        factor = o.factor, bias = o.bias and columns, each = o.each, use = o.use, exact = o.exact, share = o.share,
    })
end

--- A product whose result is added to the residual stream: (rows, emb). Its bias is added after the sum over the ranks
--- along which the rows are split. With init_std, its initial weights are smaller the more layers add to the stream.
---@param name string
---@param rows table a dimension for List:add
---@param o {bias: boolean?, embed: string?, each: integer?, share: number?} embed, each, share: as in from_stream
function List:to_stream(name, rows, o)
    local shape = self.shape
    add_product(self, name, rows, { shape.emb, o.embed or "embed" }, {
        factor = shape.init_std > 0 and 1 / math.sqrt(2 * shape.layers) or 1, bias = o.bias and { shape.emb, "norm" },
        each = o.each, share = o.share, embed = o.embed,
    })
end

--- A norm over `width` features.
---@param name string
---@param width integer
---@param norm table of a shape or block
---@param use string
---@param logical? string|false the logical name of the features (default: norm); false: never split
---@param unit? integer features that are not split
function List:norm(name, width, norm, use, logical, unit)
    local features = { width, logical == nil and "norm" or logical, unit }
    self:add(name .. ".weight", { features }, { value = 1 - norm.offset, use = use })
    if norm.bias then
        self:add(name .. ".bias", { features }, { value = 0, use = use })
    end
end

--- The factors of a norm's features: its weight and the offset. A bf16 weight of 0 + 1 would lose bits: the sum is f32.
---@param norm table of a shape, block or attention
---@param weight any
---@return any
function parameters.norm_weight(norm, weight)
    return norm.offset == 0 and weight or weight:to("f32") + norm.offset
end

local function add_layer(list, block)
    if block.parallel and (block.norms.attention ~= "before" or block.norms.mlp ~= "before") then
        error("a parallel block has one norm, before attention and MLP: norms must be { attention = \"before\", mlp = "
            .. "\"before\" }", 0)
    end
    local function add_norm(name, part, place)
        if shapes.has_norm(block, part, place) then
            list:norm(name, list.shape.emb, block.norm, "sequence")
        end
    end
    add_norm("norm", "attention", "before")
    shapes.part(block.attention).parameters(block.attention, list)
    add_norm("post_norm", "attention", "after")
    if not block.parallel then
        add_norm("mlp_norm", "mlp", "before")
    end
    shapes.part(block.mlp).parameters(block.mlp, list)
    add_norm("mlp_post_norm", "mlp", "after")
end

local function add_tables(list)
    local shape = list.shape
    -- A table that also gives the logits should keep them near 1: its rows are divided by sqrt(E), unless the logits
    -- are.
    local table_std = shape.tied and shape.logit_scale == 1 and 1 / math.sqrt(shape.emb) or 1
    local std = shape.init_std > 0 and shape.init_std or table_std
    local emb = { shape.emb, "embed_vocab" }
    list:add("embedding.weight", { { shape.vocab, "vocab" }, emb }, { std = std, use = "product" })
    if shape.positions > 0 then
        list:add("position.weight", { { shape.positions }, emb }, { std = std, use = "sequence" })
    end
end

local function add_head(list)
    local shape = list.shape
    list:norm("norm", shape.emb, shape.norm, "sequence")
    if not shape.tied then
        local std = shape.init_std > 0 and shape.init_std or 1 / math.sqrt(shape.emb)
        local dimensions = { { shape.emb, "embed_vocab" }, { shape.vocab, "vocab" } }
        list:add("unembedding.weight", dimensions, { std = std, use = "product" })
    end
end

--- All parameters of a model in the order of the forward pass.
---@param shape table of mx.models.shape
---@return table[]
function parameters.list(shape)
    local list = new_list(shape)
    add_tables(list)
    for i = 1, shape.layers do
        list.prefix = ("layer%03d."):format(i)
        add_layer(list, shapes.block(shape, i))
    end
    for k = 1, shape.mtp and shape.mtp.layers or 0 do
        list.prefix = ("layer%03d."):format(shape.layers + k)
        add_layer(list, shape.mtp.block)
        mtp.parameters(list, k)
    end
    list.prefix = ""
    add_head(list)
    local trained = masks.trained(shape.trainable)
    for _, parameter in ipairs(list) do
        parameter.frozen = not trained(parameter.name)
    end
    return list
end

local function values_of(list)
    local n = 0
    for _, parameter in ipairs(list) do
        local size = 1
        for _, s in ipairs(parameter.sizes) do
            size = size * s
        end
        n = n + size
    end
    return n
end

--- The number of parameters of a model, without listing all layers.
---@param shape table of mx.models.shape
---@return integer
function parameters.count(shape)
    local outside = new_list(shape)
    add_tables(outside)
    add_head(outside)
    for k = 1, shape.mtp and shape.mtp.layers or 0 do
        mtp.parameters(outside, k)
    end
    return values_of(outside) + shapes.sum(shape, function(block)
        local layer = new_list(shape)
        add_layer(layer, block)
        return values_of(layer)
    end)
end

return parameters
