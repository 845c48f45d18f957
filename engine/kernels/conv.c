/* Which way a convolution is computed, and what both have in common. */
#include "kernels/conv_internal.h"

#include "core/pool.h"
#include "kernels/context.h"

#include <omp.h>

/* What is multiplied with bf16 is rounded to it; packing does so with the weights and with dy, but copies the other
 * operand as it is. So f32 that meets bf16 is replaced by n bf16, which are to be freed. */
static mx_status round_beside(mx_dtype other, int64_t n, mx_array *a, void **rounded)
{
    *rounded = NULL;
    if (mx_is_bf16(a->dtype) || !mx_is_bf16(other))
        return MX_OK;
    MX_TRY(mx_pool_alloc(n * (int64_t)sizeof(mx_bf16), rounded));
    mx_cast(*a, (mx_array){*rounded, MX_BF16}, n);
    *a = (mx_array){*rounded, MX_BF16};
    return MX_OK;
}

static mx_status run_pass(const mx_conv_pass *p, mx_array from, mx_array w, const float *bias, mx_array to, bool thin)
{
    int64_t n = p->batch * p->groups * p->inputs * p->w.in[0] * p->w.in[1];
    void *rounded;
    if (thin)
        return mx_conv_thin_pass(p, from, w, bias, to);
    MX_TRY(round_beside(w.dtype, n, &from, &rounded));
    mx_status status = mx_conv_product_pass(p, from, w, bias, to);
    mx_pool_free(rounded, n * (int64_t)sizeof(mx_bf16));
    return status;
}

mx_status mx_conv_forward(const mx_conv *c, mx_array x, mx_array w, const float *bias, mx_array y)
{
    if (mx_conv_is_points(c))
        return mx_conv_points_forward(c, x, w, bias, y);
    mx_conv_pass p = mx_conv_pass_forward(c);
    return run_pass(&p, x, w, bias, y, mx_conv_is_thin(c));
}

static mx_status add_products(const mx_conv *c, mx_array dy, mx_array w, mx_array dx)
{
    int64_t n = c->batch * c->channels_out * mx_conv_positions(c);
    void *rounded;
    MX_TRY(round_beside(w.dtype, n, &dy, &rounded));
    mx_status status = mx_conv_product_grad_x(c, dy, w, dx);
    mx_pool_free(rounded, n * (int64_t)sizeof(mx_bf16));
    return status;
}

mx_status mx_conv_grad_x(const mx_conv *c, mx_array dy, mx_array w, mx_array dx)
{
    if (mx_conv_is_points(c))
        return mx_conv_points_grad_x(c, dy, w, dx);
    if (!mx_conv_is_thin(c) && mx_conv_grad_x_adds(c))
        return add_products(c, dy, w, dx);
    for (int64_t i = 0; i < mx_min(c->stride[0], c->in[0]); i++)
        for (int64_t j = 0; j < mx_min(c->stride[1], c->in[1]); j++) {
            mx_conv_pass p = mx_conv_pass_grad_x(c, i, j);
            MX_TRY(run_pass(&p, dy, w, NULL, dx, mx_conv_is_thin(c)));
        }
    return MX_OK;
}

mx_status mx_conv_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw)
{
    int64_t n = c->batch * c->channels_in * mx_conv_pixels(c);
    void *rounded;
    if (mx_conv_is_thin(c))
        return mx_conv_thin_grad_w(c, x, dy, dw);
    if (mx_conv_is_points(c))
        return mx_conv_points_grad_w(c, x, dy, dw);
    MX_TRY(round_beside(dy.dtype, n, &x, &rounded));
    mx_status status = mx_conv_product_grad_w(c, x, dy, dw);
    mx_pool_free(rounded, n * (int64_t)sizeof(mx_bf16));
    return status;
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
