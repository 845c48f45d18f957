/* The emulated tiles against sums by hand, and to the bit against those of a processor that has them. */
#include "../amx/emulator.c"

#include "check.h"
#include "core/cpu.h"
#include "core/dtype.h"

#include <signal.h>
#include <sys/wait.h>

typedef struct operands {
    uint32_t a[MOST_ROWS][MOST_WORDS], b[MOST_ROWS][MOST_WORDS], c[MOST_ROWS][MOST_WORDS];
} operands;

typedef struct config {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} config;

/* Tile 0 is C, of m x n words; 1 is A, of m x k; 2 is B, of k x n. */
static config config_of(int m, int n, int k)
{
    return (config){.palette = 1,
                    .bytes = {(uint16_t)(4 * n), (uint16_t)(4 * k), (uint16_t)(4 * n)},
                    .rows = {(uint8_t)m, (uint8_t)m, (uint8_t)k}};
}

static void multiply(operands *o, int m, int n, int k, void (*product)(int c, int a, int b))
{
    config all = config_of(m, n, k);
    emulated_tile_loadconfig(&all);
    emulated_tile_loadd(0, o->c, MOST_BYTES);
    emulated_tile_loadd(1, o->a, MOST_BYTES);
    emulated_tile_loadd(2, o->b, MOST_BYTES);
    product(0, 1, 2);
    emulated_tile_stored(0, o->c, MOST_BYTES);
    emulated_tile_release();
}

static uint32_t pair_of(float even, float odd) { return (uint32_t)mx_to_bf16(odd) << 16 | mx_to_bf16(even); }

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* a by b of two words of k, onto c. */
static float product_of_words(const uint32_t a[2], const uint32_t b[2], float c)
{
    operands o = {.a = {{a[0], a[1]}}, .b = {{b[0]}, {b[1]}}, .c = {{bits_of(c)}}};
    multiply(&o, 1, 1, 2, emulated_tile_dpbf16ps);
    return flushed(o.c[0][0]);
}

static void test_order(void)
{
    const uint32_t ones[2] = {pair_of(1, 1), pair_of(1, 1)};
    /* 2^24 + 1 is rounded to 2^24, the odd products are 2 together. */
    float sum = product_of_words((uint32_t[2]){pair_of(0x1p24f, 1), pair_of(1, 1)}, ones, 0);
    CHECK(sum == 0x1p24f + 2, "even and odd products: %.1f", (double)sum);
    /* C comes last: 2^24 + 2 + 1 is a tie, and the even neighbour is 2^24 + 4. */
    sum = product_of_words((uint32_t[2]){pair_of(0x1p24f, 1), pair_of(1, 1)}, ones, 1);
    CHECK(sum == 0x1p24f + 4, "the old sum: %.1f", (double)sum);
    /* Fused: the product of 1 + 2^-7 with itself is not rounded before -1 - 2^-6 is added. */
    float near = 1 + 0x1p-7f;
    sum = product_of_words((uint32_t[2]){pair_of(-1 - 0x1p-6f, 0), pair_of(near, 0)},
                           (uint32_t[2]){pair_of(1, 0), pair_of(near, 0)}, 0);
    CHECK(sum == 0x1p-14f, "a fused product: %g", (double)sum);
}

static void test_denormals(void)
{
    const uint32_t large[2] = {pair_of(0x1p100f, 0), 0}, small[2] = {pair_of(0x1p-100f, 0), 0}, none[2] = {0, 0};
    float sum = product_of_words((uint32_t[2]){1, 0}, large, 0);
    CHECK(sum == 0, "a denormal operand gives %g", (double)sum);
    sum = product_of_words(small, (uint32_t[2]){pair_of(0x1p-40f, 0), 0}, 0);
    CHECK(sum == 0, "a denormal product is %g", (double)sum);
    operands o = {.c = {{1}}};
    multiply(&o, 1, 1, 1, emulated_tile_dpbf16ps);
    CHECK(o.c[0][0] == 0, "a denormal sum stays %x", o.c[0][0]);
    sum = product_of_words(none, none, -2.5f);
    CHECK(sum == -2.5f, "no product gives %g", (double)sum);
}

