#include "kernels/linalg.h"

#include "core/pool.h"

#include <math.h>
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
extern void sgelqf_(const int *m, const int *n, float *a, const int *lda, float *tau, float *work, const int *lwork,
                    int *info);
extern void dgelqf_(const int *m, const int *n, double *a, const int *lda, double *tau, double *work, const int *lwork,
                    int *info);
extern void sorglq_(const int *m, const int *n, const int *k, float *a, const int *lda, const float *tau, float *work,
                    const int *lwork, int *info);
extern void dorglq_(const int *m, const int *n, const int *k, double *a, const int *lda, const double *tau,
                    double *work, const int *lwork, int *info);
extern void sgesdd_(const char *jobz, const int *m, const int *n, float *a, const int *lda, float *s, float *u,
                    const int *ldu, float *vt, const int *ldvt, float *work, const int *lwork, int *iwork, int *info);
extern void dgesdd_(const char *jobz, const int *m, const int *n, double *a, const int *lda, double *s, double *u,
                    const int *ldu, double *vt, const int *ldvt, double *work, const int *lwork, int *iwork, int *info);

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

/* Gives each of the k rows of x (k, n) the sign that makes its greatest component positive, and the column of y (m, k)
 * with its number the same sign. */
#define DEFINE_SIGN(name, type)                                                                                        \
    static void name(int64_t k, int64_t n, type *x, int64_t m, type *y)                                                \
    {                                                                                                                  \
        for (int64_t i = 0; i < k; i++, x += n) {                                                                      \
            type most = 0;                                                                                             \
            for (int64_t j = 0; j < n; j++)                                                                            \
                most = (x[j] < 0 ? -x[j] : x[j]) > (most < 0 ? -most : most) ? x[j] : most;                            \
            for (int64_t j = 0; j < n && most < 0; j++)                                                                \
                x[j] = -x[j];                                                                                          \
            for (int64_t j = 0; j < m && most < 0; j++)                                                                \
                y[j * k + i] = -y[j * k + i];                                                                          \
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
        sign_f64(n, n, (double *)scratch, 0, NULL);
    else if (info == 0)
        sign_f32(n, n, (float *)scratch, 0, NULL);
    if (info == 0)
        transpose(dtype, n, n, scratch, v);
    mx_pool_free(scratch, bytes);
    return MX_OK;
}

/* The factors of the transpose that LAPACK sees, a^T = l q^T, in place of a; `step` 0: l and reflections, 1: q^T of
 * these. With *size of -1 it puts the size of its scratch there, in elements. */
static void factor_rows(mx_dtype dtype, int step, int m, int n, void *a, void *tau, void *work, int *size)
{
    int info = 0;
    if (dtype == MX_F64 && step == 0)
        dgelqf_(&n, &m, a, &n, tau, work, size, &info);
    else if (dtype == MX_F64)
        dorglq_(&n, &m, &n, a, &n, tau, work, size, &info);
    else if (step == 0)
        sgelqf_(&n, &m, a, &n, tau, work, size, &info);
    else
        sorglq_(&n, &m, &n, a, &n, tau, work, size, &info);
    if (*size < 0)
        *size = dtype == MX_F64 ? (int)*(double *)work : (int)*(float *)work;
}

/* r from the lower triangle that LAPACK sees at q, and then the signs of its rows, and of the columns of q. */
#define DEFINE_TRIANGLE(name, type)                                                                                    \
    static void take_##name(int64_t n, const type *q, type *r)                                                         \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            for (int64_t j = 0; j < n; j++)                                                                            \
                r[i * n + j] = j < i ? 0 : q[i * n + j];                                                               \
    }                                                                                                                  \
    static void turn_##name(int64_t m, int64_t n, type *q, type *r)                                                    \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            if (!(r[i * n + i] < 0))                                                                                   \
                continue;                                                                                              \
            for (int64_t j = i; j < n; j++)                                                                            \
                r[i * n + j] = -r[i * n + j];                                                                          \
            for (int64_t j = 0; j < m; j++)                                                                            \
                q[j * n + i] = -q[j * n + i];                                                                          \
        }                                                                                                              \
    }
DEFINE_TRIANGLE(f32, float)
DEFINE_TRIANGLE(f64, double)

