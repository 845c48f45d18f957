#!/bin/sh
# The scripts of scripts/examples: each reaches the figure that it names, or says that it does not.
# test_examples.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

examples=$root/scripts/examples
for file in "$examples"/*.lua; do
    case=$(basename "$file")
    case $case in
    diloco.lua | gpipe.lua) run "$mpirun" -n 2 "$mxlua" --threads 1 "$file" ;;
    *) run "$mxlua" --threads 1 "$file" ;;
    esac
    works
    lines=$(wc -l <"$file")
    holds "it has $lines lines" [ "$lines" -le 60 ]
done
case="a figure that is not reached"
run "$mxlua" --threads 1 "$examples/alibi.lua" steps=2
exits 1

end
