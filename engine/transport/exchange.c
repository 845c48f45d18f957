#include "transport/exchange.h"

#include "core/pool.h"
#include "transport/direct.h"
#include "transport/mpi.h"
#include "transport/rows.h"

#include <stdlib.h>
#include <string.h>

enum {
    FIRST = 0,  /* the channel for every member's input */
    SECOND = 1, /* the channel for the results of all_reduce */
    ALIGN = 64, /* elements: parts of a chunk start on cache lines whatever the dtype */
};

/* The state of a running exchange. `parts` says which part of a stream belongs to each member of the team. */
typedef struct job {
    mx_team *team;
    const int *parts;
    mx_dtype wire;
    int64_t size; /* bytes of an element on the wire */
    mx_fold fold;
    float scale;
    const mx_stream *in, *out;
    bool in_place;
    void *scratch;     /* MX_SLOT_BYTES, and more for f32 copies */
    const void **from; /* for each member */
} job;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int part_of(const job *j, int member) { return j->parts ? j->parts[member] : member; }

/* ---- all_gather ---- */

static mx_status give_to_all(const job *j, int channel, size_t bytes)
{
    for (int step = 1; step < j->team->n; step++) {
        int other = (j->team->me + step) % j->team->n;
        MX_TRY(mx_team_expect(j->team, channel, other, bytes));
        MX_TRY(mx_team_give(j->team, channel, other, 0, bytes));
    }
    mx_team_post(j->team, channel);
    return MX_OK;
}

static mx_status gather_fill(const job *j, int64_t first, int64_t n, int in_part)
{
    char *slot;
    MX_TRY(mx_team_open(j->team, FIRST, &slot));
    mx_stream_read(j->in, in_part, first, n, j->wire, slot);
    MX_TRY(give_to_all(j, FIRST, (size_t)(n * j->size)));
    if (!j->in_place)
        mx_stream_write(j->out, part_of(j, j->team->me), first, n, j->wire, slot);
    return MX_OK;
}

static mx_status gather_empty(const job *j, int64_t first, int64_t n)
{
    for (int step = 1; step < j->team->n; step++) {
        int other = (j->team->me + step) % j->team->n;
        const void *data;
        MX_TRY(mx_team_take(j->team, FIRST, other, 0, &data));
        mx_stream_write(j->out, part_of(j, other), first, n, j->wire, data);
    }
    mx_team_done(j->team, FIRST);
    return MX_OK;
}

static mx_status gather(const job *j)
{
    int64_t count = j->in->count, chunk = MX_SLOT_BYTES / j->size;
    int in_part = j->in_place ? part_of(j, j->team->me) : 0;
    if (count > 0)
        MX_TRY(gather_fill(j, 0, least(chunk, count), in_part));
    for (int64_t at = 0; at < count; at += chunk) {
        if (at + chunk < count) /* the next chunk is in flight while this rank waits for this one */
            MX_TRY(gather_fill(j, at + chunk, least(chunk, count - at - chunk), in_part));
        MX_TRY(gather_empty(j, at, least(chunk, count - at)));
    }
    return MX_OK;
}

/* ---- reduce_scatter and all_to_all: a slot holds one piece for each member ---- */

static int64_t piece_elements(const job *j)
{
    int64_t piece = MX_SLOT_BYTES / j->size / j->team->n;
    return piece >= ALIGN ? piece / ALIGN * ALIGN : piece;
}

static mx_status scatter_fill(const job *j, int64_t first, int64_t n, int64_t piece)
{
    char *slot;
    size_t bytes = (size_t)(n * j->size);
    MX_TRY(mx_team_open(j->team, FIRST, &slot));
    for (int step = 1; step < j->team->n; step++) {
        int other = (j->team->me + step) % j->team->n;
        size_t offset = (size_t)(other * piece * j->size);
        mx_stream_read(j->in, part_of(j, other), first, n, j->wire, slot + offset);
        MX_TRY(mx_team_expect(j->team, FIRST, other, bytes));
        MX_TRY(mx_team_give(j->team, FIRST, other, offset, bytes));
    }
    mx_team_post(j->team, FIRST);
    return MX_OK;
}

