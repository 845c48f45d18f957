/* The driver of attention's backward pass.
 *
 * One pass computes five products of each pair: scores, their gradients, and the sums dq, dk and dv. The sums of dk and
 * dv of a head then need memory for all its keys, and few heads need several such sums to keep all threads busy. For a
 * long sequence that is too much: two passes take seven products, one for dk and dv by panels of keys, one for dq by
 * rows. Each of their sums is complete in one call, and panels and rows are enough work for all threads. */
#include "core/cpu.h"
#include "core/pool.h"
#include "kernels/attention_paths.h"

#include <omp.h>
#include <string.h>

enum {
    CHUNKED_HEADS = 16,    /* with fewer heads the backward of each is cut into chunks */
    CHUNK_BLOCKS = 4,      /* at least so many blocks of rows in a chunk, to be worth its sums */
    SUM_BYTES = 1 << 28,   /* what the sums of the chunks may take together */
    BLOCK_BYTES = 1 << 20, /* what a tile touches in two passes */
};

/* Sums of a panel of keys: those of dk, then those of dv. */
typedef struct sums {
    int64_t k_width, v_width; /* floats of one key in them */
    int64_t k_floats, floats; /* of dk; of both */
    int64_t bytes;            /* of both */
} sums;

static sums sums_of(const mx_attention_path *path, const mx_attention_plan *p)
{
    sums s = {.k_width = path->sum_width(p->a->head_dim), .v_width = path->sum_width(p->a->value_dim)};
    s.k_floats = mx_round_up(p->panel_keys * s.k_width, 16);
    s.floats = s.k_floats + mx_round_up(p->panel_keys * s.v_width, 16);
    s.bytes = s.floats * (int64_t)sizeof(float);
    return s;
}

/* Adds up the sums of the chunks to dk and dv of keys first to before last. `sum`: of the panel of keys that begins
 * with key `start`. */
static void store_keys(const mx_attention_path *path, const mx_attention_plan *p, int64_t head, int64_t first,
                       int64_t last, const float *sum, int64_t start)
{
    const mx_attention *a = p->a;
    const sums s = sums_of(path, p);
    mx_attention_rows dk = mx_attention_key_rows(p, a->dk, a->dk_dtype, head, a->head_dim);
    mx_attention_rows dv = mx_attention_key_rows(p, a->dv, a->dv_dtype, head, a->value_dim);
    for (int64_t t = first; t < last; t++) {
        int64_t n = t < p->keys ? p->chunks : 0;
        path->store(a->dk_dtype, (void *)mx_attention_row(&dk, a->dk_dtype, t), a->head_dim,
                    sum + (t - start) * s.k_width, n, s.floats, p->scale);
        path->store(a->dv_dtype, (void *)mx_attention_row(&dv, a->dv_dtype, t), a->value_dim,
                    sum + s.k_floats + (t - start) * s.v_width, n, s.floats, 1.0f);
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

/* ---- one pass ---- */

static void backward_chunk(const mx_attention_path *path, const mx_attention_plan *p, int64_t head, int64_t chunk,
                           float *sum, void *scratch)
{
    const sums s = sums_of(path, p);
    memset(sum, 0, (size_t)s.bytes);
    for (int64_t row = chunk * p->block_rows; row < p->rows; row += p->chunks * p->block_rows) {
        mx_attention_share share = {head, row, mx_min(row + p->block_rows, p->rows), 0, p->keys, sum, sum + s.k_floats};
        path->backward(p, &share, scratch);
    }
}

/* Heads first to before first + heads. The sums hold what n_sums chunks give at once. */
static void backward_heads(const mx_attention_path *path, const mx_attention_plan *p, int64_t first_head, int64_t heads,
                           void *all, char *scratch, int64_t bytes)
{
    int64_t keys = p->a->keys, sum_bytes = sums_of(path, p).bytes;
#pragma omp parallel num_threads(mx_attention_threads())
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < heads * p->chunks; i++) {
            float *sum = (float *)((char *)all + (p->chunks == 1 ? thread : i) * sum_bytes);
            int64_t head = first_head + i / p->chunks;
            backward_chunk(path, p, head, i % p->chunks, sum, scratch + thread * bytes);
            if (p->chunks == 1)
                store_keys(path, p, head, 0, keys, sum, 0);
        }
        if (p->chunks > 1) {
            int64_t pieces = (keys + 63) / 64;
#pragma omp for schedule(static)
            for (int64_t i = 0; i < heads * pieces; i++) {
                const float *sum = (float *)((char *)all + i / pieces * p->chunks * sum_bytes);
                int64_t first = i % pieces * 64;
                store_keys(path, p, first_head + i / pieces, first, mx_min(first + 64, keys), sum, 0);
            }
        }
    }
}

