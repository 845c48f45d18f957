/* The loops of fft.h, in plain C and in vectors of GCC's, which each path compiles for itself. It includes this file
 * twice, with REAL and FFT(name): the type, and names that end with it.
 *
 * Steps work on LANES transforms at once: element k of them is a vector of real parts, then one of imaginary parts, and
 * APART reals further on comes element k + 1. Rows of more than MX_FFT_SHORT elements are two arrays, one for each
 * part: there, elements are 1 apart. */
#include "kernels/context.h"
#include "kernels/fft.h"
#include "kernels/inline.h"
#include "kernels/move.h"

#include <string.h>

#define LANES ((int64_t)(64 / sizeof(REAL)))
#define APART (2 * LANES)
#define TABLE(t) ((const REAL *const *)(t))

typedef struct FFT(complex) {
    REAL *re, *im;
} FFT(complex);

static FFT(complex) FFT(vectors)(void *from) { return (FFT(complex)){from, (REAL *)from + LANES}; }

/* ---- steps: Stockham's order, which needs no permutation ----
 *
 * A step of radix r splits a transform of r m elements into r transforms of m elements. Blocks of `stride` neighbours
 * go through the same arithmetic. For each p < m, blocks a[j] at p + m j become blocks b[k] at r p + k, with j, k < r:
 * b[k] = w^(p k) sum over j of a[j] e^(-2 pi i jk / r). */

typedef REAL FFT(vector) __attribute__((vector_size(64), aligned(sizeof(REAL)), may_alias));
typedef struct FFT(pair) {
    FFT(vector) re, im;
} FFT(pair);

MX_INLINE FFT(pair) FFT(get)(const REAL *z)
{
    return (FFT(pair)){*(const FFT(vector) *)z, *(const FFT(vector) *)(z + LANES)};
}
MX_INLINE void FFT(set)(REAL *z, FFT(pair) x)
{
    *(FFT(vector) *)z = x.re;
    *(FFT(vector) *)(z + LANES) = x.im;
}
MX_INLINE FFT(pair) FFT(plus)(FFT(pair) x, FFT(pair) y) { return (FFT(pair)){x.re + y.re, x.im + y.im}; }
MX_INLINE FFT(pair) FFT(minus)(FFT(pair) x, FFT(pair) y) { return (FFT(pair)){x.re - y.re, x.im - y.im}; }
MX_INLINE FFT(pair) FFT(times_i)(FFT(pair) x) { return (FFT(pair)){-x.im, x.re}; }
MX_INLINE FFT(pair) FFT(turned)(FFT(pair) x, REAL c, REAL s)
{
    return (FFT(pair)){x.re * c - x.im * s, x.re * s + x.im * c};
}

MX_INLINE void FFT(step2)(const REAL *a, int64_t apart, REAL *b, int64_t stride, REAL c, REAL s)
{
    for (int64_t q = 0; q < stride; q += APART) {
        FFT(pair) x = FFT(get)(a + q), y = FFT(get)(a + q + apart);
        FFT(set)(b + q, FFT(plus)(x, y));
        FFT(set)(b + q + stride, FFT(turned)(FFT(minus)(x, y), c, s));
    }
}

/* w: cosine and sine of p, 2 p and 3 p turns. */
MX_INLINE void FFT(step4)(const REAL *a, int64_t apart, REAL *b, int64_t stride, const REAL w[3][2])
{
    for (int64_t q = 0; q < stride; q += APART) {
        FFT(pair) x0 = FFT(get)(a + q), x1 = FFT(get)(a + q + apart);
        FFT(pair) x2 = FFT(get)(a + q + 2 * apart), x3 = FFT(get)(a + q + 3 * apart);
        FFT(pair) sum02 = FFT(plus)(x0, x2), sum13 = FFT(plus)(x1, x3);
        FFT(pair) off02 = FFT(minus)(x0, x2), off13 = FFT(times_i)(FFT(minus)(x1, x3));
        FFT(set)(b + q, FFT(plus)(sum02, sum13));
        FFT(set)(b + q + stride, FFT(turned)(FFT(minus)(off02, off13), w[0][0], w[0][1]));
        FFT(set)(b + q + 2 * stride, FFT(turned)(FFT(minus)(sum02, sum13), w[1][0], w[1][1]));
        FFT(set)(b + q + 3 * stride, FFT(turned)(FFT(plus)(off02, off13), w[2][0], w[2][1]));
    }
}

