/* The table of dtypes, elements of any dtype, and that what a function does not take ends the program. */
#define _GNU_SOURCE
#include "check.h"

#include "core/element.h"
#include "core/f16.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_table(void)
{
    for (int d = 0; d < MX_DTYPES; d++) {
        const mx_dtype_traits *t = &mx_dtypes[d];
        mx_dtype found = MX_DTYPES;
        CHECK(t->name && t->long_name && t->safetensors && t->bytes > 0, "dtype %d has a row", d);
        CHECK(mx_dtype_parse(t->name, &found) && (int)found == d, "%s by its name", t->name);
        if (t->is_float)
            CHECK(1 + t->exponent_bits + t->mantissa_bits == 8 * (int)t->bytes, "%s: bits", t->name);
        else
            CHECK(t->lowest < t->highest && !t->is_real && !t->may_have_gradient, "%s: range", t->name);
        CHECK(t->is_real || !t->computes, "%s computes and is no real", t->name);
        CHECK(!t->computes || mx_dtype_computes(t->accumulates_in), "%s accumulates in %s", t->name,
              mx_dtype_name(t->accumulates_in));
        for (int other = 0; other < d; other++)
            CHECK(strcmp(t->long_name, mx_dtypes[other].long_name) != 0 &&
                      strcmp(t->safetensors, mx_dtypes[other].safetensors) != 0 &&
                      (t->gguf < 0 || t->gguf != mx_dtypes[other].gguf),
                  "%s and %s share a name", t->name, mx_dtypes[other].name);
    }
    mx_dtype none;
    CHECK(!mx_dtype_parse("f16", &none) && !mx_dtype_parse("", &none), "unknown names are refused");
}

/* All numbers of f16, by the definition of IEEE 754. */
static void test_f16(void)
{
    for (int bits = 0; bits < 1 << 16; bits++) {
        int exponent = bits >> 10 & 31, fraction = bits & 1023;
        double size = exponent == 31  ? (double)INFINITY
                      : exponent == 0 ? ldexp(fraction, -24)
                                      : ldexp(1024 + fraction, exponent - 25);
        float x = mx_from_f16((uint16_t)bits);
        bool right = exponent == 31 && fraction ? isnan(x) : (double)x == (bits >> 15 ? -size : size);
        CHECK(right && (signbit(x) != 0) == bits >> 15, "%04x is %g", bits, (double)x);
    }
}

static void test_list(void)
{
    char text[MX_DTYPE_LIST_BYTES];
    mx_dtype_list(mx_dtype_computes, text);
    CHECK(strcmp(text, "f32 or bf16") == 0, "%s", text);
    mx_dtype_list(mx_dtype_is_integer, text);
    CHECK(strcmp(text, "i32, u8, i8 or i64") == 0, "%s", text);
    mx_dtype_list(mx_dtype_is_real, text);
    CHECK(strcmp(text, "f32, bf16 or f64") == 0, "%s", text);
    mx_dtype_list(NULL, text);
    CHECK(strncmp(text, "f32, bf16, ", 11) == 0 && strlen(text) < sizeof text - 1, "%s", text);
}

static void test_elements(void)
{
    static const double values[] = {0, 1, -3, 100, 2.5, -0.5, 300, 1e10, -1e10};
    for (int d = 0; d < MX_DTYPES; d++)
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            const mx_dtype_traits *t = &mx_dtypes[d];
            unsigned char room[24];
            memset(room, 0x5a, sizeof room);
            mx_set_number(room, 1, values[i], (mx_dtype)d);
            double low = (double)t->lowest, high = (double)t->highest;
            double want = values[i] < low ? low : values[i] > high ? high : trunc(values[i]);
            if (t->is_float)
                want = values[i];
            double got = mx_get_number(room, 1, (mx_dtype)d), bound = ldexp(fabs(want), -1 - t->mantissa_bits);
            if (t->is_real || !t->is_float)
                CHECK(fabs(got - want) <= (t->is_float ? bound : 0), "%g as %s is %g", values[i], t->name, got);
            for (size_t b = 0; b < sizeof room; b++)
                CHECK(room[b] == 0x5a || (b >= t->bytes && b < 2 * t->bytes), "%s wrote byte %zu", t->name, b);
        }
    int32_t nan = 1;
    mx_set_number(&nan, 0, NAN, MX_I32);
    CHECK(nan == 0, "NaN as i32 is %d", nan);
}

/* What a child writes to stderr before it ends by SIGABRT; NULL: it ended otherwise. */
static const char *last_words(void (*run)(void))
{
    static char text[512];
    int out[2], status = 0;
    if (pipe(out) != 0)
        return NULL;
    pid_t child = fork();
    if (child == 0) {
        dup2(out[1], STDERR_FILENO);
        run();
        _exit(0);
    }
    close(out[1]);
    ssize_t n = read(out[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    close(out[0]);
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? text : NULL;
}

static unsigned char some[64];

static void multiply_integers(void)
{
    mx_matrix m = {some, MX_U8, 2, false};
    mx_gemm_run(&(mx_gemm){.m = 2, .n = 2, .k = 2, .a = m, .b = m, .c = {some, MX_F32, 2, false}, .alpha = 1});
}
static void exp_of_integers(void)
{
    mx_unary_forward((mx_function){.op = MX_EXP}, (mx_array){some, MX_U8}, (mx_array){some, MX_U8}, 8);
}
static void float_of_integers(void) { mx_get_float(some, 0, MX_I32); }
static void int_of_floats(void) { mx_set_int(some, 0, 1, MX_BF16); }

static void test_unexpected(void)
{
    static const struct {
        void (*run)(void);
        const char *function, *dtype;
    } cases[] = {{multiply_integers, "run", "u8"},
                 {exp_of_integers, "", "u8"},
                 {float_of_integers, "mx_get_float", "i32"},
                 {int_of_floats, "mx_set_int", "bf16"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *words = last_words(cases[i].run);
        CHECK(words && strstr(words, cases[i].function) && strstr(words, cases[i].dtype), "%s: %s", cases[i].function,
              words ? words : "went on");
    }
}

int main(void)
{
    test_table();
    test_f16();
    test_list();
    test_elements();
    test_unexpected();
    return check_done();
}