static void test_bytes(void)
{
    operands o = {.c = {{5, 6}}};
    for (int k = 0; k < 16; k++) {
        o.a[0][k] = 0x80808080u; /* -128 */
        o.b[k][0] = 0x80808080u;
        o.b[k][1] = 0x0200ff7fu; /* 127, -1, 0, 2 */
    }
    multiply(&o, 1, 2, 16, emulated_tile_dpbssd);
    CHECK(o.c[0][0] == 5 + 64 * 128 * 128, "-128 by -128: %d", (int)o.c[0][0]);
    CHECK((int32_t)o.c[0][1] == 6 - 16 * 128 * (127 - 1 + 2), "signed bytes: %d", (int)o.c[0][1]);
}

/* ---- what the processor refuses ---- */

static void not_configured(void) { emulated_tile_zero(0); }

static void two_alike(void)
{
    config all = config_of(4, 4, 4);
    emulated_tile_loadconfig(&all);
    emulated_tile_dpbf16ps(0, 1, 1);
}

static void other_sizes(void)
{
    config all = config_of(4, 4, 4);
    all.rows[2] = 5;
    emulated_tile_loadconfig(&all);
    emulated_tile_dpbssd(0, 1, 2);
}

static void too_many_rows(void)
{
    config all = config_of(17, 4, 4);
    emulated_tile_loadconfig(&all);
}

static void another_palette(void)
{
    config all = config_of(4, 4, 4);
    all.palette = 2;
    emulated_tile_loadconfig(&all);
}

static void released(void)
{
    operands o = {.c = {{0}}};
    multiply(&o, 1, 1, 1, emulated_tile_dpbf16ps);
    emulated_tile_stored(0, o.c, MOST_BYTES);
}

static void check_refused(void (*wrong)(void), const char *what)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(2);
        wrong();
        _exit(0);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT,
          "%s was not refused", what);
}

/* ---- on a processor with AMX ---- */

__attribute__((target("amx-tile,amx-bf16,amx-int8"), noinline)) static void on_processor(operands *o, const config *all,
                                                                                         bool bytes)
{
    __asm__ volatile("" ::"r"(o) : "memory");
    _tile_loadconfig(all);
    _tile_loadd(0, o->c, MOST_BYTES);
    _tile_loadd(1, o->a, MOST_BYTES);
    _tile_loadd(2, o->b, MOST_BYTES);
    if (bytes)
        _tile_dpbssd(0, 1, 2);
    else
        _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, o->c, MOST_BYTES);
    _tile_release();
}

static uint32_t random_bits(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* A pair of any finite bf16 of exponents around 1, or among the smallest. */
static uint32_t random_pair(void)
{
    uint32_t exponent = random_bits() % 8 ? 0x3f003f00u : 0x00800080u;
    return exponent + (random_bits() & 0x80ff80ffu) - (random_bits() & 0x00800080u);
}

static void test_like_processor(void)
{
    for (int i = 0; i < 2000; i++) {
        bool bytes = i % 2;
        int m = 1 + (int)(random_bits() % 16), n = 1 + (int)(random_bits() % 16), k = 1 + (int)(random_bits() % 16);
        operands ours = {.c = {{0}}};
        for (int row = 0; row < 16; row++)
            for (int word = 0; word < 16; word++) {
                ours.a[row][word] = bytes ? random_bits() : random_pair();
                ours.b[row][word] = bytes ? random_bits() : random_pair();
                ours.c[row][word] = bytes ? random_bits() : random_pair();
            }
        operands theirs = ours;
        config all = config_of(m, n, k);
        on_processor(&theirs, &all, bytes);
        multiply(&ours, m, n, k, bytes ? emulated_tile_dpbssd : emulated_tile_dpbf16ps);
        CHECK(memcmp(ours.c, theirs.c, sizeof ours.c) == 0, "%s of %d x %d x %d differs from the processor's",
              bytes ? "TDPBSSD" : "TDPBF16PS", m, n, k);
    }
}

int main(void)
{
    test_order();
    test_denormals();
    test_bytes();
    check_refused(not_configured, "a tile that is not configured");
    check_refused(two_alike, "a product of a tile with itself");
    check_refused(other_sizes, "a product of tiles that do not fit");
    check_refused(too_many_rows, "a tile of 17 rows");
    check_refused(another_palette, "palette 2");
    check_refused(released, "a tile after TILERELEASE");
    if (mx_isa_best() == MX_ISA_AMX)
        test_like_processor();
    else
        printf("SKIP: no AMX to compare the emulated tiles with\n");
    return check_done();
}
