--- The tokens of each rank: methods of mx.Parallel. A rank has a part of each sequence along context. Of its tokens it
--- holds some in the residual stream.

local mx = require "mx"
local util = require "mx.util"

local tokens = {}

-- This rank's part along dimension 2 of a tensor that is the same on all ranks of the axes and has no gradient.
local function own_part(self, t, axes)
    local n = self.mesh:size(axes)
    if n == 1 then
        return t
    end
    local S = t:size(2)
    if S % n ~= 0 then
        util.refuse("max_target_length: %d ranks (%s) do not divide the %d tokens of a sequence that each has", n,
            table.concat(axes, ", "), S)
    end
    return mx.narrow(t, { dim = 2, start = self.mesh:index(axes) * (S // n) + 1, length = S // n })
end

--- The tokens with whose queries this rank attends: (B, S) -> (B, S / ring). With load balance, an early and a late
--- chunk.
---@param self table the mx.Parallel
---@param t any
---@return any
function tokens.attended_part(self, t)
    if not self.zigzag then
        return own_part(self, t, self.ring)
    end
    local n, i, S = self.mesh:size(self.ring), self.mesh:index(self.ring), t:size(2)
    if S % (2 * n) ~= 0 then
        util.refuse("max_target_length = %d: twice the %d ranks of context do not divide it", S, n)
    end
    local piece = S // (2 * n)
    return mx.concat({
        mx.narrow(t, { dim = 2, start = i * piece + 1, length = piece }),
        mx.narrow(t, { dim = 2, start = (2 * n - 1 - i) * piece + 1, length = piece }),
    }, { dim = 2 })
end

--- This rank's tokens along context: (B, S) -> (B, S / context). Ranks that exchange heads share attended tokens.
---@param t any
---@return any
function tokens:context_part(t)
    return own_part(self, tokens.attended_part(self, t), self.exchange)
end

--- Of the tokens in this rank's context part, those whose residual stream it holds between the products.
---@param t any (B, S)
---@return any
function tokens:sequence_part(t)
    return own_part(self, t, self.sequence)
end

--- The positions of the tokens in this rank's residual stream; nil if these are 0, 1, ...
---@param positions any (B, S) of its context part, or nil
---@param B integer
---@param S integer
---@return any
function tokens:stream_positions(positions, B, S)
    if not positions and #self.sequence > 0 then
        positions = tokens.positions(B, S)
    end
    return positions and self:sequence_part(positions)
end

--- The number of tokens of a whole sequence.
---@param S integer number of tokens in this rank's context part
---@return integer
function tokens:whole_length(S)
    return S * self.mesh:size(self.context)
end

--- This rank's part of the sequences, from 0, and the number of parts.
---@return integer part, integer parts
function tokens:batch_place()
    return self.mesh:index(self.batch), self.mesh:size(self.batch)
end

--- Positions 0, 1, ... of the tokens of B whole sequences: (B, S) i32.
---@param B integer
---@param S integer
---@return any
function tokens.positions(B, S)
    return mx.zeros({ B, S }, "i32") + mx.arange { n = S, dtype = "i32" }:view(1, S)
end

--- This rank's part along context of a batch of whole sequences, with positions; kv_segments are the segments of the
--- whole sequences. Multi-token prediction looks ahead: whole_tokens, whole_targets and whole_mask are for it.
---@param batch {tokens: any, targets: any, mask: any, segments: any, positions: any}
---@return table
function tokens:batch_part(batch)
    if #self.context == 0 then
        return batch
    end
    local positions = batch.positions or tokens.positions(batch.tokens:size(1), batch.tokens:size(2))
    local ahead = self.shape.mtp and batch or {}
    return {
        tokens = self:context_part(batch.tokens), targets = self:context_part(batch.targets),
        mask = batch.mask and self:context_part(batch.mask), positions = self:context_part(positions),
        segments = batch.segments and self:context_part(batch.segments), kv_segments = batch.segments,
        whole_tokens = ahead.tokens, whole_targets = ahead.targets, whole_mask = ahead.mask, ids = batch.ids,
    }
end

return tokens
