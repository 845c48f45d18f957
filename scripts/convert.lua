-- Converts weights between parameters.h5, Hugging Face folders and GGUF (GGUF is read only):
--
--     build/mxlua scripts/convert.lua from=checkpoints/run/parameters.h5 to=out_dir      # to Hugging Face
--     build/mxlua scripts/convert.lua from=SmolLM2-135M to=smol.h5                       # from Hugging Face
--     build/mxlua scripts/convert.lua from=model.gguf to=out_dir max_shard_size=2GB
--
-- from            a parameters.h5 or checkpoint of scripts/train.lua, the folder of a Hugging Face model (Llama,
--                 Mistral, Qwen2, Qwen3, GPT-2), its .safetensors or .index.json file, or a .gguf file
-- to              FILE.h5, or a folder for config.json and model.safetensors; a folder that holds a model is refused
-- dtype           float32 or bfloat16; empty: bfloat16 if all matrices are bfloat16, otherwise float32
-- max_shard_size  a larger model is split over several files: 500MB, 5GB; 0: always one file
-- tokenizer       tokenizer to store with the model: a folder with tokenizer files, a tokenizer.json, or a .gguf file
--                 with a tokenizer; empty: the one of `from`, if it has one
--
-- With several ranks (mpirun -n N), each rank holds a part of the weights.

local mx = require "mx"
local util = require "mx.util"

local o = mx.config.options(arg, { from = "", to = "", dtype = "", max_shard_size = "5GB", tokenizer = "" })
local UNITS = { [""] = 1, B = 1, KB = 1e3, MB = 1e6, GB = 1e9, TB = 1e12, KIB = 2 ^ 10, MIB = 2 ^ 20, GIB = 2 ^ 30 }

local number, unit = o.max_shard_size:match("^([%d.]+)%s*(%a*)$")
local shard_bytes = tonumber(number) and UNITS[unit:upper()] and util.share(UNITS[unit:upper()], tonumber(number))
local to_h5 = o.to:find("%.h5$") or o.to:find("%.hdf5$")
if o.from == "" or o.to == "" then
    util.refuse("expected from=PATH and to=PATH: FILE.h5, or a folder of a Hugging Face model")
elseif not shard_bytes then
    util.refuse("max_shard_size=%s: expected a number with a unit, such as 500MB or 5GB", o.max_shard_size)
elseif to_h5 and o.tokenizer ~= "" then
    util.refuse("tokenizer=%s has no effect: %s holds parameters only", o.tokenizer, o.to)
end

if to_h5 and mx.rank() == 0 then
    mx.outputs.check(o.to, "parameters", "to")
    mx.outputs.distinct({ { name = "to", path = o.to } }, { { name = "from", path = o.from } })
end
mx.tokenizer.check(o.tokenizer)

local dtype = o.dtype ~= "" and o.dtype or mx.weights.dtype(o.from)
local model, config = mx.weights.model(o.from, { words = { "weight_dtype=" .. dtype } })
mx.metrics.say("%s: %s parameters, %s", o.from, util.thousands(mx.models.count(model.shape)), dtype)
if to_h5 then
    mx.train.save(config, model, o.to)
    mx.metrics.say("saved as %s", o.to)
else
    local opened, named = pcall(mx.tokenizer.open, o.tokenizer) -- it is copied even if mxlua cannot read it
    if o.tokenizer ~= "" and opened then
        mx.generate.check_tokenizer(named, "tokenizer=" .. o.tokenizer, config, o.from)
    end
    local tokenizer = o.tokenizer ~= "" and o.tokenizer or mx.weights.tokenizer_of(o.from) or ""
    local family = mx.weights.save(model, o.to, { max_shard_size = shard_bytes, tokenizer = tokenizer })
    mx.metrics.say("saved as %s, a model of the family %s%s", o.to, family,
        tokenizer ~= "" and ", with its tokenizer" or "")
end
