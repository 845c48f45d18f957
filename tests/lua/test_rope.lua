-- The kinds of RoPE that a config can name: their frequencies, and that a model uses them.

local lu = require "luaunit"
local mx = require "mx"
local rope = require "mx.models.rope"

TestRope = {}

local function attention_of(...)
    return mx.models.shape(mx.config.load { "model_name=tiny", ... }).blocks[1].attention
end

-- Each case of tests/golden/rope.json, which the transformers library computed in f32.
function TestRope.test_frequencies_are_those_of_transformers()
    local cases = mx.io.json_decode(mx.io.read_file(mx.root .. "tests/golden/rope.json"))
    lu.assertTrue(#cases >= 10)
    for _, case in ipairs(cases) do
        local attention, name = attention_of(table.unpack(case.words)), table.concat(case.words, " ")
        local frequencies = rope.frequencies(attention.rope, attention.head_dim)
        lu.assertEquals(#frequencies, #case.frequencies, name)
        for i, frequency in ipairs(frequencies) do
            lu.assertAlmostEquals(frequency / case.frequencies[i], 1, 2e-6, name .. " " .. i)
        end
        lu.assertAlmostEquals(attention.rope.factor or 1, case.factor, 1e-12, name)
    end
end

-- Llama 3.1 by hand: a pair that turns twice in the original length is at (2 - 1) / (4 - 1) of the blend.
function TestRope.test_llama()
    local scaling = {
        kind = "llama3.1", factor = 8, low_freq_factor = 1, high_freq_factor = 4, original_length = 4 * math.pi,
    }
    local frequencies = rope.frequencies({ theta = 1, scaling = scaling }, 2)
    lu.assertAlmostEquals(frequencies[1], 2 / 3 / 8 + 1 / 3, 1e-15)
end

-- MaxText's formula: wavelengths from rope_min_timescale to rope_max_timescale, in equal ratios.
function TestRope.test_the_shortest_wavelength()
    local attention = attention_of("head_dim=8", "rope_min_timescale=4", "rope_max_timescale=64")
    local frequencies = rope.frequencies(attention.rope, 8)
    for i, timescale in ipairs({ 4, 8, 16, 32 }) do
        lu.assertAlmostEquals(frequencies[i], 1 / timescale, 1e-15)
    end
end

-- Partial rotation and the order of a pair's components reach the operation: against rotating by hand.
function TestRope.test_rotation()
    local step <close> = mx.step()
    local words = {
        "head_dim=8", "partial_rotary_factor=0.5", "rope_type=yarn", "rope_max_timescale=10", "rope_factor=4",
        "original_max_position_embeddings=16", "rope_attention_scaling=true",
    }
    local x = mx.randn { shape = { 1, 6, 2, 8 }, seed = 1 }
    for _, neighbours in ipairs({ true, false }) do
        words[8] = "rope_interleave=" .. tostring(neighbours)
        local o = attention_of(table.unpack(words)).rope
        local frequencies, factor = rope.frequencies(o, 8), 0.1 * math.log(4) + 1
        local q, k = rope.rotate(o, x, x, { offset = 0 })
        lu.assertEquals(k:totable(), q:totable())
        local before, after = x:totable()[1], q:totable()[1]
        for s, heads in ipairs(after) do
            for h, y in ipairs(heads) do
                local was = before[s][h]
                for pair = 1, 2 do
                    local a = neighbours and 2 * pair - 1 or pair
                    local b, angle = neighbours and a + 1 or a + 2, (s - 1) * frequencies[pair]
                    local cos, sin = factor * math.cos(angle), factor * math.sin(angle)
                    lu.assertAlmostEquals(y[a], was[a] * cos - was[b] * sin, 1e-6)
                    lu.assertAlmostEquals(y[b], was[b] * cos + was[a] * sin, 1e-6)
                end
                lu.assertEquals({ y[5], y[6], y[7], y[8] }, { was[5], was[6], was[7], was[8] })
            end
        end
    end
end

-- Scaling concerns only the global layers of blocks that say so, and all layers of the others.
function TestRope.test_local_layers()
    local function kinds(block, ...)
        local shape = mx.models.shape(mx.config.load { "model_name=tiny", "decoder_block=" .. block, ... })
        local list = {}
        for i, one in ipairs(shape.blocks) do
            local scaling = one.attention.rope.scaling
            list[i] = scaling and scaling.kind or "none"
        end
        return table.concat(list, " ")
    end
    lu.assertEquals(kinds("gemma3", "sliding_window_size=4", "rope_linear_scaling_factor=8"),
        "none none none none none linear")
    lu.assertEquals(kinds("olmo3", "sliding_window_size=4", "rope_type=yarn"), "none none none yarn")
    lu.assertEquals(kinds("gemma2", "sliding_window_size=4", "rope_linear_scaling_factor=8"), "linear linear")
end
