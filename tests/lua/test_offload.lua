--- Offloading: values that come back, changes, nesting, simulated chips, and the table of all policies.
-- guarded

local mx = require "mx"
local lu = require "luaunit"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

TestOffload = {}

local function square_twice(policy, x)
    local inner
    local y = mx.remat(policy, function(t)
        inner = mx.name(t * t, "inner"):keep()
        return inner * inner
    end, x)
    return y, inner
end

function TestOffload.test_offloaded_values_can_be_read()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2, 3 }):requires_grad()
    local y, inner = square_twice({ inner = "offload" }, x)
    lu.assertFalse(inner:is_released())
    lu.assertStrContains(tostring(inner), "9")
    lu.assertEquals((inner + 1):totable(), { 2, 5, 10 })
    mx.backward(mx.sum(y))
    lu.assertEquals(x:grad():totable(), { 4, 32, 108 })
    lu.assertEquals(inner:totable(), { 1, 4, 9 })
    inner:release()
    lu.assertTrue(inner:is_released())
    lu.assertEquals(mx.offload_stats().away_bytes, 0)
    assert(step)
end

-- A value that was changed in place has no copy any more.
function TestOffload.test_a_change_is_not_lost()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }):requires_grad()
    local y, inner = square_twice({ inner = "offload" }, x)
    mx.backward(mx.sum(y))
    mx.no_grad(function() inner:set(1, 7) end)
    local w = mx.ones({ 2 }):requires_grad()
    mx.backward(mx.sum(inner:detach() * w))
    lu.assertEquals(w:grad():totable(), { 7, 4 })
    lu.assertEquals(inner:totable(), { 7, 4 })
    inner:release()
    assert(step)
end

function TestOffload.test_regions_nest()
    local names = { a = "offload", b = "offload" }
    local reference
    for _, policy in ipairs { "none", names, { a = "offload", b = "device" }, { b = "offload" } } do
        local step <close> = mx.step()
        local x = mx.randn({ 64, 64 }, { seed = 1 }):requires_grad()
        local y = x * 0.5
        for _ = 1, 3 do
            y = mx.remat(policy, function(t)
                local inner = mx.remat(policy, function(u)
                    return mx.name(mx.tanh(mx.matmul(u, u)), "a") * u
                end, mx.name(t, "b"))
                return mx.matmul(inner, t) + mx.name(mx.sin(inner), "a")
            end, y)
        end
        mx.backward(mx.sum(y))
        local g = compare.flat(x:grad())
        reference = reference or g
        lu.assertEquals(g, reference)
        assert(step)
    end
end

-- The tape is dropped without a backward pass.
function TestOffload.test_a_step_without_backward()
    do
        local step <close> = mx.step()
        local x = mx.ones({ 1000 }):requires_grad()
        local y, inner = square_twice({ inner = "offload" }, x)
        inner:release()
        assert(y and step)
    end
    lu.assertEquals(mx.offload_stats().away_bytes, 0)
end

function TestOffload.test_the_file_moves_only_when_it_is_empty()
    local step <close> = mx.step()
    local x = mx.ones({ 10 }):requires_grad()
    local y, inner = square_twice({ inner = "offload" }, x)
    lu.assertErrorMsgContains("before they are back", mx.offload_open, ".")
    mx.backward(mx.sum(y))
    inner:release()
    local before = mx.offload_stats().directory
    mx.offload_open(".")
    lu.assertEquals(mx.offload_stats().directory, ".")
    lu.assertErrorMsgContains("/proc", mx.offload_open, "/proc")
    mx.offload_open(before)
    assert(step)
end

-- On a simulated chip the same calls cost time on its way to the host, and no file.
function TestOffload.test_simulated()
    local function peak_of(...)
        local config = mx.config.load {
            "model_name=default", "hardware=v5e-1", "base_num_decoder_layers=12", "max_target_length=1024", ...
        }
        local mesh = mx.train.mesh(config)
        local model = mx.models.new(config, mesh)
        local peak, times
        for _ = 1, 2 do
            mx.sim_times(true)
            mx.reset_peak()
            mx.train.gradients(model, mx.data.open(config, mesh), 1)
            peak, times = mx.memory().peak, mx.sim_times()
        end
        mx.sim.stop()
        return peak, times
    end
    mx.offload_stats(true)
    local kept = peak_of("remat_policy=minimal")
    local offloaded, times = peak_of("remat_policy=minimal_offloaded")
    lu.assertTrue(offloaded < 0.8 * kept, ("%d and %d"):format(offloaded, kept))
    lu.assertTrue(times.host_busy_s > 0)
    lu.assertEquals(mx.offload_stats().away_bytes, 0)
end

-- Runs scripts/remat.lua without its printing.
local function table_of_policies(words)
    local said, loaded = mx.metrics.say, package.loaded["mx.bench.policies"]
    package.loaded["mx.bench.policies"], mx.metrics.say = nil, function() end
    local run = require("mx.bench.policies").run
    package.loaded["mx.bench.policies"], mx.metrics.say = loaded, said
    return run(words)
end

function TestOffload.test_the_table_of_policies()
    local run = table_of_policies
    local words = { "model_name=tiny", "only=offloaded", "repeats=1" }
    local rows = run(words)
    lu.assertEquals({ rows[1].policy, rows[2].policy, #rows }, { "qkv_proj_offloaded", "minimal_offloaded", 2 })
    lu.assertTrue(rows[1].peak > rows[1].activations and rows[1].activations > 0 and rows[1].seconds > 0)
    lu.assertErrorMsgContains("only=full chooses", run, { "remat_policy=full" })
    lu.assertErrorMsgContains("save_qkv_proj", run, { "only=nothing" })
end

-- Simulated losses are NaN, so the policies' losses are not compared.
function TestOffload.test_the_table_of_policies_on_a_simulated_chip()
    local rows = table_of_policies { "model_name=tiny", "hardware=v5e-1", "only=offloaded", "repeats=1" }
    mx.sim.stop()
    lu.assertEquals({ rows[1].policy, rows[2].policy, #rows }, { "qkv_proj_offloaded", "minimal_offloaded", 2 })
end

function TestOffload.test_a_value_that_was_changed_before_it_was_offloaded()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2, 3 }):requires_grad()
    local y = mx.name(mx.sigmoid(x), "y")
    local z = mx.remat({ y = "offload" }, function()
        local sum = mx.tanh(x) - y
        y:set(2, 0.75)
        return sum
    end)
    lu.assertErrorMsgContains("sigmoid", mx.backward, mx.mean(z))
    lu.assertNil(x:grad())
end

--- Backward lets go of a fetched value. A view that was made meanwhile still shows the same memory.
function TestOffload.test_a_view_of_a_fetched_value()
    local step <close> = mx.step()
    local x = mx.tensor({ { 1, 2 }, { 3, 4 } }):requires_grad()
    local y = mx.name(mx.tanh(x), "y")
    local z = mx.remat({ y = "offload" }, function() return mx.square(y) end)
    local row = mx.no_grad(function() return y[1] end)
    mx.backward(mx.sum(z))
    mx.fill(row, { value = 5 })
    lu.assertEquals(y[1]:totable(), { 5, 5 })
end
