#include "weights/gguf.h"

#include "io/file.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16, NAME_BYTES_MOST = 64, KEY_BYTES_MOST = 65535, DIMS_MOST = 4, NESTED_MOST = 8 };

/* The types of metadata, in the order of their numbers. */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, TYPES };
static const int type_bytes[TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8}; /* of a string or an array: at least */

/* Reads the header from front to back, in pieces. */
typedef struct reader {
    mx_weights *w;
    int64_t at;           /* next byte of the file */
    int64_t start, held;  /* `piece` holds `held` bytes of the file, from `start` on */
    int64_t values;       /* values of metadata so far */
    unsigned char *piece; /* PIECE bytes */
} reader;

static mx_status need(const reader *r, uint64_t bytes)
{
    int64_t left = r->w->bytes - r->at;
    return bytes <= (uint64_t)left
               ? MX_OK
               : mx_fail(MX_ERR_IO,
                         "'%s' is truncated or damaged: %llu bytes expected at byte "
                         "%lld, the file has %lld",
                         r->w->path, (unsigned long long)bytes, (long long)r->at, (long long)r->w->bytes);
}

static mx_status get(reader *r, void *to, int64_t bytes)
{
    MX_TRY(need(r, (uint64_t)bytes));
    if (bytes > PIECE) {
        MX_TRY(mx_file_read_at(r->w->fd, r->w->path, r->at, to, bytes));
    } else {
        if (r->at < r->start || r->at + bytes > r->start + r->held) {
            int64_t left = r->w->bytes - r->at;
            r->start = r->at;
            r->held = left < PIECE ? left : PIECE;
            MX_TRY(mx_file_read_at(r->w->fd, r->w->path, r->start, r->piece, r->held));
        }
        memcpy(to, r->piece + (r->at - r->start), (size_t)bytes);
    }
    r->at += bytes;
    return MX_OK;
}

/* Reads an unsigned integer of 1, 2, 4 or 8 bytes. */
static mx_status get_unsigned(reader *r, int bytes, uint64_t *x)
{
    *x = 0;
    return get(r, x, bytes);
}

static mx_status get_u32(reader *r, uint32_t *x) { return get(r, x, 4); }

/* Reads a string without zero bytes, for keys and names; the caller frees it. */
static mx_status get_name(reader *r, int64_t most, const char *what, char **name)
{
    uint64_t length;
    *name = NULL;
    MX_TRY(get_unsigned(r, 8, &length));
    if (length == 0 || length > (uint64_t)most)
        return mx_fail(MX_ERR_IO, "'%s': %s of %llu bytes before byte %lld; expected 1 to %lld", r->w->path, what,
                       (unsigned long long)length, (long long)r->at, (long long)most);
    MX_TRY(need(r, length));
    *name = malloc(length + 1);
    if (!*name)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory", r->w->path);
    (*name)[length] = 0;
    mx_status status = get(r, *name, (int64_t)length);
    if (status == MX_OK && strlen(*name) != length)
        status = mx_fail(MX_ERR_IO, "'%s': %s with a zero byte before byte %lld", r->w->path, what, (long long)r->at);
    if (status != MX_OK) {
        free(*name);
        *name = NULL;
    }
    return status;
}

/* ---- metadata ---- */

static mx_status get_string(reader *r, mx_value *out)
{
    uint64_t length;
    MX_TRY(get_unsigned(r, 8, &length));
    MX_TRY(need(r, length));
    char *text = malloc(length + 1);
    if (!text)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for a string of %llu bytes", r->w->path,
                       (unsigned long long)length);
    mx_status status = get(r, text, (int64_t)length);
    if (status != MX_OK) {
        free(text);
        return status;
    }
    text[length] = 0;
    out->kind = MX_STRING;
    out->text = text;
    out->length = length;
    return MX_OK;
}

