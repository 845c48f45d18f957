-- Models whose layers differ: against the same put together from plain operations, and what is counted of them.

local lu = require "luaunit"
local mx = require "mx"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare, mixed = dofile(here .. "compare.lua"), dofile(here .. "mixed.lua")

TestBlocks = {}

local S = 12

local function config_of(...)
    return mx.config.load {
        "model_name=tiny", "base_num_decoder_layers=4", "dtype=float32", "max_target_length=" .. S,
        "per_device_batch_size=1", ...
    }
end

local function new_model(...)
    local model = mx.models.new(mixed.shape(config_of(...)))
    mixed.fill(model)
    return model
end

local function new_batch()
    return {
        tokens = mx.rand({ shape = { 1, S }, high = 256, seed = 1 }):to("i32"),
        targets = mx.rand({ shape = { 1, S }, high = 256, seed = 2 }):to("i32"),
    }
end

-- ---- the same by hand: matrix products and what works element by element, no operation of the decoder ----

-- A table of numbers fn(row, column) as a tensor.
local function filled(rows, columns, fn)
    local values = {}
    for r = 1, rows do
        values[r] = {}
        for c = 1, columns do
            values[r][c] = fn(r, c)
        end
    end
    return mx.tensor(values, "f32")
end

-- The sum of each row: (n, width) -> (n, 1).
local function row_sums(x)
    return mx.matmul(x, mx.ones({ x:size(2), 1 }))
end

-- A norm of each row: (n, width) -> (n, width).
local function plain_norm(x, norm, weight, bias)
    local width = x:size(2)
    weight = weight + norm.offset
    if norm.kind == "layernorm" then
        x = x - row_sums(x) / width
    end
    local y = x * mx.rsqrt(row_sums(x * x) / width + norm.eps) * weight
    return bias and y + bias or y
end

local function columns(x, start, length)
    return mx.narrow(x, { dim = 2, start = start, length = length })
end

-- RoPE of one head: (S, D), whose components turn in pairs half a head apart.
local function plain_rope(x, rope)
    local half = x:size(2) // 2
    local function angle(r, c)
        return (r - 1) * (rope.frequencies and rope.frequencies[c] or rope.theta ^ (-(c - 1) / half))
    end
    local cos = filled(x:size(1), half, function(r, c) return math.cos(angle(r, c)) end)
    local sin = filled(x:size(1), half, function(r, c) return math.sin(angle(r, c)) end)
    local a, b = columns(x, 1, half), columns(x, half + 1, half)
    return mx.concat({ a * cos - b * sin, b * cos + a * sin }, { dim = 2 })
end

-- The heads of a product with weights, each (S, D), turned and normed as the part says.
local function plain_heads(h, part, n, weights, name)
    local x, heads = mx.matmul(h, weights[name .. ".weight"]), {}
    local norm = name ~= "value" and part.qk_norm
    x = weights[name .. ".bias"] and x + weights[name .. ".bias"] or x
    x = norm and norm.whole and plain_norm(x, norm, weights[name .. "_norm.weight"]) or x
    for i = 1, n do
        local head = columns(x, (i - 1) * part.head_dim + 1, part.head_dim)
        if name ~= "value" then
            head = norm and not norm.whole and plain_norm(head, norm, weights[name .. "_norm.weight"]) or head
            head = part.rope and plain_rope(head, part.rope) or head
        end
        heads[i] = head
    end
    return heads
end

local function plain_attention(h, part, weights)
    local q = plain_heads(h, part, part.heads, weights, "query")
    local k = plain_heads(h, part, part.kv_heads, weights, "key")
    local v = plain_heads(h, part, part.kv_heads, weights, "value")
    local seen = filled(S, S, function(r, c)
        return c <= r and (part.window == 0 or c > r - part.window) and 1 or 0
    end)
    local outputs = {}
    for i = 1, part.heads do
        local kv = (i - 1) // (part.heads // part.kv_heads) + 1
        local scores = mx.matmul(q[i], mx.transpose(k[kv])) * part.scale
        scores = part.cap > 0 and (scores / part.cap):tanh() * part.cap or scores
        local shares = scores:exp() * seen
        outputs[i] = mx.matmul(shares / row_sums(shares), v[kv])
    end
    return mx.matmul(mx.concat(outputs, { dim = 2 }), weights["out.weight"])
end

