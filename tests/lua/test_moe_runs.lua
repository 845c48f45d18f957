-- Runs of layers with experts: biases of routers after a resume and after a skipped step.

local lu = require "luaunit"
local mx = require "mx"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local runs = dofile(here .. "runs.lua")

TestMoeRuns = { setUp = runs.setUp, tearDown = runs.tearDown }

local BALANCED = {
    "model_name=tiny-moe", "routed_bias=true", "routed_bias_update_rate=0.02", "router_z_loss_weight=0.001",
    "learning_rate=0.01", "remat_policy=full", "learning_rate_schedule_steps=6", "steps=6",
}

-- Six steps, against three, a checkpoint and three more: the biases come back, and the losses are the same.
function TestMoeRuns.test_a_resumed_run_has_its_biases()
    local rows, biases = {}, {}
    for _, case in ipairs({ { "whole", 6 }, { "half", 3 }, { "half", 6 } }) do
        local name, steps = case[1], case[2]
        local words = table.move(BALANCED, 1, #BALANCED - 1, 1, {})
        words[#words + 1], words[#words + 2] = "run_name=" .. name, "steps=" .. steps
        local result = runs.train(runs.config_of(table.unpack(words)))
        lu.assertNotNil(result.said:find("s  load %d%.%d%d\n"))
        biases[name], rows[name] = result.model.buffers["layer001.router.bias"]:totable(), {}
        for _, row in ipairs(runs.lines(runs.folder .. "/" .. name .. "/metrics.jsonl")) do
            rows[name][row.step] = row.loss and { row.loss, row.load_balance_loss, row.largest_expert_load }
        end
    end
    lu.assertEquals(rows.half, rows.whole)
    lu.assertEquals(#rows.whole, 6)
    lu.assertEquals(biases.half, biases.whole)
    local largest = math.max(table.unpack(biases.whole))
    lu.assertTrue(largest > 0 and largest < 6 * 0.02 + 1e-6)
end

-- A skipped step leaves the biases as they are. TensorBoard's file has the figures of routers.
function TestMoeRuns.test_a_skipped_step_changes_no_bias()
    local seen, name = {}, "layer001.router.bias"
    local result = runs.train(runs.config_of("nonfinite_step=skip", "run_name=a", table.unpack(BALANCED)),
        function(step, model)
            seen[step] = model.buffers[name]:totable()
            mx.fill(model.params["norm.weight"]:detach(), { value = step == 3 and 0 / 0 or 1 })
        end)
    lu.assertNotEquals(seen[3], seen[2])
    lu.assertEquals(seen[4], seen[3])
    lu.assertNotEquals(seen[5], seen[4])
    lu.assertStrContains(result.said, "step 3 is skipped")
    local folder = runs.folder .. "/a/tensorboard/"
    local events = runs.read(folder .. mx.io.list(folder)[1])
    for _, tag in ipairs({ "learning/moe_lb_loss", "learning/router_z_loss", "learning/largest_expert_load" }) do
        lu.assertStrContains(events, tag)
    end
end

return TestMoeRuns
