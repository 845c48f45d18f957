-- mu_dtype and the dtypes of AdamW's moments: memory, checkpoints, what rounding does to a slow second moment.

local lu = require "luaunit"
local mx = require "mx"
local util = require "mx.util"

TestMoments = {}

local function config_of(...)
    return mx.config.load({ "model_name=tiny", "max_target_length=16", "per_device_batch_size=2", "steps=4", ... })
end

function TestMoments.test_their_dtypes()
    for _, case in ipairs {
        { "weight_dtype=float32", "mu_dtype=", "f32", "f32" },
        { "weight_dtype=float32", "mu_dtype=bfloat16", "bf16", "f32" },
        { "weight_dtype=bfloat16", "mu_dtype=", "bf16", "bf16" },
        { "weight_dtype=bfloat16", "mu_dtype=float32", "f32", "bf16" },
    } do
        local config = config_of(case[1], case[2])
        local optimizer = mx.optim.new(config, mx.models.new(config).params)
        for _, state in util.sorted_pairs(optimizer.state) do
            lu.assertEquals({ state.m:dtype(), state.v:dtype() }, { case[3], case[4] })
        end
        local bytes = mx.dtypes[case[3]].bytes + mx.dtypes[case[4]].bytes
        lu.assertEquals(mx.plan.simulate(config, "v5e-1", 1).states, 106816 * bytes)
    end
    lu.assertErrorMsgContains("mu_dtype: expected one of", config_of, "mu_dtype=int8")
    lu.assertErrorMsgContains("mu_dtype has no effect with opt_type = sgd", config_of, "mu_dtype=bfloat16",
        "opt_type=sgd")
end

-- With a beta2 of 0.999, 200 steps without a gradient leave 0.999^200 of a second moment. To the nearest bf16 number it
-- would not change.
function TestMoments.test_a_second_moment_in_bf16_falls()
    local n, beta2, steps = 4096, 0.999, 200
    local param, grad = mx.ones({ n }, "bf16"), mx.zeros({ n })
    for key, expected in pairs { [-1] = 1, [7] = beta2 ^ steps } do
        local m, v = mx.zeros({ n }, "bf16"), mx.ones({ n }, "bf16")
        for step = 1, steps do
            mx.adamw(param, grad, m, v, {
                lr = 0, beta2 = beta2, step = step, round_key = key < 0 and -1 or key * 1000 + step,
            })
        end
        -- A step adds a variance of at most (2^-9)^2 to an element near 1; five standard deviations of the mean.
        lu.assertAlmostEquals(v:to("f32"):mean():item(), expected, 5 * 2 ^ -9 * math.sqrt(steps / n))
    end
end
