#include "core/job.h"
#include "io/checksum.h"
#include "io/file.h"
#include "io/hdf5_internal.h"
#include "io/seal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The highest compression ratio that deflate can reach. A header that claims a larger dataset is forged, and no memory
 * is allocated for it. */
enum { MOST_EXPANSION = 1100 };

typedef struct dataset {
    const mx_h5 *file;
    const mx_h5_entry *entry; /* NULL: none is open */
    hid_t id, type, space;
    mx_h5_rows r;
    int64_t value_bytes;    /* bytes of one element */
    uint32_t *sums;         /* checksums of blocks of r.block_rows rows; NULL: none are stored */
    char *verified;         /* the block that was read last for a part of its rows; NULL: there is none */
    int64_t verified_block; /* its number */
} dataset;

struct mx_h5 {
    char *path;
    int64_t file_bytes;
    hid_t file;
    mx_h5_entry *entries;
    int64_t count, room;
    mx_value attributes;
    dataset last; /* the dataset that was read last, still open for the next rows */
};

static void close_dataset(dataset *d)
{
    if (!d->entry)
        return;
    H5Sclose(d->space);
    H5Tclose(d->type);
    H5Dclose(d->id);
    free(d->sums);
    free(d->verified);
    *d = (dataset){0};
}

/* ---- listing ---- */

/* The shape of a dataspace; n_dims -1 if a tensor cannot have this shape. */
static mx_shape shape_of(hid_t space)
{
    mx_shape none = {.n_dims = -1}, shape = {0};
    hsize_t size[H5S_MAX_RANK];
    H5S_class_t class = H5Sget_simple_extent_type(space);
    int n_dims = H5Sget_simple_extent_ndims(space);
    if (class == H5S_SCALAR)
        return shape;
    if (class != H5S_SIMPLE || n_dims < 1 || n_dims > MX_MAX_DIMS || H5Sget_simple_extent_dims(space, size, NULL) < 0)
        return none;
    /* The product of all nonzero sizes must be in range, so that multiplying in any order cannot overflow. */
    double product = 1;
    shape.n_dims = n_dims;
    for (int d = 0; d < n_dims; d++) {
        product *= size[d] ? (double)size[d] : 1;
        if (product > 0x1p58)
            return none;
        shape.size[d] = (int64_t)size[d];
    }
    return shape;
}

static mx_status add_dataset(mx_h5 *file, const char *name)
{
    if (file->count == file->room) {
        int64_t room = file->room ? 2 * file->room : 64;
        mx_h5_entry *entries = realloc(file->entries, (size_t)room * sizeof *entries);
        if (!entries)
            return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for a list of %lld tensors", file->path,
                           (long long)room);
        file->entries = entries;
        file->room = room;
    }
    mx_h5_entry entry = {.name = strdup(name)};
    if (!entry.name)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for a name", file->path);
    hid_t set = H5Dopen2(file->file, name, H5P_DEFAULT);
    if (set < 0) {
        free(entry.name);
        return mx_h5_fail(file->path, "damaged: cannot open dataset '%.200s'", name);
    }
    hid_t type = H5Dget_type(set), space = H5Dget_space(set);
    mx_status status = MX_OK;
    if (type < 0 || space < 0) {
        status = mx_h5_fail(file->path, "damaged: cannot read the header of dataset '%.200s'", name);
        free(entry.name);
    } else {
        mx_h5_describe_type(type, &entry);
        entry.shape = shape_of(space);
        entry.checked = !entry.converted && H5Aexists(set, MX_H5_SUMS) > 0;
        file->entries[file->count++] = entry;
    }
    H5Sclose(space);
    H5Tclose(type);
    H5Dclose(set);
    return status;
}

typedef struct visit {
    mx_h5 *file;
    mx_status status;
} visit;

static herr_t visit_object(hid_t root, const char *name, const H5O_info_t *info, void *data)
{
    (void)root;
    visit *v = data;
    if (info->type == H5O_TYPE_DATASET)
        v->status = add_dataset(v->file, name);
    return v->status == MX_OK ? 0 : -1;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mx_h5_entry *)a)->name, ((const mx_h5_entry *)b)->name);
}

