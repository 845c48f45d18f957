/* Embedding bags: sums, means or maxima of rows of a table. */
#include "kernels/bag.h"

#include "kernels/embedding.h"
#include "ops/pointwise.h"
#include "ops/terms.h"

enum { SUM, MEAN, MAX };
enum { TABLE, IDS, OFFSETS, WEIGHTS };
enum { RESULT, BAG_OF, SHARE, ROW }; /* outputs: see infer */

static const char *const modes[] = {"sum", "mean", "max", NULL};

typedef struct bag_attr {
    int mode;
} bag_attr;

static int mode_of(const mx_call *call) { return ((const bag_attr *)mx_call_attr(call))->mode; }

static int64_t bags_of(const mx_call *call)
{
    return call->in[OFFSETS] ? call->in[OFFSETS]->shape.size[0] : call->in[IDS]->shape.size[0];
}

static mx_status want_ids(const mx_call *call)
{
    const mx_tensor *ids = call->in[IDS], *offsets = call->in[OFFSETS];
    MX_TRY(mx_want_dtype(call, IDS, MX_I32));
    if (!offsets && ids->shape.n_dims != 2)
        return mx_bad_shape(call, "ids must be (bags, length), or (ids) with offsets, which say where each bag begins");
    if (!offsets)
        return MX_OK;
    MX_TRY(mx_want_dtype(call, OFFSETS, MX_I32));
    if (ids->shape.n_dims != 1 || offsets->shape.n_dims != 1)
        return mx_bad_shape(call, "with offsets (bags), ids must be (ids)");
    return MX_OK;
}

/* Residuals, of size 0 where backward does not read them: the bag of each id; its share of a mean, or of a maximum 1
 * for each bag with ids and 0 for the others; the row of each maximum. */
static mx_status infer(mx_call *call)
{
    const mx_tensor *table = call->in[TABLE], *weights = call->in[WEIGHTS];
    int mode = mode_of(call);
    MX_TRY(mx_want_real(call, TABLE));
    if (table->shape.n_dims != 2)
        return mx_bad_shape(call, "table must be (vocabulary, width)");
    MX_TRY(want_ids(call));
    if (weights && mode != SUM)
        return mx_bad_value(call, "weights are the factors of a sum; mode is '%s'", modes[mode]);
    if (weights) {
        MX_TRY(mx_want_real(call, WEIGHTS));
        MX_TRY(mx_want_shape(call, WEIGHTS, &call->in[IDS]->shape));
        if (!mx_dtype_mixes(table->dtype, weights->dtype))
            return mx_bad_dtype(call, "f64 mixes with no other float; use t:to(\"f64\")");
    }
    mx_shape y = {2, {bags_of(call), table->shape.size[1]}}, none = mx_vector(0), bags = mx_vector(y.size[0]);
    mx_shape tokens = mx_vector(mx_count(call->in[IDS]));
    bool record = mx_will_record(call), is_max = mode == MAX;
    MX_TRY(mx_out(call, RESULT, table->dtype, &y));
    MX_TRY(mx_out(call, BAG_OF, MX_I32, record && !is_max ? &tokens : &none));
    MX_TRY(mx_out(call, SHARE, mx_dtype_accumulates_in(table->dtype),
                  !record || mode == SUM ? &none
                  : is_max               ? &bags
                                         : &tokens));
    return mx_out(call, ROW, MX_I32, record && is_max ? &y : &none);
}

/* Each id reads its row and adds it. */
static mx_cost cost(const mx_call *call)
{
    const mx_tensor *table = call->in[TABLE];
    double values = (double)mx_count(call->in[IDS]) * (double)table->shape.size[1];
    mx_cost c = {.flops = 2 * values, .bytes_read = values * (double)mx_dtype_bytes(table->dtype)};
    for (int i = IDS; i < call->n_in; i++)
        c.bytes_read += call->in[i] ? (double)mx_bytes(call->in[i]) : 0;
    for (int i = 0; i < call->n_out; i++)
        c.bytes_written += (double)mx_bytes(call->out[i]);
    return c;
}

