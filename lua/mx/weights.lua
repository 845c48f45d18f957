--- Weights of other programs: a Hugging Face folder, a safetensors file or a GGUF file as a model, and a model as a
--- Hugging Face folder. Our own HDF5 files are read here too, so that a script takes any of them.
--
--     local model, config = mx.weights.model("SmolLM2-135M")      -- a folder, FILE.gguf, FILE.h5 ...
--     mx.weights.save(model, "out")                               -- config.json, model.safetensors
--
-- Tensors are read and written one at a time: of a model on a mesh a rank never holds more than its parts and one whole
-- tensor.

local mx = require "mx"
local families = require "mx.weights_families"
local gguf = require "mx.weights_gguf"
local util = require "mx.util"

local weights = {}

local INDEX = "model.safetensors.index.json"
-- The keys that describe a model.
local KEYS = util.sorted_keys(families.standard())
table.move({
    "base_emb_dim", "base_num_query_heads", "base_num_kv_heads", "head_dim", "base_mlp_dim", "base_num_decoder_layers",
    "vocab_size", "mlp_activations", "normalization_layer_epsilon", "rope_max_timescale", "rope_factor",
    "rope_low_freq_factor", "rope_high_freq_factor", "original_max_position_embeddings", "max_position_embeddings",
}, 1, 15, #KEYS + 1, KEYS)

-- Keys that say how it was used: kept with parameters of ours.
local USES = {
    "model_name", "max_target_length", "dtype", "weight_dtype", "dropout_rate", "init_std", "tokenizer_path", "add_bos",
    "add_eos",
}

-- Keys that a config may have otherwise than the file: how a model is used, not what it computes.
local FREE = { max_position_embeddings = true, max_target_length = true }

-- ---- sources ----

---@class mx.WeightSource
---@field path string as it was given
---@field kind "gguf"|"safetensors"
---@field folder? string where config.json lies
---@field tensors table<string, table> by name: entries of file:info(), with their file
---@field files any[] of mx.io.weights_open
---@field keys table<string, any> the model in our keys
---@field names string a key of families.NAMES
local Source = {}
Source.__index = Source

function Source:close()
    for _, file in ipairs(self.files) do
        file:close()
    end
    self.files = {}
end

Source.__close = Source.close

--- A tensor, or some of its rows.
function Source:read(name, rows)
    local file = self.tensors[name].file
    return util.attempt(file.read, file, name, rows)
end

local function read_json(path)
    return util.attempt(mx.io.json_decode, util.attempt(mx.io.read_file, path), path)
end

local function join(folder, name)
    return folder == "" and name or folder .. "/" .. name
end

-- Opens one file and enters its tensors; `only`: of an index, which of them it should have.
local function add_file(self, path, only)
    local file = util.attempt(mx.io.weights_open, path)
    self.files[#self.files + 1] = file
    for _, entry in ipairs(file:info()) do
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
    return file
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
    for file, names in util.sorted_pairs(by_file) do
        add_file(self, join(self.folder, file), names)
    end
end

local function folder_of(path)
    return path:match("^(.*)/[^/]*$") or (path:find("/") and "/" or "")
end

-- What a path is: "gguf", "file" (safetensors), "index" or "folder" (of a Hugging Face model); of ours "h5",
-- "checkpoint" (a folder step_N) or "run" (a run's folder).
local function kind_of(path)
    for _, case in ipairs({ { "%.gguf$", "gguf" }, { "%.safetensors$", "file" }, { "%.index%.json$", "index" } }) do
        if path:find(case[1]) then
            return case[2]
        end
    end
    if not mx.io.exists(path) then
        util.refuse("there is no '%s': expected a folder of a Hugging Face model, a .safetensors, .gguf or .h5 file, "
            .. "or what scripts/train.lua saved", path)
    elseif not mx.io.exists(path .. "/.") then
        return "h5"
    elseif mx.io.exists(path .. "/index.json") then
        return "checkpoint"
    end
    return mx.io.exists(path .. "/config.yml") and "run" or "folder"
end

local OURS = { h5 = true, checkpoint = true, run = true }

--- Whether a path names weights of another program. Not collective.
---@param path string
---@return boolean
function weights.is_foreign(path)
    return not OURS[kind_of(path)]
end

local function open_folder(self, kind, path)
    self.kind, self.folder = "safetensors", kind == "folder" and path:gsub("(.)/+$", "%1") or folder_of(path)
    local config_path = join(self.folder, "config.json")
    if not mx.io.exists(config_path) then
        util.refuse("%s has no config.json%s", kind == "folder" and path or "the folder of " .. path,
            kind == "folder" and ": it is no folder of a Hugging Face model" or "")
    end
    local single, index = join(self.folder, "model.safetensors"), join(self.folder, INDEX)
    if kind == "file" then
        add_file(self, path)
    elseif kind == "index" then
        add_shards(self, path)
    elseif mx.io.exists(single) then
        add_file(self, single)
    elseif mx.io.exists(index) then
        add_shards(self, index)
    else
        util.refuse("%s has neither model.safetensors nor %s%s", path, INDEX,
            mx.io.exists(join(self.folder, "pytorch_model.bin")) and "; pytorch_model.bin is not read: save the model "
            .. "with safe_serialization" or "")
    end
    self.config = read_json(config_path)
    self.keys, self.names = families.read(self.config, config_path)
end

--- Opens weights: a folder of a Hugging Face model, its .safetensors or .index.json file, or a .gguf file. Not
--- collective: each rank opens them.
---@param path string
---@return mx.WeightSource to be closed: local source <close> = ...
function weights.open(path)
    local self = setmetatable({ path = path, files = {}, tensors = {} }, Source)
    local kind = kind_of(path)
    if OURS[kind] then
        util.refuse("%s holds parameters of ours: mx.weights.load and mx.weights.model read them", path)
    end
    local function open()
        if kind == "gguf" then
            self.file = add_file(self, path)
            self.kind, self.metadata = "gguf", self.file:metadata()
            if self.file:format() ~= "gguf" then
                util.refuse("%s is no GGUF file", path)
            end
            local architecture
            self.keys, architecture = gguf.keys(self)
            self.names = "gguf." .. architecture
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

-- ---- configs ----

-- The keys of a stored config that are in a list.
local function model_keys(stored, list)
    local keys = {}
    for _, key in ipairs(list) do
        keys[key] = stored[key]
    end
    return keys
end

-- The config that comes with parameters of ours, as YAML; nil: none.
local function stored_config(path, kind)
    if kind == "run" then
        return util.attempt(mx.io.read_file, path .. "/config.yml")
    elseif kind == "checkpoint" then
        local index = read_json(path .. "/index.json")
        return type(index) == "table" and type(index.config) == "string" and index.config ~= "" and index.config or nil
    end
    local _, attributes = util.attempt(mx.io.h5_info, path)
    return attributes.config
end

local function stored_keys(path, kind)
    return mx.config.parse(stored_config(path, kind) or "", path)
end

--- The keys of configs/base.yml that describe the model of a file or folder: of any kind that mx.weights.load reads.
--- Of parameters of ours that have no config, none. Not collective.
---@param path string
---@return table<string, any>
function weights.config(path)
    local kind = kind_of(path)
    if OURS[kind] then
        return model_keys(stored_keys(path, kind), KEYS)
    end
    local source <close> = weights.open(path)
    return source.keys
end

--- What a run that starts from a file or folder takes over where it says nothing else: the model, and tokenizer_path
--- where there is a tokenizer.json. Not collective.
---@param path string
---@return table<string, any>
function weights.start_config(path)
    local keys, at = weights.config(path), weights.tokenizer_of(path)
    keys.tokenizer_path = at ~= path and at or kind_of(path) == "folder" and at or nil
    return keys
end

--- The config of the model of a file or folder, with words as on the command line on top of it: its own keys, and of
--- parameters of ours also how they were computed with. Collective.
---@param path string
---@param words? string[]
---@param options? table further keys and their standard values: those of a script
---@return table
function weights.load_config(path, words, options)
    local kind = kind_of(path)
    local keys
    if OURS[kind] then
        local text = stored_config(path, kind) or util.refuse("%s has no config: it was not saved by scripts/train.lua "
            .. "or scripts/convert.lua", path)
        local stored = mx.config.parse(text, path)
        keys = model_keys(stored, KEYS)
        for key, value in pairs(model_keys(stored, USES)) do
            keys[key] = value
        end
    else
        keys = weights.start_config(path)
    end
    local text = mx.io.json_encode(keys, { indent = 1 }) -- JSON is YAML
    return mx.config.load(words or {}, { stored = text, stored_name = path, options = options })
end

--- Refuses a config that describes another model than a file or folder, naming both values.
---@param config table
---@param path string
---@param keys? table of weights.config, where that is known
function weights.check(config, path, keys)
    for key, value in util.sorted_pairs(keys or weights.config(path)) do
        local ours = config[key]
        local a = type(value) == "table" and table.concat(value, ", ") or value
        local b = type(ours) == "table" and table.concat(ours, ", ") or ours
        if a ~= b and not FREE[key] then
            mx.config.refuse(config, key, "%s, but %s has %s", tostring(b), path, tostring(a))
        end
    end
end

-- ---- reading ----

-- The entry of a source under its name, or under that without the prefix of the model around the base model.
local function find(source, layout_entry)
    local names = families.NAMES[source.names]
    local name = layout_entry.name
    if not source.tensors[name] and names.prefix and name:sub(1, #names.prefix) == names.prefix then
        name = name:sub(#names.prefix + 1)
    end
    return source.tensors[name]
end

-- All tensors of a model must be there, with the right sizes, and no others.
local function check_tensors(source, layout, shape)
    local used = {}
    for _, entry in ipairs(layout) do
        local found = find(source, entry)
        if not found then
            util.refuse("%s has no tensor '%s'", source.path, entry.name)
        end
        local is, wanted = table.concat(found.shape, "x"), table.concat(entry.sizes, "x")
        if is ~= wanted then
            util.refuse("%s: the tensor '%s' is %s, the model's is %s", source.path, found.name, is, wanted)
        elseif found.dtype ~= "f32" and found.dtype ~= "bf16" then
            util.refuse("%s: the tensor '%s' is stored as %s, which is not read; convert the file to BF16 or Q8_0 "
                .. "with the program that made it", source.path, found.name, found.type)
        end
        used[found.name] = true
    end
    for name in util.sorted_pairs(source.tensors) do
        if not used[name] and not families.ignored(families.NAMES[source.names], name, shape.tied) then
            util.refuse("%s has a tensor '%s' that the model lacks", source.path, name)
        end
    end
end

-- GGUF has the two components that RoPE turns as neighbours, we have them half a head apart.
local function from_neighbours(t, heads)
    local rows, columns = t:size(1), t:dim() == 2 and t:size(2) or 1
    local pairs_of = mx.permute(t:view(heads, rows // heads // 2, 2, columns), { dims = { 1, 3, 2, 4 } })
    return t:dim() == 2 and pairs_of:view(rows, columns) or pairs_of:view(rows)
end

-- The cut of a rank's part that is rows of the stored tensor, which then need not be read whole.
local function row_cut(parallel, entry, head_rows)
    if not parallel or #entry.parts > 1 then
        return nil
    end
    for _, cut in ipairs(parallel.entries[entry.parts[1]].cut) do
        local stored_dim = entry.transposed and 3 - cut.dim or cut.dim
        if stored_dim == 1 and (not entry.heads or cut.length % head_rows == 0) then
            return cut
        end
    end
end

-- One stored tensor into the parameters that it holds.
local function load_entry(source, entry, model)
    local found, parallel = find(source, entry), model.parallel
    local head_rows = entry.heads and entry.sizes[1] // entry.heads
    local cut = row_cut(parallel, entry, head_rows)
    local t = source:read(found.name, cut and { first = cut.start, rows = cut.length } or {})
    if entry.heads then
        t = from_neighbours(t, t:size(1) // head_rows)
    end
    local start = 1
    for i, name in ipairs(entry.parts) do
        local part = t
        if #entry.parts > 1 then
            part = mx.narrow(t, { dim = entry.dim, start = start, length = entry.lengths[i] })
            start = start + entry.lengths[i]
        end
        part = entry.transposed and mx.transpose(part) or part
        for _, other in ipairs(parallel and parallel.entries[name].cut or {}) do
            part = other ~= cut and mx.narrow(part, other) or part
        end
        mx.copy(model.params[name], part)
    end
end

--- Fills a model's parameters from a file or folder; of a model on a mesh this rank's parts. What does not fit is
--- refused before anything is changed. Collective for parameters of ours, else not.
---@param model mx.Decoder
---@param path string
---@param config? table the model's, to be compared with what a file of another program says
function weights.load(model, path, config)
    if not weights.is_foreign(path) then
        return mx.run.load_parameters(path, model)
    end
    local source <close> = weights.open(path)
    if config then
        weights.check(config, path, source.keys)
    end
    local layout = families.layout(source.names, model.shape)
    check_tensors(source, layout, model.shape)
    local progress = mx.metrics.progress("tensors read", #layout)
    for i, entry in ipairs(layout) do
        mx.scope(function()
            load_entry(source, entry, model)
        end)
        progress(i)
    end
end

--- The model of a file or folder, with its weights. Collective.
---@param path string
---@param o? {words: string[], options: table, change: fun(shape: table), mesh: boolean} words as on the command line,
---       on top of the file's config; options: further keys and their standard values; change: what is to be different
---       in the model, dropout say; mesh = false: every rank has the whole model
---@return mx.Decoder model, table config
function weights.model(path, o)
    o = util.options(o, { words = {}, options = {}, change = function() end, mesh = true }, "mx.weights.model")
    local config = weights.load_config(path, o.words, o.options)
    if mx.is_simulated() then
        mx.config.refuse(config, "hardware", "a simulated chip has no values: there is nothing to do with those of %s",
            path)
    end
    local shape = mx.models.shape(config)
    o.change(shape)
    local model = mx.models.new(shape, o.mesh and mx.train.mesh(config) or nil, config, true)
    mx.checkpoint.together(weights.load, model, path, config)
    return model, config
end

--- The dtype that weights are stored in, as the key weight_dtype has it: bfloat16 where all matrices are. Not
--- collective.
---@param path string
---@return string
function weights.dtype(path)
    local kind = kind_of(path)
    if OURS[kind] then
        return stored_keys(path, kind).weight_dtype or "float32"
    end
    local source <close> = weights.open(path)
    for _, entry in pairs(source.tensors) do
        if #entry.shape == 2 and entry.dtype ~= "bf16" then
            return "float32"
        end
    end
    return "bfloat16"
end

-- ---- the tokenizer ----

-- The metadata of a GGUF file.
local function metadata_of(path)
    local file <close> = util.attempt(mx.io.weights_open, path)
    return file:metadata()
end

--- Where the tokenizer is that comes with weights: a folder, a GGUF file that has one, or what tokenizer_path names in
--- the config that is stored with parameters of ours. nil: there is none. Not collective.
---@param path string
---@return string?
function weights.tokenizer_of(path)
    local kind = kind_of(path)
    if kind == "gguf" then
        return metadata_of(path)["tokenizer.ggml.model"] and path or nil
    end
    if OURS[kind] then
        local stored = stored_keys(path, kind).tokenizer_path or ""
        return stored ~= "" and mx.io.exists(stored) and stored or nil
    end
    local folder = kind == "folder" and path or folder_of(path)
    return mx.io.exists(join(folder, "tokenizer.json")) and (folder == "" and "." or folder) or nil
end

--- The tokenizer that comes with weights: that of mx.weights.tokenizer_of. Not collective.
---@param path string
---@return mx.Tokenizer?
function weights.tokenizer(path)
    local kind, at = kind_of(path), weights.tokenizer_of(path)
    if not at or kind ~= "gguf" then
        return at and mx.tokenizer.open(at)
    end
    local json, special = gguf.tokenizer({ path = path, metadata = metadata_of(path) })
    local tokenizer = mx.tokenizer.from_json(json, path)
    tokenizer:set_special(special.bos, special.eos)
    tokenizer.add_bos = special.add_bos and special.bos ~= nil or false
    tokenizer.add_eos = special.add_eos and special.eos ~= nil or false
    return tokenizer
end

--- mx.weights.save(model, folder, options): weights_save.lua says how.
weights.save = require "mx.weights_save"

return weights
