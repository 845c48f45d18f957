-- short: programs=400
--- Random programs that record, change and walk back, compared with a plain reference (plain_autograd.lua).
--
--     mxlua [--threads N] tests/fuzz/fuzz_autograd.lua [seed=1] [programs=1000] [first=1] [seconds=S] [notes=FILE]
--         [show=1] [keep_going=1]
--
-- A program is a random tree of statements: operations and views, in-place changes, mx.scope, mx.step, mx.no_grad,
-- mx.remat under random policies, detach, release, leaves that are used many times, two tapes beside the default one,
-- several losses and backwards, from one root or two, with gradients. After
-- every backward each leaf has the reference's gradient, or the call has raised an error that the rules below expect:
--
--   GONE      backward reaches a call that an earlier backward has walked (without `retain`).
--   CHANGED   backward reaches a call one of whose tensors was changed in place since. Whether the gradient needs the
--             value is the engine's to say; that the gradient is right or refused is checked.
--   FOREIGN   a call is recorded on another tape than the one that recorded its input, or backward begins on another.
--   RELEASED  a region that must run again reads a tensor that has been released.
--
-- What changes a tensor in place is not recorded. So while recording is on, it must be refused, or found by backward,
-- where it would drop a gradient: of its source, or of the computed tensor that it overwrites.

package.path = arg[0]:gsub("[^/]+$", "?.lua;") .. package.path

local mx = require "mx"
local plain = require "plain_autograd"
local random = require "random_tensors"
local program = require "autograd_program"

local pick, chance = random.pick, random.chance
local p = program.state
local log, fail, matches, number = program.log, program.fail, program.matches, program.number
local add_slot, pick_slot, values_of = program.add_slot, program.pick_slot, program.values_of
local same_shape, new_constant, make_leaf = program.same_shape, program.new_constant, program.make_leaf
local inputs_for, apply, check_values = program.inputs_for, program.apply, program.check_values
local OP_NAMES, BOUND = program.OP_NAMES, program.BOUND
local GONE, CHANGED, FOREIGN, RELEASED = program.GONE, program.CHANGED, program.FOREIGN, program.RELEASED
local made_by, is_live = program.made_by, program.is_live

local STOP = {} -- raised where an expected error has ended the program

