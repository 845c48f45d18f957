--- Optimizers against PyTorch's and the formulas of their papers, and what all of them share.

local compare = dofile((debug.getinfo(1, "S").source:match("^@(.*/)") or "./") .. "compare.lua")
local lu = require "luaunit"
local mx = require "mx"

local golden = mx.io.h5_read(compare.here .. "../golden/optimizers.h5")
local NAMES = { "matrix", "wide", "vector" }

local function parameters()
    local params = {}
    for _, name in ipairs(NAMES) do
        params[name] = golden[name .. ".start"]:clone():keep():requires_grad()
    end
    return params
end

-- Gives each parameter its gradient of step i, times `factor`.
local function give_gradients(params, i, factor)
    for name, t in pairs(params) do
        mx.backward(mx.sum(t * golden[name .. ".grads"][i]) * (factor or 1))
    end
end

local function steps(optimizer, first, last)
    for i = first, last do
        local step <close> = mx.step()
        give_gradients(optimizer.params, i)
        optimizer:step()
        assert(step)
    end
end

TestOptimizers = {}

-- The makers of what the golden file has, and the error that f32 leaves in ten steps. Muon's polynomial multiplies a
-- matrix 15 times in f32.
local RULES = {
    lion = { 1e-6, function(p) return mx.optim.lion(p, { learning_rate = 0.01, weight_decay = 0.1 }) end },
    adafactor = { 1e-6, function(p) return mx.optim.adafactor(p, { learning_rate = 0.05, weight_decay = 0.1 }) end },
    muon = { 1e-5, function(p) return mx.optim.muon(p, { learning_rate = 0.02, weight_decay = 0.1 }) end },
    muon_optax = { 1e-5, function(p)
        return mx.optim.muon(p, { learning_rate = 0.02, weight_decay = 0.1, bias_correction = true })
    end },
    muon_plain = { 1e-5, function(p)
        return mx.optim.muon(p, { learning_rate = 0.02, momentum = 0.9, nesterov = false })
    end },
}

for rule, case in pairs(RULES) do
    TestOptimizers["test_" .. rule] = function()
        local params = parameters()
        steps(case[2](params), 1, 10)
        for _, name in ipairs(NAMES) do
            lu.assertTrue(compare.distance(params[name], golden[name .. "." .. rule]) < case[1], name)
        end
    end

    -- Ten steps in one go, and five, a checkpoint, and five by another optimizer: the same bits.
    TestOptimizers["test_" .. rule .. "_resumes"] = function()
        local folder = os.tmpname()
        os.remove(folder)
        local params, half, rest = parameters(), parameters(), parameters()
        steps(case[2](params), 1, 10)
        local optimizer = case[2](half)
        steps(optimizer, 1, 5)
        local saver = mx.checkpoint.saver { directory = folder, params = half, optimizer = optimizer }
        saver:save(5, {}, true)
        saver:close()
        local other = case[2](rest)
        mx.checkpoint.load(folder .. "/step_5", { params = rest, optimizer = other })
        steps(other, 6, 10)
        os.execute("rm -r " .. folder)
        for _, name in ipairs(NAMES) do
            lu.assertTrue(compare.identical(rest[name]:detach(), params[name]:detach()), name)
        end
    end
end

function TestOptimizers.test_bf16_parameters_are_refused_where_updates_would_be_lost()
    local params = { w = mx.ones({ 2, 2 }, "bf16"):keep():requires_grad() }
    for _, kind in ipairs { "adafactor", "muon" } do
        lu.assertErrorMsgContains(kind .. " would round away small updates of 'w', which is bf16", mx.optim[kind],
            params)
    end
    mx.optim.adamw(params)
    mx.optim.lion(params)
end

-- ---- an optimizer of one's own ----

TestCustom = {}

-- Momentum by hand is SGD with momentum.
function TestCustom.test_the_same_as_sgd()
    local momentum = mx.optim.custom("momentum_by_hand", {
        options = { beta = 0.9 },
        moments = function(t) return { m = { sizes = t:size(), dtype = "f32" } } end,
        update = function(p, grad, state, o)
            mx.copy(state.m, state.m * o.beta + grad)
            mx.copy(p, p - state.m * o.lr)
        end,
    })
    local mine, theirs = parameters(), parameters()
    steps(momentum(mine, { learning_rate = 0.05, clip = 0.5 }), 1, 10)
    steps(mx.optim.sgd(theirs, { learning_rate = 0.05, momentum = 0.9, clip = 0.5 }), 1, 10)
    for _, name in ipairs(NAMES) do
        lu.assertTrue(compare.distance(mine[name], theirs[name]) < 1e-6, name)
    end
