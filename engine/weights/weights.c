#include "weights/weights.h"

#include "core/f16.h"
#include "io/file.h"
#include "io/format.h"
#include "weights/gguf.h"
#include "weights/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20 };

/* ---- values ---- */

mx_status mx_decode_f16(const unsigned char *from, int64_t values, void *to)
{
    for (int64_t i = 0; i < values; i++)
        ((float *)to)[i] = mx_from_f16((uint16_t)(from[2 * i] | from[2 * i + 1] << 8));
    return MX_OK;
}

/* ---- the list of tensors ---- */

static mx_status new_weights(const char *path, mx_weights **out)
{
    mx_weights *w = calloc(1, sizeof *w);
    if (w) {
        w->fd = -1;
        w->path = strdup(path);
    }
    if (!w || !w->path) {
        free(w);
        return mx_fail(MX_ERR_MEMORY, "out of memory to open '%s'", path);
    }
    *out = w;
    return MX_OK;
}

static mx_status read_header(mx_weights *w)
{
    char head[64] = "";
    MX_TRY(mx_file_open(w->path, &w->fd, &w->bytes));
    int64_t bytes = w->bytes < (int64_t)sizeof head ? w->bytes : (int64_t)sizeof head;
    MX_TRY(mx_file_read_at(w->fd, w->path, 0, head, bytes));
    MX_TRY(mx_format_refuse_pointer(w->path, head, (size_t)bytes));
    if (memcmp(head, "GGUF", 4) == 0) {
        w->format = "gguf";
        return mx_gguf_read_header(w);
    }
    w->format = "safetensors";
    return mx_safetensors_read_header(w);
}

mx_status mx_weights_open(const char *path, mx_weights **out)
{
    mx_weights *w = NULL;
    *out = NULL;
    MX_TRY(new_weights(path, &w));
    mx_status status = read_header(w);
    if (status != MX_OK) {
        mx_weights_close(w);
        return status;
    }
    *out = w;
    return MX_OK;
}

void mx_weights_close(mx_weights *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    for (int64_t i = 0; i < w->count; i++)
        free(w->tensors[i].name);
    free(w->tensors);
    mx_value_free(&w->metadata);
    free(w->path);
    free(w);
}

const mx_stored_tensor *mx_weights_find(const mx_weights *w, const char *name)
{
    for (int64_t i = 0; i < w->count; i++)
        if (strcmp(w->tensors[i].name, name) == 0)
            return &w->tensors[i];
    return NULL;
}

/* The size of a tensor in bytes, which must not exceed the size of the file. */
static mx_status measure(const mx_weights *w, const char *name, const mx_stored_type *type, const mx_shape *shape,
                         int64_t *bytes)
{
    int64_t values = 1, most = w->bytes / type->block_bytes * type->block + type->block;
    for (int d = 0; d < shape->n_dims; d++)
        if (shape->size[d] < 0)
            return mx_fail(MX_ERR_IO, "'%s': tensor '%s' has a size of %lld", w->path, name, (long long)shape->size[d]);
        else if (shape->size[d] == 0)
            most = 0;
    for (int d = 0; d < shape->n_dims; d++) {
        if (most > 0 && shape->size[d] > most / values)
            return mx_fail(MX_ERR_IO, "'%s': tensor '%s' is %s %s: more than the file of %lld bytes can hold", w->path,
                           name, type->name, mx_shape_text(shape), (long long)w->bytes);
        values = most > 0 ? values * shape->size[d] : 0;
    }
    int64_t row = shape->n_dims ? shape->size[shape->n_dims - 1] : 1;
    if (row % type->block != 0)
        return mx_fail(MX_ERR_IO, "'%s': tensor '%s' is %s %s: rows of it must be of whole blocks of %lld", w->path,
                       name, type->name, mx_shape_text(shape), (long long)type->block);
    *bytes = values / type->block * type->block_bytes;
    return MX_OK;
}

mx_stored_type mx_stored_as_dtype(mx_dtype dtype)
{
    return (mx_stored_type){.name = mx_dtypes[dtype].safetensors,
                            .block = 1,
                            .block_bytes = (int64_t)mx_dtype_bytes(dtype),
                            .dtype = (int)dtype};
}

mx_status mx_weights_add(mx_weights *w, const char *name, const mx_stored_type *type, const mx_shape *shape,
                         int64_t offset)
{
    int64_t bytes = 0;
    MX_TRY(measure(w, name, type, shape, &bytes));
    if (w->count == w->room) {
        int64_t room = w->room ? 2 * w->room : 8;
        mx_stored_tensor *grown = realloc(w->tensors, (size_t)room * sizeof *grown);
        if (!grown)
            return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for %lld tensors", w->path, (long long)room);
        w->tensors = grown;
        w->room = room;
    }
    char *copy = strdup(name);
    if (!copy)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory", w->path);
    w->tensors[w->count++] =
        (mx_stored_tensor){.name = copy, .type = *type, .shape = *shape, .offset = offset, .bytes = bytes};
    return MX_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mx_stored_tensor *)a)->name, ((const mx_stored_tensor *)b)->name);
}

