-- The shapes of slices, and the sides that the axes of a mesh get on them, against JAX's choices.

local lu = require "luaunit"
local mx = require "mx"

TestPlacement, TestTopology = {}, {}

function TestPlacement.tearDown()
    mx.sim.stop()
end
TestTopology.tearDown = TestPlacement.tearDown

local AXES = { "data", "fsdp", "context", "tensor" }

local function product(list)
    local n = 1
    for _, size in ipairs(list) do
        n = n * size
    end
    return n
end

-- The mesh of a case of placement.json.
local function axes_of(case)
    local axes = {}
    for i, name in ipairs(AXES) do
        axes[i] = { name = name, ici = math.tointeger(case.ici[i]), dcn = math.tointeger(case.dcn[i]) }
    end
    return axes
end

local function start(case)
    local chips = math.tointeger(product(case.sides))
    mx.sim.start(("%s-%d"):format(case.hardware, chips), math.tointeger(product(case.dcn)), {
        topology = mx.sim.topology.text(case.sides), allow_split_physical_axes = case.split or nil,
    })
end

local function text(case)
    return mx.io.json_encode(case)
end

function TestPlacement.test_jax_chooses_the_same()
    local cases, kinds = mx.io.json_decode(mx.read_file(mx.root .. "tests/golden/placement.json")), {}
    for _, case in ipairs(cases) do
        for i, side in ipairs(case.sides) do
            case.sides[i] = math.tointeger(side)
        end
        start(case)
        local fits, problem = pcall(mx.mesh_define, axes_of(case))
        local kind = case.refused and "refused" or case.ring and "ring" or "parts"
        kinds[kind] = (kinds[kind] or 0) + 1
        lu.assertEquals(fits, not case.refused, text(case) .. tostring(problem))
        lu.assertEquals(mx.sim.topology.is_ring(mx.sim.now, product(case.sides)), case.ring or false, text(case))
        local placed = mx.sim_placement()
        for i, parts in ipairs(case.parts or {}) do
            for side, part in ipairs(parts) do
                lu.assertEquals(placed[AXES[i]][side], part, text(case))
            end
        end
    end
    lu.assertTrue(kinds.parts >= 10 and kinds.refused >= 10 and kinds.ring >= 5)
end

