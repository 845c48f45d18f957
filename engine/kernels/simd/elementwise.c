/* The elementwise loops in vectors. */
#include "kernels/context.h"
#include "kernels/simd/circular.h"
#include "kernels/simd/powers.h"

/* A step is a long chain of dependent instructions for each of its vectors; only when these are interleaved are the
 * units kept busy (1.6 times the rate of silu with AVX2; on Zen 5, up to 1.3 times that of functions with AVX-512). The
 * compiler does so if it orders them before registers are assigned. */
#pragma GCC optimize("schedule-insns", "sched-pressure")

#include "kernels/simd/sweep.h"

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

static float lane_tan(float x, float unused)
{
    (void)unused;
    return tanf(x);
}

/* Whether x^p is x or a product or quotient of few of it. */
MX_INLINE bool is_product(float p) { return p == 1.0f || p == 2.0f || p == 3.0f || p == -1.0f; }

MX_INLINE vf power(vf x, float p, bool fast)
{
    if (p == 1.0f)
        return x;
    if (p == 2.0f)
        return x * x;
    if (p == 3.0f)
        return x * x * x;
    if (p == -1.0f)
        return vf_set1(1.0f) / x;
    return vf_power(fast, x, vf_set1(p));
}

MX_INLINE vf sine_or_cosine(bool bf16, vf x, const bool cosine)
{
    vf s, c;
    if (__builtin_expect(vm_any(vf_not_le(vf_abs(x), vf_set1(VF_SINCOS_MAX))), false))
        return by_lane(cosine ? lane_cos : lane_sin, x, 0.0f);
    if (bf16)
        return vf_sine_fast(x, cosine);
    vf_sincos(x, &s, &c);
    return cosine ? c : s;
}

MX_INLINE vf exponential(bool bf16, vf x)
{
    return MX_SIMD_512 && bf16 ? vf_exp2_fast(x * vf_set1(LOG2E)) : vf_exp(x); /* AVX2 has no infinity there */
}

MX_INLINE vf logistic(bool bf16, vf x)
{
    return bf16 ? vf_sigmoid_of(vf_max(vf_set1(-80.0f), x), true) : vf_sigmoid(x); /* the latter keeps any NaN */
}

MX_INLINE vf tangent(vf x)
{
    vf s, c;
    if (__builtin_expect(vm_any(vf_not_le(vf_abs(x), vf_set1(VF_SINCOS_MAX))), false))
        return by_lane(lane_tan, x, 0.0f);
    vf_sincos(x, &s, &c);
    return s / c;
}

/* 1 / sqrt(1 - x^2) */
MX_INLINE vf asin_slope(vf x)
{
    const vf one = vf_set1(1.0f);
    return one / vf_sqrt((one - x) * (one + x));
}

/* sqrt(x^2 + 1), also where the square would overflow. */
MX_INLINE vf vf_hypotenuse(vf x)
{
    const vf one = vf_set1(1.0f), size = vf_abs(x);
    return vf_select(vf_gt(size, vf_set1(1e9f)), size, vf_sqrt(vf_fma(x, x, one)));
}

MX_INLINE vf value_of(mx_function f, bool bf16, vf x)
{
    switch (f.op) {
    case MX_EXP:
        return exponential(bf16, x);
    case MX_LOG:
        return vf_log(bf16, x);
    case MX_SQRT:
        return vf_sqrt(x);
    case MX_RSQRT:
        return vf_rsqrt(bf16, x);
    case MX_ABS:
        return vf_abs(x);
    case MX_TANH:
        return vf_tanh_whole(bf16, x);
    case MX_SIGMOID:
        return logistic(bf16, x);
    case MX_SQUARE:
        return x * x;
    case MX_SIN:
        return sine_or_cosine(bf16, x, false);
    case MX_COS:
        return sine_or_cosine(bf16, x, true);
    case MX_AFFINE:
        return vf_fma(vf_set1((float)f.p0), x, vf_set1((float)f.p1));
    case MX_POW:
        return power(x, (float)f.p0, bf16);
    case MX_FLOOR:
        return vf_floor_of(x);
    case MX_CEIL:
        return vf_ceil_of(x);
    case MX_ROUND:
        return vf_round(x);
    case MX_SIGN:
        return vf_sign(x);
    case MX_LEAKY_RELU:
        return vf_select(vf_gt(vf_zero(), x), vf_set1((float)f.p0) * x, x);
    case MX_CLAMP:
        return vf_clamp(x, vf_set1((float)f.p0), vf_set1((float)f.p1));
    case MX_ERF:
        return vf_erf(bf16, x);
    case MX_LOG1P:
        return vf_log1p(bf16, x);
    case MX_EXPM1:
        return vf_expm1(bf16, x);
    case MX_SOFTPLUS:
        return vf_softplus(bf16, x * vf_set1((float)f.p0)) * vf_set1((float)(1 / f.p0));
    case MX_ELU:
        return vf_elu(bf16, x, (float)f.p0);
    case MX_TAN:
        return tangent(x);
    case MX_ASIN:
        return vf_asin(x);
    case MX_ACOS:
        return vf_acos(x);
    case MX_ATAN:
        return vf_atan(x);
    case MX_SINH:
        return vf_sinh(x);
    case MX_COSH:
        return vf_cosh(x);
    case MX_ASINH:
        return vf_asinh(x);
    case MX_ACOSH:
        return vf_acosh(x);
    case MX_ATANH:
        return vf_atanh(x);
    default:
        return vf_activation(f.op, bf16, x);
    }
}

