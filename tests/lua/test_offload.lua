--- Policies that offload, and all policies on whole models: the same bits, less memory, a file that does not grow.

local mx = require "mx"
local lu = require "luaunit"
local remat = require "mx.remat"
local util = require "mx.util"
local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")

local LAYERS = 6 -- so that what two layers have in memory is far from what all have

-- A model of 6 layers and its data, with further words.
local function new_run(model, ...)
    local config = mx.config.load {
        "model_name=" .. model, "dataset_type=random", "base_num_decoder_layers=" .. LAYERS, ...
    }
    return mx.models.new(config), mx.data.open(config)
end

local function release(model)
    for _, t in pairs(model.params) do
        t:release()
    end
end

--- One step's gradients.
---@return {loss: number, peak: integer, grads: table<string, any>} peak: bytes above what was there before
local function run_step(model, data, passes)
    collectgarbage()
    local before = mx.memory().in_use
    mx.reset_peak()
    local found = { loss = mx.train.gradients(model, data, passes or 1), grads = {} }
    found.peak = mx.memory().peak - before
    for name, t in pairs(model.params) do
        found.grads[name] = t:grad() and t:grad():clone()
        t:zero_grad()
    end
    return found
end

local function step_of(model_name, ...)
    local model, data = new_run(model_name, ...)
    local found = run_step(model, data)
    release(model)
    return found
end