/* An odd radix. a[j] and a[r - j] share their products: with their sums and differences, b[i] and b[r - i] are plus
 * and minus i times the other. root: elements of the tables that make 1 / r of a turn; p: the turns of b[1]. */
MX_INLINE void FFT(step_odd)(const int r, const REAL *a, int64_t apart, REAL *b, int64_t stride,
                             const REAL *const *turn, int64_t root, int64_t p)
{
    enum { HALF = MX_FFT_LARGEST / 2 + 1 };
    FFT(pair) sum[HALF], off[HALF];
    for (int64_t q = 0; q < stride; q += APART) {
        FFT(pair) first = FFT(get)(a + q), total = first;
        for (int j = 1; j <= r / 2; j++) {
            FFT(pair) x = FFT(get)(a + q + j * apart), y = FFT(get)(a + q + (r - j) * apart);
            sum[j] = FFT(plus)(x, y);
            off[j] = FFT(times_i)(FFT(minus)(x, y));
            total = FFT(plus)(total, sum[j]);
        }
        FFT(set)(b + q, total);
        for (int i = 1; i <= r / 2; i++) {
            FFT(pair) even = first, odd = {{0}, {0}};
            for (int j = 1; j <= r / 2; j++) {
                REAL c = turn[0][i * j % r * root], s = turn[1][i * j % r * root];
                even = FFT(plus)(even, (FFT(pair)){sum[j].re * c, sum[j].im * c});
                odd = FFT(plus)(odd, (FFT(pair)){off[j].re * s, off[j].im * s});
            }
            FFT(set)(b + q + i * stride, FFT(turned)(FFT(plus)(even, odd), turn[0][p * i], turn[1][p * i]));
            FFT(set)
            (b + q + (r - i) * stride, FFT(turned)(FFT(minus)(even, odd), turn[0][p * (r - i)], turn[1][p * (r - i)]));
        }
    }
}

/* Transforms of s->length elements, LANES at once: in *a, with *b as room. They may be exchanged. */
static void FFT(steps)(const mx_fft_steps *s, FFT(complex) * a, FFT(complex) * b)
{
    const REAL *const *turn = TABLE(s->turn);
    int64_t done = 1; /* the product of the factors so far */
    for (int pass = 0; pass < s->passes; pass++) {
        int r = s->factor[pass];
        int64_t m = s->length / done / r, stride = done * APART, apart = m * stride, root = s->length / r;
        for (int64_t k = 0; k < m; k++) {
            const REAL *from = a->re + k * stride;
            REAL *to = b->re + k * r * stride;
            int64_t t = k * done;
            if (r == 2) {
                FFT(step2)(from, apart, to, stride, turn[0][t], turn[1][t]);
            } else if (r == 4) {
                const REAL w[3][2] = {
                    {turn[0][t], turn[1][t]}, {turn[0][2 * t], turn[1][2 * t]}, {turn[0][3 * t], turn[1][3 * t]}};
                FFT(step4)(from, apart, to, stride, w);
            } else if (r == 3) {
                FFT(step_odd)(3, from, apart, to, stride, turn, root, t);
            } else if (r == 5) {
                FFT(step_odd)(5, from, apart, to, stride, turn, root, t);
            } else {
                FFT(step_odd)(r, from, apart, to, stride, turn, root, t);
            }
        }
        FFT(complex) other = *a;
        *a = *b;
        *b = other;
        done *= r;
    }
}

/* ---- long rows ---- */

/* All threads of a row have come to this point. */
static void FFT(meet)(const mx_fft_team *t)
{
    if (t->size > 1) {
#pragma omp barrier
    }
}

/* The first of n elements that this thread, or the next one, has. */
static int64_t FFT(share)(const mx_fft_team *t, int64_t n, int next)
{
    return t->me + next == t->size ? n : n * (t->me + next) / t->size / LANES * LANES;
}

/* The first `width` reals of a vector, to or from a row; the others of `to` are 0. */
MX_INLINE void FFT(from_row)(REAL *to, const REAL *row, int64_t width)
{
    if (width == LANES) {
        *(FFT(vector) *)to = *(const FFT(vector) *)row;
        return;
    }
    for (int64_t l = 0; l < LANES; l++)
        to[l] = l < width ? row[l] : 0;
}
MX_INLINE void FFT(to_row)(REAL *row, FFT(vector) x, int64_t width)
{
    if (width == LANES) {
        *(FFT(vector) *)row = x;
        return;
    }
    for (int64_t l = 0; l < width; l++)
        row[l] = x[l];
}

