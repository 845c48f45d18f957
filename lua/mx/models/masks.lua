--- Masks: lists of regular expressions (PCRE2) that choose parameters by their names, such as layer001.query.weight. An
--- expression may match any part of a name.

local mx = require "mx"
local util = require "mx.util"

local masks = {}

--- The function that tells whether one of the expressions matches a name. Not collective.
---@param patterns string[] others are refused
---@return fun(name: string): boolean
function masks.of(patterns)
    local compiled = {}
    for i, text in ipairs(patterns) do
        local pattern, reason = mx.io.pattern(text)
        compiled[i] = pattern or util.refuse("%s", reason)
    end
    return function(name)
        for _, pattern in ipairs(compiled) do
            if pattern:search(name) then
                return true
            end
        end
        return false
    end
end

--- The function that tells whether a parameter is trained.
---@param patterns? string[] trainable_parameters_mask; none: all are trained
---@return fun(name: string): boolean
function masks.trained(patterns)
    if not patterns or #patterns == 0 then
        return function() return true end
    end
    return masks.of(patterns)
end

return masks
