--- Tokenizers: text to token ids and back, as a Hugging Face tokenizer.json says, or bytes as they are.
--
-- Ids count from 0. Nothing here is collective: each rank may open the same file.

local mx = require "mx"
local util = require "mx.util"

local tokenizer = {}

---@class mx.Tokenizer
---@field vocab_size integer the highest id and one: what a model's vocab_size must be at least
---@field bos? integer what begins a document; nil: the tokenizer has none
---@field eos? integer what ends one; nil: the tokenizer has none
---@field add_bos boolean whether the reference's encode puts BOS before a text by itself
---@field add_eos boolean whether it puts EOS after it
---@field core userdata the engine's tokenizer
local Tokenizer = {}
Tokenizer.__index = Tokenizer

local function wrap(core)
    local bos, eos = core:bos(), core:eos()
    return setmetatable({
        core = core, vocab_size = core:vocab_size(), bos = bos, eos = eos, add_bos = bos ~= nil, add_eos = eos ~= nil,
    }, Tokenizer)
end

--- Says which ids begin and end a document, where another file than tokenizer.json knows.
---@param bos? integer nil: none
---@param eos? integer nil: none
function Tokenizer:set_special(bos, eos)
    self.core:set_bos(bos)
    self.core:set_eos(eos)
    self.bos, self.eos = bos, eos
end

-- bos_token and eos_token of a tokenizer_config.json: a text, or a table with it as content.
local function named_token(self, settings, key, path)
    local token = settings[key]
    if type(token) == "table" then
        token = token.content
    end
    if type(token) ~= "string" then
        return nil
    end
    return self:id(token)
        or util.refuse("%s: %s is '%s', and tokenizer.json beside it has no such token", path, key, token)
end

-- What tokenizer_config.json says beside tokenizer.json.
local function apply_settings(self, path)
    local settings = util.attempt(mx.io.json_decode, util.attempt(mx.io.read_file, path), path)
    if type(settings) ~= "table" then
        util.refuse("%s: expected a JSON object", path)
    end
    local bos, eos = named_token(self, settings, "bos_token", path), named_token(self, settings, "eos_token", path)
    self:set_special(bos or self.bos, eos or self.eos)
    if type(settings.add_bos_token) == "boolean" then
        self.add_bos = settings.add_bos_token and self.bos ~= nil
    end
    if type(settings.add_eos_token) == "boolean" then
        self.add_eos = settings.add_eos_token and self.eos ~= nil
    end
end

--- Opens a tokenizer. Raises one line for a file that is missing, malformed, or asks for what is not supported.
---@param path string a tokenizer.json or a folder with one (a tokenizer_config.json beside it is read for bos_token,
---       eos_token, add_bos_token and add_eos_token); "" or "bytes": each byte is a token
---@return mx.Tokenizer
function tokenizer.open(path)
    if path == "" or path == "bytes" then
        return wrap(mx.io.tokenizer_open("bytes"))
    end
    local folder = path:match("^(.*/)tokenizer%.json$") or (path == "tokenizer.json" and "")
    if not folder and mx.io.exists(path .. "/tokenizer.json") then
        folder = path .. "/"
        path = folder .. "tokenizer.json"
    end
    local self = wrap(util.attempt(mx.io.tokenizer_open, path))
    if folder and mx.io.exists(folder .. "tokenizer_config.json") then
        apply_settings(self, folder .. "tokenizer_config.json")
    end
    return self
end

--- A tokenizer from the text of a tokenizer.json. Raises as open does.
---@param text string
---@param name? string stands before messages
---@return mx.Tokenizer
function tokenizer.from_json(text, name)
    return wrap(util.attempt(mx.io.tokenizer_parse, text, name or "tokenizer.json"))
end

--- The ids of a text of at most 2^30 bytes; added tokens such as <|endoftext|> are found inside it.
---@param text string bytes that are no UTF-8 are read as U+FFFD, but by the tokenizer "bytes"
---@param o? {bos: boolean, eos: boolean} put BOS before, EOS after, where the tokenizer has them; standard: false
---@return any ids (n) i32
function Tokenizer:encode(text, o)
    o = util.options(o, { bos = false, eos = false }, "encode")
    return self.core:encode(text, o.bos, o.eos)
end

--- The text of ids. Bytes that are no UTF-8, such as the half of a character, stay as they are.
---@param ids any an i32 tensor or a list of ids; one without a token gives nothing, a negative one raises
---@param o? {skip_special: boolean} leave special tokens out; standard: false
---@return string
function Tokenizer:decode(ids, o)
    return self.core:decode(ids, util.options(o, { skip_special = false }, "decode").skip_special)
end

---@class mx.TokenStream
---@field put fun(self: mx.TokenStream, id: integer): string the whole characters that this id completes, maybe none
---@field finish fun(self: mx.TokenStream): string the bytes of a character that did not come whole

--- Decoding id by id: what `put` gives, one after the other, and `finish` at the end, is what decode gives.
---@param o? {skip_special: boolean} as decode
---@return mx.TokenStream
function Tokenizer:stream(o)
    return self.core:stream(util.options(o, { skip_special = false }, "stream").skip_special)
end

--- The id of a token by its text as the file spells it; nil: there is none.
---@param text string
---@return integer?
function Tokenizer:id(text)
    return self.core:id(text)
end

--- A token's text as the file spells it (a byte-level space is Ġ); nil: there is none.
---@param id integer
---@return string?
function Tokenizer:piece(id)
    return self.core:piece(id)
end

return tokenizer
