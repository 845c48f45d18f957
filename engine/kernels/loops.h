/* Loops on integers, and choices between elements of any dtype: plain C that the compiler turns into vectors. Each path
 * includes this file once (portable/loops.c, simd/loops.c). A step is 0 for one value used throughout, else 1. */
#ifndef MX_KERNELS_LOOPS_H
#define MX_KERNELS_LOOPS_H

#include "core/dtype.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

/* y[i] = an expression of A and B, the elements of a and b. */
#define LOOP(type, expression) /* in place or apart: no iteration needs another */                                     \
    do {                                                                                                               \
        if (a_step && b_step)                                                                                          \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                       \
            {                                                                                                          \
                const type A = a[i], B = b[i];                                                                         \
                y[i] = expression;                                                                                     \
            }                                                                                                          \
        else if (a_step)                                                                                               \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                       \
            {                                                                                                          \
                const type A = a[i], B = *b;                                                                           \
                y[i] = expression;                                                                                     \
            }                                                                                                          \
        else if (b_step)                                                                                               \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                       \
            {                                                                                                          \
                const type A = *a, B = b[i];                                                                           \
                y[i] = expression;                                                                                     \
            }                                                                                                          \
        else                                                                                                           \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                       \
            {                                                                                                          \
                const type A = *a, B = *b;                                                                             \
                y[i] = expression;                                                                                     \
            }                                                                                                          \
    } while (0)

/* All integer arithmetic saturates. `wide` holds every sum, difference and product of two values of `type`. */
#define SATURATED(type, wide, x, low, high) (type)((wide)(x) < (low) ? (low) : (wide)(x) > (high) ? (high) : (wide)(x))

