--- Prepares a corpus: converts texts, JSON lines and token files to a token store (engine/data/token_store.h).
--
-- The input is split into pieces by its size in bytes, not by the number of ranks, so any number of ranks gives the
-- same result. A piece is a range of a file, a file, or several small files. Each piece becomes a part in the folder
-- OUT.parts. A part is complete or missing, so an interrupted preparation resumes with the missing parts. Rank 0 merges
-- the parts.

local mx = require "mx"
local inputs = require "mx.data.prepare_inputs"
local util = require "mx.util"

local prepare = {}

--- The options of prepare.run with their defaults. scripts/prepare.lua explains them.
prepare.OPTIONS = {
    input = {}, out = "", tokenizer = "bytes", format = "auto", field = "text", separator = "", document_token = -1,
    vocab_size = 0, add_bos = false, add_eos = false, on_error = "stop", piece_mib = 64, max_document_mib = 256,
}

local FORMATS = { "auto", "text", "jsonl", "bin", "hdf5" }
-- Options that a part depends on, besides the input and the tokenizer.
local SETTINGS = { "field", "separator", "document_token", "add_bos", "add_eos", "on_error", "max_document_mib" }
local PERIOD_S = 1 -- between two checks of the other ranks' progress
local MIB = 1 << 20

-- ---- the plan: the list of pieces, the same for any number of ranks ----

