--- mx.io as scripts use it: YAML and JSON to tables and back, files, tensors in HDF5, token files.
-- guarded

local mx = require "mx"
local lu = require "luaunit"

-- On several ranks each has its own files.
local folder = os.tmpname()
os.remove(folder)

local function path(name)
    mx.io.mkdir_p(folder)
    return folder .. "/" .. name
end

local function remove(...)
    for _, name in ipairs { ... } do
        os.remove(path(name))
    end
    os.remove(folder) -- goes once it is empty
end

--- The message of the error that the call raises, without the place.
local function message(f, ...)
    local ok, text = pcall(f, ...)
    lu.assertFalse(ok)
    return (tostring(text):gsub("^[^:]+:%d+: ", ""))
end

local function assert_says(expected, f, ...)
    lu.assertStrContains(message(f, ...), expected)
end

-- ---- YAML ----

TestYaml = {}

function TestYaml.test_tables_lines_and_order()
    local text = "# config\nz: 1\n\na: [1, x, 2.5, null]\nm: {q: true}\n"
    local t, lines, keys = mx.io.yaml_load(text, "c.yml")
    lu.assertEquals(t.z, 1)
    lu.assertEquals(math.type(t.z), "integer")
    lu.assertEquals({ t.a[1], t.a[2], t.a[3] }, { 1, "x", 2.5 })
    lu.assertTrue(t.a[4] == mx.io.null)
    lu.assertEquals(#t.a, 4)
    lu.assertIsTrue(t.m.q)
    lu.assertEquals(lines, { z = 2, a = 4, m = 5 })
    lu.assertEquals(keys, { "z", "a", "m" })
    lu.assertEquals(tostring(mx.io.null), "null")
end

function TestYaml.test_other_roots()
    local t, lines, keys = mx.io.yaml_load("# nothing\n")
    lu.assertEquals({ t, lines, keys }, { {}, {}, {} })
    lu.assertEquals(#mx.io.yaml_load("- a\n- b\n"), 2)
    lu.assertEquals(mx.io.yaml_load("5"), 5)
end

function TestYaml.test_errors_name_the_place()
    assert_says("c.yml:3:1: key 'a' is given twice: first in line 1", mx.io.yaml_load, "a: 1\nb: 2\na: 3\n", "c.yml")
    local ok, text = pcall(function() mx.io.yaml_load("a: b: c", "c.yml") end)
    lu.assertFalse(ok)
    lu.assertStrContains(text, "test_io.lua:")
    lu.assertStrContains(text, "c.yml:1:5: ")
    lu.assertFalse(pcall(mx.io.yaml_load))
end

-- ---- JSON ----

TestJson = {}

function TestJson.test_round_trip()
    local value = { b = { 1, 2.5, "x" }, a = { c = true, d = mx.io.null }, e = mx.io.array {}, f = {}, n = -7 }
    local text = mx.io.json_encode(value)
    lu.assertEquals(text, '{"a":{"c":true,"d":null},"b":[1,2.5,"x"],"e":[],"f":{},"n":-7}')
    lu.assertEquals(mx.io.json_encode(mx.io.json_decode(text)), text)
    lu.assertEquals(math.type(mx.io.json_decode("[1]")[1]), "integer")
    lu.assertEquals(math.type(mx.io.json_decode("[1.0]")[1]), "float")
    lu.assertEquals(mx.io.json_encode { 1, { x = 2 } }, '[1,{"x":2}]')
    lu.assertEquals(mx.io.json_encode({ a = 1 }, { indent = 2 }), '{\n  "a": 1\n}')
    lu.assertEquals(mx.io.json_encode(0.1), "0.1")
end

function TestJson.test_what_cannot_be_written()
    local loop = {}
    loop.loop = loop
    local encode = mx.io.json_encode
    assert_says("loss[2]: nan", encode, { loss = { 1, 0 / 0 } })
    assert_says("infinity", encode, { math.huge })
    assert_says("a[2]: only strings", encode, { a = { 1, print } })
    assert_says("a tensor is no plain value", encode, { t = mx.zeros { 2 } })
    assert_says("keys must be", encode, { 1, 2, x = 3 })
    assert_says("keys must be", encode, { [2] = 1 })
    assert_says("inside itself", encode, loop)
    assert_says("not valid UTF-8", encode, "\xff")
    assert_says("did you mean 'indent'", encode, {}, { indet = 1 })
    assert_says("1, 2, ... n", encode, mx.io.array { x = 1 })
end

function TestJson.test_bad_texts()
    assert_says("f:1:", mx.io.json_decode, '{"a":1,}', "f")
    assert_says("duplicate", mx.io.json_decode, '{"a":1,"a":2}')
    assert_says("nested deeper", mx.io.json_decode, ("["):rep(1000) .. ("]"):rep(1000))
end

-- ---- files ----

TestFiles = {}

function TestFiles.test_write_and_read()
    local name = path "file"
    mx.io.write_file_atomic(name, "a\0b")
    lu.assertEquals(mx.io.read_file(name), "a\0b")
    mx.io.write_file_atomic(name, "")
    lu.assertEquals(mx.io.read_file(name), "")
    lu.assertTrue(mx.io.exists(name))
    remove "file"
    lu.assertFalse(mx.io.exists(name))
    assert_says("No such file", mx.io.read_file, name)
    assert_says("No such file", mx.io.write_file_atomic, name .. "/x/y", "")
end

function TestFiles.test_logs()
    local name = path "log"
    do
        local log <close> = mx.io.open_log(name)
        log:line("one")
        log:line("two")
        lu.assertEquals(mx.io.read_file(name), "one\ntwo\n")
    end
    mx.io.append_line(name, "three")
    local log = mx.io.open_log(name, { append = true })
    log:line("four")
    log:close()
    log:close()
    assert_says("closed", log.line, log, "five")
    lu.assertEquals(mx.io.read_file(name), "one\ntwo\nthree\nfour\n")
    mx.io.open_log(name):close()
    lu.assertEquals(mx.io.read_file(name), "")
    remove "log"
end

-- ---- HDF5 ----

TestHdf5 = {}

local function example()
    return {
        ["layers.0.w"] = mx.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }):to "bf16",
        ["group/bias"] = mx.tensor { 0.5, -1, 1e30 },
        ids = mx.tensor({ { 1, -2 } }, "i32"),
        scalar = mx.tensor(3.5),
        empty = mx.zeros { 0, 4 },
    }