MX_INLINE int64_t add_i64(int64_t a, int64_t b)
{
    int64_t sum = (int64_t)((uint64_t)a + (uint64_t)b);
    return ((a ^ sum) & (b ^ sum)) < 0 ? (a >> 63) ^ INT64_MAX : sum;
}
MX_INLINE int64_t sub_i64(int64_t a, int64_t b)
{
    int64_t difference = (int64_t)((uint64_t)a - (uint64_t)b);
    return ((a ^ b) & (a ^ difference)) < 0 ? (a >> 63) ^ INT64_MAX : difference;
}
MX_INLINE int64_t mul_i64(int64_t a, int64_t b)
{
    int64_t product;
    return !__builtin_mul_overflow(a, b, &product) ? product : (a < 0) != (b < 0) ? INT64_MIN : INT64_MAX;
}
/* Rounds down. Only the least value divided by -1 saturates. */
MX_INLINE int64_t divide_down(int64_t a, int64_t b)
{
    if (b == -1)
        return a == INT64_MIN ? INT64_MAX : -a;
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* The remainder of a division rounded toward 0: it has the sign of a, or is 0. */
MX_INLINE int64_t remainder_toward_0(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }

/* That of one rounded down: it has the sign of b, or is 0. */
MX_INLINE int64_t remainder_down(int64_t a, int64_t b)
{
    int64_t r = remainder_toward_0(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/* Both for numbers of up to 53 bits with their sign, in f64, which vectors divide: a quotient that is not whole is far
 * enough from the next whole number, and what is multiplied and subtracted is exact. */
MX_INLINE double whole_quotient(int64_t a, int64_t b, bool down)
{
    double q = (double)a / (double)b;
    return down ? __builtin_floor(q) : __builtin_trunc(q);
}
MX_INLINE int64_t medium_remainder(int64_t a, int64_t b, bool down)
{
    return (int64_t)((double)a - whole_quotient(a, b, down) * (double)b);
}

/* The same for up to 32 bits. The quotient of the least value and -1 is the greatest value. */
MX_INLINE int32_t narrow_quotient(int32_t a, int32_t b)
{
    double q = __builtin_floor((double)a / (double)b), most = INT32_MAX;
    return (int32_t)(q > most ? most : q);
}
MX_INLINE int32_t narrow_remainder(int32_t a, int32_t b, bool down)
{
    double q = (double)a / (double)b;
    return (int32_t)((double)a - (down ? __builtin_floor(q) : __builtin_trunc(q)) * (double)b);
}

/* A count of the bits or more shifts all of them out. */
#define DEFINE_PAIR(name, type, unsigned_type, bits, sum, difference, product, quotient, modulo, toward_0)             \
    static void name(mx_binary op, const type *a, int a_step, const type *b, int b_step, type *y, int64_t n)           \
    {                                                                                                                  \
        switch (op) {                                                                                                  \
        case MX_ADD:                                                                                                   \
            LOOP(type, sum);                                                                                           \
            break;                                                                                                     \
        case MX_SUB:                                                                                                   \
            LOOP(type, difference);                                                                                    \
            break;                                                                                                     \
        case MX_MUL:                                                                                                   \
            LOOP(type, product);                                                                                       \
            break;                                                                                                     \
        case MX_IDIV:                                                                                                  \
            LOOP(type, quotient);                                                                                      \
            break;                                                                                                     \
        case MX_REMAINDER:                                                                                             \
            LOOP(type, (type)(modulo));                                                                                \
            break;                                                                                                     \
        case MX_FMOD:                                                                                                  \
            LOOP(type, (type)(toward_0));                                                                              \
            break;                                                                                                     \
        case MX_MAXIMUM:                                                                                               \
            LOOP(type, A > B ? A : B);                                                                                 \
            break;                                                                                                     \
        case MX_MINIMUM:                                                                                               \
            LOOP(type, A < B ? A : B);                                                                                 \
            break;                                                                                                     \
        case MX_AND:                                                                                                   \
            LOOP(type, (type)(A & B));                                                                                 \
            break;                                                                                                     \
        case MX_OR:                                                                                                    \
            LOOP(type, (type)(A | B));                                                                                 \
            break;                                                                                                     \
        case MX_XOR:                                                                                                   \
            LOOP(type, (type)(A ^ B));                                                                                 \
            break;                                                                                                     \
        case MX_SHIFT_LEFT:                                                                                            \
            LOOP(type, B >= (bits) ? (type)0 : (type)((unsigned_type)A << (B & ((bits)-1))));                          \
            break;                                                                                                     \
        default: /* MX_SHIFT_RIGHT */                                                                                  \
            LOOP(type, (type)(A >> (B >= (bits) ? (bits)-1 : B & ((bits)-1)) >> (B >= (bits))));                       \
            break;                                                                                                     \
        }                                                                                                              \
    }

#define DEFINE_NARROW(name, type, unsigned_type, bits, wide, low, high)                                                \
    DEFINE_PAIR(name, type, unsigned_type, bits, SATURATED(type, wide, (wide)A + B, low, high),                        \
                SATURATED(type, wide, (wide)A - B, low, high), SATURATED(type, wide, (wide)A *B, low, high),           \
                SATURATED(type, int32_t, narrow_quotient(A, B), low, high), narrow_remainder(A, B, true),              \
                narrow_remainder(A, B, false))
DEFINE_NARROW(pair_u8, uint8_t, uint32_t, 8, int32_t, 0, UINT8_MAX)
DEFINE_NARROW(pair_i8, int8_t, uint32_t, 8, int32_t, INT8_MIN, INT8_MAX)
DEFINE_NARROW(pair_i32, int32_t, uint32_t, 32, int64_t, INT32_MIN, INT32_MAX)
DEFINE_PAIR(pair_i64, int64_t, uint64_t, 64, add_i64(A, B), sub_i64(A, B), mul_i64(A, B), divide_down(A, B),
            remainder_down(A, B), remainder_toward_0(A, B))

/* Whether all are numbers of 53 bits with their sign. */
static bool are_medium(const int64_t *x, int64_t n)
{
    uint64_t bits = 0;
    for (int64_t i = 0; i < n; i++)
        bits |= (uint64_t)x[i] + (1ULL << 52);
    return bits >> 53 == 0;
}

/* Division of i64, in pieces: processors divide integers of 64 bits one by one. */
static void divide_i64(mx_binary op, const int64_t *a, int a_step, const int64_t *b, int b_step, int64_t *y, int64_t n)
{
    enum { PIECE = 256 };
    for (int64_t n_all = n; n_all > 0; n_all -= n, a += n * a_step, b += n * b_step, y += n) {
        n = n_all < PIECE ? n_all : PIECE;
        if (!are_medium(a, a_step ? n : 1) || !are_medium(b, b_step ? n : 1))
            pair_i64(op, a, a_step, b, b_step, y, n);
        else if (op == MX_IDIV)
            LOOP(int64_t, (int64_t)whole_quotient(A, B, true));
        else if (op == MX_REMAINDER)
            LOOP(int64_t, medium_remainder(A, B, true));
        else
            LOOP(int64_t, medium_remainder(A, B, false));
    }
}

static void loops_pair(mx_binary op, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step, void *y,
                       int64_t n)
{
    if (dtype == MX_I64 && (op == MX_IDIV || op == MX_REMAINDER || op == MX_FMOD))
        divide_i64(op, a, a_step, b, b_step, y, n);
    else if (dtype == MX_I64)
        pair_i64(op, a, a_step, b, b_step, y, n);
    else if (dtype == MX_I32)
        pair_i32(op, a, a_step, b, b_step, y, n);
    else if (dtype == MX_U8)
        pair_u8(op, a, a_step, b, b_step, y, n);
    else if (dtype == MX_I8)
        pair_i8(op, a, a_step, b, b_step, y, n);
    else
        mx_dtype_unexpected(dtype, __func__);
}

#define DEFINE_COMPARE(name, type)                                                                                     \
    static void name(mx_compare op, const type *a, int a_step, const type *b, int b_step, uint8_t *y, int64_t n)       \
    {                                                                                                                  \
        switch (op) {                                                                                                  \
        case MX_EQ:                                                                                                    \
            LOOP(type, A == B);                                                                                        \
            break;                                                                                                     \
        case MX_NE:                                                                                                    \
            LOOP(type, A != B);                                                                                        \
            break;                                                                                                     \
        case MX_LT:                                                                                                    \
            LOOP(type, A < B);                                                                                         \
            break;                                                                                                     \
        case MX_LE:                                                                                                    \
            LOOP(type, A <= B);                                                                                        \
            break;                                                                                                     \
        case MX_GT:                                                                                                    \
            LOOP(type, A > B);                                                                                         \
            break;                                                                                                     \
        default: /* MX_GE */                                                                                           \
            LOOP(type, A >= B);                                                                                        \
            break;                                                                                                     \
        }                                                                                                              \
    }
DEFINE_COMPARE(compare_u8, uint8_t)
DEFINE_COMPARE(compare_i8, int8_t)
DEFINE_COMPARE(compare_i32, int32_t)
DEFINE_COMPARE(compare_i64, int64_t)

static void loops_compare(mx_compare op, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step,
                          uint8_t *y, int64_t n)
{
    if (dtype == MX_I64)
        compare_i64(op, a, a_step, b, b_step, y, n);
    else if (dtype == MX_I32)
        compare_i32(op, a, a_step, b, b_step, y, n);
    else if (dtype == MX_U8)
        compare_u8(op, a, a_step, b, b_step, y, n);
    else if (dtype == MX_I8)
        compare_i8(op, a, a_step, b, b_step, y, n);
    else
        mx_dtype_unexpected(dtype, __func__);
}

#define DEFINE_TO_F32(name, type)                                                                                      \
    static void name(const type *x, float *y, int64_t n)                                                               \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            y[i] = (float)x[i];                                                                                        \
    }
DEFINE_TO_F32(to_f32_u8, uint8_t)
DEFINE_TO_F32(to_f32_i8, int8_t)
DEFINE_TO_F32(to_f32_i32, int32_t)
DEFINE_TO_F32(to_f32_i64, int64_t)

static void loops_to_f32(mx_dtype dtype, const void *x, float *y, int64_t n)
{
    if (dtype == MX_I64)
        to_f32_i64(x, y, n);
    else if (dtype == MX_I32)
        to_f32_i32(x, y, n);
    else if (dtype == MX_U8)
        to_f32_u8(x, y, n);
    else if (dtype == MX_I8)
        to_f32_i8(x, y, n);
    else
        mx_dtype_unexpected(dtype, __func__);
}

/* Numbers of 8 bits are bf16 without rounding. */
#define DEFINE_TO_BF16(name, type)                                                                                     \
    static void name(const type *x, mx_bf16 *y, int64_t n)                                                             \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            float real = (float)x[i];                                                                                  \
            uint32_t bits;                                                                                             \
            memcpy(&bits, &real, sizeof bits);                                                                         \
            y[i] = (mx_bf16)(bits >> 16);                                                                              \
        }                                                                                                              \
    }
