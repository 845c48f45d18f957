-- Trains a model on a mesh, or on one rank (mesh is nil) by all of the batch.

local mx = require "mx"
local util = require "mx.util"

-- Two updates: the losses, the gradients of the first, whole, and the parameters at the end, whole.
return function(model, config, mesh)
    local data = mx.data.open(config, mesh)
    if not mesh then
        data.part, data.parts, model.part, model.parts = 0, 1, 0, 1
    end
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    local run = { losses = {}, grads = {}, params = {} }
    local function whole(name, t)
        return model.parallel:whole(name, t):wait():clone():keep()
    end
    for i = 1, 2 do
        local step <close> = mx.step()
        if mesh then
            run.losses[i] = mx.train.gradients(model, data, 1)
        else
            local loss = model:loss(data:next())
            mx.backward(loss)
            run.losses[i] = loss:item()
        end
        for name, t in util.sorted_pairs(i == 1 and model.params or {}) do
            run.grads[name] = whole(name, t:grad())
        end
        optimizer:step()
        model:after_step()
    end
    for name, t in util.sorted_pairs(model.params) do
        run.params[name] = whole(name, t:detach())
    end
    return run
end