end

function TestHdf5.test_round_trip()
    local name, tensors = path "t.h5", example()
    mx.io.h5_write(name, tensors, { config = "a: 1\n", step = 12, loss = 2.5 })
    local read, attributes = mx.io.h5_read(name)
    lu.assertEquals(attributes, { config = "a: 1\n", step = 12, loss = 2.5 })
    for key, t in pairs(tensors) do
        lu.assertEquals(read[key]:dtype(), t:dtype())
        lu.assertEquals(read[key]:size(), t:size())
        lu.assertEquals(read[key]:totable(), t:totable())
        read[key] = nil
    end
    lu.assertNil(next(read))
    remove "t.h5"
end

function TestHdf5.test_information()
    local name = path "i.h5"
    mx.io.h5_write(name, example(), { note = "x" })
    local list, attributes = mx.io.h5_info(name)
    lu.assertEquals(attributes, { note = "x" })
    local names = {}
    for i, entry in ipairs(list) do
        names[i] = entry.name
    end
    lu.assertEquals(names, { "empty", "group/bias", "ids", "layers.0.w", "scalar" })
    lu.assertEquals(list[4], { name = "layers.0.w", dtype = "bf16", shape = { 2, 3 }, bytes = 12, checked = true })
    lu.assertEquals(list[5].shape, {})
    remove "i.h5"
end

