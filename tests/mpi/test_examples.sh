#!/bin/sh
# The scripts of scripts/examples: each reaches the figure that it names, or says that it does not.
# test_examples.sh MXLUA [MPIRUN]
set -u

mxlua=$(realpath "$1")
mpirun=${2:-mpirun}
examples=$(realpath "$(dirname "$0")/../../scripts/examples")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

passed=0
failed=0

# check NAME STATUS COMMAND...
check() {
    name=$1
    expected=$2
    shift 2
    timeout -k 2 $((60 * ${TIME_FACTOR:-1})) "$@" >out 2>&1
    status=$?
    if [ $status -eq "$expected" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s: status %s, expected %s\n' "$name" "$status" "$expected"
        sed 's/^/    /' out
    fi
}

for file in "$examples"/*.lua; do
    name=$(basename "$file")
    case $name in
    diloco.lua | gpipe.lua) check "$name on 2" 0 "$mpirun" -n 2 "$mxlua" --threads 1 "$file" ;;
    *) check "$name" 0 "$mxlua" --threads 1 "$file" ;;
    esac
    lines=$(wc -l <"$file")
    check "$name has $lines lines" 0 [ "$lines" -le 60 ]
done
# A figure that is not reached ends with status 1.
check "alibi.lua after two steps" 1 "$mxlua" --threads 1 "$examples/alibi.lua" steps=2

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
