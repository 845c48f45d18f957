/* Operations between tensors and lists of ids: index_select, one_hot, nonzero. */
#include "kernels/embedding.h"
#include "kernels/index.h"
#include "kernels/shape.h"

#include "core/pool.h"
#include "ops/compose.h"
#include "ops/pointwise.h"
#include "ops/select.h"

#include <math.h>

/* ---- index_select ---- */

typedef struct select_attr {
    int64_t dim;
} select_attr;

static int select_dim(const mx_call *call)
{
    int64_t dim = ((const select_attr *)mx_call_attr(call))->dim;
    return (int)(dim < 0 ? dim + call->in[0]->shape.n_dims : dim);
}

static mx_status infer_select(mx_call *call)
{
    const mx_shape *x = &call->in[0]->shape, *ids = &call->in[1]->shape;
    int dim = 0;
    MX_TRY(mx_want_dtype(call, 1, MX_I32));
    MX_TRY(mx_want_dim(call, "dim", ((const select_attr *)mx_call_attr(call))->dim, x->n_dims, &dim));
    mx_shape y = {.n_dims = x->n_dims - 1 + ids->n_dims};
    if (y.n_dims > MX_MAX_DIMS)
        return mx_bad_shape(call, "the result would have %d dimensions, and no tensor has more than %d", y.n_dims,
                            MX_MAX_DIMS);
    for (int d = 0; d < y.n_dims; d++)
        y.size[d] = d < dim ? x->size[d] : d < dim + ids->n_dims ? ids->size[d - dim] : x->size[d - ids->n_dims + 1];
    return mx_out(call, 0, call->in[0]->dtype, &y);
}

/* Only the chosen elements are read. */
static mx_cost cost_select(const mx_call *call)
{
    double bytes = (double)mx_bytes(call->out[0]);
    return (mx_cost){.bytes_read = bytes + (double)mx_bytes(call->in[1]), .bytes_written = bytes};
}

static mx_status want_ids(const mx_call *call, const mx_tensor *ids, int64_t n)
{
    char place[128];
    const int32_t *id = mx_data(ids);
    int64_t bad = mx_embedding_find_bad(id, mx_count(ids), n);
    if (bad < 0 || !id)
        return MX_OK;
    return mx_bad_value(call, "id %d at %s is outside 0 .. %lld (ids count from 0)", id[bad],
                        mx_place_text(place, &ids->shape, bad), (long long)n - 1);
}

static mx_status host_select(mx_call *call)
{
    const mx_tensor *x = call->in[0], *ids = call->in[1];
    int dim = select_dim(call);
    MX_TRY(want_ids(call, ids, x->shape.size[dim]));
    mx_take_runs(mx_data(call->out[0]), mx_data(x), mx_data(ids), mx_outer_size(&x->shape, dim), x->shape.size[dim],
                 mx_count(ids), mx_inner_size(&x->shape, dim) * (int64_t)mx_dtype_bytes(x->dtype));
    return MX_OK;
}

/* Reshapes *t, which is taken over. */
static mx_status reshape(mx_tensor **t, mx_shape shape)
{
    mx_tensor *y = NULL;
    mx_status status = mx_apply_reshape(*t, &shape, &y);
    mx_release(*t);
    *t = y;
    return status;
}

/* Swaps the first two dimensions of *t, which is taken over. */
static mx_status swap(mx_tensor **t)
{
    mx_tensor *y = NULL;
    if ((*t)->shape.size[0] == 1 || (*t)->shape.size[1] == 1)
        return reshape(t, (mx_shape){3, {(*t)->shape.size[1], (*t)->shape.size[0], (*t)->shape.size[2]}});
    mx_status status = mx_apply_transpose(*t, 0, 1, &y);
    mx_release(*t);
    *t = y;
    return status;
}

/* The gradient of an embedding whose rows are (outer, inner). *dx is dy, and then the gradient by x. */
static mx_status select_grad(mx_tensor *ids, int dim, const mx_shape *x, mx_tensor **dx)
{
    int64_t outer = mx_outer_size(x, dim), n = x->size[dim], inner = mx_inner_size(x, dim), n_ids = mx_count(ids);
    mx_tensor *grad = NULL;
    MX_TRY(reshape(dx, (mx_shape){3, {outer, n_ids, inner}}));
    MX_TRY(swap(dx));
    MX_TRY(reshape(dx, (mx_shape){2, {n_ids, outer * inner}}));
    MX_TRY(mx_apply_embedding_grad(ids, *dx, n, &grad));
    mx_release(*dx);
    *dx = grad;
    MX_TRY(reshape(dx, (mx_shape){3, {n, outer, inner}}));
    MX_TRY(swap(dx));
    return reshape(dx, *x);
}

mx_status mx_apply_index_select_grad(mx_tensor *ids, mx_tensor *dy, int dim, int64_t n, mx_tensor **dx)
{
    mx_shape x = dy->shape;
    x.size[dim] = n;
    *dx = mx_retain(dy);
    mx_status status = select_grad(ids, dim, &x, dx);
    if (status != MX_OK && *dx) {
        mx_release(*dx);
        *dx = NULL;
    }
    return status;
}