static mx_status get_number(reader *r, uint32_t type, mx_value *out)
{
    union {
        uint64_t u;
        int8_t i8;
        int16_t i16;
        int32_t i32;
        int64_t i64;
        float f32;
        double f64;
    } x;
    MX_TRY(get_unsigned(r, type_bytes[type], &x.u));
    if (type == F32 || type == F64) {
        out->kind = MX_FLOAT;
        out->number = type == F32 ? (double)x.f32 : x.f64;
        return MX_OK;
    }
    if ((type == U64 && x.u > INT64_MAX) || (type == BOOL && x.u > 1))
        return mx_fail(MX_ERR_IO, "'%s': the value %llu before byte %lld is out of its range", r->w->path,
                       (unsigned long long)x.u, (long long)r->at);
    if (type == BOOL) {
        out->kind = MX_BOOL;
        out->boolean = x.u == 1;
        return MX_OK;
    }
    out->kind = MX_INT;
    out->integer = type == I8 ? x.i8 : type == I16 ? x.i16 : type == I32 ? x.i32 : x.i64;
    return MX_OK;
}

static mx_status get_value(reader *r, uint32_t type, int depth, mx_value *out);

static mx_status get_array(reader *r, int depth, mx_value *out)
{
    uint32_t type;
    uint64_t count;
    MX_TRY(get_u32(r, &type));
    MX_TRY(get_unsigned(r, 8, &count));
    if (type >= TYPES || depth == NESTED_MOST)
        return mx_fail(MX_ERR_IO, "'%s': an array before byte %lld of the unknown type %u, or nested too deeply",
                       r->w->path, (long long)r->at, type);
    /* An array itself takes about as much memory as 8 values. */
    r->values += count <= GGUF_ARRAY_MOST ? (int64_t)count + 8 : GGUF_VALUES_MOST + 1;
    if (r->values > GGUF_VALUES_MOST)
        return mx_fail(MX_ERR_IO,
                       "'%s': an array of %llu values before byte %lld: at most %d are read, and %d of all "
                       "arrays together",
                       r->w->path, (unsigned long long)count, (long long)r->at, GGUF_ARRAY_MOST, GGUF_VALUES_MOST);
    MX_TRY(need(r, count * (uint64_t)type_bytes[type]));
    out->kind = MX_ARRAY;
    for (uint64_t i = 0; i < count; i++) {
        mx_entry *entry;
        MX_TRY(mx_value_append(out, NULL, &entry));
        MX_TRY(get_value(r, type, depth + 1, &entry->value));
    }
    return MX_OK;
}

static mx_status get_value(reader *r, uint32_t type, int depth, mx_value *out)
{
    switch (type) {
    case STRING:
        return get_string(r, out);
    case ARRAY:
        return get_array(r, depth, out);
    default:
        return get_number(r, type, out);
    }
}

static mx_status get_pair(reader *r)
{
    char *key;
    uint32_t type;
    mx_entry *entry;
    MX_TRY(get_name(r, KEY_BYTES_MOST, "a key", &key));
    mx_status status = mx_value_append(&r->w->metadata, key, &entry);
    free(key);
    MX_TRY(status);
    MX_TRY(get_u32(r, &type));
    if (type >= TYPES)
        return mx_fail(MX_ERR_IO, "'%s': the key '%.100s' has a value of the unknown type %u", r->w->path, entry->key,
                       type);
    status = get_value(r, type, 0, &entry->value);
    return status == MX_ERR_IO ? mx_context(status, "the key '%.100s'", entry->key) : status;
}

static mx_status check_keys(const mx_weights *w)
{
    const mx_entry **sorted;
    mx_status status = MX_OK;
    MX_TRY(mx_value_sorted(&w->metadata, &sorted));
    for (size_t i = 1; i < w->metadata.count && status == MX_OK; i++)
        if (strcmp(sorted[i]->key, sorted[i - 1]->key) == 0)
            status = mx_fail(MX_ERR_IO, "'%s' has the key '%.100s' twice", w->path, sorted[i]->key);
    free(sorted);
    return status;
}

static mx_status find_alignment(const mx_weights *w, int64_t *alignment)
{
    const mx_value *given = mx_value_get(&w->metadata, "general.alignment");
    *alignment = given && given->kind == MX_INT ? given->integer : 32;
    if ((given && given->kind != MX_INT) || *alignment <= 0 || *alignment % 8 != 0 || *alignment > 1 << 20)
        return mx_fail(MX_ERR_IO, "'%s': general.alignment = %lld, expected a multiple of 8", w->path,
                       (long long)*alignment);
    return MX_OK;
}

/* ---- tensors ---- */

