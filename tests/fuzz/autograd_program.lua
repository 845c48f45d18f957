--- A random program of fuzz_autograd.lua: its tensors with the values and sources that the reference has for them, and
--- the operations that add tensors.

local mx = require "mx"
local plain = require "plain_autograd"
local random = require "random_tensors"

local pick, chance = random.pick, random.chance

local program = {}

program.GONE = { "walked back already" }
program.CHANGED = { "changed", "would change", "in place" }
program.FOREIGN = { "was computed on", "backward of the tape that computed it" }
program.RELEASED = { "has been released", "is released" }

program.BOUND = 2e-3 -- of the largest element: f32 over some 30 operations, and differences with a step of 1e-4

local SHAPES = { {}, { 1 }, { 3 }, { 4 }, { 2, 3 }, { 3, 2 }, { 3, 3 }, { 1, 3 }, { 2, 1 } }

--- The one that runs.
local p = {}
program.state = p

--- Begins with an empty one.
function program.start()
    for key in pairs(p) do
        p[key] = nil
    end
    p.slots, p.leaves, p.nodes, p.log, p.taken, p.to_release = {}, {}, {}, {}, {}, {}
    p.depth, p.number, p.mark, p.regions, p.scopes, p.backwards, p.refusals = 0, 0, 0, 0, 0, 0, 0
    p.recording = true
    p.tapes, p.tape = { mx.tape(), mx.tape() }, 0 -- the current one: 0 is the default tape
end

