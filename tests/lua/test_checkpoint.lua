-- Checkpoints by themselves: what is loaded beside tensors, what a save must not remove, and indexes that somebody has
-- written with a good seal and senseless values.
-- guarded
local mx = require "mx"
local lu = require "luaunit"

local folder

local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read("a")
end

local function write(path, text)
    local file <close> = assert(io.open(path, "wb"))
    file:write(text)
end

-- Parameters of known values, with an optimizer that has taken `steps` steps.
local function new_run(steps)
    local run = { params = {}, directory = folder }
    mx.nn.parameter(run.params, "a", { 4, 3 }, { value = 1 })
    mx.nn.parameter(run.params, "b", { 5 }, { value = 2 })
    run.optimizer = mx.optim.adamw(run.params, { learning_rate = function(step) return 1 / step end })
    run.optimizer.steps = steps or 0
    return run
end

TestCheckpoint = {}

function TestCheckpoint.setUp()
    folder = os.tmpname()
    os.remove(folder)
    mx.io.mkdir_p(folder)
end

function TestCheckpoint.tearDown()
    mx.io.remove_folder(folder)
end

local function save(run, step, about)
    local saver = mx.checkpoint.saver(run)
    saver:save(step, about or {}, true)
    saver:close()
end

-- ---- buffers ----

-- A run with buffers of known values: one with dimensions, and a number.
local function run_with_buffers(value, shape)
    local run = new_run(2)
    run.buffers = {}
    mx.nn.buffer(run.buffers, "mean", shape or { 2, 3 }, { value = value })
    mx.nn.buffer(run.buffers, "count", {}, { value = value, dtype = "i32" })
    return run
end

function TestCheckpoint.test_buffers_are_saved_and_restored()
    local run = run_with_buffers(7)
    local optimized = mx.util.sorted_keys(run.optimizer.state)
    lu.assertEquals(optimized, { "a", "b" })
    mx.scope(function()
        local loss = (run.params.a:sum() * run.buffers.mean:sum()):sum()
        mx.backward(loss)
        lu.assertNil(run.buffers.mean:grad())
    end)
    save(run, 3)
    local other = run_with_buffers(0)
    local index = mx.checkpoint.load(folder .. "/step_3", other)
    lu.assertEquals(other.buffers.mean:totable(), { { 7, 7, 7 }, { 7, 7, 7 } })
    lu.assertEquals({ other.buffers.count:item(), other.buffers.count:dtype() }, { 7, "i32" })
    lu.assertEquals(index.tensors["buffers/mean"].shape, { 2, 3 })
    local alone = run_with_buffers(0) -- the optimizer's state may stay behind, buffers belong to the model
    alone.optimizer = nil
    mx.checkpoint.load(folder .. "/step_3", alone)
    lu.assertEquals(alone.buffers.count:item(), 7)
end

function TestCheckpoint.test_buffers_of_another_model()
    local function refused(text, run)
        lu.assertErrorMsgContains(text, mx.checkpoint.load, folder .. "/step_3", run)
    end
    save(run_with_buffers(7), 3)
    refused("'buffers/mean' has shape (2, 3), that of this run (3, 2)", run_with_buffers(0, { 3, 2 }))
    refused("has a tensor 'buffers/count' that this run lacks", new_run())
    local more = run_with_buffers(0)
    mx.nn.buffer(more.buffers, "more", { 1 })
    refused("has no tensor 'buffers/more'", more)
    lu.assertErrorMsgContains("a buffer is already called 'more'", mx.nn.buffer, more.buffers, "more", { 1 })
end

-- In a merged checkpoint, as in the file that scripts/train.lua saves, buffers are beside the parameters.
function TestCheckpoint.test_buffers_in_a_file_of_parameters()
    save(run_with_buffers(7), 3)
    local path = folder .. "/merged.h5"
    require("mx.checkpoint.files").merge(folder .. "/step_3", path)
    local run = run_with_buffers(0)
    mx.nn.load(run.params, path, nil, run.buffers)
    lu.assertEquals({ run.buffers.count:item(), run.params.b:totable()[1] }, { 7, 2 })
    lu.assertErrorMsgContains("'buffers/count' that the model lacks", mx.nn.load, run.params, path)
    run = run_with_buffers(0, { 3, 2 })
    lu.assertErrorMsgContains("'buffers/mean' is 2x3, the model's is 3x2", mx.nn.load, run.params, path, nil,
        run.buffers)
