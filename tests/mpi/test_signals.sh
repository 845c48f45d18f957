#!/bin/sh
# Signals and lost launchers: a run saves and ends well, everything else ends at once, and no process is left.
# test_signals.sh MXLUA [MPIRUN]
# With a /dev/shm of our own, we see what our runs leave there, and nobody else's.
if [ -z "${OWN_SHM:-}" ] && unshare -m sh -c 'mount -t tmpfs tmpfs /dev/shm' 2>/dev/null; then
    OWN_SHM=1 exec unshare -m sh -c 'mount -t tmpfs tmpfs /dev/shm && exec sh "$0" "$@"' "$0" "$@"
fi

. "$(dirname "$0")/checks.sh"

# await SECONDS COMMAND...: until it succeeds.
await() {
    tries=$(($1 * 20 * factor))
    shift
    until "$@" 2>/dev/null; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.05
    done
}

# A shell lets its background processes ignore SIGINT; a user's do not.
begin() {
    rm -rf checkpoints out started
    : >out
    all=
    env --default-signal=INT,HUP setsid "$@" >out 2>&1 </dev/null &
    started=$!
}

# The processes below one, and it; only of these any is killed.
family() {
    echo "$1"
    for child in $(ps -o pid= --ppid "$1"); do
        family "$child"
    done
}

none_left() {
    for process in $all; do
        case $(cut -d' ' -f3 "/proc/$process/stat" 2>/dev/null) in
        '' | Z) ;;
        *) return 1 ;;
        esac
    done
}

# Waits for the run; one that goes on is killed, and its status says so.
ended() {
    all="${all:-} $(family $started)"
    await 20 none_left || kill -KILL $all
    wait $started
    status=$?
} 2>/dev/null

words="model_name=tiny dataset_type=text dataset_path=$root/README.md per_device_batch_size=2 max_target_length=32
run_name=x log_period=1 base_num_decoder_layers=1 checkpoint_period=0 steps=1000000"

# train RANKS SCRIPT WORD...: a run in the background that has come to its third step.
train() {
    launcher="$mpirun -n $1"
    [ "$1" -gt 1 ] || launcher=
    script=$2
    shift 2
    # shellcheck disable=SC2086
    begin $launcher "$mxlua" --threads 1 "$script" $words "$@"
    await 20 grep -q "^ *3/1000000" out || check no "did not come to step 3"
}

# member NAME: of the run that was started.
member() {
    for process in $(family "$started"); do
        if [ "$(cat "/proc/$process/comm" 2>/dev/null)" = "$1" ]; then
            echo "$process"
            return
        fi
    done
}

leaves_nothing() {
    await 10 none_left
    holds "processes are left: $(ps -o pid=,comm= -p "$(echo $all | tr ' ' ,)")" none_left
    [ -z "${OWN_SHM:-}" ] || holds "left in /dev/shm: $(ls /dev/shm)" [ -z "$(ls /dev/shm)" ]
}

saved() {
    last=$(sed -n 's/^stopped after step \([0-9]*\) of.*/\1/p' checkpoints/x/log.txt)
    holds "no checkpoint of step ${last:-?}" [ -e "checkpoints/x/step_${last:-none}/index.json" ]
    "$mxlua" "$root/scripts/checkpoint.lua" verify checkpoints/x >verified 2>&1 || echo "status $?" >>verified
    lacks "$(cat verified)" grep -q "^status" verified
}

# Measuring the machine's peak takes most of the start.
sed 's/^local mx = require "mx"$/& mx.metrics.measured_peak = function() end/' "$root/scripts/train.lua" >train.lua
script=$folder/train.lua

# ---- one rank ----

for signal in INT HUP USR1; do # SIGTERM: test_resume.sh
    case="one rank: SIG$signal"
    train 1 "$script"
    kill -$signal $started
    ended
    exits 0
    has "asked to stop by SIG$signal; saving, then ending"
    case $signal in
    INT) matches "mxlua: interrupted: the run saves after this step, .*; a second Ctrl-C ends it at once" ;;
    *) matches "^mxlua: SIG$signal: the run saves after this step" ;;
    esac
    saved
done

cat >busy.lua <<'END2'
local mx = require "mx"
if arg[1] == "catch" then
    mx.catch_stop()
end
io.open("started", "w"):close()
local stop = mx.now() + 20
while mx.now() < stop do
    mx.barrier()
end
END2
for pair in INT:130 TERM:143; do
    case="a second SIG${pair%:*} ends it at once"
    begin "$mxlua" --threads 1 busy.lua catch
    await 20 test -e started
    kill -${pair%:*} $started
    kill -${pair%:*} $started # at once: launchers send one twice
    sleep 0.5
    if none=$(kill -0 $started 2>&1); then check yes; else check no "the same request, sent twice, ended it $none"; fi
    matches "the run saves after this step, .*a second .* ends it at once" # before the step ends
    kill -${pair%:*} $started
    ended
    exits "${pair#*:}"
