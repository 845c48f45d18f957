--- mx.help: every function of mx and every method of tensors, by our names and by those of PyTorch.
--
-- It explains keys of configurations, too (keys.lua), and otherwise looks for words in all texts.
-- The texts are in functions.lua, tools.lua, operations.lua, elsewhere.lua, elsewhere_nn.lua and elsewhere_terms.lua,
-- those of operations in the engine. pages.lua makes the pages lua/reference.md and lua/from_pytorch.md of them.

local mx = require "mx"
local keys = require "mx.help.keys"
local util = require "mx.util"

local help = {}

local MOST_FOUND = 20 -- lines of a search

---@class mx.HelpEntry
---@field call string as a script writes it
---@field name string without "mx." and "t:"
---@field is_method boolean a method of tensors only
---@field is_topic boolean no name of mx
---@field elsewhere? string names of PyTorch without a function here: how the text begins
---@field text string
---@field options table[] of an operation: name, standard, doc
---@field torch string[] names of PyTorch and other libraries
---@field key string the name as lookups compare it
---@field torch_keys string[]
---@field code? string the example; only gradients and steps of operations have none

local function words_of(text)
    local words = {}
    for word in (text or ""):gmatch("[^,]+") do
        words[#words + 1] = word:match("^%s*(.-)%s*$")
    end
    return words
end

-- How names of PyTorch begin that are known without that, or with something shorter.
local PREFIXES = {
    { "^mx%.", "" }, { "^torch%.", "" }, { "^t:", "" }, { "^tensor%.", "" }, { "%(%)$", "" },
    { "^nn%.functional%.", "f." }, { "^functional%.", "f." }, { "^nn%.module%.", "module." },
    { "^optim%.lr_scheduler%.", "" }, { "^lr_scheduler%.", "" }, { "^optim%.swa_utils%.", "" }, { "^swa_utils%.", "" },
    { "^optim%.optimizer%.", "optimizer." }, { "^utils%.data%.distributed%.", "" }, { "^utils%.data%.", "" },
    { "^autograd%.profiler%.", "profiler." }, { "^distributed%.fsdp%.", "" }, { "^distributed%.device_mesh%.", "" },
}

local function plain(word)
    word = word:lower()
    for _, prefix in ipairs(PREFIXES) do
        word = word:gsub(prefix[1], prefix[2])
    end
    return word
end

local function new_entry(given, section)
    if section.elsewhere then
        local names = words_of(given[1])
        return { call = given[1], name = names[1], is_topic = true, options = {}, text = given[2], torch = names,
            code = given.code, elsewhere = section.elsewhere }
    end
    local name = given[1]:match("^t:([%w_]+)") or given[1]:match("^[%w_.:]+") or given[1]
    local entry = {
        call = given[1], name = name, is_method = given[1]:find("^t:") ~= nil, options = {}, text = given[2],
        is_topic = section.topics or given[1]:find("^t[.%[]") ~= nil, torch = words_of(given.torch), code = given.code,
    }
    if entry.is_topic then
        entry.name = given[1]
    elseif not entry.text then
        local info = mx.op_info(name)
        local inputs = table.concat(info.inputs, ", ")
        local options = #info.options > 0 and (inputs == "" and "{...}" or ", {...}") or ""
        entry.call, entry.text, entry.options = ("mx.%s(%s%s)"):format(name, inputs, options), info.doc, info.options
    elseif not name:find(":", 1, true) and not entry.is_method then
        entry.call = "mx." .. given[1]
    end
    return entry
end

-- What lookups compare.
local function with_keys(entry)
    entry.key, entry.torch_keys = plain(entry.name), {}
    for i, name in ipairs(entry.torch) do
        entry.torch_keys[i] = plain(name)
    end
    return entry
end

local sections -- made when first used

--- All entries by section. The last section has the operations that operations.lua leaves out.
---@return {title: string, elsewhere: string?, entries: mx.HelpEntry[]}[]
function help.sections()
    if sections then
        return sections
    end
    local list, has = {}, {}
    for _, file in ipairs { "functions", "tools", "operations", "elsewhere", "elsewhere_nn", "elsewhere_terms" } do
        for _, given in ipairs(require("mx.help." .. file)) do
            local section = { title = given.title, elsewhere = given.elsewhere, entries = {} }
            for i, one in ipairs(given) do
                section.entries[i] = with_keys(new_entry(one, given))
                has[section.entries[i].name] = true
            end
            list[#list + 1] = section
        end
    end
    local rest = { title = "Gradients and steps of operations", entries = {} }
    for _, name in ipairs(mx.ops()) do
        if not has[name] then
            rest.entries[#rest.entries + 1] = with_keys(new_entry({ name }, rest))
        end
    end
    list[#list + 1] = rest
    sections = list
    return list
end

local function last(word)
    return word:match("([%w_]+)$") or word
end

-- How well an entry fits a word: 1 our name, 2 its last part, 3 a method of an object or a name of PyTorch, 4 its last
-- part; nil: not at all.
-- is_torch: the word is a name of PyTorch, so ours do not count.
local function level(entry, word, is_torch)
    local is_name = not entry.elsewhere and not is_torch
    if entry.key == word and is_name then
        return 1
    elseif last(entry.key) == word and is_name then
        return entry.key:find(":", 1, true) and 3 or 2
    end
    local best
    for _, other in ipairs(entry.torch_keys) do
        if other == word then
            return 3
        elseif last(other) == word then
            best = 4
        end
    end
    return best
end

local function each(fn)
    for _, section in ipairs(help.sections()) do
        for _, entry in ipairs(section.entries) do
            fn(entry)
        end
    end
end

-- The entries that fit a word best, and the names of others that fit.
local function find(word, is_torch)
    local found, others, best = {}, {}, is_torch and 4 or 5 -- of PyTorch, whole names only
    each(function(entry)
        local l = level(entry, word, is_torch)
        if l and l < best then
            for _, one in ipairs(found) do
                others[#others + 1] = one.name
            end
            found, best = { entry }, l
        elseif l == best then
            found[#found + 1] = entry
        elseif l and not entry.elsewhere then
            others[#others + 1] = entry.name
        end
    end)
    return found, others
end

--- The names here of what PyTorch calls so, as a script writes them; none if it is no name of PyTorch, or ours.
---@param name string
---@return string[]
function help.of_torch(name)
    local names = {}
    for _, entry in ipairs((find(plain(name)))) do
        local has_name = not entry.elsewhere and (not entry.is_topic or entry.name:find("^t[.%[]"))
        if has_name and level(entry, plain(name)) >= 3 and level(entry, plain(name), true) then
            local of_object = entry.is_topic or entry.name:find(":", 1, true)
            names[#names + 1] = (of_object and "" or entry.is_method and "t:" or "mx.") .. entry.name
        end
    end
    return names
end

--- Whether mx.help says what to write instead of this name of PyTorch, which has no function here.
---@param name string
---@return boolean
function help.is_elsewhere(name)
    local entry = find(plain(name))[1]
    return entry ~= nil and (entry.elsewhere ~= nil or entry.is_topic and #help.of_torch(name) == 0)
end

--- Whether a message about a method that tensors lack should name mx.help: it explains the name, and no method is the
--- same under another name.
---@param name string
---@return boolean
function help.explains(name)
    local ours = help.of_torch(name)
    local near = util.nearest(name, util.sorted_keys(debug.getregistry()["mx.tensor"].methods), 0)
    return help.is_elsewhere(name) or #ours > 0 and not near
end

--- The lines of an operation's options.
---@param entry mx.HelpEntry
---@return string[]
function help.option_lines(entry)
    local lines = {}
    for i, option in ipairs(entry.options) do
        lines[i] = ("  %-16s %-10s %s"):format(option.name, option.standard, option.doc)
    end
    return lines
end

local function text_of(entry)
    local lines = { entry.call, entry.text }
    if entry.elsewhere then
        lines = { table.concat(entry.torch, ", "), ("%s: %s"):format(entry.elsewhere, entry.text) }
    end
    table.move(help.option_lines(entry), 1, #entry.options, 3, lines)
    if #entry.torch > 0 and not entry.elsewhere then
        lines[#lines + 1] = "PyTorch and others: " .. table.concat(entry.torch, ", ")
    end
    if entry.code then
        lines[#lines + 1] = "    " .. entry.code:gsub("\n", "\n    ")
    end
    return table.concat(lines, "\n")
end

local function overview()
    local lines = {
        'print(mx.help "cat") explains a name of mx, or says what a name of PyTorch is called here. mx.ops() lists the',
        "operations. lua/reference.md has all of this as a page, lua/from_pytorch.md the names of PyTorch,",
        "lua/tensors.md the rules of tensors. Operations are methods of tensors, too: mx.sum(x) is x:sum(). Of names",
        "of PyTorch that have no function here, mx.help says what to write instead.",
    }
    for _, section in ipairs(help.sections()) do
        local names = {}
        for i, entry in ipairs(not section.elsewhere and section.entries or {}) do
            names[i] = entry.is_method and "t:" .. entry.name or entry.name
        end
        local text = section.title .. ": " .. table.concat(names, ", ")
        lines[#lines + 1] = #names > 0 and "\n" .. mx.wrap(text, 100) or nil
    end
    return table.concat(lines, "\n")
end

-- The names of functions and keys whose text has all words of a question, with the sentence that says what they do.
-- A name such as ignore_index is two words.
local function search(question)
    local lines, words = {}, {}
    for word in question:lower():gmatch("%w+") do
        words[#words + 1] = word
    end
    local function look(name, text, ...)
        local all = table.concat({ name, text, ... }, "\n"):lower()
        for _, word in ipairs(words) do
            if not all:find("%f[%w]" .. word) then -- where a word begins
                return
            end
        end
        local sentence = text:gsub("\n", " "):match("^(.-%.)%f[%s\0]") or text:gsub("\n", " ")
        lines[#lines + 1] = mx.wrap(("  %s  %s"):format(name, sentence), 80)
    end
    if #words == 0 then
        return lines
    end
    each(function(entry)
        local name = entry.elsewhere and entry.torch[1] or (entry.is_method and "t:" or "mx.") .. entry.name
        local options = table.concat(help.option_lines(entry), "\n")
        look(entry.is_topic and entry.call or name, entry.text, options, table.unpack(entry.torch))
    end)
    for _, key in ipairs(keys.all()) do
        look(key.name .. "=", key.text)
    end
    return lines
end

--- Explains a name of mx, of a tensor's method, of PyTorch, or a key of configurations; of other words, lists what has
--- them in its text. Not collective.
---@param name? string nil: an overview
---@return string
function help.help(name)
    if name == nil then
        return overview()
    elseif type(name) ~= "string" then
        error(('mx.help takes a name, such as mx.help "matmul"; given: a %s'):format(type(name)), 2)
    end
    local word = plain(name)
    local found, others = find(word, name:lower():find("^torch%.") or name:lower():find("^tensor%."))
    if #found == 0 then
        found, others = find(word)
    end
    if #found == 0 and word:find("^[%w_]+%.") then -- a function of a module, such as checkpoint.saver
        local module = find(word:match("^[%w_]+"))
        local has = module[1] and getmetatable(mx).modules[module[1].name] and mx[module[1].name]
        found = type(has) == "table" and rawget(has, last(word)) ~= nil and module or {}
    end
    local in_place = #found == 0 and word:match("^(.*[^_])_$")
    if in_place then
        found, others = find(in_place)
    end
    local key = keys.explain(name)
    local bare = word:gsub("%b()$", "")
    if #found == 0 and not key and bare:find("^[%w_.]+$") then -- special.softmax, nn.init.normal, x.to(device)
        for _, tail in ipairs { bare, bare .. "_", last(bare), last(bare) .. "_" } do
            if #found == 0 then
                found, others = find(tail)
            end
        end
    end
    if #found == 0 and not key and word:find(" ", 1, true) then -- batch norm
        found, others = find((word:gsub(" +", "_")))
    end
    if #found == 0 and not key then
        local lines = search(name)
        if #lines > 0 then
            local rest = #lines - MOST_FOUND
            local text = ("No name is '%s'. These have it in their text:\n%s\n"):format(name,
                table.concat(lines, "\n", 1, math.min(#lines, MOST_FOUND)))
            return rest > 0 and ("%s  and %d more\n"):format(text, rest) or text
        end
        local names = {}
        each(function(entry)
            names[#names + 1] = entry.name
            table.move(entry.torch, 1, #entry.torch, #names + 1, names)
        end)
        for _, one in ipairs(keys.all()) do
            names[#names + 1] = one.name
        end
        local near = mx.nearest(name, names)
        error(("mx.help knows no '%s'; %smx.help() lists all names"):format(name,
            near and ("did you mean '%s'? "):format(near) or ""), 2)
    end
    local texts = {}
    for i, entry in ipairs(found) do
        texts[i] = text_of(entry)
    end
    if in_place then
        table.insert(texts, 1, ("%s changes a tensor in place. Here, assign the result (x = ...), or copy it into the "
            .. "tensor: mx.copy(x, ...)."):format(last(name)))
    end
    texts[#texts + 1] = key
    if #others > 0 then
        texts[#texts + 1] = "See also: " .. table.concat(others, ", ")
    end
    return table.concat(texts, "\n\n") .. "\n"
end

--- Prints mx.help(name), for mxlua --help NAME. Not collective; rank 0 prints.
---@param name string
function help.print(name)
    local ok, text = pcall(help.help, name)
    if not ok then
        util.refuse("%s", text)
    elseif mx.rank() == 0 then
        io.write(text)
    end
end

return help
