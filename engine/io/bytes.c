#include "io/bytes.h"

#include "core/element.h"

#include <math.h>
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

/* The float with these 16 bits: 1 sign, 5 exponent and 10 mantissa bits. */
static double from_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double size = exponent == 31  ? (mantissa ? (double)NAN : (double)INFINITY)
                  : exponent == 0 ? ldexp(mantissa, -24)
                                  : ldexp(1024 + mantissa, exponent - 25);
    return bits >> 15 ? -size : size;
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
        return from_f16((uint16_t)bits);
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

static mx_status convert(mx_dtype dtype, const mx_number_layout *layout, const unsigned char *bytes, int64_t count,
                         void *to)
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

mx_status mx_bytes_put(mx_tensor *t, int64_t first, const mx_number_layout *layout, const void *bytes, int64_t count)
{
    enum { PIECE = 512 };
    _Alignas(8) char values[PIECE * 8];
    if (layout->kind == 'f' && mx_dtype_is_integer(t->dtype))
        return mx_fail(MX_ERR_DTYPE, "floats do not go into %s; read them as f32 and convert by t:to(\"%s\")",
                       mx_dtype_name(t->dtype), mx_dtype_name(t->dtype));
    if (is_same(layout, t->dtype))
        return mx_tensor_write(t, first, count, bytes);
    const unsigned char *from = bytes;
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t n = count - done < PIECE ? count - done : PIECE;
        MX_TRY(convert(t->dtype, layout, from + done * layout->bytes, n, values));
        MX_TRY(mx_tensor_write(t, first + done, n, values));
    }
    return MX_OK;
}
