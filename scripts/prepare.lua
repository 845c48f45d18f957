-- Makes a token store for training out of texts, JSON lines or files of tokens:
--
--     build/mxlua scripts/prepare.lua input=corpus/ out=corpus.h5
--     mpirun -n 4 build/mxlua scripts/prepare.lua input='web/*.jsonl.zst,books.jsonl' out=corpus.h5 \
--         tokenizer=gpt2/tokenizer.json add_eos=true
--     build/mxlua scripts/train.lua model_name=tiny dataset_type=hdf5 dataset_path=corpus.h5
--
-- input             files, folders (all files below) and patterns, with commas between them; .gz and .zst are unpacked.
--                   Spaces belong to a name; a name with a comma is put in quotes: input='"a,b.jsonl",c.jsonl'
-- out               the token store; an interrupted run is continued by the same command (OUT.parts has what is done),
--                   also with on_error=skip or a larger max_document_mib. With other options it starts over
-- tokenizer         a tokenizer.json, a folder with one, a GGUF file, or bytes
-- format            text, jsonl (a JSON object on each line), bin (uint16 tokens of nanoGPT, uint16 or uint32 tokens of
--                   llm.c), hdf5 (a token store, or a file with the data set "tokens"); auto: by the names, text where
--                   they say nothing. A file of another format is refused by its first bytes, with its name
-- field             jsonl: the key of the text
-- separator         text: what ends a document (\n and \t are understood); empty: a file is a document
-- document_token    bin, hdf5 without documents: the token that ends a document; -1: a file is a document
-- vocab_size        of the store; 0: the tokenizer's, or for files of tokens the highest id and one
-- add_bos, add_eos  begin, end each document with the tokenizer's token
-- on_error          a line that is no JSON or has no text, a document that is no UTF-8: stop, or skip and count
-- piece_mib         the ranks share out pieces of about so many MiB: small files together, and ranges of large jsonl
--                   files; a large file of another kind is one piece, and so is a compressed one
-- max_document_mib  a longer document, or line of JSON, is an error
--
-- A line is JSON where Python's json.loads reads it: NaN, Infinity and numbers of any size may be in it, the last of
-- several equal keys counts, and only the text must be valid Unicode. A byte-order mark at the start of a file or line
-- is left out.
--
-- The result is the same on any number of ranks. Documents without text are left out.

local mx = require "mx"
local util = require "mx.util"

local started = mx.now()
local summary = mx.prepare.run(mx.config.options(arg, mx.prepare.OPTIONS, {})) -- run checks their values
if summary then
    local seconds = mx.now() - started
    mx.metrics.say("%s documents, %s tokens of a vocabulary of %s%s", util.thousands(summary.documents),
        util.thousands(summary.tokens), util.thousands(summary.vocab_size),
        summary.skipped > 0 and (", %s skipped"):format(util.thousands(summary.skipped)) or "")
    mx.metrics.say("%s in %s, %s/s", util.bytes(summary.input_bytes), util.duration(seconds),
        util.bytes(summary.input_bytes / math.max(seconds, 1e-9)))
end
