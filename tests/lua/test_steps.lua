--- Steps that are closed in odd ways, or never.

local mx = require "mx"
local lu = require "luaunit"
local checks = require "checks"

local in_use, line, assert_raises = checks.in_use, checks.line, checks.assert_raises

--- Whether a gradient comes out right: the tape and the scopes are in order.
local function assert_works()
    local step <close> = mx.step()
    local w = mx.tensor({ 1, 2 }):requires_grad()
    mx.backward((w * w):sum())
    lu.assertEquals(w:grad():totable(), { 2, 4 })
    assert(step)
end

TestSteps = {}

--- A loop whose step lacks <close>: its second turn says so, with the line.
function TestSteps.test_a_loop_that_closes_no_step()
    local before, turns, opened = in_use(), 0, nil
    local ok, message = pcall(function()
        for _ = 1, 5 do
            local step = mx.step()
            opened = line(-1)
            turns = turns + 1
            assert(step and mx.zeros({ 1000 }):sum():item() == 0)
        end
    end)
    lu.assertFalse(ok)
    lu.assertEquals(turns, 1)
    lu.assertStrContains(message, opened)
    lu.assertStrContains(message, "never closed")
    lu.assertStrContains(message, "<close>")
    lu.assertEquals(in_use(), before)
    assert_works()
end

--- Collecting a step closes nothing under those who are at work; the next step or backward says so.
function TestSteps.test_a_step_that_lua_collects()
    local function open() return mx.step() ~= nil, line() end
    local _, opened = open()
    local w = mx.tensor({ 1, 2 }):requires_grad()
    local loss = (w * w):sum()
    collectgarbage()
    collectgarbage()
    lu.assertEquals(loss:item(), 5)
    assert_raises({ opened, "never closed" }, mx.backward, loss)
    lu.assertTrue(loss:is_released())
    assert_works()

    open()
    collectgarbage()
    collectgarbage()
    assert_raises({ opened, "never closed" }, mx.step)
    assert_works()
end

--- A step inside another one that is not closed is told when the outer one ends.
function TestSteps.test_an_inner_step_is_still_open()
    local inner, opened
    local others = {}
    assert_raises({ "still open", "opposite order" }, function()
        local step <close> = mx.step()
        inner = mx.step()
        opened = line(-1)
        assert(step)
    end)
    inner:close() -- closed already: harmless
    assert_raises({ "never closed", opened:match("^[^:]+") }, mx.scope, function()
        others[1] = mx.step()
    end)
    lu.assertNotNil(others[1])
    assert_works()
end

function TestSteps.test_out_of_order()
    local a, first = mx.step(), line()
    local x = mx.ones { 2 }
    local b, second = mx.step(), line()
    assert_raises({ first, second, "opposite order" }, a.close, a)
    lu.assertTrue(x:is_released())
    b:close()
    assert_works()
end

--- The error on its way is the one that is seen.
function TestSteps.test_an_error_inside_hides_nothing()
    local inner
    assert_raises({ "boom" }, function()
        local step <close> = mx.step()
        inner = mx.step()
        assert(step)
        error("boom")
    end)
    inner:close()
    assert_works()
end

function TestSteps.test_close_ends_a_step_early()
    local before = in_use()
    local step <close> = mx.step()
    local x = mx.zeros { 1000 }
    step:close()
    lu.assertTrue(x:is_released())
    lu.assertEquals(in_use(), before)
    step:close()
    assert_works()
end

function TestSteps.test_goto_break_and_return()
    local before = in_use()
    for i = 1, 3 do
        local step <close> = mx.step()
        local x = mx.zeros { 1000 }
        if i == 2 then
            goto continue
        elseif i == 3 then
            break
        end
        assert(step and x)
        ::continue::
    end
    local function leave()
        local step <close> = mx.step()
        return step and mx.ones({ 3 }):sum():item()
    end
    lu.assertEquals(leave(), 3)
    lu.assertEquals(in_use(), before)
    assert_works()
end

