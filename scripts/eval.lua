-- Computes loss and perplexity of a model on a text or a file of tokens, on one rank or several:
--
--     build/mxlua scripts/eval.lua parameters=SmolLM2-135M file=book.txt
--     mpirun -n 2 build/mxlua scripts/eval.lua parameters=model.gguf file=val.bin context_length=1024 stride=512
--
-- parameters   a parameters.h5 or checkpoint of scripts/train.lua, the folder of a Hugging Face model, or a
--              .safetensors or .gguf file; the model's config, and its tokenizer if it has one, are read from there
--              too. MaxText's word load_parameters_path means the same
-- file         a text (the tokenizer splits it; a model of bytes reads it as bytes), a .bin file of uint16 tokens, or
--              tokens in HDF5
-- format       text, bin, hdf5, or auto: by the file's ending, .bin or .h5, otherwise text
-- tokenizer    a tokenizer.json or a folder with one; empty: the one stored with the parameters, or the one that their
--              config names (tokenizer_path)
-- context_length
--              tokens in one window, at most; 0: max_target_length if it is given, otherwise the context length of the
--              model, but at most 2048
-- stride       tokens between the starts of two windows; 0: context_length. A smaller stride gives tokens more context
--              and takes longer
-- batch        windows per rank in one pass
-- max_tokens   use only so many tokens from the start of the file; 0: all
-- metrics_file file for a JSON object with the results
--
-- Any key of configs/base.yml may follow, for example dtype=float32 or the sizes of mesh axes. By default each rank
-- evaluates its own windows and stores its part of the weights.

local mx = require "mx"
local util = require "mx.util"

local OPTIONS = {
    parameters = "", file = "", format = "auto", tokenizer = "", context_length = 0, stride = 0, batch = 4,
    max_tokens = 0,
}
for _, word in ipairs(arg) do
    mx.tokenizer.check(word:match("^tokenizer=(.+)$") or "")
end
local path = mx.weights.named(arg)
local model, config = mx.weights.model(path, { words = arg, options = OPTIONS })
if config.file == "" then
    util.refuse("file=PATH is missing: a text or a file of tokens")
end

local shape = model.shape
local most = shape.positions > 0 and shape.positions or math.huge
local context = config.context_length > 0 and config.context_length
    or mx.config.is_chosen(config, "max_target_length") and config.max_target_length
    or math.min(most, shape.max_length, 2048)
local stride = config.stride > 0 and config.stride or context
if context > most then
    mx.config.refuse(config, "context_length", "%d tokens, but the model has %d positions", context, most)
elseif stride > context then
    mx.config.refuse(config, "stride", "%d leaves tokens out: at most context_length = %d", stride, context)
end

local started = mx.now()
local tokenizer = mx.generate.tokenizer(config, path, config.tokenizer)
mx.files.check_same({ config.file })
local tokens, bytes = mx.evaluate.tokens(config.file, {
    format = config.format, tokenizer = tokenizer, vocab = shape.vocab, max_tokens = config.max_tokens,
    bos = config.add_bos and tokenizer and (tokenizer.add_bos or not mx.weights.is_foreign(path)) or false,
})
local n = tokens:size(1) - 1
mx.metrics.say("%s: %s tokens%s, context %d, stride %d", config.file, util.thousands(n + 1),
    bytes and (" of %s bytes"):format(util.thousands(bytes)) or "", math.min(context, n), stride)
local loss = mx.evaluate.loss(model, tokens, { context = context, stride = stride, batch = config.batch })
local seconds = mx.now() - started
local bits = bytes and bytes > 0 and loss * n / math.log(2) / bytes or nil

mx.metrics.say("loss %.4f a token, perplexity %.3f%s", loss, math.exp(loss),
    bits and (", %.4f bits a byte"):format(bits) or "")
mx.metrics.say("%s tokens in %s: %s a second", util.thousands(n), util.duration(seconds), util.thousands(n / seconds))
if config.metrics_file ~= "" and mx.rank() == 0 then
    local file = mx.outputs.metrics(config.metrics_file)
    file:row {
        parameters = path, file = config.file, loss = loss, perplexity = math.exp(loss), bits_per_byte = bits,
        tokens = n, bytes = bytes, context_length = context, stride = stride, seconds = seconds, ranks = mx.ranks(),
    }
    file:close()
end
