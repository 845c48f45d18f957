# What the shell tests of this folder share. A test reads it before anything else:
#
#     . "$(dirname "$0")/checks.sh"
#
# It then works in a new folder, which is removed when it ends. Set $case to what is tested; commands print to the file
# out and leave their exit status in $status: that is what a failed check shows. The last line is `end`.
# shellcheck shell=sh disable=SC2034
set -u

mxlua=$(realpath "$1")
mpirun=${2:-mpirun}
root=$(realpath "$(dirname "$0")/../..")
factor=${TIME_FACTOR:-1}  # of all time limits
limit=$((60 * factor))    # seconds of a command: more is a hang
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

passed=0
failed=0
case=
command=
status=0

# run COMMAND...: its stdout and stderr together in out.
run() {
    command="$*"
    timeout -k 2 "$limit" "$@" >out 2>&1
    status=$?
}

# check yes|no WHAT: WHAT is said if it is no.
check() {
    if [ "$1" = yes ]; then
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
    printf 'FAIL %s: %s\n' "$case" "$2"
    [ -z "$command" ] || printf '  command: %s\n' "$command"
    printf '  status %s, output:\n' "$status"
    [ ! -e out ] || tail -n 20 out | sed 's/^/    /'
}

holds() { # WHAT COMMAND...: the command succeeds
    what=$1
    shift
    if "$@"; then check yes; else check no "$what"; fi
}

lacks() { # WHAT COMMAND...: the command fails
    what=$1
    shift
    if "$@"; then check no "$what"; else check yes; fi
}

exits() { holds "expected status $1" [ "$status" -eq "$1" ]; }
works() { exits 0; }

# Of what was printed, or of a file: this text is in it; a line matches this pattern of grep; this text is not in it.
has() { holds "no '$1' in ${2:-the output}" grep -qF -- "$1" "${2:-out}"; }
matches() { holds "nothing like '$1' in ${2:-the output}" grep -q -- "$1" "${2:-out}"; }
has_not() { lacks "'$1' in ${2:-the output}" grep -qF -- "$1" "${2:-out}"; }

# expect STATUS TEXT COMMAND...: the command ends with this status, and its output has this text.
expect() {
    wanted=$1
    text=$2
    shift 2
    run "$@"
    exits "$wanted"
    has "$text"
}

end() {
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
}
