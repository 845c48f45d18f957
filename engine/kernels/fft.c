#include "kernels/fft.h"

#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

#include <math.h>
#include <omp.h>

enum { OFF_PAGES = 16 }; /* reals behind each row of a matrix: without them, columns would share a few cache sets */

static int64_t real_bytes(const mx_fft_plan *p) { return (int64_t)mx_dtype_bytes(p->call.dtype); }
static int64_t lanes_of(const mx_fft_plan *p) { return 64 / real_bytes(p); }

static void put(const mx_fft_plan *p, void *table, int64_t i, double value)
{
    if (p->call.dtype == MX_F32)
        ((float *)table)[i] = (float)value;
    else
        ((double *)table)[i] = value;
}

/* e^(-2 pi i k / n), as the product of two tabulated ones: of the upper bits of k, and of the lower. */
typedef struct circle {
    int64_t n;
    int bits;
    double (*low)[2], (*high)[2];
} circle;

static int low_bits(int64_t n)
{
    int bits = 1;
    while ((int64_t)1 << (2 * bits) < n)
        bits++;
    return bits;
}

static int64_t circle_doubles(int64_t n)
{
    int bits = low_bits(n);
    return 2 * (((int64_t)1 << bits) + (n >> bits) + 1);
}

static circle make_circle(int64_t n, double *room)
{
    int bits = low_bits(n);
    circle c = {n, bits, (double(*)[2])room, (double(*)[2])room + ((int64_t)1 << bits)};
    for (int64_t k = 0; k < (int64_t)1 << bits; k++) {
        c.low[k][0] = cos(2 * M_PI * (double)k / (double)n);
        c.low[k][1] = -sin(2 * M_PI * (double)k / (double)n);
    }
    for (int64_t k = 0; k <= n >> bits; k++) {
        double turns = 2 * M_PI * (double)(k << bits) / (double)n;
        c.high[k][0] = cos(turns);
        c.high[k][1] = -sin(turns);
    }
    return c;
}

/* 0 <= k < c->n */
static void put_turn(const mx_fft_plan *p, void *const table[2], int64_t i, const circle *c, int64_t k)
{
    const double *low = c->low[k & (((int64_t)1 << c->bits) - 1)], *high = c->high[k >> c->bits];
    put(p, table[0], i, high[0] * low[0] - high[1] * low[1]);
    put(p, table[1], i, high[0] * low[1] + high[1] * low[0]);
}

/* Splits a length into factors, 2 last of those of 4 and 2, then ascending; false if one is too large. */
static bool factorize(mx_fft_steps *s, int64_t n)
{
    s->length = n;
    s->passes = 0;
    for (int r = 4; n > 1 && r <= MX_FFT_LARGEST; r = r == 4 ? 2 : r == 2 ? 3 : r + 2)
        for (; n % r == 0; n /= r)
            s->factor[s->passes++] = r;
    return n == 1;
}

/* The matrix of a long row: of its divisors as rows, those with the fewest elements in vectors that are not full. */
static void plan_matrix(mx_fft_plan *p)
{
    int64_t n = p->inner_length, lanes = lanes_of(p), rows = 1, least = INT64_MAX;
    for (int64_t d = (int64_t)sqrt((double)n); d > 1; d--) {
        int64_t other = n / d, computed = mx_round_up(d, lanes) * other + d * mx_round_up(other, lanes);
        if (d * other == n && computed < least) {
            rows = d;
            least = computed;
        }
    }
    factorize(&p->steps[0], rows);
    factorize(&p->steps[1], n / rows);
    p->side = mx_max(rows, n / rows);
    p->pitch = mx_round_up(n / rows, OFF_PAGES) + OFF_PAGES;
}

/* The lengths of everything but the tables; whether they are Bluestein's. */
static bool plan_lengths(mx_fft_plan *p)
{
    const mx_fft *f = &p->call;
    bool halves = f->kind != MX_FFT_COMPLEX && f->n % 2 == 0;
    p->length = p->inner_length = halves ? f->n / 2 : f->n;
    bool chirps = !factorize(&p->steps[0], p->length);
    if (chirps) {
        int64_t m = mx_round_up(2 * p->length - 1, 16);
        while (!factorize(&p->steps[0], m) || p->steps[0].factor[p->steps[0].passes - 1] > 5)
            m += 16;
        p->inner_length = m;
    }
    int64_t most = mx_max(p->inner_length, f->n / 2 + 1);
    if (p->inner_length <= MX_FFT_SHORT) {
        p->lanes = lanes_of(p);
        p->room = most * p->lanes;
    } else {
        p->lanes = 1;
        plan_matrix(p);
        p->room = mx_round_up(mx_max(most, p->steps[0].length * p->pitch), OFF_PAGES);
    }
    return chirps;
}

/* Cuts two arrays of n reals from *next. */
static void cut(const mx_fft_plan *p, char **next, int64_t n, void *table[2])
{
    for (int i = 0; i < 2; i++) {
        table[i] = *next;
        *next += mx_round_up(n * real_bytes(p), 64);
    }
}

