/* Elementwise functions: of one array, gated pairs, casts, and of arrays that broadcast against each other.
 *
 * f32 and bf16 may be mixed: everything is computed in f32 and each result is rounded once. Where one array is f64, all
 * floats are, and everything is computed in f64. An output may be an input
 * of the same dtype (in place), but may not overlap one otherwise. Large outputs that are not read are written past
 * the caches. Nothing here fails or allocates. Work is split among OpenMP threads from about 64 Ki elements on; an
 * element's value never depends on the split. NaN inputs give NaN, except where a comment says otherwise. */
#ifndef MX_KERNELS_ELEMENTWISE_H
#define MX_KERNELS_ELEMENTWISE_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mx_array {
    void *data;
    mx_dtype dtype;
} mx_array;

/* ---- functions of one array ---- */

typedef enum mx_unary {
    MX_EXP,
    MX_LOG,
    MX_SQRT,
    MX_RSQRT,
    MX_ABS,
    MX_TANH,
    MX_SIGMOID,
    MX_SQUARE,
    MX_SIN,
    MX_COS,
    MX_AFFINE, /* p0 x + p1 */
    MX_POW,    /* x ^ p0 */
    MX_RELU,
    MX_GELU_TANH,
    MX_GELU_ERF,
    MX_SILU,
    MX_ERF,
    MX_LOG1P,
    MX_EXPM1,
    MX_FLOOR,
    MX_CEIL,
    MX_ROUND,      /* ties to even */
    MX_SIGN,       /* 0 at 0 */
    MX_SOFTPLUS,   /* ln(1 + e^(p0 x)) / p0 */
    MX_LEAKY_RELU, /* p0 x below 0 */
    MX_ELU,        /* p0 (e^x - 1) below 0 */
    MX_CLAMP,      /* between p0 and p1 */
    MX_TAN,
    MX_ASIN,
    MX_ACOS,
    MX_ATAN,
    MX_SINH,
    MX_COSH,
    MX_ASINH,
    MX_ACOSH,
    MX_ATANH,
    MX_UNARIES
} mx_unary;

typedef struct mx_function {
    mx_unary op;
    double p0, p1;
} mx_function;

/* y = f(x), n elements; reals. exp overflows to inf, log gives -inf at 0 and NaN below (denormals count as 0);
 * gelu and silu give 0 or a value below 1e-26 in magnitude at -inf. */
void mx_unary_forward(mx_function f, mx_array x, mx_array y, int64_t n);

/* dx = dy f'. `v` holds f's output y where mx_unary_reads_output(op), else its input x. */
void mx_unary_backward(mx_function f, mx_array v, mx_array dy, mx_array dx, int64_t n);
bool mx_unary_reads_output(mx_unary op);

/* y = act(gate) * up, and both gradients in one pass. act is MX_RELU, MX_GELU_TANH, MX_GELU_ERF or MX_SILU. MX_SILU
 * with a limit p0 > 0 is the clamped SwiGLU of GPT-OSS: with g = min(gate, p0) and u = up between -p0 and p0, y = g
 * sigmoid(1.702 g) (u + 1). */
void mx_gated_forward(mx_function act, mx_array gate, mx_array up, mx_array y, int64_t n);
void mx_gated_backward(mx_function act, mx_array gate, mx_array up, mx_array dy, mx_array dgate, mx_array dup,
                       int64_t n);

/* y = x in y's dtype, any to any. Float to integer rounds toward zero and saturates, NaN gives 0; integer to integer
 * saturates; integers and f64 become bf16 by way of f32. */
void mx_cast(mx_array x, mx_array y, int64_t n);

/* y = scale x + shift for integers of one dtype; scale and shift are within the range of i32, or of i64 for i64.
 * Saturates. */
void mx_affine_int(mx_array x, mx_array y, int64_t scale, int64_t shift, int64_t n);

/* y = x between low and high, for integers of one dtype. */
void mx_clamp_int(mx_array x, mx_array y, int64_t low, int64_t high, int64_t n);