/* What a row prefetches while it is transformed: the next row and the places of its own results, in two arrays each,
 * which may be NULL. Rows of 4,096 in more memory than the caches have take a quarter less time by it. */
typedef struct FFT(ahead) {
    const REAL *in[2];
    REAL *out[2];
    int64_t ins, outs; /* elements of each */
} FFT(ahead);

/* Part i of n. Inline: GCC 12 takes a function that only prefetches for one without effect, and leaves out its calls.
 */
MX_INLINE void FFT(ask)(const FFT(ahead) * a, int64_t i, int64_t n)
{
    for (int part = 0; part < 2; part++) {
        for (int64_t k = a->ins * i / n / LANES; a->in[part] && k < a->ins * (i + 1) / n / LANES; k++)
            __builtin_prefetch(a->in[part] + k * LANES, 0, 2);
        for (int64_t k = a->outs * i / n / LANES; a->out[part] && k < a->outs * (i + 1) / n / LANES; k++)
            __builtin_prefetch(a->out[part] + k * LANES, 1, 2);
    }
}

/* The transform of z, a row of a b elements, as a matrix of a rows and b columns (Gentleman and Sande 1966): those of
 * the columns, times w^(kt) for row k and column t, then those of the rows. Element q of row k of these is number
 * k + a q. LANES columns or rows are done at once, in memory of the thread's own. turned: room for the matrix. */
static void FFT(matrix)(const mx_fft_plan *p, FFT(complex) z, FFT(complex) turned, const FFT(ahead) * ahead,
                        const mx_fft_team *team)
{
    const mx_move_paths *move = mx_kernels_current()->moves;
    int64_t rows = p->steps[0].length, columns = p->steps[1].length, pitch = p->pitch;
    const REAL *column_r = TABLE(p->column)[0], *column_i = TABLE(p->column)[1];
    const REAL *group_r = TABLE(p->group)[0], *group_i = TABLE(p->group)[1];
    int64_t groups = mx_ceil_div(columns, LANES), parts = groups + mx_ceil_div(rows, LANES);
    REAL *own = (REAL *)team->own, *other = own + APART * p->side;
    for (int64_t group = team->me; group < groups; group += team->size) {
        FFT(complex) c = FFT(vectors)(own), d = FFT(vectors)(other);
        int64_t first = group * LANES, width = mx_min(LANES, columns - first);
        for (int64_t k = 0; k < rows; k++) {
            FFT(from_row)(c.re + k * APART, z.re + k * columns + first, width);
            FFT(from_row)(c.im + k * APART, z.im + k * columns + first, width);
        }
        FFT(ask)(ahead, group, parts);
        FFT(steps)(&p->steps[0], &c, &d);
        for (int64_t k = 0; k < rows; k++) {
            FFT(vector) wr = *(const FFT(vector) *)(column_r + k * LANES);
            FFT(vector) wi = *(const FFT(vector) *)(column_i + k * LANES);
            FFT(pair) w = FFT(turned)((FFT(pair)){wr, wi}, group_r[group * rows + k], group_i[group * rows + k]);
            FFT(pair) x = FFT(get)(c.re + k * APART);
            FFT(to_row)(turned.re + k * pitch + first, x.re * w.re - x.im * w.im, width);
            FFT(to_row)(turned.im + k * pitch + first, x.re * w.im + x.im * w.re, width);
        }
    }
    FFT(meet)(team);
    for (int64_t first = team->me * LANES; first < rows; first += team->size * LANES) {
        FFT(complex) c = FFT(vectors)(own), d = FFT(vectors)(other);
        int64_t width = mx_min(LANES, rows - first);
        if (width < LANES)
            memset(own, 0, (size_t)(APART * columns) * sizeof(REAL));
        move->transpose(c.re, APART, turned.re + first * pitch, pitch, width, columns, sizeof(REAL), false);
        move->transpose(c.im, APART, turned.im + first * pitch, pitch, width, columns, sizeof(REAL), false);
        FFT(ask)(ahead, groups + first / LANES, parts);
        FFT(steps)(&p->steps[1], &c, &d);
        for (int64_t q = 0; q < columns; q++) {
            FFT(pair) x = FFT(get)(c.re + q * APART);
            FFT(to_row)(z.re + q * rows + first, x.re, width);
            FFT(to_row)(z.im + q * rows + first, x.im, width);
        }
    }
    FFT(meet)(team);
}

