/* NVFP4: every code, every bf16 under several scales against a reference that searches tables in f64, the random
 * Hadamard transform, and stochastic rounding; on every path of this processor, to the bit. */
#include "check.h"
#include "core/cpu.h"
#include "isas.h"
#include "kernels/nvfp4.h"
#include "kernels/nvfp4_loops.h"

#include <omp.h>
#include <string.h>

static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/* e4m3 by its definition: exponent bias 7, 3 bits of mantissa, denormals below 2^-6, only the last magnitude is NaN. */
static double e4m3(int code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    if ((code & 127) == 127)
        return (double)NAN;
    double size = exponent ? ldexp(1 + mantissa / 8.0, exponent - 7) : ldexp(mantissa / 8.0, -6);
    return code & 128 ? -size : size;
}

/* The number of the nearest of n ascending values, of two the even one. */
static int nearest(double x, int n, const double *values)
{
    int best = 0;
    for (int i = 1; i < n; i++) {
        double own = fabs(values[i] - x), other = fabs(values[best] - x);
        if (own < other || (own == other && i % 2 == 0))
            best = i;
    }
    return best;
}

/* The loops once more, for the transform alone. */
__attribute__((unused)) static const mx_fp4_paths loops = FP4_LOOPS;

static const char *isa(void) { return mx_isa_name(mx_isa_current()); }

/* Every code with every block scale, in each place of a run. */
static void test_every_code(void)
{
    static uint8_t codes[256][8], scales[256];
    static mx_bf16 values[256][16];
    int wrong = 0;
    for (int turn = 0; turn < 16; turn++) {
        for (int scale = 0; scale < 256; scale++) {
            scales[scale] = (uint8_t)scale;
            for (int pair = 0; pair < 8; pair++)
                codes[scale][pair] = (uint8_t)((2 * pair + turn) % 16 | (2 * pair + 1 + turn) % 16 << 4);
        }
        mx_fp4_widen(1, 256 * 16, &codes[0][0], scales, &values[0][0]);
        for (int scale = 0; scale < 256; scale++)
            for (int i = 0; i < 16; i++) {
                int code = (i + turn) % 16;
                double want = (code & 8 ? -1 : 1) * e2m1[code & 7] * e4m3(scale);
                float got = mx_from_bf16(values[scale][i]);
                wrong += isnan(want) ? !isnan(got) : (double)got != want;
            }
    }
    CHECK(wrong == 0, "%s: %d codes stand for other values", isa(), wrong);
}

enum { MOST = 72 * 1024 }; /* every bf16, and one more in each run */

typedef struct result {
    uint8_t codes[MOST / 2], scales[MOST / 16];
    float scale;
} result;

/* The codes of rows by the definition, for runs along rows. Only the products and quotients that the format prescribes
 * are rounded to f32. */
static int differences(const mx_bf16 *x, int64_t n, const result *r)
{
    static double scales[127];
    float largest = 0;
    int wrong = 0;
    for (int i = 0; i < 127; i++)
        scales[i] = e4m3(i);
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(mx_from_bf16(x[i])));
    float encode = fminf(2688.0f / largest, FLT_MAX), sixth = 1.0f / 6.0f;
    wrong += r->scale != largest / 2688.0f;
    for (int64_t run = 0; run < n / 16; run++) {
        float most = 0;
        for (int i = 0; i < 16; i++)
            most = fmaxf(most, fabsf(mx_from_bf16(x[run * 16 + i])));
        int scale = nearest((double)fminf(most * (encode * sixth), 448), 127, scales);
        float factor = fminf(1.0f / ((float)scales[scale] * (1.0f / encode)), FLT_MAX);
        wrong += r->scales[run] != scale;
        for (int64_t i = run * 16; i < run * 16 + 16; i++) {
            float value = mx_from_bf16(x[i]);
            int code = nearest(fmin(fabs((double)(value * factor)), 6), 8, e2m1) | (signbit(value) ? 8 : 0);
            wrong += (r->codes[i / 2] >> 4 * (i % 2) & 15) != code;
        }
    }
    return wrong;
}

