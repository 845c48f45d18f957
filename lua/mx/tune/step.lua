--- What a training step is fastest with on this machine: its number of threads, what it keeps for the backward pass
--- (remat_policy), and in how many passes it takes its sequences (gradient_accumulation_steps).
--
-- Small steps lose more by waiting for threads than they gain. What is kept need not be computed again, if the memory
-- suffices, and smaller passes need less. All policies and passes are simulated with this machine's measured rates, and
-- only those are timed that should be fastest. The sequences of a step stay the same, and so does its result, but for
-- the last bits.

local mx = require "mx"
local cache = require "mx.tune.cache"
local remat = require "mx.models.remat"
local util = require "mx.util"

local step = {}

local TOLERANCE = 1e-3 -- of the loss; another number of threads or passes may add in another order
local TIMED = 3 -- settings, besides the config's own
local LEAST_BUDGET_S, BUDGET_STEPS = 60, 120 -- of tuning: as long as so many steps take
local POLICIES = { "none", "minimal_with_context", "minimal", "save_dot_except_mlp", "save_qkv_proj", "full" }
local HISTORIES = { fp8_gpu = true, fp8_nanoo = true } -- recipes whose scales follow from earlier passes

-- Patterns of the keys that say what a step computes.
local WORK = {
    "^base_num_", "^base_[%w_]+_dim$", "^head_dim$", "^vocab_size$", "^global_parameter_scale$", "^decoder_block$",
    "^mlp_activations$", "^num_experts", "^per_device_batch_size$", "^gradient_accumulation_steps$",
    "^max_target_length$", "dtype$", "^remat_policy$", "^quantization$", "^attention_type$", "^ici_", "^dcn_",
}

