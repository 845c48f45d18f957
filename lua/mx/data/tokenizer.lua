--- Tokenizers: convert text to token ids and back, as described by a Hugging Face tokenizer.json, or byte by byte.
--
-- Ids count from 0. Nothing here is collective: each rank may open the same file.

local mx = require "mx"
local util = require "mx.util"

local tokenizer = {}

---@class mx.Tokenizer
---@field vocab_size integer the highest id plus one: the smallest vocab_size that a model may have
---@field bos? integer the id that begins a document; nil: the tokenizer has none
---@field eos? integer the id that ends a document; nil: the tokenizer has none
---@field ends integer[] ids that end a generated text: eos, and those that the model's other files name
---@field name string the path or name that it was opened with, for messages
---@field add_bos boolean whether the reference's encode adds BOS by default
---@field add_eos boolean whether the reference's encode adds EOS by default
---@field core userdata the engine's tokenizer
local Tokenizer = {}
util.strict(Tokenizer, "a tokenizer",
    { "vocab_size", "bos", "eos", "add_bos", "add_eos", "core", "ends", "file", "name", "sum" })

local function wrap(core, name)
    local bos, eos = core:bos(), core:eos()
    return setmetatable({
        core = core, vocab_size = core:vocab_size(), bos = bos, eos = eos, add_bos = bos ~= nil, add_eos = eos ~= nil,
        ends = { eos }, name = name,
    }, Tokenizer)
end

-- Adds ids to those that end a text.
local function add_ends(self, ids)
    for _, id in ipairs(ids) do
        if not util.contains(self.ends, id) then
            table.insert(self.ends, id)
        end
    end
end

--- Sets the ids that begin and end a document, if another file than tokenizer.json names them.
---@param bos? integer nil: none
---@param eos? integer nil: none
function Tokenizer:set_special(bos, eos)
    self.core:set_bos(bos)
    self.core:set_eos(eos)
    self.bos, self.eos = bos, eos
    add_ends(self, { eos })
end

--- Adds ids that end a generated text, such as a chat model's end of a turn.
---@param ids integer[]
function Tokenizer:add_ends(ids)
    add_ends(self, ids)
end

--- A string that is equal for tokenizers that give the same ids. It depends on the vocabulary and the encoding, but not
--- on the file's path or spelling. Token stores and checkpoints store it. "bytes" for the tokenizer of bytes.
---@return string
function Tokenizer:fingerprint()
    self.sum = self.sum or (self.name == "bytes" and "bytes" or "ids:" .. self.core:fingerprint())
    return self.sum
end

--- Whether a fingerprint is this tokenizer's; nil if that is unknown.
---@param fingerprint string of Tokenizer:fingerprint, or of an older token store (the checksum of tokenizer.json)
---@return boolean?
function Tokenizer:matches(fingerprint)
    if fingerprint == "" then
        return nil
    elseif fingerprint:find("^crc32c:") and self.file then
        return fingerprint == ("crc32c:%08x"):format(mx.io.crc32c(util.attempt(mx.io.read_file, self.file)))
    end
    return fingerprint == self:fingerprint()
end

