/* Fourier transforms of rows: fft, rfft and irfft. Gradients are transforms with the same numbers. */
#include "kernels/fft.h"

#include "core/element.h"
#include "ops/rows.h"
#include "ops/terms.h"

#include <math.h>

typedef struct fft_attr {
    bool inverse;
    double scale; /* 0: 1, or 1 / n of an inverse transform */
} fft_attr;

typedef struct rfft_attr {
    int64_t n;     /* 0: the elements of a row of x, or 2 (frequencies - 1) */
    int64_t other; /* elements of a row of the result; 0: all */
    double scale;  /* as above */
    double inner;
} rfft_attr;

enum { LARGEST = 1 << 30 };

static const rfft_attr *real_attr(const mx_call *call) { return mx_call_attr(call); }

/* Input i: rows of at least one element, of the dtype and shape of the first. */
static mx_status want_fft_rows(const mx_call *call, int i)
{
    const mx_tensor *x = call->in[i];
    if (!x)
        return MX_OK;
    if (x->dtype != MX_F32 && x->dtype != MX_F64)
        return mx_bad_dtype(call, "'%s' must be f32 or f64", mx_input_name(call, i, (char[32]){0}));
    if (x->shape.n_dims < 1)
        return mx_bad_shape(call, "'%s' must have at least one dimension", mx_input_name(call, i, (char[32]){0}));
    MX_TRY(mx_want_dtype(call, i, call->in[0]->dtype));
    return mx_want_shape(call, i, &call->in[0]->shape);
}

static mx_status want_length(const mx_call *call, int64_t n)
{
    if (n < 1 || n > LARGEST)
        return mx_bad_value(call, "n is %lld; expected 1 to %d elements", (long long)n, LARGEST);
    return MX_OK;
}

/* The numbers of a call, without pointers. */
static mx_fft fft_of(const mx_call *call)
{
    const mx_tensor *x = call->in[0];
    int64_t width = mx_row_width(x);
    mx_fft f = {.dtype = x->dtype, .rows = mx_row_count(x), .n = width, .size = width, .frequencies = width};
    if (call->op == &mx_op_fft) {
        const fft_attr *attr = mx_call_attr(call);
        f.inverse = attr->inverse;
        f.scale = attr->scale;
    } else {
        const rfft_attr *attr = real_attr(call);
        f.kind = call->op == &mx_op_rfft ? MX_FFT_REAL : MX_FFT_BACK;
        f.scale = attr->scale;
        f.inner = attr->inner;
        f.n = attr->n > 0 ? attr->n : f.kind == MX_FFT_BACK ? 2 * (width - 1) : width;
        int64_t all = f.kind == MX_FFT_BACK ? f.n : f.n / 2 + 1;
        *(f.kind == MX_FFT_BACK ? &f.size : &f.frequencies) = attr->other > 0 ? attr->other : all;
    }
    if (f.scale == 0)
        f.scale = f.inverse || f.kind == MX_FFT_BACK ? 1.0 / (double)f.n : 1;
    return f;
}

static mx_cost cost_fft(const mx_call *call)
{
    mx_fft f = fft_of(call);
    double steps = log2((double)f.n) + (f.n == 1);
    return mx_cost_of(call, (f.kind == MX_FFT_COMPLEX ? 5 : 2.5) * (double)f.rows * (double)f.n * steps);
}

/* ---- fft ---- */

static mx_status infer_fft(mx_call *call)
{
    MX_TRY(want_fft_rows(call, 0));
    MX_TRY(want_fft_rows(call, 1));
    MX_TRY(want_length(call, mx_row_width(call->in[0])));
    for (int i = 0; i < 2; i++)
        MX_TRY(mx_out(call, i, call->in[0]->dtype, &call->in[0]->shape));
    return MX_OK;
}

static mx_status host_fft(mx_call *call)
{
    mx_fft f = fft_of(call);
    f.x_re = mx_data(call->in[0]);
    f.x_im = call->in[1] ? mx_data(call->in[1]) : NULL;
    f.re = mx_data(call->out[0]);
    f.im = mx_data(call->out[1]);
    return mx_fft_run(&f);
}

/* The two gradients that may be missing, as real and imaginary part in the dtype of the outputs: a real part of zeros
 * if only the imaginary one is there. */
