-- ranks: 1 2 3
-- nodes: 2
-- staged: 2
-- guarded: 2
-- Messages between two ranks, and their gradients.

local mx = require "mx"
local lu = require "luaunit"

local rank, ranks = mx.rank(), mx.ranks()
local last = ranks - 1

TestPoint = {}

local function need_two()
    if ranks == 1 then
        lu.skip("needs two ranks")
    end
end

-- Small ones travel through slots; large ones are shared, and need several chunks without sharing.
function TestPoint.test_values_arrive()
    need_two()
    for _, dtype in ipairs { "f32", "bf16", "i32", "u8", "f64" } do
        for _, n in ipairs { 1, 1000, 300000 } do
            local step <close> = mx.step()
            local made = mx.arange({ n = n, dtype = "i32" }) -- 0, 1 ...
            made = (made - mx.idiv(made, 100) * 100):to(dtype)
            if rank == 0 then
                mx.send(made, { to = last })
            elseif rank == last then
                local got = mx.recv(made, { from = 0 })
                lu.assertEquals(got:dtype(), dtype)
                local off = mx.max(mx.abs(got:to("f32") - made:to("f32"))):item()
                lu.assertEquals(off, 0, ("%s, %d elements"):format(dtype, n))
            end
        end
    end
end

-- The sender may change its tensor at once: the change waits for the message.
function TestPoint.test_what_is_sent_may_change()
    need_two()
    local x = mx.ones(200000)
    for i = 1, 5 do
        if rank == 0 then
            mx.send(x, { to = last })
            mx.copy(x, x + 1)
        elseif rank == last then
            local got = mx.recv(x, { from = 0 })
            lu.assertEquals({ mx.min(got):item(), mx.max(got):item() }, { i, i })
        end
    end
end

-- Results that nobody reads, some of which are released before the sender comes: the last message is still the last.
function TestPoint.test_results_that_nobody_reads()
    need_two()
    for _, n in ipairs { 10, 300000 } do
        mx.barrier()
        if rank == 0 then
            os.execute("sleep 0.1")
            for i = 1, 5 do
                mx.send(mx.full({ n }, i), { to = last })
            end
        elseif rank == last then
            local like = mx.zeros(n)
            for i = 1, 4 do
                if i % 2 == 0 then
                    local step <close> = mx.step()
                    mx.recv(like, { from = 0 })
                else
                    mx.recv(like, { from = 0 }):release()
                end
            end
            local got = mx.recv(like, { from = 0 })
            lu.assertEquals({ mx.min(got):item(), mx.max(got):item() }, { 5, 5 })
        end
    end
end

-- A token around the ring, which each rank multiplies by 2 and increases by its number.
function TestPoint.test_around_the_ring()
    need_two()
    local x = mx.ones(4)
    if rank > 0 then
        x = mx.recv(x, { from = rank - 1 })
    end
    x = x * 2 + rank
    mx.send(x, { to = (rank + 1) % ranks })
    if rank == 0 then
        local expected = 1
        for r = 0, last do
            expected = expected * 2 + r
        end
        lu.assertEquals(mx.recv(x, { from = last }):totable(), { expected, expected, expected, expected })
    end
end

-- Messages and collectives at once, on their two threads.
function TestPoint.test_beside_collectives()
    need_two()
    for i = 1, 20 do
        local step <close> = mx.step()
        local sum = mx.all_reduce(mx.ones(100000) * i, { async = true })
        local like, got = mx.ones(100000), nil
        if rank > 0 then
            got = mx.recv(like, { from = rank - 1 })
        end
        if rank < last then
            mx.send(like * rank, { to = rank + 1 })
        end
        lu.assertEquals(mx.max(sum):item(), ranks * i)
        lu.assertEquals(got and mx.max(got):item(), rank > 0 and rank - 1 or nil)
    end
end

-- y = 3 x on the first rank, y^2 on the last: the gradient of x is 18 x, that of w (1 on the last rank) is the sum of
-- y^2.
local function check_gradient(dtype)
    local step <close> = mx.step()
    local x = mx.tensor({ 1, -2, 3 }, dtype):requires_grad()
    if rank == 0 then
        local sent = mx.send(x * 3, { to = last })
        lu.assertEquals(sent:totable(), { 0 })
        mx.backward(sent)
        lu.assertEquals(x:grad():dtype(), "f32")
        lu.assertEquals(x:grad():totable(), { 18, -36, 54 })
    elseif rank == last then
        local w, like = mx.ones(1):requires_grad(), mx.zeros({ 3 }, dtype):requires_grad()
        local y = mx.recv(like, { from = 0 })
        mx.backward(mx.sum((y * y):to("f32") * w))
        lu.assertEquals(w:grad():totable(), { 9 + 36 + 81 })
        lu.assertNil(like:grad())
    end
end

function TestPoint.test_gradients()
    need_two()
    check_gradient("f32")
    check_gradient("bf16")
end

-- A leaf is sent itself: its gradient is f32, though it travels as bf16.
function TestPoint.test_the_gradient_of_a_leaf()
    need_two()
    local step <close> = mx.step()
    local x = mx.tensor({ 1, 2 }, "bf16"):requires_grad()
    if rank == 0 then
        mx.backward(mx.send(x, { to = last }))
        lu.assertEquals(x:grad():dtype(), "f32")
        lu.assertEquals(x:grad():totable(), { 5, 5 })
    elseif rank == last then
        mx.backward(mx.sum(mx.recv(x, { from = 0 }) * 5))
    end
end

-- Along one axis of a mesh: rank r and r + 1 of it, in each row by itself.
function TestPoint.test_along_an_axis()
    if ranks ~= 2 then
        lu.skip("needs two ranks")
    end
    mx.mesh_define { { name = "data", ici = 1, dcn = 1 }, { name = "stage", ici = 2, dcn = 1 } }
    local x = mx.ones(3) * rank
    if mx.axis_index("stage") == 1 then
        mx.send(x, { axis = "stage", to = 0 })
    else
        lu.assertEquals(mx.recv(x, { axis = "stage", from = 1 }):totable(), { 1, 1, 1 })
    end
    lu.assertErrorMsgContains("expected the index of another rank of data, from 0 to 0", mx.send, x,
        { axis = "data", to = 0 })
end

function TestPoint.test_what_is_refused()
    local x = mx.ones(2)
    lu.assertErrorMsgContains(("to = %d, expected the index of another rank of all ranks, from 0 to %d; this one is %d")
        :format(rank, last, rank), mx.send, x, { to = rank })
    lu.assertErrorMsgContains(("from = -1, expected the index of another rank"), mx.recv, x, { from = -1 })
    lu.assertErrorMsgContains(("to = %d, expected"):format(ranks), mx.send, x, { to = ranks })
    if ranks > 1 then
        local leaf = mx.ones(2):requires_grad()
        lu.assertErrorMsgContains("recv inside mx.remat: backward would exchange the message again", function()
            mx.remat("full", function()
                return mx.recv(leaf, { from = (rank + 1) % ranks })
            end)
        end)
    end
end