MX_INLINE vf slope_of(mx_function f, bool bf16, vf v)
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
        return vf_sign(v);
    case MX_TANH:
        return one - v * v;
    case MX_SIGMOID:
        return v * (one - v);
    case MX_SQUARE:
        return v + v;
    case MX_SIN:
        return sine_or_cosine(bf16, v, true);
    case MX_COS:
        return vf_zero() - sine_or_cosine(bf16, v, false);
    case MX_AFFINE:
        return vf_set1((float)f.p0);
    case MX_POW:
        return vf_set1((float)f.p0) * power(v, (float)f.p0 - 1.0f, bf16);
    case MX_FLOOR:
    case MX_CEIL:
    case MX_ROUND:
    case MX_SIGN:
        return vf_zero();
    case MX_ERF:
        return vf_set1(1.12837917f) * exponential(bf16, vf_zero() - v * v);
    case MX_LOG1P:
        return one / (one + v);
    case MX_EXPM1:
        return exponential(bf16, v);
    case MX_SOFTPLUS:
        return logistic(bf16, vf_set1((float)f.p0) * v);
    case MX_LEAKY_RELU:
        value = vf_select(vf_gt(v, vf_zero()), one, vf_set1((float)f.p0));
        return vf_select(vf_is_nan(v), v, value);
    case MX_ELU:
        value = vf_select(vf_gt(v, vf_zero()), one, vf_set1((float)f.p0) * exponential(bf16, v));
        return vf_select(vf_is_nan(v), v, value);
    case MX_CLAMP:
        value = vf_select(vf_ge(v, vf_set1((float)f.p0)), one, vf_zero());
        return vf_select(vf_ge(vf_set1((float)f.p1), v), value, vf_zero());
    case MX_TAN:
        return vf_fma(v, v, one);
    case MX_ASIN:
        return asin_slope(v);
    case MX_ACOS:
        return vf_zero() - asin_slope(v);
    case MX_ATAN:
        return one / vf_fma(v, v, one);
    case MX_SINH:
        return vf_cosh(v);
    case MX_COSH:
        return vf_sinh(v);
    case MX_ASINH:
        return one / vf_hypotenuse(v);
    case MX_ACOSH:
        return one / (vf_sqrt(v - one) * vf_sqrt(v + one));
    case MX_ATANH:
        return one / ((one - v) * (one + v));
    default:
        return vf_activation_slope(f.op, bf16, v, &value);
    }
}

/* Whether results can be ties between two bf16: those of sums and products of a few bf16. */
MX_INLINE bool has_ties(mx_function f)
{
    switch (f.op) {
    case MX_ABS:
    case MX_SQUARE:
    case MX_AFFINE:
    case MX_LEAKY_RELU:
    case MX_CLAMP:
        return true;
    case MX_POW:
        return is_product((float)f.p0);
    default:
        return false;
    }
}

MX_INLINE void unary_step(const kind *k, const pointers *p, int64_t i, bool stream)
{
    vf x[VECTORS];
    get(k, p->in[0], i, x);
    if (k->f.op == MX_POW && !is_product((float)k->f.p0)) {
        vf exponents[VECTORS];
#pragma GCC unroll 8
        for (int u = 0; u < k->vectors; u++)
            exponents[u] = vf_set1((float)k->f.p0);
        vf_powers(k->bf16, x, exponents, k->vectors);
    } else {
#pragma GCC unroll 8
        for (int u = 0; u < k->vectors; u++)
            x[u] = value_of(k->f, k->bf16, x[u]);
    }
    put_by(!has_ties(k->f), k, p->out[0], i, stream, x);
}

