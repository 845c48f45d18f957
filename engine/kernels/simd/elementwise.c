/* The elementwise loops in vectors. One step computes up to VL elements; sweep() runs steps over an array. Both are
 * inlined with operation and dtype as constants, so that each pair of them has a loop of its own. */
#include "kernels/elementwise.h"
#include "kernels/simd/simd.h"
#include "kernels/simd/vmath.h"

typedef struct arrays {
    mx_function f;
    mx_binary pair;
    bool half; /* all arrays are bf16 */
    const void *in[3];
    int step[2]; /* of in[0] and in[1]: 0 for one value used throughout; `binary` alone reads it */
    vf value[2]; /* that value */
    void *out[2];
} arrays;

typedef void step_fn(const arrays *a, int64_t i, int64_t lanes, bool stream);

MX_INLINE vf get(const void *p, bool half, int64_t i, int64_t lanes)
{
    if (half)
        return lanes == VL ? vf_load_bf16((const mx_bf16 *)p + i) : vf_load_bf16_part((const mx_bf16 *)p + i, lanes);
    return lanes == VL ? vf_load((const float *)p + i) : vf_load_part((const float *)p + i, lanes);
}

/* Halves are only stored here where all inputs are halves, so that NaNs are as the quick conversion needs them. */
MX_INLINE void put_half(mx_bf16 *p, int64_t lanes, bool stream, vf x)
{
    if (lanes != VL)
        vf_store_bf16_quick_part(p, x, lanes);
    else if (stream)
        vf_stream_bf16_quick(p, x);
    else
        vf_store_bf16_quick(p, x);
}

MX_INLINE void put(void *p, bool half, int64_t i, int64_t lanes, bool stream, vf x)
{
    if (half)
        put_half((mx_bf16 *)p + i, lanes, stream, x);
    else if (lanes != VL)
        vf_store_part((float *)p + i, x, lanes);
    else if (stream)
        vf_stream((float *)p + i, x);
    else
        vf_store((float *)p + i, x);
}

/* Elements from p to the next address that a vector may be streamed to. */
MX_INLINE int64_t to_boundary(const void *p, bool half)
{
    uintptr_t size = half ? 2 : 4, vector = VL * size;
    return (int64_t)((vector - (uintptr_t)p % vector) % vector / size);
}

/* Whole vectors first, from the first boundary on where they are streamed; then the two ragged ends. */
MX_INLINE void sweep(step_fn *step, const arrays *a, int64_t n, bool stream)
{
    int64_t first = stream ? to_boundary(a->out[0], a->half) : 0;
    if (first > n)
        first = n;
    int64_t last = first + (n - first) / VL * VL;
    for (int64_t i = first; i < last; i += VL)
        step(a, i, VL, stream);
    if (stream)
        _mm_sfence();
#pragma GCC unroll 1
    for (int end = 0; end < 2; end++) {
        int64_t from = end ? last : 0, to = end ? n : first;
        if (from < to)
            step(a, from, to - from, false);
    }
}

/* ---- functions of one array ---- */

/* The lanes one by one, for what has no vector code: f of the C library. */
static __attribute__((noinline)) vf by_lane(float (*f)(float, float), vf x, float p)
{
    float lane[VL];
    vf_store(lane, x);
    for (int i = 0; i < VL; i++)
        lane[i] = f(lane[i], p);
    return vf_load(lane);
}

static float lane_sin(float x, float unused)
{
    (void)unused;
    return sinf(x);
}

static float lane_cos(float x, float unused)
{
    (void)unused;
    return cosf(x);
}

static __attribute__((noinline)) vf power(vf x, float p)
{
    if (p == 1.0f)
        return x;
    if (p == 2.0f)
        return x * x;
    if (p == 3.0f)
        return x * x * x;
    if (p == -1.0f)
        return vf_set1(1.0f) / x;
    return by_lane(powf, x, p);
}