void mx_add_to(mx_array c, mx_array x, int64_t n);                /* c += x; reals */
void mx_fill(mx_array y, double value, int64_t n);                /* any dtype; integers as mx_cast */
void mx_arange(mx_array y, double start, double step, int64_t n); /* start + i step, computed in f64; as mx_cast */

/* ---- broadcasting ---- */

enum { MX_BROADCAST_DIMS = 8, MX_BROADCAST_INPUTS = 3 };

/* How up to three arrays are walked for a dense output. Neighbouring dimensions are joined where all arrays allow it;
 * in the last one that is left an array steps by 0 or 1. */
typedef struct mx_broadcast {
    int n_dims; /* at least 1 */
    int64_t count;
    int64_t size[MX_BROADCAST_DIMS];
    int64_t stride[MX_BROADCAST_INPUTS][MX_BROADCAST_DIMS]; /* in elements */
} mx_broadcast;

/* The sizes of the output of arrays with in_dims[k] dimensions in_size[k], by numpy's rule; false when they do not fit.
 */
bool mx_broadcast_sizes(int n_in, const int *in_dims, const int64_t *const *in_size, int *n_dims, int64_t *size);
void mx_broadcast_plan(mx_broadcast *plan, int n_in, const int *in_dims, const int64_t *const *in_size, int n_dims,
                       const int64_t *size);

typedef enum mx_binary {
    MX_ADD,
    MX_SUB,
    MX_MUL,
    MX_DIV,
    MX_MAXIMUM,
    MX_MINIMUM,
    MX_POWER,
    MX_ADD_SCALED, /* a + p b */
    MX_LERP,       /* a + p (b - a) */
    MX_ATAN2,      /* the angle of the point (b, a) */
    MX_REMAINDER,  /* of a / b rounded down, so with the sign of b; integers, too */
    MX_FMOD,       /* of a / b rounded toward 0, so with the sign of a; integers, too */
    /* Losses of a prediction a and a target b. */
    MX_SQUARED, /* (a - b)^2 */
    MX_ABSOLUTE,
    MX_HUBER,          /* d^2 / 2 for d = |a - b| up to p, else p (d - p / 2) */
    MX_BCE,            /* of the probability sigmoid(a): ln(1 + e^a) - a b */
    MX_DIVERGENCE,     /* of the log-probability a: b (ln b - a), 0 at b = 0 */
    MX_DIVERGENCE_LOG, /* the same of the log-probability b: e^b (b - a) */
    /* For integers. */
    MX_IDIV,
    MX_AND,
    MX_OR,
    MX_XOR,
    MX_SHIFT_LEFT,
    MX_SHIFT_RIGHT,
    MX_BINARIES
} mx_binary;

typedef struct mx_pair {
    mx_binary op;
    double p;
} mx_pair;

/* y = a op b. Floats, or all three of one integer dtype: these saturate. Where y is a float, a or b may be an integer,
 * which is converted first. MX_DIV and MX_ATAN2 are for floats; MX_IDIV is for integers and rounds down. The maximum
 * and minimum of anything and NaN is NaN. Returns -1; or the first element of b that divides integers and is 0, or that
 * shifts and is below 0: then y is undefined. */
int64_t mx_binary_forward(mx_pair f, const mx_broadcast *plan, mx_array a, mx_array b, mx_array y);

/* The sum of (a op b) over n elements of arrays of one shape, accumulated in f64 from pieces of fixed size. y a float;
 * a or b as above. MX_ERR_MEMORY without memory for the sums of the pieces. */
mx_status mx_binary_sum(mx_pair f, mx_array a, mx_array b, int64_t n, double *sum);

/* y = dy times the derivative of (a op b) by b (by_b) or by a; of maximum and minimum half each at a tie. Not for
 * MX_ADD, MX_SUB, MX_MUL, MX_ADD_SCALED and integers. The plan's three inputs are a, b, dy; floats, or a or b an
 * integer. */
