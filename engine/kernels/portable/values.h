/* One value of f32 or bf16 at a time, for the plain loops. */
#ifndef MX_KERNELS_PORTABLE_VALUES_H
#define MX_KERNELS_PORTABLE_VALUES_H

#include "core/dtype.h"

static inline float mx_get_float(const void *data, int64_t i, mx_dtype dtype)
{
    return dtype == MX_BF16 ? mx_from_bf16(((const mx_bf16 *)data)[i]) : ((const float *)data)[i];
}

static inline void mx_set_float(void *data, int64_t i, float x, mx_dtype dtype)
{
    if (dtype == MX_BF16)
        ((mx_bf16 *)data)[i] = mx_to_bf16(x);
    else
        ((float *)data)[i] = x;
}

#endif
