/* The loops of fft.h: plain C that the compiler turns into vectors. Each path includes this file twice, with REAL and
 * FFT(name): the type, and names that end with it.
 *
 * Complex numbers are in two arrays. Element k of all lanes comes before element k + 1: index k * lanes + lane. */
#include "kernels/fft.h"
#include "kernels/inline.h"

#include <string.h>

typedef struct FFT(complex) {
    REAL *re, *im;
} FFT(complex);

#define TABLE(t) ((const REAL *const *)(t))

/* ---- steps: Stockham's order, which needs no permutation ----
 *
 * A step of radix r splits a transform of r m elements into r transforms of m elements. Blocks of `stride` neighbours
 * go through the same arithmetic. For each p < m, blocks a[j] at p + m j become blocks b[k] at r p + k, with j, k < r:
 * b[k] = w^(p k) sum over j of a[j] e^(-2 pi i jk / r). */

MX_INLINE void FFT(step2)(const REAL *restrict ar, const REAL *restrict ai, int64_t apart, REAL *restrict br,
                          REAL *restrict bi, int64_t stride, REAL c, REAL s)
{
    for (int64_t q = 0; q < stride; q++) {
        REAL xr = ar[q] - ar[q + apart], xi = ai[q] - ai[q + apart];
        br[q] = ar[q] + ar[q + apart];
        bi[q] = ai[q] + ai[q + apart];
        br[q + stride] = xr * c - xi * s;
        bi[q + stride] = xr * s + xi * c;
    }
}

/* w: cosine and sine of p, 2 p and 3 p turns. */
MX_INLINE void FFT(step4)(const REAL *restrict ar, const REAL *restrict ai, int64_t apart, REAL *restrict br,
                          REAL *restrict bi, int64_t stride, const REAL w[3][2])
{
    for (int64_t q = 0; q < stride; q++) {
        REAL sum02r = ar[q] + ar[q + 2 * apart], sum02i = ai[q] + ai[q + 2 * apart];
        REAL off02r = ar[q] - ar[q + 2 * apart], off02i = ai[q] - ai[q + 2 * apart];
        REAL sum13r = ar[q + apart] + ar[q + 3 * apart], sum13i = ai[q + apart] + ai[q + 3 * apart];
        REAL off13r = ar[q + apart] - ar[q + 3 * apart], off13i = ai[q + apart] - ai[q + 3 * apart];
        REAL r1 = off02r + off13i, i1 = off02i - off13r, r2 = sum02r - sum13r, i2 = sum02i - sum13i;
        REAL r3 = off02r - off13i, i3 = off02i + off13r;
        br[q] = sum02r + sum13r;
        bi[q] = sum02i + sum13i;
        br[q + stride] = r1 * w[0][0] - i1 * w[0][1];
        bi[q + stride] = r1 * w[0][1] + i1 * w[0][0];
        br[q + 2 * stride] = r2 * w[1][0] - i2 * w[1][1];
        bi[q + 2 * stride] = r2 * w[1][1] + i2 * w[1][0];
        br[q + 3 * stride] = r3 * w[2][0] - i3 * w[2][1];
        bi[q + 3 * stride] = r3 * w[2][1] + i3 * w[2][0];
    }
}

/* An odd radix. a[j] and a[r - j] share their products: with their sums and differences, b[i] and b[r - i] are plus
 * and minus i times the other. root: elements of the tables that make 1 / r of a turn; p: the turns of b[1]. */
