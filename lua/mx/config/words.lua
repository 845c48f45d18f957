--- Prints what MaxText's keys mean here, from configs/maxtext.yml, and writes the tables of
--- configs/coming_from_maxtext.md.

local mx = require "mx"
local config_values = require "mx.config.values"
local maxtext = require "mx.config.maxtext"
local util = require "mx.util"

local words = {}

local PAGE = "configs/coming_from_maxtext.md"
local MARK = "<!-- The rest of this page is written by scripts/words.lua -->\n"

local function entries()
    return maxtext.new(mx.config.parse(assert(mx.read_file(mx.root .. "configs/base.yml")), "configs/base.yml")).keys
end

local function code(text)
    return "`" .. text .. "`"
end

-- "`remat_policy=minimal`", "no effect: ...", "refused: ..."
local function action_text(action)
    if #action > 0 then
        return (action[1] == "none" and "no effect: " or "refused: ") .. action[2]
    end
    local out = {}
    for key, value in util.sorted_pairs(action) do
        out[#out + 1] = code(key .. "=" .. config_values.show(value))
    end
    return #out > 0 and table.concat(out, " ") or "accepted: it is what happens here"
end

-- One line for each value of a key: the value and what it becomes.
local function value_lines(key, actions)
    local out = {}
    for value, action in util.sorted_pairs(actions) do
        out[#out + 1] = ("| `%s=%s` | %s |"):format(key, value == "" and "None" or value, action_text(action))
    end
    return out
end

--- What a key that is not simply the same means, as lines of a table.
---@param key string
---@param entry table of configs/maxtext.yml
---@return string[]
function words.lines(key, entry)
    local kind, rest = entry[1], entry[3]
    if kind == "renamed" then
        local out = { ("| `%s` | `%s` |"):format(key, rest) }
        for chip, ours in util.sorted_pairs(entry[4] or {}) do
            out[#out + 1] = ours[2] and ("| `%s=%s-%d` | `%s=%s-%d` |"):format(key, chip, 256, rest, ours[1],
                256 // ours[2]) or ("| `%s=%s` | `%s=%s` |"):format(key, chip, rest, ours[1])
        end
        return out
    elseif kind == "same" or kind == "mapped" then
        return value_lines(key, rest or {})
    end
    return { ("| `%s` | %s%s |"):format(key, kind == "none" and "no effect: " or "refused: ", rest) }
end

-- The keys of a kind, grouped by their reason: reason -> keys.
local function by_reason(keys, kind)
    local groups = {}
    for key, entry in util.sorted_pairs(keys) do
        if entry[1] == kind then
            groups[entry[3]] = groups[entry[3]] or {}
            table.insert(groups[entry[3]], code(key))
        end
    end
    return groups
end

local function put_groups(out, keys, kind)
    for reason, names in util.sorted_pairs(by_reason(keys, kind)) do
        out[#out + 1] = ("| %s | %s |"):format(reason, table.concat(names, ", "))
    end
end

--- The tables of the page, as Markdown.
---@return string
function words.tables()
    local keys, out = entries(), {}
    local function put(...)
        for _, line in ipairs({ ... }) do
            out[#out + 1] = line
        end
    end
    put("## Other names and values", "", "| MaxText | here |", "| --- | --- |")
    for key, entry in util.sorted_pairs(keys) do
        if entry[1] ~= "none" and entry[1] ~= "absent" then
            put(table.unpack(words.lines(key, entry)))
        end
    end
    put("", "## Refused, and what exists instead", "",
        "These keys are refused unless they have MaxText's default value.", "",
        "| what exists | keys |", "| --- | --- |")
    put_groups(out, keys, "absent")
    put("", "## Accepted without effect", "", "| why | keys |", "| --- | --- |")
    put_groups(out, keys, "none")
    put("", "## The same", "", "[base.yml](base.yml) explains these keys.", "")
    local same = {}
    for key, entry in util.sorted_pairs(keys) do
        same[#same + 1] = entry[1] == "same" and code(key) or nil
    end
    put(table.concat(same, ", "))
    return table.concat(out, "\n") .. "\n"
end

--- The page with its tables replaced by new ones.
---@return string
function words.page()
    local text = assert(mx.read_file(mx.root .. PAGE))
    local _, last = text:find(MARK, 1, true)
    return text:sub(1, assert(last)) .. "\n" .. words.tables()
end

--- The rows of the page about one key of MaxText: they say what mxlua calls it. nil if MaxText has no such key.
---@param key string
---@return string[]?
function words.meaning(key)
    local entry = entries()[key]
    if not entry then
        return nil
    end
    local lines = words.lines(key, entry)
    if entry[1] == "same" then
        table.insert(lines, 1, ("| `%s` | the same; configs/base.yml explains it |"):format(key))
    end
    return lines
end

--- Prints what some keys of MaxText mean; with write=true, writes the page instead. On rank 0.
---@param arguments string[] the command line after the script: key=PART, or write=true
function words.run(arguments)
    local o = mx.config.options(arguments, { key = "", write = false })
    if mx.rank() ~= 0 then
        return
    elseif o.write then
        mx.io.write_file_atomic(mx.root .. PAGE, words.page())
        return
    end
    for key in util.sorted_pairs(entries()) do
        if key:find(o.key, 1, true) then
            print(table.concat(words.meaning(key), "\n"))
        end
    end
end

return words
