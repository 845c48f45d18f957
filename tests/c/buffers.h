/* Buffers of f32 or bf16 for kernel tests: filled from a fixed generator, read back as double. */
#ifndef MX_TESTS_BUFFERS_H
#define MX_TESTS_BUFFERS_H

#include "core/cpu.h"
#include "core/element.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t buffer_state = 1;

/* Uniform in [0, 1): xorshift64*. */
static inline double uniform(void)
{
    buffer_state ^= buffer_state >> 12;
    buffer_state ^= buffer_state << 25;
    buffer_state ^= buffer_state >> 27;
    return (double)((buffer_state * 0x2545F4914F6CDD1Dull) >> 11) * 0x1p-53;
}

static inline double get_value(const void *data, int64_t i, mx_dtype dtype) { return mx_get_float(data, i, dtype); }

static inline void set_value(void *data, int64_t i, double x, mx_dtype dtype)
{
    mx_set_float(data, i, (float)x, dtype);
}

/* `count` values in [low, high), as exact as the dtype holds them; with a guard word behind them. */
static inline void *make_values(int64_t count, mx_dtype dtype, double low, double high)
{
    size_t bytes = ((size_t)count * mx_dtype_bytes(dtype) + 127) / 64 * 64;
    void *data = aligned_alloc(64, bytes);
    memset(data, 0x5a, bytes);
    for (int64_t i = 0; i < count; i++)
        set_value(data, i, low + (high - low) * uniform(), dtype);
    return data;
}

/* Whether nothing was written behind the values. */
static inline int guard_intact(const void *data, int64_t count, mx_dtype dtype)
{
    const unsigned char *behind = (const unsigned char *)data + (size_t)count * mx_dtype_bytes(dtype);
    for (int i = 0; i < 32; i++)
        if (behind[i] != 0x5a)
            return 0;
    return 1;
}

/* Largest |got - want| / (1 + |want|). */
static inline double worst_error(const void *got, mx_dtype dtype, const double *want, int64_t count)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(get_value(got, i, dtype) - want[i]) / (1 + fabs(want[i]));
        if (!(error <= worst))
            worst = error;
    }
    return worst;
}

/* Half a unit in the last place of bf16 is 2^-9; the sums before it are f32. */
static inline double tolerance(mx_dtype dtype, double f32) { return dtype == MX_BF16 ? 0x1p-8 : f32; }

/* Calls `test` for each instruction set of this processor, and goes back to the best. */
static inline void for_each_isa(void (*test)(const char *isa))
{
    for (int isa = 0; isa <= (int)mx_isa_best(); isa++) {
        mx_isa_use(mx_isa_name((mx_isa)isa));
        test(mx_isa_name((mx_isa)isa));
    }
    mx_isa_use(mx_isa_name(mx_isa_best()));
}

#endif