/* Every finite bf16 whose magnitude is at most `largest`, in runs with magnitudes up to `anchor`. */
static void test_every_bf16(float largest, float anchor)
{
    static mx_bf16 x[MOST];
    static result r;
    int64_t n = 0;
    for (int i = 0; i < 65536; i++) {
        float value = mx_from_bf16((mx_bf16)i);
        if (!(fabsf(value) <= largest))
            continue;
        if (n % 16 == 0) {
            x[n] = mx_to_bf16(n == 0 ? largest : anchor);
            n++;
        }
        x[n++] = (mx_bf16)i;
    }
    while (n % 16)
        x[n++] = 0;
    mx_fp4_quantize_run(&(mx_fp4_quantize){
        .rows = 1, .columns = n, .x = x, .dtype = MX_BF16, .codes = r.codes, .scales = r.scales, .scale = &r.scale});
    int wrong = differences(x, n, &r);
    CHECK(wrong == 0, "%s: %d codes and scales of bf16 up to %g beside %g", isa(), wrong, (double)largest,
          (double)anchor);
}

static uint64_t random_state = 1;

static float random_real(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ((float)(uint32_t)(random_state >> 33) * 0x1p-30f - 1.0f) * (random_state >> 60 == 0 ? 30.0f : 1.0f);
}

/* Forms: with scales by 16 x 16, along columns, both, after the transform, and all with stochastic rounding. */
enum { FORMS = 10, ROWS = 80, COLUMNS = 400 };

static void quantize(int form, const void *x, mx_dtype dtype, const int32_t *numbers, result *r)
{
    memset(r, 0, sizeof *r);
    int kind = form % 5;
    mx_fp4_quantize q = {.rows = ROWS, .columns = COLUMNS, .x = x, .dtype = dtype, .codes = r->codes};
    q.scales = r->scales;
    q.scale = &r->scale;
    q.square = kind == 1 || kind == 3;
    q.trans = kind >= 2;
    q.hadamard = kind == 4;
    q.stochastic = form >= 5;
    q.seed = 7;
    q.stream = 1;
    q.numbers = numbers;
    mx_fp4_quantize_run(&q);
}

/* Codes and scales have the bits of the portable path on one thread, and f32 those of the bf16 to which it is rounded.
 */
static void test_paths_agree(void)
{
    static float x[ROWS * COLUMNS];
    static mx_bf16 narrow[ROWS * COLUMNS];
    static result fast, plain, of_bf16;
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        x[i] = random_real();
        narrow[i] = mx_to_bf16(x[i]);
    }
    mx_isa own = mx_isa_current();
    for (int form = 0; form < FORMS; form++) {
        omp_set_num_threads(3);
        quantize(form, x, MX_F32, NULL, &fast);
        quantize(form, narrow, MX_BF16, NULL, &of_bf16);
        omp_set_num_threads(1);
        (void)mx_isa_use("portable");
        quantize(form, x, MX_F32, NULL, &plain);
        (void)mx_isa_use(mx_isa_name(own));
        CHECK(memcmp(&fast, &plain, sizeof fast) == 0, "%s: form %d has other bits than on the portable path", isa(),
              form);
        CHECK(memcmp(&fast, &of_bf16, sizeof fast) == 0, "%s: form %d has other bits than bf16", isa(), form);
    }
}

/* A square's codes do not depend on the direction of lines. */
static void test_squares(void)
{
    static float x[ROWS * COLUMNS];
    static result along, across;
    int wrong = 0;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        x[i] = random_real();
    quantize(1, x, MX_F32, NULL, &along);
    quantize(3, x, MX_F32, NULL, &across);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            int a = along.codes[(i * COLUMNS + j) / 2] >> 4 * (j % 2) & 15;
            wrong += a != (across.codes[(j * ROWS + i) / 2] >> 4 * (i % 2) & 15);
            wrong += along.scales[(i * COLUMNS + j) / 16] != across.scales[(j * ROWS + i) / 16];
        }
    CHECK(wrong == 0, "%s: %d codes and scales of squares differ from those of the transpose", isa(), wrong);
}

