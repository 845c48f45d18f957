-- The decoder: parameter counts without allocating, and what each block computes.

local lu = require "luaunit"
local mx = require "mx"

TestModels = {}

local function shape_of(model, ...)
    return mx.models.shape(mx.config.load({ "model_name=" .. model, ... }))
end

-- Where weights are published: the sum of their sizes. (Those of Llama 3.1 405B as of its second upload, 8 kv heads.)
function TestModels.test_published_parameter_counts()
    local counts = {
        ["16b"] = 16274101248, ["32b"] = 32548169728, ["64b"] = 64760784896, ["128b"] = 129185359872,
        ["gpt2-124m"] = 124439808,
        ["llama2-7b"] = 6738415616, ["llama2-13b"] = 13015864320, ["llama2-70b"] = 68976648192,
        ["llama3-8b"] = 8030261248, ["llama3-70b"] = 70553706496, ["llama3-405b"] = 405853388800,
        ["llama3.1-8b"] = 8030261248, ["llama3.1-70b"] = 70553706496, ["llama3.1-405b"] = 405853388800,
        ["llama3.3-70b"] = 70553706496, ["mistral-7b"] = 7241732096,
        ["qwen2.5-1.5b"] = 1543714304, ["qwen2.5-7b"] = 7615616512, ["qwen2.5-14b"] = 14770033664,
        ["qwen3-0.6b"] = 596049920, ["qwen3-1.7b"] = 1720574976, ["qwen3-1.7b-base"] = 1720574976,
        ["qwen3-4b"] = 4022468096, ["qwen3-4b-base"] = 4022468096, ["qwen3-4b-thinking-2507"] = 4022468096,
        ["qwen3-8b"] = 8190735360, ["qwen3-8b-base"] = 8190735360, ["qwen3-14b"] = 14768307200,
        ["qwen3-14b-base"] = 14768307200, ["qwen3-32b"] = 32762123264,
    }
    for model, count in pairs(counts) do
        lu.assertEquals(mx.models.count(shape_of(model)), count)
    end
end

-- Beside Llama's parameters: a scale of head_dim for the heads of queries and of keys in each layer, and biases.
function TestModels.test_parameters_of_norms_and_biases_of_heads()
    local s = shape_of("tiny")
    local plain = mx.models.count(s)
    local heads, mlp = s.blocks[1].attention, s.blocks[1].mlp
    local biases = s.layers * (heads.heads + 2 * heads.kv_heads) * heads.head_dim
    lu.assertEquals(mx.models.count(shape_of("tiny", "use_qk_norm=true")), plain + 2 * s.layers * heads.head_dim)
    lu.assertEquals(mx.models.count(shape_of("tiny", "attention_bias=true")), plain + biases)
    lu.assertEquals(mx.models.count(shape_of("tiny", "use_bias=true")),
        plain + biases + s.layers * (2 * s.emb + 2 * mlp.width))
end

function TestModels.test_global_parameter_scale()
    -- layers, emb, heads, mlp of the published models.
    local sizes = {
        ["16b"] = { 32, 5120, 32, 32768 }, ["32b"] = { 32, 10240, 32, 32768 }, ["64b"] = { 64, 10240, 32, 32768 },
        ["128b"] = { 64, 10240, 64, 65536 },
    }
    for model, expected in pairs(sizes) do
        local s = shape_of(model)
        lu.assertEquals({ s.layers, s.emb, s.blocks[1].attention.heads, s.blocks[1].mlp.width }, expected)
    end
    lu.assertEquals(mx.models.count(shape_of("16b", "global_parameter_scale=1")), 1090566656)
end

-- Layers that compute in f32 do so with bf16 weights, too: as with f32 ones of the same values. The two gradients of a
-- tied table may be added in another order, of which each sum may be off by a few of f32's 2^-24.
-- Before they are listed: a list of a billion layers is never finished.
function TestModels.test_parameters_that_no_rank_can_hold()
    for _, words in ipairs({
        { "base_num_decoder_layers=1000000007" }, { "vocab_size=2147483647", "base_emb_dim=1024" },
    }) do
        local c = mx.config.load({ "model_name=tiny", table.unpack(words) })
        local ok, message = pcall(mx.models.new, c)
        lu.assertFalse(ok)
        lu.assertStrContains(tostring(message), "of memory on each rank")
        lu.assertEquals(getmetatable(message).__name, "mx.refusal")
    end
end

function TestModels.test_bf16_weights_in_f32_layers()
    for _, name in ipairs({ "tiny", "tiny-gpt2", "tiny-parallel" }) do
        local found = {}
        local narrow = mx.models.new(mx.config.load { "model_name=" .. name, "dtype=float32", "weight_dtype=bfloat16" })
        local wide = mx.models.new(mx.config.load { "model_name=" .. name, "dtype=float32" })
        local tokens = mx.rand({ shape = { 2, 32 }, high = 256, seed = 1 }):to("i32")
        for key, t in pairs(narrow.params) do
            mx.no_grad(function() mx.copy(wide.params[key], t:to("f32")) end)
        end
        for i, model in ipairs({ narrow, wide }) do
            local step <close> = mx.step()
            local loss = model:loss { tokens = tokens, targets = tokens }
            mx.backward(loss)
            found[i] = loss:item()
        end
        lu.assertEquals(found[1], found[2], name)
        for key, t in pairs(narrow.params) do
            if t:grad() then
                local expected = wide.params[key]:grad()
                local off = mx.max(mx.abs(t:grad() - expected)):item() / mx.max(mx.abs(expected)):item()
                lu.assertTrue(off <= 2 ^ -22, ("%s: %s is off by %g"):format(name, key, off))
            end
        end
    end
end

