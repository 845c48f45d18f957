#include "kernels/rope.h"

#include "kernels/simd/rows.h"

/* Neighbouring lanes change places. */
static inline vf swap_pairs(vf x)
{
#if MX_SIMD_512
    return _mm512_permute_ps(x, 0xb1);
#else
    return _mm256_permute_ps(x, 0xb1);
#endif
}

/* One vector of pairs: (x1, x2) turns by the angle with cosine c and sine s. */
ROW_INLINE void turn(vf *x1, vf *x2, vf c, vf s)
{
    vf y1 = vf_fma(*x1, c, vf_zero() - *x2 * s);
    *x2 = vf_fma(*x2, c, *x1 * s);
    *x1 = y1;
}

ROW_INLINE void head_halves(const void *x, void *y, const float *angles, int64_t dim, vf sign, const bool half,
                            const bool stream)
{
    int64_t pairs = dim / 2, i = 0;
    const float *cosines = angles, *sines = angles + pairs;
    for (; i + 2 * VL <= pairs; i += 2 * VL) {
        vf a[2], b[2];
        for (int u = 0; u < 2; u++) {
            a[u] = row_load(x, i + u * VL, half);
            b[u] = row_load(x, pairs + i + u * VL, half);
            turn(&a[u], &b[u], vf_load(cosines + i + u * VL), vf_load(sines + i + u * VL) * sign);
        }
        row_store2(y, i, a[0], a[1], half, stream);
        row_store2(y, pairs + i, b[0], b[1], half, stream);
    }
    for (; i < pairs; i += VL) {
        int64_t n = lanes_left(pairs, i);
        vf a = row_load_part(x, i, n, half), b = row_load_part(x, pairs + i, n, half);
        turn(&a, &b, vf_load_part(cosines + i, n), vf_load_part(sines + i, n) * sign);
        row_store_part(y, i, a, n, half);
        row_store_part(y, pairs + i, b, n, half);
    }
}

ROW_INLINE void head_interleaved(const void *x, void *y, const float *angles, int64_t dim, vf sign, const bool half,
                                 const bool stream)
{
    const float *cosines = angles, *sines = angles + dim;
    int64_t i = 0;
    for (; i + 2 * VL <= dim; i += 2 * VL) {
        vf a[2];
        for (int u = 0; u < 2; u++) {
            vf v = row_load(x, i + u * VL, half);
            vf s = vf_load(sines + i + u * VL) * sign;
            a[u] = vf_fma(v, vf_load(cosines + i + u * VL), swap_pairs(v) * s);
        }
        row_store2(y, i, a[0], a[1], half, stream);
    }
    for (; i < dim; i += VL) {
        int64_t n = lanes_left(dim, i);
        vf v = row_load_part(x, i, n, half), s = vf_load_part(sines + i, n) * sign;
        row_store_part(y, i, vf_fma(v, vf_load_part(cosines + i, n), swap_pairs(v) * s), n, half);
    }
}

ROW_INLINE void tokens(const mx_rope_tokens *t, const bool interleaved, const bool half, const bool stream)
{
    const mx_rope *r = t->rope;
    int64_t dim = r->frequencies.head_dim;
    vf sign = vf_set1(r->inverse ? -1.0f : 1.0f);
    for (int64_t token = t->first; token < t->last; token++) {
        const float *angles = t->angles + t->row[token] * (interleaved ? 2 * dim : dim);
        for (int64_t h = token * r->heads; h < (token + 1) * r->heads; h++) {
            const void *x = row_of(r->x, h, dim, half);
            void *y = row_of_out(r->y, h, dim, half);
            if (interleaved)
                head_interleaved(x, y, angles, dim, sign, half, stream);
            else
                head_halves(x, y, angles, dim, sign, half, stream);
        }
    }
}

ROW_INLINE void tokens_of(const mx_rope_tokens *t, const bool interleaved, const bool half)
{
    t->stream ? tokens(t, interleaved, half, true) : tokens(t, interleaved, half, false);
}

void MX_SIMD_NAME(mx_rope)(const mx_rope_tokens *t)
{
    if (t->rope->dtype == MX_BF16)
        t->rope->frequencies.interleaved ? tokens_of(t, true, true) : tokens_of(t, false, true);
    else
        t->rope->frequencies.interleaved ? tokens_of(t, true, false) : tokens_of(t, false, false);
    _mm_sfence();
}
