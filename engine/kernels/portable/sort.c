#include "kernels/context.h"

#include "core/element.h"

int64_t mx_beyond_portable(const void *x, mx_dtype dtype, int64_t from, int64_t n, float bound, bool below)
{
    for (int64_t i = from; i < n; i++) {
        float one = mx_get_float(x, i, dtype);
        if (below ? !(one >= bound) : !(one <= bound))
            return i;
    }
    return n;
}