static mx_status list_datasets(mx_h5 *file)
{
    visit v = {file, MX_OK};
    if (H5Ovisit2(file->file, H5_INDEX_NAME, H5_ITER_INC, visit_object, &v, H5O_INFO_BASIC) < 0)
        return v.status != MX_OK ? v.status : mx_h5_fail(file->path, "damaged: cannot list its contents");
    if (file->count)
        qsort(file->entries, (size_t)file->count, sizeof *file->entries, by_name);
    return MX_OK;
}

/* ---- attributes ---- */

static herr_t read_variable_string(hid_t attribute, hid_t type, mx_value *out)
{
    char *text = NULL;
    if (H5Aread(attribute, type, &text) < 0)
        return -1;
    mx_status status = text ? mx_value_set_string(out, text, strlen(text)) : mx_value_set_string(out, "", 0);
    H5free_memory(text);
    return status == MX_OK ? 0 : -1;
}

static herr_t read_fixed_string(const mx_h5 *file, hid_t attribute, hid_t type, mx_value *out)
{
    size_t bytes = H5Tget_size(type);
    if (bytes == 0 || (int64_t)bytes > file->file_bytes)
        return -1;
    char *text = calloc(bytes + 1, 1);
    if (!text)
        return -1;
    herr_t result = H5Aread(attribute, type, text);
    size_t length = strlen(text);
    while (H5Tget_strpad(type) == H5T_STR_SPACEPAD && length > 0 && text[length - 1] == ' ')
        length--;
    if (result >= 0 && mx_value_set_string(out, text, length) != MX_OK)
        result = -1;
    free(text);
    return result;
}

/* Leaves *out null for kinds that are not supported. */
static herr_t read_attribute(const mx_h5 *file, hid_t attribute, hid_t type, mx_value *out)
{
    switch (H5Tget_class(type)) {
    case H5T_STRING:
        return H5Tis_variable_str(type) > 0 ? read_variable_string(attribute, type, out)
                                            : read_fixed_string(file, attribute, type, out);
    case H5T_INTEGER:
        out->kind = MX_INT;
        return H5Aread(attribute, H5T_NATIVE_INT64, &out->integer);
    case H5T_FLOAT:
        out->kind = MX_FLOAT;
        return H5Aread(attribute, H5T_NATIVE_DOUBLE, &out->number);
    default:
        return 0;
    }
}

static herr_t visit_attribute(hid_t root, const char *name, const H5A_info_t *info, void *data)
{
    (void)info;
    visit *v = data;
    mx_value value = {.kind = MX_NULL};
    mx_entry *entry = NULL;
    hid_t attribute = H5Aopen(root, name, H5P_DEFAULT);
    hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    herr_t result = attribute < 0 || type < 0 || space < 0 ? -1 : 0;
    if (result >= 0 && H5Sget_simple_extent_npoints(space) == 1)
        result = read_attribute(v->file, attribute, type, &value);
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(attribute);
    if (result < 0)
        v->status = mx_fail(MX_ERR_IO, "'%s' is damaged: cannot read attribute '%.200s'", v->file->path, name);
    else if (value.kind != MX_NULL)
        v->status = mx_value_append(&v->file->attributes, name, &entry);
    if (v->status == MX_OK && entry)
        entry->value = value;
    else
        mx_value_free(&value);
    return v->status == MX_OK ? 0 : -1;
}

static mx_status list_attributes(mx_h5 *file)
{
    visit v = {file, MX_OK};
    file->attributes.kind = MX_MAP;
    if (H5Aiterate2(file->file, H5_INDEX_NAME, H5_ITER_INC, NULL, visit_attribute, &v) < 0)
        return v.status != MX_OK ? v.status : mx_h5_fail(file->path, "damaged: cannot list its attributes");
    return MX_OK;
}

/* ---- opening ---- */

