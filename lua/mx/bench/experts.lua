--- Measures layers with experts: the share of a layer that is routing and moving rows, and steps of a model with
--- experts against one without whose tokens meet as many parameters.

local mx = require "mx"
local util = require "mx.util"

local experts = {}

local ROUNDS = 5

-- Median seconds of each function, measured in turn; the first round is not counted.
local function seconds(fns)
    local times = {}
    for round = 0, ROUNDS do
        for i, fn in ipairs(fns) do
            local step <close> = mx.step()
            local start = mx.now()
            fn()
            times[i] = times[i] or {}
            times[i][round] = mx.now() - start
            assert(step)
        end
    end
    for i, list in ipairs(times) do
        times[i] = util.quantile(list, 0.5)
    end
    return times
end

-- ---- a layer of qwen3-30b-a3b ----

local TOKENS, LAYER = 2048, {
    "model_name=qwen3-30b-a3b", "base_num_decoder_layers=1", "vocab_size=256", "max_target_length=2048",
    "per_device_batch_size=1", "load_balance_loss_weight=0.01",
}

-- The layer's part with experts, forward and backward; and the same without products: its rows go to experts that
-- return them.
local function layer_functions()
    local config = mx.config.load(LAYER)
    local model = mx.models.new(config)
    local part, weights = model.shape.blocks[1].mlp, {}
    for name, t in pairs(model.params) do
        weights[name:match("^layer001%.(.*)$") or name] = t
    end
    local function input(seed)
        return mx.randn { shape = { 1, TOKENS, model.shape.emb }, dtype = "bf16", seed = seed }:keep()
    end
    local h, dy, logits = input(1):requires_grad(), input(2), mx.randn { 1, TOKENS, part.experts, seed = 3 }
    logits:keep():requires_grad()
    return {
        function()
            local y, extra = mx.models.part(part).forward(model, 1, part, weights, h, { pass = 1 })
            mx.backward({ y, extra }, { dy, 1 })
        end,
        function()
            local o = { top = part.top, score = part.router.score, normalize = part.router.normalize }
            local shares, chosen = mx.moe_route(logits, o)
            local extra = model.routing:observe(1, part, logits, chosen, 0)
            local order, place = mx.moe_sort(chosen, { experts = part.experts })
            local y = mx.moe_combine(mx.moe_gather(h, order, place), order, place, shares)
            mx.backward({ y, extra }, { dy, 1 })
        end,
    }, part
end

local function report_layer(log)
    local fns, part = layer_functions()
    local s = seconds(fns)
    print(("\nA layer of %d experts of %d, %d for each of %d tokens, forward and backward: %.3g s;\nrouting, sorting, "
        .. "gathering and combining %.3g s: %.1f %%"):format(part.experts, part.width, part.top, TOKENS, s[1], s[2],
        100 * s[2] / s[1]))
    if log then
        log:row { kernel = "moe layer", threads = mx.threads(), seconds = s[1], routing_s = s[2] }
    end
end

-- ---- a step of a model of GPT-2's sizes ----

-- Two layers, and a vocabulary that is as small against twelve.
local GPT2 = {
    "base_emb_dim=768", "base_num_query_heads=12", "base_num_kv_heads=12", "head_dim=64", "base_num_decoder_layers=2",
    "vocab_size=8384", "max_target_length=1024", "per_device_batch_size=4", "mlp_activations=[gelu]",
    "base_mlp_dim=3072", "remat_policy=none",
}

local function step_of(...)
    local words = table.move(GPT2, 1, #GPT2, 1, {})
    local config = mx.config.load(table.move({ ... }, 1, select("#", ...), #words + 1, words))
    local model, data = mx.models.new(config), mx.data.open(config)
    local optimizer = mx.optim.new(config, model.params)
    return function()
        mx.train.gradients(model, data, 1)
        optimizer:step()
    end, config.per_device_batch_size * config.max_target_length
end

local function report_steps(log)
    local with, tokens = step_of("num_experts=8", "num_experts_per_tok=2", "base_moe_mlp_dim=1536",
        "load_balance_loss_weight=0.01")
    local s = seconds { with, (step_of()) }
    print(("\nA step of a model of GPT-2's sizes (2 layers) with 8 experts of 1536, 2 for each token: %.0f tokens/s;\n"
        .. "with MLPs of 3072 instead: %.0f tokens/s. That is %.1f %%"):format(tokens / s[1], tokens / s[2],
        100 * s[2] / s[1]))
    if log then
        log:row { kernel = "moe step", threads = mx.threads(), tokens_per_s = tokens / s[1], of_dense = s[2] / s[1] }
    end
end

--- Prints the figures for the current number of threads. Only for one rank.
---@param log? table metrics of mx.outputs
function experts.run(log)
    report_layer(log)
    mx.trim()
    report_steps(log)
    mx.trim()
end

return experts
