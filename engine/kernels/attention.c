/* The driver of attention: checks, block sizes, the split over threads, scratch memory. */
#include "kernels/attention.h"

#include "core/cpu.h"
#include "core/element.h"
#include "core/pool.h"
#include "kernels/attention_paths.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum {
    PANEL_BYTES = 20480,
    PANEL_KEYS = 512,              /* of a sequence that is too long to be packed as a whole */
    MERGE_PARALLEL_FROM = 1 << 16, /* elements */
};

int mx_attention_threads(void) { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

const mx_attention_path *mx_attention_path_of(const mx_attention *a)
{
    const mx_kernels *kernels = mx_kernels_current();
    return mx_is_bf16(a->dtype) ? kernels->attention_bf16 : kernels->attention_f32;
}

/* Two caches limit a tile. A product uses one operand again and again: row_unit columns of as many words as the tile
 * has keys (rows). That operand fits into most of the first-level cache. */
void mx_attention_choose_blocks(mx_attention_plan *p, const mx_attention_path *path, int64_t per_row, int64_t per_key,
                                double per_pair, double cache)
{
    double side = 8;
    double longest = PANEL_BYTES / (double)(path->row_unit * path->word_bytes);
    while (side + 8 <= longest && side * (double)(per_row + per_key) + side * side * per_pair < cache)
        side += 8;
    int64_t rows = (int64_t)side / path->row_unit * path->row_unit, keys = (int64_t)side / 16 * 16;
    rows = rows < path->row_unit ? path->row_unit : rows;
    p->block_rows = mx_min(rows, mx_round_up(p->rows, path->row_unit));
    p->block_keys = mx_round_up(keys < 32 ? 32 : keys, path->key_unit);
}

mx_attention_plan mx_attention_plan_of(const mx_attention *a)
{
    mx_attention_plan p = {.a = a};
    p.group = a->n_kv_heads > 0 ? a->n_heads / a->n_kv_heads : 1;
    p.rows = a->queries * p.group;
    p.keys = a->kv_length > 0 ? mx_min(a->kv_length, a->keys) : a->keys;
    p.scale = a->scale > 0 ? a->scale : 1.0f / sqrtf((float)a->head_dim);
    return p;
}

bool mx_attention_is_empty(const mx_attention *a)
{
    return a->batch == 0 || a->n_kv_heads == 0 || a->head_dim == 0 || a->value_dim == 0;
}

void mx_attention_scratch_reset(int threads, int64_t bytes, char *scratch)
{
    for (int i = 0; i < threads; i++)
        memset(scratch + i * bytes, 0xff, 64);
}

mx_status mx_attention_scratch_new(int threads, int64_t bytes, char **scratch)
{
    void *data;
    MX_TRY(mx_pool_alloc(threads * bytes, &data));
    *scratch = data;
    mx_attention_scratch_reset(threads, bytes, data);
    return MX_OK;
}

/* The mean number of keys of a query. */
static int64_t mean_keys(const mx_attention_plan *p)
{
    int64_t sequences = p->a->intervals ? p->a->batch : 1, queries = p->rows / p->group, sum = 0;
    for (int64_t b = 0; b < sequences; b++)
        for (int64_t i = 0; i < queries; i++) {
            mx_attention_run run = mx_attention_run_of(p, b * p->a->n_kv_heads, i * p->group);
            sum += mx_max(run.end - run.first, 0);
        }
    return sum / mx_max(sequences * queries, 1);
}

void mx_attention_choose_panels(mx_attention_plan *p, int64_t (*bytes)(const mx_attention_plan *), int64_t key_bytes,
                                int64_t max_rows, int64_t limit)
{
    p->panel_keys = mx_round_up(mx_max(p->keys, 1), p->block_keys);
    p->super_rows = p->block_rows;
    if (bytes(p) + p->panel_keys * key_bytes <= limit)
        return;
    p->panel_keys = mx_min(p->panel_keys, mx_max(PANEL_KEYS / p->block_keys, 1) * p->block_keys);
    while (p->panel_keys > p->block_keys && bytes(p) + p->panel_keys * key_bytes > limit)
        p->panel_keys -= p->block_keys;
    max_rows = mx_min(max_rows, mean_keys(p) * p->group);
    while (p->super_rows + p->block_rows <= max_rows && bytes(p) + p->panel_keys * key_bytes <= limit)
        p->super_rows += p->block_rows;
    if (p->super_rows > p->block_rows && bytes(p) + p->panel_keys * key_bytes > limit)
        p->super_rows -= p->block_rows;
}

int64_t mx_attention_pieces(const mx_attention_plan *p, int64_t heads, int threads)
{
    return threads == 1 ? 1 : mx_min(mx_ceil_div(p->rows, p->block_rows), mx_ceil_div(4 * threads, heads));
}

mx_attention_piece mx_attention_piece_of(const mx_attention_plan *p, int64_t pieces, int64_t i)
{
    /* The last piece first: with a causal mask it is the longest, and packs the keys of all others. */
    int64_t piece = pieces - 1 - i % pieces, blocks = mx_ceil_div(p->rows, p->block_rows);
    int64_t first = blocks * piece / pieces, last = blocks * (piece + 1) / pieces;
    int64_t calls = mx_ceil_div(last - first, p->super_rows / p->block_rows);
    int64_t step = mx_ceil_div(last - first, mx_max(calls, 1)) * p->block_rows;
    return (mx_attention_piece){i / pieces, first * p->block_rows, mx_min(last * p->block_rows, p->rows),
                                mx_max(step, 1)};
}

/* ---- forward ---- */

/* Merges the parts of one row, in order; they are `step` floats apart. */
static void join_parts(const mx_attention_plan *p, int64_t head, int64_t row, const float *part, int64_t n,
                       int64_t step, float *sums)
{
    const mx_attention *a = p->a;
    float top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        top = part[i * step] > top ? part[i * step] : top;
    memset(sums, 0, (size_t)a->value_dim * sizeof *sums);
    for (int64_t i = 0; i < n; i++) {
        const float *from = part + i * step;
        float weight = from[0] == -INFINITY ? 0.0f : exp2f(from[0] - top);
        sum += weight * from[1];
        for (int64_t d = 0; d < a->value_dim; d++)
            sums[d] += weight * from[16 + d];
    }
    float keep = mx_attention_end_row(p, head, row, top, &sum);
    mx_attention_rows out = mx_attention_query_rows(p, a->out, a->dtype, head, a->value_dim);
    void *to = (void *)mx_attention_row(&out, a->dtype, row);
    for (int64_t d = 0; d < a->value_dim; d++)
        mx_set_float(to, d, sum == 0 ? 0.0f : keep * sums[d] / sum, a->dtype);
}

/* Few rows: cuts the keys that any of them needs into parts of a fixed length. */
static mx_status decode(const mx_attention_path *path, const mx_attention_plan *p)
{
    const mx_attention *a = p->a;
    mx_attention_run keys = {p->keys, 0};
    for (int64_t b = 0; b < a->batch; b++) {
        mx_attention_run run = mx_attention_run_of_rows(p, b * a->n_kv_heads, 0, p->rows);
        keys.first = mx_min(keys.first, run.first);
        keys.end = mx_max(keys.end, run.end);
    }
    int64_t parts = (mx_max(keys.end - keys.first, 0) + MX_ATTENTION_DECODE_KEYS - 1) / MX_ATTENTION_DECODE_KEYS;
    int64_t floats = mx_attention_part_floats(a->value_dim), rows = a->n_kv_heads * p->rows, part = rows * floats;
    int64_t own = rows * (mx_max(floats, mx_attention_part_floats(a->head_dim)) + MX_ATTENTION_DECODE_BLOCK);
    int threads = mx_attention_threads();
    int64_t bytes = (a->batch * parts * part + threads * own) * (int64_t)sizeof(float);
    void *data;
    MX_TRY(mx_pool_alloc(bytes, &data));
    float *all = data, *scratch = all + a->batch * parts * part;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < a->batch * parts; i++) {
        int64_t first = keys.first + i % parts * MX_ATTENTION_DECODE_KEYS;
        path->decode(p, i / parts, first, mx_min(first + MX_ATTENTION_DECODE_KEYS, keys.end), all + i * part,
                     scratch + omp_get_thread_num() * own);
    }
    for (int64_t i = 0; i < a->batch * rows; i++)
        join_parts(p, i / p->rows, i % p->rows, all + i / rows * parts * part + i % rows * floats, parts, part,
                   scratch);
    mx_pool_free(data, bytes);
    return MX_OK;
}

