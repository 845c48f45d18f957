#include "kernels/conv_internal.h"

static mx_conv_pass pass_of(const mx_conv *c)
{
    return (mx_conv_pass){.batch = c->batch,
                          .groups = c->groups,
                          .w_group = mx_conv_group_out(c) * mx_conv_taps(c),
                          .kernel_width = c->kernel[1]};
}

/* Whether results meet just the element in their own place along dimension d. */
static bool is_in_place(const mx_conv_pass *p, int d)
{
    return p->lines[d].count == 1 && p->lines[d].shift == 0 && p->w.stride[d] == 1 && p->w.in[d] == p->w.out[d] &&
           p->to[d] == p->w.out[d];
}

/* What follows from the lines of taps. Where a plane is met element by element, it is one row. */
static void set_taps(mx_conv_pass *p)
{
    p->taps = p->lines[0].count * p->lines[1].count;
    for (int d = 0; d < 2; d++) {
        const mx_conv_line *l = &p->lines[d];
        int64_t last = l->shift + mx_max(l->count - 1, 0) * l->shift_step;
        p->w.least[d] = mx_min(l->shift, last);
        p->w.most[d] = mx_max(l->shift, last);
    }
    p->in_place = is_in_place(p, 0) && is_in_place(p, 1);
    if (p->in_place) {
        p->row = p->to[0] * p->to[1];
        for (int d = 0; d < 2; d++)
            p->w.in[d] = p->w.out[d] = p->to[d] = d == 0 ? 1 : p->row;
    }
}

mx_conv_pass mx_conv_pass_forward(const mx_conv *c)
{
    mx_conv_pass p = pass_of(c);
    p.inputs = mx_conv_group_in(c);
    p.outputs = mx_conv_group_out(c);
    p.w_output = mx_conv_taps(c);
    p.w_input = c->kernel[0] * c->kernel[1];
    for (int d = 0; d < 2; d++) {
        p.w.in[d] = c->in[d];
        p.w.out[d] = p.to[d] = c->out[d];
        p.w.stride[d] = c->stride[d];
        p.lines[d] = (mx_conv_line){c->kernel[d], 0, 1, -c->before[d], c->dilation[d]};
    }
    p.row = c->out[1];
    p.step = 1;
    set_taps(&p);
    return p;
}

static int64_t remainder_of(int64_t a, int64_t n) { return ((a % n) + n) % n; }

/* The elements k of the kernel that outputs meet x in along dimension d where its index is `rest` modulo the stride:
 * every so-many-th. Output i + shift(k) meets index rest + i stride. */
static mx_conv_line line_of(const mx_conv *c, int d, int64_t rest)
{
    mx_conv_line l = {.k_step = 1};
    for (int64_t k = 0; k < c->kernel[d]; k++) {
        int64_t from = rest + c->before[d] - k * c->dilation[d];
        if (remainder_of(from, c->stride[d]) != 0)
            continue;
        if (l.count == 0) {
            l.k = k;
            l.shift = from / c->stride[d];
        } else if (l.count == 1) {
            l.k_step = k - l.k;
            l.shift_step = from / c->stride[d] - l.shift;
        }
        l.count++;
    }
    return l;
}

mx_conv_pass mx_conv_pass_grad_x(const mx_conv *c, int64_t row, int64_t column)
{
    const int64_t rest[2] = {row, column};
    mx_conv_pass p = pass_of(c);
    p.inputs = mx_conv_group_out(c);
    p.outputs = mx_conv_group_in(c);
    p.w_output = c->kernel[0] * c->kernel[1];
    p.w_input = mx_conv_taps(c);
    for (int d = 0; d < 2; d++) {
        p.w.in[d] = c->out[d];
        p.w.out[d] = mx_ceil_div(c->in[d] - rest[d], c->stride[d]);
        p.w.stride[d] = 1;
        p.to[d] = c->in[d];
        p.lines[d] = line_of(c, d, rest[d]);
    }
    p.first = row * c->in[1] + column;
    p.row = c->stride[0] * c->in[1];
    p.step = c->stride[1];
    set_taps(&p);
    return p;
}

mx_conv_tap mx_conv_pass_tap(const mx_conv_pass *p, int64_t tap)
{
    const mx_conv_line *rows = &p->lines[0], *columns = &p->lines[1];
    int64_t i = tap / columns->count, j = tap % columns->count;
    return (mx_conv_tap){rows->shift + i * rows->shift_step, columns->shift + j * columns->shift_step,
                         (rows->k + i * rows->k_step) * p->kernel_width + columns->k + j * columns->k_step};
}
