/* Element types, and the one definition of how f32 becomes bf16 and back. */
#ifndef MX_CORE_DTYPE_H
#define MX_CORE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum mx_dtype { MX_F32, MX_BF16, MX_I32, MX_U8, MX_I8, MX_DTYPES } mx_dtype;

typedef uint16_t mx_bf16; /* the upper half of an IEEE binary32 */

static inline size_t mx_dtype_bytes(mx_dtype dtype)
{
    static const size_t bytes[MX_DTYPES] = {4, 2, 4, 1, 1};
    return bytes[dtype];
}

static inline const char *mx_dtype_name(mx_dtype dtype)
{
    static const char *const names[MX_DTYPES] = {"f32", "bf16", "i32", "u8", "i8"};
    return names[dtype];
}

static inline bool mx_dtype_is_float(mx_dtype dtype) { return dtype == MX_F32 || dtype == MX_BF16; }

/* The least and the greatest value of an integer dtype. */
static inline int32_t mx_dtype_lowest(mx_dtype dtype)
{
    return dtype == MX_U8 ? 0 : dtype == MX_I8 ? INT8_MIN : INT32_MIN;
}
static inline int32_t mx_dtype_highest(mx_dtype dtype)
{
    return dtype == MX_U8 ? UINT8_MAX : dtype == MX_I8 ? INT8_MAX : INT32_MAX;
}

/* Whether x is a value of the dtype: for integers a whole number in their range; floats round, and hold them all. */
static inline bool mx_dtype_holds(mx_dtype dtype, double x)
{
    if (mx_dtype_is_float(dtype))
        return true;
    return x >= (double)mx_dtype_lowest(dtype) && x <= (double)mx_dtype_highest(dtype) && x == (double)(int64_t)x;
}

/* The value of an integer dtype that is nearest to x: all integer arithmetic saturates. */
static inline int32_t mx_dtype_saturate(mx_dtype dtype, int64_t x)
{
    int64_t low = mx_dtype_lowest(dtype), high = mx_dtype_highest(dtype);
    return (int32_t)(x < low ? low : x > high ? high : x);
}

/* "f32" and so on; false when the name is none of ours. */
static inline bool mx_dtype_parse(const char *name, mx_dtype *dtype)
{
    for (int d = 0; d < MX_DTYPES; d++)
        if (strcmp(name, mx_dtype_name((mx_dtype)d)) == 0) {
            *dtype = (mx_dtype)d;
            return true;
        }
    return false;
}

static inline float mx_from_bf16(mx_bf16 h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Round to nearest, ties to even; a NaN stays a (quiet) NaN. */
static inline mx_bf16 mx_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (mx_bf16)((bits >> 16) | 0x40u);
    return (mx_bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif
