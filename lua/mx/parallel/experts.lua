--- Layers with experts on a mesh: methods of mx.Parallel. Ranks along the axes of `exp` that are in the rule of
--- activation_exp have different experts.
--
-- There are two ways for tokens to come to them. As rows: each rank sends the rows of its tokens for an expert to the
-- expert's rank, which sends the results back (mx.all_to_all_rows). In a ring of experts: each rank gathers the tokens
-- of all, computes its experts' rows of them, and the results are reduce-scattered; what is sent does not depend on the
-- routing.

local mx = require "mx"
local util = require "mx.util"

local experts = {}

--- Refuses rules under which ranks would not have what a layer with experts needs. Not collective.
---@param self mx.Parallel
---@param split string[][] axes larger than 1 of the dimensions exp, embed_moe and mlp_moe
---@param exchange string[] those of activation_exp
function experts.check(self, split, exchange)
    local function list(axes)
        return table.concat(axes, ", ")
    end
    for _, axis in ipairs(util.without(exchange, split[1])) do
        util.refuse("logical_axis_rules: activation_exp is split over %s, exp over [%s]: add %s to exp, or take it "
            .. "from activation_exp", axis, list(split[1]), axis)
    end
    for _, axis in ipairs(util.without(split[1], self.shares)) do
        util.refuse("logical_axis_rules: exp is split over %s, which shares out neither the batch nor the sequence: "
            .. "add it to activation_batch or activation_length, or take it from exp", axis)
    end
    local own, dense = util.without(split[3], self.shares), self.products.mlp
    if #util.without(own, dense) > 0 or #util.without(dense, own) > 0 then
        util.refuse("logical_axis_rules: mlp_moe is split over [%s], mlp over [%s]: give both the same axes", list(own),
            list(dense))
    end
end

--- The experts that this rank computes.
---@param part table a part of a block with `experts`
---@return integer first from 0
---@return integer count
function experts:own_experts(part)
    local count, first = util.part(part.experts, self.mesh:size(self.experts), self.mesh:index(self.experts))
    return first - 1, count
end

--- Whether so many ranks of different experts send each other rows; otherwise they are a ring of experts. Rows for the
--- k experts of each token are fewer bytes than the tokens of all ranks if there are more than k ranks.
---@param part table a part of a block with `experts`
---@param ranks integer
---@param ring boolean|string use_ring_of_experts
---@return boolean
function experts.are_rows_sent(part, ranks, ring)
    return ranks > 1 and not (ring == true or ring == "auto" and ranks <= part.top)
end

--- The same for the ranks of this mesh. Not collective.
---@param part table
---@return boolean
function experts:sends_rows(part)
    return experts.are_rows_sent(part, self.mesh:size(self.experts), self.o.use_ring_of_experts)
end

--- The rows that each rank of the axis has for each expert: of this rank's, i32 (n) -> (ranks, n). Collective.
---@param counts any
---@return any
function experts:rows_of_ranks(counts)
    return mx.all_gather(counts:view(1, counts:numel()), { axis = self.experts, dim = 1 })
end

--- Sends rows x (R, E) to the ranks of their experts, or results back to the ranks of their tokens: (rows, E).
--- In the background, forward and backward. Collective.
---@param x any
---@param counts any of rows_of_ranks
---@param rows integer of the result
---@param back? boolean
---@return any
function experts:send_rows(x, counts, rows, back)
    return mx.all_to_all_rows(x, counts, { axis = self.experts, rows = rows, back = back, async = true })
end

--- The tokens of all ranks that share experts with this one: rows (T, ...) of its own tokens -> of theirs, in the order
--- of these ranks. Collective.
---@param t any
---@param async? boolean in the background
---@return any
function experts:gather_tokens(t, async)
    if #self.experts == 0 then
        return t
    end
    return mx.all_gather(t, { axis = self.experts, dim = 1, async = async and self.o.async_all_gather })
end

--- The reverse of gather_tokens: the sum over these ranks of the rows of this rank's own tokens. Collective.
---@param y any
---@return any
function experts:scatter_tokens(y)
    return #self.experts > 0 and mx.reduce_scatter(y, { axis = self.experts, dim = 1 }) or y
end

--- The mean over the ranks that have parts of the same sequences: for quantities of whole sequences. Collective.
---@param t any (B, ...) of this rank's tokens
---@return any
function experts:mean_of_sequences(t)
    if #self.context == 0 then
        return t
    end
    return mx.all_reduce(t, { axis = self.context, op = "mean", grad = "all_reduce" })
end

--- A loss that all ranks with parts of the same product compute alike, so that it counts once: its gradient is divided
--- between them.
---@param loss any
---@return any
function experts:counted_once(loss)
    local n = self.mesh:size(self.products.mlp)
    return n == 1 and loss or loss / n + loss:detach() * (1 - 1 / n)
end

--- A bias of a product that is split over ranks, of which each adds this share before the sum.
---@param bias any
---@return any
function experts:share_of_sum(bias)
    local n = self.mesh:size(self.products.mlp)
    return n == 1 and bias or bias / n
end

--- Adds up, in place and without a gradient, a quantity of the tokens of each rank over all tokens of a step. Without
--- `over_stages`, stages of a pipeline may call it at different times. Collective.
---@param t any
---@param over_stages? boolean whether to add what other stages know of their layers, too
---@return any
function experts:sum_over_tokens(t, over_stages)
    local axes = util.without(self.shares, {})
    axes[#axes + 1] = self.stages and over_stages and "stage" or nil
    return #axes > 0 and mx.all_reduce_(t, { axis = axes }) or t
end

return experts