-- Groups consecutive small ranges into pieces.
local function group(ranges, o)
    local pieces, last = {}, nil
    for _, range in ipairs(ranges) do
        if not last or last.bytes + range.bytes > o.piece_mib * MIB then
            last = { bytes = 0, ranges = {} }
            pieces[#pieces + 1] = last
        end
        last.bytes = last.bytes + range.bytes
        last.ranges[#last.ranges + 1] = range
    end
    return pieces
end

local function is_tokens(range)
    return range.format == "bin" or range.format == "hdf5"
end

-- The vocabulary and tokenizer of a file's tokens, as far as the file names them or the tokens show them.
local function origin_of(range, o)
    local reader <close> = util.attempt(mx.io.tokens_open, range.path, range.format)
    local store = reader:store()
    if store then
        return store
    end
    local highest = o.vocab_size == 0 and util.attempt(reader.max, reader) or 0
    return { vocab_size = highest + 1, bos = -1, eos = -1, tokenizer = "", fingerprint = "" }
end

-- The vocabulary and tokenizer of the result: {vocab_size =, bos =, eos =, tokenizer =, fingerprint =}. Files that name
-- their tokenizer must all have the same one.
local function origin(o, ranges, own)
    local found, from = nil, nil
    local size = 1
    for _, range in ipairs(ranges) do
        local this = is_tokens(range) and origin_of(range, o) or own
        size = math.max(size, this.vocab_size)
        if this.fingerprint ~= "" then
            if found and found.fingerprint ~= this.fingerprint then
                util.refuse("%s was made by another tokenizer (%s) than %s (%s): prepare it again from its texts",
                    range.path, this.tokenizer, from, found.tokenizer)
            end
            found, from = found or this, from or range.path
        end
    end
    found = found or { bos = -1, eos = -1, tokenizer = "", fingerprint = "" }
    if o.vocab_size > 0 and o.vocab_size < size then
        util.refuse("vocab_size=%d: the tokenizer has %d ids", o.vocab_size, size)
    end
    return {
        vocab_size = o.vocab_size > 0 and o.vocab_size or size, bos = found.bos, eos = found.eos,
        tokenizer = found.tokenizer, fingerprint = found.fingerprint,
    }
end

local function check_options(o)
    if #o.input == 0 then
        util.refuse("input= is missing: files, folders or patterns, with commas between them")
    elseif o.out == "" then
        util.refuse("out=FILE.h5 is missing: the token store to write")
    elseif not util.contains(FORMATS, o.format) then
        util.refuse("format=%s: expected one of %s", o.format, table.concat(FORMATS, ", "))
    elseif o.on_error ~= "stop" and o.on_error ~= "skip" then
        util.refuse("on_error=%s: expected stop or skip", o.on_error)
    elseif o.piece_mib < 1 or o.max_document_mib < 1 then
        util.refuse("piece_mib, max_document_mib: expected at least 1")
    elseif o.vocab_size < 0 or o.document_token < -1 then
        util.refuse("vocab_size, document_token: expected a number that is not negative")
    elseif mx.io.exists(o.out) then
        util.refuse("%s is there already%s: remove it, or choose another out=", o.out, mx.io.exists(o.out .. ".parts")
            and (" (%s.parts, which it was made from, is no longer needed)"):format(o.out) or "")
    end
end

local function check_special(o, tokenizer)
    for _, which in ipairs({ "bos", "eos" }) do
        if o["add_" .. which] and not tokenizer[which] then
            util.refuse("add_%s=true: the tokenizer %s has no %s", which, o.tokenizer, which:upper())
        end
    end
end

-- Everything that the result depends on. A preparation can be resumed only with the same plan.
local function make_plan(o, tokenizer)
    local ranges, files = inputs.list(o)
    local plan = { pieces = mx.io.array(group(ranges, o)), inputs = mx.io.array(files) }
    plan.origin = origin(o, ranges, {
        vocab_size = tokenizer.vocab_size, bos = tokenizer.bos or -1, eos = tokenizer.eos or -1,
        tokenizer = o.tokenizer, fingerprint = tokenizer:fingerprint(),
    })
    for _, name in ipairs(SETTINGS) do
        plan[name] = o[name]
    end
    return plan
end

-- The differences of two plans, named by the options.
local function differences(a, b)
    local list = {}
    for _, name in ipairs(SETTINGS) do
        if a[name] ~= b[name] then
            list[#list + 1] = ("%s=%s, was %s"):format(name, tostring(b[name]), tostring(a[name]))
        end
    end
    for key, what in util.sorted_pairs({ inputs = "other input", origin = "another tokenizer or vocabulary" }) do
        if mx.io.json_encode(a[key]) ~= mx.io.json_encode(b[key]) then
            list[#list + 1] = what
        end
    end
    return #list > 0 and table.concat(list, "; ") or "other pieces"
end

-- Whether the parts of the plan `stored` can be used for `plan`. They can if only on_error became skip or
-- max_document_mib grew: a finished part has no document that on_error=skip would leave out or that a larger limit
-- would change.
local function can_continue(stored, plan)
    local grown = {}
    for key, value in pairs(stored) do
        grown[key] = value
    end
    if stored.on_error == "stop" then
        grown.on_error = plan.on_error
    end
    if math.type(stored.max_document_mib) == "integer" then
        grown.max_document_mib = math.max(stored.max_document_mib, plan.max_document_mib)
    end
    return mx.io.json_encode(grown) == mx.io.json_encode(plan)
end

-- The files of a preparation in the folder, and one other file, if there is any.
local function own_files(folder)
    local files, other = {}, nil
    for _, path in ipairs(util.attempt(mx.io.file_list, folder)) do
        local name = path:sub(#folder + 2):gsub("%.tmp%-[%x-]+$", "")
        if name == "plan.json" or name:find("^part%-%d+$") then
            files[#files + 1] = path
        elseif not name:find("^run%.lock") then
            other = path
        end
    end
    return files, other
end

-- Stores the plan in the folder of the parts. If the folder has parts of a plan that cannot be continued, removes them
-- and starts over.
local function settle_plan(plan, folder, out)
    local path, text = folder .. "/plan.json", mx.io.json_encode(plan)
    local there = mx.io.exists(path) and util.attempt(mx.io.read_file, path)
    if there == text then
        return
    end
    if there then
        local read, stored = pcall(mx.io.json_decode, there, path)
        if not read or not can_continue(stored, plan) then
            local files, other = own_files(folder)
            if other then
                util.refuse("%s is not of a preparation: move it away, or choose another out=", other)
            end
            mx.metrics.say("%s has parts that were made with %s: starting over", folder,
                read and ("other options (%s)"):format(differences(stored, plan)) or "an unknown plan")
            for _, file in ipairs(files) do
                os.remove(file)
            end
        end
    end
    util.attempt(mx.io.check_writable, out)
    util.attempt(mx.io.write_file_atomic, path, text)
end

-- ---- documents ----

-- The number of the line at a byte of the text, from 1; only for messages.
local function line_at(path, offset)
    local lines, text = 0, mx.io.text_open(path, { separator = "\n", limit = 1 << 40 })
    while text:next() and text:offset() <= offset do
        lines = lines + 1
    end
    return lines
end

-- The text of a document of the input; nil if it is left out, with the reason if the document is invalid.
local function text_of(range, raw, offset, o)
    if range.format == "jsonl" then
        return mx.io.json_line_text(raw, o.field)
    elseif offset == 0 and raw:sub(1, #inputs.MARK) == inputs.MARK then
        raw = raw:sub(#inputs.MARK + 1)
    end
    local valid, at = utf8.len(raw)
    return valid and raw or nil, not valid and ("invalid UTF-8 at byte %d of the document"):format(at) or nil
end

-- Replaces \n and \t in the separator, because a newline is hard to type on the command line.
local function separator_of(range, o)
    if range.format == "jsonl" then
        return "\n"
    end
    return (o.separator:gsub("\\(.)", function(c)
        return ({ n = "\n", t = "\t", ["\\"] = "\\" })[c] or "\\" .. c
    end))
end

-- Writes the documents of a range of text. Returns the number of skipped documents.
local function write_text(part, range, o, tokenizer, progress)
    local text <close> = util.attempt(mx.io.text_open, range.path, {
        start = range.start, stop = range.stop, separator = separator_of(range, o), limit = o.max_document_mib * MIB,
    })
    local special = { bos = o.add_bos, eos = o.add_eos }
    local skipped = 0
    local function next_piece()
        local read, piece = pcall(text.next, text)
        if not read then
            local long = tostring(piece):find("has more than", 1, true)
            local hint = long and "; max_document_mib allows longer ones" or ""
            util.refuse("%s%s", piece, hint)
        end
        return piece
    end
    for raw in next_piece do
        local document, wrong = text_of(range, raw, text:offset(), o)
        if wrong and o.on_error == "stop" then
            util.refuse("%s:%d: %s; on_error=skip leaves such documents out", range.path,
                line_at(range.path, text:offset()), wrong)
        elseif wrong then
            skipped = skipped + 1
        elseif document and document ~= "" then
            local tokens = util.attempt(tokenizer.encode, tokenizer, document, special)
            util.attempt(part.add, part, tokens)
            tokens:release()
        end
        progress(text:consumed() - range.start)
    end
    return skipped
end

local function part_path(folder, i)
    return ("%s/part-%06d"):format(folder, i)
end

local function make_part(path, piece, plan, o, tokenizer, progress)
    local part <close> = util.attempt(mx.io.token_part, path, plan.origin.vocab_size > 65536 and 4 or 2)
    local skipped, before = 0, 0
    for _, range in ipairs(piece.ranges) do
        if is_tokens(range) then
            util.attempt(part.copy, part, range.path, range.format, o.document_token,
                plan.origin.vocab_size)
        else
            skipped = skipped + write_text(part, range, o, tokenizer, function(bytes)
                progress:tell(before + bytes)
            end)
        end
        before = before + range.bytes
    end
    util.attempt(part.commit, part, skipped)
end

-- ---- progress ----

---@class mx.PrepareProgress
local Progress = {}
Progress.__index = Progress

-- Rank 0 shows the progress of all ranks: its own piece, and the finished parts.
local function new_progress(plan, folder, lock)
    local total = 0
    for _, piece in ipairs(plan.pieces) do
        total = total + piece.bytes
    end
    local self = setmetatable({
        plan = plan, folder = folder, lock = lock, total = total, started = mx.now(), told = mx.now(), there = {},
        done = 0, terminal = mx.rank() == 0 and mx.io.is_terminal(),
    }, Progress)
    self:look()
    self.before = self.done -- by an earlier run
    return self
end

function Progress:look()
    for i, piece in ipairs(self.plan.pieces) do
        if not self.there[i] and mx.io.exists(part_path(self.folder, i)) then
            self.there[i] = true
            self.done = self.done + piece.bytes
        end
    end
end

-- Reports that `bytes` of the current piece are done.
function Progress:tell(bytes)
    local now = mx.now()
    if mx.rank() > 0 or now - self.told < (self.terminal and PERIOD_S or 10 * PERIOD_S) then
        return
    end
    self.told = now
    util.attempt(self.lock.beat, self.lock)
    self:look()
    local done = self.done + bytes
    local rate = math.max(done - self.before, 0) / (now - self.started)
    local share = self.total > 0 and done / self.total or 1
    local bar = ("#"):rep(math.floor(share * 24 + 0.5))
    io.write(self.terminal and "\r" or "", ("[%-24s] %5.1f %%  %s of %s  %s/s  %s left  "):format(bar, 100 * share,
        util.bytes(done), util.bytes(self.total), util.bytes(rate),
        rate > 0 and util.duration((self.total - done) / rate) or "?"), self.terminal and "" or "\n")
    io.flush()
    self.wrote = self.terminal
end

function Progress:finish()
    if self.wrote then
        io.write("\n")
    end
end

-- ---- all of it ----

-- Checks that this rank sees the same files as the plan. Collective.
local function check_inputs(plan, folder)
    local wanted = {}
    for i = mx.rank() + 1, #plan.pieces, mx.ranks() do
        for _, range in ipairs(mx.io.exists(part_path(folder, i)) and {} or plan.pieces[i].ranges) do
            wanted[range.path] = true
        end
    end
    inputs.check_same(plan.inputs, wanted)
end

local function merge(plan, folder, o)
    local paths, skipped, text_tokens = {}, 0, 0
    for i in ipairs(plan.pieces) do
        paths[i] = part_path(folder, i)
        local about = util.attempt(mx.io.token_part_read, paths[i])
        skipped, text_tokens = skipped + about.skipped, text_tokens + about.tokens
    end
    if text_tokens == 0 then
        util.refuse("no document of the input has text%s: there is nothing to write", skipped > 0
            and (", %s were skipped"):format(util.thousands(skipped)) or "")
    end
    local tokens, documents = util.attempt(mx.io.token_parts_merge, paths, o.out, plan.origin)
    for _, path in ipairs(own_files(folder)) do
        os.remove(path)
    end
    return { tokens = tokens, documents = documents, skipped = skipped, vocab_size = plan.origin.vocab_size }
end

--- Prepares a corpus, or resumes an interrupted preparation with the same options. Invalid input raises an error with
--- file and line. Collective.
---@param o table of prepare.OPTIONS
---@return {tokens: integer, documents: integer, skipped: integer, vocab_size: integer, input_bytes: integer}? summary
---        on rank 0; nil elsewhere
function prepare.run(o)
    o = util.options(o, prepare.OPTIONS, "mx.prepare.run")
    local tokenizer, folder, lock = mx.tokenizer.open(o.tokenizer), o.out .. ".parts", nil
    mx.files.check_same({ tokenizer.file })
    if mx.rank() == 0 then
        check_options(o)
        check_special(o, tokenizer)
        local plan = make_plan(o, tokenizer)
        util.attempt(mx.io.mkdir_p, folder)
        lock = util.attempt(require("mx.run.folder").lock, folder, "choose another out=")
        settle_plan(plan, folder, o.out)
    end
    mx.comm_options { timeout_s = 0 } -- no limit, because ranks wait for the one with the longest text
    local plan = mx.io.json_decode(assert(mx.read_file(folder .. "/plan.json")), "plan.json")
    local progress = new_progress(plan, folder, lock)
    check_inputs(plan, folder)
    for i = mx.rank() + 1, #plan.pieces, mx.ranks() do
        local path = part_path(folder, i)
        if not mx.io.exists(path) then
            make_part(path, plan.pieces[i], plan, o, tokenizer, progress)
        end
        progress:tell(0)
    end
    mx.barrier()
    progress:finish()
    local summary = nil
    if mx.rank() == 0 then
        summary = merge(plan, folder, o)
        summary.input_bytes = progress.total
        lock:release()
        os.remove(folder)
    end
    mx.barrier()
    return summary
end

return prepare