/* ---- rows of any length ----
 *
 * `apart` and `lanes` are constants in each call: APART and LANES of short rows, 1 and 1 of a long one. */

/* z times the table, for n elements; those up to `end` become 0. conjugate: of the product; conjugated: z is. */
MX_INLINE void FFT(multiply)(FFT(complex) z, const REAL *const *by, int64_t n, int64_t end, const bool conjugated,
                             const bool conjugate, const int64_t apart, const int64_t lanes, const mx_fft_team *team)
{
    const REAL *restrict c = by[0], *restrict s = by[1];
    REAL *restrict zr = z.re, *restrict zi = z.im;
    int64_t stop = FFT(share)(team, end, 1);
    for (int64_t k = FFT(share)(team, end, 0); k < mx_min(n, stop); k++) {
#pragma GCC ivdep
        for (int64_t l = k * apart; l < k * apart + lanes; l++) {
            REAL re = zr[l], im = conjugated ? -zi[l] : zi[l], y = re * s[k] + im * c[k];
            zr[l] = re * c[k] - im * s[k];
            zi[l] = conjugate ? -y : y;
        }
    }
    for (int64_t k = mx_max(n, FFT(share)(team, end, 0)); k < stop; k++)
        for (int64_t l = k * apart; l < k * apart + lanes; l++)
            zr[l] = zi[l] = 0;
    FFT(meet)(team);
}

/* ahead: of long rows only */
static void FFT(inner)(const mx_fft_plan *p, FFT(complex) * a, FFT(complex) * b, const bool is_long,
                       const FFT(ahead) * ahead, const mx_fft_team *team)
{
    if (is_long)
        FFT(matrix)(p, *a, *b, ahead, team);
    else
        FFT(steps)(&p->steps[0], a, b);
}

/* The transform of `length` elements, without scale: in *a, with *b as room. They may be exchanged. The inverse one is
 * the conjugate of the transform of the conjugate. */
MX_INLINE void FFT(transform)(const mx_fft_plan *p, FFT(complex) * a, FFT(complex) * b, const bool is_long,
                              const FFT(ahead) * ahead, const mx_fft_team *team)
{
    const int64_t apart = is_long ? 1 : APART, lanes = is_long ? 1 : LANES;
    int64_t n = p->length, m = p->inner_length;
    if (!p->chirp[0]) {
        FFT(inner)(p, a, b, is_long, ahead, team);
        return;
    }
    FFT(multiply)(*a, TABLE(p->chirp), n, m, false, false, apart, lanes, team);
    FFT(inner)(p, a, b, is_long, &(FFT(ahead)){{0}, {0}, 0, 0}, team);
    FFT(multiply)(*a, TABLE(p->answer), m, m, false, true, apart, lanes, team);
    FFT(inner)(p, a, b, is_long, ahead, team);
    FFT(multiply)(*a, TABLE(p->chirp), n, n, true, false, apart, lanes, team);
}

/* `count` neighbouring elements of each of some rows of x, `pitch` apart, become lanes of elements of z, `apart` apart,
 * of which there are n; what a row lacks is 0. x may be NULL. */
static void FFT(take)(const REAL *x, int64_t pitch, int64_t count, int64_t rows, int64_t n, REAL *z, int64_t apart)
{
    count = x ? mx_min(count, n) : 0;
    if (rows < LANES || count < n)
        for (int64_t k = rows < LANES ? 0 : count; k < n; k++)
            memset(z + k * apart, 0, (size_t)LANES * sizeof(REAL));
    if (count > 0)
        mx_kernels_current()->moves->transpose(z, apart, x, pitch, rows, count, sizeof(REAL), false);
}

/* The other way; elements of x beyond n become 0. */
static void FFT(give)(const REAL *z, int64_t apart, int64_t n, int64_t rows, REAL *x, int64_t pitch, int64_t count)
{
    int64_t have = mx_min(n, count);
    if (have > 0)
        mx_kernels_current()->moves->transpose(x, pitch, z, apart, have, rows, sizeof(REAL), false);
    for (int64_t l = 0; l < rows && have < count; l++)
        memset(x + l * pitch + have, 0, (size_t)(count - have) * sizeof(REAL));
}