static __attribute__((noinline)) vf sine_or_cosine(vf x, bool cosine)
{
    if (!(vf_hmax(vf_abs(x)) <= VF_SINCOS_MAX))
        return by_lane(cosine ? lane_cos : lane_sin, x, 0.0f);
    vf s, c;
    vf_sincos(x, &s, &c);
    return cosine ? c : s;
}

MX_INLINE vf value_of(mx_function f, bool half, vf x)
{
    switch (f.op) {
    case MX_EXP:
        return vf_exp_whole(x);
    case MX_LOG:
        return vf_log(x);
    case MX_SQRT:
        return vf_sqrt(x);
    case MX_RSQRT:
        return vf_set1(1.0f) / vf_sqrt(x);
    case MX_ABS:
        return vf_abs(x);
    case MX_TANH:
        return vf_tanh_whole(x);
    case MX_SIGMOID:
        return vf_sigmoid_of(half ? vf_max(vf_set1(-80.0f), x) : x, half);
    case MX_SQUARE:
        return x * x;
    case MX_SIN:
        return sine_or_cosine(x, false);
    case MX_COS:
        return sine_or_cosine(x, true);
    case MX_AFFINE:
        return vf_fma(vf_set1(f.p0), x, vf_set1(f.p1));
    case MX_POW:
        return power(x, f.p0);
    default:
        return vf_activation(f.op, half, x);
    }
}

MX_INLINE vf sign_of(vf x)
{
    vf one = vf_set1(1.0f), sign = vf_select(vf_gt(x, vf_zero()), one, vf_zero());
    sign = vf_select(vf_gt(vf_zero(), x), vf_zero() - one, sign);
    return vf_select(vf_is_nan(x), x, sign);
}

MX_INLINE vf slope_of(mx_function f, bool half, vf v)
{
    const vf one = vf_set1(1.0f);
    vf value;
    switch (f.op) {
    case MX_EXP:
        return v;
    case MX_LOG:
        return one / v;
    case MX_SQRT:
        return vf_set1(0.5f) / v;
    case MX_RSQRT:
        return vf_set1(-0.5f) * v * v * v;
    case MX_ABS:
        return sign_of(v);
    case MX_TANH:
        return one - v * v;
    case MX_SIGMOID:
        return v * (one - v);
    case MX_SQUARE:
        return v + v;
    case MX_SIN:
        return sine_or_cosine(v, true);
    case MX_COS:
        return vf_zero() - sine_or_cosine(v, false);
    case MX_AFFINE:
        return vf_set1(f.p0);
    case MX_POW:
        return vf_set1(f.p0) * power(v, f.p0 - 1.0f);
    default:
        return vf_activation_slope(f.op, half, v, &value);
    }
}

MX_INLINE void unary_step(const arrays *a, int64_t i, int64_t lanes, bool stream)
{
    put(a->out[0], a->half, i, lanes, stream, value_of(a->f, a->half, get(a->in[0], a->half, i, lanes)));
}

MX_INLINE void unary_grad_step(const arrays *a, int64_t i, int64_t lanes, bool stream)
{
    vf v = get(a->in[0], a->half, i, lanes), dy = get(a->in[1], a->half, i, lanes);
    put(a->out[0], a->half, i, lanes, stream, dy * slope_of(a->f, a->half, v));
}

/* The assignments make constants of what is known in each branch. */
MX_INLINE void sweep_op(step_fn *step, mx_unary op, arrays a, int64_t n, bool stream)
{
    a.f.op = op;
    if (a.half) {
        a.half = true;
        sweep(step, &a, n, stream);
    } else {
        sweep(step, &a, n, stream);
    }
}

