/* Element types. The table mx_dtypes holds the properties of each dtype; code asks for a property instead of comparing
 * dtypes. Below the table are the only definitions of the conversions between f32 and bf16. README.md explains how to
 * add a dtype. */
#ifndef MX_CORE_DTYPE_H
#define MX_CORE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum mx_dtype {
    MX_F32,
    MX_BF16,
    MX_I32,
    MX_U8,
    MX_I8,
    MX_E4M3,
    MX_E5M2,
    MX_E4M3FNUZ,
    MX_E5M2FNUZ,
    MX_F64,
    MX_I64,
    MX_DTYPES
} mx_dtype;

typedef struct mx_dtype_traits {
    const char *name;        /* in Lua, in messages and in mxlua's own files */
    const char *long_name;   /* in configs, hardware files and config.json */
    const char *safetensors; /* in the header of a safetensors file */
    int gguf;                /* number of the type in a GGUF file; -1: GGUF has none */
    size_t bytes;
    bool is_float;                    /* otherwise an integer */
    int exponent_bits, mantissa_bits; /* floats: below the sign, from high to low */
    int exponent_bias;
    int64_t lowest, highest; /* integers: the range */
    bool is_real;            /* floats: pointwise operations, products and reductions accept it */
    bool computes;           /* reals: every operation of floats accepts it */
    bool may_have_gradient;
    bool is_code; /* what quantize makes: with a scale, its values stand for reals; such codes carry their gradient */
    float bound;  /* codes: what a scale makes of the largest magnitude: the largest code, of i8 half a step more */
    mx_dtype accumulates_in; /* sums of its values are accumulated in this dtype */
} mx_dtype_traits;

/* The table is in the header, so that a property of a constant dtype is a constant in the kernels. */
static const mx_dtype_traits mx_dtypes[MX_DTYPES] = {
    [MX_F32] = {.name = "f32",
                .long_name = "float32",
                .safetensors = "F32",
                .gguf = 0,
                .bytes = 4,
                .is_float = true,
                .exponent_bits = 8,
                .mantissa_bits = 23,
                .exponent_bias = 127,
                .is_real = true,
                .computes = true,
                .may_have_gradient = true,
                .accumulates_in = MX_F32},
    [MX_BF16] = {.name = "bf16",
                 .long_name = "bfloat16",
                 .safetensors = "BF16",
                 .gguf = 30,
                 .bytes = 2,
                 .is_float = true,
                 .exponent_bits = 8,
                 .mantissa_bits = 7,
                 .exponent_bias = 127,
                 .is_real = true,
                 .computes = true,
                 .may_have_gradient = true,
                 .accumulates_in = MX_F32},
    [MX_I32] = {.name = "i32",
                .long_name = "int32",
                .safetensors = "I32",
                .gguf = 26,
                .bytes = 4,
                .lowest = INT32_MIN,
                .highest = INT32_MAX,
                .accumulates_in = MX_I32},
    [MX_U8] = {.name = "u8",
               .long_name = "uint8",
               .safetensors = "U8",
               .gguf = -1,
               .bytes = 1,
               .lowest = 0,
               .highest = UINT8_MAX,
               .accumulates_in = MX_I32},
    [MX_I8] = {.name = "i8",
               .long_name = "int8",
               .safetensors = "I8",
               .gguf = 24,
               .bytes = 1,
               .lowest = INT8_MIN,
               .highest = INT8_MAX,
               .is_code = true,
               .bound = 127.5f,
               .accumulates_in = MX_I32},
    [MX_E4M3] = {.name = "e4m3",
                 .long_name = "float8_e4m3fn",
                 .safetensors = "F8_E4M3",
                 .gguf = -1,
                 .bytes = 1,
                 .is_float = true,
                 .exponent_bits = 4,
                 .mantissa_bits = 3,
                 .exponent_bias = 7,
                 .is_code = true,
                 .bound = 448,
                 .accumulates_in = MX_F32},
    [MX_E5M2] = {.name = "e5m2",
                 .long_name = "float8_e5m2",
                 .safetensors = "F8_E5M2",
                 .gguf = -1,
                 .bytes = 1,
                 .is_float = true,
                 .exponent_bits = 5,
                 .mantissa_bits = 2,
                 .exponent_bias = 15,
                 .is_code = true,
                 .bound = 57344,
                 .accumulates_in = MX_F32},
    [MX_E4M3FNUZ] = {.name = "e4m3fnuz",
                     .long_name = "float8_e4m3fnuz",
                     .safetensors = "F8_E4M3FNUZ",
                     .gguf = -1,
                     .bytes = 1,
                     .is_float = true,
                     .exponent_bits = 4,
                     .mantissa_bits = 3,
                     .exponent_bias = 8,
                     .is_code = true,
                     .bound = 240,
                     .accumulates_in = MX_F32},
    [MX_E5M2FNUZ] = {.name = "e5m2fnuz",
                     .long_name = "float8_e5m2fnuz",
                     .safetensors = "F8_E5M2FNUZ",
                     .gguf = -1,
                     .bytes = 1,
                     .is_float = true,
                     .exponent_bits = 5,
                     .mantissa_bits = 2,
                     .exponent_bias = 16,
                     .is_code = true,
                     .bound = 57344,
                     .accumulates_in = MX_F32},
    [MX_F64] = {.name = "f64",
                .long_name = "float64",
                .safetensors = "F64",
                .gguf = 28,
                .bytes = 8,
                .is_float = true,
                .exponent_bits = 11,
                .mantissa_bits = 52,
                .exponent_bias = 1023,
                .is_real = true,
                .may_have_gradient = true,
                .accumulates_in = MX_F64},
    [MX_I64] = {.name = "i64",
                .long_name = "int64",
                .safetensors = "I64",
                .gguf = 27,
                .bytes = 8,
                .lowest = INT64_MIN,
                .highest = INT64_MAX,
                .accumulates_in = MX_I64},
};

