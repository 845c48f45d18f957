#!/bin/sh
# Ranks that die, raise, end or go astray while others wait for them: every run ends soon, with a failure and the culprit.
# test_faults.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

# on RANKS SECONDS CODE: runs the Lua code from a file, which must fail within so many seconds.
on() {
    printf 'local mx = require "mx"\nlocal rank = mx.rank()\n%s\n' "$3" >fault.lua
    start=$(date +%s%N)
    run "$mpirun" -n "$1" "$mxlua" --threads 1 fault.lua
    tenths=$((($(date +%s%N) - start) / 100000000))
    lacks "expected a failure" [ "$status" -eq 0 ]
    holds "took $((tenths / 10)).$((tenths % 10)) s, expected at most $2 s" [ $tenths -le $(($2 * 10 * factor)) ]
}

# Files that MPI leaves in shared memory, and processes of ours that are still there, after 2 s at most: what other runs
# have there comes and goes.
leaves_nothing() {
    for _ in 1 2 3 4; do
        left=$(ls /dev/shm 2>/dev/null | grep -Ei 'mpi|ucx')$(echo "$folder" | grep -lsf - /proc/[0-9]*/cmdline)
        [ "$left" != "$shared" ] || break
        sleep 0.5
    done
    holds "still there: $left" [ "$left" = "$shared" ]
}

kill_me='os.execute("kill -9 " .. io.open("/proc/self/stat"):read("n"))'
spin='local stop = mx.now() + 30 while mx.now() < stop do end'
shared=$(ls /dev/shm 2>/dev/null | grep -Ei 'mpi|ucx') # by a run before ours
grid='mx.mesh_define{{name = "x", ici = 2, dcn = 1}, {name = "y", ici = 2, dcn = 1}}
mx.barrier("x") mx.barrier("y") mx.barrier()'

case="nothing is wrong"
: >none.lua
run "$mpirun" -n 2 "$mxlua" --threads 1 -e "mx.barrier()" "$folder/none.lua"
works
leaves_nothing

case="killed while others wait"
for _ in 1 2 3; do
    on 3 3 "mx.all_reduce(mx.ones{3}) if rank == 1 then $kill_me end mx.all_reduce(mx.ones{3})"
    matches "rank 1 (process [0-9]*) has died"
    leaves_nothing
done

case="killed while others compute"
for _ in 1 2 3; do
    on 2 3 "mx.barrier() if rank == 1 then $kill_me end $spin"
    matches "rank 1 (process [0-9]*) has died"
done

case="killed while others print"
for _ in 1 2 3; do
    on 3 3 "mx.barrier() if rank == 1 then os.execute('sleep 0.2') $kill_me end while true do print(1) end"
    matches "rank 1 (process [0-9]*) has died"
done

case="crashed" # UCX prints its own words, which make mpirun look for the dead
for _ in 1 2 3; do
    on 2 3 "mx.barrier() if rank == 1 then $(echo "$kill_me" | sed s/-9/-SEGV/) end $spin"
    matches "rank 1 (process [0-9]*) has died"
done

case="killed while others send tokens to their experts"
on 2 4 "local c = mx.config.load{'model_name=tiny-moe', 'ici_fsdp_parallelism=1', 'ici_expert_parallelism=2'}
local mesh = mx.train.mesh(c)
local model, data = mx.models.new(c, mesh), mx.data.open(c, mesh)
local send, calls = model.parallel.send_rows, 0
function model.parallel.send_rows(...)
    calls = calls + 1
    if rank == 1 and calls == 3 then $kill_me end
    return send(...)
end
for _ = 1, 9 do mx.train.gradients(model, data, 1) end"
matches "rank 1 (process [0-9]*) has died"
leaves_nothing

case="killed while others exchange rows"
for share in 0 1; do
    MXLUA_SHARE=$share on 3 3 "local counts = mx.full({3, 3}, 200, 'i32')
for i = 1, 1000 do
    local step <close> = mx.step()
    local y = mx.all_to_all_rows(mx.ones{600, 300}, counts, {rows = 600, async = true})
    if rank == 1 and i == 5 then $kill_me end
    mx.all_to_all_rows(y, counts, {rows = 600, back = true, async = true})
end"
    matches "rank 1 (process [0-9]*) has died"
    leaves_nothing
done

case="more rows than a buffer has" # all 2 x 2 x 512 rows to the four experts of rank 0, whose even share is half of them
for ring in false true; do
    on 2 4 "local c = mx.config.load{'model_name=tiny-moe', 'ici_fsdp_parallelism=1', 'ici_expert_parallelism=2',
    'routed_score_func=sigmoid', 'routed_bias=true', 'ragged_buffer_factor=1.5', 'use_ring_of_experts=$ring'}
local mesh = mx.train.mesh(c)
local model = mx.models.new(c, mesh)
for _, bias in pairs(model.buffers) do mx.copy(bias, mx.tensor{9, 9, 9, 9, 0, 0, 0, 0}) end
mx.train.gradients(model, mx.data.open(c, mesh), 1)"
    matches "get.* 2048 rows, but .* buffer has rows = 1536: give it more (for a model: a larger ragged_buffer_factor, or -1)"
