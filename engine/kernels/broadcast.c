/* Arrays of different shapes: how they are walked together, and the functions of pairs that use the walk. */
#include "core/element.h"
#include "kernels/elementwise.h"

#include "kernels/context.h"
#include "kernels/f64.h"
#include "kernels/inline.h"

#include <immintrin.h>

enum { BLOCK = 1024 };

bool mx_broadcast_sizes(int n_in, const int *in_dims, const int64_t *const *in_size, int *n_dims, int64_t *size)
{
    *n_dims = 0;
    for (int k = 0; k < n_in; k++)
        if (in_dims[k] > *n_dims)
            *n_dims = in_dims[k];
    for (int d = 0; d < *n_dims; d++) {
        size[d] = 1;
        for (int k = 0; k < n_in; k++) {
            int own = d - (*n_dims - in_dims[k]);
            int64_t mine = own < 0 ? 1 : in_size[k][own];
            if (mine == 1 || mine == size[d])
                continue;
            if (size[d] != 1)
                return false;
            size[d] = mine;
        }
    }
    return true;
}

/* Whether dimension `outer` of the output and the plan's first dimension, which is next inside it, are one for all. */
static bool joins(const mx_broadcast *plan, int n_in, const int64_t *stride)
{
    for (int k = 0; k < n_in; k++)
        if (stride[k] != plan->stride[k][0] * plan->size[0])
            return false;
    return true;
}

static void put_in_front(mx_broadcast *plan, int n_in, int64_t size, const int64_t *stride)
{
    memmove(plan->size + 1, plan->size, (size_t)plan->n_dims * sizeof *plan->size);
    plan->size[0] = size;
    for (int k = 0; k < n_in; k++) {
        memmove(plan->stride[k] + 1, plan->stride[k], (size_t)plan->n_dims * sizeof *plan->stride[k]);
        plan->stride[k][0] = stride[k];
    }
    plan->n_dims++;
}

void mx_broadcast_plan(mx_broadcast *plan, int n_in, const int *in_dims, const int64_t *const *in_size, int n_dims,
                       const int64_t *size)
{
    int64_t dense[MX_BROADCAST_INPUTS] = {1, 1, 1}; /* elements in the dimensions done so far */
    *plan = (mx_broadcast){.count = 1};
    for (int d = n_dims - 1; d >= 0; d--) {
        plan->count *= size[d];
        int64_t stride[MX_BROADCAST_INPUTS];
        for (int k = 0; k < n_in; k++) {
            int own = d - (n_dims - in_dims[k]);
            int64_t mine = own < 0 ? 1 : in_size[k][own];
            stride[k] = mine == 1 ? 0 : dense[k];
            dense[k] *= mine;
        }
        if (size[d] == 1)
            continue;
        if (plan->n_dims > 0 && joins(plan, n_in, stride))
            plan->size[0] *= size[d];
        else
            put_in_front(plan, n_in, size[d], stride);
    }
    if (plan->n_dims == 0)
        put_in_front(plan, n_in, 1, (const int64_t[MX_BROADCAST_INPUTS]){1, 1, 1});
}

/* ---- walking ---- */

/* One piece of work on a run of the last dimension. */
typedef struct walk {
    const mx_broadcast *plan;
    const mx_elementwise_paths *convert;
    const mx_pair_paths *paths;
    const mx_loop_paths *loops;
    int n_in, op; /* op: of a comparison */
    mx_pair f;
    bool by_b, stream;
    mx_array in[MX_BROADCAST_INPUTS], out;
    int step[MX_BROADCAST_INPUTS]; /* 0 or 1 */
    int64_t *refused;              /* the first element of b that the operation cannot take */
    void (*run)(const struct walk *w, const int64_t *from, int64_t to, int64_t n);
} walk;

static void *at(mx_array v, int64_t i) { return (char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype); }

/* Elements first to before last of the output, run by run. */
static void walk_range(const walk *w, int64_t first, int64_t last)
{
    const mx_broadcast *p = w->plan;
    int inner = p->n_dims - 1;
    int64_t index[MX_BROADCAST_DIMS], rest = first;
    for (int d = inner; d >= 0; d--) {
        index[d] = rest % p->size[d];
        rest /= p->size[d];
    }
    while (first < last) {
        int64_t from[MX_BROADCAST_INPUTS] = {0};
        for (int k = 0; k < w->n_in; k++)
            for (int d = 0; d <= inner; d++)
                from[k] += index[d] * p->stride[k][d];
        int64_t n = p->size[inner] - index[inner];
        if (n > last - first)
            n = last - first;
        w->run(w, from, first, n);
        first += n;
        index[inner] = 0; /* either the run has ended, or the range */
        for (int d = inner - 1; d >= 0; d--) {
            if (++index[d] < p->size[d])
                break;
            index[d] = 0;
        }
    }
}

