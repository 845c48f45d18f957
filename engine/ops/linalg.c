/* Systems of linear equations, factorizations and determinants: mx.linalg. */
#include "kernels/linalg.h"

#include "core/element.h"
#include "ops/rows.h"
#include "ops/terms.h"

#include <math.h>

typedef struct solve_attr {
    bool trans;
} solve_attr;

static bool is_transposed(const mx_call *call) { return ((const solve_attr *)mx_call_attr(call))->trans; }

static int64_t rows_of(const mx_tensor *a) { return a->shape.size[a->shape.n_dims - 2]; }

/* Checks that input 0 is matrices of f32 or f64 that have values. */
static mx_status want_matrices(const mx_call *call)
{
    const mx_tensor *a = call->in[0];
    if (a->dtype != MX_F32 && a->dtype != MX_F64)
        return mx_bad_dtype(call, "'a' must be f32 or f64");
    if (a->shape.n_dims < 2)
        return mx_bad_shape(call, "'a' must be matrices (..., m, n)");
    if (mx_row_width(a) > INT32_MAX || rows_of(a) > INT32_MAX)
        return mx_bad_shape(call, "LAPACK takes at most %d rows", INT32_MAX);
    if (!mx_has_values(a))
        return mx_bad_value(call, "a simulated pod has no rate for factorizations; run them on the host");
    return MX_OK;
}

static mx_status want_square_matrices(const mx_call *call)
{
    const mx_tensor *a = call->in[0];
    if (a->shape.n_dims < 2 || mx_row_width(a) != rows_of(a))
        return mx_bad_shape(call, "'a' must be square matrices (..., n, n)");
    return want_matrices(call);
}

/* Whether b is a vector for each matrix. */
static bool is_vectors(const mx_tensor *a, const mx_tensor *b)
{
    mx_shape rows = mx_shape_of_rows(a);
    return mx_shape_equal(&b->shape, &rows);
}

static mx_status infer_solve(mx_call *call)
{
    const mx_tensor *a = call->in[0], *b = call->in[1];
    MX_TRY(want_square_matrices(call));
    MX_TRY(mx_want_dtype(call, 1, a->dtype));
    mx_shape want = a->shape;
    if (b->shape.n_dims == want.n_dims)
        want.size[want.n_dims - 1] = mx_row_width(b);
    if (!is_vectors(a, b) && !mx_shape_equal(&b->shape, &want))
        return mx_bad_shape(call, "'b' must be (..., n, k), or vectors (..., n), with the dimensions of a in front");
    if (!is_vectors(a, b) && mx_row_width(b) > INT32_MAX)
        return mx_bad_shape(call, "LAPACK takes at most %d columns", INT32_MAX);
    return mx_out(call, 0, a->dtype, &b->shape);
}

static mx_cost cost_solve(const mx_call *call)
{
    double n = (double)mx_row_width(call->in[0]);
    return mx_cost_of(call, 2.0 / 3 * n * (double)mx_count(call->in[0]) + 2 * n * (double)mx_count(call->in[1]));
}

/* Matrix `number` in words: none where there is one. */
static const char *which(const mx_call *call, int64_t number, char text[48])
{
    bool one = call->in[0]->shape.n_dims == 2;
    snprintf(text, 48, one ? "the matrix" : "matrix %lld", (long long)number + 1);
    return text;
}

static mx_status host_solve(mx_call *call)
{
    const mx_tensor *a = call->in[0], *b = call->in[1];
    int64_t n = mx_row_width(a), k = is_vectors(a, b) ? 1 : mx_row_width(b), zero = 0;
    int64_t element = (int64_t)mx_dtype_bytes(a->dtype), matrices = n > 0 ? mx_count(a) / (n * n) : 0;
    for (int64_t i = 0; i < matrices; i++) {
        MX_TRY(mx_linalg_solve(a->dtype, n, k, is_transposed(call), (const char *)mx_data(a) + i * n * n * element,
                               (const char *)mx_data(b) + i * n * k * element,
                               (char *)mx_data(call->out[0]) + i * n * k * element, &zero));
        if (zero != 0)
            return mx_bad_value(call, "%s is singular: pivot %lld is 0", which(call, i, (char[48]){0}),
                                (long long)zero);
    }
    return MX_OK;
}

