/* Convolutions as matrix products: of the weights of a group (group_out, taps) and the columns of a block of outputs
 * (taps, positions of the block). A block is a part of an image, or several small images. What is cut into blocks, and
 * where, depends only on sizes, so the bits do not depend on the number of threads. */
#include "kernels/conv_internal.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/gemm.h"

#include <omp.h>
#include <string.h>

/* Bytes of the columns of a block: they stay in the caches of a core. At least as many positions as make packing the
 * weights cheap. */
enum { BLOCK_BYTES = 2 << 20, FEWEST = 512, MOST = 8192 };

/* Positions first to before first + count of each of `images` images. */
typedef struct block {
    int64_t image, images, first, count;
} block;

typedef struct plan {
    const mx_conv *c;
    int64_t taps, positions;
    int64_t parts, images;   /* parts of an image, or images of a block */
    int64_t blocks, columns; /* their number, and the positions of the largest */
    bool direct;             /* the columns are x itself: kernel, stride and dilation of 1, no padding */
} plan;

static plan plan_of(const mx_conv *c, mx_dtype dtype)
{
    plan p = {.c = c, .taps = mx_conv_taps(c), .positions = mx_conv_positions(c), .parts = 1, .images = 1};
    int64_t most = BLOCK_BYTES / mx_max(p.taps * (int64_t)mx_dtype_bytes(dtype), 1);
    most = mx_min(mx_max(most, FEWEST), MOST);
    p.direct = c->kernel[0] == 1 && c->kernel[1] == 1 && c->stride[0] == 1 && c->stride[1] == 1 && c->before[0] == 0 &&
               c->before[1] == 0 && c->out[0] == c->in[0] && c->out[1] == c->in[1];
    if (p.positions > most)
        p.parts = mx_ceil_div(p.positions, most);
    else if (!p.direct || p.positions < FEWEST)
        p.images = mx_min(mx_max(most / mx_max(p.positions, 1), 1), mx_max(c->batch, 1));
    p.direct = p.direct && p.images == 1;
    p.blocks = mx_ceil_div(c->batch, p.images) * p.parts;
    p.columns = p.images * mx_min(mx_round_up(mx_ceil_div(p.positions, p.parts), 64), p.positions);
    return p;
}

static block block_of(const plan *p, int64_t i)
{
    int64_t length = mx_min(mx_round_up(mx_ceil_div(p->positions, p->parts), 64), p->positions);
    block b = {.image = i / p->parts * p->images, .first = i % p->parts * length};
    b.images = mx_min(p->images, p->c->batch - b.image);
    b.count = mx_max(mx_min(length, p->positions - b.first), 0);
    return b;
}

/* ---- columns ---- */

static void copy_run(char *to, const char *from, int64_t n, int64_t step, size_t bytes)
{
    if (step == 1)
        memcpy(to, from, (size_t)n * bytes);
    else if (bytes == 4)
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)to)[i] = ((const uint32_t *)from)[i * step];
    else
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = ((const uint16_t *)from)[i * step];
}

/* Outputs of the block in one row of y: of image `image`, row `i`, from j0 to before j1; `at`: the first one's column.
 */
typedef struct run {
    int64_t image, i, j0, j1, at;
} run;

static run run_at(const plan *p, const block *b, int64_t at)
{
    int64_t width = p->c->out[1], position = b->first + (b->count > 0 ? at % b->count : 0);
    run r = {.image = b->image + (b->count > 0 ? at / b->count : 0), .i = position / width, .at = at};
    r.j0 = position - r.i * width;
    r.j1 = mx_min(width, r.j0 + b->first + b->count - position);
    return r;
}

static run next_run(const plan *p, const block *b, run r) { return run_at(p, b, r.at + r.j1 - r.j0); }

