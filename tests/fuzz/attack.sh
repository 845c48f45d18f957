#!/bin/sh
# Attacks the scripts with what a careless or hostile user might give them: tests/fuzz/attack.sh KIND [COUNT [SEED]]
#
#   words    COUNT (2000) random command lines of attack_words.lua
#   files    COUNT (300) forged files of attack_files.lua, each given to the script that reads its kind
#   faults   COUNT (100) runs under limits of the system, without room or rights, or ended by signals
#
# Each run must end by itself within LIMIT seconds (10), without a crash, without a Lua traceback, with exit status 0 or
# with one error line; and nothing may be written outside its folder. Runs that fail this are printed with the command
# that repeats them. Everything runs in a scratch folder, as nobody where root starts it, one process at a time.
# Environment: MXLUA (build/mxlua), MPIRUN, LIMIT, KEEP=1 (leaves the scratch folder).
set -u

kind=${1:-}
seed=${3:-1}
case $kind in
words) count=${2:-2000} ;;
files) count=${2:-300} ;;
faults) count=${2:-100} ;;
*)
    sed -n '2,13s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac

root=$(cd "$(dirname "$0")/../.." && pwd)
mxlua=$(realpath "${MXLUA:-$root/build/mxlua}")
mpirun=${MPIRUN:-mpirun}
limit=${LIMIT:-10}
as=
scratch=$(mktemp -d)
chmod 755 "$scratch"
mkdir -p "$scratch/in/run" "$scratch/log"
: >"$scratch/begin"
if [ "$(id -u)" -eq 0 ]; then
    as="setpriv --reuid=nobody --regid=nogroup --clear-groups"
    chown -R nobody "$scratch/in"
fi
[ "${KEEP:-}" ] || trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
out=$scratch/log/out
bad=0
runs=0

# try BEFORE COMMAND [killed]: runs a shell command in an empty folder as the unprivileged user, and judges it. BEFORE are
# shell commands that prepare it ("ulimit -n 20;"). "killed": a signal may end it, or MPI's launcher fail.
try() {
    runs=$((runs + 1))
    rm -rf "$scratch/in/run"
    mkdir "$scratch/in/run"
    [ -z "$as" ] || chown nobody "$scratch/in/run"
    start=$(date +%s)
    # shellcheck disable=SC2086 # `as` is words
    (cd "$scratch/in/run" && env TMPDIR="$scratch/in/run" HOME="$scratch/in/run" OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 \
        timeout -k 2 $((limit + 5)) $as sh -c "ulimit -t 60; ulimit -f 400000; ulimit -c 0; $1 $2" >"$out" 2>&1 </dev/null)
    status=$?
    reason=
    if [ $(($(date +%s) - start)) -ge $((limit + 5)) ]; then
        reason="no end within $limit s"
    elif grep -Eq 'Sanitizer|runtime error: |Caught signal|Segmentation|stack smashing|free\(\)|corrupted' "$out"; then
        reason="crash"
    elif [ $status -ge 128 ] && [ $status -lt 160 ] && [ "${3:-}" != killed ]; then
        reason="ended by signal $((status - 128))"
    elif grep -q 'stack traceback' "$out"; then
        reason="Lua traceback"
    elif [ $status -ne 0 ] && ! [ -s "$out" ] && [ "${3:-}" != killed ]; then
        reason="status $status without a word"
    elif [ $status -eq 0 ] && grep -q '^mxlua: rank' "$out"; then
        reason="an error and status 0"
    fi
    [ -n "$reason" ] || return 0
    bad=$((bad + 1))
    echo "FAIL ($reason, status $status): $1 $2"
    grep -v '^$' "$out" | tail -n 6 | cut -c1-300 | sed 's/^/    | /'
}

attack_words() {
    "$mxlua" "$root/tests/fuzz/attack_words.lua" "$seed" "$count" >"$scratch/log/lines"
    while read -r script words; do
        try "" "'$mxlua' --memory-limit 1G '$root/scripts/$script.lua' $words"
    done <"$scratch/log/lines"
}

