/* Batch norm and group norm: x (batch, channels, inner), with a mean and a variance for each set of elements.
 *
 *   y = (x - mean) rstd weight + bias      rstd = 1 / sqrt(var + eps), var = mean of (x - mean)^2
 *
 * A set is a channel in all of the batch, or a group of neighbouring channels in one of the batch. All floats are f64,
 * or x, y, dy and dx are all f32 or all bf16. Sums are f32 in pieces of fixed sizes and f64 across them, so the bits do
 * not depend on the number of threads. */
#ifndef MX_KERNELS_CHANNEL_NORM_H
#define MX_KERNELS_CHANNEL_NORM_H

#include "core/status.h"
#include "kernels/elementwise.h"

typedef struct mx_channel_norm {
    int64_t batch, channels, inner;
    int64_t groups; /* 0: a set is a channel; otherwise the sets are (batch, groups) */
    bool fixed;     /* mean and var are given and do not depend on x */
    double eps;
    mx_array weight, bias;   /* (channels); data NULL: ones, zeros */
    mx_array mean, var;      /* of the sets: forward writes them unless `fixed`, backward reads them */
    mx_array x, y;           /* forward; x is read twice, the second time from a cache where a set fits it */
    mx_array dy, dx;         /* backward reads x and dy twice, as above */
    mx_array dmean, dvar;    /* gradients of mean and var, of the sets, which backward reads; data NULL: none */
    mx_array dweight, dbias; /* (channels), overwritten: sums of dy (x - mean) rstd, and of dy */
} mx_channel_norm;

/* MX_ERR_MEMORY when scratch for the sums of pieces cannot be had. */
mx_status mx_channel_norm_forward(const mx_channel_norm *n);
mx_status mx_channel_norm_backward(const mx_channel_norm *n);

/* ---- the loops for one instruction set, on one thread ---- */

/* The numbers for n neighbours: one for all of them or, with `each`, one for each. No NaN but NAN itself. */
typedef struct mx_channel_line {
    int64_t n;
    bool each;
    const float *mean, *scale, *slope, *shift;
    int64_t ahead; /* elements from one that is read to one that is read later, which is prefetched */
} mx_channel_line;

/* n neighbours that have their own weights and biases, but mean, scale, slope and shift in common. No NaN but NAN. */
typedef struct mx_channel_set {
    int64_t n;
    float mean, scale, slope, shift;
    const float *weight, *bias;
    int64_t ahead;
} mx_channel_set;

/* x, y, dy and dx f32 or bf16. stream: past the caches, for which a store fence must follow: one after each short piece
 * would keep the next one from being read meanwhile. */
typedef struct mx_channel_paths {
    /* y = (x - mean) scale + shift */
    void (*forward)(mx_array x, const mx_channel_line *line, void *y, bool stream);
    /* Adds dy to sum and dy (x - mean) to dot: to the first or, with `each`, to the number of each element. */
    void (*sums)(mx_array x, const void *dy, const mx_channel_line *line, float *sum, float *dot);
    /* dx = dy scale + (x - mean) slope + shift */
    void (*backward)(mx_array x, const void *dy, const mx_channel_line *line, void *dx, bool stream);
    /* y = ((x - mean) scale + shift) weight + bias. */
    void (*set_forward)(mx_array x, const mx_channel_set *set, void *y, bool stream);
    /* The sums of dy weight and of dy weight (x - mean). */
    void (*set_sums)(mx_array x, const void *dy, const mx_channel_set *set, float sums[2]);
    /* dx = dy weight scale + (x - mean) slope + shift; adds dy (x - mean) scale to dweight, and dy to dbias. */
    void (*set_backward)(mx_array x, const void *dy, const mx_channel_set *set, void *dx, float *dweight, float *dbias,
                         bool stream);
} mx_channel_paths;

#endif