MX_INLINE void sweep_activation(step_fn *step, arrays a, int64_t n, bool stream)
{
    switch (a.f.op) {
    case MX_SILU:
        sweep_op(step, MX_SILU, a, n, stream);
        return;
    case MX_GELU_TANH:
        sweep_op(step, MX_GELU_TANH, a, n, stream);
        return;
    case MX_GELU_ERF:
        sweep_op(step, MX_GELU_ERF, a, n, stream);
        return;
    default:
        sweep_op(step, MX_RELU, a, n, stream);
        return;
    }
}

/* The less common ones share a loop that chooses anew at each vector. */
MX_INLINE void sweep_unary(step_fn *step, arrays a, int64_t n, bool stream)
{
    switch (a.f.op) {
    case MX_EXP:
        sweep_op(step, MX_EXP, a, n, stream);
        return;
    case MX_TANH:
        sweep_op(step, MX_TANH, a, n, stream);
        return;
    case MX_SIGMOID:
        sweep_op(step, MX_SIGMOID, a, n, stream);
        return;
    case MX_SQUARE:
        sweep_op(step, MX_SQUARE, a, n, stream);
        return;
    case MX_AFFINE:
        sweep_op(step, MX_AFFINE, a, n, stream);
        return;
    case MX_RELU:
    case MX_GELU_TANH:
    case MX_GELU_ERF:
    case MX_SILU:
        sweep_activation(step, a, n, stream);
        return;
    default:
        sweep(step, &a, n, stream);
        return;
    }
}

static void unary(mx_function f, mx_dtype dtype, const void *x, void *y, int64_t n, bool stream)
{
    sweep_unary(unary_step, (arrays){.f = f, .half = dtype == MX_BF16, .in = {x}, .out = {y}}, n, stream);
}

static void unary_grad(mx_function f, mx_dtype dtype, const void *v, const void *dy, void *dx, int64_t n, bool stream)
{
    sweep_unary(unary_grad_step, (arrays){.f = f, .half = dtype == MX_BF16, .in = {v, dy}, .out = {dx}}, n, stream);
}

/* ---- gated pairs ---- */

MX_INLINE void gated_step(const arrays *a, int64_t i, int64_t lanes, bool stream)
{
    vf gate = get(a->in[0], a->half, i, lanes), up = get(a->in[1], a->half, i, lanes);
    put(a->out[0], a->half, i, lanes, stream, vf_activation(a->f.op, a->half, gate) * up);
}

MX_INLINE void gated_grad_step(const arrays *a, int64_t i, int64_t lanes, bool stream)
{
    vf gate = get(a->in[0], a->half, i, lanes), up = get(a->in[1], a->half, i, lanes);
    vf dy = get(a->in[2], a->half, i, lanes), value;
    vf slope = vf_activation_slope(a->f.op, a->half, gate, &value);
    put(a->out[0], a->half, i, lanes, stream, dy * up * slope);
    put(a->out[1], a->half, i, lanes, stream, dy * value);
}

static void gated(mx_unary act, mx_dtype dtype, const void *gate, const void *up, void *y, int64_t n, bool stream)
{
    arrays a = {.f.op = act, .half = dtype == MX_BF16, .in = {gate, up}, .out = {y}};
    sweep_activation(gated_step, a, n, stream);
}

static void gated_grad(mx_unary act, mx_dtype dtype, const void *gate, const void *up, const void *dy, void *dgate,
                       void *dup, int64_t n, bool stream)
{
    bool half = dtype == MX_BF16;
    arrays a = {.f.op = act, .half = half, .in = {gate, up, dy}, .out = {dgate, dup}};
    /* Only where the boundaries of both outputs coincide can both be streamed. */
    sweep_activation(gated_grad_step, a, n, stream && to_boundary(dgate, half) == to_boundary(dup, half));
}

/* ---- casts and sums ---- */