done

case="killed when the others have ended"
on 3 3 "mx.barrier() if rank == 1 then os.execute('sleep 0.3') $kill_me end"
matches "rank 1 (process [0-9]*) has died"

case="mpirun is told to end"
printf 'local mx = require "mx"\nmx.barrier()\nwhile true do mx.barrier() end\n' >forever.lua
for signal in TERM INT; do
    start=$(date +%s%N)
    timeout --preserve-status -k 20 -s $signal 1 "$mpirun" -n 3 "$mxlua" --threads 1 "$folder/forever.lua" >out 2>&1
    status=$?
    seconds=$((($(date +%s%N) - start) / 1000000000))
    # The status is Hydra's own, which is 0 now and then, for any MPI program.
    holds "expected at most 2 s more" [ $seconds -le $((3 * factor)) ]
    leaves_nothing
done

case="an error while others wait"
for call in 'mx.all_reduce(mx.ones{3})' 'mx.barrier()' 'mx.share_text("x", 1)' \
    'mx.all_reduce(mx.ones{3}, {async = true}):wait()'; do
    on 3 3 "if rank == 1 then error('gone wrong') end $call"
    has "rank 1: fault.lua:3: gone wrong"
done

case="ends while others wait"
for leave in 'return' 'os.exit(0)' 'os.exit(true, true)'; do
    on 2 3 "if rank == 1 then $leave end mx.all_reduce(mx.ones{3})"
    has "rank 1 has ended, and rank 0 waits for it in all_reduce of 3 f32 over all ranks at fault.lua:3"
done
on 2 3 "if rank == 1 then return end mx.barrier()"
has "rank 1 has ended, and rank 0 waits for it in barrier over all ranks at fault.lua:3"
on 2 3 "mx.barrier()
if rank == 1 then return end
mx.share_text('x')"
has "rank 1 has ended, and rank 0 waits for it in broadcast of 8 u8 over all ranks at fault.lua:5"

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
on 2 3 "mx.all_reduce(mx.ones({3}, rank == 0 and 'bf16' or 'f32'))"
has "rank 0 does all_reduce of 3 bf16 over all ranks at fault.lua:3"
has "rank 1 does all_reduce of 3 f32 over all ranks at fault.lua:3"
for differ in 'all_reduce(mx.ones(table.unpack(rank == 0 and {2, 3} or {3, 2})))@shape (2, 3), sum@shape (3, 2), sum' \
    'all_gather(mx.ones{2, 2}, {dim = 1 + rank})@shape (4, 2), dim 1@shape (2, 4), dim 2' \
    'reduce_scatter(mx.ones{2, 2}, {dim = 1 + rank})@shape (2, 2), sum, dim 1@shape (2, 2), sum, dim 2' \
    'all_to_all(mx.ones{2, 2}, {split = 1 + rank, concat = 2})@shape (2, 2), split 1, concat 2@split 2, concat 2' \
    'all_to_all(mx.ones{2 + 2 * rank, 4 - 2 * rank}, {split = 1, concat = 2})@shape (2, 4)@shape (4, 2)' \
    'all_to_all_(mx.ones{2, 2}, {dim = 1 + rank})@split 1, concat 1@split 2, concat 2' \
    'all_reduce(mx.ones{2}, {op = rank == 0 and "max" or "mean"})@shape (2), max@shape (2), mean' \
    'broadcast(mx.ones{2}, {root = rank})@root 0@root 1'; do
    on 2 3 "mx.${differ%%@*}"
    matches "rank 0 does .*$(echo "$differ" | cut -d@ -f2 | sed 's/[()]/./g').*rank 1 does .*${differ##*@}"
done

case="messages"
on 3 3 "if rank == 1 then return elseif rank == 0 then mx.recv(mx.ones{3}, {from = 1}):wait() else mx.barrier() end"
has "rank 1 has ended, and rank 0 waits for it in the first message over all ranks at fault.lua:3"
on 2 4 "if rank == 0 then mx.send(mx.ones{3}, {to = 1}) else mx.recv(mx.ones{3}, {from = 0}) end
mx.barrier() if rank == 1 then return end mx.recv(mx.ones{3}, {from = 1}):wait()"
has "rank 1 has ended, and rank 0 waits for it in recv f32 (3) from rank 1 over all ranks at fault.lua:4"
on 2 3 "mx.send(mx.ones{3}, {to = 1 - rank}):wait() mx.barrier()"
matches "the ranks differ: rank . does send f32 (3) to rank . over all ranks at fault.lua:3, rank . does send f32 (3) to rank"
on 2 3 "if rank == 0 then mx.send(mx.ones{3}, {to = 1}) else mx.recv(mx.ones{4}, {from = 0}) end mx.barrier()"
has "does recv f32 (4) from rank 0 over all ranks at fault.lua:3"
on 2 3 "if rank == 0 then mx.send(mx.ones{2, 3}, {to = 1}) else mx.recv(mx.ones{3, 2}, {from = 0}) end mx.barrier()"
has "does send f32 (2, 3) to rank 1 over all ranks at fault.lua:3"
has "does recv f32 (3, 2) from rank 0 over all ranks at fault.lua:3"
on 2 6 "mx.comm_options{timeout_s = 2}
if rank == 0 then mx.send(mx.ones{3}, {to = 1}) else mx.recv(mx.ones{3}, {from = 0}) end
mx.barrier()
if rank == 0 then mx.recv(mx.ones{5}, {from = 1}):wait() end
$spin"
has "has not finished within collective_timeout_s = 2 s"
matches "waits since .* for rank 1 in message 2: recv f32 (5) from rank 1 over all ranks at fault.lua:6"
has "last finished, message 1: recv f32 (3) from rank 0 over all ranks"
on 2 3 "if rank == 1 then $kill_me end mx.recv(mx.ones{3}, {from = 1}):wait()"
matches "rank 1 (process [0-9]*) has died"

