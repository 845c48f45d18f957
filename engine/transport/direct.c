#include "transport/direct.h"

#include "core/arena.h"
#include "core/cpu.h"
#include "core/pool.h"
#include "transport/peers.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = 64,        /* elements: shares start on cache lines whatever the dtype */
    MANY = 1024,       /* contiguous elements that are worth a call of their own */
    MOST_BLOCKS = 120, /* blocks of one exchange that fit a note */
};

/* The layout of a block's elements, without its address. */
typedef struct layout {
    int64_t dtype, rows, row, stride, part, full, lack;
} layout;

/* What a member publishes about one tensor. Positions are offsets in its arena, or -1. */
typedef struct place {
    int64_t in, out;
    layout in_layout, out_layout;
} place;

typedef struct note {
    int64_t n, in_place;
    place places[MOST_BLOCKS];
} note;
_Static_assert(sizeof(note) <= MX_NOTE_BYTES, "a note must have room for its places");

/* One tensor's part of an exchange, with the blocks of all members. */
typedef struct job {
    mx_team *team;
    const int *parts;
    const mx_exchange *x;
    float scale;
    mx_dtype wire;
    int64_t count, chunk; /* elements of one part; elements per member that fit the scratch memory */
    mx_stream *in, *out;  /* for each member a stream of one block */
    mx_block *blocks;     /* their blocks: those of in, then those of out */
    const void **from;    /* for each member */
    char *scratch;
    int64_t scratch_bytes;
} job;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int part_of(const job *j, int member) { return j->parts ? j->parts[member] : member; }

static int after(const job *j, int step) { return (j->team->me + step) % j->team->n; }

/* ---- copying ---- */

/* The number of elements from `at` on to handle in one step: a long contiguous run without padding, or else what fits
 * the scratch memory. */
static int64_t step_at(const job *j, const mx_block *b, int64_t at, int64_t end)
{
    int64_t run = b->dtype == j->wire ? b->row - b->lack - at % b->row : 0;
    return least(run >= MANY ? run : j->chunk, end - at);
}

static const void *elements(const job *j, const mx_stream *s, int part, int64_t first, int64_t n, char *scratch)
{
    const void *found = mx_stream_find(s, part, first, n, j->wire);
    if (found)
        return found;
    mx_stream_read(s, part, first, n, j->wire, scratch);
    return scratch;
}

/* Copies a part of the input of `member` to a part of this rank's output. */
static void copy(const job *j, int member, int in_part, int out_part)
{
    for (int64_t at = 0, n; at < j->count; at += n) {
        n = step_at(j, j->in[member].blocks, at, j->count);
        const void *data = elements(j, &j->in[member], in_part, at, n, j->scratch);
        mx_stream_write(&j->out[j->team->me], out_part, at, n, j->wire, data);
    }
}

static void gather(const job *j)
{
    for (int step = j->x->what.in_place ? 1 : 0; step < j->team->n; step++) {
        int other = after(j, step);
        copy(j, other, j->x->what.in_place ? part_of(j, other) : 0, part_of(j, other));
    }
}

static void all_to_all(const job *j)
{
    for (int step = 0; step < j->team->n; step++)
        copy(j, after(j, step), part_of(j, j->team->me), part_of(j, after(j, step)));
}

static void relay(const job *j)
{
    int n = j->team->n, me = j->team->me, shift = (j->x->what.shift % n + n) % n;
    int source = j->x->what.kind == MX_PERMUTE ? (me + n - shift) % n : j->x->what.root;
    if (source != me || !j->x->what.in_place)
        copy(j, source, 0, 0);
}

/* ---- folding ---- */

/* Reduces elements at .. at + n of one part over all members, and writes them to one part of the outputs of `n_to`
 * members, starting with this one. */
static void fold_chunk(const job *j, int in_part, int out_part, int64_t at, int64_t n, int n_to)
{
    int members = j->team->n;
    for (int m = 0; m < members; m++)
        j->from[m] =
            elements(j, &j->in[m], in_part, at, n, j->scratch + m * j->chunk * (int64_t)mx_dtype_bytes(j->wire));
    const mx_stream *own = &j->out[j->team->me], *next = &j->out[after(j, 1)];
    mx_dtype dtype = own->blocks[0].dtype;
    void *first = mx_stream_find(own, out_part, at, n, dtype);
    void *second = n_to > 1 ? mx_stream_find(next, out_part, at, n, dtype) : NULL;
    void *result = first ? first : j->scratch + MX_SLOT_BYTES;
    mx_reduce_across(j->x->what.fold, members, j->from, j->wire, n, j->scale, (mx_array){result, dtype}, second,
                     next->past_caches);
    if (!first)
        mx_stream_write(own, out_part, at, n, dtype, result);
    for (int step = second ? 2 : 1; step < n_to; step++)
        mx_stream_write(&j->out[after(j, step)], out_part, at, n, dtype, result);
}