/* This rank's own elements, where they are if they are contiguous, or else copied to the scratch memory. */
static const void *own_elements(const job *j, const mx_stream *s, int part, int64_t first, int64_t n)
{
    const void *found = mx_stream_find(s, part, first, n, j->wire);
    if (found)
        return found;
    mx_stream_read(s, part, first, n, j->wire, j->scratch);
    return j->scratch;
}

/* Reduces the members' elements (j->from) and writes them as elements first .. first + n of a part of a stream. */
static void fold_into(const job *j, const mx_stream *out, int part, int64_t first, int64_t n)
{
    mx_dtype dtype = out->blocks[0].dtype;
    void *place = mx_stream_find(out, part, first, n, dtype);
    void *result = place ? place : (char *)j->scratch + MX_SLOT_BYTES;
    mx_reduce_across(j->fold, j->team->n, j->from, j->wire, n, j->scale, (mx_array){result, dtype}, NULL, false);
    if (!place)
        mx_stream_write(out, part, first, n, dtype, result);
}

static mx_status scatter_fold(const job *j, int64_t first, int64_t n, int64_t piece)
{
    mx_team *team = j->team;
    int me = part_of(j, team->me);
    j->from[team->me] = own_elements(j, j->in, me, first, n);
    for (int step = 1; step < team->n; step++) {
        int other = (team->me + step) % team->n;
        MX_TRY(mx_team_take(team, FIRST, other, (size_t)(team->me * piece * j->size), &j->from[other]));
    }
    fold_into(j, j->out, j->in_place ? me : 0, first, n);
    mx_team_done(team, FIRST);
    return MX_OK;
}

static mx_status scatter_place(const job *j, int64_t first, int64_t n, int64_t piece)
{
    mx_team *team = j->team;
    int me = part_of(j, team->me);
    if (!j->in_place)
        mx_stream_write(j->out, me, first, n, j->wire, own_elements(j, j->in, me, first, n));
    for (int step = 1; step < team->n; step++) {
        int other = (team->me + step) % team->n;
        const void *data;
        MX_TRY(mx_team_take(team, FIRST, other, (size_t)(team->me * piece * j->size), &data));
        mx_stream_write(j->out, part_of(j, other), first, n, j->wire, data);
    }
    mx_team_done(team, FIRST);
    return MX_OK;
}

static mx_status scatter(const job *j, mx_status (*empty)(const job *, int64_t, int64_t, int64_t))
{
    int64_t count = j->in->count, piece = piece_elements(j);
    if (piece == 0)
        return mx_fail(MX_ERR_VALUE, "%d ranks are too many for one exchange", j->team->n);
    if (count > 0)
        MX_TRY(scatter_fill(j, 0, least(piece, count), piece));
    for (int64_t at = 0; at < count; at += piece) {
        if (at + piece < count)
            MX_TRY(scatter_fill(j, at + piece, least(piece, count - at - piece), piece));
        MX_TRY(empty(j, at, least(piece, count - at), piece));
    }
    return MX_OK;
}

/* ---- all_reduce: each member reduces its share of a chunk and gives the result to all ---- */

/* Where share m of a chunk of n elements starts. */
static int64_t share_start(const job *j, int64_t n, int m)
{
    int64_t lines = (n + ALIGN - 1) / ALIGN;
    return least(n, lines * m / j->team->n * ALIGN);
}

static int64_t share_count(const job *j, int64_t n, int m) { return share_start(j, n, m + 1) - share_start(j, n, m); }

