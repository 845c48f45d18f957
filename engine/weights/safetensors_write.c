#include "io/file.h"
#include "io/json.h"
#include "weights/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct planned {
    char *name;
    mx_dtype dtype;
    mx_shape shape;
    int64_t offset, bytes; /* in the data */
    int64_t rows, done;    /* done: those put */
    bool put;
} planned;

struct mx_safetensors_writer {
    mx_draft draft;
    int fd;
    int64_t start; /* where the data start in the file */
    planned *tensors;
    int64_t count;
};

void mx_safetensors_abort(mx_safetensors_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    mx_draft_discard(&w->draft);
    for (int64_t i = 0; i < w->count; i++)
        free(w->tensors[i].name);
    free(w->tensors);
    free(w);
}

/* Sorts the widest dtypes first, then by name, so that each tensor is aligned to the size of its elements. */
static int by_width(const void *a, const void *b)
{
    const planned *x = a, *y = b;
    size_t x_bytes = mx_dtype_bytes(x->dtype), y_bytes = mx_dtype_bytes(y->dtype);
    if (x_bytes != y_bytes)
        return x_bytes > y_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static mx_status check_names(const mx_safetensors_writer *w)
{
    const char **names = malloc(((size_t)w->count + 1) * sizeof *names);
    mx_status status = MX_OK;
    if (!names)
        return mx_fail(MX_ERR_MEMORY, "out of memory for %lld names", (long long)w->count);
    for (int64_t i = 0; i < w->count; i++)
        names[i] = w->tensors[i].name;
    qsort(names, (size_t)w->count, sizeof *names, by_name);
    for (int64_t i = 0; i < w->count && status == MX_OK; i++)
        if (strcmp(names[i], "__metadata__") == 0 || (i > 0 && strcmp(names[i], names[i - 1]) == 0))
            status = mx_fail(MX_ERR_VALUE, "'%s': the name '%s' is %s", w->draft.path, names[i],
                             i > 0 && strcmp(names[i], names[i - 1]) == 0 ? "given twice" : "the format's own");
    free(names);
    return status;
}

static mx_status take_plan(mx_safetensors_writer *w, const mx_planned_tensor *plan, int64_t count)
{
    w->tensors = calloc((size_t)count + 1, sizeof *w->tensors);
    if (!w->tensors)
        return mx_fail(MX_ERR_MEMORY, "out of memory for %lld tensors", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        planned *p = &w->tensors[i];
        *p = (planned){.name = strdup(plan[i].name), .dtype = plan[i].dtype, .shape = plan[i].shape};
        if (!p->name)
            return mx_fail(MX_ERR_MEMORY, "out of memory for a name");
        w->count++;
        p->rows = p->shape.n_dims ? p->shape.size[0] : 1;
        p->bytes = mx_shape_count(&p->shape) * (int64_t)mx_dtype_bytes(p->dtype);
    }
    MX_TRY(check_names(w));
    qsort(w->tensors, (size_t)count, sizeof *w->tensors, by_width);
    for (int64_t i = 1; i < count; i++)
        w->tensors[i].offset = w->tensors[i - 1].offset + w->tensors[i - 1].bytes;
    return MX_OK;
}

static mx_status append_integers(mx_value *map, const char *key, const int64_t *numbers, int count)
{
    mx_entry *list, *entry;
    MX_TRY(mx_value_append(map, key, &list));
    list->value.kind = MX_ARRAY;
    for (int i = 0; i < count; i++) {
        MX_TRY(mx_value_append(&list->value, NULL, &entry));
        entry->value.kind = MX_INT;
        entry->value.integer = numbers[i];
    }
    return MX_OK;
}

static mx_status append_string(mx_value *map, const char *key, const char *text)
{
    mx_entry *entry;
    MX_TRY(mx_value_append(map, key, &entry));
    return mx_value_set_string(&entry->value, text, strlen(text));
}

static mx_status describe(const mx_safetensors_writer *w, mx_value *header)
{
    mx_entry *entry;
    header->kind = MX_MAP;
    MX_TRY(mx_value_append(header, "__metadata__", &entry));
    entry->value.kind = MX_MAP;
    MX_TRY(append_string(&entry->value, "format", "pt"));
    for (int64_t i = 0; i < w->count; i++) {
        const planned *p = &w->tensors[i];
        const int64_t offsets[2] = {p->offset, p->offset + p->bytes};
        MX_TRY(mx_value_append(header, p->name, &entry));
        entry->value.kind = MX_MAP;
        MX_TRY(append_string(&entry->value, "dtype", mx_dtypes[p->dtype].safetensors));
        MX_TRY(append_integers(&entry->value, "shape", p->shape.size, p->shape.n_dims));
        MX_TRY(append_integers(&entry->value, "data_offsets", offsets, 2));
    }
    return MX_OK;
}

/* Pads the header with spaces, so that the data start at a multiple of 8. */
static mx_status write_header(mx_safetensors_writer *w)
{
    mx_value header = {.kind = MX_NULL};
    char *text = NULL;
    size_t bytes = 0;
    mx_status status = describe(w, &header);
    if (status == MX_OK)
        status = mx_json_encode(&header, 0, &text, &bytes);
    mx_value_free(&header);
    MX_TRY(status);
    uint64_t padded = (bytes + 7) / 8 * 8;
    status = mx_file_write_at(w->fd, w->draft.path, 0, &padded, sizeof padded);
    if (status == MX_OK)
        status = mx_file_write_at(w->fd, w->draft.path, 8, text, (int64_t)bytes);
    if (status == MX_OK)
        status = mx_file_write_at(w->fd, w->draft.path, 8 + (int64_t)bytes, "       ", (int64_t)(padded - bytes));
    free(text);
    w->start = 8 + (int64_t)padded;
    return status;
}

mx_status mx_safetensors_create(const char *path, const mx_planned_tensor *plan, int64_t count,
                                mx_safetensors_writer **out)
{
    *out = NULL;
    mx_safetensors_writer *w = calloc(1, sizeof *w);
    if (!w)
        return mx_fail(MX_ERR_MEMORY, "out of memory to write '%s'", path);
    w->fd = -1;
    mx_status status = mx_draft_open(&w->draft, path);
    if (status == MX_OK)
        status = take_plan(w, plan, count);
    if (status == MX_OK) {
        w->fd = open(w->draft.temporary, O_WRONLY | O_CLOEXEC);
        status = w->fd >= 0 ? write_header(w) : mx_fail(MX_ERR_IO, "cannot write '%s': %s", path, strerror(errno));
    }
    if (status != MX_OK) {
        mx_safetensors_abort(w);
        return status;
    }
    *out = w;
    return MX_OK;
}

/* Whether t can be the next rows of a planned tensor. */
static mx_status check_rows(const mx_safetensors_writer *w, const planned *p, const mx_tensor *t)
{
    bool fits = t->shape.n_dims == p->shape.n_dims;
    for (int d = 0; d < p->shape.n_dims && fits; d++)
        fits = d > 0 ? t->shape.size[d] == p->shape.size[d] : t->shape.size[d] <= p->rows - p->done;
    if (fits)
        return MX_OK;
    return mx_fail(MX_ERR_SHAPE, "'%s': the tensor '%s' is %s, planned was %s, of which %lld rows are there",
                   w->draft.path, p->name, mx_shape_text(&t->shape), mx_shape_text(&p->shape), (long long)p->done);
}

mx_status mx_safetensors_put(mx_safetensors_writer *w, const char *name, const mx_tensor *t)
{
    planned *p = NULL;
    for (int64_t i = 0; i < w->count && !p; i++)
        if (strcmp(w->tensors[i].name, name) == 0)
            p = &w->tensors[i];
    if (!p || (p->put && p->done == p->rows))
        return mx_fail(MX_ERR_VALUE, "'%s': the tensor '%s' was %s", w->draft.path, name,
                       p ? "put before" : "not planned");
    if (t->dtype != p->dtype)
        return mx_fail(MX_ERR_DTYPE, "'%s': the tensor '%s' is %s, planned was %s", w->draft.path, name,
                       mx_dtype_name(t->dtype), mx_dtype_name(p->dtype));
    MX_TRY(check_rows(w, p, t));
    int64_t bytes = mx_bytes(t), skip = p->done > 0 ? p->bytes / p->rows * p->done : 0;
    if (bytes > 0 && !mx_has_values(t))
        return mx_fail(MX_ERR_STATE, "'%s': the tensor '%s' has no values to write", w->draft.path, name);
    mx_map values;
    MX_TRY(mx_tensor_map(t, 0, mx_count(t), MX_MAP_READ, &values));
    mx_status status = mx_file_write_at(w->fd, w->draft.path, w->start + p->offset + skip, values.data, bytes);
    mx_tensor_unmap(&values);
    MX_TRY(status);
    p->put = true;
    p->done += t->shape.n_dims ? t->shape.size[0] : 1;
    return MX_OK;
}

mx_status mx_safetensors_commit(mx_safetensors_writer *w)
{
    mx_status status = MX_OK;
    for (int64_t i = 0; i < w->count && status == MX_OK; i++) {
        const planned *p = &w->tensors[i];
        if (!p->put || p->done < p->rows)
            status = mx_fail(MX_ERR_STATE, "'%s': the planned tensor '%s' was not put (%lld of its %lld rows were)",
                             w->draft.path, p->name, (long long)p->done, (long long)p->rows);
    }
    if (status == MX_OK) {
        int closed = close(w->fd);
        w->fd = -1;
        status = closed == 0 ? mx_draft_commit(&w->draft)
                             : mx_fail(MX_ERR_IO, "cannot write '%s': %s", w->draft.path, strerror(errno));
    }
    mx_safetensors_abort(w);
    return status;
}
