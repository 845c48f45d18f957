#!/bin/sh
# An installed copy, in a path with a space: it runs from any directory, writes only there, and can be removed.
# test_install.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

program=$mxlua
build=$(realpath --relative-to="$root" "$(dirname "$program")")

stage="$folder/the stage"
prefix="$stage/opt/my programs"
share="$prefix/share/mxlua"
mxlua="$prefix/bin/mxlua"
mkdir "$folder/work"
cd "$folder/work" || exit 1

# ends STATUS TEXT...: of the last command.
ends() {
    exits "$1"
    shift
    for text in "$@"; do
        has "$text"
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
ends 0 "installed $mxlua"
everything "$prefix" >before

run "$mxlua" --version
ends 0 "files      $share/"
run "$mxlua" --help
ends 0 'the folder that --version shows as "files"'

train="scripts/train.lua configs/models/tiny.yml steps=1 max_target_length=16 per_device_batch_size=1"
# shellcheck disable=SC2086
run "$mxlua" --threads 1 $train run_name=one
ends 0 "parameters saved in checkpoints/"
# shellcheck disable=SC2086
run "$mpirun" -n 2 "$mxlua" --threads 1 $train run_name=two
ends 0 "parameters saved in checkpoints/"
for name in one two; do
    holds "no checkpoints/$name here" [ -s checkpoints/$name/parameters.h5 ]
    holds "another script" cmp -s checkpoints/$name/script.lua "$root/scripts/train.lua"
done
run "$mxlua" scripts/roofline.lua model_name=tiny hardware=v5e
ends 0

# What is below the current directory wins.
mkdir -p scripts configs/models
echo 'print("my own script", arg[0])' >scripts/train.lua
run "$mpirun" -n 2 "$mxlua" --threads 1 scripts/train.lua
ends 0 "my own script	scripts/train.lua"
rm scripts/train.lua
echo 'stepps: 3' >configs/models/tiny.yml
# shellcheck disable=SC2086
run "$mxlua" $train
ends 1 "configs/models/tiny.yml:1: unknown key 'stepps'"
rm configs/models/tiny.yml

# Messages name both places; errors in our own scripts have no traceback, wherever they were found.
for ranks in 1 2; do
    run "$mpirun" -n $ranks "$mxlua" --threads 1 scripts/absent.lua
    ends 1 "mxlua: there is no file 'scripts/absent.lua', neither below the current directory nor below $share/"
    run "$mpirun" -n $ranks "$mxlua" --threads 1 scripts/plan.lua configs/absent.yml
    ends 1 "cannot read the config file: there is no file 'configs/absent.yml', neither"
done
run "$mxlua" absent.lua
ends 1 "cannot read 'absent.lua': No such file or directory"
run "$mxlua" ./scripts/train.lua
ends 1 "cannot read './scripts/train.lua': No such file or directory"
run "$mxlua" -e 'require("mx").plan.run = function() require("mx").zeros { 1 << 60 } end' scripts/plan.lua
ends 1 "out of memory"
has_not traceback

everything "$prefix" >after
holds "a run has changed the installation: $(diff before after)" cmp -s before after

# A second install leaves no file of an older one behind; what others put there stays.
echo 'share/mxlua/lua/mx/old.lua' >>"$share/installed.txt"
touch "$share/lua/mx/old.lua" "$share/configs/models/mine.yml"
make_it install
ends 0 "installed $mxlua"
holds "old.lua is still there" [ ! -e "$share/lua/mx/old.lua" ]
make_it uninstall
ends 0
left=$(cd "$prefix" && find . -type f)
holds "left behind: $left" [ "$left" = ./share/mxlua/configs/models/mine.yml ]
rm "$share/configs/models/mine.yml"
make_it install
make_it uninstall
ends 0
holds "left behind: $(ls "$prefix")" [ -z "$(ls "$prefix")" ]
make_it uninstall
ends 0

end
