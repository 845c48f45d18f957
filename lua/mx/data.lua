--- Batches of tokens for training: synthetic ones, or windows of a file of tokens.
--
-- Which window is read depends on data_shuffle_seed and on the number of the sequence in the whole run, so that the
-- ranks read different ones and a run can be repeated.

local mx = require "mx"
local util = require "mx.util"

local data = {}

---@class mx.Data
---@field config table
---@field batches integer handed out so far
---@field part integer which part of the run's sequences this rank reads, from 0
---@field parts integer of how many
---@field sequences integer in a batch of this rank
local Data = {}
Data.__index = Data

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
        config = config, batches = 0, part = mx.rank(), parts = mx.ranks(),
        sequences = data.sequences(config, mesh),
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

-- (B, S + 1) i32 tokens.
local function make_tokens(self)
    local c = self.config
    local B, length = self.sequences, c.max_target_length + 1
    local first = (self.batches * self.parts + self.part) * B -- of the sequences of the whole run
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

--- The next batch of this rank, or the first one again with reuse_example_batch.
---@return {tokens: any, targets: any} (B, S) i32 each; targets are the tokens one further on
function Data:next()
    if self.example then
        return self.example
    end
    local S = self.config.max_target_length
    local tokens = make_tokens(self)
    local batch = {
        tokens = mx.narrow(tokens, { dim = 2, start = 1, length = S }),
        targets = mx.narrow(tokens, { dim = 2, start = 2, length = S }),
    }
    self.batches = self.batches + 1
    if self.config.reuse_example_batch == 1 then
        batch.tokens, batch.targets = batch.tokens:keep(), batch.targets:keep()
        self.example = batch
    end
    return batch
end

return data