/* What the long chains do not need is read behind them: registers are few. */
MX_INLINE void unary_grad_step(const kind *k, const pointers *p, int64_t i, bool stream)
{
    vf v[VECTORS], dy[VECTORS];
    get(k, p->in[0], i, v);
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u++)
        v[u] = slope_of(k->f, k->bf16, v[u]);
    get(k, p->in[1], i, dy);
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u++)
        v[u] *= dy[u];
    put(k, p->out[0], i, stream, v);
}

/* Whether the chain of a function or of its derivative is long. */
MX_INLINE bool is_long(mx_unary op) { return op == MX_POW || op == MX_SOFTPLUS || op == MX_SILU || op == MX_GELU_TANH; }

/* The assignments make constants of what is known in each branch. */
MX_INLINE void sweep_dtype(step_fn *step, kind k, const pointers *p, int64_t n, bool stream)
{
    if (k.bf16) {
        k.bf16 = true;
        sweep(step, &k, p, n, stream);
    } else {
        k.bf16 = false;
        sweep(step, &k, p, n, stream);
    }
}

MX_INLINE void sweep_op(step_fn *step, mx_unary op, kind k, const pointers *p, int64_t n, bool stream)
{
    k.f.op = op;
    k.vectors = is_long(op) ? VECTORS : FEW;
    if (op == MX_SOFTPLUS && k.f.p0 == 1) { /* the usual scale, by which nothing needs to be multiplied */
        k.f.p0 = 1;
        sweep_dtype(step, k, p, n, stream);
        return;
    }
    sweep_dtype(step, k, p, n, stream);
}

/* Each step has a C function of its own for each function: the compiler keeps more of small ones in registers. */
#define OWN(step, name)                                                                                                \
    static __attribute__((noinline)) void step##_##name(const kind *k, const pointers *p, int64_t n, bool stream)      \
    {                                                                                                                  \
        sweep_op(step, name, *k, p, n, stream);                                                                        \
    }
#define CASE(step, name)                                                                                               \
    case name:                                                                                                         \
        step##_##name(&k, &p, n, stream);                                                                              \
        break;

#define FOR_ACTIVATIONS(x, step) x(step, MX_RELU) x(step, MX_GELU_TANH) x(step, MX_GELU_ERF) x(step, MX_SILU)
#define FOR_UNARIES(x, step)                                                                                           \
    FOR_ACTIVATIONS(x, step)                                                                                           \
    x(step, MX_EXP) x(step, MX_LOG) x(step, MX_SQRT) x(step, MX_RSQRT) x(step, MX_ABS) x(step, MX_TANH)                \
        x(step, MX_SIGMOID) x(step, MX_SQUARE) x(step, MX_SIN) x(step, MX_COS) x(step, MX_AFFINE) x(step, MX_POW)      \
            x(step, MX_ERF) x(step, MX_LOG1P) x(step, MX_EXPM1) x(step, MX_FLOOR) x(step, MX_CEIL) x(step, MX_ROUND)   \
                x(step, MX_SIGN) x(step, MX_SOFTPLUS) x(step, MX_LEAKY_RELU) x(step, MX_ELU) x(step, MX_CLAMP)         \
                    x(step, MX_TAN) x(step, MX_ASIN) x(step, MX_ACOS) x(step, MX_ATAN) x(step, MX_SINH)                \
                        x(step, MX_COSH) x(step, MX_ASINH) x(step, MX_ACOSH) x(step, MX_ATANH)

FOR_UNARIES(OWN, unary_step)
FOR_UNARIES(OWN, unary_grad_step)

static void unary(mx_function f, mx_dtype dtype, const void *x, void *y, int64_t n, bool stream)
{
    pointers p = {.in = {x}, .out = {y}};
    kind k = {.f = f, .bf16 = mx_is_bf16(dtype)};
    switch (f.op) {
        FOR_UNARIES(CASE, unary_step)
    default:
        break;
    }
}

