#include "kernels/loss.h"

#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"

#include <math.h>
#include <string.h>

static bool counts(const mx_cross_entropy *c, int64_t token) { return !c->mask || c->mask[token] != 0; }

int64_t mx_cross_entropy_find_bad(const mx_cross_entropy *c, int64_t vocab)
{
    for (int64_t t = 0; t < c->tokens; t++)
        if (counts(c, t) && (c->targets[t] < 0 || c->targets[t] >= vocab))
            return t;
    return -1;
}

/* Each chunk reads the weights twice and reads and writes their gradient, so few tokens would leave the products
 * waiting for memory; many would make the logits a large part of all memory. Below 1,024 tokens the logits of a chunk
 * take at most a quarter of what the weight gradient takes, or 128 MiB. */
int64_t mx_cross_entropy_chunk(const mx_cross_entropy *c)
{
    if (c->chunk > 0)
        return c->chunk;
    int64_t row_bytes = c->vocab * (int64_t)sizeof(float) + 1;
    int64_t bytes = c->vocab * c->width * (int64_t)sizeof(float) / 4;
    bytes = bytes < (128 << 20) ? 128 << 20 : bytes;
    int64_t rows = bytes / row_bytes / 64 * 64;
    rows = rows < 256 ? 256 : rows > 1024 ? 1024 : rows;
    /* Chunks of equal size: a short last one would be slow. */
    int64_t chunks = (c->tokens + rows - 1) / rows;
    if (chunks > 1)
        rows = ((c->tokens + chunks - 1) / chunks + 15) / 16 * 16;
    return rows < c->tokens ? rows : c->tokens;
}

static mx_matrix matrix(const void *data, mx_dtype dtype, int64_t stride, bool trans)
{
    return (mx_matrix){.data = (void *)data, .dtype = dtype, .stride = stride, .trans = trans};
}

/* Rows a multiple of 4 KiB apart would share their places in the first-level cache. */
int64_t mx_cross_entropy_stride(int64_t vocab)
{
    int64_t stride = (vocab + 15) / 16 * 16;
    return stride % 1024 == 0 ? stride + 16 : stride;
}

/* As W^T, width x vocab. */
static mx_matrix weight_of(const mx_cross_entropy *c)
{
    return matrix(c->weight, c->weight_dtype, c->trans ? c->width : c->vocab, c->trans);
}

static mx_matrix h_of(const mx_cross_entropy *c, const mx_loss_chunk *k)
{
    const char *h = (const char *)c->h + k->first * c->width * (int64_t)mx_dtype_bytes(c->h_dtype);
    return matrix(h, c->h_dtype, c->width, false);
}

/* The gradient of the logits, rows x vocab, in their memory. */
static mx_matrix dlogits_of(const mx_cross_entropy *c, const mx_loss_chunk *k)
{
    int64_t per_float = (int64_t)(sizeof(float) / mx_dtype_bytes(c->h_dtype));
    return matrix(k->logits, c->h_dtype, k->stride * per_float, false);
}

static mx_loss_row row_of(const mx_cross_entropy *c, const mx_loss_chunk *k, int64_t r)
{
    float *logits = k->logits + r * k->stride;
    int64_t target = c->targets[k->first + r] - c->first_id;
    return (mx_loss_row){.logits = logits,
                         .vocab = c->vocab,
                         .target = target >= 0 && target < c->vocab ? target : -1,
                         .z_loss = c->z_loss,
                         .softcap = c->softcap,
                         .logit_scale = c->logit_scale,
                         .dlogits = logits,
                         .dtype = c->h_dtype};
}

mx_status mx_cross_entropy_logits(const mx_cross_entropy *c, const mx_loss_chunk *k)
{
    MX_TRY(mx_gemm_run(&(mx_gemm){.m = k->rows,
                                  .n = c->vocab,
                                  .k = c->width,
                                  .a = h_of(c, k),
                                  .b = weight_of(c),
                                  .c = matrix(k->logits, MX_F32, k->stride, false),
                                  .alpha = 1.0f}));
    const mx_loss_paths *path = mx_kernels_current()->loss;
#pragma omp parallel for schedule(static) if (k->rows * c->vocab >= MX_CHUNK)
    for (int64_t r = 0; r < k->rows; r++) {
        mx_loss_row row = row_of(c, k, r);
        k->sums[r] = counts(c, k->first + r) ? path->sums(&row) : (mx_loss_sums){0};
    }
    return MX_OK;
}

/* The sums of row r over the whole vocabulary. */
static mx_loss_sums combined(const mx_loss_chunk *k, int64_t r)
{
    mx_loss_sums all = {.largest = k->sums[r].largest};
    for (int64_t p = 1; p < k->parts; p++)
        all.largest = fmaxf(all.largest, k->sums[p * k->rows + r].largest);
    for (int64_t p = 0; p < k->parts; p++) {
        const mx_loss_sums *s = &k->sums[p * k->rows + r];
        all.sum += s->sum * expf(s->largest - all.largest);
        all.target += s->target;
    }
    return all;
}

