#include "weights/safetensors.h"

#include "io/file.h"
#include "io/json.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES_MOST = 100000000 };

static const mx_stored_type types[] = {
    {"F16", 1, 2, MX_F32, mx_decode_f16},
    {"BOOL", 1, 1, MX_U8, NULL},
    {"I16", 1, 2, -1, NULL},
    {"U16", 1, 2, -1, NULL},
    {"U32", 1, 4, -1, NULL},
    {"U64", 1, 8, -1, NULL},
    {"C64", 1, 8, -1, NULL},
    {"F8_E8M0", 1, 1, -1, NULL},
};

static bool find_type(const char *name, mx_stored_type *type)
{
    for (int d = 0; d < MX_DTYPES; d++)
        if (strcmp(mx_dtypes[d].safetensors, name) == 0) {
            *type = mx_stored_as_dtype((mx_dtype)d);
            return true;
        }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) {
            *type = types[i];
            return true;
        }
    return false;
}

/* ---- reading ---- */

static mx_status bad_entry(const mx_weights *w, const char *name, const char *expected)
{
    return mx_fail(MX_ERR_IO, "'%s': the header's entry '%s': expected %s", w->path, name, expected);
}

static mx_status read_shape(const mx_weights *w, const char *name, const mx_value *sizes, mx_shape *shape)
{
    *shape = (mx_shape){0};
    if (!sizes || sizes->kind != MX_ARRAY || sizes->count > MX_MAX_DIMS)
        return bad_entry(w, name, "a shape of up to 6 sizes");
    for (size_t d = 0; d < sizes->count; d++) {
        if (sizes->entries[d].value.kind != MX_INT)
            return bad_entry(w, name, "a shape of whole numbers");
        shape->size[shape->n_dims++] = sizes->entries[d].value.integer;
    }
    return MX_OK;
}

static mx_status read_entry(mx_weights *w, const mx_entry *entry, int64_t start)
{
    const mx_value *type_name = mx_value_get(&entry->value, "dtype");
    const mx_value *offsets = mx_value_get(&entry->value, "data_offsets");
    if (!type_name || type_name->kind != MX_STRING)
        return bad_entry(w, entry->key, "a map with dtype, shape and data_offsets");
    mx_stored_type type;
    if (!find_type(type_name->text, &type))
        return mx_fail(MX_ERR_IO, "'%s': tensor '%s' has the unknown dtype '%.32s'", w->path, entry->key,
                       type_name->text);
    mx_shape shape;
    MX_TRY(read_shape(w, entry->key, mx_value_get(&entry->value, "shape"), &shape));
    if (!offsets || offsets->kind != MX_ARRAY || offsets->count != 2 || offsets->entries[0].value.kind != MX_INT ||
        offsets->entries[1].value.kind != MX_INT)
        return bad_entry(w, entry->key, "two data_offsets");
    int64_t begin = offsets->entries[0].value.integer, end = offsets->entries[1].value.integer;
    if (begin < 0 || end < begin || end > w->bytes - start)
        return mx_fail(MX_ERR_IO, "'%s': tensor '%s' lies at bytes %lld to %lld of the data, which has %lld", w->path,
                       entry->key, (long long)begin, (long long)end, (long long)(w->bytes - start));
    MX_TRY(mx_weights_add(w, entry->key, &type, &shape, start + begin));
    const mx_stored_tensor *added = &w->tensors[w->count - 1];
    if (added->bytes != end - begin)
        return mx_fail(MX_ERR_IO,
                       "'%s': tensor '%s' is %s %s, which takes %lld bytes, and its data_offsets are %lld "
                       "apart",
                       w->path, entry->key, type.name, mx_shape_text(&shape), (long long)added->bytes,
                       (long long)(end - begin));
    return MX_OK;
}

/* Takes the map out of the header. */
static mx_status take_metadata(mx_weights *w, mx_value *from)
{
    if (from->kind != MX_MAP)
        return bad_entry(w, "__metadata__", "a map of strings");
    for (size_t i = 0; i < from->count; i++)
        if (from->entries[i].value.kind != MX_STRING)
            return bad_entry(w, "__metadata__", "a map of strings");
    w->metadata = *from;
    *from = (mx_value){.kind = MX_NULL};
    return MX_OK;
}

static mx_status read_entries(mx_weights *w, mx_value *header, int64_t start)
{
    if (header->kind != MX_MAP)
        return mx_fail(MX_ERR_IO, "'%s': the header is %s, expected a map", w->path, mx_kind_name(header->kind));
    for (size_t i = 0; i < header->count; i++)
        if (strcmp(header->entries[i].key, "__metadata__") == 0)
            MX_TRY(take_metadata(w, &header->entries[i].value));
        else
            MX_TRY(read_entry(w, &header->entries[i], start));
    return mx_weights_check_layout(w, start, true);
}

/* Reads the header's text; the caller frees it. */
static mx_status read_text(mx_weights *w, char **text, int64_t *length)
{
    unsigned char count[8];
    uint64_t bytes = 0;
    if (w->bytes < 8)
        return mx_fail(MX_ERR_IO, "'%s' has %lld bytes: it is neither a safetensors nor a GGUF file", w->path,
                       (long long)w->bytes);
    MX_TRY(mx_file_read_at(w->fd, w->path, 0, count, 8));
    memcpy(&bytes, count, 8);
    if (bytes > HEADER_BYTES_MOST || (int64_t)bytes > w->bytes - 8)
        return mx_fail(MX_ERR_IO,
                       "'%s' is no safetensors file, or truncated: it claims a header of %llu bytes, and "
                       "has %lld",
                       w->path, (unsigned long long)bytes, (long long)w->bytes);
    *length = (int64_t)bytes;
    *text = malloc((size_t)bytes + 1);
    if (!*text)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for a header of %lld bytes", w->path, (long long)bytes);
    mx_status status = mx_file_read_at(w->fd, w->path, 8, *text, *length);
    if (status == MX_OK && (*length == 0 || **text != '{'))
        status = mx_fail(MX_ERR_IO, "'%s' is no safetensors file: its header does not begin with '{'", w->path);
    if (status != MX_OK)
        free(*text);
    return status;
}

mx_status mx_safetensors_read_header(mx_weights *w)
{
    char *text = NULL;
    int64_t length = 0;
    mx_value header;
    w->metadata.kind = MX_MAP;
    MX_TRY(read_text(w, &text, &length));
    mx_status status = mx_json_parse(text, (size_t)length, w->path, &header);
    free(text);
    if (status != MX_OK)
        return status == MX_ERR_VALUE ? mx_context(MX_ERR_IO, "the header of a safetensors file") : status;
    status = read_entries(w, &header, 8 + length);
    mx_value_free(&header);
    return status;
}
