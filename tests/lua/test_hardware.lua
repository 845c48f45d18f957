-- Hardware files of the simulator: what they say, the shapes of slices, and what is refused.

local lu = require "luaunit"
local mx = require "mx"

TestHardware = {}

local function assert_near(value, expected, share)
    lu.assertAlmostEquals(value, expected, math.abs(expected) * (share or 1e-9))
end

function TestHardware.test_all_files_are_valid()
    for _, name in ipairs(mx.sim.NAMES) do
        local hardware = mx.sim.hardware(name)
        local smallest = math.huge
        for size in pairs(hardware.slices) do
            size = math.tointeger(tonumber(size))
            local pod = mx.sim.pod(("%s-%d"):format(name, size), 1)
            lu.assertEquals(pod.network.slice_chips, size * (hardware.dies or 1))
            smallest = math.min(smallest, size)
        end
        mx.sim.start(("%s-%d"):format(name, smallest), 1)
        mx.matmul(mx.zeros({ 512, 512 }, "bf16"), mx.zeros({ 512, 512 }, "bf16"))
        lu.assertTrue(mx.now() > 0)
        mx.sim.stop()
        -- The peak, and FLOPs for each byte of memory and of one ICI axis (a switch: one way), as published.
        local ridge = ({ v5e = 240, v5p = 166, v6e = 560, v7x = 313, h100 = 295, h200 = 206, b200 = 281 })[name]
        assert_near(hardware.peak_flops.bfloat16 / hardware.memory_Bps, ridge, 0.01)
        lu.assertEquals(hardware.sparse_core or false, name == "v5p" or name == "v6e" or name == "v7x")
    end
end

-- Chips that multiply codes with block scales have the peaks of these codes.
function TestHardware.test_block_formats()
    for _, name in ipairs(mx.sim.NAMES) do
        local peaks = mx.sim.hardware(name).peak_flops
        lu.assertEquals(mx.sim.multiplies(name .. "-8", "nvfp4"), peaks.float4 ~= nil, name)
        lu.assertTrue(not mx.sim.multiplies(name, "mxfp8") or peaks.float8 > peaks.bfloat16)
    end
    lu.assertTrue(mx.sim.multiplies("b200-8", "mxfp8"))
    lu.assertFalse(mx.sim.multiplies("host-8", "mxfp8"))
    local text = mx.read_file(mx.root .. "configs/hardware/b200.yml"):gsub("nvfp4%]", "mxfp4]")
    lu.assertErrorMsgContains("block_formats: 'mxfp4': expected mxfp8, nvfp4", mx.sim.parse, text, "b200.yml")
end

-- Whether the sides of a slice are closed to rings.
local function wraps(name)
    local list = {}
    for i, dim in ipairs(mx.sim.pod(name, 1).network.dims) do
        list[i] = dim.wraps
    end
    return list
end

function TestHardware.test_wraparound()
    lu.assertEquals(wraps("v5e-256"), { true, true })
    lu.assertEquals(wraps("v5e-128"), { false, true })
    lu.assertEquals(wraps("v6e-64"), { false, false })
    lu.assertEquals(wraps("v5p-64"), { true, true, true })
    lu.assertEquals(wraps("v5p-32"), { false, false, false }) -- 2 x 4 x 4: no whole cube
    lu.assertEquals(wraps("v5p-6144"), { true, true, true })
    lu.assertEquals(wraps("v7x-128"), { true, true, true, false }) -- and the two dies
    lu.assertEquals(wraps("h100-8"), {})
end

