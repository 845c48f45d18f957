#!/bin/sh
# scripts/tune.lua stores threads, remat_policy and passes, and train.lua tuning=cache uses them and says so.
# test_tune.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

export XDG_CACHE_HOME="$folder/cache"
words="model_name=tiny dataset_type=synthetic per_device_batch_size=2"

train="$mxlua --threads 2 scripts/train.lua $words steps=3"

# choose THREADS SETTING: whatever has won, the file says this from here on.
choose() {
    sed -i "s/\"threads\": *[0-9]*/\"threads\": $1/; s/\"setting\": *\"[^\"]*\"/\"setting\": \"$2\"/
        s/\"gain\": *[-0-9.e]*/\"gain\": 0.25/" "$XDG_CACHE_HOME/mxlua/tuning.json"
}

# Losses of three steps and the summary, in the files tuned and plain; the last bits may differ.
cat >same_losses.sh <<'END'
for name in tuned plain; do
    grep -o '"loss": *[0-9]*[.][0-9]\{3\}' $name >$name.losses
done
cmp tuned.losses plain.losses && echo "$(grep -c . plain.losses) the same"
END

case="nothing is known"
expect 0 "nothing is known of this config with 2 threads" $train tuning=cache
case="no time"
expect 0 "nothing is stored; budget_s= gives more seconds" "$mxlua" --threads 2 scripts/tune.lua $words \
    budget_s=0.001
case="still nothing"
expect 0 "nothing is known of this config with 2 threads" $train tuning=cache
case="tune.lua"
expect 0 "stored in $XDG_CACHE_HOME/mxlua/tuning.json" "$mxlua" --threads 2 scripts/tune.lua $words budget_s=10
cp out shown
case="fewer threads"
expect 0 "remat_policy=full, 1 thread " cat shown
case="other policies"
expect 0 "remat_policy=" grep -v "remat_policy=full" shown
case="without it"
expect 0 "" $train metrics_file=plain
choose 2 full
case="the config's own"
expect 0 "tuning=cache: nothing was faster than remat_policy=full, 2 threads when it was tuned" \
    $train tuning=cache
choose 1 none
case="the choice is used"
expect 0 "tuning=cache: remat_policy=none, 1 thread; 25 % less time a step when it was tuned" \
    $train tuning=cache metrics_file=tuned
cp out shown
case="the policy"
expect 0 "remat_policy: none" cat shown
case="the same losses"
expect 0 "4 the same" sh same_losses.sh
choose 1 "minimal, 2 passes of 1"
case="passes"
expect 0 "tuning=cache: remat_policy=minimal, 2 passes of 1, 1 thread; 25 %" $train tuning=cache metrics_file=tuned
cp out shown
case="the batch"
expect 0 "gradient_accumulation_steps: 2" cat shown
case="the same losses in passes"
expect 0 "4 the same" sh same_losses.sh
choose 2 none
# With "none" a step needs 1.90 MB, with "full" 1.84.
case="no memory for it"
expect 0 "remat_policy=none, 2 threads was fastest, but does not fit in memory now" \
    "$mxlua" --threads 2 --memory-limit 1850K -e "mx.config.load { '$(echo $words | sed "s/ /', '/g")', 'steps=3',
        'enable_checkpointing=false', 'tuning=cache' }"
case="a policy of one's own"
expect 0 "nothing is known" $train tuning=cache remat_policy=full
case="another batch"
expect 0 "nothing is known" $train tuning=cache per_device_batch_size=3
case="a simulated chip"
expect 0 "a simulated chip has nothing to tune" "$mxlua" scripts/train.lua model_name=tiny hardware=v5e-4 \
    steps=1 tuning=cache
case="the words of a later run"
expect 0 "remat_policy=full, 2 threads " "$mxlua" --threads 2 scripts/tune.lua $words \
    tuning=cache budget_s=1
case="two ranks"
expect 0 "points to time, at most 1.0s" "$mpirun" -n 2 "$mxlua" --threads 1 scripts/tune.lua $words \
    budget_s=1
case="nothing to choose"
expect 1 "nothing is left to choose: this process has one thread" "$mxlua" --threads 1 \
    scripts/tune.lua $words remat_policy=full gradient_accumulation_steps=1
case="no chip to tune"
expect 1 "leave the key out" "$mxlua" --threads 2 scripts/tune.lua $words hardware=v5e-4
case="another word"
expect 1 "tuning=on" "$mxlua" scripts/train.lua $words tuning=on

end
