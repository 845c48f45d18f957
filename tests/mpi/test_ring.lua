-- ranks: 1 2 3 4
-- nodes: 2
-- Ring attention: against attention to the whole sequence on one rank, against finite differences, its bits, its
-- memory, and what its permutes leave to be waited for.
-- guarded: 2

local mx = require "mx"
local lu = require "luaunit"

local rank, ranks = mx.rank(), mx.ranks()
local NEVER = 0 -- no permute is split

mx.mesh_define { { name = "context", ici = ranks } }

-- ---- sequences and their parts ----

--- This rank's tokens of a whole sequence, along dimension 2.
local function part_of(t, balanced)
    local pieces = balanced and 2 * ranks or ranks
    local length = t:size(2) // pieces
    local function piece(i)
        return mx.narrow(t, { dim = 2, start = i * length + 1, length = length })
    end
    local own = balanced and mx.concat({ piece(rank), piece(pieces - 1 - rank) }, { dim = 2 }) or piece(rank)
    return own:detach():clone()
end

local function leaf(t)
    return t:detach():clone():requires_grad()
end

--- Whole q, k, v, and weights of a loss. The sizes are { B, S, H, K, D }, and features of v if they are not D.
local function problem(sizes, dtype)
    local B, S, H, K, D, V = table.unpack(sizes)
    local function randn(heads, width, seed)
        return mx.randn { shape = { B, S, heads, width }, seed = seed }
    end
    V = V or D
    return {
        q = randn(H, D, 1):to(dtype), k = randn(K, D, 2):to(dtype), v = randn(K, V, 3):to(dtype),
        weights = randn(H, V, 4),
    }
end

