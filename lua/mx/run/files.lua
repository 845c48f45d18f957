--- Checks that files which several ranks read are the same on all of them.

local mx = require "mx"

local files = {}

local function describe(path)
    local bytes = mx.io.file_size(path)
    local summed, sum = pcall(mx.io.file_sum, path)
    return { bytes = bytes or -1, sum = summed and sum or 0 }
end

local function show(file)
    return file.bytes < 0 and "not there" or ("%d bytes, checksum %08x"):format(file.bytes, file.sum)
end

--- Refuses files that differ between ranks in their number, size or checksum. The checksum covers a small file
--- completely and a large file in samples. A file that is missing on all ranks is ignored. Collective: each rank gives
--- a path, or none does.
---@param paths string[]
---@param refuse? fun(format: string, ...) default: mx.util.refuse
function files.check_same(paths, refuse)
    if mx.ranks() == 1 or mx.is_simulated() or #paths == 0 then
        return
    end
    local own = { host = mx.host_name(), files = {} }
    for i, path in ipairs(paths) do
        own.files[i] = describe(path)
    end
    local first = mx.io.json_decode(mx.share_text(mx.io.json_encode(own)))
    mx.checkpoint.together(function()
        if #paths ~= #first.files then
            (refuse or mx.util.refuse)("the ranks find different files: %d on %s (rank 0), %d on %s (rank %d). All "
                .. "need the same: use a folder that all see, or copy the files to every machine", #first.files,
                first.host, #paths, own.host, mx.rank())
        end
        for i, path in ipairs(paths) do
            local mine, theirs = show(own.files[i]), show(first.files[i] or { bytes = -1 })
            if mine ~= theirs then
                (refuse or mx.util.refuse)("the ranks read different files '%s': %s on %s (rank 0), %s on %s "
                    .. "(rank %d). All need the same: use a folder that all see, or copy the file to every machine",
                    path, theirs, first.host, mine, own.host, mx.rank())
            end
        end
    end)
end

-- The files that make up weights, as rank 0 sees them: one file, or the relevant files of a folder.
local function parts_of(path)
    local list = {}
    for _, name in ipairs(mx.io.exists(path .. "/.") and mx.io.list(path) or {}) do
        if name:find("%.safetensors$") or name:find("%.json$") or name:find("%.h5$") then
            list[#list + 1] = path .. "/" .. name
        end
    end
    return #list > 0 and list or { path }
end

--- Refuses weights that differ between the ranks: a file, or the files of a folder. Collective.
---@param path string
function files.check_same_weights(path)
    if mx.ranks() > 1 and not mx.is_simulated() then
        files.check_same(mx.io.json_decode(mx.share_text(mx.rank() == 0 and mx.io.json_encode(parts_of(path)) or nil)))
    end
end

return files
