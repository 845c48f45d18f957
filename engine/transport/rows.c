#include "transport/rows.h"

#include "core/arena.h"
#include "core/cpu.h"
#include "transport/mpi.h"
#include "transport/peers.h"

#include <stdlib.h>
#include <string.h>

enum { SHARED_FROM = 128 << 10 }; /* bytes of all rows from which tensors are shared */

/* ---- the table ---- */

mx_status mx_rows_new(int members, int experts, mx_rows **out)
{
    *out = calloc(1, sizeof(mx_rows) + (size_t)members * (size_t)experts * sizeof(int32_t));
    if (!*out)
        return mx_fail(MX_ERR_MEMORY, "no memory for the rows of %d ranks", members);
    (*out)->refs = 1;
    (*out)->members = members;
    (*out)->experts = experts;
    return MX_OK;
}

mx_rows *mx_rows_retain(mx_rows *rows)
{
    if (rows)
        rows->refs++;
    return rows;
}

void mx_rows_release(mx_rows *rows)
{
    if (rows && --rows->refs == 0)
        free(rows);
}

static int first_expert(const mx_rows *r, int m) { return (int)mx_part_first(r->experts, r->members, m); }

static int32_t count_of(const mx_rows *r, int tokens, int expert) { return r->count[tokens * r->experts + expert]; }

/* The rows of member `tokens` for the experts of member `experts`. */
static int64_t between(const mx_rows *r, int tokens, int experts)
{
    int64_t rows = 0;
    for (int e = first_expert(r, experts); e < first_expert(r, experts + 1); e++)
        rows += count_of(r, tokens, e);
    return rows;
}

int64_t mx_rows_of_tokens(const mx_rows *r, int m)
{
    int64_t rows = 0;
    for (int other = 0; other < r->members; other++)
        rows += between(r, m, other);
    return rows;
}

int64_t mx_rows_of_experts(const mx_rows *r, int m)
{
    int64_t rows = 0;
    for (int other = 0; other < r->members; other++)
        rows += between(r, other, m);
    return rows;
}

/* The rows that go from one member to another. */
static int64_t sent(const mx_rows *r, int from, int to)
{
    return r->back ? between(r, to, from) : between(r, from, to);
}

/* ---- where rows are ---- */

/* Appends to a stream the rows from `first` on. */
static void append(mx_stream *s, const mx_rows *r, const mx_block *whole, int64_t first, int64_t rows)
{
    if (rows == 0)
        return;
    mx_block *b = &s->blocks[s->n++];
    *b = (mx_block){.data = whole->data + first * r->width * (int64_t)mx_dtype_bytes(whole->dtype),
                    .dtype = whole->dtype,
                    .rows = 1,
                    .row = rows * r->width,
                    .stride = rows * r->width};
    s->count += b->row;
}

/* The rows of `tokens` for the experts of `experts` in the tensor of `tokens`: they follow each other. */
static void find_at_tokens(mx_stream *s, const mx_rows *r, const mx_block *whole, int tokens, int experts)
{
    int64_t first = 0;
    for (int other = 0; other < experts; other++)
        first += between(r, tokens, other);
    append(s, r, whole, first, between(r, tokens, experts));
}

/* The same in the tensor of `experts`: one run for each of its experts. */
static void find_at_experts(mx_stream *s, const mx_rows *r, const mx_block *whole, int tokens, int experts)
{
    int64_t first = 0;
    for (int e = first_expert(r, experts); e < first_expert(r, experts + 1); e++)
        for (int m = 0; m < r->members; m++) {
            if (m == tokens)
                append(s, r, whole, first, count_of(r, m, e));
            first += count_of(r, m, e);
        }
}

/* The rows that go from one member to another, as a stream of at most `most_runs` blocks: in the tensor of the sender,
 * or in that of the receiver. The order of its elements is the same in both. */
static mx_stream find(const mx_rows *r, const mx_block *whole, int from, int to, bool at_sender, mx_block *blocks)
{
    mx_stream s = {.blocks = blocks};
    int tokens = r->back ? to : from, experts = r->back ? from : to;
    if (at_sender == r->back)
        find_at_experts(&s, r, whole, tokens, experts);
    else
        find_at_tokens(&s, r, whole, tokens, experts);
    return s;
}

static int most_runs(const mx_rows *r)
{
    int n = (int)mx_part_size(r->experts, r->members, 0);
    return n > 1 ? n : 1;
}

/* ---- an exchange on one team ---- */

