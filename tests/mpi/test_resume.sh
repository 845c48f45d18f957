#!/bin/sh
# A run that is cut off goes on as if nothing had happened: the same bits on the same number of ranks, the same values on
# another; damage is told, and an older checkpoint used. test_resume.sh MXLUA [MPIRUN]
# KILLS=N sets how often runs are killed (200 for a thorough test).
. "$(dirname "$0")/checks.sh"

kills=${KILLS:-40}
name=r$$ # of the run: no other process has it in its command line
common="model_name=tiny dataset_type=text dataset_path=$root/README.md per_device_batch_size=6 max_target_length=32
run_name=$name checkpoint_period=3 log_period=100 base_num_decoder_layers=1"

# train RANKS WORD...: the exit status is in $status.
train() {
    ranks=$1
    shift
    if [ "$ranks" = 1 ]; then
        run "$mxlua" --threads 1 "$root/scripts/train.lua" $common "$@"
    else
        run "$mpirun" -n "$ranks" "$mxlua" --threads 1 "$root/scripts/train.lua" $common "$@"
    fi
}

fails() {
    holds "expected an error" [ $((status > 0 && status < 124)) = 1 ]
}

# Whether there is a file or folder.
exists() {
    holds "$1 is missing" [ -e "$1" ]
}

same() {
    holds "$1 and $2 differ" cmp -s "$1" "$2"
}

# A folder of its own for a case, with what a run needs in it.
begin() {
    case=$1
    cd "$folder" || exit 1
    rm -rf work && mkdir work && cd work || exit 1
}

for ranks in 1 2; do
    begin "an undisturbed run on $ranks"
    train $ranks steps=12
    works
    cp checkpoints/$name/parameters.h5 "$folder/whole_$ranks.h5"
    cp -r checkpoints/$name/step_12 "$folder/step_12_$ranks"

    begin "cut off after 6 of 12 steps on $ranks"
    # The schedule is that of 12 steps from the beginning.
    train $ranks steps=6 learning_rate_schedule_steps=12
    works
    train $ranks steps=12 learning_rate_schedule_steps=12
    works
    has "RESUMING $name after step 6 from checkpoints/$name/step_6"
    has "steps: 12, was 6"
    "$mxlua" "$root/scripts/checkpoint.lua" merge checkpoints/$name to=mine.h5 all=true >out 2>&1
    mkdir other && cp -r "$folder/step_12_$ranks" other/step_12
    run "$mxlua" "$root/tests/mpi/compare_files.lua" mine.h5 checkpoints/$name/step_12 other/step_12
    works
    has "equal"
done

begin "the same run goes on with nothing left to do"
train 1 steps=3
train 1 steps=3
works
has "nothing is left to do"

begin "saved on 8 ranks, loaded on 3 and on 1"
train 8 steps=2 ici_tensor_parallelism=2 ici_fsdp_parallelism=2 ici_data_parallelism=2 shard_optimizer_over_data=true
works
cp -r checkpoints/$name/step_2 eight
train 3 steps=2 ici_fsdp_parallelism=1 ici_data_parallelism=3 checkpoint_period=1
works
has "saved by 8 ranks, now 3"
cp -r eight start
train 3 steps=2 run_name=three load_full_state_path=checkpoints/$name/step_2 ici_fsdp_parallelism=1 ici_data_parallelism=3
works
"$mxlua" "$root/scripts/checkpoint.lua" merge checkpoints/$name/step_2 to=eight.h5 >out 2>&1
cmp_values() {
    run "$mxlua" "$root/tests/mpi/compare_files.lua" "$1" "$2"
    works
    has "equal"
}
cmp_values eight.h5 checkpoints/three/parameters.h5
train 1 steps=2 run_name=one load_full_state_path=checkpoints/$name
works
cmp_values eight.h5 checkpoints/one/parameters.h5

begin "a save on 3 ranks, whose parts 2 ranks read"
train 3 steps=2 ici_fsdp_parallelism=1 ici_data_parallelism=3 checkpoint_period=1
works
train 2 steps=2 run_name=two load_full_state_path=checkpoints/$name/step_2 ici_tensor_parallelism=2
works
"$mxlua" "$root/scripts/checkpoint.lua" merge checkpoints/$name to=three.h5 >out 2>&1
cmp_values three.h5 checkpoints/two/parameters.h5

begin "moments that all ranks have whole, of other shapes than their parameters"
adafactor="opt_type=adafactor dtype=float32 learning_rate_schedule_steps=4 checkpoint_period=2"
train 2 steps=4 run_name=straight $adafactor
works
train 2 steps=2 $adafactor
works
train 2 steps=4 $adafactor
works
run "$mxlua" "$root/tests/mpi/compare_files.lua" checkpoints/straight/step_4 checkpoints/$name/step_4
works
has "equal"

begin "SIGTERM saves, ends well, and the same command goes on"
("$mxlua" --threads 1 "$root/scripts/train.lua" $common steps=100000 checkpoint_period=0 >first 2>&1; echo $? >first_status) &
for _ in $(seq 100); do
    grep -q '^ *1/100000' first 2>/dev/null && break
    sleep 0.1
