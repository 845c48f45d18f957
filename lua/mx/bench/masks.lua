--- Measures attention with masks that leave few pairs of query and key, against one causal mask.

local mx = require "mx"

local masks = {}

local WIDTH, ROUNDS = 64, 3 -- of a head
local PASSES = { "forward", "backward", "both" }

-- So many documents of S tokens in all, of about the same length: their intervals and pairs.
local function documents(S, n)
    local segments, pairs = {}, 0
    for d = 1, n do
        local first, last = S * (d - 1) // n + 1, S * d // n
        pairs = pairs + (last - first + 1) * (last - first + 2) / 2
        for i = first, last do
            segments[i] = d
        end
    end
    return mx.attention_intervals(mx.tensor({ segments }, "i32")), pairs
end

-- Each mask: name, tokens, heads, whether to measure all pairs, too, and a function that returns options, pairs, and
-- intervals or nil.
local MASKS = {
    { "16 documents", 16384, 16, false, function(S)
        local intervals, pairs = documents(S, 16)
        return { causal = true }, pairs, intervals
    end },
    { "128 documents", 16384, 16, false, function(S)
        local intervals, pairs = documents(S, 128)
        return { causal = true }, pairs, intervals
    end },
    { "1000 documents", 16384, 16, false, function(S)
        local intervals, pairs = documents(S, 1000)
        return { causal = true }, pairs, intervals
    end },
    { "window of 1024", 32768, 1, true, function(S)
        return { causal = true, window = 1024 }, 1024 * S - 1024 * 1023 / 2
    end },
}

-- Forward and backward of S tokens: a function that returns the seconds of both operations, by pass.
local function attention(S, heads, options, intervals)
    local function values(seed)
        return mx.randn { shape = { 1, S, heads, WIDTH }, dtype = "bf16", seed = seed }
    end
    local q, k, v, dout = values(1):requires_grad(), values(2):requires_grad(), values(3):requires_grad(), values(4)
    return function()
        local step <close> = mx.step()
        mx.profile(true)
        mx.backward(mx.sum(mx.attention(q, k, v, intervals, options) * dout))
        mx.profile(false)
        assert(step)
        local seconds = { forward = 0, backward = 0 }
        for _, row in ipairs(mx.profile_report()) do
            local pass = row.op == "attention" and "forward" or row.op == "attention_grad" and "backward"
            if pass then
                seconds[pass] = seconds[pass] + row.seconds
            end
        end
        seconds.both = seconds.forward + seconds.backward
        return seconds
    end
end

-- The least seconds of each function, by pass, called in turn; the first round gets fresh memory and does not count.
local function measure(rounds, ...)
    local least = {}
    for round = 0, rounds do
        for i, run in ipairs { ... } do
            local seconds = run()
            least[i] = least[i] or {}
            for _, pass in ipairs(round > 0 and PASSES or {}) do
                least[i][pass] = math.min(seconds[pass], least[i][pass] or seconds[pass])
            end
        end
    end
    return table.unpack(least)
end

--- Prints the table for the current number of threads. Only for one rank.
---@param log? table metrics of mx.outputs
function masks.run(log)
    local threads = mx.threads()
    print(("\nAttention, heads of %d in bf16, %d thread%s: seconds with a mask, those with one causal mask of as many "
        .. "pairs,\nand those with a causal mask of as many tokens."):format(WIDTH, threads,
        threads == 1 and "" or "s"))
    print(("%-16s %7s %6s %10s %-9s %9s %9s %6s %9s %7s"):format("mask", "tokens", "heads", "pairs", "pass", "seconds",
        "as many", "times", "causal", "faster"))
    for _, mask in ipairs(MASKS) do
        mx.scope(function()
            local name, S, heads, compares, make = table.unpack(mask)
            local options, pairs_of_one, intervals = make(S)
            local equal = math.floor(math.sqrt(2 * pairs_of_one) + 0.5)
            local own, one = measure(ROUNDS, attention(S, heads, options, intervals),
                attention(equal, heads, { causal = true }))
            local all = compares and measure(1, attention(S, heads, { causal = true })) or {}
            for _, pass in ipairs(PASSES) do
                print(("%-16s %7d %6d %10d %-9s %9.4f %9.4f %6.2f %9s %7s"):format(name, S, heads, pairs_of_one, pass,
                    own[pass], one[pass], own[pass] / one[pass], all[pass] and ("%.3f"):format(all[pass]) or "",
                    all[pass] and ("%.1fx"):format(all[pass] / own[pass]) or ""))
                if log then
                    log:row { kernel = "attention " .. name, pass = pass, tokens = S, heads = heads,
                        pairs = pairs_of_one, threads = threads, seconds = own[pass], of_as_many = one[pass],
                        of_all = all[pass] }
                end
            end
        end)
        mx.trim()
    end
end

return masks
