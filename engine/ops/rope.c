/* Rotary position embedding. Its gradient is the opposite rotation: the same operation with `inverse`. */
#include "kernels/rope.h"

#include "kernels/f64_loops.h"
#include "ops/rows.h"

#include <math.h>

#define STANDARD_THETA 10000.0

typedef struct rope_attr {
    double theta, factor;
    int64_t offset, dims;
    bool interleaved, inverse;
} rope_attr;

static int64_t head_dim_of(const mx_call *call) { return mx_row_width(call->in[0]); }

/* The number of components of a head that are rotated: the first ones. */
static int64_t dims_of(const mx_call *call)
{
    const rope_attr *attr = mx_call_attr(call);
    return attr->dims == -1 ? head_dim_of(call) : attr->dims;
}

static const mx_tensor *frequencies_of(const mx_call *call) { return call->in[2]; }

/* Checks the table of frequencies, which replaces theta. */
static mx_status check_frequencies(const mx_call *call)
{
    const mx_tensor *frequencies = frequencies_of(call);
    const rope_attr *attr = mx_call_attr(call);
    if (!frequencies)
        return MX_OK;
    mx_shape want = {2, {2, dims_of(call) / 2}};
    MX_TRY(mx_want_dtype(call, 2, MX_F32));
    MX_TRY(mx_want_shape(call, 2, &want));
    if (attr->theta != STANDARD_THETA)
        return mx_bad_value(call, "theta has no effect where frequencies are given; leave it out");
    if (frequencies->requires_grad && mx_will_record(call))
        return mx_bad_value(call, "frequencies get no gradient; pass frequencies:detach()");
    return MX_OK;
}

static mx_status infer(mx_call *call)
{
    const mx_tensor *x = call->in[0], *positions = call->in[1];
    const rope_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_real(call, 0));
    int n = x->shape.n_dims;
    if (n < 3 || (attr->dims == -1 && x->shape.size[n - 1] % 2 != 0))
        return mx_bad_shape(call, "x must be (..., sequence, heads, head_dim) with an even head_dim");
    if (attr->dims != -1 && (attr->dims < 2 || attr->dims % 2 != 0 || attr->dims > head_dim_of(call)))
        return mx_bad_value(call, "dims = %lld must be even and from 2 to head_dim = %lld, or -1 for all of it",
                            (long long)attr->dims, (long long)head_dim_of(call));
    if (!isfinite(attr->factor))
        return mx_bad_value(call, "factor = %g must be finite", attr->factor);
    if (!(attr->theta > 0))
        return mx_bad_value(call, "theta = %g must be positive", attr->theta);
    if (positions) {
        mx_shape all = x->shape, one = mx_vector(x->shape.size[n - 3]);
        all.n_dims = n - 2;
        MX_TRY(mx_want_dtype(call, 1, MX_I32));
        if (!mx_shape_equal(&positions->shape, &all) && !mx_shape_equal(&positions->shape, &one))
            return mx_bad_shape(call, "positions must be %s or %s", mx_shape_text(&all), mx_shape_text(&one));
    }
    MX_TRY(check_frequencies(call));
    return mx_out(call, 0, x->dtype, &x->shape);
}

/* Two products and a sum per rotated component; computing the angles is not counted. */
static mx_cost cost(const mx_call *call)
{
    double heads = (double)mx_row_count(call->in[0]);
    return mx_cost_of(call, 3.0 * (heads * (double)dims_of(call)));
}

static mx_status host(mx_call *call)
{
    const mx_tensor *x = call->in[0], *positions = call->in[1];
    const mx_tensor *frequencies = frequencies_of(call);
    const rope_attr *attr = mx_call_attr(call);
    int n = x->shape.n_dims;
    if (mx_count(x) == 0)
        return MX_OK;
    const mx_rope rope = {
        .frequencies = {.table = frequencies ? mx_f32(frequencies) : NULL,
                        .theta = attr->theta,
                        .factor = attr->factor,
                        .dims = dims_of(call),
                        .interleaved = attr->interleaved},
        .tokens = mx_count(x) / (x->shape.size[n - 1] * x->shape.size[n - 2]),
        .heads = x->shape.size[n - 2],
        .head_dim = x->shape.size[n - 1],
        .dtype = x->dtype,
        .inverse = attr->inverse,
        .x = mx_data(x),
        .y = mx_data(call->out[0]),
        .positions = positions ? mx_data(positions) : NULL,
        .period = positions ? mx_count(positions) : x->shape.size[n - 3],
        .offset = attr->offset,
    };
    if (x->dtype != MX_F64)
        return mx_rope_run(&rope);
    mx_f64_rope(&rope);
    return MX_OK;
}

static mx_status vjp(mx_vjp *v)
{
    const mx_call *call = v->call;
    rope_attr attr = *(const rope_attr *)mx_call_attr(call);
    attr.inverse = !attr.inverse;
    mx_tensor *dy = NULL, *dx = NULL;
    MX_TRY(mx_out_grad(v, 0, &dy));
    mx_tensor *in[3] = {dy, call->in[1], call->in[2]};
    mx_status status = mx_apply(&mx_op_rope, in, 3, MX_ATTRS(attr), &dx);
    mx_release(dy);
    MX_TRY(status);
    return mx_give_grad(v, 0, dx);
}

static const mx_attr attrs[] = {
    {"theta", MX_ATTR_FLOAT, offsetof(rope_attr, theta), STANDARD_THETA, NULL, "base of the wavelengths"},
    {"interleaved", MX_ATTR_BOOL, offsetof(rope_attr, interleaved), 0, NULL,
     "the components of a pair are neighbours; otherwise dims / 2 apart"},
    {"dims", MX_ATTR_INT, offsetof(rope_attr, dims), -1, NULL,
     "rotate only the first so many components of each head; -1: all"},
    {"factor", MX_ATTR_FLOAT, offsetof(rope_attr, factor), 1, NULL, "factor of cosines and sines"},
    {"offset", MX_ATTR_INT, offsetof(rope_attr, offset), 0, NULL, "added to every position; positions count from 0"},
    {"inverse", MX_ATTR_BOOL, offsetof(rope_attr, inverse), 0, NULL, "rotate in the opposite direction: the gradient"},
    {0}};

const mx_op mx_op_rope = {
    .name = "rope",
    .doc = "rotary position embedding of x (B, S, H, D); positions i32 (B, S) or (S), default 0 .. S - 1; frequencies "
           "f32 (2, dims / 2) replace those of theta: the sum of the two rows, in double, is the angle of each pair "
           "per position, in radians",
    .inputs = (const char *const[]){"x", "positions?", "frequencies?", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = attrs,
    .attr_bytes = sizeof(rope_attr),
    .reads_in = 1 << 1 | 1 << 2,
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = vjp,
    .vjp_recorded = vjp,
};
