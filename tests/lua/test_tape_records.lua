--- Which records backward forgets, and what it makes of values that have lost their record or have been changed.

local mx = require "mx"
local lu = require "luaunit"
local checks = require "checks"

local in_use, line, assert_raises = checks.in_use, checks.line, checks.assert_raises

local function leaf(values)
    return mx.tensor(values):keep():requires_grad()
end

-- ---- backward forgets what it has walked, and no more ----

TestRecords = {}

function TestRecords.test_two_losses_over_one_intermediate()
    local step <close> = mx.step()
    local generator, discriminator = leaf { 2, 3 }, leaf { 5, 7 }
    local fake = generator * 2
    mx.backward((fake:detach() * discriminator):sum()) -- generator is not in this loss
    lu.assertEquals(discriminator:grad():totable(), { 4, 6 })
    lu.assertNil(generator:grad())
    discriminator:zero_grad()
    mx.backward((fake * discriminator):sum())
    lu.assertEquals(generator:grad():totable(), { 10, 14 })
    lu.assertEquals(discriminator:grad():totable(), { 4, 6 })
    assert(step)
end

function TestRecords.test_a_loss_that_was_computed_before_another_ones_backward()
    local step <close> = mx.step()
    local a, b = leaf { 2, 3 }, leaf { 5, 7 }
    local first, second = (a * a):sum(), (b * b * b):sum()
    mx.backward(first)
    mx.backward(second)
    lu.assertEquals(a:grad():totable(), { 4, 6 })
    lu.assertEquals(b:grad():totable(), { 75, 147 })
    assert(step)
end

function TestRecords.test_a_walked_record_is_missed_by_a_later_loss()
    local step <close> = mx.step()
    local w1, w2, w3 = leaf { 2 }, leaf { 3 }, leaf { 5 }
    local h = mx.name(w1 * 7, "trunk")
    local made = line(-1)
    local before = (h * w3):sum() -- recorded before the other loss is walked
    mx.backward((h * w2):sum())
    lu.assertEquals(w1:grad():item(), 21)
    local after = (h * w3):sum()
    local through_constants = (h * 2):sum() + w3 -- h * 2 needs no record of its own
    for _, loss in ipairs { before, after, through_constants, (h * h):sum() } do
        assert_raises({ "already", "affine", made, "retain = true", "detach" }, mx.backward, loss)
    end
    assert_raises({ "'trunk'" }, mx.backward, before)
    assert_raises({ "computed from the result of affine" }, mx.backward, through_constants)
    lu.assertEquals(w1:grad():item(), 21)
    lu.assertNil(w3:grad())
    mx.backward((h:detach() * w3):sum())
    lu.assertEquals(w3:grad():item(), 14)
    mx.backward((mx.no_grad(function() return h * 2 end) * w3):sum())
    lu.assertEquals(w3:grad():item(), 14 + 28)
    assert(step)
end

--- What is looked at after backward and leads to no loss raises nothing.
function TestRecords.test_values_of_walked_records_may_be_read()
    local step <close> = mx.step()
    local w = leaf { 2, 3 }
    local h = w * 7
    mx.backward((h * h):sum())
    lu.assertEquals((h * w):sum():item(), 14 * 2 + 21 * 3)
    lu.assertEquals(h:max():item(), 21)
    assert(step)
end

function TestRecords.test_a_computed_tensor_is_no_leaf_after_backward_either()
    local step <close> = mx.step()
    local w = leaf { 2 }
    local h = w * 7
    mx.backward(h:sum())
    assert_raises({ "detach" }, h.requires_grad, h)
    assert(step)
end

-- ---- retain ----

function TestRecords.test_retain_walks_a_loss_again()
    local step <close> = mx.step()
    local x = leaf { 1, 2, 3 }
    local loss = (x * x * x):sum()
    mx.backward(loss, { retain = true })
    lu.assertEquals(x:grad():totable(), { 3, 12, 27 })
    mx.backward(loss, 2, { retain = true })
    lu.assertEquals(x:grad():totable(), { 9, 36, 81 })
    mx.backward(loss)
    lu.assertEquals(x:grad():totable(), { 12, 48, 108 })
    assert_raises({ "already" }, mx.backward, loss)
    assert(step)
end