static mx_status reduce_fill(const job *j, int64_t first, int64_t n)
{
    char *slot;
    mx_team *team = j->team;
    MX_TRY(mx_team_open(team, FIRST, &slot));
    for (int step = 1; step < team->n; step++) {
        int other = (team->me + step) % team->n;
        int64_t start = share_start(j, n, other), share = share_count(j, n, other);
        mx_stream_read(j->in, 0, first + start, share, j->wire, slot + start * j->size);
        MX_TRY(mx_team_expect(team, FIRST, other, (size_t)(share_count(j, n, team->me) * j->size)));
        MX_TRY(mx_team_give(team, FIRST, other, (size_t)(start * j->size), (size_t)(share * j->size)));
    }
    mx_team_post(team, FIRST);
    return MX_OK;
}

static mx_status reduce_fold(const job *j, int64_t first, int64_t n)
{
    mx_team *team = j->team;
    int64_t start = share_start(j, n, team->me), share = share_count(j, n, team->me);
    j->from[team->me] = own_elements(j, j->in, 0, first + start, share);
    for (int step = 1; step < team->n; step++) {
        int other = (team->me + step) % team->n;
        MX_TRY(mx_team_take(team, FIRST, other, (size_t)(start * j->size), &j->from[other]));
    }
    char *slot;
    MX_TRY(mx_team_open(team, SECOND, &slot));
    mx_dtype dtype = j->out->blocks[0].dtype;
    void *place = mx_stream_find(j->out, 0, first + start, share, dtype);
    mx_reduce_across(j->fold, team->n, j->from, j->wire, share, j->scale, (mx_array){slot, dtype}, place,
                     j->out->past_caches);
    mx_team_done(team, FIRST);
    int64_t out_size = (int64_t)mx_dtype_bytes(dtype);
    for (int step = 1; step < team->n; step++) {
        int other = (team->me + step) % team->n;
        MX_TRY(mx_team_expect(team, SECOND, other, (size_t)(share_count(j, n, other) * out_size)));
        MX_TRY(mx_team_give(team, SECOND, other, 0, (size_t)(share * out_size)));
    }
    mx_team_post(team, SECOND);
    if (!place)
        mx_stream_write(j->out, 0, first + start, share, dtype, slot);
    return MX_OK;
}

static mx_status reduce_place(const job *j, int64_t first, int64_t n)
{
    mx_team *team = j->team;
    for (int step = 1; step < team->n; step++) {
        int other = (team->me + step) % team->n;
        const void *data;
        MX_TRY(mx_team_take(team, SECOND, other, 0, &data));
        mx_stream_write(j->out, 0, first + share_start(j, n, other), share_count(j, n, other), j->out->blocks[0].dtype,
                        data);
    }
    mx_team_done(team, SECOND);
    return MX_OK;
}

/* A pipeline of three stages per chunk: while one chunk is reduced, the next one is sent and the previous one is
 * written to the output. */
static mx_status reduce(const job *j)
{
    int64_t count = j->in->count, size = (int64_t)mx_dtype_bytes(j->out->blocks[0].dtype);
    int64_t chunk = MX_SLOT_BYTES / (size > j->size ? size : j->size);
    if (count > 0)
        MX_TRY(reduce_fill(j, 0, least(chunk, count)));
    for (int64_t at = 0; at < count; at += chunk) {
        if (at + chunk < count)
            MX_TRY(reduce_fill(j, at + chunk, least(chunk, count - at - chunk)));
        MX_TRY(reduce_fold(j, at, least(chunk, count - at)));
        if (at > 0)
            MX_TRY(reduce_place(j, at - chunk, chunk));
    }
    int64_t last = count > 0 ? (count - 1) / chunk * chunk : 0;
    return count > 0 ? reduce_place(j, last, count - last) : MX_OK;
}

/* ---- permute, broadcast and messages: each member sends to at most one member, or the same to all ---- */

