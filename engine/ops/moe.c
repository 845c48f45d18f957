/* Mixture of experts: routing of tokens, and the way of their rows to experts and back. The products of experts are in
 * grouped.c. */
#include "ops/moe.h"

#include "kernels/embedding.h"

#include "ops/random.h"
#include "ops/rows.h"

#include <math.h>

/* ---- moe_route ---- */

static const char *const scores[] = {"topk_softmax", "softmax_topk", "sigmoid", "random", NULL};
static const char *const group_scores[] = {"sum_of_two", "max", NULL};

static mx_route route_of(const mx_call *call, const mx_tensor *logits, const mx_tensor *bias)
{
    const mx_route_attr *a = mx_call_attr(call);
    return (mx_route){.tokens = mx_row_count(logits),
                      .experts = mx_row_width(logits),
                      .top = (int)a->top,
                      .score = (mx_score)a->score,
                      .normalize = a->normalize != 0,
                      .scale = (float)a->scale,
                      .groups = (int)a->groups,
                      .top_groups = (int)a->top_groups,
                      .sum_of_two = a->group_score == 0,
                      .stream = mx_stream_of(a->seed, a->offset),
                      .logits = mx_data(logits),
                      .dtype = logits->dtype,
                      .bias = bias ? mx_f32(bias) : NULL};
}

static mx_status check_groups(const mx_call *call, int64_t experts)
{
    const mx_route_attr *a = mx_call_attr(call);
    if (a->groups < 1 || a->groups > MX_MAX_TOP || experts % a->groups != 0)
        return mx_bad_value(call, "groups = %lld; expected 1 .. %d equal groups of the %lld experts",
                            (long long)a->groups, MX_MAX_TOP, (long long)experts);
    if (a->top_groups < 1 || a->top_groups > a->groups)
        return mx_bad_value(call, "top_groups = %lld; expected 1 .. %lld", (long long)a->top_groups,
                            (long long)a->groups);
    if (a->top > a->top_groups * (experts / a->groups))
        return mx_bad_value(call, "top = %lld experts, but top_groups = %lld groups have %lld", (long long)a->top,
                            (long long)a->top_groups, (long long)(a->top_groups * (experts / a->groups)));
    return MX_OK;
}

static mx_status check_route(const mx_call *call, const mx_tensor *logits)
{
    const mx_route_attr *a = mx_call_attr(call);
    int64_t experts = mx_row_width(logits);
    if (experts < 1 || experts > MX_MAX_EXPERTS)
        return mx_bad_shape(call, "logits must have 1 .. %d columns, the experts", MX_MAX_EXPERTS);
    if (a->top < 1 || a->top > MX_MAX_TOP || a->top > experts)
        return mx_bad_value(call, "top = %lld; expected 1 .. %lld", (long long)a->top,
                            (long long)(experts < MX_MAX_TOP ? experts : MX_MAX_TOP));
    if (!(a->scale > 0) || isinf(a->scale))
        return mx_bad_value(call, "scale = %g; expected a positive number", a->scale);
    return check_groups(call, experts);
}

static mx_status infer_route(mx_call *call)
{
    const mx_route_attr *a = mx_call_attr(call);
    const mx_tensor *logits = call->in[0];
    mx_shape bias = mx_vector(0), shape = logits->shape;
    MX_TRY(mx_want_rows(call, 0));
    bias.size[0] = mx_row_width(logits);
    if (call->in[1]) {
        MX_TRY(mx_want_dtype(call, 1, MX_F32));
        MX_TRY(mx_want_shape(call, 1, &bias));
    }
    MX_TRY(check_route(call, logits));
    shape.size[shape.n_dims - 1] = a->top;
    MX_TRY(mx_out(call, 0, MX_F32, &shape));
    return mx_out(call, 1, MX_I32, &shape);
}

/* An exponential and a comparison a choice for each expert. */
static mx_cost cost_route(const mx_call *call)
{
    double work = 10.0 + (double)((const mx_route_attr *)mx_call_attr(call))->top;
    return mx_cost_of(call, work * (double)mx_count(call->in[0]));
}

static mx_status host_route(mx_call *call)
{
    mx_route r = route_of(call, call->in[0], call->in[1]);
    mx_route_run(&r, mx_f32(call->out[0]), mx_data(call->out[1]));
    return MX_OK;
}

