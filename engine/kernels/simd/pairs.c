/* The loops of pairs in vectors. */
#include "kernels/context.h"
#include "kernels/simd/circular.h"
#include "kernels/simd/powers.h"

#pragma GCC optimize("schedule-insns", "sched-pressure") /* see elementwise.c */

#include "kernels/simd/rows.h"
#include "kernels/simd/sweep.h"

/* A loss of the prediction a and the target b. */
MX_INLINE vf loss_of(mx_pair f, bool bf16, vf a, vf b)
{
    const vf p = vf_set1((float)f.p);
    vf d = vf_abs(a - b);
    switch (f.op) {
    case MX_SQUARED:
        return d * d;
    case MX_ABSOLUTE:
        return d;
    case MX_HUBER:
        return vf_select(vf_gt(d, p), p * (d - p * vf_set1(0.5f)), d * d * vf_set1(0.5f));
    case MX_BCE:
        return vf_softplus(bf16, a) - a * b;
    case MX_DIVERGENCE:
        return vf_select(vf_ge(vf_zero(), vf_abs(b)), vf_zero(), b * (vf_log(bf16, b) - a));
    default: /* MX_DIVERGENCE_LOG */
        return vf_exp(b) * (b - a);
    }
}

/* Lane by lane, for quotients that f32 does not hold, zeros, infinities and NaN. `down`: of a quotient rounded down,
 * else toward 0. */
static __attribute__((noinline)) vf remainder_by_lane(vf a, vf b, bool down)
{
    float x[VL], y[VL];
    vf_store(x, a);
    vf_store(y, b);
    for (int i = 0; i < VL; i++) {
        float r = fmodf(x[i], y[i]);
        x[i] = down && r != 0 && (r < 0) != (y[i] < 0) ? r + y[i] : r;
    }
    return vf_load(x);
}

/* Whether the whole quotients q of some lanes are such. */
MX_INLINE bool vf_any_odd(vf q, vf b)
{
    vm large = vf_not_le(vf_abs(q), vf_set1(4194304.0f)), endless = vf_not_le(vf_abs(b), vf_set1(3.40282347e38f));
    return __builtin_expect(vm_any(large) || vm_any(endless), false);
}

/* |a| - floor(|a / b|) |b| with the sign of a; the quotient may be one too large, as below. */
MX_INLINE vf vf_fmod(vf a, vf b)
{
    vf size = vf_abs(a), step = vf_abs(b), q = vf_floor_of(size / step), r = vf_fma(vf_zero() - q, step, size);
    if (vf_any_odd(q, b))
        return remainder_by_lane(a, b, false);
    return vf_with_sign(vf_abs(vf_select(vf_gt(vf_zero(), r), r + step, r)), a);
}

/* a - floor(a / b) b, whose quotient may be one too large where it was rounded up to a whole number. */
MX_INLINE vf vf_remainder(vf a, vf b)
{
    vf q = vf_floor_of(a / b), r = vf_fma(vf_zero() - q, b, a);
    if (vf_any_odd(q, b))
        return remainder_by_lane(a, b, true);
    vf other_sign = vf_select(vi_gt(vi_set1(0), vi_xor(vf_bits(r), vf_bits(b))), vf_abs(r), vf_zero());
    return vf_select(vf_gt(other_sign, vf_zero()), r + b, r);
}

MX_INLINE vf pair_of(mx_pair f, bool bf16, vf a, vf b)
{
    switch (f.op) {
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
    case MX_MINIMUM:
        return vf_select(vf_is_nan(a), a, vf_min(a, b));
    case MX_ADD_SCALED:
        return vf_fma(vf_set1((float)f.p), b, a);
    case MX_LERP:
        return vf_fma(vf_set1((float)f.p), b - a, a);
    case MX_ATAN2:
        return vf_atan2(a, b);
    case MX_REMAINDER:
        return vf_remainder(a, b);
    case MX_FMOD:
        return vf_fmod(a, b);
    default:
        return loss_of(f, bf16, a, b);
    }
}

MX_INLINE void get_or_value(const kind *k, int which, const char *p, int64_t i, vf v[VECTORS])
{
    if (k->step[which])
        get(k, p, i, v);
    else
        for (int u = 0; u < k->vectors; u++)
            v[u] = k->value[which];
}

MX_INLINE void binary_step(const kind *k, const pointers *p, int64_t i, bool stream)
{
    vf a[VECTORS], b[VECTORS];
    get_or_value(k, 0, p->in[0], i, a);
    get_or_value(k, 1, p->in[1], i, b);
    if (k->pair.op == MX_POWER) {
        vf_powers(k->bf16, a, b, k->vectors);
    } else {
#pragma GCC unroll 8
        for (int u = 0; u < k->vectors; u++)
            a[u] = pair_of(k->pair, k->bf16, a[u], b[u]);
    }
    put(k, p->out[0], i, stream, a);
}

