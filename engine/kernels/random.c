#include "kernels/random.h"

#include "core/element.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include <math.h>

typedef struct job {
    mx_draw draw;
    const mx_part *part;   /* or NULL: all rows */
    int outer;             /* of the part's dimensions: those that count its rows */
    int64_t rows_n, width; /* y is so many rows of so many elements, neighbours in their stream */
    mx_array y;
    bool stream;
} job;

/* The numbers of one group that a thread has drawn last: rows of few elements share groups. */
typedef struct drawn {
    int64_t group; /* -1: none */
    float value[MX_RNG_GROUP];
} drawn;

static mx_array at(mx_array v, int64_t i)
{
    return (mx_array){(char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype), v.dtype};
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

/* The elements of a row that are in a group of which not all are. */
static void run_part(const job *j, int64_t row, int64_t start, int64_t group, drawn *last)
{
    const mx_kernels *k = mx_kernels_current();
    int64_t from = mx_max(group * MX_RNG_GROUP - start, 0), skip = start + from - group * MX_RNG_GROUP;
    int64_t n = mx_min(j->width - from, MX_RNG_GROUP - skip);
    if (n <= 0)
        return;
    if (group != last->group)
        k->random->fill(&j->draw, mx_group_of(j->draw.s, group), 1, (mx_array){last->value, MX_F32}, false);
    last->group = group;
    mx_array y = at(j->y, row * j->width + from);
    if (mx_is_bf16(y.dtype))
        k->elementwise->to_bf16(last->value + skip, y.data, n, false);
    else
        memcpy(y.data, last->value + skip, (size_t)n * sizeof *last->value);
}

/* Groups first to before `end` of those that a row touches, counted from 0. */
static void run_groups(const job *j, int64_t row, int64_t first, int64_t end, drawn *last)
{
    int64_t start = start_of(j, row), base = start / MX_RNG_GROUP;
    for (int64_t k = first, n; k < end; k += n) {
        int64_t from = (base + k) * MX_RNG_GROUP - start;
        n = mx_min(end - k, (j->width - from) / MX_RNG_GROUP);
        if (from >= 0 && n > 0) {
            mx_array y = at(j->y, row * j->width + from);
            mx_kernels_current()->random->fill(&j->draw, mx_group_of(j->draw.s, base + k), n, y, j->stream);
        } else {
            n = 1;
            run_part(j, row, start, base + k, last);
        }
    }
}

static void run(job *j)
{
    enum { TOGETHER = 256 };                                                  /* groups */
    int64_t n = j->rows_n * j->width, shift = j->part ? MX_RNG_GROUP - 1 : 0; /* the most that a row begins late */
    int64_t groups = mx_ceil_div(j->width + shift, MX_RNG_GROUP), pieces = mx_ceil_div(groups, TOGETHER);
    int64_t items = n > 0 ? j->rows_n * pieces : 0;
    j->stream = mx_should_stream(n * (int64_t)mx_dtype_bytes(j->y.dtype));
#pragma omp parallel if (n >= MX_PARALLEL_FROM)
    {
        drawn last = {.group = -1};
#pragma omp for schedule(static)
        for (int64_t i = 0; i < items; i++)
            run_groups(j, i / pieces, i % pieces * TOGETHER, mx_min(groups, (i % pieces + 1) * TOGETHER), &last);
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
    const mx_draw draw = {.kind = MX_DRAW_UNIFORM, .s = s, .a = least, .b = high - least, .greatest = greatest};
    run(&(job){.draw = draw, .rows_n = 1, .width = n, .y = y});
}

void mx_random_normal(mx_stream s, float mean, float std, mx_array y, int64_t n)
{
    const mx_draw draw = {.kind = MX_DRAW_NORMAL, .s = s, .a = mean, .b = std};
    run(&(job){.draw = draw, .rows_n = 1, .width = n, .y = y});
}

void mx_random_normal_part(mx_stream s, float mean, float std, const mx_part *part, mx_array y)
{
    const mx_draw draw = {.kind = MX_DRAW_NORMAL, .s = s, .a = mean, .b = std};
    job j = {.draw = draw, .part = part, .outer = part->n_dims, .width = 1, .y = y};
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
    const mx_draw lower = {.kind = MX_DRAW_WORDS, .s = s};
    uint64_t number = mx_group_of(d->s, group);
    uint32_t upper = d->threshold >> 16, ties = paths->drop(s, number, n, upper, d->scale, x, y, stream);
    for (; ties && d->threshold & 0xffff; ties &= ties - 1) {
        int64_t g = __builtin_ctz(ties);
        uint32_t words[MX_RNG_GROUP];
        paths->fill(&lower, number + (uint64_t)g, 1, (mx_array){words, MX_I32}, false);
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
            drop_groups(d, offset, group + g, n, at(d->x, i), at(d->y, i), d->stream);
            continue;
        }
        char room[GROUP * sizeof(float)] = {0};
        int64_t low = mx_max(from, 0), high = mx_min(from + GROUP, d->width), i = row * d->width + low;
        char *part = room + (low - from) * bytes;
        n = 1;
        if (high <= low)
            continue;
        memcpy(part, at(d->x, i).data, (size_t)((high - low) * bytes));
        drop_groups(d, offset, group + g, 1, (mx_array){room, d->x.dtype}, (mx_array){room, d->x.dtype}, false);
        memcpy(at(d->y, i).data, part, (size_t)((high - low) * bytes));
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
