#include "kernels/random.h"

#include "kernels/context.h"

#include <math.h>

typedef enum kind { UNIFORM, NORMAL, DROP } kind;

typedef struct job {
    kind kind;
    mx_stream s;
    float a, b; /* least and width, mean and std, or (b) the scale of what is kept */
    float greatest;
    int32_t threshold;
    const int32_t *rows;   /* which stream each row draws from, or NULL */
    const mx_part *part;   /* or NULL: each row begins at the first element of its stream */
    int outer;             /* of the part's dimensions: those that count its rows */
    int64_t rows_n, width; /* y is so many rows of so many elements, neighbours in their stream */
    int64_t column;        /* without a part: the element of its stream with which a row begins */
    mx_array x, y;
    const mx_random_paths *paths;
    const mx_elementwise_paths *convert;
} job;

/* The numbers of one group that a thread has drawn last: rows of few elements share groups. */
typedef struct drawn {
    int64_t group; /* -1: none */
    float value[MX_RNG_GROUP];
} drawn;

static void *at(mx_array v, int64_t i) { return (char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype); }

/* The numbers of a group; or with DROP n elements of x from `first` on, some of them dropped, which belong to the
 * group's numbers from `skip` on. */
static void draw(const job *j, uint64_t offset, int64_t group, int64_t skip, int64_t first, int64_t n,
                 float value[MX_RNG_GROUP])
{
    uint32_t words[MX_RNG_GROUP];
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
        float x[MX_RNG_GROUP] = {0};
        if (mx_is_bf16(j->x.dtype))
            j->convert->to_f32(at(j->x, first), x + skip, n, false);
        else
            memcpy(x + skip, at(j->x, first), (size_t)n * sizeof *x);
        j->paths->drop(words, j->threshold, j->b, x, value);
    }
}

/* The element of its stream with which a row begins. */
static int64_t start_of(const job *j, int64_t row)
{
    int64_t start = j->column, stride = 1;
    for (int d = j->part ? j->part->n_dims - 1 : -1; d >= 0; d--) {
        int64_t size = d < j->outer ? j->part->size[d] : 1;
        start += (j->part->start[d] + row % size) * stride;
        stride *= j->part->of[d];
        row /= size;
    }
    return start;
}

/* What group number k of those that a row touches gives to it. */
static void run_group(const job *j, int64_t row, int64_t k, drawn *last)
{
    int64_t start = start_of(j, row), group = start / MX_RNG_GROUP + k;
    int64_t from = k > 0 ? group * MX_RNG_GROUP - start : 0, skip = start + from - group * MX_RNG_GROUP;
    int64_t n = j->width - from < MX_RNG_GROUP - skip ? j->width - from : MX_RNG_GROUP - skip;
    if (n <= 0)
        return;
    int64_t first = row * j->width + from;
    if (j->kind == DROP || j->rows || group != last->group)
        draw(j, j->s.offset + (uint64_t)(j->rows ? j->rows[row] : 0), group, skip, first, n, last->value);
    last->group = group;
    if (mx_is_bf16(j->y.dtype))
        j->convert->to_bf16(last->value + skip, at(j->y, first), n, false);
    else
        memcpy(at(j->y, first), last->value + skip, (size_t)n * sizeof *last->value);
}

static void run(job *j)
{
    j->paths = mx_kernels_current()->random;
    j->convert = mx_kernels_current()->elementwise;
    int64_t n = j->rows_n * j->width,
            shift = j->part || j->column > 0 ? MX_RNG_GROUP - 1 : 0; /* the most that a row begins late */
    int64_t of_row = (j->width + shift + MX_RNG_GROUP - 1) / MX_RNG_GROUP, groups = n > 0 ? j->rows_n * of_row : 0;
#pragma omp parallel if (n >= MX_PARALLEL_FROM)
    {
        drawn last = {.group = -1};
#pragma omp for schedule(static)
        for (int64_t g = 0; g < groups; g++)
            run_group(j, g / of_row, g % of_row, &last);
    }
}

/* The neighbour of x, a value of `dtype`. The bits of positive floats are in the order of the floats. */
static float next_value(float x, float towards, mx_dtype dtype)
{
    if (!mx_is_bf16(dtype))
        return nextafterf(x, towards);
    mx_bf16 bits = mx_to_bf16(x);
    if (x == 0)
        return mx_from_bf16((mx_bf16)(towards > 0 ? 0x0001 : 0x8001));
    bool grows = (x > 0) == (towards > x);
    return mx_from_bf16((mx_bf16)(grows ? bits + 1 : bits - 1));
}

static float round_to(double x, mx_dtype dtype)
{
    return mx_is_bf16(dtype) ? mx_from_bf16(mx_to_bf16((float)x)) : (float)x;
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
    run(&(job){
        .kind = UNIFORM, .s = s, .a = least, .b = high - least, .greatest = greatest, .rows_n = 1, .width = n, .y = y});
}

void mx_random_normal(mx_stream s, float mean, float std, mx_array y, int64_t n)
{
    run(&(job){.kind = NORMAL, .s = s, .a = mean, .b = std, .rows_n = 1, .width = n, .y = y});
}

void mx_random_normal_part(mx_stream s, float mean, float std, const mx_part *part, mx_array y)
{
    job j = {.kind = NORMAL, .s = s, .a = mean, .b = std, .part = part, .outer = part->n_dims, .width = 1, .y = y};
    bool whole = true; /* dimensions that are whole make one row with that before them */
    while (j.outer > 0 && whole) {
        j.outer--;
        j.width *= part->size[j.outer];
        whole = part->size[j.outer] == part->of[j.outer];
    }
    j.rows_n = 1;
    for (int d = 0; d < j.outer; d++)
        j.rows_n *= part->size[d];
    run(&j);
}

void mx_dropout(mx_stream s, double rate, const int32_t *rows, int64_t width, int64_t column, mx_array x, mx_array y,
                int64_t n)
{
    run(&(job){.kind = DROP,
               .s = s,
               .b = (float)(1.0 / (1.0 - rate)),
               .threshold = (int32_t)(rate * 0x1p24 + 0.5),
               .rows = rows,
               .rows_n = n > 0 ? n / width : 0,
               .width = width,
               .column = column,
               .x = x,
               .y = y});
}
