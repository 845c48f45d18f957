/* Collective operations over all ranks: all_reduce and broadcast.
 *
 * A tensor goes in pieces that stay in cache. For all_reduce, each rank owns one part of a piece: it receives that part
 * from all others, reduces it in the order of the ranks, and sends the result to all others. The result is therefore
 * the same bits on every rank and in every run, bf16 travels as bf16 and is summed in f32 with one rounding, and a rank
 * sends 2 (n-1)/n of the tensor, the least possible. */
#include "core/pool.h"
#include "mesh/mpi.h"
#include "ops/op.h"
#include "ops/table.h"

#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>

enum { PIECE_BYTES = 1 << 20, BLOCK = 1024, TAG = 1 };

typedef enum reduction { SUM, MEAN, MAX } reduction;

typedef struct all_reduce_attr {
    int op; /* a reduction */
} all_reduce_attr;

typedef struct broadcast_attr {
    int64_t root;
} broadcast_attr;

static const char *const inputs[] = {"x", NULL};

/* ---- agreement ---- */

/* Ranks that come with different tensors, or to different operations, would wait for each other for ever. One small
 * reduction finds out, and every rank fails with a message. `kind` tells operation and options apart. */
static mx_status agree(const mx_call *call, int kind)
{
    const mx_tensor *x = call->in[0];
    kind = kind * MX_DTYPES + (int)x->dtype;
    int64_t mine[4] = {mx_count(x), -mx_count(x), kind, -kind};
    int64_t most[4];
    MX_TRY(mx_mpi_check(MPI_Allreduce(mine, most, 4, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD), call->op->name));
    if (most[2] != -most[3])
        return mx_bad_value(call, "the ranks differ in operation, options or dtype; this is rank %d", mx_rank());
    if (most[0] != -most[1])
        return mx_bad_shape(call, "the ranks' tensors have from %lld to %lld elements; rank %d has",
                            (long long)-most[1], (long long)most[0], mx_rank());
    return MX_OK;
}

/* ---- local reduction ---- */

static float larger(float a, float b) { return b > a || isnan(b) ? b : a; /* a NaN anywhere stays one */ }

/* Adds `n` elements of a contribution into the block; the first one only sets it. */
static void gather_block(mx_dtype dtype, reduction op, bool first, const void *from, int64_t at, int n, float *block)
{
    float values[BLOCK];
    for (int i = 0; i < n; i++)
        values[i] = dtype == MX_F32 ? ((const float *)from)[at + i] : mx_from_bf16(((const mx_bf16 *)from)[at + i]);
    for (int i = 0; i < n; i++)
        block[i] = first ? values[i] : op == MAX ? larger(block[i], values[i]) : block[i] + values[i];
}

static void reduce_floats(mx_dtype dtype, reduction op, const void *const *from, int64_t count, void *to)
{
    int ranks = mx_ranks();
    float scale = op == MEAN ? 1.0f / (float)ranks : 1.0f;
#pragma omp parallel for if (count > 16 * BLOCK)
    for (int64_t at = 0; at < count; at += BLOCK) {
        int n = count - at < BLOCK ? (int)(count - at) : BLOCK;
        float block[BLOCK];
        for (int r = 0; r < ranks; r++)
            gather_block(dtype, op, r == 0, from[r], at, n, block);
        for (int i = 0; i < n; i++)
            if (dtype == MX_F32)
                ((float *)to)[at + i] = scale * block[i];
            else
                ((mx_bf16 *)to)[at + i] = mx_to_bf16(scale * block[i]);
    }
}

/* Sums wrap around, as int32 does everywhere else. `to` is one of `from`. */
static void reduce_integers(reduction op, const void *const *from, int64_t count, int32_t *to)
{
    int ranks = mx_ranks();
    for (int64_t i = 0; i < count; i++) {
        int32_t value = ((const int32_t *)from[0])[i];
        for (int r = 1; r < ranks; r++) {
            int32_t other = ((const int32_t *)from[r])[i];
            if (op == MAX)
                value = other > value ? other : value;
            else
                value = (int32_t)((uint32_t)value + (uint32_t)other);
        }
        to[i] = value;
    }
}

/* ---- exchange ---- */