static void unary_grad(mx_function f, mx_dtype dtype, const void *v, const void *dy, void *dx, int64_t n, bool stream)
{
    pointers p = {.in = {v, dy}, .out = {dx}};
    kind k = {.f = f, .bf16 = mx_is_bf16(dtype)};
    switch (f.op) {
        FOR_UNARIES(CASE, unary_grad_step)
    default:
        break;
    }
}

/* ---- gated pairs ---- */

MX_INLINE void gated_step(const kind *k, const pointers *p, int64_t i, bool stream)
{
    vf gate[VECTORS], up[VECTORS];
    get(k, p->in[0], i, gate);
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u++)
        gate[u] = vf_activation(k->f.op, k->bf16, gate[u]);
    get(k, p->in[1], i, up);
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u++)
        gate[u] *= up[u];
    put_by(k->f.op != MX_RELU, k, p->out[0], i, stream, gate);
}

MX_INLINE void gated_grad_step(const kind *k, const pointers *p, int64_t i, bool stream)
{
    vf gate[VECTORS], value[VECTORS], up[VECTORS], dy[VECTORS];
    get(k, p->in[0], i, gate);
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u++)
        gate[u] = vf_activation_slope(k->f.op, k->bf16, gate[u], &value[u]);
    get(k, p->in[1], i, up);
    get(k, p->in[2], i, dy);
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u++) {
        gate[u] *= dy[u] * up[u];
        value[u] *= dy[u];
    }
    put(k, p->out[0], i, stream, gate);
    put(k, p->out[1], i, stream, value);
}

/* The clamped SwiGLU: g sigmoid(1.702 g) is silu(1.702 g) / 1.702. In this order of minima a NaN survives. */
MX_INLINE void clamped_step(const kind *k, const pointers *p, int64_t i, bool stream)
{
    const vf limit = vf_set1((float)k->f.p0), sharp = vf_set1(1.702f), blunt = vf_set1(1 / 1.702f);
    vf gate[VECTORS], up[VECTORS];
    get(k, p->in[0], i, gate);
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u++)
        gate[u] = vf_activation(k->f.op, k->bf16, sharp * vf_min(limit, gate[u]));
    get(k, p->in[1], i, up);
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u++)
        gate[u] *= blunt * (vf_clamp(up[u], vf_zero() - limit, limit) + vf_set1(1.0f));
    put(k, p->out[0], i, stream, gate);
}

MX_INLINE void clamped_grad_step(const kind *k, const pointers *p, int64_t i, bool stream)
{
    const vf limit = vf_set1((float)k->f.p0), sharp = vf_set1(1.702f), blunt = vf_set1(1 / 1.702f);
    vf gate[VECTORS], value[VECTORS], up[VECTORS], dy[VECTORS];
    get(k, p->in[0], i, gate);
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u++) {
        vm beyond = vf_gt(gate[u], limit);
        gate[u] = vf_activation_slope(k->f.op, k->bf16, sharp * vf_min(limit, gate[u]), &value[u]);
        gate[u] = vf_select(beyond, vf_zero(), gate[u]);
    }
    get(k, p->in[1], i, up);
    get(k, p->in[2], i, dy);
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u++) {
        gate[u] *= dy[u] * (vf_clamp(up[u], vf_zero() - limit, limit) + vf_set1(1.0f));
        value[u] = vf_select(vf_gt(vf_abs(up[u]), limit), vf_zero(), value[u] * blunt * dy[u]);
    }
    put(k, p->out[0], i, stream, gate);
    put(k, p->out[1], i, stream, value);
}

FOR_ACTIVATIONS(OWN, gated_step)
FOR_ACTIVATIONS(OWN, gated_grad_step)
OWN(clamped_step, MX_SILU)
OWN(clamped_grad_step, MX_SILU)

static void gated(mx_function act, mx_dtype dtype, const void *gate, const void *up, void *y, int64_t n, bool stream)
{
    pointers p = {.in = {gate, up}, .out = {y}};
    kind k = {.f = act, .bf16 = mx_is_bf16(dtype)};
    if (act.p0 > 0) {
        clamped_step_MX_SILU(&k, &p, n, stream);
        return;
    }
    switch (act.op) {
        FOR_ACTIVATIONS(CASE, gated_step)
    default:
        break;
    }
}

