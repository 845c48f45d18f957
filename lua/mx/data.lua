--- Batches of tokens for training: synthetic ones, or windows of a file of tokens.
--
-- Which window is read depends on data_shuffle_seed and on the number of the sequence in the whole run, so that the
-- ranks read different ones and a run can be repeated.

local mx = require "mx"
local util = require "mx.util"

local data = {}

---@class mx.Data
---@field config table
---@field samples integer of the whole run (all ranks together) handed out so far
---@field part integer which part of the run's sequences this rank reads, from 0
---@field parts integer of how many
---@field sequences integer in a batch of this rank
local Data = {}
Data.__index = Data

local STATE_FORMAT = 1

local FILES = { text = true, bin = true, hdf5 = true } -- dataset_type: the format of a file of tokens

--- Sequences in a batch of a rank: ranks that do not share out the batch have the same ones, as many times more.
---@param config table
---@param mesh? mx.Mesh
---@return integer
function data.sequences(config, mesh)
    local shares = mesh and mesh.layout.ranks // mesh:size(mesh.rules.activation_batch) or 1
    return config.per_device_batch_size * shares
end

--- The data that a config asks for. On a mesh the ranks that share out the batch read different sequences, the others
--- the same; per_device_batch_size counts sequences for each rank of either kind. Not collective: each rank opens the
--- file.
---@param config table
---@param mesh? mx.Mesh without one every rank reads sequences of its own
---@return mx.Data
function data.open(config, mesh)
    local self = setmetatable({
        config = config, samples = 0, part = mx.rank(), parts = mx.ranks(),
        sequences = data.sequences(config, mesh), waited_s = 0,
    }, Data)
    if mesh then
        local axes = mesh.rules.activation_batch
        self.part, self.parts = mesh:index(axes), mesh:size(axes)
    end
    if FILES[config.dataset_type] then
        self.reader = util.attempt(mx.io.tokens_open, config.dataset_path, config.dataset_type)
        local need = config.max_target_length + 1
        if self.reader:count() < need then
            mx.config.refuse(config, "dataset_path", "%s has %d tokens; one sequence and its targets take %d",
                config.dataset_path, self.reader:count(), need)
        end
    end
    return self
end

-- Where the window of the run's sequence number `index` starts in the file, as an offset.
local function window_start(self, index)
    local starts = self.reader:count() - self.config.max_target_length
    return util.seed("window", self.config.data_shuffle_seed + index) % starts
end

local function check_ids(self, tokens)
    local highest = mx.max(tokens):item()
    if highest >= self.config.vocab_size then
        mx.config.refuse(self.config, "dataset_path", "%s has the token id %d, outside the vocabulary of %d",
            self.config.dataset_path, highest, self.config.vocab_size)
    end
end

-- Random tokens of B of the run's sequences, each from a stream of its own: whoever reads it gets the same.
local function random_tokens(c, B, length, first)
    local tokens = mx.zeros({ B, length }, "i32")
    for b = 1, B do
        local seed = util.seed("tokens", c.data_shuffle_seed)
        local row = mx.rand { shape = { 1, length }, high = c.vocab_size, seed = seed, offset = first + b }:to("i32")
        mx.write_slice(tokens, row, { dim = 1, start = b })
    end
    return tokens
end

-- (B, S + 1) i32 tokens: the sequences of the whole run from number `first` on.
local function make_tokens(self, first)
    local c = self.config
    local B, length = self.sequences, c.max_target_length + 1
    if c.dataset_type == "synthetic" then
        return mx.zeros({ B, length }, "i32")
    elseif c.dataset_type == "random" then
        return random_tokens(c, B, length, first)
    end
    local starts = {}
    for b = 1, B do
        starts[b] = window_start(self, first + b)
    end
    local tokens = util.attempt(self.reader.rows, self.reader, starts, length)
    check_ids(self, tokens)
    return tokens
end

--- The next batch of this rank, or the first one again with reuse_example_batch. Not collective, but ranks that train
--- together ask for the same number of batches.
---@return {tokens: any, targets: any, ids: integer[]} tokens and targets (B, S) i32, the targets one token further on;
---        ids: the numbers of the first and the last of its sequences in the whole run, from 0
function Data:next()
    if self.example then
        return self.example
    end
    local S, B = self.config.max_target_length, self.sequences
    local first, started = self.samples + self.part * B, mx.now()
    local tokens = make_tokens(self, first)
    self.waited_s = self.waited_s + mx.now() - started
    local batch = {
        tokens = mx.narrow(tokens, { dim = 2, start = 1, length = S }),
        targets = mx.narrow(tokens, { dim = 2, start = 2, length = S }),
        ids = { first, first + B - 1 },
    }
    self.last = batch.ids
    if self.config.reuse_example_batch == 1 then
        batch.tokens, batch.targets = batch.tokens:keep(), batch.targets:keep()
        self.example = batch
    else
        self.samples = self.samples + self.parts * B
    end
    return batch
end

-- What the samples depend on beside their number.
local function fingerprint(self)
    local c = self.config
    local file = FILES[c.dataset_type]
    return {
        dataset_type = c.dataset_type,
        data_shuffle_seed = c.data_shuffle_seed,
        max_target_length = c.max_target_length,
        vocab_size = not file and c.vocab_size or nil,
        tokens = file and self.reader:count() or nil,
    }
end

--- Where the data stands: what the next call of next() depends on. The same on every rank, and for any number of
--- ranks that has handed out as many sequences. Not collective.
---@return table of strings and numbers, which may go through JSON
function Data:state()
    local state = fingerprint(self)
    state.format, state.samples = STATE_FORMAT, self.samples
    return state
end

-- Two values of a state: numbers may have become floats on their way through a file.
local function same(a, b)
    return a == b or (math.tointeger(a) ~= nil and math.tointeger(a) == math.tointeger(b))
end

--- Goes on from a state: the next batch is the one that would have come next then. Refuses a state of other data, and
--- names the difference. Not collective: give every rank the same state.
---@param state table of Data:state
function Data:restore(state)
    local expected = fingerprint(self)
    expected.format = STATE_FORMAT
    local keys = { samples = true }
    for _, source in ipairs({ expected, state }) do
        for key in pairs(source) do
            keys[key] = true
        end
    end
    for key in util.sorted_pairs(keys) do
        if key ~= "samples" and not same(state[key], expected[key]) then
            util.refuse("the state of the data does not fit: its %s is %s, that of this run %s. Continue with the data "
                .. "that the run was started with, or start a new run", key, tostring(state[key]),
                tostring(expected[key]))
        end
    end
    local samples = math.tointeger(state.samples)
    if not samples or samples < 0 then
        util.refuse("the state of the data is damaged: samples = %s", tostring(state.samples))
    end
    self.samples, self.example, self.last = samples, nil, nil
end

--- Which samples the last batch of this rank had, in one line: for messages about a step that went wrong.
---@return string
function Data:describe()
    local c = self.config
    if not self.last then
        return "no batch yet"
    end
    local source = FILES[c.dataset_type] and c.dataset_path or c.dataset_type
    return ("samples %d to %d of %s"):format(self.last[1], self.last[2], source)
end

--- Seconds that next() has waited for data since the last call of this.
---@return number
function Data:waited()
    local seconds = self.waited_s
    self.waited_s = 0
    return seconds
end

return data
