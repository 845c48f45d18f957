--- What the suites of scopes, steps and tapes share.

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

return checks
