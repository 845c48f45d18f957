--- What several suites share: memory in use, errors, files of tensors, configs of meshes.

local mx = require "mx"
local lu = require "luaunit"

local checks = {}

--- Bytes of tensor memory in use, after Lua has collected its garbage.
function checks.in_use()
    collectgarbage()
    collectgarbage()
    return mx.memory().in_use
end

--- The caller's line as messages name it: "test_tapes.lua:17".
---@param offset? integer that many lines further down
function checks.line(offset)
    local caller = debug.getinfo(2, "Sl")
    return ("%s:%d"):format(caller.source:match("[^/]*$"), caller.currentline + (offset or 0))
end

--- fn(...) raises a message that contains all the texts.
function checks.assert_raises(texts, fn, ...)
    local ok, message = pcall(fn, ...)
    lu.assertFalse(ok, "nothing was raised")
    for _, text in ipairs(texts) do
        lu.assertStrContains(message, text)
    end
end

--- fn() raises a string of one line with these parts, and the file and a line of fn.
---@param parts string[]
---@param fn fun()
function checks.assert_raises_here(parts, fn)
    local ok, message = pcall(fn)
    lu.assertFalse(ok, "nothing was raised; expected: " .. table.concat(parts, ", "))
    lu.assertIsString(message)
    for _, part in ipairs(parts) do
        lu.assertStrContains(message, part)
    end
    local info = debug.getinfo(fn, "S")
    local line = message:match(info.short_src:match("[^/]*$"):gsub("%p", "%%%0") .. ":(%d+): ")
    lu.assertNotNil(line, "no script line in: " .. message)
    lu.assertTrue(tonumber(line) >= info.linedefined and tonumber(line) <= info.lastlinedefined,
        "line " .. line .. " is not that of the call: " .. message)
    lu.assertNil(message:find("\n"), "more than one line: " .. message)
end

--- fn(...) is refused in one line with these parts.
function checks.assert_refused(parts, fn, ...)
    local done, message = pcall(fn, ...)
    lu.assertFalse(done)
    lu.assertEquals(getmetatable(message).__name, "mx.refusal", tostring(message))
    message = tostring(message)
    for _, part in ipairs(parts) do
        lu.assertStrContains(message, part)
    end
    lu.assertNotStrContains(message, "\n")
end

--- All tensors of a safetensors or GGUF file, by their names.
---@param path string
---@return table<string, any>
function checks.read_all(path)
    local file <close> = mx.io.weights_open(path)
    local tensors = {}
    for _, entry in ipairs(file:info()) do
        tensors[entry.name] = file:read(entry.name)
    end
    return tensors
end

--- A config from short words: "ici tensor 2" is ici_tensor_parallelism=2; others are as on the command line.
---@param ... string
---@return table
function checks.mesh_config(...)
    local words = { ... }
    for i, word in ipairs(words) do
        words[i] = word:gsub("^(%l+) ([%w_]+) (%-?%d+)$", function(level, axis, size)
            return mx.mesh.key(level, axis) .. "=" .. size
        end)
    end
    return mx.config.load(words)
end

--- The mesh of such a config on so many ranks.
---@param ranks integer
---@param ... string
---@return mx.Mesh
function checks.mesh(ranks, ...)
    return mx.mesh.plan(checks.mesh_config(...), ranks)
end

local MESHES = {
    { 1 }, { 2 }, { 8, "ici tensor 2" }, { 16, "ici tensor 2", "num_slices=2" },
    { 12, "ici fsdp 2", "ici context 3", "ici tensor 2" },
    { 24, "dcn fsdp 2", "dcn data 3", "ici data 2", "ici fsdp 2" },
    { 32, "dcn fsdp 2", "num_slices=2", "ici tensor 2", "ici tensor_sequence 2" },
    { 96, "dcn stage 2", "num_slices=6", "ici fsdp_transpose 2", "ici expert 2", "ici tensor 4" },
    { 64, "dcn data 2", "dcn tensor 2", "ici data 2", "ici tensor 2", "ici fsdp 2", "ici expert 2" },
}

--- fn(layout, config) for meshes of several kinds.
function checks.each_mesh(fn)
    for _, m in ipairs(MESHES) do
        local cfg = checks.mesh_config(table.unpack(m, 2))
        fn(mx.mesh.layout(cfg, m[1]), cfg)
    end
end

--- Two tensors differ by at most `bound` times the largest value.
function checks.assert_close(found, expected, bound, what)
    local function largest(t)
        return mx.max(mx.abs(t)):item()
    end
    lu.assertEquals(found:size(), expected:size(), what)
    local off = largest(found:to("f32") - expected:to("f32")) / largest(expected:to("f32"))
    lu.assertTrue(off <= bound, ("%s is off by %g"):format(what, off))
end

--- fn(...) raises one line that contains `text`.
function checks.says(text, fn, ...)
    local ok, problem = pcall(fn, ...)
    lu.assertFalse(ok, text)
    lu.assertStrContains(tostring(problem), text)
    lu.assertNotStrContains(tostring(problem), "\n")
end

--- A text that never changes: sentences of a few hundred words, drawn by a generator of its own.
---@param bytes integer its length
---@return string
function checks.made_text(bytes)
    local state = 1
    local function draw(n) -- from 1 to n
        state = (state * 6364136223846793005 + 1442695040888963407) & math.maxinteger
        return (state >> 33) % n + 1
    end
    local syllables, words = { "ka", "lo", "mi", "ren", "su", "ta", "vo", "pel", "dri", "on", "ash", "e" }, {}
    for i = 1, 300 do
        local word = {}
        for k = 1, draw(3) do
            word[k] = syllables[draw(#syllables)]
        end
        words[i] = table.concat(word)
    end
    local out, length = {}, 0
    while length < bytes do
        local sentence = {}
        for i = 1, 3 + draw(8) do
            sentence[i] = words[math.min(draw(#words), draw(#words))] -- some are more frequent
        end
        out[#out + 1] = table.concat(sentence, " "):gsub("^%l", string.upper) .. ".\n"
        length = length + #out[#out]
    end
    return table.concat(out):sub(1, bytes)
end

--- The elements of a tensor in hexadecimal, so that only the same bits are equal.
---@param t any
---@return string[]
function checks.bits(t)
    local list = {}
    for i, x in ipairs(t:view(-1):totable()) do
        list[i] = ("%a"):format(x)
    end
    return list
end

return checks
