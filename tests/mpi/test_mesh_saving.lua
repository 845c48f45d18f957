-- ranks: 2 3 4
-- nodes: 2
-- What a mesh saves loads on one rank and on other meshes, to the bit.

local mx = require "mx"
local util = require "mx.util"
local training = require "mesh_training"

local RANKS = mx.ranks()
local mesh_words, config_of, whole_parameters = training.mesh_words, training.config_of, training.whole_parameters
local on_mesh, assert_same_bits = training.on_mesh, training.assert_same_bits

TestMeshSaving = {}

-- The mesh that saves, and one that loads.
local SAVED_ON = ({
    [2] = { "tensor=2", "fsdp=2" },
    [3] = { "context=3", "tensor_sequence=3" },
    [4] = { "fsdp=2 tensor=2", "data=2 fsdp_transpose=2" },
})[RANKS]

-- A directory that did not exist, the same one on all ranks. Collective.
local function new_directory()
    local name
    if mx.rank() == 0 then
        name = os.tmpname()
        os.remove(name)
        mx.io.mkdir_p(name .. "/run")
    end
    return mx.share_text(name)
end

-- Each moment of an optimizer put together on every rank, by moment and parameter. Collective.
local function whole_moments(optimizer)
    local whole = {}
    for name, moments in util.sorted_pairs(optimizer.state) do
        for moment, t in util.sorted_pairs(moments) do
            whole[moment .. " of " .. name] = optimizer.parallel:whole(name, t):wait():keep()
        end
    end
    return whole
end

-- Loads a checkpoint into a new model on a mesh or, for nil, by each rank alone. Collective.
local function assert_loads(folder, params, moments, model, mesh)
    local config = config_of(model, "init_weights_seed=7", mesh and mesh_words(mesh) or {})
    local other = mx.models.new(config, mesh and mx.train.mesh(config) or nil)
    local optimizer = mx.optim.new(config, other.params, other.parallel)
    mx.checkpoint.load(folder .. "/step_2", { params = other.params, parallel = other.parallel, optimizer = optimizer })
    assert_same_bits(whole_parameters(other), params, "checkpoint on " .. (mesh or "one rank"))
    assert_same_bits(whole_moments(optimizer), moments, "checkpoint on " .. (mesh or "one rank"))
end

for _, model in ipairs(SAVED_ON and { "tiny", "odd", "tiny-gpt2", RANKS ~= 3 and "shared" or nil } or {}) do
    TestMeshSaving["test_what_a_mesh_saves_of_" .. model .. "_loads_anywhere"] = function()
        local folder = new_directory()
        local run = on_mesh(model, SAVED_ON[1], nil, 2) -- parameters that are no longer the first ones
        local config = config_of(model, "base_output_directory=" .. folder, "run_name=run")
        local path = mx.train.save(config, run.model)
        local saver = mx.checkpoint.saver {
            directory = folder .. "/checkpoints", params = run.model.params, parallel = run.model.parallel,
            optimizer = run.optimizer,
        }
        saver:save(2, {}, true)
        saver:close()
        local moments = whole_moments(run.optimizer)
        assert_loads(folder .. "/checkpoints", run.params, moments, model)
        assert_loads(folder .. "/checkpoints", run.params, moments, model, SAVED_ON[2])

        local alone = mx.models.new(config_of(model, "init_weights_seed=7"))
        mx.nn.load(alone.params, path)
        local other_config = config_of(model, "init_weights_seed=8", mesh_words(SAVED_ON[2]))
        local other = mx.models.new(other_config, mx.train.mesh(other_config))
        mx.nn.load(other.params, path, other.parallel)
        mx.barrier() -- all have read it
        if mx.rank() == 0 then
            os.execute(("rm -r '%s'"):format(folder))
        end

        assert_same_bits(alone.params, run.params, "on one rank")
        assert_same_bits(whole_parameters(other), run.params, "on " .. SAVED_ON[2])
    end
end