/* Each member reduces its share of the elements and writes it to all members. */
static void all_reduce(const job *j)
{
    int64_t lines = (j->count + ALIGN - 1) / ALIGN, n = j->team->n, me = j->team->me;
    int64_t start = least(j->count, lines * me / n * ALIGN), end = least(j->count, lines * (me + 1) / n * ALIGN);
    for (int64_t at = start; at < end; at += j->chunk)
        fold_chunk(j, 0, 0, at, least(j->chunk, end - at), j->team->n);
}

static void reduce_scatter(const job *j)
{
    int me = part_of(j, j->team->me);
    for (int64_t at = 0; at < j->count; at += j->chunk)
        fold_chunk(j, me, j->x->what.in_place ? me : 0, at, least(j->chunk, j->count - at), 1);
}

static void run_block(const job *j)
{
    switch (j->x->what.kind) {
    case MX_ALL_REDUCE:
        all_reduce(j);
        break;
    case MX_ALL_GATHER:
        gather(j);
        break;
    case MX_REDUCE_SCATTER:
        reduce_scatter(j);
        break;
    case MX_ALL_TO_ALL:
        all_to_all(j);
        break;
    default:
        relay(j);
    }
}

/* ---- which tensors, and where they are ---- */

static layout layout_of(const mx_block *b)
{
    return (layout){(int64_t)b->dtype, b->rows, b->row, b->stride, b->part, b->full, b->lack};
}

static mx_block block_of(const layout *l, char *data)
{
    return (mx_block){data, (mx_dtype)l->dtype, l->rows, l->row, l->stride, l->part, l->full, l->lack};
}

/* Whether elements have the same order; a shorter part has another stride. */
static bool is_alike(const layout *a, const layout *b)
{
    return a->dtype == b->dtype && a->rows == b->rows && a->row == b->row && a->part == b->part && a->lack == b->lack &&
           (a->lack > 0 || a->stride == b->stride);
}

static int64_t count_of(const mx_block *b) { return b->rows * b->row; }

/* Across nodes, one block of a stream may match several of the other stream; such exchanges go through slots. */
static bool are_pairs(const mx_stream *in, const mx_stream *out)
{
    bool pairs = in->n == out->n;
    for (int b = 0; pairs && b < in->n; b++)
        pairs = count_of(&in->blocks[b]) == count_of(&out->blocks[b]);
    return pairs;
}

static void write_note(note *own, const mx_stream *in, const mx_stream *out, bool in_place)
{
    own->n = !are_pairs(in, out) ? 0 : in->n < MOST_BLOCKS ? in->n : MOST_BLOCKS;
    own->in_place = in_place;
    for (int b = 0; b < own->n; b++)
        own->places[b] = (place){mx_arena_offset(in->blocks[b].data), mx_arena_offset(out->blocks[b].data),
                                 layout_of(&in->blocks[b]), layout_of(&out->blocks[b])};
}

/* In place, these kinds would write where another member still reads. */
static bool overwrites(const mx_exchange *x) { return x->what.kind == MX_ALL_TO_ALL || x->what.kind == MX_PERMUTE; }

/* Whether tensor b is in shared memory on all members, with its elements in the same order. All members get the same
 * answer. */
static bool is_shared(const mx_team *team, const mx_exchange *x, const note *own, int b)
{
    for (int m = 0; m < team->n; m++) {
        const note *theirs = mx_team_note(team, m);
        const place *p = &theirs->places[b];
        if (theirs->n != own->n || p->in < 0 || (theirs->in_place && overwrites(x)) ||
            (x->what.kind == MX_ALL_REDUCE && p->out < 0) || !is_alike(&p->in_layout, &own->places[b].in_layout) ||
            !is_alike(&p->out_layout, &own->places[b].out_layout))
            return false;
    }
    return true;
}

static void find_block(job *j, const mx_stream *in, const mx_stream *out, int b)
{
    const mx_team *team = j->team;
    j->count = count_of(&in->blocks[b]);
    /* If input and output do not both fit the caches, writes bypass them. */
    int64_t out_bytes = out->blocks[b].rows * out->blocks[b].stride * (int64_t)mx_dtype_bytes(out->blocks[b].dtype);
    for (int m = 0; m < team->n; m++) {
        const place *theirs = &((const note *)mx_team_note(team, m))->places[b];
        mx_block *from = &j->blocks[m], *to = &j->blocks[team->n + m];
        *from = in->blocks[b];
        *to = out->blocks[b];
        if (m != team->me) {
            bool writes = j->x->what.kind == MX_ALL_REDUCE;
            *from = block_of(&theirs->in_layout, mx_peers_address(team->ranks[m], theirs->in));
            *to = block_of(&theirs->out_layout, writes ? mx_peers_address(team->ranks[m], theirs->out) : NULL);
        }
        j->in[m] = (mx_stream){.blocks = from, .n = 1, .count = j->count};
        j->out[m] = (mx_stream){
            .blocks = to, .n = 1, .count = j->count, .past_caches = 2 * out_bytes > mx_cpu_l3_share_bytes()};
    }
}

