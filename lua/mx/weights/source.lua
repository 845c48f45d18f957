--- Reads weights of other programs as named tensors: folders of Hugging Face models, safetensors files, GGUF files.
--- Also finds out what a path is. init.lua makes models from them.

local mx = require "mx"
local config_read = require "mx.weights.config_read"
local deepseek = require "mx.weights.deepseek"
local gguf = require "mx.weights.gguf"
local gpt_oss = require "mx.weights.gpt_oss"
local llama4 = require "mx.weights.llama4"
local util = require "mx.util"

local sources = {}

local INDEX = "model.safetensors.index.json"

---@class mx.WeightSource
---@field path string as given by the user
---@field kind "gguf"|"safetensors"
---@field folder? string the folder of config.json
---@field tensors table<string, table> by name: entries of file:info(), with their file
---@field files any[] of mx.io.weights_open
---@field keys table<string, any> the model in mxlua's keys
---@field names string a key of families.NAMES
---@field neighbours? boolean of families.layout
---@field extra_layers? integer layers for multi-token prediction that the files may have behind the last layer
---@field left_out? string what of the files is not read, for a message
---@field scale_block? integer[] sizes of the blocks of a matrix of one-byte floats that have a factor each, which is in
---       the tensor NAME_scale_inv
local Source = {}
Source.__index = Source

function Source:close()
    for _, file in ipairs(self.files) do
        file:close()
    end
    self.files = {}
end

Source.__close = Source.close

local function read(self, name, rows)
    local entry = self.tensors[name]
    return util.attempt(entry.file.read, entry.file, entry.stored_name or name, rows)
end

-- Rows of a matrix of one-byte floats times the factors of its blocks, in f32. `whole`: it is one of a stack (n, M, N).
local function read_scaled(self, name, scale, rows)
    local t, block = read(self, name, rows), self.scale_block
    local stacked, first = #self.tensors[name].shape == 3, 1
    local of_scales = stacked and rows or nil
    t = stacked and t:view(t:size(2), t:size(3)) or t
    if not stacked and rows.first then
        local from, to = (rows.first - 1) // block[1], (rows.first + rows.rows - 2) // block[1]
        first, of_scales = rows.first - from * block[1], { first = from + 1, rows = to - from + 1 }
    end
    local s = read(self, scale, of_scales):to("f32")
    s = stacked and s:view(s:size(2), s:size(3)) or s
    local M, N, m, n = t:size(1), t:size(2), s:size(1), s:size(2)
    s = mx.expand(s:view(m, 1, n, 1), { m, block[1], n, block[2] }):view(m * block[1], n * block[2])
    s = mx.narrow(mx.narrow(s, { dim = 1, start = first, length = M }), { dim = 2, start = 1, length = N })
    return t:to("f32") * s
end

--- Reads a tensor, or some of its rows: { first, rows }. One matrix of a stack of matrices comes without its first
--- dimension, which is 1, if the stack has factors of blocks. Of MXFP4 always one matrix is read.
function Source:read(name, rows)
    if self.tensors[name].blocks then
        return gpt_oss.read_blocks(self.tensors[name], rows.first)
    end
    local scale = self:scale_of(name)
    return scale and read_scaled(self, name, scale, rows or {}) or read(self, name, rows)
end

--- The name of the tensor with the factors of a tensor's blocks; nil if it has none.
---@param name string
---@return string?
function Source:scale_of(name)
    local scale = name .. "_scale_inv"
    return self.tensors[scale] and scale or nil
end

local function read_json(path)
    return util.attempt(mx.io.json_decode, util.attempt(mx.io.read_file, path), path)
end

local function join(folder, name)
    return folder == "" and name or folder .. "/" .. name
end

-- Adds the tensors of an open file; `only`: the tensors that an index expects in it.
local function enter(self, file, path, only)
    for _, entry in ipairs(file:info()) do
        local other = self.tensors[entry.name]
        if other and not only then
            util.refuse("%s and another part both have a tensor '%s'", path, entry.name)
        end
        entry.file = file
        if not only or only[entry.name] then
            self.tensors[entry.name] = entry
        end
    end
    for name in util.sorted_pairs(only or {}) do
        if not self.tensors[name] or self.tensors[name].file ~= file then
            util.refuse("%s has no tensor '%s', which %s says it has", path, name, INDEX)
        end
    end
end

