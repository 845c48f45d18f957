--- Compares the configs of all ranks.

local mx = require "mx"
local config_paths = require "mx.config.paths"
local values = require "mx.config.values"
local util = require "mx.util"

-- The lines of a config. Hosts may have the same file under different paths, so a path counts only as given or not.
local function lines_of(config)
    local lines = {}
    for line in mx.config.dump(config):gmatch("[^\n]+") do
        local key = line:match("^([%w_]+): ")
        local masked = key and config_paths.mask(key, config[key], "a path")
        lines[#lines + 1] = key and masked ~= config[key] and ("%s: %s"):format(key, values.show(masked)) or line
    end
    return lines
end

--- Refuses, on all ranks, configs that differ: ranks would compute different things, or wait for each other forever.
--- Nothing is checked in a simulation, which has one config. Collective.
---@param config table
return function(config)
    if mx.ranks() == 1 or mx.is_simulated() then
        return
    end
    local own = lines_of(config)
    local text = mx.share_text(mx.rank() == 0 and mx.io.json_encode(mx.io.array(own)) or nil)
    local first = mx.io.json_decode(text)
    mx.checkpoint.together(function()
        for i = 1, math.max(#own, #first) do
            if own[i] ~= first[i] then
                util.refuse("rank %d has %s, and rank 0 has %s: start all ranks with the same words", mx.rank(),
                    own[i] or "fewer lines in its config", first[i] or "fewer lines in its config")
            end
        end
    end)
end
