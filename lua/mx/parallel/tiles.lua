--- What a loss in tiles makes XLA gather on a simulated pod: num_vocab_tiling.
--
-- MaxText's loop over tiles of tokens (maxtext/utils/vocabulary_tiling.py) takes the split weight of the logits into
-- each turn: it is gathered in each turn forward and again backward, and the gradient of each tile is reduce-scattered.
-- XLA's loops overlap nothing with the next turn, so all of this is waited for. vocab_tiling_ag_once gathers the weight
-- once before both loops. The loss of this engine always has tiles and one gather; so only a simulated rank pays for
-- the others, which hold no values.

local mx = require "mx"

local tiles = {}

-- Gathers the weight `times` times and drops it.
local function gather(parallel, name, t, times)
    local entry, whole = parallel.entries[name], nil
    for _ = 1, times do
        local held = t:detach()
        for i, axis in ipairs(entry.gathers) do
            held = mx.all_gather(held, {
                axis = axis.axis, dim = axis.dim, length = axis.length, dtype = i == 1 and entry.dtype or nil,
            })
        end
        whole = held
    end
    return whole
end

-- Scatters gradients of the gathered weight `times` times and drops them.
local function scatter(parallel, name, whole, times)
    local gathers = parallel.entries[name].gathers
    for _ = 1, times do
        local sum = whole
        for i = #gathers, 1, -1 do
            sum = mx.reduce_scatter(sum, { axis = gathers[i].axis, dim = gathers[i].dim })
        end
    end
end

--- Charges the collectives of the tiles after the first. Collective.
---@param parallel mx.Parallel
---@param h any the input of the logits
---@param name string of the weight
---@param t any the stored weight
---@return any h
function tiles.charge(parallel, h, name, t)
    local n = parallel.o.num_vocab_tiling
    if n == 1 or parallel.o.vocab_tiling_ag_once or not mx.is_simulated() or not parallel:is_gathered(name) then
        return h
    end
    return mx.custom {
        forward = function(_, x)
            gather(parallel, name, t, n - 1)
            return x
        end,
        backward = function(_, dx)
            scatter(parallel, name, gather(parallel, name, t, n), n - 1)
            return dx
        end,
    }(h)
end

return tiles