static mx_status vjp_route(mx_vjp *v)
{
    const mx_call *call = v->call;
    if (!v->want[0] || !v->out_grad[0])
        return MX_OK;
    mx_tensor *in[4] = {call->in[0], call->out[0], call->out[1], v->out_grad[0]}, *dlogits = NULL;
    MX_TRY(mx_apply(&mx_op_moe_route_grad, in, 4, mx_call_attrs(call), &dlogits));
    return mx_give_grad(v, 0, dlogits);
}

static const mx_attr route_attrs[] = {
    {"top", MX_ATTR_INT, offsetof(mx_route_attr, top), NAN, NULL, "experts of each token"},
    {"score", MX_ATTR_ENUM, offsetof(mx_route_attr, score), 0, scores,
     "weights: topk_softmax, of the chosen logits; softmax_topk, of all; sigmoid; random: any experts, equal weights"},
    {"normalize", MX_ATTR_BOOL, offsetof(mx_route_attr, normalize), 0, NULL,
     "divide the weights of a token by their sum"},
    {"scale", MX_ATTR_FLOAT, offsetof(mx_route_attr, scale), 1, NULL, "factor of the weights"},
    {"groups", MX_ATTR_INT, offsetof(mx_route_attr, groups), 1, NULL, "equal groups of neighbouring experts"},
    {"top_groups", MX_ATTR_INT, offsetof(mx_route_attr, top_groups), 1, NULL,
     "groups whose experts may be chosen, the best ones"},
    {"group_score", MX_ATTR_ENUM, offsetof(mx_route_attr, group_score), 0, group_scores,
     "score of a group: the sum_of_two largest of its experts, or the max"},
    {"seed", MX_ATTR_SEED, offsetof(mx_route_attr, seed), 0, NULL, "of score = random"},
    {"offset", MX_ATTR_INT, offsetof(mx_route_attr, offset), 0, NULL, "stream of the seed, such as the step"},
    {0}};

const mx_op mx_op_moe_route = {
    .name = "moe_route",
    .doc = "chooses experts: logits (..., n) -> weights f32 and experts i32 (..., top), best first; bias (n) f32 "
           "counts for "
           "the choice only; a NaN is chosen first",
    .inputs = (const char *const[]){"logits", "bias?", NULL},
    .n_out = 2,
    .n_results = 2,
    .attrs = route_attrs,
    .attr_bytes = sizeof(mx_route_attr),
    .reads_in = 1,
    .reads_out = 1 | 2,
    .infer = infer_route,
    .cost = cost_route,
    .host = host_route,
    .vjp = vjp_route,
    .vjp_recorded = mx_moe_route_recorded,
};

/* Checks that a tensor of ids is within the experts. */
static mx_status check_experts(const mx_call *call, const mx_tensor *experts, int64_t n)
{
    char place[128];
    int64_t bad = mx_embedding_find_bad(mx_data(experts), mx_count(experts), n);
    if (bad < 0)
        return MX_OK;
    return mx_bad_value(call, "expert %d at %s is none of the %lld (they count from 0)",
                        ((const int32_t *)mx_data(experts))[bad], mx_place_text(place, &experts->shape, bad),
                        (long long)n);
}

static mx_status infer_route_grad(mx_call *call)
{
    const mx_tensor *logits = call->in[0];
    MX_TRY(mx_want_rows(call, 0));
    MX_TRY(check_route(call, logits));
    mx_shape shape = logits->shape;
    shape.size[shape.n_dims - 1] = ((const mx_route_attr *)mx_call_attr(call))->top;
    MX_TRY(mx_want_dtype(call, 1, MX_F32));
    MX_TRY(mx_want_dtype(call, 2, MX_I32));
    MX_TRY(mx_want_dtype(call, 3, MX_F32));
    for (int i = 1; i < 4; i++)
        MX_TRY(mx_want_shape(call, i, &shape));
    return mx_out(call, 0, logits->dtype, &logits->shape);
}

