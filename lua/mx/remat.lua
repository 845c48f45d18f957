--- Rematerialisation policies: which named tensors of a layer the backward pass keeps; the rest is computed again.
--
-- A layer's input is always kept. Names: query_proj, key_proj, value_proj (after RoPE), context (attention's output),
-- out_proj, mlpwi_0 and mlpwi_1 (gate and up, before the activation), mlpwi (where there is no gate), mlpwo.

local core = require "mx.core"

local remat = {}

local QKV = { "query_proj", "key_proj", "value_proj" }
local MLP_IN = { "mlpwi", "mlpwi_0", "mlpwi_1" }

local function join(...)
    local all = {}
    for _, list in ipairs({ ... }) do
        table.move(list, 1, #list, #all + 1, all)
    end
    return all
end

--- Policy -> names that it keeps, from most memory and least work to the opposite.
remat.policies = {
    minimal_with_context = join(QKV, { "context", "out_proj", "mlpwo" }, MLP_IN),
    minimal = join(QKV, { "out_proj", "mlpwo" }, MLP_IN),
    save_dot_with_context_except_mlp = join(QKV, { "context", "out_proj" }),
    save_dot_except_mlpwi = join(QKV, { "out_proj", "mlpwo" }),
    save_dot_except_mlp = join(QKV, { "out_proj" }),
    save_qkv_proj = QKV,
    save_out_proj = { "out_proj" },
    full = {},
}

local function saved_names(actions)
    local names = {}
    for name, action in pairs(actions) do
        if action == "save" then
            names[#names + 1] = name
        elseif action ~= "drop" then
            error(("remat: %s: expected save or drop, got %s"):format(name, tostring(action)), 3)
        end
    end
    table.sort(names)
    return names
end

--- Runs fn(...) and returns its results; inside, the backward pass keeps only what the policy says.
---@param policy string|table<string, "save"|"drop"> a name of remat.policies, "none" (keep all), or name -> action
---@param fn function
---@return any ...
function remat.run(policy, fn, ...)
    local names = type(policy) == "table" and saved_names(policy) or remat.policies[policy]
    if not names and policy ~= "none" then
        error(("remat: no policy '%s'"):format(tostring(policy)), 2)
    end
    return core.remat_region(names or false, fn, ...)
end

return remat