local function open_file(self, path)
    local file = util.attempt(mx.io.weights_open, path)
    self.files[#self.files + 1] = file
    return file
end

-- Opens all parts of a split GGUF file, whichever part was given. Parts are named PREFIX-00001-of-00003.gguf; the first
-- has the metadata.
local function add_gguf(self, path)
    local file = open_file(self, path)
    local metadata = file:metadata()
    enter(self, file, path)
    local count, number = metadata["split.count"] or 1, metadata["split.no"] or 0
    if count == 1 then
        return metadata
    end
    local prefix, shown, of, suffix = path:match("^(.*)%-(%d%d%d%d%d)%-of%-(%d%d%d%d%d)(%.[^./]*)$")
    if math.type(count) ~= "integer" or math.type(number) ~= "integer" or count < 1 or count > 99999
        or tonumber(of) ~= count or tonumber(shown) ~= number + 1 then
        util.refuse("%s is part %s of %s of a split GGUF file, and its name does not say so: expected "
            .. "NAME-%05d-of-%05d.gguf, beside the other parts", path, tostring(math.tointeger(number + 1)),
            tostring(count), math.tointeger(number) and number + 1 or 1, math.tointeger(count) or 1)
    end
    for i = 1, count do
        local part = ("%s-%05d-of-%s%s"):format(prefix, i, of, suffix)
        if not mx.io.exists(part) then
            util.refuse("%s is part %d of %d of a split GGUF file, and part %d is missing: there is no %s", path,
                number + 1, count, i, part)
        elseif i ~= number + 1 then
            local other = open_file(self, part)
            local theirs = other:metadata()
            if theirs["split.count"] ~= count or theirs["split.no"] ~= i - 1 then
                util.refuse("%s says that it is part %s of %s: it does not belong to %s", part,
                    tostring((theirs["split.no"] or 0) + 1), tostring(theirs["split.count"] or 1), path)
            end
            enter(self, other, part)
            metadata = i == 1 and theirs or metadata
        end
    end
    local tensors = #util.sorted_keys(self.tensors)
    if (metadata["split.tensors.count"] or tensors) ~= tensors then
        util.refuse("%s: the %d parts of the split GGUF file have %d tensors, and the first says %s", path, count,
            tensors, tostring(metadata["split.tensors.count"]))
    end
    return metadata
end

local function add_shards(self, path)
    local index = read_json(path)
    local map = type(index) == "table" and index.weight_map
    if type(map) ~= "table" then
        util.refuse("%s: expected a map with weight_map in it", path)
    end
    local by_file = {}
    for name, file in util.sorted_pairs(map) do
        if type(file) ~= "string" or file:find("/") or file == "" then
            util.refuse("%s: %s: expected the name of a file beside it, got '%s'", path, name, tostring(file))
        end
        by_file[file] = by_file[file] or {}
        by_file[file][name] = true
    end
    local missing = {}
    for file in util.sorted_pairs(by_file) do
        if not mx.io.exists(join(self.folder, file)) then
            missing[#missing + 1] = file
        end
    end
    if #missing > 0 then
        util.refuse("%s names files that are not there: %s", path, table.concat(missing, ", "))
    end
    for file, names in util.sorted_pairs(by_file) do
        local at = join(self.folder, file)
        enter(self, open_file(self, at), at, names)
    end
end

local function folder_of(path)
    return path:match("^(.*)/[^/]*$") or (path:find("/") and "/" or "")
end

-- The kind of a file by its first bytes, or by its name if these are not known (for instance in a truncated file).
local FORMATS = { gguf = "gguf", safetensors = "file", hdf5 = "h5" }
local ENDINGS = { ["%.gguf$"] = "gguf", ["%.safetensors$"] = "file", ["%.h5$"] = "h5", ["%.hdf5$"] = "h5" }

local function kind_of_file(path)
    local format = util.attempt(mx.io.file_format, path)
    if FORMATS[format] then
        return FORMATS[format]
    elseif format == "git-lfs" then
        util.refuse("%s is a git-lfs pointer, not the file: run git lfs pull in its folder", path)
    elseif format == "pickle" or format == "zip" then
        util.refuse("%s is a pickled file (of PyTorch), which is not read: reading it may run code. Save the model "
            .. "with safe_serialization=True (safetensors) and give that", path)
    end
    for ending, kind in util.sorted_pairs(ENDINGS) do
        if path:lower():find(ending) then
            return kind
        end
    end
    util.refuse("%s has no weights: it begins like no safetensors, GGUF or HDF5 file", path)
end

-- The files of a folder whose names have this ending, in upper or lower case.
local function files_in(folder, ending)
    local found = {}
    for _, name in ipairs(util.attempt(mx.io.list, folder == "" and "." or folder)) do
        if name:lower():find(ending) then
            found[#found + 1] = name
        end
    end
    table.sort(found)
    return found
end

local OURS = { h5 = true, checkpoint = true, run = true }

-- The only GGUF file of a folder, or the first part of a split one; nil if there is none.
local function gguf_in(folder)
    local found = {}
    for _, name in ipairs(files_in(folder, "%.gguf$")) do
        local part = name:match("%-(%d%d%d%d%d)%-of%-%d%d%d%d%d%.[^.]*$")
        if not part or tonumber(part) == 1 then
            found[#found + 1] = name
        end
    end
    if #found > 1 then
        util.refuse("%s has several models: give one of %s", folder, table.concat(found, ", "))
    end
    return found[1] and join(folder, found[1])
end

-- The kind of a path: "gguf", "file" (safetensors), "index" or "folder" (of a Hugging Face model); or mxlua's own "h5",
-- "checkpoint" (a folder step_N) or "run" (a run's folder). Also returns the path, which is that of the GGUF file if a
-- folder has one.
local function locate(path)
    if not mx.io.exists(path) then
        util.refuse("there is no '%s': expected a folder of a Hugging Face model, a .safetensors, .gguf or .h5 file, "
            .. "or what scripts/train.lua saved", path)
    elseif not mx.io.exists(path .. "/.") then
        return path:find("%.index%.json$") and "index" or kind_of_file(path), path
    elseif mx.io.exists(path .. "/index.json") then
        return "checkpoint", path
    elseif mx.io.exists(path .. "/config.yml") then
        return "run", path
    end
    local file = not mx.io.exists(path .. "/config.json") and gguf_in(path:gsub("(.)/+$", "%1"))
    return file and "gguf" or "folder", file or path
end

-- Refuses a folder without model.safetensors and index. Its other files are not guessed at: they may be an adapter, or
-- half of a model.
local function refuse_folder(folder)
    local others, pickles = files_in(folder, "%.safetensors$"), {}
    local indices = files_in(folder, "%.safetensors%.index%.json$")
    table.move(indices, 1, #indices, #others + 1, others)
    for _, ending in ipairs({ "%.bin$", "%.pt$", "%.pth$", "%.ckpt$" }) do
        local names = files_in(folder, ending)
        table.move(names, 1, #names, #pickles + 1, pickles)
    end
    util.refuse("%s has neither model.safetensors nor %s%s", folder, INDEX,
        #others > 0 and "; of what it has, give the model's file: " .. table.concat(others, ", ")
        or #pickles > 0 and "; " .. pickles[1] .. " is not read: save the model with safe_serialization" or "")
end

-- Adds safetensors files. `path`: the file that was given; nil: those of the folder. A shard stands for all shards in
-- its index.
local function add_safetensors(self, path)
    local index = join(self.folder, INDEX)
    if not path then
        path = join(self.folder, "model.safetensors")
        path = mx.io.exists(path) and path or mx.io.exists(index) and index or refuse_folder(self.folder)
    elseif path:find("%-%d+%-of%-%d+%.safetensors$") then
        path = mx.io.exists(index) and index or path
    end
    if path:find("%.index%.json$") then
        add_shards(self, path)
    else
        enter(self, open_file(self, path), path)
    end
end

local function open_folder(self, kind, path)
    self.kind, self.folder = "safetensors", kind == "folder" and path:gsub("(.)/+$", "%1") or folder_of(path)
    local config_path = join(self.folder, "config.json")
    if not mx.io.exists(config_path) then
        util.refuse("%s has no config.json%s", kind == "folder" and path or "the folder of " .. path,
            kind == "folder" and ": it is no folder of a Hugging Face model" or "")
    end
    if kind == "index" then
        add_shards(self, path)
    else
        add_safetensors(self, kind == "file" and path or nil)
    end
    self.config = read_json(config_path)
    self.keys, self.names = config_read.read(self.config, config_path)
    if self.keys.decoder_block == "deepseek" then
        self.neighbours = deepseek.neighbours(self.config)
        self.extra_layers = deepseek.extra_layers(self.config)
    end
    self.scale_block = config_read.scale_block(self.config, config_path)
    if self.keys.decoder_block == "llama4" then
        self.neighbours = true
        return llama4.keep_text(self)
    elseif self.names == "gpt_oss" then
        return gpt_oss.join_blocks(self)
    end
    for name in pairs(self.tensors) do
        if name:find("%.mlp%.experts%.down_proj$") then
            self.names = "fused." .. self.names
            break
        end
    end
end

--- Opens weights: a folder of a Hugging Face model, its .safetensors or .index.json file, or a .gguf file. Not
--- collective: each rank opens them.
---@param path string
---@return mx.WeightSource to be closed: local source <close> = ...
function sources.open(path)
    local self = setmetatable({ path = path, files = {}, tensors = {} }, Source)
    local kind
    kind, path = locate(path)
    if OURS[kind] then
        util.refuse("%s holds parameters of ours: mx.weights.load and mx.weights.model read them", path)
    end
    local function open()
        if kind == "gguf" then
            self.kind, self.metadata = "gguf", add_gguf(self, path)
            local architecture
            self.keys, architecture = gguf.keys(self)
            self.names, self.neighbours = "gguf." .. architecture, architecture == "llama"
        else
            open_folder(self, kind, path)
        end
    end
    local opened, problem = pcall(open)
    if not opened then
        self:close()
        error(problem, 0)
    end
    return self
end

--- The metadata of a GGUF file; for a split file, that of its first part.
---@param path string of any part
---@return table<string, any>
function sources.gguf_metadata(path)
    local self <close> = setmetatable({ path = path, files = {}, tensors = {} }, Source)
    return add_gguf(self, path)
end

sources.join, sources.locate, sources.OURS = join, locate, OURS
sources.read_json, sources.folder_of = read_json, folder_of

return sources
