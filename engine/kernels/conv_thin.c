/* Convolutions with thin groups, as depthwise ones: weighted sums of the rows that the elements of the kernel meet. */
#include "kernels/conv_internal.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/windows.h"

#include <omp.h>
#include <string.h>

/* Weighted sums over windows: each of `outputs` planes of a group from all of its `inputs` planes. Forward has one such
 * pass. The gradient by x has one for each remainder of its rows and columns by the stride, over dy. */
typedef struct pass {
    mx_tiling tiling;
    int64_t batch, groups, inputs, outputs;
    int64_t taps;         /* of all input planes together */
    int64_t *at;          /* (taps): where a tile has them */
    float *weights;       /* (groups, outputs, taps) */
    const float *start;   /* (groups, outputs); NULL: 0 */
    int64_t to[2];        /* the sizes of a plane of the result */
    int64_t first, row;   /* the place there of output (0, 0), and from row to row; */
    int64_t step;         /* from output to output */
    int64_t memory_bytes; /* of at and weights */
} pass;

static mx_status pass_alloc(pass *p)
{
    int64_t at = mx_round_up(p->taps * (int64_t)sizeof *p->at, 64);
    p->memory_bytes = at + p->groups * p->outputs * p->taps * (int64_t)sizeof *p->weights;
    MX_TRY(mx_pool_alloc(p->memory_bytes, (void **)&p->at));
    p->weights = (float *)((char *)p->at + at);
    return MX_OK;
}

/* A thread's scratch: the tile's copies of planes, and the outputs. */
static int64_t scratch_floats(const mx_tiling *t, int64_t planes)
{
    return mx_round_up(planes * t->floats + t->outputs, 16);
}

static void put_row(mx_array to, int64_t first, int64_t step, const float *y, int64_t n, bool stream)
{
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    if (step == 1 && mx_is_bf16(to.dtype))
        paths->to_bf16(y, (mx_bf16 *)to.data + first, n, stream);
    else if (step == 1)
        paths->copy(y, (float *)to.data + first, n * (int64_t)sizeof *y, stream);
    else if (mx_is_bf16(to.dtype))
        for (int64_t i = 0; i < n; i++)
            ((mx_bf16 *)to.data)[first + i * step] = mx_to_bf16(y[i]);
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)to.data)[first + i * step] = y[i];
}

/* Writes a tile's outputs to the plane that begins at element `plane`: at once where its rows are neighbours. */
static void put_tile(const pass *p, const mx_tile *tile, mx_array to, int64_t plane, const float *y, bool stream)
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

static void run_tile(const pass *p, int64_t item, mx_array from, mx_array to, bool stream, float *scratch)
{
    const mx_tiling *t = &p->tiling;
    const mx_tile tile = mx_tile_of(t, item % t->tiles);
    int64_t group = item / t->tiles, n = tile.j1 - tile.j0; /* of all images */
    float *y = scratch + p->inputs * t->floats;
    for (int64_t c = 0; c < p->inputs; c++)
        mx_tile_fill(t, &tile, from, (group * p->inputs + c) * t->w.in[0] * t->w.in[1], false, scratch + c * t->floats);
    for (int64_t c = 0; c < p->outputs; c++) {
        int64_t o = group % p->groups * p->outputs + c;
        mx_kernels_current()->windows->weigh(tile.i1 - tile.i0, n, scratch, t->w.stride[0] * t->row, p->taps, p->at,
                                             p->weights + o * p->taps, p->start ? p->start[o] : 0, y);
        put_tile(p, &tile, to, (group * p->outputs + c) * p->to[0] * p->to[1], y, stream);
    }
}

static mx_status run_pass(const pass *p, mx_array from, mx_array to)
{
    int64_t each = scratch_floats(&p->tiling, p->inputs);
    int64_t bytes = each * (omp_in_parallel() ? 1 : omp_get_max_threads()) * (int64_t)sizeof(float);
    int64_t items = p->batch * p->groups * p->tiling.tiles;
    bool stream =
        mx_should_stream(p->batch * p->groups * p->outputs * p->to[0] * p->to[1] * (int64_t)mx_dtype_bytes(to.dtype));
    float *scratch;
    MX_TRY(mx_pool_alloc(bytes, (void **)&scratch));
#pragma omp parallel for if (!omp_in_parallel()) schedule(static)
    for (int64_t item = 0; item < items; item++)
        run_tile(p, item, from, to, stream, scratch + omp_get_thread_num() * each);
    mx_pool_free(scratch, bytes);
    return MX_OK;
}

