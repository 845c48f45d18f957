--- Weights that are gathered once for all passes of a step: gradient_accumulation_fsdp_ag_once.
--
-- The gathers are recorded on a tape of their own. The passes see the gathered weights as leaves, whose f32 gradients
-- add up over the passes. At the end that tape is walked back once: each sum is converted to the dtype in which the
-- weight was gathered, and scattered.

local mx = require "mx"
local util = require "mx.util"

---@class mx.Gathered
---@field parallel mx.Parallel whose method gather gives the passes these weights
---@field tape any on which the gathers are recorded
---@field weights table<string, any> parameter -> gathered, on that tape
---@field leaves table<string, any> parameter -> the same values as a leaf
local Gathered = {}
Gathered.__index = Gathered

local gathered = {}

--- Gathers the weights. Collective.
---@param parallel mx.Parallel
---@param params table<string, any>
---@return mx.Gathered to be closed
function gathered.new(parallel, params)
    local self = setmetatable({ parallel = parallel, tape = mx.tape(), weights = {}, leaves = {} }, Gathered)
    self.tape:run(function()
        for name, t in util.sorted_pairs(params) do
            if parallel:is_gathered(name) then
                self.weights[name] = parallel:gather(name, t)
                self.leaves[name] = self.weights[name]:detach():requires_grad()
            end
        end
    end)
    mx.flush()
    parallel.gathered = self
    return self
end

--- Scatters the gradients of all passes, which are released. Collective.
function Gathered:scatter()
    for name, leaf in util.sorted_pairs(self.leaves) do
        local sum = leaf:grad()
        if sum then
            self.tape:backward(self.weights[name], sum)
            leaf:zero_grad()
        end
        leaf:release()
        self.weights[name]:release()
    end
    mx.flush()
end

function Gathered:__close()
    self.parallel.gathered = nil
    self.tape:close()
end

return gathered
