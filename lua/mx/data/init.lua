--- Batches of sequences for training: synthetic tokens, or samples of files of tokens.
--
-- The sequences of a run are numbered. Each depends only on the seed and its number, so different ranks read different
-- sequences, a run reads the same sequences on any number of ranks, and resuming from a state takes no time.
-- engine/data/sampler.h defines the samples of a file and their order.

local mx = require "mx"
local dataset = require "mx.data.dataset"
local sources = require "mx.data.sources"
local util = require "mx.util"

local data = { dataset = dataset.dataset, map = dataset.map }

---@class mx.Data
---@field config table
---@field samples integer number of samples that all ranks together have read so far
---@field part integer which part of the run's sequences this rank reads, from 0
---@field parts integer number of parts
---@field sequences integer number of sequences in a batch of this rank
---@field feed? userdata of mx.io.feed; nil if no file is read
---@field sources table[] of feed:sources(), with their weights
---@field epoch_samples? integer samples in an epoch, if files have no weights
local Data = {}
Data.__index = Data

local STATE_FORMAT = 2
local FILES = { text = true, bin = true, hdf5 = true } -- dataset_type: the format of a file of tokens
local MOST_DESCRIBED = 8 -- sequences in a description

--- Number of sequences in a batch of a rank: the batch size times the ranks that work on the same sequences. Refuses a
--- product that is not whole.
---@param config table
---@param mesh? mx.Mesh
---@param key? string of the batch size; default per_device_batch_size
---@return integer
function data.sequences(config, mesh, key)
    key = key or "per_device_batch_size"
    local shares = mesh and mesh.layout.ranks // mesh:size(mesh.rules.activation_batch) or 1
    local product = config[key] * shares
    local whole = math.floor(product + 0.5)
    if whole < 1 or math.abs(product - whole) > 1e-6 then
        mx.config.refuse(config, key, "%d %s on the same sequences, so that they have %g "
            .. "of them: expected a whole number, as with ici_context_parallelism or ici_tensor_parallelism of %d",
            shares, shares == 1 and "rank works" or "ranks work together", product,
            math.ceil(1 / config[key]))
    end
    return whole
end

-- The known tokenizer of each source: {what =, fingerprint =}. A text is read as bytes.
local function source_tokenizers(self, own)
    local list = {}
    for i, source in ipairs(self.sources) do
        local known = { what = source.path, fingerprint = source.tokenizer_fingerprint or "" }
        if self.config.dataset_type == "text" then
            known = { what = source.path .. ", which dataset_type=text reads as bytes", fingerprint = "bytes" }
        elseif (source.tokenizer or "") ~= "" then
            known.what = ("%s, made by %s"):format(source.path, source.tokenizer)
        end
        if own and own:matches(known.fingerprint) then -- older stores hold a checksum of tokenizer.json
            known.fingerprint = own:fingerprint()
        end
        list[i] = known
    end
    return list
end

