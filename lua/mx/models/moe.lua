--- Experts instead of one MLP: a router sends each token to a few of them, and their results are added up, weighted.
--
-- B sequences of S tokens, E emb, n experts of M features, k experts for each token. Slots are the B S k choices of the
-- tokens. Rows are slots in the order of their experts, so that the products of all experts are one grouped product.
-- The results of a step's routing, and losses that keep it balanced, are in routing.lua.

local blocks = require "mx.models.blocks"
local mx = require "mx"
local collectives = require "mx.sim.collectives"
local mlp = require "mx.models.mlp"
local placed = require "mx.parallel.experts"
local quantization = require "mx.models.quantization"
local shapes = require "mx.models.shape"
local util = require "mx.util"

local moe = {
    products = mlp.products, saved = mlp.saved,
    output = "experts", -- biases of experts are added to each one's rows
    tensors = mlp.tensors,
}

local SCORES = { [""] = "topk_softmax", softmax = "softmax_topk", sigmoid = "sigmoid" }

--- The experts of a config's layers, as a part of a block.
---@param c table
---@param factor table factors that follow from global_parameter_scale
---@return table
function moe.of(c, factor)
    local width = c.base_moe_mlp_dim > 0 and c.base_moe_mlp_dim or c.base_mlp_dim
    local activation, limit = mlp.activation(c)
    local trained_bias = c.routed_bias and blocks.KINDS[c.decoder_block].router_bias or false
    return {
        kind = "moe",
        width = width * factor.heads, -- of one expert
        activation = activation,
        limit = limit,
        gated = #c.mlp_activations == 2,
        bias = c.mlp_bias, -- of the experts
        experts = c.num_experts,
        top = c.num_experts_per_tok, -- experts of each token
        shared = c.shared_experts, -- experts that get all tokens
        capacity = math.max(c.capacity_factor, 0), -- most slots of an expert over its even share; 0: no limit
        router = {
            score = c.use_random_routing and "random" or SCORES[c.routed_score_func],
            normalize = c.norm_topk_prob or c.routed_score_func == "sigmoid",
            scale = c.routed_scaling_factor,
            groups = math.max(c.n_routing_groups, 1),
            top_groups = c.n_routing_groups > 1 and c.topk_routing_group or 1,
            group_score = c.routing_group_score,
            trained_bias = trained_bias, -- a parameter that is added to the logits
            bias = c.routed_bias and not trained_bias, -- a buffer that is added to the scores for the choice
            bias_rate = c.routed_bias_update_rate,
            f32 = c.float32_gate_logits,
            input_scaled = blocks.KINDS[c.decoder_block].input_scaled or nil, -- see `scaled`
        },
        buffer = math.max(c.ragged_buffer_factor, 0), -- rows of a buffer over its even share; 0: those that are needed
        chunks = c.num_moe_token_chunks, -- of the tokens whose rows travel to other ranks
        imbalance = c.simulated_expert_imbalance, -- of the rows of a simulated chip, over its even share
        load_balance = c.load_balance_loss_weight, -- weights of losses
        router_z = c.router_z_loss_weight,
    }
end

-- The shared experts: one MLP as wide as all of them.
local function shared_part(part)
    return {
        kind = "mlp", prefix = "shared.", width = part.shared * part.width, activation = part.activation,
        limit = part.limit,
        gated = part.gated,
    }
end

--- Adds its parameters.
---@param part table
---@param list mx.ParameterList
function moe.parameters(part, list)
    local M, o = { part.width, "mlp_moe" }, {
        each = part.experts, share = part.top / part.experts, embed = "embed_moe", bias = part.bias,
    }
    list:from_stream("router", { part.experts }, {
        embed = "embed_router", use = "router", exact = part.router.f32, bias = part.router.trained_bias,
    })
    for _, name in ipairs(part.gated and { "wi_0", "wi_1" } or { "wi" }) do
        list:from_stream("experts." .. name, M, o)
    end
    list:to_stream("experts.wo", M, o)
    if part.shared > 0 then
        local prefix, shared = list.prefix, shared_part(part)
        list.prefix = prefix .. shared.prefix
        mlp.parameters(shared, list)
        list.prefix = prefix
    end
