--- QK-clip: the largest scores of heads, and the weights after a step.
-- guarded

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local compare, checks = dofile(here .. "compare.lua"), dofile(here .. "checks.lua")

TestQkClip = {}

local B, S, H, N, R, L, V = 2, 16, 4, 8, 4, 10, 6

local function new_model(...)
    return mx.models.new(mx.config.load {
        "model_name=tiny", "dtype=float32", "decoder_block=deepseek", "base_num_kv_heads=4", "q_lora_rank=12",
        "kv_lora_rank=10", "qk_nope_head_dim=8", "qk_rope_head_dim=4", "v_head_dim=6", "use_qk_clip=true", ...,
    })
end

local function new_batch()
    local ids = mx.rand({ shape = { B, S + 1 }, high = 256, seed = 3 }):to("i32")
    return {
        tokens = mx.narrow(ids, { dim = 2, start = 1, length = S }),
        targets = mx.narrow(ids, { dim = 2, start = 2, length = S }),
    }
end

-- The largest scores of the heads of layer 1, from the formulas of latent attention, score by score.
local function expected_of(model, tokens)
    local function weight(name)
        return model.params[name .. ".weight"]:detach()
    end
    local function norm(x, name)
        return mx.rmsnorm(x, weight(name), { eps = 1e-5 })
    end
    local h = norm(mx.embedding(weight "embedding", tokens), "layer001.norm")
    local q = norm(mx.matmul(h, weight "layer001.query_a"), "layer001.query_a_norm")
    q = mx.matmul(q, weight "layer001.query_b")
    local down = mx.matmul(h, weight "layer001.kv_a")
    local latent = norm(mx.narrow(down, { dim = 3, start = 1, length = L }), "layer001.kv_a_norm")
    local up = mx.matmul(latent, weight "layer001.kv_b"):view(B, S, H, N + V)
    local theta = { theta = model.shape.blocks[1].attention.rope.theta }
    local rotated = mx.rope(mx.narrow(down, { dim = 3, start = L + 1, length = R }):view(B, S, 1, R), nil, nil, theta)
    q = q:view(B, S, H, N + R)
    local q_rotated = mx.rope(mx.narrow(q, { dim = 4, start = N + 1, length = R }), nil, nil, theta)
    local list = { q:totable(), q_rotated:totable(), up:totable(), rotated:totable() }
    local most = { -math.huge, -math.huge, -math.huge, -math.huge }
    for b = 1, B do
        for i = 1, S do
            for j = 1, i do
                for head = 1, H do
                    local score = 0
                    for d = 1, N do
                        score = score + list[1][b][i][head][d] * list[3][b][j][head][d]
                    end
                    for d = 1, R do
                        score = score + list[2][b][i][head][d] * list[4][b][j][1][d]
                    end
                    most[head] = math.max(most[head], score / math.sqrt(N + R))
                end
            end
        end
    end
    return most
end

local function pass(model, batch)
    model.qk_clip:start()
    model:loss(batch)
    return model.qk_clip.largest[1]:totable()
end

function TestQkClip.test_largest_scores()
    local step <close> = mx.step()
    local model, batch = new_model(), new_batch()
    local expected = expected_of(model, batch.tokens)
    local bytes = util.PIECE_BYTES
    for _, rows in ipairs({ S, 5, 1 }) do
        util.PIECE_BYTES = 4 * H * S * rows
        for head, s in ipairs(pass(model, batch)) do
            lu.assertAlmostEquals(s / expected[head], 1, 1e-5)
        end
    end
    util.PIECE_BYTES = bytes
    model:loss { tokens = mx.zeros({ 1, S }, "i32"), targets = mx.zeros({ 1, S }, "i32") } -- a further pass keeps them
    for head, s in ipairs(model.qk_clip.largest[1]:totable()) do
        lu.assertTrue(s >= expected[head] - 1e-5)
    end
    model:loss(batch, true) -- evaluation notes none
    local found = model.qk_clip.largest[1]:totable()
    lu.assertEquals(found, model.qk_clip.largest[1]:totable())
end

