--- Measures attention with masks that leave few pairs of query and key, against one causal mask.

local mx = require "mx"

local masks = {}

local WIDTH, ROUNDS = 64, 3 -- of a head

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
    { "1000 documents", 16384, 16, false, function(S)
        local intervals, pairs = documents(S, 1000)
        return { causal = true }, pairs, intervals
    end },
    { "window of 1024", 32768, 1, true, function(S)
        return { causal = true, window = 1024 }, 1024 * S - 1024 * 1023 / 2
    end },
}

-- Forward and backward of S tokens: a function that returns the seconds of a call.
local function attention(S, heads, options, intervals)
    local function values(seed)
        return mx.randn { shape = { 1, S, heads, WIDTH }, dtype = "bf16", seed = seed }
    end
    local q, k, v, dout = values(1):requires_grad(), values(2):requires_grad(), values(3):requires_grad(), values(4)
    return function()
        local step <close> = mx.step()
        local start = mx.now()
        local out = mx.attention(q, k, v, intervals, options)
        mx.backward(mx.sum(out * dout))
        assert(step)
        return mx.now() - start
    end
end

-- The least seconds of each function, called in turn; the first round gets fresh memory and does not count.
local function seconds(rounds, ...)
    local least = {}
    for round = 0, rounds do
        for i, run in ipairs { ... } do
            local s = run()
            least[i] = round > 0 and math.min(s, least[i] or s) or nil
        end
    end
    return table.unpack(least)
end

--- Prints the table for the current number of threads. Only for one rank.
---@param log? table metrics of mx.outputs
function masks.run(log)
    local threads = mx.threads()
    print(("\nForward and backward of attention, heads of %d in bf16, %d thread%s: seconds of a mask, those of one "
        .. "causal mask\nwith as many pairs, and those of a causal mask of as many tokens."):format(WIDTH, threads,
        threads == 1 and "" or "s"))
    print(("%-16s %7s %6s %10s %9s %9s %6s %9s %7s"):format("mask", "tokens", "heads", "pairs", "seconds", "as many",
        "times", "causal", "faster"))
    for _, mask in ipairs(MASKS) do
        mx.scope(function()
            local name, S, heads, compares, make = table.unpack(mask)
            local options, pairs, intervals = make(S)
            local equal = math.floor(math.sqrt(2 * pairs) + 0.5)
            local own, one = seconds(ROUNDS, attention(S, heads, options, intervals),
                attention(equal, heads, { causal = true }))
            local all = compares and seconds(1, attention(S, heads, { causal = true }))
            print(("%-16s %7d %6d %10d %9.3f %9.3f %6.2f %9s %7s"):format(name, S, heads, pairs, own, one, own / one,
                all and ("%.3f"):format(all) or "", all and ("%.1fx"):format(all / own) or ""))
            if log then
                log:row { kernel = "attention " .. name, tokens = S, heads = heads, pairs = pairs, threads = threads,
                    seconds = own, of_as_many = one, of_all = all or nil }
            end
        end)
        mx.trim()
    end
end

return masks