--- Documents of these lengths, one sequence after the other: (B, S) i32.
local function documents(B, S, lengths)
    local rows, row, number = {}, {}, 0
    for _, length in ipairs(lengths) do
        number = number + 1
        for _ = 1, length do
            row[#row + 1] = number
            if #row == S then
                rows[#rows + 1], row = row, {}
            end
        end
    end
    lu.assertEquals(#rows, B)
    return mx.tensor(rows, "i32")
end

--- Options of ring_attention from those of attention.
local function ring_options(options, balanced)
    local all = { axis = "context", balanced = balanced }
    for key, value in pairs(options) do
        all[key] = value
    end
    return all
end

--- out and the gradients of sum(weights out), detached, of a function of q, k and v.
local function run(p, attend, policy)
    local step <close> = mx.step()
    local q, k, v = leaf(p.q), leaf(p.k), leaf(p.v)
    local out = mx.remat(policy or "none", function()
        return attend(q, k, v)
    end)
    mx.backward(out:to("f32"):mul(p.weights):sum())
    return {
        out = out:detach():keep(), q = q:grad():keep(), k = k:grad():keep(), v = v:grad():keep(),
    }
end

--- The same of this rank's part.
local function run_ring(p, options, balanced, policy, segments)
    local own = {}
    for name, t in pairs(p) do
        own[name] = part_of(t, balanced)
    end
    local all = ring_options(options, balanced)
    local intervals = segments and mx.attention_intervals(part_of(segments, balanced), segments) or nil
    return run(own, function(q, k, v)
        return mx.ring_attention(q, k, v, intervals, all)
    end, policy)
end

local function largest(t)
    return mx.scope(function()
        return t:to("f32"):abs():max():item()
    end)
end

local function assert_close(got, whole, balanced, bound, what)
    for _, name in ipairs { "out", "q", "k", "v" } do
        local expected = part_of(whole[name], balanced)
        lu.assertEquals(got[name]:size(), expected:size(), what .. ", " .. name)
        -- A gradient may be 0 as the sum of terms of about 1.
        local off, scale = largest(got[name]:to("f32") - expected:to("f32")), math.max(largest(whole[name]), 1)
        lu.assertTrue(off <= bound * scale, ("%s: %s is off by %g of %g"):format(what, name, off, scale))
    end
end

local function assert_same_bits(a, b, what)
    for _, name in ipairs { "out", "q", "k", "v" } do
        lu.assertEquals(largest(a[name] - b[name]), 0, what .. ": " .. name)
    end
end

-- ---- against attention on one rank ----

TestRing = {}

-- A rank has a window of 1 or 4 tokens inside its part, one that reaches into the part before, and one into all.
local OPTIONS = {
    full = {}, causal = { causal = true }, capped = { causal = true, softcap = 1.5, scale = 0.4 },
    full_capped = { softcap = 2.0 }, window_1 = { causal = true, window = 1 }, window_4 = { causal = true, window = 4 },
    window_20 = { causal = true, window = 20, softcap = 2.0 }, window_all = { causal = true, window = 1000 },
    chunk_2 = { causal = true, chunk = 2 }, chunk_5 = { causal = true, chunk = 5 },
    chunk_24 = { causal = true, chunk = 24, softcap = 2.0 },
    window_in_chunk = { causal = true, chunk = 20, window = 7 },
}
local SIZES = { grouped = { 2, 48, 4, 2, 16 }, alike = { 1, 48, 3, 3, 8 }, few = { 3, 24, 2, 1, 5, 8 } }

-- Documents that end inside of parts and at their ends, and one of several parts; each rank has its part of 48 tokens.
for name, options in pairs(OPTIONS) do
    TestRing["test_documents_" .. name] = function()
        local p, segments = problem({ 2, 48, 4, 2, 16 }, "f32"), documents(2, 48, { 5, 7, 12, 1, 23, 2, 40, 6 })
        local whole = run(p, function(q, k, v)
            return mx.attention(q, k, v, mx.attention_intervals(segments), options)
        end)
        for _, balanced in ipairs({ false, true }) do
            assert_close(run_ring(p, options, balanced, "full", segments), whole, balanced, 1e-5,
                ("balanced %s"):format(balanced))
        end
    end
end

-- In f32 sums are ordered differently: 1e-5. In bf16 what a block gives is rounded before it is merged, and the results
-- of both are: 3 times 2^-8 of the largest element.
for name, options in pairs(OPTIONS) do
    for size, sizes in pairs(SIZES) do
        TestRing["test_" .. name .. "_" .. size] = function()
            for _, dtype in ipairs { "f32", "bf16" } do
                local bound = dtype == "f32" and 1e-5 or 3 / 256
                local p = problem(sizes, dtype)
                local whole = run(p, function(q, k, v)
                    return mx.attention(q, k, v, options)
                end)
                for _, balanced in ipairs({ false, true }) do
                    assert_close(run_ring(p, options, balanced), whole, balanced, bound,
                        ("%s, balanced %s"):format(dtype, balanced))
                end
            end
        end
    end
end

-- Sinks count once, whatever the number of blocks; a rank's gradient of them is its queries' share.
function TestRing.test_sinks()
    local function with_sinks(attend, p, options)
        local step <close> = mx.step()
        local q, k, v, sinks = leaf(p.q), leaf(p.k), leaf(p.v), mx.tensor({ 1, -3, 0.5, 9 }):requires_grad()
        local out = attend == mx.attention and attend(q, k, v, nil, nil, nil, sinks, options)
            or attend(q, k, v, nil, sinks, options)
        mx.backward(out:to("f32"):mul(p.weights):sum())
        return {
            out = out:detach():keep(), q = q:grad():keep(), k = k:grad():keep(), v = v:grad():keep(),
            sinks = sinks:grad():keep(),
        }
    end
    for _, balanced in ipairs { false, true } do
        local p, own = problem(SIZES.grouped, "f32"), {}
        for name, t in pairs(p) do
            own[name] = part_of(t, balanced)
        end
        local whole = with_sinks(mx.attention, p, { causal = true })
        local got = with_sinks(mx.ring_attention, own, ring_options({ causal = true }, balanced))
        assert_close(got, whole, balanced, 1e-5, "sinks")
        mx.all_reduce_(got.sinks)
        lu.assertTrue(largest(got.sinks - whole.sinks) <= 1e-5 * largest(whole.sinks))
    end
end

function TestRing.test_gradients_against_finite_differences()
    for _, case in ipairs { { {}, false }, { { causal = true, softcap = 1.5 }, true },
        { { causal = true, window = 3 }, false }, { { causal = true, window = 2 }, true } } do
        local p, options = problem({ 1, 2 * ranks, 2, 1, 2 }, "f32"), ring_options(case[1], case[2])
        local got, own = run_ring(p, case[1], case[2]), {}
        for name, t in pairs(p) do
            own[name] = part_of(t, case[2])
        end
        local function loss()
            local step <close> = mx.step()
            local out = mx.ring_attention(own.q, own.k, own.v, options)
            return mx.all_reduce_(out:mul(own.weights):sum()):item()
        end
        for _, name in ipairs { "q", "k", "v" } do
            local flat, grad = own[name]:view(own[name]:numel()), got[name]:view(own[name]:numel()):totable()
            for at = 0, ranks * #grad - 1 do -- element by element of all ranks
                local mine, i, before = at // #grad == rank, at % #grad + 1, nil
                local function with(change)
                    if mine then
                        before = before or flat:get(i)
                        flat:set(i, before + change)
                    end
                    return loss()
                end
                local slope = (with(1e-2) - with(-1e-2)) / 2e-2
                if mine then -- the third derivative times 1e-4 / 6, and rounding to 2^-22 of a loss of a few
                    flat:set(i, before)
                    lu.assertAlmostEquals(grad[i], slope, 1e-3, ("%s, element %d"):format(name, i))
                end
            end
        end
    end
end

function TestRing.test_values_that_are_under_way()
    mx.comm_options { permute_decomposer_bytes = 1 }
    local p = problem({ 1, 12 * ranks, 2, 2, 4 }, "f32")
    local q, k, v = part_of(p.q), part_of(p.k), part_of(p.v)
    local expected = mx.ring_attention(q, k, v, { axis = "context", causal = true })
    local function there_and_back(t)
        return mx.collective_permute(mx.collective_permute(t, { shift = 1, async = true }), { shift = -1 })
    end
    local out = mx.ring_attention(there_and_back(q), there_and_back(k), there_and_back(v),
        { axis = "context", causal = true })
    lu.assertEquals(largest(out - expected), 0)
    mx.comm_options { permute_decomposer_bytes = NEVER }
end

-- ---- bits ----

local function assert_settings_change_nothing(dtype, options, balanced)
    local p = problem({ 2, 48, 4, 2, 16 }, dtype)
    local first = run_ring(p, options, balanced)
    for _, bytes in ipairs { 1, 3000, NEVER } do
        mx.comm_options { permute_decomposer_bytes = bytes }
        for _, policy in ipairs { "none", "full" } do
            assert_same_bits(run_ring(p, options, balanced, policy), first, ("%d bytes, %s"):format(bytes, policy))
        end
    end
    mx.comm_options { permute_decomposer_bytes = NEVER }
end

function TestRing.test_no_setting_changes_a_bit()
    for _, dtype in ipairs { "f32", "bf16" } do
        assert_settings_change_nothing(dtype, {}, false)
        assert_settings_change_nothing(dtype, { causal = true }, true)
        assert_settings_change_nothing(dtype, { causal = true, window = 20 }, false)
        assert_settings_change_nothing(dtype, { causal = true, window = 20 }, true)
    end
end

-- ---- what travels ----

-- As many hops on all ranks as the furthest key needs that a query sees: 8 tokens a rank, balanced two pieces of 4. The
-- late ones then need those of the ranks behind, so a window takes twice as many hops as pieces that it reaches.
function TestRing.test_hops()
    for _, case in ipairs({
        { window = 0, hops = ranks - 1 }, { window = 8, hops = 1 }, { window = 16, hops = 2 }, { window = 1, hops = 0 },
        { window = 5, hops = 2, balanced = true }, { window = 6, hops = 4, balanced = true },
        { window = 1, hops = 0, balanced = true }, { window = 0, hops = ranks - 1, balanced = true },
        { window = 0, chunk = 4, hops = 0 }, { window = 0, chunk = 4, hops = 0, balanced = true },
        { window = 0, chunk = 5, hops = 1 }, { window = 0, chunk = 5, hops = 2, balanced = true },
    }) do
        local p, hops = problem({ 1, 8 * ranks, 2, 1, 4 }, "bf16"), math.min(case.hops, ranks - 1)
        local block, what = 2 * 8 * 1 * 4, ("window %d"):format(case.window) -- elements of keys and values
        mx.barrier()
        mx.comm_stats(true)
        run_ring(p, { causal = true, window = case.window, chunk = case.chunk }, case.balanced or false)
        local stats = mx.comm_stats(true)
        lu.assertEquals(stats.calls, 3 * 2 * hops, what) -- k and v forward, backward, and their gradients
        lu.assertEquals(stats.bytes, hops * block * (2 + 2 + 4), what)
    end
end

-- The profiler counts the parts of a pass: with balance all ranks have the same work.
function TestRing.test_cost()
    local S, H, K, D = 8, 4, 2, 8
    for _, balanced in ipairs { false, true } do
        local pairs_seen = balanced and S * (S + 1) / 2 + (ranks - 1) * S * S / 2 or S * (S + 1) / 2 + rank * S * S
        mx.profile(true)
        run_ring(problem({ 1, S * ranks, H, K, D }, "bf16"), { causal = true }, balanced)
        mx.profile(false)
        local flops, calls = {}, {}
        for _, row in ipairs(mx.profile_report()) do
            flops[row.op], calls[row.op] = (flops[row.op] or 0) + row.flops, (calls[row.op] or 0) + row.calls
        end
        lu.assertEquals(flops.attention, 2 * 2 * pairs_seen * H * D)
        lu.assertEquals(flops.attention_grad, 5 * 2 * pairs_seen * H * D)
        lu.assertEquals(calls.attention, balanced and ranks or rank + 1) -- what the mask hides is not computed
        lu.assertEquals(calls.attention_merge_ or 0, calls.attention - 1)
        lu.assertEquals(calls.collective_permute or 0, 3 * 2 * (ranks - 1))
        lu.assertNil(calls.ring_attention, "its parts are counted in its place")
    end
end

-- ---- memory ----

TestRingMemory = {}

-- Keys and values of a rank's block outweigh all else: with 16 heads of keys the kernel's scratch, one head of them, is
-- little, and an exchange takes room for three pieces of 128 KiB.
local TOKENS, HEADS, WIDTH = 512, 16, 64
local TENSOR = 4 * TOKENS * HEADS * WIDTH -- bytes of q, k, v or out in f32
local REST = TENSOR -- scratch, the exchange, log-sum-exps

local function peak_above(fn)
    collectgarbage()
    collectgarbage()
    collectgarbage("stop") -- the peak is to depend on what is computed alone
    mx.barrier()
    mx.reset_peak()
    local before = mx.memory().in_use
    fn()
    local peak = mx.memory().peak - before
    collectgarbage("restart")
    return peak
end

local function block()
    local shape = { 1, TOKENS, HEADS, WIDTH }
    return mx.randn { shape = shape, seed = rank }, mx.randn { shape = shape, seed = rank + 9 },
        mx.randn { shape = shape, seed = rank + 99 }
end

-- Two blocks beside its own: each keys and values. And the result, and what one block gives.
function TestRingMemory.test_forward_holds_two_blocks()
    local q, k, v = block()
    for _, bytes in ipairs { 1, NEVER } do
        mx.comm_options { permute_decomposer_bytes = bytes }
        local peak = peak_above(function()
            local step <close> = mx.step()
            mx.ring_attention(q, k, v, { axis = "context", causal = true, balanced = true })
        end)
        local blocks = math.min(ranks - 1, 1) * 2
        lu.assertTrue(peak <= 2 * TENSOR + blocks * 2 * TENSOR + REST, ("%d bytes of %d"):format(peak, TENSOR))
    end
    mx.comm_options { permute_decomposer_bytes = NEVER }
end

-- Gradients of keys and values: those of our own block, what is on its way to us and from us, and what we add.
function TestRingMemory.test_backward_holds_two_blocks_and_their_gradients()
    local q, k, v = block()
    local function attend()
        return mx.ring_attention(q, k, v, { axis = "context", causal = true, balanced = true })
    end
    q:requires_grad()
    k:requires_grad()
    v:requires_grad()
    for _, policy in ipairs { "none", "full" } do
        for _, bytes in ipairs { 1, NEVER } do
            mx.comm_options { permute_decomposer_bytes = bytes }
            local peak = peak_above(function()
                local step <close> = mx.step()
                local out = mx.remat(policy, attend)
                mx.backward(out:sum())
            end)
            local blocks, gradients = math.min(ranks - 1, 1) * 2, ranks > 1 and 4 or 1
            -- out and its gradient; dq, its part from a block, dk and dv.
            local results = 2 + 4
            local most = (results + 2 * blocks + 2 * gradients) * TENSOR + 1.5 * REST -- more scratch than forward
            lu.assertTrue(peak <= most,
                ("%s: %d bytes of %d"):format(policy, peak, TENSOR))
            for _, t in ipairs { q, k, v } do
                t:zero_grad()
            end
        end
    end
    mx.comm_options { permute_decomposer_bytes = NEVER }
end

-- ---- permutes that are split into start and end ----

TestDecomposer = {}

function TestDecomposer.test_permutes_are_split_from_a_size_on()
    for _, name in ipairs { "collective_permute", "collective_permute_" } do
        for _, bytes in ipairs { 1, 4000, 4001, NEVER } do
            local split = bytes > 0 and bytes <= 4000
            mx.comm_options { permute_decomposer_bytes = bytes }
            local y = mx[name](mx.full({ 1000 }, rank))
            lu.assertEquals(y:is_pending(), split and ranks > 1, ("%s, from %d bytes on"):format(name, bytes))
            lu.assertEquals(y:get(1000), (rank - 1) % ranks)
            local small = mx[name](mx.full({ 1 }, rank))
            lu.assertEquals(small:is_pending(), bytes == 1 and ranks > 1, name)
            lu.assertTrue(mx[name](mx.ones { 1 }, { async = true }):is_pending() == (ranks > 1), "as it was asked for")
        end
    end
    mx.comm_options { permute_decomposer_bytes = NEVER }
end

-- A rank that comes late keeps the others waiting while they could compute with what they have. What a rank waits for
-- before it computes its own block, by the order in the trace: both permutes that bring the next block, keys and
-- values, or none if they are split.
if ranks > 1 and ranks <= 2 then
    function TestDecomposer.test_split_permutes_are_less_exposed()
        local q, k, v = block()
        local function waits_before_own_block(bytes)
            local step <close> = mx.step()
            mx.comm_options { permute_decomposer_bytes = bytes }
            mx.barrier()
            mx.trace_start()
            local start = mx.now()
            repeat until rank > 0 or mx.now() > start + 0.02
            mx.ring_attention(q, k, v, { axis = "context", causal = false })
            mx.trace_stop()
            mx.comm_options { permute_decomposer_bytes = NEVER }
            local waits = 0
            for _, event in ipairs(mx.trace_events()) do
                if event.name == "attention" then
                    return waits
                end
                waits = waits + (event.kind == "wait" and event.name == "collective_permute" and 1 or 0)
            end
            lu.fail("the trace has no attention")
        end
        lu.assertEquals(waits_before_own_block(NEVER), 2)
        lu.assertEquals(waits_before_own_block(1), 0)
    end
end

-- ---- what is refused ----

function TestRing.test_what_is_refused()
    local q, k = mx.zeros { 1, 3, 4, 8 }, mx.zeros { 1, 3, 2, 8 }
    local function refused(parts, ...)
        local ok, message = pcall(mx.ring_attention, ...)
        lu.assertFalse(ok)
        for _, part in ipairs(parts) do
            lu.assertStrContains(tostring(message), part)
        end
    end
    refused({ "window", "causal" }, q, k, k, { window = 3 })
    refused({ "chunk = 3", "causal" }, q, k, k, { chunk = 3 })
    refused({ "3 tokens", "two pieces" }, q, k, k, { causal = true, balanced = true })
    refused({ "same tokens", "3 and 2" }, q, mx.zeros { 1, 2, 2, 8 }, mx.zeros { 1, 2, 2, 8 })
    refused({ "heads" }, q, mx.zeros { 1, 3, 3, 8 }, mx.zeros { 1, 3, 3, 8 })
    refused({ "softcap" }, q, k, k, { softcap = -1.0 })
    refused({ "dtype" }, q, k:to("bf16"), k)
    refused({ "intervals", "i32" }, q, k, k, mx.zeros { 1, 3, 2 })
    refused({ "intervals", "1, 3, 2" }, q, k, k, mx.zeros({ 1, 2, 2 }, "i32"))
end
