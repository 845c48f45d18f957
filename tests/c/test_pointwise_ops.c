/* Elementwise and reducing operations through mx_apply and the tape: gradients of every way to broadcast small shapes,
 * where gradients are kept in f32, and what bad input is answered. */
#include "mesh/setup.h"
#include "ops/reduction.h"
#include "tape/tape.h"

#include "buffers.h"
#include "check.h"

#include <string.h>

static mx_tensor *tensor(mx_dtype dtype, mx_shape shape)
{
    mx_tensor *t = NULL;
    if (mx_tensor_new(dtype, &shape, &t) != MX_OK)
        abort();
    for (int64_t i = 0; i < mx_count(t); i++)
        set_value(mx_data(t), i, 0.5 + uniform(), dtype);
    return t;
}

static mx_tensor *apply(const mx_op *op, mx_tensor *a, mx_tensor *b, const void *attr)
{
    mx_tensor *out = NULL, *in[2] = {a, b};
    mx_status status = mx_apply(op, in, b ? 2 : 1, (mx_attrs){attr, op->attr_bytes}, &out);
    CHECK(status == MX_OK, "%s: %s", op->name, mx_message());
    return out;
}

static mx_tensor *sum_of(mx_tensor *x) { return apply(&mx_op_sum, x, NULL, &(mx_reduce_attr){0}); }

/* Element of x that element `i` of a result of shape y comes from. */
static int64_t source_of(const mx_shape *y, const mx_shape *x, int64_t i)
{
    int64_t at = 0, dense = 1;
    for (int d = y->n_dims - 1; d >= 0; d--) {
        int own = d - (y->n_dims - x->n_dims);
        int64_t index = i % y->size[d];
        i /= y->size[d];
        if (own >= 0) {
            at += x->size[own] == 1 ? 0 : index * dense;
            dense *= x->size[own];
        }
    }
    return at;
}

/* loss = sum of a b: the gradient by a is b, summed over where a was broadcast, and the other way round. */
static void check_product(mx_shape a_shape, mx_shape b_shape)
{
    mx_tensor *x[2] = {tensor(MX_F32, a_shape), tensor(MX_F32, b_shape)};
    mx_tape_require_grad(x[0], true);
    mx_tape_require_grad(x[1], true);
    mx_tensor *y = apply(&mx_op_mul, x[0], x[1], NULL), *loss = sum_of(y);
    CHECK(mx_tape_backward(mx_tape_current(), &(mx_root){.t = loss, .seed = 1}, 1, false) == MX_OK, "%s", mx_message());
    for (int k = 0; k < 2; k++) {
        double *want = calloc((size_t)mx_count(x[k]) + 1, sizeof *want);
        for (int64_t i = 0; i < mx_count(y); i++)
            want[source_of(&y->shape, &x[k]->shape, i)] +=
                (double)mx_f32(x[1 - k])[source_of(&y->shape, &x[1 - k]->shape, i)];
        CHECK(x[k]->grad && mx_shape_equal(&x[k]->grad->shape, &x[k]->shape) &&
                  worst_error(mx_data(x[k]->grad), MX_F32, want, mx_count(x[k])) < 1e-6,
              "gradient %d of %s and %s", k, mx_tensor_text(x[0]), mx_tensor_text(x[1]));
        free(want);
    }
    mx_release(loss);
    mx_release(y);
    mx_release(x[0]);
    mx_release(x[1]);
}

/* All shapes of up to four dimensions whose sizes are 1 or their own, that broadcast to (2, 3, 4, 5). */
static void test_broadcast_gradients(void)
{
    static const int64_t full[4] = {2, 3, 4, 5};
    for (int mask_a = 0; mask_a < 16; mask_a++)
        for (int mask_b = 0; mask_b < 16; mask_b++)
            for (int dims_b = 0; dims_b <= 4; dims_b++) {
                mx_shape a = {.n_dims = 4}, b = {.n_dims = dims_b};
                for (int d = 0; d < 4; d++)
                    a.size[d] = mask_a >> d & 1 ? full[d] : 1;
                for (int d = 0; d < dims_b; d++)
                    b.size[d] = mask_b >> d & 1 ? full[4 - dims_b + d] : 1;
                check_product(a, b);
            }
}