static mx_status five_products(const mx_attention_path *path, mx_attention_plan *p)
{
    const mx_attention *a = p->a;
    int64_t heads = a->batch * a->n_kv_heads, together = heads_together(a);
    int64_t sum_bytes = sums_of(path, p).bytes;
    p->chunks = a->dbias && a->bias_query == 0 ? 1 : choose_chunks(p, together, sum_bytes);
    int threads = mx_attention_threads();
    int64_t bytes = mx_round_up(path->backward_bytes(p), 4096),
            n_sums = p->chunks == 1 ? threads : together * p->chunks;
    char *scratch;
    void *all;
    MX_TRY(mx_attention_scratch_new(threads, bytes, &scratch));
    mx_status status = mx_pool_alloc(n_sums * sum_bytes, &all);
    if (status == MX_OK) {
        for (int64_t head = 0; head < heads; head += together)
            backward_heads(path, p, head, together, all, scratch, bytes);
        mx_pool_free(all, n_sums * sum_bytes);
    }
    mx_pool_free(scratch, threads * bytes);
    return status;
}

/* ---- two passes ---- */

/* dk and dv of a panel of keys. `runs`: the keys of each block of rows, of each sequence of the batch. */
static void backward_panel(const mx_attention_path *path, const mx_attention_plan *p, const mx_attention_run *runs,
                           int64_t head, int64_t first, float *sum, void *scratch)
{
    const sums s = sums_of(path, p);
    int64_t blocks = mx_ceil_div(p->rows, p->block_rows);
    mx_attention_share share = {.head = head, .first_key = first, .dk = sum, .dv = sum + s.k_floats};
    share.last_key = mx_min(first + p->panel_keys, p->keys);
    runs += head / p->a->n_kv_heads * blocks;
    memset(sum, 0, (size_t)s.bytes);
    for (int64_t b = 0; b < blocks; b++)
        if (runs[b].first < share.last_key && first < runs[b].end) {
            share.first_row = b * p->block_rows;
            share.last_row = mx_min(share.first_row + p->block_rows, p->rows);
            path->backward(p, &share, scratch);
        }
    store_keys(path, p, head, first, mx_min(first + p->panel_keys, p->a->keys), sum, first);
}

static void keys_pass(const mx_attention_path *path, const mx_attention_plan *p, const mx_attention_run *runs,
                      char *scratch, int64_t bytes)
{
    int64_t heads = p->a->batch * p->a->n_kv_heads, together = heads_together(p->a);
    int64_t panels = mx_ceil_div(p->a->keys, p->panel_keys), sum_at = mx_round_up(path->backward_bytes(p), 64);
    for (int64_t from = 0; from < heads; from += together) {
#pragma omp parallel for num_threads(mx_attention_threads()) schedule(dynamic, 1)
        for (int64_t i = 0; i < together * panels; i++) {
            char *own = scratch + omp_get_thread_num() * bytes;
            backward_panel(path, p, runs, from + i / panels, i % panels * p->panel_keys, (float *)(own + sum_at), own);
        }
    }
}