function TestModels.test_names_are_unique_and_in_order()
    for _, model in ipairs({ "tiny", "tiny-gpt2", "tiny-parallel" }) do
        local names = {}
        for i, p in ipairs(mx.models.parameters(shape_of(model))) do
            lu.assertNil(names[p.name])
            names[p.name] = i
        end
        lu.assertNotNil(names["layer001.query.weight"])
    end
end

-- What lua/mx/models/README.md lists, of each kind of part.
function TestModels.test_parts_have_the_same_functions()
    local functions = { "of", "parameters", "forward", "flops", "rows", "tensors" }
    for name, part in pairs(shape_of("tiny").blocks[1]) do
        if name == "attention" or name == "mlp" then
            for _, fn in ipairs(functions) do
                lu.assertEquals(type(mx.models.part(part)[fn]), "function", part.kind .. "." .. fn)
            end
        end
    end
end

function TestModels.test_without_a_mesh_there_are_the_same_methods()
    local config = mx.config.load { "model_name=tiny", "ici_tensor_parallelism=2" }
    local shape = mx.models.shape(config)
    local on_mesh = mx.parallel.new(mx.mesh.plan(config, 2, 0), shape, mx.models.parameters(shape), config)
    local model = mx.models.new(config)
    for name in pairs(getmetatable(on_mesh)) do
        lu.assertTrue(name == "__index" or type(model.parallel[name]) == "function", name)
    end
    lu.assertNil(model.parallel.mesh)
    lu.assertEquals(model.parallel.seed, 1)
end

-- The hidden states of a model in f32; `run` as for Decoder:hidden, rows a table of token lists.
local function hidden(model, rows, run)
    return model:hidden(mx.tensor(rows, "i32"), run)
end

local function assert_close(a, b)
    lu.assertEquals(a:size(), b:size())
    lu.assertTrue(mx.max(mx.abs(a - b)):item() < 1e-5)
end

function TestModels.test_packed_sequences_do_not_see_each_other()
    for _, name in ipairs({ "tiny", "tiny-gpt2" }) do
        local model = mx.models.new(mx.config.load({ "model_name=" .. name, "dtype=float32" }))
        mx.no_grad(function()
            local step <close> = mx.step()
            local packed = hidden(model, { { 5, 6, 7, 8, 9 } }, {
                segments = mx.tensor({ { 1, 1, 1, 2, 2 } }, "i32"), positions = mx.tensor({ { 0, 1, 2, 0, 1 } }, "i32"),
            })
            assert_close(packed[1]:narrow { dim = 1, start = 1, length = 3 }, hidden(model, { { 5, 6, 7 } })[1])
            assert_close(packed[1]:narrow { dim = 1, start = 4, length = 2 }, hidden(model, { { 8, 9 } })[1])
        end)
    end
end

function TestModels.test_what_a_token_sees()
    -- Whether changing the first token changes the hidden state of the last one.
    local function reaches(...)
        local model = mx.models.new(mx.config.load({ "model_name=tiny", "dtype=float32", ... }))
        return mx.no_grad(function()
            local step <close> = mx.step()
            local a, b = hidden(model, { { 1, 2, 3, 4, 5, 6 } }), hidden(model, { { 9, 2, 3, 4, 5, 6 } })
            local first = mx.max(mx.abs(a[1][1] - b[1][1])):item() > 0
            local last = mx.max(mx.abs(a[1][6] - b[1][6])):item() > 0
            local c = hidden(model, { { 1, 2, 3, 4, 5, 7 } })
            return first and last, mx.max(mx.abs(a[1][1] - c[1][1])):item() > 0
        end)
    end
    local forward, backward = reaches()
    lu.assertEquals({ forward, backward }, { true, false })
    -- Two layers that see 3 tokens each reach back 4.
    forward = reaches("attention_type=local_sliding", "sliding_window_size=3")
    lu.assertFalse(forward)
    forward, backward = reaches("attention_type=full")
    lu.assertEquals({ forward, backward }, { true, true })
end

function TestModels.test_caps_bound_the_logits()
    local model = mx.models.new(mx.config.load({ "model_name=tiny", "final_logits_soft_cap=0.5" }))
    mx.no_grad(function()
        local step <close> = mx.step()
        local logits = model:logits(hidden(model, { { 1, 2, 3 } }))
        lu.assertEquals(logits:dtype(), "f32")
        lu.assertTrue(mx.max(mx.abs(logits)):item() <= 0.5)
    end)
end

function TestModels.test_initial_weights_depend_on_name_and_seed_alone()
    local function query(...)
        return mx.models.new(mx.config.load({ "model_name=tiny", ... })).params["layer002.query.weight"]
    end
    local weight = query()
    lu.assertEquals(weight:totable(), query("base_mlp_dim=32", "base_num_decoder_layers=3"):totable())
    lu.assertNotEquals(weight:totable(), query("init_weights_seed=1"):totable())
    lu.assertAlmostEquals(math.sqrt(mx.sum_squares(weight):item() / weight:numel()), 1 / math.sqrt(64), 0.01)
end

function TestModels.test_layers_learn_a_function()
    local params = {}
    local inner = mx.nn.linear(params, "inner", 1, 32, { bias = true })
    local outer = mx.nn.linear(params, "outer", 32, 1, { bias = true })
    local optimizer = mx.optim.adamw(params, { learning_rate = 1e-2 })
    local last
    for i = 1, 300 do
        local step <close> = mx.step()
        local x = mx.rand { shape = { 128, 1 }, low = -3, high = 3, seed = i }
        local loss = (outer(inner(x):tanh()) - mx.sin(x)):square():mean()
        mx.backward(loss)
        optimizer:step()
        last = loss:item()
    end
    lu.assertTrue(last < 0.02, "the loss is " .. last)
end
