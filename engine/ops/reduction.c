#include "ops/reduction.h"

#include "core/pool.h"
#include "kernels/shape.h"

const mx_attr mx_reduce_attrs[] = {
    {"dim", MX_ATTR_DIMS, offsetof(mx_reduce_attr, dim), 0, NULL,
     "dimension to reduce, or a list of dimensions; default: all"},
    {"keepdim", MX_ATTR_BOOL, offsetof(mx_reduce_attr, keepdim), 0, NULL, "keep the dimensions with size 1"},
    {0}};

mx_shape mx_reduced_shape(const mx_shape *x, uint32_t mask, bool keep)
{
    mx_shape y = {.n_dims = 0};
    for (int d = 0; d < x->n_dims; d++) {
        bool gone = mask >> d & 1u;
        if (!gone || keep)
            y.size[y.n_dims++] = gone ? 1 : x->size[d];
    }
    return y;
}

int64_t mx_reduced_count(const mx_shape *x, uint32_t mask)
{
    int64_t n = 1;
    for (int d = 0; d < x->n_dims; d++)
        n *= mask >> d & 1u ? x->size[d] : 1;
    return n;
}

mx_status mx_infer_reduced(mx_call *call, int i, mx_dtype dtype)
{
    const mx_reduce_attr *attr = mx_call_attr(call);
    const mx_shape *x = &call->in[0]->shape;
    uint32_t mask;
    MX_TRY(mx_want_dims(call, &attr->dim, x->n_dims, &mask));
    mx_shape y = mx_reduced_shape(x, mask, attr->keepdim);
    return mx_out(call, i, dtype, &y);
}

/* Whether the dimensions of the mask are neighbours, but for ones of size 1: then x is (outer, n, inner). */
static bool are_neighbours(const mx_shape *x, uint32_t mask, mx_extent *e)
{
    bool inside = false, behind = false, good = true;
    *e = (mx_extent){1, 1, 1};
    for (int d = 0; d < x->n_dims; d++) {
        bool reduced = mask >> d & 1u;
        if (x->size[d] == 1)
            continue;
        good = good && !(reduced && behind);
        inside = inside || reduced;
        behind = behind || (inside && !reduced);
        *(reduced ? &e->n : behind ? &e->inner : &e->outer) *= x->size[d];
    }
    return good;
}

mx_status mx_reduction_open(const mx_call *call, const mx_tensor *x, const mx_dims *dims, mx_reduction *r)
{
    const mx_shape *shape = &x->shape;
    MX_TRY(mx_want_dims(call, dims, shape->n_dims, &r->mask));
    r->x = mx_array_of(x);
    r->copy_bytes = 0;
    if (are_neighbours(shape, r->mask, &r->e))
        return MX_OK;
    int order[MX_MAX_DIMS], n = 0;
    for (int reduced = 0; reduced < 2; reduced++)
        for (int d = 0; d < shape->n_dims; d++)
            if ((int)(r->mask >> d & 1u) == reduced)
                order[n++] = d;
    int64_t count = mx_reduced_count(shape, r->mask);
    r->e = (mx_extent){count > 0 ? mx_count(x) / count : mx_reduced_count(shape, ~r->mask), count, 1};
    if (mx_count(x) == 0)
        return MX_OK;
    MX_TRY(mx_pool_alloc(mx_bytes(x), &r->x.data));
    r->copy_bytes = mx_bytes(x);
    mx_permute(r->x.data, mx_data(x), shape->n_dims, shape->size, order, mx_dtype_bytes(x->dtype));
    return MX_OK;
}

void mx_reduction_close(mx_reduction *r)
{
    if (r->copy_bytes > 0)
        mx_pool_free(r->x.data, r->copy_bytes);
}

mx_array mx_reduction_gradient(const mx_reduction *r, mx_tensor *dx)
{
    return r->copy_bytes > 0 ? r->x : mx_array_of(dx);
}

void mx_reduction_return(mx_reduction *r, mx_tensor *dx)
{
    int64_t size[MX_MAX_DIMS];
    int order[MX_MAX_DIMS], n = 0;
    for (int reduced = 0; reduced < 2; reduced++)
        for (int d = 0; d < dx->shape.n_dims; d++)
            if ((int)(r->mask >> d & 1u) == reduced) {
                order[d] = n;
                size[n++] = dx->shape.size[d];
            }
    if (r->copy_bytes > 0)
        mx_permute(mx_data(dx), r->x.data, dx->shape.n_dims, size, order, mx_dtype_bytes(dx->dtype));
    mx_reduction_close(r);
}
