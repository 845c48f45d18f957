/* Convolutions with thin groups, as depthwise ones: weighted sums of the rows that the elements of the kernel meet. */
#include "kernels/conv_internal.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/windows.h"

#include <immintrin.h>
#include <omp.h>
#include <string.h>

/* A pass, with the weights of its results. */
typedef struct thin {
    const mx_conv_pass *p;
    mx_tiling tiling;
    int64_t taps;       /* of all input planes together */
    bool rows;          /* planes are rows that are read where they are */
    mx_row_windows row; /* and their windows */
    int64_t *at;        /* (taps): where a tile has them */
    float *weights;     /* (groups, outputs, taps) */
    const float *start; /* (groups, outputs); NULL: 0 */
} thin;

enum { ROW_PART = 4096 }; /* results of a row that are computed together */

/* A thread's scratch: the tile's copies of planes, and the outputs. */
static int64_t scratch_floats(const mx_tiling *t, int64_t planes)
{
    return mx_round_up(planes * t->floats + t->outputs, 16);
}

static void put_row(mx_array to, int64_t first, int64_t step, const float *y, int64_t n, bool stream)
{
    if (step == 1)
        mx_kernels_current()->windows->put(y, n, to, first, stream);
    else if (mx_is_bf16(to.dtype))
        for (int64_t i = 0; i < n; i++)
            ((mx_bf16 *)to.data)[first + i * step] = mx_to_bf16(y[i]);
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)to.data)[first + i * step] = y[i];
}

/* Writes a tile's outputs to the plane that begins at element `plane`: at once where its rows are neighbours. */
static void put_tile(const mx_conv_pass *p, const mx_tile *tile, mx_array to, int64_t plane, const float *y,
                     bool stream)
{
    int64_t n = tile->j1 - tile->j0, rows = tile->i1 - tile->i0;
    int64_t first = plane + p->first + tile->i0 * p->row + tile->j0 * p->step;
    if (p->step == 1 && p->row == n) {
        put_row(to, first, 1, y, rows * n, stream);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        put_row(to, first + i * p->row, p->step, y + i * n, n, stream);
}

static void run_tile(const thin *k, int64_t item, mx_array from, mx_array to, bool stream, float *scratch)
{
    const mx_conv_pass *p = k->p;
    const mx_tiling *t = &k->tiling;
    const mx_tile tile = mx_tile_of(t, item % t->tiles);
    int64_t group = item / t->tiles, n = tile.j1 - tile.j0; /* of all images */
    float *y = scratch + p->inputs * t->floats;
    for (int64_t c = 0; c < p->inputs; c++)
        mx_tile_fill(t, &tile, from, (group * p->inputs + c) * t->w.in[0] * t->w.in[1], 0, false,
                     scratch + c * t->floats);
    for (int64_t c = 0; c < p->outputs; c++) {
        int64_t o = group % p->groups * p->outputs + c;
        mx_kernels_current()->windows->weigh(tile.i1 - tile.i0, n, scratch, t->w.stride[0] * t->row, k->taps, k->at,
                                             k->weights + o * k->taps, k->start ? k->start[o] : 0, y);
        put_tile(p, &tile, to, (group * p->outputs + c) * p->to[0] * p->to[1], y, stream);
    }
}

/* ---- rows ---- */

/* Whether windows are such that rows are read where they are; `first` and the span follow, but not the taps. */
static bool are_rows(const mx_windows *w, int64_t inputs, mx_array from, mx_array to, mx_row_windows *row)
{
    *row = (mx_row_windows){w->in[1], w->out[1], w->least[1], w->most[1] - w->least[1], 0, NULL};
    return mx_kernels_current()->windows->weigh_row && inputs == 1 && w->in[0] == 1 && w->out[0] == 1 &&
           w->least[0] == 0 && w->most[0] == 0 && w->stride[1] == 1 && row->span <= MX_ROW_SPAN &&
           from.dtype == to.dtype;
}

/* A part of a row of results. */
static void run_row(const thin *k, int64_t item, mx_array from, mx_array to, bool stream)
{
    const mx_conv_pass *p = k->p;
    int64_t parts = mx_ceil_div(k->row.out, ROW_PART), i = item % parts * ROW_PART, group = item / parts;
    for (int64_t c = 0; c < p->outputs; c++) {
        int64_t o = group % p->groups * p->outputs + c;
        mx_kernels_current()->windows->weigh_row(&k->row, i, mx_min(i + ROW_PART, k->row.out),
                                                 mx_conv_part(from, group * k->row.in), k->weights + o * k->taps,
                                                 k->start ? k->start[o] : 0,
                                                 mx_conv_part(to, (group * p->outputs + c) * k->row.out), stream);
    }
}

static mx_status run_tiles(const thin *k, mx_array from, mx_array to)
{
    const mx_conv_pass *p = k->p;
    int64_t each = scratch_floats(&k->tiling, p->inputs);
    int64_t bytes = each * (omp_in_parallel() ? 1 : omp_get_max_threads()) * (int64_t)sizeof(float);
    int64_t items = p->batch * p->groups * (k->rows ? mx_ceil_div(k->row.out, ROW_PART) : k->tiling.tiles);
    bool stream =
        mx_should_stream(p->batch * p->groups * p->outputs * p->to[0] * p->to[1] * (int64_t)mx_dtype_bytes(to.dtype));
    float *scratch;
    MX_TRY(mx_pool_alloc(bytes, (void **)&scratch));
#pragma omp parallel if (!omp_in_parallel())
    {
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; item++)
            if (k->rows)
                run_row(k, item, from, to, stream);
            else
                run_tile(k, item, from, to, stream, scratch + omp_get_thread_num() * each);
        _mm_sfence(); /* of what was streamed: once, as each fence waits for memory */
    }
    mx_pool_free(scratch, bytes);
    return MX_OK;
}