typedef struct job {
    mx_team *team;
    const int *members;  /* the index in the group of each member of the team; NULL: the same */
    bool skips_own_node; /* ranks of this node have exchanged already */
    const mx_rows *rows;
    mx_dtype dtype;
    const mx_block *whole; /* this rank's input */
    bool past_caches;
    mx_stream *in, *out; /* what goes to each member, and what comes from it */
    bool *read;          /* whose input has been read in place */
    mx_block *blocks;
} job;

static int in_group(const job *j, int member) { return j->members ? j->members[member] : member; }

static int after(const job *j, int step) { return (j->team->me + step) % j->team->n; }

static void copy(const mx_stream *from, const mx_stream *to)
{
    int64_t at = 0;
    for (int b = 0; b < from->n; at += from->blocks[b++].row)
        mx_stream_write(to, 0, at, from->blocks[b].row, from->blocks[b].dtype, from->blocks[b].data);
}

static mx_status prepare(job *j, const mx_exchange *x)
{
    size_t n = (size_t)j->team->n, runs = (size_t)most_runs(j->rows);
    j->in = calloc(2 * n, sizeof(mx_stream));
    j->read = calloc(n, sizeof(bool));
    j->blocks = calloc((2 * n + 1) * runs, sizeof(mx_block));
    if (!j->in || !j->read || !j->blocks)
        return mx_fail(MX_ERR_MEMORY, "no memory for an exchange between %d ranks", j->team->n);
    j->out = j->in + n;
    int me = in_group(j, j->team->me);
    for (int m = 0; m < j->team->n; m++) {
        int other = in_group(j, m);
        if (other == me || (j->skips_own_node && mx_same_node(j->team->ranks[m])))
            continue;
        mx_block *blocks = j->blocks + 2 * (size_t)m * runs;
        j->in[m] = find(j->rows, &x->in.blocks[0], me, other, true, blocks);
        j->out[m] = find(j->rows, &x->out.blocks[0], other, me, false, blocks + runs);
        j->out[m].past_caches = j->past_caches;
    }
    return MX_OK;
}

static void release(job *j)
{
    free(j->in);
    free(j->read);
    free(j->blocks);
}

/* ---- directly: each member reads the tensors of the others (direct.h) ---- */

/* Whether the tensors may be shared: decided from the table, which all members have. */
static bool is_worth(const job *j)
{
    int64_t rows = 0;
    for (int from = 0; from < j->team->n; from++)
        for (int to = 0; to < j->team->n; to++)
            rows += from != to ? sent(j->rows, in_group(j, from), in_group(j, to)) : 0;
    return mx_peers_share() && j->team->areas &&
           rows * j->rows->width * (int64_t)mx_dtype_bytes(j->dtype) >= SHARED_FROM;
}

/* A note is the offset of the member's input in its arena, or -1 if it is elsewhere. */
static mx_status run_direct(job *j)
{
    int64_t own = mx_arena_offset(j->whole->data);
    if (!is_worth(j))
        return MX_OK;
    MX_TRY(mx_team_meet(j->team, &own, sizeof own));
    mx_block *blocks = j->blocks + 2 * (size_t)j->team->n * (size_t)most_runs(j->rows);
    int me = in_group(j, j->team->me);
    for (int m = 0; m < j->team->n; m++)
        j->read[m] = *(const int64_t *)mx_team_note(j->team, m) >= 0;
    for (int step = 1; step < j->team->n; step++) {
        int m = after(j, step);
        if (!j->read[m] || j->out[m].count == 0)
            continue;
        int64_t theirs = *(const int64_t *)mx_team_note(j->team, m);
        mx_block whole = {.data = mx_peers_address(j->team->ranks[m], theirs), .dtype = j->dtype};
        mx_stream from = find(j->rows, &whole, in_group(j, m), me, true, blocks);
        copy(&from, &j->out[m]);
    }
    mx_stream_fence();
    return mx_team_leave(j->team);
}

/* ---- in chunks: a slot holds a piece for each member ---- */