static mx_status get_sizes(reader *r, const char *name, mx_shape *shape)
{
    uint32_t n_dims;
    MX_TRY(get_u32(r, &n_dims));
    if (n_dims > DIMS_MOST)
        return mx_fail(MX_ERR_IO, "'%s': tensor '%s' has %u dimensions, expected up to %d", r->w->path, name, n_dims,
                       DIMS_MOST);
    *shape = (mx_shape){.n_dims = (int)n_dims};
    for (int d = (int)n_dims - 1; d >= 0; d--) {
        uint64_t size;
        MX_TRY(get_unsigned(r, 8, &size));
        if (size == 0 || size > INT64_MAX)
            return mx_fail(MX_ERR_IO, "'%s': tensor '%s' has a size of %llu", r->w->path, name,
                           (unsigned long long)size);
        shape->size[d] = (int64_t)size;
    }
    return MX_OK;
}

/* Reads one entry of the list of tensors. Offsets are relative to the data, whose start is known after the last entry.
 */
static mx_status get_tensor(reader *r, int64_t alignment)
{
    char *name;
    mx_shape shape;
    uint32_t number = 0;
    uint64_t offset = 0;
    MX_TRY(get_name(r, NAME_BYTES_MOST, "a tensor's name", &name));
    mx_status status = get_sizes(r, name, &shape);
    if (status == MX_OK)
        status = get_u32(r, &number);
    if (status == MX_OK)
        status = get_unsigned(r, 8, &offset);
    mx_stored_type type = {0};
    if (status == MX_OK && !mx_gguf_type(number, &type))
        status = mx_fail(MX_ERR_IO, "'%s': tensor '%s' has the unknown type %u", r->w->path, name, number);
    if (status == MX_OK && (offset > (uint64_t)r->w->bytes || offset % (uint64_t)alignment != 0))
        status = mx_fail(MX_ERR_IO,
                         "'%s': tensor '%s' lies at byte %llu of the data: outside of the file, or not at a "
                         "multiple of %lld",
                         r->w->path, name, (unsigned long long)offset, (long long)alignment);
    if (status == MX_OK)
        status = mx_weights_add(r->w, name, &type, &shape, (int64_t)offset);
    free(name);
    return status;
}

static mx_status check_version(reader *r)
{
    uint32_t magic, version;
    MX_TRY(get_u32(r, &magic));
    MX_TRY(get_u32(r, &version));
    if (version == 2 || version == 3)
        return MX_OK;
    bool other_order = version != 0 && (version & 0xffffu) == 0;
    return mx_fail(MX_ERR_IO, "'%s' is GGUF of %s %u; versions 2 and 3 are read", r->w->path,
                   other_order ? "the other byte order, version" : "version",
                   other_order ? __builtin_bswap32(version) : version);
}

static mx_status read_all(reader *r)
{
    uint64_t tensors, pairs;
    int64_t alignment;
    MX_TRY(check_version(r));
    MX_TRY(get_unsigned(r, 8, &tensors));
    MX_TRY(get_unsigned(r, 8, &pairs));
    if (pairs > (uint64_t)r->w->bytes / 13 || tensors > (uint64_t)r->w->bytes / 25)
        return mx_fail(MX_ERR_IO, "'%s' claims %llu keys and %llu tensors: more than its %lld bytes can hold",
                       r->w->path, (unsigned long long)pairs, (unsigned long long)tensors, (long long)r->w->bytes);
    for (uint64_t i = 0; i < pairs; i++)
        MX_TRY(get_pair(r));
    MX_TRY(check_keys(r->w));
    MX_TRY(find_alignment(r->w, &alignment));
    for (uint64_t i = 0; i < tensors; i++)
        MX_TRY(get_tensor(r, alignment));
    int64_t start = (r->at + alignment - 1) / alignment * alignment;
    for (int64_t i = 0; i < r->w->count; i++)
        r->w->tensors[i].offset += start;
    return mx_weights_check_layout(r->w, start, false);
}

mx_status mx_gguf_read_header(mx_weights *w)
{
    reader r = {.w = w, .piece = malloc(PIECE)};
    if (!r.piece)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory", w->path);
    w->metadata.kind = MX_MAP;
    mx_status status = read_all(&r);
    free(r.piece);
    return status;
}