/* Where a tile, or a row, has what a tap of all input planes together meets, and its weight for each result. The taps
 * of a row ascend. */
static void set_tap(const thin *k, int64_t tap, mx_array w)
{
    const mx_conv_pass *p = k->p;
    bool turned = k->rows && p->lines[1].shift_step < 0;
    const mx_conv_tap t = mx_conv_pass_tap(p, turned ? p->taps - 1 - tap : tap % p->taps);
    int64_t plane = tap / p->taps;
    k->at[tap] = k->rows ? t.e - p->w.least[1] : plane * k->tiling.floats + mx_tile_at(&k->tiling, t.d, t.e);
    for (int64_t o = 0; o < p->groups * p->outputs; o++) {
        int64_t at = o / p->outputs * p->w_group + o % p->outputs * p->w_output + plane * p->w_input + t.weight;
        k->weights[o * k->taps + tap] = mx_get_float(w.data, at, w.dtype);
    }
}

mx_status mx_conv_thin_pass(const mx_conv_pass *p, mx_array from, mx_array w, const float *bias, mx_array to)
{
    thin k = {.p = p, .tiling = mx_tiling_of(&p->w, p->inputs, from.dtype), .taps = p->inputs * p->taps, .start = bias};
    int64_t at_bytes = mx_round_up(k.taps * (int64_t)sizeof *k.at, 64);
    int64_t bytes = at_bytes + p->groups * p->outputs * k.taps * (int64_t)sizeof *k.weights;
    MX_TRY(mx_pool_alloc(bytes, (void **)&k.at));
    k.weights = (float *)((char *)k.at + at_bytes);
    k.rows = p->step == 1 && p->taps > 0 && are_rows(&p->w, p->inputs, from, to, &k.row);
    k.row.taps = k.taps;
    k.row.at = k.at;
    for (int64_t tap = 0; tap < k.taps; tap++)
        set_tap(&k, tap, w);
    mx_status status = run_tiles(&k, from, to);
    mx_pool_free(k.at, bytes);
    return status;
}

/* ---- the gradient by w ---- */

