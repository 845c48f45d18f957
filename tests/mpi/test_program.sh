#!/bin/sh
# The mxlua program as a user meets it: options, exit statuses, and errors that end every rank.
# test_program.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

limit=$((30 * factor)) # an error that takes longer is a hang

# on RANKS WORD...: runs mxlua. A machine of few cores is no fault.
on() {
    ranks=$1
    shift
    run "$mpirun" -n "$ranks" "$mxlua" --threads 1 "$@"
    sed -i '/^mxlua: warning: .* oversubscribed/d' out
}

is() { holds "expected exactly '$1'" [ "$(cat out)" = "$1" ]; }

# script NAME: standard input becomes a file.
script() {
    cat >"$1"
}

script hello.lua <<'END'
print("hello", arg[0], arg[1], ...)
END
script fail_on.lua <<'END'
local mx = require "mx"
local function deep()
    local missing
    return missing.field
end
if mx.rank() == tonumber(arg[1]) then
    deep()
end
local x = mx.zeros { 1000 }
while true do
    mx.all_reduce(x)
end
END
script exit_on.lua <<'END'
local mx = require "mx"
if mx.rank() == tonumber(arg[1]) then
    os.exit(tonumber(arg[2]))
end
mx.barrier()
mx.barrier()
END

case="options"
run "$mxlua" --help
exits 0
has "usage: mxlua"
has "mpirun -n 2"
holds "lines above 80 columns" [ -z "$(grep -E '.{81}' out)" ]
run "$mxlua" --help learning_rate
exits 0
has "The highest learning rate"
run "$mxlua" --help moving average
exits 0
has "mx.optim.ema"
run "$mxlua" --help matmull
exits 1
has "did you mean 'matmul'?"
has_not traceback
printf -- '#!/usr/bin/env mxlua\n-- Says hello:\n--     mxlua hi.lua [name=X]\n\n-- not this\nprint "hello"\n' >hi.lua
printf 'print("given " .. ...)\n' >bare.lua
for order in "hi.lua name=X --help" "hi.lua -h" "--help hi.lua"; do
    run "$mxlua" $order
    exits 0
    is "Says hello:
    mxlua hi.lua [name=X]"
done
run mpirun -n 2 "$mxlua" hi.lua --help
exits 0
is "Says hello:
    mxlua hi.lua [name=X]"
run "$mxlua" bare.lua --help # no comment: the script gets the word
is "given --help"
run env -u OPENBLAS_CORETYPE "$mxlua" -v
exits 0
for word in mxlua Lua OpenBLAS MPI "thread level" HDF5 libyaml jansson PCRE2 utf8proc zlib zstd processor isa cores caches; do has "$word"; done
has_not pinned
run env OPENBLAS_CORETYPE=Haswell "$mxlua" --version
has "pinned by OPENBLAS_CORETYPE=Haswell"
run "$mxlua"
exits 1
has "no script given"
run "$mxlua" --bogus hello.lua
exits 1
has "unknown option --bogus"
run "$mxlua" --threads
exits 1
has "needs a value"
for bad in 0 -3 two 1e9; do
    run "$mxlua" --threads $bad hello.lua
    exits 1
    has "'$bad'"
done
run "$mxlua" --isa mmx hello.lua
exits 1
has "unknown isa 'mmx'; expected portable, avx2, avx512, avx512_bf16 or amx"
run "$mxlua" --isa amx -e 'print(mx.isa())' # here, or refused with what is here
if [ "$status" -eq 0 ]; then
    is amx
else
    has "isa 'amx' cannot be used: the best that this processor has and the system permits is '"
fi
run "$mxlua" --memory-limit lots hello.lua
exits 1
has "'lots' is not a size"
run "$mxlua" --threads 1 --isa portable -e 'print(mx.threads(), mx.isa())'
exits 0
is "1	portable"
run "$mxlua" --memory-limit 1M -e 'mx.zeros{1024, 1024}'
exits 1
has "rank 0"
run env OMP_NUM_THREADS=1 "$mxlua" -e 'print(mx.threads())'
is 1
on 2 -v
exits 0
has "2 ranks, 2 on this machine"
holds "printed once, by rank 0" [ "$(grep -c '^Lua ' out)" -eq 1 ]

case="scripts"
run "$mxlua" hello.lua a.yml k=v
exits 0
is "hello	hello.lua	a.yml	a.yml	k=v"
on 3 hello.lua
exits 0
holds "each rank runs it" [ "$(grep -c '^hello' out)" -eq 3 ]
run "$mxlua" -e 'print(1 + 1)' hello.lua x
is "2
hello	hello.lua	x	x"
run sh -c "echo 'print(2 + 3)' | '$mxlua' -"
is 5
case="waiting threads spin briefly, unless the user says otherwise"
run "$mxlua" -e 'print(os.getenv "GOMP_SPINCOUNT")'
is 1000
run env OMP_WAIT_POLICY=active "$mxlua" -e 'print(os.getenv "GOMP_SPINCOUNT")'
is nil
run env GOMP_SPINCOUNT=7 "$mxlua" -e 'print(os.getenv "GOMP_SPINCOUNT")'
is 7

