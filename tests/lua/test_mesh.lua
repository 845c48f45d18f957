-- The mesh: sizes that are filled in and refused, coordinates, and the picture.

local lu = require "luaunit"
local mx = require "mx"
local checks = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "checks.lua")

local config, plan, refused = checks.mesh_config, checks.mesh, checks.assert_refused
local each_mesh = checks.each_mesh

TestLayout, TestCoordinates, TestPicture = {}, {}, {}

-- "data 2 fsdp 4": the axes larger than 1.
local function sizes(ranks, ...)
    local out = {}
    for _, axis in ipairs(mx.mesh.layout(config(...), ranks).axes) do
        lu.assertEquals(axis.size, axis.ici * axis.dcn)
        out[#out + 1] = axis.size > 1 and axis.name .. " " .. axis.size or nil
    end
    return table.concat(out, " ")
end

-- ---- sizes ----

function TestLayout.test_ranks_go_to_fsdp_by_themselves()
    lu.assertEquals(sizes(1), "")
    lu.assertEquals(sizes(6), "fsdp 6")
    lu.assertEquals(sizes(8, "ici tensor 2"), "fsdp 4 tensor 2")
    lu.assertEquals(sizes(24, "ici tensor 2", "ici context 3", "ici expert 2"), "fsdp 2 context 3 tensor 2 expert 2")
    lu.assertEquals(sizes(4, "ici tensor 4"), "tensor 4")
end

function TestLayout.test_any_axis_may_take_what_is_left()
    for _, axis in ipairs(mx.mesh.AXES) do
        local words = { "ici fsdp 1", ("ici %s -1"):format(axis) }
        lu.assertEquals(sizes(6, table.unpack(words)), axis .. " 6")
        local over_slices = { "dcn data 1", ("dcn %s -1"):format(axis), "num_slices=3", "ici fsdp 2" }
        local layout = mx.mesh.layout(config(table.unpack(over_slices)), 6)
        lu.assertEquals({ layout.dcn[axis], layout.ici.fsdp, layout.slices }, { 3, 2, 3 })
    end
end

function TestLayout.test_sizes_given_in_full()
    lu.assertEquals(sizes(8, "ici fsdp 4", "ici tensor 2"), "fsdp 4 tensor 2")
    lu.assertEquals(sizes(1, "ici fsdp 1", "dcn data 1"), "")
end

function TestLayout.test_slices()
    lu.assertEquals(sizes(16, "num_slices=2", "ici tensor 2"), "data 2 fsdp 4 tensor 2")
    lu.assertEquals(sizes(16, "dcn data 2", "ici tensor 2"), "data 2 fsdp 4 tensor 2") -- their product says it
    lu.assertEquals(sizes(24, "num_slices=6", "dcn stage 2"), "data 3 stage 2 fsdp 4")
    local layout = mx.mesh.layout(config("num_slices=2", "dcn data 1", "dcn fsdp 2"), 16)
    lu.assertEquals({ layout.slices, layout.ranks, layout.sizes.fsdp }, { 2, 16, 16 })
    lu.assertEquals(layout.axes[3], { name = "fsdp", ici = 8, dcn = 2, size = 16 })
end

function TestLayout.test_axes_are_in_mesh_order()
    local names = {}
    for i, axis in ipairs(mx.mesh.layout(config(), 1).axes) do
        names[i] = axis.name
    end
    lu.assertEquals(names,
        { "data", "stage", "fsdp", "fsdp_transpose", "context", "context_usp_ulysses", "tensor", "tensor_sequence",
            "expert" })
end

function TestLayout.test_a_product_that_does_not_match()
    refused({
        "ici_*_parallelism make 6 devices a slice (fsdp=3, tensor=2), but there are 8 ranks in 1 slice",
        "start 6 ranks (mpirun -n 6) or set ici_fsdp_parallelism=4",
    }, mx.mesh.layout, config("ici fsdp 3", "ici tensor 2"), 8)
    refused({ "make 6 devices", "16 ranks in 2 slices are 8 a slice", "start 12 ranks (mpirun -n 12)" },
        mx.mesh.layout, config("ici fsdp 3", "ici tensor 2", "num_slices=2"), 16)
    refused({ "make 1 device a slice (all 1)", "there are 5 ranks", "set ici_fsdp_parallelism=-1" },
        mx.mesh.layout, config("ici fsdp 1"), 5)
    refused({ "make 8 devices a slice (fsdp=4, tensor=2), but there are 7 ranks in 1 slice: start 8 ranks" },
        mx.mesh.layout, config("ici fsdp 4", "ici tensor 2"), 7)
end

function TestLayout.test_what_is_left_is_no_whole_number()
    refused({
        "make 3 devices a slice (tensor=3) and ici_fsdp_parallelism=-1 takes what is left", "there are 8 ranks",
        "start 9 ranks (mpirun -n 9) or set ici_tensor_parallelism=2",
    }, mx.mesh.layout, config("ici tensor 3"), 8)
    refused({ "make 16 devices a slice (tensor=16)", "8 ranks", "start 16 ranks", "ici_tensor_parallelism=8" },
        mx.mesh.layout, config("ici tensor 16"), 8)
end

-- Whatever is proposed must work.
function TestLayout.test_the_proposed_change_is_accepted()
    local tried = 0
    for ranks = 1, 24 do
        for tensor = 1, 6 do
            for fsdp = -1, 6, 3 do -- -1, 2, 5
                local words = { "ici tensor " .. tensor, "ici fsdp " .. fsdp, "ici context 2" }
                local done, message = pcall(mx.mesh.layout, config(table.unpack(words)), ranks)
                if not done then
                    local start = tostring(message):match("mpirun %-n (%d+)%)")
                    lu.assertEquals(mx.mesh.layout(config(table.unpack(words)), tonumber(start)).ranks,
                        tonumber(start))
                    local change = tostring(message):match(" or set (ici_[%w_]+=%-?%d+)$")
                    if change then
                        words[#words + 1] = change
                        lu.assertEquals(mx.mesh.layout(config(table.unpack(words)), ranks).ranks, ranks)
                        tried = tried + 1
                    end
                end
            end
        end
    end
    lu.assertTrue(tried > 50)
end

function TestLayout.test_slices_that_do_not_match()
    refused({ "dcn_*_parallelism make 4 slices (data=4), but num_slices=2: set num_slices=4" },
        mx.mesh.layout, config("dcn data 4", "num_slices=2"), 8)
    refused({
        "dcn_*_parallelism make 2 slices (fsdp=2) and dcn_data_parallelism=-1 takes what is left", "num_slices=3",
        "set num_slices=4 or dcn_fsdp_parallelism=1",
    }, mx.mesh.layout, config("dcn fsdp 2", "num_slices=3"), 12)
    refused({ "3 slices", "(dcn_*_parallelism: data=3)", "8 ranks", "mpirun -n 9" },
        mx.mesh.layout, config("num_slices=3"), 8)
    refused({ "4 slices", "2 ranks", "mpirun -n 4" }, mx.mesh.layout, config("num_slices=4"), 2)
end

function TestLayout.test_two_cannot_take_what_is_left()
    refused({ "ici_fsdp_parallelism and ici_tensor_parallelism are both -1", "say ici_fsdp_parallelism=1" },
        mx.mesh.layout, config("ici tensor -1"), 8)
    refused({ "dcn_data_parallelism and dcn_expert_parallelism are both -1", "dcn_data_parallelism=1" },
        mx.mesh.layout, config("dcn expert -1"), 8)
end

-- Without num_slices the dcn_* sizes say how many there are, simulated or not.
function TestLayout.test_slices_follow_from_the_sizes_across_them()
    lu.assertEquals(config().num_slices, 1)
    lu.assertEquals(config("dcn data 2").num_slices, 2)
    lu.assertEquals(config("dcn fsdp 2", "dcn tensor 3").num_slices, 6) -- dcn_data is -1: nothing is left for it
    lu.assertEquals(config("num_slices=6", "dcn fsdp 2").num_slices, 6)
    lu.assertEquals(sizes(8, "dcn fsdp 2"), "fsdp 8")
    local c = mx.config.load({ "model_name=tiny", "hardware=v5e-8", "dcn_data_parallelism=2" }, { simulate = false })
    lu.assertTrue(mx.plan.simulate(c, c.hardware, c.num_slices).step_s > 0)
    for _, words in ipairs({ { "num_slices=1", "dcn data 2" }, { "dcn fsdp 2", "num_slices=1" } }) do
        refused({ "num_slices: the dcn_*_parallelism sizes make 2 slices, got 1" }, config, table.unpack(words))
    end
end

function TestLayout.test_sizes_that_are_none()
    for _, axis in ipairs(mx.mesh.AXES) do
        for _, level in ipairs({ "ici", "dcn" }) do
            local key = mx.mesh.key(level, axis)
            for _, size in ipairs({ "0", "-2" }) do
                refused({ key, "expected at least 1, or -1 for what is left", size }, mx.config.load,
                    { key .. "=" .. size })
            end
        end
    end
    local changed = config()
    changed.ici_tensor_parallelism = 0 -- by the script, after loading
    refused({ "ici_tensor_parallelism", "at least 1", "got 0" }, mx.mesh.layout, changed, 8)
    refused({ "slices", "at least 1" }, mx.config.load, { "num_slices=0" })
end

function TestLayout.test_misspelt_keys()
    refused({ "did you mean 'ici_tensor_parallelism'" }, mx.config.load, { "ici_tensor_paralelism=2" })
end

-- ---- coordinates ----

-- rank -> coordinates by counting: slices outermost, then the places inside one, each in mesh order.
local function by_counting(layout)
    local all = { {} }
    for _, level in ipairs({ "dcn", "ici" }) do
        for _, axis in ipairs(layout.axes) do
            local longer = {}
            for _, at in ipairs(all) do
                for i = 0, axis[level] - 1 do
                    local copy = {}
                    for name, value in pairs(at) do
                        copy[name] = value
                    end
                    copy[axis.name] = level == "dcn" and i * axis.ici or copy[axis.name] + i
                    longer[#longer + 1] = copy
                end
            end
            all = longer
        end
    end
    return all
end

function TestCoordinates.test_every_rank_of_several_meshes()
    each_mesh(function(layout)
        local expected = by_counting(layout)
        lu.assertEquals(#expected, layout.ranks)
        for rank = 0, layout.ranks - 1 do
            local at = mx.mesh.coordinates(layout, rank)
            lu.assertEquals(at, expected[rank + 1])
            lu.assertEquals(mx.mesh.rank_at(layout, at), rank)
        end
    end)
end

function TestCoordinates.test_by_hand()
    -- 2 slices of fsdp 4 x tensor 2: rank 13 is in slice 1, the place 5 of which is fsdp 2, tensor 1.
    local at = mx.mesh.coordinates(mx.mesh.layout(config("ici tensor 2", "num_slices=2"), 16), 13)
    lu.assertEquals({ at.data, at.fsdp, at.tensor, at.stage }, { 1, 2, 1, 0 })
    -- fsdp over 2 slices of 4: the coordinate goes on in the second slice.
    local layout = mx.mesh.layout(config("dcn fsdp 2", "num_slices=2"), 8)
    lu.assertEquals(mx.mesh.coordinates(layout, 6).fsdp, 6)
end

-- Groups partition the ranks; a member's index is its place in the group; size, index and ranks agree.
function TestCoordinates.test_groups_of_any_axes()
    local choices = { "data", "fsdp", "tensor", { "fsdp", "tensor" }, { "data", "fsdp", "tensor", "expert" }, {} }
    each_mesh(function(layout, cfg)
        for _, axes in ipairs(choices) do
            local seen = {}
            for rank = 0, layout.ranks - 1 do
                local m = mx.mesh.plan(cfg, layout.ranks, rank)
                local group = m:ranks(axes)
                lu.assertEquals(#group, m:size(axes))
                lu.assertEquals(group[m:index(axes) + 1], rank)
                for i = 2, #group do
                    lu.assertTrue(group[i - 1] < group[i])
                end
                local key = table.concat(group, " ")
                seen[key] = (seen[key] or 0) + 1
            end
            local total = 0
            for key, times in pairs(seen) do
                lu.assertEquals(select(2, key:gsub("%d+", "")), times) -- each member sees the same group
                total = total + times
            end
            lu.assertEquals(total, layout.ranks)
        end
    end)
end

function TestCoordinates.test_groups_by_hand()
    local m = mx.mesh.plan(config("ici tensor 2", "num_slices=2"), 16, 13)
    lu.assertEquals(m:ranks("data"), { 5, 13 })
    lu.assertEquals(m:ranks("fsdp"), { 9, 11, 13, 15 })
    lu.assertEquals(m:ranks({ "tensor", "data" }), { 4, 5, 12, 13 }) -- in whatever order they are named
    lu.assertEquals({ m:size("fsdp"), m:index("fsdp"), m:size({ "data", "tensor" }) }, { 4, 2, 4 })
    lu.assertEquals({ m:index({ "data", "tensor" }), m:index({ "tensor", "data" }), m:index({}) }, { 3, 3, 0 })
end

function TestCoordinates.test_unknown_axes()
    local m = plan(8)
    lu.assertErrorMsgContains("no mesh axis 'tensr', did you mean 'tensor'?", m.size, m, "tensr")
    lu.assertErrorMsgContains("no mesh axis 'tensr'", m.index, m, { "fsdp", "tensr" })
end

function TestCoordinates.test_the_mesh_of_this_run()
    local m = mx.mesh(config())
    lu.assertEquals({ m:size("fsdp"), m:index("fsdp"), m.rank, m.layout.ranks },
        { mx.ranks(), mx.rank(), mx.rank(), mx.ranks() })
    lu.assertEquals({ mx.axis_size("fsdp"), mx.axis_index("fsdp"), mx.axis_ranks({ "fsdp", "tensor" }) },
        { m:size("fsdp"), m:index("fsdp"), m:ranks({ "fsdp", "tensor" }) })
    refused({ "ranks" }, mx.mesh, config("ici tensor " .. mx.ranks() + 1))
end

-- ---- the picture ----

local function picture(ranks, ...)
    local text = tostring(plan(ranks, ...))
    for line in (text .. "\n"):gmatch("(.-)\n") do
        lu.assertTrue(#line <= 80, line)
        lu.assertNil(line:find("%s$"), "'" .. line .. "'")
    end
    return text
end

function TestPicture.test_one_and_two_ranks()
    lu.assertEquals(picture(1), "mesh of 1 rank: nothing is shared out")
    lu.assertEquals(picture(2),
        "mesh of 2 ranks: fsdp 2\n  fsdp 2  batch, embed_vocab, embed_attn, embed\n          0 1")
end

function TestPicture.test_eight_ranks()
    lu.assertEquals(picture(8, "ici tensor 2"), [[
mesh of 8 ranks: fsdp 4 x tensor 2

             tensor
               0  1
  fsdp  0      0  1
        1      2  3
        2      4  5
        3      6  7

  fsdp 4    batch, embed_vocab, embed_attn, embed
            0 2 4 6 | 1 3 5 7
  tensor 2  activation_embed, vocab, heads, kv_heads, mlp, norm
            0 1 | 2 3 | 4 5 | 6 7]])
end

function TestPicture.test_two_slices()
    local text = picture(16, "ici tensor 2", "num_slices=2")
    lu.assertStrContains(text, "mesh of 16 ranks, 2 slices of 8: data 2 x fsdp 4 x tensor 2")
    lu.assertStrContains(text, "data 0      data 1")
    lu.assertStrContains(text, "        2       4   5      12  13")
    lu.assertStrContains(text, "  data 2    batch (across slices)\n            0 8 | 1 9 | 2 10")
    lu.assertStrContains(picture(32, "dcn fsdp 2", "num_slices=2", "ici tensor 2"), "(2 slices x 8)")
end

function TestPicture.test_many_ranks_are_elided()
    local text = picture(256, "ici tensor 16")
    lu.assertStrContains(text, "        15      240  241")
    lu.assertStrContains(text, "0 16 .. 240 | 1 17 .. 241 | 2 18 .. 242 | ... | 15 31 .. 255")
    lu.assertStrContains(picture(256), "0 1 .. 255")
    lu.assertTrue(select(2, text:gsub("\n", "")) < 20)
end

function TestPicture.test_more_axes_than_fit()
    local text = picture(64, "ici stage 2", "ici data 2", "ici context 2", "ici tensor 2", "ici fsdp 4")
    lu.assertStrContains(text, "(these are at context 0, tensor 0)")
end

function TestPicture.test_width_and_numbers_of_many_meshes()
    local axes = mx.mesh.AXES
    for i = 1, #axes do
        for j = i + 1, #axes do
            for _, n in ipairs({ { 2, 3, 1 }, { 16, 4, 1 }, { 128, 2, 3 }, { 3, 64, 5 }, { 8, 8, 32 } }) do
                local text = picture(n[1] * n[2] * n[3], "ici fsdp 1", "dcn data 1",
                    ("ici %s %d"):format(axes[i], n[1]), ("ici %s %d"):format(axes[j], n[2]),
                    ("dcn %s %d"):format(axes[i == 1 and j or 1], n[3]))
                lu.assertStrContains(text, tostring(n[1] * n[2] * n[3] - 1)) -- the last rank is always shown
            end
        end
    end
    picture(8192, "num_slices=32", "ici tensor 16")
    picture(8960, "ici tensor_sequence 7", "ici fsdp_transpose 4")
end

function TestPicture.test_an_axis_that_no_rule_names()
    lu.assertStrContains(picture(2, "logical_axis_rules=[[layers,[]]]", "ici stage 2", "ici fsdp 1"),
        "stage 2  nothing: no rule names it")
end
