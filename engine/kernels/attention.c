/* The driver of attention: checks, block sizes, the split over threads, scratch memory. */
#include "kernels/attention.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/attention_paths.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum {
    PANEL_BYTES = 20480,
    CHUNKED_HEADS = 16,            /* with fewer heads the backward of each is cut into chunks */
    CHUNK_BLOCKS = 4,              /* at least so many blocks of rows in a chunk, to be worth its sums */
    MERGE_PARALLEL_FROM = 1 << 16, /* elements */
    SUM_BYTES = 1 << 28,           /* what the sums of the chunks may take together */
};

static int threads_here(void) { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

static const mx_attention_path *path_of(const mx_attention *a)
{
    const mx_kernels *kernels = mx_kernels_current();
    return mx_is_bf16(a->dtype) ? kernels->attention_bf16 : kernels->attention_f32;
}

/* Chooses the rows and keys of a tile, about square. Two caches limit it. A tile touches `per_row` bytes for each row,
 * `per_key` for each key and `per_pair` for each pair; all of that fits into the part `share` of the second-level
 * cache. A product uses one operand again and again: row_unit columns of as many words as the tile has keys (rows).
 * That operand fits into most of the first-level cache. */
static void choose_blocks(mx_attention_plan *p, const mx_attention_path *path, int64_t per_row, int64_t per_key,
                          double per_pair, double share)
{
    double cache = share * (double)mx_cpu_l2_bytes(), side = 8;
    double longest = PANEL_BYTES / (double)(path->row_unit * path->word_bytes);
    while (side + 8 <= longest && side * (double)(per_row + per_key) + side * side * per_pair < cache)
        side += 8;
    int64_t rows = (int64_t)side / path->row_unit * path->row_unit, keys = (int64_t)side / 16 * 16;
    rows = rows < path->row_unit ? path->row_unit : rows;
    p->block_rows = mx_min(rows, mx_round_up(p->rows, path->row_unit));
    p->block_keys = mx_round_up(keys < 32 ? 32 : keys, path->key_unit);
}

static mx_attention_plan plan_of(const mx_attention *a)
{
    mx_attention_plan p = {.a = a, .chunks = 1};
    p.group = a->n_kv_heads > 0 ? a->n_heads / a->n_kv_heads : 1;
    p.rows = a->queries * p.group;
    p.keys = a->kv_length > 0 ? mx_min(a->kv_length, a->keys) : a->keys;
    p.scale = a->scale > 0 ? a->scale : 1.0f / sqrtf((float)a->head_dim);
    return p;
}

static bool is_empty(const mx_attention *a) { return a->batch == 0 || a->n_kv_heads == 0 || a->head_dim == 0; }

/* One scratch a thread, each ready for the first call. */
static mx_status scratch_new(int threads, int64_t bytes, char **scratch)
{
    void *data;
    MX_TRY(mx_pool_alloc(threads * bytes, &data));
    *scratch = data;
    for (int i = 0; i < threads; i++)
        memset(*scratch + i * bytes, 0xff, 64);
    return MX_OK;
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
    memset(sums, 0, (size_t)a->head_dim * sizeof *sums);
    for (int64_t i = 0; i < n; i++) {
        const float *from = part + i * step;
        float weight = from[0] == -INFINITY ? 0.0f : exp2f(from[0] - top);
        sum += weight * from[1];
        for (int64_t d = 0; d < a->head_dim; d++)
            sums[d] += weight * from[16 + d];
    }
    float keep = mx_attention_end_row(p, head, row, top, &sum);
    mx_attention_rows out = mx_attention_query_rows(p, a->out, a->dtype, head);
    void *to = (void *)mx_attention_row(&out, a->dtype, row);
    for (int64_t d = 0; d < a->head_dim; d++)
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
    int64_t floats = mx_attention_part_floats(a->head_dim), rows = a->n_kv_heads * p->rows, part = rows * floats;
    int64_t own = part + rows * MX_ATTENTION_DECODE_BLOCK;
    int threads = threads_here();
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

mx_status mx_attention_forward_by(const mx_attention_path *path, const mx_attention *a)
{
    mx_attention_plan p = plan_of(a);
    if (is_empty(a) || p.rows == 0)
        return MX_OK;
    if (path->decode && p.rows <= MX_ATTENTION_DECODE_ROWS && !a->bias && !a->slopes)
        return decode(path, &p);
    int64_t width = a->head_dim, word = path->word_bytes;
    choose_blocks(&p, path, width * (word + 4), width * 2 * word, 4.0 / 3, 1);

    /* Every row is its own sum, so the split over threads may be by their number. */
    int threads = threads_here();
    int64_t heads = a->batch * a->n_kv_heads, blocks = (p.rows + p.block_rows - 1) / p.block_rows;
    int64_t pieces = mx_min(blocks, (4 * threads + heads - 1) / heads);
    pieces = threads == 1 ? 1 : pieces;
    int64_t bytes = mx_round_up(path->forward_bytes(&p), 4096);
    char *scratch;
    MX_TRY(scratch_new(threads, bytes, &scratch));
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < heads * pieces; i++) {
        /* The last piece first: with a causal mask it is the longest, and packs the keys of all others. */
        int64_t piece = pieces - 1 - i % pieces;
        int64_t first = blocks * piece / pieces * p.block_rows, last = blocks * (piece + 1) / pieces * p.block_rows;
        path->forward(&p, i / pieces, first, mx_min(last, p.rows), scratch + omp_get_thread_num() * bytes);
    }
    mx_pool_free(scratch, threads * bytes);
    return MX_OK;
}

mx_status mx_attention_forward(const mx_attention *a) { return mx_attention_forward_by(path_of(a), a); }

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
    int64_t heads = part->n_heads, queries = part->queries, width = part->head_dim;
    int64_t row_bytes = width * (int64_t)mx_dtype_bytes(part->dtype);
#pragma omp parallel for schedule(static) if (part->batch * queries * heads * width > MERGE_PARALLEL_FROM)
    for (int64_t i = 0; i < part->batch * queries; i++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t row = i * heads + h, at = (i / queries * heads + h) * queries + i % queries;
            merge_row((const char *)part->out + row * row_bytes, part->dtype, part->lse[at], width, sums + row * width,
                      lse + at);
        }
}