/* `source`: the member that this rank receives from, or -1. `give`: the member that it sends to, n for all, or -1. */
static mx_status relay_fill(const job *j, int64_t first, int64_t n, int source, int give)
{
    char *slot;
    size_t bytes = (size_t)(n * j->size);
    MX_TRY(mx_team_open(j->team, FIRST, &slot));
    if (source >= 0)
        MX_TRY(mx_team_expect(j->team, FIRST, source, bytes));
    if (give >= 0)
        mx_stream_read(j->in, 0, first, n, j->wire, slot);
    for (int other = 0; other < j->team->n; other++)
        if (other != j->team->me && (give == other || give == j->team->n))
            MX_TRY(mx_team_give(j->team, FIRST, other, 0, bytes));
    mx_team_post(j->team, FIRST);
    return MX_OK;
}

static mx_status relay_empty(const job *j, int64_t first, int64_t n, int source)
{
    const void *data = NULL;
    if (source >= 0) {
        MX_TRY(mx_team_take(j->team, FIRST, source, 0, &data));
        mx_stream_write(j->out, 0, first, n, j->wire, data);
    } else if (!j->in_place) {
        mx_stream_write(j->out, 0, first, n, j->wire, own_elements(j, j->in, 0, first, n));
    }
    mx_team_done(j->team, FIRST);
    return MX_OK;
}

static mx_status relay(const job *j, int source, int give)
{
    int64_t count = j->in->count, chunk = MX_SLOT_BYTES / j->size;
    if (count > 0)
        MX_TRY(relay_fill(j, 0, least(chunk, count), source, give));
    for (int64_t at = 0; at < count; at += chunk) {
        if (at + chunk < count)
            MX_TRY(relay_fill(j, at + chunk, least(chunk, count - at - chunk), source, give));
        MX_TRY(relay_empty(j, at, least(chunk, count - at), source));
    }
    return MX_OK;
}

static mx_status relay_kind(const job *j, const mx_exchange *x)
{
    int n = j->team->n, me = j->team->me;
    if (x->what.kind == MX_BROADCAST || x->what.kind == MX_POINT)
        return relay(j, me == x->what.root ? -1 : x->what.root, me == x->what.root ? n : -1);
    int shift = (x->what.shift % n + n) % n;
    return shift == 0 ? relay(j, -1, -1) : relay(j, (me + n - shift) % n, (me + shift) % n);
}

/* ---- one team ---- */

static mx_status run_on_team(job *j, const mx_exchange *x)
{
    switch (x->what.kind) {
    case MX_ALL_REDUCE:
        return reduce(j);
    case MX_ALL_GATHER:
        return gather(j);
    case MX_REDUCE_SCATTER:
        return scatter(j, scatter_fold);
    case MX_ALL_TO_ALL:
        return scatter(j, scatter_place);
    case MX_PERMUTE:
    case MX_BROADCAST:
    case MX_POINT:
        return relay_kind(j, x);
    default:
        return MX_OK;
    }
}

static mx_status stage_on(mx_team *team, const int *parts, const mx_exchange *x, const mx_stream *in,
                          const mx_stream *out, float scale)
{
    job j = {.team = team,
             .parts = parts,
             .wire = in->blocks[0].dtype,
             .fold = x->what.fold,
             .scale = scale,
             .in = in,
             .out = out,
             .in_place = x->what.in_place};
    if (x->what.kind != MX_ALL_REDUCE && x->what.kind != MX_REDUCE_SCATTER)
        j.wire = x->what.wire;
    j.size = (int64_t)mx_dtype_bytes(j.wire);
    j.from = calloc((size_t)team->n, sizeof(void *));
    mx_status status =
        mx_pool_alloc(3 * (int64_t)MX_SLOT_BYTES, &j.scratch); /* the second and third may hold f32 for bf16 */
    if (status == MX_OK && !j.from)
        status = mx_fail(MX_ERR_MEMORY, "no memory for an exchange between %d ranks", team->n);
    if (status == MX_OK)
        status = run_on_team(&j, x);
    if (status == MX_OK)
        status = mx_team_finish(team);
    if (out->past_caches)
        mx_stream_fence();
    mx_pool_free(j.scratch, j.scratch ? 3 * (int64_t)MX_SLOT_BYTES : 0);
    free(j.from);
    return status;
}

