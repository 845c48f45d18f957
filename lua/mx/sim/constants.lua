--- The constants of a hardware file that no vendor states: their names, units, and how a file lists them.
--
--     constants:
--       NAME: [VALUE, LEAST, MOST, BASIS, SOURCE]
--
-- LEAST and MOST are the ends of the plausible range. BASIS is public (others measured or state it), fitted (to the
-- rows of configs/published that SOURCE names) or assumed (SOURCE says from what). Without an entry a share is 1.

local util = require "mx.util"

local constants = {}

--- name -> {unit, meaning, standard: value without an entry; nil: the file has a field of this name}
constants.NAMES = {
    matrix_efficiency = { "share of the peak", "rate of large matrix products in a compiled step", 1 },
    attention_efficiency = { "share of the limit", "rate of attention kernels, whose limit is the slower of the matrix "
        .. "unit and the vector unit", 1 },
    product_s = { "s", "each matrix product, beside its arithmetic and traffic", 0 },
    attention_step_s = { "s", "each block of an attention kernel, beside its arithmetic", 0 },
    memory_efficiency = { "share of the bandwidth", "rate of reading and writing memory", 1 },
    vector_flops = { "operations/s", "rate of the vector unit, without fused multiply-adds", 0 },
    chip_spread = { "share of the time", "standard deviation between chips of the time of the same arithmetic", 0 },
    collective_share = { "share of the units", "units that a collective in the slice takes while it lasts", 0 },
    ici_efficiency = { "share of the bandwidth", "rate of collectives inside a slice", 1 },
    dcn_efficiency = { "share of the bandwidth", "rate of collectives between slices", 1 },
    dcn_hop_latency_s = { "s", "each step of a ring of slices, beside its bytes" },
}

local BASES = { public = true, fitted = true, assumed = true }

local function check_entry(where, entry)
    if type(entry) ~= "table" or #entry ~= 5 then
        util.refuse("%s: expected [value, least, most, public|fitted|assumed, source]", where)
    end
    local value, least, most, basis = table.unpack(entry)
    for i = 1, 3 do
        if type(entry[i]) ~= "number" or entry[i] <= 0 then
            util.refuse("%s: expected a number above 0, got %s", where, tostring(entry[i]))
        end
    end
    if not (least <= value and value <= most) then
        util.refuse("%s: %g is outside its range, %g to %g", where, value, least, most)
    elseif not BASES[basis] then
        util.refuse("%s: expected public, fitted or assumed, got %s", where, tostring(basis))
    end
end

--- Checks the constants of a hardware file and sets its fields of these names.
---@param path string for messages
---@param file table
function constants.apply(path, file)
    file.constants = file.constants or {}
    for name, entry in util.sorted_pairs(file.constants) do
        if not constants.NAMES[name] then
            util.refuse("%s: constants: '%s' is none of %s", path, name,
                table.concat(util.sorted_keys(constants.NAMES), ", "))
        end
        check_entry(("%s: constants: %s"):format(path, name), entry)
        file[name] = entry[1]
    end
    for name, about in pairs(constants.NAMES) do
        file[name] = file[name] or about[3]
    end
end

--- The ranges of the constants of some bases, for a fit.
---@param hardware table
---@param basis? string default: all
---@return table<string, number> values, table<string, number[]> ranges name -> least and largest value
function constants.of(hardware, basis)
    local values, ranges = {}, {}
    for name, entry in pairs(hardware.constants or {}) do
        if not basis or entry[4] == basis then
            values[name], ranges[name] = entry[1], { entry[2], entry[3] }
        end
    end
    return values, ranges
end

--- The rows to which constants of a hardware table were fitted; nil: none was.
---@param hardware table
---@return string?
function constants.fitted_to(hardware)
    for _, entry in util.sorted_pairs(hardware.constants or {}) do
        if entry[4] == "fitted" then
            return entry[5]
        end
    end
    return nil
end

return constants
