/* Many products of different sizes: which thread does what. */
#include "kernels/gemm.h"

#include "core/pool.h"
#include "kernels/gemm_internal.h"

#include <omp.h>
#include <stdlib.h>

/* Items of each thread: the last ones to end leave at most about 1 / ITEMS of the time unused. A run of fewer columns
 * packs its rows of A for too little work: then all threads do the product together. */
enum { ITEMS = 8, LEAST_COLUMNS = 1024 };

/* Some columns of a product, for one thread. */
typedef struct item {
    const mx_gemm *product;
    int64_t column, columns;
    double work;
} item;

static double work_of(const mx_gemm *g) { return (double)g->m * (double)g->n * (double)(g->k > 0 ? g->k : 1); }

/* False for f32 alone: what multiplies it depends on its size, so a part of the columns may be summed in another order
 * than the whole. */
static bool is_ours(const mx_gemm *g)
{
    return mx_dtype_is_code(g->a.dtype) || mx_dtype_is_code(g->b.dtype) || mx_is_bf16(g->a.dtype) ||
           mx_is_bf16(g->b.dtype);
}

/* Into how many runs of columns a product is cut; 0: all threads do it together. */
static int64_t runs_of(const mx_gemm *g, double most)
{
    if (!is_ours(g))
        return 0;
    if (work_of(g) <= most)
        return 1;
    int64_t n = (int64_t)(work_of(g) / most) + 1;
    return g->n / n >= LEAST_COLUMNS ? n : 0;
}

static int larger_first(const void *a, const void *b)
{
    double x = ((const item *)a)->work, y = ((const item *)b)->work;
    return x < y ? 1 : x > y ? -1 : 0;
}

static mx_status run_item(const item *i)
{
    mx_gemm g = *i->product;
    g.n = i->columns;
    g.b.data = (char *)g.b.data + i->column * (g.b.trans ? g.b.stride : 1) * (int64_t)mx_dtype_bytes(g.b.dtype);
    g.c.data = (char *)g.c.data + i->column * (int64_t)mx_dtype_bytes(g.c.dtype);
    g.bias = g.bias ? g.bias + i->column : NULL;
    if (g.scale_b.value)
        g.scale_b.value += i->column * g.scale_b.step;
    if (g.block_b) /* of a transposed B */
        g.block_b += i->column * (g.k / MX_BLOCK);
    return mx_gemm_run(&g);
}

static int64_t cut(const mx_gemm *g, int64_t runs, item *items)
{
    for (int64_t r = 0; r < runs; r++) {
        int64_t first = g->n * r / runs, last = g->n * (r + 1) / runs;
        items[r] = (item){g, first, last - first, work_of(g) / (double)runs};
    }
    return runs;
}

static mx_status run_items(item *items, int64_t n)
{
    int failed = 0;
    qsort(items, (size_t)n, sizeof *items, larger_first);
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : failed)
    for (int64_t i = 0; i < n; i++)
        failed += run_item(&items[i]) != MX_OK;
    if (failed)
        return mx_fail(MX_ERR_MEMORY, "grouped matrix product: no memory for the packed blocks of %d threads",
                       omp_get_max_threads());
    return MX_OK;
}

mx_status mx_gemm_many(const mx_gemm *products, int64_t n)
{
    int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    double work = 0;
    for (int64_t i = 0; i < n; i++)
        work += work_of(&products[i]);
    double most = work / (ITEMS * threads);
    int64_t items = 0;
    for (int64_t i = 0; i < n; i++)
        items += threads > 1 ? runs_of(&products[i], most) : 0;
    item *list = NULL;
    int64_t bytes = items * (int64_t)sizeof *list, used = 0;
    MX_TRY(mx_pool_alloc(bytes, (void **)&list));
    mx_status status = MX_OK;
    for (int64_t i = 0; i < n && status == MX_OK; i++) {
        int64_t runs = threads > 1 ? runs_of(&products[i], most) : 0;
        if (runs > 0)
            used += cut(&products[i], runs, list + used);
        else
            status = mx_gemm_run(&products[i]);
    }
    if (status == MX_OK && used > 0)
        status = run_items(list, used);
    mx_pool_free(list, bytes);
    return status;
}