MX_INLINE void sweep_pair(mx_binary op, kind k, const pointers *p, int64_t n, bool stream)
{
    k.pair.op = op;
    k.vectors = FEW;
    if (!k.step[0]) {
        k.step[0] = 0;
        sweep(binary_step, &k, p, n, stream);
    } else if (!k.step[1]) {
        k.step[0] = 1;
        k.step[1] = 0;
        sweep(binary_step, &k, p, n, stream);
    } else {
        k.step[0] = k.step[1] = 1;
        sweep(binary_step, &k, p, n, stream);
    }
}

MX_INLINE bool is_long(mx_binary op) { return op == MX_POWER || op == MX_BCE; }

#define SWEEP(name)                                                                                                    \
    case name:                                                                                                         \
        k.pair.op = name;                                                                                              \
        k.vectors = is_long(name) ? VECTORS : FEW;                                                                     \
        sweep(binary_step, &k, p, n, stream);                                                                          \
        return;

MX_INLINE void sweep_binary(kind k, const pointers *p, int64_t n, bool stream)
{
    switch (k.pair.op) {
    case MX_ADD:
        sweep_pair(MX_ADD, k, p, n, stream);
        return;
    case MX_SUB:
        sweep_pair(MX_SUB, k, p, n, stream);
        return;
    case MX_MUL:
        sweep_pair(MX_MUL, k, p, n, stream);
        return;
        SWEEP(MX_DIV)
        SWEEP(MX_MAXIMUM)
        SWEEP(MX_MINIMUM)
        SWEEP(MX_POWER)
        SWEEP(MX_ADD_SCALED)
        SWEEP(MX_LERP)
        SWEEP(MX_ATAN2)
        SWEEP(MX_REMAINDER)
        SWEEP(MX_FMOD)
        SWEEP(MX_SQUARED)
        SWEEP(MX_ABSOLUTE)
        SWEEP(MX_HUBER)
        SWEEP(MX_BCE)
        SWEEP(MX_DIVERGENCE)
    default:
        k.pair.op = MX_DIVERGENCE_LOG;
        k.vectors = FEW;
        sweep(binary_step, &k, p, n, stream);
        return;
    }
}

MX_INLINE float load_one(const void *p, bool bf16, int64_t i)
{
    return bf16 ? mx_from_bf16(((const mx_bf16 *)p)[i]) : ((const float *)p)[i];
}

static void binary(mx_pair f, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step, void *y, int64_t n,
                   bool stream)
{
    if (n == 0)
        return;
    bool bf16 = mx_is_bf16(dtype);
    kind k = {.pair = f,
              .bf16 = bf16,
              .step = {a_step, b_step},
              .value = {vf_set1(load_one(a, bf16, 0)), vf_set1(load_one(b, bf16, 0))}};
    pointers p = {.in = {a_step ? a : NULL, b_step ? b : NULL}, .out = {y}};
    if (bf16) {
        k.bf16 = true;
        sweep_binary(k, &p, n, stream);
    } else {
        k.bf16 = false;
        sweep_binary(k, &p, n, stream);
    }
}

/* ---- derivatives: f32 staged by the driver ---- */

MX_INLINE vf power_slope(bool by_b, vf a, vf b)
{
    if (!by_b)
        return vf_select(vf_gt(vf_abs(b), vf_zero()), b * vf_power(false, a, b - vf_set1(1.0f)), vf_zero());
    vf slope = vf_power(false, a, b) * vf_log(false, a);
    vf flat = vf_select(vf_ge(b, vf_zero()), vf_zero(), slope);
    return vf_select(vf_gt(vf_abs(a), vf_zero()), slope, flat);
}