/* a x = b: db solves a^T db = dx, and da = -db x^T; with `trans` both the other way around. */
static mx_status vjp_solve(mx_vjp *v)
{
    const mx_call *call = v->call;
    const mx_tensor *a = call->in[0], *b = call->in[1];
    const solve_attr other = {!is_transposed(call)};
    mx_shape columns = b->shape;
    if (is_vectors(a, b))
        columns.size[columns.n_dims++] = 1;
    mx_terms s = {.n = 0};
    mx_tensor *dx = mx_term_cast(&s, v->out_grad[0], a->dtype), *da = NULL;
    mx_tensor *db = mx_term(&s, &mx_op_linalg_solve, MX_ATTRS(other), call->in[0], dx, NULL);
    if (db && v->want[0]) {
        mx_tensor *left = mx_term_affine(&s, mx_term_reshape(&s, db, &columns), -1, 0);
        mx_tensor *x = mx_term_reshape(&s, call->out[0], &columns);
        if (left && x && is_transposed(call))
            mx_term_keep(&s, mx_apply_matmul(x, left, false, true, &da), &da);
        else if (left && x)
            mx_term_keep(&s, mx_apply_matmul(left, x, false, true, &da), &da);
        mx_term_give(&s, v, 0, da);
    }
    mx_term_give(&s, v, 1, db);
    return mx_terms_release(&s);
}

const mx_op mx_op_linalg_solve = {
    .name = "linalg_solve",
    .doc = "x with a x = b: a (..., n, n), b (..., n, k) or (..., n), f32 or f64; a singular matrix is an error",
    .inputs = (const char *const[]){"a", "b", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs =
        (const mx_attr[]){
            {"trans", MX_ATTR_BOOL, offsetof(solve_attr, trans), 0, NULL, "with the transpose of a: a^T x = b"}, {0}},
    .attr_bytes = sizeof(solve_attr),
    .reads_in = 1 << 0,
    .reads_out = 1 << 0,
    .infer = infer_solve,
    .cost = cost_solve,
    .host = host_solve,
    .vjp = vjp_solve,
    .vjp_recorded = vjp_solve,
};

/* ---- Cholesky ---- */

static mx_status infer_cholesky(mx_call *call)
{
    MX_TRY(want_square_matrices(call));
    return mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape);
}

static mx_cost cost_cholesky(const mx_call *call)
{
    return mx_cost_of(call, (double)mx_row_width(call->in[0]) * (double)mx_count(call->in[0]) / 3);
}

static mx_status host_cholesky(mx_call *call)
{
    const mx_tensor *a = call->in[0];
    int64_t n = mx_row_width(a), element = (int64_t)mx_dtype_bytes(a->dtype), bad = 0;
    for (int64_t i = 0; n > 0 && i < mx_count(a) / (n * n); i++) {
        int64_t from = i * n * n * element;
        mx_linalg_cholesky(a->dtype, n, (const char *)mx_data(a) + from, (char *)mx_data(call->out[0]) + from, &bad);
        if (bad != 0)
            return mx_bad_value(call, "%s is not positive definite: its leading minor of order %lld is not positive",
                                which(call, i, (char[48]){0}), (long long)bad);
    }
    return MX_OK;
}

/* The lower triangle; `half`: with half of the diagonal. */
static mx_tensor *lower(mx_terms *s, mx_tensor *x, bool half)
{
    const struct {
        int64_t diagonal;
    } with = {0}, below = {-1};
    mx_tensor *y = mx_term(s, &mx_op_tril, MX_ATTRS(with), x, NULL, NULL);
    if (!half)
        return y;
    return mx_term_affine(s, mx_term_add(s, y, mx_term(s, &mx_op_tril, MX_ATTRS(below), x, NULL, NULL)), 0.5, 0);
}

