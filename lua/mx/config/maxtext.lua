--- Reads MaxText's words: keys of MaxText that are not keys of base.yml, and values that have another name here.
--- configs/maxtext.yml says what each of them means; this file translates them to settings of base.yml.

local mx = require "mx"
local config_values = require "mx.config.values"
local util = require "mx.util"

local maxtext = {}

---@class mx.Words
---@field keys table<string, table> configs/maxtext.yml: key -> {kind, MaxText's default, ...}
---@field standard table<string, any> the keys of base.yml and of the script, with their defaults
---@field unused string[] words without effect here, for one line of the log
---@field given table<string, boolean> the keys that the command line or the environment gives
---@field simulates boolean whether the run asks for a simulated pod, which reads no data and writes no files
local Words = {}
Words.__index = Words

local PATH = "configs/maxtext.yml"
local KINDS = { same = true, renamed = true, mapped = true, none = true, absent = true }
local SECRET = { hf_access_token = true } -- keys whose values no log may have
local entries -- of that file, which a process reads once: a search of plans loads hundreds of configs
local MOST_SHOWN = 80 -- bytes of a word in the line of words without effect

-- A value as text, so that one from a file and one from the command line compare equal. MaxText reads None as nothing.
local function text_of(value)
    if type(value) == "table" then
        local items = {}
        for key, item in util.sorted_pairs(value) do
            items[#items + 1] = (type(key) == "number" and "" or key .. ": ") .. text_of(item)
        end
        return #items > 0 and "[" .. table.concat(items, ", ") .. "]" or ""
    end
    local text = tostring(value)
    local number = tonumber(text)
    if number then
        return ("%.17g"):format(number)
    elseif text:lower() == "none" or text == "null" then
        return ""
    end
    return text
end

-- The value that the text behind a "=" has in YAML; the text itself if it is not valid YAML.
local function parse(text)
    local read, value = pcall(mx.io.yaml_load, text, "")
    if read and value ~= nil then
        return value
    end
    return text
end

-- Checks what an action of the table does: settings of base.yml, or [none or absent, why].
local function check_action(key, action, standard)
    if #action > 0 then
        assert((action[1] == "none" or action[1] == "absent") and action[2], key)
        return
    end
    for target in pairs(action) do
        assert(standard[target] ~= nil, ("%s: %s: there is no key '%s'"):format(PATH, key, target))
    end
end

local function check_entry(key, entry, standard)
    local kind, rest = entry[1], entry[3]
    assert(KINDS[kind], key)
    if kind == "renamed" then
        assert(standard[rest] ~= nil, ("%s: %s: there is no key '%s'"):format(PATH, key, rest))
    elseif kind == "none" or kind == "absent" then
        assert(type(rest) == "string", key)
    else
        for _, action in pairs(rest or {}) do
            check_action(key, action, standard)
        end
    end
end

--- Reads the table and checks that all its targets exist. Collective.
---@param base table<string, any> the keys of base.yml
---@return mx.Words
function maxtext.new(base)
    entries = entries or util.attempt(mx.io.yaml_load, assert(mx.read_file(mx.root .. PATH)), PATH)
    local self = setmetatable({ keys = entries, standard = base, unused = {}, given = {} }, Words)
    for key, entry in pairs(self.keys) do
        check_entry(key, entry, base)
    end
    return self
end

-- MaxText's name of a slice, in which some chips count twice: v5p-256 -> v5p-128.
local function slice_name(text, chips, where)
    local chip, size = text:match("^(%w+)-(%d+)$")
    local ours = chips[chip or text]
    if ours and not ours[2] and not size then
        return ours[1]
    elseif not ours or not ours[2] or not size or size % ours[2] ~= 0 then
        util.refuse("%s: there is no such slice here: expected the size of a slice of %s, as in v5e-256 or v5p-128 "
            .. "(where each chip counts as two)", where, table.concat(util.sorted_keys(chips), ", "))
    end
    return ("%s-%d"):format(ours[1], size // ours[2])
end

--- Adds a word to those without effect.
---@param word string
---@param why? string
function Words:note(word, why)
    word = config_values.printable(#word > MOST_SHOWN and word:sub(1, MOST_SHOWN) .. " ..." or word)
    word = why and ("%s (%s)"):format(word, why) or word
    if not util.contains(self.unused, word) then -- a config file and the command line may say the same
        self.unused[#self.unused + 1] = word
    end
end

-- Refuses a value of another type than MaxText's default: a misspelt value of a word without effect is a mistake, too.
local function check_type(key, value, default, where)
    local is_none = text_of(value) == ""
    local checked = type(default) == "boolean" or type(default) == "number" and not is_none and type(value) ~= "table"
    if checked and config_values.take(key, value, default) == nil then
        util.refuse("%s: %s: expected %s, got %s", where, key, config_values.what(key, default),
            config_values.show(value))
    end
end

-- What an action means: settings, as key -> value.
function Words:act(action, key, shown, where)
    if action[1] == "none" and key == "hardware" and self.simulates then
        return {} -- compile_topology says which
    elseif action[1] == "none" then
        self:note(SECRET[key] and key or key .. "=" .. shown, action[2])
        return {}
    elseif key == "dataset_type" and self.simulates then
        self:note(key .. "=" .. shown, "a simulation reads no data")
        return {}
    elseif action[1] == "absent" then
        util.refuse("%s: %s: not available here: %s", where, key, action[2])
    end
    return action
end

--- What a word means in keys of base.yml: settings, as key -> value (empty if it has no effect); nil if the key and its
--- value are to be taken as they are, also where the key is unknown.
---@param key string
---@param value any as YAML reads it
---@param where string for messages
---@return table<string, any>?
function Words:settings(key, value, where)
    local entry = self.keys[key]
    local block = not entry and self.keys[key:match("%.([%w_]+)$")] -- lora.lora_rank: of a block of keys
    entry = entry or block and block[1] == "absent" and block
    if not entry then
        return nil
    end
    local kind, default, rest, text = entry[1], text_of(entry[2]), entry[3], text_of(value)
    if self.standard[key] ~= nil then -- the same, or an option of the script with this name
        local action = kind == "same" and rest and rest[text]
        return action and self:act(action, key, text, where) or nil
    elseif text == default then
        return {}
    elseif kind == "none" then
        check_type(key, value, entry[2], where)
        return self:act({ kind }, key, text, where)
    elseif kind == "renamed" then
        return { [rest] = entry[4] and slice_name(text, entry[4], where) or value }
    elseif kind == "mapped" then
        if not rest[text] then
            local choices = util.sorted_keys(rest)
            if default ~= "" then
                table.insert(choices, 1, default)
            end
            util.refuse("%s: %s: expected one of %s, got %s", where, key, table.concat(choices, ", "), text)
        end
        return self:act(rest[text], key, text, where)
    end
    return self:act({ kind, rest }, key, text, where)
end

--- Looks at all words of a run before any is translated: which keys the command line gives, and whether it simulates.
---@param file table<string, any> values of the config file
---@param pairs_given {key: string, text: string, where: string}[]
function Words:look_at(file, pairs_given)
    local last = { hardware = file.hardware, compile_topology = file.compile_topology }
    for _, pair in ipairs(pairs_given) do
        self.given[pair.key], last[pair.key] = true, pair.text
    end
    self.simulates = (last.compile_topology or "") ~= "" or tostring(last.hardware):find("-", 1, true) ~= nil
end

--- The values of a config file whose keys the command line does not give. Rules of logical axes add up.
---@param file table<string, any>
---@return table<string, any>
function Words:without_given(file)
    local left = {}
    for key, value in pairs(file) do
        if not self.given[key] or config_values.is_axis_rules(self.standard[key]) then
            left[key] = value
        end
    end
    return left
end

-- The last word of each key; all words of a key whose values add up.
function Words:last_words(pairs_given)
    local last, out = {}, {}
    for i, pair in ipairs(pairs_given) do
        last[pair.key] = i
    end
    for i, pair in ipairs(pairs_given) do
        local adds = config_values.is_axis_rules(self.standard[pair.key])
        out[#out + 1] = (adds or last[pair.key] == i) and pair or nil
    end
    return out
end

-- Refuses two words of one source that give a key different values.
local function check_one_value(key, given, other)
    if given and text_of(given.value) ~= text_of(other.value) then
        local first, second = given.where, other.where
        util.refuse("%s: sets %s to %s, and %s sets it to %s: give one of them", first, key, text_of(given.value),
            second, text_of(other.value))
    end
end

--- Whether a config file has keys of MaxText that base.yml lacks.
---@param read table<string, any>
---@return boolean
function Words:is_maxtext(read)
    for key in pairs(read) do
        if self.keys[key] and self.standard[key] == nil then
            return true
        end
    end
    return false
end

--- Translates the keys of a config file.
---@param read table<string, any>
---@param lines table<string, integer> lines of the keys
---@param path string
---@param is_base boolean the file is MaxText's base.yml: a value that is MaxText's default was not chosen by anyone
---@return table<string, any> keys of base.yml, and unknown ones
---@return table<string, integer> the lines that set them
function Words:file(read, lines, path, is_base)
    local out, at = {}, {}
    local function place(line)
        return ("%s:%d"):format(path, line or 1)
    end
    for key, value in util.sorted_pairs(read) do
        local entry = self.keys[key]
        local is_default = is_base and entry and text_of(entry[2]) == text_of(value)
        local settings = is_default and {} or self:settings(key, value, place(lines[key]))
        for target, set in util.sorted_pairs(settings or { [key] = value }) do
            check_one_value(target, out[target] ~= nil and { value = out[target], where = place(at[target]) },
                { value = set, where = place(lines[key]) })
            out[target], at[target] = set, lines[key] or 1
        end
    end
    return out, at
end

--- Translates key=value words. Of words with the same key, the last one counts.
---@param pairs_given {key: string, text: string, where: string}[]
---@return {key: string, text: string, where: string}[] words of base.yml, and unknown ones
function Words:pairs(pairs_given)
    local out, meant = {}, {}
    for _, pair in ipairs(self:last_words(pairs_given)) do
        local settings = self:settings(pair.key, parse(pair.text), pair.where)
        for target, value in util.sorted_pairs(settings or {}) do
            local text = type(value) == "string" and value or config_values.show(value)
            out[#out + 1] = { key = target, text = text, where = pair.where }
            meant[target] = { value = value, where = pair.where }
        end
        if not settings then
            out[#out + 1] = pair
        end
    end
    for _, pair in ipairs(out) do
        check_one_value(pair.key, meant[pair.key], { value = parse(pair.text), where = pair.where })
    end
    return out
end

-- The words without base_output_directory=gs://... in a simulation.
function Words:without_addresses(pairs_given)
    local out = {}
    for _, pair in ipairs(pairs_given) do
        if self.simulates and pair.key == "base_output_directory" and pair.text:find("^%a[%w+.-]*://") then
            self:note(pair.key .. "=" .. pair.text, "a simulation writes no checkpoints")
        else
            out[#out + 1] = pair
        end
    end
    return out
end

--- Removes addresses that a simulation would not write to; and dataset_path, and a tokenizer that is not there, where
--- dataset_type says that no file is read. MaxText's scripts and model files give all of them.
---@param pairs_given {key: string, text: string, where: string}[]
---@param file table<string, any> values of the config file
---@param kind? string|boolean dataset_type where neither gives it; false or nil: there dataset_path is a mistake,
---       except in a simulation
---@return {key: string, text: string, where: string}[]
function Words:without_unread(pairs_given, file, kind)
    local out = {}
    pairs_given = self:without_addresses(pairs_given)
    kind = file.dataset_type or kind or self.simulates and self.standard.dataset_type
    for _, pair in ipairs(pairs_given) do
        kind = pair.key == "dataset_type" and pair.text or kind
    end
    if kind ~= "synthetic" then
        return pairs_given
    end
    for _, pair in ipairs(pairs_given) do
        if pair.key == "dataset_path" then
            self:note("dataset_path=" .. pair.text)
        elseif pair.key == "tokenizer_path" and not pair.text:find("^~") and not mx.io.exists(pair.text) then
            self:note("tokenizer_path=" .. pair.text, "not there; synthetic data need no tokenizer")
        else
            out[#out + 1] = pair
        end
    end
    file.dataset_path = nil
    return out
end

--- The words that the environment of rank 0 gives: M_STEPS=3 is steps=3. Refuses a key that the command line
--- gives, too, as MaxText does. Variables of other
--- names are listed as words without effect. Collective.
---@param pairs_given {key: string, text: string, where: string}[] the words of the command line
---@return {key: string, text: string, where: string}[] the variables, then those words
function Words:with_environment(pairs_given)
    local variables = mx.share_text(mx.rank() == 0 and mx.io.json_encode(mx.environment("M_")) or nil)
    local found = {}
    for name, text in util.sorted_pairs(mx.io.json_decode(variables)) do
        local key = name:match("^M_([%u%d_]+)$")
        key = key and key:lower()
        if key and (self.keys[key] or self.standard[key] ~= nil) then
            found[key] = text
        elseif key then
            self:note(name, "a variable of the environment, but no key")
        end
    end
    for _, pair in ipairs(pairs_given) do
        if found[pair.key] then
            util.refuse("%s: M_%s in the environment gives the same key: take one away", pair.where, pair.key:upper())
        end
    end
    local out = {}
    for key, text in util.sorted_pairs(found) do
        out[#out + 1] = { key = key, text = text, where = ("M_%s in the environment"):format(key:upper()) }
    end
    return table.move(pairs_given, 1, #pairs_given, #out + 1, out)
end

--- The line that lists the words of this run without effect; nil if there are none.
---@return string?
function Words:summary()
    if #self.unused > 0 then
        return ("no effect here: %s; see configs/coming_from_maxtext.md"):format(table.concat(self.unused, ", "))
    end
end

return maxtext