MX_INLINE vf pair_slope(mx_pair f, bool by_b, vf a, vf b)
{
    const vf one = vf_set1(1.0f), p = vf_set1((float)f.p);
    vf mine = by_b ? b : a, other = by_b ? a : b, d = mine - other;
    switch (f.op) {
    case MX_DIV:
        return by_b ? (vf_zero() - a) / (b * b) : one / b;
    case MX_POWER:
        return power_slope(by_b, a, b);
    case MX_LERP:
        return by_b ? p + vf_zero() : one - p;
    case MX_ATAN2:
        return (by_b ? vf_zero() - a : b + vf_zero()) / vf_fma(a, a, b * b);
    case MX_REMAINDER:
        return by_b ? vf_zero() - vf_round((a - vf_remainder(a, b)) / b) : one + vf_zero();
    case MX_FMOD:
        return by_b ? vf_zero() - vf_round((a - vf_fmod(a, b)) / b) : one + vf_zero();
    case MX_SQUARED:
        return d + d;
    case MX_ABSOLUTE:
        return vf_sign(d);
    case MX_HUBER:
        return vf_clamp(d, vf_zero() - p, p);
    case MX_BCE:
        return by_b ? vf_zero() - a : vf_sigmoid(a) - b;
    case MX_DIVERGENCE:
        return by_b ? vf_log(false, b) + one - a : vf_zero() - b;
    case MX_DIVERGENCE_LOG:
        return by_b ? vf_exp(b) * (b - a + one) : vf_zero() - vf_exp(b);
    case MX_MINIMUM:
        d = vf_zero() - d;
        break;
    default: /* MX_MAXIMUM */
        break;
    }
    vf half = vf_select(vf_ge(d, vf_zero()), vf_set1(0.5f), vf_zero());
    return vf_select(vf_gt(d, vf_zero()), one, half);
}

MX_INLINE vf part_of(const float *p, int step, int64_t i, int64_t n)
{
    return !step ? vf_set1(*p) : n >= VL ? vf_load(p + i) : vf_load_part(p + i, n);
}

MX_INLINE void grad_loop(mx_pair f, bool by_b, const float *a, int a_step, const float *b, int b_step, const float *dy,
                         int dy_step, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        int64_t left = n - i;
        vf slope = pair_slope(f, by_b, part_of(a, a_step, i, left), part_of(b, b_step, i, left));
        slope = slope * part_of(dy, dy_step, i, left);
        if (left >= VL)
            vf_store(y + i, slope);
        else
            vf_store_part(y + i, slope, left);
    }
}

#define GRAD(name)                                                                                                     \
    case name:                                                                                                         \
        f.op = name;                                                                                                   \
        by_b ? grad_loop(f, true, a, a_step, b, b_step, dy, dy_step, y, n)                                             \
             : grad_loop(f, false, a, a_step, b, b_step, dy, dy_step, y, n);                                           \
        return;

static void binary_grad(mx_pair f, bool by_b, const float *a, int a_step, const float *b, int b_step, const float *dy,
                        int dy_step, float *y, int64_t n)
{
    switch (f.op) {
        GRAD(MX_DIV)
        GRAD(MX_POWER)
        GRAD(MX_LERP)
        GRAD(MX_ATAN2)
        GRAD(MX_REMAINDER)
        GRAD(MX_FMOD)
        GRAD(MX_SQUARED)
        GRAD(MX_ABSOLUTE)
        GRAD(MX_HUBER)
        GRAD(MX_BCE)
        GRAD(MX_DIVERGENCE)
        GRAD(MX_DIVERGENCE_LOG)
        GRAD(MX_MAXIMUM)
    default:
        f.op = MX_MINIMUM;
        by_b ? grad_loop(f, true, a, a_step, b, b_step, dy, dy_step, y, n)
             : grad_loop(f, false, a, a_step, b, b_step, dy, dy_step, y, n);
        return;
    }
}

/* ---- sums of losses ---- */

MX_INLINE float sum_as(mx_pair f, const bool bf16, const void *a, const void *b, int64_t n)
{
    const kind k = {.vectors = is_long(f.op) ? VECTORS : FEW, .bf16 = bf16};
    const int unit = k.vectors * VL, bytes = unit * (bf16 ? 2 : 4);
    const char *from = a, *other = b;
    vf sum[VECTORS];
    for (int u = 0; u < k.vectors; u++)
        sum[u] = vf_zero();
    int64_t i = 0;
    for (; i + unit <= n; i += unit) {
        vf x[VECTORS], y[VECTORS];
        prefetch_ahead(from + i / unit * bytes, bytes);
        prefetch_ahead(other + i / unit * bytes, bytes);
        get(&k, a, i, x);
        get(&k, b, i, y);
#pragma GCC unroll 8
        for (int u = 0; u < k.vectors; u++)
            sum[u] = sum[u] + loss_of(f, bf16, x[u], y[u]);
    }
    for (; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        vf loss = loss_of(f, bf16, row_load_part(a, i, left, bf16), row_load_part(b, i, left, bf16));
        sum[0] = sum[0] + vf_select(vm_first(left), loss, vf_zero());
    }
    for (int half = k.vectors / 2; half > 0; half /= 2)
        for (int u = 0; u < half; u++)
            sum[u] += sum[u + half];
    return vf_sum(sum[0]);
}

#define SUM(name)                                                                                                      \
    case name:                                                                                                         \
        f.op = name;                                                                                                   \
        return mx_is_bf16(dtype) ? sum_as(f, true, a, b, n) : sum_as(f, false, a, b, n);