end

-- ---- the saving alone ----

-- Three unseeded masks of a loop of one's own; a resume goes on with the third, another seed's stream in between.
function TestCheckpoint.test_unseeded_masks_go_on_after_a_resume()
    local x = mx.ones { 64 }
    local function mask() return mx.dropout(x, { rate = 0.5 }):totable() end
    mx.manual_seed(11)
    local first, second = mask(), mask()
    save(new_run(2), 2)
    local third = mask()
    mx.manual_seed(3)
    mask()
    mx.checkpoint.load(folder .. "/step_2", new_run())
    lu.assertEquals(mask(), third)
    lu.assertNotEquals(third, first)
    lu.assertNotEquals(third, second)
    -- Parameters alone leave the stream as it is.
    local state = mx.random_state()
    mx.checkpoint.load(folder .. "/step_2", { params = new_run().params })
    lu.assertEquals(mx.random_state(), state)
    mx.manual_seed(0)
end

function TestCheckpoint.test_the_optimizer_goes_on_where_it_was()
    save(new_run(7), 7, { state = { mine = 1 } })
    local again = new_run()
    local index = mx.checkpoint.load(folder .. "/step_7", again)
    lu.assertEquals(again.optimizer.steps, 7)
    lu.assertEquals(again.optimizer:rate(again.optimizer.steps + 1), 1 / 8) -- the schedule, too
    lu.assertEquals(index.state, { mine = 1 })
    -- Parameters alone leave the optimizer as it is.
    again.optimizer.steps = 3
    mx.checkpoint.load(folder .. "/step_7", { params = again.params })
    lu.assertEquals(again.optimizer.steps, 3)
end

-- Tables that the script and the guard change while the files are written, and one that cannot be saved.
function TestCheckpoint.test_the_state_is_that_of_the_call()
    local run, losses = new_run(7), { 3.0, 2.0 }
    run.async = true
    local saver = mx.checkpoint.saver(run)
    local guard = mx.guard.new(mx.config.load { "skip_step_on_spikes=true" })
    guard:record(3.0, 1.0)
    saver:save(7, { state = { losses = losses }, guard = guard:state() })
    losses[1] = 4.0
    guard:record(5.0, 1.0)
    saver:wait()
    local index = mx.checkpoint.load(folder .. "/step_7", new_run())
    lu.assertEquals({ index.state.losses, index.guard.losses }, { { 3.0, 2.0 }, { 3.0 } })
    lu.assertError(saver.save, saver, 8, { state = { print } })
    saver:save(9, { state = { losses = losses } })
    saver:close()
    lu.assertEquals(mx.checkpoint.load(folder .. "/step_9", new_run()).state.losses, { 4.0, 2.0 })
end

function TestCheckpoint.test_data_and_model_go_on_where_they_were()
    local config = mx.config.load { "model_name=tiny", "per_device_batch_size=2", "max_target_length=16",
        "base_num_decoder_layers=1", "dropout_rate=0.1", "dataset_type=text", "dataset_path=" .. mx.root .. "LICENSE",
        "enable_checkpointing=false" }
    local function parts()
        local model = mx.models.new(config)
        return { model = model, params = model.params, data = mx.data.open(config), directory = folder }
    end
    local run = parts()
    for _ = 1, 3 do
        mx.train.gradients(run.model, run.data, 1)
    end
    save(run, 3)
    local expected = run.data:next().tokens:totable()
    local again = parts()
    mx.checkpoint.load(folder .. "/step_3", again)
    lu.assertEquals(again.model.passes, 3)
    lu.assertEquals(again.data:next().tokens:totable(), expected)