/* Elements first .. end - 1 of a row, of which `have` exist; the others are 0. x may be NULL. */
static void FFT(copy)(const REAL *restrict x, int64_t have, REAL factor, int64_t first, int64_t end, REAL *restrict y)
{
    int64_t count = x ? mx_max(first, mx_min(end, have)) : first;
    for (int64_t k = first; k < count; k++)
        y[k] = x[k] * factor;
    memset(y + count, 0, (size_t)(end - count) * sizeof(REAL));
}

static const REAL *FFT(row)(const void *x, int64_t elements) { return x ? (const REAL *)x + elements : NULL; }

/* z times a factor for each part, for n elements of all lanes. */
static void FFT(scaled)(REAL *z, int64_t n, REAL re, REAL im)
{
    for (int64_t k = 0; k < n; k++, z += APART) {
        FFT(pair) x = FFT(get)(z);
        FFT(set)(z, (FFT(pair)){x.re * re, x.im * im});
    }
}

/* Inverse transforms have real and imaginary part exchanged, before and after. */
MX_INLINE void FFT(complex_rows)(const mx_fft_plan *p, int64_t first, int64_t rows, FFT(complex) a, FFT(complex) b,
                                 const bool is_long, const mx_fft_team *team)
{
    const mx_fft *f = &p->call;
    int64_t n = f->n, from = FFT(share)(team, n, 0), to = FFT(share)(team, n, 1), at = first * n;
    const REAL *xr = FFT(row)(f->inverse ? f->x_im : f->x_re, at), *xi = FFT(row)(f->inverse ? f->x_re : f->x_im, at);
    REAL *yr = (REAL *)(f->inverse ? f->im : f->re) + at, *yi = (REAL *)(f->inverse ? f->re : f->im) + at;
    REAL scale = (REAL)f->scale;
    bool more = first + 1 < f->rows;
    if (is_long) {
        FFT(copy)(xr, n, 1, from, to, a.re);
        FFT(copy)(xi, n, 1, from, to, a.im);
        FFT(meet)(team);
        FFT(ahead) ahead = {{more && xr ? xr + n : NULL, more && xi ? xi + n : NULL}, {yr, yi}, n, n};
        FFT(transform)(p, &a, &b, is_long, &ahead, team);
        FFT(copy)(a.re, n, scale, from, to, yr);
        FFT(copy)(a.im, n, scale, from, to, yi);
    } else {
        FFT(take)(xr, n, n, rows, n, a.re, APART);
        FFT(take)(xi, n, n, rows, n, a.im, APART);
        FFT(transform)(p, &a, &b, is_long, NULL, team);
        FFT(scaled)(a.re, n, scale, scale);
        FFT(give)(a.re, APART, n, rows, yr, n, n);
        FFT(give)(a.im, APART, n, rows, yi, n, n);
    }
}

/* Real rows are one complex transform: of half the length if n is even, with the odd elements as imaginary parts. Its
 * result z[k] holds those of the even and of the odd elements, which differ in symmetry: E = (z[k] + z*[h - k]) / 2
 * and O = (z[k] - z*[h - k]) / 2i. Then Y[k] = E + w^k O. This makes Y of the places z[one] and z[other], times 2 half.
 */
MX_INLINE void FFT(part)(FFT(complex) z, int64_t one, int64_t other, REAL c, REAL s, REAL half, REAL *re, REAL *im)
{
    REAL er = (z.re[one] + z.re[other]) * half, ei = (z.im[one] - z.im[other]) * half;
    REAL or = (z.im[one] + z.im[other]) * half, oi = (z.re[other] - z.re[one]) * half;
    *re = er + (or *c - oi * s);
    *im = ei + (or *s + oi * c);
}

/* The frequencies first .. end - 1 of y from z. */
MX_INLINE void FFT(frequencies)(const mx_fft_plan *p, FFT(complex) z, int64_t first, int64_t end, REAL *restrict re,
                                REAL *restrict im, const int64_t apart, const int64_t lanes)
{
    const mx_fft *f = &p->call;
    int64_t h = p->length;
    REAL scale = (REAL)(f->scale * f->inner), alone = (REAL)f->scale;
    if (h == f->n) {
        for (int64_t k = first; k < end; k++) {
            for (int64_t l = k * apart; l < k * apart + lanes; l++) {
                re[l] = z.re[l] * (k == 0 ? alone : scale);
                im[l] = k == 0 ? 0 : z.im[l] * scale;
            }
        }
        return;
    }
    const REAL *restrict c = TABLE(p->half)[0], *restrict s = TABLE(p->half)[1];
    for (int64_t k = mx_max(first, 1); k < mx_min(end, h); k++)
        for (int64_t l = 0; l < lanes; l++)
            FFT(part)
    (z, k * apart + l, (h - k) * apart + l, c[k], s[k], scale / 2, re + k * apart + l, im + k * apart + l);
    for (int64_t k = 0; k <= h; k += h) { /* the two that are real */
        for (int64_t l = 0; l < lanes && first <= k && k < end; l++) {
            FFT(part)(z, l, l, c[k], s[k], alone / 2, re + k * apart + l, im + k * apart + l);
            im[k * apart + l] = 0;
        }
    }
}

