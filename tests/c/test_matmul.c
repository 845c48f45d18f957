/* The operations matmul and matmul_acc: every transposition and batching, with gradients, against sums in double. */
#include "check.h"
#include "ops/op.h"
#include "ops/table.h"

#include <string.h>

typedef struct attributes {
    bool trans_a, trans_b;
    int dtype;
} attributes;

static uint64_t random_state = 7;

static float random_value(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(random_state >> 33) / (float)(1u << 30) - 1.0f;
}

static float get(const mx_tensor *t, int64_t at)
{
    return t->dtype == MX_F32 ? mx_f32(t)[at] : mx_from_bf16(((const mx_bf16 *)mx_data(t))[at]);
}

static mx_tensor *new_tensor(mx_dtype dtype, bool batched, int64_t rows, int64_t columns)
{
    enum { B1 = 2, B2 = 3 };
    mx_shape shape = batched ? (mx_shape){4, {B1, B2, rows, columns}} : (mx_shape){2, {rows, columns}};
    mx_tensor *t = NULL;
    CHECK(mx_tensor_new(dtype, &shape, &t) == MX_OK, "%s", mx_message());
    for (int64_t i = 0; i < mx_count(t); i++) {
        mx_bf16 x = mx_to_bf16(random_value()); /* representable in both, so that one bound holds */
        if (dtype == MX_F32)
            mx_f32(t)[i] = mx_from_bf16(x);
        else
            ((mx_bf16 *)mx_data(t))[i] = x;
    }
    return t;
}

enum { M = 7, N = 10, K = 13, BATCH = 6 };

/* Element (i, j) of item `item` of a tensor, transposed or not; the one matrix when it has no batch. */
static int64_t index_of(const mx_tensor *t, bool trans, int64_t item, int64_t i, int64_t j)
{
    int64_t rows = t->shape.size[t->shape.n_dims - 2], columns = t->shape.size[t->shape.n_dims - 1];
    int64_t first = t->shape.n_dims > 2 ? item * rows * columns : 0;
    return first + (trans ? j * columns + i : i * columns + j);
}

/* sums[at(target)] += dC-weighted partner, from the definition C[i,j] = sum_p A[i,p] B[p,j]. */
static void exact_gradients(const mx_tensor *a, const mx_tensor *b, const mx_tensor *dc, attributes attr, int64_t batch,
                            double *da, double *db)
{
    for (int64_t item = 0; item < batch; item++)
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < N; j++)
                for (int64_t p = 0; p < K; p++) {
                    int64_t at_a = index_of(a, attr.trans_a, item, i, p), at_b = index_of(b, attr.trans_b, item, p, j);
                    double g = get(dc, index_of(dc, false, item, i, j));
                    da[at_a] += g * get(b, at_b);
                    db[at_b] += g * get(a, at_a);
                }
}

static double worst_error(const mx_tensor *t, const double *exact)
{
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < mx_count(t); i++) {
        worst = fmax(worst, fabs(get(t, i) - exact[i]));
        scale = fmax(scale, fabs(exact[i]));
    }
    return worst / (scale + 1e-30);
}

static void check_forward(const mx_tensor *a, const mx_tensor *b, const mx_tensor *c, const mx_tensor *bias,
                          attributes attr, int64_t batch)
{
    double *exact = calloc((size_t)mx_count(c), sizeof *exact);
    for (int64_t item = 0; item < batch; item++)
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < N; j++) {
                double sum = bias ? get(bias, j) : 0;
                for (int64_t p = 0; p < K; p++)
                    sum += (double)get(a, index_of(a, attr.trans_a, item, i, p)) *
                           get(b, index_of(b, attr.trans_b, item, p, j));
                exact[index_of(c, false, item, i, j)] = sum;
            }
    double error = worst_error(c, exact), bound = c->dtype == MX_F32 ? 1e-5 : 1.0 / 256;
    CHECK(error < bound, "forward %s%s %s%s: error %g", mx_tensor_text(a), attr.trans_a ? "'" : "", mx_tensor_text(b),
          attr.trans_b ? "'" : "", error);
    free(exact);
}

/* Gradients into new tensors, then once more into sums: those must double. */
static void check_gradients(mx_call *call, mx_tensor *dc, attributes attr, int64_t batch)
{
    mx_tensor *a = call->in[0], *b = call->in[1];
    double *exact[3] = {calloc((size_t)mx_count(a), sizeof(double)), calloc((size_t)mx_count(b), sizeof(double)),
                        calloc(N, sizeof(double))};
    exact_gradients(a, b, dc, attr, batch, exact[0], exact[1]);
    for (int64_t i = 0; i < mx_count(dc); i++)
        exact[2][i % N] += get(dc, i);
    mx_vjp v = {.call = call,
                .out_grad = &dc,
                .want = (bool[]){true, true, true},
                .sum = (mx_tensor *[3]){NULL},
                .grad = (mx_tensor *[3]){NULL}};
    CHECK(mx_op_matmul.vjp(&v) == MX_OK, "%s", mx_message());
    for (int i = 0; i < 3; i++) {
        CHECK(v.grad[i] && v.grad[i]->dtype == MX_F32 && mx_shape_equal(&v.grad[i]->shape, &call->in[i]->shape),
              "gradient %d is %s of input %s", i + 1, v.grad[i] ? mx_tensor_text(v.grad[i]) : "missing",
              mx_tensor_text(call->in[i]));
        double error = v.grad[i] ? worst_error(v.grad[i], exact[i]) : INFINITY;
        CHECK(error < 1e-5, "gradient %d of %s%s x %s%s: error %g", i + 1, mx_tensor_text(a), attr.trans_a ? "'" : "",
              mx_tensor_text(b), attr.trans_b ? "'" : "", error);
    }
    mx_vjp again = {.call = call,
                    .out_grad = &dc,
                    .want = (bool[3]){true, true},
                    .sum = (mx_tensor *[3]){v.grad[0], v.grad[1]},
                    .grad = (mx_tensor *[3]){NULL}};
    CHECK(mx_op_matmul.vjp(&again) == MX_OK, "%s", mx_message());
    for (int i = 0; i < 2; i++) {
        for (int64_t x = 0; x < mx_count(call->in[i]) && !again.grad[i]; x++)
            exact[i][x] *= 2;
        double error = worst_error(again.grad[i] ? again.grad[i] : v.grad[i], exact[i]);
        CHECK(error < 1e-5, "gradient %d added in place: error %g", i + 1, error);
        mx_release(again.grad[i]);
    }
    for (int i = 0; i < 3; i++) {
        mx_release(v.grad[i]);
        free(exact[i]);
    }
}