/* Runs an exchange on one team with these streams and parts. */
static mx_status exchange_on(mx_team *team, const int *parts, const mx_exchange *x, const mx_stream *in,
                             const mx_stream *out, float scale)
{
    mx_rest rest;
    mx_status status = mx_direct_run(team, parts, x, in, out, scale, &rest);
    if (status == MX_OK && rest.in.count > 0)
        status = stage_on(team, parts, x, &rest.in, &rest.out, scale);
    free(rest.blocks);
    return status;
}

/* ---- several nodes: within each node, then across nodes between ranks with the same local index, then within each
 * node again ---- */

/* `count` elements of scratch memory as a stream, in `parts` parts. */
typedef struct temporary {
    mx_block block;
    mx_stream stream;
    int64_t bytes;
} temporary;

static mx_status new_temporary(temporary *t, mx_dtype dtype, int64_t count, int parts)
{
    void *data = NULL;
    t->bytes = count * parts * (int64_t)mx_dtype_bytes(dtype);
    MX_TRY(mx_pool_alloc(t->bytes, &data));
    t->block = (mx_block){.data = data, .dtype = dtype, .rows = 1, .row = count, .stride = count, .part = count};
    t->stream = (mx_stream){.blocks = &t->block, .n = 1, .count = count};
    return MX_OK;
}

static void free_temporary(temporary *t)
{
    if (t->block.data)
        mx_pool_free(t->block.data, t->bytes);
}

/* Elements start .. start + count of one block, as a block. */
static mx_block cut(mx_block b, int64_t start, int64_t count)
{
    b.data += start * (int64_t)mx_dtype_bytes(b.dtype);
    b.rows = 1;
    b.row = b.stride = count;
    return b;
}

/* Between nodes. Integers saturate at every step, in their own dtype. */
static mx_dtype sum_dtype(mx_dtype dtype)
{
    return mx_dtype_is_integer(dtype) ? dtype : mx_dtype_accumulates_in(dtype);
}

/* Reduce-scatter within the node, all-reduce of each share across nodes, then all-gather within the node. Shares have
 * equal size; the last one is padded. */
static mx_status reduce_over_nodes(mx_group *g, const mx_exchange *x)
{
    int n = g->node->n;
    int64_t share = (x->in.count + n - 1) / n;
    mx_dtype sum = sum_dtype(x->what.wire);
    temporary whole = {0}, part = {0};
    mx_exchange step = *x;
    step.what.in_place = false;
    mx_status status = new_temporary(&whole, x->what.wire, share, n);
    if (status == MX_OK)
        status = new_temporary(&part, sum, share, 1);
    if (status == MX_OK) {
        int64_t filled = x->in.count;
        mx_stream_read(&x->in, 0, 0, filled, x->what.wire, whole.block.data);
        memset(whole.block.data + filled * (int64_t)mx_dtype_bytes(x->what.wire), 0,
               (size_t)((share * n - filled) * (int64_t)mx_dtype_bytes(x->what.wire)));
        step.what.kind = MX_REDUCE_SCATTER;
        status = exchange_on(g->node, NULL, &step, &whole.stream, &part.stream, 1);
    }
    if (status == MX_OK) {
        step.what.kind = MX_ALL_REDUCE;
        step.what.in_place = true;
        status = exchange_on(g->across, NULL, &step, &part.stream, &part.stream, x->what.scale);
    }
    if (status == MX_OK) {
        step.what.kind = MX_ALL_GATHER;
        step.what.in_place = false;
        step.what.wire = x->what.wire;
        status = exchange_on(g->node, NULL, &step, &part.stream, &whole.stream, 1);
    }
    if (status == MX_OK)
        mx_stream_write(&x->out, 0, 0, x->out.count, x->what.wire, whole.block.data);
    if (x->out.past_caches)
        mx_stream_fence();
    free_temporary(&whole);
    free_temporary(&part);
    return status;
}