mx_status mx_attention_forward_by(const mx_attention_path *path, const mx_attention *a, int64_t scratch)
{
    mx_attention_plan p = mx_attention_plan_of(a);
    if (mx_attention_is_empty(a) || p.rows == 0)
        return MX_OK;
    if (path->decode && p.rows <= MX_ATTENTION_DECODE_ROWS && !a->bias && !a->slopes && a->dropout.threshold == 0)
        return decode(path, &p);
    int64_t D = a->head_dim, V = a->value_dim, word = path->word_bytes;
    mx_attention_choose_blocks(&p, path, D * word + V * 4, (D + V) * word, 4.0 / 3, (double)mx_cpu_l2_bytes());

    p.stream = mx_should_stream(a->batch * a->queries * a->n_heads * V * (int64_t)mx_dtype_bytes(a->dtype));
    mx_attention_choose_panels(&p, path->forward_bytes, 0, MX_ATTENTION_SUPER_ROWS, scratch);

    /* Every row is its own sum, so the split over threads may be by their number. */
    int threads = mx_attention_threads();
    int64_t heads = a->batch * a->n_kv_heads, bytes = mx_round_up(path->forward_bytes(&p), 4096);
    int64_t pieces = mx_attention_pieces(&p, heads, threads);
    char *own;
    MX_TRY(mx_attention_scratch_new(threads, bytes, &own));
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < heads * pieces; i++) {
        mx_attention_piece piece = mx_attention_piece_of(&p, pieces, i);
        for (int64_t row = piece.first; row < piece.last; row += piece.step)
            path->forward(&p, piece.head, row, mx_min(row + piece.step, piece.last),
                          own + omp_get_thread_num() * bytes);
    }
    mx_pool_free(own, threads * bytes);
    return MX_OK;
}