/* A parameter gets its gradient in f32 though everything else is bf16; inner tensors keep their dtype. */
static void test_gradient_dtypes(void)
{
    mx_tensor *w = tensor(MX_F32, (mx_shape){1, {33}}), *x = tensor(MX_BF16, (mx_shape){2, {4, 33}});
    mx_tape_require_grad(w, true);
    mx_tape_require_grad(x, true);
    mx_tensor *y = apply(&mx_op_mul, x, w, NULL), *z = apply(&mx_op_relu, y, NULL, NULL), *loss = sum_of(z);
    CHECK(y->dtype == MX_BF16 && z->dtype == MX_BF16, "%s", mx_tensor_text(z));
    CHECK(mx_tape_backward(mx_tape_current(), &(mx_root){.t = loss, .seed = 1}, 1, false) == MX_OK, "%s", mx_message());
    CHECK(w->grad->dtype == MX_F32 && x->grad->dtype == MX_F32, "%s", mx_tensor_text(x->grad));
    for (int64_t i = 0; i < 33; i++) {
        double want = 0;
        for (int64_t r = 0; r < 4; r++)
            want += get_value(mx_data(x), r * 33 + i, MX_BF16);
        CHECK(fabs((double)mx_f32(w->grad)[i] - want) < 0x1p-8 * want, "%g, not %g", (double)mx_f32(w->grad)[i], want);
    }
    mx_tensor *all[5] = {w, x, y, z, loss};
    for (int i = 0; i < 5; i++)
        mx_release(all[i]);
}

static void check_refused(const mx_op *op, mx_tensor **in, int n_in, const void *attr, mx_status code, const char *text)
{
    mx_tensor *out[MX_MAX_OUTPUTS] = {NULL};
    mx_status status = mx_apply(op, in, n_in, (mx_attrs){attr, op->attr_bytes}, out);
    CHECK(status == code && strstr(mx_message(), op->name) && strstr(mx_message(), text), "%s gave %d: %s", op->name,
          status, status == MX_OK ? "accepted" : mx_message());
}

static void test_refusals(void)
{
    mx_tensor *a = tensor(MX_F32, (mx_shape){2, {2, 3}}), *b = tensor(MX_F32, (mx_shape){2, {4, 3}}), *ids = NULL;
    mx_tensor *none = tensor(MX_F32, (mx_shape){1, {0}});
    mx_tensor_new(MX_I32, &(mx_shape){2, {2, 3}}, &ids);
    check_refused(&mx_op_add, (mx_tensor *[]){a, b}, 2, NULL, MX_ERR_SHAPE, "(2, 3) and f32 (4, 3)");
    check_refused(&mx_op_lt, (mx_tensor *[]){a, ids}, 2, NULL, MX_ERR_DTYPE, "i32");
    check_refused(&mx_op_exp, (mx_tensor *[]){ids}, 1, NULL, MX_ERR_DTYPE, "f32, bf16 or f64");
    check_refused(&mx_op_where, (mx_tensor *[]){a, a, a}, 3, NULL, MX_ERR_DTYPE, "u8");
    check_refused(&mx_op_gated, (mx_tensor *[]){a, b}, 2, (double[4]){0}, MX_ERR_SHAPE, "one shape");
    check_refused(&mx_op_sum, (mx_tensor *[]){a}, 1, &(mx_reduce_attr){.dim = {1, {2}}}, MX_ERR_VALUE, "dim = 3");
    check_refused(&mx_op_max, (mx_tensor *[]){none}, 1, &(mx_reduce_attr){0}, MX_ERR_SHAPE, "largest");
    check_refused(&mx_op_add_, (mx_tensor *[]){a, b}, 2, &(double){1}, MX_ERR_SHAPE, "(2, 3)");
    check_refused(&mx_op_copy, (mx_tensor *[]){a, b}, 2, NULL, MX_ERR_SHAPE, "(2, 3)");
    check_refused(&mx_op_reduce_to, (mx_tensor *[]){a}, 1, &(mx_reduce_to_attr){.shape = {1, {2}}, .dtype = -1},
                  MX_ERR_SHAPE, "(2)");
    mx_tensor *all[4] = {a, b, ids, none};
    for (int i = 0; i < 4; i++)
        mx_release(all[i]);
}

/* What has no elements is fine where a result is defined. */
static void test_empty(void)
{
    mx_tensor *none = tensor(MX_F32, (mx_shape){2, {0, 3}}), *total = sum_of(none);
    CHECK(mx_f32(total)[0] == 0, "%g", (double)mx_f32(total)[0]);
    mx_tensor *rows = apply(&mx_op_sum, none, NULL, &(mx_reduce_attr){{1, {0}}, true});
    CHECK(rows->shape.n_dims == 2 && rows->shape.size[0] == 1 && mx_f32(rows)[2] == 0, "%s", mx_tensor_text(rows));
    mx_tensor *mean = apply(&mx_op_mean, none, NULL, &(mx_reduce_attr){0});
    CHECK(isnan(mx_f32(mean)[0]), "the mean of nothing is %g", (double)mx_f32(mean)[0]);
    mx_tensor *y = apply(&mx_op_add, none, none, NULL), *z = apply(&mx_op_silu, none, NULL, NULL);
    CHECK(mx_count(y) == 0 && mx_count(z) == 0, "%s", mx_tensor_text(y));
    mx_tensor *all[6] = {none, total, rows, mean, y, z};
    for (int i = 0; i < 6; i++)
        mx_release(all[i]);
}

int main(void)
{
    mx_engine_setup();
    test_broadcast_gradients();
    test_gradient_dtypes();
    test_refusals();
    test_empty();
    return check_done();
}
