/* Functions by pieces, for AVX-512: a polynomial of low degree for each of 16 pieces of the range, whose coefficients
 * are looked up in one register each. That takes less multiplying than one polynomial for the whole range. All are
 * minimax polynomials of what is left of the argument in a piece. */
#ifndef MX_KERNELS_SIMD_PIECES_H
#define MX_KERNELS_SIMD_PIECES_H

#include "kernels/simd/simd.h"

/* table[index mod 16] in each lane. */
MX_INLINE vf vf_lookup(const float table[16], vi index)
{
#if MX_SIMD_512
    return _mm512_permutexvar_ps(index, _mm512_load_ps(table));
#else
    vf low = _mm256_permutevar8x32_ps(_mm256_load_ps(table), index);
    vf high = _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), index);
    return _mm256_blendv_ps(low, high, vi_float(vi_shl(index, 28)));
#endif
}

#if MX_SIMD_512

/* The polynomial of piece `index` at r; c[0] has the coefficients of its highest power. */
MX_INLINE vf vf_piece(const float c[][16], const int degree, vi index, vf r)
{
    vf p = vf_lookup(c[0], index);
#pragma GCC unroll 8
    for (int i = 1; i <= degree; i++)
        p = vf_fma(p, r, vf_lookup(c[i], index));
    return p;
}

/* erf x, by |x| to the nearest quarter: of degree 6 (relative error 3e-9), or where `fast` of degree 4 (3e-6). The last
 * piece ends with 1. Around 0 only odd powers are left. */
MX_INLINE vf vf_erf_by_pieces(bool fast, vf x)
{
    static const _Alignas(64) float fine[][16] = {
        {0.00000000e+00f, -3.96681949e-02f, -4.97604609e-02f, -2.69219503e-02f, 4.38665692e-03f, 2.10943166e-02f,
         1.92476157e-02f, 8.99094157e-03f, 5.15536929e-04f, -2.86920392e-03f, -2.78927572e-03f, -1.66041730e-03f,
         -7.42767879e-04f, -2.66400457e-04f, -7.89522019e-05f, -1.99422921e-05f},
        {1.12210281e-01f, 7.96176344e-02f, 7.46990321e-03f, -5.27406633e-02f, -6.87711760e-02f, -4.70815375e-02f,
         -1.49950329e-02f, 6.45918259e-03f, 1.29966792e-02f, 1.06391609e-02f, 6.13203691e-03f, 2.77343323e-03f,
         1.02723402e-03f, 3.18459497e-04f, 8.37158295e-05f, 1.87994920e-05f},
        {0.00000000e+00f, 1.26964733e-01f, 1.83077395e-01f, 1.50689110e-01f, 6.91878423e-02f, -6.15698285e-03f,
         -4.45980281e-02f, -4.81025539e-02f, -3.44456173e-02f, -1.90837812e-02f, -8.62247869e-03f, -3.25807882e-03f,
         -1.04434462e-03f, -2.86536932e-04f, -6.77041680e-05f, -1.38316691e-05f},
        {-3.76122713e-01f, -3.09167445e-01f, -1.46464914e-01f, 2.67848764e-02f, 1.38365939e-01f, 1.67535022e-01f,
         1.38753012e-01f, 9.01585743e-02f, 4.82236892e-02f, 2.17246991e-02f, 8.34997557e-03f, 2.76025105e-03f,
         7.89017125e-04f, 1.95773246e-04f, 4.22829908e-05f, 7.96640234e-06f},
        {0.00000000e+00f, -2.65003443e-01f, -4.39391285e-01f, -4.82198328e-01f, -4.15107518e-01f, -2.95651406e-01f,
         -1.78395435e-01f, -9.23562422e-02f, -4.13339697e-02f, -1.60702169e-02f, -5.44571038e-03f, -1.61226257e-03f,
         -4.17759351e-04f, -9.48644520e-05f, -1.88980448e-05f, -2.63902120e-06f},
        {1.28379166e-01f, 1.06001413e+00f, 8.78782570e-01f, 6.42931104e-01f, 4.15107518e-01f, 2.36521125e-01f,
         1.18930288e-01f, 5.27749918e-02f, 2.06669848e-02f, 7.14231888e-03f, 2.17828434e-03f, 5.86277514e-04f,
         1.39253214e-04f, 2.91890974e-05f, 5.39945131e-06f, 1.04803541e-06f},
        {0.00000000e+00f, 2.76326388e-01f, 5.20499885e-01f, 7.11155653e-01f, 8.42700779e-01f, 9.22900140e-01f,
         9.66105163e-01f, 9.86671686e-01f, 9.95322287e-01f, 9.98537302e-01f, 9.99593019e-01f, 9.99899387e-01f,
         9.99977887e-01f, 9.99995708e-01f, 9.99999285e-01f, 9.99999881e-01f},
    };
    static const _Alignas(64) float rough[][16] = {
        {0.00000000e+00f, 1.23283289e-01f, 1.81629598e-01f, 1.50328696e-01f, 6.95754290e-02f, -5.48453210e-03f,
         -4.40572537e-02f, -4.78599630e-02f, -3.44337113e-02f, -1.91628523e-02f, -8.69886111e-03f, -3.30349570e-03f,
         -1.06465630e-03f, -2.93821766e-04f, -6.98631338e-05f, 0.00000000e+00f},
        {-3.74368697e-01f, -3.07636470e-01f, -1.46325111e-01f, 2.57540997e-02f, 1.37022257e-01f, 1.66615412e-01f,
         1.38460428e-01f, 9.02844891e-02f, 4.84774932e-02f, 2.19324753e-02f, 8.46973248e-03f, 2.81441468e-03f,
         8.09078047e-04f, 2.01992472e-04f, 4.39178293e-05f, 0.00000000e+00f},
        {0.00000000e+00f, -2.64955014e-01f, -4.39380169e-01f, -4.82198834e-01f, -4.15112555e-01f, -2.95657098e-01f,
         -1.78399473e-01f, -9.23579708e-02f, -4.13340367e-02f, -1.60696376e-02f, -5.44515532e-03f, -1.61193300e-03f,
         -4.17611998e-04f, -9.48115994e-05f, -1.88823815e-05f, 0.00000000e+00f},
        {1.12837577e+00f, 1.06000829e+00f, 8.78782094e-01f, 6.42935097e-01f, 4.15112764e-01f, 2.36524716e-01f,
         1.18931428e-01f, 5.27745038e-02f, 2.06659921e-02f, 7.14150723e-03f, 2.17781682e-03f, 5.86065988e-04f,
         1.39174866e-04f, 2.91648084e-05f, 5.39306711e-06f, 0.00000000e+00f},
        {0.00000000e+00f, 2.76326299e-01f, 5.20499885e-01f, 7.11155653e-01f, 8.42700779e-01f, 9.22900140e-01f,
         9.66105163e-01f, 9.86671686e-01f, 9.95322287e-01f, 9.98537302e-01f, 9.99593019e-01f, 9.99899387e-01f,
         9.99977887e-01f, 9.99995708e-01f, 9.99999285e-01f, 1.00000000e+00f},
    };
    const vf magic = vf_set1(3145728.0f); /* 1.5 * 2^21: the sum has quarters as its last bits */
    vf size = vf_min(vf_set1(3.87f), vf_abs(x)), t = size + magic, r = size - (t - magic); /* NaN survives */
    vf p;
    if (fast) {
        p = vf_piece(rough, 4, vf_bits(t), r);
    } else { /* around 0 the polynomial is that of erf r - r */
        p = vf_piece(fine, 5, vf_bits(t), r);
        p = vf_fma(p, r, vf_select(vf_ge(vf_set1(0.125f), size), size, vf_lookup(fine[6], vf_bits(t))));
    }
    return vi_float(vi_or(vf_bits(p), vi_and(vf_bits(x), vi_set1((int32_t)0x80000000))));
}

