--- The files of tokens that a config names, opened as one stream of samples.
--
-- dataset_mix gives each file a weight. The files of dataset_path or eval_dataset_path are read as if they were one:
-- each has the weight of its samples, so an epoch has each sample once.

local mx = require "mx"
local util = require "mx.util"

local sources = {}

local WEIGHT_UNIT = 1000000 -- weights have at most six decimals
local MOST_WEIGHT = 1 << 20 -- of all sources together: MX_SAMPLER_PERIOD of engine/data/sampler.h

-- The smallest integers with the same ratios.
local function reduce(weights)
    local divisor = 0
    for _, weight in ipairs(weights) do
        divisor = util.gcd(weight, divisor)
    end
    for i in ipairs(weights) do
        weights[i] = weights[i] // divisor
    end
    return weights
end

local function weights_of_mix(config)
    local weights = {}
    for i, pair in ipairs(config.dataset_mix) do
        local weight = pair[2] * WEIGHT_UNIT
        local whole = math.floor(weight + 0.5)
        if whole < 1 or math.abs(weight - whole) > 1e-3 then
            mx.config.refuse(config, "dataset_mix", "the weight of %s is %s; expected a number above 0 with at most "
                .. "six decimal places", pair[1], pair[2])
        end
        weights[i] = whole
    end
    return reduce(weights)
end

-- The weights of files with these numbers of samples, and whether they are exact: rounded above MOST_WEIGHT samples.
local function weights_of_samples(counts)
    local total, weights = 0, {}
    for i, count in ipairs(counts) do
        total, weights[i] = total + count, count
    end
    weights = reduce(weights)
    local sum = 0
    for _, weight in ipairs(weights) do
        sum = sum + weight
    end
    if sum <= MOST_WEIGHT then
        return weights, true
    end
    for i, count in ipairs(counts) do
        weights[i] = math.max(1, math.floor(count / total * (MOST_WEIGHT - #counts)))
    end
    return reduce(weights), false
end

--- The files of dataset_path, which may be several between commas, patterns and folders. Raises an error if a pattern
--- matches none. Not collective.
---@param text string
---@return string[]
function sources.files(text)
    if mx.io.exists(text) and not mx.io.exists(text .. "/.") or not text:find("[,*?%[]") and not mx.io.exists(text) then
        return { text }
    end
    local paths = {}
    for item in text:gmatch("[^,]+") do
        local found = util.attempt(mx.io.file_list, item:match("^%s*(.-)%s*$"))
        table.move(found, 1, #found, #paths + 1, paths)
    end
    return paths
end

-- The paths that a key of the config names.
local function paths_of(config, key)
    if key ~= "dataset_mix" then
        return sources.files(config[key])
    end
    local paths = {}
    for i, pair in ipairs(config.dataset_mix) do
        paths[i] = pair[1]
    end
    return paths
end

-- Opens the files of a key with these weights, `depth` batches ahead.
local function feed_of(self, key, paths, weights, depth)
    local c, list = self.config, {}
    for i, path in ipairs(paths) do
        list[i] = { path = path, format = c.dataset_type, weight = weights[i] }
    end
    return mx.io.feed {
        sources = list, length = c.max_target_length, rows = self.sequences, stride = self.sequences * self.parts,
        depth = depth, packing = c.packing, shuffle = key ~= "eval_dataset_path" and c.enable_data_shuffling,
        seed = c.data_shuffle_seed, vocab_size = c.vocab_size,
    }
end

local function samples_of(self, key, paths)
    local counts, ones = {}, {}
    for i in ipairs(paths) do
        ones[i] = 1
    end
    local feed <close> = feed_of(self, key, paths, ones, 0)
    for i, source in ipairs(feed:sources()) do
        counts[i] = source.samples
    end
    return counts
end

--- Opens the files of a config. Sets feed, sources, documents and epoch_samples. Collective.
---@param self mx.Data
---@param key string that names the files: dataset_path, dataset_mix or eval_dataset_path
function sources.open(self, key)
    local c = self.config
    local is_mix = key == "dataset_mix"
    local function refuse(...)
        mx.config.refuse(c, key, ...)
    end
    local function attempt(fn, ...)
        local results = table.pack(pcall(fn, ...))
        if not results[1] then
            refuse("%s", (tostring(results[2]):gsub("^[^%s:]+:%d+: ", "")))
        end
        return table.unpack(results, 2, results.n)
    end
    local paths = attempt(mx.checkpoint.together, paths_of, c, key)
    mx.files.check_same(paths, refuse)
    local weights, exact = { 1 }, true
    if is_mix then
        weights = weights_of_mix(c)
    elseif #paths > 1 then
        weights, exact = weights_of_samples(attempt(samples_of, self, key, paths))
    end
    self.feed = attempt(feed_of, self, key, paths, weights, c.reuse_example_batch == 1 and 0 or c.prefetch_batches)
    self.sources = util.attempt(self.feed.sources, self.feed)
    local samples = 0
    for i, source in ipairs(self.sources) do
        source.weight, samples = weights[i], samples + source.samples
    end
    self.epoch_samples = (#paths == 1 or not is_mix and exact) and samples or nil
    self.documents = self.feed:has_documents()
end

return sources
