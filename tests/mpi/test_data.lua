-- ranks: 1 2 3 4
-- Data on several ranks: a run reads the same sequences on any number of ranks, and takes the same steps with them,
-- packed ones on a context axis too.

local lu = require "luaunit"
local mx = require "mx"

TestData = {}

local SEQUENCES = 12 -- of the run in a step: the ranks share them out

-- The same file for all ranks: rank 0 writes it.
local function make_store()
    local path = ("/tmp/mxlua-test-data-%d.h5"):format(mx.ranks())
    if mx.rank() == 0 then
        local part = mx.io.token_part(path .. ".part", 2)
        for d = 1, 90 do
            local tokens = {}
            for i = 1, 1 + (d * 53) % 200 do
                tokens[i] = (d * 31 + i * i) % 256
            end
            part:add(mx.tensor(tokens, "i32"))
        end
        part:commit()
        mx.io.token_parts_merge({ path .. ".part" }, path,
            { vocab_size = 256, tokenizer = "bytes", fingerprint = "bytes" })
        os.remove(path .. ".part")
    end
    mx.barrier()
    return path
end

local function remove(path)
    mx.barrier()
    if mx.rank() == 0 then
        os.remove(path)
    end
end

local function config_of(path, ...)
    return mx.config.load({ "model_name=tiny", "dataset_type=hdf5", "dataset_path=" .. path, "dtype=float32",
        "max_target_length=96", ... })
end

local FIELDS = { "tokens", "targets", "segments", "positions", "mask" }

