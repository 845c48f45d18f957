/* Reads and writes single elements of an array of any dtype: element i at `data`. For speed, use the loops in kernels/.
 * A dtype that a function does not support ends the program (mx_dtype_unexpected). */
#ifndef MX_CORE_ELEMENT_H
#define MX_CORE_ELEMENT_H

#include "core/dtype.h"
#include "core/float8.h"

#include <math.h>

/* For dtypes of computation. */
static inline float mx_get_float(const void *data, int64_t i, mx_dtype dtype)
{
    return mx_is_bf16(dtype) ? mx_from_bf16(((const mx_bf16 *)data)[i]) : ((const float *)data)[i];
}

static inline void mx_set_float(void *data, int64_t i, float x, mx_dtype dtype)
{
    if (mx_is_bf16(dtype))
        ((mx_bf16 *)data)[i] = mx_to_bf16(x);
    else
        ((float *)data)[i] = x;
}

/* For integers; the dtype must hold x. */
static inline int64_t mx_get_int(const void *data, int64_t i, mx_dtype dtype)
{
    if (dtype == MX_I64)
        return ((const int64_t *)data)[i];
    if (dtype == MX_I32)
        return ((const int32_t *)data)[i];
    if (dtype == MX_U8)
        return ((const uint8_t *)data)[i];
    if (dtype == MX_I8)
        return ((const int8_t *)data)[i];
    mx_dtype_unexpected(dtype, __func__);
}

static inline void mx_set_int(void *data, int64_t i, int64_t x, mx_dtype dtype)
{
    if (dtype == MX_I64)
        ((int64_t *)data)[i] = x;
    else if (dtype == MX_I32)
        ((int32_t *)data)[i] = (int32_t)x;
    else if (dtype == MX_U8 || dtype == MX_I8) /* the lower byte is the same */
        ((uint8_t *)data)[i] = (uint8_t)x;
    else
        mx_dtype_unexpected(dtype, __func__);
}

/* Toward zero, to the nearest end of the range [low, high], and 0 for NaN: only then is the conversion to an integer
 * defined. */
static inline int64_t mx_dtype_truncate(double x, int64_t low, int64_t high)
{
    return isnan(x) ? 0 : x < (double)low ? low : x >= (double)high ? high : (int64_t)x;
}

/* For any dtype. A double holds every value of all dtypes but i64, which is rounded; a written value is rounded, or
 * truncated to an integer. */
static inline double mx_get_number(const void *data, int64_t i, mx_dtype dtype)
{
    if (mx_dtype_is_float8(dtype))
        return mx_from_code(((const uint8_t *)data)[i], dtype);
    if (dtype == MX_F64)
        return ((const double *)data)[i];
    return mx_dtype_is_integer(dtype) ? (double)mx_get_int(data, i, dtype) : (double)mx_get_float(data, i, dtype);
}

static inline void mx_set_number(void *data, int64_t i, double x, mx_dtype dtype)
{
    if (mx_dtype_is_float8(dtype))
        ((uint8_t *)data)[i] = mx_to_code((float)x, dtype);
    else if (dtype == MX_F64)
        ((double *)data)[i] = x;
    else if (mx_dtype_is_integer(dtype))
        mx_set_int(data, i, mx_dtype_truncate(x, mx_dtypes[dtype].lowest, mx_dtypes[dtype].highest), dtype);
    else
        mx_set_float(data, i, (float)x, dtype);
}

#endif
