--- Layers of mx.nn against PyTorch and against the decoder's operations, and what is done with tables of parameters.

local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")
local lu = require "luaunit"
local mx = require "mx"

local golden = mx.io.h5_read(compare.here .. "../golden/nn.h5")

TestCells = {}

-- f32 against float64: four steps of a few dozen roundings.
local BOUND = 5e-6

for name, make in pairs({ lstm = mx.nn.lstm_cell, gru = mx.nn.gru_cell }) do
    TestCells["test_" .. name] = function()
        local params, state = {}, {}
        local cell = make(params, "cell", 5, 7)
        for parameter in pairs(params) do
            state[parameter] = golden[parameter:gsub("^cell", name)]
        end
        mx.nn.load_state(params, state)
        local y = mx.nn.recurrent(cell)(golden.x)
        lu.assertTrue(compare.distance(y, golden[name .. ".y"]) < BOUND)
        mx.backward(mx.sum(y * y))
        lu.assertTrue(compare.distance(params["cell.state.weight"]:grad(), golden[name .. ".grad"]) < BOUND)
    end
end

TestLayers = {}

-- Attention by the operations that it is made of.
function TestLayers.test_attention()
    local params, x = {}, mx.randn { shape = { 2, 5, 16 }, seed = 1 }
    local f = mx.nn.attention(params, "a", 16, { heads = 4, kv_heads = 2, rope = 100 })
    local function rotated(name, heads)
        return mx.rope(mx.matmul(x, params[name]):view(2, 5, heads, 4), { theta = 100 })
    end
    local v = mx.matmul(x, params["a.value.weight"]):view(2, 5, 2, 4)
    local y = mx.attention(rotated("a.query.weight", 4), rotated("a.key.weight", 2), v, { causal = true })
    lu.assertTrue(compare.identical(f(x), mx.matmul(y:view(2, 5, 16), params["a.out.weight"])))
    lu.assertErrorMsgContains("heads = 5", mx.nn.attention, {}, "a", 12, { heads = 5 })
    lu.assertErrorMsgContains("kv_heads = 3", mx.nn.attention, {}, "a", 12, { heads = 4, kv_heads = 3 })
end

-- Attention to another sequence, and with a mask: what is masked might as well be missing.
-- Dropout of attention weights is that of mx.attention, and only while a call trains.
function TestLayers.test_attention_with_dropout()
    local step <close> = mx.step()
    local params = {}
    local f = mx.nn.attention(params, "a", 8, { heads = 2, dropout = 0.5 })
    local x = mx.randn { 2, 6, 8 }
    local function of(name) return mx.matmul(x, params["a." .. name .. ".weight"]):view(2, 6, 2, 4) end
    local function want(options)
        options.causal = true
        local y = mx.attention(of "query", of "key", of "value", options):view(2, 6, 8)
        return mx.matmul(y, params["a.out.weight"])
    end
    mx.manual_seed(3)
    local trained = f(x, { training = true })
    mx.manual_seed(3)
    lu.assertTrue(compare.identical(trained, want { dropout = 0.5 }))
    lu.assertEquals(mx.random_state().draws, 1)
    lu.assertTrue(compare.identical(f(x, { training = false }), want {}))
    lu.assertEquals(mx.random_state().draws, 1)
    lu.assertErrorMsgContains("the layer has dropout = 0.5: f(x, { training = true }) drops weights", f, x)
    lu.assertErrorMsgContains("dropout = 1; expected a number from 0 to below 1", mx.nn.attention, {}, "b", 8,
        { heads = 2, dropout = 1 })
    assert(step)
end

function TestLayers.test_attention_to_memory()
    local params, x, memory = {}, mx.randn { 2, 5, 8 }, mx.randn { 2, 4, 6 }
    local f = mx.nn.attention(params, "a", 8, { heads = 2, causal = false, memory_width = 6 })
    local q = mx.matmul(x, params["a.query.weight"]):view(2, 5, 2, 4)
    local k = mx.matmul(memory, params["a.key.weight"]):view(2, 4, 2, 4)
    local v = mx.matmul(memory, params["a.value.weight"]):view(2, 4, 2, 4)
    local want = mx.matmul(mx.attention(q, k, v):view(2, 5, 8), params["a.out.weight"])
    lu.assertTrue(compare.identical(f(x, { memory = memory }), want))
    local mask = mx.tensor({ 1, 1, 1, 0 }, "u8"):view(1, 1, 1, 4)
    local masked = f(x, { memory = memory, mask = mask })
    lu.assertTrue(compare.distance(masked, f(x, { memory = memory[{ {}, { 1, 3 } }] })) < 1e-6)
    lu.assertTrue(compare.distance(masked, f(x, { memory = memory })) > 1e-3)
    local own = mx.nn.attention({}, "b", 8, { heads = 2 })
    lu.assertErrorMsgContains("x has 2 dimensions, and what it attends to 2; expected (B, S, width)", own,
        mx.ones(5, 8))
    lu.assertErrorMsgContains("x has 2 dimensions; expected (B, S, n_in)",
        mx.nn.recurrent(mx.nn.gru_cell({}, "c", 4, 4)), mx.ones(3, 4))
    lu.assertErrorMsgContains("takes causal = false", own, x, { memory = x })
    lu.assertErrorMsgContains("'attn_mask'; it has memory, mask", own, x, { attn_mask = mask })
    local floats = mx.where(mx.tril(mx.ones(5, 5, "u8")), 0, -math.huge):view(1, 1, 5, 5)
    local free = mx.nn.attention({}, "b", 8, { heads = 2, causal = false })
    lu.assertTrue(compare.distance(own(x), free(x, { mask = floats })) < 1e-6)
