-- The mesh: sizes that are filled in and refused, coordinates, what splits a tensor, the rules, and the picture.

local lu = require "luaunit"
local mx = require "mx"

TestLayout, TestCoordinates, TestSpec, TestRules, TestPicture = {}, {}, {}, {}, {}

-- A config from short words: "ici tensor 2" is ici_tensor_parallelism=2; others are as on the command line.
local function config(...)
    local words = { ... }
    for i, word in ipairs(words) do
        words[i] = word:gsub("^(%l+) ([%w_]+) (%-?%d+)$", function(level, axis, size)
            return mx.mesh.key(level, axis) .. "=" .. size
        end)
    end
    return mx.config.load(words)
end

local function plan(ranks, ...)
    return mx.mesh.plan(config(...), ranks)
end

-- "data 2 fsdp 4": the axes larger than 1.
local function sizes(ranks, ...)
    local out = {}
    for _, axis in ipairs(mx.mesh.layout(config(...), ranks).axes) do
        lu.assertEquals(axis.size, axis.ici * axis.dcn)
        out[#out + 1] = axis.size > 1 and axis.name .. " " .. axis.size or nil
    end
    return table.concat(out, " ")
end

-- fn(...) is refused in one line with these parts.
local function refused(parts, fn, ...)
    local done, message = pcall(fn, ...)
    lu.assertFalse(done)
    lu.assertEquals(getmetatable(message).__name, "mx.refusal", tostring(message))
    message = tostring(message)
    for _, part in ipairs(parts) do
        lu.assertStrContains(message, part)
    end
    lu.assertNotStrContains(message, "\n")
end

local function with_file(content, fn)
    local path = os.tmpname()
    local file = assert(io.open(path, "wb"))
    file:write(content)
    file:close()
    local done, message = pcall(fn, path)
    os.remove(path)
    if not done then
        error(message, 0)
    end
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
        { "data", "stage", "fsdp", "fsdp_transpose", "context", "tensor", "tensor_sequence", "expert" })
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

local MESHES = {
    { 1 }, { 2 }, { 8, "ici tensor 2" }, { 16, "ici tensor 2", "num_slices=2" },
    { 12, "ici fsdp 2", "ici context 3", "ici tensor 2" },
    { 24, "dcn fsdp 2", "dcn data 3", "ici data 2", "ici fsdp 2" },
    { 32, "dcn fsdp 2", "num_slices=2", "ici tensor 2", "ici tensor_sequence 2" },
    { 96, "dcn stage 2", "num_slices=6", "ici fsdp_transpose 2", "ici expert 2", "ici tensor 4" },
    { 64, "dcn data 2", "dcn tensor 2", "ici data 2", "ici tensor 2", "ici fsdp 2", "ici expert 2" },
}

local function each_mesh(fn)
    for _, m in ipairs(MESHES) do
        local cfg = config(table.unpack(m, 2))
        fn(mx.mesh.layout(cfg, m[1]), cfg)
    end
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

-- ---- what splits a tensor ----

function TestSpec.test_one_rank_splits_nothing()
    for _, d in ipairs(plan(1):spec({ "embed", "mlp" }, { 7, 5 }, "w")) do
        lu.assertEquals({ d.axes, d.parts, d.kept, d.gathered, d.stored_block }, { {}, 1, {}, {}, 0 })
        lu.assertEquals({ d.stored, d.used }, { d.size, d.size })
    end
end

function TestSpec.test_weights_of_an_mlp()
    local m = plan(16, "ici fsdp 2", "ici fsdp_transpose 2", "ici tensor 4")
    local spec = m:spec({ "embed", "mlp" }, { 64, 96 }, "w")
    lu.assertEquals({ spec[1].axes, spec[1].parts, spec[1].gathered, spec[1].kept }, { { "fsdp" }, 2, { "fsdp" }, {} })
    lu.assertEquals({ spec[1].stored, spec[1].used }, { 32, 64 })
    lu.assertEquals({ spec[2].axes, spec[2].parts }, { { "tensor", "fsdp_transpose" }, 8 })
    lu.assertEquals({ spec[2].gathered, spec[2].kept }, { { "fsdp_transpose" }, { "tensor" } })
    lu.assertEquals({ spec[2].stored, spec[2].used }, { 12, 24 })
