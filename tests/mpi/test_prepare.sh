#!/bin/sh
# Preparing a corpus: packed input gives what plain input gives, on any number of ranks; what was killed goes on; bad
# input is told with its line. tests/mpi/test_prepare.sh MXLUA MPIRUN
set -u

mxlua=$1
mpirun=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0

# check NAME CONDITION...
check() {
    name=$1
    shift
    if "$@" >/dev/null 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name: $*"
    fi
}

# says NAME TEXT: whether what was printed last contains the text.
says() {
    if grep -qF -- "$2" "$folder/log"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $1: expected '$2', got:"
        tail -n 5 "$folder/log"
    fi
}

prepare() {
    "$mxlua" scripts/prepare.lua "$@" >"$folder/log" 2>&1
}

refused() {
    ! prepare "$@"
}

# 40,000 documents in about 4 MiB of JSON lines.
mkdir "$folder/plain" "$folder/gz" "$folder/zst"
awk 'BEGIN { for (i = 0; i < 40000; i++) {
    line = sprintf("{\"id\": %d, \"text\": \"document %d:", i, i)
    for (k = 0; k < i % 14; k++) line = line " w\\u00f6rd" (i * k) % 97
    print line "\"}" } }' >"$folder/plain/web.jsonl"
printf 'first\n<|end|>\nsecond<|end|>third' >"$folder/plain/text.txt"
for file in web.jsonl text.txt; do
    gzip -c "$folder/plain/$file" >"$folder/gz/$file.gz"
    if command -v zstd >/dev/null; then
        zstd -q -c "$folder/plain/$file" >"$folder/zst/$file.zst"
    fi
done

options='separator=<|end|>'
check "plain" prepare input="$folder/plain" out="$folder/plain.h5" "$options" piece_mib=1
says "plain" "40,003 documents"
check "gzip" prepare input="$folder/gz" out="$folder/gz.h5" "$options"
check "gzip is the same" cmp "$folder/plain.h5" "$folder/gz.h5"
if command -v zstd >/dev/null; then
    check "zstd" prepare input="$folder/zst/*" out="$folder/zst.h5" "$options"
    check "zstd is the same" cmp "$folder/plain.h5" "$folder/zst.h5"
else
    echo "SKIP zstd files: there is no program zstd"
fi
for ranks in 2 3; do
    check "$ranks ranks" "$mpirun" -n $ranks "$mxlua" scripts/prepare.lua input="$folder/plain" \
        out="$folder/$ranks.h5" "$options" piece_mib=1
    check "$ranks ranks make the same" cmp "$folder/plain.h5" "$folder/$ranks.h5"
done
check "no parts are left" test ! -e "$folder/plain.h5.parts"

# Killed as soon as a part is there; then other options are refused, and the same ones go on.
"$mxlua" scripts/prepare.lua input="$folder/plain" out="$folder/killed.h5" "$options" piece_mib=1 >/dev/null 2>&1 &
process=$!
while kill -0 $process 2>/dev/null && [ ! -e "$folder/killed.h5.parts/part-000001" ]; do
    sleep 0.01
done
kill -9 $process 2>/dev/null
wait $process 2>/dev/null
check "it was killed half way" test ! -e "$folder/killed.h5"
touch -d '2001-01-01' "$folder/killed.h5.parts/part-000001"
cp -p "$folder/killed.h5.parts/part-000001" "$folder/part"
check "other options" refused input="$folder/plain" out="$folder/killed.h5" "$options" piece_mib=2
says "other options" "has parts of another preparation"
check "damaged part" cp /dev/null "$folder/killed.h5.parts/part-000001"
check "damaged part" refused input="$folder/plain" out="$folder/killed.h5" "$options" piece_mib=1
says "damaged part" "is damaged: remove it, and prepare again"
check "the part is there again" cp -p "$folder/part" "$folder/killed.h5.parts/part-000001"
check "it goes on" prepare input="$folder/plain" out="$folder/killed.h5" "$options" piece_mib=1
check "it makes the same" cmp "$folder/plain.h5" "$folder/killed.h5"
check "a store that is there" refused input="$folder/plain" out="$folder/killed.h5"
says "a store that is there" "is there already"

# Bad input.
printf '{"text": "one"}\n\n{"text": "two"\n{"id": 3}\n{"text": "four"}\n' >"$folder/bad.jsonl"
check "bad JSON" refused input="$folder/bad.jsonl" out="$folder/bad.h5"
says "bad JSON" "bad.jsonl:3: "
rm -rf "$folder/bad.h5.parts"
check "skipping" prepare input="$folder/bad.jsonl" out="$folder/bad.h5" on_error=skip
says "skipping" "2 documents, 7 tokens of a vocabulary of 256, 2 skipped"
check "no such field" refused input="$folder/plain/web.jsonl" out="$folder/field.h5" field=body
says "no such field" "web.jsonl:1: no string 'body' in it (it has: id, text)"
cp "$folder/bad.jsonl" "$folder/bad.lines"
check "format" prepare input="$folder/bad.lines" out="$folder/lines.h5" format=jsonl on_error=skip vocab_size=0
says "format" "2 documents, 7 tokens of a vocabulary of 256, 2 skipped"
check "no such format" refused input="$folder/bad.lines" out="$folder/none.h5" format=json
says "no such format" "format=json: expected one of auto, text, jsonl, bin, hdf5"
printf 'good\n\377\n' >"$folder/latin.txt"
check "no UTF-8" refused input="$folder/latin.txt" out="$folder/latin.h5"
says "no UTF-8" "latin.txt:1: invalid UTF-8 at byte 6 of the document"
check "no input" refused out="$folder/none.h5"
says "no input" "input= is missing"
check "nothing matches" refused input="$folder/*.nothing" out="$folder/none.h5"
says "nothing matches" "no file matches"
check "no EOS" refused input="$folder/plain" out="$folder/none.h5" add_eos=true
says "no EOS" "has no EOS"
head -c 1000 "$folder/gz/web.jsonl.gz" >"$folder/cut.jsonl.gz"
check "cut off" refused input="$folder/cut.jsonl.gz" out="$folder/cut.h5"
says "cut off" "cut.jsonl.gz' is damaged or truncated"

# Tokens that are there already.
printf '\001\000\002\000\000\000\003\000\000\000' >"$folder/t.bin"
check "bin" prepare input="$folder/t.bin" out="$folder/bin.h5" document_token=0
says "bin" "2 documents, 5 tokens of a vocabulary of 4"
check "stores" prepare input="$folder/bin.h5,$folder/bad.h5" out="$folder/both.h5"
says "stores" "4 documents, 12 tokens of a vocabulary of 256"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
