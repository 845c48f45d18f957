--- What a device sends in a training step over each axis of a mesh, and the FLOPs that may hide it: formulas.
--
-- They follow the step of lua/mx/models and lua/mx/parallel; tests/lua/test_roofline.lua compares them with the bytes
-- of simulated steps. A collective that gathers V bytes, or scatters them, over n ranks makes each send V (n - 1) / n;
-- an all-reduce does both. For B tokens of the ranks that share them, E emb, V_p elements of a parameter that a rank
-- computes with, S tokens of a sequence, H and K heads of queries and keys, D and V features of a key and of its value,
-- and w bytes of an element:
--
--     weights of layers (fsdp, context, expert): gathered forward and again backward, gradients scattered: 3 w V_p a
--         pass; tables of tokens and positions are gathered once: 2 w V_p a pass and use of the table;
--         gathered once a step with gradient_accumulation_fsdp_ag_once: 2 w V_p. Hidden by 6 B V_p FLOPs.
--         num_vocab_tiling = n without vocab_tiling_ag_once: the weight of the logits (3 n - 2) w V_p a pass more
--     gradients (data): all-reduced once a step in grad_dtype. Hidden by 4 B V_p FLOPs
--     the residual stream, w B E (tensor, tensor_sequence): gathered before the products of a part and scattered after
--         them; backward the other way, and gathered again: 5 times a part. Once more if the policy drops the sum
--         after the products and backward reads it: the MLP's norm reads that of attention, and a norm after a part
--         its sum. The parts of a parallel block share the gathers, and without dropout the sums.
--         Stream whole on each rank (no rule activation_embed): sums all-reduced, and backward the gradients of inputs
--     rows of tokens for k experts each, w k B E (expert): exchanged before the experts and after them, and backward;
--         before the experts once more if backward computes experts again
--     in a ring of P ranks with different experts, their tokens, w P B E: gathered before the experts and scattered
--         after them, and backward the other way; gathered again if backward computes experts again
--     hidden states before the logits, embedded tokens (tensor): 4 w B E
--     keys and values, w S K (D + V) a sequence (context): gathered twice, gradients scattered. (Once without a policy,
--         but with load balance, which makes a copy.) Around a ring: sent twice, once more if backward computes
--         attention again, and gradients are f32; with a window, blocks travel only as far as it reaches
--     with ulysses, w S / n of queries, keys, values and attention's output, all heads of each: exchanged forward
--         and backward, and once more with a policy, which keeps them as they are before and after attention. With usp
--         so along context_usp_ulysses; then a rank has a part of the heads, whose keys travel along context
--     activations to the next stage: w B E / tensor, and their gradients. Layers outside the pipeline: 1 / stages of B,
--         and their gradients are all-reduced over the stages once a step
--
-- The FLOPs are those of the model; what backward computes again hides more. Left out are vectors (norms, biases), the
-- sums of split norms (8 bytes a token), the loss's numbers (12 bytes a token), choices of experts and their weights
-- (at most 12 bytes each), gradients of routers over tensor and sums over copies of heads of keys: together below 1 %
-- in models of usual sizes.
--
-- Where several axes share a collective, or an axis has a size inside and one across slices, data that cross an outer
-- axis have been scattered along the inner ones: a device sends less there, by their sizes. (Not those of an exchange,
-- an all-to-all, which has a part for each device.)

local mx = require "mx"
local quantization = require "mx.models.quantization"
local remat = require "mx.models.remat"

local collectives = {}

local LEVELS = { "ici", "dcn" } -- from the innermost

-- ---- the quantities in the formulas ----

local function product(axes, sizes)
    local n = 1
    for axis in pairs(axes) do
        n = n * sizes[axis]
    end
    return n
end

local function whole_axis(name)
    return name:match("^[^.]+") -- "tensor" for "tensor.inner"
end

-- The axes in the rules of these logical names, as a set: only those that split the batch too, or only the others.
local function axes_of(plan, names, shares_batch)
    local axes = {}
    for _, name in ipairs(names) do
        for _, part in ipairs(plan.rules[name]) do
            local axis = whole_axis(part)
            axes[axis] = (plan.shares_batch[axis] or false) == shares_batch or nil
        end
    end
    return axes
end

