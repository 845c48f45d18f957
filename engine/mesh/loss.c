/* Cross entropy of a vocabulary that is split over an axis: each rank has some rows of the weight, and the same tokens
 * as the others. It computes the logits of its ids for a chunk of tokens. One small all-gather gives all ranks the
 * largest logit, the sum of exponentials and the target's logit of every part (12 bytes a token). From these each rank
 * computes the loss, its rows' share of the gradient of h, and the gradient of its part of the weight. */
#include "ops/loss.h"

#include "core/scope.h"
#include "mesh/collective_op.h"
#include "tape/tape.h"

typedef struct split_attr {
    mx_cross_entropy_attr loss;
    mx_axes axis;
    int64_t vocab;
} split_attr;

static int64_t part_of(const mx_call *call)
{
    const split_attr *attr = mx_call_attr(call);
    return call->in[MX_LOSS_WEIGHT]->shape.size[attr->loss.trans ? 0 : 1];
}

static int64_t whole_vocab(const mx_call *call)
{
    const split_attr *attr = mx_call_attr(call);
    return attr->vocab > 0 ? attr->vocab : part_of(call) * mx_mesh_size(attr->axis);
}

static mx_status infer(mx_call *call)
{
    const split_attr *attr = mx_call_attr(call);
    MX_TRY(mx_cross_entropy_infer(call));
    int64_t expected = mx_part_size(whole_vocab(call), mx_mesh_size(attr->axis), mx_mesh_index(attr->axis));
    if (part_of(call) != expected)
        return mx_bad_shape(call, "this rank's part of vocab = %lld is %lld ids; the weight has %lld",
                            (long long)whole_vocab(call), (long long)expected, (long long)part_of(call));
    return MX_OK;
}

/* Zero: the operations inside are counted separately. */
static mx_cost cost(const mx_call *call)
{
    (void)call;
    return (mx_cost){0};
}

/* Tokens at a time: the same on all ranks, whose parts may differ by an id. */
static int64_t rows_of_chunks(const mx_call *call)
{
    const split_attr *attr = mx_call_attr(call);
    mx_cross_entropy c = {.tokens = mx_count(call->in[MX_LOSS_TARGETS]), .width = mx_row_width(call->in[MX_LOSS_H])};
    c.vocab = mx_part_size(whole_vocab(call), mx_mesh_size(attr->axis), 0);
    return mx_cross_entropy_chunk(&c);
}

static mx_status gather_sums(const mx_call *call, mx_tensor *own, mx_tensor **all)
{
    const mx_collective_attr a = {.axis = ((const split_attr *)mx_call_attr(call))->axis, .dtype = -1};
    return mx_collective_apply(&mx_op_all_gather, own, &a, all);
}

static mx_tensor *gradient(const mx_call *call, int i)
{
    return mx_cross_entropy_makes(call, i) ? call->out[MX_LOSS_DH + i] : NULL;
}

static mx_status run_chunk(const mx_call *call, const mx_loss_step_attr *step, mx_tensor *losses)
{
    enum { LOGITS, SUMS, MADE };
    mx_tensor *mask = call->in[MX_LOSS_MASK], *made[MADE] = {NULL}, *all = NULL;
    mx_tensor *in[] = {call->in[MX_LOSS_H], call->in[MX_LOSS_WEIGHT], call->in[MX_LOSS_TARGETS], mask};
    MX_TRY(mx_apply(&mx_op_cross_entropy_logits, in, 4, MX_ATTRS(*step), made));
    mx_status status = gather_sums(call, made[SUMS], &all);
    if (status == MX_OK) {
        mx_tensor *more[] = {in[0],
                             in[1],
                             in[2],
                             in[3],
                             made[LOGITS],
                             all,
                             losses,
                             call->out[MX_LOSS_MEAN],
                             gradient(call, MX_LOSS_H),
                             gradient(call, MX_LOSS_WEIGHT)};
        status = mx_apply(&mx_op_cross_entropy_part_, more, 10, MX_ATTRS(*step), NULL);
    }
    mx_release(all);
    mx_release(made[LOGITS]);
    mx_release(made[SUMS]);
    return status;
}

static mx_status run_chunks(const mx_call *call, mx_tensor *losses)
{
    const split_attr *attr = mx_call_attr(call);
    int64_t tokens = mx_count(call->in[MX_LOSS_TARGETS]), rows = rows_of_chunks(call);
    mx_loss_step_attr step = {.loss = attr->loss, .vocab = whole_vocab(call)};
    step.first_id = mx_part_first(step.vocab, mx_mesh_size(attr->axis), mx_mesh_index(attr->axis));
    do { /* no tokens are one chunk of none */
        step.rows = tokens - step.first < rows ? tokens - step.first : rows;
        MX_TRY(run_chunk(call, &step, losses));
        step.first += step.rows;
    } while (step.first < tokens);
    return MX_OK;
}

static mx_status host(mx_call *call)
{
    mx_tensor *losses = NULL;
    bool recording = mx_tape_set_recording(false);
    mx_scope *scope = mx_scope_swap(NULL); /* the script's scope must not hold intermediate tensors */
    mx_status status = MX_OK;
    for (int i = 0; i < MX_LOSS_OUTPUTS && status == MX_OK; i++)
        status = mx_tensor_allocate(call->out[i]);
    if (status == MX_OK)
        status = mx_tensor_new(MX_F32, &call->in[MX_LOSS_TARGETS]->shape, &losses);
    if (status == MX_OK)
        status = run_chunks(call, losses);
    mx_release(losses);
    mx_scope_swap(scope);
    mx_tape_set_recording(recording);
    return status;
}

static const mx_attr attrs[] = {
    MX_CROSS_ENTROPY_ATTRS,
    {"axis", MX_ATTR_AXES, offsetof(split_attr, axis), 0, NULL, "mesh axis or list of axes; default: all ranks"},
    {"vocab", MX_ATTR_INT, offsetof(split_attr, vocab), 0, NULL,
     "number of ids of the whole vocabulary; the first ranks may have one more than the others. Default: all ranks "
     "have "
     "the same"},
    {0},
};

const mx_op mx_op_split_cross_entropy = {
    .name = "split_cross_entropy",
    .doc =
        "cross_entropy of a vocabulary that is split over an axis: weight (v, E) has this rank's ids, h, targets and "
        "mask are the same on all ranks -> the same f32 scalar on all. The gradient of h is this rank's share of a "
        "sum (mx.fan_out). Collective",
    .inputs = MX_LOSS_INPUTS,
    .n_out = MX_LOSS_OUTPUTS,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE | MX_OP_COMPOSITE | MX_OP_OWN_STORAGE,
    .attrs = attrs,
    .attr_bytes = sizeof(split_attr),
    .reads_out = 1 << MX_LOSS_DH | 1 << MX_LOSS_DWEIGHT,
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = mx_cross_entropy_vjp,
};