end

function TestCustom.test_what_is_refused()
    lu.assertErrorMsgContains("'adamw' is the name of another optimizer", mx.optim.custom, "adamw",
        { update = function() end })
    lu.assertErrorMsgContains("'updates', did you mean 'update'", mx.optim.custom, "mine", { updates = 1 })
end

-- ---- groups, clipping ----

TestOptions = {}

-- Without a step it is the rate of the next one.
function TestOptions.test_rate()
    local optimizer = mx.optim.sgd(parameters(), { learning_rate = function(step) return step / 8 end })
    lu.assertEquals({ optimizer:rate(3), optimizer:rate() }, { 0.375, 0.125 })
    steps(optimizer, 1, 1)
    lu.assertEquals(optimizer:rate(), 0.25)
    lu.assertErrorMsgContains("a group of an optimizer has no option 'lr'; its rate is the optimizer's, multiplied by "
        .. "scale", mx.optim.sgd, {}, { groups = { { lr = 1 } } })
end

-- In a file between, too: an optimizer with the state continues as the one that it was taken from.
function TestOptions.test_what_is_refused()
    local function refused(part, params, options)
        lu.assertErrorMsgContains(part, mx.optim.adamw, params, options)
    end
    local params = parameters()
    for _, key in ipairs { "learning_rate", "weight_decay", "clip", "clip_value" } do
        for shown, value in pairs { ['"1e-3"'] = "1e-3", ["-1"] = -1, ["nan"] = 0 / 0, ["true"] = true } do
            refused(("adamw: %s = %s; expected a number"):format(key, shown), params, { [key] = value })
        end
    end
    refused("are a list", params, { groups = { match = { "w" }, scale = 2 } })
    refused("group 1 of an optimizer: no parameter's name matches ^a, ^b", params, {
        groups = { { match = { "^a", "^b" } } },
    })
    refused('group 1 of an optimizer: scale = "2"', params, { groups = { { match = { "wide" }, scale = "2" } } })
    refused("a tensor; expected a table", params.wide)
    refused("'w' is a table; expected a tensor", { w = {} })
    local optimizer = mx.optim.sgd(params, { learning_rate = function() end })
    give_gradients(params, 1)
    lu.assertErrorMsgContains("the learning rate of step 1 = nil", optimizer.step, optimizer)
end

function TestOptions.test_one_expression_is_a_list_of_one()
    local params = parameters()
    local optimizer = mx.optim.sgd(params, { weight_decay = 0.1, mask = "^vector$",
        groups = { { match = "^wide$", scale = 0 } } })
    local before = mx.nn.state(params)
    for name, t in pairs(params) do -- only matrix has decay and a rate
        mx.backward((t * 0):sum())
        lu.assertNotNil(before[name])
    end
    optimizer:step()
    lu.assertEquals(compare.identical(params.vector:detach(), before.vector), true)
    lu.assertEquals(compare.identical(params.wide:detach(), before.wide), true)
    lu.assertEquals(compare.identical(params.matrix:detach(), before.matrix), false)
    lu.assertEquals(mx.nn.freeze(params, "^wide$"), 1)
    lu.assertErrorMsgContains("matches ^x", mx.nn.freeze, params, "^x")
end

function TestOptions.test_a_state_continues()
    local file = os.tmpname()
    for _, kind in ipairs { "adamw", "sgd", "lion", "adafactor", "muon" } do
        local options = { learning_rate = function(step) return step / 100 end }
        local whole, parts = parameters(), parameters()
        local optimizer = mx.optim[kind](parts, options)
        steps(mx.optim[kind](whole, options), 1, 10)
        steps(optimizer, 1, 4)
        mx.save(file, optimizer:state_dict())
        optimizer = mx.optim[kind](parts, options)
        optimizer:load_state_dict(mx.load(file))
        steps(optimizer, 5, 10)
        for _, name in ipairs(NAMES) do
            lu.assertTrue(compare.identical(whole[name]:detach(), parts[name]:detach()), kind .. " " .. name)
        end
    end
    os.remove(file)
    local adamw = mx.optim.adamw(parameters())
    local function refused(words, state)
        lu.assertErrorMsgContains(words, adamw.load_state_dict, adamw, state)
    end
    refused("the state is that of sgd, this optimizer is adamw", mx.optim.sgd(parameters()):state_dict())
    refused("the state is that of a number", 3)
    refused("is missing in the state", { kind = "adamw", steps = 1, moments = {} })
    local other = mx.optim.adamw { matrix = mx.ones(1) }:state_dict()
    other.moments.vector, other.moments.wide = adamw:state_dict().moments.vector, adamw:state_dict().moments.wide
    refused("'m' of 'matrix' is 1 in the state; expected", other)
