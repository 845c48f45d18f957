/* The driver of attention's backward pass.
 *
 * One pass computes five products of each pair: scores, their gradients, and the sums dq, dk and dv. A call takes some
 * rows and all their keys. Sums of dk and dv are kept for the keys from the first that a later row attends to up to the
 * last that an earlier one did: with documents or a window these are few, with a causal mask alone they are all keys of
 * a head. Few heads are cut into chunks of rows, each with sums of its own, to keep all threads busy.
 *
 * Where such sums would take too much memory, two passes take seven products: one for dk and dv by panels of keys, one
 * for dq by rows. Each of their sums is complete in one call. */
#include "core/cpu.h"
#include "core/pool.h"
#include "kernels/attention_paths.h"

#include <omp.h>
#include <string.h>

enum {
    CHUNKED_HEADS = 16,        /* with fewer heads the rows of each are cut into chunks */
    CHUNK_BLOCKS = 4,          /* at least so many blocks of rows in a chunk, to be worth its sums */
    CHUNK_SUM_BYTES = 1 << 28, /* what the sums of all chunks may take together */
    KEYS_AHEAD = 16,           /* asked for while keys are stored */
    STORED_KEYS = 64,          /* at a time, when the sums of chunks are added up */
    BLOCK_BYTES = 1 << 20,     /* what a tile touches in two passes */
};

/* Sums of sum_keys keys: those of dk, then those of dv. */
typedef struct sums {
    int64_t k_width, v_width; /* floats of one key in them */
    int64_t k_floats, floats; /* of dk; of both */
    int64_t bytes;            /* of both */
} sums;

static sums sums_of(const mx_attention_path *path, const mx_attention_plan *p)
{
    sums s = {.k_width = path->sum_width(p->a->head_dim), .v_width = path->sum_width(p->a->value_dim)};
    s.k_floats = mx_round_up(p->sum_keys * s.k_width, 16);
    s.floats = s.k_floats + mx_round_up(p->sum_keys * s.v_width, 16);
    s.bytes = s.floats * (int64_t)sizeof(float);
    return s;
}

/* Sets the sums of keys first to before last to 0. */
static void clear_keys(const mx_attention_plan *p, const sums *s, int64_t first, int64_t last, float *sum)
{
    while (first < last) {
        int64_t at = first % p->sum_keys, n = mx_min(last - first, p->sum_keys - at);
        memset(sum + at * s->k_width, 0, (size_t)(n * s->k_width) * sizeof *sum);
        memset(sum + s->k_floats + at * s->v_width, 0, (size_t)(n * s->v_width) * sizeof *sum);
        first += n;
    }
}

/* Asks for a row that will be written soon. */
static void fetch_row(const mx_attention_rows *rows, mx_dtype dtype, int64_t row, int64_t width)
{
    for (int64_t at = 0; at < width * (int64_t)mx_dtype_bytes(dtype); at += 64)
        __builtin_prefetch((const char *)mx_attention_row(rows, dtype, row) + at, 1, 2);
}

