-- Images from an .npz file: the script draws 28 x 28 pictures of five shapes with noise, saves them as numpy does,
-- loads them, and trains a network with a dataset that shuffles.
-- More than 95 % of unseen pictures must be named right.
--
--     build/mxlua scripts/examples/images.lua [folder=/tmp]
local mx = require "mx"
local o = mx.config.options(arg, { folder = os.getenv "TMPDIR" or "/tmp" })
local SIDE, SHAPES = 28, 5

-- (n, 28, 28) u8 and labels (n) i32: disc, ring, square, cross, bars; anywhere, of any size.
local function draw(n, seed)
    local function random(low, high, k)
        return mx.rand { shape = { n, 1, 1 }, low = low, high = high, seed = seed + k }
    end
    local x = mx.arange { n = SIDE }:view(1, 1, SIDE) - random(11, 17, 1)
    local y = mx.arange { n = SIDE }:view(1, SIDE, 1) - random(11, 17, 2)
    local size, label = random(4, 8, 3), random(0, SHAPES, 4):to("i32")
    local radius, across, down = mx.sqrt(mx.square(x) + mx.square(y)), mx.abs(x) + y * 0, mx.abs(y) + x * 0
    local near = mx.maximum(across, down):lt(size):to("f32")
    local pictures = {
        radius:lt(size):to("f32"), mx.abs(radius - size):lt(1.5):to("f32"), near,
        mx.minimum(across, down):lt(1.5):to("f32") * near, near * mx.sin(x * 2):gt(0):to("f32"),
    }
    local image = mx.randn { shape = { n, SIDE, SIDE }, std = 25, seed = seed }
    for i, picture in ipairs(pictures) do
        image = image + picture * label:eq(i - 1):to("f32") * 150
    end
    return mx.minimum(mx.maximum(image + 50, 0), 255):to("u8"), label:view(n)
end

local images, labels = draw(4000, 10)
mx.save_npz(o.folder .. "/shapes.npz", { images = images, labels = labels })
local data = mx.load_npz(o.folder .. "/shapes.npz")
os.remove(o.folder .. "/shapes.npz")

local params = {}
local classify = mx.nn.sequential(mx.nn.linear(params, "a", SIDE * SIDE, 128, { bias = true }), mx.relu,
    mx.nn.linear(params, "b", 128, 64, { bias = true }), mx.relu,
    mx.nn.linear(params, "c", 64, SHAPES, { bias = true }))
local function logits(pictures)
    return classify(pictures:view(pictures:size(1), SIDE * SIDE):to("f32") / 128 - 1)
end

local optimizer = mx.optim.adamw(params, { learning_rate = 1e-3, weight_decay = 0.1 })
local batches = mx.data.dataset({ images = data.images, labels = data.labels }, { batch = 64, seed = 1 })
for _ = 1, 600 do
    local step <close> = mx.step()
    local batch = batches:next()
    local log_p = mx.gather(mx.log_softmax(logits(batch.images)), batch.labels:view(64, 1), { dim = 2 })
    mx.backward(mx.mean(log_p) * -1)
    optimizer:step()
end
local unseen, truth = draw(1000, 20)
local named = mx.no_grad(function() return mx.argmax(logits(unseen), { dim = 2 }) end)
local right = mx.mean(named:eq(truth):to("f32")):item()
print(("%.1f %% of unseen pictures named right"):format(100 * right))
assert(right > 0.95, "more than 95 % must be right")