-- A number for the work of a step; configs with the same work, and the same keys to choose, have the same.
local function digest(config)
    local lines = { ("set: %s %s"):format(mx.config.is_chosen(config, "remat_policy"),
        mx.config.is_chosen(config, "gradient_accumulation_steps")) }
    for line in mx.config.dump(config):gmatch("[^\n]+") do
        local key = line:match("^([%w_]+):")
        for _, pattern in ipairs(key and WORK or {}) do
            if key:find(pattern) then
                lines[#lines + 1] = line
                break
            end
        end
    end
    return ("%016x"):format(util.seed(table.concat(lines, "\n"), 0))
end

-- ---- what there is to choose ----

-- The numbers of passes that a step may take, the config's own first. Experts drop tokens by pass, pipelines have
-- microbatches of their own, and scales with a history follow from the passes before: their steps stay as they are.
local function passes_of(config)
    local own, sequences = config.gradient_accumulation_steps, math.tointeger(config.per_device_batch_size)
    local list = { own }
    local parts = not mx.config.is_chosen(config, "gradient_accumulation_steps") and sequences
        and not (config.num_experts > 1 or mx.parallel.has_stages(config) or HISTORIES[config.quantization])
    local n = 2
    while parts and sequences % n == 0 do
        list[#list + 1] = own * n
        n = 2 * n
    end
    return list
end

-- All settings: name -> values of keys. The second result is the name of the config's own.
local function settings_of(config)
    local own, all = config.remat_policy, {}
    local rows = config.per_device_batch_size * config.gradient_accumulation_steps
    local function name_of(policy, passes)
        return passes == config.gradient_accumulation_steps and policy
            or ("%s, %d passes of %d"):format(policy, passes, rows // passes)
    end
    local function add(policy)
        for _, passes in ipairs(passes_of(config)) do
            local changes = { remat_policy = policy }
            if passes ~= config.gradient_accumulation_steps then
                changes.gradient_accumulation_steps = passes
                changes.per_device_batch_size = math.tointeger(rows // passes)
            end
            all[name_of(policy, passes)] = changes
        end
    end
    add(own)
    if not mx.config.is_chosen(config, "remat_policy") then
        for _, policy in ipairs(POLICIES) do
            add(policy)
        end
    end
    return all, name_of(own, config.gradient_accumulation_steps)
end

-- What is asked of mx.tune: settings, and 1, 2, 4 ... threads, at most those that this process was given.
local function question(config, names, own)
    local most, list, n = mx.threads(), { mx.threads() }, 1
    while n < most do
        table.insert(list, 2, n)
        n = 2 * n
    end
    return {
        name = "training step", shape = { model = config.model_name, work = digest(config) },
        space = { setting = names, threads = list }, standard = { setting = own, threads = most },
    }
end

-- The settings to time, the config's own first: those that fit in memory and should be fastest, by the rates that this
-- machine has now. Collective.
local function promising(config, settings, own)
    local names = util.sorted_keys(settings)
    if #names == 1 then
        return names
    end
    local rates = mx.host.sample()
    for _, name in ipairs(util.sorted_keys(rates)) do
        rates[name] = mx.train.average(rates[name]) -- all ranks choose the same
    end
    local slices = mx.mesh.layout(config, mx.ranks()).slices
    local hardware, seconds = mx.host.hardware(mx.ranks() // slices, { rates = rates }), {}
    for _, name in ipairs(names) do
        local changed = mx.plan.changed(config, settings[name])
        seconds[name] = mx.plan.fits(changed) and mx.plan.simulate(changed, hardware, slices).step_s or math.huge
    end
    table.sort(names, function(a, b)
        return seconds[a] < seconds[b] or seconds[a] == seconds[b] and a < b
    end)
    local list = { own }
    for _, name in ipairs(names) do
        if #list <= TIMED and name ~= own and seconds[name] < math.huge then
            list[#list + 1] = name
        end
    end
    return list
end

local function plural(n)
    return ("%d thread%s"):format(n, n == 1 and "" or "s")
end

local function text_of(choice)
    return ("remat_policy=%s, %s"):format(choice.setting, plural(choice.threads))
end

--- With tuning=cache: sets what scripts/tune.lua has found for this config, and says so. mx.config.load calls it.
--- Collective.
---@param config table
function step.use(config)
    if config.hardware ~= "" then
        mx.metrics.say("tuning=cache: a simulated chip has nothing to tune")
        return
    end
    local settings, own = settings_of(config)
    local o = question(config, util.sorted_keys(settings), own)
    o.tuning, o.run = "cache", function() end
    local best, report = mx.tune(o)
    local changes = settings[best.setting]
    if report.from ~= "cache" then
        mx.metrics.say("tuning=cache: nothing is known of this config with %s of this machine; scripts/tune.lua with "
            .. "the same words finds out", plural(o.standard.threads))
        return
    elseif best.setting ~= own and not mx.plan.fits(mx.plan.changed(config, changes)) then
        mx.metrics.say("tuning=cache: %s was fastest, but does not fit in memory now; the config stays as it is",
            text_of(best))
        return
    end
    mx.threads(best.threads)
    if best.setting == own and best.threads == o.standard.threads then
        mx.metrics.say("tuning=cache: nothing was faster than %s when it was tuned", text_of(best))
    else
        mx.metrics.say("tuning=cache: %s; %.0f %% less time a step when it was tuned", text_of(best), 100 * report.gain)
    end
    for key, value in pairs(changes) do
        config[key] = value
    end
end

-- ---- tuning ----

-- The sequences of one step, as data of so many passes: function(passes).
local function data_of(config, mesh)
    local data, whole = mx.data.open(config, mesh), {}
    mx.scope(function()
        local parts = {}
        for pass = 1, config.gradient_accumulation_steps do
            parts[pass] = data:next()
        end
        for _, name in ipairs { "tokens", "targets", "segments", "positions", "mask" } do
            local list = {}
            for i, part in ipairs(parts) do
                list[i] = part[name]
            end
            whole[name] = list[1] and mx.concat(table.unpack(list), { dim = 1 }):keep()
        end
    end)
    return function(passes)
        local rows, pass = whole.tokens:size(1) // passes, 0
        return {
            next = function()
                local batch = {}
                for name, t in pairs(whole) do
                    batch[name] = mx.narrow(t, { dim = 1, start = 1 + pass * rows, length = rows })
                end
                pass = pass + 1
                return batch
            end,
        }
    end
end

-- Prints a point, and what a step took with it.
local function print_point(point)
    mx.metrics.say("%-52s %-9s %s", text_of(point.choice), point.state, point.reason
        or point.seconds and ("%9.2f ms, %.3f"):format(1e3 * point.seconds, point.ratio) or "")
end

local function print_result(report)
    for _, point in ipairs(report.points) do
        print_point(point)
    end
    if report.reason then
        mx.metrics.say("the standard stays: %s", report.reason)
    else
        mx.metrics.say("%s: %.0f %% less time a step than the standard, faster in %d of %d turns",
            text_of(report.choice), 100 * report.gain, report.wins, report.turns)
    end
    if report.is_cut_short then
        mx.metrics.say("nothing is stored; budget_s= gives more seconds")
    else
        mx.metrics.say("stored in %s; runs with tuning=cache use it", cache.path())
    end
end

--- Tunes a config and prints what was found: scripts/tune.lua. Collective.
---@param words string[] a config file, key=value, budget_s
---@return mx.Tuned
function step.run(words)
    local all = table.move(words, 1, #words, 1, {})
    all[#all + 1] = "tuning=off" -- the words of a later run may say cache, and what was tuned before is no standard
    local config = mx.config.load(all, { options = { budget_s = 0.0 } })
    if mx.is_simulated() then
        mx.config.refuse(config, "hardware", "tune.lua times steps of this machine; leave the key out")
    end
    local settings, own = settings_of(config)
    if mx.threads() == 1 and next(settings, next(settings)) == nil then
        util.refuse("nothing is left to choose: this process has one thread, and the config says what to keep and how "
            .. "many passes to take (remat_policy, gradient_accumulation_steps)")
    end
    mx.plan.check(config)
    local o = question(config, promising(config, settings, own), own) -- before the mesh is made: simulating ends one
    local mesh = mx.train.mesh(config)
    local model, data = mx.models.new(config, mesh), data_of(config, mesh)
    local passes
    local function set(choice)
        local changed = mx.plan.changed(config, settings[choice.setting])
        mx.threads(choice.threads)
        model.shape.remat, passes = remat.of(changed), changed.gradient_accumulation_steps
    end
    local function gradients()
        local scope <close> = mx.step()
        for _, t in util.sorted_pairs(model.params) do
            t:zero_grad()
        end
        assert(scope)
        return mx.train.gradients(model, data(passes), passes)
    end
    set(o.standard)
    local expected, started = gradients(), mx.now()
    gradients()
    o.again, o.budget_s = true, config.budget_s > 0 and config.budget_s
        or math.max(LEAST_BUDGET_S, BUDGET_STEPS * mx.train.average(mx.now() - started))
    mx.metrics.say("%d points to time, at most %s", #o.space.setting * #o.space.threads, util.duration(o.budget_s))
    function o.run(choice)
        set(choice)
        return gradients
    end
    if config.dropout_rate == 0 then
        function o.check()
            return math.abs(gradients() - expected) <= TOLERANCE * math.abs(expected)
        end
    end
    local _, report = mx.tune(o)
    mx.threads(o.standard.threads)
    print_result(report)
    return report
end

return step