-- The ids of bos_token or eos_token in a tokenizer_config.json: a string, a table with it as content, or a list of
-- these.
local function named_tokens(self, settings, key, path)
    local value, ids = settings[key], {}
    local list = type(value) == "table" and value.content == nil and value or { value }
    for _, token in ipairs(list) do
        token = type(token) == "table" and token.content or token
        if type(token) == "string" then
            ids[#ids + 1] = self:id(token)
                or util.refuse("%s: %s is '%s', and tokenizer.json beside it has no such token", path, key, token)
        end
    end
    return ids
end

-- Reads a JSON object from a file.
local function read_object(path)
    local object = util.attempt(mx.io.json_decode, util.attempt(mx.io.read_file, path), path)
    return type(object) == "table" and object or util.refuse("%s: expected a JSON object", path)
end

--- Token ids that a field of a JSON object names: a number, or a list of them.
---@param object table
---@param key string
---@param path string messages start with it
---@return integer[]
function tokenizer.ids(object, key, path)
    local value, ids = object[key], {}
    if value == nil or value == mx.io.null then
        return ids
    end
    for i, id in ipairs(type(value) == "table" and value or { value }) do
        ids[i] = math.type(id) == "integer" and id >= 0 and id
            or util.refuse("%s: %s: expected a token id or a list of them, got %s", path, key, tostring(id))
    end
    return ids
end

--- The ids that end a text, as given by eos_token_id in config.json and generation_config.json of a folder. Not
--- collective.
---@param folder string ends in "/", or is empty
---@return integer[]
function tokenizer.ends_of(folder)
    local ends = {}
    for _, name in ipairs({ "config.json", "generation_config.json" }) do
        if mx.io.exists(folder .. name) then
            local ids = tokenizer.ids(read_object(folder .. name), "eos_token_id", folder .. name)
            table.move(ids, 1, #ids, #ends + 1, ends)
        end
    end
    return ends
end

-- Applies the settings of tokenizer_config.json.
local function apply_settings(self, path)
    local settings = read_object(path)
    local bos, eos = named_tokens(self, settings, "bos_token", path), named_tokens(self, settings, "eos_token", path)
    self:set_special(bos[1] or self.bos, eos[1] or self.eos)
    add_ends(self, eos)
    if type(settings.add_bos_token) == "boolean" then
        self.add_bos = settings.add_bos_token and self.bos ~= nil
    end
    if type(settings.add_eos_token) == "boolean" then
        self.add_eos = settings.add_eos_token and self.eos ~= nil
    end
end

-- Similar names for a missing path: those in its nearest existing parent folder.
local function near(path)
    local folder, name = path:gsub("/+$", ""):match("^(.*/)([^/]*)$")
    folder, name = folder or "", name or path
    if not mx.io.exists(folder == "" and "." or folder) then
        return near(folder)
    end
    local names = {}
    for _, entry in ipairs(util.attempt(mx.io.list, folder == "" and "." or folder)) do
        local at = folder .. entry
        if entry:find("%.json$") or entry:lower():find("%.gguf$") or mx.io.exists(at .. "/tokenizer.json") then
            names[#names + 1] = entry
        end
    end
    table.sort(names)
    local best = util.nearest(name, names)
    if best then
        return (", did you mean '%s'?"):format(folder .. best)
    end
    local shown = table.concat(names, ", ", 1, math.min(#names, 8))
    return #names > 0 and (" (%s has %s%s)"):format(folder == "" and "this folder" or folder, shown,
        #names > 8 and ", ..." or "") or ""
end

-- The tokenizer.json of a path, and the folder of its other files; the folder is nil if there is none.
local function find_file(path)
    if mx.io.exists(path .. "/tokenizer.json") then
        local folder = path:gsub("(.)/+$", "%1") .. "/"
        return folder .. "tokenizer.json", folder
    elseif not mx.io.exists(path) then
        util.refuse("there is no tokenizer '%s': expected a tokenizer.json, a folder with one, or a GGUF file%s",
            path, near(path))
    elseif mx.io.exists(path .. "/.") then
        util.refuse("the folder '%s' has no tokenizer.json", path)
    end
    return path, path:match("^(.*/)tokenizer%.json$") or (path == "tokenizer.json" and "" or nil)
end

--- Refuses a path without a tokenizer and names similar files. For the start of a script, before a large model is read.
--- Not collective.
---@param path string as open takes it
function tokenizer.check(path)
    if path ~= "" and path ~= "bytes" then
        find_file(path)
    end
end

--- Opens a tokenizer. A missing, malformed or unsupported file raises an error of one line.
---@param path string a tokenizer.json or a folder with one, or a GGUF file; "" or "bytes": each byte is a token. In the
---       folder of a tokenizer.json, tokenizer_config.json is read for bos_token, eos_token, add_bos_token and
---       add_eos_token, and config.json and generation_config.json for eos_token_id
---@return mx.Tokenizer
function tokenizer.open(path)
    if path == "" or path == "bytes" then
        return wrap(mx.io.tokenizer_open("bytes"), "bytes")
    end
    local file, folder = find_file(path)
    if util.attempt(mx.io.file_format, file) == "gguf" then
        return mx.weights.tokenizer(file)
    end
    local self = wrap(util.attempt(mx.io.tokenizer_open, file), path)
    self.file = file
    if folder and mx.io.exists(folder .. "tokenizer_config.json") then
        apply_settings(self, folder .. "tokenizer_config.json")
    end
    if folder then
        add_ends(self, tokenizer.ends_of(folder))
    end
    return self
end

local fingerprints = {} -- by path

--- The fingerprint of the tokenizer at a path. The first answer is kept, because the file may be gone at the end of a
--- run. "" if there is none or it cannot be read. Not collective.
---@param path string as open takes it; empty: none
---@return string
function tokenizer.fingerprint_of(path)
    if path ~= "" and not fingerprints[path] then
        local opened, found = pcall(tokenizer.open, path)
        fingerprints[path] = opened and found:fingerprint() or ""
    end
    return path ~= "" and fingerprints[path] or ""
end

--- Refuses two tokenizers that differ. If the fingerprint of either is unknown ("" or nil), nothing is refused.
---@param a {what: string, fingerprint: string?} what: the user's words for it, "tokenizer_path=gpt2"
---@param b {what: string, fingerprint: string?}
---@param advice string what to do
function tokenizer.check_same(a, b, advice)
    local one, other = a.fingerprint or "", b.fingerprint or ""
    if one ~= "" and other ~= "" and one ~= other then
        util.refuse("two tokenizers that give different ids: %s (%s) and %s (%s). %s", a.what, one, b.what, other,
            advice)
    end
end

--- A tokenizer from the text of a tokenizer.json. Raises as open does.
---@param text string
---@param name? string messages start with it
---@return mx.Tokenizer
function tokenizer.from_json(text, name)
    return wrap(util.attempt(mx.io.tokenizer_parse, text, name or "tokenizer.json"), name or "tokenizer.json")
end

--- The ids of a text of at most 2^30 bytes; added tokens such as <|endoftext|> are recognised inside it.
---@param text string invalid UTF-8 is read as U+FFFD, except by the tokenizer "bytes"
---@param o? {bos: boolean, eos: boolean} add BOS before, EOS after, if the tokenizer has them; default: false
---@return any ids (n) i32
function Tokenizer:encode(text, o)
    o = util.options(o, { bos = false, eos = false }, "encode")
    return self.core:encode(text, o.bos, o.eos)
end

--- The text of ids. Invalid UTF-8, such as half of a character, stays unchanged.
---@param ids any an i32 tensor or a list of ids; an id without a token gives nothing, a negative id raises an error
---@param o? {skip_special: boolean} leave special tokens out; default: false
---@return string
function Tokenizer:decode(ids, o)
    return self.core:decode(ids, util.options(o, { skip_special = false }, "decode").skip_special)
end

---@class mx.TokenStream
---@field put fun(self: mx.TokenStream, id: integer): string the whole characters that this id completes, possibly none
---@field finish fun(self: mx.TokenStream): string the bytes of an incomplete character at the end

--- Decodes id by id. The results of `put`, followed by that of `finish`, together equal the result of decode.
---@param o? {skip_special: boolean} as decode
---@return mx.TokenStream
function Tokenizer:stream(o)
    return self.core:stream(util.options(o, { skip_special = false }, "stream").skip_special)
end

--- The id of a token by its text as the file spells it; nil if there is none.
---@param text string
---@return integer?
function Tokenizer:id(text)
    return self.core:id(text)
end

--- A token's text as the file spells it (a byte-level space is Ġ); nil if there is none.
---@param id integer
---@return string?
function Tokenizer:piece(id)
    return self.core:piece(id)
end

return util.module(tokenizer, "mx.tokenizer")
