/* The driver of attention's backward pass.
 *
 * Five products of each pair: scores, their gradients, and the sums dq, dk and dv. The rows of a head are cut into
 * calls, from the last rows to the first, and the calls into chunks. dq is complete after a call. A chunk has sums of
 * dk and dv in f32, and takes its calls from the last to the first. They are kept until no call of the chunk has the
 * key; where this takes too much memory, a chunk is one call with the sums of one panel of keys at a time. When it has
 * finished with a key it adds its sum to the key's row of dk and dv, after the chunk before it and before the next: so
 * the order of sums, and hence every bit, is the same on any number of threads. */
#include "core/cpu.h"
#include "core/pool.h"
#include "kernels/attention_paths.h"
#include "kernels/elementwise.h"

#include <omp.h>
#include <sched.h>
#include <string.h>

enum {
    CHUNKED_HEADS = 16, /* with fewer heads the rows of each are cut into chunks */
    CHUNK_BLOCKS = 4,   /* at least so many blocks of rows in a chunk, to be worth its sums */
    KEPT_ROWS = 256,    /* at least so many rows of a call make up for panels of keys whose sums are kept */
};

/* The calls of the heads of each sequence. They depend only on the sizes and masks of the problem, because they order
 * the sums. Call i takes rows from (n - 1 - i) super_rows on. Its keys are those from low[i], the first of a block, to
 * before end[i]; none if low[i] >= end[i]. Neither grows from one call to the next. */
typedef struct calls {
    int64_t n, chunks;
    int64_t *low, *end; /* (batch, n) */
    int64_t *first;     /* (batch, chunks + 1): calls of chunk c are first[c] to before first[c + 1] */
    int64_t bytes;      /* of all three */
    bool kept;          /* the sums hold all keys of a call. Otherwise a panel of them, and a chunk is one call */
    bool in_turn;       /* one thread takes all chunks of a head */
} calls;

/* What the threads work on. */
typedef struct work {
    const mx_attention_path *path;
    const mx_attention_plan *plan;
    const calls *calls;
    int64_t k_width, v_width; /* floats of a key in the sums of dk, of dv */
    int64_t k_floats;         /* of the sums of dk */
    int64_t *added;           /* by head and block of keys: the chunks that have added their sums */
    uint8_t *low;             /* 8 bits of each value of dk and dv, if rows of dq have no room for them; or NULL */
} work;

/* One head of one chunk. */
typedef struct task {
    int64_t head, chunk;
    const int64_t *low, *end, *first; /* of the head's sequence */
    float *sum;                       /* of dk, then of dv */
} task;

static task task_of(const work *w, int64_t head, int64_t chunk, float *sum)
{
    const calls *c = w->calls;
    int64_t batch = head / w->plan->a->n_kv_heads;
    return (task){head, chunk, c->low + batch * c->n, c->end + batch * c->n, c->first + batch * (c->chunks + 1), sum};
}

static int64_t sum_bytes(const mx_attention_path *path, const mx_attention_plan *p)
{
    int64_t floats = path->sum_width(p->a->head_dim) + path->sum_width(p->a->value_dim);
    return mx_round_up(p->sum_keys * floats, 32) * (int64_t)sizeof(float);
}

/* ---- sums ---- */

/* Sets the sums of keys first to before last to 0. */
static void clear_keys(const work *w, int64_t first, int64_t last, float *sum)
{
    int64_t sum_keys = w->plan->sum_keys;
    while (first < last) {
        int64_t at = first % sum_keys, n = mx_min(last - first, sum_keys - at);
        memset(sum + at * w->k_width, 0, (size_t)(n * w->k_width) * sizeof *sum);
        memset(sum + w->k_floats + at * w->v_width, 0, (size_t)(n * w->v_width) * sizeof *sum);
        first += n;
    }
}

/* A value of f32 between two chunks takes 8 bits more than one of bf16. */
static int64_t low_bytes(const mx_attention *a)
{
    return (mx_is_bf16(a->dk_dtype) ? a->head_dim : 0) + (mx_is_bf16(a->dv_dtype) ? a->value_dim : 0);
}

