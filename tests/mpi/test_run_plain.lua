-- ranks: 1 2
--- mx.run with a model that is no decoder: a network with a loss of the script's own, and a dataset of its own.

local mx = require "mx"
local lu = require "luaunit"

local GLOBAL = 8 -- examples of a step, on any number of ranks
local WORDS = {
    "steps=6", "learning_rate=0.05", "learning_rate_schedule_steps=6", "checkpoint_period=3", "log_period=100",
    "enable_tensorboard=false",
}

local folder

-- y = x1 x2, learned by a small network.
local function make(batch, shard)
    local params = {}
    local hidden = mx.nn.linear(params, "hidden", 2, 16, { bias = true })
    local output = mx.nn.linear(params, "output", 16, 1)
    local model = { params = params, updates = 0 }
    function model.after_step()
        model.updates = model.updates + 1
    end
    function model.loss(_, b)
        local error = output(hidden(b.x):tanh()):view(-1) - b.y
        return (error * error):mean()
    end
    local x = mx.randn({ 40, 2 }, { seed = 5 })
    local data = mx.data.dataset({ x = x, y = x[{ {}, 1 }] * x[{ {}, 2 }] }, { batch = batch, shard = shard, seed = 2 })
    return model, data
end

local function train(name, ...)
    local words = { "run_name=" .. name, "base_output_directory=" .. folder }
    table.move(WORDS, 1, #WORDS, #words + 1, words)
    for _, word in ipairs { ... } do
        words[#words + 1] = word
    end
    local config = mx.config.load(words)
    local model, data = make(GLOBAL // mx.ranks(), true)
    local optimizer = mx.optim.new(config, model.params)
    local run = mx.run.start(config, model, optimizer, data)
    for step in run:steps() do
        local loss = mx.train.gradients(model, data, 1)
        run:ended(step, loss, run:update(step, loss))
    end
    return run:finish(), model, config
end

TestRunPlain = {}

function TestRunPlain.setUp()
    folder = mx.share_text(mx.rank() == 0 and os.tmpname() or nil) .. ".runs"
end

function TestRunPlain.tearDown()
    mx.barrier()
    if mx.rank() == 0 and mx.io.exists(folder) then
        mx.io.remove_folder(folder)
    end
end

-- The same steps by hand, with all examples on each rank.
function TestRunPlain.test_a_run_takes_the_steps_of_a_loop_by_hand()
    local summary, trained, config = train("one")
    local model, data = make(GLOBAL, false)
    local optimizer, loss = mx.optim.new(config, model.params), nil
    for _ = 1, config.steps do
        local step <close> = mx.step()
        loss = model:loss(data:next())
        mx.backward(loss)
        loss = loss:item()
        optimizer:step()
    end
    lu.assertEquals(summary.step, 6)
    lu.assertAlmostEquals(summary.loss, loss, 1e-6 * math.abs(loss)) -- means of 4 and of 8 examples round differently
    for name, t in pairs(model.params) do
        local apart = (trained.params[name]:detach() - t:detach()):abs():max():item()
        lu.assertTrue(apart < 1e-5, name .. " " .. apart) -- AdamW divides by the root of small squares
    end
    lu.assertNil(summary.mfu)
    lu.assertEquals(trained.updates, 6)
end

function TestRunPlain.test_a_run_resumes_to_the_bit()
    local whole, model = train("whole")
    train("cut", "steps=3")
    local resumed, again = train("cut")
    lu.assertEquals(resumed.loss, whole.loss)
    for name, t in pairs(model.params) do
        lu.assertEquals(mx.to_bytes(again.params[name]), mx.to_bytes(t), name)
    end
    local finished = train("cut")
    lu.assertEquals({ finished.step, finished.loss }, { 6, whole.loss })
end

function TestRunPlain.test_messages()
    local function refused(text, fn, ...)
        local good, message = pcall(fn, ...)
        lu.assertFalse(good)
        lu.assertStrContains(tostring(message), text)
    end
    refused("`loss(batch)`", mx.train.gradients, { params = { w = mx.ones(1) } }, nil, 1)
    refused("`params`", mx.train.gradients, { loss = print }, nil, 1)
    if mx.ranks() == 1 then
        refused("evaluate between the steps", train, "e", "eval_interval=2")
    end
end
