-- Llama 4: the temperature of queries, chunks, layers without RoPE, and what its folders can hold.
-- guarded

local lu = require "luaunit"
local mx = require "mx"
local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local checks, compare = dofile(here .. "checks.lua"), dofile(here .. "compare.lua")

TestLlama4 = {}

local GOLDEN = mx.root .. "tests/golden/weights/"
local F32 = { words = { "dtype=float32" } }

-- Which layers have what: chunks and RoPE, or neither; norms of queries and keys where there is RoPE; and experts.
function TestLlama4.test_layers()
    local shape, list = mx.models.shape(mx.config.load { "model_name=llama4-17b-128e", "use_qk_norm=true" }), {}
    for i = 1, 8 do
        local block = mx.models.block(shape, i)
        local attention = block.attention
        list[i] = ("%s %s %s %s %s"):format(attention.chunk or "all", attention.rope and "rope" or "nope",
            attention.rotated_norm and "norm" or "-", attention.temperature and "temperature" or "-", block.mlp.kind)
    end
    local chunk, all = "8192 rope norm - ", "all nope - temperature "
    for i = 1, 8, 4 do
        lu.assertEquals(table.move(list, i, i + 3, 1, {}),
            { chunk .. "mlp", chunk .. "moe", chunk .. "mlp", all .. "moe" })
    end
    -- attention_type=chunk is for other blocks.
    shape = mx.models.shape(mx.config.load { "model_name=tiny", "attention_type=chunk", "chunk_attn_window_size=4" })
    lu.assertEquals({ shape.blocks[1].attention.chunk, #shape.blocks }, { 4, 1 })
end

-- The temperature steps every 4 tokens here instead of every 8192: logits of transformers with floor_scale = 4.
function TestLlama4.test_temperature()
    local step <close> = mx.step()
    local model = mx.weights.model(GOLDEN .. "llama4", F32)
    local expected = checks.read_all(GOLDEN .. "llama4/expected.safetensors")
    for _, block in ipairs(model.shape.blocks) do
        if block.attention.temperature then
            block.attention.temperature.tokens = 4
        end
    end
    local function logits(run)
        return mx.no_grad(function() return model:logits(model:hidden(expected.tokens, run)) end)
    end
    checks.assert_close(logits(), expected.logits_floor_4, 5e-6, "floor_scale 4")
    lu.assertTrue(compare.distance(logits(), expected.logits) > 1e-3)
    -- The same with the positions given, and with a cache.
    local positions = mx.arange { n = 40, dtype = "i32" }:view(2, 20)
    positions = positions - mx.tensor({ { 0 }, { 20 } }, "i32")
    checks.assert_close(logits { positions = positions }, expected.logits_floor_4, 5e-6, "positions")
    mx.no_grad(function()
        local cache = model:new_cache(2, 20)
        for _, range in ipairs { { 0, 13 }, { 13, 1 }, { 14, 6 } } do
            local cut = { dim = 2, start = range[1] + 1, length = range[2] }
            local h = model:hidden(mx.narrow(expected.tokens, cut), { cache = cache, offset = range[1] })
            checks.assert_close(model:logits(h), mx.narrow(expected.logits_floor_4, cut), 5e-6, "cache")
        end
    end)
end

-- A folder with a part for images: the text is read.
function TestLlama4.test_folder_with_images()
    local step <close> = mx.step()
    local source <close> = mx.weights.open(GOLDEN .. "llama4_images")
    lu.assertStrContains(source.left_out, " tensors about images are not read: models here read text")
    local model, config = mx.weights.model(GOLDEN .. "llama4_images", F32)
    lu.assertEquals({ config.rope_type, config.use_qk_norm, config.chunk_attn_window_size, config.nope_layer_interval },
        { "llama3.1", false, 6, -1 })
    local expected = checks.read_all(GOLDEN .. "llama4_images/expected.safetensors")
    local logits = mx.no_grad(function() return model:logits(model:hidden(expected.tokens)) end)
    checks.assert_close(logits, expected.logits, 5e-6, "images")
end

-- What a config.json of Llama 4 can say and models here do not have.
function TestLlama4.test_other_config_files_are_refused()
    local read = require("mx.weights.config_read").read
    local function with(changes)
        local values = mx.io.json_decode(mx.io.read_file(GOLDEN .. "llama4/config.json"))
        for key, value in pairs(changes) do
            values[key] = value
        end
        return read, values, "c.json"
    end
    checks.says("floor_scale = 4, attn_scale = 0.1: here they are 8192 and 0.1", with { floor_scale = 4 })
    checks.says("num_experts_per_tok = 2: here a token of llama4 has one expert", with { num_experts_per_tok = 2 })
    checks.says("no_rope_layers: expected 4 numbers, 0 in every n-th layer", with { no_rope_layers = { 0, 1, 1, 0 } })
    checks.says("moe_layers: here every n-th layer has experts", with { moe_layers = { 0, 3 } })
    local _, values = with { moe_layers = mx.io.array {}, no_rope_layers = mx.io.array {}, no_rope_layer_interval = 2 }
    local keys = read(values, "c.json")
    lu.assertEquals({ keys.nope_layer_interval, keys.interleave_moe_layer_step }, { 2, 2 })
end

-- Models whose layers no folder of Llama 4 can say.
function TestLlama4.test_exports_that_would_say_less()
    local family = require("mx.weights.config_write").family
    local function changed(change)
        local shape = mx.models.by_layer(mx.models.shape(mx.weights.load_config(GOLDEN .. "llama4")))
        change(shape.blocks)
        return family, shape
    end
    lu.assertEquals(family(mx.models.shape(mx.weights.load_config(GOLDEN .. "llama4"))), "llama4_text")
    checks.says("chunks of several sizes", changed(function(b) b[2].attention.chunk = 7 end))
    checks.says("chunks without RoPE", changed(function(b) b[2].attention.rope = false end))
    checks.says("another temperature", changed(function(b) b[4].attention.temperature.tokens = 4 end))
    checks.says("no shared expert", changed(function(b) b[2].mlp.shared = 0 end))
    checks.says("not every n-th", changed(function(b) b[1].attention.rope, b[1].attention.chunk = false, nil end))
end