static void walk_all(walk *w)
{
    int64_t count = w->plan->count, inner = w->plan->size[w->plan->n_dims - 1];
    int64_t bytes = count * (int64_t)mx_dtype_bytes(w->out.dtype);
    bool in_place = false;
    for (int k = 0; k < w->n_in; k++) {
        w->step[k] = (int)w->plan->stride[k][w->plan->n_dims - 1];
        bytes += w->step[k] ? count * (int64_t)mx_dtype_bytes(w->in[k].dtype) : 0;
        in_place = in_place || w->in[k].data == w->out.data;
    }
    w->convert = mx_kernels_current()->elementwise;
    w->paths = mx_kernels_current()->pairs;
    w->loops = mx_kernels_current()->loops;
    w->stream = !in_place && inner >= BLOCK && mx_should_stream(bytes);
#pragma omp parallel if (count >= MX_PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t first = 0; first < count; first += MX_CHUNK)
            walk_range(w, first, first + MX_CHUNK < count ? first + MX_CHUNK : count);
        _mm_sfence();
    }
}

/* Input k's elements from `from` on as f32: where they are, or converted (all n, or the one) into `room`. */
static const float *as_f32(const walk *w, int k, int64_t from, int64_t n, float *room)
{
    const void *p = at(w->in[k], from);
    mx_dtype dtype = w->in[k].dtype;
    int64_t count = w->step[k] ? n : 1;
    if (dtype == MX_F32)
        return p;
    if (mx_dtype_is_integer(dtype))
        w->loops->to_f32(dtype, p, room, count);
    else
        w->convert->to_f32(p, room, count, false);
    return room;
}

/* Input k's element i of a run in f64. */
static double number_at(const walk *w, int k, const int64_t *from, int64_t i)
{
    return mx_get_number(w->in[k].data, from[k] + i * w->step[k], w->in[k].dtype);
}

/* ---- integers ---- */

/* Whether b must not be 0, or not be below 0. */
static bool divides(mx_binary op) { return op == MX_IDIV || op == MX_REMAINDER || op == MX_FMOD; }
static bool shifts(mx_binary op) { return op == MX_SHIFT_LEFT || op == MX_SHIFT_RIGHT; }

enum { ROOM = 4 * BLOCK }; /* bytes */

/* Whether the operation takes n <= ROOM elements of b. */
static bool takes(const walk *w, const void *b, int64_t first, int64_t n)
{
    const int64_t zero = 0;
    uint8_t holds[ROOM];
    if (!divides(w->f.op) && !shifts(w->f.op))
        return true;
    w->loops->compare(divides(w->f.op) ? MX_EQ : MX_LT, w->out.dtype, b, 1, &zero, 0, holds, n);
    const uint8_t *found = memchr(holds, 1, (size_t)n);
    if (!found)
        return true;
#pragma omp critical(refused)
    *w->refused = mx_min(*w->refused, first + (found - holds));
    return false;
}

/* In blocks, of which b is checked. Large results go by way of the first-level cache, from which they are written past
 * the others. */
static void run_int_pair(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    char room[ROOM];
    int64_t bytes = (int64_t)mx_dtype_bytes(w->out.dtype), block = ROOM / bytes;
    for (int64_t i = 0; i < n; i += block) {
        int64_t m = n - i < block ? n - i : block, first = from[1] + i * w->step[1];
        void *y = at(w->out, to + i), *part = w->stream ? room : y, *b = at(w->in[1], first);
        if (!takes(w, b, first, w->step[1] ? m : 1))
            continue;
        w->loops->pair(w->f.op, w->out.dtype, at(w->in[0], from[0] + i * w->step[0]), w->step[0], b, w->step[1], part,
                       m);
        if (w->stream)
            w->convert->copy(room, y, m * bytes, true);
    }
}

static void run_int_compare(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    w->loops->compare((mx_compare)w->op, w->in[0].dtype, at(w->in[0], from[0]), w->step[0], at(w->in[1], from[1]),
                      w->step[1], (uint8_t *)w->out.data + to, n);
}

