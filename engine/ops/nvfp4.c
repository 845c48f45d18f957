/* Products in NVFP4, as Transformer Engine's NVFP4BlockScaling computes them: kernels/nvfp4.h has the format. Both
 * operands of a product are lines along the dimension that is summed, so the one that is stored across it is quantized
 * transposed. Weights have scales by 16 x 16. Backward rounds dy stochastically, and the product for the gradient of
 * weights transforms both of its operands first. */
#include "kernels/nvfp4.h"

#include "core/pool.h"
#include "kernels/gemm.h"
#include "ops/block_product.h"
#include "ops/rows.h"

#include <math.h>

/* ---- codes ---- */

typedef struct quantize_attr {
    bool square, trans, hadamard;
    int64_t stochastic; /* the key; -1: to nearest */
    int64_t stream, offset;
} quantize_attr;

/* Checks the numbers of the rows of x, in input i, and the key. */
static mx_status check_rounding(const mx_call *call, int i, int64_t stochastic)
{
    if (stochastic < -1 || stochastic > INT32_MAX)
        return mx_bad_value(call, "stochastic = %lld; expected a key from 0 to 2147483647, or -1 to round to nearest",
                            (long long)stochastic);
    if (!call->in[i])
        return MX_OK;
    MX_TRY(mx_want_dtype(call, i, MX_I32));
    return mx_count(call->in[i]) == mx_row_count(call->in[0])
               ? MX_OK
               : mx_bad_shape(call, "'rows' has %lld numbers, expected %lld, one for each row of x",
                              (long long)mx_count(call->in[i]), (long long)mx_row_count(call->in[0]));
}

static mx_status infer_quantize(mx_call *call)
{
    const quantize_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0];
    MX_TRY(mx_want_rows(call, 0));
    MX_TRY(check_rounding(call, 1, attr->stochastic));
    int64_t rows = mx_row_count(x), columns = mx_row_width(x), length = attr->trans ? rows : columns;
    if (length % MX_FP4_RUN || (attr->square && (rows % MX_FP4_RUN || columns % MX_FP4_RUN)))
        return mx_bad_shape(call, "%d neighbours%s share a scale, so %s must be a multiple of %d", MX_FP4_RUN,
                            attr->square ? " along both dimensions" : "",
                            attr->square  ? "rows and columns"
                            : attr->trans ? "rows"
                                          : "columns",
                            MX_FP4_RUN);
    if (attr->hadamard && (!attr->trans || attr->square))
        return mx_bad_value(call, "hadamard transforms runs of 16 rows: with trans and without square");
    mx_shape codes = attr->trans ? (mx_shape){2, {columns, rows}} : x->shape, scales = codes;
    codes.size[codes.n_dims - 1] /= 2;
    scales.size[scales.n_dims - 1] /= MX_FP4_RUN;
    MX_TRY(mx_out(call, 0, MX_U8, &codes));
    MX_TRY(mx_out(call, 1, MX_E4M3, &scales));
    mx_shape one = mx_vector(1);
    return mx_out(call, 2, MX_F32, &one);
}

/* The values are read twice: for the scale of the tensor, and for the codes. */
static mx_cost cost_quantize(const mx_call *call)
{
    mx_cost cost = mx_cost_of(call, 0);
    cost.bytes_read += (double)mx_count(call->in[0]) * (double)mx_dtype_bytes(call->in[0]->dtype);
    return cost;
}

static mx_status host_quantize(mx_call *call)
{
    const quantize_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0], *rows = call->in[1];
    mx_fp4_quantize_run(&(mx_fp4_quantize){.rows = mx_row_count(x),
                                           .columns = mx_row_width(x),
                                           .x = mx_data(x),
                                           .dtype = x->dtype,
                                           .square = attr->square,
                                           .trans = attr->trans,
                                           .hadamard = attr->hadamard,
                                           .codes = mx_data(call->out[0]),
                                           .scales = mx_data(call->out[1]),
                                           .scale = mx_f32(call->out[2]),
                                           .stochastic = attr->stochastic >= 0,
                                           .seed = (uint64_t)attr->stochastic,
                                           .stream = (uint64_t)attr->stream,
                                           .numbers = rows ? mx_data(rows) : NULL,
                                           .first = attr->offset});
    return MX_OK;
}

