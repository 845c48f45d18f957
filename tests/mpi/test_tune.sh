#!/bin/sh
# scripts/tune.lua stores a number of threads, and train.lua tuning=cache uses it and says so.
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

check "nothing is known" 0 "nothing is known of this config with 2 threads" $train tuning=cache
check "tune.lua" 0 "stored in $XDG_CACHE_HOME/mxlua/tuning.json" "$mxlua" --threads 2 scripts/tune.lua $words budget_s=10
check "both points" 0 "1 thread " "$mxlua" --threads 2 scripts/tune.lua $words budget_s=10
# Whatever has won: the file says one thread from here on.
sed -i 's/"threads": *[0-9]*/"threads": 1/; s/"gain": *[-0-9.e]*/"gain": 0.25/' "$XDG_CACHE_HOME/mxlua/tuning.json"
check "the choice is used" 0 "tuning=cache: 1 thread of 2; 25 % less time a step when it was tuned" \
    $train tuning=cache metrics_file=tuned
check "without it" 0 "" $train metrics_file=plain
for name in tuned plain; do
    grep -o '"loss": *[0-9]*[.][0-9]\{3\}' $name >$name.losses # the last bits may differ
done
# Of three steps and the summary.
check "the same losses" 0 "4 the same" sh -c 'cmp tuned.losses plain.losses && echo "$(grep -c . plain.losses) the same"'
check "another batch" 0 "nothing is known" $train tuning=cache per_device_batch_size=3
check "a simulated chip" 0 "a simulated chip has no threads" "$mxlua" scripts/train.lua model_name=tiny hardware=v5e-4 \
    steps=1 tuning=cache
check "one thread" 1 "this process has only one" "$mxlua" --threads 1 scripts/tune.lua $words
check "no chip to tune" 1 "leave the key out" "$mxlua" --threads 2 scripts/tune.lua $words hardware=v5e-4
check "another word" 1 "tuning=on" "$mxlua" scripts/train.lua $words tuning=on

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