/* Row `tap` of the columns: the elements of x that it meets. */
static void fill_row(const plan *p, const block *b, mx_array x, int64_t group, int64_t tap, char *row)
{
    const mx_conv *c = p->c;
    size_t bytes = mx_dtype_bytes(x.dtype);
    int64_t l = tap % c->kernel[1], k = tap / c->kernel[1] % c->kernel[0];
    int64_t channel = group * mx_conv_group_in(c) + tap / (c->kernel[0] * c->kernel[1]), low, high;
    mx_conv_inside(c, 1, l, &low, &high);
    for (run r = run_at(p, b, 0); r.at < b->images * b->count; r = next_run(p, b, r)) {
        char *to = row + (size_t)r.at * bytes;
        int64_t y = mx_conv_at(c, 0, r.i, k), first = mx_min(mx_max(r.j0, low), r.j1);
        int64_t last = mx_max(mx_min(r.j1, high), first);
        if (y < 0 || y >= c->in[0])
            first = last = r.j0;
        memset(to, 0, (size_t)(first - r.j0) * bytes);
        if (last > first) {
            int64_t line = (r.image * c->channels_in + channel) * c->in[0] + y;
            copy_run(to + (size_t)(first - r.j0) * bytes,
                     mx_conv_part(x, line * c->in[1] + mx_conv_at(c, 1, first, l)).data, last - first, c->stride[1],
                     bytes);
        }
        memset(to + (size_t)(last - r.j0) * bytes, 0, (size_t)(r.j1 - last) * bytes);
    }
}

static void fill_columns(const plan *p, const block *b, mx_array x, int64_t group, void *columns, bool alone)
{
    int64_t row = b->images * b->count * (int64_t)mx_dtype_bytes(x.dtype);
#pragma omp parallel for if (!alone) schedule(static)
    for (int64_t tap = 0; tap < p->taps; tap++)
        fill_row(p, b, x, group, tap, (char *)columns + tap * row);
}

/* The columns as a matrix: x itself, or what fill_columns writes. */
static mx_matrix columns_of(const plan *p, const block *b, mx_array x, int64_t group, void *columns, bool alone)
{
    if (p->direct) {
        int64_t channel = b->image * p->c->channels_in + group * mx_conv_group_in(p->c);
        mx_array part = mx_conv_part(x, channel * p->positions + b->first);
        return (mx_matrix){part.data, x.dtype, p->positions, false};
    }
    fill_columns(p, b, x, group, columns, alone);
    return (mx_matrix){columns, x.dtype, b->images * b->count, false};
}

/* ---- blocks of y ---- */

/* The block's part of y for a group, (group_out, columns), where it is one image's: in place. */
static mx_matrix outputs_in_place(const plan *p, const block *b, mx_array y, int64_t group)
{
    int64_t channel = b->image * p->c->channels_out + group * mx_conv_group_out(p->c);
    return (mx_matrix){mx_conv_part(y, channel * p->positions + b->first).data, y.dtype, p->positions, false};
}

/* y = sums + bias. */
static void scatter_outputs(const plan *p, const block *b, const float *sums, const float *bias, mx_array y,
                            int64_t group)
{
    int64_t channels = mx_conv_group_out(p->c), columns = b->images * b->count;
    for (int64_t o = 0; o < channels; o++) {
        int64_t channel = group * channels + o;
        float add = bias ? bias[channel] : 0;
        for (int64_t n = 0; n < b->images; n++) {
            const float *from = sums + o * columns + n * b->count;
            int64_t to = ((b->image + n) * p->c->channels_out + channel) * p->positions + b->first;
            if (mx_is_bf16(y.dtype))
                for (int64_t i = 0; i < b->count; i++)
                    ((mx_bf16 *)y.data)[to + i] = mx_to_bf16(from[i] + add);
            else
                for (int64_t i = 0; i < b->count; i++)
                    ((float *)y.data)[to + i] = from[i] + add;
        }
    }
}

/* Copies the block's part of dy for a group to `copy`, unless it is one image's. */
static mx_matrix gather_outputs(const plan *p, const block *b, mx_array dy, int64_t group, void *copy)
{
    if (b->images == 1)
        return outputs_in_place(p, b, dy, group);
    int64_t channels = mx_conv_group_out(p->c), columns = b->images * b->count;
    size_t bytes = mx_dtype_bytes(dy.dtype);
    for (int64_t o = 0; o < channels; o++)
        for (int64_t n = 0; n < b->images; n++)
            memcpy((char *)copy + (size_t)(o * columns + n * b->count) * bytes,
                   mx_conv_part(dy, ((b->image + n) * p->c->channels_out + group * channels + o) * p->positions).data,
                   (size_t)b->count * bytes);
    return (mx_matrix){copy, dy.dtype, columns, false};
}

static mx_matrix weights_of(const plan *p, mx_array w, int64_t group, bool trans)
{
    return (mx_matrix){mx_conv_part(w, group * mx_conv_group_out(p->c) * p->taps).data, w.dtype, p->taps, trans};
}

/* ---- the three products ---- */

typedef struct work {
    plan p;
    mx_array x, w, y; /* or their gradients */
    const float *bias;
    int64_t columns_bytes, sums_bytes; /* of a thread's scratch */
    char *scratch;
} work;

