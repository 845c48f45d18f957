#include "kernels/embedding.h"

#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"
#include "kernels/move.h"

#include <immintrin.h>
#include <string.h>

int64_t mx_embedding_find_bad(const int32_t *ids, int64_t n, int64_t vocab)
{
    enum { PART = 4096 };
    int64_t found = n;
#pragma omp parallel for schedule(static) reduction(min : found) if (n > 16 * PART)
    for (int64_t from = 0; from < n; from += PART) {
        int64_t to = from + PART < n ? from + PART : n;
        if (mx_kernels_current()->moves->within(ids + from, to - from, vocab))
            continue;
        int64_t i = from;
        while (ids[i] >= 0 && ids[i] < vocab)
            i++;
        found = i < found ? i : found;
    }
    return found < n ? found : -1;
}

/* The row of an id in a table of `vocab` rows from id `first` on; -1: it is not there. */
static inline int64_t row_of(int32_t id, int64_t first, int64_t vocab)
{
    int64_t row = id - first;
    return row >= 0 && row < vocab ? row : -1;
}

enum { GATHERED = 256, ROOM = 4096 }; /* columns, and bytes, that are converted at once */

/* Columns [first, first + n) of token t's row. Those of a later token are asked for: the processor does not foresee
 * where they are. */
static void gather_row(const mx_embedding *e, int64_t t, int64_t first, int64_t n, char *to)
{
    enum { AHEAD = 4096 };
    const mx_kernels *paths = mx_kernels_current();
    const int64_t bytes = (int64_t)mx_dtype_bytes(e->table_dtype), step = e->width * bytes;
    const int64_t row = row_of(e->ids[t], e->first, e->vocab), later = mx_min(e->tokens - 1, t + 1 + AHEAD / step);
    const int64_t then = row_of(e->ids[later], e->first, e->vocab);
    const char *table = (const char *)e->table + first * bytes, *from = table + row * step;
    for (int64_t i = 0; then >= 0 && i < n * bytes; i += 64)
        __builtin_prefetch(table + then * step + i, 0, 2);
    if (row < 0)
        memset(to, 0, (size_t)n * mx_dtype_bytes(e->out_dtype));
    else if (e->table_dtype == e->out_dtype && e->scale == 1.0f)
        paths->elementwise->copy(from, to, n * bytes, false);
    else
        paths->rows->convert(to, e->out_dtype, from, e->table_dtype, e->scale, n);
}

/* What is streamed goes by way of the first-level cache. */
void mx_embedding_gather(const mx_embedding *e)
{
    const int64_t bytes = (int64_t)mx_dtype_bytes(e->out_dtype), row = e->width * bytes;
    const int64_t piece = mx_min(GATHERED, e->width), together = e->width > 0 ? mx_max(1, ROOM / row) : 0;
    const bool stream = mx_should_stream(e->tokens * (row + e->width * (int64_t)mx_dtype_bytes(e->table_dtype)));
    if (together == 0)
        return;
#pragma omp parallel if (e->tokens * e->width > 32768)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < e->tokens; t += together)
            for (int64_t c = 0; c < e->width; c += piece) {
                _Alignas(64) char room[ROOM];
                const int64_t count = mx_min(together, e->tokens - t), n = mx_min(piece, e->width - c);
                char *to = (char *)e->out + t * row + c * bytes;
                for (int64_t k = 0; k < count; k++)
                    gather_row(e, t + k, c, n, stream ? room + k * n * bytes : to + k * row);
                if (stream)
                    mx_kernels_current()->elementwise->copy(room, to, count * n * bytes, true);
            }
        _mm_sfence();
    }
}

/* ---- sums ---- */

/* Tokens by row: those of row r are order[start[r]] to before order[start[r + 1]], in their own order. */
typedef struct by_row {
    int32_t *start, *order; /* (vocab + 1), (tokens) */
    int64_t bytes;          /* of both, one block from start on */
} by_row;

static mx_status sort_by_row(const mx_embedding_sum *e, by_row *b)
{
    b->bytes = (e->vocab + 1 + e->tokens) * (int64_t)sizeof(int32_t);
    MX_TRY(mx_pool_alloc(b->bytes, (void **)&b->start));
    b->order = b->start + e->vocab + 1;
    memset(b->start, 0, (size_t)(e->vocab + 1) * sizeof *b->start);
    for (int64_t t = 0; t < e->tokens; t++) {
        int64_t row = row_of(e->ids[t], e->first, e->vocab);
        if (row >= 0)
            b->start[row + 1]++;
    }
    for (int64_t row = 0; row < e->vocab; row++)
        b->start[row + 1] += b->start[row];
    for (int64_t t = 0; t < e->tokens; t++) {
        int64_t row = row_of(e->ids[t], e->first, e->vocab);
        if (row >= 0)
            b->order[b->start[row]++] = (int32_t)t;
    }
    memmove(b->start + 1, b->start, (size_t)e->vocab * sizeof *b->start); /* each has moved to the next one's */
    b->start[0] = 0;
    return MX_OK;
}