/* x with l^T x = b. */
static mx_tensor *back(mx_terms *s, mx_tensor *l, mx_tensor *b)
{
    const solve_attr trans = {true};
    return mx_term(s, &mx_op_linalg_solve, MX_ATTRS(trans), l, b, NULL);
}

static mx_tensor *transposed(mx_terms *s, mx_tensor *x)
{
    mx_tensor *y = NULL;
    return x && mx_term_keep(s, mx_apply_transpose(x, -2, -1, &y), &y) ? y : NULL;
}

/* With p = l^T dl, lower and with half of its diagonal: da is the symmetric part of l^-T p l^-1. */
static mx_status vjp_cholesky(mx_vjp *v)
{
    mx_tensor *l = v->call->out[0], *p = NULL;
    mx_terms s = {.n = 0};
    mx_tensor *dl = lower(&s, mx_term_cast(&s, v->out_grad[0], l->dtype), false);
    if (dl)
        mx_term_keep(&s, mx_apply_matmul(l, dl, true, false, &p), &p);
    mx_tensor *right = back(&s, l, transposed(&s, back(&s, l, lower(&s, p, true))));
    mx_tensor *da = mx_term_affine(&s, mx_term_add(&s, right, transposed(&s, right)), 0.5, 0);
    mx_term_give(&s, v, 0, da);
    return mx_terms_release(&s);
}

const mx_op mx_op_linalg_cholesky = {
    .name = "linalg_cholesky",
    .doc =
        "the lower triangle l with l l^T = a, for symmetric positive definite a (..., n, n), f32 or f64, of which the "
        "lower triangle is read",
    .inputs = (const char *const[]){"a", NULL},
    .n_out = 1,
    .n_results = 1,
    .reads_out = 1 << 0,
    .infer = infer_cholesky,
    .cost = cost_cholesky,
    .host = host_cholesky,
    .vjp = vjp_cholesky,
    .vjp_recorded = vjp_cholesky,
};

/* ---- eigenvectors of symmetric matrices ---- */

static mx_status infer_eigh(mx_call *call)
{
    MX_TRY(want_square_matrices(call));
    mx_shape rows = mx_shape_of_rows(call->in[0]);
    MX_TRY(mx_out(call, 0, call->in[0]->dtype, &rows));
    return mx_out(call, 1, call->in[0]->dtype, &call->in[0]->shape);
}

static mx_cost cost_eigh(const mx_call *call)
{
    return mx_cost_of(call, 9 * (double)mx_row_width(call->in[0]) * (double)mx_count(call->in[0]));
}

static mx_status host_eigh(mx_call *call)
{
    const mx_tensor *a = call->in[0];
    int64_t n = mx_row_width(a), element = (int64_t)mx_dtype_bytes(a->dtype), bad = 0;
    for (int64_t i = 0; n > 0 && i < mx_count(a) / (n * n); i++) {
        int64_t from = i * n * n * element;
        MX_TRY(mx_linalg_eigh(a->dtype, n, (const char *)mx_data(a) + from,
                              (char *)mx_data(call->out[0]) + i * n * element, (char *)mx_data(call->out[1]) + from,
                              &bad));
        if (bad != 0)
            return mx_bad_value(call, "%s %s", which(call, i, (char[48]){0}),
                                bad < 0 ? "has NaN or infinities" : "has eigenvalues that LAPACK does not find");
    }
    return MX_OK;
}

/* 1 / (w[j] - w[i]) for i != j, else 0. Equal eigenvalues give infinities: their eigenvectors are not unique. */
static mx_tensor *inverse_gaps(mx_terms *s, mx_tensor *w, const mx_shape *square)
{
    mx_shape row = *square, column = *square;
    row.size[square->n_dims - 2] = column.size[square->n_dims - 1] = 1;
    const struct {
        int64_t diagonal;
    } above = {1}, below = {-1};
    mx_tensor *gaps = mx_term_sub(s, mx_term_reshape(s, w, &row), mx_term_reshape(s, w, &column));
    mx_tensor *ones = mx_term_affine(s, gaps, 0, 1);
    mx_tensor *others = mx_term_add(s, mx_term(s, &mx_op_triu, MX_ATTRS(above), ones, NULL, NULL),
                                    mx_term(s, &mx_op_tril, MX_ATTRS(below), ones, NULL, NULL));
    mx_tensor *diagonal = mx_term_affine(s, others, -1, 1);
    return mx_term_mul(s, others, mx_term_pow(s, mx_term_add(s, gaps, mx_term_constant(s, diagonal)), -1));
}