static mx_status forward_block(const work *k, int64_t group, const block *b, char *scratch, bool alone)
{
    const plan *p = &k->p;
    bool in_place = b->images == 1 && !k->bias;
    float *sums = (float *)(scratch + k->columns_bytes);
    mx_gemm g = {.m = mx_conv_group_out(p->c), .n = b->images * b->count, .k = p->taps, .alpha = 1};
    g.a = weights_of(p, k->w, group, false);
    g.b = columns_of(p, b, k->x, group, scratch, alone);
    g.c = in_place ? outputs_in_place(p, b, k->y, group) : (mx_matrix){sums, MX_F32, g.n, false};
    MX_TRY(mx_gemm_run(&g));
    if (!in_place)
        scatter_outputs(p, b, sums, k->bias, k->y, group);
    return MX_OK;
}

/* Runs the items, each alone on a thread if there are enough of them. */
static mx_status run_items(work *k, int64_t items, mx_status (*body)(const work *, int64_t item, char *, bool alone))
{
    int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    bool split = threads > 1 && items >= threads;
    int64_t each = k->columns_bytes + k->sums_bytes, bytes = each * (split ? threads : 1);
    MX_TRY(mx_pool_alloc(bytes, (void **)&k->scratch));
    int failed = 0;
#pragma omp parallel for if (split) schedule(dynamic) reduction(+ : failed)
    for (int64_t i = 0; i < items; i++)
        failed += body(k, i, k->scratch + (split ? omp_get_thread_num() : 0) * each, split || threads == 1) != MX_OK;
    mx_pool_free(k->scratch, bytes);
    return failed ? mx_fail(MX_ERR_MEMORY, "convolution: no memory for the packed blocks of a product") : MX_OK;
}

static mx_status forward_item(const work *k, int64_t item, char *scratch, bool alone)
{
    block b = block_of(&k->p, item % k->p.blocks);
    return forward_block(k, item / k->p.blocks, &b, scratch, alone);
}

static int64_t padded(int64_t bytes) { return mx_round_up(bytes, 64); }

mx_status mx_conv_forward(const mx_conv *c, mx_array x, mx_array w, const float *bias, mx_array y)
{
    if (mx_conv_is_thin(c))
        return mx_conv_thin_forward(c, x, w, bias, y);
    work k = {.p = plan_of(c, x.dtype), .x = x, .w = w, .y = y, .bias = bias};
    k.columns_bytes = k.p.direct ? 0 : padded(k.p.taps * k.p.columns * (int64_t)mx_dtype_bytes(x.dtype));
    k.sums_bytes = k.p.images > 1 || bias ? padded(mx_conv_group_out(c) * k.p.columns * 4) : 0;
    return run_items(&k, c->groups * k.p.blocks, forward_item);
}

/* Adds the rows of the columns to the images that they were taken from; threads split the channels. */
static void add_columns(const plan *p, const block *b, const float *columns, float *dx, int64_t image_step, bool alone)
{
    const mx_conv *c = p->c;
    const mx_conv_paths *paths = mx_kernels_current()->conv;
    int64_t per_channel = c->kernel[0] * c->kernel[1], row = b->images * b->count;
#pragma omp parallel for if (!alone) schedule(static)
    for (int64_t channel = 0; channel < mx_conv_group_in(c); channel++)
        for (int64_t tap = 0; tap < per_channel; tap++) {
            const float *from = columns + (channel * per_channel + tap) * row;
            int64_t l = tap % c->kernel[1], k = tap / c->kernel[1], low, high;
            mx_conv_inside(c, 1, l, &low, &high);
            for (run r = run_at(p, b, 0); r.at < row; r = next_run(p, b, r)) {
                int64_t y = mx_conv_at(c, 0, r.i, k), first = mx_max(r.j0, low), last = mx_min(r.j1, high);
                if (y < 0 || y >= c->in[0] || last <= first)
                    continue;
                float *to = dx + (r.image - b->image) * image_step + channel * mx_conv_pixels(c) + y * c->in[1] +
                            mx_conv_at(c, 1, first, l);
                paths->add(last - first, from + r.at + first - r.j0, to, c->stride[1]);
            }
        }
}

