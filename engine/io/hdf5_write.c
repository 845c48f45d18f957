#include "core/job.h"
#include "io/checksum.h"
#include "io/hdf5_driver.h"
#include "io/hdf5_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mx_status mx_h5_outcome(const mx_h5_writer *w, herr_t result, const char *format, ...)
{
    char what[300];
    if (w->error)
        return mx_fail(MX_ERR_IO, "cannot write '%s': %s", w->draft.path, strerror(w->error));
    if (result >= 0)
        return MX_OK;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return mx_h5_fail(w->draft.path, "%s", what);
}

/* ---- datasets ---- */

static mx_status check_name(const mx_h5_writer *w, const char *name)
{
    const char *part = name;
    for (bool last = false; !last; part++) {
        size_t length = strcspn(part, "/");
        if (length == 0 || (length == 1 && part[0] == '.'))
            return mx_fail(MX_ERR_VALUE, "'%s': a tensor cannot be named '%.200s': the parts between '/' must be names",
                           w->draft.path, name);
        part += length;
        last = *part == 0;
    }
    return MX_OK;
}

static herr_t put_attribute(hid_t object, const char *name, hid_t type, hid_t space, const void *data)
{
    hid_t attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attribute < 0)
        return -1;
    herr_t written = H5Awrite(attribute, type, data);
    herr_t closed = H5Aclose(attribute);
    return written < 0 || closed < 0 ? -1 : 0;
}

static herr_t put_scalar_attribute(hid_t object, const char *name, hid_t type, const void *data)
{
    hid_t space = H5Screate(H5S_SCALAR);
    herr_t result = put_attribute(object, name, type, space, data);
    H5Sclose(space);
    return result;
}

static hid_t new_space(const mx_shape *shape)
{
    hsize_t size[MX_MAX_DIMS];
    for (int d = 0; d < shape->n_dims; d++)
        size[d] = (hsize_t)shape->size[d];
    return shape->n_dims ? H5Screate_simple(shape->n_dims, size, NULL) : H5Screate(H5S_SCALAR);
}

mx_status mx_h5_new_dataset(const mx_h5_writer *w, const char *name, hid_t type, hid_t space, hid_t *out)
{
    hid_t link = H5Pcreate(H5P_LINK_CREATE), create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_create_intermediate_group(link, 1);
    H5Pset_char_encoding(link, H5T_CSET_UTF8);
    H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
    H5Pset_obj_track_times(create, 0); /* so that equal values give equal bytes */
    *out = H5Dcreate2(w->file, name, type, space, link, create, H5P_DEFAULT);
    mx_status status = mx_h5_outcome(w, *out < 0 ? -1 : 0, "cannot make tensor '%.200s'", name);
    H5Pclose(link);
    H5Pclose(create);
    return status;
}

mx_status mx_h5_add_extent(mx_h5_writer *w, hid_t dataset, int64_t bytes)
{
    if (w->count == w->room) {
        int64_t room = w->room ? 2 * w->room : 64;
        mx_extent *extents = realloc(w->extents, (size_t)room * sizeof *extents);
        if (!extents)
            return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for a list of %lld tensors", w->draft.path,
                           (long long)room);
        w->extents = extents;
        w->room = room;
    }
    w->extents[w->count++] = (mx_extent){(int64_t)H5Dget_offset(dataset), bytes};
    return MX_OK;
}

/* ---- tensors, some rows at a time ---- */

static void drop_growing(mx_h5_writer *w)
{
    mx_h5_growing *g = &w->growing;
    if (g->dataset > 0)
        H5Dclose(g->dataset);
    if (g->space > 0)
        H5Sclose(g->space);
    if (g->type > 0)
        H5Tclose(g->type);
    free(g->sums);
    free(g->name);
    *g = (mx_h5_growing){0};
}

static mx_status begin_tensor(mx_h5_writer *w, const char *name, mx_dtype dtype, const mx_shape *shape)
{
    mx_h5_growing *g = &w->growing;
    MX_TRY(check_name(w, name));
    *g = (mx_h5_growing){.name = strdup(name),
                         .dtype = dtype,
                         .shape = *shape,
                         .rows = mx_h5_rows_of(shape, dtype),
                         .type = mx_h5_new_type(dtype),
                         .space = new_space(shape)};
    g->sums = calloc((size_t)mx_h5_blocks(&g->rows) + 1, sizeof *g->sums);
    if (!g->name || !g->sums)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for checksums", w->draft.path);
    return mx_h5_new_dataset(w, name, g->type, g->space, &g->dataset);
}