local ACTIVATIONS = {
    gelu = function(x) return x * 0.5 * (((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)):tanh() + 1) end,
    silu = function(x) return x / ((x * -1):exp() + 1) end,
    relu = function(x) return (x + x:abs()) / 2 end,
}

local function plain_mlp(h, part, weights)
    local function product(x, name)
        local y = mx.matmul(x, weights[name .. ".weight"])
        return weights[name .. ".bias"] and y + weights[name .. ".bias"] or y
    end
    local inner = ACTIVATIONS[part.activation](product(h, part.gated and "wi_0" or "wi"))
    return product(part.gated and inner * product(h, "wi_1") or inner, "wo")
end

local function plain_layer(x, block, weights)
    local function norm(y, name, where, place)
        return (where == place or where == "both")
            and plain_norm(y, block.norm, weights[name .. ".weight"], weights[name .. ".bias"]) or y
    end
    local h = norm(x, "norm", block.norms.attention, "before")
    local attended = plain_attention(h, block.attention, weights)
    if block.parallel then
        return x + attended + plain_mlp(h, block.mlp, weights)
    end
    x = x + norm(attended, "post_norm", block.norms.attention, "after")
    h = norm(x, "mlp_norm", block.norms.mlp, "before")
    return x + norm(plain_mlp(h, block.mlp, weights), "mlp_post_norm", block.norms.mlp, "after")
end

