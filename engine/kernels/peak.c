/* Measures the peaks. Every measurement is cut into short runs and the fastest counts: a run that the system
 * interrupted says nothing about the machine. */
#define _GNU_SOURCE
#include "kernels/peak.h"

#include "kernels/context.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* NULL: no kernel multiplies the dtype. */
static const mx_peak_path *path_of(mx_isa isa, mx_dtype dtype)
{
    const mx_kernels *kernels = mx_kernels_of(isa);
    return !mx_dtype_computes(dtype) ? NULL : mx_is_bf16(dtype) ? kernels->peak_bf16 : kernels->peak_f32;
}

const char *mx_peak_instruction(mx_isa isa, mx_dtype dtype)
{
    const mx_peak_path *path = path_of(isa, dtype);
    return path ? path->instruction : "none";
}

/* One run of all threads, each over the same number of rounds; the slowest ends it. */
static double run_all(const mx_peak_path *path, int threads, int64_t rounds)
{
    double operations = 0, start = seconds_now();
#pragma omp parallel num_threads(threads) reduction(+ : operations)
    {
        float result;
        operations += path->loop(rounds, &result);
        __asm__ volatile("" ::"x"(result));
    }
    return operations / (seconds_now() - start);
}

mx_status mx_peak_fma(mx_isa isa, mx_dtype dtype, int threads, double seconds, double *flops_per_s)
{
    enum { RUNS = 20, FIRST_ROUNDS = 100000 };
    if (isa > mx_isa_best())
        return mx_fail(MX_ERR_VALUE, "peak: isa '%s' is not in this processor, whose best is '%s'", mx_isa_name(isa),
                       mx_isa_name(mx_isa_best()));
    const mx_peak_path *path = path_of(isa, dtype);
    if (!path)
        return mx_fail(MX_ERR_DTYPE, "peak: no product kernel multiplies %s; expected f32 or bf16",
                       mx_dtype_name(dtype));
    if (threads < 1)
        return mx_fail(MX_ERR_VALUE, "peak: %d threads; expected at least 1", threads);
    float result;
    double start = seconds_now(), operations = path->loop(FIRST_ROUNDS, &result);
    double rounds_per_s = FIRST_ROUNDS / (seconds_now() - start);
    int64_t rounds = (int64_t)(rounds_per_s * seconds / RUNS) + 1;
    *flops_per_s = operations / FIRST_ROUNDS * rounds_per_s;
    if (threads > 1)
        *flops_per_s = 0;
    for (int i = 0; i < RUNS; i++) {
        double rate = run_all(path, threads, rounds);
        if (rate > *flops_per_s)
            *flops_per_s = rate;
    }
    return MX_OK;
}

/* ---- copy ---- */

static double copy_all(mx_peak_copy_path *copy, float *to, const float *from, int64_t n, int threads)
{
    double start = seconds_now();
#pragma omp parallel num_threads(threads)
    {
        int64_t pieces = n / 64, part = omp_get_thread_num(), parts = omp_get_num_threads();
        int64_t begin = pieces * part / parts * 64, end = pieces * (part + 1) / parts * 64;
        copy(to + begin, from + begin, end - begin);
    }
    return 2.0 * (double)n * sizeof *to / (seconds_now() - start);
}

mx_status mx_peak_copy(int threads, double seconds, double *bytes_per_s)
{
    enum { LEAST_RUNS = 6, PAGE = 2 << 20 };
    if (threads < 1)
        return mx_fail(MX_ERR_VALUE, "peak: %d threads; expected at least 1", threads);
    int64_t bytes = (mx_cpu_l3_bytes() * 4 + PAGE - 1) / PAGE * PAGE, n = bytes / (int64_t)sizeof(float);
    float *from = aligned_alloc(PAGE, (size_t)bytes), *to = aligned_alloc(PAGE, (size_t)bytes);
    if (!from || !to) {
        free(from);
        free(to);
        return mx_fail(MX_ERR_MEMORY, "peak: no memory for two arrays of %lld bytes", (long long)bytes);
    }
    madvise(from, (size_t)bytes, MADV_HUGEPAGE);
    madvise(to, (size_t)bytes, MADV_HUGEPAGE);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i++)
        from[i] = to[i] = (float)i;
    *bytes_per_s = 0;
    double start = seconds_now();
    for (int run = 0; run < LEAST_RUNS || seconds_now() - start < seconds; run++) {
        double rate = copy_all(run % 2 ? mx_peak_copy_portable : mx_kernels_current()->peak_copy, to, from, n, threads);
        if (rate > *bytes_per_s)
            *bytes_per_s = rate;
    }
    free(from);
    free(to);
    return MX_OK;
}
