/* Fourier transforms of rows, in f32 or f64. With w = e^(-2 pi i / n):
 *
 *     complex   Y[k] = scale sum of X[t] w^(kt);  with `inverse`, w^(-kt)
 *     real      Y[k] = scale e[k] sum of x[t] w^(kt), for the first `frequencies` k, at most n / 2 + 1
 *     back      x[t] = scale sum of e[k] (re[k] cos(2 pi kt / n) - im[k] sin(2 pi kt / n))
 *
 * e[k] is `inner` for frequencies that stand for two (k and n - k), 1 for k = 0 and k = n / 2. So the last two, with
 * the same numbers, are the transposes of each other. Elements of x beyond n are not read, and are written as 0; those
 * that it lacks count as 0.
 *
 * n is a product of primes up to 47, or costs two to five times as much, and up to ten times if n is odd and the rows
 * are real (Bluestein's algorithm). Short rows are transformed together, each in a lane of vectors; a long row is a
 * matrix whose columns and then rows are short ones. Each element sees the same operations on every path and any number
 * of threads, so the bits are the same. */
#ifndef MX_KERNELS_FFT_H
#define MX_KERNELS_FFT_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum mx_fft_kind { MX_FFT_COMPLEX, MX_FFT_REAL, MX_FFT_BACK } mx_fft_kind;

/* Arrays are contiguous rows of `dtype`, f32 or f64. */
typedef struct mx_fft {
    mx_fft_kind kind;
    mx_dtype dtype;
    int64_t rows, n;     /* n from 1 to 2^30 */
    int64_t size;        /* elements of a row of x */
    int64_t frequencies; /* elements of a row of re and im; COMPLEX: n */
    bool inverse;
    double scale, inner;
    const void *x_re, *x_im; /* COMPLEX: input; x_im NULL: 0. REAL: x_re is x */
    void *re, *im;           /* COMPLEX and REAL: output; BACK: input, im NULL: 0 */
    void *x;                 /* BACK: output */
} mx_fft;

mx_status mx_fft_run(const mx_fft *f); /* MX_ERR_MEMORY */

/* How a path computes: in steps of small factors, with tables of the dtype. */
enum { MX_FFT_SHORT = 1024, MX_FFT_LARGEST = 47 }; /* elements of a row in lanes; the largest factor of a step */

typedef struct mx_fft_steps {
    int64_t length;
    int passes, factor[32]; /* their product is `length` */
    void *turn[2];          /* w^k for w of `length`, k < length: real and imaginary parts */
} mx_fft_steps;

typedef struct mx_fft_plan {
    mx_fft call;
    int64_t length;        /* of the complex transform: n, or n / 2 for an even number of real elements */
    int64_t inner_length;  /* of the steps: `length`, or one with factors up to 5 for Bluestein's algorithm */
    int64_t lanes;         /* rows together: of a vector, or 1 if inner_length is more than MX_FFT_SHORT */
    mx_fft_steps steps[2]; /* short rows: the first alone. Long ones: of the columns and of the rows of the matrix */
    int64_t side;          /* of the matrix: its rows or columns, whichever are more */
    int64_t pitch;         /* elements between the matrix's rows in the room for it */
    int64_t room;          /* elements of each of the 4 arrays of a block */
    void *column[2];       /* w^(kl) for w of inner_length: row k and lane l of the matrix's columns */
    void *group[2];        /* w^(kt) for row k and t the first column of each vector, one column after the other */
    void *half[2];         /* w^k for w of n, k <= n / 2; only if length is n / 2 */
    void *chirp[2];        /* Bluestein: e^(-pi i k^2 / length), k < length; otherwise NULL */
    void *answer[2];       /* and the transform of its conjugate, divided by inner_length */
} mx_fft_plan;

/* The threads that transform a row together, all of which call for it. */
typedef struct mx_fft_team {
    int me, size;
    void *work; /* of the team: 4 room elements */
    void *own;  /* of this thread, for long rows: 4 vectors for each element of a column or row of the matrix */
} mx_fft_team;

/* For one instruction set: transforms the rows from `first`, at most `lanes` of them. */
typedef struct mx_fft_paths {
    void (*f32)(const mx_fft_plan *p, int64_t first, const mx_fft_team *team);
    void (*f64)(const mx_fft_plan *p, int64_t first, const mx_fft_team *team);
} mx_fft_paths;

#endif
