/* How elementwise loops run: a step computes a few vectors at once, sweep() runs it over an array of any length. Both
 * are inlined with operation and dtype as constants, so that each pair of them has a loop of its own. */
#ifndef MX_KERNELS_SIMD_SWEEP_H
#define MX_KERNELS_SIMD_SWEEP_H

#include "kernels/simd/vmath.h"

/* What is constant in a loop. */
typedef struct kind {
    mx_function f;
    mx_pair pair;
    int vectors; /* in a step */
    bool bf16;   /* all arrays are bf16 */
    int step[2]; /* of the first two inputs: 0 for one value used throughout (binary alone reads it) */
    vf value[2]; /* that value */
} kind;

typedef struct pointers {
    const char *in[3]; /* NULL: not there */
    char *out[2];
} pointers;

/* Vectors in a step: four, or with AVX-512, whose registers suffice, twice as many of functions whose chains of
 * dependent instructions are long. Where bf16 is read, two of them hold the even and the odd places of 2 VL neighbours.
 */
enum { FEW = 4, VECTORS = MX_SIMD_512 ? 8 : 4, UNIT = VECTORS * VL };

/* Elements i to before i + k->vectors VL. */
typedef void step_fn(const kind *k, const pointers *p, int64_t i, bool stream);

MX_INLINE void get(const kind *k, const char *p, int64_t i, vf v[VECTORS])
{
    if (!p) /* a step reads only inputs that are there */
        __builtin_unreachable();
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u += 2) {
        if (k->bf16) {
            vf_split_bf16((const mx_bf16 *)p + i + u * VL, &v[u], &v[u + 1]);
        } else {
            v[u] = vf_load((const float *)p + i + u * VL);
            v[u + 1] = vf_load((const float *)p + i + (u + 1) * VL);
        }
    }
}

MX_INLINE void put_bits(char *p, bool stream, vi bits)
{
    if (stream)
        vi_stream(p, bits);
    else
        vi_store((int32_t *)p, bits);
}

/* As vf_join_bf16, but ties go away from 0: half the instructions. */
MX_INLINE vi join_near(vf even, vf odd)
{
#if defined(MX_SIMD_AVX512_BF16)
    return vf_join_bf16(even, odd);
#else
    const vi half = vi_set1(0x8000);
    vi low = vi_shr(vi_add(vf_bits(even), half), 16), high = vi_add(vf_bits(odd), half);
#if MX_SIMD_512
    return _mm512_mask_blend_epi16(0xaaaaaaaau, low, high);
#else
    return _mm256_blend_epi16(low, high, 0xaa);
#endif
#endif
}

/* bf16 is only stored here where all inputs are bf16, so that NaNs are as vf_join_bf16 needs them. `near`: the values
 * have errors anyway, so ties are rounded as is fastest. */
MX_INLINE void put_by(bool near, const kind *k, char *p, int64_t i, bool stream, const vf v[VECTORS])
{
    char *to = p + i * (k->bf16 ? 2 : 4);
#pragma GCC unroll 8
    for (int u = 0; u < k->vectors; u += 2) {
        if (k->bf16) {
            put_bits(to + 2 * u * VL, stream, near ? join_near(v[u], v[u + 1]) : vf_join_bf16(v[u], v[u + 1]));
        } else {
            put_bits(to + 4 * u * VL, stream, vf_bits(v[u]));
            put_bits(to + 4 * (u + 1) * VL, stream, vf_bits(v[u + 1]));
        }
    }
}

MX_INLINE void put(const kind *k, char *p, int64_t i, bool stream, const vf v[VECTORS])
{
    put_by(false, k, p, i, stream, v);
}

/* Elements from p to the next address that a vector may be streamed to. */
MX_INLINE int64_t to_boundary(const void *p, bool bf16)
{
    uintptr_t size = bf16 ? 2 : 4, vector = VL * 4;
    return (int64_t)((vector - (uintptr_t)p % vector) % vector / size);
}

/* Room for one unit of all arrays, for the ends that are no whole unit. */
typedef struct room {
    _Alignas(64) char in[3][UNIT * 4], out[2][UNIT * 4];
} room;

static __attribute__((noinline)) void take_in(room *r, const pointers *given, pointers *p, int64_t from, int64_t n,
                                              int64_t size)
{
    memset(r, 0, sizeof *r);
    for (int k = 0; k < 3; k++) {
        p->in[k] = r->in[k];
        if (given->in[k])
            memcpy(r->in[k], given->in[k] + from * size, (size_t)(n * size));
    }
    p->out[0] = r->out[0];
    p->out[1] = r->out[1];
}

static __attribute__((noinline)) void give_out(const room *r, const pointers *given, int64_t from, int64_t n,
                                               int64_t size)
{
    for (int k = 0; k < 2; k++)
        if (given->out[k])
            memcpy(given->out[k] + from * size, r->out[k], (size_t)(n * size));
}

/* Whole units from the first boundary on (if streamed), and the two ends by way of a room. Written as one loop over
 * these three parts so that the step is compiled once. */
MX_INLINE void sweep(step_fn *step, const kind *k, const pointers *given, int64_t n, bool stream)
{
    const int64_t size = k->bf16 ? 2 : 4, unit = k->vectors * VL;
    int64_t first = stream ? to_boundary(given->out[0], k->bf16) : 0;
    if (first > n)
        first = n;
    const int64_t last = first + (n - first) / unit * unit;
#pragma GCC unroll 1
    for (int part = 0; part < 3; part++) {
        int64_t from = part == 0 ? 0 : part == 1 ? first : last, to = part == 0 ? first : part == 1 ? last : n;
        room r;
        pointers p = *given;
        if (from == to)
            continue;
        if (part != 1)
            take_in(&r, given, &p, from, to - from, size);
        for (int64_t i = part == 1 ? from : 0, end = part == 1 ? to : to - from; i < end; i += unit) {
            for (int a = 0; a < 3; a++)
                if (given->in[a])
                    prefetch_ahead(p.in[a] + i * size, (int)(unit * size));
            step(k, &p, i, stream);
        }
        if (part != 1)
            give_out(&r, given, from, to - from, size);
    }
    if (stream)
        _mm_sfence();
}

#endif
