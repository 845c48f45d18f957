-- Runs test files: mxlua tests/lua/run.lua FILE.lua ... [--only PATTERN]
--
-- Each file defines global tables Test*, whose functions test* are the cases (luaunit). Prints what failed, then
-- "N passed, N failed". On several ranks every rank runs every case; a case passes when it passes on all of them, and
-- rank 0 prints. A case that fails on one rank only would leave the others waiting, so that rank ends the run.

setmetatable(_G, nil) -- luaunit and its tests live in globals

local core = require "mx.core"
local words = arg
rawset(_G, "arg", { [0] = words[0] }) -- luaunit would take ours for its own
local exit = os.exit -- luaunit replaces it by one that refuses while cases run
local luaunit = require "luaunit"

local rank, ranks = core.rank(), core.ranks()

---@return table files, string? pattern
local function parse()
    local files, pattern = {}, nil
    local i = 1
    while words[i] do
        if words[i] == "--only" then
            pattern = words[i + 1]
            i = i + 1
        else
            files[#files + 1] = words[i]
        end
        i = i + 1
    end
    if #files == 0 then
        error("usage: mxlua tests/lua/run.lua FILE.lua ... [--only PATTERN]", 0)
    end
    return files, pattern
end

---@param file string
---@return string its name without folder and ending
local function base_name(file)
    return (file:match("([^/]+)%.lua$") or file)
end

---@param node table what luaunit knows of one case
---@return boolean
local function is_bad(node)
    return node:isFailure() or node:isError()
end

--- Without the lines that every trace has: luaunit's own, and ours.
---@param text string
---@return string
local function shorten(text)
    return (text:gsub("\n[^\n]*/luaunit%.lua:[^\n]*", ""):gsub("\n[^\n]*tests/lua/run%.lua:[^\n]*", ""))
end

---@param node table
local function report(node)
    if is_bad(node) then
        io.write(shorten(("FAIL %s on rank %d: %s\n%s\n"):format(node.testName, rank, tostring(node.msg),
            tostring(node.stackTrace or ""))))
    elseif node:isSkipped() and rank == 0 then
        io.write(("SKIP %s: %s\n"):format(node.testName, tostring(node.msg)))
    end
end

local output = luaunit.genericOutput.new({ verbosity = 0 })

function output.endTest(_, node)
    report(node)
    if ranks > 1 and is_bad(node) then
        io.stdout:flush()
        if rank == 0 then
            print("0 passed, 1 failed")
        end
        exit(1)
    end
end

local files, pattern = parse()
for _, file in ipairs(files) do
    package.path = file:gsub("[^/]+$", "?.lua") .. ";" .. package.path
    local before = {}
    for name in pairs(_G) do
        before[name] = true
    end
    dofile(file)
    local found = false
    for name in pairs(_G) do
        found = found or (not before[name] and tostring(name):find("^[Tt]est") ~= nil)
    end
    if not found then
        error(("%s defines no global table Test*: %s has nothing to run"):format(file, base_name(file)), 0)
    end
end

local runner = luaunit.LuaUnit.new()
runner.outputType = { new = function() return output end }
runner:runSuite(table.unpack(pattern and { "--pattern", pattern } or {}))

local result = runner.result
local bad = result.failureCount + result.errorCount
if rank == 0 then
    print(("%d passed, %d failed"):format(result.successCount, bad))
end
exit(bad == 0)
