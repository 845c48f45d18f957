#include "io/format.h"

#include "io/file.h"

#include <stdbool.h>
#include <string.h>

#define UNPACK(command) "unpack it first: " command
#define JSON_LINES "convert it to JSON lines first, for example in Python with "
#define WEIGHTS "these are weights, which load_parameters_path and parameters= take"

typedef struct signature {
    size_t offset, bytes;
    const char *magic;
    bool letters; /* a text may start with these bytes too, so control characters must follow */
    mx_format format;
} signature;

#define SIGNATURE(offset, magic, ...)                                                                                  \
    {                                                                                                                  \
        (offset), sizeof(magic) - 1, (magic), false, { __VA_ARGS__ }                                                   \
    }
#define LETTERS(magic, ...)                                                                                            \
    {                                                                                                                  \
        0, sizeof(magic) - 1, (magic), true, { MX_FORMAT_OTHER, __VA_ARGS__ }                                          \
    }

static const signature signatures[] = {
    SIGNATURE(0, "\x1f\x8b\x08", MX_FORMAT_GZIP, "gzip-compressed",
              "unpack it first (gzip -d), or give it to scripts/prepare.lua as text or JSON lines"),
    SIGNATURE(0, "\x28\xb5\x2f\xfd", MX_FORMAT_ZSTD, "zstd-compressed",
              "unpack it first (zstd -d), or give it to scripts/prepare.lua as text or JSON lines"),
    SIGNATURE(0, "\x89HDF\r\n\x1a\n", MX_FORMAT_HDF5, "an HDF5 file",
              "give dataset_type=hdf5 (prepare.lua, eval.lua: format=hdf5)"),
    SIGNATURE(0,
              "\xfd"
              "7zXZ",
              MX_FORMAT_OTHER, "xz-compressed", UNPACK("xz -d")),
    LETTERS("BZh", "bzip2-compressed", UNPACK("bzip2 -d")),
    SIGNATURE(0, "\x04\x22\x4d\x18", MX_FORMAT_OTHER, "lz4-compressed", UNPACK("lz4 -d")),
    SIGNATURE(0, "\xff\x06\x00\x00sNaPpY", MX_FORMAT_OTHER, "snappy-compressed", UNPACK("snzip -d")),
    SIGNATURE(0, "PK\x03\x04", MX_FORMAT_ZIP, "a zip archive (or .npz, .pt, .docx, which are such)", UNPACK("unzip")),
    SIGNATURE(0, "PK\x05\x06", MX_FORMAT_OTHER, "an empty zip archive", "give files with data"),
    SIGNATURE(0, "7z\xbc\xaf\x27\x1c", MX_FORMAT_OTHER, "a 7z archive", UNPACK("7z x")),
    SIGNATURE(0, "Rar!\x1a\x07", MX_FORMAT_OTHER, "a rar archive", UNPACK("unrar x")),
    SIGNATURE(257, "ustar", MX_FORMAT_OTHER, "a tar archive", UNPACK("tar xf")),
    LETTERS("PAR1", "a Parquet file",
            JSON_LINES "pandas.read_parquet(FILE).to_json(OUT, orient='records', lines=True)"),
    LETTERS("PARE", "an encrypted Parquet file", JSON_LINES "pyarrow.parquet"),
    LETTERS("ARROW1", "an Arrow file",
            JSON_LINES "pandas.read_feather(FILE).to_json(OUT, orient='records', lines=True)"),
    LETTERS("FEA1", "a Feather file",
            JSON_LINES "pandas.read_feather(FILE).to_json(OUT, orient='records', lines=True)"),
    LETTERS("ORC", "an ORC file", JSON_LINES "pandas.read_orc(FILE).to_json(OUT, orient='records', lines=True)"),
    SIGNATURE(0, "Obj\x01", MX_FORMAT_OTHER, "an Avro file", JSON_LINES "fastavro"),
    SIGNATURE(0, "SQLite format 3", MX_FORMAT_OTHER, "an SQLite database", "export its texts as JSON lines first"),
    SIGNATURE(0, "\x93NUMPY", MX_FORMAT_OTHER, "a NumPy array",
              "write its values without the header first: numpy.load(FILE).astype('uint16').tofile(OUT)"),
    SIGNATURE(0, "\x80\x02\x8a\x0al\xfc", MX_FORMAT_PICKLE, "a file of PyTorch",
              "write its texts or tokens as they are first"),
    SIGNATURE(0, "MMIDIDX\0\0", MX_FORMAT_OTHER, "the index of a Megatron data set",
              "give the .bin file beside it, if its tokens are uint16"),
    {0, 4, "GGUF", true, {MX_FORMAT_GGUF, "a GGUF file", WEIGHTS}},
    SIGNATURE(0, "%PDF-", MX_FORMAT_OTHER, "a PDF document", "extract its text first: pdftotext"),
    SIGNATURE(0, "version https://git-lfs.github.com/spec/", MX_FORMAT_POINTER, "a git-lfs pointer, not the file",
              "run git lfs pull in its folder"),
    SIGNATURE(0, "\xff\xfe", MX_FORMAT_UTF16, "text in UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8"),
    SIGNATURE(0, "\xfe\xff", MX_FORMAT_UTF16, "text in UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8"),
};