static void rows_pass(const mx_attention_path *path, const mx_attention_plan *p, char *scratch, int64_t bytes)
{
    int threads = mx_attention_threads();
    int64_t heads = p->a->batch * p->a->n_kv_heads, pieces = mx_attention_pieces(p, heads, threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < heads * pieces; i++) {
        mx_attention_piece piece = mx_attention_piece_of(p, pieces, i);
        for (int64_t row = piece.first; row < piece.last; row += piece.step) {
            mx_attention_share share = {
                .head = piece.head, .first_row = row, .last_row = mx_min(row + piece.step, piece.last)};
            share.last_key = p->keys;
            path->backward(p, &share, scratch + omp_get_thread_num() * bytes);
        }
    }
}

/* The keys of each block of rows of each sequence. */
static mx_status runs_new(const mx_attention_plan *p, int64_t *bytes, mx_attention_run **runs)
{
    int64_t blocks = mx_ceil_div(p->rows, p->block_rows), n = p->a->batch * blocks;
    void *data;
    *bytes = n * (int64_t)sizeof **runs;
    MX_TRY(mx_pool_alloc(*bytes, &data));
    *runs = data;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = i % blocks * p->block_rows;
        (*runs)[i] =
            mx_attention_run_of_rows(p, i / blocks * p->a->n_kv_heads, row, mx_min(row + p->block_rows, p->rows));
    }
    return MX_OK;
}

static mx_status seven_products(const mx_attention_path *path, mx_attention_plan p, int64_t limit)
{
    mx_attention_plan keys = p, rows = p;
    keys.wants_rows = rows.wants_keys = false;
    int64_t key_floats = path->sum_width(p.a->head_dim) + path->sum_width(p.a->value_dim);
    mx_attention_choose_panels(&keys, path->backward_bytes, key_floats * (int64_t)sizeof(float), limit);
    mx_attention_choose_panels(&rows, path->backward_bytes, 0, limit);
    int threads = mx_attention_threads();
    int64_t sum_bytes = sums_of(path, &keys).bytes + 64, run_bytes;
    int64_t bytes = mx_max(path->backward_bytes(&keys) + sum_bytes, path->backward_bytes(&rows));
    bytes = mx_round_up(bytes, 4096);
    mx_attention_run *runs;
    char *scratch;
    MX_TRY(runs_new(&p, &run_bytes, &runs));
    mx_status status = mx_attention_scratch_new(threads, bytes, &scratch);
    if (status == MX_OK) {
        keys_pass(path, &keys, runs, scratch, bytes);
        mx_attention_scratch_reset(threads, bytes, scratch);
        rows_pass(path, &rows, scratch, bytes);
        mx_pool_free(scratch, threads * bytes);
    }
    mx_pool_free(runs, run_bytes);
    return status;
}

static void choose_blocks(const mx_attention_path *path, mx_attention_plan *p, double cache)
{
    int64_t D = p->a->head_dim, V = p->a->value_dim, word = path->word_bytes;
    int64_t per_row = (D + V) * 2 * word + D * 4, per_key = (2 * D + V) * word + (D + V) * 4;
    mx_attention_choose_blocks(p, path, per_row, per_key, 8, cache);
    if (p->rows == 0)
        p->block_rows = path->row_unit;
    mx_attention_choose_panels(p, path->backward_bytes, 0, INT64_MAX);
}

mx_status mx_attention_backward_by(const mx_attention_path *path, const mx_attention *a, int64_t scratch,
                                   int64_t one_pass)
{
    mx_attention_plan p = mx_attention_plan_of(a);
    if (mx_attention_is_empty(a))
        return MX_OK;
    p.wants_rows = p.wants_keys = true;
    choose_blocks(path, &p, 2 * (double)mx_cpu_l2_bytes());
    if (path->backward_bytes(&p) + sums_of(path, &p).bytes <= one_pass || p.rows == 0)
        return five_products(path, &p);
    choose_blocks(path, &p, BLOCK_BYTES);
    return seven_products(path, p, scratch);
}

mx_status mx_attention_backward(const mx_attention *a)
{
    return mx_attention_backward_by(mx_attention_path_of(a), a, MX_ATTENTION_SCRATCH, MX_ATTENTION_ONE_PASS);
}
