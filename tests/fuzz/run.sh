#!/bin/sh
# Runs the fuzz targets: tests/fuzz/run.sh PATTERN TARGET... A target that finds something prints the input that does it,
# and leaves it in $BUILD/found/. Environment: BUILD, SECONDS (for each target).
set -u

pattern=${1:-.}
shift
build=${BUILD:-build-fuzz}
failed=0
mkdir -p "$build/found"
for name in "$@"; do
    echo "$name" | grep -Eq -- "${pattern:-.}" || continue
    corpus="$build/corpus/$name"
    mkdir -p "$corpus"
    printf '%-16s ' "$name"
    if "$build/fuzz_$name" -max_total_time="${SECONDS:-60}" -rss_limit_mb=1024 -malloc_limit_mb=256 -timeout=20 \
        -print_final_stats=1 -artifact_prefix="$build/found/$name-" "$corpus" $(ls -d "tests/fuzz/corpus/$name" 2>/dev/null) \
        >"$build/$name.log" 2>&1; then
        echo "$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") inputs, nothing found"
    else
        failed=1
        echo "FOUND SOMETHING:"
        tail -n 40 "$build/$name.log"
    fi
done
exit $failed
