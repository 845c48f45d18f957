/* Matrix products: which path a product takes. */
#include "kernels/gemm.h"

#include "kernels/context.h"
#include "kernels/gemm_internal.h"

#include <cblas.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Of OpenBLAS built for several core types; weak: other builds lack them. */
void gotoblas_dynamic_init(void) __attribute__((weak));
void gotoblas_dynamic_quit(void) __attribute__((weak));

/* An OpenBLAS older than the processor falls back to a core type without AVX: a fifth of the rate. It is then started
 * again with the newest type that this processor can run. */
__attribute__((constructor)) static void choose_blas_core(void)
{
    static const char name[] = "OPENBLAS_CORETYPE";
    bool too_old = mx_isa_best() >= MX_ISA_AVX2 && strcmp(openblas_get_corename(), "Prescott") == 0;
    if (!too_old || getenv(name) || !gotoblas_dynamic_init || !gotoblas_dynamic_quit)
        return;
    setenv(name, mx_isa_best() >= MX_ISA_AVX512 ? "SkylakeX" : "Haswell", 1);
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    unsetenv(name); /* it stands for the user's choice */
}

/* Below this many multiply-adds a second thread costs more than it saves. */
enum { SMALL_PRODUCT = 96 * 96 * 96 };

/* Below this OpenBLAS multiplies f32 faster than we do, and on one thread, so that its bits do not depend on how many
 * there are. */
enum { BLAS_PRODUCT = 64 * 64 * 64 };

/* Rows of an f32 product computed before they are rounded to a bf16 C: about 4 MiB of scratch. */
enum { ROUNDED_AT_ONCE = 1 << 20 };

/* C = 0 (+ bias), or C += bias: what remains of a product without k, and what sgemm then adds to. */
static void start_c(const mx_gemm *g)
{
    if (g->accumulate && !g->bias)
        return;
    const mx_micro *u = mx_kernels_current()->micro;
    static const float zeros[64];
    for (int64_t j = 0; j < g->n; j += 64)
        u->store(g->m, g->n - j < 64 ? g->n - j : 64, zeros, 0, g->bias ? g->bias + j : NULL,
                 (char *)g->c.data + j * (int64_t)mx_dtype_bytes(g->c.dtype), g->c.dtype, g->c.stride, g->accumulate);
}

/* C f32. OpenBLAS uses its threads, or the caller alone inside a parallel region. */
static void sgemm(const mx_gemm *g)
{
    bool onto = g->accumulate || g->bias;
    if (g->bias)
        start_c(g);
    cblas_sgemm(CblasRowMajor, g->a.trans ? CblasTrans : CblasNoTrans, g->b.trans ? CblasTrans : CblasNoTrans,
                (blasint)g->m, (blasint)g->n, (blasint)g->k, g->alpha, g->a.data, (blasint)g->a.stride, g->b.data,
                (blasint)g->b.stride, onto ? 1.0f : 0.0f, g->c.data, (blasint)g->c.stride);
}

/* C bf16: some rows at a time in f32, rounded once. */
static mx_status sgemm_rounded(const mx_gemm *g)
{
    int64_t rows = ROUNDED_AT_ONCE / g->n + 1;
    if (rows > g->m)
        rows = g->m;
    float *scratch = mx_gemm_scratch(rows * g->n * 4);
    if (!scratch)
        return mx_fail(MX_ERR_MEMORY, "matrix product: no memory for %lld bytes of f32 sums",
                       (long long)(rows * g->n * 4));
    const mx_micro *u = mx_kernels_current()->micro;
    for (int64_t i = 0; i < g->m; i += rows) {
        mx_gemm some = *g;
        some.m = g->m - i < rows ? g->m - i : rows;
        some.a.data = (float *)g->a.data + i * (g->a.trans ? 1 : g->a.stride);
        some.c = (mx_matrix){scratch, MX_F32, g->n, false};
        some.bias = NULL;
        some.accumulate = false;
        sgemm(&some);
        u->store(some.m, g->n, scratch, g->n, g->bias, (mx_bf16 *)g->c.data + i * g->c.stride, MX_BF16, g->c.stride,
                 g->accumulate);
    }
    return MX_OK;
}

static void dgemm(const mx_gemm *g)
{
    if (g->a.dtype != MX_F64 || g->b.dtype != MX_F64)
        mx_dtype_unexpected(g->a.dtype == MX_F64 ? g->b.dtype : g->a.dtype, __func__);
    for (int64_t i = 0; g->k == 0 && !g->accumulate && i < g->m; i++)
        memset((double *)g->c.data + i * g->c.stride, 0, (size_t)g->n * sizeof(double));
    if (g->k > 0)
        cblas_dgemm(CblasRowMajor, g->a.trans ? CblasTrans : CblasNoTrans, g->b.trans ? CblasTrans : CblasNoTrans,
                    (blasint)g->m, (blasint)g->n, (blasint)g->k, (double)g->alpha, g->a.data, (blasint)g->a.stride,
                    g->b.data, (blasint)g->b.stride, g->accumulate ? 1 : 0, g->c.data, (blasint)g->c.stride);
}

