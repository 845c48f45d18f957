/* Codes become bf16 by shifts and tables of 16 bytes, 64 codes at a time (AVX2: 32). Reals become i8 a vector at a
 * time; the compiler makes vectors of the loops for 8-bit floats. */
#include "kernels/context.h"

#include "kernels/quantize_loops.h"
#include "kernels/simd/simd.h"

enum { RUN = 4 * VL }; /* codes in a vector */

typedef int8_t bytes __attribute__((vector_size(RUN)));
typedef uint16_t words __attribute__((vector_size(RUN)));

MX_INLINE bytes all_bytes(int x) { return (bytes){0} + (int8_t)x; }

#if MX_SIMD_512
typedef __m512i whole;
static inline bytes look_up(__m128i table, bytes i)
{
    return (bytes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (whole)i);
}
static inline words join_low(bytes low, bytes high) { return (words)_mm512_unpacklo_epi8((whole)low, (whole)high); }
static inline words join_high(bytes low, bytes high) { return (words)_mm512_unpackhi_epi8((whole)low, (whole)high); }
/* The first n (at most RUN) in the order from which join_low makes words of the first half, join_high of the others. */
static inline bytes load(const uint8_t *codes, int64_t n)
{
    __m512i x = _mm512_maskz_loadu_epi8(~(__mmask64)0 >> (RUN - n), codes);
    return (bytes)_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), x);
}
/* The first n (at most RUN) of two halves. */
static inline void store(mx_bf16 *values, words low, words high, int64_t n)
{
    __mmask64 mask = ~(__mmask64)0 >> (RUN - n);
    _mm512_mask_storeu_epi16(values, (__mmask32)mask, (whole)low);
    _mm512_mask_storeu_epi16(values + RUN / 2, (__mmask32)(mask >> RUN / 2), (whole)high);
}
#else
typedef __m256i whole;
static inline bytes look_up(__m128i table, bytes i)
{
    return (bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (whole)i);
}
static inline words join_low(bytes low, bytes high) { return (words)_mm256_unpacklo_epi8((whole)low, (whole)high); }
static inline words join_high(bytes low, bytes high) { return (words)_mm256_unpackhi_epi8((whole)low, (whole)high); }
static inline bytes load(const uint8_t *codes, int64_t n)
{
    bytes x = {0};
    memcpy(&x, codes, (size_t)n);
    return (bytes)_mm256_permute4x64_epi64((whole)x, _MM_SHUFFLE(3, 1, 2, 0));
}
static inline void store(mx_bf16 *values, words low, words high, int64_t n)
{
    memcpy(values, &low, 2 * (size_t)mx_min(n, RUN / 2));
    memcpy(values + RUN / 2, &high, 2 * (size_t)mx_max(n - RUN / 2, 0));
}
#endif

/* The halves of the bf16 of 16 codes in turn: the first of all, which are denormal, or the last before the sign bit,
 * which are special. */
typedef struct halves {
    __m128i low, high;
} halves;

MX_INLINE halves halves_from(int first, mx_dtype dtype)
{
    uint8_t low[16], high[16];
    for (int i = 0; i < 16; i++) {
        mx_bf16 value = mx_to_bf16(mx_from_code((uint8_t)(first + i), dtype));
        low[i] = (uint8_t)value;
        high[i] = (uint8_t)(value >> 8);
    }
    return (halves){_mm_loadu_si128((const __m128i *)low), _mm_loadu_si128((const __m128i *)high)};
}

MX_INLINE bytes choose(bytes mask, bytes yes, bytes no) { return (mask & yes) | (~mask & no); }

/* A normal number is its code shifted to the place of bf16's exponent, which starts from another bias: what that adds
 * is a half in the low byte where the difference of the biases is odd. */
MX_INLINE void widen_run(int64_t n, const uint8_t *codes, mx_dtype dtype, halves least, halves most, mx_bf16 *values)
{
    int mantissa = mx_dtypes[dtype].mantissa_bits, lift = 127 - mx_dtypes[dtype].exponent_bias;
    bool fnuz = dtype == MX_E4M3FNUZ || dtype == MX_E5M2FNUZ;
    bytes code = load(codes, n), size = code & all_bytes(0x7f);
    words carried = (words)size + (words)all_bytes(lift % 2 << mantissa); /* no byte exceeds 0xff */
    bytes high = (bytes)(carried >> (1 + mantissa)) & all_bytes(0xff >> (1 + mantissa));
    bytes low = (bytes)((words)size << (7 - mantissa)) & all_bytes(0xff << (7 - mantissa));
    high += all_bytes(lift / 2);
    low ^= all_bytes(lift % 2 << 7);
    bytes small = size < all_bytes(1 << mantissa), large = size >= all_bytes(0x70);
    high = choose(small, look_up(least.high, size), high);
    low = choose(small, look_up(least.low, size), low);
    if (!fnuz) {
        high = choose(large, look_up(most.high, size), high);
        low = choose(large, look_up(most.low, size), low);
    }
    high |= code & all_bytes(0x80);
    if (fnuz) { /* the only NaN */
        bytes nan = code == all_bytes(0x80);
        high |= nan;
        low |= nan & all_bytes(0xc0);
    }
    store(values, join_low(low, high), join_high(low, high), n);
}