-- The batch of all ranks put together, with what one rank would read.
function TestData.test_ranks_read_what_one_rank_would()
    local path = make_store()
    for _, packing in ipairs({ "packing=true", "packing=false" }) do
        local config = config_of(path, packing, "per_device_batch_size=" .. SEQUENCES // mx.ranks())
        local own = mx.data.open(config, mx.train.mesh(config))
        local alone = mx.data.open(config_of(path, packing, "per_device_batch_size=" .. SEQUENCES),
            mx.mesh.plan(config, 1, 0))
        lu.assertEquals(alone.parts, 1)
        for k = 1, 20 do -- several epochs
            if k == 13 then -- and a state of one goes on on the other
                local state = alone:state()
                lu.assertEquals(own:state(), state)
                own = mx.data.open(config, mx.train.mesh(config))
                own:restore(state)
            end
            local step <close> = mx.step()
            local mine, all = own:next(), alone:next()
            for _, field in ipairs(FIELDS) do
                local part = mine[field]
                lu.assertEquals(part == nil, all[field] == nil)
                if part then
                    local n = SEQUENCES // mx.ranks()
                    local expected = mx.narrow(all[field], { dim = 1, start = mx.rank() * n + 1, length = n })
                    lu.assertEquals(part:totable(), expected:totable())
                end
            end
        end
    end
    remove(path)
end

-- Losses and gradient norms of a few steps.
local function train(config, mesh)
    local model = mx.models.new(config, mesh)
    local data, optimizer = mx.data.open(config, mesh), mx.optim.new(config, model.params, model.parallel)
    local losses, norms = {}, {}
    for i = 1, 4 do
        losses[i] = mx.train.gradients(model, data, config.gradient_accumulation_steps)
        norms[i] = optimizer:step()
    end
    return losses, norms
end

-- Meshes share sums out differently: f32, as in tests/mpi/test_mesh_training.lua.
local function same_steps(path, packing, passes, ...)
    local config = config_of(path, packing, "per_device_batch_size=" .. SEQUENCES // mx.ranks() // passes,
        "gradient_accumulation_steps=" .. passes, ...)
    local losses, norms = train(config, mx.train.mesh(config))
    -- One rank's steps, taken by each rank for itself.
    local whole = config_of(path, packing, "per_device_batch_size=" .. SEQUENCES)
    local model, data = mx.models.new(whole), mx.data.open(whole, mx.mesh.plan(whole, 1, 0))
    local optimizer = mx.optim.new(whole, model.params)
    for i = 1, #losses do
        local step <close> = mx.step()
        local loss = model:loss(data:next())
        mx.backward(loss)
        lu.assertAlmostEquals(losses[i], loss:item(), 2e-5)
        lu.assertAlmostEquals(norms[i], optimizer:step(), 2e-4)
    end
end

-- Ranks and passes have different numbers of targets that count: the mean is over all of them.
function TestData.test_masked_targets_weigh_the_same_on_any_rank_and_in_any_pass()
    local path = make_store()
    for _, packing in ipairs({ "packing=true", "packing=false" }) do
        for _, passes in ipairs({ 1, SEQUENCES // mx.ranks() }) do
            same_steps(path, packing, passes, "ici_data_parallelism=-1", "ici_fsdp_parallelism=1")
        end
    end
    remove(path)
end

function TestData.test_packed_sequences_on_a_context_axis()
    if mx.ranks() == 3 then
        return -- three parts do not divide the weights
    end
    local path = make_store()
    for _, words in ipairs({
        { "all_gather", "true" }, { "all_gather", "false" }, { "ring", "true" }, { "ring", "false" },
        { "ulysses", "true" },
    }) do
        same_steps(path, "packing=true", 1, "ici_context_parallelism=" .. mx.ranks(), "ici_fsdp_parallelism=1",
            "context_parallel_strategy=" .. words[1], "context_parallel_load_balance=" .. words[2])
    end
    for _, balance in ipairs(mx.ranks() > 1 and { "true", "false" } or {}) do
        same_steps(path, "packing=true", 1, "ici_context_parallelism=" .. mx.ranks() // 2, "ici_fsdp_parallelism=1",
            "ici_context_usp_ulysses_parallelism=2", "context_parallel_strategy=usp",
            "context_parallel_load_balance=" .. balance)
    end
    same_steps(path, "packing=true", 1, "ici_tensor_sequence_parallelism=" .. math.min(2, mx.ranks()))
    remove(path)
end

-- A file on each rank, of `text(rank)`; rank r opens "file-r".
local function own_file(text)
    local path = ("/tmp/mxlua-test-data-%d-%d.bin"):format(mx.ranks(), mx.rank())
    mx.io.write_file_atomic(path, text(mx.rank()))
    return path
end

-- All ranks are told, with both machines and what each of them has.
function TestData.test_ranks_that_read_different_files_are_refused()
    if mx.ranks() == 1 then
        return
    end
    local last = mx.ranks() - 1
    for _, words in ipairs({ { "dataset_type=text", "dataset_path=%s" }, { "dataset_type=bin", "dataset_path=%s" },
        { "dataset_type=text", "dataset_mix=[[" .. mx.root .. "README.md, 1], [%s, 1]]" } }) do
        for _, case in ipairs({
            { "longer", function(r) return ("ab"):rep(r == last and 5001 or 5000) end, "10002 bytes" },
            { "changed in the middle", function(r)
                return ("ab"):rep(2000) .. (r == last and "cd" or "ab") .. ("ab"):rep(2999)
            end, "10000 bytes, checksum" },
            { "large, changed at the end", function(r)
                return ("ab"):rep(2000000) .. (r == last and "cd" or "ab")
            end, "4000002 bytes, checksum" },
        }) do
            local path = own_file(case[2])
            local config = mx.config.load { "model_name=tiny", "vocab_size=65536", "max_target_length=96", words[1],
                (words[2]:gsub("%%s", path)) }
            local opened, message = pcall(mx.data.open, config, mx.train.mesh(config))
            lu.assertFalse(opened, case[1])
            lu.assertStrContains(tostring(message), "the ranks read different files")
            lu.assertStrContains(tostring(message), ("%s (rank 0)"):format(mx.host_name()))
            lu.assertStrContains(tostring(message), ("%s (rank %d)"):format(mx.host_name(), last))
            lu.assertStrContains(tostring(message), case[3])
            os.remove(path)
        end
    end
    local folder = ("/tmp/mxlua-test-data-%d-%d"):format(mx.ranks(), mx.rank()) -- more files on one machine
    mx.io.mkdir_p(folder)
    for name = 1, mx.rank() == last and 3 or 2 do
        mx.io.write_file_atomic(("%s/%d.bin"):format(folder, name), ("ab"):rep(5000))
    end
    local several = mx.config.load { "model_name=tiny", "vocab_size=65536", "max_target_length=96", "dataset_type=bin",
        ("dataset_path=%s/*.bin"):format(folder) }
    local read, difference = pcall(mx.data.open, several, mx.train.mesh(several))
    mx.io.remove_folder(folder)
    lu.assertFalse(read)
    lu.assertStrContains(tostring(difference), ("the ranks find different files: 2 on %s (rank 0), 3 on"):format(
        mx.host_name()))
    if mx.rank() < last then -- a file that one machine lacks
        own_file(function() return "abab" end)
    end
    local absent = mx.config.load { "model_name=tiny", "dataset_type=text",
        ("dataset_path=/tmp/mxlua-test-data-%d-%d.bin"):format(mx.ranks(), mx.rank()) }
    local there, reason = pcall(mx.data.open, absent, mx.train.mesh(absent))
    lu.assertFalse(there)
    os.remove(absent.dataset_path)
    lu.assertStrContains(tostring(reason), ("not there on %s (rank %d)"):format(mx.host_name(), last))
    local path = own_file(function() return ("ab"):rep(5000) end) -- the same on all
    local config = mx.config.load { "model_name=tiny", "vocab_size=65536", "max_target_length=96",
        "dataset_type=bin", "dataset_path=" .. path }
    mx.data.open(config, mx.train.mesh(config))
    os.remove(path)
end

-- Where one rank cannot read its batch, all end the step together, and the steps before it can be saved.
function TestData.test_a_rank_that_cannot_read_its_batch_ends_the_step_on_all()
    local path = make_store()
    local config = config_of(path, "per_device_batch_size=2", "ici_data_parallelism=-1", "ici_fsdp_parallelism=1")
    local mesh = mx.train.mesh(config)
    local model, data = mx.models.new(config, mesh), mx.data.open(config, mesh)
    local next_batch = data.next
    function data:next()
        if mx.rank() == mx.ranks() - 1 then
            mx.util.refuse("the disk is gone")
        end
        return next_batch(self)
    end
    local done, message = pcall(mx.train.gradients, model, data, 2)
    lu.assertEquals({ done, tostring(message), data.failed }, { false, "the disk is gone", true })
    data.next = nil
    lu.assertTrue(mx.train.gradients(model, data, 2) > 1)
    lu.assertFalse(data.failed)
    remove(path)
end