end

function TestSpec.test_context_and_expert_gather_weights_and_data_does_not_split_them()
    local m = plan(48, "ici fsdp 2", "ici context 3", "ici expert 2", "ici data 4")
    local d = m:spec({ "embed" }, { 24 }, "w")[1]
    lu.assertEquals({ d.gathered, d.kept, d.parts, d.used }, { { "fsdp", "context", "expert" }, {}, 12, 24 })
end

function TestSpec.test_names_without_axes()
    local m = plan(8, "ici tensor 2")
    local spec = m:spec({ "norm", false, "heads" }, { 7, 5, 4 }, "w")
    lu.assertEquals({ spec[1].parts, spec[2].parts, spec[3].parts }, { 1, 1, 2 })
    lu.assertEquals(spec[3].kept, { "tensor" })
end

function TestSpec.test_layers_stay_on_their_stage()
    local d = plan(4, "ici stage 4", "ici fsdp 1"):spec({ "layers" }, { 12 }, "decoder")[1]
    lu.assertEquals({ d.kept, d.gathered, d.stored, d.used }, { { "stage" }, {}, 3, 3 })
end

-- The first dimension whose rule has an axis takes it.
function TestSpec.test_an_axis_splits_one_dimension()
    local m = plan(8, "ici tensor 2")
    local spec = m:spec({ "heads", "mlp", "embed" }, { 4, 5, 8 }, "w")
    lu.assertEquals({ spec[1].axes, spec[2].axes, spec[3].axes }, { { "tensor" }, {}, { "fsdp" } })
    spec = m:spec({ "embed", "embed" }, { 8, 9 }, "w")
    lu.assertEquals({ spec[1].parts, spec[2].parts }, { 4, 1 })
end

function TestSpec.test_activations_are_kept_split()
    local m = plan(16, "ici fsdp 2", "ici context 2", "ici tensor 2", "ici data 2")
    local spec = m:spec({ "activation_batch", "activation_length", "activation_embed" }, { 8, 6, 4 }, "h")
    lu.assertEquals({ spec[1].kept, spec[1].gathered, spec[1].used }, { { "data", "fsdp" }, {}, 2 })
    lu.assertEquals({ spec[2].kept, spec[2].used, spec[3].kept, spec[3].used }, { { "context" }, 3, { "tensor" }, 2 })
end