/* Files with a header of 256 int32 that starts with this magic (llm.c, dev/data/data_common.py and train_gpt2.py). */
static const struct {
    int32_t magic;
    mx_format format;
} llmc[] = {
    {20240520, {MX_FORMAT_TOKENS_U16, "a file of uint16 tokens of llm.c", "give dataset_type=bin (format=bin)"}},
    {20240801, {MX_FORMAT_TOKENS_U32, "a file of uint32 tokens of llm.c", "give dataset_type=bin (format=bin)"}},
    {20240522,
     {MX_FORMAT_OTHER, "an evaluation file of llm.c (HellaSwag, MMLU; magic 20240522)",
      "it holds multiple-choice examples and no running text: give a token file (magic 20240520 or 20240801)"}},
    {20240326, {MX_FORMAT_OTHER, "a model of llm.c (magic 20240326)", "give a token file"}},
    {20240327, {MX_FORMAT_OTHER, "a debugging state of llm.c (magic 20240327)", "give a token file"}},
    {20240328, {MX_FORMAT_OTHER, "a tokenizer of llm.c (magic 20240328)", "give a token file"}},
    {20240527, {MX_FORMAT_OTHER, "an optimizer state of llm.c (magic 20240527)", "give a token file"}},
    {20240803, {MX_FORMAT_OTHER, "a Llama 3 model of llm.c (magic 20240803)", "give a token file"}},
};

static const mx_format swapped = {MX_FORMAT_OTHER, "a big-endian file of llm.c",
                                  "write it again with little-endian numbers"};
static const mx_format unknown_header = {MX_FORMAT_OTHER, "a file with a header of llm.c's kind and an unknown magic",
                                         "token files have the magic 20240520 (uint16) or 20240801 (uint32)"};
static const mx_format arrow_stream = {MX_FORMAT_OTHER, "an Arrow stream (of the package datasets)",
                                       JSON_LINES "datasets.Dataset.from_file(FILE).to_json(OUT)"};
static const mx_format pickle = {MX_FORMAT_PICKLE, "a pickle of Python", "write its texts or tokens as they are first"};
static const mx_format safetensors = {MX_FORMAT_SAFETENSORS, "a safetensors file", WEIGHTS};
static const mx_format utf16 = {MX_FORMAT_UTF16, "text in UTF-16",
                                "convert it first: iconv -f UTF-16LE (or UTF-16BE) -t UTF-8"};

static uint64_t number_at(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static bool all_zero(const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i])
            return false;
    return true;
}

static bool has_control(const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] < 0x20 && !(at[i] >= '\b' && at[i] <= '\r') && at[i] != 0x1b)
            return true;
    return false;
}

