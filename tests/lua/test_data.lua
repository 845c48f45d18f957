-- Data: which sequences batches have, packed documents, mixes of files, and going on where a run stopped.
-- guarded

local lu = require "luaunit"
local mx = require "mx"

local TEXT = mx.root .. "configs/base.yml" -- some prose that is always there

local function config_of(...)
    return mx.config.load({ "model_name=tiny", "per_device_batch_size=3", ... })
end

-- A token store of documents of these lengths; token i of document d is (37 d + i) % 256.
local function make_store(path, lengths)
    local part = mx.io.token_part(path .. ".part", 2)
    for d, length in ipairs(lengths) do
        local tokens = {}
        for i = 1, length do
            tokens[i] = (37 * d + i) % 256
        end
        part:add(mx.tensor(tokens, "i32"))
    end
    part:commit()
    mx.io.token_parts_merge({ path .. ".part" }, path, { vocab_size = 256, tokenizer = "bytes", fingerprint = "bytes" })
    os.remove(path .. ".part")
    return path
end

local STORE = make_store(os.tmpname(), (function()
    local lengths = {}
    for d = 1, 60 do
        lengths[d] = 1 + (d * 53) % 200
    end
    return lengths
end)())

TestState = {}

local KINDS = {
    { "dataset_type=synthetic" },
    { "dataset_type=text", "dataset_path=" .. TEXT },
    { "dataset_type=text", "dataset_path=" .. TEXT, "prefetch_batches=0" },
    { "reuse_example_batch=1" },
    { "dataset_type=hdf5", "dataset_path=" .. STORE, "reuse_example_batch=1" },
    { "dataset_type=hdf5", "dataset_path=" .. STORE, "max_target_length=300", "per_device_batch_size=8" },
    { "dataset_type=hdf5", "dataset_path=" .. STORE, "packing=false" },
    { "dataset_type=text", ("dataset_mix=[[%s, 0.25], [%s, 0.75]]"):format(TEXT, mx.root .. "README.md") },
}
local FIELDS = { "tokens", "targets", "segments", "positions", "mask" }

-- A state goes through JSON, as in a checkpoint.
local function stored(state)
    return mx.io.json_decode(mx.io.json_encode(state))
end

function TestState.test_a_restored_state_goes_on_at_every_position()
    for _, words in ipairs(KINDS) do
        local config = config_of(table.unpack(words))
        local states, batches, data = {}, {}, mx.data.open(config)
        for i = 1, 5 do
            states[i], batches[i] = stored(data:state()), data:next()
        end
        for i = 5, 1, -1 do
            local again = mx.data.open(config)
            again:next()
            again:restore(states[i])
            for j = i, 5 do
                local batch = again:next()
                for _, field in ipairs(FIELDS) do
                    lu.assertEquals(batch[field] and batch[field]:totable(),
                        batches[j][field] and batches[j][field]:totable())
                end
                lu.assertEquals(batch.ids, batches[j].ids)
            end
        end
    end
end

function TestState.test_a_state_of_other_data_is_refused()
    local state = mx.data.open(config_of()):state()
    local function refused(expected, ...)
        local data = mx.data.open(config_of(...))
        local restored, message = pcall(data.restore, data, state)
        lu.assertFalse(restored)
        lu.assertStrContains(tostring(message), expected)
    end
    refused("its data_shuffle_seed is 0, that of this run 1", "data_shuffle_seed=1")
    refused("its dataset_type is synthetic, that of this run text", "dataset_type=text", "dataset_path=" .. TEXT)
    state.samples = -1
    refused("samples = -1")
    state.samples, state.format = 0, 99
    refused("its format is 99")

    state = mx.data.open(config_of("dataset_type=hdf5", "dataset_path=" .. STORE)):state()
    local other = make_store(os.tmpname(), { 100, 200, 300 })
    refused("its source_1 is 6050 tokens in 60 documents, checksum", "dataset_type=hdf5", "dataset_path=" .. other)
    refused("its packing is true, that of this run false", "dataset_type=hdf5", "dataset_path=" .. STORE,
        "packing=false")
    refused("its max_target_length is 64, that of this run 32", "dataset_type=hdf5", "dataset_path=" .. STORE,
        "max_target_length=32")
    refused("its source_2 is nil, that of this run 600 tokens", "dataset_type=hdf5",
        ("dataset_mix=[[%s, 1], [%s, 1]]"):format(STORE, other))
    -- The same data under another name is the same data.
    local copy = os.tmpname()
    mx.io.write_file_atomic(copy, mx.io.read_file(STORE))
    mx.data.open(config_of("dataset_type=hdf5", "dataset_path=" .. copy)):restore(state)
    os.remove(copy)
    os.remove(other)
end