static float loss_of(const mx_cross_entropy *c, const mx_loss_sums *all)
{
    float lse = all->largest + logf(all->sum);
    return (all->largest - all->target) + logf(all->sum) + c->z_loss * lse * lse;
}

static void rows_of_chunk(const mx_cross_entropy *c, const mx_loss_chunk *k, double normalizer)
{
    const mx_loss_paths *path = mx_kernels_current()->loss;
    bool gradient = c->dh || c->dweight;
#pragma omp parallel for schedule(static) if (k->rows * c->vocab >= MX_CHUNK)
    for (int64_t r = 0; r < k->rows; r++) {
        int64_t token = k->first + r;
        mx_loss_row row = row_of(c, k, r);
        row.factor = normalizer != 0 ? (float)(1 / normalizer) : 0.0f;
        k->losses[token] = 0;
        if (counts(c, token)) {
            mx_loss_sums all = combined(k, r);
            k->losses[token] = loss_of(c, &all);
            if (gradient)
                path->gradient(&row, &all);
        } else if (gradient) {
            memset(row.dlogits, 0, (size_t)c->vocab * mx_dtype_bytes(c->h_dtype));
        }
    }
}

static mx_status make_dh(const mx_cross_entropy *c, const mx_loss_chunk *k)
{
    char *dh = (char *)c->dh + k->first * c->width * (int64_t)mx_dtype_bytes(c->h_dtype);
    mx_matrix weight = weight_of(c);
    weight.trans = !weight.trans;
    return mx_gemm_run(&(mx_gemm){.m = k->rows,
                                  .n = c->width,
                                  .k = c->vocab,
                                  .a = dlogits_of(c, k),
                                  .b = weight,
                                  .c = matrix(dh, c->h_dtype, c->width, false),
                                  .alpha = 1.0f});
}

/* dW (+)= dlogits^T h, or its transpose where W is kept as (width, vocab). */
static mx_status make_dweight(const mx_cross_entropy *c, const mx_loss_chunk *k)
{
    mx_gemm g = {.k = k->rows, .alpha = 1.0f, .accumulate = k->first > 0};
    g.m = c->trans ? c->vocab : c->width;
    g.n = c->trans ? c->width : c->vocab;
    g.a = c->trans ? dlogits_of(c, k) : h_of(c, k);
    g.b = c->trans ? h_of(c, k) : dlogits_of(c, k);
    g.a.trans = true;
    g.c = matrix(c->dweight, MX_F32, g.n, false);
    return mx_gemm_run(&g);
}

static double how_many_count(const mx_cross_entropy *c)
{
    int64_t count = 0;
    for (int64_t t = 0; t < c->tokens; t++)
        count += counts(c, t);
    return (double)count;
}

static float mean(const mx_cross_entropy *c, const float *losses, double normalizer)
{
    double sum = 0;
    for (int64_t t = 0; t < c->tokens; t++)
        sum += (double)losses[t];
    return normalizer != 0 ? (float)(sum / normalizer) : 0.0f;
}

mx_status mx_cross_entropy_gradients(const mx_cross_entropy *c, const mx_loss_chunk *k)
{
    double normalizer = c->normalizer != 0 ? c->normalizer : how_many_count(c);
    rows_of_chunk(c, k, normalizer);
    if (c->dh)
        MX_TRY(make_dh(c, k));
    if (c->dweight)
        MX_TRY(make_dweight(c, k));
    if (k->first + k->rows == c->tokens)
        *c->loss = mean(c, k->losses, normalizer);
    return MX_OK;
}

mx_status mx_cross_entropy_run(const mx_cross_entropy *c)
{
    mx_loss_chunk k = {.stride = mx_cross_entropy_stride(c->vocab), .parts = 1};
    int64_t rows = mx_cross_entropy_chunk(c);
    int64_t logit_bytes = rows * k.stride * (int64_t)sizeof(float), sum_bytes = rows * (int64_t)sizeof *k.sums;
    int64_t bytes = logit_bytes + sum_bytes + c->tokens * (int64_t)sizeof(float);
    void *scratch = NULL;
    MX_TRY(mx_pool_alloc(bytes, &scratch));
    k.logits = scratch;
    k.sums = (mx_loss_sums *)((char *)scratch + logit_bytes);
    k.losses = (float *)((char *)k.sums + sum_bytes);
    mx_status status = MX_OK;
    do { /* no tokens are one chunk of none */
        k.rows = c->tokens - k.first < rows ? c->tokens - k.first : rows;
        status = mx_cross_entropy_logits(c, &k);
        if (status == MX_OK)
            status = mx_cross_entropy_gradients(c, &k);
        k.first += k.rows;
    } while (status == MX_OK && k.first < c->tokens);
    mx_pool_free(scratch, bytes);
    return status;
}
