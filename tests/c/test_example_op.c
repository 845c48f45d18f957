/* The operation of engine/ops/README.md, "How to add an operation": hypot. In the engine the first part would be
 * engine/ops/hypot.c; here it is a part of its test, so that the page stays true. */
#include "ops/rows.h"

#include <math.h>

/* ---- the operation ---- */

typedef struct hypot_attr {
    double scale;
} hypot_attr;

static mx_status infer(mx_call *call)
{
    for (int i = 0; i < 2; i++)
        MX_TRY(mx_want_dtype(call, i, MX_F32));
    MX_TRY(mx_want_shape(call, 1, &call->in[0]->shape));
    return mx_out(call, 0, MX_F32, &call->in[0]->shape);
}

/* Two squares, a sum, a root and a product for each element. */
static mx_cost cost(const mx_call *call) { return mx_cost_of(call, 5.0 * (double)mx_count(call->in[0])); }

static mx_status host(mx_call *call)
{
    const hypot_attr *attr = mx_call_attr(call);
    const float *a = mx_f32(call->in[0]), *b = mx_f32(call->in[1]);
    float *y = mx_f32(call->out[0]);
    for (int64_t i = 0; i < mx_count(call->in[0]); i++)
        y[i] = (float)attr->scale * sqrtf(a[i] * a[i] + b[i] * b[i]);
    return MX_OK;
}

/* With y = s sqrt(a^2 + b^2): dy/da = s^2 a / y. */
static mx_status vjp(mx_vjp *v)
{
    double scale = ((const hypot_attr *)mx_call_attr(v->call))->scale;
    mx_tensor *ratio = NULL; /* s^2 dy / y */
    MX_TRY(mx_apply(&mx_op_div, (mx_tensor *[]){v->out_grad[0], v->call->out[0]}, 2, MX_NO_ATTRS, &ratio));
    mx_status status = MX_OK;
    for (int i = 0; i < 2 && status == MX_OK; i++) {
        mx_tensor *product = NULL, *grad = NULL;
        if (!v->want[i])
            continue;
        status = mx_apply(&mx_op_mul, (mx_tensor *[]){ratio, v->call->in[i]}, 2, MX_NO_ATTRS, &product);
        if (status == MX_OK)
            status = mx_apply_affine(product, scale * scale, 0, &grad);
        mx_release(product);
        if (status == MX_OK)
            status = mx_give_grad(v, i, grad);
    }
    mx_release(ratio);
    return status;
}

static const mx_attr attrs[] = {{"scale", MX_ATTR_FLOAT, offsetof(hypot_attr, scale), 1, NULL, "times this"}, {0}};

extern const mx_op mx_op_hypot; /* in the engine: X(hypot) in ops/table.h */
const mx_op mx_op_hypot = {
    .name = "hypot",
    .doc = "scale sqrt(a^2 + b^2) of two f32 tensors of one shape",
    .inputs = (const char *const[]){"a", "b", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = attrs,
    .attr_bytes = sizeof(hypot_attr),
    .reads_in = 1 | 2,
    .reads_out = 1,
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = vjp,
};

/* ---- its test ---- */

#include "mesh/setup.h"
#include "tape/tape.h"

#include "check.h"

#include <string.h>

enum { N = 4 };
static const float a_values[N] = {3, -5, 8, 1}, b_values[N] = {4, 12, -15, 0}, roots[N] = {5, 13, 17, 1};

static mx_tensor *tensor(const float *values, int64_t n)
{
    mx_tensor *t = NULL;
    if (mx_tensor_new(MX_F32, &(mx_shape){1, {n}}, &t) != MX_OK)
        abort();
    memcpy(mx_f32(t), values, (size_t)n * sizeof *values);
    return t;
}

/* Pythagorean triples: values and gradients are known. */
static void test_values(void)
{
    mx_tensor *in[2] = {tensor(a_values, N), tensor(b_values, N)}, *y = NULL, *loss = NULL;
    mx_tape_require_grad(in[0], true);
    mx_tape_require_grad(in[1], true);
    const hypot_attr attr = {0.5};
    CHECK(mx_apply(&mx_op_hypot, in, 2, MX_ATTRS(attr), &y) == MX_OK, "%s", mx_message());
    CHECK(mx_apply(&mx_op_sum_squares, &y, 1, MX_NO_ATTRS, &loss) == MX_OK, "%s", mx_message());
    CHECK(mx_tape_backward(mx_tape_current(), &(mx_root){.t = loss, .seed = 1}, 1, false) == MX_OK, "%s", mx_message());
    for (int i = 0; i < N; i++) {
        CHECK(mx_f32(y)[i] == 0.5f * roots[i], "%d: %g", i, (double)mx_f32(y)[i]);
        double da = (double)mx_f32(in[0]->grad)[i], db = (double)mx_f32(in[1]->grad)[i]; /* of (a^2 + b^2) / 4 */
        CHECK(fabs(da - a_values[i] / 2.0) < 1e-5 && fabs(db - b_values[i] / 2.0) < 1e-5, "%d: %g %g", i, da, db);
    }
    mx_tensor *all[4] = {in[0], in[1], y, loss};
    for (int i = 0; i < 4; i++)
        mx_release(all[i]);
}

static void test_refusals(void)
{
    mx_tensor *in[2] = {tensor(a_values, N), tensor(b_values, N - 1)}, *y = NULL;
    const hypot_attr attr = {1};
    CHECK(mx_apply(&mx_op_hypot, in, 2, MX_ATTRS(attr), &y) == MX_ERR_SHAPE, "accepted");
    CHECK(strstr(mx_message(), "hypot: 'b' must be (4)"), "%s", mx_message());
    for (int i = 0; i < 2; i++)
        mx_release(in[i]);
}

int main(void)
{
    mx_engine_setup();
    test_values();
    test_refusals();
    return check_done();
}
