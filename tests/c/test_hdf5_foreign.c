/* HDF5 files that other tools make, well or with ill intent: numbers of all types are read, and sizes that are only
 * claimed get no memory. */
#include "check.h"
#include "temporary.h"

#include "core/pool.h"
#include "io/hdf5.h"

#include <hdf5.h>

static void make_set(hid_t file, const char *name, hid_t type, int n_dims, const hsize_t *size, hid_t create,
                     const void *data)
{
    hid_t space = n_dims < 0 ? H5Screate(H5S_NULL) : H5Screate_simple(n_dims, size, NULL);
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
    CHECK(set >= 0, "cannot make %s", name);
    if (data)
        H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    H5Dclose(set);
    H5Sclose(space);
}

static void make_foreign_file(const char *path)
{
    static const int32_t ints[6] = {1, 2, 3, 4, 5, 6};
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT); /* in the oldest format */
    hid_t chunked = H5Pcreate(H5P_DATASET_CREATE), external = H5Pcreate(H5P_DATASET_CREATE), text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, H5T_VARIABLE);
    H5Pset_chunk(chunked, 2, (hsize_t[]){2, 2});
    H5Pset_deflate(chunked, 9);
    H5Pset_external(external, "/etc/hostname", 0, 8);
    make_set(file, "chunked", H5T_STD_I32LE, 2, (hsize_t[]){2, 3}, chunked, ints);
    make_set(file, "nothing", H5T_IEEE_F32LE, -1, NULL, H5P_DEFAULT, NULL);
    make_set(file, "eight", H5T_STD_U8LE, 8, (hsize_t[]){1, 1, 1, 1, 1, 1, 1, 1}, H5P_DEFAULT, NULL);
    make_set(file, "huge", H5T_IEEE_F32LE, 2, (hsize_t[]){1u << 20, 1u << 20}, H5P_DEFAULT, NULL);
    make_set(file, "huge chunks", H5T_IEEE_F32LE, 2, (hsize_t[]){1u << 20, 1u << 20}, chunked, NULL);
    make_set(file, "overflow", H5T_IEEE_F32LE, 2, (hsize_t[]){1ull << 40, 1ull << 40}, chunked, NULL);
    make_set(file, "external", H5T_STD_U8LE, 1, (hsize_t[]){8}, external, NULL);
    make_set(file, "strings", text, 1, (hsize_t[]){1}, H5P_DEFAULT, NULL);
    hid_t big_bf16 = H5Tcopy(H5T_IEEE_F32BE), biased = H5Tcopy(H5T_IEEE_F32LE), loose = H5Tcopy(H5T_STD_I32LE);
    H5Tset_fields(big_bf16, 15, 7, 8, 0, 7);
    H5Tset_size(big_bf16, 2);
    H5Tset_ebias(biased, 100);
    H5Tset_precision(loose, 20);
    make_set(file, "big bf16", big_bf16, 1, (hsize_t[]){1}, H5P_DEFAULT, ints);
    make_set(file, "biased", biased, 1, (hsize_t[]){1}, H5P_DEFAULT, ints);
    make_set(file, "loose", loose, 1, (hsize_t[]){1}, H5P_DEFAULT, ints);
    H5Tclose(big_bf16);
    H5Tclose(biased);
    H5Tclose(loose);
    make_set(file, "long double", H5T_NATIVE_LDOUBLE, 1, (hsize_t[]){1}, H5P_DEFAULT, &(long double){1});
    H5Lcreate_soft("/absent", file, "dangling", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_external("/etc/passwd", "/x", file, "outside", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_hard(file, "/", file, "loop", H5P_DEFAULT, H5P_DEFAULT);
    hid_t scalar = H5Screate(H5S_SCALAR), attribute = H5Acreate2(file, "note", text, scalar, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, text, &(const char *){"of variable length"});
    H5Aclose(attribute);
    H5Sclose(scalar);
    H5Tclose(text);
    H5Pclose(chunked);
    H5Pclose(external);
    H5Fclose(file);
}

/* A dataset of three numbers in a type that tensors do not have, and what a tensor holds of them. */
typedef struct foreign {
    const char *name; /* of the type, in messages and lists */
    hid_t type, memory;
    const void *values;
    mx_dtype dtype;
    double expected[3];
} foreign;

static double number_at(const mx_tensor *t, int64_t i)
{
    const void *data = mx_data(t);
    switch (t->dtype) {
    case MX_F32:
        return ((const float *)data)[i];
    case MX_F64:
        return ((const double *)data)[i];
    case MX_I32:
        return ((const int32_t *)data)[i];
    case MX_I64:
        return (double)((const int64_t *)data)[i];
    case MX_U8:
        return ((const uint8_t *)data)[i];
    default:
        return NAN;
    }
}

static void check_foreign(const foreign *f)
{
    const char *path = temporary_path("types.h5");
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t space = H5Screate_simple(1, (hsize_t[]){3}, NULL);
    hid_t set = H5Dcreate2(file, "t", f->type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(H5Dwrite(set, f->memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, f->values) >= 0, "%s", f->name);
    H5Dclose(set);
    H5Sclose(space);
    H5Fclose(file);
    mx_h5 *read;
    mx_tensor *all, *last;
    CHECK(mx_h5_open(path, &read) == MX_OK, "%s", mx_message());
    CHECK(strcmp(mx_h5_entry_at(read, 0)->type, f->name) == 0, "%s: %s", f->name, mx_h5_entry_at(read, 0)->type);
    CHECK(mx_h5_read(read, "t", 0, -1, &all) == MX_OK && all->dtype == f->dtype, "%s: %s", f->name, mx_message());
    CHECK(mx_h5_read(read, "t", 2, 1, &last) == MX_OK, "%s: %s", f->name, mx_message());
    for (int i = 0; i < 4; i++) {
        double got = i < 3 ? number_at(all, i) : number_at(last, 0), expected = f->expected[i < 3 ? i : 2];
        CHECK(got == expected, "%s, number %d: %g, not %g", f->name, i, got, expected);
    }
    mx_release(all);
    mx_release(last);
    mx_h5_close(read);
    unlink(path);
}

static void test_numbers_of_other_types(void)
{
    /* 6e-5 is below the normal numbers of f16, whose unit is 2^-24 there: 1006.6 of them */
    static const double reals[3] = {1.5, -65504, 6e-5};
    static const int64_t integers[3] = {3, -32768, 32767};
    static const uint64_t naturals[3] = {3, 0, 65535}, large[3] = {1, 0, INT64_MAX}, larger[3] = {0, 1, 1ull << 63};
    static const int8_t truths[3] = {1, 0, 1};
    hid_t half = H5Tcopy(H5T_IEEE_F32LE), boolean = H5Tenum_create(H5T_NATIVE_INT8);
    H5Tset_fields(half, 15, 10, 5, 0, 10);
    H5Tset_size(half, 2);
    H5Tset_ebias(half, 15);
    H5Tenum_insert(boolean, "FALSE", &(int8_t){0});
    H5Tenum_insert(boolean, "TRUE", &(int8_t){1});
    const foreign types[] = {
        {"f16", half, H5T_NATIVE_DOUBLE, reals, MX_F32, {1.5, -65504, 1007 * 0x1p-24}},
        {"f32-be", H5T_IEEE_F32BE, H5T_NATIVE_DOUBLE, reals, MX_F32, {1.5, -65504, 6e-5f}},
        {"f64-be", H5T_IEEE_F64BE, H5T_NATIVE_DOUBLE, reals, MX_F64, {1.5, -65504, 6e-5}},
        {"i16", H5T_STD_I16LE, H5T_NATIVE_INT64, integers, MX_I32, {3, -32768, 32767}},
        {"i32-be", H5T_STD_I32BE, H5T_NATIVE_INT64, integers, MX_I32, {3, -32768, 32767}},
        {"i64-be", H5T_STD_I64BE, H5T_NATIVE_INT64, integers, MX_I64, {3, -32768, 32767}},
        {"u16", H5T_STD_U16LE, H5T_NATIVE_UINT64, naturals, MX_I32, {3, 0, 65535}},
        {"u32", H5T_STD_U32LE, H5T_NATIVE_UINT64, naturals, MX_I64, {3, 0, 65535}},
        {"u64", H5T_STD_U64LE, H5T_NATIVE_UINT64, large, MX_I64, {1, 0, 0x1p63}},
        {"bool", boolean, boolean, truths, MX_U8, {1, 0, 1}},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        check_foreign(&types[i]);
    H5Tclose(half);
    H5Tclose(boolean);

    const char *path = temporary_path("larger.h5");
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    make_set(file, "t", H5T_STD_U64LE, 1, (hsize_t[]){3}, H5P_DEFAULT, larger);
    H5Fclose(file);
    mx_h5 *read;
    mx_tensor *t;
    CHECK(mx_h5_open(path, &read) == MX_OK, "%s", mx_message());
    CHECK(mx_h5_read(read, "t", 0, 2, &t) == MX_OK, "%s", mx_message());
    mx_release(t);
    CHECK(mx_h5_read(read, "t", 0, -1, &t) == MX_ERR_VALUE &&
              strstr(mx_message(), "is u64: the value 9.2233720368547758e+18 does not fit i64"),
          "%s", mx_message());
    int32_t tokens[3];
    CHECK(mx_h5_read_integers(read, "t", 0, 2, tokens) == MX_OK && tokens[0] == 0 && tokens[1] == 1, "%s",
          mx_message());
    CHECK(mx_h5_read_integers(read, "t", 1, 2, tokens) == MX_ERR_VALUE && strstr(mx_message(), "does not fit i32"),
          "%s", mx_message());
    mx_h5_close(read);
    unlink(path);
}

static void expect_refused(mx_h5 *file, const char *name, mx_status status, const char *part)
{
    mx_tensor *t = NULL;
    int64_t before = mx_pool_get_stats().peak_bytes;
    CHECK(mx_h5_read(file, name, 0, -1, &t) == status && !t, "%s: %s", name, mx_message());
    CHECK(strstr(mx_message(), part) && !strchr(mx_message(), '\n'), "%s: %s", name, mx_message());
    CHECK(mx_pool_get_stats().peak_bytes == before, "%s: memory was allocated", name);
}

static void test_foreign_files(void)
{
    const char *path = temporary_path("foreign.h5");
    mx_h5 *file;
    mx_tensor *t;
    make_foreign_file(path);
    CHECK(mx_h5_open(path, &file) == MX_OK, "%s", mx_message());
    CHECK(mx_h5_count(file) == 12, "%lld datasets", (long long)mx_h5_count(file));
    const mx_value *note = mx_value_get(mx_h5_attributes(file), "note");
    CHECK(note && note->kind == MX_STRING && strcmp(note->text, "of variable length") == 0,
          "a string of variable length");
    CHECK(mx_h5_read(file, "chunked", 0, -1, &t) == MX_OK && ((int32_t *)mx_data(t))[5] == 6, "%s", mx_message());
    mx_release(t);
    CHECK(mx_h5_read(file, "chunked", 1, 1, &t) == MX_OK && ((int32_t *)mx_data(t))[2] == 6, "%s", mx_message());
    mx_release(t);
    expect_refused(file, "long double", MX_ERR_DTYPE, "odd f128, which no dtype");
    expect_refused(file, "big bf16", MX_ERR_DTYPE, "odd f16-be, which no dtype");
    expect_refused(file, "biased", MX_ERR_DTYPE, "odd f32, which no dtype");
    expect_refused(file, "loose", MX_ERR_DTYPE, "odd i32, which no dtype");
    expect_refused(file, "strings", MX_ERR_DTYPE, "string");
    expect_refused(file, "nothing", MX_ERR_IO, "no shape");
    expect_refused(file, "eight", MX_ERR_IO, "no shape");
    expect_refused(file, "overflow", MX_ERR_IO, "no shape");
    expect_refused(file, "huge", MX_ERR_IO, "no values");
    expect_refused(file, "huge chunks", MX_ERR_IO, "no values");
    expect_refused(file, "external", MX_ERR_IO, "another file");
    mx_h5_close(file);
    unlink(path);
}

int main(void)
{
    temporary_make();
    test_numbers_of_other_types();
    test_foreign_files();
    temporary_remove();
    return check_done();
}
