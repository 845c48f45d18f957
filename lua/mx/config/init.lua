--- Configuration: configs/base.yml <- configs/models/MODEL.yml <- a config file <- key=value words.
--
-- base.yml lists every key with its default, which also determines the type. Invalid values are refused here, with a
-- message of one line that names the place, what was expected and, for an unknown key, the nearest valid key.

local mx = require "mx"
local mesh = require "mx.parallel.mesh"
local blocks = require "mx.models.blocks"
local config_checks = require "mx.config.checks"
local config_paths = require "mx.config.paths"
local config_rules = require "mx.config.rules"
local config_values = require "mx.config.values"
local sources = require "mx.config.sources"
local logical_names = require "mx.parallel.names"
local util = require "mx.util"

local config = { parse = sources.parse, models = sources.models, check_alike = require "mx.config.alike" }

local SIMULATED_STEPS = 3 -- unless the user says how many: they are alike
local MOST_SHOWN = 200 -- bytes of a word that a message shows

local show, is_axis_rules = config_values.show, config_values.is_axis_rules

-- Refuses a name that is not in a list.
local function check_name(name, names, what, where)
    if util.contains(names, name) then
        return
    end
    local near = util.nearest(name, names)
    util.refuse("%s: unknown %s '%s'%s", where, what, name, near and (", did you mean '%s'?"):format(near)
        or "; expected one of " .. table.concat(names, ", "))
end

