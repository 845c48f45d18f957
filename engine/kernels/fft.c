#include "kernels/fft.h"

#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

#include <math.h>
#include <omp.h>

enum { FEW = 4 }; /* rows that are transformed one by one */

static size_t real_bytes(const mx_fft_plan *p) { return mx_dtype_bytes(p->call.dtype); }

static void put(const mx_fft_plan *p, void *table, int64_t i, double value)
{
    if (p->call.dtype == MX_F32)
        ((float *)table)[i] = (float)value;
    else
        ((double *)table)[i] = value;
}

/* e^(-2 pi i k / n) for k < count <= n, as products of the turns by multiples of 2^shift and by those below. */
static void make_turns(const mx_fft_plan *p, void *const table[2], int64_t n, int64_t count)
{
    enum { LOW = 64 };
    double c[LOW], s[LOW];
    for (int64_t k = 0; k < LOW; k++) {
        c[k] = cos(2 * M_PI * (double)k / (double)n);
        s[k] = -sin(2 * M_PI * (double)k / (double)n);
    }
    for (int64_t k = 0; k < count; k += LOW) {
        double high_c = cos(2 * M_PI * (double)k / (double)n), high_s = -sin(2 * M_PI * (double)k / (double)n);
        for (int64_t i = 0; i < mx_min(LOW, count - k); i++) {
            put(p, table[0], k + i, high_c * c[i] - high_s * s[i]);
            put(p, table[1], k + i, high_c * s[i] + high_s * c[i]);
        }
    }
}

/* Splits the length of the steps into factors, 2 last of those of 4 and 2, then ascending; false if one is too large.
 */
static bool factorize(mx_fft_plan *p, int64_t n)
{
    p->inner_length = n;
    p->passes = 0;
    for (int r = 4; n > 1 && r <= MX_FFT_LARGEST; r = r == 4 ? 2 : r == 2 ? 3 : r + 2)
        for (; n % r == 0; n /= r)
            p->factor[p->passes++] = r;
    return n == 1;
}

/* Bluestein: kt = (k^2 + t^2 - (k - t)^2) / 2 makes the sums a convolution with the conjugate of the chirp, which steps
 * of another length can do. */
static void make_chirp(mx_fft_plan *p, void *room)
{
    int64_t n = p->length, m = p->inner_length;
    for (int64_t k = 0; k < n; k++) {
        double turns = (double)(k * k % (2 * n)) / (double)n;
        put(p, p->chirp[0], k, cos(M_PI * turns));
        put(p, p->chirp[1], k, -sin(M_PI * turns));
    }
    /* The transform of the conjugate by the path's own loops: complex rows, one of them. */
    mx_fft_plan inner = *p;
    inner.call = (mx_fft){.kind = MX_FFT_COMPLEX,
                          .dtype = p->call.dtype,
                          .rows = 1,
                          .n = m,
                          .size = m,
                          .frequencies = m,
                          .scale = 1.0 / (double)m,
                          .x_re = p->answer[0],
                          .x_im = p->answer[1],
                          .re = p->answer[0],
                          .im = p->answer[1]};
    inner.lanes = 1;
    inner.length = m;
    inner.room = m;
    inner.chirp[0] = NULL;
    for (int64_t k = 0; k < m; k++) {
        int64_t from = mx_min(k, m - k);
        double turns = from < n ? (double)(from * from % (2 * n)) / (double)n : 0;
        put(p, p->answer[0], k, from < n ? cos(M_PI * turns) : 0);
        put(p, p->answer[1], k, from < n ? sin(M_PI * turns) : 0);
    }
    const mx_fft_paths *paths = mx_kernels_current()->fft;
    (p->call.dtype == MX_F32 ? paths->f32 : paths->f64)(&inner, 0, room);
}

/* Cuts two arrays of n reals from *next. */
static void cut(const mx_fft_plan *p, char **next, int64_t n, void *table[2])
{
    for (int i = 0; i < 2; i++) {
        table[i] = *next;
        *next += mx_round_up(n * (int64_t)real_bytes(p), 64);
    }
}

mx_status mx_fft_run(const mx_fft *f)
{
    bool halves = f->kind != MX_FFT_COMPLEX && f->n % 2 == 0;
    mx_fft_plan p = {.call = *f, .lanes = f->rows < FEW ? 1 : MX_FFT_LANES, .length = halves ? f->n / 2 : f->n};
    if (f->rows == 0)
        return MX_OK;
    bool chirps = !factorize(&p, p.length);
    if (chirps) {
        int64_t m = mx_round_up(2 * p.length - 1, 16);
        while (!factorize(&p, m) || p.factor[p.passes - 1] > 5)
            m += 16;
    }
    p.room = mx_round_up(mx_max(p.inner_length, f->n / 2 + 1) * p.lanes, 16);
    int64_t blocks = mx_ceil_div(f->rows, p.lanes), threads = mx_min(omp_get_max_threads(), blocks);
    if (f->rows * f->n < MX_PARALLEL_FROM)
        threads = 1;
    int64_t tables = 4 * p.inner_length + 2 * p.length + (halves ? 2 * (f->n / 2 + 1) : 0);
    int64_t bytes = (tables + 4 * threads * p.room) * (int64_t)real_bytes(&p) + 8 * 64;
    char *memory, *next;
    MX_TRY(mx_pool_alloc(bytes, (void **)&memory));
    next = memory;
    cut(&p, &next, p.inner_length, p.turn);
    make_turns(&p, p.turn, p.inner_length, p.inner_length);
    if (halves) {
        cut(&p, &next, f->n / 2 + 1, p.half);
        make_turns(&p, p.half, f->n, f->n / 2 + 1);
    }
    if (chirps) {
        cut(&p, &next, p.length, p.chirp);
        cut(&p, &next, p.inner_length, p.answer);
        make_chirp(&p, next);
    }
    const mx_fft_paths *paths = mx_kernels_current()->fft;
    void (*block)(const mx_fft_plan *, int64_t, void *) = f->dtype == MX_F32 ? paths->f32 : paths->f64;
#pragma omp parallel for schedule(static) num_threads((int)threads) if (threads > 1)
    for (int64_t i = 0; i < blocks; i++)
        block(&p, i * p.lanes, next + omp_get_thread_num() * 4 * p.room * (int64_t)real_bytes(&p));
    mx_pool_free(memory, bytes);
    return MX_OK;
}
