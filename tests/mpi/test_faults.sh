#!/bin/sh
# Ranks that die, raise, end or go astray while others wait for them: every run ends soon, with a failure and the culprit.
# test_faults.sh MXLUA [MPIRUN]
set -u

mxlua=$(realpath "$1")
mpirun=${2:-mpirun}
factor=${TIME_FACTOR:-1}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

passed=0
failed=0

check() {
    if [ "$1" = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s: %s\n  status %s after %s s, output:\n%s\n' "$case" "$2" "$status" "$seconds" "$(head -n 20 out)"
    fi
}

# on RANKS SECONDS CODE: runs the Lua code from a file, which must fail within so many seconds.
on() {
    printf 'local mx = require "mx"\nlocal rank = mx.rank()\n%s\n' "$3" >fault.lua
    start=$(date +%s%N)
    timeout -s KILL 60 "$mpirun" -n "$1" "$mxlua" --threads 1 fault.lua >out 2>&1
    status=$?
    tenths=$((($(date +%s%N) - start) / 100000000))
    seconds=$((tenths / 10)).$((tenths % 10))
    if [ "$status" -ne 0 ]; then check yes; else check no "expected a failure"; fi
    if [ $tenths -le $(($2 * 10 * factor)) ]; then check yes; else check no "expected at most $2 s"; fi
}

has() {
    if grep -q -- "$1" out; then check yes; else check no "no '$1' in the output"; fi
}

kill_me='os.execute("kill -9 " .. io.open("/proc/self/stat"):read("n"))'
spin='local stop = mx.now() + 30 while mx.now() < stop do end'

case="killed while others wait"
for _ in 1 2 3; do
    on 3 5 "mx.all_reduce(mx.ones{3}) if rank == 1 then $kill_me end mx.all_reduce(mx.ones{3})"
    has "rank 1 (process [0-9]*) has died"
done

case="killed while others compute"
on 2 5 "mx.barrier() if rank == 1 then $kill_me end $spin"
has "rank 1 (process [0-9]*) has died"

case="an error while others wait"
for call in 'mx.all_reduce(mx.ones{3})' 'mx.barrier()' 'mx.share_text("x", 1)' \
    'mx.all_reduce(mx.ones{3}, {async = true}):wait()'; do
    on 3 5 "if rank == 1 then error('gone wrong') end $call"
    has "rank 1: fault.lua:3: gone wrong"
done

case="ends while others wait"
for leave in 'return' 'os.exit(0)' 'os.exit(true, true)'; do
    on 2 5 "if rank == 1 then $leave end mx.all_reduce(mx.ones{3})"
    has "rank 1 has ended, and rank 0 waits for it in all_reduce of 3 f32 over all ranks at fault.lua:3"
done
on 2 5 "if rank == 1 then return end mx.barrier()"
has "rank 1 has ended, and rank 0 waits for it in barrier"

case="different collectives"
on 2 5 "if rank == 1 then
mx.all_gather(mx.ones{3})
else
mx.all_reduce(mx.ones{3})
end"
has "all_reduce of 3 f32 over all ranks at fault.lua:6"
has "all_gather of 3 f32 over all ranks at fault.lua:4"
on 2 5 "mx.all_reduce(mx.ones{3 + rank})"
has "all_reduce of 4 f32 over all ranks at fault.lua:3"
has "all_reduce of 3 f32 over all ranks at fault.lua:3"

case="the same call at two places"
on 2 5 "mx.comm_options{debug = true}
if rank == 1 then
mx.all_reduce(mx.ones{3})
else
mx.all_reduce(mx.ones{3})
end"
has "at fault.lua:5"
has "at fault.lua:7"

case="skipped on one rank"
on 3 8 "mx.comm_options{timeout_s = 2}
mx.barrier()
if rank ~= 1 then mx.all_reduce(mx.ones{7}) end
$spin"
has "has not finished within collective_timeout_s = 2 s"
has "rank 0: waits since .* all_reduce of 7 f32 over all ranks at fault.lua:5"
has "rank 1: is in no collective"
has "last finished, collective .* barrier over all ranks at fault.lua:4"

case="nobody waits for it"
on 2 5 "mx.all_reduce(mx.ones{3 + rank}, {async = true})"
has "the ranks differ"

case="between machines"
export MXLUA_NODE_RANKS=1
on 2 5 "if rank == 1 then error('gone wrong') end mx.all_reduce(mx.ones{3})"
has "rank 1: fault.lua:3: gone wrong"
on 2 8 "mx.comm_options{timeout_s = 2} if rank == 1 then $spin end mx.all_reduce(mx.ones{7})"
has "rank 0: waits since .* all_reduce of 7 f32 over all ranks at fault.lua:3"
on 2 5 "mx.comm_options{debug = true} mx.all_reduce(mx.ones{3 + rank})"
has "all_reduce of 4 f32 over all ranks at fault.lua:3"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