local function set_batch(q, cfg)
    local share = q.ranks // product(q.plan.shares_batch, q.size) -- number of devices with the same tokens
    q.S, q.passes = cfg.max_target_length, cfg.gradient_accumulation_steps
    q.tokens = cfg.per_device_batch_size * q.S * share -- B
    q.length_share, q.ring_share = product(q.length, q.size), product(q.ring, q.size)
    q.exchange_share = product(q.exchange, q.size)
    q.sequences = q.tokens * q.length_share / q.S
end

--- What one device computes and sends in a pass.
---@param cfg table config
---@param shape table of mx.models.shape
---@param plan mx.Mesh of mx.mesh.plan
---@param ici table<string, integer> axis -> size inside a slice
---@param dcn table<string, integer> axis -> size across slices
---@return table
function collectives.quantities(cfg, shape, plan, ici, dcn)
    local q = { plan = plan, shape = shape, ici = ici, dcn = dcn, size = {}, ranks = 1 }
    for _, axis in ipairs(mx.mesh.AXES) do
        q.size[axis] = ici[axis] * dcn[axis]
        q.ranks = q.ranks * q.size[axis]
    end
    q.mlp, q.heads = axes_of(plan, { "mlp" }, false), axes_of(plan, { "heads" }, false)
    q.vocab, q.stage = axes_of(plan, { "vocab" }, false), axes_of(plan, { "layers" }, false)
    q.length, q.experts = axes_of(plan, { "activation_length" }, true), axes_of(plan, { "activation_exp" }, true)
    q.ring, q.exchange = {}, {} -- as mx.parallel splits q.length
    for axis in pairs(q.length) do
        local ring = mx.parallel.split_context({ axis }, cfg.context_parallel_strategy)
        q[#ring > 0 and "ring" or "exchange"][axis] = true
    end
    q.expert_ranks, q.ring_of_experts = product(q.experts, q.size), cfg.use_ring_of_experts
    q.scatters = axes_of(plan, { "activation_norm_length", "activation_embed" }, false) -- the residual stream
    set_batch(q, cfg)
    q.width, q.weight_width = mx.dtypes[shape.dtype].bytes, mx.dtypes[shape.weight_dtype].bytes
    q.gradient_width = cfg.grad_dtype == "bfloat16" and 2 or 4
    q.gathers_once = cfg.gradient_accumulation_fsdp_ag_once and q.passes > 1
    q.loss_tiles = cfg.vocab_tiling_ag_once and 1 or cfg.num_vocab_tiling
    q.shares_update = cfg.shard_optimizer_over_data
    q.strategy = cfg.context_parallel_strategy
    local policy = remat.of(cfg)
    q.actions = type(policy) == "table" and policy or remat.policies[policy] -- nil for the policy "none"
    q.attends_again = collectives.drops(q, "context")
    q.in_two_chunks = mx.parallel.in_two_chunks(shape, cfg)
    -- Without a policy, keys that load balance has put in the order of the sequence are kept.
    q.keeps_keys = not q.actions and q.in_two_chunks
    q.tensor, q.head_parts, q.stages = product(q.mlp, q.size), product(q.heads, q.size), product(q.stage, q.size)
    if q.stages > 1 then
        q.outside, q.layers_outside = mx.parallel.layers_outside(cfg, q.stages, shape.layers)
    end
    return q
end

--- Whether backward computes a tensor again that the policy can name.
---@param q table the quantities
---@param name string
---@return boolean
function collectives.drops(q, name)
    return q.actions ~= nil and (q.actions[name] or "remat") == "remat"
end

-- ---- parameters ----

-- The collectives of parameters are rows by axes and `what`.
local function add(rows, axes, what, flops, bytes, is_exchange)
    local names = {}
    for _, axis in ipairs(mx.mesh.AXES) do
        names[#names + 1] = axes[axis] and axis or nil
    end
    local key = table.concat(names, " ") .. what
    if not rows[key] then
        rows[key] = { axes = axes, what = what, flops = 0, bytes = 0, is_exchange = is_exchange }
        rows[#rows + 1] = rows[key]
    end
    rows[key].flops, rows[key].bytes = rows[key].flops + flops, rows[key].bytes + bytes
end

local function size_of(q, axis)
    return axis:find(".", 1, true) and q.plan.layout.sizes[axis] or q.size[axis]
end

-- Whether all stages have copies of a parameter: they share out the microbatches of layers outside the pipeline.
local function is_copied(q, p)
    local layer, first = tonumber(p.name:match("^layer(%d+)%.")), q.outside == "first"
    if not q.outside then
        return false
    elseif layer then
        return first and layer <= q.layers_outside or not first and layer > q.shape.layers - q.layers_outside
    end
    local is_table = p.name == "embedding.weight"
    return is_table and (q.shape.tied or q.shape.mtp ~= nil)
        or (is_table or p.name == "position.weight") == first
end

-- How a parameter is split: the elements that a rank computes with; for each dimension that is gathered the axes and
-- the product of their sizes; the product of these; all axes that split it, as a set.
local function parts_of(q, p)
    local used, gathers, parts, split = 1, {}, 1, {}
    for d, axes in ipairs(q.plan:axes(p.logical)) do
        local gather = { axes = {}, n = 1 }
        used = used * p.sizes[d]
        for _, axis in ipairs(axes) do
            split[axis] = true
            if q.plan:keeps(p.logical[d], axis) then
                used = used / size_of(q, axis)
            else
                gather.axes[axis], gather.n = true, gather.n * q.size[axis]
            end
        end
        gathers[#gathers + 1], parts = gather.n > 1 and gather or nil, parts * gather.n
    end
    return p.name:find("^layer") and not is_copied(q, p) and used / q.stages or used, gathers, parts, split
end

-- How often a parameter is gathered in a step, and how often its gradient is scattered.
local function trips_of(q, p)
    local in_layer, is_tied = p.name:find("^layer"), p.name == "embedding.weight" and q.shape.tied
    local uses = is_tied and not q.gathers_once and 2 or 1
    local gathers = (in_layer and not q.gathers_once) and 2 or uses
    local times, is_output = q.gathers_once and 1 or q.passes,
        p.name == (q.shape.tied and "embedding.weight" or "unembedding.weight")
    return gathers * times + (is_output and q.loss_tiles > 1 and (3 * q.loss_tiles - 2) * q.passes or 0),
        p.frozen and 0 or uses * times
end

local function add_parameter(q, rows, p)
    local used, gathers, parts, split = parts_of(q, p)
    local is_looked_up = p.name == "position.weight" or p.name == "embedding.weight" and not q.shape.tied
    local tokens = q.tokens / (is_copied(q, p) and q.stages or 1)
        * (p.logical[1] == "exp" and q.expert_ranks * p.share or 1)
    local flops = is_looked_up and 0 or 2 * tokens * used * q.passes
    local sums, held = {}, used / parts
    for axis in pairs(q.plan.shares_batch) do
        sums[axis] = not split[axis] or nil
    end
    if is_copied(q, p) then
        sums.stage = true
    end
    local gathered, scattered = trips_of(q, p)
    local is_codes = #gathers == 1 and not q.gathers_once and quantization.is_product(q.shape, p.name)
    for _, gather in ipairs(gathers) do
        held = held * gather.n
        add(rows, gather.axes, "weights: all-gather forward and backward; gradients: reduce-scatter", 3 * flops,
            (gathered * (is_codes and 1 or q.width) + scattered * q.width) * held)
    end
    if p.frozen then
        return
    end
    if q.shares_update and sums.data then
        sums.data = nil
        add(rows, { data = true }, "gradients: reduce-scatter; updated weights: all-gather", 2 * flops,
            (4 + q.weight_width) * used / parts)
    end
    add(rows, sums, "gradients: all-reduce, behind the backward pass", 2 * flops,
        2 * q.gradient_width * used / parts)
end

local function add_parameters(q, rows)
    for _, p in ipairs(mx.models.parameters(q.shape)) do
        if #p.sizes > 1 then
            add_parameter(q, rows, p)
        end
    end
end

-- ---- activations ----

-- Whether the products of attention and MLP are split alike, so that their sums can travel together.
local function splits_alike(q)
    for axis in pairs(q.size) do
        if q.size[axis] > 1 and q.heads[axis] ~= q.mlp[axis] then
            return false
        end
    end
    return true
end

-- How often the residual stream travels in a layer and pass for a part: over axes that scatter it, or over others. The
-- parts of a parallel block have half of what they share each.
local function stream_trips(q, block, part, scatters)
    local name = part == block.attention and "attention" or "mlp"
    local is_read = name == "attention" and not block.parallel or mx.models.has_norm(block, name, "after")
    local again = is_read and collectives.drops(q, mx.models.part(part).saved)
    local enter, leave = scatters and 3 or 2, 2 + (again and (scatters and 1 or 2) or 0)
    if block.parallel then
        enter = enter / 2
        leave = q.shape.dropout == 0 and splits_alike(q) and leave / 2 or leave
    end
    return enter + leave
end

-- A row of a part, in `count` layers.
local function add_row(q, rows, block, part, row, count)
    local flops = count * row.flops
    if row.bytes then
        add(rows, q[row.axes], row.what, flops, count * row.bytes, row.is_exchange)
        return
    end
    for _, scatters in ipairs({ true, false }) do
        local axes = {}
        for axis in pairs(q[row.axes]) do
            axes[axis] = (q.scatters[axis] or false) == scatters or nil
        end
        add(rows, axes, row.what, flops, count * stream_trips(q, block, part, scatters) * q.tokens * q.shape.emb
            * q.width * q.passes)
    end
end

local function add_layers(q, rows)
    for _, kind in ipairs(mx.models.kinds(q.shape)) do
        for _, part in ipairs(mx.models.parts(kind.block)) do
            for _, row in ipairs(mx.models.part(part).rows(part, q, kind.block)) do
                add_row(q, rows, kind.block, part, row, kind.count / q.stages)
            end
        end
    end
end

local function add_stage(q, rows)
    local forward = mx.models.sum(q.shape, function(block)
        return mx.models.part(block.mlp).flops(block.mlp, q.shape, q.S).products
    end)
    add(rows, q.stage, "activations to the next stage: two permutes, behind the MLPs of a stage",
        3 * forward / q.stages * q.tokens / q.tensor * q.passes,
        2 * q.tokens * q.shape.emb / q.tensor * q.width * q.passes)
end

-- The hidden states are gathered before the logits, and embedded tokens are scattered; the gradients of each go the
-- other way. (Or two all-reduces, if the stream is not scattered.)
local function add_vocab(q, rows)
    add(rows, q.vocab, "embedded tokens and inputs of the logits: all-gathers and reduce-scatters",
        3 * 2 * q.tokens * q.shape.emb * q.shape.vocab / product(q.vocab, q.size) * q.passes,
        4 * q.tokens * q.shape.emb * q.width * q.passes)
end

-- ---- by axis ----

-- Divides a collective among its axes: fn(axis, level, bytes). Activations to the next stage cross every axis whole.
local function divide(q, row, fn)
    local inside = 1
    for _, level in ipairs(LEVELS) do
        for i = #mx.mesh.AXES, 1, -1 do
            local axis = mx.mesh.AXES[i]
            local n = row.axes[axis] and q[level][axis] or 1
            if n > 1 then
                fn(axis, level, row.axes == q.stage and row.bytes or row.bytes * (n - 1) / n / inside)
                inside = row.is_exchange and 1 or inside * n
            end
        end
    end
end

--- The collectives of a step by axis, those inside slices first: {axis, level ("ici" or "dcn"), size, what, bytes,
--- flops} each. Bytes are those that a device sends.
---@param cfg table config
---@param shape table of mx.models.shape
---@param plan mx.Mesh of mx.mesh.plan
---@param ici table<string, integer> axis -> size inside a slice
---@param dcn table<string, integer> axis -> size across slices
---@return table[]
function collectives.of(cfg, shape, plan, ici, dcn)
    local q, rows, lists, known = collectives.quantities(cfg, shape, plan, ici, dcn), {}, { ici = {}, dcn = {} }, {}
    add_parameters(q, rows)
    add_layers(q, rows)
    add_vocab(q, rows)
    add_stage(q, rows)
    for _, row in ipairs(rows) do
        divide(q, row, function(axis, level, bytes)
            local key = axis .. level .. row.what
            if bytes > 0 and not known[key] then
                known[key] = {
                    axis = axis, level = level, size = q[level][axis], what = row.what, bytes = 0, flops = 0,
                }
                table.insert(lists[level], known[key])
            end
            if bytes > 0 then
                known[key].bytes, known[key].flops = known[key].bytes + bytes, known[key].flops + row.flops
            end
        end)
    end
    return table.move(lists.dcn, 1, #lists.dcn, #lists.ici + 1, lists.ici)
end

return collectives