static float weight_of(mx_array w, int64_t i) { return mx_get_float(w.data, i, w.dtype); }

/* at[tap]: where a tile has the elements that the kernel meets, of all input planes of a group. */
static void set_places(const mx_conv *c, const mx_tiling *t, int64_t *at)
{
    int64_t per_plane = c->kernel[0] * c->kernel[1];
    for (int64_t tap = 0; tap < mx_conv_taps(c); tap++) {
        int64_t k = tap / c->kernel[1] % c->kernel[0], l = tap % c->kernel[1];
        at[tap] = tap / per_plane * t->floats + mx_tile_at(t, mx_conv_at(c, 0, 0, k), mx_conv_at(c, 1, 0, l));
    }
}

mx_status mx_conv_thin_forward(const mx_conv *c, mx_array x, mx_array w, const float *bias, mx_array y)
{
    pass p = {.batch = c->batch,
              .groups = c->groups,
              .inputs = mx_conv_group_in(c),
              .outputs = mx_conv_group_out(c),
              .taps = mx_conv_taps(c),
              .start = bias,
              .to = {c->out[0], c->out[1]},
              .row = c->out[1],
              .step = 1};
    mx_windows windows = mx_conv_windows(c);
    p.tiling = mx_tiling_of(&windows, p.inputs);
    MX_TRY(pass_alloc(&p));
    set_places(c, &p.tiling, p.at);
    for (int64_t i = 0; i < c->channels_out * p.taps; i++)
        p.weights[i] = weight_of(w, i);
    mx_status status = run_pass(&p, x, y);
    mx_pool_free(p.at, p.memory_bytes);
    return status;
}

/* ---- the gradient by x ---- */

/* The elements k of the kernel that outputs meet x in along dimension d where its index is `rest` modulo the stride:
 * every `step`-th from `first` on. Output i + shift(k) meets index rest + i stride. */
typedef struct meeting {
    int64_t count, k[2]; /* k[0]: the first, k[1]: the step */
} meeting;

static int64_t remainder_of(int64_t a, int64_t n) { return ((a % n) + n) % n; }

static int64_t shift_of(const mx_conv *c, int d, int64_t rest, int64_t k)
{
    return (rest + c->before[d] - k * c->dilation[d]) / c->stride[d]; /* without a remainder */
}

static meeting meeting_of(const mx_conv *c, int d, int64_t rest)
{
    meeting m = {0, {0, 1}};
    for (int64_t k = 0; k < c->kernel[d]; k++) {
        if (remainder_of(rest + c->before[d] - k * c->dilation[d], c->stride[d]) != 0)
            continue;
        if (m.count == 0)
            m.k[0] = k;
        else if (m.count == 1)
            m.k[1] = k - m.k[0];
        m.count++;
    }
    return m;
}

/* The weights of input channel `in` of a group, one for each tap: of output channel `out`, element (k, l). */
static void set_tap(const mx_conv *c, pass *p, mx_array w, int64_t tap, int64_t out, int64_t k, int64_t l)
{
    int64_t n_in = mx_conv_group_in(c), n_out = mx_conv_group_out(c), per_plane = c->kernel[0] * c->kernel[1];
    for (int64_t channel = 0; channel < c->channels_in; channel++) {
        int64_t o = channel / n_in * n_out + out;
        p->weights[channel * p->taps + tap] =
            weight_of(w, (o * n_in + channel % n_in) * per_plane + k * c->kernel[1] + l);
    }
}

