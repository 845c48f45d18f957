#!/bin/sh
# What is interrupted or runs out of disk: nothing is half-written under its final name, the same command goes on or
# starts anew, and nothing is left of what was killed. test_interrupted.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

scripts=$root/scripts
golden=$root/tests/golden/weights

mx() { run "$mxlua" --threads 1 "$@"; } # OPTION... SCRIPT WORD...

# on_small_disk BLOCKS ...: a write beyond so many blocks of 512 bytes fails as on a full disk; MPI wants 4 MiB itself.
on_small_disk() {
    blocks=$1
    shift
    (
        trap '' XFSZ
        ulimit -f "$blocks"
        mx "$@"
        echo "$status" >status
    )
    status=$(cat status)
}

one_line() { # PATTERN
    exits 1
    matches "$1"
    has_not traceback
}
only() { holds "$1 has $(ls -A "$1" | tr '\n' ' ')" [ "$(ls -A "$1" | tr '\n' ' ')" = "$2" ]; }

die='os.execute("kill -9 " .. io.open("/proc/self/stat"):read("n"))'
tiny="model_name=tiny max_target_length=16 per_device_batch_size=1 base_num_decoder_layers=1 log_period=1000000"
mx "$scripts/train.lua" $tiny run_name=a steps=2
works

case="merge, killed"
mkdir m
for to in m/merged.h5 m/again.h5; do
    mx -e "local commit = mx.io.h5_writer
        mx.io.h5_writer = function(...) local file = commit(...) file:put('w', mx.ones { 1000 }) $die end" \
        "$scripts/checkpoint.lua" merge checkpoints/a to=$to
    holds "there is a file" [ ! -e $to ]
    holds "no draft" [ "$(ls m | grep -c "$(basename $to).tmp")" = 1 ]
done
mx "$scripts/checkpoint.lua" merge checkpoints/a to=m/merged.h5
works
mx "$scripts/checkpoint.lua" merge checkpoints/a to=m/again.h5
works
only m "again.h5 merged.h5 "

case="a draft of a process that runs stays"
mkfifo hold
"$mxlua" --threads 1 -e 'local file = mx.io.h5_writer("m/live.h5") print("open") io.read() file:put("w", mx.ones { 3 })
    file:attributes { config = "" } file:commit()' <hold >live_out 2>&1 &
exec 3>hold
for _ in $(seq 100); do
    grep -q open live_out && break
    sleep 0.1
done
mx "$scripts/checkpoint.lua" merge checkpoints/a to=m/live.h5
works
exec 3>&-
wait
holds "its file was taken away: $(cat live_out)" [ "$(cat live_out)" = open ]
only m "again.h5 live.h5 merged.h5 "

case="merge, over files of others"
echo mine >text
cp text copy
mx "$scripts/checkpoint.lua" merge checkpoints/a to=text
one_line "to=text: this file is there already and is not parameters that mxlua saved"
part=$(echo checkpoints/a/step_2/rank_0.h5)
mx "$scripts/checkpoint.lua" merge checkpoints/a to="$part"
one_line "this file is there already and is not parameters"
mx "$scripts/convert.lua" from=checkpoints/a to=text.h5
works
mx "$scripts/convert.lua" from=text.h5 to=text.h5
one_line "to=text.h5: that is the file of from, too"
holds "text has changed" cmp -s text copy

case="convert to a folder, killed between its files"
mx -e "local new, n = mx.io.safetensors_writer, 0
    mx.io.safetensors_writer = function(...) n = n + 1 if n == 2 then $die end return new(...) end" \
    "$scripts/convert.lua" from="$golden/qwen3.gguf" to=hf max_shard_size=20KB
holds "config.json is there" [ ! -e hf/config.json ]
holds "a shard is there" [ -e hf/model-00001-of-*.safetensors ]
mx "$scripts/convert.lua" from="$golden/qwen3.gguf" to=hf # other shards than before
works
only hf "config.json model.safetensors tokenizer.json tokenizer_config.json "
mx "$scripts/convert.lua" from="$golden/qwen3.gguf" to=hf
one_line "hf holds a model already (config.json)"
rm go 2>/dev/null
mkfifo go
"$mxlua" --threads 1 -e 'local new = mx.io.safetensors_writer
    mx.io.safetensors_writer = function(...) print("begun") io.read() return new(...) end' \
    "$scripts/convert.lua" from="$golden/qwen3.gguf" to=hf2 <go >first 2>&1 &
exec 3>go
for _ in $(seq 100); do
    grep -q begun first && break
    sleep 0.1