static mx_status open_file(mx_h5 *file, const char *path)
{
    int fd;
    MX_TRY(mx_file_open(path, &fd, &file->file_bytes)); /* gives the system's own reason if the file cannot be opened */
    mx_status status = mx_seal_check(fd, path, file->file_bytes);
    close(fd);
    MX_TRY(status);
    if (H5Fis_hdf5(path) <= 0)
        return mx_fail(MX_ERR_IO, "'%s' is no HDF5 file, or one cut off at its start: it has %lld bytes", path,
                       (long long)file->file_bytes);
    hid_t access = mx_h5_access();
    file->file = H5Fopen(path, H5F_ACC_RDONLY, access);
    status = file->file < 0 ? mx_h5_fail(path, "damaged or truncated HDF5 file") : MX_OK;
    H5Pclose(access);
    MX_TRY(status);
    MX_TRY(list_datasets(file));
    return list_attributes(file);
}

mx_status mx_h5_open(const char *path, mx_h5 **out)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    *out = NULL;
    mx_h5 *file = calloc(1, sizeof *file);
    if (file) {
        file->file = -1;
        file->path = strdup(path);
    }
    if (!file || !file->path) {
        free(file);
        return mx_fail(MX_ERR_MEMORY, "out of memory to read '%s'", path);
    }
    mx_status status = open_file(file, path);
    if (status != MX_OK) {
        mx_h5_close(file);
        return status;
    }
    *out = file;
    return MX_OK;
}

void mx_h5_close(mx_h5 *file)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    if (!file)
        return;
    close_dataset(&file->last);
    if (file->file >= 0)
        H5Fclose(file->file);
    for (int64_t i = 0; i < file->count; i++)
        free(file->entries[i].name);
    free(file->entries);
    mx_value_free(&file->attributes);
    free(file->path);
    free(file);
}

hid_t mx_h5_id(const mx_h5 *file) { return file->file; }

int64_t mx_h5_count(const mx_h5 *file) { return file->count; }

const mx_h5_entry *mx_h5_entry_at(const mx_h5 *file, int64_t i) { return &file->entries[i]; }

const mx_h5_entry *mx_h5_find(const mx_h5 *file, const char *name)
{
    mx_h5_entry key = {.name = (char *)name};
    return file->count ? bsearch(&key, file->entries, (size_t)file->count, sizeof key, by_name) : NULL;
}

const mx_value *mx_h5_attributes(const mx_h5 *file) { return &file->attributes; }

/* ---- reading ---- */

/* Checks that the values can be in the file at all, so that no memory is allocated for the sizes in a damaged header.
 */
static mx_status check_storage(const dataset *d)
{
    /* In floating point: the product of forged sizes cannot overflow. */
    double bytes = (double)mx_shape_count(&d->entry->shape) * (double)d->value_bytes;
    hid_t create = H5Dget_create_plist(d->id);
    H5D_layout_t layout = H5Pget_layout(create);
    int external = H5Pget_external_count(create);
    H5Pclose(create);
    double stored = (double)H5Dget_storage_size(d->id), there = (double)d->file->file_bytes;
    const char *path = d->file->path, *name = d->entry->name;
    if (layout == H5D_VIRTUAL || external > 0)
        return mx_fail(MX_ERR_IO, "'%s': dataset '%.200s' keeps its values in another file, which is not supported",
                       path, name);
    if (bytes > 0 && stored <= 0)
        return mx_fail(MX_ERR_IO, "'%s': dataset '%.200s' has no values in the file", path, name);
    double most = layout == H5D_CHUNKED ? there * MOST_EXPANSION : stored;
    if (stored > there || bytes > most)
        return mx_fail(MX_ERR_IO, "'%s' is damaged: dataset '%.200s' claims %.0f bytes in a file of %.0f", path, name,
                       bytes, there);
    return MX_OK;
}