/* What one all_reduce works with. */
typedef struct exchange {
    mx_dtype dtype;
    reduction op;
    char *received;        /* the others' contributions to our part */
    const void **from;     /* per rank: where its contribution to our part is */
    MPI_Request *requests; /* two per other rank */
    MPI_Status *statuses;  /* one per request; MPI_STATUSES_IGNORE makes gcc warn of its address */
} exchange;

/* Part p of a piece of `count` elements: starts here, ends where part p+1 starts. */
static int64_t part_start(int64_t count, int p) { return count * p / mx_ranks(); }

static int part_bytes(const exchange *x, int64_t count, int p)
{
    return (int)((part_start(count, p + 1) - part_start(count, p)) * (int64_t)mx_dtype_bytes(x->dtype));
}

static mx_status wait_all(exchange *x)
{
    return mx_mpi_check(MPI_Waitall(2 * (mx_ranks() - 1), x->requests, x->statuses), "all_reduce");
}

/* Each part goes to its owner. The order of partners differs between ranks, so that no rank is everyone's first. */
static mx_status scatter(exchange *x, char *piece, int64_t count)
{
    int me = mx_rank(), ranks = mx_ranks(), mine = part_bytes(x, count, me);
    int64_t size = (int64_t)mx_dtype_bytes(x->dtype);
    MPI_Request *request = x->requests;
    for (int step = 1; step < ranks; step++) {
        int source = (me + ranks - step) % ranks;
        char *place = x->received + (int64_t)(step - 1) * mine;
        x->from[source] = place;
        MX_TRY(mx_mpi_check(MPI_Irecv(place, mine, MPI_BYTE, source, TAG, MPI_COMM_WORLD, request++), "all_reduce"));
    }
    for (int step = 1; step < ranks; step++) {
        int owner = (me + step) % ranks;
        MX_TRY(mx_mpi_check(MPI_Isend(piece + part_start(count, owner) * size, part_bytes(x, count, owner), MPI_BYTE,
                                      owner, TAG, MPI_COMM_WORLD, request++),
                            "all_reduce"));
    }
    x->from[me] = piece + part_start(count, me) * size;
    return wait_all(x);
}

/* Each owner's part goes to everyone. */
static mx_status gather(exchange *x, char *piece, int64_t count)
{
    int me = mx_rank(), ranks = mx_ranks();
    int64_t size = (int64_t)mx_dtype_bytes(x->dtype);
    MPI_Request *request = x->requests;
    for (int step = 1; step < ranks; step++) {
        int owner = (me + ranks - step) % ranks;
        MX_TRY(mx_mpi_check(MPI_Irecv(piece + part_start(count, owner) * size, part_bytes(x, count, owner), MPI_BYTE,
                                      owner, TAG, MPI_COMM_WORLD, request++),
                            "all_reduce"));
    }
    for (int step = 1; step < ranks; step++)
        MX_TRY(mx_mpi_check(MPI_Isend(piece + part_start(count, me) * size, part_bytes(x, count, me), MPI_BYTE,
                                      (me + step) % ranks, TAG, MPI_COMM_WORLD, request++),
                            "all_reduce"));
    return wait_all(x);
}

static mx_status reduce_piece(exchange *x, char *piece, int64_t count)
{
    int me = mx_rank();
    int64_t own = part_start(count, me), size = (int64_t)mx_dtype_bytes(x->dtype);
    int64_t own_count = part_start(count, me + 1) - own;
    MX_TRY(scatter(x, piece, count));
    if (x->dtype == MX_I32)
        reduce_integers(x->op, x->from, own_count, (int32_t *)(piece + own * size));
    else
        reduce_floats(x->dtype, x->op, x->from, own_count, piece + own * size);
    return gather(x, piece, count);
}

static mx_status reduce_tensor(exchange *x, mx_tensor *t)
{
    int64_t size = (int64_t)mx_dtype_bytes(t->dtype), count = mx_count(t), most = PIECE_BYTES / size;
    for (int64_t at = 0; at < count; at += most) {
        int64_t left = count - at;
        MX_TRY(reduce_piece(x, (char *)mx_data(t) + at * size, left < most ? left : most));
    }
    return MX_OK;
}

/* ---- all_reduce ---- */

static mx_status all_reduce_infer(mx_call *call)
{
    const all_reduce_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_dtype(call, 0, MX_FLOATS | 1 << MX_I32));
    if (call->in[0]->dtype == MX_I32 && attr->op == MEAN)
        return mx_bad_dtype(call, "the mean of integers is none; take the sum, or cast to f32 first");
    return MX_OK;
}