static mx_status host_route_grad(mx_call *call)
{
    mx_route r = route_of(call, call->in[0], NULL);
    MX_TRY(check_experts(call, call->in[2], r.experts));
    mx_route_grad(&r, mx_f32(call->in[1]), mx_data(call->in[2]), mx_f32(call->in[3]), mx_data(call->out[0]),
                  call->out[0]->dtype);
    return MX_OK;
}

const mx_op mx_op_moe_route_grad = {
    .name = "moe_route_grad",
    .doc = "gradient of moe_route with respect to logits; the choice has none",
    .inputs = (const char *const[]){"logits", "weights", "experts", "dweights", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = route_attrs,
    .attr_bytes = sizeof(mx_route_attr),
    .infer = infer_route_grad,
    .cost = cost_route,
    .host = host_route_grad,
};

/* ---- moe_sort ---- */

typedef struct sort_attr {
    int64_t experts, first, count, rows, capacity, sequences;
} sort_attr;

static mx_status want_slots(const mx_call *call, int i)
{
    MX_TRY(mx_want_dtype(call, i, MX_I32));
    if (call->in[i]->shape.n_dims < 1 || mx_row_width(call->in[i]) < 1)
        return mx_bad_shape(call, "'%s' must be (..., top)", mx_input_name(call, i, (char[32]){0}));
    return MX_OK;
}

/* Those of attr with what is not given filled in. */
static sort_attr sort_of(const mx_call *call)
{
    sort_attr a = *(const sort_attr *)mx_call_attr(call);
    a.count = a.count < 0 ? a.experts - a.first : a.count;
    a.rows = a.rows < 0 ? mx_count(call->in[0]) : a.rows;
    return a;
}

static mx_status infer_sort(mx_call *call)
{
    MX_TRY(want_slots(call, 0));
    sort_attr a = sort_of(call);
    int64_t tokens = mx_row_count(call->in[0]);
    if (a.experts < 1 || a.experts > MX_MAX_EXPERTS)
        return mx_bad_value(call, "experts = %lld; expected 1 .. %d", (long long)a.experts, MX_MAX_EXPERTS);
    if (a.first < 0 || a.count < 0 || a.first + a.count > a.experts)
        return mx_bad_value(call, "first = %lld, count = %lld: not within the %lld experts", (long long)a.first,
                            (long long)a.count, (long long)a.experts);
    if (a.capacity < 0 || a.sequences < 1 || tokens % a.sequences != 0)
        return mx_bad_value(call,
                            "capacity = %lld, sequences = %lld; expected at least 0, and equal parts of %lld tokens",
                            (long long)a.capacity, (long long)a.sequences, (long long)tokens);
    if (mx_count(call->in[0]) > INT32_MAX || a.rows > INT32_MAX)
        return mx_bad_shape(call, "more than %d slots", INT32_MAX);
    mx_shape order = mx_vector(a.rows), counts = mx_vector(a.count);
    MX_TRY(mx_out(call, 0, MX_I32, &order));
    MX_TRY(mx_out(call, 1, MX_I32, &call->in[0]->shape));
    return mx_out(call, 2, MX_I32, &counts);
}

static mx_cost cost_bytes(const mx_call *call) { return mx_cost_of(call, 0); }

static mx_status host_sort(mx_call *call)
{
    sort_attr a = sort_of(call);
    const mx_tensor *experts = call->in[0];
    int64_t needed, tokens = mx_row_count(experts);
    MX_TRY(check_experts(call, experts, a.experts));
    mx_slots s = {.tokens = tokens,
                  .experts = a.experts,
                  .top = (int)mx_row_width(experts),
                  .chosen = mx_data(experts),
                  .first = a.first,
                  .count = a.count,
                  .capacity = a.capacity,
                  .sequence = tokens / a.sequences};
    MX_TRY(mx_slots_sort(&s, a.rows, mx_data(call->out[0]), mx_data(call->out[1]), mx_data(call->out[2]), &needed));
    if (needed > a.rows)
        return mx_bad_value(call,
                            "experts %lld .. %lld get %lld rows, but their buffer has rows = %lld: give it more (for a "
                            "model: a larger ragged_buffer_factor, or -1), or a capacity",
                            (long long)a.first, (long long)(a.first + a.count - 1), (long long)needed,
                            (long long)a.rows);
    return MX_OK;
}

const mx_op mx_op_moe_sort = {
    .name = "moe_sort",
    .doc =
        "orders slots (choices of tokens, number t top + j) by expert, stable: experts i32 (..., top) -> order (rows), "
        "the "
        "slot of each row or -1; place (..., top), the row of each slot or -1; counts (count), the rows of each expert",
    .inputs = (const char *const[]){"experts", NULL},
    .n_out = 3,
    .n_results = 3,
    .attrs = (const mx_attr[]){{"experts", MX_ATTR_INT, offsetof(sort_attr, experts), NAN, NULL, "number of experts"},
                               {"first", MX_ATTR_INT, offsetof(sort_attr, first), 0, NULL,
                                "first expert that gets rows, from 0"},
                               {"count", MX_ATTR_INT, offsetof(sort_attr, count), -1, NULL,
                                "experts that get rows; default: all from first on"},
                               {"rows", MX_ATTR_INT, offsetof(sort_attr, rows), -1, NULL,
                                "rows of the result; default: one for each slot"},
                               {"capacity", MX_ATTR_INT, offsetof(sort_attr, capacity), 0, NULL,
                                "most rows of an expert from one sequence; later slots are dropped; 0: all are kept"},
                               {"sequences", MX_ATTR_INT, offsetof(sort_attr, sequences), 1, NULL,
                                "equal parts of the tokens, each with the capacity"},
                               {0}},
    .attr_bytes = sizeof(sort_attr),
    .infer = infer_sort,
    .cost = cost_bytes,
    .host = host_sort,
};

/* ---- moe_count ---- */

typedef struct count_attr {
    int64_t experts, sequences;
} count_attr;

static mx_status infer_count(mx_call *call)
{
    const count_attr *a = mx_call_attr(call);
    MX_TRY(want_slots(call, 0));
    if (a->experts < 1 || a->experts > MX_MAX_EXPERTS)
        return mx_bad_value(call, "experts = %lld; expected 1 .. %d", (long long)a->experts, MX_MAX_EXPERTS);
    if (a->sequences < 1 || mx_row_count(call->in[0]) % a->sequences != 0)
        return mx_bad_value(call, "sequences = %lld; expected equal parts of %lld tokens", (long long)a->sequences,
                            (long long)mx_row_count(call->in[0]));
    mx_shape shape = {2, {a->sequences, a->experts}};
    return mx_out(call, 0, MX_F32, &shape);
}

static mx_status host_count(mx_call *call)
{
    const count_attr *a = mx_call_attr(call);
    MX_TRY(check_experts(call, call->in[0], a->experts));
    mx_slots_count(mx_data(call->in[0]), mx_count(call->in[0]), a->sequences, a->experts, mx_f32(call->out[0]));
    return MX_OK;
}

const mx_op mx_op_moe_count = {
    .name = "moe_count",
    .doc = "how many choices went to each expert: experts i32 (..., top) -> (sequences, experts) f32",
    .inputs = (const char *const[]){"experts", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"experts", MX_ATTR_INT, offsetof(count_attr, experts), NAN, NULL, "number of experts"},
                               {"sequences", MX_ATTR_INT, offsetof(count_attr, sequences), 1, NULL,
                                "equal parts of the tokens, counted apart"},
                               {0}},
    .attr_bytes = sizeof(count_attr),
    .infer = infer_count,
    .cost = cost_bytes,
    .host = host_count,
};

