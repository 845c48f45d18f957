#!/bin/sh
# A sweep that is killed goes on: finished configurations do not run again, and the one that was running gives its real
# result, even if its own run had finished. On several ranks, together and apart. test_sweep.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

# Each configuration trains a tiny model with mx.run, under a name of its own. With KILL=N the process kills itself in
# configuration N: KILL_AT=before its run, or =after it has finished and before the sweep knows the result.
cat >sweep.lua <<'END'
local mx = require "mx"
local kill, at = tonumber(os.getenv "KILL"), os.getenv "KILL_AT"
local function die(number, when)
    if number == kill and when == at then
        os.execute("kill -9 " .. io.open("/proc/self/stat"):read("n"))
    end
end
local rows = mx.sweep { grid = { learning_rate = { 0.1, 0.01, 0.001 } }, resume = "results", run = function(c, job)
    mx.io.append_line("started", tostring(job.number))
    die(job.number, "before")
    local config = mx.config.load { "model_name=tiny", "steps=3", "run_name=" .. job.name, "max_target_length=16",
        "base_num_decoder_layers=1", "per_device_batch_size=1", "learning_rate=" .. c.learning_rate }
    local data = mx.data.open(config)
    local model = mx.models.new(config)
    local optimizer = mx.optim.new(config, model.params, model.parallel)
    local run = mx.run.start(config, model, optimizer, data)
    for step in run:steps() do
        local loss = mx.train.gradients(model, data, 1)
        run:ended(step, loss, run:update(step, loss))
    end
    local summary = run:finish()
    die(job.number, "after")
    return { loss = summary.loss, steps = summary.step }
end }
for _, row in ipairs(rows) do
    print(("RESULT %g %.17g %d"):format(row.config.learning_rate, row.result.loss, row.result.steps))
end
END

sweep() { "$mxlua" --threads 1 sweep.lua >out 2>&1; }

case="without a kill"
mkdir whole && cd whole && cp ../sweep.lua . || exit 1
sweep
holds "three results" [ "$(grep -c '^RESULT' out)" = 3 ]
grep '^RESULT' out >../expected
cd .. || exit 1

for at in before after; do
    case="killed $at the run of configuration 2"
    rm -rf results checkpoints started
    KILL=2 KILL_AT=$at sweep
    holds "it was killed" [ "$(grep -c '^RESULT' out)" = 0 ]
    holds "one result is on disk" [ "$(ls results/*.json | wc -l)" = 1 ]
    sweep
    grep '^RESULT' out >got
    holds "the results are those without a kill" cmp -s got expected
    holds "configuration 1 did not run again" [ "$(tr '\n' ' ' <started)" = "1 2 2 3 " ]
done

case="two at once"
cat >slow.lua <<'END'
require("mx").sweep { grid = { x = { 1 } }, resume = "slow", run = function() os.execute "sleep 5" return 1 end }
END
"$mxlua" slow.lua >first 2>&1 &
holder=$!
for _ in $(seq 100); do [ -e slow/sweep.lock ] && break; sleep 0.05; done
"$mxlua" slow.lua >out 2>&1
holds "the second is refused" [ $? -ne 0 ]
holds "the message says what to do" grep -q 'choose another folder for resume' out
kill -9 $holder
wait $holder 2>/dev/null

case="on two ranks"
cat >ranks.lua <<'END'
local mx = require "mx"
local apart = os.getenv "APART" == "yes"
local rows = mx.sweep { grid = { x = { 1, 2, 3, 4, 5 } }, resume = "ranks", apart = apart, run = function(c)
    mx.io.append_line("ran", ("%d %d"):format(mx.rank(), c.x))
    return { loss = apart and c.x or mx.all_reduce(mx.tensor(c.x)):item() }
end }
local losses = {}
for i, row in ipairs(rows) do
    losses[i] = ("%g"):format(row.result.loss)
end
print("RANK", mx.rank(), table.concat(losses, " "))
END
$mpirun -n 2 "$mxlua" --threads 1 ranks.lua >out 2>&1
holds "all ranks have all rows" [ "$(grep -c 'RANK.*2 4 6 8 10' out)" = 2 ]
holds "each configuration ran on both" [ "$(sort ran | tr '\n' ',')" = "0 1,0 2,0 3,0 4,0 5,1 1,1 2,1 3,1 4,1 5," ]
rm -rf ranks ran
APART=yes $mpirun -n 2 "$mxlua" --threads 1 ranks.lua >out 2>&1
holds "all ranks have all rows" [ "$(grep -c 'RANK.*1 2 3 4 5' out)" = 2 ]
holds "each configuration ran on one" [ "$(sort ran | tr '\n' ',')" = "0 1,0 3,0 5,1 2,1 4," ]
rm -f ran
APART=yes $mpirun -n 2 "$mxlua" --threads 1 ranks.lua >out 2>&1
holds "nothing runs again" [ ! -e ran ]

end
