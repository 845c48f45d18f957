--- Rotary position embedding (RoPE), as described by the field `rope` of an attention:
---
---     { theta, scaling }  wavelengths of 2 pi theta^(2 i / dims) tokens for pair i, from 0, scaled as `scaling` says
---     { frequencies }     the angle of each pair of components per position, in radians: for any other formula
---
--- scaling.kind is one of
---
---     linear    { factor }: all wavelengths are `factor` times as long
---     llama3.1  { factor, original_length, low_freq_factor, high_freq_factor }: as with yarn, but the limits are
---               low_freq_factor and high_freq_factor turns, and the blend is linear in the turns; if both are equal
---               (Llama 4), pairs with at least so many turns keep their wavelengths, and none is blended
---     yarn      { factor, original_length, beta_slow, beta_fast, truncate }: pairs that turn less than beta_slow times
---               in original_length tokens get wavelengths `factor` times as long, those that turn more than beta_fast
---               times keep theirs, and those between are blended, linearly in the number of the pair
---
--- Further fields: shortest (the shortest wavelength is 2 pi shortest; default: 2 pi), dims (rotate only the first so
--- many components of a head; default: all), interleaved (the components of a pair are neighbours; default: they are
--- dims / 2 apart), factor (of cosines and sines).

local blocks = require "mx.models.blocks"
local mx = require "mx"
local util = require "mx.util"

local rope = {}

local FIELDS = { "theta", "scaling", "shortest", "frequencies", "dims", "interleaved", "factor" }

-- ---- config keys -> the field ----

local function scaling_of(c)
    if c.rope_type == "llama3.1" then
        return {
            kind = "llama3.1", factor = c.llama_rope_factor, original_length = c.llama_rope_original_length,
            low_freq_factor = c.llama_rope_low_freq_factor, high_freq_factor = c.llama_rope_high_freq_factor,
        }
    elseif c.rope_type == "yarn" then
        return {
            kind = "yarn", factor = c.rope_factor, original_length = c.original_max_position_embeddings,
            beta_fast = c.beta_fast, beta_slow = c.beta_slow, truncate = c.rope_truncate,
        }
    end
    return c.rope_linear_scaling_factor ~= 1 and { kind = "linear", factor = c.rope_linear_scaling_factor } or nil
end

--- The factor of cosines and sines that keeps the entropy of attention with YaRN, by the YaRN paper.
---@param factor number of wavelengths
---@return number
function rope.yarn_attention_factor(factor)
    return factor > 1 and 0.1 * math.log(factor) + 1 or 1.0
end

--- The RoPE of a config's layers.
---@param c table
---@param reach "local"|"global" local layers may have a base of their own, and no scaling
---@return table|false
function rope.of(c, reach)
    if not c.use_rope then
        return false
    end
    local is_local = reach == "local"
    local theta = is_local and c.local_rope_max_timescale > 0 and c.local_rope_max_timescale or c.rope_max_timescale
    local scaled = not (is_local and blocks.KINDS[c.decoder_block].local_rope_unscaled)
    local yarn = scaled and c.rope_type == "yarn"
    return {
        theta = theta,
        scaling = scaled and scaling_of(c) or nil,
        shortest = c.rope_type ~= "yarn" and c.rope_min_timescale ~= 1 and c.rope_min_timescale or nil,
        dims = c.partial_rotary_factor ~= 1 and math.floor(c.head_dim * c.partial_rotary_factor) or nil,
        interleaved = yarn and c.rope_interleave or nil,
        factor = yarn and c.rope_attention_scaling and rope.yarn_attention_factor(c.rope_factor) or nil,
    }
end

-- ---- frequencies ----

-- Each kind of scaling: fn(scaling, frequency, i, dims, theta) -> the frequency of pair i, from 0.
local SCALED = {}

function SCALED.linear(s, frequency)
    return frequency / s.factor
end

SCALED["llama3.1"] = function(s, frequency)
    local turns = s.original_length * frequency / (2 * math.pi)
    local low, high = s.low_freq_factor, s.high_freq_factor
    local kept = low == high and (turns < low and 0 or 1) or math.max(0, math.min(1, (turns - low) / (high - low)))
    return frequency * (kept + (1 - kept) / s.factor)
end

function SCALED.yarn(s, frequency, i, dims, theta)
    local function pair_that_turns(times) -- so many times in original_length tokens
        return dims * math.log(s.original_length / (times * 2 * math.pi)) / (2 * math.log(theta))
    end
    local first, last = pair_that_turns(s.beta_fast), pair_that_turns(s.beta_slow)
    if s.truncate then
        first, last = math.floor(first), math.ceil(last)
    end
    first, last = math.max(first, 0), math.min(last, dims - 1)
    last = last == first and last + 0.001 or last
    local scaled = math.max(0, math.min(1, (i - first) / (last - first)))
    return frequency * (1 - scaled + scaled / s.factor)
end

--- The angle of each pair of a head per position, in radians.
---@param o table the field `rope` of an attention
---@param head_dim integer
---@return number[]
function rope.frequencies(o, head_dim)
    if o.frequencies then
        return o.frequencies
    end
    local list, dims, shortest = {}, o.dims or head_dim, o.shortest or 1
    for i = 0, dims // 2 - 1 do
        local frequency = 1 / (shortest * (o.theta / shortest) ^ (2 * i / dims))
        list[i + 1] = o.scaling and SCALED[o.scaling.kind](o.scaling, frequency, i, dims, o.theta) or frequency
    end
    return list
end

local function rounded_to_f32(x)
    return (string.unpack("f", string.pack("f", x)))
end

-- The tensor of frequencies for the operation: (2, pairs), two f32 whose sum is each frequency.
local function table_of(frequencies)
    local high, low = {}, {}
    for i, frequency in ipairs(frequencies) do
        high[i] = rounded_to_f32(frequency)
        low[i] = frequency - high[i]
    end
    return mx.tensor({ high, low }, "f32")
end

-- ---- the rotation ----

local function check_fields(o)
    for name in util.sorted_pairs(o) do
        if not util.contains(FIELDS, name) then
            error(("rope of a block has no field '%s'; there are %s"):format(name, table.concat(FIELDS, ", ")), 3)
        end
    end
    if o.frequencies and (o.theta or o.scaling or o.shortest) then
        error("rope of a block has frequencies, and with them theta, scaling or shortest, which they replace", 3)
    elseif o.scaling and not SCALED[o.scaling.kind] then
        error(("rope of a block has scaling of the kind '%s'; there are %s"):format(o.scaling.kind,
            table.concat(util.sorted_keys(SCALED), ", ")), 3)
    end
end

--- Rotates queries and keys by their positions: (B, S, heads, D) each.
---@param o table|false of an attention; false: none
---@param q any
---@param k any
---@param run table of mx.Decoder:hidden
---@return any q, any k
function rope.rotate(o, q, k, run)
    if not o then
        return q, k
    end
    check_fields(o)
    local options = { dims = o.dims, interleaved = o.interleaved, factor = o.factor, offset = run.offset }
    local frequencies
    if o.frequencies or o.scaling or o.shortest then
        frequencies = table_of(rope.frequencies(o, q:size(4)))
    else -- computed by the operation, in double
        options.theta = o.theta
    end
    return mx.rope(q, run.positions, frequencies, options), mx.rope(k, run.positions, frequencies, options)
end

return rope