/* The tail of the normal distribution beyond t in [0, 13] as a part of e^(-t^2/2), of degree 5 (relative error 8e-8).
 * The pieces are quarters of octaves of 1 + t, from which only t near 0 loses bits. */
MX_INLINE vf vf_normal_part(vf t)
{
    static const _Alignas(64) float c[][16] = {
        {-1.99307920e-03f, -8.31488229e-04f, -3.75069911e-04f, -1.81201642e-04f, -6.86698040e-05f, -2.19665108e-05f,
         -8.20950117e-06f, -3.46797083e-06f, -1.15341777e-06f, -3.32189046e-07f, -1.17376437e-07f, 0.00000000e+00f,
         -1.99398417e-02f, -1.14059951e-02f, -6.70577399e-03f, -4.04566713e-03f},
        {8.65102559e-03f, 3.88475880e-03f, 1.88447721e-03f, 9.77573218e-04f, 4.97077301e-04f, 1.77052920e-04f,
         7.32381377e-05f, 3.40249098e-05f, 1.57917311e-05f, 5.17155013e-06f, 2.05184438e-06f, 0.00000000e+00f,
         6.07205853e-02f, 3.62906083e-02f, 2.22946052e-02f, 1.40543273e-02f},
        {-2.49347333e-02f, -1.24405399e-02f, -6.68131188e-03f, -3.82106705e-03f, -2.28156499e-03f, -9.50978021e-04f,
         -4.54009190e-04f, -2.40277557e-04f, -1.35914641e-04f, -5.36421940e-05f, -2.50262819e-05f, 0.00000000e+00f,
         -1.32754654e-01f, -8.41819122e-02f, -5.48468903e-02f, -3.66454497e-02f},
        {6.20897338e-02f, 3.51803564e-02f, 2.13100705e-02f, 1.36470636e-02f, 9.14972741e-03f, 4.60412074e-03f,
         2.59469752e-03f, 1.59026554e-03f, 1.03808427e-03f, 5.09851787e-04f, 2.85656977e-04f, 0.00000000e+00f,
         2.49986827e-01f, 1.70079648e-01f, 1.18772238e-01f, 8.49509910e-02f},
        {-1.37363240e-01f, -9.02710035e-02f, -6.27381653e-02f, -4.56139036e-02f, -3.43998745e-02f, -2.12995652e-02f,
         -1.43457074e-02f, -1.02663767e-02f, -7.68773537e-03f, -4.75314166e-03f, -3.21848318e-03f, 0.00000000e+00f,
         -3.98941994e-01f, -2.95434088e-01f, -2.24132776e-01f, -1.73767880e-01f},
        {2.61578292e-01f, 2.05780670e-01f, 1.68101996e-01f, 1.41331330e-01f, 1.21513940e-01f, 9.44106355e-02f,
         7.69193023e-02f, 6.47793114e-02f, 5.58934771e-02f, 4.37987894e-02f, 3.59748900e-02f, 0.00000000e+00f,
         5.00000000e-01f, 4.14032102e-01f, 3.49618822e-01f, 3.00232470e-01f},
    };
    vf u = t + vf_set1(1.0f), n = vi_float(vi_and(vf_bits(u), vi_set1(0x7fe00000)));
    return vf_piece(c, 5, vi_shr(vf_bits(u), 21), u - n);
}

#endif
#endif
