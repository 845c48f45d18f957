-- Measures what the tape costs for small operations, in microseconds of processor time for each:
--
--     build/mxlua --threads 1 scripts/tape.lua [records=10000]
--
-- record    an operation on 8 elements that is recorded
-- backward  its part of the backward pass
-- custom    an operation of mx.custom that returns its input
--
-- With python3 and torch (PYTHON=FILE chooses the program), the same operations are measured there, in turn.

local mx = require "mx"

local records = 10000
for _, word in ipairs(arg) do
    records = tonumber(word:match("^records=(%d+)$")) or error("tape.lua takes records=N, not " .. word, 0)
end

local TURNS = 10
local same = mx.custom { forward = function(_, x) return x end, backward = function(_, dy) return dy end }

local CASES = {
    { "add", function(h, x) return h + x end },
    { "mul", function(h, x) return h * x end },
    { "custom", function(h) return same(h) end },
}

--- Processor seconds of the forward and of the backward pass.
local function run(f)
    local step <close> = mx.step()
    local x = mx.ones({ 8 }):requires_grad()
    local h, start = x, os.clock()
    for _ = 1, records do
        h = f(h, x)
    end
    local middle = os.clock()
    mx.backward(h:sum())
    return step and middle - start, os.clock() - middle
end

local PEER = [[
import time, torch
torch.set_num_threads(1)
class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.view_as(x)
    @staticmethod
    def backward(ctx, dy): return dy
for name, f in (("add", torch.add), ("mul", torch.mul), ("custom", lambda h, x: Same.apply(h))):
    x = torch.ones(8, requires_grad=True)
    h, start = x, time.process_time()
    for _ in range(%d): h = f(h, x)
    middle = time.process_time()
    h.sum().backward()
    print(name, middle - start, time.process_time() - middle)
]]

local function run_peer(best)
    local file = os.tmpname()
    local script <close> = assert(io.open(file, "w"))
    script:write(PEER:format(records))
    script:flush()
    local python = io.popen((os.getenv("PYTHON") or "python3") .. " " .. file .. " 2>/dev/null")
    for name, forward, backward in python:read("a"):gmatch("(%a+) (%S+) (%S+)") do
        local b = best[name] or { math.huge, math.huge }
        best[name] = { math.min(b[1], tonumber(forward)), math.min(b[2], tonumber(backward)) }
    end
    python:close()
    os.remove(file)
end

local ours, peer = {}, {}
for turn = 1, TURNS do
    for _, case in ipairs(CASES) do
        local forward, backward = run(case[2])
        local b = ours[case[1]] or { math.huge, math.huge }
        ours[case[1]] = { math.min(b[1], forward), math.min(b[2], backward) }
    end
    if turn <= 3 then
        run_peer(peer)
    end
end

local function microseconds(seconds)
    return seconds and ("%8.2f"):format(seconds / records * 1e6) or "       -"
end

print(("%-8s %8s %8s   %8s %8s"):format("us each", "record", "backward", "PyTorch", "backward"))
for _, case in ipairs(CASES) do
    local a, b = ours[case[1]], peer[case[1]] or {}
    print(("%-8s %s %s   %s %s"):format(case[1], microseconds(a[1]), microseconds(a[2]), microseconds(b[1]),
        microseconds(b[2])))
end