static mx_cost all_reduce_cost(const mx_call *call)
{
    double others = (double)(mx_ranks() - 1), share = others / mx_ranks();
    if (mx_ranks() == 1)
        return (mx_cost){0};
    mx_cost cost = mx_cost_of(call, share * (double)mx_count(call->in[0]));
    cost.bytes_written += (double)mx_bytes(call->in[0]);
    cost.bytes_sent = 2 * share * (double)mx_bytes(call->in[0]);
    return cost;
}

static mx_status all_reduce_host(mx_call *call)
{
    const all_reduce_attr *attr = mx_call_attr(call);
    size_t ranks = (size_t)mx_ranks();
    if (ranks == 1)
        return MX_OK;
    MX_TRY(agree(call, attr->op));
    exchange x = {.dtype = call->in[0]->dtype, .op = (reduction)attr->op};
    int64_t room = PIECE_BYTES + 4 * (int64_t)ranks; /* parts may be rounded up by an element */
    void *received = NULL;
    mx_status status = mx_pool_alloc(room, &received);
    x.received = received;
    x.from = calloc(ranks, sizeof *x.from);
    x.requests = calloc(2 * ranks, sizeof(MPI_Request));
    x.statuses = calloc(2 * ranks, sizeof *x.statuses);
    if (status == MX_OK && (!x.from || !x.requests || !x.statuses))
        status = mx_fail(MX_ERR_MEMORY, "all_reduce: no memory for %d ranks", mx_ranks());
    if (status == MX_OK)
        status = reduce_tensor(&x, call->in[0]);
    mx_pool_free(received, received ? room : 0);
    free(x.from);
    free(x.requests);
    free(x.statuses);
    return status;
}

static const char *const reductions[] = {"sum", "mean", "max", NULL};

static const mx_attr all_reduce_attrs[] = {
    {"op", MX_ATTR_ENUM, offsetof(all_reduce_attr, op), SUM, reductions, "how the ranks' values become one"},
    {0},
};

const mx_op mx_op_all_reduce = {
    .name = "all_reduce",
    .doc = "x of any shape becomes its sum, mean or maximum over all ranks, the same bits everywhere. Collective",
    .inputs = inputs,
    .flags = MX_OP_MUTATES,
    .attrs = all_reduce_attrs,
    .attr_bytes = sizeof(all_reduce_attr),
    .infer = all_reduce_infer,
    .cost = all_reduce_cost,
    .host = all_reduce_host,
};

/* ---- broadcast ---- */

static mx_status broadcast_infer(mx_call *call)
{
    const broadcast_attr *attr = mx_call_attr(call);
    if (attr->root < 0 || attr->root >= mx_ranks())
        return mx_bad_value(call, "root %lld is no rank; there are 0 to %d", (long long)attr->root, mx_ranks() - 1);
    return MX_OK;
}

static mx_cost broadcast_cost(const mx_call *call)
{
    const broadcast_attr *attr = mx_call_attr(call);
    double bytes = (double)mx_bytes(call->in[0]);
    if (mx_ranks() == 1)
        return (mx_cost){0};
    if (attr->root == mx_rank())
        return (mx_cost){.bytes_read = bytes, .bytes_sent = bytes};
    return (mx_cost){.bytes_written = bytes};
}

static mx_status broadcast_host(mx_call *call)
{
    const broadcast_attr *attr = mx_call_attr(call);
    if (mx_ranks() == 1)
        return MX_OK;
    MX_TRY(agree(call, MAX + 1 + (int)attr->root));
    return mx_broadcast_bytes(mx_data(call->in[0]), mx_bytes(call->in[0]), (int)attr->root);
}

static const mx_attr broadcast_attrs[] = {
    {"root", MX_ATTR_INT, offsetof(broadcast_attr, root), 0, NULL, "the rank whose values all get, from 0"},
    {0},
};

const mx_op mx_op_broadcast = {
    .name = "broadcast",
    .doc = "x, of the same shape and dtype on all ranks, becomes what it is on the root. Collective",
    .inputs = inputs,
    .flags = MX_OP_MUTATES,
    .attrs = broadcast_attrs,
    .attr_bytes = sizeof(broadcast_attr),
    .infer = broadcast_infer,
    .cost = broadcast_cost,
    .host = broadcast_host,
};