static mx_status vjp_select(mx_vjp *v)
{
    mx_tensor *ids = v->call->in[1], *flat = NULL, *dx = NULL;
    if (!v->want[0])
        return MX_OK;
    MX_TRY(mx_apply_reshape(ids, &(mx_shape){1, {mx_count(ids)}}, &flat));
    dx = mx_retain(v->out_grad[0]);
    mx_status status = select_grad(flat, select_dim(v->call), &v->call->in[0]->shape, &dx);
    mx_release(flat);
    if (status == MX_OK)
        return mx_give_grad(v, 0, dx);
    if (dx)
        mx_release(dx);
    return status;
}

const mx_op mx_op_index_select = {
    .name = "index_select",
    .doc = "the elements of x that ids (i32, from 0) name along dim: the sizes of ids take the place of that of dim",
    .inputs = (const char *const[]){"x", "ids", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"dim", MX_ATTR_DIM, offsetof(select_attr, dim), 0, NULL,
                                "dimension along which ids count; default: the first"},
                               {0}},
    .attr_bytes = sizeof(select_attr),
    .reads_in = 1 << 1,
    .infer = infer_select,
    .cost = cost_select,
    .host = host_select,
    .vjp = vjp_select,
    .vjp_recorded = vjp_select,
};

mx_status mx_apply_index_select(mx_tensor *x, mx_tensor *ids, int dim, mx_tensor **y)
{
    const select_attr attr = {.dim = dim};
    return mx_apply(&mx_op_index_select, (mx_tensor *[]){x, ids}, 2, MX_ATTRS(attr), y);
}

/* ---- one_hot ---- */

typedef struct one_hot_attr {
    int64_t classes;
    int dtype;
} one_hot_attr;

static mx_status infer_one_hot(mx_call *call)
{
    const one_hot_attr *attr = mx_call_attr(call);
    mx_shape y = call->in[0]->shape;
    MX_TRY(mx_want_dtype(call, 0, MX_I32));
    if (attr->classes < 0)
        return mx_bad_value(call, "classes = %lld must not be negative", (long long)attr->classes);
    if (y.n_dims == MX_MAX_DIMS)
        return mx_bad_shape(call, "ids must have fewer than %d dimensions", MX_MAX_DIMS);
    y.size[y.n_dims++] = attr->classes;
    return mx_out(call, 0, attr->dtype < 0 ? MX_F32 : (mx_dtype)attr->dtype, &y);
}

static mx_cost cost_copy(const mx_call *call) { return mx_cost_of(call, 0); }

static mx_status host_one_hot(mx_call *call)
{
    const mx_tensor *ids = call->in[0], *y = call->out[0];
    const int32_t *id = mx_data(ids);
    int64_t classes = ((const one_hot_attr *)mx_call_attr(call))->classes;
    MX_TRY(want_ids(call, ids, classes));
    mx_one_hot(id, mx_count(ids), classes, mx_array_of(y));
    return MX_OK;
}

const mx_op mx_op_one_hot = {
    .name = "one_hot",
    .doc = "ids i32 (...) of 0 .. classes - 1 -> (..., classes): 1 at the id, 0 elsewhere",
    .inputs = (const char *const[]){"ids", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs =
        (const mx_attr[]){
            {"classes", MX_ATTR_INT, offsetof(one_hot_attr, classes), NAN, NULL, "size of the new last dimension"},
            {"dtype", MX_ATTR_DTYPE, offsetof(one_hot_attr, dtype), MX_F32, NULL, "dtype of the result; default: f32"},
            {0}},
    .attr_bytes = sizeof(one_hot_attr),
    .infer = infer_one_hot,
    .cost = cost_copy,
    .host = host_one_hot,
};

/* ---- nonzero ---- */

/* The number of rows is not known here: host gives the result its size. */
static mx_status infer_nonzero(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    if (!mx_has_values(x))
        return mx_bad_value(call, "the size of the result depends on values, and a simulated pod has none");
    return mx_out(call, 0, MX_I32, &(mx_shape){2, {0, x->shape.n_dims}});
}

static mx_cost cost_nonzero(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->in[0])); }

static mx_status host_nonzero(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    mx_tensor *y = call->out[0];
    int64_t count = mx_count(x), words = count / 64 + 1, chunks = count / MX_MARK_CHUNK + 1;
    uint64_t *mask;
    MX_TRY(mx_pool_alloc((words + chunks) * 8, (void **)&mask));
    int64_t *before = (int64_t *)(mask + words);
    y->shape.size[0] = mx_mark_nonzero(mx_array_of(x), count, mask, before);
    mx_status status = mx_tensor_allocate(y);
    if (status == MX_OK)
        mx_list_marks(mask, before, x->shape.size, x->shape.n_dims, mx_data(y));
    mx_pool_free(mask, (words + chunks) * 8);
    return status;
}

const mx_op mx_op_nonzero = {
    .name = "nonzero",
    .doc = "the indices (n, dimensions of x) of the n elements that are not 0, i32, from 0, row-major; not on a "
           "simulated pod",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_OWN_STORAGE,
    .infer = infer_nonzero,
    .cost = cost_nonzero,
    .host = host_nonzero,
};