static mx_status check_rows(const mx_h5_writer *w, const char *name, const mx_tensor *t, const mx_shape *shape)
{
    const mx_h5_growing *g = &w->growing;
    bool fits = t->shape.n_dims == shape->n_dims;
    for (int d = 1; d < shape->n_dims && fits; d++)
        fits = t->shape.size[d] == shape->size[d];
    if (!fits)
        return mx_fail(MX_ERR_SHAPE, "'%s': rows of shape %s do not fit the tensor '%.200s' of shape %s", w->draft.path,
                       mx_shape_text(&t->shape), name, mx_shape_text(shape));
    if (!g->name)
        return MX_OK;
    if (strcmp(g->name, name) != 0 || g->dtype != t->dtype || !mx_shape_equal(&g->shape, shape))
        return mx_fail(MX_ERR_STATE, "'%s': %lld of the %lld rows of the tensor '%.200s' (%s %s) are missing",
                       w->draft.path, (long long)(g->rows.rows - g->done), (long long)g->rows.rows, g->name,
                       mx_dtype_name(g->dtype), mx_shape_text(&g->shape));
    return MX_OK;
}

/* Adds the next `count` rows, at `data`, to the checksums of their blocks. */
static void add_sums(mx_h5_growing *g, const char *data, int64_t count)
{
    const mx_h5_rows *r = &g->rows;
    int64_t row = g->done, end = g->done + count;
    while (row < end) {
        int64_t block = row / r->block_rows, next = (block + 1) * r->block_rows;
        size_t bytes = (size_t)(((next < end ? next : end) - row) * r->row_bytes);
        g->sums[block] = mx_crc32c(g->sums[block], data, bytes);
        data += bytes;
        row = next;
    }
}

static herr_t write_rows(const mx_h5_growing *g, const mx_tensor *t, int64_t count, const void *values)
{
    if (count == g->rows.rows)
        return H5Dwrite(g->dataset, g->type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    hsize_t start[MX_MAX_DIMS] = {(hsize_t)g->done}, length[MX_MAX_DIMS];
    for (int d = 0; d < t->shape.n_dims; d++)
        length[d] = (hsize_t)t->shape.size[d];
    hid_t memory = new_space(&t->shape);
    herr_t result = H5Sselect_hyperslab(g->space, H5S_SELECT_SET, start, NULL, length, NULL);
    if (result >= 0)
        result = H5Dwrite(g->dataset, g->type, memory, g->space, H5P_DEFAULT, values);
    H5Sclose(memory);
    return result;
}

static mx_status add_rows(mx_h5_writer *w, const mx_tensor *t)
{
    mx_h5_growing *g = &w->growing;
    int64_t count = t->shape.n_dims ? t->shape.size[0] : 1;
    if (count > g->rows.rows - g->done)
        return mx_fail(MX_ERR_SHAPE, "'%s': %lld rows after the first %lld of the %lld of tensor '%.200s'",
                       w->draft.path, (long long)count, (long long)g->done, (long long)g->rows.rows, g->name);
    if (mx_bytes(t) > 0) {
        mx_map values;
        MX_TRY(mx_tensor_map(t, 0, mx_count(t), MX_MAP_READ, &values));
        herr_t written = write_rows(g, t, count, values.data);
        if (written >= 0)
            add_sums(g, values.data, count);
        mx_tensor_unmap(&values);
        MX_TRY(mx_h5_outcome(w, written, "cannot write tensor '%.200s'", g->name));
        if (g->done == 0)
            MX_TRY(mx_h5_add_extent(w, g->dataset, g->rows.rows * g->rows.row_bytes));
    }
    g->done += count;
    return MX_OK;
}

static mx_status finish_tensor(mx_h5_writer *w)
{
    mx_h5_growing *g = &w->growing;
    hsize_t blocks = (hsize_t)mx_h5_blocks(&g->rows);
    if (blocks > 0) {
        hid_t space = H5Screate_simple(1, &blocks, NULL);
        herr_t result = put_attribute(g->dataset, MX_H5_SUMS, H5T_STD_U32LE, space, g->sums);
        H5Sclose(space);
        if (result >= 0)
            result = put_scalar_attribute(g->dataset, MX_H5_SUM_ROWS, H5T_STD_I64LE, &g->rows.block_rows);
        MX_TRY(mx_h5_outcome(w, result, "cannot write the checksums of tensor '%.200s'", g->name));
    }
    herr_t closed = H5Dclose(g->dataset);
    g->dataset = -1;
    return mx_h5_outcome(w, closed, "cannot write tensor '%.200s'", g->name);
}

mx_status mx_h5_put_rows(mx_h5_writer *w, const char *name, const mx_shape *shape, const mx_tensor *t)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    if (t->released || !mx_has_values(t))
        return mx_fail(MX_ERR_STATE,
                       "'%s': tensor '%.200s' has no values to write: it was released, or is on a simulated device",
                       w->draft.path, name);
    MX_TRY(check_rows(w, name, t, shape));
    MX_TRY(mx_tensor_wait(t, false));
    mx_status status = w->growing.name ? MX_OK : begin_tensor(w, name, t->dtype, shape);
    if (status == MX_OK)
        status = add_rows(w, t);
    bool whole = w->growing.done == w->growing.rows.rows;
    if (status == MX_OK && whole)
        status = finish_tensor(w);
    if (status != MX_OK || whole)
        drop_growing(w);
    return status;
}