end

function TestLayers.test_convolutions()
    local params, x = {}, mx.randn { shape = { 2, 4, 9 }, seed = 1 }
    local f = mx.nn.conv1d(params, "c", 4, 6, 3, { padding = "causal", groups = 2, bias = true })
    lu.assertEquals({ params["c.weight"]:size(), params["c.bias"]:size() }, { { 6, 2, 3 }, { 6 } })
    lu.assertTrue(compare.identical(f(x),
        mx.conv1d(x, params["c.weight"], params["c.bias"], { padding = "causal", groups = 2 })))
    local g = mx.nn.conv2d(params, "d", 4, 5, 3, { stride = { 1, 2 }, padding = 1, std = 0.5 })
    lu.assertEquals(g(mx.ones { 2, 4, 6, 6 }):size(), { 2, 5, 6, 3 })
    lu.assertAlmostEquals(mx.std(params["d.weight"]):item(), 0.5, 0.1) -- of 180 draws
    lu.assertErrorMsgContains("groups = 2 must divide 3 and 8 channels", mx.nn.conv2d, {}, "e", 3, 8, 3, { groups = 2 })
end

-- Initial values depend on name, sizes and seed, and not on the stream.
function TestLayers.test_initial_values()
    local function weight(name, seed)
        local params = {}
        mx.nn.linear(params, name, 3, 4, { seed = seed })
        return params[name .. ".weight"]
    end
    local first = weight("a", 0)
    mx.manual_seed(9)
    lu.assertTrue(compare.identical(first, weight("a")))
    lu.assertFalse(compare.identical(first, weight("a", 1)))
    lu.assertFalse(compare.identical(first, weight("b")))
end

-- A seed of a table goes into all that is added from then on, beside the seed of a layer.
function TestLayers.test_seeds_of_tables()
    local function weight(n, seed)
        local params = n and mx.nn.seed({}, n) or {}
        mx.nn.linear(params, "a", 3, 4, { seed = seed })
        return params["a.weight"]
    end
    lu.assertTrue(compare.identical(weight(), weight(0)))
    lu.assertTrue(compare.identical(weight(5), weight(5)))
    local different = { weight(), weight(5), weight(6), weight(5, 1), weight(nil, 5), weight(nil, 6) }
    for i = 1, #different do
        for j = 1, i - 1 do
            lu.assertFalse(compare.identical(different[i], different[j]), i .. " and " .. j)
        end
    end
    lu.assertErrorMsgContains("mx.nn.seed(params, n): got a table and 1.5", mx.nn.seed, {}, 1.5)
end

function TestLayers.test_sizes_of_kernels()
    local params, x = {}, mx.randn { 2, 3, 6, 7 }
    local f = mx.nn.conv2d(params, "c", 3, 4, { 2, 5 }, { padding = { 0, 2 } })
    lu.assertEquals(params["c.weight"]:size(), { 4, 3, 2, 5 })
    lu.assertAlmostEquals(mx.std(params["c.weight"]):item(), 30 ^ -0.5, 0.04) -- of 120 draws
    lu.assertTrue(compare.identical(f(x), mx.conv2d(x, params["c.weight"], { padding = { 0, 2 } })))
    lu.assertErrorMsgContains("size is a table; expected a whole number", mx.nn.conv2d, {}, "e", 3, 8, { 3 })
    lu.assertErrorMsgContains("size is 2.5; expected a whole number", mx.nn.conv2d, {}, "e", 3, 8, { 3, 2.5 })
end

function TestLayers.test_group_norm()
    local params, x = {}, mx.randn { 2, 6, 4 }
    local f = mx.nn.group_norm(params, "n", 6, { groups = 3, eps = 1e-3 })
    lu.assertTrue(compare.identical(f(x), mx.group_norm(x, { groups = 3, eps = 1e-3 })))
    lu.assertEquals(params["n.weight"]:totable(), { 1, 1, 1, 1, 1, 1 })
    lu.assertErrorMsgContains("groups = 4; expected a divisor of 6 channels", mx.nn.group_norm, {}, "n", 6,
        { groups = 4 })
    lu.assertErrorMsgContains("option buffers must be given", mx.nn.batch_norm, {}, "n", 6)