function program.log(text, ...)
    p.log[#p.log + 1] = ("    "):rep(p.depth) .. text:format(...)
end

function program.fail(text, ...)
    error(("FAILED: " .. text):format(...), 0)
end

function program.matches(message, patterns)
    for _, pattern in ipairs(patterns) do
        if tostring(message):find(pattern, 1, true) then
            return true
        end
    end
    return false
end

-- ---- slots: a tensor, the memory that it shows, and what it is to the reference ----

function program.number()
    p.number = p.number + 1
    return p.number
end

function program.add_slot(t, storage, at, shape, source)
    local slot = { t = t, storage = storage, at = at, shape = shape, source = source, number = program.number() }
    slot.name = "v" .. slot.number
    p.slots[#p.slots + 1] = slot
    return slot
end

function program.values_of(slot)
    return table.move(slot.storage.data, slot.at + 1, slot.at + plain.count(slot.shape), 1, {})
end

--- What computed a source, under the changes in place since.
function program.made_by(source)
    while source and source.overwritten do
        source = source.sources[1]
    end
    return source
end

--- Whether no record behind it is forgotten.
function program.is_live(node)
    for _, n in ipairs(plain.reach({ node })) do
        if n.gone or n.may_be_gone then
            return false
        end
    end
    return true
end

-- Whether an operation on these sources must, and may, be refused since another tape has recorded one of them.
local function is_foreign(sources)
    local must, may = false, false
    for _, source in ipairs(sources) do
        local made = program.made_by(source)
        if made and not made.leaf and made.tape ~= p.tape then
            may = true
            must = must or program.is_live(made)
        end
    end
    return must, may
end

local function find_slots(wanted)
    local found = {}
    for _, slot in ipairs(p.slots) do
        if wanted(slot) then
            found[#found + 1] = slot
        end
    end
    return found
end

function program.pick_slot(wanted)
    local found = find_slots(wanted or function() return true end)
    if #found > 0 then -- late ones more often, so that graphs become deep
        return found[math.max(math.random(#found), chance(2) and math.random(#found) or 1)]
    end
end

function program.same_shape(a, b)
    return #a == #b and a[1] == b[1] and a[2] == b[2]
end

local function random_values(n)
    local list = {}
    for i = 1, n do
        list[i] = math.random(-16, 16) / 8
    end
    return list
end

local function nested(values, shape)
    if #shape == 0 then
        return values[1]
    elseif #shape == 1 then
        return values
    end
    local rows = {}
    for r = 1, shape[1] do
        rows[r] = table.move(values, (r - 1) * shape[2] + 1, r * shape[2], 1, {})
    end
    return rows
end

function program.new_constant(shape)
    shape = shape or pick(SHAPES)
    local values = random_values(plain.count(shape))
    return program.add_slot(mx.tensor(nested(values, shape)), { data = values, changed_at = 0 }, 0, shape, false)
end

function program.make_leaf(slot)
    slot.t:requires_grad()
    slot.source = { leaf = true, number = slot.number, t = slot.t }
    p.leaves[#p.leaves + 1] = slot.source
end

-- ---- operations ----

program.OP_NAMES = {}
for name in pairs(plain.ops) do
    program.OP_NAMES[#program.OP_NAMES + 1] = name
end
table.sort(program.OP_NAMES)

local function is_tame(values)
    for _, x in ipairs(values) do
        if x ~= x or math.abs(x) >= 30 then
            return false
        end
    end
    return true
end

-- Whether an operation of these would have gradients that cancel out, beyond the accuracy of f32: a quotient by little,
-- and the divergence of distributions whose logarithms are large.
local function cancels(name, values)
    for _, x in ipairs(values[2] or {}) do
        if (name == "div" and math.abs(x) < 0.1) or (name == "kl_div" and x > 5) then
            return true
        end
    end
    return false
end

-- The inputs for an operation, or nil where there are none.
function program.inputs_for(op)
    local function fits_dims(slot)
        return not op.n_dims or #slot.shape == op.n_dims
    end
    local a = program.pick_slot(fits_dims)
    if not a or op.inputs == 1 then
        return a and { a }
    end
    local b = program.pick_slot(function(slot)
        if op.fits then
            return fits_dims(slot) and op.fits(a.shape, slot.shape)
        end
        return program.same_shape(a.shape, slot.shape) or (#slot.shape == 0 and not op.same_shape)
    end)
    return b and { a, b }
end

function program.apply(name, inputs)
    local op = plain.ops[name]
    local values, shapes, tensors, names, sources, storages = {}, {}, {}, {}, {}, {}
    local records, changed = false, false
    for i, slot in ipairs(inputs) do
        values[i], shapes[i], tensors[i], names[i] = program.values_of(slot), slot.shape, slot.t, slot.name
        sources[i] = p.recording and slot.source
        storages[slot.storage] = true
        records = records or sources[i]
        -- A computed tensor, or a view, that was changed in place before it is used.
        changed = changed or (slot.source and not slot.source.leaf and slot.storage.changed_at > slot.number)
    end
    local options = math.random(4)
    local out, shape = op.run(values, shapes, options)
    if plain.count(shape) == 0 or not is_tame(out) or cancels(name, values)
        or (op.jumps and op.jumps(values, shapes)) then
        return nil
    end
    program.log("local v%d = %s(%s)", p.number + 1, name, table.concat(names, ", "))
    local must_refuse, may_refuse = is_foreign(sources)
    local ok, t = pcall(op.mx, tensors, options)
    if not ok and may_refuse and program.matches(t, program.FOREIGN) then
        program.log("-- refused: %s", t)
        for storage in pairs(storages) do -- an operation before the refused one may be recorded
            storage.may_be_read = true
        end
        return nil
    elseif ok and must_refuse then
        program.fail("%s was recorded on another tape than its input", name)
    end
    if not ok then
        for _, source in ipairs(sources) do
            if source and source.gone and program.matches(t, program.GONE) then
                program.log("-- refused: %s", t)
                return nil
            end
        end
        program.fail("%s: %s", name, t)
    elseif type(t) == "number" then
        if records then
            program.fail("%s gave a number, which has no gradient", name)
        end
        return nil
    end
    local base = inputs[1]
    local slot = op.view and program.add_slot(t, base.storage, base.at + op.part(base.shape, options), shape, false)
        or program.add_slot(t, { data = out, changed_at = 0 }, 0, shape, false)
    if records then
        storages[slot.storage] = true
        slot.source = {
            op = op, values = values, shapes = shapes, options = options, sources = sources, storages = storages,
            number = slot.number, is_view = op.view, changed = changed, tape = p.tape,
        }
        p.nodes[#p.nodes + 1] = slot.source
    end
    return slot
end

function program.check_values(slot)
    local here, want = random.values(slot.t), program.values_of(slot)
    local largest = 1
    for _, x in ipairs(want) do
        largest = math.max(largest, math.abs(x))
    end
    for i = 1, math.max(#here, #want) do
        if math.abs(here[i] - want[i]) > program.BOUND * largest then
            program.fail("%s: element %d is %.9g, and should be %.9g", slot.name, i, here[i], want[i])
        end
    end
end

return program
