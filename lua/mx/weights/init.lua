--- Weights of other programs: reads a Hugging Face folder, a safetensors file or a GGUF file as a model, and writes a
--- model as a Hugging Face folder. It also reads mxlua's own HDF5 files, so a script can take any of them.
--
--     local model, config = mx.weights.model("SmolLM2-135M")      -- a folder, FILE.gguf, FILE.h5 ...
--     mx.weights.save(model, "out")                               -- config.json, model.safetensors
--
-- Tensors are read one at a time and written in pieces: besides its shards of the model, a rank holds at most one whole
-- tensor while loading, and a few pieces of one while saving (util.PIECE_BYTES). Of experts it is one expert's matrix.

local mx = require "mx"
local blocks = require "mx.models.blocks"
local config_paths = require "mx.config.paths"
local config_read = require "mx.weights.config_read"
local families = require "mx.weights.families"
local gguf = require "mx.weights.gguf"
local q8_0 = require "mx.weights.q8_0"
local sources = require "mx.weights.source"
local util = require "mx.util"

local join, locate, OURS = sources.join, sources.locate, sources.OURS

--- Opens weights: see source.lua.
local weights = { open = sources.open }

-- The keys that describe a model.
local KEYS = util.sorted_keys(config_read.standard())
for _, key in ipairs({
    "base_emb_dim", "base_num_query_heads", "base_num_kv_heads", "head_dim", "base_mlp_dim", "base_num_decoder_layers",
    "vocab_size", "mlp_activations", "normalization_layer_epsilon", "rope_max_timescale", "llama_rope_factor",
    "llama_rope_low_freq_factor", "llama_rope_high_freq_factor", "llama_rope_original_length", "rope_factor",
    "original_max_position_embeddings", "beta_fast", "beta_slow", "rope_truncate", "rope_attention_scaling",
    "rope_interleave", "max_position_embeddings", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "mscale",
}) do
    KEYS[#KEYS + 1] = key
end

-- Keys that say how the model was used: stored with mxlua's own parameters.
local USES = {
    "model_name", "max_target_length", "dtype", "weight_dtype", "dropout_rate", "init_std", "tokenizer_path", "add_bos",
    "add_eos", "quantization", "weight_quantization_calibration_method", "act_quantization_calibration_method",
}

-- Keys that say how a script computes with the model.
local NOW = { "load_parameters_path", "hardware", "quantize_kvcache", "kv_quant_axis", "kv_quant_dtype" }

-- Keys in which a config may differ from the file: they change how a model is used, not what it computes.
local FREE = { max_position_embeddings = true, max_target_length = true, mtp_num_layers = true }

--- Whether a path holds weights of another program. Not collective.
---@param path string
---@return boolean
function weights.is_foreign(path)
    return not OURS[locate(path)]
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

-- The config that is stored with mxlua's own parameters, as YAML; nil if there is none.
local function stored_config(path, kind)
    if kind == "run" then
        return util.attempt(mx.io.read_file, path .. "/config.yml")
    elseif kind == "checkpoint" then
        local index = sources.read_json(path .. "/index.json")
        return type(index) == "table" and type(index.config) == "string" and index.config ~= "" and index.config or nil
    end
    local _, attributes = util.attempt(mx.io.h5_info, path)
    return attributes.config
end

local function stored_keys(path, kind)
    return mx.config.parse(stored_config(path, kind) or "", path)
end

--- The keys of configs/base.yml that describe the model of a file or folder of any kind that mx.weights.load reads.
--- Empty for mxlua's own parameters without a config. Not collective.
---@param path string
---@return table<string, any>
function weights.config(path)
    local kind
    kind, path = locate(path)
    if OURS[kind] then
        return model_keys(stored_keys(path, kind), KEYS)
    end
    local source <close> = weights.open(path)
    return source.keys
end

--- The defaults of a run that starts from a file or folder: the keys of the model, and tokenizer_path if there is a
--- tokenizer.json. Not collective.
---@param path string
---@return table<string, any>
function weights.start_config(path)
    local keys = weights.config(path)
    keys.tokenizer_path = locate(path) ~= "gguf" and weights.tokenizer_of(path) or nil
    return keys
end

--- The path of the parameters that a command line names, by parameters= or, as in MaxText, by load_parameters_path=.
---@param words string[]
---@return string
function weights.named(words)
    local found = {}
    for _, word in ipairs(words) do
        local key, path = word:match("^([%w_]+)=(.+)$")
        if key == "parameters" or key == "load_parameters_path" then
            found[key] = config_paths.take("parameters", path, ("'%s' on the command line"):format(word))
        end
    end
    if found.parameters and found.load_parameters_path then
        util.refuse("parameters and load_parameters_path mean the same: give one of them")
    end
    return found.parameters or found.load_parameters_path or util.refuse("parameters=PATH is missing: what "
        .. "scripts/train.lua saved, a folder of a Hugging Face model, or a .gguf file")
end

--- The config of the model of a file or folder, changed by key=value words as on the command line. For mxlua's own
--- parameters it also includes the keys that say how the model was used. Collective.
---@param path string
---@param o? {words: string[], options: table, computes_only: boolean} options: further keys with their defaults, those
---       of a script; computes_only: words of other keys than those of the model are listed as without effect
---@return table
function weights.load_config(path, o)
    o = o or {}
    local kind
    kind, path = locate(path)
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
    local reads = o.computes_only and {} or nil
    for _, list in ipairs(reads and { KEYS, USES, NOW } or {}) do
        for _, key in ipairs(list) do
            reads[key] = true
        end
    end
    return mx.config.load(o.words or {}, {
        stored = text, stored_name = path, options = o.options, reads = reads, simulate = false,
    })
end

-- Whether all layers of a config have experts, so that base_mlp_dim has no effect.
local function no_layer_is_dense(config)
    return config.num_experts > 1 and config.first_num_dense_layers == 0 and config.interleave_moe_layer_step == 1
end

-- The keys in which a config describes another model than stored keys: {key, the config's value, the other} each.
local function differences(config, keys)
    local list = {}
    for key, value in util.sorted_pairs(keys) do
        local ours = config[key]
        local a = type(value) == "table" and table.concat(value, ", ") or value
        local b = type(ours) == "table" and table.concat(ours, ", ") or ours
        local same = a == b or key == "decoder_block" and blocks.KINDS[a] == blocks.KINDS[b]
            or key == "normalize_embedding_logits" and not config.logits_via_embedding -- then it has no effect
            or key == "base_mlp_dim" and no_layer_is_dense(config)
            or key == "norm_topk_prob" and config.routed_score_func == "" -- they sum to 1 in any case
        if not same and not FREE[key] then
            list[#list + 1] = { key = key, ours = tostring(b), stored = tostring(a) }
        end
    end
    return list
end

--- Refuses a config that describes another model than a file or folder, and names both values.
---@param config table
---@param path string
---@param keys? table of weights.config, if known
function weights.check(config, path, keys)
    local found = differences(config, keys or weights.config(path))[1]
    if found then
        mx.config.refuse(config, found.key, "%s, but %s has %s", found.ours, path, found.stored)
    end
end

--- The same for mxlua's own parameters, whose config may be changed on purpose: a line says so for keys that the user
--- has set, and only other differences are refused.
---@param config table
---@param path string
function weights.check_own(config, path)
    for _, found in ipairs(differences(config, weights.config(path))) do
        if not mx.config.is_chosen(config, found.key) then
            mx.config.refuse(config, found.key, "%s, but %s was trained with %s: leave model_name out, and the model "
                .. "is that of the parameters, or set %s", found.ours, path, found.stored, found.key)
        end
        mx.metrics.say("%s is %s, and %s was trained with %s", found.key, found.ours, path, found.stored)
    end
end

-- ---- reading ----

-- The tensor of a source by its name, with or without the prefix that the model has around the base model.
local function find(source, layout_entry)
    local names = families.NAMES[source.names]
    local name = layout_entry.name
    if not source.tensors[name] and names.prefix and name:sub(1, #names.prefix) == names.prefix then
        name = name:sub(#names.prefix + 1)
    end
    return source.tensors[name]
end

-- Checks the factors of the blocks of a tensor of one-byte floats; returns their name.
local function check_scales(source, found)
    local scale, block, wanted = source:scale_of(found.name), source.scale_block, {}
    if not scale then
        return nil
    elseif not block then
        util.refuse("%s has a tensor '%s', and no weight_block_size in the quantization_config of its config.json",
            source.path, scale)
    end
    local dims = #found.shape
    for d, size in ipairs(found.shape) do
        local along = block[d - dims + 2]
        wanted[d] = along and (size + along - 1) // along or size
    end
    local is = table.concat(source.tensors[scale].shape, "x")
    if is ~= table.concat(wanted, "x") or dims > 3 then
        util.refuse("%s: the tensor '%s' is %s; %s has blocks of %dx%d, which need %s", source.path, scale, is,
            found.name, block[1], block[2], table.concat(wanted, "x"))
    end
    return scale
end

-- Whether a tensor that the model lacks belongs to a layer for multi-token prediction: those follow the last layer.
local function of_extra_layer(source, names, name, shape)
    local layer = source.extra_layers and name:match("^" .. names.layer:gsub("%%d", "(%%d+)"))
    return layer and tonumber(layer) >= shape.layers and tonumber(layer) < shape.layers + source.extra_layers
end

-- Checks that the source has all tensors of the model with the right sizes, and no others.
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
        elseif not (found.dtype and (mx.dtypes[found.dtype].is_real or found.dtype == "e4m3"
            and source:scale_of(found.name))) then
            util.refuse("%s: the tensor '%s' is stored as %s, which is not read; convert the file to BF16 or Q8_0 "
                .. "with the program that made it", source.path, found.name, found.type)
        end
        used[found.name] = true
        used[check_scales(source, found) or found.name] = true
    end
    local names = families.NAMES[source.names]
    for name in util.sorted_pairs(source.tensors) do
        if not used[name] and not families.ignored(names, name, shape.tied)
            and not of_extra_layer(source, names, name, shape) then
            util.refuse("%s has a tensor '%s' that the model lacks", source.path, name)
        end
    end
end


-- This rank's shard of a parameter, as arguments of mx.narrow, for each dimension that is split. Without its first
-- dimension if `of_experts`: those of an expert's matrix.
local function cuts_of(model, name, of_experts)
    local part, cuts = model.parallel:part(name, model.params[name]:size()), {}
    for d, size in ipairs(part.sizes) do
        if size < part.of[d] and not (of_experts and d == 1) then
            cuts[#cuts + 1] = { dim = of_experts and d - 1 or d, start = part.start[d], length = size }
        end
    end
    return cuts
end

-- The rows of the stored matrix that a rank's shard needs, if the shard is a range of rows; then only these are read.
local function row_cut(model, entry, head_rows)
    for _, cut in ipairs(#entry.parts == 1 and cuts_of(model, entry.parts[1], entry.experts) or {}) do
        local stored_dim = entry.transposed and 3 - cut.dim or cut.dim
        if stored_dim == 1 and (not entry.heads or cut.length % head_rows == 0) then
            return cut
        end
    end
end

-- Parameter number i of a stored tensor. `start`: where it begins along `dim`.
local function part_of(entry, t, i, dim, start)
    if #entry.parts == 1 then
        return t
    elseif not entry.alternating then
        return mx.narrow(t, { dim = dim, start = start, length = entry.lengths[i] })
    end
    local sizes = t:size()
    local rows, columns = t:numel() // sizes[#sizes], entry.lengths[i]
    sizes[#sizes] = columns
    return mx.narrow(t:view(rows, columns, #entry.parts), { dim = 3, start = i, length = 1 }):view(sizes)
end

-- Copies a stored tensor, or its rows `cut`, to the parameters that it holds; an expert's matrix to number `place` of
-- this rank's experts.
local function fill(model, entry, t, cut, place)
    local start, dim = 1, entry.dim - (#entry.sizes - t:dim())
    for i, name in ipairs(entry.parts) do
        local part, target = part_of(entry, t, i, dim, start), model.params[name]
        start = start + entry.lengths[i]
        part = entry.transposed and mx.transpose(part) or part
        part = entry.factor and part:to("f32") * entry.factor or part
        part = entry.offset and part:to("f32") - entry.offset or part
        for _, other in ipairs(cuts_of(model, name, entry.experts)) do
            part = not (cut and other.dim == cut.dim) and mx.narrow(part, other) or part
        end
        if place then
            target = mx.narrow(target, { dim = 1, start = place, length = 1 }):view(part:size(1), part:size(2))
        end
        mx.copy(target, part)
    end
end

-- Reads this rank's experts of a stored tensor, one at a time.
local function load_experts(source, entry, found, model)
    local part = model.parallel:part(entry.parts[1], model.params[entry.parts[1]]:size())
    local whole = #entry.sizes == 3 -- one tensor for all experts
    local cut = not whole and row_cut(model, entry) or nil
    local last = math.min(entry.first_expert + entry.experts, part.start[1] + part.sizes[1]) - 1
    for expert = math.max(entry.first_expert, part.start[1]), last do
        mx.scope(function()
            local rows = whole and { first = expert, rows = 1 } or cut and { first = cut.start, rows = cut.length }
            local t = source:read(found.name, rows or {})
            t = whole and t:view(entry.sizes[2], entry.sizes[3]) or t
            fill(model, entry, t, cut, expert - part.start[1] + 1)
        end)
    end
end

-- Copies one stored tensor to the parameters or the buffer that it holds.
local function load_entry(source, entry, model)
    if entry.buffer then
        return mx.copy(model.buffers[entry.buffer], source:read(find(source, entry).name))
    elseif not model.parallel:holds(entry.parts[1]) then
        return
    end
    local found = find(source, entry)
    if not model.params[entry.parts[1]] then
        return q8_0.load(source, entry, model)
    elseif entry.experts then
        return load_experts(source, entry, found, model)
    end
    local head_rows = entry.heads and entry.sizes[1] // entry.heads
    local cut = row_cut(model, entry, head_rows)
    local t = source:read(found.name, cut and { first = cut.start, rows = cut.length } or {})
    if entry.heads then
        t = families.from_neighbours(t, t:size(1) // head_rows, entry.kept)
    end
    fill(model, entry, t, cut)
end

--- Fills a model's parameters from a file or folder; on a mesh, this rank's shards. Tensors that do not fit are refused
--- before anything is changed. Collective for mxlua's own parameters, otherwise not.
---@param model mx.Decoder
---@param path string
---@param config? table the model's config, to be compared with that of another program's file
function weights.load(model, path, config)
    if not weights.is_foreign(path) then
        return mx.run.load_parameters(path, model)
    end
    local source <close> = weights.open(path)
    if config then
        weights.check(config, path, source.keys)
    end
    if source.left_out then
        mx.metrics.say("%s: %s", path, source.left_out)
    end
    local layout = families.layout(source.names, model.shape, source.neighbours)
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
---@param o? {words: string[], options: table, mesh: boolean, computes_only: boolean, keep_codes: boolean} words:
---       key=value words that change the file's config; options, computes_only: as in weights.load_config; mesh =
---       false: every rank has the whole model; keep_codes, with mesh = false: matrices of Q8_0 stay as they are
---       stored, and the model only generates
---@return mx.Decoder model, table config
function weights.model(path, o)
    o = util.options(o, { words = {}, options = {}, mesh = true, computes_only = false, keep_codes = false },
        "mx.weights.model")
    mx.files.check_same_weights(path)
    local config = weights.load_config(path, o)
    if config.hardware ~= "" then
        mx.config.refuse(config, "hardware", "a simulated chip has no values: there is nothing to do with those of %s",
            path)
    end
    local shape = mx.models.shape(config)
    local in_codes = o.keep_codes and not o.mesh and q8_0.find(path, shape) or nil
    local model = mx.models.new(shape, o.mesh and mx.train.mesh(config) or nil, config, true, in_codes)
    mx.checkpoint.together(weights.load, model, path, config)
    return model, config
end

--- The dtype in which weights are stored, as a value of the key weight_dtype: bfloat16 if all matrices are bfloat16 or
--- have one byte a value. Not collective.
---@param path string
---@return string
function weights.dtype(path)
    local kind
    kind, path = locate(path)
    if OURS[kind] then
        return stored_keys(path, kind).weight_dtype or "float32"
    end
    local source <close> = weights.open(path)
    for name, entry in pairs(source.tensors) do
        local narrow = entry.dtype == "bf16" or entry.dtype == "e4m3" or name:find("_scale_inv$")
        if #entry.shape > 1 and not narrow then
            return "float32"
        end
    end
    return "bfloat16"
end

-- ---- the tokenizer ----

--- The path of the tokenizer that comes with weights: a folder, a GGUF file with a tokenizer, or the tokenizer_path in
--- the config that is stored with mxlua's own parameters. nil if there is none. Not collective.
---@param path string
---@return string?
function weights.tokenizer_of(path)
    local kind
    kind, path = locate(path)
    if kind == "gguf" then
        return sources.gguf_metadata(path)["tokenizer.ggml.model"] and path or nil
    end
    if OURS[kind] then
        local stored = stored_keys(path, kind).tokenizer_path or ""
        return stored ~= "" and mx.io.exists(stored) and stored or nil
    end
    local folder = kind == "folder" and path or sources.folder_of(path)
    return mx.io.exists(join(folder, "tokenizer.json")) and (folder == "" and "." or folder) or nil
end

--- The tokenizer that comes with weights, at the path of mx.weights.tokenizer_of. Not collective.
---@param path string
---@return mx.Tokenizer?
function weights.tokenizer(path)
    local kind, at = locate(path), weights.tokenizer_of(path)
    if not at or kind ~= "gguf" then
        return at and mx.tokenizer.open(at)
    end
    local json, special = gguf.tokenizer({ path = at, metadata = sources.gguf_metadata(at) })
    local tokenizer = mx.tokenizer.from_json(json, path)
    tokenizer:set_special(special.bos, special.eos)
    tokenizer:add_ends(special.ends)
    tokenizer.add_bos = special.add_bos and special.bos ~= nil or false
    tokenizer.add_eos = special.add_eos and special.eos ~= nil or false
    return tokenizer
end

--- The ids that end a generated text, as given by the model's files: config.json, generation_config.json, or the keys
--- of a GGUF file. Not collective.
---@param path string
---@return integer[]
function weights.ends(path)
    local kind
    kind, path = locate(path)
    if kind == "gguf" then
        return gguf.ends({ path = path, metadata = sources.gguf_metadata(path) })
    elseif OURS[kind] then
        return {}
    end
    local folder = kind == "folder" and path or sources.folder_of(path)
    return mx.tokenizer.ends_of(join(folder, ""))
end

--- The fingerprint of the tokenizer that mxlua's own parameters were trained with; "" if it is not stored. Not
--- collective.
---@param path string
---@return string
function weights.tokenizer_fingerprint(path)
    local kind
    kind, path = locate(path)
    if kind == "run" then
        local newest, file = mx.checkpoint.list(path)[1], join(path, "parameters.h5")
        file = mx.io.exists(file) and file or newest and newest.path
        return file and weights.tokenizer_fingerprint(file) or ""
    elseif kind == "h5" then
        local _, attributes = util.attempt(mx.io.h5_info, path)
        return attributes.tokenizer_fingerprint or ""
    elseif kind ~= "checkpoint" then
        return ""
    end
    local index = sources.read_json(path .. "/index.json")
    local state = type(index) == "table" and (index.data or type(index.state) == "table" and index.state.data)
    return type(state) == "table" and type(state.tokenizer) == "string" and state.tokenizer or ""
end

--- mx.weights.save(model, folder, options): see save.lua.
weights.save = require "mx.weights.save"

return util.module(weights, "mx.weights")
