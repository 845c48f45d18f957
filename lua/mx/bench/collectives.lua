--- Measures the rates of the collectives over all ranks, in f32.
--
-- A rate is the size of the whole tensor (the output of all_gather, the input of the others) divided by the seconds of
-- the slowest rank, best of several repetitions. Before each repetition every rank writes its tensors, as a computation
-- would, so they are in the rank's own caches as far as they fit. "copy" is the rate at which all ranks together copy
-- as many bytes. Copying reads and writes each byte once, which is also the least that an all_reduce in place must do.
-- Each collective is checked before it is timed.

local mx = require "mx"
local util = require "mx.util"

local collectives = {}

local MOST_SECONDS = 0.4 -- for the repetitions of one row and column
local COPIES = 8 -- largest number of copies of a tensor: the script's, the collective's and MPI's
local say = mx.metrics.say

-- The shortest of several repetitions; each lasts as long as its slowest rank. The tensors are written before each.
local function best(tensors, fn)
    local shortest, spent, runs = math.huge, 0, 0
    while runs < 3 or (spent < MOST_SECONDS and runs < 50) do
        for _, t in ipairs(tensors) do
            t:fill { value = 1 }
        end
        mx.barrier()
        local start = mx.now()
        fn()
        local seconds = mx.all_reduce_(mx.tensor(mx.now() - start), { op = "max" }):item()
        shortest, spent, runs = math.min(shortest, seconds), spent + seconds, runs + 1
    end
    return shortest
end

-- The rows of a tensor of n elements, uneven numbers of them for four experts a rank, and their exchange: x is the
-- tensor as (rows, width), counts those of all ranks. Elements that fill no row stay out.
local function exchange_rows(n)
    local width = n >= 2 ^ 18 and 4096 or 16
    local rows, ranks = n // width, mx.ranks()
    local even, list = rows // (4 * ranks), {}
    for e = 1, 4 * ranks do
        list[e] = e == 4 * ranks and rows - even * (e - 1) or even
    end
    local one = even // 3 -- goes from the second expert of each rank to the first
    for e = 1, 4 * ranks, 4 do
        list[e], list[e + 1] = list[e] + one, list[e + 1] - one
    end
    local counts = mx.all_gather(mx.tensor(list, "i32"):view(1, 4 * ranks)):wait()
    local first = mx.rank() * 4 + 1
    local received = counts:narrow { dim = 2, start = first, length = 4 }:to("f32"):sum():item() // 1 | 0
    return function(x)
        return mx.all_to_all_rows(mx.narrow(x, { dim = 1, start = 1, length = rows * width }):view(rows, width), counts,
            { rows = received })
    end
end

-- name -> fn(x, part, exchange), the timed call. x is the whole tensor, part a rank's input of all_gather, exchange the
-- function of exchange_rows.
local CALLS = {
    all_reduce = function(x) mx.all_reduce_(x, { op = "mean" }) end,
    all_gather = function(_, part) mx.all_gather(part):release() end,
    reduce_scatter = function(x) mx.reduce_scatter(x):release() end,
    all_to_all = function(x) mx.all_to_all(x):release() end,
    all_to_all_rows = function(x, _, exchange) exchange(x):release() end,
    collective_permute = function(x) mx.collective_permute(x):release() end,
    broadcast = function(x) mx.broadcast_(x) end,
}
local NAMES = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_rows", "collective_permute", "broadcast",
}

-- Checks a collective on tensors of ones, for which each result is known.
local function check(name, x, part, exchange)
    local results = {
        all_reduce = { mx.all_reduce, x, 1, { op = "mean" } }, all_gather = { mx.all_gather, part, 1 },
        reduce_scatter = { mx.reduce_scatter, x, mx.ranks() }, all_to_all = { mx.all_to_all, x, 1 },
        all_to_all_rows = { exchange, x, 1 },
        collective_permute = { mx.collective_permute, x, 1 }, broadcast = { mx.broadcast, x, 1 },
    }
    local fn, input, value, options = table.unpack(results[name])
    local y = fn(input, options or {})
    if mx.max(y):item() ~= value or mx.max(-y):item() ~= -value then
        error(("%s of ones does not give %g everywhere"):format(name, value))
    end
end

local function measure(name, bytes)
    return mx.scope(function()
        local n = bytes // 4
        local x, y, part = mx.ones { n }, mx.zeros { n }, mx.ones { n // mx.ranks() }
        local exchange = exchange_rows(n)
        check(name, x, part, exchange)
        local row = { collective = name, bytes = bytes, ranks = mx.ranks(), dtype = "f32" }
        local function time(fn) return best(name == "all_gather" and { part } or { x }, fn) end
        row.seconds = time(function() CALLS[name](x, part, exchange) end)
        row.mpi_seconds = time(function()
            mx.mpi_reference(name, name == "all_gather" and part or x, y, bytes)
        end)
        row.copy_seconds = best({ x }, function() mx.copy(y, x) end)
        return row
    end)
end

local function size_text(bytes)
    return bytes >= 2 ^ 20 and ("%d MiB"):format(bytes // 2 ^ 20) or ("%d KiB"):format(bytes // 2 ^ 10)
end

--- Prints the table, and returns its rows. Collective.
---@param words string[] only, largest_mib, metrics_file
---@return table[]
function collectives.run(words)
    local o = mx.config.options(words, { only = "", largest_mib = 256, metrics_file = "" })
    if mx.ranks() == 1 then
        util.refuse("one rank has nobody to exchange with: mpirun -n 2 build/mxlua scripts/collectives.lua")
    end
    local log = o.metrics_file ~= "" and mx.rank() == 0 and mx.outputs.metrics(o.metrics_file)
    local info, rows = mx.info(), {}
    local most = math.floor(info.memory_bytes / info.node_ranks / COPIES) >> 20
    if o.largest_mib > most then
        util.refuse("largest_mib=%d: %d ranks of this machine have memory for tensors of at most %d MiB", o.largest_mib,
            info.node_ranks, most)
    end
    say("%d ranks, %d on this machine; %s", mx.ranks(), info.node_ranks, info.mpi)
    say("%-18s %8s %10s %8s %8s %8s %8s %8s", "collective", "size", "us", "GB/s", "MPI", "of MPI", "copy", "of copy")
    for _, name in ipairs(NAMES) do
        local bytes = 4096 // (4 * mx.ranks()) * 4 * mx.ranks() -- divisible by the ranks
        while name:find(o.only, 1, true) and bytes <= o.largest_mib * 2 ^ 20 do
            local row = measure(name, bytes)
            rows[#rows + 1] = row
            local function rate(seconds) return bytes / seconds / 1e9 end
            say("%-18s %8s %10.1f %8.2f %8.2f %7.1fx %8.2f %6.0f %%", name, size_text(bytes), 1e6 * row.seconds,
                rate(row.seconds), rate(row.mpi_seconds), row.mpi_seconds / row.seconds, rate(row.copy_seconds),
                100 * row.copy_seconds / row.seconds)
            if log then
                log:row(row)
            end
            bytes = bytes * 4
        end
    end
    if #rows == 0 then
        util.refuse("only=%s: no collective of that name: %s", o.only, table.concat(NAMES, ", "))
    end
    if log then
        log:close()
    end
    return rows
end

return collectives
