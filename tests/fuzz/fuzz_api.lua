-- short: programs=25
--- Random arguments for every function and method of the Lua interface: each call returns or raises, none crashes. Some
--- have little memory.
--
--     mxlua [--threads N] tests/fuzz/fuzz_api.lua [seed=1] [programs=1000] [first=1] [seconds=S] [notes=FILE] [show=1]
--
-- Run it in an empty folder: any word may become the path of a file that is written.
-- A program is a row of calls. What a call returns joins the values that later calls draw their arguments from, so that
-- methods of files, tokenizers, meshes and steps are called, closed objects and metamethods by hand among them. The
-- notes file holds the call that runs.

package.path = arg[0]:gsub("[^/]+$", "?.lua;") .. package.path

local mx = require "mx"
local random = require "random_tensors"

local pick, chance = random.pick, random.chance

local LIMIT = 2 << 30 -- of memory: a random size is refused before it takes that of this machine
mx.memory_limit(LIMIT)

local PER_PROGRAM = 40
local ROOT = mx.root

-- What ends the process, waits for input, removes folders, or measures for seconds; and what limits all later calls.
local LEFT_OUT = {
    "^mx%.abort$", "^mx%.read_line$", "^mx%.memory_limit$", "^mx%.peak$", "^mx%.catch_stop$", "^mx%.threads$",
    "^mx%.io%.remove_folder$", "^mx%.io%.move_folder$", "^mx%.bench", "^mx%.kernels", "^mx%.roofline", "^mx%.repro",
    "^mx%.policies", "^mx%.collectives%.", "^mx%.plan", "^mx%.metrics%.measured_peak$", "^mx%.host%.sample",
    "^mx%.sim%.", "^mx%.sim_", "^mx%.mpi_reference$", "^mx%.prepare", "^mx%.run%.", "^mx%.report", "^mx%.metrics%.say$",
}

local MODULES = {
    "checkpoint", "config", "data", "evaluate", "fit", "flops", "generate", "guard", "io", "mesh",
    "metrics", "models", "nn", "optim", "parallel", "profiler", "tensorboard", "tokenizer", "train", "util", "weights",
}

local function is_left_out(name)
    for _, pattern in ipairs(LEFT_OUT) do
        if name:find(pattern) then
            return true
        end
    end
end