case="the first collective along an axis"
on 4 3 "${grid%%mx.barrier*}
if rank == 1 then return end
mx.all_reduce(mx.ones{3}, {axis = 'y'})"
has "rank 1 has ended, and rank 0 waits for it in the first all_reduce over y at fault.lua:6"
on 4 4 "${grid%%mx.barrier*}
if rank == 1 then mx.barrier() end
mx.all_reduce(mx.ones{3}, {axis = 'y'}) $spin"
has "rank 1 does barrier over all ranks at fault.lua:5"
has "rank 0 does the first all_reduce over y at fault.lua:6"

case="different axes"
on 4 6 "$grid
if rank == 1 then
mx.barrier()
end
mx.all_reduce(mx.ones{3}, {axis = 'y'})
$spin"
has "rank 1 does barrier over all ranks at fault.lua:6"
has "rank 0 does all_reduce of 3 f32 over y at fault.lua:8"
on 4 6 "$grid
mx.all_reduce(mx.ones{3}, {axis = (rank == 0 or rank == 3) and 'x' or 'y'}) -- a circle of four
$spin"
matches "the ranks differ: rank . does all_reduce of 3 f32 over [xy] at fault.lua:5, rank . does all_reduce of 3 f32 over"

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
on 3 5 "mx.comm_options{timeout_s = 2}
mx.barrier()
if rank ~= 1 then mx.all_reduce(mx.ones{7}) end
$spin"
has "has not finished within collective_timeout_s = 2 s"
matches "rank 0: waits since .* all_reduce of 7 f32 over all ranks at fault.lua:5"
has "rank 1: is in no collective"
matches "last finished, collective .* barrier over all ranks at fault.lua:4"

case="nobody waits for it"
on 2 5 "mx.all_reduce(mx.ones{3 + rank}, {async = true})"
matches "the ranks differ: rank . does all_reduce of . f32 over all ranks at fault.lua:3"
on 2 3 "mx.all_reduce(mx.ones{3 + rank}, {async = true}) os.exit(0)"
matches "the ranks differ: rank . does all_reduce of . f32 over all ranks at fault.lua:3"
on 2 3 "if rank == 0 then mx.all_reduce(mx.ones{3}, {async = true}) end"
has "rank 1 has ended, and rank 0 waits for it in all_reduce of 3 f32 over all ranks at fault.lua:3"

case="between machines"
export MXLUA_NODE_RANKS=1
for call in 'mx.all_reduce(mx.ones{3})' 'mx.barrier()' 'mx.share_text("x", 1)' \
    'mx.all_reduce(mx.ones{3}, {async = true}):wait()'; do
    on 2 3 "if rank == 1 then error('gone wrong') end $call"
    has "rank 1: fault.lua:3: gone wrong"
done
for leave in 'return' 'os.exit(0)' 'os.exit(true, true)'; do
    on 3 4 "mx.all_reduce(mx.ones{3}) if rank == 1 then $leave end mx.all_reduce(mx.ones{3})"
    matches "rank 1 has ended, and rank . waits for it in all_reduce of 3 f32 over all ranks at fault.lua:3"
done
for call in 'mx.barrier()' 'mx.comm_options{debug = true} mx.all_reduce(mx.ones{3})'; do
    on 3 4 "mx.barrier() if rank == 1 then return end $call"
    matches "rank 1 has ended, and rank . waits for it in .* over all ranks at fault.lua:3"
done
on 2 5 "mx.comm_options{timeout_s = 2}
mx.share_text('x')
if rank == 1 then $spin end
mx.all_reduce(mx.ones{7})"
matches "rank 0: waits since 2.* s for rank 1 in collective .* all_reduce of 7 f32 over all ranks at fault.lua:6"
matches "last finished, collective .* broadcast of 1 u8 over all ranks at fault.lua:4"
on 3 3 "mx.all_reduce(mx.ones{3}) if rank == 1 then $kill_me end $spin"
matches "rank 1 (process [0-9]*) has died"
on 2 5 "mx.comm_options{debug = true} mx.all_reduce(mx.ones{3 + rank})"
has "all_reduce of 4 f32 over all ranks at fault.lua:3"

end
