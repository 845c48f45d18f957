-- The loss of a text under a model: mx.evaluate.
-- guarded

local lu = require "luaunit"
local mx = require "mx"

local GOLDEN = mx.root .. "tests/golden/weights/"

TestEvaluate = {}

function TestEvaluate.test_each_token_is_scored_once()
    for n = 2, 30 do
        for context = 1, 12 do
            for stride = 1, context do
                local scored = {}
                for _, w in ipairs(mx.evaluate.windows(n, context, stride)) do
                    lu.assertEquals(w.length, math.min(context, n - 1))
                    lu.assertTrue(w.start >= 0 and w.start + w.length <= n - 1)
                    for i = w.length - w.scored + 1, w.length do
                        local at = w.start + i
                        lu.assertNil(scored[at])
                        scored[at] = i
                    end
                end
                for at = 1, n - 1 do -- and goes by as much as the stride promises
                    lu.assertTrue(scored[at] and (scored[at] >= math.min(at, context - stride + 1)))
                end
            end
        end
    end
end

-- Against the logits of each token by itself.
function TestEvaluate.test_loss()
    local model = mx.weights.model(GOLDEN .. "llama31", { words = { "dtype=float32" } })
    local file <close> = mx.io.weights_open(GOLDEN .. "llama31/expected.safetensors")
    local tokens = file:read("tokens"):view(40)
    local list, context, stride = tokens:totable(), 8, 3
    local sum = 0.0
    mx.no_grad(function()
        for _, w in ipairs(mx.evaluate.windows(40, context, stride)) do
            local inputs = mx.narrow(tokens, { dim = 1, start = w.start + 1, length = w.length }):view(1, w.length)
            local logits = model:logits(model:hidden(inputs)):view(w.length, 96):totable()
            for i = w.length - w.scored + 1, w.length do
                local z = 0.0
                for _, logit in ipairs(logits[i]) do
                    z = z + math.exp(logit)
                end
                sum = sum + math.log(z) - logits[i][list[w.start + i + 1] + 1]
            end
        end
    end)
    for batch = 1, 4 do
        local loss = mx.evaluate.loss(model, tokens, { context = context, stride = stride, batch = batch })
        lu.assertAlmostEquals(loss / (sum / 39), 1, 1e-6)
    end
end

function TestEvaluate.test_what_is_refused()
    local o = { format = "auto", vocab = 100, max_tokens = 0 }
    local function says(expected)
        lu.assertErrorMsgContains(expected, mx.evaluate.tokens, mx.root .. "LICENSE", o)
    end
    says("the model has no tokenizer (its vocabulary has 100 entries)")
    o.vocab, o.max_tokens, o.tokenizer = 256, 1, mx.tokenizer.open("bytes")
    says("has 1 token: at least two")
    o.max_tokens = 10
    local tokens, bytes = mx.evaluate.tokens(mx.root .. "LICENSE", o)
    lu.assertEquals({ tokens:size(1), bytes }, { 10, 9 })
    o.vocab = 10
    says("the token id 32, outside the model's vocabulary of 10")
end