end

-- What format 1 kept in the state of mx.run is still found.
function TestCheckpoint.test_checkpoints_of_format_1_are_read()
    save(new_run(7), 7)
    local path = folder .. "/step_7/index.json"
    local index = mx.io.json_decode((read(path):gsub(',"crc32c":"%x+"}\n$', "}")))
    index.format, index.state = 1, { optimizer = index.optimizer, passes = 2 }
    index.optimizer = nil
    local text = mx.io.json_encode(index)
    write(path, ('%s,"crc32c":"%08x"}\n'):format(text:sub(1, -2), mx.io.crc32c(text)))
    local again = new_run()
    lu.assertEquals(mx.checkpoint.load(folder .. "/step_7", again).passes, 2)
    lu.assertEquals(again.optimizer.steps, 7)
end

-- ---- what a save must not remove ----

local function steps_left()
    local left = {}
    for _, found in ipairs(mx.checkpoint.list(folder)) do
        left[#left + 1] = found.step
    end
    return left
end

-- step_9 is damaged, so that the run goes on after step 6. Its next checkpoint must not go because 9 is "newer".
function TestCheckpoint.test_a_damaged_newer_checkpoint_does_not_displace_a_good_one()
    local run = new_run()
    run.keep = 1
    mx.io.mkdir_p(folder .. "/step_9")
    save(run, 6)
    save(run, 7)
    lu.assertEquals(steps_left(), { 9, 7 })
    mx.checkpoint.load(folder .. "/step_7", new_run())
    save(run, 10)
    lu.assertEquals(steps_left(), { 10 })
end

function TestCheckpoint.test_a_step_that_is_saved_twice_is_always_there()
    local run = new_run(1)
    save(run, 5)
    run.optimizer.steps = 2
    save(run, 5)
    lu.assertEquals(mx.io.list(folder), { "step_5", "step_5.replaced-1" })
    local again = new_run()
    mx.checkpoint.load(folder .. "/step_5", again)
    lu.assertEquals(again.optimizer.steps, 2)
end

-- ---- forged indexes ----

local function forge(path, change)
    local text = read(path):gsub(',"crc32c":"%x+"}\n$', "}")
    local index = mx.io.json_decode(text)
    local result = change(index)
    text = type(result) == "string" and result or mx.io.json_encode(index)
    write(path, ('%s,"crc32c":"%08x"}\n'):format(text:sub(1, -2), mx.io.crc32c(text)))
end

-- What is set where in the index of a good checkpoint, and what the message says of it. `a` is (4, 3), `b` is (5).
local A, B = "parameters/a", "parameters/b"
local FORGERIES = {
    { "ranks is 1125899906842624", function(i) i.ranks = 1 << 50 end },
    { "ranks is 0", function(i) i.ranks = 0 end },
    { "ranks is -1", function(i) i.ranks = -1 end },
    { "ranks is '1'", function(i) i.ranks = "1" end },
    { "ranks is 1.5", function(i) i.ranks = 1.5 end },
    { "rank_1.h5 is missing", function(i) i.ranks = 2 end },
    { "step is -3", function(i) i.step = -3 end },
    { "step is '3'", function(i) i.step = "3" end },
    { "step is 4611686018427387904", function(i) i.step = 1 << 62 end },
    { "step is nil", function(i) i.step = nil end },
    { "it is of step 4", function(i) i.step = 4 end },
    { "id is 7", function(i) i.id = 7 end },
    { "config is a list", function(i) i.config = { 1 } end },
    { "optimizer.steps is -1", function(i) i.optimizer.steps = -1 end },
    { "optimizer.steps is 1e+300", function(i) i.optimizer.steps = 1e300 end },
    { "optimizer.steps is 'many'", function(i) i.optimizer.steps = "many" end },
    { "optimizer.kind is 1", function(i) i.optimizer.kind = 1 end },
    { "optimizer is 3", function(i) i.optimizer = 3 end },
    { "passes is 'x'", function(i) i.passes = "x" end },
    { "guard.losses is nil", function(i) i.guard = { skipped = 1 } end },
    { "guard.losses[1] is 'NaN'", function(i)
        i.guard = { losses = { "NaN" }, norms = mx.io.array {}, skipped = 0 }
    end },
    { "data.samples is nil", function(i) i.data = { samples = -0.5 } end },
    { "data.samples is -4", function(i) i.data = { samples = -4 } end },
    { "random.draws is -1", function(i) i.random = { seed = 1, draws = -1 } end },
    { "random.draws is nil", function(i) i.random = { seed = 1 } end },
    { "random.'x'", function(i) i.random = { seed = 1, draws = 1, x = 1 } end },
    { "loss is 'nan'", function(i) i.loss = "nan" end },
    { "it has no tensors", function(i) i.tensors = mx.io.array {} end },
    { "tensors is nil", function(i) i.tensors = nil end },
    { "tensors is 12", function(i) i.tensors = 12 end },
    { "tensors is a list", function(i) i.tensors = { i.tensors[A] } end },
    { "expected a name that starts with", function(i) i.tensors["../a"] = i.tensors[A] end },
    { "must be names", function(i) i.tensors["parameters/../../a"] = i.tensors[A] end },
    { "must be names", function(i) i.tensors["parameters/"] = i.tensors[A] end },
    { "must be names", function(i) i.tensors["parameters//a"] = i.tensors[A] end },
    { "must be names", function(i) i.tensors["buffers/../a"] = i.tensors[A] end },
    { "is 5, expected a list", function(i) i.tensors[A] = 5 end },
    { "the dtype 'f99'", function(i) i.tensors[A].dtype = "f99" end },
    { "the dtype nil", function(i) i.tensors[A].dtype = nil end },
    { "shape is 'wide'", function(i) i.tensors[A].shape = "wide" end },
    { "shape[1] is -4", function(i) i.tensors[A].shape = { -4, -3 } end },
    { "shape[2] is '3'", function(i) i.tensors[A].shape = { 4, "3" } end },
    { "shape[1] is 4.5", function(i) i.tensors[A].shape = { 4.5, 3 } end },
    { "at most 6", function(i) i.tensors[A].shape = { 4, 3, 1, 1, 1, 1, 1, 1, 1 } end },
    { "more elements than there can be", function(i) i.tensors[A].shape = { 1 << 40, 1 << 40 } end },
    { "chunks is nil", function(i) i.tensors[A].chunks = nil end },
    { "it has 0 of the 12 elements", function(i) i.tensors[A].chunks = mx.io.array {} end },
    { "rank is 1", function(i) i.tensors[A].chunks[1].rank = 1 end },
    { "rank is '../../x'", function(i) i.tensors[A].chunks[1].rank = "../../x" end },
    { "rank is -1", function(i) i.tensors[A].chunks[1].rank = -1 end },
    { "extent[1] is -4", function(i) i.tensors[A].chunks[1].extent = { -4, 3 } end },
    { "extent has 1 entries", function(i) i.tensors[A].chunks[1].extent = { 4 } end },
    { "extent has 2 entries", function(i) i.tensors[A].chunks[1].extent = { a = 4, b = 3 } end },
    { "of dimension 1, which has 4", function(i) i.tensors[A].chunks[1].extent = { 5, 3 } end },
    { "of dimension 1, which has 4", function(i) i.tensors[A].chunks[1].offset = { 1 << 62, 0 } end },
    { "offset[2] is -1", function(i) i.tensors[A].chunks[1].offset = { 0, -1 } end },
    { "first is -1", function(i) i.tensors[A].chunks[1].first = -1 end },
    { "first is 9223372036854775807", function(i) i.tensors[A].chunks[1].first = math.maxinteger end },
    { "count is 13", function(i) i.tensors[A].chunks[1].count = 13 end },
    { "count is -12", function(i) i.tensors[A].chunks[1].count = -12 end },
    { "count is '12'", function(i) i.tensors[A].chunks[1].count = "12" end },
    { "it has 11 of the 12 elements", function(i) i.tensors[A].chunks[1].count = 11 end },
    { "overlap", function(i) table.insert(i.tensors[A].chunks, i.tensors[A].chunks[1]) end },
    { "overlap", function(i)
        local c = i.tensors[A].chunks
        c[1].extent, c[1].count = { 3, 3 }, 9
        c[2] = { rank = 0, offset = { 2, 0 }, extent = { 1, 3 }, first = 0, count = 3 }
    end },
    { "overlap", function(i)
        local c = i.tensors[B].chunks
        c[1].count = 3
        c[2] = { rank = 0, offset = c[1].offset, extent = c[1].extent, first = 2, count = 2 }
    end },
    { "too few for the values", function(i) -- a tensor as large as a memory, of which the file has nothing
        i.tensors[B].shape = { 1 << 40 }
        local c = i.tensors[B].chunks[1]
        c.extent, c.count = { 1 << 40 }, 1 << 40
    end },
    { "too few for the values", function(i) -- rows without end, of one element each
        i.tensors[A].shape = { 1 << 44, 1 }
        local c = i.tensors[A].chunks[1]
        c.extent, c.count = { 1 << 44, 1 }, 1 << 44
    end },
    { "duplicate object key", function(i)
        local text = mx.io.json_encode(i)
        return (text:gsub('"parameters/b":', '"parameters/a":{"chunks":[],"dtype":"f32","shape":[0]},"parameters/b":'))
    end },
    { "", function() return "[1, 2, 3]" end },
    { "", function() return '{"format":2,"step":NaN}' end },
    { "", function() return ("["):rep(100000) .. "]" end },
}

-- Loading falls back to step 2, and verifying says the same of step 3.
function TestCheckpoint.test_forged_indexes()
    save(new_run(2), 2)
    save(new_run(3), 3)
    local path = folder .. "/step_3/index.json"
    local good = read(path)
    for n, forgery in ipairs(FORGERIES) do
        local expected, change = forgery[1], forgery[2]
        write(path, good)
        forge(path, change)
        local what = ("forgery %d (%s)"):format(n, expected)
        local ok, message = pcall(require("mx.checkpoint.files").verify, folder .. "/step_3")
        lu.assertFalse(ok, what)
        lu.assertStrContains(tostring(message), expected, false, what)
        lu.assertNil(tostring(message):find("\n"), what)
        local run, said = new_run(), nil
        local index = mx.checkpoint.load_newest(folder, run, function(format, ...)
            said = format:format(...)
        end)
        lu.assertEquals({ index.step, run.optimizer.steps }, { 2, 2 }, what)
        lu.assertStrContains(said, "step_3 cannot be used: ", false, what)
        lu.assertStrContains(said, expected, false, what)
        lu.assertFalse(pcall(require("mx.checkpoint.files").merge, folder .. "/step_3", folder .. "/merged.h5"), what)
    end
    lu.assertFalse(mx.io.exists(folder .. "/merged.h5"))
    write(path, good)
    require("mx.checkpoint.files").verify(folder .. "/step_3")
end

-- The index is that of two ranks' chunks in either order, so a good index of several boxes passes.
function TestCheckpoint.test_a_grid_of_chunks_is_good()
    save(new_run(3), 3)
    forge(folder .. "/step_3/index.json", function(i)
        local chunk = i.tensors[A].chunks[1]
        i.tensors[A].chunks = {}
        for _, place in ipairs { { 2, 0, 2, 1 }, { 0, 0, 2, 1 }, { 0, 1, 2, 2 }, { 2, 1, 2, 2 } } do
            table.insert(i.tensors[A].chunks, { rank = 0, offset = { place[1], place[2] }, first = 0,
                extent = { place[3], place[4] }, count = place[3] * place[4] })
        end
        table.insert(i.tensors[A].chunks, { rank = 0, offset = chunk.offset, extent = { 0, 3 }, first = 0, count = 0 })
    end)
    lu.assertEquals(#mx.checkpoint.index(folder .. "/step_3").tensors[A].chunks, 5)
end
