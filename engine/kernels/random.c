#include "kernels/random.h"

#include "core/element.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include <math.h>

typedef enum kind { UNIFORM, NORMAL } kind;

typedef struct job {
    kind kind;
    mx_stream s;
    float a, b; /* least and width, or mean and std */
    float greatest;
    const mx_part *part;   /* or NULL: all rows */
    int outer;             /* of the part's dimensions: those that count its rows */
    int64_t rows_n, width; /* y is so many rows of so many elements, neighbours in their stream */
    mx_array y;
    const mx_random_paths *paths;
    const mx_elementwise_paths *convert;
} job;

/* The numbers of one group that a thread has drawn last: rows of few elements share groups. */
typedef struct drawn {
    int64_t group; /* -1: none */
    float value[MX_RNG_GROUP];
} drawn;

static uint64_t group_of(mx_stream s, int64_t group) { return (uint64_t)group | (s.drawn ? 1ULL << 59 : 0); }

static void *at(mx_array v, int64_t i) { return (char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype); }

/* The numbers of a group. */
static void draw(const job *j, int64_t group, float value[MX_RNG_GROUP])
{
    uint32_t words[MX_RNG_GROUP];
    j->paths->words(j->s.seed, j->s.offset, group_of(j->s, group), words);
    if (j->kind == UNIFORM) {
        float least = j->a, width = j->b, greatest = j->greatest;
        for (int i = 0; i < MX_RNG_GROUP; i++) {
            float u = least + width * mx_rng_unit(words[i]);
            value[i] = u > greatest ? greatest : u;
        }
    } else {
        j->paths->normals(words, value);
        for (int i = 0; i < MX_RNG_GROUP; i++)
            value[i] = j->a + j->b * value[i];
    }
}

/* The element of its stream with which a row begins. */
static int64_t start_of(const job *j, int64_t row)
{
    int64_t start = 0, stride = 1;
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
    if (group != last->group)
        draw(j, group, last->value);
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
    int64_t n = j->rows_n * j->width, shift = j->part ? MX_RNG_GROUP - 1 : 0; /* the most that a row begins late */
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

/* ---- dropout ---- */

typedef struct dropout {
    mx_stream s;
    uint32_t threshold; /* a mask's bits below it are dropped */
    float scale;        /* of what is kept */
    const int32_t *rows;
    int64_t width, column;
    mx_array x, y;
    bool stream;
} dropout;

/* Whole groups: y becomes x, some of it dropped. Their lower bits are drawn where the upper ones do not decide. */
static void drop_groups(const dropout *d, uint64_t offset, int64_t group, int64_t n, mx_array x, mx_array y,
                        bool stream)
{
    const mx_random_paths *paths = mx_kernels_current()->random;
    const mx_stream s = {.seed = d->s.seed, .offset = offset};
    uint64_t number = group_of(d->s, group);
    uint32_t upper = d->threshold >> 16, ties = paths->drop(s, number, n, upper, d->scale, x, y, stream);
    for (; ties && d->threshold & 0xffff; ties &= ties - 1) {
        int64_t g = __builtin_ctz(ties);
        uint32_t words[MX_RNG_GROUP];
        paths->words(s.seed, offset, number + (uint64_t)g, words);
        for (int i = 0; i < MX_RNG_MASK_GROUP; i++)
            if ((words[i / 32 * 16 + i % 32 / 2] >> 16 * (i % 2) & 0xffff) == upper &&
                mx_rng_mask(s.seed, offset, number + (uint64_t)g, (uint64_t)i) < d->threshold)
                mx_set_float(y.data, g * MX_RNG_MASK_GROUP + i, 0, y.dtype);
    }
}

/* Groups first to before `last` of those that a row touches, counted from 0. */
static void drop_part(const dropout *d, int64_t row, int64_t first, int64_t last)
{
    enum { GROUP = MX_RNG_MASK_GROUP };
    uint64_t offset = d->s.offset + (uint64_t)(d->rows ? d->rows[row] : 0);
    int64_t bytes = (int64_t)mx_dtype_bytes(d->x.dtype), group = d->column / GROUP, start = group * GROUP - d->column;
    for (int64_t g = first, n; g < last; g += n) {
        int64_t from = start + g * GROUP; /* its first element in the row; may be before it */
        n = mx_min(last - g, (d->width - from) / GROUP);
        if (from >= 0 && n > 0) {
            int64_t i = row * d->width + from;
            drop_groups(d, offset, group + g, n, (mx_array){at(d->x, i), d->x.dtype},
                        (mx_array){at(d->y, i), d->y.dtype}, d->stream);
            continue;
        }
        char room[GROUP * sizeof(float)] = {0};
        int64_t low = mx_max(from, 0), high = mx_min(from + GROUP, d->width), i = row * d->width + low;
        char *part = room + (low - from) * bytes;
        n = 1;
        if (high <= low)
            continue;
        memcpy(part, at(d->x, i), (size_t)((high - low) * bytes));
        drop_groups(d, offset, group + g, 1, (mx_array){room, d->x.dtype}, (mx_array){room, d->x.dtype}, false);
        memcpy(at(d->y, i), part, (size_t)((high - low) * bytes));
    }
}

void mx_dropout(mx_stream s, double rate, const int32_t *rows, int64_t width, int64_t column, mx_array x, mx_array y,
                int64_t n)
{
    enum { TOGETHER = 32 }; /* groups */
    const dropout d = {.s = s,
                       .threshold = (uint32_t)fmin(rate * 0x1p32 + 0.5, 0x1p32 - 1),
                       .scale = (float)(1.0 / (1.0 - rate)),
                       .rows = rows,
                       .width = width,
                       .column = column,
                       .x = x,
                       .y = y,
                       .stream = x.data != y.data && mx_should_stream(2 * n * (int64_t)mx_dtype_bytes(x.dtype))};
    int64_t groups = mx_ceil_div(column % MX_RNG_MASK_GROUP + width, MX_RNG_MASK_GROUP);
    int64_t parts = mx_ceil_div(groups, TOGETHER), items = n > 0 ? n / width * parts : 0;
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < items; i++)
        drop_part(&d, i / parts, i % parts * TOGETHER, mx_min(groups, (i % parts + 1) * TOGETHER));
}
