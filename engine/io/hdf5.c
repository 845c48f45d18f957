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

/* Bits of the fields, from high to low: the sign, the exponent, the mantissa. */
static hid_t new_float(const mx_dtype_traits *t)
{
    size_t bits = 8 * t->bytes, exponent = (size_t)t->exponent_bits, mantissa = (size_t)t->mantissa_bits;
    hid_t type = H5Tcopy(H5T_IEEE_F64LE);
    /* Fields first: at every step the fields must fit the precision, and the precision the size. */
    if (H5Tset_fields(type, bits - 1, mantissa, exponent, 0, mantissa) < 0 || H5Tset_precision(type, bits) < 0 ||
        H5Tset_size(type, t->bytes) < 0 || H5Tset_ebias(type, (size_t)t->exponent_bias) < 0) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

static hid_t new_integer(const mx_dtype_traits *t)
{
    hid_t type = H5Tcopy(t->lowest < 0 ? H5T_STD_I32LE : H5T_STD_U32LE);
    if (H5Tset_size(type, t->bytes) < 0 || H5Tset_precision(type, 8 * t->bytes) < 0) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

hid_t mx_h5_new_type(mx_dtype dtype)
{
    const mx_dtype_traits *t = &mx_dtypes[dtype];
    return t->is_float ? new_float(t) : new_integer(t);
}

static bool has_fields(hid_t type, size_t bits, size_t exponent_bits, size_t mantissa_bits, size_t bias)
{
    size_t sign, exponent, exponent_there, mantissa, mantissa_there;
    return H5Tget_fields(type, &sign, &exponent, &exponent_there, &mantissa, &mantissa_there) >= 0 &&
           sign == bits - 1 && exponent == mantissa_bits && exponent_there == exponent_bits && mantissa == 0 &&
           mantissa_there == mantissa_bits && H5Tget_ebias(type) == bias && H5Tget_norm(type) == H5T_NORM_IMPLIED;
}

static bool is_float(hid_t type, const mx_dtype_traits *t)
{
    return has_fields(type, 8 * t->bytes, (size_t)t->exponent_bits, (size_t)t->mantissa_bits, (size_t)t->exponent_bias);
}

static bool is_integer(hid_t type, const mx_dtype_traits *t)
{
    return (H5Tget_sign(type) != H5T_SGN_NONE) == (t->lowest < 0);
}

/* All bits of a number count. */
static bool is_dense(hid_t type) { return H5Tget_precision(type) == 8 * H5Tget_size(type); }

/* The dtype whose values are as in the file, or -1. */
static int our_dtype(hid_t type, H5T_class_t class)
{
    size_t bytes = H5Tget_size(type);
    bool ordered = bytes == 1 || H5Tget_order(type) == H5T_ORDER_LE; /* one byte has no byte order */
    if ((class != H5T_FLOAT && class != H5T_INTEGER) || !ordered || !is_dense(type))
        return -1;
    for (int d = 0; d < MX_DTYPES; d++) {
        const mx_dtype_traits *t = &mx_dtypes[d];
        if (t->bytes == bytes && t->is_float == (class == H5T_FLOAT) &&
            (t->is_float ? is_float(type, t) : is_integer(type, t)))
            return d;
    }
    return -1;
}

/* h5py's booleans are an enumeration of i8. */
static bool is_boolean(hid_t type)
{
    return H5Tget_size(type) == 1 && H5Tget_nmembers(type) == 2 && H5Tget_member_index(type, "FALSE") >= 0 &&
           H5Tget_member_index(type, "TRUE") >= 0;
}

/* How the file stores the numbers; kind 0 if not as numpy does. */
static mx_number_layout layout_of(hid_t type, H5T_class_t class)
{
    size_t bytes = H5Tget_size(type);
    H5T_order_t order = H5Tget_order(type);
    mx_number_layout layout = {.bytes = (int)bytes, .is_big_endian = order == H5T_ORDER_BE};
    if (class == H5T_ENUM && is_boolean(type))
        layout.kind = 'b';
    if (!is_dense(type) || (order != H5T_ORDER_LE && order != H5T_ORDER_BE && bytes > 1))
        return layout;
    if (class == H5T_INTEGER && (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8))
        layout.kind = H5Tget_sign(type) == H5T_SGN_NONE ? 'u' : 'i';
    if (class == H5T_FLOAT &&
        (has_fields(type, 16, 5, 10, 15) || is_float(type, &mx_dtypes[MX_F32]) || is_float(type, &mx_dtypes[MX_F64])))
        layout.kind = 'f';
    return layout;
}

void mx_h5_describe_type(hid_t type, mx_h5_entry *entry)
{
    H5T_class_t class = H5Tget_class(type);
    char *text = entry->type;
    size_t room = sizeof entry->type;
    entry->layout = layout_of(type, class);
    entry->dtype = our_dtype(type, class);
    entry->converted = entry->dtype < 0;
    if (entry->converted && entry->layout.kind)
        entry->dtype = (int)mx_number_layout_dtype(&entry->layout);
    if (!entry->converted)
        snprintf(text, room, "%s", mx_dtype_name((mx_dtype)entry->dtype));
    else if (class == H5T_INTEGER || class == H5T_FLOAT)
        snprintf(text, room, "%s%c%u%s", entry->layout.kind ? "" : "odd ",
                 class == H5T_FLOAT                  ? 'f'
                 : H5Tget_sign(type) == H5T_SGN_NONE ? 'u'
                                                     : 'i',
                 (unsigned)(8 * H5Tget_size(type)), H5Tget_order(type) == H5T_ORDER_BE ? "-be" : "");
    else
        snprintf(text, room, "%s",
                 class == H5T_STRING         ? "string"
                 : class == H5T_COMPOUND     ? "compound"
                 : entry->layout.kind == 'b' ? "bool"
                                             : "other");
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
