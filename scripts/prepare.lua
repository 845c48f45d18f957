-- Converts texts, JSON lines or token files to a token store for training:
--
--     build/mxlua scripts/prepare.lua input=corpus/ out=corpus.h5
--     mpirun -n 4 build/mxlua scripts/prepare.lua input='web/*.jsonl.zst,books.jsonl' out=corpus.h5 \
--         tokenizer=gpt2/tokenizer.json add_eos=true
--     build/mxlua scripts/train.lua model_name=tiny dataset_type=hdf5 dataset_path=corpus.h5
--
-- input             files, folders (with all files in them) and patterns, separated by commas; .gz and .zst are
--                   decompressed. Spaces are part of a name. Quote a name with a comma: input='"a,b.jsonl",c.jsonl'
-- out               file of the token store. The same command resumes an interrupted run from OUT.parts, also with
--                   on_error=skip or a larger max_document_mib added. With other changes it starts over
-- tokenizer         a tokenizer.json, a folder with one, a GGUF file, or bytes
-- format            text, jsonl (one JSON object per line), bin (uint16 tokens of nanoGPT, uint16 or uint32 tokens of
--                   llm.c), hdf5 (a token store, or a file with the data set "tokens") or auto: by the files' names,
--                   otherwise text. A file of another format is recognised by its first bytes and refused
-- field             jsonl: key of the text
-- separator         text: string that ends a document (\n and \t are understood); empty: each file is a document
-- document_token    bin, hdf5 without documents: token that ends a document; -1: each file is a document
-- vocab_size        vocabulary size of the store; 0: that of the tokenizer, or for token files the highest id plus one
-- add_bos, add_eos  begin each document with the tokenizer's BOS, end it with its EOS
-- on_error          for lines that are not JSON or lack the text, and documents that are not UTF-8: stop, or skip (skip
--                   and count them)
-- piece_mib         size in MiB of the pieces of work that ranks take: groups of small files, and ranges of large jsonl
--                   files. A large file of another format is one piece, and so is a compressed file
-- max_document_mib  limit in MiB of a document or a line of JSON; a longer one is an error
--
-- JSON is read as by Python's json.loads: NaN, Infinity and numbers of any size are allowed, the last of several equal
-- keys counts, and only the text must be valid Unicode. A byte-order mark at the start of a file or line is removed.
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