-- Queries attend to keys of their document only.
function TestQkClip.test_documents()
    local step <close> = mx.step()
    local model, batch = new_model(), new_batch()
    local function part(first, length)
        local cut = {}
        for name, t in pairs(batch) do
            cut[name] = mx.narrow(t, { dim = 2, start = first, length = length })
        end
        return cut
    end
    local a, b = pass(model, part(1, 6)), pass(model, part(7, 10))
    batch.segments = mx.concat({ mx.zeros({ B, 6 }, "i32"), mx.ones({ B, 10 }, "i32") }, { dim = 2 })
    local positions = mx.concat({ mx.arange { n = 6, dtype = "i32" }, mx.arange { n = 10, dtype = "i32" } },
        { dim = 1 })
    batch.positions = mx.zeros({ B, S }, "i32") + positions:view(1, S)
    for head, s in ipairs(pass(model, batch)) do
        lu.assertAlmostEquals(s, math.max(a[head], b[head]), 1e-5)
    end
end

-- The scores of heads above the threshold become the threshold; other heads, values and the keys' part for RoPE stay.
function TestQkClip.test_weights_after_a_step()
    local step <close> = mx.step()
    local model, batch = new_model("qk_clip_threshold=3.2"), new_batch()
    local before, scores = {}, pass(model, batch)
    for name, t in pairs(model.params) do
        before[name] = t:detach():clone()
    end
    model:after_step()
    lu.assertEquals(model:figures().max_logit, model.qk_clip.found)
    local changed = 0
    for head, s in ipairs(scores) do
        local f = math.min(1, 3.2 / (s + 1e-6))
        changed = changed + (f < 1 and 1 or 0)
        for name, o in pairs({ query_b = { N + R, N, f }, kv_b = { N + V, N, 1 } }) do
            name = ("layer001.%s.weight"):format(name)
            local function columns(t, first, n)
                return mx.narrow(t, { dim = 2, start = (head - 1) * o[1] + first, length = n })
            end
            local now, was = model.params[name]:detach(), before[name]
            lu.assertTrue(compare.distance(columns(now, 1, o[2]), columns(was, 1, o[2]) * math.sqrt(f)) < 1e-6)
            lu.assertTrue(compare.distance(columns(now, o[2] + 1, o[1] - o[2]),
                columns(was, o[2] + 1, o[1] - o[2]) * o[3]) < 1e-6)
        end
    end
    lu.assertTrue(changed > 0 and changed < H)
    for _, name in ipairs({ "query_a", "kv_a", "out" }) do
        name = ("layer001.%s.weight"):format(name)
        lu.assertEquals(mx.max(mx.abs(model.params[name] - before[name])):item(), 0.0)
    end
    for head, s in ipairs(pass(model, batch)) do
        lu.assertAlmostEquals(s, math.min(scores[head], 3.2), 1e-5)
    end
end

-- Queries without a latent, bf16 weights, a simulated step, and frozen parameters.
function TestQkClip.test_other_models()
    local step <close> = mx.step()
    local batch = new_batch()
    local plain = new_model("q_lora_rank=0", "qk_clip_threshold=0.5", "weight_dtype=bfloat16")
    pass(plain, batch)
    plain:after_step()
    for _, s in ipairs(pass(plain, batch)) do
        lu.assertAlmostEquals(s, 0.5, 1e-2) -- weights are rounded
    end
    local frozen = new_model("qk_clip_threshold=0.5", "trainable_parameters_mask=[.*kv_b.*]")
    local query = frozen.params["layer001.query_b.weight"]:detach():clone()
    pass(frozen, batch)
    frozen:after_step()
    lu.assertEquals(mx.max(mx.abs(frozen.params["layer001.query_b.weight"] - query)):item(), 0.0)
    local config = mx.config.load {
        "model_name=deepseek2-16b", "base_num_decoder_layers=3", "use_qk_clip=true", "per_device_batch_size=1",
        "max_target_length=2048",
    }
    lu.assertTrue(mx.plan.simulate(config, "v5p-16", 1).step_s > 0)
end

function TestQkClip.test_refusals()
    local function refused(text, ...)
        checks.assert_refused({ text }, mx.config.load, { "model_name=tiny", ... })
    end
    refused("use_qk_clip has no effect with attention_type = global", "use_qk_clip=true")
    checks.assert_refused({ "qk_clip_threshold has no effect" }, new_model, "use_qk_clip=false", "qk_clip_threshold=9")
    checks.assert_refused({ "expected false with attn_logits_soft_cap" }, new_model, "attn_logits_soft_cap=9")
end