mx_status mx_attention_forward(const mx_attention *a)
{
    return mx_attention_forward_by(mx_attention_path_of(a), a, MX_ATTENTION_SCRATCH);
}

void mx_attention_dropout_mask(const mx_attention *a, float *mask)
{
    mx_attention_plan p = mx_attention_plan_of(a);
    int64_t rows = a->batch * a->n_heads * a->queries;
#pragma omp parallel for schedule(static) if (rows * a->keys > MX_CHUNK)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t t = 0; t < a->keys; t++)
            mask[i * a->keys + t] =
                mx_attention_mask_at(&p, i / a->queries / a->n_heads, i / a->queries % a->n_heads, i % a->queries, t);
}

/* ---- merging ---- */

/* One query of one head: sums = sums e^(lse - both) + part e^(part_lse - both), both = log(e^lse + e^part_lse). */
static void merge_row(const void *part, mx_dtype dtype, float part_lse, int64_t width, float *restrict sums, float *lse)
{
    if (part_lse == -INFINITY)
        return;
    float top = *lse > part_lse ? *lse : part_lse;
    float mine = expf(*lse - top), theirs = expf(part_lse - top), both = mine + theirs;
    bool empty = *lse == -INFINITY;
    *lse = top + logf(both);
    mine /= both;
    theirs /= both;
    const float *restrict f32 = part;
    const mx_bf16 *restrict bf16 = part;
    bool is_bf16 = mx_is_bf16(dtype);
    for (int64_t d = 0; d < width; d++) {
        float x = theirs * (is_bf16 ? mx_from_bf16(bf16[d]) : f32[d]);
        sums[d] = empty ? x : mine * sums[d] + x;
    }
}

void mx_attention_merge(const mx_attention *part, float *sums, float *lse)
{
    int64_t heads = part->n_heads, queries = part->queries, width = part->value_dim;
    int64_t row_bytes = width * (int64_t)mx_dtype_bytes(part->dtype);
#pragma omp parallel for schedule(static) if (part->batch * queries * heads * width > MERGE_PARALLEL_FROM)
    for (int64_t i = 0; i < part->batch * queries; i++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t row = i * heads + h, at = (i / queries * heads + h) * queries + i % queries;
            merge_row((const char *)part->out + row * row_bytes, part->dtype, part->lse[at], width, sums + row * width,
                      lse + at);
        }
}

/* ---- costs ---- */

static float row_dot(const void *x, const void *y, mx_dtype dtype, int64_t width)
{
    const float *restrict x32 = x, *restrict y32 = y;
    const mx_bf16 *restrict x16 = x, *restrict y16 = y;
    bool is_bf16 = mx_is_bf16(dtype);
    float sum = 0;
    for (int64_t d = 0; d < width; d++)
        sum += is_bf16 ? mx_from_bf16(x16[d]) * mx_from_bf16(y16[d]) : x32[d] * y32[d];
    return sum;
}

void mx_attention_sinks_backward(const mx_attention *a, float *dsinks)
{
    int64_t heads = a->n_heads, row_bytes = a->value_dim * (int64_t)mx_dtype_bytes(a->dtype);
#pragma omp parallel for schedule(static) num_threads(mx_attention_threads())
    for (int64_t h = 0; h < heads; h++) {
        double sum = 0;
        for (int64_t i = 0; i < a->batch * a->queries; i++) {
            int64_t at = (i * heads + h) * row_bytes;
            float lse = a->lse[(i / a->queries * heads + h) * a->queries + i % a->queries];
            float delta = row_dot((const char *)a->out + at, (const char *)a->dout + at, a->dtype, a->value_dim);
            sum -= lse == -INFINITY ? 0.0 : (double)(expf(a->sinks[h] - lse) * delta);
        }
        dsinks[h] = (float)sum;
    }
}

double mx_attention_pairs(const mx_attention *a)
{
    mx_attention_plan p = mx_attention_plan_of(a);
    double pairs = 0;
    for (int64_t i = 0; i < a->queries; i++) {
        mx_attention_run run = mx_attention_positions(&p, i);
        pairs += run.first < run.end ? (double)(run.end - run.first) : 0;
    }
    return pairs;
}

double mx_attention_block_pairs_of(const mx_attention *a, int64_t block_q, int64_t block_kv)
{
    mx_attention_plan p = mx_attention_plan_of(a);
    double pairs = 0;
    p.group = 1;
    for (int64_t i = 0; i < a->queries; i += block_q) {
        int64_t rows = mx_min(block_q, a->queries - i);
        mx_attention_run run = mx_attention_run_of_rows(&p, 0, i, i + rows);
        if (run.first < run.end) {
            int64_t from = run.first / block_kv * block_kv, to = mx_min(mx_round_up(run.end, block_kv), p.keys);
            pairs += (double)rows * (double)(to - from);
        }
    }
    return pairs;
}