printf '#!/usr/bin/env mxlua\nerror("line two")\n' >shebang.lua
run "$mxlua" shebang.lua
exits 1
has "shebang.lua:2: line two"
: >empty.lua
run "$mxlua" empty.lua
exits 0
is ""
on 2 empty.lua
exits 0
run "$mxlua" /
exits 1
has "cannot read '/'"
run sh -c "'$mxlua' -e 'print(1)' >/dev/full"
exits 1

case="missing script"
run "$mxlua" absent.lua
exits 1
is "mxlua: cannot read 'absent.lua': No such file or directory"
on 2 absent.lua
exits 1
is "mxlua: cannot read 'absent.lua': No such file or directory"

case="errors"
run "$mxlua" fail_on.lua 0
exits 1
has "mxlua: rank 0: fail_on.lua:4:"
has "missing"
has "traceback"
has "fail_on.lua:7: in main chunk"
for ranks in 2 3; do
    culprit=0
    while [ $culprit -lt $ranks ]; do
        on $ranks fail_on.lua $culprit
        exits 1
        has "mxlua: rank $culprit: fail_on.lua:4:"
        has "fail_on.lua:7: in main chunk"
        culprit=$((culprit + 1))
    done
done
echo 'local x = = 1' >syntax.lua
run "$mxlua" syntax.lua
exits 1
has "rank 0: syntax.lua:1: unexpected symbol"
on 3 syntax.lua
exits 1
holds "said once" [ "$(grep -c 'unexpected symbol' out)" -eq 1 ]
run "$mxlua" -e 'error(setmetatable({}, {__tostring = function() return "one clear line" end}))'
exits 1
is "mxlua: rank 0: one clear line"
run "$mxlua" -e 'error({})'
exits 1
has "error object is a table"
run "$mxlua" -e 'error()'
exits 1
has "rank 0"
run "$mxlua" -e 'coroutine.wrap(function() error("inside") end)()'
exits 1
has "inside"
run "$mxlua" -e 'mx.abort("no data here")'
exits 1
is "mxlua: rank 0: no data here"
on 2 -e 'if mx.rank() == 1 then mx.abort("no data here") end mx.barrier() mx.barrier()'
exits 1
has "mxlua: rank 1: no data here"
on 2 -e 'io.write("last words without a line end") if mx.rank() == 0 then error("x") end mx.barrier() mx.barrier()'
exits 1
has "last words without a line end"

case="exit"
for code in 0 1 7 255 256; do
    expected=$code
    [ $code -ne 256 ] || expected=1
    run "$mxlua" exit_on.lua 0 $code
    exits $expected
done
run "$mxlua" -e 'os.exit(true)'
exits 0
run "$mxlua" -e 'os.exit(false)'
exits 1
run "$mxlua" -e 'coroutine.wrap(function() os.exit(0) end)()'
exits 0
on 2 -e 'os.exit(0)'
exits 0
for culprit in 0 1; do
    on 2 exit_on.lua $culprit 7
    exits 7
done
for signal in INT TERM; do
    run sh -c "'$mxlua' -e 'while true do end' & sleep 0.5; kill -$signal \$!; wait \$!"
    [ $signal = INT ] || exits 143 # a shell without job control lets its children ignore SIGINT
done 2>/dev/null
run timeout --foreground -s INT 1 "$mxlua" -e 'while true do end'
exits 124
run timeout -s TERM 1 "$mpirun" -n 2 "$mxlua" --threads 1 -e 'while true do mx.barrier() end'
exits 124
on 2 -e 'if mx.rank() == 1 then local pid = io.open("/proc/self/stat"):read("n"); os.execute("kill -9 " .. pid) end
    mx.barrier() mx.barrier()'
holds "a killed rank ends the run" [ $((status > 0 && status != 124)) = 1 ]

case="globals"
run "$mxlua" -e 'undeclared = 1'
exits 1
has "global 'undeclared' is not declared"
run "$mxlua" -e 'print(misspelt)'
exits 1
has "global 'misspelt' is not defined"
run "$mxlua" -e 'rawset(_G, "meant", 1); meant = meant + 1; print(meant)'
is 2

case="prompt"
prompt() {
    command="mxlua $1, with lines: $2"
    printf "$2" | timeout -k 2 "$limit" $1 >out 2>&1
    status=$?
}
prompt "$mxlua -i" '1 + 1\n'
exits 0
has "> 2"
prompt "$mxlua -i" 'x = 20\nx * 2, "text"\n'
has "40	text"
prompt "$mxlua -i" 'for i = 1, 2 do\nprint(i * 11)\nend\n'
has 11
has 22
prompt "$mxlua -i" 'error("oops")\nlocal y = = 3\n7 * 6\n'
exits 0
has oops
has "unexpected symbol"
has 42
prompt "$mxlua -i" '{3, 1, name = {true}}\nmx.full{shape = {2, 2}, value = 1}\n'
has "{3, 1, name = {true}}"
has "f32 tensor of size 2x2"
prompt "$mxlua -i" 'function f(\n\n5 * 5\n'
has "<eof>"
has 25
prompt "$mxlua -i hello.lua" 'nil\n'
has "hello	hello.lua"
has nil
prompt "$mpirun -n 2 $mxlua --threads 1 -i" 'x = mx.full{shape = {1}, value = 1}\nmx.all_reduce_(x)\nx:item()\n'
exits 0
has 2
prompt "$mxlua -i" 'os.exit(3)\n'
exits 3

