--- Searches for a good mesh, rematerialisation policy and batch size of a run: simulates candidates, and prints those
--- that fit in memory and give most tokens per second.

local mx = require "mx"
local util = require "mx.util"

local search = {}

local say = mx.metrics.say

local POLICIES = {
    "none", "minimal_with_context", "minimal", "save_dot_except_mlp", "save_qkv_proj", "qkv_proj_offloaded",
    "minimal_offloaded", "full",
}
local LARGEST_BATCH = 32

-- The keys that the search sets, if the user has not.
local SEARCHED = {
    fsdp = "ici_fsdp_parallelism", tensor = "ici_tensor_parallelism", expert = "ici_expert_parallelism",
    policy = "remat_policy", batch = "per_device_batch_size", split = "allow_split_physical_axes",
}

-- The powers of two up to `most` for which fn holds.
local function powers(most, fn)
    local list, n = {}, 1
    while n <= most do
        list[#list + 1] = fn(n) and n or nil
        n = 2 * n
    end
    return list
end

-- Whether n ranks get equal parts of the experts of all layers that have some; false if no layer has experts.
local function divides_experts(shape, n)
    local function parts(block)
        return block.mlp.experts ~= nil
    end
    return mx.models.any(shape, parts) and not mx.models.any(shape, function(block)
        return parts(block) and block.mlp.experts % n ~= 0
    end)
end

-- The meshes to try: {fsdp, tensor, expert} each, without those that the user has set. Less tensor comes first, then
-- less expert.
local function meshes(config, devices, chosen)
    local shape, rest, open, list = mx.models.shape(config), devices, {}, {} -- open: axes whose size is searched
    for _, axis in ipairs(mx.mesh.AXES) do
        local key = mx.mesh.key("ici", axis)
        open[axis] = SEARCHED[axis] == key and not (chosen[key] and config[key] > 0) or nil
        if axis == "expert" and not chosen[key] then
            open[axis] = divides_experts(shape, 1) or nil
        end
        if not open[axis] then
            rest = rest // math.max(1, config[key])
            if config[key] == -1 then
                return { {} } -- this axis takes the rest
            end
        end
    end
    local only = next(open)
    if not only or not next(open, only) then
        return { only and not chosen[SEARCHED[only]] and { [only] = rest } or {} }
    end
    local function found(name, size)
        return open[name] and not chosen[SEARCHED[name]] and size or nil
    end
    local function tensor_fits(n)
        return n <= 16 and mx.models.divides(shape, n)
    end
    local function expert_fits(n)
        return divides_experts(shape, n)
    end
    for _, tensor in ipairs(open.tensor and powers(rest, tensor_fits) or { 1 }) do
        for _, expert in ipairs(open.expert and powers(rest // tensor, expert_fits) or { 1 }) do
            local fsdp = rest // (tensor * expert)
            if fsdp * tensor * expert == rest and (open.fsdp and shape.emb >= fsdp or fsdp == 1) then
                list[#list + 1] = {
                    fsdp = found("fsdp", fsdp), tensor = found("tensor", tensor), expert = found("expert", expert),
                }
            end
        end
    end
    return list
end

-- The batch sizes to try on a mesh: powers of two from one sequence for all ranks that share it.
local function batches(config, mesh)
    local share, list = 1, {}
    for _, axis in ipairs({ "tensor", "tensor_sequence", "context" }) do
        share = share * math.max(1, mesh[axis] or config[mx.mesh.key("ici", axis)])
            * math.max(1, config[mx.mesh.key("dcn", axis)])
    end
    local batch = 1 / 2 ^ (math.log(share, 2) // 1)
    while batch <= LARGEST_BATCH do
        list[#list + 1] = math.tointeger(batch) or batch
        batch = 2 * batch
    end
    return list
end

--- The candidates, at most `most`: fsdp, tensor and expert within a slice (data across slices), policies and batch
--- sizes, without those that the user has set. Meshes with less tensor come first, and smaller batches.
---@param config table
---@param devices integer of a slice
---@param most integer
---@return {fsdp: integer?, tensor: integer?, expert: integer?, policy: string?, batch: number?}[] candidates, integer
---        how many there are
function search.candidates(config, devices, most)
    local chosen, list, n = getmetatable(config).chosen, {}, 0
    for _, mesh in ipairs(meshes(config, devices, chosen)) do
        for _, batch in ipairs(chosen[SEARCHED.batch] and { false } or batches(config, mesh)) do
            for _, policy in ipairs(chosen[SEARCHED.policy] and { false } or POLICIES) do
                n = n + 1
                list[#list + 1] = n <= most and {
                    fsdp = mesh.fsdp, tensor = mesh.tensor, expert = mesh.expert, batch = batch or nil,
                    policy = policy or nil,
                } or nil
            end
        end
    end
    return list, n
end

local function words_of(candidate)
    local words = {}
    for name, key in util.sorted_pairs(SEARCHED) do
        words[#words + 1] = candidate[name] and ("%s=%s"):format(key, candidate[name]) or nil
    end
    return words
end

-- Simulates a candidate; nil and the reason if it does not fit in memory or on the torus. A mesh that needs
-- allow_split_physical_axes gets it.
local function try(words, options, candidate)
    local all = table.move(words, 1, #words, 1, {})
    for _, word in ipairs(words_of(candidate)) do
        all[#all + 1] = word
    end
    local function simulate()
        local config = mx.config.load(all, { options = options, simulate = false, quiet = true })
        local result = mx.plan.simulate(config, config.hardware, config.num_slices, { limited = true })
        return { config = config, result = result }
    end
    local ok, found = pcall(simulate)
    local asked = table.concat(words, " "):find(SEARCHED.split, 1, true)
    if not (ok or asked or candidate.split) and tostring(found):find(SEARCHED.split, 1, true) then
        candidate.split = true
        return try(words, options, candidate)
    end
    return ok and found or nil, not ok and tostring(found) or nil
end

-- The user's words for train.lua: without those of the search, and the last one of each key.
local function kept_words(words)
    local last, kept = {}, {}
    for i, word in ipairs(words) do
        last[word:match("^[^=]*")] = i
    end
    for i, word in ipairs(words) do
        local key = word:match("^[^=]*")
        kept[#kept + 1] = last[key] == i and key ~= "search" and key ~= "candidates" and key ~= "top" and word or nil
    end
    return kept
end

local function print_best(found, top)
    say("%5s %6s %6s %-24s %5s %9s %9s %6s %10s  %s", "fsdp", "tensor", "expert", "remat_policy", "batch", "step s",
        "tokens/s", "MFU %", "memory", "range of the step, s")
    for i = 1, math.min(top, #found) do
        local c, result = found[i].config, found[i].result
        local sizes = mx.mesh.layout(c, result.hardware.chips * c.num_slices).ici
        local tensor = sizes.tensor * sizes.tensor_sequence
        local range = mx.plan.range(c, c.hardware, c.num_slices)
        say("%5d %6d %6d %-24s %5g %9.4g %9s %6.1f %10s  %s", sizes.fsdp, tensor, sizes.expert, c.remat_policy,
            c.per_device_batch_size, result.step_s, util.thousands(result.tokens_per_s), result.mfu,
            util.bytes(result.peak_bytes),
            range and ("%.4g to %.4g"):format(result.step_s * range[1], result.step_s * range[2]) or "unknown")
    end
end

local function mesh_of(candidate)
    return ("%s %s %s"):format(candidate.fsdp, candidate.tensor, candidate.expert)
end

-- Calls try_one(candidate), which gives tokens per second or nil, for at most `most` candidates. If there are more,
-- each mesh comes first with its largest batch that fits under the policy that keeps least. All others follow on the
-- meshes that were fastest with these.
local function each_candidate(candidates, most, try_one)
    local rates, rest, tried = {}, {}, 0
    for i = #candidates > most and #candidates or 0, 1, -1 do
        local candidate, mesh = candidates[i], mesh_of(candidates[i])
        local keeps_least = (candidate.policy or POLICIES[#POLICIES]) == POLICIES[#POLICIES]
        if keeps_least and not rates[mesh] and tried < most then
            rates[mesh], tried = try_one(candidate), tried + 1
        else
            rest[#rest + 1] = { i, candidate }
        end
    end
    table.sort(rest, function(a, b)
        local x, y = rates[mesh_of(a[2])] or 0, rates[mesh_of(b[2])] or 0
        return x > y or x == y and a[1] < b[1]
    end)
    for i = 1, math.min(#rest, most - tried) do
        try_one(rest[i][2])
    end
    for i = 1, #candidates <= most and #candidates or 0 do
        try_one(candidates[i])
    end
end

--- Searches and prints. Not collective.
---@param words string[] the command line after the script
---@param config table of these words
---@param options table further keys with their defaults
---@return table[] the candidates that fit, best first
function search.run(words, config, options)
    local devices = mx.sim.pod(config.hardware, 1).network.slice_chips
    local candidates = search.candidates(config, devices, math.maxinteger)
    local all, most = #candidates, math.min(#candidates, config.candidates)
    local found, reason, started = {}, nil, mx.now()
    mx.flags.report(config)
    say("%s on %d x %s: %d candidates%s ...", config.model_name, config.num_slices, config.hardware, most,
        all > most and (" of %d (candidates=%d tries all)"):format(all, all) or "")
    local told, tried, full = started, 0, {} -- full: mesh and policy -> the least batch that exceeds memory
    each_candidate(candidates, most, function(candidate)
        local kind, batch = ("%s %s"):format(mesh_of(candidate), candidate.policy), candidate.batch or 0
        local fits, why
        if batch < (full[kind] or math.huge) then
            fits, why = try(words, options, candidate)
            full[kind] = why and why:find("memory", 1, true) and batch or full[kind]
        end
        reason, tried = why or reason, tried + 1
        if mx.now() - told > 5 then
            told = mx.now()
            say("  %d of %d, %d fit", tried, most, #found)
        end
        if fits then
            fits.words = words_of(candidate)
            found[#found + 1] = fits
            return fits.result.tokens_per_s
        end
    end)
    if #found == 0 then
        util.refuse("none of the %d candidates fits; the last one: %s", most, reason)
    end
    table.sort(found, function(a, b)
        return a.result.tokens_per_s > b.result.tokens_per_s
    end)
    say("%d of %d fit, in %.1f s; the best by simulated tokens per second:", #found, most, mx.now() - started)
    print_best(found, config.top)
    mx.sim.label.say(found[1].result.hardware, mx.sim.label.job(config))
    say("")
    say("the best one, as words for scripts/train.lua:")
    say("  %s \\\n  %s", table.concat(kept_words(words), " "), table.concat(found[1].words, " "))
    return found
end

return search