/* Whether the path has kernels of its own for f32 products. */
static bool multiplies_f32(void) { return mx_kernels_current()->micro_f32->pack_b != NULL; }

static bool is_f32(const mx_gemm *g) { return g->a.dtype == MX_F32 && g->b.dtype == MX_F32; }

static bool has_codes(const mx_gemm *g) { return mx_dtype_is_code(g->a.dtype) || mx_dtype_is_code(g->b.dtype); }

const mx_micro *mx_gemm_micro(const mx_gemm *g)
{
    const mx_kernels *kernels = mx_kernels_current();
    bool bytes = g->a.dtype == MX_I8 && g->b.dtype == MX_I8;
    if (bytes && kernels->micro_i8_tiles && mx_cpu_has(MX_CPU_AMX_INT8))
        return kernels->micro_i8_tiles;
    if (bytes)
        return kernels->micro_vnni && mx_cpu_has(MX_CPU_VNNI) ? kernels->micro_vnni : kernels->micro_i8;
    return is_f32(g) ? kernels->micro_f32 : kernels->micro;
}

const char *mx_gemm_instruction(mx_dtype dtype)
{
    if (dtype == MX_F32 && !multiplies_f32())
        return "OpenBLAS";
    return mx_gemm_micro(&(mx_gemm){.a.dtype = dtype, .b.dtype = dtype})->instruction;
}

static mx_status run(const mx_gemm *g, int threads)
{
    if (g->m == 0 || g->n == 0)
        return MX_OK;
    if (g->c.dtype == MX_F64) {
        dgemm(g);
        return MX_OK;
    }
    if (g->k == 0) {
        start_c(g);
        return MX_OK;
    }
    double work = (double)g->m * (double)g->n * (double)g->k;
    bool small = work < SMALL_PRODUCT;
    if (mx_gemm_is_thin_i8(g))
        return mx_gemm_thin_i8(g, small ? 1 : threads);
    if (g->block_b && g->b.dtype == MX_I8)
        return mx_gemm_widened(g);
    if (has_codes(g))
        return mx_gemm_packed(g, small ? 1 : threads);
    bool a_bf16 = mx_is_bf16(g->a.dtype), b_bf16 = mx_is_bf16(g->b.dtype), c_bf16 = mx_is_bf16(g->c.dtype);
    if (a_bf16 || b_bf16) {
        if (g->m <= MX_THIN_ROWS && mx_kernels_current()->thin)
            return mx_gemm_thin(g, small ? 1 : threads);
        return mx_gemm_packed(g, small ? 1 : threads);
    }
    if (work >= BLAS_PRODUCT && multiplies_f32())
        return mx_gemm_packed(g, small ? 1 : threads);
    if (c_bf16)
        return sgemm_rounded(g);
    sgemm(g);
    return MX_OK;
}

mx_status mx_gemm_run(const mx_gemm *g) { return run(g, omp_in_parallel() ? 1 : omp_get_max_threads()); }

static mx_gemm product_of_batch(const mx_gemm *first, int64_t i, int64_t a_step, int64_t b_step, int64_t c_step)
{
    mx_gemm g = *first;
    g.a.data = (char *)g.a.data + i * a_step * (int64_t)mx_dtype_bytes(g.a.dtype);
    g.b.data = (char *)g.b.data + i * b_step * (int64_t)mx_dtype_bytes(g.b.dtype);
    g.c.data = (char *)g.c.data + i * c_step * (int64_t)mx_dtype_bytes(g.c.dtype);
    return g;
}

mx_status mx_gemm_batched(const mx_gemm *first, int64_t batch, int64_t a_step, int64_t b_step, int64_t c_step)
{
    int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    if (threads == 1 || batch < threads) {
        for (int64_t i = 0; i < batch; i++) {
            mx_gemm g = product_of_batch(first, i, a_step, b_step, c_step);
            MX_TRY(run(&g, threads));
        }
        return MX_OK;
    }
    int failed = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : failed)
    for (int64_t i = 0; i < batch; i++) {
        mx_gemm g = product_of_batch(first, i, a_step, b_step, c_step);
        failed += run(&g, 1) != MX_OK;
    }
    if (failed)
        return mx_fail(MX_ERR_MEMORY, "batch of matrix products: no memory for the packed blocks of %d threads",
                       threads);
    return MX_OK;
}