static inline size_t mx_dtype_bytes(mx_dtype dtype) { return mx_dtypes[dtype].bytes; }
static inline const char *mx_dtype_name(mx_dtype dtype) { return mx_dtypes[dtype].name; }
static inline bool mx_dtype_is_integer(mx_dtype dtype) { return !mx_dtypes[dtype].is_float; }
static inline bool mx_dtype_is_real(mx_dtype dtype) { return mx_dtypes[dtype].is_real; }
static inline bool mx_dtype_computes(mx_dtype dtype) { return mx_dtypes[dtype].computes; }
static inline bool mx_dtype_may_have_gradient(mx_dtype dtype) { return mx_dtypes[dtype].may_have_gradient; }
static inline bool mx_dtype_is_code(mx_dtype dtype) { return mx_dtypes[dtype].is_code; }
static inline mx_dtype mx_dtype_accumulates_in(mx_dtype dtype) { return mx_dtypes[dtype].accumulates_in; }

/* Whether there is arithmetic for the dtype. Integers have separate arithmetic, which saturates. Dtypes without
 * arithmetic only store values. */
static inline bool mx_dtype_has_arithmetic(mx_dtype dtype)
{
    return mx_dtype_is_real(dtype) || mx_dtype_is_integer(dtype);
}

/* Whether one operation may mix the two dtypes of reals: f32 and bf16 mix, f64 only with itself. */
static inline bool mx_dtype_mixes(mx_dtype a, mx_dtype b) { return a == b || (a != MX_F64 && b != MX_F64); }

/* Whether the dtype can hold x: integers hold whole numbers in their range; floats round, so they hold any number. From
 * 2^53 on, where a double may stand for several whole numbers, none is an integer. */
static inline bool mx_dtype_holds(mx_dtype dtype, double x)
{
    const mx_dtype_traits *t = &mx_dtypes[dtype];
    bool whole = x > -0x1p53 && x < 0x1p53 && x == (double)(int64_t)x;
    return t->is_float || (whole && (int64_t)x >= t->lowest && (int64_t)x <= t->highest);
}

/* The value of an integer dtype nearest to x. All integer arithmetic saturates. */
static inline int64_t mx_dtype_saturate(mx_dtype dtype, int64_t x)
{
    int64_t low = mx_dtypes[dtype].lowest, high = mx_dtypes[dtype].highest;
    return x < low ? low : x > high ? high : x;
}

/* Finds the dtype with that name, "f32" and so on; false if there is none. */
bool mx_dtype_parse(const char *name, mx_dtype *dtype);

/* Lists the names of the dtypes for which `belongs` holds (NULL: of all): "f32, bf16 or i32". */
enum { MX_DTYPE_LIST_BYTES = 96 };
void mx_dtype_list(bool (*belongs)(mx_dtype), char text[MX_DTYPE_LIST_BYTES]);

/* Ends the program: `function` was given a dtype that it does not support. Operations check their inputs, so this means
 * a missing check in the engine; continuing would silently give wrong values. */
_Noreturn void mx_dtype_unexpected(mx_dtype dtype, const char *function);

/* Whether a dtype of computation is bf16 and not f32. Ends the program for all other dtypes. */
#define mx_is_bf16(dtype) mx_is_bf16_in(dtype, __func__)
static inline bool mx_is_bf16_in(mx_dtype dtype, const char *function)
{
    if (dtype == MX_BF16)
        return true;
    if (dtype != MX_F32)
        mx_dtype_unexpected(dtype, function);
    return false;
}

typedef uint16_t mx_bf16; /* the upper half of an IEEE binary32 */

static inline float mx_from_bf16(mx_bf16 h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rounds to nearest, ties to even; a NaN stays a (quiet) NaN. */
static inline mx_bf16 mx_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (mx_bf16)((bits >> 16) | 0x40u);
    return (mx_bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif
