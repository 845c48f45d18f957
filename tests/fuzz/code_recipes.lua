--- Recipes as in op_recipes.lua, for the operations on codes of 8 and 4 bits.

local random = require "random_tensors"

local pick, chance, like = random.pick, random.chance, random.like

local function float()
    return pick { "f32", "f32", "bf16" }
end

local CODES = { "i8", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz" }

-- Without a given scale: which values lie in the middle of two codes depends on the last bit of a gradient.
local function quantized()
    local shape = random.shape(math.random(3))
    local rows = 1
    for d = 1, #shape - 1 do
        rows = rows * shape[d]
    end
    local factors = { like({ rows }, "f32", "positive"), like({ shape[#shape] }, "f32", "positive") }
    local inputs = { like(shape, float()), nil, pick { factors[1], false } or nil, pick { factors[2], false } or nil }
    inputs[1].wants_grad = false
    for _, factor in ipairs(factors) do
        factor.wants_grad = false
    end
    return inputs, {
        dtype = pick(CODES), by = pick { "row", "column", "tensor" }, stochastic = pick { -1, 7 },
        cast = pick { "bf16", false } or nil,
    }
end

local function scaled()
    local m, n, k = random.size(), random.size(), random.size()
    local with = { trans_a = chance(2), trans_b = chance(2), dtype = pick { "f32", "bf16" } }
    local a, b = with.trans_a and { k, m } or { m, k }, with.trans_b and { n, k } or { k, n }
    local scales = { like({ pick { 1, m } }, "f32", "positive"), like({ pick { 1, n } }, "f32", "positive") }
    scales[1].wants_grad, scales[2].wants_grad = false, false
    return { like(a, "i8"), like(b, pick(CODES)), scales[1], scales[2] }, with
end

local function in_blocks(op)
    local run = op == "mxfp8_matmul" and 32 or 16
    local m, n, k = run * math.random(3), run * math.random(2), run * math.random(3)
    if op == "nvfp4_quantize" then
        local form = pick { {}, { square = true }, { trans = true }, { trans = true, hadamard = true },
            { stochastic = 1 }, { trans = true, square = true, stochastic = 2 } }
        return { like({ m, k }, float()), chance(2) and like({ m }, "i32", "ids") or nil }, form
    elseif op == "nvfp4_product" then
        return {
            like({ m, k // 2 }, "u8"), like({ n, k // 2 }, "u8"), like({ m, k // 16 }, "e4m3"),
            like({ n, k // 16 }, "e4m3"), like({ 1 }, "f32"), like({ 1 }, "f32"),
            chance(2) and like({ n }, float()) or nil,
        }
    end
    return { like({ m, k }, float()), like({ k, n }, float()), chance(2) and like({ n }, float()) or nil }
end

local function scaled_grouped()
    local rows, k, n, groups = pick { 51, 60 }, random.size(), random.size(), pick { 1, 3 }
    local with = { trans_a = chance(2), dtype = pick { "f32", "bf16" } }
    with.trans_b = not with.trans_a and chance(2)
    local b = with.trans_a and { rows, n } or with.trans_b and { groups, n, k } or { groups, k, n }
    local scales = {
        like({ pick { 1, with.trans_a and k or rows } }, "f32", "positive"), like({ pick { 1, n } }, "f32", "positive"),
    }
    scales[1].wants_grad, scales[2].wants_grad = false, false
    return { like({ rows, k }, "i8"), like(b, pick(CODES)), scales[1], scales[2], like({ groups }, "i32", "ids") }, with
end

return {
    quantize = quantized, scaled_matmul = scaled, scaled_grouped_matmul = scaled_grouped,
    mxfp8_matmul = in_blocks, nvfp4_quantize = in_blocks, nvfp4_product = in_blocks, nvfp4_matmul = in_blocks,
}
