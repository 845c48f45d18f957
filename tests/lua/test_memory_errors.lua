--- Memory that is not there is an error like any other, and calls that fail leave nothing behind.

local mx = require "mx"
local lu = require "luaunit"

TestMemoryErrors = {}

function TestMemoryErrors.setUp()
    TestMemoryErrors.step = mx.step()
end

function TestMemoryErrors.tearDown()
    local step <close> = TestMemoryErrors.step
    TestMemoryErrors.step = nil
    assert(step)
end

-- Dimensions that are no neighbours are brought together in scratch memory, of which an empty tensor needs none.
function TestMemoryErrors.test_reductions_of_empty_tensors_keep_nothing()
    local x = mx.zeros(33, 0, 5)
    local function reserved()
        mx.trim()
        return mx.memory().reserved
    end
    local before = reserved()
    for _, op in ipairs { "sum", "mean", "logsumexp", "var", "norm", "all" } do
        do
            local step <close> = mx.step()
            mx[op](x, { dim = { 1, 3 } })
        end
        lu.assertEquals(reserved(), before, op)
    end
end

function TestMemoryErrors.test_out_of_memory()
    local before = mx.memory()
    mx.trim()
    mx.memory_limit(mx.memory().in_use + (1 << 20))
    local ok, message = pcall(mx.zeros, { 1024, 1024 })
    local a = mx.randn({ 300, 300 }, { seed = 1 }):requires_grad()
    local big_ok = pcall(function()
        local b = mx.exp(a)
        for _ = 1, 10 do
            b = mx.exp(b * 0.1)
        end
        return b
    end)
    mx.memory_limit(before.limit)
    lu.assertFalse(ok)
    lu.assertStrContains(message, "memory")
    lu.assertStrContains(message, "4.0 MiB")
    lu.assertStrContains(message, "(1024, 1024)")
    lu.assertFalse(big_ok)
    -- The engine works on, gradients too.
    mx.backward(mx.sum(mx.exp(a * 0)))
    lu.assertEquals(a:grad():get(1, 1), 0)
    lu.assertEquals(mx.zeros({ 1024, 1024 }):numel(), 1024 * 1024)
end

function TestMemoryErrors.test_out_of_memory_in_backward()
    local x = mx.randn({ 256, 256 }, { seed = 1 }):requires_grad()
    local function forward()
        return mx.sum(mx.remat("full", function(t)
            for _ = 1, 4 do
                t = mx.tanh(mx.matmul(t, t) * 0.01)
            end
            return t
        end, x))
    end
    local loss = forward()
    mx.trim()
    mx.memory_limit(mx.memory().in_use + 300 * 1024)
    local ok, message = pcall(mx.backward, loss)
    mx.memory_limit(0)
    lu.assertFalse(ok)
    lu.assertStrContains(message, "memory")
    x:zero_grad()
    mx.backward(forward())
    local after_failure = x:grad():totable()
    x:zero_grad()
    mx.backward(forward())
    lu.assertEquals(x:grad():totable(), after_failure)
end

--- Recorded gradients whose memory ends at any of their allocations say so, and leave nothing behind.
function TestMemoryErrors.test_out_of_memory_in_recorded_gradients()
    local function leaf(...)
        return mx.randn({ ... }, { seed = 1, dtype = "bf16" }):requires_grad()
    end
    local gate, up = leaf(), leaf()
    local x, weight = leaf(2, 3, 4), mx.ones(3):requires_grad()
    local mean, var = mx.zeros(3):requires_grad(), mx.ones(3):requires_grad()
    for name, case in pairs {
        gated = { function() return mx.gated(gate, up) end, gate, up },
        batch_norm = {
            function() return (mx.batch_norm(x, weight, nil, mean, var)) end, x, weight, mean, var,
        },
    } do
        local leaves = table.move(case, 2, #case, 1, {})
        local function gradients()
            local step <close> = mx.step()
            mx.grad(mx.sum(case[1]():to("f32")), leaves, { record = true })
        end
        collectgarbage()
        local before = mx.memory().in_use
        mx.reset_peak()
        gradients()
        local refused, took = 0, mx.memory().peak - before
        for room = 0, took - 1, 2 do
            mx.memory_limit(before + room)
            local ok, message = pcall(gradients)
            mx.memory_limit(0)
            lu.assertFalse(ok, name)
            lu.assertStrContains(message, "out of memory")
            refused = refused + 1
            collectgarbage()
            lu.assertEquals(mx.memory().in_use, before, name)
        end
        lu.assertTrue(refused > 10, name)
    end
end

--- After calls that are refused nothing is left behind.
function TestMemoryErrors.test_failed_calls_leak_nothing()
    local a, b = mx.zeros { 200, 300 }, mx.zeros { 400, 500 }
    collectgarbage()
    local before = mx.memory().in_use
    for _ = 1, 50 do
        pcall(mx.matmul, a, b)
        pcall(mx.add, a, b)
        pcall(mx.embedding, a, mx.tensor({ 999 }, "i32"))
        pcall(mx.concat, a, b, { dim = 1 })
    end
    collectgarbage()
    -- the fifty ids, of 4 bytes each, belong to the step
    lu.assertTrue(mx.memory().in_use - before <= 50 * 64)
end
