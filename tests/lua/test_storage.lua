--- Files of arrays and tables: .npy and .npz of numpy in both directions, CSV, mx.save and mx.load, bytes.
--
-- tests/golden/make_golden_numpy.py has written the files in golden/numpy; numbers() repeats its formulas.

local mx = require "mx"
local lu = require "luaunit"

local GOLDEN = "tests/golden/numpy/"
local folder

local function refused(parts, fn, ...)
    local good, message = pcall(fn, ...)
    message = tostring(message)
    lu.assertFalse(good, table.concat(parts, " "))
    for _, part in ipairs(parts) do
        lu.assertStrContains(message, part)
    end
    lu.assertNil(message:find("\n"), message)
    lu.assertNotStrContains(message, "lua/mx/")
end

local function write(name, text)
    mx.io.write_file_atomic(folder .. name, text, { sync = false })
    return folder .. name
end

local function numbers(shape, kind)
    local n = 1
    for _, size in ipairs(shape) do
        n = n * size
    end
    local list, first = {}, kind:find("i") and -20 or 0
    for i = 1, n do
        list[i] = kind:find("f") and (i - 1) * 0.25 - 3 or (i - 1) * 3 + first
    end
    return mx.tensor(list, kind:find("f") and "f32" or "i32"):view(shape):totable()
end

local function setup()
    folder = os.tmpname()
    os.remove(folder)
    folder = folder .. "/"
    mx.io.mkdir_p(folder)
end

local function clear()
    mx.io.remove_folder(folder)
end

TestNumpy = { setUp = setup, tearDown = clear }

local KINDS = { "f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8" }

local function check_arrays(a)
    for _, kind in ipairs(KINDS) do
        lu.assertEquals(a[kind]:totable(), numbers({ 3, 4 }, kind), kind)
    end
    for _, kind in ipairs { "f4", "f8", "i4", "u2" } do
        lu.assertEquals(a["big_" .. kind]:totable(), numbers({ 3, 4 }, kind), kind)
    end
    lu.assertEquals(a.bool:totable(), { { 1, 0, 1, 0 }, { 1, 0, 1, 0 }, { 1, 0, 1, 0 } })
    lu.assertEquals(a.fortran:totable(), numbers({ 2, 3, 4 }, "f4"))
    lu.assertEquals(a.fortran_f8:totable(), numbers({ 4, 3 }, "f8"))
    lu.assertEquals(a.scalar:item(), 3)
    lu.assertEquals(a.scalar:size(), {})
    lu.assertEquals(a.empty:size(), { 0, 3 })
    local special = a.f2_special:totable()
    lu.assertTrue(special[1] ~= special[1])
    lu.assertEquals(table.move(special, 2, 6, 1, {}), { math.huge, -math.huge, 65504, 2 ^ -24, -2 ^ -14 })
end

