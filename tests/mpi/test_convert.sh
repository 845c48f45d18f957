#!/bin/sh
# Weights by way of the scripts: converted, trained further, continued, evaluated, on one rank and on two.
# test_convert.sh MXLUA [MPIRUN]
. "$(dirname "$0")/checks.sh"

golden=$root/tests/golden/weights

# expect_on RANKS STATUS TEXT SCRIPT WORD...
expect_on() {
    ranks=$1 wanted=$2 text=$3 script=$root/scripts/$4.lua
    shift 4
    expect "$wanted" "$text" "$mpirun" -n "$ranks" "$mxlua" --threads 1 "$script" "$@"
}

train="steps=2 max_target_length=16 per_device_batch_size=2 base_output_directory=runs"

echo "it was the best of times" >text.txt
for ranks in 1 2; do
    expect_on $ranks 0 "saved as hf$ranks, a model of the family qwen3" convert from="$golden/qwen3" to=hf$ranks
    expect_on $ranks 0 "saved as m$ranks.h5" convert from="$golden/llama31.gguf" to=m$ranks.h5 dtype=float32
    expect_on $ranks 0 "with its tokenizer" convert from="$golden/qwen3.gguf" to=tok$ranks max_shard_size=20KB
    # shellcheck disable=SC2086
    expect_on $ranks 0 "parameters saved in runs/r$ranks/parameters.h5" train load_parameters_path=tok$ranks \
        run_name=r$ranks $train
    expect_on $ranks 0 "loss " eval parameters=runs/r$ranks file="$golden/../../../LICENSE" max_tokens=60 \
        context_length=16 metrics_file=e$ranks.json
    expect_on $ranks 0 "a model of the family qwen3" convert from=runs/r$ranks to=back$ranks
    expect_on $ranks 0 "1,2,3," generate parameters=m$ranks.h5 prompt=1,2,3 tokens=4
done
# Sizes that three ranks do not divide: their checkpoint gives the same weights on any number of ranks.
expect_on 3 0 "the parts of some dimensions differ; the largest exceeds the mean by: vocab 283 / 3: 0.7 %" train \
    model_name=tiny base_emb_dim=47 base_mlp_dim=95 vocab_size=283 base_num_query_heads=10 base_num_kv_heads=5 \
    head_dim=4 run_name=odd checkpoint_period=2 dataset_type=synthetic steps=2 max_target_length=24 \
    per_device_batch_size=2 base_output_directory=runs ici_fsdp_parallelism=1 ici_tensor_parallelism=3
for ranks in 1 2 3; do
    expect_on $ranks 0 "saved as odd$ranks" convert from=runs/odd/step_2 to=odd$ranks
    holds "weights written by $ranks ranks differ" cmp odd1/model.safetensors odd$ranks/model.safetensors
done
expect_on 1 0 "tokens of" eval parameters="$golden/llama2" file=text.txt tokenizer=tok1 context_length=8 </dev/null
expect_on 1 1 "two tokenizers that give different ids: tokenizer=$golden/../tokenizer_gpt2.json" convert from=tok1 to=y \
    tokenizer="$golden/../tokenizer_gpt2.json"
nowhere="there is no tokenizer 'tok0': expected a tokenizer.json, a folder with one, or a GGUF file"
expect_on 1 1 "$nowhere" convert from=tok1 to=y tokenizer=tok0
expect_on 1 1 "$nowhere" eval parameters=tok1 file=text.txt tokenizer=tok0
expect_on 1 1 "$nowhere" generate parameters=tok1 prompt=a tokenizer=tok0
expect_on 1 1 "from=PATH and to=PATH" convert from=x
expect_on 1 1 "expected a number with a unit" convert from=x to=y max_shard_size=5XB
expect_on 1 1 "dtype: expected one of bfloat16, float32, got 'half'" convert from=x to=y dtype=half
expect_on 2 1 "there is no 'nowhere'" convert from=nowhere to=y
expect_on 2 1 "hf1 holds a model already" convert from="$golden/qwen3" to=hf1
expect_on 1 1 "parameters=PATH is missing" eval file=x
expect_on 1 1 "file=PATH is missing" eval parameters=m1.h5
expect_on 1 1 "leaves tokens out: at most context_length = 8" eval parameters=m1.h5 file=x context_length=8 stride=9
# shellcheck disable=SC2086
expect_on 2 1 "base_mlp_dim: 128, but tok1 has 64" train load_parameters_path=tok1 base_mlp_dim=128 $train

# differ FILE: evaluation is refused where the ranks' copies of a file differ.
differ() {
    cp -r one two
    printf ' ' >>"two/$1"
    file=$1
    set -- "$mxlua" --threads 1 "$root/scripts/eval.lua" parameters=model file=text.txt context_length=8
    run "$mpirun" -n 1 -wdir "$folder/one" "$@" : -n 1 -wdir "$folder/two" "$@"
    exits 1
    has "the ranks read different files '$file': $(stat -c %s "one/$file") bytes"
    has "$(hostname) (rank 1)"
    rm -r two
}
mkdir one
cp -r tok1 one/model
cp text.txt one/
differ text.txt
differ model/tokenizer.json
differ model/config.json
differ "model/$(cd one/model && ls ./*.safetensors | sed -n '1s,^./,,p')"

end