/* All-gather across nodes between ranks with the same local index; then all-gather within each node. */
static mx_status gather_over_nodes(mx_group *g, const mx_exchange *x)
{
    int machines = g->across->n, n = g->node->n;
    temporary column = {0};
    mx_exchange step = *x;
    step.what.in_place = false;
    MX_TRY(new_temporary(&column, x->what.wire, x->in.count, machines));
    mx_stream own = x->in;
    mx_block *moved = NULL;
    if (x->what.in_place) { /* this rank's part of the output becomes a stream of its own */
        moved = calloc((size_t)x->in.n, sizeof *moved);
        for (int b = 0; moved && b < x->in.n; b++)
            moved[b] = mx_block_part(&x->in.blocks[b], g->me);
        own.blocks = moved;
    }
    mx_status status = x->what.in_place && !moved ? mx_fail(MX_ERR_MEMORY, "no memory for an exchange")
                                                  : exchange_on(g->across, NULL, &step, &own, &column.stream, 1);
    for (int v = 0; status == MX_OK && v < machines; v++) {
        mx_block part = cut(column.block, v * x->in.count, x->in.count);
        mx_stream in = {.blocks = &part, .n = 1, .count = x->in.count};
        status = exchange_on(g->node, g->grid + (size_t)v * n, &step, &in, &x->out, 1);
    }
    free(moved);
    free_temporary(&column);
    return status;
}

/* Each node reduces its ranks' data per destination; then ranks with the same local index exchange across nodes. */
static mx_status scatter_over_nodes(mx_group *g, const mx_exchange *x)
{
    int machines = g->across->n, n = g->node->n;
    temporary column = {0};
    mx_exchange step = *x;
    step.what.in_place = false;
    mx_dtype sum = sum_dtype(x->what.wire);
    MX_TRY(new_temporary(&column, sum, x->in.count, machines));
    mx_status status = MX_OK;
    for (int v = 0; status == MX_OK && v < machines; v++) {
        mx_block part = cut(column.block, v * x->in.count, x->in.count);
        mx_stream out = {.blocks = &part, .n = 1, .count = x->in.count};
        status = exchange_on(g->node, g->grid + (size_t)v * n, &step, &x->in, &out, 1);
    }
    temporary result = {0};
    if (status == MX_OK)
        status = new_temporary(&result, x->out.blocks[0].dtype, x->out.count, 1);
    if (status == MX_OK)
        status = exchange_on(g->across, NULL, &step, &column.stream, &result.stream, x->what.scale);
    if (status == MX_OK)
        mx_stream_write(&x->out, x->what.in_place ? g->me : 0, 0, x->out.count, x->out.blocks[0].dtype,
                        result.block.data);
    if (x->out.past_caches)
        mx_stream_fence();
    free_temporary(&result);
    free_temporary(&column);
    return status;
}

mx_status mx_exchange_run(mx_group *g, const mx_exchange *x)
{
    if (x->what.kind == MX_BARRIER) /* within a node, comparing the tags was a barrier */
        return g->flat ? mx_meet(g->ranks, g->n, g->me) : MX_OK;
    if (x->what.kind == MX_ALL_TO_ALL_ROWS)
        return mx_rows_run(g, x);
    if (g->across && x->what.kind == MX_ALL_REDUCE)
        return reduce_over_nodes(g, x);
    if (g->across && x->what.kind == MX_ALL_GATHER)
        return gather_over_nodes(g, x);
    if (g->across && x->what.kind == MX_REDUCE_SCATTER)
        return scatter_over_nodes(g, x);
    return exchange_on(g->flat ? g->flat : g->node, NULL, x, &x->in, &x->out, x->what.scale);
}