static void gated_grad(mx_function act, mx_dtype dtype, const void *gate, const void *up, const void *dy, void *dgate,
                       void *dup, int64_t n, bool stream)
{
    bool bf16 = mx_is_bf16(dtype);
    pointers p = {.in = {gate, up, dy}, .out = {dgate, dup}};
    /* Only where the boundaries of both outputs coincide can both be streamed. */
    stream = stream && to_boundary(dgate, bf16) == to_boundary(dup, bf16);
    kind k = {.f = act, .bf16 = bf16};
    if (act.p0 > 0) {
        clamped_grad_step_MX_SILU(&k, &p, n, stream);
        return;
    }
    switch (act.op) {
        FOR_ACTIVATIONS(CASE, gated_grad_step)
    default:
        break;
    }
}

/* ---- casts and sums ---- */

static void to_f32(const mx_bf16 *x, float *y, int64_t n, bool stream)
{
    int64_t i = 0, head = stream ? to_boundary(y, false) : 0;
    for (; i < head && i < n; i++)
        y[i] = mx_from_bf16(x[i]);
    for (; stream && i + VL <= n; i += VL) {
        prefetch_ahead(x + i, 2 * VL);
        vf_stream(y + i, vf_load_bf16(x + i));
    }
    for (; i + VL <= n; i += VL) {
        prefetch_ahead(x + i, 2 * VL);
        vf_store(y + i, vf_load_bf16(x + i));
    }
    for (; i < n; i++)
        y[i] = mx_from_bf16(x[i]);
    if (stream)
        _mm_sfence();
}

/* Two vectors at a time: stores past the caches are best as wide as they get. */
static void to_bf16(const float *x, mx_bf16 *y, int64_t n, bool stream)
{
    int64_t i = 0, head = stream ? to_boundary(y, true) : 0;
    for (; i < head && i < n; i++)
        y[i] = mx_to_bf16(x[i]);
    for (; i + 2 * VL <= n; i += 2 * VL) {
        prefetch_ahead(x + i, 8 * VL);
        put_bits((char *)(y + i), stream, vf_pack_bf16(vf_load(x + i), vf_load(x + i + VL)));
    }
    for (; i < n; i++)
        y[i] = mx_to_bf16(x[i]);
    if (stream)
        _mm_sfence();
}

static void copy(const void *x, void *y, int64_t bytes, bool stream)
{
    const char *from = x;
    char *to = y;
    const int64_t vector = 4 * VL, unit = 4 * vector;
    int64_t first = (vector - (int64_t)((uintptr_t)y % (uintptr_t)vector)) % vector;
    if (!stream || bytes < first + unit) {
        memmove(y, x, (size_t)bytes);
        return;
    }
    int64_t last = first + (bytes - first) / unit * unit;
    for (int64_t i = first; i < last; i += unit) {
        prefetch_ahead(from + i, 16 * VL);
        vf v[4];
        for (int u = 0; u < 4; u++)
            v[u] = vf_load((const float *)(from + i + u * vector));
        for (int u = 0; u < 4; u++)
            vf_stream((float *)(to + i + u * vector), v[u]);
    }
    memcpy(to, from, (size_t)first);
    memcpy(to + last, from + last, (size_t)(bytes - last));
}

MX_INLINE vf load(const void *p, bool bf16, int64_t i)
{
    return bf16 ? vf_load_bf16((const mx_bf16 *)p + i) : vf_load((const float *)p + i);
}

MX_INLINE float load_one(const void *p, bool bf16, int64_t i)
{
    return bf16 ? mx_from_bf16(((const mx_bf16 *)p)[i]) : ((const float *)p)[i];
}

MX_INLINE void add_to_as(void *c, bool c_bf16, const void *x, bool x_bf16, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf sum = load(c, c_bf16, i) + load(x, x_bf16, i);
        if (c_bf16)
            vf_store_bf16((mx_bf16 *)c + i, sum); /* x may be an f32 with any NaN */
        else
            vf_store((float *)c + i, sum);
    }
    for (; i < n; i++) {
        float sum = load_one(c, c_bf16, i) + load_one(x, x_bf16, i);
        if (c_bf16)
            ((mx_bf16 *)c)[i] = mx_to_bf16(sum);
        else
            ((float *)c)[i] = sum;
    }
}

static void add_to(mx_array c, mx_array x, int64_t n)
{
    if (mx_is_bf16(c.dtype))
        mx_is_bf16(x.dtype) ? add_to_as(c.data, true, x.data, true, n) : add_to_as(c.data, true, x.data, false, n);
    else
        mx_is_bf16(x.dtype) ? add_to_as(c.data, false, x.data, true, n) : add_to_as(c.data, false, x.data, false, n);
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
};
