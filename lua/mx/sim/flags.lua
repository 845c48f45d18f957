--- XLA flags on a simulated pod: configs/xla_flags.yml says which keys of the config they set.
--
-- Flags come from LIBTPU_INIT_ARGS, XLA_FLAGS and the key compile_xla_flags, in this order; the last value of a flag
-- wins. They are `--name=value`, `--name` (true) or `--noname` (false), separated by blanks. Keys in a config file and
-- on the command line win over flags.

local mx = require "mx"
local util = require "mx.util"

local flags = {}

local VARIABLES = { "LIBTPU_INIT_ARGS", "XLA_FLAGS" }
local PATH = "configs/xla_flags.yml"
local MOST_EDITS = 3 -- that a flag may differ from one of the table, to be taken for a misspelling
local SAME = 1e-9 -- relative difference of simulated times that sums in another order make
local BOOLEANS = {
    ["true"] = "on", ["1"] = "on", t = "on", yes = "on", y = "on", on = "on", enabled = "on",
    ["false"] = "off", ["0"] = "off", f = "off", no = "off", n = "off", off = "off", disabled = "off",
}

local function append(list, more)
    return table.move(more, 1, #more, #list + 1, list)
end

--- The table of flags. Not collective.
---@return table<string, string|table<string, string>> rows, table<string, integer> lines
function flags.table()
    local text = mx.read_file(mx.root .. PATH) or util.refuse("cannot read %s", PATH)
    local rows, lines = mx.config.parse(text, PATH)
    return rows, lines
end

--- Splits text into flags. Text that is not a flag is refused. Not collective.
---@param text string
---@param source string where it was given, for messages
---@return {name: string, value: string, where: string}[]
function flags.split(text, source)
    local list = {}
    for word in text:gmatch("%S+") do
        local name, value = word:match("^%-+([%w_]+)=?(.*)$")
        if not name then
            util.refuse("%s: '%s': expected flags such as --xla_enable_async_all_gather=true", source, word)
        elseif not word:find("=", 1, true) then
            local negated = name:match("^no(xla_.*)$")
            name, value = negated or name, negated and "false" or "true"
        end
        list[#list + 1] = { name = name, value = value, where = ("%s: --%s=%s"):format(source, name, value) }
    end
    return list
end

-- The words that a value chooses from a row of the table; nil if the row has none for it.
local function words_of(row, flag)
    local words = {}
    for item in flag.value:lower():gmatch("[^,]+") do
        local chosen = row[item] or row[BOOLEANS[item]]
        if not chosen then
            return nil
        end
        words[#words + 1] = chosen
    end
    return #words > 0 and table.concat(words, " ") or nil
end

-- A hint at the flag of the table that was probably meant; an empty text if none is similar. The names of XLA's flags
-- are long and alike, so few edits are allowed.
local function hint(name, rows)
    local near = util.nearest(name, util.sorted_keys(rows), MOST_EDITS)
    return near and ("did you mean %s?"):format(near) or ""
end

-- The settings of one flag: {key, text, where, flag}; nil and a reason if it has none.
local function settings_of(rows, flag, standard)
    local row = rows[flag.name]
    if row == nil then
        return nil, hint(flag.name, rows)
    elseif type(row) == "string" then
        local boolean = type(standard[row]) == "boolean" and BOOLEANS[flag.value:lower()]
        local text = boolean and tostring(boolean == "on") or flag.value
        return { { key = row, text = text, where = flag.where, flag = flag.name } }
    elseif row.none then
        return nil, row.none
    end
    local words, list = words_of(row, flag), {}
    if not words then
        util.refuse("%s: expected %s", flag.where, table.concat(util.sorted_keys(row), ", "))
    end
    for key, text in words:gmatch("([%w_]+)=(%S+)") do
        list[#list + 1] = { key = key, text = text, where = flag.where, flag = flag.name }
    end
    return list
end

-- Sorts flags in the order of their lines in the table; the last value of a flag wins.
local function in_order(given, lines)
    local last, list = {}, {}
    for _, flag in ipairs(given) do
        last[flag.name] = flag
    end
    for _, flag in util.sorted_pairs(last) do
        list[#list + 1] = flag
    end
    table.sort(list, function(a, b)
        local x, y = lines[a.name] or math.huge, lines[b.name] or math.huge
        return x < y or x == y and a.name < b.name
    end)
    return list
end

---@class mx.Flags
---@field variables string[] the variables that are set
---@field settings {key: string, text: string, where: string, flag: string}[] in the order in which they are applied
---@field always string[] flags for what a simulated pod always does
---@field without {name: string, why: string}[] flags without a counterpart

--- Reads all flags. Not collective.
---@param compile_flags string the value of compile_xla_flags
---@param standard table key -> default value
---@param hardware? string the simulated hardware; nil: nothing is simulated, and flags have no effect
---@return mx.Flags
function flags.read(compile_flags, standard, hardware)
    local found, given = { variables = {}, settings = {}, always = {}, without = {} }, {}
    for _, name in ipairs(VARIABLES) do
        local text = os.getenv(name) or ""
        if text:find("%S") then
            found.variables[#found.variables + 1] = name
            append(given, hardware and flags.split(text, name) or {})
        end
    end
    append(given, hardware and flags.split(compile_flags, "compile_xla_flags") or {})
    if #given == 0 then
        return found
    end
    local rows, lines = flags.table()
    local sparse_core, vmem = mx.sim.has(hardware, "sparse_core"), mx.sim.has(hardware, "vmem_bytes")
    for _, flag in ipairs(in_order(given, lines)) do
        local settings, why = settings_of(rows, flag, standard)
        if settings and flag.name:find("sparse_core") and not sparse_core then
            settings, why = nil, ("%s has no SparseCores"):format(hardware)
        elseif settings and flag.name:find("vmem") and not vmem then
            settings, why = nil, ("%s has no VMEM"):format(hardware)
        end
        if not settings then
            found.without[#found.without + 1] = { name = flag.name, why = why }
        elseif #settings == 0 then
            found.always[#found.always + 1] = flag.name
        else
            append(found.settings, settings)
        end
    end
    return found
end

-- ---- what a run says ----

-- The last setting of each key, and the flags that ask for the same: key -> setting, key -> names.
local function winners(found)
    local last, agree = {}, {}
    for _, setting in ipairs(found.settings) do
        last[setting.key] = setting
    end
    for _, setting in ipairs(found.settings) do
        if setting.text == last[setting.key].text then
            agree[setting.key] = agree[setting.key] or {}
            table.insert(agree[setting.key], setting.flag)
        end
    end
    return last, agree
end

-- Flags that another flag or a key of the user has overruled.
local function overruled(found, last, where)
    local list = {}
    for _, setting in ipairs(found.settings) do
        local by = last[setting.key]
        if where[setting.key] ~= by.where then
            list[#list + 1] = ("%s (by %s of %s)"):format(setting.flag, setting.key, where[setting.key])
        elseif by.text ~= setting.text then
            list[#list + 1] = ("%s (by %s)"):format(setting.flag, by.flag)
        end
    end
    return list
end

-- The config without the flag that set a key.
local function without(config, key)
    local copy, hidden = {}, getmetatable(config)
    for name, value in pairs(config) do
        copy[name] = value
    end
    copy[key] = hidden.standard[key]
    return setmetatable(copy, hidden)
end

-- Adds the items of a list to a set.
local function list_to_set(list, set)
    set = set or {}
    for _, item in ipairs(list) do
        set[item] = true
    end
    return set
end

-- Prints one line of the report, if there is something to list.
local function say_list(text, list)
    if #list > 0 then
        mx.metrics.tell("XLA flags %s: %s", text, table.concat(list, ", "))
    end
end

--- Prints what the flags of a run do, each kind in one line: what they set, and which change nothing, and why. With
--- `simulate`, each setting is tried: the step is simulated without it. Not collective.
---@param config table
---@param step_s? number seconds of the simulated step
---@param simulate? fun(config: table): number returns the seconds of a step
function flags.report(config, step_s, simulate)
    local hidden = getmetatable(config)
    local found = hidden.flags or { variables = {}, settings = {}, always = {}, without = {} }
    if config.hardware == "" then
        if #found.variables > 0 then
            mx.metrics.tell("%s: no effect, because this run computes here and simulates nothing",
                table.concat(found.variables, ", "))
        end
        return
    end
    local last, agree = winners(found)
    local sets, idle, concerns = {}, {}, next(last) and flags.table().concerns
    local always, change = list_to_set(found.always), {} -- flag -> true
    for key, setting in util.sorted_pairs(last) do
        local value, applied = config[key], hidden.where[key] == setting.where
        if applied and value == hidden.standard[key] then
            list_to_set(agree[key], always)
        elseif applied then
            list_to_set(agree[key], change)
            sets[#sets + 1] = ("%s=%s (%s)"):format(key, value, table.concat(agree[key], ", "))
            if simulate and math.abs(simulate(without(config, key)) - step_s) < SAME * step_s then
                idle[#idle + 1] = ("%s=%s (it concerns %s)"):format(key, value, concerns[key])
            end
        end
    end
    for name in pairs(change) do
        always[name] = nil
    end
    local missing = {}
    for i, flag in ipairs(found.without) do
        missing[i] = flag.why == "" and flag.name or ("%s (%s)"):format(flag.name, flag.why)
    end
    table.sort(missing)
    say_list("set", sets)
    say_list(("that change nothing in this step of %.4g s"):format(step_s or 0), idle)
    say_list("for what is always so here", util.sorted_keys(always))
    say_list("that something else overrules", overruled(found, last, hidden.where))
    say_list("without a counterpart here", missing)
end

return flags
