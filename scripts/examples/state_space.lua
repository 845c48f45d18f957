-- A selective state space model (as in Mamba) on a task of memory: which symbol was the last one that is not blank.
-- mx.linear_scan computes the states h[t] = a[t] h[t - 1] + b[t]; a and b depend on the input.
-- It must be right at more than 95 % of the positions of unseen sequences.
--
--     build/mxlua scripts/examples/state_space.lua [steps=200]
local mx = require "mx"
local o = mx.config.options(arg, { steps = 200 })
local SYMBOLS, WIDTH, STATES, LENGTH, B = 8, 32, 4, 64, 16

-- Symbols (B, LENGTH) i32, nine of ten of them blank (0), and the last one so far that is not.
local function batch(seed)
    local symbol = mx.randint({ B, LENGTH }, { low = 1, high = SYMBOLS, seed = seed })
    local shown = symbol * mx.rand({ B, LENGTH }, { seed = seed + 1 }):lt(0.1):to("i32")
    local last = mx.linear_scan(shown:eq(0):to("f32"), shown:to("f32"), { dim = 2 })
    return shown, last:to("i32")
end

local params = {}
local embed = mx.nn.embedding(params, "embed", SYMBOLS, WIDTH)
local norm = mx.nn.rmsnorm(params, "norm", WIDTH)
local both = mx.nn.linear(params, "in", WIDTH, 2 * WIDTH)
local conv = mx.nn.conv1d(params, "conv", WIDTH, WIDTH, 4, { groups = WIDTH, padding = "causal", bias = true })
local rate = mx.nn.linear(params, "rate", WIDTH, WIDTH, { bias = true })
local read_write = mx.nn.linear(params, "read_write", WIDTH, 2 * STATES)
local log_decay = mx.nn.parameter(params, "log_decay", { WIDTH, STATES })
local out = mx.nn.linear(params, "out", WIDTH, WIDTH)
local head = mx.nn.linear(params, "head", WIDTH, SYMBOLS, { bias = true })

local function along_time(f, x) -- convolutions take (B, channels, length)
    return f(x:transpose { dim1 = 2, dim2 = 3 }):transpose { dim1 = 2, dim2 = 3 }
end

-- x (B, LENGTH, WIDTH) -> the same; states are (B, LENGTH, WIDTH, STATES)
local function layer(x)
    local u, gate = mx.split(both(norm(x)), { size = WIDTH, dim = 3 })
    u = along_time(conv, u):silu()
    local write, read = mx.split(read_write(u):unsqueeze { dim = 3 }, { size = STATES, dim = 4 })
    local dt = mx.softplus(rate(u)):unsqueeze { dim = 4 }
    local h = mx.linear_scan((-dt * log_decay:exp()):exp(), dt * write * u:unsqueeze { dim = 4 }, { dim = 2 })
    return x + out((h * read):sum { dim = 4 } * gate:silu())
end

local function logits(ids) return head(layer(embed(ids))) end

local optimizer = mx.optim.adamw(params, { learning_rate = 1e-2, clip = 1 })
for i = 1, o.steps do
    local step <close> = mx.step()
    local ids, last = batch(2 * i)
    local loss = mx.softmax_cross_entropy(logits(ids), last)
    mx.backward(loss)
    optimizer:step()
    if i % 50 == 0 then print(("step %3d  loss %.4f"):format(i, loss:item())) end
end
local ids, last = batch(1000003)
local right = mx.no_grad(logits, ids):argmax({ dim = 3 }):eq(last):to("f32"):mean():item()
print(("%.1f %% of the positions right"):format(100 * right))
assert(right > 0.95, "more than 95 % of the positions must be right")