function TestRecords.test_retain_for_a_trunk_of_two_losses()
    local step <close> = mx.step()
    local w, a, b = leaf { 2 }, leaf { 3 }, leaf { 5 }
    local h = w * w
    mx.backward((h * a):sum(), { retain = true })
    mx.backward((h * b):sum())
    lu.assertEquals(w:grad():item(), 4 * 3 + 4 * 5)
    lu.assertEquals({ a:grad():item(), b:grad():item() }, { 4, 4 })
    assert(step)
end

function TestRecords.test_the_options_of_backward()
    local x = leaf { 1 }
    assert_raises({ "retian", "retain" }, mx.backward, x * 2, { retian = true })
    assert_raises({ "retain", "true or false" }, mx.backward, x * 2, { retain = 1 })
    lu.assertError(mx.backward, x * 2, 1, true)
end

local LAYER_POLICIES = { "none", "full", "save_qkv_proj", "qkv_proj_offloaded" }

-- Each number of `a` against `factor` times that of `b`, within `bound` times the largest of b.
local function assert_times(a, factor, b, bound, what)
    local largest = 0
    for i = 1, #b do
        largest = math.max(largest, math.abs(b[i]))
    end
    for i = 1, #b do
        local off = math.abs(a[i] - factor * b[i])
        if off ~= off or off > bound * largest then
            lu.fail(("%s: element %d is %.9g, not %g times %.9g"):format(what, i, a[i], factor, b[i]))
        end
    end
end

--- Backward twice gives twice the gradients of once, the same bits under every policy, and memory does not grow with
--- every further one: what was computed again goes again.
function TestRecords.test_retain_with_policies()
    local w1, w2 = mx.randn({ 64, 64 }, { seed = 1 }):keep(), mx.randn({ 64, 64 }, { seed = 2 }):keep()
    w1:requires_grad()
    w2:requires_grad()
    local function run(policy, times)
        local step <close> = mx.step()
        local x = mx.randn({ 400, 64 }, { seed = 3 }):requires_grad()
        local h = x
        for _ = 1, 3 do
            h = mx.remat(policy, function(t)
                local q = mx.name(mx.matmul(t, w1) * 0.1, "query_proj")
                return mx.matmul(mx.scope(function() return mx.tanh(q) * q end), w2) * 0.1 + t
            end, h)
        end
        local loss = mx.cross_entropy(h:view(400, 64), w2, mx.zeros({ 400 }, "i32"))
        local before = mx.memory().in_use
        mx.reset_peak()
        for i = 1, times do
            mx.backward(loss, { retain = i < times })
        end
        local peak, found = mx.memory().peak - before, {}
        for i, t in ipairs { x, w1, w2 } do
            found[i] = t:grad():view(t:numel()):totable()
            t:zero_grad()
        end
        assert(step)
        return found, peak
    end
    local reference = run("none", 2)
    for _, policy in ipairs(LAYER_POLICIES) do
        local once, twice, four = run(policy, 1), run(policy, 2), run(policy, 4)
        for t = 1, 3 do
            assert_times(twice[t], 1, reference[t], 0, policy)
            -- w2 is read four times, so its gradients are sums of 8 and 16 terms, rounded to f32 at each term. Of one
            -- backward the terms sum to at most about four times the largest gradient in size.
            assert_times(twice[t], 2, once[t], 8 * 2.0 ^ -24 * 2 * 4, policy)
            assert_times(four[t], 4, once[t], 16 * 2.0 ^ -24 * 4 * 4, policy)
        end
        local _, peak_of_three = run(policy, 3)
        local _, peak_of_six = run(policy, 6)
        if policy ~= "qkv_proj_offloaded" then -- whose values leave memory when the file's thread has written them
            lu.assertEquals(peak_of_six, peak_of_three, policy)
        end
    end
    w1:release()
    w2:release()
end

--- After a backward that fails, the records of its loss are gone and gradients of before are as they were.
function TestRecords.test_a_failed_backward_over_a_retained_tape()
    local w = mx.randn({ 128, 128 }, { seed = 1 }):keep():requires_grad()
    local step <close> = mx.step()
    local loss = mx.sum(mx.remat("full", function(t)
        for _ = 1, 4 do
            t = mx.tanh(mx.matmul(t, t) * 0.01)
        end
        return t
    end, w))
    mx.backward(loss, { retain = true })
    local once = w:grad():totable()
    mx.trim()
    mx.memory_limit(mx.memory().in_use + 100 * 1024)
    local ok = pcall(mx.backward, loss, { retain = true })
    mx.memory_limit(0)
    lu.assertFalse(ok)
    w:zero_grad()
    mx.backward(loss)
    lu.assertEquals(w:grad():totable(), once)
    w:release()
    assert(step)
