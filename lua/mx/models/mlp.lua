--- The MLP of a block: a product into M features, an activation, with a gate or without, and a product back.

local blocks = require "mx.models.blocks"
local mx = require "mx"
local quantization = require "mx.models.quantization"

local mlp = {
    products = "mlp", -- the kind of its products on a mesh: see mx.Parallel:enter
    output = "wo", -- its last product, whose bias is added after the sum over a mesh
    saved = "mlpwo", -- the name of its result for a policy
}

--- The activation of a config's MLPs or experts, and the limit of clamped ones.
---@param c table
---@return string, number?
function mlp.activation(c)
    local clamped = c.mlp_activations[1] == "sigmoid"
    return clamped and blocks.KINDS[c.decoder_block].activation or c.mlp_activations[1],
        clamped and c.mlp_activations_limit or nil
end

--- The MLP of a config's layers, as a part of a block.
---@param c table
---@param factor table factors that follow from global_parameter_scale
---@return table
function mlp.of(c, factor)
    local activation, limit = mlp.activation(c)
    return {
        kind = "mlp",
        width = c.base_mlp_dim * factor.heads,
        activation = activation,
        limit = limit,
        gated = #c.mlp_activations == 2,
        bias = c.use_bias,
    }
end

--- Adds its parameters.
---@param part table
---@param list mx.ParameterList
function mlp.parameters(part, list)
    local M = { part.width, "mlp" }
    for _, name in ipairs(part.gated and { "wi_0", "wi_1" } or { "wi" }) do
        list:from_stream(name, M, { bias = part.bias })
    end
    list:to_stream("wo", M, { bias = part.bias })
end

--- The MLP with a layer's weights: h (B, S, E) -> (B, S, E), through (B, S, M), before the sum over a mesh and the
--- bias.
---@param model mx.Decoder
---@param i integer the layer
---@param part table
---@param weights table<string, any>
---@param h any
---@param run? table of mx.Decoder:hidden
---@return any
function mlp.forward(model, i, part, weights, h, run)
    local prefix = part.prefix or "" -- of its weights' names
    local multiply = quantization.products(model, i, weights, h, run)
    local function product(name, saved)
        return mx.name(multiply(prefix .. name, weights[prefix .. name .. ".bias"]), saved)
    end
    local inner
    if part.gated then
        local gate, up = product("wi_0", "mlpwi_0"), product("wi_1", "mlpwi_1")
        inner = mx.gated(gate, up, { activation = part.activation, limit = part.limit })
    else
        inner = mx[part.activation](product("wi", "mlpwi"))
    end
    return quantization.products(model, i, weights, inner, run)(prefix .. "wo")
end

--- The names that a policy may keep.
---@param part table
---@return string[]
function mlp.tensors(part)
    return part.gated and { "mlpwi_0", "mlpwi_1", "mlpwo" } or { "mlpwi", "mlpwo" }
end

--- FLOPs of a forward pass. `products`: products with weights, per token.
---@param part table
---@param shape table
---@return {products: number}
function mlp.flops(part, shape)
    return { products = 2 * shape.emb * part.width * (part.gated and 3 or 2) }
end

--- The collectives of a device in a step and layer, as rows of mx/sim/collectives.lua.
---@param part table
---@param q table the quantities of that file
---@return table[]
function mlp.rows(part, q)
    return {
        {
            axes = "mlp", what = "inputs and output of the MLP: all-gathers and reduce-scatters",
            flops = 3 * mlp.flops(part, q.shape).products / q.tensor * q.tokens * q.passes,
        },
    }
end

return mlp