static const mx_attr quantize_attrs[] = {
    {"square", MX_ATTR_BOOL, offsetof(quantize_attr, square), 0, NULL,
     "16 x 16 share a block scale, so x and its transpose have the same codes"},
    {"trans", MX_ATTR_BOOL, offsetof(quantize_attr, trans), 0, NULL,
     "the 16 are neighbours of a column, and codes and scales are those of the transpose of x"},
    {"hadamard", MX_ATTR_BOOL, offsetof(quantize_attr, hadamard), 0, NULL,
     "with trans: first transform the 16 by a random Hadamard matrix, and round to bf16"},
    {"stochastic", MX_ATTR_INT, offsetof(quantize_attr, stochastic), -1, NULL,
     "the key of stochastic rounding; -1: to nearest, ties to even"},
    {"stream", MX_ATTR_INT, offsetof(quantize_attr, stream), 0, NULL, "of random numbers, under the key"},
    {"offset", MX_ATTR_INT, offsetof(quantize_attr, offset), 0, NULL,
     "the number of the first row for stochastic rounding, or what is added to `rows`"},
    {0},
};

const mx_op mx_op_nvfp4_quantize = {
    .name = "nvfp4_quantize",
    .doc =
        "x (..., n) in NVFP4 -> codes (..., n / 2) u8, two of e2m1 a byte, the first in the low bits; block scales "
        "(..., n / 16) e4m3; and an f32 scale: x is near code x block scale x scale. x is rounded to bf16 first. The "
        "scale is the largest magnitude / 2688, a block scale that of 16 neighbours / 6 / scale. The choices of "
        "stochastic rounding follow from the key, the numbers `rows` (i32) of the rows of x, and columns. There is no "
        "gradient; nvfp4_matmul has one",
    .inputs = (const char *const[]){"x", "rows?", NULL},
    .n_out = 3,
    .n_results = 3,
    .attrs = quantize_attrs,
    .attr_bytes = sizeof(quantize_attr),
    .infer = infer_quantize,
    .cost = cost_quantize,
    .host = host_quantize,
};

/* ---- their products ---- */

enum { A, B, SCALES_A, SCALES_B, SCALE_A, SCALE_B, PRODUCT_BIAS };

static mx_status check_lines(const mx_call *call, int i)
{
    int scales = i == A ? SCALES_A : SCALES_B, scale = i == A ? SCALE_A : SCALE_B;
    MX_TRY(mx_want_dtype(call, i, MX_U8));
    MX_TRY(mx_want_dtype(call, scales, MX_E4M3));
    MX_TRY(mx_want_dtype(call, scale, MX_F32));
    mx_shape shape = call->in[i]->shape;
    if (shape.n_dims < 1 || shape.size[shape.n_dims - 1] % (MX_FP4_RUN / 2))
        return mx_bad_shape(call,
                            "'%s' has two codes a byte, and %d share a block scale: rows must be a multiple of %d",
                            i == A ? "a" : "b", MX_FP4_RUN, MX_FP4_RUN / 2);
    shape.size[shape.n_dims - 1] /= MX_FP4_RUN / 2;
    MX_TRY(mx_want_shape(call, scales, &shape));
    return mx_count(call->in[scale]) == 1 ? MX_OK : mx_bad_shape(call, "the scale of a tensor is one number");
}

