--- Rematerialisation policies: what becomes of the named tensors of a layer until the backward pass reads them.
--
-- "device" keeps a tensor in memory, "offload" moves its values to a file and fetches them ahead of use, "remat" drops
-- them: they are computed again, as is all that has no name. A layer's input is always kept or offloaded. The named
-- policies and the keys of `custom` are MaxText's.

local core = require "mx.core"

local remat = {}

--- The tensors that policies know: a layer's input; queries, keys and values after RoPE; attention's output; its
--- projection; the gate and up of a gated MLP before the activation, or the one product of another; the MLP's output.
--- Which of them a part has, its tensors() says.
remat.TENSORS = {
    "decoder_layer_input", "query_proj", "key_proj", "value_proj", "context", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwi",
    "mlpwo",
}

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

--- Policy -> tensor -> action; what is not named is computed again.
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

--- What a config's remat_policy may be, from most memory and least work to the opposite.
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

-- The names that stay, and those that go away and come back, in sorted order.
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

--- Runs fn(...) and returns its results; inside, the backward pass keeps only what the policy says.
---@param policy string|table<string, "device"|"offload"|"remat"> a name of remat.policies, "none" (keep all), or name
---       -> action for names that fn gives with mx.name
---@param fn function
---@return any ...
function remat.run(policy, fn, ...)
    if policy == "none" then
        return core.remat_region(false, false, fn, ...)
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