/* ---- f64 ---- */

static void run_pair_f64(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ((double *)w->out.data)[to + i] = mx_f64_pair(w->f, number_at(w, 0, from, i), number_at(w, 1, from, i));
}

static void run_pair_grad_f64(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ((double *)w->out.data)[to + i] =
            number_at(w, 2, from, i) *
            mx_f64_pair_slope(w->f, w->by_b, number_at(w, 0, from, i), number_at(w, 1, from, i));
}

static void run_compare_f64(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ((uint8_t *)w->out.data)[to + i] =
            mx_f64_holds((mx_compare)w->op, number_at(w, 0, from, i), number_at(w, 1, from, i));
}

/* ---- f32 and bf16 ---- */

static void run_pair(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    w->paths->binary(w->f, w->out.dtype, at(w->in[0], from[0]), w->step[0], at(w->in[1], from[1]), w->step[1],
                     at(w->out, to), n, w->stream);
}

static bool is_byte(mx_dtype dtype) { return dtype == MX_U8 || dtype == MX_I8; }

/* bf16, but for one operand of integers of 8 bits, such as a mask. */
static void run_pair_bytes(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    enum { BYTES = 4 * BLOCK };
    mx_bf16 room[BYTES];
    for (int64_t i = 0; i < n; i += BYTES) {
        int64_t m = mx_min(BYTES, n - i);
        const void *in[2];
        for (int k = 0; k < 2; k++) {
            in[k] = at(w->in[k], from[k] + i * w->step[k]);
            if (!is_byte(w->in[k].dtype))
                continue;
            w->loops->to_bf16(w->in[k].dtype, in[k], room, w->step[k] ? m : 1);
            in[k] = room;
        }
        w->paths->binary(w->f, MX_BF16, in[0], w->step[0], in[1], w->step[1], at(w->out, to + i), m, w->stream);
    }
}

/* For mixed dtypes: in blocks of f32. */
static void run_pair_staged(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    float room_a[BLOCK], room_b[BLOCK], room_y[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        const float *a = as_f32(w, 0, from[0] + i * w->step[0], m, room_a);
        const float *b = as_f32(w, 1, from[1] + i * w->step[1], m, room_b);
        bool bf16 = mx_is_bf16(w->out.dtype);
        float *y = bf16 ? room_y : at(w->out, to + i);
        w->paths->binary(w->f, MX_F32, a, w->step[0], b, w->step[1], y, m, !bf16 && w->stream);
        if (bf16)
            w->convert->to_bf16(y, at(w->out, to + i), m, w->stream);
    }
}

static void run_pair_grad(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    float room[3][BLOCK], room_y[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        const float *in[3];
        for (int k = 0; k < 3; k++)
            in[k] = as_f32(w, k, from[k] + i * w->step[k], m, room[k]);
        bool bf16 = mx_is_bf16(w->out.dtype);
        void *out = at(w->out, to + i);
        float *y = bf16 || w->stream ? room_y : out;
        w->paths->binary_grad(w->f, w->by_b, in[0], w->step[0], in[1], w->step[1], in[2], w->step[2], y, m);
        if (bf16)
            w->convert->to_bf16(y, out, m, w->stream);
        else if (w->stream)
            w->convert->copy(y, out, m * (int64_t)sizeof *y, true);
    }
}

/* Both as they are where they have one dtype, or the other is one value. */
static void run_compare(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    enum { FLAGS = 4 * BLOCK };
    float room[2][FLAGS];
    uint8_t room_y[FLAGS];
    bool bf16 = true;
    for (int k = 0; k < 2; k++)
        bf16 = bf16 && (!w->step[k] || mx_is_bf16(w->in[k].dtype));
    for (int64_t i = 0; i < n; i += FLAGS) {
        int64_t m = mx_min(FLAGS, n - i);
        const void *in[2];
        for (int k = 0; k < 2; k++) {
            int64_t first = from[k] + i * w->step[k];
            in[k] = bf16 && w->step[k] ? at(w->in[k], first) : as_f32(w, k, first, m, room[k]);
        }
        uint8_t *out = (uint8_t *)w->out.data + to + i, *y = w->stream ? room_y : out;
        w->paths->compare((mx_compare)w->op, bf16 ? MX_BF16 : MX_F32, in[0], w->step[0], in[1], w->step[1], y, m);
        if (w->stream)
            w->convert->copy(room_y, out, m, true);
    }
}

