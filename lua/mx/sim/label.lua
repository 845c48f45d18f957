--- What a simulated figure is based on: a label for every output, and a range for every step time.
--
-- A label says that the figure is simulated, on what constants, and how far this kind of chip was off on published rows
-- to which its constants were not fitted. The range of a step time has two parts. The step is simulated again with each
-- set of constants that fits the published rows about as well (errors.lua). The largest error on rows that were not
-- fitted is added on both sides.

local errors = require "mx.sim.errors"
local mx = require "mx"
local util = require "mx.util"

local label = {}

local BASES = { -- in this order
    { "fitted", "fitted to %s" }, { "public", "public" }, { "assumed", "assumed" },
}

-- "matrix_efficiency and attention_efficiency"
local function list(names)
    local last = table.remove(names)
    return #names > 0 and ("%s and %s"):format(table.concat(names, ", "), last) or last
end

-- The constants of a basis, by the rows or sources that a text needs: one text for each.
local function constants_of(hardware, basis, format)
    local by_source, texts = {}, {}
    for name, entry in util.sorted_pairs(hardware.constants or {}) do
        if entry[4] == basis then
            local source = format:find("%%s") and entry[5]:match("^[^;]*") or "" -- the rows, without a remark
            by_source[source] = by_source[source] or {}
            table.insert(by_source[source], name)
        end
    end
    for source, names in util.sorted_pairs(by_source) do
        texts[#texts + 1] = ("%s %s"):format(list(names), format:format(source))
    end
    return texts
end

local function constants_text(hardware)
    local texts = {}
    if hardware.name == "host" then
        return "measured on this machine"
    end
    for _, basis in ipairs(BASES) do
        for _, text in ipairs(constants_of(hardware, basis[1], basis[2])) do
            texts[#texts + 1] = text
        end
    end
    return #texts > 0 and table.concat(texts, "; ") or "vendor's figures alone"
end

local function span(range)
    return range[1] == range[2] and ("%g"):format(range[1]) or ("%g to %g"):format(range[1], range[2])
end

-- "this job's max_target_length 4096 lies outside theirs, 2048", and whether it lies inside.
local function place(name, value, range)
    local inside = value >= range[1] and value <= range[2]
    return ("this job's %s %g lies %s theirs, %s"):format(name, value, inside and "inside" or "outside", span(range)),
        inside
end

local HOW = { -- in this order
    { "unseen", "%d not fitted" }, { "left-out", "%d left out of the fit in turn" },
    { "interpolation", "%d called interpolations, as they lie between fitted ones" },
}

-- "5 not fitted, 2 left out of the fit in turn"
local function how_text(how)
    local texts = {}
    for _, kind in ipairs(HOW) do
        texts[#texts + 1] = how[kind[1]] and kind[2]:format(how[kind[1]]) or nil
    end
    return table.concat(texts, ", ")
end

--- The head_dim of a model's layers.
---@param shape table of mx.models.shape
---@return integer
function label.head_dim(shape)
    return mx.models.kinds(shape)[1].block.attention.head_dim
end

-- What is known of jobs with experts, which the rows of chips do not have.
local function experts_text()
    local count, least, largest = errors.with_experts()
    return ("this job has experts, theirs have none: on %d published rows with experts, of any chips, simulated step "
        .. "times were %.1f to %+.1f %% off"):format(count, least, largest)
end

--- What a simulated figure is based on.
---@param hardware table of mx.sim.start, or sim.hardware
---@param job? {length: integer, head_dim: integer, experts: boolean} of label.job; nil: no job
---@return table constants, error (texts); and if rows were published: rows, rows_by_kind, error_mean_percent,
---        error_largest_percent, and with a job inside
function label.of(hardware, job)
    local known = errors.summary(hardware.name or "")
    local found = { hardware = hardware.name, constants = constants_text(hardware) }
    if not known then
        found.error = ("no published row of %s was predicted: the error is unknown"):format(hardware.description)
        return found
    end
    found.rows, found.error_mean_percent, found.error_largest_percent = known.count, known.mean, known.largest
    found.rows_by_kind = known.how
    local texts
    if job then
        local length_text, length_inside = place("max_target_length", job.length, known.length)
        local dim_text, dim_inside = place("head_dim", job.head_dim, known.head_dim)
        texts = { length_text, dim_text, job.experts and experts_text() or nil }
        found.inside = length_inside and dim_inside and not job.experts
    else
        texts = { "their max_target_length: " .. span(known.length), "head_dim: " .. span(known.head_dim) }
    end
    found.error = ("%s: simulated step times were %.1f %% off on average, at most %.1f %%, on %d published rows: %s; "
        .. "%s"):format(hardware.name, known.mean, known.largest, known.count, how_text(known.how),
        table.concat(texts, ", "))
    return found
end

--- What a label needs to know of a job.
---@param config table
---@param shape? table default: of the config
---@return {length: integer, head_dim: integer, experts: boolean} experts: whether layers have some
function label.job(config, shape)
    shape = shape or mx.models.shape(config)
    return {
        length = config.max_target_length, head_dim = label.head_dim(shape),
        experts = mx.models.any(shape, function(block) return block.mlp.experts ~= nil end),
    }
end

--- The label as lines to print.
---@param hardware table
---@param job? table of label.job
---@return string[]
function label.lines(hardware, job)
    local found = label.of(hardware, job)
    return { ("simulated, not measured. Constants: %s"):format(found.constants), found.error }
end

--- Prints the label.
---@param hardware table
---@param job? table of label.job
function label.say(hardware, job)
    for _, line in ipairs(label.lines(hardware, job)) do
        mx.metrics.tell("%s", line)
    end
end

-- ---- ranges ----

--- The least and largest step time as shares of a simulated one, by the errors of published rows; nil if no row was
--- predicted.
---@param kind string
---@param job table of label.job
---@return number[]? shares
function label.shares_by_errors(kind, job)
    local known = errors.summary(kind)
    if not known then
        return nil
    end
    local short, long = -known.largest, known.largest
    if job.experts then
        local _, least, largest = errors.with_experts()
        short, long = math.min(short, least), math.max(long, largest)
    end
    -- A step that is simulated e per cent too long took 1 / (1 + e / 100) of it.
    return { 1 / (1 + long / 100), 1 / (1 + short / 100) }
end

--- The same, with other constants that fit the published rows about as well, too.
---@param kind string
---@param job table of label.job
---@param simulate fun(constants: table<string, number>?): number seconds of a step; nil: the hardware file's constants
---@return number[]? shares
function label.range(kind, job, simulate)
    local shares = label.shares_by_errors(kind, job)
    if not shares then
        return nil
    end
    local base, low, high = simulate(nil), 1, 1
    for _, refit in ipairs(errors.of(kind).refits) do
        local constants = {}
        for name in pairs(mx.sim.constants.NAMES) do
            constants[name] = refit[name]
        end
        local share = simulate(constants) / base
        low, high = math.min(low, share), math.max(high, share)
    end
    return { low * shares[1], high * shares[2] }
end

--- " (14.2 to 15.1 s)"; empty without a range.
---@param seconds number
---@param range? number[] shares
---@return string
function label.range_text(seconds, range)
    return range and (" (%.4g to %.4g s)"):format(seconds * range[1], seconds * range[2]) or ""
end

return label