static const mx_format *llmc_format(const unsigned char *head, size_t bytes)
{
    if (bytes < 4)
        return NULL;
    uint32_t magic = (uint32_t)number_at(head, 4);
    for (size_t i = 0; i < sizeof llmc / sizeof *llmc; i++)
        if (magic == (uint32_t)llmc[i].magic)
            return &llmc[i].format;
        else if (__builtin_bswap32(magic) == (uint32_t)llmc[i].magic)
            return &swapped;
    /* The magics are dates. Behind its first numbers a header is zero, unlike tokens. */
    uint32_t month = magic / 100 % 100, day = magic % 100;
    bool date = magic / 10000 >= 2024 && magic / 10000 < 2040 && month >= 1 && month <= 12 && day >= 1 && day <= 31;
    return date && bytes >= MX_FORMAT_BYTES && all_zero(head + 256, MX_FORMAT_BYTES - 256) ? &unknown_header : NULL;
}

/* Every second byte is zero: Latin letters in UTF-16 without a byte-order mark. */
static bool is_utf16(const unsigned char *head, size_t bytes)
{
    size_t pairs = (bytes < 64 ? bytes : 64) / 2, zeros[2] = {0, 0};
    for (size_t i = 0; i < 2 * pairs; i++)
        zeros[i % 2] += head[i] == 0;
    return pairs >= 4 && zeros[0] + zeros[1] == pairs && (zeros[0] == 0 || zeros[1] == 0);
}

/* Formats that need more than a comparison of fixed bytes. */
static const mx_format *other_format(const unsigned char *head, size_t bytes)
{
    if (bytes < 16)
        return NULL;
    uint64_t length = number_at(head + 4, 4);
    if (number_at(head, 4) == UINT32_MAX && length > 0 && length < 1 << 26 && length % 8 == 0 && head[8] > 0 &&
        all_zero(head + 9, 3))
        return &arrow_stream;
    if (head[0] == 0x80 && head[1] >= 3 && head[1] <= 5 && head[2] == 0x95 && all_zero(head + 8, 3))
        return &pickle;
    length = number_at(head, 8);
    if (length > 1 && length < 1 << 27 && memcmp(head + 8, "{\"", 2) == 0)
        return &safetensors;
    return is_utf16(head, bytes) ? &utf16 : NULL;
}

const mx_format *mx_format_of(const void *head, size_t bytes)
{
    const unsigned char *at = head;
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++) {
        const signature *s = &signatures[i];
        if (bytes >= s->offset + s->bytes && memcmp(at + s->offset, s->magic, s->bytes) == 0 &&
            (!s->letters || has_control(at, bytes < 128 ? bytes : 128)))
            return &s->format;
    }
    const mx_format *format = llmc_format(at, bytes);
    return format ? format : other_format(at, bytes);
}

mx_status mx_format_refuse(const char *path, const mx_format *format, const char *expected)
{
    return mx_fail(MX_ERR_IO, "'%s' is %s, and %s is expected: %s", path, format->name, expected, format->advice);
}

mx_status mx_format_refuse_pointer(const char *path, const void *head, size_t bytes)
{
    const mx_format *format = mx_format_of(head, bytes < MX_FORMAT_BYTES ? bytes : MX_FORMAT_BYTES);
    if (!format || format->kind != MX_FORMAT_POINTER)
        return MX_OK;
    return mx_fail(MX_ERR_IO, "'%s' is %s: %s", path, format->name, format->advice);
}

mx_status mx_format_read(int fd, const char *path, int64_t bytes, const mx_format **out)
{
    unsigned char head[MX_FORMAT_BYTES];
    if (bytes > MX_FORMAT_BYTES)
        bytes = MX_FORMAT_BYTES;
    MX_TRY(mx_file_read_at(fd, path, 0, head, bytes));
    *out = mx_format_of(head, (size_t)bytes);
    return MX_OK;
}
