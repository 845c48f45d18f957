#include "kernels/random.h"

#include "core/cpu.h"

#include <math.h>

static const mx_random_paths *current(void)
{
    static const mx_random_paths *const paths[MX_VECTOR_ISAS] = {
        [MX_ISA_PORTABLE] = &mx_random_portable,
        [MX_ISA_AVX2] = &mx_random_avx2,
        [MX_ISA_AVX512] = &mx_random_avx512,
        [MX_ISA_AVX512_BF16] = &mx_random_avx512_bf16,
    };
    return paths[mx_isa_vectors()];
}

typedef enum kind { UNIFORM, NORMAL, DROP } kind;

typedef struct job {
    kind kind;
    mx_stream s;
    float a, b; /* least and width, mean and std, or (b) the scale of what is kept */
    float greatest;
    int32_t threshold;
    const int32_t *rows; /* which stream each row of `width` elements draws from, or NULL */
    int64_t width;
    mx_array x, y;
    const mx_random_paths *paths;
    const mx_elementwise_paths *convert;
} job;

static void *at(mx_array v, int64_t i) { return (char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype); }

/* One group of up to 64 numbers of a stream, of which n are wanted, for the elements from `first` on. */
static void run_group(const job *j, uint64_t offset, int64_t group, int64_t first, int64_t n)
{
    uint32_t words[MX_RNG_GROUP];
    float x[MX_RNG_GROUP] = {0}, value[MX_RNG_GROUP];
    j->paths->words(j->s.seed, offset, (uint64_t)group | (j->s.drawn ? 1ULL << 59 : 0), words);
    if (j->kind == UNIFORM) {
        float least = j->a, width = j->b, greatest = j->greatest;
        for (int i = 0; i < MX_RNG_GROUP; i++) {
            float u = least + width * mx_rng_unit(words[i]);
            value[i] = u > greatest ? greatest : u;
        }
    } else if (j->kind == NORMAL) {
        j->paths->normals(words, value);
        for (int i = 0; i < MX_RNG_GROUP; i++)
            value[i] = j->a + j->b * value[i];
    } else {
        if (j->x.dtype == MX_BF16)
            j->convert->to_f32(at(j->x, first), x, n, false);
        else
            memcpy(x, at(j->x, first), (size_t)n * sizeof *x);
        j->paths->drop(words, j->threshold, j->b, x, value);
    }
    if (j->y.dtype == MX_BF16)
        j->convert->to_bf16(value, at(j->y, first), n, false);
    else
        memcpy(at(j->y, first), value, (size_t)n * sizeof *value);
}

/* n elements in rows of j->width. */
static void run(job *j, int64_t n)
{
    j->paths = current();
    j->convert = mx_elementwise_current();
    int64_t width = j->width, of_row = (width + MX_RNG_GROUP - 1) / MX_RNG_GROUP;
    int64_t groups = n > 0 ? n / width * of_row : 0;
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t g = 0; g < groups; g++) {
        int64_t row = g / of_row, group = g % of_row, start = group * MX_RNG_GROUP;
        uint64_t offset = j->s.offset + (uint64_t)(j->rows ? j->rows[row] : 0);
        run_group(j, offset, group, row * width + start, width - start < MX_RNG_GROUP ? width - start : MX_RNG_GROUP);
    }
}

/* The neighbour of x, a value of `dtype`. The bits of positive floats are in the order of the floats. */
static float next_value(float x, float towards, mx_dtype dtype)
{
    if (dtype == MX_F32)
        return nextafterf(x, towards);
    mx_bf16 bits = mx_to_bf16(x);
    if (x == 0)
        return mx_from_bf16((mx_bf16)(towards > 0 ? 0x0001 : 0x8001));
    bool grows = (x > 0) == (towards > x);
    return mx_from_bf16((mx_bf16)(grows ? bits + 1 : bits - 1));
}

static float round_to(double x, mx_dtype dtype)
{
    return dtype == MX_F32 ? (float)x : mx_from_bf16(mx_to_bf16((float)x));
}

bool mx_uniform_range(double low, double high, mx_dtype dtype, float *least, float *greatest)
{
    if (!isfinite((float)low) || !isfinite((float)high) || !isfinite((float)high - (float)low) || !(low < high))
        return false;
    *least = round_to(low, dtype); /* to nearest: at most one step on the wrong side */
    if (*least < low)
        *least = next_value(*least, INFINITY, dtype);
    *greatest = round_to(high, dtype);
    if (*greatest >= high)
        *greatest = next_value(*greatest, -INFINITY, dtype);
    return *least <= *greatest;
}

void mx_random_uniform(mx_stream s, float least, float greatest, float high, mx_array y, int64_t n)
{
    run(&(job){.kind = UNIFORM, .s = s, .a = least, .b = high - least, .greatest = greatest, .width = n, .y = y}, n);
}

void mx_random_normal(mx_stream s, float mean, float std, mx_array y, int64_t n)
{
    run(&(job){.kind = NORMAL, .s = s, .a = mean, .b = std, .width = n, .y = y}, n);
}

void mx_dropout(mx_stream s, double rate, const int32_t *rows, int64_t width, mx_array x, mx_array y, int64_t n)
{
    run(&(job){.kind = DROP,
               .s = s,
               .b = (float)(1.0 / (1.0 - rate)),
               .threshold = (int32_t)(rate * 0x1p24 + 0.5),
               .rows = rows,
               .width = width,
               .x = x,
               .y = y},
        n);
}
