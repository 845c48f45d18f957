/* Operations that choose elements along a dimension by index: gather, scatter, scatter_add, scatter_reduce; and their
 * gradients. */
#include "kernels/index.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/embedding.h"
#include "kernels/shape.h"
#include "ops/pointwise.h"
#include "ops/terms.h"

#include <math.h>

typedef struct gather_attr {
    int64_t dim;
} gather_attr;

typedef struct gather_grad_attr {
    int64_t dim;
    mx_shape shape;
} gather_grad_attr;

static const mx_attr dim_attrs[] = {
    {"dim", MX_ATTR_DIM, offsetof(gather_attr, dim), NAN, NULL, "dimension along which the index counts"}, {0}};

/* Checks that input `i`, the index, has the number of dimensions of `x`, and is not longer than it in any dimension
 * except `dim`. */
static mx_status want_index(const mx_call *call, int i, const mx_shape *x, int64_t given)
{
    const mx_shape *index = &call->in[i]->shape;
    int dim = 0;
    MX_TRY(mx_want_dtype(call, i, MX_I32));
    MX_TRY(mx_want_dim(call, "dim", given, x->n_dims, &dim));
    bool good = index->n_dims == x->n_dims;
    for (int d = 0; d < x->n_dims && good; d++)
        good = d == dim || index->size[d] <= x->size[d];
    if (!good)
        return mx_bad_shape(call, "index must have the dimensions of %s, and be no longer in any but dim %d",
                            mx_shape_text(x), dim + 1);
    return MX_OK;
}

static mx_gather gather_of(const mx_shape *x, const mx_tensor *index, int64_t given)
{
    int dim = (int)(given < 0 ? given + x->n_dims : given);
    return (mx_gather){x->n_dims, dim, x->size, index->shape.size, mx_data(index)};
}

static mx_status check_index(const mx_call *call, const mx_tensor *index, const mx_gather *g)
{
    char place[128];
    int64_t limit = g->x_size[g->dim], bad = mx_embedding_find_bad(g->index, mx_count(index), limit);
    if (!g->index || bad < 0) /* an index without elements may have no place */
        return MX_OK;
    return mx_bad_value(call, "index %d at %s is outside 0 .. %lld (an index counts from 0)", g->index[bad],
                        mx_place_text(place, &index->shape, bad), (long long)limit - 1);
}

static int64_t given_dim(const mx_call *call) { return ((const gather_attr *)mx_call_attr(call))->dim; }

static mx_cost cost_copy(const mx_call *call) { return mx_cost_of(call, 0); }

/* ---- gather ---- */

static mx_status infer_gather(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    MX_TRY(want_index(call, 1, &x->shape, given_dim(call)));
    return mx_out(call, 0, x->dtype, &call->in[1]->shape);
}

static mx_cost cost_gather(const mx_call *call)
{
    double bytes = (double)mx_bytes(call->out[0]);
    return (mx_cost){.bytes_read = bytes + (double)mx_bytes(call->in[1]), .bytes_written = bytes};
}

static mx_status host_gather(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    mx_gather g = gather_of(&x->shape, call->in[1], given_dim(call));
    bool good;
    MX_TRY(mx_gather_run(&g, mx_data(call->out[0]), mx_data(x), mx_dtype_bytes(x->dtype), &good));
    return good ? MX_OK : check_index(call, call->in[1], &g);
}

