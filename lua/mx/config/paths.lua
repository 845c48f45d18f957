--- Checks paths and names that a user gives: expands ~ to the home folder, as a shell does, and refuses addresses of
--- remote stores.

local util = require "mx.util"

local config_paths = {}

-- The keys of base.yml and the options of scripts whose values are paths, or lists of them.
local KEYS = {
    base_output_directory = true, metrics_file = true, trace_file = true, report_file = true, offload_directory = true,
    load_full_state_path = true, load_parameters_path = true, dataset_path = true, dataset_mix = true,
    tokenizer_path = true, parameters = true, file = true, tokenizer = true, from = true, to = true, input = true,
    out = true, eval_dataset_path = true,
}

--- A path for the operating system. Refuses an address (gs://...), and an unknown home folder.
---@param path string
---@param where string for the message: where it was given, and the key
---@return string
function config_paths.path(path, where)
    local scheme = path:match("^(%a[%w+.-]*)://")
    if scheme then
        util.refuse("%s: '%s' is an address of %s://, and mxlua reads and writes files only: mount that store, or give "
            .. "a %s", where, path, scheme,
            where:find("_directory$") and "folder, such as checkpoints" or "copy of what is there")
    end
    local user, rest = path:match("^~([^/]*)(.*)$")
    if not user then
        return path
    end
    local home = os.getenv("HOME") or ""
    if user ~= "" then
        util.refuse("%s: '%s': write the home folder of %s in full, or ./%s for a file of that name", where, path, user,
            path)
    elseif home == "" then
        util.refuse("%s: '%s': the home folder is not known, since HOME is not set: write it in full", where, path)
    end
    return home .. rest
end

-- Checks a run's name: it is a folder in base_output_directory, possibly inside further folders.
local function check_run_name(name, where)
    for part in (name .. "/"):gmatch("([^/]*)/") do
        if part == "" or part == "." or part == ".." or part:find("%c") then
            util.refuse("%s: expected a name such as mine or sweep/1, without empty parts, '.', '..' and control "
                .. "characters; base_output_directory says where it is", where)
        end
    end
end

--- The value of a key with `name` in place of each path.
---@param key string
---@param value any
---@param name string
---@return any
function config_paths.mask(key, value, name)
    if not KEYS[key] or value == "" then
        return value
    elseif key ~= "dataset_mix" then
        return name
    end
    local list = {}
    for i, item in ipairs(value) do
        list[i] = { name, table.unpack(item, 2) }
    end
    return list
end

--- The value of a key, with its paths converted for the operating system.
---@param key string
---@param value any
---@param where string where it was given
---@return any
function config_paths.take(key, value, where)
    where = ("%s: %s"):format(where, key)
    if key == "run_name" and value ~= "" then
        check_run_name(value, where)
    elseif not KEYS[key] then
        return value
    elseif key == "dataset_path" or key == "eval_dataset_path" then -- several between commas
        return (value:gsub("[^,]+", function(item)
            return config_paths.path(item, where)
        end))
    elseif type(value) == "string" then
        return config_paths.path(value, where)
    elseif type(value) == "table" then
        local list = {}
        for i, item in ipairs(value) do
            list[i] = type(item) == "table" and { config_paths.path(item[1], where), table.unpack(item, 2) }
                or config_paths.path(item, where)
        end
        return list
    end
    return value
end

return config_paths