static float sum(mx_pair f, mx_dtype dtype, const void *a, const void *b, int64_t n)
{
    switch (f.op) {
        SUM(MX_SQUARED)
        SUM(MX_ABSOLUTE)
        SUM(MX_HUBER)
        SUM(MX_BCE)
        SUM(MX_DIVERGENCE)
    default:
        f.op = MX_DIVERGENCE_LOG;
        return mx_is_bf16(dtype) ? sum_as(f, true, a, b, n) : sum_as(f, false, a, b, n);
    }
}

/* ---- comparisons ---- */

MX_INLINE vm holds(mx_compare op, vf a, vf b)
{
    switch (op) {
    case MX_EQ:
        return vf_equal(a, b);
    case MX_NE:
        return vf_not_equal(a, b);
    case MX_LT:
        return vf_gt(b, a);
    case MX_FINITE:
        return vf_ge(vf_set1(3.40282347e38f), vf_abs(a));
    default:
        return vf_ge(b, a);
    }
}

/* 4 VL bytes: 1 where a lane is set, else 0. */
MX_INLINE void store_flags(uint8_t *y, const vm m[4])
{
#if MX_SIMD_512
    uint64_t all = m[0] | (uint64_t)m[1] << 16 | (uint64_t)m[2] << 32 | (uint64_t)m[3] << 48;
    _mm512_storeu_si512(y, _mm512_maskz_set1_epi8(all, 1));
#else
    __m256i low = _mm256_packs_epi32(vf_bits(m[0]), vf_bits(m[1])),
            high = _mm256_packs_epi32(vf_bits(m[2]), vf_bits(m[3]));
    __m256i bytes = _mm256_and_si256(_mm256_packs_epi16(low, high), _mm256_set1_epi8(1));
    _mm256_storeu_si256((__m256i *)y, _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
#endif
}

/* Of either input, VL neighbours from i on or the one value. */
MX_INLINE vf operand(const void *p, const int step, int64_t i, const bool bf16)
{
    return step ? row_load(p, i, bf16) : vf_set1(*(const float *)p);
}

MX_INLINE void compare_as(mx_compare op, const bool bf16, const void *a, const int a_step, const void *b,
                          const int b_step, uint8_t *y, int64_t n)
{
    const int size = bf16 ? 2 : 4;
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        vm m[4];
        if (a_step)
            prefetch_ahead((const char *)a + i * size, 4 * VL * size);
        if (b_step)
            prefetch_ahead((const char *)b + i * size, 4 * VL * size);
        for (int u = 0; u < 4; u++)
            m[u] = holds(op, operand(a, a_step, i + u * VL, bf16), operand(b, b_step, i + u * VL, bf16));
        store_flags(y + i, m);
    }
    for (; i < n; i++)
        y[i] = vm_any(holds(op, vf_set1(a_step ? load_one(a, bf16, i) : *(const float *)a),
                            vf_set1(b_step ? load_one(b, bf16, i) : *(const float *)b)));
}

MX_INLINE void compare_steps(mx_compare op, const bool bf16, const void *a, int a_step, const void *b, int b_step,
                             uint8_t *y, int64_t n)
{
    if (a_step && b_step)
        compare_as(op, bf16, a, 1, b, 1, y, n);
    else if (a_step)
        compare_as(op, bf16, a, 1, b, 0, y, n);
    else if (b_step)
        compare_as(op, bf16, a, 0, b, 1, y, n);
    else
        compare_as(op, bf16, a, 0, b, 0, y, n);
}

MX_INLINE void compare_of(mx_compare op, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step,
                          uint8_t *y, int64_t n)
{
    mx_is_bf16(dtype) ? compare_steps(op, true, a, a_step, b, b_step, y, n)
                      : compare_steps(op, false, a, a_step, b, b_step, y, n);
}

static void compare(mx_compare op, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step, uint8_t *y,
                    int64_t n)
{
    if (op == MX_GT || op == MX_GE)
        compare(op == MX_GT ? MX_LT : MX_LE, dtype, b, b_step, a, a_step, y, n);
    else if (op == MX_EQ)
        compare_of(MX_EQ, dtype, a, a_step, b, b_step, y, n);
    else if (op == MX_NE)
        compare_of(MX_NE, dtype, a, a_step, b, b_step, y, n);
    else if (op == MX_LT)
        compare_of(MX_LT, dtype, a, a_step, b, b_step, y, n);
    else if (op == MX_FINITE)
        compare_of(MX_FINITE, dtype, a, a_step, b, b_step, y, n);
    else
        compare_of(MX_LE, dtype, a, a_step, b, b_step, y, n);
}

const mx_pair_paths MX_SIMD_NAME(mx_pairs) = {
    .binary = binary, .binary_grad = binary_grad, .compare = compare, .sum = sum};
