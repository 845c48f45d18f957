/* Measures the peaks. Every measurement is cut into short runs and the fastest counts: a run that the system
 * interrupted says nothing about the machine. */
#define _GNU_SOURCE
#include "kernels/peak.h"
#include "kernels/peak_simd.h"

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

/* Multiply and add of four, which every processor of this family has. */
static double portable_f32(int64_t rounds, float *result)
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

static mx_peak_loop *loop_of(mx_isa isa, mx_dtype dtype)
{
    static mx_peak_loop *const f32[MX_ISAS] = {portable_f32, mx_peak_f32_avx2, mx_peak_f32_avx512,
                                               mx_peak_f32_avx512_bf16, mx_peak_f32_avx512_bf16};
    if (!mx_dtype_computes(dtype))
        return NULL;
    if (mx_is_bf16(dtype) && isa == MX_ISA_AMX)
        return mx_peak_bf16_amx;
    if (mx_is_bf16(dtype) && isa == MX_ISA_AVX512_BF16)
        return mx_peak_bf16_avx512_bf16;
    return f32[isa];
}

const char *mx_peak_instruction(mx_isa isa, mx_dtype dtype)
{
    static const char *const f32[MX_ISAS] = {"MULPS + ADDPS, 128 bits", "VFMADD231PS, 256 bits",
                                             "VFMADD231PS, 512 bits", "VFMADD231PS, 512 bits", "VFMADD231PS, 512 bits"};
    if (!loop_of(isa, dtype))
        return "none";
    if (mx_is_bf16(dtype) && isa >= MX_ISA_AVX512_BF16)
        return isa == MX_ISA_AMX ? "TDPBF16PS, tiles of 16 x 16" : "VDPBF16PS, 512 bits";
    return f32[isa];
}

/* One run of all threads, each over the same number of rounds; the slowest ends it. */
static double run_all(mx_peak_loop *loop, int threads, int64_t rounds)
{
    double operations = 0, start = seconds_now();
#pragma omp parallel num_threads(threads) reduction(+ : operations)
    {
        float result;
        operations += loop(rounds, &result);
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
    mx_peak_loop *loop = loop_of(isa, dtype);
    if (!loop)
        return mx_fail(MX_ERR_DTYPE, "peak: no product kernel multiplies %s; expected f32 or bf16",
                       mx_dtype_name(dtype));
    if (threads < 1)
        return mx_fail(MX_ERR_VALUE, "peak: %d threads; expected at least 1", threads);
    float result;
    double start = seconds_now(), operations = loop(FIRST_ROUNDS, &result);
    double rounds_per_s = FIRST_ROUNDS / (seconds_now() - start);
    int64_t rounds = (int64_t)(rounds_per_s * seconds / RUNS) + 1;
    *flops_per_s = operations / FIRST_ROUNDS * rounds_per_s;
    if (threads > 1)
        *flops_per_s = 0;
    for (int i = 0; i < RUNS; i++) {
        double rate = run_all(loop, threads, rounds);
        if (rate > *flops_per_s)
            *flops_per_s = rate;
    }
    return MX_OK;
}

/* ---- copy ---- */

static void copy_plain(float *to, const float *from, int64_t n) { memcpy(to, from, (size_t)n * sizeof *to); }

static double copy_all(mx_peak_copy_loop *copy, float *to, const float *from, int64_t n, int threads)
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
    static mx_peak_copy_loop *const streaming[MX_VECTOR_ISAS] = {
        copy_plain, mx_peak_copy_stream_avx2, mx_peak_copy_stream_avx512, mx_peak_copy_stream_avx512_bf16};
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
        double rate = copy_all(run % 2 ? copy_plain : streaming[mx_isa_vectors()], to, from, n, threads);
        if (rate > *bytes_per_s)
            *bytes_per_s = rate;
    }
    free(from);
    free(to);
    return MX_OK;
}
