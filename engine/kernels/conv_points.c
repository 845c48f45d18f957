/* Convolutions with a kernel of one element and a stride, as the shortcuts of ResNet are. They meet one element of each
 * window of stride[0] x stride[1], so they are convolutions without a stride of what is picked from x: of planes that
 * are packed in place (conv_product.c, conv_grad_w.c). The gradient by x is spread again, with zeros between. */
#include "kernels/conv_internal.h"

#include "core/pool.h"
#include "kernels/context.h"

#include <immintrin.h>
#include <omp.h>
#include <string.h>

bool mx_conv_is_points(const mx_conv *c)
{
    bool points = !mx_conv_is_thin(c) && c->stride[0] * c->stride[1] > 1;
    for (int d = 0; d < 2; d++)
        points = points && c->kernel[d] == 1 && c->before[d] == 0 && c->out[d] == mx_ceil_div(c->in[d], c->stride[d]);
    return points;
}

/* The same of what is picked. */
static mx_conv without_stride(const mx_conv *c)
{
    mx_conv dense = *c;
    for (int d = 0; d < 2; d++) {
        dense.in[d] = c->out[d];
        dense.stride[d] = 1;
    }
    return dense;
}

static int64_t picked_bytes(const mx_conv *c, mx_dtype dtype)
{
    return c->batch * c->channels_in * mx_conv_positions(c) * (int64_t)mx_dtype_bytes(dtype);
}

/* Planes of x -> planes of what is met. */
static void pick(const mx_conv *c, mx_array x, void *to)
{
    int64_t pixels = mx_conv_pixels(c), positions = mx_conv_positions(c);
#pragma omp parallel for if (!omp_in_parallel()) schedule(static)
    for (int64_t i = 0; i < c->batch * c->channels_in; i++)
        mx_kernels_current()->conv->pick(c->out[0], c->out[1], c->stride[1], mx_conv_part(x, i * pixels),
                                         c->stride[0] * c->in[1],
                                         mx_conv_part((mx_array){to, x.dtype}, i * positions).data);
}

/* The other way round. Rows of dx are put together in the first-level cache, where elements between stay zero. */
enum { PIECE = 8192, SLACK = 64 }; /* bytes of dx at once, unless rows are longer; elements behind */

static mx_status spread(const mx_conv *c, const void *from, mx_array dx)
{
    int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads(), bytes = (int64_t)mx_dtype_bytes(dx.dtype);
    int64_t line = c->stride[0] * c->in[1], rows = mx_min(mx_max(PIECE / (line * bytes), 1), c->out[0]);
    int64_t pixels = mx_conv_pixels(c), pieces = mx_ceil_div(c->out[0], rows);
    int64_t room = mx_round_up((rows * line + SLACK) * bytes, 64);
    bool stream = mx_should_stream(c->batch * c->channels_in * pixels * bytes);
    char *memory;
    MX_TRY(mx_pool_alloc(threads * room, (void **)&memory));
    memset(memory, 0, (size_t)(threads * room));
#pragma omp parallel if (threads > 1)
    {
        char *own = memory + omp_get_thread_num() * room;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < c->batch * c->channels_in * pieces; i++) {
            int64_t plane = i / pieces, row = i % pieces * rows, some = mx_min(rows, c->out[0] - row);
            int64_t at = (plane * c->out[0] + row) * c->out[1], n = mx_min(some * line, pixels - row * line);
            mx_kernels_current()->conv->spread(some, c->out[1], c->stride[1],
                                               mx_conv_part((mx_array){(void *)from, dx.dtype}, at), own, line);
            mx_kernels_current()->elementwise->copy(own, mx_conv_part(dx, plane * pixels + row * line).data, n * bytes,
                                                    stream);
        }
        _mm_sfence(); /* of what was streamed */
    }
    mx_pool_free(memory, threads * room);
    return MX_OK;
}

mx_status mx_conv_points_forward(const mx_conv *c, mx_array x, mx_array w, const float *bias, mx_array y)
{
    const mx_conv dense = without_stride(c);
    mx_array picked = {.dtype = x.dtype};
    int64_t bytes = picked_bytes(c, x.dtype);
    MX_TRY(mx_pool_alloc(bytes, &picked.data));
    pick(c, x, picked.data);
    mx_status status = mx_conv_forward(&dense, picked, w, bias, y);
    mx_pool_free(picked.data, bytes);
    return status;
}

mx_status mx_conv_points_grad_x(const mx_conv *c, mx_array dy, mx_array w, mx_array dx)
{
    const mx_conv dense = without_stride(c);
    mx_array picked = {.dtype = dx.dtype};
    int64_t bytes = picked_bytes(c, dx.dtype);
    MX_TRY(mx_pool_alloc(bytes, &picked.data));
    mx_status status = mx_conv_grad_x(&dense, dy, w, picked);
    if (status == MX_OK)
        status = spread(c, picked.data, dx);
    mx_pool_free(picked.data, bytes);
    return status;
}

mx_status mx_conv_points_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw)
{
    const mx_conv dense = without_stride(c);
    mx_array picked = {.dtype = x.dtype};
    int64_t bytes = picked_bytes(c, x.dtype);
    MX_TRY(mx_pool_alloc(bytes, &picked.data));
    pick(c, x, picked.data);
    mx_status status = mx_conv_grad_w(&dense, picked, dy, dw);
    mx_pool_free(picked.data, bytes);
    return status;
}
