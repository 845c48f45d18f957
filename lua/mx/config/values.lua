--- Values of config keys: converts YAML and command-line words to the type of a key's default, checks bounds and
--- choices, and converts values back to text. Command-line words are read like YAML scalars.

local mx = require "mx"
local util = require "mx.util"

local values = {}

local FLOAT32_MAX = 3.4028234663852886e38
local INTEGER_MAX = 2 ^ 53 -- a file that stores numbers as doubles would change larger integers
local NO_STRINGS = { ["true"] = true, ["false"] = true, null = true } -- words that YAML does not read as strings

--- A text on one line, with control characters escaped as in YAML's double quotes.
---@param text string
---@return string
function values.printable(text)
    return (text:gsub("%c", function(c)
        return ("\\x%02x"):format(c:byte())
    end))
end

--- One value as text for YAML and the command line.
---@param value any
---@return string
function values.show(value)
    if type(value) == "table" and next(value) ~= nil and #value == 0 then
        local items = {}
        for key, item in util.sorted_pairs(value) do
            items[#items + 1] = ("%s: %s"):format(values.show(key), values.show(item))
        end
        return "{" .. table.concat(items, ", ") .. "}"
    elseif type(value) == "table" then
        local items = {}
        for i, item in ipairs(value) do
            items[i] = values.show(item)
        end
        return "[" .. table.concat(items, ", ") .. "]"
    elseif type(value) == "string" then
        local plain = value:match("^[%a_/][%w_./-]*$") and not NO_STRINGS[value:lower()]
        return plain and value or ('"%s"'):format(values.printable((value:gsub('[\\"]', "\\%0"))))
    end
    return tostring(value)
end

--- Whether a default is a list of [logical name, [mesh axes]] and not of plain strings.
---@param standard any
---@return boolean
function values.is_axis_rules(standard)
    return type(standard) == "table" and type(standard[1]) == "table"
end

local function kind_of(standard)
    if values.is_axis_rules(standard) then
        return "a list of [logical name, [mesh axes]] such as " .. values.show({ standard[1] })
    elseif type(standard) == "table" then
        return #standard == 0 and "a list" or "a list such as " .. values.show(standard)
    elseif type(standard) == "boolean" then
        return "true or false"
    elseif type(standard) == "string" then
        return "a string"
    end
    return math.type(standard) == "integer" and "a whole number" or "a number"
end

-- Whether a value is a table with the keys 1 to `length` (any when absent) and no others.
local function is_list(value, length)
    local n = 0
    for _ in pairs(type(value) == "table" and value or {}) do
        n = n + 1
    end
    return type(value) == "table" and n == #value and n == (length or n)
end

local function as_strings(value)
    for i = 1, is_list(value) and #value or 0 do
        if type(value[i]) ~= "string" then
            return nil
        end
    end
    return is_list(value) and value or nil
end

-- Converts axis rules; a rule may name a single axis without brackets.
local function as_axis_rules(value)
    local rules = {}
    for i = 1, is_list(value) and #value or 0 do
        local pair = value[i]
        local axes = is_list(pair, 2) and as_strings(type(pair[2]) == "string" and { pair[2] } or pair[2])
        if not axes or type(pair[1]) ~= "string" then
            return nil
        end
        rules[i] = { pair[1], axes }
    end
    return is_list(value) and rules or nil
end

-- Converts a list of [path, weight].
local function as_mix(value)
    local mix = {}
    for i = 1, is_list(value) and #value or 0 do
        local pair = value[i]
        if not is_list(pair, 2) or type(pair[1]) ~= "string" or type(pair[2]) ~= "number" then
            return nil
        end
        mix[i] = { pair[1], pair[2] }
    end
    return is_list(value) and mix or nil
end

-- A number of sequences: an integer where it is whole.
local function as_sequences(value)
    return type(value) == "number" and (math.tointeger(value) or value - value == 0 and value) or nil
end

local function as_switch_or_auto(value)
    if type(value) == "boolean" or value == "auto" then
        return value
    end
end

-- Keys whose default does not determine their type.
local MASK = { what = "a list of regular expressions such as [bias, norm]", take = as_strings }
local KINDS = {
    adamw_mask = MASK,
    trainable_parameters_mask = MASK,
    per_device_batch_size = { what = "a number such as 2 or 0.5", take = as_sequences },
    eval_per_device_batch_size = { what = "a number such as 2 or 0.5", take = as_sequences },
    use_ring_of_experts = { what = "true, false or auto", take = as_switch_or_auto },
    dataset_mix = { what = "a list of [file, weight] such as [[a.h5, 0.7], [b.h5, 0.3]]", take = as_mix },
}

-- Converts a value from YAML to the type of `standard`; nil if it has another type.
local function as_type(value, standard)
    if math.type(standard) == "integer" then
        return type(value) == "number" and math.tointeger(value) or nil
    elseif math.type(standard) == "float" then
        return type(value) == "number" and value - value == 0 and value + 0.0 or nil -- neither NaN nor infinite
    elseif values.is_axis_rules(standard) then
        return as_axis_rules(value)
    elseif type(standard) == "table" then
        return as_strings(value)
    elseif type(value) == type(standard) then
        return value
    end
    return nil
end

--- Describes the values that a key takes.
---@param key string
---@param standard any
---@return string
function values.what(key, standard)
    return KINDS[key] and KINDS[key].what or kind_of(standard)
end

--- Converts a value from YAML to the type of a key's default; nil if it has another type.
---@param key string
---@param value any
---@param standard any
---@return any?
function values.take(key, value, standard)
    if KINDS[key] then
        return KINDS[key].take(value)
    end
    return as_type(value, standard)
end

-- Reads a text as YAML; nil if it is not valid YAML.
local function read_yaml(text)
    local read, value = pcall(mx.io.yaml_load, text, "")
    if read then
        return value
    end
end

-- The items of a list on the command line, separated by commas. Quotes around an item protect its commas and are
-- removed. Spaces around an item are removed, unless `exact` is set: they may be part of a file's name.
local function split_list(text, exact)
    local list, at = {}, 1
    text = text:match("^%[([^%[%]]*)%]$") or text
    while at <= #text do
        local quote, quoted, behind = text:match("^%s*(['\"])(.-)%1%s*()", at)
        if quote and (behind > #text or text:sub(behind, behind) == ",") then
            list[#list + 1] = quoted
            at = behind + 1
        else
            local item, after = text:match("^([^,]*),?()", at)
            if item:find("%S") then
                list[#list + 1] = exact and item or item:match("^%s*(.-)%s*$")
            end
            at = after
        end
    end
    return list
end

--- Converts the text after the "=" of a command-line word to the type of a key's default; nil if it has another type.
---@param key string
---@param text string
---@param standard any
---@return any?
function values.parse(key, text, standard)
    if type(standard) == "table" and (KINDS[key] or values.is_axis_rules(standard)) then
        return text:find("^%s*%[") and values.take(key, read_yaml(text), standard) or nil -- an empty text is not a list
    elseif type(standard) == "string" then
        return text
    elseif type(standard) == "table" then
        return split_list(text, key == "input")
    end
    local scalar
    if text:find("^[%w_.+-]+$") then
        scalar = read_yaml(text)
    end
    return values.take(key, scalar, standard)
end

-- Whether every file of a run can store this text.
local function is_plain(text)
    return not text:find("%c") and utf8.len(text) ~= nil
end

--- Describes the rule that a value of the right type breaks; nil if it breaks none.
---@param value any
---@param rule table of config_rules.VALUES
---@param is_whole boolean whether the value is stored with a run
---@return string?
function values.broken_rule(value, rule, is_whole)
    if is_whole and type(value) == "string" and not is_plain(value) then
        return "a text of one line in UTF-8"
    elseif math.type(value) == "float" and math.abs(value) > FLOAT32_MAX then
        return ("a number of at most %.2g in magnitude"):format(FLOAT32_MAX)
    elseif math.type(value) == "integer" and not rule.max and (value > INTEGER_MAX or value < -INTEGER_MAX) then
        return ("a whole number of at most %.0f in magnitude"):format(INTEGER_MAX)
    end
    if rule.choices then
        for _, choice in ipairs(rule.choices) do
            if choice == (type(value) == "table" and values.show(value) or value) then
                return nil
            end
        end
        local near = type(value) == "string" and util.nearest(value, rule.choices)
        local missing = rule.missing and rule.missing[value]
        local hint = missing and (" (%s needs %s, which this engine does not have)"):format(value, missing)
            or near and (" (did you mean %s?)"):format(near) or ""
        local first = rule.choices[1] == "" and 2 or 1 -- "" means not given
        return ("one of %s%s"):format(table.concat(rule.choices, ", ", first), hint)
    elseif rule.min and value < rule.min and value ~= rule.rest then
        return ("at least %s%s"):format(rule.min, rule.rest
            and (", or %s for %s"):format(rule.rest, rule.rest_means or "what is left") or "")
    elseif rule.max and value > rule.max then
        return ("at most %s"):format(rule.max)
    elseif rule.below and value >= rule.below then
        return ("a number below %s"):format(rule.below)
    end
end

return values
