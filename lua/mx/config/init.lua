--- Configuration: configs/base.yml <- configs/models/MODEL.yml <- a config file <- key=value words.
--
-- base.yml lists every key with its default, which also determines the type. Invalid values are refused here, with a
-- message of one line that names the place, what was expected and, for an unknown key, the nearest valid key.

local mx = require "mx"
local mesh = require "mx.parallel.mesh"
local blocks = require "mx.models.blocks"
local remat = require "mx.models.remat"
local config_paths = require "mx.config.paths"
local config_rules = require "mx.config.rules"
local config_values = require "mx.config.values"
local sources = require "mx.config.sources"
local logical_names = require "mx.parallel.names"
local util = require "mx.util"

local config = { parse = sources.parse, models = sources.models }

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
    local expected = config_values.broken_rule(value, values.rules[key] or {}, values.is_whole)
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

local function where_or_base(values, key)
    return values.where[key] or "configs/base.yml"
end

local MOST_SIZE, MOST_PARAMETERS = 2 ^ 31 - 1, 2 ^ 50

-- A copy of a table with its integers converted to floats.
local function in_floats(value)
    if type(value) ~= "table" then
        return math.type(value) == "integer" and value + 0.0 or value
    end
    local floats = {}
    for key, entry in pairs(value) do
        floats[key] = in_floats(entry)
    end
    return floats
end

-- Refuses sizes that no machine can hold. Products are computed in floats, which do not wrap around.
local function check_sizes(c, need)
    local shape = in_floats(mx.models.shape(c))
    local block = shape.blocks[1]
    for _, width in ipairs({
        { "base_emb_dim", shape.emb }, { "base_mlp_dim", block.mlp.width },
        { "base_num_query_heads", block.attention.heads * block.attention.head_dim, " (with head_dim)" },
    }) do
        need(width[2] <= MOST_SIZE, width[1], "the model would have weights of %.0f columns%s: expected at most %.0f",
            width[2], width[3] or "", MOST_SIZE)
    end
    local params = mx.models.count(shape)
    need(params <= MOST_PARAMETERS, "base_num_decoder_layers", "the model would have %.3g parameters in %.0f layers: "
        .. "expected at most %.3g", params, shape.layers, MOST_PARAMETERS)
    local tokens = c.per_device_batch_size * (c.max_target_length + 0.0)
    need(tokens <= MOST_SIZE, "per_device_batch_size", "%s sequences of max_target_length = %d are %.3g tokens: "
        .. "expected at most %.0f", c.per_device_batch_size, c.max_target_length, tokens, MOST_SIZE)
end

-- Keys that decoder_block sets, unless they are set.
local function apply_block(values)
    local where = where_or_base(values, "decoder_block")
    for key, value in util.sorted_pairs(blocks.KINDS[values.now.decoder_block].keys or {}) do
        if not values.where[key] then
            values.now[key], values.where[key] = value, where
        end
    end
end

-- Refuses what does not go with the layers of decoder_block.
local function check_block(c, need)
    local kind, name = blocks.KINDS[c.decoder_block], c.decoder_block
    for _, reach in ipairs(c.layer_types) do
        need(reach == "local" or reach == "global", "layer_types", "expected a list of local and global, got %s",
            show(c.layer_types))
    end
    local turns = #c.layer_types > 0 and "layer_types" or kind.layers and "decoder_block"
    local windows = util.contains(blocks.reaches(c), "local")
    need(not turns or c.attention_type == "global", "attention_type",
        "expected global, because %s = %s says which layers are local and global, got %s", turns,
        turns and show(c[turns]), c.attention_type)
    need(not windows or c.sliding_window_size > 0, turns or "attention_type",
        "local layers need a sliding_window_size above 0, got %d", c.sliding_window_size)
    need(windows or c.sliding_window_size == 0, "sliding_window_size", "has no effect without local layers: set "
        .. "attention_type = local_sliding, layer_types, or a decoder_block that has some")
    need(windows or c.local_rope_max_timescale <= 0, "local_rope_max_timescale", "has no effect without local layers")
    for _, key in ipairs({ "use_post_attn_norm", "use_post_ffw_norm" }) do
        need(not c[key] or not c.parallel_block, key, "does not go with parallel_block = true, whose only norm comes "
            .. "before attention and MLP")
        need(c[key] or kind.norm_before ~= false, key, "expected true, because decoder_block = %s has no other norms",
            name)
    end
end