MX_INLINE void widen_float8(int64_t rows, int64_t n, const uint8_t *codes, int64_t stride, mx_dtype dtype,
                            mx_bf16 *values)
{
    halves least = halves_from(0, dtype), most = halves_from(0x70, dtype);
    for (int64_t i = 0; i < rows; i++, codes += stride, values += n) {
        int64_t j = 0;
        for (; j + RUN <= n; j += RUN)
            widen_run(RUN, codes + j, dtype, least, most, values + j);
        if (j < n)
            widen_run(n - j, codes + j, dtype, least, most, values + j);
    }
}

static void widen(int64_t rows, int64_t n, const uint8_t *codes, int64_t stride, mx_dtype code, mx_bf16 *values)
{
    if (code == MX_E4M3)
        widen_float8(rows, n, codes, stride, MX_E4M3, values);
    else if (code == MX_E5M2)
        widen_float8(rows, n, codes, stride, MX_E5M2, values);
    else if (code == MX_E4M3FNUZ)
        widen_float8(rows, n, codes, stride, MX_E4M3FNUZ, values);
    else if (code == MX_E5M2FNUZ)
        widen_float8(rows, n, codes, stride, MX_E5M2FNUZ, values);
    for (int64_t i = 0; code == MX_I8 && i < rows; i++)
        for (int64_t j = 0; j < n; j++)
            values[i * n + j] = (mx_bf16)(mx_bits_of_float((float)(int8_t)codes[i * stride + j]) >> 16);
}

/* ---- to i8 ---- */

MX_INLINE vf load_reals(const void *x, source from, int64_t i, int64_t n)
{
    if (from == AS_BF16)
        return n >= VL ? vf_load_bf16((const mx_bf16 *)x + i) : vf_load_bf16_part((const mx_bf16 *)x + i, n);
    vf value = n >= VL ? vf_load((const float *)x + i) : vf_load_part((const float *)x + i, n);
    if (from == AS_F32)
        return value;
    vi bits = vf_bits(value), odd = vi_and(vi_shr(bits, 16), vi_set1(1)), upper = vi_set1((int32_t)0xffff0000u);
    vi quiet = vi_and(vi_or(bits, vi_set1(0x400000)), upper);
    vi rounded = vi_and(vi_add(bits, vi_add(odd, vi_set1(0x7fff))), upper);
    return vf_select(vf_is_nan(value), vi_float(quiet), vi_float(rounded));
}

/* The lowest byte of each lane. */
MX_INLINE __m128i low_bytes(vi x)
{
#if MX_SIMD_512
    return _mm512_cvtepi32_epi8(x);
#else
    x = vi_and(x, vi_set1(0xff));
    __m128i shorts = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return _mm_packus_epi16(shorts, shorts);
#endif
}

/* The codes nearest to x. A NaN passes both limits, which are the first operands. Its conversion is 0x80000000, whose
 * last byte is the code 0. */
MX_INLINE __m128i codes_of(vf x)
{
    vi code = vf_to_vi(vf_max(vf_set1(-128), vf_min(vf_set1(127), x)));
    return low_bytes(code);
}

MX_INLINE void to_i8_of(const mx_quantize_part *p, source from, const float *column, uint8_t *codes)
{
    vf inverse = vf_set1(p->inverse);
    for (int64_t i = 0; i < p->rows; i++, codes += p->stride) {
        const char *x = row_of(p, from, i);
        vf row = vf_set1(factor_of(p, i));
        for (int64_t j = 0; j < p->n; j += VL) {
            int64_t n = p->n - j;
            _mm_prefetch(x + (p->stride + j) * (from == AS_BF16 ? 2 : 4), _MM_HINT_T0); /* the next row */
            vf value = load_reals(x, from, j, n) * row;
            if (column)
                value = value * (n >= VL ? vf_load(column + j) : vf_load_part(column + j, n));
            __m128i result = codes_of(value * inverse);
            if (n >= VL)
                memcpy(codes + j, &result, VL);
            else
                memcpy(codes + j, &result, (size_t)n);
        }
    }
}

/* ---- strips of columns ---- */

enum { STRIP = MX_QUANTIZE_STRIP, STRIP_VECTORS = STRIP / VL };

MX_INLINE vi larger_of(vi a, vi b)
{
#if MX_SIMD_512
    return _mm512_max_epi32(a, b);
#else
    return _mm256_max_epi32(a, b);
#endif
}

