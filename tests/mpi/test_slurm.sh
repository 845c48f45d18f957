#!/bin/sh
# mxlua under Slurm: srun, sbatch with scripts/slurm/train.sbatch, and mpirun in
# an allocation, on a private cluster of two nodes that are both this machine.
# It needs neither cgroups nor systemd, and leaves a cluster that is here alone.
#   test_slurm.sh MXLUA [MPIRUN]        (from the repository root, as root)
set -u

mxlua=$(realpath "$1")
mpirun=$(command -v "${2:-mpirun}")
factor=${TIME_FACTOR:-1}
script=scripts/slurm/train.sbatch
tiny="model_name=tiny steps=2 per_device_batch_size=1 max_target_length=32
    enable_checkpointing=false"
PATH=$PATH:/usr/sbin:/sbin

passed=0
failed=0
case=
output=
status=0

skip() {
    echo "SKIP slurm: $*"
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
    exit
}

missing=
for pair in munged:munge slurmctld:slurmctld slurmd:slurmd srun:slurm-client; do
    command -v "${pair%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
[ -z "$missing" ] ||
    skip "not installed; try apt-get install --no-install-recommends$missing"
[ "$(id -u)" = 0 ] || skip "slurmd starts jobs for others, so it needs root"

folder=$(mktemp -d)