end

--- The name of the buffer that layer i adds to its experts' scores.
---@param i integer
---@return string
function moe.bias_name(i)
    return ("layer%03d.router.bias"):format(i)
end

-- Logits of the router: (B, S, n) f32.
local function logits_of(part, weights, h)
    local weight = weights["router.weight"]
    if part.router.f32 then
        h, weight = h:to("f32"), weight:to("f32")
    end
    return mx.matmul(h, weight, weights["router.bias"], { dtype = "f32" })
end

-- Chooses experts: logits (B, S, n) -> weights f32 and experts i32 (B, S, k).
local function route(model, i, part, logits, run)
    local router = part.router
    local o = {
        top = part.top, score = router.score, normalize = router.normalize, scale = router.scale,
        groups = router.groups, top_groups = router.top_groups, group_score = router.group_score,
    }
    if router.score == "random" then -- differs between layers, passes, ranks with other tokens and microbatches
        o.seed = util.seed("routing" .. i, model.shape.seed)
        o.offset = ((run.pass or 0) * model.parts + model.part) << 24 | (run.row or 0)
    end
    return mx.moe_route(logits, router.bias and model.buffers[moe.bias_name(i)] or nil, o)
end

-- The tokens h (B, S, E) times the sigmoid of the logit of their only expert, in f32: what the expert gets.
local function scaled(h, logits, experts)
    local shares = mx.sigmoid(mx.gather(logits, experts, { dim = 3 })) -- (B, S, 1)
    return (h:to("f32") * shares):to(h:dtype())
end

--- Most slots of an expert in a sequence of S tokens, as MaxText counts them; 0: no limit. Generation has none, because
--- it sees a sequence piece by piece.
---@param part table
---@param S integer
---@param run table of Decoder:hidden
---@return integer
function moe.capacity(part, S, run)
    if part.capacity == 0 or run.cache then
        return 0
    end
    return math.max(1, math.floor(math.ceil(S * part.top / part.experts) * part.capacity))
end

-- Whether this is the simulation of a pod that moves tokens by products with masks. Its experts compute all slots of
-- their capacity, with or without a token.
local function has_masks(capacity)
    return capacity > 0 and mx.is_simulated() and mx.sim.now ~= nil and mx.sim.now.expert_masks == true
end

-- The most rows that `count` experts get of the slots of so many sequences.
local function most_rows(slots, sequences, count, capacity)
    if capacity == 0 then
        return slots
    end
    local all = sequences * count * capacity
    return has_masks(capacity) and all or math.min(slots, all)
end

-- The rows of a buffer for experts whose even share is `share` rows, and that get at most `most`. `needed` reads from
-- the choices how many rows they get. That is rounded up to a sixteenth of the share, so that buffers of the same sizes
-- come back. A simulated pod has no choices, and a declared imbalance.
local function buffer_rows(part, share, most, capacity, needed)
    if has_masks(capacity) then
        return most
    elseif part.buffer > 0 then
        return math.min(most, math.ceil(share * part.buffer))
    elseif mx.is_simulated() then
        return math.min(most, math.ceil(share * part.imbalance))
    end
    local unit = math.max(1, math.ceil(share / 16))
    return math.min(most, math.ceil(mx.scope(needed) / unit) * unit)
end

-- The results for rows x (rows, E), of which each expert has counts (experts). `products`: of rows with weights.
local function multiply(part, products, x, counts)
    local into = products(x, counts)
    local function product(name, saved)
        return mx.name(into("experts." .. name), saved)
    end
    local inner -- (rows, M)
    if part.gated then
        inner = mx.gated(product("wi_0", "mlpwi_0"), product("wi_1", "mlpwi_1"), {
            activation = part.activation, limit = part.limit,
        })
    else
        inner = mx[part.activation](product("wi", "mlpwi"))
    end
    return products(inner, counts)("experts.wo")
end

