#include "io/bytes.h"

#include "core/element.h"
#include "core/f16.h"

#include <stdio.h>
#include <string.h>

bool mx_number_layout_parse(const char *name, mx_number_layout *out)
{
    mx_number_layout layout = {.is_big_endian = name[0] == '>'};
    if (name[0] && strchr("<>|=", name[0]))
        name++;
    layout.kind = name[0];
    if (!layout.kind || name[1] < '1' || name[1] > '8' || name[2])
        return false;
    layout.bytes = name[1] - '0';
    static const char *const known[] = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i]) == 0) {
            *out = layout;
            return true;
        }
    }
    return false;
}

/* The number's bits, in the byte order of this machine. */
static uint64_t load_bits(const unsigned char *from, const mx_number_layout *layout)
{
    uint64_t bits = 0;
    for (int i = 0; i < layout->bytes; i++)
        bits |= (uint64_t)from[layout->is_big_endian ? layout->bytes - 1 - i : i] << (8 * i);
    return bits;
}

static double load_float(const unsigned char *from, const mx_number_layout *layout)
{
    uint64_t bits = load_bits(from, layout);
    if (layout->bytes == 2)
        return (double)mx_from_f16((uint16_t)bits);
    double number;
    float narrow;
    uint32_t low = (uint32_t)bits;
    memcpy(&number, &bits, sizeof number);
    memcpy(&narrow, &low, sizeof narrow);
    return layout->bytes == 4 ? (double)narrow : number;
}

/* An integer; false if it does not fit 64 bits with a sign. */
static bool load_integer(const unsigned char *from, const mx_number_layout *layout, int64_t *integer)
{
    uint64_t bits = load_bits(from, layout);
    int unused = 64 - 8 * layout->bytes;
    *integer = layout->kind == 'i' ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
    return layout->kind == 'i' || bits <= INT64_MAX;
}

/* Whether the values of the dtype have exactly this layout. */
static bool is_same(const mx_number_layout *layout, mx_dtype dtype)
{
    char name[16];
    snprintf(name, sizeof name, "%c%d", layout->kind, 8 * layout->bytes);
    bool swaps = layout->is_big_endian && layout->bytes > 1;
    return !swaps && (strcmp(name, mx_dtype_name(dtype)) == 0 || (layout->kind == 'b' && dtype == MX_U8));
}

/* Numbers of 4 or 8 bytes in the other byte order. */
static void swap(const unsigned char *from, int bytes, int64_t count, void *to)
{
    for (int64_t i = 0; bytes == 4 && i < count; i++) {
        uint32_t bits;
        memcpy(&bits, from + 4 * i, sizeof bits);
        ((uint32_t *)to)[i] = __builtin_bswap32(bits);
    }
    for (int64_t i = 0; bytes == 8 && i < count; i++) {
        uint64_t bits;
        memcpy(&bits, from + 8 * i, sizeof bits);
        ((uint64_t *)to)[i] = __builtin_bswap64(bits);
    }
}

static void widen_f16(const unsigned char *from, bool is_big_endian, int64_t count, float *to)
{
    int low = is_big_endian;
    for (int64_t i = 0; i < count; i++)
        to[i] = mx_from_f16((uint16_t)(from[2 * i + low] | from[2 * i + 1 - low] << 8));
}

static mx_status convert_one_by_one(mx_dtype dtype, const mx_number_layout *layout, const unsigned char *bytes,
                                    int64_t count, void *to)
{
    for (int64_t i = 0; i < count; i++, bytes += layout->bytes) {
        int64_t integer = 0;
        bool is_float = layout->kind == 'f', is_signed = is_float || load_integer(bytes, layout, &integer);
        double number = is_float ? load_float(bytes, layout) : is_signed ? (double)integer : (double)(uint64_t)integer;
        if (mx_dtype_is_integer(dtype) && !(is_signed && (dtype == MX_I64 || mx_dtype_holds(dtype, number))))
            return mx_fail(MX_ERR_VALUE, "the value %.17g does not fit %s", number, mx_dtype_name(dtype));
        if (dtype == MX_I64)
            ((int64_t *)to)[i] = integer; /* a double holds those up to 2^53 only */
        else
            mx_set_number(to, i, number, dtype);
    }
    return MX_OK;
}

mx_dtype mx_number_layout_dtype(const mx_number_layout *layout)
{
    if (layout->kind == 'f')
        return layout->bytes == 8 ? MX_F64 : MX_F32;
    if (layout->bytes == 1)
        return layout->kind == 'i' ? MX_I8 : MX_U8;
    return layout->bytes + (layout->kind == 'u') <= 4 ? MX_I32 : MX_I64;
}

mx_status mx_numbers_convert(mx_dtype dtype, void *to, const mx_number_layout *layout, const void *bytes, int64_t count)
{
    mx_number_layout native = *layout;
    native.is_big_endian = false;
    if (layout->kind == 'f' && mx_dtype_is_integer(dtype))
        return mx_fail(MX_ERR_DTYPE, "floats do not go into %s; read them as f32 and convert by t:to(\"%s\")",
                       mx_dtype_name(dtype), mx_dtype_name(dtype));
    if (is_same(layout, dtype))
        memcpy(to, bytes, (size_t)(count * layout->bytes));
    else if (is_same(&native, dtype))
        swap(bytes, layout->bytes, count, to);
    else if (layout->kind == 'f' && layout->bytes == 2 && dtype == MX_F32)
        widen_f16(bytes, layout->is_big_endian, count, to);
    else
        return convert_one_by_one(dtype, layout, bytes, count, to);
    return MX_OK;
}

mx_status mx_bytes_put(mx_tensor *t, int64_t first, const mx_number_layout *layout, const void *bytes, int64_t count)
{
    mx_map values;
    MX_TRY(mx_tensor_map(t, first, count, MX_MAP_WRITE, &values));
    mx_status status = values.data ? mx_numbers_convert(t->dtype, values.data, layout, bytes, count) : MX_OK;
    mx_tensor_unmap(&values);
    return status;
}