/* The transform of the identity is H; H times its transpose is exactly the identity, and each row's signs are those of
 * a Walsh function times a sign. Small integers have exact transforms, so a product of transformed ones is the product.
 */
static void test_transform(void)
{
    static panel unit, a, b;
    memset(&unit, 0, sizeof unit);
    for (int i = 0; i < 16; i++)
        unit.x[i][i] = 1;
    fp4_transform(&unit, 16); /* unit.x[j][i]: H[i][j] */
    int wrong = 0;
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) {
            float sum = 0;
            for (int j = 0; j < 16; j++)
                sum += unit.x[j][i] * unit.x[j][k];
            wrong += sum != (float)(i == k) || fabsf(unit.x[k][i]) != 0.25f;
            wrong += unit.x[k][i] * unit.x[0][i] != (__builtin_popcount(i & k) % 2 ? -0.0625f : 0.0625f);
        }
    CHECK(wrong == 0, "%d elements of H are wrong", wrong);
    double plain[8][8] = {0}, rotated[8][8] = {0};
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            a.x[i][j] = (float)(i * 5 + j * 3 + i * j % 7) - 40;
            a.x[i][j] = fmodf(a.x[i][j], 4);
            b.x[i][j] = fmodf((float)(i * 11 - j * 7 + i * i % 5), 4);
        }
    for (int turn = 0; turn < 2; turn++) {
        for (int j = 0; j < 8; j++)
            for (int k = 0; k < 8; k++)
                for (int i = 0; i < 16; i++)
                    (turn ? rotated : plain)[j][k] += (double)a.x[i][j] * (double)b.x[i][k];
        fp4_transform(&a, 8);
        fp4_transform(&b, 8);
    }
    CHECK(memcmp(plain, rotated, sizeof plain) == 0, "a product of transformed operands is another one");
}

/* The sum of n choices between neighbours `step` apart, of which the upper has probability p, has the variance
 * n p (1 - p) step^2, at most n step^2 / 4: it is farther than 5 of its roots from the mean once in 1.7 million. The 21
 * bits of each choice move the mean by 2^-21 steps. What is a code stays one. */
static void test_stochastic(void)
{
    enum { N = 256, SIDE = 256 };
    static float x[SIDE * N];
    static uint8_t codes[SIDE * N / 2], scales[SIDE * N / 16];
    static const float reals[] = {0.1f, 0.25f, 0.4f, 0.75f, 1.1f, 1.9f, 2.2f, 2.5f, 3.9f, 4.1f,
                                  5.0f, 5.9f,  0,    0.5f,  1,    1.5f, 2,    3,    4,    6};
    float scale;
    for (size_t k = 0; k < sizeof reals / sizeof *reals; k++) {
        float real = mx_from_bf16(mx_to_bf16(reals[k]));
        for (int i = 0; i < SIDE * N; i++)
            x[i] = i % 16 == 0 ? 6 : i % 2 ? real : -real;
        x[0] = 2688; /* so that all other block scales are 1 */
        mx_fp4_quantize q = {.rows = SIDE, .columns = N, .x = x, .dtype = MX_F32, .codes = codes, .scales = scales};
        q.scale = &scale;
        q.stochastic = true;
        q.seed = 3;
        mx_fp4_quantize_run(&q);
        double sum = 0, count = 0, low = 7, high = -1;
        int signs = 0;
        for (int i = 16; i < SIDE * N; i++) {
            int code = codes[i / 2] >> 4 * (i % 2) & 15;
            if (i % 16 == 0)
                continue;
            signs += (code & 8) != (i % 2 ? 0 : 8);
            sum += e2m1[code & 7];
            low = fmin(low, e2m1[code & 7]);
            high = fmax(high, e2m1[code & 7]);
            count++;
        }
        double step = real < 2 ? 0.5 : real < 4 ? 1 : 2, off = fabs(sum - count * (double)real);
        bool is_code = e2m1[nearest((double)real, 8, e2m1)] == (double)real;
        CHECK(off <= 5 * sqrt(count / 4) * step + count * step * 0x1p-21, "%s: the mean of %g is off by %g", isa(),
              (double)real, off / count);
        CHECK(signs == 0, "%s: %g has %d times the wrong sign", isa(), (double)real, signs);
        CHECK(high - low == (is_code ? 0 : step), "%s: %g becomes %g to %g", isa(), (double)real, low, high);
    }
}