static mx_status keep_rest(const bool *shared, const mx_stream *in, const mx_stream *out, mx_rest *rest)
{
    rest->blocks = malloc(2 * (size_t)in->n * sizeof(mx_block));
    if (!rest->blocks)
        return mx_fail(MX_ERR_MEMORY, "no memory for an exchange");
    int n = 0;
    int64_t count = 0;
    for (int b = 0; b < in->n; b++) {
        if (b < MOST_BLOCKS && shared[b])
            continue;
        rest->blocks[n] = in->blocks[b];
        rest->blocks[in->n + n++] = out->blocks[b];
        count += count_of(&in->blocks[b]);
    }
    rest->in = (mx_stream){rest->blocks, n, count, in->past_caches};
    rest->out = (mx_stream){rest->blocks + in->n, n, count, out->past_caches};
    return MX_OK;
}

static mx_status prepare(job *j)
{
    size_t n = (size_t)j->team->n;
    j->scratch_bytes = 3 * (int64_t)MX_SLOT_BYTES; /* one slot of input, and the same in f32 if it is bf16 */
    j->in = calloc(2 * n, sizeof(mx_stream));
    j->blocks = calloc(2 * n, sizeof(mx_block));
    j->from = calloc(n, sizeof(void *));
    if (!j->in || !j->blocks || !j->from)
        return mx_fail(MX_ERR_MEMORY, "no memory for an exchange between %d ranks", j->team->n);
    j->out = j->in + n;
    return mx_pool_alloc(j->scratch_bytes, (void **)&j->scratch);
}

static mx_status run_shared(job *j, const bool *shared, const mx_stream *in, const mx_stream *out)
{
    mx_status status = prepare(j);
    for (int b = 0; status == MX_OK && b < in->n && b < MOST_BLOCKS; b++)
        if (shared[b]) {
            find_block(j, in, out, b);
            run_block(j);
        }
    mx_stream_fence();
    mx_pool_free(j->scratch, j->scratch_bytes);
    free(j->in);
    free(j->blocks);
    free(j->from);
    return status == MX_OK ? mx_team_leave(j->team) : status;
}

/* Bytes of a rank from which sharing is faster than slots, with tensors that were just written (two cores of Zen 5). In
 * a slot, data goes to another core's cache once more, and twice in all_reduce. Without slots, ranks wait for each
 * other once more. */
static int64_t worth_from(mx_exchange_kind kind)
{
    switch (kind) {
    case MX_ALL_REDUCE:
        return MX_ARENA_FROM;
    case MX_BROADCAST:
    case MX_PERMUTE:
        return 16 << 10;
    case MX_ALL_GATHER:
        return 32 << 10;
    default:
        return 128 << 10;
    }
}

/* Whether a tensor is large enough: decided from values that are equal on all members. */
static bool is_worth(const job *j, const mx_stream *in)
{
    bool in_parts = j->x->what.kind == MX_REDUCE_SCATTER || j->x->what.kind == MX_ALL_TO_ALL;
    int64_t bytes = in->count * (in_parts ? j->team->n : 1) * (int64_t)mx_dtype_bytes(j->wire);
    return mx_peers_share() && j->team->areas && bytes >= worth_from(j->x->what.kind) && j->chunk >= ALIGN;
}

mx_status mx_direct_run(mx_team *team, const int *parts, const mx_exchange *x, const mx_stream *in,
                        const mx_stream *out, float scale, mx_rest *rest)
{
    job j = {.team = team, .parts = parts, .x = x, .scale = scale, .wire = x->what.wire};
    if (x->what.kind == MX_ALL_REDUCE || x->what.kind == MX_REDUCE_SCATTER)
        j.wire = in->blocks[0].dtype;
    j.chunk = MX_SLOT_BYTES / (int64_t)mx_dtype_bytes(j.wire) / team->n / ALIGN * ALIGN;
    *rest = (mx_rest){.in = *in, .out = *out};
    if (!is_worth(&j, in))
        return MX_OK;
    note own;
    bool shared[MOST_BLOCKS];
    int n_shared = 0;
    write_note(&own, in, out, x->what.in_place);
    MX_TRY(mx_team_meet(team, &own, offsetof(note, places) + (size_t)own.n * sizeof(place)));
    for (int b = 0; b < own.n; b++)
        n_shared += shared[b] = is_shared(team, x, &own, b);
    if (n_shared == 0)
        return MX_OK;
    MX_TRY(run_shared(&j, shared, in, out));
    if (n_shared < in->n)
        return keep_rest(shared, in, out, rest);
    rest->in.n = rest->out.n = 0;
    rest->in.count = rest->out.count = 0;
    return MX_OK;
}
