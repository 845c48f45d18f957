/* Systems of linear equations and factorizations of dense matrices, by LAPACK, which OpenBLAS contains. Matrices are
 * row-major, of f32 or f64, and computed in their dtype. */
#ifndef MX_KERNELS_LINALG_H
#define MX_KERNELS_LINALG_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>

/* x (n, k) with a x = b, or a^T x = b if `trans`, for a (n, n) and b (n, k). *zero: 0, or the number, from 1, of a
 * pivot that is exactly 0: then a is singular, and x has no values. MX_ERR_MEMORY: no scratch of the size of a and b.
 */
mx_status mx_linalg_solve(mx_dtype dtype, int64_t n, int64_t k, bool trans, const void *a, const void *b, void *x,
                          int64_t *zero);

/* The lower triangle l with l l^T = a, for a symmetric, of which the lower triangle is read; zeros above. *bad: 0, or
 * the order of a leading minor that is not positive: then l has no values. */
void mx_linalg_cholesky(mx_dtype dtype, int64_t n, const void *a, void *l, int64_t *bad);

/* The eigenvalues w (n) of a symmetric a, ascending, and its eigenvectors as the columns of v (n, n), of which the
 * greatest component is positive. The lower triangle of a is read. *bad: 0, -1 if
 * there is a NaN or an infinity, or how many did not converge: then w and v have no values. MX_ERR_MEMORY: no scratch
 * of a few times the size of a. */
mx_status mx_linalg_eigh(mx_dtype dtype, int64_t n, const void *a, void *w, void *v, int64_t *bad);

/* a = q r for a (m, n) with m >= n >= 1: the columns of q (m, n) are orthonormal, r (n, n) is upper triangular with a
 * diagonal that is not negative. *bad: 0, or -1 if there is a NaN or an infinity: then q and r have no values.
 * MX_ERR_MEMORY: no scratch of the size of a. */
mx_status mx_linalg_qr(mx_dtype dtype, int64_t m, int64_t n, const void *a, void *q, void *r, int64_t *bad);

/* a = u diag(s) vh for a (m, n) and k = min(m, n) >= 1: u (m, k) has orthonormal columns, vh (k, n) orthonormal rows,
 * of which the greatest component is positive, and s (k) is descending. *bad and MX_ERR_MEMORY as for mx_linalg_eigh.
 */
mx_status mx_linalg_svd(mx_dtype dtype, int64_t m, int64_t n, const void *a, void *u, void *s, void *vh, int64_t *bad);

/* The determinant of a (n, n) is *sign e^*log_size: *sign is 1, -1, or 0 for a singular a, whose *log_size is -inf.
 * MX_ERR_MEMORY: no scratch of the size of a. */
mx_status mx_linalg_slogdet(mx_dtype dtype, int64_t n, const void *a, double *sign, double *log_size);

#endif