-- The rules of `list` that have none of these names, then those of `rules`.
local function replace_rules(list, rules)
    local merged, given = {}, {}
    for _, rule in ipairs(rules) do
        given[rule[1]] = true
    end
    for _, rule in ipairs(list) do
        merged[#merged + 1] = not given[rule[1]] and rule or nil
    end
    return table.move(rules, 1, #rules, #merged + 1, merged)
end

-- Stores the user's rules, which replace all earlier rules of the same logical names; merge_axis_rules merges them with
-- the defaults.
local function set_axis_rules(values, key, rules, where)
    local known = table.move(mesh.OTHER_AXES, 1, #mesh.OTHER_AXES, #mesh.AXES + 1, { table.unpack(mesh.AXES) })
    where = ("%s: %s"):format(where, key)
    for _, rule in ipairs(rules) do
        local name, axes = rule[1], {}
        check_name(name, logical_names.ALL, "logical name", where)
        for _, axis in ipairs(rule[2]) do
            check_name(axis, known, ("mesh axis in the rule of '%s':"):format(name), where)
            if axes[axis] then
                util.refuse("%s: '%s' names the mesh axis '%s' twice", where, name, axis)
            end
            axes[axis] = true
        end
    end
    values.axis_rules = replace_rules(values.axis_rules, rules)
end

-- The rules of the run: the user's, after the default rules of all other logical names (none of the defaults with
-- override_logical_axis_rules).
local function merge_axis_rules(values)
    local override = values.now.override_logical_axis_rules
    if override and #values.axis_rules == 0 then
        util.refuse("%s: override_logical_axis_rules: there are no logical_axis_rules to take instead",
            values.where.override_logical_axis_rules)
    end
    values.now.logical_axis_rules = replace_rules(override and {} or values.standard.logical_axis_rules,
        values.axis_rules)
end

-- Sets one key of `values`. `given` is what the user wrote; `value` is the same in the key's type, or nil if it has
-- another type.
local function set(values, key, value, given, where)
    local standard = values.standard[key]
    if value == nil then
        util.refuse("%s: %s: expected %s, got %s", where, key, config_values.what(key, standard), given)
    end
    values.where[key] = where
    if is_axis_rules(standard) then
        return set_axis_rules(values, key, value, where)
    end
    local is_stored = values.is_whole and values.options[key] == nil
    local expected = config_values.broken_rule(value, values.rules[key] or {}, is_stored)
    if expected then
        util.refuse("%s: %s: expected %s, got %s", where, key, expected, given)
    end
    values.now[key] = config_paths.take(key, value, where)
end

local function check_known(values, key, where)
    if values.standard[key] == nil then
        local keys = util.sorted_keys(values.standard)
        local near = util.nearest(key, keys)
        util.refuse("%s: unknown key '%s'%s", where, key, near and (", did you mean '%s'?"):format(near)
            or values.is_whole and "; configs/base.yml lists them all" or "; there are " .. table.concat(keys, ", "))
    end
end

-- Sets the keys of a config file; `read` and `lines` are results of config.parse.
local function apply_file(values, path, read, lines)
    for key, value in util.sorted_pairs(read) do
        local where = ("%s:%d"):format(path, lines[key] or 1)
        check_known(values, key, where)
        set(values, key, config_values.take(key, value, values.standard[key]), show(value), where)
    end
end

-- A shortened form of what the user typed, for a message of one line.
local function shortened(text)
    text = config_values.printable(text)
    return #text <= MOST_SHOWN and text or text:sub(1, MOST_SHOWN) .. " ..."
end

-- Splits command-line words into an optional config file and key=value pairs.
local function split_words(words)
    local path, pairs_given = nil, {}
    for i, word in ipairs(words) do
        local key, text = word:match("^([%w_.-]+)=(.*)$")
        local where = ("'%s' on the command line"):format(shortened(word))
        if key then
            pairs_given[#pairs_given + 1] = { key = key, text = text, where = where }
        elseif i == 1 then
            path = word
        else
            util.refuse("%s: expected key=value", where)
        end
    end
    return path, pairs_given
end

local function apply_words(values, pairs_given)
    for _, pair in ipairs(pairs_given) do
        check_known(values, pair.key, pair.where)
        local value = config_values.parse(pair.key, pair.text, values.standard[pair.key])
        set(values, pair.key, value, ("'%s'"):format(shortened(pair.text)), pair.where)
    end
end

-- The value of a key that is needed before the others, and where it was given. A command-line word wins over the config
-- file, and that over base.yml.
local function find_early(key, values, file, file_path, lines, pairs_given)
    local text, where = values.now[key], "configs/base.yml"
    if file[key] ~= nil then
        text, where = tostring(file[key]), ("%s:%d"):format(file_path, lines[key] or 1)
    end
    for _, pair in ipairs(pairs_given) do
        if pair.key == key then
            text, where = pair.text, pair.where
        end
    end
    return text, where
end

local function apply_model(values, name, where)
    if name == "default" then
        return
    end
    local path = ("%sconfigs/models/%s.yml"):format(mx.root, name)
    local text = mx.read_file(path)
    if not text then
        local names = { "default", table.unpack(sources.models()) }
        local near = util.nearest(name, names)
        name, path = shortened(name), shortened(path)
        util.refuse("%s: no model '%s': there is no %s%s", where, name, path,
            near and (", did you mean '%s'?"):format(near) or "; there are " .. table.concat(names, ", "))
    end
    local read, lines = sources.parse(text, path)
    apply_file(values, path, read, lines)
end

-- The model of the run: that of model_name, or without one that of the parameters to start from.
local function choose_model(values, ...)
    local name, where = find_early("model_name", values, ...)
    name = name:gsub("%-Instruct", "") -- as in MaxText: the sizes are the same
    local parameters, given = find_early("load_parameters_path", values, ...)
    parameters = config_paths.take("load_parameters_path", parameters, given)
    if name == "default" and parameters ~= "" and mx.io.exists(parameters) then
        apply_file(values, parameters, mx.weights.start_config(parameters), {})
    else
        apply_model(values, name, where)
    end
end

-- Sets the keys that XLA's flags ask for. Those of the config file and of the command line are set later, and win.
local function apply_flags(values, ...)
    local hardware, text = find_early("hardware", values, ...), find_early("compile_xla_flags", values, ...)
    local flags = mx.flags.read(text, values.standard, hardware ~= "" and hardware or nil)
    apply_words(values, flags.settings)
    return flags
end

-- Keys that decoder_block sets, unless they are set.
local function apply_block(values)
    local where = values.where.decoder_block or "configs/base.yml"
    for key, value in util.sorted_pairs(blocks.KINDS[values.now.decoder_block].keys or {}) do
        if not values.where[key] then
            values.now[key], values.where[key] = value, where
        end
    end
end

-- The finished table. Reading a key that does not exist is an error, so that misspelled keys in scripts are found.
local function finish(values, order)
    local hidden = {
        order = order, standard = values.standard, where = values.where, flags = values.flags, chosen = values.chosen,
    }
    hidden.__index = function(_, key)
        error(("no config key '%s'"):format(tostring(key)), 2)
    end
    return setmetatable(values.now, hidden)
end

-- Adds a script's own options, name -> default, to the valid keys.
local function add_options(values, order, options)
    for key, standard in util.sorted_pairs(options or {}) do
        assert(values.standard[key] == nil, key)
        values.standard[key], values.now[key] = standard, standard
        order[#order + 1] = key
    end
end

-- The keys that the user has set, in the config file or on the command line.
local function chosen_keys(file, pairs_given)
    local chosen = {}
    for key in pairs(file) do
        chosen[key] = true
    end
    for _, pair in ipairs(pairs_given) do
        chosen[pair.key] = true
    end
    return chosen
end

--- The config of a run. Collective: rank 0 reads the files.
---@param words string[] the command line after the script: an optional config file, then key=value; a file
---       configs/... that is missing in the current directory is read from mxlua's own files (mx.root)
---@param o? {options: table, stored: string, stored_name: string, simulate: boolean, quiet: boolean, flags: boolean,
---       reads: table<string, boolean>}
---       options: further keys of this script, with their defaults; stored: a whole config as config.dump writes it,
---       used instead of a model file; simulate = false: the script only looks up the hardware; quiet: words without
---       effect are not listed, and tuning counts for nothing; flags = false: XLA's flags are not read; reads: the keys
---       of base.yml that this script reads, if not all: words of the others are listed as without effect
---@return table config
function config.load(words, o)
    o = o or {}
    local path, pairs_given = split_words(words or {})
    local base, order, translator, file = sources.read(path)
    local values = {
        standard = base, now = {}, where = {}, axis_rules = {}, rules = config_rules.VALUES, is_whole = true,
        options = o.options or {},
    }
    for key, value in pairs(base) do
        values.now[key] = value
    end
    add_options(values, order, o.options)
    pairs_given = translator:with_environment(pairs_given)
    sources.translate(file, translator, pairs_given)
    pairs_given = translator:pairs(pairs_given)
    pairs_given = translator:without_unread(pairs_given, file.values, file.serves_many and base.dataset_type)
    if file.is_base then
        apply_file(values, file.path, file.values, file.lines)
    end
    if o.stored then
        apply_file(values, o.stored_name, sources.parse(o.stored, o.stored_name))
    else
        choose_model(values, file.values, file.path, file.lines, pairs_given)
    end
    values.flags = o.flags ~= false and apply_flags(values, file.values, file.path, file.lines, pairs_given) or nil
    if not file.is_base then
        apply_file(values, file.path, file.values, file.lines)
    end
    apply_words(values, pairs_given)
    apply_block(values)
    merge_axis_rules(values)
    config_checks.together(values)
    values.chosen = chosen_keys(file.serves_many and {} or file.values, pairs_given)
    config_checks.used(values, values.chosen, translator)
    for key in util.sorted_pairs(o.reads and values.chosen or {}) do
        if not o.reads[key] and values.options[key] == nil then
            translator:note(("%s=%s"):format(key, show(values.now[key])))
        end
    end
    if values.now.base_output_directory == "" then
        values.now.base_output_directory = values.standard.base_output_directory
    end
    values.now.num_slices = mesh.slices(values.now)
    if values.now.steps < 0 then
        values.now.steps = values.now.learning_rate_schedule_steps
    end
    if values.now.hardware ~= "" and o.simulate ~= false and not values.chosen.steps then
        values.now.steps = math.min(values.now.steps, SIMULATED_STEPS)
    end
    local loaded, unused = finish(values, order), translator:summary()
    if unused and not o.quiet then
        mx.metrics.tell("%s", unused)
    end
    if loaded.hardware ~= "" and o.simulate ~= false then
        if mx.ranks() > 1 and not mx.is_simulated() then
            config.refuse(loaded, "hardware", "one process simulates all chips of %s, but there are %d ranks: start "
                .. "mxlua without mpirun", loaded.hardware, mx.ranks())
        end
        local hardware = mx.sim.start(loaded.hardware, loaded.num_slices, mx.sim.settings(loaded))
        hardware.job = mx.sim.label.job(loaded)
        if not o.quiet then
            mx.sim.label.say(hardware, hardware.job)
        end
    end
    if loaded.tuning == "cache" and not o.quiet then
        require("mx.tune.step").use(loaded)
    end
    return loaded
end

--- Whether the user has set a key of a config, in the config file or on the command line. A model file does not count.
---@param c table of config.load
---@param key string
---@return boolean
function config.is_chosen(c, key)
    return getmetatable(c).chosen[key] == true
end

--- The options of a script without a config: key=value words, checked against the options' defaults. Not collective.
---@param words string[]
---@param options table<string, any>
---@param rules? table<string, table> rules of values, used instead of those of rules.lua by a script whose options have
---       the names of keys with another meaning
---@return table
function config.options(words, options, rules)
    local path, pairs_given = split_words(words or {})
    if path then
        util.refuse("'%s' on the command line: expected key=value", shortened(path))
    end
    local order, values = {}, {
        standard = {}, now = {}, where = {}, rules = rules or config_rules.VALUES, options = options,
    }
    add_options(values, order, options)
    apply_words(values, pairs_given)
    return finish(values, order)
end

-- All rules of a name as text.
local function rules_of(rules, name)
    local found = {}
    for _, rule in ipairs(rules) do
        found[#found + 1] = rule[1] == name and show(rule) or nil
    end
    return table.concat(found, " ")
end

-- Axis rules as YAML, one rule per line; changed_only leaves out the names whose rules are those in `standard`.
local function dump_axis_rules(key, rules, standard, changed_only)
    local out = { key .. ":" }
    for _, rule in ipairs(rules) do
        if not changed_only or rules_of(rules, rule[1]) ~= rules_of(standard, rule[1]) then
            out[#out + 1] = "  - " .. show(rule)
        end
    end
    return table.concat(out, "\n")
end

--- The config as YAML, one key per line, in the order of base.yml.
---@param c table
---@param changed_only? boolean leave out keys with their default
---@return string
function config.dump(c, changed_only)
    local hidden, out = getmetatable(c), {}
    for _, key in ipairs(hidden.order) do
        local value, standard = c[key], hidden.standard[key]
        if not changed_only or show(value) ~= show(standard) then
            out[#out + 1] = is_axis_rules(standard) and dump_axis_rules(key, value, standard, changed_only)
                or key .. ": " .. show(value)
        end
    end
    return table.concat(out, "\n") .. "\n"
end

--- Refuses a value that turns out to be wrong later (for instance a file that is too short), and names the place where
--- the key was set.
---@param c table
---@param key string
---@param format string
function config.refuse(c, key, format, ...)
    util.refuse("%s: %s: " .. format, getmetatable(c).where[key] or "configs/base.yml", key, ...)
end

return config