int64_t mx_binary_forward(mx_pair f, const mx_broadcast *plan, mx_array a, mx_array b, mx_array y)
{
    int64_t refused = INT64_MAX;
    walk w = {.plan = plan, .n_in = 2, .f = f, .in = {a, b}, .out = y, .run = run_pair_staged, .refused = &refused};
    if (mx_dtype_is_integer(y.dtype))
        w.run = run_int_pair;
    else if (y.dtype == MX_F64)
        w.run = run_pair_f64;
    else if (a.dtype == y.dtype && b.dtype == y.dtype)
        w.run = run_pair;
    else if (y.dtype == MX_BF16 &&
             ((a.dtype == MX_BF16 && is_byte(b.dtype)) || (b.dtype == MX_BF16 && is_byte(a.dtype))))
        w.run = run_pair_bytes;
    walk_all(&w);
    return refused < INT64_MAX ? refused : -1;
}

void mx_binary_backward(mx_pair f, bool by_b, const mx_broadcast *plan, mx_array a, mx_array b, mx_array dy, mx_array y)
{
    walk w = {.plan = plan, .n_in = 3, .f = f, .by_b = by_b, .in = {a, b, dy}, .out = y, .run = run_pair_grad};
    if (y.dtype == MX_F64)
        w.run = run_pair_grad_f64;
    walk_all(&w);
}

void mx_compare_forward(mx_compare op, const mx_broadcast *plan, mx_array a, mx_array b, uint8_t *y)
{
    walk w = {.plan = plan, .n_in = 2, .op = op, .in = {a, b}, .out = {y, MX_U8}, .run = run_compare};
    if (mx_dtype_is_integer(a.dtype))
        w.run = run_int_compare;
    else if (a.dtype == MX_F64)
        w.run = run_compare_f64;
    walk_all(&w);
}

/* Asks for what the loop over the next block of input k reads. */
static void prefetch_input(const walk *w, int k, int64_t next, int64_t n)
{
    const char *p = at(w->in[k], next);
    const int64_t bytes = w->step[k] * n * (int64_t)mx_dtype_bytes(w->in[k].dtype);
    for (int64_t b = 0; b < bytes; b += 64)
        __builtin_prefetch(p + b);
}

static void run_where(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    char room[BLOCK * 4];
    int64_t bytes = (int64_t)mx_dtype_bytes(w->out.dtype), block = w->stream ? BLOCK * 4 / bytes : n;
    for (int64_t i = 0; i < n; i += block) {
        int64_t m = n - i < block ? n - i : block;
        void *y = at(w->out, to + i), *part = w->stream ? room : y;
        for (int k = 0; w->stream && k < 3; k++)
            prefetch_input(w, k, from[k] + (i + block) * w->step[k], block);
        w->loops->select((size_t)bytes, at(w->in[0], from[0] + i * w->step[0]), w->step[0],
                         at(w->in[1], from[1] + i * w->step[1]), w->step[1], at(w->in[2], from[2] + i * w->step[2]),
                         w->step[2], part, m);
        if (w->stream)
            w->convert->copy(room, y, m * bytes, true);
    }
}

/* b is the other kind of float. */
static void run_where_mixed(const walk *w, const int64_t *from, int64_t to, int64_t n)
{
    float room[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = n - i < BLOCK ? n - i : BLOCK, used = w->step[2] ? m : 1;
        const void *b = at(w->in[2], from[2] + i * w->step[2]);
        if (mx_is_bf16(w->out.dtype))
            w->convert->to_bf16(b, (mx_bf16 *)room, used, false);
        else
            w->convert->to_f32(b, room, used, false);
        w->loops->select(mx_dtype_bytes(w->out.dtype), at(w->in[0], from[0] + i * w->step[0]), w->step[0],
                         at(w->in[1], from[1] + i * w->step[1]), w->step[1], room, w->step[2], at(w->out, to + i), m);
    }
}

void mx_where_forward(const mx_broadcast *plan, const uint8_t *cond, mx_array a, mx_array b, mx_array y)
{
    walk w = {.plan = plan, .n_in = 3, .in = {{(void *)(uintptr_t)cond, MX_U8}, a, b}, .out = y, .run = run_where};
    if (b.dtype != y.dtype)
        w.run = run_where_mixed;
    walk_all(&w);
}
