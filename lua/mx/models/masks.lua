--- Masks: lists of regular expressions (PCRE2) that choose parameters by their names, such as layer001.query.weight. An
--- expression may match any part of a name.

local mx = require "mx"
local util = require "mx.util"

local masks = {}

--- The function that tells whether one of the expressions matches a name. Not collective.
---@param patterns string[]|string a list, or one; what is no expression is refused
---@return fun(name: string): boolean
function masks.of(patterns)
    local compiled = {}
    for i, text in ipairs(type(patterns) == "string" and { patterns } or patterns) do
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

--- The expressions, for messages.
---@param patterns string[]|string
---@return string
function masks.text(patterns)
    return type(patterns) == "string" and patterns or table.concat(patterns, ", ")
end

--- How much of a model a mask chooses: "4 of 21 parameters, 256 of 106,816 values".
---@param patterns string[]
---@param shape table of the model
---@return string
function masks.summary(patterns, shape)
    local matches, n, values, all, all_values = masks.of(patterns), 0, 0, 0, 0
    for _, parameter in ipairs(mx.models.parameters(shape)) do
        local size = 1
        for _, length in ipairs(parameter.sizes) do
            size = size * length
        end
        all, all_values = all + 1, all_values + size
        if matches(parameter.name) then
            n, values = n + 1, values + size
        end
    end
    return ("%d of %d parameters, %s of %s values"):format(n, all, util.thousands(values), util.thousands(all_values))
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
