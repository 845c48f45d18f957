-- Continues a prompt with a trained model:
--
--     build/mxlua scripts/generate.lua parameters=checkpoints/tiny/parameters.h5 prompt="Once upon a time"
--
-- parameters   what scripts/train.lua saved, a folder of a Hugging Face model, or a .safetensors or .gguf file; the
--              model's config comes with it
-- prompt       text for a model of bytes (a vocabulary of 256), else token ids: prompt=15496,995
-- tokens       how many to add
-- temperature  logits are divided by it; 0 always takes the likeliest
-- top_k        draw from the k likeliest only; 0: from all
-- top_p        draw from the likeliest that together have this probability; 1: from all
-- seed         of the draws

local mx = require "mx"
local util = require "mx.util"

local o = mx.config.options(arg, {
    parameters = "", prompt = "", tokens = 200, temperature = 0.8, top_k = 0, top_p = 1.0, seed = 0,
})
if o.parameters == "" then
    util.refuse("parameters=PATH is missing: what scripts/train.lua saved, a folder of a Hugging Face model, or a "
        .. ".gguf file")
end

local model, config = mx.weights.model(o.parameters, { mesh = false })
local bytes = config.vocab_size == 256

local prompt = bytes and { o.prompt:byte(1, -1) } or {}
if not bytes then
    for word in o.prompt:gmatch("[^,%s]+") do
        prompt[#prompt + 1] = math.tointeger(tonumber(word))
            or util.refuse("prompt: expected token ids such as 15496,995, got '%s'", word)
    end
end
if #prompt == 0 then
    util.refuse("prompt=%s is missing", bytes and "TEXT" or "ID,ID,...")
end
local positions = model.shape.positions
if positions > 0 and #prompt + o.tokens > positions then
    util.refuse("a prompt of %d tokens and tokens=%d pass the model's %d positions", #prompt, o.tokens, positions)
end

if mx.rank() == 0 then
    io.write(o.prompt)
    mx.generate.continue(model, prompt, o, function(id)
        io.write(bytes and string.char(id) or "," .. id)
        io.flush()
    end)
    io.write("\n")
end