local function names_without(...)
    local names = {}
    for _, entry in ipairs(require("mx.storage.zip").open(GOLDEN .. "compressed.npz").entries) do
        local name = entry.name:match("^(.*)%.npy$")
        local left_out = false
        for _, one in ipairs { ... } do
            left_out = left_out or name == one
        end
        names[#names + 1] = not left_out and name ~= "repeated" and name or nil
    end
    return names
end

function TestNumpy.test_arrays_of_every_type()
    for _, file in ipairs { "plain.npz", "compressed.npz" } do
        local a = mx.load_npz(GOLDEN .. file, { names = names_without("large_i8", "f8", "big_f8", "fortran_f8") })
        lu.assertEquals({ a.f2:dtype(), a.f4:dtype(), a.bool:dtype(), a.u2:dtype() }, { "f32", "f32", "u8", "i32" })
        local floats = mx.load_npz(GOLDEN .. file, { names = { "f8", "big_f8", "fortran_f8" }, dtype = "f32" })
        for name, t in pairs(floats) do
            lu.assertEquals(t:dtype(), "f32")
            a[name] = t
        end
        check_arrays(a)
    end
    local repeated = mx.load_npz(GOLDEN .. "compressed.npz", { names = { "repeated" } }).repeated
    lu.assertEquals({ repeated:size(), repeated[400]:totable() }, { { 400, 50 }, numbers({ 50 }, "f4") })
end

function TestNumpy.test_chosen_dtypes()
    local a = mx.load_npz(GOLDEN .. "plain.npz", { names = { "i8", "f4", "u1" }, dtype = "bf16" })
    lu.assertEquals({ a.i8:dtype(), a.i8:totable() }, { "bf16", numbers({ 3, 4 }, "i8") })
    local small = mx.load_npz(GOLDEN .. "plain.npz", { names = { "i8" }, dtype = "i8" }).i8
    lu.assertEquals(small:totable(), numbers({ 3, 4 }, "i8"))
    refused({ "'i2'", "value -20 does not fit u8" }, mx.load_npz, GOLDEN .. "plain.npz",
        { names = { "i2" }, dtype = "u8" })
    refused({ "'large_i8'", "1099511627776", "i32" }, mx.load_npz, GOLDEN .. "plain.npz",
        { names = { "large_i8" }, dtype = "i32" })
    refused({ "floats do not go into i32", 't:to("i32")' }, mx.load_npy, GOLDEN .. "f4.npy", { dtype = "i32" })
    for _, file in ipairs { "plain.npz", "compressed.npz" } do
        local wide = mx.load_npz(GOLDEN .. file, { names = { "f8", "big_f8", "large_i8", "u4" } })
        lu.assertEquals({ wide.f8:dtype(), wide.large_i8:dtype(), wide.u4:dtype() }, { "f64", "i64", "i64" })
        lu.assertEquals(wide.f8:totable(), numbers({ 3, 4 }, "f8"))
        lu.assertEquals(wide.large_i8:totable(), { 1 << 40, 1 })
    end
end

function TestNumpy.test_what_is_written_is_what_numpy_writes()
    local tensors = {
        f4 = mx.tensor(numbers({ 2, 3 }, "f4")), i4 = mx.tensor(numbers({ 2, 3, 4 }, "i4"), "i32"),
        f8 = mx.tensor(numbers({ 2, 3 }, "f8"), "f64"), scalar = mx.tensor(1.5),
        vector = mx.tensor(numbers({ 5 }, "u1"), "u8"),
    }
    for name, t in pairs(tensors) do
        mx.save_npy(folder .. "x.npy", t)
        lu.assertTrue(mx.io.read_file(folder .. "x.npy") == mx.io.read_file(GOLDEN .. name .. ".npy"), name)
    end
    mx.save_npy(folder .. "x.npy", tensors.f4:to("bf16")) -- quarters are exact in bf16
    lu.assertTrue(mx.io.read_file(folder .. "x.npy") == mx.io.read_file(GOLDEN .. "f4.npy"))
end

function TestNumpy.test_npz_there_and_back()
    local a = {
        w = mx.randn({ 300, 401 }, { seed = 1 }), ["a/b"] = mx.arange(7, "i32"), e = mx.zeros(0, 2), s = mx.tensor(2),
        bf = mx.randn({ 5 }, { seed = 2, dtype = "bf16" }), flat = mx.zeros(100, 1000),
    }
    local bytes = {}
    for _, compress in ipairs { false, true } do
        mx.save_npz(folder .. "a.npz", a, { compress = compress })
        bytes[#bytes + 1] = mx.io.about(folder .. "a.npz").bytes
        local b = mx.load_npz(folder .. "a.npz")
        for name, t in pairs(a) do
            lu.assertEquals(b[name]:size(), t:size())
            lu.assertEquals(mx.to_bytes(b[name]), mx.to_bytes(t:dtype() == "bf16" and t:to("f32") or t), name)
        end
        local python = io.popen(("python3 -m zipfile -t '%sa.npz' 2>&1"):format(folder))
        local said = python:read("a")
        lu.assertTrue(not python:close() or said:find("Done testing") ~= nil, said)
    end
    lu.assertTrue(bytes[2] < bytes[1] - 390000, "100,000 zeros compress")
    lu.assertEquals(mx.io.list(folder), { "a.npz" })
end

function TestNumpy.test_what_is_no_array_of_numbers()
    refused({ "object.npy", "pickle", "never executed" }, mx.load_npy, GOLDEN .. "object.npy")
    refused({ "record.npy", "records with several fields" }, mx.load_npy, GOLDEN .. "record.npy")
    refused({ "text.npy", "'<U2'" }, mx.load_npy, GOLDEN .. "text.npy")
    refused({ "deep.npy", "7 dimensions", "at most 6" }, mx.load_npy, GOLDEN .. "deep.npy")
    refused({ "plain.npz", "x93NUMPY" }, mx.load_npy, GOLDEN .. "plain.npz")
    refused({ "f4.npy", "no directory" }, mx.load_npz, GOLDEN .. "f4.npy")
    refused({ "missing.npy is missing" }, mx.load_npy, folder .. "missing.npy")
    refused({ "/dev/zero is a device" }, mx.load_npy, "/dev/zero")
    refused({ "no array 'x'", "f2, f4" }, mx.load_npz, GOLDEN .. "plain.npz", { names = { "x" } })
    refused({ "'dtpye'" }, mx.load_npz, GOLDEN .. "plain.npz", { dtpye = "f32" })
end

function TestNumpy.test_headers_that_lie()
    local function with(header, values)
        local text = "\x93NUMPY\1\0" .. ("<s2"):pack(header) .. values
        return write("h.npy", text)
    end
    local function of(shape, layout)
        return ("{'descr': '%s', 'fortran_order': False, 'shape': %s, }"):format(layout or "<f4", shape)
    end
    lu.assertEquals(mx.load_npy(with(of "(2,)", ("<ff"):pack(1, 2))):totable(), { 1, 2 })
    refused({ "claims 12 bytes of values, and it has 8" }, mx.load_npy, with(of "(3,)", ("x"):rep(8)))
    refused({ "claims 4611686018427387904 bytes" }, mx.load_npy, with(of "(9999999999, 9999999999, 99)", "abcd"))
    refused({ "damaged" }, mx.load_npy, with(of "(99999999999999999999999,)", "abcd"))
    refused({ "its header is" }, mx.load_npy, with("os.system('ls')", "abcd"))
    refused({ "its header is" }, mx.load_npy, with(of "(-1,)", "abcd"))
    refused({ "type '<c8'" }, mx.load_npy, with(of("(1,)", "<c8"), "abcdabcd"))
    refused({ "its header claims 65537 bytes" }, mx.load_npy, write("h.npy", "\x93NUMPY\2\0\1\0\1\0abc"))
    refused({ "version 9" }, mx.load_npy, write("h.npy", "\x93NUMPY\9\0\1\0"))
    refused({ "starts with" }, mx.load_npy, write("h.npy", ""))
end

-- Every change of one byte of a small .npz either gives the same arrays or is refused in one line.
-- A double holds integers up to 2^53 only.
function TestNumpy.test_large_integers_are_exact()
    local function array(layout, bytes)
        local header = ("{'descr': '%s', 'fortran_order': False, 'shape': (2,), }"):format(layout)
        return write(layout:sub(2) .. ".npy", "\x93NUMPY\1\0" .. ("<s2"):pack(header) .. bytes)
    end
    local large, small = 9007199254740993, -9007199254740995
    lu.assertEquals(mx.load_npy(array(">i8", (">i8i8"):pack(large, small))):totable(), { large, small })
    lu.assertEquals(mx.load_npy(array("<i8", ("<i8i8"):pack(large, small))):totable(), { large, small })
    lu.assertEquals(mx.load_npy(array("<u8", ("<i8i8"):pack(large, math.maxinteger))):totable(),
        { large, math.maxinteger })
    refused({ "does not fit i64" }, mx.load_npy, array("<u8", ("<i8i8"):pack(1, math.mininteger)))
end

function TestNumpy.test_files_that_end_early()
    local whole = "\x93NUMPY\1\0" .. ("<s2"):pack("{'descr': '<f4', 'fortran_order': "
        .. "False, 'shape': (), }") .. "\0\0\0\0"
    lu.assertEquals(mx.load_npy(write("whole.npy", whole)):item(), 0)
    for n = 8, #whole - 5 do
        refused({ "ends inside its header" }, mx.load_npy, write("short.npy", whole:sub(1, n)))
    end
    refused({ "name of a file", "nil" }, mx.load_npy)
end

function TestNumpy.test_damaged_npz()
    mx.save_npz(folder .. "a.npz", { x = mx.arange(6) }, { compress = true })
    local text, same, bad = mx.io.read_file(folder .. "a.npz"), 0, 0
    for at = 1, #text do
        local path = write("d.npz", text:sub(1, at - 1) .. string.char(text:byte(at) ~ 0x55) .. text:sub(at + 1))
        local good, result = pcall(mx.load_npz, path)
        if good then
            local name, t = next(result)
            same = same + 1
            lu.assertTrue(t == nil or t:numel() == 6, name)
            lu.assertTrue(t == nil or mx.to_bytes(t) == mx.to_bytes(mx.arange(6)))
        else
            bad = bad + 1
            lu.assertNil(tostring(result):find("\n"), tostring(result))
            lu.assertNotStrContains(tostring(result), "lua/mx/")
        end
    end
    lu.assertTrue(bad > #text / 2, ("%d refused, %d read"):format(bad, same))
    for bytes = 0, #text - 1 do
        lu.assertFalse(pcall(mx.load_npz, write("d.npz", text:sub(1, bytes))))
    end
end

-- A deflated entry that claims more than it can hold allocates nothing.
function TestNumpy.test_sizes_that_no_file_can_hold()
    mx.save_npz(folder .. "a.npz", { x = mx.arange(6) }, { compress = true })
    local text = mx.io.read_file(folder .. "a.npz")
    local at = text:find("PK\1\2", 1, true)
    local field = text:find("\1\0\24\0", at, true)
    local path = write("d.npz", text:sub(1, field + 3) .. ("<I8"):pack(1 << 50) .. text:sub(field + 12))
    refused({ "'x.npy' claims 1125899906842624 bytes" }, mx.load_npz, path)
end

function TestNumpy.test_wrong_arguments_of_saving()
    refused({ "mx.save_npy", "is number; expected a tensor" }, mx.save_npy, folder .. "a.npy", 3)
    refused({ "mx.save_npz: 'x' is string" }, mx.save_npz, folder .. "a.npz", { x = "y" })
    refused({ "name is 1" }, mx.save_npz, folder .. "a.npz", { mx.ones(2) })
    refused({ "cannot write" }, mx.save_npz, folder .. "none/a.npz", { x = mx.ones(2) })
    lu.assertEquals(mx.io.list(folder), {})
end

TestBytes = { setUp = setup, tearDown = clear }

-- Numbers of values are compared without overflow.
function TestBytes.test_places_outside_are_refused()
    local t = mx.zeros(4)
    for _, first in ipairs { math.mininteger, -1, 0, 5, math.maxinteger } do
        refused({ ("from value %d on do not fit f32 (4)"):format(first) }, mx.io.put_bytes, t, first, "f32", "\0\0\0\0")
        refused({ ("from value %d on are outside of f32 (4)"):format(first) }, mx.io.get_bytes, t, first, 1)
    end
    refused({ "values from value 2 on are outside" }, mx.io.get_bytes, t, 2, math.maxinteger)
    refused({ "values from value 1 on are outside" }, mx.io.get_bytes, t, 1, math.mininteger)
    lu.assertEquals(mx.io.get_bytes(t, 5, 0), "")
end

function TestBytes.test_there_and_back()
    for _, dtype in ipairs { "f32", "bf16", "i32", "u8", "i8", "e4m3", "e5m2fnuz", "f64", "i64" } do
        local t = mx.arange(6, "f32"):to(dtype):view(2, 3)
        local again = mx.from_bytes(mx.to_bytes(t), { dtype = dtype, shape = { 2, 3 } })
        lu.assertEquals(again:totable(), t:totable(), dtype)
    end
    lu.assertEquals(mx.from_bytes("\0\1\0\2", { dtype = "i32", layout = ">u2" }):totable(), { 1, 2 })
    lu.assertEquals(mx.from_bytes(("<ff"):pack(1.5, -2)):totable(), { 1.5, -2 })
    refused({ "3 bytes", "of 4 bytes" }, mx.from_bytes, "abc")
    refused({ "4 bytes are 1 values", "shape {2} has 2" }, mx.from_bytes, "abcd", { shape = { 2 } })
    refused({ "unknown dtype 'f3'" }, mx.from_bytes, "abcd", { dtype = "f3" })
    refused({ "layout '<q4' is unknown" }, mx.from_bytes, "abcd", { layout = "<q4" })
    refused({ "is number" }, mx.from_bytes, 3)
end

TestCsv = { setUp = setup, tearDown = clear }

function TestCsv.test_numbers_and_names()
    local t, names = mx.load_csv(write("a.csv", 'a, "b, ""c""" ,d\r\n1,2.5,-3e2\n\n4, "5" ,nan\n'))
    lu.assertEquals({ t[1]:totable(), t[{ 2, 2 }], t:size() }, { { 1, 2.5, -300 }, 5.0, { 2, 3 } })
    lu.assertEquals(names, { "a", 'b, "c"', "d" })
    t, names = mx.load_csv(write("a.csv", "1;2\n3;\n"), { separator = ";", missing = -1, dtype = "i32" })
    lu.assertEquals({ t:totable(), t:dtype() }, { { { 1, 2 }, { 3, -1 } }, "i32" })
    lu.assertNil(names)
    t, names = mx.load_csv(write("a.csv", "about\nx,y\n1,2\n"), { skip = 1, header = true })
    lu.assertEquals({ t:totable(), names }, { { { 1, 2 } }, { "x", "y" } })
end

-- As Excel (a byte order mark) and pandas (no name of the index) write them.
function TestCsv.test_heads_of_other_programs()
    local function read(text)
        local t, names = mx.load_csv(write("a.csv", text))
        return { t:totable(), names }
    end
    lu.assertEquals(read "\xEF\xBB\xBFa,b\n1,2\n", { { { 1, 2 } }, { "a", "b" } })
    lu.assertEquals(read "\xEF\xBB\xBF1,2\n", { { { 1, 2 } } })
    lu.assertEquals(read ",a\n0,5\n1,6\n", { { { 0, 5 }, { 1, 6 } }, { "", "a" } })
    local t, names = mx.load_csv(write("a.csv", "nan,-nan\ninf,-inf\n"))
    lu.assertEquals({ #t, names }, { 2 })
    lu.assertEquals(mx.isnan(t):totable(), { { 1, 1 }, { 0, 0 } })
    refused({ "a.csv: 1.5 does not fit i32", "another dtype" }, mx.load_csv, write("a.csv", "1.5\n"), { dtype = "i32" })
end

function TestCsv.test_errors_name_the_place()
    refused({ "a.csv:3: column 2 is 'x'; expected a number" }, mx.load_csv, write("a.csv", "a,b\n1,2\n3,x\n"))
    refused({ "a.csv:2: column 2 is empty", "missing = 0 / 0" }, mx.load_csv, write("a.csv", "1,2\n3,\n"))
    refused({ "a.csv:2: 3 columns; expected 2" }, mx.load_csv, write("a.csv", "1,2\n3,4,5\n"))
    refused({ "a.csv has no line of numbers" }, mx.load_csv, write("a.csv", "a,b\n"))
    refused({ "separator must be one character" }, mx.load_csv, write("a.csv", "1"), { separator = "ab" })
    refused({ "'seperator'", "'separator'" }, mx.load_csv, write("a.csv", "1"), { seperator = "a" })
end

TestTables = { setUp = setup, tearDown = clear }

function TestTables.test_there_and_back()
    local w = mx.randn({ 3, 4 }, { seed = 1 }):requires_grad()
    local value = {
        w = w, again = w, list = { 1, 2.5, "x", true, {} }, [1.5] = "half", [7] = 7, [false] = 0, ["a/b."] = "\0\255",
        nested = { a = { b = mx.arange(3, "i32") } }, extremes = { math.mininteger, math.huge, 5e-324 },
        kinds = { bf = w:detach():to("bf16"), u = mx.ones({ 2 }, "u8"), empty = mx.zeros(0, 3) },
    }
    mx.save(folder .. "v.h5", value)
    local back = mx.load(folder .. "v.h5")
    lu.assertTrue(rawequal(back.w, back.again))
    lu.assertFalse(back.w:requires_grad():grad() ~= nil)
    local paths = { { "w" }, { "nested", "a", "b" }, { "kinds", "bf" }, { "kinds", "u" }, { "kinds", "empty" } }
    for _, path in ipairs(paths) do
        local a, b = value, back
        for _, key in ipairs(path) do
            a, b = a[key], b[key]
        end
        lu.assertEquals({ b:dtype(), b:size(), mx.to_bytes(b) }, { a:dtype(), a:size(), mx.to_bytes(a) })
    end
    for _, key in ipairs { "list", 1.5, 7, false, "a/b.", "extremes" } do
        lu.assertEquals(back[key], value[key])
    end
    lu.assertEquals(math.type(back.list[1]), "integer")
    for _, plain in ipairs { 3, "text", true, false, {} } do
        mx.save(folder .. "v.h5", plain)
        lu.assertEquals(mx.load(folder .. "v.h5"), plain)
    end
end

function TestTables.test_the_same_values_give_the_same_file()
    local function build(keys)
        local t = {}
        for _, key in ipairs(keys) do
            t[key] = mx.full({ 2 }, #key)
        end
        return t
    end
    mx.save(folder .. "a.h5", build { "a", "bb", "ccc", "dddd" })
    mx.save(folder .. "b.h5", build { "dddd", "ccc", "a", "bb" })
    lu.assertTrue(mx.io.read_file(folder .. "a.h5") == mx.io.read_file(folder .. "b.h5"))
end

function TestTables.test_what_cannot_be_saved()
    local loop = {}
    loop.loop = loop
    local cases = {
        { { a = { print } }, "value.a.1 is a function" }, { loop, "contains itself" },
        { { [{}] = 1 }, "a key of value is a table" }, { { x = mx.io.null }, "value.x is a userdata" },
        { { o = setmetatable({}, {}) }, "value.o is an object with a metatable" },
    }
    for _, case in ipairs(cases) do
        refused({ "mx.save", case[2] }, mx.save, folder .. "v.h5", case[1])
    end
    lu.assertEquals(mx.io.list(folder), {})
    mx.save(folder .. "v.h5", { 1 })
    refused({ "mx.save" }, mx.save, folder .. "v.h5", { print })
    lu.assertEquals(mx.load(folder .. "v.h5"), { 1 }) -- the old file is whole
end

function TestTables.test_files_of_others_and_forged_structures()
    mx.io.h5_write(folder .. "o.h5", { x = mx.ones(2) })
    refused({ "o.h5 was not written by mx.save", "mx.nn.load" }, mx.load, folder .. "o.h5")
    refused({ "no HDF5 file" }, mx.load, GOLDEN .. "plain.npz")
    local forged = { "", "{", "{n", "q", "i123", "s" .. ("<I8"):pack(1 << 40) .. "x", "x" .. ("<i8"):pack(9), "tt",
        "{{}t}", ("{s" .. ("<s8"):pack("k")):rep(100), "{d" .. ("<d"):pack(0 / 0) .. "t}" }
    for i, text in ipairs(forged) do
        mx.io.h5_write(folder .. "f.h5", { structure = mx.from_bytes(text, { dtype = "u8" }) },
            { format = "mxlua tables 1" })
        refused({ "f.h5 is damaged" }, mx.load, folder .. "f.h5")
        lu.assertIsNumber(i)
    end
end
