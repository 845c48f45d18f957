-- Learning-rate schedules: values by hand and of MaxText, the config's keys, a resumed decay.

local lu = require "luaunit"
local mx = require "mx"

TestSchedule = {}

local function schedule(type, o)
    o.type = type
    return mx.optim.schedule(o)
end

-- The rates of update steps that MaxText 0.2.5 gives with a peak of 3e-4, 100 steps, a warm-up of 0.1, a final fraction
-- of 0.1 and, for wsd, a linear decay over 0.1. Its steps count from 0.
function TestSchedule.test_the_rates_are_those_of_maxtext()
    local cosine = schedule("cosine", { peak = 3e-4, steps = 100, warmup_fraction = 0.1, final_fraction = 0.1 })
    for step, expected in pairs { [0] = 0, 3e-5, 6e-5, [10] = 3e-4, [50] = 1.86354e-4, [99] = 3e-5, [100] = 0 } do
        lu.assertAlmostEquals(cosine(step + 1), expected, 5e-10, step)
    end
    local wsd = schedule("wsd", { peak = 3e-4, steps = 100, warmup_fraction = 0.1, final_fraction = 0.1 })
    for step, expected in pairs { [0] = 0, [10] = 3e-4, [50] = 3e-4, [90] = 3e-4, [99] = 3e-5, [100] = 0 } do
        lu.assertAlmostEquals(wsd(step + 1), expected, 1e-15, step)
    end
end

function TestSchedule.test_the_form_of_each_decay()
    local o = { peak = 2, steps = 11, final_fraction = 0.5 }
    local cosine = schedule("cosine", o)
    lu.assertEquals({ cosine(1), cosine(11), cosine(12) }, { 2, 1, 0 })
    lu.assertAlmostEquals(cosine(6), 1.5, 1e-12) -- half way
    lu.assertAlmostEquals(cosine(3), 1.5 + math.cos(math.pi / 5) / 2, 1e-12)
    o.decay_fraction = 0.5 -- of 11 steps: 5
    local wsd = schedule("wsd", o)
    lu.assertEquals({ wsd(1), wsd(6), wsd(7), wsd(8), wsd(9), wsd(11), wsd(12) }, { 2, 2, 2, 1.75, 1.5, 1, 0 })
    o.decay_style = "cosine"
    wsd = schedule("wsd", o)
    lu.assertEquals({ wsd(6), wsd(7), wsd(11) }, { 2, 2, 1 })
    lu.assertAlmostEquals(wsd(8), 1.5 + math.cos(math.pi / 4) / 2, 1e-12)
end

function TestSchedule.test_schedules_without_a_final_rate()
    local constant = schedule("constant", { peak = 2, steps = 8, warmup_fraction = 0.5 })
    lu.assertEquals({ constant(1), constant(2), constant(5), constant(8), constant(9) }, { 0, 0.5, 2, 2, 0 })
    local root = schedule("inverse_square_root", { peak = 2, steps = 40, warmup_fraction = 0.1 }) -- 4 steps of warm-up
    lu.assertEquals({ root(1), root(2), root(5), root(17), root(41) }, { 0, 0.5, 2, 1, 0 }) -- 17: 16 steps before it
    root = schedule("inverse_square_root", { peak = 2, steps = 40 })
    lu.assertEquals({ root(1), root(4) }, { 2, 1 })
end

-- Decays of no and of one step.
function TestSchedule.test_the_shortest_schedules()
    lu.assertEquals(schedule("cosine", { peak = 2, steps = 1, final_fraction = 0.5 })(1), 1)
    lu.assertEquals(schedule("cosine", { peak = 2, steps = 1, warmup_fraction = 1 })(1), 0)
    local wsd = schedule("wsd", { peak = 2, steps = 5, decay_fraction = 0.2, final_fraction = 0.5 })
    lu.assertEquals({ wsd(4), wsd(5) }, { 2, 1 })
    wsd = schedule("wsd", { peak = 2, steps = 5, decay_fraction = 0 })
    lu.assertEquals({ wsd(1), wsd(5), wsd(6) }, { 2, 2, 0 })
end

-- Decimal fractions of a whole number, worked out by hand: 0.29, 0.57 and 0.145 have no exact binary form.
function TestSchedule.test_the_warm_up_has_the_steps_that_the_decimal_fraction_says()
    for _, case in ipairs({
        { 100, 0.29, 29 }, { 100, 0.57, 57 }, { 200, 0.145, 29 }, { 1000, 0.001, 1 }, { 100, 0.299, 29 }, { 7, 0.5, 3 },
        { 300, 0.99, 297 }, { 10, 0.05, 0 }, { 3, 1, 3 },
    }) do
        local steps, fraction, warmup = table.unpack(case)
        local rate = schedule("constant", { peak = 1.0, steps = steps, warmup_fraction = fraction })
        local what = ("%g of %d"):format(fraction, steps)
        if warmup > 0 then
            lu.assertEquals({ rate(1), rate(warmup) }, { 0.0, (warmup - 1) / warmup }, what)
        end
        lu.assertEquals(rate(warmup + 1), warmup < steps and 1.0 or 0.0, what)
    end
end

local function rates(...)
    local config = mx.config.load({ "model_name=tiny", "learning_rate=1", ... })
    local optimizer, list = mx.optim.new(config, {}), {}
    for step = 1, 7 do
        list[step] = optimizer:rate(step)
    end
    return list, config
end

function TestSchedule.test_the_keys_of_a_config()
    lu.assertEquals(rates("lr_schedule_type=wsd", "steps=6", "warmup_steps_fraction=0.34",
        "wsd_decay_steps_fraction=0.5", "learning_rate_final_fraction=0.5"), { 0, 0.5, 1, 1, 0.75, 0.5, 0 })
    lu.assertEquals(rates("lr_schedule_type=constant", "steps=20", "learning_rate_schedule_steps=4",
        "warmup_steps_fraction=0.5"), { 0, 0.5, 1, 1, 0, 0, 0 })
    local _, config = rates("steps=-1", "learning_rate_schedule_steps=9")
    lu.assertEquals(config.steps, 9)
    local function refused(expected, ...)
        lu.assertErrorMsgContains(expected, rates, ...)
    end
    refused("lr_schedule_type: expected one of cosine, wsd, constant, inverse_square_root", "lr_schedule_type=linear")
    refused("wsd_decay_steps_fraction has no effect with lr_schedule_type = cosine", "wsd_decay_steps_fraction=0.5")
    refused("learning_rate_final_fraction has no effect with lr_schedule_type = constant", "lr_schedule_type=constant",
        "learning_rate_final_fraction=0.5")
    refused("wsd_decay_steps_fraction: and warmup_steps_fraction are shares of one schedule, but 0.5 and 0.6 exceed 1",
        "lr_schedule_type=wsd", "wsd_decay_steps_fraction=0.5", "warmup_steps_fraction=0.6")
    refused("steps: -1 takes the value of learning_rate_schedule_steps, which is -1 too", "steps=-1")
    refused("learning_rate_schedule_steps: expected at least 1, or -1 for steps, got '0'",
        "learning_rate_schedule_steps=0")
end
