/* 8-bit floats: every code, every bf16 and 2^24 f32 are what ml_dtypes makes of them (tests/golden/float8.h5). */
#include "check.h"

#include "core/element.h"
#include "io/hdf5.h"
#include "kernels/elementwise.h"

#include <string.h>
#include <zlib.h>

enum { N = 1 << 16 };

static mx_h5 *golden;

static mx_tensor *expected(mx_dtype dtype, const char *what)
{
    char name[32];
    mx_tensor *t = NULL;
    snprintf(name, sizeof name, "%s.%s", mx_dtype_name(dtype), what);
    if (mx_h5_read(golden, name, 0, -1, &t) != MX_OK) {
        printf("%s\n", mx_message());
        exit(EXIT_FAILURE);
    }
    return t;
}

static bool same_float(float a, float b) { return isnan(a) && isnan(b) ? signbit(a) == signbit(b) : a == b; }

/* To f32 and bf16, and back again: all but the payload of a NaN returns. */
static void check_values(mx_dtype dtype)
{
    mx_tensor *values = expected(dtype, "values");
    uint8_t codes[256], again[256];
    float f32[256];
    mx_bf16 bf16[256];
    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    mx_cast((mx_array){codes, dtype}, (mx_array){f32, MX_F32}, 256);
    mx_cast((mx_array){codes, dtype}, (mx_array){bf16, MX_BF16}, 256);
    mx_cast((mx_array){bf16, MX_BF16}, (mx_array){again, dtype}, 256);
    for (int i = 0; i < 256; i++) {
        float want = mx_f32(values)[i], one = (float)mx_get_number(codes, i, dtype);
        CHECK(same_float(f32[i], want) && same_float(one, want) && same_float(mx_from_bf16(bf16[i]), want),
              "%s %#x is %g, not %g", mx_dtype_name(dtype), (unsigned)i, (double)f32[i], (double)want);
        CHECK(isnan(want) || (again[i] == i && signbit(f32[i]) == signbit(want)), "%s %#x comes back as %#x",
              mx_dtype_name(dtype), (unsigned)i, again[i]);
    }
    mx_release(values);
}

/* The CRC-32 of the codes of n numbers, cast as a block and, for some, one by one. */
static int32_t crc_of(mx_array x, int n, mx_dtype dtype)
{
    static uint8_t codes[N];
    mx_cast(x, (mx_array){codes, dtype}, n);
    for (int i = 0; i < n; i += 251) {
        uint8_t one[8]; /* room for any dtype */
        mx_set_number(one, 0, mx_get_number(x.data, i, x.dtype), dtype);
        CHECK(*one == codes[i], "element %d: %#x by itself, %#x in a block", i, *one, codes[i]);
    }
    return (int32_t)crc32(0, codes, (unsigned)n);
}

static void check_all_bf16(mx_dtype dtype)
{
    mx_tensor *crcs = expected(dtype, "bf16");
    for (int upper = 0; upper < 256; upper++) {
        mx_bf16 x[256];
        for (int i = 0; i < 256; i++)
            x[i] = (mx_bf16)(upper << 8 | i);
        CHECK(crc_of((mx_array){x, MX_BF16}, 256, dtype) == ((int32_t *)mx_data(crcs))[upper], "bf16 %#x.. as %s",
              (unsigned)upper, mx_dtype_name(dtype));
    }
    mx_release(crcs);
}

static void check_samples_of_f32(mx_dtype dtype)
{
    static uint32_t x[N];
    mx_tensor *crcs = expected(dtype, "f32");
    for (uint32_t upper = 0; upper < 256; upper++) {
        for (uint32_t i = 0; i < N; i++) {
            uint32_t word = upper << 16 | i;
            x[i] = word << 8 | word * 2654435761u >> 24;
        }
        CHECK(crc_of((mx_array){x, MX_F32}, N, dtype) == ((int32_t *)mx_data(crcs))[upper], "f32 %#x.. as %s", upper,
              mx_dtype_name(dtype));
    }
    mx_release(crcs);
}

/* Around each value, and around the middle to the next one: make_golden_float8.py. */
static void check_edges(mx_dtype dtype)
{
    mx_tensor *values = expected(dtype, "values"), *codes = expected(dtype, "edges");
    const float *v = mx_f32(values);
    bool has_zeros = signbit(v[128]) && v[128] == 0; /* 0 and -0 */
    for (int i = 0; i < 128 && isfinite(v[i]); i++) {
        float next = i < 127 && isfinite(v[i + 1]) ? v[i + 1] : 2 * v[i] - v[i - 1];
        for (int k = 0; k < 6; k++) {
            float x = k < 3 ? v[i] : (v[i] + next) / 2;
            int32_t bits;
            memcpy(&bits, &x, sizeof bits);
            bits = bits + k % 3 - 1 > 0 ? bits + k % 3 - 1 : 0;
            memcpy(&x, &bits, sizeof x);
            for (int negative = 0; negative < 2; negative++) {
                float one = negative ? -x : x;
                uint8_t got, want = ((uint8_t *)mx_data(codes))[6 * i + k];
                want = want == 0 && !has_zeros ? 0 : (uint8_t)(want | negative << 7);
                mx_cast((mx_array){&one, MX_F32}, (mx_array){&got, dtype}, 1);
                CHECK(got == want, "%.9g as %s is %#x, not %#x", (double)one, mx_dtype_name(dtype), got, want);
            }
        }
    }
    mx_release(values);
    mx_release(codes);
}

int main(void)
{
    if (mx_h5_open("tests/golden/float8.h5", &golden) != MX_OK) {
        printf("%s\n", mx_message());
        return EXIT_FAILURE;
    }
    static const mx_dtype formats[] = {MX_E4M3, MX_E5M2, MX_E4M3FNUZ, MX_E5M2FNUZ};
    for (int i = 0; i < 4; i++) {
        check_values(formats[i]);
        check_all_bf16(formats[i]);
        check_samples_of_f32(formats[i]);
        check_edges(formats[i]);
    }
    mx_h5_close(golden);
    return check_done();
}
