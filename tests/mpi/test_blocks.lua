-- ranks: 2 4
-- A model whose layers differ on a mesh: the gradients are those of one rank, however it is split. Some layers have
-- windows, and context_parallel_load_balance is on: with it ranks have an early and a late chunk of each sequence.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare, mixed = dofile(here .. "../lua/compare.lua"), dofile(here .. "../lua/mixed.lua")

local SEQUENCES, S = 4, 32

local function config_of(...)
    return mx.config.load {
        "model_name=tiny", "base_num_decoder_layers=4", "base_num_kv_heads=4", "dtype=float32",
        "max_target_length=" .. S, ...
    }
end

-- The loss and the whole gradients of a step of all sequences, which each rank computes alone where there is no mesh.
local function gradients(config, mesh)
    local model, data = mx.models.new(mixed.shape(config), mesh, config), mx.data.open(config, mesh)
    local step <close> = mx.step()
    local loss, grads
    if mesh then
        loss = mx.train.gradients(model, data, 1)
    else
        data.part, data.parts = 0, 1
        loss = model:loss(data:next())
        mx.backward(loss)
        loss = loss:item()
    end
    grads = {}
    for name, t in util.sorted_pairs(model.params) do
        local grad = t:grad()
        grads[name] = (mesh and model.parallel:whole(name, grad):wait() or grad):clone():keep()
        t:release()
    end
    return loss, grads
end

local reference_loss, reference

TestBlocks = {}

for axis, words in pairs({
    data = {}, fsdp = {}, tensor = {}, tensor_sequence = {}, context = {},
    ring = { "context_parallel_strategy=ring" },
}) do
    TestBlocks["test_" .. axis] = function()
        if not reference then
            reference_loss, reference = gradients(config_of("per_device_batch_size=" .. SEQUENCES), nil)
        end
        local config = config_of("per_device_batch_size=" .. SEQUENCES // mx.ranks(), "ici_fsdp_parallelism=1",
            ("ici_%s_parallelism=%d"):format(axis == "ring" and "context" or axis, mx.ranks()), table.unpack(words))
        local loss, grads = gradients(config, mx.train.mesh(config))
        lu.assertAlmostEquals(loss, reference_loss, 1e-5)
        for name, grad in util.sorted_pairs(reference) do
            local off = compare.distance(grads[name], grad)
            lu.assertTrue(off < 1e-5, ("the gradient of %s is off by %g"):format(name, off))
        end
    end
end
