--- Reads CSV files of numbers.

local mx = require "mx"
local util = require "mx.util"

local csv = {}

-- The fields of a line: separated, and quoted by " if they contain a separator.
local function split(line, separator)
    local fields, at = {}, 1
    repeat
        local quoted, stop = line:match('^%s*"(.-)"%s*()', at)
        while quoted and line:sub(stop, stop) == '"' do -- "" inside quotes is one "
            local more
            more, stop = line:match('^(.-)"%s*()', stop + 1)
            quoted = more and quoted .. '"' .. more or nil
        end
        local unquoted
        if not quoted then
            stop = line:find(separator, at, true) or #line + 1
            unquoted = line:sub(at, stop - 1):match("^%s*(.-)%s*$")
        end
        fields[#fields + 1] = quoted or unquoted
        at = stop + 1
    until stop > #line
    return fields
end

local NUMBERS = {
    nan = 0 / 0, ["-nan"] = 0 / 0, inf = math.huge, infinity = math.huge, ["-inf"] = -math.huge,
    ["-infinity"] = -math.huge,
}

local function number_in(field)
    return tonumber(field) or NUMBERS[field:lower()]
end

-- Whether a file's first line has names: none of its fields is a number, and not all are empty.
local function has_names(fields)
    local any = false
    for _, field in ipairs(fields) do
        if number_in(field) then
            return false
        end
        any = any or field ~= ""
    end
    return any
end

local function number_of(path, row, column, field, o)
    local number = number_in(field)
    if not number and field == "" and o.missing then
        return o.missing
    elseif not number then
        local given = field == "" and "empty" or ("'%s'"):format(field:sub(1, 40))
        local advice = field == "" and " ({ missing = 0 / 0 } reads NaN there)" or ""
        util.refuse("%s:%d: column %d is %s; expected a number%s", path, row, column, given, advice)
    end
    return number
end

--- Reads a CSV file of numbers as a tensor (rows, columns). Not collective.
---@param path string
---@param options? {separator: string, header: boolean, skip: integer, missing: number, dtype: string} separator:
---       default ","; header: whether the first line has names (default: if none of its fields is a number); skip:
---       lines before that; missing: the value of empty fields, which are an error without it; dtype: default f32
---@return any tensor
---@return string[]? names of the columns
function csv.load_csv(path, options)
    local o = util.options(options, { separator = ",", header = "auto", skip = 0, missing = false, dtype = "f32" },
        "mx.load_csv")
    if type(o.separator) ~= "string" or #o.separator ~= 1 then
        error("mx.load_csv: separator must be one character, such as \";\"", 2)
    end
    local rows, names, line_number = {}, nil, 0
    local text = mx.io.read_file(path):gsub("^\xEF\xBB\xBF", ""):gsub("\r\n?", "\n") -- without a byte order mark
    for line in (text .. "\n"):gmatch("([^\n]*)\n") do
        line_number = line_number + 1
        if line_number > o.skip and line:find("%S") then
            local fields = split(line, o.separator)
            if not names and #rows == 0 and (o.header == true or (o.header == "auto" and has_names(fields))) then
                names = fields
            else
                local width = rows[1] and #rows[1] or names and #names or #fields
                if #fields ~= width then
                    util.refuse("%s:%d: %d columns; expected %d, as in the lines before", path, line_number, #fields,
                        width)
                end
                for i, field in ipairs(fields) do
                    fields[i] = number_of(path, line_number, i, field, o)
                end
                rows[#rows + 1] = fields
            end
        end
    end
    if #rows == 0 then
        util.refuse("%s has no line of numbers", path)
    end
    local good, t = pcall(mx.tensor, rows, o.dtype)
    if not good then
        util.refuse("%s: %s; give mx.load_csv another dtype", path, tostring(t):gsub("^.*mx%.tensor: ", ""))
    end
    return t, names
end

return csv