-- Slices of whole cubes have the shapes of MaxText's topologies of these names (v5p counts two cores a chip).
function TestHardware.test_shapes_of_slices()
    for name, expected in pairs({
        ["v5p-192"] = "4 4 12", ["v5p-384"] = "4 8 12", ["v5p-576"] = "4 12 12", ["v5p-640"] = "4 8 20",
        ["v5p-1024"] = "8 8 16", ["v5p-2368"] = "4 4 148", ["v5p-6144"] = "16 16 24", ["v5p-8960"] = "16 20 28",
        ["v7x-1"] = "1 1 1 2", ["v7x-5184"] = "12 12 36 2", ["v7x-9216"] = "16 24 24 2",
    }) do
        local sides = {}
        for i, dim in ipairs(mx.sim.pod(name, 1).network.dims) do
            sides[i] = dim.size
        end
        lu.assertEquals(table.concat(sides, " "), expected, name)
    end
end

function TestHardware.test_dies_are_ranks()
    local pod = mx.sim.pod("v7x-64", 2)
    lu.assertEquals({ pod.network.slice_chips, pod.slices, #pod.network.dims }, { 128, 2, 4 })
    lu.assertEquals(pod.network.dims[4].size, 2)
    local v6e = mx.sim.hardware("v6e")
    assert_near(pod.network.dims[4].link_Bps, 6 * v6e.link_Bps) -- six times a link of a chip
    assert_near(2 * pod.network.dims[1].link_Bps, v6e.link_Bps)
end

-- A file with a line changed is refused in one line that names file and field.
function TestHardware.test_files_that_are_wrong()
    local text = mx.read_file(mx.root .. "configs/hardware/v5e.yml")
    local function parse(pattern, line)
        local changed, n = text:gsub(pattern, line)
        lu.assertEquals(n, 1)
        return mx.sim.parse(changed, "v5e.yml")
    end
    mx.sim.parse(text, "v5e.yml")
    for _, case in ipairs({
        { "memory_Bps: [^\n]*\n", "", "v5e.yml: 'memory_Bps' is missing" },
        { "memory_Bps: [^\n]*\n", "memory_bps: 1.0\nmemory_Bps: 2.0\n",
            "unknown field 'memory_bps', did you mean 'memory_Bps'?" },
        { "memory_Bps: [^\n]*\n", "memory_Bps: fast\n", "'memory_Bps': expected a number, got fast" },
        { "memory_Bps: [^\n]*\n", "memory_Bps: -1\n", "'memory_Bps': expected a number of at least 0, got -1" },
        { "memory_Bps: [^\n]*\n", "memory_Bps: 0\n", "'memory_Bps': expected a number above 0" },
        { "bfloat16: [^\n]*\n", "float16: 1.0\n", "peak_flops: 'bfloat16': expected a number above 0, got nil" },
        { "link_Bps: [^\n]*\n", "", "'link_Bps': expected a number above 0, since torus_dims is 2" },
        { "torus_dims: 2", "torus_dims: 0\ndies: 2", "'switch_Bps': expected a number above 0, since torus_dims is 0" },
        { "torus_dims: 2", "torus_dims: 2\ndies: 2", "'die_link_Bps': expected a number above 0, since dies is 2" },
        { "4: %[2, 2%]", "4: [2, 3]", "slices: 4: expected 2 sides that multiply to it" },
        { "torus_dims: 2", "torus_dims: 2\nmultiprocessors: 132",
            "product_tile: expected [rows, columns] of a multiprocessor, as in [128, 256]" },
        { "4: %[2, 2%]", "4: [4]", "slices: 4: expected 2 sides that multiply to it" },
        { "  ici_efficiency:", "  ici:", "constants: 'ici' is none of attention_efficiency" },
        { "  ici_efficiency: [^\n]*\n", "  ici_efficiency: most\n",
            "constants: ici_efficiency: expected [value, least, most, public|fitted|assumed, source]" },
        { "  ici_efficiency: %[[%d.]+, ", "  ici_efficiency: [most, ", "expected a number above 0, got most" },
        { "  ici_efficiency: %[[%d.]+, ", "  ici_efficiency: [0.5, ", "0.5 is outside its range, 0.7 to 1" },
        { "(ici_efficiency: .-)fitted", "%1guessed", "expected public, fitted or assumed, got guessed" },
    }) do
        lu.assertErrorMsgContains(case[3], parse, case[1], case[2])
    end
end
