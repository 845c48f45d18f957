-- ranks: 2 4
-- Evaluation on a mesh: the loss over the evaluation data is that of one rank.

local lu = require "luaunit"
local mx = require "mx"

TestEvaluation = {}

local MESHES = {
    [2] = { "data=2", "fsdp=2", "tensor=2", "tensor_sequence=2", "context=2" },
    [4] = { "fsdp=2 tensor=2", "fsdp=2 context=2", "data=2 tensor_sequence=2", "fsdp=4" },
}

local function config_of(axes, ...)
    local words = { "model_name=tiny", "dtype=float32", "max_target_length=32", "dataset_type=text", "dropout_rate=0.1",
        "dataset_path=" .. mx.root .. "LICENSE", "eval_dataset_path=" .. mx.root .. "configs/README.md",
        "eval_interval=1", "ici_fsdp_parallelism=1", ... }
    for axis, size in axes:gmatch("(%w+[_%w]*)=(%d)") do
        words[#words + 1] = ("ici_%s_parallelism=%s"):format(axis, size)
    end
    return mx.config.load(words)
end

-- The loss over the file, which this rank computes alone.
local function alone(batch)
    local config = config_of("", "per_device_batch_size=" .. batch)
    local data = mx.data.open(config)
    data.part, data.parts = 0, 1
    return mx.evaluate.data(mx.models.new(config), mx.data.open_evaluation(data), -1)
end

local function on_mesh(axes, ...)
    local config = config_of(axes, ...)
    local mesh = mx.train.mesh(config)
    local evaluation = mx.data.open_evaluation(mx.data.open(config, mesh), mesh)
    return mx.evaluate.data(mx.models.new(config, mesh), evaluation, config.eval_steps)
end

-- Sums of the ranks are added in f32, in another order.
function TestEvaluation.test_the_loss_is_that_of_one_rank()
    local loss, targets = alone(1)
    for _, axes in ipairs(MESHES[mx.ranks()]) do
        for _, batch in ipairs({ 1, 5 }) do
            local own, own_targets = on_mesh(axes, "per_device_batch_size=" .. batch)
            lu.assertAlmostEquals(own / loss, 1, 1e-6, axes)
            lu.assertEquals(own_targets, targets, axes)
        end
        local least, few = on_mesh(axes, "per_device_batch_size=1", "eval_steps=1") -- a sequence of each rank
        lu.assertEquals(few, 32 * mx.ranks(), axes)
        lu.assertTrue(math.abs(least / loss - 1) > 1e-4, axes)
    end
end

-- A file that ranks see differently is refused on all of them.
function TestEvaluation.test_ranks_need_the_same_file()
    local path = os.tmpname()
    mx.io.write_file_atomic(path, ("x"):rep(200 + mx.rank()))
    local good, message = pcall(on_mesh, "fsdp=" .. mx.ranks(), "eval_dataset_path=" .. path)
    os.remove(path)
    lu.assertFalse(good)
    lu.assertStrContains(tostring(message), "eval_dataset_path")
end
