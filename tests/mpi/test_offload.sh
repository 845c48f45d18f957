#!/bin/sh
# What goes wrong with the file of offloaded values, and that nothing is left behind: test_offload.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

limit=$((40 * factor)) # an error that takes longer is a hang
trap 'umount "$folder/small" 2>/dev/null; rm -rf "$folder"' EXIT
mkdir files small

# One line says it, whatever the number of ranks.
says_once() {
    holds "expected one line with '$1'" [ "$(grep -c "$1" out)" -eq 1 ]
}

empty() {
    holds "files are left in $1" [ -z "$(ls -A "$1")" ]
}

# on RANKS DIRECTORY [OPTIONS...]: trains and offloads to the directory.
on() {
    ranks=$1
    directory=$2
    shift 2
    run "$mpirun" -n "$ranks" "$mxlua" --threads 1 "$@" "$root/scripts/train.lua" model_name=tiny steps=5 \
        enable_checkpointing=false remat_policy=minimal_offloaded offload_directory="$directory"
}

for ranks in 1 2; do
    case="a run on $ranks"
    on $ranks files
    exits 0
    empty files

    case="no directory on $ranks"
    on $ranks /nowhere/at/all
    exits 1
    says_once "in /nowhere/at/all: No such file or directory; set offload_directory"

    case="a directory that takes no files on $ranks"
    on $ranks /proc
    exits 1
    says_once "can be made in /proc"

    # The limit is set from inside: MPI's own files are not to meet it.
    case="a file that must not grow on $ranks"
    if command -v prlimit >/dev/null; then
        on $ranks files -e 'os.execute("prlimit --pid $PPID --fsize=65536")'
        exits 1
        has "MiB to a file in files failed: File too large; set offload_directory to a larger disk"
        empty files
    else
        echo "SKIP $case: no prlimit"
    fi

    case="a full disk on $ranks"
    if mount -t tmpfs -o size=128k none small 2>/dev/null; then
        on $ranks small
        exits 1
        has "MiB to a file in small failed: No space left on device; set offload_directory to a larger disk"
        empty small
        umount small
    else
        echo "SKIP $case: a file system cannot be mounted here"
    fi
done

if [ "$(id -u)" -ne 0 ]; then
    case="a directory that may not be written"
    chmod 500 files
    on 1 files
    exits 1
    says_once "Permission denied"
    chmod 700 files
fi

case="a run that is killed"
cat >killed.lua <<'END'
local mx = require "mx"
mx.offload_open("files")
local x = mx.ones({ 1000 }):requires_grad()
local y = mx.remat({ inner = "offload" }, function(t) return mx.sin(mx.name(t * t, "inner")) end, x)
print(mx.offload_stats().away_bytes > 0, y:size(1))
io.stdout:flush()
os.execute("kill -9 $PPID")
END
run "$mxlua" killed.lua
exits 137
has "true	1000"
empty files

end