case="a simulated pod"
on 2 -e 'require("mx").config.load { "hardware=v5e-8" }'
exits 1
has "one process simulates all chips of v5e-8, but there are 2 ranks: start mxlua without mpirun"
has_not traceback
run "$mxlua" -e 'local mx = require "mx"; mx.mesh(mx.config.load { "hardware=v5e-256", "ici_tensor_parallelism=2" })'
exits 1
has "ici_tensor_parallelism = 2 does not fit the slice 16x16: no whole sides of 16x16 multiply to it"
has_not traceback

case="an error of the engine in one of our own scripts"
root=$(dirname "$(dirname "$mxlua")")
large='local mx = require "mx" mx.plan.run = function() mx.zeros { 1 << 60 } end'
run "$mxlua" -e "$large" "$root/scripts/plan.lua"
exits 1
has "(command line):1: f32 (1152921504606846976): out of memory"
has_not traceback
case="scaling.lua compares steps of a mesh with steps of its ranks"
on 2 "$root/scripts/scaling.lua" model_name=tiny-moe ici_expert_parallelism=2 ici_fsdp_parallelism=1 rounds=1
exits 0
has "2 ranks: expert 2; 1,024 tokens a step"
has "times as fast as one rank"
run "$mxlua" "$root/scripts/scaling.lua" model_name=tiny
exits 1
has "there must be several ranks, and none simulated: mpirun -n 2 build/mxlua scripts/scaling.lua"

case="train.lua without words about what to train"
for words in "" "steps=3 run_name=a"; do
    run "$mxlua" "$root/scripts/train.lua" $words
    exits 2
    has "model_name=tiny dataset_type=synthetic"
    has "dataset_type=text dataset_path="
    has "hardware=v5e-256"
done
on 2 "$root/scripts/train.lua"
exits 2
has "model_name=tiny dataset_type=synthetic"
if [ -e checkpoints ]; then check no "a run has begun"; else check yes; fi
for words in "model_name=tiny steps=1" "$root/configs/models/tiny.yml steps=1" "dataset_type=synthetic base_emb_dim=16
    base_num_decoder_layers=1 base_mlp_dim=16 per_device_batch_size=1 max_target_length=4 steps=1"; do
    run "$mxlua" "$root/scripts/train.lua" $words enable_checkpointing=false
    exits 0
done
case="the same in a script of one's own"
cp "$root/scripts/plan.lua" own_plan.lua
run "$mxlua" -e "$large" own_plan.lua
exits 1
has "own_plan.lua:10: "
has "stack traceback"
case="a defect of our Lua in one of our own scripts"
for defect in 'nil + 1' 'require("mx").nothing' 'error("gone wrong")' '("x"):bad()'; do
    run "$mxlua" -e "require('mx').plan.run = function() local x = $defect end" "$root/scripts/plan.lua"
    exits 1
    has "stack traceback"
done

case="a step that is never closed"
script step.lua <<'END'
local mx = require "mx"
local step = mx.step()
print(mx.ones({ 2 }):sum():item())
END
run "$mxlua" step.lua
exits 1
has 2.0
has "the step that was opened at step.lua:2 was never closed"
has_not traceback
run "$mxlua" -e 'local step = mx.step() step:close() print(mx.ones({ 2 }):sum():item())'
exits 0
is 2.0

case="away from the sources"
mkdir -p "$folder/elsewhere"
cd "$folder/elsewhere" || exit 1
run "$mxlua" -e 'print(mx.full{shape = {2}, value = 3}:sum():item())'
exits 0
is 6.0
cd "$folder" || exit 1

# A terminal gets lines of 80 columns, a file gets one line.
words="model_name=tiny scan_layers=false gcs_metrics=true sa_block_q=1024 sa_block_kv=1024 attention=dot_product"
for more in dataset_type=grain "hardware=v5e-4 base_output_directory=gs://bucket"; do
    case="long messages: $more"
    # shellcheck disable=SC2086
    run "$mxlua" --threads 1 "$root/scripts/train.lua" $words $more
    holds "no line above 80 columns" [ "$(awk 'length > 80' out | wc -l)" -gt 0 ]
    run script -qec "$mxlua --threads 1 $root/scripts/train.lua $words $more" /dev/null
    sed -i 's/\r//g; /^mesh of/,$d' out # before the figures of the run
    holds "lines above 80 columns at a terminal" [ "$(awk 'length > 80' out | wc -l)" = 0 ]
    matches "^    "
done

end