/* Adds what the rows of a group of an image have to its sums, (group_out, taps). */
static void add_rows(const mx_conv *c, const mx_row_windows *row, int64_t group, mx_array x, mx_array dy, double *sums)
{
    for (int64_t o = 0; o < mx_conv_group_out(c); o++)
        mx_kernels_current()->windows->dots_row(row, mx_conv_part(dy, (group * mx_conv_group_out(c) + o) * row->out),
                                                mx_conv_part(x, group * row->in), sums + o * row->taps);
}

/* Adds a tile's part to the sums of a group, (group_out, taps). */
static void add_tile(const mx_conv *c, const mx_tiling *t, int64_t number, int64_t group, mx_array x, mx_array dy,
                     const int64_t *at, float *scratch, double *sums)
{
    const mx_tile tile = mx_tile_of(t, number);
    int64_t n_in = mx_conv_group_in(c), n_out = mx_conv_group_out(c), taps = mx_conv_taps(c);
    int64_t n = tile.j1 - tile.j0, rows = tile.i1 - tile.i0;
    const mx_row_copy row = {.n = n, .in = n, .step = 1};
    float *g = scratch + n_in * t->floats;
    for (int64_t k = 0; k < n_in; k++)
        mx_tile_fill(t, &tile, x, (group * n_in + k) * mx_conv_pixels(c), 0, false, scratch + k * t->floats);
    for (int64_t o = 0; o < n_out; o++) {
        int64_t from = ((group * n_out + o) * c->out[0] + tile.i0) * c->out[1] + tile.j0;
        mx_kernels_current()->windows->fill(&row, rows, mx_conv_part(dy, from), c->out[1], g, n);
        mx_kernels_current()->windows->dots(rows, n, g, n, scratch, t->w.stride[0] * t->row, taps, at, sums + o * taps);
    }
}

mx_status mx_conv_thin_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw)
{
    mx_windows windows = mx_conv_windows(c);
    mx_tiling t = mx_tiling_of(&windows, mx_conv_group_in(c), x.dtype);
    int64_t taps = mx_conv_taps(c), of_group = mx_conv_group_out(c) * taps, n = c->groups * of_group;
    int64_t most = omp_in_parallel() ? 1 : omp_get_max_threads(), each = scratch_floats(&t, mx_conv_group_in(c));
    int64_t at_bytes = mx_round_up(taps * (int64_t)sizeof(int64_t), 64);
    int64_t sums_bytes = mx_round_up(n * (int64_t)sizeof(double), 64);
    int64_t bytes = at_bytes + sums_bytes + each * most * (int64_t)sizeof(float);
    char *memory;
    MX_TRY(mx_pool_alloc(bytes, (void **)&memory));
    int64_t *at = (int64_t *)memory;
    double *sums = (double *)(memory + at_bytes);
    float *scratch = (float *)(memory + at_bytes + sums_bytes);
    memset(sums, 0, (size_t)sums_bytes);
    mx_row_windows row;
    bool rows = are_rows(&windows, mx_conv_group_in(c), x, dy, &row);
    row.taps = taps;
    row.at = at;
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t element = tap % (c->kernel[0] * c->kernel[1]), plane = tap / (c->kernel[0] * c->kernel[1]);
        int64_t d = mx_conv_at(c, 0, 0, element / c->kernel[1]), e = mx_conv_at(c, 1, 0, element % c->kernel[1]);
        at[tap] = rows ? e - windows.least[1] : plane * t.floats + mx_tile_at(&t, d, e);
    }
    /* Each thread has groups of its own and takes them image by image, as they are in memory. */
#pragma omp parallel if (most > 1)
    {
        int64_t threads = omp_get_num_threads(), own = omp_get_thread_num();
        for (int64_t image = 0; image < c->batch; image++)
            for (int64_t g = c->groups * own / threads; g < c->groups * (own + 1) / threads; g++)
                if (rows)
                    add_rows(c, &row, image * c->groups + g, x, dy, sums + g * of_group);
                else
                    for (int64_t i = 0; i < t.tiles; i++)
                        add_tile(c, &t, i, image * c->groups + g, x, dy, at, scratch + own * each, sums + g * of_group);
    }
    for (int64_t i = 0; i < n; i++)
        dw[i] = (float)sums[i];
    mx_pool_free(memory, bytes);
    return MX_OK;
}
