--- Datasets from tensors and iterators: which examples come, in which order, and how they resume.

local mx = require "mx"
local lu = require "luaunit"

local function refused(parts, fn, ...)
    local good, message = pcall(fn, ...)
    lu.assertFalse(good, table.concat(parts, " "))
    for _, part in ipairs(parts) do
        lu.assertStrContains(tostring(message), part)
    end
end

-- All values of field x in the batches of an epoch, and the batches' sizes.
local function epoch_of(d)
    local seen, sizes = {}, {}
    for batch in d:epoch() do
        sizes[#sizes + 1] = #batch.x
        for _, value in ipairs(batch.x:totable()) do
            seen[#seen + 1] = math.tointeger(value)
        end
    end
    return seen, sizes
end

local function count_to(n)
    return function()
        local i = 0
        return function()
            i = i + 1
            return i <= n and { x = i, y = mx.full({ 2 }, i) } or nil
        end
    end
end

local function sorted(list)
    local copy = table.move(list, 1, #list, 1, {})
    table.sort(copy)
    return copy
end

local function up_to(n)
    local list = {}
    for i = 1, n do
        list[i] = i
    end
    return list
end

local function sources()
    return { tensors = { x = mx.arange(11, { dtype = "i32", start = 1 }) }, iterator = count_to(11) }
end

TestDataset = {}

function TestDataset.test_an_epoch_has_every_example_once()
    for kind, source in pairs(sources()) do
        local d = mx.data.dataset(source, { batch = 4, drop_last = false, buffer = 5 })
        local first, sizes = epoch_of(d)
        lu.assertEquals({ sorted(first), sizes }, { up_to(11), { 4, 4, 3 } }, kind)
        local second = epoch_of(d)
        lu.assertEquals(sorted(second), up_to(11), kind)
        lu.assertNotEquals(first, second, kind)
        lu.assertNotEquals(first, up_to(11), kind)
        lu.assertEquals(epoch_of(mx.data.dataset(source, { batch = 4, drop_last = false, buffer = 5 })), first, kind)
        lu.assertNotEquals(epoch_of(mx.data.dataset(source, { batch = 4, drop_last = false, buffer = 5, seed = 1 })),
            first, kind)
    end
end

function TestDataset.test_without_shuffling_and_without_the_rest()
    for kind, source in pairs(sources()) do
        local d = mx.data.dataset(source, { batch = 4, shuffle = false })
        lu.assertEquals({ epoch_of(d) }, { up_to(8), { 4, 4 } }, kind)
        lu.assertEquals(d.epochs, 1, kind)
    end
end

function TestDataset.test_fields_stay_together()
    local x = mx.arange(20)
    local d = mx.data.dataset({ x = x, square = (x * x):view(20, 1):to("bf16"), id = x:to("u8") }, { batch = 7 })
    for batch in d:epoch() do
        lu.assertEquals(batch.square:size(), { 7, 1 })
        lu.assertEquals({ batch.square:dtype(), batch.id:dtype() }, { "bf16", "u8" })
        lu.assertEquals(batch.id:totable(), batch.x:to("u8"):totable())
        lu.assertEquals(batch.square:view(7):totable(), (batch.x * batch.x):to("bf16"):totable())
    end
    local batch = mx.data.dataset(count_to(9), { batch = 3 }):next()
    lu.assertEquals({ batch.x:dtype(), batch.y:size() }, { "i32", { 3, 2 } })
    lu.assertEquals(batch.y[{ {}, 1 }]:totable(), batch.x:to("f32"):totable())
end

function TestDataset.test_resuming_continues_with_the_next_batch()
    for kind, source in pairs(sources()) do
        local d = mx.data.dataset(source, { batch = 3, buffer = 4 })
        for _ = 1, 5 do -- into the second epoch
            d:next()
        end
        local state = mx.io.json_decode(mx.io.json_encode(d:state()))
        local expected = {}
        for i = 1, 4 do
            expected[i] = d:next().x:totable()
        end
        local again = mx.data.dataset(source, { batch = 3, buffer = 4 })
        again:restore(state)
        for i = 1, 4 do
            lu.assertEquals(again:next().x:totable(), expected[i], kind)
        end
    end
end

function TestDataset.test_the_order_does_not_depend_on_the_batch()
    for _, source in pairs(sources()) do
        local one = epoch_of(mx.data.dataset(source, { batch = 1, buffer = 4 }))
        local several = epoch_of(mx.data.dataset(source, { batch = 4, buffer = 4, drop_last = false }))
        lu.assertEquals(several, one)
    end
end

function TestDataset.test_map()
    local d = mx.data.dataset({ x = mx.arange(6) }, { batch = 2, shuffle = false })
    local tens = mx.data.map(d, function(batch) return { x = batch.x * 10 } end)
    local twice = mx.data.map(tens, function(batch) return { x = batch.x + 1 } end)
    lu.assertEquals(tens:next().x:totable(), { 0, 10 })
    lu.assertEquals(twice:next().x:totable(), { 21, 31 }) -- one position
    lu.assertEquals(d:state().samples, 4)
    lu.assertEquals(twice:describe(), "examples 3 to 4 of epoch 1")
    refused({ "must be a dataset" }, mx.data.map, {}, print)
end

function TestDataset.test_examples_outlive_steps()
    local d = mx.data.dataset(count_to(40), { batch = 2, buffer = 10 })
    local sum = 0
    for _ = 1, 20 do
        local step <close> = mx.step()
        sum = sum + d:next().y:sum():item()
    end
    lu.assertEquals(sum, 2 * 40 * 41 / 2)
end

-- Numbers, tables of numbers and tensors of each example become the rows of tensors.
function TestDataset.test_a_list_of_examples()
    local list = {}
    for i = 1, 5 do
        list[i] = { x = { i, -i }, y = i, z = mx.full({ 1, 2 }, i / 2) }
    end
    local d = mx.data.dataset(list, { batch = 2, shuffle = false })
    d:next()
    local batch = d:next()
    lu.assertEquals(batch.x:totable(), { { 3, -3 }, { 4, -4 } })
    lu.assertEquals({ batch.y:dtype(), batch.y:totable() }, { "i32", { 3, 4 } })
    lu.assertEquals(batch.z:totable(), { { { 1.5, 1.5 } }, { { 2, 2 } } })
    refused({ "example 2 is a number" }, mx.data.dataset, { { x = 1 }, 2 })
    refused({ "some examples have 'y'" }, mx.data.dataset, { { x = 1, y = 1 }, { x = 2 } })
    refused({ "'x' of an example is a string" }, mx.data.dataset, { { x = "a" } })
end

function TestDataset.test_numbers_of_which_some_are_floats()
    local list = { { x = 1 }, { x = 2.5 }, { x = 3 } }
    local function values(source)
        local x = mx.data.dataset(source, { batch = 3, shuffle = false }):next().x
        return x:dtype(), x:totable()
    end
    for _, source in ipairs { list, function() return coroutine.wrap(function()
        for _, example in ipairs(list) do
            coroutine.yield(example)
        end
    end) end } do
        local dtype, x = values(source)
        lu.assertEquals({ dtype, x }, { "f32", { 1, 2.5, 3 } })
    end
end

-- Else a value would move to the example before it.
function TestDataset.test_all_examples_need_the_same_fields()
    local function lacking(i) return { x = i, [i > 2 and "z" or "y"] = i } end
    local some = {}
    for i = 1, 4 do
        some[i] = lacking(i)
    end
    refused({ "'y'", "lack" }, mx.data.dataset, some, { batch = 2 })
    local i = 0
    local stream = mx.data.dataset(function()
        return function()
            i = i + 1
            return i <= 4 and lacking(i) or nil
        end
    end, { batch = 4, shuffle = false })
    refused({ "lack" }, stream.next, stream)
end

function TestDataset.test_number_of_batches()
    local function batches(options)
        return #mx.data.dataset({ x = mx.arange(7) }, options)
    end
    lu.assertEquals(batches { batch = 2 }, 3)
    lu.assertEquals(batches { batch = 2, drop_last = false }, 4)
    lu.assertEquals(batches { batch = 7, drop_last = false }, 1)
    local function same(batch) return batch end
    lu.assertEquals(#mx.data.map(mx.data.dataset({ x = mx.arange(7) }, { batch = 3 }), same), 2)
    refused({ "iterator" }, function() return #mx.data.dataset(count_to(3)) end)
end

function TestDataset.test_messages()
    refused({ "batch = 2.0", "// divides" }, mx.data.dataset, { x = mx.arange(4) }, { batch = 4 / 2 })
    local uneven = mx.data.dataset(function()
        local list, i = { { x = { 1, 2 } }, { x = { 3 } } }, 0
        return function()
            i = i + 1
            return list[i]
        end
    end, { batch = 2, shuffle = false })
    refused({ "'x' of the examples: rows differ" }, uneven.next, uneven)
    local make, rows = mx.data.dataset, { x = mx.ones(3) }
    refused({ "expected a table { name = tensor }, a list of examples or a function", "number" }, make, 3)
    refused({ "'x' has 3 rows, and 'y' has 2" }, make, { x = mx.ones(3), y = mx.ones(2) })
    refused({ "'x' is number" }, make, { x = 3 })
    refused({ "without dimensions" }, make, { x = mx.tensor(3) })
    refused({ "no examples" }, make, {})
    refused({ "batch = 0" }, make, rows, { batch = 0 })
    refused({ "3 examples are fewer than a batch of 4" }, make, rows, { batch = 4 })
    refused({ "'batch_size'", "'batch'" }, make, rows, { batch_size = 1 })
    refused({ "an example is a number" }, make(function() return function() return 1 end end).next,
        make(function() return function() return 1 end end))
    local empty = make(function() return function() end end)
    refused({ "fewer examples than a batch of 32" }, empty.next, empty)
    local d = make(rows, { batch = 1 })
    refused({ "its n is 4, that of this dataset 3" }, d.restore, d, { seed = 0, n = 4, epochs = 0, samples = 0 })
    refused({ "its seed is 1" }, d.restore, d, { seed = 1, n = 3, epochs = 0, samples = 0 })
    refused({ "damaged: epochs = nil" }, d.restore, d, { seed = 0, n = 3, samples = 0 })
end