/* The gradient of the images of a block, or of all parts of one image, for a group. */
static mx_status grad_x_item(const work *k, int64_t item, char *scratch, bool alone)
{
    const plan *p = &k->p;
    const mx_conv *c = p->c;
    int64_t units = p->blocks / p->parts, group = item / units, unit = item % units;
    int64_t channels = mx_conv_group_in(c), pixels = mx_conv_pixels(c), image_step = channels * pixels;
    float *columns = (float *)scratch, *dx = (float *)(scratch + k->columns_bytes);
    void *copy = dx + mx_round_up(p->images * image_step, 16);
    block b = block_of(p, unit * p->parts);
    memset(dx, 0, (size_t)(b.images * image_step) * sizeof *dx);
    for (int64_t part = 0; part < p->parts; part++) {
        b = block_of(p, unit * p->parts + part);
        mx_gemm g = {.m = p->taps, .n = b.images * b.count, .k = mx_conv_group_out(c), .alpha = 1};
        g.a = weights_of(p, k->w, group, true);
        g.b = gather_outputs(p, &b, k->y, group, copy);
        g.c = p->direct ? (mx_matrix){dx + b.first, MX_F32, pixels, false} : (mx_matrix){columns, MX_F32, g.n, false};
        MX_TRY(mx_gemm_run(&g));
        if (!p->direct)
            add_columns(p, &b, columns, dx, image_step, alone);
    }
    for (int64_t n = 0; n < b.images; n++)
        for (int64_t i = 0; i < image_step; i++)
            mx_set_float(k->x.data, ((b.image + n) * c->channels_in + group * channels) * pixels + i,
                         dx[n * image_step + i], k->x.dtype);
    return MX_OK;
}

mx_status mx_conv_grad_x(const mx_conv *c, mx_array dy, mx_array w, mx_array dx)
{
    if (mx_conv_is_thin(c))
        return mx_conv_thin_grad_x(c, dy, w, dx);
    work k = {.p = plan_of(c, MX_F32), .x = dx, .w = w, .y = dy};
    int64_t copy = k.p.images > 1 ? mx_conv_group_out(c) * k.p.columns * 4 : 0;
    k.columns_bytes = k.p.direct ? 0 : padded(k.p.taps * k.p.columns * 4);
    k.sums_bytes = padded(k.p.images * mx_conv_group_in(c) * mx_conv_pixels(c) * 4) + padded(copy);
    return run_items(&k, c->groups * (k.p.blocks / k.p.parts), grad_x_item);
}

static mx_status grad_w_item(const work *k, int64_t group, char *scratch, bool alone)
{
    const plan *p = &k->p;
    int64_t channels = mx_conv_group_out(p->c);
    float *dw = (float *)k->w.data + group * channels * p->taps;
    for (int64_t i = 0; i < p->blocks; i++) {
        block b = block_of(p, i);
        mx_gemm g = {.m = channels, .n = p->taps, .k = b.images * b.count, .alpha = 1, .accumulate = true};
        g.a = gather_outputs(p, &b, k->y, group, scratch + k->columns_bytes);
        g.b = columns_of(p, &b, k->x, group, scratch, alone);
        g.b.trans = true;
        g.c = (mx_matrix){dw, MX_F32, p->taps, false};
        MX_TRY(mx_gemm_run(&g));
    }
    return MX_OK;
}

mx_status mx_conv_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw)
{
    if (mx_conv_is_thin(c))
        return mx_conv_thin_grad_w(c, x, dy, dw);
    memset(dw, 0, (size_t)(c->channels_out * mx_conv_taps(c)) * sizeof *dw);
    work k = {.p = plan_of(c, x.dtype), .x = x, .w = {dw, MX_F32}, .y = dy};
    k.columns_bytes = k.p.direct ? 0 : padded(k.p.taps * k.p.columns * (int64_t)mx_dtype_bytes(x.dtype));
    k.sums_bytes = k.p.images > 1 ? padded(mx_conv_group_out(c) * k.p.columns * 4) : 0;
    return run_items(&k, c->groups, grad_w_item);
}

void mx_conv_grad_bias(const mx_conv *c, mx_array dy, float *sums)
{
    const mx_conv_paths *paths = mx_kernels_current()->conv;
    int64_t positions = mx_conv_positions(c);
#pragma omp parallel for if (!omp_in_parallel()) schedule(static)
    for (int64_t o = 0; o < c->channels_out; o++) {
        double total = 0;
        for (int64_t n = 0; n < c->batch; n++)
            total += paths->sum(positions, mx_conv_part(dy, (n * c->channels_out + o) * positions).data, dy.dtype);
        sums[o] = (float)total;
    }
}