static void test_form(int bits)
{
    bool many_a = bits & 1, many_b = bits & 2;
    attributes attr = {bits & 4, bits & 8, bits & 16 ? MX_F32 : -1};
    mx_dtype dtype_a = bits & 32 ? MX_BF16 : MX_F32, dtype_b = bits & 64 ? MX_BF16 : MX_F32;
    mx_tensor *a = attr.trans_a ? new_tensor(dtype_a, many_a, K, M) : new_tensor(dtype_a, many_a, M, K);
    mx_tensor *b = attr.trans_b ? new_tensor(dtype_b, many_b, N, K) : new_tensor(dtype_b, many_b, K, N);
    mx_shape bias_shape = {1, {N}};
    mx_tensor *bias = NULL, *c = NULL;
    CHECK(mx_tensor_new(dtype_b, &bias_shape, &bias) == MX_OK, "%s", mx_message());
    for (int64_t j = 0; j < N; j++)
        if (dtype_b == MX_F32)
            mx_f32(bias)[j] = (float)j * 0.125f;
        else
            ((mx_bf16 *)mx_data(bias))[j] = mx_to_bf16((float)j * 0.125f);
    mx_tensor *in[3] = {a, b, bias};
    CHECK(mx_apply(&mx_op_matmul, in, 3, MX_ATTRS(attr), &c) == MX_OK, "%s", mx_message());
    int64_t batch = many_a || many_b ? BATCH : 1;
    check_forward(a, b, c, bias, attr, batch);
    mx_call call = {
        .op = &mx_op_matmul, .n_in = 3, .n_out = 1, .in = (mx_tensor *[MX_MAX_INPUTS]){a, b, bias}, .out = {c}};
    memcpy(call.attr, &attr, sizeof attr);
    CHECK(mx_op_matmul.cost(&call).flops == 2.0 * (double)batch * M * N * K, "flops %g",
          mx_op_matmul.cost(&call).flops);
    mx_tensor *dc = new_tensor(c->dtype, many_a || many_b, M, N);
    check_gradients(&call, dc, attr, batch);
    mx_release(dc);
    mx_release(c);
    for (int i = 0; i < 3; i++)
        mx_release(in[i]);
}

static void expect_failure(mx_tensor *a, mx_tensor *b, mx_tensor *bias, attributes attr, mx_status code,
                           const char *text)
{
    mx_tensor *in[3] = {a, b, bias}, *out = NULL;
    mx_status status = mx_apply(&mx_op_matmul, in, bias ? 3 : 2, MX_ATTRS(attr), &out);
    CHECK(status == code && strstr(mx_message(), text), "status %d, message '%s', expected '%s'", status, mx_message(),
          text);
}

static void test_failures(void)
{
    mx_tensor *x = new_tensor(MX_F32, false, M, K), *y = NULL;
    const int64_t foreign[3] = {0};
    mx_status status = mx_apply(&mx_op_cast, &x, 1, MX_ATTRS(foreign), &y);
    CHECK(status == MX_ERR_STATE && strstr(mx_message(), "cast was given attributes of 24 bytes"), "status %d: %s",
          status, mx_message());
    mx_release(x);
    mx_tensor *a = new_tensor(MX_F32, false, M, K), *b = new_tensor(MX_F32, false, N, K);
    mx_tensor *many = new_tensor(MX_F32, true, K, N), *other = NULL;
    mx_shape shape = {3, {5, M, K}};
    CHECK(mx_tensor_new(MX_F32, &shape, &other) == MX_OK, "%s", mx_message());
    expect_failure(a, b, NULL, (attributes){.dtype = -1}, MX_ERR_SHAPE,
                   "inner sizes differ: a has 13 columns, b has 10 rows: f32 (7, 13) and f32 (10, 13)");
    expect_failure(a, b, NULL, (attributes){true, true, -1}, MX_ERR_SHAPE, "a transposed has 7 columns");
    expect_failure(other, many, NULL, (attributes){.dtype = -1}, MX_ERR_SHAPE, "leading dimensions differ");
    expect_failure(a, b, a, (attributes){false, true, -1}, MX_ERR_SHAPE, "bias must have one dimension of 10");
    expect_failure(a, b, NULL, (attributes){false, true, MX_I8}, MX_ERR_DTYPE, "not i8");
    mx_release(a);
    mx_release(b);
    mx_release(many);
    mx_release(other);
}

int main(void)
{
    for (int bits = 0; bits < 128; bits++)
        test_form(bits);
    test_failures();
    return check_done();
}