done
for pair in INT:130 TERM:143 HUP:129; do
    case="nothing to save: SIG${pair%:*}"
    begin "$mxlua" --threads 1 busy.lua
    await 20 test -e started
    kill -${pair%:*} $started
    ended
    exits "${pair#*:}"
done

case="nohup"
rm -f started
(
    trap '' HUP
    exec "$mxlua" --threads 1 -e 'mx.catch_stop() io.open("started", "w"):close() os.execute("kill -HUP $PPID")
        print(mx.stop_requested())' >out 2>&1
)
status=$?
exits 0
matches "^nil"

case="its parent's end is none of its own"
rm -f done
sh -c '"$1" --threads 1 -e "os.execute(\"sleep 0.5\") io.open(\"done\", \"w\"):close()" >out 2>&1 &' sh "$mxlua"
holds "it did not come to its end" await 10 test -e done

case="the terminal closes"
rm -rf checkpoints
script -qc "$mxlua --threads 1 $script $(echo $words)" out </dev/null >/dev/null 2>&1 &
started=$!
await 20 grep -q "^ *3/1000000" out
all=$(family $started)
kill -KILL $started
wait $started 2>/dev/null
leaves_nothing
saved
has "asked to stop by SIGHUP" checkpoints/x/log.txt

case="while it starts"
sed 's/^for step in/os.execute("kill -TERM $PPID") for step in/' "$script" >early.lua
# shellcheck disable=SC2086
begin "$mxlua" --threads 1 early.lua $words
ended
exits 0
has "before step 1: there is nothing new to save"
case="while it saves"
sed 's/^run:finish/os.execute("true") run:finish/; s/^    run:ended(\(.*\))$/    run:ended(\1) if step == 6 then os.execute("kill -TERM $PPID") end/' \
    "$script" >saving.lua
# shellcheck disable=SC2086
begin "$mxlua" --threads 1 saving.lua $words checkpoint_period=3
ended
exits 0
saved
for step in 3 6 7; do
    holds "no step_$step" [ -e checkpoints/x/step_$step/index.json ]
done
case="in its last step"
# shellcheck disable=SC2086
begin "$mxlua" --threads 1 saving.lua $words steps=6
ended
exits 0
holds "the parameters of a run at its end are not saved" [ -e checkpoints/x/parameters.h5 ]

# ---- two ranks ----

for signal in INT HUP KILL; do
    case="two ranks: SIG$signal to mpirun"
    train 2 "$script"
    all=$(family $started)
    kill -$signal $started
    ended 2>/dev/null
    [ $signal != INT ] || exits 0
    leaves_nothing
    saved
done
case="two ranks: SIGKILL to the proxy of a run that saves"
train 2 "$script"
all=$(family $started)
kill -KILL "$(member hydra_pmi_proxy)"
ended
leaves_nothing
saved
for target in hydra_pmi_proxy mpirun; do
    case="two ranks of two hosts, nothing to save: SIGKILL to $target"
    begin "$mpirun" -hosts localhost,127.0.0.1 -launcher fork -n 2 "$mxlua" --threads 1 busy.lua
    await 20 test -e started
    all=$(family $started)
    if [ $target = mpirun ]; then kill -KILL $started; else kill -KILL "$(member $target)"; fi
    ended 2>/dev/null
    leaves_nothing
done

# What ends the other ranks of a run that has failed does not look like a request to save.
sed 's/^for step in run:steps() do/& if step == 4 and mx.rank() == 1 then error("gone wrong") end/' "$script" >wrong.lua
for nodes in 2 1; do
    case="two ranks: one fails, $nodes a node"
    # shellcheck disable=SC2086
    begin env MXLUA_NODE_RANKS=$nodes "$mpirun" -n 2 "$mxlua" --threads 1 wrong.lua $words
    await 20 grep -q "gone wrong" out
    all=$(family $started)
    ended
    holds "expected a failure" [ $status -ne 0 ]
    matches "rank 1: .*gone wrong"
    has_not "asked to stop"
    has_not "the run saves"
    leaves_nothing
done

case="the guardian has no address that others could take or write to"
begin "$mpirun" -n 2 "$mxlua" --threads 1 busy.lua
await 20 test -e started
all=$(family $started)
# shellcheck disable=SC2086
inodes=$(for process in $all; do ls -l /proc/$process/fd; done | sed -n 's/.*socket:\[\([0-9]*\)\]$/\1/p')
named=$(awk -v inodes="$inodes" 'BEGIN { split(inodes, list); for (i in list) ours[list[i]] } $7 in ours && $8 ~ /mxlua/' /proc/net/unix)
holds "$named" [ -z "$named" ]
kill -TERM $started
ended
leaves_nothing

end
