-- What splits a tensor on a mesh: the parts of its dimensions, and the rules that say so.

local lu = require "luaunit"
local mx = require "mx"
local checks = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "checks.lua")

local config, plan, refused = checks.mesh_config, checks.mesh, checks.assert_refused
local each_mesh = checks.each_mesh

TestSpec, TestRules = {}, {}

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

-- Ranks along expert keep their experts; all other axes that share the batch are gathered.
function TestSpec.test_weights_of_experts()
    local m = plan(96, "ici fsdp 2", "ici fsdp_transpose 2", "ici tensor 2", "ici expert 4", "ici context 3")
    local function axes(spec)
        local found = {}
        for i, d in ipairs(spec) do
            found[i] = { d.kept, d.gathered }
        end
        return found
    end
    local logical = { "exp", "embed_moe", "mlp_moe" }
    lu.assertEquals(axes(m:spec(logical, { 8, 64, 96 }, "w")),
        { { { "expert" }, {} }, { {}, { "fsdp", "context" } }, { { "tensor" }, { "fsdp_transpose" } } })
    lu.assertEquals(axes(m:spec({ "embed_router", false }, { 64, 8 }, "w")),
        { { {}, { "fsdp", "fsdp_transpose", "context" } }, { {}, {} } })
    m = plan(8, "ici fsdp 2", "ici expert 4", "logical_axis_rules=[[exp,[expert,fsdp]],[embed_moe,[context]]]")
    lu.assertEquals(axes(m:spec(logical, { 8, 64, 96 }, "w"))[1], { { "expert" }, { "fsdp" } })
    m = plan(8, "ici fsdp 2", "ici expert 4", "logical_axis_rules=[[activation_exp,[]]]")
    lu.assertEquals(axes(m:spec(logical, { 8, 64, 96 }, "w"))[1], { {}, { "expert" } })
    refused({ "dimension 1 (exp) has 3 elements, too few for 4 parts (expert=4)", "change num_experts or ici_expert_" },
        m.spec, m, logical, { 3, 64, 96 }, "w")
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
    local two = plan(8, "ici fsdp 4", "ici fsdp_transpose 2")
    refused({ "has 6 elements, too few for 8 parts", "change kv_lora_rank or", "such as [[embed_attn, [fsdp]]]" },
        two.spec, two, { "embed_attn" }, { 6 }, "layer001.kv_b.weight")
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
    lu.assertEquals(rules.embed, { "fsdp", "fsdp_transpose", "context", "context_usp_ulysses", "expert" })
    lu.assertEquals(rules.mlp, { "fsdp_transpose", "tensor", "tensor_sequence" })
    lu.assertEquals(rules.activation_embed, { "tensor" })
    lu.assertEquals(rules.norm, { "tensor" })
    lu.assertEquals(rules.layers, { "stage" })
end

function TestRules.test_words_merge()
    local rules = plan(1, "logical_axis_rules=[[mlp,[tensor]],[norm,fsdp],[heads,[]]]").rules
    lu.assertEquals({ rules.mlp, rules.norm, rules.heads }, { { "tensor" }, { "fsdp" }, {} })
    lu.assertEquals(rules.embed, { "fsdp", "fsdp_transpose", "context", "context_usp_ulysses", "expert" })
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