static void to_f32(const mx_bf16 *x, float *y, int64_t n, bool stream)
{
    int64_t i = 0, head = stream ? to_boundary(y, false) : 0;
    for (; i < head && i < n; i++)
        y[i] = mx_from_bf16(x[i]);
    for (; stream && i + VL <= n; i += VL)
        vf_stream(y + i, vf_load_bf16(x + i));
    for (; i + VL <= n; i += VL)
        vf_store(y + i, vf_load_bf16(x + i));
    for (; i < n; i++)
        y[i] = mx_from_bf16(x[i]);
    if (stream)
        _mm_sfence();
}

static void to_bf16(const float *x, mx_bf16 *y, int64_t n, bool stream)
{
    int64_t i = 0, head = stream ? to_boundary(y, true) : 0;
    for (; i < head && i < n; i++)
        y[i] = mx_to_bf16(x[i]);
    for (; stream && i + VL <= n; i += VL)
        vf_stream_bf16(y + i, vf_load(x + i));
    for (; i + VL <= n; i += VL)
        vf_store_bf16(y + i, vf_load(x + i));
    for (; i < n; i++)
        y[i] = mx_to_bf16(x[i]);
    if (stream)
        _mm_sfence();
}

static void copy(const void *x, void *y, int64_t bytes, bool stream)
{
    const char *from = x;
    char *to = y;
    const int64_t vector = 4 * VL;
    int64_t first = (vector - (int64_t)((uintptr_t)y % (uintptr_t)vector)) % vector;
    if (!stream || bytes < first) {
        memmove(y, x, (size_t)bytes);
        return;
    }
    int64_t last = first + (bytes - first) / vector * vector;
    for (int64_t i = first; i < last; i += vector)
        vf_stream((float *)(to + i), vf_load((const float *)(from + i)));
    _mm_sfence();
    memcpy(to, from, (size_t)first);
    memcpy(to + last, from + last, (size_t)(bytes - last));
}

MX_INLINE void add_to_as(void *c, bool c_half, const void *x, bool x_half, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        int64_t lanes = n - i < VL ? n - i : VL;
        put(c, c_half, i, lanes, false, get(c, c_half, i, lanes) + get(x, x_half, i, lanes));
    }
}

/* The one mix in which a NaN of an f32 reaches a bf16. */
static void add_f32_to_bf16(mx_bf16 *c, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        int64_t lanes = n - i < VL ? n - i : VL;
        vf sum = get(c, true, i, lanes) + get(x, false, i, lanes);
        if (lanes == VL)
            vf_store_bf16(c + i, sum);
        else
            vf_store_bf16_part(c + i, sum, lanes);
    }
}

static void add_to(mx_array c, mx_array x, int64_t n)
{
    if (c.dtype == MX_F32 && x.dtype == MX_F32)
        add_to_as(c.data, false, x.data, false, n);
    else if (c.dtype == MX_F32)
        add_to_as(c.data, false, x.data, true, n);
    else if (x.dtype == MX_F32)
        add_f32_to_bf16(c.data, x.data, n);
    else
        add_to_as(c.data, true, x.data, true, n);
}

/* ---- pairs ---- */

MX_INLINE vf pair_of(mx_binary op, vf a, vf b)
{
    switch (op) {
    case MX_ADD:
        return a + b;
    case MX_SUB:
        return a - b;
    case MX_MUL:
        return a * b;
    case MX_DIV:
        return a / b;
    case MX_MAXIMUM: /* the instruction gives its second operand when either is NaN */
        return vf_select(vf_is_nan(a), a, vf_max(a, b));
    default: /* MX_MINIMUM */
        return vf_select(vf_is_nan(a), a, vf_min(a, b));
    }
}

MX_INLINE void binary_step(const arrays *a, int64_t i, int64_t lanes, bool stream)
{
    vf x = a->step[0] ? get(a->in[0], a->half, i, lanes) : a->value[0];
    vf y = a->step[1] ? get(a->in[1], a->half, i, lanes) : a->value[1];
    put(a->out[0], a->half, i, lanes, stream, pair_of(a->pair, x, y));
}