/* dk and dv of keys first to before last, each from n sums; 0 with n = 0. */
static void store_keys(const mx_attention_path *path, const mx_attention_plan *p, int64_t head, int64_t first,
                       int64_t last, const float *sum, int64_t n)
{
    const mx_attention *a = p->a;
    const sums s = sums_of(path, p);
    mx_attention_rows dk = mx_attention_key_rows(p, a->dk, a->dk_dtype, head, a->head_dim);
    mx_attention_rows dv = mx_attention_key_rows(p, a->dv, a->dv_dtype, head, a->value_dim);
    for (int64_t t = first; t < last; t++) {
        int64_t at = n > 0 ? t % p->sum_keys : 0, parts = t < p->keys ? n : 0;
        fetch_row(&dk, a->dk_dtype, t + KEYS_AHEAD, a->head_dim);
        fetch_row(&dv, a->dv_dtype, t + KEYS_AHEAD, a->value_dim);
        path->store(a->dk_dtype, (void *)mx_attention_row(&dk, a->dk_dtype, t), a->head_dim, sum + at * s.k_width,
                    parts, s.floats, p->scale);
        path->store(a->dv_dtype, (void *)mx_attention_row(&dv, a->dv_dtype, t), a->value_dim,
                    sum + s.k_floats + at * s.v_width, parts, s.floats, 1.0f);
    }
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

/* The calls of a head, in order. Sums are needed, before and after call i, for keys from low[i] to before high[i], in
 * whole blocks; neither decreases from call to call. They depend only on the sizes and masks of the problem, as does
 * the number of chunks, because these order the sums. */
typedef struct calls {
    int64_t n, chunks;
    int64_t *low, *high; /* (batch, n) */
    int64_t *first;      /* (batch, chunks + 1): calls of chunk c are first[c] to before first[c + 1] */
    int64_t bytes;       /* of all three */
} calls;

static int64_t choose_chunks(const mx_attention_plan *p, int64_t heads)
{
    if (heads >= CHUNKED_HEADS || (p->a->dbias && p->a->bias_query == 0))
        return 1;
    int64_t chunks = mx_min(mx_ceil_div(CHUNKED_HEADS, heads), mx_ceil_div(p->rows, p->block_rows) / CHUNK_BLOCKS);
    return chunks < 2 ? 1 : chunks / 2 * 2;
}

/* Cuts the calls of a sequence into chunks of about the same number of pairs. pairs[i]: those of calls 0 to i. */
static void cut_calls(const calls *c, const int64_t *pairs, int64_t *first)
{
    first[0] = 0;
    for (int64_t i = 1, call = 0; i <= c->chunks; i++) {
        while (call < c->n && pairs[call] * c->chunks <= i * pairs[c->n - 1])
            call++;
        call = mx_min(mx_max(call, first[i - 1] + 1), c->n - (c->chunks - i));
        first[i] = i == c->chunks ? c->n : call;
    }
}

/* `pairs` has room for c->n numbers. */
static void set_calls(const mx_attention_plan *p, const calls *c, int64_t batch, int64_t *pairs)
{
    int64_t *low = c->low + batch * c->n, *high = c->high + batch * c->n, sum = 0;
    for (int64_t i = 0; i < c->n; i++) {
        int64_t row = i * p->super_rows, last = mx_min(row + p->super_rows, p->rows);
        mx_attention_run run = mx_attention_run_of_rows(p, batch * p->a->n_kv_heads, row, last);
        low[i] = run.first / p->block_keys * p->block_keys;
        high[i] = mx_max(mx_round_up(run.end, p->block_keys), i > 0 ? high[i - 1] : 0);
        sum += (last - row) * mx_max(run.end - run.first, 0);
        pairs[i] = sum;
    }
    for (int64_t i = c->n - 2; i >= 0; i--)
        low[i] = mx_min(low[i], low[i + 1]);
    cut_calls(c, pairs, c->first + batch * (c->chunks + 1));
}

/* Sets calls and p->sum_keys. The caller frees c->low. */
static mx_status calls_new(mx_attention_plan *p, int64_t chunks, calls *c)
{
    int64_t batch = p->a->batch, n = mx_ceil_div(p->rows, p->super_rows);
    *c = (calls){.n = n, .chunks = mx_max(mx_min(chunks, n), 1)};
    c->bytes = (batch * (2 * n + c->chunks + 1) + n) * (int64_t)sizeof *c->low;
    void *data;
    MX_TRY(mx_pool_alloc(c->bytes, &data));
    c->low = data;
    c->high = c->low + batch * n;
    c->first = c->high + batch * n;
    p->sum_keys = p->block_keys;
    for (int64_t b = 0; b < batch; b++) {
        set_calls(p, c, b, c->first + batch * (c->chunks + 1));
        const int64_t *low = c->low + b * n, *high = c->high + b * n, *first = c->first + b * (c->chunks + 1);
        for (int64_t i = 0; i < n && c->chunks == 1; i++)
            p->sum_keys = mx_max(p->sum_keys, high[i] - low[i]);
        for (int64_t i = 0; i < c->chunks && c->chunks > 1; i++)
            p->sum_keys = mx_max(p->sum_keys, high[first[i + 1] - 1] - low[first[i]]);
    }
    return MX_OK;
}

static void run_call(const mx_attention_path *path, const mx_attention_plan *p, int64_t head, int64_t call, float *sum,
                     void *scratch)
{
    const sums s = sums_of(path, p);
    int64_t row = call * p->super_rows;
    mx_attention_share share = {head, row, mx_min(row + p->super_rows, p->rows), 0, p->keys, sum, sum + s.k_floats};
    path->backward(p, &share, scratch);
}

/* A head that is not cut: stores each key after the last call that adds to it. */
static void backward_head(const mx_attention_path *path, const mx_attention_plan *p, const calls *c, int64_t head,
                          float *sum, void *scratch)
{
    const sums s = sums_of(path, p);
    const int64_t *low = c->low + head / p->a->n_kv_heads * c->n, *high = c->high + head / p->a->n_kv_heads * c->n;
    int64_t keys = p->a->keys, end = 0; /* of the keys that have been in the sums, or that no call adds to */
    for (int64_t i = 0; i <= c->n; i++) {
        int64_t next = i < c->n ? mx_min(low[i], keys) : keys;
        if (i > 0)
            store_keys(path, p, head, mx_min(low[i - 1], keys), mx_min(end, next), sum, 1);
        if (end < next) {
            store_keys(path, p, head, end, next, sum, 0);
            end = next;
        }
        if (i == c->n)
            break;
        clear_keys(p, &s, end, high[i], sum);
        end = mx_max(end, high[i]);
        run_call(path, p, head, i, sum, scratch);
    }
}

static void backward_chunk(const mx_attention_path *path, const mx_attention_plan *p, const calls *c, int64_t head,
                           int64_t chunk, float *sum, void *scratch)
{
    const sums s = sums_of(path, p);
    int64_t batch = head / p->a->n_kv_heads;
    const int64_t *first = c->first + batch * (c->chunks + 1) + chunk;
    clear_keys(p, &s, c->low[batch * c->n + first[0]], c->high[batch * c->n + first[1] - 1], sum);
    for (int64_t i = first[0]; i < first[1]; i++)
        run_call(path, p, head, i, sum, scratch);
}

/* Adds up the sums of the chunks that have keys first to before last, each of which follows the one before it. */
static void store_chunks(const mx_attention_path *path, const mx_attention_plan *p, const calls *c, int64_t head,
                         int64_t first, int64_t last, const float *sum)
{
    int64_t batch = head / p->a->n_kv_heads, floats = sums_of(path, p).floats;
    const int64_t *low = c->low + batch * c->n, *high = c->high + batch * c->n;
    const int64_t *calls_of = c->first + batch * (c->chunks + 1);
    for (int64_t t = first; t < last; t++) {
        int64_t from = 0, to = 0;
        while (to < c->chunks && low[calls_of[to]] <= t)
            to++;
        while (from < to && high[calls_of[from + 1] - 1] <= t)
            from++;
        store_keys(path, p, head, t, t + 1, sum + from * floats, to - from);
    }
}

/* Heads first_head to before first_head + heads. `all`: the sums of each thread, or of each chunk of these heads. */
static void backward_heads(const mx_attention_path *path, const mx_attention_plan *p, const calls *c,
                           int64_t first_head, int64_t heads, float *all, char *scratch, int64_t bytes)
{
    int64_t keys = p->a->keys, floats = sums_of(path, p).floats;
#pragma omp parallel num_threads(mx_attention_threads())
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < heads * c->chunks; i++) {
            int64_t head = first_head + i / c->chunks;
            if (c->chunks == 1)
                backward_head(path, p, c, head, all + thread * floats, scratch + thread * bytes);
            else
                backward_chunk(path, p, c, head, i % c->chunks, all + i * floats, scratch + thread * bytes);
        }
        int64_t pieces = c->chunks == 1 ? 0 : mx_ceil_div(keys, STORED_KEYS);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < heads * pieces; i++) {
            int64_t first = i % pieces * STORED_KEYS;
            store_chunks(path, p, c, first_head + i / pieces, first, mx_min(first + STORED_KEYS, keys),
                         all + i / pieces * c->chunks * floats);
        }
    }
}

