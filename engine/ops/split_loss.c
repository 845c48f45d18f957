/* The steps of a cross entropy whose vocabulary is split over ranks, for a chunk of tokens: this rank has some rows of
 * the weight. mesh/loss.c gathers the sums of all ranks between the two steps. */
#include "ops/loss.h"
#include "ops/rows.h"

#include <math.h>
#include <string.h>

/* After the inputs of cross_entropy. */
enum { LOGITS = MX_LOSS_MASK + 1, SUMS, LOSSES, LOSS, DH, DWEIGHT };

enum { SUM_FLOATS = sizeof(mx_loss_sums) / sizeof(float) };

static mx_cross_entropy arguments(const mx_call *call)
{
    const mx_loss_step_attr *attr = mx_call_attr(call);
    mx_cross_entropy c = mx_cross_entropy_arguments(&attr->loss, call->in);
    c.first_id = attr->first_id;
    return c;
}

/* The number of ids in this rank's part. */
static int64_t vocab_of(const mx_call *call)
{
    const mx_loss_step_attr *attr = mx_call_attr(call);
    return call->in[MX_LOSS_WEIGHT]->shape.size[attr->loss.trans ? 0 : 1];
}

/* The cost of so many products of the logits' size. Of h, only the chunk is read. */
static mx_cost cost_of(const mx_call *call, double products)
{
    const mx_loss_step_attr *attr = mx_call_attr(call);
    const mx_tensor *h = call->in[MX_LOSS_H];
    mx_cost cost = {
        .work = MX_WORK_PRODUCT, .m = (double)attr->rows, .n = (double)vocab_of(call), .k = (double)mx_row_width(h)};
    cost.flops = 2 * products * cost.m * cost.n * cost.k;
    cost.bytes_read = cost.m * cost.k * (double)mx_dtype_bytes(h->dtype) + (double)mx_bytes(call->in[MX_LOSS_WEIGHT]);
    return cost;
}

static mx_status want_chunk(const mx_call *call)
{
    const mx_loss_step_attr *attr = mx_call_attr(call);
    MX_TRY(mx_cross_entropy_check(call));
    int64_t tokens = mx_row_count(call->in[MX_LOSS_H]);
    if (attr->first < 0 || attr->rows < 0 || attr->first > tokens || attr->rows > tokens - attr->first)
        return mx_bad_value(call, "first = %lld, rows = %lld: no tokens of the %lld of h", (long long)attr->first,
                            (long long)attr->rows, (long long)tokens);
    if (attr->first_id < 0 || attr->vocab < vocab_of(call) || attr->first_id > attr->vocab - vocab_of(call))
        return mx_bad_value(call, "first_id = %lld, vocab = %lld: the weight has %lld ids", (long long)attr->first_id,
                            (long long)attr->vocab, (long long)vocab_of(call));
    return MX_OK;
}

static const mx_attr attrs[] = {
    MX_CROSS_ENTROPY_ATTRS,
    {"vocab", MX_ATTR_INT, offsetof(mx_loss_step_attr, vocab), NAN, NULL, "number of ids of the whole vocabulary"},
    {"first_id", MX_ATTR_INT, offsetof(mx_loss_step_attr, first_id), NAN, NULL, "id of the weight's first row"},
    {"first", MX_ATTR_INT, offsetof(mx_loss_step_attr, first), NAN, NULL, "first token of the chunk, from 0"},
    {"rows", MX_ATTR_INT, offsetof(mx_loss_step_attr, rows), NAN, NULL, "number of tokens of the chunk"},
    {0},
};

/* ---- cross_entropy_logits ---- */

static mx_status infer_logits(mx_call *call)
{
    MX_TRY(want_chunk(call));
    int64_t rows = ((const mx_loss_step_attr *)mx_call_attr(call))->rows;
    MX_TRY(mx_out(call, 0, MX_F32, &(mx_shape){2, {rows, mx_cross_entropy_stride(vocab_of(call))}}));
    return mx_out(call, 1, MX_F32, &(mx_shape){3, {1, rows, SUM_FLOATS}});
}

static mx_cost cost_logits(const mx_call *call)
{
    mx_cost cost = cost_of(call, 1);
    cost.bytes_written = (double)mx_bytes(call->out[0]) + (double)mx_bytes(call->out[1]);
    return cost;
}

static mx_status host_logits(mx_call *call)
{
    const mx_loss_step_attr *attr = mx_call_attr(call);
    const mx_tensor *logits = call->out[0];
    mx_cross_entropy c = arguments(call);
    MX_TRY(mx_cross_entropy_check_targets(call, &c, call->in[MX_LOSS_TARGETS], attr->vocab));
    int64_t stride = logits->shape.size[1], vocab = vocab_of(call);
    for (int64_t r = 0; r < attr->rows; r++) /* nothing else writes there */
        memset(mx_f32(logits) + r * stride + vocab, 0, (size_t)(stride - vocab) * sizeof(float));
    return mx_cross_entropy_logits(&c, &(mx_loss_chunk){.first = attr->first,
                                                        .rows = attr->rows,
                                                        .logits = mx_f32(logits),
                                                        .stride = stride,
                                                        .sums = mx_data(call->out[1])});
}

