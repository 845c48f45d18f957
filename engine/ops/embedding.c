/* Embedding: looks up rows of a table, and adds to the table's gradient. */
#include "kernels/embedding.h"

#include "kernels/f64_loops.h"
#include "kernels/shape.h"
#include "ops/rows.h"

#include <math.h>

/* Which rows of a table there are: ids from `first` on, of a table of `of` ids; `of` = 0: all of it. */
typedef struct part_attr {
    int64_t first, of;
} part_attr;

typedef struct embedding_attr {
    part_attr part;
    double scale;
    int dtype;
} embedding_attr;

typedef struct embedding_grad_attr {
    part_attr part;
    double scale;
    int64_t vocab; /* only for embedding_grad */
} embedding_grad_attr;

/* clang-format off */
#define PART_ATTRS \
    {"first", MX_ATTR_INT, offsetof(part_attr, first), 0, NULL, "the id of the first row, in a part of a table"}, \
    {"of", MX_ATTR_INT, offsetof(part_attr, of), 0, NULL, \
     "the rows are part of a table of so many ids, and other ids give zeros; default: they are all"}
/* clang-format on */

/* The first member of the attributes of all three. */
static part_attr part_of(const mx_call *call) { return *(const part_attr *)mx_call_attr(call); }

static mx_status want_part(const mx_call *call, int64_t rows)
{
    part_attr part = part_of(call);
    int64_t of = part.of > 0 ? part.of : rows;
    if (part.of >= 0 && part.first >= 0 && rows <= of && part.first <= of - rows)
        return MX_OK;
    return mx_bad_value(call, "first = %lld, of = %lld: no part of a table; here are %lld rows", (long long)part.first,
                        (long long)part.of, (long long)rows);
}

/* Checks all ids before anything is written. `rows`: those of this table. */
static mx_status check_ids(const mx_call *call, const mx_tensor *ids, int64_t rows)
{
    char place[128];
    const int32_t *id = mx_data(ids);
    int64_t of = part_of(call).of, vocab = of > 0 ? of : rows;
    int64_t bad = mx_embedding_find_bad(id, mx_count(ids), vocab);
    if (bad < 0)
        return MX_OK;
    return mx_bad_value(call, "id %d at %s is outside the vocabulary of %lld (ids count from 0)", id[bad],
                        mx_place_text(place, &ids->shape, bad), (long long)vocab);
}

static mx_status infer_embedding(mx_call *call)
{
    const mx_tensor *table = call->in[0], *ids = call->in[1];
    const embedding_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_real(call, 0));
    MX_TRY(mx_want_dtype(call, 1, MX_I32));
    if (table->shape.n_dims != 2)
        return mx_bad_shape(call, "table must be (vocabulary, width)");
    if (ids->shape.n_dims >= MX_MAX_DIMS)
        return mx_bad_shape(call, "ids must have fewer than %d dimensions", MX_MAX_DIMS);
    MX_TRY(want_part(call, table->shape.size[0]));
    mx_shape shape = ids->shape;
    shape.size[shape.n_dims++] = table->shape.size[1];
    return mx_out_float(call, 0, attr->dtype, table->dtype, &shape);
}

/* The share of the ids whose rows are here. */
static double share_of(const mx_call *call, int64_t rows)
{
    int64_t of = part_of(call).of;
    return of > 0 ? (double)rows / (double)of : 1;
}

/* Only the requested rows are read. */
static mx_cost cost_embedding(const mx_call *call)
{
    const mx_tensor *table = call->in[0];
    double values = (double)mx_count(call->out[0]), read = values * share_of(call, table->shape.size[0]);
    return (mx_cost){.flops = values,
                     .bytes_read = read * (double)mx_dtype_bytes(table->dtype) + (double)mx_bytes(call->in[1]),
                     .bytes_written = (double)mx_bytes(call->out[0])};
}

static mx_status host_embedding(mx_call *call)
{
    const mx_tensor *table = call->in[0], *ids = call->in[1], *out = call->out[0];
    const embedding_attr *attr = mx_call_attr(call);
    MX_TRY(check_ids(call, ids, table->shape.size[0]));
    if (table->dtype == MX_F64) {
        mx_f64_gather(mx_count(ids), table->shape.size[1], table->shape.size[0], attr->part.first, mx_data(ids),
                      attr->scale, mx_data(table), mx_data(out));
        return MX_OK;
    }
    mx_embedding_gather(&(mx_embedding){.tokens = mx_count(ids),
                                        .width = table->shape.size[1],
                                        .vocab = table->shape.size[0],
                                        .first = attr->part.first,
                                        .ids = mx_data(ids),
                                        .table = mx_data(table),
                                        .out = mx_data(out),
                                        .table_dtype = table->dtype,
                                        .out_dtype = out->dtype,
                                        .scale = (float)attr->scale});
    return MX_OK;
}

