-- Continues a prompt with a trained model:
--
--     build/mxlua scripts/generate.lua parameters=checkpoints/tiny/parameters.h5 prompt="Once upon a time"
--
-- parameters   a parameters.h5 or checkpoint of scripts/train.lua, the folder of a Hugging Face model, or a
--              .safetensors or .gguf file; the model's config is read from there too
-- prompt       text, if the model has a tokenizer or a vocabulary of bytes (256); otherwise token ids: prompt=15496,995
-- tokenizer    a tokenizer.json or a folder with one; empty: the one stored with the parameters, or the one that their
--              config names (tokenizer_path). With add_eos in the config, generation stops at the tokenizer's EOS and
--              at every eos_token_id of config.json, generation_config.json or a GGUF file (also at its EOT and EOM)
-- tokens       number of tokens to generate, at most
-- temperature  the logits are divided by it; 0 always takes the most likely token
-- top_k        sample from the k most likely tokens; 0: from all
-- top_p        sample from the most likely tokens that together have this probability; 1: from all
-- seed         seed of the sampling
--
-- Matrices of a GGUF file that are Q8_0 stay in one byte a value, unless quantization= names a recipe.
-- quantize_kvcache=true, with kv_quant_dtype and kv_quant_axis, halves the memory of keys and values: configs/base.yml.
--
-- A command line of MaxText's decode.py works, too: load_parameters_path, tokenizer_path, prompt, decode_sampling_*,
-- and max_target_length, of which the prompt takes max_prefill_predict_length. It is greedy unless
-- decode_sampling_strategy says otherwise.

local mx = require "mx"
local util = require "mx.util"

local path = mx.weights.named(arg)
local model, config = mx.weights.model(path, {
    words = arg, options = mx.generate.OPTIONS, mesh = false, computes_only = true, keep_codes = true,
})
mx.tokenizer.check(config.tokenizer)
local tokenizer = mx.generate.tokenizer(config, path, config.tokenizer)
local add_bos = config.add_bos and tokenizer and (tokenizer.add_bos or not mx.weights.is_foreign(path))
local prompt = mx.generate.prompt(config.prompt, tokenizer, add_bos)
local draws, positions = mx.generate.draws(config, #prompt), model.shape.positions
if positions > 0 and #prompt + draws.tokens > positions then
    util.refuse("a prompt of %d tokens and %d further ones exceed the model's %d positions", #prompt, draws.tokens,
        positions)
end

if mx.rank() == 0 then
    local memory = mx.generate.memory(model.shape, #prompt + draws.tokens)
    if memory then
        io.stderr:write(memory, "\n")
    end
    io.write(config.prompt)
    local function write(part)
        io.write(part)
        io.flush()
    end
    local ends = mx.generate.ends(config, path, tokenizer)
    if tokenizer then
        mx.generate.text(model, prompt, tokenizer, draws, ends, write)
    else
        mx.generate.continue(model, prompt, draws, function(id)
            if ends[id] then
                return true
            end
            write("," .. id)
        end)
    end
    io.write("\n")
end
