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

# Killed as soon as a part is there; then the same options go on, and others start over.
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
cp -rp "$folder/killed.h5.parts" "$folder/other.h5.parts"
touch "$folder/other.h5.parts/part-000099.tmp-1-0" # of a process that was killed
check "other options" prepare input="$folder/plain" out="$folder/other.h5" "$options" piece_mib=2
says "other options" "other.h5.parts has parts that were made with other options (other pieces): starting over"
check "other options make the same" cmp "$folder/plain.h5" "$folder/other.h5"
check "nothing is left of them" test ! -e "$folder/other.h5.parts"
cp -rp "$folder/killed.h5.parts" "$folder/mine.h5.parts"
echo precious >"$folder/mine.h5.parts/notes"
check "a file of somebody else" refused input="$folder/plain" out="$folder/mine.h5"
says "a file of somebody else" "mine.h5.parts/notes is not of a preparation"
check "it stays" grep -q precious "$folder/mine.h5.parts/notes"
check "so do the parts" test -e "$folder/mine.h5.parts/part-000001"
check "damaged part" cp /dev/null "$folder/killed.h5.parts/part-000001"
check "damaged part" refused input="$folder/plain" out="$folder/killed.h5" "$options" piece_mib=1
says "damaged part" "is damaged: remove it, and prepare again"
check "the part is there again" cp -p "$folder/part" "$folder/killed.h5.parts/part-000001"
check "it goes on" prepare input="$folder/plain" out="$folder/killed.h5" "$options" piece_mib=1
check "it makes the same" cmp "$folder/plain.h5" "$folder/killed.h5"
check "a store that is there" refused input="$folder/plain" out="$folder/killed.h5"
says "a store that is there" "is there already"

# Two at once: the second is refused, until the first has ended.
mkdir "$folder/held.h5.parts"
"$mxlua" -e "local mx = require 'mx'
    local lock = require('mx.run.folder').lock('$folder/held.h5.parts')
    for _ = 1, 1000 do
        if mx.io.exists('$folder/go') then break end
        os.execute('sleep 0.02')
    end
    lock:release()" &
process=$!
while kill -0 $process 2>/dev/null && [ ! -e "$folder/held.h5.parts/run.lock" ]; do
    sleep 0.01
done
check "two at once" refused input="$folder/plain/text.txt" out="$folder/held.h5"
says "two at once" "held.h5.parts is in use by process $process"
says "two at once" "choose another out="
touch "$folder/go"
wait $process
check "afterwards" prepare input="$folder/plain/text.txt" out="$folder/held.h5"
check "nothing is left" test ! -e "$folder/held.h5.parts"

# Bad input.
printf '{"text": "one"}\n\n{"text": "two"\n{"id": 3}\n{"text": "four"}\n' >"$folder/bad.jsonl"
check "bad JSON" refused input="$folder/bad.jsonl" out="$folder/bad.h5"
says "bad JSON" "bad.jsonl:3: "
says "bad JSON" "on_error=skip leaves such documents out"
check "skipping" prepare input="$folder/bad.jsonl" out="$folder/bad.h5" on_error=skip
says "skipping" "2 documents, 7 tokens of a vocabulary of 256, 2 skipped"
printf '{"text": "%s"}\n' "$(head -c 1500000 /dev/zero | tr '\0' 'x')" ok >"$folder/long.jsonl"
check "a long line" refused input="$folder/long.jsonl" out="$folder/long.h5" max_document_mib=1
says "a long line" "has more than 1048576 bytes; max_document_mib allows longer ones"
check "as it says" prepare input="$folder/long.jsonl" out="$folder/long.h5" max_document_mib=2
says "as it says" "2 documents, 1,500,002 tokens"
# What was done goes on when a line is to be skipped, and starts over when it was skipped before.
{ cat "$folder/plain/web.jsonl" && printf '{"text": "caf\351"}\n'; } >"$folder/late.jsonl"
check "a bad line late" refused input="$folder/late.jsonl" out="$folder/late.h5" piece_mib=1
says "a bad line late" "late.jsonl:40001: column 14: invalid UTF-8; on_error=skip"
touch -d '2001-01-01' "$folder/late.h5.parts/part-000001"
touch -d '2001-01-01 00:00:01' "$folder/mark"
find "$folder/late.h5.parts" -name 'part-*' ! -newer "$folder/mark" >"$folder/old"
check "a part is there" grep -q part-000001 "$folder/old"
rm "$folder/late.h5.parts/part-000002" && mkdir "$folder/late.h5.parts/part-000002" # so that it stops before the merge
refused input="$folder/late.jsonl" out="$folder/late.h5" piece_mib=1 on_error=skip
check "it was not made again" test ! "$folder/late.h5.parts/part-000001" -nt "$folder/mark"
rmdir "$folder/late.h5.parts/part-000002"
check "a bad line skipped" prepare input="$folder/late.jsonl" out="$folder/late.h5" piece_mib=1 on_error=skip
says "a bad line skipped" "40,000 documents"
says "a bad line skipped" "1 skipped"
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

printf '\n{"text": ""}\n{"text": null}\n[]\n' >"$folder/none.jsonl"
check "no text" refused input="$folder/none.jsonl" out="$folder/none.h5" on_error=skip
says "no text" "no document of the input has text, 2 were skipped: there is nothing to write"