enum {
    CHANNEL = 0,
    ALIGN = 64, /* elements: pieces start on cache lines whatever the dtype */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* How much of `count` elements the piece from `at` on has. */
static int64_t left(int64_t count, int64_t at, int64_t piece) { return at < count ? least(piece, count - at) : 0; }

static mx_status fill(const job *j, int64_t at, int64_t piece)
{
    char *slot;
    size_t size = mx_dtype_bytes(j->dtype);
    MX_TRY(mx_team_open(j->team, CHANNEL, &slot));
    for (int step = 1; step < j->team->n; step++) {
        int m = after(j, step);
        int64_t in = j->read[j->team->me] ? 0 : left(j->in[m].count, at, piece);
        int64_t out = j->read[m] ? 0 : left(j->out[m].count, at, piece);
        size_t offset = (size_t)(m * piece) * size;
        if (in > 0)
            mx_stream_read(&j->in[m], 0, at, in, j->dtype, slot + offset);
        if (out > 0)
            MX_TRY(mx_team_expect(j->team, CHANNEL, m, (size_t)out * size));
        if (in > 0)
            MX_TRY(mx_team_give(j->team, CHANNEL, m, offset, (size_t)in * size));
    }
    mx_team_post(j->team, CHANNEL);
    return MX_OK;
}

static mx_status place(const job *j, int64_t at, int64_t piece)
{
    size_t size = mx_dtype_bytes(j->dtype);
    for (int step = 1; step < j->team->n; step++) {
        int m = after(j, step);
        int64_t out = j->read[m] ? 0 : left(j->out[m].count, at, piece);
        const void *data;
        if (out == 0)
            continue;
        MX_TRY(mx_team_take(j->team, CHANNEL, m, (size_t)(j->team->me * piece) * size, &data));
        mx_stream_write(&j->out[m], 0, at, out, j->dtype, data);
    }
    mx_team_done(j->team, CHANNEL);
    return MX_OK;
}

/* The elements of the longest stream between two members, from the table: all members go through the same chunks. */
static int64_t longest(const job *j)
{
    int64_t rows = 0;
    for (int from = 0; from < j->team->n; from++)
        for (int to = 0; to < j->team->n && !j->read[from]; to++) {
            int64_t these = from != to ? sent(j->rows, in_group(j, from), in_group(j, to)) : 0;
            rows = these > rows ? these : rows;
        }
    return rows * j->rows->width;
}

static mx_status run_in_chunks(const job *j)
{
    int64_t count = longest(j), piece = MX_SLOT_BYTES / (int64_t)mx_dtype_bytes(j->dtype) / j->team->n;
    piece = piece >= ALIGN ? piece / ALIGN * ALIGN : piece;
    if (piece == 0)
        return mx_fail(MX_ERR_VALUE, "%d ranks are too many for one exchange", j->team->n);
    if (count > 0)
        MX_TRY(fill(j, 0, piece));
    for (int64_t at = 0; at < count; at += piece) {
        if (at + piece < count) /* the next chunk is in flight while this rank waits for this one */
            MX_TRY(fill(j, at + piece, piece));
        MX_TRY(place(j, at, piece));
    }
    return mx_team_finish(j->team);
}

static mx_status run_on(mx_team *team, const int *members, bool skips_own_node, const mx_exchange *x, bool past_caches)
{
    job j = {.team = team,
             .members = members,
             .skips_own_node = skips_own_node,
             .rows = x->rows,
             .dtype = x->what.wire,
             .whole = &x->in.blocks[0],
             .past_caches = past_caches};
    mx_status status = prepare(&j, x);
    if (status == MX_OK)
        status = run_direct(&j);
    if (status == MX_OK)
        status = run_in_chunks(&j);
    release(&j);
    return status;
}

/* ---- */

/* The rows that this rank's tokens have for its own experts, and 0 behind the last row. */
static mx_status finish_alone(const mx_group *g, const mx_exchange *x, bool past_caches)
{
    const mx_rows *r = x->rows;
    const mx_block *out = &x->out.blocks[0];
    int runs = most_runs(r);
    mx_block *blocks = calloc(2 * (size_t)runs, sizeof *blocks);
    if (!blocks)
        return mx_fail(MX_ERR_MEMORY, "no memory for an exchange between %d ranks", g->n);
    mx_stream from = find(r, &x->in.blocks[0], g->me, g->me, true, blocks);
    mx_stream to = find(r, out, g->me, g->me, false, blocks + runs);
    to.past_caches = past_caches;
    copy(&from, &to);
    free(blocks);
    int64_t size = (int64_t)mx_dtype_bytes(out->dtype);
    int64_t used = (r->back ? mx_rows_of_tokens(r, g->me) : mx_rows_of_experts(r, g->me)) * r->width;
    memset(out->data + used * size, 0, (size_t)((out->row - used) * size));
    return MX_OK;
}

mx_status mx_rows_run(const mx_group *g, const mx_exchange *x)
{
    const mx_block *out = &x->out.blocks[0];
    /* If input and output do not both fit the caches, writes bypass them. */
    bool past_caches = 2 * out->row * (int64_t)mx_dtype_bytes(out->dtype) > mx_cpu_l3_share_bytes();
    mx_status status = finish_alone(g, x, past_caches);
    if (status == MX_OK && g->node)
        status = run_on(g->node, g->node_members, false, x, past_caches);
    if (status == MX_OK && g->flat)
        status = run_on(g->flat, NULL, g->node != NULL, x, past_caches);
    mx_stream_fence();
    return status;
}