mx_status mx_h5_put(mx_h5_writer *w, const char *name, const mx_tensor *t)
{
    return mx_h5_put_rows(w, name, &t->shape, t);
}

/* ---- attributes ---- */

static herr_t put_string(hid_t file, const char *name, const mx_value *value)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_cset(type, H5T_CSET_UTF8);
    H5Tset_strpad(type, H5T_STR_NULLPAD);
    /* Fixed length, because HDF5 stores strings of variable length without a checksum. The length must be at least 1.
     */
    H5Tset_size(type, value->length ? value->length : 1);
    herr_t result = put_scalar_attribute(file, name, type, value->text);
    H5Tclose(type);
    return result;
}

static mx_status put_value(mx_h5_writer *w, const char *name, const mx_value *value)
{
    herr_t result = -1;
    if (!name[0])
        return mx_fail(MX_ERR_VALUE, "'%s': an attribute needs a name", w->draft.path);
    if (value->kind == MX_STRING && strlen(value->text) != value->length)
        return mx_fail(MX_ERR_VALUE, "'%s': attribute '%.200s' contains a zero byte", w->draft.path, name);
    if (value->kind == MX_STRING)
        result = put_string(w->file, name, value);
    else if (value->kind == MX_INT)
        result = put_scalar_attribute(w->file, name, H5T_STD_I64LE, &value->integer);
    else if (value->kind == MX_FLOAT)
        result = put_scalar_attribute(w->file, name, H5T_IEEE_F64LE, &value->number);
    else
        return mx_fail(MX_ERR_VALUE, "'%s': attribute '%.200s' is %s; expected a string or a number", w->draft.path,
                       name, mx_kind_name(value->kind));
    return mx_h5_outcome(w, result, "cannot write attribute '%.200s'", name);
}

mx_status mx_h5_put_attributes(mx_h5_writer *w, const mx_value *map)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    const mx_entry **sorted;
    if (map->kind != MX_MAP)
        return mx_fail(MX_ERR_VALUE, "'%s': attributes are %s; expected a map", w->draft.path, mx_kind_name(map->kind));
    MX_TRY(mx_value_sorted(map, &sorted));
    mx_status status = MX_OK;
    for (size_t i = 0; i < map->count && status == MX_OK; i++)
        status = put_value(w, sorted[i]->key, &sorted[i]->value);
    free(sorted);
    return status;
}

/* ---- the file ---- */

mx_status mx_h5_create(const char *path, mx_h5_writer **out)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    *out = NULL;
    mx_h5_writer *w = calloc(1, sizeof *w);
    if (!w)
        return mx_fail(MX_ERR_MEMORY, "out of memory to write '%s'", path);
    mx_status status = mx_draft_open(&w->draft, path);
    if (status != MX_OK) {
        free(w);
        return status;
    }
    hid_t access = mx_h5_access(), create = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_obj_track_times(create, 0);
    w->file = -1;
    if (mx_h5_use_driver(access, &w->error) >= 0)
        w->file = H5Fcreate(w->draft.temporary, H5F_ACC_TRUNC, create, access);
    status = mx_h5_outcome(w, w->file < 0 ? -1 : 0, "cannot be written");
    H5Pclose(access);
    H5Pclose(create);
    if (status != MX_OK) {
        mx_h5_abort(w);
        return status;
    }
    *out = w;
    return MX_OK;
}

static mx_status close_file(mx_h5_writer *w)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    herr_t closed = H5Fclose(w->file);
    w->file = -1;
    return mx_h5_outcome(w, closed, "cannot be written");
}

mx_status mx_h5_commit(mx_h5_writer *w)
{
    const mx_h5_growing *g = &w->growing;
    mx_status status = MX_OK;
    if (g->name)
        status = mx_fail(MX_ERR_STATE, "'%s': %lld of the %lld rows of the tensor '%.200s' are missing", w->draft.path,
                         (long long)(g->rows.rows - g->done), (long long)g->rows.rows, g->name);
    else
        status = close_file(w);
    if (status == MX_OK)
        status = mx_seal_write(w->draft.temporary, w->draft.path, w->extents, w->count);
    if (status == MX_OK)
        status = mx_draft_commit(&w->draft);
    mx_h5_abort(w); /* after a commit this only frees the writer */
    return status;
}

void mx_h5_abort(mx_h5_writer *w)
{
    if (!w)
        return;
    if (w->file >= 0) {
        __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
        drop_growing(w);
        (void)close_file(w);
    }
    mx_draft_discard(&w->draft);
    free(w->extents);
    free(w);
}