/* Whether the row of dq at the position of a key has room for them: if no query attends to keys after it, and a chunk
 * is one call, then the last chunk of a key is the one that sets that row, at its end (set_calls). */
static bool has_room_in_dq(const mx_attention *a)
{
    return a->causal && a->offset == 0 && a->prefix == 0 && a->queries >= a->keys &&
           low_bytes(a) <= a->head_dim * (int64_t)mx_dtype_bytes(a->dq_dtype);
}

/* Where the low bits of key 0 are. */
static mx_attention_rows low_rows(const work *w, int64_t head)
{
    const mx_attention *a = w->plan->a;
    int64_t bytes = low_bytes(a);
    if (w->low)
        return (mx_attention_rows){w->low + head * w->plan->keys * bytes, 1, bytes, 0};
    mx_attention_rows dq = mx_attention_query_rows(w->plan, a->dq, a->dq_dtype, head, a->head_dim);
    return (mx_attention_rows){dq.base, 1, dq.outer * (int64_t)mx_dtype_bytes(a->dq_dtype), 0};
}

/* Keys from `first` on in rows of dk or dv; `bits` in `low`. */
static mx_attention_keys keys_of(const mx_attention_rows *rows, const mx_attention_rows *low, mx_dtype dtype,
                                 int64_t width, int64_t bits, int64_t first)
{
    return (mx_attention_keys){.dtype = dtype,
                               .width = width,
                               .row = (char *)mx_attention_row(rows, dtype, first),
                               .row_step = rows->outer * (int64_t)mx_dtype_bytes(dtype),
                               .low = (char *)low->base + first * low->outer + bits,
                               .low_step = low->outer};
}

/* Adds this chunk's sums of a run of keys to their rows of dk and dv. is_first: no chunk has added to these rows yet,
 * so they are set; is_last: no chunk will add to them later, so they get their final values. */
static void add_keys(const work *w, const task *t, mx_attention_run keys, bool is_first, bool is_last)
{
    const mx_attention_plan *p = w->plan;
    const mx_attention *a = p->a;
    mx_attention_rows dk = mx_attention_key_rows(p, a->dk, a->dk_dtype, t->head, a->head_dim);
    mx_attention_rows dv = mx_attention_key_rows(p, a->dv, a->dv_dtype, t->head, a->value_dim);
    mx_attention_rows low = low_rows(w, t->head);
    while (keys.first < keys.end) {
        int64_t at = keys.first % p->sum_keys;
        mx_attention_keys k = keys_of(&dk, &low, a->dk_dtype, a->head_dim, 0, keys.first);
        mx_attention_keys v =
            keys_of(&dv, &low, a->dv_dtype, a->value_dim, mx_is_bf16(a->dk_dtype) ? a->head_dim : 0, keys.first);
        k.n = v.n = mx_min(keys.end - keys.first, p->sum_keys - at);
        k.first = v.first = is_first;
        k.last = v.last = is_last;
        k.stream = v.stream = p->stream && is_first && is_last;
        w->path->add(&k, t->sum + at * w->k_width, p->scale);
        w->path->add(&v, t->sum + w->k_floats + at * w->v_width, 1.0f);
        keys.first += k.n;
    }
}

/* dk = dv = 0 for keys that no query attends to. */
static void zero_keys(const mx_attention_plan *p, int64_t head, int64_t first, int64_t last)
{
    const mx_attention *a = p->a;
    mx_attention_rows dk = mx_attention_key_rows(p, a->dk, a->dk_dtype, head, a->head_dim);
    mx_attention_rows dv = mx_attention_key_rows(p, a->dv, a->dv_dtype, head, a->value_dim);
    for (int64_t t = first; t < last; t++) {
        memset((void *)mx_attention_row(&dk, a->dk_dtype, t), 0, (size_t)a->head_dim * mx_dtype_bytes(a->dk_dtype));
        memset((void *)mx_attention_row(&dv, a->dv_dtype, t), 0, (size_t)a->value_dim * mx_dtype_bytes(a->dv_dtype));
    }
}

