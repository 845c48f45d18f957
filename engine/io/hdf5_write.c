#include "io/checksum.h"
#include "io/file.h"
#include "io/hdf5_internal.h"

#include <stdlib.h>
#include <string.h>

struct mx_h5_writer {
    mx_draft draft;
    hid_t file;
};

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

static hid_t new_dataset(hid_t file, const char *name, hid_t type, hid_t space)
{
    hid_t link = H5Pcreate(H5P_LINK_CREATE), create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_create_intermediate_group(link, 1);
    H5Pset_char_encoding(link, H5T_CSET_UTF8);
    H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
    H5Pset_obj_track_times(create, 0); /* the same values give the same bytes */
    hid_t dataset = H5Dcreate2(file, name, type, space, link, create, H5P_DEFAULT);
    H5Pclose(link);
    H5Pclose(create);
    return dataset;
}

static herr_t put_tensor(hid_t file, const char *name, const mx_tensor *t, uint32_t *sums)
{
    hid_t type = mx_h5_new_type(t->dtype), space = new_space(&t->shape);
    hid_t dataset = new_dataset(file, name, type, space);
    herr_t result = dataset;
    mx_h5_rows r = mx_h5_rows_of(&t->shape, t->dtype);
    if (result >= 0 && mx_bytes(t) > 0) {
        result = H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, mx_data(t));
        if (result >= 0)
            result = put_sums(dataset, &r, mx_data(t), sums);
    }
    if (dataset >= 0 && H5Dclose(dataset) < 0)
        result = -1;
    H5Sclose(space);
    H5Tclose(type);
    return result;
}

mx_status mx_h5_put(mx_h5_writer *w, const char *name, const mx_tensor *t)
{
    MX_TRY(check_name(w, name));
    if (!t->storage || t->released)
        return mx_fail(MX_ERR_STATE, "'%s': tensor '%.200s' has been released: it has no values to write",
                       w->draft.path, name);
    mx_h5_rows r = mx_h5_rows_of(&t->shape, t->dtype);
    uint32_t *sums = malloc(((size_t)mx_h5_blocks(&r) + 1) * sizeof *sums);
    if (!sums)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for checksums", w->draft.path);
    H5Eclear2(H5E_DEFAULT);
    herr_t result = put_tensor(w->file, name, t, sums);
    free(sums);
    return result < 0 ? mx_h5_fail(w->draft.path, "cannot write tensor '%.200s'", name) : MX_OK;
}

/* ---- attributes ---- */

static herr_t put_string(hid_t file, const char *name, const mx_value *value)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_cset(type, H5T_CSET_UTF8);
    H5Tset_strpad(type, H5T_STR_NULLPAD);
    /* Of a fixed length, since strings of variable length lie where HDF5 has no checksum. Length 0 does not exist. */
    H5Tset_size(type, value->length ? value->length : 1);
    herr_t result = put_scalar_attribute(file, name, type, value->text);
    H5Tclose(type);
    return result;
}

static mx_status put_value(mx_h5_writer *w, const char *name, const mx_value *value)
{
    herr_t result = -1;
    H5Eclear2(H5E_DEFAULT);
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
    return result < 0 ? mx_h5_fail(w->draft.path, "cannot write attribute '%.200s'", name) : MX_OK;
}

mx_status mx_h5_put_attributes(mx_h5_writer *w, const mx_value *map)
{
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
    *out = NULL;
    mx_h5_start();
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
    H5Eclear2(H5E_DEFAULT);
    w->file = H5Fcreate(w->draft.temporary, H5F_ACC_TRUNC, create, access);
    H5Pclose(access);
    H5Pclose(create);
    if (w->file < 0) {
        status = mx_h5_fail(path, "cannot be written");
        mx_h5_abort(w);
        return status;
    }
    *out = w;
    return MX_OK;
}

mx_status mx_h5_commit(mx_h5_writer *w)
{
    H5Eclear2(H5E_DEFAULT);
    herr_t closed = H5Fflush(w->file, H5F_SCOPE_GLOBAL);
    if (closed >= 0) {
        closed = H5Fclose(w->file);
        w->file = -1;
    }
    mx_status status = closed < 0 ? mx_h5_fail(w->draft.path, "cannot be written") : mx_draft_commit(&w->draft);
    mx_h5_abort(w); /* after a commit there is nothing left to discard */
    return status;
}

void mx_h5_abort(mx_h5_writer *w)
{
    if (!w)
        return;
    if (w->file >= 0)
        H5Fclose(w->file);
    mx_draft_discard(&w->draft);
    free(w);
}