-- Whether backward must and may fail, by the rules.
local function judge(nodes, on)
    local must, may = {}, {}
    for _, node in ipairs(nodes) do
        if made_by(node).tape ~= on then
            must[#must + 1] = "foreign"
            table.move(FOREIGN, 1, #FOREIGN, #may + 1, may)
        end
    end
    for _, n in ipairs(plain.reach(nodes)) do
        must[#must + 1] = n.gone and "gone" or n.overwritten and "overwritten" or nil
        if n.gone or n.may_be_gone then
            table.move(GONE, 1, #GONE, #may + 1, may)
        end
        if n.overwritten or n.changed then
            table.move(CHANGED, 1, #CHANGED, #may + 1, may)
        end
    end
    if p.released then
        table.move(RELEASED, 1, #RELEASED, #may + 1, may)
    end
    return must, may
end

-- ---- in-place changes ----

local CHANGES = {
    fill = function(dst) return function() return 0.5 end, function() return mx.fill(dst.t, { value = 0.5 }) end end,
    set = function(dst)
        local at = math.random(plain.count(dst.shape))
        local columns = dst.shape[2] or 1
        local index = ({ [0] = {}, { at }, { (at - 1) // columns + 1, (at - 1) % columns + 1 } })[#dst.shape]
        index[#index + 1] = 0.75
        return function(x, i) return i == at and 0.75 or x end, function() return dst.t:set(table.unpack(index)) end
    end,
    add_ = function(dst, src)
        return function(x, i) return x + src[i] end, function() return mx.add_(dst.t, src.t) end
    end,
    copy = function(dst, src)
        return function(_, i) return src[i] end, function() return mx.copy(dst.t, src.t) end
    end,
    sgd = function(dst, src)
        return function(x, i) return x - 0.25 * src[i] end,
            function() return mx.sgd(dst.t, src.t, nil, { lr = 0.25 }) end
    end,
}
local CHANGE_NAMES = { "add_", "copy", "fill", "set", "sgd" }

-- The leaf or computed tensor whose memory a tensor shows; false for a constant.
local function root_of(source)
    while source and source.is_view do
        source = source.sources[1]
    end
    return source
end

local function change()
    local name = pick(CHANGE_NAMES)
    local dst = pick_slot(function(slot) return #slot.shape > 0 or name ~= "set" end)
    local src = dst and pick_slot(function(slot)
        return slot.storage ~= dst.storage and same_shape(slot.shape, dst.shape)
    end)
    if not dst or (not src and name ~= "fill" and name ~= "set") then
        return
    end
    local takes_source = name ~= "fill" and name ~= "set"
    local from = takes_source and values_of(src) or {}
    from.t = src and src.t
    local f, run = CHANGES[name](dst, from)
    local root = root_of(dst.source)
    local drops_source = p.recording and takes_source and src.source and is_live(src.source)
    local drops = drops_source or (p.recording and root and not root.leaf)
    local touched = dst.storage.may_be_read
    for _, node in ipairs(p.nodes) do
        touched = touched or (node.storages[dst.storage] and not node.gone)
    end
    log("%s(%s%s)", name, dst.name, takes_source and ", " .. src.name or "")
    local ok, message = pcall(run)
    if not ok then
        if not (touched or drops or (takes_source and src.source)) or not matches(message, CHANGED) then
            fail("%s: %s", name, message)
        end
        log("-- refused: %s", message)
        return
    elseif drops_source then
        fail("%s dropped the gradient of its source without a word", name)
    end
    for i, x in ipairs(values_of(dst)) do
        dst.storage.data[dst.at + i] = f(x, i)
    end
    dst.storage.changed_at = number()
    for _, node in ipairs(p.nodes) do
        node.changed = node.changed or node.storages[dst.storage]
    end
    for _, slot in ipairs(p.slots) do
        local owner = root_of(slot.source)
        if drops and slot.storage == dst.storage and owner and not owner.leaf then
            slot.source = { sources = { slot.source }, number = number(), overwritten = true }
        end
    end
end

-- ---- backward ----

local function check_gradients()
    for _, leaf in ipairs(p.leaves) do
        local grad = not leaf.t:is_released() and leaf.t:grad()
        local name = "v" .. leaf.number
        if leaf.grad and not grad and not leaf.t:is_released() then
            fail("%s has no gradient", name)
        elseif grad and not leaf.grad then
            fail("%s has a gradient, and nothing that was walked depends on it", name)
        elseif grad then
            local here, largest = random.values(grad), 1
            for _, x in ipairs(leaf.grad) do
                largest = math.max(largest, math.abs(x))
            end
            for i, want in ipairs(leaf.grad) do
                local off = math.abs(here[i] - want)
                if off ~= off or off > BOUND * largest then
                    fail("the gradient of %s, element %d, is %.9g, and should be %.9g", name, i, here[i], want)
                end
            end
        end
    end
    for _, taken in ipairs(p.taken) do
        for i, x in ipairs(not taken.t:is_released() and random.values(taken.t) or {}) do
            if x ~= taken.values[i] then
                fail("a gradient that was taken before has changed")
            end
        end
    end
end

-- A slot as a root: the slot, its gradient for the engine, and as a list. Scalars may go without; others may be summed.
local function make_root(slot, on)
    if #slot.shape > 0 and on == p.tape and chance(2) then
        slot = apply(pick { "sum", "mean" }, { slot })
    end
    if not slot or not slot.source or slot.source.leaf then
        return nil
    elseif #slot.shape == 0 then
        local seed = pick { 1, 0.5 }
        return { slot = slot, given = seed, list = { seed }, text = tostring(seed) }
    end
    local dy = new_constant(slot.shape)
    log("local %s = constant(%s)", dy.name, table.concat(dy.shape, ", "))
    return { slot = slot, given = dy.t, list = values_of(dy), text = dy.name }
end

-- One root or two of one tape.
local function make_roots(slot, on)
    local roots = { make_root(slot, on) }
    local other = roots[1] and chance(3) and pick_slot(function(s)
        return s.source and not s.source.leaf and made_by(s.source).tape == on
    end)
    roots[#roots + 1] = other and make_root(other, on) or nil
    return roots
end

-- A leaf or a computed tensor on which the roots depend, for a backward in two halves.
local function pick_input(nodes)
    local inputs = {}
    for _, n in ipairs(plain.reach(nodes)) do
        inputs[#inputs + 1] = n.leaf and not n.t:is_released() and { t = n.t, name = "v" .. n.number } or nil
        for _, slot in ipairs(p.slots) do
            inputs[#inputs + 1] = slot.source == n and not n.leaf and slot or nil
        end
    end
    return #inputs > 0 and pick(inputs) or nil
end

local function run_backward(on, roots, retain)
    local nodes, tensors, given, lists, words = {}, {}, {}, {}, {}
    for i, root in ipairs(roots) do
        nodes[i], tensors[i], given[i], lists[i] = root.slot.source, root.slot.t, root.given, root.list
        words[i] = root.slot.name .. " by " .. root.text
    end
    local must, may = judge(nodes, on)
    local input = on > 0 and not retain and chance(2) and pick_input(nodes)
    log("backward of tape %d: %s%s", on, table.concat(words, ", "), retain and ", retained" or input
        and ", first those of " .. input.name or "")
    local f = on == p.tape and not input and mx.backward or function(a, b, o)
        p.tapes[on]:backward(a, b, input and { inputs = input.t } or o)
        p.tapes[on]:backward_weights()
    end
    local ok, message = pcall(f, tensors, given, retain and { retain = true } or nil)
    if not ok then
        if not matches(message, may) then
            fail("backward: %s", message)
        end
        log("-- refused: %s", message)
        p.refusals = p.refusals + 1
        error(STOP, 0)
    elseif #must > 0 then
        fail("backward gave gradients; it reached a call that was %s", must[1])
    end
    plain.backward(nodes, lists)
    for _, n in ipairs(plain.reach(nodes)) do
        n.gone = n.gone or (not retain and not n.leaf)
    end
    check_gradients()
    p.backwards = p.backwards + 1
end

local function backward(from)
    local slot = from or pick_slot(function(s) return s.source end)
    if not slot or p.regions > 0 or slot.source.leaf then
        return
    end
    local on = chance(16) and math.random(0, 2) or made_by(slot.source).tape
    local roots = (on ~= 0 or p.tape == 0) and make_roots(slot, on) or {}
    if #roots > 0 then
        run_backward(on, roots, chance(3))
    end
end

-- ---- statements ----

local run_block

-- What the block made goes, but for its results and what was kept.
local function leave(mark, results, released)
    local kept = {}
    for i = mark + 1, #p.slots do
        local slot = p.slots[i]
        local stays = slot.kept
        for _, result in ipairs(results) do
            stays = stays or result == slot
        end
        kept[#kept + 1] = stays and slot or nil
        p.slots[i] = nil
    end
    p.released = p.released or released
    table.move(kept, 1, #kept, mark + 1, p.slots)
end

local function forget_from(first)
    for i = first, #p.nodes do
        p.nodes[i].may_be_gone = true
    end
end

local function scoped(text, enter)
    log("%s", text)
    p.depth = p.depth + 1
    local mark, first, results = #p.slots, #p.nodes + 1, {}
    enter(function()
        run_block(math.random(2, 6))
        local tensors = {}
        for _ = 1, math.random(0, 2) do
            local slot = p.slots[math.random(mark + 1, math.max(mark + 1, #p.slots))]
            if slot then
                results[#results + 1], tensors[#tensors + 1] = slot, slot.t
            end
        end
        return table.unpack(tensors)
    end)
    p.depth = p.depth - 1
    local names = {}
    for i, slot in ipairs(results) do
        names[i] = slot.name
    end
    log("end -> %s", table.concat(names, ", "))
    leave(mark, results, true)
    if p.scopes == 0 then
        forget_from(first)
    end
end

local function random_policy()
    if chance(3) then
        return pick { "none", "full" }, "'none' or 'full'"
    end
    local policy, words = {}, {}
    for _, name in ipairs { "a", "b", "c" } do
        policy[name] = pick { "device", "offload", "remat" }
        words[#words + 1] = ("%s = %q"):format(name, policy[name])
    end
    return policy, "{ " .. table.concat(words, ", ") .. " }"
end

local STATEMENTS = {
    operation = function()
        local name = pick(OP_NAMES)
        local inputs = inputs_for(plain.ops[name])
        local slot = inputs and apply(name, inputs)
        if slot and chance(3) then
            local label = pick { "a", "b", "c" }
            log("mx.name(%s, %q)", slot.name, label)
            mx.name(slot.t, label)
        end
    end,
    constant = function()
        local slot = new_constant()
        log("local %s = constant(%s)", slot.name, table.concat(slot.shape, ", "))
    end,
    leaf = function()
        local slot = new_constant()
        make_leaf(slot)
        log("local %s = leaf(%s)", slot.name, table.concat(slot.shape, ", "))
    end,
    detach = function()
        local slot = pick_slot()
        local alias = add_slot(slot.t:detach(), slot.storage, slot.at, slot.shape, false)
        log("local %s = %s:detach()", alias.name, slot.name)
        if chance(3) then
            make_leaf(alias)
            log("%s:requires_grad()", alias.name)
        end
    end,
    change = change,
    backward = function() backward() end,
    check = function() check_values(pick_slot()) end,
    take = function()
        local leaf = #p.leaves > 0 and pick(p.leaves)
        local grad = leaf and not leaf.t:is_released() and leaf.t:grad()
        if grad then
            p.taken[#p.taken + 1] = { t = grad, values = random.values(grad) }
        end
    end,
    fill_gradient = function()
        local leaf = #p.leaves > 0 and pick(p.leaves)
        local grad = leaf and not leaf.t:is_released() and leaf.t:grad()
        if grad and p.regions == 0 then
            log("mx.fill(v%d:grad(), { value = 5 })", leaf.number)
            mx.fill(grad, { value = 5 })
            for i in ipairs(leaf.grad) do
                leaf.grad[i] = 5
            end
            p.taken = {}
            check_gradients()
        end
    end,
    zero_gradient = function()
        local leaf = #p.leaves > 0 and pick(p.leaves)
        if leaf and not leaf.t:is_released() then
            log("v%d:zero_grad()", leaf.number)
            leaf.t:zero_grad()
            leaf.grad = nil
        end
    end,
    release = function()
        local slot, i = pick_slot(), nil
        for k, s in ipairs(p.slots) do
            i = s == slot and k or i
        end
        if #p.slots > 4 and not slot.is_input and i > p.mark then
            log("%s:release()", slot.name)
            slot.t:release()
            table.remove(p.slots, i)
            p.released = true
        end
    end,
    keep = function()
        local slot = pick_slot()
        log("%s:keep()", slot.name)
        slot.t:keep()
        slot.kept = true
        p.to_release[#p.to_release + 1] = slot.t
    end,
    scope = function()
        p.scopes = p.scopes + 1
        scoped("mx.scope(function()", function(f)
            mx.scope(f)
            p.scopes = p.scopes - 1
        end)
    end,
    remat = function()
        local policy, text = random_policy()
        p.scopes, p.regions = p.scopes + 1, p.regions + 1
        scoped(("mx.remat(%s, function()"):format(text), function(f)
            mx.remat(policy, f)
            p.scopes, p.regions = p.scopes - 1, p.regions - 1
        end)
    end,
    no_grad = function()
        local before = p.recording
        scoped("mx.no_grad(function()", function(f)
            p.recording = false
            mx.scope(mx.no_grad, f)
            p.recording = before
        end)
    end,
    tape = function()
        local before, i = p.tape, math.random(2)
        log("tape%d:run(function()", i)
        p.depth = p.depth + 1
        p.tapes[i]:run(function()
            p.tape = i
            run_block(math.random(2, 6))
            p.tape = before
        end)
        p.depth = p.depth - 1
        log("end")
    end,
    clear = function()
        local i = math.random(2)
        log("tape%d:clear()", i)
        p.tapes[i]:clear()
        for _, node in ipairs(p.nodes) do
            node.gone = node.gone or node.tape == i
        end
    end,
    step = function()
        if p.regions > 0 then
            return
        end
        p.scopes = p.scopes + 1
        scoped("do local step <close> = mx.step()", function(f)
            local step <close> = mx.step()
            f()
            p.scopes = p.scopes - 1
        end)
        for i = #p.slots, 1, -1 do -- a step has no results
            if p.slots[i].t:is_released() then
                table.remove(p.slots, i)
            end
        end
    end,
}

local WEIGHTS = {
    { "operation", 50 }, { "constant", 3 }, { "leaf", 4 }, { "detach", 3 }, { "change", 6 }, { "backward", 8 },
    { "check", 3 }, { "take", 2 }, { "fill_gradient", 2 }, { "zero_gradient", 2 }, { "release", 2 }, { "keep", 2 },
    { "scope", 4 }, { "remat", 6 }, { "no_grad", 3 }, { "step", 3 }, { "tape", 8 }, { "clear", 1 },
}
local TOTAL = 0
for _, entry in ipairs(WEIGHTS) do
    TOTAL = TOTAL + entry[2]
end

local function random_statement()
    local x = math.random(TOTAL)
    for _, entry in ipairs(WEIGHTS) do
        x = x - entry[2]
        if x <= 0 then
            return entry[1]
        end
    end
end

function run_block(n)
    local mark = p.mark
    p.mark = #p.slots
    for _ = 1, n do
        local name = random_statement()
        local nests = name == "scope" or name == "remat" or name == "no_grad" or name == "step" or name == "tape"
        if not nests or p.depth < 3 then
            STATEMENTS[name]()
        end
    end
    p.mark = mark
end

local function run_program()
    for _ = 1, 3 do
        STATEMENTS.leaf()
    end
    STATEMENTS.constant()
    run_block(math.random(5, 40))
    for _ = 1, 2 do
        backward(pick_slot(function(slot) return slot.source and not slot.source.leaf end))
    end
end

-- ---- running ----

-- Message of a failure, or nil.
local function run(outer_step)
    local function within()
        if outer_step then
            p.scopes = 1
            log("local step <close> = mx.step()")
            local step <close> = mx.step()
            run_program()
        else
            run_program()
        end
    end
    local ok, message = xpcall(within, function(m)
        return (m == STOP or tostring(m):find("^FAILED")) and m or debug.traceback(m)
    end)
    for _, t in ipairs(p.to_release) do
        t:release()
    end
    for _, leaf in ipairs(p.leaves) do
        leaf.t:zero_grad()
    end
    for _, tape in ipairs(p.tapes) do
        tape:close()
    end
    return not ok and message ~= STOP and message or nil
end

-- The bytes of tensors in use while no program holds any.
local function idle()
    program.start()
    collectgarbage()
    mx.trim() -- waits for what is being offloaded
    return mx.memory().in_use
end

-- A program again, with less memory than it took. Its reference does not know what then fails, so messages are not
-- judged; but it must not end this process, and must leave nothing behind. Message of a failure, or nil.
local function starve(seed, n, took)
    local before, room = idle(), math.random(took)
    math.randomseed(seed, n)
    mx.memory_limit(before + room)
    local ok, message = pcall(run, chance(2))
    mx.memory_limit(0)
    if not ok and not message:find("out of memory", 1, true) then
        return message
    end
    local left = idle() - before
    return left ~= 0 and ("with %d of %d bytes, %d stay in use"):format(room, took, left) or nil
end

local function main()
    local config = random.options { programs = 1000, first = 1, show = 0, keep_going = 0 }
    local notes = config.notes ~= "" and assert(io.open(config.notes, "w")) or nil
    local start, n, backwards, refusals, failures = mx.now(), config.first, 0, 0, 0
    local function goes_on()
        return config.seconds > 0 and mx.now() - start < config.seconds
            or config.seconds == 0 and n < config.first + config.programs
    end
    while goes_on() do
        math.randomseed(config.seed, n)
        local words = ("seed=%d first=%d programs=1"):format(config.seed, n)
        if notes then
            random.note(notes, words)
        end
        local before = idle()
        mx.reset_peak()
        local message = run(chance(2))
        local took = mx.memory().peak - before
        if not message and took > 0 and chance(2) then
            message = starve(config.seed, n, took)
        end
        if message or config.show > 0 then
            print(message and "FAIL" or "program", words)
            print(table.concat(p.log, "\n"), message or "")
        end
        failures = failures + (message and 1 or 0)
        backwards, refusals = backwards + p.backwards, refusals + p.refusals
        n = n + 1
        if message and config.keep_going == 0 then
            break
        end
    end
    print(("%d backwards, %d refused"):format(backwards, refusals))
    print(("%d passed, %d failed"):format(n - config.first - failures, failures))
    os.exit(failures == 0)
end

main()