static void out_parts(mx_terms *s, const mx_vjp *v, mx_tensor *part[2])
{
    for (int i = 0; i < 2; i++)
        part[i] = v->out_grad[i] ? mx_term_cast(s, v->out_grad[i], v->call->out[i]->dtype) : NULL;
    if (!part[0] && part[1])
        part[0] = mx_term_affine(s, part[1], 0, 0);
}

/* Applies an operation and gives its two results as the gradients of the inputs. */
static mx_status give_parts(mx_terms *s, mx_vjp *v, const mx_op *op, mx_attrs attrs, mx_tensor *re, mx_tensor *im)
{
    mx_tensor *grad[2] = {NULL, NULL};
    if (s->status == MX_OK)
        s->status = mx_apply(op, (mx_tensor *[]){re, im}, im ? 2 : 1, attrs, grad);
    for (int i = 0; i < 2; i++) {
        mx_tensor *kept = grad[i] ? mx_term_keep(s, MX_OK, &grad[i]) : NULL;
        if (v->call->in[i] && v->want[i])
            mx_term_give(s, v, i, kept);
    }
    return mx_terms_release(s);
}

/* Y = F z: the gradient is the conjugate transpose of F times that of Y. */
static mx_status vjp_fft(mx_vjp *v)
{
    mx_terms s = {.n = 0};
    mx_fft f = fft_of(v->call);
    mx_tensor *part[2];
    out_parts(&s, v, part);
    const fft_attr attr = {!f.inverse, f.scale};
    return give_parts(&s, v, &mx_op_fft, MX_ATTRS(attr), part[0], part[1]);
}

static const char *const parts[] = {"re", "im?", NULL};
static const mx_attr fft_attrs[] = {
    {"inverse", MX_ATTR_BOOL, offsetof(fft_attr, inverse), 0, NULL, "the inverse transform"},
    {"scale", MX_ATTR_FLOAT, offsetof(fft_attr, scale), 0, NULL, "factor; 0: 1, and 1 / n of the inverse transform"},
    {0}};

const mx_op mx_op_fft = {
    .name = "fft",
    .doc = "the Fourier transform of complex rows (..., n): real and imaginary part -> both parts of the result; f32 "
           "or f64",
    .inputs = parts,
    .n_out = 2,
    .n_results = 2,
    .attrs = fft_attrs,
    .attr_bytes = sizeof(fft_attr),
    .infer = infer_fft,
    .cost = cost_fft,
    .host = host_fft,
    .vjp = vjp_fft,
    .vjp_recorded = vjp_fft,
};

/* ---- rfft ---- */

static mx_status want_count(const mx_call *call, const char *name, int64_t count, int64_t most)
{
    if (count < 0 || count > most)
        return mx_bad_value(call, "%s is %lld; expected 1 to %lld", name, (long long)count, (long long)most);
    return MX_OK;
}

static mx_status infer_rfft(mx_call *call)
{
    MX_TRY(want_fft_rows(call, 0));
    MX_TRY(want_count(call, "n", real_attr(call)->n, LARGEST));
    mx_fft f = fft_of(call);
    MX_TRY(want_length(call, f.n));
    MX_TRY(want_count(call, "frequencies", f.frequencies, f.n / 2 + 1));
    mx_shape shape = call->in[0]->shape;
    shape.size[shape.n_dims - 1] = f.frequencies;
    for (int i = 0; i < 2; i++)
        MX_TRY(mx_out(call, i, f.dtype, &shape));
    return MX_OK;
}

static mx_status host_rfft(mx_call *call)
{
    mx_fft f = fft_of(call);
    f.x_re = mx_data(call->in[0]);
    f.re = mx_data(call->out[0]);
    f.im = mx_data(call->out[1]);
    return mx_fft_run(&f);
}

/* rfft and irfft with the same numbers are the transposes of each other. */
static mx_status vjp_rfft(mx_vjp *v)
{
    mx_terms s = {.n = 0};
    mx_fft f = fft_of(v->call);
    mx_tensor *part[2];
    out_parts(&s, v, part);
    const rfft_attr attr = {f.n, f.size, f.scale, f.inner};
    mx_term_give(&s, v, 0, mx_term(&s, &mx_op_irfft, MX_ATTRS(attr), part[0], part[1], NULL));
    return mx_terms_release(&s);
}