# Jobs leave our process group, but all that we start has our SLURM_CONF.
clean_up() {
    for process in $(grep -lszF "SLURM_CONF=$folder/" /proc/[0-9]*/environ); do
        process=${process#/proc/}
        kill -9 "${process%/environ}" 2>/dev/null
    done
    wait 2>/dev/null
    rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# What an outer job or launcher says is not for ours.
launchers='SLURMD?|SBATCH|SALLOC|SRUN|SCANCEL|PMI|HYDRA|MPI|OMP|MXLUA'
for name in $(env | sed -En "s/^(($launchers)_[A-Z0-9_]*)=.*/\1/p"); do
    unset "$name"
done
export SLURM_CONF="$folder/slurm.conf" MXLUA="$mxlua" MPIRUN="$mpirun"

# await SECONDS COMMAND...: until it succeeds.
await() {
    end=$(($(date +%s) + $1 * factor))
    shift
    until "$@"; do
        [ "$(date +%s)" -lt $end ] || return 1
        sleep 0.1
    done
}

# A port that nobody listens at, below those that the kernel gives away.
port=$((20000 + $$ % 10000))
next_port() {
    port=$((port + 1))
    while grep -qs ":$(printf %04X $port) " /proc/net/tcp*; do
        port=$((port + 1))
    done
}

# daemon NAME COMMAND...: starts it; its messages go to NAME.log.
daemon() {
    name=$1
    shift
    "$@" >"$folder/$name.log" 2>&1 &
}

# says NAME: what a daemon had to say, in a line.
says() {
    grep -iE 'error|fatal' "$folder/$1.log" |
        grep -viE 'pmix|state (save )?file' | tail -n 3 | tr '\n' ' '
}

# munged wants a folder that all may enter, and a key that none may read.
chmod 711 "$folder"
mkdir "$folder/state" "$folder/mx1" "$folder/mx2"
(umask 077 && dd if=/dev/urandom of="$folder/key" bs=64 count=1 2>/dev/null)
host=$(uname -n)
host=${host%%.*}
: >"$folder/plugstack.conf"
next_port
controller=$port
next_port
first=$port
next_port
second=$port
cat >"$SLURM_CONF" <<END
ClusterName=mxlua
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmdSpoolDir=$folder/%n
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PlugStackConfig=$folder/plugstack.conf
MailProg=/bin/true
MpiDefault=none
KillWait=2
NodeName=mx1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$first CPUs=2
NodeName=mx2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$second CPUs=2
PartitionName=test Nodes=ALL Default=YES State=UP
END

daemon munged munged --foreground --socket="$folder/munge" \
    --key-file="$folder/key" --pid-file="$folder/munge.pid" \
    --seed-file="$folder/seed" --num-threads=10
await 5 test -S "$folder/munge" ||
    skip "munged does not start: $(says munged)"
daemon slurmctld slurmctld -D -c
daemon mx1 slurmd -D -N mx1
daemon mx2 slurmd -D -N mx2
idle() {
    sinfo -h -t idle -o %D 2>/dev/null | grep -qx 2
}
await 15 idle || skip "no idle nodes within 15 s; slurmctld:" \
    "$(says slurmctld) slurmd: $(says mx1) $(says mx2)"

# run COMMAND...: its stdout and stderr together in $output, and its $status;
# 124 after 10 seconds.
run() {
    timeout --foreground -k 2 $((10 * factor)) "$@" >"$folder/out" 2>&1
    status=$?
    # srun says so when the nodes of the job before are not free yet.
    output=$(grep -v '^srun: job [0-9]* \(queued\|has been allocated\)' "$folder/out")
}

ended() {
    scontrol -o show job "$number" >"$folder/state.job" 2>&1
    grep -qE 'JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL) ' \
        "$folder/state.job"
}

# submit SBATCH_ARGUMENTS...: sets the job's $number.
submit() {
    rm -f "$folder/job.out"
    run sbatch --parsable --output="$folder/job.out" "$@"
    number=$output
}

# finish: waits for it; $output, and $status: 124 after 20 seconds.
finish() {
    [ $status -eq 0 ] || return
    if await 20 ended; then
        code=$(sed 's/.* ExitCode=\([0-9:]*\) .*/\1/' "$folder/state.job")
        status=$((${code%:*} + ${code#*:})) # exit status, or a signal
    else
        scancel "$number"
        status=124
    fi
    output=$(cat "$folder/job.out" 2>&1)
}

job() {
    submit "$@"
    finish
}

check() {
    if [ "$1" = yes ]; then
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
    echo "FAIL $case: $2; status $status, output:" \
        "$(echo "$output" | tail -n 12 | tr '\n' '|')"
}

has() {
    case "$output" in *"$1"*) check yes ;; *) check no "no '$1'" ;; esac
}

is() {
    if [ "$output" = "$1" ]; then check yes; else check no "not '$1'"; fi
}

exits() {
    if [ "$status" -eq "$1" ]; then check yes; else check no "not status $1"; fi
}

fails() {
    if [ "$status" -ne 0 ] && [ "$status" -ne 124 ]; then
        check yes
    else
        check no "no failure in time"
    fi
}

cat >"$folder/fail.lua" <<'END'
local mx = require "mx"
if mx.rank() == 1 then
    error "this rank gives up"
end
mx.barrier()
mx.barrier()
END
cat >"$folder/killed.lua" <<'END'
local mx = require "mx"
if mx.rank() == 1 then
    os.execute("kill -9 $PPID")
end
mx.barrier()
mx.barrier()
END
cat >"$folder/wait.lua" <<'END'
local mx = require "mx"
local name = assert(os.getenv "WAIT_FOR")
local file
repeat
    os.execute "sleep 0.1"
    file = io.open(name)
until file
io.write("rank " .. mx.rank() .. " went on\n")
END
place='local where = mx.rank() .. "/" .. mx.ranks()
    io.write(where .. " " .. os.getenv "SLURMD_NODENAME" .. "\n")'

case="sinfo"
run sinfo -h -N -o '%N %t'
exits 0
is "mx1 idle
mx2 idle"

case="srun"
run srun --mpi=pmi2 -N 2 -n 2 "$mxlua" --threads 1 -e "$place"
exits 0
output=$(echo "$output" | sort)
is "0/2 mx1
1/2 mx2"
run srun --mpi=pmi2 -N 2 -n 2 "$mxlua" --threads 1 -e '
    local x = mx.full{shape = {1000003}, value = mx.rank() + 1}
    mx.all_reduce_(x)
    local right = x:eq(mx.full{shape = {1000003}, value = 3}):to("f32")
    io.write(("%g\n"):format(right:mean():item()))'
exits 0
is "1
1"
run salloc -Q -N 1 -n 2 srun --mpi=pmi2 "$mxlua" -v
exits 0
has "2 ranks, 2 on this machine"
run env SLURM_MPI_TYPE=pmi2 salloc -Q -n 2 srun -n 2 "$mxlua" -v
exits 0
has "2 ranks"
run env OMP_NUM_THREADS=2 srun --mpi=pmi2 -n 1 -c 2 "$mxlua" -e \
    'print(mx.ranks(), mx.threads())'
is "1	2"
run srun --mpi=pmi2 --kill-on-bad-exit=1 -N 2 -n 2 "$mxlua" --threads 1 \
    "$folder/fail.lua"
fails
has "rank 1: "
has "this rank gives up"
run srun --mpi=pmi2 --kill-on-bad-exit=1 -N 2 -n 2 "$mxlua" --threads 1 \
    "$folder/killed.lua"
fails

case="mpirun in an allocation"
run salloc -Q -N 2 -n 2 "$mpirun" "$mxlua" --threads 1 -e "$place"
exits 0
output=$(echo "$output" | sort)
has "0/2 mx1"
has "1/2 mx2"
run salloc -Q -N 2 -n 2 "$mpirun" -n 2 "$mxlua" --threads 1 "$folder/fail.lua"
fails

case="train.sbatch"
for nodes in 1 2; do
    # shellcheck disable=SC2086
    job --nodes=$nodes --ntasks-per-node=$((2 / nodes)) "$script" $tiny
    exits 0
    has "ranks 2, threads of each 1, nodes $nodes "
    has "started by srun --mpi=pmi2"
    has "each of 2 ranks"
    has " 1/2 "
    has " 2/2 "
    has "1 thread"
done
export MXLUA_LAUNCH=mpirun
# shellcheck disable=SC2086
job --nodes=2 --ntasks-per-node=1 "$script" $tiny
exits 0
has "started by $mpirun"
has "each of 2 ranks"
has " 2/2 "
unset MXLUA_LAUNCH
job "$script" "$folder/fail.lua"
fails
has "this rank gives up"
job "$script" "$folder/killed.lua"
fails
job "$script" no_such_key=1
fails
has "no_such_key"
MXLUA=build/mxlua
job --chdir="$folder" "$script"
exits 1
has "no program build/mxlua in $folder"
MXLUA=$mxlua
run sh "$script"
exits 1
has "this is for sbatch"

case="warned of the time limit"
export WAIT_FOR="$folder/warned"
submit "$script" "$folder/wait.lua"
started() {
    squeue -h -s -j "$number" -o %i | grep -q '\.0$'
}
await 10 started
sleep 0.5
scancel --batch --signal=USR1 "$number"
await 10 grep -qs "time limit is near" "$folder/job.out"
: >"$WAIT_FOR"
finish
exits 0
has "the time limit is near"
has "rank 0 went on"
has "rank 1 went on"

case="a run that is warned saves and ends well"
# shellcheck disable=SC2086
submit "$script" $tiny run_name=warned base_output_directory="$folder/saved" \
    steps=1000000 checkpoint_period=0 enable_checkpointing=true log_period=1000000
await 20 grep -qs " 1/1000000" "$folder/job.out"
scancel --batch --signal=USR1 "$number"
finish
exits 0
has "asked to stop by SIGUSR1; saving"
has "the same command with run_name=warned goes on"

# ours NAME: processes of that name which the cluster here has started.
ours() {
    for environment in $(grep -lszF "SLURM_CONF=$folder/" /proc/[0-9]*/environ); do
        process=${environment%/environ}
        if [ "$(cat "$process/comm" 2>/dev/null)" = "$1" ]; then
            echo "${process#/proc/}"
        fi
    done
}

case="the job's slurmstepd is killed"
cat >"$folder/forever.lua" <<'END'
local mx = require "mx"
mx.barrier()
io.open(assert(os.getenv "WAIT_FOR"), "w"):close()
while true do
    mx.barrier()
end
END
export WAIT_FOR="$folder/begun"
srun --mpi=pmi2 -n 2 "$mxlua" --threads 1 "$folder/forever.lua" >"$folder/out" 2>&1 &
step=$!
await 10 test -e "$WAIT_FOR"
guardian=$(ours mx-guardian | head -n 1)
kill -9 "$(ps -o ppid= -p "$guardian")"
all_gone() { [ -z "$(ours mx-guardian)$(ours mxlua)" ]; }
status=0
if await 10 all_gone; then check yes; else check no "ranks are left: $(ours mxlua)"; fi
kill -9 $step 2>/dev/null
wait $step 2>/dev/null

# N runs of one rank each, where one run of N ranks was meant.
case="ranks that do not find each other"
export MXLUA_LAUNCH=none
# shellcheck disable=SC2086
job "$script" $tiny
fails
has "rank"
case "$output" in *"1/2"*) check no "a step was run" ;; *) check yes ;; esac
unset MXLUA_LAUNCH
if SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 "$mxlua" -e '' >/dev/null 2>&1; then
    echo "SKIP slurm: this mxlua does not refuse to be rank 0 of 1 under srun"
else
    run srun -n 2 "$mxlua" -e "$place"
    fails
    has "srun started 2 tasks"
    has "--mpi=pmi2"
    case "$output" in *0/1*) check no "it ran" ;; *) check yes ;; esac
fi

# One rank is fine where one was asked for, also among several tasks.
case="one rank"
one='io.write(mx.ranks() .. "\n")'
run srun -n 1 "$mxlua" -e "$one"
is 1
run srun --mpi=pmi2 -n 1 "$mxlua" -e "$one"
is 1
run salloc -Q -n 2 "$mxlua" -e "$one"
is 1
run salloc -Q -n 2 "$mpirun" -n 1 "$mxlua" -e "$one"
is 1
job -n 2 --wrap "'$mxlua' -e '$one' && '$mpirun' -n 1 '$mxlua' -e '$one'"
exits 0
is "1
1"
run srun -n 2 env -u SLURM_STEP_NUM_TASKS "$mxlua" -e "$one"
is "1
1"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