done
mx "$scripts/convert.lua" from="$golden/qwen3.gguf" to=hf2
one_line "hf2 is in use by process .*choose another folder"
exec 3>&-
wait
only hf2 "config.json model.safetensors tokenizer.json tokenizer_config.json "
rm go
mkdir theirs
echo mine >theirs/tokenizer.json
mx "$scripts/convert.lua" from="$golden/qwen3.gguf" to=theirs
one_line "tokenizer.json"
only theirs "tokenizer.json "

case="prepare, twice at once"
for i in $(seq 2000); do echo "document $i"; done >corpus.txt
mkfifo go
"$mxlua" --threads 1 -e 'local new = mx.io.token_part
    mx.io.token_part = function(...) print("begun") io.read() return new(...) end' \
    "$scripts/prepare.lua" input=corpus.txt out=corpus.h5 <go >first 2>&1 &
exec 3>go
for _ in $(seq 100); do
    grep -q begun first && break
    sleep 0.1
done
mx "$scripts/prepare.lua" input=corpus.txt out=corpus.h5
one_line "corpus.h5.parts is in use by process .*choose another out="
exec 3>&-
wait
mx "$scripts/prepare.lua" input=corpus.txt out=corpus.h5
one_line "corpus.h5 is there already"
holds "the parts are left" [ ! -e corpus.h5.parts ]
case="prepare, killed"
mx -e "local new = mx.io.token_part mx.io.token_part = function(...) local part = new(...) $die end" \
    "$scripts/prepare.lua" input=corpus.txt out=other.h5
holds "no parts" [ -e other.h5.parts ]
mx "$scripts/prepare.lua" input=corpus.txt out=other.h5
works
holds "the parts are left" [ ! -e other.h5.parts ]
holds "the stores differ" cmp -s corpus.h5 other.h5

case="a disk that is full: merge, convert, prepare"
mx "$scripts/train.lua" $tiny run_name=big steps=1 base_mlp_dim=8192
works
mkdir full
on_small_disk 9000 "$scripts/checkpoint.lua" merge checkpoints/big to=full/m.h5
one_line "cannot write 'full/m.h5'"
on_small_disk 9000 "$scripts/convert.lua" from=checkpoints/big to=full/c.h5
one_line "cannot write 'full/c.h5'"
only full ""
case="a disk that is full: measurements of a run"
mx "$scripts/train.lua" $tiny run_name=b steps=3 metrics_file=/dev/full
works
has "warning: measurements cannot be written; the run goes on without it: cannot write '/dev/full': No space left"
holds "it is said more than once" [ "$(grep -c warning out)" = 1 ]
holds "no parameters" [ -e checkpoints/b/parameters.h5 ]
case="a disk that is full: what a run notes beside its checkpoints"
for name in log.txt metrics.jsonl; do
    mx "$scripts/train.lua" $tiny run_name=f steps=1
    truncate -s 5M checkpoints/f/$name
    on_small_disk 9000 "$scripts/train.lua" $tiny run_name=f steps=3
    works
    has "cannot be written; the run goes on without it: cannot write 'checkpoints/f/$name'"
    holds "it is said more than once" [ "$(grep -c warning out)" = 1 ]
    holds "not saved" [ -e checkpoints/f/step_3 ]
    rm -r checkpoints/f
done
case="a disk that is full: trace and report"
on_small_disk 9000 "$scripts/train.lua" $tiny run_name=g steps=3 base_num_decoder_layers=60 trace_file=trace.json \
    report_file=report.html base_emb_dim=16 head_dim=4 base_mlp_dim=16 max_target_length=4 gradient_accumulation_steps=40
works
has "no trace was written, the run goes on"
holds "half a trace" [ "$(ls trace.json* 2>/dev/null)" = "" ]
case="a disk that is full: measurements that are all there is"
mx "$scripts/eval.lua" parameters=checkpoints/b file=corpus.txt context_length=16 max_tokens=50 metrics_file=/dev/full
one_line "cannot write '/dev/full': No space left"
case="measurements into a pipe"
mkfifo pipe
head -n 2 pipe >rows & # and then nobody reads
mx "$scripts/train.lua" $tiny run_name=c steps=50 metrics_file=pipe
wait
works
holds "no rows" grep -q '"step":2' rows
mx "$scripts/train.lua" $tiny run_name=d steps=2 metrics_file=/dev/stdout
works
matches '^{.*"step":2'
case="a disk that is full: offloaded tensors"
offload="remat_policy=qkv_proj_offloaded offload_directory=. dataset_type=text dataset_path=$root/README.md"
mx "$scripts/train.lua" $tiny $offload run_name=e steps=2 learning_rate_schedule_steps=4
works
on_small_disk 9000 "$scripts/train.lua" $tiny $offload run_name=e steps=4 per_device_batch_size=4000
one_line "offload"
mx "$scripts/checkpoint.lua" verify checkpoints/e
works
has "step_2: good"

end