/* The chunk before this one that is the first to have keys of the block that begins at `start`. */
static int64_t first_chunk(const task *t, int64_t start)
{
    int64_t chunk = t->chunk;
    while (chunk > 0 && t->low[t->first[chunk] - 1] <= start)
        chunk--;
    return chunk;
}

/* Adds the sums of keys that this chunk has finished with, block by block, when the chunks before it have. */
static void finish_keys(const work *w, const task *t, int64_t from, int64_t end)
{
    const mx_attention_plan *p = w->plan;
    int64_t blocks = mx_ceil_div(p->keys, p->block_keys);
    bool is_end = t->chunk == w->calls->chunks - 1;
    while (from < end) {
        int64_t block = from / p->block_keys, start = block * p->block_keys, first = first_chunk(t, start);
        int64_t *added = w->added + t->head * blocks + block, last = mx_min(end, start + p->block_keys);
        while (__atomic_load_n(added, __ATOMIC_ACQUIRE) != t->chunk - first)
            sched_yield();
        /* The next chunk ends with, or before, some key of the block. */
        int64_t shared = is_end ? 0 : mx_min(mx_max(t->end[t->first[t->chunk + 1]], from), last);
        shared = mx_max(shared, from);
        add_keys(w, t, (mx_attention_run){from, shared}, first == t->chunk, false);
        add_keys(w, t, (mx_attention_run){shared, last}, first == t->chunk, true);
        __atomic_store_n(added, t->chunk - first + 1, __ATOMIC_RELEASE);
        from = last;
    }
}

/* ---- calls ---- */

static void run_call(const work *w, const task *t, int64_t i, void *scratch)
{
    const mx_attention_plan *p = w->plan;
    int64_t begin = t->first[t->chunk], last = t->first[t->chunk + 1], low = t->low[i], end = t->end[i];
    int64_t row = (w->calls->n - 1 - i) * p->super_rows, step = w->calls->kept ? mx_max(p->keys, 1) : p->panel_keys;
    /* Calls with rows before have begun the sums of keys up to a block; those with rows after have keys from `later`
     * on. */
    int64_t begun = i + 1 < last ? mx_round_up(t->end[i + 1], p->block_keys) : 0,
            later = i > begin ? t->low[i - 1] : end;
    mx_attention_share share = {.head = t->head, .first_row = row, .last_row = mx_min(row + p->super_rows, p->rows)};
    share.dk = t->sum;
    share.dv = t->sum + w->k_floats;
    share.begins = true;
    for (int64_t start = low / step * step; start < end; start += step) {
        share.first_key = mx_max(start, low);
        share.last_key = mx_min(start + step, end);
        clear_keys(w, mx_max(share.first_key, begun), mx_round_up(share.last_key, p->block_keys), t->sum);
        w->path->backward(p, &share, scratch);
        finish_keys(w, t, share.first_key, mx_min(share.last_key, later));
        share.begins = false;
    }
    /* After the sums of all keys, because rows of dq may hold bits of these. */
    share.first_key = share.last_key = 0;
    share.ends = true;
    w->path->backward(p, &share, scratch);
}

static void run_chunk(const work *w, const task *t, void *scratch)
{
    const mx_attention_plan *p = w->plan;
    for (int64_t i = t->first[t->chunk + 1] - 1; i >= t->first[t->chunk]; i--) {
        zero_keys(p, t->head, i + 1 < w->calls->n ? t->end[i + 1] : 0, mx_min(t->low[i], t->end[i]));
        if (i == 0)
            zero_keys(p, t->head, t->end[i], p->a->keys);
        run_call(w, t, i, scratch);
    }
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
    int64_t *low = c->low + batch * c->n, *end = c->end + batch * c->n, sum = 0;
    for (int64_t i = 0; i < c->n; i++) {
        int64_t row = (c->n - 1 - i) * p->super_rows, last = mx_min(row + p->super_rows, p->rows);
        mx_attention_run run = mx_attention_run_of_rows(p, batch * p->a->n_kv_heads, row, last);
        low[i] = mx_min(run.first / p->block_keys * p->block_keys, i > 0 ? low[i - 1] : INT64_MAX);
        end[i] = run.end;
        /* Even if no query attends to the key at its own position, whose bits its row of dq may hold. */
        if (has_room_in_dq(p->a))
            end[i] = mx_max(end[i], mx_min(mx_attention_query(p, last - 1) + 1, p->keys));
        sum += (last - row) * mx_max(run.end - run.first, 0);
        pairs[i] = sum;
    }
    for (int64_t i = c->n - 2; i >= 0; i--)
        end[i] = mx_max(end[i], end[i + 1]);
    cut_calls(c, pairs, c->first + batch * (c->chunks + 1));
}