static mx_status check_values(const mx_call *call)
{
    char place[128];
    const mx_tensor *ids = call->in[IDS], *offsets = call->in[OFFSETS];
    const int32_t *id = mx_data(ids), *start = offsets ? mx_data(offsets) : NULL;
    int64_t vocab = call->in[TABLE]->shape.size[0], bad = mx_embedding_find_bad(id, mx_count(ids), vocab);
    if (bad >= 0)
        return mx_bad_value(call, "id %d at %s is outside the vocabulary of %lld (ids count from 0)", id[bad],
                            mx_place_text(place, &ids->shape, bad), (long long)vocab);
    for (int64_t b = 0; start && b < mx_count(offsets); b++)
        if ((b == 0 && start[0] != 0) || (b > 0 && start[b] < start[b - 1]) || start[b] > mx_count(ids))
            return mx_bad_value(call, "offset %d of bag %lld: offsets begin with 0, ascend, and end at most at %lld",
                                start[b], (long long)b + 1, (long long)mx_count(ids));
    if (start && mx_count(offsets) == 0 && mx_count(ids) > 0)
        return mx_bad_value(call, "there are %lld ids and no bags", (long long)mx_count(ids));
    return MX_OK;
}

static void set_share(const mx_call *call, int64_t i, double share)
{
    if (call->out[SHARE]->dtype == MX_F64)
        ((double *)mx_data(call->out[SHARE]))[i] = share;
    else
        mx_f32(call->out[SHARE])[i] = (float)share;
}

static void write_residuals(const mx_call *call, const mx_bag *b)
{
    int32_t *bag_of = mx_count(call->out[BAG_OF]) > 0 ? mx_data(call->out[BAG_OF]) : NULL;
    bool shares = mx_count(call->out[SHARE]) > 0;
    for (int64_t bag = 0; bag < b->bags; bag++) {
        int64_t first = mx_bag_first(b, bag), end = mx_bag_end(b, bag);
        if (b->is_max && shares)
            set_share(call, bag, first < end);
        for (int64_t t = first; t < end && !b->is_max; t++) {
            if (bag_of)
                bag_of[t] = (int32_t)bag;
            if (shares)
                set_share(call, t, 1.0 / (double)(end - first));
        }
    }
}

static mx_status host(mx_call *call)
{
    const mx_tensor *table = call->in[TABLE], *ids = call->in[IDS], *offsets = call->in[OFFSETS];
    const mx_tensor *weights = call->in[WEIGHTS];
    int mode = mode_of(call);
    MX_TRY(check_values(call));
    mx_bag b = {.bags = bags_of(call),
                .tokens = mx_count(ids),
                .width = table->shape.size[1],
                .ids = mx_data(ids),
                .starts = offsets ? mx_data(offsets) : NULL,
                .length = offsets ? 0 : ids->shape.size[1],
                .table = mx_array_of(table),
                .out = mx_array_of(call->out[RESULT]),
                .is_max = mode == MAX,
                .is_mean = mode == MEAN,
                .row = mx_count(call->out[ROW]) > 0 ? mx_data(call->out[ROW]) : NULL};
    if (weights)
        b.weights = mx_array_of(weights);
    write_residuals(call, &b);
    return mx_bag_run(&b);
}

/* ---- gradients, composed of operations ---- */

/* Adds the rows `dy` (ids, width) to the rows of the table. */
static mx_status give_rows(mx_vjp *v, mx_tensor *dy, bool recorded)
{
    mx_tensor *grad = NULL, *ids = v->call->in[IDS];
    mx_shape rows = {2, {mx_count(ids), mx_row_width(dy)}};
    mx_terms s = {.n = 0};
    mx_tensor *flat = mx_term_reshape(&s, ids, &(mx_shape){1, {rows.size[0]}});
    mx_status status = s.status;
    if (flat && !recorded && v->sum[0] && v->sum[0]->dtype == MX_F32)
        status = mx_apply_embedding_acc(v->sum[0], flat, dy);
    else if (flat) {
        status = mx_apply_embedding_grad(flat, dy, v->call->in[TABLE]->shape.size[0], &grad);
        if (status == MX_OK)
            status = mx_give_grad(v, TABLE, grad);
    }
    mx_terms_release(&s);
    return status;
}