static mx_tensor *product(mx_terms *s, mx_tensor *a, mx_tensor *b, bool trans_a, bool trans_b)
{
    mx_tensor *y = NULL;
    return a && b && mx_term_keep(s, mx_apply_matmul(a, b, trans_a, trans_b, &y), &y) ? y : NULL;
}

/* da is the symmetric part of v (diag(dw) + gaps (v^T dv)) v^T, gaps being inverse_gaps. */
static mx_status vjp_eigh(mx_vjp *vjp)
{
    mx_tensor *w = vjp->call->out[0], *v = vjp->call->out[1], *left = NULL;
    const mx_shape *square = &v->shape;
    mx_shape row = *square;
    row.size[square->n_dims - 2] = 1;
    mx_terms s = {.n = 0};
    if (vjp->out_grad[0])
        left = mx_term_mul(&s, v, mx_term_reshape(&s, mx_term_cast(&s, vjp->out_grad[0], w->dtype), &row));
    if (vjp->out_grad[1] && s.status == MX_OK) {
        mx_tensor *dv = mx_term_cast(&s, vjp->out_grad[1], v->dtype);
        mx_tensor *inner = mx_term_mul(&s, inverse_gaps(&s, w, square), product(&s, v, dv, true, false));
        mx_tensor *part = product(&s, v, inner, false, false);
        left = left ? mx_term_add(&s, left, part) : part;
    }
    mx_tensor *da = product(&s, left, v, false, true);
    da = mx_term_affine(&s, mx_term_add(&s, da, transposed(&s, da)), 0.5, 0);
    mx_term_give(&s, vjp, 0, da);
    return mx_terms_release(&s);
}

const mx_op mx_op_linalg_eigh = {
    .name = "linalg_eigh",
    .doc = "eigenvalues (..., n) of symmetric a (..., n, n), ascending, and eigenvectors as columns (..., n, n), whose "
           "greatest component is positive; f32 or f64; the lower triangle is read. Equal eigenvalues: no gradient of "
           "eigenvectors",
    .inputs = (const char *const[]){"a", NULL},
    .n_out = 2,
    .n_results = 2,
    .reads_out = 1 << 0 | 1 << 1,
    .infer = infer_eigh,
    .cost = cost_eigh,
    .host = host_eigh,
    .vjp = vjp_eigh,
    .vjp_recorded = vjp_eigh,
};

/* ---- QR ---- */

static mx_status infer_qr(mx_call *call)
{
    MX_TRY(want_matrices(call));
    const mx_tensor *a = call->in[0];
    mx_shape square = a->shape;
    if (rows_of(a) < mx_row_width(a))
        return mx_bad_shape(call, "'a' must not have more columns than rows; mx.linalg.qr takes such matrices, too");
    square.size[square.n_dims - 2] = mx_row_width(a);
    MX_TRY(mx_out(call, 0, a->dtype, &a->shape));
    return mx_out(call, 1, a->dtype, &square);
}

static mx_cost cost_qr(const mx_call *call)
{
    double m = (double)rows_of(call->in[0]), n = (double)mx_row_width(call->in[0]);
    return mx_cost_of(call, m > 0 ? 4 * (n - n * n / (3 * m)) * (double)mx_count(call->in[0]) : 0);
}