/* The elements of dx whose row and column are rest[0] and rest[1] modulo the strides. */
static mx_status grad_x_part(const mx_conv *c, const int64_t rest[2], mx_array dy, mx_array w, mx_array dx)
{
    const meeting rows = meeting_of(c, 0, rest[0]), columns = meeting_of(c, 1, rest[1]);
    const meeting *m[2] = {&rows, &columns};
    mx_windows windows = {.in = {c->out[0], c->out[1]}, .stride = {1, 1}};
    pass p = {.batch = c->batch,
              .groups = c->groups,
              .inputs = mx_conv_group_out(c),
              .outputs = mx_conv_group_in(c),
              .taps = mx_conv_group_out(c) * rows.count * columns.count,
              .to = {c->in[0], c->in[1]},
              .first = rest[0] * c->in[1] + rest[1],
              .row = c->stride[0] * c->in[1],
              .step = c->stride[1]};
    for (int d = 0; d < 2; d++) {
        windows.out[d] = mx_ceil_div(c->in[d] - rest[d], c->stride[d]);
        windows.most[d] = shift_of(c, d, rest[d], m[d]->k[0]);
        windows.least[d] =
            m[d]->count > 0 ? shift_of(c, d, rest[d], m[d]->k[0] + (m[d]->count - 1) * m[d]->k[1]) : windows.most[d];
    }
    p.tiling = mx_tiling_of(&windows, p.inputs);
    MX_TRY(pass_alloc(&p));
    int64_t tap = 0;
    for (int64_t out = 0; out < p.inputs; out++)
        for (int64_t i = 0; i < rows.count; i++)
            for (int64_t j = 0; j < columns.count; j++, tap++) {
                int64_t k = rows.k[0] + i * rows.k[1], l = columns.k[0] + j * columns.k[1];
                p.at[tap] = out * p.tiling.floats +
                            mx_tile_at(&p.tiling, shift_of(c, 0, rest[0], k), shift_of(c, 1, rest[1], l));
                set_tap(c, &p, w, tap, out, k, l);
            }
    mx_status status = run_pass(&p, dy, dx);
    mx_pool_free(p.at, p.memory_bytes);
    return status;
}

mx_status mx_conv_thin_grad_x(const mx_conv *c, mx_array dy, mx_array w, mx_array dx)
{
    for (int64_t i = 0; i < mx_min(c->stride[0], c->in[0]); i++)
        for (int64_t j = 0; j < mx_min(c->stride[1], c->in[1]); j++)
            MX_TRY(grad_x_part(c, (int64_t[2]){i, j}, dy, w, dx));
    return MX_OK;
}

/* ---- the gradient by w ---- */

/* Adds a tile's part to the sums of a group, (group_out, taps). */
static void add_tile(const mx_conv *c, const mx_tiling *t, int64_t number, int64_t group, mx_array x, mx_array dy,
                     const int64_t *at, float *scratch, double *sums)
{
    const mx_tile tile = mx_tile_of(t, number);
    int64_t n_in = mx_conv_group_in(c), n_out = mx_conv_group_out(c), taps = mx_conv_taps(c);
    int64_t n = tile.j1 - tile.j0, rows = tile.i1 - tile.i0;
    float *g = scratch + n_in * t->floats;
    for (int64_t k = 0; k < n_in; k++)
        mx_tile_fill(t, &tile, x, (group * n_in + k) * mx_conv_pixels(c), false, scratch + k * t->floats);
    for (int64_t o = 0; o < n_out; o++) {
        int64_t from = ((group * n_out + o) * c->out[0] + tile.i0) * c->out[1] + tile.j0;
        for (int64_t i = 0; i < rows; i++)
            mx_kernels_current()->rows->convert(g + i * n, MX_F32, mx_conv_part(dy, from + i * c->out[1]).data,
                                                dy.dtype, 1, n);
        mx_kernels_current()->windows->dots(rows, n, g, n, scratch, t->w.stride[0] * t->row, taps, at, sums + o * taps);
    }
}

mx_status mx_conv_thin_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw)
{
    mx_windows windows = mx_conv_windows(c);
    mx_tiling t = mx_tiling_of(&windows, mx_conv_group_in(c));
    int64_t taps = mx_conv_taps(c), n_out = mx_conv_group_out(c),
            threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    int64_t sums_bytes = mx_round_up(n_out * taps * (int64_t)sizeof(double), 64);
    int64_t each = scratch_floats(&t, mx_conv_group_in(c)) * (int64_t)sizeof(float) + sums_bytes;
    int64_t at_bytes = mx_round_up(taps * (int64_t)sizeof(int64_t), 64), bytes = at_bytes + each * threads;
    char *memory;
    MX_TRY(mx_pool_alloc(bytes, (void **)&memory));
    int64_t *at = (int64_t *)memory;
    set_places(c, &t, at);
#pragma omp parallel for if (!omp_in_parallel()) schedule(static)
    for (int64_t group = 0; group < c->groups; group++) {
        char *own = memory + at_bytes + omp_get_thread_num() * each;
        double *sums = (double *)own;
        memset(sums, 0, (size_t)sums_bytes);
        for (int64_t i = 0; i < c->batch * t.tiles; i++)
            add_tile(c, &t, i % t.tiles, i / t.tiles * c->groups + group, x, dy, at, (float *)(own + sums_bytes), sums);
        for (int64_t i = 0; i < n_out * taps; i++)
            dw[group * n_out * taps + i] = (float)sums[i];
    }
    mx_pool_free(memory, bytes);
    return MX_OK;
}
