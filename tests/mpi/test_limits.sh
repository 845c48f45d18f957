#!/bin/bash
# Limits of the system (ulimit, /dev/shm, closed files) end in one line that names the limit, or the program works.
# test_limits.sh MXLUA [MPIRUN]
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # dash has no ulimit -u
set -u

mxlua=$(realpath "$1")
mpirun=${2:-mpirun}
limit=$((10 * ${TIME_FACTOR:-1})) # seconds: more is a hang
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
cd "$folder" || exit 1

passed=0
failed=0
case=
output=
status=0

# The superuser has no limits on processes, so a user without rights is to run what we test.
as_user=
if [ "$(id -u)" = 0 ]; then
    as_user="setpriv --reuid=65534 --regid=65534 --clear-groups"
    if ! $as_user "$mxlua" --version >/dev/null 2>&1; then
        echo "SKIP limits: an unprivileged user cannot run $mxlua"
        echo "0 passed, 0 failed"
        exit 0
    fi
fi

check() {
    if [ "$1" = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s: %s\n  status %s, output:\n%s\n' "$case" "$2" "$status" "$(echo "$output" | head -n 12)"
    fi
}

# under PREPARATION COMMAND...: runs it in a shell that has run the preparation before.
under() {
    case="$1: ${*:2}"
    output=$($as_user timeout -s KILL $limit bash -c "$1"'; exec "$@"' bash "${@:2}" 2>&1 </dev/null)
    status=$?
}

# refuses WORD...: status 1, and a single line of ours with each of the words.
refuses() {
    if [ $status -eq 1 ]; then check yes; else check no "expected status 1"; fi
    if [ "$(echo "$output" | wc -l)" -eq 1 ]; then check yes; else check no "expected one line"; fi
    for word in "mxlua: " "$@"; do
        case "$output" in *"$word"*) check yes ;; *) check no "no '$word'" ;; esac
    done
}

prints() {
    if [ $status -eq 0 ] && [ "$output" = "$1" ]; then check yes; else check no "expected status 0 and '$1'"; fi
}

alone=("$mxlua" --threads 1 -e 'print(1)')
two=("$mpirun" -n 2 "$mxlua" --threads 1 -e 'mx.barrier() print(1)')

# ---- memory ----

for run in alone two; do
    declare -n command=$run
    for kib in 150000 200000; do
        under "ulimit -v $kib" "${command[@]}"
        refuses "limit on addresses, $kib KiB" "ulimit -v"
    done
    under "ulimit -d 50000" "${command[@]}"
    refuses "limit on data, 50000 KiB" "ulimit -d"
    # What the message asks for is enough.
    under "ulimit -v 150000" "${command[@]}"
    enough=$(echo "$output" | sed -n "s/.*'ulimit -v \([0-9]*\)'.*/\1/p")
    under "ulimit -v ${enough:-0}" "${command[@]}"
    prints "$(for _ in $(seq $([ $run = alone ] && echo 1 || echo 2)); do echo 1; done)"
done
under "export OMP_NUM_THREADS=1; ulimit -v 700000" "$mxlua" --threads 16 -e 'print(1)'
refuses "limit on addresses, 700000 KiB" "16 threads" "--threads"
under "export OMP_NUM_THREADS=1; ulimit -v 700000" "$mxlua" -e 'mx.threads(16)'
case "$output" in *"limit on addresses"*) check yes ;; *) check no "mx.threads goes beyond the limit" ;; esac

# ---- files ----

for n in 5 10; do
    under "ulimit -n $n" "${alone[@]}"
    refuses "limit on open files, $n," "ulimit -n"
done
under "ulimit -n 20" "${alone[@]}"
prints 1
under "ulimit -n 40" "${two[@]}"
refuses "limit on open files, 40," "ulimit -n"
under "ulimit -Sn 20" "$mxlua" -e 'local files = {} for i = 1, 50 do files[i] = assert(io.open("/dev/null")) end print(1)'
prints 1
for kib in 0 100; do
    under "ulimit -f $kib" "${alone[@]}"
    prints 1
    under "ulimit -f $kib" "${two[@]}"
    refuses "limit on the size of files, $kib KiB" "ulimit -f"
