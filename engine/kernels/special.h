/* Special functions of one array, computed in f64 one element at a time and rounded once: lgamma and its derivatives,
 * and the inverse of the error function. The results do not depend on the instruction set. */
#ifndef MX_KERNELS_SPECIAL_H
#define MX_KERNELS_SPECIAL_H

#include "kernels/elementwise.h"

/* MX_ERFINV: infinite at -1 and 1, NaN beyond; of f32 and bf16 to a relative 2e-7. MX_LGAMMA: ln |gamma(x)|, infinite
 * at 0 and the whole numbers below. MX_DIGAMMA: its derivative, -inf at 0 (inf at -0), NaN at the whole numbers below.
 * MX_POLYGAMMA: the derivative of that of order `order` >= 1, infinite at 0 and the whole numbers below; with an order
 * above 1, NaN below -1000. */
typedef enum mx_special { MX_ERFINV, MX_LGAMMA, MX_DIGAMMA, MX_POLYGAMMA } mx_special;

/* y = f(x), n elements of one real dtype; y may be x. */
void mx_special_run(mx_special f, int order, mx_array x, mx_array y, int64_t n);

/* The same of one number, with the accuracy of f64 everywhere. */
double mx_special_f64(mx_special f, int order, double x);

#endif
