--- Keeps matrices of a GGUF file as it stores them: Q8_0, a byte a value and a scale for each 32 neighbours
--- (models/codes.lua computes with them).

local mx = require "mx"
local families = require "mx.weights.families"
local quantization = require "mx.models.quantization"
local sources = require "mx.weights.source"
local util = require "mx.util"

local q8_0 = {}

-- Whether a stored tensor is one of Q8_0 that generation can read as it is: the table of tokens, or the weights of
-- products, which are (outputs, inputs) in the file; those of all experts of a layer (experts, outputs, inputs).
local function stays(source, entry)
    local found, name = source.tensors[entry.name], entry.parts[1]
    local product = name == "unembedding.weight" or quantization.has_weight(name)
    return found and found.type == "Q8_0" and (entry.transposed and product or name == "embedding.weight")
end

--- The parameters that can stay codes, with their numbers of values; nil if there are none.
---@param path string of any weights
---@param shape table of mx.models.shape
---@return table<string, integer>?
function q8_0.find(path, shape)
    if not mx.weights.is_foreign(path) or shape.quantization ~= "" then
        return nil
    end
    local source <close>, found = sources.open(path), {}
    for _, entry in ipairs(source.kind == "gguf" and families.layout(source.names, shape, source.neighbours) or {}) do
        for i, name in ipairs(stays(source, entry) and entry.parts or {}) do
            local n = #entry.sizes
            found[name] = entry.lengths[i] * entry.sizes[2 * n - 1 - entry.dim] * (n == 3 and entry.sizes[1] or 1)
        end
    end
    return next(found) and found or nil
end

--- Reads a stored tensor to model.codes.
---@param source mx.WeightSource
---@param entry table of families.layout
---@param model mx.Decoder
function q8_0.load(source, entry, model)
    local file = source.tensors[entry.name].file
    local codes, scale = util.attempt(file.read_codes, file, entry.name)
    if entry.heads then
        codes = families.from_neighbours(codes, entry.heads, entry.kept)
        scale = families.from_neighbours(scale, entry.heads, entry.kept)
    end
    scale = entry.factor and scale * entry.factor or scale
    local start = 1
    for i, name in ipairs(entry.parts) do
        local rows = { dim = 1, start = start, length = entry.lengths[i] }
        local whole = #entry.parts == 1
        model.codes[name] = {
            codes = (whole and codes or mx.narrow(codes, rows):clone()):keep(),
            scale = (whole and scale or mx.narrow(scale, rows):clone()):keep(),
        }
        start = start + entry.lengths[i]
    end
end

return q8_0
