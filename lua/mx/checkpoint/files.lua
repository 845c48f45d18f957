--- Works on checkpoints without the run that saved them: verifies them and merges their parts.

local mx = require "mx"
local util = require "mx.util"

local checkpoint_files = {}

local PARAMETER = mx.checkpoint.PARAMETER

local function verify_tensor(index, path, files, name, entry)
    local elements = 0
    for _, chunk in ipairs(entry.chunks) do
        files[chunk.rank] = files[chunk.rank] or mx.checkpoint.open_rank_file(index, path, chunk.rank)
        mx.scope(function()
            local values = files[chunk.rank]:read(name)
            if values:numel() ~= chunk.count then
                util.refuse("%s/rank_%d.h5: '%s' has %d elements, the index says %d", path, chunk.rank, name,
                    values:numel(), chunk.count)
            elseif values:dtype() ~= entry.dtype then
                util.refuse("%s/rank_%d.h5: '%s' is %s, the index says %s", path, chunk.rank, name, values:dtype(),
                    entry.dtype)
            end
        end)
        elements = elements + chunk.count
    end
    return elements
end

--- Reads a whole checkpoint and checks it: its index, as loading does, and every checksum. Raises an error at the first
--- damage. Collective, but one rank reads everything: for one rank.
---@param path string
---@param progress? fun(done: integer, of: integer) called after every tensor
---@return table index, integer elements
function checkpoint_files.verify(path, progress)
    local index, files, elements, done = mx.checkpoint.index(path), {}, 0, 0
    local names = util.sorted_keys(index.tensors)
    for _, name in ipairs(names) do
        elements = elements + util.attempt(verify_tensor, index, path, files, name, index.tensors[name])
        done = done + 1
        if progress then
            progress(done, #names)
        end
    end
    for _, file in pairs(files) do
        file:close()
    end
    return index, elements
end

-- Reads rows of a whole tensor, from `start` on; for a scalar, start and rows are 1.
local function read_rows(index, path, name, entry, start, rows)
    local place = { name = name, offset = {}, extent = {}, first = 0, count = 1 }
    for d, size in ipairs(entry.shape) do
        place.offset[d], place.extent[d] = d == 1 and start - 1 or 0, d == 1 and rows or size
        place.count = place.count * place.extent[d]
    end
    local out, got = mx.zeros({ place.count }, entry.dtype), 0
    for _, chunk in ipairs(entry.chunks) do
        if mx.io.chunk_overlap(entry.shape, place, chunk) > 0 then
            local file <close> = mx.checkpoint.open_rank_file(index, path, chunk.rank)
            got = got + mx.checkpoint.read_chunk(file, entry, place, chunk, out)
        end
    end
    if got ~= place.count then
        util.refuse("%s has %d of %d elements of '%s'", path, got, place.count, name)
    end
    return mx.reshape(out, { shape = place.extent })
end

--- Puts the parts of a checkpoint together in one HDF5 file: the parameters under their own names and the buffers under
--- buffers/, as scripts/train.lua saves them, with `all` the optimizer's state beside them. A piece of a tensor is in
--- memory at a time. For one rank.
---@param path string
---@param to string
---@param o? {all: boolean, progress: fun(done: integer, of: integer)}
---@return integer tensors
function checkpoint_files.merge(path, to, o)
    o = o or {}
    local index = mx.checkpoint.index(path)
    mx.outputs.check(to, "parameters", "to")
    local file <close> = util.attempt(mx.io.h5_writer, to)
    local names, done = {}, 0
    for _, name in ipairs(util.sorted_keys(index.tensors)) do
        if o.all or not name:find("^optimizer/") then
            names[#names + 1] = name
        end
    end
    for _, name in ipairs(names) do
        local entry, stored_name = index.tensors[name], name
        if name:sub(1, #PARAMETER) == PARAMETER then
            stored_name = name:sub(#PARAMETER + 1)
        end
        for start, rows in util.pieces(entry.shape[1] or 1, entry.shape, 1) do
            mx.scope(function()
                file:put(stored_name, util.attempt(read_rows, index, path, name, entry, start, rows), entry.shape)
            end)
        end
        done = done + 1
        if o.progress then
            o.progress(done, #names)
        end
    end
    file:attributes { config = index.config, step = index.step }
    util.attempt(file.commit, file)
    return #names
end

return checkpoint_files