const mx_op mx_op_cross_entropy_logits = {
    .name = "cross_entropy_logits",
    .doc = "logits of a chunk of tokens, whose columns beyond the vocabulary are 0, and their sums over this rank's "
           "part of the vocabulary (1, rows, 3). A step of split_cross_entropy, without a gradient",
    .inputs = MX_LOSS_INPUTS,
    .n_out = 2,
    .n_results = 2,
    .attrs = attrs,
    .attr_bytes = sizeof(mx_loss_step_attr),
    .infer = infer_logits,
    .cost = cost_logits,
    .host = host_logits,
};

/* ---- cross_entropy_part_ ---- */

static mx_status want_f32(const mx_call *call, int i, const mx_shape *shape)
{
    MX_TRY(mx_want_dtype(call, i, MX_F32));
    return mx_want_shape(call, i, shape);
}

static mx_status infer_part(mx_call *call)
{
    MX_TRY(want_chunk(call));
    int64_t rows = ((const mx_loss_step_attr *)mx_call_attr(call))->rows;
    const mx_tensor *h = call->in[MX_LOSS_H], *sums = call->in[SUMS];
    mx_shape tokens = mx_shape_of_rows(h), scalar = {0};
    mx_shape all = {3, {sums->shape.n_dims > 0 ? sums->shape.size[0] : 1, rows, SUM_FLOATS}};
    MX_TRY(want_f32(call, LOGITS, &(mx_shape){2, {rows, mx_cross_entropy_stride(vocab_of(call))}}));
    MX_TRY(want_f32(call, SUMS, &all));
    if (all.size[0] < 1)
        return mx_bad_shape(call, "sums must have those of one part or more");
    MX_TRY(want_f32(call, LOSSES, &tokens));
    MX_TRY(want_f32(call, LOSS, &scalar));
    if (call->in[DH]) {
        MX_TRY(mx_want_dtype(call, DH, h->dtype));
        MX_TRY(mx_want_shape(call, DH, &h->shape));
    }
    return call->in[DWEIGHT] ? want_f32(call, DWEIGHT, &call->in[MX_LOSS_WEIGHT]->shape) : MX_OK;
}

static mx_cost cost_part(const mx_call *call)
{
    const mx_loss_step_attr *attr = mx_call_attr(call);
    const mx_tensor *dh = call->in[DH], *dweight = call->in[DWEIGHT];
    double products = (dh ? 1 : 0) + (dweight ? 1 : 0);
    if (products == 0)
        return (mx_cost){.bytes_read = (double)mx_bytes(call->in[SUMS]), .bytes_written = 4.0 * (double)attr->rows};
    mx_cost cost = cost_of(call, products);
    cost.bytes_read += (double)mx_bytes(call->in[LOGITS]) + (double)mx_bytes(call->in[SUMS]);
    if (dh)
        cost.bytes_written += cost.m * cost.k * (double)mx_dtype_bytes(dh->dtype);
    if (dweight) {
        cost.bytes_read += attr->first > 0 ? (double)mx_bytes(dweight) : 0;
        cost.bytes_written += (double)mx_bytes(dweight);
    }
    return cost;
}

static mx_status host_part(mx_call *call)
{
    const mx_loss_step_attr *attr = mx_call_attr(call);
    const mx_tensor *logits = call->in[LOGITS], *dh = call->in[DH], *dweight = call->in[DWEIGHT];
    mx_cross_entropy c = arguments(call);
    c.loss = mx_f32(call->in[LOSS]);
    c.dh = dh ? mx_data(dh) : NULL;
    c.dweight = dweight ? mx_f32(dweight) : NULL;
    return mx_cross_entropy_gradients(&c, &(mx_loss_chunk){.first = attr->first,
                                                           .rows = attr->rows,
                                                           .logits = mx_f32(logits),
                                                           .stride = logits->shape.size[1],
                                                           .sums = mx_data(call->in[SUMS]),
                                                           .parts = call->in[SUMS]->shape.size[0],
                                                           .losses = mx_f32(call->in[LOSSES])});
}

const mx_op mx_op_cross_entropy_part_ = {
    .name = "cross_entropy_part_",
    .doc =
        "from the logits of a chunk and the sums of all ranks (ranks, rows, 3), in place: losses of its tokens, their "
        "rows of dh, their share of dweight; with the last chunk, the mean loss. A step of split_cross_entropy",
    .inputs = (const char *const[]){"h", "weight", "targets", "mask?", "logits", "sums", "losses", "loss", "dh?",
                                    "dweight?", NULL},
    .flags = MX_OP_MUTATES,
    .attrs = attrs,
    .attr_bytes = sizeof(mx_loss_step_attr),
    .changes_in = 1u << LOGITS | 1u << LOSSES | 1u << LOSS | 1u << DH | 1u << DWEIGHT,
    .infer = infer_part,
    .cost = cost_part,
    .host = host_part,
};