done
pkill -TERM -f "run_name=$name"
wait
cp first out
status=$(cat first_status)
works
has "asked to stop by SIGTERM"
last=$(sed -n 's/^stopped after step \([0-9]*\) of.*/\1/p' first)
exists "checkpoints/$name/step_$last"
train 1 steps=$((last + 1)) learning_rate_schedule_steps=100000
works
has "RESUMING $name after step"

# ---- faults ----

# A run with checkpoints of the steps 3, 6 and 9.
three_checkpoints() {
    begin "$1"
    train 2 steps=9
    works
}

damaged() {
    train 2 steps=9
    works
    matches "$1"
    has "RESUMING $name after step 6"
    exists checkpoints/$name/step_3
    exists checkpoints/$name/step_9.replaced-1 # what was damaged is still there
    exists checkpoints/$name/step_9
}

three_checkpoints "a rank's file is missing"
rm checkpoints/$name/step_9/rank_1.h5
damaged "step_9 cannot be used:.*rank_1.h5"

three_checkpoints "a rank's file is cut off"
truncate -s -100 checkpoints/$name/step_9/rank_0.h5
damaged "step_9 cannot be used:.*rank_0.h5"

three_checkpoints "a bit of the values is flipped"
FILE=checkpoints/$name/step_9/rank_0.h5 "$mxlua" -e '
    local path = os.getenv("FILE")
    local text = io.open(path, "rb"):read("a")
    local at = #text // 2
    local file = io.open(path, "wb")
    file:write(text:sub(1, at - 1), string.char(text:byte(at) ~ 4), text:sub(at + 1))
    file:close()'
damaged "step_9 cannot be used:.*rank_0.h5"

three_checkpoints "a file is of another checkpoint"
cp checkpoints/$name/step_6/rank_1.h5 checkpoints/$name/step_9/rank_1.h5
damaged "rank_1.h5 belongs to another checkpoint"

three_checkpoints "the index is damaged"
sed -i 's/"step":9/"step":8/' checkpoints/$name/step_9/index.json
damaged "index.json is damaged"

three_checkpoints "a folder that was not renamed"
mv checkpoints/$name/step_9 checkpoints/$name/step_9.tmp
train 2 steps=9
works
has "RESUMING $name after step 6"
exists checkpoints/$name/step_9

three_checkpoints "all are damaged"
for step in 3 6 9; do : >checkpoints/$name/step_$step/rank_0.h5; done
train 2 steps=9
fails
has "none of the 3 checkpoints in checkpoints/$name can be used"
exists checkpoints/$name/step_3

three_checkpoints "another model"
train 2 steps=9 base_mlp_dim=64
fails
matches "step_9 cannot be used: .*has shape (64, 128), that of this run (64, 64)"

three_checkpoints "another optimizer"
train 2 steps=12 opt_type=sgd
fails
has "was saved with opt_type=adamw, this run has sgd"

begin "a run without a name does not mix with an earlier one"
train 1 steps=3 run_name=tiny
train 1 steps=3 run_name=
fails
has "run_name=tiny goes on with it"

begin "the disk is full"
train 1 steps=3 base_mlp_dim=4096
(
    trap '' XFSZ # a write beyond the limit fails as on a full disk; MPI wants 4 MiB for itself
    ulimit -f 12000
    train 1 steps=9 base_mlp_dim=4096
    echo "$status" >status
)
status=$(cat status)
fails
matches "the checkpoint of step 6 was not saved: .*rank_0.h5"
train 1 steps=9 base_mlp_dim=4096
works
has "RESUMING $name after step 3"

begin "a folder that cannot be written"
: >checkpoints
train 2 steps=3
fails
has "cannot make the folder"

# ---- kill -9 ----

# kill_often RANKS TIMES SECONDS: kills a run at random moments of so many seconds after its start, again and again;
# whenever it has come to its end, it begins anew.
kill_often() {
    ranks=$1
    begin "killed on $ranks"
    killed=0
    ended=0
    while [ $killed -lt "$2" ]; do
        launcher=
        [ "$ranks" = 1 ] || launcher="$mpirun -n $ranks"
        $launcher "$mxlua" --threads 1 "$root/scripts/train.lua" $common checkpoint_period=1 steps=12 >out 2>&1 &
        sleep "$(awk -v seed=$((killed * 7919 + ended * 31 + ranks)) -v most="$3" 'BEGIN { srand(seed); print most * rand() }')"
        pkill -9 -f "run_name=$name" && killed=$((killed + 1))
        wait
        if grep -q "cannot be used\|mxlua: rank" out; then
            check no "a checkpoint was not whole, or the run failed"
            cat out
            killed=$2
        fi
        if [ -e checkpoints/$name/parameters.h5 ]; then
            same checkpoints/$name/parameters.h5 "$folder/whole_1_$ranks.h5"
            ended=$((ended + 1))
            rm -rf checkpoints
        fi
    done
    train "$ranks" checkpoint_period=1 steps=12
    works
    same checkpoints/$name/parameters.h5 "$folder/whole_1_$ranks.h5"
    echo "killed $killed times on $ranks: came to the end $ended times between"
}

for ranks in 1 2; do
    begin "the run that is to be killed, on $ranks"
    train $ranks checkpoint_period=1 steps=12
    works
    cp checkpoints/$name/parameters.h5 "$folder/whole_1_$ranks.h5"
done
kill_often 1 $((kills * 3 / 4)) 0.8
kill_often 2 $((kills / 4)) 1.2

end
