-- What the suites of the simulator share.

local lu = require "luaunit"
local mx = require "mx"

local sim = {}

local WHOLE = { -- nothing lost: what the vendor says
    matrix_efficiency = 1, attention_efficiency = 1, memory_efficiency = 1, ici_efficiency = 1, dcn_efficiency = 1,
    dcn_hop_latency_s = 1e-5, vector_flops = 0, attention_step_s = 0,
}

-- Those of a chip that loses nothing, with others where given.
function sim.constants(more)
    local all = {}
    for _, t in ipairs({ WHOLE, more or {} }) do
        for name, value in pairs(t) do
            all[name] = value
        end
    end
    return all
end

-- Seconds of the chip in fn.
function sim.seconds(fn)
    local start = mx.now()
    fn()
    return mx.now() - start
end

function sim.assert_near(value, expected, share)
    lu.assertAlmostEquals(value, expected, math.abs(expected) * (share or 1e-9))
end

return sim
