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
extern void ssyevd_(const char *jobz, const char *uplo, const int *n, float *a, const int *lda, float *w, float *work,
                    const int *lwork, int *iwork, const int *liwork, int *info);
extern void dsyevd_(const char *jobz, const char *uplo, const int *n, double *a, const int *lda, double *w,
                    double *work, const int *lwork, int *iwork, const int *liwork, int *info);

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

/* LAPACK's; with *size and *size_i of -1 it puts the sizes of its scratch there, in elements. */
static void eigh(mx_dtype dtype, int n, void *a, void *w, void *work, int *size, int *work_i, int *size_i, int *info)
{
    int leading = n > 0 ? n : 1;
    if (dtype == MX_F64) {
        dsyevd_("V", "U", &n, a, &leading, w, work, size, work_i, size_i, info);
        *size = (int)*(double *)work;
    } else {
        ssyevd_("V", "U", &n, a, &leading, w, work, size, work_i, size_i, info);
        *size = (int)*(float *)work;
    }
    *size_i = *work_i;
}

/* Gives each of the n rows of x (n, n) the sign that makes its greatest component positive. */
#define DEFINE_SIGN(name, type)                                                                                        \
    static void name(int64_t n, type *x)                                                                               \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++, x += n) {                                                                      \
            type most = 0;                                                                                             \
            for (int64_t j = 0; j < n; j++)                                                                            \
                most = (x[j] < 0 ? -x[j] : x[j]) > (most < 0 ? -most : most) ? x[j] : most;                            \
            for (int64_t j = 0; j < n && most < 0; j++)                                                                \
                x[j] = -x[j];                                                                                          \
        }                                                                                                              \
    }
DEFINE_SIGN(sign_f32, float)
DEFINE_SIGN(sign_f64, double)

/* LAPACK may not return from a NaN. */
static bool is_finite(mx_dtype dtype, int64_t n, const void *x)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += 0 * (dtype == MX_F64 ? ((const double *)x)[i] : ((const float *)x)[i]);
    return sum == 0;
}

mx_status mx_linalg_eigh(mx_dtype dtype, int64_t n, const void *a, void *w, void *v, int64_t *bad)
{
    int64_t element = (int64_t)mx_dtype_bytes(dtype), square = n * n * element;
    int info = 0, size = -1, size_i = -1, first_i = 0;
    double first = 0;
    *bad = -1;
    if (!is_finite(dtype, n * n, a))
        return MX_OK;
    eigh(dtype, (int)n, NULL, NULL, &first, &size, &first_i, &size_i, &info);
    int64_t bytes = square + size * element + size_i * (int64_t)sizeof(int);
    char *scratch;
    MX_TRY(mx_pool_alloc(bytes, (void **)&scratch));
    char *work = scratch + square;
    memcpy(scratch, a, (size_t)square); /* the upper triangle of what LAPACK sees is our lower one */
    eigh(dtype, (int)n, scratch, w, work, &size, (int *)(work + size * element), &size_i, &info);
    *bad = info;
    if (info == 0 && dtype == MX_F64)
        sign_f64(n, (double *)scratch);
    else if (info == 0)
        sign_f32(n, (float *)scratch);
    if (info == 0)
        transpose(dtype, n, n, scratch, v);
    mx_pool_free(scratch, bytes);
    return MX_OK;
}