/* c: of inner_length */
static void make_steps(mx_fft_plan *p, char **next, const circle *c)
{
    int64_t n = p->inner_length, lanes = lanes_of(p);
    for (int i = 0; i < (p->lanes == 1 ? 2 : 1); i++) {
        mx_fft_steps *s = &p->steps[i];
        cut(p, next, s->length, s->turn);
        for (int64_t k = 0; k < s->length; k++)
            put_turn(p, s->turn, k, c, k * (n / s->length));
    }
    if (p->lanes > 1)
        return;
    int64_t rows = p->steps[0].length, groups = mx_ceil_div(p->steps[1].length, lanes);
    cut(p, next, rows * lanes, p->column);
    cut(p, next, rows * groups, p->group);
    for (int64_t k = 0; k < rows; k++) {
        for (int64_t l = 0; l < lanes; l++)
            put_turn(p, p->column, k * lanes + l, c, k * l % n);
        for (int64_t g = 0; g < groups; g++)
            put_turn(p, p->group, g * rows + k, c, k * g * lanes % n);
    }
}

/* What a team and each of its threads have to work in. */
static int64_t work_reals(const mx_fft_plan *p) { return 4 * p->room; }
static int64_t own_reals(const mx_fft_plan *p) { return p->lanes == 1 ? 4 * lanes_of(p) * p->side : 0; }

static void call_path(const mx_fft_plan *p, int64_t first, const mx_fft_team *team)
{
    const mx_fft_paths *paths = mx_kernels_current()->fft;
    (p->call.dtype == MX_F32 ? paths->f32 : paths->f64)(p, first, team);
}

/* Bluestein: kt = (k^2 + t^2 - (k - t)^2) / 2 makes the sums a convolution with the conjugate of the chirp, which steps
 * of another length can do. c: of twice the length. */
static void make_chirp(mx_fft_plan *p, char **next, const circle *c, const mx_fft_team *team)
{
    int64_t n = p->length, m = p->inner_length;
    cut(p, next, n, p->chirp);
    cut(p, next, m, p->answer);
    for (int64_t k = 0; k < n; k++)
        put_turn(p, p->chirp, k, c, k * k % (2 * n));
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
    inner.length = m;
    inner.chirp[0] = NULL;
    for (int64_t k = 0; k < m; k++) {
        int64_t from = mx_min(k, m - k);
        if (from < n) {
            put_turn(p, p->answer, k, c, (2 * n - from * from % (2 * n)) % (2 * n));
        } else {
            put(p, p->answer[0], k, 0);
            put(p, p->answer[1], k, 0);
        }
    }
    call_path(&inner, 0, team);
}

/* All rows, on so many threads: each has blocks of its own, or a part of every row. */
static void run_rows(const mx_fft_plan *p, int64_t blocks, int threads, bool together, char *work, char *own)
{
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int me = omp_get_thread_num();
        int64_t mine = together ? 0 : me * work_reals(p);
        mx_fft_team team = {together ? me : 0, together ? omp_get_num_threads() : 1, work + mine * real_bytes(p),
                            own + me * own_reals(p) * real_bytes(p)};
        if (together) {
            for (int64_t i = 0; i < blocks; i++)
                call_path(p, i, &team);
        } else {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < blocks; i++)
                call_path(p, i * p->lanes, &team);
        }
    }
}

mx_status mx_fft_run(const mx_fft *f)
{
    mx_fft_plan p = {.call = *f};
    if (f->rows == 0)
        return MX_OK;
    bool chirps = plan_lengths(&p), halves = p.length < f->n;
    int64_t blocks = mx_ceil_div(f->rows, p.lanes), half = f->n / 2 + 1;
    int64_t threads = f->rows * f->n < MX_PARALLEL_FROM ? 1 : omp_get_max_threads();
    bool together = p.lanes == 1 && blocks < 2 * threads;
    threads = together ? threads : mx_min(threads, blocks);

    int64_t tables = 2 * p.inner_length + (p.lanes == 1 ? 4 * p.side + 4 * lanes_of(&p) * p.side : 0) +
                     (halves ? 2 * half : 0) + (chirps ? 2 * (p.length + p.inner_length) : 0);
    int64_t spaces = (together ? 1 : threads) * work_reals(&p) + threads * own_reals(&p);
    int64_t circle_bytes = mx_round_up(8 * circle_doubles(mx_max(p.inner_length, mx_max(f->n, 2 * p.length))), 64);
    int64_t bytes = circle_bytes + (spaces + tables) * real_bytes(&p) + 2 * 7 * 64; /* 7 pairs of tables */
    char *memory;
    MX_TRY(mx_pool_alloc(bytes, (void **)&memory));
    char *work = memory + circle_bytes, *own = work + (spaces - threads * own_reals(&p)) * real_bytes(&p);
    char *next = work + spaces * real_bytes(&p);

    circle c = make_circle(p.inner_length, (double *)memory);
    make_steps(&p, &next, &c);
    if (halves) {
        c = make_circle(f->n, (double *)memory);
        cut(&p, &next, half, p.half);
#pragma omp parallel for schedule(static) num_threads((int)threads) if (threads > 1)
        for (int64_t k = 0; k < half; k++)
            put_turn(&p, p.half, k, &c, k);
    }
    if (chirps) {
        c = make_circle(2 * p.length, (double *)memory);
        make_chirp(&p, &next, &c, &(mx_fft_team){0, 1, work, own});
    }
    run_rows(&p, blocks, (int)threads, together, work, own);
    mx_pool_free(memory, bytes);
    return MX_OK;
}