--- A helper may return a step to whoever closes it, and a function that calls itself may open one at each level.
function TestSteps.test_helpers_and_recursion()
    local function open() return mx.step() end
    for _ = 1, 3 do
        local step <close> = open()
        assert(step and mx.ones({ 3 }):sum():item() == 3)
    end
    local function deep(n)
        local step <close> = mx.step()
        local x = mx.ones { n }
        return n == 1 and 1 or x:sum():item() + deep(n - 1) + (step and 0)
    end
    lu.assertEquals(deep(40), 40 * 41 / 2)
    assert_works()
end

function TestSteps.test_a_step_in_a_coroutine()
    local before = in_use()
    local function work()
        local step <close> = mx.step()
        local x = mx.ones { 1000 }
        coroutine.yield(x:sum():item())
        assert(step)
        return x:sum():item()
    end
    local run = coroutine.wrap(work)
    lu.assertEquals(run(), 1000)
    assert_works() -- a step inside, which ends first
    lu.assertEquals(run(), 1000)
    lu.assertEquals(in_use(), before)

    -- Two that end in the order in which they began.
    local first, second = coroutine.create(work), coroutine.create(work)
    coroutine.resume(first)
    coroutine.resume(second)
    local ok, message = coroutine.resume(first)
    lu.assertFalse(ok)
    lu.assertStrContains(message, "opposite order")
    ok, message = coroutine.resume(second)
    lu.assertFalse(ok)
    lu.assertStrContains(message, "released")

    -- One that is never resumed.
    local third = coroutine.create(work)
    coroutine.resume(third)
    third = nil
    collectgarbage()
    collectgarbage()
    assert_raises({ "never closed" }, mx.step)
    lu.assertNil(third)
    assert_works()
    lu.assertEquals(in_use(), before)
end

-- ---- names ----

TestNames = {}

--- Each tensor has its own name, and names go with their tensors: a loop with ever new ones stays as fast as it was.
function TestNames.test_ever_new_names()
    local step <close> = mx.step()
    local t = mx.zeros { 1 }
    local function seconds(from)
        local best = math.huge
        for round = 0, 4 do
            local start = os.clock()
            for i = 1, 1000 do
                mx.name(t, ("x%d"):format(from + round * 1000 + i))
            end
            best = math.min(best, os.clock() - start)
        end
        return best
    end
    local first = seconds(0)
    for i = 1, 60000 do
        mx.name(t, ("y%d"):format(i))
    end
    local last = seconds(1000000)
    lu.assertTrue(last < 5 * first + 1e-3, ("%.6f s after %.6f s"):format(last, first))
    lu.assertEquals(t:name(), "x1005000")
    assert(step)
end

function TestNames.test_a_name_lives_as_long_as_somebody_has_it()
    local step <close> = mx.step()
    local t = mx.name(mx.zeros { 1 }, "a" .. "name")
    local other = t:detach()
    mx.name(t, "another")
    collectgarbage()
    lu.assertEquals({ t:name(), other:name() }, { "another", "aname" })
    t:release()
    lu.assertEquals({ t:name(), other:name() }, { "another", "aname" })
    mx.name(other, other:name()) -- its own again
    lu.assertEquals(other:name(), "aname")
    assert(step)
end

--- A policy finds tensors by names that are made for this one call.
function TestNames.test_policies_with_new_names()
    local w = mx.tensor({ 3 }):requires_grad()
    for i = 1, 3 do
        local step <close> = mx.step()
        local kept
        local y = mx.remat({ ["x" .. i] = "device" }, function(t)
            kept = mx.name(t * t, "x" .. i)
            collectgarbage()
            return kept * kept
        end, w)
        lu.assertEquals(#mx.kept(), 2)
        mx.backward(y)
        assert(step and kept)
    end
    lu.assertEquals(w:grad():item(), 3 * 4 * 27)
end

function TestNames.test_places_of_a_long_run()
    local step <close> = mx.step()
    local w = mx.tensor({ 0 }):requires_grad()
    for i = 1, 100 do
        mx.place("step " .. i)
        w:zero_grad()
        mx.backward((w * i):sum())
    end
    local found = mx.find_bad(function()
        mx.place("step " .. 101)
        local loss = mx.log(w):sum()
        mx.place("step " .. 102)
        collectgarbage()
        return loss
    end)
    lu.assertEquals(found.place, "step 101")
    mx.place(nil)
    assert(step)
end