end

-- ---- steps and scopes ----

function TestRecords.test_what_opens_and_closes_scopes_forgets_no_earlier_record()
    local params = {}
    local other = mx.nn.parameter(params, "other", { 2 }, { value = 1 })
    local optimizer = mx.optim.sgd(params, { learning_rate = 1 })
    local x = mx.tensor { 1, 2 }
    for what, run in pairs {
        step = function() local step <close> = mx.step() assert(step) end,
        scope = function() mx.scope(function() return 1 end) end,
        logging = function(h) mx.scope(function() return h:mean():item() end) end,
        parameter = function() mx.nn.parameter({}, "new", { 2 }) end,
        optimizer = function() optimizer:zero_grad() end,
        update = function()
            mx.backward((other * 3):sum())
            optimizer:step()
        end,
        model = function() mx.models.new(mx.config.load { "model_name=tiny" }) end,
        no_grad = function(h) mx.no_grad(function() return mx.scope(function() return h * 2 end) end) end,
        an_error = function() pcall(mx.scope, function() error("x") end) end,
    } do
        local w1, w2 = leaf { 3, 5 }, leaf { 7, 11 }
        local h = w1 * x
        run(h)
        mx.backward((h * w2):sum())
        lu.assertNotNil(w1:grad(), what)
        lu.assertEquals(w1:grad():totable(), { 7, 22 }, what)
        lu.assertEquals(w2:grad():totable(), { 3, 10 }, what)
    end
end

function TestRecords.test_the_end_of_a_step_forgets_its_records()
    local w = leaf { 3 }
    local kept, scoped
    do
        local step <close> = mx.step()
        kept = (w * 2):keep()
        assert(step)
    end
    mx.scope(function()
        scoped = (w * 4):keep()
    end)
    lu.assertEquals(kept:item(), 6)
    for _, t in ipairs { kept, scoped } do
        assert_raises({ "step has ended", "affine" }, mx.backward, t:sum())
        assert_raises({ "step has ended" }, mx.backward, (t * w):sum())
    end
    mx.backward((kept:detach() * w):sum())
    lu.assertEquals(w:grad():item(), 6)
    kept:release()
    scoped:release()
end

-- ---- records that nobody can reach ----

function TestRecords.test_forward_passes_outside_of_steps_keep_no_memory()
    local w = mx.randn({ 64, 64 }, { seed = 1 }):keep():requires_grad()
    local before, most = in_use(), 0
    local kept = {}
    for i = 1, 4000 do
        local h = mx.matmul(w, w)
        local loss = mx.square(h - 1):mean()
        if i == 2000 then
            kept.loss = loss
        end
        if i % 100 == 0 then
            most = math.max(most, mx.memory().in_use - before)
        end
    end
    lu.assertTrue(most < 100e6, ("%.0f MB in use"):format(most / 1e6)) -- without a bound it is 200 MB
    mx.backward(kept.loss) -- what is referred to can be walked all the same
    lu.assertNotNil(w:grad())
    w:zero_grad()
    kept.loss = nil
    lu.assertEquals(in_use(), before)
    w:release()
end

function TestRecords.test_a_long_chain_that_nobody_refers_to()
    local w = leaf { 2 }
    local before = in_use()
    local y = w
    for _ = 1, 30000 do
        y = y * w
    end
    lu.assertTrue(mx.memory().in_use > before)
    y = nil
    lu.assertNil(y)
    lu.assertEquals(in_use(), before)
    w:release()
end

