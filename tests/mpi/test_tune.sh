#!/bin/sh
# scripts/tune.lua stores threads, remat_policy and passes, and train.lua tuning=cache uses them and says so.
# test_tune.sh MXLUA [MPIRUN]
set -u

mxlua=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
export XDG_CACHE_HOME="$folder/cache"
words="model_name=tiny dataset_type=synthetic per_device_batch_size=2"

passed=0
failed=0

# check NAME STATUS TEXT COMMAND...: the command ends with this status and prints this text.
check() {
    name=$1
    expected=$2
    text=$3
    shift 3
    timeout -k 2 $((60 * ${TIME_FACTOR:-1})) "$@" >out 2>&1
    status=$?
    if [ $status -eq "$expected" ] && grep -qF -- "$text" out; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s: status %s, expected %s and "%s"\n' "$name" "$status" "$expected" "$text"
        sed 's/^/    /' out
    fi
}

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

check "nothing is known" 0 "nothing is known of this config with 2 threads" $train tuning=cache
check "no time" 0 "nothing is stored; budget_s= gives more seconds" "$mxlua" --threads 2 scripts/tune.lua $words \
    budget_s=0.001
check "still nothing" 0 "nothing is known of this config with 2 threads" $train tuning=cache
check "tune.lua" 0 "stored in $XDG_CACHE_HOME/mxlua/tuning.json" "$mxlua" --threads 2 scripts/tune.lua $words budget_s=10
cp out shown
check "fewer threads" 0 "remat_policy=full, 1 thread " cat shown
check "other policies" 0 "remat_policy=" grep -v "remat_policy=full" shown
check "without it" 0 "" $train metrics_file=plain
choose 2 full
check "the config's own" 0 "tuning=cache: nothing was faster than remat_policy=full, 2 threads when it was tuned" \
    $train tuning=cache
choose 1 none
check "the choice is used" 0 "tuning=cache: remat_policy=none, 1 thread; 25 % less time a step when it was tuned" \
    $train tuning=cache metrics_file=tuned
cp out shown
check "the policy" 0 "remat_policy: none" cat shown
check "the same losses" 0 "4 the same" sh same_losses.sh
choose 1 "minimal, 2 passes of 1"
check "passes" 0 "tuning=cache: remat_policy=minimal, 2 passes of 1, 1 thread; 25 %" $train tuning=cache metrics_file=tuned
cp out shown
check "the batch" 0 "gradient_accumulation_steps: 2" cat shown
check "the same losses in passes" 0 "4 the same" sh same_losses.sh
choose 2 none
# With "none" a step needs 1.90 MB, with "full" 1.84.
check "no memory for it" 0 "remat_policy=none, 2 threads was fastest, but does not fit in memory now" \
    "$mxlua" --threads 2 --memory-limit 1850K -e "mx.config.load { '$(echo $words | sed "s/ /', '/g")', 'steps=3',
        'enable_checkpointing=false', 'tuning=cache' }"
check "a policy of one's own" 0 "nothing is known" $train tuning=cache remat_policy=full
check "another batch" 0 "nothing is known" $train tuning=cache per_device_batch_size=3
check "a simulated chip" 0 "a simulated chip has nothing to tune" "$mxlua" scripts/train.lua model_name=tiny hardware=v5e-4 \
    steps=1 tuning=cache
check "the words of a later run" 0 "remat_policy=full, 2 threads " "$mxlua" --threads 2 scripts/tune.lua $words \
    tuning=cache budget_s=1
check "two ranks" 0 "points to time, at most 1.0s" "${2:-mpirun}" -n 2 "$mxlua" --threads 1 scripts/tune.lua $words \
    budget_s=1
check "nothing to choose" 1 "nothing is left to choose: this process has one thread" "$mxlua" --threads 1 \
    scripts/tune.lua $words remat_policy=full gradient_accumulation_steps=1
check "no chip to tune" 1 "leave the key out" "$mxlua" --threads 2 scripts/tune.lua $words hardware=v5e-4
check "another word" 1 "tuning=on" "$mxlua" scripts/train.lua $words tuning=on

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
