--- Datasets of a script's own: batches from tensors or from an iterator, shuffled, shared among the ranks, resumable.
--
--     local train = mx.data.dataset({ x = images, y = labels }, { batch = 32 })
--     for batch in train:epoch() do ... batch.x (32, ...), batch.y (32) ... end
--
-- All ranks walk through the same order of examples; of each global batch, every rank takes the part of its number. So
-- the position is the same on all ranks, and resuming works on another number of ranks.

local mx = require "mx"
local util = require "mx.util"

local dataset = {}

local BUFFER = 1024 -- default number of an iterator's examples among which the next is drawn

---@class mx.Dataset
---@field tensors? table<string, any> name -> tensor with an example in each row
---@field examples? fun(epoch: integer): fun(): table? starts an iterator over examples
---@field n? integer number of examples, if they are tensors
---@field batch integer examples of a batch of this rank
---@field epochs integer completed epochs
---@field position integer examples of this epoch that all ranks together have had
local Dataset = {}
Dataset.__index = Dataset

-- ---- tensors ----

local function count_rows(tensors)
    local n, first = nil, nil
    for name, t in util.sorted_pairs(tensors) do
        if type(t) ~= "userdata" or getmetatable(t) ~= "mx.tensor" or t:dim() == 0 then
            error(("mx.data.dataset: '%s' is %s; expected a tensor with an example in each row"):format(name,
                type(t) == "userdata" and "a tensor without dimensions" or type(t)), 3)
        elseif n and #t ~= n then
            error(("mx.data.dataset: '%s' has %d rows, and '%s' has %d"):format(first, n, name, #t), 3)
        end
        n, first = #t, first or name
    end
    if not n or n == 0 then
        error("mx.data.dataset: there are no examples", 3)
    end
    return n
end

-- The examples at positions first ... first + count - 1 (from 0) of the epoch.
local function rows_at(self, first, count)
    local batch, ids = {}, nil
    if self.shuffle then
        ids = mx.tensor(mx.io.permutation(self.n, util.seed("epoch", self.seed + self.epochs), first, count), "i32")
    end
    for name, t in util.sorted_pairs(self.tensors) do
        t = t:detach()
        batch[name] = t[ids or { { first + 1, first + count } }]
    end
    return batch
end

-- ---- iterators ----

-- The next example of the epoch in shuffled order: a random one of the buffer, whose place the next of the iterator
-- takes.
local function draw(self)
    local buffer = self.buffer
    while not self.ended and #buffer < (self.shuffle and self.buffer_size or 1) do
        local example = self.iterator()
        if example == nil then
            self.ended = true
        elseif type(example) ~= "table" then
            error(("mx.data.dataset: an example is a %s; expected a table { name = tensor or number }"):format(
                type(example)), 0)
        else
            for _, value in pairs(example) do
                if type(value) == "userdata" then
                    value:keep() -- it may stay in the buffer for longer than the caller's step
                end
            end
            buffer[#buffer + 1] = example
        end
    end
    if #buffer == 0 then
        return nil
    end
    local at = 1
    if self.shuffle then
        self.drawn = self.drawn + 1
        at = util.mix(util.seed("draw", self.seed + self.epochs) + self.drawn) % #buffer + 1
    end
    local example = buffer[at]
    buffer[at] = buffer[#buffer]
    buffer[#buffer] = nil
    return example
end

local function start_iterator(self)
    self.iterator, self.buffer, self.ended, self.drawn = self.examples(self.epochs + 1), {}, false, 0
    if type(self.iterator) ~= "function" then
        error("mx.data.dataset: the function must return an iterator: a function that returns the next example, or nil "
            .. "at the end", 0)
    end
    for _ = 1, self.position do -- resumes in the middle of an epoch
        draw(self)
    end
end

local function are_integers(values)
    for _, value in ipairs(values) do
        if math.type(value) ~= "integer" then
            return false
        end
    end
    return true
end

-- A field of several examples as one tensor: (...) each -> (B, ...). Tables of numbers become f32, and so do numbers of
-- which any is a float.
local function stack(name, values)
    local first = values[1]
    if type(first) == "number" or type(first) == "table" then
        local good, t = pcall(mx.tensor, values, are_integers(values) and "i32" or "f32")
        return good and t or error(("mx.data.dataset: '%s' of the examples: %s"):format(name,
            tostring(t):gsub("^.*mx%.tensor: ", "")), 0)
    elseif type(first) ~= "userdata" then
        error(("mx.data.dataset: '%s' of an example is a %s; expected a tensor, a number or a table of numbers"):format(
            name, type(first)), 0)
    end
    local sizes = first:size()
    table.insert(sizes, 1, #values)
    local out = mx.zeros(sizes, first:dtype())
    for i, value in ipairs(values) do
        mx.write_slice(out, value:detach():unsqueeze { dim = 1 }, { dim = 1, start = i })
    end
    return out
end

-- Adds the fields of an example to the lists of those of the `count` examples before it.
local function add_fields(lists, example, count)
    for name, value in pairs(example) do
        lists[name] = lists[name] or {}
        table.insert(lists[name], value)
    end
    for name, values in util.sorted_pairs(lists) do
        if #values ~= count + 1 then
            error(("mx.data.dataset: some examples have '%s' and others lack it; all need the same fields"):format(
                name), 0)
        end
    end
end

-- A list of examples as tensors with an example in each row.
local function columns_of(examples)
    local lists, tensors = {}, {}
    for i, example in ipairs(examples) do
        if type(example) ~= "table" then
            error(("mx.data.dataset: example %d is a %s; expected a table { name = tensor or number }"):format(i,
                type(example)), 0)
        end
        add_fields(lists, example, i - 1)
    end
    for name, values in util.sorted_pairs(lists) do
        tensors[name] = stack(name, values):keep()
    end
    return tensors
end

-- The next `count` examples of this rank from the next `all` of the epoch, of which its own begin at `first` (from 0);
-- nil if the epoch has fewer.
local function examples_at(self, first, count, all)
    if not self.iterator then
        start_iterator(self)
    end
    local lists, had = {}, 0
    for i = 0, all - 1 do
        local example = draw(self)
        if not example then
            break
        end
        had = had + 1
        if i >= first and i < first + count then
            add_fields(lists, example, i - first)
        end
    end
    if had < all and (self.drop_last or had == 0) then
        return nil
    end
    local batch = {}
    for name, values in util.sorted_pairs(lists) do
        batch[name] = stack(name, values)
    end
    return batch, had
end

-- ---- batches ----

-- The examples that all ranks together take at once.
local function global_batch(self)
    return self.batch * (self.shard and mx.ranks() or 1)
end

local function batch_text(self)
    local all = global_batch(self)
    return all == self.batch and ("a batch of %d"):format(all) or ("a batch of %d on each of %d ranks"):format(
        self.batch, mx.ranks())
end

--- #dataset: the number of batches in an epoch, the same on all ranks. That of an iterator is not known.
---@return integer
function Dataset:__len()
    local all = global_batch(self)
    return self.n and (self.drop_last and self.n // all or -(-self.n // all))
        or error("#dataset: the length of an iterator is not known; count the batches of dataset:epoch()", 2)
end

-- The next batch of the epoch; nil at its end.
local function next_of_epoch(self)
    local started = mx.now()
    local first, all = (self.shard and mx.rank() or 0) * self.batch, global_batch(self)
    local batch, had
    if self.examples then
        batch, had = examples_at(self, first, self.batch, all)
    else
        local left = self.n - self.position
        had = math.min(all, left)
        if had == all or (not self.drop_last and had > 0) then
            batch = rows_at(self, self.position + first, math.min(self.batch, left))
        end
    end
    self.waited_s = self.waited_s + mx.now() - started
    if batch then
        self.last = ("examples %d to %d of epoch %d"):format(self.position + 1, self.position + had, self.epochs + 1)
        self.position = self.position + had
        return self.transform and self.transform(batch) or batch
    end
end

local function end_epoch(self)
    self.epochs, self.position, self.iterator = self.epochs + 1, 0, nil
end

--- Iterates over the batches that are left of the current epoch; afterwards the next epoch is the current one.
---@return fun(): table?
function Dataset:epoch()
    return function()
        local batch = next_of_epoch(self)
        if not batch then
            end_epoch(self)
        end
        return batch
    end
end

--- The next batch, without end: after an epoch comes the next one.
---@return table<string, any> name -> tensor (B, ...)
function Dataset:next()
    local batch = next_of_epoch(self)
    if not batch then
        end_epoch(self)
        batch = next_of_epoch(self) or error(("mx.data.dataset: an epoch has fewer examples than %s"):format(
            batch_text(self)), 2)
    end
    return batch
end

--- The position in the data, the same on every rank: plain numbers, to be saved with the parameters.
---@return {epochs: integer, samples: integer, seed: integer, n: integer?} samples: examples of the current epoch that
---        all ranks together have had
function Dataset:state()
    return { epochs = self.epochs, samples = self.position, seed = self.seed, n = self.n }
end

--- Continues from a state. An iterator is started again and its examples up to the position are skipped.
---@param state table of Dataset:state
function Dataset:restore(state)
    for _, key in ipairs({ "seed", "n" }) do
        if self[key] ~= nil and math.tointeger(state[key]) ~= self[key] then
            util.refuse("the state of the data does not fit: its %s is %s, that of this dataset %s", key,
                tostring(state[key]), tostring(self[key]))
        end
    end
    local epochs, samples = math.tointeger(state.epochs), math.tointeger(state.samples)
    if not epochs or not samples or epochs < 0 or samples < 0 or (self.n and samples > self.n) then
        util.refuse("the state of the data is damaged: epochs = %s, samples = %s", tostring(state.epochs),
            tostring(state.samples))
    end
    self.epochs, self.position, self.iterator = epochs, samples, nil
end

--- Seconds that batches took since the last call of this function, for the progress lines of a run.
---@return number
function Dataset:waited()
    local seconds = self.waited_s
    self.waited_s = 0
    return seconds
end

--- Names the examples of the last batch, for messages about a failed step.
---@return string
function Dataset:describe()
    return self.last or "no batch yet"
end

--- Makes a dataset.
---@param source table|function tensors by name with an example in each row; a list of examples { name = tensor, number
---       or table of numbers }; or a function that is called with the number of the epoch, from 1, and returns an
---       iterator over examples
---@param options? {batch: integer, shuffle: boolean, seed: integer, shard: boolean, drop_last: boolean, buffer:
---       integer} batch: examples of each rank (default 32); shuffle: default true; shard: ranks get different examples
---       (default true); drop_last: leave out the examples at the end of an epoch that make no full batch on all ranks
---       (default true; false only with one rank); buffer: an iterator's examples among which the next is drawn (1024)
---@return mx.Dataset
function dataset.dataset(source, options)
    local o = util.options(options, {
        batch = 32, shuffle = true, seed = 0, shard = true, drop_last = true, buffer = BUFFER,
    }, "mx.data.dataset")
    local self = setmetatable({
        batch = o.batch, shuffle = o.shuffle, seed = o.seed, shard = o.shard, drop_last = o.drop_last,
        buffer_size = o.buffer, epochs = 0, position = 0, waited_s = 0,
    }, Dataset)
    if math.type(o.batch) ~= "integer" or o.batch < 1 then
        error(("mx.data.dataset: batch = %s; expected a number of examples%s"):format(tostring(o.batch),
            util.not_integer(o.batch)), 2)
    elseif not o.drop_last and o.shard and mx.ranks() > 1 then
        error("mx.data.dataset: drop_last = false needs one rank: ranks must have equally large batches", 2)
    elseif type(source) == "function" then
        self.examples = source
    elseif type(source) == "table" then
        source = #source > 0 and columns_of(source) or source
        self.tensors, self.n = source, count_rows(source)
        if o.drop_last and self.n < global_batch(self) then
            error(("mx.data.dataset: %d examples are fewer than %s; use a smaller batch"):format(self.n,
                batch_text(self)), 2)
        end
    else
        error("mx.data.dataset: expected a table { name = tensor }, a list of examples or a function that returns an "
            .. "iterator, got " .. type(source), 2)
    end
    return self
end

--- The same dataset with `fn` applied to every batch, for augmentation and conversion. Both share one position.
---@param source mx.Dataset
---@param fn fun(batch: table): table
---@return mx.Dataset
function dataset.map(source, fn)
    if getmetatable(source) ~= Dataset and not rawget(source, "transform") then
        error("mx.data.map: the first argument must be a dataset of mx.data.dataset", 2)
    end
    local before = source.transform
    local self = setmetatable({}, {
        __index = source,
        __newindex = source,
        __len = Dataset.__len,
    })
    rawset(self, "transform", before and function(batch) return fn(before(batch)) end or fn)
    return self
end

return dataset