/* ---- moe_gather: rows of tokens to experts ---- */

/* Inputs `order` and `order + 1`: the order of rows and the place of slots, for `tokens` tokens. */
static mx_status want_places(const mx_call *call, int order, const mx_tensor *tokens)
{
    MX_TRY(mx_want_dtype(call, order, MX_I32));
    if (call->in[order]->shape.n_dims != 1)
        return mx_bad_shape(call, "'order' must be (rows)");
    MX_TRY(want_slots(call, order + 1));
    if (tokens && mx_row_count(call->in[order + 1]) != mx_row_count(tokens))
        return mx_bad_shape(call, "place is of %lld tokens, expected %lld",
                            (long long)mx_row_count(call->in[order + 1]), (long long)mx_row_count(tokens));
    return MX_OK;
}

static mx_status check_places(const mx_call *call, int order)
{
    const mx_tensor *o = call->in[order], *p = call->in[order + 1];
    const int32_t *slot = mx_data(o), *row = mx_data(p);
    int64_t slots = mx_count(p), rows = mx_count(o), bad = -1;
    for (int64_t r = 0; r < rows && bad < 0; r++)
        bad = slot[r] < -1 || slot[r] >= slots ? r : -1;
    if (bad >= 0)
        return mx_bad_value(call, "order[%lld] = %d; expected -1 .. %lld, as moe_sort makes it", (long long)bad + 1,
                            slot[bad], (long long)slots - 1);
    for (int64_t s = 0; s < slots && bad < 0; s++)
        bad = row[s] < -1 || row[s] >= rows ? s : -1;
    if (bad >= 0)
        return mx_bad_value(call, "place has %d; expected -1 .. %lld, as moe_sort makes it", row[bad],
                            (long long)rows - 1);
    return MX_OK;
}