static mx_status read_sums(dataset *d)
{
    const char *path = d->file->path, *name = d->entry->name;
    int64_t blocks = 0;
    hid_t rows = H5Aopen(d->id, MX_H5_SUM_ROWS, H5P_DEFAULT);
    herr_t result = H5Aread(rows, H5T_NATIVE_INT64, &d->r.block_rows);
    H5Aclose(rows);
    hid_t sums = H5Aopen(d->id, MX_H5_SUMS, H5P_DEFAULT), space = H5Aget_space(sums);
    if (result >= 0 && d->r.block_rows > 0 && space >= 0)
        blocks = H5Sget_simple_extent_npoints(space);
    mx_status status = MX_OK;
    if (blocks <= 0 || d->r.row_bytes <= 0 || blocks != (d->r.rows - 1) / d->r.block_rows + 1)
        status = mx_h5_fail(path, "damaged: the checksums of dataset '%.200s' do not fit its shape", name);
    else if (!(d->sums = malloc((size_t)blocks * sizeof *d->sums)))
        status = mx_fail(MX_ERR_MEMORY, "'%s': out of memory for %lld checksums", path, (long long)blocks);
    else if (H5Aread(sums, H5T_NATIVE_UINT32, d->sums) < 0)
        status = mx_h5_fail(path, "damaged: cannot read the checksums of dataset '%.200s'", name);
    H5Sclose(space);
    H5Aclose(sums);
    return status;
}

static mx_status find_entry(const mx_h5 *file, const char *name, const mx_h5_entry **out)
{
    *out = mx_h5_find(file, name);
    if (!*out)
        return mx_fail(MX_ERR_IO, "'%s' has no tensor '%.200s' (it has %lld%s%.100s%s)", file->path, name,
                       (long long)file->count, file->count ? ", the first is '" : "",
                       file->count ? file->entries[0].name : "", file->count ? "'" : "");
    if ((*out)->shape.n_dims < 0)
        return mx_fail(MX_ERR_IO, "'%s': dataset '%.200s' has no shape that a tensor can have (at most %d dimensions)",
                       file->path, name, MX_MAX_DIMS);
    return MX_OK;
}

static mx_status start_reading(dataset *d)
{
    const char *path = d->file->path, *name = d->entry->name;
    d->type = H5Dget_type(d->id);
    d->space = H5Dget_space(d->id);
    if (d->id < 0)
        return mx_h5_fail(path, "damaged: cannot open dataset '%.200s'", name);
    if (d->type < 0 || d->space < 0)
        return mx_h5_fail(path, "damaged: cannot read the header of dataset '%.200s'", name);
    d->value_bytes = (int64_t)H5Tget_size(d->type);
    MX_TRY(check_storage(d));
    if (d->entry->dtype >= 0)
        d->r = mx_h5_rows_of(&d->entry->shape, (mx_dtype)d->entry->dtype);
    return d->entry->checked && mx_shape_count(&d->entry->shape) > 0 ? read_sums(d) : MX_OK;
}

/* Opens the dataset, unless it is still open. *out is valid until the next call. */
static mx_status open_dataset(mx_h5 *file, const mx_h5_entry *entry, dataset **out)
{
    dataset *d = *out = &file->last;
    if (d->entry == entry)
        return MX_OK;
    close_dataset(d);
    *d = (dataset){.file = file, .entry = entry, .id = H5Dopen2(file->file, entry->name, H5P_DEFAULT)};
    mx_status status = start_reading(d);
    if (status != MX_OK)
        close_dataset(d);
    return status;
}

/* Reads `count` numbers that are selected in the file as a dtype. */
static mx_status read_as(const dataset *d, mx_dtype dtype, hid_t memory_space, hid_t file_space, int64_t count,
                         void *to)
{
    size_t bytes = (size_t)(count * d->value_bytes);
    char *numbers = malloc(bytes ? bytes : 1);
    if (!numbers)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory to convert dataset '%.200s'", d->file->path, d->entry->name);
    mx_status status = H5Dread(d->id, d->type, memory_space, file_space, H5P_DEFAULT, numbers) < 0
                           ? mx_h5_fail(d->file->path, "cannot read dataset '%.200s'", d->entry->name)
                           : mx_numbers_convert(dtype, to, &d->entry->layout, numbers, count);
    if (status == MX_ERR_VALUE) {
        char why[128];
        snprintf(why, sizeof why, "%s", mx_message());
        mx_fail(status, "'%s': dataset '%.200s' is %s: %s", d->file->path, d->entry->name, d->entry->type, why);
    }
    free(numbers);
    return status;
}

