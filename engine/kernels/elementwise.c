#include "kernels/elementwise.h"

#include "kernels/context.h"
#include "kernels/f64.h"

#include <math.h>

/* Elements converted to f32 at a time where dtypes are mixed: three such blocks stay in the first-level cache. */
enum { BLOCK = 1024 };

/* At most 4 MiB: from there on, plain stores are slower even where the share of the last cache is larger. Collectives,
 * whose ranks read what the others have just written, go by the share alone: streaming halves their rate. */
bool mx_should_stream(int64_t bytes) { return bytes > (4 << 20) || bytes > mx_cpu_l3_share_bytes(); }

bool mx_unary_reads_output(mx_unary op)
{
    return op == MX_EXP || op == MX_SQRT || op == MX_RSQRT || op == MX_TANH || op == MX_SIGMOID || op == MX_RELU ||
           op == MX_TAN;
}

static mx_array at(mx_array v, int64_t i)
{
    return (mx_array){(char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype), v.dtype};
}

/* What one piece of work is: `run` computes elements first to before last. */
typedef struct map {
    const mx_elementwise_paths *paths;
    mx_function f;
    mx_array in[3], out[2];
    bool stream;
    void (*run)(const struct map *m, int64_t first, int64_t last);
} map;

static bool one_dtype(const map *m, int n_in, int n_out)
{
    for (int k = 0; k < n_in; k++)
        if (m->in[k].dtype != m->out[0].dtype)
            return false;
    return n_out == 1 || m->out[1].dtype == m->out[0].dtype;
}

/* The same map on f32 copies of elements first to before last, a block at a time. */
static void run_staged(const map *m, int n_in, int n_out, int64_t first, int64_t last)
{
    float in[3][BLOCK], out[2][BLOCK];
    for (int64_t i = first; i < last; i += BLOCK) {
        int64_t n = last - i < BLOCK ? last - i : BLOCK;
        map staged = {.paths = m->paths, .f = m->f, .stream = m->stream, .run = m->run};
        for (int k = 0; k < n_in; k++) {
            staged.in[k] = (mx_array){in[k], MX_F32};
            mx_array source = at(m->in[k], i);
            if (mx_is_bf16(source.dtype))
                m->paths->to_f32(source.data, in[k], n, false);
            else
                staged.in[k] = source;
        }
        for (int k = 0; k < n_out; k++) {
            staged.out[k] = mx_is_bf16(m->out[k].dtype) ? (mx_array){out[k], MX_F32} : at(m->out[k], i);
            staged.stream = staged.stream && !mx_is_bf16(m->out[k].dtype);
        }
        staged.run(&staged, 0, n);
        for (int k = 0; k < n_out; k++)
            if (mx_is_bf16(m->out[k].dtype))
                m->paths->to_bf16(out[k], at(m->out[k], i).data, n, m->stream);
    }
}

/* Shares n elements among the threads in pieces of fixed size. */
static void run_map(map *m, int n_in, int n_out, int64_t n)
{
    int64_t bytes = 0;
    for (int k = 0; k < n_in; k++)
        bytes += n * (int64_t)mx_dtype_bytes(m->in[k].dtype);
    for (int k = 0; k < n_out; k++)
        bytes += n * (int64_t)mx_dtype_bytes(m->out[k].dtype);
    bool in_place = false;
    for (int k = 0; k < n_in; k++)
        in_place = in_place || m->in[k].data == m->out[0].data || m->in[k].data == m->out[1].data;
    m->paths = mx_kernels_current()->elementwise;
    m->stream = !in_place && mx_should_stream(bytes);
    bool direct = one_dtype(m, n_in, n_out);
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_CHUNK) {
        int64_t last = first + MX_CHUNK < n ? first + MX_CHUNK : n;
        if (direct)
            m->run(m, first, last);
        else
            run_staged(m, n_in, n_out, first, last);
    }
}

static void run_unary(const map *m, int64_t first, int64_t last)
{
    m->paths->unary(m->f, m->in[0].dtype, at(m->in[0], first).data, at(m->out[0], first).data, last - first, m->stream);
}

static void run_unary_grad(const map *m, int64_t first, int64_t last)
{
    m->paths->unary_grad(m->f, m->in[0].dtype, at(m->in[0], first).data, at(m->in[1], first).data,
                         at(m->out[0], first).data, last - first, m->stream);
}

static void run_gated(const map *m, int64_t first, int64_t last)
{
    m->paths->gated(m->f, m->in[0].dtype, at(m->in[0], first).data, at(m->in[1], first).data, at(m->out[0], first).data,
                    last - first, m->stream);
}