local function assert_same(found, reference, what)
    lu.assertEquals(found.loss, reference.loss, what)
    lu.assertEquals(#util.sorted_keys(found.grads), #util.sorted_keys(reference.grads), what)
    for name, g in pairs(reference.grads) do
        local same = mx.mean(g:eq(found.grads[name]):to("f32")):item()
        lu.assertEquals(same, 1, ("%s: share of the gradient of %s that is the same"):format(what, name))
    end
end

-- Words that give each tensor of a layer the action.
local function custom(gated, action)
    local words = { "remat_policy=custom" }
    for _, name in ipairs(remat.tensors(gated)) do
        words[#words + 1] = name .. "=" .. action
    end
    return words
end

-- Enough tokens that activations make the peak, and not gradients.
local LONG = {
    tiny = { "max_target_length=256" },
    ["tiny-gpt2"] = { "max_target_length=256", "trainable_position_size=256" },
    ["tiny-parallel"] = { "max_target_length=256" },
}

TestPolicies = {}

for model, gated in pairs { tiny = true, ["tiny-gpt2"] = false, ["tiny-parallel"] = false } do
    for _, dtype in ipairs { "float32", "bfloat16" } do
        TestPolicies[("test_no_bit_differs_%s_%s"):format(model, dtype)] = function()
            local function step(...)
                return step_of(model, "dtype=" .. dtype, "per_device_batch_size=2", ...)
            end
            local reference = step("remat_policy=none")
            for _, policy in ipairs(remat.CHOICES) do
                assert_same(step("remat_policy=" .. policy), reference, policy)
            end
            assert_same(step(table.unpack(custom(gated, "offload"))), reference, "all offloaded")
            assert_same(step("remat_policy=custom", "decoder_layer_input=offload", "context=device",
                "value_proj=offload", "mlpwo=device"), reference, "a mixture")
            assert_same(step("dropout_rate=0.2", table.unpack(custom(gated, "offload"))),
                step("dropout_rate=0.2", "remat_policy=none"), "with dropout")
        end
    end

    -- Each policy against the next one that holds less, and the offloading ones against those that keep the same.
    TestPolicies["test_peak_memory_" .. model] = function()
        local peaks = {}
        for _, policy in ipairs(remat.CHOICES) do
            peaks[policy] = step_of(model, "remat_policy=" .. policy, table.unpack(LONG[model])).peak
        end
        local above
        for _, policy in ipairs(remat.CHOICES) do
            -- none keeps what gradients read, which in a parallel block is less than what has a name
            local in_order = policy ~= "custom" and not policy:find("offloaded")
                and not (policy == "none" and model == "tiny-parallel")
            if in_order and above then
                lu.assertTrue(peaks[policy] <= peaks[above], ("%s: %d, %s: %d"):format(above, peaks[above], policy,
                    peaks[policy]))
            end
            above = in_order and policy or above
        end
        lu.assertTrue(peaks.full < 0.6 * peaks.minimal_with_context)
        lu.assertTrue(peaks.minimal_offloaded < 0.8 * peaks.minimal)
        lu.assertTrue(peaks.qkv_proj_offloaded < peaks.save_qkv_proj)
    end

    TestPolicies["test_the_file_does_not_grow_" .. model] = function()
        local net, data = new_run(model, table.unpack(custom(gated, "offload")))
        mx.offload_stats(true)
        run_step(net, data, 2)
        local first = mx.offload_stats(true)
        lu.assertTrue(first.file_bytes > 0)
        for _ = 1, 5 do
            run_step(net, data, 2)
            local now = mx.offload_stats(true)
            lu.assertEquals(now.file_bytes, first.file_bytes)
            lu.assertEquals(now.away_bytes, 0)
            lu.assertEquals(now.written_bytes, first.written_bytes)
            lu.assertTrue(now.read_bytes <= now.written_bytes)
        end
        release(net)
    end
end

-- With S long and E small a layer's input is most of what "full" holds.
function TestPolicies.test_offloading_the_input_of_layers()
    local words = { "base_num_decoder_layers=24", "base_mlp_dim=16", "max_target_length=256" }
    local full = step_of("tiny", "remat_policy=full", table.unpack(words))
    local offloaded = step_of("tiny", "remat_policy=custom", "decoder_layer_input=offload", table.unpack(words))
    assert_same(offloaded, full, "decoder_layer_input=offload")
    local inputs = 24 * 8 * 256 * 64 * 2 -- layers, sequences, tokens, emb, bytes
    lu.assertTrue(full.peak - offloaded.peak > inputs / 2, ("%d and %d"):format(full.peak, offloaded.peak))
end

function TestPolicies.test_a_memory_limit_waits_for_what_goes_out()
    local model, data = new_run("tiny", "remat_policy=minimal_offloaded")
    local peak = run_step(model, data).peak
    mx.trim()
    mx.memory_limit(mx.memory().in_use + peak)
    local ok, message = pcall(function()
        for _ = 1, 5 do
            run_step(model, data)
        end
    end)
    mx.memory_limit(0)
    release(model)
    lu.assertTrue(ok, message)
end

function TestPolicies.test_words_that_are_refused()
    local function refused(message, ...)
        local words = { "model_name=tiny-gpt2", ... }
        lu.assertErrorMsgContains(message, function() mx.config.load(words) end)
    end
    refused("decoder_layer_input, query_proj, key_proj, value_proj, context, out_proj, mlpwi, mlpwo",
        "remat_policy=custom", "mlpwi_0=device")
    refused("no effect with remat_policy = full", "query_proj=offload")
    refused("expected one of device, offload, got", "remat_policy=custom", "decoder_layer_input=remat")
    refused("expected one of device, offload, remat", "remat_policy=custom", "mlpwo=keep")
    refused("offloads nothing", "remat_policy=custom", "mlpwo=device", "offload_directory=/tmp")
    refused("minimal_offloaded", "remat_policy=minimal_offload")
    lu.assertErrorMsgContains("offload_directory", new_run, "tiny", "remat_policy=minimal_offloaded",
        "offload_directory=/nowhere/at/all")
end

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
    mx.backward(mx.sum(inner * w))
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

-- What scripts/remat.lua prints, but for the printing.
function TestOffload.test_the_table_of_policies()
    local said = mx.metrics.say
    local words = { "model_name=tiny", "dataset_type=random", "only=offloaded", "repeats=1" }
    package.loaded["mx.policies"], mx.metrics.say = nil, function() end
    local run = require("mx.policies").run
    mx.metrics.say = said
    local rows = run(words)
    lu.assertEquals({ rows[1].policy, rows[2].policy, #rows }, { "qkv_proj_offloaded", "minimal_offloaded", 2 })
    lu.assertTrue(rows[1].peak > rows[1].activations and rows[1].activations > 0 and rows[1].seconds > 0)
    lu.assertErrorMsgContains("only=full chooses", run, { "remat_policy=full" })
    lu.assertErrorMsgContains("save_qkv_proj", run, { "only=nothing" })
end
