--- Saves a model as a Hugging Face folder. See init.lua.

local mx = require "mx"
local codes = require "mx.models.codes"
local config_write = require "mx.weights.config_write"
local families = require "mx.weights.families"
local gguf = require "mx.weights.gguf"
local sources = require "mx.weights.source"
local util = require "mx.util"

local INDEX = "model.safetensors.index.json"
local UNFINISHED = ".mxlua-unfinished.json"
local TOKENIZER_FILES = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json",
}

-- Families whose RoPE rotates neighbours, and knows no other order.
local NEIGHBOURS = { deepseek_v2 = true, llama4_text = true }

local function path_of(folder, name)
    return folder .. "/" .. name
end

-- Distributes tensors over files of at most `most` bytes each (0: one file; a larger tensor gets its own file). Returns
-- the list of entries of each file.
local function shards_of(layout, most, width)
    local shards, bytes = { {} }, 0
    for _, entry in ipairs(layout) do
        local size = entry.dtype and mx.dtypes[entry.dtype].bytes or width
        for _, n in ipairs(entry.sizes) do
            size = size * n
        end
        entry.bytes = size
        if most > 0 and bytes > 0 and bytes + size > most then
            shards[#shards + 1], bytes = {}, 0
        end
        table.insert(shards[#shards], entry)
        bytes = bytes + size
    end
    return shards
end

-- Groups the parameters of a stored tensor: a group's parameters are its columns, the groups follow each other as rows.
local function groups_of(entry)
    local groups = {}
    for i, name in ipairs(entry.parts) do
        local group = entry.dim == 1 and i or 1
        groups[group] = groups[group] or { rows = entry.dim == 1 and entry.lengths[i] or entry.sizes[1] }
        table.insert(groups[group], name)
    end
    return groups
end

-- This rank's part of a parameter; nil if it is on another stage of a pipeline.
local function values_of(model, name)
    local t = model.params[name]
    return t and t:detach()
end

-- The columns of several parameters: one after the other, or alternating.
local function join_columns(entry, pieces)
    if #pieces == 1 then
        return pieces[1]
    elseif not entry.alternating then
        return mx.concat(pieces, { dim = 2 })
    end
    local rows, columns = pieces[1]:size(1), pieces[1]:size(2)
    return mx.stack(pieces, { dim = 3 }):view(rows, #pieces * columns)
end

-- The matrices of experts, one after the other.
local function each_expert(model, entry, put)
    for expert = entry.first_expert, entry.first_expert + entry.experts - 1 do
        mx.scope(function()
            local pieces = {}
            for i, name in ipairs(entry.parts) do
                local range = { dim = 1, start = expert, length = 1 }
                local piece = model.parallel:piece(name, values_of(model, name), range)
                pieces[i] = put and piece:view(piece:size(2), piece:size(3))
            end
            if put then
                local piece = join_columns(entry, pieces)
                piece = entry.transposed and mx.transpose(piece) or piece
                put(#entry.sizes == 3 and piece:view(1, piece:size(1), piece:size(2)) or piece)
            end
        end)
    end
end

-- Assembles a stored tensor from the model's parameters, some rows at a time, and passes them to `put` in order. Only
-- rank 0 has `put`; other ranks pass nil. A matrix of an expert is one piece, and so is one whose rows are reordered.
-- Collective on a mesh.
local function each_piece(model, entry, put)
    if entry.buffer then
        return put and put(model.buffers[entry.buffer])
    elseif entry.experts then
        return each_expert(model, entry, put)
    end
    for _, group in ipairs(groups_of(entry)) do
        for start, length in util.pieces(group.rows, entry.heads and { group.rows } or entry.sizes, 1) do
            mx.scope(function()
                local range, pieces = { dim = entry.transposed and 2 or 1, start = start, length = length }, {}
                for i, name in ipairs(group) do
                    pieces[i] = model.parallel:piece(name, values_of(model, name), range)
                end
                if put then
                    local piece = join_columns(entry, pieces)
                    piece = entry.factor and piece:to("f32") / entry.factor or piece
                    piece = entry.transposed and mx.transpose(piece) or piece
                    put(entry.heads and families.to_neighbours(piece, entry.heads, entry.kept) or piece)
                end
            end)
        end
    end
end

local function write_shard(path, shard, model, dtype, done)
    local plan, writer = {}, nil
    for i, entry in ipairs(shard) do
        plan[i] = { name = entry.name, dtype = entry.dtype or dtype, shape = entry.sizes }
    end
    if mx.rank() == 0 then
        writer = util.attempt(mx.io.safetensors_writer, path, plan)
    end
    for _, entry in ipairs(shard) do
        each_piece(model, entry, writer and function(piece)
            util.attempt(writer.put, writer, entry.name, piece:to(entry.dtype or dtype))
        end)
        done()
    end
    if writer then
        util.attempt(writer.commit, writer)
    end
end

local function write_index(path, shards, file_of)
    local map, total = {}, 0
    for i, shard in ipairs(shards) do
        for _, entry in ipairs(shard) do
            map[entry.name], total = file_of(i), total + entry.bytes
        end
    end
    local text = mx.io.json_encode({ metadata = { total_size = total }, weight_map = map }, { indent = 2 })
    util.attempt(mx.io.write_file_atomic, path, text .. "\n")
end

-- Writes the tokenizer of a GGUF file as tokenizer files; returns the ids of its special tokens.
local function write_tokenizer(path, folder)
    local metadata = sources.gguf_metadata(path)
    local json, special = gguf.tokenizer({ path = path, metadata = metadata })
    local tokens = metadata["tokenizer.ggml.tokens"]
    local settings = {
        tokenizer_class = "PreTrainedTokenizerFast", add_bos_token = special.add_bos, add_eos_token = special.add_eos,
        bos_token = special.bos and tokens[special.bos + 1], eos_token = special.eos and tokens[special.eos + 1],
        chat_template = metadata["tokenizer.chat_template"],
    }
    util.attempt(mx.io.write_file_atomic, path_of(folder, "tokenizer.json"), json)
    util.attempt(mx.io.write_file_atomic, path_of(folder, "tokenizer_config.json"),
        mx.io.json_encode(settings, { indent = 2 }) .. "\n")
    local ids = {
        bos_token_id = special.bos, eos_token_id = #special.ends > 1 and mx.io.array(special.ends) or special.ends[1],
        pad_token_id = mx.tokenizer.ids(metadata, "tokenizer.ggml.padding_token_id", path)[1],
    }
    if #special.ends > 1 then -- generating programs look there first
        util.attempt(mx.io.write_file_atomic, path_of(folder, "generation_config.json"),
            mx.io.json_encode(ids, { indent = 2 }) .. "\n")
    end
    return ids
end

-- Copies the tokenizer files of a folder; returns the config.json of that folder.
local function copy_tokenizer(from, folder)
    local above, name_of_file = from:match("^(.-)/?([^/]*%.json)$")
    if name_of_file == "tokenizer.json" then
        from = above == "" and "." or above
    elseif name_of_file then
        util.attempt(mx.io.write_file_atomic, path_of(folder, "tokenizer.json"), util.attempt(mx.io.read_file, from))
        return {}
    end
    local found = 0
    for _, name in ipairs(TOKENIZER_FILES) do
        if mx.io.exists(path_of(from, name)) then
            local text = util.attempt(mx.io.read_file, path_of(from, name))
            util.attempt(mx.io.write_file_atomic, path_of(folder, name), text)
            found = found + 1
        end
    end
    if found == 0 then
        util.refuse("tokenizer: %s has none of %s", from, table.concat(TOKENIZER_FILES, ", "))
    end
    local config = path_of(from, "config.json")
    local values = mx.io.exists(config) and util.attempt(mx.io.json_decode, util.attempt(mx.io.read_file, config))
    return type(values) == "table" and values or {}
end

-- Stores a tokenizer's files with the model, and the ids of its special tokens in config.json.
local function add_tokenizer(from, folder, values)
    local is_gguf = not mx.io.exists(from .. "/.") and util.attempt(mx.io.file_format, from) == "gguf"
    local theirs = (is_gguf and write_tokenizer or copy_tokenizer)(from, folder)
    for _, key in ipairs({ "bos_token_id", "eos_token_id", "pad_token_id" }) do
        values[key] = theirs[key] or values[key]
    end
end

-- Prepares a folder. While it is being filled, a file in it lists the files of this save. An interrupted save leaves
-- that list, and the next save into the folder first removes the listed files. Returns the folder's lock.
local function begin_folder(folder, names)
    util.attempt(mx.io.mkdir_p, folder)
    local lock = util.attempt(require("mx.run.folder").lock, folder, "choose another folder")
    local mark = path_of(folder, UNFINISHED)
    local was = mx.io.exists(mark) and util.attempt(mx.io.json_decode, util.attempt(mx.io.read_file, mark), mark)
    for _, name in ipairs(type(was) == "table" and was or {}) do
        if type(name) == "string" and not name:find("/") then
            os.remove(path_of(folder, name))
        end
    end
    for _, name in ipairs(names) do
        if mx.io.exists(path_of(folder, name)) then
            lock:release()
            util.refuse("%s holds a model already (%s): give another folder, or remove it first", folder, name)
        end
    end
    util.attempt(mx.io.write_file_atomic, mark, mx.io.json_encode(mx.io.array(names)) .. "\n")
    return lock
end

--- Saves a model as a Hugging Face folder, from rank 0: config.json, and model.safetensors or shards of it with their
--- index. config.json is written last, so a folder without it is incomplete. A folder that already has one of these
--- files is refused, unless an interrupted save left it. A model that fits none of the families is refused. Collective.
---@param model mx.Decoder
---@param folder string created if missing
---@param o? {dtype: string, max_shard_size: integer, tokenizer: string} dtype: "f32" or "bf16", by default that of the
---       parameters; max_shard_size in bytes, 0: one file; tokenizer: a folder whose tokenizer files are copied, a
---       tokenizer.json of any name, or a GGUF file whose tokenizer is converted to such files
---@return string family
local function save(model, folder, o)
    o = util.options(o, { dtype = "", max_shard_size = 0, tokenizer = "" }, "mx.weights.save")
    codes.refuse(model, "saving")
    local shape = model.shape
    local family = config_write.family(shape)
    local dtype = o.dtype ~= "" and o.dtype or shape.weight_dtype
    local layout = families.layout(family, shape, NEIGHBOURS[family])
    local values = config_write.values(shape, family, dtype)
    local shards = shards_of(layout, o.max_shard_size, mx.dtypes[dtype].bytes)
    local function file_of(i)
        return #shards == 1 and "model.safetensors" or ("model-%05d-of-%05d.safetensors"):format(i, #shards)
    end
    local lock
    mx.checkpoint.together(function()
        if mx.rank() == 0 then
            local names = { "config.json", INDEX, "model.safetensors" }
            for i = 1, #shards > 1 and #shards or 0 do
                names[#names + 1] = file_of(i)
            end
            table.move(TOKENIZER_FILES, 1, o.tokenizer ~= "" and #TOKENIZER_FILES or 0, #names + 1, names)
            lock = begin_folder(folder, names)
            if o.tokenizer ~= "" then
                add_tokenizer(o.tokenizer, folder, values)
            end
        end
    end)
    local progress, done = mx.metrics.progress("tensors written", #layout), 0
    for i, shard in ipairs(shards) do
        write_shard(path_of(folder, file_of(i)), shard, model, dtype, function()
            done = done + 1
            progress(done)
        end)
    end
    if mx.rank() == 0 then
        if #shards > 1 then
            write_index(path_of(folder, INDEX), shards, file_of)
        end
        local text = mx.io.json_encode(values, { indent = 2 })
        util.attempt(mx.io.write_file_atomic, path_of(folder, "config.json"), text .. "\n")
        os.remove(path_of(folder, UNFINISHED))
        lock:release()
    end
    mx.barrier()
    return family
end

return save