static mx_status five_products(const mx_attention_path *path, const mx_attention_plan *p, const calls *c)
{
    int64_t heads = p->a->batch * p->a->n_kv_heads, together = heads_together(p->a);
    int threads = mx_attention_threads();
    int64_t bytes = mx_round_up(path->backward_bytes(p), 4096);
    int64_t sum_bytes = (c->chunks == 1 ? threads : together * c->chunks) * sums_of(path, p).bytes;
    char *scratch;
    void *all;
    MX_TRY(mx_attention_scratch_new(threads, bytes, &scratch));
    mx_status status = mx_pool_alloc(sum_bytes, &all);
    if (status == MX_OK) {
        for (int64_t head = 0; head < heads; head += together)
            backward_heads(path, p, c, head, together, all, scratch, bytes);
        mx_pool_free(all, sum_bytes);
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
    clear_keys(p, &s, first, first + p->panel_keys, sum);
    for (int64_t b = 0; b < blocks; b++)
        if (runs[b].first < share.last_key && first < runs[b].end) {
            share.first_row = b * p->block_rows;
            share.last_row = mx_min(share.first_row + p->block_rows, p->rows);
            path->backward(p, &share, scratch);
        }
    store_keys(path, p, head, first, mx_min(first + p->panel_keys, p->a->keys), sum, 1);
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
    mx_attention_choose_panels(&keys, path->backward_bytes, key_floats * (int64_t)sizeof(float), 0, limit);
    mx_attention_choose_panels(&rows, path->backward_bytes, 0, MX_ATTENTION_SUPER_ROWS, limit);
    keys.sum_keys = keys.panel_keys;
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

/* ---- which of them ---- */

static void choose_blocks(const mx_attention_path *path, mx_attention_plan *p, double cache)
{
    int64_t D = p->a->head_dim, V = p->a->value_dim, word = path->word_bytes;
    int64_t per_row = (D + V) * 2 * word + D * 4, per_key = (2 * D + V) * word + (D + V) * 4;
    mx_attention_choose_blocks(p, path, per_row, per_key, 8, cache);
    if (p->rows == 0)
        p->block_rows = path->row_unit;
}

mx_status mx_attention_backward_by(const mx_attention_path *path, const mx_attention *a, int64_t scratch,
                                   int64_t sum_bytes)
{
    mx_attention_plan p = mx_attention_plan_of(a);
    if (mx_attention_is_empty(a))
        return MX_OK;
    p.wants_rows = p.wants_keys = true;
    choose_blocks(path, &p, 2 * (double)mx_cpu_l2_bytes());
    int64_t together = heads_together(a), chunks = choose_chunks(&p, together);
    int64_t max_rows = mx_min(MX_ATTENTION_SUPER_ROWS, p.rows / (chunks * 2));
    mx_attention_choose_panels(&p, path->backward_bytes, 0, chunks == 1 ? MX_ATTENTION_SUPER_ROWS : max_rows, scratch);
    calls c;
    MX_TRY(calls_new(&p, chunks, &c));
    int64_t bytes = sums_of(path, &p).bytes;
    bool fits = bytes <= sum_bytes && (c.chunks == 1 || together * c.chunks * bytes <= CHUNK_SUM_BYTES);
    mx_status status = fits || p.rows == 0 ? five_products(path, &p, &c) : MX_OK;
    mx_pool_free(c.low, c.bytes);
    if (fits || p.rows == 0)
        return status;
    choose_blocks(path, &p, BLOCK_BYTES);
    return seven_products(path, p, scratch);
}

mx_status mx_attention_backward(const mx_attention *a)
{
    /* In proportion to the width, so that wide heads have as many rows for each time that a panel is packed: with 2
     * MiB, heads of 256 take 1.15 times as long. */
    int64_t widths = mx_max(a->head_dim + a->value_dim, 128);
    return mx_attention_backward_by(mx_attention_path_of(a), a, MX_ATTENTION_SCRATCH / 128 * widths, MX_ATTENTION_SUMS);
}