--- A record whose results a scope has released goes with the scope, also while Lua has not collected the results.
function TestRecords.test_an_inner_scope_takes_along_what_nobody_can_use()
    local step <close> = mx.step()
    local w = mx.randn({ 64, 64 }, { seed = 1 }):requires_grad()
    local h = mx.tanh(w)
    collectgarbage()
    collectgarbage("stop")
    local before = mx.memory().in_use
    local scopes, results = 0, {}
    for _ = 1, 20 do
        mx.scope(function() return mx.exp(mx.exp(h)):sum():item() end)
        mx.remat("full", function() return mx.exp(mx.exp(h)):sum():item() end)
        do
            local inner <close> = mx.step()
            results[#results + 1] = mx.exp(mx.exp(h)):sum()
            assert(inner)
        end
        scopes = scopes + 3
    end
    collectgarbage("restart")
    lu.assertEquals(mx.memory().in_use, before)
    lu.assertEquals(#mx.kept(), 1)
    local kept = mx.scope(function() return mx.exp(h * 1) * 2 end)
    lu.assertEquals(#mx.kept(), 3) -- tanh, exp, and the result
    mx.backward((kept + h):sum())
    local reference = mx.no_grad(function() return (mx.exp(h) * 2 + 1) * (1 - h * h) end)
    lu.assertTrue(mx.max(mx.abs(w:grad() - reference)):item() < 1e-5)
    assert(step and scopes == 60)
end

-- ---- values that have been changed ----

TestChanges = {}

local CHANGES = {
    fill = function(t) mx.fill(t, { value = 9 }) end,
    copy = function(t) mx.copy(t, mx.zeros(t:size())) end,
    set = function(t) t:set(1, 9) end,
    add_ = function(t) mx.add_(t, mx.ones(t:size())) end,
    write_slice = function(t) mx.write_slice(t, mx.ones { 1 }, { dim = 1, start = 1 }) end,
    sgd = function(t) mx.sgd(t, mx.ones(t:size()), nil, { lr = 1 }) end,
    adamw = function(t) mx.adamw(mx.ones(t:size()), mx.ones(t:size()), t, mx.zeros(t:size()), { lr = 1, step = 1 }) end,
    collective = function(t) mx.all_reduce_(t) end,
}

local WAYS = {
    itself = function(t, change) change(t) end,
    a_view = function(t, change) change(t:view(4, 1):view(4)) end,
    a_row = function(t, change) change(mx.narrow(t, { dim = 1, start = 2, length = 2 })) end,
    detached = function(t, change) change(t:detach()) end,
    no_grad = function(t, change) mx.no_grad(change, t) end,
}

for name, change in pairs(CHANGES) do
    TestChanges["test_a_value_that_backward_reads_is_changed_by_" .. name] = function()
        for way, reach in pairs(WAYS) do
            local step <close> = mx.step()
            local w, a = leaf { 1, 1, 1, 1 }, mx.tensor { 1, 2, 3, 4 }
            local loss = (a * w):sum()
            local made = line(-1)
            local ok, message = pcall(reach, a, change)
            if way == "itself" and name ~= "set" then -- known at once, and refused
                lu.assertFalse(ok, way)
                lu.assertStrContains(message, "which backward still reads", false, way)
                mx.no_grad(change, a)
            end
            ok, message = pcall(mx.backward, loss)
            lu.assertFalse(ok, way)
            lu.assertStrContains(message, "mul at ", false, way)
            lu.assertStrContains(message, made, false, way)
            lu.assertStrContains(message, "changed by " .. (name == "collective" and "all_reduce_" or name), false, way)
            lu.assertStrContains(message, "test_tape_records.lua:", false, way)
            lu.assertNil(w:grad(), way)
            assert(step)
        end
    end
end

function TestChanges.test_the_base_of_a_view()
    local step <close> = mx.step()
    local w, a = leaf { 1, 1, 1, 1 }, mx.tensor { 1, 2, 3, 4 }
    local loss = (a:view(2, 2) * w:view(2, 2)):sum()
    mx.fill(a, { value = 9 })
    assert_raises({ "changed by fill", line(-1) }, mx.backward, loss)
    assert(step)
end

--- The input of a region is read only when the region runs again.
function TestChanges.test_the_input_of_a_region()
    for _, leaf_input in ipairs { true, false } do
        local step <close> = mx.step()
        local w = leaf { 1, 2, 3, 4 }
        local h = leaf_input and mx.ones { 4 } or w * mx.ones { 4 }
        local loss = mx.remat("full", function(t) return (t + w):square():sum() end, h)
        local changed = line(1)
        mx.no_grad(function() mx.fill(h, { value = 100 }) end)
        assert_raises({ "add at ", "runs again", "changed by fill", changed }, mx.backward, loss)
        assert(step)
    end
end

--- A change between a tensor's call and its use has no gradient.
function TestChanges.test_a_computed_tensor_changed_before_its_use()
    local step <close> = mx.step()
    local w = leaf { 1, 2 }
    local h = w * 3
    mx.fill(h, { value = 0 })
    local loss = (h + w):sum()
    assert_raises({ "add", "changed in place by fill", "detach", line(-1) }, mx.backward, loss)
    mx.backward((h:detach() + w):sum())
    lu.assertEquals(w:grad():totable(), { 1, 1 })
    assert(step)
end

function TestChanges.test_weights_changed_between_forward_and_backward()
    local step <close> = mx.step()
    local w = leaf { 1, 2 }
    local loss = (w * w):sum()
    mx.backward(loss, { retain = true })
    mx.sgd(w, w:grad(), nil, { lr = 0.5 })
    assert_raises({ "changed by sgd", line(-1) }, mx.backward, loss)
    assert(step)
end

--- None of these changes what a backward still reads.
function TestChanges.test_changes_that_are_allowed()
    local step <close> = mx.step()
    local w, x, buffer = leaf { 1, 2 }, mx.tensor { 3, 4 }, mx.zeros { 2 }
    local norm = w:square():sum():item() -- a record that no loss leads to
    for i = 1, 3 do
        local h = x * w
        mx.copy(buffer, h:detach()) -- reads h
        mx.add_(buffer, x) -- reads x
        mx.backward(h:sum())
        lu.assertEquals(w:grad():totable(), { 3, 4 })
        mx.sgd(w, w:grad(), nil, { lr = 1 })
        w:zero_grad()
        lu.assertEquals(buffer:totable(), { 3 * (1 - 3 * (i - 1)) + 3, 4 * (2 - 4 * (i - 1)) + 4 })
        mx.fill(h, { value = 0 }) -- nobody reads it any more
    end
    local y = mx.exp(w * 0)
    local unread = w * 5 -- the gradient of a product by a number reads nothing
    local loss = (unread + y):sum()
    mx.no_grad(mx.fill, unread, { value = 0 })
    mx.backward(loss)
    lu.assertEquals(w:grad():totable(), { 5, 5 })
    assert(step and norm)
end

--- An element of a tensor whose record is gone is no number that passes for a constant.
function TestRecords.test_an_element_of_a_walked_tensor()
    local step <close> = mx.step()
    local w = leaf { 2, 3 }
    local h = w * 5
    mx.backward(h:sum())
    assert_raises({ "already" }, mx.backward, h[1] * w:sum())
    lu.assertEquals(h[1]:item(), 10)
    assert(step)
end

-- ---- long lists: records have room for sixteen inputs, and memory of their own for more ----

function TestRecords.test_long_lists()
    for _, n in ipairs { 16, 17, 40 } do
        local step <close> = mx.step()
        local leaves, computed = {}, {}
        for i = 1, n do
            leaves[i] = leaf { i, -i }
            computed[i] = i % 3 == 0 and mx.ones { 2 } or leaves[i] * leaves[i]
        end
        local weights = mx.randn({ n, 2 }, { seed = 1 })
        local stacked = mx.remat("full", function() return (mx.stack(computed) * weights / 1000):exp() end)
        mx.backward(stacked:log():sum() + mx.concat(table.unpack(leaves)):square():sum())
        for i = 1, n do
            local through = i % 3 == 0 and 0 or weights:get(i, 2)
            lu.assertAlmostEquals(leaves[i]:grad():get(2), -2 * i * through / 1000 - 2 * i, 1e-4)
        end
        assert(step)
    end
end

function TestRecords.test_long_lists_know_what_was_changed()
    local step <close> = mx.step()
    local list = {}
    for i = 1, 20 do
        list[i] = leaf { i } * 2
    end
    list[19]:detach():set(1, 0)
    local loss = mx.concat(list):sum()
    assert_raises({ "concat", "used f32 (1)", "changed in place" }, mx.backward, loss)
    local many = {}
    for i = 1, 100001 do
        many[i] = list[1]
    end
    assert_raises({ "concat takes at most 100000 tensors, 100001 given" }, mx.concat, many)
    assert_raises({ "mul", "takes at most 2 tensors, 17 given" }, mx.mul, table.unpack(many, 1, 17))
    assert(step)
end
