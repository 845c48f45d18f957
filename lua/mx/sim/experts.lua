--- What layers with experts cost a simulated chip: rows of an expert, buffers, gathered weights and tokens.

local collectives = require "mx.sim.collectives"
local mx = require "mx"
local placed = require "mx.parallel.experts"
local quantization = require "mx.models.quantization"
local util = require "mx.util"

local experts = {}

-- The first part with experts of a model; nil if no layer has any.
local function part_of(shape)
    for _, kind in ipairs(mx.models.kinds(shape)) do
        if kind.block.mlp.experts then
            return kind.block.mlp
        end
    end
end

-- Whether ranks with other tokens have parts of an expert's weights, so that they are gathered.
local function are_gathered(plan)
    for _, axes in ipairs(plan:axes({ "exp", "embed_moe", "mlp_moe" })) do
        for _, axis in ipairs(axes) do
            local is_kept = not plan.shares_batch[axis] or util.contains(plan.rules.activation_exp, axis)
            if not is_kept and plan:size(axis) > 1 then
                return true
            end
        end
    end
    return false
end

--- The figures of a layer with experts on one device, the first of the model; nil if no layer has any.
---@param cfg table config
---@param shape table of mx.models.shape
---@param plan mx.Mesh of mx.mesh.plan
---@return table? part, count (of experts that the device computes), ranks (that have different experts), rows (of
---        these experts in a pass), rows_each (of one of them), features (of an expert, on this device), buffer_bytes
---        (inputs, inner features and results of the rows), weight_bytes (of the experts, gathered; 0: none are),
---        sends_rows (to other ranks; else they gather tokens), token_bytes (of the rows that the device sends, or of
---        all ranks' tokens, gathered; 0: none travel)
function experts.of(cfg, shape, plan)
    local part = part_of(shape)
    if not part then
        return nil
    end
    local q = collectives.quantities(cfg, shape, plan, plan.layout.ici, plan.layout.dcn)
    local ranks, products = q.expert_ranks, part.gated and 3 or 2
    local count = util.part(part.experts, ranks, 0)
    local imbalance = ranks > 1 and (part.buffer > 0 and part.buffer or part.imbalance) or 1
    local sends_rows = placed.are_rows_sent(part, ranks, q.ring_of_experts)
    local rows = math.ceil(q.tokens * ranks * part.top * count / part.experts * imbalance)
    if part.capacity > 0 then
        local each = mx.models.part(part).capacity(part, cfg.max_target_length, {})
        local all = math.floor(q.sequences * ranks * count * each)
        rows = mx.sim.has_expert_masks(cfg) and all or math.min(rows, all)
    end
    local width = part.width / q.tensor
    local weight = quantization.is_product(shape, "layer1.experts.wo.weight") and 1 or q.width
    return {
        part = part, count = count, ranks = ranks, rows = rows, rows_each = rows / count, features = width,
        buffer_bytes = rows * (2 * shape.emb + products * width) * q.width,
        weight_bytes = are_gathered(plan) and count * products * shape.emb * width * weight or 0,
        sends_rows = sends_rows,
        token_bytes = ranks > 1 and q.tokens * (sends_rows and part.top or ranks) * shape.emb * q.width or 0,
    }
end

--- The least rows of an expert with which a product into its features is compute-bound: rows m of E features times a
--- matrix (E, M) are 2 m E M FLOPs on w (m E + E M + m M) bytes. nil: no number of rows is enough.
---@param shape table of mx.models.shape
---@param features integer M
---@param needed number FLOPs / byte of the memory
---@return integer?
function experts.least_rows(shape, features, needed)
    local E, width = shape.emb, mx.dtypes[shape.dtype].bytes
    local gain = 2 * E * features - needed * width * (E + features)
    return gain > 0 and math.ceil(needed * width * E * features / gain) or nil
end

--- What products of experts need, as a sentence of a roofline; nil for a model without experts.
---@param cfg table config
---@param shape table of mx.models.shape
---@param plan mx.Mesh of mx.mesh.plan
---@param needed number FLOPs / byte of the memory
---@return string?
function experts.advice(cfg, shape, plan, needed)
    local e = experts.of(cfg, shape, plan)
    if not e then
        return nil
    end
    local least = experts.least_rows(shape, e.features, needed)
    if not least then
        return ("Products of experts of width %s are bound by memory with any number of rows."):format(
            util.thousands(e.features))
    end
    return ("Products of experts need at least %s rows of each expert to be compute-bound; here are %s%s."):format(
        util.thousands(least), util.thousands(e.rows_each), e.rows_each < least and ", too few" or "")
end

--- The figures as lines of a plan; none for a model without experts.
---@param cfg table config
---@param shape table of mx.models.shape
---@param plan mx.Mesh of mx.mesh.plan
---@return string[]
function experts.lines(cfg, shape, plan)
    local e = experts.of(cfg, shape, plan)
    if not e then
        return {}
    end
    local lines = {
        ("experts of a layer: %d of width %s, %d for each token"):format(e.part.experts, util.thousands(e.part.width),
            e.part.top),
        ("  %-34s %11s%s"):format("rows of an expert in a pass", util.thousands(e.rows_each),
            e.ranks > 1 and e.part.imbalance > 1 and ("  %.3g times the even share"):format(e.part.imbalance) or ""),
        ("  %-34s %11s  %s rows"):format("their inputs, features, results", util.bytes(e.buffer_bytes),
            util.thousands(e.rows)),
    }
    lines[#lines + 1] = e.weight_bytes > 0 and ("  %-34s %11s  of %d experts"):format("gathered weights",
        util.bytes(e.weight_bytes), e.count) or nil
    local sent = e.sends_rows and { "sent rows", "to" } or { "gathered tokens", "of" }
    lines[#lines + 1] = e.token_bytes > 0 and ("  %-34s %11s  %s %d chips"):format(sent[1], util.bytes(e.token_bytes),
        sent[2], e.ranks) or nil
    return lines
end

return experts