MX_INLINE void FFT(real_rows)(const mx_fft_plan *p, int64_t first, int64_t rows, FFT(complex) a, FFT(complex) b,
                              const bool is_long, const mx_fft_team *team)
{
    const mx_fft *f = &p->call;
    int64_t h = p->length, size = f->size, m = f->frequencies;
    const REAL *restrict x = FFT(row)(f->x_re, first * size);
    REAL *re = (REAL *)f->re + first * m, *im = (REAL *)f->im + first * m;
    if (!is_long) {
        FFT(take)(x, size, size, rows, f->n, a.re, h == f->n ? APART : LANES);
        if (h == f->n)
            FFT(take)(NULL, size, 0, rows, h, a.im, APART);
        FFT(transform)(p, &a, &b, is_long, NULL, team);
        FFT(frequencies)(p, a, 0, m, b.re, b.im, APART, LANES);
        FFT(give)(b.re, APART, m, rows, re, m, m);
        FFT(give)(b.im, APART, m, rows, im, m, m);
        return;
    }
    int64_t from = FFT(share)(team, h, 0), to = FFT(share)(team, h, 1);
    if (h == f->n) {
        FFT(copy)(x, size, 1, from, to, a.re);
        FFT(copy)(NULL, 0, 1, from, to, a.im);
    } else {
        REAL *restrict even = a.re, *restrict odd = a.im;
        int64_t pairs = mx_max(from, mx_min(to, size / 2));
        for (int64_t k = from; k < pairs; k++) {
            even[k] = x[2 * k];
            odd[k] = x[2 * k + 1];
        }
        for (int64_t k = pairs; k < to; k++) {
            even[k] = 2 * k < size ? x[2 * k] : 0;
            odd[k] = 0;
        }
    }
    FFT(meet)(team);
    FFT(ahead) ahead = {{first + 1 < f->rows ? x + size : NULL, NULL}, {re, im}, size, m};
    FFT(transform)(p, &a, &b, is_long, &ahead, team);
    FFT(frequencies)(p, a, FFT(share)(team, m, 0), FFT(share)(team, m, 1), re, im, 1, 1);
}

/* The same backwards: z[first .. end - 1] is the conjugate of E + i O, with E = Y[k] + Y*[h - k] and
 * O = (Y[k] - Y*[h - k]) / w^k; for an odd n, of all of Y, whose second half is the conjugate of the first. */
MX_INLINE void FFT(join)(const mx_fft_plan *p, FFT(complex) y, int64_t first, int64_t end, FFT(complex) z,
                         const int64_t apart, const int64_t lanes)
{
    int64_t h = p->length, half = p->call.n / 2 + 1;
    REAL *restrict zr = z.re, *restrict zi = z.im;
    const REAL *restrict yr = y.re, *restrict yi = y.im;
    if (h == p->call.n) {
        for (int64_t k = first; k < end; k++) {
            for (int64_t l = 0; l < lanes; l++) {
                zr[k * apart + l] = yr[(k < half ? k : h - k) * apart + l];
                zi[k * apart + l] = k < half ? -yi[k * apart + l] : yi[(h - k) * apart + l];
            }
        }
        return;
    }
    const REAL *restrict c = TABLE(p->half)[0], *restrict s = TABLE(p->half)[1];
#pragma GCC ivdep
    for (int64_t k = first; k < end; k++) {
#pragma GCC ivdep
        for (int64_t l = 0; l < lanes; l++) {
            int64_t one = k * apart + l, other = (h - k) * apart + l;
            REAL or = yr[one] - yr[other], oi = yi[one] + yi[other];
            zr[one] = yr[one] + yr[other] - (oi * c[k] - or *s[k]);
            zi[one] = yi[other] - yi[one] - (or *c[k] + oi * s[k]);
        }
    }
}