static const mx_attr rfft_attrs[] = {
    {"n", MX_ATTR_INT, offsetof(rfft_attr, n), 0, NULL, "length of the transform: x is cut, or zeros follow; 0: as x"},
    {"frequencies", MX_ATTR_INT, offsetof(rfft_attr, other), 0, NULL, "how many, from 0 on; 0: all, n // 2 + 1"},
    {"scale", MX_ATTR_FLOAT, offsetof(rfft_attr, scale), 0, NULL, "factor; 0: 1"},
    {"inner", MX_ATTR_FLOAT, offsetof(rfft_attr, inner), 1, NULL, "factor of all frequencies but 0 and n / 2"},
    {0}};

const mx_op mx_op_rfft = {
    .name = "rfft",
    .doc = "the Fourier transform of real rows (..., n): real and imaginary part (..., n // 2 + 1); f32 or f64",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 2,
    .n_results = 2,
    .attrs = rfft_attrs,
    .attr_bytes = sizeof(rfft_attr),
    .infer = infer_rfft,
    .cost = cost_fft,
    .host = host_rfft,
    .vjp = vjp_rfft,
    .vjp_recorded = vjp_rfft,
};

/* ---- irfft ---- */

static mx_status infer_irfft(mx_call *call)
{
    MX_TRY(want_fft_rows(call, 0));
    MX_TRY(want_fft_rows(call, 1));
    MX_TRY(want_count(call, "n", real_attr(call)->n, LARGEST));
    mx_fft f = fft_of(call);
    MX_TRY(want_length(call, f.n));
    MX_TRY(want_count(call, "size", f.size, LARGEST));
    if (f.frequencies > f.n / 2 + 1)
        return mx_bad_shape(call,
                            "%lld frequencies are given, but n = %lld has only %lld; narrow them, or give a larger n",
                            (long long)f.frequencies, (long long)f.n, (long long)(f.n / 2 + 1));
    mx_shape shape = call->in[0]->shape;
    shape.size[shape.n_dims - 1] = f.size;
    return mx_out(call, 0, f.dtype, &shape);
}

static mx_status host_irfft(mx_call *call)
{
    mx_fft f = fft_of(call);
    f.re = mx_data(call->in[0]);
    f.im = call->in[1] ? mx_data(call->in[1]) : NULL;
    f.x = mx_data(call->out[0]);
    return mx_fft_run(&f);
}

static mx_status vjp_irfft(mx_vjp *v)
{
    mx_terms s = {.n = 0};
    mx_fft f = fft_of(v->call);
    mx_tensor *dx = mx_term_cast(&s, v->out_grad[0], f.dtype);
    const rfft_attr attr = {f.n, f.frequencies, f.scale, f.inner};
    return give_parts(&s, v, &mx_op_rfft, MX_ATTRS(attr), dx, NULL);
}

static const mx_attr irfft_attrs[] = {
    {"n", MX_ATTR_INT, offsetof(rfft_attr, n), 0, NULL, "length of the transform; 0: 2 (frequencies - 1)"},
    {"size", MX_ATTR_INT, offsetof(rfft_attr, other), 0, NULL, "elements of a row of the result; 0: n"},
    {"scale", MX_ATTR_FLOAT, offsetof(rfft_attr, scale), 0, NULL, "factor; 0: 1 / n"},
    {"inner", MX_ATTR_FLOAT, offsetof(rfft_attr, inner), 2, NULL, "factor of all frequencies but 0 and n / 2"},
    {0}};

const mx_op mx_op_irfft = {
    .name = "irfft",
    .doc = "real rows (..., n) from real and imaginary part (..., n // 2 + 1) of their Fourier transform, or from the "
           "first frequencies, the others being 0; f32 or f64",
    .inputs = parts,
    .n_out = 1,
    .n_results = 1,
    .attrs = irfft_attrs,
    .attr_bytes = sizeof(rfft_attr),
    .infer = infer_irfft,
    .cost = cost_fft,
    .host = host_irfft,
    .vjp = vjp_irfft,
    .vjp_recorded = vjp_irfft,
};
