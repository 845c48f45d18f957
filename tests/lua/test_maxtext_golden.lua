-- Twenty training steps of MaxText (tests/golden/maxtext.h5): rates, losses, norms of gradients, final parameters. Five
-- steps of each of its blocks that are not Llama's (maxtext_blocks.h5) and of blocks with experts (maxtext_experts.h5):
-- rates, losses, norms.
--
-- A case's words are its key=value words for MaxText. Distances are those of compare.lua.

local mx = require "mx"
local lu = require "luaunit"
local util = require "mx.util"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

-- Both programs compute in f32, where a rounding is at most 2^-24 = 6e-8. A loss or a gradient passes some 200 of them
-- in two layers, which mostly cancel: sqrt(200) 2^-24 = 8.4e-7. A rate is rounded to f32 once by each program, and
-- MaxText rounds the terms of its formula before that.
local F32 = { rates = 2 ^ -23, losses = 1e-6, norms = 1e-6, final = 1e-6 }

-- bf16 rounds by 0.12 % in the root mean square, and a value passes ten to twenty of them: tests/lua/test_golden.lua.
local BF16 = { rates = 2 ^ -23, losses = 0.004, norms = 0.02 }

-- Up to seven layers instead of two, and gradients of norms of queries and keys, whose terms cancel.
local BLOCK = { rates = 2 ^ -23, losses = 2e-6, norms = 5e-5 }

-- MaxText's norm contains the gradients of frozen parameters, which are not computed here.
local FROZEN = { rates = 2 ^ -23, losses = 1e-6, final = 1e-6 }

-- MaxText rounds a tied table to bf16 for the logits: 0.12 % of a weight in the root mean square. A logit is a sum of
-- 24 such products and off by as much. The mean over 32 tokens divides that by sqrt(32); the largest of 20 is twice as
-- far.
local TIED = { rates = 2 ^ -23, losses = 5e-4, norms = 1e-3 }

-- optax computes beta1 m of a bf16 m in bf16, where a beta1 of 0.9 is 0.8984. Its moments are up to 1.6 % smaller than
-- here. Twenty steps move a loss by some 8 %, and 1.6 % of that is 1.3e-3.
local MOMENTS = { rates = 2 ^ -23, losses = 1.3e-3, norms = 1.3e-3 }

local CASES = { llama = F32, llama_bf16 = BF16, moments = MOMENTS, qwen = F32, tied = TIED, frozen = FROZEN }

local BLOCKS = { default = BLOCK, gemma = BLOCK, gemma2 = BLOCK, gemma3 = BLOCK, olmo3 = BLOCK, gpt3 = BLOCK }

local EXPERTS = { mixtral = BLOCK, mixtral_dropped = BLOCK, qwen3_moe = BLOCK, envy = BLOCK }

local function golden(file)
    local data, attributes = mx.io.h5_read(compare.here .. "../golden/" .. file)
    return data, mx.io.json_decode(attributes.about)
end

-- Trains as the case says: {losses =, norms =, rates =}, and the model.
local function train(data, case, about)
    local config = mx.config.load(about.words)
    local model = mx.models.new(config)
    local function start(name)
        return data[("%s.%s"):format(about.from, name)]
    end
    for name, t in util.sorted_pairs(model.params) do
        mx.copy(t:detach(), start("params." .. name))
    end
    local optimizer, run = mx.optim.new(config, model.params), { losses = {}, norms = {}, rates = {} }
    for i = 1, data[case .. ".losses"]:numel() do
        local step <close> = mx.step()
        local loss = model:loss {
            tokens = start("tokens")[i], targets = start("targets")[i], segments = start("segments")[i],
            positions = start("positions")[i], mask = start("mask")[i],
        }
        mx.backward(loss)
        run.losses[i], run.rates[i], run.norms[i] = loss:item(), optimizer:rate(i), optimizer:step()
        assert(step)
    end
    return run, model
end

local function assert_near(apart, bound, what, ...)
    lu.assertTrue(apart <= bound, ("%s: off by %.3g, bound %.3g"):format(what:format(...), apart, bound))
end

TestMaxtextGolden = {}

local function add_test(case, bounds, file)
    TestMaxtextGolden["test_" .. case] = function()
        local data, about = golden(file)
        local run, model = train(data, case, about[case])
        for figure, values in util.sorted_pairs(run) do
            local apart = compare.distance(values, data[("%s.%s"):format(case, figure)])
            assert_near(apart, bounds[figure] or math.huge, figure)
        end
        for name, t in util.sorted_pairs(bounds.final and model.params or {}) do
            assert_near(compare.rms_distance(t, data[("%s.final.%s"):format(case, name)]), bounds.final, name)
        end
    end
end

for case, bounds in pairs(CASES) do
    add_test(case, bounds, "maxtext.h5")
end
for case, bounds in pairs(BLOCKS) do
    add_test(case, bounds, "maxtext_blocks.h5")
end
for case, bounds in pairs(EXPERTS) do
    add_test(case, bounds, "maxtext_experts.h5")
end
