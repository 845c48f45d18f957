--- Weights that stay codes of one byte, as a GGUF file of Q8_0 has them: {codes = (outputs, inputs) i8, scale =
--- (outputs, inputs / 32) f32}, with a scale for each 32 neighbours; those of experts have their number in front.
--- Generation computes with them; training does not.

local mx = require "mx"
local util = require "mx.util"

local codes = {}

codes.BLOCK = 32 -- neighbours that share a scale

---@param x any (..., inputs)
---@param weight {codes: any, scale: any}
---@param bias any (outputs), or nil
---@param dtype string of the result
---@param counts? any with experts, and without a bias: x is (rows, inputs), and each expert has so many rows
---@return any (..., outputs)
function codes.product(x, weight, bias, dtype, counts)
    if counts then
        return mx.scaled_grouped_matmul(x, weight.codes, nil, weight.scale, counts, { trans_b = true, dtype = dtype })
    end
    return mx.scaled_matmul(x, weight.codes, nil, weight.scale, bias, { trans_b = true, dtype = dtype })
end

--- The rows of a table of tokens.
---@param weight {codes: any, scale: any} (V, E)
---@param ids any (B, S) i32
---@param dtype string of the result
---@return any (B, S, E)
function codes.rows(weight, ids, dtype)
    local E = weight.codes:size(2)
    local rows = mx.index_select(weight.codes, ids):view(ids:numel() * E // codes.BLOCK, codes.BLOCK)
    local scales = mx.index_select(weight.scale, ids):view(rows:size(1), 1)
    return (rows:to("f32") * scales):to(dtype):view(ids:size(1), ids:size(2), E)
end

--- Refuses what needs weights that are real.
---@param model mx.Decoder
---@param what string for the message: "training"
function codes.refuse(model, what)
    if model.codes then
        util.refuse("%s needs weights in bfloat16 or float32, and those of this model stay codes of Q8_0, which only "
            .. "generation computes with: load it without keep_codes", what)
    end
end

return codes
