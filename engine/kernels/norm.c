#include "kernels/norm.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"

#include <string.h>

/* Stores bypass the caches only if the `tensors` read and written do not fit into them and rows start at cache lines.
 */
static bool should_stream(const mx_norm *n, const void *out, int tensors)
{
    int64_t row_bytes = n->width * (int64_t)mx_dtype_bytes(n->dtype);
    return row_bytes % 64 == 0 && (uintptr_t)out % 64 == 0 && mx_should_stream(tensors * n->rows * row_bytes);
}

/* The `width` values as f32, in the order of the row loops: the given ones, or a copy in `scratch`. Without values
 * (NULL), `otherwise` for each. */
static const float *row_values(const mx_norm_paths *path, const mx_norm *n, const void *given, mx_dtype dtype,
                               float otherwise, float *scratch)
{
    if (given && !mx_is_bf16(dtype) && !mx_is_bf16(n->dtype))
        return given;
    for (int64_t i = 0; i < n->width; i++)
        scratch[i] = given ? mx_get_float(given, i, dtype) : otherwise;
    if (mx_is_bf16(n->dtype))
        path->arrange(scratch, n->width);
    return scratch;
}

mx_status mx_norm_forward(const mx_norm *given)
{
    if (given->rows == 0 || given->width == 0)
        return MX_OK;
    mx_norm n = *given;
    int64_t scratch_bytes = 2 * n.width * (int64_t)sizeof(float);
    void *scratch = NULL;
    MX_TRY(mx_pool_alloc(scratch_bytes, &scratch));
    const mx_norm_paths *path = mx_kernels_current()->norm;
    n.weight = row_values(path, &n, n.weight, n.weight_dtype, 1.0f, scratch);
    if (n.center)
        n.bias = row_values(path, &n, n.bias, n.bias_dtype, 0.0f, (float *)scratch + n.width);
    bool stream = should_stream(&n, n.y, 2);
    int64_t rows_at_once = 1 + 16384 / n.width;
    int64_t pieces = (n.rows + rows_at_once - 1) / rows_at_once;
#pragma omp parallel for schedule(static) if (n.rows * n.width > 32768)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = p * rows_at_once, last = first + rows_at_once;
        path->forward(&n, first, last < n.rows ? last : n.rows, stream);
    }
    mx_pool_free(scratch, scratch_bytes);
    return MX_OK;
}

void mx_norm_sums(const mx_norm *n, bool squares)
{
    const mx_norm_paths *path = mx_kernels_current()->norm;
    int64_t rows_at_once = n->width > 0 ? 1 + 16384 / n->width : n->rows;
    int64_t pieces = n->rows > 0 ? (n->rows + rows_at_once - 1) / rows_at_once : 0;
#pragma omp parallel for schedule(static) if (n->rows * n->width > 32768)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = p * rows_at_once, last = first + rows_at_once;
        path->sums(n, first, last < n->rows ? last : n->rows, squares);
    }
}

mx_status mx_norm_grad_sums(const mx_norm *given)
{
    mx_norm n = *given;
    if (n.rows == 0)
        return MX_OK;
    int64_t scratch_bytes = n.width * (int64_t)sizeof(float);
    void *scratch = NULL;
    MX_TRY(mx_pool_alloc(scratch_bytes, &scratch));
    const mx_norm_paths *path = mx_kernels_current()->norm;
    n.weight = row_values(path, &n, n.weight, n.weight_dtype, 1.0f, scratch);
    int64_t rows_at_once = n.width > 0 ? 1 + 16384 / n.width : n.rows;
    int64_t pieces = (n.rows + rows_at_once - 1) / rows_at_once;
#pragma omp parallel for schedule(static) if (n.rows * n.width > 32768)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = p * rows_at_once, last = first + rows_at_once;
        path->grad_sums(&n, first, last < n.rows ? last : n.rows);
    }
    mx_pool_free(scratch, scratch_bytes);
    return MX_OK;
}

/* out[i] = sum over b of partial[b * step + i], in order of b. */
static void sum_blocks(float *out, const float *partial, int64_t blocks, int64_t step, int64_t width)
{
#pragma omp parallel for schedule(static) if (blocks * width > 32768)
    for (int64_t from = 0; from < width; from += 256) {
        int64_t to = from + 256 < width ? from + 256 : width;
        memcpy(out + from, partial + from, (size_t)(to - from) * sizeof *out);
        for (int64_t b = 1; b < blocks; b++)
            for (int64_t i = from; i < to; i++)
                out[i] += partial[b * step + i];
    }
}

mx_status mx_norm_backward(const mx_norm *given)
{
    mx_norm n = *given;
    int64_t width = n.width;
    if (n.rows == 0 && n.dweight)
        memset(n.dweight, 0, (size_t)width * sizeof *n.dweight);
    if (n.rows == 0 && n.dbias)
        memset(n.dbias, 0, (size_t)width * sizeof *n.dbias);
    if (n.rows == 0 || width == 0)
        return MX_OK;

    /* The split depends on the problem alone. Long blocks keep the partial sums' traffic small beside the rows'. */
    int64_t block_rows = (n.rows + 127) / 128;
    block_rows = block_rows < 64 ? 64 : block_rows;
    int64_t blocks = (n.rows + block_rows - 1) / block_rows;
    int64_t step = 2 * width; /* of partial sums: dweight, dbias */
    int64_t scratch_bytes = (blocks * step + width) * (int64_t)sizeof(float);
    void *scratch = NULL;
    MX_TRY(mx_pool_alloc(scratch_bytes, &scratch));
    float *partial = scratch;
    const mx_norm_paths *path = mx_kernels_current()->norm;
    n.weight = row_values(path, &n, n.weight, n.weight_dtype, 1.0f, partial + blocks * step);
    bool stream = should_stream(&n, n.dx, 3);
#pragma omp parallel for schedule(static) if (n.rows * width > 32768)
    for (int64_t b = 0; b < blocks; b++) {
        mx_norm block = n;
        block.dweight = partial + b * step;
        block.dbias = given->dbias ? block.dweight + width : NULL;
        memset(block.dweight, 0, (size_t)step * sizeof *partial);
        int64_t first = b * block_rows, last = first + block_rows;
        path->backward(&block, first, last < n.rows ? last : n.rows, stream);
    }
    if (n.dweight)
        sum_blocks(n.dweight, partial, blocks, step, width);
    if (n.dbias)
        sum_blocks(n.dbias, partial + width, blocks, step, width);
    if (n.dweight && mx_is_bf16(n.dtype))
        path->arrange_back(n.dweight, width);
    if (n.dbias && mx_is_bf16(n.dtype))
        path->arrange_back(n.dbias, width);
    mx_pool_free(scratch, scratch_bytes);
    return MX_OK;
}