-- 512 chips of v5p: a permute along an axis whose chips are `stride` apart takes that many times as long.
function TestPlacement.test_strides_are_those_of_jax()
    local bytes = 4e6
    for _, case in ipairs(mx.io.json_decode(mx.read_file(mx.root .. "tests/golden/placement.json"))) do
        local stride, on = 1, 0
        for i, parts in ipairs(case.parts or {}) do
            for side, part in ipairs(parts) do
                on, stride = on + (AXES[i] == "fsdp" and part > 1 and 1 or 0),
                    AXES[i] == "fsdp" and part > 1 and case.strides[i][side] or stride
            end
        end
        if on == 1 and case.hardware ~= "v7x" and product(case.dcn) == 1 then
            for i, side in ipairs(case.sides) do
                case.sides[i] = math.tointeger(side)
            end
            start(case)
            mx.mesh_define(axes_of(case))
            mx.sim_times(true)
            mx.collective_permute(mx.zeros({ math.tointeger(bytes // 4) }), { axis = "fsdp", shift = 1 })
            local h = mx.sim.now
            lu.assertAlmostEquals(mx.sim_times().ici_busy_s, h.hop_latency_s
                + bytes * stride / (h.link_Bps * (h.ici_efficiency or 1)), 1e-9, text(case))
        end
    end
end

-- ---- messages ----

-- 16 chips of v5e, a torus of 4 x 4 without rings: stage 0 to 3 crosses three links. A sender's link is busy as long; a
-- receiver only waits.
function TestPlacement.test_messages_cross_links()
    local bytes = 4e6
    local function seconds(fn)
        mx.sim_times(true)
        local before = mx.now()
        fn(mx.zeros({ math.tointeger(bytes // 4) }))
        return mx.now() - before, mx.sim_times()
    end
    mx.train.mesh(mx.config.load { "hardware=v5e-16", "ici_pipeline_parallelism=4" })
    for to = 1, 3 do
        local _, times = seconds(function(x) mx.send(x, { axis = "stage", to = to }) end)
        local h = mx.sim.now
        local link = h.hop_latency_s + bytes / (h.link_Bps * (h.ici_efficiency or 1))
        lu.assertAlmostEquals(times.ici_busy_s, to * link, 1e-9)
        local waited
        waited, times = seconds(function(x) mx.recv(x, { axis = "stage", from = to }):wait() end)
        lu.assertAlmostEquals(waited, to * link, 1e-9)
        lu.assertEquals(times.ici_busy_s, 0)
    end
    mx.train.mesh(mx.config.load { "hardware=v5e-16", "num_slices=2", "dcn_pipeline_parallelism=2" })
    local far, times = seconds(function(x)
        mx.recv(x, { axis = "stage", from = 1 }):wait()
    end)
    local h = mx.sim.now
    lu.assertAlmostEquals(far, h.dcn_hop_latency_s + bytes / (h.dcn_Bps * (h.dcn_efficiency or 1)), 1e-9)
    lu.assertTrue(times.dcn_s > 0)
end

-- ---- shapes ----

local function shapes(name)
    local kind, chips = mx.sim.split_name(name)
    local texts = {}
    for i, sides in ipairs(mx.sim.topology.shapes(mx.sim.hardware(kind), chips)) do
        texts[i] = mx.sim.topology.text(sides)
    end
    return table.concat(texts, " ")
end

function TestTopology.test_shapes_that_exist()
    lu.assertEquals(shapes("v5e-128"), "8x16")
    lu.assertEquals(shapes("v5p-16"), "2x2x4")
    lu.assertEquals(shapes("v5p-64"), "4x4x4")
    lu.assertEquals(shapes("v5p-512"), "4x4x32 4x8x16 8x8x8")
    lu.assertEquals(shapes("v7x-256"), "4x4x16 4x8x8")
end

local function mesh(...)
    return mx.train.mesh(mx.config.load({ ... }))
end

function TestTopology.test_the_line_of_a_run()
    mesh("hardware=v5p-512", "topology=4x8x16", "ici_tensor_parallelism=16")
    lu.assertEquals(mx.sim.topology.line(), "slice 4x8x16, x, y, z closed to rings: fsdp on x and y, tensor on z")
    mesh("hardware=v5e-128", "ici_tensor_parallelism=2", "allow_split_physical_axes=true")
    lu.assertEquals(mx.sim.topology.line(), "slice 8x16, y closed to a ring: fsdp on 4 of x and y, tensor on 2 of x")
    mesh("hardware=v7x-64", "ici_tensor_parallelism=2")
    lu.assertEquals(mx.sim.topology.line(),
        "slice 4x4x4, x, y, z closed to rings: fsdp on x and y and z, tensor on the dies")
    mesh("hardware=h100-8")
    lu.assertNil(mx.sim.topology.line())
end

-- MaxText's reshape_mesh_to_rings: tensor around 2 x 2 or 2 x 4 neighbours, fsdp over these blocks.
function TestTopology.test_custom_mesh()
    local words = { "hardware=v6e-256", "allow_split_physical_axes=true" }
    for name, columns in pairs { hybrid_ring_64x4 = 2, hybrid_ring_32x8 = 4 } do
        words[3], words[4] = "custom_mesh=" .. name, "ici_tensor_parallelism=" .. 2 * columns
        mesh(table.unpack(words))
        local placed = mx.sim_placement()
        lu.assertEquals({ placed.tensor[1], placed.tensor[2] }, { 2, columns })
        lu.assertEquals({ placed.fsdp[1], placed.fsdp[2] }, { 8, 16 // columns })
    end
    words[3], words[4] = "custom_mesh=hybrid_ring_64x4", "ici_tensor_parallelism=8"
    lu.assertErrorMsgContains("custom_mesh = hybrid_ring_64x4 needs a slice of 16x16 and two axes, the last of them "
        .. "(in the order of the mesh) of 4 chips", mesh, table.unpack(words))
    for _, hardware in ipairs { "v6e-64", "v5p-64", "h100-8" } do
        words[1], words[4] = "hardware=" .. hardware, "ici_tensor_parallelism=4"
        lu.assertErrorMsgContains("needs a slice of 16x16", mesh, table.unpack(words))
    end
    lu.assertErrorMsgContains("custom_mesh", mx.config.load, { "hardware=v6e-256", "custom_mesh=hybrid_ring_64x4" })
end

-- 512 chips of v5p: 8x8x8 has no place for tensor = 16.
function TestTopology.test_a_mesh_that_needs_another_shape()
    lu.assertErrorMsgContains("ici_tensor_parallelism = 16 does not fit the slice 8x8x8: no whole sides of 8x8x8 "
        .. "multiply to it: topology=4x4x32 or topology=4x8x16 or allow_split_physical_axes=true would fit", mesh,
        "hardware=v5p-512", "ici_tensor_parallelism=16")
    mesh("hardware=v5p-512", "ici_tensor_parallelism=16", "topology=4x8x16")
    mesh("hardware=v5p-512", "ici_tensor_parallelism=16", "allow_split_physical_axes=true")
end

function TestTopology.test_shapes_that_do_not_exist()
    for _, case in ipairs({
        { "v5p-512", "8x8x16", "topology=8x8x16: 512 chips of TPU v5p have the shape 4x4x32, 4x8x16, 8x8x8" },
        { "v5p-512", "16x8x4", "have the shape 4x4x32, 4x8x16, 8x8x8" },
        { "v5e-256", "8x32", "topology=8x32: 256 chips of TPU v5e have the shape 16x16" },
        { "h100-8", "2x4", "topology=2x4: 8 chips of H100 SXM have the shape of a switch: leave topology out" },
    }) do
        lu.assertErrorMsgContains(case[3], mx.config.load, { "hardware=" .. case[1], "topology=" .. case[2] })
    end
    lu.assertErrorMsgContains("topology: is for simulated chips", mx.config.load, { "topology=4x4x4" })
end

-- ---- networks between slices ----

local function dcn_Bps(...)
    local config = mx.config.load({ ... }, { simulate = false })
    return mx.sim.pod(config.hardware, 2, mx.sim.settings(config)).network.dcn_Bps
end

-- Gb/s of a node, divided by its eight GPUs and by 8 bits.
function TestTopology.test_networks_of_nodes()
    for name, gbps in pairs({ ["a3-high"] = 4 * 200, ["a3-mega"] = 8 * 200, dgx = 8 * 400 }) do
        lu.assertEquals(dcn_Bps("hardware=h100-8", "network=" .. name), gbps * 1e9 / 8 / 8)
    end
    lu.assertEquals(dcn_Bps("hardware=h200-8", "network=a3-ultra"), 8 * 400e9 / 8 / 8)
    lu.assertEquals(dcn_Bps("hardware=h100-8"), dcn_Bps("hardware=h100-8", "network=dgx"))
    lu.assertEquals(dcn_Bps("hardware=h100-8", "dcn_Bps=1e9"), 1e9)
    lu.assertEquals(dcn_Bps("hardware=v5e-256", "dcn_Bps=1e9"), 1e9)
    lu.assertErrorMsgContains("network=a3-ultra: nodes of H100 SXM are a3-high, a3-mega, dgx", dcn_Bps,
        "hardware=h100-8", "network=a3-ultra")
    lu.assertErrorMsgContains("network=dgx: TPU v6e has one network between slices: leave network out", dcn_Bps,
        "hardware=v6e-8", "network=dgx")
    lu.assertErrorMsgContains("set one of them", dcn_Bps, "hardware=h100-8", "network=dgx", "dcn_Bps=1e9")
end

function TestTopology.test_a_faster_network_helps()
    local function step(network)
        local config = mx.config.load({
            "model_name=llama2-7b", "base_num_decoder_layers=2", "hardware=h100-8", "num_slices=4",
            "network=" .. network, "async_all_reduce=false",
        }, { simulate = false })
        return mx.plan.simulate(config, config.hardware, config.num_slices).step_s
    end
    local high, mega, dgx = step("a3-high"), step("a3-mega"), step("dgx")
    lu.assertTrue(high > mega and mega > dgx)
end
