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

static herr_t put_sums(hid_t dataset, const mx_h5_rows *r, const char *data, uint32_t *sums)
{
    hsize_t blocks = (hsize_t)mx_h5_blocks(r);
    for (hsize_t b = 0; b < blocks; b++) {
        int64_t first = (int64_t)b * r->block_rows;
        int64_t rows = r->rows - first < r->block_rows ? r->rows - first : r->block_rows;
        sums[b] = mx_crc32c(0, data + first * r->row_bytes, (size_t)(rows * r->row_bytes));
    }
    hid_t space = H5Screate_simple(1, &blocks, NULL);
    herr_t result = put_attribute(dataset, MX_H5_SUMS, H5T_STD_U32LE, space, sums);
    H5Sclose(space);
    return result < 0 ? result : put_scalar_attribute(dataset, MX_H5_SUM_ROWS, H5T_STD_I64LE, &r->block_rows);
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

static mx_status put_values(mx_h5_writer *w, hid_t dataset, hid_t type, const char *name, const mx_tensor *t)
{
    mx_h5_rows r = mx_h5_rows_of(&t->shape, t->dtype);
    herr_t written = H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, mx_data(t));
    MX_TRY(mx_h5_outcome(w, written, "cannot write tensor '%.200s'", name));
    MX_TRY(mx_h5_add_extent(w, dataset, mx_bytes(t)));
    uint32_t *sums = malloc((size_t)mx_h5_blocks(&r) * sizeof *sums);
    if (!sums)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for checksums", w->draft.path);
    herr_t result = put_sums(dataset, &r, mx_data(t), sums);
    free(sums);
    return mx_h5_outcome(w, result, "cannot write the checksums of tensor '%.200s'", name);
}

mx_status mx_h5_put(mx_h5_writer *w, const char *name, const mx_tensor *t)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    MX_TRY(check_name(w, name));
    if (t->released || !mx_data(t))
        return mx_fail(MX_ERR_STATE,
                       "'%s': tensor '%.200s' has no values to write: it was released, or is on a simulated device",
                       w->draft.path, name);
    MX_TRY(mx_tensor_wait(t, false));
    hid_t type = mx_h5_new_type(t->dtype), space = new_space(&t->shape);
    hid_t dataset;
    mx_status status = mx_h5_new_dataset(w, name, type, space, &dataset);
    if (status == MX_OK && mx_bytes(t) > 0)
        status = put_values(w, dataset, type, name, t);
    if (dataset >= 0) {
        herr_t closed = H5Dclose(dataset);
        status = status == MX_OK ? mx_h5_outcome(w, closed, "cannot write tensor '%.200s'", name) : status;
    }
    H5Sclose(space);
    H5Tclose(type);
    return status;
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
    mx_status status = close_file(w);
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
    if (w->file >= 0)
        (void)close_file(w);
    mx_draft_discard(&w->draft);
    free(w->extents);
    free(w);
}