# Names with spaces, brackets, commas, quotes, letters beyond ASCII.
mkdir "$folder/a [1]"
printf '{"text": "one"}\n' >"$folder/a [1]/sp ace [2].jsonl"
printf '{"text": "three"}\n' >"$folder/a [1]/c,omma.jsonl"
printf '{"text": "seventh"}\n' >"$folder/a [1]/\"quo'te\".jsonl"
printf 'eleven byte' >"$folder/a [1]/ trail "
printf 'thirteen here' >"$folder/a [1]/Größe"
# reads NAME INPUT TOKENS
reads() {
    rm -f "$folder/name.h5"
    check "$1" prepare input="$2" out="$folder/name.h5"
    says "$1" "$3 tokens of a"
}
reads "a space" "$folder/a [1]/sp ace [2].jsonl" "1 documents, 3"
reads "two" "$folder/a [1]/sp ace [2].jsonl,$folder/a [1]/\"quo'te\".jsonl" "2 documents, 10"
reads "spaces around a comma" "$folder/a [1]/sp ace [2].jsonl , $folder/a [1]/Größe" "2 documents, 16"
reads "brackets around a list" "[$folder/plain/text.txt, $folder/plain/text.txt]" "1 documents, 32"
reads "a comma" "'$folder/a [1]/c,omma.jsonl',$folder/a [1]/Größe" "2 documents, 18"
reads "spaces of a name" "$folder/a [1]/ trail " "1 documents, 11"
reads "a pattern in such a folder" "$folder/a [1]/*[[]2].jsonl" "1 documents, 3"
reads "the folder" "$folder/a [1]" "5 documents, 39"
printf 'x' >"$folder/a [1]/line
break"
check "a line break" refused input="$folder/a [1]" out="$folder/none.h5"
says "a line break" "has a line break or another control character: rename the file"

# Files of another format, told by their first bytes.
# format NAME TEXT: whether the file is refused with this text.
format() {
    check "$1" refused input="$folder/$1" out="$folder/none.h5"
    says "$1" "$2"
}
printf 'PAR1\025\004\025' >"$folder/x.parquet"
format x.parquet "x.parquet' is a Parquet file, and text is expected: convert it to JSON lines first"
printf '\375\067zXZ\0\0' >"$folder/x.jsonl"
format x.jsonl "is xz-compressed, and a file of JSON lines is expected: unpack it first: xz -d"
(cd "$folder" && tar cf - bad.jsonl | gzip) >"$folder/x.jsonl.gz"
format x.jsonl.gz "is compressed, and inside a tar archive"
gzip -c "$folder/bad.jsonl" >"$folder/x.bin"
format x.bin "is gzip-compressed, and a file of tokens is expected"
cp "$folder/plain.h5" "$folder/x.txt"
format x.txt "is an HDF5 file"
printf '\377\376{\0' >"$folder/y.jsonl"
format y.jsonl "is text in UTF-16"
printf '[\n  {\n    "text": "one"\n  }\n]\n' >"$folder/pretty.json"
format pretty.json "is a JSON array, and an object on each line is expected: jq -c '.[]' FILE"
printf '  [{"text": "one"}, {"text": "two"}]' >"$folder/line.json"
format line.json "is a JSON array"
printf '{\n  "text": "one"\n}\n' >"$folder/object.json"
format object.json "is JSON that goes over several lines, and an object on each line is expected: jq -c . FILE"
cp "$folder/bad.jsonl" "$folder/plain.gz" # the name says nothing
check "lines named gz" prepare input="$folder/plain.gz" out="$folder/named.h5" format=jsonl on_error=skip
says "lines named gz" "2 documents, 7 tokens"
printf '\357\273\277first\n--\nsecond' >"$folder/bom.txt"
check "byte-order mark" prepare input="$folder/bom.txt" out="$folder/bom.h5" 'separator=\n--\n'
says "byte-order mark" "2 documents, 11 tokens"

# Ranks that read other files of one name.
mkdir "$folder/one" "$folder/two"
head -c 1500000 "$folder/plain/web.jsonl" | sed '$d' >"$folder/one/f.jsonl"
sed 's/document 0:/document !:/' "$folder/one/f.jsonl" >"$folder/two/f.jsonl"
program=$(realpath "$mxlua")
"$mpirun" -n 1 -wdir "$folder/one" "$program" "$PWD/scripts/prepare.lua" input=f.jsonl piece_mib=1 \
    out="$folder/ranks.h5" : -n 1 -wdir "$folder/two" "$program" "$PWD/scripts/prepare.lua" input=f.jsonl piece_mib=1 \
    out="$folder/ranks.h5" >"$folder/log" 2>&1
check "other files" test $? -ne 0
says "other files" "rank 1: 'f.jsonl' has $(stat -c %s "$folder/two/f.jsonl") bytes on $(hostname) (rank 1)"
says "other files" "of other contents on $(hostname) (rank 0): all ranks must read the same files"

# Tokens that are there already.
printf '\001\000\002\000\000\000\003\000\000\000' >"$folder/t.bin"
check "bin" prepare input="$folder/t.bin" out="$folder/bin.h5" document_token=0
says "bin" "2 documents, 5 tokens of a vocabulary of 4"
check "a small vocabulary" refused input="$folder/t.bin" out="$folder/small.h5" vocab_size=3
says "a small vocabulary" "t.bin' has the token id 3 at position 3, outside the vocabulary of 3"
{
    printf '\241\3314\001\007\0\0\0\003' && head -c 1015 /dev/zero
    printf '\001\0\0\0\377\364\001\0\002\0\0\0'
} >"$folder/llama3.bin"
check "uint32" prepare input="$folder/llama3.bin" out="$folder/llama3.h5"
says "uint32" "1 documents, 3 tokens of a vocabulary of 128,256"
check "stores" prepare input="$folder/bin.h5,$folder/bad.h5" out="$folder/both.h5"
says "stores" "4 documents, 12 tokens of a vocabulary of 256"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