static int by_offset(const void *a, const void *b)
{
    const mx_stored_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

mx_status mx_weights_check_layout(mx_weights *w, int64_t start, bool dense)
{
    if (w->count > 0)
        qsort(w->tensors, (size_t)w->count, sizeof *w->tensors, by_name);
    for (int64_t i = 1; i < w->count; i++)
        if (strcmp(w->tensors[i].name, w->tensors[i - 1].name) == 0)
            return mx_fail(MX_ERR_IO, "'%s' has two tensors called '%s'", w->path, w->tensors[i].name);
    if (w->count > 0)
        qsort(w->tensors, (size_t)w->count, sizeof *w->tensors, by_offset);
    int64_t end = start;
    for (int64_t i = 0; i < w->count; i++) {
        const mx_stored_tensor *t = &w->tensors[i];
        if (t->offset < end)
            return i == 0 ? mx_fail(MX_ERR_IO, "'%s': tensor '%s' begins before the data", w->path, t->name)
                          : mx_fail(MX_ERR_IO, "'%s': the tensors '%s' and '%s' share bytes", w->path, t[-1].name,
                                    t->name);
        if (dense && t->offset != end)
            return mx_fail(MX_ERR_IO, "'%s': %lld bytes before the tensor '%s' belong to none", w->path,
                           (long long)(t->offset - end), t->name);
        if (t->offset > w->bytes || t->bytes > w->bytes - t->offset)
            return mx_fail(MX_ERR_IO, "'%s' is truncated: tensor '%s' ends at byte %lld, the file has %lld", w->path,
                           t->name, (long long)(t->offset + t->bytes), (long long)w->bytes);
        end = t->offset + t->bytes;
    }
    if (dense && end != w->bytes)
        return mx_fail(MX_ERR_IO, "'%s': %lld bytes after the last tensor belong to none", w->path,
                       (long long)(w->bytes - end));
    return MX_OK;
}

/* ---- reading ---- */

/* Checks a range of rows; returns the shape of the result and the index of its first value. */
static mx_status check_rows(const mx_weights *w, const mx_stored_tensor *from, int64_t first, int64_t rows,
                            mx_shape *shape, int64_t *start)
{
    *shape = from->shape;
    *start = 0;
    int64_t all = from->shape.n_dims ? from->shape.size[0] : 0;
    if (first < 0 || first > all || rows < -1 || (rows > 0 && rows > all - first))
        return mx_fail(MX_ERR_VALUE, "'%s': %lld rows from row %lld on (counted from 0) of tensor '%s', which has %lld",
                       w->path, (long long)rows, (long long)first, from->name, (long long)all);
    if (from->shape.n_dims == 0)
        return rows == -1 ? MX_OK
                          : mx_fail(MX_ERR_VALUE, "'%s': tensor '%s' is a scalar and has no rows", w->path, from->name);
    shape->size[0] = rows == -1 ? all - first : rows;
    *start = all > 0 ? first * (mx_shape_count(&from->shape) / all) : 0;
    return MX_OK;
}

/* Reads `values` values from index `start` on into `to`; values that must be decoded go through `piece`. */
static mx_status read_values(mx_weights *w, const mx_stored_tensor *from, int64_t start, int64_t values,
                             unsigned char *piece, char *to)
{
    const mx_stored_type *type = &from->type;
    int64_t offset = from->offset + start / type->block * type->block_bytes;
    if (!type->decode)
        return mx_file_read_at(w->fd, w->path, offset, to, values / type->block * type->block_bytes);
    int64_t at_once = PIECE_BYTES / type->block_bytes * type->block;
    int64_t width = (int64_t)mx_dtype_bytes((mx_dtype)type->dtype);
    for (int64_t done = 0; done < values; done += at_once) {
        int64_t part = values - done < at_once ? values - done : at_once;
        MX_TRY(mx_file_read_at(w->fd, w->path, offset + done / type->block * type->block_bytes, piece,
                               part / type->block * type->block_bytes));
        mx_status status = type->decode(piece, part, to + done * width);
        if (status != MX_OK)
            return mx_context(status, "'%s': tensor '%s'", w->path, from->name);
    }
    return MX_OK;
}

mx_status mx_weights_read(mx_weights *w, const char *name, int64_t first, int64_t rows, mx_tensor **out)
{
    *out = NULL;
    mx_shape shape;
    int64_t start;
    const mx_stored_tensor *from = mx_weights_find(w, name);
    if (!from)
        return mx_fail(MX_ERR_IO, "'%s' has no tensor '%s' (it has %lld)", w->path, name, (long long)w->count);
    if (from->type.dtype < 0)
        return mx_fail(MX_ERR_DTYPE, "'%s': tensor '%s' is stored as %s, which is not read", w->path, name,
                       from->type.name);
    MX_TRY(check_rows(w, from, first, rows, &shape, &start));
    mx_tensor *t;
    MX_TRY(mx_tensor_new((mx_dtype)from->type.dtype, &shape, &t));
    unsigned char *piece = from->type.decode ? malloc(PIECE_BYTES) : NULL;
    mx_map values = {0};
    mx_status status = from->type.decode && !piece ? mx_fail(MX_ERR_MEMORY, "'%s': out of memory to read", w->path)
                                                   : mx_tensor_map(t, 0, mx_count(t), MX_MAP_WRITE, &values);
    if (values.data)
        status = read_values(w, from, start, mx_count(t), piece, values.data);
    mx_tensor_unmap(&values);
    free(piece);
    if (status != MX_OK) {
        mx_release(t);
        return status;
    }
    *out = t;
    return MX_OK;
}

/* ---- codes ---- */

/* A block of Q8_0 is a scale in f16 and its codes. */
static mx_status split_blocks(mx_weights *w, const mx_stored_tensor *from, int64_t start, int64_t values,
                              unsigned char *piece, int8_t *codes, float *scales)
{
    int64_t size = from->type.block, bytes = from->type.block_bytes, at_once = PIECE_BYTES / bytes;
    int64_t offset = from->offset + start / size * bytes, blocks = values / size;
    for (int64_t done = 0; done < blocks; done += at_once) {
        int64_t part = blocks - done < at_once ? blocks - done : at_once;
        MX_TRY(mx_file_read_at(w->fd, w->path, offset + done * bytes, piece, part * bytes));
        for (int64_t i = 0; i < part; i++) {
            const unsigned char *block = piece + i * bytes;
            scales[done + i] = mx_from_f16((uint16_t)(block[0] | block[1] << 8));
            memcpy(codes + (done + i) * size, block + 2, (size_t)size);
        }
    }
    return MX_OK;
}

static mx_status fill_codes(mx_weights *w, const mx_stored_tensor *from, int64_t start, mx_tensor *codes,
                            mx_tensor *scales)
{
    mx_map bytes = {0}, factors = {0};
    unsigned char *piece = malloc(PIECE_BYTES);
    mx_status status = piece ? MX_OK : mx_fail(MX_ERR_MEMORY, "'%s': out of memory to read", w->path);
    if (status == MX_OK)
        status = mx_tensor_map(codes, 0, mx_count(codes), MX_MAP_WRITE, &bytes);
    if (status == MX_OK)
        status = mx_tensor_map(scales, 0, mx_count(scales), MX_MAP_WRITE, &factors);
    if (status == MX_OK && bytes.data && factors.data)
        status = split_blocks(w, from, start, mx_count(codes), piece, bytes.data, factors.data);
    mx_tensor_unmap(&bytes);
    mx_tensor_unmap(&factors);
    free(piece);
    return status;
}

mx_status mx_weights_read_codes(mx_weights *w, const char *name, int64_t first, int64_t rows, mx_tensor **codes,
                                mx_tensor **scales)
{
    mx_shape shape;
    int64_t start;
    *codes = *scales = NULL;
    const mx_stored_tensor *from = mx_weights_find(w, name);
    if (!from)
        return mx_fail(MX_ERR_IO, "'%s' has no tensor '%s' (it has %lld)", w->path, name, (long long)w->count);
    if (strcmp(from->type.name, "Q8_0") != 0 || from->shape.n_dims < 2)
        return mx_fail(MX_ERR_DTYPE, "'%s': tensor '%s' is %s %s; codes are read of matrices of Q8_0", w->path, name,
                       from->type.name, mx_shape_text(&from->shape));
    MX_TRY(check_rows(w, from, first, rows, &shape, &start));
    mx_status status = mx_tensor_new(MX_I8, &shape, codes);
    shape.size[shape.n_dims - 1] /= from->type.block;
    if (status == MX_OK)
        status = mx_tensor_new(MX_F32, &shape, scales);
    if (status == MX_OK)
        status = fill_codes(w, from, start, *codes, *scales);
    if (status != MX_OK) {
        mx_release(*codes);
        mx_release(*scales);
        *codes = *scales = NULL;
    }
    return status;
}