/* The gradient of each weight is the product of the row with dy of its bag. */
static mx_status give_weights(mx_vjp *v, mx_terms *s, mx_tensor *dy)
{
    const mx_tensor *ids = v->call->in[IDS];
    mx_tensor *flat = mx_term_reshape(s, v->call->in[IDS], &(mx_shape){1, {mx_count(ids)}}), *rows = NULL;
    if (!flat || !mx_term_keep(s, mx_apply_index_select(v->call->in[TABLE], flat, 0, &rows), &rows))
        return s->status;
    mx_tensor *sums = mx_term_reduce(s, &mx_op_sum, mx_term_mul(s, dy, mx_term_cast(s, rows, dy->dtype)), 2);
    mx_tensor *dw = mx_term_reshape(s, sums, &ids->shape);
    mx_term_give(s, v, WEIGHTS, dw);
    return s->status;
}

static mx_status vjp_of_sum(mx_vjp *v, mx_terms *s, mx_tensor *g, bool recorded)
{
    const mx_call *call = v->call;
    mx_tensor *weights = call->in[WEIGHTS], *dy = NULL;
    mx_shape column = {2, {mx_count(call->in[IDS]), 1}};
    if (!mx_term_keep(s, mx_apply_index_select(g, call->out[BAG_OF], 0, &dy), &dy))
        return s->status;
    if (mode_of(call) == MEAN)
        dy = mx_term_mul(s, dy, mx_term_reshape(s, call->out[SHARE], &column));
    if (dy && weights && v->want[WEIGHTS])
        MX_TRY(give_weights(v, s, dy));
    if (weights)
        dy = mx_term_mul(s, dy, mx_term_cast(s, mx_term_reshape(s, weights, &column), g->dtype));
    if (!dy)
        return s->status;
    return v->want[TABLE] ? give_rows(v, dy, recorded) : MX_OK;
}

static mx_status vjp_of_max(mx_vjp *v, mx_terms *s, mx_tensor *g)
{
    const mx_call *call = v->call;
    mx_shape column = {2, {bags_of(call), 1}};
    mx_tensor *dy = mx_term_mul(s, g, mx_term_reshape(s, call->out[SHARE], &column)), *grad = NULL;
    if (!dy)
        return s->status;
    MX_TRY(mx_apply_gather_grad(call->out[ROW], dy, 0, &call->in[TABLE]->shape, &grad));
    return mx_give_grad(v, TABLE, grad);
}

static mx_status vjp_either(mx_vjp *v, bool recorded)
{
    mx_terms s = {.n = 0};
    mx_tensor *g = mx_term_wide(&s, v->out_grad[0]);
    mx_status status = s.status;
    if (g && mode_of(v->call) == MAX)
        status = v->want[TABLE] ? vjp_of_max(v, &s, g) : MX_OK;
    else if (g)
        status = vjp_of_sum(v, &s, g, recorded);
    mx_terms_release(&s);
    return status;
}

static mx_status vjp(mx_vjp *v) { return vjp_either(v, false); }
static mx_status vjp_recorded(mx_vjp *v) { return vjp_either(v, true); }

const mx_op mx_op_embedding_bag = {
    .name = "embedding_bag",
    .doc =
        "sums, means or maxima of rows of a table (V, E) -> (bags, E): ids i32 (bags, length), or ids (n) with offsets "
        "i32 (bags), where bag b begins; weights, as ids, are factors of a sum",
    .inputs = (const char *const[]){"table", "ids", "offsets?", "weights?", NULL},
    .n_out = 4,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"mode", MX_ATTR_ENUM, offsetof(bag_attr, mode), MEAN, modes,
                                "'sum', 'mean' or 'max' of a bag; zeros for an empty one"},
                               {0}},
    .attr_bytes = sizeof(bag_attr),
    .reads_in = 1 << TABLE | 1 << IDS | 1 << WEIGHTS,
    .reads_with_last = 1 << TABLE | 1 << WEIGHTS,
    .reads_out = 1 << BAG_OF | 1 << SHARE | 1 << ROW,
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = vjp,
    .vjp_recorded = vjp_recorded,
};