function TestState.test_reading_ahead_does_not_count()
    local data = mx.data.open(config_of("dataset_type=hdf5", "dataset_path=" .. STORE, "prefetch_batches=5"))
    lu.assertEquals(data:state().samples, 0)
    data:next()
    data:next()
    local state = data:state()
    lu.assertEquals({ state.samples, state.epoch }, { 6, 6 // ((6050 - 1) // 64) })
end

function TestState.test_the_last_batch_is_described()
    local data = mx.data.open(config_of())
    lu.assertEquals(data:describe(), "no batch yet")
    data:next()
    data:next()
    lu.assertEquals(data:describe(), "samples 3 to 5 of synthetic")
    lu.assertTrue(data:waited() >= 0)
    lu.assertEquals(data:waited(), 0)

    local files = mx.data.open(config_of("dataset_type=text", "dataset_path=" .. TEXT, "enable_data_shuffling=false"))
    files:next()
    lu.assertEquals(files:describe(), ("samples 0 to 2: %s epoch 0 tokens 0 to 64; %s epoch 0 tokens 64 to 128; "
        .. "%s epoch 0 tokens 128 to 192"):format(TEXT, TEXT, TEXT))
    local documents = mx.data.open(config_of("dataset_type=hdf5", "dataset_path=" .. STORE, "packing=false",
        "enable_data_shuffling=false", "per_device_batch_size=2"))
    documents:next() -- the first document has 54 tokens, the second 107
    lu.assertEquals(documents:describe(), ("samples 0 to 1: %s epoch 0 document 0 from token 0 on; "
        .. "%s epoch 0 document 1 from token 0 on"):format(STORE, STORE))
    local packed = mx.data.open(config_of("dataset_type=hdf5", "dataset_path=" .. STORE, "per_device_batch_size=1",
        "enable_data_shuffling=false", "max_target_length=1000"))
    packed:next()
    lu.assertStrContains(packed:describe(), " epoch 0 documents 0, 1, 2, 3 and ")
end

-- A step's line has a word on waiting where it took more than a twentieth of the step; metrics_file always has it.
function TestState.test_waiting_for_data_is_told_where_it_is_notable()
    local path, lines = os.tmpname(), {}
    local metrics = mx.metrics.new { steps = 2, flops = 1, tokens = 1, params = 1, formula = "none", file = path,
        period = 1, quiet = true }
    metrics.say = function(format, ...)
        lines[#lines + 1] = format:format(...)
    end
    metrics.mark = mx.now() - 1 -- a step of a second
    metrics:step(1, { loss = 1, grad_norm = 1, learning_rate = 1, input_wait_s = 0.5 })
    metrics.mark = mx.now() - 1
    metrics:step(2, { loss = 1, grad_norm = 1, learning_rate = 1, input_wait_s = 0.01 })
    lu.assertStrContains(lines[1], "input wait 0.5 s")
    lu.assertNotStrContains(lines[2], "input wait")
    local file = mx.io.read_file(path)
    lu.assertEquals(mx.io.json_decode(file:match("^[^\n]+")).input_wait_s, 0.5)
    os.remove(path)
end

TestSamples = {}

-- All windows of an epoch, as texts.
local function windows(data, count)
    local seen = {}
    for _ = 1, count do
        seen[#seen + 1] = string.char(table.unpack(data:next().tokens[1]:totable()))
    end
    return seen
end

function TestSamples.test_an_epoch_has_each_window_of_a_text_once()
    local text = mx.io.read_file(TEXT)
    local count, expected = (#text - 1) // 64, {}
    for i = 0, count - 1 do
        expected[i + 1] = text:sub(64 * i + 1, 64 * i + 64)
    end
    local data = mx.data.open(config_of("dataset_type=text", "dataset_path=" .. TEXT, "per_device_batch_size=1"))
    local first, second = windows(data, count), windows(data, count)
    lu.assertNotEquals(first, expected)
    lu.assertNotEquals(first, second)
    table.sort(first)
    table.sort(second)
    table.sort(expected)
    lu.assertEquals(first, expected)
    lu.assertEquals(second, expected)
end

-- Files of different lengths: 3, 5 and 2 windows of 64 characters, and one more character for the last target.
function TestSamples.test_an_epoch_of_several_files_has_each_window_of_each_once()
    local folder = os.tmpname()
    os.remove(folder)
    mx.io.mkdir_p(folder)
    local expected = {}
    for name, letters in pairs({ a = "abc", b = "defgh", c = "ij" }) do
        local text = ""
        for letter in letters:gmatch(".") do
            expected[#expected + 1] = letter:rep(64)
            text = text .. letter:rep(64)
        end
        mx.io.write_file_atomic(("%s/%s.txt"):format(folder, name), text .. "x")
    end
    table.sort(expected)
    for _, path in ipairs({ "%s/*.txt", "%s/b.txt, %s/[ac].txt", "%s", "%s/a.txt,%s/b.txt,%s/c.txt" }) do
        local data = mx.data.open(config_of("dataset_type=text", "per_device_batch_size=1",
            "dataset_path=" .. path:gsub("%%s", folder)))
        for _ = 1, 2 do
            local seen = windows(data, 10)
            table.sort(seen)
            lu.assertEquals(seen, expected, path)
        end
        lu.assertEquals({ data:state().epoch, data:state().sources }, { 2, 3 })
    end
    for path, message in pairs({
        ["%s/*.bin"] = "dataset_path: ", ["%s/a.txt,%s/d.txt"] = "d.txt", ["%s/d.txt"] = "d.txt",
    }) do
        path = path:gsub("%%s", folder)
        lu.assertErrorMsgContains(message, function()
            mx.data.open(config_of("dataset_type=text", "dataset_path=" .. path))
        end)
    end
    mx.io.remove_folder(folder)
end

-- One rank with all sequences, and parts of a batch: the same ones, over the end of an epoch too.
function TestSamples.test_parts_of_a_store_are_those_of_the_whole()
    local words = { "dataset_type=hdf5", "dataset_path=" .. STORE, "max_target_length=256" } -- 23 samples an epoch
    local function batches(mesh, sequences)
        local c = config_of("per_device_batch_size=" .. sequences, table.unpack(words))
        local data, list = mx.data.open(c, mesh), {}
        for i = 1, 8 do
            list[i] = data:next()
        end
        return list
    end
    local whole, mesh_config = batches(nil, 4), config_of("ici_fsdp_parallelism=2")
    for part = 0, 1 do
        for i, own in ipairs(batches(mx.mesh.plan(mesh_config, 2, part), 2)) do
            for _, field in ipairs(FIELDS) do
                local expected = mx.narrow(whole[i][field], { dim = 1, start = 2 * part + 1, length = 2 })
                lu.assertEquals(own[field]:totable(), expected:totable())
            end
            lu.assertEquals(own.ids, { 4 * (i - 1) + 2 * part, 4 * (i - 1) + 2 * part + 1 })
        end
    end
end

function TestSamples.test_what_padded_documents_need()
    local batch = mx.data.open(config_of("dataset_type=hdf5", "dataset_path=" .. STORE, "packing=false")):next()
    lu.assertNotNil(batch.mask)
    lu.assertNil(batch.segments)
    lu.assertNil(batch.positions)
    batch = mx.data.open(config_of("dataset_type=hdf5", "dataset_path=" .. STORE, "packing=false",
        "attention_type=full")):next()
    lu.assertNotNil(batch.segments)
end

function TestSamples.test_num_epoch_sets_the_steps()
    local function steps(...)
        local config = config_of("dataset_type=hdf5", "dataset_path=" .. STORE, "per_device_batch_size=4", ...)
        mx.data.open(config)
        return config.steps
    end
    local samples = (6050 - 1) // 64
    lu.assertEquals(steps("num_epoch=1"), samples // 4)
    lu.assertEquals(steps("num_epoch=3"), 3 * samples // 4)
    lu.assertEquals(steps("num_epoch=3", "gradient_accumulation_steps=2"), 3 * samples // 8)
    lu.assertEquals(steps("num_epoch=3", "steps=5"), 5)
    lu.assertEquals(steps("num_epoch=1", "steps=5000"), samples // 4)
    lu.assertEquals(steps("num_epoch=-1"), 100)
    local ok, message = pcall(steps, "num_epoch=1", "gradient_accumulation_steps=1000")
    lu.assertFalse(ok)
    lu.assertStrContains(tostring(message), "num_epoch: 1 of the data is 94 samples, and a step takes 4000")
end

function TestSamples.test_a_mix_has_the_shares_of_its_weights()
    local paths = {}
    for i, letter in ipairs({ "a", "b", "c" }) do
        paths[i] = os.tmpname()
        mx.io.write_file_atomic(paths[i], letter:rep(1000))
    end
    local data = mx.data.open(config_of("dataset_type=text", "per_device_batch_size=10",
        ("dataset_mix=[[%s, 0.5], [%s, 0.3], [%s, 0.2]]"):format(table.unpack(paths))))
    for _ = 1, 10 do
        local count, tokens = {}, data:next().tokens
        for b = 1, 10 do
            local letter = string.char(tokens[b]:get(1))
            count[letter] = (count[letter] or 0) + 1
        end
        lu.assertEquals(count, { a = 5, b = 3, c = 2 })
    end
    lu.assertStrContains(data:state().source_2, "weight 3")
    for _, path in ipairs(paths) do
        os.remove(path)
    end
end

function TestSamples.test_what_is_refused()
    local function refused(expected, ...)
        local words = { ... }
        local ok, message = pcall(function()
            mx.data.open(config_of(table.unpack(words)))
        end)
        lu.assertFalse(ok)
        lu.assertStrContains(tostring(message), expected)
    end
    local kind = "dataset_type=text"
    refused("dataset_mix: expected a list of [file, weight] such as", kind, "dataset_mix=a.h5")
    refused("dataset_mix: expected a list of [file, weight] such as", kind, "dataset_mix=[[a.h5]]")
    refused("dataset_mix: expected a list of [file, weight] such as", kind, "dataset_mix=[[1, a.h5]]")
    refused("dataset_mix has no effect with dataset_type = synthetic", "dataset_mix=[[a.h5, 1]]")
    refused("packing has no effect with dataset_type = text", kind, "dataset_path=" .. TEXT, "packing=false")
    refused("and dataset_path do not go together", kind, "dataset_path=" .. TEXT, "dataset_mix=[[a.h5, 1]]")
    refused("the weight of a.h5 is 0; expected a number above 0", kind, "dataset_mix=[[a.h5, 0]]")
    refused("at most six decimal places", kind, "dataset_mix=[[a.h5, 0.12345678]]")
    refused("the weights of the sources are too fine", kind,
        ("dataset_mix=[[%s, 2.000001], [%s, 0.999983]]"):format(TEXT, TEXT))
    refused("dataset_mix: cannot open 'nowhere.txt'", kind, "dataset_mix=[[nowhere.txt, 1]]")
    refused("was made for a vocabulary of 256, and the model's is 100", "dataset_type=hdf5", "dataset_path=" .. STORE,
        "vocab_size=100")
end

function TestSamples.test_a_mix_goes_through_a_config_file()
    local config = config_of("dataset_type=text", 'dataset_mix=[["with space, comma.txt", 0.5], [b.txt, 2]]')
    local path = os.tmpname()
    mx.io.write_file_atomic(path, mx.config.dump(config, true))
    local again = mx.config.load { path }
    lu.assertEquals(again.dataset_mix, { { "with space, comma.txt", 0.5 }, { "b.txt", 2 } })
    os.remove(path)
end

-- A packed sequence gives the mean of what its documents give one by one. The sums are taken in another order: f32.
function TestSamples.test_packed_documents_give_the_loss_of_each_alone()
    local lengths = { 20, 33, 2, 9, 1 } -- 65 tokens: one sequence of 64 and its last target
    local path = make_store(os.tmpname(), lengths)
    for _, extra in ipairs({ "attention_type=global", "attention_type=full" }) do
        local config = config_of("dataset_type=hdf5", "dataset_path=" .. path, "per_device_batch_size=1",
            "enable_data_shuffling=false", "dtype=float32", extra)
        local model, batch = mx.models.new(config), mx.data.open(config):next()
        local packed, sum, count = model:loss(batch):item(), 0, 0
        local start = 0
        for _, length in ipairs(lengths) do
            local n = math.min(length, 64 - start)
            if length > 1 then
                -- The last token has no target in its document: it is masked, but attended to where all is.
                local cut = { dim = 2, start = start + 1, length = n }
                local alone = model:loss {
                    tokens = mx.narrow(batch.tokens, cut), targets = mx.narrow(batch.targets, cut),
                    mask = mx.narrow(batch.mask, cut),
                }
                sum, count = sum + alone:item() * (length - 1), count + length - 1
            end
            start = start + length
        end
        lu.assertEquals(batch.mask:to("f32"):sum():item(), count)
        lu.assertAlmostEquals(packed, sum / count, 1e-5)
        local without = model:loss { tokens = batch.tokens, targets = batch.targets, mask = batch.mask }
        lu.assertNotAlmostEquals(without:item(), packed, 1e-4)
    end
    os.remove(path)
end

-- A damaged store is told by the step that reads the damage, with its name.
function TestSamples.test_damaged_tokens_are_told()
    local bytes, path = mx.io.read_file(STORE), os.tmpname()
    local at = bytes:find(string.char(38, 0, 39, 0, 40, 0), 1, true) -- the first document
    mx.io.write_file_atomic(path, bytes:sub(1, at - 1) .. "\99" .. bytes:sub(at + 1))
    for depth = 0, 2 do
        local read, message = pcall(function()
            mx.data.open(config_of("dataset_type=hdf5", "dataset_path=" .. path, "prefetch_batches=" .. depth)):next()
        end)
        lu.assertFalse(read)
        lu.assertStrContains(tostring(message), path .. "' is damaged: the checksum of the tokens at positions 0 to")
    end
    os.remove(path)
end
