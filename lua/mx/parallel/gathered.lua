--- Weights that are gathered once for all passes of a step: gradient_accumulation_fsdp_ag_once.
--
-- The gathers are recorded on a separate tape. The passes see the gathered weights as leaves and accumulate their
-- gradients in f32. At the end there is one backward pass on that tape: each accumulated gradient is converted to the
-- dtype in which the weight was gathered, and reduce-scattered.

local mx = require "mx"
local util = require "mx.util"

---@class mx.Gathered
---@field parallel mx.Parallel its method gather returns these weights to the passes
---@field tape any the tape of the gathers
---@field weights table<string, any> parameter -> gathered, on that tape
---@field leaves table<string, any> parameter -> the same values as a leaf
local Gathered = {}
Gathered.__index = Gathered

local gathered = {}

--- Gathers the weights. Collective.
---@param parallel mx.Parallel
---@param params table<string, any>
---@param gather fun(parallel: mx.Parallel, name: string, t: any): any
---@return mx.Gathered to be closed
function gathered.new(parallel, params, gather)
    local self = setmetatable({ parallel = parallel, tape = mx.tape(), weights = {}, leaves = {} }, Gathered)
    self.tape:run(function()
        for name, t in util.sorted_pairs(params) do
            if parallel:is_gathered(name) then
                self.weights[name] = gather(parallel, name, t)
                self.leaves[name] = self.weights[name]:detach():requires_grad(not parallel.entries[name].frozen)
            end
        end
    end)
    mx.flush()
    parallel.gathered = self
    return self
end

--- Reduce-scatters the gradients of all passes and releases them. Collective.
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
