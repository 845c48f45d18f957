--- Buffers that a model has by a key of the config. Parameters trained without the key can be used with it: training
--- finds the buffers' values from where they start.

local mx = require "mx"
local util = require "mx.util"

local buffers = {}

-- Patterns of stored names; the key; whether a model without the key may take parameters that have the buffer.
local KINDS = {
    { pattern = "^buffers/quantization%.", key = "quantization", may_drop = true },
    { pattern = "^buffers/layer%d+%.router%.bias$", key = "routed_bias", start = 0 },
}

local function kind_of(stored_name)
    for _, kind in ipairs(KINDS) do
        if stored_name:find(kind.pattern) then
            return kind
        end
    end
end

--- Whether a model that lacks the tensor may take the other parameters of a file. Not collective.
---@param stored_name string
---@return boolean
function buffers.may_drop(stored_name)
    local kind = kind_of(stored_name)
    return kind ~= nil and kind.may_drop == true
end

--- Starts the buffers that stored parameters lack, and says so. Not collective.
---@param path string where the parameters are stored
---@param missing table<string, any> stored name -> tensor
---@return string? name of a tensor that must not be missing; then nothing was changed
function buffers.start(path, missing)
    local started = {}
    for name in util.sorted_pairs(missing) do
        if not kind_of(name) then
            return name
        end
    end
    for name, t in pairs(missing) do
        local kind = kind_of(name)
        if kind.start then
            mx.fill(t, { value = kind.start })
            started[kind.key] = kind.start
        end
    end
    for key, value in util.sorted_pairs(started) do
        mx.metrics.say("%s has no values of %s: they start at %g", path, key, value)
    end
    return nil
end

--- Refuses to resume from a checkpoint that has a tensor which the run lacks, or the other way round. Not collective.
---@param index table of checkpoint.index
---@param path string the folder
---@param stored_name string
---@param what string "no tensor '%s'" or "a tensor '%s' that this run lacks"
function buffers.refuse(index, path, stored_name, what)
    local kind = kind_of(stored_name)
    if not kind then
        util.refuse("%s has " .. what .. ": it belongs to another model, or to another optimizer", path, stored_name)
    end
    local value = ("\n" .. (index.config or "")):match("\n" .. kind.key .. ": ([^\n]*)")
    util.refuse("%s was saved with another %s%s: a run resumes with the same; load_parameters_path=%s takes the "
        .. "parameters alone", path, kind.key, value and (" (%s)"):format(value) or "", path)
end

return buffers
