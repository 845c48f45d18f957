#!/bin/sh
# Runs the fuzz targets whose file name matches: tests/fuzz/run.sh PATTERN TARGET... A target is a libFuzzer executable, $BUILD/fuzz_TARGET, or a
# script, tests/fuzz/fuzz_TARGET.lua. One that finds something prints the input that does it (a script: the words that
# repeat it), and leaves it in $BUILD/found/. Environment: BUILD, MXLUA (runs the scripts), SECONDS (for each target).
set -u

pattern=${1:-.}
shift
build=${BUILD:-build-fuzz}
seconds=${SECONDS:-60}
failed=0
matched=0

# Sets cpu to the CPU seconds, user and system, of the shell's children so far. (A subshell would have no children.)
count_cpu() {
    times >"$build/times"
    cpu=$(tr 'ms' '  ' <"$build/times" | awk 'NR == 2 { printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }')
}

run_target() {
    "$build/fuzz_$1" -max_total_time="$seconds" -rss_limit_mb=1024 -malloc_limit_mb=256 -timeout=20 \
        -print_final_stats=1 -artifact_prefix="$build/found/$1-" "$corpus" $(ls -d "tests/fuzz/corpus/$1" 2>/dev/null)
}

# Scripts may write any file, so that they run in a folder of their own, and as nobody where root runs them.
run_script() {
    (
        script=$PWD/tests/fuzz/fuzz_$1.lua mxlua=$PWD/${MXLUA:-build-asan/mxlua} as=
        [ "$(id -u)" -ne 0 ] || as="setpriv --reuid=nobody --regid=nogroup --clear-groups"
        cd "$scratch" && TMPDIR=$scratch ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
            timeout -k 5 $((seconds + 60)) $as \
            "$mxlua" --memory-limit 2G "$script" seed="$(date +%s)" seconds="$seconds" notes="$1-notes" </dev/null
    )
}

mkdir -p "$build/found"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
[ "$(id -u)" -ne 0 ] || chown nobody "$scratch"
for name in "$@"; do
    echo "fuzz_$name" | grep -Eq -- "${pattern:-.}" || continue
    matched=1
    corpus="$build/corpus/$name"
    mkdir -p "$corpus"
    printf '%-16s ' "$name"
    count_cpu
    cpu_before=$cpu
    run=run_target
    [ ! -e "tests/fuzz/fuzz_$name.lua" ] || run=run_script
    if $run "$name" >"$build/$name.log" 2>&1; then
        count_cpu
        echo "$(sed -n 's/^stat::number_of_executed_units: *//p; s/^\([0-9]*\) passed, 0 failed$/\1/p' "$build/$name.log") inputs" \
            "in $((cpu - cpu_before)) CPU seconds, nothing found"
    else
        failed=1
        echo "FOUND SOMETHING:"
        tail -n 40 "$build/$name.log"
        [ ! -e "$scratch/$name-notes" ] || tee "$build/found/$name-notes" <"$scratch/$name-notes"
    fi
done
[ "$matched" -eq 1 ] || { echo "no target matches '$pattern': there are $*" >&2; exit 2; }
exit $failed
