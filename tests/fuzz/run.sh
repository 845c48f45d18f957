#!/bin/sh
# Runs the fuzz targets: tests/fuzz/run.sh PATTERN TARGET... A target that finds something prints the input that does it,
# and leaves it in $BUILD/found/. Environment: BUILD, SECONDS (for each target).
set -u

pattern=${1:-.}
shift
build=${BUILD:-build-fuzz}
failed=0

# Sets cpu to the CPU seconds, user and system, of the shell's children so far. (A subshell would have no children.)
count_cpu() {
    times >"$build/times"
    cpu=$(tr 'ms' '  ' <"$build/times" | awk 'NR == 2 { printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }')
}

mkdir -p "$build/found"
for name in "$@"; do
    echo "$name" | grep -Eq -- "${pattern:-.}" || continue
    corpus="$build/corpus/$name"
    mkdir -p "$corpus"
    printf '%-16s ' "$name"
    count_cpu
    cpu_before=$cpu
    if "$build/fuzz_$name" -max_total_time="${SECONDS:-60}" -rss_limit_mb=1024 -malloc_limit_mb=256 -timeout=20 \
        -print_final_stats=1 -artifact_prefix="$build/found/$name-" "$corpus" $(ls -d "tests/fuzz/corpus/$name" 2>/dev/null) \
        >"$build/$name.log" 2>&1; then
        count_cpu
        echo "$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") inputs in" \
            "$((cpu - cpu_before)) CPU seconds, nothing found"
    else
        failed=1
        echo "FOUND SOMETHING:"
        tail -n 40 "$build/$name.log"
    fi
done
exit $failed