local function sorted(t)
    local names = {}
    for name in pairs(t) do
        names[#names + 1] = type(name) == "string" and name or nil
    end
    table.sort(names)
    return names
end

local functions = {} -- {name, f}
local function collect(prefix, t)
    for _, name in ipairs(sorted(t)) do
        local full = prefix .. name
        if type(t[name]) == "function" and not is_left_out(full) then
            functions[#functions + 1] = { full, t[name] }
        end
    end
end

local PATHS = {
    "a.h5", "b", "c.safetensors", "gone/d", ".", "/dev/full", "e.json", "f.jsonl", "tokenizer.json", "tiny.yml",
    ("x"):rep(300), "missing/../b", "/dev/null/b",
}

local NUMBERS = {
    0, 1, -1, 2, 3, 7, 0.5, -0.0, 1e300, 1 / 0, 0 / 0, math.maxinteger, math.mininteger, 1 << 31, 1 << 32,
}

local WORDS = {
    "", "x", "f32", "data", "weight", "a.b.c", ("y"):rep(5000), "\0\255", "%s%d%n", "tiny", "model_name=tiny",
}

local function deep(n)
    local t = {}
    for _ = 1, n do
        t = { t }
    end
    return t
end

local NAMES = {
    "dtype", "shape", "axis", "dim", "seed", "std", "bias", "eps", "lr", "steps", "names", "path", "retain", "a",
    "vocab_size", "learning_rate", "model_name", "batch", "length", "store", "ids", "text", "data", "tensors",
}

local objects -- what earlier calls gave, and tensors

local KINDS = { number = 1, integer = 1, string = 2, boolean = 4, table = 8, ["function"] = 9, ["mx.tensor"] = 10 }

local function value(depth, kind)
    kind = kind or math.random(13)
    if kind == 1 then
        return pick(NUMBERS)
    elseif kind == 2 then
        return pick(WORDS)
    elseif kind == 3 then
        return pick(PATHS)
    elseif kind == 4 then
        return chance(2)
    elseif kind == 5 then
        return nil
    elseif kind == 6 and depth < 3 then
        local list = {}
        for i = 1, math.random(0, 4) do
            list[i] = value(depth + 1)
        end
        return list
    elseif kind == 7 and depth < 3 then
        local t = {}
        for _ = 1, math.random(0, 3) do
            t[pick(NAMES)] = value(depth + 1)
        end
        return t
    elseif kind == 8 then
        return pick { { 2, 3 }, { 4 }, {}, { 0 }, { -1 }, { 1 << 40, 1 << 40 }, deep(pick { 3, 300, 5000 }) }
    elseif kind == 9 then
        return pick { function() end, function() error("raised") end, function(...) return ... end }
    elseif kind == 10 then
        local dtype = pick(random.DTYPES)
        local t = mx.scope(function() return random.build(random.spec(random.shape(math.random(0, 2)), dtype)) end)
        if chance(8) then
            t:release()
        end
        return t
    end
    return #objects > 0 and pick(objects) or nil
end

local function text_of(v, depth)
    if type(v) == "string" then
        return #v > 40 and ("<%d bytes>"):format(#v) or ("%q"):format(v)
    elseif type(v) == "table" and not getmetatable(v) and depth < 3 then
        local words = {}
        for key, entry in pairs(v) do
            words[#words + 1] = (type(key) == "string" and key .. " = " or "") .. text_of(entry, depth + 1)
        end
        return "{ " .. table.concat(words, ", ") .. " }"
    end
    return type(v) == "userdata" and "<object>" or type(v) == "function" and "<function>" or tostring(v)
end

-- A method or metamethod of an object, with its name.
local function method_of(object)
    local list = {}
    local function add(t, mark)
        for _, name in ipairs(type(t) == "table" and sorted(t) or {}) do
            local f = t[name]
            if type(f) == "function" and not is_left_out("mx." .. name) then
                list[#list + 1] = { mark .. name, f }
            elseif type(f) == "table" and name == "methods" then
                for _, inner in ipairs(sorted(f)) do
                    list[#list + 1] = { mark .. inner, f[inner] }
                end
            end
        end
    end
    local meta = debug.getmetatable(object)
    if type(meta) == "table" then
        add(meta, "object.metatable.")
        add(rawget(meta, "__index"), "object:")
    end
    if type(object) == "table" then
        add(object, "object.")
    end
    return #list > 0 and pick(list) or nil
end

local function run_program(note, show)
    objects = {}
    for _ = 1, PER_PROGRAM do
        local object = chance(3) and #objects > 0 and pick(objects) or nil
        local f = object and method_of(object) or pick(functions)
        local arguments, n = {}, math.random(0, 4)
        for i = 1, n do
            arguments[i] = value(0)
        end
        if object and not chance(20) then
            arguments[1] = object
            n = math.max(n, 1)
        end
        local results
        for _ = 1, 5 do -- again with an argument of the kind that was expected
            local words = {}
            for i = 1, n do
                words[i] = text_of(arguments[i], 0)
            end
            note(("%s(%s)"):format(f[1], table.concat(words, ", ")))
            mx.memory_limit(chance(10) and mx.memory().in_use + math.random(1 << math.random(20)) or LIMIT)
            results = table.pack(pcall(f[2], table.unpack(arguments, 1, n)))
            mx.memory_limit(LIMIT)
            local message = results[1] and "" or tostring(results[2])
            if show then
                print(f[1], results[1], message:sub(1, 150))
            end
            local at, kind = message:match("bad argument #(%d+) .-%(([%w.]+) expected")
            at = tonumber(at)
            if not KINDS[kind] or at > 8 then
                break
            end
            arguments[at] = value(0, KINDS[kind])
            n = math.max(n, at)
        end
        for i = 2, results[1] and math.min(results.n, 4) or 0 do
            local kind = type(results[i])
            if kind == "userdata" or kind == "table" and #objects < 60 then
                objects[#objects + 1] = results[i]
            end
        end
    end
    for i = #objects, 1, -1 do -- steps are closed in the opposite order of opening
        local meta = debug.getmetatable(objects[i])
        if type(meta) == "table" and rawget(meta, "__close") then
            pcall(meta.__close, objects[i])
        end
        pcall(tostring, objects[i])
    end
    objects = {}
end

local function main()
    local config = random.options { programs = 1000, first = 1, show = 0 }
    if mx.io.exists("Makefile") then
        error("this is no empty folder, and fuzz_api writes files: run it elsewhere", 0)
    end
    mx.offload_open(".")
    collect("mx.", mx)
    for _, name in ipairs(MODULES) do
        collect("mx." .. name .. ".", mx[name])
    end
    collect("mx.", require "mx.composed")
    collect("mx.linalg.", mx.linalg)
    collect("checkpoint.files.", require "mx.checkpoint.files")
    for _, name in ipairs({ "bytes", "csv", "npy", "tables", "zip" }) do
        collect("storage." .. name .. ".", require("mx.storage." .. name))
    end
    local isa, start, n, calls = mx.isa(), mx.now(), config.first, 0
    local notes = config.notes ~= "" and assert(io.open(config.notes, "w")) or nil
    while config.seconds > 0 and mx.now() - start < config.seconds
        or config.seconds == 0 and n < config.first + config.programs do
        math.randomseed(config.seed, n)
        for _, name in ipairs { "a.h5", "tokenizer.json", "tiny.yml" } do -- a program may have made folders of these
            if mx.io.about(name).kind == "folder" then
                mx.io.remove_folder(name)
            end
        end
        mx.io.h5_write("a.h5", { a = mx.zeros { 3, 2 } }, {})
        mx.io.write_file_atomic("tokenizer.json", mx.read_file(ROOT .. "tests/golden/tokenizer_gpt2.json"))
        mx.io.write_file_atomic("tiny.yml", mx.read_file(ROOT .. "configs/models/tiny.yml"))
        local place = ("seed=%d first=%d programs=1: "):format(config.seed, n)
        do
            local step <close> = mx.step()
            run_program(function(text)
                calls = calls + 1
                if notes then
                    random.note(notes, place .. text)
                end
            end, config.show > 0)
        end
        mx.isa(isa)
        collectgarbage()
        n = n + 1
    end
    print(("%d passed, 0 failed"):format(calls))
end

main()
