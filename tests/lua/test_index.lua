--- t[i], t[{...}], assignment to parts, printing, and the forms of shapes. Expected values are taken from nested Lua
-- tables.
-- guarded

local mx = require "mx"
local lu = require "luaunit"

local function refused(parts, fn)
    local good, message = pcall(fn)
    lu.assertFalse(good, table.concat(parts, " "))
    for _, part in ipairs(parts) do
        lu.assertStrContains(tostring(message), part)
    end
    lu.assertNil(tostring(message):find("\n"), message)
end

-- The first and last position that an entry of an index names in a dimension of this size, the step between positions,
-- and whether it is a number.
local function bounds(entry, size)
    local function at(i) return i < 0 and size + 1 + i or i end
    if type(entry) == "number" then
        return at(entry), at(entry), 1, true
    end
    return at(entry[1] or 1), at(entry[2] or size), entry[3] or 1, false
end

-- The part of a nested table.
local function slice(values, index, depth)
    depth = depth or 1
    if type(values) ~= "table" then
        return values
    end
    local first, last, step, single = bounds(index[depth] or {}, #values)
    local part = {}
    for i = first, last, step do
        part[#part + 1] = slice(values[i], index, depth + 1)
    end
    return single and part[1] or part
end

-- Sets that part of a nested table to a number.
local function assign(values, index, number, depth)
    depth = depth or 1
    local first, last, step = bounds(index[depth] or {}, #values)
    for i = first, last, step do
        if type(values[i]) == "table" then
            assign(values[i], index, number, depth + 1)
        else
            values[i] = number
        end
    end
end

local INDICES = {
    { 2 }, { -1 }, { {} }, { { 1, 2 } }, { { -2, -1 } }, { {}, 3 }, { {}, {}, -1 }, { { 2, 3 }, -1 },
    { {}, { 2, 3 }, { 1, 2 } }, { 1, 2 }, { 1, {}, { 2, 4 } }, { { 1, 3 }, { 4, 4 }, 5 }, { 3, 4, 5 },
    { {}, { 1, -1 } },
    { { 1, -1, 2 } }, { {}, { -1, 1, -1 } }, { { 3, 1, -2 }, 2, { 2, 5, 2 } }, { {}, { 1, 4, 2 }, { 5, 2, -2 } },
    { 1, {}, { 1, 4, 5 } }, { {}, { 2, 3 }, { 1, -1, 3 } },
}

local function numbers(dtype)
    return mx.arange(60, dtype):view(3, 4, 5)
end

TestIndex = {}

function TestIndex.test_parts_are_those_of_nested_tables()
    for _, dtype in ipairs { "f32", "bf16", "i32", "u8" } do
        local t = numbers(dtype)
        for i, index in ipairs(INDICES) do
            local part, expected = t[index], slice(t:totable(), index)
            lu.assertEquals(type(part) == "number" and part or part:totable(), expected, i .. dtype)
        end
    end
end

function TestIndex.test_rows_from_the_end_and_empty_ranges()
    local t = numbers "i32"
    lu.assertEquals(t[-3]:totable(), t[1]:totable())
    lu.assertEquals(mx.tensor { 7, 8, 9 }[-1], 9.0)
    lu.assertEquals(t[{ { 4, 3 } }]:size(), { 0, 4, 5 })
    lu.assertEquals(t[{ {}, { 1, 0 }, 2 }]:size(), { 3, 0 })
    lu.assertEquals(t[{}]:size(), { 3, 4, 5 })
end

function TestIndex.test_contiguous_parts_are_views()
    local t = mx.zeros(3, 4)
    mx.fill(t[{ { 2, 3 } }], { value = 1 })
    mx.fill(t[{ 1, { 2, 3 } }], { value = 2 })
    lu.assertEquals(t:totable(), { { 0, 2, 2, 0 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 } })
end

function TestIndex.test_gradients()
    for i, index in ipairs(INDICES) do
        local w = numbers "f32":clone():requires_grad()
        local part = w[index]
        mx.backward((part * 2):sum())
        local expected = mx.zeros(3, 4, 5):totable()
        assign(expected, index, 2)
        lu.assertEquals(w:grad():totable(), expected, i)
    end
end

function TestIndex.test_an_element_carries_its_gradient()
    local w = mx.tensor { 2, 3, 5 }:requires_grad()
    mx.backward(w[1] * w[1] + w[3] * 7)
    lu.assertEquals(w:grad():totable(), { 4, 0, 7 })
    local h = w * 2 -- computed, and recorded
    w:zero_grad()
    mx.backward(h[2])
    lu.assertEquals(w:grad():totable(), { 0, 2, 0 })
end

function TestIndex.test_an_element_is_a_number_where_nothing_is_recorded()
    local w = mx.tensor { 2, 3, 5 }:requires_grad()
    lu.assertEquals(mx.no_grad(function() return w[2] end), 3)
    lu.assertEquals(w:detach()[2], 3)
    lu.assertEquals(mx.tensor({ 4, 5 }, "i32")[-1 + 2], 4)
    lu.assertEquals(mx.tensor({ 4, 5 })[2.0], 5) -- as a Lua table takes it
end

function TestIndex.test_an_element_works_like_a_tensor()
    local w = mx.tensor { 2, 3, 5 }:requires_grad()
    local e = w[2]
    lu.assertEquals({ e:item(), (e + 1):item(), (1 / e):item(), mx.lt(e, 4):item(), e:dim(), e:numel() },
        { 3, 4, mx.tensor(1 / 3):item(), 1, 0, 1 })
    lu.assertTrue(w[1] < w[2] and w[2] <= 3 and 4 > w[2] and w[3] >= w[3])
    lu.assertFalse(w[2] < w[1] or w[2] > 3)
    lu.assertStrContains(tostring(e), "3")
    refused({ "one element", "f32 (3)", "t:lt" }, function() return w < 1 end)
end

function TestIndex.test_an_element_of_a_matrix()
    local w = numbers "f32":clone()
    lu.assertEquals(w[{ 1, 2, 3 }], 7.0)
    w:requires_grad()
    lu.assertEquals(w[{ 1, 2, 3 }]:size(), {})
    lu.assertEquals(mx.no_grad(function() return w[{ 1, 2, 3 }] end), 7.0)
end

function TestIndex.test_assignment_of_numbers_and_tensors()
    for _, dtype in ipairs { "f32", "bf16", "i32", "u8" } do
        for i, index in ipairs(INDICES) do
            local t = numbers(dtype)
            local expected = t:totable()
            assign(expected, index, 99)
            t[index] = 99
            lu.assertEquals(t:totable(), expected, i .. dtype)
            local back, part = numbers(dtype), numbers(dtype)[index]
            if type(part) ~= "number" then
                t[index] = part
                lu.assertEquals(t:totable(), back:totable(), i .. dtype)
            end
        end
    end
    local t = mx.zeros(3, 2)
    t[2] = mx.ones(2)
    t[-1] = 5
    lu.assertEquals(t:totable(), { { 0, 0 }, { 1, 1 }, { 5, 5 } })
end

function TestIndex.test_assignment_from_the_tensor_itself()
    local t = mx.arange(6):view(3, 2)
    t[{ { 1, 2 } }] = t[{ { 2, 3 } }]
    lu.assertEquals(t:totable(), { { 2, 3 }, { 4, 5 }, { 4, 5 } })
end

-- Values that overlap the part are read before they change, also where several threads and vectors copy them.
function TestIndex.test_overlapping_parts()
    local n = 300000
    local before = mx.arange(n)
    local function same(got, want)
        lu.assertEquals(mx.all(got:eq(want)):item(), 1)
    end
    for _, distance in ipairs { 1, 7, 300, 70000 } do
        local early, late = { { 1, n - distance } }, { { 1 + distance, n } }
        local up, down, sums, products = before:clone(), before:clone(), before:clone(), before:clone()
        up[late] = up[early]
        same(up[late], before[early])
        down[early] = down[late]
        same(down[early], before[late])
        mx.add_(sums[late], sums[early])
        same(sums[late], before[late] + before[early])
        mx.mul_(products:narrow { dim = 1, start = 1, length = n - distance }, products[late])
        same(products[early], before[early] * before[late])
    end
    local matrix = mx.arange(6):view(2, 3) + 1
    mx.add_(matrix, matrix[1]) -- a row that is broadcast to itself
    lu.assertEquals(matrix:totable(), { { 2, 4, 6 }, { 5, 7, 9 } })
    mx.copy(matrix, matrix)
    mx.add_(matrix, matrix)
    lu.assertEquals(matrix:totable(), { { 4, 8, 12 }, { 10, 14, 18 } })
end

function TestIndex.test_steps_beyond_the_tensor()
    local t = mx.arange(6)
    lu.assertEquals(t[{ { 2, 6, math.maxinteger } }]:totable(), { 1 })
    lu.assertEquals(t[{ { 5, 1, math.mininteger } }]:totable(), { 4 })
    lu.assertEquals(t[{ { 1, 6, 5 } }]:totable(), { 0, 5 })
end

function TestIndex.test_assignment_while_recording()
    local w = mx.ones(2, 3):requires_grad()
    local h = w * 3
    refused({ "was computed by recorded operations", "gradient would be wrong", "mx.where" }, function() h[1] = 0 end)
    refused({ "requires a gradient", "value:detach()" }, function() mx.zeros(2, 3)[1] = w[1] end)
    local square = w * w -- reads w
    refused({ "backward still reads" }, function() w[1] = 0 end)
    mx.backward(square:sum() + h:sum())
    w[1] = 0
    lu.assertEquals(w:totable(), { { 0, 0, 0 }, { 1, 1, 1 } })
    mx.no_grad(function()
        local g = w * 3
        g[1] = 7
        lu.assertEquals(g[1]:totable(), { 7, 7, 7 })
    end)
    local before = w * w
    mx.no_grad(function() w[2] = 4 end)
    refused({ "changed" }, function() mx.backward(before:sum()) end)
end

function TestIndex.test_whole_floats_are_sizes()
    lu.assertEquals(mx.zeros(4 / 2):size(), { 2 })
    lu.assertEquals(mx.ones(3, 4 / 2, "i32"):size(), { 3, 2 })
    lu.assertEquals(mx.randn(4 / 2, 3):size(), { 2, 3 })
    refused({ "2.5" }, function() mx.zeros(3, 2.5) end)
end

function TestIndex.test_wrong_indices()
    local t = numbers "i32"
    refused({ "index 0 of dimension 1", "i32 (3, 4, 5)", "count from 1" }, function() return t[0] end)
    refused({ "index 4 of dimension 1" }, function() return t[4] end)
    for _, i in ipairs { -4, math.maxinteger, math.mininteger } do
        refused({ ("index %d of dimension 1"):format(i) }, function() return t[i] end)
    end
    refused({ "index 5 of dimension 2" }, function() return t[{ 1, { 2, 5 } }] end)
    refused({ "range {3, 1} of dimension 3 ends before it begins" }, function() return t[{ {}, {}, { 3, 1 } }] end)
    refused({ "a range is {first, last}", "dimension 1" }, function() return t[{ { 1 } }] end)
    refused({ "a range is {first, last}" }, function() return t[{ { 1, 2.5 } }] end)
    refused({ "4 entries", "has 3", "t[{ {first, last} }]" }, function() return t[{ 1, 1, 1, 1 }] end)
    refused({ "entry 2 of t[{...}] is a;" }, function() return t[{ 1, "a" }] end)
    refused({ "field 'dim'" }, function() return t[{ dim = 1 }] end)
    refused({ "not by 1.5", "whole number" }, function() return t[1.5] end)
    refused({ "not by true" }, function() return t[true] end)
    refused({ "no dimensions", "t:item()" }, function() return mx.tensor(3)[1] end)
    refused({ "expected a number or a tensor" }, function() t[1] = "a" end)
    refused({ "= 1.5", "cannot hold it" }, function() t[1] = 1.5 end)
    refused({ "= 9007199254740993", "t:set", [[mx.tensor(n, "i64")]] }, function()
        mx.zeros({ 2 }, "i64")[1] = 9007199254740993
    end)
    refused({ "f32 (4, 5)", [[value:to("i32")]] }, function() t[1] = mx.zeros(4, 5) end)
    refused({ "i32 (4)", "(4, 5)" }, function() t[1] = mx.zeros({ 4 }, "i32") end)
    refused({ "no fields to assign", "'x'" }, function() t.x = 1 end)
end

function TestIndex.test_masks_choose_elements_and_rows()
    for _, dtype in ipairs { "f32", "bf16", "i32", "u8" } do
        local t = numbers(dtype)
        lu.assertEquals(t[t:gt(54)]:totable(), mx.arange(5, { start = 55 }):totable(), dtype)
        local rows = t[mx.tensor({ 1, 0, 255 }, "u8")]
        lu.assertEquals(rows:totable(), { t[1]:totable(), t[3]:totable() }, dtype)
        lu.assertEquals(t[mx.zeros({ 3, 4 }, "u8")]:size(), { 0, 5 })
        t[mx.tensor({ 0, 1, 0 }, "u8")] = 3
        t[t:gt(50)] = 1
        local expected = numbers(dtype):totable()
        assign(expected, { 2 }, 3)
        for d, row in ipairs(expected[3]) do
            for e, value in ipairs(row) do
                expected[3][d][e] = value > 50 and 1 or value
            end
        end
        lu.assertEquals(t:totable(), expected, dtype)
    end
end

function TestIndex.test_ids_choose_rows_from_0()
    local t = numbers "i32"
    lu.assertEquals(t[mx.tensor({ 2, 0, 2 }, "i32")]:totable(), { t[3]:totable(), t[1]:totable(), t[3]:totable() })
    lu.assertEquals(mx.tensor { 5, 6, 7 }[mx.tensor({ { 1 }, { 0 } }, "i32")]:totable(), { { 6 }, { 5 } })
    lu.assertErrorMsgContains("3", function() return t[mx.tensor({ 3 }, "i32")] end)
end

function TestIndex.test_assignment_to_ids_and_masks()
    for _, dtype in ipairs { "f32", "bf16", "i32", "u8" } do
        local t = numbers(dtype)
        local part = mx.arange(40, dtype):view(2, 4, 5)
        t[mx.tensor({ 2, 0 }, "i32")] = part
        lu.assertEquals({ t[3]:totable(), t[1]:totable() }, part:totable(), dtype)
        t[mx.tensor({ { 1, 1 } }, "i32")] = part:view(1, 2, 4, 5)
        lu.assertEquals(t[2]:totable(), part[2]:totable(), "of equal ids the last one")
        t[mx.tensor({ 1 }, "i32")] = 7
        lu.assertEquals(t[2]:totable(), mx.full({ 4, 5 }, 7, dtype):totable())
        t[t:gt(6)] = t[t:gt(6)] - mx.full({}, 1, dtype)
        lu.assertEquals(t[2]:totable(), mx.full({ 4, 5 }, 6, dtype):totable())
        lu.assertEquals({ t:get(3, 2, 3), t:get(3, 2, 4) }, { 6, 7 })
        t[mx.tensor({ 0, 1, 1 }, "u8")] = part
        lu.assertEquals(t[{ { 2, 3 } }]:totable(), part:totable())
        t[mx.tensor({}, "i32")] = 3
    end
    for _, id in ipairs { 3, -1 } do
        refused({ ("t[ids] = value: id %d is outside 0 .. 2"):format(id), "i32 (3, 4, 5)" }, function()
            numbers("i32")[mx.tensor({ 1, id }, "i32")] = 0
        end)
    end
    local w, g = mx.ones(3):requires_grad(), mx.zeros(3, 2)
    w[mx.tensor({ 1 }, "i32")] = 5 -- a leaf
    lu.assertEquals(w:totable(), { 1, 5, 1 })
    refused({ "requires a gradient" }, function() g[mx.tensor({ 1 }, "i32")] = w[{ { 1, 2 } }]:view(1, 2) end)
end

function TestIndex.test_empty_steps()
    local t = numbers "i32"
    lu.assertEquals(t[{ {}, { 3, 2, 2 } }]:size(), { 3, 0, 5 })
    lu.assertEquals(t[{ { 1, 2, -1 } }]:size(), { 0, 4, 5 })
    lu.assertEquals(t[{ 2, 3, { 4, 1, -9 } }]:totable(), { t:get(2, 3, 4) })
end

function TestIndex.test_gradients_of_chosen_elements()
    local w = mx.arange(6):view(3, 2):clone():requires_grad()
    mx.backward((w[w:detach():gt(3)] * 2):sum() + (w[mx.tensor({ 0, 0 }, "i32")] * 5):sum())
    lu.assertEquals(w:grad():totable(), { { 10, 10 }, { 0, 0 }, { 2, 2 } })
    local h = w * 2
    refused({ "was computed by recorded operations" }, function() h[h:detach():gt(1)] = 0 end)
end

function TestIndex.test_what_chooses_nothing()
    local t = numbers "f32"
    refused({ "x is f32 (3)", "a mask (u8", "ids (i32" }, function() return t[mx.ones(3)] end)
    refused({ "the mask is u8 (2)", "first sizes" }, function() return t[mx.ones(2, "u8")] end)
    refused({ "no dimensions" }, function() return mx.tensor(1)[mx.tensor({ 0 }, "i32")] end)
    refused({ "3" }, function() t[mx.tensor({ 3 }, "i32")] = 1 end)
    refused({ "the value is f32 (2)", "(2, 4, 5)" }, function() t[mx.tensor({ 0, 1 }, "i32")] = mx.ones(2) end)
    refused({ "the value is i32 (1, 4, 5)", 'value:to("f32")' }, function()
        t[mx.tensor({ 0 }, "i32")] = numbers "i32"[{ { 1, 1 } }]
    end)
    refused({ "a range is", "a step other than 0" }, function() return t[{ { 1, 2, 0 } }] end)
    refused({ "range {1, 3}", "a step of 1 walks" }, function() return t[{ { 1, 3, -1 } }] end)
    refused({ "the value is f32 (9)", "t[x] has shape" }, function() t[t:gt(1)] = mx.ones(9) end)
    refused({ "entry 1", "a tensor", "mx.index_select" }, function() return t[{ mx.ones(2) }] end)
    refused({ "= 1.5", "cannot hold it" }, function() numbers "i32"[mx.ones(3, "u8")] = 1.5 end)
end

function TestIndex.test_iteration_ends_quietly()
    local seen = {}
    for i, row in ipairs(mx.arange(6):view(3, 2)) do
        seen[i] = row:totable()
    end
    lu.assertEquals(seen, { { 0, 1 }, { 2, 3 }, { 4, 5 } })
    for _ in ipairs(mx.zeros(0, 2)) do
        lu.fail("a tensor without rows has none")
    end
end

TestForms = {}

function TestForms.test_shapes()
    for _, make in ipairs { mx.zeros, mx.ones, mx.randn, mx.rand } do
        lu.assertEquals(make(2, 3):size(), { 2, 3 })
        lu.assertEquals(make { 2, 3 }:size(), { 2, 3 })
        lu.assertEquals(make { shape = { 2, 3 } }:size(), { 2, 3 })
        for _, t in ipairs { make(2, 3, "bf16"), make({ 2, 3 }, "bf16"), make(2, 3, { dtype = "bf16" }) } do
            lu.assertEquals({ t:dtype(), t:size() }, { "bf16", { 2, 3 } })
        end
    end
    lu.assertEquals(mx.arange(4):totable(), { 0, 1, 2, 3 })
    lu.assertEquals(mx.arange(3, "i32"):totable(), mx.arange { n = 3, dtype = "i32" }:totable())
    lu.assertEquals(mx.arange(3, { start = 5, step = 2 }):totable(), { 5, 7, 9 })
    lu.assertEquals(mx.arange(6):view { 2, -1 }:size(), { 2, 3 })
    lu.assertEquals(mx.arange(6):reshape(2, -1):size(), { 2, 3 })
    lu.assertEquals(mx.arange(3):view(1, 3):expand(2, -1):totable(), { { 0, 1, 2 }, { 0, 1, 2 } })
    lu.assertEquals(mx.arange(0, 4):totable(), { 0, 1, 2, 3 })
    lu.assertEquals(mx.arange(2, 9, 3, "i32"):totable(), { 2, 5, 8 })
    lu.assertEquals(mx.arange(5, 0, -2, { dtype = "f64" }):totable(), { 5, 3, 1 })
    lu.assertEquals(mx.arange(3, 3):size(), { 0 })
    lu.assertEquals(mx.zeros(2, 3):tile(1, 2):permute(2, 1):size(), { 6, 2 })
    lu.assertEquals(mx.arange(6):view(2, 3):tolist(), { { 0, 1, 2 }, { 3, 4, 5 } })
    refused({ "full", "by name" }, function() return mx.full(2, 3) end)
    refused({ "unknown dtype 'f23'" }, function() return mx.zeros(2, "f23") end)
end

function TestForms.test_squeeze_unsqueeze_and_transposed()
    local t = mx.arange(6):view(1, 2, 1, 3)
    lu.assertEquals(t:squeeze():size(), { 2, 3 })
    lu.assertEquals(t:squeeze { dim = 3 }:size(), { 1, 2, 3 })
    lu.assertEquals(t:squeeze { dim = -4 }:size(), { 2, 1, 3 })
    lu.assertEquals(t:squeeze():unsqueeze { dim = -1 }:size(), { 2, 3, 1 })
    lu.assertEquals(t:squeeze():unsqueeze { dim = 1 }:size(), { 1, 2, 3 })
    lu.assertEquals(t:squeeze().T:totable(), { { 0, 3 }, { 1, 4 }, { 2, 5 } })
    local w = mx.ones(2, 1):requires_grad()
    mx.backward((w:squeeze():unsqueeze { dim = 1 } * mx.tensor { { 3, 4 } }):sum())
    lu.assertEquals(w:grad():totable(), { { 3 }, { 4 } })
    refused({ "dimension 2", "has size 2, not 1" }, function() return t:squeeze { dim = 2 } end)
    refused({ "squeeze: dim = 5 is outside 1 .. 4" }, function() return t:squeeze { dim = 5 } end)
    refused({ "unsqueeze: dim = 0 is outside 1 .. 5" }, function() return t:unsqueeze { dim = 0 } end)
    refused({ "unsqueeze(t, { dim = 1 })" }, function() return t:unsqueeze(1) end)
    refused({ "'dmi'", "'dim'" }, function() return t:unsqueeze { dmi = 1 } end)
    refused({ "t.T is for matrices", "mx.permute" }, function() return t.T end)
end

TestPrint = {}

function TestPrint.test_the_last_line_says_what_the_tensor_is()
    local t = mx.name(mx.tensor { { 1, 0 / 0, -(0 / 0) }, { 1 / 0, 2, 3 } }, "w")
    lu.assertStrMatches(tostring(t):match("%b[]$"), "%[f32 tensor of size 2x3 w on .*host, 2 NaN, 1 infinite%]")
    lu.assertStrMatches(tostring(mx.zeros(2, "i32")):match("%b[]$"), "%[i32 tensor of size 2 on .*host%]")
    lu.assertStrContains(tostring(mx.full { shape = { 3000 }, value = 0 / 0, dtype = "bf16" }), "3000 NaN")
    lu.assertStrContains(tostring(mx.tensor { -(0 / 0) }), "   nan\n")
end

function TestPrint.test_large_tensors_are_shortened()
    local text = tostring(mx.zeros(100, 100, 100))
    lu.assertTrue(#text < 8000)
    lu.assertStrContains(text, "...")
    lu.assertStrContains(text, "100x100x100")
end

function TestPrint.test_precision_and_edge()
    lu.assertStrContains(tostring(mx.tensor { 1 / 3 }), " 0.3333\n")
    lu.assertEquals(mx.print_options { precision = 8, edge = 20 }, { precision = 8, edge = 20 })
    lu.assertStrContains(tostring(mx.tensor { 1 / 3 }), "0.33333334\n") -- the nearest f32 is 0.3333333433
    lu.assertNotStrContains(tostring(mx.zeros(30)), "...")
    mx.print_options { precision = 4, edge = 5 }
    lu.assertStrContains(tostring(mx.zeros(30)), "...")
    refused({ "precision = 18 is outside 1 .. 17" }, function() mx.print_options { precision = 18 } end)
    refused({ "edge = 1 is outside" }, function() mx.print_options { edge = 1 } end)
    refused({ "'precison'", "'precision'" }, function() mx.print_options { precison = 3 } end)
end

TestNearest = {}

function TestNearest.test_names_of_other_libraries_and_misspelt_ones()
    local t = mx.zeros(2, 3)
    local ours = {
        veiw = "view", ndim = "dim", shape = "size", requires_gard = "requires_grad", numpy = "totable", cat = "concat",
    }
    for given, name in pairs(ours) do
        refused({ given, ("'%s'"):format(name) }, function() return t[given] end)
    end
    refused({ "mx.cat", "mx.concat" }, function() return mx.cat end)
    refused({ "mx.randn_like does not exist; PyTorch's randn_like is mx.randn here" },
        function() return mx.randn_like end)
    for _, range in ipairs { { 0, 1, 0 }, { 0, 1, 1, 2 }, { 0, 1, true }, { 0, 0 / 0 }, { 0, 1, 1, "i32", 2 } } do
        refused({ "arange takes (n), (first, last) or (first, last, step)" }, function()
            mx.arange(table.unpack(range))
        end)
    end
    refused({ "leaky_relu has no option 'slope'; did you mean 'negative_slope'?" }, function()
        mx.leaky_relu(mx.ones(2), { slope = 1 })
    end)
    refused({ "sum has no option 'weights'; it has dim and keepdim" }, function()
        mx.sum(mx.ones(2), { weights = 1 })
    end)
    refused({ "'targets' must be (2, 5), as the last dimension of logits is that of the classes" }, function()
        mx.softmax_cross_entropy(mx.ones(2, 5, 3), mx.zeros({ 2, 3 }, "i32"))
    end)
    refused({ "mx.sweep has no option 'space', did you mean 'grid'?" }, function() mx.sweep { space = {} } end)
    refused({ "mx.arrange", "mx.arange" }, function() return mx.arrange end)
    refused({ "mx.modles", "mx.models" }, function() return mx.modles end)
    refused({ "'sede'", "'seed'" }, function() return mx.rand(2, { sede = 1 }) end)
    refused({ "'dim0'", "'dim1'" }, function() return mx.transpose(t, { dim0 = 1 }) end)
    refused({ "'axis'", "'dim'" }, function() return t:sum { axis = 1 } end)
    refused({ "'lr'", "'learning_rate'" }, function() return mx.optim.adamw({}, { lr = 1 }) end)
end
