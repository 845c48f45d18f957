--- A decoder whose layers differ in all that a block says: windows, RoPE, heads, norms and MLPs. For tests.

local mx = require "mx"
local util = require "mx.util"

local mixed = {}

--- The shape of a config of four layers with a block for each.
---@param config table
---@return table
function mixed.shape(config)
    local shape = mx.models.by_layer(mx.models.shape(config))
    assert(shape.layers == 4)
    local blocks = shape.blocks
    for i, block in ipairs(blocks) do
        if i % 2 == 1 then -- a window, gelu without a gate, a narrower MLP
            block.attention.window = 5
            block.mlp.activation, block.mlp.gated, block.mlp.width = "gelu", false, 96
        end
    end
    blocks[2].attention.rope.theta = 500.0
    blocks[3].attention.rope = { frequencies = { 1, 0.5, 0.3, 0.2, 0.1, 0.05, 0.01, 0.001 } } -- of 16 components
    blocks[2].norm = { kind = "layernorm", eps = 1e-5, bias = true, offset = 1 }
    blocks[2].norms = { attention = "both", mlp = "after" }
    local attention, mlp = blocks[4].attention, blocks[4].mlp
    blocks[4].parallel = true
    attention.rope, attention.kv_heads, attention.head_dim, attention.scale = false, 4, 8, 0.5
    attention.cap, attention.qkv_bias = 3.0, true
    attention.qk_norm = { kind = "rmsnorm", eps = 1e-5, bias = false, offset = 0, whole = false }
    blocks[3].attention.qk_norm = { kind = "rmsnorm", eps = 1e-4, bias = false, offset = 1, whole = true }
    mlp.activation, mlp.bias = "relu", true
    return shape
end

--- Fills all parameters with numbers that depend on their names alone; norms and biases, too, which begin as 1 and 0.
---@param model mx.Decoder of one rank
function mixed.fill(model)
    for _, p in ipairs(mx.models.parameters(model.shape)) do
        local base = p.value or 0
        mx.scope(function()
            local values = mx.randn { shape = p.sizes, std = p.std or 0.2, seed = util.seed(p.name, 1) >> 11 }
            mx.copy(model.params[p.name], values + base)
        end)
    end
end

return mixed
