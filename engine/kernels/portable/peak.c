/* What every processor of this family has. */
#include "kernels/context.h"
#include "kernels/peak_paths.h"

#include <string.h>

/* Multiply and add of four. */
static double f32(int64_t rounds, float *result)
{
    typedef float four __attribute__((vector_size(16)));
    enum { SUMS = 12 };
    four sum[SUMS], a = {1, 1, 1, 1}, b = {1e-9f, 1e-9f, 1e-9f, 1e-9f};
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++)
        sum[i] = (four){(float)i};
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++)
            sum[i] = sum[i] * a + b;
        __asm__ volatile("" : "+x"(a), "+x"(b));
    }
#pragma GCC unroll 12
    for (int i = 1; i < SUMS; i++)
        sum[0] += sum[i];
    *result = sum[0][0] + sum[0][1];
    return 2.0 * 4 * SUMS * (double)rounds;
}

const mx_peak_path mx_peak_f32_portable = {"MULPS + ADDPS, 128 bits", f32};

static void copy(float *to, const float *from, int64_t n) { memcpy(to, from, (size_t)n * sizeof *to); }

const mx_peak_copy_paths mx_peak_copy_portable = {.copy = copy};