/* y is half of `inner` times re and im, or all of re where a frequency is alone. */
MX_INLINE void FFT(back_rows)(const mx_fft_plan *p, int64_t first, int64_t rows, FFT(complex) a, FFT(complex) b,
                              const bool is_long, const mx_fft_team *team)
{
    const mx_fft *f = &p->call;
    int64_t h = p->length, size = f->size, m = f->frequencies, half = f->n / 2 + 1, last = f->n / 2;
    bool even = h < f->n, more = first + 1 < f->rows;
    const REAL *re = FFT(row)(f->re, first * m), *im = FFT(row)(f->im, first * m);
    REAL *restrict x = (REAL *)f->x + first * size;
    REAL weight = (REAL)(f->inner / 2), scale = (REAL)f->scale;
    int64_t lanes = is_long ? 1 : LANES, apart = is_long ? 1 : APART;
    int64_t from = FFT(share)(team, half, 0), to = FFT(share)(team, half, 1);
    if (is_long) {
        FFT(copy)(re, m, weight, from, to, b.re);
        FFT(copy)(im, m, weight, from, to, b.im);
    } else {
        FFT(take)(re, m, m, rows, half, b.re, APART);
        FFT(take)(im, m, m, rows, half, b.im, APART);
        for (int64_t k = 1; k < (even ? last : half); k++)
            for (int64_t i = k * APART; i < (k + 1) * APART; i++)
                b.re[i] *= weight;
    }
    for (int64_t k = 0; k <= last; k += mx_max(1, last)) { /* those that are alone */
        for (int64_t l = 0; l < lanes && from <= k && k < to && (k == 0 || even); l++) {
            if (is_long)
                b.re[k] = k < m ? re[k] : 0;
            b.im[k * apart + l] = 0;
        }
    }
    FFT(meet)(team);
    from = FFT(share)(team, h, 0), to = FFT(share)(team, h, 1);
    if (is_long)
        FFT(join)(p, b, from, to, a, 1, 1);
    else
        FFT(join)(p, b, 0, h, a, APART, LANES);
    FFT(meet)(team);
    FFT(ahead) ahead = {{more ? re + m : NULL, more && im ? im + m : NULL}, {x, NULL}, m, size};
    FFT(transform)(p, &a, &b, is_long, is_long ? &ahead : NULL, team);
    if (!is_long) {
        FFT(scaled)(a.re, h, scale, -scale);
        FFT(give)(a.re, even ? LANES : APART, f->n, rows, x, size, size);
        return;
    }
    if (even) {
        int64_t pairs = mx_max(from, mx_min(to, size / 2));
        for (int64_t k = from; k < pairs; k++) {
            x[2 * k] = a.re[k] * scale;
            x[2 * k + 1] = -a.im[k] * scale;
        }
        if (pairs < to && 2 * pairs < size)
            x[2 * pairs] = a.re[pairs] * scale;
    } else {
        FFT(copy)(a.re, h, scale, mx_min(from, size), mx_min(to, size), x);
    }
    if (team->me == team->size - 1)
        FFT(copy)(NULL, 0, 1, mx_min(f->n, size), size, x);
}

static void FFT(rows)(const mx_fft_plan *p, int64_t first, const mx_fft_team *team, const bool is_long)
{
    int64_t rows = mx_min(p->lanes, p->call.rows - first), room = p->room;
    REAL *work = (REAL *)team->work;
    FFT(complex) a = FFT(vectors)(work), b = FFT(vectors)(work + 2 * room);
    if (is_long) {
        a.im = work + room;
        b.im = work + 3 * room;
    }
    if (p->call.kind == MX_FFT_COMPLEX)
        FFT(complex_rows)(p, first, rows, a, b, is_long, team);
    else if (p->call.kind == MX_FFT_REAL)
        FFT(real_rows)(p, first, rows, a, b, is_long, team);
    else
        FFT(back_rows)(p, first, rows, a, b, is_long, team);
}

static void FFT(block)(const mx_fft_plan *p, int64_t first, const mx_fft_team *team)
{
    if (p->lanes == 1)
        FFT(rows)(p, first, team, true), FFT(meet)(team); /* before the next row takes the work space */
    else
        FFT(rows)(p, first, team, false);
}

#undef LANES
#undef APART
#undef TABLE
#undef REAL
#undef FFT
