#include "kernels/f64_loops.h"

#include "kernels/conv_internal.h"

#include <math.h>
#include <string.h>

/* ---- convolutions ---- */

/* One product of a convolution: element `x` of x, `w` of w and `y` of y. */
typedef struct product {
    int64_t x, w, y;
} product;

/* Visits all of them, in the order of y. */
typedef void visit_fn(const product *p, const double *a, const double *b, double *c);

static void visit_output(const mx_conv *c, int64_t n, int64_t o, int64_t position, visit_fn *visit, const double *a,
                         const double *b, double *to)
{
    int64_t i = position / c->out[1], j = position % c->out[1], taps = mx_conv_taps(c);
    int64_t per_plane = c->kernel[0] * c->kernel[1], first = o / mx_conv_group_out(c) * mx_conv_group_in(c);
    product p = {.y = (n * c->channels_out + o) * mx_conv_positions(c) + position};
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t row = mx_conv_at(c, 0, i, tap / c->kernel[1] % c->kernel[0]);
        int64_t column = mx_conv_at(c, 1, j, tap % c->kernel[1]);
        if (row < 0 || row >= c->in[0] || column < 0 || column >= c->in[1])
            continue;
        p.x = (n * c->channels_in + first + tap / per_plane) * mx_conv_pixels(c) + row * c->in[1] + column;
        p.w = o * taps + tap;
        visit(&p, a, b, to);
    }
}

static void visit_all(const mx_conv *c, visit_fn *visit, const double *a, const double *b, double *to)
{
    for (int64_t n = 0; n < c->batch; n++)
        for (int64_t o = 0; o < c->channels_out; o++)
            for (int64_t position = 0; position < mx_conv_positions(c); position++)
                visit_output(c, n, o, position, visit, a, b, to);
}

static void add_to_y(const product *p, const double *x, const double *w, double *y) { y[p->y] += w[p->w] * x[p->x]; }
static void add_to_x(const product *p, const double *dy, const double *w, double *dx)
{
    dx[p->x] += w[p->w] * dy[p->y];
}
static void add_to_w(const product *p, const double *x, const double *dy, double *dw)
{
    dw[p->w] += dy[p->y] * x[p->x];
}

void mx_f64_conv_forward(const mx_conv *c, const double *x, const double *w, const double *bias, double *y)
{
    int64_t positions = mx_conv_positions(c);
    for (int64_t i = 0; i < c->batch * c->channels_out * positions; i++)
        y[i] = bias ? bias[i / positions % c->channels_out] : 0;
    visit_all(c, add_to_y, x, w, y);
}

void mx_f64_conv_grad_x(const mx_conv *c, const double *dy, const double *w, double *dx)
{
    memset(dx, 0, (size_t)(c->batch * c->channels_in * mx_conv_pixels(c)) * sizeof *dx);
    visit_all(c, add_to_x, dy, w, dx);
}

void mx_f64_conv_grad_w(const mx_conv *c, const double *x, const double *dy, double *dw)
{
    memset(dw, 0, (size_t)(c->channels_out * mx_conv_taps(c)) * sizeof *dw);
    visit_all(c, add_to_w, x, dy, dw);
}

void mx_f64_conv_grad_bias(const mx_conv *c, const double *dy, double *sums)
{
    int64_t positions = mx_conv_positions(c);
    memset(sums, 0, (size_t)c->channels_out * sizeof *sums);
    for (int64_t i = 0; i < c->batch * c->channels_out * positions; i++)
        sums[i / positions % c->channels_out] += dy[i];
}

/* ---- pooling ---- */

/* The element of x that a window meets at a tap, in its plane; -1: it is outside. */
static int64_t element_of(const mx_conv *c, int64_t position, int64_t tap)
{
    int64_t row = mx_conv_at(c, 0, position / c->out[1], tap / c->kernel[1]);
    int64_t column = mx_conv_at(c, 1, position % c->out[1], tap % c->kernel[1]);
    return row < 0 || row >= c->in[0] || column < 0 || column >= c->in[1] ? -1 : row * c->in[1] + column;
}

