#include "io/hdf5_internal.h"

#include <stdlib.h>

struct mx_h5_stream {
    mx_h5_writer *w;
    hid_t dataset, type, space;
    int64_t count, done;
};

static hid_t type_of(mx_h5_int type)
{
    return type == MX_H5_U16 ? H5T_STD_U16LE : type == MX_H5_U32 ? H5T_STD_U32LE : H5T_STD_I64LE;
}

static void free_stream(mx_h5_stream *s)
{
    if (s->dataset >= 0)
        H5Dclose(s->dataset);
    H5Sclose(s->space);
    free(s);
}

mx_status mx_h5_stream_new(mx_h5_writer *w, const char *name, mx_h5_int type, int64_t count, bool checked,
                           mx_h5_stream **out)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    *out = NULL;
    mx_h5_stream *s = calloc(1, sizeof *s);
    if (!s)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory", w->draft.path);
    hsize_t size = (hsize_t)count;
    *s = (mx_h5_stream){.w = w, .type = type_of(type), .space = H5Screate_simple(1, &size, NULL), .count = count};
    mx_status status = mx_h5_new_dataset(w, name, s->type, s->space, &s->dataset);
    if (status != MX_OK) {
        free_stream(s);
        return status;
    }
    /* HDF5 assigns the offset at the first write, so write one value now; the first put overwrites it. */
    const int64_t zero = 0;
    int64_t value_bytes = (int64_t)H5Tget_size(s->type);
    status = mx_h5_stream_put(s, &zero, 1);
    s->done = 0;
    if (status == MX_OK && checked)
        status = mx_h5_add_extent(w, s->dataset, count * value_bytes);
    if (status != MX_OK) {
        free_stream(s);
        return status;
    }
    *out = s;
    return MX_OK;
}

mx_status mx_h5_stream_put(mx_h5_stream *s, const void *values, int64_t count)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    if (count < 0 || count > s->count - s->done)
        return mx_fail(MX_ERR_VALUE, "'%s': %lld values after the first %lld of a dataset of %lld", s->w->draft.path,
                       (long long)count, (long long)s->done, (long long)s->count);
    if (count == 0)
        return MX_OK;
    hsize_t start = (hsize_t)s->done, length = (hsize_t)count;
    hid_t memory = H5Screate_simple(1, &length, NULL);
    herr_t result = H5Sselect_hyperslab(s->space, H5S_SELECT_SET, &start, NULL, &length, NULL);
    if (result >= 0)
        result = H5Dwrite(s->dataset, s->type, memory, s->space, H5P_DEFAULT, values);
    mx_status status = mx_h5_outcome(s->w, result, "cannot write values");
    H5Sclose(memory);
    s->done += count;
    return status;
}

mx_status mx_h5_stream_close(mx_h5_stream *s)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    mx_status status = MX_OK;
    if (s->done != s->count)
        status = mx_fail(MX_ERR_VALUE, "'%s': %lld of %lld values of a dataset were given", s->w->draft.path,
                         (long long)s->done, (long long)s->count);
    herr_t closed = H5Dclose(s->dataset);
    s->dataset = -1;
    if (status == MX_OK)
        status = mx_h5_outcome(s->w, closed, "cannot write values");
    free_stream(s);
    return status;
}

/* ---- where values are ---- */

static void examine(hid_t dataset, hid_t type, mx_h5_place *place)
{
    hid_t create = H5Dget_create_plist(dataset);
    bool plain = H5Pget_layout(create) == H5D_CONTIGUOUS && H5Pget_external_count(create) == 0;
    H5Pclose(create);
    size_t bytes = H5Tget_size(type);
    plain = plain && H5Tget_class(type) == H5T_INTEGER && H5Tget_precision(type) == 8 * bytes &&
            (bytes == 1 || ((bytes == 2 || bytes == 4 || bytes == 8) && H5Tget_order(type) == H5T_ORDER_LE));
    haddr_t offset = plain ? H5Dget_offset(dataset) : HADDR_UNDEF;
    place->offset = offset == HADDR_UNDEF ? -1 : (int64_t)offset;
    place->value_bytes = (int)bytes;
    place->is_signed = H5Tget_class(type) == H5T_INTEGER && H5Tget_sign(type) != H5T_SGN_NONE;
}

mx_status mx_h5_locate(const mx_h5 *file, const char *name, int64_t file_bytes, mx_h5_place *place)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    const mx_h5_entry *entry = mx_h5_find(file, name);
    *place = (mx_h5_place){.offset = -1};
    if (!entry || entry->shape.n_dims != 1)
        return MX_OK;
    place->count = entry->shape.size[0];
    hid_t dataset = H5Dopen2(mx_h5_id(file), name, H5P_DEFAULT), type = H5Dget_type(dataset);
    bool opened = dataset >= 0 && type >= 0;
    if (opened)
        examine(dataset, type, place);
    H5Tclose(type);
    H5Dclose(dataset);
    if (!opened)
        return mx_fail(MX_ERR_IO, "damaged: cannot open dataset '%.200s'", name);
    if (place->offset >= 0 &&
        (place->offset > file_bytes || place->count > (file_bytes - place->offset) / place->value_bytes))
        return mx_fail(MX_ERR_IO, "damaged or truncated: dataset '%.200s' of %lld values does not lie in the file",
                       name, (long long)place->count);
    return MX_OK;
}