static void FFT(step_odd)(int r, const REAL *restrict ar, const REAL *restrict ai, int64_t apart, REAL *restrict br,
                          REAL *restrict bi, int64_t stride, const REAL *const *turn, int64_t root, int64_t p)
{
    enum { LANES = MX_FFT_LANES, HALF = MX_FFT_LARGEST / 2 + 1 };
    REAL sr[HALF][LANES] = {{0}}, si[HALF][LANES] = {{0}}, dr[HALF][LANES] = {{0}}, di[HALF][LANES] = {{0}};
    for (int64_t first = 0; first < stride; first += LANES) {
        int64_t n = mx_min(LANES, stride - first);
        REAL total_r[LANES], total_i[LANES];
        for (int64_t l = 0; l < n; l++) {
            total_r[l] = sr[0][l] = ar[first + l];
            total_i[l] = si[0][l] = ai[first + l];
        }
        for (int j = 1; j <= r / 2; j++) {
            const REAL *xr = ar + first + j * apart, *xi = ai + first + j * apart;
            const REAL *yr = ar + first + (r - j) * apart, *yi = ai + first + (r - j) * apart;
            for (int64_t l = 0; l < n; l++) {
                sr[j][l] = xr[l] + yr[l];
                si[j][l] = xi[l] + yi[l];
                dr[j][l] = xr[l] - yr[l];
                di[j][l] = xi[l] - yi[l];
                total_r[l] += sr[j][l];
                total_i[l] += si[j][l];
            }
        }
        memcpy(br + first, total_r, (size_t)n * sizeof(REAL));
        memcpy(bi + first, total_i, (size_t)n * sizeof(REAL));
        for (int i = 1; i <= r / 2; i++) {
            REAL plus_r[LANES], plus_i[LANES], minus_r[LANES] = {0}, minus_i[LANES] = {0};
            memcpy(plus_r, sr[0], sizeof plus_r);
            memcpy(plus_i, si[0], sizeof plus_i);
            for (int j = 1; j <= r / 2; j++) {
                REAL c = turn[0][i * j % r * root], s = turn[1][i * j % r * root];
                for (int l = 0; l < LANES; l++) {
                    plus_r[l] += c * sr[j][l];
                    plus_i[l] += c * si[j][l];
                    minus_r[l] += s * dr[j][l];
                    minus_i[l] += s * di[j][l];
                }
            }
            REAL c1 = turn[0][p * i], s1 = turn[1][p * i], c2 = turn[0][p * (r - i)], s2 = turn[1][p * (r - i)];
            for (int64_t l = 0; l < n; l++) {
                REAL r1 = plus_r[l] - minus_i[l], i1 = plus_i[l] + minus_r[l], r2 = plus_r[l] + minus_i[l],
                     i2 = plus_i[l] - minus_r[l];
                br[i * stride + first + l] = r1 * c1 - i1 * s1;
                bi[i * stride + first + l] = r1 * s1 + i1 * c1;
                br[(r - i) * stride + first + l] = r2 * c2 - i2 * s2;
                bi[(r - i) * stride + first + l] = r2 * s2 + i2 * c2;
            }
        }
    }
}

/* The transform of inner_length elements of `lanes` lanes: in *a, with *b as room. They may be exchanged. */
static void FFT(steps)(const mx_fft_plan *p, int64_t lanes, FFT(complex) * a, FFT(complex) * b)
{
    const REAL *const *turn = TABLE(p->turn);
    int64_t done = 1; /* the product of the factors so far */
    for (int pass = 0; pass < p->passes; pass++) {
        int r = p->factor[pass];
        int64_t m = p->inner_length / done / r, stride = done * lanes, apart = m * stride;
        for (int64_t k = 0; k < m; k++) {
            const REAL *ar = a->re + k * stride, *ai = a->im + k * stride;
            REAL *br = b->re + k * r * stride, *bi = b->im + k * r * stride;
            int64_t t = k * done;
            if (r == 2) {
                FFT(step2)(ar, ai, apart, br, bi, stride, turn[0][t], turn[1][t]);
            } else if (r == 4) {
                const REAL w[3][2] = {
                    {turn[0][t], turn[1][t]}, {turn[0][2 * t], turn[1][2 * t]}, {turn[0][3 * t], turn[1][3 * t]}};
                FFT(step4)(ar, ai, apart, br, bi, stride, w);
            } else {
                FFT(step_odd)(r, ar, ai, apart, br, bi, stride, turn, p->inner_length / r, t);
            }
        }
        FFT(complex) other = *a;
        *a = *b;
        *b = other;
        done *= r;
    }
}

/* z times the table, for n elements; those up to `end` become 0. */
static void FFT(multiply)(const FFT(complex) * z, const REAL *const *by, int64_t n, int64_t end, int64_t lanes)
{
    for (int64_t k = 0; k < n; k++) {
        for (int64_t l = k * lanes; l < (k + 1) * lanes; l++) {
            REAL re = z->re[l], im = z->im[l];
            z->re[l] = re * by[0][k] - im * by[1][k];
            z->im[l] = re * by[1][k] + im * by[0][k];
        }
    }
    memset(z->re + n * lanes, 0, (size_t)((end - n) * lanes) * sizeof(REAL));
    memset(z->im + n * lanes, 0, (size_t)((end - n) * lanes) * sizeof(REAL));
}

static FFT(complex) FFT(swapped)(FFT(complex) z) { return (FFT(complex)){z.im, z.re}; }

