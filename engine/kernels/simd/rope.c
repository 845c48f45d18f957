#include "kernels/context.h"

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
MX_INLINE void turn(vf *x1, vf *x2, vf c, vf s)
{
    vf y1 = vf_fma(*x1, c, -(*x2 * s));
    *x2 = vf_fma(*x2, c, *x1 * s);
    *x1 = y1;
}

/* Pairs from `i` on of a head whose components lie `pairs` apart. */
MX_INLINE void pairs_apart(const void *x, void *y, const float *angles, int64_t pairs, int64_t i, vf sign,
                           const bool bf16)
{
    for (; i < pairs; i += VL) {
        int64_t n = lanes_left(pairs, i);
        vf a = row_load_part(x, i, n, bf16), b = row_load_part(x, pairs + i, n, bf16);
        turn(&a, &b, vf_load_part(angles + i, n), vf_load_part(angles + pairs + i, n) * sign);
        row_store_part(y, i, a, n, bf16);
        row_store_part(y, pairs + i, b, n, bf16);
    }
}

/* Components from `i` on of a head whose pairs are neighbours. */
MX_INLINE void neighbours(const void *x, void *y, const float *angles, int64_t dim, int64_t i, vf sign, const bool bf16)
{
    const float *cosines = angles, *sines = angles + dim;
    for (; i < dim; i += VL) {
        int64_t n = lanes_left(dim, i);
        vf v = row_load_part(x, i, n, bf16), s = vf_load_part(sines + i, n) * sign;
        row_store_part(y, i, vf_fma(v, vf_load_part(cosines + i, n), swap_pairs(v) * s), n, bf16);
    }
}

/* Vectors of angles that are kept in registers for all heads of a token: a cache line of bf16 on either side. */
enum { KEPT = 64 / 2 / VL };

/* A token's heads, KEPT vectors of pairs at a time. */
MX_INLINE void token_apart(const mx_rope *r, const char *x, char *y, const float *angles, vf sign, const bool bf16,
                           const bool stream)
{
    const int64_t pairs = r->frequencies.dims / 2, head_bytes = r->head_dim * (bf16 ? 2 : 4);
    int64_t i = 0;
    for (; i + KEPT * VL <= pairs; i += KEPT * VL) {
        vf c[KEPT], s[KEPT];
        for (int k = 0; k < KEPT; k += 2)
            if (bf16) { /* arranged as row_get() arranges */
                vf_split(vf_load(angles + i + k * VL), vf_load(angles + i + (k + 1) * VL), &c[k], &c[k + 1]);
                const float *sines = angles + pairs + i + k * VL;
                vf_split(vf_load(sines) * sign, vf_load(sines + VL) * sign, &s[k], &s[k + 1]);
            } else {
                for (int u = k; u < k + 2; u++) {
                    c[u] = vf_load(angles + i + u * VL);
                    s[u] = vf_load(angles + pairs + i + u * VL) * sign;
                }
            }
        for (int64_t h = 0; h < r->heads; h++)
            for (int k = 0; k < KEPT; k += 2) {
                vf a[2], b[2];
                row_get(x + h * head_bytes, i + k * VL, a, bf16);
                row_get(x + h * head_bytes, pairs + i + k * VL, b, bf16);
                for (int u = 0; u < 2; u++)
                    turn(&a[u], &b[u], c[k + u], s[k + u]);
                row_put(y + h * head_bytes, i + k * VL, a, bf16, stream);
                row_put(y + h * head_bytes, pairs + i + k * VL, b, bf16, stream);
            }
    }
    for (int64_t h = 0; h < r->heads && i < pairs; h++)
        pairs_apart(x + h * head_bytes, y + h * head_bytes, angles, pairs, i, sign, bf16);
}

/* The same where pairs are neighbours: row_get() parts bf16 into the pairs' two components. Floats have
 * theirs side by side. */
MX_INLINE void token_interleaved(const mx_rope *r, const char *x, char *y, const float *angles, vf sign,
                                 const bool bf16, const bool stream)
{
    const int64_t dim = r->frequencies.dims, head_bytes = r->head_dim * (bf16 ? 2 : 4);
    const float *cosines = angles, *sines = angles + dim;
    int64_t i = 0;
    for (; i + KEPT * VL <= dim; i += KEPT * VL) {
        vf c[KEPT], s[KEPT];
        for (int k = 0; k < KEPT; k += 2) {
            for (int u = k; u < k + 2; u++) {
                c[u] = vf_load(cosines + i + u * VL);
                s[u] = vf_load(sines + i + u * VL) * sign;
            }
            if (bf16) { /* each cosine is there twice; the first of two sines is negated */
                vf_split(c[k], c[k + 1], &c[k], &c[k + 1]);
                vf_split(s[k], s[k + 1], &s[k], &s[k + 1]);
            }
        }
        for (int64_t h = 0; h < r->heads; h++)
            for (int k = 0; k < KEPT; k += 2) {
                vf v[2];
                row_get(x + h * head_bytes, i + k * VL, v, bf16);
                if (bf16)
                    turn(&v[0], &v[1], c[k], s[k + 1]);
                else
                    for (int u = 0; u < 2; u++)
                        v[u] = vf_fma(v[u], c[k + u], swap_pairs(v[u]) * s[k + u]);
                row_put(y + h * head_bytes, i + k * VL, v, bf16, stream);
            }
    }
    for (int64_t h = 0; h < r->heads && i < dim; h++)
        neighbours(x + h * head_bytes, y + h * head_bytes, angles, dim, i, sign, bf16);
}

MX_INLINE void tokens(const mx_rope_tokens *t, const bool interleaved, const bool bf16, const bool stream)
{
    const mx_rope *r = t->rope;
    int64_t dim = r->frequencies.dims;
    vf sign = vf_set1(r->inverse ? -1.0f : 1.0f);
    for (int64_t token = t->first; token < t->last; token++) {
        const float *angles = t->angles + t->row[token] * (interleaved ? 2 * dim : dim);
        const void *x = row_of(r->x, token * r->heads, r->head_dim, bf16);
        void *y = row_of_out(r->y, token * r->heads, r->head_dim, bf16);
        if (interleaved)
            token_interleaved(r, x, y, angles, sign, bf16, stream);
        else
            token_apart(r, x, y, angles, sign, bf16, stream);
        for (int64_t h = 0; h < r->heads && dim < r->head_dim && r->x != r->y; h++) {
            int64_t rest = (h * r->head_dim + dim) * (bf16 ? 2 : 4);
            memcpy((char *)y + rest, (const char *)x + rest, (size_t)(r->head_dim - dim) * (bf16 ? 2 : 4));
        }
    }
}

MX_INLINE void tokens_of(const mx_rope_tokens *t, const bool interleaved, const bool bf16)
{
    t->stream ? tokens(t, interleaved, bf16, true) : tokens(t, interleaved, bf16, false);
}

static void rotate(const mx_rope_tokens *t)
{
    if (mx_is_bf16(t->rope->dtype))
        t->rope->frequencies.interleaved ? tokens_of(t, true, true) : tokens_of(t, false, true);
    else
        t->rope->frequencies.interleaved ? tokens_of(t, true, false) : tokens_of(t, false, false);
    _mm_sfence();
}

const mx_rope_paths MX_SIMD_NAME(mx_rope) = {.rotate = rotate};