static mx_expert_rows rows_of_experts(const mx_call *call, int order, int64_t width, mx_dtype dtype)
{
    const mx_tensor *o = call->in[order], *p = call->in[order + 1];
    return (mx_expert_rows){.tokens = mx_row_count(p),
                            .rows = mx_count(o),
                            .width = width,
                            .top = (int)mx_row_width(p),
                            .order = mx_data(o),
                            .place = mx_data(p),
                            .dtype = dtype};
}

static mx_status infer_gather_rows(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    MX_TRY(mx_want_rows(call, 0));
    MX_TRY(want_places(call, 1, x));
    mx_shape shape = {2, {mx_count(call->in[1]), mx_row_width(x)}};
    return mx_out(call, 0, x->dtype, &shape);
}

static mx_status host_gather_rows(mx_call *call)
{
    const mx_tensor *x = call->in[0], *order = call->in[1];
    MX_TRY(check_places(call, 1));
    mx_rows_spread(mx_data(order), mx_count(order), (int)mx_row_width(call->in[2]),
                   mx_row_width(x) * (int64_t)mx_dtype_bytes(x->dtype), mx_data(x), mx_data(call->out[0]));
    return MX_OK;
}

static mx_status vjp_gather_rows(mx_vjp *v)
{
    const mx_call *call = v->call;
    if (!v->want[0])
        return MX_OK;
    mx_tensor *in[3] = {v->out_grad[0], call->in[1], call->in[2]}, *sums = NULL, *dx = NULL;
    MX_TRY(mx_apply(&mx_op_moe_combine, in, 3, MX_NO_ATTRS, &sums));
    mx_status status = mx_apply_reshape(sums, &call->in[0]->shape, &dx);
    mx_release(sums);
    return status != MX_OK ? status : mx_give_grad(v, 0, dx);
}

const mx_op mx_op_moe_gather = {
    .name = "moe_gather",
    .doc = "a row for each slot, in the order of experts: x (..., width), order (rows) and place (..., top) of "
           "moe_sort -> "
           "(rows, width); 0 where order is -1",
    .inputs = (const char *const[]){"x", "order", "place", NULL},
    .n_out = 1,
    .n_results = 1,
    .reads_in = 2 | 4,
    .infer = infer_gather_rows,
    .cost = cost_bytes,
    .host = host_gather_rows,
    .vjp = vjp_gather_rows,
    .vjp_recorded = vjp_gather_rows,
};

/* ---- moe_combine: rows of experts to tokens ---- */

static mx_status want_weights(const mx_call *call, int i, int place)
{
    if (call->n_in <= i || !call->in[i])
        return MX_OK;
    MX_TRY(mx_want_dtype(call, i, MX_F32));
    return mx_want_shape(call, i, &call->in[place]->shape);
}

static mx_status want_rows_of_experts(const mx_call *call)
{
    const mx_tensor *y = call->in[0];
    MX_TRY(mx_want_rows(call, 0));
    MX_TRY(want_places(call, 1, NULL));
    if (y->shape.n_dims != 2 || y->shape.size[0] != mx_count(call->in[1]))
        return mx_bad_shape(call, "y must be (rows, width) with the rows of order");
    return want_weights(call, 3, 2);
}

static mx_status infer_combine(mx_call *call)
{
    MX_TRY(want_rows_of_experts(call));
    mx_shape shape = call->in[2]->shape;
    shape.size[shape.n_dims - 1] = mx_row_width(call->in[0]);
    return mx_out(call, 0, call->in[0]->dtype, &shape);
}