static mx_status host_qr(mx_call *call)
{
    const mx_tensor *a = call->in[0];
    int64_t m = rows_of(a), n = mx_row_width(a), element = (int64_t)mx_dtype_bytes(a->dtype), bad = 0;
    for (int64_t i = 0; n > 0 && i < mx_count(a) / (m * n); i++) {
        MX_TRY(mx_linalg_qr(a->dtype, m, n, (const char *)mx_data(a) + i * m * n * element,
                            (char *)mx_data(call->out[0]) + i * m * n * element,
                            (char *)mx_data(call->out[1]) + i * n * n * element, &bad));
        if (bad != 0)
            return mx_bad_value(call, "%s has NaN or infinities", which(call, i, (char[48]){0}));
    }
    return MX_OK;
}

/* With p = r dr^T - dq^T q, and p's lower triangle also in place of the upper one: da r^T = dq + q p. */
static mx_status vjp_qr(mx_vjp *v)
{
    mx_tensor *q = v->call->out[0], *r = v->call->out[1], *dq = NULL, *p = NULL;
    const struct {
        int64_t diagonal;
    } below = {-1};
    mx_terms s = {.n = 0};
    if (v->out_grad[1])
        p = product(&s, r, mx_term_cast(&s, v->out_grad[1], r->dtype), false, true);
    if (v->out_grad[0] && s.status == MX_OK) {
        dq = mx_term_cast(&s, v->out_grad[0], q->dtype);
        mx_tensor *part = product(&s, dq, q, true, false);
        p = p ? mx_term_sub(&s, p, part) : mx_term_affine(&s, part, -1, 0);
    }
    p = mx_term_add(&s, lower(&s, p, false), transposed(&s, mx_term(&s, &mx_op_tril, MX_ATTRS(below), p, NULL, NULL)));
    mx_tensor *right = product(&s, q, p, false, false);
    if (dq)
        right = mx_term_add(&s, dq, right);
    const solve_attr plain = {false};
    mx_tensor *da = mx_term(&s, &mx_op_linalg_solve, MX_ATTRS(plain), r, transposed(&s, right), NULL);
    da = transposed(&s, da);
    mx_term_give(&s, v, 0, da);
    return mx_terms_release(&s);
}

const mx_op mx_op_linalg_qr = {
    .name = "linalg_qr",
    .doc = "q (..., m, n) with orthonormal columns and upper triangular r (..., n, n) with q r = a, for a (..., m, n) "
           "with m >= n, f32 or f64; the diagonal of r is not negative",
    .inputs = (const char *const[]){"a", NULL},
    .n_out = 2,
    .n_results = 2,
    .reads_out = 1 << 0 | 1 << 1,
    .infer = infer_qr,
    .cost = cost_qr,
    .host = host_qr,
    .vjp = vjp_qr,
    .vjp_recorded = vjp_qr,
};

/* ---- singular values ---- */

static int64_t rank_of(const mx_tensor *a) { return rows_of(a) < mx_row_width(a) ? rows_of(a) : mx_row_width(a); }

static mx_status infer_svd(mx_call *call)
{
    MX_TRY(want_matrices(call));
    const mx_tensor *a = call->in[0];
    int64_t k = rank_of(a);
    mx_shape u = a->shape, s = mx_shape_of_rows(a), vh = a->shape;
    u.size[u.n_dims - 1] = s.size[s.n_dims - 1] = vh.size[vh.n_dims - 2] = k;
    MX_TRY(mx_out(call, 0, a->dtype, &u));
    MX_TRY(mx_out(call, 1, a->dtype, &s));
    return mx_out(call, 2, a->dtype, &vh);
}

/* Golub and Van Loan, Matrix Computations, for tall matrices that are reduced to triangles first: 6 m n^2 + 20 n^3. */
static mx_cost cost_svd(const mx_call *call)
{
    const mx_tensor *a = call->in[0];
    double k = (double)rank_of(a), most = fmax((double)rows_of(a), (double)mx_row_width(a));
    return mx_cost_of(call, most > 0 ? (6 * k + 20 * k * k / most) * (double)mx_count(a) : 0);
}