static mx_status infer_product(mx_call *call)
{
    const mx_tensor *a = call->in[A], *b = call->in[B], *bias = call->in[PRODUCT_BIAS];
    MX_TRY(check_lines(call, A));
    MX_TRY(check_lines(call, B));
    if (b->shape.n_dims != 2 || mx_row_width(a) != mx_row_width(b))
        return mx_bad_shape(call, "a must be (..., k / 2), and b (n, k / 2)");
    int64_t n = b->shape.size[0];
    if (bias && (bias->shape.n_dims != 1 || mx_count(bias) != n || !mx_dtype_computes(bias->dtype)))
        return mx_bad_shape(call, "bias must be f32 or bf16 and have one dimension of %lld", (long long)n);
    mx_shape shape = a->shape;
    shape.size[shape.n_dims - 1] = n;
    return mx_out(call, 0, MX_BF16, &shape);
}

static mx_cost cost_product(const mx_call *call)
{
    double m = (double)mx_row_count(call->in[A]), n = (double)call->in[B]->shape.size[0];
    double k = 2 * (double)mx_row_width(call->in[A]);
    mx_cost cost = mx_cost_of(call, 2 * m * n * k);
    cost.work = MX_WORK_PRODUCT;
    cost.m = m;
    cost.n = n;
    cost.k = k;
    return cost;
}

/* Widening costs little beside a product of many rows, so the product of bf16 computes it. */
static mx_status multiply_wide(const mx_call *call, const float *bias, mx_bf16 *a, mx_bf16 *b)
{
    int64_t m = mx_row_count(call->in[A]), n = call->in[B]->shape.size[0], k = 2 * mx_row_width(call->in[A]);
    mx_fp4_widen(m, k, mx_data(call->in[A]), mx_data(call->in[SCALES_A]), a);
    mx_fp4_widen(n, k, mx_data(call->in[B]), mx_data(call->in[SCALES_B]), b);
    mx_gemm g = {.m = m, .n = n, .k = k, .bias = bias};
    g.alpha = *mx_f32(call->in[SCALE_A]) * *mx_f32(call->in[SCALE_B]);
    g.a = (mx_matrix){a, MX_BF16, k, false};
    g.b = (mx_matrix){b, MX_BF16, k, true};
    g.c = (mx_matrix){mx_data(call->out[0]), MX_BF16, n, false};
    return mx_gemm_run(&g);
}

static mx_status host_product(mx_call *call)
{
    int64_t k = 2 * mx_row_width(call->in[A]), elements = (mx_row_count(call->in[A]) + call->in[B]->shape.size[0]) * k;
    int64_t bytes = elements * (int64_t)sizeof(mx_bf16);
    mx_tensor *f32 = NULL;
    if (call->in[PRODUCT_BIAS])
        MX_TRY(mx_apply_cast(call->in[PRODUCT_BIAS], MX_F32, &f32));
    void *wide = NULL;
    mx_status status = mx_pool_alloc(bytes, &wide);
    mx_bf16 *a = wide;
    if (status == MX_OK)
        status = multiply_wide(call, f32 ? mx_f32(f32) : NULL, a, a + mx_row_count(call->in[A]) * k);
    mx_pool_free(wide, bytes);
    mx_release(f32);
    return status;
}

const mx_op mx_op_nvfp4_product = {
    .name = "nvfp4_product",
    .doc = "the product of what nvfp4_quantize makes of (..., k) and, with trans, of (k, n), plus bias (n) -> (..., n) "
           "bf16. Products are exact, sums f32. There is no gradient; nvfp4_matmul has one",
    .inputs = (const char *const[]){"a", "b", "scales_a", "scales_b", "scale_a", "scale_b", "bias?", NULL},
    .n_out = 1,
    .n_results = 1,
    .infer = infer_product,
    .cost = cost_product,
    .host = host_product,
};

/* ---- products of reals ---- */

enum { ROWS = MX_BLOCK_BIAS + 1 };

typedef struct matmul_attr {
    bool hadamard;
    int64_t stochastic, offset;
} matmul_attr;

static mx_status infer_matmul(mx_call *call)
{
    const matmul_attr *attr = mx_call_attr(call);
    MX_TRY(mx_block_infer(call, MX_FP4_RUN, true));
    return check_rounding(call, ROWS, attr->stochastic);
}