MX_INLINE vi smaller_of(vi a, vi b)
{
#if MX_SIMD_512
    return _mm512_min_epi32(a, b);
#else
    return _mm256_min_epi32(a, b);
#endif
}

MX_INLINE void largest_of_strip(const mx_quantize_part *p, source from, const float *column, int32_t *largest)
{
    vi most[STRIP_VECTORS];
    for (int v = 0; v < STRIP_VECTORS; v++)
        most[v] = vi_load(largest + v * VL);
    for (int64_t i = 0; i < p->rows; i++) {
        const char *x = row_of(p, from, i);
        vf row = vf_set1(factor_of(p, i));
        for (int v = 0; v < STRIP_VECTORS; v++) {
            vf value = load_reals(x, from, v * VL, VL) * row;
            if (column)
                value = value * vf_load(column + v * VL);
            most[v] = larger_of(most[v], vi_and(vf_bits(value), vi_set1(0x7fffffff)));
        }
    }
    for (int v = 0; v < STRIP_VECTORS; v++)
        vi_store(largest + v * VL, most[v]);
}

static void find_each(const mx_quantize_part *p, int32_t *largest)
{
    if (p->n == STRIP)
        SPECIALIZED(largest_of_strip, p, largest);
    else
        find_largest_each(p, largest);
}

/* nearest_float8 for formats with NaNs of both signs. */
MX_INLINE __m128i float8_of(vf x, mx_dtype code)
{
    int mantissa = mx_dtypes[code].mantissa_bits, cut = 23 - mantissa, lift = 127 - mx_dtypes[code].exponent_bias;
    int least = (lift + 1) << 23, infinite = 0x7f800000;
    vi bits = vf_bits(x), size = vi_and(bits, vi_set1(0x7fffffff));
    vi near = smaller_of(size, vi_set1((int32_t)mx_bits_of_float(mx_dtypes[code].bound)));
    vi power = larger_of(vi_and(near, vi_set1(infinite)), vi_set1(least));
    vi sum = vf_bits(vi_float(near) + vi_float(vi_add(power, vi_set1(cut << 23))));
    vi result = vi_and(vi_sub(vi_add(sum, vi_shr(power, cut)), vi_set1(least >> cut)), vi_set1(0x7f));
    vf nan = vi_float(vi_set1(code == MX_E4M3 ? 0x7f : 0x7e));
    result = vf_bits(vf_select(vf_is_nan(x), nan, vi_float(result)));
    return low_bytes(vi_or(result, vi_and(vi_shr(bits, 24), vi_set1(0x80))));
}

/* Asks for the same rows of the next strip, whose columns follow. */
MX_INLINE void strip_to_codes(const mx_quantize_part *p, source from, const float *column, mx_dtype code,
                              uint8_t *codes)
{
    vf factor[STRIP_VECTORS];
    for (int v = 0; v < STRIP_VECTORS; v++)
        factor[v] = column ? vf_load(column + v * VL) : vf_set1(1);
    for (int64_t i = 0; i < p->rows; i++, codes += p->stride) {
        const char *x = row_of(p, from, i);
        vf row = vf_set1(factor_of(p, i));
        for (int line = 0; line < STRIP * (from == AS_BF16 ? 2 : 4); line += 64)
            _mm_prefetch(x + STRIP * (from == AS_BF16 ? 2 : 4) + line, _MM_HINT_T0);
        for (int v = 0; v < STRIP_VECTORS; v++) {
            vf value = load_reals(x, from, v * VL, VL) * row * factor[v];
            __m128i result = code == MX_I8 ? codes_of(value) : float8_of(value, code);
            memcpy(codes + v * VL, &result, VL);
        }
    }
}

/* False: not a strip whose only factors are those of its columns and rows, or another format. */
static bool try_strip(const mx_quantize_part *p, mx_dtype code, uint8_t *codes)
{
    if (p->n != STRIP || p->inverse != 1.0f || !p->column)
        return false;
    if (code == MX_I8)
        SPECIALIZED(strip_to_codes, p, MX_I8, codes);
    else if (code == MX_E4M3)
        SPECIALIZED(strip_to_codes, p, MX_E4M3, codes);
    else if (code == MX_E5M2)
        SPECIALIZED(strip_to_codes, p, MX_E5M2, codes);
    else
        return false;
    return true;
}

static void to_nearest(const mx_quantize_part *p, mx_dtype code, uint8_t *codes)
{
    if (try_strip(p, code, codes))
        return;
    if (code == MX_I8)
        SPECIALIZED(to_i8_of, p, codes);
    else
        round_to_codes(p, code, codes);
}

const mx_quantize_paths MX_SIMD_NAME(mx_quantize) = QUANTIZE_LOOPS(find_each, to_nearest);