-- The mean cross-entropy of a batch of one sequence.
local function plain_loss(shape, params, batch)
    local function one_hot(ids)
        local list = ids:view(S):totable()
        return filled(S, shape.vocab, function(r, c) return list[r] == c - 1 and 1 or 0 end)
    end
    local x = mx.matmul(one_hot(batch.tokens), params["embedding.weight"])
    for i, block in ipairs(shape.blocks) do
        local weights, prefix = {}, ("layer%03d."):format(i)
        for name, t in pairs(params) do
            if name:sub(1, #prefix) == prefix then
                weights[name:sub(#prefix + 1)] = t
            end
        end
        x = plain_layer(x, block, weights)
    end
    local logits = mx.matmul(plain_norm(x, shape.norm, params["norm.weight"]), params["unembedding.weight"])
    return mx.mean(row_sums(logits:exp()):log() - row_sums(logits * one_hot(batch.targets)))
end

-- The loss and all gradients, which are then cleared.
local function gradients(params, fn)
    local step <close> = mx.step()
    local loss, grads = fn(), {}
    mx.backward(loss)
    for name, t in pairs(params) do
        grads[name] = t:grad():clone():keep()
        t:zero_grad()
    end
    return loss:item(), grads
end

function TestBlocks.test_against_plain_operations()
    local model, batch = new_model(), new_batch()
    local loss, grads = gradients(model.params, function() return model:loss(batch) end)
    local expected, plain = gradients(model.params, function() return plain_loss(model.shape, model.params, batch) end)
    lu.assertAlmostEquals(loss, expected, 1e-5)
    for name, grad in pairs(plain) do
        local off = compare.distance(grads[name], grad)
        lu.assertTrue(off < 2e-5, ("the gradient of %s is off by %g"):format(name, off))
    end
end

-- The comparison sees what a layer has of its own: without it the loss is another one.
function TestBlocks.test_each_difference_counts()
    local model, batch = new_model(), new_batch()
    local reference = model:loss(batch):item()
    for what, change in pairs({
        frequencies = function(blocks) blocks[3].attention.rope.frequencies[2] = 0.4 end,
        window = function(blocks) blocks[1].attention.window = 0 end,
        theta = function(blocks) blocks[2].attention.rope.theta = 10000.0 end,
        no_rope = function(blocks) blocks[2].attention.rope = false end,
        norm = function(blocks) blocks[2].norm.kind = "rmsnorm" end,
        activation = function(blocks) blocks[3].mlp.activation = "silu" end,
        before = function(blocks) blocks[2].norms.attention = "after" end,
        after = function(blocks) blocks[2].norms.attention = "before" end,
        offset = function(blocks) blocks[2].norm.offset = 0 end,
        whole = function(blocks) blocks[3].attention.qk_norm = false end,
        cap = function(blocks) blocks[4].attention.cap = 0 end,
        order = function(blocks) blocks[4].parallel = false end,
    }) do
        local shape = model.shape
        model.shape = mx.models.copy(shape)
        change(model.shape.blocks)
        local ok, loss = pcall(function() return model:loss(batch):item() end)
        model.shape = shape
        lu.assertTrue(not ok or math.abs(loss - reference) > 1e-5, what)
    end
end

function TestBlocks.test_policies_change_no_bit()
    local model, batch = new_model(), new_batch()
    local reference, expected
    for _, policy in ipairs({ "none", "full", "minimal", "minimal_with_context", "minimal_offloaded" }) do
        model.shape.remat = policy
        local loss, grads = gradients(model.params, function() return model:loss(batch) end)
        reference, expected = reference or loss, expected or grads
        lu.assertEquals(loss, reference, policy)
        for name, grad in pairs(grads) do
            lu.assertEquals(grad:totable(), expected[name]:totable(), policy .. " " .. name)
        end
    end
end

-- A list of frequencies is another way to say theta, scaled or for a part of a head; a formula of its own changes the
-- model.
function TestBlocks.test_frequencies()
    local model, batch = new_model(), new_batch()
    local function loss_with(rope)
        model.shape.blocks[1].attention.rope = rope
        return model:loss(batch):item()
    end
    local function frequencies(theta, dims)
        local list = {}
        for i = 1, dims // 2 do
            list[i] = theta ^ (-2 * (i - 1) / dims)
        end
        return list
    end
    local whole = loss_with { theta = 10000.0 }
    lu.assertAlmostEquals(loss_with { frequencies = frequencies(10000.0, 16) }, whole, 1e-6)
    local half = loss_with { theta = 10000.0, dims = 8, factor = 1.5 }
    lu.assertAlmostEquals(loss_with { frequencies = frequencies(10000.0, 8), dims = 8, factor = 1.5 }, half, 1e-6)
    local neighbours = loss_with { theta = 10000.0, interleaved = true }
    for _, pair in ipairs({ { whole, half }, { whole, neighbours }, { half, neighbours } }) do
        lu.assertTrue(math.abs(pair[1] - pair[2]) > 1e-5)
    end
    local policies = {}
    model.shape.blocks[1].attention.rope = { frequencies = frequencies(300.0, 16) }
    for i, policy in ipairs({ "none", "full" }) do
        model.shape.remat = policy
        local _, grads = gradients(model.params, function() return model:loss(batch) end)
        policies[i] = grads["layer001.query.weight"]:totable()
    end
    lu.assertEquals(policies[2], policies[1])
    lu.assertErrorMsgContains("no field 'tehta'", loss_with, { tehta = 1 })
    lu.assertErrorMsgContains("which they replace", loss_with, { theta = 1, frequencies = frequencies(300.0, 16) })
end

-- Token by token, and several at a time, from caches of each layer's size: layers with a window of 5 keep 5 tokens.
function TestBlocks.test_cache()
    local model = new_model()
    mx.no_grad(function()
        local step <close> = mx.step()
        local tokens = new_batch().tokens
        local whole = model:hidden(tokens)
        for _, lengths in ipairs({ { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }, { 4, 1, 1, 6 }, { 7, 1, 1, 3 },
            { 2, 5, 4, 1 }, { 12 } }) do
            local cache, offset = model:new_cache(1, S), 0
            lu.assertEquals(cache[1].key:size(), { 1, 5, 2, 16 })
            lu.assertEquals(cache[4].value:size(), { 1, S, 4, 8 })
            for _, n in ipairs(lengths) do
                local part = mx.narrow(tokens, { dim = 2, start = offset + 1, length = n })
                local h = model:hidden(part, { cache = cache, offset = offset })
                local expected = mx.narrow(whole, { dim = 2, start = offset + 1, length = n })
                lu.assertTrue(compare.distance(h, expected) < 1e-5, ("%d tokens from %d on"):format(n, offset))
                offset = offset + n
            end
        end
    end)
end

-- Codes with a scale for each token or head: within half a step of what they stand for (e4m3: a sixteenth of it), the
-- same in any pieces, and near the tokens' results without codes.
function TestBlocks.test_quantized_cache()
    local model = new_model()
    local function run(lengths)
        return mx.scope(function()
            local cache, offset, h = model:new_cache(1, S), 0, {}
            for i, n in ipairs(lengths) do
                local part = mx.narrow(new_batch().tokens, { dim = 2, start = offset + 1, length = n })
                h[i] = model:hidden(part, { cache = cache, offset = offset })
                offset = offset + n
            end
            return mx.concat(h, { dim = 2 }), cache
        end)
    end
    mx.no_grad(function()
        local step <close> = mx.step()
        local want, exact = run { 12 }
        for _, dtype in ipairs { "i8", "e4m3" } do
            for _, by_head in ipairs { false, true } do
                model.shape.cache = { dtype = dtype, by_head = by_head }
                local h, cache = run { 12 }
                lu.assertTrue(compare.distance(h, want) < 0.1 and compare.distance(h, want) > 1e-4)
                for _, lengths in ipairs({ { 4, 1, 1, 6 }, { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 } }) do
                    -- the largest magnitude is 127.5 steps, which rounds to 127 or 128 by its last bit
                    lu.assertTrue(compare.distance(run(lengths), h) < (dtype == "i8" and 0.01 or 1e-5), dtype)
                end
                for name, t in pairs(exact[1]) do
                    local codes, scale = cache[1][name], cache[1][name .. "_scale"]
                    lu.assertEquals(codes:dtype(), dtype)
                    lu.assertEquals(scale:size(), { 1, 5, by_head and 2 or 1, 1 })
                    local step_size = dtype == "i8" and scale / 2 or mx.maximum(t:abs() / 16, scale / 1024)
                    lu.assertEquals(((codes:to("f32") * scale - t):abs() - step_size * 1.001):gt(0):any():item(), 0)
                    local largest = by_head and t:abs():max { dim = 4, keepdim = true }
                        or t:abs():view(1, 5, 1, 32):max { dim = 4, keepdim = true }
                    local bound = dtype == "i8" and 127.5 or 448
                    lu.assertTrue(((scale * bound / largest) - 1):abs():max():item() < 1e-6)
                end
            end
        end
    end)
    local function load(...)
        return mx.config.load { "model_name=tiny", "quantize_kvcache=true", ... }
    end
    local shape = mx.models.shape(load("kv_quant_axis=dkv", "kv_quant_dtype=fp8"))
    lu.assertEquals(shape.cache, { dtype = "e4m3", by_head = true })
    -- 2 layers of 2 x 2 x 16 codes, and 2 x 2 scales of 4 bytes
    lu.assertEquals(mx.models.cache_bytes(shape, 1, 10), 2 * 10 * (64 + 16))
    lu.assertStrContains(mx.generate.memory(shape, 1 << 20), "keep 160.0 MiB of 1,048,576 tokens, without codes 256")
    lu.assertErrorMsgContains("kv_quant_dtype: expected one of", load, "kv_quant_dtype=int2")
    lu.assertErrorMsgContains("codes of 4 bits are not there", load, "kv_quant_dtype=int4")
    lu.assertErrorMsgContains("kv_quant_axis", mx.config.load, { "model_name=tiny", "kv_quant_axis=dkv" })
    lu.assertErrorMsgContains("quantize_kvcache: expected false: attention_type = mla does not have it", load,
        "model_name=deepseek2-16b")
end

-- Keys and values of 5 or all tokens, in f32: 2 x 16 elements each in layers 1 to 3, 4 x 8 in layer 4.
function TestBlocks.test_memory_of_a_cache()
    local shape = mixed.shape(config_of())
    lu.assertEquals(mx.models.cache_bytes(shape, 3, 40), 3 * 2 * 32 * (5 + 40 + 5 + 40) * 4)
    lu.assertEquals(mx.models.cache_bytes(shape, 1, 3), 2 * 32 * 4 * 3 * 4)
    lu.assertStrContains(mx.generate.memory(shape, 40000), "keep 19.5 MiB of 40,000 tokens, without windows 39.1 MiB")
    lu.assertNil(mx.generate.memory(shape, 5))
end

-- ---- counts ----

function TestBlocks.test_parameters()
    local model, n = new_model(), 0
    for _, t in pairs(model.params) do
        n = n + t:numel()
    end
    lu.assertEquals(mx.models.count(model.shape), n)
    lu.assertEquals(model.params["layer001.wi.weight"]:size(), { 64, 96 })
    lu.assertEquals(model.params["layer002.wi_1.weight"]:size(), { 64, 128 })
    lu.assertNotNil(model.params["layer002.post_norm.bias"])
    lu.assertNotNil(model.params["layer002.mlp_post_norm.weight"])
    lu.assertNil(model.params["layer002.mlp_norm.weight"])
    lu.assertEquals(model.params["layer003.key_norm.weight"]:size(), { 32 })
    lu.assertNil(model.params["layer004.mlp_norm.weight"])
end

function TestBlocks.test_norms_of_a_parallel_block()
    local shape = mixed.shape(config_of())
    shape.blocks[4].norms.mlp = "both"
    lu.assertErrorMsgContains("a parallel block has one norm", mx.models.new, shape)
end

-- FLOPs of the operations that the profiler saw, against the counts of flops.lua.
function TestBlocks.test_flops()
    local model, batch = new_model(), new_batch()
    local found = {}
    mx.no_grad(function()
        local step <close> = mx.step()
        mx.profile(true)
        local h = model:hidden(batch.tokens)
        mx.profile(false)
        assert(h)
    end)
    for _, row in ipairs(mx.profile_report()) do
        found[row.op] = (found[row.op] or 0) + row.flops
    end
    local products, attention, formula = 0, 0, 0
    for _, block in ipairs(model.shape.blocks) do
        local a, m, pairs_seen = block.attention, block.mlp, 0
        for i = 1, S do
            pairs_seen = pairs_seen + (a.window > 0 and math.min(i, a.window) or i)
        end
        local width, window = a.heads * a.head_dim, a.window > 0 and a.window or S
        attention = attention + 4 * pairs_seen * width
        formula = formula + 4 * (S * window - window * window / 2) * width
        products = products + 2 * S * 64 * (2 * width + 2 * a.kv_heads * a.head_dim + m.width * (m.gated and 3 or 2))
    end
    lu.assertEquals(found.matmul, products)
    lu.assertEquals(found.attention, attention)
    lu.assertEquals(mx.flops.layers_forward(model.shape, 1, S), products + formula)
    local step = mx.flops.step("maxtext-2025-07", model.shape, mx.models.count(model.shape), 1, S)
    lu.assertEquals(step, 3.0 * (products + formula + 2 * S * 64 * 256))
end

-- ---- kinds ----

-- A shape of so many layers with these windows in turn.
local function windows(layers, ...)
    local shape = mx.models.shape(config_of())
    local block = shape.blocks[1]
    shape.layers, shape.blocks = layers, {}
    for i, window in ipairs({ ... }) do
        shape.blocks[i] = mx.models.copy(block)
        shape.blocks[i].attention.window = window
    end
    return shape
end

local function windows_of(shape)
    local list = {}
    for i = 1, shape.layers do
        list[i] = mx.models.block(shape, i).attention.window
    end
    return list
end

function TestBlocks.test_blocks_in_turn()
    local shape = windows(7, 4, 4, 0)
    lu.assertEquals(windows_of(shape), { 4, 4, 0, 4, 4, 0, 4 })
    local kinds = mx.models.kinds(shape)
    lu.assertEquals(#kinds, 2)
    lu.assertEquals({ kinds[1].count, kinds[2].count }, { 5, 2 })
    lu.assertEquals(#mx.models.kinds(windows(2, 4, 4, 0)), 1) -- the third is in no layer
    local each = mx.models.by_layer(shape)
    each.blocks[7].attention.window = 1
    lu.assertEquals(windows_of(each), { 4, 4, 0, 4, 4, 0, 1 })
    lu.assertEquals(windows_of(shape), { 4, 4, 0, 4, 4, 0, 4 })
    lu.assertEquals(mx.models.kinds(windows(1000000007, 4, 0))[2].count, 500000003) -- at once
end

function TestBlocks.test_cut_keeps_the_share_of_each_kind()
    lu.assertEquals(windows_of(mx.models.cut(windows(12, 4, 4, 0), 6)), { 4, 0, 4, 4, 0, 4 })
    lu.assertEquals(windows_of(mx.models.cut(windows(48, 4, 4, 4, 4, 4, 0), 2)), { 4, 0 }) -- at least one of each
    lu.assertEquals(windows_of(mx.models.cut(windows(4, 0, 4, 4, 4), 3)), { 0, 4, 4 }) -- the first layer stays first
    local most = mx.models.cut(windows(1000, 4, 4, 0), 100)
    lu.assertEquals(most.layers, 100)
    lu.assertEquals(mx.models.kinds(most)[2].count, 33)
    lu.assertEquals(windows_of(mx.models.cut(windows(12, 4, 4, 0), 12)), windows_of(windows(12, 4, 4, 0)))
    lu.assertErrorMsgContains("1 layers for 2 kinds", mx.models.cut, windows(4, 0, 4), 1)
end

-- ---- plans ----

function TestBlocks.test_a_simulated_step()
    local config = config_of("remat_policy=minimal")
    local function plan(shape)
        return mx.plan.simulate(config, "v5e-1", 1, { shape = shape, profile = true })
    end
    local result, shape = plan(mixed.shape(config)), mixed.shape(config)
    lu.assertEquals(result.params, mx.models.count(shape))
    lu.assertEquals(result.weights, 4 * result.params)
    lu.assertEquals({ result.kept.mlpwi.count, result.kept.mlpwi_0.count, result.kept.query_proj.count }, { 2, 2, 4 })
    lu.assertEquals(result.kept.mlpwi.bytes, 4 * S * 2 * 96)
    local calls = 0
    for _, row in ipairs(result.operations) do
        calls = calls + (row.op == "layernorm" and row.calls or 0)
    end
    lu.assertEquals(calls, 6) -- the three of layer 2, computed again by backward
    -- Where there are too many layers, some of each kind stand for all.
    local few, many = plan(windows(120, 4, 4, 0)), plan(windows(360, 4, 4, 0))
    lu.assertAlmostEquals(many.weights / (many.params * 4), 1, 1e-9)
    lu.assertAlmostEquals(many.step_s / few.step_s, 3, 0.2)
end

-- What two layers send is what each would send in a model of its own, half of it.
function TestBlocks.test_rows_of_the_roofline()
    local config = mx.config.load({
        "model_name=tiny", "max_target_length=64", "ici_context_parallelism=2", "ici_tensor_parallelism=2",
        "hardware=v5e-4", "context_parallel_load_balance=false", "context_parallel_strategy=ring",
    }, { simulate = false, options = { ranks = -1, peak_tflops = 0.0, link_gbps = 0.0, dcn_gbps = 0.0 } })
    local function rows(change_first, change_second)
        local shape = mx.models.by_layer(mx.models.shape(config))
        change_first(shape.blocks[1])
        change_second(shape.blocks[2])
        local plan, found = mx.mesh.plan(config, 4), {}
        for _, row in ipairs((mx.roofline.rows(config, plan, mx.roofline.machine(config), shape))) do
            found[row.axis .. ": " .. row.what:match("^[%a ]+")] = row
        end
        return found
    end
    local function narrow(block)
        block.attention.window, block.mlp.width = 8, 32
    end
    local function as_it_is() end
    local one, other, both = rows(narrow, narrow), rows(as_it_is, as_it_is), rows(narrow, as_it_is)
    local compared = 0
    for name, row in pairs(both) do
        if name:find("keys and values") or name:find("inputs and output") then
            lu.assertAlmostEquals(row.flops, (one[name].flops + other[name].flops) / 2, 1e-6 * row.flops, name)
            lu.assertAlmostEquals(row.bytes, (one[name].bytes + other[name].bytes) / 2, 1e-6 * row.bytes, name)
            compared = compared + 1
        end
    end
    lu.assertEquals(compared, 3)
    lu.assertTrue(one["context: keys and values"].flops < other["context: keys and values"].flops)
    local name = "tensor: inputs and output of the MLP"
    lu.assertTrue(one[name].flops < other[name].flops)
end

function TestBlocks.test_a_benchmark_keeps_a_layer_of_each_kind()
    local chip = mx.bench.chip_shape("32b", mx.models.shape(mx.config.load { "model_name=32b" }))
    local block = chip.blocks[1]
    chip.blocks = { block, mx.models.copy(block), block }
    chip.blocks[2].mlp.width = 1024
    local full = { layers = 32, least_layers = #mx.models.kinds(chip), length = 2048, sequences = 1 }
    local function needs(layers, sequences, length)
        return layers * sequences * length, 1000
    end
    local cut = mx.bench.plan(needs, full, { memory = 1e15, seconds = 60 })
    lu.assertEquals({ cut.layers, cut.length }, { 2, 256 })
    local ok, message = pcall(mx.bench.plan, needs, full, { memory = 256, seconds = 60 })
    lu.assertFalse(ok)
    lu.assertStrContains(tostring(message), "a layer of each of 2 kinds needs")
end

function TestBlocks.test_names_for_policies()
    local names = mx.models.tensors(mixed.shape(config_of()))
    lu.assertEquals(names, { "decoder_layer_input", "query_proj", "key_proj", "value_proj", "context", "out_proj",
        "mlpwi_0", "mlpwi_1", "mlpwi", "mlpwo" })
end

-- No family of other programs has layers of these kinds.
function TestBlocks.test_no_export()
    lu.assertErrorMsgContains("its layers differ", mx.weights.save, new_model(), "/nonexistent")
end