static mx_status host_svd(mx_call *call)
{
    const mx_tensor *a = call->in[0];
    int64_t m = rows_of(a), n = mx_row_width(a), k = rank_of(a), element = (int64_t)mx_dtype_bytes(a->dtype), bad = 0;
    for (int64_t i = 0; k > 0 && i < mx_count(a) / (m * n); i++) {
        MX_TRY(mx_linalg_svd(a->dtype, m, n, (const char *)mx_data(a) + i * m * n * element,
                             (char *)mx_data(call->out[0]) + i * m * k * element,
                             (char *)mx_data(call->out[1]) + i * k * element,
                             (char *)mx_data(call->out[2]) + i * k * n * element, &bad));
        if (bad != 0)
            return mx_bad_value(call, "%s %s", which(call, i, (char[48]){0}),
                                bad < 0 ? "has NaN or infinities" : "has singular values that LAPACK does not find");
    }
    return MX_OK;
}

static mx_tensor *skew(mx_terms *s, mx_tensor *x) { return mx_term_sub(s, x, transposed(s, x)); }

/* What changes u and vh within the space of their vectors, and s: u (k, k) vh is the gradient of a. */
static mx_tensor *svd_inner(mx_terms *t, const mx_vjp *v, mx_tensor *du, mx_tensor *dvh, const mx_shape *row,
                            const mx_shape *column)
{
    mx_tensor *u = v->call->out[0], *s = v->call->out[1], *vh = v->call->out[2], *inner = NULL;
    mx_shape square = *row;
    square.size[square.n_dims - 2] = square.size[square.n_dims - 1];
    mx_tensor *gaps = inverse_gaps(t, mx_term_mul(t, s, s), &square);
    if (du)
        inner =
            mx_term_mul(t, mx_term_mul(t, skew(t, product(t, u, du, true, false)), gaps), mx_term_reshape(t, s, row));
    if (dvh) {
        mx_tensor *part = mx_term_mul(t, mx_term_mul(t, skew(t, product(t, vh, dvh, false, true)), gaps),
                                      mx_term_reshape(t, s, column));
        inner = inner ? mx_term_add(t, inner, part) : part;
    }
    return inner;
}

/* Townsend, Differentiating the singular value decomposition (2016), with the parts of du and dvh that lead out of the
 * spaces of u and vh, (1 - u u^T) du s^-1 vh and u s^-1 dvh (1 - vh^T vh), for matrices that are not square. */
static mx_status vjp_svd(mx_vjp *v)
{
    mx_tensor *u = v->call->out[0], *s = v->call->out[1], *vh = v->call->out[2], *left = NULL, *da = NULL, *part;
    mx_shape row = vh->shape, column = u->shape;
    row.size[row.n_dims - 1] = column.size[column.n_dims - 2] = mx_row_width(s);
    row.size[row.n_dims - 2] = column.size[column.n_dims - 1] = 1;
    mx_terms t = {.n = 0};
    mx_tensor *du = v->out_grad[0] ? mx_term_cast(&t, v->out_grad[0], u->dtype) : NULL;
    mx_tensor *dvh = v->out_grad[2] ? mx_term_cast(&t, v->out_grad[2], u->dtype) : NULL;
    if (du || dvh)
        left = product(&t, u, svd_inner(&t, v, du, dvh, &row, &column), false, false);
    if (v->out_grad[1]) {
        part = mx_term_mul(&t, u, mx_term_reshape(&t, mx_term_cast(&t, v->out_grad[1], u->dtype), &row));
        left = left ? mx_term_add(&t, left, part) : part;
    }
    if (du && rows_of(u) > mx_row_width(u)) {
        part = mx_term_mul(&t, du, mx_term_pow(&t, mx_term_reshape(&t, s, &row), -1));
        part = mx_term_sub(&t, part, product(&t, u, product(&t, u, part, true, false), false, false));
        left = mx_term_add(&t, left, part);
    }
    da = product(&t, left, vh, false, false);
    if (dvh && mx_row_width(vh) > rows_of(vh)) {
        part = mx_term_mul(&t, dvh, mx_term_pow(&t, mx_term_reshape(&t, s, &column), -1));
        part = mx_term_sub(&t, part, product(&t, product(&t, part, vh, false, true), vh, false, false));
        da = mx_term_add(&t, da, product(&t, u, part, false, false));
    }
    mx_term_give(&t, v, 0, da);
    return mx_terms_release(&t);
}

