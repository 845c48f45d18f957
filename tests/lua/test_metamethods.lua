--- What only Lua's collector should call, called by hand: on objects of every kind, open and closed, with wrong
-- arguments, twice and from inside each other. Each call returns or raises; none crashes, and the engine works on.

local mx = require "mx"
local lu = require "luaunit"

local folder

-- An object of each kind, by the name of its kind.
local function make_objects()
    local function path(name) return folder .. "/" .. name end
    local objects = { tensor = mx.tensor { { 1, 2 }, { 3, 4 } }, step = mx.step(), null = mx.io.null }
    objects.log = mx.io.open_log(path "log")
    mx.io.h5_write(path "a.h5", { x = mx.ones { 2 } })
    objects.h5_file = mx.io.h5_open(path "a.h5")
    objects.h5_writer = mx.io.h5_writer(path "b.h5")
    objects.writer = mx.io.writer(path "c.h5", { x = mx.ones { 2 } })
    objects.tokenizer = mx.tokenizer.open("bytes").core
    objects.stream = objects.tokenizer:stream(false)
    mx.io.write_file_atomic(path "t.bin", ("ab"):rep(64))
    objects.tokens = mx.io.tokens_open(path "t.bin")
    objects.feed = mx.io.feed { sources = { { path = path "t.bin", format = "bin" } }, length = 4, rows = 1,
        vocab_size = 65536 }
    objects.text = mx.io.text_open(path "t.bin")
    local w = mx.io.safetensors_writer(path "w.safetensors", { { name = "x", dtype = "f32", shape = { 2 } } })
    w:put("x", mx.ones { 2 })
    w:commit()
    objects.safetensors_writer = w -- committed
    objects.weights = mx.io.weights_open(path "w.safetensors")
    return objects
end

TestMetamethods = {}

function TestMetamethods.setUp()
    folder = os.tmpname()
    os.remove(folder)
    mx.io.mkdir_p(folder)
end

function TestMetamethods.tearDown()
    mx.io.remove_folder(folder)
end

local function still_works()
    local w = mx.tensor { 1, 2 }:requires_grad()
    mx.backward((w * w):sum())
    lu.assertEquals(w:grad():totable(), { 2, 4 })
end

-- Runs fn with such objects; their step is closed at the end.
local function with_objects(fn)
    local objects = make_objects()
    fn(objects)
    objects.step:close()
    still_works()
end

-- The metatables of the engine, by name.
local function metatables()
    local found = {}
    for name, value in pairs(debug.getregistry()) do
        if type(name) == "string" and name:match("^mx%.") and type(value) == "table" then
            found[name] = value
        end
    end
    return found
end

function TestMetamethods.test_scripts_cannot_reach_them()
    with_objects(function(objects)
        for kind, object in pairs(objects) do
            lu.assertIsString(getmetatable(object), kind)
            lu.assertFalse(pcall(function() return getmetatable(object).__gc(object) end), kind)
            lu.assertFalse(pcall(setmetatable, object, {}), kind)
        end
    end)
end

function TestMetamethods.test_every_one_with_odd_arguments()
    local objects, calls = make_objects(), 0
    local odd = { nil, 0, -1, 1.5, 1 << 40, "name", "", true, {}, print, coroutine.create(print) }
    local list = {}
    for i = 1, 11 do
        list[i] = { odd[i] }
    end
    for _, object in pairs(objects) do
        list[#list + 1] = { object }
    end
    for name, meta in pairs(metatables()) do
        for key, fn in pairs(meta) do
            if type(fn) == "function" and key ~= "__gc" and key ~= "__close" then
                for i = 1, #list + 1 do
                    for j = 1, #list + 1 do
                        local a, b = (list[i] or {})[1], (list[j] or {})[1]
                        pcall(fn, a, b)
                        pcall(fn, a, b, a)
                        calls = calls + 2
                    end
                end
                pcall(fn)
            end
        end
        lu.assertIsString(name)
    end
    lu.assertTrue(calls > 1000)
    objects.step:close()
    still_works()
end

function TestMetamethods.test_closing_by_hand_and_twice()
    local kinds = 0
    for kind, object in pairs(make_objects()) do
        local meta = debug.getmetatable(object)
        local methods = kind == "tensor" and meta.methods or {}
        for _ = 1, 2 do
            for _, other in pairs(metatables()) do -- those of other kinds refuse it
                pcall(other.__gc or print, other.__gc and object or "")
                pcall(other.__close or tostring, object)
            end
        end
        for key, fn in pairs(meta) do -- a closed object
            if type(fn) == "function" then
                pcall(fn, object)
                pcall(fn, object, object)
                pcall(fn, object, 1)
                pcall(fn, object, "close")
                pcall(fn, 1, object)
            end
            lu.assertIsString(key)
        end
        for _, fn in pairs(methods) do
            pcall(fn, object)
            pcall(fn, object, object)
            pcall(fn, object, 1, 1, 1)
        end
        kinds = kinds + 1
    end
    lu.assertEquals(kinds, 14)
    collectgarbage()
    still_works()
end

function TestMetamethods.test_a_tensor_whose_values_are_gone_is_refused()
    local t = mx.tensor { 1, 2 }
    debug.getmetatable(t).__gc(t)
    lu.assertErrorMsgContains("gone", function() return t:sum() end)
    lu.assertErrorMsgContains("gone", function() return t + 1 end)
    lu.assertErrorMsgContains("gone", tostring, t)
    lu.assertErrorMsgContains("gone", function() return #t end)
    lu.assertErrorMsgContains("gone", function() return t[1] end)
    still_works()
end

-- A finalizer of the script that runs inside the engine's own calls.
function TestMetamethods.test_from_inside_each_other()
    for _ = 1, 50 do
        local t = mx.ones { 64 }
        setmetatable({}, { __gc = function() pcall(debug.getmetatable(t).__tostring, t) end })
        local step <close> = mx.step()
        pcall(debug.getmetatable(step).__close, step)
        pcall(debug.getmetatable(step).__gc, step)
        for _ = 1, 20 do
            t = t + mx.full { shape = { 64 }, value = 1 }
        end
        collectgarbage()
    end
    still_works()
end
