-- An architecture of one's own on a TPU v5p that one need not have: blocks that mix tokens by a causal mean beside a
-- gated MLP. Nothing is computed; each operation takes the time that the simulated chip would.
-- The FLOPs of the simulated step must be three times those that a formula gives for the forward pass.
--
--     build/mxlua scripts/examples/simulated.lua
local mx = require "mx"
local E, HIDDEN, LAYERS, B, S = 4096, 16384, 8, 4, 2048

local hardware = mx.sim.start("v5p-8")
mx.sim.label.say(hardware)
local params, blocks = {}, {}
for i = 1, LAYERS do
    local name = "layer" .. i
    local norm = mx.nn.rmsnorm(params, name .. ".norm", E)
    local mlp = mx.nn.mlp(params, name .. ".mlp", E, HIDDEN, { gated = true, activation = "silu" })
    local mix = mx.nn.linear(params, name .. ".mix", E, E)
    blocks[i] = function(x)
        local h = norm(x)
        local mean = mx.cumsum(h:to("f32"), { dim = 2 }):to("bf16") -- the mean of all tokens so far, times their number
        return x + mlp(h) + mix(mean)
    end
end
local optimizer = mx.optim.adamw(params, { learning_rate = 1e-4 })

local function step()
    local done <close> = mx.step()
    local x = mx.zeros({ B, S, E }, "bf16")
    for i = 1, LAYERS do
        x = blocks[i](x)
    end
    mx.backward(mx.mean(mx.square(x:to("f32"))))
    optimizer:step()
    assert(done)
end

mx.profile(true)
local start = mx.now()
step()
local seconds = mx.now() - start
mx.profile(false)
local flops = 0
for _, row in ipairs(mx.profile_report()) do
    flops = row.op:find("matmul") and flops + row.flops or flops
end
local forward = 2 * B * S * LAYERS * (3 * E * HIDDEN + E * E)
local memory = mx.memory()
print(("simulated: %.1f ms a step of %s tokens, %.1f %% of the peak; %s of memory at most"):format(1e3 * seconds,
    mx.util.thousands(B * S), 100 * 3 * forward / seconds / hardware.peak_flops.bfloat16, mx.util.bytes(memory.peak)))
assert(math.abs(flops / forward - 3) < 1e-9, "a step must have three times the FLOPs of a forward pass")