/* ---- backward ---- */

/* Adds up the sums of the chunks to dk and dv of keys first to before last. The sums of dv start `sum_floats` after
 * those of dk. */
static void store_keys(const mx_attention_path *path, const mx_attention_plan *p, int64_t head, int64_t first,
                       int64_t last, const float *sums, int64_t sum_floats)
{
    const mx_attention *a = p->a;
    int64_t columns = path->sum_width(a->head_dim);
    mx_attention_rows dk = mx_attention_key_rows(p, a->dk, a->dk_dtype, head);
    mx_attention_rows dv = mx_attention_key_rows(p, a->dv, a->dv_dtype, head);
    for (int64_t t = first; t < last; t++) {
        int64_t n = t < p->keys ? p->chunks : 0;
        const float *sum = sums + t * columns;
        path->store(a->dk_dtype, (void *)mx_attention_row(&dk, a->dk_dtype, t), a->head_dim, sum, n, 2 * sum_floats,
                    p->scale);
        path->store(a->dv_dtype, (void *)mx_attention_row(&dv, a->dv_dtype, t), a->head_dim, sum + sum_floats, n,
                    2 * sum_floats, 1.0f);
    }
}

/* The number of chunks of the rows of a head. It depends only on the sizes of the problem, because it orders the sums.
 */
static int64_t choose_chunks(const mx_attention_plan *p, int64_t heads, int64_t bytes_per_chunk)
{
    if (heads >= CHUNKED_HEADS)
        return 1;
    int64_t blocks = (p->rows + p->block_rows - 1) / p->block_rows;
    int64_t chunks = mx_min((CHUNKED_HEADS + heads - 1) / heads, blocks / CHUNK_BLOCKS);
    chunks = mx_min(chunks, SUM_BYTES / (heads * bytes_per_chunk + 1));
    return chunks < 2 ? 1 : chunks / 2 * 2;
}

/* Heads that may run at once, because none of them adds to the bias gradient of another. */
static int64_t heads_together(const mx_attention *a)
{
    if (!a->dbias)
        return a->batch * a->n_kv_heads;
    if (a->bias_head == 0 && a->n_kv_heads > 1)
        return 1;
    return a->bias_batch == 0 ? a->n_kv_heads : a->batch * a->n_kv_heads;
}