end

-- What PyTorch's arguments would be read as.
function TestLayers.test_arguments()
    lu.assertErrorMsgContains("n_in is 4.0; expected a whole number of at least 1: // divides", mx.nn.linear, {}, "a",
        8 / 2, 4)
    lu.assertErrorMsgContains("mx.nn.linear(params, name, n_in, n_out, options): params is 4; expected the table",
        mx.nn.linear, 4, 2)
    lu.assertErrorMsgContains("name is 4; expected a text", mx.nn.linear, {}, 4, 2)
    lu.assertErrorMsgContains("n_out is nil; expected a whole number", mx.nn.linear, {}, "a", 4)
    lu.assertErrorMsgContains("entries is 0; expected a whole number", mx.nn.embedding, {}, "a", 0, 2)
    lu.assertErrorMsgContains("width is a table; expected a whole number", mx.nn.layernorm, {}, "a", { 3, 4 })
    lu.assertErrorMsgContains("width is 2.5; expected a whole number", mx.nn.rmsnorm, {}, "a", 2.5)
end

-- Names that PyTorch users try.
function TestLayers.test_unknown_names()
    for key, text in pairs {
        Linear = "did you mean mx.nn.linear?", conv3d = "mx.nn.conv", utils = "mx.help()",
        avg_pool2d = "did you mean mx.avg_pool2d?", normalize = "did you mean mx.normalize?",
        functional = 'print(mx.help "nn.functional") says',
    } do
        lu.assertErrorMsgContains(text, function() return mx.nn[key] end)
    end
    lu.assertErrorMsgContains("mx.optim.adam does not exist; did you mean mx.optim.adamw?", function()
        return mx.optim.adam
    end)
    lu.assertErrorMsgContains("mx.linalg.eig does not exist", function() return mx.linalg.eig end)
end

function TestLayers.test_mlp_and_sequential()
    local params, x = {}, mx.randn { shape = { 3, 4 }, seed = 1 }
    local f = mx.nn.sequential(mx.nn.mlp(params, "m", 4, 8, { gated = true, activation = "silu" }), mx.tanh)
    local inner = mx.gated(mx.matmul(x, params["m.gate.weight"]), mx.matmul(x, params["m.up.weight"]))
    lu.assertTrue(compare.identical(f(x), mx.tanh(mx.matmul(inner, params["m.down.weight"]))))
    lu.assertErrorMsgContains("activation = tahn", mx.nn.mlp, {}, "m", 4, 8, { activation = "tahn" })
    lu.assertErrorMsgContains("argument 2 is a number", mx.nn.sequential, mx.tanh, 3)
end

TestTables = {}

function TestTables.test_freeze()
    local params = {}
    local f = mx.nn.sequential(mx.nn.linear(params, "first", 3, 3), mx.nn.linear(params, "second", 3, 2))
    lu.assertEquals(mx.nn.freeze(params, { "^first" }), 1)
    mx.backward(mx.sum(f(mx.ones { 1, 3 })))
    lu.assertNil(params["first.weight"]:grad())
    lu.assertNotNil(params["second.weight"]:grad())
    mx.nn.freeze(params, { "^first" }, true)
    mx.backward(mx.sum(f(mx.ones { 1, 3 })))
    lu.assertNotNil(params["first.weight"]:grad())
    lu.assertErrorMsgContains("no parameter's name matches ^frist", mx.nn.freeze, params, { "^frist" })
end

function TestTables.test_a_state_is_a_copy()
    local params = {}
    mx.nn.linear(params, "w", 2, 2)
    local state = mx.nn.state(params)
    local before = params["w.weight"]:totable()
    mx.fill(params["w.weight"]:detach(), { value = 7 })
    lu.assertEquals(state["w.weight"]:totable(), before)
    mx.nn.load_state(params, state)
    lu.assertEquals(params["w.weight"]:totable(), before)
    lu.assertErrorMsgContains("the state lacks 'w.weight'", mx.nn.load_state, params, {})
    lu.assertErrorMsgContains("has 'v', which", mx.nn.load_state, params, { v = mx.ones { 1 } })
    lu.assertErrorMsgContains("'w.weight' is 4 in the state, and 2x2", mx.nn.load_state, params,
        { ["w.weight"] = mx.ones { 4 } })
end

function TestTables.test_summary()
    local params = {}
    local f = mx.nn.linear(params, "dense", 1000, 500, { bias = true })
    local text = mx.nn.summary(params, f, mx.ones { 10, 1000 })
    lu.assertStrContains(text, "dense.weight  1000 x 500       f32           500,000")
    lu.assertStrContains(text, "500,500")
    lu.assertStrContains(text, "one call: 10,000,000 FLOP")
end
