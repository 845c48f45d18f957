--- The index of a checkpoint: index.json, which says which file holds which values; and checks that it can be true.
--
-- A checkpoint may come from anyone. Its seal proves that the index is unchanged, but not that it makes sense. So all
-- code that reads a checkpoint reads the index here. Each value is checked for its type, its range and the sizes of the
-- files, before anything is allocated or looped over.

local mx = require "mx"
local util = require "mx.util"

local checkpoint_index = {}

local FORMAT = 2 -- 1 kept optimizer, passes, data and guard in `state`
local OURS = { "optimizer", "passes", "data", "guard" }
local MOST_STEPS = 1 << 53 -- any JSON reader keeps integers up to here exact
local MOST_RANKS = 1 << 20
local MOST_DIMENSIONS = 6 -- MX_MAX_DIMS of engine/core/tensor.h
local MOST_INDEX_BYTES = 1 << 30

local function refuse(path, format, ...)
    util.refuse("%s: " .. format, path, ...)
end

-- ---- the seal ----

--- The text of an index; it ends with the checksum of the text before it.
---@param index table
---@return string
function checkpoint_index.seal(index)
    index.format = FORMAT
    local text = mx.io.json_encode(index)
    return ('%s,"crc32c":"%08x"}\n'):format(text:sub(1, -2), mx.io.crc32c(text))
end

local function unseal(text, path)
    local body, sum = text:match('^(.*),"crc32c":"(%x%x%x%x%x%x%x%x)"}\n$')
    if not body or mx.io.crc32c(body .. "}") ~= tonumber(sum, 16) then
        util.refuse("%s is damaged: its checksum is wrong", path)
    end
    local index = util.attempt(mx.io.json_decode, text, path)
    if index.format ~= FORMAT and index.format ~= 1 then
        util.refuse("%s is of format %s; this mxlua reads format %d", path, tostring(index.format), FORMAT)
    end
    return index
end

-- ---- values ----

local function is_whole(value, least, most)
    return math.type(value) == "integer" and value >= least and value <= most
end

-- A short text of any value, for messages.
local function show(value)
    if type(value) == "table" then
        return value == mx.io.null and "null" or "a list or an object"
    elseif type(value) == "string" then
        return #value > 40 and ("'%s...'"):format(value:sub(1, 40)) or ("'%s'"):format(value)
    end
    return tostring(value)
end

local function need_whole(path, what, value, least, most)
    if not is_whole(value, least, most) then
        refuse(path, "%s is %s, expected a whole number from %d to %d", what, show(value), least, most)
    end
end

local function need_text(path, what, value)
    if type(value) ~= "string" then
        refuse(path, "%s is %s, expected a text", what, show(value))
    end
end

local function need_table(path, what, value)
    if type(value) ~= "table" or value == mx.io.null then
        refuse(path, "%s is %s, expected a list or an object", what, show(value))
    end
end

-- Checks a list of `length` integers that are not negative.
local function need_sizes(path, what, list, length)
    need_table(path, what, list)
    local n = 0
    for _ in pairs(list) do
        n = n + 1
    end
    if n ~= #list or n ~= length then
        refuse(path, "%s has %d entries, expected a list of %d", what, n, length)
    end
    for d = 1, length do
        need_whole(path, ("%s[%d]"):format(what, d), list[d], 0, math.maxinteger)
    end
end

-- The product of sizes; nil if it exceeds `most`.
local function product(sizes, most)
    local count = 1
    for _, size in ipairs(sizes) do
        if size == 0 then
            return 0
        end
    end
    for _, size in ipairs(sizes) do
        if size > most // count then
            return nil
        end
        count = count * size
    end
    return count
end

-- ---- what a run stores ----

local function check_numbers(path, what, list)
    need_table(path, what, list)
    for i, value in ipairs(list) do
        if type(value) ~= "number" or value - value ~= 0 then
            refuse(path, "%s[%d] is %s, expected a finite number", what, i, show(value))
        end
    end
end

local function check_state(path, index)
    if index.optimizer ~= nil then
        need_table(path, "optimizer", index.optimizer)
        need_text(path, "optimizer.kind", index.optimizer.kind)
        need_whole(path, "optimizer.steps", index.optimizer.steps, 0, MOST_STEPS)
    end
    if index.passes ~= nil then
        need_whole(path, "passes", index.passes, 0, MOST_STEPS)
    end
    if index.guard ~= nil then
        need_table(path, "guard", index.guard)
        check_numbers(path, "guard.losses", index.guard.losses)
        check_numbers(path, "guard.norms", index.guard.norms)
        need_whole(path, "guard.skipped", index.guard.skipped, 0, MOST_STEPS)
    end
    if index.data ~= nil then
        need_table(path, "data", index.data)
        for key, value in pairs(index.data) do
            if type(value) ~= "string" and (type(value) ~= "number" or value - value ~= 0) then
                refuse(path, "data.%s is %s, expected a text or a number", tostring(key), show(value))
            end
        end
        need_whole(path, "data.samples", math.tointeger(index.data.samples), 0, MOST_STEPS)
    end
    if index.random ~= nil then
        need_table(path, "random", index.random)
        need_whole(path, "random.draws", index.random.draws, 0, MOST_STEPS)
        need_whole(path, "random.seed", index.random.seed, math.mininteger, math.maxinteger)
        for key in pairs(index.random) do
            if key ~= "draws" and key ~= "seed" then
                refuse(path, "random.%s: expected draws and seed only", show(key))
            end
        end
    end
    if index.loss ~= nil and (type(index.loss) ~= "number" or index.loss - index.loss ~= 0) then
        refuse(path, "loss is %s, expected a finite number", show(index.loss))
    end