/* The choices of a row follow from its number: rows in another order have the same codes. So do not those of another
 * stream. */
static void test_numbers(void)
{
    static float x[ROWS * COLUMNS], moved[ROWS * COLUMNS];
    static result whole, other;
    int32_t numbers[ROWS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        x[i] = random_real();
    for (int i = 0; i < ROWS; i++) {
        numbers[i] = (i + 16) % ROWS;
        memcpy(moved + i * COLUMNS, x + numbers[i] * COLUMNS, sizeof(float) * COLUMNS);
    }
    quantize(5, x, MX_F32, NULL, &whole);
    quantize(5, moved, MX_F32, numbers, &other);
    int wrong = 0;
    for (int i = 0; i < ROWS; i++)
        wrong += memcmp(other.codes + i * COLUMNS / 2, whole.codes + numbers[i] * COLUMNS / 2, COLUMNS / 2) != 0;
    CHECK(wrong == 0, "%s: %d rows have other codes by their numbers", isa(), wrong);
    quantize(5, moved, MX_F32, NULL, &other);
    for (int i = 0; i < ROWS; i++)
        wrong += memcmp(other.codes + i * COLUMNS / 2, whole.codes + numbers[i] * COLUMNS / 2, COLUMNS / 2) != 0;
    CHECK(wrong == ROWS, "%s: %d rows have the same codes by other numbers", isa(), ROWS - wrong);
}

/* A NaN or an infinity is seen in the scale of the tensor, with the same bits on all paths. */
static void test_not_finite(void)
{
    static const uint32_t bad[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001};
    static float x[ROWS * COLUMNS];
    static result r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int form = 0; form < FORMS; form++) {
            memset(x, 0, sizeof x);
            x[COLUMNS + 3] = mx_float_of_bits(bad[i]);
            quantize(form, x, MX_F32, NULL, &r);
            CHECK(!isfinite(r.scale), "%s: form %d with %#x has the scale %g", isa(), form, bad[i], (double)r.scale);
        }
    memset(x, 0, sizeof x);
    quantize(0, x, MX_F32, NULL, &r);
    CHECK(r.scale == 0, "the scale of zeros is %g", (double)r.scale);
}

int main(void)
{
    static const float anchors[] = {0, 0.001f, 0.02f, 1, 3.3f, 6, 100, 2688};
    if (no_isa())
        return check_done();
    test_transform();
    for (mx_isa path = FIRST_ISA; path <= mx_isa_best(); path++) {
        CHECK(mx_isa_use(mx_isa_name(path)) == MX_OK, "%s", mx_message());
        test_every_code();
        for (size_t i = 0; i < sizeof anchors / sizeof *anchors; i++)
            for (int far = 0; far < 3; far++)
                test_every_bf16(far == 0   ? 2688
                                : far == 1 ? 1e-3f
                                           : 3e38f,
                                far == 0   ? anchors[i]
                                : far == 1 ? anchors[i] * 1e-7f
                                           : anchors[i] * 1e35f);
        test_paths_agree();
        test_squares();
        test_stochastic();
        test_numbers();
        test_not_finite();
    }
    return check_done();
}
