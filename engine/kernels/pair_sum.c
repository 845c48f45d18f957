/* Sums of functions of two arrays, without an array of their values. */
#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/f64.h"

enum { BLOCK = 2048 };

static void *at(mx_array v, int64_t i) { return (char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype); }

static double sum_f64(mx_pair f, mx_array a, mx_array b, int64_t first, int64_t last)
{
    double sum = 0;
    for (int64_t i = first; i < last; i++)
        sum += mx_f64_pair(f, mx_get_number(a.data, i, a.dtype), mx_get_number(b.data, i, b.dtype));
    return sum;
}

static double sum_f32(mx_pair f, mx_array a, mx_array b, int64_t first, int64_t last)
{
    const mx_pair_paths *paths = mx_kernels_current()->pairs;
    const bool together = a.dtype == b.dtype; /* a loss has a float */
    float room[2][BLOCK];
    double sum = 0;
    for (int64_t i = first; i < last; i += BLOCK) {
        int64_t n = last - i < BLOCK ? last - i : BLOCK;
        mx_array in[2] = {a, b};
        const void *from[2];
        for (int k = 0; k < 2; k++) {
            bool direct = together || in[k].dtype == MX_F32;
            from[k] = direct ? at(in[k], i) : room[k];
            if (!direct)
                mx_cast((mx_array){at(in[k], i), in[k].dtype}, (mx_array){room[k], MX_F32}, n);
        }
        sum += (double)paths->sum(f, together ? a.dtype : MX_F32, from[0], from[1], n);
    }
    return sum;
}

mx_status mx_binary_sum(mx_pair f, mx_array a, mx_array b, int64_t n, double *sum)
{
    bool wide = a.dtype == MX_F64 || b.dtype == MX_F64;
    int64_t pieces = (n + MX_CHUNK - 1) / MX_CHUNK, bytes = pieces * (int64_t)sizeof(double);
    double *partial;
    *sum = 0;
    if (pieces == 0)
        return MX_OK;
    MX_TRY(mx_pool_alloc(bytes, (void **)&partial));
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = p * MX_CHUNK, last = first + MX_CHUNK < n ? first + MX_CHUNK : n;
        partial[p] = wide ? sum_f64(f, a, b, first, last) : sum_f32(f, a, b, first, last);
    }
    for (int64_t p = 0; p < pieces; p++)
        *sum += partial[p];
    mx_pool_free(partial, bytes);
    return MX_OK;
}
