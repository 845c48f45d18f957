/* Measures the peaks. Every measurement is cut into short runs and the fastest counts: a run that the system
 * interrupted says nothing about the machine. */
#define _GNU_SOURCE
#include "kernels/peak.h"

#include "core/clock.h"
#include "kernels/context.h"
#include "kernels/gemm.h"
#include "kernels/gemm_internal.h"
#include "kernels/gemm_micro.h"
#include "kernels/inline.h"
#include "kernels/peak_paths.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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
    double operations = 0, start = mx_host_clock();
#pragma omp parallel num_threads(threads) reduction(+ : operations)
    {
        float result;
        operations += path->loop(rounds, &result);
        __asm__ volatile("" ::"x"(result));
    }
    return operations / (mx_host_clock() - start);
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
    double start = mx_host_clock(), operations = path->loop(FIRST_ROUNDS, &result);
    double rounds_per_s = FIRST_ROUNDS / (mx_host_clock() - start);
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

/* ---- products in the caches ---- */

typedef struct cached {
    const mx_micro *micro;
    uint32_t word;         /* of packed operands */
    int64_t panels, words; /* of A; of k */
    int64_t a_words, b_words;
} cached;

/* Words of 1 and -1 in turn: sums stay small. */
static cached plan_cached(mx_dtype dtype)
{
    const mx_micro *u = mx_gemm_micro(&(mx_gemm){.a.dtype = dtype, .b.dtype = dtype});
    cached c = {.micro = u, .word = dtype == MX_I8 ? 0x01ff01ffu : 0x3f80bf80u, .words = u->k_words + u->k_extra};
    c.panels = mx_max(mx_cpu_l2_bytes() / 2 / (c.words * 4) / u->mr, 1);
    c.a_words = mx_round_up(c.panels * u->mr * c.words, 16);
    c.b_words = mx_round_up(u->nr * c.words, 16);
    return c;
}

/* Operations of a thread in a round: each panel of A by that of B. */
static double operations_of(const cached *c)
{
    const mx_micro *u = c->micro;
    return 2.0 * u->mr * u->nr * u->k_group * (double)(u->k_words * c->panels);
}

/* A, B and the sums of the calling thread; NULL without memory. */
static uint32_t *fill_cached(const cached *c)
{
    int64_t n = c->a_words + c->b_words + (int64_t)c->micro->mr * c->micro->nr;
    uint32_t *a = mx_gemm_scratch((n + 512) * 4); /* kernels prefetch beyond the end */
    for (int64_t i = 0; a && i < n; i++)
        a[i] = c->word;
    return a;
}

static void multiply_cached(const cached *c, const uint32_t *a, int64_t rounds)
{
    const mx_micro *u = c->micro;
    const uint32_t *b = a + c->a_words;
    float *sums = (float *)(b + c->b_words);
    if (u->begin)
        u->begin();
    for (int64_t r = 0; r < rounds; r++)
        for (int64_t panel = 0; panel < c->panels; panel++)
            u->kernel(c->words, a + panel * u->mr * c->words, b, 1, sums, u->nr, true, NULL);
    if (u->end)
        u->end();
}

/* The rate of all threads; 0 without memory. */
static double run_cached(const cached *c, int threads, int64_t rounds)
{
    double start = 0;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(+ : failed)
    {
        const uint32_t *a = fill_cached(c);
        failed += !a;
#pragma omp barrier
#pragma omp master
        start = mx_host_clock();
        if (a)
            multiply_cached(c, a, rounds);
    }
    return failed ? 0 : operations_of(c) * threads * (double)rounds / (mx_host_clock() - start);
}

mx_status mx_peak_product(mx_dtype dtype, int threads, double seconds, double *flops_per_s)
{
    enum { RUNS = 20, FIRST_ROUNDS = 4 };
    if (dtype != MX_BF16 && dtype != MX_I8)
        return mx_fail(MX_ERR_DTYPE, "peak of products: no packed kernel multiplies %s; expected bf16 or i8",
                       mx_dtype_name(dtype));
    if (threads < 1)
        return mx_fail(MX_ERR_VALUE, "peak: %d threads; expected at least 1", threads);
    cached c = plan_cached(dtype);
    run_cached(&c, threads, 1); /* gets the memory */
    *flops_per_s = run_cached(&c, threads, FIRST_ROUNDS);
    if (!(*flops_per_s > 0))
        return mx_fail(MX_ERR_MEMORY, "peak of products: no memory for the packed operands of %d threads", threads);
    int64_t rounds = (int64_t)(*flops_per_s * seconds / RUNS / (operations_of(&c) * threads)) + 1;
    for (int i = 0; i < RUNS; i++) {
        double rate = run_cached(&c, threads, rounds);
        *flops_per_s = rate > *flops_per_s ? rate : *flops_per_s;
    }
    return MX_OK;
}

/* ---- copy ---- */

static double copy_all(const mx_peak_copy_paths *path, float *to, const float *from, int64_t n, int threads)
{
    double start = mx_host_clock();
#pragma omp parallel num_threads(threads)
    {
        int64_t pieces = n / 64, part = omp_get_thread_num(), parts = omp_get_num_threads();
        int64_t begin = pieces * part / parts * 64, end = pieces * (part + 1) / parts * 64;
        path->copy(to + begin, from + begin, end - begin);
    }
    return 2.0 * (double)n * sizeof *to / (mx_host_clock() - start);
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
    double start = mx_host_clock();
    for (int run = 0; run < LEAST_RUNS || mx_host_clock() - start < seconds; run++) {
        const mx_peak_copy_paths *path = run % 2 ? &mx_peak_copy_portable : mx_kernels_current()->peak_copy;
        double rate = copy_all(path, to, from, n, threads);
        if (rate > *bytes_per_s)
            *bytes_per_s = rate;
    }
    free(from);
    free(to);
    return MX_OK;
}