static mx_status vjp_embedding(mx_vjp *v)
{
    mx_tensor *table = v->call->in[0], *ids = v->call->in[1], *dy = v->out_grad[0], *grad = NULL;
    embedding_grad_attr attr = {.part = part_of(v->call),
                                .scale = ((const embedding_attr *)mx_call_attr(v->call))->scale,
                                .vocab = table->shape.size[0]};
    if (!v->want[0])
        return MX_OK;
    if (v->sum[0] && v->sum[0]->dtype == MX_F32)
        return mx_apply(&mx_op_embedding_acc, (mx_tensor *[]){v->sum[0], ids, dy}, 3, MX_ATTRS(attr), NULL);
    MX_TRY(mx_apply(&mx_op_embedding_grad, (mx_tensor *[]){ids, dy}, 2, MX_ATTRS(attr), &grad));
    return mx_give_grad(v, 0, grad);
}

static const mx_attr embedding_attrs[] = {
    {"dtype", MX_ATTR_DTYPE, offsetof(embedding_attr, dtype), -1, NULL,
     "dtype of the result; default: that of the table"},
    {"scale", MX_ATTR_FLOAT, offsetof(embedding_attr, scale), 1, NULL, "factor of the rows"},
    PART_ATTRS,
    {0}};

const mx_op mx_op_embedding = {
    .name = "embedding",
    .doc = "looks up rows of a table: table (V, E), ids i32 (...) of 0 .. V - 1 -> (..., E)",
    .inputs = (const char *const[]){"table", "ids", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = embedding_attrs,
    .attr_bytes = sizeof(embedding_attr),
    .reads_in = 1 << 1,
    .infer = infer_embedding,
    .cost = cost_embedding,
    .host = host_embedding,
    .vjp = vjp_embedding,
    .vjp_recorded = vjp_embedding,
};

/* ---- gradients ---- */

/* Checks inputs `ids` and `ids + 1`: the ids and the gradient of their rows. */
static mx_status want_gradient(const mx_call *call, int ids)
{
    const mx_tensor *dy = call->in[ids + 1];
    MX_TRY(mx_want_dtype(call, ids, MX_I32));
    MX_TRY(mx_want_real(call, ids + 1));
    if (dy->shape.n_dims < 1)
        return mx_bad_shape(call, "'dy' must have at least one dimension");
    mx_shape rows = mx_shape_of_rows(dy);
    return mx_want_shape(call, ids, &rows);
}

static mx_status add_rows(const mx_call *call, mx_tensor *grad, const mx_tensor *ids, const mx_tensor *dy, bool replace)
{
    const embedding_grad_attr *attr = mx_call_attr(call);
    MX_TRY(check_ids(call, ids, grad->shape.size[0]));
    if (grad->dtype == MX_F64) {
        if (replace)
            mx_zero_runs(mx_data(grad), 0, 1, mx_bytes(grad));
        mx_f64_gather_add(mx_count(ids), mx_row_width(dy), grad->shape.size[0], attr->part.first, mx_data(ids),
                          attr->scale, mx_data(dy), mx_data(grad));
        return MX_OK;
    }
    return mx_embedding_add(&(mx_embedding_sum){.tokens = mx_count(ids),
                                                .width = mx_row_width(dy),
                                                .vocab = grad->shape.size[0],
                                                .first = attr->part.first,
                                                .ids = mx_data(ids),
                                                .dy = mx_data(dy),
                                                .dtype = dy->dtype,
                                                .scale = (float)attr->scale,
                                                .grad = mx_f32(grad),
                                                .replace = replace});
}

static mx_status infer_embedding_acc(mx_call *call)
{
    MX_TRY(mx_want_dtype(call, 0, MX_F32));
    MX_TRY(mx_want_float(call, 2));
    MX_TRY(want_gradient(call, 1));
    const mx_shape *grad = &call->in[0]->shape;
    if (grad->n_dims != 2 || grad->size[1] != mx_row_width(call->in[2]))
        return mx_bad_shape(call, "grad must be (vocabulary, width) with the width of dy");
    return want_part(call, grad->size[0]);
}

static mx_cost cost_embedding_acc(const mx_call *call)
{
    double values = (double)mx_count(call->in[2]) * share_of(call, call->in[0]->shape.size[0]);
    return (mx_cost){.flops = 2 * values,
                     .bytes_read = 4 * values + (double)mx_bytes(call->in[2]) + (double)mx_bytes(call->in[1]),
                     .bytes_written = 4 * values};
}

static mx_status host_embedding_acc(mx_call *call)
{
    return add_rows(call, call->in[0], call->in[1], call->in[2], false);
}

static const mx_attr acc_attrs[] = {
    {"scale", MX_ATTR_FLOAT, offsetof(embedding_grad_attr, scale), 1, NULL, "factor of dy"}, PART_ATTRS, {0}};

const mx_op mx_op_embedding_acc = {
    .name = "embedding_acc",
    .doc = "grad[ids] += scale * dy in place: grad f32 (V, E), ids i32 (...), dy (..., E); the same bits for any "
           "number of threads",
    .inputs = (const char *const[]){"grad", "ids", "dy", NULL},
    .flags = MX_OP_MUTATES,
    .attrs = acc_attrs,
    .attr_bytes = sizeof(embedding_grad_attr),
    .infer = infer_embedding_acc,
    .cost = cost_embedding_acc,
    .host = host_embedding_acc,
};

static mx_status infer_embedding_grad(mx_call *call)
{
    const embedding_grad_attr *attr = mx_call_attr(call);
    MX_TRY(want_gradient(call, 0));
    MX_TRY(want_part(call, attr->vocab));
    mx_shape shape = {.n_dims = 2, .size = {attr->vocab, mx_row_width(call->in[1])}};
    return mx_out(call, 0, mx_dtype_accumulates_in(call->in[1]->dtype), &shape);
}

static mx_cost cost_embedding_grad(const mx_call *call)
{
    return mx_cost_of(call, 2.0 * (double)mx_count(call->in[1]));
}

static mx_status host_embedding_grad(mx_call *call)
{
    return add_rows(call, call->out[0], call->in[0], call->in[1], true);
}

static const mx_attr grad_attrs[] = {
    {"vocab", MX_ATTR_INT, offsetof(embedding_grad_attr, vocab), NAN, NULL, "number of rows of the table"},
    {"scale", MX_ATTR_FLOAT, offsetof(embedding_grad_attr, scale), 1, NULL, "factor of dy"},
    PART_ATTRS,
    {0}};

static mx_status vjp_embedding_grad(mx_vjp *v)
{
    embedding_attr attr = {
        .part = part_of(v->call), .dtype = -1, .scale = ((const embedding_grad_attr *)mx_call_attr(v->call))->scale};
    mx_tensor *rows = NULL;
    MX_TRY(mx_apply(&mx_op_embedding, (mx_tensor *[]){v->out_grad[0], v->call->in[0]}, 2, MX_ATTRS(attr), &rows));
    return mx_give_grad(v, 1, rows);
}

const mx_op mx_op_embedding_grad = {
    .name = "embedding_grad",
    .doc = "gradient of embedding with respect to the table: f32 (of f64 f64) (V, E), zero except in the rows of ids",
    .inputs = (const char *const[]){"ids", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = grad_attrs,
    .attr_bytes = sizeof(embedding_grad_attr),
    .infer = infer_embedding_grad,
    .cost = cost_embedding_grad,
    .host = host_embedding_grad,
    .reads_in = 1 << 0,
    .vjp = vjp_embedding_grad,
    .vjp_recorded = vjp_embedding_grad,
};

mx_status mx_apply_embedding_acc(mx_tensor *grad, mx_tensor *ids, mx_tensor *dy)
{
    const embedding_grad_attr attr = {.scale = 1};
    return mx_apply(&mx_op_embedding_acc, (mx_tensor *[]){grad, ids, dy}, 3, MX_ATTRS(attr), NULL);
}

mx_status mx_apply_embedding_grad(mx_tensor *ids, mx_tensor *dy, int64_t vocab, mx_tensor **dtable)
{
    const embedding_grad_attr attr = {.scale = 1, .vocab = vocab};
    return mx_apply(&mx_op_embedding_grad, (mx_tensor *[]){ids, dy}, 2, MX_ATTRS(attr), dtable);
}
