#!/bin/sh
# Runs the tests of a build: tests/run.sh [BUILD [PATTERN]]
#
# A suite is one of
#   - a program of tests/c,
#   - a file of tests/lua,
#   - a fuzzer of tests/fuzz written in Lua; its first line gives the number of calls: "-- short: calls=2000",
#   - a file of tests/mpi on one number of ranks. Its first line gives these numbers: "-- ranks: 1 2 3". With a second
#     line "-- nodes: 2" it runs once more as if every 2 ranks were a node, on numbers above 2. With a third line
#     "-- staged: 2 3" it runs once more on these numbers with tensors that ranks do not share.
# A file of tests/lua with a line "-- guarded", and one of tests/mpi with "-- guarded: 2", runs once more (on this number
# of ranks) on a host whose tensor memory only the device can touch. A program of tests/c of which there is one more that
# ends in _emulated, and a file of tests/lua with a line "-- emulated", run once more on emulated tiles (tests/amx).
# Each suite runs in its own process under a time limit and prints "N passed, N failed" last. A crash, a time-out or a
# missing last line counts as one more failure. PATTERN (grep -E) chooses suites by name.
#
# The shell suites of tests/mpi start programs and mostly wait for them. They run beside all others, and their lines are
# printed together after those.
#
# Environment variables: SUITES ("c lua fuzz mpi"), TIMEOUT (seconds for each suite), TIME_FACTOR (for slow builds), MPIRUN.
set -u

build=${1:-build}
pattern=${2:-.}
timeout=$((${TIMEOUT:-300} * ${TIME_FACTOR:-1}))
mpirun=${MPIRUN:-mpirun}
scratch=$(mktemp -d)
log=$scratch/log
counts_of_all=$scratch/counts # a line for each suite: passed, failed
failures=$scratch/failures
mkdir "$scratch/fuzz"
: >"$counts_of_all" >"$failures"
shells=
trap '[ -z "$shells" ] || kill "$shells" 2>/dev/null; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

cd "$(dirname "$0")/.." || exit 1

# suite NAME COMMAND...: runs it and adds its counts.
suite() {
    name=$1
    shift
    echo "$name" | grep -Eq -- "$pattern" || return 0
    start=$(date +%s%N)
    timeout -k 5 "$timeout" "$@" >"$log" 2>&1 </dev/null
    status=$?
    tenths=$((($(date +%s%N) - start) / 100000000))
    counts=$(grep -aEo '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    good=${counts%% passed*}
    bad=${counts##*passed, }
    bad=${bad%% failed*}
    reason=
    if [ $status -eq 124 ] || [ $status -eq 137 ]; then
        reason="time limit of $timeout s"
    elif [ -z "$counts" ]; then
        reason="no result, exit status $status"
    elif [ $status -ne 0 ] && [ "$bad" -eq 0 ]; then
        reason="exit status $status"
    elif [ $status -eq 0 ] && [ "$bad" -ne 0 ]; then
        reason="exit status 0"
    fi
    [ -z "$reason" ] || bad=$((${bad:-0} + 1))
    echo "${good:-0} ${bad:-0}" >>"$counts_of_all"
    line=$(printf '%-44s %6d ok %4d failed %5d.%d s%s' "$name" "${good:-0}" "${bad:-0}" $((tenths / 10)) $((tenths % 10)) \
        "${reason:+  ($reason)}")
    echo "$line"
    grep -aE '^SKIP' "$log" | sed 's/^/    /'
    if [ "${bad:-0}" -ne 0 ]; then
        {
            echo "$line"
            grep -avE '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 40 | sed 's/^/    | /'
        } | tee -a "$failures" | tail -n +2
    fi
}

wanted() {
    case " ${SUITES:-c lua fuzz mpi} " in *" $1 "*) return 0 ;; esac
    return 1
}

if wanted mpi; then
    (
        log=$scratch/log_of_shells
        for file in tests/mpi/test_*.sh; do
            [ ! -e "$file" ] || suite "mpi/$(basename "$file" .sh)" sh "$file" "$build/mxlua" "$mpirun"
        done
    ) >"$scratch/shells" &
    shells=$!
fi

if wanted c; then
    for source in tests/c/test_*.c; do
        program=$(basename "$source" .c)
        [ ! -e "$source" ] || suite "c/$program" "$build/tests/$program"
        [ ! -e "$build/tests/${program}_emulated" ] ||
            suite "c/$program, emulated tiles" "$build/tests/${program}_emulated"
    done
fi

if wanted lua; then
    for file in tests/lua/test_*.lua; do
        [ -e "$file" ] || continue
        suite "lua/$(basename "$file" .lua)" "$build/mxlua" tests/lua/run.lua "$file"
        if grep -q '^-- guarded$' "$file"; then
            suite "lua/$(basename "$file" .lua), guarded" env MXLUA_GUARD=1 "$build/mxlua" tests/lua/run.lua "$file"
        fi
        if grep -q '^-- emulated$' "$file"; then
            suite "lua/$(basename "$file" .lua), emulated tiles" env ISAS="portable amx" "$build/mxlua_emulated" \
                tests/lua/run.lua "$file"
        fi
    done
fi

if wanted fuzz; then
    for file in tests/fuzz/fuzz_*.lua; do
        # In a folder of its own: it writes files.
        [ ! -e "$file" ] || suite "fuzz/$(basename "$file" .lua)" env -C "$scratch/fuzz" "$(realpath "$build/mxlua")" "$PWD/$file" \
            "$(sed -n '1s/^-- short: //p' "$file")"
    done
fi

if wanted mpi; then
    for file in tests/mpi/test_*.lua; do
        [ -e "$file" ] || continue
        for ranks in $(sed -n '1s/^-- ranks: //p' "$file"); do
            suite "mpi/$(basename "$file" .lua) on $ranks" "$mpirun" -n "$ranks" "$build/mxlua" --threads 1 \
                tests/lua/run.lua "$file"
            for nodes in $(sed -n '2s/^-- nodes: //p' "$file"); do
                [ "$nodes" -lt "$ranks" ] || continue
                suite "mpi/$(basename "$file" .lua) on $ranks, nodes of $nodes" env MXLUA_NODE_RANKS="$nodes" \
                    "$mpirun" -n "$ranks" "$build/mxlua" --threads 1 tests/lua/run.lua "$file"
            done
        done
        for ranks in $(sed -n '3s/^-- staged: //p' "$file"); do
            suite "mpi/$(basename "$file" .lua) on $ranks, staged" env MXLUA_SHARE=0 \
                "$mpirun" -n "$ranks" "$build/mxlua" --threads 1 tests/lua/run.lua "$file"
        done
        for ranks in $(sed -n 's/^-- guarded: //p' "$file"); do
            suite "mpi/$(basename "$file" .lua) on $ranks, guarded" env MXLUA_GUARD=1 \
                "$mpirun" -n "$ranks" "$build/mxlua" --threads 1 tests/lua/run.lua "$file"
        done
    done
fi

if [ -n "$shells" ]; then
    wait "$shells"
    shells=
    cat "$scratch/shells"
fi

passed=$(awk '{ n += $1 } END { print n + 0 }' "$counts_of_all")
failed=$(awk '{ n += $2 } END { print n + 0 }' "$counts_of_all")
if [ $((passed + failed)) -eq 0 ]; then
    echo "no test matches '$pattern'"
    failed=1
fi
# Once more at the end, where whoever sees only the last lines finds them.
if [ -s "$failures" ]; then
    echo
    echo "What failed:"
    cat "$failures"
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
