#define _GNU_SOURCE
#include "io/hdf5_internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t library = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

bool mx_h5_take(void)
{
    pthread_mutex_lock(&library);
    H5open();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    return true;
}

void mx_h5_let_go(const bool *held)
{
    (void)held;
    pthread_mutex_unlock(&library);
}

const char *mx_h5_version(void)
{
    static char version[32];
    __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    snprintf(version, sizeof version, "%u.%u.%u", major, minor, release);
    return version;
}

/* ---- errors ---- */

static herr_t take_first(unsigned n, const H5E_error2_t *error, void *text)
{
    if (n == 0)
        snprintf(text, 512, "%s", error->desc ? error->desc : "");
    return 0;
}

/* Keeps only the system's reason, which is in quotes: HDF5's description of a failed system call is long and contains a
 * newline. */
static void tidy(char *text)
{
    static const char mark[] = "error message = '";
    char *reason = strstr(text, mark);
    if (reason) {
        reason += sizeof mark - 1;
        size_t length = strcspn(reason, "'");
        memmove(text, reason, length);
        text[length] = 0;
    }
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
}

mx_status mx_h5_fail(const char *path, const char *format, ...)
{
    char what[512], why[512] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, why);
    tidy(why);
    if (!why[0])
        return mx_fail(MX_ERR_IO, "'%s': %s", path, what);
    return mx_fail(MX_ERR_IO, "'%s': %s (%s)", path, what, why);
}

/* ---- types ---- */

static hid_t new_bf16(void)
{
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    /* Fields first: at every step the fields must fit the precision, and the precision the size. */
    if (H5Tset_fields(type, 15, 7, 8, 0, 7) < 0 || H5Tset_precision(type, 16) < 0 || H5Tset_size(type, 2) < 0 ||
        H5Tset_ebias(type, 127) < 0) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

hid_t mx_h5_new_type(mx_dtype dtype)
{
    switch (dtype) {
    case MX_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case MX_BF16:
        return new_bf16();
    case MX_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case MX_U8:
        return H5Tcopy(H5T_STD_U8LE);
    default:
        return H5Tcopy(H5T_STD_I8LE);
    }
}

static bool is_bf16(hid_t type)
{
    size_t sign, exponent, exponent_bits, mantissa, mantissa_bits;
    return H5Tget_size(type) == 2 && H5Tget_precision(type) == 16 && H5Tget_order(type) == H5T_ORDER_LE &&
           H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) >= 0 && sign == 15 &&
           exponent == 7 && exponent_bits == 8 && mantissa == 0 && mantissa_bits == 7 && H5Tget_ebias(type) == 127;
}

static int our_dtype(hid_t type, H5T_class_t class)
{
    if (class == H5T_FLOAT)
        return H5Tequal(type, H5T_IEEE_F32LE) > 0 ? MX_F32 : is_bf16(type) ? MX_BF16 : -1;
    if (class != H5T_INTEGER)
        return -1;
    if (H5Tequal(type, H5T_STD_I32LE) > 0)
        return MX_I32;
    bool whole_byte = H5Tget_size(type) == 1 && H5Tget_precision(type) == 8; /* one byte has no byte order */
    return !whole_byte ? -1 : H5Tget_sign(type) == H5T_SGN_NONE ? MX_U8 : MX_I8;
}

void mx_h5_describe_type(hid_t type, char text[16], int *dtype)
{
    H5T_class_t class = H5Tget_class(type);
    *dtype = our_dtype(type, class);
    if (*dtype >= 0)
        snprintf(text, 16, "%s", mx_dtype_name((mx_dtype)*dtype));
    else if (class == H5T_INTEGER || class == H5T_FLOAT)
        snprintf(text, 16, "%c%u%s",
                 class == H5T_FLOAT                  ? 'f'
                 : H5Tget_sign(type) == H5T_SGN_NONE ? 'u'
                                                     : 'i',
                 (unsigned)(8 * H5Tget_size(type)), H5Tget_order(type) == H5T_ORDER_BE ? "-be" : "");
    else
        snprintf(text, 16, "%s", class == H5T_STRING ? "string" : class == H5T_COMPOUND ? "compound" : "other");
}

/* ---- rows ---- */

mx_h5_rows mx_h5_rows_of(const mx_shape *shape, mx_dtype dtype)
{
    mx_h5_rows r = {.rows = shape->n_dims ? shape->size[0] : 1, .row_bytes = (int64_t)mx_dtype_bytes(dtype)};
    for (int d = 1; d < shape->n_dims; d++)
        r.row_bytes *= shape->size[d];
    r.block_rows = r.row_bytes > 0 && r.row_bytes < MX_H5_BLOCK_BYTES ? MX_H5_BLOCK_BYTES / r.row_bytes : 1;
    return r;
}

int64_t mx_h5_blocks(const mx_h5_rows *r)
{
    return r->row_bytes > 0 ? (r->rows + r->block_rows - 1) / r->block_rows : 0;
}

hid_t mx_h5_access(void)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    /* The format of HDF5 1.8: every tool reads it, and its headers have checksums, unlike those of the older format. */
    H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    H5Pset_file_locking(access, 0, 1);
    H5Pset_alignment(access, 65536, 4096);
    return access;
}
