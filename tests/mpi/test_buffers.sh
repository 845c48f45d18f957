#!/bin/sh
# A resumed run restores the buffers of its model, on any number of ranks and any mesh. test_buffers.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

# A step of a model with two buffers: one is small, and ranks share out the writing of the other. Each step adds the sum
# of the ranks' shares of a number, which is the same on any number of ranks.
cat >run.lua <<'EOF'
local mx = require "mx"
local config = mx.config.load(arg)
local mesh = mx.train.mesh(config)
local data = mx.data.open(config, mesh)
local model = mx.models.new(config, mesh)
local load = mx.nn.buffer(model.buffers, "load", { 4 })
local large = mx.nn.buffer(model.buffers, "large", { 3, 200000 }, { std = 1 })
local drawn = large:clone():keep()
local optimizer = mx.optim.new(config, model.params, model.parallel)
local run = mx.run.start(config, model, optimizer, data)
for step in run:steps() do
    local loss = mx.train.gradients(model, data, config.gradient_accumulation_steps)
    local norm = run:update(step, loss)
    mx.scope(function()
        local share = mx.full({ 4 }, 12 / mx.ranks())
        share = mx.ranks() > 1 and mx.all_reduce_(share) or share
        mx.copy(load, load + share)
        mx.copy(large, large + 1)
    end)
    run:ended(step, loss, norm)
end
run:finish()
mx.scope(function()
    local grown = (large - drawn):mean():item()
    io.write(("step %d, rank %d: load %g, large %.1f\n"):format(optimizer.steps, mx.rank(), load:sum():item(), grown))
end)
EOF

# The buffers of a file of parameters.
cat >look.lua <<'EOF'
local mx = require "mx"
local config = mx.config.load(arg)
local model = mx.models.new(config, mx.train.mesh(config))
local load = mx.nn.buffer(model.buffers, "load", { tonumber(os.getenv "LENGTH") or 4 })
mx.nn.buffer(model.buffers, "large", { 3, 200000 })
mx.run.load_parameters("checkpoints/r/parameters.h5", model)
io.write(("rank %d: load %g\n"):format(mx.rank(), load:sum():item()))
EOF

# expect_on RANKS STATUS TEXT WORD...: of mxlua with these words.
expect_on() {
    ranks=$1 wanted=$2 text=$3
    shift 3
    expect "$wanted" "$text" "$mpirun" -n "$ranks" "$mxlua" --threads 1 "$@"
}

run="run.lua model_name=tiny max_target_length=16 per_device_batch_size=4 run_name=r
checkpoint_period=1"
# shellcheck disable=SC2086
{
    expect_on 1 0 "step 1, rank 0: load 48, large 1.0" $run steps=1
    expect_on 2 0 "step 2, rank 1: load 96, large 2.0" $run steps=2 per_device_batch_size=2
    expect_on 2 0 "step 3, rank 1: load 144, large 3.0" $run steps=3 ici_fsdp_parallelism=1 ici_tensor_parallelism=2
    expect_on 1 0 "step 4, rank 0: load 192, large 4.0" $run steps=4
}
expect_on 2 0 "rank 1: load 192" look.lua model_name=tiny
LENGTH=5
export LENGTH
expect_on 2 1 "checkpoints/r/parameters.h5: 'buffers/load' is 4, the model's is 5" look.lua model_name=tiny

end