end

-- ---- tensors ----

local function check_name(path, name)
    local rest = name:match("^parameters/(.*)$") or name:match("^buffers/(.*)$") or name:match("^optimizer/(.*)$")
    if not rest or #name > 4096 then
        refuse(path, "tensor %s: expected a name that starts with parameters/, buffers/ or optimizer/", show(name))
    end
    for part in (rest .. "/"):gmatch("([^/]*)/") do
        if part == "" or part == "." or part == ".." then
            refuse(path, "tensor %s: the parts of its name between '/' must be names", show(name))
        end
    end
end

local function text_of(list)
    return table.concat(list, ",")
end

-- Checks the boxes of a tensor's chunks. They form a grid, so along each dimension any two are equal or disjoint.
local function check_grid(path, name, boxes, n_dims)
    for d = 1, n_dims do
        table.sort(boxes, function(a, b)
            if a.offset[d] ~= b.offset[d] then
                return a.offset[d] < b.offset[d]
            end
            return a.extent[d] < b.extent[d]
        end)
        for i = 2, #boxes do
            local a, b = boxes[i - 1], boxes[i]
            local same = a.offset[d] == b.offset[d] and a.extent[d] == b.extent[d]
            if not same and a.offset[d] + a.extent[d] > b.offset[d] then
                refuse(path, "'%s': chunks of rank %d and rank %d overlap", name, a.rank, b.rank)
            end
        end
    end
end

-- Checks the chunks of one box: their ranges of elements.
local function check_runs(path, name, chunks)
    table.sort(chunks, function(a, b)
        return a.first < b.first
    end)
    for i = 2, #chunks do
        if chunks[i - 1].first + chunks[i - 1].count > chunks[i].first then
            refuse(path, "'%s': chunks of rank %d and rank %d overlap", name, chunks[i - 1].rank, chunks[i].rank)
        end
    end
end