/* The forward product has codes of x and w, the gradient of w codes of x and dy along rows, that of x codes of dy and
 * of w. y is bf16, whatever `dtype` would be better. */
static mx_status multiply(const mx_call *call, mx_tensor *a, mx_tensor *b, mx_tensor *bias, bool trans_a, bool trans_b,
                          mx_dtype dtype, mx_tensor **y)
{
    (void)dtype;
    const matmul_attr *attr = mx_call_attr(call);
    bool of_w = trans_a, of_x = trans_b;
    quantize_attr first = {.trans = trans_a, .hadamard = of_w && attr->hadamard, .stochastic = -1};
    quantize_attr second = {.square = !of_w, .trans = !trans_b, .hadamard = first.hadamard, .stochastic = -1};
    quantize_attr *gradient = of_w ? &second : of_x ? &first : NULL;
    if (gradient) {
        gradient->stochastic = attr->stochastic;
        gradient->stream = of_w; /* both copies of dy are rounded independently */
        gradient->offset = attr->offset;
    }
    mx_tensor *codes_a[3] = {NULL, NULL, NULL}, *codes_b[3] = {NULL, NULL, NULL};
    mx_tensor *rows = call->in[ROWS];
    mx_tensor *in_a[] = {a, of_x ? rows : NULL}, *in_b[] = {b, of_w ? rows : NULL};
    mx_status status = mx_apply(&mx_op_nvfp4_quantize, in_a, 2, MX_ATTRS(first), codes_a);
    if (status == MX_OK)
        status = mx_apply(&mx_op_nvfp4_quantize, in_b, 2, MX_ATTRS(second), codes_b);
    mx_tensor *in[] = {codes_a[0], codes_b[0], codes_a[1], codes_b[1], codes_a[2], codes_b[2], bias};
    if (status == MX_OK)
        status = mx_apply(&mx_op_nvfp4_product, in, 7, MX_NO_ATTRS, y);
    for (int i = 0; i < 3; i++) {
        mx_release(codes_a[i]);
        mx_release(codes_b[i]);
    }
    return status;
}

static mx_status host_matmul(mx_call *call) { return mx_block_host(call, multiply); }

static mx_status vjp_matmul(mx_vjp *v) { return mx_block_vjp(v, multiply); }

static const mx_attr matmul_attrs[] = {
    {"hadamard", MX_ATTR_BOOL, offsetof(matmul_attr, hadamard), 0, NULL,
     "transform both operands of the product for the gradient of w along the sum"},
    {"stochastic", MX_ATTR_INT, offsetof(matmul_attr, stochastic), -1, NULL,
     "the key of stochastic rounding of dy; -1: to nearest, ties to even"},
    {"offset", MX_ATTR_INT, offsetof(matmul_attr, offset), 0, NULL,
     "the number of the first row for stochastic rounding, or what is added to `rows`"},
    {0},
};

const mx_op mx_op_nvfp4_matmul = {
    .name = "nvfp4_matmul",
    .doc =
        "x (..., k) times w (k, n), plus bias (n) -> (..., n) bf16, in NVFP4: codes in e2m1, and 16 neighbours along "
        "the dimension that is summed, of w 16 x 16, share an e4m3 scale, beside an f32 scale of the tensor. So do "
        "both products of backward, which quantize x, w and dy along their own sums. All are rounded to bf16 first. "
        "The choices of stochastic rounding follow from the key, the numbers `rows` (i32) of the rows of x, and "
        "columns",
    .inputs = (const char *const[]){"x", "w", "bias?", "rows?", NULL},
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COMPOSITE | MX_OP_OWN_STORAGE,
    .attrs = matmul_attrs,
    .attr_bytes = sizeof(matmul_attr),
    .reads_in = 1 | 2 | 8,
    .late = 2 | 4,
    .reads_late = 1 | 8,
    .infer = infer_matmul,
    .cost = mx_block_cost,
    .host = host_matmul,
    .vjp = vjp_matmul,
};