# The good files are copies that the forger reads; $good, $forged and $seed of one run.
attack_files() {
    golden=$root/tests/golden
    tiny="model_name=tiny max_target_length=16 per_device_batch_size=1 steps=1 enable_checkpointing=false"
    work=$scratch/in/good
    mkdir -p "$work"
    [ -z "$as" ] || chown nobody "$work"
    # shellcheck disable=SC2086
    (
        cd "$work" && printf '{"text": "some words for a line"}\n%.0s' 1 2 3 4 5 6 7 8 9 >lines.jsonl &&
            cp "$golden/tokenizer_qwen2.json" tokenizer.json && cp "$root/configs/models/tiny.yml" tiny.yml &&
            $as "$mxlua" --threads 1 "$root/scripts/prepare.lua" input=lines.jsonl out=store.h5
        $as "$mxlua" --threads 1 "$root/scripts/train.lua" model_name=tiny max_target_length=16 steps=2 run_name=saved \
            base_output_directory=. checkpoint_period=1
    ) >"$scratch/log/good" 2>&1
    if [ ! -e "$work/store.h5" ] || [ ! -e "$work/saved" ]; then
        cat "$scratch/log/good"
        exit 1
    fi
    n=0
    while [ $n -lt "$count" ]; do
        n=$((n + 1))
        # shellcheck disable=SC2016 # run by `try`
        case $((n % 10)) in
        0) good=$work/tokenizer.json forged=tokenizer.json use="prepare.lua input=l.jsonl out=o.h5 tokenizer=tokenizer.json" ;;
        1) good=$(find "$golden/weights/qwen3" -name '*.safetensors' | head -n 1) forged=m/model.safetensors use="generate.lua parameters=m prompt=a tokens=1" ;;
        2) good=$golden/weights/qwen3.gguf forged=m.gguf use="generate.lua parameters=m.gguf prompt=a tokens=1" ;;
        3) good=$work/store.h5 forged=s.h5 use="train.lua $tiny vocab_size=512 dataset_type=hdf5 dataset_path=s.h5" ;;
        4) good=$work/lines.jsonl forged=l.jsonl use="prepare.lua input=l.jsonl out=o.h5" ;;
        5) good=$work/tiny.yml forged=c.yml use="train.lua c.yml max_target_length=16 steps=1 enable_checkpointing=false" ;;
        6) good=$(find "$work/saved" -name index.json | head -n 1) forged=saved/x/index.json use="checkpoint.lua verify saved" ;;
        7) good=$(find "$work/saved" -name '*.h5' -o -name 'rank*' -type f | head -n 1) forged=part use="checkpoint.lua verify saved" ;;
        8) good=$golden/weights/qwen3/config.json forged=m/config.json use="generate.lua parameters=m prompt=a tokens=1" ;;
        9) good=$golden/gpt2.h5 forged=p.h5 use="generate.lua $tiny parameters=p.h5 prompt=a tokens=1" ;;
        esac
        make_place="mkdir -p m; cp '$work/lines.jsonl' l.jsonl; cp -r '$work/saved' . 2>/dev/null; cp '$golden'/weights/qwen3/* m/;"
        [ "$forged" != saved/x/index.json ] || forged=saved${good#"$work/saved"}
        [ "$forged" != part ] || forged=saved${good#"$work/saved"}
        try "$make_place '$mxlua' '$root/tests/fuzz/attack_files.lua' '$good' '$forged' $((seed * 100000 + n));" \
            "'$mxlua' --threads 1 --memory-limit 1G '$root/scripts/'$use"
    done
}

attack_faults() {
    train="'$mxlua' --threads 1 '$root/scripts/train.lua' model_name=tiny max_target_length=16 steps=3 run_name=r \
base_output_directory=. checkpoint_period=1"
    long="'$mxlua' --threads 1 '$root/scripts/train.lua' model_name=tiny max_target_length=16 steps=100000 run_name=r \
base_output_directory=. checkpoint_period=50"
    ranks="$mpirun -n 2 $train"
    n=0
    while [ $n -lt "$count" ]; do
        n=$((n + 1))
        wait=$(echo "$n" | awk '{ printf "%.1f", ($1 % 17) / 5 }')
        case $((n % 20)) in
        0) try "ulimit -v $((n * 10000 + 100000));" "$train" ;;
        1) try "ulimit -n $((n % 30 + 6));" "$train" ;;
        2) try "ulimit -f $((n % 7 * 50 + 8));" "$train" ;;
        3) try "ulimit -v $((n * 20000 + 300000));" "$ranks" killed ;;
        4) try "ulimit -n $((n % 30 + 10));" "$ranks" killed ;;
        5) try "" "$train metrics_file=/dev/full" ;;
        6) try "" "$train trace_file=/dev/full" ;;
        7) try "" "$train report_file=/dev/full" ;;
        8) try "mkdir r; chmod 555 r;" "$train" ;;
        9) try "chmod 555 .;" "$train" ;;
        10) try "ln -s /nowhere r;" "$train" ;;
        11) try "mkdir r; ln -s /etc/passwd r/config.yml; ln -s /etc/passwd r/metrics.jsonl;" "$train" ;;
        12) try "export TMPDIR=/nowhere;" "$train remat_policy=minimal_offloaded" ;;
        13) try "export TMPDIR=/proc;" "$ranks" ;;
        14) try "(sleep $wait; kill -TERM \$\$) & exec" "$long" killed ;;
        15) try "(sleep $wait; kill -INT \$\$) & exec" "$long" killed ;;
        16) try "(sleep $wait; kill -HUP \$\$) & exec" "$long" killed ;;
        17) try "(sleep $wait; kill -KILL \$\$) & exec" "$long" killed ;;
        18) try "(sleep $wait; pkill -KILL -u \$(id -u) -n -f steps=100000) &" "$mpirun -n 2 $long" killed ;;
        19) try "ulimit -u 3;" "$train" killed ;;
        esac
    done
}

"attack_$kind"

# What the runs have left elsewhere. (As nobody, who owns nothing else that is new.)
if [ -n "$as" ]; then
    find / -xdev \( -path /proc -o -path "$scratch" \) -prune -o -user nobody -newer "$scratch/begin" -print >"$scratch/log/outside" 2>/dev/null
    find /dev/shm -user nobody -newer "$scratch/begin" -print >>"$scratch/log/outside"
    if [ -s "$scratch/log/outside" ]; then
        bad=$((bad + 1))
        echo "FAIL: written outside the folder:"
        sed 's/^/    | /' "$scratch/log/outside"
    fi
fi
echo "$((runs > bad ? runs - bad : 0)) passed, $bad failed"
[ $bad -eq 0 ]