/* Heads first to before first + heads. The sums hold what n_sums chunks give at once. */
static void backward_heads(const mx_attention_path *path, const mx_attention_plan *p, int64_t first_head, int64_t heads,
                           void *sums, int64_t sum_floats, char *scratch, int64_t bytes)
{
    int64_t keys = p->a->keys, sum_bytes = 2 * sum_floats * (int64_t)sizeof(float);
#pragma omp parallel num_threads(threads_here())
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < heads * p->chunks; i++) {
            float *sum = (float *)((char *)sums + (p->chunks == 1 ? thread : i) * sum_bytes);
            int64_t head = first_head + i / p->chunks;
            path->backward(p, head, i % p->chunks, sum, sum + sum_floats, scratch + thread * bytes);
            if (p->chunks == 1)
                store_keys(path, p, head, 0, keys, sum, sum_floats);
        }
        if (p->chunks > 1) {
            int64_t pieces = (keys + 63) / 64;
#pragma omp for schedule(static)
            for (int64_t i = 0; i < heads * pieces; i++) {
                const float *sum = (float *)((char *)sums + i / pieces * p->chunks * sum_bytes);
                int64_t first = i % pieces * 64;
                store_keys(path, p, first_head + i / pieces, first, mx_min(first + 64, keys), sum, sum_floats);
            }
        }
    }
}

mx_status mx_attention_backward_by(const mx_attention_path *path, const mx_attention *a)
{
    mx_attention_plan p = plan_of(a);
    if (is_empty(a))
        return MX_OK;
    int64_t width = a->head_dim, word = path->word_bytes, heads = a->batch * a->n_kv_heads;
    choose_blocks(&p, path, width * (4 * word + 4), width * (3 * word + 8), 8, 2);
    if (p.rows == 0)
        p.block_rows = path->row_unit;
    int64_t sum_floats = mx_round_up(p.keys, p.block_keys) * path->sum_width(width);
    sum_floats = mx_round_up(sum_floats, 16);
    int64_t sum_bytes = 2 * sum_floats * (int64_t)sizeof(float);
    int64_t together = heads_together(a);
    p.chunks = a->dbias && a->bias_query == 0 ? 1 : choose_chunks(&p, together, sum_bytes);

    int threads = threads_here();
    int64_t bytes = mx_round_up(path->backward_bytes(&p), 4096), n_sums = p.chunks == 1 ? threads : together * p.chunks;
    char *scratch;
    void *sums;
    MX_TRY(scratch_new(threads, bytes, &scratch));
    mx_status status = mx_pool_alloc(n_sums * sum_bytes, &sums);
    if (status != MX_OK) {
        mx_pool_free(scratch, threads * bytes);
        return status;
    }
    for (int64_t head = 0; head < heads; head += together)
        backward_heads(path, &p, head, together, sums, sum_floats, scratch, bytes);
    mx_pool_free(sums, n_sums * sum_bytes);
    mx_pool_free(scratch, threads * bytes);
    return MX_OK;
}

mx_status mx_attention_backward(const mx_attention *a) { return mx_attention_backward_by(path_of(a), a); }

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
    int64_t heads = a->n_heads, row_bytes = a->head_dim * (int64_t)mx_dtype_bytes(a->dtype);
#pragma omp parallel for schedule(static) num_threads(threads_here())
    for (int64_t h = 0; h < heads; h++) {
        double sum = 0;
        for (int64_t i = 0; i < a->batch * a->queries; i++) {
            int64_t at = (i * heads + h) * row_bytes;
            float lse = a->lse[(i / a->queries * heads + h) * a->queries + i % a->queries];
            float delta = row_dot((const char *)a->out + at, (const char *)a->dout + at, a->dtype, a->head_dim);
            sum -= lse == -INFINITY ? 0.0 : (double)(expf(a->sinks[h] - lse) * delta);
        }
        dsinks[h] = (float)sum;
    }
}

double mx_attention_pairs(const mx_attention *a)
{
    mx_attention_plan p = plan_of(a);
    double pairs = 0;
    for (int64_t i = 0; i < a->queries; i++) {
        mx_attention_run run = mx_attention_positions(&p, i);
        pairs += run.first < run.end ? (double)(run.end - run.first) : 0;
    }
    return pairs;
}

double mx_attention_block_pairs_of(const mx_attention *a, int64_t block_q, int64_t block_kv)
{
    mx_attention_plan p = plan_of(a);
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
