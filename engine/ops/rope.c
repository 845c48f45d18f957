/* Rotary position embedding. Its gradient is the rotation back: the same operation with `inverse`. */
#include "kernels/rope.h"

#include "ops/rows.h"

typedef struct rope_attr {
    double theta, scaling_factor, low_freq_factor, high_freq_factor;
    int64_t original_length, offset;
    bool interleaved, inverse;
} rope_attr;

static mx_status infer(mx_call *call)
{
    const mx_tensor *x = call->in[0], *positions = call->n_in > 1 ? call->in[1] : NULL;
    const rope_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_dtype(call, 0, MX_FLOATS));
    int n = x->shape.n_dims;
    if (n < 3 || x->shape.size[n - 1] % 2 != 0)
        return mx_bad_shape(call, "x must be (..., sequence, heads, head_dim) with an even head_dim");
    if (!(attr->theta > 0) || !(attr->scaling_factor > 0) || attr->original_length <= 0)
        return mx_bad_value(call, "theta = %g, scaling_factor = %g and original_length = %lld must be positive",
                            attr->theta, attr->scaling_factor, (long long)attr->original_length);
    if (attr->scaling_factor != 1 && !(attr->high_freq_factor > attr->low_freq_factor))
        return mx_bad_value(call, "high_freq_factor = %g must be above low_freq_factor = %g", attr->high_freq_factor,
                            attr->low_freq_factor);
    if (positions) {
        mx_shape all = x->shape, one = mx_vector(x->shape.size[n - 3]);
        all.n_dims = n - 2;
        MX_TRY(mx_want_dtype(call, 1, 1 << MX_I32));
        if (!mx_shape_equal(&positions->shape, &all) && !mx_shape_equal(&positions->shape, &one))
            return mx_bad_shape(call, "positions must be %s or %s", mx_shape_text(&all), mx_shape_text(&one));
    }
    return mx_out(call, 0, x->dtype, &x->shape);
}

/* Two products and a sum for each component; making the angles is not counted. */
static mx_cost cost(const mx_call *call) { return mx_cost_of(call, 3.0 * (double)mx_count(call->in[0])); }

static mx_status host(mx_call *call)
{
    const mx_tensor *x = call->in[0], *positions = call->n_in > 1 ? call->in[1] : NULL;
    const rope_attr *attr = mx_call_attr(call);
    int n = x->shape.n_dims;
    if (mx_count(x) == 0)
        return MX_OK;
    return mx_rope_run(&(mx_rope){
        .frequencies = {.theta = attr->theta,
                        .scaling_factor = attr->scaling_factor,
                        .low_freq_factor = attr->low_freq_factor,
                        .high_freq_factor = attr->high_freq_factor,
                        .original_length = (double)attr->original_length,
                        .head_dim = x->shape.size[n - 1],
                        .interleaved = attr->interleaved},
        .tokens = mx_count(x) / (x->shape.size[n - 1] * x->shape.size[n - 2]),
        .heads = x->shape.size[n - 2],
        .dtype = x->dtype,
        .inverse = attr->inverse,
        .x = mx_data(x),
        .y = mx_data(call->out[0]),
        .positions = positions ? mx_data(positions) : NULL,
        .period = positions ? mx_count(positions) : x->shape.size[n - 3],
        .offset = attr->offset,
    });
}

static mx_status vjp(mx_vjp *v)
{
    const mx_call *call = v->call;
    rope_attr attr = *(const rope_attr *)mx_call_attr(call);
    attr.inverse = !attr.inverse;
    mx_tensor *dy = NULL, *dx = NULL;
    MX_TRY(mx_out_grad(v, 0, &dy));
    mx_tensor *in[2] = {dy, call->n_in > 1 ? call->in[1] : NULL};
    mx_status status = mx_apply(&mx_op_rope, in, 2, &attr, &dx);
    mx_release(dy);
    MX_TRY(status);
    return mx_give_grad(v, 0, dx);
}

static const mx_attr attrs[] = {
    {"theta", MX_ATTR_FLOAT, offsetof(rope_attr, theta), 10000, NULL, "base of the wavelengths"},
    {"interleaved", MX_ATTR_BOOL, offsetof(rope_attr, interleaved), 0, NULL,
     "pairs are neighbours; otherwise head_dim / 2 apart"},
    {"offset", MX_ATTR_INT, offsetof(rope_attr, offset), 0, NULL, "added to every position (which count from 0)"},
    {"scaling_factor", MX_ATTR_FLOAT, offsetof(rope_attr, scaling_factor), 1, NULL,
     "stretches long wavelengths, as Llama 3.1 does"},
    {"low_freq_factor", MX_ATTR_FLOAT, offsetof(rope_attr, low_freq_factor), 1, NULL,
     "wavelengths above original_length / this are stretched in full"},
    {"high_freq_factor", MX_ATTR_FLOAT, offsetof(rope_attr, high_freq_factor), 4, NULL,
     "wavelengths below original_length / this stay"},
    {"original_length", MX_ATTR_INT, offsetof(rope_attr, original_length), 8192, NULL,
     "sequence length before stretching"},
    {"inverse", MX_ATTR_BOOL, offsetof(rope_attr, inverse), 0, NULL, "turns back: the gradient"},
    {0}};

const mx_op mx_op_rope = {
    .name = "rope",
    .doc = "rotary position embedding of x (B, S, H, D); positions i32 (B, S) or (S), otherwise 0 .. S - 1",
    .inputs = (const char *const[]){"x", "positions?", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = attrs,
    .attr_bytes = sizeof(rope_attr),
    .reads_in = 1 << 1,
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = vjp,
};
