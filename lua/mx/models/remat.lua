--- Rematerialisation policies: decide how the named tensors of a layer are kept for the backward pass.
--
-- "device" keeps a tensor in memory. "offload" moves its values to a file and fetches them ahead of use. "remat" drops
-- them, and they are computed again, like all tensors without a name. A layer's input is always kept or offloaded. A
-- tensor that the backward pass does not read is never kept, whatever the policy says, as in JAX: mlpwo and out_proj of
-- blocks that only add them to the residual stream. The named policies and the keys of `custom` are MaxText's.

local core = require "mx.core"

local remat = {}

--- The tensors that policies can name: a layer's input; queries, keys and values after RoPE; attention's output; its
--- projection; the gate and up products of a gated MLP before the activation, or the single product of a plain MLP; the
--- MLP's output; with latent attention, the latent of queries before and after its norm, and that of keys and values
--- (before its norm together with the keys' part for RoPE). A part's tensors() lists those that it has.
remat.TENSORS = {
    "decoder_layer_input", "query_proj", "key_proj", "value_proj", "context", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwi",
    "mlpwo", "query_wa_proj", "mla_q", "kv_wa_proj", "mla_kv",
}

--- The tensors that even "none" computes again: the codes of products. They follow from weights and from values that
--- other gradients read, by norms, activations and quantizing, without a product.
remat.AGAIN = { "codes" }

local QKV = { "query_proj", "key_proj", "value_proj" }
local MLP_IN = { "mlpwi", "mlpwi_0", "mlpwi_1" }

-- Each tensor of the lists -> action.
local function all(action, ...)
    local actions = {}
    for _, list in ipairs({ ... }) do
        for _, name in ipairs(list) do
            actions[name] = action
        end
    end
    return actions
end

--- Policy -> tensor -> action; other tensors are computed again.
remat.policies = {
    minimal_with_context = all("device", QKV, { "context", "out_proj", "mlpwo" }, MLP_IN),
    minimal = all("device", QKV, { "out_proj", "mlpwo" }, MLP_IN),
    save_dot_with_context_except_mlp = all("device", QKV, { "context", "out_proj" }),
    save_dot_except_mlpwi = all("device", QKV, { "out_proj", "mlpwo" }),
    save_dot_except_mlp = all("device", QKV, { "out_proj" }),
    save_qkv_proj = all("device", QKV),
    qkv_proj_offloaded = all("offload", QKV),
    minimal_offloaded = all("offload", QKV, { "out_proj", "mlpwo" }, MLP_IN),
    save_out_proj = all("device", { "out_proj" }),
    full = {},
}

--- The values of the config key remat_policy, from most memory and least work to least memory and most work.
remat.CHOICES = {
    "none", "minimal_with_context", "minimal", "save_dot_with_context_except_mlp", "save_dot_except_mlpwi",
    "save_dot_except_mlp", "save_qkv_proj", "qkv_proj_offloaded", "custom", "minimal_offloaded", "save_out_proj",
    "full",
}

--- The policy of a config, for remat.run: a name, or with `custom` tensor -> action.
---@param c table
---@return string|table<string, string>
function remat.of(c)
    if c.remat_policy ~= "custom" then
        return c.remat_policy
    end
    local actions = {}
    for _, name in ipairs(remat.TENSORS) do
        actions[name] = c[name]
    end
    return actions
end

--- Whether a policy offloads anything.
---@param policy string|table<string, string>
---@return boolean
function remat.offloads(policy)
    for _, action in pairs(type(policy) == "table" and policy or remat.policies[policy] or {}) do
        if action == "offload" then
            return true
        end
    end
    return false
end

-- The names of tensors to keep and of tensors to offload, sorted.
local function split(actions)
    local lists = { device = {}, offload = {}, remat = {} }
    for name, action in pairs(actions) do
        if not lists[action] then
            error(("remat: %s: expected device, offload or remat, got %s"):format(name, tostring(action)), 3)
        end
        table.insert(lists[action], name)
    end
    table.sort(lists.device)
    table.sort(lists.offload)
    return lists.device, lists.offload
end

--- Runs fn(...) and returns its results. Of the tensors inside, only those that the policy names are kept for the
--- backward pass.
---@param policy string|table<string, "device"|"offload"|"remat"> a name of remat.policies, "none" (keep all), or name
---       -> action for names that fn gives with mx.name
---@param fn function
---@return any ...
function remat.run(policy, fn, ...)
    if policy == "none" then
        return core.remat_region(false, remat.AGAIN, fn, ...)
    end
    local actions = type(policy) == "table" and policy or remat.policies[policy]
    if not actions then
        error(("remat: no policy '%s'; there are %s, and tables of name = \"device\", \"offload\" or \"remat\""):format(
            tostring(policy), table.concat(remat.CHOICES, ", "):gsub(" custom,", "")), 2)
    end
    local kept, offloaded = split(actions)
    return core.remat_region(kept, offloaded, fn, ...)
end

return remat
