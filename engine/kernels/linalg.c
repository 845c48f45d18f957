#include "kernels/linalg.h"

#include "core/pool.h"

#include <string.h>

/* LAPACK's, in Fortran's convention: columns are contiguous, everything is passed by address. Our row-major matrix is
 * the transpose of what it sees. */
extern void sgetrf_(const int *m, const int *n, float *a, const int *lda, int *pivots, int *info);
extern void dgetrf_(const int *m, const int *n, double *a, const int *lda, int *pivots, int *info);
extern void sgetrs_(const char *trans, const int *n, const int *k, const float *a, const int *lda, const int *pivots,
                    float *b, const int *ldb, int *info);
extern void dgetrs_(const char *trans, const int *n, const int *k, const double *a, const int *lda, const int *pivots,
                    double *b, const int *ldb, int *info);
extern void spotrf_(const char *uplo, const int *n, float *a, const int *lda, int *info);
extern void dpotrf_(const char *uplo, const int *n, double *a, const int *lda, int *info);

/* to (columns, rows) = from^T, for from (rows, columns). */
static void transpose(mx_dtype dtype, int64_t rows, int64_t columns, const void *from, void *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            if (dtype == MX_F64)
                ((double *)to)[j * rows + i] = ((const double *)from)[i * columns + j];
            else
                ((float *)to)[j * rows + i] = ((const float *)from)[i * columns + j];
}

mx_status mx_linalg_solve(mx_dtype dtype, int64_t n, int64_t k, bool trans, const void *a, const void *b, void *x,
                          int64_t *zero)
{
    int64_t element = (int64_t)mx_dtype_bytes(dtype);
    int64_t bytes = (n * n + n * k) * element + n * (int64_t)sizeof(int);
    const char *how = trans ? "N" : "T"; /* LAPACK sees a^T */
    int order = (int)n, columns = (int)k, leading = n > 0 ? order : 1, info = 0;
    char *scratch;
    MX_TRY(mx_pool_alloc(bytes, (void **)&scratch));
    char *factors = scratch, *rows = scratch + n * n * element;
    int *pivots = (int *)(rows + n * k * element);
    memcpy(factors, a, (size_t)(n * n * element));
    transpose(dtype, n, k, b, rows);
    if (dtype == MX_F64)
        dgetrf_(&order, &order, (double *)factors, &leading, pivots, &info);
    else
        sgetrf_(&order, &order, (float *)factors, &leading, pivots, &info);
    *zero = info;
    if (info == 0 && dtype == MX_F64)
        dgetrs_(how, &order, &columns, (double *)factors, &leading, pivots, (double *)rows, &leading, &info);
    else if (info == 0)
        sgetrs_(how, &order, &columns, (float *)factors, &leading, pivots, (float *)rows, &leading, &info);
    if (*zero == 0)
        transpose(dtype, k, n, rows, x);
    mx_pool_free(scratch, bytes);
    return MX_OK;
}

void mx_linalg_cholesky(mx_dtype dtype, int64_t n, const void *a, void *l, int64_t *bad)
{
    int64_t element = (int64_t)mx_dtype_bytes(dtype);
    int order = (int)n, leading = n > 0 ? order : 1, info = 0;
    memcpy(l, a, (size_t)(n * n * element));
    if (dtype == MX_F64)
        dpotrf_("U", &order, l, &leading, &info); /* the upper triangle of what LAPACK sees is our lower one */
    else
        spotrf_("U", &order, l, &leading, &info);
    for (int64_t i = 0; i < n; i++)
        memset((char *)l + (i * n + i + 1) * element, 0, (size_t)((n - i - 1) * element));
    *bad = info;
}
