--- Reads the files of a config: base.yml, the user's config file, and the list of models.

local mx = require "mx"
local config_rules = require "mx.config.rules"
local config_values = require "mx.config.values"
local maxtext = require "mx.config.maxtext"
local util = require "mx.util"

local sources = {}

--- Parses the text of a config file. Invalid YAML is refused with file, line and column. Not collective.
---@param text string
---@param path string for messages
---@return table<string, any> values, table<string, integer> lines of the keys, string[] keys in order
function sources.parse(text, path)
    local read, lines, order = util.attempt(mx.io.yaml_load, text, path)
    if type(read) ~= "table" or #read > 0 then
        util.refuse("%s: expected lines of the form 'key: value'", path)
    end
    return read, lines, order
end

local function read_yaml(path, what)
    local text, reason = mx.read_file(path)
    if not text then
        util.refuse("cannot read %s: %s", what, reason)
    end
    return sources.parse(text, path)
end

--- The names of the models in configs/models, sorted. Not collective.
---@return string[]
function sources.models()
    local names = {}
    for _, file in ipairs(util.attempt(mx.io.list, mx.root .. "configs/models")) do
        names[#names + 1] = file:match("^(.+)%.yml$")
    end
    table.sort(names)
    return names
end

-- Names what a block of MaxText's lacks before the sizes of that in the same file.
local function check_missing(path, read, lines)
    local block = read.decoder_block
    local expected = block and config_values.broken_rule(block, config_rules.VALUES.decoder_block, true)
    if expected then
        util.refuse("%s:%d: decoder_block: expected %s, got %s", path, lines.decoder_block, expected,
            config_values.show(block))
    end
end

--- The base config, and the user's config file. A base.yml of mxlua stands for configs/base.yml; one of MaxText is read
--- as MaxText does, below the model. `file` has its path, values (also of keys that only MaxText has; sources.translate
--- translates them), lines, whether it is MaxText's base (is_base), and whether it is that or a model file of MaxText,
--- which serve many runs (serves_many). Collective.
---@param path? string
---@return table base, string[] order, mx.Words words, table file
function sources.read(path)
    local base, _, order = read_yaml(mx.root .. "configs/base.yml", "the base config")
    local words = maxtext.new(base)
    if not path then
        return base, order, words, { values = {}, lines = {} }
    end
    local is_base, found, reason = path:match("[^/]*$") == "base.yml", mx.find_file(path)
    if is_base and not (found and mx.read_file(found)) then
        words:note(path, "not there; configs/base.yml is read")
        return base, order, words, { values = {}, lines = {} }
    end
    path = found or util.refuse("cannot read the config file: %s", reason)
    local read, lines, own_order = read_yaml(path, "the config file")
    if is_base and not words:is_maxtext(read) then
        return read, own_order, maxtext.new(read), { values = {}, lines = {} }
    end
    local name = path:match("([^/]*)%.yml$")
    local is_model = read.decoder_block and not read.model_name and util.contains(sources.models(), name)
    if is_model then
        read.model_name = name -- one of MaxText's model files, of which some keys follow from the model's name
    end
    return base, order, words, {
        path = path, values = read, lines = lines, is_base = is_base, serves_many = is_base or is_model,
    }
end

--- Translates MaxText's keys in a config file. Keys that the command line gives, too, are removed first, because their
--- values in the file count for nothing. Not collective.
---@param file table of sources.read
---@param words mx.Words
---@param pairs_given {key: string, text: string, where: string}[] the words of the command line and the environment
function sources.translate(file, words, pairs_given)
    words:look_at(file.values, pairs_given)
    file.values = words:without_given(file.values)
    check_missing(file.path, file.values, file.lines)
    file.values, file.lines = words:file(file.values, file.lines, file.path, file.is_base)
end

return sources