/* The transform of `length` elements, without scale. With real and imaginary part exchanged, it is the inverse one. */
static void FFT(transform)(const mx_fft_plan *p, FFT(complex) * a, FFT(complex) * b)
{
    int64_t lanes = p->lanes, n = p->length, m = p->inner_length;
    if (!p->chirp[0]) {
        FFT(steps)(p, lanes, a, b);
        return;
    }
    FFT(multiply)(a, TABLE(p->chirp), n, m, lanes);
    FFT(steps)(p, lanes, a, b);
    FFT(multiply)(a, TABLE(p->answer), m, m, lanes);
    *a = FFT(swapped)(*a);
    *b = FFT(swapped)(*b);
    FFT(steps)(p, lanes, a, b);
    *a = FFT(swapped)(*a);
    *b = FFT(swapped)(*b);
    FFT(multiply)(a, TABLE(p->chirp), n, n, lanes);
}

/* ---- rows ---- */

/* n elements of each of `rows` rows, every `step`-th of the `have` that begin at x and so on, become lanes of z; what a
 * row lacks is 0. x may be NULL. */
MX_INLINE void FFT(load)(const REAL *x, int64_t apart, int64_t have, int64_t step, int64_t rows, int64_t n,
                         int64_t lanes, REAL *z)
{
    int64_t count = x ? mx_min(n, mx_ceil_div(mx_max(0, have), step)) : 0;
    if (count < n || rows < lanes)
        memset(z, 0, (size_t)(n * lanes) * sizeof(REAL));
    for (int64_t k = 0; k < count; k++)
        for (int64_t l = 0; l < rows; l++)
            z[k * lanes + l] = x[l * apart + k * step];
}

/* The other way, times scale; elements of x beyond n become 0. */
MX_INLINE void FFT(store)(const REAL *z, int64_t n, int64_t lanes, REAL scale, REAL *x, int64_t apart, int64_t have,
                          int64_t step, int64_t rows)
{
    int64_t count = mx_ceil_div(mx_max(0, have), step);
    for (int64_t k = 0; k < mx_min(n, count); k++)
        for (int64_t l = 0; l < rows; l++)
            x[l * apart + k * step] = z[k * lanes + l] * scale;
    for (int64_t k = n; k < count; k++)
        for (int64_t l = 0; l < rows; l++)
            x[l * apart + k * step] = 0;
}

static const REAL *FFT(row)(const void *x, int64_t elements) { return x ? (const REAL *)x + elements : NULL; }

static void FFT(complex_rows)(const mx_fft_plan *p, int64_t first, int64_t rows, FFT(complex) a, FFT(complex) b)
{
    const mx_fft *f = &p->call;
    int64_t n = f->n, lanes = p->lanes;
    FFT(load)(FFT(row)(f->x_re, first * n), n, n, 1, rows, n, lanes, f->inverse ? a.im : a.re);
    FFT(load)(FFT(row)(f->x_im, first * n), n, n, 1, rows, n, lanes, f->inverse ? a.re : a.im);
    FFT(transform)(p, &a, &b);
    FFT(complex) y = f->inverse ? FFT(swapped)(a) : a;
    FFT(store)(y.re, n, lanes, (REAL)f->scale, (REAL *)f->re + first * n, n, n, 1, rows);
    FFT(store)(y.im, n, lanes, (REAL)f->scale, (REAL *)f->im + first * n, n, n, 1, rows);
}

/* Real rows are one complex transform: of half the length if n is even, with the odd elements as imaginary parts. Its
 * result z[k] holds those of the even and of the odd elements, which differ in symmetry: E = (z[k] + z*[h - k]) / 2
 * and O = (z[k] - z*[h - k]) / 2i. Then Y[k] = E + w^k O. */