mx_status mx_linalg_qr(mx_dtype dtype, int64_t m, int64_t n, const void *a, void *q, void *r, int64_t *bad)
{
    int64_t element = (int64_t)mx_dtype_bytes(dtype);
    int rows = (int)m, columns = (int)n, sizes[2];
    double first = 0;
    *bad = is_finite(dtype, m * n, a) ? 0 : -1;
    if (*bad != 0)
        return MX_OK;
    for (int step = 0; step < 2; step++) {
        sizes[step] = -1;
        factor_rows(dtype, step, rows, columns, q, &first, &first, &sizes[step]);
    }
    int size = sizes[0] > sizes[1] ? sizes[0] : sizes[1];
    int64_t bytes = (n + size) * element;
    char *tau;
    MX_TRY(mx_pool_alloc(bytes, (void **)&tau));
    memcpy(q, a, (size_t)(m * n * element));
    factor_rows(dtype, 0, rows, columns, q, tau, tau + n * element, &size);
    dtype == MX_F64 ? take_f64(n, q, r) : take_f32(n, q, r);
    factor_rows(dtype, 1, rows, columns, q, tau, tau + n * element, &size);
    dtype == MX_F64 ? turn_f64(m, n, q, r) : turn_f32(m, n, q, r);
    mx_pool_free(tau, bytes);
    return MX_OK;
}

/* Of the transpose that LAPACK sees, the left factor is our right one. As `eigh` for *size of -1. */
static void svd(mx_dtype dtype, int m, int n, void *a, void *u, void *s, void *vh, void *work, int *size, int *work_i,
                int *info)
{
    int k = m < n ? m : n;
    if (dtype == MX_F64)
        dgesdd_("S", &n, &m, a, &n, s, vh, &n, u, &k, work, size, work_i, info);
    else
        sgesdd_("S", &n, &m, a, &n, s, vh, &n, u, &k, work, size, work_i, info);
    if (*size < 0)
        *size = dtype == MX_F64 ? (int)*(double *)work : (int)*(float *)work;
}

mx_status mx_linalg_svd(mx_dtype dtype, int64_t m, int64_t n, const void *a, void *u, void *s, void *vh, int64_t *bad)
{
    int64_t element = (int64_t)mx_dtype_bytes(dtype), k = m < n ? m : n, matrix = m * n * element;
    int info = 0, size = -1, none = 0;
    double first = 0;
    *bad = -1;
    if (!is_finite(dtype, m * n, a))
        return MX_OK;
    svd(dtype, (int)m, (int)n, NULL, NULL, NULL, NULL, &first, &size, &none, &info);
    int64_t bytes = matrix + size * element + 8 * k * (int64_t)sizeof(int);
    char *scratch;
    MX_TRY(mx_pool_alloc(bytes, (void **)&scratch));
    char *work = scratch + matrix;
    memcpy(scratch, a, (size_t)matrix);
    svd(dtype, (int)m, (int)n, scratch, u, s, vh, work, &size, (int *)(work + size * element), &info);
    *bad = info;
    if (info == 0 && dtype == MX_F64)
        sign_f64(k, n, vh, m, u);
    else if (info == 0)
        sign_f32(k, n, vh, m, u);
    mx_pool_free(scratch, bytes);
    return MX_OK;
}

mx_status mx_linalg_slogdet(mx_dtype dtype, int64_t n, const void *a, double *sign, double *log_size)
{
    int64_t square = n * n * (int64_t)mx_dtype_bytes(dtype), bytes = square + n * (int64_t)sizeof(int);
    int order = (int)n, leading = n > 0 ? order : 1, info = 0;
    char *factors;
    MX_TRY(mx_pool_alloc(bytes, (void **)&factors));
    int *pivots = (int *)(factors + square);
    memcpy(factors, a, (size_t)square); /* the transpose has the same determinant */
    if (dtype == MX_F64)
        dgetrf_(&order, &order, (double *)factors, &leading, pivots, &info);
    else
        sgetrf_(&order, &order, (float *)factors, &leading, pivots, &info);
    *sign = 1, *log_size = 0;
    for (int64_t i = 0; i < n; i++) {
        double pivot = dtype == MX_F64 ? ((double *)factors)[i * n + i] : ((float *)factors)[i * n + i];
        *log_size += log(fabs(pivot));
        *sign *= isnan(pivot) ? pivot : (pivot > 0) - (pivot < 0);
        *sign *= pivots[i] == i + 1 ? 1 : -1;
    }
    mx_pool_free(factors, bytes);
    return MX_OK;
}