void mx_binary_backward(mx_pair f, bool by_b, const mx_broadcast *plan, mx_array a, mx_array b, mx_array dy,
                        mx_array y);

/* MX_FINITE: whether a is neither infinite nor NaN; b is not read. */
typedef enum mx_compare { MX_EQ, MX_NE, MX_LT, MX_LE, MX_GT, MX_GE, MX_FINITE, MX_COMPARES } mx_compare;

/* y = 1 where a op b, else 0, as u8. Floats, or one integer dtype. With NaN all but ne are 0. */
void mx_compare_forward(mx_compare op, const mx_broadcast *plan, mx_array a, mx_array b, uint8_t *y);

/* y = a where the u8 is not 0, else b; bits unchanged where the dtype is y's, as a is; b is y's dtype or, for a float
 * y, either float. The plan's inputs are cond, a, b. */
void mx_where_forward(const mx_broadcast *plan, const uint8_t *cond, mx_array a, mx_array b, mx_array y);

/* ---- the loops for one instruction set, on one thread ---- */

/* Arrays of one call are of `dtype`, f32 or bf16, or as said. stream: past the caches; of copy, until a store fence. */
typedef struct mx_elementwise_paths {
    void (*unary)(mx_function f, mx_dtype dtype, const void *x, void *y, int64_t n, bool stream);
    void (*unary_grad)(mx_function f, mx_dtype dtype, const void *v, const void *dy, void *dx, int64_t n, bool stream);
    void (*gated)(mx_function act, mx_dtype dtype, const void *gate, const void *up, void *y, int64_t n, bool stream);
    void (*gated_grad)(mx_function act, mx_dtype dtype, const void *gate, const void *up, const void *dy, void *dgate,
                       void *dup, int64_t n, bool stream);
    void (*to_f32)(const mx_bf16 *x, float *y, int64_t n, bool stream);
    void (*to_bf16)(const float *x, mx_bf16 *y, int64_t n, bool stream);
    void (*copy)(const void *x, void *y, int64_t bytes, bool stream);
    void (*add_to)(mx_array c, mx_array x, int64_t n);
} mx_elementwise_paths;

/* A step of 0 stands for one value used throughout. */
typedef struct mx_pair_paths {
    void (*binary)(mx_pair f, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step, void *y, int64_t n,
                   bool stream);
    void (*binary_grad)(mx_pair f, bool by_b, const float *a, int a_step, const float *b, int b_step, const float *dy,
                        int dy_step, float *y, int64_t n);
    /* Arrays are of `dtype`, f32 or bf16; a value used throughout is f32. */
    void (*compare)(mx_compare op, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step, uint8_t *y,
                    int64_t n);
    /* The sum of a loss (MX_SQUARED and what follows it) over n elements of two arrays of f32, or of bf16. */
    float (*sum)(mx_pair f, mx_dtype dtype, const void *a, const void *b, int64_t n);
} mx_pair_paths;

/* For integers of one dtype; select: y = a where cond is not 0, else b, for elements of so many bytes; to_f32: rounded;
 * to_bf16: of u8 and i8, which are exact. */
typedef struct mx_loop_paths {
    void (*pair)(mx_binary op, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step, void *y,
                 int64_t n);
    void (*compare)(mx_compare op, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step, uint8_t *y,
                    int64_t n);
    void (*select)(size_t bytes, const uint8_t *cond, int c_step, const void *a, int a_step, const void *b, int b_step,
                   void *y, int64_t n);
    void (*to_f32)(mx_dtype dtype, const void *x, float *y, int64_t n);
    void (*to_bf16)(mx_dtype dtype, const void *x, mx_bf16 *y, int64_t n);
} mx_loop_paths;

/* Whether a call that moves `bytes` in all should write past the caches. */
bool mx_should_stream(int64_t bytes);

/* Elements per piece of work, and from how many on threads share it. */
enum { MX_CHUNK = 16384, MX_PARALLEL_FROM = 65536 };

#endif