static mx_cost cost_combine(const mx_call *call) { return mx_cost_of(call, 2.0 * (double)mx_count(call->in[0])); }

static const float *weights_of(const mx_call *call) { return call->in[3] ? mx_f32(call->in[3]) : NULL; }

static mx_status host_combine(mx_call *call)
{
    const mx_tensor *y = call->in[0];
    mx_expert_rows e = rows_of_experts(call, 1, mx_row_width(y), y->dtype);
    MX_TRY(check_places(call, 1));
    e.weights = weights_of(call);
    mx_rows_combine(&e, mx_data(y), mx_data(call->out[0]));
    return MX_OK;
}

static mx_status vjp_combine(mx_vjp *v)
{
    const mx_call *call = v->call;
    mx_tensor *dout = NULL, *out[2] = {NULL, NULL};
    MX_TRY(mx_out_grad(v, 0, &dout));
    mx_status status;
    bool weighted = call->in[3];
    if (weighted) {
        mx_tensor *in[5] = {call->in[0], call->in[1], call->in[2], call->in[3], dout};
        status = mx_apply(&mx_op_moe_combine_grad, in, 5, MX_NO_ATTRS, out);
    } else {
        mx_tensor *in[3] = {dout, call->in[1], call->in[2]};
        status = mx_apply(&mx_op_moe_gather, in, 3, MX_NO_ATTRS, out);
    }
    mx_release(dout);
    MX_TRY(status);
    status = mx_give_grad(v, 0, out[0]);
    mx_status other = weighted ? mx_give_grad(v, 3, out[1]) : MX_OK;
    return status != MX_OK ? status : other;
}

static mx_status vjp_combine_recorded(mx_vjp *v)
{
    return v->call->in[3] ? mx_moe_combine_recorded(v) : vjp_combine(v);
}

const mx_op mx_op_moe_combine = {
    .name = "moe_combine",
    .doc = "adds up the rows of each token: y (rows, width), order and place of moe_sort, weights f32 (..., top) or "
           "none -> "
           "(..., width); summed in f32 in the order of choices",
    .inputs = (const char *const[]){"y", "order", "place", "weights?", NULL},
    .n_out = 1,
    .n_results = 1,
    .reads_in = 1 | 2 | 4 | 8,
    .reads_with_last = 1,
    .infer = infer_combine,
    .cost = cost_combine,
    .host = host_combine,
    .vjp = vjp_combine,
    .vjp_recorded = vjp_combine_recorded,
};

static mx_status infer_combine_grad(mx_call *call)
{
    const mx_tensor *y = call->in[0];
    MX_TRY(want_rows_of_experts(call));
    mx_shape shape = call->in[2]->shape;
    shape.size[shape.n_dims - 1] = mx_row_width(y);
    MX_TRY(mx_want_shape(call, 4, &shape));
    MX_TRY(mx_want_dtype(call, 4, y->dtype));
    MX_TRY(mx_out(call, 0, y->dtype, &y->shape));
    return mx_out(call, 1, MX_F32, &call->in[2]->shape);
}

static mx_cost cost_combine_grad(const mx_call *call) { return mx_cost_of(call, 3.0 * (double)mx_count(call->in[0])); }

static mx_status host_combine_grad(mx_call *call)
{
    const mx_tensor *y = call->in[0];
    mx_expert_rows e = rows_of_experts(call, 1, mx_row_width(y), y->dtype);
    MX_TRY(check_places(call, 1));
    e.weights = weights_of(call);
    mx_rows_combine_grad(&e, mx_data(y), mx_data(call->in[4]), mx_data(call->out[0]), mx_f32(call->out[1]));
    return MX_OK;
}

const mx_op mx_op_moe_combine_grad = {
    .name = "moe_combine_grad",
    .doc = "the gradients of moe_combine with respect to y and weights, in one call",
    .inputs = (const char *const[]){"y", "order", "place", "weights", "dout", NULL},
    .n_out = 2,
    .n_results = 2,
    .infer = infer_combine_grad,
    .cost = cost_combine_grad,
    .host = host_combine_grad,
};
