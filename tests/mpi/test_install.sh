#!/bin/sh
# An installed copy, in a path with a space: it runs from any directory, writes only there, and can be removed.
# test_install.sh MXLUA [MPIRUN]
set -u

program=$(realpath "$1")
mpirun=${2:-mpirun}
root=$(realpath "$(dirname "$0")/../..")
build=$(realpath --relative-to="$root" "$(dirname "$program")")
limit=$((60 * ${TIME_FACTOR:-1}))
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

stage="$folder/the stage"
prefix="$stage/opt/my programs"
share="$prefix/share/mxlua"
mxlua="$prefix/bin/mxlua"
mkdir "$folder/work"
cd "$folder/work" || exit 1

passed=0
failed=0

# run COMMAND...: its stdout and stderr together in out, its status in $status.
run() {
    command="$*"
    timeout -k 2 "$limit" "$@" >out 2>&1
    status=$?
}

# check yes|WHAT WENT WRONG
check() {
    if [ "$1" = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s: %s\n  status %s, output:\n' "$command" "$1" "$status"
        cat out
    fi
}

# expect STATUS TEXT...: of the last command.
expect() {
    if [ "$status" -eq "$1" ]; then check yes; else check "expected status $1"; fi
    shift
    for text in "$@"; do
        if grep -qF -- "$text" out; then check yes; else check "no '$text' in the output"; fi
    done
}

# The program as it is, even where a source is newer.
make_it() {
    run env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -C "$root" -o "$build/mxlua" BUILD="$build" DESTDIR="$stage" \
        PREFIX="/opt/my programs" "$@"
}

# Every file and folder, with the time of its last change.
everything() {
    find "$1" -printf '%P %y %T@\n' | sort
}

make_it install
expect 0 "installed $mxlua"
everything "$prefix" >before

run "$mxlua" --version
expect 0 "files      $share/"
run "$mxlua" --help
expect 0 'the folder that --version shows as "files"'

train="scripts/train.lua configs/models/tiny.yml steps=1 max_target_length=16 per_device_batch_size=1"
# shellcheck disable=SC2086
run "$mxlua" --threads 1 $train run_name=one
expect 0 "parameters saved in checkpoints/"
# shellcheck disable=SC2086
run "$mpirun" -n 2 "$mxlua" --threads 1 $train run_name=two
expect 0 "parameters saved in checkpoints/"
for name in one two; do
    if [ -s checkpoints/$name/parameters.h5 ]; then check yes; else check "no checkpoints/$name here"; fi
    if cmp -s checkpoints/$name/script.lua "$root/scripts/train.lua"; then check yes; else check "another script"; fi
done
run "$mxlua" scripts/roofline.lua model_name=tiny hardware=v5e
expect 0

# What is below the current directory wins.
mkdir -p scripts configs/models
echo 'print("my own script", arg[0])' >scripts/train.lua
run "$mpirun" -n 2 "$mxlua" --threads 1 scripts/train.lua
expect 0 "my own script	scripts/train.lua"
rm scripts/train.lua
echo 'stepps: 3' >configs/models/tiny.yml
# shellcheck disable=SC2086
run "$mxlua" $train
expect 1 "configs/models/tiny.yml:1: unknown key 'stepps'"
rm configs/models/tiny.yml

# Messages name both places; errors in our own scripts have no traceback, wherever they were found.
for ranks in 1 2; do
    run "$mpirun" -n $ranks "$mxlua" --threads 1 scripts/absent.lua
    expect 1 "mxlua: there is no file 'scripts/absent.lua', neither below the current directory nor below $share/"
    run "$mpirun" -n $ranks "$mxlua" --threads 1 scripts/plan.lua configs/absent.yml
    expect 1 "cannot read the config file: there is no file 'configs/absent.yml', neither"
done
run "$mxlua" absent.lua
expect 1 "cannot read 'absent.lua': No such file or directory"
run "$mxlua" ./scripts/train.lua
expect 1 "cannot read './scripts/train.lua': No such file or directory"
run "$mxlua" -e 'require("mx").plan.run = function() require("mx").zeros { 1 << 60 } end' scripts/plan.lua
expect 1 "out of memory"
if grep -q traceback out; then check "a traceback"; else check yes; fi

everything "$prefix" >after
if cmp -s before after; then check yes; else check "a run has changed the installation: $(diff before after)"; fi

# A second install leaves no file of an older one behind; what others put there stays.
echo 'share/mxlua/lua/mx/old.lua' >>"$share/installed.txt"
touch "$share/lua/mx/old.lua" "$share/configs/models/mine.yml"
make_it install
expect 0 "installed $mxlua"
if [ ! -e "$share/lua/mx/old.lua" ]; then check yes; else check "old.lua is still there"; fi
make_it uninstall
expect 0
left=$(cd "$prefix" && find . -type f)
if [ "$left" = ./share/mxlua/configs/models/mine.yml ]; then check yes; else check "left behind: $left"; fi
rm "$share/configs/models/mine.yml"
make_it install
make_it uninstall
expect 0
if [ -z "$(ls "$prefix")" ]; then check yes; else check "left behind: $(ls "$prefix")"; fi
make_it uninstall
expect 0

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