const mx_op mx_op_linalg_svd = {
    .name = "linalg_svd",
    .doc = "u (..., m, k), descending singular values s (..., k) and vh (..., k, n) with u diag(s) vh = a, for a (..., "
           "m, n) and k = min(m, n), f32 or f64; the greatest component of each row of vh is positive. Equal singular "
           "values: no gradient of u and vh",
    .inputs = (const char *const[]){"a", NULL},
    .n_out = 3,
    .n_results = 3,
    .reads_out = 1 << 0 | 1 << 1 | 1 << 2,
    .infer = infer_svd,
    .cost = cost_svd,
    .host = host_svd,
    .vjp = vjp_svd,
    .vjp_recorded = vjp_svd,
};

/* ---- determinants ---- */

static mx_status infer_slogdet(mx_call *call)
{
    MX_TRY(want_square_matrices(call));
    mx_shape matrices = call->in[0]->shape;
    matrices.n_dims -= 2;
    MX_TRY(mx_out(call, 0, call->in[0]->dtype, &matrices));
    return mx_out(call, 1, call->in[0]->dtype, &matrices);
}

static mx_cost cost_slogdet(const mx_call *call)
{
    return mx_cost_of(call, 2.0 / 3 * (double)mx_row_width(call->in[0]) * (double)mx_count(call->in[0]));
}

static mx_status host_slogdet(mx_call *call)
{
    const mx_tensor *a = call->in[0];
    int64_t n = mx_row_width(a), element = (int64_t)mx_dtype_bytes(a->dtype);
    for (int64_t i = 0; i < mx_count(call->out[0]); i++) {
        double sign = 0, log_size = 0;
        MX_TRY(mx_linalg_slogdet(a->dtype, n, (const char *)mx_data(a) + i * n * n * element, &sign, &log_size));
        mx_set_number(mx_data(call->out[0]), i, sign, a->dtype);
        mx_set_number(mx_data(call->out[1]), i, log_size, a->dtype);
    }
    return MX_OK;
}

/* dlog_size times the transpose of the inverse. */
static mx_status vjp_slogdet(mx_vjp *v)
{
    mx_tensor *a = v->call->in[0], *ones = NULL;
    const struct {
        int64_t diagonal;
    } main = {0};
    const solve_attr trans = {true};
    mx_shape each = a->shape;
    if (!v->out_grad[1])
        return MX_OK;
    each.size[each.n_dims - 1] = each.size[each.n_dims - 2] = 1;
    mx_terms s = {.n = 0};
    mx_term_keep(&s, mx_apply_full(&a->shape, a->dtype, 1, &ones), &ones);
    mx_tensor *one = mx_term(&s, &mx_op_triu, MX_ATTRS(main), lower(&s, ones, false), NULL, NULL);
    mx_tensor *inverse = mx_term(&s, &mx_op_linalg_solve, MX_ATTRS(trans), a, one, NULL);
    mx_tensor *dlog = mx_term_reshape(&s, mx_term_cast(&s, v->out_grad[1], a->dtype), &each);
    mx_tensor *da = mx_term_mul(&s, inverse, dlog);
    mx_term_give(&s, v, 0, da);
    return mx_terms_release(&s);
}

const mx_op mx_op_linalg_slogdet = {
    .name = "linalg_slogdet",
    .doc = "the sign of the determinant of a (..., n, n), 1, -1 or 0, and the logarithm of its magnitude, each (...); "
           "f32 or f64. A singular matrix has no gradient",
    .inputs = (const char *const[]){"a", NULL},
    .n_out = 2,
    .n_results = 2,
    .reads_in = 1 << 0,
    .infer = infer_slogdet,
    .cost = cost_slogdet,
    .host = host_slogdet,
    .vjp = vjp_slogdet,
    .vjp_recorded = vjp_slogdet,
};