end

-- A loss of other parameters, or a step before backward.
function TestOptions.test_a_step_without_gradients_is_an_error()
    local optimizer = mx.optim.sgd(parameters())
    lu.assertErrorMsgContains("no parameter has a gradient; call mx.backward(loss) before", optimizer.step, optimizer)
    lu.assertEquals({ optimizer.steps, mx.optim.sgd({}):step() }, { 0, 0 })
end

-- A group's scale is a rate of its own, and its weight decay, too; what no group names has the optimizer's.
function TestOptions.test_groups()
    local params, by_rate = parameters(), parameters()
    steps(mx.optim.sgd(params, {
        learning_rate = 0.1, weight_decay = 0.2,
        groups = { { match = { "^mat" }, scale = 0.5, weight_decay = 0 }, { match = { "t" }, scale = 0 } },
    }), 1, 1)
    steps(mx.optim.sgd(by_rate, { learning_rate = 0.05 }), 1, 1)
    lu.assertTrue(compare.identical(params.matrix:detach(), by_rate.matrix:detach()))
    lu.assertTrue(compare.identical(params.vector:detach(), golden["vector.start"]))
    local wide, g = golden["wide.start"], golden["wide.grads"][1]
    lu.assertTrue(compare.distance(params.wide, wide * (1 - 0.1 * 0.2) - g * 0.1) < 1e-6)
end

function TestOptions.test_clip_value_comes_before_the_norm()
    local params = { vector = parameters().vector }
    local optimizer = mx.optim.sgd(params, { learning_rate = 1, clip_value = 0.25, clip = 0.3 })
    local g = mx.minimum(mx.maximum(golden["vector.grads"][1], -0.25), 0.25)
    local norm = math.sqrt(mx.sum_squares(g):item())
    give_gradients(params, 1)
    lu.assertAlmostEquals(optimizer:step(), norm, 1e-6)
    lu.assertTrue(norm > 0.3)
    lu.assertTrue(compare.distance(params.vector, golden["vector.start"] - g * (0.3 / norm)) < 1e-6)
end

-- ---- averages of weights, early stopping ----

TestAverages = {}

function TestAverages.test_ema()
    local params = { w = mx.tensor({ 1, 2 }):keep():requires_grad(), b = mx.ones({ 1 }, "bf16"):keep() }
    local ema = mx.optim.ema(params, { decay = 0.75 })
    mx.copy(params.w:detach(), mx.tensor { 5, 6 })
    ema:update()
    lu.assertEquals(ema.params.w:totable(), { 2, 3 })
    local inside = ema:apply(function() return params.w:totable() end)
    lu.assertEquals(inside, { 2, 3 })
    lu.assertEquals(params.w:totable(), { 5, 6 })
    lu.assertFalse(pcall(ema.apply, ema, function() error("inside") end))
    lu.assertEquals(params.w:totable(), { 5, 6 })
    lu.assertEquals(ema.params.w:totable(), { 2, 3 })
end

function TestAverages.test_warmup_forgets_the_beginning()
    local params = { w = mx.zeros({ 1 }):keep() }
    local ema = mx.optim.ema(params, { decay = 0.999, warmup = true })
    mx.copy(params.w, mx.ones { 1 })
    ema:update()
    lu.assertAlmostEquals(ema.params.w:totable()[1], 1 - 2 / 11, 1e-6)
end

function TestAverages.test_early_stopping()
    local stopping, losses = mx.optim.early_stopping { patience = 2, least = 0.1 }, { 3, 2, 1.95, 0 / 0 }
    local stops = {}
    for i, loss in ipairs(losses) do
        stops[i] = stopping:check(loss)
    end
    lu.assertEquals(stops, { false, false, false, true })
    lu.assertEquals(stopping.best, 2)
end