done
out=$folder/out
: >"$out"
chmod 666 "$out"
under "ulimit -f 10; exec 3>&1 >'$out'" "$mxlua" -e 'for i = 1, 10000 do print(i) end'
refuses "standard output could not be written"

# ---- processes and threads ----

# As a user that has no other processes: each of these is one more.
if [ "$(id -u)" = 0 ]; then
    as_user="setpriv --reuid=$((500000 + $$ % 100000)) --regid=65534 --clear-groups"
    under "ulimit -u 3" "${alone[@]}"
    refuses "limit on processes and threads of this user, 3," "ulimit -u"
    under "ulimit -u 6" "${two[@]}"
    refuses "limit on processes and threads of this user, 6," "ulimit -u"
    under "ulimit -u 12" "$mxlua" --threads 40 -e 'print(1)'
    refuses "limit on processes and threads of this user, 12," "ulimit -u"
    as_user="setpriv --reuid=65534 --regid=65534 --clear-groups"
else
    echo "SKIP limits on processes: they need a user without other processes, so root"
fi

# ---- /dev/shm ----

# shm OPTIONS COMMAND...: with a /dev/shm of its own.
shm() {
    case="/dev/shm with $1"
    output=$(timeout -s KILL $limit unshare -m sh -c 'mount -t tmpfs -o "$1" tmpfs /dev/shm && shift && exec "$@"' sh \
        "$1" $as_user "${@:2}" 2>&1 </dev/null)
    status=$?
}
if unshare -m sh -c 'mount -t tmpfs tmpfs /dev/shm' 2>/dev/null; then
    shm size=64k,mode=1777 "${two[@]}"
    refuses "/dev/shm has 64 KiB left, and 2 ranks need 12 MiB"
    shm size=64k,mode=1777 "${alone[@]}"
    prints 1
    shm size=64m,mode=755 "${two[@]}"
    refuses "/dev/shm" "Permission denied"
    shm ro "${two[@]}"
    refuses "/dev/shm" "Read-only"
    shm size=16m,mode=1777 "${two[@]}"
    prints "1
1"
else
    echo "SKIP /dev/shm: it takes root's rights to mount another one"
fi

# ---- an unusual environment ----

under 'exec <&-' "$mxlua" -e 'print((io.read()))'
prints nil
under 'exec 3>&1 >&-' "${alone[@]}"
refuses "standard output could not be written"
under 'exec 2>&-' "${alone[@]}"
prints 1
# What is printed does not go into a file that a library or a script has opened.
under 'exec >&-' "$mxlua" -e 'local f = io.open("out", "w") print("lost") f:write("kept\n") f:close()'
if [ "$(cat out)" = kept ]; then check yes; else check no "a closed standard output became a file's: $(cat out)"; fi
under 'unset HOME TERM USER LANG' "${alone[@]}"
prints 1
under 'for v in $(compgen -e); do unset $v; done' "${alone[@]}"
prints 1
for bad in /proc ''; do
    under "export TMPDIR=$bad" "${alone[@]}"
    prints 1
    under "export TMPDIR=$bad" "${two[@]}"
    prints "1
1"
done
under 'd=$(mktemp -d); cd $d; rmdir $d' "${alone[@]}"
prints 1
word=$(printf '%0100000d' 0)
echo 'print(select("#", ...), #(...))' >count.lua
under 'set -- "$@" "${@: -1}" "${@: -1}" "${@: -1}" "${@: -1}" "${@: -1}"; set -- "$@" "${@: -1}" "${@: -1}" "${@: -1}" "${@: -1}"' \
    "$mxlua" count.lua "$word"
prints "10	100000"
# shellcheck disable=SC2046
under : "$mxlua" count.lua $(seq 100000)
prints "100000	1"

# ---- what programs that we start inherit ----

under "export UCX_TLS=self,posix" "$mxlua" -e 'print(os.getenv("UCX_TLS"))'
prints self,posix
under : "$mxlua" -e 'print(os.getenv("UCX_TLS"))'
prints nil

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