DEFINE_TO_BF16(to_bf16_u8, uint8_t)
DEFINE_TO_BF16(to_bf16_i8, int8_t)

static void loops_to_bf16(mx_dtype dtype, const void *x, mx_bf16 *y, int64_t n)
{
    if (dtype == MX_U8)
        to_bf16_u8(x, y, n);
    else if (dtype == MX_I8)
        to_bf16_i8(x, y, n);
    else
        mx_dtype_unexpected(dtype, __func__);
}

#define DEFINE_SELECT(name, type)                                                                                      \
    static void name(const uint8_t *cond, int c_step, const type *a, int a_step, const type *b, int b_step, type *y,   \
                     int64_t n)                                                                                        \
    {                                                                                                                  \
        if (!c_step) { /* one of the two, unchanged */                                                                 \
            for (int64_t i = 0; i < n; i++)                                                                            \
                y[i] = *cond ? a[i * a_step] : b[i * b_step];                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        LOOP(type, cond[i] ? A : B);                                                                                   \
    }
DEFINE_SELECT(select_1, uint8_t)
DEFINE_SELECT(select_2, uint16_t)
DEFINE_SELECT(select_4, uint32_t)
DEFINE_SELECT(select_8, uint64_t)

static void loops_select(size_t bytes, const uint8_t *cond, int c_step, const void *a, int a_step, const void *b,
                         int b_step, void *y, int64_t n)
{
    if (bytes == 8)
        select_8(cond, c_step, a, a_step, b, b_step, y, n);
    else if (bytes == 4)
        select_4(cond, c_step, a, a_step, b, b_step, y, n);
    else if (bytes == 2)
        select_2(cond, c_step, a, a_step, b, b_step, y, n);
    else
        select_1(cond, c_step, a, a_step, b, b_step, y, n);
}

#endif