-- The stored blocks tile the dimension, and the blocks that a group gathers are one contiguous block: the one it uses.
function TestSpec.test_blocks()
    each_mesh(function(layout, cfg)
        local size = 1
        for _, axis in ipairs(layout.axes) do
            size = size * axis.size
        end
        local holders = {}
        for rank = 0, layout.ranks - 1 do
            local m = mx.mesh.plan(cfg, layout.ranks, rank)
            local d = m:spec({ "mlp" }, { 2 * size }, "w")[1]
            lu.assertEquals(d.stored * d.parts, 2 * size)
            holders[d.stored_block] = (holders[d.stored_block] or 0) + 1
            local gathered = m:ranks(d.gathered)
            for i, other in ipairs(gathered) do
                local its = mx.mesh.plan(cfg, layout.ranks, other):spec({ "mlp" }, { 2 * size }, "w")[1]
                lu.assertEquals(its.stored_block * its.stored, d.used_block * d.used + (i - 1) * d.stored)
            end
            lu.assertEquals(#gathered * d.stored, d.used)
        end
        local parts = mx.mesh.plan(cfg, layout.ranks):spec({ "mlp" }, { 2 * size }, "w")[1].parts
        for block = 0, parts - 1 do
            lu.assertEquals(holders[block], layout.ranks // parts)
        end
    end)
end

function TestSpec.test_a_size_with_fewer_elements_than_parts()
    local m = plan(8, "ici tensor 4")
    refused({
        "layer000.wi.weight: dimension 2 (mlp) has 3 elements, too few for 4 parts (tensor=4)",
        "change base_mlp_dim or ici_tensor_parallelism",
    }, m.spec, m, { "embed", "mlp" }, { 64, 3 }, "layer000.wi.weight")
    refused({ "dimension 1 (heads) has 3 x 8 elements, too few for 4 parts" }, m.spec, m, { "heads" }, { 24 }, "w",
        { 8 })
    m = plan(24, "dcn fsdp 2", "num_slices=2", "ici context 3")
    refused({
        "w: dimension 1 (embed) has 23 elements, too few for 24 parts (fsdp=8, context=3)",
        "change base_emb_dim or ici_fsdp_parallelism or dcn_fsdp_parallelism or ici_context_parallelism",
    }, m.spec, m, { "embed" }, { 23 }, "w")
    refused({ "(activation_length) has 100 elements, which 3 parts (context=3) do not divide", "max_target_length" },
        m.spec, m, { "activation_length" }, { 100 }, "x")
end

-- 7 units of 4 in 3 parts along tensor are 3, 2 and 2 units: 12, 8 and 8 elements; fsdp splits these in 5 parts.
function TestSpec.test_unequal_blocks()
    local tensor = { { 1, 12 }, { 13, 8 }, { 21, 8 } }
    local fsdp = { [12] = { 3, 3, 2, 2, 2 }, [8] = { 2, 2, 2, 1, 1 } }
    for rank = 0, 14 do
        local cfg = config("ici tensor 3", "ici fsdp 5", "logical_axis_rules=[[mlp,[tensor,fsdp]]]")
        local m = mx.mesh.plan(cfg, 15, rank)
        local d = m:spec({ "mlp" }, { 28 }, "w", { 4 })[1]
        local start, used = table.unpack(tensor[m.at.tensor + 1])
        for i = 1, m.at.fsdp do
            start = start + fsdp[used][i]
        end
        lu.assertEquals({ d.start, d.stored, d.used }, { start, fsdp[used][m.at.fsdp + 1], used })
    end
end

function TestSpec.test_mistakes_of_a_script()
    local m = plan(2)
    lu.assertErrorMsgContains("no logical axis 'mpl', did you mean 'mlp'?", m.spec, m, { "mpl" }, { 4 }, "w")
    lu.assertErrorMsgContains("w: 1 logical names for 2 dimensions", m.spec, m, { "mlp" }, { 4, 4 }, "w")
end

-- ---- the rules ----

function TestRules.test_the_standard_ones()
    local rules = plan(1).rules
    lu.assertEquals(rules.activation_batch, { "data", "fsdp", "fsdp_transpose", "expert" })
    lu.assertEquals(rules.embed, { "fsdp", "fsdp_transpose", "context", "expert" })
    lu.assertEquals(rules.mlp, { "fsdp_transpose", "tensor", "tensor_sequence" })
    lu.assertEquals(rules.activation_embed, { "tensor" })
    lu.assertEquals(rules.norm, { "tensor" })
    lu.assertEquals(rules.layers, { "stage" })
end

function TestRules.test_words_merge()
    local rules = plan(1, "logical_axis_rules=[[mlp,[tensor]],[norm,fsdp],[heads,[]]]").rules
    lu.assertEquals({ rules.mlp, rules.norm, rules.heads }, { { "tensor" }, { "fsdp" }, {} })
    lu.assertEquals(rules.embed, { "fsdp", "fsdp_transpose", "context", "expert" })
    lu.assertEquals(plan(1, "logical_axis_rules=[]").rules.mlp, plan(1).rules.mlp)
end

function TestRules.test_files_merge_and_words_come_last()
    with_file("logical_axis_rules:\n  - [mlp, [tensor]]\n  - [norm, [fsdp]]\n", function(path)
        local rules = plan(1, path, "logical_axis_rules=[[mlp, [fsdp_transpose]]]").rules
        lu.assertEquals({ rules.mlp, rules.norm, rules.layers }, { { "fsdp_transpose" }, { "fsdp" }, { "stage" } })
    end)
end

function TestRules.test_override()
    with_file("override_logical_axis_rules: true\nlogical_axis_rules: [[mlp, [tensor]]]\n", function(path)
        local m = plan(8, path, "ici tensor 2")
        lu.assertEquals({ m.rules.mlp, m.rules.embed, m.rules.activation_batch }, { { "tensor" }, {}, {} })
        local spec = m:spec({ "embed", "mlp" }, { 7, 4 }, "w")
        lu.assertEquals({ spec[1].parts, spec[2].kept }, { 1, { "tensor" } })
        local more = plan(8, path, "logical_axis_rules=[[embed, [fsdp]]]").rules
        lu.assertEquals({ more.mlp, more.embed, more.heads }, { { "tensor" }, { "fsdp" }, {} })
    end)
    refused({ "override_logical_axis_rules", "there are no logical_axis_rules" }, mx.config.load,
        { "override_logical_axis_rules=true" })
end

function TestRules.test_what_shares_the_batch_decides_what_is_gathered()
    -- Without fsdp among the axes of the batch, weights stay split over it.
    local m = plan(4, "logical_axis_rules=[[activation_batch,[data]]]")
    local d = m:spec({ "embed" }, { 8 }, "w")[1]
    lu.assertEquals({ d.kept, d.gathered }, { { "fsdp" }, {} })
end

function TestRules.test_mistakes()
    local function with(text, ...)
        refused({ "logical_axis_rules", ... }, mx.config.load, { "logical_axis_rules=" .. text })
    end
    with("[[mpl,[tensor]]]", "unknown logical name 'mpl', did you mean 'mlp'?")
    with("[[quxzyplugh,[tensor]]]", "unknown logical name 'quxzyplugh'; expected one of activation_batch, ")
    with("[[activation_embd,[tensor]]]", "unknown logical name 'activation_embd', did you mean 'activation_embed'?")
    with("[[mlp,[tensr]]]", "unknown mesh axis in the rule of 'mlp': 'tensr', did you mean 'tensor'?")
    with("[[mlp,[quxzyplugh]]]", "'quxzyplugh'; expected one of data, stage, ")
    with("[[mlp,[tensor,tensor]]]", "'mlp' names the mesh axis 'tensor' twice")
    for _, text in ipairs({ "[[mlp,[tensor]", "[mlp,[tensor]]", "mlp", "", "[[mlp]]", "[[mlp,[tensor],[fsdp]]]",
        "[[mlp,[2]]]", "[[3,[tensor]]]", "{mlp: [tensor]}", "[[mlp, null]]" }) do
        with(text, "expected a list of [logical name, [mesh axes]] such as [[activation_batch, [data, fsdp",
            "got '" .. text .. "'")
    end
    with_file("steps: 3\nlogical_axis_rules:\n  - [mlp, [tensr]]\n", function(path)
        refused({ path .. ":2: logical_axis_rules", "'tensr'" }, mx.config.load, { path })
    end)
    with_file("logical_axis_rules: 3\n", function(path)
        refused({ path .. ":1:", "expected a list of", "got 3" }, mx.config.load, { path })
    end)
end

-- Worked by hand from the semantics of Flax's logical_to_mesh_axes: the first rule, in the order of the list, whose
-- axes no other dimension of the tensor has.
function TestRules.test_a_second_rule_is_a_fallback()
    local m = plan(8, "ici fsdp_transpose 4", "ici fsdp 2")
    local function axes(...)
        local found = {}
        for i, d in ipairs(m:spec({ ... }, { 64, 64 }, "w")) do
            found[i] = table.concat(d.axes, " ")
        end
        return found
    end
    lu.assertEquals(axes("embed", "mlp"), { "fsdp", "fsdp_transpose" }) -- mlp comes first: the second rule of embed
    lu.assertEquals(axes("embed", false), { "fsdp fsdp_transpose", "" })
    lu.assertEquals(axes("heads", "embed_attn"), { "", "fsdp fsdp_transpose" })
    lu.assertEquals(axes("vocab", "embed_vocab"), { "", "fsdp fsdp_transpose" })
    -- A rule of one's own comes last: embed's first rule applies, and mlp's does not.
    m = plan(8, "ici fsdp_transpose 4", "ici fsdp 2", "logical_axis_rules=[[mlp,[fsdp_transpose]]]")
    lu.assertEquals(axes("embed", "mlp"), { "fsdp fsdp_transpose", "" })
    -- A rule applies with all its axes or not at all; axes of size 1 count.
    m = plan(8, "logical_axis_rules=[[mlp,[fsdp]],[embed,[fsdp,data]],[embed,[data]]]", "ici fsdp 4", "ici data 2",
        "override_logical_axis_rules=true")
    lu.assertEquals(axes("embed", "mlp"), { "data", "fsdp" })
    m = plan(8, "logical_axis_rules=[[mlp,[data,tensor]],[embed,[fsdp,tensor]]]", "ici fsdp 4", "ici data 2",
        "override_logical_axis_rules=true")
    lu.assertEquals(axes("embed", "mlp"), { "", "data" })
    lu.assertEquals(#plan(1, "logical_axis_rules=[[embed,[fsdp]],[embed,[]]]").list,
        #plan(1).list) -- both replace both
end

function TestRules.test_maxtexts_names_and_axes()
    -- Without a counterpart, and with axes whose size is always 1.
    local m = plan(2, "logical_axis_rules=[[exp,expert],[q_lora,[fsdp,sequence]],[mlp,[fsdp_transpose,tensor,"
        .. "tensor_sequence,autoregressive]],[embed,[fsdp,sequence,tensor_transpose,context,expert]]]")
    lu.assertEquals(m:spec({ "embed", "mlp" }, { 8, 8 }, "w")[1].axes, { "fsdp" })
    -- A name that is split as another is: alike or not at all.
    plan(2, "ici tensor 2", "logical_axis_rules=[[q_heads,[tensor,tensor_sequence,autoregressive]]]")
    plan(2, "ici fsdp_transpose 2", "ici fsdp 1", "logical_axis_rules=[[activation_mlp,[tensor,tensor_sequence]]]")
    refused({ "activation_mlp is split over []", "as mlp is, over [tensor]" }, plan, 2, "ici tensor 2",
        "logical_axis_rules=[[activation_mlp,[]]]")
    refused({ "q_heads is split over [fsdp]", "as heads is, over []" }, plan, 2, "logical_axis_rules=[[q_heads,fsdp]]")
    refused({ "kv (the features of a head) is split over [fsdp]", "give it []" }, plan, 2,
        "logical_axis_rules=[[kv,[fsdp,tensor]]]")
    plan(2, "ici tensor 2", "logical_axis_rules=[[kv,[fsdp]]]")
end

function TestRules.test_every_name_of_its_own_has_a_standard_rule()
    local found = {}
    for _, rule in ipairs(config().logical_axis_rules) do
        found[rule[1]] = true
    end
    for name in pairs(require("mx.parallel.names").OWN) do
        lu.assertTrue(found[name], name)
    end
end

function TestRules.test_a_list_of_words_is_still_one()
    with_file("mlp_activations: {silu: linear}\n", function(path)
        refused({ "expected a list such as [silu, linear]" }, mx.config.load, { path })
    end)
end

function TestRules.test_a_dump_reads_back_the_same()
    for _, words in ipairs({
        {}, { "logical_axis_rules=[[mlp,[tensor]],[norm,[]]]" }, { "logical_axis_rules=[[mlp,[tensor]],[mlp,[]]]" },
        { "logical_axis_rules=[[mlp,[tensor]]]", "override_logical_axis_rules=true" },
    }) do
        local c = mx.config.load(words)
        with_file(mx.config.dump(c), function(path)
            lu.assertEquals(mx.config.dump(mx.config.load({ path })), mx.config.dump(c))
        end)
        local stored = mx.config.load({}, { stored = mx.config.dump(c), stored_name = "stored" })
        lu.assertEquals(mx.config.dump(stored), mx.config.dump(c))
    end
    lu.assertNotStrContains(mx.config.dump(mx.config.load({}), true), "logical_axis_rules")
    lu.assertEquals(mx.config.dump(mx.config.load({ "logical_axis_rules=[[mlp,[tensor]]]" }), true),
        "logical_axis_rules:\n  - [mlp, [tensor]]\n")
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