-- The results of this rank's experts for tokens h (B, S, E), added up by the tokens' weights: (B, S, E).
local function compute(model, part, products, h, shares, experts, capacity)
    local first, count = model.parallel:own_experts(part)
    local sequences = h:size(1)
    local sort = { experts = part.experts, first = first, count = count, capacity = capacity, sequences = sequences }
    sort.rows = most_rows(experts:numel(), sequences, count, capacity)
    if count < part.experts then
        sort.rows = buffer_rows(part, experts:numel() * count / part.experts, sort.rows, capacity, function()
            local loads = mx.moe_count(experts, { experts = part.experts, sequences = sequences })
            loads = mx.narrow(loads, { dim = 2, start = first + 1, length = count })
            return (capacity > 0 and mx.minimum(loads, capacity) or loads):sum():item()
        end)
    end
    local order, place, counts = mx.moe_sort(experts, sort)
    local y = multiply(part, products, mx.moe_gather(h, order, place), counts)
    return mx.moe_combine(y, order, place, shares)
end

-- Where the rows of tokens go whose choices are experts (B, S, k): to the experts of all ranks.
local function sort_for_ranks(model, part, experts, capacity)
    local parallel, slots, sequences = model.parallel, experts:numel(), experts:size(1)
    local first, count = parallel:own_experts(part)
    local sort = { experts = part.experts, capacity = capacity, sequences = sequences }
    sort.rows = most_rows(slots, sequences, part.experts, capacity)
    local order, place, counts = mx.moe_sort(experts, sort)
    local of_ranks = parallel:rows_of_ranks(counts)
    local ranks, own = of_ranks:size(1), mx.narrow(of_ranks, { dim = 2, start = first + 1, length = count })
    local received = buffer_rows(part, ranks * slots * count / part.experts,
        ranks * most_rows(slots, sequences, count, capacity), capacity, function() return own:sum():item() end)
    return {
        order = order, place = place, of_ranks = of_ranks, sent = sort.rows, received = received,
        counts = own:sum { dim = 1 },
    }
end

-- Part i of n of tokens (B, S, ...): of the sequences if a capacity counts their tokens, else of all tokens, as one
-- sequence.
local function chunk(t, i, n, capacity)
    if n == 1 then
        return t
    end
    local B, S = t:size(1), t:size(2)
    t = capacity > 0 and t or t:view(1, B * S, t:size(3))
    local dim = capacity > 0 and 1 or 2
    local length, first = util.part(t:size(dim), n, i - 1)
    return mx.narrow(t, { dim = dim, start = first, length = length })
end

-- Rows y (rows, E), each times its weight: (rows, E).
local function weighted(y, weights)
    local each = mx.arange { n = y:size(1), dtype = "i32" }
    return mx.moe_combine(y, each, each:view(y:size(1), 1), weights)
end

-- The results of experts on all ranks, to which the rows of this rank's tokens travel with their weights: in chunks, so
-- that the rows of one chunk travel while those of another are computed. Results are weighted before they travel back,
-- so that backward needs them at the experts only. shares = nil: there are no weights. `meanwhile` is called when the
-- first rows are on their way. No collective is called in between, because it would wait for the rows.
local function compute_elsewhere(model, part, products, h, shares, experts, capacity, meanwhile)
    local parallel, n = model.parallel, math.min(part.chunks, capacity > 0 and h:size(1) or h:size(1) * h:size(2))
    local chunks, results = {}, {}
    for i = 1, n do
        chunks[i] = sort_for_ranks(model, part, chunk(experts, i, n, capacity), capacity)
    end
    local function send(i)
        local c, slots = chunks[i], chunks[i].place:numel()
        local rows, weights = mx.moe_gather(chunk(h, i, n, capacity), c.order, c.place), nil
        if shares then
            weights = mx.moe_gather(chunk(shares, i, n, capacity):view(slots, 1), c.order, c.place:view(slots, 1))
        end
        c.rows = parallel:send_rows(rows, c.of_ranks, c.received)
        c.weights = weights and parallel:send_rows(weights, c.of_ranks, c.received)
    end
    send(1)
    local y = meanwhile()
    for i, c in ipairs(chunks) do
        if i < n then
            send(i + 1)
        end
        local found = multiply(part, products, c.rows, c.counts)
        found = c.weights and weighted(found, c.weights) or found
        c.results = parallel:send_rows(found, c.of_ranks, c.sent, true)
    end
    for i, c in ipairs(chunks) do
        results[i] = mx.moe_combine(c.results, c.order, c.place)
    end
    local sum = n == 1 and results[1] or mx.concat(results, { dim = capacity > 0 and 1 or 2 }):view(h:size())
    return y and sum + y or sum