static mx_status vjp_gather(mx_vjp *v)
{
    mx_tensor *dx = NULL;
    if (!v->want[0])
        return MX_OK;
    MX_TRY(mx_apply_gather_grad(v->call->in[1], v->out_grad[0], given_dim(v->call), &v->call->in[0]->shape, &dx));
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_gather = {
    .name = "gather",
    .doc = "selects elements along a dimension by index: with dim = 2, y[i][j] = x[i][index[i][j]]; index i32, from 0",
    .inputs = (const char *const[]){"x", "index", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = dim_attrs,
    .attr_bytes = sizeof(gather_attr),
    .reads_in = 1 << 1,
    .infer = infer_gather,
    .cost = cost_gather,
    .host = host_gather,
    .vjp = vjp_gather,
    .vjp_recorded = vjp_gather,
};

/* f32, or f64 for f64, because several elements may be added to one. */
static mx_status infer_gather_grad(mx_call *call)
{
    const gather_grad_attr *attr = mx_call_attr(call);
    if (!mx_dtype_is_real(call->in[1]->dtype))
        return mx_bad_dtype(call, "'dy' must be a float");
    MX_TRY(want_index(call, 0, &attr->shape, attr->dim));
    MX_TRY(mx_want_shape(call, 1, &call->in[0]->shape));
    return mx_out(call, 0, mx_dtype_accumulates_in(call->in[1]->dtype), &attr->shape);
}

static mx_status host_gather_grad(mx_call *call)
{
    const mx_tensor *dy = call->in[1];
    mx_tensor *dx = call->out[0];
    mx_gather g = gather_of(&dx->shape, call->in[0], ((const gather_grad_attr *)mx_call_attr(call))->dim);
    bool good;
    MX_TRY(mx_scatter_add_run(&g, mx_array_of(dx), (mx_array){NULL, dx->dtype}, mx_array_of(dy), &good));
    return good ? MX_OK : check_index(call, call->in[0], &g);
}

static const mx_attr gather_grad_attrs[] = {
    {"dim", MX_ATTR_DIM, offsetof(gather_grad_attr, dim), NAN, NULL, "dimension along which the index counts"},
    {"shape", MX_ATTR_SHAPE, offsetof(gather_grad_attr, shape), NAN, NULL, "shape of the result"},
    {0}};

static mx_status vjp_gather_grad(mx_vjp *v)
{
    const gather_attr attr = {((const gather_grad_attr *)mx_call_attr(v->call))->dim};
    mx_tensor *part = NULL;
    MX_TRY(mx_apply(&mx_op_gather, (mx_tensor *[]){v->out_grad[0], v->call->in[0]}, 2, MX_ATTRS(attr), &part));
    return mx_give_grad(v, 1, part);
}

const mx_op mx_op_gather_grad = {
    .name = "gather_grad",
    .doc = "gradient of gather: f32 (f64 for f64) of the given shape, with dy added at the indices",
    .inputs = (const char *const[]){"index", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = gather_grad_attrs,
    .attr_bytes = sizeof(gather_grad_attr),
    .infer = infer_gather_grad,
    .cost = cost_copy,
    .reads_in = 1 << 0,
    .host = host_gather_grad,
    .vjp = vjp_gather_grad,
    .vjp_recorded = vjp_gather_grad,
};

mx_status mx_apply_gather(mx_tensor *x, mx_tensor *index, int64_t dim, mx_tensor **y)
{
    const gather_attr attr = {dim};
    return mx_apply(&mx_op_gather, (mx_tensor *[]){x, index}, 2, MX_ATTRS(attr), y);
}

mx_status mx_apply_gather_grad(mx_tensor *index, mx_tensor *dy, int64_t dim, const mx_shape *shape, mx_tensor **dx)
{
    const gather_grad_attr attr = {dim, *shape};
    return mx_apply(&mx_op_gather_grad, (mx_tensor *[]){index, dy}, 2, MX_ATTRS(attr), dx);
}

/* ---- scatter and scatter_add ---- */

static mx_status infer_scatter(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    MX_TRY(want_index(call, 1, &x->shape, given_dim(call)));
    MX_TRY(mx_want_shape(call, 2, &call->in[1]->shape));
    MX_TRY(mx_want_dtype(call, 2, x->dtype));
    return mx_out(call, 0, x->dtype, &x->shape);
}

static mx_status infer_scatter_add(mx_call *call)
{
    MX_TRY(mx_want_arithmetic(call, 0));
    if (call->in[0]->dtype == MX_I64)
        return mx_bad_dtype(call, "sums are computed in f64, which does not hold every i64; use i32 or f64");
    return infer_scatter(call);
}

static mx_cost cost_scatter_add(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->in[1])); }

static mx_status host_scatter(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    mx_gather g = gather_of(&x->shape, call->in[1], given_dim(call));
    bool good;
    MX_TRY(
        mx_scatter_run(&g, mx_data(call->out[0]), mx_data(x), mx_data(call->in[2]), mx_dtype_bytes(x->dtype), &good));
    return good ? MX_OK : check_index(call, call->in[1], &g);
}

static mx_status host_scatter_add(mx_call *call)
{
    mx_gather g = gather_of(&call->in[0]->shape, call->in[1], given_dim(call));
    bool good;
    MX_TRY(
        mx_scatter_add_run(&g, mx_array_of(call->out[0]), mx_array_of(call->in[0]), mx_array_of(call->in[2]), &good));
    return good ? MX_OK : check_index(call, call->in[1], &g);
}

/* dx is dy without the elements that src has replaced; dsrc has what of dy belongs to an element of src. */
static mx_status vjp_scatter(mx_vjp *v)
{
    mx_tensor *index = v->call->in[1], *dy = NULL, *part = NULL, *zeros = NULL;
    MX_TRY(mx_out_grad(v, 0, &dy));
    mx_status status = MX_OK;
    if (v->want[0])
        status = mx_apply_full(&index->shape, dy->dtype, 0, &zeros);
    if (status == MX_OK && v->want[0])
        status = mx_apply(&mx_op_scatter, (mx_tensor *[]){dy, index, zeros}, 3, mx_call_attrs(v->call), &part);
    if (zeros)
        mx_release(zeros);
    if (status == MX_OK && v->want[0])
        status = mx_give_grad(v, 0, part);
    if (status == MX_OK && v->want[2])
        status = mx_apply(&mx_op_scatter_grad, (mx_tensor *[]){index, dy}, 2, mx_call_attrs(v->call), &part);
    if (status == MX_OK && v->want[2])
        status = mx_give_grad(v, 2, part);
    mx_release(dy);
    return status;
}

static mx_status vjp_scatter_add(mx_vjp *v)
{
    mx_tensor *part = NULL;
    if (v->want[2]) {
        mx_tensor *in[] = {v->out_grad[0], v->call->in[1]};
        MX_TRY(mx_apply(&mx_op_gather, in, 2, mx_call_attrs(v->call), &part));
        MX_TRY(mx_give_grad(v, 2, part));
    }
    return mx_give_grad(v, 0, mx_retain(v->out_grad[0]));
}

const mx_op mx_op_scatter = {
    .name = "scatter",
    .doc = "x with elements replaced by src: with dim = 2, y[i][index[i][j]] = src[i][j], the last j that names an "
           "element; index i32, from 0, of src's shape",
    .inputs = (const char *const[]){"x", "index", "src", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = dim_attrs,
    .attr_bytes = sizeof(gather_attr),
    .reads_in = 1 << 1,
    .infer = infer_scatter,
    .cost = cost_copy,
    .host = host_scatter,
    .vjp = vjp_scatter,
    .vjp_recorded = vjp_scatter,
};

const mx_op mx_op_scatter_add = {
    .name = "scatter_add",
    .doc = "x plus src at the indices: with dim = 2, y[i][index[i][j]] += src[i][j] for every j; index i32, from 0, of "
           "src's shape; the same bits for any number of threads",
    .inputs = (const char *const[]){"x", "index", "src", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = dim_attrs,
    .attr_bytes = sizeof(gather_attr),
    .reads_in = 1 << 1,
    .infer = infer_scatter_add,
    .cost = cost_scatter_add,
    .host = host_scatter_add,
    .vjp = vjp_scatter_add,
    .vjp_recorded = vjp_scatter_add,
};

static mx_status infer_scatter_grad(mx_call *call)
{
    const mx_tensor *dy = call->in[1];
    if (!mx_dtype_is_real(dy->dtype))
        return mx_bad_dtype(call, "'dy' must be a float");
    MX_TRY(want_index(call, 0, &dy->shape, given_dim(call)));
    return mx_out(call, 0, dy->dtype, &call->in[0]->shape);
}

/* Scatters the numbers of the elements of src: one that is still there was not replaced by a later one. */
static mx_status host_scatter_grad(mx_call *call)
{
    const mx_tensor *index = call->in[0], *dy = call->in[1];
    mx_tensor *dsrc = call->out[0];
    int64_t count = mx_count(index), bytes = (2 * count + mx_count(dy)) * (int64_t)sizeof(int32_t);
    int32_t *number;
    mx_gather g = gather_of(&dy->shape, index, given_dim(call));
    MX_TRY(check_index(call, index, &g));
    MX_TRY(mx_pool_alloc(bytes, (void **)&number));
    int32_t *found = number + count, *last = found + count;
    for (int64_t i = 0; i < count; i++)
        number[i] = (int32_t)i;
    bool good;
    mx_status status = mx_scatter_run(&g, last, NULL, number, sizeof *number, &good);
    if (status == MX_OK)
        status = mx_gather_run(&g, found, last, sizeof *number, &good);
    if (status == MX_OK)
        status = mx_gather_run(&g, mx_data(dsrc), mx_data(dy), mx_dtype_bytes(dy->dtype), &good);
    for (int64_t i = 0; status == MX_OK && i < count; i++)
        if (found[i] != number[i])
            mx_set_number(mx_data(dsrc), i, 0, dsrc->dtype);
    mx_pool_free(number, bytes);
    return status;
}

/* ddy has the gradient at the indices of the elements that are still there. */
static mx_status vjp_scatter_grad(mx_vjp *v)
{
    const mx_call *call = v->call;
    mx_tensor *index = call->in[0], *dy = call->in[1], *ones = NULL, *ddy = NULL;
    mx_terms s = {.n = 0};
    mx_term_keep(&s, mx_apply_full(&dy->shape, dy->dtype, 1, &ones), &ones);
    mx_tensor *there = ones ? mx_term(&s, &mx_op_scatter_grad, mx_call_attrs(call), index, ones, NULL) : NULL;
    mx_tensor *part = mx_term_mul(&s, v->out_grad[0], there);
    if (part)
        s.status = mx_apply_gather_grad(index, part, given_dim(call), &dy->shape, &ddy);
    mx_terms_release(&s);
    return ddy ? mx_give_grad(v, 1, ddy) : s.status;
}

const mx_op mx_op_scatter_grad = {
    .name = "scatter_grad",
    .doc = "gradient of scatter with respect to src: dy at the indices, 0 for an element that a later one has replaced",
    .inputs = (const char *const[]){"index", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = dim_attrs,
    .attr_bytes = sizeof(gather_attr),
    .infer = infer_scatter_grad,
    .cost = cost_copy,
    .reads_in = 1 << 0,
    .host = host_scatter_grad,
    .vjp = vjp_scatter_grad,
    .vjp_recorded = vjp_scatter_grad,
};

/* ---- scatter_reduce ---- */

enum { REDUCE_MAX, REDUCE_MIN, REDUCE_MEAN };
static const char *const reductions[] = {"max", "min", "mean", NULL};

typedef struct reduce_attr {
    int64_t dim; /* first: given_dim() reads it */
    int reduce;
    bool include_self;
} reduce_attr;

static mx_status infer_scatter_reduce(mx_call *call)
{
    const reduce_attr *attr = mx_call_attr(call);
    if (attr->reduce == REDUCE_MEAN || !mx_dtype_is_integer(call->in[0]->dtype))
        MX_TRY(mx_want_real(call, 0));
    return infer_scatter(call);
}

static mx_status host_scatter_reduce(mx_call *call)
{
    const reduce_attr *attr = mx_call_attr(call);
    mx_gather g = gather_of(&call->in[0]->shape, call->in[1], attr->dim);
    mx_array to = mx_array_of(call->out[0]), x = mx_array_of(call->in[0]), src = mx_array_of(call->in[2]);
    bool good = true;
    if (attr->reduce == REDUCE_MEAN)
        MX_TRY(mx_scatter_mean_run(&g, attr->include_self, to, x, src, &good));
    else
        MX_TRY(mx_scatter_extreme_run(&g, attr->reduce == REDUCE_MAX ? MX_SCATTER_MAX : MX_SCATTER_MIN,
                                      attr->include_self, to, x, src, &good));
    return good ? MX_OK : check_index(call, call->in[1], &g);
}

static mx_tensor *number_like(mx_terms *s, const mx_tensor *t, mx_dtype dtype, double value)
{
    mx_tensor *y = NULL;
    return s->status == MX_OK ? mx_term_keep(s, mx_apply_full(&t->shape, dtype, value, &y), &y) : NULL;
}

/* Each result's gradient is divided evenly among the elements that it is made of: own and hits are 1 for these of x and
 * of src, else 0. */
static mx_status vjp_scatter_reduce(mx_vjp *v)
{
    const mx_call *call = v->call;
    const reduce_attr *attr = mx_call_attr(call);
    const gather_attr along = {attr->dim};
    mx_tensor *x = call->in[0], *index = call->in[1], *src = call->in[2], *y = call->out[0];
    mx_dtype dtype = mx_dtype_accumulates_in(x->dtype);
    if (!mx_dtype_is_real(x->dtype))
        return MX_OK;
    mx_terms s = {.n = 0};
    mx_tensor *own, *hits;
    if (attr->reduce == REDUCE_MEAN) {
        hits = number_like(&s, src, dtype, 1);
    } else {
        mx_tensor *chosen = mx_term(&s, &mx_op_gather, MX_ATTRS(along), mx_term_constant(&s, y), index, NULL);
        hits = mx_term_cast(&s, mx_term_two(&s, &mx_op_eq, src, chosen), dtype);
    }
    if (!attr->include_self) /* what the index does not name */
        own = mx_term(&s, &mx_op_scatter, MX_ATTRS(along), number_like(&s, x, dtype, 1), index,
                      number_like(&s, src, dtype, 0));
    else if (attr->reduce == REDUCE_MEAN)
        own = number_like(&s, x, dtype, 1);
    else
        own = mx_term_cast(&s, mx_term_two(&s, &mx_op_eq, x, y), dtype);
    mx_tensor *count = mx_term(&s, &mx_op_scatter_add, MX_ATTRS(along), own, index, hits);
    mx_tensor *share = mx_term_div(&s, mx_term_wide(&s, v->out_grad[0]), count);
    mx_tensor *dx = v->want[0] ? mx_term_mul(&s, own, share) : NULL, *dsrc = NULL;
    if (v->want[2])
        dsrc = mx_term_mul(&s, hits, mx_term(&s, &mx_op_gather, MX_ATTRS(along), share, index, NULL));
    mx_status status = s.status;
    if (status == MX_OK && dx)
        status = mx_give_grad(v, 0, mx_retain(dx));
    if (status == MX_OK && dsrc)
        status = mx_give_grad(v, 2, mx_retain(dsrc));
    mx_terms_release(&s);
    return status;
}

const mx_op mx_op_scatter_reduce = {
    .name = "scatter_reduce",
    .doc =
        "the max, min or mean of x and src at the indices: with dim = 2, y[i][k] is that of x[i][k] and of every "
        "src[i][j] whose index[i][j] is k; index i32, from 0, of src's shape. The gradient of a max or min is shared "
        "evenly among equal elements",
    .inputs = (const char *const[]){"x", "index", "src", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"dim", MX_ATTR_DIM, offsetof(reduce_attr, dim), NAN, NULL,
                                "dimension along which the index counts"},
                               {"reduce", MX_ATTR_ENUM, offsetof(reduce_attr, reduce), NAN, reductions,
                                "of the elements that belong together; scatter_add gives their sum"},
                               {"include_self", MX_ATTR_BOOL, offsetof(reduce_attr, include_self), 1, NULL,
                                "false: x counts only where the index names no element"},
                               {0}},
    .attr_bytes = sizeof(reduce_attr),
    .reads_in = 1 << 0 | 1 << 1 | 1 << 2,
    .reads_out = 1 << 0,
    .infer = infer_scatter_reduce,
    .cost = cost_scatter_add,
    .host = host_scatter_reduce,
    .vjp = vjp_scatter_reduce,
    .vjp_recorded = vjp_scatter_reduce,
};