-- Adds the known tokenizer of the parameters that a run starts from.
local function add_parameters_tokenizers(list, path, tokenizer_path)
    if path == "" or not mx.io.exists(path) then
        return
    end
    local what, at = "load_parameters_path=" .. path, mx.weights.tokenizer_of(path)
    list[#list + 1] = { what = what, fingerprint = mx.weights.tokenizer_fingerprint(path) }
    if at and at ~= tokenizer_path then
        list[#list + 1] = { what = what .. " with the tokenizer " .. at, fingerprint = mx.tokenizer.fingerprint_of(at) }
    end
end

-- The tokenizer of the config; nil if the config names none.
local function open_tokenizer(c)
    if c.tokenizer_path == "" then
        return nil
    end
    local opened, tokenizer = pcall(mx.tokenizer.open, c.tokenizer_path)
    if not opened then
        mx.config.refuse(c, "tokenizer_path", "%s", tostring(tokenizer))
    elseif tokenizer.vocab_size > c.vocab_size then
        mx.config.refuse(c, "tokenizer_path", "%s has %s ids, and vocab_size is %s", c.tokenizer_path,
            util.thousands(tokenizer.vocab_size), util.thousands(c.vocab_size))
    end
    return tokenizer
end

-- Checks that the model, the parameters that it starts from and all data use the same tokenizer, as far as it is known.
-- `train` are the training data of evaluation data.
local function check_tokenizers(self, train)
    local c = self.config
    local own = open_tokenizer(c)
    mx.files.check_same({ own and own.file })
    local known = {}
    if own then
        self.tokenizer = mx.tokenizer.fingerprint_of(c.tokenizer_path)
        known[1] = { what = "tokenizer_path=" .. c.tokenizer_path, fingerprint = self.tokenizer }
    end
    add_parameters_tokenizers(known, c.load_parameters_path, c.tokenizer_path)
    for _, one in ipairs({ train or self, train and self }) do
        local read = source_tokenizers(one, own)
        table.move(read, 1, #read, #known + 1, known)
    end
    local first = nil
    for _, this in ipairs(known) do
        if first then
            mx.tokenizer.check_same(first, this,
                "Prepare the texts (scripts/prepare.lua) with the tokenizer of the model")
        end
        first = first or this.fingerprint ~= "" and this or nil
    end
end

-- With num_epoch the run ends after that many epochs, or after config.steps steps if the user has set these and they
-- come first.
local function set_steps(self)
    local c = self.config
    if c.num_epoch < 1 then
        return
    end
    local samples = self.feed:samples_of(c.num_epoch)
    local batch = self.parts * self.sequences * c.gradient_accumulation_steps
    if samples < batch then
        mx.config.refuse(c, "num_epoch", "%d of the data %s %d samples, and a step takes %d", c.num_epoch,
            c.num_epoch == 1 and "is" or "are", samples, batch)
    end
    c.steps = math.min(mx.config.is_chosen(c, "steps") and c.steps or math.maxinteger, samples // batch)
end

--- Opens the data that a config describes. On a mesh, ranks along axes that split the batch read different sequences;
--- other ranks read the same ones. per_device_batch_size counts sequences per rank of either kind. With num_epoch,
--- config.steps becomes the number of steps in these epochs, unless the user has chosen fewer. Each rank opens the
--- files; they must be the same on all ranks. Collective.
---@param config table
---@param mesh? mx.Mesh without one every rank reads sequences of its own
---@return mx.Data
function data.open(config, mesh)
    local self = setmetatable({
        config = config, samples = 0, part = mx.rank(), parts = mx.ranks(),
        sequences = data.sequences(config, mesh), sources = {}, waited_s = 0,
    }, Data)
    if mesh then
        local axes = mesh.rules.activation_batch
        self.part, self.parts = mesh:index(axes), mesh:size(axes)
    end
    if FILES[config.dataset_type] then
        sources.open(self, #config.dataset_mix > 0 and "dataset_mix" or "dataset_path")
    end
    if not mx.is_simulated() then
        check_tokenizers(self)
    end
    if self.feed then
        set_steps(self)
    end
    return self
end

-- B sequences of random tokens. Every step has the same sequences, as in MaxText. Each has its own random stream, so it
-- is the same on every mesh. Simulated tokens have no values.
local function synthetic_batch(self, B, first)
    local c, S = self.config, self.config.max_target_length
    local tokens = mx.zeros({ B, S + 1 }, "i32")
    local seed, step = util.seed("tokens", c.data_shuffle_seed), self.parts * B * c.gradient_accumulation_steps
    for b = 1, mx.is_simulated() and 0 or B do
        local number = (first + b - 1) % step
        local row = mx.rand({ 1, S + 1 }, { high = c.vocab_size, seed = seed, offset = number }):to("i32")
        mx.write_slice(tokens, row, { dim = 1, start = b })
    end
    return {
        tokens = mx.narrow(tokens, { dim = 2, start = 1, length = S }),
        targets = mx.narrow(tokens, { dim = 2, start = 2, length = S }),
    }
end

-- Keeps the tensors that the model needs of segments, positions and mask. With causal attention, no token attends to
-- the padding behind a document.
local function choose(c, batch)
    if batch.mask and not c.packing then
        batch.positions = nil
        batch.segments = c.attention_type == "full" and batch.segments or nil
    end
    return batch
end

--- Number of sequences in a batch of evaluation of a rank, as data.sequences.
---@param config table
---@param mesh? mx.Mesh
---@return integer
function data.evaluation_sequences(config, mesh)
    return data.sequences(config, mesh, config.eval_per_device_batch_size > 0 and "eval_per_device_batch_size" or nil)
end

--- Opens the evaluation data of a run: one pass over eval_dataset_path in the order of the file. Sequences are made as
--- those of the training data are. With synthetic data, evaluation has one batch of these. Collective.
---@param train mx.Data
---@param mesh? mx.Mesh
---@return mx.Data
function data.open_evaluation(train, mesh)
    local c = train.config
    local self = setmetatable({
        config = c, samples = 0, part = train.part, parts = train.parts, sources = {}, waited_s = 0,
        sequences = data.evaluation_sequences(c, mesh),
    }, Data)
    if train.feed then
        sources.open(self, "eval_dataset_path")
        if not self.epoch_samples then
            mx.config.refuse(c, "eval_dataset_path", "together these files have too many sequences for an exact mean: "
                .. "give fewer or one")
        end
    else
        self.epoch_samples = self.parts * self.sequences
    end
    if not mx.is_simulated() then
        check_tokenizers(self, train)
    end
    return self
end

-- A batch on a simulated device: tensors with shapes but no values.
local function simulated_batch(self, B)
    local sizes = { B, self.config.max_target_length }
    local batch = { tokens = mx.zeros(sizes, "i32"), targets = mx.zeros(sizes, "i32") }
    if self.documents then
        batch.segments, batch.positions = mx.zeros(sizes, "i32"), mx.zeros(sizes, "i32")
        batch.mask = mx.zeros(sizes, "u8")
    end
    return batch
end

local function read_batch(self, B, first)
    if not self.feed then
        local started = mx.now()
        local batch = synthetic_batch(self, B, first)
        self.waited_s = self.waited_s + mx.now() - started
        return batch
    elseif mx.is_simulated() then
        return choose(self.config, simulated_batch(self, B))
    end
    local batch = {}
    batch.tokens, batch.targets, batch.segments, batch.positions, batch.mask =
        util.attempt(self.feed.next, self.feed, first)
    return choose(self.config, batch)
end

--- The next batch of this rank, or the first one again with reuse_example_batch. Not collective, but ranks that train
--- together must call it equally often.
---@return {tokens: any, targets: any, segments: any, positions: any, mask: any, ids: integer[]} tokens and targets
---        (B, S) i32, the targets one token further on. With packed documents also segments (i32, equal for tokens of
---        one document), positions (i32, in the document) and mask (u8: 0 if the target does not count). With padded
---        documents a mask, and segments unless attention is causal. ids: the numbers of the first and last sequence in
---        the run, from 0
function Data:next()
    if self.example then
        return self.example
    end
    local B = self.sequences
    local first = self.samples + self.part * B
    local batch = read_batch(self, B, first)
    batch.ids = { first, first + B - 1 }
    self.last = batch.ids
    if self.config.reuse_example_batch == 1 then
        for _, name in ipairs({ "tokens", "targets", "segments", "positions", "mask" }) do
            batch[name] = batch[name] and batch[name]:keep()
        end
        self.example = batch
    else
        self.samples = self.samples + self.parts * B
    end
    return batch
end

--- A batch of this rank in a pass over all sequences of evaluation data. Rows without a sequence do not count. Not
--- collective.
---@param number integer of the batch, from 0
---@return table as of next(), always with a mask
function Data:batch_of_pass(number)
    local B = self.sequences
    local first = (number * self.parts + self.part) * B
    local batch = read_batch(self, B, first)
    local rows = math.max(0, math.min(B, self.epoch_samples - first))
    local mask = batch.mask or mx.ones(batch.tokens:size(), "u8")
    batch.mask = mx.zeros(batch.tokens:size(), "u8")
    if rows > 0 then
        mx.write_slice(batch.mask, mx.narrow(mask, { dim = 1, start = 1, length = rows }), { dim = 1, start = 1 })
    end
    return batch
end

--- Number of batches in a pass over evaluation data.
---@return integer
function Data:batches_of_pass()
    local step = self.parts * self.sequences
    return (self.epoch_samples + step - 1) // step
end

-- Everything that the samples depend on, besides their number.
local function fingerprint(self)
    local c = self.config
    local state = {
        format = STATE_FORMAT, dataset_type = c.dataset_type, data_shuffle_seed = c.data_shuffle_seed,
        max_target_length = c.max_target_length, tokenizer = self.tokenizer,
        tokenizer_path = self.tokenizer and c.tokenizer_path,
    }
    if not self.feed then
        state.vocab_size = c.vocab_size
        return state
    end
    state.sources, state.packing = #self.sources, tostring(c.packing)
    state.enable_data_shuffling = tostring(c.enable_data_shuffling)
    for i, source in ipairs(self.sources) do
        state["source_" .. i] = ("%d tokens in %d documents, checksum %08x, weight %d"):format(source.tokens,
            source.documents or 0, source.fingerprint, source.weight)
    end
    return state
end

--- The position in the data, from which next() continues. It is the same on every rank and for any number of ranks that
--- has read the same number of sequences; prefetched batches do not count. Not collective.
---@return table of strings and numbers, which can be stored as JSON: samples read in the whole run, their epoch if
---        files have no weights, and everything that the samples depend on
function Data:state()
    local state = fingerprint(self)
    state.samples = self.samples
    state.epoch = self.epoch_samples and self.samples // self.epoch_samples
    return state
end

-- Compares two values of a state: integers may have become floats in a file.
local function same(a, b)
    return a == b or (math.tointeger(a) ~= nil and math.tointeger(a) == math.tointeger(b))
end

local function check_state(state, expected)
    local keys = {}
    for _, side in ipairs({ expected, state }) do
        for key in pairs(side) do
            keys[key] = true
        end
    end
    keys.samples, keys.epoch, keys.tokenizer, keys.tokenizer_path = nil, nil, nil, nil
    mx.tokenizer.check_same(
        { what = ("tokenizer_path=%s of the checkpoint"):format(state.tokenizer_path), fingerprint = state.tokenizer },
        { what = ("tokenizer_path=%s now"):format(expected.tokenizer_path), fingerprint = expected.tokenizer },
        "Continue with the tokenizer that the run was started with, or start a new run")
    for key in util.sorted_pairs(keys) do
        if not same(state[key], expected[key]) then
            util.refuse("the state of the data does not fit: its %s is %s, that of this run %s. Continue with the data "
                .. "that the run was started with, or start a new run; with load_full_state_path and restart_data=true "
                .. "it keeps the optimizer state", key, tostring(state[key]), tostring(expected[key]))
        end
    end
end

--- Resumes from a state: the next batch is the one that would have come next. Takes no time, except that packed
--- documents need one pass over their lengths. Refuses a state of other data and names the difference. Not collective:
--- give every rank the same state.
---@param state table of Data:state
function Data:restore(state)
    check_state(state, fingerprint(self))
    local samples = math.tointeger(state.samples)
    if not samples or samples < 0 then
        util.refuse("the state of the data is damaged: samples = %s", tostring(state.samples))
    end
    self.samples, self.example, self.last = samples, nil, nil
end

--- Describes the samples of this rank's last batch in one line, for messages about a failed step.
---@return string
function Data:describe()
    if not self.last then
        return "no batch yet"
    end
    local first, last = self.last[1], self.last[2]
    local text = ("samples %d to %d"):format(first, last)
    if not self.feed or mx.is_simulated() then
        return ("%s of %s"):format(text, self.config.dataset_type)
    end
    local rows = {}
    for sample = first, math.min(last, first + MOST_DESCRIBED - 1) do
        rows[#rows + 1] = self.feed:describe(sample)
    end
    local more = last - first + 1 - #rows
    return ("%s: %s%s"):format(text, table.concat(rows, "; "), more > 0 and ("; and %d more"):format(more) or "")
end

--- Seconds that next() has waited for data since the last call of this function. Batches are prefetched, so this is
--- near 0 unless the disk is slower than the steps.
---@return number
function Data:waited()
    if self.feed then
        return self.feed:waited()
    end
    local seconds = self.waited_s
    self.waited_s = 0
    return seconds
end

return util.module(data, "mx.data")
