#!/bin/sh
# A run that is resumed with another number of stages, text from its parameters, and a run in which the process of a
# stage is killed. test_pipeline.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

limit=$((120 * factor))

same() { # WHAT VALUE EXPECTED
    holds "$1: $2, expected $3" [ "$2" = "$3" ]
}

# train RANKS WORDS...
train() {
    ranks=$1
    shift
    run "$mpirun" -n "$ranks" "$mxlua" --threads 1 "$root/scripts/train.lua" \
        model_name=tiny dataset_type=text dataset_path="$root/LICENSE" dtype=float32 base_num_decoder_layers=4 \
        learning_rate_schedule_steps=6 ici_fsdp_parallelism=1 "$@"
}

# The losses of a run's steps, to four decimals.
losses() {
    grep -v summary "checkpoints/$1/metrics.jsonl" | sed 's/.*"loss": *\([0-9.]*\).*/\1/' |
        while read -r loss; do printf '%.4f ' "$loss"; done
}

# Eight sequences a step, whoever has them.
train 1 run_name=whole steps=6 per_device_batch_size=8
train 4 run_name=parts steps=2 per_device_batch_size=2 ici_pipeline_parallelism=4 pipeline_schedule=zb_h1
train 1 run_name=parts steps=4 per_device_batch_size=8
train 2 run_name=parts steps=6 per_device_batch_size=4 ici_pipeline_parallelism=2 pipeline_schedule=1f1b \
    pipeline_parallel_layers=2
same "six losses" "$(losses whole | wc -w)" 6
same "4 stages, then 1, then 2 with layers outside" "$(losses parts)" "$(losses whole)"

# Text from the parameters of two stages, on one rank: that of the run without stages.
text() {
    run "$mxlua" --threads 1 "$root/scripts/generate.lua" parameters="checkpoints/$1" prompt="The " tokens=12 \
        temperature=0
    tail -n 1 out
}
lacks "no text" [ -z "$(text whole/parameters.h5)" ]
same "text from stages" "$(text parts/parameters.h5)" "$(text whole/parameters.h5)"
same "text from a checkpoint of stages" "$(text parts/step_6)" "$(text whole/step_6)"

# The second stage kills itself in its third step.
cat >dies.lua <<'END'
local mx = require "mx"
local config = mx.config.load(arg)
local mesh = mx.train.mesh(config)
local data, model = mx.data.open(config, mesh), mx.models.new(config, mesh)
for step = 1, 6 do
    if step == 3 and mx.rank() == 1 then
        os.execute("kill -9 " .. io.open("/proc/self/stat"):read("n"))
    end
    mx.train.gradients(model, data, 1)
end
END
case="a stage that dies"
run "$mpirun" -n 2 "$mxlua" --threads 1 dies.lua model_name=tiny per_device_batch_size=2 ici_fsdp_parallelism=1 \
    ici_pipeline_parallelism=2
same "it ends the run" $((status > 0 && status != 124)) 1 # 124: it hung
same "it is named" "$(grep -c 'rank 1 (process [0-9]*) has died' out)" 1
matches "message.*rank 1 over stage" # that the other one waits for

end
