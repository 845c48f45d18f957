#include "kernels/context.h"

#include "core/element.h"
#include "kernels/embedding.h"

static void convert(void *to, mx_dtype to_dtype, const void *from, mx_dtype from_dtype, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        mx_set_float(to, i, scale * mx_get_float(from, i, from_dtype), to_dtype);
}

static void add(void *to, mx_dtype to_dtype, const void *from, mx_dtype from_dtype, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        mx_set_float(to, i, mx_get_float(to, i, to_dtype) + scale * mx_get_float(from, i, from_dtype), to_dtype);
}

static float dot(const void *a, const void *b, mx_dtype dtype, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += mx_get_float(a, i, dtype) * mx_get_float(b, i, dtype);
    return sum;
}

const mx_row_paths mx_rows_portable = {convert, add, dot};