static void run_gated_grad(const map *m, int64_t first, int64_t last)
{
    m->paths->gated_grad(m->f, m->in[0].dtype, at(m->in[0], first).data, at(m->in[1], first).data,
                         at(m->in[2], first).data, at(m->out[0], first).data, at(m->out[1], first).data, last - first,
                         m->stream);
}

static void run_add_to(const map *m, int64_t first, int64_t last)
{
    m->paths->add_to(at(m->out[0], first), at(m->in[0], first), last - first);
}

/* ---- f64 ---- */

static void unary_f64(mx_function f, mx_array x, mx_array y, int64_t n)
{
#pragma omp parallel for schedule(static) if (n >= MX_CHUNK)
    for (int64_t i = 0; i < n; i++)
        ((double *)y.data)[i] = mx_f64_value(f, ((const double *)x.data)[i]);
}

static void unary_grad_f64(mx_function f, mx_array v, mx_array dy, mx_array dx, int64_t n)
{
#pragma omp parallel for schedule(static) if (n >= MX_CHUNK)
    for (int64_t i = 0; i < n; i++)
        ((double *)dx.data)[i] = ((const double *)dy.data)[i] * mx_f64_slope(f, ((const double *)v.data)[i]);
}

static double clamp_f64(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

/* What multiplies up, or the clamped up; `limit` 0: not clamped. */
static double gate_f64(mx_function act, double x)
{
    const double sharp = 1.702, limit = act.p0;
    return limit > 0 ? mx_f64_value(act, sharp * clamp_f64(x, -INFINITY, limit)) / sharp : mx_f64_value(act, x);
}

static double up_f64(double limit, double x) { return limit > 0 ? clamp_f64(x, -limit, limit) + 1 : x; }

static double gate_slope_f64(mx_function act, double x)
{
    if (act.p0 > 0)
        return x > act.p0 ? 0 : mx_f64_slope(act, 1.702 * x);
    return mx_f64_slope(act, x);
}

static void gated_f64(mx_function act, const double *gate, const double *up, double *y, int64_t n)
{
#pragma omp parallel for schedule(static) if (n >= MX_CHUNK)
    for (int64_t i = 0; i < n; i++)
        y[i] = gate_f64(act, gate[i]) * up_f64(act.p0, up[i]);
}

static void gated_grad_f64(mx_function act, const double *gate, const double *up, const double *dy, double *dgate,
                           double *dup, int64_t n)
{
#pragma omp parallel for schedule(static) if (n >= MX_CHUNK)
    for (int64_t i = 0; i < n; i++) {
        double g = gate[i], u = up[i], d = dy[i];
        dgate[i] = d * up_f64(act.p0, u) * gate_slope_f64(act, g);
        dup[i] = act.p0 > 0 && fabs(u) > act.p0 ? 0 : d * gate_f64(act, g);
    }
}

/* ---- */

void mx_unary_forward(mx_function f, mx_array x, mx_array y, int64_t n)
{
    if (y.dtype == MX_F64) {
        unary_f64(f, x, y, n);
        return;
    }
    run_map(&(map){.f = f, .in = {x}, .out = {y}, .run = run_unary}, 1, 1, n);
}

void mx_unary_backward(mx_function f, mx_array v, mx_array dy, mx_array dx, int64_t n)
{
    if (dx.dtype == MX_F64) {
        unary_grad_f64(f, v, dy, dx, n);
        return;
    }
    run_map(&(map){.f = f, .in = {v, dy}, .out = {dx}, .run = run_unary_grad}, 2, 1, n);
}

void mx_gated_forward(mx_function act, mx_array gate, mx_array up, mx_array y, int64_t n)
{
    if (y.dtype == MX_F64) {
        gated_f64(act, gate.data, up.data, y.data, n);
        return;
    }
    run_map(&(map){.f = act, .in = {gate, up}, .out = {y}, .run = run_gated}, 2, 1, n);
}

void mx_gated_backward(mx_function act, mx_array gate, mx_array up, mx_array dy, mx_array dgate, mx_array dup,
                       int64_t n)
{
    if (dgate.dtype == MX_F64) {
        gated_grad_f64(act, gate.data, up.data, dy.data, dgate.data, dup.data, n);
        return;
    }
    run_map(&(map){.f = act, .in = {gate, up, dy}, .out = {dgate, dup}, .run = run_gated_grad}, 3, 2, n);
}

void mx_add_to(mx_array c, mx_array x, int64_t n)
{
    if (c.dtype == MX_F64) {
#pragma omp parallel for schedule(static) if (n >= MX_CHUNK)
        for (int64_t i = 0; i < n; i++)
            ((double *)c.data)[i] += ((const double *)x.data)[i];
        return;
    }
    map m = {.paths = mx_kernels_current()->elementwise, .in = {x}, .out = {c}};
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_CHUNK)
        run_add_to(&m, first, first + MX_CHUNK < n ? first + MX_CHUNK : n);
}