/* Sets the calls of p, cut into chunks, and p->sum_keys to the most keys of a call. The caller frees c->low. */
static mx_status calls_new(mx_attention_plan *p, int64_t chunks, calls *c)
{
    int64_t batch = p->a->batch, n = mx_ceil_div(p->rows, p->super_rows);
    *c = (calls){.n = n, .chunks = mx_max(mx_min(chunks, n), 1)};
    c->bytes = (batch * (2 * n + c->chunks + 1) + n) * (int64_t)sizeof *c->low;
    void *data;
    MX_TRY(mx_pool_alloc(c->bytes, &data));
    c->low = data;
    c->end = c->low + batch * n;
    c->first = c->end + batch * n;
    p->sum_keys = p->block_keys;
    for (int64_t b = 0; b < batch; b++) {
        set_calls(p, c, b, c->first + batch * (c->chunks + 1));
        for (int64_t i = 0; i < n; i++)
            p->sum_keys = mx_max(p->sum_keys, mx_round_up(c->end[b * n + i], p->block_keys) - c->low[b * n + i]);
    }
    return MX_OK;
}

/* The chunks of each of so many heads whose sums are kept. */
static int64_t choose_chunks(const mx_attention_plan *p, int64_t heads)
{
    if (heads >= CHUNKED_HEADS || (p->a->dbias && p->a->bias_query == 0))
        return 1;
    int64_t chunks = mx_min(mx_ceil_div(CHUNKED_HEADS, heads), mx_ceil_div(p->rows, p->block_rows) / CHUNK_BLOCKS);
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

/* Chooses the panels of keys, the rows of a call, and whether sums are kept: as many rows as have room in `limit`. */
static mx_status choose_calls(const mx_attention_path *path, mx_attention_plan *p, int64_t limit, calls *c)
{
    int64_t chunks = choose_chunks(p, heads_together(p->a)), key_bytes, whole = mx_round_up(p->keys, p->block_keys);
    int64_t max_rows = chunks == 1 ? MX_ATTENTION_SUPER_ROWS : mx_min(MX_ATTENTION_SUPER_ROWS, p->rows / (chunks * 2));
    p->sum_keys = 1;
    key_bytes = (path->sum_width(p->a->head_dim) + path->sum_width(p->a->value_dim)) * (int64_t)sizeof(float);
    mx_attention_choose_panels(p, path->backward_bytes, key_bytes, max_rows, limit);
    int64_t most = p->super_rows, least = mx_min(most, KEPT_ROWS);
    for (; p->super_rows >= least; p->super_rows -= p->block_rows) {
        MX_TRY(calls_new(p, chunks, c));
        c->kept = p->panel_keys >= whole || path->backward_bytes(p) + sum_bytes(path, p) <= limit;
        if (c->kept)
            return MX_OK;
        mx_pool_free(c->low, c->bytes);
    }
    p->super_rows = most;
    MX_TRY(calls_new(p, INT64_MAX, c));
    p->sum_keys = p->panel_keys;
    return MX_OK;
}

/* Heads first_head to before first_head + heads. */
static void backward_heads(const work *w, int64_t first_head, int64_t heads, char *scratch, int64_t bytes)
{
    const calls *c = w->calls;
    int64_t tasks = c->in_turn ? 1 : c->chunks, sum_at = mx_round_up(w->path->backward_bytes(w->plan), 64);
    /* Monotonic: a chunk waits only for chunks that threads have begun. */
#pragma omp parallel for num_threads(mx_attention_threads()) schedule(monotonic : dynamic, 1)
    for (int64_t i = 0; i < heads * tasks; i++) {
        char *own = scratch + omp_get_thread_num() * bytes;
        for (int64_t chunk = i % tasks; chunk < (c->in_turn ? c->chunks : i % tasks + 1); chunk++) {
            task t = task_of(w, first_head + i / tasks, chunk, (float *)(own + sum_at));
            run_chunk(w, &t, own);
        }
    }
}

static mx_status run_calls(const mx_attention_path *path, const mx_attention_plan *p, const calls *c)
{
    const mx_attention *a = p->a;
    int64_t heads = a->batch * a->n_kv_heads, together = heads_together(a),
            blocks = mx_ceil_div(p->keys, p->block_keys);
    int threads = mx_attention_threads();
    int64_t bytes = mx_round_up(path->backward_bytes(p), 64) + sum_bytes(path, p);
    bytes = mx_round_up(bytes, 4096);
    int64_t added_bytes = heads * blocks * (int64_t)sizeof(int64_t);
    int64_t low = c->chunks > 1 && (c->kept || !has_room_in_dq(a)) ? heads * p->keys * low_bytes(a) : 0;
    work w = {path, p, c, path->sum_width(a->head_dim), path->sum_width(a->value_dim), 0, NULL, NULL};
    w.k_floats = mx_round_up(p->sum_keys * w.k_width, 16);
    void *data;
    MX_TRY(mx_pool_alloc(added_bytes + low, &data));
    w.added = data;
    w.low = low > 0 ? (uint8_t *)data + added_bytes : NULL;
    memset(data, 0, (size_t)added_bytes);
    char *scratch;
    mx_status status = mx_attention_scratch_new(threads, bytes, &scratch);
    if (status == MX_OK) {
        for (int64_t head = 0; head < heads; head += together)
            backward_heads(&w, head, together, scratch, bytes);
        mx_pool_free(scratch, threads * bytes);
    }
    mx_pool_free(data, added_bytes + low);
    return status;
}

mx_status mx_attention_backward_by(const mx_attention_path *path, const mx_attention *a, int64_t scratch)
{
    mx_attention_plan p = mx_attention_plan_of(a);
    if (mx_attention_is_empty(a))
        return MX_OK;
    for (int64_t head = 0; p.rows == 0 && head < a->batch * a->n_kv_heads; head++)
        zero_keys(&p, head, 0, a->keys);
    if (p.rows == 0)
        return MX_OK;
    int64_t D = a->head_dim, V = a->value_dim, word = path->word_bytes;
    int64_t per_row = (D + V) * 2 * word + D * 4, per_key = (2 * D + V) * word + (D + V) * 4;
    mx_attention_choose_blocks(&p, path, per_row, per_key, 8, 2 * (double)mx_cpu_l2_bytes());
    /* By the largest result: what reads small ones next finds them in the caches. */
    int64_t dq = a->queries * a->n_heads * D * (int64_t)mx_dtype_bytes(a->dq_dtype);
    int64_t dk = a->keys * a->n_kv_heads * D * (int64_t)mx_dtype_bytes(a->dk_dtype);
    int64_t dv = a->keys * a->n_kv_heads * V * (int64_t)mx_dtype_bytes(a->dv_dtype);
    p.stream = mx_should_stream(a->batch * mx_max(dq, mx_max(dk, dv)));
    calls c;
    MX_TRY(choose_calls(path, &p, scratch, &c));
    c.in_turn = a->dbias && a->bias_query == 0;
    mx_status status = run_calls(path, &p, &c);
    mx_pool_free(c.low, c.bytes);
    return status;
}

mx_status mx_attention_backward(const mx_attention *a)
{
    /* In proportion to the width, so that wide heads have as many rows for each time that a panel is packed: with 2
     * MiB, heads of 256 take 1.15 times as long. */
    int64_t widths = mx_max(a->head_dim + a->value_dim, 128);
    return mx_attention_backward_by(mx_attention_path_of(a), a, MX_ATTENTION_SCRATCH / 128 * widths);
}