end

--- The experts with a layer's weights: h (B, S, E) -> (B, S, E), before the sum over a mesh. In a training pass also
--- counts the choices, and returns the layer's share of the losses that keep the routing balanced.
---@param model mx.Decoder
---@param i integer number of the layer
---@param part table
---@param weights table<string, any>
---@param h any
---@param run table of Decoder:hidden
---@return any
---@return any? extra loss, f32 of one element; nil if there is none
function moe.forward(model, i, part, weights, h, run)
    mx.place(("layer %d, router"):format(i))
    local logits = logits_of(part, weights, h)
    local shares, experts = route(model, i, part, logits, run)
    local capacity = moe.capacity(part, h:size(2), run)
    local extra = run.pass and model.routing:observe(i, part, logits, experts, capacity)
    mx.place(("layer %d, experts"):format(i))
    local function products(x, counts)
        local product = quantization.products(model, i, weights, x, run, counts)
        return function(name)
            local bias = weights[name .. ".bias"]
            return product(name, bias and name == "experts.wo" and model.parallel:share_of_sum(bias) or bias)
        end
    end
    local parallel, x = model.parallel, h
    if part.router.input_scaled then
        x, shares = scaled(h, logits, experts), nil
    end
    local function shared()
        return part.shared > 0 and mlp.forward(model, i, shared_part(part), weights, h, run) or nil
    end
    if parallel:sends_rows(part) then
        return compute_elsewhere(model, part, products, x, shares, experts, capacity, shared), extra
    end
    local tokens = parallel:gather_tokens(x, true)
    shares, experts = shares and parallel:gather_tokens(shares), parallel:gather_tokens(experts)
    local y = parallel:scatter_tokens(compute(model, part, products, tokens, shares, experts, capacity))
    local of_shared = shared()
    return of_shared and y + of_shared or y, extra
end

--- FLOPs of a forward pass. `products`: products with weights, per token: the router's, and those of the experts that a
--- token gets. Rows that a capacity drops count, as in MaxText. `idle`: twice the parameters of the other experts.
---@param part table
---@param shape table
---@return {products: number, idle: number}
function moe.flops(part, shape)
    local M, inputs = part.width, part.gated and 2 or 1
    local expert, biases = 2 * shape.emb * M * (inputs + 1), part.bias and inputs * M + shape.emb or 0
    return {
        products = 2 * shape.emb * part.experts + (part.top + part.shared) * expert,
        idle = (part.experts - part.top) * (expert + 2 * biases),
    }
end

--- The collectives of a device in a step and layer, as rows of mx/sim/collectives.lua.
---@param part table
---@param q table the quantities of that file
---@param block table of the part
---@return table[]
function moe.rows(part, q, block)
    local flops = 3 * moe.flops(part, q.shape).products / q.tensor * q.tokens * q.passes
    local again = shapes.has_norm(block, "mlp", "after") and collectives.drops(q, moe.saved)
    local travel, trips = { axes = "experts", flops = flops }, 4 + (q.actions and 1 or 0) + (again and 1 or 0)
    if placed.are_rows_sent(part, q.expert_ranks, q.ring_of_experts) then
        travel.what, travel.is_exchange = "tokens to their experts and back: all-to-alls", true
        travel.bytes = trips * q.width * q.tokens * part.top * q.shape.emb * q.passes
    else
        travel.what = "tokens to the experts and back: all-gathers and reduce-scatters"
        travel.bytes = trips * q.width * q.tokens * q.expert_ranks * q.shape.emb * q.passes
    end
    return {
        {
            axes = "mlp", what = "inputs and output of the experts: all-gathers and reduce-scatters", flops = flops,
        },
        travel,
    }
end

return moe