void mx_f64_max_pool_forward(const mx_conv *c, const double *x, double *y, int32_t *at)
{
    int64_t positions = mx_conv_positions(c), taps = c->kernel[0] * c->kernel[1];
    for (int64_t i = 0; i < c->batch * c->channels_in * positions; i++) {
        const double *plane = x + i / positions * mx_conv_pixels(c);
        int64_t best = -1;
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t e = element_of(c, i % positions, tap);
            if (e >= 0 && (best < 0 || plane[e] > plane[best] || (isnan(plane[e]) && !isnan(plane[best]))))
                best = e;
        }
        y[i] = plane[best];
        if (at)
            at[i] = (int32_t)best;
    }
}

void mx_f64_max_pool_backward(const mx_conv *c, const double *dy, const int32_t *at, double *dx)
{
    int64_t positions = mx_conv_positions(c), planes = c->batch * c->channels_in;
    memset(dx, 0, (size_t)(planes * mx_conv_pixels(c)) * sizeof *dx);
    for (int64_t i = 0; i < planes * positions; i++)
        dx[i / positions * mx_conv_pixels(c) + at[i]] += dy[i];
}

void mx_f64_avg_pool_forward(const mx_conv *c, const double *x, double *y)
{
    int64_t positions = mx_conv_positions(c), taps = c->kernel[0] * c->kernel[1];
    for (int64_t i = 0; i < c->batch * c->channels_in * positions; i++) {
        double sum = 0;
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t e = element_of(c, i % positions, tap);
            sum += e < 0 ? 0 : x[i / positions * mx_conv_pixels(c) + e];
        }
        y[i] = sum / (double)taps;
    }
}

void mx_f64_avg_pool_backward(const mx_conv *c, const double *dy, double *dx)
{
    int64_t positions = mx_conv_positions(c), taps = c->kernel[0] * c->kernel[1], planes = c->batch * c->channels_in;
    memset(dx, 0, (size_t)(planes * mx_conv_pixels(c)) * sizeof *dx);
    for (int64_t i = 0; i < planes * positions; i++)
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t e = element_of(c, i % positions, tap);
            if (e >= 0)
                dx[i / positions * mx_conv_pixels(c) + e] += dy[i] / (double)taps;
        }
}

/* ---- rotary positions ---- */

void mx_f64_rope(const mx_rope *r)
{
    const mx_rope_frequencies *f = &r->frequencies;
    int64_t pairs = f->dims / 2, apart = f->interleaved ? 1 : pairs, heads = r->tokens * r->heads;
    memcpy(r->y, r->x, (size_t)(heads * r->head_dim) * sizeof(double));
    for (int64_t h = 0; h < heads; h++) {
        int64_t p = h / r->heads % r->period;
        double position = (double)(r->offset + (r->positions ? r->positions[p] : p));
        for (int64_t i = 0; i < pairs; i++) {
            double angle = position * mx_rope_frequency(f, i);
            double c = f->factor * cos(angle), s = f->factor * sin(r->inverse ? -angle : angle);
            int64_t at = h * r->head_dim + (f->interleaved ? 2 * i : i);
            double a = ((const double *)r->x)[at], b = ((const double *)r->x)[at + apart];
            ((double *)r->y)[at] = a * c - b * s;
            ((double *)r->y)[at + apart] = b * c + a * s;
        }
    }
}

/* ---- lookups ---- */

void mx_f64_gather(int64_t tokens, int64_t width, int64_t vocab, int64_t first, const int32_t *ids, double scale,
                   const double *table, double *out)
{
    for (int64_t i = 0; i < tokens * width; i++) {
        int64_t row = ids[i / width] - first;
        out[i] = row >= 0 && row < vocab ? scale * table[row * width + i % width] : 0;
    }
}

void mx_f64_gather_add(int64_t tokens, int64_t width, int64_t vocab, int64_t first, const int32_t *ids, double scale,
                       const double *dy, double *table)
{
    for (int64_t i = 0; i < tokens * width; i++) {
        int64_t row = ids[i / width] - first;
        if (row >= 0 && row < vocab)
            table[row * width + i % width] += scale * dy[i];
    }
}