MX_INLINE void sweep_pair(mx_binary op, arrays a, int64_t n, bool stream)
{
    a.pair = op;
    if (!a.step[0]) {
        a.step[0] = 0;
        sweep(binary_step, &a, n, stream);
    } else if (!a.step[1]) {
        a.step[0] = 1;
        a.step[1] = 0;
        sweep(binary_step, &a, n, stream);
    } else {
        a.step[0] = a.step[1] = 1;
        sweep(binary_step, &a, n, stream);
    }
}

MX_INLINE void sweep_binary(mx_binary op, arrays a, int64_t n, bool stream)
{
    switch (op) {
    case MX_ADD:
        sweep_pair(MX_ADD, a, n, stream);
        return;
    case MX_SUB:
        sweep_pair(MX_SUB, a, n, stream);
        return;
    case MX_MUL:
        sweep_pair(MX_MUL, a, n, stream);
        return;
    case MX_DIV:
        sweep_pair(MX_DIV, a, n, stream);
        return;
    default:
        sweep(binary_step, &a, n, stream);
        return;
    }
}

static vf first_value(const void *p, bool half)
{
    return vf_set1(half ? mx_from_bf16(*(const mx_bf16 *)p) : *(const float *)p);
}

static void binary(mx_binary op, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step, void *y,
                   int64_t n, bool stream)
{
    if (n == 0)
        return;
    bool half = dtype == MX_BF16;
    arrays s = {.pair = op,
                .in = {a, b},
                .step = {a_step, b_step},
                .value = {first_value(a, half), first_value(b, half)},
                .out = {y}};
    if (half) {
        s.half = true;
        sweep_binary(op, s, n, stream);
    } else {
        s.half = false;
        sweep_binary(op, s, n, stream);
    }
}

/* The rare ones: f32 staged by the driver, left to the compiler. */
MX_INLINE float pair_slope(mx_binary op, bool by_b, float a, float b)
{
    if (op == MX_DIV)
        return by_b ? -a / (b * b) : 1.0f / b;
    float sign = op == MX_MINIMUM ? -1.0f : 1.0f;
    float mine = sign * (by_b ? b : a), other = sign * (by_b ? a : b);
    return mine > other ? 1.0f : mine == other ? 0.5f : 0.0f;
}

static void binary_grad(mx_binary op, bool by_b, const float *a, int a_step, const float *b, int b_step,
                        const float *dy, int dy_step, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = dy[i * dy_step] * pair_slope(op, by_b, a[i * a_step], b[i * b_step]);
}

MX_INLINE void compare_as(mx_compare op, const float *a, int a_step, const float *b, int b_step, uint8_t *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float p = a[i * a_step], q = b[i * b_step];
        y[i] = op == MX_EQ ? p == q : op == MX_NE ? p != q : op == MX_LT ? p < q : p <= q;
    }
}

static void compare(mx_compare op, const float *a, int a_step, const float *b, int b_step, uint8_t *y, int64_t n)
{
    if (op == MX_GT || op == MX_GE) {
        compare(op == MX_GT ? MX_LT : MX_LE, b, b_step, a, a_step, y, n);
        return;
    }
    if (op == MX_EQ)
        compare_as(MX_EQ, a, a_step, b, b_step, y, n);
    else if (op == MX_NE)
        compare_as(MX_NE, a, a_step, b, b_step, y, n);
    else if (op == MX_LT)
        compare_as(MX_LT, a, a_step, b, b_step, y, n);
    else
        compare_as(MX_LE, a, a_step, b, b_step, y, n);
}

const mx_elementwise_paths MX_SIMD_NAME(mx_elementwise) = {
    .unary = unary,
    .unary_grad = unary_grad,
    .gated = gated,
    .gated_grad = gated_grad,
    .to_f32 = to_f32,
    .to_bf16 = to_bf16,
    .copy = copy,
    .add_to = add_to,
    .binary = binary,
    .binary_grad = binary_grad,
    .compare = compare,
};
