-- The engine's side of gpt2.py: writes its parameters and a batch to the file of the first word, then takes one step on
-- that batch for each line of the standard input and prints its seconds, those of all its threads, and its loss.

local mx = require "mx"
local util = require "mx.util"

local path = table.remove(arg, 1)
local config = mx.config.load(arg)
local model = mx.models.new(config)
local data = mx.data.open(config)
local optimizer = mx.optim.new(config, model.params)

local batch = data:next()
local arrays = { tokens = batch.tokens, targets = batch.targets }
for name, t in util.sorted_pairs(model.params) do
    arrays[name] = t
end
mx.save_npz(path, arrays)

local same = {}
function same.next() return batch end

print("ready " .. (config.dtype == "float32" and "OpenBLAS for " .. mx.info().blas_core or mx.isa()))
io.stdout:flush()
for _ in io.lines() do
    local start, busy = mx.now(), os.clock()
    local loss = mx.train.gradients(model, same, 1)
    optimizer:step()
    print(("%.6f %.6f %.6f"):format(mx.now() - start, os.clock() - busy, loss))
    io.stdout:flush()
end