static void FFT(real_rows)(const mx_fft_plan *p, int64_t first, int64_t rows, FFT(complex) a, FFT(complex) b)
{
    const mx_fft *f = &p->call;
    const REAL *x = FFT(row)(f->x_re, first * f->size);
    int64_t lanes = p->lanes, h = p->length, step = f->n / h, size = f->size;
    FFT(load)(x, size, size, step, rows, h, lanes, a.re);
    FFT(load)(step == 2 ? x + 1 : NULL, size, size - 1, step, rows, h, lanes, a.im);
    FFT(transform)(p, &a, &b);
    for (int64_t k = 0; k < f->frequencies; k++) {
        bool alone = k == 0 || 2 * k == f->n;
        REAL scale = (REAL)(f->scale * (alone ? 1 : f->inner));
        const REAL *restrict zr = a.re + k % h * lanes, *restrict zi = a.im + k % h * lanes;
        const REAL *restrict yr = a.re + (h - k) % h * lanes, *restrict yi = a.im + (h - k) % h * lanes;
        REAL *restrict re = b.re + k * lanes, *restrict im = b.im + k * lanes;
        REAL c = step == 2 ? TABLE(p->half)[0][k] : 0, s = step == 2 ? TABLE(p->half)[1][k] : 0, half = scale / 2;
        for (int64_t l = 0; l < lanes; l++) {
            REAL er = (zr[l] + yr[l]) * half, ei = (zi[l] - yi[l]) * half;
            REAL or = (zi[l] + yi[l]) * half, oi = (yr[l] - zr[l]) * half;
            re[l] = step == 2 ? er + (or *c - oi * s) : zr[l] * scale;
            im[l] = alone ? 0 : step == 2 ? ei + (or *s + oi * c) : zi[l] * scale;
        }
    }
    int64_t m = f->frequencies;
    FFT(store)(b.re, m, lanes, 1, (REAL *)f->re + first * m, m, m, 1, rows);
    FFT(store)(b.im, m, lanes, 1, (REAL *)f->im + first * m, m, m, 1, rows);
}

/* The same backwards. z[k] = E + i O, with E = Y[k] + Y*[h - k] and O = (Y[k] - Y*[h - k]) / w^k; for an odd n, z is
 * all of Y, whose second half is the conjugate of the first. Y is half of `inner` times re and im, or all of re. */
static void FFT(back_rows)(const mx_fft_plan *p, int64_t first, int64_t rows, FFT(complex) a, FFT(complex) b)
{
    const mx_fft *f = &p->call;
    int64_t lanes = p->lanes, h = p->length, step = f->n / h, m = f->frequencies, half = f->n / 2 + 1;
    REAL weight = (REAL)(f->inner / 2);
    FFT(load)(FFT(row)(f->re, first * m), m, m, 1, rows, half, lanes, b.re);
    FFT(load)(FFT(row)(f->im, first * m), m, m, 1, rows, half, lanes, b.im);
    for (int64_t k = 0; k < half; k++) {
        bool alone = k == 0 || 2 * k == f->n;
        for (int64_t l = k * lanes; l < (k + 1) * lanes; l++) {
            b.re[l] = alone ? b.re[l] : b.re[l] * weight;
            b.im[l] = alone ? 0 : b.im[l] * weight;
        }
    }
    for (int64_t k = 0; k < h; k++) {
        int64_t one = (k < half ? k : h - k) * lanes, other = (h - k) * lanes, to = k * lanes;
        for (int64_t l = 0; l < lanes; l++) {
            REAL re = b.re[one + l], im = k < half ? b.im[one + l] : -b.im[one + l];
            if (step == 2) {
                REAL c = TABLE(p->half)[0][k], s = TABLE(p->half)[1][k];
                REAL or = re - b.re[other + l], oi = im + b.im[other + l];
                re = re + b.re[other + l] - (oi * c - or *s);
                im = im - b.im[other + l] + (or *c + oi * s);
            }
            a.re[to + l] = re;
            a.im[to + l] = im;
        }
    }
    FFT(complex) from = FFT(swapped)(a), room = FFT(swapped)(b);
    FFT(transform)(p, &from, &room);
    REAL *x = (REAL *)f->x + first * f->size, scale = (REAL)f->scale;
    FFT(store)(from.im, h, lanes, scale, x, f->size, f->size, step, rows);
    if (step == 2)
        FFT(store)(from.re, h, lanes, scale, x + 1, f->size, f->size - 1, step, rows);
}

static void FFT(block)(const mx_fft_plan *p, int64_t first, void *work)
{
    int64_t part = p->room, rows = mx_min(p->lanes, p->call.rows - first);
    FFT(complex) a = {work, (REAL *)work + part}, b = {(REAL *)work + 2 * part, (REAL *)work + 3 * part};
    if (p->call.kind == MX_FFT_COMPLEX)
        FFT(complex_rows)(p, first, rows, a, b);
    else if (p->call.kind == MX_FFT_REAL)
        FFT(real_rows)(p, first, rows, a, b);
    else
        FFT(back_rows)(p, first, rows, a, b);
}

#undef TABLE
#undef REAL
#undef FFT