local function check_chunk(path, index, what, entry, chunk, used)
    need_table(path, what, chunk)
    need_whole(path, what .. ".rank", chunk.rank, 0, index.ranks - 1)
    need_sizes(path, what .. ".offset", chunk.offset, #entry.shape)
    need_sizes(path, what .. ".extent", chunk.extent, #entry.shape)
    for d, size in ipairs(entry.shape) do
        if chunk.offset[d] > size or chunk.extent[d] > size - chunk.offset[d] then
            refuse(path, "%s: elements %d to %d of dimension %d, which has %d", what, chunk.offset[d],
                chunk.offset[d] + chunk.extent[d], d, size)
        end
    end
    local box = product(chunk.extent, math.maxinteger) or 0
    need_whole(path, what .. ".first", chunk.first, 0, box)
    need_whole(path, what .. ".count", chunk.count, 0, box - chunk.first)
    local bytes = chunk.count * mx.dtypes[entry.dtype].bytes
    used[chunk.rank] = (used[chunk.rank] or 0) + bytes
    if bytes < 0 or used[chunk.rank] < 0 or used[chunk.rank] > index.bytes[chunk.rank] then
        refuse(path, "%s: rank_%d.h5 has %d bytes, too few for the values that it is said to have", what, chunk.rank,
            index.bytes[chunk.rank])
    end
end

local function check_entry(path, index, name, entry, used)
    local what = ("'%s'"):format(name)
    need_table(path, what, entry)
    if not mx.dtypes[entry.dtype] then
        refuse(path, "%s has the dtype %s, expected one of %s", what, show(entry.dtype),
            table.concat(util.sorted_keys(mx.dtypes), ", "))
    end
    need_table(path, what .. ".shape", entry.shape)
    if #entry.shape > MOST_DIMENSIONS then
        refuse(path, "%s has %d dimensions, expected at most %d", what, #entry.shape, MOST_DIMENSIONS)
    end
    need_sizes(path, what .. ".shape", entry.shape, #entry.shape)
    local whole = product(entry.shape, math.maxinteger // 8)
    if not whole then
        refuse(path, "%s has the shape (%s), more elements than there can be", what, text_of(entry.shape))
    end
    need_table(path, what .. ".chunks", entry.chunks)
    local covered, boxes, by_box = 0, {}, {}
    for i, chunk in ipairs(entry.chunks) do
        check_chunk(path, index, ("%s, chunk %d"):format(what, i), entry, chunk, used)
        if chunk.count > 0 then
            covered = covered + chunk.count
            local key = text_of(chunk.offset) .. ":" .. text_of(chunk.extent)
            if not by_box[key] then
                by_box[key] = {}
                boxes[#boxes + 1] = chunk
            end
            table.insert(by_box[key], chunk)
        end
    end
    check_grid(path, name, boxes, #entry.shape)
    for _, chunks in util.sorted_pairs(by_box) do
        check_runs(path, name, chunks)
    end
    if covered ~= whole then
        refuse(path, "it has %d of the %d elements of '%s'", covered, whole, name)
    end
end

-- ---- reading ----

-- The sizes of the files rank_R.h5 in a folder, by R as a string.
local function sizes_of(folder)
    local bytes = {}
    for _, name in ipairs(util.attempt(mx.io.list, folder)) do
        local rank = math.tointeger(tonumber(name:match("^rank_(%d+)%.h5$")))
        if rank and name == ("rank_%d.h5"):format(rank) then
            bytes[tostring(rank)] = util.attempt(mx.io.about, folder .. "/" .. name).bytes
        end
    end
    return bytes
end

local function check(index, path, folder, sizes)
    need_whole(path, "step", index.step, 0, MOST_STEPS)
    local named = folder:match("step_(%d+)$")
    if named and tonumber(named) ~= index.step then
        refuse(path, "it is of step %d, and its folder is named step_%s", index.step, named)
    end
    need_whole(path, "ranks", index.ranks, 1, MOST_RANKS)
    index.bytes = {}
    for rank = 0, index.ranks - 1 do
        index.bytes[rank] = sizes[tostring(rank)]
        if not index.bytes[rank] then
            refuse(path, "it was saved by %d ranks, and rank_%d.h5 is missing", index.ranks, rank)
        end
    end
    for _, key in ipairs({ "id", "config", "script", "script_name", "mxlua" }) do
        need_text(path, key, index[key])
    end
    check_state(path, index)
    need_table(path, "tensors", index.tensors)
    if not next(index.tensors) then
        refuse(path, "it has no tensors")
    end
    local used = {}
    for name, entry in util.sorted_pairs(index.tensors) do
        if type(name) ~= "string" then
            refuse(path, "tensors is a list, expected an object")
        end
        check_name(path, name)
        check_entry(path, index, name, entry, used)
    end
end

--- Reads and checks the index of a checkpoint. Raises an error that says what is wrong. Collective: rank 0 reads.
---@param folder string
---@return table index: step, ranks, id, tensors, state, config, script, script_name, mxlua; optimizer, passes, data,
---        guard, random and loss if they were saved; bytes of each rank's file
function checkpoint_index.read(folder)
    local path = folder .. "/index.json"
    local about = mx.rank() == 0 and select(2, pcall(mx.io.about, path))
    local size = math.tointeger(mx.share_text(mx.rank() == 0 and tostring(type(about) == "table" and about.bytes or 0)
        or nil))
    if size > MOST_INDEX_BYTES then
        refuse(path, "it has %d bytes, expected at most %d", size, MOST_INDEX_BYTES)
    end
    local text, reason = mx.read_file(path)
    if not text then
        util.refuse("%s is no checkpoint: %s", folder, reason)
    end
    local index = unseal(text, path)
    local good, sizes = true, nil
    if mx.rank() == 0 then
        good, sizes = pcall(sizes_of, folder)
    end
    local shared = mx.io.json_decode(mx.share_text(mx.rank() == 0 and mx.io.json_encode {
        sizes = good and sizes or nil, reason = not good and tostring(sizes) or nil } or nil))
    if shared.reason then
        util.refuse("%s", shared.reason)
    end
    if index.format == 1 then
        need_table(path, "state", index.state)
        for _, key in ipairs(OURS) do
            index[key] = index.state[key]
        end
    end
    check(index, path, folder, shared.sizes)
    return index
end

--- The complete checkpoints in a folder, newest first. Not collective.
---@param directory string
---@return {step: integer, path: string}[]
function checkpoint_index.list(directory)
    local found = {}
    for _, name in ipairs(mx.io.exists(directory) and util.attempt(mx.io.list, directory) or {}) do
        local step = math.tointeger(tonumber(name:match("^step_(%d+)$")))
        if step and name == ("step_%d"):format(step) then
            found[#found + 1] = { step = step, path = directory .. "/" .. name }
        end
    end
    table.sort(found, function(a, b)
        return a.step > b.step
    end)
    return found
end

return checkpoint_index