/* An id that occurs more than OFTEN times is summed in runs of so many tokens. STRIP: columns that are summed together,
 * in the first-level cache; PIECE: after which the next row is asked for. */
enum { OFTEN = 256, STRIP = 4096, PIECE = 256 };

/* sum[j] += the n columns from `first` on of the tokens' rows of dy. `end`: of all tokens. */
static void add_tokens(const mx_embedding_sum *e, const int32_t *tokens, int64_t count, const int32_t *end,
                       int64_t first, int64_t n, float *sum)
{
    const mx_row_paths *path = mx_kernels_current()->rows;
    int64_t bytes = (int64_t)mx_dtype_bytes(e->dtype), step = e->width * bytes;
    const char *dy = (const char *)e->dy + first * bytes;
    for (int64_t k = 0; k < count; k++) {
        const char *row = dy + tokens[k] * step, *next = tokens + k + 1 < end ? dy + tokens[k + 1] * step : row;
        for (int64_t j = 0; j < n; j += PIECE) { /* the processor does not foresee where the next row is */
            int64_t some = mx_min(PIECE, n - j);
            for (int64_t b = 0; b < some * bytes; b += 64)
                __builtin_prefetch(next + j * bytes + b, 0, 2);
            path->add(sum + j, MX_F32, row + j * bytes, e->dtype, e->scale, some);
        }
    }
}

/* Runs of OFTEN tokens in f32, added up in f64, and the number that was there. */
static void add_often(const mx_embedding_sum *e, const int32_t *tokens, int64_t count, const int32_t *end,
                      int64_t first, int64_t n, float *sum)
{
    double all[STRIP] = {0};
    float run[STRIP];
    for (int64_t k = 0; k < count; k += OFTEN) {
        memset(run, 0, (size_t)n * sizeof *run);
        add_tokens(e, tokens + k, mx_min(OFTEN, count - k), end, first, n, run);
        for (int64_t j = 0; j < n; j++)
            all[j] += run[j];
    }
    for (int64_t j = 0; j < n; j++)
        sum[j] = (float)(sum[j] + all[j]);
}

static void add_strip(const mx_embedding_sum *e, const by_row *b, int64_t row, int64_t first, bool stream)
{
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    const int32_t *tokens = b->order + b->start[row], *end = b->order + b->start[e->vocab];
    int64_t count = b->start[row + 1] - b->start[row], n = mx_min(STRIP, e->width - first);
    float *grad = e->grad + row * e->width + first, sum[STRIP];
    if (count == 0 && !e->replace)
        return;
    if (e->replace)
        memset(sum, 0, (size_t)n * sizeof *sum);
    else
        memcpy(sum, grad, (size_t)n * sizeof *sum);
    if (count > OFTEN)
        add_often(e, tokens, count, end, first, n, sum);
    else
        add_tokens(e, tokens, count, end, first, n, sum);
    paths->copy(sum, grad, n * (int64_t)sizeof *sum, stream);
}

/* Threads share the elements of the gradient, never the tokens. Rows differ in their tokens, so they are given out as
 * threads become free. */
mx_status mx_embedding_add(const mx_embedding_sum *e)
{
    int64_t strips = mx_ceil_div(e->width, STRIP), together = 8 + 2 * STRIP / mx_max(1, e->width);
    bool stream = e->replace && mx_should_stream(e->vocab * e->width * (int64_t)sizeof *e->grad);
    by_row b;
    MX_TRY(sort_by_row(e, &b));
#pragma omp parallel if (e->tokens * e->width > 32768)
    {
#pragma omp for schedule(dynamic)
        for (int64_t row = 0; row < e->vocab; row += together)
            for (int64_t s = 0; s < strips; s++)
                for (int64_t r = row; r < mx_min(e->vocab, row + together); r++)
                    add_strip(e, &b, r, s * STRIP, stream);
        _mm_sfence();
    }
    mx_pool_free(b.start, b.bytes);
    return MX_OK;
}
