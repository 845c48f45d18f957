-- ranks: 2 4
-- Weights of other programs on a mesh: a rank reads its parts, rank 0 writes what all have, and ranks share out the
-- windows of an evaluation.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

local GOLDEN = mx.root .. "tests/golden/weights/"
local MESHES = {
    [2] = { "fsdp", "tensor", "context" },
    [4] = { "fsdp", "fsdp tensor" },
}

-- The ranks on these axes, two on each or all on a single one.
local function words_of(axes)
    local words, n = { "dtype=float32", "ici_fsdp_parallelism=1" }, select(2, axes:gsub("%a+", ""))
    for axis in axes:gmatch("%a+") do
        local word = ("ici_%s_parallelism=%d"):format(axis, n == 1 and mx.ranks() or 2)
        words[axis == "fsdp" and 2 or #words + 1] = word
    end
    return words
end

-- One folder for all ranks.
local function shared_folder()
    return mx.share_text(mx.rank() == 0 and os.tmpname() or nil) .. ".d"
end

local function remove(folder)
    mx.barrier()
    if mx.rank() == 0 then
        os.execute("rm -rf '" .. folder .. "'")
        os.remove((folder:gsub("%.d$", "")))
    end
end

local function largest(t)
    return mx.max(mx.abs(t)):item()
end

TestWeightsOnAMesh = {}

-- Loads models on meshes: each rank's parts make the same whole tensors as on one rank.
local function assert_parts_make_the_whole(names, meshes)
    for _, name in ipairs(names) do
        local alone = mx.weights.model(GOLDEN .. name, { mesh = false, words = { "dtype=float32" } })
        for _, axes in ipairs(meshes) do
            local model = mx.weights.model(GOLDEN .. name, { words = words_of(axes) })
            lu.assertNotNil(model.parallel)
            for key, t in util.sorted_pairs(model.params) do
                mx.scope(function()
                    local whole = model.parallel:whole(key, t:detach()):wait()
                    lu.assertEquals(largest(whole - alone.params[key]:detach()), 0.0, name .. " " .. axes .. " " .. key)
                end)
            end
        end
    end
end

function TestWeightsOnAMesh.test_parts_make_the_whole()
    assert_parts_make_the_whole({ "llama31", "llama31.gguf", "qwen2", "qwen3", "gpt2", "gpt2.gguf", "gemma3", "olmo3" },
        MESHES[mx.ranks()])
end

-- Ranks have all experts, parts of each, or experts of their own: five experts on two ranks are three and two.
function TestWeightsOnAMesh.test_experts()
    assert_parts_make_the_whole({ "mixtral", "mixtral_fused", "qwen3_moe", "qwen3_moe_fused", "qwen3_moe.gguf" },
        mx.ranks() == 2 and { "fsdp", "tensor", "expert" } or { "fsdp expert", "tensor expert" })
end

-- A rank reads some rows of a matrix of one-byte floats, with the factors of its blocks; every rank has all biases.
function TestWeightsOnAMesh.test_latent_attention()
    if mx.ranks() == 2 then
        assert_parts_make_the_whole({ "deepseek_v2", "deepseek_v3", "kimi_k2" }, { "fsdp", "tensor", "expert" })
        for _, name in ipairs({ "deepseek_v3", "kimi_k2" }) do
            local alone = mx.weights.model(GOLDEN .. name, { mesh = false })
            local model = mx.weights.model(GOLDEN .. name, { words = words_of("expert") })
            for key, t in util.sorted_pairs(alone.buffers) do
                lu.assertEquals(largest(model.buffers[key] - t), 0.0)
                lu.assertTrue(largest(t) > 0)
            end
        end
    end
end

function TestWeightsOnAMesh.test_saved_from_a_mesh()
    for _, name in ipairs({ "llama31", "gpt2", "mixtral", "deepseek_v2" }) do
        local has_experts = name == "mixtral" or name == "deepseek_v2"
        for _, axes in ipairs(has_experts and mx.ranks() == 2 and { "expert" } or MESHES[mx.ranks()]) do
            local folder = shared_folder()
            local model = mx.weights.model(GOLDEN .. name, { words = words_of(axes) })
            mx.weights.save(model, folder, { max_shard_size = 30000, dtype = "bf16" })
            local ours <close> = mx.weights.open(folder)
            for key, entry in util.sorted_pairs(ours.tensors) do
                local theirs <close> = mx.weights.open(GOLDEN .. name)
                lu.assertEquals(entry.dtype, "bf16")
                lu.assertEquals(largest(ours:read(key):to("f32") - theirs:read(key):to("f32")), 0.0, key)
            end
            remove(folder)
        end
    end
end

-- The sums of the ranks are added in f32.
function TestWeightsOnAMesh.test_evaluation()
    local o = { mesh = false, words = { "dtype=float32" } }
    local tokens = mx.rand({ shape = { 101 }, high = 96, seed = 4 }):to("i32")
    local how = { context = 20, stride = 12, batch = 2 }
    for _, name in ipairs({ "qwen3", "gpt2" }) do
        local expected = mx.evaluate.loss(mx.weights.model(GOLDEN .. name, o), tokens, how)
        for _, axes in ipairs(MESHES[mx.ranks()]) do
            local words = words_of(axes)
            words[#words + 1] = "max_target_length=20"
            local model = mx.weights.model(GOLDEN .. name, { words = words })
            lu.assertAlmostEquals(mx.evaluate.loss(model, tokens, how) / expected, 1, 1e-6, name .. " " .. axes)
        end
    end
end

function TestWeightsOnAMesh.test_a_refusal_reaches_every_rank()
    local folder = shared_folder()
    local model = mx.weights.model(GOLDEN .. "llama2", { words = words_of("fsdp") })
    mx.weights.save(model, folder)
    local ok, problem = pcall(mx.weights.save, model, folder)
    lu.assertFalse(ok)
    lu.assertStrContains(tostring(problem), "holds a model already")
    remove(folder)
end
