#!/bin/sh
# Weights by way of the scripts: converted, trained further, continued, evaluated, on one rank and on two.
# test_convert.sh MXLUA [MPIRUN]
set -u

mxlua=$(realpath "$1")
mpirun=${2:-mpirun}
root=$(realpath "$(dirname "$0")/../..")
golden=$root/tests/golden/weights
limit=$((60 * ${TIME_FACTOR:-1}))
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

passed=0
failed=0

# expect STATUS TEXT RANKS SCRIPT WORDS...: the exit status, and a text in the output.
expect() {
    wanted=$1 text=$2 ranks=$3 name=$4
    shift 4
    timeout -k 2 "$limit" "$mpirun" -n "$ranks" "$mxlua" --threads 1 "$root/scripts/$name.lua" "$@" >out 2>&1
    status=$?
    if [ $status -eq "$wanted" ] && grep -qF -- "$text" out; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s.lua %s on %s: status %s, wanted %s and "%s":\n' "$name" "$*" "$ranks" "$status" "$wanted" "$text"
        cat out
    fi
}

train="steps=2 max_target_length=16 per_device_batch_size=2 base_output_directory=runs"

echo "it was the best of times" >text.txt
for ranks in 1 2; do
    expect 0 "saved as hf$ranks, a model of the family qwen3" $ranks convert from="$golden/qwen3" to=hf$ranks
    expect 0 "saved as m$ranks.h5" $ranks convert from="$golden/llama31.gguf" to=m$ranks.h5 dtype=float32
    expect 0 "with its tokenizer" $ranks convert from="$golden/qwen3.gguf" to=tok$ranks max_shard_size=20KB
    # shellcheck disable=SC2086
    expect 0 "parameters saved in runs/r$ranks/parameters.h5" $ranks train load_parameters_path=tok$ranks \
        run_name=r$ranks $train
    expect 0 "loss " $ranks eval parameters=runs/r$ranks file="$golden/../../../LICENSE" max_tokens=60 \
        context_length=16 metrics_file=e$ranks.json
    expect 0 "a model of the family qwen3" $ranks convert from=runs/r$ranks to=back$ranks
    expect 0 "1,2,3,"  $ranks generate parameters=m$ranks.h5 prompt=1,2,3 tokens=4
done
# Sizes that three ranks do not divide: their checkpoint gives the same weights on any number of ranks.
expect 0 "the parts of some dimensions differ; the largest exceeds the mean by: vocab 283 / 3: 0.7 %" 3 train \
    model_name=tiny base_emb_dim=47 base_mlp_dim=95 vocab_size=283 base_num_query_heads=10 base_num_kv_heads=5 \
    head_dim=4 run_name=odd checkpoint_period=2 dataset_type=synthetic steps=2 max_target_length=24 \
    per_device_batch_size=2 base_output_directory=runs ici_fsdp_parallelism=1 ici_tensor_parallelism=3
for ranks in 1 2 3; do
    expect 0 "saved as odd$ranks" $ranks convert from=runs/odd/step_2 to=odd$ranks
    if cmp odd1/model.safetensors odd$ranks/model.safetensors; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL weights written by $ranks ranks"
    fi
done
expect 0 "tokens of" 1 eval parameters="$golden/llama2" file=text.txt tokenizer=tok1 context_length=8 </dev/null
expect 1 "two tokenizers that give different ids: tokenizer=$golden/../tokenizer_gpt2.json" 1 convert from=tok1 to=y \
    tokenizer="$golden/../tokenizer_gpt2.json"
nowhere="there is no tokenizer 'tok0': expected a tokenizer.json, a folder with one, or a GGUF file"
expect 1 "$nowhere" 1 convert from=tok1 to=y tokenizer=tok0
expect 1 "$nowhere" 1 eval parameters=tok1 file=text.txt tokenizer=tok0
expect 1 "$nowhere" 1 generate parameters=tok1 prompt=a tokenizer=tok0
expect 1 "from=PATH and to=PATH" 1 convert from=x
expect 1 "expected a number with a unit" 1 convert from=x to=y max_shard_size=5XB
expect 1 "dtype: expected one of bfloat16, float32, got 'half'" 1 convert from=x to=y dtype=half
expect 1 "there is no 'nowhere'" 2 convert from=nowhere to=y
expect 1 "hf1 holds a model already" 2 convert from="$golden/qwen3" to=hf1
expect 1 "parameters=PATH is missing" 1 eval file=x
expect 1 "file=PATH is missing" 1 eval parameters=m1.h5
expect 1 "leaves tokens out: at most context_length = 8" 1 eval parameters=m1.h5 file=x context_length=8 stride=9
# shellcheck disable=SC2086
expect 1 "base_mlp_dim: 128, but tok1 has 64" 2 train load_parameters_path=tok1 base_mlp_dim=128 $train

# differ FILE: evaluation is refused where the ranks' copies of a file differ.
differ() {
    cp -r one two
    printf ' ' >>"two/$1"
    set -- "$1" "$mxlua" --threads 1 "$root/scripts/eval.lua" parameters=model file=text.txt context_length=8
    file=$1
    shift
    timeout -k 2 "$limit" "$mpirun" -n 1 -wdir "$folder/one" "$@" : -n 1 -wdir "$folder/two" "$@" >out 2>&1
    if [ $? -eq 1 ] && grep -qF -- "the ranks read different files '$file': $(stat -c %s "one/$file") bytes" out &&
        grep -qF -- "$(hostname) (rank 1)" out; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL other copies of $file:"
        cat out
    fi
    rm -r two
}
mkdir one
cp -r tok1 one/model
cp text.txt one/
differ text.txt
differ model/tokenizer.json
differ model/config.json
differ "model/$(cd one/model && ls ./*.safetensors | sed -n '1s,^./,,p')"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
