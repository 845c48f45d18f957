#include "kernels/loss.h"

#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/gemm.h"

#include <string.h>

static bool counts(const mx_cross_entropy *c, int64_t token) { return !c->mask || c->mask[token] != 0; }

int64_t mx_cross_entropy_find_bad(const mx_cross_entropy *c)
{
    for (int64_t t = 0; t < c->tokens; t++)
        if (counts(c, t) && (c->targets[t] < 0 || c->targets[t] >= c->vocab))
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

typedef struct chunk {
    int64_t first, rows;
    float *logits;     /* (rows, stride) */
    int64_t stride;    /* of logits, in floats */
    float *losses;     /* (tokens) */
    float factor;      /* of the gradient */
    mx_matrix weight;  /* as W^T, width x vocab */
    mx_matrix h;       /* rows x width */
    mx_matrix dlogits; /* rows x vocab, in the memory of the logits */
} chunk;

static mx_status make_logits(const mx_cross_entropy *c, const chunk *k)
{
    return mx_gemm_run(&(mx_gemm){.m = k->rows,
                                  .n = c->vocab,
                                  .k = c->width,
                                  .a = k->h,
                                  .b = k->weight,
                                  .c = matrix(k->logits, MX_F32, k->stride, false),
                                  .alpha = 1.0f});
}

static void rows_of_chunk(const mx_cross_entropy *c, const chunk *k, bool gradient)
{
    mx_loss_row_path *path = mx_kernels_current()->loss_row;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < k->rows; r++) {
        float *logits = k->logits + r * k->stride;
        int64_t token = k->first + r;
        k->losses[token] = 0;
        if (counts(c, token))
            k->losses[token] = path(&(mx_loss_row){.logits = logits,
                                                   .vocab = c->vocab,
                                                   .target = c->targets[token],
                                                   .z_loss = c->z_loss,
                                                   .softcap = c->softcap,
                                                   .logit_scale = c->logit_scale,
                                                   .dlogits = gradient ? logits : NULL,
                                                   .dtype = c->h_dtype,
                                                   .factor = k->factor});
        else if (gradient)
            memset(logits, 0, (size_t)c->vocab * mx_dtype_bytes(c->h_dtype));
    }
}

static mx_status make_dh(const mx_cross_entropy *c, const chunk *k)
{
    char *dh = (char *)c->dh + k->first * c->width * (int64_t)mx_dtype_bytes(c->h_dtype);
    mx_matrix weight = k->weight;
    weight.trans = !weight.trans;
    return mx_gemm_run(&(mx_gemm){.m = k->rows,
                                  .n = c->width,
                                  .k = c->vocab,
                                  .a = k->dlogits,
                                  .b = weight,
                                  .c = matrix(dh, c->h_dtype, c->width, false),
                                  .alpha = 1.0f});
}

/* dW (+)= dlogits^T h, or its transpose where W is kept as (width, vocab). */
static mx_status make_dweight(const mx_cross_entropy *c, const chunk *k)
{
    mx_gemm g = {.k = k->rows, .alpha = 1.0f, .accumulate = k->first > 0};
    g.m = c->trans ? c->vocab : c->width;
    g.n = c->trans ? c->width : c->vocab;
    g.a = c->trans ? k->dlogits : k->h;
    g.b = c->trans ? k->h : k->dlogits;
    g.a.trans = true;
    g.c = matrix(c->dweight, MX_F32, g.n, false);
    return mx_gemm_run(&g);
}

static mx_status run_chunk(const mx_cross_entropy *c, chunk *k)
{
    int64_t h_bytes = (int64_t)mx_dtype_bytes(c->h_dtype);
    k->h = matrix((const char *)c->h + k->first * c->width * h_bytes, c->h_dtype, c->width, false);
    k->weight = matrix(c->weight, c->weight_dtype, c->trans ? c->width : c->vocab, c->trans);
    k->dlogits = matrix(k->logits, c->h_dtype, k->stride * (int64_t)sizeof(float) / h_bytes, false);
    MX_TRY(make_logits(c, k));
    rows_of_chunk(c, k, c->dh || c->dweight);
    if (c->dh)
        MX_TRY(make_dh(c, k));
    return c->dweight ? make_dweight(c, k) : MX_OK;
}

static double how_many_count(const mx_cross_entropy *c)
{
    int64_t count = 0;
    for (int64_t t = 0; t < c->tokens; t++)
        count += counts(c, t);
    return (double)count;
}

mx_status mx_cross_entropy_run(const mx_cross_entropy *c)
{
    *c->loss = 0;
    if (c->tokens == 0 || c->width == 0 || c->vocab == 0) {
        if (c->dweight)
            memset(c->dweight, 0, (size_t)(c->vocab * c->width) * sizeof *c->dweight);
        return MX_OK;
    }
    double normalizer = c->normalizer != 0 ? c->normalizer : how_many_count(c);
    chunk k = {.factor = normalizer != 0 ? (float)(1 / normalizer) : 0.0f};
    k.stride = (c->vocab + 15) / 16 * 16;
    /* Rows a multiple of 4 KiB apart would share their places in the first-level cache. */
    if (k.stride % 1024 == 0)
        k.stride += 16;
    int64_t rows = mx_cross_entropy_chunk(c);
    int64_t logit_bytes = rows * k.stride * (int64_t)sizeof(float);
    int64_t bytes = logit_bytes + c->tokens * (int64_t)sizeof(float);
    void *scratch = NULL;
    MX_TRY(mx_pool_alloc(bytes, &scratch));
    k.logits = scratch;
    k.losses = (float *)((char *)scratch + logit_bytes);
    mx_status status = MX_OK;
    for (k.first = 0; k.first < c->tokens && status == MX_OK; k.first += rows) {
        k.rows = c->tokens - k.first < rows ? c->tokens - k.first : rows;
        status = run_chunk(c, &k);
    }
    double sum = 0;
    for (int64_t t = 0; t < c->tokens && status == MX_OK; t++)
        sum += (double)k.losses[t];
    *c->loss = normalizer != 0 ? (float)(sum / normalizer) : 0.0f;
    mx_pool_free(scratch, bytes);
    return status;
}
