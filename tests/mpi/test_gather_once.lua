-- ranks: 2 4
-- Gradient accumulation that gathers each weight once a step: as many collectives in any number of passes, and the
-- gradients of gathering in each pass.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

local PASSES = 4
local MESHES = {
    [2] = { "fsdp=2", "fsdp_transpose=2", "context=2", "data=2" },
    [4] = { "fsdp=2 tensor=2", "fsdp=2 fsdp_transpose=2", "data=2 fsdp=2" },
}

local function config_of(mesh, once, ...)
    local words = {
        "model_name=tiny", "dataset_type=text", "dataset_path=" .. mx.root .. "LICENSE", "per_device_batch_size=1",
        "max_target_length=32", "ici_fsdp_parallelism=1", "gradient_accumulation_fsdp_ag_once=" .. tostring(once), ...,
    }
    for axis, size in mesh:gmatch("([%w_]+)=(%d+)") do
        words[#words + 1] = ("ici_%s_parallelism=%s"):format(axis, size)
    end
    return mx.config.load(words)
end

-- One step of so many passes: its loss, the gradients, and what was sent.
local function step_of(mesh, once, passes, ...)
    local config = config_of(mesh, once, "gradient_accumulation_steps=" .. passes, ...)
    local on = mx.train.mesh(config)
    local model, data, gradients = mx.models.new(config, on), mx.data.open(config, on), {}
    mx.comm_stats(true)
    local loss = mx.train.gradients(model, data, passes)
    for name, t in util.sorted_pairs(model.params) do
        gradients[name] = t:grad():wait():clone()
    end
    local sent = mx.comm_stats(true)
    lu.assertNil(model.parallel.gathered)
    lu.assertEquals(mx.kept(), {})
    return { loss = loss, gradients = gradients, sent = sent }
end

TestGatherOnce = {}

for _, mesh in ipairs(MESHES[mx.ranks()] or {}) do
    local name = mesh:gsub("[^%w]+", "_")

    TestGatherOnce["test_gradients_on_" .. name] = function()
        for _, policy in ipairs({ "none", "full" }) do
            local words = { "dtype=float32", "remat_policy=" .. policy }
            local each = step_of(mesh, false, PASSES, table.unpack(words))
            local once = step_of(mesh, true, PASSES, table.unpack(words))
            lu.assertEquals(once.loss, each.loss)
            for parameter, t in util.sorted_pairs(each.gradients) do
                local scale = mx.max(mx.abs(t)):item()
                local off = mx.max(mx.abs(once.gradients[parameter] - t)):item()
                lu.assertTrue(off <= 1e-5 * scale, ("%s: %g of %g"):format(parameter, off, scale))
            end
        end
    end

    -- One pass gathers in the forward and the backward pass; once is an all-gather and a reduce-scatter, which do not
    -- grow with the passes. What else is sent (scalars, sums over tensor and data) does not change.
    TestGatherOnce["test_traffic_on_" .. name] = function()
        local each, once = step_of(mesh, false, PASSES).sent, step_of(mesh, true, PASSES).sent
        if mesh == "data=2" then -- nothing is gathered
            lu.assertEquals({ once.calls, once.bytes }, { each.calls, each.bytes })
        else
            lu.assertTrue(once.calls < each.calls, ("%d and %d exchanges"):format(once.calls, each.calls))
            lu.assertTrue(once.bytes < 0.75 * each.bytes, ("%d and %d bytes"):format(once.bytes, each.bytes))
        end
        if mesh == "fsdp=2" then
            local two = step_of(mesh, true, 2).sent
            lu.assertTrue(once.bytes - two.bytes < 0.01 * once.bytes,
                ("%d bytes in 2 passes, %d in 4"):format(two.bytes, once.bytes))
        end
    end
end

function TestGatherOnce.test_an_error_in_a_pass_leaves_nothing_behind()
    local config = config_of(MESHES[mx.ranks()][1], true)
    local on = mx.train.mesh(config)
    local model, data = mx.models.new(config, on), mx.data.open(config, on)
    lu.assertErrorMsgContains("boom", mx.train.gradients, model, data, 2, function() error("boom") end)
    lu.assertNil(model.parallel.gathered)
    lu.assertEquals(mx.kept(), {})
end