/* Reads rows [first, first + rows) into `to`. */
static mx_status read_rows(const dataset *d, int64_t first, int64_t rows, void *to)
{
    const mx_shape *shape = &d->entry->shape;
    hid_t file_space = H5S_ALL, memory_space = H5S_ALL;
    mx_status status = MX_OK;
    herr_t result = 0;
    if (shape->n_dims > 0) {
        hsize_t start[MX_MAX_DIMS] = {(hsize_t)first}, count[MX_MAX_DIMS] = {(hsize_t)rows};
        for (int i = 1; i < shape->n_dims; i++)
            count[i] = (hsize_t)shape->size[i];
        file_space = d->space;
        result = H5Sselect_hyperslab(d->space, H5S_SELECT_SET, start, NULL, count, NULL);
        memory_space = H5Screate_simple(shape->n_dims, count, NULL);
    }
    if (result >= 0 && d->entry->converted)
        status = read_as(d, (mx_dtype)d->entry->dtype, memory_space, file_space,
                         rows * d->r.row_bytes / (int64_t)mx_dtype_bytes((mx_dtype)d->entry->dtype), to);
    else if (result >= 0)
        result = H5Dread(d->id, d->type, memory_space, file_space, H5P_DEFAULT, to);
    if (result < 0)
        status = mx_h5_fail(d->file->path, "cannot read dataset '%.200s'", d->entry->name);
    if (shape->n_dims > 0)
        H5Sclose(memory_space);
    return status;
}

static mx_status verify(const dataset *d, int64_t block, int64_t rows, const void *data)
{
    if (!d->sums || mx_crc32c(0, data, (size_t)(rows * d->r.row_bytes)) == d->sums[block])
        return MX_OK;
    return mx_fail(MX_ERR_IO, "'%s' is damaged: the checksum of dataset '%.200s' is wrong in rows %lld to %lld",
                   d->file->path, d->entry->name, (long long)(block * d->r.block_rows + 1),
                   (long long)(block * d->r.block_rows + rows));
}

/* Reads and verifies a whole block, and keeps it for other parts. */
static mx_status read_block(dataset *d, int64_t block, int64_t rows)
{
    if (d->verified && d->verified_block == block)
        return MX_OK;
    free(d->verified);
    d->verified = malloc((size_t)(rows * d->r.row_bytes));
    if (!d->verified)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory to verify dataset '%.200s'", d->file->path, d->entry->name);
    d->verified_block = block;
    mx_status status = read_rows(d, block * d->r.block_rows, rows, d->verified);
    if (status == MX_OK)
        status = verify(d, block, rows, d->verified);
    if (status != MX_OK) {
        free(d->verified);
        d->verified = NULL;
    }
    return status;
}

static mx_status read_blocks(dataset *d, int64_t first, int64_t rows, char *to)
{
    const int64_t block_rows = d->r.block_rows > 0 ? d->r.block_rows : 1;
    for (int64_t row = first; row < first + rows;) {
        int64_t block = row / block_rows, start = block * block_rows;
        int64_t in_block = d->r.rows - start < block_rows ? d->r.rows - start : block_rows;
        int64_t skip = row - start;
        int64_t take = first + rows - row < in_block - skip ? first + rows - row : in_block - skip;
        if (d->sums && take < in_block) {
            MX_TRY(read_block(d, block, in_block));
            memcpy(to, d->verified + skip * d->r.row_bytes, (size_t)(take * d->r.row_bytes));
        } else {
            MX_TRY(read_rows(d, row, take, to));
            MX_TRY(verify(d, block, take, to));
        }
        row += take;
        to += take * d->r.row_bytes;
    }
    return MX_OK;
}

/* The shape of the requested rows; MX_ERR_VALUE if they are outside the dataset. */
static mx_status shape_of_rows(const mx_h5 *file, const mx_h5_entry *entry, int64_t first, int64_t *rows, mx_shape *out)
{
    if (entry->dtype < 0)
        return mx_fail(MX_ERR_DTYPE, "'%s': dataset '%.200s' is %s, which no dtype of tensors holds: convert the file",
                       file->path, entry->name, entry->type);
    int64_t there = entry->shape.n_dims ? entry->shape.size[0] : 1;
    if (*rows < 0 && first <= there)
        *rows = there - first;
    *out = entry->shape;
    if (first < 0 || *rows < 0 || first > there || *rows > there - first || (!entry->shape.n_dims && *rows != 1))
        return mx_fail(MX_ERR_VALUE, "'%s': %lld rows after the first %lld of dataset '%.200s', which has %lld rows",
                       file->path, (long long)*rows, (long long)first, entry->name, (long long)there);
    if (out->n_dims)
        out->size[0] = *rows;
    return MX_OK;
}