function TestHdf5.test_one_tensor_and_rows()
    local name = path "r.h5"
    mx.io.h5_write(name, { w = mx.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } } })
    lu.assertEquals(mx.io.h5_read(name, "w"):totable(), { { 1, 2 }, { 3, 4 }, { 5, 6 } })
    lu.assertEquals(mx.io.h5_read(name, "w", { first = 2 }):totable(), { { 3, 4 }, { 5, 6 } })
    lu.assertEquals(mx.io.h5_read(name, "w", { first = 2, rows = 1 }):totable(), { { 3, 4 } })
    assert_says("3 rows", mx.io.h5_read, name, "w", { first = 3, rows = 2 })
    assert_says("no tensor 'v'", mx.io.h5_read, name, "v")
    assert_says("no option 'frist'", mx.io.h5_read, name, "w", { frist = 1 })
    do
        local file <close> = mx.io.h5_open(name)
        local into = mx.zeros { 3, 2 }
        lu.assertTrue(rawequal(file:read_into("w", into), into))
        lu.assertEquals(into:totable(), { { 1, 2 }, { 3, 4 }, { 5, 6 } })
        assert_says("f32 (3, 2)", file.read_into, file, "w", mx.zeros { 2, 3 })
        lu.assertEquals(file:read("w", { first = 3 }):totable(), { { 5, 6 } })
        lu.assertEquals(#file:info(), 1)
        lu.assertEquals(file:attributes(), {})
        file:close()
        assert_says("closed", file.info, file)
    end
    remove "r.h5"
end

function TestHdf5.test_a_failed_write_leaves_the_old_file()
    local name = path "o.h5"
    mx.io.h5_write(name, { w = mx.tensor { 1 } })
    assert_says("'b' is number", mx.io.h5_write, name, { a = mx.tensor { 2 }, b = 3 })
    assert_says("must be names", mx.io.h5_write, name, { ["a//b"] = mx.tensor { 2 } })
    assert_says("expected a string or a number", mx.io.h5_write, name, {}, { t = {} })
    local released
    mx.scope(function()
        released = mx.zeros { 2 }
    end)
    lu.assertFalse(pcall(mx.io.h5_write, name, { a = mx.ones { 1 }, z = released }))
    assert_says("expected a map", mx.io.writer, name, { w = mx.ones { 1 } }, { "a", "b" })
    lu.assertEquals(mx.io.h5_read(name, "w"):totable(), { 1 })
    do
        local writer <close> = mx.io.h5_writer(name)
        writer:put("w", mx.tensor { 5 })
        writer:attributes { step = 1 }
    end
    lu.assertEquals(mx.io.h5_read(name, "w"):totable(), { 1 })
    local writer = mx.io.h5_writer(name)
    writer:put("w", mx.tensor { 6 })
    writer:commit()
    assert_says("committed", writer.put, writer, "x", mx.tensor { 1 })
    lu.assertEquals(mx.io.h5_read(name, "w"):totable(), { 6 })
    remove "o.h5"
end

function TestHdf5.test_damaged_files()
    local name = path "d.h5"
    mx.io.h5_write(name, { w = mx.rand { 100 } })
    local whole = mx.io.read_file(name)
    mx.io.write_file_atomic(name, whole:sub(1, #whole // 2))
    assert_says("d.h5", mx.io.h5_read, name)
    mx.io.write_file_atomic(name, "no such thing")
    assert_says("no HDF5 file", mx.io.h5_info, name)
    remove "d.h5"
    assert_says("No such file", mx.io.h5_open, name)
end

-- ---- tokens ----

TestTokens = {}

function TestTokens.test_text()
    local name = path "t.txt"
    mx.io.write_file_atomic(name, "Hello, world")
    local reader <close> = mx.io.tokens_open(name)
    lu.assertEquals({ reader:count(), #reader, reader:format(), reader:path() }, { 12, 12, "text", name })
    lu.assertEquals(reader:read(0, 5):totable(), { 72, 101, 108, 108, 111 })
    lu.assertEquals(reader:read(0, 5):dtype(), "i32")
    lu.assertEquals(reader:rows({ 7, 0 }, 2):totable(), { { 119, 111 }, { 72, 101 } })
    lu.assertEquals(reader:max(), ("w"):byte())
    assert_says("it has 12", reader.read, reader, 8, 5)
    assert_says("it has 12", reader.rows, reader, { 0, 11 }, 2)
    lu.assertFalse(pcall(reader.rows, reader, { 0, "x" }, 2))
    lu.assertFalse(pcall(reader.rows, reader, { 0 }, 1e9))
    remove "t.txt"
end

function TestTokens.test_bin_and_hdf5()
    local bin, h5 = path "t.bin", path "t.h5"
    mx.io.write_file_atomic(bin, string.pack("<I2I2I2", 50256, 0, 7))
    lu.assertEquals(mx.io.tokens_open(bin):read(0, 3):totable(), { 50256, 0, 7 })
    mx.io.h5_write(h5, { tokens = mx.tensor({ 3, 1, 4, 1, 5 }, "i32") })
    local reader = mx.io.tokens_open(h5)
    lu.assertEquals({ reader:format(), reader:count(), reader:max() }, { "hdf5", 5, 5 })
    lu.assertEquals(reader:read(2, 3):totable(), { 4, 1, 5 })
    reader:close()
    reader:close()
    assert_says("closed", reader.count, reader)
    assert_says("even number", function()
        mx.io.write_file_atomic(bin, "odd")
        mx.io.tokens_open(bin)
    end)
    remove("t.bin", "t.h5")
end
