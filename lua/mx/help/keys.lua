--- What mx.help says of keys of configurations: the comments of configs/base.yml, and configs/maxtext.yml for keys that
--- only MaxText has.

local mx = require "mx"

local keys = {}

local list -- made when first used

--- The keys in the order of base.yml, with the comment above each. A key without one shares that of the key before it.
---@return {name: string, line: string, text: string}[]
function keys.all()
    if list then
        return list
    end
    list = {}
    local comment, is_open = {}, false
    for line in (assert(mx.read_file(mx.root .. "configs/base.yml")) .. "\n"):gmatch("(.-)\n") do
        local name = line:match("^([%w_]+):")
        if name then
            list[#list + 1] = { name = name, line = line, text = table.concat(comment, "\n") }
            is_open = false
        elseif line:find("^#") then
            comment = is_open and comment or {}
            comment[#comment + 1] = line:gsub("^# ?", "")
            is_open = true
        else
            comment, is_open = {}, false
        end
    end
    return list
end

--- What a key means: its default and its comment, or of a key that only MaxText has, what it is here. nil: no key.
---@param name string
---@return string?
function keys.explain(name)
    for _, key in ipairs(keys.all()) do
        if key.name == name then
            return ("%s (a key of configs/base.yml, with its default)\n%s"):format(key.line, key.text)
        end
    end
    local meaning = mx.words.meaning(name)
    return meaning and "A key of MaxText, and what it is here:\n" .. table.concat(meaning, "\n")
end

return keys