static mx_status read_entry(mx_h5 *file, const mx_h5_entry *entry, int64_t first, int64_t rows, mx_tensor *to)
{
    dataset *d;
    if (mx_count(to) == 0)
        return MX_OK;
    if (to->released || !mx_has_values(to))
        return mx_fail(
            MX_ERR_STATE,
            "'%s': the tensor to fill with '%.200s' has no values: it was released, or is on a simulated device",
            file->path, entry->name);
    MX_TRY(mx_tensor_wait(to, true));
    MX_TRY(open_dataset(file, entry, &d));
    mx_map values;
    MX_TRY(mx_tensor_map(to, 0, mx_count(to), MX_MAP_WRITE, &values));
    mx_status status = read_blocks(d, first, rows, values.data);
    mx_tensor_unmap(&values);
    return status;
}

mx_status mx_h5_read_into(mx_h5 *file, const char *name, int64_t first, int64_t rows, mx_tensor *to)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    const mx_h5_entry *entry;
    mx_shape shape;
    MX_TRY(find_entry(file, name, &entry));
    MX_TRY(shape_of_rows(file, entry, first, &rows, &shape));
    if (to->dtype != (mx_dtype)entry->dtype || !mx_shape_equal(&to->shape, &shape))
        return mx_fail(to->dtype != (mx_dtype)entry->dtype ? MX_ERR_DTYPE : MX_ERR_SHAPE,
                       "'%s': dataset '%.200s' is read as %s %s; the tensor to fill is %s", file->path, name,
                       mx_dtype_name((mx_dtype)entry->dtype), mx_shape_text(&shape), mx_tensor_text(to));
    return read_entry(file, entry, first, rows, to);
}

mx_status mx_h5_read(mx_h5 *file, const char *name, int64_t first, int64_t rows, mx_tensor **out)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    const mx_h5_entry *entry;
    mx_shape shape;
    dataset *d;
    *out = NULL;
    MX_TRY(find_entry(file, name, &entry));
    MX_TRY(shape_of_rows(file, entry, first, &rows, &shape));
    MX_TRY(open_dataset(file, entry, &d)); /* checks it before memory is allocated */
    MX_TRY(mx_tensor_new((mx_dtype)entry->dtype, &shape, out));
    mx_status status = read_entry(file, entry, first, rows, *out);
    if (status != MX_OK) {
        mx_release(*out);
        *out = NULL;
    }
    return status;
}

mx_status mx_h5_read_integers(mx_h5 *file, const char *name, int64_t first, int64_t count, int32_t *to)
{
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    const mx_h5_entry *entry;
    MX_TRY(find_entry(file, name, &entry));
    if (entry->shape.n_dims != 1 || (entry->layout.kind != 'i' && entry->layout.kind != 'u'))
        return mx_fail(MX_ERR_DTYPE, "'%s': dataset '%.200s' is %s %s; expected integers of one dimension", file->path,
                       name, entry->type, mx_shape_text(&entry->shape));
    if (first < 0 || count < 0 || first > entry->shape.size[0] || count > entry->shape.size[0] - first)
        return mx_fail(MX_ERR_VALUE, "'%s': %lld values after the first %lld of dataset '%.200s', which has %lld",
                       file->path, (long long)count, (long long)first, name, (long long)entry->shape.size[0]);
    if (count == 0)
        return MX_OK;
    dataset *d;
    MX_TRY(open_dataset(file, entry, &d));
    hsize_t start = (hsize_t)first, length = (hsize_t)count;
    hid_t memory_space = H5Screate_simple(1, &length, NULL);
    mx_status status = H5Sselect_hyperslab(d->space, H5S_SELECT_SET, &start, NULL, &length, NULL) < 0
                           ? mx_h5_fail(file->path, "cannot read dataset '%.200s'", name)
                           : read_as(d, MX_I32, memory_space, d->space, count, to);
    H5Sclose(memory_space);
    return status;
}