local function check_rope(c, need)
    local dims = math.floor(c.head_dim * c.partial_rotary_factor)
    need(not c.use_rope or dims % 2 == 0 and dims > 0, c.partial_rotary_factor == 1 and "head_dim"
        or "partial_rotary_factor", "use_rope rotates pairs, and %d components of head_dim = %d are not an even number",
        dims, c.head_dim)
    need(c.rope_type ~= "llama3.1" or c.llama_rope_high_freq_factor > c.llama_rope_low_freq_factor,
        "llama_rope_high_freq_factor", "expected more than llama_rope_low_freq_factor = %g, got %g",
        c.llama_rope_low_freq_factor, c.llama_rope_high_freq_factor)
    need(c.rope_type ~= "yarn" or c.beta_fast >= c.beta_slow and c.beta_slow > 0, "beta_fast",
        "expected at least beta_slow = %g, and both above 0, got %g", c.beta_slow, c.beta_fast)
    need(c.rope_type ~= "yarn" or c.rope_max_timescale > 1, "rope_max_timescale", "yarn needs more than 1")
end

-- Refuses masks that are no regular expressions or match no parameter.
local function check_masks(c, need)
    for _, key in ipairs { "adamw_mask", "trainable_parameters_mask" } do
        local compiled, matches = pcall(mx.models.masks.of, c[key])
        need(compiled, key, "%s", matches)
        local names, found = {}, #c[key] == 0
        for _, parameter in ipairs(found and {} or mx.models.parameters(mx.models.shape(c))) do
            found = found or matches(parameter.name)
            names[#names + 1] = not parameter.name:find("^layer") and parameter.name
                or parameter.name:match("^layer001.*")
        end
        need(found, key, "%s matches no parameter; the names are %s ...", show(c[key]), table.concat(names, ", "))
    end
end

-- Refuses combinations that cannot work. Each rule names first the key to change.
local function check_together(values)
    local c = values.now
    local function need(holds, key, format, ...)
        if not holds then
            util.refuse("%s: %s: " .. format, where_or_base(values, key), key, ...)
        end
    end
    check_block(c, need)
    local scale = c.global_parameter_scale
    check_sizes(c, need)
    check_masks(c, need)
    need(scale & (scale - 1) == 0, "global_parameter_scale", "expected a power of two, got %d", scale)
    need(c.base_num_query_heads % c.base_num_kv_heads == 0, "base_num_kv_heads",
        "expected a divisor of base_num_query_heads = %d, got %d", c.base_num_query_heads, c.base_num_kv_heads)
    check_rope(c, need)
    need(c.trainable_position_size < 0 or c.trainable_position_size >= c.max_target_length, "max_target_length",
        "%d tokens, but trainable_position_size = %d", c.max_target_length, c.trainable_position_size)
    need(c.dataset_type == "synthetic" or c.dataset_path ~= "" or #c.dataset_mix > 0,
        "dataset_type", "%s needs dataset_path", c.dataset_type)
    need(c.dataset_path == "" or #c.dataset_mix == 0, "dataset_mix", "and dataset_path do not go together: give one")
    need(c.eval_interval < 0 or c.dataset_type == "synthetic" or c.eval_dataset_path ~= "", "eval_interval",
        "evaluation needs eval_dataset_path, a file of dataset_type = %s", c.dataset_type)
    need(c.dataset_type ~= "text" or c.vocab_size >= 256, "dataset_type",
        "text is read as bytes and needs vocab_size of at least 256, got %d", c.vocab_size)
    need(c.num_slices > 1 or not values.where.num_slices or mesh.slices(c) == 1, "num_slices",
        "the dcn_*_parallelism sizes make %d slices, got %d: leave num_slices out, or set those sizes to 1",
        mesh.slices(c), c.num_slices)
    for _, key in ipairs(config_rules.SIMULATED) do
        need(c.hardware ~= "" or c[key] == values.standard[key], key, "is for simulated chips, and hardware is empty")
    end
    local tensors = mx.models.tensors(mx.models.shape(c))
    for _, name in ipairs(c.remat_policy == "custom" and remat.TENSORS or {}) do
        need(c[name] == "remat" or util.contains(tensors, name), name, "a layer with mlp_activations = %s has no such "
            .. "tensor; it has %s", show(c.mlp_activations), table.concat(tensors, ", "))
    end
    need(c.offload_directory == "" or remat.offloads(remat.of(c)), "offload_directory",
        "has no effect: remat_policy = %s offloads nothing", c.remat_policy)
    need(c.load_full_state_path == "" or c.load_parameters_path == "", "load_parameters_path",
        "load_full_state_path loads parameters, too: set one of them")
    need(c.load_full_state_path ~= "" or not c.restart_data, "restart_data",
        "has no effect without load_full_state_path")
    need(c.steps > 0 or c.learning_rate_schedule_steps > 0, "steps", "-1 takes the value of "
        .. "learning_rate_schedule_steps, which is -1 too: set one of them")
    need(c.lr_schedule_type ~= "wsd" or c.warmup_steps_fraction + c.wsd_decay_steps_fraction <= 1 + 1e-9,
        "wsd_decay_steps_fraction", "and warmup_steps_fraction are shares of one schedule, but %g and %g exceed 1 "
        .. "together", c.wsd_decay_steps_fraction, c.warmup_steps_fraction)
end

-- Refuses keys that the user has set but nothing reads. A model file may set them, because it serves many runs.
local function check_used(values, chosen, words)
    for _, key in ipairs({ "skip_first_n_steps_for_profiler", "profiler_steps" }) do
        local changed = chosen[key] and values.now[key] ~= values.standard[key]
        if changed and values.now.trace_file == "" and values.now.report_file == "" then
            util.refuse("%s: %s has no effect without trace_file or report_file", values.where[key], key)
        end
    end
    for _, key in ipairs({ "eval_dataset_path", "eval_start_step", "eval_steps", "eval_per_device_batch_size",
        "target_eval_loss" }) do
        local idle = chosen[key] and values.now[key] ~= values.standard[key] and values.now.eval_interval < 0
        if idle and chosen.eval_interval then
            words:note(("%s=%s"):format(key, show(values.now[key])), "eval_interval=-1")
        elseif idle then
            util.refuse("%s: %s has no effect without eval_interval, the steps between two evaluations",
                values.where[key], key)
        end
    end
    for key in util.sorted_pairs(chosen) do
        local rule = config_rules.ONLY_WITH[key]
        if rule and show(values.now[key]) ~= show(values.standard[key]) then
            local used = false
            for i = 2, #rule do
                used = used or values.now[rule[1]] == rule[i]
            end
            local other = show(values.now[rule[1]])
            if not used and chosen[rule[1]] and config_rules.OFF[rule[1] .. "=" .. other] then
                words:note(("%s=%s"):format(key, show(values.now[key])), ("%s=%s"):format(rule[1], other))
            elseif not used then
                util.refuse("%s: %s has no effect with %s = %s", values.where[key], key, rule[1], other)
            end
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
---@param o? {options: table, stored: string, stored_name: string, simulate: boolean, quiet: boolean, flags: boolean}
---       options: further keys of this script, with their defaults; stored: a whole config as config.dump writes it,
---       used instead of a model file; simulate = false: the script only looks up the hardware; quiet: words without
---       effect are not listed; flags = false: XLA's flags are not read
---@return table config
function config.load(words, o)
    o = o or {}
    local path, pairs_given = split_words(words or {})
    local base, order, translator, file = sources.read(path)
    local values = {
        standard = base, now = {}, where = {}, axis_rules = {}, rules = config_rules.VALUES, is_whole = true,
    }
    for key, value in pairs(base) do
        values.now[key] = value
    end
    add_options(values, order, o.options)
    pairs_given = translator:pairs(translator:with_environment(pairs_given))
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
    check_together(values)
    values.chosen = chosen_keys(file.serves_many and {} or file.values, pairs_given)
    check_used(values, values.chosen, translator)
    if values.now.base_output_directory == "" then
        values.now.base_output_directory = values.standard.base_output_directory
    end
    values.now.num_slices = mesh.slices(values.now)
    if values.now.steps < 0 then
        values.now.steps = values.now.learning_rate_schedule_steps
    end
    local loaded, unused = finish(values, order), translator:summary()
    if unused and not o.quiet then
        mx.metrics.say("%s", unused)
    end
    if loaded.hardware ~= "" and o.simulate ~= false then
        if mx.ranks() > 1 and not mx.is_simulated() then
            config.refuse(loaded, "hardware", "one process simulates all chips of %s, but there are %d ranks: start "
                .. "mxlua without mpirun", loaded.hardware, mx.ranks())
        end
        mx.sim.start(loaded.hardware, loaded.num_slices, mx.sim.settings(loaded))
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
    local order, values = {}, { standard = {}, now = {}, where = {}, rules = rules or config_rules.VALUES }
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
